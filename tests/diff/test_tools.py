"""Models beside copies that onnxruntime's optimizer, or others, made of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from gradcheck_cli.checks.diff.two_models import compare
from gradcheck_cli.formats.onnx.read import read
from gradcheck_cli.settings import Settings

FILES = Path(__file__).parents[1] / "models" / "files"
MADE = Path(__file__).parent / "files"
MODELS = sorted(FILES.glob("*.onnx"))


def outcomes(a: Path, b: Path, **more: bool) -> dict[str, str]:
    """Status of each output and derivative, at two points."""
    found = compare(read(a), read(b), Settings(points=2, jobs=2, **more), {}, name=b.name)
    return {f"{c.y}/{c.x}" if c.x else c.y: f"{c.status} {c.code}".strip() for c in found}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("level", ("ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED"))
@pytest.mark.parametrize("model", MODELS, ids=lambda p: p.stem)
def test_a_model_that_onnxruntime_optimized_is_the_same(model: Path, level: str, tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    options = runtime.SessionOptions()
    options.graph_optimization_level = getattr(runtime.GraphOptimizationLevel, level)
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    options.log_severity_level = 4
    runtime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    found = outcomes(model, tmp_path / "optimized.onnx", params=True)
    assert found
    assert {key: each for key, each in found.items() if each != "pass"} == {}


@pytest.mark.parametrize("tool", ("slim", "sim", "fp16"))
def test_a_model_that_another_tool_wrote_is_the_same(tool: str) -> None:
    found = outcomes(FILES / "own_unet_ts.onnx", MADE / f"own_unet_ts.{tool}.onnx", params=True)
    assert len(found) > 2
    assert set(found.values()) == {"pass"}


def test_a_model_that_a_tool_quantized_has_the_same_outputs_and_straight_through_the_same_gradients() -> None:
    files = FILES / "own_gnn_ts.onnx", MADE / "own_gnn_ts.dyn.onnx"
    plain = outcomes(*files)
    assert [each for key, each in plain.items() if "/" not in key] == ["pass"]
    assert [each for key, each in plain.items() if "/" in key] == ["severed GC107"]
    assert set(outcomes(*files, straight_through=True).values()) == {"pass"}


@pytest.mark.one_in(20)
@pytest.mark.parametrize("model", [p for p in MODELS if p.stat().st_size < 20_000], ids=lambda p: p.stem)
def test_a_weight_that_a_tool_got_wrong_shows(model: Path, tmp_path: Path) -> None:
    """One entry of a weight that matters, a hundredth off."""
    proto = onnx.load(model)
    floats = [t for t in proto.graph.initializer if t.data_type == onnx.TensorProto.FLOAT and np.prod(t.dims) > 8]
    seen = []
    for tensor in floats[:6]:
        kept = onnx.TensorProto()
        kept.CopyFrom(tensor)
        array = onnx.numpy_helper.to_array(tensor).copy()
        array.flat[np.argmax(np.abs(array))] *= 1.01
        tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
        onnx.save(proto, tmp_path / "wrong.onnx")
        seen.append("fail GC110" in outcomes(model, tmp_path / "wrong.onnx").values())
        tensor.CopyFrom(kept)
    assert not floats or any(seen)
