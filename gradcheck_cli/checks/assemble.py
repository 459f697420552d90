"""From comparisons to a record: counts, status and code, the worst entries, the suspect, the figures of the gradient.

Every record says which size of error its mode would have missed (`power`), and where it comes from: the model, the
versions of the software, the memory of the process.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, reduce
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct, field, structs

from gradcheck_cli.checks.diagnose.laws import NONDETERMINISTIC, Broken
from gradcheck_cli.compare.counts import Counts, PairResult, gradient_figures
from gradcheck_cli.errors import VERSION, GradcheckError, PointError, SpecError, UnsupportedError, counted
from gradcheck_cli.formats.source import Source
from gradcheck_cli.graph import Node, is_inexact
from gradcheck_cli.native.selection import info
from gradcheck_cli.results.record import Check, ClaimFacts, ModelInfo, Power, SpecPlace, derivative
from gradcheck_cli.settings import ANY, Settings
from gradcheck_cli.verdict.rule import ATOL, NEGLIGIBLE, REASONS, RTOL, Status

if TYPE_CHECKING:
    from gradcheck_cli.checks.claims.claim import Claim
    from gradcheck_cli.results.picture import Picture


WEIGHED = "norm of the Jacobian times the sizes of x"
_MISSED = 0.01  # probability at which the size of a missed error is stated
_CONFIDENCE = 0.95
_EDGES = [1e-4 * 1.04**i for i in range(290)]  # up to 8: edges of a histogram of normal numbers


class Pair(Struct):
    """One (x, y) of a check as it goes through the points: its results so far, or why there are none.

    `error` ends the pair; `missed` are errors of single points.
    """

    x: str
    y: str
    gradient_of: str = ""  # the tensor whose gradient by x y is, in a check of second order
    results: list[PairResult] = field(default_factory=list)
    elsewhere: list[Counts] | None = None  # those of parts, in place of results
    error: GradcheckError | None = None
    missed: list[PointError] = field(default_factory=list)
    mode: str = ""
    jobs: int = 0  # threads on which it fits the memory limit; 0: as the settings say
    chosen: str = ""  # reason for a mode other than full
    method: str = ""
    suspect: Any = None
    trap: str = ""  # message on a NaN from 0 * inf, or on an infinite slope
    x_shape: tuple[int, ...] = ()
    y_shape: tuple[int, ...] = ()
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)
    ranges: dict[str, tuple[float, float]] = field(default_factory=dict)  # of inputs drawn elsewhere than usual
    broken: list[Broken] = field(default_factory=list)  # laws that do not hold
    pictures: list[Picture] = field(default_factory=list)  # of each point, if asked for
    claim: Claim | None = None  # gradient from another source, which is judged instead
    claimed: ClaimFacts = field(default_factory=ClaimFacts)  # the record's fields on it

    @property
    def counts(self) -> list[Counts]:
        """The counts of each point."""
        return [each.counts for each in self.results] if self.elsewhere is None else self.elsewhere

    @property
    def failed(self) -> bool:
        """True if a law is broken or an entry fails."""
        return bool(self.broken) or any(t.count(Status.FAIL) for t in self.counts)

    @property
    def title(self) -> str:
        """The derivative: "d loss/d x"."""
        by = "" if self.claim is None else f" by {self.claim.by}"
        return "/".join(derivative(self.x, self.y, self.gradient_of)) + by

    def of(self, values: Mapping[str, float], default: float) -> float:
        """The value for this pair of a setting by tensor name."""
        return values.get(self.x, values.get(self.y, values.get(ANY, default)))


def record_of(pair: Pair, model: ModelInfo, settings: Settings, name: str, dims: Mapping[str, int]) -> Check:
    """The record of a pair that has gone through all points."""
    record = _begun(pair, model, settings, name, dims)
    errors = [*([pair.error] if pair.error is not None else []), *pair.missed]
    if errors and not pair.failed:
        return failed_record(record, errors[0], tuple(dict.fromkeys(pair.notes)))
    fields = summary(pair.counts, settings.max_inconclusive)
    surveys = [each.survey for each in pair.results if each.survey is not None]
    told = _surveyed(surveys, fields, settings.max_inconclusive, any(t.doubted for t in pair.counts)) if surveys else {}
    if settings.forward == "onnxruntime" and told.get("status") == "pass":  # a survey of nodes does not use it
        told = {name: value for name, value in told.items() if name not in ("status", "code")}
    fields.update(told)
    fields.update(_beside(pair.counts, fields, settings.max_inconclusive))
    if pair.trap and fields["status"] == "pass":  # too few entries are open to count
        fields["suspect"] = None
    elif pair.trap and (fields["status"] == "fail" or fields["code"] == "GC304") and not fields["message"]:
        fields["message"] = pair.trap
    if pair.broken:
        fields.update(_lawless(pair.broken, fields))
    notes = (
        *fields["notes"],
        *dict.fromkeys(pair.notes),
        *(line for error in errors for line in str(error).splitlines()),
    )
    return replace(record, **{**fields, "notes": notes})


def glanced(pair: Pair, model: ModelInfo, settings: Settings, name: str, dims: Mapping[str, int]) -> Check:
    """The record of a pair of which no entry was compared: it states no power, since it would have missed any error."""
    record = _begun(pair, model, settings, name, dims)
    if error := pair.error or next(iter(pair.missed), None):
        return failed_record(record, error)
    total = math.prod(pair.x_shape) * math.prod(pair.y_shape)
    entries = {"total": total, "checked": 0, "failed": 0, "inconclusive": 0}
    notes = tuple(dict.fromkeys(pair.notes))
    return replace(record, status="pass", code="", entries=entries, power=Power(), notes=notes)


def _surveyed(*given: Any) -> dict[str, Any]:
    from gradcheck_cli.checks.diagnose.suspects import surveyed  # most checks survey no nodes

    return surveyed(*given)


def _begun(pair: Pair, model: ModelInfo, settings: Settings, name: str, dims: Mapping[str, int]) -> Check:
    """The fields of a record that do not depend on the comparisons."""
    rtol = pair.of(settings.rtol, RTOL)
    return Check(
        id=f"{name}::{pair.title}",
        check=name,
        status="error",
        code="GC901",
        model=model,
        x=pair.x,
        y=pair.y,
        gradient_of=pair.gradient_of,
        claim=pair.claimed,
        x_shape=pair.x_shape,
        y_shape=pair.y_shape,
        mode=pair.mode or "full",
        method=pair.method,
        chosen=pair.chosen,
        power=power(pair.mode or "full", rtol, [each for each in pair.results if not each.extra]),
        source="onnxruntime" if settings.forward == "onnxruntime" and pair.claim is None else "internal",
        dtype=settings.dtype,
        rtol=rtol,
        atol=pair.of(settings.atol, ATOL),
        seed=settings.seed,
        points=settings.points,
        dims=dims,
        ranges=dict(pair.ranges),
        suspect=pair.suspect,
        duration_s=round(pair.seconds, 4),
        peak_rss_mb=peak_rss_mb(),
        versions=versions(),
        picture=reduce(lambda all_, one: all_.merged(one), pair.pictures) if pair.pictures else None,
    )


def summary(points: Sequence[Counts], max_inconclusive: float) -> dict[str, Any]:
    """The fields of a record that come from the comparisons at all points."""
    counts = _counts(points)
    status, code = verdict(points, max_inconclusive)
    empty = "" if counts["checked"] else "x or y has no entries at these sizes: nothing was checked"
    return {
        "status": status,
        "code": code,
        "message": empty,
        "entries": counts,
        "max_abs_err": max((t.errors[0] for t in points), default=0.0),
        "max_rel_err": max((t.errors[1] for t in points), default=0.0),
        "noise": max((t.noise for t in points), default=0.0),
        "needed": {name: max(t.needed[i] for t in points) for i, name in enumerate(("rtol", "atol"))} if points else {},
        "gradient": gradient_figures([t.gradient for t in points]),
        "evaluations": {kind: sum(t.evaluations.get(kind, 0) for t in points) for kind in ("real", "complex")},
        "coloring": coloring(points),
        "worst": tuple(each.entry for t in points for each in t.worst),
        "notes": tuple(dict.fromkeys(note for t in points for note in t.notes)),
    }


def verdict(points: Sequence[Counts], max_inconclusive: float) -> tuple[str, str]:
    """Status and code of a check: any failure fails it, too many inconclusive entries leave it open."""
    counts = _counts(points)
    if not counts["checked"]:
        return "error", "GC701"
    if counts["failed"]:
        lost = any(t.lost for t in points)
        unfit = counts["failed"] == sum(t.unfit for t in points)
        outside = counts["failed"] == sum(t.outside for t in points)
        return "fail", "GC103" if lost else "GC104" if unfit else "GC105" if outside else "GC101"
    left_out = sum(t.count(Status.LEFT_OUT) for t in points)
    if counts["inconclusive"] + left_out > max_inconclusive * (counts["checked"] + left_out):
        number = {code: sum(t.count(*(s for s in REASONS if REASONS[s] == code)) for t in points)
                  for code in dict.fromkeys(REASONS.values())}  # fmt: skip
        return "inconclusive", max({**number, "GC302": left_out}, key={**number, "GC302": left_out}.__getitem__)
    return "pass", ""


def passes(result: PairResult, max_inconclusive: float) -> bool:
    """True if the comparison at this point would pass by itself."""
    if result.comparison.clean:
        return True
    return verdict([result.counts], max_inconclusive)[0] == "pass"


def _counts(points: Sequence[Counts]) -> dict[str, int]:
    points = [t for t in points if not t.extra]
    return {
        "total": sum(t.total for t in points),
        "checked": sum(sum(t.statuses) - t.count(Status.LEFT_OUT) for t in points),
        "failed": sum(t.count(Status.FAIL) for t in points),
        "inconclusive": sum(t.count(*REASONS) for t in points),
        "kink_ok": sum(t.count(Status.KINK_OK) for t in points),
        **{s.name.lower(): n for s in (*REASONS, Status.LEFT_OUT) if (n := sum(t.count(s) for t in points))},
    }


def coloring(points: Sequence[Counts]) -> dict[str, int]:
    """Number of rows, and of colors at the point with most; empty if each row was probed alone."""
    grouped = [t.colors for t in points if t.colors is not None]
    return {"rows": grouped[0][0], "colors": max(colors for _, colors in grouped)} if grouped else {}


def _beside(points: Sequence[Counts], fields: Mapping[str, Any], max_inconclusive: float) -> dict[str, Any]:
    """Fields of a record that extra comparisons change: a projection of all entries, or entries at ties."""
    failed = [t for t in points if t.extra and t.count(Status.FAIL)]
    if fields["status"] == "fail":
        return {}
    if not failed:
        open_ = [structs.replace(t, extra=False) for t in points if t.tied]
        status, code = verdict(open_, max_inconclusive) if open_ else ("pass", "")
        left = _counts(open_)["inconclusive"]
        message = f"{left} of {counted(_counts(open_)['checked'], 'entry')} at ties cannot be judged"
        known = status != "inconclusive" or fields["status"] != "pass"
        return {} if known else {"status": status, "code": code, "message": message}
    if all(t.unfit == t.count(Status.FAIL) for t in failed):
        return {"status": "fail", "code": "GC104", "message": failed[0].notes[0]}
    message = "a random projection of all entries differs: what is wrong lies in entries that were not drawn"
    return {"status": "fail", "code": "GC101", "message": message}


def _lawless(broken: Sequence[Broken], fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a record for which a law does not hold: it fails, whatever the entries say.

    The law becomes the message, unless failing entries say more.
    """
    codes = [each.code for each in broken]
    code = NONDETERMINISTIC if NONDETERMINISTIC in codes else codes[0]
    laws = tuple(dict.fromkeys(each.law for each in broken if each.code == code))
    if fields["status"] == "fail" and code != NONDETERMINISTIC:
        return {"notes": (*laws, *fields["notes"])}
    return {"status": "fail", "code": code, "message": laws[0], "notes": (*laws[1:], *fields["notes"])}


