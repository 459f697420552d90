"""The numerical side as another implementation of the forward run has it: a comparison in which that one evaluates y.

The derivative of what we compute is known already.  What the other one computes beyond it is seen at the same points,
probe by probe, and differenced; its derivative is the sum of both.  Where they differ by rounding alone, steps may be
as wide as x itself: there is no curvature to see, and a branch is taken by both.  So of what rounding would hide in
differences of y itself, most is seen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np
from msgspec.structs import replace

from gradcheck_cli.compare.ladder import Numeric
from gradcheck_cli.compare.pair import PairJob, PairResult
from gradcheck_cli.engine.chunks import in_chunks
from gradcheck_cli.engine.program import Program
from gradcheck_cli.engine.rounding import ROUNDINGS, Rounding
from gradcheck_cli.errors import counted
from gradcheck_cli.graph import Array
from gradcheck_cli.jacobian.cost import forward_work
from gradcheck_cli.jacobian.directions import Directions, flat, flat_stack, shaped
from gradcheck_cli.jacobian.jacobian import Rows, each_beside, moved_by_rounding
from gradcheck_cli.jacobian.precise import lines, roughness
from gradcheck_cli.verdict.differences import Estimate, richardson, rms, scales
from gradcheck_cli.verdict.rule import PASSED, Status, allowance, blocks, epsilon, magnitude

RESOLVED = 2e-2  # of the largest entry for the same y: the error that rounding may hide, if no tolerance was given
_WIDE = (1.0, 0.5)  # steps, in units of the widest along which y goes on rather than back
_LONGEST, _SHORTEST = 6, -6  # that step, in units of the size of x: powers of 2
_LOOKS = 8  # directions that it is looked for along
_FEW, _SUMS = 64, 16  # rows that are probed alone; sums of them, where there are more
_WORK = 1e10  # operations that probing rows alone may take where their sums leave something open
_FINER = 9  # steps of rows that these leave open
_FINEST = 2.0**-5  # the last of them, in units of an entry's own size
_APART = 2.0**-10  # of points at which noise is heard, in units of the size of x: each is rounded anew
_HEARD = 3.0  # of noise that is heard: rows by the thousand meet more than its usual size
_SAFETY = 4.0  # of what is differenced when nothing differs but by rounding, whose size is known
_LOUDER = 4.0  # times as large as here: where y is that, its rounding says nothing of the point
_TRIFLE = 1e-3  # of y, by which an entry that is zero for us may move it, unseen, as x moves by its size


class OtherForward(Protocol):
    """Another implementation of what leads from x to y, in the model's own numbers."""

    @property
    def name(self) -> str:
        """Name and version of the implementation."""

    @property
    def narrow(self) -> Program:
        """Our own run from x to y in those numbers."""

    def values(self, stack: Array) -> Array:
        """y for each x of a stack `(P, *x.shape)`, `(P, y_size)`; NaN where it cannot be computed."""


def with_forward(
    found: PairResult, program: Program, job: PairJob, theirs: OtherForward, resolution: float = RESOLVED
) -> PairResult:
    """The comparison with y as another forward run evaluates it, which may hide `resolution` of the largest entry of y."""
    found = replace(found, comparison=found.comparison.whole())  # another forward run may read what ours does not
    return ForwardComparison(found, program, job, theirs, resolution).found()


class _Judged(NamedTuple):
    """Statuses, numerical values and bounds of their errors for some rows; how much of the largest entry they hide."""

    status: Array
    value: Array
    error: Array
    hidden: float


