"""Roles of constants, each by the first of five rules that holds; what is differentiated by, by name, glob and role."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import onnx
import onnx.parser
import pytest

import gradcheck_cli as gc
from gradcheck_cli.checks.inspection import inspect
from gradcheck_cli.cli import main
from gradcheck_cli.errors import UnsupportedError
from gradcheck_cli.formats import read
from gradcheck_cli.formats.onnx.read import read_proto
from gradcheck_cli.points.targets import constant_roles
from gradcheck_cli.settings import Settings

HEADER = '<ir_version: 8, opset_import: ["" : 18, "com.microsoft": 1]>\n'


def proto(text: str) -> onnx.ModelProto:
    """A model from text, in which dots, slashes and colons of names are spelt."""
    model = onnx.parser.parse_model(HEADER + text)
    for value in [*model.graph.initializer, *model.graph.node]:
        value.name = spelt(value.name)
    for node in model.graph.node:
        node.input[:], node.output[:] = map(spelt, node.input), map(spelt, node.output)
    return model


def spelt(name: str) -> str:
    return name.replace("_DOT_", ".").replace("_SLASH_", "/").replace("_COLON_", ":")


ROLES: dict[str, tuple[str, dict[str, tuple[str, int]]]] = {
    "batch normalization": ("""g (float[N, 2] x) => (float[N, 2] y)
        <float[2] s = {1, 1}, float[2] b = {0, 0}, float[2] m = {1, 2}, float[2] v = {3, 4}>
        { y = BatchNormalization (x, s, b, m, v) }""",
        {"s": ("weight", 2), "b": ("weight", 2), "m": ("statistic", 2), "v": ("statistic", 2)}),
    "filled in where an operator needs a weight and the module has none": ("""
        g (float[N, 2, 3] x) => (float[N, 2, 2] y)
        <float[2, 2, 2] w = {1, 2, 3, 4, 5, 6, 7, 8}, float[2] val_3 = {0, 0}, float[2] val_4 = {0.25, 0.25},
         float[2] m_DOT_val_5 = {1, 1}, float[2] onnx_COLON__COLON_Conv_6 = {0, 0}, float[2] b = {0, 0}>
        { c = Conv (x, w, val_3) d = PRelu (c, val_4) one = Constant <value_floats = [1.0, 1.0]> ()
          e = InstanceNormalization (d, one, b) f = InstanceNormalization (e, m_DOT_val_5, onnx_COLON__COLON_Conv_6)
          y = Tanh (f) }""",
        {"w": ("weight", 2), "val_3": ("constant", 2), "val_4": ("weight", 2), "one": ("constant", 2),
         "b": ("weight", 2), "m.val_5": ("constant", 2), "onnx::Conv_6": ("weight", 2)}),
    "quantizers": ("""g (float[N, 2] x) => (float[N, 2] y) <float s = {0.5}, int8 z = {0}>
        { q = QuantizeLinear (x, s, z) y = DequantizeLinear (q, s, z) }""", {"s": ("quantization", 2)}),
    "a transposed operand of Gemm": ("""g (float[N, 2] x) => (float[N, 2] y) <float[2, 2] w = {1, 1, 1, 1}>
        { t = Transpose (w) y = Gemm (x, t) }""", {"w": ("weight", 2)}),
    "nothing reads it": ("g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { y = Sin (x) z = Sin (w) }",
        {"w": ("constant", 3)}),
    "positions that are cast to indices": ("""g (int64[3] i) => (float[3, 2] y)
        <float[4] p = {0, 1, 2, 3}, float[4, 2] w = {1, 2, 3, 4, 5, 6, 7, 8}>
        { a = Gather (p, i) q = Cast <to = 7> (a) e = Gather (w, q) y = Tanh (e) }""",
        {"p": ("constant", 3), "w": ("weight", 5)}),
    "positions that are compared": ("""g (float[2, 1] l, float[2, 3] x) => (float[2, 3] y) <float[3] p = {0, 1, 2}>
        { c = Less (p, l) m = Cast <to = 1> (c) y = Mul (x, m) }""", {"p": ("constant", 3)}),
    "an encoder before ArgMin": ("""g (float[2, 3] x) => (int64[2] k, float[2, 3] y)
        <float[3, 3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9}, float[3, 3] book = {1, 2, 3, 4, 5, 6, 7, 8, 9}>
        { e = MatMul (x, w) k = ArgMin <axis = 1, keepdims = 0> (e) y = Gather (book, k) }""",
        {"w": ("weight", 5), "book": ("weight", 5)}),
    "a weight that is cast to integers and back": ("""g (float[2, 3] x) => (float[2, 2] y)
        <float[3, 2] w = {1, 2, 3, 4, 5, 6}> { i = Cast <to = 3> (w) f = Cast <to = 1> (i) y = MatMul (x, f) }""",
        {"w": ("weight", 5)}),
    "importance of classes": ("""g (float[N, 3] x, int64[N] t) => (float y)
        <float[3] c = {1, 2, 3}, float[3] w = {1, 2, 3}>
        { s = Mul (x, w) y = SoftmaxCrossEntropyLoss (s, t, c) }""", {"c": ("constant", 2), "w": ("weight", 5)}),
    "importance of classes that is learnt": ("""g (float[N, 3] x, int64[N] t) => (float y) <float[3] w = {1, 2, 3}>
        { s = Mul (x, w) p = LogSoftmax (s) q = PRelu (p, w) y = NegativeLogLikelihoodLoss (q, t, w) }""",
        {"w": ("weight", 2)}),
    "sizes": ("""g (float[N, 2] x) => (float[N, 4] y) <float[2] t = {1, 2}>
        { c = Cast <to = 7> (t) y = Tile (x, c) }""", {"t": ("constant", 3)}),
    "one entry": ("""g (float[N] x) => (float[N] y) <float enc_DOT_scale = {2}, float half = {0.5},
        float m_SLASH_Constant_3 = {3}, float m_DOT_onnx_COLON__COLON_Mul_5 = {4}>
        { a = Mul (x, enc_DOT_scale) b = Mul (a, half) c = Mul (b, m_SLASH_Constant_3)
          y = Mul (c, m_DOT_onnx_COLON__COLON_Mul_5) }""",
        {"enc.scale": ("weight", 4), "half": ("constant", 4), "m/Constant_3": ("constant", 4),
         "m.onnx::Mul_5": ("constant", 4)}),
    "one entry in a node": ("""g (float[N] x) => (float[N] y)
        { enc_DOT_scale = Constant <value_float = 2.0> () y = Mul (x, enc_DOT_scale) }""", {"enc.scale": ("constant", 4)}),
    "several values": ("""g (float[N, 3] x) => (float[N, 3] y) <float[3] w = {1, 2, 3}, float[3] ones = {1, 1, 1},
        float[3] mask = {0, 1, 0}, float[3] far = {0, -10000, 0}, float[3] near = {0, -2, 0}>
        { a = Mul (x, w) b = Mul (a, ones) c = Mul (b, mask) d = Add (c, far) y = Add (d, near) }""",
        {"w": ("weight", 5), "ones": ("constant", 5), "mask": ("constant", 5), "far": ("constant", 5),
         "near": ("weight", 5)}),
    "literals of PyTorch's older exporter": ("""g (float[N, 2, 4] x) => (float[N, 2, 3] y)
        <float[2, 2, 2] _SLASH_m_SLASH_Constant_output_0 = {1, 2, 3, 4, 5, 6, 7, 8},
         float[3] _SLASH_Constant_12_output_0 = {1, 2, 3}, float[3] m_SLASH_Constant_1_output_0 = {1, 2, 3},
         float[3] _SLASH_m_SLASH_Add_output_0 = {1, 2, 3}>
        { a = Conv (x, _SLASH_m_SLASH_Constant_output_0) b = Mul (a, _SLASH_Constant_12_output_0)
          c = Mul (b, m_SLASH_Constant_1_output_0) y = Add (c, _SLASH_m_SLASH_Add_output_0) }""",
        {"/m/Constant_output_0": ("constant", 1), "/Constant_12_output_0": ("constant", 1),
         "m/Constant_1_output_0": ("weight", 5), "/m/Add_output_0": ("weight", 5)}),
    "literals of PyTorch's older exporter behind a prefix": ("""g (float[N, 3] x) => (float[N, 3] y)
        <float[3] a_SLASH__SLASH_Constant_output_0 = {1, 2, 3}, float[3] m1__SLASH_Constant_1_output_0 = {1, 2, 3},
         float[3] net_DOT__SLASH_g_SLASH_Constant_output_0 = {1, 2, 3}, float[3] a_SLASH_fc_DOT_weight = {1, 2, 3}>
        { a = Mul (x, a_SLASH__SLASH_Constant_output_0) b = Mul (a, m1__SLASH_Constant_1_output_0)
          c = Mul (b, net_DOT__SLASH_g_SLASH_Constant_output_0) y = Mul (c, a_SLASH_fc_DOT_weight) }""",
        {"a//Constant_output_0": ("constant", 1), "m1_/Constant_1_output_0": ("constant", 1),
         "net./g/Constant_output_0": ("constant", 1), "a/fc.weight": ("weight", 5)}),
    "what an exporter fills in, behind a prefix": ("""g (float[N, 2, 4] x) => (float[N, 2, 4] y)
        <float[2] m1_val_10 = {1, 1}, float[2] m1_norm_bias = {0, 0}>
        { y = InstanceNormalization (x, m1_val_10, m1_norm_bias) }""",
        {"m1_val_10": ("constant", 2), "m1_norm_bias": ("weight", 2)}),
    "literals of TensorFlow": ("""g (float[N, 3] x) => (float[N, 3] y)
        <float d_SLASH_Gelu_SLASH_Pow_SLASH_y_COLON_0 = {3}, float d_SLASH_Gelu_SLASH_mul_2_SLASH_x_COLON_0 = {0.5},
         float l_SLASH_zeros_SLASH_Const_COLON_0 = {0}, float Const_1_COLON_0 = {2},
         float p_SLASH_SelectV2_SLASH_e_COLON_0 = {2},
         float[3] p_SLASH_add_SLASH_y_COLON_0 = {1, 2, 3}, float d_SLASH_add_SLASH_ReadVariableOp_COLON_0 = {2},
         float r_SLASH_Neg_COLON_0 = {2}, float[3] n_SLASH_Reshape_COLON_0 = {1, 2, 3}, float m_DOT_x = {2},
         float m_SLASH_y = {2},
         float b_SLASH_Relu6_max__512 = {6}, float[3] b_SLASH_W__7 = {1, 2, 3}>
        { a = Pow (x, d_SLASH_Gelu_SLASH_Pow_SLASH_y_COLON_0) b = Mul (d_SLASH_Gelu_SLASH_mul_2_SLASH_x_COLON_0, a)
          c = Add (b, l_SLASH_zeros_SLASH_Const_COLON_0) d = Mul (c, Const_1_COLON_0)
          e = Mul (d, p_SLASH_SelectV2_SLASH_e_COLON_0) f = Add (e, p_SLASH_add_SLASH_y_COLON_0)
          g = Add (f, d_SLASH_add_SLASH_ReadVariableOp_COLON_0) h = Mul (g, r_SLASH_Neg_COLON_0)
          i = Mul (h, n_SLASH_Reshape_COLON_0) j = Mul (i, m_DOT_x) k = Mul (j, m_SLASH_y)
          l = Min (k, b_SLASH_Relu6_max__512) y = Mul (l, b_SLASH_W__7) }""",
        {"d/Gelu/Pow/y:0": ("constant", 1), "d/Gelu/mul_2/x:0": ("constant", 1), "l/zeros/Const:0": ("constant", 1),
         "Const_1:0": ("constant", 1), "p/SelectV2/e:0": ("constant", 1), "p/add/y:0": ("constant", 1),
         "d/add/ReadVariableOp:0": ("weight", 4), "r/Neg:0": ("weight", 4), "n/Reshape:0": ("weight", 5),
         "m.x": ("weight", 4), "m/y": ("constant", 1),
         "b/Relu6_max__512": ("constant", 4), "b/W__7": ("weight", 5)}),
    "equal values called as a module's": ("""g (float[N, 3] x) => (float[N, 3] y)
        <float[3] n_DOT_weight = {1, 1, 1}, float[3] n_DOT_in_proj_bias = {0, 0, 0}, float[3] vit_DOT_cls_token = {0, 0, 0},
         float[3] d_SLASH_BiasAdd_SLASH_ReadVariableOp_COLON_0 = {0, 0, 0}, float[3] l_DOT_lambda_1 = {0.1, 0.1, 0.1},
         float[3] l_DOT_mask = {1, 1, 1}, float[3] weight = {1, 1, 1}, float[3] l_DOT_biased = {1, 1, 1},
         float[3] m_DOT_bias = {0, 1, 0}>
        { c_DOT_weight = Constant <value_floats = [2.0, 2.0, 2.0]> ()
          a = Mul (x, n_DOT_weight) b = Add (a, n_DOT_in_proj_bias) c = Add (b, vit_DOT_cls_token)
          d = Add (c, d_SLASH_BiasAdd_SLASH_ReadVariableOp_COLON_0) e = Mul (d, l_DOT_lambda_1) f = Mul (e, l_DOT_mask)
          g = Mul (f, weight) h = Mul (g, l_DOT_biased) i = Add (h, m_DOT_bias) y = Mul (i, c_DOT_weight) }""",
        {"n.weight": ("weight", 5), "n.in_proj_bias": ("weight", 5), "vit.cls_token": ("weight", 5),
         "d/BiasAdd/ReadVariableOp:0": ("weight", 5), "l.lambda_1": ("weight", 5), "l.mask": ("constant", 5),
         "weight": ("constant", 5), "l.biased": ("constant", 5), "m.bias": ("constant", 5), "c.weight": ("constant", 5)}),
    "a mask of infinities": ("""g (float[N, 3] x) => (float[N, 3] y) <float[3] m = {0, 1, 0}, float[3] w = {1, 2, 3}>
        { i = Log (m) a = Add (x, i) y = Mul (a, w) }""", {"m": ("constant", 5), "w": ("weight", 5)}),
}  # fmt: skip


@pytest.mark.parametrize("name", ROLES)
def test_the_first_rule_that_holds_gives_the_role(name: str):
    text, expected = ROLES[name]
    graph = read_proto(proto(text)).graph
    found = constant_roles(graph, [n for n in graph.outputs if n != "k"])
    assert {n: (each.role, each.rule) for n, each in found.items()} == expected
    assert all(each.why for each in found.values())


DECLARED = {"k": "BUFFER", "s": "PARAMETER", "b": "BUFFER", "m": "BUFFER", "v": "BUFFER", "t": "BUFFER",
            "e": "CONSTANT_TENSOR", "u": "PARAMETER", "x": "USER_INPUT"}  # fmt: skip
MODULES = """g (float[N, 2, 3] x) => (float[N, 2, 3] y, float[2] z)
    <float[2, 2, 1] k = {1, 2, 3, 4}, float[2] s = {1, 1}, float[2] b = {0, 1}, float[2] m = {1, 2}, float[2] v = {3, 4},
     float[3] t = {1, 2, 3}, float e = {2}, float[2] u = {1, 2}, float[3] w = {4, 5, 6}>
    { c = Conv (x, k) n = BatchNormalization (c, s, b, m, v) h = Mul (n, t) i = Mul (h, w) y = Mul (i, e) z = Sin (u) }"""


def declared(model: onnx.ModelProto, kinds: Mapping[str, str], dtype: int = onnx.TensorProto.FLOAT) -> onnx.ModelProto:
    """A model in which PyTorch's exporter says what its tensors are."""
    for name, kind in kinds.items():
        info = model.graph.value_info.add(name=name)
        info.type.tensor_type.elem_type = dtype
        info.metadata_props.add(key="pkg.torch.export.graph_signature.InputSpec.kind", value=kind)
    return model


