"""Pools: the sum or maximum of each window, their transposes, entries at given positions, and boxes.

Each runs in C++ for the dtypes it names, and in NumPy (`reference`) for all others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import reference
from .geometry import Windows
from .selection import kernels, native

Array = NDArray[Any]

_SUMMED = frozenset(map(np.dtype, (np.float32, np.float64, np.complex64, np.complex128)))
_COMPARED = frozenset(map(np.dtype, (np.float32, np.float64, np.int8, np.uint8)))
_COPIED = "fcbiu"  # kinds of dtypes whose memory NumPy hands out
_MOST_AXES = 8


def sums(x: Array, axes: Sequence[Windows]) -> Array:
    """The sum over each window of x `(..., *space)`: `(..., *windows)`."""
    if not _runs(x, axes, _SUMMED):
        return reference.combined(x, axes, np.add, 0)
    return _pooled(kernels.Pool.SUMS, x, [axis.count for axis in axes], axes)


def maxima(x: Array, axes: Sequence[Windows]) -> Array:
    """The maximum of each window; NaN if any of its entries is NaN."""
    if not _runs(x, axes, _COMPARED):
        return reference.combined(x, axes, np.maximum, reference.lowest(x.dtype))
    return _pooled(kernels.Pool.MAXIMA, x, [axis.count for axis in axes], axes)


def winners(x: Array, axes: Sequence[Windows]) -> tuple[Array, Array]:
    """The maximum of each window, the first at a tie, and its flat position in space."""
    if not _runs(x, axes, _COMPARED):
        return reference.winners(x, axes)
    counts = [axis.count for axis in axes]
    place = np.empty((*x.shape[: x.ndim - len(axes)], *counts), np.int64)
    return _pooled(kernels.Pool.WINNERS, x, counts, axes, place), place


def spread(x: Array, axes: Sequence[Windows]) -> Array | None:
    """The transpose of `sums`, from `(..., *windows)` to `(..., *space)`; None if it does not run in C++."""
    if not _runs(x, axes, _SUMMED):
        return None
    return _pooled(kernels.Pool.SPREAD, x, [axis.length for axis in axes], axes)


def taken(x: Array, place: Array, rank: int) -> Array:
    """Entries of x `(..., *space)` at flat positions `(..., *out)` in its last `rank` axes.

    The first leading axis of positions may be 1: then they are the same along that axis of x.
    """
    shape = (*x.shape[: x.ndim - rank], *place.shape[place.ndim - rank :])
    known = math.prod(place.shape[: place.ndim - rank])
    space, out = math.prod(x.shape[x.ndim - rank :]), math.prod(shape[x.ndim - rank :])
    lines, places = x.reshape(-1, space) if x.size else x, place.reshape(known, out)
    y = np.empty(shape, x.dtype)
    if native() and x.size and y.size and x.dtype.kind in "fc":
        size = x.dtype.itemsize
        if kernels.take_at(np.ascontiguousarray(lines), np.ascontiguousarray(places), y.reshape(-1, out), size):
            return y
    return reference.taken(x, place, rank)


def added(data: Array, place: Array, more: Array) -> Array | None:
    """Data `(L, N, row)` with rows of `more` `(L, M, row)` added at positions `(M,)`; None if it does not run in C++."""
    dtype = np.result_type(data, more)
    if not native() or dtype not in _SUMMED or not more.size:
        return None
    y = np.array(data, dtype, order="C")
    terms, places = np.ascontiguousarray(more, dtype), np.ascontiguousarray(place, np.int64)
    return y if kernels.add_at(terms, places, y, dtype.char) else None


def cut_out(x: Array, starts: Sequence[Array | None], lengths: Sequence[int]) -> Array | None:
    """Boxes of x, `(count, *lengths)`, which start along each axis at `starts`, `(count,)`, or contain all of it.

    None if it does not run in C++, or a box lies partly outside.
    """
    count = next(len(start) for start in starts if start is not None)
    y = np.empty((count, *lengths), x.dtype)
    return y if _copied(x, starts, lengths, y, back=False) else None


def put_back(x: Array, starts: Sequence[Array | None], lengths: Sequence[int], boxes: Array) -> bool:
    """Writes boxes, `(count, *lengths)`, none of which overlap, into x; False if nothing was written, as for `cut_out`."""
    return boxes.dtype == x.dtype and _copied(x, starts, lengths, boxes, back=True)


def _copied(x: Array, starts: Sequence[Array | None], lengths: Sequence[int], boxes: Array, *, back: bool) -> bool:
    if not native() or x.dtype.kind not in _COPIED:
        return False
    places = [start if start is None else np.ascontiguousarray(start, np.int64) for start in starts]
    return kernels.copy_boxes(x, places, lengths, np.ascontiguousarray(boxes), back)


def _runs(x: Array, axes: Sequence[Windows], dtypes: frozenset[np.dtype[Any]]) -> bool:
    return (
        native()
        and x.dtype in dtypes
        and x.size > 0
        and 0 < len(axes) <= _MOST_AXES
        and all(axis.count > 0 and axis.length > 0 for axis in axes)
    )


def _pooled(kind: Any, x: Array, sizes: Sequence[int], axes: Sequence[Windows], places: Array | None = None) -> Array:
    y = np.empty((*x.shape[: x.ndim - len(axes)], *sizes), x.dtype)
    geometry = [(axis.taps, axis.stride, axis.begin, axis.dilation) for axis in axes]
    kernels.pool(kind, np.ascontiguousarray(x), y, places, geometry, x.dtype.char)
    return y
