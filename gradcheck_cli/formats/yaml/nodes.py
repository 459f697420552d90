"""Reads the nodes of a spec, which are mappings, text in ONNX's syntax, or a mixture of both.

Text is parsed one statement at a time, so that errors have their line in the YAML file.  Nodes are held against the
opset in which they are written, and rewritten in the newest one.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from onnx import GraphProto, NodeProto, SparseTensorProto, TensorProto, helper, parser

from gradcheck_cli.errors import GradcheckError, SpecError, UnsupportedError, counted, did_you_mean
from gradcheck_cli.formats.onnx.adapt import Site, adapt
from gradcheck_cli.formats.onnx.attributes import attributes
from gradcheck_cli.formats.onnx.graph_proto import CONSTANTS, plain
from gradcheck_cli.formats.onnx.opset import checked, signature
from gradcheck_cli.formats.onnx.tensors import TensorSource, to_array, types_of
from gradcheck_cli.formats.yaml.fields import AttributeReference, NodeSpec, Subgraph, TensorLiteral, is_number, show
from gradcheck_cli.formats.yaml.places import DocumentPath
from gradcheck_cli.formats.yaml.values import DTYPE_NAMES, DType, constant, dtype_of, is_constant, literal
from gradcheck_cli.graph import Array, Graph, Node, TensorType

DEFAULT_OPSET = 21
MAX_BRACKETS = 64  # inside each other: onnx's parser recurses
GRAPH_ATTRIBUTES = {("If", "then_branch"), ("If", "else_branch"), ("Loop", "body"), ("Scan", "body")}
_DTYPE_ATTRIBUTES = {"to", "dtype", "output_dtype"}
_TOKEN = re.compile(r'"(?:\\.|[^"\\\n])*"|#[^\n]*|=>|[()<>\[\]{}]|[\w.:/@-]+|\S')
_OPENING, _CLOSING = set("(<[{"), set(")>]}")
_POSITION = re.compile(r"position \(line: (\d+) column: (\d+)\)")
_WORD = re.compile(r"[\w.:/@-]+")


def read_nodes(written: Any, spot: DocumentPath, scope: Scope) -> list[Node]:
    """Reads the nodes under a `nodes` key; adds their outputs and constants to the scope."""
    items = list(_items(written, spot))
    scope.later = frozenset(name for item in items for name in item.outputs)
    nodes: list[Node] = []
    for item in items:
        with spot.document.collecting():
            nodes.extend(_read(item, scope))
        scope.local.update(item.outputs)
    return nodes


def read_subgraph(written: Subgraph, spot: DocumentPath, scope: Scope) -> Graph:
    """Reads a graph that is an attribute."""
    inner, before = scope.inner(written.inputs), len(spot.document.problems)
    add_constants(written.constants, spot / "constants", inner)
    nodes = read_nodes(written.nodes, spot / "nodes", inner)
    check_outputs(written.outputs, spot / "outputs", inner)
    if len(spot.document.problems) > before:
        raise SpecError(problems=())  # the problems are collected already; this only stops the node around
    name = str(spot.path[-1])
    return Graph(tuple(written.inputs), tuple(written.outputs), tuple(nodes), inner.constants, name=name)


def add_constants(written: Mapping[str, Any], spot: DocumentPath, scope: Scope) -> None:
    """Reads a `constants` section into the scope."""
    for name, value in written.items():
        with spot.document.collecting():
            if name in scope.local:
                raise (spot / name).error(f"{name!r} exists already", key=True)
            scope.constants[name] = _tensor(value, spot / name, scope)
        scope.local.add(name)


def check_outputs(names: Iterable[str], spot: DocumentPath, scope: Scope) -> None:
    """Adds a problem to the document for each output that nothing computes."""
    known = scope.local | scope.around
    for index, name in enumerate(names):
        if name not in known:
            error = (spot / index).error(f"no tensor is called {name!r}.{did_you_mean(name, known)}")
            spot.document.problems.extend(error.problems)


@dataclass(slots=True)
class Scope:
    """The tensors that nodes of a graph may read, collected while it is read; `around` are those of outer graphs."""

    resolve: Callable[[Node], Node]  # gives a node the domain, operator and attributes of its body
    float_dtype: DType
    local: set[str] = field(default_factory=set)
    opset: int = DEFAULT_OPSET  # in which the nodes are written
    types: Mapping[str, TensorType] = field(default_factory=dict)  # declared ones
    around: frozenset[str] = frozenset()
    constants: dict[str, Array] = field(default_factory=dict)
    outer_constants: Mapping[str, Array] = field(default_factory=dict)
    bound: Mapping[str, Any] | None = None  # attributes of the operator whose body this is; None outside of bodies
    later: frozenset[str] = frozenset()  # names that nodes further down compute

    def inner(self, names: Iterable[str]) -> Scope:
        """The scope of a subgraph with these inputs."""
        known = {**self.outer_constants, **self.constants}
        around = self.around | self.local
        return replace(self, local=set(names), around=around, constants={}, outer_constants=known, later=frozenset())

    def fresh(self, hint: str) -> str:
        """A name that is unused in this graph and the graphs around it: `hint`, with a number if it is taken."""
        name, number = hint, 0
        while name in self.local or name in self.around or name in self.later:
            number += 1
            name = f"{hint}_{number}"
        self.local.add(name)
        return name


@dataclass(frozen=True, slots=True)
class NodeItem:
    """A node in the form of the file: an entry of `nodes`, or a statement of a text."""

    written: NodeSpec | Statement
    spot: DocumentPath

    @property
    def outputs(self) -> list[str]:
        return [name for name in self.written.outputs if name]

    def error(self, message: str) -> SpecError:
        """The error to raise for the node as a whole."""
        if isinstance(self.written, Statement):
            return self.spot.error_in_text(message, self.written.line, self.written.column)
        return self.spot.error(message)

    def error_at(self, message: str, name: str, part: str) -> SpecError:
        """The error to raise for a name among the node's inputs or outputs."""
        if isinstance(self.written, Statement):
            return self.spot.error_in_text(message, *self.written.place_of(name, last=part == "inputs"))
        names = getattr(self.written, part)
        return (self.spot / part / names.index(name)).error(message) if name in names else self.spot.error(message)


