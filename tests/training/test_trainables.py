"""Tensors that are trained where nobody names any: exporters fold, merge, copy and transpose what a module has."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest

import gradcheck_cli as gc
from gradcheck_cli.graph import Array
from tests.checking.test_roles import declared, proto
from tests.training.test_step import stepped

X, T = np.random.default_rng(1).normal(size=(2, 4, 2))


def step_of(text: str, folder: Path, kinds: Mapping[str, str] = {}, **options: str) -> gc.TrainingStep:
    onnx.save(declared(proto(text), kinds, onnx.TensorProto.DOUBLE), folder / "m.onnx")
    return gc.training_step(gc.load(folder / "m.onnx"), loss="mse:y,t", optimizer="sgd", lr=0.1, **options)  # type: ignore[arg-type]


def moved(step: gc.TrainingStep) -> dict[str, Array]:
    """The changes of all weights in a step."""
    made = stepped(step, x=X, t=T)
    return {name: made[f"{name}_next"] - step.init[name] for name in step.params}


FOLDED = """g (double[N, 2] x) => (double[N, 2] y)
    <double[2] net_DOT_scale = {1, 2}, double[2, 2] val_7 = {1, 2, 3, 5}, double[2] slice_1 = {0.5, 1.5},
     double[2] OTHER = {0.5, 2.5}>
    { a = Mul (x, net_DOT_scale) b = MatMul (a, val_7) c = Add (b, slice_1) y = Mul (c, OTHER) }"""


@pytest.mark.parametrize(
    ("other", "kinds", "trained", "kept"),
    [
        ("expand", {"net.scale": "PARAMETER"}, {"net.scale", "val_7"}, "slice_1 and 1 more"),
        ("net_DOT_w", {"net.scale": "PARAMETER", "net.w": "PARAMETER"}, {"net.scale", "val_7", "net.w"}, "slice_1 ("),
        ("onnx_COLON__COLON_Mul_3", {}, {"net.scale", "val_7", "slice_1"}, "onnx::Mul_3 ("),
        ("ConstantFolding_SLASH_norm_SLASH_truediv_recip_COLON_0", {}, {"net.scale", "val_7", "slice_1"},
         "ConstantFolding/norm/truediv_recip:0 ("),
        ("net_DOT_w", {}, {"net.scale", "val_7", "slice_1", "net.w"}, ""),
    ],
)  # fmt: skip
def test_constants_that_the_exporter_computes_are_kept_and_told(
    other: str, kinds: dict[str, str], trained: set[str], kept: str, tmp_path: Path
) -> None:
    step = step_of(FOLDED.replace("OTHER", other), tmp_path, kinds)
    assert {*step.params} == trained
    told = [note for note in step.notes if "computed by the exporter" in note]
    assert [note.startswith(kept) for note in told] == ([True] if kept else [])


def test_single_numbers_that_the_older_exporter_computes_are_told(tmp_path: Path) -> None:
    model = proto("""g (double[N, 2] x) => (double[N, 2] y)
        <double[2, 2] net_DOT_w = {1, 2, 3, 5}, double onnx_COLON__COLON_Mul_1 = {2},
         double[2] onnx_COLON__COLON_Div_2 = {3, 3}, double[2] onnx_COLON__COLON_Add_3 = {0, -10000}>
        { a = MatMul (x, net_DOT_w) b = Mul (a, onnx_COLON__COLON_Mul_1) c = Div (b, onnx_COLON__COLON_Div_2)
          d = Add (c, onnx_COLON__COLON_Add_3) number = Constant <value = double {3}> () y = Mul (d, number) }""")
    model.graph.node[4].output[0] = model.graph.node[5].input[1] = "onnx::Mul_4"
    onnx.save(model, tmp_path / "m.onnx")
    step = gc.training_step(gc.load(tmp_path / "m.onnx"), loss="mse:y,t")
    assert {*step.params} == {"net.w"}
    [told] = step.notes
    assert told.startswith("onnx::Mul_1 and 1 more (computed by the exporter")


def test_what_is_kept_is_trained_if_named(tmp_path: Path) -> None:
    text = FOLDED.replace("OTHER", "expand")
    step = step_of(text, tmp_path, {"net.scale": "PARAMETER"}, trainable="slice_?")
    assert {*step.params} == {"slice_1"}
    assert not any("computed by the exporter" in note for note in step.notes)
    step = step_of(text, tmp_path, {"net.scale": "PARAMETER"}, trainable="!val_7")
    assert {*step.params} == {"net.scale"}
    assert any("computed by the exporter" in note for note in step.notes)


COMPUTED = """g (double[N, 2] x) => (double[N, 2] y)
    <double[2] net_DOT_b = {1, 2}, double FACTOR = {2}, double[2, 2] MATRIX = {1, 2, 3, 5}, double val_9 = {3}>
    { a = MatMul (x, MATRIX) b = Mul (a, FACTOR) c = Add (b, net_DOT_b) y = Mul (c, val_9) }"""
NEW = {"net.b": "PARAMETER"}


def folded(model: onnx.ModelProto, of: Mapping[str, list[str]], parameters: list[str]) -> onnx.ModelProto:
    """A model in which PyTorch's exporter says of what it has computed constants, and what the parameters were."""
    for name, names in of.items():
        info = model.graph.value_info.add(name=name)
        info.type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
        info.metadata_props.add(key="pkg.onnxscript.optimizer.folded_from", value=str(names))
    lines = [*(f"p_{i}: PARAMETER target={name!r}" for i, name in enumerate(parameters)), "b_t: BUFFER target='sines'"]
    text = "\n".join(["", "# inputs", *lines, "x: USER_INPUT", "", "# outputs", "y: USER_OUTPUT", ""])
    model.graph.metadata_props.add(key="pkg.torch.export.ExportedProgram.graph_signature", value=text)
    return model


