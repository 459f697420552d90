"""Right rules pass and wrong ones fail, with the suspect named; scales, zeros, points, thresholds."""

from __future__ import annotations

import numpy as np
import pytest

import gradcheck_cli as gc
from gradcheck_cli.autodiff import symbolic as sym
from tests.checking.small import MUTANTS, Mutant, between, check, model, names, scaled, with_rule

# Right rules pass, wrong ones fail


@pytest.mark.parametrize("mutant", **names(MUTANTS))
def test_the_right_rule_passes(mutant: Mutant):
    record = check(mutant.model)
    assert (record.status, record.code, record.suspect) == ("pass", "", None)
    assert record.max_rel_err < 1e-12


@pytest.mark.parametrize("mode", ["full", "directional"])
@pytest.mark.parametrize("mutant", **names(MUTANTS))
def test_a_wrong_rule_fails_and_its_operator_is_the_suspect(mutant: Mutant, mode: str):
    record = check(mutant.model, mode=mode, ops=with_rule(mutant.op, mutant.rule))
    assert (record.status, record.code, record.mode) == ("fail", mutant.code, mode)
    assert record.suspect is not None
    assert record.suspect.op == mutant.op
    assert record.suspect.passed == record.suspect.tried - 1


@pytest.mark.one_in(3)
@pytest.mark.parametrize("mutant", **names(MUTANTS))
@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_the_verdict_does_not_depend_on_the_seed(mutant: Mutant, seed: int):
    assert check(mutant.model, seed=seed).status == "pass"
    assert check(mutant.model, seed=seed, ops=with_rule(mutant.op, mutant.rule)).status == "fail"


def test_an_error_of_a_millionth_is_located():
    [mutant] = [m for m in MUTANTS if m.name == "relative 1e-6"]
    record = check(mutant.model, ops=with_rule(mutant.op, mutant.rule))
    assert record.suspect is not None
    assert record.suspect.op == mutant.op


def test_the_first_of_two_wrong_nodes_is_the_suspect():
    tested = model(("Exp", "x", "a"), ("Tanh", "a", "b"), ("Exp", "b", "y"))
    record = check(tested, ops=with_rule("Exp", scaled("Exp", 2.0)))
    assert record.suspect is not None
    assert (record.suspect.node, record.suspect.passed, record.suspect.tried) == (0, 1, 3)


def test_a_failure_says_how_far_off_which_entries_are():
    tested = model(("Exp", "x", "y"), x=(2, 2))
    record = check(tested, ops=with_rule("Exp", scaled("Exp", 3.0)), value=np.zeros((2, 2)))
    assert record.entries == {"total": 16, "checked": 16, "failed": 4, "inconclusive": 0, "kink_ok": 0}
    assert [(e.x, e.y) for e in record.worst] == [((i, j), (i, j)) for i in (0, 1) for j in (0, 1)]
    assert all((e.theoretical, round(e.numerical, 12), e.status) == (3.0, 1.0, "fail") for e in record.worst)
    assert (record.max_abs_err, record.needed["atol"]) == (pytest.approx(2.0), pytest.approx(2.0))
    assert record.needed["rtol"] == pytest.approx(2 / 3)


def test_it_would_pass_with_the_tolerance_that_it_names():
    tested = between("Exp")
    ops = with_rule("Exp", scaled("Exp", 1 + 1e-4))
    needed = check(tested, ops=ops).needed
    assert check(tested, ops=ops, rtol=needed["rtol"] * 1.01).status == "pass"
    assert check(tested, ops=ops, rtol=needed["rtol"] * 0.9).status == "fail"
    assert check(tested, ops=ops, atol=needed["atol"] * 1.01).status == "pass"


# Scales


SCALES = [-100, -60, 60, 100]  # powers of two: 1e-30 to 1e30


def rescaled(outer: int, inner: int) -> gc.Model:
    """2^outer f(2^-inner x): the same function in other units."""
    constants = {"unit": 2.0**-inner, "scale": 2.0**outer}
    nodes = ("Mul", "x unit", "u"), ("Exp", "u", "e"), ("Tanh", "e", "t"), ("Mul", "t scale", "y")
    return model(*nodes, constants=constants)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("inner", [0, *SCALES])
@pytest.mark.parametrize("outer", [0, *SCALES])
def test_scales_of_x_and_y_do_not_change_verdicts(outer: int, inner: int):
    tested, here = rescaled(outer, inner), 2.0**inner * np.array([0.3, -0.7, 0.1, -1.1])
    right = check(tested, value=here)
    assert (right.status, right.max_rel_err < 1e-12) == ("pass", True)
    for factor in (2.0, 1 + 1e-5, 1 + 1e-6):
        wrong = check(tested, value=here, ops=with_rule("Exp", scaled("Exp", factor)))
        assert wrong.status == "fail", factor
        assert factor < 1 + 1e-5 or (wrong.suspect is not None and wrong.suspect.op == "Exp")


def test_entries_of_very_different_sizes_are_all_checked():
    tested = model(("Mul", "x w", "h"), ("Sin", "h", "y"), constants={"w": [1e-12, 1e-6, 1.0, 10.0]})
    assert check(tested).status == "pass"
    for entry in range(4):
        off = np.where(np.arange(4) == entry, 2.0, 1.0)
        record = check(tested, ops=with_rule("Sin", scaled("Sin", off)))
        assert (record.status, [e.x for e in record.worst]) == ("fail", [(entry,)])


