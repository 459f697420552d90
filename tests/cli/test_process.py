"""The command as a process: what it imports, how it ends, what it writes to odd places."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gradcheck_cli.checks.estimates import Forecast
from gradcheck_cli.checks.progress import Progress, Remaining
from gradcheck_cli.report import plot
from tests.cli import models
from tests.cli.conftest import Command

HEAVY = ("numpy", "onnx", "yaml", "pydantic", "rich.progress")
COMMAND = [sys.executable, "-m", "gradcheck_cli"]
posix = pytest.mark.skipif(os.name != "posix", reason="signals and devices of POSIX")


def run(*args: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *args],
        cwd=cwd,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=600,
    )


def imported(folder: Path, *args: str) -> set[str]:
    """The modules that a command line imports."""
    command = [sys.executable, "-X", "importtime", "-m", "gradcheck_cli", *args]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=6000)
    found = set(re.findall(r"\|\s+(\S+)$", ran.stderr, re.MULTILINE))
    assert "gradcheck_cli.cli.group" in found
    return found


LIGHT = [
    "", "--help", "--version", "check --help", "inspect -h", "ops -h", "completion bash", "completion zsh",
    "completion fish", "explain", "init -h", "config -h", "explain GC101", "schema result", "schema --help",
    "chekc x", "--nosuch",
]  # fmt: skip


@pytest.mark.one_in(3)
@pytest.mark.parametrize("line", LIGHT)
def test_what_needs_no_model_imports_nothing_heavy(folder: Path, line: str) -> None:
    assert imported(folder, *line.split()).isdisjoint(HEAVY)


def test_the_schema_of_specs_imports_pydantic_alone(folder: Path) -> None:
    assert imported(folder, "schema", "spec").intersection(HEAVY) == {"pydantic"}


def test_checking_a_model_needs_neither_yaml_nor_pydantic(folder: Path) -> None:
    assert imported(folder, "mlp.onnx").isdisjoint({"yaml", "pydantic", "rich.progress"})


@posix
def test_an_interrupt_says_so_and_keeps_what_was_printed(folder: Path) -> None:
    spec = folder / "pair.gradcheck.yaml"
    spec.write_text(
        "gradcheck: 1\nchecks:\n  - {name: quick, model: mlp.onnx, x: aux_in, y: aux_out}\n"
        "  - {name: slow, model: conv.onnx, x: image, y: c, dims: {N: 64}, mode: full, method: richardson}\n"
    )
    arguments = [
        "pair.gradcheck.yaml",
        "--memory-limit",
        "64GiB",
        "-j",
        "1",
        "--report",
        "r.json",
        "--report",
        "r.html",
    ]
    process = subprocess.Popen(
        [*COMMAND, *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        bufsize=1,
    )
    assert process.stdout is not None
    shown = [process.stdout.readline() for _ in range(4)]
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=6000)
    assert shown[0].startswith("quick  opset 17")
    assert out.splitlines()[-1].startswith("1 check: 1 passed in ")
    assert (process.returncode, err.splitlines()[-1]) == (130, "interrupted after 1 of 2 checks")
    kept = json.loads((folder / "r.json").read_text())
    assert (kept["exit_code"], [record["check"] for record in kept["checks"]]) == (130, ["quick"])
    assert "interrupted after 1 of 2 checks" in (folder / "r.html").read_text()


@pytest.mark.slow
@posix
def test_an_interrupt_counts_models_whose_checks_are_recorded(folder: Path) -> None:
    (folder / "conv.gradcheck.yaml").write_text(
        "gradcheck: 1\ndefaults: {dims: {N: 64}, mode: full, method: richardson}\n"
    )
    arguments = ["mlp.onnx", "conv.onnx", "--memory-limit", "64GiB", "-j", "1", "--report", "r.json"]
    process = subprocess.Popen(
        [*COMMAND, *arguments], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1
    )
    assert process.stdout is not None
    assert process.stdout.readline().startswith("mlp.onnx  opset 17")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=6000)
    assert (process.returncode, err.splitlines()[-1]) == (130, "interrupted after 1 of 2 models")
    kept = json.loads((folder / "r.json").read_text())
    assert {record["check"] for record in kept["checks"]} == {"mlp.onnx"}


@pytest.mark.one_in(9)
@posix
@pytest.mark.parametrize(
    "line", ["ops", "wide.gradcheck.yaml", "wide.gradcheck.yaml --output-format jsonl", "schema spec"]
)
def test_a_reader_that_goes_away_is_no_error(folder: Path, line: str) -> None:
    checks = ", ".join(f"{{name: c{i}, model: mlp.onnx, x: W, y: loss}}" for i in range(50))
    (folder / "wide.gradcheck.yaml").write_text(f"gradcheck: 1\nchecks: [{checks}]\n")
    piped = f"'{sys.executable}' -m gradcheck_cli {line} | head -1; exit ${{PIPESTATUS[0]}}"
    ran = subprocess.run(["bash", "-c", piped], cwd=folder, capture_output=True, text=True, timeout=6000)
    assert (ran.stderr, ran.stdout.count("\n")) == ("", 1)
    assert ran.returncode in (0, 141)  # 0 where all of it was in the pipe before the reader went


@pytest.mark.one_in(9)
@posix
@pytest.mark.parametrize("line, closed, code", [
    ("mlp.onnx", ">&-", 0),
    ("wrong.gradcheck.yaml", ">&- 2>&-", 1),
    ("missing.onnx", "2>&-", 4),
    ("ops Relu", "<&- >&- 2>&-", 0),
])  # fmt: skip
def test_streams_that_are_closed_change_no_exit_code(folder: Path, line: str, closed: str, code: int) -> None:
    command = f"'{sys.executable}' -m gradcheck_cli {line} {closed}"
    assert subprocess.run(["bash", "-c", command], cwd=folder, timeout=6000).returncode == code


@pytest.mark.parametrize(
    "shown, lines", [("on", ["m.onnx  d y/d x  2/9", "m.onnx  d y/d x  4/9"]), ("off", []), ("auto", [])]
)
def test_progress_is_a_line_on_stderr_now_and_then(
    capsys: pytest.CaptureFixture[str], shown: str, lines: list[str]
) -> None:
    seconds = iter([0.0, 0.0, 0.5, 2.5, 3.0, 5.0])  # when it is made and begun, and when it hears of a pass
    progress = Progress(shown, lambda: next(seconds))
    progress.begin("m.onnx")
    progress.start("d y/d x", 9)
    for done in range(1, 5):
        progress.advance(done, 9)
    progress.done()
    captured = capsys.readouterr()
    assert (captured.out, captured.err.splitlines()) == ("", lines)


class Terminal(io.StringIO):
    """A stderr that is a terminal."""

    def isatty(self) -> bool:
        return True


def test_what_a_check_will_take_is_said_with_v_and_shown_in_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def forecasts() -> Iterator[Forecast]:
        asked.append("timed")
        yield Forecast("d y/d x", "full, 784 x 10 entries", 150.0)

    for terminal, verbose, term, said in (
        (False, False, "xterm", ""),
        (False, True, "xterm", "m.onnx  d y/d x: full, 784 x 10 entries, about 2 min\n"),
        (True, False, "dumb", ""),
    ):
        shown = Terminal() if terminal else io.StringIO()
        monkeypatch.setattr(sys, "stderr", shown)
        monkeypatch.setenv("TERM", term)
        progress = Progress("auto", verbose=verbose)
        progress.begin("m.onnx")
        progress.expect(forecasts())
        progress.done()
        assert shown.getvalue() == said
    assert asked == ["timed"]  # nothing is timed where nobody looks
    shown = Terminal()
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setenv("TERM", "xterm")
    progress = Progress("auto")
    progress.begin("m.onnx")
    progress.expect(forecasts())
    progress.start("d y/d x", 0)
    progress.drawn -= 1
    progress.advance(20, 784)
    progress.done()
    assert "d y/d x" in shown.getvalue()
    assert "20/784  about 2 min left" in shown.getvalue()
    assert shown.getvalue().rstrip().endswith("\x1b[2K")  # and is taken away


def test_a_forecast_that_goes_wrong_stops_nothing() -> None:
    def forecasts() -> Iterator[Forecast]:
        raise ValueError("cannot be run")
        yield

    progress = Progress("on")
    progress.expect(forecasts())
    assert progress.remaining.seconds(0.0) is None


def test_time_left_follows_what_was_seen() -> None:
    left = Remaining(0.0)
    left.expect({"a": 10.0, "b": 20.0}, 0.0)
    assert left.seconds(0.0) == 30.0
    left.start("a", 0.0)
    assert left.seconds(4.0) == 26.0
    left.start("b", 20.0)  # it took twice as long, and so will the next
    assert left.seconds(20.0) == 40.0
    left.advance(1, 100, 21.0)  # and this pass will take longer than all that
    assert left.seconds(21.0) == 99.0
    assert left.share(21.0) == 21.0 / 120.0


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_is_said_in_a_sentence(folder: Path) -> None:
    with open("/dev/full", "w") as full:
        ran = subprocess.run([*COMMAND, "mlp.onnx"], cwd=folder, stdout=full, stderr=subprocess.PIPE, text=True)
    assert ran.returncode == 2
    assert ran.stderr == "error GC201: the output cannot be written: No space left on device\n"
    (folder / "r.json").symlink_to("/dev/full")
    ran = run("mlp.onnx", "--report", "r.json", cwd=folder)
    assert ran.returncode == 2
    assert ran.stderr == "error GC201: --report r.json cannot be written: No space left on device\n"
    with open("/dev/full", "w") as full:
        for line in ("--help", "inspect mlp.onnx"):
            ran = subprocess.run([*COMMAND, *line.split()], cwd=folder, stdout=full, stderr=subprocess.PIPE, text=True)
            assert ran.returncode == 2, line
            assert ran.stderr == "error GC201: the output cannot be written: No space left on device\n"


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_names_in_any_script_reach_any_terminal(folder: Path, encoding: str) -> None:
    models.named(folder / "wide.onnx", "入力", "потеря")
    terminal = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": encoding}
    for args in (["wide.onnx"], ["wide.onnx", "--x", "入"], ["inspect", "wide.onnx"], ["--help"]):
        ran = subprocess.run([*COMMAND, *args], cwd=folder, capture_output=True, env={**os.environ, **terminal})
        assert b"Traceback" not in ran.stderr
        assert ran.returncode == (2 if "--x" in args else 0), ran.stderr


ENDING = """
import atexit, sys, threading, time
class Kept:
    def __del__(self): print("taken apart")
