"""Operators of onnxruntime's training graphs that move entries, and derivatives of convolutions, pools and Resize.

A derivative of a gather or a slice has the shape of the operand as an input, and adds dY up there.  Derivatives of
pools do not get the pool's operand: its shape is the attribute `shape`, which reading a file takes from the file's
declarations (`formats`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from gradcheck_cli.autodiff import symbolic as sym
from gradcheck_cli.autodiff.tape import Tape, Var
from gradcheck_cli.errors import ModelError
from gradcheck_cli.graph import Array
from gradcheck_cli.native.geometry import conv_shape, conv_transpose_shape
from gradcheck_cli.op import Op, attributes_of, composite, deciding, from_end
from gradcheck_cli.ops.conv import (
    along,
    bind_conv,
    bind_conv_transpose,
    conv,
    conv_transpose,
    conv_transpose_vjp,
    conv_vjp,
)
from gradcheck_cli.ops.index import bind_elements, bind_gather_nd, gather_elements_vjp, gather_nd_vjp, scatter_back
from gradcheck_cli.ops.onnxruntime.fused import fused
from gradcheck_cli.ops.pad import bind_slice, slice_vjp
from gradcheck_cli.ops.pool import average_pool, average_pool_vjp, bind_average_pool, bind_max_pool, max_pool, unpooled
from gradcheck_cli.ops.reduce import bind_reduction
from gradcheck_cli.ops.resize import bind_resize, resize, resize_vjp
from gradcheck_cli.ops.shape import as_tuple, bind_split, checked

Ints = tuple[int, ...]


def bind_gather_grad(metadata: dict[str, Any], indices: Array, dy: Array) -> dict[str, Any]:
    """Metadata with the axis counted from the end of the shape; ModelError unless dY has the shape that was gathered."""
    shape = _shape(metadata)
    axis = from_end(metadata.get("axis", 0), len(shape))
    _check(dy, (*shape[: axis + len(shape)], *indices.shape, *shape[axis + len(shape) + 1 :]))
    return {"shape": shape, "axis": axis}


def bind_gather_elements_grad(metadata: dict[str, Any], dy: Array, indices: Array) -> dict[str, Any]:
    """Metadata as for GatherElements; ModelError unless dY has the shape of the indices."""
    _check(dy, indices.shape)
    return {"shape": _shape(metadata), **_given(metadata, bind_elements, indices)}


def bind_gather_nd_grad(metadata: dict[str, Any], indices: Array, dy: Array) -> dict[str, Any]:
    """Metadata as for GatherND; ModelError unless dY has the shape that was gathered."""
    bound = {"shape": _shape(metadata), **_given(metadata, bind_gather_nd, indices)}
    _check(dy, (*indices.shape[:-1], *bound["shape"][bound["batch_dims"] + indices.shape[-1] :]))
    return bound


def slice_grad(dy: Var, *, shape: Ints, starts: Ints, ends: Ints, axes: Ints = (), steps: Ints = ()) -> Var:
    """dY at the entries that were taken, zeros elsewhere."""
    (flow,) = slice_vjp(dy, dy, _zeros(dy, shape), starts=starts, ends=ends, axes=axes, steps=steps)
    return sym.identity(flow) if flow is dy else flow


def bind_slice_grad(metadata: dict[str, Any], dy: Array) -> dict[str, Any]:
    """Metadata as for Slice; ModelError unless dY has the shape of its output."""
    shape = _shape(metadata)
    bound = bind_slice(metadata, _like(shape))
    lengths = list(shape)
    for start, end, axis, step in zip(*(bound[k] for k in ("starts", "ends", "axes", "steps")), strict=True):
        lengths[axis] = len(range(start, end, step))
    _check(dy, tuple(lengths))
    return {"shape": shape, **bound}


def flatten_and_unpad(x: Var, indices: Var) -> tuple[Var, Var]:
    """Rows of x by index, its first two axes counting as one, and the lengths of both."""
    dims = x.shape[:2]
    rows = sym.reshape(x, (math.prod(dims), *x.shape[2:]))
    return x.tape.apply("Gather", rows, indices, axis=0), sym.identity(sym.ints(x.tape, dims))


def pad_and_unflatten(x: Var, indices: Var, *, unflatten_dims: Ints) -> Var:
    """The rows of x put at places along one axis, zeros elsewhere; then that axis is split in two."""
    dims = checked(as_tuple(unflatten_dims))
    if len(dims) != 2 or indices.shape != x.shape[:1]:
        raise ValueError(f"{len(dims)} dimensions and {indices.size} places are given for {x.shape[0]} rows")
    return sym.reshape(scatter_back(x, indices, (math.prod(dims), *x.shape[1:]), 0), (*dims, *x.shape[1:]))


def shrunken_gather(x: Var, indices: Var, *, axis: int = 0) -> Var:
    """Gather of fewer entries than there are."""
    if x.ndim == 0 or indices.ndim != 1 or indices.size > x.shape[axis]:
        raise ValueError(f"{list(indices.shape)} indices are not a vector shorter than axis {axis}")
    return x.tape.apply("Gather", x, indices, axis=axis)


def concat_training(*xs: Var, axis: int) -> tuple[Var, Var]:
    """Tensors concatenated along an axis, and the length of each."""
    lengths = sym.ints(xs[0].tape, [x.shape[axis] for x in xs])
    return sym.identity(xs[0]) if len(xs) == 1 else sym.concat(xs, axis), lengths


def broadcast_gradient_args(*, a_shape: Ints = (), b_shape: Ints = (), tape: Tape) -> tuple[Var, Var]:
    """The axes, last to first, over which to sum a cotangent for the shape of either operand of a broadcast."""
    shapes = [as_tuple(shape) for shape in (a_shape, b_shape)]
    whole = np.broadcast_shapes(*shapes)
    a, b = (sym.identity(sym.ints(tape, _stretched(shape, whole))) for shape in shapes)  # equal lists are one constant
    return a, b


def view(x: Var, *shapes: Var) -> tuple[Var, ...]:
    """Consecutive pieces of x, each in a shape of its own."""
    dims = [tuple(int(n) for n in shape.tape.guard(shape).ravel()) for shape in shapes]
    sizes = [math.prod(checked(d)) for d in dims]
    if sum(sizes) != x.size:
        raise ValueError(f"shapes {[list(d) for d in dims]} do not make {x.size} entries")
    pieces = sym.split(sym.reshape(sym.identity(x), (x.size,)), sizes, 0)
    return tuple(sym.reshape(piece, shape) for piece, shape in zip(pieces, dims, strict=True))


def _stretched(shape: Ints, whole: Ints) -> list[int]:
    """Axes of the whole along which a shape is repeated, last to first."""
    front = len(whole) - len(shape)
    return [i for i in reversed(range(len(whole))) if i < front or (shape[i - front] == 1 and whole[i] != 1)]


def _shape(metadata: dict[str, Any]) -> Ints:
    return checked(as_tuple(metadata["shape"]))


def _given(metadata: dict[str, Any], bind: Any, indices: Array) -> dict[str, Any]:
    """Metadata as the forward operator binds it for a tensor of that shape."""
    rest = {key: value for key, value in metadata.items() if key != "shape"}
    bound: dict[str, Any] = bind(rest, _like(_shape(metadata)), indices)
    return bound


def _like(shape: Ints) -> Array:
    return np.broadcast_to(np.zeros(()), shape)


def _zeros(dy: Var, shape: Ints) -> Var:
    return sym.full(dy.tape, shape, 0, dy.dtype)


def _check(dy: Array, expected: Ints) -> None:
    if dy.shape != tuple(expected):
        raise ModelError(f"dY has shape {list(dy.shape)}; it needs {list(expected)}")


def _check_shape(dy: Array, expected: Ints) -> None:
    if dy.shape != tuple(expected):
        raise ModelError(f"the forward operator gives {list(expected)}, not {list(dy.shape)}")


@attributes_of(conv)
def conv_grad(dy: Var, x: Var, w: Var, **window: Any) -> tuple[Var, ...]:
    """Cotangents of the input, the filter and the bias of Conv."""
    ct_x, *others = conv_vjp(dy, dy, x, w, dy, **window)
    return sym.zeros_like(x) if ct_x is None else ct_x, *(ct for ct in others if ct is not None)


def bind_conv_grad(metadata: dict[str, Any], dy: Array, x: Array, w: Array) -> dict[str, Any]:
    """Metadata as for Conv; ModelError unless dY has the shape of its output."""
    window = bind_conv(metadata, x, w)
    group = window.pop("group")
    _check_shape(dy, (x.shape[0], w.shape[0], *conv_shape(x.shape[2:], w.shape[2:], **window)))
    return {"group": group, **window}


@attributes_of(conv_transpose)
def conv_transpose_grad(dy: Var, x: Var, w: Var, **window: Any) -> tuple[Var | None, ...]:
    """Cotangents of the input, the filter and the bias of ConvTranspose."""
    return conv_transpose_vjp(dy, dy, x, w, dy, **window)


def bind_conv_transpose_grad(metadata: dict[str, Any], dy: Array, x: Array, w: Array) -> dict[str, Any]:
    """Metadata as for ConvTranspose; ModelError unless dY has the shape of its output."""
    window = bind_conv_transpose(metadata, x, w)
    group = window.pop("group")
    _check_shape(dy, (x.shape[0], w.shape[1] * group, *conv_transpose_shape(x.shape[2:], w.shape[2:], **window)))
    return {"group": group, **window}


@attributes_of(max_pool, "n_outputs")
def max_pool_grad(dy: Var, indices: Var, *, shape: Ints = (), storage_order: int = 0, **window: Any) -> Var:
    """dY of each window added to the entry that won, at the positions that MaxPool gives."""
    return unpooled(dy, _row_by_row(indices, shape[2:]) if storage_order else indices, shape)


@attributes_of(average_pool)
def average_pool_grad(dy: Var, *, shape: Ints = (), **window: Any) -> Var:
    """An equal share of dY to every entry of each window."""
    zeros = _zeros(dy, shape)
    (flow,) = average_pool_vjp(dy, dy, zeros, **window)
    return zeros if flow is None else flow


def bind_pool_grad(bind: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """The `bind` of a pool's derivative, by the pool's own; ModelError unless operands have the shape of its output."""

    def bound(metadata: dict[str, Any], *operands: Array) -> dict[str, Any]:
        pooled = _pooled(metadata, operands[0])
        found = bind(metadata, pooled)
        for each in operands:
            _check_shape(each, (*pooled.shape[:2], *(axis.count for axis in along(pooled, **found))))
        return {**found, "shape": pooled.shape}

    return bound


@attributes_of(resize, "sizes")
def resize_grad(dy: Var, x: Var, **settled: Any) -> Var:
    """The cotangent of the input of Resize."""
    (flow,) = resize_vjp(dy, dy, x, **settled)
    return sym.identity(flow) if flow is dy else flow


def bind_resize_grad(metadata: dict[str, Any], dy: Array, x: Array) -> dict[str, Any]:
    """Metadata as for Resize to the shape of dY, by scales or else by the ratio of the lengths."""
    if not metadata.get("scales"):
        if metadata.get("keep_aspect_ratio_policy", "stretch") != "stretch":
            raise ModelError("needs scales: with a keep_aspect_ratio_policy they do not follow from lengths")
        axes = metadata.get("axes")
        metadata["sizes"] = tuple(dy.shape[a] for a in (range(x.ndim) if axes is None else axes))
    bound = bind_resize(metadata, x)
    shape = list(x.shape)
    for sampling in bound["samplings"]:
        shape[sampling.axis] = len(sampling.index)
    _check_shape(dy, tuple(shape))
    return bound


def _pooled(metadata: dict[str, Any], dy: Array) -> Array:
    """A tensor of the shape of the pool's operand: batch and channels as in dY, space as declared."""
    shape = tuple(metadata.get("shape") or ())
    if len(shape) != dy.ndim or dy.ndim < 3 or min(shape[2:]) < 1:
        raise ModelError("needs the shape of its output, of which the model declares all but batch and channels")
    return np.broadcast_to(np.zeros((), dy.dtype), (*dy.shape[:2], *shape[2:]))


