"""From comparisons to a record: counts, status and code, the worst entries, the suspect, the figures of the gradient."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np

from gradcheck_cli import __version__
from gradcheck_cli.compare import PROJECTIONS, Found
from gradcheck_cli.errors import GradcheckError, PointError
from gradcheck_cli.formats.source import Source
from gradcheck_cli.graph import Array, Graph, is_inexact
from gradcheck_cli.locate import Local
from gradcheck_cli.record import Check, Entry, ModelInfo, Suspect
from gradcheck_cli.settings import ANY, Settings
from gradcheck_cli.verdict import ATOL, RTOL, Comparison, Status, blocks, errors, needed, pattern, worst

_REASONS = {
    "GC301": (Status.KINK,),
    "GC304": (Status.NONFINITE,),
    "GC303": (Status.NOISE, Status.UNDERFLOW, Status.RANGE),
}
_OPEN = [status for statuses in _REASONS.values() for status in statuses]
KEPT = 1000  # worst entries of a record


@dataclass(frozen=True, slots=True)
class Outcome:
    """One pair at one point: what was found, and the shapes of x and y (`(None, None)` for projections)."""

    point: int
    found: Found
    x: Array
    y: Array
    projected: bool


@dataclass
class Pair:
    """One (x, y) of a check as it goes through the points: outcomes so far, or why there are none.

    `error` ends it; `missed` says why nothing could be compared at single points.
    """

    x: str
    y: str
    outcomes: list[Outcome] = field(default_factory=list)
    error: GradcheckError | None = None
    missed: list[PointError] = field(default_factory=list)
    mode: str = ""
    method: str = ""
    suspect: Any = None
    x_shape: tuple[int, ...] = ()
    y_shape: tuple[int, ...] = ()
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)

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
        "worst": tuple(entry for o in outcomes for entry in worst_entries(o)),
        "notes": tuple(dict.fromkeys(note for o in outcomes for note in o.found.notes)),
    }


def verdict(comparisons: Sequence[Comparison], counts: Mapping[str, int], max_inconclusive: float) -> tuple[str, str]:
    """Status and code of a check: any failure fails it, too many inconclusive entries leave it open."""
    if not counts["checked"]:
        return "error", "GC701"
    if counts["failed"]:
        lost = [c for c in comparisons if not np.isfinite(c.theoretical[c.status == Status.FAIL]).all()]
        return "fail", "GC103" if lost else "GC101"
    if counts["inconclusive"] > max_inconclusive * max(counts["checked"], 1):
        return "inconclusive", max(_REASONS, key=lambda code: sum(c.count(*_REASONS[code]) for c in comparisons))
    return "pass", ""


def worst_entries(outcome: Outcome) -> list[Entry]:
    """The entries that did not pass, failures first; projections have no place in the Jacobian."""
    comparison = outcome.found.comparison
    if outcome.projected:
        return []
    return [_entry(outcome, row, column) for row, column in worst(comparison, KEPT)]


def _entry(outcome: Outcome, row: int, column: int) -> Entry:
    comparison, (x, y) = outcome.found.comparison, (outcome.x, outcome.y)
    theoretical, numerical = (
        float(comparison.theoretical[row, column]),
        float(comparison.numerical[row, column]),
    )
    failed = comparison.status[row, column] == Status.FAIL
    return Entry(
        x=_index(x, row),
        y=_index(y, column),
        point=outcome.point,
        theoretical=theoretical,
        numerical=numerical,
        noise=float(comparison.noise[row, column]),
        pattern=pattern(theoretical, numerical, (*x.shape, *y.shape)) if failed else _reason(comparison, row, column),
        status="fail" if failed else "inconclusive",
        part=_part(x, y, row, column),
    )


def _reason(comparison: Comparison, row: int, column: int) -> str:
    return Status(int(comparison.status[row, column])).name.lower()


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
    comparisons = [o.found.comparison for o in outcomes]
    failed = sum(c.count(Status.FAIL) for c in comparisons)
    open_ = sum(c.count(*_OPEN) for c in comparisons)
    total = sum(_reals(o.x) * _reals(o.y) for o in outcomes)
    checked = sum(c.status.size for c in comparisons)
    return {"total": total, "checked": checked, "failed": failed, "inconclusive": open_}


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


def power(mode: str, rtol: float) -> dict[str, Any]:
    """The size of error that the check would have missed.

    A projection on one random direction of each side misses an error of size eps times the Jacobian's norm with
    probability (2t/pi)(1 + ln 2 - gamma - ln t), t = tolerance/eps; independent pairs multiply.
    """
    if mode != "directional":
        return {"missed_below": rtol}
    target = 0.01 ** (1 / PROJECTIONS)
    low, high = 1e-12, 0.5
    for _ in range(100):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if _missed(middle) < target else (low, middle)
    return {"missed_below": rtol / low, "of": "norm", "probability": 0.01}


def _missed(t: float) -> float:
    return 2 * t / math.pi * (1 + math.log(2) - 0.5772156649015329 - math.log(t))


def suspect_record(local: Local, graph: Graph, found: int, tried: int) -> Suspect:
    """The first node whose own rule is wrong, as the record names it."""
    unit, place = local.unit, local.unit.place
    node = graph.nodes[place.origin] if 0 <= place.origin < len(graph.nodes) and not place.inside else None
    return Suspect(
        node=place.index,
        op=unit.op.name,
        name=node.name if node else place.label or unit.label,
        outputs=node.outputs if node else unit.outputs,
        inputs=node.inputs if node else unit.operands,
        rel_err=local.error,
        at=local.operand,
        passed=tried - found,
        tried=tried,
        inside=place.inside,
    )


def record_of(
    pair: Pair, source: Source, settings: Settings, name: str, reproduce: str, dims: Mapping[str, int]
) -> Check:
    """The record of a pair that has gone through all points."""
    rtol = pair.of(settings.rtol, RTOL)
    record = Check(
        id=f"{name}::d {pair.y}/d {pair.x}",
        check=name,
        status="error",
        code="GC901",
        model=ModelInfo(source.uri, source.sha256, source.opset, source.nodes, _dtypes(source)),
        x=pair.x,
        y=pair.y,
        x_shape=pair.x_shape,
        y_shape=pair.y_shape,
        mode=pair.mode or "full",
        method=pair.method,
        power=power(pair.mode or "full", rtol),
        dtype=settings.dtype,
        rtol=rtol,
        atol=pair.of(settings.atol, ATOL),
        seed=settings.seed,
        points=settings.points,
        dims={**source.dims, **settings.dims, **dims},
        suspect=pair.suspect,
        reproduce=reproduce,
        duration_s=round(pair.seconds, 4),
        peak_rss_mb=peak_rss_mb(),
        versions=versions(),
    )
    errors = [*([pair.error] if pair.error is not None else []), *pair.missed]
    failed = any(o.found.comparison.count(Status.FAIL) for o in pair.outcomes)
    if errors and not failed:
        return failed_record(record, errors[0], tuple(dict.fromkeys(pair.notes)))
    fields = summary(pair.outcomes, settings.max_inconclusive)
    notes = (*fields["notes"], *dict.fromkeys(pair.notes), *map(str, errors))
    return replace(record, **{**fields, "notes": notes})


def failed_record(record: Check, error: GradcheckError, notes: tuple[str, ...] = ()) -> Check:
    """A record for what could not be compared: the error's kind as status and code."""
    status = {3: "inconclusive", 5: "unsupported", 6: "limit"}.get(error.exit_code, "error")
    return replace(record, status=status, code=error.code, message=str(error), notes=notes, entries={})


def _dtypes(source: Source) -> tuple[str, ...]:
    declared = [t.dtype for n, t in source.graph.types.items() if n in source.graph.inputs and t.dtype is not None]
    arrays = [v.dtype for v in source.graph.constants.values() if v.ndim]
    return tuple(dict.fromkeys(d.name for d in [*declared, *arrays] if is_inexact(d)))


@cache
def versions() -> dict[str, str]:
    """Versions of what took part."""
    onnx = sys.modules.get("onnx")
    return {"gradcheck": __version__, "numpy": np.__version__, **({"onnx": onnx.__version__} if onnx else {})}


def peak_rss_mb() -> float:
    """The largest resident size of this process so far."""
    try:
        import resource
    except ImportError:  # Windows has no such module
        return 0.0
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(used / (1 << 20 if sys.platform == "darwin" else 1 << 10), 1)
