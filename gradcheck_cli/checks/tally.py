"""Counts and worst entries of a comparison, as a record needs them.

A `Tally` is small however many entries were compared, and tallies of some rows each add up to that of all rows: parts
of a Jacobian may be compared in several places.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gradcheck_cli.compare.pair import Found
from gradcheck_cli.graph import Array
from gradcheck_cli.jacobian.directions import reals
from gradcheck_cli.results.record import Entry
from gradcheck_cli.verdict.rule import (
    PASSED,
    REASONS,
    Comparison,
    Status,
    blocks,
    errors,
    needed,
    pattern,
    unseen,
    worst,
)

if TYPE_CHECKING:
    from gradcheck_cli.checks.diagnose.suspects import Survey

KEPT = 1000  # worst entries of a record
_COUNTED = re.compile(r"(\d+) (entries|entry|rows|row) (.*)", re.DOTALL)


class Figures(NamedTuple):
    """Figures of a theoretical Jacobian: sum of squares, largest entry, exact zeros, entries not finite, all entries."""

    squares: float
    largest: float
    zeros: int
    bad: int
    entries: int


class Worst(NamedTuple):
    """An entry that did not simply pass, and its rank: the worst comes first."""

    rank: tuple[int, float, int, int]
    entry: Entry


@dataclass(frozen=True, slots=True)
class Tally:
    """Counts, largest errors and worst entries of one comparison."""

    point: int
    total: int  # entries of the Jacobian it represents
    statuses: tuple[int, ...]  # number of entries with each status
    errors: tuple[float, float]
    noise: float
    needed: tuple[float, float]
    gradient: Figures
    lost: bool = False  # a failing entry is not finite
    unfit: int = 0
    outside: int = 0
    worst: tuple[Worst, ...] = ()
    evaluations: Mapping[str, int] = field(default_factory=dict)
    colors: tuple[int, int] | None = None  # number of rows and of colors
    notes: tuple[str, ...] = ()
    extra: bool = False  # beside the main comparison: only its failures count
    tied: bool = False  # entries at a tie, beside projections: inconclusive ones count
    doubted: bool = False  # an inconclusive entry is not finite, or two methods differ

    def count(self, *statuses: Status) -> int:
        """Number of entries with one of the statuses."""
        return sum(self.statuses[status] for status in statuses)


@dataclass(frozen=True)
class PointResult:
    """One pair at one point: its comparison, and the values of x and y there."""

    point: int
    found: Found
    x: Array
    y: Array
    projected: bool
    drawn: bool = False  # a random sample of entries
    extra: bool = False  # beside the main comparison: only its failures count
    survey: Survey | None = None  # every node on its own
    first: int = 0  # row of the Jacobian at which the comparison starts
    part: bool = False  # other rows are compared elsewhere
    stated: Array | None = None  # a claimed Jacobian, if that is what was compared
    own: Array | None = None  # then the Jacobian by our rules

    @cached_property
    def tally(self) -> Tally:
        return tally_of(self)


def tally_of(outcome: PointResult) -> Tally:
    comparison, found = outcome.found.comparison, outcome.found
    rows, columns = comparison.status.shape
    whole = outcome.projected or outcome.drawn or not outcome.part
    return Tally(
        point=outcome.point,
        total=reals(outcome.x) * reals(outcome.y) if whole else rows * columns,
        statuses=tuple(comparison.count(status) for status in Status),
        errors=errors(comparison),
        noise=_largest(comparison.noise),
        needed=needed(comparison),
        gradient=_figures(comparison.theoretical),
        lost=_lost(comparison, Status.FAIL),
        unfit=comparison.unfit,
        outside=comparison.outside,
        worst=worst_entries(outcome),
        evaluations=found.evaluations,
        colors=None if found.colors is None else (rows, found.colors),
        notes=found.notes,
        extra=outcome.extra,
        tied=outcome.extra and outcome.drawn,
        doubted=found.disputed or _lost(comparison, *REASONS),
    )


def _lost(comparison: Comparison, *statuses: Status) -> bool:
    """True if some entry with one of the statuses has a theoretical gradient that is not finite."""
    if not comparison.count(*statuses):
        return False
    return not np.isfinite(comparison.theoretical[np.isin(comparison.status, statuses)]).all()


def merged(tallies: Sequence[Tally]) -> Tally:
    """The tally of several parts of one Jacobian together, in their order."""
    first, kinds = tallies[0], ("real", "complex")
    return replace(
        first,
        total=sum(t.total for t in tallies),
        statuses=tuple(map(sum, zip(*(t.statuses for t in tallies), strict=True))),
        errors=_both([t.errors for t in tallies]),
        noise=max(t.noise for t in tallies),
        needed=_both([t.needed for t in tallies]),
        gradient=added([t.gradient for t in tallies]),
        lost=any(t.lost for t in tallies),
        doubted=any(t.doubted for t in tallies),
        unfit=sum(t.unfit for t in tallies),
        outside=sum(t.outside for t in tallies),
        worst=tuple(sorted((each for t in tallies for each in t.worst), key=lambda each: each.rank)[:KEPT]),
        evaluations={kind: sum(t.evaluations.get(kind, 0) for t in tallies) for kind in kinds},
        notes=_told([t.notes for t in tallies]),
    )


def _both(pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    return max(first for first, _ in pairs), max(second for _, second in pairs)


def _told(notes: Iterable[Sequence[str]]) -> tuple[str, ...]:
    """Notes of all parts; notes that differ only in a count become one, with the sum."""
    found: dict[tuple[str, str], int] = {}
    for note in (note for each in notes for note in dict.fromkeys(each)):
        match = _COUNTED.fullmatch(note)
        what = (match[2].replace("entries", "entry").replace("rows", "row"), match[3]) if match else ("", note)
        found[what] = found.get(what, 0) + (int(match[1]) if match else 0)
    many = {"entry": "entries", "row": "rows"}
    return tuple(f"{n} {one if n == 1 else many[one]} {rest}" if one else rest for (one, rest), n in found.items())


def worst_entries(outcome: PointResult) -> tuple[Worst, ...]:
    """The entries that did not pass, failures first; none for projections, which are not entries."""
    comparison = outcome.found.comparison
    if outcome.projected:
        return ()
    return tuple(_ranked(outcome, row, column) for row, column in worst(comparison, KEPT))


def _ranked(outcome: PointResult, row: int, column: int) -> Worst:
    entry = entry_at(outcome, row, column)
    gap = abs(entry.judged - entry.numerical)
    kind = {"fail": 0, "inconclusive": 1}.get(entry.status, 2)
    return Worst((kind, -gap if math.isfinite(gap) else -math.inf, outcome.first + row, column), entry)


def entry_at(outcome: PointResult, row: int, column: int) -> Entry:
    """One entry of the Jacobian as the record holds it."""
    comparison, (x, y) = outcome.found.comparison, (outcome.x, outcome.y)
    judged, numerical = float(comparison.theoretical[row, column]), float(comparison.numerical[row, column])
    status = Status(int(comparison.status[row, column]))
    failed, fits = status == Status.FAIL, status in PASSED
    reason = "" if failed or fits else status.name.lower()
    slopes = comparison.slopes.get(row)
    rows, columns = np.asarray([row]), np.asarray([column])
    place = _place(outcome, row, column)
    return Entry(
        x=_index(x, place[0]),
        y=_index(y, place[1]),
        point=outcome.point,
        theoretical=_own(outcome, place) if outcome.stated is not None else judged,
        numerical=numerical,
        noise=float(comparison.noise[row, column]),
        pattern=pattern(judged, numerical, (*x.shape, *y.shape)) if failed else reason,
        status="fail" if failed else status.name.lower().replace("_", "-") if fits else "inconclusive",
        part=_part(x, y, *place),
        reason=reason,
        unseen=float(unseen(comparison, rows, columns)[0]) if reason else None,
        slopes=None if slopes is None else (float(slopes[0, column]), float(slopes[1, column])),
        given=judged if outcome.stated is not None else None,
    )


def _own(outcome: PointResult, place: tuple[int, int]) -> float:
    """An entry of the Jacobian by our rules; NaN if that was not computed."""
    return math.nan if outcome.own is None else float(outcome.own[place])


def _place(outcome: PointResult, row: int, column: int) -> tuple[int, int]:
    """Row and column in the Jacobian of an entry of its comparison."""
    found = outcome.found
    if not outcome.drawn or found.directions is None or found.weights is None:
        return outcome.first + row, column
    return int(found.directions.rows[row]), int(np.argmax(found.weights[column]))


def _index(x: Array, position: int) -> tuple[int, ...]:
    return tuple(int(i) for i in np.unravel_index(position % x.size, x.shape)) if x.ndim else ()


def _part(x: Array, y: Array, row: int, column: int) -> str:
    parts = [
        f"{'im' if position >= tensor.size else 're'} {name}"
        for name, tensor, position in (("x", x, row), ("y", y, column))
        if tensor.dtype.kind == "c"
    ]
    return ", ".join(parts)


def gradient_figures(parts: Sequence[Figures]) -> dict[str, Any]:
    """Norm, largest entry, share of exact zeros of the theoretical Jacobian, and whether it is finite."""
    whole = added(parts)
    return {
        "norm": float(np.sqrt(whole.squares)),
        "max": whole.largest,
        "zero_fraction": whole.zeros / whole.entries if whole.entries else 0.0,
        "finite": not whole.bad,
    }


def added(parts: Sequence[Figures]) -> Figures:
    """Figures of all parts together."""
    squares, largest, zeros, bad, entries = zip(*parts, strict=True) if parts else ((), (), (), (), ())
    return Figures(sum(squares), max(largest, default=0.0), sum(zeros), sum(bad), sum(entries))


def _figures(jacobian: Array) -> Figures:
    squares, largest, zeros, bad = 0.0, 0.0, 0, 0
    for rows in blocks(*jacobian.shape):
        part = jacobian[rows]
        finite = part if np.isfinite(part).all() else part[np.isfinite(part)]
        squares += float(np.sum(finite * finite))
        largest = max(largest, float(np.max(np.abs(finite), initial=0.0)))
        zeros += part.size - int(np.count_nonzero(part))
        bad += part.size - finite.size
    return Figures(squares, largest, zeros, bad, jacobian.size)


def _largest(values: Array) -> float:
    values = values[:1] if values.strides[0] == 0 else values  # a bound by column is the same in every row
    return float(np.max(values[np.isfinite(values)], initial=0.0))
