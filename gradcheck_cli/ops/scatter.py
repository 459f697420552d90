"""Operators that write updates into a copy of a tensor, at places that another operand names.

Both scatters become one: rows of the data, the number of the row for each update, and the updates.
Leading axes of data and updates are scattered alike, so that a stack of probes costs one call.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from gradcheck_cli import native
from gradcheck_cli.autodiff import symbolic as sym
from gradcheck_cli.autodiff.tape import Var
from gradcheck_cli.errors import ModelError
from gradcheck_cli.graph import Array
from gradcheck_cli.op import Op, Vjp, attributes_of, composite, deciding, from_end, require_known
from gradcheck_cli.op.batching import Blank, Kernel, Operands, OutlineRule, aligned, blank, loop
from gradcheck_cli.op.sparsity import EvaluatedNode, Sets, SparsityRule
from gradcheck_cli.ops.index import along, bind_elements, flat_index

Rows: TypeAlias = tuple[Array, Array, Array]  # data (L, N, *inner), row numbers (M,), updates (L, M, *inner)
REDUCTIONS: dict[str, Any] = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def combine(data: Array, index: Array, updates: Array, reduction: str) -> Array:
    """The data with every update written to its row, or combined with the value there."""
    added = _added(data, index, updates) if reduction == "add" else None
    if added is not None:
        return added
    order: Any = "F" if data.ndim == 2 else "C"  # for single entries, so that those of all probes are adjacent
    out = np.array(data, dtype=np.result_type(data, updates), order=order)
    rows, new = out.swapaxes(0, 1), np.asarray(updates, order=order).swapaxes(0, 1)
    if reduction == "none":
        rows[index] = new
        return out
    for turn in turns(index):
        rows[index[turn]] = REDUCTIONS[reduction](rows[index[turn]], new[turn])
    return out


def _added(data: Array, index: Array, updates: Array) -> Array | None:
    """The data with updates added, row by row; None where that does not run in C++."""
    row = math.prod(data.shape[2:])
    made = native.added(data.reshape(*data.shape[:2], row), index, updates.reshape(*updates.shape[:2], row))
    return None if made is None else made.reshape(data.shape)


def turns(index: Array) -> list[Array]:
    """Numbers of the updates in groups without duplicates: the first of every row, the second ones, ..."""
    order = np.argsort(index, kind="stable")
    first = np.flatnonzero(np.diff(index[order], prepend=-1))
    nth = np.arange(index.size) - np.repeat(first, np.diff(first, append=index.size))
    ends = np.cumsum(np.bincount(nth))
    return np.split(order[np.argsort(nth, kind="stable")], ends[:-1]) if index.size else []


def winner(data: Array, index: Array, updates: Array, reduction: str) -> Array:
    """The origin of each extremum: -1 for the data, else the number of the update; the first at a tie."""
    if reduction not in ("max", "min"):
        return np.broadcast_to(False, data.shape)
    data, updates = data.real, updates.real
    best = combine(data, index, updates, reduction)
    none = updates[0].size
    numbers = np.where(updates == best[:, index], np.arange(none).reshape(updates.shape[1:]), none)
    return combine(np.where(data == best, -1, none), index, numbers, "min")


def combine_near_real(data: Array, index: Array, updates: Array, reduction: str) -> Array:
    """The function `combine` for complex operands near the real axis: an extremum follows the real winner."""
    if reduction not in ("max", "min") or not index.size:
        return combine(data, index, updates, reduction)
    which = winner(data, index, updates, reduction)
    flat = updates.reshape(updates.shape[0], updates[0].size)
    places = which.reshape(which.shape[0], data[0].size).clip(0, flat.shape[1] - 1)
    return np.where(which < 0, data, np.take_along_axis(flat, places, axis=1).reshape(data.shape))


def slices(data: Array, indices: Array, updates: Array, *, rank: int = 0) -> Rows:
    """Rows for ScatterND: index vectors name slices of the data."""
    lead, width = data.ndim - rank, indices.shape[-1]
    shape, count = data.shape[lead:], int(np.prod(data.shape[:lead]))
    index = flat_index(indices, shape).ravel()
    inner = int(np.prod(shape[width:]))
    rows = data.reshape(count, int(np.prod(shape[:width])), inner)
    return rows, index, updates.reshape(count, index.size, inner)


def entries(data: Array, indices: Array, updates: Array, *, rank: int = 0, axis: int = 0) -> Rows:
    """Rows for ScatterElements: single entries, with the index in place of the position along `axis`."""
    lead, axis = data.ndim - rank, axis + rank
    shape, count = data.shape[lead:], int(np.prod(data.shape[:lead]))
    grid: list[Array] = list(np.indices(indices.shape, sparse=True))
    grid[axis] = np.where(indices < 0, indices + shape[axis], indices)
    if ((grid[axis] < 0) | (grid[axis] >= shape[axis])).any():
        raise IndexError(f"an index is out of bounds for axis {axis} with size {shape[axis]}")
    index = np.zeros((), np.int64)
    for position, length in zip(grid, shape, strict=True):
        index = index * length + position
    return data.reshape(count, int(np.prod(shape))), index.ravel(), updates.reshape(count, index.size)


def scattering(rows: Callable[..., Rows], function: Callable[..., Array]) -> Kernel:
    """The kernel that applies a function of rows to operands."""

    @attributes_of(rows)
    def kernel(data: Array, indices: Array, updates: Array, *, reduction: str = "none", **place: int) -> Array:
        return function(*rows(data, indices, updates, **place), reduction).reshape(data.shape)

    return kernel


def scatter_outline(rows: Callable[..., Rows]) -> OutlineRule:
    """The outline rule: the data's shape; places that are known have to lie in it."""

    def outlined(kernel: Kernel, operands: Operands, metadata: Mapping[str, Any]) -> Array:
        data, indices, updates = operands
        if type(indices) is not Blank:
            rows(data, indices, updates, **{name: n for name, n in metadata.items() if name != "reduction"})
        return blank(data.shape, np.result_type(data, updates))

    return outlined


