"""Properties that a file of derivatives keeps of the model that it was made from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper, numpy_helper

import gradcheck_cli as gc
from gradcheck_cli.errors import UsageError
from tests.export.open_models import Open, open_session, written
from tests.rounding import FUNCTION, assert_rounded

pytest.importorskip("onnxruntime")


def documented(path: Path) -> onnx.ModelProto:
    """A model that says something of itself and of each of its parts, with strings off the gradient's way."""
    text = """<ir_version: 8, opset_import: ["" : 20, "ai.onnx.ml" : 3]>
    net (float[N, 2] x, string[K] words) => (float[N, 2] y, int64[K] codes) <float[2] w = {2.0, 3.0}> {
      h = Mul(x, w)
      y = Sin(h)
      codes = ai.onnx.ml.LabelEncoder<keys_strings = ["a", "b"], values_int64s = [1, 2], default_int64 = -1>(words)
    }"""
    model = onnx.parser.parse_model(text)
    model.doc_string, model.domain, model.model_version = "what it is", "org.example", 7
    helper.set_model_props(model, {"license": "CC0", "labels": "a,b"})
    model.graph.doc_string = "its graph"
    model.graph.node[0].doc_string, model.graph.node[0].name = "scales", "scale"
    model.graph.input[0].doc_string, model.graph.initializer[0].doc_string = "points", "weights"
    onnx.save(model, path)
    return model


def test_names_documentation_properties_and_versions_stay(tmp_path: Path) -> None:
    before = documented(tmp_path / "m.onnx")
    written(gc.load(tmp_path / "m.onnx"), tmp_path / "g.onnx")
    after = onnx.load(tmp_path / "g.onnx")
    assert (after.doc_string, after.domain, after.model_version) == ("what it is", "org.example", 7)
    assert {p.key: p.value for p in after.metadata_props} == {"license": "CC0", "labels": "a,b"}
    assert {o.domain: o.version for o in after.opset_import} == {"": 20, "ai.onnx.ml": 3}
    assert (after.graph.name, after.graph.doc_string) == ("net", "its graph")
    assert [i.name for i in after.graph.input][:2] == ["x", "words"]
    assert after.graph.input[0].doc_string == "points"
    assert {t.name: t.doc_string for t in after.graph.initializer}["w"] == "weights"
    kept = {node.output[0]: node for node in after.graph.node}
    assert [(n.op_type, n.name, n.doc_string) for n in before.graph.node] == [
        (kept[n.output[0]].op_type, n.name, kept[n.output[0]].doc_string) for n in before.graph.node
    ]
    assert [o.type for o in after.graph.output][:2] == [o.type for o in before.graph.output]


def test_what_lies_off_the_way_of_the_gradient_gives_what_it_gave(tmp_path: Path) -> None:
    documented(tmp_path / "m.onnx")
    written(gc.load(tmp_path / "m.onnx"), tmp_path / "g.onnx")
    x, words = np.float32([[1, 2]]), np.array(["b", "c", "a"], object)
    feeds = {"x": x, "words": words, "y_grad": np.ones_like(x)}
    y, codes, dx = open_session(tmp_path / "g.onnx").run(None, feeds)
    assert codes.tolist() == [2, -1, 1]
    h = x.astype(np.float64) * [2, 3]
    assert_rounded(y, np.sin(h), roundings=FUNCTION, of=1 + np.abs(h))
    assert_rounded(dx, np.cos(h) * [2, 3], roundings=FUNCTION + 1, of=(1 + np.abs(h)) * [2, 3])


def with_data(path: Path) -> np.ndarray:
    """A model whose weight lies in a file beside it."""
    w = np.random.default_rng(0).normal(size=(64, 32)).astype(np.float32)
    graph = onnx.parser.parse_graph("net (float[N, 64] x) => (float[N, 32] y) { y = MatMul(x, w) }")
    graph.initializer.append(numpy_helper.from_array(w, "w"))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    return w


def test_weights_in_another_file_stay_in_another_file(tmp_path: Path) -> None:
    w = with_data(tmp_path / "m.onnx")
    written(gc.load(tmp_path / "m.onnx"), tmp_path / "g.onnx")
    model = onnx.load(tmp_path / "g.onnx", load_external_data=False)
    [weight] = [t for t in model.graph.initializer if t.name == "w"]
    assert weight.data_location == TensorProto.EXTERNAL
    assert (tmp_path / "g.onnx.data").stat().st_size == w.nbytes
    assert (tmp_path / "g.onnx").stat().st_size < w.nbytes
    seed = np.ones((2, 32), np.float32)
    feeds = {"x": np.zeros((2, 64), np.float32), "y_grad": seed}
    [found] = open_session(tmp_path / "g.onnx").run(["x_grad"], feeds)
    assert_rounded(found, seed.astype(np.float64) @ w.T, roundings=w.shape[1], of=np.abs(seed) @ np.abs(w.T))