def test_parameters_and_buffers_of_modules_are_what_the_exporter_declares():
    graph = read_proto(declared(proto(MODULES), DECLARED)).graph
    found = {n: (each.role, each.rule) for n, each in constant_roles(graph, ["y"]).items()}
    assert found == {
        "k": ("constant", 1), "s": ("weight", 1), "b": ("constant", 1), "m": ("statistic", 2), "v": ("statistic", 2),
        "t": ("constant", 1), "e": ("constant", 1), "u": ("constant", 3), "w": ("weight", 5),
    }  # fmt: skip


SPEC = """gradcheck: 1
graphs:
  net:
    inputs: {x: {shape: [2, 3]}}
    params: {scale: {shape: [], init: ones}, b: {shape: [3], init: zeros}}
    nodes: |
      h = Mul (x, scale)
      y = Add (h, b)
    outputs: [y]
"""


def test_parameters_of_a_spec_and_those_that_are_named_are_weights(tmp_path: Path):
    (tmp_path / "net.gradcheck.yaml").write_text(SPEC)
    source = read(tmp_path / "net.gradcheck.yaml").meant
    assert source is not None
    facts = {t.name: (t.role, t.rule) for t in inspect(source, Settings()).tensors if t.rule}
    assert facts == {"scale": ("weight", 1), "b": ("weight", 1)}
    graph = read_proto(proto(ROLES["several values"][0])).graph
    assert constant_roles(graph, ["y"], ["ones"])["ones"].rule == 1


