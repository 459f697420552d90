"""Softmax and the normalizations."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F

from tests.ops.case import arr, case
from tests.ops.torch_pairs.pair import Pair

VARIANCE = {"low": 0.3, "high": 2.0}


def batch_norm(x: Any, scale: Any, b: Any, mean: Any, var: Any) -> Any:
    """With the statistics of the batch."""
    return F.batch_norm(x, None, None, scale, b, training=True, eps=1e-3)


def mean_variance(x: Any, axes: tuple[int, ...]) -> Any:
    """MeanVarianceNormalization as the standard's function body has it."""
    centered = x - x.mean(axes, keepdim=True)
    return centered / (x.square().mean(axes, keepdim=True) - x.mean(axes, keepdim=True) ** 2).sqrt()


def layer_norm(shape: tuple[int, ...], axis: int) -> list[Pair]:
    """LayerNormalization and RMSNormalization from an axis on, with and without a bias."""
    x, size = arr(*shape), shape[axis:]
    scale, b = arr(*size, low=0.5), arr(*size)
    return [
        Pair(
            case("LayerNormalization", x, scale, b, axis=axis, epsilon=1e-2),
            lambda x, w, b: F.layer_norm(x, size, w, b, 1e-2),
        ),
        Pair(case("LayerNormalization", x, scale, axis=axis), lambda x, w: F.layer_norm(x, size, w)),
        Pair(
            case("RMSNormalization", x, scale, axis=axis, epsilon=1e-2),
            lambda x, w: F.rms_norm(x, size, w, 1e-2),
        ),
    ]


def group_norm(shape: tuple[int, ...], groups: int) -> Pair:
    """GroupNormalization with a scale for each channel."""
    x, w, b = arr(*shape), arr(shape[1], low=0.5), arr(shape[1])
    one = case("GroupNormalization", x, w, b, num_groups=groups, epsilon=1e-3)
    return Pair(one, lambda x, w, b: F.group_norm(x, groups, w, b, 1e-3))


def lp(axis: int, p: int) -> Pair:
    """LpNormalization."""
    return Pair(case("LpNormalization", arr(2, 3, 4), axis=axis, p=p), lambda x: F.normalize(x, p, axis))


CHANNELS = (arr(3, low=0.5), arr(3), arr(3), arr(3, **VARIANCE))

PAIRS = [
    *[Pair(case("Softmax", arr(2, 3, 4), axis=a), lambda x, a=a: F.softmax(x, a)) for a in (-1, 0, 1)],
    *[Pair(case("LogSoftmax", arr(2, 3, 4), axis=a), lambda x, a=a: F.log_softmax(x, a)) for a in (-1, 0, 1)],
    Pair(case("Softmax", arr(2, 3, low=-300.0, high=300.0)), lambda x: F.softmax(x, -1)),
    *[
        Pair(
            case("BatchNormalization", arr(*shape), *CHANNELS, epsilon=1e-3),
            lambda x, w, b, mean, var: F.batch_norm(x, mean.detach(), var.detach(), w, b, eps=1e-3),
            ignore=("x3", "x4"),
        )
        for shape in [(2, 3), (2, 3, 4), (2, 3, 4, 2)]
    ],
    Pair(
        case("BatchNormalization", arr(2, 3, 4), *CHANNELS, epsilon=1e-3, label="by hand"),
        lambda x, w, b, mean, var: (x - mean[:, None]) / (var[:, None] + 1e-3).sqrt() * w[:, None] + b[:, None],
    ),
    *[
        Pair(
            case("BatchNormalization", arr(*shape), *CHANNELS, epsilon=1e-3, training_mode=1),
            batch_norm,
            ignore=("x3", "x4"),
        )
        for shape in [(4, 3), (2, 3, 4), (2, 3, 4, 2)]
    ],
    *[
        Pair(
            case("InstanceNormalization", arr(*shape), arr(3, low=0.5), arr(3), epsilon=1e-3),
            lambda x, w, b: F.instance_norm(x, weight=w, bias=b, eps=1e-3),
        )
        for shape in [(2, 3, 5), (2, 3, 4, 2)]
    ],
    *layer_norm((2, 3, 4), -1),
    *layer_norm((2, 3, 4), 1),
    *layer_norm((2, 3, 4), 0),
    *[group_norm((2, 6, 4), groups) for groups in (1, 2, 6)],
    group_norm((2, 4, 3, 2), 2),
    *[
        Pair(
            case("LRN", arr(2, 6, 3, 2), size=size, alpha=0.5, beta=0.6, bias=2.0),
            lambda x, size=size: F.local_response_norm(x, size, 0.5, 0.6, 2.0),
        )
        for size in (1, 3, 5)
    ],
    *[lp(axis, p) for axis in (-1, 0, 1) for p in (1, 2)],
    Pair(
        case("MeanVarianceNormalization", arr(2, 3, 4, 2), axes=(0, 2, 3)),
        lambda x: mean_variance(x, (0, 2, 3)),
        relative=1e-7,  # the standard adds 1e-9 to the deviation
    ),
]