@dataclass
class ForwardComparison:
    """One comparison with another forward run beside it."""

    old: PairResult
    program: Program
    job: PairJob
    theirs: OtherForward
    resolution: float
    probes: Counter[str] = field(default_factory=Counter)

    def found(self) -> PairResult:
        """The comparison with what it makes of it."""
        old, hidden = self.old.comparison, 0.0
        status, value, error = (
            np.array(np.broadcast_to(each, old.status.shape)) for each in (old.status, old.numerical, old.noise)
        )
        for rows in self.numeric.pieces(np.arange(len(status))):
            status[rows], value[rows], error[rows], unseen = self._compared(rows)
            hidden = max(hidden, unseen)
        return replace(
            self.old,
            comparison=replace(old, status=status, numerical=value, noise=error),
            method="richardson" if self.old.method == "complex-step" else self.old.method,
            notes=(*self.old.notes, *self._notes(status)),
            evaluations=dict(Counter(self.old.evaluations) + self.probes),
            hidden=hidden,
            own=old,
        )

    @cached_property
    def numeric(self) -> Numeric:
        """The numerical side that there is."""
        assert self.old.directions is not None
        return Numeric(self.program, self.old.directions, self.job, self.old.weights, self.old.comparison.known)

    @cached_property
    def size(self) -> float:
        """The size of x as a whole."""
        return rms(scales(self.numeric.directions.here)) or 1.0

    def _compared(self, rows: Array) -> _Judged:
        """Some rows by two wide steps, and by more of them where these leave an entry open or find it wrong."""
        many = len(rows) > _FEW and self.numeric.directions.single
        slopes = Rows(self._together(rows) if many else self._alone(rows), {})
        made = self._judged(rows, slopes.estimate)
        open_ = np.flatnonzero((made.status != self.old.comparison.status[rows]).any(axis=1))[: self._most]
        if len(open_):
            part = self.numeric.directions.part(rows[open_])
            finer = Rows(self._slopes(part, self._finer(rows[open_])), {})
            slopes = slopes.replaced(open_, finer) if many else slopes.bettered(open_, finer)
            made = self._judged(rows, slopes.estimate)
        return made

    def _alone(self, rows: Array) -> Estimate:
        """Derivatives of what the other one computes beyond us, each row by two steps of its own."""
        part = self.numeric.directions.part(rows)
        return self._slopes(part, np.outer(max(self._reach(part), self.size) * np.array(_WIDE), np.ones(part.count)))

    def _together(self, rows: Array) -> Estimate:
        """Bounds for all rows at once, from their sums by random signs.

        The sum is as large as any of its terms at least every other time, whatever the others are.
        """
        here, (x,) = self.numeric.directions, self.program.probes
        signs = np.zeros((_SUMS, here.here.size))
        signs[:, here.rows[rows]] = np.random.default_rng(len(rows)).choice([-1.0, 1.0], (_SUMS, len(rows)))
        part = Directions(self.program.tape.values[x], signs)
        sums = self._slopes(part, np.outer(self._reach(part) * np.array(_WIDE), np.ones(part.count)))
        bound = np.broadcast_to(np.max(np.abs(sums.value) + sums.error, axis=0), (len(rows), sums.value.shape[1]))
        return Estimate(np.zeros(bound.shape), bound, bound)

    @cached_property
    def _most(self) -> int:
        """Rows that are probed alone though their sums say nothing of them, at most."""
        return max(_FEW, int(_WORK / forward_work(self.program)))

    def _reach(self, part: Directions) -> float:
        """The step along some of the directions up to which y goes on as it begins, more than it bends."""
        part, budget = part.part(np.arange(min(part.count, _LOOKS))), self.job.budget
        here = self.numeric.cleared(flat(self.program.y))
        steps, reach = self.size * 2.0 ** np.arange(_SHORTEST, _LONGEST + 1), self.size
        moves = [(part, np.full(part.count, side * h)) for h in steps for side in (1.0, -1.0)]
        seen = [self.numeric.cleared(y) for y, _ in each_beside(self.program, moves, budget)]
        for h, up, down in zip(steps, seen[::2], seen[1::2], strict=True):
            with np.errstate(invalid="ignore", over="ignore"):
                bent, moved, size = (np.linalg.norm(v, axis=1) for v in (up + down - 2 * here, up - down, up))
                if not ((bent <= moved).all() and (size <= 2 * np.linalg.norm(here)).all()):
                    break
            reach = float(h)
        return reach

    def _finer(self, rows: Array) -> Array:
        """Steps from the size of x down to a part of each entry's own, `(K, rows)`."""
        directions, size = self.numeric.directions, scales(self.numeric.directions.here)
        own = size[directions.rows[rows]] if directions.single else np.full(len(rows), self.size)
        finest = np.minimum(_FINEST * own / self.size, 0.5 ** (_FINER - 1))
        return np.asarray(self.size * np.stack([finest ** (k / (_FINER - 1)) for k in range(_FINER)]))

    def _slopes(self, part: Directions, steps: Array) -> Estimate:
        """Derivatives of what the other one computes beyond us, from differences with steps `(K, rows)`, coarse to fine."""
        up, down = ([self._beyond(part, side * h) for h in steps] for side in (1.0, -1.0))
        lengths = np.stack([a.lengths + b.lengths for a, b in zip(up, down, strict=True)])
        louder = np.stack([np.maximum(a.louder, b.louder) for a, b in zip(up, down, strict=True)])
        valid = (lengths > 0) & (louder <= _LOUDER)
        lengths = np.where(lengths > 0, lengths, 1.0)
        with np.errstate(invalid="ignore", over="ignore"):
            quotients = np.stack([a.values - b.values for a, b in zip(up, down, strict=True)]) / lengths[..., None]
        noise = self.noise * np.max(np.where(valid, louder, 1.0), axis=0, initial=1.0)[:, None]
        there = np.fmax.reduce([each.rounding for each in (*up, *down)])  # where y is larger than here
        return richardson(quotients, lengths / 2, noise + _finite(there), valid)

    @cached_property
    def noise(self) -> Array:
        """Rounding error of one value of y, as it is compared, in the model's own numbers, `(columns,)`."""
        numeric, narrow = self.numeric, self.theirs.narrow
        y = flat(narrow.y).astype(np.float64)
        moved = numeric.projected(moved_by_rounding(narrow, mode=Rounding.ELSEWHERE) - y)
        known = [self._rounding(y[None])[0], _finite(np.max(np.abs(moved), axis=0, initial=0.0)) / ROUNDINGS]
        for line in lines(self.program):
            offsets = _APART * (np.arange(line.count) - line.count // 2)
            known += [_HEARD * _finite(roughness(self._beyond(line, offsets).values))]
        return np.maximum.reduce(known)

    def _rounding(self, y: Array) -> Array:
        """One rounding of some values of y `(P, y_size)`, as they are compared, `(P, columns)`."""
        own, weights = self.eps * np.abs(self.numeric.cleared(y)), self.numeric.weights
        return own if weights is None else np.sqrt(own**2 @ weights.T**2)

    def _beyond(self, directions: Directions, offsets: Array) -> _Seen:
        """Results of the other forward run minus ours at x + offsets, one for each direction."""
        (x,), (y,) = self.program.probes, self.program.outputs
        here, narrow = self.program.tape.values[x], self.theirs.narrow
        dtype = narrow.x.dtype
        base = float(np.max(np.abs(self.numeric.cleared(flat(self.program.tape.values[y]))), initial=0.0))

        def run(piece: range) -> _Seen:
            moves = offsets[piece.start : piece.stop, None] * directions.block(piece)
            moved = (directions.here + moves).astype(dtype)  # both start from the same numbers
            stack = moved.astype(here.dtype)
            ours = flat_stack(self.program.run({x: shaped(stack, here)}).outputs[0])
            theirs = self.theirs.values(moved.reshape(-1, *here.shape))
            entries = directions.entries(piece)
            lengths = np.abs(offsets[piece.start : piece.stop])
            if entries is not None:
                lengths = np.abs(stack[np.arange(len(piece)), entries] - directions.here[entries])
            louder = np.max(np.abs(self.numeric.cleared(ours)), axis=1, initial=0.0) / (base or np.inf)
            louder = np.where(np.isfinite(louder), louder, np.inf)
            return _Seen(self.numeric.projected(theirs - ours), lengths, louder, self._rounding(ours))

        self.probes["real"] += 2 * directions.count
        size = self.program.bytes_per_probe()
        parts = [seen() for _, seen in in_chunks(run, directions.count, size, self.job.budget, self.program.worth)]
        return _Seen(*map(np.concatenate, zip(*parts, strict=True)))

    def _judged(self, rows: Array, slopes: Estimate) -> _Judged:
        """The comparison of some rows whose derivatives are ours plus `slopes`."""
        parts = [self._judged_block(rows[some], slopes.part(some)) for some in blocks(*slopes.value.shape)]
        status, value, error, hidden = zip(*parts, strict=True)
        return _Judged(np.concatenate(status), np.concatenate(value), np.concatenate(error), max(hidden))

    def _judged_block(self, rows: Array, slopes: Estimate) -> _Judged:
        old = self.old.comparison
        t, d, first = old.theoretical[rows], old.numerical[rows], old.status[rows]
        own, largest, known = np.broadcast_to(old.noise, old.status.shape)[rows], self.scale, np.isfinite(slopes.value)
        value, error = d + np.where(known, slopes.value, 0.0), own + np.where(known, slopes.error, np.inf)
        size = magnitude(t, value)
        tol, allow = _SAFETY * error + 32 * self.eps * size, allowance(size, largest, self.job.tolerance)
        with np.errstate(invalid="ignore"):
            gap = np.abs(t - value)
            wrong = gap - tol > allow
            nothing = (t == 0) & (d == 0) & (tol <= self.trifle)
            seen = (tol <= self.resolution * largest) | (gap + tol <= allow) | nothing
            other = np.abs(slopes.value) > tol  # than ours
        passed, failed = (first == Status.PASS) | (first == Status.KINK_OK), first == Status.FAIL
        # a rule, of what the other one computes; it is our forward run that is not
        right = failed & seen & other & ~wrong
        left = np.where(seen, first, np.where(known, Status.NOISE, Status.DOMAIN))
        status = np.where(passed, np.where(wrong, Status.FAIL, left), np.where(right, Status.PASS, first))
        taken = passed | right | (failed & wrong)  # the others fail, or are open, by what we compute
        heard = passed & (status == first) & ~nothing & (largest > 0)
        hidden = np.max((allow + 2 * tol) / np.where(largest > 0, largest, 1.0), where=heard, initial=0.0)
        return _Judged(status.astype(np.int8), np.where(taken, value, d), np.where(taken, error, own), float(hidden))

    @cached_property
    def scale(self) -> Array:
        """The largest entry for each y."""
        return self.old.comparison.scale

    @cached_property
    def eps(self) -> float:
        """The distance from 1 to the next number of those that y is computed in."""
        return epsilon(self.theirs.narrow.y.dtype)

    @cached_property
    def trifle(self) -> float:
        """A slope that is of no matter to y."""
        y, weights = self.numeric.cleared(flat(self.program.y)), self.numeric.weights
        largest = float(np.max(np.abs(y), initial=0.0))
        return _TRIFLE * largest * (1.0 if weights is None else float(np.abs(weights).max())) / self.size

    def _notes(self, status: Array) -> Iterator[str]:
        """Notes on entries where the other one differs from us, and on those it cannot judge."""
        name, old = self.theirs.name, self.old.comparison.status
        passed = np.isin(old, PASSED)
        if count := _count(passed & (status == Status.FAIL)):
            entries = counted(count, "entry")
            yield f"{entries} by what {name} computes alone: the rules agree with gradcheck's own forward run"
        if count := _count((old == Status.FAIL) & (status == Status.PASS)):
            yield f"{counted(count, 'entry')} right by what {name} computes, and wrong by gradcheck's own forward run"
        if count := _count(passed & (status == Status.NOISE)):
            yield (
                f"{counted(count, 'entry')} not judged, since rounding in {name} may hide more than {self.resolution:g} "
                "of the largest for the same y: --mode directional, larger values (--val-range), or a higher --rtol "
                "may settle them"
            )
        if count := _count(passed & (status == Status.DOMAIN)):
            yield f"{counted(count, 'entry')} not judged, since {name} gives nothing finite beside x"


class _Seen(NamedTuple):
    """Runs of the other one beside ours: its results minus ours `(rows, columns)`, distances from x, sizes of y there
    relative to y at x, and one rounding of each result `(rows, columns)`."""

    values: Array
    lengths: Array
    louder: Array
    rounding: Array


def _finite(values: Array) -> Array:
    return np.where(np.isfinite(values), values, 0.0)


def _count(claims: Array) -> int:
    return int(np.count_nonzero(claims))
