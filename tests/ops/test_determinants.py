"""Derivatives of determinants of singular matrices, which a rule by the inverse gets wrong, and of large ones."""

from __future__ import annotations

from fractions import Fraction
from itertools import permutations
from math import prod
from typing import Any

import numpy as np
import pytest

from gradcheck_cli.autodiff.backward import gradients
from gradcheck_cli.autodiff.tape import Tape
from gradcheck_cli.errors import LimitError
from gradcheck_cli.ops import OPS
from tests.ops.case import arr
from tests.ops.cases.linalg import of_rank

Array = np.ndarray[Any, Any]


def derivatives(x: Array, *directions: Array) -> list[Array]:
    """The gradient of det(x), the gradient of its inner product with the first direction, and so on."""
    tape = Tape(OPS)
    total, found = tape.apply("Det", tape.hold("x", x)), []
    for direction in (*directions, np.zeros_like(x)):
        (ct,) = gradients(tape, {total.name: tape.constant(1.0)}, ["x"])
        assert ct is not None
        found.append(ct.value)
        total = tape.apply("ReduceSum", ct * tape.constant(direction), keepdims=0)
    return found


def determinant(x: Array) -> Fraction:
    """Exactly, by its definition."""
    n = len(x)
    return sum(
        (parity(p) * prod(Fraction(x[i, j]) for i, j in enumerate(p)) for p in permutations(range(n))), Fraction()
    )


def parity(p: tuple[int, ...]) -> int:
    """1 for an even permutation, -1 for an odd one."""
    return (-1) ** sum(a > b for i, a in enumerate(p) for b in p[i + 1 :])


def cofactors(x: Array) -> Array:
    """Exactly, by minors."""
    n = range(len(x))
    minors = [[determinant(np.delete(np.delete(x, i, 0), j, 1)) * (-1) ** (i + j) for j in n] for i in n]
    return np.array(minors, float)


@pytest.mark.parametrize("x", [
    pytest.param(np.array([[1.0, 2.0], [2.0, 4.0]]), id="of rank 1"),
    pytest.param(np.arange(9.0).reshape(3, 3), id="of rank 2"),
    pytest.param(np.ones((3, 3)), id="ones"),
    pytest.param(np.zeros((2, 2)), id="zeros"),
    *(pytest.param(of_rank(rank, 5), id=f"of rank {rank} of 5") for rank in (4, 3, 2)),
])  # fmt: skip
def test_the_gradient_at_a_singular_matrix_is_that_of_exact_arithmetic(x: Array) -> None:
    (gradient,) = derivatives(x)
    np.testing.assert_allclose(gradient, cofactors(x), rtol=1e-12, atol=1e-12 * np.abs(x).max(initial=1) ** len(x))


@pytest.mark.parametrize("rank", [3, 2, 1])
def test_the_second_derivative_at_a_singular_matrix_is_that_of_exact_arithmetic(rank: int) -> None:
    x, direction = of_rank(rank, 4), arr(4, 4).round(1)
    _, second = derivatives(x, direction)
    for i, j in np.ndindex(4, 4):  # the determinant is linear in each entry: a difference is its derivative
        more = x.copy()
        more[i, j] += 1
        slope = np.sum(direction * (cofactors(more) - cofactors(x)))
        np.testing.assert_allclose(second[i, j], slope, rtol=1e-12, atol=1e-11)


@pytest.mark.parametrize("rank", [3, 2, 1])
def test_cofactors_by_singular_values_are_those_by_minors(rank: int) -> None:
    tape, x = Tape(OPS), of_rank(rank, 4)
    (y,) = tape.emit("Cofactors", (tape.hold("x", x),), {}, domain="gradcheck")
    np.testing.assert_allclose(y.value, cofactors(x), rtol=1e-12, atol=1e-11)


def test_the_gradient_of_a_large_determinant_is_that_by_the_inverse() -> None:
    x = np.eye(60) + arr(60, 60) / 20
    (gradient,) = derivatives(x)
    np.testing.assert_allclose(gradient, np.linalg.det(x) * np.linalg.inv(x).T, rtol=1e-10, atol=1e-12)


def test_the_derivative_of_cofactors_by_singular_values_is_that_by_the_inverse() -> None:
    tape, x, direction = Tape(OPS), np.eye(12) + arr(12, 12) / 20, arr(12, 12)
    (y,) = tape.emit("Cofactors", (tape.hold("x", x),), {}, domain="gradcheck")
    (ct,) = gradients(tape, {y.name: tape.constant(direction)}, ["x"])
    assert ct is not None
    inverse = np.linalg.inv(x)
    expected = np.linalg.det(x) * (np.sum(direction * inverse.T) * inverse - inverse @ direction @ inverse).T
    np.testing.assert_allclose(ct.value, expected, rtol=1e-10, atol=1e-11)


def test_a_second_derivative_that_no_memory_holds_is_a_limit() -> None:
    with pytest.raises(LimitError, match="second derivative of determinants"):
        derivatives(np.eye(120), np.eye(120))