def _items(written: Any, spot: DocumentPath) -> Iterator[NodeItem]:
    if isinstance(written, str):
        yield from (NodeItem(statement, spot) for statement in statements(written, spot))
        return
    for index, each in enumerate(written):
        if isinstance(each, str):
            yield from _items(each, spot / index)
        else:
            yield NodeItem(each, spot / index)


def _read(item: NodeItem, scope: Scope) -> list[Node]:
    try:
        return _nodes_of(item, scope)
    except SpecError:
        raise
    except UnsupportedError as error:
        raise UnsupportedError(str(item.error(str(error))), code=error.code) from None
    except GradcheckError as error:
        raise item.error(str(error)) from None


def _nodes_of(item: NodeItem, scope: Scope) -> list[Node]:
    if isinstance(item.written, Statement):
        node = TextReader(item.spot, scope).node(item.written)
    else:
        node = _from_mapping(item.written, item, scope)
    _check_names(node, item, scope)
    value = constant_value(node)
    if value is not None:
        scope.constants[node.outputs[0]] = value
        return []
    return _modern(node, scope)


def _modern(node: Node, scope: Scope) -> list[Node]:
    """Nodes of the newest opset that compute what a node does in the scope's; a ModelError if it is not valid there."""
    schema = None if node.domain else signature(node.op, scope.opset)
    kinds = schema.attributes if schema is not None else {}
    node = replace(node, attrs={name: _as(kinds.get(name), value) for name, value in node.attrs.items()})
    output = next(filter(None, node.outputs), node.op)
    where = f"node {node.op} {node.name or output!r}"

    def value(name: str) -> Array | None:
        return scope.constants.get(name, scope.outer_constants.get(name))

    site = Site(where, output, scope.fresh, scope.constants, scope.types, value)
    return adapt(checked(node, scope.opset, where), scope.opset, site)


