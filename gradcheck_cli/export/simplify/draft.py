"""A graph while it is simplified: the nodes so far, and the known types, shapes and values of their tensors.

Nodes come in topological order, so that the operands of a node are simplified before it.  `kept` tensors belong to the
model that a gradient was added to: they do not change, and values of their constants count as unknown, since users of
the file may replace them.  Types come from ONNX's shape inference on the declared inputs; what exporters declare of
other tensors is not trusted.  `followed` adds shapes that this inference leaves open.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, TypeVar

import numpy as np
from onnx import GraphProto, TensorProto
from onnx.shape_inference import infer_shapes

from gradcheck_cli.export.inner import renamed
from gradcheck_cli.formats.onnx.attributes import elem_type, tensor_proto
from gradcheck_cli.formats.onnx.tensors import types_of
from gradcheck_cli.formats.onnx.write import to_proto
from gradcheck_cli.graph import Array, Dim, FreshNames, Graph, Node, TensorType, computing

Shape: TypeAlias = tuple[Dim, ...]
Volume: TypeAlias = tuple[int, tuple[str, ...]]
_T = TypeVar("_T")
Found: TypeAlias = "str | Array | Node"  # the replacement of a node: a tensor, a constant or another node
Rule: TypeAlias = "Callable[[Node, Draft], Found | None]"
Rules: TypeAlias = Mapping[str, tuple[Rule, ...]]
RESHAPING = ("Reshape", "Flatten", "Squeeze", "Unsqueeze")
BROADCASTING = (
    "Add", "Sub", "Mul", "Div", "Pow", "Mod", "Where", "Sum", "Mean", "Max", "Min", "Equal", "Less", "LessOrEqual",
    "Greater", "GreaterOrEqual", "And", "Or", "Xor",
)  # fmt: skip
DRAWING = {
    "Bernoulli", "Dropout", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike",
}  # fmt: skip
_SHAPE_OF_FIRST = (  # operators whose output has the shape of their first operand
    "Neg", "Exp", "Sqrt", "Reciprocal", "Cast", "Not", "Identity", "Abs", "Log", "Tanh", "Sigmoid", "Relu", "Softmax",
)  # fmt: skip
_COMMUTING = {"Add", "Mul", "And", "Or", "Xor", "Equal", "BitwiseAnd", "BitwiseOr", "BitwiseXor"}
_STANDARD = {"", "ai.onnx.ml"}
_UNKNOWN = TensorType()
_SHARED = 4096  # bytes of the largest constants that are compared to be shared
_MOST_REWRITES = 100  # of a node at one visit
_READ_BY_INFERENCE = 1024  # bytes of the largest constant that may be a shape or axes


class NotKnown(Exception):
    """Raised in a rule that has to know something that is not known: it does not apply then."""


def known(value: _T | None) -> _T:
    """Something that a rule has to know; NotKnown if it is None."""
    if value is None:
        raise NotKnown
    return value


def swept(graph: Graph, types: Types, scope: SweepScope) -> Draft:
    """The draft of a graph after one sweep over all nodes."""
    draft = Draft(graph, types, scope)
    for node in graph.nodes:
        draft.place(node)
    return draft


@dataclass(frozen=True, slots=True)
class SweepScope:
    """The settings that a graph shares with its subgraphs; in a subgraph `around` gives constants from outside."""

    kept: Collection[str]
    names: FreshNames
    rules: Rules
    around: Callable[[str], Array | None] | None = None


class Draft:
    """The part of a graph that is simplified already; `changes` counts rewrites."""

    def __init__(self, graph: Graph, types: Types, scope: SweepScope) -> None:
        self.graph, self.scope, self.known = graph, scope, types
        self.types = dict(types.own)
        self.constants = dict(graph.constants)
        self.changes = 0
        self._readers: dict[str, list[Node]] = {}
        for node in graph.nodes:
            for name in node.reads:
                self._readers.setdefault(name, []).append(node)
        self.uses = Counter({name: len(nodes) for name, nodes in self._readers.items()})
        self.uses.update(graph.outputs)
        self._spared: dict[str, bool] = {}
        self.counts: dict[str, Volume] = {}  # tensors of one integer that are products of sizes
        self.sizes: dict[str, Shape] = {}  # the dimensions whose sizes integer tensors hold
        self._nodes: list[Node] = []
        self._made: dict[str, Node] = {}
        self._outputs = set(graph.outputs)
        self._own = {*graph.inputs, *(name for node in graph.nodes for name in node.outputs)}
        self._alias: dict[str, str] = {}
        self._twins: dict[Any, Node] = {}
        self._uniform: dict[str, Any] = {}
        self._equal: dict[Any, str] = {}
        self._firsts: dict[Any, str] = {}
        self.volumes: dict[Volume, str] = {}  # for each number of entries, a tensor that has so many
        self._count((*graph.inputs, *graph.constants))
        self._share_constants()

    # Questions of rules

    def dtype(self, name: str) -> np.dtype[Any] | None:
        """The dtype of a tensor; None if it is not known."""
        return self.types.get(name, _UNKNOWN).dtype

    def shape(self, name: str) -> Shape | None:
        """The shape of a tensor, as far as it is known."""
        return self.types.get(name, _UNKNOWN).shape

    def same(self, name: str, other: str) -> bool:
        """True if two tensors are known to have the same dtype and shape."""
        a, b = self.types.get(name, _UNKNOWN), self.types.get(other, _UNKNOWN)
        return a == b and a.dtype is not None and a.kind == "tensor" and a.shape is not None and None not in a.shape

    def value(self, name: str) -> Array | None:
        """The values of a constant that users of the file cannot replace; None for other tensors."""
        if name in self.constants:
            return None if name in self.graph.inputs or name in self.scope.kept else self.constants[name]
        return None if self.scope.around is None or name in self._own else self.scope.around(name)

    def uniform(self, name: str) -> Any:
        """The number that all entries of a constant are equal to; None for other tensors."""
        if name not in self._uniform:
            array = self.value(name)
            one = array is not None and array.size > 0 and array.dtype != object and (array == array.flat[0]).all()
            self._uniform[name] = array.flat[0] if one and array is not None else None
        return self._uniform[name]

    def node(self, name: str, *ops: str) -> Node | None:
        """The node that computes a tensor, if its operator is one of these."""
        node = self._made.get(name)
        return node if node is not None and node.op in ops and not node.domain else None

    def sole(self, name: str, *ops: str) -> Node | None:
        """The same, if only one node reads the tensor: then the tensor goes once this node does not need it."""
        node = self.node(name, *ops)
        return node if node is not None and self.uses[name] == 1 and not self._is_kept(node) else None

    def read_only_by(self, name: str, takes: Callable[[str, Node, Draft], bool]) -> bool:
        """True if the tensor is no output and every node that reads it can do without it, as `takes` tells."""
        if name not in self._spared:
            readers = self._readers.get(name, ())
            free = name not in self._outputs and not any(self._is_kept(node) for node in readers)
            self._spared[name] = free and all(takes(name, node, self) for node in readers)
        return self._spared[name]

    def constant(self, value: Array) -> str:
        """The name of a constant with these values."""
        value = np.asarray(value)
        key = _by_value(value)
        if key not in self._equal:
            name = self._equal[key] = self.scope.names.fresh("simplified/constant")
            self.constants[name], self.types[name] = value, TensorType(value.dtype, value.shape)
        return self._equal[key]

    def first(self, key: Any, name: str) -> str:
        """The tensor that first used a key; `name` if none has."""
        found = self._firsts.setdefault(key, name)
        return self._alias.get(found, found)

    def add(self, op: str, inputs: tuple[str, ...], declared: TensorType, attrs: Mapping[str, Any], stem: str) -> str:
        """Adds a node that a rule needs; gives the name of its output."""
        name = self.scope.names.fresh(f"{stem}/{op}")
        self._own.add(name)
        self.types[name] = declared
        self.uses[name] = 1
        self.uses.update(inputs)
        self.place(Node(op, inputs, (name,), attrs, name=name))
        return self._alias.get(name, name)

    # Growing

    def place(self, node: Node) -> None:
        """Adds the next node of the graph, or its replacement."""
        node = renamed(node, self._alias)
        self._follow(node)
        if self._is_kept(node):
            return self._append(node)
        node = self._with_simple_graphs(node)
        for _ in range(_MOST_REWRITES):
            found = self._rewritten(node)
            if found is None:
                return self._append_once(node)
            self.changes += 1
            self.uses.subtract(node.reads)
            if not isinstance(found, Node):
                return self._stand_in(node, [found if isinstance(found, str) else self.constant(found)])
            self.uses.update(found.reads)
            node = found
        return self._append_once(node)

    def finished(self) -> Graph:
        """The simplified graph: the nodes that its outputs need, with the names of outputs unchanged."""
        nodes = self._with_own_outputs(self._nodes)
        live, needed = computing(nodes, self.graph.outputs)
        constants = {n: v for n, v in self.constants.items() if n in needed or n in self.graph.inputs}
        self.changes += len(nodes) - len(live) + len(self.constants) - len(constants)
        return replace(self.graph, nodes=tuple(nodes[i] for i in live), constants=constants)

    def _follow(self, node: Node) -> None:
        """Completes the known shape of a node's output."""
        name = node.outputs[0]
        known = self.types.get(name)
        if node.domain or known is None or (known.shape is not None and all(isinstance(d, int) for d in known.shape)):
            return
        told = len(node.inputs) > 1 and (node.op in ("Reshape", "Expand") or node.op.startswith("Reduce"))
        target = self.value(node.inputs[1]) if told else None
        shape = followed(node, [self.shape(n) for n in node.inputs], target)
        if shape is not None:
            self.types[name] = replace(known, shape=shape)

    def _count(self, names: Iterable[str]) -> None:
        for name in names:
            shape = self.shape(name)
            if shape is not None and None not in shape and self.types[name].kind == "tensor":
                self.volumes.setdefault(volume(shape), name)

    def _rewritten(self, node: Node) -> Found | None:
        if node.domain or self._names_output(node):
            return None
        rules = (*self.scope.rules.get(node.op, ()), *self.scope.rules.get("", ()))
        for rule in rules:
            try:
                found = rule(node, self)
            except NotKnown:
                continue
            if found is not None:
                return found
        return None

    def _append(self, node: Node) -> None:
        self._nodes.append(node)
        self._made.update((name, node) for name in node.outputs if name)
        self._count(node.outputs)
        if (key := self._key(node)) is not None:
            self._twins.setdefault(key, node)

    def _append_once(self, node: Node) -> None:
        """Adds a node, unless there is one already that computes the same."""
        twin = self._twins.get(self._key(node))
        if twin is None or self._names_output(node):
            return self._append(node)
        self.changes += 1
        self.uses.subtract(node.reads)
        return self._stand_in(node, twin.outputs)

    def _stand_in(self, node: Node, names: Sequence[str]) -> None:
        """Replaces the outputs of a node by other tensors; outputs of the graph keep their names."""
        for old, new in zip(node.outputs, names, strict=False):
            if old in self._outputs:
                self.uses[new] += 1
                self._append(Node("Identity", (new,), (old,), name=node.name, metadata=node.metadata))
            elif old:
                self.uses[new] += self.uses[old]
                self._alias[old] = new

    def _key(self, node: Node) -> Any:
        """A key that is equal for nodes that compute the same; None if there is none."""
        if node.domain not in _STANDARD or node.op in DRAWING or any(node.subgraphs):
            return None
        inputs: Any = tuple(sorted(node.inputs)) if node.op in _COMMUTING else node.inputs
        # Numbers are compared as text, which tells -0.0 from 0.0.
        frozen = ((k, _by_value(v) if isinstance(v, np.ndarray) else repr(v)) for k, v in node.attrs.items())
        attrs = tuple(sorted(frozen))
        return node.key, inputs, attrs, tuple(map(bool, node.outputs))

    def _is_kept(self, node: Node) -> bool:
        return any(name in self.scope.kept for name in node.outputs if name)

    def _names_output(self, node: Node) -> bool:
        """True for an Identity that only gives a tensor the name of an output."""
        return node.op == "Identity" and node.outputs[0] in self._outputs

    def _with_simple_graphs(self, node: Node) -> Node:
        """The node with its subgraphs simplified."""
        graphs = {key: value for key, value in node.attrs.items() if isinstance(value, Graph)}
        if not graphs:
            return node
        scope = replace(self.scope, around=self.value)
        for key, inside in graphs.items():
            draft = swept(inside, self.known.inner.get((node.outputs[0], key), Types()), scope)
            graphs[key] = draft.finished()
            self.changes += draft.changes
        return replace(node, attrs={**node.attrs, **graphs})

    def _share_constants(self) -> None:
        """Replaces equal constants by the first of them, unless users of the file may change one."""
        for name, value in self.graph.constants.items():
            if self.value(name) is None or value.nbytes > _SHARED or value.dtype == object:
                continue
            first = self._equal.setdefault(_by_value(value), name)
            if first != name and name not in self._outputs:
                self.changes += 1
                self.uses[first] += self.uses[name]
                self._alias[name] = first

    def _with_own_outputs(self, nodes: Sequence[Node]) -> list[Node]:
        """The nodes, with tensors named like the outputs they become, instead of Identity nodes."""
        names: dict[str, str] = {}
        for node in nodes:
            if self._names_output(node) and node.inputs[0] not in names and self._may_be_called(node.inputs[0]):
                names[node.inputs[0]] = node.outputs[0]
        if not names:
            return list(nodes)
        self.changes += len(names)
        self.constants = {names.get(name, name): value for name, value in self.constants.items()}
        self.types.update((new, self.types[old]) for old, new in names.items() if old in self.types)
        spared = set(names.values())
        return [renamed(node, names) for node in nodes if not (self._names_output(node) and node.outputs[0] in spared)]

    def _may_be_called(self, name: str) -> bool:
        """True if the name of a tensor may change; a constant may be an output of the outermost graph only."""
        if name in self._outputs or name in self.scope.kept:
            return False
        node = self._made.get(name)
        return (
            not self._is_kept(node) if node is not None else self.scope.around is None and self.value(name) is not None
        )