@pytest.mark.parametrize(
    ("factor", "matrix", "of", "kept"),
    [
        ("exp", "net_DOT_w", {"exp": ["logit_scale"], "val_9": ["val_8"]}, {"exp"}),  # of CLIP
        ("sum_1", "net_DOT_w", {"sum_1": ["abs_1", "log", "net.b"]}, {"sum_1"}),  # of a normalizing flow
        ("exp", "net_DOT_w", {"exp": ["sines"]}, set()),
        ("scalar_tensor_default", "net_DOT_w", {"scalar_tensor_default": ["val_8"]}, set()),
        ("val_8", "val_7", {"val_7": ["net.w"]}, set()),  # the weight of a Linear, transposed
        ("val_8", "permute_1", {"permute_1": ["net.w"]}, set()),
        ("val_8", "val_7", {"val_7": ["net.w", "net.v", "val_3", "zeros"]}, set()),  # two directions of an LSTM
        ("val_8", "mul_22", {"mul_22": ["div_1", "linalg_vector_norm", "net.v", "net.w", "val_82"]}, {"mul_22"}),
        ("val_8", "val_7", {"val_7": ["div_1", "linalg_vector_norm", "net.w"]}, {"val_7"}),  # normalized, transposed
        ("val_8", "val_7", {"val_7": ["arange", "mul", "sines"]}, set()),
        ("exp", "mul_2", {"exp": ["net.w"], "mul_2": ["net.v"]}, {"exp", "mul_2"}),
    ],
)  # fmt: skip
def test_constants_that_the_exporter_computes_of_parameters_are_kept_and_told(
    factor: str, matrix: str, of: dict[str, list[str]], kept: set[str], tmp_path: Path
) -> None:
    text = COMPUTED.replace("FACTOR", factor).replace("MATRIX", matrix)
    kinds = NEW if matrix != "net_DOT_w" else {**NEW, "net.w": "PARAMETER"}
    model = folded(
        declared(proto(text), kinds, onnx.TensorProto.DOUBLE), of, ["net.b", "net.w", "net.v", "logit_scale"]
    )
    onnx.save(model, tmp_path / "m.onnx")
    step = gc.training_step(gc.load(tmp_path / "m.onnx"), loss="mse:y,t", optimizer="sgd")
    assert {*step.params} == {"net.b", matrix.replace("_DOT_", ".")} - kept
    told = [note for note in step.notes if "computed by the exporter" in note]
    assert len(told) == bool(kept)
    assert all(name in note or "and 1 more" in note for name in kept for note in told)


