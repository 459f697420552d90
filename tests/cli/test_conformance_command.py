"""`gradcheck conformance`: cases written, an engine run on them, scores side by side."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Command

pytest.importorskip("onnxruntime", reason="an engine runs its gradients there")


@pytest.fixture
def cases(gradcheck: Command) -> Path:
    ran = gradcheck("conformance", "write", "cases", "--only", "Det", "-v")
    assert (ran.code, ran.out.splitlines()[0]) == (0, f"{len(list(Path('cases').iterdir()))} cases in cases")
    return Path("cases")


def test_a_right_engine_passes(gradcheck: Command, cases: Path) -> None:
    ran = gradcheck("conformance", "run", "cases", "--engine", "gradcheck", "-o", "score.json")
    assert ran.code == 0
    assert "right" in ran.out
    found = {a["status"] for a in json.loads(Path("score.json").read_text())["answers"]}
    assert "right" in found
    assert found <= {"right", "refused"}  # an older onnxruntime may lack a kernel
    shown = gradcheck("conformance", "board", "score.json")
    assert shown.code == 0
    assert re.search(r"^all +\d+ / 0 / \d+$", shown.out, re.MULTILINE)
    for name in ("board.html", "badge.svg"):
        assert gradcheck("conformance", "board", "score.json", "-o", name).code == 0
        assert "gradients" in Path(name).read_text().lower()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device on which there is no space")
def test_a_score_that_cannot_be_written_is_told_first(gradcheck: Command, cases: Path) -> None:
    ran = gradcheck("conformance", "run", "cases", "--engine", "gradcheck", "-o", "/dev/full")
    assert (ran.code, "No space left on device" in ran.err, "gradients within the bounds" in ran.out) == (2, True, True)


@pytest.mark.skipif(sys.platform == "win32", reason="signals as Unix has them")
def test_an_interrupt_leaves_the_answers_that_came(gradcheck: Command, cases: Path) -> None:
    Path("mine.py").write_text(
        "import os, signal, time\n"
        "from gradcheck_cli.reference.engines import Gradcheck\n"
        "class Mine(Gradcheck):\n"
        "    asked = 0\n"
        "    def vjp(self, *args):\n"
        "        Mine.asked += 1\n"
        "        if Mine.asked == 2:\n"
        "            os.kill(os.getppid(), signal.SIGINT)\n"
        "            time.sleep(60)\n"
        "        return super().vjp(*args)\n"
    )
    words = ["conformance", "run", "cases", "--engine", "mine.py:Mine", "-o", "score.json"]
    ran = subprocess.run([sys.executable, "-m", "gradcheck_cli", *words], capture_output=True, text=True, timeout=600)
    assert (ran.returncode, "gradients within the bounds" in ran.stdout) == (130, True), ran.stderr
    assert f"note: interrupted after 1 case of {len(list(cases.iterdir()))}; no score is written" in ran.stderr
    assert not Path("score.json").exists()


@pytest.mark.parametrize("time", ["60", "30s", "1m"])
def test_the_time_for_a_case_is_a_duration(gradcheck: Command, cases: Path, time: str) -> None:
    assert gradcheck("conformance", "run", "cases", "--engine", "gradcheck", "--case-timeout", time).code == 0


def test_a_wrong_engine_fails_and_its_smallest_case_is_shown(gradcheck: Command, cases: Path) -> None:
    Path("mine.py").write_text(
        "from gradcheck_cli.reference.engines import Gradcheck\n"
        "class Mine(Gradcheck):\n"
        "    def vjp(self, *args):\n"
        "        outputs, gradients = super().vjp(*args)\n"
        "        return outputs, {x: -g for x, g in gradients.items()}\n"
    )
    ran = gradcheck("conformance", "run", "cases", "--engine", "mine.py:Mine")
    assert ran.code == 1
    assert "-1 times the right one" in ran.out
    assert gradcheck("conformance", "run", "cases", "--engine", "mine.py:Mine", "--exit-zero").code == 0
    listed = gradcheck("conformance", "run", "cases", "--engine", "mine.py:Mine", "--output-format", "json")
    assert json.loads(listed.out)["engine"] == "mine.py:Mine"


def test_reasons_of_refusals_are_told_with_their_numbers(gradcheck: Command, cases: Path) -> None:
    count = len(list(cases.iterdir()))
    Path("mine.py").write_text(
        "class Mine:\n"
        "    name, asked = 'mine', 0\n"
        "    def load(self, model): self.asked += 1\n"
        "    def vjp(self, inputs, cotangents, xs): raise TypeError(f'at {self.asked}' if self.asked > 1 else 'none')\n"
    )
    ran = gradcheck("conformance", "run", "cases", "--engine", "mine.py:Mine")
    assert ran.code == 7
    assert ran.out.endswith(f"\n\nrefused\n{count - 1:6}  TypeError: at 2\n     1  TypeError: none\n")


ANSWERS = {  # what an engine gives, the status of its cases, and what is said
    "({}, {})": ("refused", "it gives no gradient"),
    "({}, {'nobody': 1.0})": ("crashed", "a gradient by 'nobody', which was not asked for"),
    "({}, {xs[0]: np.array(['a'])})": ("crashed", "is no array of real numbers"),
    "({}, {xs[0]: np.ones(2, 'M8[D]')})": ("crashed", "is no array of real numbers"),
    "({}, {xs[0]: {}})": ("refused", "ValueError"),
    "({}, {xs[0]: np.ones((9, 9, 9))})": ("wrong", "shape [9, 9, 9] instead of"),
    "({n.name: 'a' for n in self.outputs}, {xs[0]: np.full((9,), 'nan')})": ("crashed", "no array of real numbers"),
    "({n.name: 'a' for n in self.outputs}, {xs[0]: np.ones(9)})": ("forward", "differs"),
    "({}, {1: 2})": ("crashed", "its answer cannot be read"),
    "({}, {frozenset(): 2})": ("crashed", "is not JSON serializable"),
    "{}": ("refused", "ValueError"),
    "None": ("refused", "TypeError"),
    "exec(r'raise RuntimeError(chr(0xD800))')": ("refused", r"RuntimeError: \ud800"),
    "os._exit(3)": ("crashed", "its process ended with exit code 3"),
}


@pytest.mark.parametrize("given", ANSWERS)
def test_whatever_an_engine_answers_is_a_status_of_its_case(gradcheck: Command, cases: Path, given: str) -> None:
    for case in sorted(cases.iterdir())[1:]:
        shutil.rmtree(case)
    Path("mine.py").write_text(
        "import os, numpy as np, onnx\n"
        "class Mine:\n"
        "    name = 'mine'\n"
        "    def load(self, model): self.outputs = onnx.load(model).graph.output\n"
        f"    def vjp(self, inputs, cotangents, xs): return {given}\n"
    )
    ran = gradcheck("conformance", "run", "cases", "--engine", "mine.py:Mine", "-o", "score.json")
    [answer] = json.loads(Path("score.json").read_text())["answers"]
    status, said = ANSWERS[given]
    assert (answer["status"], said in answer.get("message", "")) == (status, True), answer
    assert ran.code == {"wrong": 1, "crashed": 6}.get(status, 7), ran.err


@pytest.mark.parametrize(
    "args, said",
    [(("run", "cases", "--engine", "gradcheck", "-o", "nowhere/score.json"), "there is no folder 'nowhere'"),
     (("run", "cases", "--engine", "gradcheck", "-o", "mlp.onnx/score.json"), "there is no folder 'mlp.onnx'"),
     (("write", "mlp.onnx/cases", "--only", "Det"), "cannot be written: Not a directory"),
     (("board", "score.json", "-o", "nowhere/board.html"), "there is no folder 'nowhere'")],
)  # fmt: skip
def test_what_cannot_be_written_is_a_mistake_of_the_command_line(
    gradcheck: Command, cases: Path, args: tuple[str, ...], said: str
) -> None:
    Path("score.json").write_text('{"engine": "a", "answers": [], "schema": "gradcheck.conformance/1"}')
    ran = gradcheck("conformance", *args)
    assert (ran.code, said in ran.err) == (2, True), ran.err


@pytest.mark.parametrize(
    "args, said",
    [(("run", "nowhere", "--engine", "gradcheck"), "holds no cases"),
     (("run", "cases", "--engine", "gradchek"), "does not start"),
     (("run", "cases", "--engine", "gradcheck", "--python", "/nowhere/python"), "cannot be run"),
     (("run", "cases", "--engine", "gradcheck", "--only", "Nothing"), "no case of Nothing"),
     *((("run", "cases", "--engine", "gradcheck", f"--case-timeout={time}"), f"{time!r} is no duration")
       for time in ("nan", "inf", "0", "-5", "1e400")),
     (("board", "mlp.onnx"), "holds no score"),
     (("write", "cases", "--only", "Nothing"), "no operator")],
)  # fmt: skip
def test_mistakes_are_answered(gradcheck: Command, cases: Path, args: tuple[str, ...], said: str) -> None:
    ran = gradcheck("conformance", *args)
    assert (ran.code, said in ran.err) == (2, True), ran
