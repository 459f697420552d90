"""Theoretical Jacobians by few backward passes: columns that meet in no row share one, as rows share a probe; or by rows.

A backward pass is linear in the cotangent, so rules applied to it again give a row of the Jacobian for each entry of x.
Rules are what is being checked: a wrong one may well reach entries that are zero by the structure of the model, or be
undone where it is applied twice.  So what was made in a shorter way counts only if random sums of all columns, each by
an ordinary pass, are the same sums of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from typing import TypeAlias

import numpy as np

from gradcheck_cli.engine.chunks import Budget
from gradcheck_cli.engine.program import FAILURES
from gradcheck_cli.graph import Array
from gradcheck_cli.jacobian.coloring import Coloring, Pattern, Structure, colored
from gradcheck_cli.jacobian.cost import COLORED_STEP, COLORED_WORK, forward_work
from gradcheck_cli.jacobian.directions import reals
from gradcheck_cli.jacobian.jacobian import ROUNDED_RUNS, Backward
from gradcheck_cli.verdict.rule import blocks, largest_by_column

_SUMS = 2  # random sums of all columns that what was made in a shorter way must agree with
_SEEN = 2.0**-40  # of what such a sum adds up, row by row: a missing part of less is not seen
_SHARE = 8  # of the memory: what passes of all colors may take at once
_TWICE = 2  # backward passes that one of a backward pass is worth

Shortcut: TypeAlias = (
    "Callable[[int | None], list[Array] | None]"  # Jacobians, moved by a `rounding`; None where it does not apply
)


class Columns:
    """The Jacobians `(x_size, y_size)` of one y by several xs, and how far rounding may carry their entries.

    `structures` are those of y by each x, in the order of `backward`; `shortcut` is what made the Jacobians, if not a pass
    for each column.
    """

    def __init__(self, backward: Backward, structures: Sequence[Structure], budget: Budget) -> None:
        self.backward, self.structures, self.budget = backward, structures, budget
        self.shortcut: Shortcut | None = None

    @cached_property
    def values(self) -> list[Array]:
        """The Jacobians themselves."""
        for shortcut in self._shorter():
            made = shortcut(None)
            if made is not None and self._adds_up(made):
                self.shortcut = shortcut
                return made
        return self.backward.jacobians(self.budget)

    @cached_property
    def spreads(self) -> list[Array]:
        """Distances that the entries of `values` move if every result on the way is moved by some roundings."""
        values = self.values
        moved = [] if self.shortcut is None else [self.shortcut(seed) for seed in range(ROUNDED_RUNS)]
        found = [np.zeros(jacobian.shape) for jacobian in values]
        for each in moved:
            if each is None:
                return self.backward.spreads(values, self.budget)
            for spread, jacobian, other in zip(found, values, each, strict=True):
                np.fmax(spread, np.abs(other - jacobian), out=spread)
        return found if moved else self.backward.spreads(values, self.budget)

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
        patterns = [structure.known for structure in self.structures]
        whole = [pattern.transposed() for pattern in patterns if pattern is not None]
        if len(whole) < len(self.structures) or not whole:
            return None
        return colored(Pattern(np.concatenate([each.words for each in whole], axis=1), whole[0].rows))

    def _together(self, coloring: Coloring, rounding: int | None) -> list[Array] | None:
        """By one pass for each color; no way where what is not finite may have spread beyond its entries."""
        weights = np.zeros((coloring.count, len(coloring.colors)))
        weights[coloring.colors, np.arange(len(coloring.colors))] = 1
        answers = self.backward.along(weights, self.budget, rounding)
        if not all(np.isfinite(each).all() for each in answers):
            return None
        found, start = [], 0
        for each in answers:
            mine = (coloring.column >= start) & (coloring.column < start + each.shape[1])
            rows, columns = coloring.column[mine] - start, coloring.row[mine]
            jacobian = np.zeros((each.shape[1], len(coloring.colors)))
            jacobian[rows, columns] = each[coloring.colors[columns], rows]
            found.append(jacobian)
            start += each.shape[1]
        return found

    def _by_rows(self, rounding: int | None) -> list[Array] | None:
        """By one pass for each entry of x, through the backward pass's own; no way where that has no rules."""
        backward, found = self.backward, []
        try:
            for ct, x in zip(backward.cts, backward.xs, strict=True):
                if ct is None:
                    found.append(np.zeros((reals(backward.tape.values[x]), reals(backward.seed.value))))
                    continue
                if "c" in (ct.dtype.kind, backward.seed.dtype.kind):  # which is transposed, but not conjugated
                    return None
                with backward.tape.aside():
                    again = Backward(backward.tape, ct.name, [backward.seed.name])
                    found.append(np.ascontiguousarray(again.jacobians(self.budget, rounding)[0].T))
        except FAILURES:
            return None
        return found

    def _adds_up(self, jacobians: Sequence[Array]) -> bool:
        """Random sums of columns, all of one size, are what backward passes give for them: no entry is another."""
        rng, columns = np.random.default_rng(0), reals(self.backward.seed.value)
        largest = np.max([largest_by_column(each, each) for each in jacobians], axis=0, initial=0.0)
        signs = rng.choice([-1.0, 1.0], (_SUMS, columns)) * rng.uniform(0.5, 1.5, (_SUMS, columns))
        weights = signs / np.where(largest > 0, largest, 1.0)
        for each, direct in zip(jacobians, self.backward.along(weights, self.budget), strict=True):
            for rows in blocks(*each.shape):
                part = each[rows]
                gap = np.abs(direct[:, rows] - weights @ part.T)
                if not (gap <= _SEEN * (np.abs(weights) @ np.abs(part).T)).all():
                    return False
        return True