def test_neither_a_model_nor_its_weights_are_written_over(tmp_path: Path) -> None:
    with_data(tmp_path / "m.onnx")
    (tmp_path / "weights.bin").rename(tmp_path / "g.onnx.data")
    model = onnx.load(tmp_path / "m.onnx", load_external_data=False)
    for tensor in model.graph.initializer:
        next(entry for entry in tensor.external_data if entry.key == "location").value = "g.onnx.data"
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    (tmp_path / "link.onnx").symlink_to(tmp_path / "m.onnx")
    for name in ("m.onnx", "link.onnx", "g.onnx"):
        with pytest.raises(UsageError, match="is what the model was read from"):
            written(gc.load(tmp_path / "m.onnx"), tmp_path / name)
    assert {path: path.read_bytes() for path in before} == before


def test_parameters_may_be_differentiated_by(tmp_path: Path) -> None:
    model = Open(
        "",
        "g (float[N, 2] x) => (float y) <float[2] w = {2.0, 3.0}> { h = Mul(x, w) y = ReduceSum<keepdims = 0>(h) }",
        (),
    )
    loaded = model.load(tmp_path)
    gc.save(loaded, tmp_path / "g.onnx", gc.gradients(loaded["y"], loaded["w"]))  # type: ignore[arg-type]
    x = np.float32([[1, 2], [3, 4], [5, 6]])
    assert open_session(tmp_path / "g.onnx").run(None, {"x": x})[0].tolist() == [9, 12]


def test_a_parameter_may_be_an_output(tmp_path: Path) -> None:
    text = """g (float[N, 2] x) => (double[N, 2] y) <double[2] w = {2.0, 3.0}> {
        d = Cast<to = 11>(x)
        y = Mul(d, w)
    }"""
    loaded = Open("", text, ()).load(tmp_path)
    [dx] = gc.gradients(loaded["y"], loaded["x"])
    gc.save(loaded, tmp_path / "g.onnx", ["w", dx.name])  # type: ignore[union-attr]
    onnx.checker.check_model(tmp_path / "g.onnx", full_check=True)
    found, _ = open_session(tmp_path / "g.onnx").run(None, {"x": np.float32([[1, 2]])})
    assert (found.dtype, found.tolist()) == (np.float64, [2, 3])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "double"])
def test_derivatives_are_in_the_dtype_of_the_model(dtype: str, tmp_path: Path) -> None:
    model = Open("", f"g ({dtype}[N, 3] x) => ({dtype} y) {{ s = Mul(x, x) y = ReduceMean<keepdims = 0>(s) }}", ())
    loaded = model.load(tmp_path)
    [dx] = gc.gradients(loaded["y"], loaded["x"])
    gc.save(loaded, tmp_path / "g.onnx", ["y", dx.name])  # type: ignore[union-attr]
    onnx.checker.check_model(tmp_path / "g.onnx", full_check=True)
    types = {o.type.tensor_type.elem_type for o in onnx.load(tmp_path / "g.onnx").graph.output}
    assert types == {onnx.TensorProto.DataType.Value(dtype.upper())}


TIED = [  # dimensions that have to be equal, or have one size alone
    (
        "g (float[A, 3] a, float[B, 3] b) => (float[A, 6] y) { y = Concat<axis = 1>(a, b) }",
        ["A", "A"],
        "B has to equal A",
    ),
    (
        "g (float[A, C] a) => (float[A, 1] y) <float[3, 1] w = {1, 2, 3}> { y = MatMul(a, w) }",
        ["A", "3"],
        "C is 3",
    ),
]


@pytest.mark.parametrize(("text", "dims", "note"), TIED, ids=lambda v: v if isinstance(v, str) else "")
def test_dimensions_that_are_not_free_are_declared_so(text: str, dims: list[str], note: str, tmp_path: Path) -> None:
    made, _ = written(Open("", text, ()).load(tmp_path), tmp_path / "g.onnx")
    assert made.notes[0].startswith(note)
    inputs = {i.name: i.type.tensor_type.shape.dim for i in onnx.load(tmp_path / "g.onnx").graph.input}
    declared = [d.dim_param or str(d.dim_value) for name in ("a", "b") if name in inputs for d in inputs[name]]
    assert declared[0] == dims[0]
    assert set(declared) >= set(dims)


