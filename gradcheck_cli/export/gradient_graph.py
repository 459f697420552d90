"""A model with its derivatives as one graph that is right for every size of the model's open dimensions.

The model's own nodes stay as they are.  If a derivative reads an inner tensor of a
node that gradcheck composes of others, the nodes that compute this tensor are added beside the node, or replace it if
they are most of it.  If a branch depends on values of an input, the graph would be wrong for other values, and is
refused.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from gradcheck_cli.autodiff.tape import Step
from gradcheck_cli.errors import UnsupportedError, UsageError
from gradcheck_cli.export.control_flow import for_files, in_order
from gradcheck_cli.export.inner import relabeled
from gradcheck_cli.export.runs import AlignedRuns, Sizes, widened
from gradcheck_cli.export.simplify import simplified
from gradcheck_cli.export.size_formulas import NoFormula, SizeTensors
from gradcheck_cli.export.traced import Traced, Unhoped, Untried, refused, traced
from gradcheck_cli.export.trials import Trials, trials
from gradcheck_cli.formats.onnx.opset import NEWEST, signature
from gradcheck_cli.formats.onnx.write import declared_type
from gradcheck_cli.graph import Array, Dim, FreshNames, Graph, Node, TensorType, computing
from gradcheck_cli.model import Model
from gradcheck_cli.ops.sparing import sparing
from gradcheck_cli.ops.straight import rounded_again
from gradcheck_cli.points.dims import symbol
from gradcheck_cli.settings import Settings

Shapes = Mapping[str, tuple[Sizes, ...]]
_END = np.iinfo(np.int64).max
_LARGE = 1024  # bytes; larger constants of one value are made at run time


@dataclass(frozen=True, slots=True)
class Written:
    """The graph for a file, with the number of added nodes, the trials behind it, and notes for the user.

    `by_values`: some shapes follow from values of inputs.
    """

    graph: Graph
    added: int = 0
    trials: Trials = field(default_factory=lambda: Trials(({},)))
    notes: tuple[str, ...] = ()
    by_values: bool = False

    @property
    def open_dims(self) -> tuple[str, ...]:
        """Dimensions that stay open: the graph is right for all sizes at which the model runs."""
        return self.trials.dims


def graph_of(model: Model, outputs: Sequence[str], feeds: Mapping[str, Any]) -> Written:
    """The graph that computes `outputs`, in the model's own dtypes, with the tensors in `feeds` as constants."""
    twice = next((name for i, name in enumerate(outputs) if name in outputs[:i]), None)
    if twice is not None:
        raise UsageError(f"outputs: {twice!r} is given twice; a file has one output of a name.")
    # A run is needed for derivatives, and for what depends on operators that other tools do not know.
    private = [name for node in model.graph.nodes if not _in_files(model, node) for name in node.outputs if name]
    own, made_of = set(model.graph.tensors), model.graph.reached_from(private)
    run = [name for name in outputs if name not in own or name in made_of]
    if not run:
        values = model.tape(outputs, Settings(extra_feed_dict=feeds, dtype="model")).values if feeds else {}
        fed = {name: values[name] for name in feeds if name in values}
        return _Composer(model, Traced(AlignedRuns(), Trials(({},)), fed=fed)).written(outputs)
    ops = for_files(sparing(model.ops), feeds)
    tried_at = partial(trials, model, run, Settings(extra_feed_dict=feeds, dtype="model"), ops)

    def made(tried: Trials) -> Written:
        found = traced(model, run, feeds, ops, tried)
        return _simple(model, found, _Composer(model, found).written(outputs), outputs)

    try:
        return _also_strictly(made, tried_at(hoping=True))
    except Unhoped:
        return _also_strictly(made, tried_at())


def _also_strictly(made: Callable[[Trials], Written], tried: Trials) -> Written:
    """The graph that trials tell; without small ones if that is refused: other rules may apply there, as broadcasting."""
    try:
        return made(tried)
    except (Unhoped, Untried):
        raise
    except UnsupportedError as error:
        if not tried.small and not tried.by_values:
            raise
        try:
            return made(tried.strict)
        except Untried:
            raise error from None