@pytest.mark.parametrize("method", ["auto", "richardson"])
@pytest.mark.parametrize("units", [[1e-20, 1.0, 1.0, 1e3], [1e-3, 1e-3, 1.0, 1e20], [1e-30, 1e-10, 1e10, 1e30]])
def test_outputs_of_very_different_sizes_are_all_checked(units: list[float], method: str):
    tested = model(("Sin", "x", "h"), ("Mul", "h w", "y"), constants={"w": units})
    assert check(tested, method=method).status == "pass"
    for entry in range(4):
        off = np.where(np.arange(4) == entry, 2.0, 1.0)
        record = check(tested, method=method, ops=with_rule("Sin", scaled("Sin", off)))
        assert (record.status, [e.x for e in record.worst]) == ("fail", [(entry,)])


# Zero gradients


ZEROS = {
    "a product with zero": model(("Mul", "x zero", "y"), constants={"zero": 0.0}),
    "a step function": model(("Floor", "x", "y")),
    "a shift of softmax": model(
        ("ReduceSum", "x", "s", {"keepdims": 1}),
        ("Add", "v s", "h"),
        ("Softmax", "h", "y"),
        inputs={"v": (4,)},
    ),
    "saturated": model(("Mul", "x big", "h"), ("Tanh", "h", "y"), constants={"big": 1e6}),
}


@pytest.mark.parametrize("mode", ["full", "directional"])
@pytest.mark.parametrize("name", ZEROS)
def test_gradients_that_are_zero_pass_but_those_of_steps(name: str, mode: str):
    record = check(ZEROS[name], value=[0.3, -0.7, 0.2, -1.1], mode=mode)
    assert record.status == ("severed" if name == "a step function" else "pass")


def test_a_zero_that_should_not_be_fails():
    record = check(between("Exp"), ops=with_rule("Exp", lambda ct, y, x: (None,)))
    assert (record.status, record.worst[0].pattern) == ("fail", "missing")


# Points, seeds, thresholds


def test_every_point_counts():
    record = check(between("Exp"), points=5)
    assert record.entries["checked"] == 5 * 16
    assert record.points == 5


def test_points_differ_and_one_of_them_can_be_had_alone():
    norms = [check(between("Exp"), points=3, point=k).gradient["norm"] for k in range(3)]
    assert len(set(norms)) == 3
    assert check(between("Exp"), points=1).gradient["norm"] == norms[0]


def test_a_rule_that_is_wrong_at_one_point_only_fails_there():
    """Wrong for x > 0: the sign of the first entry decides, point by point."""
    tested = model(("Exp", "x", "y"), x=(1,))
    wrong = with_rule("Exp", lambda ct, y, x: (sym.where(x > 0, ct * y * 2.0, ct * y),))
    each = [check(tested, point=k, ops=wrong).status for k in range(6)]
    assert set(each) == {"pass", "fail"}
    record = check(tested, points=6, ops=wrong)
    assert record.status == "fail"
    assert sorted({e.point for e in record.worst}) == [k for k, status in enumerate(each) if status == "fail"]


def test_equal_seeds_give_equal_records_and_others_do_not():
    first, again, other = (check(between("Exp"), seed=s).gradient for s in (5, 5, 6))
    assert first == again != other


@pytest.mark.parametrize(("fraction", "status"), [(0.0, "inconclusive"), (0.02, "inconclusive"), (0.25, "pass")])
def test_max_inconclusive_is_the_share_of_entries_that_may_stay_open(fraction: float, status: str):
    record = check(
        model(("Sign", "x", "s"), ("Add", "s x", "y")), value=[0.0, 0.5, 0.7, -0.5], max_inconclusive=fraction
    )
    assert record.status == status


def test_points_at_which_nothing_can_be_said_hide_no_failure_at_others():
    tested = model(("Add", "x half", "h"), ("Sqrt", "h", "y"), x=(1,), constants={"half": 0.5})
    wrong, here = with_rule("Sqrt", scaled("Sqrt", 2.0)), {"val_range": {"x": (-1.0, 1.0)}}
    each = [check(tested, point=k, ops=wrong, **here).status for k in range(8)]
    assert {"fail", "inconclusive"} == set(each)
    for first in (each.index("fail"), each.index("inconclusive")):
        assert first < 7
    record = check(tested, points=8, ops=wrong, **here)
    assert (record.status, record.code) == ("fail", "GC101")
    assert record.entries["failed"] == each.count("fail")
    assert any(f"'y' is not finite at point {each.index('inconclusive')}" in note for note in record.notes)
    right = check(tested, points=8, **here)
    assert (right.status, right.code) == ("inconclusive", "GC302")


# Rounding on both sides


@pytest.mark.one_in(3)
@pytest.mark.parametrize("mode", ["full", "directional"])
@pytest.mark.parametrize("sharpness", [20.0, 60.0, 200.0, 1000.0])
def test_a_saturated_softmax_before_a_linear_layer_does_not_fail(sharpness: float, mode: str):
    """The rule subtracts numbers of size 1, where the derivative is as small as the smallest probability."""
    nodes = ("Mul", "x k", "h"), ("Softmax", "h", "s"), ("MatMul", "s W", "y")
    tested = model(*nodes, constants={"k": sharpness, "W": np.random.default_rng(0).normal(size=(4, 3))})
    statuses = [check(tested, seed=seed, mode=mode).status for seed in range(20)]
    assert "fail" not in statuses
    assert statuses.count("pass") >= 15


def test_gradients_far_below_one_are_checked_where_nothing_cancels():
    tested = model(("Mul", "x k", "h"), ("Softmax", "h", "y"), constants={"k": 200.0})
    for seed in range(5):
        assert check(tested, seed=seed).status == "pass"
        assert check(tested, seed=seed, ops=with_rule("Softmax", scaled("Softmax", 1.001))).status == "fail"
