"""Old opsets mean what they meant: a model, read and written in its newest form, computes what onnxruntime
computes from the old file.

One line a way of using an operator; the numbers are the opsets that it is tried at.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
import pytest
from onnx import defs, parser

import gradcheck_cli as gc
from gradcheck_cli.errors import ModelError, UnsupportedError
from gradcheck_cli.formats.onnx.adapt import CHANGES, EXPERIMENTS
from gradcheck_cli.formats.onnx.opset import NEWEST, versions
from gradcheck_cli.formats.onnx.read import read_proto
from gradcheck_cli.formats.onnx.write import to_proto
from tests.rounding import FUNCTION, assert_rounded
from tests.versions import is_later

ort = pytest.importorskip("onnxruntime")


class Case(NamedTuple):
    """A graph in ONNX's text syntax, and the opsets that it is valid for."""

    opsets: str  # "7-12" or "9"
    head: str  # inputs and constants
    body: str
    outputs: str = "y"

    def __str__(self) -> str:
        return f"{self.body.split('(')[0].strip()[:50]} {self.opsets}"

    def numbers(self) -> range:
        first, _, last = self.opsets.partition("-")
        return range(int(first), int(last or first) + 1)


X = "float[2,3,4] x"
IMAGE = "float[1,2,4,6] x"
HALF_PIXEL_FOR_NN = "coordinate_transformation_mode='tf_half_pixel_for_nn'"
CASES = [
    Case("7-10", X, "y = Clip <min=-0.5, max=0.5> (x)"),
    Case("7-10", X, "y = Clip <max=0.5> (x)"),
    Case("7-10", X, "y = Clip (x)"),
    Case("9-10", "double[2,3] x", "h = Cast <to=1> (x) y = Clip <min=0.1> (h)"),
    Case("11-17", f"{X}, float lo", "y = Clip (x, lo)"),
    Case("7-10", IMAGE, "y = Pad <pads=[0,0,1,2,0,0,3,4], value=1.5> (x)"),
    Case("7-10", IMAGE, "y = Pad <pads=[0,0,1,2,0,0,3,1], mode='reflect'> (x)"),
    Case("7-10", IMAGE, "y = Pad <pads=[0,0,1,2,0,0,3,4], mode='edge'> (x)"),
    Case("7-10", IMAGE, "y = Pad <pads=[0,0,-1,2,0,0,0,-1]> (x)"),
    Case("7-9", X, "y = Slice <starts=[0,1], ends=[1,3], axes=[0,2]> (x)"),
    Case("7-9", X, "y = Slice <starts=[0,-2], ends=[1000,-1]> (x)"),
    Case("7-12", X, "y, z = Split <axis=1, split=[1,2]> (x)", "y, z"),
    Case("7-17", X, "y, z = Split <axis=2> (x)", "y, z"),
    Case("13-17", f"{X}, int64[2] s = {{1, 2}}", "y, z = Split <axis=1> (x, s)", "y, z"),
    Case("18-22", X, "y, z = Split <axis=1, num_outputs=2> (x)", "y, z"),
    Case("7-12", "float[1,3,1] x", "y = Squeeze <axes=[0,2]> (x)"),
    Case("7-12", "float[1,3,1] x", "y = Squeeze (x)"),
    Case("11-12", "float[1,3,1] x", "y = Squeeze <axes=[-1]> (x)"),
    Case("7-12", X, "y = Unsqueeze <axes=[0,3]> (x)"),
    *(
        Case(opsets, X, f"h = Abs(x) y = Reduce{op} {attrs} (h)")
        for op in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod")
        for opsets, attrs in [("7-17", "<axes=[0,2], keepdims=0>"), ("7-17", ""), ("11-17", "<axes=[-1]>")]
    ),
    Case("7-12", X, "y = ReduceSum <axes=[1]> (x)"),
    Case("7-12", X, "y = ReduceSum <keepdims=0> (x)"),
    Case("13-18", f"{X}, int64[1] a = {{1}}", "y = ReduceSum <keepdims=0> (x, a)"),
    Case("13-18", f"{X}", "y = ReduceSum <noop_with_empty_axes=1> (x)"),
    Case("7-17", X, "y = ReduceSumSquare <axes=[1]> (x)"),
    Case("7-9", X, "y, z = TopK <k=2> (x)", "y, z"),
    Case("7-9", X, "y, z = TopK <k=2, axis=1> (x)", "y, z"),
    Case("10", f"{X}, int64[1] k = {{2}}", "y, z = TopK (x, k)", "y, z"),
    Case("11-22", f"{X}, int64[1] k = {{2}}", "y, z = TopK <largest=0> (x, k)", "y, z"),
    Case("7-11", X, "y = Dropout <ratio=0.3> (x)"),
    Case("7-11", X, "y = Dropout (x)"),
    *(
        Case(opsets, X, f"h = Relu(x) y = {op} {attrs} (h)")
        for op in ("Softmax", "LogSoftmax", "Hardmax")
        for opsets, attrs in [
            ("7-12", ""),
            ("7-12", "<axis=0>"),
            ("7-12", "<axis=2>"),
            ("11-12", "<axis=-1>"),
            ("11-12", "<axis=-2>"),
            ("13-17", ""),
        ]
    ),
    Case("7-12", X, "y = Softmax (x)"),
    Case("7-12", X, "y = Softmax <axis=2> (x)"),
    Case("7-12", X, "h = Flatten(x) y = Softmax (h)"),
    Case("7-12", "float[2,0,3] x", "h = Relu(x) y = Softmax <axis=2> (h)"),
    Case("7-13", f"{IMAGE}, float[2] s, float[2] b, float[2] m, float[2] v = {{1.5, 2}}",
         "y = BatchNormalization <epsilon=0.01> (x, s, b, m, v)"),
    Case("14-16", f"{IMAGE}, float[2] s, float[2] b, float[2] m, float[2] v = {{1.5, 2}}",
         "y = BatchNormalization (x, s, b, m, v)"),
    Case("7-8", f"{IMAGE}, float[2] s, float[2] b, float[2] m, float[2] v = {{1.5, 2}}",
         "y = BatchNormalization <spatial=1> (x, s, b, m, v)"),
    Case("7-8", "float[2,2,1,2] x,float[2,1,2] s, float[2,1,2] b, float[2,1,2] m, float[2,1,2] v={1,2,3,4}",

         "h = Neg(x) y = BatchNormalization <spatial=0> (h, s, b, m, v)"),
    Case("7-8", IMAGE, "y = Upsample <scales=[1.0,1.0,2.0,3.0]> (x)"),
    Case("7-8", IMAGE, "y = Upsample <scales=[1.0,1.0,1.5,1.7]> (x)"),
    Case("7-8", IMAGE, "y = Upsample <mode='linear', scales=[1.0,1.0,2.0,1.6]> (x)"),
    Case("9", f"{IMAGE}, float[4] s = {{1, 1, 2, 1.3}}", "y = Upsample (x, s)"),
    Case("9", f"{IMAGE}, float[4] s = {{1, 1, 2, 1.3}}", "y = Upsample <mode='linear'> (x, s)"),
    Case("10", f"{IMAGE}, float[4] s = {{1, 1, 2, 1.7}}", "y = Resize (x, s)"),
    Case("10", f"{IMAGE}, float[4] s = {{1, 1, 0.6, 0.7}}", "y = Resize (x, s)"),
    Case("10", f"{IMAGE}, float[4] s = {{1, 1, 0.6, 1.4}}", "y = Resize (x, s)"),
    Case("10", f"{IMAGE}, float[4] s = {{1, 1, 0.6, 1.4}}", "t = Identity(s) y = Resize (x, t)"),
    Case("10", f"{IMAGE}, float[4] s = {{1, 1, 0.6, 1.7}}", "y = Resize <mode='linear'> (x, s)"),
    Case("11-18", f"{IMAGE}, float[0] r = {{}}, float[4] s = {{1, 1, 2, 1.7}}", "y = Resize (x, r, s)"),
    Case("11-18", f"{IMAGE}, float[0] r = {{}}, float[0] s = {{}}, int64[4] z = {{1, 2, 5, 3}}",
         "y = Resize <mode='linear', coordinate_transformation_mode='align_corners'> (x, r, s, z)"),
    Case("11-18", f"{IMAGE}, float[0] r = {{}}, float[4] s = {{1, 1, 2, 1.7}}",
         f"y = Resize <{HALF_PIXEL_FOR_NN}, nearest_mode='floor'> (x, r, s)"),
    Case("11-18", f"{IMAGE}, float[0] r = {{}}, float[4] s = {{1, 1, 0.6, 0.5}}",
         f"y = Resize <{HALF_PIXEL_FOR_NN}, nearest_mode='floor'> (x, r, s)"),
    Case("11-18", f"{IMAGE}, float[8] r = {{0, 0, 0.2, 0.1, 1, 1, 0.9, 0.8}}, float[4] s = {{1, 1, 2, 1.7}}",
         "y = Resize <mode='linear', coordinate_transformation_mode='tf_crop_and_resize'> (x, r, s)"),
    Case("11-18", f"{IMAGE}, float[0] r = {{}}, float[4] s = {{1, 1, 2, 1.7}}",
         "y = Resize <mode='cubic', cubic_coeff_a=-0.5> (x, r, s)"),
    Case("9-10", f"{X}, int64[1,1,2] i = {{0, 1}}, float[1,1,2] u", "y = Scatter <axis=1> (x, i, u)"),
    Case("11-18", f"{X}, int64[1,1,2] i = {{0, -1}}, float[1,1,2] u",
         "y = ScatterElements <axis=1> (x, i, u)"),
    Case("17-19", "float[2,5,4,2] x", "y = DFT (x)"),
    Case("17-19", "float[2,5,4,1] x", "y = DFT <axis=2, onesided=1> (x)"),
    Case("17-19", "float[2,5,4,1] x, int64 n = {3}", "y = DFT <axis=1> (x, n)"),
    Case("17-19", "float[2,5,4,2] x", "y = DFT <axis=1, inverse=1> (x)"),
    Case("17-19", "float[2,5,4,2] x", "y = DFT <axis=1, inverse=1, onesided=1> (x)"),
    Case("20", "float[2,5,4,2] x", "y = DFT (x)"),
    Case("18-20", "float[2,4,3,2] x, float[2] s, float[2] b",
         "y = GroupNormalization <num_groups=2, epsilon=0.01> (x, s, b)"),
    Case("21", "float[2,4,3,2] x, float[4] s, float[4] b", "y = GroupNormalization <num_groups=2> (x, s, b)"),
    Case("16-19", "float[1,2,4,5] x, float[1,3,3,2] g", "y = GridSample (x, g)"),
    Case("16-19", "float[1,2,4,5] x, float[1,3,3,2] g", "y = GridSample <mode='bicubic'> (x, g)"),
    Case("16-19", "float[1,2,4,5] x, float[1,3,3,2] g",
         "y = GridSample <mode='nearest', padding_mode='border'> (x, g)"),
    Case("10-21", "float[1,2,8,8] x, float[2,4] r = {0, 0, 5, 6, 1, 2, 7, 7}, int64[2] b = {0, 0}",
         "y = RoiAlign <output_height=2, output_width=3, sampling_ratio=2> (x, r, b)"),
    Case("10-21", "float[1,2,8,8] x, float[1,4] r = {2, 1, 1.5, 6.2}, int64[1] b = {0}",
         "y = RoiAlign <mode='max', spatial_scale=0.5, output_height=2> (x, r, b)"),
    Case("7-21", "float[2,2,8,8] x, float[2,5] r = {0, 1, 0, 5, 6, 1, 2, 2, 9, 7}",
         "y = MaxRoiPool <pooled_shape=[2,3], spatial_scale=0.8> (x, r)"),
    Case("9-21", "float[1,1,2,2] x, int64[1,1,2,2] i = {0, 3, 8, 14}",
         "y = MaxUnpool <kernel_shape=[2,2], strides=[2,2]> (x, i)"),
    Case("11-21", "float[3,4,4] x", "y = Det (x)"),
    Case("19-21", "float[1,2,4,4] x, float[2,2,2,2] w, float[1,8,3,3] o", "y = DeformConv (x, w, o)"),
    Case("18-21", "float[1,4,9] x, int64[2] i = {4, 4}, int64[2] b = {2, 2}", "y = Col2Im (x, i, b)"),
    Case("20-21", "float[1,2,3] t, int64[4] s = {1, 1, 3, 4}", "y = AffineGrid <align_corners=1> (t, s)"),
    Case("8", "float[2,1] h0, float[2,3,1] x",
         "h, y = Scan <num_scan_inputs=1, body = b (float[1] s, float[1] e) => (float[1] t, float[1] o)"
         " {{ t = Add(s, e) o = Softmax <axis=0> (t) }}> (, h0, x)", "h, y"),
    Case("8", "float[2,1] h0, float[2,3,1] x",
         "h, y = Scan <num_scan_inputs=1, directions=[1], body = b (float[1] s, float[1] e)"
         " => (float[1] t, float[1] o) {{ t = Add(s, e) o = Mul(t, e) }}> (, h0, x)", "h, y"),
    Case("8", "int64[3] n = {4, 1, 2}, float[3,1] h0, float[3,4,1] x",
         "h, y = Scan <num_scan_inputs=1, body = b (float[1] s, float[1] e) => (float[1] t, float[1] o)"
         " {{ t = Add(s, e) o = Mul(t, t) }}> (n, h0, x)", "h, y"),
    Case("8", "int64[2] n = {2, 3}, float[2,1] h0, float[2,3,1] x",
         "h, y = Scan <num_scan_inputs=1, directions=[1], body = b (float[1] s, float[1] e)"
         " => (float[1] t, float[1] o) {{ t = Add(s, e) o = Mul(t, e) }}> (n, h0, x)", "h, y"),
    Case("9-15", "float[1] h0, float[3,1] x",
         "h, y = Scan <num_scan_inputs=1, body = b (float[1] s, float[1] e) => (float[1] t, float[1] o)"
         " {{ t = Add(s, e) o = Softmax <axis=0> (t) }}> (h0, x)", "h, y"),
    Case("7-10", f"{X}, bool c = {{1}}",
         "y = If <then_branch = a () => (float[2,3,4] o) {{ o = Clip <min=0.1> (x) }},"
         " else_branch = b () => (float[2,3,4] o) {{ o = Identity(x) }}> (c)"),
    # What has no change in the table, and stays as it is.
    Case("7-22", "float[2,3,4] x, float[4] w", "h = Mul(x, w) i = Sub(h, w) j = Div(i, w) y = Add(j, w)"),
    Case("7-17", X, "h = Abs(x) y = Pow (h, h)"),
    Case("8-17", f"{X}, float[4] w", "a = Max(x, w) b = Min(x, w) c = Sum(a, b) y = Mean(c, w)"),
    Case("7-17", "float[2,3] a, float[3,4] b, float[4] c", "y = Gemm <alpha=0.5, beta=2.0> (a, b, c)"),
    Case("7-17", f"{X}, float[4] w = {{0.1, 0.2, 0.3, 0.4}}", "y = PRelu (x, w)"),
    Case("7-17", X,
         "a = Elu(x) b = Selu(a) c = LeakyRelu(b) d = HardSigmoid(c) e = Softplus(d) y = Softsign(e)"),
    Case("7-17", "float[1,4,5,5] x", "y = LRN <size=3> (x)"),
    Case("7-17", "float[1,4,5,5] x, float[4] s, float[4] b", "y = InstanceNormalization (x, s, b)"),
    Case("7-18", "float[1,4,5,5] x",
         "y = AveragePool <kernel_shape=[2,2], pads=[1,1,0,0], count_include_pad=1> (x)"),
    Case("10-18", "float[1,4,5,5] x", "y = AveragePool <kernel_shape=[2,2], strides=[2,2], ceil_mode=1> (x)"),
    Case("7-18", "float[1,4,5,5] x", "y = MaxPool <kernel_shape=[2,2], auto_pad='SAME_UPPER'> (x)"),
    Case("8-18", "float[1,4,5,5] x", "y, i = MaxPool <kernel_shape=[2,2], strides=[2,2]> (x)", "y, i"),
    Case("7-17", "float[1,4,5,5] x", "y = LpPool <kernel_shape=[2,2], p=3> (x)"),
    Case("7-18", "float[1,2,5,5] x, float[3,2,3,3] w", "y = Conv <pads=[1,1,1,1]> (x, w)"),
    Case("7-18", "float[1,2,5,5] x, float[2,3,3,3] w",
         "y = ConvTranspose <strides=[2,2], output_padding=[1,1]> (x, w)"),
    Case("7-18", "float[1,8,2,3] x", "y = DepthToSpace <blocksize=2> (x)"),
    Case("11-18", "float[1,8,2,3] x", "y = DepthToSpace <blocksize=2, mode='CRD'> (x)"),
    Case("7-18", "float[1,2,4,6] x", "y = SpaceToDepth <blocksize=2> (x)"),
    Case("7-18", X, "y = ArgMax <axis=1, keepdims=0> (x)"),
    Case("12-18", X, "y = ArgMin <axis=1, select_last_index=1> (x)"),
    Case("9-18", "int64[3] i = {0, 2, 1}, int64 d = {4}, float[2] v = {-1, 5}",
         "y = OneHot <axis=0> (i, d, v)"),
    Case("7-18", f"{X}, int64[2] i = {{0, 2}}", "y = Gather <axis=1> (x, i)"),
    Case("11-18", f"{X}, int64[2,1] i = {{0, 1}}", "y = GatherND (x, i)"),
    Case("7-18", f"{X}, int64[2] s = {{0, -1}}", "y = Reshape (x, s)"),
    Case("8-18", "float[3,1] x, int64[3] s = {2, 1, 4}", "y = Expand (x, s)"),
    Case("7-18", "float[2,3] x, int64[2] r = {2, 3}", "y = Tile (x, r)"),
    Case("7-18", X, "h = Transpose <perm=[2,0,1]> (x) y = Flatten <axis=2> (h)"),
    Case("7-18", f"{X}, float[4] w", "y = Concat <axis=1> (x, x)"),
    Case("9-18", f"{X}", "b = Sign(x) y = Cast <to=7> (b)"),
    Case("12-18", X, "y = Celu <alpha=2.0> (x)"),
    Case("13-20", "float[2,3] x, float s = {0.1}, uint8 z = {128}",
         "q = QuantizeLinear (x, s, z) y = DequantizeLinear (q, s, z)"),
    Case("7-18", "float[5,2,3] x, float[1,8,3] w, float[1,8,2] r, float[1,16] b",
         "y, h, c = LSTM <hidden_size=2> (x, w, r, b)",
         "y, h, c"),
    Case("14-18", "float[2,5,3] x, float[1,8,3] w, float[1,8,2] r",
         "y, h = LSTM <hidden_size=2, layout=0> (x, w, r)",
         "y, h"),
    Case("7-18", "float[5,2,3] x, float[1,6,3] w, float[1,6,2] r",
         "y, h = GRU <hidden_size=2, linear_before_reset=1> (x, w, r)",
         "y, h"),
    Case("7-18", "float[5,2,3] x, float[2,2,3] w, float[2,2,2] r",
         "y = RNN <hidden_size=2, direction='bidirectional'> (x, w, r)"),
    Case("11-18", "int64 m = {3}, bool c = {1}, float[1] a",
         "y, s = Loop <body = b (int64 i, bool k, float[1] u) => (bool l, float[1] v, float[1] w)"
         " {{ l = Identity(k) v = Clip(u) w = Softmax <axis=0> (v) }}> (m, c, a)", "y, s"),
]  # fmt: skip


