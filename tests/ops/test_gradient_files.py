"""Gradients of operators on images and matrices as files: valid ONNX, from which onnxruntime computes the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import gradcheck_cli as gc
from gradcheck_cli.errors import UnsupportedError
from gradcheck_cli.ops import OPS
from tests.ops.case import Case, arr, case
from tests.ops.cases import CASES
from tests.ops.comparison import assert_near
from tests.ops.test_onnxruntime import RELATIVE, applies, model, narrow, onnxruntime

OPERATORS = {"AffineGrid", "CenterCropPad", "Col2Im", "Det", "DeformConv", "GridSample", "MaxRoiPool", "MaxUnpool",
             "RoiAlign"}  # fmt: skip


def differentiable() -> Iterator[Case]:
    """Cases with floats among inputs and outputs."""
    for one in CASES:
        if one.op in OPERATORS and not one.domain and applies(one) and one.floats() and one.inputs[0].dtype.kind == "f":
            yield one


def fixed(case: Case) -> dict[str, Any]:
    """Inputs that a file holds as constants: shapes, and regions that decide how many samples they get."""
    static = {*OPS[case.domain, case.op].static.values(), *([1] if adaptive(case) else [])}
    return {n: narrow(x) for i, (n, x) in enumerate(zip(case.names, case.inputs, strict=True)) if n and i in static}


def adaptive(case: Case) -> bool:
    """The number of samples follows from the regions."""
    return case.op == "RoiAlign" and not case.attrs.get("sampling_ratio")


@pytest.mark.one_in(8)
@pytest.mark.parametrize("case", list(differentiable()), ids=lambda c: c.id)
def test_the_gradient_in_a_file_is_computed_alike_by_onnxruntime(case: Case, tmp_path: Path) -> None:
    feeds = {name: narrow(value) for name, value in case.feeds.items()}
    onnx.save(model(case, feeds), tmp_path / "model.onnx")
    loaded = gc.load(tmp_path / "model.onnx")
    found = gc.gradients(loaded["y0"], [loaded[x] for x in case.floats()])
    outputs = [ct for ct in found if ct is not None]
    gc.save(loaded, tmp_path / "gradient.onnx", outputs, feeds=fixed(case))
    onnx.checker.check_model(onnx.load(tmp_path / "gradient.onnx"), full_check=True)
    expected = gc.run(outputs, feeds, dtype="model")
    for theirs, ours in zip(run(tmp_path / "gradient.onnx", feeds), expected, strict=True):
        assert_near(ours, theirs, relative=4 * RELATIVE)


def run(path: Path, feeds: dict[str, Any]) -> list[np.ndarray[Any, Any]]:
    """Outputs of a file in onnxruntime."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(path.read_bytes(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, {i.name: feeds[i.name] for i in session.get_inputs()}))


def test_a_file_cannot_hold_the_gradient_of_a_large_determinant(tmp_path: Path) -> None:
    large = case("Det", arr(60, 60))
    onnx.save(model(large, {"x0": narrow(large.inputs[0])}), tmp_path / "model.onnx")
    loaded = gc.load(tmp_path / "model.onnx")
    with pytest.raises(UnsupportedError, match="determinants of more minors than a file should compute"):
        gc.save(loaded, tmp_path / "gradient.onnx", gc.gradients(loaded["y0"], [loaded["x0"]]))
