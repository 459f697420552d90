"""Training graphs made by onnxruntime-training run here, and the gradients in them are those of this package's rules.

Each file comes with a run of it by that runtime: what it was fed, the loss, and the gradients of all parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import gradcheck_cli as gc
from gradcheck_cli.errors import ModelError
from tests.ops.comparison import assert_matches, scale

HERE = Path(__file__).parent / "files" / "training"
NAMES = sorted(path.stem for path in HERE.glob("*.npz"))
DRAWN = ("d", "dmask")  # what Dropout keeps is drawn at random by each runtime for itself
CONSTANTS = 1e-7  # numbers such as 2 / sqrt(pi) stand in these graphs as float32


def recorded(name: str) -> dict[str, np.ndarray[Any, Any]]:
    """Tensors of a run by name."""
    with np.load(HERE / f"{name}.npz") as run:
        return dict(run)


def inputs(model: gc.Model, run: dict[str, Any]) -> dict[str, Any]:
    """Values that the model is fed."""
    return {name: value for name, value in run.items() if name in model.graph.inputs}


def parameters(run: dict[str, Any]) -> list[str]:
    """Names of what is trained."""
    return [name for name in run if f"{name}_grad" in run]


@pytest.mark.parametrize("name", NAMES)
def test_the_gradients_in_the_graph_are_those_of_the_rules(name: str) -> None:
    model, run = gc.load(HERE / f"{name}.onnx"), recorded(name)
    names = parameters(run)
    ours = gc.gradients(model[model.graph.outputs[0]], [model[p] for p in names])
    values = gc.run([*ours, *(model[f"{p}_grad"] for p in names)], inputs(model, run))
    assert_all_near(names, values[len(names) :], values[: len(names)], relative=CONSTANTS)


@pytest.mark.parametrize("name", NAMES)
def test_the_graph_computes_what_onnxruntime_training_computed(name: str) -> None:
    model, run = gc.load(HERE / f"{name}.onnx"), recorded(name)
    feeds = inputs(model, run) | {n: run[n] for n in DRAWN if n in run}
    wanted = [model.graph.outputs[0], *(f"{p}_grad" for p in parameters(run))]
    values = gc.run([model[t] for t in wanted], feeds, dtype="model")
    assert_all_near(wanted, values, [run[t] for t in wanted], relative=1e-6)


def assert_all_near(names: Sequence[str], values: Sequence[Any], expected: Sequence[Any], *, relative: float) -> None:
    """Equal up to rounding, relative to the largest of all: what goes through a batch's mean adds up to 0."""
    largest = max(map(scale, expected))
    for name, value, right in zip(names, values, expected, strict=True):
        assert_matches(value, right, rtol=0, atol=relative * largest, label=name)


@pytest.mark.parametrize("name", NAMES)
def test_the_gradients_in_the_graph_can_be_differentiated_and_checked(name: str) -> None:
    model, run = gc.load(HERE / f"{name}.onnx"), recorded(name)
    names = parameters(run)
    report = gc.check(model, names[0], f"{names[-1]}_grad", extra_feed_dict=inputs(model, run))
    assert report.exit_code == 0


@pytest.mark.parametrize("name", NAMES)
def test_a_gradient_is_accumulated(name: str) -> None:
    model, run = gc.load(HERE / f"{name}.onnx"), recorded(name)
    for flag in gc.run([model[y] for y in model.graph.outputs[1:]], inputs(model, run)):
        np.testing.assert_array_equal(flag, [True])


def test_the_graph_of_an_optimizer_runs() -> None:
    model = gc.load(HERE / "adamw.onnx")
    tensors = [np.ones((2, 3), np.float32), np.ones(4, np.float32)]
    lists = dict.fromkeys(model.graph.inputs[2:], tensors)
    scalars = dict(zip(model.graph.inputs, ([0.1], [1]), strict=False))
    (done,) = gc.run(model[model.graph.outputs[0]], {**scalars, **lists})
    np.testing.assert_array_equal(done, [True])


def test_without_declared_types_the_derivative_of_a_pool_says_what_is_missing(tmp_path: Path) -> None:
    proto = onnx.load(HERE / "cnn.onnx")
    del proto.graph.value_info[:]
    onnx.save(proto, tmp_path / "model.onnx")
    model = gc.load(tmp_path / "model.onnx")
    with pytest.raises(ModelError, match=r"MaxPoolGrad.*needs the shape of its output"):
        gc.run(model["w1_grad"], inputs(model, recorded("cnn")))
