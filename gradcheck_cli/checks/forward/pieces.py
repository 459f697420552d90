"""A graph taken apart where another implementation's results are known: single nodes, or a few where it keeps some.

Each piece reads what that implementation computed, so that what one node makes of rounding, of a tie or of a mistake
does not reach the next.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gradcheck_cli.graph import Graph, Node


@dataclass(frozen=True, slots=True)
class Piece:
    """The last of its nodes by index in the whole graph, what they all read, and results of the last that are known."""

    index: int
    graph: Graph
    feeds: Mapping[str, Any]
    results: tuple[str, ...]

    @property
    def node(self) -> Node:
        """The last node, which its results come from."""
        return self.graph.nodes[-1]


class Pieces:
    """Pieces of a graph, made when they are asked for, from the values that are known then."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.producers = {name: i for i, node in enumerate(graph.nodes) for name in node.outputs if name}

    def at(self, index: int, known: Mapping[str, Any]) -> Piece | None:
        """The piece that ends with a node; None where nothing it gives is known, or something it reads is not at hand."""
        node = self.graph.nodes[index]
        results = tuple(name for name in node.outputs if name in known)
        indices, read = self._before(index, known)
        if not results or any(n not in known and n not in self.graph.constants for n in read):
            return None
        feeds = {name: known[name] for name in read if name in known}
        constants = {name: self.graph.constants[name] for name in read if name not in feeds}
        types = {name: self.graph.types[name] for name in feeds if name in self.graph.types}
        nodes = tuple(self.graph.nodes[i] for i in sorted(indices))
        graph = Graph(tuple(feeds), results, nodes, constants, types, self.graph.opset, self.graph.name)
        return Piece(index, graph, feeds, results)

    def _before(self, index: int, known: Collection[str]) -> tuple[set[int], list[str]]:
        """A node with those before it whose results are not known, and what they read from outside."""
        indices, read, ahead = {index}, dict[str, None](), [*self.graph.nodes[index].reads]
        while ahead:
            name = ahead.pop()
            if name in known or name not in self.producers:
                read[name] = None
            elif self.producers[name] not in indices:
                indices.add(self.producers[name])
                ahead.extend(self.graph.nodes[self.producers[name]].reads)
        return indices, list(read)


def last_reads(graph: Graph) -> Iterator[tuple[str, int]]:
    """Every tensor with the index of the last node that reads it."""
    last: dict[str, int] = {}
    for index, node in enumerate(graph.nodes):
        last.update(dict.fromkeys(node.reads, index))
    yield from last.items()
