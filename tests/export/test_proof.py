"""Messages about sizes at which a file does not compute the derivatives of its model."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.parser
import pytest

import gradcheck_cli as gc
from gradcheck_cli.checks.forward.runtime import GraphRuns
from gradcheck_cli.errors import LimitError, UnsupportedError
from gradcheck_cli.export.derivatives import export
from gradcheck_cli.export.gradient_graph import graph_of
from gradcheck_cli.export.proof import UNKNOWN, largest_gap, proven, reference, require_runs, sample
from gradcheck_cli.formats.onnx.write import serialized, to_proto

HEAD = '<ir_version: 8, opset_import: ["" : 18]>\n'
SHORT = """m (float[N] x) => (float[4] y) <int64[1] from = {0}, int64[1] to = {4}, float[4] w = {1, 2, 3, 4}> {
    s = Slice (x, from, to)
    y = Mul (s, w)
}"""  # runs with N = 1 too, where the slice broadcasts, and with 4 and more


LAST = """m (float[N] x) => (float[M] y) <int64[1] from = {-3}, int64[1] to = {9999}> {
    s = Slice (x, from, to)
    y = Tanh (s)
}"""  # with 2 entries all of x
OPEN = """m (float[N,3] x) => (float[N,3] y) {
    s = Softmax (x)
    y = Tanh (s)
}"""


@pytest.mark.parametrize("text, notes", [
    (SHORT, ["not right at N=1, where shapes follow otherwise than at larger sizes"]),
    (SHORT.replace("y = Mul (s, w)", "y = Tanh (s)").replace("float[4] y", "float[M] y"), []),
    (LAST, ["not right at N=2, where shapes follow otherwise than at larger sizes"]),
    (OPEN, []),
])  # fmt: skip
def test_sizes_at_which_the_file_is_another_are_told(tmp_path: Path, text: str, notes: list[str]) -> None:
    onnx.save(onnx.parser.parse_model(HEAD + text), tmp_path / "m.onnx")
    model = gc.load(tmp_path / "m.onnx")
    [dx] = gc.gradients(model["y"], model["x"])
    assert dx is not None
    made = export(model, tmp_path / "g.onnx", ["y", dx.name], {})
    assert (list(made.notes), made.open_dims) == (notes, ("N",))


NORMALIZED = """m (float[N,8,8,3] x) => (float[N,6,6,4] y) <float[4,3,3,3] w, int64[5] groups = {-1, 6, 6, 2, 2},
  float eps = {0.001}, float[1,1,1,2,2] gamma = {1, 1, 1, 1}> {
    t = Transpose <perm = [0, 3, 1, 2]> (x)
    c = Conv <kernel_shape = [3, 3]> (t, w)
    p = Transpose <perm = [0, 2, 3, 1]> (c)
    g = Reshape (p, groups)
    mean = ReduceMean <axes = [1, 2, 4]> (g)
    negative = Neg (mean)
    off = Sub (g, mean)
    square = Mul (off, off)
    variance = ReduceMean <axes = [1, 2, 4]> (square)
    wide = Add (variance, eps)
    root = Sqrt (wide)
    inverse = Reciprocal (root)
    scale = Mul (inverse, gamma)
    scaled = Mul (g, scale)
    shift = Mul (negative, scale)
    normal = Add (scaled, shift)
    shape = Shape (p)
    y = Reshape (normal, shape)
}"""  # GroupNormalization as tf2onnx writes it: its sum is 0, and so is the gradient, but for rounding


@pytest.mark.parametrize("seed", range(3))
def test_a_gradient_that_is_rounding_alone_is_not_called_wrong(seed: int, tmp_path: Path) -> None:
    weights = np.random.default_rng(seed).uniform(-0.3, 0.3, (4, 3, 3, 3)).astype(np.float32)
    proto = onnx.parser.parse_model(HEAD.replace("18", "17") + NORMALIZED)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    onnx.save(proto, tmp_path / "m.onnx")
    model = gc.load(tmp_path / "m.onnx")
    [dx] = gc.gradients(model["y"], model["x"])
    assert dx is not None
    made = export(model, tmp_path / "g.onnx", ["y", dx.name], {})
    assert (list(made.notes), made.open_dims) == ([], ("N",))


SHIFTED = """g (float[N, 5] x) => (float[N, 5] y)
    <float[1] b = {0.5}, float[5] v = {1, -2, 3, -4, 5}, float large = {1e20}> {
    z = Add (x, b)
    p = Softmax (z)
    q = Mul (p, v)
    y = Mul (q, large)
}"""  # as a key's bias in attention, or a bias before a normalization: nothing depends on it


def test_rounding_of_a_gradient_that_is_zero_counts_by_what_it_is_rounding_of(tmp_path: Path) -> None:
    onnx.save(onnx.parser.parse_model(HEAD + SHIFTED), tmp_path / "m.onnx")
    model = gc.load(tmp_path / "m.onnx")
    dx, db = gc.gradients(model["y"], [model["x"], model["b"]])
    made = graph_of(model, [dx.name, db.name], {})
    here = reference(model, made, {})
    assert here is not None
    assert 0 < abs(here[db.name]).max() < 1e-12 * abs(here[dx.name]).max()
    assert [*proven(model, made, {}, {**here, db.name: -here[db.name]})] == []
    for off in ({db.name: here[db.name] + 1e-9 * abs(here[dx.name]).max()}, {dx.name: here[dx.name] * 1.001}):
        with pytest.raises(UnsupportedError, match="something else than the model"):
            [*proven(model, replace(made, trials=replace(made.trials, runs=({},))), {}, {**here, **off})]


@pytest.mark.parametrize("clip", ["", ", clip = 0.7"])
def test_operators_that_a_runtime_reads_otherwise_are_told(clip: str, tmp_path: Path) -> None:
    lstm = f"y, h, c = LSTM <hidden_size = 1{clip}> (x, w, r)"
    onnx.save(onnx.parser.parse_model(f"""{HEAD} m (float[2,1,1] x) => (float[2,1,1,1] y)
        <float[1,4,1] w = {{1, 2, 3, 4}}, float[1,4,1] r = {{1, 2, 3, 4}}> {{ {lstm} }}"""),
        tmp_path / "m.onnx")  # fmt: skip
    model = gc.load(tmp_path / "m.onnx")
    [dx] = gc.gradients(model["y"], model["x"])
    assert dx is not None
    notes = export(model, tmp_path / "g.onnx", ["y", dx.name], {}).notes
    assert [note.startswith("LSTM y: the gradient follows ONNX") for note in notes] == ([True] if clip else [])


SATURATED = """m (float[N,3] x) => (float[N,3] y) <float[3] w = {1, -2, 3}, float down = {20}, float up = {1e9}> {
    a = Mul (x, w)
    b = Sub (a, down)
    s = Sigmoid (b)
    y = Mul (s, up)
}"""  # of numbers near 1e-9, for which the Sigmoid of onnxruntime has no digits


def run_elsewhere(path: Path, text: str, changed: str) -> str:
    """The note on a run of a gradient file in onnxruntime whose node that computes a tensor is another one."""
    onnx.save(onnx.parser.parse_model(HEAD + text), path)
    model = gc.load(path)
    [dx] = gc.gradients(model["y"], model["x"])
    assert dx is not None
    made = graph_of(model, ["y", dx.name], {})
    proto = to_proto(made.graph)
    for node in proto.graph.node:
        if changed in node.output or (changed == "added" and not {*node.output} & {*model.graph.tensors}):
            node.op_type = {"Tanh": "Sin", "Mul": "Add"}.get(node.op_type, node.op_type)
    values = sample(made, reference(model, made, {}))
    return require_runs(serialized(proto), made.graph, model.graph, values, model.ops, GraphRuns())


def test_rounding_in_a_runtime_is_told(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    said = run_elsewhere(tmp_path / "m.onnx", SATURATED, "nothing")
    assert "of its largest entry away from that in float64: rounding alone" in said


def test_nodes_of_the_model_that_a_runtime_computes_otherwise_are_told(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    said = run_elsewhere(tmp_path / "m.onnx", OPEN, "y")
    assert "it computes node 1 Tanh 'y' of the model itself otherwise" in said


def test_added_nodes_that_a_runtime_computes_otherwise_refuse_the_file(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    assert run_elsewhere(tmp_path / "m.onnx", OPEN, "nothing") == ""
    with pytest.raises(UnsupportedError, match=r"onnxruntime would not compute node \d+ Mul .* as ONNX defines it"):
        run_elsewhere(tmp_path / "m.onnx", OPEN, "added")


@pytest.mark.parametrize("opset", [18, 20, 22])
@pytest.mark.parametrize("op", ["Softplus", "Selu", "Mish", "Atan", "Erf", "Tanh"])
def test_a_file_is_written_where_a_runtime_does_not_run_the_model_in_its_own_opset(
    op: str, opset: int, tmp_path: Path
) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    text = f'<ir_version: 8, opset_import: ["" : {opset}]> m (double[N] x) => (double[N] y) {{ y = {op}(x) }}'
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    model = gc.load(tmp_path / "m.onnx")
    [dx] = gc.gradients(model["y"], model["x"])
    assert dx is not None
    notes = export(model, tmp_path / "g.onnx", ["y", dx.name], {}, runtime=GraphRuns()).notes
    try:
        onnxruntime.InferenceSession(tmp_path / "m.onnx")
    except Exception:
        assert [note.partition(":")[0] for note in notes] == [UNKNOWN]
    else:
        assert not notes


LAST = """m (float[T,3] x) => (float[3] y) {
    yes = Constant <value = bool {1}> ()  zero = Constant <value = int64 {0}> ()  one = Constant <value = int64 {1}> ()
    sizes = Shape (x)  rows = Gather (sizes, zero)  less = Sub (rows, one)  first = Gather (x, zero)
    y = Loop (less, yes, first) <body = b (int64 i, bool c, float[3] h) => (bool go, float[3] next) {
      go = Identity (c)  j = Add (i, one)  row = Gather (x, j)  a = Add (h, row)  next = Tanh (a) }>
}"""
EVERY = """m (float[T,3] x) => (float[3] y) <float[3] first = {0, 0, 0}> {
    yes = Constant <value = bool {1}> ()  zero = Constant <value = int64 {0}> ()  sizes = Shape (x)
    rows = Gather (sizes, zero)
    y = Loop (rows, yes, first) <body = b (int64 i, bool c, float[3] h) => (bool go, float[3] next) {
      go = Identity (c)  row = Gather (x, i)  a = Add (h, row)  next = Tanh (a) }>
}"""


class NoRows(GraphRuns):
    """A runtime that runs no gradient of as many rows as it is made with."""

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def answers(self, data: bytes, feeds: Any, outputs: Any) -> Any:
        return (
            "no rows" if len(feeds["x"]) == self.rows and outputs != ("y",) else super().answers(data, feeds, outputs)
        )


@pytest.mark.parametrize(
    ("text", "rows", "told"),
    [(LAST, 1, "T=1"), (LAST, 0, ""), (LAST, 9999, ""), (EVERY, 1, "T=1"), (EVERY, 0, "T=0"), (EVERY, 9999, "")],
)
def test_sizes_at_which_a_runtime_runs_the_model_alone_are_told(
    text: str, rows: int, told: str, tmp_path: Path
) -> None:
    """One of the models does not run without any row."""
    pytest.importorskip("onnxruntime")
    onnx.save(onnx.parser.parse_model(HEAD + text), tmp_path / "m.onnx")
    model = gc.load(tmp_path / "m.onnx")
    [dx] = gc.gradients(model["y"], model["x"])
    assert dx is not None
    notes = export(model, tmp_path / "g.onnx", ["y", dx.name], {}, runtime=NoRows(rows)).notes
    assert list(notes) == ([f"onnxruntime runs the model at {told}, but not this file: no rows"] if told else [])


PROVEN: dict[str, str] = {
    "an output reads strings": """m (float[N,2] x, string[K] words) => (float[N,2] y, int64[K] codes) {
        codes = ai.onnx.ml.LabelEncoder<keys_strings = ["a"], values_int64s = [1], default_int64 = -1>(words)
        y = Sin(x) }""",
    "an input is a sequence": """m (float[3] x, seq(float[3]) s) => (float[3] y) {
        both = SequenceInsert(s, x)  zero = Constant<value_int = 0>()  first = SequenceAt(both, zero)
        a = Sin(first)  b = Sin(x)  y = Add(a, b) }""",
    "the first other values do not run": """m (float[1] x) => (float[1] y) <float[1] w = {2}, float at = {0.1}> {
        over = Greater(x, at)  index = Cast<to = 7>(over)  g = Gather(w, index)  s = Sin(x)  y = Mul(s, g) }""",
}


@pytest.mark.parametrize("name", PROVEN)
def test_a_file_is_held_against_the_model_wherever_that_runs(name: str, tmp_path: Path) -> None:
    """A file with a cosine for a sine among what was added is refused."""
    head = '<ir_version: 8, opset_import: ["" : 18, "ai.onnx.ml" : 3]>\n'
    onnx.save(onnx.parser.parse_model(head + PROVEN[name]), tmp_path / "m.onnx")
    model = gc.load(tmp_path / "m.onnx")
    [dx] = gc.gradients(model["y"], model["x"])
    assert dx is not None
    made = graph_of(model, [*model.graph.outputs, dx.name], {})
    assert [*proven(model, made, {}, reference(model, made, {}))] == []
    nodes = [replace(node, op="Sin") if node.op == "Cos" else node for node in made.graph.nodes]
    wrong = replace(made, graph=replace(made.graph, nodes=tuple(nodes)))
    assert wrong != made
    with pytest.raises(UnsupportedError):
        [*proven(model, wrong, {}, reference(model, wrong, {}))]


def test_a_file_is_held_against_the_model_where_dimensions_broadcast(tmp_path: Path) -> None:
    """A file without the sums over axes along which an operand is repeated is right wherever none is."""
    text = "m (double[A] x, double[B] y) => (double[C] z) { p = Mul (x, y)  z = Sin (p) }"
    onnx.save(onnx.parser.parse_model(HEAD + text), tmp_path / "m.onnx")
    model = gc.load(tmp_path / "m.onnx")
    made = graph_of(model, [dx.name for dx in gc.gradients(model["z"], [model["x"], model["y"]]) if dx is not None], {})
    assert [*proven(model, made, {}, reference(model, made, {}))] == []
    nodes = [
        replace(node, op="Identity", inputs=node.inputs[:1], attrs={}) if node.op == "ReduceSum" else node
        for node in made.graph.nodes
    ]
    wrong = replace(made, graph=replace(made.graph, nodes=tuple(nodes)))
    [told] = proven(model, wrong, {}, reference(model, wrong, {}))
    assert told == "not right at A=1, B=4, where shapes follow otherwise than at larger sizes"


@pytest.mark.parametrize("where", ["gradcheck_cli.export.proof.trace", "gradcheck_cli.model.Model.tape"])
def test_a_proof_without_memory_is_no_file_that_is_wrong(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    onnx.save(onnx.parser.parse_model(HEAD + OPEN), tmp_path / "m.onnx")
    model = gc.load(tmp_path / "m.onnx")
    [dx] = gc.gradients(model["y"], model["x"])
    made = graph_of(model, ["y", dx.name], {})

    def without_memory(*_: object, **__: object) -> None:
        raise LimitError("no room for an array", code="GC602")

    here = reference(model, made, {})
    monkeypatch.setattr(where, without_memory)
    with pytest.raises(LimitError, match="no room"):
        [*proven(model, made, {}, here)]


def test_large_weights_are_held_against_the_model_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights that are widened when they are read, and blocks of entries that are compared one after the other."""
    monkeypatch.setattr("gradcheck_cli.autodiff.weights.KEPT", 0)
    w = np.random.default_rng(0).normal(size=(512, 600)).astype(np.float32)
    graph = onnx.parser.parse_graph("m (float[N,600] x) => (float[N,512] y) { y = Gemm<transB=1>(x, w) }")
    graph.initializer.append(onnx.numpy_helper.from_array(w, "w"))
    opset = onnx.helper.make_opsetid("", 18)
    onnx.save(onnx.helper.make_model(graph, opset_imports=[opset], ir_version=8), tmp_path / "m.onnx")
    model = gc.load(tmp_path / "m.onnx")
    dx, dw = gc.gradients(model["y"], [model["x"], model["w"]])
    made = graph_of(model, ["y", dx.name, dw.name], {})
    here = reference(model, made, {})
    assert here is not None
    assert [*proven(model, made, {}, here)] == []
    off = {**here, dw.name: here[dw.name] + np.eye(512, 600)[::-1] * np.abs(here[dw.name]).max() / 100}
    with pytest.raises(UnsupportedError, match="something else than the model"):
        [*proven(model, replace(made, trials=replace(made.trials, runs=({},))), {}, off)]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_arrays_in_any_layout_are_compared_where_they_lie(order: tuple[int, int, int]) -> None:
    """A transposed gradient was copied as a whole for each block of its entries."""
    w = np.random.default_rng(0).normal(size=(256, 32, 64)).transpose(order)
    f = w.copy()
    f[3, -1, 2] += 0.5
    tracemalloc.start()
    try:
        found = largest_gap(w, f, lambda w, f: np.isfinite(w))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found == (pytest.approx(0.5), np.abs(w).max())
    assert peak < w.nbytes / 2


