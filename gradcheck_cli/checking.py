"""The whole procedure of checking one model: choose what to differentiate, find a point, compare, judge, record."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from gradcheck_cli.assemble import Outcome, peak_rss_mb, power, summary, suspect_record, versions
from gradcheck_cli.backward import inexact
from gradcheck_cli.compare import Found, Job, compare_directional, compare_full
from gradcheck_cli.cost import FULL_WORK, Cost, full_cost
from gradcheck_cli.custom import with_custom
from gradcheck_cli.errors import (
    GradcheckError,
    LimitError,
    NoGradientError,
    PointError,
    UnsupportedError,
    UsageError,
)
from gradcheck_cli.formats.source import Source
from gradcheck_cli.graph import Array, describe
from gradcheck_cli.jacobian import Backward, reals
from gradcheck_cli.locate import suspects
from gradcheck_cli.op import Ops
from gradcheck_cli.ops import OPS
from gradcheck_cli.point import Point, find_point
from gradcheck_cli.program import Program
from gradcheck_cli.record import Check, ModelInfo
from gradcheck_cli.settings import ANY, Settings
from gradcheck_cli.stack import Budget
from gradcheck_cli.tape import Tape
from gradcheck_cli.targets import check_paths, choose_x, choose_y, first_float_after, parameters, require
from gradcheck_cli.trace import trace
from gradcheck_cli.verdict import RTOL, Tolerance

MODEL_RTOL = {
    "float32": 1e-3,
    "float16": 5e-2,
    "bfloat16": 3e-1,
}  # of a gradient computed in the model's own dtype


class Listener(Protocol):
    """Hears of a check's progress."""

    def start(self, title: str, total: int) -> None: ...
    def advance(self, done: int, total: int) -> None: ...
    def done(self) -> None: ...


@dataclass
class Pair:
    """One (x, y) of a check as it goes through the points: outcomes so far, or why there are none."""

    x: str
    y: str
    outcomes: list[Outcome] = field(default_factory=list)
    error: GradcheckError | None = None
    mode: str = ""
    method: str = ""
    suspect: Any = None
    x_shape: tuple[int, ...] = ()
    y_shape: tuple[int, ...] = ()
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)


def check(
    source: Source,
    settings: Settings,
    *,
    name: str,
    reproduce: str = "",
    listen: Listener | None = None,
    ops: Ops = OPS,
) -> tuple[Check, ...]:
    """A record for each pair (x, y) of a model.

    Raises GradcheckError for what concerns the model or the request as a whole; what stops a single pair is in its
    record.
    """
    return Checking(source, settings, listen, with_custom(ops, source.operators)).run(name, reproduce)


