"""The contents of pages: models with the outcomes of their checks, their operators, and facts as pairs of words.

`of_run`, `of_model` and `of_check` give the facts that are shown besides tables.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from gradcheck_cli.errors import counted, plural
from gradcheck_cli.report.concise import has_error, mode_said, share_compared
from gradcheck_cli.report.health import health_of, precision_text
from gradcheck_cli.report.remarks import held_against, power_lines
from gradcheck_cli.report.text import Style, name, rough, seconds
from gradcheck_cli.results.measures import Health, Layer
from gradcheck_cli.results.record import Check, ModelInfo, Report, Suspect

_MODEL_DIGITS = 12  # of a digest: names may be anything, files named after them may not


class Outcome(NamedTuple):
    """An outcome of a check, in a word and a letter: neither needs a color to be understood."""

    key: str
    word: str
    letter: str
    meaning: str


OUTCOMES = {
    each.key: each
    for each in (  # the worst first
        Outcome("fail", "FAIL", "F", "the gradient is wrong"),
        Outcome(
            "severed",
            "NO GRADIENT",
            "N",
            "a node on the way from x to y has no derivative, as rounding has none",
        ),
        Outcome("error", "ERROR", "E", "there was nothing to compare"),
        Outcome("forward", "DIFFERS", "D", "the gradient is right, but the forward run is not what others compute"),
        Outcome("gate", "GATE", "G", "the gradient is right, but not what --fail-on lets through"),
        Outcome("limit", "LIMIT", "L", "time, memory or the worker ran out"),
        Outcome("unsupported", "UNSUPPORTED", "U", "an operator, a gradient or a dtype is not known"),
        Outcome("inconclusive", "INCONCLUSIVE", "I", "kinks or noise (uncertainty): cannot be judged at these points"),
        Outcome("apart", "SEVERED", "S", "from this y, but x has one from another"),
        Outcome("waived", "KNOWN FAILURE", "K", "not right, and expected not to be"),
        Outcome("pass", "PASS", "P", "the gradient is right"),
    )
}
_RANK = {key: rank for rank, key in enumerate(OUTCOMES)}
QUIET = ("pass", "waived", "apart")


def outcome_of(check: Check) -> Outcome:
    """The outcome of one check; its gradient's health may stop the run though it passes."""
    if check.status == "severed" and check.passes:
        return OUTCOMES["apart"]
    if check.status not in QUIET or not check.gates:
        return OUTCOMES[check.status]
    return OUTCOMES["forward" if check.gradient_passes else "gate"]


@dataclass(frozen=True, slots=True)
class PagedModel:
    """One model, or one check of a spec, with the records of its pairs (x, y); `slug` names its page."""

    name: str
    uri: str
    slug: str
    checks: tuple[Check, ...]

    @property
    def outcome(self) -> Outcome:
        """The worst outcome of its checks."""
        return min(map(outcome_of, self.checks), key=lambda each: _RANK[each.key])

    @property
    def told(self) -> Check:
        """The check that says most: the first with the worst outcome."""
        return next(c for c in self.checks if outcome_of(c) is self.outcome)

    @property
    def seconds(self) -> float:
        return sum(c.duration_s for c in self.checks)

    @property
    def error(self) -> float | None:
        """The largest relative error; None where there is none to speak of."""
        found = [c.max_rel_err for c in self.checks if has_error(c)]
        return max(found, key=lambda error: (error != error, error), default=None)

    @property
    def nodes(self) -> int:
        return max(c.model.nodes for c in self.checks)

    @property
    def operators(self) -> Mapping[str, int]:
        """The operators of its graph, as far as it could be read."""
        return next((c.model.operators for c in self.checks if c.model.operators), {})


class Order(NamedTuple):
    """A way to sort models: the column it belongs to, and whether large ones come first."""

    key: Callable[[PagedModel], Any]
    descending: bool = False


ORDERS = {
    "outcome": Order(lambda m: (_RANK[m.outcome.key], m.name)),
    "name": Order(lambda m: (m.name.casefold(), m.name)),
    "checks": Order(lambda m: len(m.checks), descending=True),
    "nodes": Order(lambda m: m.nodes, descending=True),
    "error": Order(lambda m: -1.0 if m.error is None else 1e400 if m.error != m.error else m.error, descending=True),
    "time": Order(lambda m: m.seconds, descending=True),
}


def models_of(checks: Iterable[Check]) -> list[PagedModel]:
    """The models of a run, and the records of each wherever these stand; of both the worst outcomes come first."""
    groups: dict[tuple[str, str], list[Check]] = {}
    for check in checks:
        groups.setdefault((check.model.uri, check.check), []).append(check)
    found = [
        PagedModel(label, uri, _slug(label, uri), tuple(sorted(group, key=lambda check: _RANK[outcome_of(check).key])))
        for (uri, label), group in groups.items()
    ]
    return ordered(found, "outcome")