def _in_files(model: Model, node: Node) -> bool:
    """True if other tools know the operator: it is one of ONNX, or of a foreign domain that the model uses."""
    own = {(body.domain, body.name) for body in model.source.operators}
    foreign = node.domain.partition(".")[0] != "gradcheck" and node.key not in own
    known = foreign if node.domain else signature(node.op, NEWEST) is not None
    return known and all(_in_files(model, inner) for graph in node.subgraphs for inner in graph.nodes)


def _simple(model: Model, found: Traced, made: Written, outputs: Sequence[str]) -> Written:
    """The graph with the added nodes simplified; gates that were requested stay."""
    own = {*model.graph.tensors, *found.fed}
    gated = any(request.gate for request in model.requests_for(outputs))
    copies = [node for step, node in found.aligned.nodes if gated and step.origin < 0 and node.op == "Identity"]
    graph = simplified(made.graph, kept={*own, *(n for node in copies for n in node.outputs)})
    graph = in_order(graph, {node.outputs for node in model.graph.nodes})
    return replace(made, graph=graph, added=sum(own.isdisjoint(node.outputs) for node in graph.nodes))


class _Composer:
    """Joins the nodes of the model and of its derivatives to one graph."""

    def __init__(self, model: Model, found: Traced) -> None:
        self.model, self.found = model, found
        self.nodes: list[Node] = []
        self.made: set[str] = set()
        aligned, graph = found.aligned, model.graph
        made = (n for _, node in aligned.nodes for n in node.outputs)
        self.taken = FreshNames({*graph.all_tensors, *made, *aligned.constants, *aligned.varying, *aligned.ends})
        self.measured = SizeTensors(self.taken.fresh)
        large = [(n, v) for n, v in aligned.constants.items() if v.nbytes > _LARGE and v.dtype != object]
        for name in [n for n, v in large if np.all(v == v.ravel()[0])]:
            aligned.varying[name] = (aligned.constants.pop(name),) * len(self.found.trials.runs)
        self.constants = {**aligned.constants, **graph.constants, **self.found.fed}

    def written(self, outputs: Sequence[str]) -> Written:
        """The graph for the file."""
        self._forward()
        forward = len(self.nodes)
        for step, node in self.found.aligned.nodes:
            if step.origin < 0:
                self._emit(node, step)
        for name, own in self.found.aligned.ends.items():
            if own != name:
                self._end(own, name)
        self.nodes = [rounded_again(node) for node in self.nodes]
        needed, read = computing(self.nodes, outputs)
        kept = [self.nodes[i] for i in needed]
        inputs = self._inputs(read, outputs)
        constants = {n: v for n, v in self.constants.items() if n in read or n in inputs}
        declared = Declarations(self.model, self.found)
        types = {n: declared.type(n) for n in (*inputs, *outputs)}
        graph = replace(
            self.model.graph, inputs=inputs, outputs=tuple(outputs), nodes=tuple(kept), constants=constants, types=types
        )
        added, notes = sum(i >= forward for i in needed), tuple(declared.notes())
        return Written(graph, added, self.found.trials, notes, bool(self.found.passing))

    def _forward(self) -> None:
        """Adds the model's own nodes, each as it is or as the nodes that it is composed of."""
        graph, fed = self.model.graph, self.found.fed
        for name in (*graph.inputs, *graph.constants, *fed, *self.found.seeds):
            if name not in self.found.filled:
                self._see(name)
        for name in self.found.filled:
            self._end(name, name)
        parts: dict[int, list[tuple[Step, Node]]] = {}
        readers: dict[str, set[int]] = {name: {-1} for name in self.found.aligned.ends.values()}
        for step, node in self.found.aligned.nodes:
            parts.setdefault(step.origin, []).append((step, node))
            for name in node.reads:
                readers.setdefault(name, set()).add(step.origin)
        for index, own in enumerate(graph.nodes, self.found.ahead):
            part = parts.get(index, [])
            made = {n for _, each in part for n in each.outputs if n}
            read = {n for n in made.difference(own.outputs) if not readers.get(n, set()) <= {index}}
            node = self._giving_more(own, read)
            inner = computing([each for _, each in part], read.difference(node.outputs), node.outputs)[0]
            again = [part[i] for i in inner]
            whole = made.issuperset(filter(None, own.outputs))
            needless = 2 * len(again) > len(part) if whole else bool(own.domain and again)
            drawn = any("rng" in step.metadata for step, _ in again)
            if (not part or _in_files(self.model, node)) and not needless and not drawn:
                self._keep(node)
                for step, each in again:
                    self._emit(each, step)
            else:
                self._dissolved(node, part)

    def _giving_more(self, node: Node, read: Collection[str]) -> Node:
        """The node with those inner tensors as further outputs that are read and that its operator can give."""
        more = {i: n for i, n in enumerate(self.found.statistics.get(node.outputs[0], ())) if n in read}
        outputs = [*node.outputs, *[""] * (max(more, default=-1) + 1 - len(node.outputs))]
        return replace(node, outputs=tuple(n or more.get(i, "") for i, n in enumerate(outputs)))

    def _keep(self, node: Node) -> None:
        """Adds a node as it is; outputs that exist already, because they were fed, get another name."""
        there = {n for n in node.outputs if n in self.made}
        if node.outputs and there.issuperset(n for n in node.outputs if n):
            return
        outputs = tuple(self.taken.fresh(f"{n}/computed") if n in there else n for n in node.outputs)
        self._add(replace(node, outputs=outputs))

    def _dissolved(self, node: Node, parts: Sequence[tuple[Step, Node]]) -> None:
        """Adds the nodes that a node is composed of, and its outputs under their own names."""
        for step, part in parts:
            self._emit(part, step)
        for name in node.outputs:
            own = self.found.aliases.get(name)
            if own in self.made and name not in self.made:
                self._add(Node("Identity", (own,), (name,), name=name))
        self._keep(node)

    def _add(self, node: Node) -> None:
        node = node.with_graphs(self._known_outside)
        self.nodes.append(node)
        for name in node.outputs:
            self._see(name)

    def _known_outside(self, graph: Graph) -> Graph:
        """A subgraph with the bodies of a spec's operators in place of these, which no other tool knows."""
        bodies = {(body.domain, body.name): body.forward for body in self.model.source.operators}
        nodes, constants = list[Node](), dict(graph.constants)
        for node in graph.nodes:
            body = bodies.get(node.key)
            if body is None:
                nodes.append(node.with_graphs(self._known_outside))
                continue
            names = {name: self.taken.fresh(f"{node.outputs[0]}/{name}") for name in sorted(body.all_tensors)}
            ends = zip((*body.inputs, *body.outputs), (*node.inputs, *node.outputs), strict=False)
            part = self._known_outside(relabeled(body, {**names, **{inner: own for inner, own in ends if own}}))
            nodes.extend(part.nodes)
            constants.update(part.constants)
        return replace(graph, nodes=tuple(nodes), constants=constants)

    def _emit(self, node: Node, step: Step) -> None:
        """Adds a node; constants that differ between runs become tensors that are computed from sizes."""
        node = self._measured(node, step)
        self._flush()
        for each in widened(node, self.found.aligned.dtypes.get, self.taken.fresh):
            self._add(each)

    def _measure(self, node: Node, place: int, step: Step) -> str:
        """The name of a tensor computed from sizes, for an input of a node that differs between runs."""
        aligned, name = self.found.aligned, node.inputs[place]
        values = aligned.varying[name]
        nodes, index = self.model.graph.nodes, step.place.index
        around = [*node.inputs, *((*nodes[index].reads, *nodes[index].outputs) if 0 <= index < len(nodes) else ())]
        self.measured.near = [sizes for n in around for sizes in aligned.shapes.get(n, ()) if len(set(sizes)) > 1]
        with self._refusing(f"{step.where}: its gradient has a {node.op} with a constant"):
            if values[0].ndim == 1 and values[0].dtype == np.int64 and len({v.shape for v in values}) == 1:
                entries = list(zip(*(v.tolist() for v in values), strict=True))
                return self.measured.vector(relaxed(node, place, entries, aligned.shapes, self.constants))
            return self.measured.tensor(values)

    @contextmanager
    def _refusing(self, what: str) -> Iterator[None]:
        """In the block, numbers that no formula gives are an error for the user."""
        try:
            yield
        except NoFormula:
            raise refused(what, self.found.trials) from None

    def _end(self, own: str, name: str) -> None:
        """Adds an output under the requested name."""
        if own in self.found.aligned.varying:
            with self._refusing(f"{name!r} is given by a number"):
                own = self.measured.tensor(self.found.aligned.varying[own])
            self._flush()
        self._add(Node("Identity", (own,), (name,), name=name))

    def _measured(self, node: Node, step: Step) -> Node:
        """A node that reads tensors computed from sizes, also in its subgraphs, for constants that differ between runs."""
        aligned = self.found.aligned
        inputs = tuple(self._measure(node, i, step) if n in aligned.varying else n for i, n in enumerate(node.inputs))

        def inside(graph: Graph) -> Graph:
            return replace(graph, nodes=tuple(self._measured(inner, step) for inner in graph.nodes))

        made = replace(node.with_graphs(inside), inputs=inputs)
        computed = made.op == "Reshape" and inputs[1] != node.inputs[1] and not self._is_constant(inputs[1])
        if computed and all(np.all(value > 0) for value in aligned.varying[node.inputs[1]]):
            made = replace(made, attrs={**made.attrs, "allowzero": 1})  # a size of 0 in a run is no size to be copied
        return made

    def _is_constant(self, name: str) -> bool:
        return name in self.constants or name in self.measured.constants

    def _flush(self) -> None:
        self.nodes.extend(self.measured.nodes)
        self.constants.update(self.measured.constants)
        self.measured.nodes, self.measured.constants = [], {}

    def _see(self, name: str) -> None:
        self.made.add(name)
        shape = self.found.aligned.shapes.get(name)
        if shape:
            self.measured.see(name, shape)

    def _inputs(self, read: Collection[str], outputs: Sequence[str]) -> tuple[str, ...]:
        """The inputs of the model that are read, or all of them if all of its outputs are needed."""
        graph, gone = self.model.graph, {*self.found.fed, *self.found.filled}
        whole = set(graph.outputs) <= set(outputs) and not gone
        own = (n for n in graph.inputs if n not in gone and (whole or n in read))
        return (*own, *self.found.seeds)