class Checking:
    """One check of one model."""

    def __init__(self, source: Source, settings: Settings, listen: Listener | None, ops: Ops) -> None:
        self.source, self.settings, self.listen, self.ops = source, settings, listen, ops
        self.graph = source.graph
        self.deadline = None if settings.timeout is None else time.monotonic() + settings.timeout
        self.ys = settings.y or choose_y(self.graph)
        self.xs = settings.x or choose_x(self.graph, self.ys, params=settings.params)
        if settings.x and settings.params:
            self.xs = tuple(dict.fromkeys([*settings.x, *parameters(self.graph)]))

    def run(self, name: str, reproduce: str) -> tuple[Check, ...]:
        """All points, all pairs."""
        self._require()
        pairs = [Pair(x, y) for y in self.ys for x in self.xs if y in self.graph.reached_from([x])]
        dims: Mapping[str, int] = {}
        for index in self._points():
            point = find_point(self.source, self.settings, self.ops, [*self.ys, *self.xs], index, dims)
            dims = point.dims
            self._reject_integers(point.tape)
            sides = {y: Sides(self, point, y) for y in self.ys}
            for pair in pairs:
                pair.error = pair.error or self._obstacle(point.tape, pair)
            self._plan([p for p in pairs if p.error is None and not p.mode], sides)
            for y in self.ys:
                self._check_y(sides[y], [p for p in pairs if p.y == y and p.error is None], index)
        return tuple(self._record(pair, name, reproduce, dims) for pair in pairs)

    def _points(self) -> Iterator[int]:
        if self.settings.point is not None:
            yield self.settings.point
        else:
            yield from range(self.settings.points)

    def _require(self) -> None:
        graph, settings, uri = self.graph, self.settings, self.source.uri
        tolerances = [n for n in (*settings.rtol, *settings.atol, *settings.val_range) if n != ANY]
        given = [*settings.x_shape, *settings.y_shape, *settings.x_init_value, *settings.extra_feed_dict]
        require(graph, [*(settings.x or ()), *(settings.y or ()), *tolerances, *given], uri)
        if not self.ys or not self.xs:
            what = "float output" if not self.ys else "float tensor that its outputs depend on"
            raise UnsupportedError(f"{uri} has no {what}: there is no gradient to check.", code="GC501")
        check_paths(graph, settings.x or (), self.ys)

    def _reject_integers(self, tape: Tape) -> None:
        dtypes = {n: v.dtype.name for n, v in tape.named.items()}
        for option, names in (("--x", self.settings.x or ()), ("--y", self.settings.y or ())):
            for name in names:
                if name in tape.named and not inexact(tape.named[name]):
                    after = first_float_after(self.graph, name, dtypes) if option == "--x" else None
                    hint = f" First float tensor after it: {_where(self.graph, tape, after)}" if after else ""
                    raise UsageError(f"{option} {name} is {dtypes[name]} and has no gradient.{hint}")

    def _check_y(self, sides: Sides, pairs: list[Pair], index: int) -> None:
        """All pairs of one y at one point; they share the time of their common backward pass."""
        for mode in ("full", "directional"):
            start, group = time.perf_counter(), [p for p in pairs if p.mode == mode]
            self._compare(sides, group, index)
            for pair in group:
                pair.seconds += (time.perf_counter() - start) / len(group)

    def _obstacle(self, tape: Tape, pair: Pair) -> GradcheckError | None:
        """Why a pair cannot be compared: something on its way could not be computed, or y is not finite."""
        for name in (pair.y, pair.x):
            if name in tape.blocked:
                return tape.blocked[name]
        x, y = tape.named[pair.x].value, tape.named[pair.y].value
        pair.x_shape, pair.y_shape = x.shape, y.shape
        wanted = self.settings.y_shape.get(pair.y, self.settings.y_shape.get(ANY))
        if wanted is not None and tuple(wanted) != y.shape:
            raise UsageError(f"--y-shape {pair.y}: the model computes {list(y.shape)}, not {list(wanted)}.")
        if not np.isfinite(y).all():
            return PointError(_first_nonfinite(tape, pair.y))
        return None

    def _plan(self, pairs: list[Pair], sides: Mapping[str, Sides]) -> None:
        """The mode of each pair: in `auto` the cheapest ones in full, as many as the work that a check may take allows."""
        costs = [(pair, sides[pair.y].cost(pair.x)) for pair in pairs]
        left = FULL_WORK
        for pair, cost in sorted(costs, key=lambda entry: entry[1].work):
            fits = cost.memory <= self.settings.memory_limit
            if self.settings.mode == "full" and not fits:
                raise UsageError(_too_large(pair, cost))
            left -= cost.work
            affordable = fits and left >= 0
            pair.mode = self.settings.mode if self.settings.mode != "auto" else "full" if affordable else "directional"
            if self.settings.mode == "auto" and not affordable:
                pair.notes.append(
                    f"random projections of {cost.entries:,} entries (all of them: about {_spell(cost.seconds)})"
                )

    def _compare(self, sides: Sides, pairs: list[Pair], index: int) -> None:
        """Pairs of one mode, by one backward pass; one by one where some rule is missing."""
        if not pairs:
            return
        try:
            backward = Backward(sides.theory, sides.theory_name(pairs[0].y), [sides.theory_name(p.x) for p in pairs])
        except NoGradientError as error:
            if len(pairs) > 1:
                for pair in pairs:
                    self._compare(sides, [pair], index)
            else:
                pairs[0].error = _stopped(error, pairs[0], self.source, sides.theory)
            return
        theoretical = backward.jacobians(self._budget(pairs[0])) if pairs[0].mode == "full" else []
        for position, pair in enumerate(pairs):
            found = self._found(sides, pair, backward, position, theoretical)
            projected = pair.mode != "full"
            outcome = Outcome(index, found, sides.x(pair.x), sides.values(pair.y), projected)
            pair.outcomes.append(outcome)
            pair.method = found.method
            self._locate(sides, pair)

    def _found(
        self, sides: Sides, pair: Pair, backward: Backward, position: int, theoretical: Sequence[Array]
    ) -> Found:
        job = Job(self.settings.method, self.settings.delta, self._tolerance(pair, sides), self._budget(pair))
        program = sides.program(pair.x)
        try:
            if pair.mode == "full":
                return compare_full(program, theoretical[position], job)
            return compare_directional(program, backward, position, job, self.settings.seed)
        finally:
            if self.listen is not None:
                self.listen.done()

    def _locate(self, sides: Sides, pair: Pair) -> None:
        """After a failure every node on the way is checked on its own."""
        found = pair.outcomes[-1].found.comparison
        if pair.suspect is None and self.settings.dtype == "float64" and (found.status == 1).any():
            tape = sides.theory
            wrong, tried = suspects(tape, [tape.named[pair.x].name], [tape.named[pair.y].name], self.settings.seed)
            if wrong:
                pair.suspect = suspect_record(wrong[0], self.graph, len(wrong), tried)

    def _tolerance(self, pair: Pair, sides: Sides) -> Tolerance:
        settings = self.settings
        rtol = _named(settings.rtol, pair, RTOL)
        atol = _named(settings.atol, pair, 0.0)
        if settings.dtype == "float64":
            return Tolerance(rtol, atol)
        dtype = sides.theory.named[pair.y].dtype
        eps = {"bfloat16": 2.0**-7}.get(dtype.name) or float(np.finfo(dtype).eps)
        return Tolerance(MODEL_RTOL.get(dtype.name, RTOL) if rtol == RTOL else rtol, atol, 256 * eps)

    def _budget(self, pair: Pair) -> Budget:
        if self.listen is not None:
            self.listen.start(f"d {pair.y}/d {pair.x}", 0)

        def progress(done: int, total: int) -> None:
            if self.listen is not None:
                self.listen.advance(done, total)
            if self.deadline is not None and time.monotonic() > self.deadline:
                raise LimitError(f"d {pair.y}/d {pair.x} took more than {self.settings.timeout:g} s")

        return Budget(self.settings.memory_limit, self.settings.jobs, progress)

    def _record(self, pair: Pair, name: str, reproduce: str, dims: Mapping[str, int]) -> Check:
        settings, source = self.settings, self.source
        rtol = _named(settings.rtol, pair, RTOL)
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
            atol=_named(settings.atol, pair, 0.0),
            seed=settings.seed,
            points=settings.points,
            dims={**source.dims, **settings.dims, **dims},
            suspect=pair.suspect,
            reproduce=reproduce,
            duration_s=round(pair.seconds, 4),
            peak_rss_mb=peak_rss_mb(),
            versions=versions(),
        )
        if pair.error is not None:
            return failed_record(record, pair.error, tuple(pair.notes))
        fields = summary(pair.outcomes, settings.max_inconclusive)
        return replace(record, **{**fields, "notes": (*fields["notes"], *dict.fromkeys(pair.notes))})


