"""How long a check will take here, told before it starts: what it does is counted, what that takes is timed.

The mode of a check never depends on it: see `jacobians/cost.py`.

How fast what a check does thousands of times is here: a few probes of its own programs are timed.

A few rows of a Jacobian by probes, and a few of its columns by the rules, tell something else besides: where they meet,
how many entries the complex step leaves open, which then go to the ladder.

What a check holds at its fullest moment, estimated from the forward run: what does not fit is done in another way.

What the interpreter takes is not in it.  Of all modes the estimate is for one pair: the model, the forward run, a backward
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
from gradcheck_cli.autodiff.weights import Values
from gradcheck_cli.checks.assemble import Pair
from gradcheck_cli.checks.sides import Sides
from gradcheck_cli.compare.audit import AUDITED
from gradcheck_cli.compare.partial import DOT_TESTS, PROJECTIONS, directions_within, spread
from gradcheck_cli.engine.chunks import Budget
from gradcheck_cli.engine.program import Program
from gradcheck_cli.errors import GradcheckError, LimitError
from gradcheck_cli.graph import Array, Graph, is_inexact
from gradcheck_cli.graph.memory import generous, owned, spell
from gradcheck_cli.jacobian.cost import HELD, SOON, forward_work, pattern_work
from gradcheck_cli.jacobian.directions import Directions, reals
from gradcheck_cli.jacobian.jacobian import EPS, JITTERED, Backward, beside, by_complex_step
from gradcheck_cli.points.point import Point
from gradcheck_cli.settings import Settings
from gradcheck_cli.verdict.differences import ALL_RUNGS, CHEAP_RUNGS
from gradcheck_cli.verdict.rule import Status, Tolerance, ground_of, screened

_TIMED = 0.02  # seconds of a stack of probes after which a larger one tells no more
_MOST = 64  # probes in it
_ONCE = 0.2  # seconds of a run that is not made again, though what a first run sets up is in it
_NODES = 8  # that are looked at
_PACE_STEP = 1e-6  # of a value that is probed


@dataclass(frozen=True, slots=True)
class Stacks:
    """Seconds that stacks of probes take: each stack, and each probe."""

    once: float
    each: float
    most: int = 1  # probes in one

    def __mul__(self, times: float) -> Stacks:
        return Stacks(self.once * times, self.each * times, self.most)

    def seconds(self, probes: float, stacks: float = 1.0) -> float:
        """Of so many probes in so many stacks, or in as many as they need."""
        return self.once * max(stacks, probes / self.most) + self.each * probes


@dataclass(frozen=True, slots=True)
class Pace:
    """What was timed of a pair, and `left`: the fraction of its rows that the complex step leaves open."""

    tangents: Stacks
    values: Stacks
    left: float


class Paces:
    """Of all pairs of one y: they share the pass backward, which is put on the tape and taken off again."""

    def __init__(self, side: Sides, xs: Sequence[str], settings: Settings) -> None:
        self.side, self.xs, self.settings = side, tuple(xs), settings
        self.budget = Budget(settings.memory_limit, 1)
        self.columns = np.zeros(0, int)
        self.found: list[Array] = []
        self._largest: Pace | None = None
        start = time.perf_counter()
        try:
            with side.tape.aside():
                backward = Backward(side.tape, side.theory_name(side.y), [side.theory_name(x) for x in xs])
                self.building = time.perf_counter() - start
                self.cotangents = stacks(partial(self._cotangents, backward), self._most(backward.program))
        except GradcheckError:  # without a rule there is no gradient, which the check itself says
            self.building, self.cotangents = 0.0, Stacks(0.0, 0.0)

    def smaller(self, x: str, largest: str) -> Pace:
        """That of a pair as by its operations, another being timed."""
        if self._largest is None:
            self._largest = self.of(largest, alone=False)
        share = forward_work(self.side.program(x)) / forward_work(self.side.program(largest))
        return replace(self._largest, tangents=self._largest.tangents * share, values=self._largest.values * share)

    def of(self, x: str, *, alone: bool = True) -> Pace:
        """That of one pair, timed with probes of single entries or of all at once."""
        program, rows = self.side.program(x), np.zeros(0, int)
        here, before = program.tape.values[program.probes[0]], program.evaluations.copy()
        numbers: list[Array] = []

        def directions(count: int) -> Directions:
            nonlocal rows
            rng = np.random.default_rng(0)
            rows = spread(rng, reals(here), count)
            return Directions(here, rows if alone else rng.normal(size=(count, reals(here))))

        def tangents(count: int) -> None:
            numbers[:] = [by_complex_step(program, directions(count), self.budget)]

        def values(count: int) -> None:
            probed = directions(count)
            beside(program, probed, np.full(probed.count, _PACE_STEP), self.budget)

        most = self._most(program)
        real = stacks(values, most)
        complex_ = stacks(tangents, most) if program.obstacle is None else Stacks(0.0, 0.0)
        program.evaluations.clear()  # what is timed is no part of the check
        program.evaluations.update(before)
        left = self._left(x, rows, numbers[0]) if numbers and alone else 0.0
        return Pace(complex_, real, left)

    def survey(self, x: str) -> float:
        """Seconds of looking at all nodes between x and y, as by some from the smallest to the largest."""
        tape, x, y = self.side.tape, self.side.theory_name(x), self.side.theory_name(self.side.y)
        units = units_between(tape, [x], [y])
        units.sort(key=lambda unit: sum(tape.values[n].size for n in unit.outputs if n in tape.values))
        reached = {x, *(n for unit in units for n in unit.outputs)}
        some = (
            [units[(2 * i + 1) * len(units) // (2 * _NODES)] for i in range(_NODES)] if len(units) > _NODES else units
        )
        from gradcheck_cli.checks.diagnose.nodes_alone import (
            check_unit,  # brings what a check in full needs after a failure only
        )

        start = time.perf_counter()
        for unit in some:
            operands, outputs = ([n for n in names if n in reached] for names in (unit.operands, unit.outputs))
            check_unit(tape, unit, tuple(operands), tuple(outputs), self.settings.seed, self.budget)
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
        """The fraction of rows with an open entry, as by those of the entries that were computed both ways."""
        if not self.found or not len(rows):
            return 0.0
        theoretical = self.found[self.xs.index(x)].T
        given, right = theoretical[rows], numerical[:, self.columns]
        open_ = screened(given, right, 4 * EPS, Tolerance(), ground_of(theoretical, theoretical)) != Status.PASS
        return float(1 - (1 - open_.mean()) ** numerical.shape[1])


def stacks(run: Callable[[int], object], most: int) -> Stacks:
    """Seconds of stacks of probes, of which `run` runs one."""
    one = many = timed(partial(run, 1))
    count = 1
    while count < min(most, _MOST) and many < _TIMED:
        count = min(4 * count, most, _MOST)
        many = timed(partial(run, count))
    if count == 1:
        return Stacks(0.0, one)
    each = max((many - one) / (count - 1), many / count / _MOST)
    return Stacks(max(one - each, 0.0), each, most)


@cache
def pass_over_an_entry(count: int = 1 << 20) -> float:
    """Seconds that an entry takes when an array that no cache holds is made."""
    entries = np.ones(count)
    return timed(lambda: np.add(entries, entries)) / count


def timed(run: Callable[[], object]) -> float:
    """Seconds of a call, of the faster of two unless it is long."""
    start = time.perf_counter()
    run()
    first = time.perf_counter() - start
    if first > _ONCE:
        return first
    start = time.perf_counter()
    run()
    return min(first, time.perf_counter() - start)


_JITTER = 3.0  # runs that a run with moved results takes
_LAWS = 5.0, 3.0  # probes backward and forward that the laws of a gradient take
_STEP = 1e-5  # seconds that Python takes for a step
_REST = 30.0, 20.0  # passes over the steps for what is not counted: of all pairs of one y, of each
_DIFFERENCES = 2.0 * len(CHEAP_RUNGS)  # values for a row by differences, whatever is said of those
_PASSES = 80  # over all entries that a comparison makes
_GAIN = 0.7  # of each thread beyond the first


@dataclass(frozen=True, slots=True)
class Forecast:
    """A pair, what is compared of it and how long that takes, in seconds."""

    title: str
    what: str
    seconds: float

    def __str__(self) -> str:
        return f"{self.title}: {self.what}, about {duration(self.seconds)}"


def forecasts(pairs: Sequence[Pair], sides: Mapping[str, Sides], settings: Settings) -> Iterator[Forecast]:
    """For each pair, its mode being known; what pairs of one y and mode share counts for the first of them."""
    for y, mode in dict.fromkeys((pair.y, pair.mode) for pair in pairs if pair.error is None):
        side, mine = sides[y], [p for p in pairs if (p.y, p.mode) == (y, mode) and p.error is None]
        paces = Paces(side, [pair.x for pair in mine], settings)
        largest = max(mine, key=lambda pair: forward_work(side.program(pair.x)))
        for pair in mine:
            pace = paces.of(pair.x) if mode == "full" else paces.smaller(pair.x, largest.x)
            seconds = alone(pair, side, pace, settings)
            seconds += shared(largest, side, paces, pace, settings) if pair is mine[0] else 0.0
            yield Forecast(pair.title, said(pair, side, settings), seconds * settings.points)


def shared(pair: Pair, side: Sides, paces: Paces, pace: Pace, settings: Settings) -> float:
    """Seconds of what all pairs of one y share: passes backward."""
    _, columns = size(pair, side, settings)
    open_ = _JITTER * JITTERED if pace.left else 0.0
    stacked = paces.cotangents.seconds(columns * (1 + open_)) / _cores(settings)
    seconds = paces.building + stacked + paces.cotangents.seconds(_LAWS[0], _LAWS[0])
    seconds += paces.survey(pair.x) if pair.mode == "nodes" else 0.0
    return seconds + _REST[0] * _STEP * len(side.program(pair.x).steps)


def alone(pair: Pair, side: Sides, pace: Pace, settings: Settings) -> float:
    """Seconds of what a pair shares with no other."""
    rows, columns = size(pair, side, settings)
    program = side.program(pair.x)
    method = "richardson" if program.obstacle is not None else settings.method
    probes = groups(side, pair.x, rows) if pair.mode == "full" else rows
    audited = 1 if pair.mode in ("directional", "nodes") else AUDITED
    seconds = pace.values.seconds(_JITTER * JITTERED + 2 * len(CHEAP_RUNGS) * audited, 2)
    seconds += pace.tangents.seconds(_LAWS[1], _LAWS[1])
    if method in ("richardson", "central", "forward"):
        seconds += pace.values.seconds(probes * _DIFFERENCES) / _cores(settings)
    else:
        left = rows * pace.left
        seconds += pace.tangents.seconds(probes + _JITTER * JITTERED * left) / _cores(settings)
        seconds += pace.values.seconds(2 * len(ALL_RUNGS) * left) / _cores(settings)
    seconds += _REST[1] * _STEP * len(program.steps)
    return seconds + rows * columns * _PASSES * pass_over_an_entry()


def size(pair: Pair, side: Sides, settings: Settings) -> tuple[int, int]:
    """Rows and columns of what a pair compares."""
    rows, columns = reals(side.value(pair.x)), reals(side.value(pair.y))
    if pair.mode == "sampled":
        drawn = math.isqrt(settings.max_entries)
        return min(drawn, rows), min(drawn, columns)
    if pair.mode == "full":
        return rows, columns
    count = DOT_TESTS if pair.mode == "nodes" else PROJECTIONS
    return min(count, rows), min(count, columns)


def groups(side: Sides, x: str, rows: int) -> int:
    """How many probes the rows take: as many as colors, where those are soon known."""
    soon = pattern_work(side.program(x), reals(side.value(x))) <= SOON
    coloring = side.structure(x).coloring if soon else None
    return rows if coloring is None else min(rows, coloring.count)


def said(pair: Pair, side: Sides, settings: Settings) -> str:
    """What of a pair is compared, in words."""
    rows, columns = reals(side.value(pair.x)), reals(side.value(pair.y))
    if pair.mode == "full":
        return f"full, {rows} x {columns} entries"
    if pair.mode == "sampled":
        return f"sampled, {min(settings.max_entries, rows * columns)} of {rows} x {columns} entries"
    return f"{pair.mode}, {len(side.program(pair.x).steps)} steps"


def duration(seconds: float) -> str:
    """A time as one says it."""
    for unit, name in ((86400.0, "days"), (3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{max(seconds, 0.1):.1f} s"


def _cores(settings: Settings) -> float:
    """How many times faster stacks are on all _cores that a check may use."""
    return 1 + _GAIN * (settings.jobs - 1)


FREE = 256 << 20  # bytes that any machine has: a check that takes less is never refused
_LINEAR, _OTHER = 1.5, 4.0  # bytes of a backward pass for each that a step made: rules of others need more products
_AT_MOST = 32.0  # times what the tape holds, for each thread
_RUN = 2.5  # and of a run for a chunk of probes: what kernels hold in between, what malloc keeps for each thread
_ENDS, _EACH = 4.0, 2.0  # times x and y: what any mode makes of them, and what each direction adds to that
_ALONG = {"directional": PROJECTIONS, "nodes": 4}  # directions that a pair, or a node, is compared along; or dot tests


def needed(sides: Sides, x: str, graph: Graph, mode: str, jobs: int) -> float:
    """Bytes that a pair takes in a mode on so many threads, the model among them."""
    weights = sum(v.nbytes for v in graph.constants.values())
    jacobians = HELD * reals(sides.value(x)) * reals(sides.value(sides.y)) if mode == "full" else 0
    if jacobians == 0 and weights + _AT_MOST * jobs * sides.held <= FREE:  # seen without a look at each step
        return float(weights + sides.held)
    return weights + working(sides, x, mode, jobs) + jacobians


def threads(sides: Sides, x: str, graph: Graph, mode: str) -> int:
    """On how many threads a pair fits the memory limit in a mode: all, one, or none."""
    most = max(sides.settings.memory_limit, FREE)
    each = dict.fromkeys((sides.settings.jobs, 1))
    return next((jobs for jobs in each if needed(sides, x, graph, mode, jobs) <= most), 0)


def beyond(sides: Sides, x: str, graph: Graph, mode: str) -> LimitError:
    """The error for a pair that takes more than the memory limit, whichever way: with the limit that is needed."""
    weights, size = sum(v.nbytes for v in graph.constants.values()), needed(sides, x, graph, mode, 1)
    of = f", {spell(weights)} of it for the model's weights" if weights > FREE else ""
    return LimitError(
        f"d {sides.y}/d {x} takes about {spell(size)}{of}; --memory-limit is {spell(sides.settings.memory_limit)}.  "
        f"--memory-limit {generous(size)} allows it; smaller sizes (--x-shape, --dim) need less",
        code="GC602",
    )


def working(sides: Sides, x: str, mode: str, jobs: int) -> float:
    """Bytes beside the model: the forward run, and whichever is more of a backward pass and a large weight's cotangent."""
    tape, program, settings = sides.tape, sides.program(x), sides.settings
    turn = max((recipe.like.nbytes for recipe in tape.values.recipes.values()), default=0)
    probe, limit, count = program.bytes_per_probe(), settings.memory_limit, _ALONG.get(mode, DOT_TESTS)
    sizes = sides.value(x).nbytes, sides.value(sides.y).nbytes
    ends = sum(size * (_ENDS + _EACH * directions_within(size, count, limit)) for size in sizes)
    chunk = probe * Budget(limit, jobs).chunk(probe, program.worth)
    back = _backward([step for _, step in program.steps], tape.values)
    return sides.held + max(float(turn), back + _RUN * jobs * chunk) + ends


def _backward(steps: Sequence[Step], values: Values) -> float:
    """Bytes of a backward pass through some steps."""

    def made(*, linear: bool) -> float:
        here = [step for step in steps if bool(step.op.linear) is linear]
        return float(owned(values.like(n) for step in here for n in step.node.outputs if n in values))

    return _LINEAR * made(linear=True) + _OTHER * made(linear=False)


def largest(point: Point, limit: int) -> float:
    """Bytes beside the model that any pair at a point may take, known before there are pairs: whole Jacobians are in
    it, of all that floats in and all that comes out, as far as the memory limit lets them grow."""
    values, steps = point.tape.values, point.tape.steps
    made = {name: values.like(name) for step in steps for name in step.node.outputs if name in values}
    read = {name for step in steps for name in step.operands}
    rows = sum(x.size for x in point.feeds.values() if isinstance(x, np.ndarray) and is_inexact(x.dtype))
    columns = sum(y.size for name, y in made.items() if name not in read)
    run = sum(y.nbytes for y in made.values())
    return (1.0 + _RUN) * run + _backward(steps, values) + min(HELD * rows * columns, limit)
