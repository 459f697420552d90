"""The rules of all operators keep the laws that hold for every gradient: no right rule breaks one."""

from __future__ import annotations

import numpy as np
import pytest

from gradcheck_cli.autodiff.backward import inexact
from gradcheck_cli.checks.diagnose.laws import Laws
from gradcheck_cli.compare.pair import Theory
from gradcheck_cli.engine.chunks import Budget
from gradcheck_cli.engine.program import Program
from gradcheck_cli.jacobian.directions import Directions, reals
from gradcheck_cli.jacobian.jacobian import Backward, by_complex_step
from gradcheck_cli.verdict.rule import Comparison, Tolerance
from tests.ops.case import Case
from tests.ops.cases import CASES


@pytest.mark.one_in(20)
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.id)
def test_no_rule_breaks_a_law(case: Case) -> None:
    tape, budget = case.tape(), Budget()
    for y in (tape.named[name].name for name in case.outputs if inexact(tape.named[name])):
        backward = Backward(tape, y, case.floats())
        jacobians = backward.jacobians(budget)
        theories = [Theory(each, lambda each=each: np.zeros(each.shape)) for each in jacobians]
        laws = Laws(backward, theories, 0, budget)
        for position, x in enumerate(case.floats()):
            program, every = Program(tape, [x], [y]), Directions(tape.values[x], range(reals(tape.values[x])))
            theoretical = jacobians[position]
            numerical = by_complex_step(program, every, budget) if program.analytic else theoretical
            zeros = np.zeros(theoretical.shape)
            agreed = Comparison(theoretical, numerical, zeros, zeros.astype(np.int8))
            with np.errstate(all="ignore"):  # infinity less infinity is not finite, which tells nothing
                assert laws.broken(position, program, agreed, Tolerance()) == []