def is_one(name: str, at: Draft) -> bool:
    """True if a tensor has one entry at all sizes."""
    shape = at.shape(name)
    return shape is not None and all(d == 1 for d in shape)


def _by_value(array: Array) -> tuple[Any, ...]:
    return array.dtype, array.shape, array.tobytes()


@dataclass(frozen=True, slots=True)
class Types:
    """Types by tensor name, and types in subgraphs by the node's first output and the name of the attribute.

    A dimension is an int, a name that stands for one size wherever it appears, or None.
    """

    own: Mapping[str, TensorType] = field(default_factory=dict)
    inner: Mapping[tuple[str, str], Types] = field(default_factory=dict)


def _outlined(name: str, array: Array) -> TensorProto:
    """A constant for shape inference: of a large one only dtype and shape."""
    number = elem_type(array, f"constant {name!r}")
    if array.nbytes <= _READ_BY_INFERENCE or array.dtype == object:
        return tensor_proto(name, array)
    outline = TensorProto(name=name, dims=array.shape, data_type=number, data_location=TensorProto.EXTERNAL)
    outline.external_data.add(key="location", value="outline")
    return outline


def known_types(graph: Graph) -> Types:
    """The types of all tensors, inferred from those of the inputs."""
    inputs = {name: graph.types[name] for name in graph.inputs if name in graph.types}
    model = to_proto(replace(graph, types=inputs), constants=_outlined)
    return _types(graph, infer_shapes(model, data_prop=True).graph)


