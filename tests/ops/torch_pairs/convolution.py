"""Convolution and pooling in one to three dimensions."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from tests.ops.case import arr, case
from tests.ops.torch_pairs.pair import Pair, spatial_pad

CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
TRANSPOSED = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}
MAX_POOL = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
AVERAGE_POOL = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}

CONVS: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((2, 3, 7), (4, 3, 3), {}),
    ((2, 3, 7), (4, 3, 3), {"pads": (1, 2), "strides": (2,)}),
    ((2, 3, 7), (4, 3, 2), {"dilations": (3,), "pads": (0, 1)}),
    ((1, 4, 8), (6, 2, 3), {"group": 2, "strides": (3,), "pads": (2, 0)}),
    ((2, 3, 5, 6), (4, 3, 3, 2), {}),
    ((2, 3, 5, 6), (4, 3, 1, 1), {"strides": (2, 3)}),
    ((2, 3, 5, 6), (4, 3, 3, 3), {"pads": (1, 1, 1, 1), "strides": (2, 2)}),
    ((2, 3, 5, 6), (4, 3, 3, 2), {"pads": (0, 1, 2, 3), "strides": (2, 1)}),
    ((2, 3, 8, 9), (4, 3, 3, 2), {"pads": (2, 0, 1, 1), "strides": (2, 3), "dilations": (2, 3)}),
    ((2, 4, 5, 6), (4, 1, 3, 3), {"group": 4, "pads": (1, 1, 1, 1)}),
    ((1, 4, 5, 6), (8, 1, 2, 3), {"group": 4, "strides": (1, 2), "pads": (1, 0, 0, 1)}),
    ((1, 4, 6, 6), (6, 2, 3, 3), {"group": 2, "strides": (2, 2), "dilations": (1, 2)}),
    ((1, 2, 7, 8), (3, 2, 2, 3), {"strides": (3, 3)}),
    ((1, 2, 4, 4), (3, 2, 4, 4), {}),
    ((1, 2, 4, 5, 3), (3, 2, 2, 3, 1), {}),
    ((1, 2, 4, 5, 6), (2, 1, 2, 2, 3), {"pads": (1, 0, 2, 0, 1, 1), "strides": (2, 1, 3), "group": 2}),
    ((1, 2, 5, 5, 5), (3, 2, 2, 2, 2), {"dilations": (2, 1, 3), "pads": (1, 1, 1, 0, 0, 0)}),
]

TRANSPOSES: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((2, 3, 5), (3, 4, 3), {}),
    ((2, 3, 5), (3, 4, 3), {"strides": (2,), "output_padding": (1,), "pads": (1, 0)}),
    ((2, 3, 4, 5), (3, 2, 3, 2), {}),
    ((2, 3, 4, 5), (3, 2, 3, 3), {"strides": (2, 3), "pads": (1, 1, 1, 1), "output_padding": (1, 2)}),
    ((2, 3, 4, 5), (3, 2, 3, 2), {"strides": (2, 2), "pads": (0, 1, 2, 1)}),
    ((2, 3, 4, 5), (3, 2, 2, 3), {"dilations": (2, 3), "pads": (1, 0, 0, 2)}),
    ((1, 4, 4, 3), (4, 3, 3, 3), {"group": 2, "strides": (2, 1), "output_padding": (1, 0)}),
    ((1, 4, 4, 3), (4, 1, 3, 2), {"group": 4, "strides": (3, 3), "pads": (1, 1, 0, 0)}),
    ((1, 2, 3, 3), (2, 3, 1, 1), {"strides": (2, 2)}),
    ((1, 2, 3, 4, 2), (2, 3, 2, 1, 3), {"strides": (1, 2, 2), "pads": (0, 0, 1, 1, 0, 0)}),
    ((1, 2, 2, 3, 2), (2, 1, 2, 2, 2), {"group": 2, "strides": (2, 2, 2), "output_padding": (1, 0, 1)}),
]

POOLS: list[tuple[tuple[int, ...], dict[str, Any]]] = [
    ((2, 3, 8), {"kernel_shape": (3,)}),
    ((2, 3, 8), {"kernel_shape": (3,), "strides": (2,), "pads": (1, 1), "ceil_mode": 1}),
    ((2, 3, 6, 7), {"kernel_shape": (2, 3)}),
    ((2, 3, 6, 7), {"kernel_shape": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1)}),
    ((2, 3, 6, 8), {"kernel_shape": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1), "ceil_mode": 1}),
    ((1, 2, 7, 9), {"kernel_shape": (2, 4), "strides": (3, 3), "ceil_mode": 1}),
    ((1, 2, 7, 9), {"kernel_shape": (2, 3), "strides": (2, 1), "pads": (1, 0, 0, 1)}),
    ((1, 2, 4, 5, 6), {"kernel_shape": (2, 3, 2), "strides": (2, 1, 3), "pads": (1, 1, 0, 1, 1, 0)}),
    ((1, 2, 4, 5, 6), {"kernel_shape": (3, 2, 2), "strides": (2, 2, 3), "ceil_mode": 1}),
]

DILATED: list[tuple[tuple[int, ...], dict[str, Any]]] = [
    ((1, 2, 9), {"kernel_shape": (3,), "dilations": (2,), "strides": (2,), "pads": (1, 1)}),
    ((1, 2, 8, 9), {"kernel_shape": (3, 2), "dilations": (2, 3), "ceil_mode": 1, "strides": (2, 2)}),
]


def conv(x: Any, w: Any, b: Any, *, pads: Any = (), strides: Any = 1, dilations: Any = 1, group: int = 1) -> Any:
    """Conv by torch, padded beforehand."""
    return CONV[x.ndim - 2](spatial_pad(x, pads), w, b, stride=strides, dilation=dilations, groups=group)


def transposed(
    x: Any,
    w: Any,
    b: Any,
    *,
    pads: Any = (),
    strides: Any = 1,
    dilations: Any = 1,
    output_padding: Any = 0,
    group: int = 1,
) -> Any:
    """ConvTranspose by torch, cropped afterwards."""
    apply = TRANSPOSED[x.ndim - 2]
    full = apply(x, w, b, stride=strides, dilation=dilations, output_padding=output_padding, groups=group)
    return spatial_pad(full, tuple(-width for width in pads))


def symmetric(pads: tuple[int, ...]) -> bool:
    """The same width before and behind every axis."""
    return pads[: len(pads) // 2] == pads[len(pads) // 2 :]


def max_pool(
    x: Any, *, kernel_shape: Any, strides: Any = 1, pads: Any = (), dilations: Any = 1, ceil_mode: int = 0
) -> Any:
    """MaxPool by torch; asymmetric padding beforehand."""
    half = pads[: len(pads) // 2] or 0
    if pads and not symmetric(pads):
        x, half = spatial_pad(x, pads, -torch.inf), 0
    apply = MAX_POOL[x.ndim - 2]
    return apply(x, kernel_shape, strides, half, dilations, ceil_mode=bool(ceil_mode))


def average_pool(
    x: Any,
    *,
    kernel_shape: Any,
    strides: Any = 1,
    pads: Any = (),
    ceil_mode: int = 0,
    count_include_pad: int = 0,
) -> Any:
    """AveragePool by torch; of padded ones and of a mask where the padding is asymmetric and not counted."""
    apply = AVERAGE_POOL[x.ndim - 2]
    if not pads or symmetric(pads):
        half = pads[: len(pads) // 2] or 0
        options = {"ceil_mode": bool(ceil_mode), "count_include_pad": bool(count_include_pad)}
        return apply(x, kernel_shape, strides, half, **options)
    sums = apply(spatial_pad(x, pads), kernel_shape, strides)
    return sums if count_include_pad else sums / apply(spatial_pad(torch.ones_like(x), pads), kernel_shape, strides)


def conv_pair(op: str, function: Any, x: tuple[int, ...], w: tuple[int, ...], attrs: dict[str, Any]) -> Pair:
    """A convolution with a bias."""
    channels = w[0] if op == "Conv" else w[1] * attrs.get("group", 1)
    one = case(op, arr(*x), arr(*w), arr(channels), **attrs)
    return Pair(one, lambda *operands: function(*operands, **attrs))


def pool_pair(op: str, function: Any, x: tuple[int, ...], **attrs: Any) -> Pair:
    """A pooling operator."""
    return Pair(case(op, arr(*x), **attrs), lambda x: function(x, **attrs))


def fold_pair(columns: tuple[int, ...], image: tuple[int, ...], block: tuple[int, ...], attrs: dict[str, Any]) -> Pair:
    """Col2Im by torch, onto the padded image, which is cropped afterwards."""
    pads = attrs.get("pads", (0, 0, 0, 0))
    whole = tuple(length + pads[i] + pads[i + 2] for i, length in enumerate(image))
    options = {"stride": attrs.get("strides", 1), "dilation": attrs.get("dilations", 1)}

    def fold(x: Any, *_: Any) -> Any:
        return spatial_pad(F.fold(x, whole, block, **options), tuple(-width for width in pads))

    return Pair(case("Col2Im", arr(*columns), list(image), list(block), **attrs), fold)


FOLDS: list[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((2, 12, 16), (5, 6), (2, 3), {}),
    ((1, 8, 9), (5, 7), (2, 2), {"pads": (1, 1, 1, 1), "strides": (2, 3), "dilations": (1, 2)}),
    ((1, 8, 16), (5, 7), (2, 2), {"pads": (2, 0, 1, 1), "strides": (2, 2)}),
    ((2, 6, 6), (4, 5), (3, 1), {"pads": (0, 1, 0, 0), "strides": (1, 2), "dilations": (1, 3)}),
]

GLOBAL = [
    ("GlobalAveragePool", lambda x: x.mean((2, 3), keepdim=True)),
    ("GlobalMaxPool", lambda x: x.amax((2, 3), keepdim=True)),
    ("GlobalLpPool", lambda x: x.square().sum((2, 3), keepdim=True).sqrt()),
]

PAIRS = [
    *[conv_pair("Conv", conv, *given) for given in CONVS],
    *[conv_pair("ConvTranspose", transposed, *given) for given in TRANSPOSES],
    *[pool_pair("MaxPool", max_pool, x, **attrs) for x, attrs in [*POOLS, *DILATED]],
    *[
        pool_pair("AveragePool", average_pool, x, **attrs, count_include_pad=included)
        for x, attrs in POOLS
        for included in (0, 1)
    ],
    Pair(case("LpPool", arr(1, 2, 6, 7), kernel_shape=(2, 3), p=2), lambda x: F.lp_pool2d(x, 2, (2, 3), 1)),
    Pair(
        case("LpPool", arr(1, 2, 6, 7, low=0.2), kernel_shape=(2, 3), strides=(2, 2), p=3),
        lambda x: F.lp_pool2d(x, 3, (2, 3), 2),
    ),
    *[Pair(case(op, arr(2, 3, 4, 5)), function) for op, function in GLOBAL],
    *[fold_pair(*given) for given in FOLDS],
]
