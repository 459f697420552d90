"""The ladder from larger steps on, for rows that rounding left open.

Steps go by the size of an entry of x, so that no function of it is left behind; where they are small, rounding hides
what there is to see.  Steps by the size of the whole tensor may see it, if the small ones, as far as they see, agree.
"""

from __future__ import annotations

import numpy as np

from gradcheck_cli.engine.chunks import Budget
from gradcheck_cli.engine.program import Program
from gradcheck_cli.graph import Array
from gradcheck_cli.jacobian.directions import Directions
from gradcheck_cli.jacobian.jacobian import by_steps
from gradcheck_cli.jacobian.rows import Rows
from gradcheck_cli.verdict.differences import CHEAP_RUNGS, rms, rung, scales

_STEPS = 8
_COARSEST, _FINEST = 0, CHEAP_RUNGS[-2]  # rungs: the first by the size of the tensor, the last by the entry's


def wider_ladder(program: Program, directions: Directions, noise: Array, budget: Budget) -> Rows:
    """Rows by Richardson's extrapolation, from steps by the size of the tensor down to those by the size of an entry."""
    size = scales(directions.here)
    own = size[directions.rows] if directions.given is None else np.full(directions.count, rms(size))
    ratio = rung(_FINEST) / rung(_COARSEST) * np.minimum(own / rms(size), 1.0)  # of the finest step to the coarsest
    coarsest = rung(_FINEST) / ratio
    steps = [directions.representable(coarsest * ratio ** (i / (_STEPS - 1))) for i in range(_STEPS)]
    steps.append(directions.representable(rung(CHEAP_RUNGS[-1])))  # the sentinel against aliasing
    return by_steps(program, directions, np.stack(steps), noise, budget)
