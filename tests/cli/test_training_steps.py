"""Models with training information on the command line: the steps of their algorithms are checked as models are."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest

from tests.cli.conftest import Command
from tests.formats.test_onnx_training import trained


@pytest.fixture(autouse=True)
def file(folder: Path) -> Path:
    onnx.save(trained(), folder / "trained.onnx")
    return folder / "trained.onnx"


def checked(gradcheck: Command, *args: str) -> list[tuple[str, str, str, str]]:
    """Check, x, y and status of each record."""
    out = gradcheck("trained.onnx", *args, "--grad", "none", "--output-format", "json").out
    return [(c["check"], c["x"], c["y"], c["status"]) for c in json.loads(out)["checks"]]


MODEL, STEP = "trained.onnx", "trained.onnx::training_info"


def test_the_model_and_what_its_algorithm_differentiates(gradcheck: Command) -> None:
    assert checked(gradcheck) == [
        (MODEL, "x", "scores", "pass"), (STEP, "W", "loss", "pass"), (STEP, "b", "loss", "pass"),
    ]  # fmt: skip


ASKED = {
    "a tensor of the model": (["--y", "scores"], [(MODEL, "x", "scores", "pass")]),
    "its gradient": (["--x", "W", "--y", "dW"], [(STEP, "W", "dW", "pass")]),
    "an update": (["--x", "W", "--y", "W_new"], [(STEP, "W", "W_new", "pass")]),
    "an update by all": (["--y", "b_new"], [(STEP, "W", "b_new", "pass"), (STEP, "b", "b_new", "pass")]),
    "another x": (["--x", "label", "--y", "loss"], [(STEP, "label", "loss", "pass")]),
    "a step by name": (["--check", STEP], [(STEP, "W", "loss", "pass"), (STEP, "b", "loss", "pass")]),
    "the model by name": (["--check", MODEL], [(MODEL, "x", "scores", "pass")]),
}


@pytest.mark.parametrize("name", ASKED)
def test_tensors_that_are_named_say_which_is_meant(gradcheck: Command, name: str) -> None:
    args, found = ASKED[name]
    assert checked(gradcheck, *args) == found


def test_the_gradients_that_it_computes_are_claims_like_others(gradcheck: Command) -> None:
    ran = gradcheck("trained.onnx", "-k", "training", "--output-format", "concise")
    assert "d loss/d W by dW: PASS" in ran.out
    assert ran.code == 0


def test_a_name_that_neither_has_is_an_error_with_the_nearest_of_all(gradcheck: Command) -> None:
    ran = gradcheck("trained.onnx", "--y", "W_nw")
    assert ran.code == 2
    assert "trained.onnx has no tensor 'W_nw'. Did you mean 'W_new'?" in ran.err


def test_an_initialization_is_run_first(gradcheck: Command) -> None:
    ran = gradcheck("trained.onnx", "--init-targets", "training_info", "--check", MODEL, "--output-format", "json")
    assert 2 <= json.loads(ran.out)["checks"][0]["gradient"]["max"] <= 3


def test_inspect_shows_steps_and_what_they_update(gradcheck: Command) -> None:
    out = gradcheck("inspect", "trained.onnx").out
    assert "init       training_info\n" in out
    assert "updates    W by W_new, b by b_new, T by T_new\n" in out
    assert "trained.onnx::training_info  opset 17, ai.onnx.preview.training 1, 11 nodes\n" in out
    assert "W [3,2]  loss []" in out
    assert "trained.onnx::training_info" in gradcheck("inspect", "trained.onnx", "--y", "W_new").out
    assert "::" not in gradcheck("inspect", "trained.onnx", "--x", "x").out


def test_bad_bindings_are_told_before_anything_runs(gradcheck: Command, file: Path) -> None:
    onnx.save(trained(updates={"W": "W_nw"}), file)
    ran = gradcheck("trained.onnx")
    assert ran.code == 4
    assert "training_info: update_binding gives 'W' the value of 'W_nw', which is no output." in ran.err


def test_a_step_is_no_file_that_onnxruntime_could_run(gradcheck: Command) -> None:
    ran = gradcheck("trained.onnx", "--x", "W", "--y", "W_new", "--forward", "onnxruntime")
    assert (ran.code, "runs ONNX files" in ran.err) == (2, True)
