"""Turns a GraphProto into a `Graph`: constants gathered, functions inlined, operators in the newest opset's form.

A `Reader` reads one model, a `Body` is one graph while it is read, and a `Scope` says how names, opsets and references
to attributes read there.  A model-local function is inlined by reading its body anew for each call, in its own scope.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import onnx
from msgspec import Struct, field, structs
from numpy.typing import DTypeLike
from onnx import (
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    OperatorSetIdProto,
    SparseTensorProto,
    TensorProto,
    ValueInfoProto,
)

from gradcheck_cli.errors import LimitError, ModelError
from gradcheck_cli.formats.gradient_nodes import with_bodies
from gradcheck_cli.formats.onnx.adapt import Site, adapt
from gradcheck_cli.formats.onnx.attributes import attributes, metadata, value_of
from gradcheck_cli.formats.onnx.file import messages_in
from gradcheck_cli.formats.onnx.opset import NEWEST, checked
from gradcheck_cli.formats.onnx.tensors import TensorSource, numpy_dtype, to_array, types_of
from gradcheck_cli.graph import Array, FreshNames, Graph, Node, TensorType, describe, in_order, is_inexact
from gradcheck_cli.graph.memory import installed

FunctionKey: TypeAlias = tuple[str, str, str]  # domain, name, overload

# Steps of a program of PyTorch that give entries of what they take, or zeros that make room for them.
_LAYOUTS = {
    "_to_copy", "alias", "cat", "chunk", "clone", "contiguous", "convert_element_type_default", "detach", "expand",
    "flatten", "getitem", "movedim", "permute", "reshape", "select", "slice", "split", "squeeze", "stack", "t", "transpose",
    "unflatten", "unsqueeze", "view", "zeros",
}  # fmt: skip
MAX_NODES = 3_000_000  # once functions are inlined
MAX_CALLS = 200_000  # of functions in one model: nested calls multiply
MAX_CALL_DEPTH = 60
CONSTANTS: Mapping[str, DTypeLike | None] = {  # attribute of a Constant node -> dtype; None for that of the value
    **dict.fromkeys(("value", "sparse_value")), **dict.fromkeys(("value_float", "value_floats"), np.float32),
    **dict.fromkeys(("value_int", "value_ints"), np.int64), **dict.fromkeys(("value_string", "value_strings"), object),
}  # fmt: skip
_OF_RANK_TWO = {"Gemm", "Flatten"}  # operators whose output is a matrix
_POOL_GRADIENTS = {("", "AveragePoolGrad"), ("", "MaxPoolGrad")}  # of onnxruntime's training graphs


class Reader:
    """Reads the graphs of one model; bounds their nodes and the bytes of their constants together."""

    def __init__(self, model: ModelProto, source: TensorSource, kept: Collection[tuple[str, str]] = ()) -> None:
        self._model, self._kept = model, kept
        self._source = source
        self._functions = {(plain(f.domain), f.name, f.overload): f for f in model.functions}
        self._nodes = self._bytes = self._calls = 0
        self._shared: dict[int, tuple[TensorProto | SparseTensorProto, Array]] = {}
        declared = opsets(model.opset_import)  # the oldest files declare none, as some newer ones do
        self.opset = {"": 1 if 0 < model.ir_version < 3 else NEWEST, **declared}
        self.names = FreshNames(names_of(model))

    def read(self, proto: GraphProto) -> Graph:
        """A graph of the model that is no subgraph."""
        return _complete(self.graph(proto, FileScope(self.names, self.opset), None))

    def graph(self, proto: GraphProto, scope: FileScope, around: Body | None) -> Graph:
        """A graph, or a subgraph of the body `around`."""
        body = Body(self, scope, around)
        body.take(proto)
        return body.graph(
            _distinct(scope.name(value.name) for value in proto.input),
            tuple(scope.name(value.name) for value in proto.output),
            proto.name or "graph",
        )

    def extended(self, graph: Graph, proto: GraphProto) -> Graph:
        """A graph of the model followed by another one, which may read all of its tensors."""
        scope = FileScope(self.names, self.opset)
        body = Body(self, scope, None, [*graph.nodes], {**graph.constants}, {**graph.types})
        made = {*initializers_of(proto), *(name for node in proto.node for name in node.output)}
        if again := made.intersection(graph.tensors):
            raise ModelError(f"{min(again)!r} is defined a second time.")
        body.take(proto)
        inputs = dict.fromkeys([*graph.inputs, *(value.name for value in proto.input)])
        outputs = dict.fromkeys([*graph.outputs, *(value.name for value in proto.output)])
        return _complete(body.graph(tuple(inputs), tuple(outputs), proto.name or "graph"))

    def array(self, tensor: TensorProto | SparseTensorProto, scope: FileScope) -> Array:
        """The values of a tensor; a tensor in a function's body is read once for all calls."""
        if id(tensor) in self._shared:
            return self._shared[id(tensor)][1]
        array = to_array(tensor, self._source)
        self._bytes += array.nbytes
        if self._bytes > installed():
            raise LimitError("the model's constants do not fit into memory.", code="GC602")
        if scope.calls:
            self._shared[id(tensor)] = tensor, array
        return array

    def function(self, node: NodeProto) -> FunctionProto | None:
        """The model-local function that a node calls, if any: other than those that are kept as operators."""
        domain, op = plain(node.domain), node.op_type
        return None if (domain, op) in self._kept else self._functions.get((domain, op, node.overload))

    def call(self, function: FunctionProto, call: Node, body: Body) -> Body:
        """The body of a function for one call, which adds its nodes to the caller's."""
        caller, key = body.scope, (plain(function.domain), function.name, function.overload)
        self._count_call(key, caller)
        prefix = caller.names.fresh(call.name or f"{function.name}/{next(filter(None, call.outputs), '')}")
        inputs = (*call.inputs, *("" for _ in function.input[len(call.inputs) :]))
        if len(inputs) > len(function.input) or len(call.outputs) > len(function.output):
            raise ModelError(f"a call of function {function.name!r} has too many inputs or outputs.")
        opset = {**caller.opset, **opsets(function.opset_import)}
        renamed = dict(zip(function.input, inputs, strict=True))
        scope = structs.replace(
            caller, opset=opset, prefix=prefix, renamed=renamed, attrs={}, calls=(*caller.calls, key)
        )
        inner = Body(self, scope, body.around, body.nodes, body.constants, body.types)
        defaults = {a.name: value_of(a, inner) for a in function.attribute_proto}
        return structs.replace(inner, scope=structs.replace(scope, attrs={**defaults, **call.attrs}))

    def count_node(self) -> None:
        """Refuses models that grow too large as functions are inlined."""
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise LimitError(f"the model has more than {MAX_NODES} nodes once functions are inlined.", code="GC602")

    def _count_call(self, key: FunctionKey, caller: FileScope) -> None:
        if key in caller.calls:
            raise ModelError(f"function {key[1]!r} calls itself.")
        self._calls += 1
        if self._calls > MAX_CALLS or len(caller.calls) >= MAX_CALL_DEPTH:
            text = f"the model's functions call each other more than {MAX_CALLS} times."
            raise LimitError(text, code="GC602")

    @cached_property
    def names_read(self) -> set[str]:
        """Names of tensors that a node reads or that are outputs of a graph."""
        read: set[str] = set()
        for graph in all_graphs_of(self._model):
            read.update(value.name for value in graph.output)
            read.update(name for node in graph.node for name in node.input)
        return read

    @cached_property
    def only_float(self) -> np.dtype[Any] | None:
        """The float dtype of the model; None if it uses several or none."""
        numbers = set[int]()
        for message in messages_in(self._model.graph):
            if isinstance(message, TensorProto):
                numbers.add(message.data_type)
            elif isinstance(message, onnx.TypeProto.Tensor):
                numbers.add(message.elem_type)
            elif isinstance(message, onnx.AttributeProto) and message.name == "to":
                numbers.add(message.i)
        floats = [dtype for each in numbers if (dtype := numpy_dtype(each)) is not None and is_inexact(dtype)]
        return floats[0] if len(floats) == 1 else None


