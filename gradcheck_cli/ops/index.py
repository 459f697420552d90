"""Operators that pick entries: gathers, slices by a condition, one-hot codes.

Indices and conditions are operands too: a rule never reads their values, and sends cotangents back by the scatter that
is the transpose of the pick.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gradcheck_cli.autodiff import symbolic as sym
from gradcheck_cli.autodiff.tape import Var
from gradcheck_cli.errors import ModelError
from gradcheck_cli.graph import Array
from gradcheck_cli.op import Along, Op, deciding, from_end, with_axis, zero
from gradcheck_cli.op.batching import Blank, Kernel, Operands, aligned, blank, like_first, on
from gradcheck_cli.op.sparsity import moved
from gradcheck_cli.ops.shape import checked, scalar


def gather(x: Array, indices: Array, *, axis: int = 0) -> Array:
    """Entries of x along an axis, which is replaced by the axes of `indices`."""
    return np.take(x, indices, axis=axis)


def bind_gather(metadata: dict[str, Any], x: Array, indices: Array) -> dict[str, Any]:
    """Metadata with the axis counted from the end; ModelError for a scalar."""
    if not x.ndim:
        raise ModelError("a scalar has no axis to gather from")
    return with_axis(0)(metadata, x)


def gather_stack(kernel: Kernel, operands: Operands, probed: Sequence[bool], metadata: Any) -> Any:
    """The batching rule: probed indices put the probe axis where the gathered axis was."""
    x, indices = operands
    if all(probed):
        return _gathered_alike(x, indices, x.ndim + metadata["axis"])
    y = kernel(*operands, **metadata)
    return y if probed[0] else np.moveaxis(y, x.ndim + metadata["axis"], 0)


def gather_outline(kernel: Kernel, operands: Operands, metadata: Mapping[str, Any]) -> Array:
    """The outline rule: places that are known have to lie in x."""
    x, indices = operands
    axis = metadata["axis"] + x.ndim
    _require_inside(indices, x.shape[axis])
    return blank((*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]), x.dtype)


def gather_elements_outline(kernel: Kernel, operands: Operands, metadata: Mapping[str, Any]) -> Array:
    """The outline rule, as of `gather`."""
    x, indices = operands
    _require_inside(indices, x.shape[metadata["axis"]])
    return blank(indices.shape, x.dtype)


def _require_inside(indices: Array, length: int) -> None:
    """IndexError for indices beyond an axis, if their numbers are known."""
    if type(indices) is Blank or not indices.size:
        return
    wrong = next((i for i in (indices.max(), indices.min()) if not -length <= i < length), None)
    if wrong is not None:
        raise IndexError(f"index {wrong} is out of bounds for an axis of size {length}")


def _gathered_alike(x: Array, indices: Array, axis: int) -> Array:
    """The gather along an axis (from the front) of each x by the indices of the same probe."""
    probe = np.arange(len(x)).reshape(-1, *(1,) * (indices.ndim - 1))
    y = np.moveaxis(x, axis, 1)[probe, indices]
    places = range(1, indices.ndim)
    return np.moveaxis(y, places, [axis - 1 + i for i in places])


def scatter_back(ct: Var, indices: Var, shape: Sequence[int], axis: int) -> Var:
    """The transpose of a gather along an axis (from the front) of a tensor of this shape."""
    behind = axis + indices.ndim
    rest = (*range(axis), *range(behind, ct.ndim))
    moved = sym.transpose(ct, (*range(axis, behind), *rest))
    zeros = sym.full(ct.tape, (shape[axis], *shape[:axis], *shape[axis + 1 :]), 0, ct.dtype)
    column = sym.unsqueeze(sym.cast(indices, np.int64), (indices.ndim,))
    rows = ct.tape.apply("ScatterND", zeros, column, moved, reduction="add")
    return sym.transpose(rows, (*range(1, axis + 1), 0, *range(axis + 1, len(shape))))


def gather_elements(x: Array, indices: Array, *, axis: int = 0) -> Array:
    """y[i, j, k] = x[i, indices[i, j, k], k] for axis 1; along the others `indices` may be shorter than x."""
    rank = indices.ndim
    window = tuple(slice(None) if i - rank == axis else slice(d) for i, d in enumerate(indices.shape))
    return np.take_along_axis(x[window], indices, axis=axis)


def bind_elements(metadata: dict[str, Any], x: Array, indices: Array) -> dict[str, Any]:
    """Metadata with the axis counted from the end; ModelError if the indices reach beyond x."""
    metadata = with_axis(0)(metadata, x)
    axis = metadata["axis"] + x.ndim
    pairs = zip(indices.shape, x.shape, strict=False)
    if not x.ndim or x.ndim != indices.ndim or any(m > n and i != axis for i, (m, n) in enumerate(pairs)):
        raise ModelError(f"indices of shape {list(indices.shape)} do not fit into {list(x.shape)}")
    return metadata


def gather_elements_vjp(ct: Var, y: Var, x: Var, indices: Var, *, axis: int) -> tuple[Var, None]:
    """ct, added up at the entries that were gathered."""
    zeros = sym.full(ct.tape, x.shape, 0, ct.dtype)
    return ct.tape.apply("ScatterElements", zeros, indices, ct, axis=axis, reduction="add"), None


def gather_nd(x: Array, indices: Array, *, batch_dims: int = 0, rank: int = 0) -> Array:
    """Slices x[b, i] of the last `rank` axes, for each index vector i along the last axis of `indices`."""
    lead = x.ndim - rank
    shape, width = x.shape[lead:], batch_dims + indices.shape[-1]
    rows = x.reshape(*x.shape[:lead], int(np.prod(shape[:width])), *shape[width:])
    return np.take(rows, flat_index(indices, shape, batch_dims), axis=lead)


def gather_nd_outline(kernel: Kernel, operands: Operands, metadata: Mapping[str, Any]) -> Array:
    """The outline rule, as of `gather`."""
    (x, indices), batch = operands, metadata["batch_dims"]
    if type(indices) is not Blank:
        flat_index(indices, x.shape, batch)
    return blank((*indices.shape[:-1], *x.shape[batch + indices.shape[-1] :]), x.dtype)


def flat_index(indices: Array, shape: Sequence[int], batch_dims: int = 0) -> Array:
    """The row-major number of the slice that each index vector names; IndexError out of bounds."""
    dims = np.asarray(shape[batch_dims : batch_dims + indices.shape[-1]], np.int64)
    batch = tuple(shape[:batch_dims])
    position = np.arange(np.prod(batch, dtype=np.int64)).reshape(batch + (1,) * (indices.ndim - 1 - batch_dims))
    for i, length in enumerate(dims):
        index = indices[..., i]
        first, last = index.min(initial=0), index.max(initial=-1)
        if first < -length or last >= length:
            raise IndexError(f"an index is out of bounds for dimensions {dims.tolist()}")
        position = position * length + (np.where(index < 0, index + length, index) if first < 0 else index)
    return np.broadcast_to(position, indices.shape[:-1])


def bind_gather_nd(metadata: dict[str, Any], x: Array, indices: Array) -> dict[str, Any]:
    """Metadata with the number of axes of x behind the batch axes, which index vectors address."""
    batch = metadata.get("batch_dims", 0)
    if not indices.ndim or not x.ndim or not 0 <= batch < min(x.ndim, indices.ndim):
        raise ModelError(f"{batch} batch dimensions do not fit {list(x.shape)} and indices {list(indices.shape)}")
    if x.shape[:batch] != indices.shape[:batch] or not 1 <= indices.shape[-1] <= x.ndim - batch:
        raise ModelError(f"indices of shape {list(indices.shape)} do not fit into {list(x.shape)}")
    return {"batch_dims": batch, "rank": x.ndim}


def gather_nd_stack(kernel: Kernel, operands: Operands, probed: Sequence[bool], metadata: Any) -> Any:
    """The batching rule: if the indices are probed, the probe axis is one more batch axis."""
    if not probed[1]:
        return kernel(*operands, **metadata)
    more = {"batch_dims": metadata["batch_dims"] + 1, "rank": metadata["rank"] + 1}
    return aligned(kernel, operands, probed, more)


def gather_nd_vjp(ct: Var, y: Var, x: Var, indices: Var, *, batch_dims: int, rank: int) -> tuple[Var, None]:
    """ct, added up at the slices that were gathered; batch axes become entries of the index vectors."""
    indices = sym.cast(indices, np.int64)
    shape = (*indices.shape[:-1], 1)
    columns = [sym.expand(along(ct, x.shape[i], i, len(shape)), shape) for i in range(batch_dims)]
    zeros = sym.full(ct.tape, x.shape, 0, ct.dtype)
    return ct.tape.apply("ScatterND", zeros, sym.concat([*columns, indices], -1), ct, reduction="add"), None


def along(like: Var, count: int, axis: int, rank: int) -> Var:
    """0, 1, ... count - 1 along one axis of a tensor of `rank` axes."""
    shape = tuple(count if i == axis % rank else 1 for i in range(rank))
    return sym.reshape(sym.arange(like.tape, count), shape)


def compress(x: Array, condition: Array, *, axis: int | None = None, rank: int = 0) -> Array:
    """The slices along an axis for which the condition holds; without an axis, of x flattened."""
    if axis is None:
        x, axis = x.reshape(*x.shape[: x.ndim - rank], -1), -1
    return np.compress(condition, x, axis=axis)


def bind_compress(metadata: dict[str, Any], x: Array, condition: Array) -> dict[str, Any]:
    """Metadata with the axis counted from the end, if there is one."""
    axis = metadata.get("axis")
    return {"axis": None if axis is None else from_end(axis, x.ndim), "rank": x.ndim}


def compress_vjp(ct: Var, y: Var, x: Var, condition: Var, *, axis: int | None, rank: int) -> tuple[Var, None]:
    """ct at the places where the condition holds, else 0."""
    places = sym.squeeze(ct.tape.apply("NonZero", condition), (0,))
    if axis is not None:
        return scatter_back(ct, places, x.shape, axis + x.ndim), None
    return sym.reshape(scatter_back(ct, places, (x.size,), 0), x.shape), None


def one_hot(indices: Array, values: Array, *, depth: int, axis: int = -1, rank: int = 0) -> Array:
    """values[1] where the new axis counts to the index (modulo `depth` if negative), values[0] elsewhere."""
    places = indices.real.astype(np.int64, copy=False)
    places = np.expand_dims(np.where(places < 0, places + depth, places), axis)
    hot = places == np.arange(depth).reshape(-1, *(1,) * (-axis - 1))
    off, on = (np.reshape(v, (*v.shape, *(1,) * rank)) for v in (values[..., 0], values[..., 1]))
    return np.where(hot, on, off)


def bind_one_hot(metadata: dict[str, Any], indices: Array, values: Array) -> dict[str, Any]:
    """Metadata with the axis counted from the end of the result."""
    depth, rank = int(scalar(metadata["depth"])), indices.ndim + 1
    checked((*indices.shape, depth))
    if values.shape != (2,):
        raise ModelError(f"values are of shape {list(values.shape)}, not [off, on]")
    return {"depth": depth, "axis": from_end(metadata.get("axis", -1), rank), "rank": rank}


def one_hot_outline(kernel: Kernel, operands: Operands, metadata: Mapping[str, Any]) -> Array:
    """The outline rule: a new axis of `depth`."""
    indices, values = operands
    place = metadata["axis"] + metadata["rank"]
    return blank((*indices.shape[:place], metadata["depth"], *indices.shape[place:]), values.dtype)


def one_hot_vjp(ct: Var, y: Var, indices: Var, values: Var, *, depth: int, axis: int, rank: int) -> tuple[None, Var]:
    """ct_values: the sum of ct outside of the hot entries to `off`, that of the hot entries to `on`."""
    code = sym.ints(ct.tape, (0, 1))
    hot = sym.cast(ct.tape.apply("OneHot", indices, np.asarray(depth, np.int64), code, axis=axis), ct.dtype)
    parts = [sym.reshape(sym.sum(part), (1,)) for part in (ct * (1.0 - hot), ct * hot)]
    return None, sym.concat(parts, 0)


def non_zero(x: Array) -> Array:
    """Indices of the entries that are not zero, a column for each; without rows for a scalar."""
    if not x.ndim:
        return np.zeros((0, int(x != 0)), np.int64)
    return np.asarray(np.nonzero(x), np.int64).reshape(x.ndim, -1)


def reverse_sequence(x: Array, sequence_lens: Array, *, time_axis: int = 0, batch_axis: int = 1) -> Array:
    """The first sequence_lens[b] steps of each sequence in reverse order, the others as they are."""
    front = min(time_axis, batch_axis)
    times, lengths = np.arange(x.shape[time_axis]), sequence_lens
    times, lengths = (times[:, None], lengths[None]) if time_axis == front else (times[None], lengths[:, None])
    index = np.where(times < lengths, lengths - 1 - times, times)
    gap, behind = max(time_axis, batch_axis) - front - 1, -1 - max(time_axis, batch_axis)
    index = index.reshape(index.shape[0], *(1,) * gap, index.shape[1], *(1,) * behind)
    return np.take_along_axis(x, index.reshape(*(1,) * (x.ndim - index.ndim), *index.shape), axis=time_axis)


def bind_reverse_sequence(metadata: dict[str, Any], x: Array, sequence_lens: Array) -> dict[str, Any]:
    """Metadata with both axes counted from the end."""
    time, batch = (from_end(metadata.get(k, d), x.ndim) for k, d in [("time_axis", 0), ("batch_axis", 1)])
    if time == batch or sequence_lens.shape != (x.shape[batch],):
        raise ModelError(f"{list(sequence_lens.shape)} lengths do not fit axis {batch} of {list(x.shape)}")
    if (sequence_lens > x.shape[time]).any() or (sequence_lens < 0).any():
        raise ModelError(f"a sequence is longer than the {x.shape[time]} steps of axis {time}")
    return {"time_axis": time, "batch_axis": batch}


def reverse_sequence_vjp(ct: Var, y: Var, x: Var, sequence_lens: Var, **axes: int) -> tuple[Var, None]:
    """ct, reversed in the same way: it is its own inverse."""
    counted = {name: axis + x.ndim for name, axis in axes.items()}
    return ct.tape.apply("ReverseSequence", ct, sequence_lens, **counted), None


def range_(start: Array, limit: Array, delta: Array) -> Array:
    """start + i delta for as long as it lies before `limit`."""
    first, last, step = (scalar(tuple(v.real.ravel().tolist())) for v in (start, limit, delta))
    if step == 0:
        raise ValueError("delta is 0")
    count = max(-((first - last) // step) if start.dtype.kind in "iu" else math.ceil((last - first) / step), 0)
    steps = np.arange(*checked((count,))).astype(start.real.dtype)
    return np.asarray(start.reshape(()) + steps * delta.reshape(())).astype(np.result_type(start, delta), copy=False)


def range_vjp(ct: Var, y: Var, start: Var, limit: Var, delta: Var) -> tuple[Var, None, Var]:
    """The sum of ct to `start`, the sum weighted by i to `delta`; the limit only counts entries."""
    steps = sym.cast(sym.arange(ct.tape, y.size), ct.dtype)
    return sym.reshape(sym.sum(ct), start.shape), None, sym.reshape(sym.sum(ct * steps), delta.shape)


INDEX: list[Op] = [
    Op("Gather", gather, lambda ct, y, x, at, axis: (scatter_back(ct, at, x.shape, axis + x.ndim), None), gather_stack,
       bind=bind_gather, linear=((0,),), sparsity=moved, cuts=deciding(1), integers={1: Along("axis")}, moves="picked",
       outline=gather_outline, cost="picks"),
    Op("GatherElements", gather_elements, gather_elements_vjp, aligned, bind=bind_elements, linear=((0,),), sparsity=moved,
       cuts=deciding(1), integers={1: Along("axis")}, moves="picked", outline=gather_elements_outline, cost="picks"),
    Op("GatherND", gather_nd, gather_nd_vjp, gather_nd_stack, bind=bind_gather_nd, linear=((0,),), sparsity=moved,
       cuts=deciding(1), moves="picked", outline=gather_nd_outline, cost="picks"),
    Op("Compress", compress, compress_vjp, on(0), bind=bind_compress, linear=((0,),), sparsity=moved, cuts=deciding(1),
       sized_by=(1,), moves="selected"),
    Op("OneHot", one_hot, one_hot_vjp, on(0, 1), static={"depth": 1}, bind=bind_one_hot, linear=((1,),),
       branch=lambda at, values, **m: one_hot(at, values * 0 + np.asarray([0, 1], values.dtype), **m),
       cuts=deciding(0), integers={0: Along(None, of=1), 1: (3, 5)}, outline=one_hot_outline, like=2),
    Op("NonZero", non_zero, zero, integral=(0,), sized_by=(0,)),
    Op("ReverseSequence", reverse_sequence, reverse_sequence_vjp, on(0), bind=bind_reverse_sequence, linear=((0,),),
       sparsity=moved, cuts=deciding(1), integers={1: Along("time_axis", lengths=True)}, outline=like_first),
    Op("Range", range_, range_vjp, ordered=True, cuts=deciding(1), integers={1: (2, 3), 2: (1, 1)}, sized_by=(0, 1, 2)),
]  # fmt: skip
