"""Where inputs may lie: read off the operators that consume them, through those that only move entries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from gradcheck_cli.graph import Array, Graph, Node, TensorType
from gradcheck_cli.points.dims import symbol

DEFAULT = (-1.0, 1.0)
_LARGEST = (1 << 31) - 1  # integer that is drawn
DOMAINS: dict[tuple[str, int], tuple[float, float]] = {  # of operand i of an operator
    ("Log", 0): (0.1, 1.0),
    ("Sqrt", 0): (0.1, 1.0),
    ("Pow", 0): (0.1, 1.0),
    ("Acos", 0): (-0.9, 0.9),
    ("Asin", 0): (-0.9, 0.9),
    ("Atanh", 0): (-0.9, 0.9),
    ("Acosh", 0): (1.1, 3.0),
    ("Reciprocal", 0): (0.5, 1.5),
    ("Div", 1): (0.5, 1.5),
    ("Mod", 1): (0.5, 1.5),
    ("BatchNormalization", 4): (0.5, 1.5),
    ("Dropout", 1): (0.1, 0.6),
    ("ReduceLogSum", 0): (0.1, 1.0),
    ("Resize", 2): (1.0, 2.0),
    ("MelWeightMatrix", 3): (20.0, 300.0),
    ("MelWeightMatrix", 4): (3000.0, 4000.0),
}
LIMITS: dict[tuple[str, int], tuple[float, float]] = {  # where a domain ends, for those that may be scaled
    ("Log", 0): (0.0, np.inf),
    ("Sqrt", 0): (0.0, np.inf),
    ("Pow", 0): (0.0, np.inf),
    ("Acos", 0): (-1.0, 1.0),
    ("Asin", 0): (-1.0, 1.0),
    ("Atanh", 0): (-1.0, 1.0),
    ("Acosh", 0): (1.0, np.inf),
    ("Reciprocal", 0): (0.0, np.inf),
    ("Div", 1): (0.0, np.inf),
    ("BatchNormalization", 4): (0.0, np.inf),
    ("ReduceLogSum", 0): (0.0, np.inf),
}
MAGNITUDES = (1.0, 0.1, 10.0)  # of what is drawn, point by point
ELSEWHERE = ((0.1, 1.0), (-0.1, 0.1), (1.1, 3.0))  # where a model may be finite that is not where it was tried
COUNTS: dict[tuple[str, int], tuple[int, int]] = {  # of operand i of an operator: one that it can work with
    ("BlackmanWindow", 0): (8, 8),
    ("CumProd", 1): (0, 0),
    ("CumSum", 1): (0, 0),
    ("ConstantOfShape", 0): (2, 3),
    ("DFT", 1): (5, 8),
    ("DFT", 2): (-2, -2),
    ("Expand", 1): (1, 1),
    ("HammingWindow", 0): (8, 8),
    ("HannWindow", 0): (8, 8),
    ("Loop", 0): (2, 3),
    ("Loop", 1): (1, 1),
    ("MelWeightMatrix", 0): (4, 6),
    ("MelWeightMatrix", 1): (32, 64),
    ("MelWeightMatrix", 2): (8000, 8000),
    ("OneHot", 1): (3, 5),
    ("Range", 1): (2, 3),
    ("Range", 2): (1, 1),
    ("STFT", 1): (1, 3),
    ("STFT", 3): (4, 4),
    ("Slice", 2): (2, 3),
    ("Slice", 4): (1, 1),
    ("Tile", 1): (1, 2),
    ("TopK", 1): (1, 1),
}
_MOVERS = {
    "Cast", "CastLike", "Reshape", "Unsqueeze", "Squeeze", "Identity", "Transpose", "Expand", "Slice", "Flatten",
    "Tile", "Concat", "Split", "Dropout", "Where", "Clip",
}  # fmt: skip
_ACCUMULATED = (0.1, 1.0)  # squares of gradients
_LABELS = {("SoftmaxCrossEntropyLoss", 1), ("NegativeLogLikelihoodLoss", 1)}


def float_range(
    graph: Graph, name: str, magnitude: float = 1.0, within: tuple[float, float] | None = None
) -> tuple[float, float]:
    """The interval to draw a float input from: its consumers' common domain, at a magnitude if that stays inside of it.

    `within` is one to stay in as well, where that leaves anything.
    """
    low, high = DEFAULT
    limits = [-np.inf, np.inf]
    for node, index in consumers(graph, name):
        domain = _ACCUMULATED if _is_accumulated(node, index) else DOMAINS.get((node.op, index))
        if domain is not None and not (node.op == "Pow" and _whole_exponent(graph, node)):
            low, high = max(low, domain[0]), domain[1] if low < domain[1] else high
            ends = LIMITS.get((node.op, index), domain)
            limits = [max(limits[0], ends[0]), min(limits[1], ends[1])]
    low, high = (low, high) if low < high else (low, low + 1.0)
    if within is not None:
        inside = max(within[0], limits[0]), min(within[1], limits[1])
        return inside if inside[0] < inside[1] else (low, high)
    return (magnitude * low, magnitude * high) if _scales(low, high, magnitude, limits) else (low, high)


def _scales(low: float, high: float, magnitude: float, limits: Sequence[float]) -> bool:
    return limits[0] < magnitude * low and magnitude * high < limits[1]


def integer_range(
    graph: Graph, name: str, shape: Sequence[int], dims: Mapping[str, int] | None = None
) -> tuple[int, int]:
    """The integers, both ends included, that an integer or boolean input may take; `dims` are sizes of open dimensions."""
    sizes = dims or {}
    if "mask" in name.lower():
        return 1, 1
    highs, equal = [], []
    for node, index in consumers(graph, name):
        count = COUNTS.get((node.op, index)) or _lengths(graph, node, index, sizes)
        if count is not None:
            return count
        size = _index_limit(graph, node, index, sizes)
        if size is not None:
            highs.append(size - 1)
        equal.extend(_compared_with(graph, node, index))
    if highs:
        return 0, max(0, min(highs))
    return (equal[0], equal[0]) if equal and len(shape) <= 1 else (0, 1)


def consumers(graph: Graph, name: str) -> Iterator[tuple[Node, int]]:
    """Nodes that read a tensor, and as which operand, through nodes that only move entries and into subgraphs."""
    same = {name}
    for node in _all_nodes(graph):
        for index, read in enumerate(node.inputs):
            if read in same:
                yield node, index
                if node.op in _MOVERS and (index == 0 or node.op in ("Concat", "Where")):
                    same.update(n for n in node.outputs if n)


def _all_nodes(graph: Graph) -> Iterator[Node]:
    for node in graph.nodes:
        yield node
        for body in node.subgraphs:
            yield from _all_nodes(body)


def _is_accumulated(node: Node, index: int) -> bool:
    """The last tensors of Adagrad and Adam hold sums of squares; before all tensors stand two numbers."""
    kinds = {"Adagrad": 3, "Adam": 4}.get(node.op)
    return kinds is not None and index >= 2 + (len(node.inputs) - 2) * (kinds - 1) // kinds


def _lengths(graph: Graph, node: Node, index: int, sizes: Mapping[str, int]) -> tuple[int, int] | None:
    """From 2, so that there is a step to go, to the length of the axis that lengths of sequences count; None for others."""
    axis = {
        ("RNN", 4): node.attrs.get("layout", 0),
        ("GRU", 4): node.attrs.get("layout", 0),
        ("LSTM", 4): node.attrs.get("layout", 0),
        ("ReverseSequence", 1): node.attrs.get("time_axis", 0),
        ("Attention", 6): -2,
    }.get((node.op, index))
    if axis is None:
        return None
    shape = _shape(graph, node.inputs[1 if node.op == "Attention" else 0], sizes)
    if shape is None or not -len(shape) <= axis < len(shape):
        return None
    return min(2, max(1, shape[axis])), max(1, shape[axis])


def _index_limit(graph: Graph, node: Node, index: int, sizes: Mapping[str, int]) -> int | None:
    """How many values an index into something of known size may take."""
    if node.op in ("Gather", "GatherElements") and index == 1:
        shape = _shape(graph, node.inputs[0], sizes)
        axis = node.attrs.get("axis", 0)
        return shape[axis] if shape and -len(shape) <= axis < len(shape) else None
    if node.op == "ArrayFeatureExtractor" and index == 1:
        shape = _shape(graph, node.inputs[0], sizes)
        return shape[-1] if shape else None
    if node.op == "RoiAlign" and index == 2:
        shape = _shape(graph, node.inputs[0], sizes)
        return shape[0] if shape else 1  # there is one image at least
    if (node.op, index) in _LABELS:
        shape = _shape(graph, node.inputs[0], sizes)
        return shape[1] if shape and len(shape) > 1 else None
    if node.op == "OneHot" and index == 0:
        return _whole(graph.constants.get(node.inputs[1]))
    return None


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


def _whole_exponent(graph: Graph, node: Node) -> bool:
    """x ** 2 is defined everywhere."""
    exponent = graph.constants.get(node.inputs[1])
    if exponent is None or exponent.dtype.kind not in "iuf":
        return False
    return bool(np.all(exponent == np.rint(exponent)) and np.all(exponent >= 0))
