"""Receptive fields: what windows see of their input, as sets of indices (`gradcheck_cli/reads.py`).

Windows are boxes, so that their union is one along each axis in turn, for convolutions, pools and their transposes.
"""

from __future__ import annotations

from functools import reduce

import numpy as np

from gradcheck_cli.graph import Array
from gradcheck_cli.ops.windows import along, combined, uncropped
from gradcheck_cli.reads import Reading, Sets

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
