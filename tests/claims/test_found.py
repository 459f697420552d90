"""Gradients that a model has by the names of its tensors are found, said to be, and left alone if that is wanted."""

from __future__ import annotations

from pathlib import Path

import pytest

import gradcheck_cli as gc
from tests.claims.written import BACKWARD, BROKEN, W, tanh, write

NAMES = ("x_grad", "grad_x", "x.grad", "adj_x", "dloss_dx", "dloss/dx")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("backward", "status"), [(BACKWARD, "pass"), (BROKEN, "fail")])
def test_a_gradient_is_found_by_its_name(tmp_path: Path, name: str, backward: str, status: str) -> None:
    path = tanh(tmp_path, backward).source.uri
    import onnx

    proto = onnx.load(path)
    for node in proto.graph.node:
        node.output[:] = [name if n == "x_grad" else n for n in node.output]
    proto.graph.output[1].name = name
    onnx.save(proto, path)
    checks = gc.check(gc.load(path)).checks
    assert [(c.x, c.y, c.status, c.claim.get("by")) for c in checks] == [
        ("x", "loss", "pass", None),
        ("x", "loss", status, name),
    ]
    assert any("--grad none leaves that out" in note for note in checks[1].notes)
    assert checks[1].claim["found"]


def test_none_are_looked_for_if_that_is_wanted(tmp_path: Path) -> None:
    checks = gc.check(tanh(tmp_path, BROKEN), grad="none").checks
    assert [(c.y, c.status, c.claim) for c in checks] == [("loss", "pass", {}), ("x_grad", "pass", {})]


def test_comparisons_as_in_tensorflow_look_for_none(tmp_path: Path) -> None:
    assert not any(c.claim for c in gc.check(tanh(tmp_path, BROKEN), compat="tf").checks)


def test_what_was_asked_for_by_name_is_checked_as_that(tmp_path: Path) -> None:
    checks = gc.check(tanh(tmp_path), "x", "x_grad").checks
    assert [(c.y, c.claim) for c in checks] == [("x_grad", {})]


def test_a_tensor_that_y_is_made_of_is_no_gradient(tmp_path: Path) -> None:
    body = "x_grad = Mul (x, x)\n y = Neg (x_grad)"
    path = write(tmp_path / "m.onnx", "(float[3] x) => (float[3] y)", "", body)
    assert [c.claim for c in gc.check(gc.load(path)).checks] == [{}]


def test_a_tensor_named_after_an_input_on_which_y_does_not_depend_is_no_gradient(tmp_path: Path) -> None:
    body = "y = Mul (x, x)\n two = Constant <value_float=2.0> ()\n z_grad = Mul (two, z)"
    path = write(tmp_path / "m.onnx", "(float[3] x, float[3] z) => (float[3] y, float[3] z_grad)", "", body)
    checks = gc.check(gc.load(path)).checks
    assert [(c.x, c.y, c.claim) for c in checks if c.status == "pass"] == [("x", "y", {}), ("z", "z_grad", {})]
    assert not any(c.claim for c in checks)


def test_of_several_outputs_the_one_that_a_gradient_begins_with_is_differentiated(tmp_path: Path) -> None:
    """A scalar beside it, such as a norm, is no loss: nothing says of it that it is differentiated."""
    signature = "(float[3] x, float[3] y_grad) => (float[3] y, float norm, float[3] x_grad)"
    body = """y = Mul (x, x)\n norm = ReduceSum <keepdims=0> (y)
        two = Constant <value_float=2.0> ()\n slope = Mul (two, x)\n x_grad = Mul (slope, y_grad)"""
    path = write(tmp_path / "m.onnx", signature, "", body)
    found = [c for c in gc.check(gc.load(path)).checks if c.claim]
    assert [(c.x, c.y, c.status, c.claim["by"]) for c in found] == [("x", "y", "pass", "x_grad")]


