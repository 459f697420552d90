"""Batching rules: each runs a kernel, which knows one point only, for a whole stack of probes at once (as JAX's vmap).

Kernels never see the probe axis.  A probed operand comes as `(P, *shape)`, the others as they are; metadata counts
axes from the end, so that a leading axis moves nothing.  Every rule gives what `loop` gives; `loop` is the oracle.

Outline rules are for no point at all: each gives arrays of the shape and dtype that the kernel would give, with any
numbers, from operands whose numbers nobody may read (`Blank`).  It raises where the kernel would for operands that do
not fit each other.  An operator whose shapes follow from values, or whose kernel may refuse values, has no such rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, Literal, TypeAlias

import numpy as np
from msgspec import Struct

from gradcheck_cli.errors import spelled
from gradcheck_cli.graph import Array, is_inexact

Kernel: TypeAlias = Callable[..., Any]
Operands: TypeAlias = Sequence[Any]  # arrays, None for one that is left out
BatchingRule: TypeAlias = Callable[[Kernel, Operands, Sequence[bool], Mapping[str, Any]], Any]
Move: TypeAlias = Callable[[str, Array], Array]  # results of an operator inside of a kernel, moved as by its rounding
OutlineRule: TypeAlias = Callable[[Kernel, Operands, Mapping[str, Any]], Any]
Groups: TypeAlias = tuple[tuple[int, ...], ...] | Literal["each"]  # of operands
_NOTHING = bytes(64)  # what a blank shows as numbers
_LONG = "gG"  # the characters of NumPy's long doubles, which no other operator takes
_WANTED = {True: "a tuple of arrays", False: "one array"}


class Ragged(Exception):
    """Raised if results of the probes differ in shape, so that they make no stack; each probe must run alone."""


class Nest(Struct, frozen=True):
    """Rules of a kernel that is many steps inside, such as all time steps of a recurrent layer, for the numbers in between.

    rounded  `(move, operands, probed, metadata)`: the results for stacks, with each result inside handed to `move`.
    pushforward  `(operands, tangents, wanted, slope, move, **metadata)`: tangents of the outputs at a point, from stacks
              of those of operands, None for one that does not move, and None for an output that is not `wanted`.
              Derivatives of elementwise functions inside are `slope(function, x)`.  None: by the complex step.
    activations  `(*operands, **metadata)`: names of activations inside and their results, units along the last axis.
    """

    rounded: Callable[[Move, Sequence[Any], Sequence[bool], Mapping[str, Any]], Any]
    pushforward: Callable[..., Sequence[Any]] | None = None
    activations: Callable[..., Iterable[tuple[str, Array]]] | None = None


def is_ours(function: Callable[..., Any]) -> bool:
    """True of a kernel or a rule of gradcheck's own, and of one of NumPy."""
    while isinstance(function, partial):
        function = function.func
    return str(getattr(function, "__module__", "") or "numpy").partition(".")[0] in ("gradcheck_cli", "numpy")


def watched(kernel: Kernel, many: bool | None = None, like: int | None = None) -> Kernel:
    """A kernel that raises ValueError if it writes into an operand, or gives no array; one of gradcheck's own as it is.

    With `many` it gives a tuple of arrays; None: its results are no arrays.  Of a floating-point operand `like` its
    first result is one too.
    """
    if is_ours(kernel):
        return kernel

    def run(*operands: Any, **metadata: Any) -> Any:
        before = [x.tobytes() if isinstance(x, np.ndarray) else None for x in operands]
        results = kernel(*operands, **metadata)
        for index, (x, bits) in enumerate(zip(operands, before, strict=True)):
            if bits is not None and x.tobytes() != bits:
                raise ValueError(
                    f"its kernel writes into its operand {index}, which others read; let it work on a copy"
                )
        if many is not None:
            _require_arrays(results, many)
        if like is not None and like < len(operands):
            _require_inexact(results[0] if many else results, operands[like])
        return results if many is None else kept(results, operands, many)

    return run