def every_opset() -> Iterator[object]:
    for case in CASES:
        for opset in case.numbers():
            yield pytest.param(case, opset, id=f"{str(case).rsplit(' ', 1)[0]}-{opset}")


def model_of(case: Case, opset: int) -> onnx.ModelProto:
    """The case as a file would hold it: what the head gives a value becomes a constant."""
    parts = case.head.replace("{{", "{").replace("}}", "}")
    inputs, constants = [], []
    for part in _declarations(parts):
        (constants if "=" in part else inputs).append(part)
    body = case.body.replace("{{", "{").replace("}}", "}")
    text = f"g ({', '.join(inputs)}) => ({case.outputs}) <{', '.join(constants)}> {{ {body} }}".replace("'", '"')
    return parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]> {text.replace("<> ", "")}')


def _declarations(text: str) -> list[str]:
    parts: list[str] = []
    for part in text.split(","):
        is_open = bool(parts) and any(parts[-1].count(left) > parts[-1].count(right) for left, right in ("[]", "{}"))
        if is_open:
            parts[-1] += f",{part}"
        else:
            parts.append(part.strip())
    return parts


def run(model: onnx.ModelProto) -> list[np.ndarray]:
    """Outputs of onnxruntime, which does not rewrite the graph, for inputs drawn by a fixed seed."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(7)
    dtypes = {"tensor(float)": np.float32, "tensor(double)": np.float64}
    feeds = {i.name: rng.standard_normal(i.shape).astype(dtypes[i.type]) for i in session.get_inputs()}
    return session.run(None, feeds)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("case, opset", list(every_opset()))
def test_newest_form_computes_what_the_old_file_computes(case: Case, opset: int) -> None:
    model = model_of(case, opset)
    expected = run(model)
    written = to_proto(read_proto(model).graph)
    for before, after in zip(expected, run(written), strict=True):
        assert before.shape == after.shape
        assert before.dtype == after.dtype
        assert_rounded(after, before, roundings=4 * FUNCTION)


def test_every_incompatible_change_of_an_operator_has_an_adapter() -> None:
    last = {op: change.before for change in CHANGES for op in change.operators}
    for op in {s.name for s in defs.get_all_schemas() if s.domain == "" and not is_later(s.name)}:
        known = versions(op)
        for old, new in pairwise(known):
            gone = [n for n in old.attributes if n not in new.attributes and n != "consumed_inputs"]
            moved = [n for n, v in old.defaults.items() if n in new.defaults and new.defaults[n] != v]
            if gone or moved:
                assert new.since <= last.get(op, 0), (op, new.since, gone, moved)


def test_changes_name_operators_that_exist_and_opsets_that_changed_them() -> None:
    for change in CHANGES:
        for op in set(change.operators) - set(EXPERIMENTS):
            assert versions(op)
            assert change.before == NEWEST + 1 or any(v.since == change.before for v in versions(op)), (
                op,
                change,
            )


@pytest.mark.parametrize("opset", [13, 18, 21])
def test_a_split_that_names_no_number_of_parts_has_one_for_each_output(opset: int) -> None:
    model = model_of(Case(str(opset), "float[7,2] x", "a, b, c = Split (x)", "a, b, c"), opset)
    found = run(to_proto(read_proto(model).graph))
    assert [len(part) for part in found] == [3, 3, 1]


@pytest.mark.parametrize("opset", [11, 13, 18, 19])
def test_a_coordinate_mode_that_converters_write_at_every_opset_is_known(opset: int, tmp_path: Path) -> None:
    head, body = f"{IMAGE}, float[0] r = {{}}, float[4] s = {{1, 1, 2, 0.5}}", "nearest_mode='floor'> (x, r, s)"
    model = model_of(Case(str(opset), head, f"y = Resize <{HALF_PIXEL_FOR_NN}, {body}"), opset)
    onnx.save(model, tmp_path / "m.onnx")
    loaded = gc.load(tmp_path / "m.onnx")
    x = np.random.default_rng(7).standard_normal((1, 2, 4, 6)).astype("f4")
    [found] = gc.run([loaded["y"]], {"x": x})
    assert np.array_equal(found.astype("f4"), run(model)[0])


@pytest.mark.parametrize(
    "opset, head, body, message",
    [
        (11, "float[1,1,2,2] x, float[0] r = {}, float[4] s = {1,1,2,2}",
         f"y = Resize <{HALF_PIXEL_FOR_NN}> (x, r, s)", "tf_half_pixel_for_nn"),
        (8, "float[2,2,3] x, float[2,3] s, float[2,3] b, float[2,3] m, float[2,3] v",
         "y, rm, rv = BatchNormalization <spatial=0> (x, s, b, m, v)", "training with spatial=0"),
    ],
)  # fmt: skip
def test_what_cannot_be_brought_to_the_newest_form_is_said(opset: int, head: str, body: str, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message) as caught:
        read_proto(model_of(Case(str(opset), head, body), opset), "old.onnx")
    assert str(caught.value).startswith("old.onnx: node 0 ")
    assert caught.value.code == "GC502"


@pytest.mark.parametrize("attribute", ["axes=1", "axes='x'", "axis=[0]", "keepdim=1"])
def test_attributes_of_a_wrong_type_or_name_are_refused(attribute: str) -> None:
    with pytest.raises(ModelError, match="node 0 ReduceMean 'y': attribute"):
        read_proto(model_of(Case("11", X, f"y = ReduceMean <{attribute}> (x)"), 11))


def test_float_mask_of_old_dropout_stays_float() -> None:
    graph = read_proto(model_of(Case("7", X, "y, m = Dropout (x) z = Mul(y, m)", "z"), 7)).graph
    assert [node.op for node in graph.nodes] == ["Dropout", "CastLike", "Mul"]


def test_mask_of_dropout_is_true_where_onnxruntime_leaves_it_false() -> None:
    model = model_of(Case("10", X, "y, m = Dropout (x)", "y, m"), 10)
    assert not run(model)[1].any()  # the standard says nothing before 12, and then all true
    assert run(to_proto(read_proto(model).graph))[1].all()


@pytest.mark.parametrize(
    "head, body, ops",
    [
        ("double[2] x", "h = Exp(x) y = Clip <min=0.5> (h)", ["Exp", "Clip"]),
        ("double[2,2] x", "h = Concat <axis=1> (x, x) y = Clip <min=0.5> (h)", ["Concat", "Clip"]),
        ("double[2] x", "h = Cast <to=10> (x) y = Clip <min=0.5> (h)", ["Cast", "CastLike", "Clip"]),
    ],
)
def test_bounds_have_the_dtype_of_what_they_bound(head: str, body: str, ops: list[str]) -> None:
    graph = read_proto(model_of(Case("9", head, body), 9)).graph
    assert [node.op for node in graph.nodes] == ops
    assert (graph.constants["y/min"].dtype == np.float64) == ("CastLike" not in ops)


def test_batch_normalization_with_five_outputs_is_training() -> None:
    head = "float[2,2,3] x, float[2] s, float[2] b, float[2] m, float[2] v"
    body = "y, rm, rv, sm, sv = BatchNormalization (x, s, b, m, v)"
    [node] = read_proto(model_of(Case("9", head, body), 9)).graph.nodes
    assert node.attrs["training_mode"] == 1
    assert node.outputs == ("y", "rm", "rv")
    with pytest.raises(UnsupportedError, match="saved statistics"):
        read_proto(model_of(Case("9", head, body, "y, sv"), 9))


def test_softmax_of_known_rank_needs_no_reshaping() -> None:
    graph = read_proto(model_of(Case("9", "float[2,3] x", "y = Softmax (x)"), 9)).graph
    assert str(graph.nodes[0]) == "y = Softmax <axis=-1> (x)"


def test_added_constants_are_named_after_what_they_belong_to() -> None:
    graph = read_proto(model_of(Case("9", X, "y = Slice <starts=[0], ends=[1], axes=[2]> (x)"), 9)).graph
    assert graph.nodes[0].inputs == ("x", "y/starts", "y/ends", "y/axes")
    assert graph.constants["y/axes"].tolist() == [2]