def scatter_sparsity(rows: Callable[..., Rows]) -> SparsityRule:
    """The sparsity rule: the data at the same place, and every update for that place."""

    def united(data: Array, index: Array, updates: Array, reduction: str) -> Array:
        out = data.copy()
        np.bitwise_or.at(out.swapaxes(0, 1), index, updates.swapaxes(0, 1))
        return out

    def read(sets: Sets, node: EvaluatedNode) -> Array:
        words = next(len(s) for s in sets if s is not None)
        old, new = (
            np.zeros((words, *node.operands[i].shape), np.uint64) if sets[i] is None else node.whole(sets, i)
            for i in (0, 2)
        )
        return scattering(rows, united)(old, node.operands[1], new, **node.metadata)

    return read


def bind_scatter_nd(metadata: dict[str, Any], data: Array, indices: Array, updates: Array) -> dict[str, Any]:
    """Metadata with the rank of the data; ModelError for updates that do not fit."""
    width = indices.shape[-1] if indices.ndim else 0
    if not 1 <= width <= data.ndim or updates.shape != (*indices.shape[:-1], *data.shape[width:]):
        raise _misfit(data, indices, updates)
    return {"reduction": _known(metadata), "rank": data.ndim}


def bind_scatter_elements(metadata: dict[str, Any], data: Array, indices: Array, updates: Array) -> dict[str, Any]:
    """Metadata with the axis counted from the end and the rank of the data; ModelError for updates that do not fit."""
    if updates.shape != indices.shape:
        raise _misfit(data, indices, updates)
    axis = bind_elements(metadata, data, indices)["axis"]
    return {"axis": axis, "reduction": _known(metadata), "rank": data.ndim}


def _misfit(data: Array, indices: Array, updates: Array) -> ModelError:
    shapes = f"indices {list(indices.shape)} and data {list(data.shape)}"
    return ModelError(f"updates of shape {list(updates.shape)} do not fit {shapes}")


def _known(metadata: dict[str, Any]) -> str:
    reduction = metadata.get("reduction", "none")
    require_known("reduction", reduction, ("none", *REDUCTIONS), ModelError)
    return str(reduction)


def scatter_stack(kernel: Kernel, operands: Operands, probed: Sequence[bool], metadata: Any) -> Any:
    """The batching rule: data and updates both get the probe axis; with probed indices it is one more axis of the data."""
    # the branch of an extremum numbers the updates of one probe
    if probed[1] and metadata["reduction"] in ("max", "min"):
        return loop(kernel, operands, probed, metadata)
    if probed[1]:
        return aligned(kernel, operands, probed, {**metadata, "rank": metadata["rank"] + 1})
    pair = operands[::2], probed[::2]
    return aligned(lambda data, updates: kernel(data, operands[1], updates, **metadata), *pair, {})


def scatter_nd_stack(kernel: Kernel, operands: Operands, probed: Sequence[bool], metadata: Any) -> Any:
    """The batching rule of ScatterND: as of all scatters, but probed index vectors begin with the number of a probe."""
    data, indices, updates = operands
    if probed[1] and metadata["reduction"] not in ("max", "min"):
        number = np.arange(len(indices)).reshape(-1, *(1,) * (indices.ndim - 1))
        column = np.broadcast_to(number, (*indices.shape[:-1], 1))
        indices = np.concatenate([column, indices], axis=-1)
    return scatter_stack(kernel, (data, indices, updates), probed, metadata)


def scatter_vjp(op: str, inverse: str) -> Vjp:
    """The rule of a scatter, by itself and by the gather at the same places."""

    def vjp(
        ct: Var, y: Var, data: Var, indices: Var, updates: Var, *, reduction: str, rank: int, **place: int
    ) -> tuple[Var, None, Var]:
        def gather(x: Var) -> Var:
            return x.tape.apply(inverse, x, indices, **place)

        def scatter(x: Var, new: Var, how: str) -> Var:
            return x.tape.apply(op, x, indices, new, reduction=how, **place)

        if reduction == "add":
            return ct, None, gather(ct)
        if reduction == "mul":
            return _product_cts(ct, data, updates, gather, scatter)
        if reduction in ("max", "min"):
            return _extremum_cts(ct, y, data, updates, gather, scatter)
        return scatter(ct, sym.zeros_like(updates), "none"), None, _written(gather(ct), data, updates, gather, scatter)

    return vjp


