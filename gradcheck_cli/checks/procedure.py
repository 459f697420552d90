"""The whole procedure of checking one model: choose what to differentiate, find a point, compare, judge, record.

`check` is the way in.  Sizes of open dimensions are chosen here as well: the default ones, or smaller ones where the
check would not fit the memory limit, or images would take too long.  Operations are counted and not timed, so that
every machine chooses the same sizes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from gradcheck_cli.autodiff.custom import ops_for, unused_operators
from gradcheck_cli.autodiff.evaluation import quietly
from gradcheck_cli.checks.assemble import Pair, model_of, record_of
from gradcheck_cli.checks.claims.claim import AskedClaims, asked
from gradcheck_cli.checks.comparing import Comparing
from gradcheck_cli.checks.comparing import Listener as Listener
from gradcheck_cli.checks.forward.comparison import Primal, require_runtime
from gradcheck_cli.checks.half_precision import Precisions, in_half
from gradcheck_cli.checks.health.checkup import Checkups
from gradcheck_cli.checks.modes import plan, predicted, work_for
from gradcheck_cli.checks.problem import Problem, is_floating, obstacle, require_floats, require_shape, without_forward
from gradcheck_cli.checks.severing import last_float, severance_of, severed
from gradcheck_cli.checks.timing import beyond, forecasts, threads
from gradcheck_cli.compare.branches import Branches
from gradcheck_cli.compare.pair import as_tensorflow
from gradcheck_cli.errors import GradcheckError, LimitError, PointError, UnsupportedError, shown
from gradcheck_cli.formats.source import Source
from gradcheck_cli.graph.memory import exhausted
from gradcheck_cli.jacobian.cost import OPERATIONS, full_cost, lasting
from gradcheck_cli.jacobian.directions import reals
from gradcheck_cli.op import Ops
from gradcheck_cli.ops import OPS
from gradcheck_cli.ops.straight import NOTHING_ROUNDS, rounds, through
from gradcheck_cli.points.dims import roles, sizes_given
from gradcheck_cli.points.elements import opened
from gradcheck_cli.points.more import MorePoints, finite_point
from gradcheck_cli.points.point import Point, dims_behind
from gradcheck_cli.points.sizes import smaller
from gradcheck_cli.points.targets import check_paths, choose_x, choose_y, reached_past, require
from gradcheck_cli.results.record import Check
from gradcheck_cli.settings import ANY, Settings

if TYPE_CHECKING:
    from gradcheck_cli.checks.claims.claimed import Claiming
    from gradcheck_cli.checks.parts import Elsewhere, Part, Shares
    from gradcheck_cli.checks.second_order import SecondOrder


_TOO_MUCH = "would take more than the memory limit"
_SECONDS = 10.0  # of a predicted check, above which images are reduced


def check(
    source: Source,
    settings: Settings,
    *,
    name: str,
    reproduce: str = "",
    listen: Listener | None = None,
    ops: Ops = OPS,
    see: Callable[[int, Point], None] | None = None,
    elsewhere: Elsewhere | None = None,
) -> tuple[Check, ...]:
    """A record for each pair (x, y) of a model; `see` is shown each point before anything is compared there.

    With `elsewhere` all entries are compared in parts, by whoever that asks.  Raises GradcheckError for what concerns
    the model or the request as a whole; what stops a single pair is in its record.
    """
    try:
        with quietly():  # NumPy's warnings on NaN and infinity: the verdict reports those
            idle = settings.straight_through and not rounds(source, settings, ops)
            source, ops = through(source, settings, ops)
            part = None if elsewhere is None else _no_rows()
            checking = Procedure(source, settings, listen, ops_for(source, ops), see, part, elsewhere)
            said = (*unused_operators(source, OPS), *([NOTHING_ROUNDS] if idle else []))
            return tuple(replace(r, notes=(*r.notes, *said)) for r in checking.run(name, reproduce))
    except MemoryError as error:
        raise exhausted(error) from error


def check_part(
    source: Source, settings: Settings, part: Part, *, listen: Listener | None = None, ops: Ops = OPS
) -> Shares:
    """Shares of one part of a check: its entries of each pair (x, y), as plain data."""
    try:
        with quietly():
            source, ops = through(source, settings, ops)
            known = ops_for(source, ops)
            return Procedure(source, settings, listen, known, part=part).shares()
    except MemoryError as error:
        raise exhausted(error) from error


class Procedure:
    """One check of one model, or of one part of it."""

    def __init__(
        self,
        source: Source,
        settings: Settings,
        listen: Listener | None,
        ops: Ops,
        see: Callable[[int, Point], None] | None = None,
        part: Part | None = None,
        elsewhere: Elsewhere | None = None,
    ) -> None:
        if part is not None:
            from gradcheck_cli.checks.parts import require_whole  # where a cluster compares

            require_whole(settings)
        source, settings = opened(source, settings if settings.compat is None else as_tensorflow(settings), ops)
        require_runtime(source, settings)
        self.source, self.settings, self.listen, self.ops, self.see = source, settings, listen, ops, see
        self.part, self.elsewhere, self.memory = part, elsewhere, 0.0
        self.sized = ""  # note on open dimensions that are smaller than the default
        self.fed: dict[int, Mapping[str, Any]] = {}
        self.graph, self.precisions = source.graph, Precisions(settings.seed, asked=settings.dtype == "model")
        wanted = (
            asked(source, settings) if part is None else AskedClaims((), settings.x, settings.y or choose_y(self.graph))
        )
        self.ys = wanted.ys
        more = settings.params or settings.param
        self.xs = wanted.xs if wanted.xs is not None and not (settings.x and more) else self._chosen(wanted.xs)
        self.checkups = Checkups(self.ys, self.graph.free_inputs, settings.seed, _ticking(source.uri, settings.timeout))
        deadline = None if settings.timeout is None else time.monotonic() + settings.timeout
        self.comparing = Comparing(source, settings, listen, self.precisions, self.checkups, part, deadline)
        self.claiming = self._claiming(wanted)
        self.claims = [] if self.claiming is None else self.claiming.pairs

    def _chosen(self, xs: tuple[str, ...] | None) -> tuple[str, ...]:
        """Tensors to differentiate by: the defaults, or parameters beside the tensors that were named."""
        params, param = self.settings.params, self.settings.param
        return choose_x(self.graph, self.ys, x=xs, params=params, param=param, ops=self.ops)

    def run(self, name: str, reproduce: str) -> tuple[Check, ...]:
        """Records of all pairs (x, y) over all points."""
        pairs = self._pairs()
        second, branches = self._second_order(), Branches(self.graph)
        primal = Primal(self.source, self.settings, self.ops, self.ys)
        for index, point in self._each_point():
            primal.ask(point)
            pairs, problems, ready = self._ready(pairs, point, index)
            self.checkups.at({y: problem.tape for y, problem in problems.items()}, [(p.x, p.y) for p in pairs], index)
            seconds = () if second is None else second.at(ready, problems, point)
            gradients = [(p, s) for p, s in seconds if self._comparable(p, point, s, index)]
            problems, ready = {**problems, **{p.y: s for p, s in gradients}}, [*ready, *(p for p, _ in gradients)]
            self._plan([p for p in ready if not p.mode], problems)
            self.comparing.compare_all(ready, problems, index)
            if self.claiming is not None:
                self.claiming.at(point, index)
            primal.hear()
            compared = [p for p in ready if p.error is None and not p.gradient_of]
            branches.at(point.tape, point.feeds, {(p.x, p.y): problems[p.y].program(p.x) for p in compared})
        self.checkups.look_on(MorePoints(self.source, self.settings, self.ops, self._targets, point), index + 1)
        self._gather(pairs)
        every = pairs if second is None else second.with_gradients(pairs)
        model, sizes = model_of(self.source), {**self.source.dims, **self.settings.dims, **point.dims}
        pairs = [*every, *self.claims]
        records = (record_of(pair, model, self.settings, name, reproduce, sizes) for pair in pairs)
        records = (r if r.gradient_of or r.claim else self.checkups.record(branches.record(r)) for r in records)
        found = [primal.record(r if r.gradient_of or r.claim else self.precisions.record(r)) for r in records]
        dtypes = {name: var.dtype for name, var in point.tape.named.items()}
        return severed(found, severance_of(self.graph, self.ops, self.settings, dtypes), self.graph)

    def _claiming(self, wanted: AskedClaims) -> Claiming | None:
        """Comparer of gradients from other sources; None where the model brings none."""
        if not wanted.claims:
            return None
        from gradcheck_cli.checks.claims.claimed import Claiming  # most models have none

        return Claiming(self.source, self.settings, self.ops, self.comparing, wanted)

    def _second_order(self) -> SecondOrder | None:
        if not self.settings.second_order:
            return None
        from gradcheck_cli.checks.second_order import SecondOrder  # seldom asked for

        return SecondOrder(self.ops)

    def shares(self) -> Shares:
        """Shares of one part: entries and laws only, without health, second order or claims."""
        pairs = self._pairs()
        for index, point in self._each_point():
            pairs, problems, ready = self._ready(pairs, point, index)
            self._plan([p for p in ready if not p.mode], problems)
            self.comparing.compare_all(ready, problems, index)
        from gradcheck_cli.checks.parts import share_of

        return {(pair.x, pair.y): share_of(pair) for pair in pairs}

    def _pairs(self) -> list[Pair]:
        """All pairs (x, y) to check; UsageError for names that the model does not have."""
        self._require()
        return [Pair(x, y) for x, y in self._asked_for()]

    def _asked_for(self) -> Iterator[tuple[str, str]]:
        reached = {x: reached_past(self.graph, x, self.settings.extra_feed_dict) for x in self.xs}
        return ((x, y) for y in self.ys for x in self.xs if y in reached[x])

    def _each_point(self) -> Iterator[tuple[int, Point]]:
        dims: Mapping[str, int] = {}
        for index in self._points():
            if dims:
                point = self._point(index, dims)
            else:
                at = partial(self._point, index)
                point, self.sized = fitting(self.source, self.settings, self.ops, self._asked_for(), at)
            dims = point.dims
            self.fed[index] = point.feeds
            if self.see is not None:
                self.see(index, point)
            yield index, point

    def _ready(self, pairs: list[Pair], point: Point, index: int) -> tuple[list[Pair], dict[str, Problem], list[Pair]]:
        """The pairs of float tensors, the problem of each y, and the pairs that can be compared at a point."""
        require_floats(self.graph, point.tape, self.settings.x or (), self.settings.y or ())
        pairs = [p for p in pairs if is_floating(point.tape, p.x) and is_floating(point.tape, p.y)]
        if not pairs and not self.claims:
            raise self._without("float output")
        problems = {y: Problem.at(point, y, self.xs, self.source, self.settings, self.ops) for y in self.ys}
        half = in_half(self.graph, point, self._targets, self.settings, self.ops)
        for problem in problems.values():
            problem.half = half
        return (
            pairs,
            problems,
            [p for p in pairs if p.error is None and self._comparable(p, point, problems[p.y], index)],
        )

    def _gather(self, pairs: Sequence[Pair]) -> None:
        """Collects what parts computed elsewhere have found, for pairs without an error."""
        asked = [pair for pair in pairs if pair.error is None and pair.results]
        if self.elsewhere is None or not asked:
            return
        from gradcheck_cli.checks.parts import parts_of, put_together

        start, count, found = time.perf_counter(), parts_of(self.memory, self.settings), dict[int, Any]()
        budget = self.comparing.budget(asked[0])
        for index, shares in self.elsewhere(count, self.fed):
            found[index] = shares
            budget.progress(len(found), count)
        for pair in asked:
            put_together(pair, [found[index][pair.x, pair.y] for index in sorted(found)], self.settings)
            pair.seconds += (time.perf_counter() - start) / len(asked)
        self.comparing.done()

    def _plan(self, pairs: Sequence[Pair], problems: Mapping[str, Problem]) -> None:
        """Chooses the mode of each pair, and tells the listener how long each will take."""
        if self.part is not None:  # a part is always compared in full
            for pair in pairs:
                # a part of the Jacobians takes as much memory as mode nodes does
                if not threads(problems[pair.y], pair.x, "nodes"):
                    pair.error = beyond(problems[pair.y], pair.x, "nodes")
                    continue
                pair.mode = "full"
                program, rows = problems[pair.y].program(pair.x), reals(problems[pair.y].value(pair.x))
                self.memory = max(self.memory, full_cost(program, rows, reals(problems[pair.y].value(pair.y))).memory)
            return
        plan(pairs, problems, self.settings)
        if self.listen is not None:
            self.listen.expect(forecasts(pairs, problems))

    def _comparable(self, pair: Pair, point: Point, problem: Problem, index: int) -> bool:
        """True if a pair can be compared at a point; the point's notes and errors go into the pair."""
        require_shape(self.settings.y_shape, point.tape, pair.y)
        shapes = [problem.tape.named[n].shape if n in problem.tape.named else () for n in (pair.x, pair.y)]
        pair.x_shape, pair.y_shape = shapes
        pair.notes.extend([*point.notes, *([self.sized] if self.sized else [])])
        pair.ranges.update(point.ranges)
        error = obstacle(point, problem, pair.x, index, self.settings.max_inconclusive)
        error = error and without_forward(error, self.graph, point.tape, pair.x, pair.y)
        if isinstance(error, PointError):  # another point may not have this error
            pair.missed.append(error)
        else:
            pair.error = error
        return error is None

    def _point(self, index: int, dims: Mapping[str, int]) -> Point:
        return finite_point(self.source, self.settings, self.ops, self._targets, index, dims)

    @property
    def _targets(self) -> list[str]:
        return list(dict.fromkeys([*self.ys, *self.xs, *(pair.x for pair in self.claims)]))

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
        claimed = [pair.x for pair in self.claims]
        if not self.ys or not (self.xs or claimed):
            what = "float output" if not self.ys else "float tensor that its outputs depend on"
            raise self._without(what)
        fed = settings.extra_feed_dict
        xs = dict.fromkeys([*self.xs, *claimed])
        connected = any(reached_past(graph, x, fed).intersection(self.ys) for x in xs)
        check_paths(graph, settings.x or (() if connected else tuple(xs)), self.ys, fed)

    def _without(self, what: str) -> UnsupportedError:
        """The error for a model without x or y; it names the last tensor on the way to its outputs that could be y."""
        message = f"{self.source.uri} has no {what}: there is no gradient to check."
        if last := last_float(self.graph, self.ops):
            message += f" Check up to the last float tensor: --y {shown(last)}"
        return UnsupportedError(message, code="GC501")


