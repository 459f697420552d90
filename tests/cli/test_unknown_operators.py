"""An operator that is not known: named with what it stops, and every way around it that its message names."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser

import gradcheck_cli as gc
from gradcheck_cli.errors import respelled
from gradcheck_cli.op import unary
from tests.cli.conftest import Command

NET = """<ir_version: 8, opset_import: ["" : 18, "acme" : 1]>
g (float[3] x, float[3] v) => (float[3] y) { a = Sin(x) b = acme.Thing<by = 2.0>(a) c = Exp(v) y = Mul(b, c) }"""
SIDE_CAR = """gradcheck: 1
ops:
  acme.Thing:
    inputs: [x]
    outputs: [y]
    attrs: {by: 1.0}
    forward:
    - {op: Mul, inputs: [x, 3.0], outputs: [h]}
    - {op: Tanh, inputs: [h], outputs: [y]}
checks:
- {model: net.onnx}
"""


@pytest.fixture(autouse=True)
def net(folder: Path) -> None:
    onnx.save(parser.parse_model(NET), folder / "net.onnx")


def messages(gradcheck: Command, *options: str) -> dict[str, str]:
    """Messages of a check, by x."""
    found = json.loads(gradcheck("net.onnx", "--output-format", "json", *options).out)["checks"]
    return {check["x"]: check["message"] for check in found}


def test_the_message_says_what_it_stops_and_how_far_one_can_check(gradcheck: Command, folder: Path):
    said = messages(gradcheck)
    assert said["x"] == (
        "unknown operator 'acme.Thing' (node 1 Thing 'b'); it stops d y/d x. Check up to it: --y a; or define it: "
        "ops: in a spec, or an installed package; or give what it computes: --feed b=@FILE.npy"
    )
    assert "Check up to" not in said["v"]
    assert "--feed b=@FILE.npy" in said["v"]


def test_a_spec_is_not_offered_where_it_may_define_nothing(gradcheck: Command, folder: Path):
    onnx.save(parser.parse_model(NET.replace("acme", "com.microsoft")), folder / "net.onnx")
    assert "Check up to it: --y a; or define it: an installed package; or give what it" in messages(gradcheck)["x"]


def test_up_to_it_can_be_checked(gradcheck: Command, folder: Path):
    assert gradcheck("net.onnx", "--y", "a").code == 0


def test_what_it_computes_can_be_fed(gradcheck: Command, folder: Path):
    np.save(folder / "b.npy", np.array([0.5, -1, 2], np.float32))
    ran = gradcheck("net.onnx", "--feed", "b=@b.npy")
    assert (ran.code, "v [3]" in ran.out) == (0, True)


@pytest.mark.parametrize("named", ["net.gradcheck.yaml", "net.onnx"])
def test_a_spec_can_define_it_for_a_model_in_a_file(gradcheck: Command, folder: Path, named: str):
    (folder / "net.gradcheck.yaml").write_text(SIDE_CAR)
    ran = gradcheck(named, "-v")
    assert (ran.code, "2 passed" in ran.out) == (0, True)


@pytest.mark.parametrize("checks, options", [
    ("checks: [{name: a, model: net.onnx}, {name: b, model: net.onnx}]", ("--x", "x")), ("", ("--x", "x")), ("", ()),
])  # fmt: skip
@pytest.mark.parametrize("command", ["check", "zoo"])
def test_a_side_car_defines_it_whatever_it_checks(
    gradcheck: Command, folder: Path, command: str, checks: str, options: tuple[str, ...]
):
    (folder / "net.gradcheck.yaml").write_text(SIDE_CAR[: SIDE_CAR.index("checks:")] + checks)
    assert gradcheck(command, "net.onnx", *options).code == 0


def test_a_side_car_defines_it_for_inspect(gradcheck: Command, folder: Path):
    (folder / "net.gradcheck.yaml").write_text(SIDE_CAR)
    ran = gradcheck("inspect", "net.onnx")
    assert (ran.code, "blocked" in ran.out) == (0, False)


@pytest.mark.parametrize("command", [
    ("grad", "net.onnx", "-o", "g.onnx"), ("step", "net.onnx", "--loss", "mse:y,t", "--trainable", "w", "-o", "g"),
    ("diff", "net.onnx", "net.onnx"),
])  # fmt: skip
def test_a_side_car_defines_it_for_files(gradcheck: Command, folder: Path, command: tuple[str, ...]):
    weight = NET.replace("=> (float[3] y) {", "=> (float[3] y) <float[3] w = {1, 2, 3}> {").replace(
        "Sin(x)", "Mul(x, w)"
    )
    onnx.save(parser.parse_model(weight), folder / "net.onnx")
    (folder / "net.gradcheck.yaml").write_text(SIDE_CAR)
    ran = gradcheck(*command)
    assert (ran.code, "GC50" in ran.out + ran.err) == (0, False)


def test_a_gradient_that_a_spec_gives_it_is_under_test(gradcheck: Command, folder: Path):
    wrong = SIDE_CAR.replace("checks:", "    gradient:\n    - {op: Mul, inputs: [dy, 2.0], outputs: [dx]}\nchecks:")
    (folder / "net.gradcheck.yaml").write_text(wrong)
    assert gradcheck("net.gradcheck.yaml").code == 1


def test_an_attribute_that_the_spec_does_not_define_is_named_with_the_file(gradcheck: Command, folder: Path):
    (folder / "net.gradcheck.yaml").write_text(SIDE_CAR.replace("{by: 1.0}", "{of: 1.0}"))
    ran = gradcheck("net.gradcheck.yaml")
    assert ran.code == 2
    assert "net.onnx: acme.Thing has no attribute 'by'" in ran.err + ran.out


def test_python_can_give_it_for_one_check(folder: Path):
    op = unary("Thing", lambda x, *, by=1.0: x * by, lambda ct, y, x, *, by=1.0: ct * by, domain="acme")
    found = gc.check(gc.load("net.onnx"), ops={**gc.OPS, op.key: op})
    assert [check.status for check in found.checks] == ["pass", "pass"]


@pytest.mark.parametrize(
    ("name", "known", "meant"),
    [("softmax", "Softmax", True), ("Softmx", "Softmax", True), ("Tnah", "Tanh", True), ("Tahn", "Tanh", True),
     ("Reeshape", "Reshape", True), ("Matmul", "MatMul", True), ("QMoE", "MoE", False), ("Tan", "Tanh", False),
     ("FastRelu", "FastGelu", False), ("ReduceL3", "ReduceL2", False), ("ArgMin", "ArgMax", False),
     ("DynamicQuantizeLSTM", "DynamicQuantizeLinear", False)],
)  # fmt: skip
def test_only_a_slip_of_the_pen_is_taken_for_another_operator(name: str, known: str, meant: bool):
    assert respelled(name, known) == meant


UNUSED = """gradcheck: 1
graphs:
  net:
    inputs: {x: {shape: [3]}}
    nodes: "y = CALLED (x)"
    outputs: [y]
