"""One pair (x, y) at one point: both Jacobians, by whatever method says most, and a status for each entry.

The complex step decides wherever forward kernels let it through.  What it does not pass goes to the ladder of real
differences, whose error bound must confirm a failure; where a perturbation crosses a branch nothing is confirmed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gradcheck_cli.graph import Array
from gradcheck_cli.jacobian import (
    EPS,
    JITTERED,
    Backward,
    Directions,
    Rows,
    by_complex_step,
    by_ladder,
    by_stencil,
    flat,
    forward_noise,
    own_rounding,
    reals,
)  # fmt: skip
from gradcheck_cli.kinks import among, kink_notes, with_ties
from gradcheck_cli.program import Program
from gradcheck_cli.settings import Method
from gradcheck_cli.stack import Budget
from gradcheck_cli.stencil import (
    ALL_RUNGS,
    CHEAP_RUNGS,
    STENCILS,
    Estimate,
    Stencil,
    rms,
    scales,
)
from gradcheck_cli.step import Step
from gradcheck_cli.verdict import (
    HUGE,
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
_SAFETY = 4.0  # of what 16 roundings do in a few runs


@dataclass(frozen=True, slots=True)
class Job:
    """How to compare: method, its step, tolerance and budget."""

    method: Method
    delta: float | None
    tolerance: Tolerance
    budget: Budget


@dataclass(frozen=True, slots=True)
class Theory:
    """The theoretical side of a comparison: `values`, and how far some roundings move them, computed when asked for."""

    values: Array
    spread: Callable[[], Array]


@dataclass(frozen=True, slots=True)
class Found:
    """A comparison, the method that made its numerical side, and what is worth saying about it."""

    comparison: Comparison
    method: str
    notes: tuple[str, ...] = ()


def compare_full(program: Program, theory: Theory, job: Job) -> Found:
    """Every entry of the Jacobian that `program` leads from x to y."""
    x = program.tape.values[program.probes[0]]
    return compare_along(program, theory, Directions(x, range(reals(x))), job)


def compare_directional(program: Program, backward: Backward, position: int, job: Job, seed: int) -> Found:
    """Random projections of the Jacobian on both sides: at most PROJECTIONS^2 numbers for all its entries."""
    x, y = (program.tape.values[n] for n in (program.probes[0], program.outputs[0]))
    rng = np.random.default_rng([seed, 1])
    v, u = random_directions(rng, reals(x)), random_directions(rng, reals(y))

    def projected(jitter: int | None = None) -> Array:
        return np.asarray(v @ backward.along(u, job.budget, jitter)[position].T)

    values = projected()
    theory = Theory(values, lambda: np.fmax.reduce([np.abs(projected(seed) - values) for seed in range(JITTERED)]))
    return compare_along(program, theory, Directions(x, v), job, weights=u)


def random_directions(rng: np.random.Generator, size: int) -> Array:
    """Gaussian directions `(PROJECTIONS, size)`; of fewer entries an orthonormal basis, which misses nothing."""
    if size > PROJECTIONS:
        return rng.normal(size=(PROJECTIONS, size))
    return np.linalg.qr(rng.normal(size=(size, size)))[0]


def compare_along(
    program: Program, theory: Theory, directions: Directions, job: Job, weights: Array | None = None
) -> Found:
    """Derivatives along directions of x, `(rows, y_size)` or `(rows, len(weights))`, against the theoretical ones."""
    numeric = Numeric(program, directions, job, weights)
    comparison, method, notes = _by_method(numeric, theory)
    if method != "complex-step":
        comparison = numeric.uncontradicted(comparison)
    comparison = out_of_range(comparison, directions)
    comparison = with_ties(program, directions, weights, comparison, lambda: numeric.noise, job.budget)
    return Found(comparison, method, (*notes, *kink_notes(program, comparison)))


def out_of_range(comparison: Comparison, directions: Directions) -> Comparison:
    """The comparison without failures where x itself is so small or so large that rules cannot square it."""
    size = np.abs(directions.here)
    extreme = (size > 0) & ((size < 1 / HUGE) | (size > HUGE))
    rows = extreme[directions.rows] if directions.given is None else np.full(directions.count, extreme.any())
    if not rows.any():
        return comparison
    failed = (comparison.status == Status.FAIL) & rows[:, None]
    return replace(comparison, status=np.where(failed, Status.RANGE, comparison.status).astype(np.int8))


def _by_method(numeric: Numeric, theory: Theory) -> tuple[Comparison, str, tuple[str, ...]]:
    """The comparison by the method that was asked for or says most, that method, and why it is not another."""
    method, obstacle = numeric.job.method, numeric.program.obstacle
    if method in ("central", "forward"):
        return numeric.judged(theory.values, numeric.stencil(STENCILS[method])), method, ()
    if method == "richardson" or obstacle is not None:
        notes = () if obstacle is None or method == "richardson" else (_no_complex_step(obstacle),)
        return numeric.laddered(theory.values), "richardson", notes
    return numeric.complex_step(theory), "complex-step", ()


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

        The limit is one rounding of y, or that of numbers as large as the largest entry for the same y.
        """
        along = self._along(rows)
        own = own_rounding(self.program)
        noise = own if self.weights is None else np.sqrt(self.weights**2 @ own**2)
        limit = np.maximum(16 * noise[None, :] / along[:, None], 2 * EPS * largest)
        return self.job.tolerance.coarse * limit

    def reach(self, rows: Array) -> Array:
        """The slopes of y as far as they matter at all, `(rows, 1)`: those that move its largest entry by rtol."""
        y = flat(self.program.tape.values[self.program.outputs[0]])
        largest = float(np.max(np.abs(y), initial=0.0)) * (
            1.0 if self.weights is None else float(np.abs(self.weights).max())
        )
        return np.asarray(self.job.tolerance.rtol * largest / self._along(rows)[:, None])

    def _along(self, rows: Array) -> Array:
        """The scale of x along some directions."""
        size = scales(self.directions.here)
        if self.directions.given is None:
            return size[self.directions.rows[rows]]
        return np.full(len(rows), rms(size) if size.size else 1.0)

    def stencil(self, stencil: Stencil) -> Rows:
        """All rows by one difference formula."""
        return by_stencil(self.program, self.directions, stencil, self.job.delta, self.noise, self.job.budget)

    def judged(self, theoretical: Array, rows: Rows) -> Comparison:
        """The comparison with rows whose error bound is known; those that cross a branch are kinked."""
        estimate = self._projected(rows.estimate)
        largest = largest_by_column(theoretical, estimate.value)
        every = np.arange(self.directions.count)
        crossed = np.logical_or.reduce([np.zeros(len(every), bool), *rows.crossed.values()])
        reach = np.where(crossed[:, None], np.inf, self.reach(every))  # of those, ties are looked at by themselves
        status = judge(theoretical, estimate, largest, self.floor(every, largest), self.job.tolerance, reach)
        status = np.where(crossed[:, None] & (status != Status.PASS), Status.KINK, status).astype(np.int8)
        kinked = among((status == Status.KINK).any(axis=1), rows.crossed)
        return Comparison(theoretical, estimate.value, estimate.error, status, crossed=kinked)

    def uncontradicted(self, comparison: Comparison) -> Comparison:
        """A comparison by differences without failures of entries that the complex step, where it goes, passes."""
        rows = np.flatnonzero((comparison.status == Status.FAIL).any(axis=1))
        if not len(rows) or self.program.obstacle is not None:
            return comparison
        theoretical, part = comparison.theoretical[rows], self.directions.part(rows)
        exact = self.projected(by_complex_step(self.program, part, self.job.budget))
        right = screened(theoretical, exact, 4 * EPS, self.job.tolerance) == Status.PASS
        status = comparison.status.copy()
        status[rows] = np.where((status[rows] == Status.FAIL) & right, Status.NOISE, status[rows])
        return replace(comparison, status=status)

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

    def complex_step(self, theory: Theory) -> Comparison:
        """The comparison by the complex step; failures confirmed by the ladder."""
        theoretical = theory.values
        value = self.projected(by_complex_step(self.program, self.directions, self.job.budget))
        status = screened(theoretical, value, 4 * EPS, self.job.tolerance)
        largest = largest_by_column(theoretical, value)
        noise = np.broadcast_to(4 * EPS * largest, value.shape)
        open_ = np.flatnonzero((status != Status.PASS).any(axis=1))
        blur = self._blur(open_, value[open_])
        left = _beyond(theoretical[open_], value[open_], blur)  # the others are rounding errors of zero
        status[open_] = np.where(left, status[open_], Status.PASS)
        still = (status[open_] != Status.PASS).any(axis=1)
        if still.any():
            noise, open_, blur = noise.copy(), open_[still], blur[still]
            blur = np.fmax(blur, _SAFETY * theory.spread()[open_])
            status[open_], noise[open_] = self._confirmed(theoretical, value, largest, status, open_, blur)
        return Comparison(theoretical, value, noise, status)

    def _confirmed(
        self, theoretical: Array, value: Array, largest: Array, status: Array, open_: Array, blur: Array
    ) -> tuple[Array, Array]:
        """Statuses and error bounds of rows that the complex step did not pass; `blur` are their rounding errors.

        An entry fails if the ladder says so too, or cannot say and the gap is far beyond any rounding.
        """
        rows = self._ladder(open_, ALL_RUNGS)
        estimate = self._projected(rows.estimate)
        t, d = theoretical[open_], value[open_]
        # What the complex step can tell from zero is no trifle, however small it is.
        floor = np.where(np.abs(d) > blur, blur, np.maximum(self.floor(open_, largest), blur))
        second = judge(t, estimate, largest, floor, self.job.tolerance)
        finite = np.isfinite(t) & np.isfinite(d)
        far = np.abs(t - d) > allowance(magnitude(t, d), largest, self.job.tolerance) + 1e-3 * largest
        far, tiny = far & finite, (magnitude(t, d) <= floor) & finite
        unresolved = np.isin(second, (Status.NOISE, Status.NONFINITE))
        agreed = np.where(unresolved & far & ~tiny, Status.FAIL, second)
        agreed = np.where(second == Status.PASS, Status.NOISE, agreed)  # the two numerical sides disagree
        agreed = np.where((agreed == Status.FAIL) & (np.abs(t - d) <= blur), Status.NOISE, agreed)
        agreed = np.where(tiny & (second != Status.FAIL), Status.PASS, agreed)
        agreed = np.where((agreed == Status.FAIL) & too_small(t, magnitude(t, d)), Status.UNDERFLOW, agreed)
        crossed = np.logical_or.reduce([np.zeros(len(open_), bool), *rows.crossed.values()])
        agreed = np.where(crossed[:, None], Status.KINK, agreed)
        result = np.where(status[open_] == Status.PASS, Status.PASS, agreed).astype(np.int8)
        error = np.where(np.isfinite(estimate.error), estimate.error, np.abs(d - estimate.value))
        return result, np.where(status[open_] == Status.PASS, 4 * EPS * np.abs(d), error)

    def _blur(self, rows: Array, exact: Array) -> Array:
        """How far rounding may carry entries on either side, shape of `exact`: far where large terms cancel."""
        part, blur = self.directions.part(rows), np.zeros(exact.shape)
        for seed in range(JITTERED if len(rows) else 0):
            moved = self.projected(by_complex_step(self.program, part, self.job.budget, seed))
            np.fmax(blur, np.abs(moved - exact), out=blur)
        return _SAFETY * self.job.tolerance.coarse * blur

    def _ladder(self, rows: Array, ks: Sequence[int]) -> Rows:
        return by_ladder(self.program, self.directions.part(rows), ks, self.noise, self.job.budget)

    def _projected(self, estimate: Estimate) -> Estimate:
        if self.weights is None:
            return estimate
        error = np.where(np.isfinite(estimate.error), estimate.error, np.inf) @ np.abs(self.weights).T
        return Estimate(self.projected(estimate.value), error)


def _beyond(theoretical: Array, numerical: Array, blur: Array) -> Array:
    """Entries of which one side is not finite, or more than a rounding error."""
    return ~np.isfinite(theoretical - numerical) | (magnitude(theoretical, numerical) > blur)


def _no_complex_step(obstacle: Step) -> str:
    return f"differences instead of the complex step, which does not go through {obstacle.where}"


def _scatter(rows: Array, where: Array, count: int) -> Array:
    full = np.zeros(count, bool)
    full[where] = rows
    return full
