"""`save` writes valid ONNX from which onnxruntime computes the same as `run`, or it refuses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from msgspec import structs

import gradcheck_cli as gc
from gradcheck_cli.errors import UnsupportedError
from gradcheck_cli.formats import read
from gradcheck_cli.formats.source import Source
from gradcheck_cli.graph import Graph, TensorType, is_inexact
from tests.ops.case import Case
from tests.ops.cases import CASES
from tests.ops.comparison import assert_near
from tests.rounding import FUNCTION, assert_rounded

onnxruntime = pytest.importorskip("onnxruntime")

Make = Callable[..., gc.Model]
ROOT = Path(__file__).parents[2]
ONE_ROUNDING = {"float16": 1e-3, "float32": 6e-8, "float64": 1.2e-16}
ROUNDINGS = 400  # of a chain of sums in another order, relative to the largest entry
NO_KERNEL = {  # operators that onnxruntime does not have for a dtype
    "float64": {
        "AveragePool",
        "BiasSoftmax",
        "Conv",
        "ConvTranspose",
        "Cosh",
        "Det",
        "Erf",
        "GlobalLpPool",
        "LpPool",
        "Mish",
        "OneHot",
        "Sinh",
        "Softplus",
        "Tan",
    },
    "float16": {"ScatterElements"},
}
TRAINING = {"BiasSoftmaxDropout", "ConcatTraining", "SoftmaxCrossEntropy"}  # com.microsoft's, of its training build
NO_INTEGERS = {"MaxUnpool"}  # it has it for floats only
SINGLE_INSIDE = {"DFT": 1e-6}  # its factors of unity are float32


def gradients_of(model: gc.Model, feeds: Mapping[str, Any]) -> list[gc.Tensor]:
    """Gradients of every float output by every float input, or by every parameter where there is no such input."""
    graph, rng = model.graph, np.random.default_rng(0)
    floats = [n for n in graph.free_inputs if is_inexact(model[n].dtype)]
    xs = floats or [n for n, value in graph.constants.items() if is_inexact(value.dtype)]
    ys = [n for n in graph.outputs if is_inexact(model[n].dtype)]
    weights = [rng.normal(size=value.shape) for value in gc.run([model[y] for y in ys], feeds)] if ys else []
    pairs = zip(ys, weights, strict=True)
    found = [g for y, w in pairs for g in gc.gradients(model[y], [model[x] for x in xs], grad_ys=w) if g is not None]
    return list({g.name: g for g in found}.values())


def compare(model: gc.Model, outputs: list[gc.Tensor], path: Path, feeds: Mapping[str, Any]) -> None:
    """The saved file is valid and, where onnxruntime has the kernels, gives the values of `run`."""
    gc.save(model, path, outputs)
    onnx.checker.check_model(path, full_check=True)
    used, dtypes = {node.op_type for node in onnx.load(path).graph.node}, {t.dtype.name for t in outputs}
    dtypes.update(value.dtype.name for value in model.graph.constants.values())
    lacking = NO_INTEGERS.union(TRAINING, *(NO_KERNEL.get(dtype, set()) for dtype in dtypes))
    if used & lacking:
        return
    session = open_session(path)
    given = {i.name: feeds[i.name] for i in session.get_inputs()}
    found, wanted = session.run(None, given), gc.run(outputs, given, dtype="model")
    for tensor, ours, theirs in zip(outputs, wanted, found, strict=True):
        rounding = max([ROUNDINGS * ONE_ROUNDING[ours.dtype.name], *(SINGLE_INSIDE.get(op, 0) for op in used)])
        assert_near(theirs, ours, relative=rounding, label=tensor.name)


def open_session(path: Path) -> Any:
    """The file in onnxruntime, with its nodes as they stand there."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


# Every operator, in float64; tests/ops has every case in float32


# a branch or a shape of these follows from values, which the refusals below are about; the last reads no float there
VARYING = {"Compress", "If", "Loop", "OneHot", "Range", "RoiAlign", "SVMClassifier", "Unique"}


def first_cases() -> Iterator[Case]:
    """The first case of every operator by which something can be differentiated."""
    seen = {(domain, op) for domain, op in gc.OPS if domain == "gradcheck" or op in VARYING}
    for case in CASES:
        single = len(case.graph.nodes) == 1 and all(x is None or x.dtype.kind != "c" for x in case.inputs)
        if (
            (case.domain, case.op) not in seen
            and case.floats()
            and single
            and gc.OPS[case.domain, case.op].differentiable
        ):
            seen.add((case.domain, case.op))
            yield case


