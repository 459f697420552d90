"""Completion in real shells, driven through a terminal: what comes of a line and Tab, and what a shell lists."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from gradcheck_cli.cli.options import Parsed
from tests.cli import models
from tests.cli.conftest import WRONG
from tests.cli.shells import SHELLS, Shell

HOSTILE = [
    "$(touch pwned)",
    "a;touch pwned",
    "b'`touch pwned`",
    'c"&touch pwned',
    "d|*",
    "e\\f",
    "~g",
    "h:i=j",
    "ü [0]",
]
MOVING = "z\x1b[2Jz"


def hostile(path: Path) -> Path:
    """A model whose tensors have names that are commands to a shell, and one that clears a terminal."""
    names = ["x", *HOSTILE, MOVING]
    nodes = [helper.make_node("Tanh", [before], [after]) for before, after in pairwise(names)]
    x, y = (helper.make_tensor_value_info(name, models.FLOAT, [2]) for name in ("x", MOVING))
    onnx.save(helper.make_model(helper.make_graph(nodes, "net", [x], [y])), path)
    return path


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with models, a spec and a run of a zoo, in which the shells work."""
    folder = tmp_path_factory.mktemp("shells")
    models.mlp(folder / "mlp.onnx")
    models.mlp(folder / "my model.onnx")
    models.named(folder / "named.onnx", "in put:0", "net/out=1")
    hostile(folder / "hostile.onnx")
    (folder / "broken.onnx").write_bytes((folder / "mlp.onnx").read_bytes()[:-40])
    (folder / "wrong.gradcheck.yaml").write_text(WRONG)
    (folder / "broken.gradcheck.yaml").write_text("gradcheck: 1\nchecks: [{name: x\n")
    (folder / "mlp.gradcheck.yaml").write_text(
        "gradcheck: 1\nchecks: [{name: beside, model: mlp.onnx, x: W, y: loss}]\n"
    )
    (folder / ".gradcheck/zoo/nightly").mkdir(parents=True)
    (folder / "sub").mkdir()
    return folder


def started(name: str, place: Path) -> Shell:
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed here")
    return Shell(name, place)


@pytest.fixture(scope="module", params=SHELLS)
def shell(request: pytest.FixtureRequest, place: Path) -> Iterator[Shell]:
    with closing(started(request.param, place)) as shell:
        yield shell