def test_what_may_be_a_parameter_is_told(tmp_path: Path) -> None:
    step = step_of("""g (double[N, 2] x) => (double[N, 2] y)
        <double[2] net_DOT_w = {1, 2}, double temperature = {2}, double[2] net_DOT_ls = {1, 1}, double val_3 = {3}>
        { a = Mul (x, net_DOT_w) b = Mul (a, temperature) c = Mul (b, net_DOT_ls) y = Mul (c, val_3) }""",
        tmp_path)  # fmt: skip
    assert {*step.params} == {"net.w"}
    assert any(note.startswith("temperature and 1 more (one entry, or all values are equal)") for note in step.notes)
    for params in (True, False):
        notes = gc.check(gc.load(tmp_path / "m.onnx"), "x", "y", params=params).checks[0].notes
        told = (
            "not taken for parameters: temperature, net.ls (one entry, or all values are equal); --param NAME adds one"
        )
        assert [note for note in notes if "not taken" in note] == [told] * params


@pytest.mark.parametrize(("dims", "values", "told"), [("2", "0, 0", True), ("1", "3", False), ("2", "0, 1", False)])
def test_equal_values_that_have_no_name_are_told(dims: str, values: str, told: bool, tmp_path: Path) -> None:
    """Converters from JAX number all constants, a bias that begins with zeros and a number of the code alike."""
    step = step_of(f"""g (double[N, 2] x) => (double[N, 2] y)
        <double[2] const_0 = {{1, 2}}, double[{dims}] const_1 = {{{values}}}>
        {{ a = Mul (x, const_0) y = Add (a, const_1) }}""", tmp_path)  # fmt: skip
    assert {*step.params} == {"const_0"}
    assert [note.startswith("const_1 (one entry, or all values are equal)") for note in step.notes] == [True] * told


@pytest.mark.parametrize(("scale", "shift"), [("1, 1", "0, 0"), ("1, 2", "0.5, 0")])
@pytest.mark.parametrize("kinds", [{}, {"net.w": "PARAMETER"}])
def test_scales_of_a_group_norm_are_trained(scale: str, shift: str, kinds: dict[str, str], tmp_path: Path) -> None:
    text = f"""g (double[N, 2] x) => (double[N, 2] y)
        <double[2] net_DOT_w = {{1, 2}}, double[1] val_3 = {{1}}, double[1] val_4 = {{0}}, int64[3] apart = {{0, 1, 2}},
         int64[2] back = {{0, 2}}, double[1, 2] onnx_COLON__COLON_Mul_3 = {{{scale}}},
         double[1, 2] onnx_COLON__COLON_Add_4 = {{{shift}}}>
        {{ a = Mul (x, net_DOT_w) r = Reshape (a, apart) i = InstanceNormalization (r, val_3, val_4) f = Reshape (i, back)
          s = Mul (f, onnx_COLON__COLON_Mul_3) y = Add (s, onnx_COLON__COLON_Add_4) }}"""
    step = step_of(text, tmp_path, kinds)
    assert {*step.params} == {"net.w", "onnx::Mul_3", "onnx::Add_4"}
    assert not any("exporter" in note for note in step.notes)
    called = text.replace("onnx_COLON__COLON_Mul_3", "net_DOT_g").replace("onnx_COLON__COLON_Add_4", "net_DOT_b")
    kinds = {**kinds, **({"net.g": "PARAMETER", "net.b": "PARAMETER"} if kinds else {})}
    step = step_of(called, tmp_path, kinds)
    assert {*step.params} == {"net.w", "net.g", "net.b"}
    assert not any("kept here" in note for note in step.notes)


