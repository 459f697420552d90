"""Windows of convolutions and pools: strides, dilations and pads, sparsity rules and box rules (`gradcheck_cli/op/`).

Windows are boxes, so that their union is one along each axis in turn, for convolutions, pools and their transposes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np

from gradcheck_cli.errors import ModelError
from gradcheck_cli.graph import Array
from gradcheck_cli.native.geometry import Windows
from gradcheck_cli.native.reference import combined
from gradcheck_cli.op.box_rules import Boxes, NodeShapes, OutputBoxes
from gradcheck_cli.op.boxes import Box, Span, clipped
from gradcheck_cli.op.sparsity import EvaluatedNode, Sets

Ints = Sequence[int]


def settled(metadata: dict[str, Any], space: Ints, kernel: Ints) -> dict[str, Any]:
    """Strides, dilations and explicit pads of windows that move over `space`."""
    window = steps(metadata, len(space))
    auto_pad = auto_padding(metadata)
    if auto_pad == "NOTSET":
        window["pads"] = explicit_pads(metadata, len(space))
    elif auto_pad == "VALID":
        window["pads"] = (0,) * (2 * len(space))
    else:  # there is a window for every stride begun
        sizes = zip(space, window["strides"], reach(kernel, window), strict=True)
        missing = [max(0, (-(-n // s) - 1) * s + r - n) for n, s, r in sizes]
        window["pads"] = distributed(missing, auto_pad == "SAME_UPPER")
    return window


def misfit(space: Ints, kernel: Ints, window: dict[str, Any]) -> ModelError:
    """The error for windows longer than the padded axes."""
    return ModelError(f"windows that span {reach(kernel, window)} do not fit the padded input {padded(space, window)}")


def reach(kernel: Ints, window: dict[str, Any]) -> list[int]:
    """The extent of a window along each axis, dilated."""
    return [(k - 1) * d + 1 for k, d in zip(kernel, window["dilations"], strict=True)]


def padded(space: Ints, window: dict[str, Any]) -> list[int]:
    """The lengths of the padded axes."""
    return [n + total for n, total in zip(space, totals(window["pads"]), strict=True)]


def uncropped(windows: Ints, kernel: Ints, window: dict[str, Any]) -> list[int]:
    """The extent of `windows` windows together along each axis."""
    return [(n - 1) * s + r for n, s, r in zip(windows, window["strides"], reach(kernel, window), strict=True)]


def steps(metadata: dict[str, Any], rank: int) -> dict[str, Any]:
    """Metadata with strides and dilations, 1 along every axis by default."""
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


def distributed(totals: Ints, upper: bool) -> tuple[int, ...]:
    """Totals of padding shared by both sides; an odd entry goes to the upper side, or the lower."""
    begins = [total // 2 if upper else total - total // 2 for total in totals]
    return (*begins, *(total - begin for total, begin in zip(totals, begins, strict=True)))


def totals(pads: Ints) -> list[int]:
    """Pads before and behind each axis, added up."""
    rank = len(pads) // 2
    return [pads[i] + pads[i + rank] for i in range(rank)]


def along(
    x: Array, *, kernel_shape: Ints, auto_pad: str = "NOTSET", ceil_mode: int = 0, dilations: Ints = (),
    pads: Ints = (), strides: Ints = (), **other: Any,
) -> list[Windows]:  # fmt: skip
    """The windows along each spatial axis of x, by the attributes of a pool once they are explicit.

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
    """The number of entries each window is divided by: one number if all are equal, else one for each window."""
    numbers = reduce(np.multiply.outer, [np.maximum(a.taken(padded=bool(count_include_pad)), 1) for a in axes])
    return np.asarray(numbers.flat[0] if (numbers == numbers.flat[0]).all() else numbers)


def pool_sparsity(sets: Sets, node: EvaluatedNode) -> Array:
    """The sparsity rule of pools: the entries of each window."""
    x = node.whole(sets, 0)
    return combined(x, along(x, **node.metadata), np.bitwise_or, 0)


def conv_sparsity(sets: Sets, node: EvaluatedNode) -> Array:
    """The sparsity rule of Conv: the window in all channels of a group; filter and bias of the channel of y."""

    def seen(x: Array) -> Array:
        windows = along(x, kernel_shape=node.operands[1].shape[2:], **node.metadata)
        return combined(x, windows, np.bitwise_or, 0)

    return _of_conv(sets, node, seen, lambda w: np.bitwise_or.reduce(w.reshape(*w.shape[:2], -1), axis=2))


