"""What a check holds at its fullest moment, estimated from the forward run: what does not fit is done in another way.

What the interpreter takes is not in it.  Of all modes the estimate is for one pair: the model, the forward run, a backward
pass, a chunk of probes on each thread, directions of x, and in a full comparison both Jacobians.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gradcheck_cli.autodiff.step import Step
from gradcheck_cli.autodiff.weights import Values
from gradcheck_cli.checks.sides import Sides
from gradcheck_cli.compare.partial import DOT_TESTS, PROJECTIONS, directions_within
from gradcheck_cli.engine.chunks import Budget
from gradcheck_cli.errors import LimitError
from gradcheck_cli.graph import Graph, is_inexact
from gradcheck_cli.graph.memory import generous, owned, spell
from gradcheck_cli.jacobian.cost import HELD
from gradcheck_cli.jacobian.directions import reals
from gradcheck_cli.points.point import Point

FREE = 256 << 20  # bytes that any machine has: a check that takes less is never refused
_LINEAR, _OTHER = 1.5, 4.0  # bytes of a backward pass for each that a step made: rules of others need more products
_AT_MOST = 32.0  # times what the tape holds, for each thread
_RUN = 2.5  # and of a run for a chunk of probes: what kernels hold in between, what malloc keeps for each thread
_ENDS, _EACH = 4.0, 2.0  # times x and y: what any mode makes of them, and what each direction adds to that
_ALONG = {"directional": PROJECTIONS, "nodes": 4}  # directions that a pair, or a node, is compared along; or dot tests


def needed(sides: Sides, x: str, graph: Graph, mode: str, jobs: int) -> float:
    """Bytes that a pair takes in a mode on so many threads, the model among them."""
    weights = sum(v.nbytes for v in graph.constants.values())
    jacobians = HELD * reals(sides.value(x)) * reals(sides.value(sides.y)) if mode == "full" else 0
    if jacobians == 0 and weights + _AT_MOST * jobs * sides.held <= FREE:  # seen without a look at each step
        return float(weights + sides.held)
    return weights + working(sides, x, mode, jobs) + jacobians


def threads(sides: Sides, x: str, graph: Graph, mode: str) -> int:
    """On how many threads a pair fits the memory limit in a mode: all, one, or none."""
    most = max(sides.settings.memory_limit, FREE)
    each = dict.fromkeys((sides.settings.jobs, 1))
    return next((jobs for jobs in each if needed(sides, x, graph, mode, jobs) <= most), 0)


def beyond(sides: Sides, x: str, graph: Graph, mode: str) -> LimitError:
    """The error for a pair that takes more than the memory limit, whichever way: with the limit that is needed."""
    weights, size = sum(v.nbytes for v in graph.constants.values()), needed(sides, x, graph, mode, 1)
    of = f", {spell(weights)} of it for the model's weights" if weights > FREE else ""
    return LimitError(
        f"d {sides.y}/d {x} takes about {spell(size)}{of}; --memory-limit is {spell(sides.settings.memory_limit)}.  "
        f"--memory-limit {generous(size)} allows it; smaller sizes (--x-shape, --dim) need less",
        code="GC602",
    )


def working(sides: Sides, x: str, mode: str, jobs: int) -> float:
    """Bytes beside the model: the forward run, and whichever is more of a backward pass and a large weight's cotangent."""
    tape, program, settings = sides.tape, sides.program(x), sides.settings
    turn = max((recipe.like.nbytes for recipe in tape.values.recipes.values()), default=0)
    probe, limit, count = program.bytes_per_probe(), settings.memory_limit, _ALONG.get(mode, DOT_TESTS)
    sizes = sides.value(x).nbytes, sides.value(sides.y).nbytes
    ends = sum(size * (_ENDS + _EACH * directions_within(size, count, limit)) for size in sizes)
    chunk = probe * Budget(limit, jobs).chunk(probe, program.worth)
    back = _backward([step for _, step in program.steps], tape.values)
    return sides.held + max(float(turn), back + _RUN * jobs * chunk) + ends


def _backward(steps: Sequence[Step], values: Values) -> float:
    """Bytes of a backward pass through some steps."""

    def made(*, linear: bool) -> float:
        here = [step for step in steps if bool(step.op.linear) is linear]
        return float(owned(values.like(n) for step in here for n in step.node.outputs if n in values))

    return _LINEAR * made(linear=True) + _OTHER * made(linear=False)


def largest(point: Point, limit: int) -> float:
    """Bytes beside the model that any pair at a point may take, known before there are pairs: whole Jacobians are in
    it, of all that floats in and all that comes out, as far as the memory limit lets them grow."""
    values, steps = point.tape.values, point.tape.steps
    made = {name: values.like(name) for step in steps for name in step.node.outputs if name in values}
    read = {name for step in steps for name in step.operands}
    rows = sum(x.size for x in point.feeds.values() if isinstance(x, np.ndarray) and is_inexact(x.dtype))
    columns = sum(y.size for name, y in made.items() if name not in read)
    run = sum(y.nbytes for y in made.values())
    return (1.0 + _RUN) * run + _backward(steps, values) + min(HELD * rows * columns, limit)
