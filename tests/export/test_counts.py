"""Files of models in which an integer input decides on shapes: right for every value of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import gradcheck_cli as gc
from tests.export.open_models import open_session

pytest.importorskip("onnxruntime")

TOP = (
    "g (double[T] x, int64[1] k) => (double loss) { v, i = TopK(x, k) q = Mul(v, v) loss = ReduceSum<keepdims = 0>(q) }"
)
FIRST = """g (double[T, 3] x, int64 n) => (double loss) {
  zero = Constant<value = int64 {0}>() one = Constant<value = int64 {1}>() r = Range(zero, n, one) k = Gather(x, r)
  q = Mul(k, k) loss = ReduceSum<keepdims = 0>(q) }"""
CASES = [
    *((TOP, t, {"k": [k]}) for t, k in ((6, 2), (6, 6), (1, 1), (20, 17), (5, 0), (40, 30))),
    *((FIRST, t, {"n": n}) for t, n in ((6, 2), (6, 6), (1, 1), (20, 17), (5, 0), (40, 30))),
]
STEP = 1e-5


@pytest.mark.parametrize(("text", "length", "counts"), CASES, ids=lambda v: "" if isinstance(v, str) else str(v))
def test_a_file_is_right_for_every_count(text: str, length: int, counts: dict[str, Any], tmp_path: Path) -> None:
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 17]> {text}')
    onnx.save(model, tmp_path / "m.onnx")
    loaded = gc.load(tmp_path / "m.onnx")
    (gradient,) = gc.gradients(loaded["loss"], [loaded["x"]])
    gc.save(loaded, tmp_path / "g.onnx", [gradient])
    shape = tuple(d.dim_value or length for d in model.graph.input[0].type.tensor_type.shape.dim)
    feeds = {"x": np.random.default_rng(0).normal(size=shape), **{n: np.array(v, np.int64) for n, v in counts.items()}}
    forward = open_session(tmp_path / "m.onnx")
    (found,) = open_session(tmp_path / "g.onnx").run(None, feeds)
    expected = np.zeros(shape)
    for place in np.ndindex(*shape):
        step = np.zeros(shape)
        step[place] = STEP
        (up,), (down,) = (forward.run(None, {**feeds, "x": feeds["x"] + side * step}) for side in (1, -1))
        expected[place] = (up - down) / (2 * STEP)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-8)
