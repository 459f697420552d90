"""Where the windows of a convolution lie: sizes, zero padding, and the phases of a transposed convolution."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = Sequence[int]


def conv_shape(space: Ints, kernel: Ints, strides: Ints, pads: Ints, dilations: Ints) -> tuple[int, ...]:
    """How many windows fit along each spatial axis; 0 where the kernel is longer than the padded axis."""
    rank = len(space)
    return tuple(
        max(0, (space[i] + pads[i] + pads[i + rank] - (kernel[i] - 1) * dilations[i] - 1) // strides[i] + 1)
        for i in range(rank)
    )


def conv_transpose_shape(
    space: Ints, kernel: Ints, strides: Ints, pads: Ints, dilations: Ints, output_padding: Ints
) -> tuple[int, ...]:
    """The spatial shape from which a convolution with these settings leads to `space`."""
    rank = len(space)
    return tuple(
        max(0, (space[i] - 1) * strides[i] + (kernel[i] - 1) * dilations[i] + 1 + output_padding[i] - cropped)
        for i, cropped in enumerate(pads[i] + pads[i + rank] for i in range(rank))
    )


def trailing(slices: Iterable[Any]) -> tuple[Any, ...]:
    """The index that takes these of the last axes and all of the others."""
    return (..., *slices)


def padded(x: NDArray[Any], pads: Ints) -> NDArray[Any]:
    """x with zeros around its last axes, cropped where a pad is negative; x or a view if nothing is added."""
    if not any(pads):
        return x
    rank = len(pads) // 2
    lead, sizes = x.shape[: x.ndim - rank], x.shape[x.ndim - rank :]
    shape = [max(0, begin + n + end) for begin, n, end in zip(pads[:rank], sizes, pads[rank:], strict=True)]
    if min(pads) < 0:
        x = _cropped(x, pads)
        if max(pads) <= 0:
            return x
    result = np.zeros((*lead, *shape), x.dtype)
    starts = [max(0, begin) for begin in pads[:rank]]
    result[trailing(slice(at, at + n) for at, n in zip(starts, x.shape[x.ndim - rank :], strict=True))] = x
    return result


def _cropped(x: NDArray[Any], pads: Ints) -> NDArray[Any]:
    """What negative pads leave of x."""
    rank = len(pads) // 2
    ends = zip(x.shape[x.ndim - rank :], pads[rank:], strict=True)
    return x[
        trailing(slice(max(0, -begin), max(0, n + min(0, end))) for begin, (n, end) in zip(pads, ends, strict=False))
    ]


@dataclass(frozen=True, slots=True)
class Phase:
    """Outputs of a transposed convolution, a stride apart along one axis, that meet the same taps.

    They are a plain convolution, stride 1, of the input with the reversed `taps`.
    """

    outputs: slice
    taps: slice
    pads: tuple[int, int]
    dilation: int


def _phases(size: int, out: int, kernel: int, stride: int, pad: int, dilation: int) -> Iterator[Phase]:
    """The phases of one axis; outputs that no tap reaches are in none of them.

    Output o takes x[i] * w[tap] wherever o + pad = i * stride + tap * dilation.
    """
    shared = math.gcd(stride, dilation)
    every, spread = stride // shared, dilation // shared
    for start in range(min(stride, out)):
        taps = [tap for tap in range(min(every, kernel)) if (start + pad - tap * dilation) % stride == 0]
        for first in taps:
            count = (kernel - 1 - first) // every + 1
            last = first + (count - 1) * every
            lowest = (start + pad - last * dilation) // stride
            outputs = (out - 1 - start) // stride + 1
            beyond = lowest + (count - 1) * spread + outputs - size
            stop = first - every if first >= every else None
            yield Phase(slice(start, out, stride), slice(last, stop, -every), (-lowest, beyond), spread)


@lru_cache(maxsize=256)
def phases(size: int, out: int, kernel: int, stride: int, pad: int, dilation: int) -> tuple[Phase, ...]:
    """The phases of one axis; outputs that no tap reaches are in none of them."""
    return tuple(_phases(size, out, kernel, stride, pad, dilation))


def margins(axes: Sequence[Sequence[Phase]]) -> Ints:
    """Padding that is enough for all of the phases of each axis, as `padded` takes it."""
    return [max(0, *(phase.pads[side] for phase in axis)) if axis else 0 for side in (0, 1) for axis in axes]
