"""Convolutions by columns, the entries that windows meet: DeformConv moves the taps, Col2Im adds columns to images."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from gradcheck_cli.autodiff import symbolic as sym
from gradcheck_cli.autodiff.tape import Var
from gradcheck_cli.errors import ModelError
from gradcheck_cli.graph import Array
from gradcheck_cli.native.geometry import conv_shape, padded, trailing
from gradcheck_cli.op import Op, composite, trained
from gradcheck_cli.op.batching import Kernel, Operands, blank, on
from gradcheck_cli.ops.conv import Ints, bind_conv, explicit_pads, misfit, steps
from gradcheck_cli.ops.sampling import LINEAR, extended, image_numbers, meet, near, sample
from gradcheck_cli.ops.shape import as_tuple, checked


def deform_conv(
    x: Var, w: Var, offset: Var, b: Var | None = None, mask: Var | None = None, *, dilations: Ints = (),
    group: int = 1, kernel_shape: Ints = (), offset_group: int = 1, pads: Ints = (), strides: Ints = (),
) -> Var:  # fmt: skip
    """The convolution of x with w whose taps are moved by offsets and weighed by a mask; between entries x is linear.

    `offset` is `(N, offset_group * taps * rank, *out)`, `mask` `(N, offset_group * taps, *out)`.
    """
    (n, c, *space), (filters, _, *kernel) = x.shape, w.shape
    rank, taps, out = len(space), math.prod(kernel), conv_shape(space, kernel, strides, pads, dilations)
    size, images = math.prod(out), n * offset_group
    shifts = sym.reshape(sym.cast(offset, np.result_type(offset.dtype, np.float32)), (images, taps, rank, size))
    axes = []
    for i, length in enumerate(space):
        places = _places(i, kernel, out, strides[i], dilations[i]) - pads[i]
        position = sym.take(shifts, i, 2) + places.astype(shifts.dtype)
        axes.append(extended(meet(near(position, length), LINEAR), length, "zeros"))
    groups = sym.reshape(x, (images, c // offset_group, *space))
    seen = sample(groups, image_numbers(groups, 3), axes)
    if mask is not None:
        seen = seen * sym.reshape(mask, (images, taps, size, 1))
    columns = sym.reshape(sym.transpose(seen, (0, 3, 1, 2)), (n, group, c // group * taps, size))
    y = sym.matmul(sym.reshape(w, (group, filters // group, c // group * taps)), columns)
    y = sym.reshape(y, (n, filters, *out))
    return y if b is None else y + sym.reshape(b, (filters, *(1,) * rank))


def _places(axis: int, kernel: Ints, out: Ints, stride: int, dilation: int) -> Array:
    """Positions of each tap of each window along an axis, `(taps, windows)`, without pads and offsets."""
    tap = np.indices(kernel)[axis].reshape(math.prod(kernel), 1)
    window = np.indices(out)[axis].reshape(1, math.prod(out))
    return np.asarray(window * stride + tap * dilation)


def bind_deform_conv(
    metadata: dict[str, Any], x: Array, w: Array, offset: Array, b: Array | None = None, mask: Array | None = None
) -> dict[str, Any]:
    """Metadata as for a convolution; ModelError if offsets or mask do not fit it."""
    window, count = bind_conv(metadata, x, w, b), metadata.get("offset_group", 1)
    if count < 1 or x.shape[1] % count:
        raise ModelError(f"offset_group is {count}, which does not divide the {x.shape[1]} channels of X")
    geometry = {k: window[k] for k in ("strides", "pads", "dilations")}
    out, taps = conv_shape(x.shape[2:], w.shape[2:], **geometry), count * math.prod(w.shape[2:])
    for name, given, channels in [("offset", offset, taps * (x.ndim - 2)), ("mask", mask, taps)]:
        shape = (x.shape[0], channels, *out)
        if given is not None and given.shape != shape:
            raise ModelError(f"{name} has shape {list(given.shape)}; it needs {list(shape)}")
    return {**window, "offset_group": count}


def col2im(
    x: Array, *, image_shape: Ints, block_shape: Ints, dilations: Ints = (), pads: Ints = (), strides: Ints = ()
) -> Array:
    """Images `(N, C, *image)`: the sum of blocks `(N, C * block, L)`, each in its place."""
    lead, channels = x.shape[:-2], x.shape[-2] // math.prod(block_shape)
    blocks = conv_shape(image_shape, block_shape, strides, pads, dilations)
    columns = x.reshape(*lead, channels, *block_shape, *blocks)
    whole = np.zeros((*lead, channels, *_lengths(image_shape, pads)), x.dtype)
    axes = list(zip(blocks, strides, dilations, strict=True))
    behind = (slice(None),) * len(blocks)
    for tap in np.ndindex(*block_shape) if x.size else ():
        spans = [slice(t * d, t * d + (n - 1) * s + 1, s) for t, (n, s, d) in zip(tap, axes, strict=True)]
        whole[trailing(spans)] += columns[trailing((*tap, *behind))]
    return np.asarray(padded(whole, [-p for p in pads]))


def col2im_outline(kernel: Kernel, operands: Operands, metadata: Mapping[str, Any]) -> Array:
    """The outline rule: the images."""
    (x,) = operands
    return blank((x.shape[0], x.shape[1] // math.prod(metadata["block_shape"]), *metadata["image_shape"]), x.dtype)


def col2im_vjp(
    ct: Var, y: Var, x: Var, *, image_shape: Ints, block_shape: Ints, dilations: Ints, pads: Ints, strides: Ints
) -> tuple[Var]:
    """The cotangent in the place of each block, with padding."""
    if not x.size:
        return (sym.zeros_like(x),)
    rank, lengths = len(image_shape), _lengths(image_shape, pads)
    image = sym.pad(ct, (0, 0, *pads[:rank], 0, 0, *pads[rank:]))
    blocks = conv_shape(image_shape, block_shape, strides, pads, dilations)
    flat = np.zeros((math.prod(block_shape), math.prod(blocks)), np.int64)
    for i, length in enumerate(lengths):
        flat = flat * length + _places(i, block_shape, blocks, strides[i], dilations[i])
    rows = sym.reshape(image, (*y.shape[:2], math.prod(lengths)))
    return (sym.reshape(ct.tape.apply("Gather", rows, flat, axis=2), x.shape),)


def _lengths(image_shape: Ints, pads: Ints) -> list[int]:
    rank = len(image_shape)
    return [n + pads[i] + pads[i + rank] for i, n in enumerate(image_shape)]


def bind_col2im(metadata: dict[str, Any], x: Array) -> dict[str, Any]:
    """Metadata, all explicit; ModelError if the blocks do not fit the image."""
    image, block = (as_tuple(metadata[k]) for k in ("image_shape", "block_shape"))
    if not 0 < len(image) == len(block) or min(block) < 1 or min(image) < 0:
        raise ModelError(f"block_shape {list(block)} does not fit image_shape {list(image)}")
    window = {**steps(metadata, len(image)), "pads": explicit_pads(metadata, len(image))}
    blocks, taps = conv_shape(image, block, **window), math.prod(block)
    if min(blocks) < 1:
        raise misfit(image, block, window)
    if x.ndim != 3 or x.shape[1] % taps or x.shape[2] != math.prod(blocks):
        expected = f"(N, C * {taps}, {math.prod(blocks)})"
        raise ModelError(f"columns of shape {list(x.shape)} do not fit: {expected} is needed")
    checked((x.shape[0], x.shape[1] // taps, *_lengths(image, window["pads"])))
    return {"image_shape": image, "block_shape": block, **window}


COLUMNS: list[Op] = [
    composite("DeformConv", deform_conv, bind=bind_deform_conv, roles=trained(1, 3), space="windows", channels=1,
              elsewhere="rough"),
    Op("Col2Im", col2im, col2im_vjp, on(0), static={"image_shape": 1, "block_shape": 2}, bind=bind_col2im,
       linear="each", outline=col2im_outline),
]  # fmt: skip
