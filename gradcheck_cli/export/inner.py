"""Nodes with subgraphs in gradient files: tapes on which subgraphs are built, changes to them, and such nodes as steps.

A subgraph reads tensors of the tape around it by their names there; all other tensors in it get names that are unique
in the file.  An `InnerTape` also tells which of its tensors depend on values of inputs, since a file must be right for
all of them.  A node with subgraphs is a single step of its tape (`keep`), whose operands are its inputs and what its
subgraphs read outside.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from msgspec import structs

from gradcheck_cli.autodiff.backward import gradients, units_between
from gradcheck_cli.autodiff.outlined import OutlinedTape
from gradcheck_cli.autodiff.tape import Large, Step, Tape, Var, run
from gradcheck_cli.autodiff.trace import Dependence, GraphFunction, run_node
from gradcheck_cli.errors import ModelError, UnsupportedError, shown
from gradcheck_cli.export.runs import needed, widened
from gradcheck_cli.graph import Array, Graph, Node, TensorType, is_inexact
from gradcheck_cli.graph.containers import CONTAINERS, described
from gradcheck_cli.op import DTYPES, Op, Ops, table
from gradcheck_cli.ops.recurrent import UNROLLED
from gradcheck_cli.ops.subgraphs import CONTROL_FLOW, scan_outline

NUMBER, FLAG = TensorType(np.dtype(np.int64), ()), TensorType(np.dtype(np.bool_), ())  # first inputs of a Loop's body
_MASKING = ("one", "half", "none", "own", "rest", "share", "like", "scaled", "zero")
_EMPTY = Graph((), (), ())
_SCANNED = ("scan_output_axes", "scan_output_directions")


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
        self._read, self._standing = set[str](), set[str]()

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
        changing, other = varying(self.around), passing(self.around)
        names = [name for name in names if name not in self._standing]
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
        return {name: self.var(name) for name in (*names, *self._standing)}

    def _given(self, op: Op, x: Any) -> Any:
        if isinstance(x, Large) and x.name not in self.values:  # a kernel of many steps reads it where it stands
            self.read([x.name])
        return super()._given(op, x)

    def stand_in(self, name: str, value: Array) -> Var:
        """A tensor of the tape around it, with another value than there, perhaps of another shape."""
        if name not in self._read:
            self._read.add(name)
            self._standing.add(name)
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

        def dtype_of(name: str) -> np.dtype[Any]:
            return self.values.like(name).dtype

        def fresh(hint: str) -> str:
            return taken(self, hint.removeprefix(f"{self.name}/"))

        nodes = (each for step in steps for each in widened(step.node, dtype_of, fresh))
        made = Graph(tuple(x.name for x in inputs), tuple(ends), tuple(nodes), constants, types, name=self.name)
        return ended(made, lambda _: taken(self, "output"))

    def dependence(self, steady: Iterable[str]) -> Dependence:
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
            made = next((f" of {step.where}" for step in self.steps if name in step.outputs), "")
            raise self._passing(f"the shape of {name!r}{made} follows from values")

    def _passing(self, what: str) -> UnsupportedError:
        return UnsupportedError(f"{self.part}: {what}, so that its derivative cannot be in a file for every value.")

    def _drawn(self) -> UnsupportedError:
        return UnsupportedError(f"{self.part}: its derivative in a file cannot draw the same random numbers again.")


def varying(tape: Tape) -> Dependence:
    """The tensors on a tape that depend on values of the file's inputs."""
    fixed = tape.ops.fixed if isinstance(tape.ops, FileOps) else ()
    shaped = tape.shaped if isinstance(tape, InnerTape) else ()
    return Dependence.on(_fed(tape).difference(fixed), tape, _EMPTY, shaped)


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
    graph = captures_renamed(body.graph, names)
    if isinstance(body.tape, InnerTape):  # the model's own graph has these names already
        graph = relabeled(graph, {name: taken(body.tape, name) for name in sorted(graph.all_tensors)})
    return ended(graph, lambda name: taken(body.tape, f"{name}/output"))


def reads_containers(body: GraphFunction) -> bool:
    """True if a body reads sequences, optionals or maps from outside."""
    return any(isinstance(body.around.get(name), CONTAINERS) for name in body.graph.captures)