def failed_record(record: Check, error: GradcheckError, notes: tuple[str, ...] = ()) -> Check:
    """A record for a pair that could not be compared: the kind of error gives status and code."""
    status = {3: "inconclusive", 5: "unsupported", 6: "limit"}.get(error.exit_code, "error")
    blocked_by = error.operators if isinstance(error, UnsupportedError) else ()
    place = record.place
    if isinstance(error, SpecError) and error.line:
        place = SpecPlace(file=error.path, line=error.line)
    return replace(
        record, status=status, code=error.code, message=str(error), notes=notes, entries={}, blocked_by=blocked_by,
        place=place,
    )  # fmt: skip


def power(mode: str, rtol: float, found: Sequence[PairResult]) -> Power:
    """The size of error that a check would have missed, as the record states it."""
    rtol, by = max([rtol, *(each.hidden for each in found)]), rtol
    trifle = max((each.comparison.tolerance.negligible for each in found), default=NEGLIGIBLE)
    if mode == "directional" or (mode == "nodes" and rtol > by):  # a survey of nodes does not cover another forward
        size = max((missed_size(*_directions(each)) for each in found), default=math.inf)
        of = ("norm", WEIGHED)[_weighed(found)] if mode == "directional" else "Jacobian's norm"
        return {"missed_below": rtol * size, "of": of, "probability": _MISSED}
    if mode == "nodes":
        from gradcheck_cli.checks.diagnose.nodes_alone import FEWEST, TOLERANCE  # loaded by then

        size = missed_size(FEWEST, FEWEST)
        return {"missed_below": TOLERANCE.rtol * size, "of": "norm of a node's Jacobian", "probability": _MISSED}
    if mode == "sampled":
        count = sum(each.comparison.size for each in found)
        lines = min((min(each.comparison.shape) for each in found), default=1)
        drawn: Power = {"missed_below": rtol, "bad_fraction": bad_share(count)}
        if lines > 1:
            drawn["bad_fraction_of_lines"] = bad_share(lines)
        return {**drawn, "confidence": _CONFIDENCE, "negligible": trifle}
    whole: Power = {"missed_below": rtol}
    if rtol > by:
        whole["of"] = "the largest entry for the same y"
    return {**whole, "negligible": trifle}


