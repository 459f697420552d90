"""Training information of ONNX models: steps as graphs, initializations, and bindings that must hold.

The models follow the comments on TrainingInfoProto in ONNX's own definition.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, helper, numpy_helper, parser

import gradcheck_cli as gc
from gradcheck_cli.cli.tasks import has_training
from gradcheck_cli.errors import ModelError
from gradcheck_cli.formats import read
from gradcheck_cli.formats.onnx.read import read_proto
from tests.rounding import assert_rounded

INFERENCE = """<ir_version: 8, opset_import: ["": 17, "ai.onnx.preview.training": 1]>
    inference (float[N,3] x) => (float[N,2] scores) { h = MatMul (x, W)  scores = Add (h, b) }"""
STEP = """algorithm (float[N,2] label, float R) => (float loss, float[3,2] W_new, float[2] b_new, int64 T_new) {
    e = Sub (scores, label)
    s = Mul (e, e)
    loss = ReduceMean <keepdims = 0> (s)
    dW, db = ai.onnx.preview.training.Gradient <xs = ["W", "b"], zs = ["x", "label"], y = "loss"> (W, b, x, label)
    rW = Mul (R, dW)
    W_new = Sub (W, rW)
    rb = Mul (R, db)
    b_new = Sub (b, rb)
    T_new = Add (T, one)
}"""
START = """initialization () => (float[3,2] W0, int64 T0) {
    W0 = RandomUniform <shape = [3,2], low = 2.0, high = 3.0> ()
    T0 = Constant <value_int = 0> ()
}"""
UPDATES = {"W": "W_new", "b": "b_new", "T": "T_new"}
STARTS = {"W": "W0", "T": "T0"}
HELD = {"W": np.float32([[1, -2], [0.5, 1], [3, 0.25]]), "b": np.float32([0.5, -1])}
STATE = {"T": np.int64(0), "one": np.int64(1)}


def trained(
    step: str = STEP,
    updates: Mapping[str, str] = UPDATES,
    start: str = START,
    starts: Mapping[str, str] = STARTS,
    times: int = 1,
) -> ModelProto:
    """A linear model with its training algorithm, which is there several times if asked for."""
    model = parser.parse_model(INFERENCE)
    model.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in HELD.items())
    algorithm = parser.parse_graph(step)
    algorithm.initializer.extend(numpy_helper.from_array(value, name) for name, value in STATE.items())
    info = helper.make_training_info(algorithm, [*updates.items()], parser.parse_graph(start), [*starts.items()])
    model.training_info.extend([info] * times)
    return model


@pytest.fixture
def path(tmp_path: Path) -> Path:
    onnx.save(trained(), tmp_path / "trained.onnx")
    return tmp_path / "trained.onnx"


# What is read


def test_a_step_is_the_model_with_the_algorithm_behind_it() -> None:
    source = read_proto(trained())
    step = source.at_step("training_info")
    assert source.graph.outputs == ("scores",)
    assert step.graph.inputs == ("x", "label", "R")
    assert step.graph.outputs == ("scores", "loss", "W_new", "b_new", "T_new")
    assert [n.op for n in step.graph.nodes[:3]] == ["MatMul", "Add", "Sub"]
    assert (step.updates, step.step, step.nodes) == (UPDATES, "training_info", 11)


def test_weights_are_in_memory_once() -> None:
    source = read_proto(trained())
    assert source.at_step("training_info").graph.constants["W"] is source.graph.constants["W"]


def test_the_step_computes_what_the_standard_says_of_it(path: Path) -> None:
    """W - R dL/dW, by hand."""
    step, rng = gc.load(path, graph="training_info"), np.random.default_rng(0)
    x, label = rng.normal(size=(4, 3)), rng.normal(size=(4, 2))
    new, count = gc.run([step["W_new"], step["T_new"]], {"x": x, "label": label, "R": 0.25})
    gradient = x.T @ (x @ HELD["W"] + HELD["b"] - label) * 2 / label.size
    size = np.abs(x.T) @ (np.abs(x) @ np.abs(HELD["W"]) + np.abs(HELD["b"]) + np.abs(label)) + np.abs(HELD["W"])
    assert_rounded(new, HELD["W"] - 0.25 * gradient, roundings=16, of=size)
    assert count == 1


def test_what_is_loaded_without_a_name_is_the_model(path: Path) -> None:
    assert gc.load(path).graph.outputs == ("scores",)
    assert [*read(path).sources] == ["trained.onnx", "training_info"]


@pytest.mark.parametrize("x, y", [("W", "loss"), ("W", "W_new"), ("R", "b_new"), ("label", "dW"), ("x", "scores")])
def test_gradients_and_updates_are_differentiated_like_anything_else(path: Path, x: str, y: str) -> None:
    [record] = gc.check(gc.load(path, graph="training_info"), x, y, grad="none").checks
    assert (record.status, record.entries["checked"] > 0) == ("pass", True)


def test_a_wrong_rule_shows_in_what_the_algorithm_differentiates(path: Path) -> None:
    from tests.checking.small import scaled, with_rule

    step = gc.load(path, graph="training_info")
    found = gc.check(step, ["W", "b"], "loss", ops=with_rule("Mul", scaled("Mul", 1.001)), grad="none").checks
    assert {record.status for record in found} == {"fail"}


def test_an_initialization_runs_for_the_model_and_for_a_step(path: Path) -> None:
    for graph in (None, "training_info"):
        loaded = gc.load(path, graph=graph)
        [slopes] = gc.check(loaded, "x", "scores", init_targets="training_info").checks
        assert slopes.status == "pass"
        assert 2 <= slopes.gradient["max"] <= 3


def test_an_empty_algorithm_is_no_step() -> None:
    model = parser.parse_model(INFERENCE)
    model.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in HELD.items())
    model.training_info.add()
    source = read_proto(model)
    assert (source.steps, source.initializations) == ({}, {})


def test_steps_of_one_iteration_are_numbered_in_their_order() -> None:
    model = trained(updates={"W": "W_new"})
    model.training_info.append(trained(updates={"b": "b_new"}, start="i () => () { }", starts={}).training_info[0])
    source = read_proto(model)
    assert {name: step.updates for name, step in source.steps.items()} == {
        "training_info": {"W": "W_new"}, "training_info_1": {"b": "b_new"},
    }  # fmt: skip


def test_an_algorithm_may_have_inputs_of_the_model_again() -> None:
    step = STEP.replace("(float[N,2] label, float R)", "(float[N,3] x, float[N,2] label, float R)")
    assert read_proto(trained(step)).at_step("training_info").graph.inputs == ("x", "label", "R")


# Whether a file has any, without reading it


def test_training_information_is_found_without_reading_a_file(path: Path, tmp_path: Path) -> None:
    assert has_training(str(path))
    onnx.save(parser.parse_model(INFERENCE), tmp_path / "plain.onnx")
    assert not has_training(str(tmp_path / "plain.onnx"))
    assert not has_training(str(tmp_path / "absent.onnx"))


@pytest.mark.parametrize("data", [b"", b"\0" * 100, b"version https://git-lfs", b"\xa2\1\xff\xff\xff\xff\x0f", b"\x08"])
def test_a_file_that_is_no_message_has_none(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "odd.onnx").write_bytes(data)
    assert not has_training(str(tmp_path / "odd.onnx"))


def test_what_is_no_file_keeps_nobody_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.onnx")
    for path in (tmp_path / "pipe.onnx", tmp_path, "/dev/zero", "nul\0byte.onnx"):
        assert not has_training(str(path))


def test_any_beginning_of_a_file_is_looked_at_without_harm(path: Path) -> None:
    from gradcheck_cli.formats.onnx.file import fields_of

    data = path.read_bytes()
    assert all(fields_of(BytesIO(data[:end])) <= fields_of(BytesIO(data)) for end in range(0, len(data), 7))  # type: ignore[arg-type]


# What must hold


WRONG = {
    "an update of what is no initializer":
        (trained(updates={"V": "W_new"}), "training_info: update_binding assigns 'V', which is no initializer"),
    "an update of an input": (trained(updates={"x": "W_new"}), "assigns 'x', which is no initializer"),
    "an update by what is no output":
        (trained(updates={"W": "W_nw"}), "gives 'W' the value of 'W_nw', which is no output. Did you mean 'W_new'?"),
    "an update by what is inside": (trained(updates={"W": "rW"}), "the value of 'rW', which is no output"),
    "an update of another shape": (trained(updates={"W": "b_new"}), r"'W' \[3,2\] float32 the value of 'b_new' \[2\]"),
    "an update of another kind": (trained(updates={"T": "loss"}), r"gives 'T' \[\] int64 the value of 'loss' \[\] float32"),
    "two steps that update the same": (trained(times=2), "training_info_1: update_binding assigns 'W', which training"),
    "an initial value of nothing": (trained(starts={"V": "W0"}), "initialization_binding assigns 'V', which is no init"),
    "an initial value that nothing computes": (trained(starts={"W": "W1"}), "the value of 'W1', which is no output"),
    "an initialization with an input":
        (trained(start="i (float[3,2] W0, int64 T0) => (W0, T0) { }"), "its initialization has an input, 'W0'"),
    "a step that needs what nothing computes":
        (trained(STEP.replace("label)\n", "labels)\n", 1)), "training_info: node 2 Sub 'e' needs 'labels'"),
    "a tensor that is there already":
        (trained(STEP.replace("e = Sub", "h = Sub").replace("(e, e)", "(h, h)")), "'h' is defined a second time"),
    "a gradient of nothing": (trained(STEP.replace('y = "loss"', 'y = "lost"')), "differentiates 'lost'"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_does_not_hold_is_an_error_that_says_where(name: str) -> None:
    model, said = WRONG[name]
    with pytest.raises(ModelError, match=said):
        read_proto(model)


def test_an_initializer_is_assigned_once_in_a_binding() -> None:
    model = trained()
    model.training_info[0].update_binding.add(key="W", value="b_new")
    with pytest.raises(ModelError, match="assigns 'W' twice"):
        read_proto(model)


def test_an_initial_value_of_another_shape_is_an_error_when_it_is_made(tmp_path: Path) -> None:
    onnx.save(trained(start=START.replace("[3,2]", "[2,2]")), tmp_path / "m.onnx")
    with pytest.raises(ModelError, match=r"training_info gives 'W' \[3,2\] float32 an initial value \[2,2\] float32"):
        gc.check(gc.load(tmp_path / "m.onnx"), init_targets="training_info")