def _types(graph: Graph, proto: GraphProto) -> Types:
    own = {name: TensorType(value.dtype, value.shape) for name, value in graph.constants.items()}
    for infos in (proto.value_info, proto.output, proto.input):
        own.update(types_of(infos))
    inner = {
        (node.outputs[0], key): _types(value, next(a.g for a in written.attribute if a.name == key))
        for node, written in zip(graph.nodes, proto.node, strict=True)
        for key, value in node.attrs.items()
        if isinstance(value, Graph)
    }
    return Types(own, inner)


def volume(shape: Shape) -> Volume:
    """The number of entries of a shape, as an integer factor and the names of the symbolic dimensions."""
    named = sorted(d for d in shape if isinstance(d, str))
    return math.prod(d for d in shape if isinstance(d, int)), tuple(named)


def followed(node: Node, shapes: Sequence[Shape | None], target: Array | None) -> Shape | None:
    """The shape of a node's output; None if it does not follow from the shapes of its inputs.

    `target` is the constant with the sizes of a Reshape or Expand, or the axes of a reduction.
    """
    if not shapes or any(shape is None or None in shape for shape in shapes[: 1 if target is not None else None]):
        return None
    known = [shape for shape in shapes if shape is not None]
    if node.op in BROADCASTING:
        return broadcast(known)
    if node.op in _SHAPE_OF_FIRST:
        return known[0]
    if node.op == "Transpose":
        return tuple(known[0][p] for p in node.attrs.get("perm", range(len(known[0]))[::-1]))
    if node.op == "MatMul" and min(map(len, known)) > 1:
        stacks = broadcast([shape[:-2] for shape in known])
        return None if stacks is None else (*stacks, known[0][-2], known[1][-1])
    if target is None or target.ndim != 1 or not target.size:
        return None
    if node.op.startswith("Reduce"):
        axes, keepdims = {int(a) % len(known[0]) for a in target}, node.attrs.get("keepdims", 1)
        return tuple(1 if i in axes else d for i, d in enumerate(known[0]) if keepdims or i not in axes)
    if node.op == "Expand":
        return broadcast([known[0], tuple(target.tolist())])
    return _reshaped(known[0], target.tolist()) if node.op == "Reshape" and not node.attrs.get("allowzero") else None


def broadcast(shapes: Sequence[Shape]) -> Shape | None:
    """The shape that shapes broadcast to; None if that depends on symbolic sizes."""
    rank = max(map(len, shapes))
    aligned = [(*[1] * (rank - len(shape)), *shape) for shape in shapes]
    dims = [{d for d in column if d != 1} for column in zip(*aligned, strict=True)]
    return tuple(next(iter(d), 1) for d in dims) if all(len(d) < 2 for d in dims) else None


def _reshaped(shape: Shape, target: list[int]) -> Shape | None:
    if any(t == 0 and i >= len(shape) for i, t in enumerate(target)):
        return None
    dims: list[Dim] = [shape[i] if t == 0 else t for i, t in enumerate(target)]
    if -1 not in dims:
        return tuple(dims)
    number, names = volume(shape)
    known, taken = volume(tuple(d for d in dims if d != -1))
    left = list(names)
    for name in taken:
        if name not in left:
            return None
        left.remove(name)
    if not known or number % known or len(left) > 1 or (left and number != known):
        return None
    dims[dims.index(-1)] = left[0] if left else number // known
    return tuple(dims)
