"""Gradients that another model computes: its inputs are known by name, by shape, or as seeds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import gradcheck_cli as gc
from gradcheck_cli.errors import UsageError
from tests.claims.test_numbers import raise_first
from tests.claims.test_tensors import only
from tests.claims.written import BACKWARD, BROKEN, FORWARD, W, plain, write

SQUARE = "two = Constant <value_float=2.0> ()\n g = Mul (two, {x})\n x_grad = Mul (g, {seed})"


def square(folder: Path) -> gc.Model:
    """y = x^2."""
    return gc.load(write(folder / "square.onnx", "(float[2,3] x) => (float[2,3] y)", "", "y = Mul (x, x)"))


@pytest.mark.parametrize(("backward", "status"), [(BACKWARD, "pass"), (BROKEN, "fail")])
def test_a_model_of_its_own_with_the_forward_in_it(tmp_path: Path, backward: str, status: str) -> None:
    signature = "(float[2,3] x) => (float[2,3] x_grad)"
    other = write(tmp_path / "other.onnx", signature, W, FORWARD + backward)
    check = only(gc.check(plain(tmp_path), grad_model=other))
    assert (check.status, check.claim["kind"], check.claim["by"]) == (status, "model", "other.onnx:x_grad")
    assert (check.suspect.op if check.suspect else "") == ("Tanh" if status == "fail" else "")


@pytest.mark.parametrize(("x", "seed"), [("x", "y_grad"), ("x", "anything"), ("image", "grad_y")])
def test_inputs_by_name_by_shape_and_as_seeds(tmp_path: Path, x: str, seed: str) -> None:
    signature = f"(float[2,3] {x}, float[2,3] {seed}) => (float[2,3] x_grad)"
    other = write(tmp_path / "other.onnx", signature, "", SQUARE.format(x=x, seed=seed))
    check = only(gc.check(square(tmp_path), grad_model=other))
    assert (check.status, check.claim["seed"]) == ("pass", "drawn")
    wrong = SQUARE.format(x=x, seed=seed).replace("2.0", "3.0")
    assert only(gc.check(square(tmp_path), grad_model=write(other, signature, "", wrong))).status == "fail"


def test_saved_activations_are_known_by_name(tmp_path: Path) -> None:
    signature = "(float[2,4] a, float[2,4] s) => (float[2,3] x_grad)"
    other = write(tmp_path / "other.onnx", signature, W, BACKWARD)
    assert only(gc.check(plain(tmp_path), grad_model=other)).status == "pass"


def test_its_only_output_needs_no_name(tmp_path: Path) -> None:
    body = (FORWARD + BACKWARD).replace("x_grad", "result")
    other = write(tmp_path / "other.onnx", "(float[2,3] x) => (float[2,3] result)", W, body)
    assert only(gc.check(plain(tmp_path), grad_model=other)).claim["by"] == "other.onnx:result"
    assert only(gc.check(plain(tmp_path), grad_model=other, grad={"x": "result"})).status == "pass"


def test_constants_that_a_tool_has_rounded_are_no_error(tmp_path: Path) -> None:
    signature, third = "(float[3] x) => (float[3] {})", "float third = {0.33333334}"
    body = "three = Constant <value_float=3.0> ()\n y = Div (x, three)"
    model = gc.load(write(tmp_path / "m.onnx", signature.format("y"), "", body))
    other = write(tmp_path / "o.onnx", signature.format("x_grad"), third, "z = Sub (x, x)\n x_grad = Add (z, third)")
    assert only(gc.check(model, grad_model=other)).status == "pass"
    write(other, signature.format("x_grad"), "float third = {0.333334}", "z = Sub (x, x)\n x_grad = Add (z, third)")
    assert only(gc.check(model, grad_model=other)).status == "fail"


ERRORS: list[tuple[str, str, dict[str, Any], str]] = [
    (
        "(float[2,3] x) => (float[2,3] r, float[2,3] q)",
        "r = Neg (x)\n q = Abs (x)",
        {},
        "none of its tensors is called",
    ),
    ("(float[2,3] x) => (float[2,3] x_grad)", "x_grad = Neg (x)", {"grad": {"x": "x_grd"}}, "Did you mean 'x_grad'"),
    ("(float[5] k) => (float[5] x_grad)", "x_grad = Neg (k)", {}, "its input 'k' is called as nothing"),
]


@pytest.mark.parametrize(("signature", "body", "more", "said"), ERRORS)
def test_what_cannot_be_told_is_an_error(
    tmp_path: Path, signature: str, body: str, more: dict[str, Any], said: str
) -> None:
    other = write(tmp_path / "other.onnx", signature, "", body)
    with pytest.raises(UsageError, match=said):
        raise_first(gc.check(square(tmp_path), grad_model=other, **more))
