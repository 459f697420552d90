"""Whole models read from files compute what onnxruntime computes, or the outputs that came with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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


def onnx_folders() -> list[Path]:
    """The folders of ONNX's test data that hold a model with inputs and outputs."""
    return sorted(path.parent for path in ONNX_DATA.glob("*/*/model.onnx"))


@pytest.mark.parametrize("name", [*sorted(model_files()), *([] if SHARED.exists() else ["others"])])
def test_a_model_computes_what_onnxruntime_computes(name: str) -> None:
    pytest.importorskip("onnxruntime")
    if reason := matching(name, SKIPS):
        pytest.skip(reason)
    if name not in model_files():
        pytest.skip("no collection of models lies beside this repository")
    compare_with_onnxruntime(name)


def test_no_skip_is_stale() -> None:
    pytest.importorskip("onnxruntime")
    skipped = [name for name in model_files() if matching(name, SKIPS)]
    print(f"\n{len(model_files())} models, {len(skipped)} skipped")
    assert not [name for name in skipped if passes(compare_with_onnxruntime, name)]
    assert not [f.name for f in onnx_folders() if matching(f.name, SKIPS) and passes(compare_with_data, f)]


def test_every_skip_names_a_model_of_onnx_or_of_the_collection() -> None:
    if not SHARED.exists():
        pytest.skip("the collection is not there")
    names = [*model_files(), *(folder.name for folder in onnx_folders())]
    assert not [p for p in (*SKIPS, *TOLERANCES) if not any(fnmatch(name, p) for name in names)]


@pytest.mark.parametrize("path", sorted((ONNX_DATA / "light").glob("*.onnx")), ids=lambda p: p.stem)
def test_a_real_architecture_gives_the_outputs_that_came_with_it(path: Path) -> None:
    graph = read(path).graph
    (name,), (output,) = graph.free_inputs, graph.outputs
    shape = graph.types[name].shape or ()
    ramp = np.arange(np.prod(shape)).reshape(shape) / np.prod(shape)
    tape = trace(graph, {name: ramp.astype(np.float32)}, ops=OPS, dtype="model")
    expected = read_tensor(path.with_name(f"{path.stem}_output_0.pb"))
    assert_matches(tape.named[output].value, expected, rtol=2e-3, atol=1e-7)


@pytest.mark.parametrize("folder", onnx_folders(), ids=lambda p: p.name)
def test_a_model_of_onnx_gives_the_outputs_that_came_with_it(folder: Path) -> None:
    if reason := matching(folder.name, SKIPS):
        pytest.skip(reason)
    compare_with_data(folder)


def compare_with_data(folder: Path) -> None:
    """The model of a folder gives the outputs that lie there, for every set of inputs."""
    graph = read(folder / "model.onnx").graph
    for data in sorted(folder.glob("test_data_set_*")):
        arrays = read_test_data(data)
        feeds = {graph.inputs[i]: array for i, array in arrays["inputs"].items()}
        tape = trace(graph, feeds, ops=OPS, dtype="model")
        for i, expected in arrays["outputs"].items():
            assert_matches(tape.named[graph.outputs[i]].value, expected, rtol=1e-3, atol=1e-6)


def compare_with_onnxruntime(name: str) -> None:
    """All outputs of a model agree with those of onnxruntime at the same inputs."""
    session = open_session(model_files()[name])
    feeds = {x.name: value(name, x.name, x.type, x.shape) for x in session.get_inputs()}
    outputs = [y.name for y in session.get_outputs() if y.type.startswith("tensor")]
    tape = trace(read(model_files()[name]).graph, feeds, ops=OPS, dtype="model")
    relative = matching(name, TOLERANCES) or 1e-4
    for output, expected in zip(outputs, session.run(outputs, feeds), strict=True):
        assert_near(tape.named[output].value, expected, relative=relative, label=output)


def open_session(path: Path) -> Any:
    """A model in onnxruntime, with its nodes as they stand in the file."""
    import onnxruntime

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


def passes(comparison: Callable[[Any], None], model: Any) -> bool:
    """A comparison would pass if it were not skipped."""
    try:
        comparison(model)
    except Exception:
        return False
    return True