class Body(Struct, frozen=True):
    """The nodes, constants and types of one graph while it is read."""

    reader: Reader
    scope: FileScope
    around: Body | None = None
    nodes: list[Node] = field(default_factory=list)
    constants: dict[str, Array] = field(default_factory=dict)
    types: dict[str, TensorType] = field(default_factory=dict)
    inline: set[str] = field(default_factory=set)  # constants that Constant nodes hold
    modules: dict[str, bool] = field(default_factory=dict)  # parameters of modules, and buffers
    folded: dict[str, bool] = field(default_factory=dict)  # constants that are made of parameters

    def take(self, proto: GraphProto) -> None:
        """Adds the constants, declared types and nodes of a graph."""
        again = [name for name, count in Counter(initializers_of(proto)).items() if count > 1]
        if again:
            raise ModelError(f"two initializers of a graph have the same name: {again[0]!r}.")
        for tensor in proto.initializer:
            self.constants[self.scope.name(tensor.name)] = self.array(tensor)
        for sparse in proto.sparse_initializer:
            self.constants[self.scope.name(sparse.values.name)] = self.array(sparse)
        for infos in (proto.value_info, proto.output, proto.input):
            self.types.update({self.scope.name(name): kind for name, kind in types_of(infos).items()})
        self.modules.update({self.scope.name(name): kind for name, kind in _of_modules(proto.value_info)})
        self.folded.update({self.scope.name(name): computed for name, computed in _of_parameters(proto)})
        for index, node in enumerate(proto.node):
            self.add(index, node)

    def graph(self, inputs: tuple[str, ...], outputs: tuple[str, ...], name: str) -> Graph:
        """Everything added so far, as a graph."""
        return Graph(
            inputs=inputs,
            outputs=outputs,
            nodes=in_order(with_bodies([*_with_shapes(self.nodes, self.types)], self.types)),
            constants=self.constants,
            types=self.types,
            opset={**self.reader.opset, "": NEWEST},
            name=name,
            inline=frozenset(self.inline),
            modules=self.modules,
            folded=self.folded,
        )

    def add(self, index: int, proto: NodeProto) -> None:
        """Adds a node: as a constant, as the nodes of the function that it calls, or in its newest form."""
        self.reader.count_node()
        node = self._node(proto)
        where = describe(index, node) + (f" in {self.scope.prefix!r}" if self.scope.prefix else "")
        function = self.reader.function(proto)
        if function is not None:
            self._inline(function, node)
        elif node.key == ("", "Constant"):
            self._constant(node, where)
        else:
            version, reader = self.scope.version(node.domain), self.reader
            first = next(filter(None, node.outputs), node.op)
            site = Site(
                where, first, reader.names.fresh, self.constants, self.types, self.value,
                is_read=lambda name: bool(self.scope.calls) or name in reader.names_read,
                usual_dtype=lambda: reader.only_float, usual_rank=self._rank_of_last,
            )  # fmt: skip
            self.nodes.extend(adapt(checked(node, version, where), version, site))

    def value(self, name: str) -> Array | None:
        """The value of a constant, of this graph or one around it; None for other tensors."""
        found = self.constants.get(name)
        return self.around.value(name) if found is None and self.around is not None else found

    def _rank_of_last(self, name: str) -> int | None:
        """The rank of an output of the last node, if its operator tells it."""
        last = self.nodes[-1] if self.nodes else None
        return 2 if last and last.op in _OF_RANK_TWO and name in last.outputs else None

    def array(self, tensor: TensorProto | SparseTensorProto) -> Array:
        """The values of a tensor."""
        return self.reader.array(tensor, self.scope)

    def subgraph(self, proto: GraphProto) -> Graph:
        """A subgraph of this graph."""
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
            if formal in inner.scope.renamed:  # an input that the function returns unchanged
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
        if node.outputs[0] in self.constants or kind not in CONSTANTS:
            problem = f"attribute {kind!r} is unknown" if kind not in CONSTANTS else "its output exists already"
            raise ModelError(f"{where}: {problem}.")
        checked(node, NEWEST, where)
        self.constants[node.outputs[0]] = np.asarray(value, CONSTANTS[kind])
        self.inline.add(node.outputs[0])