COMPLETED = [  # what is typed, and the words that the command then gets
    ("insp", ["inspect"]),
    ("comp", ["completion"]),
    ("zoo stat", ["zoo", "status"]),
    ("zoo res", ["zoo", "resume"]),
    ("zoo status .gradcheck/zoo/n", ["zoo", "status", ".gradcheck/zoo/nightly"]),
    ("completion fi", ["completion", "fish"]),
    ("schema sp", ["schema", "spec"]),
    ("hos", ["hostile.onnx"]),
    ("check my", ["check", "my model.onnx"]),
    ("mlp.onnx --mo", ["mlp.onnx", "--mode"]),
    ("--straight", ["--straight-through"]),
    ("zoo run sub --save", ["zoo", "run", "sub", "--save-failures"]),
    ("mlp.onnx --mode dir", ["mlp.onnx", "--mode", "directional"]),
    ("mlp.onnx --mode=dir", ["mlp.onnx", "--mode=directional"]),
    ("mlp.onnx --seed ra", ["mlp.onnx", "--seed", "random"]),
    ("mlp.onnx --fail-on van", ["mlp.onnx", "--fail-on", "vanishing"]),
    ("mlp.onnx --fail-on fail,inc", ["mlp.onnx", "--fail-on", "fail,inconclusive"]),
    ("mlp.onnx --fail-on +dea", ["mlp.onnx", "--fail-on", "+dead"]),
    ("mlp.onnx --baseline=hos", ["mlp.onnx", "--baseline=hostile.onnx"]),
    ("mlp.onnx --x inp", ["mlp.onnx", "--x", "input"]),
    ("mlp.onnx --x=inp", ["mlp.onnx", "--x=input"]),
    ("'my model.onnx' --x inp", ["my model.onnx", "--x", "input"]),
    ("inspect mlp.onnx --y lo", ["inspect", "mlp.onnx", "--y", "loss"]),
    ("grad mlp.onnx -o g.onnx --x inp", ["grad", "mlp.onnx", "-o", "g.onnx", "--x", "input"]),
    ("mlp.onnx --rtol inp", ["mlp.onnx", "--rtol", "input:"]),
    ("mlp.onnx --feed inp", ["mlp.onnx", "--feed", "input="]),
    ("named.onnx --x in", ["named.onnx", "--x", "in put:0"]),
    ("named.onnx --x 'in", ["named.onnx", "--x", "in put:0"]),
    ('named.onnx --x "in p', ["named.onnx", "--x", "in put:0"]),
    (r"named.onnx --x in\ put:", ["named.onnx", "--x", "in put:0"]),
    ("named.onnx --y net/out=", ["named.onnx", "--y", "net/out=1"]),
    ("wrong.gradcheck.yaml --check square/w", ["wrong.gradcheck.yaml", "--check", "square/wrong"]),
    ("wrong.gradcheck.yaml --x x --y lo", ["wrong.gradcheck.yaml", "--x", "x", "--y", "loss"]),
    ("mlp.onnx --check be", ["mlp.onnx", "--check", "beside"]),
    ("ops Softmaxc", ["ops", "SoftmaxCrossEntropyLoss"]),
    ("ops gradcheck.FF", ["ops", "gradcheck.FFT"]),
    ("explain GC60", ["explain", "GC60"]),
    ("explain GC2x", ["explain", "GC2xx"]),
    ("explain op", ["explain", "ops"]),
    ("mlp.onnx --nosuch inp", ["mlp.onnx", "--nosuch", "inp"]),
    ("broken.onnx --x inp", ["broken.onnx", "--x", "inp"]),
    ("broken.gradcheck.yaml --check x", ["broken.gradcheck.yaml", "--check", "x"]),
    ("nowhere.onnx --x inp", ["nowhere.onnx", "--x", "inp"]),
    ("hostile.onnx --x z", ["hostile.onnx", "--x", "z"]),
]  # fmt: skip


@pytest.mark.one_in(4)
@pytest.mark.parametrize("typed, words", COMPLETED, ids=[typed for typed, _ in COMPLETED])
def test_a_tab_completes_what_only_one_word_can_be(shell: Shell, typed: str, words: list[str]) -> None:
    assert [word.rstrip("/") for word in shell.completed(f"gradcheck {typed}")] == words


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", HOSTILE)
def test_no_name_of_a_tensor_is_a_command_to_the_shell(shell: Shell, place: Path, name: str) -> None:
    start = {"$": "'$", "~": "'~"}.get(name[0], name[0])
    assert shell.completed(f"gradcheck hostile.onnx --x {start}") == ["hostile.onnx", "--x", name]
    assert not (place / "pwned").exists()


LISTED = [
    ("", ["check", "inspect", "explain", "mlp.onnx", "sub"]),
    ("zoo ", ["status", "resume", "report", "diff", "merge", "mlp.onnx"]),
    ("mlp.onnx --mode ", ["auto", "full", "nodes", "directional", "sampled"]),
    ("mlp.onnx --m", ["--mode", "--max-entries", "--method", "--memory-limit"]),
    ("mlp.onnx --x ", ["input", "aux_in", "W", "loss"]),
    ("wrong.gradcheck.yaml --check ", ["square/wrong", "square/known", "sum/right"]),
    ("ops Conv", ["Conv", "ConvInteger", "ConvTranspose"]),
    ("explain GC3", ["GC301", "GC302", "GC303"]),
    ("zoo status ", ["sub"]),
    ("zoo status .gradcheck/zoo/", ["nightly"]),  # fish lists what begins with a dot where one is typed
]


