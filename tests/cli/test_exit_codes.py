"""Exit codes are fixed, never a count: every row of the table by a real process."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import pytest

from gradcheck_cli.report.explanations import PAGES, exit_code
from gradcheck_cli.results.record import EXIT_CODES, SEVERITY, Check, ModelInfo, worst_code
from tests.cli import models
from tests.cli.conftest import WRONG, Command
from tests.cli.models import KINKS

COMMAND = [sys.executable, "-m", "gradcheck_cli"]
ROWS = [  # exit code, what it is for, command line
    (0, "every check passed", "mlp.onnx"),
    (0, "failed as waived", "wrong.gradcheck.yaml --check square/known"),
    (0, "help", "--help"),
    (1, "a gradient mismatch", "wrong.gradcheck.yaml --check square/wrong"),
    (1, "a strict waiver that now passes", "stale.gradcheck.yaml"),
    (2, "no such option", "mlp.onnx --nosuch"),
    (2, "an unknown tensor", "mlp.onnx --x nosuch"),
    (2, "a bad value", "mlp.onnx --points 0"),
    (2, "a bad spec", "bad.gradcheck.yaml"),
    (2, "a bad configuration file", "below/conv.onnx"),
    (2, "a command that does not exist", "chekc mlp.onnx"),
    (2, "no arguments", ""),
    (3, "kinks", "kinks.gradcheck.yaml"),
    (3, "noise", "mlp.onnx --x input --y loss --delta 0.3"),
    (3, "a forward run that is not finite", "log.onnx"),
    (4, "a model that does not exist", "missing.onnx"),
    (4, "a model that is none", "wrong.onnx"),
    (4, "a pointer instead of a model", "lfs.onnx"),
    (5, "an unsupported operator", "unknown.onnx"),
    (5, "no gradient", "integers.onnx"),
    (5, "an unsupported dtype", "strings.onnx"),
    (6, "a time limit", "conv.onnx --timeout 0.001"),
    (6, "a memory limit", "huge.onnx"),
    (7, "an empty pattern", "none/*.onnx"),
    (7, "an empty folder", "empty"),
    (7, "everything deselected", "mlp.onnx -k nosuch"),
    (7, "no entries", "mlp.onnx --dim N=0"),
]


@pytest.fixture
def place(folder: Path) -> Path:
    """The folder with a model or file for each row."""
    (folder / "stale.gradcheck.yaml").write_text(WRONG.replace("known, graph: net, x: x", "known, graph: net, x: h"))
    (folder / "bad.gradcheck.yaml").write_text("gradcheck: 1\nchekcs: []\n")
    (folder / "kinks.gradcheck.yaml").write_text(KINKS)
    (folder / "wrong.onnx").write_bytes(b"no model")
    (folder / "empty").mkdir()
    below = folder / "below"
    below.mkdir()
    models.conv(below / "conv.onnx")
    (below / "gradcheck.toml").write_text("sed = 3\n")
    models.save(folder / "integers.onnx", "g (float[3] x) => (int64[1] y) { y = Shape (x) }")
    models.save(folder / "strings.onnx", "g (string[3] x) => (float[3] y) { y = Cast <to = 1> (x) }")
    models.save(folder / "huge.onnx", HUGE)
    return folder


@pytest.mark.one_in(6)
@pytest.mark.parametrize("code, reason, line", ROWS, ids=[f"{code} {reason}" for code, reason, _ in ROWS])
def test_a_process_exits_with_the_code_of_its_row(place: Path, code: int, reason: str, line: str) -> None:
    ran = subprocess.run([*COMMAND, *line.split()], cwd=place, capture_output=True, text=True, timeout=600)
    assert ran.returncode == code, ran.stdout + ran.stderr
    assert "Traceback" not in ran.stderr


def test_every_code_of_the_table_but_bugs_and_interrupts_is_here() -> None:
    assert {code for code, _, _ in ROWS} == set(SEVERITY) - {70, 130}  # those two: test_process.py


def test_of_several_codes_the_first_in_order_of_severity_counts() -> None:
    order = (130, 70, 2, 1, 4, 5, 6, 3, 7, 0)
    for pair in itertools.permutations(order, 2):
        assert worst_code(set(pair)) == min(pair, key=order.index)
    assert worst_code(set(order)) == 130


@pytest.mark.one_in(3)
@pytest.mark.parametrize("lines, code", [
    (("stale.gradcheck.yaml", "missing.onnx"), 1),
    (("unknown.onnx", "missing.onnx"), 4),
    (("unknown.onnx", "huge.onnx"), 5),
    (("log.onnx", "huge.onnx"), 6),
    (("log.onnx", "none/*.onnx"), 3),
    (("mlp.onnx", "none/*.onnx"), 7),
    (("bad.gradcheck.yaml", "wrong.gradcheck.yaml"), 2),
])  # fmt: skip
def test_several_models_exit_with_the_worst(gradcheck: Command, place: Path, lines: tuple[str, ...], code: int) -> None:
    ran = gradcheck(*lines, "--output-format", "json")
    assert ran.code == code
    assert f'"exit_code": {code},' in ran.out


@pytest.mark.parametrize("option", ["--exit-zero", "--fail-on=fail", "--fail-on=fail,inconclusive"])
def test_what_does_not_gate_does_not_fail_a_single_model_either(gradcheck: Command, place: Path, option: str) -> None:
    ran = gradcheck("integers.onnx", option)
    assert (ran.code, ran.err) == (0, "")
    assert "UNSUPPORTED GC501" in ran.out


@pytest.mark.parametrize("code", PAGES)
def test_explain_and_records_agree_on_the_exit_code(code: str) -> None:
    kinds = {"GC1": "fail", "GC3": "inconclusive", "GC5": "unsupported", "GC6": "limit"}
    status = {"GC203": "fail", "GC404": "pass"}.get(code, kinds.get(code[:3], "error"))
    gates = ("forward",) if code == "GC404" else ()  # beside the gradient's own status
    assert status in {*EXIT_CODES, "error"}
    assert Check("", "", status, code, ModelInfo(""), "", "", gates=gates).exit_code == exit_code(code)


HUGE = """g (float[1] x) => (float y) {
    shape = Constant <value_ints = [1000000, 1000000, 1000]> ()
    h = Expand (x, shape)
    y = ReduceSum <keepdims = 0> (h)
}"""
