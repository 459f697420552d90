"""Gradients that are tensors of the model: right ones pass, wrong ones fail with the node at fault."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradcheck_cli as gc
from gradcheck_cli.errors import UsageError
from gradcheck_cli.ops import OPS
from tests.checking.small import model
from tests.claims.written import BACKWARD, BROKEN, W, tanh, write

TANH = ("", "Tanh")
WRONG_TANH: Any = {**OPS, TANH: replace(OPS[TANH], vjp=lambda ct, ans, x: (ct * (1.0 - ans * ans) * 1.001,))}


def only(report: gc.Report) -> Any:
    """The only record."""
    (check,) = report.checks
    return check


def test_a_right_gradient_passes(tmp_path: Path) -> None:
    check = only(gc.check(tanh(tmp_path), grad={"x": "x_grad"}))
    assert (check.status, check.x, check.y, check.entries["checked"]) == ("pass", "x", "loss", 6)
    assert check.claim == {
        "by": "x_grad", "kind": "tensor", "of": ("loss",), "found": False, "layout": "as x", "seed": "ones",
        "theoretical": "pass",
    }  # fmt: skip


def test_a_wrong_gradient_fails_beside_our_own_with_the_node_at_fault(tmp_path: Path) -> None:
    check = only(gc.check(tanh(tmp_path, BROKEN), grad={"x": "x_grad"}))
    assert (check.status, check.code, check.claim["theoretical"]) == ("fail", "GC101", "pass")
    assert check.suspect is not None
    assert (check.suspect.op, check.suspect.at) == ("Tanh", "h")
    assert "Sub 'd', node" in check.suspect.diagnosis
    for entry in check.worst:
        assert abs(entry.theoretical - entry.numerical) < 1e-9 < abs((entry.given or 0) - entry.numerical)


def test_a_right_gradient_passes_where_our_own_is_wrong_and_that_is_said(tmp_path: Path) -> None:
    check = only(gc.check(tanh(tmp_path), grad={"x": "x_grad"}, ops=WRONG_TANH))
    assert (check.status, check.claim["theoretical"]) == ("pass", "fail")
    assert any("a bug of gradcheck's rules" in note and "node 1 Tanh" in note for note in check.notes)


def test_a_gradient_that_is_not_finite_at_the_edge_of_a_domain_is_no_bug_of_rules() -> None:
    tested = model(("Mul", "x x", "q"), ("ReduceSum", "q", "s", {"keepdims": 0}), ("Sqrt", "s", "y"))
    check = only(gc.check(tested, "x", "y", grad={"x": np.zeros(4)}, x_init_value={"x": np.zeros(4)}))
    assert check.claim["theoretical"] == "fail"
    assert any("gradcheck's own gradient is not finite here" in note for note in check.notes)
    assert not any("a bug of gradcheck's rules" in note for note in check.notes)


@pytest.mark.parametrize("method", ["auto", "richardson"])
def test_where_y_is_infinitely_steep_in_one_entry_the_others_are_judged_as_ever(method: str) -> None:
    """Nothing is small beside what is no derivative, and our own, which is infinite there, is no evidence."""
    tested = model(("Sqrt", "x", "q"), ("ReduceSum", "q", "y", {"keepdims": 0}))
    x = np.array([0.0, 1.0, 2.0, 3.0])
    given = {"grad": {"x": np.array([9.0, 9.0, 0.5 / np.sqrt(2), 9.0])}, "x_init_value": {"x": x}}
    check = only(gc.check(tested, "x", "y", method=method, **given))
    assert (check.status, check.claim["theoretical"]) == ("fail", "inconclusive")
    assert {e.x: e.status for e in check.worst} == {(0,): "inconclusive", (1,): "fail", (3,): "fail"}


def test_both_may_be_wrong(tmp_path: Path) -> None:
    check = only(gc.check(tanh(tmp_path, BROKEN), grad={"x": "x_grad"}, ops=WRONG_TANH))
    assert (check.status, check.claim["theoretical"], check.suspect) == ("fail", "fail", None)
    assert "gradcheck's own gradient is wrong as well" in check.notes


def test_a_right_gradient_passes_where_we_have_none(tmp_path: Path) -> None:
    ops: Any = {**OPS, TANH: replace(OPS[TANH], vjp=None)}
    check = only(gc.check(tanh(tmp_path), grad={"x": "x_grad"}, ops=ops))
    assert (check.status, check.claim["theoretical"]) == ("pass", "none")
    assert any("no gradient of its own" in note for note in check.notes)


@pytest.mark.parametrize("size", [1e-3, 1e-5, 2e-6])
def test_small_errors_are_seen(tmp_path: Path, size: float) -> None:
    backward = BACKWARD.replace(
        "x_grad = MatMul (h_grad, Wt)",
        f"g = MatMul (h_grad, Wt)\n f = Constant <value_float={1 + size}> ()\n x_grad = Mul (g, f)",
    )
    assert only(gc.check(tanh(tmp_path, backward), grad={"x": "x_grad"})).status == "fail"


@pytest.mark.parametrize("mode", ["full", "directional", "sampled"])
@pytest.mark.parametrize(("backward", "status"), [(BACKWARD, "pass"), (BROKEN, "fail")])
def test_in_every_mode(tmp_path: Path, mode: str, backward: str, status: str) -> None:
    check = only(gc.check(tanh(tmp_path, backward), grad={"x": "x_grad"}, mode=mode))
    assert (check.status, check.mode) == (status, mode)
    assert check.claim["theoretical"] == "pass"


def test_a_wrong_shape_fails_before_any_number_is_compared(tmp_path: Path) -> None:
    backward = BACKWARD.replace("x_grad =", "g =") + "\n x_grad = ReduceSum <keepdims=0> (g, ax)"
    path = write(
        tmp_path / "m.onnx", "(float[2,3] x) => (float loss, float[3] x_grad)", f"{W}, int64[1] ax = {{0}}",
        "\n h = MatMul (x, W)\n a = Tanh (h)\n s = Mul (a, a)\n loss = ReduceSum <keepdims=0> (s)" + backward,
    )  # fmt: skip
    check = only(gc.check(gc.load(path), grad={"x": "x_grad"}))
    assert (check.status, check.code, check.entries.get("checked", 0)) == ("fail", "GC102", 0)
    assert check.message == "x_grad has the shape [3], not [2,3]"
    assert check.suspect is not None
    assert (check.suspect.op, check.suspect.at) == ("MatMul", "x")


LAYOUTS = {
    "float[4,2] J": ("J = Identity (K)", "[y..., x...]"),
    "float[2,4] J": ("J = Transpose <perm=[1,0]> (K)", "[x..., y...]"),
}


@pytest.mark.parametrize("declared", LAYOUTS)
def test_a_whole_jacobian_is_known_by_its_shape(tmp_path: Path, declared: str) -> None:
    line, order = LAYOUTS[declared]
    k = "float[4,2] K = {1,2,3,4,5,6,7,8}"
    path = write(tmp_path / "m.onnx", f"(float[2] x) => (float[4] y, {declared})", k, f"y = MatMul (K, x)\n {line}")
    check = only(gc.check(gc.load(path), grad={"x": "J"}))
    assert (check.status, check.claim["layout"], check.entries["total"]) == ("pass", order, 8)
    wrong = write(tmp_path / "w.onnx", f"(float[2] x) => (float[4] y, {declared})", k,
                  f"y = MatMul (K, x)\n {line.replace('J =', 'j =')}\n J = Neg (j)")  # fmt: skip
    check = only(gc.check(gc.load(wrong), grad={"x": "J"}))
    assert (check.status, check.worst[0].pattern) == ("fail", "sign")


SEEDED = "y = Mul (x, x)\n g = Mul (x, y_grad)\n two = Constant <value_float=2.0> ()\n x_grad = Mul (two, g)"


def test_a_seed_is_taken_by_its_name(tmp_path: Path) -> None:
    path = write(tmp_path / "m.onnx", "(float[3] x, float[3] y_grad) => (float[3] y, float[3] x_grad)", "", SEEDED)
    check = only(gc.check(gc.load(path), grad={"x": "x_grad"}))
    assert (check.status, check.claim["seed"]) == ("pass", "y_grad")


def test_a_seed_may_have_any_name(tmp_path: Path) -> None:
    body = SEEDED.replace("y_grad", "seed")
    path = write(tmp_path / "m.onnx", "(float[3] x, float[3] seed) => (float[3] y, float[3] x_grad)", "", body)
    model = gc.load(path)
    assert only(gc.check(model, grad={"x": "x_grad", "y": "seed"}, y="y")).status == "pass"
    assert only(gc.check(model, grad={"x": "x_grad"}, y="y")).status == "fail"


def test_of_several_ys_the_gradient_is_that_of_their_sum(tmp_path: Path) -> None:
    body = "y = Mul (x, x)\n z = Neg (x)\n two = Constant <value_float=2.0> ()\n one = Constant <value_float=1.0> ()\n g = Mul (two, x)\n dx = Sub (g, one)"  # noqa: E501
    path = write(tmp_path / "m.onnx", "(float[3] x) => (float[3] y, float[3] z, float[3] dx)", "", body)
    check = only(gc.check(gc.load(path), grad={"x": "dx"}, y=["y", "z"]))
    assert (check.status, check.y, check.claim["of"]) == ("pass", "y + z", ("y", "z"))
    assert only(gc.check(gc.load(path), grad={"x": "dx"}, y="y")).status == "fail"


def test_names_are_looked_up_before_anything_runs(tmp_path: Path) -> None:
    model = tanh(tmp_path)
    for grad, said in (({"x": "x_grd"}, "Did you mean 'x_grad'?"), ({"z": "x_grad"}, "has no tensor 'z'")):
        with pytest.raises(UsageError, match=said.replace("?", r"\?")):
            gc.check(model, grad=grad)
    with pytest.raises(UsageError, match="'x' is no x of this check"):
        gc.check(model, x="W", grad={"x": "x_grad"})
    with pytest.raises(UsageError, match="must be a tensor's name or an array"):
        gc.check(model, grad={"x": object()})
    with pytest.raises(UsageError, match="--compat tf"):
        gc.check(model, grad={"x": "x_grad"}, compat="tf")


def test_scaled_and_permuted_claims_keep_their_verdict(tmp_path: Path) -> None:
    for factor in (1e-30, 1.0, 1e30):
        for backward, status in ((BACKWARD, "pass"), (BROKEN, "fail")):
            body = f"\n c = Constant <value_float={factor}> ()\n h = MatMul (x, W)\n a = Tanh (h)\n s = Mul (a, a)\n t = Mul (s, c)\n loss = ReduceSum <keepdims=0> (t)"  # noqa: E501
            scaled = backward.replace("a_grad = Mul (two, a)", "ta = Mul (two, a)\n a_grad = Mul (ta, c)")
            path = write(tmp_path / "m.onnx", "(float[2,3] x) => (float loss, float[2,3] x_grad)", W, body + scaled)
            assert only(gc.check(gc.load(path), grad={"x": "x_grad"})).status == status
            assert np.isfinite(factor)
