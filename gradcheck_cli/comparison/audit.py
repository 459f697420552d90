"""Where the two numerical sides part ways: the first step through which a complex step and a real one disagree."""

from __future__ import annotations

import numpy as np

from gradcheck_cli.comparison.numeric import Numeric
from gradcheck_cli.graph import Array, is_inexact
from gradcheck_cli.jacobians.jacobian import by_complex_step, by_ladder, forward_noise
from gradcheck_cli.program import Program
from gradcheck_cli.stencil import ALL_RUNGS
from gradcheck_cli.step import Step

_LONGEST = 2000  # steps of a tape that are looked through
_CLEAR = 1e-6  # of a result's largest slope: less is no disagreement


def dispute_note(numeric: Numeric) -> tuple[str, ...]:
    """What is to be said where the complex step and real differences contradict each other."""
    rows = np.flatnonzero(numeric.disputed)
    if not len(rows):
        return ()
    step = first_disagreement(numeric, rows[:1])
    first = f", first at {step.where}" if step is not None else ""
    count = f"{len(rows)} row{'s'[: len(rows) != 1]}"
    return (f"the complex step and real differences contradict each other in {count}{first}: neither counts",)


def first_disagreement(numeric: Numeric, rows: Array) -> Step | None:
    """The first step whose result has one slope by the complex step and another one by the ladder."""
    program = numeric.program
    if len(program.steps) > _LONGEST:
        return None
    for _, step in program.steps:
        for name in step.node.outputs:
            if name in program.reached and is_inexact(program.tape.values[name].dtype) and _parts(numeric, name, rows):
                return step
    return None


def _parts(numeric: Numeric, name: str, rows: Array) -> bool:
    before = Program(numeric.program.tape, numeric.program.probes, [name])
    part, budget = numeric.directions.part(rows), numeric.job.budget
    exact = by_complex_step(before, part, budget)
    ladder = by_ladder(before, part, ALL_RUNGS, forward_noise(before), budget).estimate
    clear = 8 * ladder.error + _CLEAR * np.max(np.abs(exact), initial=0.0)
    return bool((np.abs(exact - ladder.value) > clear).any())
