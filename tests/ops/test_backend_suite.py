"""ONNX's own backend tests, run through `gradcheck_cli.backend`: nodes, converted models, whole architectures."""

from __future__ import annotations

import contextlib
import io
import unittest
import warnings
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper

from gradcheck_cli.backend import GradcheckBackend, prepare, run_model, run_node, supports_device
from gradcheck_cli.errors import UsageError
from tests.ops.test_onnx_cases import onnx_cases
from tests.versions import later, require_none

_DRAWN = "compares with random numbers that NumPy's legacy generator draws"
EXCLUDED: dict[str, str] = {
    "test_bernoulli*": _DRAWN,
    "test_training_dropout": _DRAWN,
    "test_training_dropout_default": _DRAWN,
    "test_training_dropout_default_mask": _DRAWN,
    "test_training_dropout_mask": _DRAWN,
    "test_loop16_seq_none": "the runner takes the length of each tensor in a sequence, and the first here is a scalar",
}


@pytest.mark.slow
def test_every_test_of_the_suite_passes_but_those_excluded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("re2")
    pytest.importorskip("PIL")
    monkeypatch.setenv("ONNX_HOME", str(tmp_path))
    found = dict(outcomes())
    failed = {name: reason for name, reason in found.items() if reason and not waits(name)}
    with capsys.disabled():
        print(f"\nONNX's backend tests: {len(found) - len(failed)} of {len(found)} pass ", end="")
    assert len(found) > 2000
    assert {name: reason for name, reason in failed.items() if not excluded(name)} == {}
    stale = [name for name in found if excluded(name) and name not in failed and not waits(name)]
    require_none("onnx", stale)


def outcomes() -> Iterator[tuple[str, str]]:
    """Each test on the CPU with the last line of its error, "" where it passes; collecting draws random numbers."""
    drawn = np.random.get_state()  # noqa: NPY002
    with quiet():
        from onnx.backend.test import BackendTest

        classes = BackendTest(GradcheckBackend, __name__).test_cases.values()
    np.random.set_state(drawn)  # noqa: NPY002
    for tests in classes:
        for name in filter(lambda n: n.endswith("_cpu"), dir(tests)):
            outcome = unittest.TestResult()
            with quiet():
                tests(name).run(outcome)
            wrong = [*outcome.errors, *outcome.failures, *((None, reason) for _, reason in outcome.skipped)]
            yield name.removesuffix("_cpu"), wrong[0][1].strip().splitlines()[-1] if wrong else ""


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without what the suite prints and warns of."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


def excluded(name: str) -> bool:
    """A test that no implementation of ours could pass."""
    return any(fnmatch(name, pattern) for pattern in EXCLUDED)


def waits(name: str) -> bool:
    """A test of an operator that only a newer onnx has."""
    case = onnx_cases().get(name)
    return case is not None and bool(later(case.model))


def added() -> ModelProto:
    """y = x + w, where w has a default."""
    x, w, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [2]) for n in "xwy")
    default = helper.make_tensor("w", TensorProto.FLOAT, [2], [1.0, 2.0])
    return helper.make_model(
        helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "g", [x, w], [y], [default])
    )


def test_inputs_come_by_position_or_by_name_and_defaults_may_be_left_out() -> None:
    x, w = np.asarray([1, 2], np.float32), np.asarray([5, 5], np.float32)
    assert run_model(added(), [x]).y.tolist() == [2, 4]
    assert run_model(added(), [x, w])[0].tolist() == [6, 7]
    assert prepare(added()).run({"x": x})["y"].tolist() == [2, 4]
    assert run_model(added(), x)[0].dtype == np.float32
    with pytest.raises(UsageError, match="3 inputs are given; the model takes 2"):
        run_model(added(), [x, x, x])


def test_a_node_runs_by_itself() -> None:
    x = np.asarray([-1.0, 2.0])
    assert run_node(helper.make_node("Relu", ["x"], ["y"]), [x])[0].tolist() == [0, 2]
    assert run_node(helper.make_node("Clip", ["x"], ["y"], max=1.0), x, opset_version=6)[0].tolist() == [-1, 1]
    length = helper.make_node("SequenceLength", ["s"], ["n"])
    assert run_node(length, [[x, x, x]])[0] == 3
    scaled = helper.make_node("Scaler", ["x"], ["y"], domain="ai.onnx.ml", offset=[1.0], scale=[2.0])
    assert run_node(scaled, [x])[0].tolist() == [-4, 2]
    [largest] = run_node(helper.make_node("TopK", ["x", "k"], ["", "i"]), [x, np.asarray([1])])
    assert largest.tolist() == [1]


def test_it_says_what_it_can_run() -> None:
    assert supports_device("CPU")
    assert supports_device("CPU:0")
    assert not supports_device("CUDA")
    assert GradcheckBackend.is_compatible(added())
    unknown = helper.make_graph([helper.make_node("Nothing", [], ["y"], domain="acme")], "g", [], added().graph.output)
    assert not GradcheckBackend.is_compatible(helper.make_model(unknown))
    assert not GradcheckBackend.is_compatible(ModelProto())
