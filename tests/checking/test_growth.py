"""The work for a pair does not grow with the number of other pairs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import gradcheck_cli as gc
from benchmarks import growth

FEW, MANY = 50, 300  # a sum of more than 32 is one of sums in both


def calls(model: gc.Model, **settings: Any) -> int:
    """Calls of Python functions that a check makes; a generator counts for each of its items."""
    count = 0

    def counting(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event == "call"

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
