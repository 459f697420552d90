"""A new output format is one file and one line of the table: every command can write it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli import models

LINE = 'Format("count", "counting", "counting", (".count",))'
MODULE = '''
def document(report, style):
    """The number of checks, and of those that did not pass."""
    return f"{len(report.checks)} checks, {len(report.wrong)} wrong\\n"
'''
COMMAND = f"""
import sys
from gradcheck_cli import report
from gradcheck_cli.report import Format

report.__path__.append({{folder!r}})
report.FORMATS["count"] = {LINE}
from gradcheck_cli.cli import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model, and a command that knows the format."""
    models.mlp(tmp_path / "mlp.onnx")
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "counting.py").write_text(MODULE)
    (tmp_path / "command.py").write_text(COMMAND.format(folder=str(tmp_path / "own")))
    return tmp_path


def run(folder: Path, *args: str) -> str:
    command = [sys.executable, "command.py", *args]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.mark.slow
def test_every_command_writes_a_format_that_stands_in_the_table(folder: Path) -> None:
    counted = run(folder, "mlp.onnx", "--output-format", "count", "--report", "mlp.count", "--report", "mlp.json")
    assert counted.endswith(" checks, 0 wrong\n")
    assert (folder / "mlp.count").read_text() == counted
    assert run(folder, "report", "mlp.json", "--output-format", "count") == counted
    run(folder, "report", "mlp.json", "-o", "later.count")
    assert (folder / "later.count").read_text() == counted
    assert run(folder, "zoo", "mlp.onnx", "--output-format", "count", "--report", "zoo.count") == counted
    assert (folder / "zoo.count").read_text() == counted


def test_help_completion_and_messages_name_it(folder: Path) -> None:
    for command in (["check"], ["zoo", "run"], ["report"]):
        said = " ".join(run(folder, *command, "--help").replace("│", " ").split())
        assert ".count" in said
        assert "count" in said.replace(".count", "")
    ran = subprocess.run(
        [sys.executable, "command.py", "mlp.onnx", "--report", "mlp.odd"], cwd=folder, capture_output=True, text=True,
        timeout=600, check=False,
    )  # fmt: skip
    assert ran.returncode == 2
    assert ".sarif, .count." in " ".join(ran.stderr.split())


def test_a_folder_is_refused_where_a_format_is_one_file(folder: Path) -> None:
    run(folder, "mlp.onnx", "--report", "mlp.json")
    command = [sys.executable, "command.py", "report", "mlp.json", "--output-format", "count", "-o", "pages/"]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600, check=False)
    assert ran.returncode == 2
    assert "pages/ is a folder, and count is written as one file" in ran.stderr
    assert not (folder / "pages").exists()
