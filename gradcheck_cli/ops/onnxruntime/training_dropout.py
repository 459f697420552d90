"""Dropout and fake quantization in onnxruntime's training graphs, and their derivatives.

A mask of bits has one bit for each entry, 32 in a number, the lowest first.
"""

from __future__ import annotations

import numpy as np

from gradcheck_cli.autodiff import symbolic as sym
from gradcheck_cli.autodiff.tape import Var
from gradcheck_cli.op import Op, deciding, rounding_of, with_axis
from gradcheck_cli.ops.onnxruntime.fused import bias_dropout, bias_softmax, fused
from gradcheck_cli.ops.onnxruntime.training_layers import flat_softmax_grad

BITS = 32


def dropout_grad(
    dy: Var, mask: Var, *, ratio: float = 0.5, training_mode: bool = False, seed: int | None = None
) -> Var:
    """What was kept of dY, in training scaled as the forward operator scales it: it is Dropout's derivative."""
    if not 0 <= ratio < 1:
        raise ValueError(f"ratio is {ratio}; it is from 0 up to 1, which would leave nothing")
    return sym.where(mask, dy / (1.0 - ratio) if training_mode else dy, 0)


def bitmask_dropout(
    x: Var, ratio: Var | None = None, training_mode: Var | None = None, *, seed: int | None = None
) -> tuple[Var, Var]:
    """Dropout, with a mask of bits."""
    attrs = {} if seed is None else {"seed": seed}
    y, mask = x.tape.emit("Dropout", (x, ratio, training_mode), attrs, n_outputs=2)
    return y, _packed(mask)


def bitmask_bias_dropout(
    x: Var, bias: Var, residual: Var | None = None, ratio: Var | None = None, training_mode: Var | None = None, *,
    seed: int | None = None,
) -> tuple[Var, Var]:  # fmt: skip
    """BiasDropout, with a mask of bits."""
    y, mask = bias_dropout(x, bias, residual, ratio, training_mode, seed=seed)
    return y, _packed(mask)


def bitmask_dropout_grad(
    dy: Var, mask: Var, *, ratio: float = 0.5, training_mode: bool = False, seed: int | None = None
) -> Var:
    """DropoutGrad, with a mask of bits."""
    return dropout_grad(dy, _unpacked(mask, dy.shape), ratio=ratio, training_mode=training_mode)


def bias_softmax_dropout(
    x: Var, bias: Var, ratio: Var | None = None, *, axis: int = 1, is_inner_broadcast: int = 1,
    seed: int | None = None,
) -> tuple[Var, Var, Var]:  # fmt: skip
    """BiasSoftmax, then Dropout in training: its result, the mask, and the softmax."""
    shares = bias_softmax(x, bias, axis=axis, is_inner_broadcast=is_inner_broadcast)
    attrs = {} if seed is None else {"seed": seed}
    y, mask = x.tape.emit("Dropout", (shares, ratio, np.asarray(True)), attrs, n_outputs=2)
    return y, mask, shares


def softmax_dropout_grad(
    dy: Var, mask: Var, y: Var, *, ratio: float = 0.5, axis: int = 1, is_inner_broadcast: int = 1,
    seed: int | None = None,
) -> Var:  # fmt: skip
    """To what BiasSoftmaxDropout adds the bias to."""
    return flat_softmax_grad(dropout_grad(dy, mask, ratio=ratio, training_mode=True), y, axis=axis)


def fake_quant(x: Var, scale: Var, zero_point: Var, *, quant_min: int = 0, quant_max: int = 255) -> tuple[Var, Var]:
    """x rounded to one of the numbers (q - zero point) scale, and where it lies within their range.

    Rounding has no gradient, by nature: the one that FakeQuantGrad lets through stands in for it.
    """
    scale, zero = sym.reshape(scale, ()), sym.reshape(zero_point, ())
    whole = sym.round_(x / scale) + zero
    kept = sym.clip(whole, float(quant_min), float(quant_max))
    return (kept - zero) * scale, sym.and_(whole >= float(quant_min), whole <= float(quant_max))


def fake_quant_grad(dy: Var, mask: Var) -> Var:
    """dY within the range, as if nothing had been rounded."""
    return sym.where(mask, dy, 0)


def _packed(mask: Var) -> Var:
    """The bits of a mask in numbers."""
    words = -(-mask.size // BITS)
    bits = sym.pad(sym.cast(sym.reshape(mask, (mask.size,)), np.int64), (0, words * BITS - mask.size))
    rows = sym.reshape(bits, (words, BITS)) * mask.tape.constant(2 ** np.arange(BITS))
    return sym.cast(sym.sum(rows, (1,), keepdims=False), np.uint32)


def _unpacked(words: Var, shape: tuple[int, ...]) -> Var:
    """A mask of that shape from its bits."""
    size = int(np.prod(shape))
    if words.size != -(-size // BITS):
        raise ValueError(f"{words.size} numbers of {BITS} bits do not mask {size} entries")
    rows = sym.unsqueeze(sym.cast(sym.reshape(words, (words.size,)), np.int64), (1,))
    bits = words.tape.apply("Mod", rows / words.tape.constant(2 ** np.arange(BITS)), 2)
    flat = sym.slice(sym.reshape(bits, (words.size * BITS,)), (0,), (size,), (0,))
    return sym.reshape(sym.equal(flat, 1), shape)


TRAINING_DROPOUT: list[Op] = [
    fused("BiasSoftmaxDropout", bias_softmax_dropout, cuts=deciding(2)),
    fused("BitmaskBiasDropout", bitmask_bias_dropout, cuts=deciding(3)),
    fused("BitmaskDropout", bitmask_dropout, cuts=deciding(1)),
    fused("BitmaskDropoutGrad", bitmask_dropout_grad, static={"ratio": 2, "training_mode": 3}),
    fused("DropoutGrad", dropout_grad, static={"ratio": 2, "training_mode": 3}),
    fused("FakeQuant", fake_quant, cuts=rounding_of(0)),
    fused("FakeQuantGrad", fake_quant_grad),
    fused("SoftmaxDropoutGrad", softmax_dropout_grad, static={"ratio": 3}, bind=with_axis(1)),
]