def _as(kind: str | None, value: Any) -> Any:
    """The value of an attribute of this type, with integers as floats if it is FLOAT: people write 1 for 1.0."""
    if kind == "FLOATS" and isinstance(value, tuple):
        return tuple(_as("FLOAT", each) for each in value)
    return float(value) if kind == "FLOAT" and isinstance(value, int) else value


def _from_mapping(written: NodeSpec, item: NodeItem, scope: Scope) -> Node:
    spot = item.spot
    domain, _, op = written.op.rpartition(".")
    if domain and written.domain and domain != written.domain:
        raise (spot / "domain").error(f"the domain is {domain!r} in 'op' and {written.domain!r} here")
    attrs = {name: _attribute(op, name, value, spot / "attrs" / name, scope) for name, value in written.attrs.items()}
    inputs = tuple(_input(index, value, item, scope) for index, value in enumerate(written.inputs))
    node = Node(op, inputs, tuple(written.outputs), attrs, domain or written.domain, written.name)
    try:
        return scope.resolve(node)
    except SpecError:
        raise
    except GradcheckError as error:
        raise (spot / "op").error(str(error)) from None


def _input(index: int, value: Any, item: NodeItem, scope: Scope) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    spot = item.spot / "inputs" / index
    if not is_constant(value):
        raise spot.error(f"{show(value)} is neither a tensor's name nor a number")
    array = constant(value, scope.float_dtype, spot)
    name = scope.fresh(f"{next(iter(item.outputs), 'node')}/input{index}")
    scope.constants[name] = array
    return name


def _check_names(node: Node, item: NodeItem, scope: Scope) -> None:
    known = scope.local | scope.around
    for name in node.reads:
        if name not in known:
            raise item.error_at(_unknown(name, item, scope, known), name, "inputs")
    for index, name in enumerate(node.outputs):
        if name and (name in scope.local or name in node.outputs[:index]):
            raise item.error_at(f"{name!r} exists already; every tensor is computed once", name, "outputs")


def _unknown(name: str, item: NodeItem, scope: Scope, known: set[str]) -> str:
    if name in item.outputs:
        return f"{name!r} is computed from itself"
    if name in scope.later:
        return f"{name!r} is read before it is computed; nodes stand in the order of computation"
    return f"no tensor is called {name!r}.{did_you_mean(name, known)}"


def _attribute(op: str, name: str, value: Any, spot: DocumentPath, scope: Scope) -> Any:
    if isinstance(value, Subgraph):
        return read_subgraph(value, spot, scope)
    if isinstance(value, AttributeReference):
        if value.ref not in (scope.bound or {}):
            raise (spot / "ref").error(missing_reference(value.ref, scope.bound))
        return (scope.bound or {})[value.ref]
    if isinstance(value, TensorLiteral):
        return _tensor(value, spot, scope)
    if isinstance(value, str) and (op, name) in GRAPH_ATTRIBUTES:
        return TextReader(spot, scope).graph(value)
    if name in _DTYPE_ATTRIBUTES and value in DTYPE_NAMES:
        return int(helper.np_dtype_to_tensor_dtype(dtype_of(value)))
    return plain_attribute(value, spot)


def plain_attribute(value: Any, spot: DocumentPath) -> Any:
    """A number, string or list as the value of an attribute; floats are rounded to float32, ONNX's type for them."""
    if isinstance(value, list):
        values = tuple(_scalar(each, spot / index) for index, each in enumerate(value))
        if any(isinstance(each, str) for each in values) and not all(isinstance(each, str) for each in values):
            raise spot.error("texts and numbers in one list")
        return tuple(map(float, values)) if any(isinstance(each, float) for each in values) else values
    return _scalar(value, spot)


