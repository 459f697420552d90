"""Rows of a Jacobian in colors: those of one color meet in no column, so that a single probe serves all of them.

Every column of what such a probe gives belongs to one row at most, which the sparsity pattern names.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from gradcheck_cli.engine.chunks import Budget
from gradcheck_cli.engine.program import Program
from gradcheck_cli.errors import GradcheckError
from gradcheck_cli.graph import Array
from gradcheck_cli.jacobian.cost import SOON, forward_work, pattern_work
from gradcheck_cli.jacobian.directions import reals
from gradcheck_cli.jacobian.pattern import BITS, Pattern, pattern, sample
from gradcheck_cli.jacobian.spread import probe_work, taken
from gradcheck_cli.op.batching import Ragged

_LOOK, _LONGEST = 128, 4e9  # words that one comparison costs besides its own; that all may take: some two seconds
_WORTH = 0.5  # of the rows: more colors save too little
_MEETING = 0.75  # of rows drawn at random, in one column: all of them will not do with few colors
_NO_PATTERN = (Ragged, GradcheckError, ValueError, LookupError, TypeError, ArithmeticError, RuntimeError, MemoryError)


@dataclass(frozen=True, slots=True)
class Coloring:
    """Colors of the rows of a Jacobian `(rows, columns)`, and its entries that may differ from zero: `row` and `column`
    of each."""

    colors: Array
    count: int
    columns: int
    row: Array
    column: Array

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

    def along(self, entries: Array, direction: Array) -> Array:
        """The sum of the rows, each by a number, `(columns,)`."""
        return np.bincount(self.column, entries * direction[self.row], self.columns)


class Structure:
    """The sparsity of what a program computes, found once it is asked for; None where there is none to be had."""

    def __init__(self, program: Program, budget: Budget, *, colors: bool = True) -> None:
        self.program, self.budget, self.colors = program, budget, colors

    @cached_property
    def pattern(self) -> Pattern | None:
        """The entries that may differ from zero."""
        try:
            return pattern(self.program, self.budget)
        except _NO_PATTERN:
            return None

    @property
    def known(self) -> Pattern | None:
        """The pattern, where colors are wanted and may be few, and it is worth its work."""
        return None if not self.colors or self._idle or self._crowded else self.pattern

    @cached_property
    def coloring(self) -> Coloring | None:
        """Colors of the rows, where they are wanted and few, and take less than probes of single rows, which may reach
        little."""
        found = None if self.known is None else colored(self.known)
        if found is None or found.count * forward_work(self.program) <= self.alone * probe_work(self.program):
            return found
        return None

    @property
    def alone(self) -> int:
        """Rows that are probed where each is on its own: those that are not known to reach nothing."""
        reached = taken(self.program)
        x = self.program.tape.values[self.program.probes[0]]
        return reals(x) if reached is None else int(np.count_nonzero(reached))

    @property
    def _idle(self) -> bool:
        """Most rows are known to reach nothing, and the pattern of all of them takes long."""
        x = self.program.tape.values[self.program.probes[0]]
        return taken(self.program) is not None and pattern_work(self.program, reals(x)) > SOON

    @cached_property
    def _crowded(self) -> bool:
        """Most of some rows, drawn at random, meet in one column."""
        try:
            some = sample(self.program)
        except _NO_PATTERN:
            return True
        return some.rows == BITS and some.fullest() > _MEETING * BITS


def colored(known: Pattern) -> Coloring | None:
    """A color for each row, the first that no row which it meets has; None if that takes too many."""
    most = int(_WORTH * known.rows)
    if not known.columns or known.fullest() > most:
        return None
    taken: list[int] = []  # columns that the rows of each color have so far, as bits
    colors: list[int] = []
    looked = 0  # words that were compared, or as good as
    free: dict[int, int] = {}  # columns of a row -> the first color that may be free for another row of the same ones
    for block, rows, columns in known.blocks():
        bits = np.zeros((len(block), known.columns), bool)
        bits[rows, columns] = True
        for packed in np.packbits(bits, axis=1, bitorder="little"):
            mine = int.from_bytes(packed.tobytes(), "little")
            start = free.get(mine, 0)
            color = _free(taken, mine, start)
            looked += (color - start + 1) * (_LOOK + known.columns // BITS)
            if color == len(taken):
                taken.append(0)
                if len(taken) > most or looked > _LONGEST:
                    return None
            taken[color] |= mine
            free[mine] = color + bool(mine)
            colors.append(color)
    return _with_cells(known, np.asarray(colors), len(taken))


def _free(taken: list[int], mine: int, first: int) -> int:
    """The first color, from a known one on, that has none of these columns."""
    for color in range(first, len(taken)):
        if not taken[color] & mine:
            return color
    return len(taken)


def _with_cells(known: Pattern, colors: Array, count: int) -> Coloring:
    owners, columns = [], []
    for block, rows, at in known.blocks():
        owners.append(rows + block.start)
        columns.append(at)
    return Coloring(colors, count, known.columns, np.concatenate(owners), np.concatenate(columns))
