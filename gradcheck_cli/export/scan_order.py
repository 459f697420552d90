"""Scans that read their rows from the first to the last: ONNX's reference evaluator runs no others.

Those inside of other graphs stay: a Slice there has a shape that may follow from values, which a further derivative of the
file could not hold.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gradcheck_cli.graph import Array, FreshNames, Graph, Node

_TURNED = ("scan_input_directions", "scan_output_directions")
_BEHIND = np.iinfo(np.int64).min


def in_order(graph: Graph, own: Collection[tuple[str, ...]]) -> Graph:
    """The graph, in which Scans that run backwards get rows that are turned around; those with `own` outputs stay."""
    turning = _Turning(FreshNames(graph.tensors), {})
    nodes = tuple(made for node in graph.nodes for made in ([node] if node.outputs in own else turning.turned(node)))
    return replace(graph, nodes=nodes, constants={**graph.constants, **turning.constants})


@dataclass(frozen=True, slots=True)
class _Turning:
    """Rewrites nodes, and collects the constants that slices read."""

    names: FreshNames
    constants: dict[str, Array]

    def turned(self, node: Node) -> Iterator[Node]:
        """The node, and the slices before and behind it."""
        if node.op != "Scan" or node.domain or not any(any(node.attrs.get(key) or ()) for key in _TURNED):
            yield node
            return
        count = node.attrs["num_scan_inputs"]
        states = len(node.inputs) - count
        back_in = self._places(node, "input", count)
        back_out = self._places(node, "output", len(node.outputs) - states)
        inputs, outputs, behind = list(node.inputs), list(node.outputs), []
        for i, axis in back_in:
            inputs[states + i] = self.names.fresh(f"{node.inputs[states + i]}/turned")
            yield self._slice(node.inputs[states + i], inputs[states + i], axis)
        for i, axis in back_out:
            if node.outputs[states + i]:
                outputs[states + i] = self.names.fresh(f"{node.outputs[states + i]}/turned")
                behind.append(self._slice(outputs[states + i], node.outputs[states + i], axis))
        attrs = {key: value for key, value in node.attrs.items() if key not in _TURNED}
        yield replace(node, inputs=tuple(inputs), outputs=tuple(outputs), attrs=attrs)
        yield from behind

    def _places(self, node: Node, side: str, count: int) -> list[tuple[int, int]]:
        """Scanned inputs or outputs that run backwards, by number, with their axes."""
        ways: Sequence[int] = node.attrs.get(f"scan_{side}_directions") or (0,) * count
        axes: Sequence[int] = node.attrs.get(f"scan_{side}_axes") or (0,) * count
        return [(i, axes[i]) for i in range(count) if ways[i]]

    def _slice(self, name: str, made: str, axis: int) -> Node:
        held = [self._number(value) for value in (-1, _BEHIND, axis, -1)]
        return Node("Slice", (name, *held), (made,), name=made)

    def _number(self, value: int) -> str:
        """A constant of one entry; equal ones share a name."""
        known = next((n for n, v in self.constants.items() if v[0] == value), None)
        name = known or self.names.fresh("turned/constant")
        self.constants[name] = np.array([value], np.int64)
        return name
