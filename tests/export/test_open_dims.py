"""One file for every size of a model's open dimensions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import gradcheck_cli as gc
from gradcheck_cli.errors import GradcheckError, UnsupportedError
from gradcheck_cli.formats.source import Source
from gradcheck_cli.graph import Graph, TensorType, is_inexact
from gradcheck_cli.settings import Settings
from tests.api.test_saved_gradients import first_cases
from tests.export.open_models import Open, agree, each, open_session, points, written
from tests.ops.case import Case

pytest.importorskip("onnxruntime")

MODELS = [
    Open("mean over a batch", "g (float[N, 3] x) => (float y) { s = Sin(x) y = ReduceMean<keepdims = 0>(s) }",
         each(N=[1, 2, 5, 33])),
    Open("mean over axes", """g (float[N, T, 4] x) => (float[N, 4] y) {
         axes = Constant<value_ints = [1]>() h = Mul(x, x) y = ReduceMean<keepdims = 0>(h, axes) }""",
         each(N=[1, 3, 2], T=[1, 7, 12])),
    Open("broadcast over a batch", "g (float[N, 3] x, float[3] w) => (float[N, 3] y) { p = Mul(x, w) y = Exp(p) }",
         each(N=[1, 2, 9])),
    Open("reshaped, with two open dimensions", """g (float[N, T, 6] x) => (float[N, 2, T, 3] y) {
         s = Constant<value_ints = [0, 0, 2, 3]>() r = Reshape(x, s) t = Transpose<perm = [0, 2, 1, 3]>(r) y = Sin(t) }""",
         each(N=[1, 4, 3], T=[1, 2, 8])),
    Open("flattened", "g (float[N, H, W] x) => (float[N, P] y) { f = Flatten<axis = 1>(x) y = Mul(f, f) }",
         each(N=[1, 4], H=[2, 3], W=[5, 1])),
    Open("joined and cut", """g (float[A, 3] a, float[B, 3] b) => (float[C, 3] y) {
         c = Concat<axis = 0>(a, b) s = Constant<value_ints = [1]>() e = Constant<value_ints = [-1]>()
         z = Constant<value_ints = [0]>() d = Slice(c, s, e, z) y = Mul(d, d) }""",
         each(A=[2, 1, 6], B=[1, 5, 3])),
    Open("every other entry", """g (float[N] x) => (float[M] y) {
         s = Constant<value_ints = [1]>() e = Constant<value_ints = [1000]>() z = Constant<value_ints = [0]>()
         t = Constant<value_ints = [3]>() d = Slice(x, s, e, z, t) y = Mul(d, d) }""",
         each(N=[2, 3, 4, 5, 6, 7, 20])),
    Open("convolution by steps", """g (float[N, 2, H, W] x, float[3, 2, 3, 3] w) => (float[N, 3, P, Q] y) {
         y = Conv<strides = [2, 3], pads = [1, 0, 1, 1]>(x, w) }""",
         each(N=[1, 2, 1, 3], H=[3, 4, 6, 31], W=[5, 6, 7, 8])),
    Open("pools by steps", """g (float[N, 2, H, W] x) => (float[N, 2, P, Q] y) {
         a = AveragePool<kernel_shape = [3, 2], strides = [2, 2]>(x)
         y = MaxPool<kernel_shape = [2, 2], strides = [1, 2]>(a) }""",
         each(N=[1, 2, 1], H=[6, 7, 20], W=[8, 9, 11])),
    Open("more windows only from some size on", """g (float[N, 1, T] x, float[2, 1, 16] w) => (float[N, 2, P] y) {
         c = Conv<strides = [8]>(x, w) y = Sin(c) }""",
         each(N=[1, 2, 1, 1], T=[16, 23, 24, 200])),
    Open("padded by reflection", """g (float[N, T] x) => (float[N, S] y) {
         p = Constant<value_ints = [0, 3, 0, 2]>() r = Pad<mode = "reflect">(x, p) y = Mul(r, r) }""",
         each(N=[1, 2], T=[4, 9])),
    Open("sizes that may be 1 where others are longer", """g (float[N, 4] x, float[B, 4] y) => (float[P, 4] z) {
         k = Mul(x, y) s = Sin(k) z = Add(s, y) }""",
         each(N=[3, 3, 1, 1], B=[3, 1, 5, 1])),
    Open("no more labels than rows", """g (float[N, 4] x, int64[M] t) => (float y) {
         one = Constant<value_ints = [1]>() u = Unsqueeze(t, one) p = GatherElements<axis = 1>(x, u)
         l = Tanh(p) y = ReduceMean<keepdims = 0>(l) }""",
         each(N=[1, 2, 5, 9, 7], M=[1, 2, 5, 9, 3])),
    Open("rows in the order of others", """g (float[N] x, float[M] t) => (float y) {
         n = Shape(t) v, i = TopK<axis = 0>(t, n) h = Gather(x, i) e = Exp(h) z = Constant<value = int64 {0}>()
         c = CumSum(e, z) l = Log(c) d = Sub(h, l) y = ReduceSum<keepdims = 0>(d) }""",
         each(N=[1, 2, 5, 9, 7], M=[1, 2, 5, 9, 3])),
    Open("the same on both axes", """g (float[A, B] x, float[C, D] y) => (float z) {
         k = Div(x, y) s = Sin(k) z = ReduceMean<keepdims = 0>(s) }""",
         each(A=[3, 3, 1, 3, 1, 1], B=[4, 4, 4, 1, 4, 1], C=[3, 1, 5, 1, 1, 2], D=[4, 4, 1, 4, 1, 3])),
    Open("three that may broadcast", """g (float[A, 3] x, float[B, 3] y, float[C, 3] z) => (float[D, 3] w) {
         a = Mul(x, y) b = Max(a, z) c = Less(x, y) w = Where(c, b, z) }""",
         each(A=[2, 1, 2, 1, 4], B=[2, 2, 1, 1, 1], C=[2, 2, 2, 3, 1])),
    Open("stacks of matrices that may broadcast", """g (float[A, 2, 3] x, float[B, 3, 2] y) => (float[C, 2, 2] z) {
         k = MatMul(x, y) z = Tanh(k) }""",
         each(A=[2, 1, 4, 1], B=[2, 3, 1, 1])),
    Open("another rank, and what follows from broadcast ones", """g (float[A, B, 3] x, float[C, 3] y) => (float[P, Q] z) {
         k = Mul(x, y) s = Shape(k) f = Flatten<axis = 1>(k) t = Transpose<perm = [1, 0]>(f) u = Mul(t, t)
         z = Softmax<axis = 0>(u) }""",
         each(A=[2, 2, 3, 1], B=[4, 1, 4, 1], C=[4, 5, 1, 1])),
    Open("attention", """g (float[N, T, 4] q, float[N, S, 4] k) => (float[N, T, 4] y) {
         t = Transpose<perm = [0, 2, 1]>(k) s = MatMul(q, t) p = Softmax<axis = -1>(s) y = MatMul(p, k) }""",
         each(N=[1, 2, 3], T=[1, 5, 2], S=[4, 1, 7])),
    Open("layer normalization", """g (float[N, T, 6] x, float[6] w, float[6] b) => (float[N, T, 6] y) {
         y = LayerNormalization<axis = -1>(x, w, b) }""", each(N=[1, 3], T=[5, 1])),
    Open("loss over a batch", """g (float[N, 5] x, int64[N] labels) => (float y) {
         y = SoftmaxCrossEntropyLoss<reduction = "mean">(x, labels) }""", each(N=[1, 2, 11])),
    Open("rows gathered", """g (float[V, 3] table, int64[N] rows) => (float[N, 3] y) {
         r = Gather<axis = 0>(table, rows) y = Mul(r, r) }""", each(V=[2, 9], N=[1, 6])),
    Open("resized to twice the size", """g (float[N, 1, H, W] x) => (float[N, 1, P, Q] y) {
         s = Constant<value_floats = [1.0, 1.0, 2.0, 2.0]>()
         r = Resize<mode = "linear">(x, , s) y = Mul(r, r) }""", each(N=[1, 2], H=[3, 8], W=[4, 5])),
    Open("in pairs", """g (float[N, 3] x) => (float[M, 3] y) {
         pairs = Constant<value_ints = [-1, 2, 3]>() p = Reshape(x, pairs) h = Mul(p, p)
         one = Constant<value_ints = [1]>() y = ReduceMean<keepdims = 0>(h, one) }""",
         each(N=[2, 4, 38])),
    Open("in pairs, with one more", """g (float[N, 3] x) => (float[M, 3] y) {
         pads = Constant<value_ints = [1, 0, 0, 0]>() more = Pad(x, pads)
         pairs = Constant<value_ints = [-1, 2, 3]>() p = Reshape(more, pairs) h = Mul(p, p)
         one = Constant<value_ints = [1]>() y = ReduceMean<keepdims = 0>(h, one) }""",
         each(N=[1, 3, 37])),
    Open("cumulated", """g (float[N, T] x) => (float[N, T] y) {
         a = Constant<value_int = 1>() c = CumSum<exclusive = 1>(x, a) y = Mul(c, x) }""", each(N=[1, 3], T=[4, 1])),
    Open("the largest of all", """g (float[N, T] x) => (float[N] y) {
         a = Constant<value_ints = [1]>() y = ReduceMax<keepdims = 0>(x, a) }""", each(N=[1, 3], T=[4, 9])),
]  # fmt: skip


PIECEWISE_LINEAR = {"pools by steps", "the largest of all"}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("model", MODELS, ids=lambda m: m.id)
@pytest.mark.parametrize("kind", ["gradient", "jvp", "hvp"])
def test_one_file_is_right_at_every_size(model: Open, kind: Any, tmp_path: Path):
    loaded = model.load(tmp_path)
    made, outputs = written(loaded, tmp_path / "g.onnx", kind)
    if model.id in PIECEWISE_LINEAR and kind == "hvp":
        assert tuple(outputs) == loaded.graph.outputs
        return
    assert set(made.open_dims) == set(loaded.free_dims)
    session = open_session(tmp_path / "g.onnx")
    for settings in points(model.sizes):
        agree(loaded, outputs, session, settings)


def test_an_attribute_that_follows_from_a_size_is_refused_and_written_at_one_size(tmp_path: Path):
    """Pads of "SAME" by steps: what is lacking of a whole step."""
    text = """g (float[1, 1, T] x, float[1, 1, 3] w) => (float[1, 1, P] y) {
         y = Conv<strides = [2], auto_pad = "SAME_UPPER">(x, w) }"""
    with pytest.raises(
        UnsupportedError, match="has the attribute 'pads' of ConvTranspose that depends on the size of T"
    ):
        written(Open("", text, ()).load(tmp_path), tmp_path / "g.onnx")
    assert not (tmp_path / "g.onnx").exists()
    for size in (6, 7):
        loaded = Open("", text.replace("1, T]", f"1, {size}]"), ()).load(tmp_path)
        _, outputs = written(loaded, tmp_path / f"{size}.onnx")
        agree(loaded, outputs, open_session(tmp_path / f"{size}.onnx"), Settings(dtype="model"))


def model_of(case: Case, axis: int) -> tuple[gc.Model, int]:
    """A model of one node in float32 whose inputs have one open dimension, and the size that it has in the case."""
    (node,) = case.graph.nodes
    inputs = tuple(n for n in case.floats() if case.feeds[n].ndim)
    size = next((case.feeds[n].shape[axis] for n in inputs if -case.feeds[n].ndim <= axis < case.feeds[n].ndim), 0)
    single = {n: v.astype(np.float32) if v.dtype == np.float64 else v for n, v in case.feeds.items()}

    def opened(shape: tuple[int, ...]) -> tuple[int | str, ...]:
        at = axis if axis >= 0 else len(shape) + axis
        return tuple("N" if i == at and d == size else d for i, d in enumerate(shape))

    types = {n: TensorType(single[n].dtype, opened(single[n].shape)) for n in inputs}
    constants = {n: v for n, v in single.items() if n not in inputs}
    attrs = {k: float(np.float32(v)) if isinstance(v, float) else v for k, v in node.attrs.items()}
    graph = Graph(inputs, case.outputs, (replace(node, attrs=attrs),), constants, types, {"ai.onnx.ml": 5})
    return gc.Model(Source(graph, case.op, opset={"": 21}), gc.OPS), size


REFUSED = {  # what rules make of a size that no operator of ONNX makes
    "AttnLSTM", "CenterCropPad", "CumProd", "DynamicQuantizeLSTM",
    "GRUGrad", "GRUTraining", "LSTMGrad", "LSTMTraining", "ReduceProd", "STFT",
}  # fmt: skip


CONSTANT = {  # nothing flows through them
    "Bernoulli", "Binarizer", "Ceil", "EyeLike", "Floor", "Hardmax", "OneHotEncoder", "RandomNormalLike",
    "RandomUniformLike", "Round", "Sign", "ZeroGradient", "FakeQuant",
}  # fmt: skip


SPARSE = {"SparseToDenseMatMul"}  # which onnxruntime has for sparse tensors alone


def operators_with_an_axis() -> list[Case]:
    """Cases whose first input has an axis that may be open."""
    cases = (case for case in first_cases() if not case.op.startswith("Tree"))
    return [case for case in cases if any(case.feeds[n].ndim for n in case.floats())]


@pytest.mark.one_in(10)
@pytest.mark.parametrize("case", operators_with_an_axis(), ids=lambda c: c.id[:60])
def test_every_operator_has_gradients_for_every_size_of_its_first_axis(case: Case, tmp_path: Path):
    model, size = model_of(case, 0)
    try:
        floats = [y for y in model.graph.outputs if is_inexact(model[y].dtype)]
    except GradcheckError:
        pytest.skip("the sizes of other inputs, or attributes, fit one size alone")
    if case.op in REFUSED:
        with pytest.raises((UnsupportedError, onnx.shape_inference.InferenceError)):
            written(model, tmp_path / "g.onnx")
        return
    made, outputs = written(model, tmp_path / "g.onnx")
    if set(outputs) == set(model.graph.outputs):
        assert not floats or case.op in CONSTANT
        return
    session = None if case.op in SPARSE else session_if_known(tmp_path / "g.onnx")
    for n in sorted({size, size + 1, 6} - {1}) if made.open_dims and session is not None else ():
        if runs(model, outputs, n):
            agree(model, outputs, session, Settings(dims={"N": n}, dtype="model"))


def runs(model: gc.Model, outputs: list[str], n: int) -> bool:
    """The model runs at a size."""
    try:
        model.point(outputs, Settings(dims={"N": n}, dtype="model"))
    except GradcheckError:
        return False
    return True


def session_if_known(path: Path) -> Any:
    """The file in onnxruntime, where that has all of its operators."""
    import onnxruntime

    try:
        return open_session(path)
    except (
        onnxruntime.capi.onnxruntime_pybind11_state.NotImplemented,
        onnxruntime.capi.onnxruntime_pybind11_state.Fail,
    ):
        return None
