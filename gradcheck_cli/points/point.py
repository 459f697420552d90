"""The point at which a gradient is checked: sizes for open dimensions, and values for every input.

Values that nobody gave are drawn by seed, each tensor for itself, inside the domains of the operators that read it.
Values given to tensors inside a model get the shape and the dtype that the model computes there; no file declares those,
so the model is run once as far as these tensors, without the given values.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
from msgspec import Struct, field

from gradcheck_cli.autodiff.tape import Tape, Var
from gradcheck_cli.autodiff.trace import trace
from gradcheck_cli.errors import GradcheckError, LimitError, ModelError, UnsupportedError, UsageError, quoted, shown
from gradcheck_cli.formats.source import Source
from gradcheck_cli.graph import MAX_RANK, Array, Graph, Node, TensorType, is_inexact
from gradcheck_cli.graph.containers import CONTAINERS
from gradcheck_cli.graph.memory import exhausted, release, require_shape
from gradcheck_cli.op import Along, Interval, Ops, operator_of
from gradcheck_cli.points.dims import (
    check_sizes,
    check_traced,
    concrete,
    declared_shape,
    open_dims,
    roles,
    sizes_given,
    sizes_in,
    symbol,
)
from gradcheck_cli.points.sizes import Failure, Search
from gradcheck_cli.points.targets import is_float
from gradcheck_cli.points.test_data import Expected, Shipped, shipped_with
from gradcheck_cli.results.record import only_size
from gradcheck_cli.settings import ANY, Settings

DEFAULT = (-1.0, 1.0)
_LARGEST = (1 << 31) - 1  # integer that is drawn
_LAST_INT64 = (1 << 63) - 1
_POSITIVE = (0.0, np.inf)
MAGNITUDES = (1.0, 0.1, 10.0)  # of what is drawn, point by point
_HALF_BYTES = ("int4", "uint4", "int2", "uint2")
_REDRAWS = 8  # of integers at which outputs are empty: a number of steps may be 0
_SEARCHES = 4  # for sizes, each with other integers
ELSEWHERE = ((0.1, 1.0), (-0.1, 0.1), (1.1, 3.0))  # where a model may be finite that is not where it was tried


def float_range(
    graph: Graph, name: str, ops: Ops, magnitude: float = 1.0, within: tuple[float, float] | None = None
) -> tuple[float, float]:
    """The interval to draw a float input from: its consumers' common domain, scaled by a magnitude if it stays inside.

    `within` is an interval to stay in as well, if the two meet.
    """
    low, high = DEFAULT
    limits = [-np.inf, np.inf]
    for node, index, same in _domains(graph, name, ops):
        valid = operator_of(ops, node).interval(index, len(node.inputs))
        if valid is not None and (same or valid.ends == _POSITIVE) and not _is_defined(graph, node, valid):
            below = valid.high <= DEFAULT[0]
            low, high = valid.low if below else max(low, valid.low), valid.high if below or low < valid.high else high
            limits = [max(limits[0], valid.ends[0]), min(limits[1], valid.ends[1])]
    low, high = (low, high) if low < high else (low, low + 1.0)
    if within is not None:
        inside = max(within[0], limits[0]), min(within[1], limits[1])
        return inside if inside[0] < inside[1] else (low, high)
    return (magnitude * low, magnitude * high) if _scales(low, high, magnitude, limits) else (low, high)


def _scales(low: float, high: float, magnitude: float, limits: Sequence[float]) -> bool:
    return limits[0] < magnitude * low and magnitude * high < limits[1]


def integer_range(
    graph: Graph, name: str, ops: Ops, shape: Sequence[int], dims: Mapping[str, int] | None = None, again: int = 0
) -> tuple[int, int]:
    """The integers, both ends included, that an integer or boolean input may take; `dims` are sizes of open dimensions.

    Where nothing bounds them they are larger in each draw `again`.
    """
    sizes = dims or {}
    if "mask" in name.lower():
        return 1, 1
    highs, equal, picks = [], [], False
    for node, index in consumers(graph, name, ops):
        match operator_of(ops, node).integers.get(index):
            case Along() as along:
                size, picks = _length(graph, node, along, sizes), picks or not along.lengths
                if size is not None and along.lengths:
                    return min(2, max(1, size)), max(1, size)  # from 2, so that there is a step to go
                highs.extend([] if size is None else [size - 1])
            case (low, high):
                return low, high
        equal.extend(_compared_with(graph, node, index))
    if highs:
        return 0, max(0, min(highs))
    told = equal and not picks and len(shape) <= 1  # a label is compared with the one that is left out
    return (equal[0], equal[0]) if told else (again, again + 1)


def consumers(graph: Graph, name: str, ops: Ops) -> Iterator[tuple[Node, int]]:
    """Nodes that read a tensor, and as which operand, through nodes that only move entries and into subgraphs."""
    same = {name}
    for node in graph.all_nodes:
        if same.isdisjoint(node.inputs):
            continue
        for index, read in enumerate(node.inputs):
            if read in same:
                yield node, index
                if operator_of(ops, node).keeps_range(index):
                    same.update(n for n in node.outputs if n)


def _domains(graph: Graph, name: str, ops: Ops) -> Iterator[tuple[Node, int, bool]]:
    """The same (True), and nodes behind sums and positive factors, positive where the tensor is (False)."""
    yield from ((node, index, True) for node, index in consumers(graph, name, ops))
    like = {name}
    for node in graph.nodes:
        if like.isdisjoint(node.inputs):
            continue
        for index, read in enumerate(node.inputs):
            if read in like:
                if read != name:
                    yield node, index, False
                if _keeps_sign(graph, node, index):
                    like.update(node.outputs)


def _keeps_sign(graph: Graph, node: Node, index: int) -> bool:
    """True of a sum, and of a product with a positive constant."""
    if node.op in ("Add", "Sum") and not node.domain:
        return True
    factors = [graph.constants.get(n) for i, n in enumerate(node.inputs) if i != index]
    scales = (node.op == "Mul" or (node.op == "Div" and index == 0)) and not node.domain
    return scales and all(f is not None and bool((f > 0).all()) for f in factors)


def _length(graph: Graph, node: Node, along: Along, sizes: Mapping[str, int]) -> int | None:
    """The number of integers along an axis of another operand, or that this operand states; None where it is open."""
    if along.axis is None:
        return _whole(graph.constants.get(node.inputs[along.of]))
    axis = node.attrs.get(along.axis, 0) if isinstance(along.axis, str) else along.axis
    shape = _shape(graph, node.inputs[along.of], sizes)
    return shape[axis] if shape and -len(shape) <= axis < len(shape) else along.least


def _shape(graph: Graph, name: str, sizes: Mapping[str, int]) -> tuple[int, ...] | None:
    """The shape of a constant, or a declared one at some sizes, where it is all known."""
    if name in graph.constants:
        return graph.constants[name].shape
    declared = graph.types.get(name, TensorType()).shape or ()
    found = [d if isinstance(d, int) else sizes.get(symbol(name, axis, d)) for axis, d in enumerate(declared)]
    shape = tuple(d for d in found if d is not None)
    return shape if shape and len(shape) == len(found) else None


def _compared_with(graph: Graph, node: Node, index: int) -> list[int]:
    """Constants that the model itself compares an input with."""
    if node.op != "Equal":
        return []
    value = _whole(_constant(graph, node.inputs[1 - index]))
    return [] if value is None else [value]


def _whole(constant: Array | None) -> int | None:
    """The integer that a constant holds; None where it holds no single one, or something else."""
    if constant is None or constant.size != 1 or constant.dtype.kind not in "iufb" or not np.isfinite(constant).all():
        return None
    return min(max(int(constant.item()), -_LARGEST), _LARGEST)


def _constant(graph: Graph, name: str) -> Array | None:
    if name in graph.constants:
        return graph.constants[name]
    bodies = [body for node in graph.nodes for body in node.subgraphs]
    return next((value for body in bodies if (value := _constant(body, name)) is not None), None)


def _is_defined(graph: Graph, node: Node, valid: Interval) -> bool:
    """True if an operand may be any number, since a constant beside it holds integers from 0 on."""
    if valid.unless_whole is None:
        return False
    exponent = graph.constants.get(node.inputs[valid.unless_whole])
    if exponent is None or exponent.dtype.kind not in "iuf":
        return False
    return bool(np.all(exponent == np.rint(exponent)) and np.all(exponent >= 0))


def as_computed(
    graph: Graph, feeds: Mapping[str, Any], settings: Settings, ops: Ops, known: Mapping[str, int]
) -> dict[str, Any]:
    """The feeds, with those of inner tensors in the shape and dtype that the model computes; a number fills its tensor.

    `known` are the sizes that were given: while others are open, a value may have sizes of its own.
    UsageError for a value that does not fit.  Behind a node that cannot be run a value stays as it is.
    """
    given = {**settings.x_init_value, **settings.extra_feed_dict}
    inner = [name for name in given if name in feeds and name not in graph.inputs and name not in graph.constants]
    if not inner:
        return dict(feeds)
    outer = {name: value for name, value in feeds.items() if name not in inner}
    tape = trace(graph, outer, ops=ops, dtype=settings.run_in, seed=settings.seed, targets=inner, lenient=True)
    fixed = set(open_dims(graph)) <= set(known)
    made = {name: _fitted(name, feeds[name], tape.named[name], fixed) for name in inner if name in tape.named}
    return {**feeds, **made}


def _fitted(name: str, value: Any, computed: Var, fixed: bool) -> Any:
    if isinstance(value, CONTAINERS):
        return value
    array: Array = np.asarray(value)
    if array.ndim == 0:
        array = np.broadcast_to(array, computed.shape)
    if array.ndim != len(computed.shape) or (fixed and array.shape != computed.shape):
        given, wanted = (f"[{','.join(map(str, shape))}]" for shape in (array.shape, computed.shape))
        raise UsageError(f"the value given for {name!r} has shape {given}, not {wanted}.")
    real = array.dtype.kind in "iub" or (is_inexact(array.dtype) and array.dtype.kind != "c")
    with np.errstate(all="ignore"):  # infinity is what the model would get, too
        return array.astype(computed.dtype) if real and is_inexact(computed.dtype) else array


Beside: TypeAlias = Callable[[Mapping[str, Any]], "Failure | None"]


class Point(Struct, frozen=True):
    """A traced point: the tape, the feeds that made it, and sizes chosen for open dimensions.

    `expected` holds the outputs that ship with the model, where all inputs are those that ship with them.  `random` are
    the float inputs that were drawn, `integers` the other ones; `ranges` are intervals in which floats were drawn anew,
    since the model is not finite at the values drawn first, and `advice` one in which it would be, where the user gave
    another.  `over` are larger sizes, tried before, that memory had no room for.
    """

    tape: Tape
    feeds: Mapping[str, Any]
    dims: Mapping[str, int] = field(default_factory=dict)
    expected: Expected | None = None
    notes: tuple[str, ...] = ()
    random: tuple[str, ...] = ()
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    advice: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    over: Mapping[str, int] = field(default_factory=dict)
    integers: tuple[str, ...] = ()


def find_point(
    source: Source,
    settings: Settings,
    ops: Ops,
    targets: Sequence[str],
    index: int = 0,
    dims: Mapping[str, int] | None = None,
    beside: Beside | None = None,
    on: type[Tape] = Tape,
    ends: Sequence[str] | None = None,
) -> Point:
    """The point number `index`: the first choice of open dimensions at which the model runs as far as `targets`.

    `beside` runs another model at the same inputs, which has to run at the sizes that are chosen too; `on` is the kind
    of tape to run on; `ends` are the targets that must not be empty, all unless they are given.
    """
    graph = source.graph
    check_sizes(graph, settings)
    shipped, known = _known(source, settings, dims or {})
    ready, needed = shipped.at(index), graph.needed_for(targets)
    trials = _Trials(source, settings, ops, targets, index, ready, known, beside, on, ends)
    search, chosen = trials.searched()
    if chosen is None or trials.ran is None:
        raise _no_point(graph, known, search, trials.integers, trials.shapeless)
    tape, feeds = trials.ran
    check_traced({name: var.shape for name, var in tape.named.items()}, settings)
    order = {k: i for i, k in enumerate(open_dims(graph))}
    sizes = {k: chosen[k] for k in sorted(chosen, key=lambda k: order.get(k, -1)) if k not in source.dims}
    expected = None if index else _expected(source, settings, ops, targets, feeds, shipped)
    held = {*ready, *source.values_at.get(index, {}), *settings.x_init_value, *settings.extra_feed_dict}
    random = tuple(n for n in graph.free_inputs if n in needed and n not in held and is_float(graph, n))
    notes = [*shipped.notes(ready), *(only_size(k) for k, v in sizes.items() if v == 1 and k not in known)]
    notes += [_as_a_number(name) for name in trials.shapeless]
    over = {k: search.over[k] for k in sizes if k in search.over}
    return Point(tape, feeds, sizes, expected, tuple(notes), random, over=over, integers=tuple(trials.integers))


def _as_a_number(name: str) -> str:
    return f"one number is taken for {shown(name)}, of which the file declares no shape: --x-shape {quoted(name)}:2,3"


class _Trials:
    """Runs of a model at sizes of its open dimensions; `ran` is the last one that went as far as the targets."""

    def __init__(
        self,
        source: Source,
        settings: Settings,
        ops: Ops,
        targets: Sequence[str],
        index: int,
        ready: Mapping[str, Any],
        known: Mapping[str, int],
        beside: Beside | None = None,
        on: type[Tape] = Tape,
        ends: Sequence[str] | None = None,
    ) -> None:
        self.ends = targets if ends is None else ends
        self.source, self.settings, self.ops, self.targets, self.index = source, settings, ops, targets, index
        self.ready, self.known, self.graph, self.beside, self.on = ready, known, source.graph, beside, on
        self.needed = source.graph.needed_for(targets)
        self.open = not set(open_dims(source.graph)) <= set(known)
        self.ran: tuple[Tape, Mapping[str, Any]] | None = None
        held = {*ready, *source.values_at.get(index, {}), *settings.x_init_value, *settings.extra_feed_dict}
        drawn = [n for n in self.graph.free_inputs if n in self.needed and n not in held]
        self.integers = [n for n in drawn if not is_float(self.graph, n)]
        self.shapeless = [n for n in drawn if declared_shape(self.graph, n) is None and n not in settings.x_shape]
        self.draw, self.left = 0, _REDRAWS if self.integers else 0

    def searched(self) -> tuple[Search, Mapping[str, int] | None]:
        """A search for sizes and those that it found; other integers are drawn where the model runs at none."""
        each = roles(self.graph, self.ops)
        for _ in range(_SEARCHES):
            search = Search(each, self.known, self.attempt)
            chosen = search.run()
            failed = search.failure is not None and isinstance(search.failure.error, ModelError)
            if chosen is not None or not (failed and self.integers):
                break
            self.draw += 1
        return search, chosen

    def attempt(self, sizes: Mapping[str, int]) -> Failure | None:
        """Runs the model; its failure, None if it ran.  Memory of a failed run is released.

        Integers at which an end is empty are drawn again, a few times in all.
        """
        try:
            failure = self._run(sizes)
            while failure is not None and failure.error is None and self.left:
                self.left -= 1
                self.draw += 1
                failure = self._run(sizes)
        except MemoryError as error:  # before there are nodes
            if not self.open:
                raise
            failure = Failure(exhausted(error), (0, 0))
        if failure is not None and isinstance(failure.error, LimitError):
            release(failure.error)
        return failure

    def _run(self, sizes: Mapping[str, int]) -> Failure | None:
        graph, settings = self.graph, self.settings
        drawn = draw(self.source, settings, self.ops, sizes, self.index, self.ready, self.needed, self.draw)
        feeds = as_computed(graph, drawn, settings, self.ops, self.known)
        run_in, targets = settings.run_in, self.targets
        how: Any = {"ops": self.ops, "dtype": run_in, "seed": settings.seed, "on": self.on}
        tape = trace(graph, feeds, targets=targets, lenient=True, halting=True, **how)
        failure = failure_of(graph, tape, self.ends, self.open or bool(self.left))
        if failure is None and self.open and self.beside is not None:
            failure = self.beside(feeds)
        if failure is None:
            self.ran = tape, feeds
        return failure


def failure_of(graph: Graph, tape: Tape, ends: Sequence[str], is_open: bool = True) -> Failure | None:
    """The failure of the first node that could not be run, or of empty ends where dimensions are open; else None."""
    for position, node in enumerate(graph.nodes) if tape.blocked else ():
        error = next((tape.blocked[n] for n in node.outputs if n in tape.blocked), None)
        if error is None or isinstance(error, UnsupportedError):
            continue
        op, shapes = node.op, tuple(tape.named[n].shape for n in node.reads if n in tape.named)
        if isinstance(error, ModelError) and error.op:
            op, shapes = error.op, error.shapes
        reached = position, sum(step.origin == position for step in tape.steps)
        windows = any(record.space for (_, name), record in tape.ops.items() if name == op)
        dims = dims_behind(graph, graph.needed_for(node.reads))
        return Failure(error, reached, op, shapes, dims, windows, inside=op != node.op)
    if is_open and not _substantial(graph, tape, ends):
        return Failure(None, (len(graph.nodes), 0), dims=dims_behind(graph, graph.needed_for(ends)))
    return None


def dims_behind(graph: Graph, needed: Collection[str]) -> frozenset[str]:
    """Open dimensions of the inputs among what is needed."""
    shapes = ((n, declared_shape(graph, n) or ()) for n in graph.free_inputs if n in needed)
    return frozenset(symbol(n, i, d) for n, shape in shapes for i, d in enumerate(shape) if not isinstance(d, int))


def feeds_at(
    source: Source, settings: Settings, ops: Ops, targets: Sequence[str], index: int, dims: Mapping[str, int]
) -> dict[str, Any]:
    """The feeds of the point number `index`, once all open dimensions have sizes `dims`."""
    shipped, known = _known(source, settings, dims)
    drawn = draw(source, settings, ops, known, index, shipped.at(index), source.graph.needed_for(targets))
    return as_computed(source.graph, drawn, settings, ops, known)


def _known(source: Source, settings: Settings, dims: Mapping[str, int]) -> tuple[Shipped, dict[str, int]]:
    """The values that ship with the model, and the sizes of open dimensions that are known."""
    graph = source.graph
    known = {**source.dims, **settings.dims, **sizes_given(graph, settings), **dims}
    shipped = shipped_with(source, settings, known)
    shapes = {n: v.shape for n, v in shipped.inputs.items() if isinstance(v, np.ndarray)}
    return shipped, {**sizes_in(graph, shapes), **known}


def draw(
    source: Source,
    settings: Settings,
    ops: Ops,
    dims: Mapping[str, int],
    index: int,
    shipped: Mapping[str, Any],
    needed: Collection[str],
    again: int = 0,
) -> dict[str, Any]:
    """Values of the inputs needed and of all tensors fed: given values first, then initial, shipped and random ones.

    Integers are other ones in each draw `again`.
    """
    graph = source.graph
    feeds = {**shipped, **source.values_at.get(index, {}), **dict(_initialized(source, settings))}
    for name in graph.inputs:
        if name in needed and name not in (*graph.constants, *feeds) and not _given(settings, name):
            feeds[name] = draw_input(source, settings, ops, name, dims, index, again)
    for given in (settings.x_init_value, settings.extra_feed_dict):
        feeds.update((name, _as_declared(graph, name, value, settings, dims)) for name, value in given.items())
    return {n: in_its_dtype(graph, n, v) for n, v in feeds.items()} if settings.run_in == "model" else feeds


def draw_input(
    source: Source, settings: Settings, ops: Ops, name: str, dims: Mapping[str, int], index: int, again: int = 0
) -> Array:
    """Random values for one input; the draw depends on seed, point and name alone, that of integers on `again` too.

    Where nobody gave a range, further points have other magnitudes.
    """
    declared = source.graph.types.get(name, TensorType())
    if declared.kind != "tensor" or declared.dtype == object:
        what = "strings" if declared.dtype == object else f"a {declared.kind}"
        raise UnsupportedError(f"input {name!r} takes {what}; give it: --feed {quoted(name)}=...", code="GC503")
    dtype = np.dtype(declared.dtype or np.float32)
    shape = concrete(source.graph, name, settings, dims)
    if len(shape) > MAX_RANK:
        raise ModelError(f"input {name!r} has {len(shape)} dimensions; at most {MAX_RANK} are possible")
    require_shape(shape, f"input {name!r}")
    rng = np.random.default_rng([settings.seed, index, zlib.crc32(name.encode())])
    low_high = settings.val_range.get(name, source.ranges.get(name, settings.val_range.get(ANY)))
    if is_inexact(dtype):
        low, high = low_high or float_range(source.graph, name, ops, MAGNITUDES[index % len(MAGNITUDES)])
        values = _uniform(rng, low, high, shape)
        return values + 1j * _uniform(rng, low, high, shape) if dtype.kind == "c" else values
    if dtype.name.startswith("float"):  # of 8 bits or less: each of them has numbers in this range
        return _uniform(rng, *(low_high or (0.5, 2.0)), shape).astype(dtype)
    ends = _integers_in(low_high, dtype) if low_high else None
    if low_high and not ends and (name in settings.val_range or name in source.ranges):
        raise UsageError(f"{name!r} is {dtype.name}, which has no number from {low_high[0]:g} to {low_high[1]:g}.")
    low, high = ends or integer_range(source.graph, name, ops, shape, dims, again)
    rng = np.random.default_rng([settings.seed, index, zlib.crc32(name.encode()), again]) if again else rng
    return rng.integers(low, high, shape, np.uint64 if high > _LAST_INT64 else np.int64, endpoint=True).astype(dtype)


def _uniform(rng: np.random.Generator, low: float, high: float, shape: Sequence[int]) -> Array:
    """Floats of a range, which may be wider than the largest float."""
    return np.asarray(2 * rng.uniform(low / 2, high / 2, shape))


def _integers_in(low_high: tuple[float, float], dtype: np.dtype[Any]) -> tuple[int, int] | None:
    """The least and the largest integer of a dtype in a range; None if it has none there."""
    limits = ml_dtypes.iinfo(dtype if dtype.kind != "b" else np.uint8)  # type: ignore[no-untyped-call]
    low = max(math.ceil(low_high[0]), int(limits.min))
    high = min(math.floor(low_high[1]), 1 if dtype.kind == "b" else int(limits.max))
    return (low, high) if low <= high else None


def _substantial(graph: Graph, tape: Tape, ends: Sequence[str]) -> bool:
    """True unless an end that could be computed is empty, and not so at all sizes, as constants and fixed ones are."""
    ends = [name for name in ends if 0 not in (declared_shape(graph, name) or ())]
    made = [x for name in ends if (x := tape.named.get(name)) is not None and x.name not in tape.fixed]
    return all(x.size for x in made) or not made


def _expected(
    source: Source, settings: Settings, ops: Ops, targets: Sequence[str], feeds: Mapping[str, Any], shipped: Shipped
) -> Expected | None:
    """The shipped outputs, if every input has its shipped value and nothing else is fed."""
    graph = source.graph
    fed = settings.x_init_value or settings.extra_feed_dict or settings.init_targets
    if fed or not shipped.outputs or not set(graph.free_inputs) <= set(shipped.inputs):
        return None
    narrow = {name: in_its_dtype(graph, name, value) for name, value in feeds.items()}

    @cache
    def again() -> Tape:
        return trace(graph, narrow, ops=ops, dtype="model", seed=settings.seed, targets=targets, lenient=True)

    return Expected(graph, shipped.folder, shipped.outputs, again)


def _no_point(
    graph: Graph, known: Mapping[str, int], search: Search, drawn: Sequence[str], shapeless: Sequence[str]
) -> GradcheckError:
    """The error for a model that does not run.

    `drawn` are integers that nobody gave, such as shapes and axes; `shapeless` inputs that were drawn as one number.
    """
    free, last = [k for k in open_dims(graph) if k not in known], search.failure.error if search.failure else None
    feeds = "  ".join(f"--feed {quoted(n)}=..." for n in drawn)
    if shapeless and isinstance(last, ModelError):
        which, shapes = ", ".join(map(shown, shapeless)), "  ".join(f"--x-shape {quoted(n)}:2,3" for n in shapeless)
        cure = f"Declare it in the model, or give it to a check: {shapes}"
        return UsageError(f"the file declares no shape of {which}, and a number does not run. {cure}\n{last}")
    if not free and drawn and isinstance(last, ModelError):
        return UsageError(f"the model does not run at random values of what nobody gave.  Give it: {feeds}\n{last}")
    if not free or isinstance(last, LimitError):
        return last or UsageError("the outputs are empty: there is nothing to differentiate")
    name = next(n for n in graph.free_inputs if any(not isinstance(d, int) for d in graph.types[n].shape or ()))
    shape = graph.types[name].shape or ()
    known_as, sizes = ", ".join(map(shown, free)), [n for each in search.tried for n in each.values()]
    if not search.tried:
        given = "".join(f"{', ' if i else ' at '}{shown(k)}={n}" for i, (k, n) in enumerate(known.items()))
        return UsageError(f"{known_as}: a dimension that is named by a formula has no size{given}.")
    dims = " ".join(f"--dim {quoted(k)}={1 if i == 0 else 32}" for i, k in enumerate(free))
    more = f"  or, as they were drawn: {feeds}" if drawn else ""
    why = f"\nThe last attempt said: {last}" if last else ""
    return UsageError(
        f"no size of {known_as} in {TensorType(None, shape).__str__().rsplit(' ', 1)[0]} makes {name!r} run "
        f"(tried {min(sizes)} ... {max(sizes)}).  Give them: {dims}{more}{why}"
    )


def _given(settings: Settings, name: str) -> bool:
    return name in settings.x_init_value or name in settings.extra_feed_dict


def _as_declared(graph: Graph, name: str, value: Any, settings: Settings, dims: Mapping[str, int]) -> Any:
    """A given value in the kind of numbers that the tensor holds; a scalar fills it."""
    if isinstance(value, CONTAINERS):
        return value
    array, constant = np.asarray(value), graph.constants.get(name)
    dtype = graph.types.get(name, TensorType()).dtype if constant is None else constant.dtype
    if name in graph.inputs or constant is not None:
        shape = concrete(graph, name, settings, dims) if constant is None else constant.shape
        if array.ndim == 0:
            array = np.broadcast_to(array, shape)
        if array.shape != shape and (constant is not None or declared_shape(graph, name) is not None):
            raise UsageError(f"the value given for {name!r} has shape {list(array.shape)}, not {list(shape)}.")
    return array if dtype is None or (is_inexact(dtype) and array.dtype.kind in "fc") else _exactly(name, array, dtype)


def _exactly(name: str, array: Array, dtype: np.dtype[Any]) -> Array:
    """Numbers in a dtype that has all of them."""
    try:
        with np.errstate(all="ignore"):
            cast = array.astype(dtype)
    except (ValueError, TypeError):
        raise UsageError(f"the value given for {name!r} is {array.dtype}, which {dtype.name} cannot hold.") from None
    whole = cast.astype(np.int8) if dtype.name in _HALF_BYTES else cast  # NumPy compares no others of such dtypes
    if (dtype.kind in "iub" or dtype.name in _HALF_BYTES) and not np.array_equal(whole, array):
        raise UsageError(f"the value given for {name!r} has numbers that {dtype.name} has not.")
    return cast


def in_its_dtype(graph: Graph, name: str, value: Any) -> Any:
    """A value in the dtype that the file declares, for runs in the model's own precision."""
    dtype = graph.constants[name].dtype if name in graph.constants else graph.types.get(name, TensorType()).dtype
    if not isinstance(value, np.ndarray) or dtype is None or dtype.kind == "O":
        return value
    if value.dtype.kind == "c" and dtype.kind != "c":
        return value  # given by a user who wants complex numbers
    with np.errstate(all="ignore"):  # infinity is what the model would get, too
        return value.astype(dtype, copy=False)


def _initialized(source: Source, settings: Settings) -> Iterator[tuple[str, Array]]:
    """Values that initialization targets give to tensors of the model."""
    from gradcheck_cli.ops import OPS

    for target in settings.init_targets:
        if target not in source.initializations:
            known = ", ".join(source.initializations) or "none"
            raise UsageError(f"no initialization {target!r}; the model has: {known}.")
        init = source.initializations[target]
        tape = trace(init.graph, {}, ops=OPS, dtype="model", seed=settings.seed)
        for tensor, output in init.bindings.items():
            if tensor in source.graph.tensors:  # and no state of an algorithm that is not part of this graph
                yield tensor, _fitting(source.graph, target, tensor, tape.named[output].value)


def _fitting(graph: Graph, target: str, name: str, value: Array) -> Array:
    """An initial value; ModelError for one that is not like what it replaces."""
    held = graph.constants.get(name)
    if held is not None and (value.shape, value.dtype) != (held.shape, held.dtype):
        given, wanted = TensorType(value.dtype, value.shape), TensorType(held.dtype, held.shape)
        raise ModelError(f"{target} gives {name!r} {wanted} an initial value {given}")
    return value
