"""The whole procedure of checking one model: choose what to differentiate, find a point, compare, judge, record."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Protocol

import numpy as np

from gradcheck_cli.assemble import Outcome, Pair, record_of, suspect_record
from gradcheck_cli.compare import Found, Job, Theory, compare_directional, compare_full
from gradcheck_cli.cost import FULL_WORK
from gradcheck_cli.custom import ops_for
from gradcheck_cli.elements import opened
from gradcheck_cli.errors import LimitError, NoGradientError, PointError, UnsupportedError
from gradcheck_cli.formats.source import Source
from gradcheck_cli.jacobian import EPS, Backward
from gradcheck_cli.locate import suspects
from gradcheck_cli.memory import exhausted
from gradcheck_cli.obstacles import is_floating, obstacle, require_floats, require_shape, too_large, without_gradient
from gradcheck_cli.op import Ops
from gradcheck_cli.ops import OPS
from gradcheck_cli.ops.quantize import straight_through
from gradcheck_cli.point import Point, find_point
from gradcheck_cli.record import Check
from gradcheck_cli.settings import ANY, Settings
from gradcheck_cli.sides import Sides
from gradcheck_cli.stack import Budget
from gradcheck_cli.targets import check_paths, choose_x, choose_y, parameters, reached_past, require
from gradcheck_cli.verdict import ATOL, RTOL, Tolerance, epsilon

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
    try:
        with np.errstate(all="ignore"):  # what is not finite is in the verdict, not on stderr
            known = ops_for(source, straight_through(ops) if settings.straight_through else ops)
            return Checking(source, settings, listen, known).run(name, reproduce)
    except MemoryError as error:
        raise exhausted(error) from error


class Checking:
    """One check of one model."""

    def __init__(self, source: Source, settings: Settings, listen: Listener | None, ops: Ops) -> None:
        source, settings = opened(source, settings, ops)
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
        reached = {x: reached_past(self.graph, x, self.settings.extra_feed_dict) for x in self.xs}
        pairs = [Pair(x, y) for y in self.ys for x in self.xs if y in reached[x]]
        dims: Mapping[str, int] = {}
        for index in self._points():
            point = find_point(self.source, self.settings, self.ops, [*self.ys, *self.xs], index, dims)
            dims = point.dims
            require_floats(self.graph, point.tape, self.settings.x or (), self.settings.y or ())
            pairs = [p for p in pairs if is_floating(point.tape, p.x) and is_floating(point.tape, p.y)]
            if not pairs:
                raise self._without("float output")
            sides = {y: Sides.at(point, self.graph, y, self.xs, self.settings, self.ops) for y in self.ys}
            ready = [p for p in pairs if p.error is None and self._comparable(p, point, sides[p.y], index)]
            self._plan([p for p in ready if not p.mode], sides)
            for y in self.ys:
                self._check_y(sides[y], [p for p in ready if p.y == y], index)
        return tuple(record_of(pair, self.source, self.settings, name, reproduce, dims) for pair in pairs)

    def _comparable(self, pair: Pair, point: Point, sides: Sides, index: int) -> bool:
        """Whether a pair can be compared at a point; what the point says of it goes into the pair."""
        require_shape(self.settings.y_shape, point.tape, pair.y)
        shapes = [point.tape.named[n].shape if n in point.tape.named else () for n in (pair.x, pair.y)]
        pair.x_shape, pair.y_shape = shapes
        pair.notes.extend(point.notes)
        error = obstacle(point, sides, pair.x, index)
        if isinstance(error, PointError):  # other points may do
            pair.missed.append(error)
        else:
            pair.error = error
        return error is None

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
        for mode in ("full", "directional"):
            start, group = time.perf_counter(), [p for p in pairs if p.mode == mode]
            try:
                self._compare(sides, group, index)
            except MemoryError as error:
                for pair in (p for p in group if not p.outcomes or p.outcomes[-1].point != index):
                    pair.error = exhausted(error)
            for pair in group:
                pair.seconds += (time.perf_counter() - start) / len(group)

    def _plan(self, pairs: list[Pair], sides: Mapping[str, Sides]) -> None:
        """The mode of each pair: in `auto` the cheapest ones in full, as many as the work that a check may take allows."""
        costs = [(pair, sides[pair.y].cost(pair.x)) for pair in pairs]
        left = FULL_WORK
        for pair, cost in sorted(costs, key=lambda entry: entry[1].work):
            fits = cost.memory <= self.settings.memory_limit
            if self.settings.mode == "full" and not fits:
                raise too_large(cost, sides[pair.y], pair.x)
            left -= cost.work
            affordable = fits and left >= 0
            pair.mode = self.settings.mode if self.settings.mode != "auto" else "full" if affordable else "directional"
            if self.settings.mode == "auto" and not affordable:
                pair.notes.append(
                    f"random projections of {cost.entries:,} entries (all of them: about {cost.duration})"
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
                pairs[0].error = without_gradient(error, self.source, sides.theory, pairs[0].x, pairs[0].y)
            return
        theories = self._theories(backward, pairs[0]) if pairs[0].mode == "full" else []
        for position, pair in enumerate(pairs):
            found = self._found(sides, pair, backward, position, theories)
            projected = pair.mode != "full"
            outcome = Outcome(index, found, sides.value(pair.x), sides.value(pair.y), projected)
            pair.outcomes.append(outcome)
            pair.method = found.method
            self._locate(sides, pair)

    def _theories(self, backward: Backward, pair: Pair) -> list[Theory]:
        """The theoretical side of full comparisons for every x; their rounding errors are measured together, once."""
        values = backward.jacobians(self._budget(pair))
        spreads = cache(lambda: backward.spreads(values, self._budget(pair)))
        return [Theory(each, partial(lambda at: spreads()[at], at)) for at, each in enumerate(values)]

    def _found(self, sides: Sides, pair: Pair, backward: Backward, position: int, theories: Sequence[Theory]) -> Found:
        job = Job(self.settings.method, self.settings.delta, self._tolerance(pair, sides), self._budget(pair))
        program = sides.program(pair.x)
        try:
            if pair.mode == "full":
                return compare_full(program, theories[position], job)
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
        rtol, atol = pair.of(settings.rtol, RTOL), pair.of(settings.atol, ATOL)
        if settings.dtype == "float64":
            return Tolerance(rtol, atol)
        dtype = sides.theory.named[pair.y].dtype
        rtol, eps = MODEL_RTOL.get(dtype.name, RTOL) if rtol == RTOL else rtol, epsilon(dtype)
        return Tolerance(rtol, atol, 256 * eps, eps / EPS)

    def _budget(self, pair: Pair) -> Budget:
        if self.listen is not None:
            self.listen.start(f"d {pair.y}/d {pair.x}", 0)

        def progress(done: int, total: int) -> None:
            if self.listen is not None:
                self.listen.advance(done, total)
            if self.deadline is not None and time.monotonic() > self.deadline:
                raise LimitError(f"d {pair.y}/d {pair.x} took more than {self.settings.timeout:g} s")

        return Budget(self.settings.memory_limit, self.settings.jobs, progress)
