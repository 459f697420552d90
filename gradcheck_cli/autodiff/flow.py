"""A graph as ways from tensor to tensor, bodies of control flow among them, and what can be reached along some of them.

Nothing here looks at values: both branches of every If are ways, and a loop goes round as often as it likes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np

from gradcheck_cli.graph import Graph, Node, describe, is_inexact
from gradcheck_cli.op import Cut, Op, Ops
from gradcheck_cli.results.measures import Spot

Tensor: TypeAlias = tuple[str, str]  # the graph inside of a node that it is of, "" for the model's own, and its name
Scope: TypeAlias = Mapping[str, Tensor]

_QUANTIZERS = ("QuantizeLinear", "DynamicQuantizeLinear", "DynamicQuantizeMatMul", "DynamicQuantizeLSTM", "FakeQuant")
_STRAIGHT = ("Round", "Floor", "Ceil", "Cast", "CastLike", *_QUANTIZERS)


@dataclass(frozen=True, slots=True, eq=False)
class Way:
    """One way through a node, from a tensor that it reads to one that it makes.

    `cut` says why the derivative along it is zero by nature, "" where there is one; `operand` is the index of the
    input, -1 for what a graph inside captures.
    """

    source: Tensor
    target: Tensor
    at: Spot
    node: Node
    cut: Cut = ""
    operand: int = -1

    @property
    def straight(self) -> bool:
        """`--straight-through` makes a way of it: a rounding that training goes through as if it was none."""
        return self.cut == "rounds" and self.node.op in _STRAIGHT

    @property
    def quantizes(self) -> bool:
        """A quantizer cuts it."""
        return self.cut == "rounds" and self.node.op in _QUANTIZERS


def any_way(way: Way) -> bool:
    """All of them: along these tensors depend on each other."""
    return True


def live(way: Way) -> bool:
    """Those along which there is a derivative."""
    return not way.cut


def straight(way: Way) -> bool:
    """Those along which there is a derivative once quantizers and roundings are gone through."""
    return not way.cut or way.straight


class Flow:
    """The ways of a graph; what is fed is computed by no node."""

    def __init__(
        self, graph: Graph, ops: Ops, fed: Collection[str] = (), dtypes: Mapping[str, Any] = MappingProxyType({})
    ) -> None:
        """`dtypes` are those that a run has found, for tensors of which the file does not say one."""
        self.ops, self.dtypes = ops, dtypes
        self.ways: list[Way] = []
        self._behind: defaultdict[Tensor, list[Way]] = defaultdict(list)
        self._before: defaultdict[Tensor, list[Way]] = defaultdict(list)
        self._graph(graph, "", {})
        for way in self.ways:
            if way.target[0] or way.target[1] not in fed:
                self._behind[way.source].append(way)
                self._before[way.target].append(way)

    def behind(self, names: Iterable[Tensor], passes: Callable[[Way], bool]) -> set[Tensor]:
        """Every tensor that some tensors reach along ways that pass, those included."""
        return _reached(names, self._behind, passes, lambda way: way.target)

    def before(self, names: Iterable[Tensor], passes: Callable[[Way], bool]) -> set[Tensor]:
        """Every tensor that reaches some tensors along ways that pass, those included."""
        return _reached(names, self._before, passes, lambda way: way.source)

    def into(self, tensor: Tensor) -> list[Way]:
        """The ways that end in a tensor."""
        return self._before[tensor]

    def out_of(self, tensor: Tensor) -> list[Way]:
        """The ways that begin with a tensor."""
        return self._behind[tensor]

    def _graph(self, graph: Graph, scope: str, around: Scope, inside: str = "") -> Scope:
        """The ways of one graph, and its tensors by name."""
        known = {**around, **{name: (scope, name) for name in graph.tensors}}
        for index, node in enumerate(graph.nodes):
            label = node.name or next((name for name in node.outputs if name), node.op)
            self._node(graph, node, Spot(index, node.op, label, inside), scope, known)
        return known

    def _node(self, graph: Graph, node: Node, at: Spot, scope: str, known: Scope) -> None:
        op = self.ops.get(node.key)
        if any(node.subgraphs) and node.op in _BODIES:
            _BODIES[node.op](self, graph, node, at, scope, known)
        elif op is not None and op.inner is not None and op.cuts is None:
            self._composed(node, op.inner, at, scope, known)
        else:
            self._plain(graph, node, op, at, known)

    def _plain(self, graph: Graph, node: Node, op: Op | None, at: Spot, known: Scope) -> None:
        """From each input to each output, and from what graphs inside capture."""
        for operand, name in enumerate(node.inputs):
            for output, made in enumerate(node.outputs):
                if name and made:
                    cut = (
                        ""
                        if op is None
                        else op.cut(node.attrs, operand, output) or self._cast_like(graph, node, operand)
                    )
                    self.ways.append(Way(known[name], known[made], at, node, cut, operand))
        for name in (n for inner in node.subgraphs for n in inner.captures):
            self._join([known[name]], [known[made] for made in node.outputs if made], at, node)

    def _cast_like(self, graph: Graph, node: Node, operand: int) -> Cut:
        """A cast to the type of another tensor rounds where that one holds integers."""
        if node.op != "CastLike" or operand != 0:
            return ""
        like = node.inputs[1]
        declared = graph.types[like].dtype if like in graph.types else self.dtypes.get(like)
        dtype = graph.constants[like].dtype if like in graph.constants else declared
        return "rounds" if dtype is not None and not is_inexact(dtype) else ""

    def _composed(self, node: Node, inner: Graph, at: Spot, scope: str, known: Scope) -> None:
        """The nodes of the graph that an operator is composed of."""
        place = _within(scope, at, "forward")
        made = self._graph(inner, place, {}, _inside(node, at, "forward"))
        for given, name in zip((n for n in node.inputs if n), inner.inputs, strict=False):
            self._join([known[given]], [made[name]], at, node)
        for name, target in zip(inner.outputs, node.outputs, strict=False):
            if target:
                self._join([made[name]], [known[target]], at, node)

    def _body(self, node: Node, attr: str, at: Spot, scope: str, known: Scope) -> tuple[Graph, Scope]:
        inner = node.attrs[attr]
        assert isinstance(inner, Graph)
        return inner, self._graph(inner, _within(scope, at, attr), known, _inside(node, at, attr))

    def _join(self, sources: Iterable[Tensor], targets: Iterable[Tensor], at: Spot, node: Node, cut: Cut = "") -> None:
        ends = [*targets]
        self.ways.extend(Way(source, target, at, node, cut) for source in sources for target in ends)

    def _if(self, graph: Graph, node: Node, at: Spot, scope: str, known: Scope) -> None:
        targets = [known[name] if name else None for name in node.outputs]
        self._join([known[node.inputs[0]]], [t for t in targets if t], at, node, "decides")
        for attr in ("then_branch", "else_branch"):
            branch, made = self._body(node, attr, at, scope, known)
            for name, target in zip(branch.outputs, targets, strict=False):
                if target:
                    self._join([made[name]], [target], at, node)

    def _loop(self, graph: Graph, node: Node, at: Spot, scope: str, known: Scope) -> None:
        body, made = self._body(node, "body", at, scope, known)
        targets = [known[name] if name else None for name in node.outputs]
        deciding = [known[name] for name in node.inputs[:2] if name] + [made[body.outputs[0]]]
        self._join(deciding, [t for t in targets if t], at, node, "decides")
        self._join(deciding, [made[body.inputs[0]], made[body.inputs[1]]], at, node, "decides")
        if not _runs(graph, node):
            for name, target in zip(node.inputs[2:], targets, strict=False):
                self._join([known[name]] if name else [], [target] if target else [], at, node)
        self._rounds(node, node.inputs[2:], body.inputs[2:], body.outputs[1:], made, targets, at, known)

    def _scan(self, graph: Graph, node: Node, at: Spot, scope: str, known: Scope) -> None:
        body, made = self._body(node, "body", at, scope, known)
        states = len(node.inputs) - int(node.attrs.get("num_scan_inputs", 0))
        targets = [known[name] if name else None for name in node.outputs]
        for given, name in zip(node.inputs[states:], body.inputs[states:], strict=False):
            self._join([known[given]], [made[name]], at, node)
        self._rounds(node, node.inputs[:states], body.inputs[:states], body.outputs, made, targets, at, known)

    def _rounds(
        self, node: Node, given: tuple[str, ...], states: tuple[str, ...], results: tuple[str, ...], made: Scope,
        targets: list[Tensor | None], at: Spot, known: Scope,
    ) -> None:  # fmt: skip
        """States from the node's inputs into a body and round it, and its results to the node's outputs."""
        for i, (name, state) in enumerate(zip(given, states, strict=False)):
            self._join([known[name]] if name else [], [made[state]], at, node)
            self._join([made[results[i]]], [made[state]], at, node)
        for name, target in zip(results, targets, strict=False):
            if target:
                self._join([made[name]], [target], at, node)

    def _map(self, graph: Graph, node: Node, at: Spot, scope: str, known: Scope) -> None:
        body, made = self._body(node, "body", at, scope, known)
        for given, name in zip(node.inputs, body.inputs, strict=False):
            self._join([known[given]], [made[name]], at, node)
        for name, target in zip(body.outputs, node.outputs, strict=False):
            if target:
                self._join([made[name]], [known[target]], at, node)


_BODIES: Mapping[str, Callable[[Flow, Graph, Node, Spot, str, Scope], None]] = {
    "If": Flow._if, "Loop": Flow._loop, "Scan": Flow._scan, "SequenceMap": Flow._map,
}  # fmt: skip


def _reached(
    names: Iterable[Tensor],
    ways: Mapping[Tensor, list[Way]],
    passes: Callable[[Way], bool],
    end: Callable[[Way], Tensor],
) -> set[Tensor]:
    found = set(names)
    waiting = [*found]
    while waiting:
        for way in ways.get(waiting.pop(), ()):
            if (tensor := end(way)) not in found and passes(way):
                found.add(tensor)
                waiting.append(tensor)
    return found


def _runs(graph: Graph, node: Node) -> bool:
    """A loop goes round at least once, as its constants say; another may hand its states on as they are."""
    trips, going = (*node.inputs, "", "")[:2]
    return all(not name or (name in graph.constants and bool(np.all(graph.constants[name]))) for name in (trips, going))


def _within(scope: str, at: Spot, attr: str) -> str:
    return f"{scope}/{at.node}.{attr}"


def _inside(node: Node, at: Spot, attr: str) -> str:
    """A graph inside of a node, as messages name it."""
    outer = f" in the {at.inside}" if at.inside else ""
    return f"{attr} of {describe(at.node, node)}{outer}"
