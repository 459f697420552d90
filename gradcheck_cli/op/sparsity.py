"""Sparsity rules: the entries of its operands that each entry of an operator's result depends on.

A rule maps sets of indices.  They are stacks of machine words, `(W, *shape)` for a tensor: bit b of word w of an entry
says that the entry may depend on index 64 w + b of the tensor that is traced.  The axis of words stands in front, as
that of probes does; an axis of a tensor over which all sets are equal may have length 1.  A rule may give too many
indices (`everything` is always right), never too few: that would make a wrong verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any, TypeAlias

import numpy as np
from msgspec import Struct

from gradcheck_cli.graph import Array
from gradcheck_cli.op.batching import Operands, raised

Sets: TypeAlias = Sequence[Any]  # an array for each operand, None for one that depends on nothing
SparsityRule: TypeAlias = (
    "Callable[[Sets, EvaluatedNode], Array | Sequence[Array]]"  # sets of the result or each output
)


class EvaluatedNode(Struct, frozen=True):
    """One evaluated node: its operands and metadata, the shapes of its outputs.

    `selects` has a flag for each operand: it only chooses entries of the others, so nothing depends on its numbers.
    `run` runs the kernel with an axis of words in front.
    """

    operands: Operands
    metadata: Mapping[str, Any]
    shapes: tuple[tuple[int, ...], ...]
    selects: tuple[bool, ...]
    run: Callable[[Operands, Sequence[bool]], Any]

    def whole(self, sets: Sets, i: int) -> Any:
        """The sets of operand i with all of its axes; None if it depends on nothing."""
        found = sets[i]
        return None if found is None else np.broadcast_to(found, (len(found), *self.operands[i].shape))


def everything(sets: Sets, node: EvaluatedNode) -> Sequence[Array]:
    """Each entry depends on all entries of all operands."""
    flat = [np.bitwise_or.reduce(s.reshape(len(s), -1), axis=1) for s in sets if s is not None]
    union = reduce(np.bitwise_or, flat)
    return [union.reshape(-1, *(1,) * len(shape)) for shape in node.shapes]


def same_place(sets: Sets, node: EvaluatedNode) -> Array:
    """Each entry depends on the entries at the same place; operands broadcast."""
    rank = max(x.ndim for x in node.operands if x is not None)
    return reduce(np.bitwise_or, [raised(s, rank) for s in sets if s is not None])


def first(sets: Sets, node: EvaluatedNode) -> Array:
    """Each entry depends on the entry of the first operand at the same place, and on no other operand."""
    if sets[0] is not None:
        return np.asarray(sets[0])
    words = next(len(s) for s in sets if s is not None)
    return np.zeros((words, *(1,) * len(node.shapes[0])), np.uint64)


def along(*axes: int | str) -> SparsityRule:
    """Each entry depends on all entries of the first operand along some axes, counted from the end or named by metadata."""

    def read(sets: Sets, node: EvaluatedNode) -> Array | Sequence[Array]:
        chosen = named_axes(axes, node.metadata)
        if chosen is None or sets[0] is None or any(s is not None for s in sets[1:]):
            return everything(sets, node)
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
    found = []
    if x is not None:
        rows = np.bitwise_or.reduce(x, axis=-1)
        found.append(rows[..., None] if b.ndim > 1 else rows)
    if y is not None:
        columns = np.bitwise_or.reduce(y, axis=-min(b.ndim, 2))
        found.append(np.expand_dims(columns, -min(b.ndim, 2)) if a.ndim > 1 else columns)
    return reduce(np.bitwise_or, [raised(each, len(node.shapes[0])) for each in found])


def named_axes(axes: Sequence[int | str], metadata: Mapping[str, Any]) -> list[int] | None:
    """Axes that are given, or named by metadata; None if metadata lacks a name."""
    found = [metadata.get(name) if isinstance(name, str) else name for name in axes]
    if None in found:
        return None
    return [a for value in found for a in (value if isinstance(value, tuple | list) else (value,))]
