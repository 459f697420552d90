"""What a check holds at its fullest moment, estimated from the forward run: what does not fit is refused before it starts.

What the interpreter takes is not in it, nor are the Jacobians of a full comparison (see `jacobians/cost.py`), but in
`largest`, by which a zoo decides what runs beside what.
"""

from __future__ import annotations

import numpy as np

from gradcheck_cli.checks.sides import Sides
from gradcheck_cli.errors import LimitError
from gradcheck_cli.graph import Graph, is_inexact
from gradcheck_cli.jacobians.cost import HELD
from gradcheck_cli.memory import owned, spell
from gradcheck_cli.points.point import Point
from gradcheck_cli.stack import Budget

FREE = 256 << 20  # bytes that any machine has: a check that takes less is never refused
_BACKWARD = 2.5  # bytes of a backward pass, for each that was computed on the way: too many rather than too few
_AT_MOST = 8.0  # times what the tape holds, for each thread
_RUN = 2.5  # and of a run for a chunk of probes: what kernels hold in between, what malloc keeps for each thread
_ENDS = 64.0  # times x and y: directions of the one, derivatives along them of the other, at several steps


def beyond(sides: Sides, x: str, graph: Graph) -> LimitError | None:
    """The error for a pair that would take more than the memory limit; None where it fits."""
    limit, weights = sides.settings.memory_limit, sum(v.nbytes for v in graph.constants.values())
    if weights + _AT_MOST * sides.settings.jobs * sides.held <= FREE:  # seen without a look at each step
        return None
    size = weights + working(sides, x)
    if size <= max(limit, FREE):
        return None
    of = f", {spell(weights)} of it for the model's weights" if weights > FREE else ""
    return LimitError(
        f"d {sides.y}/d {x} takes about {spell(size)}{of}; --memory-limit is {spell(limit)}.  "
        f"--memory-limit {_generous(size)} allows it; smaller sizes (--x-shape, --dim) need less",
        code="GC602",
    )


def working(sides: Sides, x: str) -> float:
    """Bytes beside the model: the forward run, and whichever is more of a backward pass and a large weight's cotangent."""
    tape, program, settings = sides.tape, sides.program(x), sides.settings
    made = owned(tape.values[n] for _, step in program.steps for n in step.node.outputs if n in tape.values)
    turn = max((recipe.like.nbytes for recipe in tape.values.recipes.values()), default=0)
    probe, ends = program.bytes_per_probe(), sides.value(x).nbytes + sides.value(sides.y).nbytes
    chunk = probe * Budget(settings.memory_limit, settings.jobs).chunk(probe, program.worth)
    return sides.held + max(float(turn), _BACKWARD * made + _RUN * settings.jobs * chunk) + _ENDS * ends


def largest(point: Point, limit: int) -> float:
    """Bytes beside the model that any pair at a point may take, known before there are pairs: whole Jacobians are in
    it, of all that floats in and all that comes out, as far as the memory limit lets them grow."""
    values, steps = point.tape.values, point.tape.steps
    made = {name: values.like(name) for step in steps for name in step.node.outputs if name in values}
    read = {name for step in steps for name in step.operands}
    rows = sum(x.size for x in point.feeds.values() if isinstance(x, np.ndarray) and is_inexact(x.dtype))
    columns = sum(y.size for name, y in made.items() if name not in read)
    run = sum(y.nbytes for y in made.values())
    return (1.0 + _BACKWARD + _RUN) * run + min(HELD * rows * columns, limit)


def _generous(size: float) -> str:
    return f"{-(-int(1.1 * size) >> 30)}GiB"
