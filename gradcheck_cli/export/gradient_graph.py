"""A model with its derivatives as one graph that is right for every size of the model's open dimensions.

The model's own nodes stay as they are.  Where a derivative reads something inside of one, what makes it stands beside
the node; or in its place, if that is most of what the node is composed of.  Where the way through the model follows
from values of an input, a file would be wrong for others, and is refused.

Sizes that an operator works out by itself: -1 and 0 in a Reshape, 1 in an Expand, the end of an axis in a Slice.

Rules of fewer nodes for files, where runtimes have the operators that these take.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from gradcheck_cli.autodiff import symbolic as sym
from gradcheck_cli.autodiff.tape import Step, Var
from gradcheck_cli.errors import UnsupportedError, UsageError
from gradcheck_cli.export.control_flow import for_files
from gradcheck_cli.export.runs import Laid, Sizes
from gradcheck_cli.export.simplify import simplified
from gradcheck_cli.export.size_formulas import NUMBERS, Measured
from gradcheck_cli.export.traced import Declarations, Traced, refused, traced
from gradcheck_cli.export.trials import Trials, trials
from gradcheck_cli.formats.onnx.opset import versions
from gradcheck_cli.graph import Array, Graph, Node
from gradcheck_cli.model import Model
from gradcheck_cli.op import Ops
from gradcheck_cli.ops import OPS
from gradcheck_cli.ops.straight import rounded_again
from gradcheck_cli.settings import Settings

Shapes = Mapping[str, tuple[Sizes, ...]]
_END = np.iinfo(np.int64).max


def relaxed(
    node: Node, place: int, entries: Sequence[Sizes], shapes: Shapes, constants: Mapping[str, Array]
) -> list[Sizes]:
    """The entries of a vector that a node reads at a place of its inputs, with as few open ones as will do."""
    rule = _RULES.get((node.op, place))
    shape = shapes.get(node.inputs[0])
    if rule is None or shape is None:
        return list(entries)
    return rule(node, entries, shape, constants)


def _reshape(
    node: Node, entries: Sequence[Sizes], shape: tuple[Sizes, ...], constants: Mapping[str, Array]
) -> list[Sizes]:
    """0 is the size that the axis has already, -1 what is left."""
    if node.attrs.get("allowzero"):
        return list(entries)
    if sum(map(_is_open, entries)) > 1:
        entries = [
            _always(0, e) if i < len(shape) and _is_open(e) and e == shape[i] else e for i, e in enumerate(entries)
        ]
    if sum(map(_is_open, entries)) == 1:
        entries = [_always(-1, e) if _is_open(e) else e for e in entries]
    return list(entries)


def _expand(
    node: Node, entries: Sequence[Sizes], shape: tuple[Sizes, ...], constants: Mapping[str, Array]
) -> list[Sizes]:
    """1 is the size that the axis has already."""
    front = len(entries) - len(shape)
    kept = [_always(1, e) if i >= front and e == shape[i - front] and _is_open(e) else e for i, e in enumerate(entries)]
    return list(entries) if any(map(_is_open, kept)) else kept


def _slice(
    node: Node, entries: Sequence[Sizes], shape: tuple[Sizes, ...], constants: Mapping[str, Array]
) -> list[Sizes]:
    """An end may lie behind the end."""
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


_RULES: Mapping[tuple[str, int], Callable[..., list[Sizes]]] = {
    ("Reshape", 1): _reshape, ("Expand", 1): _expand, ("Slice", 2): _slice,
}  # fmt: skip


_TANH = OPS["", "Tanh"]


def sparing(ops: Ops) -> Ops:
    """The table with rules for files in the place of those for checks, except where somebody gave other ones."""
    return {**ops, _TANH.key: replace(_TANH, vjp=tanh_vjp)} if ops.get(_TANH.key) is _TANH else ops


def tanh_vjp(ct: Var, y: Var, x: Var) -> tuple[Var]:
    """1 / cosh(x)^2, as precise as the rule for checks; runtimes have a hyperbolic cosine in float32 alone."""
    if x.dtype != np.float32:
        assert _TANH.vjp is not None
        return tuple(_TANH.vjp(ct, y, x))
    c = sym.cosh(x)
    return (ct / (c * c),)


_MADE_ABOVE = 1024  # bytes of a constant of one value that is made at run time


@dataclass(frozen=True, slots=True)
class Written:
    """The graph for a file, and what is to be said of it: nodes that were added, how the model was run, notes."""

    graph: Graph
    added: int = 0
    trials: Trials = field(default_factory=lambda: Trials(({},)))
    notes: tuple[str, ...] = ()

    @property
    def open_dims(self) -> tuple[str, ...]:
        """Dimensions that may have any size at which the model runs."""
        return self.trials.dims


def graph_of(model: Model, outputs: Sequence[str], feeds: Mapping[str, Any]) -> Written:
    """The graph that computes `outputs`, in the model's own dtypes, with the tensors in `feeds` as constants."""
    twice = next((name for i, name in enumerate(outputs) if name in outputs[:i]), None)
    if twice is not None:
        raise UsageError(f"outputs: {twice!r} is given twice; a file has one output of a name.")
    run = list(_to_run(model, outputs))
    if not run:
        return _Composer(model, Traced(Laid(), Trials(({},)), fed=_fed(model, outputs, feeds))).written(outputs)
    ops = for_files(sparing(model.ops), feeds)
    tried = trials(model, run, Settings(extra_feed_dict=feeds, dtype="model"), ops)

    def made(tried: Trials) -> Written:
        found = traced(model, run, feeds, ops, tried)
        return _simple(model, found, _Composer(model, found).written(outputs), outputs)

    try:
        return made(tried)
    except UnsupportedError:  # at small sizes other things may happen, such as broadcasting
        if not tried.small:
            raise
        return made(replace(tried, small=()))