def _written(ct: Var, data: Var, updates: Var, gather: Any, scatter: Any) -> Var:
    """The cotangents of the updates that are left in the result: of duplicates one overwrites the others."""
    number = data.tape.constant(np.arange(updates.size, dtype=np.int64).reshape(updates.shape))
    places = sym.full(data.tape, data.shape, 0, np.int64)
    return sym.where(sym.equal(gather(scatter(places, number, "none")), number), ct, 0)


def _product_cts(ct: Var, data: Var, updates: Var, gather: Any, scatter: Any) -> tuple[Var, None, Var]:
    """ct times the product of all other factors, by a division.

    Factors that are 0 are handled apart: a single zero is multiplied as itself, so that a derivative flows to it too;
    with two or more the product has none.
    """
    is_zero = sym.equal(updates, 0)
    factors, zeros, ones = sym.where(is_zero, 1, updates), sym.where(is_zero, updates, 0), sym.cast(is_zero, np.int64)
    count = gather(scatter(sym.full(ct.tape, data.shape, 0, np.int64), ones, "add")) - ones
    other_zero = gather(scatter(sym.zeros_like(data), zeros, "add")) - zeros
    rest = gather(ct * scatter(data, factors, "mul")) / factors
    by_data = ct * scatter(sym.ones_like(data), updates, "mul")
    with_zeros = sym.where(sym.equal(count, 1), rest * other_zero, 0)
    return by_data, None, sym.where(sym.equal(count, 0), rest, with_zeros)


def _extremum_cts(ct: Var, y: Var, data: Var, updates: Var, gather: Any, scatter: Any) -> tuple[Var, None, Var]:
    """ct to the data if they equal the result, else to the first update that does."""
    kept = sym.equal(data, y)
    numbers = sym.reshape(sym.arange(ct.tape, updates.size), updates.shape)
    found = sym.where(sym.equal(updates, gather(y)), numbers, updates.size)
    none = sym.full(ct.tape, data.shape, updates.size, np.int64)
    first = gather(sym.where(kept, -1, scatter(none, found, "min")))
    return sym.where(kept, ct, 0), None, sym.where(sym.equal(first, numbers), gather(ct), 0)


def tensor_scatter(
    past_cache: Var, update: Var, write_indices: Var | None = None, *, mode: str = "linear", axis: int = -2
) -> Var:
    """The cache with `update` written along an axis, from a start index for each entry of the batch."""
    rank, length, count = past_cache.ndim, past_cache.shape[axis], update.shape[axis]
    index = along(update, count, axis, rank)
    if write_indices is not None:
        index = index + sym.reshape(write_indices, (past_cache.shape[0], *(1,) * (rank - 1)))
    index = update.tape.apply("Mod", index, length) if mode == "circular" else index
    return past_cache.tape.apply("ScatterElements", past_cache, sym.expand(index, update.shape), update, axis=axis)


def bind_tensor_scatter(metadata: dict[str, Any], past_cache: Array, *more: Array | None) -> dict[str, Any]:
    """Metadata with the axis counted from the end; ModelError for the batch axis."""
    mode, axis = metadata.get("mode", "linear"), from_end(metadata.get("axis", -2), past_cache.ndim)
    if mode not in ("linear", "circular") or axis == -past_cache.ndim:
        raise ModelError(f"mode {mode!r} along axis {axis}; known are linear and circular, not along the first axis")
    return {"mode": mode, "axis": axis}


def summing(metadata: Mapping[str, Any]) -> tuple[tuple[int, ...], ...]:
    """Data and updates, of which the result is a sum unless they are multiplied or compared."""
    return ((0,), (2,)) if metadata.get("reduction", "none") in ("none", "add") else ()


SCATTER: list[Op] = [
    Op("ScatterND", scattering(slices, combine), scatter_vjp("ScatterND", "GatherND"), scatter_nd_stack,
       bind=bind_scatter_nd, step=scattering(slices, combine_near_real), branch=scattering(slices, winner),
       linear=summing, sparsity=scatter_sparsity(slices), cuts=deciding(1), outline=scatter_outline(slices),
       sized_by="first", does="The data with slices written to the places that index vectors name."),
    Op("ScatterElements", scattering(entries, combine), scatter_vjp("ScatterElements", "GatherElements"), scatter_stack,
       bind=bind_scatter_elements, step=scattering(entries, combine_near_real), branch=scattering(entries, winner),
       linear=summing, sparsity=scatter_sparsity(entries), cuts=deciding(1), outline=scatter_outline(entries),
       sized_by="first", does="y[i, indices[i, j, k], k] = updates[i, j, k] for axis 1."),
    composite("TensorScatter", tensor_scatter, bind=bind_tensor_scatter),
]  # fmt: skip
