"""How long a check will take here, told before it starts: what it does is counted, what that takes is timed.

The mode of a check never depends on it: see `jacobians/cost.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gradcheck_cli.checks.assemble import Pair
from gradcheck_cli.checks.pace import Pace, Paces, pass_over_an_entry
from gradcheck_cli.checks.sides import Sides
from gradcheck_cli.compare.audit import AUDITED
from gradcheck_cli.compare.partial import DOT_TESTS, PROJECTIONS
from gradcheck_cli.jacobian.cost import SOON, forward_work, pattern_work
from gradcheck_cli.jacobian.directions import reals
from gradcheck_cli.jacobian.jacobian import JITTERED
from gradcheck_cli.settings import Settings
from gradcheck_cli.verdict.differences import ALL_RUNGS, CHEAP_RUNGS

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
