"""Tied entries may share out a derivative as they like, but give all of it together: in every mode, for every selection."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gradcheck_cli as gc
from tests.corpus.conventions import RIGHT, SELECTIONS, WRONG, Selection, with_convention

MODES = ["full", "nodes", "directional", "sampled"]
each = pytest.mark.parametrize("name", SELECTIONS)
in_every_mode = pytest.mark.parametrize("mode", MODES)


def statuses(chosen: Selection, mode: str, ops: Any = gc.OPS) -> set[str]:
    """Status of y by every x."""
    report = gc.check(chosen.model, [*chosen.values], "y", x_init_value=dict(chosen.values), mode=mode, ops=ops)
    return {check.status for check in report.checks}


@pytest.mark.one_in(3)
@each
@in_every_mode
def test_our_own_rule_passes_at_a_tie(name: str, mode: str) -> None:
    assert statuses(SELECTIONS[name], mode) == {"pass"}


@pytest.mark.one_in(8)
@each
@in_every_mode
@pytest.mark.parametrize("convention", RIGHT)
def test_every_way_to_share_a_derivative_out_passes(name: str, mode: str, convention: str) -> None:
    chosen = SELECTIONS[name]
    assert statuses(chosen, mode, with_convention(chosen, RIGHT[convention])) == {"pass"}


@pytest.mark.one_in(8)
@each
@in_every_mode
@pytest.mark.parametrize("convention", WRONG)
def test_what_does_not_add_up_to_the_derivative_fails(name: str, mode: str, convention: str) -> None:
    chosen = SELECTIONS[name]
    assert "fail" in statuses(chosen, mode, with_convention(chosen, WRONG[convention]))


SPEC = """
gradcheck: 1
ops:
  acme.Max:
    inputs: [x]
    outputs: [y]
    forward: |
      y = ReduceMax <keepdims = 0> (x)
    gradient: |
      m = ReduceMax <keepdims = 1> (x)
      hit = Equal (x, m)
      one = Cast <to = 11> (hit)
      n = ReduceSum <keepdims = 1> (one)
      dx = {dx}
graphs:
  net:
    inputs: {{x: {{shape: [4], dtype: float64}}}}
    nodes: |
      a = acme.Max (x)
      loss = Sin (a)
    outputs: [loss]
checks:
  - {{name: tie/x, graph: net, x: x, y: loss}}
"""
GRADIENTS = {
    "evenly": ("Div (both, n)\n      both = Mul (dy, one)", "pass"),
    "all": ("Mul (dy, one)", "fail"),
    "none": ("Mul (nothing, one)\n      nothing = Sub (dy, dy)", "fail"),
}


@in_every_mode
@pytest.mark.parametrize("convention", GRADIENTS)
def test_a_gradient_of_a_spec_is_judged_as_a_whole_too(tmp_path: Any, convention: str, mode: str) -> None:
    body, wanted = GRADIENTS[convention]
    first, *rest = body.split("\n      ")
    text = SPEC.format(dx=first)
    for line in rest:  # what it reads stands before it
        text = text.replace("      dx =", f"      {line}\n      dx =")
    path = tmp_path / "tie.gradcheck.yaml"
    path.write_text(text, "utf-8")
    value = {"x": np.array([1.0, 1.0, 0.5, 0.0])}
    [record] = gc.check(gc.load(path), "x", "loss", x_init_value=value, mode=mode).checks
    assert record.status == wanted


def test_gradients_of_others_are_judged_as_a_whole_too() -> None:
    chosen = SELECTIONS["ReduceMax of two"]
    slope = 1.5 * np.cos(0.75)
    for weights, wanted in (([0.5, 0.5, 0, 0], "pass"), ([1, 1, 0, 0], "fail"), ([0, 0, 0, 0], "fail")):
        for mode in ("full", "directional"):
            report = gc.check(chosen.model, ["x"], "y", x_init_value=dict(chosen.values), mode=mode,
                              grad={"x": slope * np.array(weights, float)})  # fmt: skip
            [record] = [check for check in report.checks if check.claim]
            assert record.status == wanted, (weights, mode)