CONSTANTS = """gradcheck: 1
graphs:
  net:
    inputs: {x: {shape: [2, 3]}}
    params: {b: [0.5, 1, 2]}
    constants: {F: [[1, 0.1, 2], [0, 1, 3], [4, 5, 6]], mean: [0.1, 0.2, 0.3], var: [1.0, 2.0, 3.0]}
    nodes:
      - {op: MatMul, inputs: [x, F], outputs: [h]}
      - {op: Gemm, inputs: [h, [[1, 2, 3], [4, 5, 6], [7, 8, 10]], b], outputs: [g]}
      - {op: Sub, inputs: [1.5, g], outputs: [q]}
      - {op: BatchNormalization, inputs: [q, b, b, mean, var], outputs: [n]}
      - {op: Pow, inputs: [n, 2.0], outputs: [p]}
      - {op: If, inputs: [true], outputs: [y], attrs: {
          then_branch: "t () => (s) <float[3] c = {1, 2, 3}> { s = Mul (p, c) }",
          else_branch: "e () => (s) { s = Mul (p, F) }"}}
    outputs: [y]
"""


def test_constants_of_a_spec_are_no_weights_unless_they_are_named(tmp_path: Path):
    path = tmp_path / "net.gradcheck.yaml"
    path.write_text(CONSTANTS)
    source = read(path).meant
    assert source is not None
    roles = constant_roles(source.graph, ["y"])
    assert [name for name, found in roles.items() if found.role == "weight"] == ["b"]
    assert roles["mean"].role == "statistic"
    assert constant_roles(source.graph, ["y"], ["F"])["F"].role == "weight"
    report = gc.check(gc.load(path), params=True)
    assert [check.x for check in report.checks] == ["x", "b"]
    assert not any("not taken for parameters" in note for check in report.checks for note in check.notes)


