"""Operators that move or repeat entries by shape alone, convert their dtype, or give the shape.

A kernel that keeps the order of entries is bound to the shape of its result.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from gradcheck_cli.autodiff import symbolic as sym
from gradcheck_cli.autodiff.tape import Var
from gradcheck_cli.errors import ModelError, counted
from gradcheck_cli.graph import Array
from gradcheck_cli.graph.memory import require_shape
from gradcheck_cli.op import Op, box_rules, composite, deciding, from_end, narrowing, zero
from gradcheck_cli.op.batching import (
    Kernel,
    aligned,
    elementwise,
    joined,
    like_first,
    on,
    shape_only,
    shaped,
    spread_out,
    viewed,
)
from gradcheck_cli.op.sparsity import first, moved
from gradcheck_cli.ops.quantize import to_float8


def checked(shape: Sequence[int]) -> tuple[int, ...]:
    """A shape as a tuple of ints; an error if it is negative or does not fit into the memory that is left."""
    shape = tuple(int(d) for d in shape)
    if any(d < 0 for d in shape):
        raise ModelError(f"shape {list(shape)} has a negative dimension")
    require_shape(shape)
    return shape


def scalar(value: Any) -> Any:
    """The one entry of a static input, which some files hold as a vector of length 1."""
    if isinstance(value, tuple):
        if len(value) != 1:
            raise ModelError(f"a single number is needed, not {list(value)}")
        return value[0]
    return value


def reshape(x: Array, *, shape: tuple[int, ...], allowzero: int = 0) -> Array:
    """The same entries in another shape."""
    return x.reshape(shape)


def bind_reshape(metadata: dict[str, Any], x: Array) -> dict[str, Any]:
    """Metadata with the shape, 0 (copied from x) and -1 (inferred) filled in."""
    shape, allowzero = list(as_tuple(metadata["shape"])), metadata.get("allowzero", 0)
    if not allowzero:
        shape = [x.shape[i] if d == 0 and i < x.ndim else d for i, d in enumerate(shape)]
    if shape.count(-1) > 1 or min(shape, default=0) < -1:
        raise ModelError(f"cannot reshape {list(x.shape)} to {shape}")
    if -1 in shape:
        known = int(np.prod([d for d in shape if d != -1]))
        shape[shape.index(-1)] = x.size // known if known else 0
    if int(np.prod(shape)) != x.size:
        raise ModelError(f"cannot reshape {list(x.shape)} ({counted(x.size, 'entry')}) to {shape}")
    return {"shape": tuple(shape)}


def bind_flatten(metadata: dict[str, Any], x: Array) -> dict[str, Any]:
    """Metadata with the shape of the matrix; an axis equal to the rank is allowed."""
    axis = metadata.get("axis", 1)
    if not -x.ndim <= axis <= x.ndim:
        raise ModelError(f"axis {axis} is out of range for {counted(x.ndim, 'dimension')}")
    axis = axis + x.ndim if axis < 0 else axis
    rows = int(np.prod(x.shape[:axis]))
    return {"shape": (rows, int(np.prod(x.shape[axis:])))}


def bind_squeeze(metadata: dict[str, Any], x: Array) -> dict[str, Any]:
    """Metadata with the shape that is left."""
    axes = metadata.get("axes")
    gone = [i for i, d in enumerate(x.shape) if d == 1] if axes is None else axes_of(axes, x.ndim)
    if any(x.shape[a] != 1 for a in gone):
        raise ModelError(f"cannot squeeze axes {list(gone)} of {list(x.shape)}: not all are of length 1")
    return {"shape": tuple(d for i, d in enumerate(x.shape) if i not in gone)}


def bind_unsqueeze(metadata: dict[str, Any], x: Array) -> dict[str, Any]:
    """Metadata with the shape of the result."""
    axes = as_tuple(metadata.get("axes", ()))
    rank = x.ndim + len(axes)
    new, rest = axes_of(axes, rank), iter(x.shape)
    if len(set(new)) != len(new):
        raise ModelError(f"axes {list(axes)} name one axis twice")
    return {"shape": tuple(1 if i in new else next(rest) for i in range(rank))}


def transpose(x: Array, *, perm: tuple[int, ...] | None = None) -> Array:
    """x with its axes in another order; only the last ones, if there are more than `perm` names."""
    assert perm is not None
    front = x.ndim - len(perm)
    return x.transpose(*range(front), *[front + len(perm) + p for p in perm])


def bind_transpose(metadata: dict[str, Any], x: Array) -> dict[str, Any]:
    """Metadata with `perm` counted from the end; all axes reversed by default."""
    perm = axes_of(metadata.get("perm", range(x.ndim)[::-1]), x.ndim)
    if sorted(perm) != list(range(x.ndim)):
        raise ModelError(f"perm {list(perm)} is not a permutation of {x.ndim} axes")
    return {"perm": tuple(p - x.ndim for p in perm)}


def transpose_vjp(ct: Var, y: Var, x: Var, *, perm: tuple[int, ...]) -> tuple[Var]:
    """ct with axes in the inverse order."""
    order = [p + x.ndim for p in perm]
    return (sym.transpose(ct, [order.index(i) for i in range(x.ndim)]),)


def expand(x: Array, *, shape: tuple[int, ...]) -> Array:
    """x broadcast to a shape."""
    return np.broadcast_to(x, shape)


def bind_expand(metadata: dict[str, Any], x: Array) -> dict[str, Any]:
    """Metadata with the shape that x and the given shape broadcast to."""
    given = checked(as_tuple(metadata["shape"]))
    return {"shape": checked(np.broadcast_shapes(x.shape, given))}


def concat(*xs: Array, axis: int) -> Array:
    """Tensors concatenated along an axis."""
    return np.concatenate(xs, axis=axis)


def split(
    x: Array, *, axis: int = 0, split: tuple[int, ...] = (), num_outputs: int = 0, n_outputs: int = 1
) -> tuple[Array, ...]:
    """Pieces of given sizes along an axis."""
    ends = list(accumulate(split))
    places: list[Any] = [slice(end - size, end) for size, end in zip(split, ends, strict=True)]
    behind = (slice(None),) * (-1 - axis)
    return tuple(x[(..., place, *behind)] for place in places)


def bind_split(metadata: dict[str, Any], x: Array) -> dict[str, Any]:
    """Metadata with the sizes: as given, or as equal as possible with a smaller last one."""
    axis = from_end(metadata.get("axis", 0), x.ndim)
    length, parts = x.shape[axis], metadata.get("num_outputs") or metadata["n_outputs"]
    chunk = -(-length // parts)
    even = [max(0, min(chunk, length - i * chunk)) for i in range(parts)]
    sizes = tuple(metadata.get("split") or even)
    if sum(sizes) != length or len(sizes) < metadata["n_outputs"] or min(sizes) < 0:
        raise ModelError(f"sizes {list(sizes)} do not split axis {axis} of {list(x.shape)}")
    return {"axis": axis, "split": sizes}


def split_vjp(cts: Sequence[Var | None], ys: Sequence[Var], x: Var, *, axis: int, split: tuple[int, ...]) -> tuple[Var]:
    """The cotangents of the pieces concatenated, zeros for pieces without one."""
    pieces = []
    for i, length in enumerate(split):
        shape = list(x.shape)
        shape[axis] = length
        ct = cts[i] if i < len(cts) else None
        pieces.append(sym.full(x.tape, shape, 0, x.dtype) if ct is None else ct)
    return (sym.concat(pieces, axis),)


def cast(x: Array, *, to: Any, saturate: int = 1, round_mode: str = "up") -> Array:
    """x in another dtype."""
    if object in (x.dtype, to):
        return cast_text(x, to)
    if np.dtype(to).name.startswith("float8"):
        return to_float8(x, to, saturate=saturate, round_mode=round_mode)
    return (x.real if x.dtype.kind == "c" and np.dtype(to).kind != "c" else x).astype(to, copy=False)


def cast_text(x: Array, to: Any) -> Array:
    """x converted between numbers and strings; a number as the shortest text that stands for it in its dtype."""
    if np.dtype(to).kind == "O":
        named = x.real.astype(str) if x.dtype.kind in "biufc" else [str(v) for v in x.ravel().tolist()]
        return np.asarray(named, object).reshape(x.shape)
    if np.dtype(to).kind in "iu":
        return np.asarray([_whole(text) for text in x.ravel().tolist()]).astype(to).reshape(x.shape)
    return x.astype(str).astype(np.float64).astype(to)


def _whole(text: str) -> int:
    """The integer that a text stands for, exactly; the whole part of another number."""
    try:
        return int(text)
    except ValueError:
        return int(float(text))


def constant_of_shape(*, shape: tuple[int, ...] = (), value: Any = None) -> Array:
    """A tensor with one value everywhere."""
    fill = np.zeros(1, np.float32) if value is None else value
    return np.broadcast_to(fill.reshape(()), checked(as_tuple(shape)))


def eye_like(x: Array, *, dtype: Any = None, k: int = 0) -> Array:
    """A matrix of the shape of x with ones on diagonal k."""
    if x.ndim != 2:
        raise ValueError(f"a matrix is needed, not {counted(x.ndim, 'dimension')}")
    return np.eye(x.shape[0], x.shape[1], k=k).astype(x.dtype if dtype is None else dtype)


def depth_to_space(x: Var, *, blocksize: int, mode: str = "DCR") -> Var:
    """Channels moved into blocks of pixels: (N, C b b, H, W) to (N, C, H b, W b)."""
    n, c, h, w = _image(x, mode)
    depth = _divided(c, blocksize * blocksize)
    if mode == "DCR":
        parts = sym.transpose(sym.reshape(x, (n, blocksize, blocksize, depth, h, w)), (0, 3, 4, 1, 5, 2))
    else:
        parts = sym.transpose(sym.reshape(x, (n, depth, blocksize, blocksize, h, w)), (0, 1, 4, 2, 5, 3))
    return sym.reshape(parts, (n, depth, h * blocksize, w * blocksize))


def space_to_depth(x: Var, *, blocksize: int, mode: str = "DCR") -> Var:
    """Blocks of pixels moved into channels: the inverse of `depth_to_space`."""
    n, c, h, w = _image(x, mode)
    rows, columns = _divided(h, blocksize), _divided(w, blocksize)
    parts = sym.reshape(x, (n, c, rows, blocksize, columns, blocksize))
    parts = sym.transpose(parts, (0, 3, 5, 1, 2, 4) if mode == "DCR" else (0, 1, 3, 5, 2, 4))
    return sym.reshape(parts, (n, c * blocksize * blocksize, rows, columns))


def _image(x: Var, mode: str) -> tuple[int, ...]:
    if x.ndim != 4 or mode not in ("DCR", "CRD"):
        raise ValueError(f"mode {mode!r} for {list(x.shape)}; (N, C, H, W) and DCR or CRD are known")
    return x.shape


def _divided(length: int, by: int) -> int:
    if by < 1 or length % by:
        raise ValueError(f"a dimension of {length} is not divisible by {by}")
    return length // by


def as_tuple(value: Any) -> tuple[int, ...]:
    """One number or several as a tuple."""
    return tuple(value) if isinstance(value, tuple | list | range) else (value,)


def axes_of(axes: Any, rank: int) -> tuple[int, ...]:
    """Axes counted from the front; ModelError if one is out of range."""
    return tuple(from_end(a, rank) + rank if rank else 0 for a in as_tuple(axes))


def reshaping(name: str, forward: Kernel, binding: Any, **more: Any) -> Op:
    """An operator that keeps entries in their order."""
    known = {
        "bind": binding,
        "linear": "each",
        "sparsity": moved,
        "boxes": box_rules.reshaped,
        "moves": "all",
        "outline": viewed,
    }
    return Op(name, forward, lambda ct, y, x, **_: (sym.reshape(ct, x.shape),), shaped, **known, **more)


SHAPE: list[Op] = [
    reshaping("Reshape", reshape, bind_reshape, static={"shape": 1}),
    reshaping("Flatten", lambda x, *, axis=1, shape=(): x.reshape(shape), bind_flatten,
              does="x as a matrix: rows for the axes before `axis`, columns for the others."),
    reshaping("Squeeze", lambda x, *, axes=None, shape=(): x.reshape(shape), bind_squeeze, static={"axes": 1},
              does="x without axes of length 1: those named, or all."),
    reshaping("Unsqueeze", lambda x, *, axes=(), shape=(): x.reshape(shape), bind_unsqueeze, static={"axes": 1},
              does="x with new axes of length 1 at positions of the result."),
    Op("Transpose", transpose, transpose_vjp, on(0), bind=bind_transpose, linear="each", sparsity=moved,
       boxes=box_rules.transposed, outline=viewed, moves="all"),
    Op("Expand", expand, lambda ct, y, x, shape: (ct,), shaped, static={"shape": 1}, bind=bind_expand, linear="each",
       sparsity=moved, boxes=box_rules.expanded, outline=viewed, integers={1: (1, 1)}, moves="all"),
    Op("Split", split, split_vjp, on(0), static={"split": 1}, bind=bind_split, linear="each", many=True, sparsity=moved,
       boxes=box_rules.cut, outline=viewed, moves="part"),
    Op("Concat", concat, lambda ct, y, *xs, axis: sym.split(ct, [x.shape[axis] for x in xs], axis), aligned,
       linear="each", sparsity=moved, boxes=box_rules.joined, outline=joined, moves="joined", same_axes=True),
    Op("Cast", cast, lambda ct, y, x, **_: (ct,), elementwise, linear="each", cuts=narrowing, like=None, moves="all",
       outline=spread_out, straight="rounds"),
    Op("CastLike", lambda x, target, *, saturate=1, round_mode="up":
       cast(x, to=target.dtype, saturate=saturate, round_mode=round_mode), lambda ct, y, x, target, **_: (ct, None),
       on(0), linear=((0,),), sparsity=first, cuts=deciding(1), like=1, moves="all", same_axes=True, straight="rounds",
       outline=like_first,
       does="x in the dtype of another tensor."),
    Op("Shape", lambda x, *, start=0, end=None: np.asarray(x.shape[slice(start, end)], np.int64), zero, shape_only,
       integral=(0,), sized_by=None, does="The dimensions of x from `start` to `end`."),
    Op("Size", lambda x: np.asarray(x.size, np.int64), zero, shape_only, integral=(0,), sized_by=None,
       does="The number of entries."),
    Op("ConstantOfShape", constant_of_shape, zero, static={"shape": 0}, integers={0: (2, 3)}, like=None),
    Op("EyeLike", eye_like, zero, shape_only),
    composite("DepthToSpace", depth_to_space, space="windows"),
    composite("SpaceToDepth", space_to_depth, space="windows"),
]  # fmt: skip
