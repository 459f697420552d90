"""How fast what a check does thousands of times is here: a few probes of its own programs are timed.

A few rows of a Jacobian by probes, and a few of its columns by the rules, tell something else besides: where they meet,
how many entries the complex step leaves open, which then go to the ladder.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

import numpy as np

from gradcheck_cli.autodiff.backward import units_between
from gradcheck_cli.checks.sides import Sides
from gradcheck_cli.compare.partial import spread
from gradcheck_cli.engine.chunks import Budget
from gradcheck_cli.engine.program import Program
from gradcheck_cli.errors import GradcheckError
from gradcheck_cli.graph import Array
from gradcheck_cli.jacobian.cost import forward_work
from gradcheck_cli.jacobian.directions import Directions, reals
from gradcheck_cli.jacobian.jacobian import EPS, Backward, beside, by_complex_step
from gradcheck_cli.settings import Settings
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
