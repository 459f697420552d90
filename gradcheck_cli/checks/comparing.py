"""All pairs of one y compared at one point: one backward pass, its laws, and the suspect where a pair fails."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Protocol

from gradcheck_cli.checks.assemble import Pair, PointResult, passes
from gradcheck_cli.checks.diagnose.laws import Laws
from gradcheck_cli.checks.diagnose.suspects import lawless_suspect, suspect_record, trapped
from gradcheck_cli.checks.half_precision import Precisions
from gradcheck_cli.checks.health.checkup import Checkups
from gradcheck_cli.checks.modes import LADDER, PARTIAL, Partial, blameless, lesser, survey_of, trap_in
from gradcheck_cli.checks.parts import Part, row_theories
from gradcheck_cli.checks.second_order import asymmetric
from gradcheck_cli.checks.sides import Sides, without_gradient
from gradcheck_cli.checks.timing import needed
from gradcheck_cli.compare.pair import Found, Job, Theory, compare_as_tensorflow, compare_full
from gradcheck_cli.compare.ties import judged_together, projected_together
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
    from gradcheck_cli.checks.timing import Forecast


class Listener(Protocol):
    """Receiver of a check's progress; pairs are timed only if it consumes the forecasts."""

    def expect(self, forecasts: Iterator[Forecast]) -> None: ...
    def start(self, title: str, total: int) -> None: ...
    def advance(self, done: int, total: int) -> None: ...
    def done(self) -> None: ...


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

    def compare_all(self, sides: Sides, pairs: list[Pair], index: int) -> None:
        """Compares all pairs of one y at one point; they share the time of their common backward pass.

        In `auto`, pairs that run out of memory are compared once more in the next mode that takes less.
        """
        for mode in ("full", *PARTIAL):
            start, group = time.perf_counter(), [p for p in pairs if p.mode == mode and p.error is None]
            try:
                self._compare(sides, group, index)
            except (MemoryError, LimitError) as error:
                if not is_of_memory(error):
                    raise
                for pair in (p for p in group if not self._known_wrong(p, index)):
                    pair.outcomes = [outcome for outcome in pair.outcomes if outcome.point != index]
                    self._relieve(sides, pair, mode, error)
            for pair in group:
                pair.seconds += (time.perf_counter() - start) / len(group)

    def _relieve(self, sides: Sides, pair: Pair, mode: str, error: MemoryError | LimitError) -> None:
        """Gives a pair that ran out of memory the next mode; an error where there is none."""
        following = LADDER[LADDER.index(mode) + 1 :] if mode in LADDER else ()
        if self.settings.mode != "auto" or not following or pair.outcomes or self.part is not None:
            pair.error = exhausted(error, least=needed(sides, pair.x, self.source.graph, mode, 1))
        else:
            pair.mode, pair.chosen, pair.jobs = following[0], lesser(mode), 1

    def _compare(self, sides: Sides, pairs: list[Pair], index: int) -> None:
        """Compares pairs of one mode by one backward pass; one by one where a rule is missing."""
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
        quiet = self.budget(pairs[0], shown=False)
        self.precisions.at(sides, backward, pairs, index, quiet)
        whole = pairs[0].mode == "full" and self.settings.compat is None
        theories = self._theories(backward, sides, pairs) if whole else []
        columns = [theory.values for theory in theories]
        anew = None if pairs[0].gradient_of else self.checkups.descended(pairs[0].y)
        rows = None if self.part is None else self._rows(sides, pairs)
        laws = Laws(backward, columns, self.settings.seed, quiet, anew, rows)
        some = None if pairs[0].mode == "full" else Partial(pairs[0].mode, backward, self.settings, quiet)
        told, results = [], list[tuple[Pair, PointResult]]()
        for position, pair in enumerate(pairs):
            found = self._found(sides, pair, position, theories, some)
            first = 0 if rows is None else rows[position].start
            outcome = PointResult(index, found, sides.value(pair.x), sides.value(pair.y), pair.mode != "full",
                                  first=first, part=rows is not None)  # fmt: skip
            results.append((pair, outcome))
            if some is not None and not pair.outcomes and some.untold(found):
                pair.mode, pair.chosen = "sampled", "every direction crosses a tie"
                continue
            told.append((position, pair))
            if some is not None:
                outcome = some.completed(outcome, sides, pair, position, self._job(sides, pair))
                self.done()
            pair.outcomes.append(outcome)
            pair.method = found.method
        if whole and rows is None:
            self._judge_together(sides, pairs)
        elif some is not None and len(pairs) > 1:
            self._project_together(sides, results, backward, 2)
        elif self.part is not None and not self.part.count:  # no part alone sees all entries of a tie
            self._project_together(sides, results, backward, 1)
        for position, pair in told:
            self._conclude(sides, pair, position, laws, theories)

    def _judge_together(self, sides: Sides, pairs: Sequence[Pair]) -> None:
        """Judges tied entries of all xs together; entries that are wrong as a whole fail."""
        found = {sides.theory_name(pair.x): pair.outcomes[-1].found for pair in pairs}
        y, quiet = sides.theory_name(pairs[0].y), self.budget(pairs[0], shown=False)
        changed = judged_together(sides.tape, y, found, self.settings.seed, quiet)
        for pair in pairs:
            if (name := sides.theory_name(pair.x)) in changed:
                pair.outcomes[-1] = replace(pair.outcomes[-1], found=changed[name])

    def _project_together(
        self, sides: Sides, results: Sequence[tuple[Pair, PointResult]], backward: Backward, least: int
    ) -> None:
        """Compares projections over all xs at once; an x whose sum fails gets one more outcome, that projection."""
        found = {sides.theory_name(pair.x): outcome.found for pair, outcome in results}
        job = replace(self._job(sides, results[0][0]), budget=self.budget(results[0][0], shown=False))
        failing = projected_together(backward, found, self.settings.seed, job, least)
        for pair, outcome in results:
            if (name := sides.theory_name(pair.x)) in failing:
                extra = replace(outcome, found=failing[name], projected=True, drawn=False, extra=True, survey=None)
                pair.outcomes.insert(max(len(pair.outcomes) - 1, 0), extra)

    def _conclude(self, sides: Sides, pair: Pair, position: int, laws: Laws, theories: Sequence[Theory]) -> None:
        """Adds laws, suspect and picture to a pair that has been compared."""
        outcome = pair.outcomes[-1]
        found = outcome.found
        if self.settings.compat is None:
            tolerance = self._tolerance(pair)
            pair.broken += laws.broken(position, sides.program(pair.x), found.own or found.comparison, tolerance)
            if pair.gradient_of and theories and not pair.broken:
                pair.broken += asymmetric(theories[position], outcome.x, found.comparison, tolerance)
        self._locate(sides, pair)
        wrong = self.part is not None or self._wrong(pair)  # a part alone does not decide on the pair
        wanted = self.settings.pictures == "all" or (self.settings.pictures == "wrong" and wrong)
        if wanted and found.comparison.status.size:
            from gradcheck_cli.checks.sketch import sketch  # most checks make no pictures

            program, tolerance = sides.program(pair.x), self._tolerance(pair)
            pair.pictures.append(sketch(outcome, program, tolerance, self.budget(pair)))

    def _known_wrong(self, pair: Pair, index: int) -> bool:
        """True if a pair was already compared at this point and does not pass."""
        return bool(pair.outcomes) and pair.outcomes[-1].point == index and self._wrong(pair)

    def _wrong(self, pair: Pair) -> bool:
        """True if the last comparison of a pair does not pass by itself."""
        return bool(pair.broken) or not passes(pair.outcomes[-1], self.settings.max_inconclusive)

    def _theories(self, backward: Backward, sides: Sides, pairs: Sequence[Pair]) -> list[Theory]:
        """Theoretical Jacobians of all xs for a full comparison; their rounding errors are measured together."""
        if self.part is not None:
            return row_theories(backward, self._rows(sides, pairs), self.budget(pairs[0]))
        columns = Columns(backward, [sides.structure(pair.x) for pair in pairs], self.budget(pairs[0]))
        return [Theory(each, partial(lambda at: columns.spreads[at], at), backward=backward)
                for at, each in enumerate(columns.values)]  # fmt: skip

    def _rows(self, sides: Sides, pairs: Sequence[Pair]) -> list[range]:
        """Rows of each Jacobian that this part compares."""
        return [(self.part or Part()).rows(reals(sides.value(pair.x))) for pair in pairs]

    def _job(self, sides: Sides, pair: Pair) -> Job:
        return Job(self.settings.method, self.settings.delta, self._tolerance(pair), self.budget(pair))

    def _found(
        self, sides: Sides, pair: Pair, position: int, theories: Sequence[Theory], some: Partial | None
    ) -> Found:
        job, program = self._job(sides, pair), sides.program(pair.x)
        try:
            if self.settings.compat is not None:
                return compare_as_tensorflow(sides.tape, program, pair.x, pair.y, job)
            if some is not None:
                return self._evaluated(some.compare(program, position, job), sides, pair, job)
            rows = None if self.part is None else self._rows(sides, [pair])[0]
            found = compare_full(program, theories[position], job, sides.structure(pair.x), rows)
            return self._evaluated(found, sides, pair, job)
        finally:
            self.done()

    def _evaluated(self, found: Found, sides: Sides, pair: Pair, job: Job) -> Found:
        """The comparison with y evaluated by onnxruntime, if the settings ask for it."""
        if self.settings.forward != "onnxruntime" or sides.narrow is None:
            return found
        from gradcheck_cli.checks.forward.probes import Probes
        from gradcheck_cli.compare.peered import RESOLVED, with_peer

        try:
            peer = Probes(self.source, sides.narrow, sides.fed, pair.x, pair.y, self.settings)
            return with_peer(found, sides.program(pair.x), job, peer, pair.of(self.settings.rtol, RESOLVED))
        except (UsageError, UnsupportedError) as error:  # concerns one pair, such as an x that is no tensor of the file
            pair.error = error
            return found

    def done(self) -> None:
        if self.listen is not None:
            self.listen.done()

    def _locate(self, sides: Sides, pair: Pair) -> None:
        """Surveys all nodes between x and y after a failure, and sets the suspect."""
        outcome = pair.outcomes[-1]
        failed = bool(pair.broken) or any(o.found.comparison.count(Status.FAIL) for o in pair.outcomes)
        if pair.suspect is not None or not (failed or outcome.survey):
            return
        here = [each for each in reversed(pair.outcomes) if each.point == outcome.point]
        quiet = self.budget(pair, shown=False)
        survey = outcome.survey or survey_of(sides, pair, self.settings.seed, quiet, here)
        pair.suspect = suspect_record(survey, self.source.graph) or lawless_suspect(pair.broken, self.source.graph)
        if failed and pair.suspect is None and any(o.tally.lost for o in pair.outcomes):
            trap = trap_in(sides, pair, self.settings.seed)
            pair.suspect = None if trap is None else trapped(trap, survey, self.source.graph)
            pair.trap = "" if trap is None else trap.message
        if failed and pair.suspect is None:
            pair.notes.append(blameless(sides, pair, survey, self.settings.seed))

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