kept = Kept()
def late():
    time.sleep(0.2)
    atexit.register(print, "told")
threading.Thread(target=late).start()
{}
from gradcheck_cli.cli import run
sys.argv = ["gradcheck", {!r}]
run()
"""


@pytest.mark.parametrize(
    "before, option, code, said",
    [
        ("", "--version", 0, ["told"]),
        ("", "--nosuch", 2, ["told"]),
        ("atexit.register(print, 'before')", "--version", 0, ["told", "before", "taken apart"]),
    ],
)
def test_a_process_waits_for_threads_and_functions_at_its_end_and_for_nothing_else(
    tmp_path: Path, before: str, option: str, code: int, said: list[str]
) -> None:
    program = ENDING.format(before, option)
    ran = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=6000)
    assert (ran.returncode, ran.stdout.splitlines()[-len(said) :]) == (code, said), ran.stderr
    assert ("taken apart" in ran.stdout) == bool(before)


def test_a_shell_that_asks_for_words_is_told_nothing_else(tmp_path: Path) -> None:
    ran = run(cwd=tmp_path, _GRADCHECK_COMPLETE="bash_complete", COMP_LINE="gradcheck --vers", COMP_WORD="--vers")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "plain\t--version\n", "")


def test_a_bug_is_one_line_and_a_file(folder: Path) -> None:
    program = "import gradcheck_cli.checks.procedure as c, sys\nfrom gradcheck_cli.cli import main\n"
    program += "def bad(*a, **k): raise KeyError('oops')\nc.Procedure = bad\nsys.exit(main(['mlp.onnx']))\n"
    ran = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True)
    first, second = ran.stderr.splitlines()
    assert (ran.returncode, first) == (70, "error GC901: a bug of gradcheck: KeyError: 'oops'")
    path = Path(second.split()[4].rstrip("."))
    assert "KeyError: 'oops'" in path.read_text()
    path.unlink()


LOST = """
import signal, sys, time, weakref
from gradcheck_cli.cli import interrupts

