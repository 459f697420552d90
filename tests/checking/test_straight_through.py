"""Quantizers do not round under `straight_through`: their gradient is that of the bounded line, and is checked as such."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import gradcheck_cli as gc
from gradcheck_cli.autodiff.backward import gradients
from gradcheck_cli.autodiff.trace import trace
from gradcheck_cli.cli import main
from gradcheck_cli.ops.straight import rounds, straightened, through, unrounded
from gradcheck_cli.settings import Settings
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


@pytest.mark.parametrize("before", ["Identity", "Relu", "Exp"])
@pytest.mark.parametrize("seed", range(8))
def test_a_dynamic_scale_bounds_nothing(before: str, seed: int, tmp_path: Path) -> None:
    """The range is that of the numbers themselves, so those at its ends are at no bound: unrounded, all stays."""
    text = f"""<ir_version: 10, opset_import: ["": 21]> g (float[12] x) => (float[12] y)
    {{ a = {before} (x) {DYNAMIC.replace("(x)", "(a)")} y = Tanh (d) }}"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "model.onnx")
    [check] = gc.check(gc.load(tmp_path / "model.onnx"), straight_through=True, seed=seed).checks
    assert check.status == "pass"


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


TWO_WAYS = {  # nodes that make p of x, which lies where rounding changes nothing: a check and a file compute the same
    "a quantizer": "q = QuantizeLinear (x, s, z) d = DequantizeLinear (q, s, z) p = Mul (d, d)",
    "a quantizer that x is too large for":
        "h = Mul (x, u40) q = QuantizeLinear (h, s, z) d = DequantizeLinear (q, s, z) p = Mul (d, d)",
    "a scale of its own": "q, a, b = DynamicQuantizeLinear (x) d = DequantizeLinear (q, a, b) p = Mul (d, d)",
    "a product of integers": "q = QuantizeLinear (x, s, z) m = MatMulInteger (q, Wi, z) f = Cast <to = 1> (m)"
        " p = Mul (f, f)",
    "such a product with a scale of its own": "q, a, b = DynamicQuantizeLinear (x) m = MatMulInteger (q, Wi, b)"
        " f = Cast <to = 1> (m) d = Mul (f, a) p = Mul (d, d)",
    "a convolution of integers": "r = Reshape (x, image) q = QuantizeLinear (r, s, z) m = ConvInteger (q, Ki, z)"
        " f = Cast <to = 1> (m) p = Mul (f, f)",
    "QLinearMatMul": "q = QuantizeLinear (x, s, z) m = QLinearMatMul (q, s, z, Wu, t, z, eighth, z)"
        " d = DequantizeLinear (m, eighth, z) p = Mul (d, d)",
    "QLinearConv": "r = Reshape (x, image) q = QuantizeLinear (r, s, z) m = QLinearConv (q, s, z, Ku, u, z, s, z)"
        " d = DequantizeLinear (m, s, z) p = Mul (d, d)",
    "QLinearAdd": "q = QuantizeLinear (x, s, z) m = com.microsoft.QLinearAdd (q, s, z, q, s, z, u, z)"
        " d = DequantizeLinear (m, u, z) p = Mul (d, d)",
    "QLinearMul": "q = QuantizeLinear (x, s, z) m = com.microsoft.QLinearMul (q, s, z, q, s, z, t, z)"
        " d = DequantizeLinear (m, t, z) p = Mul (d, d)",
    "QLinearLeakyRelu": "q = QuantizeLinear (x, s, z) m = com.microsoft.QLinearLeakyRelu <alpha = 0.5> (q, s, z, t, z)"
        " d = DequantizeLinear (m, t, z) p = Mul (d, d)",
    "QLinearConcat": "q = QuantizeLinear (x, s, z) m = com.microsoft.QLinearConcat <axis = 0> (s, z, q, s, z, q, s, z)"
        " d = DequantizeLinear (m, s, z) p = Mul (d, d)",
    "QLinearGlobalAveragePool": "r = Reshape (x, pairs) q = QuantizeLinear (r, s, z)"
        " m = com.microsoft.QLinearGlobalAveragePool (q, s, z, t, z) d = DequantizeLinear (m, t, z) p = Mul (d, d)",
    "QGemm": "q = QuantizeLinear (x, s, z) m = com.microsoft.QGemm (q, s, z, Wi, u, zi, , s, z)"
        " d = DequantizeLinear (m, s, z) p = Mul (d, d)",
    "QGemm that gives floats": "q = QuantizeLinear (x, s, z) d = com.microsoft.QGemm (q, s, z, Wi, u, zi) p = Mul (d, d)",
    "MatMulIntegerToFloat":
        "q = QuantizeLinear (x, s, z) d = com.microsoft.MatMulIntegerToFloat (q, Wi, s, u, z) p = Mul (d, d)",
    "DynamicQuantizeMatMul": "d = com.microsoft.DynamicQuantizeMatMul (x, Wu, u, z) p = Mul (d, d)",
    "codes of weights that are quantized too": "q = QuantizeLinear (x, s, z) c = QuantizeLinear (Wf, s, z)"
        " m = com.microsoft.QLinearAdd (q, s, z, c, s, z, s, z) d = DequantizeLinear (m, s, z) p = Mul (d, d)",
    "a product with such weights": "q = QuantizeLinear (x, s, z) w = Transpose (Wf) c = QuantizeLinear (w, t, z)"
        " m = QLinearMatMul (q, s, z, c, t, z, eighth, z) d = DequantizeLinear (m, eighth, z) p = Mul (d, d)",
    "such weights in a branch": """p = If (go) <then_branch = a () => (float[2, 3] e) { q = QuantizeLinear (x, s, z)
        c = QuantizeLinear (Wf, s, z) m = com.microsoft.QLinearAdd (q, s, z, c, s, z, s, z) d = DequantizeLinear (m, s, z)
        e = Mul (d, d) }, else_branch = b () => (float[2, 3] o) { o = Neg (x) }>""",
    "codes in a pool": "r = Reshape (x, image) q = QuantizeLinear (r, s, z) m = MaxPool <kernel_shape = [2, 2]> (q)"
        " d = DequantizeLinear (m, s, z) p = Mul (d, d)",
    "codes behind a Relu": "q = QuantizeLinear (x, s, zi) m = Relu (q) d = DequantizeLinear (m, s, zi) p = Mul (d, d)",
    "a cast like an integer": "w = Mul (x, two) i = CastLike (w, one) f = CastLike (i, s) p = Mul (f, x)",
    "a cast like x": "w = Mul (x, two) i = Cast <to = 6> (w) f = CastLike (i, x) p = Mul (f, x)",
    "a cast like codes": "w = Mul (x, two) q = QuantizeLinear (w, u, z) a = Abs (w) i = CastLike (a, q)"
        " f = CastLike (i, s) p = Mul (f, x)",
}  # fmt: skip
INSIDE = {  # what rounds v in graphs inside of nodes, and makes f
    "a cast": "i = Cast <to = 6> (v) f = Cast <to = 1> (i)",
    "a cast like an integer": "i = CastLike (v, one) f = CastLike (i, s)",
    "a rounding": "f = Floor (v)",
    "a quantizer": "i = QuantizeLinear (v, u, z) f = DequantizeLinear (i, u, z)",
}  # fmt: skip
AROUND = {
    "a branch": """w = Mul (x, two) p = If (go) <then_branch = a () => (float[2, 3] e)
        {{ v = Identity (w) {} e = Mul (f, x) }}, else_branch = b () => (float[2, 3] o) {{ o = Neg (x) }}>""",
    "a branch that x chooses": """w = Mul (x, two) m = ReduceMax <keepdims = 0> (x) c = Greater (m, u)
        p = If (c) <then_branch = a () => (float[2, 3] e) {{ v = Identity (w) {} e = Mul (f, x) }},
        else_branch = b () => (float[2, 3] o) {{ o = Neg (x) }}>""",
    "a loop": """w = Mul (x, two) p = Loop (twice, go, w)
        <body = a (int64 k, bool c, float[2, 3] v) => (bool d, float[2, 3] e) {{ d = Identity (c) {} e = Mul (f, w) }}>""",
    "a scan": """w = Mul (x, two)
        p = Scan <num_scan_inputs = 1, body = a (float[3] v) => (float[3] e) {{ {} e = Mul (f, v) }}> (w)""",
}  # fmt: skip
TWO_WAYS |= {f"{what} in {where}": AROUND[where].format(INSIDE[what]) for what in INSIDE for where in AROUND}
BEFORE = {
    "a cast": ("r = Cast <to = 6> (v)", "f = Cast <to = 1> (r)"),
    "a rounding": ("r = Floor (v)", "f = Identity (r)"),
    "a rounding that chooses rows too": (
        "r = Floor (v) a = Abs (r) i = Cast <to = 7> (a)", "g = Gather (weights, i) f = Mul (r, g)"),
    "a quantizer": ("r = QuantizeLinear (v, u, z)", "f = DequantizeLinear (r, u, z)"),
}  # fmt: skip
TWO_WAYS |= {
    f"{what} before a branch that reads it": f"v = Mul (x, two) {before} {AROUND['a branch'].format(inside)}".replace(
        "w = Mul (x, two)", "").replace("v = Identity (w)", "")
    for what, (before, inside) in BEFORE.items()
}  # fmt: skip
NUMBERS = """float s = {0.5}, float t = {0.25}, float eighth = {0.125}, float u = {1.0}, float u40 = {40.0},
    float two = {2.0}, uint8 z = {128}, int8 zi = {0}, int32 one = {1}, bool go = {1}, int64 twice = {2},
    float[2, 3] Wf = {0.5, -0.5, 1, 1.5, -1, 0.5},
    int64[4] image = {1, 1, 2, 3}, float[7] weights = {1, 2, 3, 4, 5, 6, 7}, int64[4] pairs = {1, 3, 1, 2},
    int8[3, 2] Wi = {1, -2, 3, 4, -5, 6}, uint8[3, 2] Wu = {129, 126, 131, 132, 127, 130},
    uint8[1, 1, 2, 2] Ku = {127, 129, 130, 127}, int8[1, 1, 2, 2] Ki = {1, -2, 3, 4}"""