def _to_run(model: Model, outputs: Sequence[str]) -> Iterator[str]:
    """Derivatives, and outputs that are made by operators which other tools do not know."""
    private = [name for node in model.graph.nodes if not _in_files(model, node) for name in node.outputs if name]
    own, made = set(model.graph.tensors), model.graph.reached_from(private) if private else set()
    yield from (name for name in outputs if name not in own or name in made)


def _in_files(model: Model, node: Node) -> bool:
    """Other tools know the operator of a node: it is one of ONNX, or one of another domain that the model came with."""
    own = {(body.domain, body.name) for body in model.source.operators}
    known = bool(versions(node.op)) if not node.domain else node.domain != "gradcheck" and node.key not in own
    return known and all(_in_files(model, inner) for graph in node.subgraphs for inner in graph.nodes)


def _simple(model: Model, found: Traced, made: Written, outputs: Sequence[str]) -> Written:
    """The graph with what was added simplified; gates that were asked for stay."""
    own = {*model.graph.tensors, *found.fed}
    gated = any(request.gate for request in model.requests_for(outputs))
    copies = [node for step, node in found.laid.nodes if gated and step.origin < 0 and node.op == "Identity"]
    graph = simplified(made.graph, kept={*own, *(n for node in copies for n in node.outputs)})
    return replace(made, graph=graph, added=sum(own.isdisjoint(node.outputs) for node in graph.nodes))


def _fed(model: Model, outputs: Sequence[str], feeds: Mapping[str, Any]) -> dict[str, Array]:
    """What is fed, as the model takes it."""
    if not feeds:
        return {}
    tape = model.tape(outputs, Settings(extra_feed_dict=feeds, dtype="model"))
    return {n: tape.values[n] for n in feeds if n in tape.values}