def declared(graph: Graph, inputs: Sequence[Var | TensorType]) -> Graph:
    """The graph with declared types of its inputs, which files need where nothing else tells them."""
    types = (x if isinstance(x, TensorType) else TensorType(x.dtype, (None,) * x.ndim) for x in inputs)
    nodes = tuple(_with_counters(node) if node.op == "Loop" else node for node in graph.nodes)
    return replace(graph, nodes=nodes, types={**dict(zip(graph.inputs, types, strict=False)), **graph.types})


def _with_counters(node: Node) -> Node:
    return replace(node, attrs={**node.attrs, "body": declared(node.attrs["body"], [NUMBER, FLAG])})


def renamed(node: Node, names: Mapping[str, str]) -> Node:
    """The node with other names for tensors that it or its subgraphs read, and for its outputs."""
    if names.keys().isdisjoint((*node.reads, *node.outputs)):
        return node
    inputs, outputs = (tuple(names.get(n, n) for n in part) for part in (node.inputs, node.outputs))
    return replace(node.with_graphs(lambda graph: captures_renamed(graph, names)), inputs=inputs, outputs=outputs)


def captures_renamed(graph: Graph, names: Mapping[str, str]) -> Graph:
    """The graph with other names for the tensors that it reads from outside, also in its subgraphs."""
    names = {name: names[name] for name in graph.captures if name in names}
    outputs, types = (tuple(names.get(name, name) for name in each) for each in (graph.outputs, graph.types))
    nodes = tuple(renamed(node, names) for node in graph.nodes)
    return replace(graph, nodes=nodes, outputs=outputs, types=dict(zip(types, graph.types.values(), strict=True)))


def relabeled(graph: Graph, names: Mapping[str, str]) -> Graph:
    """The graph with other names for its own tensors, also in its subgraphs."""

    def to(some: Iterable[str]) -> tuple[str, ...]:
        return tuple(names.get(name, name) for name in some)

    def node_of(node: Node) -> Node:
        inner = node.with_graphs(lambda graph: relabeled(graph, names))
        return replace(inner, inputs=to(node.inputs), outputs=to(node.outputs))

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
    for node in graph.nodes:
        drawing = node.key in ops and "rng" in ops[node.key].signature.supplied
        if drawing and "Dropout" in node.op:
            given = node.inputs[2] if len(node.inputs) > 2 else ""
            training = graph.constants.get(given) if given else np.asarray(False)
            drawing = training is None or bool(np.any(training))
        if drawing or any(draws(inner, ops) for inner in node.subgraphs):
            return True
    return False


@dataclass(frozen=True, slots=True)
class KeptNode:
    """A node with subgraphs, which is run on a tape of its own, where it is unrolled as in a check.

    Shapes of outputs: the first are those of `like`.  Outputs with an index in `ragged` have shapes that depend on the
    values of `counted` tensors, such as the number of iterations or the condition of an If; those with an index in
    `loose` have shapes that depend on the shapes of operands.  A node that draws has one that is `read` for its
    derivative, which reads what it drew.
    """

    node: Node
    ops: Ops
    dtype: str
    seed: int
    ragged: Collection[int] = ()
    counted: tuple[str, ...] = ()
    like: tuple[str, ...] = ()
    loose: Collection[int] = range(sys.maxsize)
    read: Node | None = None

    @property
    def known(self) -> Node:
        """The node by whose subgraphs the derivative is computed."""
        return self.node if self.read is None else self.read

    @property
    def drawn(self) -> list[str]:
        """Outputs that hold what the node drew."""
        return [name for name in self.node.outputs[len(self.known.outputs) :] if name]

    @property
    def reads(self) -> tuple[str, ...]:
        """The inputs, with "" for those left out, and the tensors that the subgraphs read from outside."""
        captured = dict.fromkeys(name for graph in self.node.subgraphs for name in graph.captures)
        return (*self.node.inputs, *captured)

    @property
    def states(self) -> tuple[str, ...]:
        """Names of the initial states of a loop."""
        inputs, rows = self.node.inputs, self.node.attrs.get("num_scan_inputs", 0)
        return inputs[2:] if self.node.op == "Loop" else inputs[:-rows] if self.node.op == "Scan" else ()

    def run(self, *arrays: Array | None) -> tuple[Array, ...]:
        """The outputs for values of `reads`."""
        tape = Tape(self.ops, dtype=self.dtype, seed=self.seed)
        given = zip(self.reads, arrays, strict=True)
        scope: dict[str, Any] = {name: tape.hold(name, value) for name, value in given if value is not None}
        run_node(tape, self.node, scope, outputs=())
        made = [scope[name] if name else tape.constant(0) for name in self.node.outputs]
        other = next((y for y in made if not isinstance(y, Var)), None)
        if other is not None:
            raise UnsupportedError(f"{self.node.op} gives {described(other)}; a file of derivatives holds tensors")
        return tuple(y.value for y in made)


