"""Subgraphs of nodes in gradient files: tapes on which they are built, and changes to finished ones.

A subgraph reads tensors of the tape around it by their names there; all other tensors in it get names that are unique
in the file.  An `InnerTape` also tells which of its tensors depend on values of inputs, since a file must be right for
all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gradcheck_cli.autodiff.backward import gradients, units_between
from gradcheck_cli.autodiff.reach import Dependence
from gradcheck_cli.autodiff.tape import Step, Tape, Var
from gradcheck_cli.autodiff.trace import GraphFunction, names_within
from gradcheck_cli.errors import ModelError, UnsupportedError
from gradcheck_cli.export.runs import needed
from gradcheck_cli.graph import Array, Graph, Node, TensorType, is_inexact
from gradcheck_cli.graph.containers import CONTAINERS, described
from gradcheck_cli.op import Op, Ops

NUMBER, FLAG = TensorType(np.dtype(np.int64), ()), TensorType(np.dtype(np.bool_), ())  # first inputs of a Loop's body
_EMPTY = Graph((), (), ())


class FileOps(dict[tuple[str, str], Op]):
    """The operators for a file.

    `fixed` names tensors that are fed, which are constants of the file.  `counts` names inputs for which the model is
    run at several values, so that shapes may depend on them.
    """

    def __init__(self, ops: Ops, fixed: Iterable[str] = (), counts: Iterable[str] = ()) -> None:
        super().__init__(ops)
        self.fixed, self.counts = frozenset(fixed), frozenset(counts)


class InnerTape(Tape):
    """A tape on which a subgraph of a node is built; `part` is its name in messages, `around` the tape of the node.

    Three sets of tensors that it reads from `around`: those whose shapes depend on values of inputs (`shaped`), those
    whose shapes depend on values other than counts (`passing`), and those whose values depend on counts at most
    (`steady`).
    """

    def __init__(self, around: Tape, name: str, part: str) -> None:
        super().__init__(around.ops, dtype=around.dtype, seed=around.seed)
        self.around, self.part, self.general = around, part, around.general
        self.name = taken(around, name)
        self.shaped, self.passing, self.steady = set[str](), set[str](), set[str]()
        self._read: set[str] = set()

    def fresh(self, name: str) -> str:
        """An unused name for a tensor or node, prefixed with the name of the tape."""
        scope = self._scope
        self._scope = scope if f"{scope}/".startswith(f"{self.name}/") else f"{self.name}/{scope}".rstrip("/")
        try:
            return super().fresh(name)
        finally:
            self._scope = scope

    def input(self, name: str, value: Any) -> Var:
        """An input of the subgraph."""
        return self.hold(self.fresh(name), value)

    def read(self, names: Iterable[str]) -> dict[str, Var]:
        """Tensors of the tape around it, by name; those that do not depend on values of inputs are constants here."""
        names, changing, other = list(names), varying(self.around), passing(self.around)
        self.shaped.update(changing.shapes.intersection(names))
        self.passing.update(other.shapes.intersection(names))
        self.steady.update(set(names) - other.values)
        for name in set(names) - self._read:
            found = self.around.values.part([name])
            self.values.update(found)
            self.values.recipes.update(found.recipes)
            if name not in changing.values:
                self.constants.add(name)
                self.fixed.add(name)
        self._read.update(names)
        return {name: self.var(name) for name in names}

    def stand_in(self, name: str, value: Array) -> Var:
        """A tensor of the tape around it, with another value than there, perhaps of another shape."""
        if name not in self._read:
            self._read.add(name)
            self.hold(name, value)
        return self.var(name)

    def run(self, graph: Graph, *arguments: Var) -> tuple[Any, ...]:
        """Runs a graph, which may read tensors of the tape around it; gives its outputs."""
        return GraphFunction(self, graph, self.read(graph.captures), self.part)(*arguments)

    def pulled_back(self, cts: Iterable[tuple[Var, Var]], xs: Sequence[str]) -> list[Var | None]:
        """The cotangents of xs, from pairs of a result and its cotangent.

        Raises an UnsupportedError if the derivative would be another graph at other values of the inputs.
        """
        seeds: dict[str, Var] = {}
        for y, ct in cts:
            seeds[y.name] = seeds[y.name] + ct if y.name in seeds else ct
        self._require_lasting(xs, seeds)
        return gradients(self, seeds, xs)

    def flood(self, names: Iterable[str]) -> set[str]:
        """All tensors that a derivative with respect to some tensors may reach, with these themselves."""
        found = set(names)
        for step in self.steps:
            if not found.isdisjoint(step.operands):
                found.update(n for n in step.outputs if n and is_inexact(self.values.like(n).dtype))
        return found

    def reads(self, outputs: Sequence[Var]) -> set[str]:
        """Names of all tensors that are read to compute some outputs."""
        return {name for step in needed(self, [y.name for y in outputs]) for name in step.node.reads}

    def graph(self, inputs: Sequence[Var], outputs: Sequence[Var]) -> Graph:
        """The subgraph that computes the outputs."""
        ends = [y.name for y in outputs]
        steps, shaped = needed(self, ends), varying(self).shapes
        if any(_draws(step, self.ops) for step in steps):
            raise self._drawn()
        read = {name for step in steps for name in step.node.reads}.union(ends)
        constants = {n: self.values[n] for n in sorted((read & self.constants) - self._read)}
        shapes = {x.name: (None,) * x.ndim if x.name in shaped else x.shape for x in (*inputs, *outputs)}
        types = {x.name: TensorType(x.dtype, shapes[x.name]) for x in (*inputs, *outputs)}
        made = Graph(
            tuple(x.name for x in inputs),
            tuple(ends),
            tuple(step.node for step in steps),
            constants,
            types,
            name=self.name,
        )
        return ended(made, lambda _: taken(self, "output"))

    def dependence(self, steady: Iterable[str] = ()) -> Dependence:
        """The tensors that depend on values of inputs or of tensors read from outside, except `steady` ones."""
        return Dependence.on(_fed(self).difference(steady), self, _EMPTY, self.shaped)

    def _label(self, name: str, outputs: Sequence[str]) -> str:
        return taken(self, name) if name else outputs[0]

    def _require_lasting(self, xs: Sequence[str], ys: Iterable[str]) -> None:
        """Raises an UnsupportedError if a rule reads a shape or takes a way that depends on values of inputs."""
        found = passing(self)
        if not found.values.isdisjoint(self.guards):
            raise self._passing("a way inside that has no node of its own follows from values")
        units = [unit for unit in units_between(self, xs, ys) if "kept" not in unit.metadata]
        if any(_masked(self.steps[i]) for unit in units for i in unit.steps):
            raise self._drawn()
        read = [n for unit in units for n in (*unit.operands, *unit.outputs)]
        composed = (step for step in self.steps if step.node.op != step.place.op)
        read += [n for step in composed for n in (*step.operands, *step.outputs)]
        if name := next((n for n in read if n in found.shapes), None):
            raise self._passing(f"the shape of {name!r} follows from values")

    def _passing(self, what: str) -> UnsupportedError:
        return UnsupportedError(f"{self.part}: {what}, so that its derivative cannot be in a file for every value.")

    def _drawn(self) -> UnsupportedError:
        return UnsupportedError(f"{self.part}: its derivative in a file cannot draw the same random numbers again.")


def varying(tape: Tape) -> Dependence:
    """The tensors on a tape that depend on values of the file's inputs."""
    fixed = tape.ops.fixed if isinstance(tape.ops, FileOps) else ()
    if isinstance(tape, InnerTape):
        return tape.dependence(fixed)
    return Dependence.on(_fed(tape).difference(fixed), tape, _EMPTY)


