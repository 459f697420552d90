"""The work for a pair does not grow with the number of other pairs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import gradcheck_cli as gc
from benchmarks import growth
from tests.checking import small

FEW, MANY = 50, 300  # a sum of more than 32 is one of sums in both


def calls(model: gc.Model, of: str = "", **settings: Any) -> int:
    """Calls of Python functions, or of one, that a check makes; a generator counts for each of its items."""
    count = 0

    def counting(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event == "call" and of in ("", frame.f_code.co_name)

    before = sys.getprofile()
    sys.setprofile(counting)
    try:
        report = gc.check(model, forward="internal", jobs=1, **settings)
    finally:
        sys.setprofile(before)
    assert {check.status for check in report.checks} == {"pass"}
    return count


@pytest.mark.parametrize(
    ("build", "settings"), [(growth.outputs, {}), (growth.inputs, {}), (growth.parameters, {"params": True})]
)
def test_a_pair_among_many_takes_no_more_calls_than_one_among_few(
    build: Callable[[int], growth.Parts], settings: dict[str, Any], tmp_path: Path
) -> None:
    few, many = (calls(gc.load(growth.saved(build(n), tmp_path / "m.onnx")), **settings) / n for n in (FEW, MANY))
    assert many <= 1.1 * few


def test_the_slopes_of_what_several_outputs_share_are_computed_once(tmp_path: Path) -> None:
    """A trunk of nonlinear steps below a number of sums: other sums need no slopes of their own."""

    def slopes(count: int) -> int:
        sums = [("ReduceSum", "h8", f"y{i}") for i in range(count)]
        trunk = [("Tanh", f"h{i}" if i else "x", f"h{i + 1}") for i in range(8)]
        return calls(small.model(*trunk, *sums, x=(2, 3)), "_derivative", y=[f"y{i}" for i in range(count)])

    assert 0 < slopes(5) == slopes(1)
