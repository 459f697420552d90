"""The whole procedure of checking one model: choose what to differentiate, find points, compare, judge, record.

`Procedure.run` is the way in.  All pairs (x, y) of one y and one mode are compared together at a point: they share a
backward pass and its laws.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct, field, structs

from gradcheck_cli.autodiff.custom import ops_for, unused_operators
from gradcheck_cli.autodiff.tape import quietly
from gradcheck_cli.checks.assemble import Pair, glanced, model_of, passes, record_of
from gradcheck_cli.checks.claims.claim import AskedClaims, asked
from gradcheck_cli.checks.diagnose.laws import Laws
from gradcheck_cli.checks.estimates import beyond, forecasts, late, needed, threads
from gradcheck_cli.checks.forward.comparison import RuntimeComparison, is_file, require_runtime
from gradcheck_cli.checks.health.checkup import Checkups
from gradcheck_cli.checks.modes import (
    LADDER,
    PARTIAL,
    Partial,
    blameless,
    divided,
    fitting,
    lesser,
    plan,
    survey_of,
    trap_in,
)
from gradcheck_cli.checks.problem import (
    Problem,
    is_floating,
    obstacle,
    require_floats,
    require_shape,
    stop,
    without_forward,
)
from gradcheck_cli.checks.severing import instead, severance_of, severed
from gradcheck_cli.compare.branches import Branches
from gradcheck_cli.compare.counts import PairResult, nonfinite
from gradcheck_cli.compare.ladder import PairJob
from gradcheck_cli.compare.pair import AsTensorflow, Full, as_tensorflow
from gradcheck_cli.engine.chunks import Budget
from gradcheck_cli.engine.complex_step import Pushforward
from gradcheck_cli.errors import LimitError, MisshapenError, NoGradientError, PointError, UnsupportedError, UsageError
from gradcheck_cli.formats import record_beside, with_calls
from gradcheck_cli.formats.source import Source
from gradcheck_cli.graph.memory import exhausted, is_of_memory
from gradcheck_cli.jacobian.coloring import Structure
from gradcheck_cli.jacobian.columns import Columns, Theory
from gradcheck_cli.jacobian.cost import HELD
from gradcheck_cli.jacobian.directions import reals
from gradcheck_cli.jacobian.jacobian import Backward
from gradcheck_cli.op import Ops
from gradcheck_cli.ops import OPS
from gradcheck_cli.ops.straight import NOTHING_ROUNDS, rounds, through
from gradcheck_cli.points.elements import opened
from gradcheck_cli.points.more import MorePoints, finite_point
from gradcheck_cli.points.point import Point
from gradcheck_cli.points.targets import check_paths, choose_x, choose_y, omitted, reaching, refuse_constants, require
from gradcheck_cli.results.record import Check
from gradcheck_cli.settings import ANY, Settings
from gradcheck_cli.verdict.rule import ATOL, RTOL, Status, Tolerance

if TYPE_CHECKING:
    from gradcheck_cli.checks.claims.claimed import Claiming
    from gradcheck_cli.checks.claims.recorded import Parity
    from gradcheck_cli.checks.estimates import Forecast
    from gradcheck_cli.checks.half_precision import Precisions
    from gradcheck_cli.checks.parts import Elsewhere, Part, Shares, Theories
    from gradcheck_cli.checks.second_order import SecondOrder
    from gradcheck_cli.engine.program import Program


class Listener(Protocol):
    """Receiver of a check's progress; pairs are timed only if it consumes the forecasts."""

    def expect(self, forecasts: Iterator[Forecast]) -> None: ...
    def start(self, title: str, total: int) -> None: ...
    def advance(self, done: int, total: int) -> None: ...
    def done(self) -> None: ...


class Mode(Protocol):
    """The entries or sums of them that are compared of each pair of one y."""

    def compare(self, program: Program, position: int, job: PairJob) -> PairResult: ...


@contextmanager
def _working() -> Iterator[None]:
    """Silences NumPy's warnings on NaN and infinity, which the verdict reports; memory that runs out is a LimitError."""
    try:
        with quietly():
            yield
    except (MemoryError, RuntimeError) as error:
        if not is_of_memory(error):
            raise
        raise exhausted(error) from error


