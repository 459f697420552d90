"""The complex step held against real differences on a few rows, and where in a model the two part ways."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from gradcheck_cli.autodiff.tape import Step
from gradcheck_cli.engine.chunks import any_of
from gradcheck_cli.engine.program import Program
from gradcheck_cli.errors import counted
from gradcheck_cli.graph import Array, is_inexact
from gradcheck_cli.jacobian.directions import flat
from gradcheck_cli.jacobian.jacobian import by_complex_step, by_differences, by_ladder, forward_noise
from gradcheck_cli.verdict.differences import ALL_RUNGS, CENTRAL, CHEAP_RUNGS, blocks, rung
from gradcheck_cli.verdict.rule import HUGE, Ground, Status, allowance, magnitude

if TYPE_CHECKING:  # whose audit this is
    from gradcheck_cli.compare.ladder import Numeric

AUDITED = 2  # rows that real differences are asked about though the complex step passes them
_GLANCES = (CHEAP_RUNGS[-1], 4, 5)  # steps of the ladder that may do for all of it: a fine one, two to extrapolate
_CLOSE = 0.125  # of what the tolerance allows for: what a difference confirms as well as that, no ladder denies
_LONGEST = 2000  # steps of a tape that are looked through
_CLEAR = 1e-6  # of a result's largest slope: less is no disagreement


def audited(numeric: Numeric, value: Array, ground: Ground, status: Array) -> Array | None:
    """Passed entries that the ladder contradicts; None where it does so in none of the few rows it is asked about."""
    count = numeric.directions.count
    if _declared(numeric.program):
        return None
    number = min(1 if numeric.mixed else AUDITED, count)  # a random direction is one of all entries
    rows = np.sort(np.random.default_rng(count).choice(count, number, replace=False))
    rows = rows[_unsettled(numeric, rows, value, ground)]
    for ks in (CHEAP_RUNGS, ALL_RUNGS):
        rows = rows[_disputes(numeric, rows, ks, value, ground, status).any(axis=1)]
    if not len(rows):
        return None
    wrong = _disputes(numeric, np.arange(count), ALL_RUNGS, value, ground, status)
    numeric.disputed |= wrong.any(axis=1)
    return wrong


def _declared(program: Program) -> bool:
    """x reaches such as the scales of a Resize: no derivative by declaration, whatever differences see."""
    values = program.tape.values
    return any(n in program.reached and is_inexact(values[n].dtype) for _, s in program.steps for n in s.statics)


def _unsettled(numeric: Numeric, rows: Array, value: Array, ground: Ground) -> Array:
    """Rows that differences at a few steps of the ladder do not settle.

    One that agrees says all: two methods so unlike do not meet by chance.  So does one extrapolated from coarse steps,
    which rounds far less than a fine one.  Where the finest probes of the ladder cross a branch, it would tell nothing.
    """
    if not len(rows):
        return np.zeros(0, bool)
    part, exact, tolerance = numeric.directions.part(rows), value[rows], numeric.job.tolerance
    steps = [part.representable(rung(k)) for k in _GLANCES]  # in one stack where that is small, else one by one

    def confirmed(quotients: Array) -> Array:
        seen = numeric.projected(quotients, rows)
        near = _CLOSE * allowance(magnitude(exact, seen), ground.at(rows), tolerance)
        return (np.abs(seen - exact) <= near).all(axis=1)

    differences = by_differences(numeric.program, part, CENTRAL, steps, numeric.job.budget)
    fine, crossed = next(differences)
    with np.errstate(invalid="ignore"):
        settled = any_of(crossed, len(rows)) | confirmed(fine)
        if settled.all():
            return ~settled
        (coarse, _), (middle, _) = differences
        return ~(settled | confirmed(middle + (middle - coarse) / ((steps[1] / steps[2])[:, None] ** 2 - 1)))


def _disputes(numeric: Numeric, rows: Array, ks: Sequence[int], value: Array, ground: Ground, status: Array) -> Array:
    """Passed entries of some rows that the ladder contradicts."""
    if not len(rows):
        return np.zeros((0, value.shape[1]), bool)
    ladder = numeric.estimated(numeric.ladder(rows, ks).estimate, rows)
    return numeric.contradicted(value[rows], 0.0, ladder, ground.at(rows)) & (status[rows] == Status.PASS)


def all_tame(program: Program) -> bool:
    """True if no product with a number on the way from x to y overflows or underflows."""
    values = program.tape.values
    made = (n for _, step in program.steps for n in step.node.outputs if n and is_inexact(values.like(n).dtype))
    return all(is_tame(flat(values[n])) for n in made)


def is_tame(x: Array) -> bool:
    """True if no product with an entry overflows or underflows."""
    sizes = (np.abs(x[some]) for some in blocks(x.size, 1))
    return all(bool(((size == 0) | ((size > 1 / HUGE) & (size < HUGE))).all()) for size in sizes)


def dispute_note(numeric: Numeric) -> tuple[str, ...]:
    """A note for a comparison where the complex step and real differences contradict each other."""
    rows = np.flatnonzero(numeric.disputed)
    if not len(rows):
        return ()
    step = first_disagreement(numeric, rows[:1])
    first = f", first at {step.where}" if step is not None else ""
    count = counted(len(rows), "row")
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