def kept(results: Any, operands: Operands, many: bool) -> Any:
    """Results of a kernel of others as arrays that its next call leaves alone, of numbers that ONNX has."""
    long = any(isinstance(x, np.ndarray) and x.dtype.char in _LONG for x in operands)
    made = [_owned(y, long) for y in (results if many else (results,))]
    return tuple(made) if many else made[0]


def _owned(result: Any, long: bool) -> Array:
    array = np.array(result)
    if array.dtype.char in _LONG and not long:
        return array.astype(np.float64 if array.dtype.kind == "f" else np.complex128)
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _require_arrays(results: Any, many: bool) -> None:
    """Requires numbers or texts of a kernel: of anything else the node that reads it would be told."""
    if not isinstance(results, tuple | list) if many else isinstance(results, tuple):
        given = f"a tuple of {len(results)}" if isinstance(results, tuple) else _kind(results)
        raise ValueError(f"its kernel gives {given}, where its operator, many={many}, has {_WANTED[many]}")
    for each in results if many else (results,):
        array = np.asarray(each)
        texts = array.dtype.kind == "O" and all(isinstance(entry, str | bytes) for entry in array.flat)
        if array.dtype.kind not in "biufcVUS" and not texts:
            raise ValueError(f"its kernel gives {_kind(each)}, no array of numbers")


def _require_inexact(result: Any, operand: Any) -> None:
    """Requires a result that has a derivative: that of integers is zero, so that a rule would be held against nothing."""
    given, dtype = getattr(operand, "dtype", None), np.asarray(result).dtype
    if given is not None and is_inexact(given) and dtype.kind in "iub":
        raise ValueError(
            f"its kernel gives {dtype} from {given}, of which no rule gives a derivative; "
            "let it give floating-point numbers, or say integral=(0,)"
        )


def _kind(value: Any) -> str:
    return f"an array of {value.dtype}" if isinstance(value, np.ndarray) else f"a value of type {type(value).__name__}"


def told(kernel: Kernel, error: BaseException, expected: tuple[type[Exception], ...]) -> str:
    """The words of what a kernel raised, with its kind if others wrote it; a bug of gradcheck's own is raised again."""
    if not is_ours(kernel):
        return str(error) if isinstance(error, ValueError) else spelled(error)
    if isinstance(error, expected):
        return str(error)
    raise error


def loop(kernel: Kernel, operands: Operands, probed: Sequence[bool], metadata: Mapping[str, Any]) -> Any:
    """Runs the kernel for one probe after the other; right for every kernel."""
    count = stack_size(operands, probed)
    pairs = list(zip(operands, probed, strict=True))
    results = [kernel(*[x[i] if p else x for x, p in pairs], **metadata) for i in range(count)]
    if isinstance(results[0], tuple):
        return tuple(_stack(column) for column in zip(*results, strict=True))
    return _stack(results)


def trailing(kernel: Kernel, operands: Operands, probed: Sequence[bool], metadata: Mapping[str, Any]) -> Any:
    """For kernels that count axes from the end and take any leading axes of the probed operands."""
    return kernel(*operands, **metadata)


def elementwise(kernel: Kernel, operands: Operands, probed: Sequence[bool], metadata: Mapping[str, Any]) -> Any:
    """For operands that broadcast: a probed one of lower rank gets its missing axes behind the probe axis."""
    rank = max(x.ndim - p for x, p in zip(operands, probed, strict=True) if x is not None)
    return kernel(*[raised(x, rank) if p else x for x, p in zip(operands, probed, strict=True)], **metadata)


def aligned(kernel: Kernel, operands: Operands, probed: Sequence[bool], metadata: Mapping[str, Any]) -> Any:
    """For operands that must agree in their leading axes: those without the probe axis are broadcast over it."""
    count = stack_size(operands, probed)
    pairs = zip(operands, probed, strict=True)
    return kernel(*[x if p or x is None else np.broadcast_to(x, (count, *x.shape)) for x, p in pairs], **metadata)


