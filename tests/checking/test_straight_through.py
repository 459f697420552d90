"""Quantizers do not round under `straight_through`: their gradient is that of the bounded line, and is checked as such."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import gradcheck_cli as gc

QDQ = "q = QuantizeLinear (x, s, z) d = DequantizeLinear (q, s, z)"
DYNAMIC = "q, t, z2 = DynamicQuantizeLinear (x) d = DequantizeLinear (q, t, z2)"
PER_AXIS = (
    "s4 = Constant <value_floats = [0.1, 0.2, 0.3, 0.4]> () q = QuantizeLinear <axis=0, output_dtype=3> (x, s4)"
    " d = DequantizeLinear <axis=0> (q, s4)"
)
FLOAT8 = "q = QuantizeLinear <output_dtype=17> (x, s) d = DequantizeLinear (q, s)"


def model_of(body: str, folder: Path) -> gc.Model:
    text = f"""<ir_version: 10, opset_import: ["": 21]> g (float[4] x) => (float[4] y)
    <float s = {{0.5}}, uint8 z = {{128}}> {{ {body} y = Tanh (d) }}"""
    path = folder / "model.onnx"
    onnx.save(onnx.parser.parse_model(text), path)
    return gc.load(path)


@pytest.mark.parametrize("body", [QDQ, DYNAMIC, PER_AXIS, FLOAT8], ids=["qdq", "dynamic", "per axis", "float8"])
def test_a_gradient_goes_through_and_is_right(body: str, tmp_path: Path) -> None:
    model = model_of(body, tmp_path)
    [through] = gc.check(model, x=["x"], y=["y"], straight_through=True).checks
    assert through.status == "pass"
    assert through.gradient["norm"] > 0.1
    plain = [c for c in gc.check(model, x=["x"], y=["y"]).checks if c.gradient and c.gradient["norm"] > 0]
    assert body == DYNAMIC or not plain  # a dynamic scale follows x


def test_what_is_out_of_range_gets_nothing(tmp_path: Path) -> None:
    model = model_of(QDQ, tmp_path)
    [check] = gc.check(model, x=["x"], y=["d"], straight_through=True,
                       x_init_value={"x": np.float32([-70, 1.3, 62, 70])}).checks  # fmt: skip
    assert check.status == "pass"
    assert check.gradient["norm"] == pytest.approx(np.sqrt(2))  # 1 for each of the two in the middle


def test_the_gradient_of_a_real_quantized_net_goes_through() -> None:
    path = Path(__file__).parents[1] / "models" / "files" / "q_cnn_qdq.onnx"
    if not path.exists():
        pytest.skip("the quantized model is not among those that ship with the tests")
    [check] = gc.check(gc.load(path), straight_through=True).checks
    assert check.status == "pass"
    assert check.gradient["norm"] > 0
