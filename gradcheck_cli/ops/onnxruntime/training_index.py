"""Operators of onnxruntime's training graphs that move entries: derivatives of gathers and slices, padding, pieces.

A derivative of a gather or a slice has the shape of what was read as an input, and adds dY up there.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gradcheck_cli.autodiff import symbolic as sym
from gradcheck_cli.autodiff.tape import Tape, Var
from gradcheck_cli.errors import ModelError
from gradcheck_cli.graph import Array
from gradcheck_cli.op import Op, from_end
from gradcheck_cli.ops.index import bind_elements, bind_gather_nd, gather_elements_vjp, gather_nd_vjp, scatter_back
from gradcheck_cli.ops.onnxruntime.fused import fused
from gradcheck_cli.ops.pad import bind_slice, slice_vjp
from gradcheck_cli.ops.reduce import bind_reduction
from gradcheck_cli.ops.shape import as_tuple, bind_split, checked

Extents = tuple[int, ...]


def gather_grad(indices: Var, dy: Var, *, shape: Extents, axis: int = 0) -> Var:
    """dY added up along an axis where it was gathered."""
    return scatter_back(dy, indices, shape, axis + len(shape))


def bind_gather_grad(metadata: dict[str, Any], indices: Array, dy: Array) -> dict[str, Any]:
    """The axis counted from the end of the shape, with dY of the shape that was gathered."""
    shape = _shape(metadata)
    axis = from_end(metadata.get("axis", 0), len(shape))
    _check(dy, (*shape[: axis + len(shape)], *indices.shape, *shape[axis + len(shape) + 1 :]))
    return {"shape": shape, "axis": axis}


def gather_elements_grad(dy: Var, indices: Var, *, shape: Extents, axis: int = 0) -> Var:
    """dY added up at single entries."""
    return gather_elements_vjp(dy, dy, _zeros(dy, shape), indices, axis=axis)[0]


def bind_gather_elements_grad(metadata: dict[str, Any], dy: Array, indices: Array) -> dict[str, Any]:
    """As for GatherElements, with dY of the shape of the indices."""
    _check(dy, indices.shape)
    return {"shape": _shape(metadata), **_given(metadata, bind_elements, indices)}


def gather_nd_grad(indices: Var, dy: Var, *, shape: Extents, batch_dims: int = 0, rank: int = 0) -> Var:
    """dY added up at the slices that index vectors name."""
    return gather_nd_vjp(dy, dy, _zeros(dy, shape), indices, batch_dims=batch_dims, rank=rank)[0]


def bind_gather_nd_grad(metadata: dict[str, Any], indices: Array, dy: Array) -> dict[str, Any]:
    """As for GatherND, with dY of the shape that was gathered."""
    bound = {"shape": _shape(metadata), **_given(metadata, bind_gather_nd, indices)}
    _check(dy, (*indices.shape[:-1], *bound["shape"][bound["batch_dims"] + indices.shape[-1] :]))
    return bound


def slice_grad(
    dy: Var, *, shape: Extents, starts: Extents, ends: Extents, axes: Extents = (), steps: Extents = ()
) -> Var:
    """dY where it was taken from, zeros elsewhere."""
    (flow,) = slice_vjp(dy, dy, _zeros(dy, shape), starts=starts, ends=ends, axes=axes, steps=steps)
    return sym.identity(flow) if flow is dy else flow


def bind_slice_grad(metadata: dict[str, Any], dy: Array) -> dict[str, Any]:
    """As for Slice, with dY of the shape of its output."""
    shape = _shape(metadata)
    bound = bind_slice(metadata, _like(shape))
    lengths = list(shape)
    for start, end, axis, step in zip(*(bound[k] for k in ("starts", "ends", "axes", "steps")), strict=True):
        lengths[axis] = len(range(start, end, step))
    _check(dy, tuple(lengths))
    return {"shape": shape, **bound}


def flatten_and_unpad(x: Var, indices: Var) -> tuple[Var, Var]:
    """Rows of x, whose first two axes count as one, and the lengths of both."""
    dims = x.shape[:2]
    rows = sym.reshape(x, (math.prod(dims), *x.shape[2:]))
    return x.tape.apply("Gather", rows, indices, axis=0), sym.identity(sym.ints(x.tape, dims))


def pad_and_unflatten(x: Var, indices: Var, *, unflatten_dims: Extents) -> Var:
    """The rows of x at places along one axis, zeros elsewhere; then that axis is two."""
    dims = checked(as_tuple(unflatten_dims))
    if len(dims) != 2 or indices.shape != x.shape[:1]:
        raise ValueError(f"{len(dims)} dimensions and {indices.size} places are given for {x.shape[0]} rows")
    return sym.reshape(scatter_back(x, indices, (math.prod(dims), *x.shape[1:]), 0), (*dims, *x.shape[1:]))


def shrunken_gather(x: Var, indices: Var, *, axis: int = 0) -> Var:
    """Gather, of fewer entries than there are."""
    if x.ndim == 0 or indices.ndim != 1 or indices.size > x.shape[axis]:
        raise ValueError(f"{list(indices.shape)} indices are no vector shorter than axis {axis}")
    return x.tape.apply("Gather", x, indices, axis=axis)


def concat_training(*xs: Var, axis: int) -> tuple[Var, Var]:
    """Tensors one behind the other, and the length of each."""
    lengths = sym.ints(xs[0].tape, [x.shape[axis] for x in xs])
    return sym.identity(xs[0]) if len(xs) == 1 else sym.concat(xs, axis), lengths


def split_training(
    x: Var, *, split: Extents, axis: int = 0, num_outputs: int = 0, n_outputs: int = 1
) -> tuple[Var, ...]:
    """Pieces of given lengths."""
    return (sym.identity(x),) if len(split) == 1 else sym.split(x, split, axis)


def reduce_sum_training(x: Var, *, axes: Extents = (), keepdims: int = 1, noop_with_empty_axes: int = 0) -> Var:
    """The sum over axes."""
    return sym.sum(x, axes, bool(keepdims)) if axes else sym.identity(x)


def broadcast_gradient_args(*, a_shape: Extents = (), b_shape: Extents = (), tape: Tape) -> tuple[Var, Var]:
    """The axes, last to first, over which to sum a cotangent for the shape of either operand of a broadcast."""
    shapes = [as_tuple(shape) for shape in (a_shape, b_shape)]
    whole = np.broadcast_shapes(*shapes)
    a, b = (sym.identity(sym.ints(tape, _stretched(shape, whole))) for shape in shapes)  # equal lists are one constant
    return a, b


def view(x: Var, *shapes: Var) -> tuple[Var, ...]:
    """Pieces of x in a row, each in a shape of its own."""
    dims = [tuple(int(n) for n in shape.tape.guard(shape).ravel()) for shape in shapes]
    sizes = [math.prod(checked(d)) for d in dims]
    if sum(sizes) != x.size:
        raise ValueError(f"shapes {[list(d) for d in dims]} do not make {x.size} entries")
    pieces = sym.split(sym.reshape(sym.identity(x), (x.size,)), sizes, 0)
    return tuple(sym.reshape(piece, shape) for piece, shape in zip(pieces, dims, strict=True))


def _stretched(shape: Extents, whole: Extents) -> list[int]:
    """Axes of the whole along which a shape is repeated, last to first."""
    front = len(whole) - len(shape)
    return [i for i in reversed(range(len(whole))) if i < front or (shape[i - front] == 1 and whole[i] != 1)]


def _shape(metadata: dict[str, Any]) -> Extents:
    return checked(as_tuple(metadata["shape"]))


def _given(metadata: dict[str, Any], bind: Any, indices: Array) -> dict[str, Any]:
    """What the forward operator makes of its metadata at a tensor of that shape."""
    rest = {key: value for key, value in metadata.items() if key != "shape"}
    bound: dict[str, Any] = bind(rest, _like(_shape(metadata)), indices)
    return bound


def _like(shape: Extents) -> Array:
    return np.broadcast_to(np.zeros(()), shape)


def _zeros(dy: Var, shape: Extents) -> Var:
    return sym.full(dy.tape, shape, 0, dy.dtype)


def _check(dy: Array, expected: Extents) -> None:
    if dy.shape != tuple(expected):
        raise ModelError(f"dY has shape {list(dy.shape)}; it needs {list(expected)}")


TRAINING_INDEX: list[Op] = [
    fused("BroadcastGradientArgs", broadcast_gradient_args, static={"a_shape": 0, "b_shape": 1}),
    fused("ConcatTraining", concat_training),
    fused("FlattenAndUnpad", flatten_and_unpad),
    fused("GatherElementsGrad", gather_elements_grad, static={"shape": 1}, bind=bind_gather_elements_grad),
    fused("GatherGrad", gather_grad, static={"shape": 0}, bind=bind_gather_grad),
    fused("GatherNDGrad", gather_nd_grad, static={"shape": 0}, bind=bind_gather_nd_grad),
    fused("PadAndUnflatten", pad_and_unflatten, static={"unflatten_dims": 2}),
    fused("ReduceSumTraining", reduce_sum_training, static={"axes": 1}, bind=bind_reduction),
    fused("ShrunkenGather", shrunken_gather),
    fused("SliceGrad", slice_grad, static={"shape": 1, "starts": 2, "ends": 3, "axes": 4, "steps": 5},
          bind=bind_slice_grad),
    fused("SplitTraining", split_training, static={"split": 1}, bind=bind_split),
    fused("View", view),
]  # fmt: skip