def shaped(kernel: Kernel, operands: Operands, probed: Sequence[bool], metadata: Mapping[str, Any]) -> Any:
    """For one operand and a shape in metadata: that gets the probe axis in front, the operand its missing axes behind."""
    (x,), shape = operands, metadata["shape"]
    return kernel(raised(x, len(shape)), **{**metadata, "shape": (len(x), *shape)})


class On(Struct, frozen=True):
    """A rule for the case that only the operands `allowed` are probed; else `loop`."""

    allowed: frozenset[int]
    rule: BatchingRule

    def holds(self, probed: Sequence[bool]) -> bool:
        """True if no other operand is probed."""
        return all(i in self.allowed for i, p in enumerate(probed) if p)

    def __call__(self, kernel: Kernel, operands: Operands, probed: Sequence[bool], metadata: Mapping[str, Any]) -> Any:
        return (self.rule if self.holds(probed) else loop)(kernel, operands, probed, metadata)


def on(*allowed: int, rule: BatchingRule = trailing) -> BatchingRule:
    """`rule` if only the operands `allowed` are probed, else `loop`."""
    return On(frozenset(allowed), rule)


def takes_stacks(rule: BatchingRule, ranks: Sequence[int], probed: Sequence[bool]) -> bool:
    """True if all that a rule does for operands of these ranks is to call the kernel, which takes stacks as they are."""
    if isinstance(rule, On):
        return rule.holds(probed) and takes_stacks(rule.rule, ranks, probed)
    most = max(ranks, default=0)
    full = all(rank == most for rank, p in zip(ranks, probed, strict=True) if p)
    return rule is trailing or (rule is elementwise and full)


def shape_only(kernel: Kernel, operands: Operands, probed: Sequence[bool], metadata: Mapping[str, Any]) -> Any:
    """For operators that read no values: a probe never reaches their outputs, and a program leaves them out."""
    return loop(kernel, operands, probed, metadata)


def linearity(linear: Groups | Callable[[Mapping[str, Any]], Groups], metadata: Mapping[str, Any]) -> Groups:
    """The groups of operands in which an operator is linear with these attributes; see `Op`."""
    return linear(metadata) if callable(linear) else linear


def stack_size(operands: Operands, probed: Sequence[bool]) -> int:
    """The number of probes."""
    return int(next(len(x) for x, p in zip(operands, probed, strict=True) if p))


def raised(x: Array, rank: int) -> Array:
    """A stack `(P, *shape)` of tensors of a rank: missing axes stand behind the probe axis."""
    return x.reshape(len(x), *(1,) * (rank + 1 - x.ndim), *x.shape[1:])


def _stack(results: Sequence[Any]) -> Array:
    arrays = [np.asarray(r) for r in results]
    if any(a.shape != arrays[0].shape for a in arrays):
        raise Ragged
    return np.stack(arrays)


class Blank(np.ndarray[Any, np.dtype[Any]]):
    """An array of the shape and dtype of a tensor whose numbers are not computed yet; it takes no memory."""


def blank(shape: Sequence[int], dtype: Any) -> Blank:
    """A blank of a shape and dtype."""
    if np.dtype(dtype).hasobject:
        return np.broadcast_to(np.empty((), object), shape).view(Blank)
    return np.ndarray.__new__(Blank, shape, dtype, _NOTHING, 0, (0,) * len(shape))


def spread_out(kernel: Kernel, operands: Operands, metadata: Mapping[str, Any]) -> Array:
    """For operators that are elementwise on operands that broadcast."""
    shapes = [x.shape for x in operands if x is not None]
    shape = shapes[0] if all(s == shapes[0] for s in shapes) else np.broadcast_shapes(*shapes)
    return blank(shape, dtype_of(kernel, operands, metadata))


