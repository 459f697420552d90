"""`--health`, the line that is always there, and `--fail-on` with words of a gradient's health."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from gradcheck_cli.report.json_records import result_schema
from gradcheck_cli.results.measures import WORDS
from tests.cli.conftest import Command

EVERY = "nonfinite,dead,vanishing,exploding,precision"
DEEP = "\n".join(f"      h{i} = MatMul ({f'a{i - 1}' if i else 'x'}, W)\n      a{i} = {{op}} (h{i})" for i in range(12))
SPEC = """gradcheck: 1
graphs:
  net:
    inputs: {{x: {{shape: [32, 4], dtype: float32}}}}
    params: {{W: {{shape: [4, 4], init: {{kind: orthogonal, gain: {gain}}}}}}}
    nodes: |
{nodes}
      y = Identity (a11)
    outputs: [y]
checks: [{{name: net, graph: net, x: x, y: y}}]
"""
RELU = """gradcheck: 1
graphs:
  net:
    inputs: {x: {shape: [32, 4]}}
    params: {b: {shape: [4], init: [-99, -99, 0, 0]}}
    nodes: |
      h = Add (x, b)
      r = Relu (h)
      y = Add (r, x)
    outputs: [y]
checks: [{name: net, graph: net, x: x, y: y}]
"""
ROOT = """gradcheck: 1
graphs:
  net:
    inputs: {x: {shape: [1]}}
    nodes: |
      y = Sqrt (x)
    outputs: [y]
checks: [{name: net, graph: net, x: x, y: y, x_init_value: [0]}]
"""
NARROW = """gradcheck: 1
graphs:
  net:
    inputs: {x: {shape: [2], dtype: float16}}
    nodes: |
      y = Exp (x)
    outputs: [y]
checks: [{name: net, graph: net, x: x, y: y, x_init_value: [12, 1]}]
"""


def deep(op: str, gain: float) -> str:
    return SPEC.format(gain=gain, nodes=DEEP.format(op=op))


ILL = {
    "nonfinite": ROOT,
    "dead": RELU,
    "vanishing": deep("Sigmoid", 1.0),
    "exploding": deep("LeakyRelu", 16.0),
    "precision": NARROW,
}


@pytest.fixture
def ill(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A spec for each illness, and one that is well, in a folder from which 80 columns are asked for."""
    monkeypatch.setenv("COLUMNS", "80")
    for word, text in {**ILL, "well": deep("Tanh", 1.2)}.items():
        (folder / f"{word}.gradcheck.yaml").write_text(text)
    return folder


# On one line


def test_every_word_of_health_has_a_case_here_and_is_named_where_one_looks_for_it(gradcheck: Command) -> None:
    assert {*ILL} == {*EVERY.split(",")} == {*WORDS}
    page = Path(__file__).parents[2] / "docs/pages/guides/health.md"
    for told in (gradcheck("check", "--help").out, page.read_text("utf-8")):
        assert [word for word in WORDS if not re.search(rf"\b{word}\b", told)] == []


def test_a_line_below_the_table_says_how_the_gradient_is(gradcheck: Command, ill: Path) -> None:
    lines = gradcheck("well.gradcheck.yaml").out.splitlines()
    row = next(i for i, line in enumerate(lines) if line.endswith("  PASS"))
    assert lines[row + 1].startswith("  health     norm ")
    sentence = lines[row + 1 : lines.index("", row)]
    assert " ".join(map(str.strip, sentence)).endswith(" (24 layers)")


@pytest.mark.parametrize(
    "word, said",
    [
        ("dead", "2 of 4 units dead (node 1 Relu 'r')"),
        ("vanishing", ": vanishing, most at node "),
        ("exploding", ": exploding, most at node "),
    ],
)
def test_the_line_names_what_is_wrong_and_where(gradcheck: Command, ill: Path, word: str, said: str) -> None:
    out = gradcheck(f"{word}.gradcheck.yaml").out
    assert said in " ".join(out.split())
    assert max(map(len, out.splitlines())) <= 80


def test_of_a_gradient_that_is_wrong_nothing_is_said(gradcheck: Command) -> None:
    ran = gradcheck("wrong.gradcheck.yaml", "-k", "wrong")
    assert (ran.code, "health" in ran.out) == (1, False)


def test_of_several_gradients_there_is_one_line(gradcheck: Command) -> None:
    out = gradcheck("mlp.onnx").out
    assert [line[:17] for line in out.splitlines() if "health" in line] == ["  health     norm"]
    assert "norms " in out


def test_quiet_says_nothing_of_it(gradcheck: Command, ill: Path) -> None:
    assert gradcheck("vanishing.gradcheck.yaml", "-q").out == "1 check: 1 passed in TIME\n"


@pytest.mark.parametrize("name", [*ILL, "well"])
def test_records_fit_their_schema(gradcheck: Command, ill: Path, name: str) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    ran = gradcheck(f"{name}.gradcheck.yaml", "--fail-on", EVERY, "--output-format", "json")
    document = json.loads(ran.out)
    assert list(jsonschema.Draft7Validator(result_schema()).iter_errors(document)) == []
    assert {"health", "precision"} <= document["checks"][0]["gradient"].keys()


# In full


def test_health_shows_every_layer(gradcheck: Command, ill: Path) -> None:
    lines = gradcheck("dead.gradcheck.yaml", "--health").out.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("Health of d y / d x: norm "))
    assert lines[start + 1].split() == ["node", "layer", "gradient", "zeros", "of", "weights", "dead", "saturated"]
    assert lines[start + 2].split()[:3] == ["1", "Relu", "r"]
    assert lines[start + 2].split()[-2:] == ["2/4", "0/4"]
    assert lines[start + 3] == "  2 of 4 units dead (node 1 Relu 'r')"


