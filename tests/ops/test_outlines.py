"""Outline rules: shapes and dtypes without numbers are those of the numbers, for every operator in every case."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gradcheck_cli.autodiff.outlined import OutlinedTape
from gradcheck_cli.autodiff.tape import Tape, quietly
from gradcheck_cli.op.batching import blank
from tests.ops.case import Case
from tests.ops.cases import CASES


def outlined(x: Any) -> Any:
    return x if x is None else blank(x.shape, x.dtype)


@pytest.mark.one_in(8, of="op")
@pytest.mark.parametrize("dtype", ["float64", "model"])
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.id)
def test_an_outline_has_the_shape_and_the_dtype_of_the_result(case: Case, dtype: str) -> None:
    tape = case.tape(dtype=dtype)
    for step in tape.steps:
        if step.op.outlined is not None:
            operands = [outlined(tape.values[n]) if n else None for n in step.operands]
            with quietly():
                made = step.op.outlined.forward(*operands, **step.metadata)
            for y, name in zip(made if step.op.many else (made,), step.outputs, strict=False):
                if name:
                    wanted = tape.values[name]
                    assert (y.shape, tape.widen(y.dtype)) == (wanted.shape, wanted.dtype), step.op.name


def shown(tape: Tape) -> list[Any]:
    """Steps, shapes and dtypes of a tape."""
    return [
        (s.node, [(tape.values.like(n).shape, tape.values.like(n).dtype) for n in s.outputs if n]) for s in tape.steps
    ]


@pytest.mark.one_in(8, of="op")
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.id)
def test_numbers_that_are_left_for_later_are_those_that_are_computed_at_once(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gradcheck_cli.autodiff.outlined._SMALL", -1)
    at_once, later = case.tape(), case.tape(on=OutlinedTape)
    assert shown(later) == shown(at_once)
    for name in at_once.values:
        np.testing.assert_array_equal(later.values[name], at_once.values[name])
