"""Quantizers do not round under `straight_through`: their gradient is that of the bounded line, and is checked as such."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import gradcheck_cli as gc
from gradcheck_cli.ops.straight import rounds, straightened, unrounded
from gradcheck_cli.settings import Settings
from gradcheck_cli.trace import trace
from tests.rounding import assert_rounded

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


HEAD = '<ir_version: 10, opset_import: ["": 21]> g (float[4] x) => (float[4] y)'
BYTES = "int8 lo = {-100}, int8 hi = {100}, int8 zero = {3}"
BRANCH = (
    "y = If (go) <then_branch = t () => (float[4] a) {{ {} a = Mul (r, x) }},"
    " else_branch = e () => (float[4] b) {{ b = Neg (x) }}>"
)
ROUNDED = {  # nodes that round, with all that stands behind them; the same without what rounds
    "Round": ("r = Round (x) y = Mul (r, x)", "y = Mul (x, x)"),
    "Floor": ("r = Floor (x) y = Mul (r, x)", "y = Mul (x, x)"),
    "Ceil": ("h = Exp (x) r = Ceil (h) y = Tanh (r)", "h = Exp (x) y = Tanh (h)"),
    "a quantizer made by hand": (
        "a = Div (x, s) r = Round (a) c = Clip (r, low, high) q = Mul (c, s) y = Mul (q, x)",
        "a = Div (x, s) c = Clip (a, low, high) q = Mul (c, s) y = Mul (q, x)",
    ),
    "to an integer and back": ("i = Cast <to = 6> (x) f = Cast <to = 1> (i) y = Mul (f, x)", "y = Mul (x, x)"),
    "rounded, then to an integer and back": (
        "r = Round (x) i = Cast <to = 3> (r) f = Cast <to = 1> (i) y = Mul (f, x)", "y = Mul (x, x)"),
    "integers are shifted, clipped and laid out anew": (
        "i = Cast <to = 3> (x) a = Add (i, zero) c = Clip (a, lo, hi) w = Reshape (c, two) t = Transpose (w)"
        " n = Reshape (t, four) d = Sub (n, zero) f = Cast <to = 1> (d) y = Mul (f, f)",
        "w = Reshape (x, two) t = Transpose (w) n = Reshape (t, four) y = Mul (n, n)",
    ),
    "an integer through another one": (
        "i = Cast <to = 3> (x) j = Cast <to = 6> (i) f = Cast <to = 1> (j) y = Mul (f, x)", "y = Mul (x, x)"),
    "dequantized": (
        "a = Div (x, s) i = Cast <to = 3> (a) f = DequantizeLinear (i, s, zero) y = Mul (f, f)",
        "t = Mul (s, three) d = Sub (x, t) y = Mul (d, d)",
    ),
    "to a small float and back": ("e = Cast <to = 17> (x) f = Cast <to = 1> (e) y = Mul (f, x)", "y = Mul (x, x)"),
    "a number and an index": (
        "r = Abs (x) i = Cast <to = 7> (r) g = Gather (table, i) f = Cast <to = 1> (i) h = Mul (f, x) y = Mul (h, g)",
        "r = Abs (x) i = Cast <to = 7> (r) g = Gather (table, i) h = Mul (r, x) y = Mul (h, g)",
    ),
    "in a branch": (BRANCH.format("r = Round (x)"), BRANCH.format("r = Identity (x)")),
}  # fmt: skip
AS_BEFORE = {  # what is a size, an index or a condition in the end, or depends on no input
    "a size that is scaled": (
        "n = Shape (x) f = Cast <to = 1> (n) h = Mul (f, s) r = Floor (h) i = Cast <to = 7> (r)"
        " t = Expand (s, i) m = ReduceSum <keepdims = 0> (t) y = Mul (m, x)"
    ),
    "an index": "a = Abs (x) r = Round (a) i = Cast <to = 7> (r) g = Gather (table, i) y = Mul (g, x)",
    "a condition": "r = Round (x) c = Greater (r, s) y = Where (c, x, zeros)",
    "a boolean": "r = Round (x) c = Cast <to = 9> (r) y = Where (c, x, zeros)",
    "a length": (
        "m = ReduceMax <keepdims = 1> (x) r = Ceil (m) i = Cast <to = 7> (r) z = Sub (i, i) e = Add (z, four)"
        " t = Slice (x, z, e) y = Mul (t, t)"
    ),
    "nothing that rounds": "y = Exp (x)",
}
CONSTANTS = (
    f"{BYTES}, float s = {{0.5}}, float three = {{3.0}}, float low = {{-2.0}}, float high = {{2.0}}, bool go = {{1}},"
    " int64[2] two = {2, 2}, int64[1] four = {4}, float[4] table = {1.0, 2.0, 3.0, 4.0},"
    " float[4] zeros = {0.0, 0.0, 0.0, 0.0}"
)


def loaded(nodes: str, folder: Path) -> gc.Model:
    onnx.save(onnx.parser.parse_model(f"{HEAD} <{CONSTANTS}> {{ {nodes} }}"), folder / "m.onnx")
    return gc.load(folder / "m.onnx")


@pytest.mark.parametrize("name", ROUNDED)
def test_a_gradient_goes_through_what_rounds_by_hand(name: str, tmp_path: Path) -> None:
    rounding, plain = ROUNDED[name]
    x = np.float32([0.3, -0.8, 1.4, 1.1])
    wanted = gc.check(loaded(plain, tmp_path), x_init_value={"x": x}).checks[0]
    [found] = gc.check(loaded(rounding, tmp_path), straight_through=True, x=["x"], x_init_value={"x": x}).checks
    assert found.status == wanted.status == "pass"
    for size in ("norm", "max"):
        assert_rounded(found.gradient[size], wanted.gradient[size], roundings=64)


@pytest.mark.parametrize("name", ROUNDED)
def test_the_graph_that_is_differentiated_computes_what_the_one_without_rounding_does(
    name: str, tmp_path: Path
) -> None:
    rounding, plain = (loaded(nodes, tmp_path).graph for nodes in ROUNDED[name])
    x = np.float64([0.3, -0.8, 1.4, 1.1])
    table = unrounded(gc.OPS)
    found = trace(straightened(rounding, gc.OPS), {"x": x}, ops=table).named["y"].value
    assert_rounded(found, trace(plain, {"x": x}, ops=gc.OPS).named["y"].value, roundings=64)


@pytest.mark.parametrize("name", AS_BEFORE)
def test_what_is_no_number_in_the_end_is_rounded_as_before(name: str, tmp_path: Path) -> None:
    model = loaded(AS_BEFORE[name], tmp_path)
    assert straightened(model.graph, gc.OPS) is model.graph
    assert not rounds(model.source, Settings(), gc.OPS)
