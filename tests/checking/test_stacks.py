"""Small runs that share a stack: what each of them gives alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import gradcheck_cli as gc
from gradcheck_cli.autodiff.trace import trace
from gradcheck_cli.engine.chunks import Budget
from gradcheck_cli.engine.program import Program
from gradcheck_cli.engine.rounding import ROUNDINGS, RandomRounding
from gradcheck_cli.jacobian.directions import Directions, flat
from gradcheck_cli.jacobian.jacobian import ROUNDED_RUNS, each_beside, forward_noise
from gradcheck_cli.op.batching import Kernel, Operands
from tests.checking.small import model
from tests.rounding import FUNCTION, assert_rounded

RNG = np.random.default_rng(5)
TESTED = model(("MatMul", "x a", "h"), ("Relu", "h", "r"), ("Softmax", "r", "s"), ("ReduceSum", "s", "y"), x=(3, 4),
               constants={"a": RNG.normal(size=(4, 5))})  # fmt: skip


def one_at_a_time(kernel: Kernel, operands: Operands, probed: Sequence[bool], metadata: Mapping[str, Any]) -> Any:
    """A batching rule that can run no stacks of several probes."""
    if any(p and x is not None and len(x) > 1 for x, p in zip(operands, probed, strict=True)):
        raise ValueError
    made = kernel(*[x[0] if p and x is not None else x for x, p in zip(operands, probed, strict=True)], **metadata)
    return made[None]


UNSTACKED = {**gc.OPS, ("", "Softmax"): replace(gc.OPS["", "Softmax"], batching=one_at_a_time)}
tables = pytest.mark.parametrize("ops", [gc.OPS, UNSTACKED], ids=["stacks", "one at a time"])


def program(ops: Any = gc.OPS) -> Program:
    tape = trace(TESTED.graph, {"x": np.random.default_rng(1).normal(size=(3, 4))}, ops=ops)
    return Program(tape, [tape.named["x"].name], [tape.named["s"].name])


@tables
def test_noise_is_the_most_that_any_of_some_runs_moves_y(ops: Any) -> None:
    tested = program(ops)
    here, y = (tested.tape.values[n] for n in (tested.probes[0], tested.outputs[0]))
    runs = [
        tested.run({tested.probes[0]: here[None]}, rounding=RandomRounding.seeded([0, i])) for i in range(ROUNDED_RUNS)
    ]
    moved = np.max([np.abs(flat(run.outputs[0][0]) - flat(y)) for run in runs], axis=0) / ROUNDINGS
    assert moved.all()
    noise, expected = forward_noise(tested), np.maximum(moved, np.finfo(float).eps * flat(y))
    if ops is UNSTACKED:  # which draws other numbers after a first attempt
        assert 0.3 < np.median(noise / expected) < 3
    else:
        np.testing.assert_allclose(noise, expected, rtol=1e-6)


@tables
def test_perturbations_of_several_kinds_are_each_what_they_are_alone(ops: Any) -> None:
    tested = program(ops)
    here = tested.x
    moves = [
        (Directions(here, [0, 5, 7]), np.array([1e-3, 2.0, -3.0])),
        (Directions(here, RNG.normal(size=(2, 12))), np.array([4.0, -1e-6])),
        (Directions(here, [3]), np.array([-2.5])),
    ]
    together = list(each_beside(tested, moves, Budget()))
    for (values, decisions), move in zip(together, moves, strict=True):
        [(alone, decisions_alone)] = each_beside(tested, [move], Budget())
        assert_rounded(values, alone, roundings=8 * FUNCTION)
        assert {step: rows.tolist() for step, rows in decisions.crossed.items()} == {
            step: rows.tolist() for step, rows in decisions_alone.crossed.items()
        }
        np.testing.assert_array_equal(decisions.kind, decisions_alone.kind)
        np.testing.assert_array_equal(decisions.places, decisions_alone.places)
    assert any(decisions.crossed for _, decisions in together)
