"""Operators that read images at odd places, against loops over single outputs that follow the standard's text."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from tests.ops.case import Case
from tests.ops.cases import CASES

Array = np.ndarray[Any, Any]
Pixel = Callable[[Sequence[int]], Any]


def interpolated(pixel: Pixel, position: Sequence[float], mode: str) -> Any:
    """The value between entries, one axis after the other: `pixel` gives that of an entry, inside or not."""
    if not len(position):
        return pixel(())
    here, *rest = position
    if mode == "nearest":
        return interpolated(lambda at: pixel((round(here), *at)), rest, mode)  # halves to even
    low = math.floor(here)
    taps = range(low, low + 2) if mode == "linear" else range(low - 1, low + 3)
    values = [interpolated(lambda at, tap=tap: pixel((tap, *at)), rest, mode) for tap in taps]
    return sum(influence(abs(here - tap), mode) * value for tap, value in zip(taps, values, strict=True))


def influence(distance: float, mode: str) -> float:
    """The weight of an entry: a hat, or the cubic convolution of Keys with a = -0.75."""
    if mode == "linear":
        return 1 - distance
    if distance <= 1:
        return 1.25 * distance**3 - 2.25 * distance**2 + 1
    return -0.75 * distance**3 + 3.75 * distance**2 - 6 * distance + 3


def grid_sample(
    x: Array, grid: Array, *, mode: str = "linear", padding_mode: str = "zeros", align_corners: int = 0
) -> Array:
    """Each position of the grid for itself."""
    space, points = x.shape[2:], grid.shape[1:-1]
    y = np.zeros((*x.shape[:2], *points), x.dtype)
    for n, c, *point in np.ndindex(*y.shape):
        reach = [(d - 1) / 2 if align_corners else d / 2 for d in space]
        position = [(d - 1) / 2 + g * r for d, g, r in zip(space, grid[n, *point][::-1], reach, strict=True)]
        y[n, c, *point] = interpolated(padded(x[n, c], padding_mode, align_corners), position, mode)
    return y


def padded(image: Array, padding: str, align_corners: int = 1) -> Pixel:
    """The entries of an image that goes on beyond its edges."""

    def pixel(at: Sequence[int]) -> Any:
        inside = all(0 <= i < d for i, d in zip(at, image.shape, strict=True))
        if padding == "zeros":
            return image[tuple(at)] if inside else ("" if image.dtype == object else 0)
        if padding == "border":
            return image[tuple(min(max(i, 0), d - 1) for i, d in zip(at, image.shape, strict=True))]
        return image[tuple(reflected(i, d, align_corners) for i, d in zip(at, image.shape, strict=True))]

    return pixel


def reflected(i: int, length: int, align_corners: int) -> int:
    """An index reflected at the edges till it lies inside."""
    low, high = (0.0, length - 1.0) if align_corners else (-0.5, length - 0.5)
    place = float(i)
    while length > 1 and not low <= place <= high:
        place = 2 * low - place if place < low else 2 * high - place
    return int(place) if length > 1 else 0


def affine_grid(theta: Array, size: Array, *, align_corners: int = 0) -> Array:
    """Each entry's place in homogeneous coordinates, times the matrix."""
    n, _, *space = size.tolist()
    grid = np.zeros((n, *space, len(space)))
    for b, *at in np.ndindex(n, *space):
        ends = [(d - 1) / d if not align_corners else 1.0 for d in space]
        place = [e * (2 * i / (d - 1) - 1) if d > 1 else 0.0 for i, d, e in zip(at, space, ends, strict=True)]
        grid[b, *at] = theta[b] @ [*place[::-1], 1.0]
    return grid


