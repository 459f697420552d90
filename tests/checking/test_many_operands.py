"""A sum of many operands is one of sums: what one of them moves is added to few others, not to all of them."""

from __future__ import annotations

import math

import numpy as np
import pytest

import gradcheck_cli as gc
from gradcheck_cli.autodiff.trace import trace
from gradcheck_cli.engine.program import Program
from tests.checking.small import check, model, scaled, with_rule

COUNTS = [2, 32, 33, 64, 65, 1024, 1025, 2100]


def added(count: int, **more: tuple[int, ...]) -> gc.Model:
    """x times each of many numbers, added up."""
    nodes = [("Mul", f"x c{i}", f"a{i}") for i in range(count)]
    constants = {f"c{i}": np.float64(math.sin(i)) for i in range(count)}
    return model(*nodes, ("Sum", " ".join(f"a{i}" for i in range(count)), "y"), constants=constants, **more)


@pytest.mark.parametrize("count", COUNTS)
def test_no_step_adds_more_than_some_and_all_are_added(count: int) -> None:
    graph, x = added(count).graph, np.array([1.0, -2.0, 1e-9, 3e7])
    tape = trace(graph, {"x": x}, ops=gc.OPS)
    sums = [step for step in tape.steps if step.op.name == "Sum"]
    assert max(len(step.operands) for step in sums) == min(count, 32)
    assert sums[-1].outputs == ("y",)
    assert {step.place.origin for step in sums} == {count}
    every = [[entry * math.sin(i) for i in range(count)] for entry in x]
    bounds = [1e-15 * count * math.fsum(map(abs, each)) for each in every]
    assert (np.abs(tape.values["y"] - [math.fsum(each) for each in every]) <= bounds).all()
    program = Program(tape, ["a0"], ["y"])
    assert len(program.steps) == math.ceil(math.log(count, 32) - 1e-9)


@pytest.mark.parametrize("mode", ["full", "nodes", "directional"])
@pytest.mark.parametrize("count", [33, 100])
def test_right_ones_pass_and_a_wrong_one_is_the_suspect(count: int, mode: str) -> None:
    assert check(added(count), mode=mode).status == "pass"
    wrong = check(added(count), mode=mode, ops=with_rule("Sum", scaled("Sum", 1.001)))
    assert (wrong.status, wrong.suspect and wrong.suspect.op) == ("fail", "Sum")
