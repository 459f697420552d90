"""Sampling between the entries of a tensor, at positions that are computed themselves: GridSample, AffineGrid.

A sample is a weighted sum of the few entries around its position.  Along each axis the weights are polynomials in the
position's distance from the last entry before it; all axes together gather rows of channels, which one product sums.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from gradcheck_cli.autodiff import symbolic as sym
from gradcheck_cli.autodiff.tape import Var
from gradcheck_cli.graph import Array
from gradcheck_cli.op import Cut, Metadata, Op, composite
from gradcheck_cli.ops.shape import as_tuple, checked

PADDING_MODES = ("zeros", "border", "reflection")
A = -0.75  # parameter of Keys' cubic convolution, as in PyTorch


@dataclass(frozen=True, slots=True)
class Interpolation:
    """The entries that a position meets, the first of which is `first` after the last entry before the position.

    Column k of `powers` holds the weight of entry k, a polynomial in the position's distance from the last entry before
    it, lowest power first.
    """

    first: int
    powers: Array


LINEAR = Interpolation(0, np.array([[1.0, 0.0], [-1.0, 1.0]]))
CUBIC = Interpolation(
    -1,
    np.array([[0, 1, 0, 0], [A, 0, -A, 0], [-2 * A, -A - 3, 2 * A + 3, A], [A, A + 2, -A - 2, -A]]),
)
INTERPOLATIONS: Mapping[str, Interpolation | None] = {"linear": LINEAR, "nearest": None, "cubic": CUBIC}


@dataclass(frozen=True, slots=True)
class Taps:
    """The entries along one axis that each position meets.

    All are `(*points, taps)`: indices, weights (None: one tap of weight 1), and a mask of those that exist (None: all
    do); those that do not are 0.
    """

    index: Var
    weight: Var | None = None
    inside: Var | None = None


def meet(position: Var, how: Interpolation | None) -> Taps:
    """The entries around positions `(*points)` on an endless axis; the nearest one if `how` is None."""
    if how is None:
        return Taps(sym.unsqueeze(sym.cast(sym.round_(position), np.int64), (-1,)))
    before = sym.floor(position)
    t = sym.unsqueeze(position - before, (-1,))
    powers = [t.tape.constant(row, t.dtype) for row in how.powers]
    weight = reduce(lambda total, power: total * t + power, reversed(powers[:-1]), powers[-1])
    numbers = t.tape.constant(np.arange(how.first, how.first + how.powers.shape[1]))
    return Taps(sym.unsqueeze(sym.cast(before, np.int64), (-1,)) + numbers, weight)


def near(position: Var, length: int) -> Var:
    """Positions, with those too far out to meet any entry moved closer."""
    return sym.clip(position, -3, length + 2)


def extended(taps: Taps, length: int, padding: str, align_corners: bool = True) -> Taps:
    """Taps on an axis of a length: beyond it are zeros, its last entry, or its reflection.

    The axis is reflected at its last entry if `align_corners`, else at that entry's edge.
    """
    index = taps.index
    if padding == "zeros":
        return Taps(index, taps.weight, sym.and_(index >= 0, index < length))
    if not length:
        raise ValueError("an axis of length 0 has no border")
    if padding == "border":
        return Taps(sym.clip(index, 0, length - 1), taps.weight)
    last = 2 * (length - 1) if align_corners else 2 * length - 1  # entry 0 is reflected to this one
    index = index.tape.apply("Mod", index, max(last + (not align_corners), 1))
    return Taps(sym.minimum(index, last - index), taps.weight)


def sample(x: Var, image: Var, axes: Sequence[Taps]) -> Var:
    """Samples of x `(N, C, *space)`, shape `(*points, C)`, by `Taps` for each axis of space and image numbers.

    `image` and the points of all taps broadcast against each other.
    """
    return weighted(*entries(x, image, axes))


def entries(x: Var, image: Var, axes: Sequence[Taps]) -> tuple[Var, Var | None]:
    """The entries `(*points, taps, C)` that samples of x sum, and their weights `(*points, taps)`."""
    n, c, *space = x.shape
    rank, rows = len(space), n * math.prod(space)
    table = sym.reshape(sym.transpose(x, (0, *range(2, rank + 2), 1)), (rows, c))
    flat = sym.unsqueeze(image, [image.ndim + i for i in range(rank)])
    for i, (taps, length) in enumerate(zip(axes, space, strict=True)):
        flat = flat * length + _beside(taps.index, i, rank)
    inside = [_beside(taps.inside, i, rank) for i, taps in enumerate(axes) if taps.inside is not None]
    if inside:  # taps that do not exist read a last row of zeros: 0 even for infinite weights
        nothing: Any = "" if x.dtype == object else 0
        table = sym.concat([table, sym.full(x.tape, (1, c), nothing, x.dtype)], 0)
        flat = sym.where(reduce(sym.and_, inside), flat, rows)
    points = checked((*flat.shape[:-rank], math.prod(flat.shape[-rank:]), c))[:-1]
    found = table.tape.apply("Gather", table, sym.reshape(flat, points), axis=0)
    weights = [_beside(taps.weight, i, rank) for i, taps in enumerate(axes) if taps.weight is not None]
    if not weights:
        return found, None
    return found, sym.reshape(sym.expand(reduce(lambda a, b: a * b, weights), flat.shape), points)


def _beside(taps: Var, i: int, rank: int) -> Var:
    """Axis i's part of `(*points, taps)`, with an axis of its own for the taps of each of `rank` axes."""
    return sym.unsqueeze(taps, [taps.ndim - 1 + k for k in range(rank) if k != i])


