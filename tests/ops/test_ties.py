"""Slopes where two pieces of a function meet: a gradient is one of both, the one that frameworks take.

PyTorch's relu, relu6 and hardtanh have the slope 0 at their ends, its clamp has 1, and TensorFlow's and JAX's agree.  Its
leaky_relu, prelu, elu and selu have at 0 the slope that they have below.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

import gradcheck_cli as gc

HEAD = (
    '<ir_version: 8, opset_import: ["" : 18]> g (double[5] x) => (double[5] y) <double low = {%g}, double high = {%g}>'
)
SLOPES: dict[str, tuple[str, tuple[float, float], list[float], list[float]]] = {
    "relu": ("y = Relu (x)", (0, 0), [-1, -0.0, 0, 1, 2], [0, 0, 0, 1, 1]),
    "relu6": ("y = Clip (x, low, high)", (0, 6), [-1, 0, 3, 6, 7], [0, 0, 1, 0, 0]),
    "relu6 by copies": ("a = Identity (low) y = Clip (x, a, high)", (0, 6), [-1, 0, 3, 6, 7], [0, 0, 1, 0, 0]),
    "relu6 by its type": (
        "a = CastLike (low, x) b = CastLike (high, x) y = Clip (x, a, b)",
        (0, 6),
        [-1, 0, 3, 6, 7],
        [0, 0, 1, 0, 0],
    ),
    "clamp by its type": (
        "a = CastLike (low, x) b = CastLike (high, x) y = Clip (x, a, b)",
        (0, 5),
        [-1, 0, 3, 5, 7],
        [0, 1, 1, 1, 0],
    ),
    "clamp": ("y = Clip (x, low, high)", (-1, 6), [-2, -1, 3, 6, 7], [0, 1, 1, 1, 0]),
    "clamp from 0": ("y = Clip (x, low, high)", (0, 5), [-1, 0, 3, 5, 7], [0, 1, 1, 1, 0]),
    "clamp at 0": ("y = Clip (x, low)", (0, 6), [-1, 0, 3, 6, 7], [0, 1, 1, 1, 1]),
    "leaky relu": ("y = LeakyRelu <alpha = 0.25> (x)", (0, 0), [-1, -0.0, 0, 1, 2], [0.25, 0.25, 0.25, 1, 1]),
    "prelu": ("y = PRelu (x, low)", (0.25, 0), [-1, -0.0, 0, 1, 2], [0.25, 0.25, 0.25, 1, 1]),
    "elu": ("y = Elu <alpha = 2.0> (x)", (0, 0), [-0.0, 0, 1, 2, 3], [2, 2, 1, 1, 1]),
    "selu": ("y = Selu <alpha = 2.0, gamma = 1.5> (x)", (0, 0), [-0.0, 0, 1, 2, 3], [3, 3, 1.5, 1.5, 1.5]),
    "hard swish": ("y = HardSwish (x)", (0, 0), [-4, -3, 0, 3, 4], [0, 0, 0.5, 1, 1]),
}


@pytest.mark.parametrize("name", SLOPES)
def test_the_slope_at_a_tie_is_that_of_frameworks(name: str, tmp_path: Path) -> None:
    nodes, bounds, x, slopes = SLOPES[name]
    onnx.save(onnx.parser.parse_model(HEAD % bounds + f" {{ {nodes} }}"), tmp_path / "m.onnx")
    model = gc.load(tmp_path / "m.onnx")
    [dx] = gc.gradients(model["y"], model["x"])
    assert dx is not None
    [found] = gc.run(dx, {"x": np.array(x)})
    assert found.tolist() == slopes
    for mode in ("full", "directional", "nodes"):
        [record] = gc.check(gc.load(tmp_path / "m.onnx"), x_init_value={"x": np.array(x)}, mode=mode).checks
        assert record.status == "pass", mode


@pytest.mark.parametrize("moved", ["low", "high"])
def test_the_bounds_of_relu6_have_gradients_too(moved: str, tmp_path: Path) -> None:
    onnx.save(onnx.parser.parse_model(HEAD % (0, 6) + " { y = Clip (x, low, high) }"), tmp_path / "m.onnx")
    [record] = gc.check(gc.load(tmp_path / "m.onnx"), moved, "y", extra_feed_dict={"x": [-1, 0, 3, 6.0, 7]}).checks
    assert (record.status, record.entries["kink_ok"] > 0) == ("pass", True)