class Sides:
    """The tapes of the two sides at one point, for one y: one and the same unless the model's own dtype is checked."""

    def __init__(self, checking: Checking, point: Point, y: str) -> None:
        self.theory, self.y = point.tape, y
        self.numeric = point.tape
        if checking.settings.dtype == "model":
            feeds = {name: point.tape.values[point.tape.named[name].name] for name in point.feeds}
            wide = {n: v.astype(np.float64) if v.dtype.kind in "fV" else v for n, v in feeds.items()}
            targets = [n for n in (y, *checking.xs) if n in point.tape.named]
            self.numeric = trace(
                checking.graph,
                wide,
                ops=checking.ops,
                seed=checking.settings.seed,
                targets=targets,
                lenient=True,
            )
        self._programs: dict[str, Program] = {}

    def program(self, x: str) -> Program:
        """What leads from x to y on the numerical side."""
        if x not in self._programs:
            named = self.numeric.named
            self._programs[x] = Program(self.numeric, [named[x].name], [named[self.y].name])
        return self._programs[x]

    def cost(self, x: str) -> Cost:
        """What comparing all entries would take."""
        return full_cost(self.program(x), reals(self.x(x)), reals(self.values(self.y)))

    def theory_name(self, name: str) -> str:
        """A tensor's name on the theoretical side's tape."""
        return self.theory.named[name].name

    def x(self, name: str) -> Array:
        """The value of x on the numerical side."""
        return self.numeric.named[name].value

    values = x


