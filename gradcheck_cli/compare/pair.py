"""One pair (x, y) at one point: both Jacobians, by whatever method says most, and a status for each entry.

The complex step decides wherever forward kernels let it through.  What it does not pass goes to the ladder of real
differences, whose error bound must not contradict a failure; where x lies at a tie the slopes from both sides decide.

TensorFlow's own way to compare, for continuity: one central difference, no verdict but tolerances.

The numbers are those of `compute_gradient`, to the bit.  Nothing is known of the error of a difference with a fixed
step: a kink, rounding or curvature fails a check here as it did there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from msgspec import structs

from gradcheck_cli.autodiff.tape import Tape
from gradcheck_cli.compare.audit import all_tame, dispute_note
from gradcheck_cli.compare.counts import PairResult as PairResult
from gradcheck_cli.compare.kinks import kink_notes, with_ties
from gradcheck_cli.compare.ladder import Numeric, laddered
from gradcheck_cli.compare.ladder import PairJob as PairJob
from gradcheck_cli.engine.chunks import Budget
from gradcheck_cli.engine.program import Program
from gradcheck_cli.errors import UsageError, counted, plural
from gradcheck_cli.graph import Array
from gradcheck_cli.jacobian.coloring import Structure
from gradcheck_cli.jacobian.columns import Theory as Theory
from gradcheck_cli.jacobian.directions import Directions, flat, reals
from gradcheck_cli.jacobian.jacobian import Backward, Colored, by_differences
from gradcheck_cli.settings import ANY, Settings
from gradcheck_cli.verdict.differences import CENTRAL, STENCILS
from gradcheck_cli.verdict.rule import HUGE, Comparison, Status, blocks, magnitude, unseen

_UNDERFLOWS = "differences instead of the complex step, in which numbers near the end of float64 underflow"


class Comparer(ABC):
    """The comparison of parts of the Jacobians of one y by several xs: derivatives along directions, `weights` of y."""

    weights: Array | None = None

    @abstractmethod
    def sides(self, program: Program, position: int) -> tuple[Theory, Directions]:
        """The theoretical derivatives for one x, `(rows, y_size)` or `(rows, len(weights))`, and the directions of rows."""

    def completed(self, found: PairResult, position: int, job: PairJob) -> PairResult:
        """The result with what this kind of comparison adds."""
        return found

    def compare(self, program: Program, position: int, job: PairJob) -> PairResult:
        """The comparison for one x."""
        before = Counter(program.evaluations)
        theory, directions = self.sides(program, position)
        method: str = job.method
        if method in ("auto", "complex-step"):
            method = "complex-step" if program.obstacle is None else "richardson"
        if method != "complex-step" or not np.isfinite(flat(program.y)).all():
            # differences bound zeros too; columns of y that is not finite are left out
            theory = theory.whole(job.budget)
        numeric = Numeric(program, directions, job, self.weights, theory.ground, theory)
        theoretical = theory.values if self.weights is not None else numeric.cleared(theory.values)
        if method == "complex-step":
            comparison = numeric.complex_step(theory, theoretical)
            lost = numeric.disputed.any() and np.isfinite(theoretical).all() and not all_tame(program)
            if lost and job.method == "auto":
                found = self.compare(program, position, structs.replace(job, method="richardson"))
                return structs.replace(found, notes=(_UNDERFLOWS, *found.notes))
        elif method == "richardson":
            comparison = numeric.uncontradicted(laddered(numeric, theoretical))
        else:
            comparison = numeric.uncontradicted(numeric.by_stencil(theoretical, STENCILS[method]))
        comparison = with_ties(numeric, comparison, method == "complex-step")
        comparison = out_of_range(comparison, directions)
        if numeric.left_out.any():
            left_out = np.where(numeric.left_out, np.int8(Status.LEFT_OUT), comparison.status)
            comparison = structs.replace(comparison, status=left_out)
        notes = tuple(_notes(numeric, comparison, method))
        x, y = (program.tape.values[name] for name in (program.probes[0], program.outputs[0]))
        colors = directions.coloring.count if isinstance(directions, Colored) and directions.served else None
        found = PairResult(
            comparison, method, x, y, notes, directions, self.weights, program.evaluations - before, colors,
            disputed=bool(numeric.disputed.any()),
        )  # fmt: skip
        return self.completed(found, position, job)


class Full(Comparer):
    """The mode that compares every entry of the Jacobians by several xs, or some rows of each.

    Where all are asked for and the colors of a structure are few, rows of one color share a probe.
    """

    def __init__(
        self,
        theories: Sequence[Theory],
        structures: Sequence[Structure | None],
        rows: Sequence[range] | None = None,
    ) -> None:
        self.theories, self.structures, self.rows = theories, structures, rows

    def sides(self, program: Program, position: int) -> tuple[Theory, Directions]:
        x, structure = program.x, self.structures[position]
        coloring = None if structure is None or self.rows is not None else structure.coloring
        chosen = range(reals(x)) if self.rows is None else self.rows[position]
        return self.theories[position], Directions(x, chosen) if coloring is None else Colored(x, coloring)

    def completed(self, found: PairResult, position: int, job: PairJob) -> PairResult:
        structure = self.structures[position]
        return found if structure is None else _placed(found, structure)


class GivenDirections(Comparer):
    """The comparison of derivatives along directions of one x, or of their weighted sums."""

    def __init__(self, theory: Theory, directions: Directions, weights: Array | None = None) -> None:
        self.theory, self.directions, self.weights = theory, directions, weights

    def sides(self, program: Program, position: int) -> tuple[Theory, Directions]:
        return self.theory, self.directions


def _placed(found: PairResult, structure: Structure) -> PairResult:
    """The comparison with what fails outside of the sparsity pattern counted: no number is needed to see it is wrong."""
    status = found.comparison.status
    count = found.comparison.count(Status.FAIL)
    pattern, outside = structure.pattern if count and found.comparison.cells is None else None, 0
    if pattern is not None:
        for some in blocks(*status.shape):
            rows, columns = np.nonzero(status[some] == Status.FAIL)
            assert found.directions is not None
            outside += int(np.count_nonzero(~pattern.holds(found.directions.rows[rows + some.start], columns)))
    if not outside:
        return found
    what = f"{outside} of {count} wrong entries" if count > 1 else "the wrong entry"
    note = f"{what} {plural(outside, 'is', 'are')} zero by the structure of the model: y does not depend on x there"
    return structs.replace(
        found, comparison=structs.replace(found.comparison, outside=outside), notes=(*found.notes, note)
    )


def _notes(numeric: Numeric, comparison: Comparison, method: str) -> Iterator[str]:
    """Everything that is worth saying about a comparison."""
    program, rows = numeric.program, numeric.directions
    tried = {step.where: step.trial for _, step in program.steps if step.trial is not None}
    for where, trial in tried.items():  # kernels of others
        yield from (f"{where} {said}" for said in trial.retracted)
        if trial.coarse:
            digits = f"its result is accurate to {trial.coarse:.0e} of its size"
            yield f"{where} computes with fewer digits than float64: {digits}"
    if method != numeric.job.method and program.obstacle is not None:
        yield f"differences instead of the complex step, which {program.obstacle.where} does not support"
    if numeric.lengthened:
        entries = counted(numeric.lengthened, "entry")
        yield f"{entries} compared in extended precision (long double): rounding hides them in float64"
    if lost := int((~numeric.finite).sum()):
        yield f"{lost} of {counted(len(numeric.finite), 'entry')} of y {plural(lost, 'is', 'are')} not finite and left out"
    yield from kink_notes(program, comparison)
    yield from _blind(comparison)
    yield from dispute_note(numeric)
    if isinstance(rows, Colored) and rows.miscolored:
        yield (
            "entries that were perturbed together do not add up, so each was perturbed alone: "
            "an operator reads more than its sparsity rule says"
        )


def out_of_range(comparison: Comparison, directions: Directions) -> Comparison:
    """The comparison without failures where what moves in x is so small or so large that rules cannot square it."""
    size = np.abs(directions.here)
    extreme = (size > 0) & ((size < 1 / HUGE) | (size > HUGE))
    if not extreme.any():
        return comparison
    given = directions.given
    rows = extreme[directions.rows] if given is None else (given[:, extreme] != 0).any(axis=1)
    failed = (comparison.status == Status.FAIL) & rows[:, None]
    return structs.replace(comparison, status=np.where(failed, Status.UNDERFLOW, comparison.status).astype(np.int8))


def _blind(comparison: Comparison) -> tuple[str, ...]:
    """A note on the smallest error that would be seen where noise or curvature leaves entries open."""
    if comparison.clean:
        return ()
    rows, columns = np.nonzero(np.isin(comparison.status, (Status.NOISE, Status.CURVATURE)))
    if not len(rows):
        return ()
    reasons = sorted({Status(int(s)).name.lower() for s in comparison.status[rows, columns]})
    size = magnitude(comparison.theoretical[rows, columns], comparison.numerical[rows, columns])
    least = float(np.max(unseen(comparison, rows, columns) / np.where(size > 0, size, 1.0)))
    seen = (
        f"an error below {least:.0e} of an entry would not be seen" if np.isfinite(least) else "no error would be seen"
    )
    return (f"{counted(len(rows), 'entry')} not judged because of {' and '.join(reasons)}: {seen}",)


DELTA = 1e-3
RTOL, ATOL = 1e-4, 1e-4  # most of TensorFlow's own tests allow an error of 1e-4


def as_tensorflow(settings: Settings) -> Settings:
    """The settings with what TensorFlow's way means; UsageError for those that contradict it."""
    for option, value, allowed in (
        ("method", settings.method, ("auto", "central")),
        ("dtype", settings.dtype, ("float64",)),
        ("mode", settings.mode, ("auto", "full")),
    ):
        if value not in allowed:
            raise UsageError(f"--compat tf takes central differences of all entries in float64; --{option} is {value}.")
    return replace(
        settings,
        method="central",
        mode="full",
        delta=DELTA if settings.delta is None else settings.delta,
        rtol={ANY: RTOL, **settings.rtol},
        atol={ANY: ATOL, **settings.atol},
    )