def _scalar(value: Any, spot: DocumentPath) -> int | float | str:
    if isinstance(value, (bool, int)):
        if not -(2**63) <= value < 2**63:
            raise spot.error(f"{value} does not fit into int64")
        return int(value)
    if isinstance(value, str):
        return value
    if not is_number(value):
        raise spot.error(f"{show(value)} is no value of an attribute; a tensor is written {{values: ..., dtype: ...}}")
    with np.errstate(over="ignore"):
        rounded = float(np.float32(value))
    if math.isinf(rounded) and not math.isinf(value):
        raise spot.error(f"{value} does not fit into float32, the type of ONNX's attributes")
    return rounded


def _tensor(written: Any, spot: DocumentPath, scope: Scope) -> Array:
    if not isinstance(written, TensorLiteral):
        return constant(written, scope.float_dtype, spot)
    place, shape = spot / "values", written.shape
    if written.dtype is not None:
        array = literal(written.values, dtype_of(written.dtype), None, place)
    else:
        array = constant(written.values, scope.float_dtype, place)
    if shape is None:
        return array
    if array.ndim == 0 and math.prod(shape) < 2**28:
        return np.full(shape, array)
    if array.size != math.prod(shape):
        raise (spot / "shape").error(f"{counted(array.size, 'value does', 'values do')} not fill the shape {shape}")
    return array.reshape(shape)


@dataclass(frozen=True, slots=True)
class TextReader:
    """Turns statements into nodes, in a scope."""

    spot: DocumentPath
    scope: Scope

    def node(self, statement: Statement) -> Node:
        """The node of one statement."""
        proto = self._parsed(parser.parse_node, statement)
        with self._located(statement):
            return self._node(proto)

    def graph(self, text: str) -> Graph:
        """A graph in text: name (inputs) => (outputs) { statements }."""
        statement = Statement(text, 1, 1)
        statements(text, self.spot)  # refuses text that is nested too deeply for onnx's parser
        proto = self._parsed(parser.parse_graph, statement)
        with self._located(statement):
            return self.subgraph(proto)

    def array(self, tensor: TensorProto | SparseTensorProto) -> Array:
        """The values of a tensor."""
        return to_array(tensor, TensorSource("the spec"))

    def subgraph(self, proto: GraphProto) -> Graph:
        """A graph among a node's attributes."""
        constants = {tensor.name: self.array(tensor) for tensor in proto.initializer}
        scope = self.scope.inner([*(value.name for value in proto.input), *constants])
        scope.constants = constants
        scope.later = frozenset(name for node in proto.node for name in node.output)
        inner, nodes = replace(self, scope=scope), list[Node]()
        for node in map(inner._node, proto.node):
            value = constant_value(node)
            if value is not None:
                scope.constants[node.outputs[0]] = value
            else:
                nodes.extend(_modern(node, scope))
        return Graph(
            inputs=tuple(value.name for value in proto.input),
            outputs=tuple(value.name for value in proto.output),
            nodes=tuple(nodes),
            constants=scope.constants,
            types=types_of([*proto.value_info, *proto.output, *proto.input]),
            name=proto.name or "graph",
        )

    def _node(self, proto: NodeProto) -> Node:
        bound = self.scope.bound or {}
        for name in (attribute.ref_attr_name for attribute in proto.attribute):
            if name and name not in bound:
                raise GradcheckError(missing_reference(name, self.scope.bound))
        inputs, outputs, attrs = tuple(proto.input), tuple(proto.output), attributes(proto, bound, self)
        return self.scope.resolve(Node(proto.op_type, inputs, outputs, attrs, plain(proto.domain), proto.name))

    def _parsed(self, parse: Callable[[str], Any], statement: Statement) -> Any:
        try:
            return parse(statement.text)
        except IndexError:  # its parser's, for integers of more than 64 bits
            text = "a number in it is too large"
        except (parser.ParseError, RuntimeError, ValueError) as error:  # a number such as 1e is a RuntimeError
            text = error.args[0]
            text = text.decode("utf-8", "replace") if isinstance(text, bytes) else str(error)
        line, column = statement.line, statement.column
        if position := _POSITION.search(text):
            down, right = int(position[1]) - 1, int(position[2])
            line, column = line + down, right if down else column + right - 1
        reason = text.strip().rpartition("\n")[2]
        raise self.spot.error_in_text(f"not ONNX's text syntax: {reason}", line, max(1, column))

    @contextmanager
    def _located(self, statement: Statement) -> Iterator[None]:
        """Gives errors of the block the place of the statement."""
        try:
            yield
        except SpecError:
            raise
        except GradcheckError as error:
            raise self.spot.error_in_text(str(error), statement.line, statement.column) from None


