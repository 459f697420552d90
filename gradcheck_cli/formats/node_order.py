"""Nodes in topological order, whatever order a file has them in."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from gradcheck_cli.errors import ModelError
from gradcheck_cli.graph import Node, describe


def in_order(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """The nodes, each after those that it reads from; otherwise in the order given.

    A ModelError names a node of the cycle where there is one.
    """
    reads = [node.reads for node in nodes]
    if _is_ordered(nodes, reads):
        return tuple(nodes)
    producers = {name: index for index, node in enumerate(nodes) for name in node.outputs if name}
    waits = [{producers[name] for name in names if name in producers} for names in reads]
    order = _kahn(waits)
    if len(order) < len(nodes):
        stuck = _on_cycle(waits, set(order))
        raise ModelError(f"{describe(stuck, nodes[stuck])} depends on its own output: the graph has a cycle.")
    return tuple(nodes[index] for index in order)


def _is_ordered(nodes: Sequence[Node], reads: Sequence[tuple[str, ...]]) -> bool:
    later = {name for node in nodes for name in node.outputs if name}
    for node, names in zip(nodes, reads, strict=True):
        if not later.isdisjoint(names):
            return False
        later.difference_update(node.outputs)
    return True


def _kahn(waits: Sequence[set[int]]) -> list[int]:
    """Indices, each after those that it waits for, else the smallest first; without those on cycles."""
    left = [len(before) for before in waits]
    followers: list[list[int]] = [[] for _ in waits]
    for index, before in enumerate(waits):
        for other in before:
            followers[other].append(index)
    ready = [index for index, count in enumerate(left) if not count]
    order = []
    while ready:
        index = heapq.heappop(ready)
        order.append(index)
        for other in followers[index]:
            left[other] -= 1
            if not left[other]:
                heapq.heappush(ready, other)
    return order


def _on_cycle(waits: Sequence[set[int]], done: set[int]) -> int:
    """An index on a cycle: walking back from any unfinished one ends in one."""
    index = next(i for i in range(len(waits)) if i not in done)
    passed: set[int] = set()
    while index not in passed:
        passed.add(index)
        index = min(other for other in waits[index] if other not in done)
    return index
