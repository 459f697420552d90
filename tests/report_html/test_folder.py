"""A folder of pages takes the place of an earlier one as a whole, or nothing changes; other files are safe from it."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gradcheck_cli.cli import main
from gradcheck_cli.report.html import replace
from tests.cli import models

PAGE = b'<meta name="generator" content="gradcheck 1">'


def tree(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    models.mlp(tmp_path / "mlp.onnx")
    return tmp_path


def test_a_path_that_ends_in_a_slash_is_a_folder_of_pages(work: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["mlp.onnx", "--report", "out/"]) == 0
    assert {"index.html", "models.html", "operators.html", "style.css"} <= set(os.listdir("out"))
    assert sorted(os.listdir()) == ["mlp.onnx", "out"]


def test_a_later_report_leaves_nothing_of_an_earlier_one(work: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["mlp.onnx", "--report", "out/"]) == 0
    (work / "out" / "model" / "gone.html").write_text("of an earlier run")
    assert main(["mlp.onnx", "--report", "out"]) == 0
    assert not (work / "out" / "model" / "gone.html").exists()
    assert sorted(os.listdir()) == ["mlp.onnx", "out"]


def test_a_folder_behind_a_link_is_replaced_and_the_link_stays(work: Path, capsys: pytest.CaptureFixture[str]):
    (work / "real").mkdir()
    (work / "link").symlink_to("real")
    assert main(["mlp.onnx", "--report", "link/"]) == 0
    assert (work / "link").is_symlink()
    assert (work / "real" / "index.html").exists()


@pytest.mark.parametrize("target, reason", {
    "full/": "it holds other files", "missing/out/": "there is no folder", "./": "it is the working folder",
    "..": "it is the working folder, or around it", "file.txt/": "it is a file", "/": "it is mounted",
}.items())  # fmt: skip
def test_a_folder_that_is_not_the_reports_is_refused_before_anything_runs(
    target: str, reason: str, work: Path, capsys: pytest.CaptureFixture[str]
):
    (work / "full").mkdir()
    (work / "full" / "thesis.txt").write_text("mine")
    (work / "full" / "index.html").write_text("<title>mine</title>")
    (work / "file.txt").write_text("mine")
    before = tree(work)
    assert main(["mlp.onnx", "--report", target]) == 2
    ran = capsys.readouterr()
    assert reason in ran.err.replace("\n", " ")
    assert ran.out == ""
    assert tree(work) == before


def test_a_disk_that_fills_up_in_the_middle_changes_nothing(work: Path):
    replace("out", [("index.html", PAGE), ("model/a.html", b"a")])
    before = tree(work)

    def files() -> Iterator[tuple[str, bytes]]:
        yield "index.html", PAGE
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        replace("out", files())
    assert tree(work) == before


def test_an_interrupt_in_the_middle_changes_nothing(work: Path):
    def files() -> Iterator[tuple[str, bytes]]:
        yield "index.html", PAGE
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        replace("out", files())
    assert os.listdir() == ["mlp.onnx"]


@pytest.mark.slow
def test_without_jinja_a_report_in_html_is_refused_before_anything_runs(work: Path):
    code = """
import sys
sys.modules["jinja2"] = None
from gradcheck_cli.cli import main
raise SystemExit(main(["missing.onnx", "--report", sys.argv[1]]))"""
    for target in ("out/", "out.html"):
        ran = subprocess.run([sys.executable, "-c", code, target], capture_output=True, text=True, check=False)
        assert ran.returncode == 2
        assert "needs jinja2: python -m pip install jinja2" in ran.stderr


def test_neither_jinja_nor_matplotlib_is_imported_by_other_reports(work: Path):
    code = """
import sys
from gradcheck_cli.cli import main
assert main(["mlp.onnx", "--report", "r.json", "--report", "r.xml", "--report", "r.md"]) == 0
assert not {"jinja2", "matplotlib"} & set(sys.modules)"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
