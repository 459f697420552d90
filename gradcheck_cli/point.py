"""The point at which a gradient is checked: sizes for open dimensions, and values for every input.

What nobody gave is drawn by seed, each tensor for itself, inside the domains of the operators that read it.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gradcheck_cli.errors import GradcheckError, LimitError, UnsupportedError, UsageError
from gradcheck_cli.formats.source import Source
from gradcheck_cli.graph import Array, Graph, TensorType
from gradcheck_cli.op import Ops
from gradcheck_cli.ranges import float_range, integer_range
from gradcheck_cli.settings import ANY, Settings
from gradcheck_cli.tape import Tape
from gradcheck_cli.trace import trace

SIZES = (1, 2, 3, 4, 8, 16, 32, 64, 128, 224)  # tried for a dimension that nobody gave
BATCH = 2


@dataclass(frozen=True, slots=True)
class Point:
    """A traced point: the tape, the feeds that made it, and sizes chosen for open dimensions."""

    tape: Tape
    feeds: Mapping[str, Array]
    dims: Mapping[str, int] = field(default_factory=dict)


def find_point(
    source: Source,
    settings: Settings,
    ops: Ops,
    targets: Sequence[str],
    index: int = 0,
    dims: Mapping[str, int] | None = None,
) -> Point:
    """The point number `index`: the first choice of open dimensions at which the model runs as far as `targets`."""
    graph = source.graph
    check_feeds(graph, settings)
    known = {**source.dims, **settings.dims, **_dims_of_feeds(graph, settings), **(dims or {})}
    last: GradcheckError | None = None
    for chosen in _choices(graph, known):
        feeds = draw(source, settings, chosen, index)
        tape = trace(graph, feeds, ops=ops, dtype=settings.dtype, seed=settings.seed, targets=targets, lenient=True)
        last = next((e for e in tape.blocked.values() if not isinstance(e, UnsupportedError)), None)
        if isinstance(last, LimitError):
            break
        if last is None and (_substantial(tape, targets) or set(open_dims(graph)) <= set(known)):
            return Point(tape, feeds, {k: v for k, v in chosen.items() if k not in source.dims})
    raise _no_point(graph, known, last)


def draw(source: Source, settings: Settings, dims: Mapping[str, int], index: int = 0) -> dict[str, Array]:
    """Values for all inputs, and for whatever else is fed: given ones first, then initial values, then random ones."""
    graph = source.graph
    feeds: dict[str, Array] = dict(_initialized(source, settings))
    for name in graph.inputs:
        if name not in graph.constants and name not in feeds and not _given(settings, name):
            feeds[name] = draw_input(source, settings, name, dims, index)
    for given in (settings.x_init_value, settings.extra_feed_dict):
        feeds.update((name, _as_declared(graph, name, value, dims)) for name, value in given.items())
    return {n: _in_its_dtype(graph, n, v) for n, v in feeds.items()} if settings.dtype == "model" else feeds


def draw_input(source: Source, settings: Settings, name: str, dims: Mapping[str, int], index: int) -> Array:
    """Random values for one input; the draw depends on seed, point and name alone."""
    declared = source.graph.types.get(name, TensorType())
    if declared.kind != "tensor" or declared.dtype == object:
        what = "strings" if declared.dtype == object else f"a {declared.kind}"
        raise UnsupportedError(f"input {name!r} takes {what}; give it: --feed {name}=...", code="GC503")
    dtype = np.dtype(declared.dtype or np.float32)
    shape = concrete(source.graph, name, dims)
    rng = np.random.default_rng([settings.seed, index, zlib.crc32(name.encode())])
    low_high = settings.val_range.get(name, source.ranges.get(name, settings.val_range.get(ANY)))
    if dtype.kind in "iub":
        low, high = low_high or integer_range(source.graph, name, shape)
        return rng.integers(int(low), int(high) + 1, shape).astype(dtype)
    low, high = low_high or float_range(source.graph, name)
    values = rng.uniform(low, high, shape)
    return values + 1j * rng.uniform(low, high, shape) if dtype.kind == "c" else values


def concrete(graph: Graph, name: str, dims: Mapping[str, int]) -> tuple[int, ...]:
    """The shape of an input with sizes put in for open dimensions; a scalar where none is declared."""
    shape = graph.types.get(name, TensorType()).shape or ()
    return tuple(d if isinstance(d, int) else dims[symbol(name, axis, d)] for axis, d in enumerate(shape))


def symbol(name: str, axis: int, dim: str | None) -> str:
    """The name under which an open dimension is given a size; one without a name is called by tensor and axis."""
    return dim if dim else f"{name}:{axis}"


def open_dims(graph: Graph) -> dict[str, bool]:
    """Open dimensions of the inputs that need values -> whether each one looks like a batch."""
    found: dict[str, bool] = {}
    for name in graph.free_inputs:
        shape = graph.types.get(name, TensorType()).shape or ()
        for axis, dim in enumerate(shape):
            if not isinstance(dim, int):
                key = symbol(name, axis, dim)
                found[key] = found.get(key, False) or _batch_like(key, axis, len(shape))
    return found


def check_feeds(graph: Graph, settings: Settings) -> None:
    """UsageError for shapes and dims that contradict the model."""
    free = open_dims(graph)
    for name in settings.dims:
        if name not in free and free:
            raise UsageError(f"--dim {name}: the model's open dimensions are {', '.join(free)}.")
        if name not in free:
            raise UsageError(f"--dim {name}: the model has no open dimension.")
    for name, shape in settings.x_shape.items():
        declared = graph.types.get(name, TensorType()).shape
        if declared is not None and name in graph.inputs:
            _check_shape(name, shape, declared)


def _check_shape(name: str, shape: Sequence[int], declared: Sequence[Any]) -> None:
    given = ",".join(map(str, shape))
    if len(shape) != len(declared):
        raise UsageError(f"--x-shape {name}:{given} contradicts the model: {name!r} has {len(declared)} dimensions.")
    for axis, (size, fixed) in enumerate(zip(shape, declared, strict=True)):
        if isinstance(fixed, int) and fixed != size:
            raise UsageError(f"--x-shape {name}:{given} contradicts the model: dimension {axis} is fixed to {fixed}.")


def _dims_of_feeds(graph: Graph, settings: Settings) -> dict[str, int]:
    """Sizes of open dimensions that follow from shapes and values that were given."""
    shapes = {
        **settings.x_shape,
        **{n: v.shape for n, v in [*settings.extra_feed_dict.items(), *settings.x_init_value.items()]},
    }
    dims: dict[str, int] = {}
    for name, shape in shapes.items():
        declared = graph.types.get(name, TensorType()).shape
        if name in graph.inputs and declared is not None and len(declared) == len(shape):
            for axis, (dim, size) in enumerate(zip(declared, shape, strict=True)):
                if not isinstance(dim, int):
                    dims[symbol(name, axis, dim)] = int(size)
    return dims


def _choices(graph: Graph, known: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """Sizes to try for the open dimensions: batches of 2 first, the others growing."""
    free = {k: batch for k, batch in open_dims(graph).items() if k not in known}
    if not free:
        yield dict(known)
        return
    for size in SIZES if not all(free.values()) else SIZES[:1]:
        for batch in (BATCH, 1):
            yield {**known, **{k: batch if is_batch else size for k, is_batch in free.items()}}
            if not any(free.values()):
                break


def _batch_like(name: str, axis: int, rank: int) -> bool:
    word = name.lower()
    if any(w in word for w in ("batch", "bs")) or word in ("n", "b"):
        return True
    return axis == 0 and rank >= 2 and not any(w in word for w in ("seq", "len", "time", "past", "frame", "step"))


def _substantial(tape: Tape, targets: Sequence[str]) -> bool:
    """No target that could be computed is empty, unless an input is."""
    made = [tape.named[name].value for name in targets if name in tape.named]
    return all(value.size for value in made) or not made


def _no_point(graph: Graph, known: Mapping[str, int], last: GradcheckError | None) -> GradcheckError:
    free = [k for k in open_dims(graph) if k not in known]
    if not free or isinstance(last, LimitError):
        return last or UsageError("the outputs are empty: there is nothing to differentiate")
    name = next(n for n in graph.free_inputs if any(not isinstance(d, int) for d in graph.types[n].shape or ()))
    shape = graph.types[name].shape or ()
    example = ",".join(str(d) if isinstance(d, int) else "1" if a == 0 else "32" for a, d in enumerate(shape))
    dims = " ".join(f"--dim {k}={1 if i == 0 else 32}" for i, k in enumerate(free))
    why = f"\nThe last attempt said: {last}" if last else ""
    return UsageError(
        f"no size of {', '.join(free)} in {TensorType(None, shape).__str__().rsplit(' ', 1)[0]} makes {name!r} run "
        f"(tried {SIZES[0]} ... {SIZES[-1]}).  Give them: --x-shape {name}:{example}  or  {dims}{why}"
    )


def _given(settings: Settings, name: str) -> bool:
    return name in settings.x_init_value or name in settings.extra_feed_dict


def _as_declared(graph: Graph, name: str, value: Array, dims: Mapping[str, int]) -> Array:
    """A given value in the kind of numbers that the tensor holds; a scalar fills it."""
    declared = graph.types.get(name, TensorType())
    array = np.asarray(value)
    if name in graph.inputs and array.ndim == 0 and declared.shape:
        array = np.broadcast_to(array, concrete(graph, name, dims))
    if name in graph.constants and array.shape != graph.constants[name].shape:
        array = np.broadcast_to(array, graph.constants[name].shape)
    dtype = graph.constants[name].dtype if name in graph.constants else declared.dtype
    return array if dtype is None or (dtype.kind in "fcV" and array.dtype.kind in "fc") else array.astype(dtype)


def _in_its_dtype(graph: Graph, name: str, value: Array) -> Array:
    """A value in the dtype that the file declares, for runs in the model's own precision."""
    dtype = graph.constants[name].dtype if name in graph.constants else graph.types.get(name, TensorType()).dtype
    return value if dtype is None or dtype.kind == "O" else value.astype(dtype, copy=False)


def _initialized(source: Source, settings: Settings) -> Iterator[tuple[str, Array]]:
    """Values that initialization targets give to tensors of the model."""
    from gradcheck_cli.ops import OPS

    for target in settings.init_targets:
        if target not in source.initializations:
            known = ", ".join(source.initializations) or "none"
            raise UsageError(f"no initialization {target!r}; the model has: {known}.")
        init = source.initializations[target]
        tape = trace(init.graph, {}, ops=OPS, dtype="model", seed=settings.seed)
        yield from ((tensor, tape.named[output].value) for tensor, output in init.bindings.items())
