"""Files of opsets 1 to 6 mean what they meant: the same model written anew, run by onnxruntime, is the oracle."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from onnx import parser

from gradcheck_cli.errors import ModelError
from gradcheck_cli.formats.onnx.read import read_proto
from gradcheck_cli.formats.onnx.write import to_proto
from tests.rounding import FUNCTION, assert_rounded

ort = pytest.importorskip("onnxruntime")
X, V = "float[2,3,4] x", "float[3] a"
STATISTICS = "float[3] s, float[3] b, float[3] m, float[3] v"


@dataclass(frozen=True, slots=True)
class Case:
    """A body at an old opset and what it was to compute, at opset 17; `opset`s are tried one by one."""

    opsets: tuple[int, ...]
    head: str
    old: str
    new: str

    def __str__(self) -> str:
        return self.old.replace(" ", "")[:60]


CASES = [
    *(
        Case(opsets, f"{X}, {shape}", f"h = Abs(x) c = Abs(a) y = {op} {attrs} (h, c)",
             f"h = Abs(x) c = Abs(a) n = Constant <value_ints={anew}> () d = Reshape(c, n) y = {op} (h, d)")
        for op in ("Add", "Sub", "Mul", "Div", "Pow")
        for opsets, shape, attrs, anew in [
            ((1, 6), "float[3] a", "<broadcast=1, axis=1>", "[3,1]"),
            ((1, 6), "float[2] a", "<broadcast=1, axis=0>", "[2,1,1]"),
            ((6,), "float[2,3] a", "<broadcast=1, axis=0>", "[2,3,1]"),
            ((6,), "float[4] a", "<broadcast=1, axis=-1>", "[4]"),
            ((6,), "float[4] a", "<broadcast=1>", "[4]"),
            ((6,), "float[3,4] a", "<broadcast=1>", "[3,4]"),
            ((6,), "float[1] a", "<broadcast=1>", "[1]"),
            ((6,), "float[2,3,4] a", "", "[2,3,4]"),
            ((6,), "float[2,3,4] a", "<axis=1>", "[2,3,4]"),
        ]
    ),
    Case((1, 6), f"{X}, {V}", "y = Mul <broadcast=1, axis=1> (x, a)",
         "n = Constant <value_ints=[3,1]> () d = Reshape(a, n) y = Mul (x, d)"),
    *(
        Case((1,), f"{X}, {V}", f"t = {op} <broadcast=1, axis=1> (x, a) y = Cast <to='float'> (t)",
             f"n = Constant <value_ints=[3,1]> () d = Reshape(a, n) t = {op} (x, d) y = Cast <to=1> (t)")
        for op in ("Less", "Greater")
    ),
    Case((1, 5), "float[2] x", "y = Cast <to='DOUBLE'> (x)", "y = Cast <to=11> (x)"),
    Case((1,), "float[2,3] x", "y = Relu <consumed_inputs=[0]> (x)", "y = Relu (x)"),
    Case((1,), "float[2,3] x", "y = Selu (x)", "y = Selu <alpha=1.6732, gamma=1.0507> (x)"),
    Case((1,), "float[2,3] x, float[2,3] z", "y = Concat (x, z)", "y = Concat <axis=1> (x, z)"),
    Case((4,), "float[2,3] x, float[2,3] z", "y = Concat <axis=0> (x, z)", "y = Concat <axis=0> (x, z)"),
    Case((1, 6), "float[2,3,4,5] x, float[3] a", "y = PRelu (x, a)",
         "n = Constant <value_ints=[3,1,1]> () d = Reshape(a, n) y = PRelu (x, d)"),
    Case((1, 6), "float[2,3,4,5] x, float[3] a", "h = Neg(x) y = PRelu (h, a)",
         "h = Neg(x) n = Constant <value_ints=[3,1,1]> () d = Reshape(a, n) y = PRelu (h, d)"),
    Case((6,), "float[2,3,4,5] x, float[1] a", "y = PRelu (x, a)", "y = PRelu (x, a)"),
    Case((6,), "float[3] x, float[3] a", "h = Neg(x) y = PRelu (h, a)", "h = Neg(x) y = PRelu (h, a)"),
    Case((1, 6), "float[2,3] x, float[3,4] w, float[4] c", "y = Gemm <broadcast=1, alpha=0.5> (x, w, c)",
         "y = Gemm <alpha=0.5> (x, w, c)"),
    Case((1,), "float[2,3] x", "y = Pad <paddings=[0,1,2,0], value=1.5> (x)",
         "p = Constant <value_ints=[0,1,2,0]> () c = Constant <value_float=1.5> () y = Pad (x, p, c)"),
    Case((1, 4), "float[2,3] x", "y = Reshape <shape=[3,-1]> (x)",
         "n = Constant <value_ints=[3,-1]> () y = Reshape (x, n)"),
    Case((1, 2), "float[4,3] x", "a, b = Split <axis=0, split=[1,3]> (x) y = Concat <axis=0> (b, a)",
         "n = Constant <value_ints=[1,3]> () a, b = Split <axis=0> (x, n) y = Concat <axis=0> (b, a)"),
    Case((1,), "float[4,3] x", "n = Constant <value = float[2] {1, 3}> () a, b = Split <axis=0> (x, n)"
         " y = Concat <axis=0> (b, a)",
         "n = Constant <value_ints=[1,3]> () a, b = Split <axis=0> (x, n) y = Concat <axis=0> (b, a)"),
    Case((1,), "float[2,3] x", "n = Constant <value = float {2}> () m = Constant <value = float {1}> ()"
         " h = Neg(x) y = Tile (h, n, m)", "n = Constant <value_ints=[1,2]> () h = Neg(x) y = Tile (h, n)"),
    Case((1,), "float[1,2,3,4] x", "y = Upsample <height_scale=2.0, width_scale=3.0, mode='bilinear'> (x)",
         "n = Constant <value_floats=[1.0,1.0,2.0,3.0]> ()"
         " y = Resize <mode='linear', coordinate_transformation_mode='asymmetric'> (x, , n)"),
    Case((1,), "float[1,2,3,4] x", "y = Upsample <height_scale=2.0, width_scale=3.0> (x)",
         "n = Constant <value_floats=[1.0,1.0,2.0,3.0]> () y = Resize <mode='nearest',"
         " coordinate_transformation_mode='asymmetric', nearest_mode='floor'> (x, , n)"),
    *(
        Case((1,), "float[1,2,4,4] x", f"y = {op} <p=3.0{more}> (x)", f"y = {op} <p=3{more}> (x)")
        for op, more in [("LpPool", ", kernel_shape=[2,2]"), ("GlobalLpPool", "")]
    ),
    Case((1, 6), f"{X}, {STATISTICS}", "abs = Abs (v) y = BatchNormalization <CONSUMED, is_test=1> (x, s, b, m, abs)",
         "abs = Abs (v) y = BatchNormalization (x, s, b, m, abs)"),
    *(
        Case((1, 6), f"{X}, {STATISTICS}", f"abs = Abs (v) {outputs} = BatchNormalization <CONSUMED> (x, s, b, m, abs)",
             "abs = Abs (v) y, rm, rv = BatchNormalization <training_mode=1> (x, s, b, m, abs)")
        for outputs in ("y", "y, rm, rv")
    ),
    Case((1, 6), "float[2,3] x", "y = Dropout <is_test=1, ratio=0.7> (x)", "y = Identity (x)"),
    Case((1, 6), "float[2,3] x", "y = Dropout <ratio=0.0> (x)", "y = Identity (x)"),
    Case((1, 3), "float[2,1,3] x, float[1,4,3] w, float[1,4,4] r",
         "y, h = RNN <hidden_size=4, output_sequence=1> (x, w, r)", "y, h = RNN <hidden_size=4> (x, w, r)"),
    Case((3,), "float[2,1,3] x, float[1,12,3] w, float[1,12,4] r",
         "y = GRU <hidden_size=4, output_sequence=1> (x, w, r)", "y = GRU <hidden_size=4> (x, w, r)"),
    Case((1, 6), "float[2,1,3] x, float[1,16,3] w, float[1,16,4] r",
         "y, h = LSTM <hidden_size=4, output_sequence=1> (x, w, r)", "y, h = LSTM <hidden_size=4> (x, w, r)"),
    Case((1, 6), "float[2,3] x", "y = Affine <alpha=2.0, beta=-0.5> (x)",
         "a = Constant <value_float=2.0> () b = Constant <value_float=-0.5> () h = Mul (x, a) y = Add (h, b)"),
    Case((1, 6), "float[2,3,4,5] x", "y = ImageScaler <scale=0.5, bias=[1.0, 2.0, 3.0]> (x)",
         "a = Constant <value_float=0.5> () c = Constant <value_floats=[1.0, 2.0, 3.0]> ()"
         " n = Constant <value_ints=[3,1,1]> () b = Reshape (c, n) h = Mul (x, a) y = Add (h, b)"),
    Case((1, 6), "float[2,3] x", "y = ScaledTanh <alpha=2.0, beta=0.5> (x)",
         "a = Constant <value_float=2.0> () b = Constant <value_float=0.5> () h = Mul (x, b) t = Tanh (h)"
         " y = Mul (t, a)"),
    Case((1, 6), "float[2,3] x", "y = ParametricSoftplus <alpha=2.0, beta=0.5> (x)",
         "a = Constant <value_float=2.0> () b = Constant <value_float=0.5> () h = Mul (x, b) t = Softplus (h)"
         " y = Mul (t, a)"),
    Case((1, 6), "float[1,2,5,6] x", "y = Crop <border=[1,2,0,1]> (x)",
         "s = Constant <value_ints=[2,1]> () e = Constant <value_ints=[4,6]> () a = Constant <value_ints=[2,3]> ()"
         " y = Slice (x, s, e, a)"),
    Case((1, 6), "float[1,2,5,6] x", "y = Crop <border=[1,2,0,0], scale=[2,3]> (x)",
         "s = Constant <value_ints=[2,1]> () e = Constant <value_ints=[4,4]> () a = Constant <value_ints=[2,3]> ()"
         " y = Slice (x, s, e, a)"),
]  # fmt: skip


def model_of(head: str, body: str, opset: int):
    consumed = "consumed_inputs=[0,0,0,1,1]" if opset < 6 else "epsilon=0.00001"
    text = body.replace("CONSUMED", consumed).replace("'", '"')
    return parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]> g ({head}) => (y) {{ {text} }}')


def onnxruntime(model, feeds: dict[str, np.ndarray]) -> np.ndarray:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(["y"], feeds)[0]


@pytest.mark.parametrize(
    "case, opset", [pytest.param(c, o, id=f"{c}-{o}") for c in CASES for o in c.opsets]
)  # fmt: skip
def test_a_file_of_an_early_opset_computes_what_the_same_model_computes_today(case: Case, opset: int, tmp_path) -> None:
    modern = model_of(case.head, case.new, 17)
    rng = np.random.default_rng(3)
    feeds = {
        i.name: rng.standard_normal([d.dim_value for d in i.type.tensor_type.shape.dim]).astype(np.float32)
        for i in modern.graph.input
    }
    expected = onnxruntime(modern, feeds)
    written = to_proto(read_proto(model_of(case.head, case.old, opset)).graph)
    found = onnxruntime(written, feeds)
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    assert_rounded(found, expected, roundings=4 * FUNCTION)


@pytest.mark.parametrize("opset", [1, 6])
def test_early_dropout_drops_unless_it_is_a_test(opset: int) -> None:
    [node] = read_proto(model_of("float[2,3] x", "y = Dropout <ratio=0.25> (x)", opset)).graph.nodes
    graph = read_proto(model_of("float[2,3] x", "y = Dropout <ratio=0.25> (x)", opset)).graph
    assert graph.constants[node.inputs[1]] == 0.25
    assert graph.constants[node.inputs[2]] == np.True_


@pytest.mark.parametrize(
    "body, message",
    [
        ("y = Cast <to='FLOOT'> (x)", "'FLOOT' is no type of a tensor"),
        ("y = Crop <border=[1,2]> (x)", "a border has four sizes"),
        ("y = Crop <border=[1,2,3,-4]> (x)", "a border has four sizes"),
        ("y = Add <broadcst=1> (x, x)", "attribute 'broadcst' is unknown to opset 1. Did you mean 'broadcast'"),
    ],
)
def test_what_an_early_form_cannot_mean_is_said(body: str, message: str) -> None:
    with pytest.raises(ModelError, match=message.replace("?", r"\?")):
        read_proto(model_of("float[1,1,5,5] x", body, 1))