class FileScope(Struct, frozen=True):
    """Meaning of names, opsets and references to attributes in one graph, or in one call of a function."""

    names: FreshNames
    opset: Mapping[str, int]
    prefix: str = ""  # of names in a function call; "" outside functions
    renamed: dict[str, str] = field(default_factory=dict)
    attrs: Mapping[str, Any] = field(default_factory=dict)  # values of the attributes that `ref_attr_name` names
    calls: tuple[FunctionKey, ...] = ()

    def name(self, name: str) -> str:
        """The name in the `Graph` of a tensor of the file."""
        if not self.calls or not name:
            return name
        if name not in self.renamed:
            self.renamed[name] = self.names.fresh(f"{self.prefix}/{name}")
        return self.renamed[name]

    def label(self, name: str) -> str:
        """The name in the `Graph` of a node of the file."""
        return f"{self.prefix}/{name}" if self.prefix and name else name

    def version(self, domain: str) -> int:
        """The opset of a domain; the newest one if the file declares none."""
        return self.opset.get(domain, NEWEST)


def plain(domain: str) -> str:
    """The domain with "" for ONNX's own, however the file writes it."""
    return "" if domain == "ai.onnx" else domain


def opsets(imports: Iterable[OperatorSetIdProto]) -> dict[str, int]:
    """The declared opset of each domain; of two entries for one domain the last is used."""
    return {plain(entry.domain): entry.version for entry in imports}


