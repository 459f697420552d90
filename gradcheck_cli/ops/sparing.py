"""Gradient rules for files: of fewer nodes, and of operators for which runtimes have fast kernels.

They give what the rules for checks give.  Those have other needs: every operator of theirs is checked itself, and runs
for stacks of probes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from math import prod
from typing import Any

import numpy as np

from gradcheck_cli.autodiff import symbolic as sym
from gradcheck_cli.autodiff.reach import Makers
from gradcheck_cli.autodiff.tape import Tape, Var
from gradcheck_cli.op import Op, Ops
from gradcheck_cli.op.batching import elementwise
from gradcheck_cli.ops import OPS
from gradcheck_cli.ops.conv import correlated, reach, scattered, to_bias, totals
from gradcheck_cli.ops.pad import slice_vjp
from gradcheck_cli.ops.pool import average_pool_vjp, shared_out, unpooled

_TANH, _CONV, _POOL, _SLICE, _MISH = (OPS["", name] for name in ("Tanh", "Conv", "AveragePool", "Slice", "Mish"))
_SOFTMAX, _HARD_SWISH = OPS["", "Softmax"], OPS["", "HardSwish"]
_PRODUCT = OPS["", "Mul"].key
_MOST = 1 << 30
_FEW_CHANNELS = 8
_MOST_TAPS = 32  # of filters, beyond which all windows would be too much to hold


def sparing(ops: Ops) -> Ops:
    """The operators with such rules; rules that the caller has replaced stay."""
    rules: dict[tuple[str, str], Any] = {
        _TANH.key: tanh_by_result,
        _CONV.key: conv_by_convolutions,
        _POOL.key: average_pool_by_counts,
        _SLICE.key: slice_by_places,
        _SOFTMAX.key: softmax_by_threshold,
        _HARD_SWISH.key: hard_swish_by_factors,
    }
    own = {key: replace(OPS[key], vjp=rule) for key, rule in rules.items() if ops.get(key) is OPS[key]}
    if ops.get(_MISH.key) is _MISH:
        own[_MISH.key] = replace(_MISH, forward=mish)
    return {**ops, **own} if own else ops


def tanh_by_result(ct: Var, y: Var, x: Var) -> tuple[Var]:
    """1 - y^2, as PyTorch has it; runtimes have Cosh in float32 alone, and it costs ten times as much."""
    return (ct * (1.0 - y * y),)


def softmax_by_threshold(ct: Var, y: Var, x: Var, *, axis: int = -1) -> tuple[Var]:
    """y (ct - sum(ct y)) along the axis; what is not a number does not exceed 0, so that one pass makes it 0."""
    shares = x.tape.apply("ThresholdedRelu", y, alpha=0.0)
    return (shares * (ct - sym.sum(ct * shares, (axis,))),)


def hard_swish_by_factors(ct: Var, y: Var, x: Var) -> tuple[Var]:
    """ct (s + x / 6 where |x| <= 3), s the hard sigmoid: factors, since Where takes ten times as long as a product."""
    s = sym.clip(x * (1 / 6) + 0.5, 0.0, 1.0)
    inside = sym.cast(x.tape.apply("LessOrEqual", sym.abs(x), x.tape.constant(3, x.dtype)), x.dtype)
    return (ct * (s + inside * (s - 0.5)),)


def mish(x: Var) -> Var:
    """x tanh(softplus(x)); runtimes have Softplus in float32 alone."""
    if x.dtype != np.float64:
        return x * sym.tanh(sym.softplus(x))
    return x * sym.tanh(sym.relu(x) + sym.log(sym.exp(-sym.abs(x)) + 1))


def conv_by_convolutions(
    ct: Var, y: Var, x: Var, w: Var, *b: Var, group: int, **geometry: Any
) -> tuple[Var | None, ...]:
    """Of a convolution of stride 1 ct_x is one too, by the filters turned around; ct_w are products.

    Not for few channels, such as those of an image: runtimes compute as many at once as a vector register holds.
    """
    ct_x = ct_w = None
    if sym.wanted(x):
        few = group == 1 and w.shape[1] <= _FEW_CHANNELS
        plain = not few and max(geometry["strides"]) == 1 and min(_margins(w, geometry)) >= 0
        ct_x = _turned(ct, w, group, geometry) if plain else scattered(ct, w, x, group, geometry)
    if sym.wanted(w):
        ct_w = _to_filters(ct, x, w, group, geometry)
    return ct_x, ct_w, *(to_bias(ct) if sym.wanted(each) else None for each in b)


def average_pool_by_counts(ct: Var, y: Var, x: Var, *, count_include_pad: int, **window: Any) -> tuple[Var | None]:
    """An equal share of ct to every entry of the window, whose number a run counts: it follows from the size of x."""
    if count_include_pad or window["ceil_mode"] or not any(window["pads"]):
        return average_pool_vjp(ct, y, x, count_include_pad=count_include_pad, **window)
    geometry = {name: window[name] for name in ("strides", "dilations", "pads")}
    entries = sym.full(x.tape, (1, 1, *x.shape[2:]), 1, x.dtype)
    taps = x.tape.constant(np.ones((1, 1, *window["kernel_shape"])), x.dtype)
    return (shared_out(ct / x.tape.apply("Conv", entries, taps, group=1, **geometry), x, window),)


def slice_by_places(ct: Var, y: Var, x: Var, **spans: tuple[int, ...]) -> tuple[Var]:
    """ct at the entries that were taken; where those follow from values of inputs, they are told from their places."""
    step = x.tape.steps[Makers.of(x.tape).step[y.name]]
    if not _follows_from_values(x.tape, step.node.inputs[1]):
        return slice_vjp(ct, y, x, **spans)
    places = sym.reshape(sym.arange(x.tape, x.size), x.shape)
    bounds = [x.tape.var(name) if name else None for name in step.node.inputs[1:]]
    taken = x.tape.apply("Slice", places, *bounds)
    return (unpooled(ct, taken, x.shape),)


def _follows_from_values(tape: Tape, name: str) -> bool:
    """True if a tensor is computed from an input, other than from its shape."""
    made, todo, seen = Makers.of(tape).step, [name], set[str]()
    while todo:
        if (some := todo.pop()) in tape.constants or some in seen or not some:
            continue
        seen.add(some)
        if (index := made.get(some)) is None:
            return True
        step = tape.steps[index]
        if step.op.name not in ("Shape", "Size"):
            todo.extend(step.node.reads)
    return False


def _margins(w: Var, geometry: dict[str, Any]) -> list[int]:
    """The padding with which the convolution of ct has the space of x: before all axes, then behind them."""
    rank = w.ndim - 2
    return [r - 1 - pad for r, pad in zip(2 * reach(w.shape[2:], geometry), geometry["pads"], strict=True)][: 2 * rank]


def _turned(ct: Var, w: Var, group: int, geometry: dict[str, Any]) -> Var:
    """The convolution of ct by the filters w `(M, C / group, *kernel)` as `(C, M / group, *kernel)`, turned around."""
    (m, c), kernel = w.shape[:2], w.shape[2:]
    space = range(2, w.ndim)
    if group == 1:
        w = sym.transpose(w, (1, 0, *space))
    elif (m, c) != (group, 1):
        parts = sym.transpose(sym.reshape(w, (group, m // group, c, *kernel)), (0, 2, 1, *range(3, w.ndim + 1)))
        w = sym.reshape(parts, (group * c, m // group, *kernel))
    if max(kernel) > 1:
        w = sym.slice(w, [-1] * len(kernel), [-_MOST] * len(kernel), space, [-1] * len(kernel))
    pads = _margins(w, geometry)
    return ct.tape.apply("Conv", ct, w, group=group, **{**geometry, "pads": tuple(pads)})


def _to_filters(ct: Var, x: Var, w: Var, group: int, geometry: dict[str, Any]) -> Var:
    """The cotangent of the filters."""
    *rows, columns = kernel = w.shape[2:]
    if w.shape[:2] == (group, 1) and _keeps_space(w, geometry) and max(prod(rows), columns) <= _MOST_TAPS:
        return _by_shifts(ct, x, w, geometry)
    if prod(kernel) <= _MOST_TAPS:
        return _by_product(ct, x, w, group, geometry)
    return correlated(x, ct, w.shape, group, geometry)


def _keeps_space(w: Var, geometry: dict[str, Any]) -> bool:
    """True if there is a window for each place of x, at any size."""
    same = [r - 1 for r in reach(w.shape[2:], geometry)] == totals(geometry["pads"])
    return same and max(geometry["strides"]) == 1


def _by_shifts(ct: Var, x: Var, w: Var, geometry: dict[str, Any]) -> Var:
    """The cotangent of filters of one channel each: products of lines, which hold a channel of all samples.

    An entry meets the places that a tap of the filter is away.  For that, x is shifted along all axes but the last, and
    ct the other way along the last one: windows of x would be as many copies as there are taps.
    """
    lengths = zip(w.shape[2:], geometry["dilations"], geometry["pads"], strict=False)
    *rows, columns = [[tap * step - begin for tap in range(taps)] for taps, step, begin in lengths]
    (n, c, *space), lines = x.shape, (w.shape[0], 1, -1)
    x, ct = (sym.transpose(v, (1, 0, *range(2, v.ndim))) for v in (x, ct))
    moved = sym.concat(_shifted(ct, [[-away for away in columns]]), 1)
    moved = sym.swap(sym.reshape(moved, (c, len(columns), -1)))
    if rows:  # of the last two axes a shift is one along both together, which runtimes make faster
        x = sym.reshape(x, (c, n, *space[:-2], space[-2] * space[-1]))
        rows[-1] = [away * space[-1] for away in rows[-1]]
    products = [sym.matmul(sym.reshape(seen, lines), moved) for seen in _shifted(x, rows)]
    return sym.reshape(sym.concat(products, 1), w.shape)


def _shifted(x: Var, aways: Sequence[Sequence[int]]) -> list[Var]:
    """The entries of x so many places away along its last axes, for all pairs of these; zeros where there are none.

    They are cut out of x with zeros around, since an axis may be shorter than a shift.
    """
    axes = range(x.ndim - len(aways), x.ndim)
    begins, ends = [-min(each) for each in aways], [max(each) for each in aways]
    front = (0,) * axes.start
    wide = sym.pad(x, (*front, *begins, *front, *ends)) if any(begins + ends) else x

    def part(away: Sequence[int]) -> Var:
        starts = [each + begin for each, begin in zip(away, begins, strict=True)]
        return sym.slice(wide, starts, [each - end or _MOST for each, end in zip(away, ends, strict=True)], axes)

    return [part(away) if any(away) else x for away in product(*aways)]


def _by_product(ct: Var, x: Var, w: Var, group: int, geometry: dict[str, Any]) -> Var:
    """The cotangent of the filters: ct by all windows of x, a product for each sample and group, added up."""
    taps = prod(w.shape[2:])
    seen = x if taps == 1 and not _moves(geometry) else _windows(x, w.shape[2:], geometry)
    if group == 1:
        rows, columns = (sym.reshape(v, (*v.shape[:2], -1)) for v in (ct, seen))
    else:
        rows, columns = (sym.reshape(v, (v.shape[0], group, v.shape[1] // group, -1)) for v in (ct, seen))
    return sym.reshape(sym.sum(sym.matmul(rows, sym.swap(columns)), (0,)), w.shape)


def _moves(geometry: dict[str, Any]) -> bool:
    """True unless a window of one tap is an entry of x, and each has one."""
    return max(geometry["strides"]) > 1 or any(geometry["pads"])


def _windows(x: Var, kernel: Sequence[int], geometry: dict[str, Any]) -> Var:
    """The entries of x in all windows, `(N, C * taps, *out)`: each channel convolved by filters that pick one tap.

    An axis of length 1 stands before those of the windows: onnxruntime would lay out images in blocks of channels.
    """
    taps, space = prod(kernel), x.shape[2:]
    picks = x.tape.constant(np.eye(taps, dtype=x.dtype).reshape(taps, 1, 1, *kernel))
    begins, ends = geometry["pads"][: len(kernel)], geometry["pads"][len(kernel) :]
    deep = {
        "strides": (1, *geometry["strides"]),
        "dilations": (1, *geometry["dilations"]),
        "pads": (0, *begins, 0, *ends),
    }
    seen = x.tape.apply("Conv", sym.reshape(x, (-1, 1, 1, *space)), picks, group=1, **deep)
    return sym.reshape(seen, (-1, x.shape[1] * taps, *seen.shape[3:]))


def without_poles(ops: Ops, *, twice: bool = False) -> Ops:
    """The operators, with rules that give 0 in place of 0 times infinity wherever nothing flows in.

    `Where(x > 0, Sqrt(x), 0)` sends a cotangent of exactly 0 into Sqrt at x <= 0; 0 times infinity is not a number.
    Only elementwise operators that are not defined everywhere get one; and products, which their rules are made of,
    if those are differentiated themselves, `twice`.
    """
    return {**ops, **{key: _safe(op) for key, op in ops.items() if _has_poles(op) or (twice and key == _PRODUCT)}}


def _has_poles(op: Op) -> bool:
    return op.batching is elementwise and op.vjp is not None and not op.many and bool(op.valid)


def _safe(op: Op) -> Op:
    """An operator whose rule stays as it is wherever it gives a number, so that it has a derivative there as before."""
    rule: Callable[..., Any] = op.vjp  # type: ignore[assignment]

    def safe(ct: Var, ans: Any, *primals: Var, **metadata: Any) -> tuple[Var | None, ...]:
        idle = sym.equal(ct, 0)
        return tuple(None if made is None else _saved(idle, made) for made in rule(ct, ans, *primals, **metadata))

    return replace(op, vjp=safe)


def _saved(idle: Var, made: Var) -> Var:
    lost = made.tape.apply("And", idle, made.tape.apply("IsNaN", made))
    return sym.where(lost, 0, made)
