"""Convolutions, in any rank: Conv and ConvTranspose.

Automatic padding and output shapes become explicit when a node is bound.  Both operators are bilinear and
transposes of each other, so the rules of each are calls of the other; a filter's cotangent is a convolution
of the input with the cotangents, strides and dilations exchanged.
"""

from __future__ import annotations

from typing import Any

from gradcheck_cli import native
from gradcheck_cli.autodiff import symbolic as sym
from gradcheck_cli.autodiff.tape import Var
from gradcheck_cli.errors import ModelError
from gradcheck_cli.graph import Array
from gradcheck_cli.native.geometry import conv_shape, conv_transpose_shape
from gradcheck_cli.op import Op, attributes_of, trained
from gradcheck_cli.op.batching import trailing
from gradcheck_cli.ops.shape import checked
from gradcheck_cli.ops.windows import (
    Ints,
    auto_padding,
    conv_boxes,
    conv_sparsity,
    conv_transpose_boxes,
    conv_transpose_sparsity,
    distributed,
    explicit_pads,
    misfit,
    padded,
    settled,
    steps,
    uncropped,
)


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
    y = native.conv(x, w, strides=strides, pads=pads, dilations=dilations, group=group)
    return biased(y, b, len(strides))


@attributes_of(conv)
def conv_transpose(
    x: Array, w: Array, b: Array | None = None, *, output_padding: Ints = (), output_shape: Ints = (), **geometry: Any
) -> Array:
    """The transpose of `conv` in x: w is `(..., C, M / group, *kernel)`, the result `(..., N, M, *out)`."""
    return biased(native.conv_transpose(x, w, output_padding=output_padding, **geometry), b, len(output_padding))


def biased(y: Array, b: Array | None, rank: int) -> Array:
    """y `(..., N, M, *space)` plus b `(..., M)`."""
    if b is None:
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
    return ct_x, ct_w, *(_to_bias(ct) if sym.wanted(each) else None for each in b)


def conv_transpose_vjp(
    ct: Var, y: Var, x: Var, w: Var, *b: Var, group: int, output_padding: Ints, **geometry: Ints
) -> tuple[Var | None, ...]:
    """ct_x is the convolution of ct, ct_w the correlation of both."""
    ct_x = _leading(ct.tape.apply("Conv", ct, w, group=group, **geometry), x.shape) if sym.wanted(x) else None
    ct_w = correlated(ct, x, w.shape, group, geometry) if sym.wanted(w) else None
    return ct_x, ct_w, *(_to_bias(ct) if sym.wanted(each) else None for each in b)


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


def _to_bias(ct: Var) -> Var:
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


CONV: list[Op] = [
    Op("Conv", conv, conv_vjp, trailing, linear=((0, 1), (2,)), bind=bind_conv, sparsity=conv_sparsity, boxes=conv_boxes,
       roles=trained(1, 2), space="windows", channels=1, cost="taps"),
    Op("ConvTranspose", conv_transpose, conv_transpose_vjp, trailing, linear=((0, 1), (2,)), bind=bind_conv_transpose,
       sparsity=conv_transpose_sparsity, boxes=conv_transpose_boxes, roles=trained(1, 2), space="windows", channels=1,
       cost="spread taps"),
]  # fmt: skip
