"""Receptive fields: what windows see of their input, as sets of indices (`gradcheck_cli/op/sparsity.py`) and for boxes.

Windows are boxes, so that their union is one along each axis in turn, for convolutions, pools and their transposes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np

from gradcheck_cli.graph import Array
from gradcheck_cli.native.reference import combined
from gradcheck_cli.op.box_rules import Boxes, Site, Way
from gradcheck_cli.op.boxes import Box, Span, clipped
from gradcheck_cli.op.sparsity import Reading, Sets
from gradcheck_cli.ops.windows import along, uncropped

_POOLED = ("kernel_shape", "strides", "pads", "dilations", "ceil_mode")


def pool_reads(sets: Sets, node: Reading) -> Array:
    """The entries of each window."""
    x = node.whole(sets, 0)
    assert x is not None
    return combined(x, along(x, *(node.metadata[k] for k in _POOLED)), np.bitwise_or, 0)


def conv_reads(sets: Sets, node: Reading) -> Array:
    """The windows in all channels of a group; a filter and a bias of its own for each channel of y."""
    x, w, group = node.whole(sets, 0), node.whole(sets, 1), node.metadata["group"]
    found = [_bias(sets, node)]
    if x is not None:
        assert node.operands[1] is not None
        seen, metadata = _by_group(x, group), node.metadata
        windows = along(
            seen, node.operands[1].shape[2:], metadata["strides"], metadata["pads"], metadata["dilations"], 0
        )
        found.append(_to_channels(combined(seen, windows, np.bitwise_or, 0), node))
    if w is not None:
        found.append(_by_channel(np.bitwise_or.reduce(w.reshape(*w.shape[:2], -1), axis=2), node))
    return reduce(np.bitwise_or, [sets for sets in found if sets is not None])


def conv_transpose_reads(sets: Sets, node: Reading) -> Array:
    """The entries in all channels of a group whose windows reach there; filters and bias by channel of y."""
    x, w, group = node.whole(sets, 0), node.whole(sets, 1), node.metadata["group"]
    found = [_bias(sets, node)]
    if x is not None:
        found.append(_to_channels(_overlaid(_by_group(x, group), node), node))
    if w is not None:
        words, c, m = w.shape[:3]
        filters = np.bitwise_or.reduce(w.reshape(words, group, c // group, m, -1), axis=(2, 4))
        found.append(_by_channel(filters.reshape(words, group * m), node))
    return reduce(np.bitwise_or, [sets for sets in found if sets is not None])


def _overlaid(x: Array, node: Reading) -> Array:
    """The union of windows that each entry fills, cropped to the result."""
    assert node.operands[1] is not None
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


def _to_channels(x: Array, node: Reading) -> Array:
    """Sets by group for the channels of y."""
    group = x.shape[2]
    return x if group == 1 else np.repeat(x, node.shapes[0][1] // group, axis=2)


def _by_channel(sets: Array, node: Reading) -> Array:
    """Sets `(W, M)` for all images and places of y."""
    return sets.reshape(len(sets), 1, sets.shape[1], *(1,) * (len(node.shapes[0]) - 2))


def _bias(sets: Sets, node: Reading) -> Array | None:
    b = node.whole(sets, 2) if len(sets) > 2 else None
    return None if b is None else _by_channel(b, node)


def conv_ways(boxes: Boxes, site: Site) -> Sequence[Way] | None:
    """The windows that see a box, in all channels; zeros are all that lies around it."""
    if boxes[0] is None or any(box is not None for box in boxes[1:]):
        return None
    (x, w), (y,) = site.operands[:2], site.outputs
    assert x is not None
    assert w is not None
    need, out, reached = _seeing(boxes[0][2:], w[2:], site.metadata, y[2:])
    images, own = boxes[0][0], {**site.metadata, "pads": (0,) * (2 * len(need))}
    needs = [(images, Span(0, x[1]), *need), *(None for _ in boxes[1:])]
    terms = math.prod(w[1:])
    return [Way((images, Span(0, y[1]), *out), needs, own, reached=reached, terms=terms, summed=terms)]


def conv_transpose_ways(boxes: Boxes, site: Site) -> Sequence[Way] | None:
    """What the windows of a box fill, in all channels."""
    if boxes[0] is None or any(box is not None for box in boxes[1:]):
        return None
    (x, w), (y,), metadata = site.operands[:2], site.outputs, site.metadata
    assert x is not None
    assert w is not None
    geometry = zip(boxes[0][2:], w[2:], metadata["strides"], metadata["dilations"], metadata["pads"], strict=False)
    out = [Span(s.start * stride - begin, (s.length - 1) * stride + (k - 1) * dilation + 1)
           for s, k, stride, dilation, begin in geometry]  # fmt: skip
    images, rank = boxes[0][0], len(out)
    own = {**metadata, "pads": (0,) * (2 * rank), "output_padding": (0,) * rank}
    needs = [(images, Span(0, x[1]), *boxes[0][2:]), *(None for _ in boxes[1:])]
    terms = max(1, math.prod(w) * math.prod(x[2:]) // math.prod(y[1:]))
    return [Way((images, Span(0, y[1]), *out), needs, own, terms=terms, summed=terms)]


def pool_ways(boxes: Boxes, site: Site) -> Sequence[Way] | None:
    """The windows that see a box, of its own channels; None where windows reach beyond the input and know it."""
    box, metadata = boxes[0], site.metadata
    counted = metadata.get("count_include_pad") and "p" not in metadata
    if box is None or metadata["ceil_mode"] or len(site.outputs) > 1 or (any(metadata["pads"]) and not counted):
        return None
    need, out, reached = _seeing(box[2:], metadata["kernel_shape"], metadata, site.outputs[0][2:])
    own = {**metadata, "pads": (0,) * (2 * len(need))}
    return [Way((*box[:2], *out), [(*box[:2], *need)], own, reached=reached)]


def _seeing(
    box: Box, kernel: Sequence[int], metadata: Mapping[str, Any], space: Sequence[int]
) -> tuple[list[Span], list[Span], Any]:
    """Along each axis what the windows that see a box see, these windows, and whether there are any."""
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
