"""One graph of an ONNX file as a `Graph`: constants gathered, functions inlined, operators in newest form.

Where a node of a file is read: which opset holds, what names become, what attribute references stand for.

A model-local function is read once for each of its calls, in a scope of its own: that is all of inlining.

Derivatives of pools in onnxruntime's training graphs, with the shape of what they give as their attribute `shape`.

Their operands do not tell it; a file declares it as the type of their output, batch and channels perhaps as symbols.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import DTypeLike
from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, SparseTensorProto, TensorProto

from gradcheck_cli.errors import LimitError, ModelError
from gradcheck_cli.formats.node_order import in_order, with_bodies
from gradcheck_cli.formats.onnx.adapt import adapt
from gradcheck_cli.formats.onnx.attributes import attributes, metadata, value_of
from gradcheck_cli.formats.onnx.opset import NEWEST, checked
from gradcheck_cli.formats.onnx.tensors import Store, numpy_dtype, to_array, to_dense, types_of
from gradcheck_cli.graph import Array, Graph, Node, TensorType, describe, is_inexact
from gradcheck_cli.graph.memory import installed

FunctionKey: TypeAlias = tuple[str, str, str]  # domain, name, overload
MAX_CALLS = 200_000  # of functions in one model: nested ones multiply
MAX_CALL_DEPTH = 60


class Names:
    """The names in use in one file; gives new ones that read like the old."""

    def __init__(self, taken: Iterable[str]) -> None:
        self._taken = set(taken)
        self._counts: dict[str, int] = {}

    def fresh(self, hint: str) -> str:
        """A name that nothing has: `hint` itself, or with a number."""
        name = hint
        while name in self._taken:
            self._counts[hint] = self._counts.get(hint, 0) + 1
            name = f"{hint}_{self._counts[hint]}"
        self._taken.add(name)
        return name


@dataclass(frozen=True, slots=True)
class Scope:
    """How names, opsets and attribute references read in one graph, or in one call of a function."""

    names: Names
    opset: Mapping[str, int]
    prefix: str = ""  # of the call's names; "" outside functions
    renamed: dict[str, str] = field(default_factory=dict)
    attrs: Mapping[str, Any] = field(default_factory=dict)  # what `ref_attr_name` refers to
    calls: tuple[FunctionKey, ...] = ()

    def name(self, name: str) -> str:
        """What a tensor's name becomes."""
        if not self.calls or not name:
            return name
        if name not in self.renamed:
            self.renamed[name] = self.names.fresh(f"{self.prefix}/{name}")
        return self.renamed[name]

    def label(self, name: str) -> str:
        """What a node's name becomes."""
        return f"{self.prefix}/{name}" if self.prefix and name else name

    def version(self, domain: str) -> int:
        """The opset of a domain; the newest one where the file declares none."""
        return self.opset.get(domain, NEWEST)


class Functions:
    """The functions that a model defines, by key; counts their calls."""

    def __init__(self, functions: Iterable[FunctionProto]) -> None:
        self._functions = {(plain(f.domain), f.name, f.overload): f for f in functions}
        self._calls = 0

    def of(self, node: NodeProto) -> FunctionProto | None:
        """The function that a node calls, if any."""
        return self._functions.get((plain(node.domain), node.op_type, node.overload))

    def scope(self, function: FunctionProto, call: Node, caller: Scope) -> Scope:
        """The scope in which the function's nodes are read for one call."""
        key = (plain(function.domain), function.name, function.overload)
        self._count(key, caller)
        prefix = caller.names.fresh(call.name or f"{function.name}/{next(filter(None, call.outputs), '')}")
        inputs = (*call.inputs, *("" for _ in function.input[len(call.inputs) :]))
        if len(inputs) > len(function.input) or len(call.outputs) > len(function.output):
            raise ModelError(f"a call of function {function.name!r} has too many inputs or outputs.")
        opset = {**caller.opset, **opsets(function.opset_import)}
        renamed = dict(zip(function.input, inputs, strict=True))
        return replace(
            caller,
            opset=opset,
            prefix=prefix,
            renamed=renamed,
            attrs={},
            calls=(*caller.calls, key),
        )

    def _count(self, key: FunctionKey, caller: Scope) -> None:
        if key in caller.calls:
            raise ModelError(f"function {key[1]!r} calls itself.")
        self._calls += 1
        if self._calls > MAX_CALLS or len(caller.calls) >= MAX_CALL_DEPTH:
            text = f"the model's functions call each other more than {MAX_CALLS} times."
            raise LimitError(text, code="GC602")