class Statement(NamedTuple):
    """The text of one node and the place where it begins in the whole text (counted from 1)."""

    text: str
    line: int
    column: int

    @property
    def outputs(self) -> list[str]:
        """The names before the equals sign, guessed without parsing."""
        left = self.text.split("=")[0].rpartition("]")[2] if "=" in self.text else ""
        return _WORD.findall(left)

    def place_of(self, name: str, *, last: bool = False) -> tuple[int, int]:
        """Line and column of a name in the whole text; those of the statement if it lacks the name."""
        found = [m.start() for m in re.finditer(rf"(?<![\w.]){re.escape(name)}(?![\w.])", self.text)] or [0]
        offset = found[-1 if last else 0]
        before = self.text[:offset]
        if "\n" not in before:
            return self.line, self.column + offset
        return self.line + before.count("\n"), offset - before.rfind("\n")


def statements(text: str, spot: DocumentPath) -> list[Statement]:
    """The statements of a text, split where all brackets are closed."""
    text = _TOKEN.sub(lambda token: " " * len(token[0]) if token[0].startswith("#") else token[0], text)
    breaks = [match.start() for match in re.finditer("\n", text)]

    def statement(start: int, end: int) -> Statement:
        line = bisect_left(breaks, start)
        return Statement(text[start:end], line + 1, start - (breaks[line - 1] if line else -1))

    found: list[Statement] = []
    start, end, depth, complete = -1, 0, 0, False
    for token in _TOKEN.finditer(text):
        if depth == 0 and complete and token[0] != "<":
            found.append(statement(start, end))
            start, complete = -1, False
        start, end = (token.start() if start < 0 else start), token.end()
        depth += (token[0] in _OPENING) - (token[0] in _CLOSING and depth > 0)
        complete = complete or (depth == 0 and token[0] == ")")
        if depth > MAX_BRACKETS:
            raise spot.error(f"brackets nested deeper than {MAX_BRACKETS} levels")
    return found + [statement(start, end)] * (start >= 0)


def missing_reference(name: str, bound: Mapping[str, Any] | None) -> str:
    """An error message for a reference @name to an attribute that does not exist."""
    if bound is None:
        return f"'@{name}' refers to an attribute, which only the body of an operator in 'ops' has"
    known = f"; it has {', '.join(bound)}" if bound else ""
    return f"the operator has no attribute {name!r}{known}"


def constant_value(node: Node) -> Array | None:
    """The value of a Constant node; None for other nodes.  Raises GradcheckError for one that an attribute cannot have."""
    if node.key != ("", "Constant") or len(node.outputs) != 1 or len(node.attrs) != 1:
        return None
    [(kind, value)] = node.attrs.items()
    try:
        return np.asarray(value, CONSTANTS.get(kind))
    except (ValueError, TypeError, OverflowError):
        raise GradcheckError(f"{kind!r} of Constant cannot be {show(value)}") from None
