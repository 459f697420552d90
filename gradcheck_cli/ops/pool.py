"""Pools: extrema, means and norms over windows of the spatial axes, or over all of them; LRN, over channels.

The rule of a mean is a transposed convolution with ones, that of a maximum a scatter to the entries that won.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from gradcheck_cli import native
from gradcheck_cli.autodiff import symbolic as sym
from gradcheck_cli.autodiff.tape import Var
from gradcheck_cli.errors import LimitError, ModelError
from gradcheck_cli.graph import Array
from gradcheck_cli.op import Op, attributes_of, composite, counting, deciding
from gradcheck_cli.op.batching import on, trailing
from gradcheck_cli.op.sparsity import moved
from gradcheck_cli.ops.conv import (
    Ints,
    along,
    counts,
    misfit,
    padded,
    pool_boxes,
    pool_outline,
    pool_sparsity,
    reach,
    scattered,
    settled,
    totals,
)
from gradcheck_cli.ops.shape import checked

ALPHA = float(np.float32(1e-4))  # as ONNX stores it
MAX_TAPS = 1 << 20  # taps of a window along one axis, which are added one by one


def in_whole(place: Array, shape: Sequence[int], rank: int, storage_order: int) -> Array:
    """Flat positions in space, which may be stored column by column, as positions in `(N, C, *space)`."""
    n, c, *space = shape[len(shape) - rank - 2 :]
    if storage_order:
        place = np.ravel_multi_index(np.unravel_index(place, space), space, order="F")
    images = np.arange(n * c).reshape(n, c, *(1,) * rank)
    return np.asarray(place + images * math.prod(space))


@attributes_of(along)
def max_pool(x: Array, *, storage_order: int = 0, n_outputs: int = 1, **window: Any) -> tuple[Array, ...]:
    """The maximum of each window of x `(..., N, C, *space)`, and its flat position in `(N, C, *space)`."""
    axes = along(x, **window)
    if n_outputs == 1:
        return (native.maxima(x, axes),)
    best, place = native.winners(x, axes)
    return best, in_whole(place, x.shape, len(axes), storage_order)


def max_pool_near_real(
    x: Array, *, kernel_shape: Ints, storage_order: int = 0, n_outputs: int = 1, **window: Any
) -> tuple[Array, ...]:
    """The entry of each window whose real part is the maximum."""
    rank, real = len(kernel_shape), x.real
    if x.ndim > rank + 2 and (real == real[:1]).all():  # all probes have one real part, as for tangents: one winner
        real = real[:1]
    place = max_pool_branch(real, kernel_shape=kernel_shape, **window)
    y = native.taken(x, place, rank)
    if n_outputs == 1:
        return (y,)
    return y, in_whole(np.broadcast_to(place, y.shape), x.shape, rank, storage_order)


def max_pool_branch(x: Array, **window: Any) -> Array:
    """The entry that wins each window."""
    return native.winners(x.real, along(x, **window))[1]


def max_pool_vjp(
    cts: Sequence[Var | None], ans: Sequence[Var], x: Var, *, storage_order: int, n_outputs: int, **window: Any
) -> tuple[Var | None]:
    """The cotangent of each window added to the entry that won."""
    ct = cts[0]
    if ct is None:
        return (None,)
    known = n_outputs > 1 and storage_order == 0 and ans[1] is not None
    return (unpooled(ct, ans[1] if known else x.tape.emit("MaxPool", (x,), window, n_outputs=2)[1], x.shape),)


def unpooled(ct: Var, index: Var, shape: Ints) -> Var:
    """Cotangents of windows, added up at flat positions in a tensor of a shape."""
    zeros = sym.full(ct.tape, (math.prod(shape),), 0, ct.dtype)
    flat = [sym.reshape(v, (-1,)) for v in (index, ct)]
    return sym.reshape(ct.tape.apply("ScatterElements", zeros, *flat, axis=0, reduction="add"), shape)


@attributes_of(along)
def average_pool(x: Array, *, count_include_pad: int = 0, **window: Any) -> Array:
    """The mean of each window, over its entries in the input, or in the padded input."""
    axes = along(x, **window)
    mean, count = native.sums(x, axes), counts(axes, count_include_pad).astype(x.real.dtype)
    for part in (mean.real, mean.imag) if mean.dtype.kind == "c" else (mean,):
        part /= count  # a complex division would take longer
    return mean


def average_pool_vjp(ct: Var, y: Var, x: Var, *, count_include_pad: int, **window: Any) -> tuple[Var | None]:
    """An equal share of ct to every entry of the window."""
    share = ct / x.tape.constant(counts(along(x.like, **window), count_include_pad), x.dtype)
    return (shared_out(share, x, window),)


@attributes_of(along)
def lp_pool(x: Array, *, p: int = 2, **window: Any) -> Array:
    """The p-norm of each window."""
    magnitude = np.where(x.real < 0, -x, x) if p % 2 else x
    total = native.sums(magnitude**p, along(x, **window))
    root = total if p == 1 else np.sqrt(total) if p == 2 else total ** (1 / p)
    return root.astype(x.dtype, copy=False)


def lp_pool_branch(x: Array, *, p: int, **window: Any) -> Array:
    """The sign of each entry for an odd p; for an even p, True for windows whose norm is 0."""
    return np.asarray(np.sign(x.real) if p % 2 else lp_pool(x.real, p=p, **window) == 0)


def lp_pool_vjp(ct: Var, y: Var, x: Var, *, p: int, **window: Any) -> tuple[Var | None]:
    """ct sign(x) (|x| / y)^(p-1), and 0 where y is 0."""
    if p > 1:
        zero = sym.equal(y, 0)
        norm = sym.where(zero, 1, y)
        ct = sym.where(zero, 0, ct / (norm if p == 2 else norm ** (p - 1.0)))
    back = shared_out(ct, x, window)
    if back is None:
        return (None,)
    back = back * sym.sign(x) if p % 2 else back
    return (back if p == 1 else back * (x if p == 2 else x ** (p - 1.0)),)


def global_lp_pool(x: Var, *, p: int = 2) -> Var:
    """The p-norm over the spatial axes."""
    if p in (1, 2):
        return x.tape.apply(f"ReduceL{p}", x, sym.ints(x.tape, range(2, x.ndim)))
    size = math.prod(x.shape[2:])
    pooled = x.tape.apply("LpPool", sym.reshape(x, (*x.shape[:2], size)), kernel_shape=(size,), p=p)
    return sym.reshape(pooled, (*x.shape[:2], *(1 for _ in x.shape[2:])))


def lrn(x: Var, *, size: int, alpha: float = ALPHA, beta: float = 0.75, bias: float = 1.0) -> Var:
    """x over a power of the mean square of `size` channels around its own, channels outside counting as 0."""
    if size < 1:
        raise ValueError(f"size is {size}; it needs to be positive")
    n, c = x.shape[:2]
    below, above = (size - 1) // 2, size // 2
    squares = sym.reshape(x * x, (n, 1, c, math.prod(x.shape[2:])))
    window = {"kernel_shape": (size, 1), "pads": (below, 0, above, 0), "count_include_pad": 1}
    means = sym.reshape(x.tape.apply("AveragePool", squares, **window), x.shape)
    return x * (means * alpha + bias) ** -beta


@attributes_of(along, "auto_pad", "ceil_mode", "dilations")
def max_unpool(x: Array, index: Array, *, output_shape: Ints = (), shape: Ints = (), **window: Ints) -> Array:
    """x put at flat positions into zeros of `shape`, with zeros behind; the last one of several at one position."""
    lead, size = x.shape[: x.ndim - len(shape)], math.prod(shape)
    if index.size and not (-size <= index.min() and index.max() < size):
        raise IndexError(f"I has an index outside of {list(shape)}")
    y = np.zeros((*lead, size), x.dtype)
    y[..., index.ravel()] = x.reshape(*lead, index.size)
    whole = np.zeros((*lead, *output_shape), x.dtype)
    corner: tuple[Any, ...] = (..., *(slice(0, n) for n in shape))
    whole[corner] = y.reshape(*lead, *shape)
    return whole


def max_unpool_vjp(
    ct: Var, y: Var, x: Var, index: Var, *, output_shape: Ints, shape: Ints, **window: Any
) -> tuple[Var, None]:
    """ct at the position of each entry that was not overwritten."""
    tape, rank, size = x.tape, x.ndim, math.prod(shape)
    place, number = sym.reshape(index, (x.size,)), sym.arange(tape, x.size)
    writers = tape.apply("ScatterElements", sym.full(tape, (size,), 0, np.int64), place, number, axis=0)
    inside = ct if ct.shape == tuple(shape) and not tape.general else sym.slice(ct, (0,) * rank, shape, range(rank))
    found = tape.apply("Gather", sym.reshape(inside, (size,)), place, axis=0)
    kept = sym.equal(tape.apply("Gather", writers, place, axis=0), number)
    return sym.reshape(sym.where(kept, found, 0), x.shape), None


def bind_pool(metadata: dict[str, Any], x: Array) -> dict[str, Any]:
    """Metadata, all explicit, with pads in place of `auto_pad`; ModelError if no window fits."""
    kernel = tuple(metadata["kernel_shape"])
    if x.ndim < 3 or len(kernel) != x.ndim - 2 or min(kernel) < 1:
        raise ModelError(f"kernel_shape {list(kernel)} does not fit an input of shape {list(x.shape)}")
    if max(kernel) > MAX_TAPS:
        raise LimitError(f"kernel_shape {list(kernel)} is larger than {MAX_TAPS:,}", code="GC602")
    window = settled(metadata, x.shape[2:], kernel)
    kept = {k: v for k, v in metadata.items() if k != "auto_pad"}
    bound = {"ceil_mode": 0, **kept, "kernel_shape": kernel, **window}
    if min(axis.count for axis in along(x, **bound)) < 1:
        raise misfit(x.shape[2:], kernel, window)
    lengths = padded(x.shape[2:], window)
    checked((*x.shape[:2], *(n + r for n, r in zip(lengths, reach(kernel, window), strict=True))))
    return bound


def bind_average_pool(metadata: dict[str, Any], x: Array) -> dict[str, Any]:
    """Metadata as for every pool."""
    return {"count_include_pad": 0, **bind_pool(metadata, x)}


def bind_lp_pool(metadata: dict[str, Any], x: Array) -> dict[str, Any]:
    """Metadata as for every pool; ModelError unless p is positive."""
    if metadata.get("p", 2) < 1:
        raise ModelError(f"p is {metadata['p']}; it needs to be positive")
    return {"p": 2, **bind_pool(metadata, x)}


def bind_max_pool(metadata: dict[str, Any], x: Array) -> dict[str, Any]:
    """Metadata as for every pool; ModelError if a window lies in the padding and has no maximum."""
    bound = {"storage_order": 0, **bind_pool(metadata, x)}
    if not all(axis.taken(padded=False).all() for axis in along(x, **bound)):
        raise ModelError(f"pads {list(bound['pads'])} contain a whole window of {list(bound['kernel_shape'])}")
    return bound


def bind_max_unpool(metadata: dict[str, Any], x: Array, index: Array) -> dict[str, Any]:
    """Metadata with `shape`, in which positions count: that of the pool's input, at most the requested output shape."""
    kernel, rank = tuple(metadata["kernel_shape"]), x.ndim - 2
    strides = tuple(metadata.get("strides") or (1,) * rank)
    pads = tuple(metadata.get("pads") or (0,) * (2 * rank))
    if not 0 < rank == len(kernel) == len(strides) == len(pads) // 2 or index.shape != x.shape:
        raise ModelError(f"kernel_shape, strides or pads do not fit X {list(x.shape)} and I {list(index.shape)}")
    lengths = ((n - 1) * s + k - p for n, s, k, p in zip(x.shape[2:], strides, kernel, totals(pads), strict=True))
    shape = checked((*x.shape[:2], *lengths))
    output_shape = checked(metadata.get("output_shape") or shape)
    if len(output_shape) != x.ndim or output_shape[:2] != x.shape[:2]:
        raise ModelError(f"output_shape {list(output_shape)} does not fit X {list(x.shape)}")
    if any(n < m for n, m in zip(output_shape, shape, strict=True)):
        shape = output_shape
    return {"kernel_shape": kernel, "strides": strides, "pads": pads, "output_shape": output_shape, "shape": shape}