SQUEEZED = """g (float[b, 3] x) => (float[3, 1] y) <int64[1] zero = {0}, int64[1] one = {1}, int64[1] last = {-1}> {
    h = Tanh(x)
    b = Shape<end = 1>(h)
    single = Equal(b, one)
    s = If(single) <then_branch = row () => (float[3] r) { r = Squeeze(h, zero) },
                    else_branch = rows () => (float[b, 3] r) { r = Identity(h) }>
    y = Unsqueeze(s, last)
}"""


def test_sizes_that_a_model_declares_of_a_result_and_that_hold_for_one_row_alone_fix_no_file(tmp_path: Path) -> None:
    loaded = Open("", SQUEEZED, ()).load(tmp_path)
    [dx] = gc.gradients(loaded["y"], loaded["x"])
    gc.save(loaded, tmp_path / "g.onnx", ["y", dx.name])  # type: ignore[union-attr]
    onnx.checker.check_model(tmp_path / "g.onnx", full_check=True)
    session = open_session(tmp_path / "g.onnx")
    for rows in (1, 2, 5):
        x = np.linspace(-1, 1, 3 * rows, dtype=np.float32).reshape(rows, 3)
        y, gradient = session.run(None, {"x": x})
        np.testing.assert_allclose(y.ravel(), np.tanh(x).ravel(), rtol=1e-5)
        np.testing.assert_allclose(gradient, 1 - np.tanh(x) ** 2, rtol=1e-4)


@pytest.mark.parametrize("op", ["Add", "Gather", "Tanh"])  # of which onnxruntime would run a file for a number at [2,3]
def test_no_file_is_made_for_one_of_all_numbers_of_dimensions_that_an_input_may_have(op: str, tmp_path: Path) -> None:
    kind, operands = ("int64", "z, x") if op == "Gather" else ("float", "x" if op == "Tanh" else "x, z")
    text = f"g ({kind}[] x, float[2, 3] z) => (float[] y) {{ h = {op}({operands}) y = Mul(h, z) }}"
    loaded = Open("", text, ()).load(tmp_path)
    gradients = [dx.name for dx in gc.gradients(loaded["y"], [loaded["z"]]) if dx is not None]
    with pytest.raises(UsageError, match="declares no shape of x, and its derivatives are others"):
        gc.save(loaded, tmp_path / "g.onnx", gradients)
    assert not (tmp_path / "g.onnx").exists()
    gc.save(loaded, tmp_path / "g.onnx", gradients, feeds={"x": np.ones((2, 3) if kind == "float" else (), kind)})


def test_nodes_have_names_of_their_own_even_where_those_of_the_model_have_not(tmp_path: Path) -> None:
    text = '<ir_version: 8, opset_import: ["" : 18]> g (float[2] x) => (float[2] y) { h = Sin(x) y = Exp(h) }'
    model = onnx.parser.parse_model(text)
    for node in model.graph.node:
        node.name = "same"
    onnx.save(model, tmp_path / "m.onnx")
    written(gc.load(tmp_path / "m.onnx"), tmp_path / "g.onnx")
    names = [node.name for node in onnx.load(tmp_path / "g.onnx").graph.node]
    assert names[0] == "same"
    assert len(set(names)) == len(names)
    open_session(tmp_path / "g.onnx")


def test_sums_of_scattered_numbers_of_16_bits_run(tmp_path: Path) -> None:
    text = "g (float16[N, 1, 4] x) => (float16[N, 1, 3] y) { y = MaxPool<kernel_shape = [2]>(x) }"
    written(Open("", text, ()).load(tmp_path), tmp_path / "g.onnx")
    feeds = {"x": np.float16([[[1, 5, 2, 0]]]), "y_grad": np.float16([[[1, 2, 4]]])}
    [dx] = open_session(tmp_path / "g.onnx").run(["x_grad"], feeds)
    assert (dx.dtype, dx.tolist()) == (np.float16, [[[0, 3, 4, 0]]])


def test_a_number_fills_a_tensor_at_every_size(tmp_path: Path) -> None:
    text = "g (float[N, 2] x, float[N, 2] w) => (float[N, 2] y) { h = Exp(x) p = Mul(h, w) y = Mul(p, p) }"
    loaded = Open("", text, ()).load(tmp_path)
    [dw] = gc.gradients(loaded["y"], loaded["w"])
    gc.save(loaded, tmp_path / "g.onnx", dw, feeds={"h": 3.0})
    for n in (1, 4):
        w = np.full((n, 2), 5, np.float32)
        [found] = open_session(tmp_path / "g.onnx").run(None, {"x": np.zeros_like(w), "w": w})  # x says how many
        assert np.all(found == 2 * 9 * w)
