"""Convolutions by columns."""

import math
from typing import Any

import numpy as np

from tests.ops.case import Case, arr, case


def deformed(x: tuple[int, ...], w: tuple[int, ...], *out: int, bias: bool = True, mask: bool = True,
             reach: float = 1.4, label: str = "", **attrs: Any) -> Case:  # fmt: skip
    """DeformConv with offsets up to `reach`; `out` is the shape of its output without batch and channels."""
    taps = attrs.get("offset_group", 1) * int(np.prod(w[2:]))
    offset = arr(x[0], taps * len(out), *out, low=-reach, high=reach)
    weights = arr(x[0], taps, *out, low=0.2, high=1.0) if mask else None
    given = [arr(w[0]) if bias else None, weights]
    while given and given[-1] is None:
        given.pop()
    return case("DeformConv", arr(*x), arr(*w), offset, *given, label=label, **attrs)


def columns(n: int, channels: int, length: int, image: tuple[int, ...], block: tuple[int, ...], **attrs: Any) -> Case:
    """Col2Im."""
    return case("Col2Im", arr(n, channels, length), np.array(image), np.array(block), **attrs)


def windows(image: tuple[int, ...], block: tuple[int, ...], attrs: dict[str, Any]) -> tuple[int, ...]:
    """Number of blocks that fit along each axis of an image."""
    rank, pads = len(image), attrs["pads"]
    spans = [n + pads[i] + pads[i + rank] for i, n in enumerate(image)]
    reach = [(k - 1) * d + 1 for k, d in zip(block, attrs["dilations"], strict=True)]
    return tuple((n - r) // s + 1 for n, r, s in zip(spans, reach, attrs["strides"], strict=True))


GRID: list[dict[str, Any]] = [
    {"strides": strides, "pads": pads, "dilations": dilations}
    for strides in ((1, 1), (2, 1), (1, 3))
    for pads in ((0, 0, 0, 0), (1, 0, 0, 2), (0, 2, 1, 1))
    for dilations in ((1, 1), (2, 1), (1, 2))
]

CASES = [
    *(deformed((1, 2, 3, 4), (1, 2, 2, 2), *windows((3, 4), (2, 2), a), bias=False, mask=False, **a) for a in GRID),
    *(
        deformed((1, 4, 2, 3), (4, 4 // g, 1, 2), *windows((2, 3), (1, 2), a), group=g, offset_group=o, mask=m, **a)
        for a in GRID[4:5]
        for g in (1, 2, 4)
        for o in (1, 2, 4)
        for m in (False, True)
    ),
    *(columns(1, 8, math.prod(windows((4, 5), (2, 2), a)), (4, 5), (2, 2), **a) for a in GRID),
    deformed((1, 1, 3, 3), (1, 1, 2, 2), 2, 2, bias=False, mask=False),
    deformed((2, 2, 4, 3), (3, 2, 2, 2), 3, 2),
    deformed((1, 2, 4, 4), (2, 2, 3, 2), 3, 4, pads=(1, 0, 0, 1), bias=False),
    deformed((1, 2, 5, 6), (2, 2, 2, 3), 3, 2, strides=(2, 3), pads=(0, 1, 1, 0), mask=False),
    deformed((1, 2, 5, 6), (1, 2, 2, 2), 3, 2, dilations=(2, 3), pads=(0, 0, 0, 0), strides=(1, 2), kernel_shape=(2, 2)),
    deformed((1, 4, 3, 3), (2, 2, 2, 2), 2, 2, group=2),
    deformed((1, 4, 3, 3), (2, 4, 2, 2), 2, 2, offset_group=2),
    deformed((2, 4, 3, 3), (4, 2, 2, 1), 2, 3, group=2, offset_group=4),
    deformed((1, 6, 3, 2), (2, 3, 2, 2), 2, 1, group=2, offset_group=3, mask=False),
    deformed((1, 3, 3, 3), (3, 1, 2, 2), 2, 2, group=3, label="depthwise"),
    deformed((1, 1, 3, 3), (1, 1, 2, 2), 2, 2, reach=5.0, label="far outside"),
    case("DeformConv", arr(1, 1, 3, 3), arr(1, 1, 2, 2), np.zeros((1, 8, 3, 3)) + arr(1, 8, 3, 3).round(0) * 0.25 + 0.125,
         pads=(1, 1, 0, 0), label="quarters"),
    deformed((2, 2, 5), (2, 2, 3), 2, strides=(2,)),
    deformed((1, 2, 6), (2, 1, 2), 6, pads=(0, 1), group=2, offset_group=2),
    deformed((1, 2, 3, 2, 3), (1, 2, 2, 1, 2), 2, 2, 2),
    deformed((1, 2, 3, 2, 3), (2, 1, 2, 2, 2), 1, 1, 3, group=2, strides=(2, 1, 1), pads=(0, 0, 1, 0, 0, 0),
             dilations=(2, 1, 1), mask=False),
    deformed((1, 1, 1, 1), (1, 1, 1, 1), 1, 1, label="one entry"),
    deformed((0, 2, 3, 3), (2, 2, 2, 2), 2, 2, label="empty"),
    deformed((1, 2, 3, 3), (0, 2, 2, 2), 2, 2, label="no filters"),
    columns(2, 12, 16, (5, 6), (2, 3)),
    columns(1, 4, 6, (4, 6), (2, 2), strides=(2, 2)),
    columns(1, 8, 20, (5, 7), (2, 2), pads=(1, 0, 0, 2), strides=(1, 2)),
    columns(1, 4, 9, (5, 7), (2, 2), pads=(1, 1, 1, 1), strides=(2, 3), dilations=(1, 2)),
    columns(1, 6, 4, (5, 4), (2, 3), strides=(3, 1), label="gaps and what no block reaches"),
    columns(1, 4, 3, (2, 2), (2, 2), pads=(2, 0, 0, 1), dilations=(1, 2), label="blocks in the padding"),
    columns(2, 6, 5, (7,), (3,)),
    columns(1, 8, 8, (3, 3, 3), (2, 2, 2)),
    columns(1, 4, 9, (2, 5, 4), (1, 2, 2), strides=(2, 2, 1), pads=(0, 1, 0, 0, 0, 0)),
    columns(0, 4, 4, (3, 3), (2, 2), label="empty"),
    columns(1, 0, 4, (3, 3), (2, 2), label="no channels"),
    case("Col2Im", np.arange(16).reshape(1, 4, 4), [3, 3], [2, 2], label="integers"),
    case("Col2Im", arr(1, 4, 4) + 1j * arr(1, 4, 4, seed=1), [3, 3], [2, 2], label="complex"),
]  # fmt: skip
