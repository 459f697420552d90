"""Scatters that multiply: first and second derivatives are those of a product, zeros among its factors or not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gradcheck_cli.autodiff.backward import gradients
from gradcheck_cli.autodiff.tape import Tape, Var
from tests.ops.case import case
from tests.rounding import assert_rounded

PLACES = [1, 0, 1, 1, 0, 1]  # the entry of the data that each update multiplies
WEIGHTS = [0.75, -1.25]
UPDATES = [
    [1.5, 2.0, -0.5, 3.0, 0.25, 1.25],
    [0.0, 2.0, -0.5, 3.0, 0.25, 1.25],
    [0.0, 0.0, -0.5, 3.0, 0.25, 1.25],
    [0.0, 2.0, 0.0, 3.0, 0.25, 1.25],
    [0.0, 0.0, 0.0, 3.0, 0.0, 1.25],
    [0.0, 0.0, 0.0, 0.0, 0.0, 1.25],
    [0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
]
OPERATORS = {"ScatterND": np.reshape(PLACES, (-1, 1)), "ScatterElements": np.array(PLACES)}


def product_without(factors: np.ndarray, *left_out: int) -> float:
    """The product of all factors but some."""
    return float(np.prod([f for i, f in enumerate(factors) if i not in left_out]))


def derivatives(data: Any, updates: Any) -> tuple[np.ndarray, np.ndarray]:
    """Gradient and Hessian of sum(w * y) by data and updates, factor by factor: y = data * its updates."""
    x, places = np.array([*data, *updates]), np.array([0, 1, *PLACES])
    gradient, hessian = np.zeros(x.size), np.zeros((x.size, x.size))
    for place, weight in enumerate(WEIGHTS):
        mine = np.flatnonzero(places == place)
        for i, a in enumerate(mine):
            gradient[a] = weight * product_without(x[mine], i)
            for j, b in enumerate(mine):
                hessian[a, b] = 0 if i == j else weight * product_without(x[mine], i, j)
    return gradient, hessian


def weighed(tape: Tape, weights: Any, y: str) -> list[Var]:
    """Cotangents of data and updates."""
    seed = tape.constant(np.asarray(weights, np.float64))
    by_data, by_updates = gradients(tape, {y: seed}, ["x0", "x2"])
    nothing = [tape.constant(np.zeros(tape.values[x].shape)) for x in ("x0", "x2")]
    return [by_data or nothing[0], by_updates or nothing[1]]


@pytest.mark.parametrize("op", OPERATORS)
@pytest.mark.parametrize("updates", UPDATES, ids=str)
@pytest.mark.parametrize("data", [[2.0, -3.0], [2.0, 0.0]], ids=str)
def test_derivatives_of_a_product_are_exact_whatever_is_zero(op: str, data: list[float], updates: list[float]):
    tape = case(op, data, OPERATORS[op], updates, reduction="mul").tape()
    gradient, hessian = derivatives(data, updates)
    first = weighed(tape, WEIGHTS, "y0")
    assert_rounded(np.concatenate([v.value for v in first]), gradient, roundings=gradient.size**2)
    second = [weighed(tape, unit, ct.name) for ct in first for unit in np.eye(ct.size)]
    rows = [np.concatenate([v.value for v in cts]) for cts in second]
    assert_rounded(rows, hessian, roundings=gradient.size**2)
