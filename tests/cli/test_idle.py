"""An option that could only be ignored is an error, before anything runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cli.conftest import Command

IDLE = [
    ("mlp.onnx --x input --y loss --rtol W:1", "--rtol W has no effect: 'W' is neither x nor y of this check (input, "),
    ("mlp.onnx --y loss --atol aux_in:1", "--atol aux_in has no effect: 'aux_in' is neither x nor y of this check (input,"),
    ("mlp.onnx --y loss --y-shape aux_out:2", "--y-shape aux_out has no effect: 'aux_out' is no y of this check (loss)."),
    ("mlp.onnx --y loss --x-shape h:2,3", "--x-shape h has no effect: 'h' is no input and no x of this check (input, aux"),
    ("mlp.onnx --val-range W:0,1", "--val-range W has no effect: 'W' is not drawn at random, as others are (input"),
    ("mlp.onnx --x-init-value input=1 --val-range input:0,1", "--val-range input has no effect: 'input' is not drawn"),
    ("mlp.onnx --method richardson --delta 1e-3", "--delta belongs to --method central or forward; richardson chooses"),
    ("mlp.onnx --straight-through", "--straight-through has no effect: nothing in mlp.onnx is rounded and then computed"),
    ("mlp.onnx --method complex-step --delta 1e-3", "--delta belongs to --method central or forward; complex-step"),
]  # fmt: skip


@pytest.mark.parametrize("line, message", IDLE, ids=[line for line, _ in IDLE])
def test_an_option_without_an_effect_is_an_error(gradcheck: Command, line: str, message: str) -> None:
    ran = gradcheck(*line.split())
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(f"error GC201: {message}")


BESIDE = [  # options of which one leaves the other without an effect
    ("mlp.onnx --mode full --max-entries 3", "--max-entries has no effect beside --mode full: only --mode sampled draws"),
    ("mlp.onnx --max-entries 3 --mode nodes", "--max-entries has no effect beside --mode nodes: only --mode sampled draws"),
    ("mlp.onnx --points 3 --point 1", "--points has no effect beside --point: --point is one point alone"),
    ("mlp.onnx -q -v", "--quiet has no effect beside --verbose: -q says less and -v says more"),
    ("mlp.onnx --health --output-format json", "--health has no effect beside --output-format json: only the full output"),
    ("mlp.onnx --engine local --dask local:2", "--dask has no effect beside --engine local: it asks no cluster"),
    ("zoo mlp.onnx --engine local --dask local:2", "--dask has no effect beside --engine local: it asks no cluster"),
    ("zoo mlp.onnx --points 3 --point 1", "--points has no effect beside --point: --point is one point alone"),
    ("diff mlp.onnx mlp.onnx --points 3 --point 1", "--points has no effect beside --point: --point is one point alone"),
    ("grad mlp.onnx -o g.onnx --jvp --grad-ys ones", "--grad-ys has no effect beside --jvp: tangents start from inputs"),
    ("mlp.onnx --plot a.png --plot b.png", "--plot is given 2 times, and only the last would count."),
    ("mlp.onnx --seed 1 --y loss --seed 2 --seed 3", "--seed is given 3 times, and only the last would count."),
    ("grad mlp.onnx -o g.onnx --output h.onnx", "--output is given 2 times, and only the last would count."),
    ("inspect mlp.onnx --color never --color always", "--color is given 2 times, and only the last would count."),
]  # fmt: skip


@pytest.mark.parametrize("line, message", BESIDE, ids=[line for line, _ in BESIDE])
def test_an_option_that_another_one_overrules_is_an_error(gradcheck: Command, line: str, message: str) -> None:
    ran = gradcheck(*line.split())
    assert (ran.code, ran.out) == (2, "")
    assert message in ran.err


@pytest.mark.parametrize(
    "line", ["--mode sampled --max-entries 3", "--mode auto --max-entries 3", "-v -v", "--x W --x b"]
)
def test_options_that_go_together_are_none(gradcheck: Command, line: str) -> None:
    assert "has no effect" not in gradcheck("mlp.onnx", *line.split()).err


def test_what_is_typed_overrules_a_file_and_the_environment(
    gradcheck: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "gradcheck.toml").write_text("points = 3\nmax-entries = 5\nverbose = 1\n")
    monkeypatch.setenv("GRADCHECK_POINTS", "2")
    ran = gradcheck("mlp.onnx", "--y", "loss", "--point", "1", "--mode", "full", "-q")
    assert (ran.code, ran.err) == (0, "")


def test_a_file_may_speak_of_tensors_that_are_not_in_this_check(gradcheck: Command, folder: Path) -> None:
    (folder / "gradcheck.toml").write_text("rtol = {W = 1e-3, input = 1e-3}\nval_range = {aux_in = [0, 1]}\n")
    assert gradcheck("mlp.onnx", "--x", "input", "--y", "loss").code == 0


def test_of_several_models_and_in_the_environment_an_idle_option_is_a_note(
    gradcheck: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    note = "--straight-through has no effect: nothing here is rounded and then computed with"
    several = gradcheck("mlp.onnx", "conv.onnx", "--straight-through")
    assert (several.code, f"{note} (3 of 3 checks)\n" in several.out) == (0, True)
    monkeypatch.setenv("GRADCHECK_STRAIGHT_THROUGH", "1")
    alone = gradcheck("mlp.onnx", "--x", "input")
    assert (alone.code, note in " ".join(alone.out.split())) == (0, True)


def test_a_long_list_of_what_it_may_be_is_cut(gradcheck: Command, folder: Path) -> None:
    names = [f"x{i}" for i in range(20)]
    text = "\n".join(f"      x{i}: {{shape: [2]}}" for i in range(20))
    spec = f"gradcheck: 1\ngraphs:\n  net:\n    inputs:\n{text}\n    params: {{W: {{shape: [2], init: ones}}}}\n"
    spec += f"    nodes:\n      - {{op: Sum, inputs: [{', '.join(names)}, W], outputs: [y]}}\n    outputs: [y]\n"
    (folder / "many.gradcheck.yaml").write_text(spec)
    ran = gradcheck("many.gradcheck.yaml", "--val-range", "W:0,1")
    assert ran.err.endswith("(x0, x1, x2, x3, x4, x5, x6, x7, ... 12 more).\n")


def test_a_step_of_ones_own_means_central_differences(gradcheck: Command) -> None:
    assert "full, central" in gradcheck("mlp.onnx", "--delta", "1e-5", "--rtol", "1e-3").out
    assert "full, forward" in gradcheck("mlp.onnx", "--delta", "1e-8", "--method", "forward", "--rtol", "1e-2").out


def test_a_point_of_ones_own_is_the_only_one(gradcheck: Command, folder: Path) -> None:
    (folder / "gradcheck.toml").write_text("points = 3\n")
    all_points, third = (gradcheck("mlp.onnx", "-v", *args).out for args in ((), ("--point", "2")))
    assert re.findall(r"(\d+)/\1  ", all_points) == ["24", "12"]
    assert re.findall(r"(\d+)/\1  ", third) == ["8", "4"]
    assert ("1 point\n" in third, "3 points\n" in all_points) == (True, True)


@pytest.mark.parametrize("line, command", [
    ("log.onnx --points 3", "gradcheck log.onnx --x x --y y --seed 0 --points 3"),
    ("log.onnx --point 3", "gradcheck log.onnx --x x --y y --seed 0 --point 3"),
    ("log.onnx --val-range=-5,-3", "gradcheck log.onnx --x x --y y --val-range=-5,-3 --seed 0 --point 0"),
    ("wrong.gradcheck.yaml -k wrong --points 2", "gradcheck wrong.gradcheck.yaml --check square/wrong --x x --y loss"),
    ("wrong.gradcheck.yaml -k wrong --mode directional --points 2",
     "gradcheck wrong.gradcheck.yaml --check square/wrong --x x --y loss --mode directional --seed 0 --points 2"),
])  # fmt: skip
def test_the_command_to_reproduce_says_which_points(gradcheck: Command, line: str, command: str) -> None:
    ran = gradcheck(*line.split())
    [shown] = [row.split("reproduce  ")[1] for row in ran.out.splitlines() if "reproduce" in row]
    assert shown.startswith(command)
    assert gradcheck(*shown.split()[1:]).code == ran.code