def plain(domain: str) -> str:
    """The domain as keys hold it: "" for ONNX's own."""
    return "" if domain == "ai.onnx" else domain


def opsets(imports: Iterable[OperatorSetIdProto]) -> dict[str, int]:
    """The declared opset of each domain; of two entries for one domain the last counts."""
    return {plain(entry.domain): entry.version for entry in imports}


def names_of(model: ModelProto) -> set[str]:
    """Every name of a tensor in the model's graphs, subgraphs included."""
    found: set[str] = set()
    for graph in (part for whole in wholes_of(model) for part in graphs_of(whole)):
        for values in (graph.input, graph.output, graph.initializer):
            found.update(value.name for value in values)
        for node in graph.node:
            found.update(node.input)
            found.update(node.output)
    return found


def wholes_of(model: ModelProto) -> Iterator[GraphProto]:
    """The model's graph, and those of its training information."""
    yield model.graph
    for info in model.training_info:
        yield from (info.initialization, info.algorithm)


def graphs_of(graph: GraphProto) -> Iterator[GraphProto]:
    """A graph and the graphs in its nodes' attributes, all levels."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            inner = [attribute.g] if attribute.HasField("g") else []
            for subgraph in (*inner, *attribute.graphs):
                yield from graphs_of(subgraph)


KEYS = {("", "AveragePoolGrad"), ("", "MaxPoolGrad")}
SHAPE = "shape"
OPEN = -1  # in place of a symbol


def with_shapes(nodes: Iterable[Node], types: Mapping[str, TensorType]) -> Iterator[Node]:
    """The nodes, derivatives of pools with the declared shapes of their outputs."""
    for node in nodes:
        declared = types.get(node.outputs[0]) if node.key in KEYS and node.outputs else None
        if declared is None or declared.shape is None or SHAPE in node.attrs:
            yield node
        else:
            shape = tuple(dim if isinstance(dim, int) else OPEN for dim in declared.shape)
            yield replace(node, attrs={**node.attrs, SHAPE: shape})


MAX_NODES = 3_000_000  # once functions are inlined
_OF_RANK_TWO = {"Gemm", "Flatten"}


class Reader:
    """Reads the graphs of one model; counts what they add up to."""

    def __init__(self, model: ModelProto, store: Store) -> None:
        self._model = model
        self._store = store
        self._functions = Functions(model.functions)
        self._nodes = 0
        self._bytes = 0
        self._shared: dict[int, tuple[TensorProto, Array]] = {}
        self.opset = declared_opset(model)
        self.names = Names(names_of(model))

    def read(self, proto: GraphProto) -> Graph:
        """A graph of the model that stands by itself."""
        return _complete(self.graph(proto, Scope(self.names, self.opset), None))

    def graph(self, proto: GraphProto, scope: Scope, around: Body | None) -> Graph:
        """A graph in its scope; `around` is the graph that it is part of."""
        body = Body(self, scope, around)
        body.take(proto)
        return body.graph(
            _distinct(scope.name(value.name) for value in proto.input),
            tuple(scope.name(value.name) for value in proto.output),
            proto.name or "graph",
        )

    def extended(self, graph: Graph, proto: GraphProto) -> Graph:
        """A graph of the model with another one behind it, which may read all of its tensors."""
        body = Body(self, Scope(self.names, self.opset), None, [*graph.nodes], {**graph.constants}, {**graph.types})
        again = {*graph.tensors}.intersection(_defined(proto))
        if again:
            raise ModelError(f"{min(again)!r} is defined a second time.")
        body.take(proto)
        inputs, outputs = ([value.name for value in values] for values in (proto.input, proto.output))
        return _complete(
            body.graph(tuple(dict.fromkeys([*graph.inputs, *inputs])), tuple(dict.fromkeys([*graph.outputs, *outputs])),
                       proto.name or "graph")
        )  # fmt: skip

    def array(self, tensor: TensorProto, scope: Scope) -> Array:
        """The values of a tensor; those of a function's body are read once for all calls."""
        if id(tensor) in self._shared:
            return self._shared[id(tensor)][1]
        array = to_array(tensor, self._store)
        self._bytes += array.nbytes
        if self._bytes > installed():
            raise LimitError("the model's constants do not fit into memory.", code="GC602")
        if scope.calls:
            self._shared[id(tensor)] = tensor, array
        return array

    def dense(self, sparse: SparseTensorProto) -> Array:
        """The values of a sparse tensor."""
        return to_dense(sparse, self._store)

    def function(self, node: NodeProto) -> FunctionProto | None:
        """The model's own function that a node calls."""
        return self._functions.of(node)

    def call(self, function: FunctionProto, call: Node, body: Body) -> Body:
        """The body of a call, which adds to the caller's nodes."""
        scope = self._functions.scope(function, call, body.scope)
        inner = Body(self, scope, body.around, body.nodes, body.constants, body.types)
        defaults = {a.name: value_of(a, inner) for a in function.attribute_proto}
        return replace(inner, scope=replace(scope, attrs={**defaults, **call.attrs}))

    def count_node(self) -> None:
        """Refuses models that grow without end as functions are inlined."""
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise LimitError(f"the model has more than {MAX_NODES} nodes once functions are inlined.", code="GC602")

    @cached_property
    def names_read(self) -> set[str]:
        """Names that some node reads or a graph gives out."""
        read: set[str] = set()
        for graph in (part for whole in wholes_of(self._model) for part in graphs_of(whole)):
            read.update(value.name for value in graph.output)
            read.update(name for node in graph.node for name in node.input)
        return read

    @cached_property
    def only_float(self) -> np.dtype[Any] | None:
        """The dtype of the model's floats where it has a single one."""
        found = {numpy_dtype(number) for number in _elem_types(self._model.graph)}
        floats = [dtype for dtype in found if dtype is not None and is_inexact(dtype)]
        return floats[0] if len(floats) == 1 else None


