"""All pairs of one y compared at one point: one backward pass, its laws, and the suspect where a pair fails."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Protocol

from gradcheck_cli.checks.assemble import Pair, passes
from gradcheck_cli.checks.diagnose.laws import Laws
from gradcheck_cli.checks.half_precision import Precisions
from gradcheck_cli.checks.health.checkup import Checkups
from gradcheck_cli.checks.modes import LADDER, PARTIAL, Partial, blameless, lesser, survey_of, trap_in
from gradcheck_cli.checks.problem import Problem, without_gradient
from gradcheck_cli.checks.timing import needed
from gradcheck_cli.compare.counts import PairResult, nonfinite
from gradcheck_cli.compare.pair import AsTensorflow, Full, PairJob, Theory
from gradcheck_cli.engine.chunks import Budget
from gradcheck_cli.errors import LimitError, NoGradientError, UnsupportedError, UsageError
from gradcheck_cli.formats.source import Source
from gradcheck_cli.graph.memory import allowed, exhausted, is_of_memory
from gradcheck_cli.jacobian.columns import Columns
from gradcheck_cli.jacobian.directions import reals
from gradcheck_cli.jacobian.jacobian import Backward
from gradcheck_cli.settings import Settings
from gradcheck_cli.verdict.rule import ATOL, RTOL, Status, Tolerance

if TYPE_CHECKING:
    from gradcheck_cli.checks.parts import Part
    from gradcheck_cli.checks.timing import Forecast
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


@dataclass(slots=True)
class Together:
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


@dataclass(slots=True)
class Comparing:
    """Compares pairs of one model until the `deadline`; `part` restricts them to some rows of each Jacobian."""

    source: Source
    settings: Settings
    listen: Listener | None
    precisions: Precisions
    checkups: Checkups
    part: Part | None
    deadline: float | None

    def compare_all(self, pairs: Sequence[Pair], problems: Mapping[str, Problem], index: int) -> None:
        """Compares all pairs at one point; those of one y share the time of their common backward pass.

        In `auto`, pairs that run out of memory are compared once more in the next mode that takes less.
        """
        for problem, mode in product(problems.values(), ("full", *PARTIAL)):
            start = time.perf_counter()
            group = [p for p in pairs if (p.y, p.mode) == (problem.y, mode) and p.error is None]
            try:
                for together in self._together(problem, group, index):
                    for position, pair in enumerate(together.pairs):
                        job, program = self.job(pair), problem.program(pair.x)
                        self._take(together, position, together.mode.compare(program, position, job), job)
                    self._end(together)
            except (MemoryError, LimitError) as error:
                self.done()
                if not is_of_memory(error):
                    raise
                for pair in (p for p in group if not self._known_wrong(p, index)):
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
        if not pairs:
            return
        try:
            names = [problem.theory_name(p.x) for p in pairs]
            backward = Backward(problem.tape, problem.theory_name(pairs[0].y), names)
        except NoGradientError as error:
            if len(pairs) > 1:
                for pair in pairs:
                    yield from self._together(problem, [pair], index)
            else:
                pairs[0].error = without_gradient(error, problem, pairs[0].x, pairs[0].y, pairs[0].gradient_of)
            return
        quiet, compat = self.budget(pairs[0], shown=False), self.settings.compat is not None
        self.precisions.at(problem, backward, pairs, index, quiet)
        rows = None if self.part is None else [self.part.rows(reals(problem.value(pair.x))) for pair in pairs]
        theories = self._theories(backward, problem, pairs, rows) if pairs[0].mode == "full" and not compat else []
        anew = None if pairs[0].gradient_of else self.checkups.descended(pairs[0].y)
        laws = Laws(backward, [theory.values for theory in theories], self.settings.seed, quiet, anew, rows)
        mode: Mode
        if pairs[0].mode != "full":
            mode = Partial(pairs[0].mode, backward, self.settings, quiet)
        elif compat:
            mode = AsTensorflow(problem.tape, [(p.x, p.y) for p in pairs])
        else:
            mode = Full(theories, [problem.structure(pair.x) for pair in pairs], rows)
        yield Together(problem, pairs, index, backward, mode, laws, theories, rows)

    def _take(self, together: Together, position: int, result: PairResult, job: PairJob) -> None:
        """Adds the result of a pair, with what its mode adds to it."""
        pair, mode, rows = together.pairs[position], together.mode, together.rows
        result = self._evaluated(result, together.problem, pair, job)
        self.done()
        first = 0 if rows is None else rows[position].start
        result = replace(
            result, point=together.index, projected=pair.mode != "full", first=first, part=rows is not None
        )
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

    def _end(self, together: Together) -> None:
        """Judges pairs together that share ties, then adds laws, suspects and pictures."""
        partial = isinstance(together.mode, Partial)
        if together.theories and together.rows is None:
            self._judge_together(together.problem, together.pairs)
        elif partial and len(together.pairs) > 1:
            self._project_together(together, 2)
        elif self.part is not None and not self.part.count:  # no part alone sees all entries of a tie
            self._project_together(together, 1)
        for position, pair in together.told:
            self._conclude(together, position, pair)

    def _judge_together(self, problem: Problem, pairs: Sequence[Pair]) -> None:
        """Judges tied entries of all xs together; entries that are wrong as a whole fail."""
        results = {problem.theory_name(pair.x): pair.results[-1] for pair in pairs}
        if not any(result.comparison.slopes for result in results.values()):
            return
        from gradcheck_cli.compare.ties import judged_together  # few models are tied

        y, quiet = problem.theory_name(pairs[0].y), self.budget(pairs[0], shown=False)
        results.update(judged_together(problem.tape, y, results, self.settings.seed, quiet))
        for pair in pairs:
            pair.results[-1] = results[problem.theory_name(pair.x)]

    def _project_together(self, together: Together, least: int) -> None:
        """Compares projections over all xs at once; an x whose sum fails gets one more result, that projection."""
        from gradcheck_cli.compare.ties import projected_together

        problem, first = together.problem, together.pairs[0]
        results = {problem.theory_name(pair.x): result for pair, result in together.results}
        job = replace(self.job(first), budget=self.budget(first, shown=False))
        failing = projected_together(together.backward, results, self.settings.seed, job, least)
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
        if wanted and result.comparison.status.size:
            from gradcheck_cli.checks.sketch import sketch  # most checks make no pictures

            pair.pictures.append(sketch(result, program, tolerance, self.budget(pair)))

    def _known_wrong(self, pair: Pair, index: int) -> bool:
        """True if a pair was already compared at this point and does not pass."""
        return bool(pair.results) and pair.results[-1].point == index and self._wrong(pair)

    def _wrong(self, pair: Pair) -> bool:
        """True if the last comparison of a pair does not pass by itself."""
        return bool(pair.broken) or not passes(pair.results[-1], self.settings.max_inconclusive)

    def _theories(
        self, backward: Backward, problem: Problem, pairs: Sequence[Pair], rows: Sequence[range] | None
    ) -> list[Theory]:
        """Theoretical Jacobians of all xs for a full comparison; their rounding errors are measured together."""
        if rows is not None:
            from gradcheck_cli.checks.parts import row_theories  # where a cluster compares

            return row_theories(backward, rows, self.budget(pairs[0]))
        columns = Columns(backward, [problem.structure(pair.x) for pair in pairs], self.budget(pairs[0]))
        return [Theory(each, partial(lambda at: columns.spreads[at], at), backward=backward)
                for at, each in enumerate(columns.values)]  # fmt: skip

    def job(self, pair: Pair) -> PairJob:
        """The method, the tolerance and the budget of a pair."""
        return PairJob(self.settings.method, self.settings.delta, self._tolerance(pair), self.budget(pair))

    def _evaluated(self, result: PairResult, problem: Problem, pair: Pair, job: PairJob) -> PairResult:
        """The comparison with y evaluated by onnxruntime, if the settings ask for it."""
        if self.settings.forward != "onnxruntime" or problem.narrow is None:
            return result
        from gradcheck_cli.checks.forward.probes import Probes
        from gradcheck_cli.compare.peered import RESOLVED, with_peer

        try:
            peer = Probes(self.source, problem.narrow, problem.fed, pair.x, pair.y, self.settings)
            return with_peer(result, problem.program(pair.x), job, peer, pair.of(self.settings.rtol, RESOLVED))
        except (UsageError, UnsupportedError) as error:  # concerns one pair, such as an x that is no tensor of the file
            pair.error = error
            return result

    def done(self) -> None:
        if self.listen is not None:
            self.listen.done()

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

        quiet = self.budget(pair, shown=False)
        survey = result.survey or survey_of(problem, pair, quiet, here)
        found = suspect_record(survey, self.source.graph) or lawless_suspect(pair.broken, self.source.graph)
        if found is not None:
            pair.suspect, pair.trap = found, ""
        elif pair.suspect is None:
            lost = failed and any(each.counts.lost for each in pair.results)
            trap = trap_in(problem, pair) if lost else trap
            pair.suspect = None if trap is None else trapped(trap, survey, self.source.graph)
            pair.trap = "" if trap is None else trap.message
        if failed and pair.suspect is None:
            pair.notes.append(blameless(problem, pair, survey))

    def _tolerance(self, pair: Pair) -> Tolerance:
        return Tolerance(pair.of(self.settings.rtol, RTOL), pair.of(self.settings.atol, ATOL))

    def budget(self, pair: Pair, *, shown: bool = True) -> Budget:
        listen = self.listen if shown else None
        if listen is not None:
            listen.start(pair.title, 0)

        def progress(done: int, total: int) -> None:
            if listen is not None:
                listen.advance(done, total)
            if self.deadline is not None and time.monotonic() > self.deadline:
                raise LimitError(f"{pair.title} took more than {self.settings.timeout:g} s")

        return Budget(allowed(self.settings.memory_limit), pair.jobs or self.settings.jobs, progress)