def run_kept(*arrays: Array | None, kept: KeptNode) -> tuple[Array, ...]:
    """The kernel of a node with subgraphs."""
    return kept.run(*arrays)


def keep(
    tape: Tape,
    op: Op,
    inputs: Sequence[Var | None],
    attrs: Mapping[str, Any],
    *,
    count: int,
    outputs: Sequence[str] = (),
    ragged: Collection[int] = (),
    counted: Sequence[Var | None] | None = None,
    like: Sequence[Var] = (),
    loose: Collection[int] = range(sys.maxsize),
    values: Sequence[Array] | None = None,
    read: Node | None = None,
) -> tuple[Var, ...]:
    """Adds a node with subgraphs to a tape and evaluates it; gives a `Var` for each of `count` outputs.

    `KeptNode` explains `ragged`, `like`, `loose` and `counted`, which is by default all that the node reads.  `values`
    are those of the outputs, if they are known already.
    """
    names = tuple(outputs or outputs_of(tape, op, count))
    given = tuple("" if x is None else x.name for x in inputs)
    name = tape.place.label if outputs else names[0]  # the node of a body may be added many times
    node = Node(op.name, given, names, attrs, name=name, metadata=tape.place.metadata)
    kept = KeptNode(node, {**tape.ops, **table(CONTROL_FLOW, UNROLLED)}, tape.dtype, tape.seed, ragged)
    counts = kept.reads if counted is None else tuple(x.name for x in counted if x is not None)
    kept = replace(kept, counted=counts, like=kept.states or tuple(x.name for x in like), loose=loose, read=read)
    step = Step(node, op, kept.reads, (), {"kept": kept}, tape.place)
    return tape.recorded(lambda: step, evaluated(tape, step) if values is None else values)


def outputs_of(tape: Tape, op: Op, count: int) -> tuple[str, ...]:
    """Unused names for the outputs of a node."""
    return tuple(tape.fresh(f"{op.name}_out{i}" if i else op.name) for i in range(count))


def evaluated(tape: Tape, step: Step) -> Sequence[Array]:
    """The outputs of a step at the point; on a tape that leaves numbers for later only what is known of them."""
    if isinstance(tape, OutlinedTape) and step.op.name == "Scan":
        kept, likes = step.metadata["kept"], [tape.values.like(name) if name else None for name in step.operands]
        if (made := scan_outline(kept.node, kept.ops, likes, kept.run)) is not None:
            return made
    arrays = [tape.values[name] if name else None for name in step.operands]
    where = partial(step.place.of, step.op.name, step.label)
    return list(run(step.op, arrays, step.metadata, where=where, widen=tape.widen))


def starts(tape: Tape, made: str, names: Sequence[str]) -> list[Var]:
    """The values of inputs of a loop's body in each iteration, stacked, as new outputs of the loop.

    `made` is an output of the loop, which is on the tape already.
    """
    index = next(i for i, step in enumerate(tape.steps) if made in step.outputs)
    missing = [name for name in names if name not in _stacked(tape.steps[index])]
    if missing:
        tape.steps[index] = step = _stacking(tape, tape.steps[index], missing)
        tape.makers = None  # the step makes more now
        tape.extended(step, evaluated(tape, step))
    found = _stacked(tape.steps[index])
    return [tape.var(found[name]) for name in names]


def _stacked(step: Step) -> dict[str, str]:
    """Inputs of the body that the loop outputs already in a stack, with the names of these outputs."""
    body, attrs = step.node.attrs["body"], step.node.attrs
    outputs = step.node.handed_out(body)
    first = len(step.metadata["kept"].states)
    turned = {i for key in _SCANNED for i, value in enumerate(attrs.get(key, ())) if value}
    collected = enumerate(zip(outputs[first:], step.outputs[first:], strict=False))
    plain = {name: y for i, (name, y) in collected if y and i not in turned}
    copies = {node.outputs[0]: node.inputs[0] for node in body.nodes if node.op == "Identity"}
    return {copies[name]: y for name, y in plain.items() if copies.get(name) in body.inputs}


