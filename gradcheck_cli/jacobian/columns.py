"""Theoretical Jacobians by few backward passes: columns that meet in no row share one, as rows share a probe; or by rows.

A backward pass is linear in the cotangent, so rules applied to it again give a row of the Jacobian for each entry of x.
Rules are what is being checked: a wrong one may well reach entries that are zero by the structure of the model, or be
undone where it is applied twice.  So what was made in a shorter way counts only if random sums of all columns, each by
an ordinary pass, are the same sums of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from typing import TypeAlias

import numpy as np
from msgspec import Struct

from gradcheck_cli.engine.chunks import Budget
from gradcheck_cli.engine.program import FAILURES
from gradcheck_cli.graph import Array
from gradcheck_cli.graph.memory import TooLarge, spell
from gradcheck_cli.jacobian.coloring import Coloring, Entries, Structure, colored
from gradcheck_cli.jacobian.cost import COLORED_STEP, COLORED_WORK, HELD, forward_work
from gradcheck_cli.jacobian.directions import reals
from gradcheck_cli.jacobian.jacobian import ROUNDED_RUNS, Backward
from gradcheck_cli.verdict.rule import Ground, Nonzeros, blocks, ground_of

_SUMS = 2  # random sums of all columns that what was made in a shorter way must agree with
_SEEN = 2.0**-40  # of what such a sum adds up, row by row: a missing part of less is not seen
_SHARE = 8  # of the memory: what passes of all colors may take at once
_TWICE = 2  # backward passes that one of a backward pass is worth

Shortcut: TypeAlias = (
    "Callable[[int | None], list[Jacobian] | None]"  # Jacobians, moved by a `rounding`; None where it does not apply
)


class Jacobian(Struct, frozen=True):
    """A Jacobian `(x_size, y_size)`, or some cells of it that hold all that is other than zero."""

    values: Array
    cells: Nonzeros | None = None

    def whole(self) -> Array:
        """The Jacobian."""
        return self.values if self.cells is None else self.cells.whole(self.values)

    def like(self, other: Jacobian) -> Jacobian:
        """The same in the form of another one."""
        if (self.cells is None) is (other.cells is None):
            return self
        return Jacobian(self.whole()) if other.cells is None else Jacobian(other.cells.kept(self.values), other.cells)

    def compressed(self, cells: Nonzeros | None) -> Jacobian:
        """These cells of it, if it is zero elsewhere."""
        if cells is None or self.cells is not None:
            return self
        kept = cells.kept(self.values)
        return Jacobian(kept, cells) if np.count_nonzero(kept) == np.count_nonzero(self.values) else self

    def along(self, weights: Array, rows: slice, sized: bool = False) -> Array:
        """Weighted sums of some rows, or of their magnitudes, `(len(weights), rows)`."""
        part = np.abs(self.values[rows]) if sized else self.values[rows]
        if self.cells is None:
            return np.asarray(weights @ part.T)
        return np.stack([np.sum(part * weight[self.cells.columns[rows]], axis=1) for weight in weights])


class Theory(Struct, frozen=True):
    """The theoretical side of a comparison: `values`, and how far some roundings move them, computed when asked for.

    `ground` is that of the whole Jacobian where `values` are some of its rows, `backward` the pass that they come from.
    With `cells` both are compressed.
    """

    values: Array
    spread: Callable[[], Array]
    ground: Ground | None = None
    backward: Backward | None = None
    cells: Nonzeros | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the derivatives."""
        rows, columns = self.values.shape if self.cells is None else self.cells.shape
        return rows, columns

    def whole(self, budget: Budget) -> Theory:
        """The same with every entry; TooLarge where these do not fit the memory."""
        if (cells := self.cells) is None:
            return self
        if (size := HELD * math.prod(cells.shape)) > budget.memory:
            raise TooLarge(f"{math.prod(cells.shape):,} entries take {spell(size)}", size)
        return Theory(cells.whole(self.values), lambda: cells.whole(self.spread()), self.ground, self.backward)

    def column(self, column: int) -> Array:
        """The derivatives of one entry of y, `(rows,)`."""
        if self.cells is None:
            return self.values[:, column]
        return np.sum(np.where(self.cells.columns == column, self.values, 0.0), axis=1)