def _no_rows() -> Part:
    """The part that compares nothing: all rows are compared elsewhere."""
    from gradcheck_cli.checks.parts import Part

    return Part()


def _ticking(uri: str, timeout: float | None) -> Callable[[], None]:
    """Function that raises LimitError once the time limit has passed."""
    deadline = None if timeout is None else time.monotonic() + timeout

    def tick() -> None:
        if deadline is not None and time.monotonic() > deadline:
            raise LimitError(f"{uri} took more than {timeout:g} s")

    return tick


def fitting(
    source: Source,
    settings: Settings,
    ops: Ops,
    pairs: Iterable[tuple[str, str]],
    at: Callable[[Mapping[str, int]], Point],
) -> tuple[Point, str]:
    """A point at which all pairs (x, y) fit in some mode, with a note on its sizes; the default point if there is none.

    Images are reduced to 16 x 24 where they would take more than ten seconds.  `at` gives the point for some sizes; for
    an empty mapping the default point, which is not kept in memory while smaller ones are tried.
    """
    pairs, point = tuple(pairs), at({})
    start, first = point.dims, {**point.dims, **point.over}
    known = {**source.dims, **settings.dims, **sizes_given(source.graph, settings)}
    fits = settings.mode != "auto" or not start or _fits(point, source, settings, pairs)
    why = _too_long(point, source, settings, ops, pairs, known) if fits else _TOO_MUCH
    if not why:
        return point, _said(start, first, _TOO_MUCH)
    del point
    for sizes in smaller(source.graph, start, known, ops, images_alone=fits):
        with suppress(GradcheckError, MemoryError):
            other = at(sizes)
            if fits or _fits(other, source, settings, pairs):
                return other, _said(other.dims, first, why)
            del other
    return at(start), _said(start, first, _TOO_MUCH)


