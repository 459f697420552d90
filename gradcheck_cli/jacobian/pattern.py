"""Entries of y by the reals of x that they may depend on: sets of indices, sent forward through a program.

Decisions count like numbers: what y takes from two places depends on the comparison that chooses between them.  So a
perturbation of several reals that no entry of y shares changes no decision that one of them alone would not change.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from gradcheck_cli.autodiff.tape import Step
from gradcheck_cli.engine.chunks import Budget, in_chunks
from gradcheck_cli.engine.program import Program
from gradcheck_cli.graph import Array
from gradcheck_cli.op.batching import Operands, elementwise
from gradcheck_cli.op.sparsity import EvaluatedNode, SparsityRule, everything, same_place

BITS = 64  # of a word


@dataclass(frozen=True, slots=True)
class Pattern:
    """A superset of the entries of a Jacobian `(rows, columns)` that can be other than zero.

    Bit r % 64 of `words[r // 64, k]` stands for row r and column k.
    """

    words: Array
    rows: int

    @property
    def columns(self) -> int:
        return int(self.words.shape[1])

    def fullest(self) -> int:
        """The most rows that meet in one column: no fewer colors do."""
        return int(np.max(np.sum(np.bitwise_count(self.words), axis=0, dtype=np.int64), initial=0))

    def widest(self) -> int:
        """The most columns that meet in one row: no fewer colors of the columns do."""
        return max((int(np.bincount(rows).max()) for _, rows, _ in self.blocks() if len(rows)), default=0)

    def transposed(self) -> Pattern:
        """The pattern of the transposed Jacobian."""
        words = np.zeros((-(-self.columns // BITS), self.rows), np.uint64)
        for block, rows, columns in self.blocks():
            bits = np.left_shift(np.uint64(1), (columns % BITS).astype(np.uint64))
            np.bitwise_or.at(words, (columns // BITS, rows + block.start), bits)
        return Pattern(words, self.columns)

    def blocks(self) -> Iterator[tuple[range, Array, Array]]:
        """Some rows at a time: the entries `(row, column)` of these rows, counted from the first of them."""
        for number, word in enumerate(self.words):
            columns = np.flatnonzero(word)
            bits = np.unpackbits(word[columns].astype("<u8").view(np.uint8).reshape(-1, 8), axis=1, bitorder="little")
            which, rows = np.nonzero(bits)
            yield range(BITS * number, min(BITS * (number + 1), self.rows)), rows, columns[which]

    def holds(self, rows: Array, columns: Array) -> Array:
        """Mask of single entries that belong to it."""
        shifts = (rows % BITS).astype(np.uint64)
        return np.asarray((self.words[rows // BITS, columns] >> shifts) & np.uint64(1), bool)


def pattern(program: Program, budget: Budget) -> Pattern:
    """The sparsity pattern of what a program leads from its one probed tensor to its one output."""
    x, y = program.tape.values[program.probes[0]], program.tape.values[program.outputs[0]]
    rows = np.arange(_reals(x))
    words = np.zeros((-(-len(rows) // BITS), _reals(y)), np.uint64)
    for piece, part in in_chunks(partial(_reached, program, rows), len(words), program.bytes_per_probe(), budget):
        words[piece.start : piece.stop] = part()
    return Pattern(words, len(rows))


def sample(program: Program, seed: int = 0) -> Pattern:
    """The pattern of 64 rows, or fewer, drawn at random."""
    count = _reals(program.tape.values[program.probes[0]])
    rows = np.sort(np.random.default_rng(seed).permutation(count)[:BITS])
    return Pattern(_reached(program, rows, range(min(1, len(rows)))), len(rows))


def _reached(program: Program, rows: Array, piece: range) -> Array:
    """Words `piece` of the sets of all reals of y, `(len(piece), y_size)`: its real and imaginary parts alike."""
    sets = {program.probes[0]: _seeds(program.tape.values[program.probes[0]], rows, piece)}
    guarding, guards = np.zeros(len(piece), np.uint64), {*program.tape.guards}  # control flow reaches all of y
    for position, (_, step) in enumerate(program.steps):
        made = _step(program, step, sets)
        for name in guards.intersection(made):
            guarding |= np.bitwise_or.reduce(made[name].reshape(len(piece), -1), axis=1)
        sets.update(made)
        for name in program.dies.get(position, ()):
            sets.pop(name, None)
    y = program.tape.values[program.outputs[0]]
    if program.outputs[0] not in sets:
        return np.repeat(guarding[:, None], _reals(y), axis=1)
    found = np.broadcast_to(sets[program.outputs[0]], (len(piece), *y.shape)).reshape(len(piece), y.size)
    found = found | guarding[:, None]
    return np.concatenate([found, found], axis=1) if y.dtype.kind == "c" else found


def _seeds(x: Array, rows: Array, piece: range) -> Array:
    """For each entry of x the rows that are its own: one, or two of a complex one; `(len(piece), *x.shape)`."""
    seeds = np.zeros((len(piece), x.size), np.uint64)
    here = np.arange(BITS * piece.start, min(BITS * piece.stop, len(rows)))
    bits = np.left_shift(np.uint64(1), (here % BITS).astype(np.uint64))
    np.bitwise_or.at(seeds, (here // BITS - piece.start, rows[here] % max(x.size, 1)), bits)
    return seeds.reshape(len(piece), *x.shape)


def _step(program: Program, step: Step, sets: Mapping[str, Array]) -> dict[str, Array]:
    """Sets of a step's outputs."""
    values = program.tape.values
    outputs = [(i, n) for i, n in enumerate(step.node.outputs) if n and n in values]
    own = [sets.get(n) for n in step.operands]
    given = [*own, *(sets.get(n) for n in step.statics)]
    live = [s for s in given if s is not None]
    if not live:
        return {}
    shapes = tuple(values[n].shape if n and n in values else () for n in step.node.outputs)
    operands = tuple(values[n] if n else None for n in step.operands)
    node = EvaluatedNode(operands, step.metadata, shapes, selecting(step), partial(_batched, step))
    rule = sparsity_rule(step)
    if any(n in sets for n in step.statics) or _alike(step, sets, program):
        rule, own = everything, given  # of metadata nothing is known; of equal sets there is one union
    made = rule(own, node)
    by_output = [made] * len(shapes) if isinstance(made, np.ndarray) else made
    return {name: _fitting(by_output[i], shapes[i]) for i, name in outputs}