ON_THE_GRID = np.float32([[0.5, -1.0, 2.0], [1.5, -2.5, 3.0]])
OF_ITS_OWN = np.float32([[63.5, -64.0, 2.0], [1.5, -2.5, 3.0]])  # 255 steps of 0.5


@pytest.mark.parametrize("name", TWO_WAYS)
def test_a_check_and_a_gradient_file_give_the_same_derivative(name: str, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    nodes, path = TWO_WAYS[name], tmp_path / "m.onnx"
    head = '<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]> g (float[2, 3] x) => (float y)'
    onnx.save(onnx.parser.parse_model(f"{head} <{NUMBERS}> {{ {nodes} y = ReduceSum <keepdims = 0> (p) }}"), path)
    x = OF_ITS_OWN if "Dynamic" in nodes else ON_THE_GRID
    model = gc.load(path)
    source, ops = through(model.source, Settings(straight_through=True), model.ops)
    tape = trace(source.graph, {"x": x.astype(np.float64)}, ops=ops)
    [wanted] = gradients(tape, {tape.named["y"].name: tape.constant(1.0)}, [tape.named["x"].name])
    assert wanted is not None
    assert np.any(wanted.value)
    assert main(["grad", str(path), "--y", "y", "--straight-through", "-o", str(tmp_path / "g.onnx")]) == 0
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    [plain], [y, found] = (
        onnxruntime.InferenceSession(str(tmp_path / file), options).run(names, {"x": x})
        for file, names in (("m.onnx", ["y"]), ("g.onnx", ["y", "x_grad"]))
    )
    assert y == plain
    assert_rounded(found, wanted.value, roundings=64, of=np.abs(wanted.value).max())
