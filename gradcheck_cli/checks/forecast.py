"""How long a check will take here, told before it starts: what it does is counted, what that takes is timed.

A forward run and a small stack of probes of the largest program at hand are timed, so the forecast follows the machine,
the kernels and the model.  The mode of a check never depends on it: see `jacobians/cost.py`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial

import numpy as np

from gradcheck_cli.checks.assemble import Pair
from gradcheck_cli.checks.sides import Sides
from gradcheck_cli.graph import Array
from gradcheck_cli.jacobians.cost import SOON, forward_work, pattern_work
from gradcheck_cli.jacobians.directions import reals
from gradcheck_cli.program import Program
from gradcheck_cli.settings import Settings
from gradcheck_cli.stack import Budget

_STEP = 1e-5  # seconds of a step that are Python's: what is left of a forward run is arithmetic
# Forward runs that things take, in Python's part of one and in arithmetic's: all pairs, one; a survey, one pair of it.
_ONCE, _PAIR, _SURVEY, _SURVEYED = (45.0, 12.0), (30.0, 12.0), (110.0, 20.0), (16.0, 4.0)
_ROWS = {"richardson": 8.0, "central": 3.0, "forward": 3.0}  # what a row takes, in rows by the complex step
_COLUMN = 1.2  # and a column
_PASSES = 60  # over all entries that a comparison makes
_TIMED = 0.01  # seconds that a stack of probes is timed for, about
_MOST = 128  # probes in it
_LONG = 0.03  # seconds of a run that is not made again: a stack of two tells no more
_GAIN = 0.7  # of each thread beyond the first


@dataclass(frozen=True, slots=True)
class Forecast:
    """A pair, what is compared of it and how long that takes, in seconds."""

    title: str
    what: str
    seconds: float

    def __str__(self) -> str:
        return f"{self.title}: {self.what}, about {duration(self.seconds)}"


@dataclass(frozen=True, slots=True)
class Pace:
    """What was timed, in seconds: Python's and arithmetic's part of one forward run, one more probe, one entry."""

    work: float  # operations of the program that was timed
    steps: float
    arithmetic: float
    probe: float
    entry: float

    def runs(self, python: float, arithmetic: float) -> float:
        """So many forward runs, Python and arithmetic counted apart."""
        return python * self.steps + arithmetic * self.arithmetic

    def smaller(self, program: Program) -> Pace:
        """That of another program, as by its operations."""
        share = min(forward_work(program) / self.work, 1.0)
        return Pace(self.work, self.steps * share, self.arithmetic * share, self.probe * share, self.entry)


def forecasts(pairs: Sequence[Pair], sides: Mapping[str, Sides], settings: Settings) -> Iterator[Forecast]:
    """For each pair, its mode being known; what pairs of one y share counts for the first of them."""
    for y, side in sides.items():
        mine = [pair for pair in pairs if pair.y == y and pair.error is None]
        if not mine:
            continue
        pace = paced(max((side.program(pair.x) for pair in mine), key=forward_work), settings)
        columns = reals(side.value(y))
        for pair in mine:
            seconds = alone(pair, side, pace.smaller(side.program(pair.x)), settings)
            if pair is mine[0]:
                full = any(each.mode == "full" for each in mine)
                seconds += pace.runs(*_ONCE) + (columns * _COLUMN * pace.probe / threads(settings) if full else 0.0)
                seconds += pace.runs(*_SURVEY) if any(each.mode == "nodes" for each in mine) else 0.0
            yield Forecast(pair.title, said(pair, side, settings), seconds * settings.points)


def alone(pair: Pair, side: Sides, pace: Pace, settings: Settings) -> float:
    """Seconds of what a pair shares with no other."""
    rows, columns = reals(side.value(pair.x)), reals(side.value(pair.y))
    if pair.mode == "sampled":
        rows = columns = math.isqrt(settings.max_entries)
    elif pair.mode != "full":
        return pace.runs(*_PAIR) + (pace.runs(*_SURVEYED) if pair.mode == "nodes" else 0.0)
    program = side.program(pair.x)
    method = "richardson" if program.obstacle is not None else settings.method
    probes = groups(side, pair.x, rows) * _ROWS.get(method, 1.0) + (
        columns * _COLUMN if pair.mode == "sampled" else 0.0
    )
    return pace.runs(*_PAIR) + probes * pace.probe / threads(settings) + rows * columns * pace.entry


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


def threads(settings: Settings) -> float:
    """How many times faster stacks are on all threads that a check may use."""
    return 1 + _GAIN * (settings.jobs - 1)


def paced(program: Program, settings: Settings) -> Pace:
    """The pace of a program, timed."""
    name = program.probes[0]
    here, before = program.tape.values[name], program.evaluations.copy()
    run = timed(lambda: program.run({name: here[None]}))
    python = min(_STEP * len(program.steps), run)
    probe = 2 * run if run > _LONG else probed(program, settings, run)
    program.evaluations.clear()  # what is timed is no part of the check
    program.evaluations.update(before)
    return Pace(forward_work(program), python, run - python, max(probe, run / 1e3), _PASSES * pass_over_an_entry())


def probed(program: Program, settings: Settings, run: float) -> float:
    """Seconds of one more probe in a stack, a run of one value taking `run`."""
    name = program.probes[0]
    most = Budget(settings.memory_limit, settings.jobs).chunk(2 * program.bytes_per_probe())
    count = max(2, min(most, _MOST, int(_TIMED / max(run, 1e-6))))
    here = program.tape.values[name]
    one, many = (timed(partial(stacked, program, name, here, size)) for size in (1, count))
    return (many - one) / (count - 1)


def stacked(program: Program, name: str, here: Array, count: int) -> None:
    """A stack of probes as a row of the Jacobian takes them: tangents where they can be, else values."""
    stack = np.broadcast_to(here, (count, *here.shape)).copy()
    if program.obstacle is None:
        program.tangents({name: stack})
    else:
        program.run({name: stack})


@cache
def pass_over_an_entry(count: int = 1 << 20) -> float:
    """Seconds that an entry takes when arrays that no cache holds are gone through once."""
    entries = np.ones(count)
    return timed(lambda: np.add(entries, entries, out=entries)) / count


def timed(run: Callable[[], object]) -> float:
    """Seconds of a call, of the faster of two where the first was short."""
    start = time.perf_counter()
    run()
    first = time.perf_counter() - start
    if first > _LONG:
        return first
    start = time.perf_counter()
    run()
    return min(first, time.perf_counter() - start)
