"""Aligns runs of a model with its derivatives at several sizes, to find what depends on sizes.

Rules read sizes as numbers, which become constants on the tape.  All runs must have the same operators with the same
attributes and the same edges; `varying` holds the constants that differ, with their values in each run.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, TypeAlias

import numpy as np

from gradcheck_cli.autodiff.tape import Step, Tape
from gradcheck_cli.autodiff.trace import Dependence
from gradcheck_cli.errors import UnsupportedError
from gradcheck_cli.graph import Array, Dim, FreshNames, Graph, Node, TensorType, computing, describe, is_inexact
from gradcheck_cli.op import DTYPES, Op

Sizes: TypeAlias = tuple[int, ...]  # of one dimension, in each run
Names: TypeAlias = dict[str, str]  # of tensors on a tape -> in the file
Refuse: TypeAlias = Callable[[str], UnsupportedError]
COUNTS = tuple(range(2, 14))  # values of integers that are tried
_ENTRIES, _DRAWS = 8, 8  # integers of a vector for which others are tried, and how often
_PLACES = (0, 1, 2, -1, -2)
_SHORT = 4096  # bytes of a constant that is compared with others to be shared


@dataclass(frozen=True, slots=True)
class TapeRun:
    """A tape without its values: steps, constants, shapes and dtypes.

    `named` maps names of the model's tensors and derivatives to names on the tape; `ends` are the requested outputs.
    """

    steps: tuple[Step, ...]
    like: Mapping[str, Array]  # arrays of the shape and dtype, without numbers
    constants: Mapping[str, Array]
    named: Mapping[str, str]
    ends: tuple[str, ...]

    @staticmethod
    def of(tape: Tape, outputs: Sequence[str]) -> TapeRun:
        """The part of a tape that some outputs need."""
        named = {name: var.name for name, var in tape.named.items()}
        ends = [named[name] for name in outputs]
        steps = needed(tape, ends)
        read = {n for step in steps for n in step.node.reads}.union(ends)
        seen = {*read, *named.values(), *(n for step in steps for n in step.node.outputs if n)}
        like = {n: tape.values.like(n) for n in seen if n in tape.values}
        like = {n: np.broadcast_to(np.empty((), each.dtype), each.shape) for n, each in like.items()}
        return TapeRun(tuple(steps), like, {n: tape.values[n] for n in read & tape.constants}, named, tuple(outputs))


@dataclass(slots=True)
class AlignedRuns:
    """The steps that all runs share, with names of the file, and the constants in which runs differ (`varying`).

    `shapes` holds the sizes of tensors in all runs, `constants` those of rules and compositions that are the same in
    all runs, `ends` the names in the file of the requested outputs.
    """

    nodes: list[tuple[Step, Node]] = field(default_factory=list)
    shapes: dict[str, tuple[Sizes, ...]] = field(default_factory=dict)
    dtypes: dict[str, np.dtype[Any]] = field(default_factory=dict)
    constants: dict[str, Array] = field(default_factory=dict)
    varying: dict[str, tuple[Array, ...]] = field(default_factory=dict)
    ends: dict[str, str] = field(default_factory=dict)


def needed(tape: Tape, names: Sequence[str]) -> list[Step]:
    """The steps that some tensors of a tape need, in order."""
    return [tape.steps[i] for i in computing([step.node for step in tape.steps], names)[0]]


def widened(node: Node, dtype_of: Callable[[str], np.dtype[Any] | None], fresh: Callable[[str], str]) -> Iterator[Node]:
    """The node; a scattered sum of 16-bit floats as one in float32, as runtimes have no other."""
    scattered = node.op in ("ScatterElements", "ScatterND") and node.attrs.get("reduction", "none") != "none"
    dtype = dtype_of(node.outputs[0]) if scattered else None
    if dtype is None or dtype.itemsize != 2:
        yield node
        return
    data, index, updates = node.inputs
    wide = [fresh(f"{node.outputs[0]}/{part}") for part in ("data", "updates", "sum")]
    for given, single in zip((data, updates), wide, strict=False):
        yield Node("Cast", (given,), (single,), {"to": 1}, name=single)
    yield replace(node, inputs=(wide[0], index, wide[1]), outputs=(wide[2],))
    to = next(number for number, known in DTYPES.items() if known == dtype)
    yield Node("Cast", (wide[2],), node.outputs, {"to": to}, name=f"{wide[2]}/narrow")


def aligned(runs: Sequence[TapeRun], names: Sequence[Names], taken: FreshNames, refuse: Refuse) -> AlignedRuns:
    """Aligns runs.

    `names` maps, for each run, names on its tape to names in the file, and is added to: other tensors are called as in
    the first run, with a number if that is `taken`.  `refuse` makes the error for runs that are not alike.
    """
    result = AlignedRuns()
    merger = _Merger(result, names, [run.constants for run in runs], taken, {}, refuse)
    for steps in zip(*(run.steps for run in runs), strict=False):
        result.nodes.append((steps[0], merger.node([step.node for step in steps], steps[0].where)))
    if len({len(run.steps) for run in runs}) > 1:
        raise refuse("it has a different number of operators")
    for end in runs[0].ends:
        result.ends[end] = merger.read([run.named[end] for run in runs], f"{end!r}")
    called = [{**{end: run.named[end] for end in run.ends}, **{own: n for n, own in known.items()}}
              for run, known in zip(runs, names, strict=True)]  # fmt: skip
    by_own = [
        {own: run.like[n] for own, n in each.items() if n in run.like} for run, each in zip(runs, called, strict=True)
    ]
    for own, first in by_own[0].items():
        shapes = [found[own].shape for found in by_own if own in found and found[own].ndim == first.ndim]
        if len(shapes) == len(runs):
            result.shapes[own] = tuple(zip(*shapes, strict=True))
            result.dtypes[own] = first.dtype
    return result


@dataclass(slots=True)
class _Merger:
    """Merges the nodes of all runs to one, with names of the file."""

    result: AlignedRuns
    names: Sequence[Names]
    constants: Sequence[Mapping[str, Array]]
    taken: FreshNames
    held: dict[tuple[Any, ...], str]  # values of a constant in all runs -> its name
    refuse: Refuse

    def node(self, nodes: Sequence[Node], where: str) -> Node:
        """One node for those of all runs; `where` names their origin in messages."""
        nodes = self._of_empty_ones(nodes)
        first = nodes[0]
        other = next((node for node in nodes if _kind(node) != _kind(first)), None)
        if other is not None:
            what = f"{first.op} or {other.op}" if other.op != first.op else f"another {first.op}"
            raise self.refuse(f"{where} has {what}")
        inputs = tuple(self.read(names, where) for names in zip(*(node.inputs for node in nodes), strict=True))
        attrs = {key: self._attribute(key, [node.attrs[key] for node in nodes], first, where) for key in first.attrs}
        outputs = tuple(self.made(names) for names in zip(*(node.outputs for node in nodes), strict=True))
        return replace(first, inputs=inputs, outputs=outputs, attrs=attrs)

    def _of_empty_ones(self, nodes: Sequence[Node]) -> Sequence[Node]:
        """The nodes, with `allowzero` in all of them if a Reshape has it in runs with a size of 0, and there alone."""
        if any(node.key != ("", "Reshape") for node in nodes):
            return nodes
        here = [(node, held) for node, held in zip(nodes, self.constants, strict=True) if "allowzero" not in node.attrs]
        if not 0 < len(here) < len(nodes) or not all(np.all(held.get(node.inputs[1], 0) > 0) for node, held in here):
            return nodes
        return [replace(node, attrs={**node.attrs, "allowzero": 1}) for node in nodes]

    def made(self, names: Sequence[str]) -> str:
        """The name in the file of a tensor that a node computes, from its names in the runs."""
        if not names[0]:
            return ""
        own = self.names[0].get(names[0]) or self.taken.fresh(names[0])
        for name, known in zip(names, self.names, strict=True):
            known[name] = own
        return own

    def read(self, names: Sequence[str], where: str) -> str:
        """The name in the file of a tensor that a node reads, from its names in the runs."""
        found = {known.get(name) for name, known in zip(names, self.names, strict=True)}
        values = [held[name] for name, held in zip(names, self.constants, strict=True) if name in held]
        if found == {None} and len(values) == len(names):
            return self._constant(names[0], values)
        (own, *others) = found
        if others or (own is None and any(names)):
            raise self.refuse(f"{where} reads other tensors")
        return own or ""

    def _constant(self, name: str, values: Sequence[Array]) -> str:
        """The name of a constant of a rule; constants with the same values in every run share one name."""
        short = [v.dtype != object and v.nbytes <= _SHORT for v in values]
        key = tuple((v.dtype, v.shape, v.tobytes() if s else id(v)) for v, s in zip(values, short, strict=True))
        if key not in self.held:
            self.held[key] = own = self.taken.fresh(name)
            if all(_same(value, values[0]) for value in values):
                self.result.constants[own] = values[0]
            else:
                self.result.varying[own] = tuple(values)
        return self.held[key]

    def _attribute(self, key: str, values: Sequence[Any], node: Node, where: str) -> Any:
        if all(isinstance(value, Graph) for value in values):
            return self._body(values, where)
        if not all(_same(value, values[0]) for value in values):
            raise self.refuse(f"{where} has the attribute {key!r} of {node.op}")
        return values[0]

    def _body(self, graphs: Sequence[Graph], where: str) -> Graph:
        """A subgraph; its constants become constants of the graph around it."""
        if len({(len(g.inputs), len(g.nodes), len(g.outputs)) for g in graphs}) > 1:
            raise self.refuse(f"{where} has another {graphs[0].name!r} inside")
        held = [{**outer, **g.constants} for outer, g in zip(self.constants, graphs, strict=True)]
        inner = replace(self, names=[dict(known) for known in self.names], constants=held)
        read, ends = (
            list(zip(*each, strict=True)) for each in ([g.inputs for g in graphs], [g.outputs for g in graphs])
        )
        inputs = tuple(map(inner.made, read))
        nodes = tuple(inner.node(each, where) for each in zip(*(g.nodes for g in graphs), strict=True))
        outputs = tuple(inner.read(names, where) for names in ends)
        types = {
            own: _common([g.types.get(n, TensorType()) for n, g in zip(names, graphs, strict=True)])
            for own, names in zip((*inputs, *outputs), (*read, *ends), strict=True)
        }
        return replace(graphs[0], inputs=inputs, outputs=outputs, nodes=nodes, constants={}, types=types)


def _common(declared: Sequence[TensorType]) -> TensorType:
    """The type that is declared in all runs; dimensions that differ are left open."""
    shapes = [each.shape for each in declared if each.shape is not None]
    if len(shapes) < len(declared) or len({len(shape) for shape in shapes}) != 1:
        return replace(declared[0], shape=None)
    dims: tuple[Dim, ...] = tuple(each[0] if len(set(each)) == 1 else None for each in zip(*shapes, strict=True))
    return replace(declared[0], shape=dims)


def _kind(node: Node) -> tuple[Any, ...]:
    left_out = tuple(not name for name in (*node.inputs, *node.outputs))
    return node.domain, node.op, len(node.inputs), left_out, tuple(node.attrs)


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return a is b or (a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes())
    return type(a) is type(b) and bool(a == b)


# Inputs that decide what runs have in common


@dataclass(frozen=True, slots=True)
class Count:
    """An integer input on whose value shapes depend, such as a number of iterations; `like` has its shape and dtype."""

    name: str
    like: Array

    @property
    def symbol(self) -> str:
        """The name of its value among the sizes of dimensions."""
        return f"value of {self.name!r}"


def counts(graph: Graph, tape: Tape, given: Collection[str]) -> Iterator[Count]:
    """Integer inputs without given values, on whose values shapes depend in a run of the model."""
    for name in graph.free_inputs:
        like = tape.values.get(name) if name not in given else None
        if like is None or like.dtype.kind != "i" or like.size != 1:
            continue
        if Dependence.on([name], tape, graph).shapes:
            yield Count(name, like)


def sizing(graph: Graph, tape: Tape, outputs: Sequence[str], fixed: Collection[str]) -> list[str]:
    """Inputs of several integers on whose values the shapes of tensors behind them depend that outputs need."""
    read = {n for step in needed(tape, [tape.named[name].name for name in outputs]) for n in step.node.reads}
    return [n for n, shapes in sized_by(graph, tape, fixed).items() if not read.isdisjoint(shapes)]


def sized_by(graph: Graph, tape: Tape, fixed: Collection[str]) -> dict[str, Collection[str]]:
    """Inputs of several integers, with the tensors whose shapes depend on their values."""
    values = {n: tape.values[n] for n in graph.free_inputs if n in tape.values and n not in fixed}
    several = [n for n, x in values.items() if x.dtype.kind in "iu" and x.size > 1]
    found = {n: Dependence.on([n], tape, graph).shapes for n in several}
    return {n: shapes for n, shapes in found.items() if shapes}


def sized_first(graph: Graph, tape: Tape, name: str) -> str:
    """The first node of a model with a result whose shape follows from the values of an input."""
    shapes = Dependence.on([name], tape, graph).shapes
    sized = (i for i, node in enumerate(graph.nodes) if _any_of(tape, node.outputs, shapes))
    return _described(graph, next(sized, None))


def settled_first(graph: Graph, tape: Tape, name: str) -> str:
    """The first node of a model that has metadata from an input."""
    values = _valued(graph, tape, name)
    statics = ((i, _statics(tape, node)) for i, node in enumerate(graph.nodes))
    return _described(graph, next((i for i, names in statics if _any_of(tape, names, values)), None))


def _described(graph: Graph, index: int | None) -> str:
    return "a node" if index is None else describe(index, graph.nodes[index])


def _any_of(tape: Tape, names: Iterable[str], found: Collection[str]) -> bool:
    """True if any of some tensors of the model is among those found on the tape."""
    return any(tape.named[n].name in found for n in names if n in tape.named)


def _statics(tape: Tape, node: Node) -> list[str]:
    """Inputs of a node that are metadata of its operator."""
    op = tape.ops.get(node.key)
    static = op.static.values() if op is not None and _decides(op) else ()
    return [node.inputs[i] for i in static if i < len(node.inputs)]


def settling(graph: Graph, tape: Tape, fixed: Collection[str]) -> Iterator[str]:
    """Inputs whose values are metadata of an operator on numbers: an axis, a mode."""
    metadata = {n for step in tape.steps if _decides(step.op) and _of_numbers(tape, step) for n in step.statics}
    for node in graph.nodes:  # of composed operators no step has them
        given = _statics(tape, node) if _inexact(tape, node.outputs) else ()
        metadata.update(tape.named[n].name for n in given if n in tape.named)
    for name in graph.free_inputs:
        if name not in fixed and name in tape.values and not metadata.isdisjoint(_valued(graph, tape, name)):
            yield name


def _decides(op: Op) -> bool:
    """True where the derivative follows from metadata: not of a layout, nor of a selection, whose results are read."""
    return op.moves not in ("all", "selected")


def _inexact(tape: Tape, names: Iterable[str]) -> bool:
    """True if any of some tensors of the model holds numbers that may have a derivative."""
    return any(n in tape.named and is_inexact(tape.named[n].dtype) for n in names)


def _of_numbers(tape: Tape, step: Step) -> bool:
    return any(n in tape.values and is_inexact(tape.values.like(n).dtype) for n in step.outputs)


def _valued(graph: Graph, tape: Tape, name: str) -> Collection[str]:
    return Dependence.on([name], tape, graph).values


def unchanged(found: Mapping[str, Sequence[Array]], least: int = 2) -> list[str]:
    """The names that have fewer different values than it takes to tell what follows from them."""
    return [n for n, values in found.items() if len({(v.shape, *v.ravel().tolist()) for v in values}) < least]


def other_integers(x: Array, seed: int) -> Iterator[Array]:
    """Integers for the place of some that decide shapes: others, in another order, or of the same product or sum."""
    random, flat = Random(seed), x.ravel().tolist()
    for _ in range(_DRAWS if 0 < len(flat) <= _ENTRIES else 0):
        one, other = random.choice(range(len(flat))), random.choice(range(len(flat)))
        factor = random.choice([f for f in range(1, abs(flat[one]) + 1) if flat[one] % f == 0] or [1])
        ways = (
            {one: flat[one] // factor, other: flat[other] * factor},
            {one: random.choice(COUNTS)},
            {one: flat[other], other: flat[one]},
            {one: -1, other: random.choice((1, *COUNTS))},
            {one: flat[one] - 1, other: flat[other] + 1},
            {one: random.choice(_PLACES)},
        )
        for way in ways:
            made = [way.get(i, n) for i, n in enumerate(flat)]
            if made != flat:
                yield np.array(made, x.dtype).reshape(x.shape)
