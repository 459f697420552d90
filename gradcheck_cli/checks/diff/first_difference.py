"""The place where two models begin to differ: the first inner result that does, or the last cotangent that agrees.

`Run` is one model at one point, with its outputs and their derivatives along cotangents; `Encounter` are both models at
the same values.  A tensor of one model matches the one of the same name in the other; where tools have renamed it, the
one tensor that holds the same numbers, if there is only one.  Tensors between matches, such as those of a fused
operator, are skipped.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from gradcheck_cli.autodiff.tape import Step, Tape
from gradcheck_cli.autodiff.trace import trace
from gradcheck_cli.checks.diff.agreement import Compared, Loss, Place, Tolerance, moved, of_values, row_of, spread
from gradcheck_cli.engine.chunks import Budget
from gradcheck_cli.errors import GradcheckError
from gradcheck_cli.formats.source import Source
from gradcheck_cli.graph import Array, Graph, describe, is_inexact
from gradcheck_cli.graph.containers import Map, elements
from gradcheck_cli.graph.containers import Sequence as Several
from gradcheck_cli.graph.memory import allowed
from gradcheck_cli.jacobian.directions import flat, reals
from gradcheck_cli.jacobian.jacobian import Backward
from gradcheck_cli.op import Ops
from gradcheck_cli.points.test_data import gaps
from gradcheck_cli.results.record import Suspect
from gradcheck_cli.settings import Settings

DRAWS = 4  # runs that measure rounding
EXACT = 16  # reals of y up to which each gets a cotangent of its own
DRAWN = 4  # cotangents of a larger y
_HELD = 16 * 8  # bytes per entry of a derivative: of both models, their rounding and the comparison
_SHARE = 1e-2  # of the difference at the output: the least one inside


class Key(NamedTuple):
    """Names in A of a comparison: an output y, or the derivative of y by x."""

    y: str
    x: str = ""


KeyOutcome: TypeAlias = Compared | GradcheckError | str  # a sentence: they differ in shape or presence
Measured: TypeAlias = dict[Key, Array | GradcheckError]


def first_difference(both: Encounter, y: str, error: float, rtol: float) -> Suspect | None:
    """The suspect for a difference of y: the node of B that computes the first tensor that differs."""
    a, b = both.a, both.b
    found = matched(both, _least(error, rtol))
    graph, way = a.source.graph, _back_to_what_is_same(a.source.graph, y, found.same)
    apart = {**found.apart, y: both.ys[y] or y}
    first = next((n for n in _in_order(graph, way) if n in apart), y)
    node = b.source.graph.producer(apart[first])
    before = [n for n in _reads(graph, first) if n in found.same and n not in graph.constants]
    far, where = f"max rel err {_apart(a, first, b, apart[first]):.1e}", "is the first result that differs"
    if node is None:
        where, node = "has other values", _reader(b.source.graph, apart[first])
    if node is None:
        return None
    own = f"; {both.names[0]} has {_node(graph, first)} there" if graph.producer(first) is not None else ""
    verb = "is" if len(before) == 1 else "are"
    same = f"; {', '.join(map(repr, before[:3]))} before it {verb} the same" if before else ""
    return _suspect(b.source.graph, node, f"{first!r} {where}: {far}{own}{same}")


def last_agreement(both: Encounter, y: str, x: str, weights: Array, error: float, rtol: float) -> Suspect | None:
    """The suspect for a different gradient: the node of B that reads the last tensor whose cotangent differs."""
    a, b = both.a, both.b
    same = {
        **matched(both, max(rtol, 1e-5)).same,
        **{n: o for n, o in ((x, both.xs[x]), (y, both.ys[y])) if o},
    }
    names = [n for n in same if a.floating(n) and b.floating(same[n])]
    try:
        mine = dict(zip(names, a.cotangents(y, names, weights), strict=True))
        theirs = dict(zip(names, b.cotangents(same[y], [same[n] for n in names], weights), strict=True))
    except GradcheckError:
        return None
    agreed = {n for n in names if mine[n].shape == theirs[n].shape and _near(mine[n], theirs[n], _least(error, rtol))}
    graph = a.source.graph
    way = _on_to_what_is_same(graph, x, agreed, graph.needed_for([y]))
    last = [n for n in _in_order(graph, way) if n in same and n not in agreed]
    if not last:
        return None
    node = _reader(b.source.graph, same[last[-1]], b.source.graph.needed_for([same[y]]))
    ends = [n for n in _made_from(graph, way) if n in agreed]
    if node is None:
        return None
    until = f"the gradient of {', '.join(map(repr, ends[:3]))} is the same, that" if ends else "the gradient"
    reader = _reader(graph, last[-1], graph.needed_for([y]))
    own = f"; {both.names[0]} has {describe(reader, graph.nodes[reader])} there" if reader is not None else ""
    return _suspect(b.source.graph, node, f"{until} of {last[-1]!r} is not{own}")


def _least(error: float, rtol: float) -> float:
    """The relative difference that counts for inner tensors, by that of the output."""
    return max(rtol, min(_SHARE * error, 1e-3))


@dataclass(frozen=True)
class Matched:
    """Tensors of A that B has as well, with names there: those that agree (`same`) and those that differ (`apart`)."""

    same: Mapping[str, str]
    apart: Mapping[str, str]


def matched(both: Encounter, rtol: float) -> Matched:
    """The tensors of both models that match."""
    a, b = both.a, both.b
    known = {**{n: o for n, o in (*both.ys.items(), *both.xs.items()) if o}}
    same, apart = dict[str, str](), dict[str, str]()
    for name in a.tape.named:
        other = known.get(name, name)
        if other in b.tape.named and _alike(a, name, b, other):
            into = same if _apart(a, name, b, other) <= rtol else apart
            into[name] = other
    left = {n: None for n in a.tape.named if n not in same and n not in apart}
    taken = {*same.values(), *apart.values()}
    same.update(_by_values(a, left, b, [n for n in b.tape.named if n not in taken], rtol))
    return Matched(same, apart)


def _by_values(a: Run, mine: Iterable[str], b: Run, theirs: Iterable[str], rtol: float) -> Iterator[tuple[str, str]]:
    """Tensors that hold the same numbers as exactly one of the other model."""
    groups = defaultdict[tuple[int, ...], list[str]](list)
    for name in theirs:
        groups[b.tape.named[name].shape].append(name)
    found = {n: [o for o in groups.get(a.tape.named[n].shape, ()) if _alike(a, n, b, o) and _apart(a, n, b, o) <= rtol]
             for n in mine if a.tape.named[n].size > 1}  # fmt: skip
    claims = defaultdict[str, list[str]](list)
    for name, others in found.items():
        for other in others:
            claims[other].append(name)
    yield from ((n, others[0]) for n, others in found.items() if len(others) == 1 and len(claims[others[0]]) == 1)


def _alike(a: Run, name: str, b: Run, other: str) -> bool:
    one, two = a.tape.named[name], b.tape.named[other]
    return one.shape == two.shape and one.size > 0 and is_inexact(one.dtype) and is_inexact(two.dtype)


def _apart(a: Run, name: str, b: Run, other: str) -> float:
    """The largest difference of two tensors, relative to the largest entry."""
    one, two = a.tape.named[name].value, b.tape.named[other].value
    if one.shape != two.shape or one.dtype == object or two.dtype == object:
        return float("inf")
    if one.size > 64 and _clearly_apart(one, two):  # a few entries suffice for most
        return 1.0
    largest = max(_largest(one), _largest(two))
    gap = float(np.max(gaps(one, two), initial=0.0))
    return gap / largest if largest else gap


def _clearly_apart(one: Array, two: Array) -> bool:
    few = slice(None, None, one.size // 16)
    here, there = one.reshape(-1)[few], two.reshape(-1)[few]
    gap = gaps(here, there)
    return bool((gap > 0.5 * max(_largest(one), _largest(two))).any())


def _near(one: Array, two: Array, rtol: float) -> bool:
    largest = np.maximum(np.max(np.abs(one), axis=1, initial=0.0), np.max(np.abs(two), axis=1, initial=0.0))
    return bool((gaps(one, two) <= rtol * largest[:, None]).all())


def _largest(value: Array) -> float:
    with np.errstate(invalid="ignore"):
        size = np.abs(value)
    return float(np.max(size, initial=0.0, where=np.isfinite(size)))


def _back_to_what_is_same(graph: Graph, y: str, same: Mapping[str, str]) -> set[str]:
    """y and the tensors it is computed from, back to those that agree."""
    way = {y}
    for node in reversed(graph.nodes):
        if not way.isdisjoint(node.outputs):
            way.update(name for name in node.reads if name not in same)
    return way


def _on_to_what_is_same(graph: Graph, x: str, agreed: set[str], needed: set[str]) -> set[str]:
    """x and the needed tensors computed from it, up to those whose cotangent agrees."""
    way = {x}
    for node in graph.nodes:
        if not way.isdisjoint(node.reads):
            way.update(n for n in node.outputs if n in needed and n not in agreed)
    return way


def _made_from(graph: Graph, way: set[str]) -> list[str]:
    """Outputs of the nodes that read some of these tensors."""
    return [n for node in graph.nodes if not way.isdisjoint(node.reads) for n in node.outputs if n]


def _in_order(graph: Graph, names: set[str]) -> list[str]:
    """Tensors in the order of their first appearance in the graph."""
    order = dict.fromkeys(n for node in graph.nodes for n in (*node.reads, *node.outputs) if n in names)
    return [*order, *(n for n in names if n not in order)]


def _reads(graph: Graph, name: str) -> tuple[str, ...]:
    index = graph.producer(name)
    return () if index is None else graph.nodes[index].reads


def _reader(graph: Graph, name: str, needed: set[str] | None = None) -> int | None:
    """The first node that reads a tensor on the way to the needed ones."""
    reading = (i for i, node in enumerate(graph.nodes) if name in node.reads)
    return next((i for i in reading if needed is None or needed.intersection(graph.nodes[i].outputs)), None)


def _node(graph: Graph, name: str) -> str:
    index = graph.producer(name)
    assert index is not None
    return describe(index, graph.nodes[index])


def _suspect(graph: Graph, index: int, diagnosis: str) -> Suspect:
    node = graph.nodes[index]
    outputs = tuple(n for n in node.outputs if n)
    reads = tuple(n for n in node.reads if n not in graph.constants)
    return Suspect(index, node.op, node.name, outputs, reads, diagnosis=diagnosis)


@dataclass(frozen=True)
class Encounter:
    """Runs of A and of B; `ys` and `xs` are tensors of A with their partners in B, None where B has none."""

    a: Run
    b: Run
    ys: Mapping[str, str | None]
    xs: Mapping[str, str | None]
    pairs: Collection[Key]  # derivatives to compare
    tolerance: Callable[[Key], Tolerance]
    names: tuple[str, str]  # of both models, for messages
    weights: dict[str, Array] = field(default_factory=dict)

    def compared(self, by: Loss, ops: Ops, only: Collection[Key] | None = None) -> dict[Key, KeyOutcome]:
        """The results for all keys, or for `only` some; rounding is measured where something differs."""
        mine, theirs = self.measured(self.a, only), self.measured(self.b, only)
        found = {key: self._held(key, mine[key], theirs.get(key, theirs.get(Key(key.y)))) for key in mine}
        found = {key: each for key, each in found.items() if not key.x or not isinstance(found.get(Key(key.y)), str)}
        differing = {k: each for k, each in found.items() if isinstance(each, Compared) and each.failed.any()}
        draws = list(self._draws(by, ops, differing)) if differing else []
        return {**found, **{key: _with_noise(key, each, draws) for key, each in differing.items()}}

    def measured(self, run: Run, only: Collection[Key] | None = None) -> Measured:
        """Outputs of one model and their derivatives, by the names of A."""
        found: Measured = {}
        for y, partner in self.ys.items():
            name = partner if run is self.b else y
            if name is None or (only is not None and not any(key.y.startswith(y) for key in only)):
                continue
            if (error := run.obstacle(name)) is not None:
                found[Key(y)] = error
                continue
            found.update((Key(y + inside), value) for inside, value in run.tensors(name).items())
            keys = self.pairs if only is None else only
            xs = [x for x in self.xs if Key(y, x) in keys and self.a.floating(x)]
            if self.a.floating(y) and xs:
                found.update(self._derivatives(run, y, name, xs))
        return found if only is None else {key: value for key, value in found.items() if key in only}

    def _derivatives(self, run: Run, y: str, name: str, xs: Sequence[str]) -> Measured:
        """Cotangents `(P, x_size)` of some xs; zeros for those that the model does not have."""
        partners = {x: self.xs[x] if run is self.b else x for x in xs}
        there = {x: other for x, other in partners.items() if other is not None and run.floating(other)}
        weights = self._weights(y)
        made: Measured = {Key(y, x): np.zeros((len(weights), self.a.size(x))) for x in xs}
        if not run.floating(name) or run.size(name) != weights.shape[1]:
            return made
        try:
            cts = run.cotangents(name, list(there.values()), weights)
        except GradcheckError as error:
            return {**made, **{Key(y, x): error for x in there}}
        return {**made, **{Key(y, x): ct for x, ct in zip(there, cts, strict=True)}}

    def _weights(self, y: str) -> Array:
        """The cotangents of y, as many as the memory limit allows."""
        if y not in self.weights:
            entries = sum(self.a.size(x) for x in self.xs if self.a.floating(x))
            room = max(1, allowed(self.a.settings.memory_limit) // (_HELD * max(entries, 1)))
            self.weights[y] = self.a.weights(y, min(EXACT, room), min(DRAWN, room))
        return self.weights[y]

    def _held(self, key: Key, mine: Array | GradcheckError, theirs: Array | GradcheckError | None) -> KeyOutcome:
        here, there = self.names
        if isinstance(mine, GradcheckError):
            return _told(mine, here)
        if theirs is None or isinstance(theirs, GradcheckError):
            return f"{there} has no such output" if theirs is None else _told(theirs, there)
        if mine.shape != theirs.shape:
            return f"its shape is {list(mine.shape)} in {here} and {list(theirs.shape)} in {there}"
        tolerance = self.tolerance(key)
        if not key.x:
            return of_values(mine, theirs, tolerance)
        scale = np.abs(row_of(self.a.tape.named[key.x].value)[0])
        return Compared(mine, theirs, tolerance, self._place(key), scale=scale)

    def _place(self, key: Key) -> Place:
        x, y = self.a.tape.named[key.x], self.a.tape.named[key.y]
        exact = len(self._weights(key.y)) == self.a.size(key.y)
        return Place(x.shape, y.shape if exact else None, x.dtype.kind == "c", exact and y.dtype.kind == "c")

    def _draws(self, by: Loss, ops: Ops, keys: Collection[Key]) -> Iterator[tuple[Measured, bool]]:
        """Results of A with its numbers moved, and whether it took the same branches."""
        for number in range(DRAWS):
            source, feeds = moved(self.a.source, self.a.feeds, by, ops, number)
            run = Run.of(source, feeds, [*self.ys, *self.xs], self.a.settings, ops)
            yield self.measured(run, keys), self.a.decides_like(run)


def _with_noise(key: Key, found: Compared, draws: Sequence[tuple[Measured, bool]]) -> Compared:
    others = [(value if key.x else row_of(value), alike) for made, alike in draws
              if isinstance(value := made.get(key), np.ndarray) and value.dtype != object]  # fmt: skip
    return replace(found, noise=spread(found.a, others)) if found.tolerance.rtol or found.tolerance.atol else found


def _told(error: GradcheckError, uri: str) -> GradcheckError:
    """The error with the name of its model."""
    told = copy(error)
    told.args = (f"{uri}: {error}",)
    return told


@dataclass(frozen=True)
class Run:
    """A model that was run up to some targets; what could not be computed is in `Tape.blocked`."""

    source: Source
    feeds: Mapping[str, Any]
    tape: Tape
    settings: Settings

    @classmethod
    def of(cls, source: Source, feeds: Mapping[str, Any], targets: Sequence[str], settings: Settings, ops: Ops) -> Run:
        """A run with given feeds."""
        dtype, seed = settings.dtype, settings.seed
        tape = trace(source.graph, feeds, ops=ops, dtype=dtype, seed=seed, targets=targets, lenient=True)
        return cls(source, feeds, tape, settings)

    def obstacle(self, name: str) -> GradcheckError | None:
        """The error because of which a tensor was not computed, or None."""
        return self.tape.blocked.get(name)

    def tensors(self, name: str) -> dict[str, Array]:
        """The tensors in an output: itself, or those inside a sequence, an optional or a map, with a map's keys."""
        if name in self.tape.named:
            return {"": self.tape.named[name].value}
        return _inside(self.tape.containers[name]) if name in self.tape.containers else {}

    def floating(self, name: str) -> bool:
        """True for a tensor of floats or complex numbers."""
        return name in self.tape.named and is_inexact(self.tape.named[name].dtype)

    def cotangents(self, y: str, xs: Sequence[str], weights: Array) -> list[Array]:
        """Cotangents `(P, x_size)` of each x for sums of y weighed by `weights` `(P, y_size)`; zeros without a path.

        NoGradientError if an operator on the way has no rule.
        """
        named, budget = self.tape.named, Budget(allowed(self.settings.memory_limit), self.settings.jobs)
        with self.tape.aside():
            return Backward(self.tape, named[y].name, [named[x].name for x in xs]).along(weights, budget)

    def weights(self, y: str, exact: int, drawn: int) -> Array:
        """Cotangents of y: a basis if it has at most `exact` reals, else `drawn` random ones."""
        value = flat(self.tape.named[y].value)
        rng = np.random.default_rng([self.settings.seed, 7])
        rows = np.eye(value.size) if value.size <= exact else rng.normal(size=(drawn, value.size))
        return np.where(np.isfinite(value), rows, 0.0)  # NaN and infinity have no derivative

    def size(self, name: str) -> int:
        return reals(self.tape.named[name].value)

    @property
    def piecewise(self) -> bool:
        """True if some step takes a branch or makes discrete values."""
        made = (n for step in self.tape.steps for n in step.node.outputs if n)
        return any(step.op.branch is not None for step in self.tape.steps) or any(
            not is_inexact(self.tape.values.like(n).dtype) for n in made
        )

    def changes_with_the_seed(self, ops: Ops) -> bool:
        """True if other random numbers change a result."""
        names = list(self.tape.named)
        other = Run.of(self.source, self.feeds, names, replace(self.settings, seed=self.settings.seed + 1), ops).tape
        return any(
            not np.array_equal(self.tape.named[n].value, other.named[n].value) for n in names if n in other.named
        )

    def decides_like(self, other: Run) -> bool:
        """True if another run of the same steps took the same branch at each of them."""
        here, there = self.tape, other.tape
        steps = zip(here.steps, there.steps, strict=False)
        return len(here.steps) == len(there.steps) and all(_alike_in_both(here, one, there, two) for one, two in steps)


def _alike_in_both(here: Tape, one: Step, there: Tape, two: Step) -> bool:
    if one.op is not two.op:
        return False
    for mine, other in zip(one.node.outputs, two.node.outputs, strict=True):
        discrete = mine and not is_inexact(here.values.like(mine).dtype)
        if discrete and not np.array_equal(here.values[mine], there.values[other]):
            return False
    return one.op.branch is None or bool(np.array_equal(_branch(here, one), _branch(there, two)))


def _branch(tape: Tape, step: Step) -> Array:
    assert step.op.branch is not None
    return np.asarray(step.op.branch(*[tape.values[n] if n else None for n in step.operands], **step.metadata))


def _inside(value: Any) -> dict[str, Array]:
    """The tensors inside a sequence, an optional or a map, and the keys of maps."""
    maps = [each for each in (value.items if isinstance(value, Several) else (value,)) if isinstance(each, Map)]
    keys = {f"[{i}] keys": np.asarray(each.keys, object) for i, each in enumerate(maps)}
    return {**{name: var.value for name, var in elements("", value).items()}, **keys}