def _fits(point: Point, source: Source, settings: Settings, pairs: Sequence[tuple[str, str]]) -> bool:
    """True if every comparable pair fits the memory limit in the mode that takes least."""
    ends = _there(point, pairs)
    problems = _problems(point, source, settings, ends)
    return all(threads(problems[y], x, "directional") for x, y in ends)


def _too_long(
    point: Point, source: Source, settings: Settings, ops: Ops, pairs: Sequence[tuple[str, str]], known: Collection[str]
) -> str:
    """The reason to reduce images: a predicted time above ten seconds.  "" if it is below, or sizes were given."""
    drawn = dims_behind(source.graph, point.random).intersection(point.dims).difference(known)
    if not drawn or drawn.isdisjoint(roles(source.graph, ops).images):
        return ""
    ends = _there(point, pairs)
    work = predicted(ends, _problems(point, source, settings, ends), settings)
    return f"would take about {lasting(work)}" if work > work_for(settings, _SECONDS * OPERATIONS) else ""


def _there(point: Point, pairs: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """The pairs whose x and y are both computed at a point and are float tensors."""
    named = point.tape.named
    return [pair for pair in pairs if all(name in named and is_floating(point.tape, name) for name in pair)]


def _problems(point: Point, source: Source, settings: Settings, ends: Sequence[tuple[str, str]]) -> dict[str, Problem]:
    return {y: Problem(source, settings, point.tape, y) for y in dict.fromkeys(y for _, y in ends)}


def _said(sizes: Mapping[str, int], first: Mapping[str, int], why: str) -> str:
    """Note on sizes that differ from the default ones; "" where they do not."""
    if sizes == first:
        return ""
    here, there = (", ".join(f"{name}={size}" for name, size in each.items()) for each in (sizes, first))
    return f"{here}: {there} {why}"