def _stacking(tape: Tape, step: Step, names: Sequence[str]) -> Step:
    """The loop with some inputs of its body as further outputs, stacked."""
    node, body = step.node, step.node.attrs["body"]
    copies = {name: taken(tape, f"{name}/before") for name in names}
    nodes = (*body.nodes, *(Node("Identity", (name,), (copy,)) for name, copy in copies.items()))
    types = {**body.types, **{copy: body.types.get(name, TensorType()) for name, copy in copies.items()}}
    left_out = len(body.outputs) - int(step.op.name == "Loop") - len(node.outputs)
    outputs = (*node.outputs, *[""] * left_out, *(tape.fresh(f"{step.label}/{name}") for name in names))
    body = replace(body, nodes=nodes, outputs=(*body.outputs, *copies.values()), types=types)
    turned = {k: (*node.attrs[k], *[0] * len(names)) for k in _SCANNED if k in node.attrs}
    node = replace(node, outputs=outputs, attrs={**node.attrs, **turned, "body": body})
    return structs.replace(step, node=node, metadata={"kept": replace(step.metadata["kept"], node=node)})


# Draws inside of control flow


@dataclass(frozen=True, slots=True)
class Apart:
    """A graph that draws, for a file: `telling` draws and has what it drew as tensors `drawn`, which `reading` reads."""

    telling: Graph
    reading: Graph
    drawn: tuple[str, ...] = ()


def apart(graph: Graph, ops: Ops, fresh: Callable[[str], str]) -> Apart:
    """The graph with its draws as tensors, and the same that reads them instead of drawing again."""
    telling, reading, drawn, constants = [], [], [], dict(graph.constants)
    for node in graph.nodes:
        alone = replace(graph, nodes=(node,))
        if not draws(alone, ops):
            telling.append(node)
            reading.append(node)
        elif any(True for _ in node.subgraphs):
            told, read, names = node_apart(node, ops, fresh, inside=True)
            telling.append(told)
            reading.append(read)
            drawn.extend(names)
        elif node.op == "Dropout":
            mask = [*node.outputs, ""][1] or fresh(f"{node.outputs[0]}/mask")
            telling.append(replace(node, outputs=(node.outputs[0], mask)))
            held, nodes = _masking(node, mask, fresh)
            constants.update(held)
            reading.extend(nodes)
            drawn.append(mask)
        else:
            telling.append(node)
            drawn.extend(node.outputs)
    other = replace(graph, nodes=tuple(reading), constants=constants)
    return Apart(replace(graph, nodes=tuple(telling)), other, tuple(drawn))


def _masking(node: Node, mask: str, fresh: Callable[[str], str]) -> tuple[dict[str, Array], list[Node]]:
    """The nodes of a Dropout that is given its mask: x / (1 - ratio) where it holds, in training, else 0."""
    x, ratio, training = (*node.inputs, "", "")[:3]
    y = node.outputs[0]
    one, half, none, own, rest, share, like, scaled, zero = (fresh(f"{y}/{part}") for part in _MASKING)
    held = {one: np.float32(1), half: np.float32(0.5), none: np.float32(0)}
    nodes = [
        Node("CastLike", (one, ratio or half), (own,)),
        Node("Sub", (own, ratio or half), (rest,)),
        Node("Where", (training, rest, own), (share,)),
        Node("CastLike", (share, x), (like,)),
        Node("Div", (x, like), (scaled,)),
        Node("CastLike", (none, x), (zero,)),
        Node("Where", (mask, scaled, zero), (y,)),
    ]
    return {n: np.asarray(v) for n, v in held.items()}, nodes