def deform_conv(
    x: Array, w: Array, offset: Array, b: Array | None = None, mask: Array | None = None, *, dilations: Any = None,
    group: int = 1, kernel_shape: Any = None, offset_group: int = 1, pads: Any = None, strides: Any = None,
) -> Array:  # fmt: skip
    """Each output as a sum over channels and taps, the tap's offset added to its place."""
    rank, kernel, channels = x.ndim - 2, w.shape[2:], w.shape[1]
    dilations, strides, pads = dilations or (1,) * rank, strides or (1,) * rank, pads or (0,) * 2 * rank
    y = np.zeros((x.shape[0], w.shape[0], *offset.shape[2:]))
    shifts = offset.reshape(x.shape[0], offset_group, *kernel, rank, *offset.shape[2:])
    factors = None if mask is None else mask.reshape(x.shape[0], offset_group, *kernel, *offset.shape[2:])
    for n, m, *at in np.ndindex(*y.shape):
        for c, *tap in np.ndindex(channels, *kernel):
            source = m // (w.shape[0] // group) * channels + c
            bent = source // (x.shape[1] // offset_group)
            place = [a * s + t * d - p for a, s, t, d, p in zip(at, strides, tap, dilations, pads[:rank], strict=True)]
            position = [p + shifts[n, bent, *tap, i, *at] for i, p in enumerate(place)]
            value = interpolated(padded(x[n, source], "zeros"), position, "linear")
            y[n, m, *at] += w[m, c, *tap] * value * (1 if factors is None else factors[n, bent, *tap, *at])
    return y if b is None else y + b.reshape(-1, *(1,) * rank)


def roi_align(
    x: Array, rois: Array, images: Array, *, mode: str = "avg", output_height: int = 1, output_width: int = 1,
    sampling_ratio: int = 0, spatial_scale: float = 1.0, coordinate_transformation_mode: str = "half_pixel",
) -> Array:  # fmt: skip
    """Each bin as the mean or the maximum over its grid of samples."""
    bins, half = (output_height, output_width), coordinate_transformation_mode == "half_pixel"
    y = np.zeros((len(rois), x.shape[1], *bins))
    for r, c, *at in np.ndindex(*y.shape):
        corners = rois[r] * np.float64(np.float32(spatial_scale)) - (0.5 if half else 0)
        start, end = corners[[1, 0]], corners[[3, 2]]
        sizes = (end - start if half else np.maximum(end - start, 1)) / bins
        counts = [sampling_ratio or max(math.ceil(s), 0) for s in sizes]
        samples = [
            [b + s * (i + (k + 0.5) / n) for i, k, n, b, s in zip(at, number, counts, start, sizes, strict=True)]
            for number in np.ndindex(*counts)
        ]
        terms = [list(terms_of(x[images[r], c], sample)) for sample in samples]
        if samples and mode == "avg":
            y[r, c, *at] = sum(sum(t) for t in terms) / len(samples)
        elif samples:
            y[r, c, *at] = max(max(t) for t in terms)
    return y


def terms_of(image: Array, sample: Sequence[float]) -> Any:
    """The four entries around a sample, each times its weight; 0 for one more than an entry outside."""
    if any(not -1 <= p <= d for p, d in zip(sample, image.shape, strict=True)):
        return [0.0]
    held = [min(max(p, 0), d - 1) for p, d in zip(sample, image.shape, strict=True)]
    corners = [[(math.floor(p), 1 - p % 1), (min(math.floor(p) + 1, d - 1), p % 1)]
               for p, d in zip(held, image.shape, strict=True)]  # fmt: skip
    return [image[i, j] * a * b for (i, a), (j, b) in itertools.product(*corners)]


