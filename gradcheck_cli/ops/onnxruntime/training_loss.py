"""Losses of class scores in onnxruntime's training graphs, and their derivatives.

Three kinds: classes along the last axis with labels as distributions, or as numbers with a weight for each sample; and
ONNX's own SoftmaxCrossEntropyLoss, with classes along axis 1, weights for classes and an index to ignore.
"""

from __future__ import annotations

import math

import numpy as np

from gradcheck_cli.autodiff import symbolic as sym
from gradcheck_cli.autodiff.tape import Var
from gradcheck_cli.op import DTYPES, Op, composite
from gradcheck_cli.ops.loss import negative_log_likelihood, picked_classes
from gradcheck_cli.ops.onnxruntime.fused import fused

REDUCTIONS = ("mean", "sum", "none")


def distribution_loss(logits: Var, label: Var, *, reduction: str = "mean") -> tuple[Var, Var]:
    """-sum(label log softmax(logits)) of each row, and the log probabilities."""
    log_prob = logits.tape.apply("LogSoftmax", logits, axis=-1)
    losses = -sym.sum(label * log_prob, (-1,), keepdims=False)
    return _reduced(losses, float(math.prod(losses.shape)), reduction), log_prob


def distribution_loss_grad(dy: Var, log_prob: Var, label: Var, *, reduction: str = "mean") -> Var:
    """Of the logits, for labels that sum to 1."""
    return (sym.exp(log_prob) - label) * _share(dy, float(math.prod(log_prob.shape[:-1])), reduction, -1)


def sample_loss(logits: Var, label: Var, weight: Var | None = None, *, reduction: str = "mean") -> tuple[Var, Var]:
    """-log softmax(logits) at the label of each sample times its weight, and the log probabilities."""
    log_prob = logits.tape.apply("LogSoftmax", logits, axis=-1)
    losses = -sym.sum(sym.where(_one_hot(label, logits), log_prob, 0), (-1,), keepdims=False)
    losses = losses if weight is None else losses * weight
    return _reduced(losses, _weights(label, weight), reduction), log_prob


def sample_loss_grad(dy: Var, log_prob: Var, label: Var, weight: Var | None = None, *, reduction: str = "mean") -> Var:
    """Of the logits."""
    apart = sym.exp(log_prob) - sym.cast(_one_hot(label, log_prob), log_prob.dtype)
    share = _share(dy, _weights(label, weight), reduction, -1)
    return apart * share if weight is None else apart * share * sym.unsqueeze(weight, (-1,))


def class_loss(
    scores: Var, labels: Var, weights: Var | None = None, *, ignore_index: int | None = None,
    output_type: int | None = None, reduction: str = "mean",
) -> tuple[Var, Var]:  # fmt: skip
    """SoftmaxCrossEntropyLoss, with the index to ignore as an input."""
    attrs = {"reduction": reduction} | ({} if ignore_index is None else {"ignore_index": ignore_index})
    loss, log_prob = scores.tape.emit("SoftmaxCrossEntropyLoss", (scores, labels, weights), attrs, n_outputs=2)
    return _typed(loss, output_type), _typed(log_prob, output_type)


def class_loss_grad(
    dy: Var, log_prob: Var, labels: Var, weights: Var | None = None, bias: Var | None = None, *,
    ignore_index: int | None = None, output_type: int | None = None, reduction: str = "mean",
) -> Var:  # fmt: skip
    """Of the scores, plus a bias; nothing from a sample that is ignored."""
    picked = picked_classes(labels, log_prob.shape[1], ignore_index)
    hot = sym.cast(picked, log_prob.dtype)
    if weights is not None:
        hot = hot * sym.reshape(weights, (-1, *(1,) * (log_prob.ndim - 2)))
    weight = sym.sum(hot, (1,))
    share = _share(dy, sym.sum(weight, keepdims=False), reduction, 1)
    flow = _typed((sym.exp(log_prob) * weight - hot) * share, output_type)
    return flow if bias is None else flow + bias


def _one_hot(label: Var, like: Var) -> Var:
    """Whether a class is that of a sample, `(..., C)`."""
    classes = like.shape[-1]
    if label.shape != like.shape[:-1] or not ((label.value >= 0) & (label.value < classes)).all():
        raise ValueError(f"labels are from 0 to {classes - 1}, in the shape of the scores without their last axis")
    return sym.equal(sym.unsqueeze(label, (-1,)), label.tape.constant(np.arange(classes, dtype=label.dtype)))


def _weights(label: Var, weight: Var | None) -> Var | float:
    """What the mean is taken over: the sum of all weights."""
    return float(label.size) if weight is None else sym.sum(weight, keepdims=False)


def _reduced(losses: Var, total: Var | float, reduction: str) -> Var:
    _check_reduction(reduction)
    if reduction == "none":
        return losses
    whole = sym.sum(losses, keepdims=False)
    return whole / total if reduction == "mean" else whole


def _share(dy: Var, total: Var | float, reduction: str, axis: int) -> Var:
    """What every sample gets of dY, ready to broadcast along the axis of classes."""
    _check_reduction(reduction)
    if reduction == "none":
        return sym.unsqueeze(dy, (axis,))
    whole = sym.reshape(dy, ())
    return whole / total if reduction == "mean" else whole


def _check_reduction(reduction: str) -> None:
    if reduction not in REDUCTIONS:
        raise ValueError(f"reduction is {reduction!r}; known are {', '.join(REDUCTIONS)}")


def _typed(x: Var, output_type: int | None) -> Var:
    """x in the dtype of that number, or in what is computed with instead."""
    if not output_type:
        return x
    if output_type not in DTYPES:
        raise ValueError(f"output_type {output_type} is not known")
    return sym.cast(x, x.tape.widen(DTYPES[output_type]))


TRAINING_LOSS: list[Op] = [
    composite("SparseSoftmaxCrossEntropy", sample_loss),  # which is not ONNX's, in its domain
    composite("SparseSoftmaxCrossEntropyGrad", sample_loss_grad),
    fused("NegativeLogLikelihoodLossInternal", negative_log_likelihood, static={"ignore_index": 3}),
    fused("NegativeLogLikelihoodLossInternal2", negative_log_likelihood, static={"ignore_index": 3}),
    fused("SoftmaxCrossEntropy", distribution_loss),
    fused("SoftmaxCrossEntropyGrad", distribution_loss_grad),
    fused("SoftmaxCrossEntropyLossGrad", class_loss_grad),
    fused("SoftmaxCrossEntropyLossInternal", class_loss, static={"ignore_index": 3}),
    fused("SoftmaxCrossEntropyLossInternalGrad", class_loss_grad, static={"ignore_index": 4}),
]
