"""What probing a single entry of x costs, where it reaches little of the model: a few are followed, and counted."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from gradcheck_cli.errors import GradcheckError
from gradcheck_cli.jacobians import units
from gradcheck_cli.jacobians.cost import SOON, forward_work, step_work
from gradcheck_cli.lift import Ragged
from gradcheck_cli.program import Program
from gradcheck_cli.regions.patch import Crowded, Patch, Stack
from gradcheck_cli.tangents import Pushforward
from gradcheck_cli.weights import Values

_FOLLOWED = 4  # entries
_STEP = 1e4  # operations that a step counts as for each probe, however little it computes
_LARGE = 32  # bytes of a whole stack for an entry that patches may hold, as when all entries are probed
_UNKNOWN = (
    Crowded,
    Ragged,
    GradcheckError,
    ValueError,
    LookupError,
    TypeError,
    ArithmeticError,
    RuntimeError,
    MemoryError,
)


def probe_work(program: Program) -> float:
    """Operations of a probe of one entry of x: of the whole run where it reaches all, or nobody can tell soon."""
    whole = forward_work(program)
    x = program.tape.values[program.probes[0]]
    if not program.analytic or x.size < _FOLLOWED or 2 * _FOLLOWED * whole > SOON:
        return whole
    try:
        return min(whole, _followed(program, x.size))
    except _UNKNOWN:
        return whole


def _followed(program: Program, size: int) -> float:
    """The same of some entries, from the first of x to the last."""
    (x,), values = program.probes, program.tape.values
    room = units.Room(0, _FOLLOWED * program.bytes_per_probe() // _LARGE)
    live: dict[str, Stack] = {x: units.tangents(values[x], np.linspace(0, size - 1, _FOLLOWED).astype(int), room)}
    pushforward, work = Pushforward(program.tape), 0.0
    with np.errstate(all="ignore"):
        for position, (index, step) in enumerate(program.steps):
            try:
                made = pushforward.through(index, step, live, None)
            except Crowded:  # from here on probes are whole
                return work + sum(step_work(program.tape, rest) for _, rest in program.steps[position:])
            given = {n: live[n] for n in step.operands if n in live}
            shares = [
                _share(given, values),
                _share(made, values),
            ]  # a sum costs as much as it reads, a product as it makes
            reads = max((values.like(n).size for n in step.operands if n), default=0) > sum(
                values[n].size for n in made
            )
            work += _STEP + shares[0 if reads else 1] * step_work(program.tape, step)
            live.update(made)
            for name in program.dies.get(position, ()):
                live.pop(name, None)
    return work


def _share(stacks: Mapping[str, Stack], values: Values) -> float:
    """The share of its tensor that each probe holds, the largest of some."""
    held = {n: (t.values if isinstance(t, Patch) else t).size / _FOLLOWED for n, t in stacks.items()}
    return max((size / max(values[n].size, 1) for n, size in held.items()), default=0.0)