@dataclass(frozen=True, slots=True)
class Body:
    """The nodes, constants and types of one graph while it is read."""

    reader: Reader
    scope: Scope
    around: Body | None = None
    nodes: list[Node] = field(default_factory=list)
    constants: dict[str, Array] = field(default_factory=dict)
    types: dict[str, TensorType] = field(default_factory=dict)
    inline: set[str] = field(default_factory=set)  # constants that are nodes

    def take(self, proto: GraphProto) -> None:
        """Takes over all of a graph."""
        self.declare(proto)
        for index, node in enumerate(proto.node):
            self.add(index, node)

    def graph(self, inputs: tuple[str, ...], outputs: tuple[str, ...], name: str) -> Graph:
        """What was taken over, as a graph."""
        return Graph(
            inputs=inputs,
            outputs=outputs,
            nodes=in_order(with_bodies([*with_shapes(self.nodes, self.types)], self.types)),
            constants=self.constants,
            types=self.types,
            opset={**self.reader.opset, "": NEWEST},
            name=name,
            inline=frozenset(self.inline),
        )

    def declare(self, proto: GraphProto) -> None:
        """Takes over initializers and declared types."""
        for tensor in proto.initializer:
            self.constants[self.scope.name(tensor.name)] = self.array(tensor)
        for sparse in proto.sparse_initializer:
            self.constants[self.scope.name(sparse.values.name)] = self.dense(sparse)
        for infos in (proto.value_info, proto.output, proto.input):
            self.types.update({self.scope.name(name): kind for name, kind in types_of(infos).items()})

    def add(self, index: int, proto: NodeProto) -> None:
        """Takes over a node: as a constant, as the nodes of a function, or in its newest form."""
        self.reader.count_node()
        node = self._node(proto)
        where = describe(index, node) + (f" in {self.scope.prefix!r}" if self.scope.prefix else "")
        function = self.reader.function(proto)
        if function is not None:
            self._inline(function, node)
        elif node.key == ("", "Constant"):
            self._constant(node, where)
        else:
            version = self.scope.version(node.domain)
            self.nodes.extend(adapt(checked(node, version, where), version, Surroundings(where, self, node)))

    def array(self, tensor: TensorProto) -> Array:
        """The values of a tensor."""
        return self.reader.array(tensor, self.scope)

    def dense(self, sparse: SparseTensorProto) -> Array:
        """The values of a sparse tensor."""
        return self.reader.dense(sparse)

    def subgraph(self, proto: GraphProto) -> Graph:
        """A graph inside this one."""
        return self.reader.graph(proto, self.scope, self)

    def _node(self, proto: NodeProto) -> Node:
        return Node(
            proto.op_type,
            tuple(self.scope.name(name) for name in proto.input),
            tuple(self.scope.name(name) for name in proto.output),
            attributes(proto, self.scope.attrs, self),
            plain(proto.domain),
            self.scope.label(proto.name),
            metadata(proto),
        )

    def _inline(self, function: FunctionProto, call: Node) -> None:
        inner = self.reader.call(function, call, self)
        for formal, actual in zip(function.output, call.outputs, strict=False):
            if formal in inner.scope.renamed:  # an output that is an input as it stands
                self.nodes.append(Node("Identity", (inner.scope.name(formal),), (actual,)))
            elif actual:
                inner.scope.renamed[formal] = actual
        self.types.update({inner.scope.name(n): kind for n, kind in types_of(function.value_info).items()})
        for index, node in enumerate(function.node):
            inner.add(index, node)

    def _constant(self, node: Node, where: str) -> None:
        if len(node.attrs) != 1 or len(node.outputs) != 1:
            raise ModelError(f"{where} needs one output and one attribute that holds its value.")
        [(kind, value)] = node.attrs.items()
        if node.outputs[0] in self.constants or kind not in _CONSTANTS:
            problem = f"attribute {kind!r} is unknown" if kind not in _CONSTANTS else "its output exists already"
            raise ModelError(f"{where}: {problem}.")
        checked(node, NEWEST, where)
        self.constants[node.outputs[0]] = np.asarray(value, _CONSTANTS[kind])
        self.inline.add(node.outputs[0])


