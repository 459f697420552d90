"""Matrix product, convolution and its transpose: dtypes and shapes are settled here, the kernels compute."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import pools, reference
from .geometry import Windows, conv_shape, conv_transpose_shape, margins, padded, phases, trailing
from .selection import kernels, native

Array = NDArray[Any]
DType = np.dtype[Any]

# dtypes of the native kernels, by (reals are float64, complex).
_DTYPES: dict[tuple[bool, bool], DType] = {
    (False, False): np.dtype(np.float32),
    (True, False): np.dtype(np.float64),
    (False, True): np.dtype(np.complex64),
    (True, True): np.dtype(np.complex128),
}
_KINDS = {dtype: kind for kind, dtype in _DTYPES.items()}
_HALF = {"float16", "bfloat16"}
_OFTEN = 4  # times as many entries: the smaller operand is read by so many products of a stack
_WORTH_WIDENING = 16384  # float32 operands of this size or more are widened by the kernels


def matmul(a: Array, b: Array) -> Array:
    """The product of matrices in the last two axes: `(..., m, k) @ (..., k, n)`, shape `(..., m, n)`.

    Leading axes broadcast, and a rank-1 operand is a row on the left and a column on the right, as in
    `numpy.matmul`.  Any strides do: a transpose or a broadcast view costs nothing.  The dtype is
    `numpy.result_type(a, b)`; float16 and bfloat16 are summed in float32.
    """
    settled = _settle(a, b)
    if settled is None:
        return _otherwise(matmul, reference.matmul, a, b)
    x, y, dtype, twofold = settled
    if x.ndim < 2 or y.ndim < 2:
        return _vectors(x, y)
    left, right = x.shape, y.shape
    if left[-1] != right[-2]:
        raise ValueError(f"matmul: {left} by {right}: the inner sizes are {left[-1]} and {right[-2]}, not equal.")
    out = np.empty((*_lead(left[:-2], right[:-2]), left[-2], right[-1]), dtype)
    if y.ndim > 2 and x.size > _OFTEN * y.size and y.strides[-1] != y.itemsize:
        y = y.copy()  # turned once, and not anew for each product
    if not left[-1]:
        out.fill(0)
    elif out.size and not kernels.matmul(x, y, out, twofold):
        kernels.matmul(x.copy(), y.copy(), out, twofold)
    return out


def along_lines(x: Array, matrices: Array, axis: int) -> Array:
    """A stack `(P, *shape)` whose lines along an axis are each multiplied by a matrix, `(lines, n, m)`; n becomes m."""
    moved = np.moveaxis(x, axis, -1)
    made = matmul(moved.reshape(len(moved), *matrices.shape[:2]).swapaxes(0, 1), matrices).swapaxes(0, 1)
    return np.moveaxis(made.reshape(*moved.shape[:-1], matrices.shape[2]), -1, axis)


def conv(
    x: Array,
    w: Array,
    *,
    strides: Sequence[int],
    pads: Sequence[int],
    dilations: Sequence[int],
    group: int = 1,
) -> Array:
    """Cross-correlation: x `(..., N, C, *space)`, w `(..., M, C // group, *kernel)` to `(..., N, M, *out)`.

    Leading axes of x and w broadcast; either may lack them.  `strides` and `dilations` hold one number for
    each spatial axis, `pads` two: all beginnings, then all ends.  A negative pad crops.  `out` is
    `(space + pads - (kernel - 1) * dilation - 1) // stride + 1`, and the dtype `numpy.result_type(x, w)`.
    """
    geometry = {"strides": strides, "pads": pads, "dilations": dilations}
    settled = _settle(x, w)
    if settled is None:
        return _otherwise(conv, reference.conv, x, w, **geometry, group=group)
    image, taps, dtype, _ = settled
    rank = len(strides)
    sizes, kernel = x.shape[x.ndim - rank :], w.shape[w.ndim - rank :]
    space = conv_shape(sizes, kernel, strides, pads, dilations)
    if _even(taps, rank):
        windows = _windows(sizes, space, kernel, strides, pads, dilations)
        return pools.sums(image.astype(dtype, copy=False), windows) * taps.flat[0]
    out = np.empty((*_conv_lead(x, w, rank), x.shape[-rank - 2], w.shape[-rank - 2], *space), dtype)
    _conv_into(out, padded(image, pads), taps, strides, dilations, group)
    return out


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

    `out` is `(space - 1) * stride + (kernel - 1) * dilation + 1 + output_padding - pads`; the rest is as in
    `conv`.  Outputs a stride apart meet the same taps: each such phase is a plain convolution.
    """
    geometry = {"strides": strides, "pads": pads, "dilations": dilations, "output_padding": output_padding}
    settled = _settle(x, w)
    if settled is None:
        return _otherwise(conv_transpose, reference.conv_transpose, x, w, **geometry, group=group)
    image, taps, dtype, _ = settled
    rank = len(strides)
    space, kernel = x.shape[x.ndim - rank :], w.shape[w.ndim - rank :]
    out = conv_transpose_shape(space, kernel, **geometry)
    if _even(taps, rank):
        windows = _windows(out, space, kernel, strides, pads, dilations)
        y = pools.spread(image * taps.flat[0], windows)
        if y is not None:
            return y
    y = np.zeros((*_conv_lead(x, w, rank), x.shape[-rank - 2], group * w.shape[-rank - 1], *out), dtype)
    turned = _swap_channels(taps, rank, group)
    axes = [phases(*axis) for axis in zip(space, out, kernel, strides, pads[:rank], dilations, strict=True)]
    around = margins(axes)
    wide = padded(image, around)
    for grid in itertools.product(*axes):  # they do not overlap
        met = (slice(m - p.pads[0], m + n + p.pads[1]) for m, n, p in zip(around, space, grid, strict=False))
        part = y[trailing(phase.outputs for phase in grid)]
        dense = part if strides[-1] == 1 else np.empty(part.shape, dtype)
        _conv_into(
            dense,
            wide[trailing(met)],
            turned[trailing(phase.taps for phase in grid)],
            (1,) * rank,
            [phase.dilation for phase in grid],
            group,
        )
        if dense is not part:
            part[...] = dense
    return y


