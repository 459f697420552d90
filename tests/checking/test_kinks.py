"""Where the derivative jumps or is not finite nothing passes by luck, and nothing fails."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gradcheck_cli as gc
from tests.checking.small import check, model, scaled, with_rule

# Kinks


KINKS = {
    "Relu": model(("Relu", "x", "a"), ("Mul", "a two", "y"), constants={"two": 2.0}),
    "Abs": model(("Abs", "x", "y")),
    "Max": model(("Max", "x zero", "y"), constants={"zero": 0.0}),
    "LeakyRelu": model(("LeakyRelu", "x", "y", {"alpha": 0.5})),
    "Clip": model(("Clip", "x zero one", "y"), constants={"zero": 0.0, "one": 1.0}),
}


@pytest.mark.parametrize("mode", ["full", "directional"])
@pytest.mark.parametrize("name", KINKS)
def test_at_a_kink_the_status_is_inconclusive(name: str, mode: str):
    record = check(KINKS[name], value=np.zeros(4), mode=mode)
    assert (record.status, record.code) == ("inconclusive", "GC301")


TIES: dict[str, tuple[gc.Model, Any]] = {  # a model, and an x of which some entries lie at a kink or a jump
    "Relu": (model(("Relu", "x", "y")), [0, 0.5, -0.5, 1]),
    "Abs": (model(("Abs", "x", "y")), [0, 0.5, -0.5, 1]),
    "LeakyRelu": (model(("LeakyRelu", "x", "y", {"alpha": 0.5})), [0, 0.5, -0.5, 1]),
    "PRelu": (model(("PRelu", "x two", "y"), constants={"two": 2.0}), [0, 0.5, -0.5, 1]),
    "Elu": (model(("Elu", "x", "y", {"alpha": 2.0})), [0, 0.5, -0.5, 1]),
    "Selu": (model(("Selu", "x", "y")), [0, 0.5, -0.5, 1]),
    "ThresholdedRelu": (model(("ThresholdedRelu", "x", "y", {"alpha": 1.0})), [1, 0.5, -0.5, 2]),
    "HardSigmoid": (model(("HardSigmoid", "x", "y", {"alpha": 0.25, "beta": 0.5})), [2, 0.5, -2, 1]),
    "HardSwish": (model(("HardSwish", "x", "y")), [3, 0.5, -3, 1]),
    "Shrink": (model(("Shrink", "x", "y", {"lambd": 0.5})), [0.5, 0.1, -0.5, 1]),
    "Max": (model(("Max", "x one", "y"), constants={"one": 1.0}), [1, 0.5, -0.5, 2]),
    "Min": (model(("Min", "x one", "y"), constants={"one": 1.0}), [1, 0.5, -0.5, 2]),
    "Clip": (model(("Clip", "x zero one", "y"), constants={"zero": 0.0, "one": 1.0}), [0, 0.5, 1, 2]),
    "ReduceMax": (model(("ReduceMax", "x", "y", {"keepdims": 0})), [1, 1, -0.5, 0.2]),
    "ReduceMin": (model(("ReduceMin", "x", "y", {"keepdims": 0})), [1, 1, -0.5, -0.5]),
    "ReduceL1": (model(("ReduceL1", "x", "y", {"keepdims": 0})), [0, 1, -0.5, -0.5]),
    "ReduceL2": (model(("ReduceL2", "x", "y", {"keepdims": 0})), [0, 0, 0, 0]),
    "MaxPool": (model(("MaxPool", "x", "y", {"kernel_shape": (2,)}), x=(1, 1, 4)), [[[1, 1, 0.2, 0.1]]]),
    "GlobalMaxPool": (model(("GlobalMaxPool", "x", "y"), x=(1, 1, 4)), [[[1, 1, 0.2, 0.1]]]),
    "LpPool": (model(("LpPool", "x", "y", {"kernel_shape": (2,), "p": 1}), x=(1, 1, 4)), [[[0, 1, 0.2, 0.1]]]),
    "TopK": (model(("TopK", "x k", "y"), constants={"k": np.array([2])}), [1, 1, 1, 0.1]),
    "Floor": (model(("Floor", "x", "y")), [1, 0.5, -0.5, 0.2]),
    "Round": (model(("Round", "x", "y")), [0.5, 0.4, -0.3, 0.2]),
    "Sign": (model(("Sign", "x", "y")), [0, 0.4, -0.3, 0.2]),
    "Mod": (model(("Mod", "x one", "y", {"fmod": 1}), constants={"one": 1.0}), [1, 0.5, -0.5, 0.2]),
    "Cast": (model(("Cast", "x", "i", {"to": 7}), ("Cast", "i", "y", {"to": 11})), [1, 0.5, -0.5, 0.2]),
    "Hardmax": (model(("Hardmax", "x", "y")), [1, 1, -0.5, 0.2]),
    "a step that a condition makes": (
        model(("Greater", "x zero", "c"), ("Add", "x two", "d"), ("Where", "c x d", "y"),
              constants={"zero": 0.0, "two": 2.0}), [0, 0.5, -0.5, 0.2]),
    "a slope that a condition makes": (
        model(("Greater", "x zero", "c"), ("Mul", "x two", "d"), ("Where", "c x d", "y"),
              constants={"zero": 0.0, "two": 2.0}), [0, 0.5, -0.5, 0.2]),
    "an infinite slope": (model(("Abs", "x", "a"), ("Sqrt", "a", "y")), [0, 0.5, 0.5, 0.2]),
    "pieces that hide a slope": (
        model(("Relu", "x", "a"), ("Neg", "x", "n"), ("Relu", "n", "b"), ("Sub", "a b", "y")), [0, 0.5, -0.5, 0.2]),
    "a quantizer": (
        model(("QuantizeLinear", "x s z", "q"), ("DequantizeLinear", "q s z", "y"),
              constants={"s": np.float64(0.1), "z": np.int8(0)}), [0.05, 0.5, -0.5, 0.2]),
}  # fmt: skip
METHODS = ["auto", "complex-step", "richardson", "central", "forward"]


WAYS = [{"method": method, "mode": mode} for method in METHODS for mode in ("full", "directional")]
WAYS += [{**way, "delta": delta} for way in WAYS for delta in (1e-3, 1e-7) if way["method"] in ("central", "forward")]


@pytest.mark.parametrize("name", TIES)
def test_at_a_tie_no_method_passes_by_luck_and_none_fails(name: str):
    tested, value = TIES[name]
    for way in WAYS:
        record = check(tested, value=value, max_inconclusive=0.0, **way)
        assert record.status == "inconclusive", way
        assert record.code == "GC301" or way["method"] in ("central", "forward")  # may be too rough elsewhere as well


@pytest.mark.parametrize("method", METHODS)
def test_a_tie_is_found_wherever_it_lies(method: str):
    for position in range(48):
        value = np.where(np.arange(48) == position, 0.0, np.linspace(-1.0, 1.0, 48))
        record = check(model(("Abs", "x", "a"), ("ReduceSum", "a", "y", {"keepdims": 0}), x=(48,)), value=value,
                       method=method, max_inconclusive=0.0, rtol=1e-3)  # fmt: skip
        assert (record.status, record.code) == ("inconclusive", "GC301"), position
        assert [entry.x for entry in record.worst if entry.pattern == "kink"] == [(position,)]


def test_a_tie_between_entries_is_found_wherever_it_lies():
    for i in range(12):
        for j in range(i):
            value = np.linspace(-1.0, 1.0, 12)
            value[[i, j]] = 3.0
            record = check(model(("ReduceMax", "x", "y", {"keepdims": 0}), x=(12,)), value=value)
            assert (record.status, record.code) == ("inconclusive", "GC301"), (i, j)


SMOOTH: dict[str, tuple[gc.Model, Any]] = {  # decisions hang in the balance, and y has a derivative all the same
    "x |x|": (model(("Abs", "x", "a"), ("Mul", "a x", "y")), [0, 0, 1, -1]),
    "relu squared": (model(("Relu", "x", "a"), ("Mul", "a a", "y")), [0, 0.5, -0.5, 1]),
    "Celu": (model(("Celu", "x", "y")), [0, 0.5, -0.5, 1]),
    "a softmax shifted by its maximum": (
        model(("ReduceMax", "x", "m", {"keepdims": 1}), ("Sub", "x m", "s"), ("Softmax", "s", "y")), [1, 1, 0, 1]),
    "Max of a tensor with itself": (model(("Max", "x x", "y")), [0, 0.5, -0.5, 1]),
    "sorted ties, added up": (
        model(("TopK", "x k", "t"), ("ReduceSum", "t", "y", {"keepdims": 0}), constants={"k": np.array([4])}),
        [1, 1, 1, 1]),
    "a remainder at zero": (model(("Mod", "x one", "y", {"fmod": 1}), constants={"one": 1.0}), [0, 0.5, -0.5, 0.2]),
}  # fmt: skip


@pytest.mark.parametrize("name", SMOOTH)
def test_a_decision_that_changes_nothing_is_no_kink(name: str):
    tested, value = SMOOTH[name]
    for way in WAYS:
        record = check(tested, value=value, **way)
        exact = way["method"] in ("auto", "complex-step")
        assert record.status == "pass" or (record.status == "inconclusive" and not exact), way
        assert not any("the slopes from both sides differ" in note for note in record.notes), way


@pytest.mark.parametrize("method", ["richardson", "central", "forward"])
def test_a_perturbation_across_a_kink_is_called_that(method: str):
    record = check(model(("Abs", "x", "y"), x=(1,)), value=[-1e-4], method=method, delta=1e-3)
    assert record.status == ("pass" if method == "richardson" else "inconclusive")
    if method != "richardson":
        assert record.notes == ("1 row perturbed across a branch of node 0 Abs 'y': a smaller --delta may stay on "
                                "one side",)  # fmt: skip


@pytest.mark.parametrize("name", KINKS)
def test_at_a_kink_a_note_names_the_node(name: str):
    assert any(f"node 0 {name}" in note for note in check(KINKS[name], value=np.zeros(4)).notes)


@pytest.mark.parametrize("name", KINKS)
def test_one_kink_leaves_the_other_rows_checked(name: str):
    record = check(KINKS[name], value=[0.0, 0.5, 0.7, -0.5], max_inconclusive=0.5)
    assert record.status == "pass"
    assert 0 < record.entries["inconclusive"] <= 4


@pytest.mark.parametrize("distance", [1e-2, 1e-6, 1e-9])
@pytest.mark.parametrize("name", KINKS)
def test_near_a_kink_there_is_a_derivative_which_passes(name: str, distance: float):
    value = np.array([distance, -distance, 2 * distance, 0.5])
    assert check(KINKS[name], value=value).status == "pass"


@pytest.mark.parametrize("distance", [1e-2, 1e-6, 1e-9])
def test_near_a_kink_a_wrong_mask_fails(distance: float):
    wrong = with_rule("Relu", lambda ct, y, x: (ct,))
    record = check(KINKS["Relu"], value=[distance, -distance, 0.3, -0.5], ops=wrong)
    assert record.status == "fail"
    assert record.suspect is not None
    assert record.suspect.op == "Relu"


def test_equal_values_are_a_kink_of_a_maximum():
    tested = model(("Max", "x v", "y"), inputs={"v": (4,)})
    record = check(tested, value=np.ones(4), extra_feed_dict={"v": np.ones(4)})
    assert (record.status, record.code) == ("inconclusive", "GC301")


def test_a_wrong_rule_beside_a_kink_fails_all_the_same():
    record = check(KINKS["Relu"], value=[0.0, 0.5, 0.7, -0.5], ops=with_rule("Relu", scaled("Relu", 2.0)))
    assert record.status == "fail"


# Points without a finite value


def test_a_forward_that_is_not_finite_is_gc302_and_names_the_node():
    tested = model(("Neg", "x", "h"), ("Log", "h", "a"), ("Exp", "a", "y"))
    record = check(tested, value=[1.0, 2.0, 3.0, 4.0])
    assert (record.status, record.code) == ("inconclusive", "GC302")
    assert "first NaN at node 1 Log 'a' (input min -4)" in record.message


def test_a_forward_that_overflows_is_gc302():
    record = check(model(("Exp", "x", "a"), ("Exp", "a", "y")), value=[1.0, 2.0, 3.0, 700.0])
    assert (record.status, record.code) == ("inconclusive", "GC302")
    assert "first infinity at node 1 Exp 'y'" in record.message


def test_a_gradient_that_is_not_finite_where_y_is_fails():
    """sqrt at 0: its rule gives 0 * infinity for the other entries."""
    record = check(model(("Sqrt", "x", "y")), value=[1.0, 4.0, 9.0, 0.0])
    assert (record.status, record.code, record.gradient["finite"]) == ("fail", "GC103", False)
