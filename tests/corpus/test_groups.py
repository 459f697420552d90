"""Every case of every operator, right and wrong, by every method: rows probed in groups change no status."""

from __future__ import annotations

import numpy as np
import pytest

from gradcheck_cli.engine.program import Program
from gradcheck_cli.op import Op
from gradcheck_cli.settings import Method
from tests.checking.test_coloring import METHODS, assert_alike, every_operator, programs

_MOST = 10  # programs of an operator


def spread_out(programs: list[Program], most: int) -> list[Program]:
    """Some of the programs, spread over all."""
    return programs[:: -(-len(programs) // most)] if programs else []


@pytest.mark.slow
@every_operator
@pytest.mark.parametrize("method", METHODS)
def test_every_status_of_every_case_is_the_same_without_groups(op: Op, method: Method) -> None:
    with np.errstate(all="ignore"):
        for program in spread_out(list(programs(op)), _MOST):
            assert_alike(program, method)
