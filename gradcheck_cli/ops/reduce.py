"""Reductions over axes: sums, means, products, norms, extrema, and the index of an extremum; running sums.

Axes are negative and explicit; a reduction over no axes still applies its function to single entries.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

from gradcheck_cli.autodiff import symbolic as sym
from gradcheck_cli.autodiff.tape import Var
from gradcheck_cli.errors import ModelError, counted
from gradcheck_cli.graph import Array
from gradcheck_cli.op import POSITIVE, Op, box_rules, composite, from_end, rounding, with_axis, zero
from gradcheck_cli.op.batching import Kernel, Operands, blank, like_first, on, reduced
from gradcheck_cli.op.sparsity import along
from gradcheck_cli.ops.shape import scalar

_WIDER = {  # dtypes in which sums and products of narrow dtypes are accumulated
    np.dtype(np.float32): np.float64, np.dtype(np.complex64): np.complex128,
    np.dtype(np.float16): np.float32, np.dtype(ml_dtypes.bfloat16): np.float32,
}  # fmt: skip
SHORT = 64  # entries of a line, up to which NumPy's overhead per line is larger than its work


def bind_reduction(metadata: dict[str, Any], x: Array) -> dict[str, Any]:
    """Metadata with axes counted from the end: all by default, none for an empty list with `noop_with_empty_axes`."""
    axes, noop = metadata.get("axes"), metadata.get("noop_with_empty_axes", 0)
    axes = (axes,) if isinstance(axes, int) else axes
    if not axes:
        axes = () if noop else tuple(range(x.ndim))
    for a in axes:
        if not -x.ndim <= a < x.ndim:
            raise ValueError(f"axis {a} is out of range for {counted(x.ndim, 'dimension')}")
    return {"axes": tuple(a if a < 0 else a - x.ndim for a in axes), "keepdims": metadata.get("keepdims", 1)}


def reduction(function: Kernel) -> Kernel:
    """A kernel from a NumPy function of (x, axis, keepdims)."""

    def kernel(
        x: Array, *, axes: tuple[int, ...] | None = None, keepdims: int = 1, noop_with_empty_axes: int = 0
    ) -> Array:
        y = np.asarray(function(x, axis=axes, keepdims=bool(keepdims)))
        return y.astype(x.dtype if y.dtype.kind == "c" else x.real.dtype, copy=False)

    return kernel


def total(x: Array, axis: int | tuple[int, ...] | None, keepdims: bool) -> Array:
    """The sum, accumulated in a wider dtype if that of x is narrow.

    NumPy adds one by one along all axes but the last: float32 loses a digit by a thousand terms, float16 all.
    """
    if axis in (-1, (-1,)) and x.ndim and x.dtype.kind in "fc" and x.dtype not in _WIDER and x.shape[-1] <= SHORT:
        lines = np.einsum("...i->...", x)  # less overhead per line than np.sum
        return np.asarray(lines[..., None] if keepdims else lines)
    return np.asarray(np.sum(x, axis=axis, keepdims=keepdims, dtype=_WIDER.get(x.dtype)))


def product(x: Array, axis: tuple[int, ...] | None, keepdims: bool) -> Array:
    """The product, accumulated in a wider dtype: partial products may leave the range of x."""
    return np.asarray(np.prod(x, axis=axis, keepdims=keepdims, dtype=_WIDER.get(x.dtype)))


def average(x: Array, axis: tuple[int, ...], keepdims: bool) -> Array:
    """The mean; NaN of no entries, as the standard has it, without NumPy's warning."""
    return np.asarray(total(x, axis, keepdims) / np.prod([x.shape[a] for a in axis]))


def expanded(ct: Var, x: Var, axes: tuple[int, ...], keepdims: int) -> tuple[Var]:
    """A cotangent of the result, for every entry that was reduced."""
    return (sym.expand(spread(ct, x, axes, keepdims), x.shape),)


def mean_vjp(ct: Var, y: Var, x: Var, *, axes: tuple[int, ...], keepdims: int) -> tuple[Var]:
    """An equal share of ct for every entry."""
    return expanded(ct / float(max(math.prod(x.shape[a] for a in axes), 1)), x, axes, keepdims)


def spread(ct: Var, x: Var, axes: tuple[int, ...], keepdims: int) -> Var:
    """A cotangent of the result with its axes of length 1 back, so that it broadcasts against x."""
    shape = tuple(1 if i - x.ndim in axes else d for i, d in enumerate(x.shape))
    return ct if keepdims else sym.reshape(ct, shape)


