"""Convolutions, in any rank, Conv and ConvTranspose, and the windows that they and pools move over x.

Automatic padding and output shapes become explicit when a node is bound.  Both operators are bilinear and
transposes of each other, so the rules of each are calls of the other; a filter's cotangent is a convolution
of the input with the cotangents, strides and dilations exchanged.  Windows are boxes, so that their union is one
along each axis in turn, for convolutions, pools and their transposes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np

from gradcheck_cli import native
from gradcheck_cli.autodiff import symbolic as sym
from gradcheck_cli.autodiff.tape import Var
from gradcheck_cli.errors import ModelError
from gradcheck_cli.graph import Array
from gradcheck_cli.native.geometry import Windows, conv_shape, conv_transpose_shape
from gradcheck_cli.native.reference import combined
from gradcheck_cli.op import Op, attributes_of, require_known, trained
from gradcheck_cli.op.batching import Kernel, Operands, blank, trailing
from gradcheck_cli.op.box_rules import Boxes, NodeShapes, OutputBoxes
from gradcheck_cli.op.boxes import Box, Span, clipped
from gradcheck_cli.op.sparsity import EvaluatedNode, Sets
from gradcheck_cli.ops.shape import checked

Ints = Sequence[int]


def conv(
    x: Array,
    w: Array,
    b: Array | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Ints = (),
    group: int = 1,
    kernel_shape: Ints = (),
    pads: Ints = (),
    strides: Ints = (),
) -> Array:
    """x `(..., N, C, *space)` correlated with w `(..., M, C / group, *kernel)`, plus b `(..., M)`."""
    y = native.conv(_as_wide(x, b), w, strides=strides, pads=pads, dilations=dilations, group=group)
    return biased(y, b, len(strides))


@attributes_of(conv)
def conv_transpose(
    x: Array, w: Array, b: Array | None = None, *, output_padding: Ints = (), output_shape: Ints = (), **geometry: Any
) -> Array:
    """The transpose of `conv` in x: w is `(..., C, M / group, *kernel)`, the result `(..., N, M, *out)`."""
    y = native.conv_transpose(_as_wide(x, b), w, output_padding=output_padding, **geometry)
    return biased(y, b, len(output_padding))


def _as_wide(x: Array, b: Array | None) -> Array:
    """x in the precision of b: both x and w may be narrow constants."""
    return x if b is None else x.astype(np.result_type(x, b.real), copy=False)


def biased(y: Array, b: Array | None, rank: int) -> Array:
    """y `(..., N, M, *space)` plus b `(..., M)`."""
    if b is None or (b.ndim == 1 and not b.any()):  # beside a tangent of another operand it is zero
        return y
    spread = b.reshape(*b.shape[:-1], 1, b.shape[-1], *(1,) * rank)
    return y + spread


def bind_conv(metadata: dict[str, Any], x: Array, w: Array, b: Array | None = None) -> dict[str, Any]:
    """Metadata with explicit strides, dilations and pads; ModelError if the operands do not fit each other."""
    group = metadata.get("group", 1)
    kernel = _kernel(metadata, x, w)
    _check_channels(x.shape[1], w.shape[1] * group, w.shape[0], group)
    _check_bias(b, w.shape[0])
    window = settled(metadata, x.shape[2:], kernel)
    out = conv_shape(x.shape[2:], kernel, **window)
    if min(out) < 1:
        raise misfit(x.shape[2:], kernel, window)
    checked((*x.shape[:2], *padded(x.shape[2:], window)))
    checked((x.shape[0], w.shape[0], *out))
    return {"group": group, **window}


def bind_conv_transpose(metadata: dict[str, Any], x: Array, w: Array, b: Array | None = None) -> dict[str, Any]:
    """Metadata with explicit strides, dilations, pads and output padding, given or implied by an output shape."""
    group = metadata.get("group", 1)
    kernel = _kernel(metadata, x, w)
    _check_channels(x.shape[1], w.shape[0], w.shape[0], group)
    _check_bias(b, w.shape[1] * group)
    window = _settled_transpose(metadata, x.shape[2:], kernel)
    full, out = uncropped(x.shape[2:], kernel, window), conv_transpose_shape(x.shape[2:], kernel, **window)
    if min(out) < 1:
        raise ModelError(f"pads {list(window['pads'])} crop all of the output {full}")
    checked((x.shape[0], w.shape[1] * group, *full))
    checked((x.shape[0], w.shape[1] * group, *out))
    return {"group": group, **window}


def conv_vjp(ct: Var, y: Var, x: Var, w: Var, *b: Var, group: int, **geometry: Ints) -> tuple[Var | None, ...]:
    """ct_x is the transposed convolution of ct, ct_w the correlation of x and ct."""
    ct_x = scattered(ct, w, x, group, geometry) if sym.wanted(x) else None
    ct_w = correlated(x, ct, w.shape, group, geometry) if sym.wanted(w) else None
    return ct_x, ct_w, *(to_bias(ct) if sym.wanted(each) else None for each in b)


def conv_transpose_vjp(
    ct: Var, y: Var, x: Var, w: Var, *b: Var, group: int, output_padding: Ints, **geometry: Ints
) -> tuple[Var | None, ...]:
    """ct_x is the convolution of ct, ct_w the correlation of both."""
    ct_x = _leading(ct.tape.apply("Conv", ct, w, group=group, **geometry), x.shape) if sym.wanted(x) else None
    ct_w = correlated(ct, x, w.shape, group, geometry) if sym.wanted(w) else None
    return ct_x, ct_w, *(to_bias(ct) if sym.wanted(each) else None for each in b)


def scattered(ct: Var, w: Var, x: Var, group: int, geometry: dict[str, Any]) -> Var | None:
    """The transposed convolution of ct in the space of x; None if all windows lie in the padding.

    Along a strided axis the last windows may end before the input does or go beyond it: zeros are added
    behind, or entries cut off.
    """
    rank, kernel = x.ndim - 2, w.shape[2:]
    begins, ends = geometry["pads"][:rank], geometry["pads"][rank:]
    full = uncropped(ct.shape[2:], kernel, geometry)
    if any(f <= begin for f, begin in zip(full, begins, strict=True)):
        return None
    ends = [end if stride == 1 else 0 for end, stride in zip(ends, geometry["strides"], strict=True)]
    y = ct.tape.apply("ConvTranspose", ct, w, group=group, **{**geometry, "pads": (*begins, *ends)})
    exact = ct.tape.general and max(geometry["strides"]) == 1
    return y if exact else sym.fill(y, x, 2)


def correlated(x: Var, ct: Var, shape: Ints, group: int, geometry: dict[str, Any]) -> Var:
    """The cotangent of the filter: the sum over windows of their cotangents times the entries of x in them.

    Channels and the batch change places: x as `(C / group, group * N, *space)`, ct as `(M, N, *out)`.  Entries behind
    the last window are cut off, be it padding or x: they would make sums for taps that the filter does not have.
    """
    begins = geometry["pads"][: len(shape) - 2]
    if ct.tape.general:  # at other sizes there may be entries
        ends = list(geometry["pads"][len(shape) - 2 :])
    else:
        seen = [f - begin for f, begin in zip(uncropped(ct.shape[2:], shape[2:], geometry), begins, strict=True)]
        ends = [max(0, end - n) for end, n in zip(seen, x.shape[2:], strict=True)]
        x = _leading(x, (*x.shape[:2], *(min(n, max(1, end)) for end, n in zip(seen, x.shape[2:], strict=True))))
    exchanged = {"strides": geometry["dilations"], "dilations": geometry["strides"], "pads": (*begins, *ends)}
    images, filters = _by_channel(x, group), _swapped(ct)
    return _leading(_swapped(ct.tape.apply("Conv", images, filters, group=group, **exchanged)), shape)


def _by_channel(x: Var, group: int) -> Var:
    if group == 1:
        return _swapped(x)
    n, c, *space = x.shape
    parts = sym.reshape(x, (n, group, c // group, *space))
    return sym.reshape(sym.transpose(parts, (2, 1, 0, *range(3, parts.ndim))), (c // group, group * n, *space))


def _swapped(x: Var) -> Var:
    return sym.transpose(x, (1, 0, *range(2, x.ndim)))


def _leading(x: Var, shape: Ints) -> Var:
    """The first entries of the spatial axes of x, up to `shape`: strides leave room for more windows."""
    if x.shape[2:] == tuple(shape[2:]) and not x.tape.general:
        return x
    rank = x.ndim - 2
    return sym.slice(x, (0,) * rank, shape[2:], range(2, x.ndim))


def to_bias(ct: Var) -> Var:
    """The cotangent of a bias: the sum over samples and places."""
    return sym.sum(ct, (0, *range(2, ct.ndim)), keepdims=False)


def _kernel(metadata: dict[str, Any], x: Array, w: Array) -> tuple[int, ...]:
    if x.ndim < 3 or w.ndim != x.ndim:
        raise ModelError(f"needs X and W of one rank, at least 3; they have shapes {list(x.shape)} and {list(w.shape)}")
    given = metadata.get("kernel_shape")
    if given and tuple(given) != w.shape[2:]:
        raise ModelError(f"kernel_shape is {list(given)}, but W has shape {list(w.shape)}")
    if min(w.shape[2:]) < 1:
        raise ModelError(f"the kernel of W, of shape {list(w.shape)}, is empty")
    return tuple(w.shape[2:])


def _check_channels(channels: int, expected: int, divided: int, group: int) -> None:
    if group < 1 or divided % group:
        raise ModelError(f"group is {group}, which does not divide the {divided} filters of W")
    if channels != expected:
        raise ModelError(f"X has {channels} channels, but W and group {group} need {expected}")


def _check_bias(b: Array | None, channels: int) -> None:
    if b is not None and b.shape != (channels,):
        raise ModelError(f"B has shape {list(b.shape)}; it needs {[channels]}")


def _settled_transpose(metadata: dict[str, Any], space: Ints, kernel: Ints) -> dict[str, Any]:
    rank, auto_pad = len(space), auto_padding(metadata)
    window = steps(metadata, rank)
    extra = tuple(metadata.get("output_padding") or (0,) * rank)
    if len(extra) != rank or min(extra) < 0:
        raise ModelError(f"output_padding is {list(extra)}; it needs {rank} numbers, none negative")
    full = uncropped(space, kernel, window)
    shape = metadata.get("output_shape") or None
    if shape is None and auto_pad in ("NOTSET", "VALID"):
        pads = explicit_pads(metadata, rank) if auto_pad == "NOTSET" else (0,) * (2 * rank)
        return {**window, "pads": pads, "output_padding": extra}
    target = [n * s for n, s in zip(space, window["strides"], strict=True)] if shape is None else shape
    if len(target) != rank or min(target) < 1:
        raise ModelError(f"output_shape is {list(target)}; it needs {rank} positive numbers")
    totals = [max(0, f + e - t) for f, e, t in zip(full, extra, target, strict=True)]
    if shape is not None:  # a larger one is filled up with zeros behind
        extra = tuple(t - f + total for t, f, total in zip(target, full, totals, strict=True))
    return {**window, "pads": distributed(totals, auto_pad == "SAME_UPPER"), "output_padding": extra}


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
    auto_pad = str(metadata.get("auto_pad") or "NOTSET")
    require_known("auto_pad", auto_pad, ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"), ModelError)
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
    by_channel, group, shape = [b, None if w is None else of_filters(w)], node.metadata["group"], node.shapes[0]
    found = [each.reshape(*each.shape[:1], 1, -1, *(1,) * (len(shape) - 2)) for each in by_channel if each is not None]
    if x is not None:
        words, n, c, *space = x.shape
        by_group = of_groups(np.bitwise_or.reduce(x.reshape(words, n, group, c // group, *space), axis=3))
        found.append(by_group if group == 1 else np.repeat(by_group, shape[1] // group, axis=2))
    return reduce(np.bitwise_or, found)


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


def conv_outline(kernel: Kernel, operands: Operands, metadata: Mapping[str, Any]) -> Array:
    """The outline rule of Conv: the number of windows along each axis."""
    (x, w), window = operands[:2], {k: v for k, v in metadata.items() if k != "group"}
    return blank((x.shape[0], w.shape[0], *conv_shape(x.shape[2:], w.shape[2:], **window)), _dtype_of(operands))


def conv_transpose_outline(kernel: Kernel, operands: Operands, metadata: Mapping[str, Any]) -> Array:
    """The outline rule of ConvTranspose: the space that the windows fill."""
    (x, w), window = operands[:2], {k: v for k, v in metadata.items() if k != "group"}
    space = conv_transpose_shape(x.shape[2:], w.shape[2:], **window)
    return blank((x.shape[0], w.shape[1] * metadata["group"], *space), _dtype_of(operands))


def pool_outline(kernel: Kernel, operands: Operands, metadata: Mapping[str, Any]) -> tuple[Array, ...] | Array:
    """The outline rule of pools: a result for each window, and its position where that is asked for."""
    (x,), outputs = operands, metadata.get("n_outputs", 1)
    y = blank((*x.shape[:2], *(axis.count for axis in along(x, **metadata))), x.dtype)
    return y if "n_outputs" not in metadata else (y, *(blank(y.shape, np.int64) for _ in range(outputs - 1)))


def _dtype_of(operands: Operands) -> np.dtype[Any]:
    return np.result_type(*(x.dtype for x in operands if x is not None))


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


CONV: list[Op] = [
    Op("Conv", conv, conv_vjp, trailing, linear=((0, 1), (2,)), bind=bind_conv, sparsity=conv_sparsity, boxes=conv_boxes,
       outline=conv_outline, widens=True, roles=trained(1, 2), space="windows", channels=1, cost="taps"),
    Op("ConvTranspose", conv_transpose, conv_transpose_vjp, trailing, linear=((0, 1), (2,)), bind=bind_conv_transpose,
       sparsity=conv_transpose_sparsity, boxes=conv_transpose_boxes, outline=conv_transpose_outline, widens=True,
       roles=trained(1, 2), space="windows", channels=1, cost="spread taps"),
]  # fmt: skip
