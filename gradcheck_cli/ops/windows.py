"""Where windows of convolutions and pools lie: strides, dilations and pads, and how many entries each sees."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np

from gradcheck_cli.errors import ModelError
from gradcheck_cli.graph import Array
from gradcheck_cli.native.geometry import Windows

Ints = Sequence[int]


def settled(metadata: dict[str, Any], space: Ints, kernel: Ints) -> dict[str, Any]:
    """Strides, dilations and explicit pads of windows that move over `space`."""
    window = steps(metadata, len(space))
    auto_pad = auto_padding(metadata)
    if auto_pad == "NOTSET":
        window["pads"] = explicit_pads(metadata, len(space))
    elif auto_pad == "VALID":
        window["pads"] = (0,) * (2 * len(space))
    else:
        window["pads"] = _same_pads(auto_pad, space, kernel, window)
    return window


def misfit(space: Ints, kernel: Ints, window: dict[str, Any]) -> ModelError:
    """The error for windows longer than the padded axes."""
    return ModelError(f"windows that span {reach(kernel, window)} do not fit the padded input {padded(space, window)}")


def reach(kernel: Ints, window: dict[str, Any]) -> list[int]:
    """How far a window extends along each axis, dilated."""
    return [(k - 1) * d + 1 for k, d in zip(kernel, window["dilations"], strict=True)]


def padded(space: Ints, window: dict[str, Any]) -> list[int]:
    """The lengths of the padded axes."""
    return [n + total for n, total in zip(space, totals(window["pads"]), strict=True)]


def uncropped(windows: Ints, kernel: Ints, window: dict[str, Any]) -> list[int]:
    """How far `windows` windows extend together along each axis."""
    return [(n - 1) * s + r for n, s, r in zip(windows, window["strides"], reach(kernel, window), strict=True)]


def steps(metadata: dict[str, Any], rank: int) -> dict[str, Any]:
    """Strides and dilations, 1 along every axis by default."""
    window = {}
    for keyword in ("strides", "dilations"):
        values = tuple(metadata.get(keyword) or (1,) * rank)
        if len(values) != rank or min(values) < 1:
            raise ModelError(f"{keyword} are {list(values)}; they need {rank} positive numbers")
        window[keyword] = values
    return window


def auto_padding(metadata: dict[str, Any]) -> str:
    """The kind of automatic padding, NOTSET by default."""
    known = ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")
    auto_pad = str(metadata.get("auto_pad") or "NOTSET")
    if auto_pad not in known:
        raise ModelError(f"auto_pad is {auto_pad!r}; known are {', '.join(known)}")
    return auto_pad


def explicit_pads(metadata: dict[str, Any], rank: int) -> tuple[int, ...]:
    """The pads before all axes and those behind, 0 by default."""
    pads = tuple(metadata.get("pads") or (0,) * (2 * rank))
    if len(pads) != 2 * rank or min(pads) < 0:
        raise ModelError(f"pads are {list(pads)}; they need {2 * rank} numbers, none negative")
    return pads


def _same_pads(auto_pad: str, space: Ints, kernel: Ints, window: dict[str, Any]) -> tuple[int, ...]:
    """Pads with which there is a window for every stride begun."""
    sizes = zip(space, window["strides"], reach(kernel, window), strict=True)
    return distributed([max(0, (-(-n // s) - 1) * s + r - n) for n, s, r in sizes], auto_pad == "SAME_UPPER")


def distributed(totals: Ints, upper: bool) -> tuple[int, ...]:
    """Totals of padding shared by both sides; what is odd goes to the upper one, or the lower."""
    begins = [total // 2 if upper else total - total // 2 for total in totals]
    return (*begins, *(total - begin for total, begin in zip(totals, begins, strict=True)))


def totals(pads: Ints) -> list[int]:
    """Pads before and behind each axis together."""
    rank = len(pads) // 2
    return [pads[i] + pads[i + rank] for i in range(rank)]


def along(x: Array, kernel_shape: Ints, strides: Ints, pads: Ints, dilations: Ints, ceil_mode: int) -> list[Windows]:
    """The windows along each spatial axis of x.

    With `ceil_mode` a last window may go beyond the padding, unless it would start there.
    """
    rank, axes = len(kernel_shape), []
    for i, taps in enumerate(kernel_shape):
        length, stride, begin, end = x.shape[i - rank], strides[i], pads[i], pads[rank + i]
        room = length + begin + end - (taps - 1) * dilations[i] - 1
        count = room // stride + 1
        if ceil_mode and room % stride and count * stride < length + begin:
            count += 1
        axes.append(Windows(i - rank, length, taps, stride, begin, end, dilations[i], count))
    return axes


def counts(axes: Sequence[Windows], count_include_pad: int) -> Array:
    """By how many entries each window is divided: one number if all are alike, else one for each window."""
    numbers = reduce(np.multiply.outer, [np.maximum(a.taken(padded=bool(count_include_pad)), 1) for a in axes])
    return np.asarray(numbers.flat[0] if (numbers == numbers.flat[0]).all() else numbers)