def extremum(function: Any) -> Kernel:
    """The kernel of a maximum or minimum; of no entries it is the worst value of the dtype."""

    def reduced(x: Array, axis: tuple[int, ...] | None, keepdims: bool) -> Array:
        initial = {} if x.size else {"initial": _worst(function, x.dtype)}
        return np.asarray(function.reduce(x, axis=axis, keepdims=keepdims, **initial))

    return reduction(reduced)


def _worst(function: Any, dtype: np.dtype[Any]) -> Any:
    if dtype.kind in "iu":
        return np.iinfo(dtype).min if function is np.maximum else np.iinfo(dtype).max
    worst = -np.inf if function is np.maximum else np.inf
    return np.asarray(worst > 0 if dtype.kind == "b" else worst, dtype)


def rows_of(x: Array, axes: tuple[int, ...]) -> Array:
    """The entries of each reduction along one last axis."""
    moved = np.moveaxis(x, axes, range(-len(axes), 0)) if axes else x[..., None]
    kept = moved.shape[: x.ndim - len(axes)]
    return moved.reshape(*kept, math.prod(moved.shape[len(kept) :]))


def winners(choose: Kernel) -> Kernel:
    """The number of the entry that wins each reduction, the first at a tie."""

    def branch(x: Array, *, axes: tuple[int, ...], keepdims: int) -> Array:
        rows = rows_of(x.real, axes)
        return choose(rows, axis=-1) if rows.size else np.zeros(rows.shape[:-1], np.int64)

    return branch


def extremum_near_real(choose: Kernel, forward: Kernel) -> Kernel:
    """The entry whose real part wins."""

    def step(x: Array, *, axes: tuple[int, ...], keepdims: int) -> Array:
        if not x.size:
            return np.asarray(forward(x.real, axes=axes, keepdims=keepdims))
        index = winners(choose)(x, axes=axes, keepdims=keepdims)[..., None]
        best = np.take_along_axis(rows_of(x, axes), index, axis=-1)[..., 0]
        return np.expand_dims(best, axes) if keepdims else best

    return step


def extremum_vjp(choose: str) -> Any:
    """ct to the entry that won, the first at a tie."""

    def vjp(ct: Var, y: Var, x: Var, *, axes: tuple[int, ...], keepdims: int) -> tuple[Var]:
        if not axes or not x.size:
            return expanded(ct, x, axes, keepdims)
        rows, ct = gathered(x, axes), sym.reshape(ct, (*_kept(x, axes), 1))
        index = x.tape.apply(choose, rows, axis=-1)
        won = sym.equal(sym.arange(x.tape, rows.shape[-1]), index)
        return (ungathered(sym.where(won, ct, 0), x, axes),)

    return vjp


def gathered(x: Var, axes: tuple[int, ...]) -> Var:
    """The entries of each reduction along one last axis (symbolic)."""
    return sym.reshape(sym.transpose(x, _order(x, axes)), (*_kept(x, axes), math.prod(x.shape[a] for a in axes)))


def ungathered(rows: Var, x: Var, axes: tuple[int, ...]) -> Var:
    """The inverse of `gathered`: entries in the order of x."""
    order = _order(x, axes)
    return sym.transpose(sym.reshape(rows, [x.shape[i] for i in order]), [order.index(i) for i in range(x.ndim)])


def _order(x: Var, axes: tuple[int, ...]) -> list[int]:
    kept = [i for i in range(x.ndim) if i - x.ndim not in axes]
    return [*kept, *(i + x.ndim for i in axes)]


