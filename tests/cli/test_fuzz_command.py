"""`gradcheck fuzz`: what it prints and keeps of models that fail, its exit codes, and Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gradcheck_cli.cli.fuzz import bundle_of
from gradcheck_cli.reference.random_models import case
from tests.cli.conftest import Command
from tests.zoo.test_engine import is_gone, until

pytest.importorskip("onnxruntime", reason="it runs the models too")
NEGATING = """
from gradcheck_cli.reference.engines import Gradcheck
class Mine(Gradcheck):
    def vjp(self, *args):
        outputs, gradients = super().vjp(*args)
        return outputs, {x: -g for x, g in gradients.items()}
"""


@pytest.mark.skipif(os.name != "posix", reason="a shell closes the streams")
@pytest.mark.parametrize("closed", [">&-", "<&- >&- 2>&-"])
def test_streams_that_are_closed_are_no_fault_of_a_case(closed: str, tmp_path: Path) -> None:
    command = f"'{sys.executable}' -m gradcheck_cli fuzz --only Relu --cases 2 -j 1 {closed}"
    assert subprocess.run(["bash", "-c", command], cwd=tmp_path, timeout=600).returncode == 0


def test_cases_of_gradcheck_itself_pass(gradcheck: Command) -> None:
    ran = gradcheck("fuzz", "--cases", "20", "-j", "1")
    assert ran.code == 0
    assert "20 cases, 0 faults, seed 0," in ran.out
    assert ran.err == ""  # no progress without a terminal
    assert not Path(".gradcheck").exists()


def test_a_wrong_engine_fails_and_its_models_are_cases(gradcheck: Command) -> None:
    Path("mine.py").write_text(NEGATING)
    args = "fuzz", "--engine", "mine.py:Mine", "--only", "Tanh", "--cases", "12", "-j", "1", "-o", "kept"
    ran = gradcheck(*args)
    assert ran.code == 1
    assert "wrong  Tanh: " in ran.out
    assert "gradcheck conformance run kept --engine mine.py:Mine" in ran.out
    assert gradcheck("conformance", "run", "kept", "--engine", "mine.py:Mine").code == 1
    said = json.loads(gradcheck(*args, "--output-format", "json").out)
    assert (said["schema"], said["exit_code"], said["engine"]) == ("gradcheck.fuzz/1", 1, "mine.py:Mine")
    assert [fault["operators"] for fault in said["faults"]] == [["Tanh"]]
    assert Path(said["faults"][0]["folder"], "model.onnx").is_file()
    assert sum(said["statuses"].values()) == said["cases"] == 12


@pytest.mark.parametrize("form", ["full", "json"])
def test_what_was_found_is_told_where_it_cannot_be_written(gradcheck: Command, form: str) -> None:
    Path("mine.py").write_text(NEGATING)
    Path("file").touch()
    engine = "--engine", "mine.py:Mine", "--only", "Tanh", "--cases", "4", "-j", "1"
    ran = gradcheck("fuzz", *engine, "-o", "file/kept", "--output-format", form)
    assert (ran.code, "file/kept cannot be written: Not a directory." in ran.err) == (2, True)
    assert "to run them again" not in ran.out
    if form == "json":
        said = json.loads(ran.out)
        assert (said["exit_code"], [fault["folder"] for fault in said["faults"]]) == (2, [None])
    else:
        assert "wrong  Tanh: " in ran.out


def test_a_model_of_gradchecks_own_is_kept_as_a_bundle(gradcheck: Command) -> None:
    _, sample = case(0, 0, ["Tanh"])
    ran = gradcheck("reproduce", str(bundle_of(sample, Path("kept"))))
    assert ran.code == 0
    assert "PASS" in ran.out


def test_where_nothing_is_checked_the_run_says_so(gradcheck: Command) -> None:
    Path("mine.py").write_text("class Mine:\n    name = 'mine'\n")
    ran = gradcheck("fuzz", "--engine", "mine.py:Mine", "--only", "Tanh", "--cases", "3", "-j", "1")
    assert (ran.code, "refused" in ran.out) == (7, True)


@pytest.mark.parametrize(
    "args, said",
    [(("--only", "Convv"), "Did you mean 'Conv'"), (("--engine", "onnx-dd"), "does not start"),
     (("--engine", "onnx-ad", "--python", "/nowhere/python"), "cannot be run"), (("--time", "soon"), "no duration"),
     (("--cases", "0"), "0"), (("-j", "none"), "none")],
)  # fmt: skip
def test_mistakes_are_answered(gradcheck: Command, args: tuple[str, ...], said: str) -> None:
    ran = gradcheck("fuzz", *args)
    assert (ran.code, said in ran.err) == (2, True), ran


def test_ctrl_c_prints_what_was_found(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "gradcheck_cli", "fuzz", "--time", "10m", "-j", "1", "--only", "Sin"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True, start_new_session=True) as ran:
        time.sleep(8)
        os.killpg(ran.pid, signal.SIGINT)
        out, _ = ran.communicate(timeout=60)
    assert ran.returncode == 130
    assert " cases, 0 faults, seed 0," in out


SLOW = """
import pathlib, time
from gradcheck_cli.reference.engines import Gradcheck
class Slow(Gradcheck):
    def vjp(self, *args):
        outputs, gradients = super().vjp(*args)
        with open("answers", "a") as file:
            file.write("one more\\n")
        time.sleep(0.5)
        return outputs, {x: -g for x, g in gradients.items()}
"""


def test_ctrl_c_keeps_what_failed_and_is_being_shrunk(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    said = tmp_path / "answers"
    engine = ["--engine", "slow.py:Slow", "--only", "Sin", "--output-format", "json"]
    command = [sys.executable, "-m", "gradcheck_cli", "fuzz", "--cases", "8", "-j", "1", *engine]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True, start_new_session=True) as ran:
        assert until(lambda: said.exists() and len(said.read_text().splitlines()) > 2, 60)
        os.killpg(ran.pid, signal.SIGINT)
        out, _ = ran.communicate(timeout=60)
    found = json.loads(out)
    assert (ran.returncode, found["exit_code"], sum(found["statuses"].values())) == (130, 130, found["cases"])
    assert "wrong" in found["statuses"]
    assert found["statuses"].keys() <= {"wrong", "refused"}  # an older onnxruntime may lack a kernel
    assert [Path(tmp_path, fault["folder"]).is_dir() for fault in found["faults"]] == [True]


HANGING = """
import os, pathlib, time
class Hanging:
    name = "hanging"
    def load(self, model):
        pathlib.Path("engine").write_text(str(os.getpid()))
        time.sleep(600)
"""


def test_ctrl_c_ends_a_run_whose_engine_hangs(tmp_path: Path) -> None:
    (tmp_path / "hanging.py").write_text(HANGING)
    engine = ["--engine", "hanging.py:Hanging", "--only", "Sin"]
    command = [sys.executable, "-m", "gradcheck_cli", "fuzz", "--cases", "8", "-j", "1", *engine]
    said = tmp_path / "engine"
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True, start_new_session=True) as ran:
        try:
            assert until(lambda: said.exists() and said.read_text(), 60)
            os.killpg(ran.pid, signal.SIGINT)
            out, _ = ran.communicate(timeout=25)
        finally:
            ran.kill()
    assert (ran.returncode, "0 cases, 0 faults" in out) == (130, True)
    assert until(lambda: is_gone(int(said.read_text())))