def model_of(case: Case) -> gc.Model:
    """A model of one node; its inputs are tensors of floats: not every drawn integer, ratio or shape makes it run."""
    (node,) = case.graph.nodes
    inputs = tuple(n for n in case.floats() if case.feeds[n].ndim) or tuple(case.floats())
    constants = {n: value for n, value in case.feeds.items() if n not in inputs}
    types = {n: TensorType(case.feeds[n].dtype, case.feeds[n].shape) for n in inputs}
    attrs = {
        k: float(np.float32(v)) if isinstance(v, float) else v for k, v in node.attrs.items()
    }  # as files hold them
    graph = Graph(inputs, case.outputs, (replace(node, attrs=attrs),), constants, types)
    return gc.Model(Source(graph, case.id, opset={"": 21}), gc.OPS)


@pytest.mark.one_in(6)
@pytest.mark.parametrize("case", list(first_cases()), ids=lambda c: c.id)
def test_gradients_of_every_operator_are_saved_in_float64(case: Case, tmp_path: Path):
    model = model_of(case)
    if found := gradients_of(model, case.feeds):
        if case.domain and "Dropout" in case.op and "seed" in case.id:
            pytest.skip("the parts of a node that the file takes apart draw by a generator of their own")
        compare(model, found, tmp_path / "g.onnx", case.feeds)


# Whole models


def models() -> Iterator[Any]:
    """Small models of other tools, the examples, and every graph of the specs."""
    for path in sorted([*(ROOT / "tests/models/files").glob("*.onnx"), *(ROOT / "examples").glob("*.onnx")]):
        yield pytest.param(path, None, id=path.stem)
    for path in sorted([*(ROOT / "examples").glob("*.gradcheck.yaml"), *(ROOT / "specs").glob("*.yaml")]):
        for name in read(path).sources:
            yield pytest.param(path, name, id=f"{path.stem}:{name}")


REFUSED = {  # graph of a spec -> what cannot be in a file
    "parts": "works on complex numbers, which ONNX operators do not",
    "spectrum": "works on complex numbers, which ONNX operators do not",
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("path", "name"), list(models()))
def test_gradients_of_whole_models_are_saved(path: Path, name: str | None, tmp_path: Path):
    model = gc.load(path, graph=name)
    model = gc.load(path, graph=name, dims=dict.fromkeys(model.free_dims, 2))
    inputs = list(model.graph.free_inputs)
    feeds = dict(zip(inputs, gc.run([model[n] for n in inputs], dtype="model"), strict=True)) if inputs else {}
    outputs = [*(model[n] for n in model.graph.outputs), *gradients_of(model, feeds)]
    if name in REFUSED:
        with pytest.raises(UnsupportedError, match=REFUSED[name]):
            gc.save(model, tmp_path / "g.onnx", outputs)
    else:
        compare(model, outputs, tmp_path / "g.onnx", feeds)


# What a file cannot hold for every value, and how to fix it


SWITCH = {"shape": [], "dtype": "bool"}


def branching(make: Make) -> gc.Model:
    """x w, or x x."""
    attrs = {"then_branch": "t () => (p) { p = Mul (x, w) }", "else_branch": "e () => (q) { q = Mul (x, x) }"}
    node = {"op": "If", "inputs": ["which"], "outputs": ["y"], "attrs": attrs}
    x = {"shape": [2], "dtype": "float64"}
    return make([node], {"x": x, "which": SWITCH, "w": x})


def test_a_branch_that_an_input_chooses_stays_a_branch_or_is_fixed(make: Make, tmp_path: Path):
    model = branching(make)
    [dx] = gc.gradients(model["y"], model["x"])
    x, w = np.array([1.0, 3.0]), np.array([5.0, 7.0])
    gc.save(model, tmp_path / "g.onnx", dx)
    session = open_session(tmp_path / "g.onnx")
    for which, inputs, wanted in ((True, ["w"], w), (False, ["x"], 2 * x)):
        feeds = {"x": x, "w": w, "which": np.array(which)}
        assert np.array_equal(session.run(None, {i.name: feeds[i.name] for i in session.get_inputs()})[0], wanted)
        gc.save(model, tmp_path / "fixed.onnx", dx, feeds={"which": which})
        fixed = open_session(tmp_path / "fixed.onnx")
        assert [i.name for i in fixed.get_inputs()] == inputs
        assert np.array_equal(fixed.run(None, {n: feeds[n] for n in inputs})[0], wanted)


