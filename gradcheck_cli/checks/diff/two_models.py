"""The procedure of comparing two models: points, the outputs and derivatives of both, and a record for each.

A derivative that only one of the models has, the other being severed by nature, is a difference whatever the values
are.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from msgspec import structs

from gradcheck_cli.autodiff.custom import ops_for
from gradcheck_cli.autodiff.severed import Severance
from gradcheck_cli.autodiff.tape import quietly
from gradcheck_cli.checks.assemble import failed_record, model_of, peak_rss_mb, versions
from gradcheck_cli.checks.diff.match import (
    first_difference,
    last_agreement,
    match_names,
    names,
    same_parameters,
    with_sizes_of,
)
from gradcheck_cli.checks.diff.model_runs import (
    BothRuns,
    Key,
    KeyOutcome,
    ModelPrecision,
    ModelRun,
    between,
    differs,
)
from gradcheck_cli.checks.procedure import Listener
from gradcheck_cli.checks.severing import CODE, cut_off, sentence, severance_of
from gradcheck_cli.compare.branches import Branches
from gradcheck_cli.compare.counts import KEPT, Counts, PairResult
from gradcheck_cli.errors import GradcheckError, ModelError, PointError, UsageError, listed, shown
from gradcheck_cli.formats.source import Source
from gradcheck_cli.graph import describe, is_inexact_array
from gradcheck_cli.graph.memory import exhausted
from gradcheck_cli.jacobian.directions import reals
from gradcheck_cli.op import Ops
from gradcheck_cli.ops import OPS
from gradcheck_cli.ops.straight import NOTHING_ROUNDS, rounds, through
from gradcheck_cli.points.more import finite_point
from gradcheck_cli.points.point import Point, dims_behind, failure_of, in_its_dtype
from gradcheck_cli.points.sizes import SIZES, Failure
from gradcheck_cli.points.targets import check_paths, choose_x, choose_y, is_float, require, weights
from gradcheck_cli.results.record import COMPARISON, Check, Entry, Forward, Suspect
from gradcheck_cli.settings import ANY, Settings
from gradcheck_cli.verdict.rule import ATOL, RTOL, Comparison, Status, Tolerance, errors, pattern, worst

OUTPUTS, GRADIENTS = "GC110", "GC111"
_BESIDE = 2  # points close to one with a difference, which may be a tie
_NEAR = 1e-3  # their distance, relative to the largest entry
_LOOKS = 8  # differences that get a suspect


def compare(
    a: Source, b: Source, settings: Settings, given: Mapping[str, str], *, name: str, reproduce: str = "",
    listen: Listener | None = None, ops: Ops = OPS, ops_of_b: Ops | None = None,
) -> tuple[Check, ...]:  # fmt: skip
    """A record for each output of A, and for each derivative of one, compared with those of B.

    `given` are tensors of A with their partners in B.  Raises GradcheckError for errors of the models as a whole.
    """
    try:
        with quietly():
            comparing = ModelDiff(a, b, settings, given, ops, ops if ops_of_b is None else ops_of_b)
            return comparing.run(name, reproduce, listen)
    except MemoryError as error:
        raise exhausted(error) from error


class ModelDiff:
    """One comparison of A and B over all points."""

    def __init__(
        self, a: Source, b: Source, settings: Settings, given: Mapping[str, str], ops: Ops, ops_of_b: Ops
    ) -> None:
        require(a.graph, [*(settings.x or ()), *(settings.y or ()), *settings.extra_feed_dict], a.uri)
        self.precisions = ModelPrecision.of(a), ModelPrecision.of(b)
        self.idle = settings.straight_through and not (rounds(a, settings, ops) or rounds(b, settings, ops_of_b))
        (a, ops), (b, ops_of_b) = through(a, settings, ops), through(b, settings, ops_of_b)
        self.ops, self.ops_of_b = ops_for(a, ops), ops_for(b, ops_of_b)
        self.a, self.b, self.names = a, b, names(a.uri, b.uri)
        self.known = match_names(a, b, given)
        self.settings = with_sizes_of(b, a, self.known.inputs, settings)
        self.loss = self.precisions[0].loss(self.precisions[1])
        outputs = self.known.outputs
        self.ys = {
            y: outputs.get(y) if y in a.graph.outputs else self.known.of(y) for y in settings.y or a.graph.outputs
        }
        xs = self._xs()
        inputs = {*a.graph.free_inputs}  # B may lack some, on which nothing depends there
        self.left = [n for n, other in xs.items() if other is None and n not in inputs]
        self.xs = {n: other for n, other in xs.items() if n not in self.left}
        for name in [n for n in self.left if n in (settings.x or ())]:
            raise UsageError(f"{b.uri} has nothing that stands for {name!r}. What does? --map {shown(name)}=NAME")
        self.pairs, self.found, self.looked = self._pairs(), dict[Key, KeyResult](), 0
        self.branches = Branches(a.graph), Branches(b.graph)
        self.unsized: list[str] = []  # note that no sizes were found at which both run

    def run(self, name: str, reproduce: str, listen: Listener | None) -> tuple[Check, ...]:
        """The records over all points."""
        start, dims = time.perf_counter(), dict[str, int]()
        notes = dict.fromkeys([*self.known.notes, *self._about()])
        indices = range(self.settings.points) if self.settings.point is None else (self.settings.point,)
        for done, index in enumerate(indices):
            if listen is not None:
                listen.start(f"point {index}", len(indices))
                listen.advance(done, len(indices))
            point = self._point(index, dims)
            dims = dict(point.dims)
            notes.update(dict.fromkeys([*point.notes, *self.unsized]))
            self._at(index, point)
        notes.update(dict.fromkeys(self._never_run()))
        seconds = round((time.perf_counter() - start) / max(len(self.found), 1), 4)
        plain = self._plain(name, reproduce, {**self.a.dims, **self.settings.dims, **dims}, tuple(notes), seconds)
        both = ((self.a, self.ops), (self.b, self.ops_of_b))
        a, b = (severance_of(source.graph, ops, self.settings, {}) for source, ops in both)
        return tuple(self._judged(record_of(each, replace(plain, forward=self._forward(key.y))), a, b)
                     for key, each in self.found.items())  # fmt: skip

    def _point(self, index: int, dims: Mapping[str, int]) -> Point:
        """A point of A, at sizes of open dimensions at which B runs too; if there are none, as for A alone."""
        at = partial(finite_point, self.a, self.settings, self.ops, [*self.ys, *self.xs], index, dims)
        if dims:
            return at()
        failures: list[Failure] = []
        try:
            return at(lambda feeds: self._beside_a(feeds, failures))
        except (UsageError, ModelError):
            if not failures:
                raise
        point = at()
        sizes = ", ".join(map(shown, point.dims))
        self.unsized.append(
            f"no size of {sizes} was found at which {self.names[1]} runs too (tried 1 ... {max(SIZES)})"
        )
        return point

    def _beside_a(self, feeds: Mapping[str, Any], failures: list[Failure]) -> Failure | None:
        """The failure of B with the feeds of A, and the dimensions of A that lead to it."""
        theirs = self.known.handed_over(feeds, self.settings.dtype)
        run, graph = ModelRun.of(self.b, theirs, self._targets_of_b, self.settings, self.ops_of_b), self.b.graph
        failure = failure_of(graph, run.tape, self._targets_of_b)
        if failure is None:
            return None
        position, _ = failure.position
        needed = graph.needed_for(graph.nodes[position].reads if position < len(graph.nodes) else graph.outputs)
        dims = dims_behind(self.a.graph, [mine for mine, other in self.known.inputs.items() if other in needed])
        further = len(self.a.graph.nodes) + 1 + position  # than any failure of A
        failures.append(structs.replace(failure, position=(further, failure.position[1]), dims=dims))
        return failures[-1]

    @property
    def _targets_of_b(self) -> list[str]:
        return [n for n in (*self.ys.values(), *self.xs.values()) if n is not None]

    def _judged(self, check: Check, a: Severance, b: Severance) -> Check:
        """The record of a derivative: it fails where only one model is severed.

        A model that is quantized for inference has no gradient there; that is no failure, and the status is severed.
        """
        x, y = self.xs.get(check.x), self.ys.get(check.y)
        if not check.x or check.status not in ("pass", "fail", "inconclusive") or x is None or y is None:
            return check
        here, there = cut_off(check.x, check.y, a), cut_off(x, y, b)
        found = here or there
        if found is None or (here and there):
            return check
        of, name, pair = (a, self.names[0], (check.x, check.y)) if here else (b, self.names[1], (x, y))
        severed = replace(check, code=CODE, gradient={**check.gradient, "severed": found})
        if of.quantizes(*pair):
            return replace(
                severed, status="severed", message=f"{name}: {sentence(found, *pair, of)}",
                entries={**check.entries, "failed": 0}, worst=(), suspect=None, needed={},
            )  # fmt: skip
        message = f"it has no gradient in {name} alone: {sentence(found, *pair, of)}"
        return replace(severed, status="fail", message=message)

    def _forward(self, y: str) -> Forward:
        """The field `forward` of a record: errors of the output y."""
        absolute, relative = self.found[Key(y)].errors if Key(y) in self.found else (0.0, 0.0)
        return {"compared_with": self.a.uri, "max_abs_err": absolute, "max_rel_err": relative}

    def _at(self, index: int, point: Point) -> None:
        """Compares both models at one point."""
        both = self._both(point.feeds, point)
        for branches, run in zip(self.branches, (both.a, both.b), strict=True):
            branches.at(run.tape, run.feeds, {})
        outcomes = both.compared(self.loss, self.ops)
        differing = [key for key, each in outcomes.items() if differs(each)]
        beside = self._beside(both, differing)
        differing = [key for key in differing if key not in beside]
        if differing and (drawn := self._drawn(both)):
            outcomes.update((key, PointError(drawn, code="GC303")) for key in differing)
        for key, outcome in outcomes.items():
            found = self.found.setdefault(key, KeyResult(key, self._tolerance(key)))
            found.add(index, beside.get(key, outcome), both)
            if key in beside:
                found.notes.append(f"at point {index} it differs, and beside it it does not: a decision is tied there")
            elif key in differing and found.suspect is None:
                found.suspect = self._suspect(both, key, outcome)
            found.notes += self._on_flow(key, outcome, differs=key in differing)

    def _on_flow(self, key: Key, outcome: KeyOutcome, *, differs: bool) -> Iterator[str]:
        """Notes on a derivative that is zero in one of the models."""
        if not key.x or not isinstance(outcome, Comparison):
            return
        a, b = (bool(precision.step) and not self.settings.straight_through for precision in self.precisions)
        if differs and a != b:
            yield f"{self.names[b]} quantizes: nothing flows through integers, unless with --straight-through"
        else:
            here, there = (bool(each.any()) for each in (outcome.theoretical, outcome.numerical))
            if here != there:
                yield f"it is zero in {self.names[here]}"

    def _both(self, feeds: Mapping[str, Any], point: Point | None = None) -> BothRuns:
        """Both models with the same feeds; the run of `point` is reused."""
        settings, theirs = self.settings, self.known.handed_over(feeds, self.settings.dtype)
        if settings.dtype == "model":  # both get numbers that the less precise one can hold
            point, feeds = None, {n: self._rounded(n, v, theirs) for n, v in feeds.items()}
            theirs = self.known.handed_over(feeds, settings.dtype)
        a = ModelRun(self.a, feeds, point.tape, settings) if point is not None else ModelRun.of(
            self.a, feeds, [*self.ys, *self.xs], settings, self.ops
        )  # fmt: skip
        b = ModelRun.of(self.b, theirs, self._targets_of_b, settings, self.ops_of_b)
        return BothRuns(a, b, self.ys, self.xs, self.pairs, self._tolerance, self.names)

    def _rounded(self, name: str, value: Any, theirs: Mapping[str, Any]) -> Any:
        other = self.known.of(name)
        held = theirs.get(other) if other is not None and is_inexact_array(value) else None
        return value if held is None else in_its_dtype(self.a.graph, name, held)

    def _drawn(self, both: BothRuns) -> str:
        """Message that one of the models draws random numbers, which differ in each run; "" if none does."""
        for run, ops, name in ((both.a, self.ops, self.names[0]), (both.b, self.ops_of_b, self.names[1])):
            nodes = enumerate(run.source.graph.nodes)
            drawing = [describe(i, n) for i, n in nodes if (op := ops.get(n.key)) is not None and "rng" in op.schema]
            if drawing and run.changes_with_the_seed(ops):
                return f"{drawing[0]} of {name} draws random numbers, and no two models draw the same"
        return ""

    def _beside(self, both: BothRuns, keys: Collection[Key]) -> dict[Key, Comparison]:
        """Keys that agree at points close by: at a tie both models may be right."""
        found: dict[Key, Comparison] = {}
        for number in range(_BESIDE if both.a.piecewise or both.b.piecewise else 0):
            if not keys or (feeds := self._moved_a_little(both.a.feeds, number)) is None:
                return {}
            outcomes = self._both(feeds).compared(self.loss, self.ops, keys)
            found = {k: each for k, each in outcomes.items() if isinstance(each, Comparison) and not differs(each)}
            keys = list(found)
        return found

    def _moved_a_little(self, feeds: Mapping[str, Any], number: int) -> dict[str, Any] | None:
        """Feeds near those of a point; None if none of them can be moved."""
        rng, found = np.random.default_rng([self.settings.seed, 8, number]), dict(feeds)
        for name, value in feeds.items():
            if name in self.a.graph.inputs and is_inexact_array(value) and value.size:
                largest = np.max(np.abs(value), initial=0.0, where=np.isfinite(value)) or 1.0
                found[name] = value + (_NEAR * largest * rng.uniform(-1, 1, value.shape)).astype(value.dtype)
        return None if all(found[name] is feeds[name] for name in feeds) else found

    def _suspect(self, both: BothRuns, key: Key, outcome: KeyOutcome) -> Suspect | None:
        """The node at which a difference begins; for a derivative only where its output agrees."""
        if not isinstance(outcome, Comparison) or key.y not in self.ys or self.looked >= _LOOKS:
            return None
        self.looked += 1
        error = errors(outcome)[1]
        if not key.x:
            return first_difference(both, key.y, error, self.loss.rtol)
        if self.found[Key(key.y)].failed:  # the cause of the difference
            return None
        _, column = worst(outcome, 1)[0]
        return last_agreement(both, key.y, key.x, both.weights[key.y][column : column + 1], error, self.loss.rtol)

    def _tolerance(self, key: Key) -> Tolerance:
        """The tolerance of the settings, or that by the less precise model."""
        rtol, atol = ([v[n] for n in (key.x, key.y, ANY) if n in v] for v in (self.settings.rtol, self.settings.atol))
        least = ATOL if self.settings.dtype == "float64" else self.loss.atol
        return between(next(iter(rtol), self.loss.rtol), next(iter(atol), least))

    def _xs(self) -> dict[str, str | None]:
        """Tensors to differentiate by, with their partners in B."""
        graph, settings = self.a.graph, self.settings
        floats = [y for y in self.ys if y in choose_y(graph) or settings.y]
        xs = choose_x(graph, floats, x=settings.x, params=settings.params, param=settings.param, ops=self.ops)
        if settings.x:
            check_paths(graph, settings.x, list(self.ys), settings.extra_feed_dict)
        weights = [n for n in xs if n in graph.constants and n not in graph.free_inputs]
        same = same_parameters(self.a, self.b, weights, self.known.given, self.loss)
        return {n: same.get(n) if n in weights else self.known.of(n) for n in xs}

    def _pairs(self) -> set[Key]:
        """The derivatives that either model has, if both have x and y."""
        fed, found = self.settings.extra_feed_dict, set[Key]()
        for x, other in self.xs.items():
            here = self.a.graph.reached_from([x], fed)
            there = self.b.graph.reached_from([other], fed) if other is not None else set()
            found |= {Key(y, x) for y, o in self.ys.items() if o is not None and (y in here or o in there)}
        return found

    def _about(self) -> Iterator[str]:
        """Notes on the comparison as a whole."""
        if self.idle:
            yield NOTHING_ROUNDS
        a, b = (f"{name} has {each}" for name, each in zip(self.names, self.precisions, strict=True))
        if self.loss.rtol > RTOL:
            yield f"{a}, {b}: rtol {self.loss.rtol:.1e}, unless --rtol says otherwise"
        elif self.precisions[0] != self.precisions[1]:
            yield f"{a}, {b}"
        yield from self._left_out()

    def _never_run(self) -> Iterator[str]:
        """A note for each model on what no point ran."""
        for name, branches in zip(self.names, self.branches, strict=True):
            if unrun := [*branches.unrun()]:
                yield f"{name}: {listed(unrun)} ran at no point, and was not compared"

    def _left_out(self) -> Iterator[str]:
        """Notes on what is not compared, a line each."""
        graph, settings = self.a.graph, self.settings
        if self.left:
            left = listed(map(repr, self.left))
            yield f"not compared, since {self.names[1]} has no single parameter of the same values: {left}"
        if not (settings.x or settings.params or settings.param or any(n in graph.constants for n in self.xs)):
            trained = [name for name in weights(graph, [*self.ys], ops=self.ops) if name not in self.xs]
            if trained:
                yield f"not compared without --params: gradients by {listed(map(repr, trained))}"
        if whole := [y for y in self.ys if y in graph.tensors and not is_float(graph, y, unknown=True)]:
            yield f"no gradient, since they hold no floats: {listed(map(repr, whole))}"

    def _plain(
        self, name: str, reproduce: str, dims: Mapping[str, int], notes: tuple[str, ...], seconds: float
    ) -> Check:
        """The fields that all records share."""
        return Check(
            id=name, check=name, status="error", code="GC901", model=model_of(self.b), x="", y="", method=COMPARISON,
            dtype=self.settings.dtype, seed=self.settings.seed, points=self.settings.points, dims=dims, notes=notes,
            reproduce=reproduce, duration_s=seconds, peak_rss_mb=peak_rss_mb(), versions=versions(),
        )  # fmt: skip


@dataclass
class KeyResult:
    """Results for one output, or one derivative, at the points so far."""

    key: Key
    tolerance: Tolerance
    shapes: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())  # of x and of y
    total: int = 0
    counts: list[Counts] = field(default_factory=list)  # at each point
    error: GradcheckError | None = None
    unlike: str = ""
    suspect: Suspect | None = None
    notes: list[str] = field(default_factory=list)

    def add(self, index: int, outcome: KeyOutcome, both: BothRuns) -> None:
        """Adds the result of a point."""
        named, none = both.a.tape.named, np.zeros(())
        x, y = (named[name].value if name in named else none for name in (self.key.x, self.key.y))
        self.shapes, self.total = (x.shape, y.shape), math.prod(reals(named[n].value) for n in self.key if n in named)
        if isinstance(outcome, Comparison):
            entries = y if not self.key.x or both.is_exact(self.key.y) else none  # sums of entries have no index
            self.counts.append(PairResult(outcome, COMPARISON, x, entries, point=index).counts)
        elif isinstance(outcome, GradcheckError):
            self.error = self.error or outcome
        else:
            self.unlike = self.unlike or outcome

    @property
    def failed(self) -> int:
        """Number of entries that differ."""
        return sum(each.count(Status.FAIL) for each in self.counts)

    @property
    def errors(self) -> tuple[float, float]:
        """The largest errors, absolute and relative."""
        absolute, relative = zip((0.0, 0.0), *(each.errors for each in self.counts), strict=True)
        return max(absolute), max(relative)

    @property
    def worst(self) -> Iterator[Entry]:
        """The entries that differ most, with the kind of mistake in B that each looks like."""
        found = (each for counts in self.counts for each in counts.worst)
        ordered = sorted(found, key=lambda each: (*each.rank[:2], each.entry.point, each.rank[3]))
        for entry in (each.entry for each in ordered[:KEPT]):
            yield replace(entry, pattern=pattern(entry.numerical, entry.theoretical, sum(self.shapes, ())))


def record_of(found: KeyResult, plain: Check) -> Check:
    """The record of one output or derivative; `plain` has the fields that all of them share."""
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


def _summary(found: KeyResult, code: str) -> dict[str, Any]:
    """The fields of a record that come from the comparisons at all points."""
    every = found.counts
    compared = sum(sum(each.statuses) for each in every)
    checked = compared - sum(each.count(Status.LEFT_OUT) for each in every)
    open_ = ("inconclusive", "GC302", "it has no entry that is finite")
    empty = ("error", "GC701", "it has no entries at these sizes: nothing was compared")
    passed = ("pass", "", "") if checked else open_ if compared else empty
    status, code, message = ("fail", code, "") if found.failed else passed
    return {
        "status": status,
        "code": code,
        "message": message,
        "mode": "full" if all(sum(each.statuses) == found.total for each in every) else "directional",
        "entries": {"total": found.total * len(every), "checked": checked, "failed": found.failed, "inconclusive": 0},
        "max_abs_err": found.errors[0],
        "max_rel_err": found.errors[1],
        "noise": max(each.noise for each in every),
        "needed": {name: max(each.needed[i] for each in every) for i, name in enumerate(("rtol", "atol"))},
        "worst": tuple(found.worst),
    }
