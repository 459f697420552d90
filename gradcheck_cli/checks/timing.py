"""Time and memory that a check takes here, predicted before it starts.

Time: operations are counted, and a few probes of the check's own programs are timed.  A few rows of a Jacobian by
probes and a few of its columns by the rules also show which share of entries the complex step leaves open, for the
ladder of step sizes.  The choice of a mode never depends on times, only on counts: see `jacobian/cost.py`.

Memory: estimated from the forward run, for one pair, without the interpreter: the model, the forward run, a backward
pass, a chunk of probes on each thread, directions of x, and in a full comparison both Jacobians.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

import numpy as np

from gradcheck_cli.autodiff.backward import units_between
from gradcheck_cli.autodiff.tape import Step
from gradcheck_cli.autodiff.weights import TapeValues
from gradcheck_cli.checks.assemble import Pair
from gradcheck_cli.checks.problem import Problem
from gradcheck_cli.compare.audit import AUDITED
from gradcheck_cli.engine.chunks import Budget
from gradcheck_cli.engine.program import Program
from gradcheck_cli.errors import GradcheckError, LimitError
from gradcheck_cli.graph import Array, is_inexact
from gradcheck_cli.graph.memory import generous, owned, spell
from gradcheck_cli.jacobian.cost import HELD, SOON, forward_work, pattern_work
from gradcheck_cli.jacobian.directions import DOT_TESTS, PROJECTIONS, Directions, directions_within, reals, spread
from gradcheck_cli.jacobian.jacobian import EPS, ROUNDED_RUNS, Backward, by_complex_step, each_beside
from gradcheck_cli.points.point import Point
from gradcheck_cli.settings import Settings
from gradcheck_cli.verdict.differences import ALL_RUNGS, CHEAP_RUNGS
from gradcheck_cli.verdict.rule import Status, Tolerance, ground_of, screened

_TIMED = 0.02  # seconds of a stack of probes above which no larger one is timed
_MOST_PROBES = 64  # in a stack that is timed
_ONCE = 0.2  # seconds of a run that is not repeated, although a first run includes some set-up
_NODES = 8  # timed of a survey
_PROBE_STEP = 1e-6  # of differences that are timed
_ROUNDED = 3.0  # cost of a run with rounded results, in runs
_LAWS = 5.0, 3.0  # probes backward and forward for the laws
_STEP = 1e-5  # seconds of interpreter time per step
_REST = 30.0, 20.0  # passes over the steps for all that is not counted: for all pairs of one y, for each pair
_DIFFERENCES = 2.0 * len(CHEAP_RUNGS)  # evaluations for a row by differences
_PASSES = 80  # of a comparison over all its entries
_GAIN = 0.7  # speed-up by each thread beyond the first
FREE = 256 << 20  # bytes that any machine has: a check that takes less is never refused
_LINEAR, _OTHER = 1.5, 4.0  # bytes of a backward pass per byte of a step's result: linear operators, and others
_AT_MOST = 32.0  # bound of the memory per thread, in units of the tape
_RUN = 2.5  # memory of a run in units of its chunk: temporaries of kernels, and what malloc keeps per thread
_ENDS, _EACH = 4.0, 2.0  # copies of x and y that any mode makes, and more of them for each direction
_ALONG = {"directional": PROJECTIONS, "nodes": 4}  # directions, or dot tests, per comparison


@dataclass(frozen=True, slots=True)
class Forecast:
    """A pair, a description of its comparison, and the predicted seconds."""

    title: str
    what: str
    seconds: float

    def __str__(self) -> str:
        return f"{self.title}: {self.what}, about {duration(self.seconds)}"


def forecasts(pairs: Sequence[Pair], problems: Mapping[str, Problem]) -> Iterator[Forecast]:
    """Forecast of each pair, whose mode is known; what pairs of one y and mode share counts for the first of them."""
    for y, mode in dict.fromkeys((pair.y, pair.mode) for pair in pairs if pair.error is None):
        problem, mine = problems[y], [p for p in pairs if (p.y, p.mode) == (y, mode) and p.error is None]
        timings = PairTimings(problem, [pair.x for pair in mine])
        largest = max(mine, key=lambda pair: forward_work(problem.program(pair.x)))
        for pair in mine:
            timing = timings.of(pair.x) if mode == "full" else timings.smaller(pair.x, largest.x)
            seconds = alone(pair, problem, timing)
            seconds += shared(largest, problem, timings, timing) if pair is mine[0] else 0.0
            yield Forecast(pair.title, said(pair, problem), seconds * problem.settings.points)


def shared(pair: Pair, problem: Problem, timings: PairTimings, timing: PairTiming) -> float:
    """Seconds of what all pairs of one y share: the backward passes."""
    _, columns = size(pair, problem)
    open_ = _ROUNDED * ROUNDED_RUNS if timing.left else 0.0
    stacked = timings.cotangents.seconds(columns * (1 + open_)) / _speedup(problem.settings)
    seconds = timings.building + stacked + timings.cotangents.seconds(_LAWS[0], _LAWS[0])
    seconds += timings.survey(pair.x) if pair.mode == "nodes" else 0.0
    return seconds + _REST[0] * _STEP * len(problem.program(pair.x).steps)


def alone(pair: Pair, problem: Problem, timing: PairTiming) -> float:
    """Seconds of what a pair does not share with others."""
    rows, columns = size(pair, problem)
    program = problem.program(pair.x)
    method = "richardson" if program.obstacle is not None else problem.settings.method
    probes = groups(problem, pair.x, rows) if pair.mode == "full" else rows
    audited = 1 if pair.mode in ("directional", "nodes") else AUDITED
    seconds = timing.values.seconds(_ROUNDED * ROUNDED_RUNS + 2 * len(CHEAP_RUNGS) * audited, 2)
    seconds += timing.jvp.seconds(_LAWS[1], _LAWS[1])
    if method in ("richardson", "central", "forward"):
        seconds += timing.values.seconds(probes * _DIFFERENCES) / _speedup(problem.settings)
    else:
        left = rows * timing.left
        seconds += timing.jvp.seconds(probes + _ROUNDED * ROUNDED_RUNS * left) / _speedup(problem.settings)
        seconds += timing.values.seconds(2 * len(ALL_RUNGS) * left) / _speedup(problem.settings)
    seconds += _REST[1] * _STEP * len(program.steps)
    return seconds + rows * columns * _PASSES * pass_over_an_entry()


def size(pair: Pair, problem: Problem) -> tuple[int, int]:
    """Rows and columns that are compared of a pair."""
    rows, columns = reals(problem.value(pair.x)), reals(problem.value(pair.y))
    if pair.mode == "sampled":
        drawn = math.isqrt(problem.settings.max_entries)
        return min(drawn, rows), min(drawn, columns)
    if pair.mode == "full":
        return rows, columns
    count = DOT_TESTS if pair.mode == "nodes" else PROJECTIONS
    return min(count, rows), min(count, columns)


def groups(problem: Problem, x: str, rows: int) -> int:
    """Number of probes for the rows: the number of colors, where a coloring is found quickly."""
    soon = pattern_work(problem.program(x), reals(problem.value(x))) <= SOON
    coloring = problem.structure(x).coloring if soon else None
    return rows if coloring is None else min(rows, coloring.count)


def said(pair: Pair, problem: Problem) -> str:
    """Description of what is compared of a pair."""
    rows, columns = reals(problem.value(pair.x)), reals(problem.value(pair.y))
    if pair.mode == "full":
        return f"full, {rows} x {columns} entries"
    if pair.mode == "sampled":
        return f"sampled, {min(problem.settings.max_entries, rows * columns)} of {rows} x {columns} entries"
    return f"{pair.mode}, {len(problem.program(pair.x).steps)} steps"


def duration(seconds: float) -> str:
    """A time in words: "12 min"."""
    for unit, name in ((86400.0, "days"), (3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{max(seconds, 0.1):.1f} s"


def _speedup(settings: Settings) -> float:
    return 1 + _GAIN * (settings.jobs - 1)


@dataclass(frozen=True, slots=True)
class Stacks:
    """Seconds that stacks of probes take: per stack (`once`) and per probe (`each`)."""

    once: float
    each: float
    most: int = 1  # probes in one

    def __mul__(self, times: float) -> Stacks:
        return Stacks(self.once * times, self.each * times, self.most)

    def seconds(self, probes: float, stacks: float = 1.0) -> float:
        """Seconds of some probes in some stacks, or in as many stacks as they need."""
        return self.once * max(stacks, probes / self.most) + self.each * probes


@dataclass(frozen=True, slots=True)
class PairTiming:
    """Timings of one pair, and `left`: the fraction of its rows that the complex step leaves open."""

    jvp: Stacks
    values: Stacks
    left: float


class PairTimings:
    """Timings of all pairs of one y, which share a backward pass; its nodes are taken off the tape after timing."""

    def __init__(self, problem: Problem, xs: Sequence[str]) -> None:
        self.problem, self.xs = problem, tuple(xs)
        self.budget = replace(problem.budget, jobs=1)
        self.columns = np.zeros(0, int)
        self.found: list[Array] = []
        self._largest: PairTiming | None = None
        start = time.perf_counter()
        try:
            with problem.tape.aside():
                backward = Backward(problem.tape, problem.theory_name(problem.y), [problem.theory_name(x) for x in xs])
                self.building = time.perf_counter() - start
                self.cotangents = stacks(partial(self._cotangents, backward), self._most(backward.program))
        except GradcheckError:  # a missing rule, which the check reports
            self.building, self.cotangents = 0.0, Stacks(0.0, 0.0)

    def smaller(self, x: str, largest: str) -> PairTiming:
        """Timing of a pair, scaled by operations from that of the largest pair."""
        if self._largest is None:
            self._largest = self.of(largest, alone=False)
        share = forward_work(self.problem.program(x)) / forward_work(self.problem.program(largest))
        return replace(self._largest, jvp=self._largest.jvp * share, values=self._largest.values * share)

    def of(self, x: str, *, alone: bool = True) -> PairTiming:
        """Timing of one pair by probes of single entries (`alone`) or by random directions."""
        program, rows = self.problem.program(x), np.zeros(0, int)
        here, before = program.tape.values[program.probes[0]], program.evaluations.copy()
        numbers: list[Array] = []

        def directions(count: int) -> Directions:
            nonlocal rows
            rng = np.random.default_rng(0)
            rows = spread(rng, reals(here), count)
            return Directions(here, rows if alone else rng.normal(size=(count, reals(here))))

        def jvp(count: int) -> None:
            numbers[:] = [by_complex_step(program, directions(count), self.budget)]

        def values(count: int) -> None:
            probed = directions(count)
            next(each_beside(program, [(probed, np.full(probed.count, _PROBE_STEP))], self.budget))

        most = self._most(program)
        real = stacks(values, most)
        complex_ = stacks(jvp, most) if program.obstacle is None else Stacks(0.0, 0.0)
        program.evaluations.clear()  # timed runs do not count as evaluations of the check
        program.evaluations.update(before)
        left = self._left(x, rows, numbers[0]) if numbers and alone else 0.0
        return PairTiming(complex_, real, left)

    def survey(self, x: str) -> float:
        """Seconds of a survey of all nodes between x and y, extrapolated from some of them, small and large."""
        tape, x, y = self.problem.tape, self.problem.theory_name(x), self.problem.theory_name(self.problem.y)
        units = units_between(tape, [x], [y])
        units.sort(key=lambda unit: sum(tape.values[n].size for n in unit.outputs if n in tape.values))
        reached = {x, *(n for unit in units for n in unit.outputs)}
        some = (
            [units[(2 * i + 1) * len(units) // (2 * _NODES)] for i in range(_NODES)] if len(units) > _NODES else units
        )
        from gradcheck_cli.checks.diagnose.nodes_alone import check_unit

        start = time.perf_counter()
        for unit in some:
            operands, outputs = ([n for n in names if n in reached] for names in (unit.operands, unit.outputs))
            check_unit(tape, unit, tuple(operands), tuple(outputs), self.problem.settings.seed, self.budget)
        return (time.perf_counter() - start) * len(units) / max(len(some), 1)

    def _most(self, program: Program) -> int:
        return max(2, self.budget.chunk(2 * program.bytes_per_probe(), program.worth))

    def _cotangents(self, backward: Backward, count: int) -> None:
        size = reals(backward.seed.value)
        self.columns = spread(np.random.default_rng(1), size, count)
        weights = np.zeros((len(self.columns), size))
        weights[np.arange(len(self.columns)), self.columns] = 1
        self.found = backward.along(weights, self.budget)

    def _left(self, x: str, rows: Array, numerical: Array) -> float:
        """The fraction of rows with an open entry, estimated from the entries that were computed both ways."""
        if not self.found or not len(rows):
            return 0.0
        theoretical = self.found[self.xs.index(x)].T
        given, right = theoretical[rows], numerical[:, self.columns]
        open_ = screened(given, right, 4 * EPS, Tolerance(), ground_of(theoretical, theoretical)) != Status.PASS
        return float(1 - (1 - open_.mean()) ** numerical.shape[1])


def stacks(run: Callable[[int], object], most: int) -> Stacks:
    """Seconds of stacks of probes; `run(count)` runs one stack."""
    one = many = timed(partial(run, 1))
    count = 1
    while count < min(most, _MOST_PROBES) and many < _TIMED:
        count = min(4 * count, most, _MOST_PROBES)
        many = timed(partial(run, count))
    if count == 1:
        return Stacks(0.0, one)
    each = max((many - one) / (count - 1), many / count / _MOST_PROBES)
    return Stacks(max(one - each, 0.0), each, most)


def timed(run: Callable[[], object]) -> float:
    """Seconds of a call: the faster of two runs, unless the first one takes long."""
    start = time.perf_counter()
    run()
    first = time.perf_counter() - start
    if first > _ONCE:
        return first
    start = time.perf_counter()
    run()
    return min(first, time.perf_counter() - start)


@cache
def pass_over_an_entry(count: int = 1 << 20) -> float:
    """Seconds for each entry of an array operation whose arrays do not fit in cache."""
    entries = np.ones(count)
    return timed(lambda: np.add(entries, entries)) / count


def threads(problem: Problem, x: str, mode: str) -> int:
    """Number of threads on which a pair fits the memory limit in a mode: all, one, or none."""
    most = max(problem.budget.memory, FREE)
    each = dict.fromkeys((problem.settings.jobs, 1))
    return next((jobs for jobs in each if needed(problem, x, mode, jobs) <= most), 0)


def beyond(problem: Problem, x: str, mode: str) -> LimitError:
    """The error for a pair that does not fit the memory limit in any mode; it names the limit that is needed."""
    weights, size = sum(v.nbytes for v in problem.graph.constants.values()), needed(problem, x, mode, 1)
    limit = problem.budget.memory
    of = f", {spell(weights)} of it for the model's weights" if weights > FREE else ""
    return LimitError(
        f"d {problem.y}/d {x} takes about {spell(size)}{of}; --memory-limit is {spell(limit)}.  "
        f"--memory-limit {generous(size)} allows it; smaller sizes (--x-shape, --dim) need less",
        code="GC602",
    )


def needed(problem: Problem, x: str, mode: str, jobs: int) -> float:
    """Bytes that a pair takes in a mode on `jobs` threads, the model included."""
    weights = sum(v.nbytes for v in problem.graph.constants.values())
    jacobians = HELD * reals(problem.value(x)) * reals(problem.value(problem.y)) if mode == "full" else 0
    if jacobians == 0 and weights + _AT_MOST * jobs * problem.held <= FREE:  # without a loop over the steps
        return float(weights + problem.held)
    return weights + working(problem, x, mode, jobs) + jacobians


def working(problem: Problem, x: str, mode: str, jobs: int) -> float:
    """Bytes beside the model: the forward run, x and y, and a backward pass, or a large weight's cotangent if more."""
    tape, program, limit = problem.tape, problem.program(x), problem.budget.memory
    turn = max((recipe.like.nbytes for recipe in tape.values.recipes.values()), default=0)
    probe, count = program.bytes_per_probe(), _ALONG.get(mode, DOT_TESTS)
    sizes = problem.value(x).nbytes, problem.value(problem.y).nbytes
    ends = sum(size * (_ENDS + _EACH * directions_within(size, count, limit)) for size in sizes)
    chunk = probe * Budget(limit, jobs).chunk(probe, program.worth)
    back = _backward([step for _, step in program.steps], tape.values)
    return problem.held + max(float(turn), back + _RUN * jobs * chunk) + ends


def _backward(steps: Sequence[Step], values: TapeValues) -> float:
    """Bytes of a backward pass through some steps."""

    def made(*, linear: bool) -> float:
        here = [step for step in steps if bool(step.op.linear) is linear]
        return float(owned(values.like(n) for step in here for n in step.node.outputs if n in values))

    return _LINEAR * made(linear=True) + _OTHER * made(linear=False)


def largest(point: Point, limit: int) -> float:
    """Bytes beside the model that any pair at a point may take, known before there are pairs.

    They include whole Jacobians of all float inputs and all outputs, as far as the memory limit lets them grow.
    """
    values, steps = point.tape.values, point.tape.steps
    made = {name: values.like(name) for step in steps for name in step.node.outputs if name in values}
    read = {name for step in steps for name in step.operands}
    rows = sum(x.size for x in point.feeds.values() if isinstance(x, np.ndarray) and is_inexact(x.dtype))
    columns = sum(y.size for name, y in made.items() if name not in read)
    run = sum(y.nbytes for y in made.values())
    return (1.0 + _RUN) * run + _backward(steps, values) + min(HELD * rows * columns, limit)
