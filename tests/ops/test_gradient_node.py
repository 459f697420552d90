"""ONNX's operator Gradient: read from files, run, checked, differentiated again, refused where it cannot be meant."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import gradcheck_cli as gc
from gradcheck_cli.autodiff.trace import trace
from gradcheck_cli.errors import LimitError, ModelError, NoGradientError
from gradcheck_cli.formats.onnx.read import read_proto
from gradcheck_cli.formats.onnx.write import to_proto
from gradcheck_cli.ops import OPS

HEADER = '<ir_version: 8, opset_import: ["": 17, "ai.onnx.preview.training": 1]>'
CUBE = """g (float[2] x, float[2] w) => (float[2] dx, float[2] ddx) {
    s = Mul (x, x)
    c = Mul (s, w)
    y = ReduceSum <keepdims = 0> (c)
    dx = ai.onnx.preview.training.Gradient <xs = ["x"], zs = ["w"], y = "y"> (x, w)
    sum = ReduceSum <keepdims = 0> (dx)
    ddx = ai.onnx.preview.training.Gradient <xs = ["x"], zs = ["w"], y = "sum"> (x, w)
}"""


def proto(text: str) -> onnx.ModelProto:
    """A model in ONNX's text syntax."""
    return onnx.parser.parse_model(f"{HEADER}\n{text}")


def run(model: onnx.ModelProto, **feeds: Any) -> dict[str, np.ndarray]:
    """All outputs."""
    graph = read_proto(model).graph
    tape = trace(graph, {name: np.asarray(value) for name, value in feeds.items()}, ops=OPS)
    return {name: tape.named[name].value for name in graph.outputs}


def test_first_and_second_derivatives_are_computed() -> None:
    found = run(proto(CUBE), x=[1.0, 2.0], w=[3.0, 5.0])
    assert found["dx"].tolist() == [6.0, 20.0]
    assert found["ddx"].tolist() == [6.0, 10.0]


def test_the_nodes_of_a_file_may_stand_in_any_order() -> None:
    model = proto(CUBE)
    nodes = list(model.graph.node)[::-1]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    assert run(model, x=[1.0, 2.0], w=[3.0, 5.0])["ddx"].tolist() == [6.0, 10.0]


def test_values_may_differ_from_those_of_the_tensors_that_are_named() -> None:
    text = """g (float[2] x, float[2] p) => (float[2] d) {
        y = Exp (x)
        d = ai.onnx.preview.training.Gradient <xs = ["x"], y = "y"> (p)
    }"""
    np.testing.assert_allclose(run(proto(text), x=[9.0, 9.0], p=[0.0, 1.0])["d"], [1.0, np.e])


def test_an_initializer_is_a_variable_like_any_other() -> None:
    text = """g (float[2] x) => (float[2] dw)
        <float[2] w = {3, 5}> {
        c = Mul (x, w)
        y = ReduceSum <keepdims = 0> (c)
        dw = ai.onnx.preview.training.Gradient <xs = ["w"], zs = ["x"], y = "y"> (w, x)
    }"""
    assert run(proto(text), x=[1.0, 2.0])["dw"].tolist() == [1.0, 2.0]


def test_a_model_with_a_gradient_inside_is_checked_like_any_other() -> None:
    report = gc.check(gc.Model(read_proto(proto(CUBE)), gc.OPS))
    assert {(c.x, c.y): c.status for c in report.checks} == {(x, y): "pass" for x in "xw" for y in ("dx", "ddx")}


def test_a_wrong_rule_shows_in_the_gradient_of_the_gradient() -> None:
    text = """g (float[2] x) => (float[2] d) {
        y = Tanh (x)
        d = ai.onnx.preview.training.Gradient <xs = ["x"], y = "y"> (x)
    }"""
    wrong = dataclasses.replace(OPS["", "Mul"], vjp=lambda ct, y, a, b: (ct * b * 1.01, ct * a))
    (check,) = gc.check(gc.Model(read_proto(proto(text)), gc.OPS), ops={**OPS, ("", "Mul"): wrong}).checks
    assert (check.status, check.suspect.op) == ("fail", "Mul")


def test_an_operator_without_a_rule_is_named() -> None:
    text = """g (float[2] x) => (float[2] d) {
        y = Tanh (x)
        d = ai.onnx.preview.training.Gradient <xs = ["x"], y = "y"> (x)
    }"""
    ops = {**OPS, ("", "Tanh"): dataclasses.replace(OPS["", "Tanh"], vjp=None)}
    with pytest.raises(NoGradientError, match="no gradient for 'Tanh'"):
        trace(read_proto(proto(text)).graph, {"x": np.ones(2)}, ops=ops)


@pytest.mark.parametrize("node, message", [
    ('<xs = ["x"], y = "nothing"> (x)', "differentiates 'nothing', which no node computes"),
    ('<xs = ["x", "x"], y = "y"> (x, x)', "which must differ from each other"),
    ('<xs = ["x"], zs = ["w"], y = "y"> (x)', r"1 value is given for \['x', 'w'\]"),
    ('<xs = ["x"], y = "d"> (x)', "differentiates what depends on its own output"),
    ('<xs = [1.5], y = "y"> (x)', "'xs' is a tuple of 1 values; it must be of type STRINGS"),
    ('<xs = ["x"], y = ["y"]> (x)', "'y' is a tuple of 1 values; it must be of type STRING"),
    ('<y = "y"> (x)', r"1 value is given for \[\]"),
])  # fmt: skip
def test_what_cannot_be_meant_is_refused(node: str, message: str) -> None:
    text = (
        f"g (float[2] x, float[2] w) => (float[2] d) {{ y = Mul (x, w) d = ai.onnx.preview.training.Gradient {node} }}"
    )
    with pytest.raises(ModelError, match=message):
        read_proto(proto(text))


def test_derivatives_of_derivatives_end() -> None:
    nodes = [f'd{i + 1} = ai.onnx.preview.training.Gradient <xs = ["x"], y = "d{i}"> (x)' for i in range(61)]
    with pytest.raises(LimitError, match="of order 60 or more"):
        read_proto(proto(f"g (float x) => (float d61) {{ d0 = Exp (x) {' '.join(nodes[::-1])} }}"))


def test_it_is_written_as_it_was_read() -> None:
    written = to_proto(read_proto(proto(CUBE)).graph)
    onnx.checker.check_model(written)
    node = written.graph.node[-1]
    assert [(a.name, list(a.strings) or a.s) for a in node.attribute] == [("xs", [b"x"]), ("zs", [b"w"]), ("y", b"sum")]


def test_a_spec_may_hold_one(tmp_path: Path) -> None:
    file = tmp_path / "g.gradcheck.yaml"
    file.write_text("""
gradcheck: 1
graphs:
  g:
    inputs: {x: {shape: [2], dtype: float64}}
    nodes:
      - {op: Exp, inputs: [x], outputs: [y]}
      - {op: ai.onnx.preview.training.Gradient, inputs: [x], outputs: [d], attrs: {xs: [x], y: y}}
    outputs: [d]
""")
    model = gc.load(file)
    assert gc.run(model["d"], feeds={"x": [0.0, 0.0]})[0].tolist() == [1.0, 1.0]
    assert [c.status for c in gc.check(model).checks] == ["pass"]
