"""Whole models read from files compute what onnxruntime computes, or the outputs that came with them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.backend.test
import pytest

from gradcheck_cli.autodiff.trace import result, trace
from gradcheck_cli.formats.onnx.read import read, read_tensor, read_test_data
from gradcheck_cli.graph.containers import elements
from gradcheck_cli.ops import OPS
from tests.models.model_table import FEEDS, INNER, SHAPES, TOLERANCES
from tests.ops.comparison import assert_matches, assert_near, scale

HERE = Path(__file__).parent / "files"
SHARED = Path(__file__).parents[2].parent / "shared" / "models"
ONNX_DATA = Path(onnx.backend.test.__file__).parent / "data"
KINDS = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(double)": np.float64}
INTEGERS = {"tensor(int64)": np.int64, "tensor(int32)": np.int32, "tensor(bool)": np.bool_}


@cache
def model_files() -> dict[str, Path]:
    """Models by name: those of this repository, then others where a collection of them lies beside it."""
    return {path.stem: path for path in [*SHARED.rglob("*.onnx"), *HERE.glob("*.onnx")]}


def onnx_folders() -> list[Path]:
    """The folders of ONNX's test data that hold a model with inputs and outputs."""
    return sorted(path.parent for path in ONNX_DATA.glob("*/*/model.onnx"))


@pytest.mark.parametrize("name", sorted(model_files()))
def test_a_model_computes_what_onnxruntime_computes(name: str) -> None:
    pytest.importorskip("onnxruntime")
    session = open_session(model_files()[name], INNER.get(name, ()))
    feeds = {x.name: value(name, x.name, x.type, x.shape) for x in session.get_inputs()}
    outputs = [y.name for y in session.get_outputs() if y.name in INNER.get(name, (y.name,))]
    tape = trace(read(model_files()[name]).graph, feeds, ops=OPS, dtype="model", targets=outputs)
    relative = TOLERANCES.get(name, 1e-4)
    for output, expected in zip(outputs, session.run(outputs, feeds), strict=True):
        assert_near(tape.named[output].value, expected, relative=relative, label=output)
        large = np.abs(expected) > 1e-3 * scale(expected)
        assert_matches(tape.named[output].value[large], expected[large], rtol=10 * relative, atol=0, label=output)


def test_the_tables_name_models_of_the_collection() -> None:
    if not SHARED.exists():
        pytest.skip("no collection of models lies beside this repository")
    named = {*TOLERANCES, *INNER, *(model for model, _ in (*SHAPES, *FEEDS))}
    assert named <= {*model_files()}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("path", sorted((ONNX_DATA / "light").glob("*.onnx")), ids=lambda p: p.stem)
def test_a_real_architecture_gives_the_outputs_that_came_with_it(path: Path) -> None:
    graph = read(path).graph
    (name,), (output,) = graph.free_inputs, graph.outputs
    shape = graph.types[name].shape or ()
    ramp = np.arange(np.prod(shape)).reshape(shape) / np.prod(shape)
    tape = trace(graph, {name: ramp.astype(np.float32)}, ops=OPS, dtype="model")
    expected = read_tensor(path.with_name(f"{path.stem}_output_0.pb"))
    assert_matches(tape.named[output].value, expected, rtol=1e-5, atol=0)


@pytest.mark.parametrize("folder", onnx_folders(), ids=lambda p: p.name)
def test_a_model_of_onnx_gives_the_outputs_that_came_with_it(folder: Path) -> None:
    graph = read(folder / "model.onnx").graph
    for data in sorted(folder.glob("test_data_set_*")):
        values = read_test_data(data, graph)
        feeds = {graph.inputs[i]: value for i, value in values["inputs"].items()}
        tape = trace(graph, feeds, ops=OPS, dtype="model")
        for i, value in values["outputs"].items():
            expected, actual = elements("", value), elements("", result(tape, graph.outputs[i]))
            assert expected.keys() == actual.keys()
            for name in expected:
                assert_matches(actual[name], expected[name], rtol=1e-4, atol=1e-6, label=name)


def open_session(path: Path, inner: Sequence[str]) -> Any:
    """A model in onnxruntime, with its nodes as they stand in the file; tensors inside it are given out too."""
    import onnxruntime

    model = onnx.load(path)
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in inner)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def value(model: str, name: str, kind: str, declared: Sequence[Any]) -> np.ndarray[Any, Any]:
    """A value to feed a model: floats between -1 and 1, integers 0 and 1, unless its table says otherwise."""
    if (model, name) in FEEDS:
        return FEEDS[model, name]
    unknown = SHAPES.get((model, name))
    shape = unknown or tuple(d if isinstance(d, int) and d > 0 else 2 for d in declared)
    rng = np.random.default_rng(0)
    if kind in KINDS:
        return rng.uniform(-1, 1, shape).astype(KINDS[kind])
    return rng.integers(0, 2, shape).astype(INTEGERS[kind])