def shared_out(share: Var, x: Var, window: dict[str, Any]) -> Var | None:
    """For every entry of x, the sum of the shares of the windows it is in."""
    n, c = x.shape[:2]
    ones = sym.full(share.tape, (1, 1, *window["kernel_shape"]), 1, share.dtype)
    images = sym.reshape(share, (n * c, 1, *share.shape[2:]))
    back = scattered(images, ones, x, 1, {k: window[k] for k in ("strides", "pads", "dilations")})
    return None if back is None else sym.reshape(back, x.shape)


POOL: list[Op] = [
    Op("MaxPool", max_pool, max_pool_vjp, trailing, step=max_pool_near_real, branch=max_pool_branch, bind=bind_max_pool,
       many=True, ordered=True, sparsity=pool_sparsity, boxes=pool_boxes,
       outline=pool_outline, cuts=counting(1), space="windows", channels=1,
       cost="maxima"),
    Op("AveragePool", average_pool, average_pool_vjp, trailing, bind=bind_average_pool, linear="each",
       sparsity=pool_sparsity, boxes=pool_boxes,
       outline=pool_outline, space="windows", channels=1),
    Op("LpPool", lp_pool, lp_pool_vjp, trailing, branch=lp_pool_branch, bind=bind_lp_pool, ordered=True,
       sparsity=pool_sparsity, boxes=pool_boxes,
       outline=pool_outline, space="windows", channels=1),
    composite("GlobalAveragePool", lambda x: sym.mean(x, range(2, x.ndim)), space="windows", channels=1,
              elsewhere="one by one", does="The mean over the spatial axes."),
    composite("GlobalMaxPool", lambda x: sym.max(x, range(2, x.ndim)), space="windows", channels=1,
              does="The maximum over the spatial axes."),
    composite("GlobalLpPool", global_lp_pool, space="windows", elsewhere="one by one"),
    composite("LRN", lrn, space="windows", channels=1, elsewhere="rough"),
    Op("MaxUnpool", max_unpool, max_unpool_vjp, on(0), static={"output_shape": 2}, bind=bind_max_unpool, linear=((0,),),
       sparsity=moved, cuts=deciding(1), space="windows"),
]  # fmt: skip
