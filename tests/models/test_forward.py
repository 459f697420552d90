"""Whole models read from files: what they compute agrees with onnxruntime, or with outputs that came with them."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx.backend.test
import pytest

from gradcheck_cli.formats.onnx_read import read, read_tensor, read_test_data
from gradcheck_cli.ops import OPS
from gradcheck_cli.trace import trace
from tests.models.model_table import FEEDS, SHAPES, SKIPS, TOLERANCES
from tests.ops.comparison import assert_matches, assert_near

HERE = Path(__file__).parent / "files"
SHARED = Path(__file__).parents[2].parent / "shared" / "models"
ONNX_DATA = Path(onnx.backend.test.__file__).parent / "data"
KINDS = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(double)": np.float64}
INTEGERS = {"tensor(int64)": np.int64, "tensor(int32)": np.int32, "tensor(bool)": np.bool_}


@cache
def model_files() -> dict[str, Path]:
    """Models by name: those of this repository, then others where a collection of them lies beside it."""
    return {path.stem: path for path in [*SHARED.rglob("*.onnx"), *HERE.glob("*.onnx")]}


@pytest.mark.parametrize("name", sorted({*model_files(), "a collection of models beside this repository"}))
def test_a_model_computes_what_onnxruntime_computes(name: str) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    if reason := matching(name, SKIPS):
        pytest.skip(reason)
    if not SHARED.exists() and name not in model_files():
        pytest.skip("it is not there")
    if name not in model_files():
        return
    session = open_session(onnxruntime, model_files()[name])
    feeds = {x.name: value(name, x.name, x.type, x.shape) for x in session.get_inputs()}
    expected = dict(zip([y.name for y in session.get_outputs()], session.run(None, feeds), strict=True))
    tape = trace(read(model_files()[name]).graph, feeds, ops=OPS, dtype="model")
    for output, theirs in expected.items():
        ours = tape.named[output].value
        assert_near(ours, theirs, relative=matching(name, TOLERANCES) or 1e-4, label=output)


def test_no_skip_is_stale() -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    skipped = [name for name in model_files() if matching(name, SKIPS)]
    assert not [name for name in skipped if runs(onnxruntime, name)]


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted((ONNX_DATA / "light").glob("*.onnx")), ids=lambda p: p.stem)
def test_a_real_architecture_gives_the_outputs_that_came_with_it(path: Path) -> None:
    graph = read(path).graph
    (name,), (output,) = graph.free_inputs, graph.outputs
    shape = graph.types[name].shape or ()
    ramp = np.arange(np.prod(shape)).reshape(shape) / np.prod(shape)
    tape = trace(graph, {name: ramp.astype(np.float32)}, ops=OPS, dtype="model")
    expected = read_tensor(path.with_name(f"{path.stem}_output_0.pb"))
    assert_matches(tape.named[output].value, expected, rtol=2e-3, atol=1e-7)


@pytest.mark.parametrize(
    "folder", sorted(p.parent for p in ONNX_DATA.glob("*/*/model.onnx")), ids=lambda p: p.name
)
def test_a_model_of_onnx_gives_the_outputs_that_came_with_it(folder: Path) -> None:
    if reason := matching(folder.name, SKIPS):
        pytest.skip(reason)
    graph = read(folder / "model.onnx").graph
    for data in sorted(folder.glob("test_data_set_*")):
        arrays = read_test_data(data)
        feeds = {graph.inputs[i]: array for i, array in arrays["inputs"].items()}
        tape = trace(graph, feeds, ops=OPS, dtype="model")
        for i, expected in arrays["outputs"].items():
            assert_matches(tape.named[graph.outputs[i]].value, expected, rtol=1e-3, atol=1e-6)


def open_session(onnxruntime: Any, path: Path) -> Any:
    """A model in onnxruntime, with its nodes as they stand in the file."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(path.read_bytes(), options, providers=["CPUExecutionProvider"])


def value(model: str, name: str, kind: str, declared: Sequence[Any]) -> np.ndarray[Any, Any]:
    """What a model is fed: floats between -1 and 1, integers 0 and 1, unless its table says otherwise."""
    if (model, name) in FEEDS:
        return FEEDS[model, name]
    unknown = SHAPES.get((model, name))
    shape = unknown or tuple(d if isinstance(d, int) and d > 0 else 2 for d in declared)
    rng = np.random.default_rng(0)
    if kind in KINDS:
        return rng.uniform(-1, 1, shape).astype(KINDS[kind])
    return rng.integers(0, 2, shape).astype(INTEGERS[kind])


def matching(name: str, table: dict[str, Any]) -> Any:
    """What a table says of the first pattern that matches a name."""
    return next((entry for pattern, entry in table.items() if fnmatch(name, pattern)), None)


def runs(onnxruntime: Any, name: str) -> bool:
    """A model can be run to its end."""
    try:
        session = open_session(onnxruntime, model_files()[name])
        feeds = {x.name: value(name, x.name, x.type, x.shape) for x in session.get_inputs()}
        trace(read(model_files()[name]).graph, feeds, ops=OPS, dtype="model")
    except Exception:
        return False
    return True
