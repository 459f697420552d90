"""Sizes that an operator works out by itself: -1 and 0 in a Reshape, 1 in an Expand, the end of an axis in a Slice."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from gradcheck_cli.export.runs import Sizes
from gradcheck_cli.graph import Array, Node

Shapes = Mapping[str, tuple[Sizes, ...]]
_END = np.iinfo(np.int64).max


def relaxed(
    node: Node, place: int, entries: Sequence[Sizes], shapes: Shapes, constants: Mapping[str, Array]
) -> list[Sizes]:
    """The entries of a vector that a node reads at a place of its inputs, with as few open ones as will do."""
    rule = _RULES.get((node.op, place))
    shape = shapes.get(node.inputs[0])
    if rule is None or shape is None:
        return list(entries)
    return rule(node, entries, shape, constants)


def _reshape(
    node: Node, entries: Sequence[Sizes], shape: tuple[Sizes, ...], constants: Mapping[str, Array]
) -> list[Sizes]:
    """0 is the size that the axis has already, -1 what is left."""
    if node.attrs.get("allowzero"):
        return list(entries)
    if sum(map(_is_open, entries)) > 1:
        entries = [
            _always(0, e) if i < len(shape) and _is_open(e) and e == shape[i] else e for i, e in enumerate(entries)
        ]
    if sum(map(_is_open, entries)) == 1:
        entries = [_always(-1, e) if _is_open(e) else e for e in entries]
    return list(entries)


def _expand(
    node: Node, entries: Sequence[Sizes], shape: tuple[Sizes, ...], constants: Mapping[str, Array]
) -> list[Sizes]:
    """1 is the size that the axis has already."""
    front = len(entries) - len(shape)
    kept = [_always(1, e) if i >= front and e == shape[i - front] and _is_open(e) else e for i, e in enumerate(entries)]
    return list(entries) if any(map(_is_open, kept)) else kept


def _slice(
    node: Node, entries: Sequence[Sizes], shape: tuple[Sizes, ...], constants: Mapping[str, Array]
) -> list[Sizes]:
    """An end may lie behind the end."""
    axes = constants.get(node.inputs[3]) if len(node.inputs) > 3 else np.arange(len(entries))
    steps = constants.get(node.inputs[4]) if len(node.inputs) > 4 else np.ones(len(entries))
    if axes is None or steps is None:
        return list(entries)
    return [
        _always(_END, e) if step > 0 and e == shape[int(axis)] and _is_open(e) else e
        for e, axis, step in zip(entries, axes, steps, strict=True)
    ]


def _is_open(sizes: Sizes) -> bool:
    return len(set(sizes)) > 1


def _always(value: int, sizes: Sizes) -> Sizes:
    return (value,) * len(sizes)


_RULES: Mapping[tuple[str, int], Callable[..., list[Sizes]]] = {
    ("Reshape", 1): _reshape, ("Expand", 1): _expand, ("Slice", 2): _slice,
}  # fmt: skip
