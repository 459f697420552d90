"""Derivatives of convolutions, pools and Resize in onnxruntime's training graphs: the rules of their operators.

Those of pools do not get what the pool has read: the shape of their output is the attribute `shape`, which reading a
file takes from what it declares (`formats`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from gradcheck_cli.autodiff import symbolic as sym
from gradcheck_cli.autodiff.tape import Var
from gradcheck_cli.errors import ModelError
from gradcheck_cli.graph import Array
from gradcheck_cli.op import Op, composite, deciding
from gradcheck_cli.ops.conv import bind_conv, bind_conv_transpose, conv_transpose_vjp, conv_vjp
from gradcheck_cli.ops.onnxruntime.fused import fused
from gradcheck_cli.ops.pool import average_pool_vjp, bind_average_pool, bind_max_pool, windows_of
from gradcheck_cli.ops.resize import Sampling, bind_resize, resize_vjp
from gradcheck_cli.ops.windows import Ints, padded, reach, totals, uncropped


def conv_grad(
    dy: Var, x: Var, w: Var, *, auto_pad: str = "NOTSET", dilations: Ints = (), group: int = 1,
    kernel_shape: Ints = (), pads: Ints = (), strides: Ints = (),
) -> tuple[Var, ...]:  # fmt: skip
    """To the input, the filter and the bias of Conv."""
    ct_x, *others = conv_vjp(dy, dy, x, w, dy, group=group, strides=strides, pads=pads, dilations=dilations)
    return sym.zeros_like(x) if ct_x is None else ct_x, *(ct for ct in others if ct is not None)


def bind_conv_grad(metadata: dict[str, Any], dy: Array, x: Array, w: Array) -> dict[str, Any]:
    """As for Conv, with dY of the shape of its output."""
    window = bind_conv(metadata, x, w)
    sizes = zip(padded(x.shape[2:], window), reach(w.shape[2:], window), window["strides"], strict=True)
    _check_shape(dy, (x.shape[0], w.shape[0], *((n - r) // s + 1 for n, r, s in sizes)))
    return window


def conv_transpose_grad(
    dy: Var, x: Var, w: Var, *, auto_pad: str = "NOTSET", dilations: Ints = (), group: int = 1,
    kernel_shape: Ints = (), output_padding: Ints = (), output_shape: Ints = (), pads: Ints = (), strides: Ints = (),
) -> tuple[Var | None, ...]:  # fmt: skip
    """To the input, the filter and the bias of ConvTranspose."""
    geometry = {"strides": strides, "pads": pads, "dilations": dilations, "output_padding": output_padding}
    return conv_transpose_vjp(dy, dy, x, w, dy, group=group, **geometry)


def bind_conv_transpose_grad(metadata: dict[str, Any], dy: Array, x: Array, w: Array) -> dict[str, Any]:
    """As for ConvTranspose, with dY of the shape of its output."""
    window = bind_conv_transpose(metadata, x, w)
    full = uncropped(x.shape[2:], w.shape[2:], window)
    sizes = zip(full, window["output_padding"], totals(window["pads"]), strict=True)
    _check_shape(dy, (x.shape[0], w.shape[1] * window["group"], *(f + extra - crop for f, extra, crop in sizes)))
    return window


def max_pool_grad(
    dy: Var, indices: Var, *, shape: Ints = (), kernel_shape: Ints, auto_pad: str = "NOTSET", ceil_mode: int = 0,
    dilations: Ints = (), pads: Ints = (), storage_order: int = 0, strides: Ints = (),
) -> Var:  # fmt: skip
    """dY of each window added to its winner, which `indices` name as MaxPool gives them."""
    if storage_order:
        indices = _row_by_row(indices, shape[2:])
    zeros = sym.full(dy.tape, (math.prod(shape),), 0, dy.dtype)
    flat = [sym.reshape(v, (dy.size,)) for v in (indices, dy)]
    return sym.reshape(dy.tape.apply("ScatterElements", zeros, *flat, axis=0, reduction="add"), shape)


def bind_max_pool_grad(metadata: dict[str, Any], dy: Array, indices: Array) -> dict[str, Any]:
    """As for MaxPool, with dY and the indices of the shape of its output."""
    pooled = _pooled(metadata, dy)
    bound = bind_max_pool(metadata, pooled)
    for each in (dy, indices):
        _check_shape(each, (*pooled.shape[:2], *(axis.count for axis in windows_of(pooled, bound))))
    return {**bound, "shape": pooled.shape}


def average_pool_grad(
    dy: Var, *, shape: Ints = (), kernel_shape: Ints, auto_pad: str = "NOTSET", ceil_mode: int = 0,
    count_include_pad: int = 0, dilations: Ints = (), pads: Ints = (), strides: Ints = (),
) -> Var:  # fmt: skip
    """An equal share of dY to every entry of each window."""
    geometry = {"strides": strides, "pads": pads, "dilations": dilations}
    zeros = sym.full(dy.tape, shape, 0, dy.dtype)
    (flow,) = average_pool_vjp(
        dy, dy, zeros, kernel_shape=kernel_shape, ceil_mode=ceil_mode, count_include_pad=count_include_pad, **geometry
    )
    return zeros if flow is None else flow


def bind_average_pool_grad(metadata: dict[str, Any], dy: Array) -> dict[str, Any]:
    """As for AveragePool, with dY of the shape of its output."""
    pooled = _pooled(metadata, dy)
    bound = bind_average_pool(metadata, pooled)
    _check_shape(dy, (*pooled.shape[:2], *(axis.count for axis in windows_of(pooled, bound))))
    return {**bound, "shape": pooled.shape}


def resize_grad(
    dy: Var, x: Var, *, roi: tuple[float, ...] | None = None, scales: tuple[float, ...] | None = None,
    antialias: int = 0, axes: Ints | None = None, coordinate_transformation_mode: str = "half_pixel",
    cubic_coeff_a: float = -0.75, exclude_outside: int = 0, extrapolation_value: float = 0.0,
    keep_aspect_ratio_policy: str = "stretch", mode: str = "nearest", nearest_mode: str = "round_prefer_floor",
    samplings: Sequence[Sampling] = (),
) -> Var:  # fmt: skip
    """To the input of Resize."""
    (flow,) = resize_vjp(dy, dy, x, samplings=samplings, extrapolation_value=extrapolation_value, mode=mode)
    return sym.identity(flow) if flow is dy else flow


def bind_resize_grad(metadata: dict[str, Any], dy: Array, x: Array) -> dict[str, Any]:
    """As for Resize, to the shape of dY, by scales or else by the ratio of the lengths."""
    if not metadata.get("scales"):
        if metadata.get("keep_aspect_ratio_policy", "stretch") != "stretch":
            raise ModelError("needs scales: with a keep_aspect_ratio_policy lengths do not tell them")
        axes = metadata.get("axes")
        metadata["sizes"] = tuple(dy.shape[a] for a in (range(x.ndim) if axes is None else axes))
    bound = bind_resize(metadata, x)
    shape = list(x.shape)
    for sampling in bound["samplings"]:
        shape[sampling.axis] = len(sampling.index)
    _check_shape(dy, tuple(shape))
    return bound


def _pooled(metadata: dict[str, Any], dy: Array) -> Array:
    """A tensor of the shape of what the pool has read: batch and channels as in dY, space as declared."""
    shape = tuple(metadata.get("shape") or ())
    if len(shape) != dy.ndim or dy.ndim < 3 or min(shape[2:]) < 1:
        raise ModelError("needs the shape of its output, of which the model declares all but batch and channels")
    return np.broadcast_to(np.zeros((), dy.dtype), (*dy.shape[:2], *shape[2:]))


def _row_by_row(indices: Var, space: Ints) -> Var:
    """Positions in images that count column by column (the first spatial axis fastest), row by row."""
    size = math.prod(space)
    order = np.arange(size).reshape(space).ravel(order="F")
    place = indices.tape.apply("Mod", indices, size)
    rows = indices.tape.apply("Gather", indices.tape.constant(order), place, axis=0)
    return indices - place + rows


def _check_shape(dy: Array, expected: Ints) -> None:
    if dy.shape != tuple(expected):
        raise ModelError(f"the forward operator gives {list(expected)}, not {list(dy.shape)}")


TRAINING_WINDOWS: list[Op] = [
    # Two of them are not ONNX's, in its domain; so was ConvGrad once.
    composite("AveragePoolGrad", average_pool_grad, bind=bind_average_pool_grad),
    composite("ConvGrad", conv_grad, bind=bind_conv_grad),
    composite("MaxPoolGrad", max_pool_grad, bind=bind_max_pool_grad),
    fused("ConvGrad", conv_grad, bind=bind_conv_grad),
    fused("ConvTransposeGrad", conv_transpose_grad, bind=bind_conv_transpose_grad),
    fused("ResizeGrad", resize_grad, static={"roi": 2, "scales": 3}, bind=bind_resize_grad, cuts=deciding(1)),
]
