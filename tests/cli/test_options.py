"""Every option has an effect, and the same one wherever it is said: typed, in the environment, in a file."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import numpy_helper

from gradcheck_cli.settings import OPTIONS, options_at
from tests.cli import models
from tests.cli.conftest import WRONG, Command
from tests.cli.models import KINKS, QUANTIZED

BASE = ("mlp.onnx", "--y", "loss", "--output-format", "json")


@dataclass(frozen=True)
class Said:
    """One option as it is typed, set in the environment, and written in gradcheck.toml, beside what else is typed."""

    name: str
    typed: tuple[str, ...]
    variable: str
    toml: str
    beside: tuple[str, ...] = BASE


def said(name: str, value: str, toml: str = "", beside: tuple[str, ...] = BASE) -> Said:
    option = f"--{name.replace('_', '-')}"
    return Said(name, (option, value), value, f"{name} = {toml or json.dumps(value)}", beside)


def flag(name: str, beside: tuple[str, ...] = BASE) -> Said:
    return Said(name, (f"--{name.replace('_', '-')}",), "1", f"{name} = true", beside)


SPEC = ("wrong.gradcheck.yaml", "--output-format", "json")
TEXT = ("wrong.gradcheck.yaml",)
SAID = [
    said("x", "W"),
    said("y", "h", beside=("mlp.onnx", "--output-format", "json")),
    flag("params"),
    said("param", "W"),
    said("grad", "input=a", '{input = "a"}'),
    said("grad_model", "mlp.onnx", beside=(*BASE, "--grad", "input=a")),
    Said("expression", ("-k", "right"), "right", 'expression = "right"', SPEC),
    said("check", "sum/right", beside=SPEC),
    said("mode", "directional"),
    said("max_entries", "3", "3", (*BASE, "--mode", "sampled")),
    said("x_shape", "input:3,4", '{input = "3x4"}'),
    said("y_shape", "h:2,3", "{h = [2, 3]}", beside=("mlp.onnx", "--y", "h", "--output-format", "json")),
    said("dim", "N=3", "{N = 3}"),
    said("x_init_value", "input=[[1, 2, 3, 4]]", "{input = [[1, 2, 3, 4]]}"),
    said(
        "extra_feed_dict", "a=[[0.5, 1, 2]]", "{a = [[0.5, 1, 2]]}", ("mlp.onnx", *BASE[3:], "--x", "a", "--y", "loss")
    ),
    said("init_targets", "trained", beside=("init.gradcheck.yaml", "--output-format", "json")),
    said("test_data", "data"),
    said("val_range", "5,6", "[5, 6]"),
    said("points", "3", "3"),
    said("point", "2", "2"),
    said("seed", "5", "5"),
    said("method", "richardson"),
    said("delta", "0.01", "0.01"),
    said("dtype", "model"),
    said("forward", "internal"),
    said("rtol", "input:1e-3", "{input = 1e-3}"),
    said("atol", "1e-3", "1e-3"),
    said("max_inconclusive", "1", "1.0", ("kinks.gradcheck.yaml", "--output-format", "json")),
    Said(
        "coloring",
        ("--no-coloring",),
        "0",
        "coloring = false",
        ("conv.onnx", "--x", "image", "--y", "c", "--dim", "N=32", "--output-format", "json"),
    ),
    flag("second_order"),
    said("compat", "tf"),
    flag("straight_through", ("quantized.gradcheck.yaml", "--output-format", "json")),
    said("fail_on", "inconclusive", '["inconclusive"]', SPEC),
    said("select", "GC3", '["GC3"]', SPEC),
    said("ignore", "GC101", '["GC101"]', SPEC),
    flag("health", ("mlp.onnx", "--y", "loss")),
    flag("exit_zero", SPEC),
    flag("fail_fast", SPEC),
    said("baseline", "before.json", beside=SPEC),
    said("timeout", "0.000001"),
    said("memory_limit", "100B", beside=(*BASE, "--mode", "full")),
    flag("allow_python", ("python.gradcheck.yaml", "--output-format", "json")),
    said("output_format", "concise", beside=TEXT),
    said("report", "out.md", beside=("mlp.onnx", "--y", "loss")),
    said("plot", "out.svg", beside=("mlp.onnx", "--y", "loss")),
    flag("heatmap", ("mlp.onnx", "--y", "loss")),
    said("show", "1", "1", TEXT),
    Said("verbose", ("-v",), "1", "verbose = 1", ("mlp.onnx", "--y", "loss")),
    Said("quiet", ("-q",), "1", "quiet = 1", ("mlp.onnx", "--y", "loss")),
    said("color", "always", beside=TEXT),
]
ELSEWHERE = {
    "jobs": "threads do not change what is found: tests/native/test_kernels.py",
    "engine": "needs a cluster: tests/cluster/test_commands.py",
    "dask": "needs a cluster: tests/cluster/test_commands.py",
    "progress": "is drawn after a second: test_process.py",
    "save_failures": "leaves files: test_bundles.py",
    "watch": "goes on until Ctrl-C: test_watch.py",
}
every_option = pytest.mark.parametrize("each", SAID, ids=[each.name for each in SAID])


def test_every_option_is_here() -> None:
    assert {option.name for option in options_at("check")} == {each.name for each in SAID} | ELSEWHERE.keys()


@pytest.fixture
def place(folder: Path) -> Path:
    """The folder with files that options speak of."""
    (folder / "kinks.gradcheck.yaml").write_text(KINKS)
    (folder / "quantized.gradcheck.yaml").write_text(QUANTIZED)
    (folder / "init.gradcheck.yaml").write_text(INIT)
    (folder / "python.gradcheck.yaml").write_text(PYTHON)
    (folder / "before.json").write_text(BEFORE)
    data = folder / "data"
    data.mkdir()
    arrays = [np.full((5, 4), 0.25, np.float32), np.ones(2, np.float32)]
    for index, array in enumerate(arrays):
        (data / f"input_{index}.pb").write_bytes(numpy_helper.from_array(array).SerializeToString())
    return folder


def outcome(gradcheck: Command, place: Path, *args: str) -> tuple[Any, ...]:
    """Result of a run, without its times and the words that were typed."""
    for old in place.glob("out.*"):
        old.unlink()
    ran = gradcheck(*args)
    if ran.code == 6:  # where it was when time was up differs
        return (6,)
    written = [path.read_text() for path in sorted(place.glob("out.*"))]
    texts = [re.sub(r'"(duration_s|peak_rss_mb)": [\d.]+', "", text) for text in (ran.out, ran.err, *written)]
    texts = [re.sub(r"in \d+\.\d+s|\S*gradcheck \S+\.gradcheck\.yaml.*|\"?reproduce.*", "", text) for text in texts]
    return ran.code, *(text.replace(f"{place}/", "") for text in texts)


@pytest.mark.one_in(8)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # a file open when time was up
@pytest.mark.parametrize("each", [each for each in SAID if each.name != "y_shape"], ids=lambda each: each.name)
def test_an_option_has_an_effect(gradcheck: Command, place: Path, each: Said) -> None:
    """The shape of y alone has none where it is right; an error where it is wrong is a case of tests/cli/test_errors.py."""
    assert outcome(gradcheck, place, *each.beside, *each.typed) != outcome(gradcheck, place, *each.beside)


@pytest.mark.one_in(12)
@every_option
def test_the_environment_says_the_same_as_the_command_line(
    gradcheck: Command, place: Path, monkeypatch: pytest.MonkeyPatch, each: Said
) -> None:
    typed = outcome(gradcheck, place, *each.beside, *each.typed)
    monkeypatch.setenv(f"GRADCHECK_{each.name.upper()}", each.variable)
    assert outcome(gradcheck, place, *each.beside) == typed


@pytest.mark.one_in(12)
@pytest.mark.parametrize("each", [each for each in SAID if each.name != "allow_python"], ids=lambda each: each.name)
def test_a_file_says_the_same_as_the_command_line(gradcheck: Command, place: Path, each: Said) -> None:
    typed = outcome(gradcheck, place, *each.beside, *each.typed)
    (place / "gradcheck.toml").write_text(each.toml)
    assert outcome(gradcheck, place, *each.beside) == typed


def test_several_values_in_the_environment_are_words(
    gradcheck: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models.named(folder / "odd.onnx", "in put", "out put")
    monkeypatch.setenv("GRADCHECK_X", "'in put'")
    monkeypatch.setenv("GRADCHECK_RTOL", "'in put:1e-3' 'out put:1e-2'")
    [record] = json.loads(gradcheck("odd.onnx", "--output-format", "json").out)["checks"]
    assert (record["x"], record["rtol"]) == ("in put", 1e-3)


@pytest.mark.parametrize("variable, message", [
    ("GRADCHECK_RTLO", "GRADCHECK_RTLO is set in the environment, but there is no such option. Did you mean 'GRADCHE"),
    ("GRADCHECK_MODELS", "GRADCHECK_MODELS is set in the environment, but there is no such option."),
    ("GRADCHECK_THIRD_ORDER", "GRADCHECK_THIRD_ORDER is set in the environment, but there is no such option."),
])  # fmt: skip
@pytest.mark.parametrize("command", ["check", "inspect"])
def test_a_variable_that_names_no_option_is_an_error(
    gradcheck: Command, monkeypatch: pytest.MonkeyPatch, command: str, variable: str, message: str
) -> None:
    monkeypatch.setenv(variable, "1")
    ran = gradcheck(command, "mlp.onnx")
    assert ran.code == 2
    assert ran.err.startswith(f"error GC201: {message}")


@pytest.mark.parametrize("variable, value, message", [
    ("GRADCHECK_RTOL", "abc", "GRADCHECK_RTOL in the environment: --rtol abc: 'abc' is no number"),
    ("GRADCHECK_SEED", "abc", "Invalid value for 'GRADCHECK_SEED': 'abc' is neither a number nor 'random'"),
    ("GRADCHECK_MAX_INCONCLUSIVE", "nan", "Invalid value for 'GRADCHECK_MAX_INCONCLUSIVE': 'nan' is no number."),
    ("GRADCHECK_MEMORY_LIMIT", "abc", "Invalid value for 'GRADCHECK_MEMORY_LIMIT': 'abc' is no size"),
])  # fmt: skip
def test_a_wrong_value_of_a_variable_is_told_by_its_name(
    gradcheck: Command, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, message: str
) -> None:
    monkeypatch.setenv(variable, value)
    ran = gradcheck("check", "mlp.onnx")
    assert ran.code == 2
    assert ran.err.startswith(f"error GC201: {message}")


@pytest.mark.parametrize("limit", ["99999999TB", "1000000000000000000000GiB", "9223372036854775807B"])
def test_a_memory_limit_beyond_all_addresses_limits_nothing(gradcheck: Command, limit: str) -> None:
    assert gradcheck("mlp.onnx", "--memory-limit", limit).code == 0


INIT = """gradcheck: 1
graphs:
  net:
    inputs: {x: {shape: [2]}}
    params: {W: {shape: [2, 2], init: ones}}
    nodes: |
      y = MatMul (x, W)
    outputs: [y]
init: {trained: {W: {kind: constant, value: 3.0}}}
checks: [{x: x, y: y}]
"""
PYTHON = """gradcheck: 1
ops: {acme.Twice: {python: "tests.cli.models:twice"}}
graphs:
  net:
    inputs: {x: {shape: [2]}}
    nodes: |
      y = acme.Twice (x)
    outputs: [y]
"""
BEFORE = json.dumps({
    "schema": "gradcheck.run/1",
    "exit_code": 1,
    "checks": [{"id": "square/wrong::d loss/d x", "status": "fail", "code": "GC101"}],
})  # fmt: skip
assert "square/wrong" in WRONG


def test_an_option_is_called_by_its_long_word_if_it_has_one() -> None:
    for option in OPTIONS.values():
        assert option.spelling in option.spellings
        assert option.spelling.startswith("--") or not any(word.startswith("--") for word in option.spellings)
