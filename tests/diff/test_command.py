"""`gradcheck diff A B` as typed: what it prints, its exit codes, its formats, its errors."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

import jsonschema
import numpy as np
import onnx
import pytest

from gradcheck_cli.report.json_records import result_schema
from gradcheck_cli.results import read_results
from tests.cli.conftest import Ran, entered, typed
from tests.diff.twins import BIAS, HEAD, MLP, RELU, SQUARE, V, W, net

Command = Callable[..., Ran]


@pytest.fixture
def diff(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """`gradcheck diff` in a folder with a few models."""
    leaky = RELU.replace("Relu (h)", "LeakyRelu <alpha = 0.001> (h)")
    other = np.array(W)
    other[0, 0] *= 1.01
    for name, model in {
        "a": net(MLP, W=W, V=V, b=BIAS),
        "same": net(MLP.replace("h", "hidden").replace("matmul", "MatMul").replace("Tanhidden", "Tanh"), W=W, V=V, b=BIAS),
        "weight": net(MLP, W=other, V=V, b=BIAS),
        "relu": net(RELU, W=SQUARE),
        "leaky": net(leaky, W=SQUARE),
        "half": net(HEAD.replace("float", "float16"), dtype=np.float16, W=W, V=V),
        "head": net(HEAD, W=W, V=V),
        "five": net(HEAD.replace("4] x", "5] x"), W=np.ones((5, 5)), V=V),
    }.items():  # fmt: skip
        onnx.save(model, tmp_path / f"{name}.onnx")
    entered(tmp_path, monkeypatch)
    return partial(typed, capsys, "diff")


def test_two_models_that_are_the_same(diff: Command) -> None:
    ran = diff("a.onnx", "same.onnx")
    assert (ran.code, ran.out, ran.err) == (0, THE_SAME, "")


THE_SAME = """\
A  a.onnx
B  same.onnx  opset 18, com.microsoft 1, 4 nodes
   float32 | both in float64 | seed 0 | 3 points | N=2

compared         entries  max abs err  max rel err    noise (uncertainty)
output y [2,3]     18/18      0.0e+00      0.0e+00        0  PASS
d y / d x [2,4]  144/144      0.0e+00      0.0e+00        0  PASS

  not compared without --params: gradients by 'W', 'V', 'b'

2 checks: 2 passed in TIME
"""


def test_two_models_that_differ(diff: Command) -> None:
    ran = diff("relu.onnx", "leaky.onnx", "--show", "1")
    assert (ran.code, ran.out, ran.err) == (1, DIFFERENT, "")


DIFFERENT = """\
A  relu.onnx
B  leaky.onnx  opset 18, com.microsoft 1, 3 nodes
   float32 | both in float64 | seed 0 | 3 points | N=2

compared         entries  max abs err  max rel err    noise (uncertainty)
output y [2,4]     24/24      4.2e-02      7.8e-03    2e-05  FAIL
d y / d x [2,4]  192/192      4.7e-03      1.1e+00    4e-06  FAIL

  not compared without --params: gradients by 'W'

FAIL GC110  output y: 24 of 24 entries differ (100%)
entry of y                A             B  abs err  rel err    noise  pattern
[0,0] point 2  -7.91954e+00  -7.87787e+00  4.2e-02  5.3e-03    2e-05
... 23 more, --show 24

  suspect    node 1  LeakyRelu  h -> r
             'r' is the first result that differs: max rel err 7.9e-04; \
relu.onnx has node 1 Relu 'r' there; 'h' before it is the same
  would pass only with --rtol 0.0079
  reproduce  gradcheck diff relu.onnx leaky.onnx --dim N=2 --seed 0 --point 2

FAIL GC111  d y / d x: 96 of 192 entries differ (50%)
x -> y                             A             B  abs err  rel err    noise  pattern
[0,1] -> [0,1] point 0  -9.78064e-03  -5.04321e-03  4.7e-03  4.8e-01    2e-07
... 95 more, --show 96
  would pass only with --rtol 1.2
  reproduce  gradcheck diff relu.onnx leaky.onnx --dim N=2 --seed 0 --point 0

