"""Where a node of a file is read: which opset holds, what names become, what attribute references stand for.

A model-local function is read once for each of its calls, in a scope of its own: that is all of inlining.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto

from gradcheck_cli.errors import LimitError, ModelError
from gradcheck_cli.formats.onnx.opset import NEWEST
from gradcheck_cli.graph import Node

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
