"""Time and memory that a check takes, estimated before it starts.

Time: operations are counted, see `jacobian/cost.py`; the choice of a mode depends on the same counts.

Memory: estimated from the forward run, for one pair, without the interpreter: the model, the forward run, a backward
pass, a chunk of probes on each thread, directions of x, and in a full comparison both Jacobians.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from gradcheck_cli.autodiff.tape import Step
from gradcheck_cli.autodiff.weights import TapeValues
from gradcheck_cli.checks.assemble import Pair
from gradcheck_cli.checks.problem import Problem
from gradcheck_cli.engine.chunks import Budget
from gradcheck_cli.engine.complex_step import linear_groups
from gradcheck_cli.errors import LimitError, UsageError, counted, plural, shown
from gradcheck_cli.graph import is_inexact_array
from gradcheck_cli.graph.memory import Owned, generous, most, spell, typed
from gradcheck_cli.jacobian.cost import HELD, OPERATIONS, Cost, duration, partial_work
from gradcheck_cli.jacobian.directions import DOT_TESTS, PROJECTIONS, directions_within, reals
from gradcheck_cli.points.point import Point
from gradcheck_cli.settings import Settings

FREE = 256 << 20  # bytes that any machine has: a check that takes less is never refused
_LINEAR, _OTHER = 1.5, 4.0  # bytes of a backward pass per byte of a step's result: linear operators, and others
_AT_MOST = 32.0  # bound of the memory per thread, in units of the tape
_RUN = 2.5  # memory of a run in units of its chunk: temporaries of kernels, and what malloc keeps per thread
_ENDS, _EACH = 4.0, 2.0  # copies of x and y that any mode makes, and more of them for each direction
_ALONG = {"directional": PROJECTIONS, "nodes": 4}  # directions, or dot tests, per comparison
OF_A_PART = 0.25  # of the memory limit: both Jacobians of a part, where parts are compared one by one


class Forecast(Struct, frozen=True):
    """A pair, a description of its comparison, and the predicted seconds."""

    title: str
    what: str
    seconds: float

    def __str__(self) -> str:
        return f"{self.title}: {self.what}, about {duration(self.seconds)}"


def forecasts(pairs: Sequence[Pair], problems: Mapping[str, Problem]) -> Iterator[Forecast]:
    """Forecast of each pair, whose mode is known; the survey that pairs of one y share counts for the first of them."""
    surveyed = set[str]()
    for pair in (pair for pair in pairs if pair.error is None):
        problem = problems[pair.y]
        if pair.mode == "full":
            work = problem.cost(pair.x).work
        else:
            work = 0.0 if pair.y in surveyed else partial_work(problem.program(pair.x), pair.mode)
        if pair.mode == "nodes":
            surveyed.add(pair.y)
        yield Forecast(pair.title, said(pair, problem), work * problem.settings.points / OPERATIONS)


def said(pair: Pair, problem: Problem) -> str:
    """Description of what is compared of a pair."""
    rows, columns = reals(problem.value(pair.x)), reals(problem.value(pair.y))
    if pair.mode == "full":
        return f"full, {rows} x {columns} entries"
    if pair.mode == "sampled":
        return f"sampled, {min(problem.settings.max_entries, rows * columns)} of {rows} x {columns} entries"
    return f"{pair.mode}, {len(problem.program(pair.x).steps)} steps"


def threads(problem: Problem, x: str, mode: str) -> int:
    """Number of threads on which a pair fits the memory limit in a mode: all, one, or none."""
    limit = max(problem.budget.memory, FREE)
    each = dict.fromkeys((problem.settings.jobs, 1))
    return next((jobs for jobs in each if needed(problem, x, mode, jobs) <= limit), 0)


def undivided(settings: Settings) -> str:
    """The option of a check that cannot be split into parts; "" where it can."""
    return next((name for said, name in (
        (settings.second_order, "--second-order"),
        (settings.compat is not None, "--compat"),
        (settings.forward == "onnxruntime", "--forward onnxruntime"),
    ) if said), "")  # fmt: skip


def at_once(problem: Problem, x: str) -> float:
    """Bytes of a full comparison with both Jacobians whole: that entries are zero is found only where there is memory."""
    return problem.weights + working(problem, x, "full", 1) + problem.cost(x, compressed=False).memory


def in_parts(problem: Problem, x: str, xs: Sequence[str]) -> float:
    """Bytes of a full comparison by x in parts, beside the whole theoretical Jacobians by all `xs` at all points."""
    rows = sum(reals(problem.value(name)) for name in xs)
    kept = 8.0 * rows * reals(problem.value(problem.y)) * problem.settings.points
    return (problem.weights + working(problem, x, "full", 1) + kept) / (1 - OF_A_PART)


def too_large(cost: Cost, problem: Problem, x: str, size: float) -> UsageError:
    """The error for a full check that does not fit the memory limit: the limit that allows its `size`, and other modes."""
    number = f"{cost.entries:.1e}".replace("e+0", "e").replace("e+", "e") if cost.entries >= 1e6 else str(cost.entries)
    of, by = (f"{name!r} [{','.join(map(str, problem.value(name).shape))}]" for name in (problem.y, x))
    here = most()
    much = f", where this machine has {spell(here)}" if size > here else ""
    return UsageError(
        f"the full Jacobian of {of} by {by} has {number} entries ({spell(8.0 * cost.entries)}, about "
        f"{duration(cost.seconds)} here) and takes about {spell(size)}; "
        f"--memory-limit is {spell(typed(problem.budget.memory))}. --memory-limit {generous(size)} allows it{much}. "
        "Less is taken by --mode nodes, which checks node by node, and by --mode directional, by random projections."
    )


def beyond(problem: Problem, x: str, mode: str) -> LimitError:
    """The error for a pair that does not fit the memory limit in any mode; it names the limit that is needed."""
    weights, size = problem.weights, needed(problem, x, mode, 1)
    limit, others = problem.budget.memory, " and so do --mode nodes and --mode directional" if mode == "full" else ""
    of = f", {spell(weights)} of it for the model's weights" if weights > FREE else ""
    return LimitError(
        f"d {problem.y}/d {x} takes about {spell(size)}{of}; --memory-limit is {spell(typed(limit))}.  "
        f"--memory-limit {generous(size)} allows it; smaller sizes (--x-shape, --dim) need less{others}",
        code="GC602",
    )


def late(error: Exception, pairs: Sequence[Pair], index: int) -> Exception:
    """The error of a time limit that ends the comparison of some pairs at a point, with what was compared until then."""
    done = [any(each.point == index for each in pair.results) for pair in pairs]
    left = [pair for pair, compared in zip(pairs, done, strict=True) if not compared and pair.error is None]
    if not (left and isinstance(error, LimitError)):
        return error
    said = f"{sum(done)} of {counted(len(pairs), 'derivative')} {plural(len(pairs), 'was', 'were')} compared"
    at = f" at point {index + 1}" if index else ""
    return LimitError(f"{error}: {said}{at}, {shown(left[0].title)} was next", code=error.code)


def needed(problem: Problem, x: str, mode: str, jobs: int) -> float:
    """Bytes that a pair takes in a mode on `jobs` threads, the model included."""
    weights = problem.weights
    jacobians = problem.cost(x).memory if mode == "full" else 0
    if jacobians == 0 and weights + _AT_MOST * jobs * problem.held <= FREE:  # without a loop over the steps
        return float(weights + problem.held)
    return weights + working(problem, x, mode, jobs) + jacobians


def working(problem: Problem, x: str, mode: str, jobs: int) -> float:
    """Bytes beside the model: the forward run, x and y, and a backward pass, or a large weight's cotangent if more."""
    tape, program, limit = problem.tape, problem.program(x), problem.budget.memory
    turn = max((recipe.like.nbytes for recipe in tape.values.recipes.values()), default=0)
    probe, count = program.bytes_per_probe(), _ALONG.get(mode, DOT_TESTS)
    sizes = problem.value(x).nbytes, problem.value(problem.y).nbytes
    ends = sum(size * (_ENDS + _EACH * directions_within(size, count, limit)) for size in sizes)
    chunk = probe * Budget(limit, jobs).chunk(probe, program.worth)
    back = _backward([step for _, step in program.steps], tape.values)
    return problem.held + max(float(turn), back + _RUN * jobs * chunk) + ends


def _backward(steps: Sequence[Step], values: TapeValues) -> float:
    """Bytes of a backward pass through some steps."""

    def made(*, linear: bool) -> float:
        here = [step for step in steps if bool(linear_groups(step)) is linear]
        return float(Owned().add(values.like(n) for step in here for n in step.node.outputs if n in values))

    return _LINEAR * made(linear=True) + _OTHER * made(linear=False)


def largest(point: Point, limit: int) -> float:
    """Bytes beside the model that any pair at a point may take, known before there are pairs.

    They include whole Jacobians of all float inputs and all outputs, as far as the memory limit lets them grow.
    """
    values, steps = point.tape.values, point.tape.steps
    made = {name: values.like(name) for step in steps for name in step.node.outputs if name in values}
    read = {name for step in steps for name in step.operands}
    rows = sum(x.size for x in point.feeds.values() if is_inexact_array(x))
    columns = sum(y.size for name, y in made.items() if name not in read)
    run = sum(y.nbytes for y in made.values())
    return (1.0 + _RUN) * run + _backward(steps, values) + min(HELD * rows * columns, limit)
