"""`--forward onnxruntime` on the command line: who evaluates y is said, and what rounding hides."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Command

pytest.importorskip("onnxruntime")

MLP = ("mlp.onnx", "--x", "input", "--forward", "onnxruntime")


def test_it_is_said_who_evaluates_y_and_what_that_hides(gradcheck: Command) -> None:
    ran = gradcheck(*MLP)
    assert ran.code == 0
    assert "full, richardson | y computed by onnxruntime" in ran.out
    assert "  rounding   in onnxruntime hides errors up to " in ran.out
    assert " of the largest entry for the same y\n" in ran.out


@pytest.mark.one_in(3)
@pytest.mark.parametrize("output", ["concise", "json", "jsonl", "junit", "github", "gitlab", "markdown"])
def test_every_format_can_say_it(gradcheck: Command, output: str) -> None:
    assert gradcheck(*MLP, "--output-format", output).code == 0


def test_what_is_open_says_what_to_try_and_is_saved_and_reproduced(gradcheck: Command, folder: Path) -> None:
    ran = gradcheck(*MLP, "--rtol", "1e-9", "--save-failures", "bundles")
    assert ran.code == 3
    assert "--mode directional" in ran.out
    assert "--forward onnxruntime --rtol 1e-9" in ran.out
    [bundle] = [each for each in (folder / "bundles").iterdir() if each.is_dir()]
    assert gradcheck("reproduce", str(bundle)).code == 3


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="files have no such names here")
@pytest.mark.parametrize("name", ["/dev/stdin", "/dev/fd/0", "/proc/self/fd/0"])
def test_a_file_by_the_name_of_a_stream_is_the_same_one_in_the_process_of_onnxruntime(folder: Path, name: str) -> None:
    """Questions come to that process on its stdin: it would read them as a model, and wait for ever."""
    argv = [sys.executable, "-m", "gradcheck_cli", name, "--output-format", "json"]
    with (folder / "mlp.onnx").open("rb") as model:
        ran = subprocess.run(argv, stdin=model, capture_output=True, cwd=folder, timeout=60, check=False)
    assert ran.returncode == 0
    assert all(record["forward"]["agrees"] for record in json.loads(ran.stdout)["checks"])


def test_where_it_is_not_installed_it_is_said_how_to_get_it(folder: Path) -> None:
    code = """
import sys
from importlib.abc import MetaPathFinder
class Gone(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "onnxruntime":
            raise ModuleNotFoundError(name)
import importlib.util
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "onnxruntime" else find(name, *rest)
sys.meta_path.insert(0, Gone())
from gradcheck_cli.cli import main
raise SystemExit(main(["mlp.onnx", "--forward", "onnxruntime"]))
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=folder, check=False)
    assert ran.returncode == 2
    assert "needs onnxruntime: python -m pip install onnxruntime" in ran.stderr


@pytest.mark.parametrize("text", ["onnxruntme", "tvm", ""])
def test_nobody_else_can_evaluate_it(gradcheck: Command, text: str) -> None:
    ran = gradcheck("mlp.onnx", "--forward", text)
    assert ran.code == 2
    assert "'internal', 'onnxruntime'" in ran.err


def test_a_check_of_a_spec_asks_for_it(gradcheck: Command, folder: Path) -> None:
    text = "gradcheck: 1\nchecks:\n  - {name: a, model: mlp.onnx, x: input, forward: onnxruntime}\n"
    (folder / "a.gradcheck.yaml").write_text(text, encoding="utf-8")
    [record] = json.loads(gradcheck("a.gradcheck.yaml", "--output-format", "json").out)["checks"]
    assert (record["status"], record["source"]) == ("pass", "onnxruntime")


def test_a_graph_of_a_spec_is_no_file_to_run(gradcheck: Command, folder: Path) -> None:
    text = "gradcheck: 1\ngraphs:\n  g: {inputs: {x: {shape: [3]}}, nodes: 'y = Sin (x)', outputs: [y]}\n"
    (folder / "g.gradcheck.yaml").write_text(text, encoding="utf-8")
    ran = gradcheck("g.gradcheck.yaml", "--forward", "onnxruntime")
    assert (ran.code, "--forward onnxruntime runs ONNX files" in ran.err) == (2, True)
