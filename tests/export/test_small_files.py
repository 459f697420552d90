"""Gradient files are small: what the model computes already is used, its nodes stay whole, nothing is added for nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

import gradcheck_cli as gc
from benchmarks.node_count_models import COUNTED, Counted
from benchmarks.node_count_peers import run
from benchmarks.node_counts import CLOSE, own
from gradcheck_cli.graph import Array
from gradcheck_cli.ops.sparing import sparing
from tests.rounding import FUNCTION, assert_rounded

MOST = {  # nodes of the files of these models
    "MLP, cross entropy": 21, "MLP, mean of squares": 18, "convnet like LeNet": 60, "encoder layer": 100,
    "LSTM cell": 48, "layer normalization": 24,
}  # fmt: skip


@pytest.mark.parametrize("case", COUNTED, ids=lambda case: case.name)
def test_files_have_no_more_nodes_than_these_and_are_right(case: Counted, tmp_path: Path):
    onnx.save(case.model(), tmp_path / "m.onnx")
    count, found = own(case, tmp_path / "m.onnx")
    assert count <= MOST[case.name]
    model = gc.load(tmp_path / "m.onnx")
    gradients = gc.gradients(model["loss"], [model[name] for name in found])
    wanted = gc.run([g for g in gradients if g is not None], case.feeds())
    for name, exact in zip(found, wanted, strict=True):
        np.testing.assert_allclose(found[name], exact, rtol=0, atol=CLOSE * np.abs(exact).max(), err_msg=name)


def saved(folder: Path, text: str, xs: Sequence[str], **options: bool) -> onnx.GraphProto:
    """The file of the gradients of `loss` of a model in ONNX's text syntax."""
    onnx.save(onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 18]> g {text}'), folder / "m.onnx")
    model = gc.load(folder / "m.onnx")
    found = gc.gradients(model["loss"], [model[x] for x in xs], **options)
    gc.save(model, folder / "g.onnx", ["loss", *(g.name for g in found if g is not None)])
    onnx.checker.check_model(folder / "g.onnx", full_check=True)
    return onnx.load(folder / "g.onnx").graph


def ops(graph: onnx.GraphProto) -> Iterator[str]:
    return (node.op_type for node in graph.node)


NORM = """(float[N,4] x, float[4] g) => (float loss) {
    y = LayerNormalization(x, g) q = Mul(y, y) loss = ReduceSum<keepdims=0>(q)
}"""


def test_a_normalization_stays_whole_and_gives_its_statistics(tmp_path: Path):
    graph = saved(tmp_path, NORM, ["x"])
    (node,) = (node for node in graph.node if node.op_type == "LayerNormalization")
    assert len(node.output) == 3
    assert {"Sqrt", "Reciprocal"}.isdisjoint(ops(graph))


def test_a_normalization_in_float64_is_made_of_what_has_its_precision(tmp_path: Path):
    graph = saved(tmp_path, NORM.replace("float", "double"), ["x"])
    assert all(len(node.output) == 1 for node in graph.node)


@pytest.mark.parametrize("dtype", ["float16", "double"])
def test_a_normalization_whose_statistics_are_float32_beside_another_dtype_has_its_own(tmp_path: Path, dtype: str):
    graph = saved(tmp_path, NORM.replace("float", dtype).replace("y =", "y, mean, inverse ="), ["x", "g"])
    assert {"mean", "inverse"}.isdisjoint(name for node in graph.node for name in node.input)


NARROW = {"float16": (np.float16, 2e-2), "float": (np.float32, 1e-5), "double": (np.float64, 1e-12)}


@pytest.mark.parametrize("stash", [1, 10, 11, 16])
@pytest.mark.parametrize("dtype", NARROW)
def test_the_statistics_of_a_normalization_do_not_mix_dtypes_in_a_file(tmp_path: Path, dtype: str, stash: int):
    text = NORM.replace("float", dtype).replace("Normalization", f"Normalization<stash_type={stash}>")
    saved(tmp_path, text, ["x", "g"])
    session = pytest.importorskip("onnxruntime").InferenceSession(
        tmp_path / "g.onnx", providers=["CPUExecutionProvider"]
    )
    x, g = np.random.default_rng(0).uniform(-1, 1, (3, 4)), np.array([0.5, -1, 2, 1.5])
    kind, atol = NARROW[dtype]
    _, *found = session.run(None, {"x": x.astype(kind), "g": g.astype(kind)})
    for ours, exact in zip(found, layer_norm_gradients(x, g), strict=True):
        np.testing.assert_allclose(ours, exact, rtol=0, atol=atol)


