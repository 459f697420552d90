"""Sparsity patterns: sets of indices sent through every operator hold all that its Jacobian holds."""

from __future__ import annotations

import numpy as np
import pytest

from gradcheck_cli.autodiff.backward import inexact
from gradcheck_cli.autodiff.tape import Tape
from gradcheck_cli.autodiff.trace import trace
from gradcheck_cli.engine.chunks import Budget
from gradcheck_cli.engine.program import Program
from gradcheck_cli.jacobian.coloring import Pattern, pattern
from gradcheck_cli.jacobian.directions import Directions, reals, taken
from gradcheck_cli.jacobian.jacobian import by_complex_step, by_differences
from gradcheck_cli.op import Op
from gradcheck_cli.ops import OPS
from gradcheck_cli.verdict.differences import CENTRAL
from tests.ops.case import Case
from tests.ops.cases import CASES

every_case = pytest.mark.parametrize("case", CASES, ids=lambda c: c.id)


def programs(case: Case, tape: Tape) -> list[Program]:
    """Programs from each float input to each float output."""
    outputs = [tape.named[y].name for y in case.outputs if inexact(tape.named[y])]
    return [Program(tape, [x], [y]) for y in outputs for x in case.floats()]


def matrix(found: Pattern) -> np.ndarray:
    """A pattern as booleans `(rows, columns)`."""
    whole = np.zeros((found.rows, found.columns), bool)
    for block, rows, columns in found.blocks():
        whole[rows + block.start, columns] = True
    return whole


def nonzero(program: Program, h: float) -> np.ndarray:
    """Entries of the Jacobian that differences with a step h show to be other than zero, on one branch of y."""
    x = program.x
    directions = Directions(x, range(reals(x)))
    steps = np.full(directions.count, h)
    [(found, crossed)] = by_differences(program, directions, CENTRAL, [steps], Budget())
    across = np.logical_or.reduce([np.zeros(directions.count, bool), *crossed.values()])
    return np.isfinite(found) & (found != 0) & ~across[:, None]


@pytest.mark.one_in(20)
@every_case
def test_a_pattern_holds_every_entry_that_differs_from_zero(case: Case) -> None:
    for program in programs(case, case.tape()):
        inside = matrix(pattern(program, Budget()))
        for h in (1e-6, 1e-3, 0.3):
            assert not (nonzero(program, h) & ~inside).any()
        if program.analytic:
            x = program.x
            exact = by_complex_step(program, Directions(x, range(reals(x))), Budget())
            assert not ((exact != 0) & ~inside).any()


@pytest.mark.one_in(20)
@every_case
def test_a_pattern_holds_at_every_point_of_the_same_branches(case: Case) -> None:
    tape, rng = case.tape(), np.random.default_rng(3)
    moved = {n: x * rng.uniform(0.9, 1.1, x.shape) if n in case.floats() else x for n, x in case.feeds.items()}
    elsewhere = trace(case.graph, moved, ops=OPS)
    stacks = {n: elsewhere.values[n][None] for n in case.floats()}
    for program, other in zip(programs(case, tape), programs(case, elsewhere), strict=True):
        together = Program(tape, list(stacks), program.outputs)
        if other.analytic and not together.run(stacks, branches=True).any_crossed(1)[0]:
            x = other.x
            exact = by_complex_step(other, Directions(x, range(reals(x))), Budget())
            assert not ((exact != 0) & ~matrix(pattern(program, Budget()))).any()


@pytest.mark.one_in(20, of="op")
@every_case
def test_a_row_that_nothing_takes_moves_nothing(case: Case) -> None:
    for program in programs(case, case.tape()):
        reached = taken(program)
        for h in (1e-6, 0.3) if reached is not None else ():
            assert not (nonzero(program, h).any(axis=1) & ~reached).any()


LOOSE = {  # linear operators whose sets are larger than what they read
    "CumSum": "all of the axis, not what lies before",
    "DFT": "a real spectrum has entries without an imaginary part",
    "Einsum": "a diagonal is not told from its matrix",
    "ScatterElements": "data that is written over is not told from what stays",
    "ScatterND": "data that is written over is not told from what stays",
}


@pytest.mark.parametrize("op", [op for op in OPS.values() if op.sparsity and op.linear and op.name not in LOOSE],
                         ids=lambda op: f"{op.domain} {op.name}".strip())  # fmt: skip
def test_a_pattern_holds_nothing_else(op: Op) -> None:
    cases = [case for case in CASES if (case.domain, case.op) == op.key]
    for program in [program for case in cases for program in programs(case, case.tape())]:
        filters = "Conv" in op.name and program.probes[0] == "x1"  # all places count, though some lie in the padding
        if program.analytic and not filters:
            x = program.x
            exact = by_complex_step(program, Directions(x, range(reals(x))), Budget())
            np.testing.assert_array_equal(matrix(pattern(program, Budget())), exact != 0)