interrupts.install()

class Thing:
    pass

def interrupted(_):
    signal.raise_signal(signal.SIGINT)

thing = Thing()
kept = weakref.ref(thing, interrupted)
del thing  # Python drops what the callback raises
try:
    time.sleep(20)
except KeyboardInterrupt:
    interrupts.heard()
    print("came again")
"""
LOADING = """
import signal, time
from importlib.machinery import ExtensionFileLoader
from gradcheck_cli.cli import interrupts

interrupts.install()

class Loader(ExtensionFileLoader):
    def exec_module(self, module):
        (lambda: signal.raise_signal(signal.SIGINT))()  # such as onnx's and nanobind's enums: what raises there crashes
        print("loaded")

try:
    Loader("extension", "extension.so").exec_module(None)
    time.sleep(20)
except KeyboardInterrupt:
    interrupts.heard()
    print("came again")
"""
SWALLOWED = """
import signal, time
from gradcheck_cli.cli import interrupts

interrupts.install()
try:  # as a library that takes any error of a look-up for a missing attribute
    signal.raise_signal(signal.SIGINT)
except KeyboardInterrupt:
    pass
try:
    time.sleep(20)
except KeyboardInterrupt:
    interrupts.heard()
    print("came again")
time.sleep(3.5)
print("once")
"""


@pytest.mark.parametrize("script, printed", [
    (LOST, "came again\n"), (SWALLOWED, "came again\nonce\n"), (LOADING, "loaded\ncame again\n"),
], ids=["in a callback", "swallowed", "while an extension is loaded"])  # fmt: skip
def test_an_interrupt_comes_again_until_it_is_heard(script: str, printed: str) -> None:
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == (printed, "")


TWICE = """
import signal, sys, time
from gradcheck_cli.cli import interrupts

