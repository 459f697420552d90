"""From what was found at all points to a record."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

from gradcheck_cli.checks.assemble import failed_record
from gradcheck_cli.checks.diff.agreement import KEPT, Compared, Counted, Tolerance
from gradcheck_cli.checks.diff.meeting import Key, Meeting, Outcome
from gradcheck_cli.errors import GradcheckError
from gradcheck_cli.jacobian.directions import reals
from gradcheck_cli.results.record import Check, Entry, Suspect

OUTPUTS, GRADIENTS = "GC110", "GC111"


@dataclass
class Found:
    """What was found of one output, or of one derivative, at the points so far."""

    key: Key
    tolerance: Tolerance
    shapes: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())  # of x and of y
    total: int = 0
    counted: list[Counted] = field(default_factory=list)  # at each point
    error: GradcheckError | None = None
    unlike: str = ""
    suspect: Suspect | None = None
    notes: list[str] = field(default_factory=list)

    def add(self, index: int, outcome: Outcome) -> None:
        """What a point says."""
        if isinstance(outcome, Compared):
            self.counted.append(outcome.counted(index))
        elif isinstance(outcome, GradcheckError):
            self.error = self.error or outcome
        else:
            self.unlike = self.unlike or outcome

    def describe(self, meeting: Meeting) -> None:
        """Shapes and sizes at a point."""
        named = meeting.a.tape.named
        values = [named[n].value if n in named else None for n in (self.key.x, self.key.y)]
        self.shapes = tuple(() if v is None else v.shape for v in values)  # type: ignore[assignment]
        self.total = math.prod(reals(v) for v in values if v is not None)

    @property
    def failed(self) -> int:
        """Entries that differ."""
        return sum(each.failed for each in self.counted)

    @property
    def errors(self) -> tuple[float, float]:
        """The largest ones, absolute and relative."""
        return tuple(max((each.errors[i] for each in self.counted), default=0.0) for i in range(2))  # type: ignore[return-value]


def record_of(found: Found, plain: Check) -> Check:
    """The record of one output or derivative; `plain` has what all of them share."""
    key, code = found.key, GRADIENTS if found.key.x else OUTPUTS
    record = replace(
        plain,
        id=f"{plain.check}::d {key.y}/d {key.x}" if key.x else f"{plain.check}::output {key.y}",
        x=key.x,
        y=key.y,
        x_shape=found.shapes[0],
        y_shape=found.shapes[1],
        rtol=found.tolerance.rtol,
        atol=found.tolerance.atol,
        suspect=found.suspect,
    )
    notes = (*plain.notes, *dict.fromkeys(found.notes))
    if found.unlike:
        return replace(record, status="fail", code=code, message=found.unlike, notes=notes)
    if found.error is not None and not found.failed:
        return failed_record(record, found.error, notes)
    return replace(record, **_summary(found, code), notes=(*notes, *([str(found.error)] if found.error else [])))


def _summary(found: Found, code: str) -> dict[str, Any]:
    """The fields of a record that come from the comparisons at all points."""
    every = found.counted
    checked = sum(each.entries - each.open for each in every)
    status = "fail" if found.failed else "pass" if checked else "inconclusive"
    nothing = "it has no entry that is finite" if any(each.entries for each in every) else "it has no entries"
    return {
        "status": status,
        "code": {"fail": code, "inconclusive": "GC302"}.get(status, ""),
        "message": "" if checked else nothing,
        "mode": "full" if all(each.entries == found.total for each in every) else "directional",
        "entries": {"total": found.total * len(every), "checked": checked, "failed": found.failed, "inconclusive": 0},
        "max_abs_err": found.errors[0],
        "max_rel_err": found.errors[1],
        "noise": max(each.noise for each in every),
        "needed": {name: max(each.needed[i] for each in every) for i, name in enumerate(("rtol", "atol"))},
        "worst": tuple(sorted((e for each in every for e in each.worst), key=_gap, reverse=True)[:KEPT]),
    }


def _gap(entry: Entry) -> float:
    gap = abs(entry.theoretical - entry.numerical)
    return gap if gap == gap else float("inf")
