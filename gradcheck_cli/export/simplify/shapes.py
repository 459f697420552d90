"""Shapes that ONNX's inference leaves open: of a Reshape to what is left, and of what is broadcast from there on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

from gradcheck_cli.graph import Array, Dim, Node

Shape: TypeAlias = tuple[Dim, ...]
Volume: TypeAlias = tuple[int, tuple[str, ...]]

RESHAPING = ("Reshape", "Flatten", "Squeeze", "Unsqueeze")
BROADCASTING = (
    "Add", "Sub", "Mul", "Div", "Pow", "Mod", "Where", "Sum", "Mean", "Max", "Min", "Equal", "Less", "LessOrEqual",
    "Greater", "GreaterOrEqual", "And", "Or", "Xor",
)  # fmt: skip
# of one shape with their first operand
_SAME = (
    "Neg",
    "Exp",
    "Sqrt",
    "Reciprocal",
    "Cast",
    "Not",
    "Identity",
    "Abs",
    "Log",
    "Tanh",
    "Sigmoid",
    "Relu",
    "Softmax",
)


def volume(shape: Shape) -> Volume:
    """How many entries a tensor of known dimensions has: a number, times sizes that have names."""
    named = sorted(d for d in shape if isinstance(d, str))
    return math.prod(d for d in shape if isinstance(d, int)), tuple(named)


def followed(node: Node, shapes: Sequence[Shape | None], target: Array | None) -> Shape | None:
    """The shape of what a node gives, where all of its dimensions follow from those of its inputs.

    `target` is the constant that tells a Reshape or an Expand its sizes, a reduction its axes.
    """
    if not shapes or any(shape is None or None in shape for shape in shapes[: 1 if target is not None else None]):
        return None
    known = [shape for shape in shapes if shape is not None]
    if node.op in BROADCASTING:
        return broadcast(known)
    if node.op in _SAME:
        return known[0]
    if node.op == "Transpose":
        return tuple(known[0][p] for p in node.attrs.get("perm", range(len(known[0]))[::-1]))
    if node.op == "MatMul" and min(map(len, known)) > 1:
        stacks = broadcast([shape[:-2] for shape in known])
        return None if stacks is None else (*stacks, known[0][-2], known[1][-1])
    if target is None or target.ndim != 1 or not target.size:
        return None
    if node.op.startswith("Reduce"):
        axes, keepdims = {int(a) % len(known[0]) for a in target}, node.attrs.get("keepdims", 1)
        return tuple(1 if i in axes else d for i, d in enumerate(known[0]) if keepdims or i not in axes)
    if node.op == "Expand":
        return broadcast([known[0], tuple(target.tolist())])
    return _reshaped(known[0], target.tolist()) if node.op == "Reshape" and not node.attrs.get("allowzero") else None


def broadcast(shapes: Sequence[Shape]) -> Shape | None:
    """The shape that shapes broadcast to; None where that depends on sizes."""
    rank = max(map(len, shapes))
    aligned = [(*[1] * (rank - len(shape)), *shape) for shape in shapes]
    dims = [{d for d in column if d != 1} for column in zip(*aligned, strict=True)]
    return tuple(next(iter(d), 1) for d in dims) if all(len(d) < 2 for d in dims) else None


def _reshaped(shape: Shape, target: list[int]) -> Shape | None:
    if any(t == 0 and i >= len(shape) for i, t in enumerate(target)):
        return None
    dims: list[Dim] = [shape[i] if t == 0 else t for i, t in enumerate(target)]
    if -1 not in dims:
        return tuple(dims)
    number, names = volume(shape)
    known, taken = volume(tuple(d for d in dims if d != -1))
    left = list(names)
    for name in taken:
        if name not in left:
            return None
        left.remove(name)
    if not known or number % known or len(left) > 1 or (left and number != known):
        return None
    dims[dims.index(-1)] = left[0] if left else number // known
    return tuple(dims)
