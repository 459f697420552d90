"""The straight-through gradient: what rounds does not round, where its result is computed with further.

Quantizers do not round in the operator table.  Round, Floor, Ceil and Casts to integers or the small floats and back
are rewritten in the graph, node by node: only if a real number goes in, and only for those who add, multiply or
return what comes out.  Whoever takes it for a shape, an index or a condition gets what was rounded.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property, wraps
from typing import Any

import numpy as np
from msgspec import structs

from gradcheck_cli.autodiff.reach import only_decides
from gradcheck_cli.autodiff.symbolic import identity
from gradcheck_cli.autodiff.tape import Var
from gradcheck_cli.errors import UnsupportedError
from gradcheck_cli.formats.source import Source
from gradcheck_cli.graph import FreshNames, Graph, Node, TensorType, describe, is_inexact
from gradcheck_cli.op import DTYPES, Op, Ops, composite, zero
from gradcheck_cli.op.batching import Kernel
from gradcheck_cli.ops.quantize import COUNTED, ROUNDED, straight
from gradcheck_cli.settings import Settings

NOTHING_ROUNDS = "--straight-through has no effect: nothing here is rounded and then computed with"
_ROUNDING = {("", "Round"), ("", "Floor"), ("", "Ceil")}
_QUANTIZING = {"Quantize", "Integer", "QLinear", "QGemm", "QAttention", "QOrdered"}  # in names of operators
_FLOATS = {"MatMulIntegerToFloat", "DynamicQuantizeMatMul", "DynamicQuantizeLSTM", "QAttention"}  # what these give
_OF_REALS = {  # operators that mean for integers what they mean for reals
    "Abs", "Add", "Clip", "Compress", "Concat", "ConvInteger", "DepthToSpace", "Expand", "Flatten", "Gather",
    "GatherElements", "GatherND", "Identity", "MatMul", "MatMulInteger", "Max", "MaxPool", "Min", "Mul", "Neg",
    "NhwcMaxPool", "Pad", "ReduceMax", "ReduceMin", "ReduceSum", "Relu", "Reshape", "Resize", "Slice", "SpaceToDepth",
    "Split", "Squeeze", "Sub", "Sum", "Tile", "Transpose", "Unsqueeze", "Where",
}  # fmt: skip


def carried(node: Node, ops: Ops) -> tuple[str, ...]:
    """Tensors that a node computes with; not those that select, size or decide, nor those of which nothing is left."""
    record = ops.get(node.key)
    if record is not None and record.vjp is zero and node.key not in _ROUNDING:
        return ()
    if node.op == "CastLike":
        return node.inputs[:1]
    rounds = node.key in _ROUNDING
    return tuple(name for i, name in enumerate(node.inputs) if name and (rounds or not only_decides(node, i, ops)))


def unrounded(ops: Ops) -> Ops:
    """The operator table with quantizers that do not round: training goes through them as if they did not."""
    forwards: dict[tuple[str, str], Kernel] = {ROUNDED: straight, COUNTED: identity}
    return {**ops, **{key: replace(ops[key], forward=forward) for key, forward in forwards.items()}}


def through(source: Source, settings: Settings, ops: Ops) -> tuple[Source, Ops]:
    """A model and the operator table as they are differentiated: with --straight-through without what rounds."""
    if not settings.straight_through:
        return source, ops
    graph = straightened(source.graph, ops, settings.x or (), settings.y or ())
    return (source if graph is source.graph else structs.replace(source, graph=graph)), unrounded(ops)


def estimated(source: Source, ops: Ops, xs: Iterable[str] = (), ys: Iterable[str] = ()) -> tuple[Source, Ops]:
    """A model that computes what it did, rounded, and whose derivative goes straight through what rounds."""
    quantizing = [_straightened(op) for op in ops.values() if op.composed and _by_codes(op.name)]
    table = {**ops, **{op.key: op for op in (*_STRAIGHT, *quantizing)}}
    table.update((key, replace(ops[key], vjp=lambda ct, *_: (ct,))) for key in _ROUNDING)
    flow = _StraightGraph(source.graph, ops, _reals(source.graph, xs), {*source.graph.outputs, *ys}, quantizers=True)
    return structs.replace(source, graph=_TwinGraph(flow).graph()), table


def rounded_again(node: Node) -> Node:
    """A node with graphs inside that compute the same numbers without the twins that their derivatives go through."""
    return node.with_graphs(_without_twins)


def _without_twins(graph: Graph) -> Graph:
    nodes, needed = list[Node](), {*graph.outputs}
    for each in reversed(graph.nodes):
        if not needed.isdisjoint(each.outputs):
            twin = each.key == ("gradcheck", "Straight")
            nodes.append(Node("Identity", each.inputs[1:], each.outputs) if twin else rounded_again(each))
            needed.update(nodes[-1].reads)
    return replace(graph, nodes=tuple(reversed(nodes)))


def rounds(source: Source, settings: Settings, ops: Ops) -> bool:
    """True if a model has nodes that the straight-through gradient goes through."""
    graph = straightened(source.graph, ops, settings.x or (), settings.y or ())
    return graph is not source.graph or any(map(_quantizes, graph.all_nodes))


def straightened(graph: Graph, ops: Ops, xs: Iterable[str] = (), ys: Iterable[str] = ()) -> Graph:
    """The graph with nodes that do not round in place of those that do; the same graph if there are none."""
    return _StraightGraph(graph, ops, _reals(graph, xs), {*graph.outputs, *ys}).graph


def _reals(graph: Graph, xs: Iterable[str]) -> set[str]:
    """Tensors that gradients may be asked of: inputs and weights."""
    reals = {n for n in graph.free_inputs if n in graph.types and _is_real(graph.types[n].dtype)}
    weights = {n for n, value in graph.constants.items() if _is_real(value.dtype) and value.size > 1}
    return {*reals, *weights, *xs}


class _StraightGraph:
    """A graph that gradients go straight through, alone or inside of the graph `around` it, whose tensors it reads."""

    def __init__(
        self, original: Graph, ops: Ops, reals: Collection[str], results: Collection[str], *, quantizers: bool = False,
        around: _StraightGraph | None = None, wholes: Collection[str] = (),
    ) -> None:  # fmt: skip
        """With `quantizers`, the gradient goes straight through quantizers as through a Cast, and not by the table."""
        self.original, self.ops, self.quantizers, self.around = original, ops, quantizers, around
        self.carried = [carried(node, ops) for node in original.nodes]
        self.reals = {*reals}  # that depend on inputs
        # integers that stand for such numbers
        self.wholes: set[str] = {*wholes, *(() if around is None else around.wholes)}
        self.bodies = dict[int, dict[str, _StraightGraph]]()
        for index, node in enumerate(original.nodes):
            self._forward(index, node)
        self.used = {n for n in results if n in self.reals and self._may_be_real(n)}
        for node, values in zip(reversed(original.nodes), reversed(self.carried), strict=True):
            if not self.used.isdisjoint(node.outputs):
                self.used.update(n for n in values if n in self.reals or n in self.wholes)
        self.renamed = dict[str, str]()

    @cached_property
    def graph(self) -> Graph:
        """The graph rewritten."""
        (kept, _), nodes, names = self._rounded, list[Node](), FreshNames(self.original.tensors)
        if self.around is not None:
            self.renamed.update((n, self.around.renamed[n]) for n in self.original.captures if n in self.around.renamed)
        for index, node in enumerate(self.original.nodes):
            if index in kept:
                nodes.append(node)
                self.renamed.update((n, names.fresh(f"{n}/unrounded")) for n in node.outputs if n in self.used)
            nodes.append(self._rewritten(index, node))
        if len(nodes) == len(self.original.nodes) and all(map(lambda a, b: a is b, nodes, self.original.nodes)):
            return self.original
        return replace(self.original, nodes=tuple(nodes))

    def target(self, node: Node) -> np.dtype[Any] | None:
        """The dtype that a Cast is to; None for another node, or where nothing says it."""
        if node.key == ("", "Cast"):
            return DTYPES.get(node.attrs.get("to", 0))
        return self._dtype(node.inputs[1]) if node.key == ("", "CastLike") else None

    def _dtype(self, name: str) -> np.dtype[Any] | None:
        declared = self.original.types.get(name)
        if name in self.original.constants or (declared is not None and declared.dtype is not None):
            return self.original.constants[name].dtype if declared is None else declared.dtype
        if self.around is not None and name in self.original.captures:
            return self.around._dtype(name)
        return np.dtype(np.float64) if name in self.reals else np.dtype(np.int64) if name in self.wholes else None

    def _forward(self, index: int, node: Node) -> None:
        values, outputs = self.carried[index], [n for n in node.outputs if n]
        captured, whole = {n for g in node.subgraphs for n in g.captures}, not self.wholes.isdisjoint(values)
        if not whole and (self.reals | self.wholes).isdisjoint({*values, *captured}):
            return
        if captured or any(node.subgraphs):
            bodies = {key: self._body(node, value) for key, value in node.attrs.items() if isinstance(value, Graph)}
            used = set[str]().union(*(body.used for body in bodies.values())).intersection(captured)
            self.bodies[index], self.carried[index] = bodies, (*values, *(n for n in sorted(used) if n not in values))
        target = self.target(node)
        if target is not None:
            if target.kind != "b" and target.kind != "O":
                (self.reals if is_inexact(target) else self.wholes).update(outputs)
        elif self.quantizers and (_quantizes(node) or index in self.bodies):
            codes = _codes(node) if _quantizes(node) else self.codes_out(index)
            self.wholes.update(codes)
            self.reals.update(n for n in outputs if n not in codes)
        elif not whole or node.op == "DequantizeLinear":
            self.reals.update(outputs)
        elif node.op in _OF_REALS:
            self.wholes.update(outputs)

    def codes_out(self, index: int) -> set[str]:
        """Results of a node with subgraphs that are integers which stand for real numbers."""
        node, found = self.original.nodes[index], set[str]()
        for body in self.bodies[index].values():
            pairs = zip(node.outputs, node.handed_out(body.original), strict=False)
            found.update(n for n, made in pairs if n and made in body.wholes)
        return found

    def codes_in(self, index: int) -> set[str]:
        """Operands of a node with subgraphs that are such integers, and that its bodies compute with."""
        bodies, node = self.bodies[index].values(), self.original.nodes[index]
        handed = ((body, *pair) for body in bodies for pair in _handed_in(node, body.original))
        return {n for body, n, given in handed if n in self.wholes and given in body.used}

    def _goes_through(self, node: Node) -> bool:
        """True for a node that rounds, or computes with integers from rounding, if its result is real again further on."""
        if self.used.isdisjoint(node.outputs):
            return False
        return node.key in _ROUNDING or not self.wholes.isdisjoint(node.outputs)

    @cached_property
    def _rounded(self) -> tuple[set[int], set[str]]:
        """Nodes whose result is read as it was rounded too, and all names that are read so."""
        rounded = {n for n in self.original.outputs if n in self.wholes}
        kept = set[int]()
        for index, node in reversed([*enumerate(self.original.nodes)]):
            through = self._goes_through(node)
            if through and not rounded.isdisjoint(node.outputs):
                kept.add(index)
            if not through or index in kept:
                rounded.update(self._read_rounded(index, node, through))
        return kept, rounded

    def _read_rounded(self, index: int, node: Node, through: bool) -> Iterator[str]:
        if through:
            yield from node.reads
        elif self.used.isdisjoint(node.outputs):
            yield from (n for n in node.reads if n in self.used)
        else:
            yield from (n for n in node.reads if n in self.used and n not in self.carried[index])
            for body in self.bodies.get(index, {}).values():
                yield from body._rounded[1].intersection(body.original.captures)

    def _rewritten(self, index: int, node: Node) -> Node:
        through = self._goes_through(node)
        if not self.used.isdisjoint(node.outputs):
            node = self._inside(index, node)
            if self.renamed:
                values = self.carried[index]
                inputs = tuple(self.renamed.get(n, n) if n in values else n for n in node.inputs)
                outputs = tuple(self.renamed.get(n, n) for n in node.outputs)
                node = replace(node, inputs=inputs, outputs=outputs)
        if not through:
            return node
        target = self.target(self.original.nodes[index])
        if node.key in _ROUNDING or (target is not None and target.kind in "iu"):
            return replace(node, op="Identity", domain="", attrs={}, inputs=node.inputs[:1])
        if target is not None:
            return replace(node, op=ROUNDED[1], domain=ROUNDED[0], attrs=_bounds(node, target), inputs=node.inputs[:1])
        return node

    def _inside(self, index: int, node: Node) -> Node:
        """The node with its subgraphs rewritten."""
        new = {key: body.graph for key, body in self.bodies.get(index, {}).items()}
        same = all(new[key] is node.attrs[key] for key in new)
        return node if same else replace(node, attrs={**node.attrs, **new})

    def _body(self, node: Node, body: Graph) -> _StraightGraph:
        declared = {n: body.types[n].dtype if n in body.types else None for n in body.inputs}
        reals = {n for n, dtype in declared.items() if dtype is None or _is_real(dtype)} if body.inputs else set()
        wholes = {given for n, given in _handed_in(node, body) if n in self.wholes} if self.quantizers else ()
        return _StraightGraph(
            body, self.ops, self.reals | reals, node.handed_out(body), quantizers=self.quantizers, around=self,
            wholes=wholes,
        )  # fmt: skip

    def _may_be_real(self, name: str) -> bool:
        dtype = self.original.types.get(name, TensorType()).dtype
        return dtype is None or is_inexact(dtype)


def _handed_in(node: Node, body: Graph) -> Iterator[tuple[str, str]]:
    """Operands of a node with subgraphs, each with the name that its body gives it."""
    first = 2 if node.op == "Loop" else 0
    return zip(node.inputs[first:], body.inputs[first:], strict=False)


class _TwinGraph:
    """A graph with a twin of each tensor that is rounded: unrounded, with the derivative that the rounded one gets.

    Both meet where integers become real again: the value is that of the one, the derivative that of the other.
    """

    def __init__(self, flow: _StraightGraph, around: _TwinGraph | None = None) -> None:
        self.flow, self.nodes = flow, list[Node]()
        self.twins: dict[str, str] = {} if around is None else {**around.twins}  # of integers that stand for reals
        self.names: FreshNames = FreshNames(flow.original.all_tensors) if around is None else around.names

    def graph(self) -> Graph:
        """The graph with its twins."""
        for index, (node, values) in enumerate(zip(self.flow.original.nodes, self.flow.carried, strict=True)):
            if self.flow.used.isdisjoint(node.outputs):
                self.nodes.append(node)
            elif any(node.subgraphs):
                self._require_reals(index, node)
                inside = {key: _TwinGraph(body, self).graph() for key, body in self.flow.bodies.get(index, {}).items()}
                self.nodes.append(replace(node, attrs={**node.attrs, **inside}))
            elif not self.twins.keys().isdisjoint(values) or self._rounds(node):
                self._double(node, values)
            else:
                self.nodes.append(node)
        return replace(self.flow.original, nodes=tuple(self.nodes))

    def _require_reals(self, index: int, node: Node) -> None:
        """UnsupportedError for a node through which integers go in or out that stand for real numbers."""
        ways = [("takes", self.flow.codes_in(index)), ("hands out", self.flow.codes_out(index) & self.flow.used)]
        for verb, codes in ways if index in self.flow.bodies else ():
            if codes:
                raise UnsupportedError(
                    f"{describe(index, node)} {verb} {', '.join(map(repr, sorted(codes)))} as integers that stand for real "
                    "numbers: no straight-through gradient can be written through it. Quantize and dequantize on the same "
                    "side of it.",
                    code="GC501",
                )

    def _rounds(self, node: Node) -> bool:
        return not self.flow.wholes.isdisjoint(node.outputs) or (_quantizes(node) and self.flow.ops[node.key].composed)

    def _double(self, node: Node, values: tuple[str, ...]) -> None:
        """A node and its twin; they meet in results that are real."""
        reals = {n: self.names.fresh(f"{n}/rounded") for n in node.outputs if n and n not in self.flow.wholes}
        self.nodes.append(replace(node, outputs=tuple(reals.get(n, n) for n in node.outputs)) if reals else node)
        seen = self.flow.target(node) is not None or _by_codes(node.op)
        for name, twin in zip(node.outputs, self._twin(node, values), strict=True):
            if name in reals:
                self._see(node, twin, reals[name], name)
            elif name:  # rules further on, of Clip and of scales, see the numbers that were rounded
                self.twins[name] = self.names.fresh(f"{name}/unrounded") if seen else twin
                if seen:
                    self._see(node, twin, self._cast_like(name, twin), self.twins[name])

    def _see(self, node: Node, unrounded: str, rounded: str, name: str) -> None:
        """A tensor with the values of one and the derivative of another."""
        self.nodes.append(Node("Straight", (unrounded, rounded), (name,), domain="gradcheck", name=node.name))

    def _twin(self, node: Node, values: tuple[str, ...]) -> tuple[str, ...]:
        """The results of a node if nothing was rounded."""
        target, read = self.flow.target(node), tuple(self.twins.get(n, n) if n in values else n for n in node.inputs)
        if target is not None and target.kind in "iu":
            return read[:1]
        if target is not None and not is_inexact(target):
            return self._added(node, read[:1], ("gradcheck", "Bounded"), _bounds(node, target))
        if target is not None:
            return self._added(node, read, node.key, node.attrs)
        if _by_codes(node.op):
            return self._added(node, read, _of_straight(node.key), node.attrs)
        real = next(self.twins[n] for n in values if n in self.twins)
        read = tuple(self._cast_like(n, real) if n in values and n not in self.twins else n for n in node.inputs)
        return self._added(node, tuple(self.twins.get(n, n) for n in read), node.key, node.attrs)

    def _added(
        self, node: Node, inputs: tuple[str, ...], key: tuple[str, str], attrs: Mapping[str, Any]
    ) -> tuple[str, ...]:
        outputs = tuple(self.names.fresh(f"{n}/unrounded") if n else "" for n in node.outputs)
        self.nodes.append(replace(node, op=key[1], domain=key[0], inputs=inputs, outputs=outputs, attrs=attrs))
        return outputs

    def _cast_like(self, name: str, real: str) -> str:
        """An integer beside the twin of another one, in the dtype of that."""
        new = self.names.fresh(f"{name}/real")
        self.nodes.append(Node("CastLike", (name, real), (new,)))
        return new


_STRAIGHT = [
    Op("Straight", lambda unrounded, rounded: identity(rounded), lambda ct, *_: (ct, None), domain="gradcheck",
       composed=True),
    composite("Bounded", straight, domain="gradcheck"),
]  # fmt: skip


def _straightened(op: Op) -> Op:
    """A composed operator that rounds nothing inside."""

    @wraps(op.forward)
    def forward(*operands: Any, **metadata: Any) -> Any:
        tape = next(x.tape for x in operands if isinstance(x, Var))
        before, tape.ops = tape.ops, unrounded(tape.ops)
        try:
            return op.forward(*operands, **metadata)
        finally:
            tape.ops = before

    domain, name = _of_straight(op.key)
    return replace(op, name=name, domain=domain, forward=forward)


def _of_straight(key: tuple[str, str]) -> tuple[str, str]:
    """The name of an operator that rounds nothing inside."""
    return f"gradcheck.{key[0]}", f"{key[1]}Straight"


def _bounds(node: Node, target: np.dtype[Any]) -> dict[str, Any]:
    """Metadata of what bounds to the numbers of a small float."""
    number = next(number for number, dtype in DTYPES.items() if dtype == target)
    return {"dtype": number, "saturate": node.attrs.get("saturate", 1)}


def _is_real(dtype: np.dtype[Any] | None) -> bool:
    return dtype is not None and is_inexact(dtype)


def _quantizes(node: Node) -> bool:
    return node.op != "DequantizeLinear" and _by_codes(node.op)


def _by_codes(op: str) -> bool:
    """True for an operator that computes with the integers of a quantizer, or makes them."""
    return op == "DequantizeLinear" or any(word in op for word in _QUANTIZING)


def _codes(node: Node) -> set[str]:
    """Outputs of a node that quantizes which are integers."""
    if node.op in _FLOATS or (node.op == "QGemm" and not any(node.inputs[7:8])):
        return set()
    outputs = node.outputs[::2] if node.op == "DynamicQuantizeLinear" else node.outputs
    return {n for n in outputs if n}
