"""The whole procedure of checking one model: choose what to differentiate, find a point, compare, judge, record."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol

from gradcheck_cli.checks.assemble import Outcome, Pair, passes, record_of
from gradcheck_cli.checks.footprint import beyond
from gradcheck_cli.checks.modes import PARTIAL, Partial, blameless, plan, survey_of
from gradcheck_cli.checks.obstacles import is_floating, obstacle, require_floats, require_shape, without_gradient
from gradcheck_cli.checks.origin import model_of
from gradcheck_cli.checks.precision import Precisions
from gradcheck_cli.checks.primal import Primal
from gradcheck_cli.checks.second_order import SecondOrder, asymmetric
from gradcheck_cli.checks.sides import Sides
from gradcheck_cli.comparison.branches import Branches
from gradcheck_cli.comparison.compare import Found, Job, Theory, compare_full
from gradcheck_cli.comparison.compat import as_tensorflow, compare_as_tensorflow
from gradcheck_cli.custom import ops_for
from gradcheck_cli.errors import LimitError, NoGradientError, PointError, UnsupportedError
from gradcheck_cli.evaluation import quietly
from gradcheck_cli.faults.invariants import Laws
from gradcheck_cli.faults.suspects import lawless_suspect, suspect_record
from gradcheck_cli.formats.source import Source
from gradcheck_cli.health.checkup import Checkups
from gradcheck_cli.jacobians.columns import Columns
from gradcheck_cli.jacobians.jacobian import Backward
from gradcheck_cli.memory import exhausted
from gradcheck_cli.op import Ops
from gradcheck_cli.ops import OPS
from gradcheck_cli.ops.quantize import straight_through
from gradcheck_cli.points.elements import opened
from gradcheck_cli.points.further import Further
from gradcheck_cli.points.point import Point
from gradcheck_cli.points.redraw import finite_point
from gradcheck_cli.points.targets import check_paths, choose_x, choose_y, parameters, reached_past, require
from gradcheck_cli.record import Check
from gradcheck_cli.settings import ANY, Settings
from gradcheck_cli.stack import Budget
from gradcheck_cli.verdict import ATOL, RTOL, Status, Tolerance

if TYPE_CHECKING:
    from gradcheck_cli.checks.forecast import Forecast


class Listener(Protocol):
    """Hears of a check's progress; how long pairs will take is only timed if it asks."""

    def expect(self, forecasts: Iterator[Forecast]) -> None: ...
    def start(self, title: str, total: int) -> None: ...
    def advance(self, done: int, total: int) -> None: ...
    def done(self) -> None: ...


def check(
    source: Source,
    settings: Settings,
    *,
    name: str,
    reproduce: str = "",
    listen: Listener | None = None,
    ops: Ops = OPS,
    see: Callable[[int, Point], None] | None = None,
) -> tuple[Check, ...]:
    """A record for each pair (x, y) of a model; `see` is shown each point before anything is compared there.

    Raises GradcheckError for what concerns the model or the request as a whole; what stops a single pair is in its
    record.
    """
    try:
        with quietly():  # what is not finite is in the verdict, not on stderr
            known = ops_for(source, straight_through(ops) if settings.straight_through else ops)
            return Checking(source, settings, listen, known, see).run(name, reproduce)
    except MemoryError as error:
        raise exhausted(error) from error