_CONSTANTS: dict[str, DTypeLike | None] = {
    "value": None,
    "sparse_value": None,
    "value_float": np.float32,
    "value_floats": np.float32,
    "value_int": np.int64,
    "value_ints": np.int64,
    "value_string": object,
    "value_strings": object,
}


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What an adapter may ask and add around one node."""

    where: str
    body: Body
    node: Node

    def fresh(self, hint: str) -> str:
        """A new tensor name."""
        return self.body.reader.names.fresh(hint)

    def constant(self, hint: str, value: Any, dtype: DTypeLike = np.int64) -> str:
        """The name of a new constant."""
        name = self.fresh(f"{next(filter(None, self.node.outputs), self.node.op)}/{hint}")
        with np.errstate(over="ignore"):
            self.body.constants[name] = np.asarray(value, dtype)
        return name

    def value(self, name: str) -> Array | None:
        """The value of a constant; None for other tensors."""
        body: Body | None = self.body
        while body is not None:
            if name in body.constants:
                return body.constants[name]
            body = body.around
        return None

    def dtype(self, name: str) -> np.dtype[Any] | None:
        """The float dtype of a tensor, where it is certain."""
        value, declared = self.value(name), self.body.types.get(name)
        dtype = declared.dtype if declared is not None else None
        if value is not None or dtype is not None:
            dtype = value.dtype if value is not None else dtype
            return dtype if dtype is not None and is_inexact(dtype) else None
        return self.body.reader.only_float

    def rank(self, name: str) -> int | None:
        """The number of dimensions, where it is certain."""
        value, declared = self.value(name), self.body.types.get(name)
        if value is not None:
            return value.ndim
        if declared is not None and declared.shape is not None:
            return len(declared.shape)
        last = self.body.nodes[-1] if self.body.nodes else None
        return 2 if last and last.op in _OF_RANK_TWO and name in last.outputs else None

    def is_read(self, name: str) -> bool:
        """Whether anything in the file reads a tensor."""
        return bool(self.body.scope.calls) or name in self.body.reader.names_read


def declared_opset(model: ModelProto) -> dict[str, int]:
    """The opset of each domain as a model declares it, of ONNX's own the newest where none is declared."""
    found = opsets(model.opset_import)
    if "" not in found:
        found[""] = 1 if 0 < model.ir_version < 3 else NEWEST
    return found


def _complete(graph: Graph) -> Graph:
    """The graph; ModelError where it reads what nothing computes."""
    if graph.captures:
        missing = graph.captures[0]
        reader = next((describe(i, n) for i, n in enumerate(graph.nodes) if missing in n.reads), "an output")
        raise ModelError(f"{reader} needs {missing!r}, which nothing computes.")
    return graph


def _defined(proto: GraphProto) -> Iterator[str]:
    """Names that a graph gives to tensors, but for its inputs, which may be others' too."""
    yield from (tensor.name for tensor in proto.initializer)
    yield from (sparse.values.name for sparse in proto.sparse_initializer)
    yield from (name for node in proto.node for name in node.output if name)


def _elem_types(graph: GraphProto) -> Iterable[int]:
    for part in graphs_of(graph):
        yield from (tensor.data_type for tensor in part.initializer)
        for infos in (part.input, part.output, part.value_info):
            yield from (info.type.tensor_type.elem_type for info in infos)
        for node in part.node:
            yield from (attribute.t.data_type for attribute in node.attribute if attribute.HasField("t"))
            yield from (attribute.i for attribute in node.attribute if attribute.name == "to")


def _distinct(names: Iterable[str]) -> tuple[str, ...]:
    found = tuple(names)
    if "" in found or len(set(found)) < len(found):
        raise ModelError("two inputs of a graph have the same name, or one has none.")
    return found
