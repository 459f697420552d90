"""Numbers that follow from sizes: which formula is found, and what it gives at other sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gradcheck_cli.autodiff.trace import trace
from gradcheck_cli.export.size_formulas import NoFormula, SizeTensors, formula, simplest
from gradcheck_cli.graph import Graph, TensorType
from gradcheck_cli.ops import OPS

N, M = (5, 8, 11, 14, 9, 30), (7, 5, 16, 6, 21, 12)
BEYOND = [(1, 1), (2, 40), (100, 3)]  # further sizes of n and m
Value = Callable[[int, int], Any]
MADE: dict[str, Value] = {  # what a rule may make of sizes
    "a size": lambda n, m: np.array(n),
    "a vector": lambda n, m: np.array([n, 3, m, 4]),
    "a product": lambda n, m: np.array([n * m, 2]),
    "a multiple and an offset": lambda n, m: np.array([2 * n - 3]),
    "a difference": lambda n, m: np.array([n - 2 * m + 1, 0]),
    "a share": lambda n, m: np.float32(1 / n),
    "a share of both": lambda n, m: np.float64(1 / (n * m)),
    "a number as float": lambda n, m: np.float32(n),
    "a ratio": lambda n, m: np.float64(n / m),
    "one root": lambda n, m: np.float32(1 / np.sqrt(n)),
    "a number times a share": lambda n, m: np.float64(0.1234567 / n),
    "Bessel's correction": lambda n, m: np.float64(n / (n + 1)),
    "ones": lambda n, m: np.ones((n, 3, m), np.float32),
    "shares": lambda n, m: np.full((m, 2), 1 / n, np.float64),
    "rows that repeat": lambda n, m: np.tile(np.float32([[1, 2, 4]]), (n, 1)),
    "whole numbers": lambda n, m: np.arange(n),
    "whole numbers backward": lambda n, m: np.arange(n)[::-1].copy(),
    "a grid": lambda n, m: np.arange(n)[:, None] * m + np.arange(m),
    "one row": lambda n, m: np.arange(n)[None],
    "one column": lambda n, m: np.arange(n)[:, None],
    "a reflection": lambda n, m: np.pad(np.arange(n + 9), (3, 2), "reflect"),
    "a unit matrix": lambda n, m: np.eye(n, dtype=np.float32),
}
NOT_MADE: dict[str, Value] = {  # what no formula may be found for
    "half, rounded down": lambda n, m: np.array(n // 2),
    "a remainder": lambda n, m: np.array([n % 3]),
    "the larger one": lambda n, m: np.array(max(n, m)),
    "a matrix of other numbers": lambda n, m: np.tri(n),
    "another rank": lambda n, m: np.zeros((2,) * (1 + n % 2)),
}


def measured() -> SizeTensors:
    """Sizes of a tensor x of shape [n, m], with names for what is made of them."""
    names: list[str] = []

    def fresh(name: str) -> str:
        names.append(name)
        return f"{name}_{len(names)}"

    made = SizeTensors(fresh)
    made.see("x", (N, M))
    return made


def computed(sizes: SizeTensors, name: str, n: int, m: int) -> Any:
    """A tensor that is made of sizes, where x has the shape [n, m]."""
    graph = Graph(("x",), (name,), tuple(sizes.nodes), sizes.constants, {"x": TensorType(np.dtype(np.float32))})
    return trace(graph, {"x": np.zeros((n, m), np.float32)}, ops=OPS, dtype="model").named[name].value


@pytest.mark.parametrize("name", MADE)
def test_what_is_made_of_sizes_is_found_and_right_at_others(name: str) -> None:
    value, sizes = MADE[name], measured()
    found = sizes.tensor([np.asarray(value(n, m)) for n, m in zip(N, M, strict=True)])
    dtype = np.asarray(value(2, 2)).dtype
    for n, m in (*zip(N, M, strict=True), *BEYOND):
        got = computed(sizes, found, n, m)
        assert got.dtype == dtype
        np.testing.assert_allclose(got, value(n, m), rtol=3 * float(np.finfo(dtype).eps) if dtype.kind == "f" else 0)


EMPTIED = (5, 0, 11, 0, 9, 30)  # sizes that follow from values, some of which select nothing
OF_SOME: dict[str, tuple[tuple[int, ...], Callable[[int], Any], bool]] = {
    "zeros": (EMPTIED, lambda n: np.zeros((n, 2), np.float32), True),
    "numbers from 2 on": (EMPTIED, lambda n: np.arange(2, n + 2), True),
    "a grid of which all runs have the same": (EMPTIED, lambda n: np.arange(n)[:, None] * 4 + np.arange(4), True),
    "a number that follows from the size": (EMPTIED, lambda n: np.full(n, float(n)), False),
    "numbers that begin with the size": (EMPTIED, lambda n: np.arange(n) + n, False),
    "entries in one run alone": ((5, 0, 0, 0, 0, 0), np.ones, False),
    "a range in one run alone": ((5, 0, 0, 0, 0, 0), np.arange, False),
    "a row where there is one": ((1, 0, 1, 1, 0, 1), lambda n: np.tile(np.arange(3), (n, 1)), True),
}


@pytest.mark.parametrize("name", OF_SOME)
def test_arrays_that_are_empty_in_some_runs_are_made_of_those_in_others(name: str) -> None:
    runs, value, made = OF_SOME[name]
    sizes = measured()
    sizes.see("x", (runs, M))
    values = [np.asarray(value(n)) for n in runs]
    if not made:
        with pytest.raises(NoFormula):
            sizes.tensor(values)
        return
    found = sizes.tensor(values)
    for n in (*runs, 1, 40):
        np.testing.assert_array_equal(computed(sizes, found, n, 3), value(n), strict=True)


@pytest.mark.parametrize("name", NOT_MADE)
def test_what_follows_from_no_formula_is_an_error(name: str) -> None:
    with pytest.raises(NoFormula):
        measured().tensor([np.asarray(NOT_MADE[name](n, m)) for n, m in zip(N, M, strict=True)])


@pytest.mark.parametrize("wrong", range(len(N)))
def test_a_formula_that_misses_one_run_is_none(wrong: int) -> None:
    sizes = [3 * n + 1 for n in N]
    sizes[wrong] += 1
    assert formula(tuple(sizes), [N, M]) is None


@pytest.mark.parametrize(("over", "under"), [(1, 33), (5, 37), (-2, 49), (12345, 1), (1, 351232), (7, 10)])
def test_fractions_are_told_from_their_float32(over: int, under: int) -> None:
    found = simplest(float(np.float32(over / under)), 2e-7)
    assert (found.numerator, found.denominator) == (over, under)
