"""The straight-through gradient: what rounds does not round, where its result is computed with further.

Quantizers do not round in the operator table.  Round, Floor, Ceil and Casts to integers or the small floats and back
are rewritten in the graph, node by node: only if a real number goes in, and only for those who add, multiply or
return what comes out.  Whoever takes it for a shape, an index or a condition gets what was rounded.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from gradcheck_cli.formats.source import Source
from gradcheck_cli.graph import Graph, Node, is_inexact
from gradcheck_cli.op import DTYPES, Ops, zero
from gradcheck_cli.ops.quantize import COUNTED, ROUNDED, straight
from gradcheck_cli.settings import Settings
from gradcheck_cli.symbolic import identity

NOTHING_ROUNDS = "--straight-through has no effect: nothing here is rounded and then computed with"
_ROUNDING = {("", "Round"), ("", "Floor"), ("", "Ceil")}
_QUANTIZING = {"Quantize", "Integer", "QLinear", "QGemm", "QAttention", "QOrdered"}  # in names of operators
_SELECTING: dict[str, tuple[int, ...]] = {  # operands that say which, how many or whether, beside those of `Op.static`
    "CastLike": (1,), "Compress": (1,), "Gather": (1,), "GatherElements": (1,), "GatherND": (1,), "GRU": (4,),
    "If": (0,), "Loop": (0, 1), "LSTM": (4,), "MaxUnpool": (1,), "NegativeLogLikelihoodLoss": (1,), "OneHot": (0,),
    "Range": (1,), "ReverseSequence": (1,), "RNN": (4,), "RoiAlign": (2,), "Scatter": (1,), "ScatterElements": (1,),
    "ScatterND": (1,), "SequenceAt": (1,), "SequenceErase": (1,), "SequenceInsert": (2,),
    "SoftmaxCrossEntropyLoss": (1,), "SplitToSequence": (1,), "TensorScatter": (2,), "Where": (0,),
}  # fmt: skip
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
    selecting = {*_SELECTING.get(node.op, ())} if not node.domain else set()
    selecting.update(() if record is None else record.static.values())
    return tuple(name for i, name in enumerate(node.inputs) if name and i not in selecting)


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


def rounds(source: Source, settings: Settings, ops: Ops) -> bool:
    """There is something in a model that the straight-through gradient goes through."""
    graph = straightened(source.graph, ops, settings.x or (), settings.y or ())
    return graph is not source.graph or any(map(_quantizes, _nodes(graph)))


def straightened(graph: Graph, ops: Ops, xs: Iterable[str] = (), ys: Iterable[str] = ()) -> Graph:
    """The graph whose nodes do not round; the same one if none does that has to be gone through."""
    reals = {n for n in graph.free_inputs if n in graph.types and _is_real(graph.types[n].dtype)}
    weights = {n for n, value in graph.constants.items() if _is_real(value.dtype) and value.size > 1}
    return _Through(graph, ops, {*reals, *weights, *xs}, {*graph.outputs, *ys}).graph


class _Through:
    """One graph, with those around it that it reads names of."""

    def __init__(self, original: Graph, ops: Ops, reals: Collection[str], results: Collection[str]) -> None:
        self.original, self.ops = original, ops
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
