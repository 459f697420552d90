"""What a check holds at its fullest moment, estimated from the forward run: what does not fit is refused before it starts.

The Jacobians of a full comparison are not in it (see `jacobians/cost.py`), nor is what the interpreter takes.
"""

from __future__ import annotations

from gradcheck_cli.checks.sides import Sides
from gradcheck_cli.errors import LimitError
from gradcheck_cli.graph import Graph
from gradcheck_cli.memory import owned, spell

FREE = 256 << 20  # bytes that any machine has: a check that takes less is never refused
_BACKWARD = 1.5  # bytes of a backward pass, for each that was computed on the way
_AT_MOST = 8.0  # times what the tape holds, for each thread
_RUN = 2.0  # and of a run for a probe, beside what it holds: what kernels hold in between


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
    tape, program, jobs = sides.tape, sides.program(x), sides.settings.jobs
    made = owned(tape.values[n] for _, step in program.steps for n in step.node.outputs if n in tape.values)
    turn = max((recipe.like.nbytes for recipe in tape.values.recipes.values()), default=0)
    return sides.held + max(float(turn), _BACKWARD * made + _RUN * jobs * program.bytes_per_probe())


def _generous(size: float) -> str:
    return f"{-(-int(1.1 * size) >> 30)}GiB"
