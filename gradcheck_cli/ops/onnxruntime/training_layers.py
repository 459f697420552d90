"""Layers of onnxruntime's training graphs: derivatives of activations, dropouts, fake quantization, losses, norms.

Each derivative takes the cotangent dY and operands or results of its forward operator.  Definitions in the `training_*`
files are those of onnxruntime-training 1.19; all are compositions, so that they can be differentiated.  A bitmask has
one bit for each entry, 32 in a number, the lowest first.  Normalizations: with n = (x - mean) r and g = dY scale, dX is
r (g - mean(g) - n mean(g n)).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from gradcheck_cli.autodiff import symbolic as sym
from gradcheck_cli.autodiff.backward import unbroadcast
from gradcheck_cli.autodiff.tape import Var
from gradcheck_cli.op import DTYPES, Op, attributes_of, composite, deciding, require_known, rounding_of, with_axis
from gradcheck_cli.ops.activation import LEAK
from gradcheck_cli.ops.loss import (
    REDUCTIONS,
    negative_log_likelihood,
    picked_classes,
    reduced,
    softmax_cross_entropy,
    total_weight,
)
from gradcheck_cli.ops.normalization import EPSILON, MOMENTUM, channelwise, moments
from gradcheck_cli.ops.onnxruntime.fused import QUICK_ALPHA, bias_dropout, bias_softmax, dropped, fused, shifted

CUBIC, TANH_SCALE = 0.044715, math.sqrt(2 / math.pi)
BITS = 32


def gelu_grad(dy: Var, x: Var, bias: Var | None = None) -> Var:
    """dY (Phi(z) + z phi(z)) with the normal distribution Phi, for z = x + bias."""
    z = shifted(x, bias)
    below = (sym.erf(z * math.sqrt(0.5)) + 1.0) * 0.5
    density = sym.exp(z * z * -0.5) * (1 / math.sqrt(2 * math.pi))
    return dy * (below + z * density)


def fast_gelu_grad(dy: Var, x: Var, bias: Var | None = None) -> Var:
    """The derivative of z (1 + tanh(u)) / 2 with u = sqrt(2 / pi) (z + 0.044715 z^3), for z = x + bias."""
    z = shifted(x, bias)
    t = sym.tanh((z * z * z * CUBIC + z) * TANH_SCALE)
    slope = (z * z * (3 * CUBIC) + 1.0) * TANH_SCALE
    return dy * ((t + 1.0) * 0.5 + z * (1.0 - t * t) * slope * 0.5)


def quick_gelu_grad(dy: Var, x: Var, *, alpha: float = QUICK_ALPHA) -> Var:
    """The derivative of x sigmoid(alpha x)."""
    s = sym.sigmoid(x * alpha)
    return dy * s * (x * (1.0 - s) * alpha + 1.0)


def flat_softmax_grad(dy: Var, y: Var, *, axis: int = 1) -> Var:
    """y (dY - sum(dY y)) over all axes from `axis` on."""
    return y * (dy - sym.sum(dy * y, range(axis, 0)))


def dropout_grad(
    dy: Var, mask: Var, *, ratio: float = 0.5, training_mode: bool = False, seed: int | None = None
) -> Var:
    """The kept entries of dY, in training scaled as the forward operator scales x."""
    if not 0 <= ratio < 1:
        raise ValueError(f"ratio is {ratio}; it must be at least 0 and less than 1")
    return sym.where(mask, dy / (1.0 - ratio) if training_mode else dy, 0)


def bitmask_dropout(
    x: Var, ratio: Var | None = None, training_mode: Var | None = None, *, seed: int | None = None
) -> tuple[Var, Var]:
    """Dropout with a bitmask."""
    y, mask = dropped(x, ratio, training_mode, seed)
    return y, _packed(mask)


def bitmask_bias_dropout(
    x: Var, bias: Var, residual: Var | None = None, ratio: Var | None = None, training_mode: Var | None = None, *,
    seed: int | None = None,
) -> tuple[Var, Var]:  # fmt: skip
    """BiasDropout with a bitmask."""
    y, mask = bias_dropout(x, bias, residual, ratio, training_mode, seed=seed)
    return y, _packed(mask)


@attributes_of(dropout_grad)
def bitmask_dropout_grad(dy: Var, mask: Var, **how: Any) -> Var:
    """DropoutGrad with a bitmask."""
    return dropout_grad(dy, _unpacked(mask, dy.shape), **how)


def bias_softmax_dropout(
    x: Var, bias: Var, ratio: Var | None = None, *, axis: int = 1, is_inner_broadcast: int = 1,
    seed: int | None = None,
) -> tuple[Var, ...]:  # fmt: skip
    """BiasSoftmax, then Dropout in training: the result, the mask, and the softmax."""
    shares = bias_softmax(x, bias, axis=axis, is_inner_broadcast=is_inner_broadcast)
    return *dropped(shares, ratio, np.asarray(True), seed), shares


def softmax_dropout_grad(
    dy: Var, mask: Var, y: Var, *, ratio: float = 0.5, axis: int = 1, is_inner_broadcast: int = 1,
    seed: int | None = None,
) -> Var:  # fmt: skip
    """The cotangent of the data that BiasSoftmaxDropout adds the bias to."""
    return flat_softmax_grad(dropout_grad(dy, mask, ratio=ratio, training_mode=True), y, axis=axis)


def fake_quant(x: Var, scale: Var, zero_point: Var, *, quant_min: int = 0, quant_max: int = 255) -> tuple[Var, Var]:
    """x rounded to one of the numbers (q - zero point) scale, and a mask of the entries within their range.

    Rounding has no gradient, by nature: FakeQuantGrad gives the straight-through one.
    """
    scale, zero = sym.reshape(scale, ()), sym.reshape(zero_point, ())
    whole = sym.round_(x / scale) + zero
    kept = sym.clip(whole, float(quant_min), float(quant_max))
    return (kept - zero) * scale, sym.and_(whole >= float(quant_min), whole <= float(quant_max))


def _packed(mask: Var) -> Var:
    words = -(-mask.size // BITS)
    bits = sym.pad(sym.cast(sym.reshape(mask, (mask.size,)), np.int64), (0, words * BITS - mask.size))
    rows = sym.reshape(bits, (words, BITS)) * mask.tape.constant(2 ** np.arange(BITS))
    return sym.cast(sym.sum(rows, (1,), keepdims=False), np.uint32)


def _unpacked(words: Var, shape: tuple[int, ...]) -> Var:
    """The mask, of a given shape, of a bitmask."""
    size = int(np.prod(shape))
    if words.size != -(-size // BITS):
        raise ValueError(f"{words.size} numbers of {BITS} bits do not mask {size} entries")
    rows = sym.unsqueeze(sym.cast(sym.reshape(words, (words.size,)), np.int64), (1,))
    bits = words.tape.apply("Mod", rows / words.tape.constant(2 ** np.arange(BITS)), 2)
    flat = sym.slice(sym.reshape(bits, (words.size * BITS,)), (0,), (size,), (0,))
    return sym.reshape(sym.equal(flat, 1), shape)


def distribution_loss(logits: Var, label: Var, *, reduction: str = "mean") -> tuple[Var, Var]:
    """-sum(label log softmax(logits)) of each row, and the log probabilities."""
    log_prob = logits.tape.apply("LogSoftmax", logits, axis=-1)
    losses = -sym.sum(label * log_prob, (-1,), keepdims=False)
    return reduced(losses, float(losses.size), reduction), log_prob


def distribution_loss_grad(dy: Var, log_prob: Var, label: Var, *, reduction: str = "mean") -> Var:
    """The cotangent of the logits, for labels that sum to 1."""
    return (sym.exp(log_prob) - label) * _share(dy, float(math.prod(log_prob.shape[:-1])), reduction, -1)


def sample_loss(logits: Var, label: Var, weight: Var | None = None, *, reduction: str = "mean") -> tuple[Var, Var]:
    """-log softmax(logits) at the label of each sample times its weight, and the log probabilities."""
    log_prob = logits.tape.apply("LogSoftmax", logits, axis=-1)
    losses = -sym.sum(sym.where(_one_hot(label, logits), log_prob, 0), (-1,), keepdims=False)
    losses = losses if weight is None else losses * weight
    return reduced(losses, float(label.size) if weight is None else weight, reduction), log_prob


def sample_loss_grad(dy: Var, log_prob: Var, label: Var, weight: Var | None = None, *, reduction: str = "mean") -> Var:
    """The cotangent of the logits."""
    apart = sym.exp(log_prob) - sym.cast(_one_hot(label, log_prob), log_prob.dtype)
    share = _share(dy, float(label.size) if weight is None else weight, reduction, -1)
    return apart * share if weight is None else apart * share * sym.unsqueeze(weight, (-1,))


@attributes_of(softmax_cross_entropy)
def class_loss(
    scores: Var, labels: Var, weights: Var | None = None, *, output_type: int | None = None, **how: Any
) -> tuple[Var, ...]:
    """SoftmaxCrossEntropyLoss, with the index to ignore as an input."""
    made = scores.tape.emit("SoftmaxCrossEntropyLoss", (scores, labels, weights), how, n_outputs=2)
    return tuple(_typed(each, output_type) for each in made)


def class_loss_grad(
    dy: Var, log_prob: Var, labels: Var, weights: Var | None = None, bias: Var | None = None, *,
    ignore_index: int | None = None, output_type: int | None = None, reduction: str = "mean",
) -> Var:  # fmt: skip
    """The cotangent of the scores, plus a bias; nothing from a sample that is ignored."""
    picked = picked_classes(labels, log_prob.shape[1], ignore_index)
    hot = sym.cast(picked, log_prob.dtype)
    if weights is not None:
        hot = hot * sym.reshape(weights, (-1, *(1,) * (log_prob.ndim - 2)))
    weight = sym.sum(hot, (1,))
    flow = (sym.exp(log_prob) * weight - hot) * _share(dy, weight, reduction, 1)
    return shifted(_typed(flow, output_type), bias)


def _one_hot(label: Var, like: Var) -> Var:
    """Mask `(..., C)`: the class is that of the sample."""
    classes = like.shape[-1]
    if label.shape != like.shape[:-1] or not ((label.value >= 0) & (label.value < classes)).all():
        raise ValueError(f"labels are from 0 to {classes - 1}, in the shape of the scores without their last axis")
    return sym.equal(sym.unsqueeze(label, (-1,)), label.tape.constant(np.arange(classes, dtype=label.dtype)))


def _share(dy: Var, weight: Var | float, reduction: str, axis: int) -> Var:
    """The share of dY of every sample, in a shape that broadcasts along the axis of classes."""
    require_known("reduction", reduction, REDUCTIONS)
    if reduction == "none":
        return sym.unsqueeze(dy, (axis,))
    whole = sym.reshape(dy, ())
    return whole / total_weight(weight) if reduction == "mean" else whole


def _typed(x: Var, output_type: int | None) -> Var:
    """x in the dtype with that number, or in the wider dtype of the run."""
    if not output_type:
        return x
    if output_type not in DTYPES:
        raise ValueError(f"output_type {output_type} is not known")
    return sym.cast(x, x.tape.widen(DTYPES[output_type]))


def layer_grad(
    dy: Var, x: Var, scale: Var, mean: Var, inverse: Var, *, axis: int = -1, epsilon: float = EPSILON
) -> tuple[Var, Var, Var]:
    """Cotangents of x, scale and bias of LayerNormalization, from the mean and the inverse deviation."""
    normal = (x - _kept(mean, x, axis)) * _kept(inverse, x, axis)
    return _layer_flows(dy, normal, scale, _kept(inverse, x, axis), axis)


def invertible_layer_grad(
    dy: Var, y: Var, scale: Var, bias: Var, inverse: Var, *, axis: int = -1, epsilon: float = EPSILON
) -> tuple[Var, Var, Var]:
    """Cotangents of x, scale and bias of LayerNormalization from its output, of which scale and bias are undone."""
    return _layer_flows(dy, (y - bias) / scale, scale, _kept(inverse, y, axis), axis)


def simplified_layer_grad(
    dy: Var, x: Var, scale: Var, inverse: Var, *, axis: int = -1, epsilon: float = EPSILON
) -> tuple[Var, Var]:
    """Cotangents of x and scale of a normalization by the root mean square, from its inverse."""
    inverse = _kept(inverse, x, axis)
    normal, g = x * inverse, dy * scale
    return (g - normal * sym.mean(g * normal, range(axis, 0))) * inverse, unbroadcast(dy * normal, scale.shape)


def batch_norm_internal(
    x: Var, scale: Var, b: Var, mean: Var, var: Var, *, epsilon: float = EPSILON, momentum: float = MOMENTUM,
    training_mode: int = 1,
) -> tuple[Var, ...]:  # fmt: skip
    """BatchNormalization; in training it also gives the mean and the inverse deviation of the batch."""
    attrs = {"epsilon": epsilon, "momentum": momentum, "training_mode": training_mode}
    operands = (x, scale, b, mean, var)
    if not training_mode:
        return x.tape.emit("BatchNormalization", operands, attrs)
    made = x.tape.emit("BatchNormalization", operands, attrs, n_outputs=3)
    center, _, spread = moments(x, _but_channels(x))
    inverse = sym.reciprocal(sym.sqrt(spread + epsilon))
    return *made, sym.reshape(center, mean.shape), sym.reshape(inverse, var.shape)


def batch_norm_grad(
    dy: Var, x: Var, scale: Var, mean: Var, inverse: Var, *, epsilon: float = EPSILON
) -> tuple[Var, Var, Var]:
    """Cotangents of x, scale and bias, from the mean and the inverse deviation of the batch."""
    axes, spread = _but_channels(x), channelwise(inverse, x)
    normal = (x - channelwise(mean, x)) * spread
    flows = [sym.sum(flow, axes, keepdims=False) for flow in (dy * normal, dy)]
    size = float(math.prod(x.shape[a] for a in axes))
    lost = normal * channelwise(flows[0] / size, x) + channelwise(flows[1] / size, x)
    return (dy - lost) * (channelwise(scale, x) * spread), flows[0], flows[1]


def _layer_flows(dy: Var, normal: Var, scale: Var, inverse: Var, axis: int) -> tuple[Var, Var, Var]:
    g, axes = dy * scale, range(axis, 0)
    ct_x = (g - sym.mean(g, axes) - normal * sym.mean(g * normal, axes)) * inverse
    return ct_x, unbroadcast(dy * normal, scale.shape), unbroadcast(sym.identity(dy), scale.shape)


def _kept(statistic: Var, x: Var, axis: int) -> Var:
    """A statistic with an entry for each row, in a shape that broadcasts against x: some runtimes drop the axes."""
    return sym.reshape(statistic, (*x.shape[:axis], *(1,) * -axis))


def _but_channels(x: Var) -> Sequence[int]:
    return [i for i in range(x.ndim) if i != 1]


TRAINING_LAYERS: list[Op] = [
    composite("SinGrad", lambda dy, x: dy * sym.cos(x), does="dY cos(x)."),  # which is not ONNX's, in its domain
    fused("BiasFastGeluGrad_dX", fast_gelu_grad),
    fused("BiasGeluGrad_dX", gelu_grad),
    fused("DivGrad", lambda dy, a, b: (unbroadcast(dy / b, a.shape), unbroadcast(-dy * a / (b * b), b.shape)),
          does="Cotangents of a and b of a / b, each summed to its shape."),
    fused("FastGeluGrad", fast_gelu_grad),
    fused("GeluGrad", gelu_grad),
    fused("LeakyReluGrad", lambda dy, y, *, alpha=LEAK: sym.where(y > 0, dy, dy * alpha), cuts=deciding(1),
          does="dY, times alpha where the output is not positive (alpha must not be negative)."),
    fused("LogSoftmaxGrad", lambda dy, y, *, axis=1: dy - sym.exp(y) * sym.sum(dy, range(axis, 0)), bind=with_axis(1),
          does="dY - softmax(x) sum(dY) over all axes from `axis` on."),
    fused("LogSoftmaxGrad_13", lambda dy, y, *, axis=-1: dy - sym.exp(y) * sym.sum(dy, (axis,)), bind=with_axis(-1),
          does="dY - softmax(x) sum(dY) along an axis."),
    fused("QuickGeluGrad", quick_gelu_grad),
    fused("ReluGrad", lambda dy, x: sym.where(x > 0, dy, 0), cuts=deciding(1),
          does="dY where x is positive; x may be the input of Relu or its output."),
    fused("SigmoidGrad", lambda dy, y: dy * (y * (1.0 - y)), does="dY y (1 - y)."),
    fused("SoftmaxGrad", flat_softmax_grad, bind=with_axis(1)),
    fused("SoftmaxGrad_13", lambda dy, y, *, axis=-1: y * (dy - sym.sum(dy * y, (axis,))), bind=with_axis(-1),
          does="y (dY - sum(dY y)) along an axis."),
    fused("TanhGrad", lambda dy, y: dy * (1.0 - y * y), does="dY (1 - y^2)."),
    fused("BiasSoftmaxDropout", bias_softmax_dropout, cuts=deciding(2)),
    fused("BitmaskBiasDropout", bitmask_bias_dropout, cuts=deciding(3)),
    fused("BitmaskDropout", bitmask_dropout, cuts=deciding(1)),
    fused("BitmaskDropoutGrad", bitmask_dropout_grad, static={"ratio": 2, "training_mode": 3}),
    fused("DropoutGrad", dropout_grad, static={"ratio": 2, "training_mode": 3}),
    fused("FakeQuant", fake_quant, cuts=rounding_of(0), straight="quantizes"),
    fused("FakeQuantGrad", lambda dy, mask: sym.where(mask, dy, 0),
          does="dY within the range, as if nothing had been rounded."),
    fused("SoftmaxDropoutGrad", softmax_dropout_grad, static={"ratio": 3}, bind=with_axis(1)),
    composite("SparseSoftmaxCrossEntropy", sample_loss),  # which is not ONNX's, in its domain
    composite("SparseSoftmaxCrossEntropyGrad", sample_loss_grad),
    fused("NegativeLogLikelihoodLossInternal", negative_log_likelihood, static={"ignore_index": 3}),
    fused("NegativeLogLikelihoodLossInternal2", negative_log_likelihood, static={"ignore_index": 3}),
    fused("SoftmaxCrossEntropy", distribution_loss),
    fused("SoftmaxCrossEntropyGrad", distribution_loss_grad),
    fused("SoftmaxCrossEntropyLossGrad", class_loss_grad),
    fused("SoftmaxCrossEntropyLossInternal", class_loss, static={"ignore_index": 3}),
    fused("SoftmaxCrossEntropyLossInternalGrad", class_loss_grad, static={"ignore_index": 4}),
    fused("BatchNormInternal", batch_norm_internal),
    fused("BatchNormalizationGrad", batch_norm_grad),
    fused("InvertibleLayerNormalizationGrad", invertible_layer_grad),
    fused("LayerNormalizationGrad", layer_grad),
    fused("SimplifiedLayerNormalizationGrad", simplified_layer_grad),
]  # fmt: skip
