"""Resize: every entry of the result is a weighted mean of few entries of x, along one axis after the other.

The entries and weights along an axis depend on shapes and metadata alone, so they are computed when the node is bound;
the gradient is the product with the transposed matrix of weights.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gradcheck_cli import native
from gradcheck_cli.autodiff import symbolic as sym
from gradcheck_cli.autodiff.tape import Var
from gradcheck_cli.errors import ModelError
from gradcheck_cli.graph import Array
from gradcheck_cli.op import Interval, Op, from_end
from gradcheck_cli.op.batching import Kernel, Operands, blank, on
from gradcheck_cli.op.sparsity import EvaluatedNode, Sets
from gradcheck_cli.ops.index import scatter_back
from gradcheck_cli.ops.shape import as_tuple, checked

_HOW = ("antialias", "coordinate_transformation_mode", "cubic_coeff_a", "exclude_outside", "mode", "nearest_mode")
DENSE = 1 << 20  # entries of the largest matrix of weights; longer axes are gathered and scattered
_NEAREST: dict[str, Kernel] = {
    "round_prefer_floor": lambda at: np.ceil(at - 0.5), "round_prefer_ceil": lambda at: np.floor(at + 0.5),
    "floor": np.floor, "ceil": np.ceil,
}  # fmt: skip
CHOICES = {
    "mode": ("nearest", "linear", "cubic"),
    "nearest_mode": tuple(_NEAREST),
    "keep_aspect_ratio_policy": ("stretch", "not_larger", "not_smaller"),
    "coordinate_transformation_mode": (
        "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric",
        "tf_crop_and_resize",
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Sampling:
    """The resizing of one axis (counted from the end) of length `length`.

    Entry i of the result is the sum over k of `weights[i, k]` times entry `index[i, k]`; if not `inside[i]`, it is the
    extrapolation value.  `how` are the attributes it was made from; `scale` is the given scale, None for a size or a
    whole number.
    """

    axis: int
    length: int
    index: Array
    weights: Array
    inside: Array
    how: Mapping[str, Any]
    scale: float | None

    def __call__(self, x: Array) -> Array:
        """x with this axis resized."""
        if self.index.shape[1] == 1:
            return np.take(x, self.index[:, 0], axis=self.axis)
        if self.dense and np.isfinite(x).all():  # 0 * inf would put NaN all along the axis
            return self._product(x)
        taps = (np.take(x, column, axis=self.axis) for column in self.index.T)
        weights = self.weights.astype(x.real.dtype).T
        return np.asarray(sum(tap * self.along(weight) for tap, weight in zip(taps, weights, strict=True)))

    @property
    def dense(self) -> bool:
        """True if the weights are few enough for a matrix."""
        return len(self.index) * self.length <= DENSE

    def _product(self, x: Array) -> Array:
        weights = self.matrix(x.real.dtype)
        if self.axis == -1:
            return native.matmul(x, weights.T)
        lead, behind = x.shape[: x.ndim + self.axis], x.shape[x.ndim + self.axis + 1 :]
        y = native.matmul(weights, x.reshape(*lead, self.length, math.prod(behind)))
        return y.reshape(*lead, len(weights), *behind)

    def _anywhere(self, ct: Var) -> bool:
        """True if the weights have to be right for other lengths of the axis too."""
        return ct.tape.general and bool(self.inside.all())

    def _unit(self, ct: Var) -> Var:
        """The matrix of weights as the resized identity matrix, for an axis of any length."""
        tape, n = ct.tape, self.length
        unit = sym.reshape(tape.constant(np.eye(n, dtype=ct.dtype)), (1, 1, n, n))
        scales = None if self.scale is None else tape.constant(np.array([1, 1, 1, self.scale], np.float32))
        sizes = sym.ints(tape, (1, 1, n, ct.shape[-1])) if scales is None else None
        made = tape.apply("Resize", unit, None, scales, sizes, **self.how)
        return sym.transpose(sym.squeeze(made, (0, 1)), (1, 0))

    def along(self, values: Array) -> Array:
        """A number for each entry of the resized axis, in a shape that broadcasts."""
        return values.reshape(len(values), *(1,) * (-self.axis - 1))

    def matrix(self, dtype: Any) -> Array:
        """The weights as a matrix from the axis to the resized one."""
        dense = np.zeros((len(self.index), self.length))
        np.add.at(dense, (np.arange(len(self.index))[:, None], self.index), self.weights)
        return dense.astype(dtype)

    def transposed(self, ct: Var) -> Var:
        """The transpose: from the resized axis to the axis."""
        axis = ct.ndim + self.axis
        shape = (*ct.shape[:axis], self.length, *ct.shape[axis + 1 :])
        if self.dense or self._anywhere(ct):
            last = _last(ct, axis)
            weights = self._unit(last) if self._anywhere(ct) else last.tape.constant(self.matrix(ct.dtype))
            return _last(sym.matmul(last, weights), axis)
        parts = [
            scatter_back(ct * ct.tape.constant(self.along(w), ct.dtype), ct.tape.constant(i), shape, axis)
            for i, w in zip(self.index.T, self.weights.T, strict=True)
        ]
        return parts[0] if len(parts) == 1 else ct.tape.apply("Sum", *parts)


def resize(
    x: Array,
    *,
    roi: tuple[float, ...] | None = None,
    scales: tuple[float, ...] | None = None,
    sizes: tuple[int, ...] | None = None,
    antialias: int = 0,
    axes: tuple[int, ...] | None = None,
    coordinate_transformation_mode: str = "half_pixel",
    cubic_coeff_a: float = -0.75,
    exclude_outside: int = 0,
    extrapolation_value: float = 0.0,
    keep_aspect_ratio_policy: str = "stretch",
    mode: str = "nearest",
    nearest_mode: str = "round_prefer_floor",
    samplings: Sequence[Sampling] = (),
) -> Array:
    """x resized along the axes that change; integers are rounded."""
    y = x.astype(np.float64) if x.dtype.kind in "iu" and mode != "nearest" else x
    for sampling in samplings:
        y = sampling(y)
    for sampling in samplings:
        if not sampling.inside.all():
            y = np.where(sampling.along(sampling.inside), y, np.asarray(extrapolation_value).astype(y.dtype))
    return y if y.dtype == x.dtype else _rounded(y, x.dtype)


def resize_outline(kernel: Kernel, operands: Operands, metadata: Mapping[str, Any]) -> Array:
    """The outline rule: the axes that are sampled change their length."""
    shape = list(operands[0].shape)
    for sampling in metadata["samplings"]:
        shape[sampling.axis] = len(sampling.index)
    return blank(shape, operands[0].dtype)


def resize_sparsity(sets: Sets, node: EvaluatedNode) -> Array:
    """The sparsity rule: the entries that are sampled, along one axis after the other."""
    found = node.whole(sets, 0)
    for sampling in node.metadata["samplings"]:
        taps = [np.take(found, column, axis=sampling.axis) for column in sampling.index.T]
        found = np.bitwise_or.reduce(taps, axis=0)
    return found


def resize_vjp(
    ct: Var, y: Var, x: Var, *, samplings: Sequence[Sampling], extrapolation_value: float, mode: str
) -> tuple[Var]:
    """ct through the transposed weights, the last axis first; nothing from extrapolated entries."""
    for sampling in samplings:
        if not sampling.inside.all():
            ct = sym.where(ct.tape.constant(sampling.along(sampling.inside)), ct, 0)
    for sampling in reversed(samplings):
        ct = sampling.transposed(ct)
    return (ct,)


def bind_resize(metadata: dict[str, Any], x: Array) -> dict[str, Any]:
    """Metadata with the samplings of the axes that change."""
    for keyword, known in CHOICES.items():
        if metadata.setdefault(keyword, known[0]) not in known:
            raise ModelError(f"{keyword} is {metadata[keyword]!r}; known are {', '.join(known)}")
    if metadata.get("antialias") and metadata["mode"] == "nearest":
        raise ModelError("antialias needs mode linear or cubic")
    given = metadata.get("axes")
    axes = [from_end(a, x.ndim) for a in (range(x.ndim) if given is None else as_tuple(given))]
    sizes, scales = _extents(metadata, [x.shape[a] for a in axes])
    if len(set(axes)) < len(axes):
        raise ModelError(f"axes {axes} name one axis twice")
    shape = list(x.shape)
    for axis, size in zip(axes, sizes, strict=True):
        shape[axis] = size
    checked(shape)
    lengths = [x.shape[a] for a in axes]
    changes = zip(axes, lengths, sizes, scales, _regions(metadata, len(axes)), strict=True)
    samplings = [_sampling(metadata, *change) for change in changes]
    kept = {"mode": metadata["mode"], "extrapolation_value": metadata.get("extrapolation_value", 0.0)}
    return {**kept, "samplings": tuple(s for s in samplings if s is not None)}


def _extents(metadata: dict[str, Any], lengths: Sequence[int]) -> tuple[list[int], list[float]]:
    """Lengths of the resized axes, and the factors by which they grow."""
    sizes, scales = (_listed(metadata, keyword, len(lengths)) for keyword in ("sizes", "scales"))
    if (sizes is None) == (scales is None):
        raise ModelError("needs either scales or sizes")
    if scales is not None:
        return _scaled(scales, lengths)
    assert sizes is not None
    if any(n == 0 != size for n, size in zip(lengths, sizes, strict=True)):
        raise ModelError(f"axes of lengths {list(lengths)} cannot be resized to {sizes}")
    ratios = [size / n if n else 1.0 for n, size in zip(lengths, sizes, strict=True)]
    policy = metadata["keep_aspect_ratio_policy"]
    if policy == "stretch":
        return [int(size) for size in sizes], ratios
    ratio = (min if policy == "not_larger" else max)(ratios)
    return [int(ratio * n + 0.5) for n in lengths], [ratio] * len(lengths)


def _scaled(scales: Sequence[float], lengths: Sequence[int]) -> tuple[list[int], list[float]]:
    """Sizes rounded down from float32, as shape inference does; exact ratios where nothing is cut off."""
    if not all(0 < s < np.inf for s in scales):
        raise ModelError(f"scales are {list(scales)}; they need to be positive")
    products = [float(np.float32(s) * np.float32(n)) for s, n in zip(scales, lengths, strict=True)]
    sizes = [int(p) if p < 1 << 62 else 1 << 62 for p in products]
    exact = zip(scales, lengths, products, sizes, strict=True)
    return sizes, [size / n if n and p == size else s for s, n, p, size in exact]


def _listed(metadata: dict[str, Any], keyword: str, count: int) -> list[Any] | None:
    values = list(as_tuple(metadata.get(keyword) or ()))
    if values and len(values) != count:
        raise ModelError(f"{keyword} are {values}; they need {count} numbers")
    return values if values or not count else None


def _regions(metadata: dict[str, Any], count: int) -> list[tuple[float, float]]:
    if metadata["coordinate_transformation_mode"] != "tf_crop_and_resize":
        return [(0.0, 1.0)] * count
    roi = _listed(metadata, "roi", 2 * count)
    if roi is None:
        raise ModelError("tf_crop_and_resize needs roi")
    return list(zip(roi[:count], roi[count:], strict=True))


def _sampling(
    metadata: dict[str, Any], axis: int, length: int, size: int, scale: float, region: tuple[float, float]
) -> Sampling | None:
    """The sampling of an axis; None if it does not change."""
    transformation = metadata["coordinate_transformation_mode"]
    positions = _positions(transformation, length, size, scale, region)
    if size == length and np.array_equal(positions, np.arange(size)):
        return None
    inside = np.ones(size, bool)
    if transformation == "tf_crop_and_resize":
        inside = (positions >= 0) & (positions <= length - 1)
    if metadata["mode"] == "nearest":
        index = _NEAREST[metadata["nearest_mode"]](positions)[:, None]
        weights = np.ones(index.shape)
    else:
        index, weights = _weights(metadata, positions, length, scale)
    index = np.clip(index, 0, max(length - 1, 0)).astype(np.int64)
    how = {key: metadata[key] for key in _HOW if key in metadata}
    given = scale if metadata.get("scales") and scale != int(scale) else None
    return Sampling(axis, length, index, weights, inside, how, given)


def _positions(transformation: str, length: int, size: int, scale: float, region: tuple[float, float]) -> Array:
    """Positions in x of the entries of the resized axis; `width` is their number before rounding."""
    y, width, last = np.arange(size, dtype=np.float64), scale * length, length - 1
    single = round(width, 9) == 1
    if transformation == "align_corners":
        return 0 * y if single else y * last / (width - 1)
    if transformation == "asymmetric":
        return y / scale
    if transformation == "tf_crop_and_resize":
        start, end = region
        return start * last + (end - start) * last * (0 * y + 0.5 if single else y / (width - 1))
    if transformation == "pytorch_half_pixel" and size == 1:
        return 0 * y
    symmetric = transformation == "half_pixel_symmetric"
    return (length / 2 * (1 - size / width) if symmetric else 0.0) + (y + 0.5) / scale - 0.5


def _weights(metadata: dict[str, Any], positions: Array, length: int, scale: float) -> tuple[Array, Array]:
    """Neighbors of each position, those outside included, and their weights, which sum to 1.

    Antialiasing stretches the filter if the axis shrinks.
    """
    linear = metadata["mode"] == "linear"
    stretch = min(scale, 1.0) if metadata.get("antialias") else 1.0
    first = int(np.floor(-(1 if linear else 2) / stretch)) + 1
    offsets = np.arange(first, 2 - first)
    checked((len(positions), len(offsets)))
    left = np.ceil(positions) - 1  # a whole position has itself as right neighbor
    index = left[:, None] + offsets
    distance = np.abs(index - positions[:, None]) * stretch
    weights = np.clip(1 - distance, 0, 1) if linear else _cubic(distance, metadata.get("cubic_coeff_a", -0.75))
    if metadata.get("exclude_outside"):
        weights = np.where((index < 0) | (index >= length), 0, weights)
    total = weights.sum(axis=1, keepdims=True)
    return index, weights / np.where(total == 0, 1, total)


def _cubic(distance: Array, a: float) -> Array:
    near = ((a + 2) * distance - (a + 3)) * distance**2 + 1
    far = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
    return np.where(distance <= 1, near, np.where(distance < 2, far, 0))


def _last(x: Var, axis: int) -> Var:
    """x with an axis and its last one exchanged."""
    order = list(range(x.ndim))
    order[axis], order[-1] = order[-1], order[axis]
    return sym.transpose(x, order)


def _rounded(y: Array, dtype: np.dtype[Any]) -> Array:
    if dtype.kind not in "iu":
        return y.astype(dtype)
    info = np.iinfo(dtype)
    return np.clip(np.rint(y), info.min, info.max).astype(dtype)


RESIZE: list[Op] = [
    Op("Resize", resize, resize_vjp, on(0), static={"roi": 1, "scales": 2, "sizes": 3}, bind=bind_resize,
       sparsity=resize_sparsity, outline=resize_outline, valid={2: Interval(1.0, 2.0)}, space="resized", elsewhere="rough"),
]  # fmt: skip
