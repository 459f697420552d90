"""The theoretical side by few passes: the same Jacobian as by one for each column, whatever a rule does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import gradcheck_cli as gc
from gradcheck_cli.autodiff import symbolic as sym
from gradcheck_cli.autodiff.trace import trace
from gradcheck_cli.engine.chunks import Budget
from gradcheck_cli.engine.program import Program
from gradcheck_cli.jacobian.coloring import Structure
from gradcheck_cli.jacobian.columns import Columns
from gradcheck_cli.jacobian.jacobian import Backward
from gradcheck_cli.op import Ops
from tests.checking.small import check, model, scaled, with_rule
from tests.checking.test_coloring import MODELS, SQUARE

RNG = np.random.default_rng(3)
WIDE = model(("Tanh", "x", "t"), ("MatMul", "t a", "h"), ("Sigmoid", "h", "y"), x=(1, 6),
             constants={"a": RNG.normal(size=(6, 2000))})  # fmt: skip
SPARSE = model(("Tanh", "x", "t"), ("Sin", "t", "y"), x=(30, 30))
STRAYING = model(("Square", "x", "y"), x=(30, 30))


def columns(tested: gc.Model, ops: Ops = gc.OPS, x: Any = None) -> tuple[Columns, Backward]:
    """The Jacobian of y by x in whatever way is short, and what gives it column by column."""
    shape = tested.graph.types["x"].shape or ()
    x = np.random.default_rng(1).normal(size=[int(size) for size in shape]) if x is None else x
    tape = trace(tested.graph, {"x": x}, ops=ops)
    names = tape.named[tested.graph.outputs[0]].name, tape.named["x"].name
    backward, budget = Backward(tape, names[0], [names[1]]), Budget(2**30, 1)
    return Columns(backward, [Structure(Program(tape, [names[1]], [names[0]]), budget)], budget), backward


def whole(short: Columns, values: np.ndarray) -> np.ndarray:
    """All entries of what is known of those of the only Jacobian."""
    [cells] = short.cells
    return values if cells is None else cells.whole(values)


def alone(backward: Backward) -> np.ndarray:
    return backward.jacobians(Budget(2**30, 1))[0]


EVERY = {**{name: tested for name, (tested, _, _) in MODELS.items()}, "few rows": WIDE}


@pytest.mark.parametrize("tested", EVERY.values(), ids=EVERY)
def test_a_jacobian_is_the_same_column_by_column(tested: gc.Model) -> None:
    short, backward = columns(tested)
    expected = alone(backward)
    np.testing.assert_allclose(whole(short, short.values[0]), expected, rtol=1e-12, atol=1e-13 * np.abs(expected).max())


@pytest.mark.parametrize("tested, most", [(SPARSE, 1), (MODELS["conv batch"][0], 27), (WIDE, 0)])
def test_columns_that_share_a_pass_and_rows_take_few(tested: gc.Model, most: int) -> None:
    short, backward = columns(tested)
    assert short.values[0].any()
    assert short.shortcut is not None
    assert backward.program.evaluations["real"] <= most + 2  # and two random sums


@pytest.mark.parametrize("tested", [SPARSE, WIDE], ids=["colors", "rows"])
def test_rounding_is_measured_alike(tested: gc.Model) -> None:
    short, backward = columns(tested)
    expected = backward.spreads([alone(backward)], Budget(2**30, 1))[0]
    found = whole(short, short.spreads[0])
    assert short.shortcut is not None
    assert 0.1 < np.median(found[expected > 0] / expected[expected > 0]) < 10


BROKEN: dict[str, tuple[gc.Model, Mapping[Any, Any]]] = {
    "entries outside of the structure": (STRAYING, {**gc.OPS, ("", "Square"): SQUARE}),
    "a size instead of a cotangent": (SPARSE, with_rule("Tanh", lambda ct, y, x: (sym.abs(ct),))),
    "a constant beside the cotangent": (SPARSE, with_rule("Tanh", lambda ct, y, x: (ct + 1.0,))),
    "a sign that is undone where the rule is applied twice": (WIDE, with_rule("MatMul", scaled("MatMul", -1.0))),
    "a factor": (SPARSE, with_rule("Sin", scaled("Sin", 1.001))),
    "a factor by rows": (WIDE, with_rule("MatMul", scaled("MatMul", 1.001))),
}


@pytest.mark.parametrize("tested, ops", BROKEN.values(), ids=BROKEN)
def test_a_wrong_rule_is_as_wrong_in_few_passes(tested: gc.Model, ops: Ops) -> None:
    short, backward = columns(tested, ops)
    expected = alone(backward)
    np.testing.assert_allclose(whole(short, short.values[0]), expected, rtol=1e-12, atol=1e-13 * np.abs(expected).max())


@pytest.mark.parametrize("name", ["entries outside of the structure", "a size instead of a cotangent",
                                  "a constant beside the cotangent",
                                  "a sign that is undone where the rule is applied twice"])  # fmt: skip
def test_few_passes_do_not_count_where_they_would_hide_a_fault(name: str) -> None:
    short, _ = columns(*BROKEN[name])
    assert short.values
    assert short.shortcut is None


def test_a_stray_entry_of_a_tiny_column_is_not_hidden() -> None:
    """Columns of a size that is lost beside the others of their row still count as much as they do for the verdict."""
    size = np.where(np.arange(30) % 7 == 3, 1e-30, 1.0)[:, None]
    tested = model(("Square", "x", "s"), ("Mul", "s c", "y"), x=(30, 30), constants={"c": size})
    short, backward = columns(tested, {**gc.OPS, ("", "Square"): SQUARE})
    expected = alone(backward)
    assert ((whole(short, short.values[0]) != 0) == (expected != 0)).all()


def test_what_is_not_finite_stays_in_its_column() -> None:
    x = np.linspace(0.5, 1.5, 900).reshape(30, 30)
    x[7, 9] = 0.0
    short, backward = columns(model(("Sqrt", "x", "s"), ("MatMul", "s a", "y"), x=(30, 30),
                                    constants={"a": np.eye(30)}), x=x)  # fmt: skip
    np.testing.assert_array_equal(np.isfinite(whole(short, short.values[0])), np.isfinite(alone(backward)))


@pytest.mark.slow
@pytest.mark.parametrize("tested, ops", BROKEN.values(), ids=BROKEN)
def test_a_verdict_on_a_wrong_rule_is_the_same_without_groups(tested: gc.Model, ops: Ops) -> None:
    together, apart = (check(tested, mode="full", ops=ops, coloring=coloring) for coloring in (True, False))
    assert together.status == "fail"
    assert (together.status, together.code, together.entries) == (apart.status, apart.code, apart.entries)
    assert {(e.x, e.y) for e in together.worst[:50]} == {(e.x, e.y) for e in apart.worst[:50]}