class Checking:
    """One check of one model."""

    def __init__(
        self,
        source: Source,
        settings: Settings,
        listen: Listener | None,
        ops: Ops,
        see: Callable[[int, Point], None] | None = None,
    ) -> None:
        source, settings = opened(source, settings if settings.compat is None else as_tensorflow(settings), ops)
        self.source, self.settings, self.listen, self.ops, self.see = source, settings, listen, ops, see
        self.graph, self.precisions = source.graph, Precisions(settings.seed)
        self.deadline = None if settings.timeout is None else time.monotonic() + settings.timeout
        self.ys = settings.y or choose_y(self.graph)
        self.xs = settings.x or choose_x(self.graph, self.ys, params=settings.params)
        if settings.x and settings.params:
            self.xs = tuple(dict.fromkeys([*settings.x, *parameters(self.graph)]))
        self.checkups = Checkups(self.ys, self.graph.free_inputs, settings.seed, _ticking(source.uri, settings.timeout))

    def run(self, name: str, reproduce: str) -> tuple[Check, ...]:
        """All points, all pairs."""
        self._require()
        reached = {x: reached_past(self.graph, x, self.settings.extra_feed_dict) for x in self.xs}
        pairs = [Pair(x, y) for y in self.ys for x in self.xs if y in reached[x]]
        dims: Mapping[str, int] = {}
        second, branches = SecondOrder(self.source, self.settings, self.ops), Branches(self.graph)
        primal = Primal(self.source, self.settings, self.ops, self.ys)
        for index in self._points():
            point = self._point(index, dims)
            dims = point.dims
            if self.see is not None:
                self.see(index, point)
            primal.ask(point)
            require_floats(self.graph, point.tape, self.settings.x or (), self.settings.y or ())
            pairs = [p for p in pairs if is_floating(point.tape, p.x) and is_floating(point.tape, p.y)]
            if not pairs:
                raise self._without("float output")
            sides = {y: Sides.at(point, self.graph, y, self.xs, self.settings, self.ops) for y in self.ys}
            ready = [p for p in pairs if p.error is None and self._comparable(p, point, sides[p.y], index)]
            self.checkups.at({y: side.tape for y, side in sides.items()}, [(p.x, p.y) for p in pairs], index)
            gradients = [(p, s) for p, s in second.at(ready, sides, point) if self._comparable(p, point, s, index)]
            sides, ready = {**sides, **{p.y: s for p, s in gradients}}, [*ready, *(p for p, _ in gradients)]
            self._plan([p for p in ready if not p.mode], sides)
            for y in sides:
                self._check_y(sides[y], [p for p in ready if p.y == y], index)
            primal.hear(pairs)
            compared = [p for p in ready if p.error is None and not p.gradient_of]
            branches.at(point.tape, point.feeds, {(p.x, p.y): sides[p.y].program(p.x) for p in compared})
        self.checkups.look_on(Further(self.source, self.settings, self.ops, self._targets, point), index + 1)
        every = second.with_gradients(pairs)
        model, sizes = model_of(self.source), {**self.source.dims, **self.settings.dims, **dims}
        records = (record_of(pair, model, self.settings, name, reproduce, sizes) for pair in every)
        records = (r if r.gradient_of else self.checkups.record(branches.record(r)) for r in records)
        return tuple(primal.record(r if r.gradient_of else self.precisions.record(r)) for r in records)

    def _plan(self, pairs: Sequence[Pair], sides: Mapping[str, Sides]) -> None:
        """The mode of each pair, and word of what that will take."""
        plan(pairs, sides, self.settings)
        if self.listen is not None:
            self.listen.expect(self._forecasts(pairs, sides))

    def _forecasts(self, pairs: Sequence[Pair], sides: Mapping[str, Sides]) -> Iterator[Forecast]:
        from gradcheck_cli.checks.forecast import forecasts  # where somebody asks

        yield from forecasts(pairs, sides, self.settings)

    def _comparable(self, pair: Pair, point: Point, sides: Sides, index: int) -> bool:
        """Whether a pair can be compared at a point; what the point says of it goes into the pair."""
        require_shape(self.settings.y_shape, point.tape, pair.y)
        shapes = [sides.tape.named[n].shape if n in sides.tape.named else () for n in (pair.x, pair.y)]
        pair.x_shape, pair.y_shape = shapes
        pair.notes.extend(point.notes)
        pair.ranges.update(point.ranges)
        error = obstacle(point, sides, pair.x, index, self.settings.max_inconclusive)
        error = error or beyond(sides, pair.x, self.graph)
        if isinstance(error, PointError):  # other points may do
            pair.missed.append(error)
        else:
            pair.error = error
        return error is None

    def _point(self, index: int, dims: Mapping[str, int]) -> Point:
        return finite_point(self.source, self.settings, self.ops, self._targets, index, dims)

    @property
    def _targets(self) -> list[str]:
        return [*self.ys, *self.xs]

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
            raise self._without(what)
        fed = settings.extra_feed_dict
        connected = any(reached_past(graph, x, fed).intersection(self.ys) for x in self.xs)
        check_paths(graph, settings.x or (() if connected else self.xs), self.ys, fed)

    def _without(self, what: str) -> UnsupportedError:
        return UnsupportedError(f"{self.source.uri} has no {what}: there is no gradient to check.", code="GC501")

    def _check_y(self, sides: Sides, pairs: list[Pair], index: int) -> None:
        """All pairs of one y at one point; they share the time of their common backward pass."""
        for mode in ("full", *PARTIAL):
            start, group = time.perf_counter(), [p for p in pairs if p.mode == mode]
            try:
                self._compare(sides, group, index)
            except MemoryError as error:
                for pair in (p for p in group if not p.outcomes or p.outcomes[-1].point != index):
                    pair.error = exhausted(error)
            for pair in group:
                pair.seconds += (time.perf_counter() - start) / len(group)

    def _compare(self, sides: Sides, pairs: list[Pair], index: int) -> None:
        """Pairs of one mode, by one backward pass; one by one where some rule is missing."""
        if not pairs:
            return
        try:
            backward = Backward(sides.tape, sides.theory_name(pairs[0].y), [sides.theory_name(p.x) for p in pairs])
        except NoGradientError as error:
            if len(pairs) > 1:
                for pair in pairs:
                    self._compare(sides, [pair], index)
            else:
                pairs[0].error = without_gradient(
                    error, self.source, sides.tape, pairs[0].x, pairs[0].y, pairs[0].gradient_of
                )
            return
        quiet = self._budget(pairs[0], shown=False)
        self.precisions.at(sides, backward, pairs, index, quiet)
        whole = pairs[0].mode == "full" and self.settings.compat is None
        theories = self._theories(backward, sides, pairs) if whole else []
        columns = [theory.values for theory in theories]
        anew = None if pairs[0].gradient_of else self.checkups.descended(pairs[0].y)
        laws = Laws(backward, columns, self.settings.seed, quiet, anew)
        some = None if pairs[0].mode == "full" else Partial(pairs[0].mode, backward, self.settings, quiet)
        for position, pair in enumerate(pairs):
            found = self._found(sides, pair, position, theories, some)
            outcome = Outcome(index, found, sides.value(pair.x), sides.value(pair.y), pair.mode != "full")
            if some is not None:
                outcome = some.completed(outcome, sides, pair, position, self._job(sides, pair))
                self._done()
            pair.outcomes.append(outcome)
            pair.method = found.method
            if self.settings.compat is None:
                tolerance = self._tolerance(pair)
                pair.broken += laws.broken(position, sides.program(pair.x), found.comparison, tolerance)
                if pair.gradient_of and theories and not pair.broken:
                    pair.broken += asymmetric(theories[position], outcome.x, found.comparison, tolerance)
            self._locate(sides, pair)
            wanted = self.settings.pictures == "all" or (self.settings.pictures == "wrong" and self._wrong(pair))
            if wanted and found.comparison.status.size:
                from gradcheck_cli.checks.sketch import sketch  # brings what pictures are made of

                program, tolerance = sides.program(pair.x), self._tolerance(pair)
                pair.pictures.append(sketch(outcome, program, tolerance, self._budget(pair)))

    def _wrong(self, pair: Pair) -> bool:
        """Its last comparison alone would not pass."""
        return bool(pair.broken) or not passes(pair.outcomes[-1], self.settings.max_inconclusive)

    def _theories(self, backward: Backward, sides: Sides, pairs: Sequence[Pair]) -> list[Theory]:
        """The theoretical side of full comparisons for every x; their rounding errors are measured together, once."""
        columns = Columns(backward, [sides.structure(pair.x) for pair in pairs], self._budget(pairs[0]))
        return [Theory(each, partial(lambda at: columns.spreads[at], at)) for at, each in enumerate(columns.values)]

    def _job(self, sides: Sides, pair: Pair) -> Job:
        return Job(self.settings.method, self.settings.delta, self._tolerance(pair), self._budget(pair))

    def _found(
        self, sides: Sides, pair: Pair, position: int, theories: Sequence[Theory], some: Partial | None
    ) -> Found:
        job, program = self._job(sides, pair), sides.program(pair.x)
        try:
            if self.settings.compat is not None:
                return compare_as_tensorflow(sides.tape, program, pair.x, pair.y, job)
            if some is not None:
                return some.compare(program, position, job)
            return compare_full(program, theories[position], job, sides.structure(pair.x))
        finally:
            self._done()

    def _done(self) -> None:
        if self.listen is not None:
            self.listen.done()

    def _locate(self, sides: Sides, pair: Pair) -> None:
        """After a failure every node on the way is checked on its own."""
        outcome = pair.outcomes[-1]
        failed = bool(pair.broken) or any(o.found.comparison.count(Status.FAIL) for o in pair.outcomes)
        if pair.suspect is not None or not (failed or outcome.survey):
            return
        survey = outcome.survey or survey_of(sides, pair, self.settings.seed, self._budget(pair, shown=False))
        pair.suspect = suspect_record(survey, self.graph) or lawless_suspect(pair.broken, self.graph)
        if failed and pair.suspect is None:
            pair.notes.append(blameless(sides, pair, survey, self.settings.seed))

    def _tolerance(self, pair: Pair) -> Tolerance:
        return Tolerance(pair.of(self.settings.rtol, RTOL), pair.of(self.settings.atol, ATOL))

    def _budget(self, pair: Pair, *, shown: bool = True) -> Budget:
        listen = self.listen if shown else None
        if listen is not None:
            listen.start(pair.title, 0)

        def progress(done: int, total: int) -> None:
            if listen is not None:
                listen.advance(done, total)
            if self.deadline is not None and time.monotonic() > self.deadline:
                raise LimitError(f"{pair.title} took more than {self.settings.timeout:g} s")

        return Budget(self.settings.memory_limit, self.settings.jobs, progress)


def _ticking(uri: str, timeout: float | None) -> Callable[[], None]:
    """What raises LimitError once the time is up."""
    deadline = None if timeout is None else time.monotonic() + timeout

    def tick() -> None:
        if deadline is not None and time.monotonic() > deadline:
            raise LimitError(f"{uri} took more than {timeout:g} s")

    return tick
