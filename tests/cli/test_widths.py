"""Tables and sentences in terminals of any width: rows can be told apart, numbers are whole, and nothing is too long."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from gradcheck_cli.report import render
from gradcheck_cli.report.text import ENDLESS, Style, apart, columns
from gradcheck_cli.results.record import Check, Report
from tests.cli import models
from tests.cli.conftest import Command
from tests.cli.test_reports import FAILED

LAYERS = [f"bert.encoder.layer.{i}.attention.self.{k}.weight" for i in range(3) for k in ("query", "key")]
IN_THE_MIDDLE = ["a" * i + "b" + "a" * (79 - i) for i in range(80)]
AT_THE_END = ["n" * 79 + str(i) for i in range(10)]
WIDE = [*("入力テンソルの長い名前/" * 4 + end for end in ("重み", "偏り")), "e\u0301\u0323" * 40 + "z"]
HUNDRED = [f"{'block/' * 10}{i}/{'kernel' * 3}" for i in range(100)]
WIDTHS = (40, 41, 60, 80, 100, 200)

NAMES = st.lists(
    st.text(st.sampled_from("ab/.入é\u0301"), min_size=1, max_size=90), min_size=1, max_size=12, unique=True
)


def failing(names: Sequence[str], sizes: tuple[int, ...] = (1, 3, 8, 8), y: str = "loss") -> list[Check]:
    return [replace(FAILED, x=each, y=y, x_shape=sizes, worst=(), suspect=None) for each in names]


def table(checks: Sequence[Check], width: int) -> list[str]:
    """The lines of the table of some checks."""
    return render("full", Report(tuple(checks)), Style(width=width)).split("\n\n")[1].split("\n")


def rows(lines: Sequence[str], verdict: str = "FAIL") -> list[str]:
    """The rows of a table, each with all of its lines, without the header."""
    ends = [i for i, line in enumerate(lines) if line.endswith(verdict)]
    head = next(i for i, line in enumerate(lines) if "max rel err" in line)
    return ["\n".join(lines[a + 1 : b + 1]) for a, b in zip([head, *ends], ends, strict=False)]


def assert_is_legible(checks: Sequence[Check], width: int) -> None:
    lines = table(checks, width)
    found = rows(lines)
    assert len({*found}) == len(checks)
    assert [line for line in lines if columns(line) > width] == []
    assert all("192/192" in row and "1.0e+00" in row and "[1,3,8,8]" in row for row in found)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("names", [LAYERS, IN_THE_MIDDLE, AT_THE_END, WIDE, HUNDRED], ids=len)
def test_rows_of_a_table_can_be_told_apart(names: list[str], width: int) -> None:
    assert_is_legible(failing(names), width)
    assert_is_legible(failing(names, y="y" * 80), width)


@given(NAMES, st.integers(40, 200))
def test_rows_of_any_names_can_be_told_apart(names: list[str], width: int) -> None:
    assert_is_legible(failing(names), width)


@given(NAMES, st.integers(1, 90))
def test_names_that_are_cut_fit_and_stay_different(names: list[str], width: int) -> None:
    found = apart(names, width)
    if found is None:
        assert width < max(map(columns, names))
    else:
        assert len({*found}) == len(names)
        assert max(map(columns, found)) <= width


def test_a_common_prefix_is_cut_first() -> None:
    assert apart(["encoder/layer0/kernel", "encoder/layer0/bias"], 12) == ["...r0/kernel", "...r0/bias"]
    assert apart(["encoder/layer0/kernel"], 12) == ["encod...rnel"]


def test_no_mark_is_left_without_its_letter() -> None:
    [found] = apart(["o\u0301" * 30], 12) or [""]
    assert found == "o\u0301" * 5 + "..." + "o\u0301" * 4


ENDS = [
    FAILED,
    replace(FAILED, x="k" * 30, y="out", y_shape=(2, 5), worst=tuple(replace(e, y=(1, 4)) for e in FAILED.worst)),
    replace(FAILED, status="pass", code="", entries={"total": 192, "checked": 192, "kink_ok": 12}),
    replace(
        FAILED, status="inconclusive", code="GC301", notes=("12 entries at a tie of node 0 Relu 'relu': no slope",)
    ),
    replace(
        FAILED,
        status="severed",
        code="GC107",
        message="cut at node 2 Round 'q' (its derivative is zero)",
        worst=(),
    ),
    replace(FAILED, mode="nodes", nodes={"total": 61, "checked": 59, "failed": 1}),
]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("check", ENDS, ids=lambda check: check.status)
@pytest.mark.parametrize("verbosity", [0, 1])
def test_only_commands_are_longer_than_the_line(check: Check, width: int, verbosity: int) -> None:
    lines = render("full", Report((check,)), Style(width=width, verbosity=verbosity)).splitlines()
    assert [line for line in lines if columns(line) > width and not line.startswith("  reproduce  gradcheck ")] == []


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(
    "check", [*ENDS, replace(FAILED, check="a name with spaces " * 3)], ids=lambda check: check.status
)
def test_colors_change_nothing_but_colors(check: Check, width: int) -> None:
    plain, colored = (render("full", Report((check,)), Style(color=on, width=width)) for on in (False, True))
    assert re.sub(r"\x1b\[\d*m", "", colored) == plain != colored


def test_where_nothing_has_to_fit_nothing_is_cut() -> None:
    text = render("full", Report(tuple(failing([*IN_THE_MIDDLE[:3], *WIDE], y="y" * 80))), Style(width=ENDLESS))
    assert all(each in text for each in (*IN_THE_MIDDLE[:3], *WIDE, "y" * 80))
    assert "..." not in text.split("\n\n")[1]


# Many rows that pass


def test_many_rows_that_pass_are_one(gradcheck: Command, folder: Path) -> None:
    parameters(folder / "many.onnx", 82)  # and x
    ran = gradcheck("many.onnx", "--param", "w*")
    [row] = rows(ran.out.split("\n\n")[1].split("\n"), "PASS")
    assert re.fullmatch(r"83 rows: see -v +249/249 +\S+ +\S+ +\S+  PASS", row)
    assert ran.out.endswith("\n83 checks: 83 passed in TIME\n")
    verbose = gradcheck("many.onnx", "--param", "w*", "-v").out.split("\n\n")[1].split("\n")
    assert len(rows(verbose, "PASS")) == 83


def test_twenty_rows_that_pass_are_twenty(gradcheck: Command, folder: Path) -> None:
    parameters(folder / "many.onnx", 19)  # and x
    assert len(rows(gradcheck("many.onnx", "--param", "w*").out.split("\n\n")[1].split("\n"), "PASS")) == 20


@pytest.mark.parametrize("width", [40, 80, ENDLESS])
def test_rows_that_do_not_pass_are_shown_beside_many_that_do(width: int) -> None:
    passed = [replace(each, status="pass", code="") for each in failing([f"w{i}" for i in range(50)])]
    others = [replace(FAILED, x=status, status=status) for status in ("fail", "inconclusive", "severed", "waived")]
    passed[30] = replace(passed[30], entries={**passed[30].entries, "kink_ok": 7})
    told = "\n".join(table([*passed[:25], *others, *passed[25:]], width))
    assert "(7 at a kink)" in told
    lines = re.sub(r"\s+\(7 at a kink\)", "", told).split("\n")
    verdicts = ("FAIL", "INCONCLUSIVE", "NO GRADIENT", "KNOWN FAILURE", "PASS")
    assert [next(v for v in verdicts if row.endswith(v)) for row in rows(lines, verdicts)] == [*verdicts]
    assert "50 rows: see -v" in rows(lines, verdicts)[-1]
    assert "9600/9600" in rows(lines, verdicts)[-1]


def parameters(path: Path, number: int) -> None:
    """A model with some weights of three entries."""
    weights = {f"w{i}": np.full(3, i / 100) for i in range(number)}
    nodes = "".join(f"t{i} = Mul (x, w{i})\n u{i} = Tanh (t{i})\n" for i in range(number))
    total = f"s = Sum ({', '.join(f'u{i}' for i in range(number))})\n loss = ReduceSum <keepdims = 0> (s)"
    models.save(path, f"many (float[3] x) => (float loss) {{ {nodes} {total} }}", **weights)


# A gradient that is zero


def test_a_gradient_that_is_zero_everywhere_says_so(gradcheck: Command, folder: Path) -> None:
    zero(folder)
    out = gradcheck("zero.onnx").out
    assert "x [3]  y [3]      9/9            -            -        0  PASS zero everywhere\n" in out
    assert "  health     zero everywhere: it becomes zero at node 0 Mul 'y'\n" in out
    assert "0.0e+00" not in out + gradcheck("zero.onnx", "--output-format", "concise").out


def test_a_gradient_that_is_cut_off_has_no_line_of_health(gradcheck: Command, folder: Path) -> None:
    models.save(folder / "m.onnx", "m (float[3] x) => (float[3] y, float[3] z) { y = Round (x)  z = Exp (x) }")
    of_y, of_both = (gradcheck("m.onnx", *options).out for options in (("--y", "y"), ()))
    assert "NO GRADIENT" in of_y
    assert "  health" not in of_y
    assert re.findall(r"  health     (norms?) .*% zeros", of_both) == ["norm"]


ROUNDED = {
    "a direction has the length 1": ("n = LpNormalization (x)  s = Mul (n, n)  y = ReduceSum <keepdims = 0> (s)", True),
    "a normalization has the mean 0": ("n = LayerNormalization (x, g)  y = ReduceMean <keepdims = 0> (n)", True),
    "what is small is not rounding": ("s = Sin (x)  t = Mul (s, tiny)  y = ReduceSum <keepdims = 0> (t)", False),
    "nor is it beside much": ("s = Mul (x, tiny)  t = Add (s, one)  y = ReduceSum <keepdims = 0> (t)", False),
    "at a tie": ("z = Mul (x, none)  s = Abs (z)  t = Add (s, x)  y = ReduceSum <keepdims = 0> (t)", False),
}


@pytest.mark.parametrize("name", ROUNDED)
@pytest.mark.parametrize("options", [(), ("--rtol", "2"), ("--atol", "1")])
def test_a_gradient_that_is_zero_but_for_rounding_says_so(
    gradcheck: Command, folder: Path, name: str, options: tuple[str, ...]
) -> None:
    nodes, zero = ROUNDED[name]
    numbers = {"g": np.ones(4), "tiny": np.float64(1e-12), "one": np.float64(1), "none": np.float64(0)}
    models.save(folder / "m.onnx", f"m (float[3,4] x) => (float y) {{ {nodes} }}", **numbers)
    found = gradcheck("m.onnx", *options)
    assert found.code == 0
    assert ("PASS zero but for rounding\n" in found.out) == (zero and not options)


def zero(folder: Path) -> None:
    """A model whose gradient is zero."""
    models.save(folder / "zero.onnx", "zero (float[3] x) => (float[3] y) { y = Mul (x, no) }", no=np.zeros(3))


def severed(folder: Path) -> None:
    """A model whose output has no derivative."""
    models.save(folder / "zero.onnx", "cut (float[3] x) => (float[3] y) { y = Round (x) }")


@pytest.mark.parametrize("make, word", [(zero, "zero everywhere"), (severed, "NO GRADIENT")])
def test_reports_speak_of_no_error_where_there_is_none(
    gradcheck: Command, folder: Path, make: Callable[[Path], None], word: str
) -> None:
    make(folder)
    reports = ("--report", "zero.md", "--report", "zero.html", "--report", "pages/")
    gradcheck("zero.onnx", *reports, "--save-failures", "none")
    for path in (folder / "zero.md", folder / "zero.html", *(folder / "pages").rglob("model*.html")):
        text = path.read_text()
        assert not re.search(r"[|>] ?0\.0e\+00", text), path  # in a cell
        assert word in text or path.parent.name == "pages"


# A terminal, a pipe, and COLUMNS


def long_names(folder: Path) -> Path:
    inputs = [helper.make_tensor_value_info(each, TensorProto.FLOAT, [4, 3]) for each in LAYERS]
    output = helper.make_tensor_value_info("total", TensorProto.FLOAT, [4, 3])
    graph = helper.make_graph([helper.make_node("Sum", LAYERS, ["total"])], "long", inputs, [output])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), folder / "long.onnx")
    return folder / "long.onnx"


def in_a_terminal(width: int, *args: str, **environment: str) -> str:
    """Output of the command in a terminal of a width, as bytes come from it."""
    around = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "NO_COLOR", "FORCE_COLOR")}
    ours, theirs = pty.openpty()
    command = f"stty cols {width} && exec {sys.executable} -m gradcheck_cli {' '.join(args)}"
    with subprocess.Popen(
        ["sh", "-c", command],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**around, "TERM": "xterm", **environment},
    ):
        os.close(theirs)
        out = b""
        while read := _read(ours):
            out += read
    os.close(ours)
    return out.decode().replace("\r\n", "\n")


def _read(end: int) -> bytes:
    try:
        return os.read(end, 1 << 16)
    except OSError:  # Linux's way to say that the other end is closed
        return b""


@pytest.mark.parametrize("width", [40, 80, 200])
def test_a_terminal_shows_rows_that_fit(folder: Path, width: int) -> None:
    text = in_a_terminal(width, str(long_names(folder)))
    plain = re.sub(r"\x1b\[\d*m", "", text)
    assert plain != text
    found = rows(plain.split("\n\n")[1].split("\n"), "PASS")
    assert len({re.sub(r"\S+e-\d+", "", row) for row in found}) == len(LAYERS)
    assert [line for line in plain.splitlines() if len(line) > width and " " in line.strip()] == []
    assert in_a_terminal(width, "--color", "never", str(long_names(folder))).count("\x1b") == 0


def test_a_pipe_gets_whole_lines_or_those_of_columns(
    gradcheck: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long_names(folder)
    whole = gradcheck("long.onnx").out
    assert all(re.search(f"\n{each} \\[4,3\\] +total \\[4,3\\]  144/144  ", whole) for each in LAYERS)
    for width in (40, 80, 120):
        monkeypatch.setenv("COLUMNS", str(width))
        assert max(map(len, gradcheck("long.onnx").out.splitlines())) <= width
    for nothing in ("", "0", "wide", "-3"):
        monkeypatch.setenv("COLUMNS", nothing)
        assert gradcheck("long.onnx").out.splitlines()[:3] == whole.splitlines()[:3]


SENTENCES = [
    "prove Tanh Conv", "grad net.onnx -o made.onnx", "step net.onnx -o made --loss loss --trainable w", "fuzz --cases 3",
    "zoo net.onnx", "zoo status .gradcheck/zoo/net.onnx", "conformance write cases --only Tanh",
]  # fmt: skip


@pytest.mark.parametrize("width", [40, 80, 200])
@pytest.mark.parametrize("line", SENTENCES)
def test_sentences_of_commands_wrap_and_commands_to_copy_do_not(
    gradcheck: Command, folder: Path, monkeypatch: pytest.MonkeyPatch, line: str, width: int
) -> None:
    net = "net (float[4,1] x) => (float loss) { a = MatMul (x, w)\n loss = ReduceMean <keepdims = 0> (a) }"
    models.save(folder / "net.onnx", net, w=np.ones((1, 2)))
    if "status" in line:
        gradcheck("zoo", "net.onnx")
    whole = gradcheck(*line.split()).out
    monkeypatch.setenv("COLUMNS", str(width))
    lines = gradcheck(*line.split()).out.splitlines()
    assert [each for each in lines if columns(each) > width and not each.startswith("  run ")] == []
    if width == 200 and "prove" not in line:
        assert len(lines) == len(whole.splitlines())


@pytest.mark.parametrize("width", [80, 200])
def test_settings_fit(gradcheck: Command, monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    lines = gradcheck("config").out.splitlines()
    assert max(map(columns, lines)) <= width
    assert [each.split()[0] for each in lines if not each.startswith(" ")][:3] == ["setting", "x", "y"]


def test_a_terminal_wraps_sentences_too(folder: Path) -> None:
    proven = in_a_terminal(40, "prove", "Conv", NO_COLOR="1")
    assert max(map(columns, proven.splitlines())) <= 40
    assert "\x1b" not in proven


@pytest.mark.parametrize("width", [40, 80])
def test_other_tables_fit_and_keep_names_apart(
    gradcheck: Command, folder: Path, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    long_names(folder)
    for args in (
        ["inspect", "long.onnx"], ["long.onnx", "--health"], ["diff", "long.onnx", "long.onnx"], ["ops"], ["ops", "LSTM"],
        ["explain"], ["explain", "GC404"],
    ):  # fmt: skip
        lines = gradcheck(*args).out.splitlines()
        assert [line for line in lines if columns(line) > width and " " in line.strip(" ,(")] == [], args
    lines = gradcheck("inspect", "long.onnx").out.splitlines()
    inputs = lines[lines.index("inputs (6)") + 1 : lines.index("outputs")]
    assert len({line for line in inputs if "weight" in line}) == len(LAYERS)