def layer_norm_gradients(x: Array, g: Array) -> list[Array]:
    """PyTorch's gradients of the sum of squares of a layer normalization."""
    torch = pytest.importorskip("torch")
    leaves = [torch.tensor(v, requires_grad=True) for v in (x, g)]
    y = torch.nn.functional.layer_norm(leaves[0], g.shape, leaves[1], eps=float(np.float32(1e-5)))
    (y * y).sum().backward()
    return [v.grad.numpy() for v in leaves]


def test_a_normalization_off_the_way_stays_as_it_is(tmp_path: Path):
    graph = saved(tmp_path, NORM.replace("Mul(y, y)", "Mul(y, z)").replace("g)", "g, float[N,4] z)", 1), ["z"])
    assert [len(node.output) for node in graph.node] == [1] * len(graph.node)
    assert list(ops(graph)).count("ReduceMean") == 0


def test_a_loss_stays_whole(tmp_path: Path):
    text = "(float[N,3] x, int64[N] t) => (float loss) { loss, logs = SoftmaxCrossEntropyLoss(x, t) }"
    assert {"SoftmaxCrossEntropyLoss"} <= set(ops(graph := saved(tmp_path, text, ["x"])))
    assert {"LogSoftmax", "Expand", "Shape"}.isdisjoint(ops(graph))


SUMS = "(float[2] x) => (float loss) { a = Sin(x) b = Add(a, a) loss = ReduceSum<keepdims=0>(b) }"


def test_gates_stay_where_they_were_asked_for(tmp_path: Path):
    assert "Identity" not in ops(saved(tmp_path, SUMS, ["x"]))
    assert "Identity" in ops(saved(tmp_path, SUMS, ["x"], gate_gradients=True))


def test_numbers_of_the_model_may_be_replaced_in_the_file(tmp_path: Path):
    given = "(float[2] x) => (float loss) <float one = {1}>"
    saved(tmp_path, f"{given} {{ y = Mul(x, one) z = Mul(y, y) loss = ReduceSum<keepdims=0>(z) }}", ["x"])
    proto = onnx.load(tmp_path / "g.onnx")
    (weight,) = (t for t in proto.graph.initializer if t.name == "one")
    weight.CopyFrom(onnx.numpy_helper.from_array(np.float32(3), "one"))
    onnx.save(proto, tmp_path / "h.onnx")
    model = gc.load(tmp_path / "h.onnx")
    (found,) = gc.run([model[proto.graph.output[1].name]], {"x": np.float32([1, 2])})
    assert found.tolist() == [18, 36]


def test_the_slope_of_tanh_is_that_of_its_result(tmp_path: Path):
    graph = saved(tmp_path, "(float[6] x) => (float loss) { y = Tanh(x) loss = ReduceSum<keepdims=0>(y) }", ["x"])
    assert "Cosh" not in ops(graph)
    x = np.float32([-60, -12, -1, 0, 9, 100])
    (found,) = gc.run([gc.load(tmp_path / "g.onnx")[graph.output[1].name]], {"x": x}, dtype="model")
    exact = np.cosh(x.astype(np.float64)) ** -2
    assert_rounded(found, exact, roundings=4 * FUNCTION * 2, of=np.ones(6))  # as PyTorch: rounded near 1, not near 0


DEPTHWISE = {  # space of x, filters, attributes of a convolution of 3 channels, each by itself
    "a line": ("5", (3, 1, 3), "pads=[1,1]"),
    "an image": ("4,5", (3, 1, 3, 3), "pads=[1,1,1,1]"),
    "open sizes": ("H,W", (3, 1, 3, 3), "pads=[1,1,1,1]"),
    "open sizes, wide filters": ("H,W", (3, 1, 5, 5), "pads=[2,2,2,2]"),
    "axes shorter than the shifts": ("2,1", (3, 1, 7, 5), "pads=[3,2,3,2]"),
    "dilated": ("6,7", (3, 1, 3, 2), "pads=[2,1,2,2], dilations=[2,3]"),
    "pads that differ": ("4,5", (3, 1, 2, 4), "pads=[0,3,1,0]"),
    "automatic pads": ("H,5", (3, 1, 3, 4), 'auto_pad="SAME_UPPER"'),
    "one row of taps": ("4,5", (3, 1, 1, 3), "pads=[0,1,0,1]"),
    "one tap": ("4,5", (3, 1, 1, 1), "strides=[1,1]"),
    "a volume": ("3,4,5", (3, 1, 3, 2, 3), "pads=[1,0,1,1,1,1]"),
    "many taps": ("9,8", (3, 1, 7, 7), "pads=[3,3,3,3]"),
    "steps": ("6,7", (3, 1, 3, 3), "pads=[1,1,1,1], strides=[2,2]"),
    "no pads": ("6,7", (3, 1, 3, 3), "strides=[1,1]"),
    "two filters a channel": ("4,5", (6, 1, 3, 3), "pads=[1,1,1,1]"),
}