def test_health_shows_that_of_a_wrong_gradient_too(gradcheck: Command) -> None:
    assert "Health of d loss / d x: norm " in gradcheck("wrong.gradcheck.yaml", "-k", "wrong", "--health").out


@pytest.mark.parametrize("name", [*ILL, "well"])
def test_no_line_is_wider_than_80_columns(gradcheck: Command, ill: Path, name: str) -> None:
    out = gradcheck(f"{name}.gradcheck.yaml", "--health", "--fail-on", "nonfinite,dead,vanishing,exploding").out
    assert [line for line in out.splitlines() if len(line) > 80 and "reproduce" not in line] == []


# As a gate


@pytest.mark.parametrize("word", ILL)
def test_a_gate_stops_the_run_at_what_it_is_for(gradcheck: Command, ill: Path, word: str) -> None:
    ran = gradcheck(f"{word}.gradcheck.yaml", "--fail-on", word, "--output-format", "json")
    [record] = json.loads(ran.out)["checks"]
    assert (ran.code, record["gates"]) == (1, [word])
    assert record["status"] in ("pass", "inconclusive")
    assert word in record["gradient"]["health"]["shows"]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("word", ILL)
def test_nobody_who_does_not_ask_is_stopped(gradcheck: Command, ill: Path, word: str) -> None:
    overflowing = {"nonfinite"} if word == "precision" else set()  # its gradient is not finite in float16
    others = ",".join({*EVERY.split(",")} - {word} - overflowing)
    for options in ([], ["--fail-on", "fail"], ["--fail-on", others], ["--fail-on", word, "--exit-zero"]):
        ran = gradcheck(f"{word}.gradcheck.yaml", *options, "--output-format", "json", "--max-inconclusive", "1")
        assert (ran.code, json.loads(ran.out)["checks"][0]["gates"]) == (0, []), options


def test_a_healthy_model_passes_all_gates(gradcheck: Command, ill: Path) -> None:
    assert gradcheck("well.gradcheck.yaml", "--fail-on", EVERY).code == 0


def test_words_of_health_come_on_top_of_the_outcomes_that_fail(gradcheck: Command, ill: Path) -> None:
    assert gradcheck("wrong.gradcheck.yaml", "-k", "wrong", "--fail-on", "dead").code == 1
    assert gradcheck("log.onnx", "--fail-on", "dead").code == 3
    assert gradcheck("log.onnx", "--fail-on", "fail,dead").code == 0


def test_what_is_waived_stops_at_no_gate(gradcheck: Command, folder: Path) -> None:
    nan = ROOT.replace("x_init_value: [0]", "x_init_value: [0], expect: {status: inconclusive, reason: known}")
    (folder / "known.gradcheck.yaml").write_text(nan)
    assert gradcheck("known.gradcheck.yaml", "--fail-on", "nonfinite", "--max-inconclusive", "0").code == 0


def test_a_gate_says_so_in_every_format(gradcheck: Command, ill: Path) -> None:
    said = "its gradient is dead (--fail-on dead)"
    for name in ("full", "concise", "github", "gitlab", "markdown", "junit"):
        ran = gradcheck("dead.gradcheck.yaml", "--fail-on", "dead", "--output-format", name)
        assert (ran.code, said in ran.out.replace("\\", "")) == (1, True), name
    lines = gradcheck("dead.gradcheck.yaml", "--fail-on", "dead", "-q").out.splitlines()
    assert "GATE  d y / d x: its gradient is dead (--fail-on dead)" in lines
    assert lines[-1] == "1 check: 1 passed, 1 stopped by the health of gradients in TIME"


def test_junit_counts_a_gate_as_a_failure(gradcheck: Command, ill: Path) -> None:
    out = gradcheck("dead.gradcheck.yaml", "--fail-on", "dead", "--output-format", "junit").out
    assert ElementTree.fromstring(out.split("\n", 1)[1]).get("failures") == "1"


def test_fail_fast_stops_at_a_gate(gradcheck: Command, ill: Path) -> None:
    ran = gradcheck("dead.gradcheck.yaml", "well.gradcheck.yaml", "--fail-on", "dead", "--fail-fast")
    assert ran.out.splitlines()[-1] == "1 check: 1 passed, 1 stopped by the health of gradients in TIME"


# Precision


def test_the_gate_of_precision_looks_at_the_models_own_dtype(gradcheck: Command, ill: Path) -> None:
    ran = gradcheck("precision.gradcheck.yaml", "--fail-on", "precision")
    assert ran.code == 1
    text = " ".join(ran.out.split())
    assert "float16 keeps " in text
    assert "2 entries not finite; first overflow at node 0 Exp 'y'" in text
    assert "float16 model, checked in float64, and in its own precision" in text


def test_float64_and_the_gate_of_precision_contradict_each_other(gradcheck: Command, ill: Path) -> None:
    ran = gradcheck("precision.gradcheck.yaml", "--fail-on", "precision", "--dtype", "float64")
    assert (ran.code, "--fail-on precision" in ran.err) == (2, True)


def test_without_being_asked_nothing_is_said_of_precision_but_that_it_overflows(gradcheck: Command, ill: Path) -> None:
    assert "precision" not in gradcheck("well.gradcheck.yaml").out
    assert "2 entries not finite; first overflow at" in gradcheck("precision.gradcheck.yaml").out


def test_dtype_model_says_how_many_digits_are_left(gradcheck: Command) -> None:
    ran = gradcheck("mlp.onnx", "--x", "input", "--y", "loss", "--dtype", "model")
    assert ran.code == 0
    assert "  precision  float32 keeps " in ran.out
    assert " of 7.2 digits at the median" in ran.out
