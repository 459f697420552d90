"""What pages say of a run, a model and a check besides tables: pairs of a word and what belongs to it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from gradcheck_cli.report import full
from gradcheck_cli.report.findings import held_against
from gradcheck_cli.report.health import health_of
from gradcheck_cli.report.html.models import Model
from gradcheck_cli.report.power import power_lines
from gradcheck_cli.report.precision import precision_text
from gradcheck_cli.report.text import Style, count, name, rough, seconds
from gradcheck_cli.results.measures import Health, Layer
from gradcheck_cli.results.record import Check, Report

_WHOLE = Style(width=1 << 30)  # sentences on one line: pages wrap by themselves
_DECADES = 2.0  # that bars of sizes span at least
_DIGITS = 16  # of a digest: as many as one compares
Fact = tuple[str, str]


class Bar(NamedTuple):
    """A layer with the length of the bar that stands for its gradient's size, from 0 to 100."""

    layer: Layer
    length: float


def of_run(report: Report, models: Sequence[Model]) -> Iterator[Fact]:
    """What was checked, and by what."""
    checks = report.checks
    compared = sum(c.entries.get("checked", 0) for c in checks)
    yield "Models", f"{len(models):,} with {len(checks):,} pairs (x, y)"
    yield "Entries compared", f"{compared:,}"
    yield "Modes", _shares([c.mode for c in checks if c.entries])
    yield "Methods", _shares([c.method for c in checks if c.entries and c.method])
    yield "Forward run", _shares([str(c.forward["compared_with"]) for c in checks if c.forward.get("compared_with")])
    yield "Points and seed", _shares([f"{count(c.points, 'point')}, seed {c.seed}" for c in checks])
    yield "Tolerance", _shares([f"rtol {c.rtol:g}, atol {c.atol:g}" for c in checks if c.entries])
    yield "Fails the run", ", ".join(report.fail_on) or "nothing (--exit-zero)"
    yield "Duration", seconds(report.duration_s or sum(c.duration_s for c in checks))
    yield "Peak memory", f"{max((c.peak_rss_mb for c in checks), default=0.0):,.0f} MB"
    yield "Versions", _shares([", ".join(f"{k} {v}" for k, v in c.versions.items()) for c in checks if c.versions])


def of_model(model: Model) -> Iterator[Fact]:
    """What is known of a model as a file."""
    found = next((c.model for c in model.checks if c.model.nodes), model.checks[0].model)
    yield "File", found.uri
    yield "Opset", ", ".join(f"{domain} {v}".strip() for domain, v in sorted(found.opset.items()))
    yield "Nodes", f"{found.nodes:,}" if found.nodes else ""
    yield (
        "Operators",
        ", ".join(f"{op} {n}" for op, n in [*found.operators.items()][:12])
        + (f", and {more} more" if (more := len(found.operators) - 12) > 0 else ""),
    )
    yield "SHA-256", found.sha256[:_DIGITS] + "…" * (len(found.sha256) > _DIGITS)
    yield "Duration", seconds(model.seconds)


def of_check(check: Check) -> Iterator[Fact]:
    """How a pair was checked, and what that was worth."""
    if not check.entries:
        return
    yield "Compared", f"{full.share_compared(check)}, {check.mode}, {check.method}"
    yield "Would miss", " ".join(power_lines([check], _WHOLE)) or _missed(check)
    yield "Tolerance", f"rtol {check.rtol:g}, atol {check.atol:g}"
    yield "Points", f"{check.points}, seed {check.seed}"
    yield "Sizes", ", ".join(f"{name(k)}={v}" for k, v in check.dims.items())
    yield "Drawn from", ", ".join(f"{name(k)} in {low:g} to {high:g}" for k, (low, high) in check.ranges.items())
    yield "Forward run", held_against(check) if check.forward else ""
    yield "Precision", precision_text([check])
    yield "Branches", _branches(check)
    yield (
        "Coloring",
        f"{check.coloring['rows']} rows in {count(check.coloring['colors'], 'group')}" if (check.coloring) else "",
    )
    yield "Forward runs", ", ".join(f"{n:,} on {kind} numbers" for kind, n in check.evaluations.items() if n)
    yield "Took", f"{seconds(check.duration_s)}, {check.peak_rss_mb:,.0f} MB of memory at most"
    yield "Saved as", check.bundle or ""


def bars(health: Health) -> list[Bar]:
    """The layers of a gradient, with bars by the order of magnitude of its size."""
    sizes = [math.log10(layer.norm) for layer in health.layers if 0 < layer.norm < math.inf]
    high = max(sizes, default=0.0)
    low = min(min(sizes, default=0.0), high - _DECADES)
    low -= 0.1 * (high - low)
    return [Bar(layer, _length(layer.norm, low, high)) for layer in health.layers]


def healths(model: Model) -> list[tuple[Check, Health]]:
    """The gradients of a model whose layers are worth a table: what is ill or did not pass, else the deepest one."""
    found = [(c, health) for c in model.checks if (health := health_of(c)) is not None and health.layers]
    ill = [(c, health) for c, health in found if health.shows or c.status != "pass"]
    return ill[:8] or sorted(found, key=lambda pair: -pair[1].depth)[:1]


def _length(norm: float, low: float, high: float) -> float:
    if not 0 < norm < math.inf:
        return 0.0 if norm == 0 else 100.0
    return round(100 * (math.log10(norm) - low) / (high - low), 1)


def _missed(check: Check) -> str:
    """What a full comparison would have missed."""
    size = check.power.get("missed_below")
    return f"errors below {rough(float(size))} of an entry" if size else ""


def _branches(check: Check) -> str:
    if not check.branches.get("total"):
        return ""
    told = "; ".join(map(name, check.missed))
    return f"{check.branches['covered']} of {check.branches['total']} taken" + (f": {told}" if told else "")


def _shares(words: Sequence[str]) -> str:
    """full (124), nodes (19); without a number where all are the same."""
    found = Counter(words).most_common()
    if len(found) < 2:
        return "".join(word for word, _ in found)
    told = ", ".join(f"{word} ({number:,})" for word, number in found[:4])
    return told + (f", and {len(found) - 4} more" if len(found) > 4 else "")
