"""`Gradient` nodes of ONNX's training operators, each made ready to run with the graph that it differentiates.

Such a node only names tensors: `y` as a function of `xs` and `zs`.  The nodes between them become a graph in its attribute
`body`; then it runs like a node of control flow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from gradcheck_cli.errors import LimitError, ModelError, counted
from gradcheck_cli.graph import Graph, Node, TensorType, describe, in_order

GRADIENT = ("ai.onnx.preview.training", "Gradient")  # the key of its nodes
BODY = "body"  # the attribute that holds the graph
MAX_BODIES = 3_000_000  # nodes in all bodies together
MAX_ORDER = 60  # of derivatives: a body may contain Gradient nodes


def with_bodies(nodes: Sequence[Node], types: Mapping[str, TensorType]) -> tuple[Node, ...]:
    """The nodes of a graph, with a body for each `Gradient` node: the part of the graph that it differentiates."""
    if not any(node.key == GRADIENT for node in nodes):
        return tuple(nodes)
    bodies = Bodies(nodes, types)
    for index in range(len(nodes)):
        bodies.complete(index)
    return tuple(bodies.nodes)


class Bodies:
    """The nodes of one graph, while its `Gradient` nodes get their bodies."""

    def __init__(self, nodes: Sequence[Node], types: Mapping[str, TensorType]) -> None:
        self.nodes, self.types = list(nodes), types
        self.producers = {name: index for index, node in enumerate(nodes) for name in node.outputs if name}
        self.active: list[int] = []  # nodes whose bodies are being made, each one needed by the one before it
        self.count = 0  # nodes in all bodies so far

    def complete(self, index: int) -> None:
        """Gives node `index` its body, if it is a `Gradient` node without one."""
        node = self.nodes[index]
        if node.key != GRADIENT or BODY in node.attrs:
            return
        if index in self.active:
            raise ModelError(f"{describe(index, node)} differentiates what depends on its own output.")
        if len(self.active) >= MAX_ORDER:
            raise LimitError(f"{describe(index, node)} is part of a derivative of order {MAX_ORDER} or more.")
        self.active.append(index)
        body = self._body(node, describe(index, node))
        self.active.pop()
        self.nodes[index] = replace(node, attrs={**node.attrs, BODY: body})

    def _body(self, node: Node, where: str) -> Graph:
        free, y = _names(node, where)
        if len(set(free)) < len(free) or len(free) != len(node.inputs):
            given = counted(len(node.inputs), "value is", "values are")
            text = f"{where}: {given} given for {list(free)}, which must differ from each other."
            raise ModelError(text)
        kept = self._between(free, y)
        if y not in free and y not in self.producers:
            raise ModelError(f"{where} differentiates {y!r}, which no node computes.")
        self.count += len(kept)
        if self.count > MAX_BODIES:
            raise LimitError(f"{where}: the parts of the graph that are differentiated are too large.", code="GC602")
        apart = [replace(n, outputs=tuple("" if o in free else o for o in n.outputs)) for n in kept]
        types = {name: self.types[name] for name in (*free, y) if name in self.types}
        return Graph(free, (y,), in_order(apart), types=types, name=str(y))

    def _between(self, free: Sequence[str], y: str) -> list[Node]:
        """The nodes between the free tensors and y, in the order of the file."""
        found, pending = set[int](), [y]
        while pending:
            name = pending.pop()
            index = self.producers.get(name)
            if name not in free and index is not None and index not in found:
                found.add(index)
                self.complete(index)
                pending.extend(self.nodes[index].reads)
        return [self.nodes[index] for index in sorted(found)]


def _names(node: Node, where: str) -> tuple[tuple[str, ...], str]:
    """The free tensors (xs, then zs), and y."""
    xs, zs, y = (node.attrs.get(key, default) for key, default in (("xs", ()), ("zs", ()), ("y", "")))
    if not all(isinstance(names, tuple) and all(isinstance(n, str) for n in names) for names in (xs, zs, (y,))):
        raise ModelError(f"{where}: xs and zs are lists of names, y is a name.")
    return (*xs, *zs), y