def test_a_file_that_nothing_can_be_held_against_is_refused(tmp_path: Path) -> None:
    """A model that runs at the values by which its file was made alone."""
    text = PROVEN["the first other values do not run"].replace("at = {0.1}", "at = {-0.9}")
    onnx.save(onnx.parser.parse_model(HEAD + text), tmp_path / "m.onnx")
    model = gc.load(tmp_path / "m.onnx")
    [dx] = gc.gradients(model["y"], model["x"])
    with pytest.raises(
        UnsupportedError, match=r"at no other values, by which the file could be proven.*--feed x=VALUE"
    ):
        gc.save(model, tmp_path / "g.onnx", ["y", dx])
    assert not (tmp_path / "g.onnx").exists()


def test_tensors_inside_of_a_sequence_that_a_gradient_needs_are_refused_by_name(tmp_path: Path) -> None:
    text = """m (float[3] x, seq(float[3]) s) => (float[3] y) {
        zero = Constant<value_int = 0>()  first = SequenceAt(s, zero)  y = Mul(x, first) }"""
    onnx.save(onnx.parser.parse_model(HEAD + text), tmp_path / "m.onnx")
    model = gc.load(tmp_path / "m.onnx")
    [dx] = gc.gradients(model["y"], model["x"])
    with pytest.raises(UnsupportedError, match="SequenceAt 'first' reads other tensors, which lie inside of inputs"):
        gc.save(model, tmp_path / "g.onnx", ["y", dx])