def weighted(found: Var, weight: Var | None) -> Var:
    """The sum over taps of `(*points, taps, C)` by weights `(*points, taps)`; for integers truncated."""
    if weight is None:
        return sym.squeeze(found, (-2,))
    if found.dtype.kind in "iub":
        return sym.cast(weighted(sym.cast(found, weight.dtype), weight), found.dtype)
    weight = sym.cast(weight, found.value.real.dtype)
    return sym.squeeze(sym.matmul(sym.unsqueeze(weight, (-2,)), found), (-2,))


def image_numbers(x: Var, rank: int) -> Var:
    """The number of each image of x `(N, ...)`, along the first of `rank` axes."""
    return sym.reshape(sym.arange(x.tape, x.shape[0]), (-1, *(1,) * (rank - 1)))


def grid_sample(x: Var, grid: Var, *, align_corners: int = 0, mode: str = "linear", padding_mode: str = "zeros") -> Var:
    """Samples of x `(N, C, *space)` at positions `(N, *points, rank)`: -1 to 1 along each axis, the innermost first."""
    n, _, *space = _images(x)
    rank = len(space)
    if mode not in INTERPOLATIONS or padding_mode not in PADDING_MODES:
        known = f"{', '.join(INTERPOLATIONS)}, with {', '.join(PADDING_MODES)}"
        raise ValueError(f"mode {mode!r} with padding_mode {padding_mode!r}; known are {known}")
    if grid.ndim != rank + 2 or grid.shape[0] != n or grid.shape[-1] != rank:
        raise ValueError(f"a grid of shape {list(grid.shape)} does not fit an input of shape {list(x.shape)}")
    grid = sym.cast(grid, np.result_type(grid.dtype, np.float32))  # of half precision too few digits are left
    axes = []
    for i, length in enumerate(space):
        position = _in_entries(sym.take(grid, rank - 1 - i, -1), length, bool(align_corners))
        if padding_mode != "reflection":
            position = near(position, length)
        axes.append(extended(meet(position, INTERPOLATIONS[mode]), length, padding_mode, bool(align_corners)))
    y = sample(x, image_numbers(x, rank + 1), axes)
    return sym.transpose(y, (0, rank + 1, *range(1, rank + 1)))


def nearest(attrs: Metadata, operand: int, output: int) -> Cut:
    """`cuts` of a sample: which entry is the nearest to a position decides, and nothing else of the position."""
    return "decides" if operand == 1 and attrs.get("mode") == "nearest" else ""


def _images(x: Var) -> tuple[int, ...]:
    if x.ndim < 3:
        raise ValueError(f"an input (N, C, ...) with at least one more axis is needed, not {list(x.shape)}")
    return x.shape


def _in_entries(position: Var, length: int, align_corners: bool) -> Var:
    """Positions from -1 to 1 in units of entries: the ends are the outermost entries, or their outer edges."""
    if align_corners:
        return (position + 1.0) / 2.0 * float(length - 1)
    return ((position + 1.0) * float(length) - 1.0) / 2.0


def affine_grid(theta: Var, *, size: tuple[int, ...], align_corners: int = 0) -> Var:
    """Positions of the entries of an image of `size` N, C, *space under affine maps `(N, rank, rank + 1)`.

    Positions `(N, *space, rank)` run from -1 to 1 along each axis, the innermost axis first.
    """
    size = as_tuple(size)
    space, rank = size[2:], len(size) - 2
    if rank not in (2, 3) or theta.shape != (size[0], rank, rank + 1):
        raise ValueError(f"theta of shape {list(theta.shape)} does not fit an image of size {list(size)}")
    checked((size[0], *space, rank + 1))
    grids = np.meshgrid(*[_places(length, bool(align_corners)) for length in space], indexing="ij")
    places = np.stack([*grids[::-1], np.ones(space)], axis=-1).reshape(math.prod(space), rank + 1)
    moved = sym.matmul(theta.tape.constant(places, theta.dtype), sym.swap(theta))
    return sym.reshape(moved, (size[0], *space, rank))


def _places(length: int, align_corners: bool) -> Array:
    """Positions of the entries of an axis; its ends -1 and 1 are the outermost entries, or their outer edges."""
    if align_corners:
        return np.linspace(-1, 1, length) if length > 1 else np.zeros(length)
    return (2 * np.arange(length) + 1) / max(length, 1) - 1


SAMPLING: list[Op] = [
    composite("GridSample", grid_sample, cuts=nearest, space="windows", elsewhere="rough"),
    composite("AffineGrid", affine_grid, static={"size": 1}, elsewhere="rough"),
]