def sparsity_rule(step: Step) -> SparsityRule:
    """The sparsity rule of a step: its operator's own, that of elementwise ones, or `everything`."""
    return step.op.sparsity or (same_place if step.op.batching is elementwise else everything)


def selecting(step: Step) -> tuple[bool, ...]:
    """Operands in which the kernel is not linear choose among the entries of the others."""
    if step.op.linear == "each":
        return (False,) * len(step.operands)
    data = {i for group in step.op.linear for i in group}
    return tuple(i not in data for i in range(len(step.operands)))


def _alike(step: Step, sets: Mapping[str, Array], program: Program) -> bool:
    """All entries of all operands that depend on anything have the same set."""
    live = [n for n in step.operands if n in sets]
    if any(sets[n].size != len(sets[n]) or program.tape.values[n].size < 2 for n in live):
        return False
    first, *others = (sets[n].reshape(-1) for n in live)
    return all(np.array_equal(first, other) for other in others)


def _batched(step: Step, operands: Operands, probed: Sequence[bool]) -> Any:
    return step.op.batching(step.op.forward, operands, probed, step.metadata)


def _fitting(sets: Array, shape: tuple[int, ...]) -> Array:
    """The sets, if they are those of a tensor of this shape: a program that they do not fit has no pattern."""
    if sets.ndim != 1 + len(shape) or any(n not in (1, d) for n, d in zip(sets.shape[1:], shape, strict=True)):
        raise ValueError(f"sets {list(sets.shape)} do not fit {list(shape)}")
    return sets


def _reals(x: Array) -> int:
    return x.size * (2 if x.dtype.kind == "c" else 1)
