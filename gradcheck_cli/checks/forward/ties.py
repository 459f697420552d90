"""Operators that choose among entries: where some are equal, any of them is right, and the choice is judged by value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from gradcheck_cli.graph import Array, Node

_CHOOSING = {"TopK": 1, "ArgMax": 0, "ArgMin": 0}  # which of their results are indices along an axis


def in_order(node: Node, name: str, values: Array) -> Array:
    """Values of a result as they are compared: TopK may give its own in any order where it is not to sort them."""
    if node.op == "TopK" and node.attrs.get("sorted", 1) == 0 and name == node.outputs[0]:
        return np.sort(values, axis=int(node.attrs.get("axis", -1)))
    return values


def chosen_alike(node: Node, name: str, operands: Mapping[str, Any], ours: Array, theirs: Array) -> bool:
    """Two results are indices of an operator that chooses, and stand for the same values."""
    position = _CHOOSING.get(node.op)
    if node.domain or position is None or list(node.outputs).index(name) != position or ours.shape != theirs.shape:
        return False
    x = operands.get(node.inputs[0])
    if not isinstance(x, np.ndarray) or not x.ndim:
        return False
    axis = int(node.attrs.get("axis", 0 if position == 0 else -1))
    if position == 0 and not node.attrs.get("keepdims", 1):
        ours, theirs = np.expand_dims(ours, axis), np.expand_dims(theirs, axis)
    size = x.shape[axis]
    if theirs.size and not (-size <= theirs.min() and theirs.max() < size):
        return False
    here, there = (np.sort(np.take_along_axis(x, each.astype(np.int64), axis), axis) for each in (ours, theirs))
    return np.array_equal(here, there, equal_nan=x.dtype.kind == "f") and _apart(theirs % size, axis)


def _apart(indices: Array, axis: int) -> bool:
    """No index occurs twice along the axis."""
    return not (np.diff(np.sort(indices, axis), axis=axis) == 0).any()