def ordered(models: Iterable[PagedModel], order: str) -> list[PagedModel]:
    """Models in one of the orders; equal ones by name."""
    by_name = sorted(models, key=ORDERS["name"].key)
    return sorted(by_name, key=ORDERS[order].key, reverse=ORDERS[order].descending)


def by_outcome(outcomes: Iterable[Outcome]) -> list[tuple[Outcome, int]]:
    """The number of each outcome that occurs, the worst first."""
    found = Counter(each.key for each in outcomes)
    return [(outcome, found[key]) for key, outcome in OUTCOMES.items() if key in found]


def _slug(label: str, uri: str) -> str:
    """A file name that stays in its folder, is one's own and can be read: mlp-onnx-3f6c0a9e51d2."""
    digest = hashlib.sha256(f"{uri}\0{label}".encode("utf-8", "surrogatepass")).hexdigest()[:_MODEL_DIGITS]
    words = re.sub(r"[^a-z0-9]+", "-", re.split(r"[/\\]", label)[-1].lower()).strip("-")[:40].strip("-")
    return f"{words}-{digest}" if words else f"model-{digest}"


@dataclass(frozen=True, slots=True)
class OperatorRow:
    """The models that have an operator, that fail with it, that suspect it, and that it blocks."""

    operator: str
    models: int
    failing: int
    suspected: tuple[PagedModel, ...]
    blocked: tuple[PagedModel, ...]

    @property
    def involved(self) -> bool:
        """True if the operator is why something did not pass, as far as is known."""
        return bool(self.suspected or self.blocked)


def by_operator(models: Sequence[PagedModel]) -> list[OperatorRow]:
    """The operators of all models: first the suspected ones, then those that block, then those of failing models."""
    rows: dict[str, tuple[list[PagedModel], list[PagedModel], list[PagedModel], list[PagedModel]]] = {}
    for model in models:
        suspects = {_in_full(c.suspect, model.operators) for c in model.checks if c.suspect is not None}
        blockers = {op for c in model.checks for op in c.blocked_by}
        for operator in {*model.operators, *suspects, *blockers}:
            having, failing, suspected, blocked = rows.setdefault(operator, ([], [], [], []))
            having.append(model)
            failing += [model] * (model.outcome.key == "fail")
            suspected += [model] * (operator in suspects)
            blocked += [model] * (operator in blockers)
    found = [OperatorRow(op, len(h), len(f), tuple(s), tuple(b)) for op, (h, f, s, b) in rows.items()]
    order = ((-len(r.suspected), -len(r.blocked), -r.failing / r.models, -r.models, r.operator) for r in found)
    return [row for _, row in sorted(zip(order, found, strict=True), key=lambda pair: pair[0])]


def _in_full(suspect: Suspect, operators: Iterable[str]) -> str:
    """The operator of a suspect as its model has it, with its domain."""
    short = suspect.part_of or suspect.op
    return next((op for op in operators if op == short or op.endswith(f".{short}")), short)


_WHOLE = Style(width=1 << 30)  # sentences on one line: pages wrap by themselves
_DECADES = 2.0  # that bars of sizes span at least
_DIGITS = 16  # of a digest: as many as one compares
Fact = tuple[str, str]


def of_run(report: Report, models: Sequence[PagedModel]) -> Iterator[Fact]:
    """The pairs that were checked, and the method."""
    checks = report.checks
    compared = sum(c.entries.get("checked", 0) for c in checks)
    yield "Models", f"{len(models):,} with {len(checks):,} {plural(len(checks), 'pair')} (x, y)"
    yield "Entries compared", f"{compared:,}"
    copies = sum(bool(c.copy_of) for c in checks)
    yield (
        "Copies",
        f"{copies:,} {plural(copies, 'pair')} of models whose structure was checked at another one's weights"
        if copies
        else "",
    )
    yield "Modes", _shares([c.mode for c in checks if c.entries and not c.copy_of])
    yield "Methods", _shares([c.method for c in checks if c.entries and c.method])
    yield "Forward run", _shares([str(c.forward["compared_with"]) for c in checks if c.forward.get("compared_with")])
    yield "Points and seed", _shares([f"{counted(c.points, 'point')}, seed {c.seed}" for c in checks])
    compare = (c for c in checks if c.entries and not c.copy_of)
    yield "Tolerance", _shares([f"rtol {c.rtol:g}, atol {c.atol:g}" for c in compare])
    yield "Fails the run", ", ".join(report.fail_on) or "nothing (--exit-zero)"
    summed = report.summed or not report.duration_s
    yield (
        "Time of all checks" if summed else "Duration",
        seconds(report.duration_s or sum(c.duration_s for c in checks)),
    )
    yield "Peak memory", f"{max((c.peak_rss_mb for c in checks), default=0.0):,.0f} MB"
    yield "Versions", _shares([", ".join(f"{k} {v}" for k, v in c.versions.items()) for c in checks if c.versions])


