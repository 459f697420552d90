"""Reductions, running sums, sorting, and losses."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from tests.ops.case import arr, case, ints
from tests.ops.torch_pairs.pair import Pair


def product(x: Any, axes: tuple[int, ...], keep: bool) -> Any:
    """Products over several axes."""
    for axis in sorted((a % x.ndim for a in axes), reverse=True):
        x = x.prod(axis, keepdim=keep)
    return x


REDUCTIONS: list[tuple[str, Any, dict[str, float]]] = [
    ("ReduceSum", lambda x, axes, keep: x.sum(axes, keepdim=keep), {}),
    ("ReduceMean", lambda x, axes, keep: x.mean(axes, keepdim=keep), {}),
    ("ReduceMax", lambda x, axes, keep: x.amax(axes, keepdim=keep), {}),
    ("ReduceMin", lambda x, axes, keep: x.amin(axes, keepdim=keep), {}),
    ("ReduceProd", product, {}),
    ("ReduceL1", lambda x, axes, keep: x.abs().sum(axes, keepdim=keep), {}),
    ("ReduceL2", lambda x, axes, keep: torch.linalg.vector_norm(x, 2, axes, keepdim=keep), {}),
    ("ReduceSumSquare", lambda x, axes, keep: x.square().sum(axes, keepdim=keep), {}),
    ("ReduceLogSum", lambda x, axes, keep: x.sum(axes, keepdim=keep).log(), {"low": 0.1}),
    ("ReduceLogSumExp", lambda x, axes, keep: x.logsumexp(axes, keepdim=keep), {}),
]
AXES = [(0,), (-1,), (0, 2), (2, 1), (0, 1, 2)]


def zeros_at(shape: tuple[int, ...], *places: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Numbers with zeros at some places."""
    x = arr(*shape)
    for place in places:
        x[place] = 0.0
    return x


def running(function: Any, x: Any, axis: int, exclusive: int, reverse: int) -> Any:
    """A running sum or product."""
    x = x.flip(axis) if reverse else x
    if exclusive:
        first = torch.full_like(x.narrow(axis, 0, 1), float(function is torch.cumprod))
        x = torch.cat([first, x.narrow(axis, 0, x.shape[axis] - 1)], axis)
    y = function(x, axis)
    return y.flip(axis) if reverse else y


def running_pair(op: str, function: Any, x: Any, axis: int, exclusive: int, reverse: int) -> Pair:
    """CumSum or CumProd."""
    one = case(op, x, axis, exclusive=exclusive, reverse=reverse)
    return Pair(one, lambda x, _: running(function, x, axis, exclusive, reverse))


def top_k(k: int, axis: int, largest: int) -> Pair:
    """TopK, sorted; with every entry it sorts."""
    one = case("TopK", arr(3, 5, 4), [k], axis=axis, largest=largest, n_outputs=2)
    return Pair(one, lambda x, _: x.topk(k, axis, bool(largest)))


def loss(shape: tuple[int, ...], reduction: str, weighted: bool, ignored: int | None) -> list[Pair]:
    """Both losses of classification."""
    x, labels = arr(*shape), ints(shape[0], *shape[2:], high=shape[1] - 1)
    more = [arr(shape[1], low=0.5)] if weighted else []
    attrs: dict[str, Any] = {"reduction": reduction, **({} if ignored is None else {"ignore_index": ignored})}

    def by(function: Any) -> Any:
        return lambda x, labels, *weight: function(
            x, labels, *(w.detach() for w in weight), **{"ignore_index": -100, **attrs}
        )

    ignore = ("x2",) if weighted else ()
    return [
        Pair(case("SoftmaxCrossEntropyLoss", x, labels, *more, **attrs), by(F.cross_entropy), ignore=ignore),
        Pair(case("NegativeLogLikelihoodLoss", x, labels, *more, **attrs), by(F.nll_loss), ignore=ignore),
    ]


def weighted_loss(reduction: str, ignored: int) -> Pair:
    """A loss spelled out, since torch gives the weights no gradient."""
    attrs: dict[str, Any] = {"reduction": reduction, "ignore_index": ignored}

    def function(x: Any, labels: Any, weight: Any) -> Any:
        each = weight[labels] * (labels != ignored)
        losses = -x.log_softmax(1).gather(1, labels.unsqueeze(1)).squeeze(1) * each
        return {"none": losses, "sum": losses.sum(), "mean": losses.sum() / each.sum()}[reduction]

    one = case("SoftmaxCrossEntropyLoss", arr(5, 3, 2), ints(5, 2, high=2), arr(3, low=0.5), label="by hand", **attrs)
    return Pair(one, function)


PAIRS = [
    *[
        Pair(
            case(op, arr(2, 3, 4, **where), list(axes), keepdims=int(keep)),
            lambda x, _, function=function, axes=axes, keep=keep: function(x, axes, keep),
        )
        for op, function, where in REDUCTIONS
        for axes in AXES
        for keep in (False, True)
    ],
    *[
        Pair(
            case("ReduceProd", x, [1], keepdims=0, label=f"{count} zeros"),
            lambda x, _: x.prod(1),
        )
        for count, x in enumerate([arr(2, 4), zeros_at((2, 4), (0, 1)), zeros_at((2, 4), (0, 1), (0, 3))])
    ],
    Pair(case("ReduceSum", arr(2, 3), keepdims=0), lambda x: x.sum()),
    Pair(case("ReduceSum", arr(2, 3), noop_with_empty_axes=1), lambda x: x),
    *[
        running_pair(op, function, arr(3, 4), axis, exclusive, reverse)
        for op, function in [("CumSum", torch.cumsum), ("CumProd", torch.cumprod)]
        for axis in (0, 1)
        for exclusive in (0, 1)
        for reverse in (0, 1)
    ],
    *[running_pair("CumProd", torch.cumprod, zeros_at((2, 5), (0, 1)), 1, 0, reverse) for reverse in (0, 1)],
    running_pair("CumProd", torch.cumprod, zeros_at((2, 5), (0, 1), (0, 3)), 1, 0, 0),
    *[top_k(k, axis, largest) for k, axis in [(2, -1), (5, 1), (3, 0)] for largest in (0, 1)],
    *[
        pair
        for shape in [(4, 3), (4, 3, 2), (4, 3, 2, 2)]
        for reduction in ("none", "mean", "sum")
        for weighted in (False, True)
        for ignored in (None, 1)
        for pair in loss(shape, reduction, weighted, ignored)
    ],
    *[weighted_loss(reduction, ignored) for reduction in ("none", "mean", "sum") for ignored in (-100, 1)],
]
