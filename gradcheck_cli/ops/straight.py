"""The straight-through gradient: what rounds does not round, where its result is computed with further.

Quantizers do not round in the operator table.  Round, Floor, Ceil and Casts to integers or the small floats and back
are rewritten in the graph, node by node: only if a real number goes in, and only for those who add, multiply or
return what comes out.  Whoever takes it for a shape, an index or a condition gets what was rounded.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from itertools import count
from typing import Any

import numpy as np

from gradcheck_cli.connections.rules import only_decides
from gradcheck_cli.formats.source import Source
from gradcheck_cli.graph import Graph, Node, is_inexact
from gradcheck_cli.op import DTYPES, Op, Ops, composite, zero
from gradcheck_cli.ops.quantize import COUNTED, ROUNDED, bind_axis, dequantize, quantize_straight, straight
from gradcheck_cli.settings import Settings
from gradcheck_cli.symbolic import identity

NOTHING_ROUNDS = "--straight-through has no effect: nothing here is rounded and then computed with"
_ROUNDING = {("", "Round"), ("", "Floor"), ("", "Ceil")}
_QUANTIZING = {"Quantize", "Integer", "QLinear", "QGemm", "QAttention", "QOrdered"}  # in names of operators
_OF_REALS = {  # operators that mean for integers what they mean for reals
    "Abs", "Add", "Clip", "Concat", "ConvInteger", "DepthToSpace", "Expand", "Flatten", "Gather", "GatherElements",
    "GatherND", "Identity", "MatMul", "MatMulInteger", "Max", "Min", "Mul", "Neg", "Pad", "ReduceMax", "ReduceMin",
    "ReduceSum", "Reshape", "Slice", "SpaceToDepth", "Split", "Squeeze", "Sub", "Sum", "Tile", "Transpose",
    "Unsqueeze", "Where",
}  # fmt: skip


def carried(node: Node, ops: Ops) -> tuple[str, ...]:
    """Tensors that a node computes with; not those that select, size or decide, nor those of which nothing is left."""
    record = ops.get(node.key)
    if record is not None and record.vjp is zero and node.key not in _ROUNDING:
        return ()
    return tuple(
        name for i, name in enumerate(node.inputs) if name and (node.key in _ROUNDING or not only_decides(node, i, ops))
    )


def unrounded(ops: Ops) -> Ops:
    """The operator table with quantizers that do not round: training goes through them as if they did not."""
    return {
        **ops,
        ROUNDED: replace(ops[ROUNDED], forward=straight),
        COUNTED: replace(ops[COUNTED], forward=identity),
    }


def through(source: Source, settings: Settings, ops: Ops) -> tuple[Source, Ops]:
    """A model and the operator table as they are differentiated: with --straight-through without what rounds."""
    if not settings.straight_through:
        return source, ops
    graph = straightened(source.graph, ops, settings.x or (), settings.y or ())
    return (source if graph is source.graph else replace(source, graph=graph)), unrounded(ops)


def estimated(source: Source, ops: Ops, xs: Iterable[str] = (), ys: Iterable[str] = ()) -> tuple[Source, Ops]:
    """A model that computes what it did, rounded, and whose derivative goes straight through what rounds."""
    table = {**ops, **{op.key: op for op in _STRAIGHT}}
    table.update((key, replace(ops[key], vjp=lambda ct, *_: (ct,))) for key in _ROUNDING)
    flow = _Through(source.graph, ops, _reals(source.graph, xs), {*source.graph.outputs, *ys}, quantizers=True)
    return replace(source, graph=_Estimated(flow).graph()), table


def rounds(source: Source, settings: Settings, ops: Ops) -> bool:
    """There is something in a model that the straight-through gradient goes through."""
    graph = straightened(source.graph, ops, settings.x or (), settings.y or ())
    return graph is not source.graph or any(map(_quantizes, _nodes(graph)))


def straightened(graph: Graph, ops: Ops, xs: Iterable[str] = (), ys: Iterable[str] = ()) -> Graph:
    """The graph whose nodes do not round; the same one if none does that has to be gone through."""
    return _Through(graph, ops, _reals(graph, xs), {*graph.outputs, *ys}).graph


def _reals(graph: Graph, xs: Iterable[str]) -> set[str]:
    """What gradients may be asked of: inputs and weights."""
    reals = {n for n in graph.free_inputs if n in graph.types and _is_real(graph.types[n].dtype)}
    weights = {n for n, value in graph.constants.items() if _is_real(value.dtype) and value.size > 1}
    return {*reals, *weights, *xs}


class _Through:
    """One graph, with those around it that it reads names of."""

    def __init__(
        self, original: Graph, ops: Ops, reals: Collection[str], results: Collection[str], *, quantizers: bool = False
    ) -> None:
        """With `quantizers`, QuantizeLinear is gone through like a Cast, and not by the operator table."""
        self.original, self.ops, self.quantizers = original, ops, quantizers
        self.carried = [carried(node, ops) for node in original.nodes]
        self.reals, self.wholes = {*reals}, set[str]()  # that depend on inputs; integers that stand for such numbers
        for node, values in zip(original.nodes, self.carried, strict=True):
            self._forward(node, values)
        self.used = {n for n in results if n in self.reals and self._may_be_real(n)}
        for node, values in zip(reversed(original.nodes), reversed(self.carried), strict=True):
            if not self.used.isdisjoint(node.outputs):
                self.used.update(n for n in values if n in self.reals or n in self.wholes)
        self.renamed = dict[str, str]()

    @cached_property
    def graph(self) -> Graph:
        """The graph rewritten."""
        kept, nodes = self._kept(), list[Node]()
        for index, node in enumerate(self.original.nodes):
            if index in kept:
                nodes.append(node)
                self.renamed.update((n, self._fresh(n)) for n in node.outputs if n in self.used)
            nodes.append(self._rewritten(index, node))
        if len(nodes) == len(self.original.nodes) and all(map(lambda a, b: a is b, nodes, self.original.nodes)):
            return self.original
        return replace(self.original, nodes=tuple(nodes))

    def _fresh(self, name: str) -> str:
        """A name for what would be in a tensor if nothing rounded."""
        new = f"{name}/unrounded"
        while new in self.original.tensors:
            new += "'"
        return new

    def _forward(self, node: Node, values: tuple[str, ...]) -> None:
        outputs, whole = [n for n in node.outputs if n], not self.wholes.isdisjoint(values)
        captured = {n for g in node.subgraphs for n in g.captures}
        if not whole and self.reals.isdisjoint(values) and self.reals.isdisjoint(captured):
            return
        target = _target(node)
        if target is not None:
            if target.kind != "b" and target.kind != "O":
                (self.reals if is_inexact(target) else self.wholes).update(outputs)
        elif self.quantizers and node.key == ("", "QuantizeLinear"):
            self.wholes.update(outputs)
        elif not whole or node.op == "DequantizeLinear":
            self.reals.update(outputs)
        elif node.op in _OF_REALS and not node.domain:
            self.wholes.update(outputs)

    def _goes_through(self, node: Node) -> bool:
        """It rounds, or computes with integers that come from rounding, and its result is real again further on."""
        if self.used.isdisjoint(node.outputs):
            return False
        return node.key in _ROUNDING or not self.wholes.isdisjoint(node.outputs)

    def _kept(self) -> set[int]:
        """Nodes whose result is read as it was rounded too."""
        rounded = {n for n in self.original.outputs if n in self.wholes}
        kept = set[int]()
        for index, node in reversed([*enumerate(self.original.nodes)]):
            through = self._goes_through(node)
            if through and not rounded.isdisjoint(node.outputs):
                kept.add(index)
            if not through or index in kept:
                rounded.update(self._read_rounded(index, node, through))
        return kept

    def _read_rounded(self, index: int, node: Node, through: bool) -> Iterator[str]:
        if through:
            yield from node.reads
        elif self.used.isdisjoint(node.outputs):
            yield from (n for n in node.reads if n in self.used)
        else:
            yield from (n for n in node.reads if n in self.used and n not in self.carried[index] and n in node.inputs)

    def _rewritten(self, index: int, node: Node) -> Node:
        through = self._goes_through(node)
        if not self.used.isdisjoint(node.outputs):
            node = self._inside(node)
            if self.renamed:
                values = self.carried[index]
                inputs = tuple(self.renamed.get(n, n) if n in values else n for n in node.inputs)
                outputs = tuple(self.renamed.get(n, n) for n in node.outputs)
                node = replace(node, inputs=inputs, outputs=outputs)
        if not through:
            return node
        target = _target(node)
        if node.key in _ROUNDING or (target is not None and target.kind in "iu"):
            return replace(node, op="Identity", domain="", attrs={}, inputs=node.inputs[:1])
        if target is not None:
            attrs = {"dtype": node.attrs["to"], "saturate": node.attrs.get("saturate", 1)}
            return replace(node, op=ROUNDED[1], domain=ROUNDED[0], attrs=attrs, inputs=node.inputs[:1])
        return node

    def _inside(self, node: Node) -> Node:
        """The node with its subgraphs gone through."""
        new = {key: self._body(node, value) for key, value in node.attrs.items() if isinstance(value, Graph)}
        if all(new[key] is node.attrs[key] for key in new):
            return node
        return replace(node, attrs={**node.attrs, **new})

    def _body(self, node: Node, body: Graph) -> Graph:
        declared = {n: body.types[n].dtype if n in body.types else None for n in body.inputs}
        reals = {n for n, dtype in declared.items() if dtype is None or _is_real(dtype)} if body.inputs else set()
        outputs = body.outputs[1:] if node.op == "Loop" else body.outputs
        return _Through(body, self.ops, self.reals | reals, outputs).graph

    def _may_be_real(self, name: str) -> bool:
        declared = self.original.types.get(name)
        return declared is None or declared.dtype is None or _is_real(declared.dtype)


class _Estimated:
    """A graph with a twin of what is rounded: the same, unrounded, whose derivative is that of the rounded one.

    Both meet where integers become real again: the value is that of the one, the derivative that of the other.
    """

    def __init__(self, flow: _Through) -> None:
        self.flow, self.nodes = flow, list[Node]()
        self.twins = dict[str, str]()  # of integers that stand for real numbers

    def graph(self) -> Graph:
        """The graph with its twins."""
        for node, values in zip(self.flow.original.nodes, self.flow.carried, strict=True):
            twins = [self.twins[n] for n in values if n in self.twins]
            if self.flow.used.isdisjoint(node.outputs):
                self.nodes.append(node)
            elif not self.flow.wholes.isdisjoint(node.outputs):
                self.nodes.append(node)
                self._twin(node, values, twins)
            elif twins:
                self._meet(node)
            else:
                self.nodes.append(node)
        return replace(self.flow.original, nodes=tuple(self.nodes))

    def _twin(self, node: Node, values: tuple[str, ...], twins: list[str]) -> None:
        target = _target(node)
        if target is not None and target.kind in "iu":
            self._see_rounded(node, self.twins.get(node.inputs[0], node.inputs[0]))
        elif target is not None:
            attrs = {"dtype": node.attrs["to"], "saturate": node.attrs.get("saturate", 1)}
            self._add(node, "Bounded", (self.twins.get(node.inputs[0], node.inputs[0]),), attrs)
            self._see_rounded(node, self.twins[node.outputs[0]])
        elif node.op == "QuantizeLinear":
            self._add(node, "QuantizedStraight", node.inputs, node.attrs)
            self._see_rounded(node, self.twins[node.outputs[0]])
        else:
            like = {n: self.twins.get(n) or self._cast_like(n, twins[0]) for n in values}
            inputs = tuple(like.get(n, n) for n in node.inputs)
            self._add(node, node.op, inputs, node.attrs, node.domain)

    def _see_rounded(self, node: Node, real: str) -> None:
        """Rules further on, of Clip and of scales, see the numbers that were rounded."""
        self._add(node, "Straight", (real, self._cast_like(node.outputs[0], real)), {})

    def _meet(self, node: Node) -> None:
        """Values of a node that makes integers real, with the derivative of its twin."""
        [y] = node.outputs
        rounded, unrounded = self._fresh(f"{y}/rounded"), self._fresh(f"{y}/unrounded")
        self.nodes.append(replace(node, outputs=(rounded,)))
        inputs = (self.twins[node.inputs[0]], *node.inputs[1:])
        own = ("Cast", "") if node.op == "Cast" else ("DequantizedStraight", "gradcheck")
        self.nodes.append(replace(node, op=own[0], domain=own[1], inputs=inputs, outputs=(unrounded,)))
        self.nodes.append(Node("Straight", (unrounded, rounded), (y,), domain="gradcheck", name=node.name))

    def _add(
        self, node: Node, op: str, inputs: tuple[str, ...], attrs: Mapping[str, Any], domain: str = "gradcheck"
    ) -> None:
        outputs = tuple(self._fresh(f"{n}/unrounded") if n else "" for n in node.outputs)
        self.twins.update((n, new) for n, new in zip(node.outputs, outputs, strict=True) if n)
        self.nodes.append(replace(node, op=op, domain=domain, inputs=inputs, outputs=outputs, attrs=attrs))

    def _cast_like(self, name: str, real: str) -> str:
        """An integer beside the twin of another one, in the dtype of that."""
        new = self._fresh(f"{name}/real")
        self.nodes.append(Node("CastLike", (name, real), (new,)))
        return new

    def _fresh(self, name: str) -> str:
        taken = {*self.flow.original.tensors, *(n for node in self.nodes for n in node.outputs)}
        return next(new for i in count() if (new := f"{name}{i or ''}") not in taken)


_STRAIGHT = [
    Op("Straight", lambda unrounded, rounded: identity(rounded), lambda ct, *_: (ct, None), domain="gradcheck",
       composed=True),
    composite("Bounded", straight, domain="gradcheck"),
    composite("QuantizedStraight", quantize_straight, bind=bind_axis, domain="gradcheck"),
    composite("DequantizedStraight", dequantize, bind=bind_axis, domain="gradcheck"),
]  # fmt: skip


def _target(node: Node) -> np.dtype[Any] | None:
    """The dtype that a Cast is to; None for another node."""
    return DTYPES.get(node.attrs.get("to", 0)) if node.key == ("", "Cast") else None


def _is_real(dtype: np.dtype[Any] | None) -> bool:
    return dtype is not None and is_inexact(dtype)


def _quantizes(node: Node) -> bool:
    return node.op != "DequantizeLinear" and any(word in node.op for word in _QUANTIZING)


def _nodes(graph: Graph) -> Iterator[Node]:
    for node in graph.nodes:
        yield node
        for inner in node.subgraphs:
            yield from _nodes(inner)