def jacobians(tape: Tape, program: Program, x: str, y: str, delta: float, budget: Budget) -> tuple[Array, Array]:
    """The theoretical Jacobian and the numerical one `(x_size, y_size)`; `program` leads from x to y.

    The step of the central difference is delta, rounded so that x + step is exact.
    """
    here = program.x
    if np.isinf(here).any():
        raise UsageError(f"{x!r} is infinite here: no step leads away from it; give finite values.")
    if here.size and not np.all((here + delta != here) & (here - delta != here)):
        with np.errstate(over="ignore"):  # beside the largest number there is infinity
            least = float(np.max(np.spacing(np.abs(here))))
        raise UsageError(
            f"delta={delta:g} is too small to resolve: {x!r} + delta equals {x!r} in {here.dtype}. "
            f"At least {least:.1g} is needed here."
        )
    directions = Directions(here, range(reals(here)))
    theoretical = Backward(tape, tape.named[y].name, [tape.named[x].name]).jacobians(budget)[0]
    return theoretical, next(by_differences(program, directions, CENTRAL, [directions.fixed(delta)], budget))[0]


class AsTensorflow:
    """The mode in which every entry passes whose difference is at most atol + rtol |numerical|, and fails otherwise."""

    def __init__(self, tape: Tape, pairs: Sequence[tuple[str, str]]) -> None:
        self.tape, self.pairs = tape, pairs

    def compare(self, program: Program, position: int, job: PairJob) -> PairResult:
        """The comparison of one pair (x, y)."""
        (x, y), tolerance, delta = self.pairs[position], job.tolerance, DELTA if job.delta is None else job.delta
        theoretical, numerical = jacobians(self.tape, program, x, y, delta, job.budget)
        with np.errstate(invalid="ignore"):
            passed = np.abs(theoretical - numerical) <= tolerance.atol + tolerance.rtol * np.abs(numerical)
        status = np.where(passed, Status.PASS, Status.FAIL).astype(np.int8)
        note = f"as in TensorFlow: delta {delta:g}, |difference| <= {tolerance.atol:g} + {tolerance.rtol:g} |numerical|"
        comparison = Comparison(theoretical, numerical, np.zeros(numerical.shape), status)
        return PairResult(comparison, "central", self.tape.named[x].value, self.tape.named[y].value, (note,))