def test_what_is_no_number_is_no_weight(tmp_path: Path) -> None:
    model = proto("""g (double[N, 2] x) => (double[N, 2] y) <double[2] net_DOT_w = {1, 2}, double[2] net_DOT_lost = {0, 0}>
        { less = Less (x, net_DOT_w) a = Mul (x, net_DOT_w) y = Where (less, net_DOT_lost, a) }""")
    lost = onnx.numpy_helper.from_array(np.full(2, np.nan), "net.lost")
    next(each for each in model.graph.initializer if each.name == lost.name).CopyFrom(lost)
    onnx.save(model, tmp_path / "m.onnx")
    assert gc.training_step(gc.load(tmp_path / "m.onnx"), loss="mse:y,t").params == ("net.w",)


ONES = """g (double[N, 2] x) => (double[N, 2] y) <double[2, 2] net_DOT_w = {1, 2, 3, 5}, double[2] val_9 = {1, 1}>
    { a = MatMul (x, net_DOT_w) b = LayerNormalization (a, val_9) y = READ }"""


@pytest.mark.parametrize(("read", "told"), [("Mul (b, val_9)", True), ("Identity (b)", False)])
def test_ones_that_an_exporter_fills_in_are_told_where_they_may_be_a_weight_too(
    read: str, told: bool, tmp_path: Path
) -> None:
    """A LayerNormalization without weights needs ones, and equal tensors are kept once: here, those of a gain."""
    step = step_of(ONES.replace("READ", read), tmp_path, {"net.w": "PARAMETER"})
    assert step.params == ("net.w",)
    said = "val_9 (all its values are equal, and 2 nodes read it): kept here, not trained"
    assert [note.startswith(said) for note in step.notes] == [True] * told


NORMALIZED = """g (double[N, 2] x) => (double[N, 2] y)
    <double[2, 2] net_DOT_w = {1, 2, 3, 5}, double[2] net_DOT_scale = {1, 2}, double[2] net_DOT_bias = {0.5, 1.5},
     double[2] net_DOT_mean = {0.1, 0.2}, double[2] net_DOT_var = {1, 2}, double[2, 2] net_DOT_sines = {0, 1, 0.5, 0.25}>
    { a = MatMul (x, net_DOT_w) b = Add (a, net_DOT_bias) c = MatMul (b, net_DOT_sines)
      y = BatchNormalization (c, net_DOT_scale, net_DOT_bias, net_DOT_mean, net_DOT_var) }"""


@pytest.mark.parametrize(
    ("options", "trained"),
    [
        ({"trainable": "*"}, {"net.w", "net.scale", "net.bias"}),
        ({"trainable": "net.?????"}, {"net.scale"}),
        ({"trainable": "net.???"}, {"net.var"}),
        ({"trainable": "*e*"}, {"net.w", "net.scale", "net.bias"}),
        ({"trainable": "net.sines"}, {"net.sines"}),
        ({"lora": "1:*"}, {"net.w.lora_A", "net.w.lora_B"}),
        ({"lora": "1:net.sines"}, {"net.sines.lora_A", "net.sines.lora_B"}),
    ],
)
def test_a_glob_stands_for_weights_where_it_fits_any(
    options: dict[str, str], trained: set[str], tmp_path: Path
) -> None:
    """Not for the statistics and buffers of their modules, which PyTorch's parameters() does not give either."""
    step = step_of(NORMALIZED, tmp_path, {"net.sines": "BUFFER", "net.w": "PARAMETER"}, **options)
    assert {*step.params} == trained


TIED = """g (double[N, 2] x) => (double[N, 2] y) <double[2, 2] head_DOT_weight = {1, 2, 3, 5}, double[2, 2] val_9 = OTHER>
    { h = MatMul (x, head_DOT_weight) g = Tanh (h) y = MatMul (g, val_9) }"""