def _kept(x: Var, axes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(d for i, d in enumerate(x.shape) if i - x.ndim not in axes)


def prod_vjp(ct: Var, y: Var, x: Var, *, axes: tuple[int, ...], keepdims: int) -> tuple[Var]:
    """ct times the product of all other entries, without a division: right at 0, and for every derivative."""
    if not axes:
        return (ct,)
    if not x.size:
        return (sym.zeros_like(x),)
    others = products_of_others(gathered(x, axes))
    return (ungathered(others * sym.reshape(ct, (*_kept(x, axes), 1)), x, axes),)


def products_of_others(x: Var) -> Var:
    """For each entry along the last axis the product of all others, by halves: 2 n products."""
    count = x.shape[-1]
    if count == 1:
        return sym.ones_like(x)
    half = -(-count // 2)
    left, right = sym.split(x, (half, count - half), -1)
    if count % 2:
        right = sym.concat([right, sym.full(x.tape, (*x.shape[:-1], 1), 1, x.dtype)], -1)
    rest = products_of_others(left * right)
    both = sym.concat([rest * right, rest * left], -1)
    return sym.slice(both, (0,), (count,), (-1,)) if count % 2 else both


def norm2(x: Array, axis: tuple[int, ...] | None, keepdims: bool) -> Array:
    """The Euclidean norm, scaled so that no square overflows; near the real axis its continuation, 0 at 0."""
    size = np.max(np.abs(x.real), axis=axis, keepdims=True, initial=0)
    size = np.where((size > 0) & np.isfinite(size), size, 1)
    scaled = x / size
    y = np.sqrt(total(scaled * scaled, axis, True)) * size
    y = np.where(y.real == 0, 0, y) if x.dtype.kind == "c" else y
    return y if keepdims else np.squeeze(y, axis)


def norm2_of_magnitudes(x: Array, axis: tuple[int, ...] | None, keepdims: bool) -> Array:
    """The Euclidean norm, of complex numbers too."""
    return norm2(np.abs(x) if x.dtype.kind == "c" else x, axis, keepdims)


def norm2_vjp(ct: Var, y: Var, x: Var, *, axes: tuple[int, ...], keepdims: int) -> tuple[Var]:
    """ct x / |x|, and 0 at 0; ct conj(x) / |x| for complex numbers."""
    scaled = ct / sym.where(sym.equal(y, 0), 1, y)
    return (spread(scaled, x, axes, keepdims) * sym.conj(x),)


def log_sum_exp(x: Array, axis: tuple[int, ...] | None, keepdims: bool) -> Array:
    """log(sum(exp(x))), with the largest term taken out."""
    top = np.max(x.real, axis=axis, keepdims=True, initial=-np.inf)
    top = np.where(np.isfinite(top), top, 0)
    y: Array = np.log(total(np.exp(x - top), axis, True)) + top
    return y if keepdims else np.squeeze(y, axis)


def log_sum_exp_vjp(ct: Var, y: Var, x: Var, *, axes: tuple[int, ...], keepdims: int) -> tuple[Var]:
    """ct exp(x - y), and 0 for entries of -inf."""
    y, ct = (spread(v, x, axes, keepdims) for v in (y, ct))
    return (ct * sym.exp(x - sym.where(sym.equal(y, -math.inf), 0, y)),)


def arg_extremum(choose: Kernel) -> Kernel:
    """The kernel for the index of an extremum along an axis."""

    def kernel(x: Array, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Array:
        keys = np.flip(x.real, axis) if select_last_index else x.real
        index = np.asarray(choose(keys, axis=axis, keepdims=bool(keepdims)))
        return np.asarray(x.shape[axis] - 1 - index) if select_last_index else index

    return kernel


def arg_outline(kernel: Kernel, operands: Operands, metadata: Mapping[str, Any]) -> Array:
    """The outline rule: an index for each line along the axis."""
    x, axis, kept = operands[0], metadata["axis"], metadata.get("keepdims", 1)
    if not x.shape[axis]:
        return np.asarray(kernel(x, **metadata))  # says that there is no largest one
    before, behind = x.shape[:axis], x.shape[axis:][1:]
    return blank((*before, 1, *behind) if kept else (*before, *behind), np.intp)


def cumsum(x: Array, *, axis: int, exclusive: int = 0, reverse: int = 0) -> Array:
    """Running sums along an axis: from the end if `reverse`, without the entry itself if `exclusive`."""
    flipped = np.flip(x, axis) if reverse else x
    y = np.cumsum(flipped, axis=axis, dtype=_WIDER.get(x.dtype, x.dtype)).astype(x.dtype, copy=False)
    if exclusive:
        y = np.roll(y, 1, axis)
        np.moveaxis(y, axis, 0)[:1] = 0
    return np.flip(y, axis) if reverse else y


def bind_cumulation(metadata: dict[str, Any], x: Array) -> dict[str, Any]:
    """Metadata with the axis as one number, counted from the end."""
    axis = from_end(int(scalar(metadata["axis"])), x.ndim)
    if not x.ndim:
        raise ModelError("a scalar has no axis to cumulate along")
    return {"exclusive": 0, "reverse": 0, **metadata, "axis": axis}


def cumprod(x: Var, *, axis: int, exclusive: int = 0, reverse: int = 0) -> Var:
    """Running products along an axis, by doubling: after k rounds each entry holds the last 2^k factors."""
    count, width = x.shape[axis], 1
    y = sym.identity(x) if not exclusive or not x.size else _shifted(x, axis, 1, reverse)
    while width < count and x.size:
        y, width = y * _shifted(y, axis, width, reverse), 2 * width
    return y


def _shifted(x: Var, axis: int, by: int, reverse: int) -> Var:
    """x moved along an axis, filled up with ones."""
    ones = sym.full(x.tape, [by if i - x.ndim == axis else d for i, d in enumerate(x.shape)], 1, x.dtype)
    count = x.shape[axis]
    if reverse:
        return sym.concat([sym.slice(x, (by,), (count,), (axis,)), ones], axis)
    return sym.concat([ones, sym.slice(x, (0,), (count - by,), (axis,))], axis)


def reducing(name: str, forward: Kernel, vjp: Any, **more: Any) -> Op:
    """A reduction with a rule."""
    known = {
        "static": {"axes": 1},
        "bind": bind_reduction,
        "sparsity": along("axes"),
        "boxes": box_rules.along("axes"),
        "outline": reduced,
    }
    return Op(name, forward, vjp, on(0), **{**known, **more})


def reducing_composite(name: str, function: Any, **more: Any) -> Op:
    """A reduction composed of others: a function of (x, sum over the axes)."""

    def kernel(x: Var, *, axes: tuple[int, ...] = (), keepdims: int = 1, noop_with_empty_axes: int = 0) -> Any:
        return function(x, lambda terms: sym.sum(terms, axes, bool(keepdims)))

    return composite(name, kernel, static={"axes": 1}, bind=bind_reduction, **more)


def choosing(name: str, function: Any, choose: Any, arg: str) -> Op:
    """A maximum or minimum over axes."""
    forward = extremum(function)
    step = extremum_near_real(choose, forward)
    return reducing(name, forward, extremum_vjp(arg), step=step, branch=winners(choose), ordered=True, cost=8.0)


REDUCE: list[Op] = [
    reducing("ReduceSum", reduction(total), lambda ct, y, x, **over: expanded(ct, x, **over), linear="each",
             boxes=box_rules.summed),
    reducing("ReduceMean", reduction(average), mean_vjp, linear="each", boxes=box_rules.averaged),
    choosing("ReduceMax", np.maximum, np.argmax, "ArgMax"),
    choosing("ReduceMin", np.minimum, np.argmin, "ArgMin"),
    reducing("ReduceProd", reduction(product), prod_vjp),
    reducing("ReduceL2", reduction(norm2_of_magnitudes), norm2_vjp, step=reduction(norm2),
             branch=lambda x, **m: norm2_of_magnitudes(x, m["axes"], True) == 0, elsewhere="one by one"),
    reducing("ReduceLogSumExp", reduction(log_sum_exp), log_sum_exp_vjp),
    reducing_composite("ReduceL1", lambda x, total: total(sym.abs(x)), elsewhere="one by one"),
    reducing_composite("ReduceSumSquare", lambda x, total: total(x * x), elsewhere="one by one"),
    reducing_composite("ReduceLogSum", lambda x, total: sym.log(total(x)), valid={0: POSITIVE}),
    *(
        Op(name, arg_extremum(pick), zero, on(0), bind=with_axis(0), ordered=True, sparsity=along("axis"), cuts=rounding,
           integral=(0,), outline=arg_outline)
        for name, pick in (("ArgMax", np.argmax), ("ArgMin", np.argmin))
    ),
    Op("CumSum", cumsum, lambda ct, y, x, axis, exclusive, reverse:
       (ct.tape.apply("CumSum", ct, np.asarray(axis, np.int64), exclusive=exclusive, reverse=1 - reverse),),
       on(0), static={"axis": 1}, bind=bind_cumulation, linear="each", sparsity=along("axis"), integers={1: (0, 0)},
       same_axes=True, outline=like_first, elsewhere="one by one"),
    composite("CumProd", cumprod, static={"axis": 1}, bind=bind_cumulation, integers={1: (0, 0)}, same_axes=True),
]  # fmt: skip