@pytest.mark.one_in(5)
@pytest.mark.parametrize("typed, words", LISTED, ids=[typed for typed, _ in LISTED])
@pytest.mark.parametrize("name", SHELLS)
def test_a_tab_lists_what_a_word_can_be(place: Path, name: str, typed: str, words: list[str]) -> None:
    with closing(started(name, place)) as shell:
        shell.listed(f"gradcheck {typed}", words)


# --- without a shell


def answered(folder: Path, line: str, shell: str = "fish") -> tuple[list[str], str]:
    """The words that a shell gets for a line, and stderr."""
    env = {**os.environ, "_GRADCHECK_COMPLETE": f"{shell}_complete", "COMP_LINE": line, "COMP_WORD": ""}
    command = [sys.executable, "-m", "gradcheck_cli"]
    ran = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0
    return [each.split("\t")[1] for each in ran.stdout.splitlines() if "\t" in each], ran.stderr


def test_inputs_and_outputs_come_first(place: Path) -> None:
    words, _ = answered(place, "gradcheck mlp.onnx --x ")
    assert set(words[:4]) == {"input", "aux_in", "loss", "aux_out"}
    assert len(words) == len({*words}) > 4


@pytest.mark.parametrize(
    "line", ["broken.onnx --x ", "broken.gradcheck.yaml --check ", "broken.onnx --dim ", "sub --x "]
)
def test_a_file_that_cannot_be_read_completes_nothing_and_says_nothing(place: Path, line: str) -> None:
    assert answered(place, f"gradcheck {line}") == ([], "")


def test_open_sizes_are_completed(place: Path, tmp_path: Path) -> None:
    models.mlp(tmp_path / "mlp.onnx")
    assert answered(tmp_path, "gradcheck mlp.onnx --dim ")[0] == ["N="]


def test_names_in_a_model_are_read_without_its_weights_and_nothing_is_run(tmp_path: Path) -> None:
    """A model of 400 MB answers within a second or two, most of which is Python's start."""
    weights = np.zeros((100, 1 << 20), np.float32)
    models.save(
        tmp_path / "large.onnx", "net (float[1,100] x) => (float[1,1048576] y) { y = MatMul (x, W) }", W=weights
    )
    start = time.perf_counter()
    words, err = answered(tmp_path, "gradcheck large.onnx --x ")
    assert (words, err) == (["x", "y", "W"], "")
    assert time.perf_counter() - start < 10


def test_a_spec_from_elsewhere_runs_no_python_and_leads_nowhere(tmp_path: Path) -> None:
    folder = tmp_path / "inside"
    folder.mkdir()
    models.mlp(tmp_path / "mlp.onnx")
    (folder / "net.gradcheck.yaml").write_text(
        "gradcheck: 1\nops:\n  a.B: {python: 'os:abort', inputs: [x], outputs: [y]}\n"
        "checks: [{model: ../mlp.onnx, x: input, y: loss}]\n"
    )
    assert answered(folder, "gradcheck net.gradcheck.yaml --x ") == ([], "")
    assert answered(folder, "gradcheck net.gradcheck.yaml --check ") == (["mlp.onnx"], "")


@pytest.mark.parametrize("line", ["", "gradcheck", "gradcheck 'open --x", "gradcheck zoo status \\", "other thing"])
@pytest.mark.parametrize("shell_name", SHELLS)
def test_a_line_that_is_odd_is_no_error(place: Path, shell_name: str, line: str) -> None:
    assert answered(place, line, shell_name)[1] == ""


def test_a_list_of_words_is_completed_behind_its_last_comma() -> None:
    kind = Parsed("list", str, str, ("fail", "forward"))
    assert [item.value for item in kind.shell_complete(None, None, "x,-fo")] == ["x,-forward"]  # type: ignore[arg-type]