2 checks: 2 failed in TIME
"""


def test_a_row_that_passes_says_what_was_finite_in_neither_model(diff: Command, tmp_path: Path) -> None:
    text = "a (float[4] x) => (float[4] y) { y = Add (x, c) }"
    onnx.save(net(text, c=[np.nan, np.inf, 1.0, 0.0]), tmp_path / "odd.onnx")
    ran = diff("odd.onnx", "odd.onnx", "--points", "1")
    assert ran.code == 0
    said = [line.partition("PASS  ")[2] for line in ran.out.splitlines() if "PASS" in line]
    assert said == ["(2 of 4 not judged: not finite in both)", "(8 of 16 not judged: not finite in both)"]


def test_less_precise_models_say_what_tolerance_that_means(diff: Command) -> None:
    ran = diff("head.onnx", "half.onnx")
    assert ran.code == 0
    assert "half.onnx has float16: rtol 3.9e-03, unless --rtol says otherwise" in " ".join(ran.out.split())


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (("a.onnx",), 2, "Missing argument 'B'"),
        (("a.onnx", "nowhere.onnx"), 4, "nowhere.onnx"),
        (("nowhere.onnx", "a.onnx"), 4, "nowhere.onnx"),
        (("a.onnx", "five.onnx"), 2, "do not fit both inputs: 'x' [N,4] float32 and 'x' [N,5] float32"),
        (("a.onnx", "same.onnx", "--map", "x"), 2, "--map x: write A_NAME=B_NAME"),
        (("a.onnx", "same.onnx", "--map", "x=input"), 2, "same.onnx has no tensor 'input'"),
        (("a.onnx", "same.onnx", "--map", "x=x", "--map", "x=y"), 2, "two partners"),
        (("a.onnx", "same.onnx", "--map", "x=r"), 2, "'x' is an input, and 'r' is none of same.onnx, which are: 'x'"),
        (("a.onnx", "same.onnx", "--y", "yy"), 2, "a.onnx has no tensor 'yy'"),
        (("a.onnx", "same.onnx", "--rtol", "y:much"), 2, "--rtol y:much: 'much' is no number"),
        (("a.onnx", "same.onnx", "--mapp", "x=x"), 2, "No such option"),
        (("a.onnx", "same.onnx", "--dim", "M=2"), 2, "--dim M"),
        (("a.onnx", "same.onnx", "--straight-through"), 2, "nothing in a.onnx and same.onnx is rounded and then"),
        (("a.onnx", "same.onnx", "--timeout", "0.0001s"), 6, "took longer than"),
    ],
)
def test_what_cannot_be_compared_is_said_in_a_line(
    diff: Command, args: tuple[str, ...], code: int, message: str
) -> None:
    ran = diff(*args)
    assert (ran.code, ran.out) == (code, "")
    assert message in ran.err


def test_files_that_are_no_models_are_told_apart(diff: Command, tmp_path: Path) -> None:
    (tmp_path / "text.onnx").write_text("not a model")
    (tmp_path / "lfs.onnx").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 5\n")
    for name, said in (("text", "GC401"), ("lfs", "GC403")):
        ran = diff("a.onnx", f"{name}.onnx")
        assert (ran.code, ran.out) == (4, "")
        assert said in ran.err


@pytest.mark.one_in(3)
@pytest.mark.parametrize("pair", (("a", "same"), ("relu", "leaky"), ("a", "weight")))
def test_every_format_holds_every_record(diff: Command, pair: tuple[str, str]) -> None:
    files = [f"{name}.onnx" for name in pair]
    ran = diff(*files, "--output-format", "json")
    run = json.loads(ran.out)
    jsonschema.validate(run, result_schema())
    assert run["exit_code"] == ran.code == (0 if pair == ("a", "same") else 1)
    lines = [json.loads(line) for line in diff(*files, "--output-format", "jsonl").out.splitlines()]
    assert [c["id"] for c in lines] == [c["id"] for c in run["checks"]]
    for each in lines:
        jsonschema.validate(each, result_schema())
        assert each["forward"]["compared_with"] == files[0]
    suite = ElementTree.fromstring(diff(*files, "--output-format", "junit").out)
    assert [c.get("name") for c in suite.iter("testcase")] == ["output y", "d y/d x"]
    assert len(list(suite.iter("failure"))) == (0 if ran.code == 0 else 2)
    for form in ("concise", "github", "gitlab", "markdown"):
        said = diff(*files, "--output-format", form)
        assert said.code == ran.code
        assert ("GC110" in said.out) == (ran.code == 1)


def test_reports_are_written_and_read_back(diff: Command, tmp_path: Path) -> None:
    names = ["r.json", "r.jsonl", "r.xml", "r.md", "r.sarif", "r.html"]
    ran = diff("relu.onnx", "leaky.onnx", *(word for n in names for word in ("--report", n)))
    assert ran.code == 1
    assert all((tmp_path / n).stat().st_size for n in names)
    checks = read_results(str(tmp_path / "r.json"))
    assert [c.of_two_models for c in checks] == [True, True]
    assert [c.code for c in checks] == ["GC110", "GC111"]
    assert "output y" in (tmp_path / "r.html").read_text("utf-8")


def test_an_error_is_a_record_where_scripts_read(diff: Command) -> None:
    ran = diff("a.onnx", "five.onnx", "--output-format", "json")
    [check] = json.loads(ran.out)["checks"]
    assert (ran.code, check["status"], check["code"]) == (2, "error", "GC201")


def test_the_command_that_is_printed_shows_it_again(diff: Command) -> None:
    ran = diff("relu.onnx", "leaky.onnx", "--points", "3", "--y", "y", "--rtol", "y:1e-5")
    line = next(line for line in ran.out.splitlines() if line.startswith("  reproduce"))
    words = line.split()[3:]
    assert words[:2] == ["relu.onnx", "leaky.onnx"]
    assert "--point" in words
    assert diff(*words).code == 1


def test_nothing_but_the_exit_code_changes_with_exit_zero(diff: Command) -> None:
    args = ("relu.onnx", "leaky.onnx")
    plain, zero = diff(*args), diff(*args, "--exit-zero")
    assert (plain.code, zero.code) == (1, 0)
    assert plain.out == zero.out


def test_help_fits_80_columns_and_says_what_is_compared(diff: Command) -> None:
    ran = diff("--help")
    assert ran.code == 0
    assert max(map(len, ran.out.splitlines())) <= 80
    said = " ".join(ran.out.replace("│", " ").split())
    for text in (
        "--map",
        "A_NAME=B_NAME",
        "5e-7 float32",
        "4e-3 float16",
        "3e-2 bfloat16 or 8 bits",
        "--straight-through",
    ):
        assert text in said


@pytest.mark.parametrize("code", ("GC110", "GC111"))
def test_codes_have_a_page(capsys: pytest.CaptureFixture[str], code: str) -> None:
    assert "two models differ" in typed(capsys, "explain", code).out
