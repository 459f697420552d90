"""Operators of training graphs against onnxruntime-training, where a Python that has it is named.

It needs an environment of its own: `ORT_TRAINING_PYTHON=path/to/python` with onnxruntime-training-cpu 1.19.2.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from gradcheck_cli.autodiff.tape import Tape
from gradcheck_cli.autodiff.trace import trace
from gradcheck_cli.ops import OPS
from tests.ops.case import Case
from tests.ops.cases.training import CASES
from tests.ops.comparison import assert_near
from tests.ops.test_onnxruntime import RELATIVE, model, narrow, narrow_graph, value_info

PYTHON = os.environ.get("ORT_TRAINING_PYTHON", "")
RUNNER = Path(__file__).with_name("onnxruntime_training.py")
pytestmark = pytest.mark.skipif(not PYTHON, reason="ORT_TRAINING_PYTHON names no Python with onnxruntime-training")

_NOT_ON_CPU = "it has a schema for this, and no kernel that runs here"
_REDUCED = "reduces in spite of reduction none"
_OLDER = "an operator of earlier versions"
_SCALED = "scales as in training, though it is none"
_IGNORED = "does not heed the attribute"
GAPS: dict[str, str] = {
    "AveragePoolGrad(1x2x2x3x2)*": "of windows that overlap in three dimensions only the last counts",
    "AveragePoolGrad(*dilations=*": _IGNORED,
    "ConvGrad(*": _OLDER,
    "MaxPoolGrad(*storage_order=1*": _IGNORED,
    "SinGrad(*": _OLDER,
    "SparseSoftmaxCrossEntropy(*reduction=none": _REDUCED,
    "SparseSoftmaxCrossEntropyGrad(*reduction=none": _REDUCED,
    "SparseSoftmaxCrossEntropyGrad((),2x3x4,2x3)": "no labels of 32 bits",
    "com.microsoft.All(*": _NOT_ON_CPU,
    "com.microsoft.BatchScale(*": _NOT_ON_CPU,
    "com.microsoft.BiasSoftmaxDropout(*": _NOT_ON_CPU,
    "com.microsoft.Bitmask*": _NOT_ON_CPU,
    "com.microsoft.ConvGrad(*auto_pad=*": _IGNORED,
    "com.microsoft.ConvTransposeGrad(*": _NOT_ON_CPU,
    "com.microsoft.DropoutGrad(2x3x4,2x3x4)": _SCALED,
    "com.microsoft.DropoutGrad(2x3x4,2x3x4,(),())": _SCALED,
    "com.microsoft.FlattenAndUnpad(*": _NOT_ON_CPU,
    "com.microsoft.IsAllFinite(*": _NOT_ON_CPU,
    "com.microsoft.IsFinite(*": _NOT_ON_CPU,
    "com.microsoft.MixedPrecisionScale(*": _NOT_ON_CPU,
    "com.microsoft.NegativeLogLikelihoodLossInternal(*": "its body is of opset 12, in which Unsqueeze had an attribute",
    "com.microsoft.PadAndUnflatten(*": _NOT_ON_CPU,
    "com.microsoft.PassThrough(*": "its outputs need to lie where its inputs do",
    "com.microsoft.ResizeGrad(*": _NOT_ON_CPU,
    "com.microsoft.ScaledSum(*": _NOT_ON_CPU,
    "com.microsoft.SliceGrad(3x2,2,1,1,1,1)": "refuses steps backward",
    "com.microsoft.SoftmaxCrossEntropy(*reduction=none": _REDUCED,
    "com.microsoft.SoftmaxCrossEntropyGrad(*reduction=none": _REDUCED,
    "com.microsoft.SoftmaxDropoutGrad(*": _NOT_ON_CPU,
    "com.microsoft.View(*": _NOT_ON_CPU,
}

Outcomes = Mapping[str, Path]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    """Outcomes that onnxruntime-training leaves for each case, by the case's id."""
    folder = tmp_path_factory.mktemp("cases")
    for index, case in enumerate(CASES):
        feeds = {name: narrow(value) for name, value in case.feeds.items()}
        onnx.save(typed(case, feeds), folder / f"{index}.onnx")
        np.savez(folder / f"{index}.npz", **feeds)
    subprocess.run([PYTHON, RUNNER, folder], check=True, timeout=600)
    return {case.id: folder / str(index) for index, case in enumerate(CASES)}


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.id)
def test_the_outputs_are_those_of_onnxruntime_training(case: Case, outcomes: Outcomes) -> None:
    if reason := next((reason for pattern, reason in GAPS.items() if fnmatchcase(case.id, pattern)), ""):
        pytest.skip(reason)
    compare(case, outcomes)


def test_no_gap_is_stale(outcomes: Outcomes) -> None:
    skipped = [c for c in CASES if any(fnmatchcase(c.id, pattern) for pattern in GAPS)]
    assert not [c.id for c in skipped if passes(c, outcomes)]
    assert not [pattern for pattern in GAPS if not any(fnmatchcase(c.id, pattern) for c in CASES)]


def compare(case: Case, outcomes: Outcomes) -> None:
    """Dtype, shape and values of all outputs agree."""
    stem = outcomes[case.id]
    if stem.with_suffix(".txt").exists():
        pytest.fail(stem.with_suffix(".txt").read_text("utf-8"))
    expected, tape = np.load(stem.with_suffix(".out.npz")), ours(case)
    for output in case.outputs:
        assert_near(tape.named[output].value, expected[output], relative=RELATIVE, label=output)


def passes(case: Case, outcomes: Outcomes) -> bool:
    """The case would pass if it were not skipped."""
    try:
        compare(case, outcomes)
    except (AssertionError, pytest.fail.Exception):
        return False
    return True


def ours(case: Case) -> Tape:
    """The case computed here, in float32."""
    feeds = {name: narrow(value) for name, value in case.feeds.items()}
    return trace(narrow_graph(case.graph), feeds, ops=OPS, dtype="model")


def typed(case: Case, feeds: dict[str, Any]) -> onnx.ModelProto:
    """The case as a model that declares its outputs, and the shape of what a pool has read there alone."""
    attrs = {name: value for name, value in case.attrs.items() if name != "shape"}
    made, tape = model(replace(case, attrs=attrs), feeds), ours(case)
    del made.graph.output[:]
    for name in case.outputs:
        value = tape.named[name].value
        made.graph.output.append(value_info(name, value.dtype, value.shape))
    return made