@pytest.mark.parametrize(("values", "tied"), [("{1, 3, 2, 5}", True), ("{1, 2, 3, 5}", False), ("{1, 3, 2, 4}", False)])
def test_a_weight_that_is_another_one_transposed_stays_tied(values: str, tied: bool, tmp_path: Path) -> None:
    step = step_of(TIED.replace("OTHER", values), tmp_path)
    w, v = np.array([[1.0, 2], [3, 5]]), np.array(values.strip("{}").split(","), float).reshape(2, 2)
    t = np.tanh(X @ w)
    off = 2 * (t @ v - T) / T.size
    of_w, of_v = X.T @ (off @ v.T * (1 - t * t)), t.T @ off
    expected = {"head.weight": of_w + of_v.T} if tied else {"head.weight": of_w, "val_9": of_v}
    assert {*step.params} == {*expected}
    for name, change in moved(step).items():
        np.testing.assert_allclose(change, -0.1 * expected[name], rtol=1e-9, err_msg=name)
    assert ("val_9 is head.weight transposed: trained as one weight" in step.notes) == tied


@pytest.mark.parametrize(("name", "tied"), [("val_9", True), ("tail_DOT_weight", False)])
def test_equal_symmetric_weights_are_tied_only_where_an_exporter_made_up_a_name(
    name: str, tied: bool, tmp_path: Path
) -> None:
    text = TIED.replace("OTHER", "{2, 5, 5, 1}").replace("{1, 2, 3, 5}", "{2, 5, 5, 1}").replace("val_9", name)
    assert len([*step_of(text, tmp_path).params]) == (1 if tied else 2)


DECLARED = """gradcheck: 1
graphs:
  net:
    inputs: {x: {shape: [4, 2]}}
    params: {W: [[1, 2], [3, 4]], V: [[1, 3], [2, 4]]}
    constants: {F: [[1.0, 5.0], [6.0, 4.0]], Ft: [[1.0, 6.0], [5.0, 4.0]]}
    nodes: |
      a = MatMul (x, W)
      b = MatMul (a, V)
      c = MatMul (b, F)
      y = MatMul (c, Ft)
    outputs: [y]
"""


@pytest.mark.parametrize(("trainable", "names"), [((), {"W", "V"}), (("F",), {"F"})])
def test_what_a_spec_declares_is_tied_to_nothing(trainable: tuple[str, ...], names: set[str], tmp_path: Path) -> None:
    (tmp_path / "net.gradcheck.yaml").write_text(DECLARED)
    model = gc.load(tmp_path / "net.gradcheck.yaml")
    assert set(gc.training_step(model, loss="mse:y,t", trainable=trainable).params) == names


LAYERS = """g (double[N, 2] x) => (double[N, 2] y)
    <double[2] l_DOT_0_DOT_weight = {1, 2}, double[2, 2] onnx_COLON__COLON_MatMul_1 = {1, 2, 3, 5},
     double[2] l_DOT_0_DOT_bias = BIAS>
    { l_DOT_1_DOT_weight = Identity (l_DOT_0_DOT_weight) head_DOT_weight = Identity (l_DOT_0_DOT_weight)
      l_DOT_1_DOT_bias = Identity (l_DOT_0_DOT_bias) onnx_COLON__COLON_MatMul_8 = Identity (onnx_COLON__COLON_MatMul_1)
      onnx_COLON__COLON_MatMul_9 = Identity (onnx_COLON__COLON_MatMul_1)
      [_SLASH_l_DOT_0_SLASH_MatMul] a = MatMul (x, onnx_COLON__COLON_MatMul_1) b = Mul (a, l_DOT_0_DOT_weight)
      c = Add (b, l_DOT_0_DOT_bias)
      [_SLASH_l_DOT_1_SLASH_MatMul] d = MatMul (c, onnx_COLON__COLON_MatMul_8) e = Mul (d, l_DOT_1_DOT_weight)
      f = Add (e, l_DOT_1_DOT_bias) g = Mul (f, head_DOT_weight)
      [_SLASH_head_SLASH_MatMul] y = MatMul (g, onnx_COLON__COLON_MatMul_9) }"""


