"""Ranges of inputs, read off the operators that consume them, through those that only move entries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from gradcheck_cli.graph import Array, Graph, Node, TensorType
from gradcheck_cli.op import Along, Interval, Ops, operator_of
from gradcheck_cli.points.dims import symbol

DEFAULT = (-1.0, 1.0)
_LARGEST = (1 << 31) - 1  # integer that is drawn
MAGNITUDES = (1.0, 0.1, 10.0)  # of what is drawn, point by point
ELSEWHERE = ((0.1, 1.0), (-0.1, 0.1), (1.1, 3.0))  # where a model may be finite that is not where it was tried


def float_range(
    graph: Graph, name: str, ops: Ops, magnitude: float = 1.0, within: tuple[float, float] | None = None
) -> tuple[float, float]:
    """The interval to draw a float input from: its consumers' common domain, scaled by a magnitude if it stays inside.

    `within` is an interval to stay in as well, if the two meet.
    """
    low, high = DEFAULT
    limits = [-np.inf, np.inf]
    for node, index in consumers(graph, name, ops):
        valid = operator_of(ops, node).interval(index, len(node.inputs))
        if valid is not None and not _is_defined(graph, node, valid):
            below = valid.high <= DEFAULT[0]
            low, high = valid.low if below else max(low, valid.low), valid.high if below or low < valid.high else high
            limits = [max(limits[0], valid.ends[0]), min(limits[1], valid.ends[1])]
    low, high = (low, high) if low < high else (low, low + 1.0)
    if within is not None:
        inside = max(within[0], limits[0]), min(within[1], limits[1])
        return inside if inside[0] < inside[1] else (low, high)
    return (magnitude * low, magnitude * high) if _scales(low, high, magnitude, limits) else (low, high)


def _scales(low: float, high: float, magnitude: float, limits: Sequence[float]) -> bool:
    return limits[0] < magnitude * low and magnitude * high < limits[1]


def integer_range(
    graph: Graph, name: str, ops: Ops, shape: Sequence[int], dims: Mapping[str, int] | None = None
) -> tuple[int, int]:
    """The integers, both ends included, that an integer or boolean input may take; `dims` are sizes of open dimensions."""
    sizes = dims or {}
    if "mask" in name.lower():
        return 1, 1
    highs, equal = [], []
    for node, index in consumers(graph, name, ops):
        match operator_of(ops, node).integers.get(index):
            case Along() as along:
                size = _length(graph, node, along, sizes)
                if size is not None and along.lengths:
                    return min(2, max(1, size)), max(1, size)  # from 2, so that there is a step to go
                highs.extend([] if size is None else [size - 1])
            case (low, high):
                return low, high
        equal.extend(_compared_with(graph, node, index))
    if highs:
        return 0, max(0, min(highs))
    return (equal[0], equal[0]) if equal and len(shape) <= 1 else (0, 1)


def consumers(graph: Graph, name: str, ops: Ops) -> Iterator[tuple[Node, int]]:
    """Nodes that read a tensor, and as which operand, through nodes that only move entries and into subgraphs."""
    same = {name}
    for node in graph.all_nodes:
        for index, read in enumerate(node.inputs):
            if read in same:
                yield node, index
                if operator_of(ops, node).keeps_range(index):
                    same.update(n for n in node.outputs if n)


def _length(graph: Graph, node: Node, along: Along, sizes: Mapping[str, int]) -> int | None:
    """The number of integers along an axis of another operand, or that this operand states; None where it is open."""
    if along.axis is None:
        return _whole(graph.constants.get(node.inputs[along.of]))
    axis = node.attrs.get(along.axis, 0) if isinstance(along.axis, str) else along.axis
    shape = _shape(graph, node.inputs[along.of], sizes)
    return shape[axis] if shape and -len(shape) <= axis < len(shape) else along.least


def _shape(graph: Graph, name: str, sizes: Mapping[str, int]) -> tuple[int, ...] | None:
    """The shape of a constant, or a declared one at some sizes, where it is all known."""
    if name in graph.constants:
        return graph.constants[name].shape
    declared = graph.types.get(name, TensorType()).shape or ()
    found = [d if isinstance(d, int) else sizes.get(symbol(name, axis, d)) for axis, d in enumerate(declared)]
    shape = tuple(d for d in found if d is not None)
    return shape if shape and len(shape) == len(found) else None


def _compared_with(graph: Graph, node: Node, index: int) -> list[int]:
    """Constants that the model itself compares an input with."""
    if node.op != "Equal":
        return []
    value = _whole(_constant(graph, node.inputs[1 - index]))
    return [] if value is None else [value]


def _whole(constant: Array | None) -> int | None:
    """The integer that a constant holds; None where it holds no single one, or something else."""
    if constant is None or constant.size != 1 or constant.dtype.kind not in "iufb" or not np.isfinite(constant).all():
        return None
    return min(max(int(constant.item()), -_LARGEST), _LARGEST)


def _constant(graph: Graph, name: str) -> Array | None:
    if name in graph.constants:
        return graph.constants[name]
    bodies = [body for node in graph.nodes for body in node.subgraphs]
    return next((value for body in bodies if (value := _constant(body, name)) is not None), None)


def _is_defined(graph: Graph, node: Node, valid: Interval) -> bool:
    """True if an operand may be any number, since a constant beside it holds integers from 0 on."""
    if valid.unless_whole is None:
        return False
    exponent = graph.constants.get(node.inputs[valid.unless_whole])
    if exponent is None or exponent.dtype.kind not in "iuf":
        return False
    return bool(np.all(exponent == np.rint(exponent)) and np.all(exponent >= 0))