def passing(tape: Tape) -> Dependence:
    """The tensors on a tape that depend on values of the file's inputs other than counts."""
    if isinstance(tape, InnerTape):
        return Dependence.on(_fed(tape) - tape.steady, tape, _EMPTY, tape.passing)
    known = tape.ops.fixed | tape.ops.counts if isinstance(tape.ops, FileOps) else ()
    return Dependence.on(_fed(tape).difference(known), tape, _EMPTY)


def _fed(tape: Tape) -> set[str]:
    """Names of the tensors on a tape that no step computes and that are no constants."""
    made = {name for step in tape.steps for name in step.outputs}
    return {*tape.values, *tape.values.recipes} - made - tape.constants


def _draws(step: Step, ops: Ops) -> bool:
    """True if a step draws random numbers, or applies a mask of Dropout that another step has drawn."""
    return _masked(step) or "rng" in step.metadata or any(draws(graph, ops) for graph in step.node.subgraphs)


def _masked(step: Step) -> bool:
    return step.op.name == "Where" and "Dropout" in step.place.op


def zeros(x: Var) -> Var:
    """Zeros of the shape that x has when the file is run."""
    return x.tape.apply("ConstantOfShape", x.tape.apply("Shape", x), value=np.zeros(1, x.dtype))


def taken(tape: Tape, name: str) -> str:
    """Reserves an unused name on a tape, for a tensor or subgraph of a node."""
    tape.reserved.add(own := tape.fresh(name))
    return own


