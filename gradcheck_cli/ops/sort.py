"""Operators that sort and choose: TopK, Hardmax, Unique, NonMaxSuppression.

Among equal values the one with the lower index comes first, as in ONNX.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from gradcheck_cli.autodiff import symbolic as sym
from gradcheck_cli.autodiff.tape import Var
from gradcheck_cli.errors import ModelError
from gradcheck_cli.graph import Array
from gradcheck_cli.op import Op, counting, from_end, rounding, zero
from gradcheck_cli.op.batching import like_first, of_line, on
from gradcheck_cli.op.sparsity import along
from gradcheck_cli.ops.index import scatter_back
from gradcheck_cli.ops.shape import scalar

Cts = Sequence[Any]  # of the outputs, None for one that is not used
_REMEMBERED = 64 << 20  # bytes of marks of boxes that overlap, kept from one class to the next


def top_k_indices(x: Array, *, k: int, axis: int = -1, largest: int = 1, sorted: int = 1) -> Array:
    """Indices of the k largest or smallest real parts along an axis."""
    length = x.shape[axis]
    keys = np.flip(x.real, axis) if largest else x.real  # flipped twice, so that the first wins a tie
    order = np.argsort(keys, axis=axis, kind="stable")
    order = length - 1 - np.flip(order, axis) if largest else order
    return np.take(order, np.arange(k), axis=axis)


def top_k(x: Array, *, k: int, axis: int = -1, largest: int = 1, sorted: int = 1) -> tuple[Array, Array]:
    """The k largest or smallest entries along an axis, always in order, and their indices."""
    indices = top_k_indices(x, k=k, axis=axis, largest=largest)
    return np.take_along_axis(x, indices, axis=axis), indices


def bind_top_k(metadata: dict[str, Any], x: Array) -> dict[str, Any]:
    """Metadata with k as one number; ModelError if the axis is shorter."""
    k, axis = int(scalar(metadata["k"])), from_end(metadata.get("axis", -1), x.ndim)
    if not x.ndim or not 0 <= k <= x.shape[axis]:
        raise ModelError(f"k is {k} for axis {axis} of {list(x.shape)}")
    return {"k": k, "axis": axis, "largest": metadata.get("largest", 1)}


def top_k_vjp(cts: Cts, ys: Cts, x: Var, *, k: int, axis: int, largest: int) -> tuple[Var]:
    """ct at the entries that were taken."""
    ct, indices = cts[0], ys[1] if len(ys) > 1 else None
    if indices is None:
        operands = (x, np.asarray([k], np.int64))
        indices = x.tape.emit("TopK", operands, {"axis": axis, "largest": largest}, n_outputs=2)[1]
    zeros = sym.full(ct.tape, x.shape, 0, ct.dtype)
    return (ct.tape.apply("ScatterElements", zeros, indices, ct, axis=axis),)


def hardmax(x: Array, *, axis: int = -1) -> Array:
    """1 at the first largest entry along an axis, 0 elsewhere."""
    places = np.arange(x.shape[axis]).reshape(-1, *(1,) * (-axis - 1))
    return np.asarray(places == first_largest(x, axis=axis)).astype(x.dtype)


def first_largest(x: Array, *, axis: int = -1) -> Array:
    """The index of the first largest entry along an axis; 0 along one without entries."""
    if not x.shape[axis]:
        return np.zeros_like(x, np.int64, shape=[1 if i == axis % x.ndim else n for i, n in enumerate(x.shape)])
    return np.asarray(np.argmax(x.real, axis=axis, keepdims=True))


def unique(x: Array, *, axis: int | None = None, sorted: int = 1) -> tuple[Array, ...]:
    """Distinct entries (or slices), the first index of each, the number of that which each entry equals, and counts."""
    keys = _ranks(x) if x.dtype == object else x.real
    _, first, inverse, counts = np.unique(keys, return_index=True, return_inverse=True, return_counts=True, axis=axis)
    inverse = inverse.ravel()
    if not sorted:
        order = np.argsort(first, kind="stable")
        first, counts, inverse = first[order], counts[order], np.argsort(order, kind="stable")[inverse]
    return np.take(x, first, axis=axis), first, inverse, counts


def _ranks(x: Array) -> Array:
    """Numbers in the order of strings, since NumPy cannot compare slices of strings."""
    return np.unique(x, return_inverse=True)[1].reshape(x.shape)


def unique_vjp(cts: Cts, ys: Cts, x: Var, *, axis: int | None = None, sorted: int = 1) -> tuple[Var]:
    """ct to the first of those that are equal."""
    ct, first = cts[0], ys[1] if len(ys) > 1 else None
    if first is None:
        attrs = {"sorted": sorted} if axis is None else {"axis": axis, "sorted": sorted}
        first = x.tape.emit("Unique", (x,), attrs, n_outputs=2)[1]
    if axis is not None:
        return (scatter_back(ct, first, x.shape, axis + x.ndim),)
    return (sym.reshape(scatter_back(ct, first, (x.size,), 0), x.shape),)


def non_max_suppression(
    boxes: Array,
    scores: Array,
    *,
    max_output_boxes_per_class: int = 0,
    iou_threshold: float = 0.0,
    score_threshold: float | None = None,
    center_point_box: int = 0,
) -> Array:
    """Rows (batch, class, box) of the boxes that are kept, best first: none overlaps a better one too much."""
    low, high = boxes[..., :2], boxes[..., 2:]
    ends = (low - high / 2, low + high / 2) if center_point_box else (np.minimum(low, high), np.maximum(low, high))
    corners = np.stack(ends, axis=1).swapaxes(-1, -2)  # (N, 2, 2, boxes): the lower corners, the upper ones
    rows = [
        (n, c, box)
        for n in range(scores.shape[0])
        for close in [_neighbors(corners[n], iou_threshold)]
        for c in range(scores.shape[1])
        for box in _kept(scores[n, c], close, max_output_boxes_per_class, score_threshold)
    ]
    return np.asarray(rows, np.int64).reshape(-1, 3)


def _kept(scores: Array, close: Callable[[int], Array], most: int, score_threshold: float | None) -> Iterator[int]:
    """The first `most` boxes, the best first, that are close to none before them."""
    order = np.argsort(-scores, kind="stable")
    free = np.ones(len(scores), bool)
    for box in (order if score_threshold is None else order[scores[order] > score_threshold]).tolist():
        if most <= 0:
            return
        if free[box]:
            yield box
            most, free = most - 1, free & ~close(box)


def _neighbors(corners: Array, iou_threshold: float) -> Callable[[int], Array]:
    """A function of a box that marks the boxes that overlap it too much, which are the same for all classes."""
    low, high = corners
    areas = np.prod(high - low, axis=0)

    def close(box: int) -> Array:
        sides = np.minimum(high, high[:, box, None]) - np.maximum(low, low[:, box, None])
        common = np.prod(np.maximum(sides, 0), axis=0)
        union = areas + areas[box] - common
        shares = np.divide(common, union, out=np.zeros_like(common), where=common > 0)  # 0 if one is empty
        return np.asarray(shares > iou_threshold)

    return lru_cache(_REMEMBERED // max(1, len(areas)))(close)


def bind_non_max_suppression(metadata: dict[str, Any], boxes: Array, scores: Array) -> dict[str, Any]:
    """Metadata with thresholds as single numbers; ModelError for shapes that do not fit."""
    if boxes.ndim != 3 or scores.ndim != 3 or boxes.shape[2] != 4 or boxes.shape[1] != scores.shape[2]:
        raise ModelError(f"boxes {list(boxes.shape)} and scores {list(scores.shape)} do not fit")
    if boxes.shape[0] != scores.shape[0]:
        raise ModelError(f"{boxes.shape[0]} batches of boxes, {scores.shape[0]} of scores")
    return {key: scalar(value) for key, value in metadata.items()}


SORT: list[Op] = [
    Op("TopK", top_k, top_k_vjp, on(0), static={"k": 1}, bind=bind_top_k, branch=top_k_indices, many=True, ordered=True,
       sparsity=along("axis"), cuts=counting(1), integers={1: (1, 1)}, integral=(1,), moves="selected",
       outline=of_line(), cost=8.0),
    Op("Hardmax", hardmax, zero, on(0), branch=first_largest, ordered=True, cuts=rounding, outline=like_first),
    Op("Unique", unique, unique_vjp, branch=lambda x, **metadata: unique(x, **metadata)[2], many=True,
       cuts=counting(1, 2, 3), sized_by=(0,)),
    Op("NonMaxSuppression", non_max_suppression, zero,
       static={"max_output_boxes_per_class": 2, "iou_threshold": 3, "score_threshold": 4},
       bind=bind_non_max_suppression, sized_by=(0, 1)),
]  # fmt: skip