def test_without_a_float_input_the_weights_are_x_and_without_those_nothing_is(tmp_path: Path):
    text, _ = ROLES["positions that are cast to indices"]
    onnx.save(proto(text), tmp_path / "net.onnx")
    report = gc.check(gc.load(tmp_path / "net.onnx"))
    assert [(c.x, c.status) for c in report.checks] == [("w", "pass")]
    alone = text.replace("float[4, 2] w = {1, 2, 3, 4, 5, 6, 7, 8}", "float[4, 2] w = {1, 1, 1, 1, 1, 1, 1, 1}")
    onnx.save(proto(alone), tmp_path / "net.onnx")
    with pytest.raises(UnsupportedError, match="no float input or weight that its outputs depend on") as raised:
        gc.check(gc.load(tmp_path / "net.onnx"))
    assert raised.value.code == "GC501"
    told = "w [4,2] float32 (all values are equal, or a mask's) and 1 more constant. Check it: --param w"
    assert str(raised.value).endswith(told)
    assert gc.check(gc.load(tmp_path / "net.onnx"), param=["w"]).exit_code == 0


@pytest.mark.parametrize(
    ("values", "readers", "said"),
    [
        ("0, 0, 0", "z = Add (r, n_DOT_bias)", "n.bias (all its values are equal, and 2 nodes read it)"),
        (
            "0, 0, 0",
            "i = Identity (n_DOT_bias) z = Add (r, i)",
            "n.bias (all its values are equal, and 2 nodes read it)",
        ),
        ("0, 1, 2", "z = Add (r, n_DOT_bias)", ""),
        ("0, 0, 0", "i = Identity (r) z = Sin (i)", ""),
    ],
)
def test_equal_weights_that_an_exporter_may_have_made_one_are_told(
    values: str, readers: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    text = f"""g (float[N, 3] x) => (float y) <float[3] n_DOT_bias = {{{values}}}>
        {{ a = Add (x, n_DOT_bias) r = Tanh (a) {readers} y = ReduceSum <keepdims = 0> (z) }}"""
    onnx.save(proto(text), tmp_path / "net.onnx")
    for command in (["grad", "--params", "-o", "g.onnx"], ["step", "--loss", "y", "-o", "step"]):
        *words, output = command
        assert main([words[0], str(tmp_path / "net.onnx"), *words[1:], str(tmp_path / output)]) == 0
        notes = " ".join(capsys.readouterr().out.split())
        assert ("export without optimizing" in notes) == bool(said)
        assert said in notes


NET = """g (float[N, 3] x) => (float[N, 3] y) <float[3] enc_DOT_w = {1, 2, 3}, float[3] enc_DOT_b = {1, 1, 1},
    float[3] dec_DOT_w = {4, 5, 6}, float eps = {0.5}, float[3] enc_DOT_unused = {1, 2, 3}>
    { a = Mul (x, enc_DOT_w) b = Add (a, enc_DOT_b) c = Mul (b, dec_DOT_w) y = Add (c, eps) }"""
CHOSEN: dict[str, tuple[str, ...]] = {
    "": ("x",),
    "--params": ("x", "enc.w", "dec.w"),
    "--param enc.b": ("x", "enc.b"),
    "--param enc.*": ("x", "enc.w", "enc.b"),
    "--param ???": ("x", "eps"),
    "--param !dec.*": ("x", "enc.w"),
    "--param enc.* --param !*.b": ("x", "enc.w"),
    "--params --param eps": ("x", "enc.w", "dec.w", "eps"),
    "--params --param !enc.w": ("x", "dec.w"),
    "--x x --param eps": ("x", "eps"),
    "--x enc.?": ("enc.w", "enc.b"),
    "--x a --x c": ("a", "c"),
    "--x [a]*": (),
}


def run(folder: Path, capsys: pytest.CaptureFixture[str], words: str) -> tuple[int, list[str], str]:
    """The exit code of a check, what was differentiated by, and what was said."""
    onnx.save(proto(NET), folder / "net.onnx")
    code = main([str(folder / "net.onnx"), *words.split(), "--output-format", "json"])
    out, err = capsys.readouterr()
    checks = json.loads(out)["checks"]
    return code, [c["x"] for c in checks if c["status"] == "pass"], " ".join([*(c["message"] for c in checks), err])


@pytest.mark.one_in(3)
@pytest.mark.parametrize("words", CHOSEN)
def test_targets_by_name_glob_and_role(words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    code, xs, _ = run(tmp_path, capsys, words)
    assert (code, tuple(xs)) == (0 if CHOSEN[words] else 2, CHOSEN[words])


def test_what_a_glob_fits_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    said = run(tmp_path, capsys, "--x enc.? --param !dec.* --param e*")[2]
    assert "note: --x enc.? is enc.w, enc.b\n" in said
    assert "note: --param !dec.* is dec.w\n" in said
    assert "note: --param e* is enc.w, enc.b, eps\n" in said
    assert "note" not in run(tmp_path, capsys, "--x enc.w --param eps")[2]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--param encc.w", "--param encc.w fits no tensor that can be differentiated by. The nearest are enc.w"),
        ("--param enc.unused", "--param enc.unused fits no tensor"),
        ("--param !scale*", "--param !scale* fits no tensor"),
        ("--x dex.*", "--x dex.* fits no tensor that can be differentiated by. The nearest are dec.w"),
    ],
)
def test_a_pattern_that_fits_nothing_is_an_error_with_the_nearest_names(
    words: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    code, xs, err = run(tmp_path, capsys, words)
    assert (code, xs) == (2, [])
    assert said in " ".join(err.split())


def test_a_glob_leaves_out_integers_that_the_file_does_not_declare(tmp_path: Path):
    text = """g (float[N, 3] x) => (float[N, 3] y) { h1 = Sin (x) h2 = Shape (h1) h3 = ConstantOfShape (h2) h4 = Cos (h1)
           y = Add (h3, h4) }"""
    onnx.save(proto(text), tmp_path / "net.onnx")
    assert main([str(tmp_path / "net.onnx"), "--x", "h?", "-q"]) == 0


def test_the_python_api_takes_patterns_too(tmp_path: Path):
    onnx.save(proto(NET), tmp_path / "net.onnx")
    model = gc.load(tmp_path / "net.onnx")
    assert [c.x for c in gc.check(model, param="enc.*").checks] == ["x", "enc.w", "enc.b"]
    assert [c.x for c in gc.check(model, param=["!enc.w"]).checks] == ["x", "dec.w"]
    with pytest.raises(ValueError, match="param=3 must be a name or a glob"):
        gc.check(model, param=3)


def test_patterns_choose_weights_of_grad_and_diff(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "net.onnx"
    onnx.save(proto(NET), path)
    assert main(["grad", str(path), "--param", "enc.*", "-o", str(tmp_path / "out.onnx")]) == 0
    made = {o.name for o in onnx.load(tmp_path / "out.onnx").graph.output}
    assert len(made) == 4, made
    capsys.readouterr()
    assert main(["diff", str(path), str(path), "--param", "!dec.w", "--output-format", "json"]) == 0
    assert {c["x"] for c in json.loads(capsys.readouterr().out)["checks"]} - {""} == {"x", "enc.w"}