@pytest.mark.parametrize("fresh", [True, False])
def test_layers_that_begin_as_copies_of_one_another_are_trained_one_by_one(fresh: bool, tmp_path: Path) -> None:
    """In a model that was never trained; the weights of others are copies only where they are tied."""
    step = step_of(LAYERS.replace("BIAS", "{0, 0}" if fresh else "{0.5, 1}"), tmp_path)
    first = {"l.0.weight", "onnx::MatMul_1", "l.0.bias"}
    assert {*step.params} == (first | {"l.1.weight", "onnx::MatMul_8", "l.1.bias"} if fresh else first)
    assert any("written as a copy of an equal weight" in note for note in step.notes) == fresh
    w, s, b = np.array([[1.0, 2], [3, 5]]), np.array([1.0, 2]), np.zeros(2) if fresh else np.array([0.5, 1])
    c = (X @ w) * s + b
    g = (c @ w * s + b) * s
    off = 2 * (g @ w - T) / T.size
    of_f = off @ w.T * s
    of_c = of_f * s @ w.T
    biases = {"l.0.bias": of_c.sum(0), "l.1.bias": of_f.sum(0)}
    changes = moved(step)
    if not fresh:
        biases = {"l.0.bias": biases["l.0.bias"] + biases["l.1.bias"]}
    for name, gradient in biases.items():
        np.testing.assert_allclose(changes[name], -0.1 * gradient, rtol=1e-9, err_msg=name)


DETACHED = """g (double[N, 2] x) => (double[N, 2] y) <double[2, 2] w = {1, 2, 3, 5}, double[2] net_DOT_bias = {1, 2}>
    { a = MatMul (x, w) b = Identity (a) c = Identity (x) d = Mul (b, c) e = Identity (a) y = Add (d, net_DOT_bias) }"""


@pytest.mark.parametrize(
    ("detached", "trainable", "told"),
    [("b", "", True), ("c", "", False), ("e", "", False), ("", "", False), ("b", "!w", False)],
)
def test_what_pytorch_detached_is_told_where_weights_lie_before_it(
    detached: str, trainable: str, told: bool, tmp_path: Path
) -> None:
    model = proto(DETACHED)
    for node in model.graph.node:
        target = "detach" if node.output[0] == detached else "clone"
        text = (
            f"%{node.output[0]} : [num_users=1] = call_function[target=torch.ops.aten.{target}.default](args = (), ...)"
        )
        node.metadata_props.add(key="pkg.torch.onnx.fx_node", value=text)
    onnx.save(model, tmp_path / "m.onnx")
    step = gc.training_step(gc.load(tmp_path / "m.onnx"), loss="mse:y,t", trainable=trainable or ())
    assert [note.startswith("b (detached in PyTorch)") for note in step.notes if "detached" in note] == [True] * told
    checked = gc.check(gc.load(tmp_path / "m.onnx"), "x", "y").checks[0].notes
    where = {"b": "node 1 Identity 'b'", "c": "node 2 Identity 'c'"}.get(detached)
    said = f"{where}: detached in PyTorch, so that no gradient goes through there as it does here"
    assert [note for note in checked if "detached" in note] == ([said] if where else [])


LEFT_OUT = {  # nodes, each with its name and operands in PyTorch; the one that reads what was detached, and that tensor
    "by a product": ([("a = MatMul (x, w)", "a", "%x, %w"), ("d = Mul (a, x)", "d", "%detach, %x")], "node 1 Mul 'd'", "a"),
    "by a part of a layer": (
        [("a = MatMul (x, w)", "a", "%x, %w"), ("val = MatMul (a, w)", "d", "%detach_2, %p_w, %p_bias"),
         ("d = Add (val, net_DOT_bias)", "d", "%detach_2, %p_w, %p_bias")], "node 1 MatMul 'val'", "a"),
    "by nothing, of a tensor of that name": (
        [("detach = MatMul (x, w)", "detach", "%x, %w"), ("d = Mul (detach, x)", "d", "%detach, %x")], "", ""),
    "by nothing, of a name that begins so": (
        [("a = MatMul (x, w)", "a", "%x, %w"), ("d = Mul (a, x)", "d", "%detached_1, %x")], "", ""),
}  # fmt: skip


