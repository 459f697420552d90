"""TensorFlow's own way to compare, for continuity: one central difference, no verdict but tolerances.

The numbers are those of `compute_gradient`, to the bit.  Nothing is known of the error of a difference with a fixed
step: a kink, rounding or curvature fails a check here as it did there.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gradcheck_cli.autodiff.tape import Tape
from gradcheck_cli.compare.pair import Found, Job
from gradcheck_cli.engine.chunks import Budget
from gradcheck_cli.engine.program import Program
from gradcheck_cli.errors import UsageError
from gradcheck_cli.graph import Array
from gradcheck_cli.jacobian.directions import Directions, reals
from gradcheck_cli.jacobian.jacobian import Backward, by_differences
from gradcheck_cli.settings import ANY, Settings
from gradcheck_cli.verdict.differences import CENTRAL
from gradcheck_cli.verdict.rule import Comparison, Status

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
    here = program.tape.values[program.probes[0]]
    if here.size and not np.all((here + delta != here) & (here - delta != here)):
        with np.errstate(over="ignore"):  # beside the largest number there is infinity
            least = float(np.max(np.spacing(np.abs(here))))
        raise UsageError(
            f"delta={delta:g} is too small to resolve: {x!r} + delta equals {x!r} in {here.dtype}. "
            f"At least {least:.1g} is needed here."
        )
    directions = Directions(here, range(reals(here)))
    theoretical = Backward(tape, tape.named[y].name, [tape.named[x].name]).jacobians(budget)[0]
    return theoretical, by_differences(program, directions, CENTRAL, directions.fixed(delta), budget)[0]


def compare_as_tensorflow(tape: Tape, program: Program, x: str, y: str, job: Job) -> Found:
    """Every entry passes whose difference is at most atol + rtol |numerical|, and fails otherwise."""
    tolerance, delta = job.tolerance, DELTA if job.delta is None else job.delta
    theoretical, numerical = jacobians(tape, program, x, y, delta, job.budget)
    with np.errstate(invalid="ignore"):
        passed = np.abs(theoretical - numerical) <= tolerance.atol + tolerance.rtol * np.abs(numerical)
    status = np.where(passed, Status.PASS, Status.FAIL).astype(np.int8)
    note = f"as in TensorFlow: delta {delta:g}, |difference| <= {tolerance.atol:g} + {tolerance.rtol:g} |numerical|"
    return Found(Comparison(theoretical, numerical, np.zeros(numerical.shape), status), "central", (note,))