@dataclass(frozen=True, slots=True)
class Declarations:
    """The declared types of a gradient file, and notes on its dimensions."""

    model: Model
    found: Traced

    def type(self, name: str) -> TensorType:
        """The type of an input or output: the model's own declaration, completed by what the runs have shown."""
        graph, aligned = self.model.graph, self.found.aligned
        declared = declared_type(graph, name)
        if declared.kind != "tensor":
            return declared
        dtype = declared.dtype if declared.dtype is not None else aligned.dtypes.get(name)
        dtype = self.model.known_dtype(name) if dtype is None else dtype
        if declared.shape is None or self._untrue(name, declared.shape):
            return TensorType(dtype, self._shown(name))
        return TensorType(dtype, tuple(self._dim(name, axis, d) for axis, d in enumerate(declared.shape)))

    def _untrue(self, name: str, shape: Sequence[Dim]) -> bool:
        """True if runs gave a result another shape than is declared, by which a runtime would compute Shape in advance."""
        found = self.found.aligned.shapes.get(name)
        if found is None or name in self.model.graph.inputs:
            return False
        fixed = zip(shape, found, strict=False)
        return len(shape) != len(found) or any(isinstance(d, int) and {d} != set(sizes) for d, sizes in fixed)

    def _dim(self, name: str, axis: int, dim: Dim) -> Dim:
        """A declared dimension as its size if it is fixed, or as the dimension that it has to equal."""
        if isinstance(dim, int):
            return dim
        trials, key = self.found.trials, symbol(name, axis, dim)
        sizes = {**self.model.source.dims, **self.model.dims, **trials.fixed}
        return sizes.get(key, trials.equal.get(key, dim))

    def _shown(self, name: str) -> tuple[Dim, ...] | None:
        """The shape of a tensor in the runs, with names for the open dimensions that it has."""
        shape = self.found.aligned.shapes.get(name)
        if shape is None:
            return self.model.known_shape(name)
        if name in self.found.passing:
            return (None,) * len(shape)
        own = self.model.source.symbols
        by_sizes = {sizes: d for d, sizes in self.found.trials.symbols.items() if d in own}
        return tuple(sizes[0] if len(set(sizes)) == 1 else by_sizes.get(sizes) for sizes in shape)

    def notes(self) -> Iterator[str]:
        """Sentences about dimensions that are not independent or not open."""
        trials = self.found.trials
        for dim, other in trials.equal.items():
            yield f"{dim} has to equal {other}"
        for dim, size in trials.fixed.items():
            yield f"{dim} is {size}: the model does not run at other sizes that were tried"


