"""Tensor names: those that are free, and nodes under other ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from gradcheck_cli.graph import Graph, Node


@dataclass(slots=True)
class Names:
    """The tensor names that are taken, at every level."""

    taken: set[str]
    counts: Counter[str] = field(default_factory=Counter)

    def fresh(self, stem: str) -> str:
        """A name that no tensor has yet."""
        name = stem
        while name in self.taken:
            self.counts[stem] += 1
            name = f"{stem}_{self.counts[stem]}"
        self.taken.add(name)
        return name


def names_in(graph: Graph) -> Iterator[str]:
    """Those of all tensors, at every level."""
    yield from graph.tensors
    for node in graph.nodes:
        for inside in node.subgraphs:
            yield from names_in(inside)


def renamed(node: Node, names: Mapping[str, str]) -> Node:
    """The node with other tensor names, in the graphs inside it too."""
    if names.keys().isdisjoint((*node.reads, *node.outputs)):
        return node
    inputs, outputs = (tuple(names.get(n, n) for n in part) for part in (node.inputs, node.outputs))
    attrs = {k: _captures_renamed(v, names) if isinstance(v, Graph) else v for k, v in node.attrs.items()}
    return replace(node, inputs=inputs, outputs=outputs, attrs=attrs)


def _captures_renamed(graph: Graph, names: Mapping[str, str]) -> Graph:
    names = {name: names[name] for name in graph.captures if name in names}
    outputs = tuple(names.get(name, name) for name in graph.outputs)
    return replace(graph, nodes=tuple(renamed(node, names) for node in graph.nodes), outputs=outputs)
