"""Parts of a Jacobian that is too large for all of it: random projections, or single entries that are drawn.

Some directions of x against some weighted sums of y: a run forward for each of the first, a run backward for each of the
second, whatever the number of entries.  One backward pass serves all xs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache, partial

import numpy as np
from msgspec.structs import replace

from gradcheck_cli.compare.kinks import TIE, decides
from gradcheck_cli.compare.pair import Comparer, PairJob, PairResult, Theory
from gradcheck_cli.engine.chunks import Budget, any_of
from gradcheck_cli.engine.program import Program
from gradcheck_cli.graph import Array
from gradcheck_cli.jacobian.directions import (
    PROJECTIONS,
    SHARE,
    Directions,
    Redrawn,
    directions_within,
    flat,
    gaussian,
    reals,
    spread,
)
from gradcheck_cli.jacobian.jacobian import ROUNDED_RUNS, Backward, crossed_by, each_beside
from gradcheck_cli.verdict.differences import rms, scales
from gradcheck_cli.verdict.rule import Comparison, Status, allowance, magnitude

_BASIS = 8  # entries of which so many directions are a basis instead, which misses none
_CANDIDATES, _AT_TIES = 64, 8  # entries that are probed for a tie, and of those at one that are looked at
_ASIDE = 2.0**-20  # of the scale of x: far enough to see what answers
_FAR, _SMALL = 2.0**12, 0.1  # the largest entry is this much larger than a tenth of all: not of one scale
_REDRAWN = 16 << 20  # bytes of directions that are not kept
_MANY = 1 << 20  # entries whose sizes are not sorted


class ProjectedPart(Comparer):
    """Part of the Jacobians of one y by several xs: directions of each x against weighted sums of y."""

    weights: Array

    def __init__(
        self, backward: Backward, weights: Array, directions: Callable[[int], Directions], budget: Budget
    ) -> None:
        y = flat(backward.tape.values[backward.y])
        self.backward, self.directions, self.budget = backward, directions, budget
        self.weights = weights if np.isfinite(y).all() else np.where(np.isfinite(y), weights, 0.0)
        self._found: dict[int | None, list[Array]] = {}  # by seed of the rounding

    def sides(self, program: Program, position: int) -> tuple[Theory, Directions]:
        here = self._values(None)[position]
        theory = Theory(
            here,
            lambda: np.fmax.reduce([np.abs(self._values(s)[position] - here) for s in range(ROUNDED_RUNS)]),
            backward=self.backward,
        )
        return theory, self.directions(position)

    def completed(self, found: PairResult, position: int, job: PairJob) -> PairResult:
        return replace(found, comparison=_resolved(found, job, self.weights))

    def _values(self, rounding: int | None) -> list[Array]:
        if rounding not in self._found:
            self._found[rounding] = self._theoretical(rounding)
        return self._found[rounding]

    def _theoretical(self, rounding: int | None) -> list[Array]:
        def along(position: int, cotangents: Array) -> Array:
            return self.directions(position).slopes(cotangents)

        return [found.T for found in self.backward.reduced(self.weights, along, self.budget, rounding)]


def _resolved(found: PairResult, job: PairJob, weights: Array) -> Comparison:
    """The comparison with sums that rounding hides open: they pass only where even their rounding is of no matter.

    That is where it moves no y by rtol while x moves by as much as it is.
    """
    comparison, x, y = found.comparison, flat(found.x), flat(found.y)
    given, right = comparison.theoretical, comparison.numerical
    gap = np.abs(given - right)
    across = float(np.sqrt(np.sum(np.square(y[np.isfinite(y)])))) * float(np.max(np.abs(weights), initial=0.0))
    trifle = job.tolerance.rtol * across / max(rms(scales(x)), np.finfo(float).tiny)
    allow = allowance(magnitude(given, right), comparison.ground.at(), job.tolerance)
    hidden = (comparison.status == Status.PASS) & (gap > allow) & (gap > trifle)
    return replace(comparison, status=np.where(hidden, Status.NOISE, comparison.status).astype(np.int8))


def projections(backward: Backward, seed: int, budget: Budget, count: int = PROJECTIONS) -> ProjectedPart:
    """Random projections of all entries of each Jacobian, on every pair of directions."""
    values = backward.tape.values
    weights = random_directions(np.random.default_rng([seed, 1]), reals(values[backward.y]), count, budget.memory)

    untied: set[int] = set()  # looking for ties takes runs of the model

    @lru_cache(maxsize=1)  # drawn anew where there are several xs: together they may be large
    def drawn(position: int) -> Array:
        x = values[backward.xs[position]]
        v = random_directions(np.random.default_rng([seed, 2, position]), reals(x), count, budget.memory)
        return v * _own_scales(x) if far_apart(x) else v

    @lru_cache(maxsize=1)
    def directions(position: int) -> Directions:
        kept = None if position in untied else _keeping_ties(backward, position, seed, budget, count)
        if kept is not None:
            return kept
        untied.add(position)
        x, v = values[backward.xs[position]], drawn(position)
        found = Redrawn(x, len(v), partial(drawn, position)) if v.nbytes > _REDRAWN else Directions(x, v)
        found.weighed = far_apart(x)
        return found

    return ProjectedPart(backward, weights, directions, budget)


def _keeping_ties(backward: Backward, position: int, seed: int, budget: Budget, count: int) -> Directions | None:
    """Directions of one x along which y is smooth although the point is tied; None where it is not, or all of x is."""
    name, tape = backward.xs[position], backward.tape
    program, x = Program(tape, [name], [backward.y]), tape.values[name]
    if not decides(program):
        return None
    from gradcheck_cli.compare.ties import MOST_TRIED, keeping_ties  # few models are tied

    if reals(x) * (count + MOST_TRIED) * 8 * SHARE > budget.memory:
        return None
    tied = keeping_ties(program, count, seed, budget, weighed=far_apart(x))
    if tied is None or not tied.count:
        return None
    found = Directions(x, np.asarray(tied.moves[name]))
    found.weighed, found.tied = far_apart(x), True
    return found


def entries_at_ties(backward: Backward, position: int, program: Program, seed: int, job: PairJob) -> PairResult | None:
    """Some entries of x that lie at a tie, by the entries of y that answer to them most; None where there are none."""
    x, rng = backward.tape.values[backward.xs[position]], np.random.default_rng([seed, 6, position])
    here = flat(x)
    _, place, alike = np.unique(here, return_inverse=True, return_counts=True)
    likely = (alike[place.reshape(-1)] > 1) | (here == 0)
    order = np.argsort(rng.uniform(size=here.size) - likely, kind="stable")[:_CANDIDATES]
    probed = Directions(x, np.sort(order))
    crossed = any_of(crossed_by(program, probed, probed.representable(TIE), job.budget), probed.count)
    rows = probed.rows[np.flatnonzero(crossed)[:_AT_TIES]]
    if not len(rows):
        return None
    some = Directions(x, rows)
    steps = [(some, side * some.representable(_ASIDE, side)) for side in (1.0, -1.0)]
    y = flat(program.y)
    moved = [np.abs(values - y) for values, _ in each_beside(program, steps, job.budget)]
    answer = np.max(np.nan_to_num(np.concatenate(moved), posinf=0.0), axis=0)
    columns = np.sort(np.argsort(-answer, kind="stable")[:_AT_TIES])
    part = ProjectedPart(backward, _unit(columns, y.size),
                lambda other: some if other == position else Directions(backward.tape.values[backward.xs[other]], []),
                job.budget)  # fmt: skip
    return part.compare(program, position, job)


def _unit(columns: Array, size: int) -> Array:
    weights = np.zeros((len(columns), size))
    weights[np.arange(len(columns)), columns] = 1
    return weights


def random_directions(rng: np.random.Generator, size: int, count: int, memory: int) -> Array:
    """Gaussian directions `(count, size)`, fewer where memory is short; of few entries an orthonormal basis."""
    if size <= (count if count < PROJECTIONS else _BASIS):
        return np.linalg.qr(rng.normal(size=(size, size)))[0]
    return gaussian(rng, directions_within(8 * size, count, memory), size)


def _own_scales(x: Array) -> Array:
    """By how much each entry moves where sizes are far apart, so that none hides the others."""
    size = np.abs(flat(x))
    size = np.where(size > 0, size, size[size > 0].min())
    return np.asarray(size / rms(size))


def far_apart(x: Array) -> bool:
    """Some entries of x are so much larger than others that they are of no one scale."""
    size = np.abs(flat(x))
    if size.size > _MANY:  # counted, which is the same to an entry and sooner done
        count = np.count_nonzero(size)
        small = np.count_nonzero(size < float(size.max()) / _FAR) - (size.size - count)
        return bool(small > _SMALL * count)
    some = size[size > 0]
    return bool(some.size) and float(some.max()) > _FAR * float(np.quantile(some, _SMALL))


def sample(backward: Backward, seed: int, budget: Budget, entries: int) -> ProjectedPart:
    """At most so many entries of each Jacobian: some rows by some columns, spread over x and over y."""
    values = backward.tape.values
    m = reals(values[backward.y])
    smallest = min((reals(values[x]) for x in backward.xs), default=1)
    wanted = max(math.isqrt(max(entries // 2, 1)), -(-entries // max(smallest, 1)))
    columns = spread(np.random.default_rng([seed, 3]), m, min(wanted, entries))
    weights = _unit(columns, m)

    def directions(position: int) -> Directions:
        x = values[backward.xs[position]]
        rng = np.random.default_rng([seed, 4, position])
        return Directions(x, spread(rng, reals(x), entries // max(len(columns), 1)))

    return ProjectedPart(backward, weights, directions, budget)