@pytest.mark.parametrize("name", LEFT_OUT)
def test_a_detach_that_the_exporter_left_out_is_told_where_its_result_is_read(name: str, tmp_path: Path) -> None:
    parts, node, tensor = LEFT_OUT[name]
    model = proto(f"""g (double[N, 2] x) => (double[N, 2] y)
        <double[2, 2] w = {{1, 2, 3, 5}}, double[2] net_DOT_bias = {{1, 2}}>
        {{ {" ".join(part for part, *_ in parts)} y = Add (d, net_DOT_bias) }}""")
    for made, (_, result, operands) in zip(model.graph.node, parts, strict=False):
        text = f"%{result} : [num_users=1] = call_function[target=torch.ops.aten.some.Tensor](args = ({operands}), ...)"
        made.metadata_props.add(key="pkg.torch.onnx.fx_node", value=text)
    onnx.save(model, tmp_path / "m.onnx")
    said = f"{node}: reads what was detached in PyTorch, so that no gradient goes through there as it does here"
    notes = gc.check(gc.load(tmp_path / "m.onnx"), "x", "y").checks[0].notes
    assert [note for note in notes if "detached" in note] == [said] * bool(node)
    step = gc.training_step(gc.load(tmp_path / "m.onnx"), loss="mse:y,t")
    assert [note.partition(" (detached in PyTorch)")[0] for note in step.notes if "detached" in note] == [
        tensor
    ] * bool(node)


MERGED = """g (double[N, 2] x) => (double[N, 2] y) <double[2, 2] w = {1, 2, 3, 5}, double[2] net_DOT_bias = BIAS>
    { a = MatMul (x, w) c = Add (a, net_DOT_bias) d = MatMul (c, w) e = Add (d, net_DOT_bias) y = MatMul (e, w) }"""


@pytest.mark.parametrize("fresh", [True, False])
@pytest.mark.parametrize(
    ("modules", "of_w", "of_b"),
    [
        ("l.0 l.0 l.1 l.1 l.2", ["w", "l.1/w", "l.2/w"], ["net.bias", "l.1/net.bias"]),
        ("l.0 n.0 l.0 n.1 l.0", ["w", "w", "w"], ["net.bias", "n.1/net.bias"]),
        ("l.0 l.0 l.1 m.1 head", ["w", "w", "w"], ["net.bias", "m.1/net.bias"]),
        ("l.0 l.0 l.1 l.1 ", ["w", "w", "w"], ["net.bias", "l.1/net.bias"]),
    ],
)
def test_weights_of_several_modules_that_the_exporter_kept_once_are_trained_one_by_one(
    modules: str, of_w: list[str], of_b: list[str], fresh: bool, tmp_path: Path
) -> None:
    model = proto(MERGED.replace("BIAS", "{0, 0}" if fresh else "{0.5, 1}"))
    for node, module in zip(model.graph.node, modules.split(" "), strict=True):
        scopes = ["", module, "linear"] if module else []
        node.metadata_props.add(key="pkg.torch.onnx.name_scopes", value=str(scopes))
    onnx.save(model, tmp_path / "m.onnx")
    step = gc.training_step(gc.load(tmp_path / "m.onnx"), loss="mse:y,t", optimizer="sgd", lr=0.1)
    of_w, of_b = (of_w, of_b) if fresh else (["w"] * 3, ["net.bias"] * 2)
    w, b = np.array([[1.0, 2], [3, 5]]), np.zeros(2) if fresh else np.array([0.5, 1])
    c = X @ w + b
    e = c @ w + b
    of_y = 2 * (e @ w - T) / T.size
    of_e = of_y @ w.T
    of_c = of_e @ w.T
    expected: dict[str, Array] = {}
    for name, gradient in zip(
        [*of_w, *of_b], [X.T @ of_c, c.T @ of_e, e.T @ of_y, of_c.sum(0), of_e.sum(0)], strict=True
    ):
        expected[name] = expected.get(name, 0) + gradient
    changes = moved(step)
    assert {*changes} == {*expected}
    for name, change in changes.items():
        np.testing.assert_allclose(change, -0.1 * expected[name], rtol=1e-9, err_msg=name)