def failed_record(record: Check, error: GradcheckError, notes: tuple[str, ...] = ()) -> Check:
    """A record for what could not be compared: the error's kind as status and code."""
    status = {3: "inconclusive", 5: "unsupported", 6: "limit"}.get(error.exit_code, "error")
    return replace(record, status=status, code=error.code, message=str(error), notes=notes, entries={})


def _stopped(error: NoGradientError, pair: Pair, source: Source, tape: Tape) -> NoGradientError:
    """The error with what it stops, and the nearest tensor before it that can be checked."""
    stops = f"it stops d {pair.y}/d {pair.x}."
    if not error.missing or not 0 <= error.missing[0][0] < len(source.graph.nodes):
        return NoGradientError(f"{error}; {stops}")
    origin, op, domain, label = error.missing[0]
    node, version = source.graph.nodes[origin], source.opset.get(domain)
    full, opset = f"{domain}.{op}" if domain else op, f", opset {version}" if version else ""
    message = f"no gradient for '{full}' (node {origin} {label!r}{opset}); {stops}"
    before = next((n for n in node.inputs if n in tape.named and inexact(tape.named[n])), None)
    return NoGradientError(f"{message} Check up to it: --y {before}" if before else message)


def _first_nonfinite(tape: Tape, y: str) -> str:
    """The sentence that names the first node whose result is not finite though its operands are."""
    for step in tape.steps:
        made = [tape.values[n] for n in step.node.outputs if n and tape.values[n].dtype.kind in "fc"]
        given = [tape.values[n] for n in step.operands if n and tape.values[n].dtype.kind in "fc"]
        if any(not np.isfinite(v).all() for v in made) and all(np.isfinite(v).all() for v in given):
            kind = "NaN" if any(np.isnan(v).any() for v in made) else "infinity"
            low = min((float(np.min(v.real)) for v in given if v.size), default=float("nan"))
            where = describe(step.origin, step.node)
            return f"{y!r} is not finite at point 0: first {kind} at {where} (input min {low:.3g}). Narrow: --val-range"
    return f"{y!r} is not finite: an input or a parameter is not."


def _where(graph: Any, tape: Tape, name: str) -> str:
    index = graph.producer(name)
    node = f" (node {index} {graph.nodes[index].op})" if index is not None else ""
    return f"{name!r} {list(tape.named[name].shape)}{node}"


def _too_large(pair: Pair, cost: Cost) -> str:
    size = cost.entries * 8 / (1 << 30)
    return (
        f"the full Jacobian of {pair.y!r} {list(pair.y_shape)} by {pair.x!r} {list(pair.x_shape)} has {cost.entries:.2g} "
        f"entries ({size:.2g} GiB, about {_spell(cost.seconds)} here). --mode directional checks it by random projections."
    )


def _spell(seconds: float) -> str:
    for unit, name in ((3600.0, "h"), (60.0, "min")):
        if seconds >= unit:
            return f"{seconds / unit:.0f} {name}"
    return f"{max(seconds, 1):.0f} s"


def _named(values: Mapping[str, float], pair: Pair, default: float) -> float:
    return values.get(pair.x, values.get(pair.y, values.get(ANY, default)))


def _dtypes(source: Source) -> tuple[str, ...]:
    declared = [t.dtype for n, t in source.graph.types.items() if n in source.graph.inputs and t.dtype is not None]
    arrays = [v.dtype for v in source.graph.constants.values() if v.ndim]
    return tuple(dict.fromkeys(d.name for d in [*declared, *arrays] if d.kind in "fcV"))