def names_of(model: ModelProto) -> set[str]:
    """Every name of a tensor in the model's graphs, with their subgraphs."""
    found: set[str] = set()
    for graph in all_graphs_of(model):
        for values in (graph.input, graph.output, graph.initializer):
            found.update(value.name for value in values)
        for node in graph.node:
            found.update(node.input)
            found.update(node.output)
    return found


def all_graphs_of(model: ModelProto) -> Iterator[GraphProto]:
    """The graphs of a model and of its training information, with their subgraphs."""
    yield from graphs_of(model.graph)
    for info in model.training_info:
        yield from graphs_of(info.initialization)
        yield from graphs_of(info.algorithm)


def graphs_of(graph: GraphProto) -> Iterator[GraphProto]:
    """A graph with its subgraphs, all levels."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            inner = [attribute.g] if attribute.HasField("g") else []
            for subgraph in (*inner, *attribute.graphs):
                yield from graphs_of(subgraph)


def _complete(graph: Graph) -> Graph:
    """The graph itself; raises a ModelError if it reads a tensor that nothing computes."""
    if graph.captures:
        missing = graph.captures[0]
        reader = next((describe(i, n) for i, n in enumerate(graph.nodes) if missing in n.reads), "an output")
        raise ModelError(f"{reader} needs {missing!r}, which nothing computes.")
    return graph


def initializers_of(*graphs: GraphProto) -> list[str]:
    """Names of the initializers of graphs, the sparse ones last."""
    dense = [tensor.name for graph in graphs for tensor in graph.initializer]
    return [*dense, *(sparse.values.name for graph in graphs for sparse in graph.sparse_initializer)]


def _distinct(names: Iterable[str]) -> tuple[str, ...]:
    found = tuple(names)
    if "" in found or len(set(found)) < len(found):
        raise ModelError("two inputs of a graph have the same name, or one has none.")
    return found


def _with_shapes(nodes: Iterable[Node], types: Mapping[str, TensorType]) -> Iterator[Node]:
    """The nodes, with an attribute `shape` for gradients of pooling: the declared shape of their output.

    Their operands do not tell this shape.  In place of a symbolic dimension stands -1.
    """
    for node in nodes:
        declared = types.get(node.outputs[0]) if node.key in _POOL_GRADIENTS and node.outputs else None
        if declared is None or declared.shape is None or "shape" in node.attrs:
            yield node
        else:
            shape = tuple(dim if isinstance(dim, int) else -1 for dim in declared.shape)
            yield replace(node, attrs={**node.attrs, "shape": shape})


def _of_modules(infos: Iterable[ValueInfoProto]) -> Iterator[tuple[str, bool]]:
    """Tensors that PyTorch's exporter declares to be parameters of modules, True, or buffers and the like, False."""
    for info in infos:
        for entry in info.metadata_props:
            if entry.key == "pkg.torch.export.graph_signature.InputSpec.kind" and entry.value != "USER_INPUT":
                yield info.name, entry.value == "PARAMETER"


def _of_parameters(proto: GraphProto) -> Iterator[tuple[str, bool]]:
    """Constants that PyTorch's exporter has made of parameters: True by arithmetic, False if entries only moved."""
    texts = [each.value for each in proto.metadata_props if each.key.endswith(".ExportedProgram.graph_signature")]
    parameters = {name for text in texts for name in re.findall(r": PARAMETER target='([^']*)'", text)}
    for info in proto.value_info if parameters else ():
        for entry in info.metadata_props:
            names = re.findall(r"'([^']*)'", entry.value) if entry.key == "pkg.onnxscript.optimizer.folded_from" else ()
            if not parameters.isdisjoint(names):
                steps = {re.sub(r"_\d+$", "", name) for name in {*names, info.name} - parameters}
                yield info.name, bool(steps - _LAYOUTS - {"val"})