def _weighed(found: Sequence[PairResult]) -> bool:
    return any(each.directions is not None and each.directions.weighed for each in found)


def _directions(found: PairResult) -> tuple[int | None, int | None]:
    """Number of random directions of x and of y that were compared; None where they are a basis."""
    rows, columns = found.comparison.shape
    here, weights = found.directions, found.weights
    whole = here is not None and rows == here.here.size, weights is None or columns == weights.shape[1]
    return None if whole[0] else rows, None if whole[1] else columns


def bad_share(entries: int) -> float:
    """The share of wrong entries that `entries` drawn ones without a failure leave possible, at 95 %: about 3/k."""
    return 1.0 - (1.0 - _CONFIDENCE) ** (1.0 / max(entries, 1))


@cache
def missed_size(rows: int | None, columns: int | None) -> float:
    """The size of error, in units of the tolerance, that projections miss with 1 % probability; see `missed`."""
    if 0 in (rows, columns):
        return math.inf
    low, high = 1e-4, 1.0
    for _ in range(20):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if missed(middle, rows, columns) < _MISSED else (low, middle)
    return 1 / low


def missed(t: float, rows: int | None, columns: int | None) -> float:
    """Upper bound of the probability that projections on all pairs of random directions of x and of y stay below t.

    The worst case is an error in a single entry: each projection of it is the product of two normal numbers, and all of
    them are below t if the product of the largest of x and the largest of y is.  For a basis (None) the largest is at
    least 1, in units of the root mean square.
    """
    if rows is None or columns is None:
        return _below(t, columns if rows is None else rows)
    at_most = [0.0, *(_below(edge, rows) for edge in _EDGES), 1.0]
    shares = [above - below for below, above in pairwise(at_most)]
    return shares[0] + sum(share * _below(t / edge, columns) for share, edge in zip(shares[1:], _EDGES, strict=True))


