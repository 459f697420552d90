"""Operators that cut, extend and repeat along axes: Slice, Pad, CenterCropPad, Tile, Trilu.

A negative pad cuts, so that padding with zeros and cutting are each other's gradient.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gradcheck_cli.autodiff import symbolic as sym
from gradcheck_cli.autodiff.tape import Var
from gradcheck_cli.errors import ModelError, counted
from gradcheck_cli.graph import Array
from gradcheck_cli.op import Op, box_rules, composite, require_known
from gradcheck_cli.op.batching import Kernel, Operands, blank, like_first, on, stack_size, viewed
from gradcheck_cli.op.sparsity import moved
from gradcheck_cli.ops.index import scatter_back
from gradcheck_cli.ops.shape import as_tuple, axes_of, checked, scalar

Ints = tuple[int, ...]
_MODES = ("constant", "reflect", "edge", "wrap")
_FIRST = -(1 << 62)  # an end beyond the first entry, for steps backward


def slice_(
    x: Array, *, starts: tuple[int, ...], ends: tuple[int, ...], axes: tuple[int, ...] = (), steps: tuple[int, ...] = ()
) -> Array:
    """x[start:end:step] along each of the axes; an end of -1 lies before the first entry."""
    window = [slice(None)] * x.ndim
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        window[axis] = slice(start, end if end >= 0 else None, step)
    return x[tuple(window)]


def bind_slice(metadata: dict[str, Any], x: Array) -> dict[str, Any]:
    """Metadata with starts and ends clamped to x, every axis and step written out."""
    starts, ends = as_tuple(metadata["starts"]), as_tuple(metadata["ends"])
    axes, steps = metadata.get("axes"), metadata.get("steps")
    axes = axes_of(range(len(starts)) if axes is None else axes, x.ndim)
    steps = (1,) * len(starts) if steps is None else as_tuple(steps)
    if len({len(starts), len(ends), len(axes), len(steps)}) > 1 or len(set(axes)) < len(axes) or len(axes) > x.ndim:
        raise ModelError(f"starts, ends, axes {list(axes)} and steps do not fit each other")
    if 0 in steps:
        raise ModelError("a step is 0")
    spans = [_span(s, e, k, x.shape[a]) for s, e, k, a in zip(starts, ends, steps, axes, strict=True)]
    first, last = zip(*spans, strict=True) if spans else ((), ())
    return {"starts": first, "ends": last, "axes": tuple(a - x.ndim for a in axes), "steps": steps}


def _span(start: int, end: int, step: int, length: int) -> tuple[int, int]:
    """First entry and end of a slice as the standard clamps them; (0, 0) if nothing is left."""
    start, end = (v + length if v < 0 else v for v in (start, end))
    low, high = (0, length) if step > 0 else (-1, length - 1)
    start, end = min(max(start, 0), high), min(max(end, low), high)
    return (start, end) if len(range(start, end, step)) else (0, 0)


def slice_vjp(ct: Var, y: Var, x: Var, **spans: tuple[int, ...]) -> tuple[Var]:
    """ct at the entries that were taken, zeros between and around them."""
    before = [0] * x.ndim
    for start, axis, step in zip(spans["starts"], spans["axes"], spans["steps"], strict=True):
        first, stride = start + max(y.shape[axis] - 1, 0) * min(step, 0), abs(step)
        ct = ct if step > 0 else sym.slice(ct, (-1,), (_FIRST,), (axis,), (-1,))
        ct = _spaced(ct, axis + x.ndim, stride)
        before[axis] = first
    return (sym.fill(ct, x, before=before),)


def _spaced(x: Var, axis: int, stride: int) -> Var:
    """x with stride - 1 zeros behind every entry along an axis."""
    if stride == 1 or x.shape[axis] == 1:
        return x
    wide = sym.unsqueeze(x, (axis + 1,))
    pads = [0] * 2 * wide.ndim
    pads[wide.ndim + axis + 1] = stride - 1
    return sym.reshape(sym.pad(wide, pads), (*x.shape[:axis], x.shape[axis] * stride, *x.shape[axis + 1 :]))


def pad(x: Array, value: Array | None = None, *, pads: Ints, axes: Ints | None = None, mode: str = "constant") -> Array:
    """x with more entries before and behind its last axes; a negative width cuts entries off."""
    x, widths = _cut(x, pads), [max(p, 0) for p in pads]
    rank = len(pads) // 2
    if mode != "constant":
        for i, index in _sources(x.shape[x.ndim - rank :], widths, mode):
            x = np.take(x, index, axis=i - rank)
        return x
    lead, shape = x.shape[: x.ndim - rank], x.shape[x.ndim - rank :]
    fill: Any = ("" if x.dtype == object else np.zeros((), x.dtype)) if value is None else value
    out = np.empty(
        (*lead, *(b + d + a for b, d, a in zip(widths[:rank], shape, widths[rank:], strict=True))),
        np.result_type(x, fill) if x.dtype != object else object,
    )
    out[...] = fill.reshape(()) if value is not None and value.size == 1 else fill
    _last(out, [slice(b, b + d) for b, d in zip(widths[:rank], shape, strict=True)])[...] = x
    return out


def _last(x: Array, window: list[slice]) -> Array:
    """The index of a window of the last axes."""
    key: Any = (..., *window)
    return np.asarray(x[key])


def _cut(x: Array, pads: Sequence[int]) -> Array:
    """x without the entries that negative widths remove."""
    rank = len(pads) // 2
    ends = zip(x.shape[x.ndim - rank :], pads[:rank], pads[rank:], strict=True)
    return _last(x, [slice(max(-b, 0), d - max(-a, 0)) for d, b, a in ends])


def _sources(shape: Sequence[int], widths: Sequence[int], mode: str) -> list[tuple[int, Array]]:
    """Axes that grow, with the number of the entry of x that each entry of the padded axis repeats."""
    pairs = list(zip(widths[: len(shape)], widths[len(shape) :], strict=True))
    how: Any = mode
    return [(i, np.pad(np.arange(shape[i]), pair, how)) for i, pair in enumerate(pairs) if any(pair)]


def bind_pad(metadata: dict[str, Any], x: Array, value: Array | None = None) -> dict[str, Any]:
    """Metadata with widths for every axis: those before all axes, then those behind."""
    given, mode = as_tuple(metadata["pads"]), metadata.get("mode", "constant")
    axes = axes_of(range(x.ndim) if metadata.get("axes") is None else metadata["axes"], x.ndim)
    require_known("mode", mode, _MODES, ModelError)
    if len(given) != 2 * len(axes) or (value is not None and value.size != 1):
        raise ModelError(f"{len(given)} pads do not fit {len(axes)} axes, or the value is not a single number")
    pads = [0] * 2 * x.ndim
    for i, axis in enumerate(axes):
        pads[axis], pads[axis + x.ndim] = given[i], given[i + len(axes)]
    checked([d + min(b, 0) + min(a, 0) for d, b, a in zip(x.shape, pads[: x.ndim], pads[x.ndim :], strict=True)])
    checked([d + b + a for d, b, a in zip(x.shape, pads[: x.ndim], pads[x.ndim :], strict=True)])
    return {"pads": tuple(pads), "mode": mode}


def pad_outline(kernel: Kernel, operands: Operands, metadata: Mapping[str, Any]) -> Array:
    """The outline rule: the lengths of x and of what is added."""
    x, pads = operands[0], metadata["pads"]
    dtype = np.result_type(*(v.dtype for v in operands if v is not None))
    grown = zip(x.shape, pads[: x.ndim], pads[x.ndim :], strict=True)
    return blank([d + before + behind for d, before, behind in grown], dtype)


def pad_stack(kernel: Kernel, operands: Operands, probed: Sequence[bool], metadata: Any) -> Any:
    """The batching rule: a probed value gets an axis for each of x behind the probe axis."""
    if not any(probed[1:]):
        return kernel(*operands, **metadata)
    count, (x, value) = stack_size(operands, probed), operands
    x = x if probed[0] else np.broadcast_to(x, (count, *x.shape))
    return kernel(x, value.reshape(count, *(1,) * (x.ndim - 1)), **metadata)


def pad_vjp(ct: Var, y: Var, x: Var, *values: Var | None, pads: tuple[int, ...], mode: str) -> tuple[Var | None, ...]:
    """ct_x is ct at the entries of x, folded for repeated ones; the value gets the sum of all others."""
    if mode != "constant":
        return _folded(ct, x, pads, mode), *(None for _ in values)
    ct_x = sym.pad(ct, [-p for p in pads])
    return ct_x, *(None if v is None else sym.reshape(_outside(ct, x, pads), v.shape) for v in values)


def _outside(ct: Var, x: Var, pads: Sequence[int]) -> Var:
    return sym.sum(sym.where(sym.equal(sym.pad(sym.ones_like(x), pads), 0), ct, 0))


def _folded(ct: Var, x: Var, pads: Sequence[int], mode: str) -> Var:
    """The cotangent with repeated entries added up, axis by axis, and zeros where x was cut."""
    shape = list(_cut(x.like, pads).shape)
    for i, index in _sources(shape, [max(p, 0) for p in pads], mode):
        target = (*ct.shape[:i], shape[i], *ct.shape[i + 1 :])
        ct = scatter_back(ct, ct.tape.constant(index), target, i)
    return sym.pad(ct, [max(-p, 0) for p in pads])


def center_crop_pad(x: Var, *, shape: tuple[int, ...], axes: tuple[int, ...] | None = None) -> Var:
    """x cut or padded with zeros to a shape, evenly on both sides; an odd entry goes to the end."""
    pads, lengths = [0] * 2 * x.ndim, as_tuple(shape)
    chosen = axes_of(range(x.ndim) if axes is None else axes, x.ndim)
    if len(chosen) != len(lengths) or min(lengths, default=0) < 0:
        raise ValueError(f"lengths {list(lengths)} do not fit {len(chosen)} axes")
    for axis, length in zip(chosen, lengths, strict=True):
        missing = length - x.shape[axis]
        pads[axis] = missing // 2 if missing > 0 else -(-missing // 2)
        pads[axis + x.ndim] = missing - pads[axis]
    return sym.pad(x, pads)


def bind_tile(metadata: dict[str, Any], x: Array) -> dict[str, Any]:
    """Metadata with one number of repeats for each axis."""
    repeats = as_tuple(metadata["repeats"])
    if len(repeats) != x.ndim:
        raise ModelError(f"{len(repeats)} repeats do not fit {x.ndim} dimensions")
    checked(repeats)
    checked([d * r for d, r in zip(x.shape, repeats, strict=True)])
    return {"repeats": repeats}


def tile_outline(kernel: Kernel, operands: Operands, metadata: Mapping[str, Any]) -> Array:
    """The outline rule: as many times the length of each axis."""
    (x,) = operands
    return blank([d * r for d, r in zip(x.shape, metadata["repeats"], strict=True)], x.dtype)


def tile_vjp(ct: Var, y: Var, x: Var, *, repeats: tuple[int, ...]) -> tuple[Var]:
    """The sum of ct over the copies."""
    parts = [(r, d) for r, d in zip(repeats, x.shape, strict=True)]
    split = sym.reshape(ct, [length for pair in parts for length in pair])
    return (sym.sum(split, range(0, 2 * x.ndim, 2), keepdims=False),)


def bind_trilu(metadata: dict[str, Any], x: Array) -> dict[str, Any]:
    """Metadata with the diagonal as a number within the matrix."""
    if x.ndim < 2:
        raise ModelError(f"matrices are needed, not {counted(x.ndim, 'dimension')}")
    k = min(max(int(scalar(metadata.get("k", 0))), -x.shape[-2]), x.shape[-1])
    return {"k": k, "upper": metadata.get("upper", 1)}


PAD: list[Op] = [
    Op("Slice", slice_, slice_vjp, on(0), bind=bind_slice, linear="each", sparsity=moved, boxes=box_rules.sliced,
       outline=viewed,
       static={"starts": 1, "ends": 2, "axes": 3, "steps": 4}, integers={2: (2, 3), 4: (1, 1)}, moves="part",
       same_axes=True, cost="picks"),
    Op("Pad", pad, pad_vjp, pad_stack, static={"pads": 1, "axes": 3}, bind=bind_pad, linear="each", sparsity=moved,
       outline=pad_outline, same_axes=True),
    composite("CenterCropPad", center_crop_pad, static={"shape": 1}),
    Op("Tile", lambda x, *, repeats: np.tile(x, repeats), tile_vjp, on(0), static={"repeats": 1}, bind=bind_tile,
       linear="each", sparsity=moved, integers={1: (1, 2)}, outline=tile_outline, moves="all",
       does="x repeated along each axis."),
    Op("Trilu", lambda x, *, k=0, upper=1: (np.triu if upper else np.tril)(x, k),
       lambda ct, y, x, k, upper: (ct.tape.apply("Trilu", ct, np.asarray(k, np.int64), upper=upper),),
       on(0), static={"k": 1}, bind=bind_trilu, linear="each", sparsity=moved, outline=like_first,
       does="Matrices with zeros below (upper) or above diagonal k."),
]  # fmt: skip
