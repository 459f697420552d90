"""Nodes in ONNX's text syntax, one statement at a time, so that each knows its line in the YAML file.

onnx is imported only when a spec has such text.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from gradcheck_cli.errors import GradcheckError, SpecError
from gradcheck_cli.formats.yaml.places import Spot
from gradcheck_cli.graph import Array, Graph, Node

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto, SparseTensorProto, TensorProto

MAX_DEPTH = 64  # onnx's parser recurses
_TOKEN = re.compile(r'"(?:\\.|[^"\\\n])*"|#[^\n]*|=>|[()<>\[\]{}]|[\w.:/@-]+|\S')
_OPENING, _CLOSING = set("(<[{"), set(")>]}")
_POSITION = re.compile(r"position \(line: (\d+) column: (\d+)\)")
_WORD = re.compile(r"[\w.:/@-]+")


class Statement(NamedTuple):
    """The text of one node and where it begins in the text around it (counted from 1)."""

    text: str
    line: int
    column: int

    @property
    def outputs(self) -> list[str]:
        """Names left of the equals sign, as far as they can be told without parsing."""
        left = self.text.split("=")[0].rpartition("]")[2] if "=" in self.text else ""
        return _WORD.findall(left)

    def place_of(self, name: str, *, last: bool = False) -> tuple[int, int]:
        """Where a name stands in the text around; where the statement begins if it does not."""
        found = [m.start() for m in re.finditer(rf"(?<![\w.]){re.escape(name)}(?![\w.])", self.text)] or [0]
        return self.place_at(found[-1 if last else 0])

    def place_at(self, offset: int) -> tuple[int, int]:
        before = self.text[:offset]
        if "\n" not in before:
            return self.line, self.column + offset
        return self.line + before.count("\n"), offset - before.rfind("\n")


def statements(text: str, spot: Spot) -> list[Statement]:
    """The statements of a text, told apart by their brackets."""
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
        if depth > MAX_DEPTH:
            raise spot.error(f"brackets nested deeper than {MAX_DEPTH} levels")
    return found + [statement(start, end)] * (start >= 0)


@dataclass(frozen=True, slots=True)
class TextReader:
    """Turns statements into nodes: `bound` holds what @name stands for, `finish` has the last word."""

    spot: Spot
    bound: Mapping[str, Any] | None
    finish: Callable[[Node], Node]

    def node(self, statement: Statement) -> Node:
        """The node of one statement."""
        from onnx import parser

        proto = self._parsed(parser.parse_node, statement)
        node: Node = self._located(lambda: self._node(proto), statement)
        return node

    def graph(self, text: str) -> Graph:
        """A graph in text: name (inputs) => (outputs) { statements }."""
        from onnx import parser

        statement = Statement(text, 1, 1)
        statements(text, self.spot)  # for its bound of the depth
        proto = self._parsed(parser.parse_graph, statement)
        graph: Graph = self._located(lambda: self.subgraph(proto), statement)
        return graph

    def array(self, tensor: TensorProto) -> Array:
        """The values of a tensor."""
        from gradcheck_cli.formats.onnx.tensors import Store, to_array

        return to_array(tensor, Store("the spec"))

    def dense(self, sparse: SparseTensorProto) -> Array:
        """The values of a sparse tensor."""
        from gradcheck_cli.formats.onnx.tensors import Store, to_dense

        return to_dense(sparse, Store("the spec"))

    def subgraph(self, proto: GraphProto) -> Graph:
        """A graph among a node's attributes."""
        from gradcheck_cli.formats.onnx.onnx_types import types_of

        nodes = [self._node(node) for node in proto.node]
        constants = {tensor.name: self.array(tensor) for tensor in proto.initializer}
        constants |= {node.outputs[0]: value for node in nodes if (value := constant_value(node)) is not None}
        return Graph(
            inputs=tuple(value.name for value in proto.input),
            outputs=tuple(value.name for value in proto.output),
            nodes=tuple(node for node in nodes if constant_value(node) is None),
            constants=constants,
            types=types_of([*proto.value_info, *proto.output, *proto.input]),
            name=proto.name or "graph",
        )

    def _node(self, proto: NodeProto) -> Node:
        from gradcheck_cli.formats.onnx.attributes import attributes

        self._check_references(proto)
        attrs = attributes(proto, self.bound or {}, self)
        domain = "" if proto.domain == "ai.onnx" else proto.domain
        return self.finish(Node(proto.op_type, tuple(proto.input), tuple(proto.output), attrs, domain, proto.name))

    def _check_references(self, proto: NodeProto) -> None:
        for name in (attribute.ref_attr_name for attribute in proto.attribute):
            if name and name not in (self.bound or {}):
                raise GradcheckError(missing_reference(name, self.bound))

    def _parsed(self, parse: Callable[[str], Any], statement: Statement) -> Any:
        from onnx.parser import ParseError

        try:
            return parse(statement.text)
        except (ParseError, RuntimeError, ValueError) as error:  # of a number such as 1e: RuntimeError
            text = error.args[0]
            text = text.decode("utf-8", "replace") if isinstance(text, bytes) else str(error)
            raise self._syntax_error(text, statement) from None

    def _syntax_error(self, text: str, statement: Statement) -> SpecError:
        reason = text.strip().rpartition("\n")[2]
        line, column = statement.line, statement.column
        if position := _POSITION.search(text):
            down, right = int(position[1]) - 1, int(position[2])
            line, column = line + down, right if down else column + right - 1
        return self.spot.error_in_text(f"not ONNX's text syntax: {reason}", line, max(1, column))

    def _located(self, read: Callable[[], Any], statement: Statement) -> Any:
        try:
            return read()
        except SpecError:
            raise
        except GradcheckError as error:
            raise self.spot.error_in_text(str(error), statement.line, statement.column) from None


def missing_reference(name: str, bound: Mapping[str, Any] | None) -> str:
    """Why @name stands for nothing."""
    if bound is None:
        return f"'@{name}' refers to an attribute, which only the body of an operator in 'ops' has"
    known = f"; it has {', '.join(bound)}" if bound else ""
    return f"the operator has no attribute {name!r}{known}"


def constant_value(node: Node) -> Array | None:
    """The value of a Constant node; None for another."""
    import numpy as np

    if node.key != ("", "Constant") or len(node.outputs) != 1 or len(node.attrs) != 1:
        return None
    [(kind, value)] = node.attrs.items()
    if kind.startswith("value_string"):
        return np.asarray(value, object)
    dtypes = {
        "value_float": np.float32,
        "value_floats": np.float32,
        "value_int": np.int64,
        "value_ints": np.int64,
    }
    return np.asarray(value, dtypes.get(kind))
