"""Sparsity rules: the entries of its operands that each entry of an operator's result depends on.

A rule maps sets of indices.  They are stacks of machine words, `(W, *shape)` for a tensor: bit b of word w of an entry
says that the entry may depend on index 64 w + b of the tensor that is traced.  The axis of words stands in front, as
that of probes does; an axis of a tensor over which all sets are equal may have length 1.  A rule may give too many
indices (`everything` is always right), never too few: that would make a wrong verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, TypeAlias

import numpy as np

from gradcheck_cli.graph import Array

Sets: TypeAlias = "Sequence[Array | None]"  # of the operands, None for one that depends on nothing
SparsityRule: TypeAlias = (
    "Callable[[Sets, EvaluatedNode], Array | Sequence[Array]]"  # sets of the result, or of each output
)


@dataclass(frozen=True, slots=True)
class EvaluatedNode:
    """One evaluated node: its operands and metadata, the shapes of its outputs.

    `selects` has a flag for each operand: it only chooses entries of the others, so nothing depends on its numbers.
    `run` runs the kernel with an axis of words in front.
    """

    operands: tuple[Array | None, ...]
    metadata: Mapping[str, Any]
    shapes: tuple[tuple[int, ...], ...]
    selects: tuple[bool, ...]
    run: Callable[[Sequence[Array | None], Sequence[bool]], Any]

    def whole(self, sets: Sets, i: int) -> Array | None:
        """The sets of operand i with all of its axes."""
        found, operand = sets[i], self.operands[i]
        return None if found is None or operand is None else np.broadcast_to(found, (len(found), *operand.shape))


def everything(sets: Sets, node: EvaluatedNode) -> Sequence[Array]:
    """Each entry depends on all entries of all operands."""
    flat = [np.bitwise_or.reduce(s.reshape(len(s), -1), axis=1) for s in sets if s is not None]
    union = reduce(np.bitwise_or, flat)
    return [union.reshape(-1, *(1,) * len(shape)) for shape in node.shapes]


def same_place(sets: Sets, node: EvaluatedNode) -> Array:
    """Each entry depends on the entries at the same place; operands broadcast."""
    rank = max(x.ndim for x in node.operands if x is not None)
    return reduce(np.bitwise_or, [_raised(s, rank) for s in sets if s is not None])


def first(sets: Sets, node: EvaluatedNode) -> Array:
    """Each entry depends on the entry of the first operand at the same place, and on no other operand."""
    if sets[0] is not None:
        return sets[0]
    words = next(len(s) for s in sets if s is not None)
    return np.zeros((words, *(1,) * len(node.shapes[0])), np.uint64)


def along(*axes: int | str) -> SparsityRule:
    """Each entry depends on all entries of the first operand along some axes, counted from the end or named by metadata."""

    def read(sets: Sets, node: EvaluatedNode) -> Array | Sequence[Array]:
        known = all(not isinstance(name, str) or name in node.metadata for name in axes)
        if not known or sets[0] is None or any(s is not None for s in sets[1:]):
            return everything(sets, node)
        chosen = [a for name in axes for a in _as_tuple(node.metadata[name] if isinstance(name, str) else name)]
        union = np.bitwise_or.reduce(sets[0], axis=tuple(chosen), keepdims=True) if chosen else sets[0]
        return [union if union.ndim == 1 + len(shape) else np.squeeze(union, tuple(chosen)) for shape in node.shapes]

    return read


lines = along("axis")  # for a result of the same shape: each line along `axis` depends on that line


def moved(sets: Sets, node: EvaluatedNode) -> Any:
    """Each entry is a copy of one entry: the kernel runs on the sets.  Entries that it fills in depend on nothing."""
    if any(s is not None and selects for s, selects in zip(sets, node.selects, strict=True)):
        return everything(sets, node)
    operands = [
        node.whole(sets, i) if sets[i] is not None
        else x if x is None or selects else np.zeros(x.shape, np.uint64)
        for i, (x, selects) in enumerate(zip(node.operands, node.selects, strict=True))
    ]  # fmt: skip
    return node.run(operands, [s is not None for s in sets])


def products(sets: Sets, node: EvaluatedNode) -> Array:
    """A matrix product: a row of the first and a column of the second; an operand of rank 1 is one row or column."""
    (a, b), (x, y) = node.operands, sets
    assert a is not None
    assert b is not None
    found = []
    if x is not None:
        rows = np.bitwise_or.reduce(x, axis=-1)
        found.append(rows[..., None] if b.ndim > 1 else rows)
    if y is not None:
        columns = np.bitwise_or.reduce(y, axis=-min(b.ndim, 2))
        found.append(np.expand_dims(columns, -min(b.ndim, 2)) if a.ndim > 1 else columns)
    return reduce(np.bitwise_or, [_raised(each, len(node.shapes[0])) for each in found])


def _raised(sets: Array, rank: int) -> Array:
    return sets.reshape(len(sets), *(1,) * (rank + 1 - sets.ndim), *sets.shape[1:])


def _as_tuple(value: Any) -> tuple[int, ...]:
    return tuple(value) if isinstance(value, tuple | list) else (value,)