def _even(w: Array, rank: int) -> bool:
    """True if a filter has one channel in and out and all of its taps are equal: it then sums, as a pool does."""
    return w.ndim == rank + 2 and w.shape[:2] == (1, 1) and w.size > 0 and bool((w == w.flat[0]).all())


def _windows(
    space: Sequence[int],
    counts: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    pads: Sequence[int],
    dilations: Sequence[int],
) -> list[Windows]:
    """The windows of a pool: `counts` of them over `space`."""
    rank = len(space)
    each = zip(space, kernel, strides, pads[:rank], pads[rank:], dilations, counts, strict=True)
    return [Windows(i - rank, *numbers) for i, numbers in enumerate(each)]


def _conv_into(out: Array, x: Array, w: Array, strides: Sequence[int], dilations: Sequence[int], group: int) -> None:
    """Writes the convolution of x, padded already, with w to `out`."""
    if not out.size:
        return
    if not w.size:
        out.fill(0)
        return
    twofold, _ = _KINDS[out.dtype]
    if not kernels.conv(x, w, out, twofold, strides, dilations, group):
        kernels.conv(x.copy(), w.copy(), out, twofold, strides, dilations, group)


def _swap_channels(w: Array, rank: int, group: int) -> Array:
    """w `(..., C, M // group, *kernel)` as `(..., M, C // group, *kernel)`."""
    split = np.swapaxes(reference.split_axis(w, -rank - 2, group), -rank - 1, -rank - 2)
    lead = split.shape[: split.ndim - rank - 3]
    return split.reshape(*lead, -1, *split.shape[split.ndim - rank - 1 :]) if w.size else w[..., :0, :0]


def _settle(a: Array, b: Array) -> tuple[Array, Array, DType, bool] | None:
    """The operands in one precision, the dtype of their product and whether its reals are float64.

    The kernels widen large float32 operands beside float64 ones themselves, a part at a time.  None if the native
    kernels do not multiply these dtypes.
    """
    left, right = _KINDS.get(a.dtype), _KINDS.get(b.dtype)
    if left is None or right is None or not native():
        return None
    if left is right:
        return a, b, _DTYPES[left], left[0]
    twofold = left[0] or right[0]
    if left[0] != right[0]:
        a = a if _widened_inside(a) else a.astype(_DTYPES[twofold, left[1]], copy=False)
        b = b if _widened_inside(b) else b.astype(_DTYPES[twofold, right[1]], copy=False)
    return a, b, _DTYPES[twofold, left[1] or right[1]], twofold


def _widened_inside(x: Array) -> bool:
    return x.size >= _WORTH_WIDENING and x.dtype == np.float32


def _vectors(a: Array, b: Array) -> Array:
    """matmul with rank-1 operands."""
    if a.ndim == 0 or b.ndim == 0:
        raise ValueError(f"matmul: {a.shape} by {b.shape}: an operand of rank 0; at least 1 is needed.")
    y = matmul(a[None] if a.ndim == 1 else a, b[:, None] if b.ndim == 1 else b)
    if b.ndim == 1:
        y = y[..., 0]
    if a.ndim == 1:
        y = y[..., 0] if b.ndim == 1 else y[..., 0, :]
    return np.asarray(y)


def _lead(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    if a == b or not b:
        return a
    return np.broadcast_shapes(a, b) if a else b


def _conv_lead(x: Array, w: Array, rank: int) -> tuple[int, ...]:
    return _lead(x.shape[: x.ndim - rank - 2], w.shape[: w.ndim - rank - 2])


def _otherwise(
    function: Callable[..., Array], fallback: Callable[..., Array], a: Array, b: Array, **more: Any
) -> Array:
    """The product for other dtypes: half precision in float32, all else by NumPy."""
    dtype = np.result_type(a, b)
    if dtype.name in _HALF:
        return function(a.astype(np.float32), b.astype(np.float32), **more).astype(dtype)
    return fallback(a, b, **more)