ops:
  acme.Outer: {inputs: [x], outputs: [y], attrs: {by: 2.0}, forward: "h = acme.Inner (x) y = Tanh (h)"}
  acme.Inner: {inputs: [x], outputs: [y], forward: "y = Sin (x)"}
  acme.Lost: {inputs: [x], outputs: [y], forward: "y = Cos (x)", gradient: "dx = Identity (dy)"}
"""
NOTE = "the operator acme.{} under 'ops' is used by no model of the spec: its rule is not checked"


@pytest.mark.parametrize("called, unused", [
    ("acme.Outer <by = 3.0>", ["Lost"]), ("acme.Inner", ["Outer", "Lost"]), ("Sin", ["Outer", "Inner", "Lost"]),
])  # fmt: skip
def test_an_operator_of_a_spec_that_nothing_uses_is_said_to_be_unchecked(
    called: str, unused: list[str], gradcheck: Command, folder: Path
):
    (folder / "net.gradcheck.yaml").write_text(UNUSED.replace("CALLED", called))
    ran = gradcheck("net.gradcheck.yaml", "--output-format", "json")
    [record] = json.loads(ran.out)["checks"]
    assert (record["status"], record["notes"]) == ("pass", [NOTE.format(name) for name in unused])
    assert "acme.Lost under" in " ".join(gradcheck("net.gradcheck.yaml").out.split())


@pytest.mark.parametrize("op", ["acme.Thing", "acme.Other"])
def test_an_operator_beside_a_model_that_does_not_use_it_is_said_to_be_unchecked(
    op: str, gradcheck: Command, folder: Path
):
    both = SIDE_CAR.replace("ops:\n", "ops:\n  acme.Other: {inputs: [x], outputs: [y], forward: 'y = Sin (x)'}\n")
    (folder / "net.gradcheck.yaml").write_text(both)
    records = json.loads(gradcheck("net.onnx", "--output-format", "json").out)["checks"]
    assert [(op == "acme.Other") == (NOTE.format(op[5:]) in record["notes"]) for record in records] == [True, True]