def relaxed(
    node: Node, place: int, entries: Sequence[Sizes], shapes: Shapes, constants: Mapping[str, Array]
) -> list[Sizes]:
    """The entries of a vector of sizes that a node reads, with as few size-dependent ones as possible.

    Operators work some sizes out themselves: -1 and 0 in a Reshape, 1 in an Expand, the end of an axis in a Slice.
    """
    shape = shapes.get(node.inputs[0])
    if shape is None:
        return list(entries)
    match node.op, place:
        case "Reshape", 1 if not node.attrs.get("allowzero"):
            return _reshape(entries, shape)
        case "Expand", 1:
            return _expand(entries, shape)
        case "Slice", 2:
            return _slice(node, entries, shape, constants)
    return list(entries)


def _reshape(entries: Sequence[Sizes], shape: Sequence[Sizes]) -> list[Sizes]:
    """In a Reshape to constants 0 stands for the size that the axis has already, -1 for the rest."""
    rest, kept = any(set(e) == {-1} for e in entries), list(entries)
    if sum(map(_is_open, kept)) > 1 - rest:
        kept = [_always(0, e) if i < len(shape) and _is_open(e) and e == shape[i] else e for i, e in enumerate(kept)]
    if sum(map(_is_open, kept)) == 1 and not rest:
        kept = [_always(-1, e) if _is_open(e) else e for e in kept]
    return list(entries) if any(map(_is_open, kept)) else kept


def _expand(entries: Sequence[Sizes], shape: Sequence[Sizes]) -> list[Sizes]:
    """In an Expand 1 stands for the size that the axis has already."""
    front = len(entries) - len(shape)
    kept = [_always(1, e) if i >= front and e == shape[i - front] and _is_open(e) else e for i, e in enumerate(entries)]
    return list(entries) if any(map(_is_open, kept)) else kept


def _slice(node: Node, entries: Sequence[Sizes], shape: Sequence[Sizes], constants: Mapping[str, Array]) -> list[Sizes]:
    """The end of a Slice may lie behind the end of the axis."""
    axes = constants.get(node.inputs[3]) if len(node.inputs) > 3 else np.arange(len(entries))
    steps = constants.get(node.inputs[4]) if len(node.inputs) > 4 else np.ones(len(entries))
    if axes is None or steps is None:
        return list(entries)
    return [
        _always(_END, e) if step > 0 and e == shape[int(axis)] and _is_open(e) else e
        for e, axis, step in zip(entries, axes, steps, strict=True)
    ]


def _is_open(sizes: Sizes) -> bool:
    return len(set(sizes)) > 1


def _always(value: int, sizes: Sizes) -> Sizes:
    return (value,) * len(sizes)
