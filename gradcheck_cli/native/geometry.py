"""Where the windows of a convolution lie: sizes, zero padding, and the phases of a transposed convolution."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
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
    rank = len(pads) // 2
    sizes = x.shape[x.ndim - rank :]
    inside = tuple(slice(max(0, -pads[i]), max(0, sizes[i] + min(0, pads[i + rank]))) for i in range(rank))
    kept: NDArray[Any] = x[trailing(inside)]
    if max(pads, default=0) <= 0:
        return kept
    shape = tuple(max(0, sizes[i] + pads[i] + pads[i + rank]) for i in range(rank))
    result = np.zeros(x.shape[: x.ndim - rank] + shape, x.dtype)
    starts = [max(0, pads[i]) for i in range(rank)]
    ends = [starts[i] + kept.shape[x.ndim - rank + i] for i in range(rank)]
    result[trailing(map(slice, starts, ends))] = kept
    return result


@dataclass(frozen=True, slots=True)
class Phase:
    """Outputs of a transposed convolution, a stride apart along one axis, that meet the same taps.

    They are a plain convolution, stride 1, of the input with the reversed `taps`.
    """

    outputs: slice
    taps: slice
    pads: tuple[int, int]
    dilation: int


def phases(size: int, out: int, kernel: int, stride: int, pad: int, dilation: int) -> Iterator[Phase]:
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


def phase_grid(
    space: Ints, out: Ints, kernel: Ints, strides: Ints, pads: Ints, dilations: Ints
) -> Iterator[tuple[Phase, ...]]:
    """One phase for each spatial axis, in all combinations; they do not overlap."""
    axes = zip(space, out, kernel, strides, pads[: len(space)], dilations, strict=True)
    return itertools.product(*(list(phases(*axis)) for axis in axes))