@dataclass(slots=True)
class _Composer:
    """Puts nodes of the model and of its derivatives one behind the other."""

    model: Model
    found: Traced
    nodes: list[Node] = field(default_factory=list)
    constants: dict[str, Array] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)
    made: set[str] = field(default_factory=set)
    measured: Measured = field(init=False)

    def __post_init__(self) -> None:
        laid, graph = self.found.laid, self.model.graph
        made = (n for _, node in laid.nodes for n in node.outputs)
        self.taken = {*graph.tensors, *made, *laid.constants, *laid.varying, *laid.ends}
        self.measured = Measured(self._fresh)
        for name in [n for n, v in laid.constants.items() if _is_filled(v)]:
            laid.varying[name] = (laid.constants.pop(name),) * len(self.found.trials.runs)
        self.constants = {**laid.constants, **graph.constants, **self.found.fed}

    def written(self, outputs: Sequence[str]) -> Written:
        """The graph for the file."""
        self._forward()
        forward = len(self.nodes)
        for step, node in self.found.laid.nodes:
            if step.origin < 0:
                self._emit(node, step)
        for name, own in self.found.laid.ends.items():
            if own != name:
                self._end(own, name)
        self.nodes = [rounded_again(node) for node in self.nodes]
        needed = set(_needed(self.nodes, outputs))
        kept = [node for i, node in enumerate(self.nodes) if i in needed]
        inputs = self._inputs(kept, outputs)
        read = {n for node in kept for n in node.reads}.union(outputs)
        constants = {n: v for n, v in self.constants.items() if n in read}
        declared = Declarations(self.model, self.found)
        types = {n: declared.type(n) for n in (*inputs, *outputs)}
        graph = replace(
            self.model.graph, inputs=inputs, outputs=tuple(outputs), nodes=tuple(kept), constants=constants, types=types
        )
        return Written(graph, sum(i >= forward for i in needed), self.found.trials, tuple(declared.notes()))

    def _forward(self) -> None:
        """The model's own nodes, each as it is or as what it is composed of."""
        graph, fed = self.model.graph, self.found.fed
        for name in (*graph.inputs, *graph.constants, *fed, *self.found.seeds):
            if name not in self.found.filled:
                self._see(name)
        for name in self.found.filled:
            self._end(name, name)
        parts: dict[int, list[tuple[Step, Node]]] = {}
        readers: dict[str, set[int]] = {name: {-1} for name in self.found.laid.ends.values()}
        for step, node in self.found.laid.nodes:
            parts.setdefault(step.origin, []).append((step, node))
            for name in node.reads:
                readers.setdefault(name, set()).add(step.origin)
        for index, own in enumerate(graph.nodes):
            part = parts.get(index, [])
            made = {n for _, each in part for n in each.outputs if n}
            read = {n for n in made.difference(own.outputs) if not readers.get(n, set()) <= {index}}
            node = self._giving_more(own, read)
            again = _behind(part, read.difference(node.outputs), node.outputs)
            needless = 2 * len(again) > len(part) if made.issuperset(own.outputs) else bool(own.domain and again)
            if (
                (not part or _in_files(self.model, node))
                and not needless
                and not any("rng" in step.metadata for step, _ in again)
            ):
                self._keep(node)
                for step, each in again:
                    self._emit(each, step)
            else:
                self._dissolved(node, part)

    def _giving_more(self, node: Node, read: Collection[str]) -> Node:
        """A node that also gives those inner tensors that are read, and outputs of its operator."""
        more = {i: n for i, n in enumerate(self.found.statistics.get(node.outputs[0], ())) if n in read}
        outputs = [*node.outputs, *[""] * (max(more, default=-1) + 1 - len(node.outputs))]
        return replace(node, outputs=tuple(n or more.get(i, "") for i, n in enumerate(outputs)))

    def _keep(self, node: Node) -> None:
        """A node as it is; an output that there is already, since it was fed or is part of another, is not used."""
        there = {n for n in node.outputs if n in self.made}
        if node.outputs and there.issuperset(n for n in node.outputs if n):
            return
        outputs = tuple(self._fresh(f"{n}/computed") if n in there else n for n in node.outputs)
        self._add(replace(node, outputs=outputs))

    def _dissolved(self, node: Node, parts: Sequence[tuple[Step, Node]]) -> None:
        """What a node is composed of, and its outputs by their names."""
        for step, part in parts:
            self._emit(part, step)
        for name in node.outputs:
            own = self.found.aliases.get(name)
            if own in self.made and name not in self.made:
                self._add(Node("Identity", (own,), (name,), name=name))
        self._keep(node)

    def _add(self, node: Node) -> None:
        self.nodes.append(node)
        for name in node.outputs:
            self._see(name)

    def _emit(self, node: Node, step: Step) -> None:
        """Add a node; constants in which runs differ become tensors that are made of sizes."""
        laid = self.found.laid
        inputs = tuple(self._measure(node, i, step) if n in laid.varying else n for i, n in enumerate(node.inputs))
        attrs = {
            key: self._body(value, step) if isinstance(value, Graph) else value for key, value in node.attrs.items()
        }
        self._flush()
        for each in self._widened(replace(node, inputs=inputs, attrs=attrs)):
            self._add(each)

    def _widened(self, node: Node) -> Iterator[Node]:
        """A sum of scattered numbers of 16 bits is made in 32, as runtimes have no other."""
        dtype = self.found.laid.dtypes.get(node.outputs[0])
        scattered = node.op == "ScatterElements" and node.attrs.get("reduction", "none") != "none"
        if not scattered or dtype is None or dtype.itemsize != 2:
            yield node
            return
        data, index, updates = node.inputs
        wide = [self._fresh(f"{node.outputs[0]}/{part}") for part in ("data", "updates", "sum")]
        for given, single in zip((data, updates), wide, strict=False):
            yield Node("Cast", (given,), (single,), {"to": 1}, name=single)
        yield replace(node, inputs=(wide[0], index, wide[1]), outputs=(wide[2],))
        yield Node("Cast", (wide[2],), node.outputs, {"to": NUMBERS[dtype]}, name=f"{wide[2]}/narrow")

    def _measure(self, node: Node, place: int, step: Step) -> str:
        """The name of a tensor made of sizes, for an input of a node that differs between runs."""
        laid, name = self.found.laid, node.inputs[place]
        values = laid.varying[name]
        around = self._around(node, step)
        self.measured.near = [sizes for n in around for sizes in laid.shapes.get(n, ()) if len(set(sizes)) > 1]
        if values[0].ndim == 1 and values[0].dtype == np.int64 and len({v.shape for v in values}) == 1:
            entries = list(zip(*(v.tolist() for v in values), strict=True))
            made = self.measured.vector(relaxed(node, place, entries, laid.shapes, self.constants))
        else:
            made = self.measured.tensor(values)
        if made is None:
            raise refused(f"{step.where}: its gradient has a {node.op} with a constant", self.found.trials)
        return made

    def _around(self, node: Node, step: Step) -> list[str]:
        """Tensors that a node and the node of the model that it comes from have to do with."""
        nodes, index = self.model.graph.nodes, step.place.index
        there = (*nodes[index].reads, *nodes[index].outputs) if 0 <= index < len(nodes) else ()
        return [*node.inputs, *there]

    def _end(self, own: str, name: str) -> None:
        """A tensor by the name that it was asked for."""
        if own in self.found.laid.varying:
            made = self.measured.tensor(self.found.laid.varying[own])
            if made is None:
                raise refused(f"{name!r} is given by a number", self.found.trials)
            self._flush()
            own = made
        self._add(Node("Identity", (own,), (name,), name=name))

    def _body(self, graph: Graph, step: Step) -> Graph:
        """A graph inside of a node, which captures what is made of sizes from the one around it."""
        return replace(graph, nodes=tuple(self._inner(node, step) for node in graph.nodes))

    def _inner(self, node: Node, step: Step) -> Node:
        laid = self.found.laid
        inputs = tuple(self._measure(node, i, step) if n in laid.varying else n for i, n in enumerate(node.inputs))
        attrs = {
            key: self._body(value, step) if isinstance(value, Graph) else value for key, value in node.attrs.items()
        }
        return replace(node, inputs=inputs, attrs=attrs)

    def _flush(self) -> None:
        self.nodes.extend(self.measured.nodes)
        self.constants.update(self.measured.constants)
        self.measured.nodes, self.measured.constants = [], {}

    def _see(self, name: str) -> None:
        self.made.add(name)
        shape = self.found.laid.shapes.get(name)
        if shape and name not in self.found.passing:
            self.measured.see(name, shape)

    def _fresh(self, name: str) -> str:
        candidates = (f"{name}_{count}" if count else name for count in range(len(self.taken) + 1))
        own = next(candidate for candidate in candidates if candidate not in self.taken)
        self.taken.add(own)
        return own

    def _inputs(self, nodes: Sequence[Node], outputs: Sequence[str]) -> tuple[str, ...]:
        """Those of the model that are needed; all of them where all of its outputs are."""
        graph, fed = self.model.graph, self.found.fed
        read = {n for node in nodes for n in node.reads}.union(outputs)
        whole = set(graph.outputs) <= set(outputs) and not fed and not self.found.filled
        gone = {*fed, *self.found.filled}
        own = (n for n in graph.inputs if n not in gone and (whole or n in read))
        return (*own, *self.found.seeds)


def _behind(part: Sequence[tuple[Step, Node]], wanted: set[str], given: Collection[str]) -> list[tuple[Step, Node]]:
    """What of a composition makes some inner tensors, from what the node reads and gives."""
    found = []
    for step, node in reversed(part):
        if not wanted.isdisjoint(node.outputs):
            wanted |= set(node.reads).difference(given)
            found.append((step, node))
    return found[::-1]


def _needed(nodes: Sequence[Node], outputs: Iterable[str]) -> Iterator[int]:
    """Numbers of the nodes that some tensors need."""
    wanted = set(outputs)
    for index in range(len(nodes) - 1, -1, -1):
        if not wanted.isdisjoint(nodes[index].outputs):
            wanted.update(nodes[index].reads)
            yield index


def _is_filled(constant: Array) -> bool:
    """It is large, and has one value."""
    large = constant.nbytes > _MADE_ABOVE and constant.dtype != object
    return large and bool(np.all(constant == constant.ravel()[0]))