def closed(body: GraphFunction) -> Graph:
    """The graph of a body, in which tensors read from outside have their names on the tape."""
    names = {}
    for name in body.graph.captures:
        if name not in body.around:
            raise ModelError(f"the {body.part} reads {name!r}, which has no value")
        if not isinstance(value := body.around[name], Var):
            raise UnsupportedError(f"the {body.part} reads {name!r}, {described(value)}; in a file it reads tensors")
        names[name] = value.name
    graph = renamed(body.graph, names)
    if isinstance(body.tape, InnerTape):  # the model's own graph has these names already
        graph = relabeled(graph, {name: taken(body.tape, name) for name in sorted(names_within(graph))})
    return ended(graph, lambda name: taken(body.tape, f"{name}/output"))


def reads_containers(body: GraphFunction) -> bool:
    """True if a body reads sequences, optionals or maps from outside."""
    return any(isinstance(body.around.get(name), CONTAINERS) for name in body.graph.captures)


def captured(*graphs: Graph) -> tuple[str, ...]:
    """Names that subgraphs read from outside, each once."""
    return tuple(dict.fromkeys(name for graph in graphs for name in graph.captures))


def declared(graph: Graph, inputs: Sequence[Var | TensorType]) -> Graph:
    """The graph with declared types of its inputs, which files need where nothing else tells them."""
    types = (x if isinstance(x, TensorType) else TensorType(x.dtype, (None,) * x.ndim) for x in inputs)
    nodes = tuple(_with_counters(node) if node.op == "Loop" else node for node in graph.nodes)
    return replace(graph, nodes=nodes, types={**dict(zip(graph.inputs, types, strict=False)), **graph.types})


def _with_counters(node: Node) -> Node:
    return replace(node, attrs={**node.attrs, "body": declared(node.attrs["body"], [NUMBER, FLAG])})


def renamed(graph: Graph, names: Mapping[str, str]) -> Graph:
    """The graph with other names for the tensors that it reads from outside, also in its subgraphs."""
    own = set(graph.tensors)
    names = {old: new for old, new in names.items() if old != new and old not in own}
    if not names:
        return graph
    nodes = tuple(_renamed(node, names) for node in graph.nodes)
    types = {names.get(name, name): declared for name, declared in graph.types.items()}
    return replace(graph, nodes=nodes, outputs=tuple(names.get(n, n) for n in graph.outputs), types=types)


def _renamed(node: Node, names: Mapping[str, str]) -> Node:
    attrs = {k: renamed(v, names) if isinstance(v, Graph) else v for k, v in node.attrs.items()}
    return replace(node, inputs=tuple(names.get(n, n) for n in node.inputs), attrs=attrs)


def relabeled(graph: Graph, names: Mapping[str, str]) -> Graph:
    """The graph with other names for its own tensors, also in its subgraphs."""

    def to(some: Iterable[str]) -> tuple[str, ...]:
        return tuple(names.get(name, name) for name in some)

    def node_of(node: Node) -> Node:
        attrs = {k: relabeled(v, names) if isinstance(v, Graph) else v for k, v in node.attrs.items()}
        return replace(node, inputs=to(node.inputs), outputs=to(node.outputs), attrs=attrs)

    constants = dict(zip(to(graph.constants), graph.constants.values(), strict=True))
    types = dict(zip(to(graph.types), graph.types.values(), strict=True))
    nodes = tuple(map(node_of, graph.nodes))
    return replace(
        graph, inputs=to(graph.inputs), outputs=to(graph.outputs), nodes=nodes, constants=constants, types=types
    )


def ended(graph: Graph, fresh: Callable[[str], str]) -> Graph:
    """The graph with Identity nodes for outputs that no node of its own computes, or that are outputs twice.

    Files need that; `fresh` makes the names.
    """
    made = {name for node in graph.nodes for name in node.outputs}
    outputs: list[str] = []
    for name in graph.outputs:
        outputs.append(name if name in made and name not in outputs else fresh(name))
    handed = [(old, new) for old, new in zip(graph.outputs, outputs, strict=True) if old != new]
    nodes = tuple(Node("Identity", (old,), (new,)) for old, new in handed)
    types = {**graph.types, **{new: graph.types[old] for old, new in handed if old in graph.types}}
    return replace(graph, outputs=tuple(outputs), nodes=(*graph.nodes, *nodes), types=types) if handed else graph


def draws(graph: Graph, ops: Ops) -> bool:
    """True if a node of the graph or of its subgraphs draws random numbers."""
    return any(
        _node_draws(node, graph, ops) or any(draws(inner, ops) for inner in node.subgraphs) for node in graph.nodes
    )


def _node_draws(node: Node, graph: Graph, ops: Ops) -> bool:
    if node.key not in ops or "rng" not in ops[node.key].signature.supplied:
        return False
    if "Dropout" not in node.op:
        return True
    training = graph.constants.get(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2] else np.asarray(False)
    return training is None or bool(np.any(training))
