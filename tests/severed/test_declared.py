"""Operators without a derivative declare the operands for which their rules give none, in every case of each."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest

from gradcheck_cli.autodiff.backward import gradients
from gradcheck_cli.errors import GradcheckError
from gradcheck_cli.graph import is_inexact
from gradcheck_cli.op import zero
from gradcheck_cli.ops import OPS
from tests.ops.case import Case, Chain
from tests.ops.cases import CASES

NOT_CONNECTED = {("com.microsoft", "ZeroGradient", 0)}  # operands that nothing reads
BY_SCALE = {"DynamicQuantizeLinear", "DynamicQuantizeMatMul", "DynamicQuantizeLSTM"}  # a gradient flows to the scale
BODIES = {"If", "Loop", "Scan", "SequenceMap"}  # judged by what is inside


def flows(case: Case) -> dict[tuple[int, int], bool]:
    """By float operand and float result: a cotangent comes from the one to the other."""
    tape, found = case.tape(), dict[tuple[int, int], bool]()
    for j, output in enumerate(case.outputs):
        y = tape.named.get(output)
        for i, name in enumerate(case.names):
            x = tape.named.get(name)
            if y is None or x is None or not is_inexact(y.dtype) or not is_inexact(x.dtype):
                continue
            ct = tape.constant(np.ones(y.shape, y.dtype))
            found[i, j] = gradients(tape, {y.name: ct}, [x.name])[0] is not None
    return found


@pytest.mark.slow
def test_operands_without_a_derivative_are_those_that_are_declared() -> None:
    alive, declared = defaultdict[tuple[str, str, int], bool](bool), defaultdict[tuple[str, str, int], bool](bool)
    untrue = set[tuple[str, str, int]]()  # declared of a case in which a cotangent comes all the same
    for case in CASES:
        op = OPS[case.domain, case.op]
        if isinstance(case, Chain) or op.vjp is zero or case.op in BODIES:
            continue
        try:
            found = flows(case)
        except (GradcheckError, ImportError):
            continue
        for (i, j), flowing in found.items():
            cut = bool(op.cut(case.attrs, i, j))
            alive[*op.key, i] |= flowing
            declared[*op.key, i] |= cut
            untrue |= {(*op.key, i)} if cut and flowing and case.op not in BY_SCALE else set()
    assert len(alive) > 400
    assert {key for key, flowing in alive.items() if not flowing and not declared[key]} == NOT_CONNECTED
    assert untrue == set()