def conv_transpose_sparsity(sets: Sets, node: EvaluatedNode) -> Array:
    """The sparsity rule of ConvTranspose: entries in all channels of a group whose windows reach the place."""
    group = node.metadata["group"]

    def of_filters(w: Array) -> Array:
        words, c, m = w.shape[:3]
        return np.bitwise_or.reduce(w.reshape(words, group, c // group, m, -1), axis=(2, 4)).reshape(words, group * m)

    return _of_conv(sets, node, lambda x: _overlaid(x, node), of_filters)


def _of_conv(
    sets: Sets, node: EvaluatedNode, of_groups: Callable[[Array], Array], of_filters: Callable[[Array], Array]
) -> Array:
    """The union of what reaches y from groups of channels of x, from filters by channel of y, and from the bias."""
    x, w, b = (node.whole(sets, i) if i < len(sets) else None for i in range(3))
    found = [] if x is None else [_to_channels(of_groups(_by_group(x, node.metadata["group"])), node)]
    by_channel = [] if w is None else [of_filters(w)]
    by_channel += [] if b is None else [b]
    return reduce(np.bitwise_or, [*found, *(_by_channel(each, node) for each in by_channel)])


def _overlaid(x: Array, node: EvaluatedNode) -> Array:
    """The union over entries of the windows that each fills, cropped to the result."""
    metadata, kernel = node.metadata, node.operands[1].shape[2:]
    space, rank = x.shape[-len(kernel) :], len(kernel)
    for i, full in enumerate(uncropped(space, kernel, dict(metadata))):
        axis, stride, begin = x.ndim - rank + i, metadata["strides"][i], metadata["pads"][i]
        shape = (*x.shape[:axis], full + metadata["output_padding"][i], *x.shape[axis + 1 :])
        whole = np.zeros(shape, x.dtype)
        for start in range(0, kernel[i] * metadata["dilations"][i], metadata["dilations"][i]):
            np.swapaxes(whole, 0, axis)[start : start + (space[i] - 1) * stride + 1 : stride] |= np.swapaxes(x, 0, axis)
        x = np.take(whole, np.arange(begin, shape[axis] - metadata["pads"][rank + i]), axis=axis)
    return x


def _by_group(x: Array, group: int) -> Array:
    """The union over the channels of each group, `(W, N, group, *space)`."""
    words, n, c, *space = x.shape
    return np.asarray(np.bitwise_or.reduce(x.reshape(words, n, group, c // group, *space), axis=3))


def _to_channels(x: Array, node: EvaluatedNode) -> Array:
    """Sets by group, repeated for the channels of y."""
    group = x.shape[2]
    return x if group == 1 else np.repeat(x, node.shapes[0][1] // group, axis=2)


def _by_channel(sets: Array, node: EvaluatedNode) -> Array:
    """Sets `(W, M)` in a shape that broadcasts over all images and places of y."""
    return sets.reshape(len(sets), 1, sets.shape[1], *(1,) * (len(node.shapes[0]) - 2))


def conv_boxes(boxes: Boxes, node: NodeShapes) -> Sequence[OutputBoxes] | None:
    """The box rule of Conv: the windows that see a box, in all channels; around it are zeros."""
    if boxes[0] is None or any(box is not None for box in boxes[1:]):
        return None
    (x, w), (y,) = node.operands[:2], node.outputs
    need, out, reached = _seeing(boxes[0][2:], w[2:], node.metadata, y[2:])
    images, own = boxes[0][0], {**node.metadata, "pads": (0,) * (2 * len(need))}
    needs = [(images, Span(0, x[1]), *need), *(None for _ in boxes[1:])]
    terms = math.prod(w[1:])
    return [OutputBoxes((images, Span(0, y[1]), *out), needs, own, reached=reached, terms=terms, summed=terms)]


def conv_transpose_boxes(boxes: Boxes, node: NodeShapes) -> Sequence[OutputBoxes] | None:
    """The box rule of ConvTranspose: the entries that the windows of a box fill, in all channels."""
    if boxes[0] is None or any(box is not None for box in boxes[1:]):
        return None
    (x, w), (y,), metadata = node.operands[:2], node.outputs, node.metadata
    geometry = zip(boxes[0][2:], w[2:], metadata["strides"], metadata["dilations"], metadata["pads"], strict=False)
    out = [Span(s.start * stride - begin, (s.length - 1) * stride + (k - 1) * dilation + 1)
           for s, k, stride, dilation, begin in geometry]  # fmt: skip
    images, rank = boxes[0][0], len(out)
    own = {**metadata, "pads": (0,) * (2 * rank), "output_padding": (0,) * rank}
    needs = [(images, Span(0, x[1]), *boxes[0][2:]), *(None for _ in boxes[1:])]
    terms = max(1, math.prod(w) * math.prod(x[2:]) // math.prod(y[1:]))
    return [OutputBoxes((images, Span(0, y[1]), *out), needs, own, terms=terms, summed=terms)]


def pool_boxes(boxes: Boxes, node: NodeShapes) -> Sequence[OutputBoxes] | None:
    """The box rule of pools: the windows that see a box, of its own channels; None if padding may matter."""
    box, metadata = boxes[0], node.metadata
    counted = metadata.get("count_include_pad") and "p" not in metadata
    if box is None or metadata["ceil_mode"] or len(node.outputs) > 1 or (any(metadata["pads"]) and not counted):
        return None
    need, out, reached = _seeing(box[2:], metadata["kernel_shape"], metadata, node.outputs[0][2:])
    own = {**metadata, "pads": (0,) * (2 * len(need))}
    return [OutputBoxes((*box[:2], *out), [(*box[:2], *need)], own, reached=reached)]


def _seeing(
    box: Box, kernel: Sequence[int], metadata: Mapping[str, Any], space: Sequence[int]
) -> tuple[list[Span], list[Span], Any]:
    """Along each axis the span that windows seeing a box need, and the span of these; a mask of boxes that any sees."""
    need, out, reached = [], [], np.True_
    geometry = zip(kernel, metadata["strides"], metadata["dilations"], metadata["pads"], strict=False)
    for span, n, (k, stride, dilation, begin) in zip(box, space, geometry, strict=True):
        beyond = (k - 1) * dilation
        first, last = -((beyond - begin - span.start) // stride), (span.start + span.length - 1 + begin) // stride
        count = min((span.length - 1 + beyond) // stride + 1, n)
        start = clipped(first, 0, n - count)
        out.append(Span(start, count))
        need.append(Span(start * stride - begin, (count - 1) * stride + beyond + 1))
        reached = reached & (first <= last) & (last >= 0) & (first < n)
    return need, out, reached