@pytest.mark.parametrize(
    ("nodes", "shape", "integers"),
    [
        ("y = Trilu(x, k)", [2, 1], np.array(0)),
        ("y = Trilu(x, k)", [3, 4], np.array(0)),
        ("y = Trilu<upper=0>(x, k)", [2, 1], np.array(-1)),
        ("y = Expand(x, k)", [2, 1], np.array([1, 2])),
        ("y = Expand(x, k)", [2, 1, 1], np.array([1, 1, 5])),
        ("t = Sin(x)\nz = Expand(x, k)\ny = Add(z, t)", [2, 1], np.array([1, 2])),
    ],
)
def test_an_input_that_a_derivative_follows_from_is_named_where_the_file_has_lost_it(
    make: Make, nodes: str, shape: list[int], integers: Any
):
    inputs = {
        "x": {"shape": shape, "dtype": "float64"},
        "k": {"shape": list(integers.shape), "dtype": "int64"},
    }
    model = make(nodes, inputs)
    found = gc.gradients(model["y"], model["x"])
    path, x = Path(model.source.uri).with_suffix(".onnx"), np.ones(shape)
    with pytest.raises(UnsupportedError, match=r"Fix it: --feed k=VALUE, in Python"):
        gc.save(model, path, found)
    gc.save(model, path, found, feeds={"k": integers})
    session = open_session(path)
    [made] = session.run(None, {i.name: x for i in session.get_inputs()})
    np.testing.assert_allclose(made, gc.run(found, {"x": x, "k": integers})[0])


@pytest.mark.parametrize(
    ("nodes", "values"),
    [
        ("y = Reshape(x, s)", ([2, 3], [6, 1])),
        ("h = Exp(x)\ny = Reshape(h, s)", ([3, 2], [1, 6])),
        ("y = Compress<axis=0>(x, s)", ([True, False, True, True, False, True], [False] * 6)),
    ],
)
def test_a_shape_may_follow_from_values_and_may_be_fixed(make: Make, nodes: str, values: Any):
    first = np.asarray(values[0])
    inputs = {"x": {"shape": [6], "dtype": "float64"}, "s": {"shape": list(first.shape), "dtype": first.dtype.name}}
    model = make(nodes, inputs)
    found = gc.gradients(model["y"], model["x"])
    path, x = Path(model.source.uri).with_suffix(".onnx"), np.linspace(-1, 1, 6)
    for fixed in ({}, {"s": first}):
        gc.save(model, path, found, feeds=fixed)  # type: ignore[arg-type]
        session = open_session(path)
        for value in values[: 1 if fixed else 2]:
            feeds = {"x": x, "s": np.asarray(value)}
            y = session.run(None, {i.name: feeds[i.name] for i in session.get_inputs()})[0]
            assert_rounded(y, gc.run(found, feeds)[0], roundings=FUNCTION)  # type: ignore[arg-type]


def test_a_forward_model_whose_shapes_follow_from_values_is_saved_as_it_is(make: Make, tmp_path: Path):
    model = make("y = Reshape(x, s)", {"x": {"shape": [6], "dtype": "float64"}, "s": {"shape": [2], "dtype": "int64"}})
    gc.save(model, tmp_path / "y.onnx")
    onnx.checker.check_model(tmp_path / "y.onnx", full_check=True)
    for shape in ([2, 3], [6, 1]):
        feeds = {"x": np.arange(6.0), "s": np.array(shape)}
        assert open_session(tmp_path / "y.onnx").run(None, feeds)[0].shape == tuple(shape)


def test_fed_tensors_are_constants_of_the_file_inner_ones_too(make: Make, tmp_path: Path):
    f64 = {"shape": [2], "dtype": "float64"}
    model = make("h = Exp(x)\ny = Mul(h, v)", {"x": f64, "v": f64})
    [dv] = gc.gradients(model["y"], model["v"])
    gc.save(model, tmp_path / "g.onnx", ["y", dv.name], feeds={"h": [2.0, 3.0]})  # type: ignore[union-attr]
    session = open_session(tmp_path / "g.onnx")
    assert [i.name for i in session.get_inputs()] == ["v"]
    y, slope = session.run(None, {"v": np.array([5.0, 7.0])})
    assert (y.tolist(), slope.tolist()) == ([10.0, 21.0], [2.0, 3.0])


# Inputs, outputs and names of the file


def test_an_input_with_a_default_stays_one(make: Make, tmp_path: Path):
    model = make("y = Mul(x, w)", {"x": {"shape": [2], "dtype": "float64"}}, constants={"w": [3.0, 5.0]})
    graph = replace(model.graph, inputs=("x", "w"), constants={"w": np.array([3.0, 5.0])})
    model = gc.Model(structs.replace(model.source, graph=graph), gc.OPS)
    gc.save(model, tmp_path / "g.onnx", gc.gradients(model["y"], model["x"]))  # type: ignore[arg-type]
    session = open_session(tmp_path / "g.onnx")
    assert session.run(None, {})[0].tolist() == [3.0, 5.0]
    assert session.run(None, {"w": np.array([1.0, 2.0])})[0].tolist() == [1.0, 2.0]