def _row_by_row(indices: Var, space: Ints) -> Var:
    """Positions in images counted row by row, from positions counted column by column."""
    size = math.prod(space)
    order = np.arange(size).reshape(space).ravel(order="F")
    place = indices.tape.apply("Mod", indices, size)
    rows = indices.tape.apply("Gather", indices.tape.constant(order), place, axis=0)
    return indices - place + rows


TRAINING_INDEX: list[Op] = [
    fused("BroadcastGradientArgs", broadcast_gradient_args, static={"a_shape": 0, "b_shape": 1}),
    fused("ConcatTraining", concat_training),
    fused("FlattenAndUnpad", flatten_and_unpad),
    fused("GatherElementsGrad", lambda dy, at, *, shape, axis=0:
          gather_elements_vjp(dy, dy, _zeros(dy, shape), at, axis=axis)[0], static={"shape": 1},
          bind=bind_gather_elements_grad, does="dY added up at the entries that were gathered."),
    fused("GatherGrad", lambda at, dy, *, shape, axis=0: scatter_back(dy, at, shape, axis + len(shape)),
          static={"shape": 0}, bind=bind_gather_grad, does="dY added up at the entries along an axis that were gathered."),
    fused("GatherNDGrad", lambda at, dy, *, shape, batch_dims=0, rank=0:
          gather_nd_vjp(dy, dy, _zeros(dy, shape), at, batch_dims=batch_dims, rank=rank)[0], static={"shape": 0},
          bind=bind_gather_nd_grad, does="dY added up at the slices that index vectors name."),
    fused("PadAndUnflatten", pad_and_unflatten, static={"unflatten_dims": 2}),
    fused("ReduceSumTraining", lambda x, *, axes=(), keepdims=1, noop_with_empty_axes=0:
          sym.sum(x, axes, bool(keepdims)) if axes else sym.identity(x), static={"axes": 1}, bind=bind_reduction,
          does="The sum over axes."),
    fused("ShrunkenGather", shrunken_gather),
    fused("SliceGrad", slice_grad, static={"shape": 1, "starts": 2, "ends": 3, "axes": 4, "steps": 5},
          bind=bind_slice_grad),
    fused("SplitTraining", lambda x, *, split=(), axis=0, num_outputs=0, n_outputs=1:
          sym.split(x, split, axis) if len(split) > 1 else (sym.identity(x),), static={"split": 1}, bind=bind_split,
          does="Pieces of given lengths."),
    fused("View", view),
    # Two of them are not ONNX's, in its domain; so was ConvGrad once.
    composite("AveragePoolGrad", average_pool_grad, bind=bind_pool_grad(bind_average_pool)),
    composite("ConvGrad", conv_grad, bind=bind_conv_grad),
    composite("MaxPoolGrad", max_pool_grad, bind=bind_pool_grad(bind_max_pool)),
    fused("ConvGrad", conv_grad, bind=bind_conv_grad),
    fused("ConvTransposeGrad", conv_transpose_grad, bind=bind_conv_transpose_grad),
    fused("ResizeGrad", resize_grad, static={"roi": 2, "scales": 3}, bind=bind_resize_grad, cuts=deciding(1)),
]  # fmt: skip