def _below(t: float, count: int | None) -> float:
    """The probability that the largest of `count` normal numbers is below t; for a basis (None) that number is 1."""
    return float(t > 1) if count is None else math.erf(t / math.sqrt(2)) ** count


def model_of(source: Source) -> ModelInfo:
    """The record's description of a model."""
    operators = dict(Counter(map(full_name, source.graph.all_nodes)).most_common())
    return ModelInfo(source.uri, source.sha256, source.opset, source.nodes, _dtypes(source), operators)


def full_name(node: Node) -> str:
    return f"{node.domain}.{node.op}" if node.domain else node.op


def _dtypes(source: Source) -> tuple[str, ...]:
    declared = [t.dtype for n, t in source.graph.types.items() if n in source.graph.inputs and t.dtype is not None]
    arrays = [v.dtype for v in source.graph.constants.values() if v.ndim]
    return tuple(dict.fromkeys(d.name for d in [*declared, *arrays] if is_inexact(d)))


@cache
def versions() -> dict[str, str]:
    """Versions of gradcheck, NumPy, Python, kernels and, if it was imported, ONNX."""
    onnx, python = sys.modules.get("onnx"), ".".join(map(str, sys.version_info[:3]))
    found = {"gradcheck": VERSION, "numpy": np.__version__, **({"onnx": onnx.__version__} if onnx else {})}
    return {**found, "python": python, "kernels": str(info()["isa"])}


def peak_rss_mb() -> float:
    """The largest resident size of this process so far."""
    try:
        import resource
    except ImportError:  # Windows has no such module
        return 0.0
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(used / (1 << 20 if sys.platform == "darwin" else 1 << 10), 1)
