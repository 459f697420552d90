"""Entries of y by the reals of x that they may depend on, and colors of rows that meet in no column.

The pattern is made of sets of indices, sent forward through a program.  Decisions count like numbers: what y takes from
two places depends on the comparison that chooses between them.  A single probe serves all rows of one color: every
column of its answer belongs to one of them at most, and no decision on the way to y depends on two of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np
from msgspec import Struct

from gradcheck_cli.autodiff.tape import Step
from gradcheck_cli.engine.chunks import Budget, in_chunks
from gradcheck_cli.engine.complex_step import selecting
from gradcheck_cli.engine.program import FAILURES, Program
from gradcheck_cli.graph import Array
from gradcheck_cli.jacobian.cost import ENTRY, SOON, forward_work, pattern_work
from gradcheck_cli.jacobian.directions import reach, reals, taken
from gradcheck_cli.native import nonzeros
from gradcheck_cli.op.batching import Operands, elementwise
from gradcheck_cli.op.sparsity import EvaluatedNode, SparsityRule, everything, same_place
from gradcheck_cli.verdict.rule import Nonzeros, cells_of

BITS = 64  # of a word


class Pattern(Struct, frozen=True):
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

    def blocks(self) -> Iterator[tuple[range, Array, Array]]:
        """Some rows at a time: the entries `(row, column)` of these rows in their order, counted from the first."""
        for number, word in enumerate(self.words):
            yield range(BITS * number, min(BITS * (number + 1), self.rows)), *_entries_of(word)

    def holds(self, rows: Array, columns: Array) -> Array:
        """Mask of single entries that belong to it."""
        shifts = (rows % BITS).astype(np.uint64)
        return np.asarray((self.words[rows // BITS, columns] >> shifts) & np.uint64(1), bool)


def _entries_of(word: Array) -> tuple[Array, Array]:
    """Row and column of the entries that one word for each column stands for, by row."""
    columns = np.flatnonzero(word)
    bits = np.unpackbits(word[columns].astype("<u8").view(np.uint8).reshape(-1, 8), axis=1, bitorder="little")
    rows, which = np.divmod(np.flatnonzero(bits.T.copy().view(bool)), max(len(columns), 1))
    return rows, columns[which]


class Entries(Struct, frozen=True, dict=True):
    """The same as places: `row` and `column` of each entry that may differ from zero, by row, then by column.

    `meeting` is the most rows that meet in one column: no fewer colors do.
    """

    row: Array
    column: Array
    rows: int
    columns: int
    meeting: int

    @cached_property
    def starts(self) -> Array:
        """The number of entries before each row, and before the end, `(rows + 1,)`."""
        return np.searchsorted(self.row, np.arange(self.rows + 1, dtype=self.row.dtype))

    @staticmethod
    def transposed(some: Sequence[Entries]) -> Entries:
        """Several with the same columns, one below the other, transposed."""
        ends = np.cumsum([each.starts[-1] for each in some])
        starts = np.concatenate([[0], *(e.starts[1:] + end - e.starts[-1] for e, end in zip(some, ends, strict=True))])
        column = np.concatenate([each.column for each in some])
        row, column = nonzeros.by_column(starts, column, some[0].columns)
        return Entries(column, row, some[0].columns, len(starts) - 1, int(np.max(np.diff(starts), initial=0)))


def pattern(program: Program, budget: Budget) -> Pattern:
    """The sparsity pattern of what a program leads from its one probed tensor to its one output."""
    x, y = program.tape.values[program.probes[0]], program.tape.values[program.outputs[0]]
    words = np.zeros((-(-reals(x) // BITS), reals(y)), np.uint64)
    for piece, part in _pieces(program, budget):
        words[piece.start : piece.stop] = part()
    return Pattern(words, reals(x))


def entries(program: Program, budget: Budget, most: float) -> Entries | None:
    """The entries of the pattern, whose words are not kept; None where more than `most` rows meet in a column."""
    x, y = program.tape.values[program.probes[0]], program.tape.values[program.outputs[0]]
    found: list[tuple[Array, Array]] = []
    meeting = np.zeros(reals(y), np.int64)
    for piece, part in _pieces(program, budget):
        for number, word in enumerate(part(), piece.start):
            meeting += np.bitwise_count(word)
            if int(np.max(meeting, initial=0)) > most:
                return None
            rows, columns = _entries_of(word)
            found.append(((rows + BITS * number).astype(np.int32), columns.astype(np.int32)))
    row, column = (np.concatenate(each) for each in zip(*found, strict=True)) if found else (np.zeros(0, np.int32),) * 2
    return Entries(row, column, reals(x), reals(y), int(np.max(meeting, initial=0)))


def _pieces(program: Program, budget: Budget) -> Iterable[tuple[range, Callable[[], Array]]]:
    """The words of the pattern, some at a time."""
    rows = np.arange(reals(program.tape.values[program.probes[0]]))
    return in_chunks(partial(_reached, program, rows), -(-len(rows) // BITS), program.bytes_per_probe(), budget)


def sample(program: Program, seed: int = 0) -> Pattern:
    """The pattern of 64 rows, or fewer, drawn at random."""
    count = reals(program.tape.values[program.probes[0]])
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
        return np.repeat(guarding[:, None], reals(y), axis=1)
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


_PIECE = 1 << 17  # entries that are added up at once, or more, where the columns are many: each time all get a sum
_LONGEST = 500_000_000  # words that are looked at for colors: some two seconds
_WORTH = 0.5  # of the rows: more colors save too little
_MEETING = 0.75  # of rows drawn at random, in one column: all of them will not do with few colors
_CHANCE = 0.125  # of these, by which one column of thousands may well have more than its share
_NO_PATTERN = (*FAILURES, MemoryError)


class Coloring(Struct, frozen=True, dict=True):
    """Colors of the rows of a Jacobian `(rows, columns)`, and its entries that may differ from zero: `row` and `column`
    of each, by row."""

    colors: Array
    count: int
    columns: int
    row: Array
    column: Array

    @cached_property
    def cells(self) -> Nonzeros | None:
        """The entries as cells of their rows; None where these are not few."""
        found = cells_of(self.row, self.column, (len(self.colors), self.columns))
        return found if found.sparse else None

    def entries(self, answers: Array) -> Array:
        """The entries out of what the probes of all colors give, `(..., count, columns)`."""
        return np.asarray(answers[..., self.colors[self.row], self.column])

    def whole(self, entries: Array, elsewhere: Array | float = 0.0) -> Array:
        """The Jacobian; what no probe gives is `elsewhere`."""
        jacobian = np.zeros((len(self.colors), self.columns))
        if np.ndim(elsewhere):
            jacobian += elsewhere
        jacobian[self.row, self.column] = entries
        return jacobian

    def along(self, entries: Array, direction: Array, *, sized: bool = False) -> Array:
        """The sum of the rows, or of their magnitudes, each by a number, `(columns,)`."""
        total, size = np.zeros(self.columns), max(_PIECE, 8 * self.columns)
        for some in (slice(start, start + size) for start in range(0, len(self.row), size)):
            part = np.abs(entries[some]) if sized else entries[some]
            total += np.bincount(self.column[some], part * direction[self.row[some]], self.columns)
        return total


class Structure:
    """The sparsity of what a program computes, found once it is asked for; None where there is none to be had.

    More than `most` colors would not be used.
    """

    def __init__(self, program: Program, budget: Budget, *, colors: bool = True, most: float = math.inf) -> None:
        self.program, self.budget, self.colors = program, budget, colors
        self.rows = reals(program.tape.values[program.probes[0]])
        self.most = min(most, _WORTH * self.rows)

    @cached_property
    def pattern(self) -> Pattern | None:
        """The entries that may differ from zero."""
        try:
            return pattern(self.program, self.budget)
        except _NO_PATTERN:
            return None

    @cached_property
    def known(self) -> Entries | None:
        """The entries of the pattern, where colors are wanted and may be few, and it is worth its work."""
        if not self.colors or self._idle or self._crowded:
            return None
        try:
            return entries(self.program, self.budget, self.most)
        except _NO_PATTERN:
            return None

    @cached_property
    def coloring(self) -> Coloring | None:
        """Colors of the rows, where they are wanted and few, and take less than probes of single rows, which may reach
        little, and give all entries."""
        found = None if self.known is None else colored(self.known)
        if found is None:
            return None
        spared = 0 if found.cells is None else len(found.colors) * found.columns - found.cells.columns.size
        together = found.count * forward_work(self.program)
        return found if together <= self.alone * reach(self.program).work + ENTRY * spared else None

    @property
    def alone(self) -> int:
        """Rows that are probed where each is on its own: those that are not known to reach nothing."""
        reached = taken(self.program)
        return self.rows if reached is None else int(np.count_nonzero(reached))

    @property
    def _idle(self) -> bool:
        """Most rows are known to reach nothing, and the pattern of all of them takes long."""
        return taken(self.program) is not None and pattern_work(self.program, self.rows) > SOON

    @cached_property
    def _crowded(self) -> bool:
        """Of some rows, drawn at random, so many meet in one column that of all rows too many will."""
        try:
            some = sample(self.program)
        except _NO_PATTERN:
            return True
        return some.rows == BITS and some.fullest() > BITS * min(_MEETING, 2 * self.most / self.rows + _CHANCE)


def colored(known: Entries) -> Coloring | None:
    """A color for each row, the first that no row which it meets has; None if that takes too many."""
    most = int(_WORTH * known.rows)
    if not known.columns or known.meeting > most:
        return None
    colors = nonzeros.first_free(known.starts, known.column, known.columns, most, _LONGEST)
    if colors is None:
        return None
    return Coloring(colors, int(np.max(colors, initial=-1)) + 1, known.columns, known.row, known.column)
