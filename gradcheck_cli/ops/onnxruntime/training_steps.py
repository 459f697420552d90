"""Operators of onnxruntime's training graphs on gradients: scale, clip, accumulate, and steps of optimizers.

Operators on several tensors take them as sequences.  A tensor that an operator changes in place there is an output of
its own here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gradcheck_cli.autodiff import symbolic as sym
from gradcheck_cli.autodiff.tape import Tape, Var
from gradcheck_cli.graph.containers import CONTAINERS, described
from gradcheck_cli.graph.containers import Sequence as Tensors
from gradcheck_cli.op import Op, on_containers, require_known
from gradcheck_cli.ops.onnxruntime.fused import DOMAIN, fused
from gradcheck_cli.ops.sequence import items_of

GUARD = 1e-6  # added to a norm before gradients are divided by it


def scale(x: Var, factor: Var, *, scale_down: int = 0) -> Var:
    """x times a number, or divided by it."""
    number = sym.cast(sym.reshape(factor, ()), x.dtype)
    return x / number if scale_down else x * number


def scaled_sum(a: Var, b: Var, c: Var | None = None, *, scale_0: float, scale_1: float, scale_2: float = 1.0) -> Var:
    """The sum of tensors, each times a number."""
    y = a * scale_0 + b * scale_1
    return y if c is None else y + c * scale_2


def batch_scale(
    x: Var, *, scale_0: float, scale_1: float, scale_2: float | None = None, n_outputs: int = 2
) -> tuple[Var, ...]:
    """x times each of several numbers."""
    return tuple(x * factor for factor in (scale_0, scale_1, scale_2) if factor is not None)


def mixed_precision_scale(factor: Var, *xs: Var, to: Any, fuse_outputs: int = 0) -> tuple[Var, ...]:
    """Each x times a number, in another dtype; all in one vector if fused."""
    number = sym.reshape(factor, ())
    scaled = [sym.cast(x * sym.cast(number, x.dtype), to) for x in xs]
    return (sym.concat([sym.reshape(y, (y.size,)) for y in scaled], 0),) if fuse_outputs else tuple(scaled)


def in_place_accumulator(total: Var, value: Var, update: Var | None = None) -> Var:
    """total + value, or total if the signal is False."""
    more = total + sym.cast(value, total.dtype)
    return more if update is None else sym.where(sym.reshape(update, ()), more, total)


def in_place_accumulator_v2(total: Var, value: Var, overwrite: Var | None = None) -> tuple[Var, Var]:
    """True, and total + value, or the value alone if `overwrite`."""
    value = sym.cast(value, total.dtype)
    more = total + value
    return _done(total.tape), more if overwrite is None else sym.where(sym.reshape(overwrite, ()), value, more)


def clip_grad_norm(gradients: Any, *, max_norm: float = 1.0) -> Tensors:
    """Gradients divided by their norm over `max_norm`, if it is larger."""
    items = _tensors(gradients)
    if not items:
        raise ValueError("there are no gradients to clip")
    share = sym.minimum(sym.reciprocal(reduce_all_l2(*items) + GUARD) * max_norm, 1.0)
    return Tensors(tuple(g * share for g in items))


def is_finite(x: Var) -> Var:
    """True for entries that are neither infinite nor NaN."""
    return sym.abs(x) < np.inf


def is_all_finite(*xs: Var, isinf_only: int = 0, isnan_only: int = 0) -> Var:
    """True if no entry of any tensor is infinite or NaN; one of both may be ignored."""
    if isinf_only and isnan_only:
        raise ValueError("isinf_only and isnan_only exclude each other")

    def good(x: Var) -> Var:
        if isinf_only:
            return sym.not_(sym.equal(sym.abs(x), np.inf))
        return sym.not_(sym.is_nan(x)) if isnan_only else is_finite(x)

    return all_true(sym.concat([sym.reshape(good(x), (x.size,)) for x in xs], 0))


def all_true(x: Var) -> Var:
    """True if every entry is."""
    return sym.cast(x.tape.apply("ReduceMin", sym.cast(x, np.int32), keepdims=0), np.bool_)


def sgd(rate: Var, w: Var, g: Var) -> tuple[Var, Var]:
    """The weights after a step, and the step."""
    step = g * -sym.reshape(rate, ())
    return w + step, step


def sgd_of_sequences(rate: Var, weights: Any, gradients: Any, update: Var | None = None) -> tuple[Var, Tensors]:
    """True if there was a step, and the weights after it."""
    stepped = [sgd(_single(rate), w, g)[0] for w, g in _rows(weights, gradients)]
    return _signal(_single(update), rate), _unless(update, stepped, _tensors(weights))


def adam(
    rate: Var, count: Var, w: Var, g: Var, m: Var, v: Var, *refused: Var | None, alpha: float = 0.9,
    beta: float = 0.999, lambda_: float = 0.0, epsilon: float = 1e-8, max_norm_clip: float = 1.0,
    do_bias_correction: int = 1, weight_decay_mode: int = 0,
) -> tuple[Var, ...]:  # fmt: skip
    """The next count, both means, the weights after a step along them, and the step, which decays the weights."""
    if any(x is not None for x in refused) or weight_decay_mode:
        raise ValueError("only six inputs and weight_decay_mode 0 are supported")
    grown = _corrections(count, alpha, beta, do_bias_correction, g)
    m, v = _means(m, v, g, alpha, beta)
    step = -sym.reshape(rate, ()) * (m / grown[0] / (sym.sqrt(v / grown[1]) + epsilon) + w * lambda_)
    return count + 1, m, v, w + step, step


def adam_w(
    rate: Var, count: Var, weights: Any, gradients: Any, means: Any, squares: Any, update: Var | None = None, *,
    alpha: float = 0.9, beta: float = 0.999, epsilon: float = 1e-8, weight_decay: float = 1e-2,
    adam_mode: int = 0, correct_bias: int = 1,
) -> tuple[Any, ...]:  # fmt: skip
    """True if there was a step; the weights after it, and both means.

    In mode 0 the weights decay before the step, and each mean is corrected; in mode 1 they decay after it, and the rate
    is corrected.
    """
    require_known("adam_mode", adam_mode, (0, 1))
    stepped, rate, count, update = [], sym.reshape(_single(rate), ()), _single(count), _single(update)
    for w, g, m, v in _rows(weights, gradients, means, squares):
        first, second = _corrections(count, alpha, beta, correct_bias, g)
        m, v = _means(m, v, g, alpha, beta)
        if adam_mode == 0:
            w = w - w * rate * weight_decay
            w = w - rate * m / (first * (sym.sqrt(v / second) + epsilon))
        else:
            w = w - rate * (sym.sqrt(second) / first) * m / (sym.sqrt(v) + epsilon)
            w = w - w * rate * weight_decay
        stepped.append((w, m, v))
    olds = [_tensors(old) for old in (weights, means, squares)]
    news = zip(*stepped, strict=True)
    return _signal(update, count), *(_unless(update, new, old) for new, old in zip(news, olds, strict=True))


def reduce_all_l2(*xs: Var) -> Var:
    """The norm of all entries of all tensors."""
    whole = sym.concat([sym.reshape(sym.identity(x), (x.size,)) for x in xs], 0)
    return whole.tape.apply("ReduceL2", whole, keepdims=0)


def _means(m: Var, v: Var, g: Var, alpha: float, beta: float) -> tuple[Var, Var]:
    """The running means of gradients and of their squares."""
    return m * alpha + g * (1 - alpha), v * beta + g * g * (1 - beta)


def _corrections(count: Var, alpha: float, beta: float, wanted: int, like: Var) -> tuple[Var, Var]:
    """1 - alpha^t and 1 - beta^t, by which running means that began at 0 are too small; 1 if not wanted."""
    steps = sym.cast(sym.reshape(count, ()), like.dtype)
    bases = [like.tape.constant(base if wanted else 0.0, like.dtype) for base in (alpha, beta)]
    first, second = (1.0 - base.tape.apply("Pow", base, steps) for base in bases)
    return first, second


def _tensors(sequence: Any) -> tuple[Var, ...]:
    return tuple(_single(item) for item in items_of(sequence))


def _single(x: Any) -> Any:
    if isinstance(x, CONTAINERS):
        raise ValueError(f"a tensor is needed, not {described(x)}")
    return x


def _rows(*sequences: Any) -> list[tuple[Var, ...]]:
    items = [_tensors(sequence) for sequence in sequences]
    if len({len(each) for each in items}) > 1 or not items[0]:
        raise ValueError(f"sequences of {', '.join(str(len(each)) for each in items)} tensors do not go together")
    for row in zip(*items, strict=True):
        if len({x.shape for x in row}) > 1:
            raise ValueError(f"tensors of shapes {[list(x.shape) for x in row]} do not go together")
    return list(zip(*items, strict=True))


def _unless(update: Var | None, new: Sequence[Var], old: Sequence[Var]) -> Tensors:
    """The new tensors, or the old ones if the signal is False."""
    if update is None:
        return Tensors(tuple(new))
    signal = sym.reshape(update, ())
    return Tensors(tuple(sym.where(signal, n, o) for n, o in zip(new, old, strict=True)))


def _done(tape: Tape, shape: tuple[int, ...] = (1,)) -> Var:
    return tape.constant(np.ones(shape, np.bool_))


def _signal(update: Var | None, like: Var) -> Var:
    """True if there was a step, in the shape of another tensor of one entry."""
    return _done(like.tape, like.shape) if update is None else sym.reshape(sym.identity(update), like.shape)


TRAINING_STEPS: list[Op] = [
    on_containers("AdamWOptimizer", adam_w, domain=DOMAIN),
    on_containers("InplaceClipGradNorm", clip_grad_norm, domain=DOMAIN),
    on_containers("SGDOptimizerV2", sgd_of_sequences, domain=DOMAIN),
    fused("AdamOptimizer", adam),
    fused("All", all_true),
    fused("BatchScale", batch_scale),
    fused("Group", lambda *xs, tape: _done(tape), does="True; it waits for all operands."),
    fused("InPlaceAccumulator", in_place_accumulator),
    fused("InPlaceAccumulatorV2", in_place_accumulator_v2),
    fused("IsAllFinite", is_all_finite),
    fused("IsFinite", is_finite),
    fused("MixedPrecisionScale", mixed_precision_scale),
    fused("PassThrough", lambda *xs: tuple(map(sym.identity, xs)), does="All operands, unchanged."),
    fused("ReduceAllL2", reduce_all_l2),
    fused("SGDOptimizer", sgd),
    fused("Scale", scale),
    fused("ScaledSum", scaled_sum),
    fused("ZeroGradient", lambda total, reset: sym.zeros_like(total), does="Zeros."),
]
