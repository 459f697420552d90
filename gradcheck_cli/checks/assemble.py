"""From comparisons to a record: counts, status and code, the worst entries, the suspect, the figures of the gradient."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np

from gradcheck_cli.checks.origin import peak_rss_mb, versions
from gradcheck_cli.checks.power import power
from gradcheck_cli.comparison.compare import Found
from gradcheck_cli.errors import GradcheckError, PointError, UnsupportedError
from gradcheck_cli.faults.invariants import NONDETERMINISTIC, Broken
from gradcheck_cli.faults.suspects import surveyed
from gradcheck_cli.graph import Array
from gradcheck_cli.record import Check, Entry, ModelInfo, derivative
from gradcheck_cli.settings import ANY, Settings
from gradcheck_cli.verdict import (
    ATOL,
    PASSED,
    REASONS,
    RTOL,
    Comparison,
    Status,
    blocks,
    errors,
    needed,
    pattern,
    unseen,
    worst,
)

if TYPE_CHECKING:  # what most checks do not need
    from gradcheck_cli.faults.locate import Survey
    from gradcheck_cli.picture import Picture

KEPT = 1000  # worst entries of a record


@dataclass(frozen=True, slots=True)
class Outcome:
    """One pair at one point: what was found, and the shapes of x and y (`(None, None)` for projections)."""

    point: int
    found: Found
    x: Array
    y: Array
    projected: bool
    drawn: bool = False  # entries that were drawn
    extra: bool = False  # a projection beside drawn entries: it may fail, and counts for nothing else
    survey: Survey | None = None  # every node on its own


@dataclass
class Pair:
    """One (x, y) of a check as it goes through the points: outcomes so far, or why there are none.

    `error` ends it; `missed` says why nothing could be compared at single points.
    """

    x: str
    y: str
    gradient_of: str = ""  # the tensor whose gradient by x y is, in a check of second order
    outcomes: list[Outcome] = field(default_factory=list)
    error: GradcheckError | None = None
    missed: list[PointError] = field(default_factory=list)
    mode: str = ""
    chosen: str = ""  # why it is not all entries
    method: str = ""
    suspect: Any = None
    x_shape: tuple[int, ...] = ()
    y_shape: tuple[int, ...] = ()
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)
    ranges: dict[str, tuple[float, float]] = field(default_factory=dict)  # of inputs that had to be drawn elsewhere
    broken: list[Broken] = field(default_factory=list)  # laws that do not hold
    pictures: list[Picture] = field(default_factory=list)  # of each point, if asked for

    @property
    def title(self) -> str:
        """The derivative: "d loss/d x"."""
        return "/".join(derivative(self.x, self.y, self.gradient_of))

    def of(self, values: Mapping[str, float], default: float) -> float:
        """What a setting by tensor name is for this pair."""
        return values.get(self.x, values.get(self.y, values.get(ANY, default)))


def summary(outcomes: Sequence[Outcome], max_inconclusive: float) -> dict[str, Any]:
    """The fields of a record that come from the comparisons at all points."""
    comparisons = [o.found.comparison for o in outcomes]
    counts = _counts(outcomes)
    status, code = verdict(comparisons, counts, max_inconclusive)
    empty = "" if counts["checked"] else "x or y has no entries at these sizes: nothing was checked"
    largest = [errors(c) for c in comparisons]
    need = [needed(c) for c in comparisons]
    return {
        "status": status,
        "code": code,
        "message": empty,
        "entries": counts,
        "max_abs_err": max((e[0] for e in largest), default=0.0),
        "max_rel_err": max((e[1] for e in largest), default=0.0),
        "noise": max((_largest(c.noise) for c in comparisons), default=0.0),
        "needed": {"rtol": max(n[0] for n in need), "atol": max(n[1] for n in need)} if need else {},
        "gradient": gradient_figures([c.theoretical for c in comparisons]),
        "evaluations": {kind: sum(o.found.evaluations.get(kind, 0) for o in outcomes) for kind in ("real", "complex")},
        "coloring": coloring(outcomes),
        "worst": tuple(entry for o in outcomes for entry in worst_entries(o)),
        "notes": tuple(dict.fromkeys(note for o in outcomes for note in o.found.notes)),
    }


def coloring(outcomes: Sequence[Outcome]) -> dict[str, int]:
    """Rows and the most groups they were probed in at any point; nothing where each was probed alone."""
    grouped = [(o.found.colors, len(o.found.comparison.status)) for o in outcomes if o.found.colors is not None]
    return {"rows": grouped[0][1], "colors": max(colors for colors, _ in grouped)} if grouped else {}


def verdict(comparisons: Sequence[Comparison], counts: Mapping[str, int], max_inconclusive: float) -> tuple[str, str]:
    """Status and code of a check: any failure fails it, too many inconclusive entries leave it open."""
    if not counts["checked"]:
        return "error", "GC701"
    if counts["failed"]:
        lost = [c for c in comparisons if not np.isfinite(c.theoretical[c.status == Status.FAIL]).all()]
        unfit = counts["failed"] == sum(c.unfit for c in comparisons)
        outside = counts["failed"] == sum(c.outside for c in comparisons)
        return "fail", "GC103" if lost else "GC104" if unfit else "GC105" if outside else "GC101"
    left_out = sum(c.count(Status.LEFT_OUT) for c in comparisons)
    if counts["inconclusive"] + left_out > max_inconclusive * (counts["checked"] + left_out):
        number = {code: sum(c.count(*(s for s in REASONS if REASONS[s] == code)) for c in comparisons)
                  for code in dict.fromkeys(REASONS.values())}  # fmt: skip
        return "inconclusive", max({**number, "GC302": left_out}, key={**number, "GC302": left_out}.__getitem__)
    return "pass", ""


def passes(outcome: Outcome, max_inconclusive: float) -> bool:
    """What was compared at this point would pass by itself."""
    comparison = outcome.found.comparison
    return comparison.clean or verdict([comparison], _counts([outcome]), max_inconclusive)[0] == "pass"


def worst_entries(outcome: Outcome) -> list[Entry]:
    """The entries that did not pass, failures first; projections have no place in the Jacobian."""
    comparison = outcome.found.comparison
    if outcome.projected:
        return []
    return [entry_at(outcome, row, column) for row, column in worst(comparison, KEPT)]


def entry_at(outcome: Outcome, row: int, column: int) -> Entry:
    """One entry of the Jacobian as the record holds it."""
    comparison, (x, y) = outcome.found.comparison, (outcome.x, outcome.y)
    theoretical, numerical = (
        float(comparison.theoretical[row, column]),
        float(comparison.numerical[row, column]),
    )
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
        theoretical=theoretical,
        numerical=numerical,
        noise=float(comparison.noise[row, column]),
        pattern=pattern(theoretical, numerical, (*x.shape, *y.shape)) if failed else reason,
        status="fail" if failed else status.name.lower().replace("_", "-") if fits else "inconclusive",
        part=_part(x, y, *place),
        reason=reason,
        unseen=float(unseen(comparison, rows, columns)[0]) if reason else None,
        slopes=None if slopes is None else (float(slopes[0, column]), float(slopes[1, column])),
    )


def _place(outcome: Outcome, row: int, column: int) -> tuple[int, int]:
    """Which entry of the Jacobian a row and a column of its comparison stand for."""
    found = outcome.found
    if not outcome.drawn or found.directions is None or found.weights is None:
        return row, column
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


def _counts(outcomes: Sequence[Outcome]) -> dict[str, int]:
    outcomes = [o for o in outcomes if not o.extra]
    comparisons = [o.found.comparison for o in outcomes]
    failed = sum(c.count(Status.FAIL) for c in comparisons)
    open_ = sum(c.count(*REASONS) for c in comparisons)
    total = sum(_reals(o.x) * _reals(o.y) for o in outcomes)
    checked = sum(c.status.size - c.count(Status.LEFT_OUT) for c in comparisons)
    kinks = sum(c.count(Status.KINK_OK) for c in comparisons)
    return {"total": total, "checked": checked, "failed": failed, "inconclusive": open_, "kink_ok": kinks}


def _reals(x: Array) -> int:
    return x.size * (2 if x.dtype.kind == "c" else 1)


def gradient_figures(jacobians: Sequence[Array]) -> dict[str, Any]:
    """Norm, largest entry, share of exact zeros of the theoretical side, and whether all of it is finite."""
    squares, largest, zeros, bad, count = 0.0, 0.0, 0, 0, sum(j.size for j in jacobians)
    for jacobian in jacobians:
        for rows in blocks(*jacobian.shape):
            part = jacobian[rows]
            finite = part if np.isfinite(part).all() else part[np.isfinite(part)]
            squares += float(np.sum(finite * finite))
            largest = max(largest, float(np.max(np.abs(finite), initial=0.0)))
            zeros += part.size - int(np.count_nonzero(part))
            bad += part.size - finite.size
    return {
        "norm": float(np.sqrt(squares)),
        "max": largest,
        "zero_fraction": zeros / count if count else 0.0,
        "finite": not bad,
    }


def _largest(values: Array) -> float:
    values = values[:1] if values.strides[0] == 0 else values  # a bound by column is the same in every row
    return float(np.max(values[np.isfinite(values)], initial=0.0))


def record_of(
    pair: Pair, model: ModelInfo, settings: Settings, name: str, reproduce: str, dims: Mapping[str, int]
) -> Check:
    """The record of a pair that has gone through all points."""
    rtol = pair.of(settings.rtol, RTOL)
    record = Check(
        id=f"{name}::{pair.title}",
        check=name,
        status="error",
        code="GC901",
        model=model,
        x=pair.x,
        y=pair.y,
        gradient_of=pair.gradient_of,
        x_shape=pair.x_shape,
        y_shape=pair.y_shape,
        mode=pair.mode or "full",
        method=pair.method,
        chosen=pair.chosen,
        power=power(pair.mode or "full", rtol, [o.found for o in pair.outcomes if not o.extra]),
        dtype=settings.dtype,
        rtol=rtol,
        atol=pair.of(settings.atol, ATOL),
        seed=settings.seed,
        points=settings.points,
        dims=dims,
        ranges=dict(pair.ranges),
        suspect=pair.suspect,
        reproduce=reproduce,
        duration_s=round(pair.seconds, 4),
        peak_rss_mb=peak_rss_mb(),
        versions=versions(),
        picture=reduce(lambda all_, one: all_.merged(one), pair.pictures) if pair.pictures else None,
    )
    errors = [*([pair.error] if pair.error is not None else []), *pair.missed]
    failed = pair.broken or any(o.found.comparison.count(Status.FAIL) for o in pair.outcomes)
    if errors and not failed:
        return failed_record(record, errors[0], tuple(dict.fromkeys(pair.notes)))
    fields = summary(pair.outcomes, settings.max_inconclusive)
    surveys = [o.survey for o in pair.outcomes if o.survey is not None]
    fields.update(surveyed(surveys, fields, settings.max_inconclusive))
    fields.update(_beside_drawn(pair.outcomes, fields))
    if pair.broken:
        fields.update(_lawless(pair.broken, fields))
    notes = (*fields["notes"], *dict.fromkeys(pair.notes), *map(str, errors))
    return replace(record, **{**fields, "notes": notes})


def _beside_drawn(outcomes: Sequence[Outcome], fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a record of drawn entries that a projection of all entries changes."""
    failed = any(o.extra and o.found.comparison.count(Status.FAIL) for o in outcomes)
    if not failed or fields["status"] == "fail":
        return {}
    message = "a random projection of all entries differs: what is wrong lies in entries that were not drawn"
    return {"status": "fail", "code": "GC101", "message": message}


def _lawless(broken: Sequence[Broken], fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a record for which a law does not hold: it fails, whatever the entries say.

    The law is its message, unless entries that differ say more.
    """
    codes = [each.code for each in broken]
    code = NONDETERMINISTIC if NONDETERMINISTIC in codes else codes[0]
    laws = tuple(dict.fromkeys(each.law for each in broken if each.code == code))
    if fields["status"] == "fail" and code != NONDETERMINISTIC:
        return {"notes": (*laws, *fields["notes"])}
    return {"status": "fail", "code": code, "message": laws[0], "notes": (*laws[1:], *fields["notes"])}


def failed_record(record: Check, error: GradcheckError, notes: tuple[str, ...] = ()) -> Check:
    """A record for what could not be compared: the error's kind as status and code."""
    status = {3: "inconclusive", 5: "unsupported", 6: "limit"}.get(error.exit_code, "error")
    blocked_by = error.operators if isinstance(error, UnsupportedError) else ()
    return replace(
        record, status=status, code=error.code, message=str(error), notes=notes, entries={}, blocked_by=blocked_by
    )