interrupts.install()
try:
    signal.raise_signal(signal.SIGINT)
except KeyboardInterrupt:
    interrupts.heard({})
print("first", flush=True)
{}
try:
    signal.raise_signal(signal.SIGINT)
except KeyboardInterrupt:
    print("heard again", flush=True)
"""
INTERRUPTING = """
import io, signal, sys
from gradcheck_cli.cli import run

class Interrupting(io.TextIOWrapper):  # whenever something is written
    def write(self, text):
        signal.raise_signal(signal.SIGINT)
        return super().write(text)

sys.stdout, sys.stderr = (Interrupting(stream.buffer, write_through=True) for stream in (sys.stdout, sys.stderr))
sys.argv = ["gradcheck", "mlp.onnx"]
run()
"""


@posix
@pytest.mark.parametrize("heard, between, code, out, err", [
    ("", "", 130, "first\n", "interrupted\n"),
    ("", "interrupts.done(5)", 5, "first\n", ""),
    ("last=False", "", 0, "first\nheard again\n", ""),
])  # fmt: skip
def test_a_second_ctrl_c_ends_at_once(heard: str, between: str, code: int, out: str, err: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", TWICE.format(heard, between)], capture_output=True, text=True, timeout=60
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (code, out, err)


BECOMES_ANOTHER = """
import signal, sys
import {module} as changed
from gradcheck_cli.cli import run

def becomes_another(*arguments, **options):
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        raise TypeError("expected a message argument") from None