def viewed(kernel: Kernel, operands: Operands, metadata: Mapping[str, Any]) -> Any:
    """For kernels that give views of operand 0, which cost nothing."""
    return kernel(*operands, **metadata)


def like_first(kernel: Kernel, operands: Operands, metadata: Mapping[str, Any]) -> Array:
    """For operators whose result has the shape of operand 0 whatever their metadata."""
    return blank(operands[0].shape, dtype_of(kernel, operands, metadata))


def reduced(kernel: Kernel, operands: Operands, metadata: Mapping[str, Any]) -> Array:
    """For reductions over `axes`, which count from the end."""
    (x,), axes = operands, {axis + operands[0].ndim for axis in metadata["axes"]}
    kept = metadata["keepdims"]
    shape = [1 if i in axes else d for i, d in enumerate(x.shape) if kept or i not in axes]
    return blank(shape, dtype_of(kernel, operands, metadata))


def multiplied(kernel: Kernel, operands: Operands, metadata: Mapping[str, Any]) -> Array:
    """For products of stacks of matrices, as `np.matmul` takes them."""
    a, b = operands
    rows, columns = a.shape[-2:-1], b.shape[-1:] if b.ndim > 1 else ()
    if a.shape[-1] != b.shape[-2:][0]:
        raise ValueError(f"{a.shape[-1]} columns cannot be multiplied with {b.shape[-2:][0]} rows")
    front = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return blank((*front, *rows, *columns), dtype_of(kernel, operands, metadata))


def joined(kernel: Kernel, operands: Operands, metadata: Mapping[str, Any]) -> Array:
    """For operands that are joined along `axis`, which counts from the end."""
    first, axis = operands[0], metadata["axis"] + operands[0].ndim
    others = {(*x.shape[:axis], *x.shape[axis + 1 :]) for x in operands}
    if len(others) > 1 or any(x.ndim != first.ndim for x in operands):
        raise ValueError(f"tensors joined along axis {axis} have to be of one shape otherwise")
    length = sum(x.shape[axis] for x in operands)
    shape = (*first.shape[:axis], length, *first.shape[axis + 1 :])
    return blank(shape, np.result_type(*{x.dtype for x in operands}))


def of_line(*more: int) -> OutlineRule:
    """For kernels that do the same to each line along `axis`, and along `more` axes from the end: the first one is run."""

    def outlined(kernel: Kernel, operands: Operands, metadata: Mapping[str, Any]) -> Any:
        x, kept = operands[0], {metadata.get("axis", -1), *more}
        line = x[tuple(slice(None) if i - x.ndim in kept else slice(1) for i in range(x.ndim))]

        def whole(y: Array) -> Array:
            shape = [n if i - x.ndim in kept else d for i, (d, n) in enumerate(zip(x.shape, y.shape, strict=True))]
            return blank(shape, y.dtype)

        made = kernel(line, *operands[1:], **metadata)
        return tuple(map(whole, made)) if isinstance(made, tuple) else whole(made)

    return outlined


def dtype_of(kernel: Kernel, operands: Operands, metadata: Mapping[str, Any]) -> np.dtype[Any]:
    """The dtype of the result, which is that for operands of one entry each, of the same ranks and dtypes."""
    likes = tuple([None if x is None else (x.ndim, x.dtype) for x in operands])
    how = tuple([(name, value, type(value)) for name, value in metadata.items()])
    try:
        hash(how)
    except TypeError:
        return _dtype_of(kernel, likes, how)
    return _known_dtype_of(kernel, likes, how)


def _dtype_of(kernel: Kernel, likes: tuple[Any, ...], metadata: tuple[tuple[str, Any, type], ...]) -> np.dtype[Any]:
    ones = [None if like is None else np.ones((1,) * like[0], like[1]) for like in likes]
    return np.asarray(kernel(*ones, **{name: value for name, value, _ in metadata})).dtype


_known_dtype_of = lru_cache(maxsize=1024)(_dtype_of)  # runs at other sizes ask the same
