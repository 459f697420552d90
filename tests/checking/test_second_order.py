"""The gradient's own gradient: a row of its own, right where rules are, wrong where a rule is right only once."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import numpy as np
import pytest

import gradcheck_cli as gc
from gradcheck_cli.autodiff import symbolic as sym
from gradcheck_cli.op import zero
from gradcheck_cli.results.record import Check
from tests.checking.small import SQUARE, model, scaled, with_rule
from tests.rounding import assert_rounded

WIDE = {"wide": np.float64(1.5)}
EXP = model(("Mul", "x wide", "h"), ("Exp", "h", "a"), ("Sin", "a", "y"), constants=WIDE)


def both(tested: gc.Model, value: Any = None, **more: Any) -> tuple[Check, Check]:
    """The records of first and second order."""
    given = {} if value is None else {"x_init_value": {"x": np.asarray(value)}}
    first, second = gc.check(tested, "x", tested.graph.outputs[0], second_order=True, **given, **more).checks
    return first, second


NETS = {
    "a chain": EXP,
    "a sum": model(("Tanh", "x", "h"), ("Mul", "h x", "p"), ("ReduceSum", "p", "y", {"keepdims": 0})),
    "a product of matrices": model(("MatMul", "x W", "h"), ("Softmax", "h", "y"), x=(2, 3), constants={"W": SQUARE}),
    "something linear": model(("MatMul", "x W", "y"), x=(2, 3), constants={"W": SQUARE}),
    "kinks": model(("Relu", "x", "h"), ("Mul", "h x", "y"), x=(6,)),
    "nothing that flows": model(("Floor", "x", "h"), ("Mul", "h two", "y"), constants={"two": np.float64(2.0)}),
    "a norm": model(("LayerNormalization", "x one", "h"), ("Tanh", "h", "y"), x=(2, 4), constants={"one": np.ones(4)}),
    "x itself": model(("Identity", "x", "y")),
}  # fmt: skip


@pytest.mark.parametrize("mode", ["full", "directional", "nodes"])
@pytest.mark.parametrize("name", NETS)
def test_right_rules_pass_in_both_orders(name: str, mode: str):
    first, second = both(NETS[name], mode=mode)
    expected = "severed" if name == "nothing that flows" else "pass"
    assert (first.status, second.status) == (expected, "pass"), (second.message, second.notes, second.worst[:2])


def test_the_second_order_is_a_record_of_its_own():
    first, second = both(NETS["a sum"])
    assert (first.id, second.id) == ("graph::d y/d x", "graph::d2 y/d x^2")
    assert (second.x, second.y, second.gradient_of) == ("x", "d y/d x", "y")
    assert (second.x_shape, second.y_shape, second.entries["checked"]) == ((4,), (4,), 16)
    assert second.as_json()["gradient_of"] == "y"
    assert first.as_json()["gradient_of"] == ""


def test_what_is_compared_is_the_hessian_times_one_weight():
    """y = sum x_i^4: its Hessian is 12 x^2 on the diagonal, and w is one Gaussian number by seed."""
    quartic = model(("Mul", "x x", "q"), ("Mul", "q q", "p"), ("ReduceSum", "p", "y", {"keepdims": 0}), x=(3,))
    x = np.array([0.5, -1.0, 2.0])
    record = both(quartic, x, seed=4)[1]
    w = np.random.default_rng([4, 3]).normal(size=())
    assert_rounded(record.gradient["norm"], abs(w) * np.linalg.norm(12 * x**2), roundings=16)


def test_every_pair_has_its_own_second_order():
    tested = model(("Mul", "x z", "h"), ("Sin", "h", "y"), inputs={"z": (4,)})
    records = gc.check(tested, ["x", "z"], "y", second_order=True, points=2).checks
    assert [r.id.split("::")[1] for r in records] == ["d y/d x", "d2 y/d x^2", "d y/d z", "d2 y/d z^2"]
    assert {r.status for r in records} == {"pass"}
    assert records[1].entries["checked"] == 32


def keeping_values(ct: Any, y: Any, x: Any) -> tuple[Any]:
    return (ct * ct.tape.constant(y.value),)


def detached(ct: Any, y: Any, x: Any) -> tuple[Any]:
    return (ct * ct.tape.apply("Detach", y),)


DETACH = {("", "Detach"): gc.Op("Detach", lambda x: x + 0, zero, gc.OPS["", "Exp"].batching)}


def test_a_rule_that_keeps_values_is_right_once():
    first, second = both(EXP, ops=with_rule("Exp", keeping_values))
    assert (first.status, second.status, second.code) == ("pass", "fail", "GC101")
    assert second.message == (
        "the gradient keeps values of the point at which its nodes were made, "
        "from Mul 'a_grad/Mul' in the gradient of node 1 Exp 'a' on"
    )
    assert second.suspect is not None
    assert (second.suspect.node, second.suspect.inside) == (1, "gradient of node 1 Exp 'a'")


def test_a_rule_that_stops_its_own_gradient_is_right_once():
    first, second = both(EXP, ops={**with_rule("Exp", detached), **DETACH})
    assert (first.status, second.status, second.entries["failed"]) == ("pass", "fail", 4)
    assert second.suspect is not None
    assert (second.suspect.op, second.suspect.inside) == ("Detach", "gradient of node 1 Exp 'a'")


@pytest.mark.parametrize("factor", [2.0, -1.0, 1 + 1e-6])
def test_a_wrong_rule_of_a_node_of_the_gradient_fails_there(factor: float):
    """Cos stands in the rule of Sin alone."""
    first, second = both(EXP, ops=with_rule("Cos", scaled("Cos", factor)))
    assert (first.status, second.status) == ("pass", "fail")
    assert second.suspect is not None
    assert (second.suspect.node, second.suspect.op, second.suspect.inside) == (2, "Cos", "gradient of node 2 Sin 'y'")


def test_a_rule_that_cannot_be_differentiated_leaves_the_first_order_alone():
    without = {**gc.OPS, ("", "Cos"): dataclasses.replace(gc.OPS["", "Cos"], vjp=None)}
    first, second = both(EXP, ops=without)
    assert (first.status, second.status, second.code) == ("pass", "unsupported", "GC501")
    assert second.message == "no gradient for 'Cos' (in the gradient of node 2 Sin 'y'); it stops d2 y/d x^2."


def test_without_a_gradient_there_is_no_second_one():
    without = {**gc.OPS, ("", "Exp"): dataclasses.replace(gc.OPS["", "Exp"], vjp=None)}
    first, second = both(EXP, ops=without)
    assert (first.code, second.code) == ("GC501", "GC501")


def test_what_is_no_gradient_of_anything_is_not_symmetric():
    """(x, z) -> (z, -x) is no gradient: a rule that gives it is caught by its Hessian, if not before."""

    def turned(ct: Any, y: Any, x: Any) -> tuple[Any]:
        a, b = sym.split(x, (1, 1), 0)
        return (ct * sym.concat([b, -a], 0),)

    square = gc.Op("HalfSquare", lambda x: x * x / 2, lambda ct, y, x: turned(ct, y, x), gc.OPS["", "Exp"].batching)
    tested = model(("HalfSquare", "x", "h"), ("ReduceSum", "h", "y", {"keepdims": 0}), x=(2,))
    ops = {**gc.OPS, ("", "HalfSquare"): square}
    loaded = gc.Model(tested.source, ops)
    first, second = gc.check(
        loaded, "x", "y", second_order=True, ops=ops, x_init_value={"x": np.array([0.5, 0.25])}
    ).checks
    assert (first.status, second.status) == ("fail", "fail")
    assert any(
        "the Hessian is not symmetric: entries [0,1] and [1,0]" in said for said in (second.message, *second.notes)
    )


def test_a_pass_has_a_number_that_passes_where_the_complex_step_has_none() -> None:
    """The second derivative of log at 1e-281 is beyond float64, that of log(exp(-x^2)) is -2; differences see it."""
    tested = model(("Mul", "x x", "q"), ("Neg", "q", "n"), ("Exp", "n", "e"), ("Log", "e", "y"))
    for here in ([15.0, -20.0, 21.0, 25.4], [25.0, 25.2, 0.5, -1.0]):
        for record in both(tested, here):
            assert record.status == "pass", record.message
            assert np.isfinite([record.max_abs_err, record.max_rel_err]).all()


def half_kept(ct: Any, y: Any, x: Any, w: Any) -> tuple[Any, Any]:
    """The rule of a product, of which one cotangent does not know that it moves with x."""
    return ct * w, ct * ct.tape.apply("Detach", x)


def all_statuses(tested: gc.Model, *xs: str, **more: Any) -> dict[str, str]:
    """The outcomes of second order by x."""
    records = gc.check(tested, xs, tested.graph.outputs[0], second_order=True, **more).checks
    return {r.x: r.status for r in records if r.gradient_of}


PRODUCT = model(("Mul", "x z", "p"), ("ReduceSum", "p", "y", {"keepdims": 0}), inputs={"z": (4,)})


@pytest.mark.parametrize("mode", ["full", "directional", "nodes"])
def test_a_gradient_that_does_not_move_with_another_tensor_is_right_once(mode: str):
    """The second derivatives of a product by each operand alone are zero whatever becomes of the other."""
    ops = {**with_rule("Mul", half_kept), **DETACH}
    tested = gc.Model(PRODUCT.source, ops)
    *_, second, _, other = gc.check(tested, ["x", "z"], "y", second_order=True, ops=ops, mode=mode).checks
    assert (second.status, second.code, other.status) == ("fail", "GC101", "pass")
    said = (
        "d y/d z moves with 'x' otherwise than the rules say: along one direction NUMBER by differences, 0 by the rules"
    )
    assert re.sub(r"-?[\d.]+(?= by differences)", "NUMBER", second.message) == said
    assert all_statuses(tested, "x", ops=ops) == {"x": "pass"}


MIXED = {
    "a product": PRODUCT,
    "an exponent of 0": model(("Pow", "x z", "y"), x=(3,), inputs={"z": (3,)}),
    "one that leads to the other": model(("Exp", "x", "z"), ("Mul", "x z", "p"), ("Tanh", "p", "y")),
    "one that is not read": model(("Mul", "x z", "h"), ("Add", "h c", "y"), inputs={"z": (4,), "c": (4,)}),
    "kinks": model(("Max", "x z", "m"), ("Relu", "m", "r"), ("Mul", "r m", "y"), inputs={"z": (4,)}),
    "a layer": model(("Gemm", "x z b", "g"), ("LayerNormalization", "g s", "n"), ("Gelu", "n", "y"), x=(2, 3),
                     inputs={"z": (3, 4), "b": (4,), "s": (4,)}),
}  # fmt: skip


@pytest.mark.parametrize("name", MIXED)
def test_right_rules_move_all_gradients_as_they_say(name: str):
    tested = MIXED[name]
    xs = [n for n in ("x", "z", "b", "s", "c") if n in tested]
    values = {"x_init_value": {"x": np.array([0.5, 1.0, 2.0]), "z": np.zeros(3)}} if "exponent" in name else {}
    assert set(all_statuses(tested, *xs, points=3, **values).values()) == {"pass"}


@pytest.mark.parametrize("at", [0.0, 1.0])
def test_ties_of_two_tensors_break_no_law(at: float):
    found = gc.check(MIXED["kinks"], ["x", "z"], "y", second_order=True, x_init_value={"x": at, "z": at}).checks
    assert "fail" not in {r.status for r in found}


def test_what_takes_too_much_memory_ends_no_other_second_order() -> None:
    tested = model(("Mul", "x z", "p"), ("Det", "p", "d"), ("Tanh", "d", "y"), x=(150, 150), inputs={"z": (150, 150)})
    assert all_statuses(tested, "x", "z", mode="directional") == {"x": "limit", "z": "limit"}