def max_roi_pool(x: Array, rois: Array, *, pooled_shape: Sequence[int], spatial_scale: float = 1.0) -> Array:
    """Each bin as the maximum over its rows and columns, 0 if it has none."""
    y = np.zeros((len(rois), x.shape[1], *pooled_shape))
    for r, c, *at in np.ndindex(*y.shape):
        scaled = rois[r, 1:] * np.float64(np.float32(spatial_scale))
        left, top, right, bottom = (int(math.copysign(math.floor(abs(v) + 0.5), v)) for v in scaled)
        window = []
        for i, low, high, parts in zip(at, (top, left), (bottom, right), pooled_shape, strict=True):
            size = max(high - low + 1, 1)
            window.append(slice(max(low + i * size // parts, 0), max(low - -(i + 1) * size // parts, 0)))
        seen = x[int(rois[r, 0]), c][tuple(window)]
        y[r, c, *at] = seen.max() if seen.size else 0.0
    return y


def col2im(
    x: Array, image: Array, block: Array, *, dilations: Any = None, pads: Any = None, strides: Any = None
) -> Array:
    """Each entry of each block added where it belongs, if that lies in the image."""
    rank = len(image)
    dilations, strides, pads = dilations or (1,) * rank, strides or (1,) * rank, pads or (0,) * 2 * rank
    spans = [d + a + b for d, a, b in zip(image, pads[:rank], pads[rank:], strict=True)]
    blocks = [(n - d * (k - 1) - 1) // s + 1 for n, d, k, s in zip(spans, dilations, block, strides, strict=True)]
    columns = x.reshape(x.shape[0], x.shape[1] // math.prod(block.tolist()), *block, *blocks)
    y = np.zeros((*columns.shape[:2], *image), x.dtype)
    for tap, at in itertools.product(np.ndindex(*block), np.ndindex(*blocks)):
        place = [a * s + t * d - p for a, s, t, d, p in zip(at, strides, tap, dilations, pads[:rank], strict=True)]
        if all(0 <= p < d for p, d in zip(place, image, strict=True)):
            y[:, :, *place] += columns[:, :, *tap, *at]
    return y


LOOPS: dict[str, Callable[..., Array]] = {
    "AffineGrid": affine_grid,
    "Col2Im": col2im,
    "DeformConv": deform_conv,
    "GridSample": grid_sample,
    "MaxRoiPool": max_roi_pool,
    "RoiAlign": roi_align,
}


@pytest.mark.parametrize("case", [c for c in CASES if not c.domain and c.op in LOOPS], ids=lambda c: c.id)
def test_the_output_is_that_of_loops(case: Case) -> None:
    y = case.tape().named["y0"].value
    expected = LOOPS[case.op](*case.inputs, **case.attrs)
    assert (y.shape, y.dtype) == (expected.shape, expected.dtype)
    if y.dtype == object:
        assert (y == expected).all()
    else:
        np.testing.assert_allclose(y, expected, rtol=1e-11, atol=1e-12)


def adam(
    rate: Array, count: Array, w: Array, g: Array, m: Array, v: Array, *, alpha: float = 0.9, beta: float = 0.999,
    epsilon: float = 1e-8, do_bias_correction: int = 1, **more: float,
) -> tuple[Any, ...]:  # fmt: skip
    """The step of Kingma and Ba, with the weights themselves decaying."""
    m, v = alpha * m + (1 - alpha) * g, beta * v + (1 - beta) * g**2
    first, second = (1 - alpha**count, 1 - beta**count) if do_bias_correction else (1, 1)
    step = -rate * (m / first / (np.sqrt(v / second) + epsilon) + more.get("lambda", 0.0) * w)
    return count + 1, m, v, w + step, step


def mul_integer(a: Array, a_zero: Array | None, b: Array, b_zero: Array | None = None) -> tuple[Any, ...]:
    """Each integer less its zero point, one times the other."""
    left, right = (x.astype(int) - (0 if zero is None else zero.astype(int)) for x, zero in ((a, a_zero), (b, b_zero)))
    return (left * right,)


FORMULAS: dict[str, Callable[..., tuple[Any, ...]]] = {"AdamOptimizer": adam, "MulInteger": mul_integer}


@pytest.mark.parametrize("case", [c for c in CASES if c.op in FORMULAS], ids=lambda c: c.id)
def test_where_no_runtime_has_an_operator_its_outputs_are_those_of_its_formula(case: Case) -> None:
    outputs, expected = case.tape().named, FORMULAS[case.op](*case.inputs, **case.attrs)
    for i, each in enumerate(expected):
        np.testing.assert_allclose(outputs[f"y{i}"].value, each, rtol=1e-11, err_msg=f"output {i}")