@pytest.mark.parametrize(("space", "filters", "attributes"), DEPTHWISE.values(), ids=DEPTHWISE)
def test_filters_of_one_channel_each_have_the_gradient_of_the_model(space, filters, attributes, tmp_path: Path):
    shape = ",".join(map(str, filters))
    text = f"""(float[N,3,{space}] x, float[{shape}] w) => (float loss) {{
        y = Conv<group=3, {attributes}>(x, w) e = Sin(y) q = Mul(e, e) loss = ReduceSum<keepdims=0>(q) }}"""
    graph = saved(tmp_path, text, ["x", "w"])
    model, rng = gc.load(tmp_path / "m.onnx"), np.random.default_rng(0)
    gradients = gc.gradients(model["loss"], [model["x"], model["w"]])
    for sizes in ({"N": 2, "H": 3, "W": 6}, {"N": 1, "H": 1, "W": 1}):
        x = rng.normal(size=(sizes["N"], 3, *(sizes.get(n) or int(n) for n in space.split(","))))
        feeds = {"x": x.astype(np.float32), "w": rng.normal(size=filters).astype(np.float32)}
        found = run(str(tmp_path / "g.onnx"), feeds, [output.name for output in graph.output[1:]])
        for exact, value in zip(gc.run(gradients, feeds), found.values(), strict=True):
            np.testing.assert_allclose(value, exact, rtol=0, atol=CLOSE * np.abs(exact).max())


def test_windows_of_depthwise_filters_are_not_held(tmp_path: Path):
    text = """(float[N,3,6,7] x, float[3,1,3,3] w) => (float loss) {
        y = Conv<group=3, pads=[1,1,1,1]>(x, w) q = Mul(y, y) loss = ReduceSum<keepdims=0>(q) }"""
    graph = saved(tmp_path, text, ["w"])
    assert list(ops(graph)).count("Conv") == 1
    assert list(ops(graph)).count("MatMul") == 3


CHANNELS = {  # of x: the attributes, and the operator that gives its cotangent
    "an image": (3, "pads=[1,1,1,1]", "ConvTranspose"),
    "an image by steps": (3, "pads=[1,0,1,1], strides=[2,2]", "ConvTranspose"),
    "more padding than taps": (3, "pads=[3,3,3,3]", "ConvTranspose"),
    "eight": (8, "dilations=[2,1], pads=[2,1,2,1]", "ConvTranspose"),
    "nine": (9, "dilations=[2,1], pads=[2,1,2,1]", "Conv"),
    "nine, no pads": (9, "strides=[1,1]", "Conv"),
    "nine by steps": (9, "pads=[1,0,1,1], strides=[2,2]", "ConvTranspose"),
}


@pytest.mark.parametrize(("channels", "attributes", "op"), CHANNELS.values(), ids=CHANNELS)
def test_few_channels_are_summed_by_the_transposed_convolution(channels, attributes, op, tmp_path: Path):
    text = f"""(float[N,{channels},H,W] x, float[4,{channels},3,3] w) => (float loss) {{
        y = Conv<{attributes}>(x, w) e = Sin(y) q = Mul(e, e) loss = ReduceSum<keepdims=0>(q) }}"""
    graph = saved(tmp_path, text, ["x"])
    (last,) = (node for node in graph.node if node.op_type in ("Conv", "ConvTranspose") and "grad" in node.name)
    assert last.op_type == op
    model, rng = gc.load(tmp_path / "m.onnx"), np.random.default_rng(0)
    (gradient,) = gc.gradients(model["loss"], [model["x"]])
    for sizes in ((2, 6, 7), (1, 5, 5), (3, 8, 9)):
        x = rng.normal(size=(sizes[0], channels, *sizes[1:]))
        feeds = {"x": x.astype(np.float32), "w": rng.normal(size=(4, channels, 3, 3)).astype(np.float32)}
        (found,) = run(str(tmp_path / "g.onnx"), feeds, [graph.output[1].name]).values()
        (exact,) = gc.run([gradient], feeds)
        np.testing.assert_allclose(found, exact, rtol=0, atol=CLOSE * np.abs(exact).max())


