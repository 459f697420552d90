"""The result of one pair (x, y) at one point, and what a record needs of it: counts and the worst entries.

A `Counts` is small however many entries were compared, and those of some rows each add up to those of all rows: parts
of a Jacobian may be compared in several places.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from gradcheck_cli.errors import counted
from gradcheck_cli.graph import Array
from gradcheck_cli.jacobian.directions import Directions, reals
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
    unseen_at,
    worst,
)

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


class Counts(Struct, frozen=True):
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


class PairResult(Struct, frozen=True, dict=True):
    """One pair at one point: its comparison, the method that made its numerical side, and what is worth saying about it."""

    comparison: Comparison
    method: str
    x: Array
    y: Array
    notes: tuple[str, ...] = ()
    directions: Directions | None = None  # of x, one a row
    weights: Array | None = None  # of y, one a column, where the columns are not the entries of y
    evaluations: Mapping[str, int] = field(default_factory=dict)  # forward runs on "real" and on "complex" numbers
    colors: int | None = None  # groups that rows were probed in, where not each was probed alone
    hidden: float = 0.0  # of the largest entry for the same y: an error that rounding hides where another evaluates y
    own: Comparison | None = None  # the comparison with y as we evaluate it, where another does
    disputed: bool = False  # the complex step and real differences contradict each other somewhere
    point: int = 0
    projected: bool = False  # compared along random directions
    drawn: bool = False  # a random sample of entries
    extra: bool = False  # beside the main comparison: only its failures count
    survey: Any = None  # every node on its own
    first: int = 0  # row of the Jacobian at which the comparison starts
    part: bool = False  # other rows are compared elsewhere
    stated: Array | None = None  # a claimed Jacobian, if that is what was compared
    ours: Array | None = None  # then the Jacobian by our rules

    def beside(self, other: PairResult, **more: Any) -> PairResult:
        """Another comparison of the same pair at the same point, which counts beside this one."""
        place = {name: getattr(self, name) for name in ("point", "first", "part", "stated", "ours")}
        return replace(other, **place, extra=True, **more)

    @cached_property
    def counts(self) -> Counts:
        """Counts, largest errors and worst entries of this comparison."""
        return counts_of(self)


def counts_of(result: PairResult) -> Counts:
    comparison = result.comparison
    rows, columns = comparison.shape
    whole = result.projected or result.drawn or not result.part
    return Counts(
        point=result.point,
        total=reals(result.x) * reals(result.y) if whole else rows * columns,
        statuses=_tally(comparison),
        errors=errors(comparison),
        noise=max(_largest(comparison.noise), _largest(np.asarray(comparison.elsewhere)[None])),
        needed=needed(comparison),
        gradient=_figures(comparison.theoretical, comparison.size),
        lost=nonfinite(comparison, Status.FAIL),
        unfit=comparison.unfit,
        outside=comparison.outside,
        worst=worst_entries(result),
        evaluations=result.evaluations,
        colors=None if result.colors is None else (rows, result.colors),
        notes=result.notes,
        extra=result.extra,
        tied=result.extra and result.drawn,
        doubted=result.disputed or nonfinite(comparison, *REASONS),
    )


def _tally(comparison: Comparison) -> tuple[int, ...]:
    """The number of entries that have each status."""
    if comparison.clean:  # asked once, not for each
        return (comparison.size, *(0 for status in Status if status != Status.PASS))
    return tuple(comparison.count(status) for status in Status)


def nonfinite(comparison: Comparison, *statuses: Status) -> bool:
    """True if some entry with one of the statuses has a theoretical gradient that is not finite."""
    if not comparison.count(*statuses):
        return False
    return not np.isfinite(comparison.theoretical[np.isin(comparison.status, statuses)]).all()


def merged(counts: Sequence[Counts]) -> Counts:
    """The tally of several parts of one Jacobian together, in their order."""
    first, kinds = counts[0], ("real", "complex")
    return replace(
        first,
        total=sum(t.total for t in counts),
        statuses=tuple(map(sum, zip(*(t.statuses for t in counts), strict=True))),
        errors=_both([t.errors for t in counts]),
        noise=max(t.noise for t in counts),
        needed=_both([t.needed for t in counts]),
        gradient=added([t.gradient for t in counts]),
        lost=any(t.lost for t in counts),
        doubted=any(t.doubted for t in counts),
        unfit=sum(t.unfit for t in counts),
        outside=sum(t.outside for t in counts),
        worst=tuple(sorted((each for t in counts for each in t.worst), key=lambda each: each.rank)[:KEPT]),
        evaluations={kind: sum(t.evaluations.get(kind, 0) for t in counts) for kind in kinds},
        notes=_told([t.notes for t in counts]),
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
    return tuple(f"{counted(n, one)} {rest}" if one else rest for (one, rest), n in found.items())


def worst_entries(result: PairResult) -> tuple[Worst, ...]:
    """The entries that did not pass, failures first; none for projections, which are not entries."""
    comparison = result.comparison
    if result.projected:
        return ()
    return tuple(_ranked(result, row, column) for row, column in worst(comparison, KEPT))


def _ranked(result: PairResult, row: int, column: int) -> Worst:
    entry = entry_at(result, row, column)
    gap = abs(entry.judged - entry.numerical)
    kind = {"fail": 0, "inconclusive": 1}.get(entry.status, 2)
    return Worst((kind, -gap if math.isfinite(gap) else -math.inf, result.first + row, column), entry)


def entry_at(result: PairResult, row: int, column: int) -> Entry:
    """One entry of the Jacobian as the record holds it."""
    comparison, (x, y) = result.comparison, (result.x, result.y)
    entry = comparison.at(row, column)
    judged, status = entry.theoretical, entry.status
    failed, fits = status == Status.FAIL, status in PASSED
    reason = "" if failed or fits else status.name.lower()
    place = _place(result, row, column)
    return Entry(
        x=_index(x, place[0]),
        y=_index(y, place[1]),
        point=result.point,
        theoretical=_ours(result, place) if result.stated is not None else judged,
        numerical=entry.numerical,
        noise=entry.noise,
        pattern=pattern(judged, entry.numerical, (*x.shape, *y.shape)) if failed else reason,
        status="fail" if failed else status.name.lower().replace("_", "-") if fits else "inconclusive",
        part=_part(x, y, *place),
        reason=reason,
        unseen=unseen_at(comparison, row, column) if reason else None,
        slopes=entry.slopes,
        given=judged if result.stated is not None else None,
    )


def _ours(result: PairResult, place: tuple[int, int]) -> float:
    """An entry of the Jacobian by our rules; NaN if that was not computed."""
    return math.nan if result.ours is None else float(result.ours[place])


def _place(result: PairResult, row: int, column: int) -> tuple[int, int]:
    """Row and column in the Jacobian of an entry of its comparison."""
    if not result.drawn or result.directions is None or result.weights is None:
        return result.first + row, column
    return int(result.directions.rows[row]), int(np.argmax(result.weights[column]))


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


def _figures(jacobian: Array, entries: int) -> Figures:
    """Figures of a Jacobian of so many entries; those that are not in an array of cells are zeros."""
    squares, largest, zeros, bad = 0.0, 0.0, entries - jacobian.size, 0
    for rows in blocks(*jacobian.shape):
        part = jacobian[rows]
        finite = part if np.isfinite(part).all() else part[np.isfinite(part)]
        squares += float(np.sum(finite * finite))
        largest = max(largest, float(np.max(np.abs(finite), initial=0.0)))
        zeros += part.size - int(np.count_nonzero(part))
        bad += part.size - finite.size
    return Figures(squares, largest, zeros, bad, entries)


def _largest(values: Array) -> float:
    values = values[:1] if values.strides[0] == 0 else values  # a bound by column is the same in every row
    return float(np.max(values[np.isfinite(values)], initial=0.0))
