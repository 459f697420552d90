"""The kernels in NumPy: the reference for the native ones, and the fallback where those are missing.

A convolution is a sum over the taps of its kernel of small matrix products, so no window is ever copied
more than once at a time and every dtype that NumPy can multiply works.  Windows are boxes, so that a sum or a
maximum over them is one along each axis in turn: shifted views of the axis, one for each tap, combined.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .geometry import Windows, conv_shape, conv_transpose_shape, padded, trailing

Array = NDArray[Any]


def matmul(a: Array, b: Array) -> Array:
    """a @ b as NumPy has it: `(..., m, k) @ (..., k, n)`, shape `(..., m, n)`."""
    return np.asarray(np.matmul(a, b))


def conv(
    x: Array,
    w: Array,
    *,
    strides: Sequence[int],
    pads: Sequence[int],
    dilations: Sequence[int],
    group: int = 1,
) -> Array:
    """Cross-correlation of `(..., N, C, *space)` by `(..., M, C // group, *kernel)`: `(..., N, M, *out)`."""
    rank = len(strides)
    kernel = w.shape[w.ndim - rank :]
    out = conv_shape(x.shape[x.ndim - rank :], kernel, strides, pads, dilations)
    x = split_axis(padded(x, pads), -rank - 1, group)
    w = split_axis(w, -rank - 2, group)
    windows = math.prod(out)
    total = np.zeros(conv_lead(x, w, rank) + (w.shape[-rank - 2], windows), np.result_type(x, w))
    for tap in np.ndindex(kernel) if windows else ():
        seen = x[met_by(tap, out, strides, dilations)]
        taps = w[(..., *tap)]
        total += np.matmul(taps[..., None, :, :, :], seen.reshape(*seen.shape[: seen.ndim - rank], windows))
    return total.reshape(*total.shape[:-3], group * total.shape[-2], *out)


def conv_transpose(
    x: Array,
    w: Array,
    *,
    strides: Sequence[int],
    pads: Sequence[int],
    dilations: Sequence[int],
    group: int = 1,
    output_padding: Sequence[int],
) -> Array:
    """The transpose of `conv`: `(..., N, C, *space)` by `(..., C, M // group, *kernel)`: `(..., N, M, *out)`.

    Each tap of the kernel scatters one product over the uncropped output.
    """
    rank = len(strides)
    space, kernel = x.shape[x.ndim - rank :], w.shape[w.ndim - rank :]
    full = conv_transpose_shape(space, kernel, strides, (0,) * (2 * rank), dilations, output_padding)
    x = split_axis(x, -rank - 1, group)
    x = x.reshape(*x.shape[: x.ndim - rank], math.prod(space))
    w = split_axis(w, -rank - 2, group)
    batch = np.broadcast_shapes(x.shape[:-4], w.shape[: w.ndim - rank - 3])
    outer = (*batch, x.shape[-4], group, w.shape[-rank - 1])
    total = np.zeros((*outer, *full), np.result_type(x, w))
    for tap in np.ndindex(kernel) if total.size and x.size else ():
        taps = np.swapaxes(w[(..., *tap)], -1, -2)
        update = np.matmul(taps[..., None, :, :, :], x).reshape(*outer, *space)
        total[met_by(tap, space, strides, dilations)] += update
    merged = total.reshape(*batch, x.shape[-4], group * w.shape[-rank - 1], *full)
    return padded(merged, [-pad for pad in pads])


def met_by(tap: Sequence[int], windows: Sequence[int], strides: Sequence[int], dilations: Sequence[int]) -> Any:
    """The index of the entries that one tap of the kernel meets, over all windows."""
    starts = [at * dilation for at, dilation in zip(tap, dilations, strict=True)]
    ends = [start + (n - 1) * step + 1 for start, n, step in zip(starts, windows, strides, strict=True)]
    return trailing(map(slice, starts, ends, strides))


def split_axis(x: Array, axis: int, parts: int) -> Array:
    """x with the axis cut into (parts, size // parts)."""
    axis += x.ndim
    return x.reshape(*x.shape[:axis], parts, x.shape[axis] // parts, *x.shape[axis + 1 :])


def conv_lead(x: Array, w: Array, rank: int) -> tuple[int, ...]:
    """`(*batch, N, group)` of x `(*batch, N, group, C, *space)` and w `(*batch, group, M, C, *kernel)`."""
    batch = np.broadcast_shapes(x.shape[: x.ndim - rank - 3], w.shape[: w.ndim - rank - 3])
    return (*batch, *x.shape[x.ndim - rank - 3 : x.ndim - rank - 1])


def combined(x: Array, axes: Sequence[Windows], function: np.ufunc, fill: Any) -> Array:
    """Sums or extrema over windows, axis by axis."""
    for axis in axes:
        views = axis.views(x, fill)
        x = next(views).copy()
        for view in views:
            function(x, view, out=x)
    return x


def winners(x: Array, axes: Sequence[Windows]) -> tuple[Array, Array]:
    """The maximum of each window and its flat position in the spatial axes; the first at a tie."""
    space = x.shape[-len(axes) :]
    place = np.arange(math.prod(space)).reshape(space)
    for axis in reversed(axes):  # the innermost first: of equals, the first row wins
        first = axis.first()
        best = np.take(x, first, axis=axis.axis)
        chosen = np.broadcast_to(np.take(place, first, axis=axis.axis), best.shape).copy()
        for view, position in zip(axis.views(x, lowest(x.dtype)), axis.views(place, 0), strict=True):
            better = view > best
            np.copyto(best, view, where=better)
            np.copyto(chosen, position, where=better)
        x, place = best, chosen
    return x, place


def taken(x: Array, place: Array, rank: int) -> Array:
    """Entries of x at flat positions in its last `rank` axes; the first axis of positions may be 1."""
    lead, out = x.shape[: x.ndim - rank], place.shape[place.ndim - rank :]
    lines = x.reshape(*lead, math.prod(x.shape[x.ndim - rank :]))
    places = np.broadcast_to(place, (*lead, *out)).reshape(*lead, math.prod(out))
    return np.take_along_axis(lines, places, axis=-1).reshape(*lead, *out)


def lowest(dtype: np.dtype[Any]) -> Any:
    """The smallest value of a dtype, which is never larger than an entry."""
    if dtype.kind in "iu":
        return np.iinfo(dtype).min
    return False if dtype.kind == "b" else -np.inf
