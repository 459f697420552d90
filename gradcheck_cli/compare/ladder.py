"""The numerical side of a comparison, by each method: values, what they can have wrong, and a status for each entry.

The complex step is exact but for rounding, which is measured; real differences carry a bound of their own.  Where both
see, they must agree before a gradient counts as wrong: a mistake in a complex kernel is none of the rule's.

The comparison by Richardson's ladder of real differences: a few rungs for all rows, more for those that stay open.

What rounding hides is looked for with larger steps, with all rungs, and at last in long doubles; each only ever betters
what is known of an entry.

Slopes of compositions that one rule covers, as far as rounding inside of them carries them.

The rule of a normalization takes for granted that what is centered sums to zero.  Where the mean is a million times the
deviation it does not, by the rounding of the mean: neither side is wrong by more than that moves the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from gradcheck_cli.autodiff.tape import Tape, Unit
from gradcheck_cli.compare.audit import audited
from gradcheck_cli.engine.chunks import Budget, any_of
from gradcheck_cli.engine.program import Program
from gradcheck_cli.engine.rounding import RandomRounding
from gradcheck_cli.errors import GradcheckError
from gradcheck_cli.graph import Array, is_inexact
from gradcheck_cli.jacobian.columns import Theory
from gradcheck_cli.jacobian.cost import forward_work
from gradcheck_cli.jacobian.directions import Directions, flat
from gradcheck_cli.jacobian.jacobian import (
    EPS,
    ROUNDED_RUNS,
    Backward,
    Colored,
    Rows,
    at_values,
    by_complex_step,
    by_ladder,
    by_stencil,
    forward_noise,
    grouped_complex_step,
    grouped_ladder,
    grouped_stencil,
    own_rounding,
)
from gradcheck_cli.settings import Method
from gradcheck_cli.verdict.differences import ALL_RUNGS, CHEAP_RUNGS, Estimate, Stencil, rms, scales
from gradcheck_cli.verdict.rule import (
    UNIT,
    Comparison,
    Ground,
    Status,
    Tolerance,
    allowance,
    blocks,
    ground_of,
    judge,
    magnitude,
    screened,
)


def moved_inside(program: Program, count: int) -> Iterator[Program]:
    """The program at values that some roundings move inside of each composition on its way, `count` times.

    What lies between compositions stays: both sides have it in common.  Where nothing is moved there is none.
    """
    regions = [r for r in program.tape.regions if r.op.vjp is not None and _on(program, r)]
    for seed in range(count if regions else 0):
        rounding = RandomRounding.seeded([seed, 5])
        values: dict[str, Array] = {}
        for region in regions:
            values |= _moved(program.tape, region, rounding)
        if values:
            yield Program(at_values(program.tape, values), program.probes, program.outputs)


def _on(program: Program, region: Unit) -> bool:
    return any(index in region.steps for index, _ in program.steps)


def _moved(tape: Tape, region: Unit, rounding: RandomRounding) -> dict[str, Array]:
    """Results of a composition, moved by rounding; nothing where that changes a decision."""
    probes = list(dict.fromkeys(n for n in region.operands if n and is_inexact(tape.values[n].dtype)))
    made = {n for step in tape.steps[region.steps.start : region.steps.stop] for n in step.node.outputs if n}
    within = Program(tape, probes, list(made))
    names = [n for n in made if n in within.reached and is_inexact(tape.values[n].dtype)]
    run = Program(tape, probes, names).run({n: tape.values[n][None] for n in probes}, branches=True, rounding=rounding)
    if run.any_crossed(1).any():
        return {}
    return {n: y[0].astype(tape.values[n].dtype) for n, y in zip(names, run.outputs, strict=True)}


_APART = (2.0**-24,)  # of points that noise is read off at, in units of the scale of x
_HEARD = 3.0  # of noise that is heard: rows by the thousand meet more than its usual size
_SHARE = 8  # of the memory: what the differences of some rows may take
_PER_ENTRY = 8 * 60  # bytes of an entry's differences at all rungs, and what is made of them
# beyond the square of the complex step, whose third-order term is all there is where slopes are zero
_THIRD = 2.0**-190
_LONG_WORK, _BACKWARD = 2e7, 4  # operations that long doubles are worth; runs that a run backward counts as
_ROUGH = Tolerance(rtol=1e-3)  # how far float64 may take a right rule from what it is in long doubles
_NO_KERNEL = GradcheckError, ValueError, TypeError, LookupError, ArithmeticError, AttributeError, RuntimeError
_SAFETY = 4.0  # of what 16 roundings do in a few runs


class PairJob(Struct, frozen=True):
    """A comparison as it was asked for: method, its step, tolerance and budget."""

    method: Method
    delta: float | None
    tolerance: Tolerance
    budget: Budget


class _Told(Struct, frozen=True):
    """Some rows in long doubles: a mask of entries that are right there, and both sides."""

    rows: Array
    right: Array
    given: Array
    exact: Array


class Numeric:
    """Derivatives of y along directions of x, for all of them or some rows; `weights` of y in a directional check.

    What belongs to entries of y that are not finite is zero throughout.
    """

    def __init__(
        self,
        program: Program,
        directions: Directions,
        job: PairJob,
        weights: Array | None,
        known: Ground | None = None,
        theory: Theory | None = None,
    ) -> None:
        self.program, self.directions, self.job = program, directions, job
        self.finite = np.isfinite(flat(program.y))
        self.weights = None if weights is None else self.cleared(weights)
        self.known = (
            known if known is None or self.finite.all() else replace(known, largest=self.cleared(known.largest))
        )
        self.theory = theory
        self.cells = None if theory is None else theory.cells
        self.lengthened = 0  # entries that float64 left open for rounding, told in long doubles
        self.disputed = np.zeros(directions.count, bool)  # rows in which the two numerical sides contradict each other
        self._noise: Array | None = None

    @property
    def left_out(self) -> Array:
        """Columns of the comparison that belong to entries of y that are not finite, and to no other."""
        if self.weights is None:
            return ~self.finite
        return np.logical_and(~self.weights.any(axis=1), not self.finite.all())

    def ground(self, theoretical: Array, numerical: Array) -> Ground:
        """The entries that others are small beside: in the whole Jacobian, where these are some of its rows."""
        if self.known is None:
            return ground_of(theoretical, numerical, self.directions.sizes, self.cells)
        return self.known

    @property
    def mixed(self) -> bool:
        """True if sums are compared, over entries of the Jacobian, not single ones."""
        summed = self.weights is not None and bool((np.count_nonzero(self.weights, axis=1) > 1).any())
        return summed or not self.directions.single

    @property
    def noise(self) -> Array:
        """Rounding error of one value of y."""
        if self._noise is None:
            self._noise = self.cleared(forward_noise(self.program))
        return self._noise

    def listen(self) -> None:
        """Take noise for no less than what is heard beside x."""
        from gradcheck_cli.jacobian.precise import noise_beside

        heard = noise_beside(self.program, _APART, self.job.budget)
        self._noise = np.maximum(self.noise, self.cleared(np.where(np.isfinite(heard), _HEARD * heard, 0.0)))

    def cleared(self, values: Array) -> Array:
        """Zeros for what belongs to entries of y that are not finite."""
        return values if self.finite.all() else np.where(self.finite, values, 0.0)

    def projected(self, values: Array, rows: slice | Array = slice(None)) -> Array:
        """Derivatives of y, of all or some rows, as the comparison wants them: cells, or weighted sums."""
        values = self.cleared(values)
        if self.weights is not None:
            return values @ self.weights.T
        return values if self.cells is None else self.cells.of(rows).kept(values)

    def estimated(self, estimate: Estimate, rows: slice | Array = slice(None)) -> Estimate:
        """The same for an estimate."""
        if self.weights is None:
            parts = estimate.value, estimate.error, estimate.rounding
            return Estimate(*(self.projected(part, rows) for part in parts))
        bounds = (self.cleared(part) for part in (estimate.error, estimate.rounding))
        size = np.abs(self.weights).T
        lost = (~np.isfinite(self.cleared(estimate.error))).astype(float) @ (size > 0) > 0
        error, rounding = (np.where(np.isfinite(part), part, 0.0) @ size for part in bounds)
        return Estimate(self.projected(estimate.value), np.where(lost, np.inf, error), rounding)

    def floor(self, rows: Array, largest: Array) -> Array:
        """Below this an entry cannot be told from zero, `(rows, y_size)`; `largest` is the ground of these rows.

        The limit is one rounding of y, or that of numbers as large as the largest entry for the same y.
        """
        along = self._along(rows)
        own = self.cleared(own_rounding(self.program))
        noise = (own if self.weights is None else np.sqrt(self.weights**2 @ own**2))[None, :]
        noise = noise if self.cells is None else noise[0, self.cells.columns[rows]]
        return np.maximum(16 * noise / along[:, None], 2 * EPS * largest)

    def reach(self, rows: Array) -> Array:
        """The slopes of y as far as they matter at all, `(rows, 1)`: those that move its largest entry by rtol."""
        y = self.cleared(flat(self.program.y))
        largest = float(np.max(np.abs(y), initial=0.0)) * (
            1.0 if self.weights is None else float(np.abs(self.weights).max())
        )
        return np.asarray(self.job.tolerance.rtol * largest / self._along(rows)[:, None])

    def _along(self, rows: Array) -> Array:
        """The scale of x along some directions."""
        size = scales(self.directions.here)
        if self.directions.single:
            return size[self.directions.rows[rows]]
        return np.full(len(rows), rms(size) if size.size else 1.0)

    def by_stencil(self, theoretical: Array, stencil: Stencil) -> Comparison:
        """The comparison by one difference formula."""
        delta, budget = self.job.delta, self.job.budget

        def alone(rows: Array) -> Rows:
            return by_stencil(self.program, self.directions.part(rows), stencil, delta, self.noise, budget)

        def together(rows: Colored) -> Rows | None:
            return grouped_stencil(self.program, rows, stencil, delta, self.noise, budget)

        return self.judged(theoretical, self.all_rows(theoretical, together, alone))

    def judged(self, theoretical: Array, rows: Rows) -> Comparison:
        """The comparison with rows whose error bound is known; those that cross a branch tell nothing."""
        estimate = self.estimated(rows.estimate)
        ground = self.ground(theoretical, estimate.value)
        every = np.arange(self.directions.count)
        crossed = any_of(rows.crossed, len(every))
        reach = np.where(crossed[:, None], np.inf, self.reach(every))  # of those, ties are looked at by themselves
        status = np.empty(theoretical.shape, np.int8)
        for some in blocks(*theoretical.shape):
            largest = ground.at(some)
            floor, part = self.floor(every[some], largest), estimate.part(some)
            status[some] = judge(theoretical[some], part, largest, floor, self.job.tolerance, reach[some])
            status[some] = self._not_hidden(theoretical[some], part, largest, status[some], some)
        status[crossed[:, None] & (status != Status.PASS)] = Status.JUMP
        lost = among((status == Status.JUMP).any(axis=1), rows.crossed)
        return Comparison(
            theoretical, estimate.value, estimate.error, status, self.job.tolerance, crossed=lost, known=ground
        )

    def _not_hidden(self, theoretical: Array, estimate: Estimate, largest: Array, status: Array, rows: slice) -> Array:
        """Statuses without passes of entries that the rounding of y hides, and that are no rounding of zero themselves."""
        passed = (status == Status.PASS) & (theoretical != 0)
        if self.theory is None or not passed.any():
            return status
        size = magnitude(theoretical, estimate.value)
        gap = np.abs(theoretical - estimate.value) + 8 * estimate.error + 64 * UNIT * size
        hidden = passed & (gap > allowance(size, largest, self.job.tolerance))
        if not hidden.any():
            return status
        blur = _SAFETY * self.projected_spread(self.theory)[rows] + 2 * EPS * largest
        return np.where(hidden & (np.abs(theoretical) > blur), np.int8(Status.NOISE), status)

    def uncontradicted(self, comparison: Comparison) -> Comparison:
        """A comparison by differences without failures of entries that the complex step, where it goes, does not fail.

        Steps in proportion to x may leap over all there is to see, as those at a norm of deviations far from zero do; there
        float64 takes the rule away from the complex step too, by what rounding explains or long doubles tell.
        """
        rows = np.flatnonzero((comparison.status == Status.FAIL).any(axis=1))
        if not len(rows) or self.program.obstacle is not None:
            return comparison
        theoretical, exact = comparison.theoretical, comparison.numerical.copy()
        exact[rows] = self._complex(rows)
        right = screened(theoretical[rows], exact[rows], 4 * EPS, self.job.tolerance, comparison.ground.of(rows))
        left = np.where(comparison.status == Status.FAIL, np.int8(Status.FAIL), np.int8(Status.PASS))
        zero = ~_beyond(theoretical[rows], exact[rows], self._blur(rows, exact[rows]))  # but for rounding
        left[rows] = np.where((right == Status.PASS) | zero, np.int8(Status.PASS), left[rows])
        left[rows] = self._excused(theoretical[rows], exact[rows], left[rows], rows)
        told = self._told_in_long_doubles(theoretical, exact, left, comparison.ground)
        if told is not None:
            left[told.rows] = np.where(told.right, np.int8(Status.PASS), left[told.rows])
        cleared = (comparison.status == Status.FAIL) & (left != Status.FAIL)
        return replace(comparison, status=np.where(cleared, np.int8(Status.NOISE), comparison.status))

    def complex_step(self, theory: Theory, theoretical: Array) -> Comparison:
        """The comparison by the complex step; what it does not pass, and a few rows more, by the ladder too."""
        together = None
        if isinstance(self.directions, Colored):
            together = grouped_complex_step(self.program, self.directions, self.job.budget, self.cells)
        if together is None:
            theory, theoretical = self.uncompressed(theory, theoretical)
            value = self.projected(by_complex_step(self.program, self.directions, self.job.budget))
        else:
            value = self.cleared(together)
        status, ground, noise = self._judged_by_complex_step(theory, theoretical, value, alone=together is None)
        if (endless := np.isfinite(value) & (status == Status.DOMAIN)).any():
            # Where y is infinitely steep it gives a huge number, beside which every other entry would be negligible.
            value = np.where(endless, np.nan, value)
            status, ground, noise = self._judged_by_complex_step(theory, theoretical, value, alone=True)
        theoretical, value, status = self._in_long_doubles(theoretical, value, status, ground)
        wrong = audited(self, value, ground, status)
        if wrong is not None:
            status, noise = np.where(wrong, np.int8(Status.NOISE), status), np.where(wrong, np.inf, noise)
        return Comparison(
            theoretical, value, noise, status, self.job.tolerance, known=ground, cells=self.cells,
            elsewhere=0.0 if self.cells is None else 4 * EPS * ground.largest,
        )  # fmt: skip

    def _judged_by_complex_step(
        self, theory: Theory, theoretical: Array, value: Array, *, alone: bool
    ) -> tuple[Array, Ground, Array]:
        """Statuses, ground and error bounds by the complex step, and by the ladder where that does not pass."""
        status, ground = self._screened(theoretical, value, alone=alone)
        elsewhere = 4 * EPS * ground.largest
        noise = np.broadcast_to(elsewhere, value.shape) if self.cells is None else elsewhere[self.cells.columns]
        for rows in self.pieces(np.flatnonzero(status.any(axis=1))):
            blur = self._blur(rows, value[rows])
            left = _beyond(theoretical[rows], value[rows], blur)  # the others are rounding errors of zero
            status[rows] = np.where(left, status[rows], Status.PASS)
            still = status[rows].any(axis=1)
            if still.any():
                noise, open_ = noise if noise.flags.writeable else noise.copy(), rows[still]
                blur = np.fmax(blur[still], _SAFETY * self.projected_spread(theory)[open_])
                known = status[open_] == Status.PASS
                status[open_], error = self._confirmed(theoretical, value, ground, status, open_, blur)
                noise[open_] = np.where(known, noise[open_], error)
                status[open_] = self._excused(theoretical[open_], value[open_], status[open_], open_)
        return status, ground, noise

    def uncompressed(self, theory: Theory, theoretical: Array) -> tuple[Theory, Array]:
        """The theoretical side with every entry, and its values as the comparison wants them, which has no cells then."""
        if theory.cells is None:
            return theory, theoretical
        self.theory = theory = theory.whole(self.job.budget)
        self.cells = None
        return theory, self.cleared(theory.values)

    def _in_long_doubles(
        self, theoretical: Array, value: Array, status: Array, ground: Ground
    ) -> tuple[Array, Array, Array]:
        """Both sides and statuses, with what rounding left open told in long doubles, where that is soon done."""
        told = self._told_in_long_doubles(theoretical, value, status, ground)
        if told is None:
            return theoretical, value, status
        rows, status = told.rows, status.copy()
        status[rows] = np.where(told.right, np.int8(Status.PASS), status[rows])
        self.lengthened = int(told.right.sum())
        if not self.mixed:
            return theoretical, value, status
        theoretical, value = theoretical.copy(), value.copy()  # of sums, which what hides in them is judged by as well
        theoretical[rows] = np.where(told.right, told.given, theoretical[rows])
        value[rows] = np.where(told.right, told.exact, value[rows])
        return theoretical, value, status

    def _told_in_long_doubles(self, theoretical: Array, value: Array, status: Array, ground: Ground) -> _Told | None:
        """Entries open for rounding or failed that are right in long doubles; None where that takes long, or cannot be.

        There the rule and the kernels have to agree as they do elsewhere.  What float64 makes of the rule must not be far
        from that either; how far its rounding may carry it is not always seen, so that failures are looked at as well.
        """
        rows = np.flatnonzero(np.isin(status, (Status.NOISE, Status.FAIL)).any(axis=1) & ~self.disputed)
        rows = rows[_agree(theoretical[rows], value[rows], ground.at(rows), _ROUGH).any(axis=1)]
        columns = len(self.finite) if self.weights is None else len(self.weights)
        work = forward_work(self.program) * (len(rows) + _BACKWARD * columns)
        backward = None if self.theory is None else self.theory.backward
        if backward is None or not len(rows) or work > _LONG_WORK or not has_longer_numbers():
            return None
        part, weights = self.directions.part(rows), np.eye(columns) if self.weights is None else self.weights
        try:
            (given, exact), spread = self._both_long(backward, rows, part, weights)
        except _NO_KERNEL:
            return None
        right = _agree(given, exact, ground.at(rows), self.job.tolerance, _SAFETY * spread)
        near = _agree(theoretical[rows], exact, ground.at(rows), _ROUGH)
        return _Told(rows, np.isin(status[rows], (Status.NOISE, Status.FAIL)) & right & near, given, exact)

    def _both_long(
        self, backward: Backward, rows: Array, part: Directions, weights: Array
    ) -> tuple[tuple[Array, Array], Array]:
        """Derivatives by the rules and by the kernels in long doubles, and how far rounding may carry them apart."""
        from gradcheck_cli.jacobian.precise import Both  # few checks need it

        both = Both(backward, self.program.probes[0], self.job.budget)

        def sides(rounding: int | None = None) -> tuple[Array, Array]:
            given = both.by_rules(part, weights, rounding)
            given = self.projected(given, rows) if self.weights is None else given
            return given, self.projected(both.by_kernels(self.program, part, rounding), rows)

        given, exact = sides()
        moved = [np.abs(one - given) + np.abs(other - exact) for one, other in map(sides, range(ROUNDED_RUNS))]
        return (given, exact), np.asarray(np.fmax.reduce(moved))

    def _screened(self, theoretical: Array, value: Array, *, alone: bool) -> tuple[Array, Ground]:
        """Statuses of the entries by the complex step, and the ground of all.

        Rows that were probed in groups, not each alone, and do not pass are probed alone: `value` gets their derivatives.
        """
        ground = self.ground(theoretical, value)
        status = screened(theoretical, value, 4 * EPS, self.job.tolerance, ground)
        open_ = np.flatnonzero(status.any(axis=1)) if not alone else np.zeros(0, int)
        if not len(open_):
            return status, ground
        value[open_] = self._complex(open_)
        ground = self.ground(theoretical, value)
        return screened(theoretical, value, 4 * EPS, self.job.tolerance, ground), ground

    def all_rows(
        self, theoretical: Array, together: Callable[[Colored], Rows | None], alone: Callable[[Array], Rows]
    ) -> Rows:
        """All rows by differences: by groups where x has colors, and alone those that do not pass in theirs."""
        every = np.arange(self.directions.count)
        rows = together(self.directions) if isinstance(self.directions, Colored) else None
        if rows is None:
            return alone(every)
        passed = (self.judged(theoretical, rows).status == Status.PASS).all(axis=1)
        open_ = np.flatnonzero(~passed | any_of(rows.crossed, len(every)))
        return rows.replaced(open_, alone(open_)) if len(open_) else rows

    def projected_spread(self, theory: Theory) -> Array:
        """Bounds of the rounding error of the theoretical side."""
        return self.cleared(theory.spread()) if self.weights is None else theory.spread()

    def _confirmed(
        self, theoretical: Array, value: Array, ground: Ground, status: Array, open_: Array, blur: Array
    ) -> tuple[Array, Array]:
        """Statuses of rows that the complex step did not pass, error bounds of what it did not; `blur`: rounding errors.

        An entry fails if it is off by more than that, and the ladder, as far as it sees, does not say otherwise.
        """
        ladder = self.estimated(self.ladder(open_, ALL_RUNGS).estimate, open_)
        t, d, tolerance, largest = theoretical[open_], value[open_], self.job.tolerance, ground.at(open_)
        # What the complex step can tell from zero is no trifle, however small it is.
        floor = np.where(np.abs(d) > blur, blur, np.maximum(self.floor(open_, largest), blur))
        first = judge(t, Estimate(d, blur / 8, blur / 8), largest, floor, tolerance)
        second = judge(t, ladder, largest, floor, tolerance)
        second = np.where((second == Status.FAIL) & ~np.isfinite(ladder.error), Status.DOMAIN, second)
        disputed = self.contradicted(d, blur, ladder, largest) & (status[open_] != Status.PASS)
        result = np.where((first == Status.NOISE) & (second == Status.PASS), Status.PASS, first)
        result = np.where(np.isfinite(d), result, second)
        result = np.where((result == Status.FAIL) & ~np.isfinite(ladder.value), Status.DOMAIN, result)
        third = (t == 0) & (np.abs(d) <= _THIRD)
        result = np.where((disputed | third) & (result == Status.FAIL), Status.NOISE, result)
        self.disputed[open_] |= (disputed & (result == Status.NOISE)).any(axis=1)
        error = np.fmin(blur / 8, np.where(np.isfinite(ladder.value), ladder.error, np.inf))
        error = np.where(disputed, np.abs(d - ladder.value), error)
        value[open_] = np.where(np.isfinite(d), d, ladder.value)  # which is what they are judged by
        return np.where(status[open_] == Status.PASS, Status.PASS, result).astype(np.int8), error

    def contradicted(self, exact: Array, blur: Array | float, ladder: Estimate, largest: Array) -> Array:
        """Entries of which the ladder sees, and sees something else than the complex step."""
        bound = Estimate(ladder.value, ladder.error + blur / 8, ladder.rounding)
        other = judge(exact, bound, largest, np.zeros_like(exact), self.job.tolerance) == Status.FAIL
        still = (ladder.value == 0) & (ladder.rounding == 0)  # y is 0 and stays: a kernel's own rounding may hide it
        blind = still & (np.abs(exact) <= 2 * EPS * np.max(np.abs(exact), axis=1, initial=0.0, keepdims=True))
        return np.asarray(other & ~blind & np.isfinite(exact) & np.isfinite(ladder.error))

    def _excused(self, theoretical: Array, value: Array, status: Array, rows: Array) -> Array:
        """Statuses without failures that rounding inside of compositions explains."""
        failed = status == Status.FAIL
        some = np.flatnonzero((failed & np.isfinite(theoretical)).any(axis=1))
        if not len(some):
            return status
        part, spread = self.directions.part(rows[some]), np.zeros((len(some), value.shape[1]))
        for moved in moved_inside(self.program, ROUNDED_RUNS):
            there = self.projected(by_complex_step(moved, part, self.job.budget), rows[some])
            np.fmax(spread, np.abs(there - value[some]), out=spread)
        with np.errstate(invalid="ignore"):
            explained = np.abs(theoretical[some] - value[some]) <= np.max(spread, axis=0)  # a mean is that of all rows
        status = status.copy()
        status[some] = np.where(failed[some] & explained, np.int8(Status.NOISE), status[some])
        return status

    def _blur(self, rows: Array, exact: Array) -> Array:
        """Bounds of the rounding errors of entries on either side, shape of `exact`: far where large terms cancel."""
        blur = np.zeros(exact.shape)
        for seed in range(ROUNDED_RUNS if len(rows) else 0):
            np.fmax(blur, np.abs(self._complex(rows, seed) - exact), out=blur)
        return _SAFETY * blur

    def _complex(self, rows: Array, rounding: int | None = None) -> Array:
        part = self.directions if len(rows) == self.directions.count else self.directions.part(rows)
        return self.projected(by_complex_step(self.program, part, self.job.budget, rounding), rows)

    def ladder(self, rows: Array, ks: Sequence[int]) -> Rows:
        """Some rows by Richardson's ladder."""
        some = (self.directions.part(part) for part in self.pieces(rows) or [rows])
        found = (by_ladder(self.program, part, ks, self.noise, self.job.budget) for part in some)
        return Rows.joined(found, len(rows))

    def pieces(self, rows: Array) -> list[Array]:
        """Some rows in pieces whose differences fit into the memory."""
        size = max(1, self.job.budget.memory // (_SHARE * _PER_ENTRY * max(len(self.finite), 1)))
        return [rows[start : start + size] for start in range(0, len(rows), size)]


def has_longer_numbers() -> bool:
    """True on a machine that has numbers longer than float64."""
    return float(np.finfo(np.longdouble).eps) < 1e-18


def among(rows: Array, by_step: Mapping[int, Array]) -> dict[int, Array]:
    """The rows, out of some, that crossed a branch, by step of the tape."""
    return {step: crossed & rows for step, crossed in by_step.items() if (crossed & rows).any()}


def _agree(given: Array, right: Array, largest: Array, tolerance: Tolerance, error: Array | float = 0.0) -> Array:
    """Entries that are the same to a tolerance, although either may be off by an error."""
    with np.errstate(invalid="ignore"):
        return np.asarray(np.abs(given - right) + error <= allowance(magnitude(given, right), largest, tolerance))


def _beyond(theoretical: Array, numerical: Array, blur: Array) -> Array:
    """Entries of which one side is not finite, or more than a rounding error."""
    return ~np.isfinite(theoretical - numerical) | (magnitude(theoretical, numerical) > blur)


_FEW = 8  # rows for each group from which on groups take the whole ladder at once
_MANY = 32  # rows from which on noise is heard first: what it says is worth more than it costs
_LADDER_WORK = 1e8  # operations of one probe, times rows, that long doubles are worth


def laddered(numeric: Numeric, theoretical: Array) -> Comparison:
    """The comparison of all rows."""
    if numeric.directions.count >= _MANY:
        numeric.listen()
    rows = _first(numeric, theoretical)
    comparison = numeric.judged(theoretical, rows)
    for ladder in (_wider, _whole, _longer):
        some, better = ladder(numeric, comparison.status)
        if better is not None:
            rows = rows.bettered(some, better)
            comparison = numeric.judged(theoretical, rows)
    return comparison


def _first(numeric: Numeric, theoretical: Array) -> Rows:
    def alone(rows: Array) -> Rows:
        return numeric.ladder(rows, CHEAP_RUNGS)

    def together(rows: Colored) -> Rows | None:
        ks = ALL_RUNGS if _FEW * rows.coloring.count <= rows.count else CHEAP_RUNGS
        return grouped_ladder(numeric.program, rows, ks, numeric.noise, numeric.job.budget)

    return numeric.all_rows(theoretical, together, alone)


def _wider(numeric: Numeric, status: Array) -> tuple[Array, Rows | None]:
    """Rows that noise left open, by larger steps."""
    some = _blurred(status)
    if not len(some):
        return some, None
    from gradcheck_cli.jacobian.precise import wider_ladder

    parts = (numeric.directions.part(rows) for rows in numeric.pieces(some))
    wider = (wider_ladder(numeric.program, part, numeric.noise, numeric.job.budget) for part in parts)
    return some, Rows.joined(wider, len(some))


def _whole(numeric: Numeric, status: Array) -> tuple[Array, Rows | None]:
    """Rows that anything left open, by all rungs."""
    some = np.flatnonzero((status != Status.PASS).any(axis=1))
    return some, numeric.ladder(some, ALL_RUNGS) if len(some) else None


def _longer(numeric: Numeric, status: Array) -> tuple[Array, Rows | None]:
    """Rows that noise left open, in long doubles where that is soon done."""
    some = _blurred(status)
    if not len(some) or not has_longer_numbers() or forward_work(numeric.program) * len(some) > _LADDER_WORK:
        return some, None
    from gradcheck_cli.jacobian.precise import Longer

    return some, Longer(numeric.program, numeric.job.budget).ladder(numeric.directions.part(some))


def _blurred(status: Array) -> Array:
    """Rows with an entry that noise left open."""
    return np.flatnonzero(((status == Status.NOISE) | (status == Status.CURVATURE)).any(axis=1))
