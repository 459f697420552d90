"""Rows of a numerical Jacobian by groups: the reals of one color move together, and each answer goes to its own row.

What a group crosses, some row of it crosses alone: no decision on the way to y depends on two rows of one color.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gradcheck_cli.engine.chunks import Budget, any_of
from gradcheck_cli.engine.program import Program
from gradcheck_cli.graph import Array
from gradcheck_cli.jacobian.coloring import Coloring
from gradcheck_cli.jacobian.directions import Directions
from gradcheck_cli.jacobian.jacobian import (
    ROUNDED_RUNS,
    Rows,
    by_complex_step,
    by_differences,
    by_ladder,
    default_steps,
    forward_noise,
    smooth_rungs,
)
from gradcheck_cli.verdict.differences import CENTRAL, CHEAP_RUNGS, Estimate, Stencil, richardson, rungs, two_steps

_APART = 1e100  # sizes of entries that one probe can hold
_SEEN = 1e-7  # of what the rows add up to: a missing entry of less is not seen
_TRIFLE = 2.0**-90  # of the largest entry: the square of a complex step
_ROUNDED = 64.0  # by how much more than some roundings a sum may be off


class Colored(Directions):
    """All reals of x, one a row, and their colors: whether they `served`, or turned out `miscolored`, which is a bug."""

    def __init__(self, here: Array, coloring: Coloring) -> None:
        super().__init__(here, range(len(coloring.colors)))
        self.coloring, self.served, self.miscolored = coloring, False, False


class _Groups(Directions):
    """One direction for each color: all of its reals, each by a length of its own."""

    def __init__(self, rows: Colored, lengths: Array) -> None:
        super().__init__(np.zeros(0), range(rows.coloring.count))
        self.here, self.colors, self.lengths = rows.here, rows.coloring.colors, lengths

    def entries(self, piece: range) -> None:
        """Several reals move in one direction."""

    def block(self, piece: range) -> Array:
        """Some of the directions, `(len(piece), x_size)`."""
        directions = np.zeros((len(piece), self.here.size))
        mine = np.flatnonzero((self.colors >= piece.start) & (self.colors < piece.stop))
        directions[self.colors[mine] - piece.start, mine] = self.lengths[mine]
        return directions


def grouped_complex_step(program: Program, rows: Colored, budget: Budget) -> Array | None:
    """As `by_complex_step`; None where groups cannot serve."""
    answers = by_complex_step(program, _Groups(rows, np.ones(rows.count)), budget)
    entries = rows.coloring.entries(answers)
    return rows.coloring.whole(entries) if _serves(program, rows, entries, np.zeros(1), budget) else None


def grouped_ladder(program: Program, rows: Colored, ks: Sequence[int], noise: Array, budget: Budget) -> Rows | None:
    """As `by_ladder`; of a group that crosses a branch every row counts as one that does."""
    coloring, steps = rows.coloring, np.stack([rows.representable(h) for h in rungs(ks)])
    taken = [_differences(program, rows, CENTRAL, h, budget) for h in steps]
    smooth = smooth_rungs([crossed for _, crossed in taken], coloring.count)[:, coloring.colors]
    own = coloring.row
    quotients = np.stack([coloring.entries(made) for made, _ in taken]) / steps[:, own]
    found = richardson(quotients[..., None], steps[:, own], noise[coloring.column, None], smooth[:, own])
    nothing = richardson(np.zeros((*steps.shape, 1)), steps, np.ones(1), np.ones(steps.shape, bool))
    if not _serves(program, rows, found.value[:, 0], found.error[:, 0], budget):
        return None
    return Rows(
        Estimate(
            coloring.whole(found.value[:, 0]),
            coloring.whole(found.error[:, 0], nothing.error * noise),
            coloring.whole(found.rounding[:, 0], nothing.rounding * noise),
        ),
        {step: changed[coloring.colors] for step, changed in taken[-1][1].items()},
    )


def grouped_stencil(
    program: Program, rows: Colored, stencil: Stencil, delta: float | None, noise: Array, budget: Budget
) -> Rows | None:
    """As `by_stencil`; of a group that crosses a branch every row counts as one that does."""
    coloring, steps = rows.coloring, default_steps(rows, stencil, delta)
    fine, crossed = _differences(program, rows, stencil, steps, budget)
    coarse, _ = _differences(program, rows, stencil, 2 * steps, budget)
    own, weight = coloring.row, sum(abs(w) for w in stencil.weights)
    rough, near = coloring.entries(coarse) / (2 * steps[own]), coloring.entries(fine) / steps[own]
    found = two_steps(rough, near, stencil.order, weight * noise[coloring.column] / steps[own])
    changed = {step: groups[coloring.colors] for step, groups in crossed.items()}
    lost = any_of(changed, rows.count)[own]
    if not _serves(program, rows, found.value, np.where(lost, np.inf, found.error), budget):
        return None
    rho = weight * noise / steps[:, None]
    parts = (coloring.whole(found.value), coloring.whole(found.error, rho), coloring.whole(found.rounding, rho))
    return Rows(Estimate(*parts), changed)


def crossed_by(program: Program, rows: Directions, steps: Array, budget: Budget) -> dict[int, Array]:
    """Rows that cross a branch at some step of the tape when they move there and back by `steps`: step -> `(rows,)`."""
    if not isinstance(rows, Colored):
        return by_differences(program, rows, CENTRAL, steps, budget)[1]
    groups = np.logical_or.reduce(
        [np.zeros(rows.coloring.count, bool), *_differences(program, rows, CENTRAL, steps, budget)[1].values()]
    )
    some = np.flatnonzero(groups[rows.coloring.colors])
    found: dict[int, Array] = {}
    if len(some):
        for step, changed in by_differences(program, rows.part(some), CENTRAL, steps[some], budget)[1].items():
            found[step] = np.zeros(rows.count, bool)
            found[step][some] = changed
    return found


def _serves(program: Program, rows: Colored, entries: Array, errors: Array, budget: Budget) -> bool:
    """The sizes of entries are such that none is lost beside others in one probe, and the colors hold."""
    size = np.abs(entries)
    size = size[np.isfinite(size) & (size > 0)]
    if size.size and float(size.max()) > _APART * float(size.min()):
        return False
    rows.served = _adds_up(program, rows, entries, errors, budget)
    rows.miscolored = not rows.served
    return rows.served


def _adds_up(program: Program, rows: Colored, entries: Array, errors: Array, budget: Budget) -> bool:
    """Along a random direction y changes by the sum of the rows: no entry lies outside of the pattern.

    `errors` bound those of the entries; where all that is seen is rounding, nothing speaks against them.
    """
    v, coloring = np.random.default_rng(0).normal(size=rows.count), rows.coloring
    along = Directions(program.tape.values[program.probes[0]], v[None])
    if program.analytic:
        direct, bound = by_complex_step(program, along, budget)[0], np.zeros(1)
    else:
        found = by_ladder(program, along, CHEAP_RUNGS, forward_noise(program), budget).estimate
        direct, bound = found.value[0], found.error[0]
    with np.errstate(invalid="ignore", over="ignore"):
        gap = np.abs(direct - coloring.along(entries, v))
        trifle = _TRIFLE * np.max(np.abs(entries), where=np.isfinite(entries), initial=0.0)
        wrong = gap > trifle + 8 * bound + coloring.along(_SEEN * np.abs(entries) + 8 * errors, np.abs(v))
    if wrong.any() and program.analytic:
        moved = [by_complex_step(program, along, budget, rounding)[0] for rounding in range(ROUNDED_RUNS)]
        wrong &= gap > _ROUNDED * np.fmax.reduce([np.abs(each - direct) for each in moved])
    return not wrong.any()


def _differences(
    program: Program, rows: Colored, stencil: Stencil, steps: Array, budget: Budget
) -> tuple[Array, dict[int, Array]]:
    """Differences of y, not yet divided by steps, and the branches crossed, for each color."""
    return by_differences(program, _Groups(rows, steps), stencil, np.ones(rows.coloring.count), budget)