class Columns:
    """The Jacobians `(x_size, y_size)` of one y by several xs, and how far rounding may carry their entries.

    `structures` are those of y by each x, in the order of `backward`; `shortcut` is what made the Jacobians, if not a pass
    for each column.  A Jacobian by an x that has `cells` is compressed, unless a rule gave something elsewhere.
    """

    def __init__(self, backward: Backward, structures: Sequence[Structure], budget: Budget) -> None:
        self.backward, self.structures, self.budget = backward, structures, budget
        self.shortcut: Shortcut | None = None

    @property
    def values(self) -> list[Array]:
        """The Jacobians themselves."""
        return [block.values for block in self._made]

    @property
    def cells(self) -> list[Nonzeros | None]:
        """For each x the cells that `values` are of; None where these are whole."""
        return [block.cells for block in self._made]

    @cached_property
    def spreads(self) -> list[Array]:
        """Distances that the entries of `values` move if every result on the way is moved by some roundings."""
        moved = [] if self.shortcut is None else [self.shortcut(seed) for seed in range(ROUNDED_RUNS)]
        found = [np.zeros(values.shape) for values in self.values]
        for each in moved:
            if each is None:
                return self._by_columns()
            for spread, block, other in zip(found, self._made, each, strict=True):
                np.fmax(spread, np.abs(other.like(block).values - block.values), out=spread)
        return found if moved else self._by_columns()

    def _by_columns(self) -> list[Array]:
        """The same by a pass for each column."""
        self._require_room()
        found = self.backward.spreads([block.whole() for block in self._made], self.budget)
        return [Jacobian(spread).like(block).values for spread, block in zip(found, self._made, strict=True)]

    @cached_property
    def _made(self) -> list[Jacobian]:
        """The Jacobians, compressed where that saves much and rules give nothing elsewhere."""
        for shortcut in self._shorter():
            made = shortcut(None)
            if made is not None and self._adds_up(made):
                self.shortcut = shortcut
                return self._compressed(made)
        self._require_room()
        return self._compressed([Jacobian(each) for each in self.backward.jacobians(self.budget)])

    def _compressed(self, made: Sequence[Jacobian]) -> list[Jacobian]:
        return [block.compressed(cells) for block, cells in zip(made, self._wanted, strict=True)]

    @cached_property
    def _wanted(self) -> list[Nonzeros | None]:
        """For each x the cells of its rows, where these share probes and are few."""
        colorings = (structure.coloring for structure in self.structures)
        return [None if coloring is None else coloring.cells for coloring in colorings]

    def _require_room(self) -> None:
        """Raises TooLarge where Jacobians are to be whole that were planned to be compressed, and are too large."""
        size = HELD * sum(math.prod(cells.shape) for cells in self._wanted if cells is not None)
        if size > self.budget.memory:
            raise TooLarge(f"all entries take {spell(size)}", size)

    def _shorter(self) -> Iterator[Shortcut]:
        """Shortcuts that take less work than a pass for each column, the shortest first."""
        program, columns = self.backward.program, reals(self.backward.seed.value)
        least = (COLORED_WORK + COLORED_STEP * len(program.steps)) / forward_work(program)  # passes that are worth it
        if columns < least or not all(structure.colors for structure in self.structures):
            return
        coloring, rows = self._coloring(), sum(reals(self.backward.tape.values[x]) for x in self.backward.xs)
        passes = columns if coloring is None else coloring.count
        if passes - _TWICE * rows > least:
            yield self._by_rows
        held = 8 * passes * (columns + rows)  # bytes of what goes in and what comes out
        if coloring is not None and held <= self.budget.memory // _SHARE:
            yield partial(self._together, coloring)

    def _coloring(self) -> Coloring | None:
        """Colors of the columns, the same for every x; None where they are many, or unknown."""
        known = [structure.known for structure in self.structures]
        some = [entries for entries in known if entries is not None]
        return colored(Entries.transposed(some)) if some and len(some) == len(known) else None

    def _together(self, coloring: Coloring, rounding: int | None) -> list[Jacobian] | None:
        """By one pass for each color; no way where what is not finite may have spread beyond its entries."""
        weights = np.zeros((coloring.count, len(coloring.colors)))
        weights[coloring.colors, np.arange(len(coloring.colors))] = 1
        answers = self.backward.along(weights, self.budget, rounding)
        if not all(np.isfinite(each).all() for each in answers):
            return None
        found, start = [], 0
        for each, cells in zip(answers, self._wanted, strict=True):
            if cells is not None:
                values = np.empty(cells.columns.shape)
                for rows in blocks(*cells.columns.shape):
                    values[rows] = np.take_along_axis(each[:, rows].T, coloring.colors[cells.columns[rows]], axis=1)
                found.append(Jacobian(cells.cleared(values), cells))
            else:
                mine = (coloring.column >= start) & (coloring.column < start + each.shape[1])
                rows, columns = coloring.column[mine] - start, coloring.row[mine]
                jacobian = np.zeros((each.shape[1], len(coloring.colors)))
                jacobian[rows, columns] = each[coloring.colors[columns], rows]
                found.append(Jacobian(jacobian))
            start += each.shape[1]
        return found

    def _by_rows(self, rounding: int | None) -> list[Jacobian] | None:
        """By one pass for each entry of x, through the backward pass's own; no way where that has no rules."""
        self._require_room()
        backward, found = self.backward, []
        try:
            for ct, x in zip(backward.cts, backward.xs, strict=True):
                if ct is None:
                    found.append(Jacobian(np.zeros((reals(backward.tape.values[x]), reals(backward.seed.value)))))
                    continue
                if "c" in (ct.dtype.kind, backward.seed.dtype.kind):  # which is transposed, but not conjugated
                    return None
                with backward.tape.aside():
                    again = Backward(backward.tape, ct.name, [backward.seed.name])
                    found.append(Jacobian(np.ascontiguousarray(again.jacobians(self.budget, rounding)[0].T)))
        except FAILURES:
            return None
        return found

    def _adds_up(self, made: Sequence[Jacobian]) -> bool:
        """Random sums of columns, all of one size, are what backward passes give for them: no entry is another."""
        rng, columns = np.random.default_rng(0), reals(self.backward.seed.value)
        grounds = [ground_of(block.values, block.values, cells=block.cells) for block in made]
        largest = np.max([ground.largest for ground in grounds], axis=0, initial=0.0)
        signs = rng.choice([-1.0, 1.0], (_SUMS, columns)) * rng.uniform(0.5, 1.5, (_SUMS, columns))
        weights = signs / np.where(largest > 0, largest, 1.0)
        for block, direct in zip(made, self.backward.along(weights, self.budget), strict=True):
            for rows in blocks(*block.values.shape):
                gap = np.abs(direct[:, rows] - block.along(weights, rows))
                if not (gap <= _SEEN * block.along(np.abs(weights), rows, sized=True)).all():
                    return False
        return True
