"""At the ends of what floating-point numbers can be, right rules do not fail, and nothing but the verdict is printed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gradcheck_cli as gc
from tests.checking.small import check, model, scaled, with_rule

WEIGHTS = np.random.default_rng(3).normal(size=(4, 3))
NETS: dict[str, gc.Model] = {
    "a square": model(("Mul", "x x", "y")),
    "a power": model(("Pow", "x two", "y"), constants={"two": 2.0}),
    "Exp": model(("Exp", "x", "y")),
    "Sin": model(("Sin", "x", "y")),
    "Tanh": model(("Tanh", "x", "y")),
    "Gelu": model(("Gelu", "x", "y")),
    "Log": model(("Log", "x", "y")),
    "Softmax": model(("Softmax", "x", "y")),
    "Reciprocal": model(("Reciprocal", "x", "y")),
    "Relu": model(("Relu", "x", "y")),
    "Floor": model(("Floor", "x", "y")),
    "MaxPool": model(("MaxPool", "x", "y", {"kernel_shape": (2,)}), x=(1, 1, 4)),
    "a norm": model(("ReduceL2", "x", "y", {"keepdims": 0})),
    "a normalized vector": model(("LpNormalization", "x", "y", {"p": 2}), x=(1, 4)),
    "a layer norm": model(("LayerNormalization", "x s", "y"), x=(2, 4), constants={"s": np.ones(4)}),
    "a product of all": model(("ReduceProd", "x", "y", {"keepdims": 0})),
    "a log of a sum": model(("ReduceLogSumExp", "x", "y", {"keepdims": 0})),
    "a perceptron": model(("MatMul", "x W", "h"), ("Tanh", "h", "a"), ("ReduceSum", "a", "y", {"keepdims": 0}),
                          x=(2, 4), constants={"W": WEIGHTS}),
    "a constant": model(("Mul", "x zero", "y"), constants={"zero": 0.0}),
    "an infinite weight": model(("Mul", "x w", "y"), constants={"w": [1.0, np.inf, 0.0, 2.0]}),
    "a weight that is no number": model(("Mul", "x w", "y"), constants={"w": [1.0, np.nan, 0.0, 2.0]}),
    "a mask of infinities": model(("Add", "x m", "h"), ("Softmax", "h", "y"), constants={"m": [0.0, -np.inf, 0, 0]}),
}  # fmt: skip
LARGEST, SMALLEST = np.finfo(float).max, np.finfo(float).tiny
VALUES: dict[str, list[float]] = {
    "denormal numbers": [1e-320] * 4,
    "a denormal number among others": [1e-320, 1.0, -1e-320, 2.0],
    "the smallest normal number": [SMALLEST] * 4,
    "tiny numbers": [1e-200, 2e-200, -1e-200, 1e-200],
    "huge numbers": [1e200, 2e200, -1e200, 1e200],
    "numbers near the largest": [1e308, -1e308, 1e308, 1e308],
    "the largest number": [LARGEST] * 4,
    "all of them": [1e308, 1.0, 1e-308, -2.0],
    "numbers without digits behind the point": [1e16, 1e-16, 1.0, 2.0],
    "zeros": [0.0, -0.0, 0.0, -0.0],
    "an infinity": [np.inf, 1.0, 2.0, 3.0],
    "no number": [np.nan, 1.0, 2.0, 3.0],
}
WAYS: list[dict[str, Any]] = [
    {}, {"mode": "directional"}, {"method": "richardson"}, {"method": "central"},
    {"method": "central", "delta": 1e-3}, {"method": "forward", "mode": "directional"},
]  # fmt: skip


@pytest.mark.one_in(4)
@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("net", NETS)
def test_right_rules_do_not_fail(net: str, value: str):
    here = np.resize(VALUES[value], NETS[net].graph.types["x"].shape or ())
    for way in WAYS:
        record = check(NETS[net], value=here, **way)
        assert record.status in (("severed",) if net == "Floor" else ("pass", "inconclusive")), (way, record.worst[:1])


@pytest.mark.parametrize("value", ["an infinity", "no number"])
@pytest.mark.parametrize("net", ["a square", "Exp", "Gelu", "a layer norm", "a norm"])
def test_what_is_not_finite_is_inconclusive(net: str, value: str):
    here = np.resize(VALUES[value], NETS[net].graph.types["x"].shape or ())
    record = check(NETS[net], value=here)
    assert (record.status, record.code) == ("inconclusive", "GC302")


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("value", VALUES)
def test_in_the_models_own_dtype_nothing_is_printed_either(value: str, dtype: Any):
    for op in ("Exp", "Tanh", "Softmax", "Relu"):
        record = check(model((op, "x", "y"), dtype=dtype), value=np.array(VALUES[value]), dtype="model")
        assert record.status in ("pass", "inconclusive")


@pytest.mark.parametrize("size", [1e-140, 1e-30, 1.0, 1e30, 1e140])
@pytest.mark.parametrize("way", WAYS[:3], ids=str)
def test_wrong_rules_fail_as_far_as_numbers_reach(size: float, way: dict[str, Any]):
    tested = model(("Mul", "x unit", "u"), ("Exp", "u", "y"), constants={"unit": 1 / size})
    here = size * np.array([0.3, -0.7, 1.1, -1.3])
    assert check(tested, value=here, **way).status == "pass"
    for factor in (2.0, 1 + 1e-5):
        assert check(tested, value=here, ops=with_rule("Exp", scaled("Exp", factor)), **way).status == "fail"


UNITS = {  # the same functions in other units: nodes from u to v, constants, and an operator whose rule is to be wrong
    "layers": ([("MatMul", "u W", "h"), ("Tanh", "h", "a"), ("MatMul", "a V", "v")],
               {"W": WEIGHTS, "V": np.ascontiguousarray(WEIGHTS.T)}, "Tanh"),
    "a softmax": ([("Softmax", "u", "v")], {}, "Softmax"),
    "a direction": ([("ReduceL2", "u", "n", {"keepdims": 1}), ("Div", "u n", "v")], {}, "Div"),
    "a variance": ([("ReduceMean", "u", "m", {"keepdims": 1}), ("Sub", "u m", "d"), ("Mul", "d d", "q"),
                    ("ReduceMean", "q", "v", {"keepdims": 0})], {}, "ReduceMean"),
    "pieces": ([("Relu", "u", "r"), ("ReduceMax", "u", "m", {"keepdims": 1}), ("Mul", "r m", "v")], {}, "Relu"),
    "a cube": ([("Pow", "u three", "v")], {"three": 3.0}, "Pow"),
}  # fmt: skip


@pytest.mark.one_in(4)
@pytest.mark.parametrize("way", [*WAYS[:2], {"method": "richardson"}], ids=str)
@pytest.mark.parametrize(
    ("outer", "inner"), [(-300, -300), (300, -300), (-300, 300), (300, 300), (-100, 100), (40, -7)]
)
@pytest.mark.parametrize("name", UNITS)
def test_units_do_not_change_verdicts(name: str, outer: int, inner: int, way: dict[str, Any]):
    """2^outer f(2^-inner x), where numbers as large as 2^600 and as small as its inverse appear."""
    nodes, constants, op = UNITS[name]
    tested = model(("Mul", "x unit", "u"), *nodes, ("Mul", "v scale", "y"),
                   constants={**constants, "unit": 2.0**-inner, "scale": 2.0**outer})  # fmt: skip
    here = 2.0**inner * np.array([0.3, -0.7, 0.1, 1.1])
    assert check(tested, value=here, **way).status == "pass"
    for factor in (2.0, 1 + 1e-5):
        assert check(tested, value=here, ops=with_rule(op, scaled(op, factor)), **way).status == "fail"


def test_units_do_not_change_what_ties_give():
    """One entry of x at the kink, in units from 2^-300 to 2^300."""
    for inner in (-300, -40, 0, 40, 300):
        tested = model(("Mul", "x unit", "u"), ("Relu", "u", "v"), ("Mul", "v scale", "y"),
                       constants={"unit": 2.0**-inner, "scale": 2.0 ** (inner // 2)})  # fmt: skip
        record = check(tested, value=2.0**inner * np.array([0.0, 0.7, -0.1, 1.1]))
        assert (record.status, record.entries["kink_ok"]) == ("pass", 1)


def test_a_slope_that_a_kernel_rounds_away_contradicts_nothing() -> None:
    """log(1 + e^-219) is 0 in float64, and its slope is not."""
    record = check(model(("LogSoftmax", "x", "y")), value=[-414.0, -263.0, 301.0, 82.0])
    assert (record.status, record.entries["inconclusive"], record.notes) == ("pass", 0, ())


FAR: dict[str, tuple[gc.Model, list[float]]] = {  # right rules whose numbers on the way are nearly as small as can be
    "a log of densities": (
        model(("Mul", "x x", "q"), ("Neg", "q", "n"), ("Exp", "n", "e"), ("Log", "e", "y")), [22.0, -24.0, 25.0, 26.1]
    ),
    "a ratio of densities": (
        model(("Mul", "x a", "p"), ("Mul", "x b", "q"), ("Exp", "p", "e"), ("Exp", "q", "f"), ("Div", "e f", "y"),
              constants={"a": -700.0, "b": -695.0}), [0.9, 0.95, 1.0, 0.3]
    ),
    "a root of a product": (
        model(("Mul", "x s", "a"), ("Pow", "a p", "y"), constants={"s": 1e-250, "p": 0.1}), [1e-30, 2e-40, 3e-50, 1.0]
    ),
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS[:4], ids=str)
@pytest.mark.parametrize("net", FAR)
def test_tangents_that_underflow_accuse_nobody(net: str, way: dict[str, Any]):
    tested, here = FAR[net]
    record = check(tested, value=here, **way)
    assert record.status == "pass", record.message  # differences see what tangents lose


@pytest.mark.parametrize("here", [[15.0, -20.0, 21.0, 22.0], [24.0, -24.5, 25.0, 25.2]])
def test_the_complex_step_sees_what_is_as_small_as_1e_270(here: list[float]):
    tested, _ = FAR["a log of densities"]
    assert check(tested, value=here, method="complex-step").status == "pass"
    wrong = check(tested, value=here, method="complex-step", ops=with_rule("Log", scaled("Log", 1.001)))
    assert wrong.status == "fail"


@pytest.mark.parametrize("way", [{}, {"method": "richardson"}, {"method": "central"}], ids=str)
@pytest.mark.parametrize("net", FAR)
def test_wrong_rules_fail_where_tangents_underflow(net: str, way: dict[str, Any]):
    tested, here = FAR[net]
    op = "Pow" if net == "a root of a product" else "Exp"
    assert check(tested, value=here, ops=with_rule(op, scaled(op, 1.001)), **way).status == "fail"