{name} = becomes_another
sys.argv = ["gradcheck", "mlp.onnx", "--report", "r.json"]
run()
"""


@posix
@pytest.mark.parametrize("module, name, said", [
    ("gradcheck_cli.report", "changed.write", "interrupted"),
    ("gradcheck_cli.checks.procedure", "changed.Procedure.run", "interrupted after 0 of 1 model"),
    ("gradcheck_cli.cli.group", "changed.gradcheck.make_context", "interrupted"),
])  # fmt: skip
def test_an_interrupt_that_becomes_another_error_is_no_bug(module: str, name: str, said: str, folder: Path) -> None:
    script = BECOMES_ANOTHER.format(module=module, name=name)
    ran = subprocess.run([sys.executable, "-c", script], cwd=folder, capture_output=True, text=True, timeout=600)
    assert (ran.returncode, ran.stderr.splitlines()[-1]) == (130, said)
    assert "GC901" not in ran.stdout + ran.stderr


@posix
@pytest.mark.slow
@pytest.mark.parametrize("apart", [0.0, 0.02, 0.05, 0.1, 0.2, 0.4])
def test_two_ctrl_c_leave_no_traceback_whenever_they_come(folder: Path, apart: float) -> None:
    models.endless(folder / "endless.onnx")
    for wait in (0.15, 0.4, 1.5):
        arguments = [*COMMAND, "mlp.onnx", "endless.onnx", "--report", "r.html", "--timeout", "10m"]
        process = subprocess.Popen(arguments, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        time.sleep(wait)
        for _ in range(2):
            process.send_signal(signal.SIGINT)
            time.sleep(apart)
        _, err = process.communicate(timeout=60)
        started = wait > 0.3  # before that it is Python that starts, and ends as Python does
        assert not started or (process.returncode, "Traceback" in err) == (130, False), err


def test_another_interrupt_while_the_first_is_told_ends_it(folder: Path) -> None:
    ran = subprocess.run([sys.executable, "-c", INTERRUPTING], cwd=folder, capture_output=True, text=True, timeout=600)
    assert (ran.returncode, ran.stdout, ran.stderr) == (130, "", "interrupted\n")


SLOW = {
    "a check": ("conv.onnx", "--x", "image", "--y", "c", "--dim", "N=64", "--mode", "full", "--method", "richardson"),
    "a check with limits": ("mlp.onnx", "--points", "100000", "--timeout", "10m"),
    "a zoo": ("zoo", "models", "--run", "run", "-j", "2", "--forward", "internal"),
}


def test_an_interrupt_that_a_library_has_turned_into_an_error_is_one(
    gradcheck: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in the import of a module in C, which fails with an ImportError."""

    def interrupted(*_: Any, **__: Any) -> None:
        raise ImportError("initialization failed") from KeyboardInterrupt()

    monkeypatch.setattr(plot, "write", interrupted)
    ran = gradcheck("mlp.onnx", "--x", "input", "--plot", "plot.png")
    assert (ran.code, ran.err.splitlines()[-1]) == (130, "interrupted")


@posix
@pytest.mark.parametrize("arguments", SLOW.values(), ids=SLOW)
@pytest.mark.parametrize("times", [2, *(pytest.param(times, marks=pytest.mark.slow) for times in (3, 4, 5))])
def test_interrupts_in_a_row_end_it_without_a_traceback(arguments: tuple[str, ...], times: int, folder: Path) -> None:
    (folder / "models").mkdir()
    for index in range(30):
        models.conv(folder / f"models/{index}.onnx")
    process = subprocess.Popen(
        [*COMMAND, *arguments], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    time.sleep(1)
    for number in range(times):
        process.send_signal(signal.SIGINT)
        time.sleep(0.003 * 4**number)
    _, err = process.communicate(timeout=600)
    assert process.returncode in (130, 0 if "zoo" in arguments else 130)
    assert "Traceback" not in err
    assert "Exception ignored" not in err
    assert process.returncode == 0 or err.rstrip().splitlines()[-1].startswith("interrupted")
