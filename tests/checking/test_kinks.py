"""At a tie every convention passes, what no convention gives fails where that is certain, and nothing passes by luck."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import gradcheck_cli as gc
from gradcheck_cli.autodiff import symbolic as sym
from gradcheck_cli.report.full import section
from gradcheck_cli.report.text import Style
from gradcheck_cli.results.record import Check
from tests.checking.small import check, model, scaled, with_rule


def said(record: Check) -> tuple[str, ...]:
    """Its notes, but for those on pieces that the point does not reach."""
    return tuple(note for note in record.notes if not note.endswith(" not covered"))


# Kinks


@pytest.mark.parametrize("op", ["Max", "Relu"])
def test_very_many_ties_take_no_longer_than_as_many_entries(op: str):
    """Each of these entries moves one decision: the probes of all are never made whole for that."""
    nodes = ((op, "x zero" if op == "Max" else "x", "m"), ("ReduceSum", "m", "y", {"keepdims": 0}))
    start = time.process_time()
    record = check(model(*nodes, x=(100_000,), constants={"zero": 0.0}), np.zeros(100_000), mode="full", jobs=1)
    assert time.process_time() - start < 30
    assert (record.status, record.entries["total"]) == ("pass", 100_000)


KINKS = {
    "Relu": model(("Relu", "x", "a"), ("Mul", "a two", "y"), constants={"two": 2.0}),
    "Abs": model(("Abs", "x", "y")),
    "Max": model(("Max", "x zero", "y"), constants={"zero": 0.0}),
    "LeakyRelu": model(("LeakyRelu", "x", "y", {"alpha": 0.5})),
    "Clip": model(("Clip", "x zero one", "y"), constants={"zero": 0.0, "one": 1.0}),
}


@pytest.mark.parametrize("name", KINKS)
def test_at_a_kink_a_slope_of_either_side_passes_with_a_note(name: str):
    record = check(KINKS[name], value=np.zeros(4))
    assert (record.status, record.entries["kink_ok"], record.entries["inconclusive"]) == ("pass", 4, 0)
    [note] = said(record)
    assert note.startswith(f"4 entries at a tie of node 0 {name} ")
    assert "': KINK-OK, slopes " in note


OK, JUMP, NONDERIVATIVE = "KINK-OK", "jump", "nonderivative"
# A model, an x of which some entries lie at a kink or a jump, and how many entries of the Jacobian get which verdict.
TIES: dict[str, tuple[gc.Model, Any, dict[str, int]]] = {
    "Relu": (model(("Relu", "x", "y")), [0, 0.5, -0.5, 1], {OK: 1}),
    "Abs": (model(("Abs", "x", "y")), [0, 0.5, -0.5, 1], {OK: 1}),
    "LeakyRelu": (model(("LeakyRelu", "x", "y", {"alpha": 0.5})), [0, 0.5, -0.5, 1], {OK: 1}),
    "PRelu": (model(("PRelu", "x two", "y"), constants={"two": 2.0}), [0, 0.5, -0.5, 1], {OK: 1}),
    "Elu": (model(("Elu", "x", "y", {"alpha": 2.0})), [0, 0.5, -0.5, 1], {OK: 1}),
    "Selu": (model(("Selu", "x", "y")), [0, 0.5, -0.5, 1], {OK: 1}),
    "ThresholdedRelu": (model(("ThresholdedRelu", "x", "y", {"alpha": 1.0})), [1, 0.5, -0.5, 2], {JUMP: 1}),
    "HardSigmoid": (model(("HardSigmoid", "x", "y", {"alpha": 0.25, "beta": 0.5})), [2, 0.5, -2, 1], {OK: 2}),
    "HardSwish": (model(("HardSwish", "x", "y")), [3, 0.5, -3, 1], {OK: 2}),
    "Shrink": (model(("Shrink", "x", "y", {"lambd": 0.5})), [0.5, 0.1, -0.5, 1], {JUMP: 2}),
    "Max": (model(("Max", "x one", "y"), constants={"one": 1.0}), [1, 0.5, -0.5, 2], {OK: 1}),
    "Min": (model(("Min", "x one", "y"), constants={"one": 1.0}), [1, 0.5, -0.5, 2], {OK: 1}),
    "Clip": (model(("Clip", "x zero one", "y"), constants={"zero": 0.0, "one": 1.0}), [0, 0.5, 1, 2], {OK: 2}),
    "ReduceMax": (model(("ReduceMax", "x", "y", {"keepdims": 0})), [1, 1, -0.5, 0.2], {OK: 2}),
    "ReduceMin": (model(("ReduceMin", "x", "y", {"keepdims": 0})), [1, 1, -0.5, -0.5], {OK: 2}),
    "ReduceL1": (model(("ReduceL1", "x", "y", {"keepdims": 0})), [0, 1, -0.5, -0.5], {OK: 1}),
    "ReduceL2": (model(("ReduceL2", "x", "y", {"keepdims": 0})), [0, 0, 0, 0], {OK: 4}),
    "MaxPool": (model(("MaxPool", "x", "y", {"kernel_shape": (2,)}), x=(1, 1, 4)), [[[1, 1, 0.2, 0.1]]], {OK: 2}),
    "GlobalMaxPool": (model(("GlobalMaxPool", "x", "y"), x=(1, 1, 4)), [[[1, 1, 0.2, 0.1]]], {OK: 2}),
    "LpPool": (
        model(("LpPool", "x", "y", {"kernel_shape": (2,), "p": 1}), x=(1, 1, 4)), [[[0, 1, 0.2, 0.1]]], {OK: 1}),
    "TopK": (  # moving one of three equal values moves the first or the third, never the second
        model(("TopK", "x k", "y"), constants={"k": np.array([2])}), [1, 1, 1, 0.1], {OK: 3, NONDERIVATIVE: 1}),
    "Floor": (model(("Floor", "x", "y")), [1, 0.5, -0.5, 0.2], {JUMP: 1}),
    "Round": (model(("Round", "x", "y")), [0.5, 0.4, -0.3, 0.2], {JUMP: 1}),
    "Sign": (model(("Sign", "x", "y")), [0, 0.4, -0.3, 0.2], {JUMP: 1}),
    "Mod": (model(("Mod", "x one", "y", {"fmod": 1}), constants={"one": 1.0}), [1, 0.5, -0.5, 0.2], {JUMP: 1}),
    "Cast": (
        model(("Cast", "x", "i", {"to": 7}), ("Cast", "i", "y", {"to": 11})), [1, 0.5, -0.5, 0.2], {JUMP: 1}),
    "Hardmax": (model(("Hardmax", "x", "y")), [1, 1, -0.5, 0.2], {JUMP: 4}),
    "a maximum at the bound that it has to be above": (
        model(("ReduceMax", "x", "m", {"keepdims": 0}), ("Greater", "m one", "c"), ("Add", "x one", "d"),
              ("Where", "c x d", "y"), constants={"one": 1.0}), [1, 0.5, -0.5, 0.2], {JUMP: 4}),
    "a step that a condition makes": (
        model(("Greater", "x zero", "c"), ("Add", "x two", "d"), ("Where", "c x d", "y"),
              constants={"zero": 0.0, "two": 2.0}), [0, 0.5, -0.5, 0.2], {JUMP: 1}),
    "a slope that a condition makes": (
        model(("Greater", "x zero", "c"), ("Mul", "x two", "d"), ("Where", "c x d", "y"),
              constants={"zero": 0.0, "two": 2.0}), [0, 0.5, -0.5, 0.2], {OK: 1}),
    "a condition that holds at one number": (
        model(("Equal", "x zero", "c"), ("Mul", "x two", "d"), ("Where", "c d x", "y"),
              constants={"zero": 0.0, "two": 2.0}), [0, 0.5, -0.5, 0.2], {NONDERIVATIVE: 1}),
    "a sign that is squared": (
        model(("Sign", "x", "s"), ("Mul", "s s", "q"), ("Mul", "q x", "y")), [0, 0.5, -0.5, 0.2], {NONDERIVATIVE: 1}),
    "an infinite slope": (
        model(("Add", "x one", "b"), ("Sub", "b one", "c"), ("Abs", "c", "a"), ("Pow", "a third", "y"), x=(1,),
              constants={"third": 1 / 3, "one": 1.0}), [0], {JUMP: 1}),
    "pieces that hide a slope": (
        model(("Relu", "x", "a"), ("Neg", "x", "n"), ("Relu", "n", "b"), ("Sub", "a b", "y")), [0, 0.5, -0.5, 0.2],
        {NONDERIVATIVE: 1}),
    "a quantizer": (
        model(("QuantizeLinear", "x s z", "q"), ("DequantizeLinear", "q s z", "y"),
              constants={"s": np.float64(0.1), "z": np.int8(0)}), [0.05, 0.5, -0.5, 0.2], {JUMP: 1}),
}  # fmt: skip
SEVERED = {"Floor", "Round", "Sign", "Cast", "Hardmax", "a quantizer"}  # which is worse than an open entry
METHODS = ["auto", "complex-step", "richardson", "central", "forward"]


WAYS = [{"method": method, "mode": mode} for method in METHODS for mode in ("full", "directional")]
WAYS += [{**way, "delta": delta} for way in WAYS for delta in (1e-3,) if way["method"] in ("central", "forward")]


@pytest.mark.parametrize("name", TIES)
def test_at_a_tie_the_slopes_from_both_sides_decide_whatever_the_method(name: str):
    tested, value, verdicts = TIES[name]
    open_ = sum(count for verdict, count in verdicts.items() if verdict != OK)
    for way in (w for w in WAYS if w["mode"] == "full" and "delta" not in w):
        record = check(tested, value=value, max_inconclusive=0.0, **way)
        rough = way["method"] in ("central", "forward")  # and open at places without a tie
        assert (record.entries["kink_ok"], record.entries["failed"]) == (verdicts.get(OK, 0), 0), way
        found = [entry.reason for entry in record.worst if entry.slopes and entry.status == "inconclusive"]
        assert {reason: found.count(reason) for reason in found} == {k: n for k, n in verdicts.items() if k != OK}, way
        expected = ("severed", "GC107") if name in SEVERED else ("inconclusive", "GC301") if open_ else ("pass", "")
        assert rough or (record.status, record.code) == expected, way


@pytest.mark.one_in(6)
@pytest.mark.parametrize("name", TIES)
def test_at_a_tie_no_way_fails_and_what_has_no_slope_does_not_pass(name: str):
    tested, value, verdicts = TIES[name]
    for way in WAYS:
        record = check(tested, value=value, max_inconclusive=0.0, **way)
        assert record.entries["failed"] == 0, way
        expected = "severed" if name in SEVERED else "inconclusive"
        assert record.status == expected or (record.status == "pass" and set(verdicts) == {OK}), way


@pytest.mark.one_in(2)
@pytest.mark.parametrize("method", METHODS)
def test_a_tie_is_found_wherever_it_lies(method: str):
    for position in range(48):
        value = np.where(np.arange(48) == position, 0.0, np.linspace(-1.0, 1.0, 48))
        record = check(model(("Abs", "x", "a"), ("ReduceSum", "a", "y", {"keepdims": 0}), x=(48,)), value=value,
                       method=method, max_inconclusive=0.0, rtol=1e-3)  # fmt: skip
        assert (record.status, record.entries["kink_ok"]) == ("pass", 1), position
        assert [entry.x for entry in record.worst if entry.status == "kink-ok"] == [(position,)]


def test_a_tie_between_entries_is_found_wherever_it_lies():
    for i in range(12):
        for j in range(i):
            value = np.linspace(-1.0, 1.0, 12)
            value[[i, j]] = 3.0
            record = check(model(("ReduceMax", "x", "y", {"keepdims": 0}), x=(12,)), value=value)
            assert [entry.x for entry in record.worst] == [(j,), (i,)]
            assert (record.status, record.entries["kink_ok"]) == ("pass", 2), (i, j)


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
    "two maxima of which one has to be above a bound": (
        model(("ReduceMax", "x", "m", {"keepdims": 0}), ("Greater", "m five", "c"), ("Sin", "x", "s"),
              ("Where", "c x s", "y"), constants={"five": 5.0}), [1, 1, 0, 1]),
}  # fmt: skip


@pytest.mark.parametrize("name", SMOOTH)
def test_a_decision_that_changes_nothing_is_no_kink(name: str):
    tested, value = SMOOTH[name]
    for way in WAYS:
        record = check(tested, value=value, **way)
        exact = way["method"] in ("auto", "complex-step")
        assert record.status == "pass" or (record.status == "inconclusive" and not exact), way
        assert record.entries["kink_ok"] == 0
        assert not any("at a tie of" in note for note in record.notes), way


# Conventions


def at_zero(share: Any) -> Any:
    """A rule of Relu, or of Abs, that gives `share` of the way from the left slope to the right one at 0."""

    def rule(low: float) -> Any:
        def vjp(ct: Any, y: Any, x: Any) -> tuple[Any]:
            between = low + (1 - low) * share
            return (sym.where(x > 0, ct, sym.where(x < 0, ct * low, ct * between)),)

        return vjp

    return {**with_rule("Relu", rule(0.0)), ("", "Abs"): with_rule("Abs", rule(-1.0))["", "Abs"]}


BENDS = {"Relu": model(("Sin", "x", "h"), ("Relu", "h", "a"), ("Exp", "a", "y")),
         "Abs": model(("Sin", "x", "h"), ("Abs", "h", "a"), ("Exp", "a", "y"))}  # fmt: skip


@pytest.mark.parametrize("method", ["auto", "richardson"])
@pytest.mark.parametrize("name", BENDS)
def test_every_gradient_between_the_slopes_passes_and_every_other_one_fails(name: str, method: str):
    for share in (0.0, 1e-9, 0.1, 0.25, 0.5, 0.9, 1.0):
        record = check(BENDS[name], value=[0, 0.5, -0.5, 1], ops=at_zero(share), method=method)
        assert (record.status, record.entries["kink_ok"]) == ("pass", 1), share
    for share in (-1.0, -1e-3, -1e-5, 1 + 1e-5, 1.5, 100.0):
        record = check(BENDS[name], value=[0, 0.5, -0.5, 1], ops=at_zero(share), method=method)
        assert (record.status, record.code, record.entries["failed"]) == ("fail", "GC104", 1), share
        assert "1 entry at a tie of node 1" in record.notes[0]
        assert "not a subgradient, slopes " in record.notes[0]


def test_a_gradient_that_is_no_number_fails_at_a_tie_too():
    record = check(BENDS["Relu"], value=[0, 0.5, -0.5, 1], ops=at_zero(np.nan))
    assert (record.status, record.code) == ("fail", "GC103")


def shared(weights: Any) -> Any:
    """A rule of a maximum that shares out its cotangent among entries that are the largest."""
    return with_rule("ReduceMax", lambda ct, y, x, **m: (sym.where(sym.equal(x, y), ct * np.asarray(weights), 0),))


@pytest.mark.parametrize("weights", [[1, 0, 0, 0], [0, 1, 0, 0], [1 / 3] * 4, [0.2, 0.5, 0.3, 0]], ids=str)
def test_a_maximum_may_count_any_one_or_share_it_out(weights: list[float]):
    tested = model(("ReduceMax", "x", "y", {"keepdims": 0}))
    record = check(tested, value=[1, 1, 1, 0.5], ops=shared(weights))
    assert (record.status, record.entries["kink_ok"]) == ("pass", 3)


@pytest.mark.parametrize(("weights", "times"), [([1, 1, 1, 0], "3"), ([0] * 4, "0"), ([0.25] * 4, "0.75")], ids=str)
def test_a_maximum_may_not_count_more_than_all_of_it_or_less(weights: list[float], times: str):
    tested = model(("ReduceMax", "x", "y", {"keepdims": 0}))
    record = check(tested, value=[1, 1, 1, 0.5], ops=shared(weights))
    assert (record.status, record.code, record.entries["failed"]) == ("fail", "GC104", 3)
    assert record.notes[0] == (
        f"3 entries at ties of node 0 ReduceMax 'y': together they are {times} times the derivative along directions "
        "that keep the ties"
    )
    assert [entry.numerical for entry in record.worst] == pytest.approx([1 / 3] * 3)
    assert record.suspect is not None
    assert record.suspect.diagnosis.startswith("the gradient along directions that keep the ties is")


def shared_out(share: tuple[float, float]) -> Any:
    """A rule of the maximum of two that gives each its share where they are equal."""

    def rule(ct: Any, y: Any, a: Any, b: Any) -> Any:
        equal = sym.equal(a, b)
        return tuple(
            ct * sym.where(equal, s, sym.where(sym.equal(x, y), 1.0, 0.0)) for x, s in zip((a, b), share, strict=True)
        )

    return rule


@pytest.mark.parametrize("method", ["auto", "richardson", "central"])
@pytest.mark.parametrize("share, status", [
    ((1.0, 0.0), "pass"), ((0.3, 0.7), "pass"), ((1.0, 1.0), "fail"), ((0.0, 0.0), "fail"), ((0.5, 0.0), "fail"),
])  # fmt: skip
def test_two_operands_share_out_a_maximum_and_may_not_count_it_twice(share: Any, status: str, method: Any):
    """Whatever the method; beside them are entries that y does not depend on."""
    tested = model(("Max", "a b", "h"), ("Exp", "h", "y"), x=(1,), inputs={"a": (3,), "b": (3,)})
    ops = {**gc.OPS, ("", "Max"): replace(gc.OPS["", "Max"], vjp=shared_out(share))}
    values = {"a": np.array([0.1, 0.5, -0.3]), "b": np.array([0.1, 0.2, -0.3])}
    checks = gc.check(tested, ["a", "b"], "y", ops=ops, x_init_value=values, method=method).checks
    assert [record.status for record in checks] == [status] * 2, [record.notes for record in checks]


def test_where_one_direction_moves_several_tied_values_all_may_be_counted():
    """max(x, 2 x): counting both in full gives 3, beside the slopes 1 and 2 but no rule is to blame."""
    tested = model(("Concat", "x x2", "h", {"axis": 0}), ("ReduceMax", "h", "y", {"keepdims": 0}), x=(1,))
    tested = model(("Mul", "x w", "h"), ("ReduceMax", "h", "y", {"keepdims": 0}), x=(1,), constants={"w": [1.0, 2.0]})
    record = check(tested, value=[0.0], ops=shared([1, 1]))
    assert (record.status, record.worst[0].reason) == ("inconclusive", NONDERIVATIVE)


@pytest.mark.parametrize("seed", range(4))
def test_a_tied_x_does_not_move_by_roundings_where_another_one_is_free(seed: int):
    """Along z alone |x| stays at its tie: a rounding of 1e-17 is no direction across it."""
    chosen = ("Where", "c a z", "y")
    tested = model(("Abs", "x", "a"), chosen, x=(), inputs={"z": ()}, constants={"c": True})
    records = gc.check(tested, ["x", "z"], "y", x_init_value={"x": 0.0}, mode="full", seed=seed).checks
    assert [record.status for record in records] == ["pass", "pass"]


def test_where_two_bounds_meet_the_slope_between_them_is_no_failure():
    """The smaller of c and the larger of c and x is c; each of the two may let everything through where x is c."""
    tested = model(("Clip", "x c c", "y"), constants={"c": 0.5})
    through = with_rule("Clip", lambda ct, y, x, low, high: (sym.where(sym.equal(x, low), ct, 0), None, None))
    record = check(tested, value=[0.5, 0.3, 0.7, 0.9], ops=through)
    assert [(entry.x, entry.reason) for entry in record.worst] == [((0,), NONDERIVATIVE)]


RNG = np.random.default_rng(5)
DEEP = {  # every unit is tied at x = 0
    "layers": model(*(n for i in range(3) for n in (("MatMul", f"{'x' if not i else f'a{i}'} W{i}", f"h{i}"),
                                                      ("Relu", f"h{i}", f"a{i + 1}"))),
                    ("ReduceSum", "a3", "y", {"keepdims": 0}),
                    constants={f"W{i}": RNG.normal(size=(4, 4)) for i in range(3)}),
    "branches that meet": model(("Relu", "x", "a"), ("Abs", "x", "b"), ("Mul", "x k", "n"), ("Relu", "n", "c"),
                                ("Sub", "a b", "d"), ("Sub", "d c", "e"), ("Relu", "e", "f"), ("Add", "f a", "y"),
                                constants={"k": -3.0}),
    "a shortcut": model(("MatMul", "x W", "h"), ("Relu", "h", "a"), ("Add", "a x", "s"), ("Relu", "s", "y"),
                        constants={"W": RNG.normal(size=(4, 4))}),
    "a product": model(("MatMul", "x W", "h"), ("Abs", "h", "a"), ("Add", "a one", "b"), ("Relu", "x", "c"),
                       ("Mul", "b c", "y"), constants={"W": RNG.normal(size=(4, 4)), "one": 1.0}),
}  # fmt: skip


@pytest.mark.one_in(3)
@pytest.mark.parametrize("mode", ["full", "directional"])
@pytest.mark.parametrize("name", DEEP)
def test_where_many_units_are_tied_no_convention_fails(name: str, mode: str):
    for seed in range(8):
        share = np.random.default_rng(seed).choice([0.0, 0.5, 1.0], 4)
        for value in (np.zeros(4), np.where(np.arange(4) == seed % 4, 0.0, 0.3)):
            record = check(DEEP[name], value=value, ops=at_zero(share), mode=mode, seed=seed)
            assert record.status != "fail", (share, record.notes)


WIDE = RNG.normal(size=(20, 6))
EVERYWHERE = {  # all of x is tied to a constant, and every direction crosses ties
    "entries": model(("Relu", "x", "y"), x=(20,)),
    "a sum": model(("Relu", "x", "h"), ("ReduceSum", "h", "y", {"keepdims": 0}), x=(20,)),
    "weighed sums": model(("Relu", "x", "h"), ("MatMul", "h W", "y"), x=(20,), constants={"W": WIDE}),
    "beside what is smooth": model(("Relu", "x", "h"), ("Tanh", "x", "t"), ("Add", "h t", "y"), x=(20,)),
}  # fmt: skip


@pytest.mark.parametrize("name", EVERYWHERE)
@pytest.mark.parametrize("slope", [0.0, 0.5, 1.0, 5.0, -1.0])
def test_where_every_direction_crosses_a_tie_a_directional_check_draws_entries(name: str, slope: float):
    rule = lambda ct, y, x: (sym.where(x > 0, ct, sym.where(sym.equal(x, 0.0), ct * slope, 0)),)  # noqa: E731
    given: Any = {"value": np.zeros(20), "ops": with_rule("Relu", rule)}
    full, record = (check(EVERYWHERE[name], mode=mode, **given) for mode in ("full", "directional"))
    assert (full.status, full.code) == (("pass", "") if 0 <= slope <= 1 else ("fail", "GC104"))
    assert (record.status, record.code) == (full.status, full.code)
    if record.mode == "sampled":
        assert record.chosen == "every direction crosses a tie"


def test_wrong_rules_fail_at_the_other_rows_of_a_model_with_a_tie():
    for factor in (2.0, 1 + 1e-3, 1 + 1e-6):
        record = check(KINKS["Relu"], value=[0.0, 0.5, 0.7, -0.5], ops=with_rule("Mul", scaled("Mul", factor)))
        assert (record.status, record.code) == ("fail", "GC101")


def test_between_slopes_of_random_directions_a_wrong_rule_does_not_hide():
    tested = model(("Relu", "x", "r"), ("Sin", "x", "s"), ("Mul", "s small", "t"), ("Add", "r t", "y"), x=(40,),
                   constants={"small": 1e-3})  # fmt: skip
    value = np.where(np.arange(40) == 7, 0.0, np.linspace(0.2, 0.9, 40))
    for factor in (2.0, 1 + 1e-3):
        wrong = with_rule("Sin", scaled("Sin", factor))
        assert check(tested, value=value, mode="directional", ops=wrong).status != "pass"


# Notes


def test_an_inconclusive_check_names_the_node_the_slopes_and_what_to_try():
    record = check(TIES["pieces that hide a slope"][0], value=[0, 0.5, -0.5, 0.2])
    assert said(record) == (
        "1 entry at a tie of node 0 Relu 'a', node 2 Relu 'b': nonderivative, slopes 1 and 1 from the two sides, "
        "gradient 0",
    )
    [entry] = record.worst
    assert (entry.status, entry.reason, entry.unseen) == ("inconclusive", NONDERIVATIVE, np.inf)
    assert entry.slopes == pytest.approx((1.0, 1.0))
    text = section((record,), Style())
    assert "x -> y       theoretical    left slope   right slope    noise  verdict" in text
    assert "  try        another --seed, or values away from the kink: --val-range" in text
    assert max(map(len, text.splitlines())) <= 80


def test_entries_at_a_kink_are_listed_where_more_is_asked_for():
    record = check(KINKS["Relu"], value=[0, 0.5, 0.7, -0.5])
    [entry] = record.worst
    assert (entry.status, entry.x, entry.theoretical, entry.numerical) == ("kink-ok", (0,), 0.0, 0.0)
    assert entry.slopes == pytest.approx((0.0, 2.0))
    assert "KINK-OK" not in section((record,), Style())
    assert "KINK-OK" in section((record,), Style(verbosity=1))


def test_a_composed_operator_is_named_once():
    record = check(model(("HardSwish", "x", "y")), value=[3, 3, -3, 1])
    assert len(said(record)) == 1


def test_of_many_nodes_at_a_tie_a_few_are_named():
    nodes = [("Relu", f"a{i}" if i else "x", f"a{i + 1}") for i in range(9)]
    record = check(model(*nodes), value=[0, 0.5, -0.5, 1])
    [note] = said(record)
    assert note.startswith("1 entry at a tie of node 0 Relu 'a1', node 1 Relu 'a2', ")
    assert "node 4 Relu 'a5' and 4 more: KINK-OK, slopes 0 and 1 from the two sides, gradient 0" in note


@pytest.mark.parametrize("method", ["richardson", "central", "forward"])
def test_a_perturbation_across_a_kink_is_called_that(method: str):
    record = check(model(("Abs", "x", "y"), x=(1,)), value=[-1e-4], method=method, delta=1e-3)
    assert record.status == ("pass" if method == "richardson" else "inconclusive")
    if method != "richardson":
        assert said(record) == ("1 row perturbed across a branch of node 0 Abs 'y': a smaller --delta may stay on "
                                "one side",)  # fmt: skip


@pytest.mark.parametrize("distance", [1e-2, 1e-6, 1e-9])
@pytest.mark.parametrize("name", KINKS)
def test_near_a_kink_there_is_a_derivative_which_passes(name: str, distance: float):
    value = np.array([distance, -distance, 2 * distance, 0.5])
    record = check(KINKS[name], value=value)
    assert (record.status, record.entries["kink_ok"]) == ("pass", 0)


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
    assert (record.status, record.entries["kink_ok"]) == ("pass", 4)


@pytest.mark.parametrize("weights", [[0.3, 0.55, -0.93], [1.0, -0.5, 1.0]], ids=str)
def test_where_results_that_are_tied_follow_one_another_their_slopes_at_the_tie_bound_nothing(weights: list[float]):
    """The gradient of a running maximum as torch.cummax has it: the last of equal values counts."""

    def last(ct: Any, y: Any, a: Any, b: Any) -> tuple[Any, Any]:
        return sym.where(b >= a, 0, ct), sym.where(b >= a, ct, 0)

    tested = model(
        ("Split", "x", "a b c", {"axis": 0, "num_outputs": 3}), ("Max", "a b", "m"), ("Max", "m c", "n"),
        ("Concat", "a m n", "p", {"axis": 0}), ("Mul", "p w", "q"), ("ReduceSum", "q", "y", {"keepdims": 0}),
        x=(3,), constants={"w": weights},
    )  # fmt: skip
    right = check(tested, value=[1.0, 1.0, 1.0], ops=with_rule("Max", last))
    assert (right.status, right.entries["failed"]) == ("inconclusive", 0), right.notes
    wrong = check(tested, value=[1.0, 1.0, 0.5], ops=with_rule("Max", scaled("Max", 3.0)))
    assert wrong.status == "fail"


def normed(rows: int) -> gc.Model:
    """Attention divided by its largest sum of a row, all of which are 1 but for roundings."""
    return model(
        ("Tanh", "x", "t"), ("Softmax", "t", "s", {"axis": -1}), ("ReduceSum", "s axes", "r", {"keepdims": 0}),
        ("ReduceMax", "r", "m", {"keepdims": 0}), ("Div", "s m", "y"), constants={"axes": np.asarray([-1])}, x=(rows, 5),
    )  # fmt: skip


@pytest.mark.parametrize("rows", [3, 16])
def test_a_tie_of_roundings_alone_hides_neither_right_nor_wrong_rules(rows: int):
    """Another one of equal sums is the largest at every step, and y is smooth all the same."""
    record = check(normed(rows))
    assert (record.status, record.entries["inconclusive"]) == ("pass", 0)
    wrong = check(normed(rows), ops=with_rule("Tanh", scaled("Tanh", 1.001)))
    assert (wrong.status, wrong.code) == ("fail", "GC101")