class Together(Struct):
    """Pairs of one y and one mode at a point: they share a backward pass and its laws."""

    problem: Problem
    pairs: list[Pair]
    index: int
    backward: Backward
    mode: Mode
    laws: Laws
    theories: Sequence[Theory]  # where all entries are compared
    rows: Sequence[range] | None  # of each Jacobian, where others are compared elsewhere
    results: list[tuple[Pair, PairResult]] = field(default_factory=list)
    told: list[tuple[int, Pair]] = field(default_factory=list)  # those whose results count

    def by_name(self) -> dict[str, PairResult]:
        """The results by the name of their x on the tape."""
        return {self.problem.theory_name(pair.x): result for pair, result in self.results}


class Procedure:
    """One check of one model, or of one `part` of the rows of each Jacobian.

    `see` is shown each point before anything is compared there.  With `elsewhere` all entries are compared in parts, by
    whoever that asks; `kept` are Jacobians that parts share.  Raises GradcheckError for what concerns all of the model or
    the request; what stops a single pair is in its record.
    """

    @_working()
    def __init__(
        self, source: Source, settings: Settings, ops: Ops = OPS, listen: Listener | None = None, *,
        see: Callable[[int, Point], None] | None = None, part: Part | None = None,
        elsewhere: Elsewhere | None = None, kept: Theories | None = None,
    ) -> None:  # fmt: skip
        if part is not None or elsewhere is not None:
            from gradcheck_cli.checks.parts import Part, require_whole  # where a cluster compares

            part = part or Part()  # without rows: all are compared elsewhere
            require_whole(settings)
        self.anew = partial(Procedure, ops=ops, listen=listen)  # of another model, or by other settings
        self.given, self.kept = (source, settings), kept
        idle = settings.straight_through and not rounds(source, settings, ops)
        source, ops = through(with_calls(source, lambda key: ops.get(key) is not OPS.get(key)), settings, ops)
        self.remarks = (*unused_operators(source, OPS), *([NOTHING_ROUNDS] if idle else []))
        if settings.second_order:
            from gradcheck_cli.ops.recurrent import unrolled_in  # seldom asked for

            ops = unrolled_in(ops)
        ops = ops_for(source, ops)
        source, settings = opened(source, settings if settings.compat is None else as_tensorflow(settings), ops)
        require_runtime(source, settings)
        self.source, self.settings, self.ops, self.listen, self.see = source, settings, ops, listen, see
        self.part, self.elsewhere, self.memory = part, elsewhere, 0
        self.glances = False  # no entry is compared
        self.graph, self.sized = source.graph, ""  # note on open dimensions that are smaller than the default
        self.fed: dict[int, Mapping[str, Any]] = {}
        wanted = (
            asked(source, settings) if part is None else AskedClaims((), settings.x, settings.y or choose_y(self.graph))
        )
        self.remarks += () if wanted.claims else wanted.notes
        xs, self.ys, params, param = wanted.xs, wanted.ys, settings.params, settings.param
        if xs is None or (settings.x and (params or param)):  # the defaults, or parameters beside what was named
            xs = choose_x(self.graph, self.ys, x=xs, params=params, param=param, ops=ops)
        self.xs, self.remarks = xs, (*self.remarks, *(omitted(self.graph, self.ys, ops) if params else ()))
        self.deadline = None if settings.timeout is None else time.monotonic() + settings.timeout
        self.precisions = self._precisions()
        self.checkups = Checkups(self.ys, self.graph.free_inputs, settings.seed, partial(self.tick, source.uri))
        self.claiming = self._claiming(wanted)
        self.claims = [] if self.claiming is None else self.claiming.pairs
        self.parity = None if part is not None else self._parity()

    @_working()
    def run(self, name: str) -> tuple[Check, ...]:
        """Records of all pairs (x, y) over all points, under the name of the check."""
        pairs, second, branches = self._pairs(), self._second_order(), Branches(self.graph)
        forward = RuntimeComparison(self.source, self.settings, self.ops, self.ys)
        for index, point in self.each_point(pairs):
            forward.ask(point)
            pairs, problems, ready = self._ready(pairs, point, index)
            self.checkups.at({y: problem.tape for y, problem in problems.items()}, [(p.x, p.y) for p in pairs], index)
            seconds = () if second is None else second.at(ready, problems, point)
            gradients = [(p, s) for p, s in seconds if self._comparable(p, point, s, index)]
            problems, ready = {**problems, **{p.y: s for p, s in gradients}}, [*ready, *(p for p, _ in gradients)]
            if not self.glances:
                self.compare_all(ready, problems, index)
            if self.claiming is not None:
                self.claiming.at(point, index)
            forward.hear()
            compared = [p for p in ready if p.error is None and not p.gradient_of]
            branches.at(point.tape, point.feeds, {(p.x, p.y): problems[p.y].program(p.x) for p in compared})
        self.checkups.look_on(MorePoints(self.source, self.settings, self.ops, self._targets, point), index + 1)
        self._gather(pairs)
        model, sizes = model_of(self.source), {**self.source.dims, **self.settings.dims, **point.dims}
        found = []
        for pair in [*(pairs if second is None else second.with_gradients(pairs)), *self.claims]:
            record = (glanced if self.glances else record_of)(pair, model, self.settings, name, sizes)
            if not (record.gradient_of or record.claim):
                record = self.checkups.record(branches.record(record))
                record = record if self.precisions is None else self.precisions.record(record)
            found.append(forward.record(record))
        dtypes = {name: var.dtype for name, var in point.tape.named.items()}
        records = severed(found, severance_of(self.graph, self.ops, self.settings, dtypes), self.graph)
        records = tuple(replace(record, notes=(*record.notes, *self.remarks)) for record in records)
        return records if self.parity is None else self.parity.beside(records, self.anew, name)

    @_working()
    def shares(self) -> Shares:
        """Shares of one part, as plain data: entries and laws only, without health, second order or claims."""
        from gradcheck_cli.checks.parts import share_of

        pairs = self._pairs()
        for index, point in self.each_point(pairs):
            pairs, problems, ready = self._ready(pairs, point, index)
            self.compare_all(ready, problems, index)
        return {(pair.x, pair.y): share_of(pair) for pair in pairs}

    def _precisions(self) -> Precisions | None:
        """Measure of gradients in the model's own dtype, if that is asked for or is half precision."""
        asked, graph = self.settings.dtype == "model", self.graph
        declared = [*(v.dtype for v in graph.constants.values()), *(t.dtype for t in graph.types.values())]
        if not asked and not any(dtype is not None and dtype.name in ("float16", "bfloat16") for dtype in declared):
            return None
        from gradcheck_cli.checks.half_precision import Precisions  # most models have float32

        return Precisions(self.settings.seed, asked=asked)

    def _claiming(self, wanted: AskedClaims) -> Claiming | None:
        """Comparer of gradients from other sources; None where the model brings none."""
        if not wanted.claims:
            return None
        from gradcheck_cli.checks.claims.claimed import Claiming  # most models have none

        return Claiming(self, wanted)

    def _parity(self) -> Parity | None:
        """The record of the model's framework that lies beside it, unless the settings name other claims, or none."""
        settings, path = self.settings, record_beside(Path(self.source.uri))
        unasked = not settings.grad and settings.grad_model is None and settings.compat is None
        if not unasked or not is_file(self.source) or not path.is_file():
            return None
        from gradcheck_cli.checks.claims.recorded import Parity  # most models have none

        return Parity(self.source, settings, self.ops, path)

    def _second_order(self) -> SecondOrder | None:
        if not self.settings.second_order:
            return None
        from gradcheck_cli.checks.second_order import SecondOrder  # seldom asked for

        return SecondOrder(self.ops)

    def _pairs(self) -> list[Pair]:
        """All pairs (x, y) to check; UsageError for names that the model does not have."""
        graph, settings = self.graph, self.settings
        tolerances = [n for n in (*settings.rtol, *settings.atol, *settings.val_range) if n != ANY]
        given = [*settings.x_shape, *settings.y_shape, *settings.x_init_value, *settings.extra_feed_dict]
        require(graph, [*(settings.x or ()), *(settings.y or ()), *tolerances, *given], self.source.uri)
        xs = dict.fromkeys([*self.xs, *(pair.x for pair in self.claims)])
        if not self.ys or not xs:
            refuse_constants(graph, settings.y or ())
            raise self._without(
                "float input or weight that its outputs depend on" if self.ys else "float output", self.ys
            )
        fed = settings.extra_feed_dict
        behind = reaching(graph, [*xs], fed)
        connected = any(behind.get(y) for y in self.ys)
        check_paths(graph, settings.x or (() if connected else tuple(xs)), self.ys, fed)
        bits = {x: 1 << i for i, x in enumerate(xs)}
        return [Pair(x, y) for y in self.ys for x in self.xs if behind.get(y, 0) & bits[x]]

    def each_point(self, pairs: Sequence[Pair]) -> Iterator[tuple[int, Point]]:
        """The points, all with the sizes of the first: the usual ones, or smaller ones at which every pair fits."""
        dims: Mapping[str, int] = {}
        only, ends = self.settings.point, [(pair.x, pair.y) for pair in pairs]
        for index in range(self.settings.points) if only is None else (only,):
            at = partial(finite_point, self.source, self.settings, self.ops, self._targets, index)
            if dims:
                point = at(dims)
            else:
                point, self.sized = fitting(self.source, self.settings, self.ops, ends, at)
            dims, self.fed[index] = point.dims, point.feeds
            if self.see is not None:
                self.see(index, point)
            yield index, point

    @property
    def _targets(self) -> list[str]:
        return list(dict.fromkeys([*self.ys, *self.xs, *(pair.x for pair in self.claims)]))

    def _without(self, what: str, ys: Sequence[str] = ()) -> UnsupportedError:
        """The error for a model that has no y, or no x for its ys; it says what can be checked instead."""
        message = f"{self.source.uri} has no {what}: there is no gradient to check."
        return UnsupportedError(f"{message} {instead(self.graph, ys, self.ops)}".rstrip(), code="GC501")

    def _ready(self, pairs: list[Pair], point: Point, index: int) -> tuple[list[Pair], dict[str, Problem], list[Pair]]:
        """The pairs of float tensors, the problem of each y, and the pairs that can be compared at a point."""
        require_floats(self.graph, point.tape, self.settings.x or (), self.settings.y or ())
        pairs = [p for p in pairs if is_floating(point.tape, p.x) and is_floating(point.tape, p.y)]
        if not pairs and not self.claims:
            raise self._without("float output")
        slopes = Pushforward(point.tape)
        problems = {y: Problem.at(point, y, self.xs, self.source, self.settings, self.ops, slopes) for y in self.ys}
        if self.precisions is not None:
            half = self.precisions.in_half(self.graph, point, self._targets, self.settings, self.ops)
            for problem in problems.values():
                problem.half = half
        ready = [p for p in pairs if p.error is None and self._comparable(p, point, problems[p.y], index)]
        return pairs, problems, ready

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

    def _gather(self, pairs: Sequence[Pair]) -> None:
        """Collects what parts computed elsewhere have found, for pairs without an error."""
        pairs = [pair for pair in pairs if pair.error is None and pair.results]
        if self.elsewhere is None or not pairs:
            return
        from gradcheck_cli.checks.parts import parts_of, put_together

        start, count, found = time.perf_counter(), parts_of(self.memory, self.settings), dict[int, Any]()
        budget = self.budget(pairs[0])
        for index, shares in self.elsewhere(count, self.fed):
            found[index] = shares
            budget.progress(len(found), count)
        for pair in pairs:
            put_together(pair, [found[index][pair.x, pair.y] for index in sorted(found)], self.settings)
            pair.seconds += (time.perf_counter() - start) / len(pairs)
        self.done()

    def _plan(self, pairs: Sequence[Pair], problems: Mapping[str, Problem]) -> None:
        """Chooses the mode of each pair, and tells the listener how long each will take."""
        first = self.part is None and len(self.fed) == 1 and not self.claims
        if split := first and divided(pairs, problems, self.settings):
            from gradcheck_cli.checks.parts import Part, in_turn

            self.part, self.elsewhere = Part(), in_turn(self, *self.given)
        if self.part is None:
            plan(pairs, problems, self.settings)
        # A part is always compared in full, and takes as much memory as mode nodes does.
        for pair in () if self.part is None else pairs:
            problem = problems[pair.y]
            if threads(problem, pair.x, "nodes"):
                entries = reals(problem.value(pair.x)) * reals(problem.value(pair.y))
                pair.mode, self.memory = "full", max(self.memory, HELD * entries)
            else:
                pair.error = beyond(problem, pair.x, "nodes")
        if self.listen is not None and (split or self.part is None):
            self.listen.expect(forecasts(pairs, problems))

    def compare_all(self, pairs: Sequence[Pair], problems: Mapping[str, Problem], index: int) -> None:
        """Compares all pairs at one point; those of one y share the time of their common backward pass.

        In `auto`, pairs that run out of memory are compared once more in the next mode that takes less.
        """
        self._plan([p for p in pairs if not p.mode], problems)
        by_y: dict[str, list[Pair]] = {}
        for pair in pairs:
            by_y.setdefault(pair.y, []).append(pair)
        for problem, mode in product(problems.values(), ("full", *PARTIAL)):
            start = time.perf_counter()
            group = [p for p in by_y.get(problem.y, ()) if p.mode == mode and p.error is None]
            if not group:
                continue
            try:
                with problem.tape.aside():  # the backward pass of one y need not live beside that of the next
                    for together in self._together(problem, group, index):
                        for position, pair in enumerate(together.pairs):
                            job, program = self.job(pair), problem.program(pair.x)
                            self._take(together, position, together.mode.compare(program, position, job), job)
                        self._end(together)
            except (MemoryError, LimitError) as error:
                self.done()
                if not is_of_memory(error):
                    raise late(error, pairs, index) from None
                for pair in group:
                    if not (pair.results and pair.results[-1].point == index and self._wrong(pair)):
                        pair.results = [result for result in pair.results if result.point != index]
                        self._relieve(problem, pair, mode, error)
            for pair in group:
                pair.seconds += (time.perf_counter() - start) / len(group)

    def _relieve(self, problem: Problem, pair: Pair, mode: str, error: MemoryError | LimitError) -> None:
        """Gives a pair that ran out of memory the next mode; an error where there is none."""
        following = LADDER[LADDER.index(mode) + 1 :] if mode in LADDER else ()
        if self.settings.mode != "auto" or not following or pair.results or self.part is not None:
            pair.error = exhausted(error, least=needed(problem, pair.x, mode, 1))
        else:
            pair.mode, pair.chosen, pair.jobs = following[0], lesser(mode), 1

    def _together(self, problem: Problem, pairs: list[Pair], index: int) -> Iterator[Together]:
        """Pairs of one mode with their backward pass; one by one where a rule is missing."""
        first, compat, names = pairs[0], self.settings.compat is not None, [problem.theory_name(p.x) for p in pairs]
        try:
            backward = Backward(problem.tape, problem.theory_name(first.y), names)
        except (NoGradientError, MisshapenError) as error:
            if len(pairs) > 1:
                for pair in pairs:
                    yield from self._together(problem, [pair], index)
            else:
                stop(first, error, problem, first.y, first.gradient_of)
            return
        quiet, theories = self.budget(first, shown=False), list[Theory]()
        if self.precisions is not None:
            self.precisions.at(problem, backward, pairs, index, quiet)
        rows = None if self.part is None else [self.part.rows(reals(problem.value(pair.x))) for pair in pairs]
        mode: Mode
        if first.mode != "full":
            mode = Partial(first.mode, backward, self.settings, quiet)
        elif compat:
            mode = AsTensorflow(problem.tape, [(p.x, p.y) for p in pairs])
        else:
            structures = [problem.structure(pair.x) for pair in pairs]
            theories = self._theories(backward, structures, rows, self.budget(first), index)
            mode = Full(theories, structures, rows)
        anew = None if first.gradient_of else self.checkups.descended(first.y)
        laws = Laws(backward, theories, self.settings.seed, quiet, anew, rows)
        yield Together(problem, pairs, index, backward, mode, laws, theories, rows)

    def _theories(
        self, backward: Backward, structures: Sequence[Structure], rows: Sequence[range] | None, budget: Budget, at: int
    ) -> list[Theory]:
        """Theoretical Jacobians of all xs for a full comparison; their rounding errors are measured together."""
        if rows is not None:
            from gradcheck_cli.checks.parts import row_theories

            return row_theories(backward, rows, budget, at, self.kept)
        columns = Columns(backward, structures, budget)
        return [Theory(each, partial(lambda at: columns.spreads[at], at), backward=backward, cells=cells)
                for at, (each, cells) in enumerate(zip(columns.values, columns.cells, strict=True))]  # fmt: skip

    def _take(self, together: Together, position: int, result: PairResult, job: PairJob) -> None:
        """Adds the result of a pair, with what its mode adds to it."""
        pair, mode, rows, at = together.pairs[position], together.mode, together.rows, together.index
        result = self._evaluated(result, together.problem, pair, job)
        self.done()
        first = 0 if rows is None else rows[position].start
        result = structs.replace(result, point=at, projected=pair.mode != "full", first=first, part=rows is not None)
        together.results.append((pair, result))
        if isinstance(mode, Partial):
            if not pair.results and mode.untold(result):
                pair.mode, pair.chosen = "sampled", "every direction crosses a tie"
                return
            result = mode.completed(result, together.problem, pair, position, self.job(pair))
            self.done()
        together.told.append((position, pair))
        pair.results.append(result)
        pair.method = result.method

    def _evaluated(self, result: PairResult, problem: Problem, pair: Pair, job: PairJob) -> PairResult:
        """The comparison with y evaluated by onnxruntime, if the settings ask for it."""
        if self.settings.forward != "onnxruntime" or problem.narrow is None:
            return result
        from gradcheck_cli.checks.forward.probes import Probes
        from gradcheck_cli.compare.other_forward import RESOLVED, with_forward

        try:
            theirs = Probes(self.source, problem.narrow, problem.fed, pair.x, pair.y, self.settings)
            return with_forward(result, problem.program(pair.x), job, theirs, pair.of(self.settings.rtol, RESOLVED))
        except (UsageError, UnsupportedError) as error:  # concerns one pair, such as an x that is no tensor of the file
            pair.error = error
            return result

    def _end(self, together: Together) -> None:
        """Judges pairs together that share ties, then adds laws, suspects and pictures."""
        if together.theories and together.rows is None:
            self._judge_together(together)
        elif isinstance(together.mode, Partial) and len(together.pairs) > 1:
            self._project_together(together, 2)
        elif self.part is not None and not self.part.count:  # no part alone sees all entries of a tie
            self._project_together(together, 1)
        for position, pair in together.told:
            self._conclude(together, position, pair)

    def _judge_together(self, together: Together) -> None:
        """Judges tied entries of all xs together; entries that are wrong as a whole fail."""
        results, problem = together.by_name(), together.problem
        if not any(result.comparison.slopes for result in results.values()):
            return
        from gradcheck_cli.compare.ties import judged_together  # few models are tied

        quiet = self.budget(together.pairs[0], shown=False)
        results.update(judged_together(problem.tape, together.backward.y, results, self.settings.seed, quiet))
        for pair in together.pairs:
            pair.results[-1] = results[problem.theory_name(pair.x)]

    def _project_together(self, together: Together, least: int) -> None:
        """Compares projections over all xs at once; an x whose sum fails gets one more result, that projection."""
        from gradcheck_cli.compare.ties import projected_together

        problem, job = together.problem, self.job(together.pairs[0], shown=False)
        failing = projected_together(together.backward, together.by_name(), self.settings.seed, job, least)
        for pair, result in together.results:
            if (name := problem.theory_name(pair.x)) in failing:
                pair.results.insert(max(len(pair.results) - 1, 0), result.beside(failing[name], projected=True))

    def _conclude(self, together: Together, position: int, pair: Pair) -> None:
        """Adds laws, suspect and picture to a pair that has been compared."""
        problem, result, tolerance = together.problem, pair.results[-1], self._tolerance(pair)
        program = problem.program(pair.x)
        if self.settings.compat is None:
            pair.broken += together.laws.broken(position, program, result.own or result.comparison, tolerance)
            if pair.gradient_of and together.theories and not pair.broken:
                from gradcheck_cli.checks.second_order import asymmetric

                pair.broken += asymmetric(together.theories[position], result.x, result.comparison, tolerance)
        self._locate(problem, pair)
        wrong = self.part is not None or self._wrong(pair)  # a part alone does not decide on the pair
        wanted = self.settings.pictures == "all" or (self.settings.pictures == "wrong" and wrong)
        if wanted and result.comparison.size:
            from gradcheck_cli.checks.sketch import sketch  # most checks make no pictures

            pair.pictures.append(sketch(result, program, tolerance, self.budget(pair)))

    def _wrong(self, pair: Pair) -> bool:
        """True if the last comparison of a pair does not pass by itself."""
        return bool(pair.broken) or not passes(pair.results[-1], self.settings.max_inconclusive)

    def _locate(self, problem: Problem, pair: Pair) -> None:
        """Surveys all nodes between x and y after a failure, and sets the suspect, or the node of an infinite slope."""
        result = pair.results[-1]
        failed = bool(pair.broken) or any(each.comparison.count(Status.FAIL) for each in pair.results)
        told = pair.suspect is not None and not (failed and pair.trap)  # a wrong node is worth more than a trap
        endless = not failed and self._wrong(pair) and nonfinite(result.comparison, Status.DOMAIN)
        trap = trap_in(problem, pair) if endless and not told else None
        if told or not (failed or result.survey or trap):
            return
        here = [each for each in reversed(pair.results) if each.point == result.point]
        from gradcheck_cli.checks.diagnose.suspects import lawless_suspect, suspect_record, trapped

        survey = result.survey or survey_of(problem, pair, self.budget(pair, shown=False), here)
        found = suspect_record(survey, self.graph) or lawless_suspect(pair.broken, self.graph)
        if found is not None:
            pair.suspect, pair.trap = found, ""
        elif pair.suspect is None:
            lost = failed and any(each.counts.lost for each in pair.results)
            trap = trap_in(problem, pair) if lost else trap
            pair.suspect = None if trap is None else trapped(trap, survey, self.graph)
            pair.trap = "" if trap is None else trap.message
        if failed and pair.suspect is None:
            pair.notes.append(blameless(problem, pair, survey))

    def job(self, pair: Pair, *, shown: bool = True) -> PairJob:
        """The method, the tolerance and the budget of a pair."""
        settings = self.settings
        return PairJob(settings.method, settings.delta, self._tolerance(pair), self.budget(pair, shown=shown))

    def _tolerance(self, pair: Pair) -> Tolerance:
        return Tolerance(pair.of(self.settings.rtol, RTOL), pair.of(self.settings.atol, ATOL))

    def budget(self, pair: Pair, *, shown: bool = True) -> Budget:
        """The memory, the threads and the time of a pair; its progress is `shown` to the listener."""
        listen = self.listen if shown else None
        if listen is not None:
            listen.start(pair.title, 0)

        def progress(done: int, total: int) -> None:
            if listen is not None:
                listen.advance(done, total)
            self.tick(pair.title)

        return structs.replace(Budget.within(self.settings, pair.jobs), progress=progress)

    def done(self) -> None:
        """Tells the listener that a pair is done."""
        if self.listen is not None:
            self.listen.done()

    def tick(self, what: str) -> None:
        """LimitError once the time limit has passed."""
        if self.deadline is not None and time.monotonic() > self.deadline:
            raise LimitError(f"{what} took more than {self.settings.timeout:g} s")
