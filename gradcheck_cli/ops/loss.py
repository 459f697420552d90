"""Losses of class scores: negative log likelihood and softmax cross entropy.

The class of each sample is picked by comparing its label with all classes, so that a label is a tensor like
any other and an ignored label picks nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gradcheck_cli.autodiff import symbolic as sym
from gradcheck_cli.autodiff.tape import Var
from gradcheck_cli.op import CONSTANT, Along, Op, attributes_of, composite, deciding, require_known

REDUCTIONS = ("none", "sum", "mean")


def negative_log_likelihood(
    log_prob: Var,
    labels: Var,
    weights: Var | None = None,
    *,
    ignore_index: int | None = None,
    reduction: str = "mean",
) -> Var:
    """The loss of log probabilities `(N, C, ...)` at the labels `(N, ...)`, weighted by class."""
    if log_prob.shape[:1] + log_prob.shape[2:] != labels.shape or log_prob.ndim < 2:
        raise ValueError("labels have the shape of the scores without their axis 1")
    picked = picked_classes(labels, log_prob.shape[1], ignore_index)
    losses = -sym.sum(sym.where(picked, log_prob, 0), (1,), keepdims=False)
    if weights is None:
        weight = sym.sum(sym.cast(picked, log_prob.dtype), (1,), keepdims=False)
    else:
        classes = sym.reshape(weights, (-1, *(1,) * (log_prob.ndim - 2)))
        weight = sym.sum(sym.where(picked, classes, 0), (1,), keepdims=False)
        losses = losses * weight
    return reduced(losses, weight, reduction)


@attributes_of(negative_log_likelihood)
def softmax_cross_entropy(scores: Var, labels: Var, weights: Var | None = None, **how: Any) -> tuple[Var, Var]:
    """The negative log likelihood of scores after log softmax, and the log probabilities."""
    log_prob = scores.tape.apply("LogSoftmax", scores, axis=1)
    return negative_log_likelihood(log_prob, labels, weights, **how), log_prob


def picked_classes(labels: Var, classes: int, ignore_index: int | None) -> Var:
    """Mask `(N, C, ...)`: the class is that of the sample."""
    valid = (labels.value >= 0) & (labels.value < classes)
    if not (valid | (labels.value == ignore_index)).all():
        ignored = "" if ignore_index is None else f", or ignore_index, which is {ignore_index}"
        raise ValueError(f"labels are from 0 to {classes - 1}{ignored}")
    numbers = np.arange(classes, dtype=labels.dtype).reshape(-1, *(1,) * (labels.ndim - 1))
    picked = sym.equal(sym.unsqueeze(labels, (1,)), labels.tape.constant(numbers))
    if ignore_index is None or not 0 <= ignore_index < classes:
        return picked
    return sym.and_(picked, labels.tape.constant(numbers != ignore_index))


def reduced(losses: Var, weight: Var | float, reduction: str) -> Var:
    """The losses, their sum, or their mean: the sum over the total weight."""
    require_known("reduction", reduction, REDUCTIONS)
    if reduction == "none":
        return losses
    total = sym.sum(losses, keepdims=False)
    return total if reduction == "sum" else total / total_weight(weight)


def total_weight(weight: Var | float) -> Var | float:
    """The sum of weights; a number is one already."""
    return sym.sum(weight, keepdims=False) if isinstance(weight, Var) else weight


LOSS: list[Op] = [
    composite(name, loss, cuts=deciding(1), integers={1: Along(1)}, roles={CONSTANT: (2,)})
    for name, loss in (
        ("NegativeLogLikelihoodLoss", negative_log_likelihood),
        ("SoftmaxCrossEntropyLoss", softmax_cross_entropy),
    )
]
