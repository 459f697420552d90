"""As TensorFlow compares: one central difference, tolerances and nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gradcheck_cli as gc
from tests.checking.small import MUTANTS, SQUARE, Mutant, check, model, names, with_rule

X = np.array([0.3, -0.7, 1.1, 0.2])
CUBIC = model(("Mul", "x x", "q"), ("Mul", "q x", "y"))
NETS = {
    "a chain": model(("Exp", "x", "h"), ("Sin", "h", "y")),
    "a product": model(("MatMul", "x W", "h"), ("Tanh", "h", "y"), x=(4, 3), constants={"W": SQUARE}),
    "a kink": model(("Relu", "x", "y")),
}


@pytest.mark.parametrize("delta", [None, 0.125, 1e-5])
@pytest.mark.parametrize("name", NETS)
def test_the_numbers_are_those_of_compute_gradient_to_the_bit(name: str, delta: float | None):
    tested, given = NETS[name], {} if delta is None else {"delta": delta}
    shape = tuple(tested.graph.types["x"].shape or ())
    x = np.random.default_rng(0).normal(size=shape)
    y_shape = gc.run(tested["y"], {"x": x})[0].shape
    theoretical, numerical = gc.compute_gradient(tested["x"], shape, tested["y"], y_shape, x, **given)
    record = check(tested, x, compat="tf", rtol=0.0, atol=0.0, **given)
    gap = np.abs(theoretical - numerical)
    assert record.max_abs_err == gap.max()
    assert record.entries["failed"] == np.count_nonzero(gap)
    for entry in record.worst:
        at = np.ravel_multi_index(entry.x, shape), np.ravel_multi_index(entry.y, y_shape)
        assert (entry.theoretical, entry.numerical) == (theoretical[at], numerical[at])


def test_the_default_step_and_tolerances():
    record = check(CUBIC, X, compat="tf")
    assert (record.status, record.mode, record.method) == ("pass", "full", "central")
    assert (record.rtol, record.atol) == (1e-4, 1e-4)
    np.testing.assert_allclose(record.max_abs_err, 1e-6, rtol=1e-3)  # delta^2
    assert "as in TensorFlow: delta 0.001, |difference| <= 0.0001 + 0.0001 |numerical|" in record.notes


def test_no_verdict_but_tolerances():
    """The truncation of a wide step fails as it did there; the default method knows better."""
    assert check(CUBIC, X, compat="tf", delta=0.25).status == "fail"
    assert check(CUBIC, X, compat="tf", delta=0.25, atol=0.07).status == "pass"
    assert check(CUBIC, X, compat="tf", delta=0.25, atol=0.0, rtol=0.07 / 0.12).status == "pass"
    assert check(CUBIC, X, compat="tf", delta=0.25, atol=0.0, rtol=1e-3).status == "fail"
    assert check(CUBIC, X).status == "pass"


def test_tolerances_are_relative_to_the_numerical_side():
    """theoretical 1, numerical 2 by a rule that is half of it: |1 - 2| <= rtol * 2 from rtol 0.5 on."""
    tested = model(("Mul", "x two", "y"), constants={"two": np.float64(2.0)}, x=(1,))
    halved = with_rule("Mul", lambda ct, y, a, b: (ct, None))
    assert check(tested, compat="tf", ops=halved, atol=0.0, rtol=0.501).status == "pass"
    assert check(tested, compat="tf", ops=halved, atol=0.0, rtol=0.499).status == "fail"


def test_a_kink_is_a_failure_as_it_was_there():
    assert check(NETS["a kink"], np.zeros(4), compat="tf").status == "fail"


@pytest.mark.parametrize(
    "mutant", **names([m for m in MUTANTS if m.name in ("the sign", "a factor of 2", "relative 1e-3")])
)
def test_gross_errors_fail(mutant: Mutant):
    record = check(mutant.model, compat="tf", ops=with_rule(mutant.op, mutant.rule))
    assert (record.status, record.code) == ("fail", "GC101")


CONTRADICTIONS: dict[str, dict[str, Any]] = {
    "--method is richardson": {"method": "richardson"},
    "--dtype is model": {"dtype": "model"},
    "--mode is directional": {"mode": "directional"},
}


@pytest.mark.parametrize("message", CONTRADICTIONS)
def test_what_contradicts_it_is_an_error(message: str):
    with pytest.raises(ValueError, match=message):
        check(CUBIC, X, compat="tf", **CONTRADICTIONS[message])


def test_a_step_that_cannot_be_resolved_is_an_error():
    with pytest.raises(ValueError, match="too small to resolve"):
        check(CUBIC, 1e15 * X, compat="tf")


def test_only_tf_is_known():
    with pytest.raises(ValueError, match="compat='torch' is not one of 'tf'"):
        check(CUBIC, X, compat="torch")