def of_model(model: PagedModel) -> Iterator[Fact]:
    """Facts about a checked model as a file, and the time it took."""
    yield from of_file(next((c.model for c in model.checks if c.model.nodes), model.checks[0].model))
    yield "Duration", seconds(model.seconds)


def of_file(found: ModelInfo) -> Iterator[Fact]:
    """Facts about a model as a file."""
    yield "File", found.uri
    yield "Opset", ", ".join(f"{domain} {v}".strip() for domain, v in sorted(found.opset.items()))
    yield "Nodes", f"{found.nodes:,}" if found.nodes else ""
    operators = ", ".join(f"{op} {n}" for op, n in [*found.operators.items()][:12])
    more = len(found.operators) - 12
    yield "Operators", operators + (f", and {more} more" if more > 0 else "")
    yield "SHA-256", found.sha256[:_DIGITS] + "…" * (len(found.sha256) > _DIGITS)


def of_check(check: Check) -> Iterator[Fact]:
    """The method by which a pair was checked, and what that was worth."""
    if not check.entries:
        return
    if check.copy_of:
        yield "Copy of", f"{name(check.copy_of)}, of the same structure: no entry was compared at these weights"
    else:
        yield "Compared", f"{share_compared(check)}, {mode_said(check)}, {check.method}"
        yield "Would miss", " ".join(power_lines([check], _WHOLE)) or _missed(check)
        yield "Tolerance", f"rtol {check.rtol:g}, atol {check.atol:g}"
    yield "Points", f"{check.points}, seed {check.seed}"
    yield "Sizes", ", ".join(f"{name(k)}={v}" for k, v in check.dims.items())
    yield "Drawn from", ", ".join(f"{name(k)} in {low:g} to {high:g}" for k, (low, high) in check.ranges.items())
    yield "Forward run", held_against(check) if check.forward else ""
    yield "Precision", precision_text([check])
    yield "Branches", _branches(check)
    groups = (
        f"{counted(check.coloring['rows'], 'row')} in {counted(check.coloring['colors'], 'group')}"
        if check.coloring
        else ""
    )
    yield "Coloring", groups
    yield "Forward runs", ", ".join(f"{n:,} on {kind} numbers" for kind, n in check.evaluations.items() if n)
    yield "Took", f"{seconds(check.duration_s)}, {check.peak_rss_mb:,.0f} MB of memory at most"
    yield "Saved as", check.bundle or ""


def bars(health: Health) -> list[tuple[Layer, float]]:
    """The layers of a gradient, each with the length from 0 to 100 of a bar for the order of magnitude of its size."""
    sizes = [math.log10(layer.norm) for layer in health.layers if 0 < layer.norm < math.inf]
    high = max(sizes, default=0.0)
    low = min(min(sizes, default=0.0), high - _DECADES)
    low -= 0.1 * (high - low)
    return [(layer, _length(layer.norm, low, high)) for layer in health.layers]


def healths(model: PagedModel) -> list[tuple[Check, Health]]:
    """The gradients of a model whose layers are worth a table: what is ill or did not pass, else the deepest one."""
    found = [(c, health) for c in model.checks if (health := health_of(c)) is not None and health.layers]
    ill = [(c, health) for c, health in found if health.shows or c.status != "pass"]
    return ill[:8] or sorted(found, key=lambda pair: -pair[1].depth)[:1]


def _length(norm: float, low: float, high: float) -> float:
    if not 0 < norm < math.inf:
        return 0.0 if norm == 0 else 100.0
    return round(100 * (math.log10(norm) - low) / (high - low), 1)


def _missed(check: Check) -> str:
    """The errors that a full comparison would have missed."""
    size = check.power.get("missed_below")
    return f"errors below {rough(float(size))} of an entry" if size else ""


def _branches(check: Check) -> str:
    if not check.branches.get("total"):
        return ""
    told = "; ".join(map(name, check.missed))
    return f"{check.branches['covered']} of {check.branches['total']} taken" + (f": {told}" if told else "")


def _shares(words: Sequence[str]) -> str:
    """Words with their numbers, full (124), nodes (19); without a number where all are the same."""
    found = Counter(words).most_common()
    if len(found) < 2:
        return "".join(word for word, _ in found)
    told = ", ".join(f"{word} ({number:,})" for word, number in found[:4])
    return told + (f", and {len(found) - 4} more" if len(found) > 4 else "")