def node_apart(
    node: Node, ops: Ops, fresh: Callable[[str], str], *, inside: bool = False
) -> tuple[Node, Node, list[str]]:
    """A node whose subgraphs draw: one that also gives what they drew, one that reads that, and the new outputs.

    In a file a branch that is not taken has something in place of its draws; `inside` of a body it has their shape.
    """
    parts = {key: apart(graph, ops, fresh) for key, graph in node.attrs.items() if isinstance(graph, Graph)}
    names = {key: [fresh(f"{n}/drawn") for n in part.drawn] for key, part in parts.items()}
    flat = [n for each in names.values() for n in each]
    bodies = next(iter(parts.values()))
    left_out = len(bodies.telling.outputs) - int(node.op == "Loop") - len(node.outputs)
    outputs = (*node.outputs, *[""] * left_out, *flat)
    if node.op == "If":
        told = {key: _with_all(key, parts, fresh, inside) for key in parts}
        read = {key: captures_renamed(p.reading, dict(zip(p.drawn, names[key], strict=True)))
                for key, p in parts.items()}  # fmt: skip
        return replace(node, attrs={**node.attrs, **told}, outputs=outputs), replace(node, attrs=read), flat
    telling = _ending(bodies.telling, bodies.drawn)
    if node.op == "Loop":
        number = telling.inputs[0]
        rows = tuple(Node("Gather", (n, number), (d,), {"axis": 0}) for n, d in zip(flat, bodies.drawn, strict=True))
        reading = replace(bodies.reading, nodes=(*rows, *bodies.reading.nodes))
        return replace(node, attrs={"body": telling}, outputs=outputs), replace(node, attrs={"body": reading}), flat
    more = [0] * len(flat)
    turned = {k: (*v, *more) for k, v in node.attrs.items() if k in _SCANNED}
    given = {k: (*v, *more) for k, v in node.attrs.items() if k.startswith("scan_input")}
    inputs = (*bodies.reading.inputs, *bodies.drawn)
    count = node.attrs["num_scan_inputs"] + len(flat)
    attrs = {**node.attrs, **given, "body": replace(bodies.reading, inputs=inputs), "num_scan_inputs": count}
    read_node = replace(node, inputs=(*node.inputs, *flat), attrs=attrs)
    return replace(node, attrs={**node.attrs, **turned, "body": telling}, outputs=outputs), read_node, flat


def _ending(graph: Graph, more: Sequence[str], nodes: Sequence[Node] = ()) -> Graph:
    """The graph with further outputs, and nodes that make them."""
    types = {**graph.types, **{n: graph.types.get(n, TensorType()) for n in more}}
    return replace(graph, nodes=(*graph.nodes, *nodes), outputs=(*graph.outputs, *more), types=types)


def _with_all(key: str, parts: Mapping[str, Apart], fresh: Callable[[str], str], inside: bool) -> Graph:
    """A branch that also gives what it draws, and something of the same type in place of each draw of the other."""
    graph, more, nodes, constants = parts[key].telling, list[str](), list[Node](), dict[str, Array]()
    for other, part in parts.items():
        for drawn in part.drawn:
            if other == key:
                more.append(drawn)
                continue
            zero, own, sizes, filled = (fresh(f"{drawn}/{each}") for each in ("zero", "own", "sizes", "none"))
            constants[zero], typed, like = _in_place(part, drawn, inside)
            nodes.append(Node("CastLike", (zero, typed), (own,)) if typed else Node("Identity", (zero,), (own,)))
            if like:
                nodes += [Node("Shape", (like,), (sizes,)), Node("Expand", (own, sizes), (filled,))]
            more.append(filled if like else own)
    return _ending(replace(graph, constants={**graph.constants, **constants}), more, nodes)


def _in_place(part: Apart, name: str, inside: bool) -> tuple[Array, str, str]:
    """The stand-in for a draw of a branch: zero, and tensors from around it that have its type and its shape, or ""."""
    node = next(node for node in part.telling.nodes if name in node.outputs)
    where = f"{node.op} {shown(node.name or node.outputs[0])} in a branch draws numbers of a"
    around = node.inputs[0] if node.inputs and node.inputs[0] in part.telling.captures else ""
    number = node.attrs.get("dtype", 0 if node.inputs else 1)
    if inside and node.inputs and not around:
        raise UnsupportedError(
            f"{where} shape that only the branch knows, inside of a body; draw them before the branch."
        )
    if node.op == "Dropout" or number:
        shape = node.attrs.get("shape", ())
        return np.zeros(shape, np.bool_ if node.op == "Dropout" else DTYPES[number]), "", around
    if around and node.op != "Multinomial":
        return np.zeros((), np.float32), around, around
    raise UnsupportedError(f"{where} type that only the branch knows; give it the attribute dtype.")