def test_of_several_outputs_it_is_not_guessed_which_one_is_differentiated(tmp_path: Path) -> None:
    body = "y = Mul (x, x)\n z = Neg (x)\n two = Constant <value_float=2.0> ()\n x_grad = Mul (two, x)"
    path = write(tmp_path / "m.onnx", "(float[3] x) => (float[3] y, float[3] z, float[3] x_grad)", "", body)
    assert not any(c.claim for c in gc.check(gc.load(path)).checks)
    certain = write(tmp_path / "n.onnx", "(float[3] x) => (float[3] y, float[3] z, float[3] dy_dx)", "",
                    body.replace("x_grad", "dy_dx"))  # fmt: skip
    found = [c for c in gc.check(gc.load(certain)).checks if c.claim]
    assert [(c.y, c.status, c.claim["by"]) for c in found] == [("y", "pass", "dy_dx")]
    assert [c.claim["by"] for c in gc.check(gc.load(path), grad={"x": "x_grad"}, y="y").checks] == ["x_grad"]


SUM_AND_LARGEST = """
    xx = Mul (x, x)\n loss = ReduceSum <keepdims=0> (xx)\n top = ReduceMax <keepdims=0> (x)
    factor = Constant <value_float={}> ()\n x_grad = Mul (factor, x)"""


@pytest.mark.parametrize("outputs", ["float loss, float top, float[4] x_grad", "float top, float loss"])
@pytest.mark.parametrize(("factor", "status"), [("2.0", "pass"), ("1.0", "fail")])
def test_of_several_scalars_the_one_that_is_asked_for_is_differentiated(
    tmp_path: Path, outputs: str, factor: str, status: str
) -> None:
    path = write(tmp_path / "m.onnx", f"(float[4] x) => ({outputs})", "", SUM_AND_LARGEST.format(factor))
    claims = [(c.x, c.y, c.status) for c in gc.check(gc.load(path), y="loss").checks if c.claim]
    assert claims == [("x", "loss", status)]


@pytest.mark.parametrize("ys", [None, ["loss", "top"]])
def test_a_gradient_of_which_nothing_says_the_y_is_named_in_a_note(tmp_path: Path, ys: list[str] | None) -> None:
    signature = "(float[4] x) => (float loss, float top, float[4] x_grad)"
    path = write(tmp_path / "m.onnx", signature, "", SUM_AND_LARGEST.format("1.0"))
    checks = gc.check(gc.load(path), y=ys).checks
    assert not any(c.claim for c in checks)
    assert all(any("of loss, top: --y loss --grad x=x_grad does" in n for n in c.notes) for c in checks)
    for more in ({"grad": "none"}, {"y": "x_grad"}):
        assert not any("by its name" in n for c in gc.check(gc.load(path), **more).checks for n in c.notes)


def test_gradients_by_parameters_are_found_too(tmp_path: Path) -> None:
    backward = BACKWARD + "\n xt = Transpose <perm=[1,0]> (x)\n W_grad = MatMul (xt, h_grad)"
    path = write(
        tmp_path / "m.onnx", "(float[2,3] x) => (float loss)", W,
        "\n h = MatMul (x, W)\n a = Tanh (h)\n s = Mul (a, a)\n loss = ReduceSum <keepdims=0> (s)" + backward,
    )  # fmt: skip
    claims = [(c.x, c.status) for c in gc.check(gc.load(path)).checks if c.claim]
    assert claims == [("x", "pass"), ("W", "pass")]


def test_the_outputs_of_a_gradient_node_are_gradients(tmp_path: Path) -> None:
    import onnx
    from onnx import helper

    path = tanh(tmp_path).source.uri
    proto = onnx.load(path)
    del proto.graph.node[4:]
    where = "ai.onnx.preview.training"
    proto.graph.node.append(helper.make_node("Gradient", ["x"], ["x_grad"], domain=where, xs=["x"], y="loss"))
    proto.graph.node[-1].output[0] = "slope"
    proto.graph.output[1].name = "slope"
    onnx.save(proto, path)
    checks = gc.check(gc.load(path)).checks
    assert [(c.status, c.claim.get("by")) for c in checks] == [("pass", None), ("pass", "slope")]
