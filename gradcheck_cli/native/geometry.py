"""Positions of windows: sizes, zero padding, the phases of a transposed convolution, and the taps of a pool."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

Ints = Sequence[int]


def conv_shape(space: Ints, kernel: Ints, strides: Ints, pads: Ints, dilations: Ints) -> tuple[int, ...]:
    """The number of windows along each spatial axis; 0 if the kernel is longer than the padded axis."""
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
    """The index that applies slices to the last axes."""
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
    """x without the entries that negative pads remove."""
    rank = len(pads) // 2
    ends = zip(x.shape[x.ndim - rank :], pads[rank:], strict=True)
    return x[
        trailing(slice(max(0, -begin), max(0, n + min(0, end))) for begin, (n, end) in zip(pads, ends, strict=False))
    ]


class Phase(Struct, frozen=True):
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
    """The phases of one axis, cached."""
    return tuple(_phases(size, out, kernel, stride, pad, dilation))


def margins(axes: Sequence[Sequence[Phase]]) -> Ints:
    """Padding that is enough for all phases of each axis, as `padded` takes it."""
    return [max(0, *(phase.pads[side] for phase in axis)) if axis else 0 for side in (0, 1) for axis in axes]


class Windows(Struct, frozen=True):
    """The windows of a pool along one axis (counted from the end), which is `length` long and padded at both sides."""

    axis: int
    length: int
    taps: int
    stride: int
    begin: int
    end: int
    dilation: int
    count: int

    @property
    def positions(self) -> NDArray[Any]:
        """Positions of the taps of each window, shape `(count, taps)`; positions outside of the axis are padding."""
        starts = np.arange(self.count) * self.stride - self.begin
        return np.asarray(starts[:, None] + np.arange(self.taps) * self.dilation)

    def taken(self, *, padded: bool) -> NDArray[Any]:
        """The number of taps of each window that lie on the axis, or on the padded axis."""
        first, stop = (-self.begin, self.length + self.end) if padded else (0, self.length)
        last = (self.count - 1) * self.stride + (self.taps - 1) * self.dilation - self.begin
        if first <= -self.begin and last < stop:
            return np.full(self.count, self.taps)
        return np.asarray(np.sum((self.positions >= first) & (self.positions < stop), axis=1))

    def first(self) -> NDArray[Any]:
        """The position of each window's first tap that is not in the padding."""
        positions = self.positions
        inside = (positions >= 0) & (positions < self.length)
        return np.asarray(positions[np.arange(self.count), np.argmax(inside, axis=1)])

    def views(self, x: NDArray[Any], fill: Any) -> Iterator[NDArray[Any]]:
        """For each tap, a view of x with the entry that each window has there; `fill` surrounds x."""
        behind = (self.count - 1) * self.stride + (self.taps - 1) * self.dilation + 1 - self.begin - self.length
        x = _surrounded(x, self.axis, self.begin, max(0, behind), fill)
        for start in range(0, self.taps * self.dilation, self.dilation):
            stop = start + (self.count - 1) * self.stride + 1
            yield x[_at(self.axis, slice(start, stop, self.stride))]


def _surrounded(x: NDArray[Any], axis: int, before: int, behind: int, fill: Any) -> NDArray[Any]:
    if not before and not behind:
        return x
    shape = list(x.shape)
    shape[axis] += before + behind
    whole = np.full(shape, fill, x.dtype)
    whole[_at(axis, slice(before, before + x.shape[axis]))] = x
    return whole


def _at(axis: int, part: slice) -> tuple[Any, ...]:
    return (..., part, *(slice(None) for _ in range(-axis - 1)))
