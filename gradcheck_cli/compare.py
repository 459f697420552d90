"""One pair (x, y) at one point: both Jacobians, by whatever method says most, and a status for each entry.

The complex step decides wherever forward kernels let it through.  What it does not pass goes to the ladder of real
differences, whose error bound must confirm a failure; where a perturbation crosses a branch nothing is confirmed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gradcheck_cli.graph import Array, describe
from gradcheck_cli.jacobian import (
    EPS,
    Backward,
    Directions,
    Rows,
    by_complex_step,
    by_differences,
    by_ladder,
    by_stencil,
    forward_noise,
    own_rounding,
    reals,
)  # fmt: skip
from gradcheck_cli.program import Program
from gradcheck_cli.settings import Method
from gradcheck_cli.stack import Budget
from gradcheck_cli.stencil import (
    ALL_RUNGS,
    CENTRAL,
    CHEAP_RUNGS,
    FORWARD,
    STENCILS,
    Estimate,
    Stencil,
    scales,
)
from gradcheck_cli.verdict import (
    Comparison,
    Status,
    Tolerance,
    allowance,
    judge,
    largest_by_column,
    magnitude,
    screened,
    too_small,
)

PROJECTIONS = 8  # random directions of each side of a directional check
_TIE, _SIDE = 2.0**-36, 2.0**-20  # perturbations, in units of the scale of x: to find ties, to measure slopes
BACKWARD = Stencil((0.0, -1.0), (1.0, -1.0), 1)


@dataclass(frozen=True, slots=True)
class Job:
    """How to compare: method, its step, tolerance and budget."""

    method: Method
    delta: float | None
    tolerance: Tolerance
    budget: Budget


@dataclass(frozen=True, slots=True)
class Found:
    """A comparison, the method that made its numerical side, and what is worth saying about it."""

    comparison: Comparison
    method: str
    notes: tuple[str, ...] = ()


def compare_full(program: Program, theoretical: Array, job: Job) -> Found:
    """Every entry of the Jacobian that `program` leads from x to y."""
    x = program.tape.values[program.probes[0]]
    everything = Directions(x, range(reals(x)))
    return compare_along(program, theoretical, everything, job)


def compare_directional(program: Program, backward: Backward, position: int, job: Job, seed: int) -> Found:
    """Random projections of the Jacobian on both sides, `(PROJECTIONS, PROJECTIONS)` numbers for all its entries."""
    x, y = (program.tape.values[n] for n in (program.probes[0], program.outputs[0]))
    rng = np.random.default_rng([seed, 1])
    v, u = rng.normal(size=(PROJECTIONS, reals(x))), rng.normal(size=(PROJECTIONS, reals(y)))
    projected = v @ backward.along(u, job.budget)[position].T
    return compare_along(program, projected, Directions(x, v), job, weights=u)


def compare_along(
    program: Program, theoretical: Array, directions: Directions, job: Job, weights: Array | None = None
) -> Found:
    """Derivatives along directions of x, `(rows, y_size)` or `(rows, len(weights))`, against the theoretical ones."""
    numeric = Numeric(program, directions, job, weights)
    if job.method in ("central", "forward"):
        rows = numeric.stencil(STENCILS[job.method])
        return Found(numeric.judged(theoretical, rows), job.method)
    obstacle = program.obstacle
    if job.method == "richardson" or obstacle is not None:
        note = () if obstacle is None or job.method == "richardson" else (_no_complex_step(program),)
        return Found(numeric.laddered(theoretical), "richardson", note)
    comparison = numeric.complex_step(theoretical)
    return Found(comparison, "complex-step", kink_notes(program, comparison))


class Numeric:
    """The numerical side of a comparison: derivatives of y along directions of x, for all of them or some rows."""

    def __init__(self, program: Program, directions: Directions, job: Job, weights: Array | None) -> None:
        self.program, self.directions, self.job, self.weights = program, directions, job, weights
        self._noise: Array | None = None

    @property
    def noise(self) -> Array:
        """Rounding error of one value of y."""
        if self._noise is None:
            self._noise = forward_noise(self.program)
        return self._noise

    def projected(self, values: Array) -> Array:
        """Derivatives of y as the comparison wants them: weighted sums in a directional check."""
        return values if self.weights is None else values @ self.weights.T

    def floor(self, rows: Array, largest: Array) -> Array:
        """Below this an entry cannot be told from zero, `(rows, y_size)`.

        The limit is one rounding of y, or that of numbers as large as the largest entry of all.
        """
        size = scales(self.directions.here)
        typical = np.full(len(rows), float(np.sqrt(np.mean(size**2))) if size.size else 1.0)
        along = size[self.directions.rows[rows]] if self.weights is None else typical
        own = own_rounding(self.program)
        noise = own if self.weights is None else np.sqrt(self.weights**2 @ own**2)
        return np.maximum(16 * noise[None, :] / along[:, None], 2 * EPS * largest.max(initial=0.0))

    def part(self, rows: Array) -> Directions:
        """Some of the directions."""
        here, given = self.directions, self.directions.given
        return Directions(here.here, here.rows[rows] if given is None else given[rows])

    def stencil(self, stencil: Stencil) -> Rows:
        """All rows by one difference formula."""
        return by_stencil(self.program, self.directions, stencil, self.job.delta, self.noise, self.job.budget)

    def judged(self, theoretical: Array, rows: Rows) -> Comparison:
        """The comparison with rows whose error bound is known; those that cross a branch are kinked."""
        estimate = self._projected(rows.estimate)
        largest = largest_by_column(theoretical, estimate.value)
        every = np.arange(self.directions.count)
        status = judge(theoretical, estimate, largest, self.floor(every, largest), self.job.tolerance)
        crossed = np.logical_or.reduce([np.zeros(len(every), bool), *rows.crossed.values()])
        status = np.where(crossed[:, None] & (status != Status.PASS), Status.KINK, status).astype(np.int8)
        return Comparison(theoretical, estimate.value, estimate.error, status, _kinks(rows.crossed, status))

    def laddered(self, theoretical: Array) -> Comparison:
        """The comparison by Richardson's ladder: a few rungs for all rows, all of them for rows that did not pass."""
        rows = self._ladder(np.arange(self.directions.count), CHEAP_RUNGS)
        first = self.judged(theoretical, rows)
        open_ = np.flatnonzero((first.status != Status.PASS).any(axis=1))
        return self.judged(theoretical, self._refined(rows, open_)) if len(open_) else first

    def _refined(self, rows: Rows, open_: Array) -> Rows:
        """Rows with those at `open_` replaced by what the whole ladder gives, where that is better."""
        again = self._ladder(open_, ALL_RUNGS)
        value, error = rows.estimate.value.copy(), rows.estimate.error.copy()
        better = again.estimate.error < error[open_]
        value[open_] = np.where(better, again.estimate.value, value[open_])
        error[open_] = np.where(better, again.estimate.error, error[open_])
        crossed = {step: _scatter(changed, open_, len(value)) for step, changed in again.crossed.items()}
        return Rows(Estimate(value, error), crossed)

    def complex_step(self, theoretical: Array) -> Comparison:
        """The comparison by the complex step; failures confirmed by the ladder, ties by slopes from both sides."""
        value = self.projected(by_complex_step(self.program, self.directions, self.job.budget))
        status = screened(theoretical, value, 4 * EPS, self.job.tolerance)
        largest = largest_by_column(theoretical, value)
        noise = np.broadcast_to(4 * EPS * largest, value.shape)
        open_ = np.flatnonzero((status != Status.PASS).any(axis=1))
        if len(open_):
            noise = noise.copy()
            status[open_], noise[open_] = self._confirmed(theoretical, value, largest, status, open_)
        kinks = self._ties(theoretical, status)
        return Comparison(theoretical, value, noise, status, kinks)

    def _confirmed(
        self, theoretical: Array, value: Array, largest: Array, status: Array, open_: Array
    ) -> tuple[Array, Array]:
        """Statuses and error bounds of rows that the complex step did not pass.

        An entry fails if the ladder says so too, or cannot say and the gap is far beyond any rounding.
        """
        rows = self._ladder(open_, ALL_RUNGS)
        estimate = self._projected(rows.estimate)
        t, d = theoretical[open_], value[open_]
        floor = self.floor(open_, largest)
        second = judge(t, estimate, largest, floor, self.job.tolerance)
        far = np.abs(t - d) > allowance(magnitude(t, d), largest, self.job.tolerance) + 1e-3 * largest
        tiny = magnitude(t, d) <= floor
        unresolved = np.isin(second, (Status.NOISE, Status.NONFINITE))
        agreed = np.where(unresolved & far & ~tiny, Status.FAIL, second)
        agreed = np.where(second == Status.PASS, Status.NOISE, agreed)  # the two numerical sides disagree
        agreed = np.where(tiny & (second != Status.FAIL), Status.PASS, agreed)
        agreed = np.where((agreed == Status.FAIL) & too_small(t, magnitude(t, d)), Status.UNDERFLOW, agreed)
        crossed = np.logical_or.reduce([np.zeros(len(open_), bool), *rows.crossed.values()])
        agreed = np.where(crossed[:, None], Status.KINK, agreed)
        result = np.where(status[open_] == Status.PASS, Status.PASS, agreed).astype(np.int8)
        error = np.where(np.isfinite(estimate.error), estimate.error, np.abs(d - estimate.value))
        return result, np.where(status[open_] == Status.PASS, 4 * EPS * np.abs(d), error)

    def _ties(self, theoretical: Array, status: Array) -> dict[int, Array]:
        """Rows where x itself lies at a tie: entries that are not the slope from both sides become kinks, in place."""
        if not self._near_a_branch():
            return _kinks({}, status)
        steps = self.directions.representable(_TIE)
        _, crossed = by_differences(self.program, self.directions, CENTRAL, steps, self.job.budget)
        rows = np.flatnonzero(np.logical_or.reduce([np.zeros(len(steps), bool), *crossed.values()]))
        if len(rows):
            up, down = (self._side(rows, stencil, _SIDE) for stencil in (FORWARD, BACKWARD))
            nearer = (self._side(rows, stencil, _SIDE / 16) for stencil in (FORWARD, BACKWARD))
            bend = np.max([np.abs(far - near) for far, near in zip((up, down), nearer, strict=True)], axis=0)
            size = np.maximum(magnitude(up, down), self.floor(rows, np.zeros(1)) / _SIDE)
            ground = 1e-3 * size + 2 * bend
            jump = np.abs(up - down) > ground
            other = np.abs(theoretical[rows] - up) > ground  # smooth here, but the rule gives something else
            status[rows] = np.where(jump | other, Status.KINK, status[rows])
        return _kinks(crossed, status)

    def _near_a_branch(self) -> bool:
        """Some decision of the model changes when all of x moves by next to nothing."""
        x = self.program.tape.values[self.program.probes[0]]
        signs = np.random.default_rng(0).choice([-1.0, 1.0], (4, self.directions.here.size))
        moved = Directions(x, signs)
        _, crossed = by_differences(self.program, moved, FORWARD, moved.representable(_TIE), self.job.budget)
        return bool(crossed)

    def _side(self, rows: Array, stencil: Stencil, h: float) -> Array:
        part = self.part(rows)
        return self.projected(by_differences(self.program, part, stencil, part.representable(h), self.job.budget)[0])

    def _ladder(self, rows: Array, ks: Sequence[int]) -> Rows:
        return by_ladder(self.program, self.part(rows), ks, self.noise, self.job.budget)

    def _projected(self, estimate: Estimate) -> Estimate:
        if self.weights is None:
            return estimate
        error = np.where(np.isfinite(estimate.error), estimate.error, np.inf) @ np.abs(self.weights).T
        return Estimate(self.projected(estimate.value), error)


def kink_notes(program: Program, comparison: Comparison) -> tuple[str, ...]:
    """A sentence for each node at whose tie some rows lie."""
    notes = []
    for step, rows in comparison.kinks.items():
        if step >= 0 and rows.any():
            made = program.tape.steps[step]
            where = describe(made.origin, made.node)
            notes.append(f"{int(rows.sum())} rows at a tie of {where}: the slopes from both sides differ")
    return tuple(dict.fromkeys(notes))


def _no_complex_step(program: Program) -> str:
    step = program.obstacle
    assert step is not None
    return f"differences instead of the complex step, which does not go through {describe(step.origin, step.node)}"


def _kinks(crossed: dict[int, Array], status: Array) -> dict[int, Array]:
    """Of the rows that crossed a branch those with a kinked entry, by step."""
    kinked = (status == Status.KINK).any(axis=1)
    return {step: rows & kinked for step, rows in crossed.items() if (rows & kinked).any()}


def _scatter(rows: Array, where: Array, count: int) -> Array:
    full = np.zeros(count, bool)
    full[where] = rows
    return full