def test_lines_without_any_share_send_nothing_on(tmp_path: Path):
    text = """(float[2,3] x, float[2,3] far) => (float loss) {
        m = Add(x, far) y = Softmax(m) n = IsNaN(y) z = Sub(x, x) k = Where(n, z, y)
        q = Mul(k, k) loss = ReduceSum<keepdims=0>(q) }"""
    graph = saved(tmp_path, text, ["x"])
    assert {"ThresholdedRelu"} <= set(ops(graph))
    feeds = {"x": np.float32([[1, 2, 3], [4, 5, 6]]), "far": np.float32([[0, 0, -np.inf], [-np.inf] * 3])}
    (found,) = run(str(tmp_path / "g.onnx"), feeds, [graph.output[1].name]).values()
    assert np.isfinite(found).all()
    assert found[0, 0] < 0 < found[0, 1]
    assert not found[1].any()


def test_the_slope_of_a_hard_swish_holds_no_choice(tmp_path: Path):
    text = "(float[7] x) => (float loss) { y = HardSwish(x) loss = ReduceSum<keepdims=0>(y) }"
    graph = saved(tmp_path, text, ["x"])
    assert "Where" not in ops(graph)
    x = np.float32([-9, -3, -2, 0, 2, 3, 9])
    (found,) = run(str(tmp_path / "g.onnx"), {"x": x}, [graph.output[1].name]).values()
    assert_rounded(found, [0, -1 / 2, -1 / 6, 1 / 2, 7 / 6, 3 / 2, 1], roundings=8, of=np.full(7, 2.0))


def test_a_rule_that_somebody_gave_is_the_one_in_the_file():
    wrong = {**gc.OPS, ("", "Tanh"): replace(gc.OPS["", "Tanh"], vjp=lambda ct, y, x: (ct,))}
    assert sparing(wrong)["", "Tanh"] is wrong["", "Tanh"]
    assert sparing(gc.OPS)["", "Tanh"].vjp is not gc.OPS["", "Tanh"].vjp


TURNED = """(float[T,3] x) => (float loss) <float[3] h = {0, 1, 2}> {
    last, ys = Scan<num_scan_inputs = 1, body = b (float[3] s, float[3] r) => (float[3] n, float[3] o) {
        m = Mul(s, r) n = Sin(m) o = Mul(n, s) }>(h, x)
    q = Mul(ys, ys) loss = ReduceSum<keepdims=0>(q) }"""


def test_the_reference_evaluator_runs_the_gradient_of_a_loop(tmp_path: Path):
    graph = saved(tmp_path, TURNED, ["x"])
    assert not [a for node in graph.node for a in node.attribute if a.name.endswith("_directions") and any(a.ints)]
    x = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    names = [output.name for output in graph.output]
    found = ReferenceEvaluator(onnx.load(tmp_path / "g.onnx")).run(names, {"x": x})
    model = gc.load(tmp_path / "m.onnx")
    (gradient,) = gc.gradients(model["loss"], [model["x"]])
    for one, other in zip(found, gc.run([model["loss"], gradient], {"x": x}), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("op", ["Gather", "GatherND"])
def test_half_precision_is_added_up_where_runtimes_can(op: str, tmp_path: Path):
    index = {"Gather": "int64[3] i = {1, 0, 1}", "GatherND": "int64[3,1] i = {1, 0, 1}"}[op]
    saved(tmp_path, f"""(float16[2,2] x) => (float16 loss) <{index}> {{
        y = {op}(x, i) q = Mul(y, y) loss = ReduceSum<keepdims=0>(q) }}""", ["x"])  # fmt: skip
    session = pytest.importorskip("onnxruntime").InferenceSession(tmp_path / "g.onnx")
    x = np.float16([[1, 2], [3, -4]])
    assert session.run(None, {"x": x})[1].tolist() == [[2, 4], [12, -16]]


def test_half_precision_is_added_up_inside_of_loops_where_runtimes_can(tmp_path: Path):
    saved(tmp_path, """(float16[2,2] x) => (float16 loss) <int64 n = {4}, bool always = {1}, int64[4] rows = {1, 0, 1, 1}> {
        first = Identity(x)
        last, seen = Loop<body = b (int64 k, bool go, float16[2,2] h) => (bool on, float16[2,2] h, float16[2] each) {
            on = Identity(go) row = Gather(rows, k) picked = Gather(x, row) each = Mul(picked, picked)
        }>(n, always, first)
        loss = ReduceSum<keepdims=0>(seen) }""", ["x"])  # fmt: skip
    session = pytest.importorskip("onnxruntime").InferenceSession(tmp_path / "g.onnx")
    x = np.float16([[1, 2], [3, -4]])
    assert session.run(None, {"x": x})[1].tolist() == [[2, 4], [18, -24]]