def test_without_outputs_those_of_the_model_are_written(make: Make, tmp_path: Path):
    model = make("y = Neg(x)\nz = Exp(x)", {"x": [2]}, outputs=["z", "y"])
    gc.save(model, tmp_path / "m.onnx")
    assert [o.name for o in onnx.load(tmp_path / "m.onnx").graph.output] == ["z", "y"]


def test_an_output_may_be_an_input_or_a_constant(make: Make, tmp_path: Path):
    model = make("y = Mul(x, w)", {"x": [2]}, {"w": [3.0, 5.0]})
    gc.save(model, tmp_path / "m.onnx", ["y", "x", "w"])
    onnx.checker.check_model(tmp_path / "m.onnx", full_check=True)
    _, x, w = open_session(tmp_path / "m.onnx").run(None, {"x": np.float32([1, 2])})
    assert (x.tolist(), w.tolist()) == ([1.0, 2.0], [3.0, 5.0])


def test_a_name_that_another_run_gave_to_something_else_stays_that_of_its_output(make: Make, tmp_path: Path):
    """The handle is named in a run whose loop does not go round; the file holds one that does."""
    body = {
        "inputs": ["i", "on", "h"],
        "nodes": "next = Mul (h, h)\nstill = Identity (on)",
        "outputs": ["still", "next"],
    }
    node = {"op": "Loop", "inputs": ["times", "always", "x"], "outputs": ["y"], "attrs": {"body": body}}
    times = {"shape": [], "dtype": "int64", "range": [0, 0]}
    model = make([node], {"x": {"shape": [2], "dtype": "float64"}, "times": times}, constants={"always": True})
    [dx] = gc.gradients(model["y"], model["x"])
    gc.save(model, tmp_path / "g.onnx", dx, feeds={"times": 2})
    onnx.checker.check_model(tmp_path / "g.onnx", full_check=True)
    [found] = open_session(tmp_path / "g.onnx").run(None, {"x": np.array([2.0, 3.0])})
    assert found.tolist() == [32.0, 108.0]  # of x^4


def test_gradients_of_a_saved_gradient_stand_under_a_name_of_their_own(make: Make, tmp_path: Path):
    model = make("h = Mul(x, x)\ny = Mul(h, x)", {"x": {"shape": [1], "dtype": "float64"}})
    [dx] = gc.gradients(model["y"], model["x"])
    assert dx is not None
    gc.save(model, tmp_path / "g.onnx", dx)
    again = gc.load(tmp_path / "g.onnx")
    [second] = gc.gradients(again[dx.name], again["x"])
    assert second is not None
    assert second.name.startswith("gradients_1/")
    assert gc.run(second, {"x": [2.0]}) == [[12.0]]


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        (["y", "y"], "outputs: 'y' is given twice"),
        (["nothing"], "has no tensor 'nothing'"),
        ([], "outputs is an empty list"),
    ],
)
def test_outputs_that_cannot_be_are_refused(make: Make, tmp_path: Path, outputs: list[str], message: str):
    with pytest.raises(ValueError, match=message):
        gc.save(make("y = Neg(x)", {"x": [2]}), tmp_path / "m.onnx", outputs)


def test_save_wants_a_model_and_a_path_that_can_be_written(make: Make, tmp_path: Path):
    with pytest.raises(ValueError, match=r"model is 'm\.onnx' \(str\), not what load\(\) gives"):
        gc.save("m.onnx", tmp_path / "m.onnx")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="cannot be written"):
        gc.save(make("y = Neg(x)", {"x": [2]}), tmp_path / "nowhere" / "m.onnx")


def test_devices_of_forward_nodes_are_those_of_their_gradients(make: Make, tmp_path: Path):
    gc.save(make("h = Sin(x)\ny = Exp(h)", {"x": [2]}), tmp_path / "m.onnx")
    proto = onnx.load(tmp_path / "m.onnx")
    for stage, node in enumerate(proto.graph.node):
        node.device_configurations.add(configuration_id="pair", pipeline_stage=stage)
    proto.configuration.add(name="pair", num_devices=2)
    proto.ir_version = 11
    onnx.save(proto, tmp_path / "m.onnx")
    for colocate in (True, False):
        model = gc.load(tmp_path / "m.onnx")
        found = gc.gradients(model["y"], model["x"], colocate_gradients_with_ops=colocate)
        gc.save(model, tmp_path / "g.onnx", found)  # type: ignore[arg-type]
        nodes = {n.name: n.device_configurations for n in onnx.load(tmp_path / "g.onnx").graph.node}
        added = {
            name: [c.pipeline_stage for c in used] for name, used in nodes.items() if name.startswith("gradients/")
        }
        assert added
        assert all(stages == [name.startswith("gradients/y_grad")] * colocate for name, stages in added.items())
