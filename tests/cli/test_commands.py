"""The other commands: inspect, ops, explain, schema, completion."""

from __future__ import annotations

import json
import re
from pathlib import Path
from textwrap import dedent

import pytest

from gradcheck_cli.cli import main
from gradcheck_cli.report.explanations import FAMILIES, PAGES
from tests.cli.conftest import Command


def test_help_fits_80_columns_and_lists_the_commands(gradcheck: Command) -> None:
    for args in (["--help"], ["check", "-h"], ["mlp.onnx", "--help"]):
        ran = gradcheck(*args)
        assert ran.code == 0
        assert max(map(len, ran.out.splitlines())) <= 80
    listed = re.findall(r"^│ (\w+) ", gradcheck("--help").out, re.MULTILINE)
    assert listed == [
        "check", "zoo", "grad", "step", "diff", "inspect", "init", "config", "reproduce", "report", "prove", "fuzz",
        "conformance", "ops", "explain", "schema", "completion",
    ]  # fmt: skip


@pytest.mark.parametrize("group", ["", "zoo", "conformance"])
def test_without_arguments_help_goes_to_stderr_and_the_run_fails(group: str, gradcheck: Command) -> None:
    ran = gradcheck(*group.split())
    assert (ran.code, ran.out) == (2, "")
    assert f"Usage: gradcheck {group}" in ran.err
    assert "error" not in ran.err


def test_inspect_shows_tensors_and_cost(gradcheck: Command) -> None:
    assert gradcheck("inspect", "mlp.onnx").out == INSPECTED


INSPECTED = """\
mlp.onnx  opset 17, acme 1, 4 nodes

inputs (2)
  input    [N,4]  float32  checked as x
  aux_in   [2]    float32  checked as x
weights
  W        [4,3]  float32  has a gradient  (weight: several values, on a path to y)
outputs (2)
  loss     []     float32  checked as y
  aux_out  [2]    float32  checked as y

operators  MatMul 1, Tanh 1, ReduceSum 1, Exp 1
dims       N=2

x            y            entries  runs  about
input [2,4]  loss []            8     9   <1 s
aux_in [2]   aux_out [2]        4     4   <1 s
"""


def test_inspect_names_what_blocks(gradcheck: Command) -> None:
    ran = gradcheck("inspect", "unknown.onnx")
    assert ran.code == 0
    assert "blocked    node 1 Magic 'y' cannot be computed; it stops d y/d x" in ran.out


def test_inspect_as_json(gradcheck: Command) -> None:
    found = json.loads(gradcheck("inspect", "mlp.onnx", "--output-format", "json").out)
    assert (found["schema"], found["x"], found["y"]) == (
        "gradcheck.inspection/1", ["input", "aux_in"], ["loss", "aux_out"],
    )  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_of_codes_is_listed(gradcheck: Command, family: str) -> None:
    for spelling in (family, f"{family.lower()}xx", family.removeprefix("GC")):
        listed = re.findall(r"^  (GC\d{3})  ", gradcheck("explain", spelling).out, re.MULTILINE)
        assert listed == [code for code in PAGES if code.startswith(family)]


@pytest.mark.parametrize("code", PAGES)
def test_every_code_has_a_page_of_80_columns(gradcheck: Command, code: str) -> None:
    ran = gradcheck("explain", code.lower())
    assert ran.out.startswith(f"{code}  ")
    assert code[:3] in FAMILIES
    assert max(map(len, ran.out.splitlines())) <= 80


def test_the_page_on_operators_of_ones_own_is_listed_and_its_example_passes(gradcheck: Command) -> None:
    page = gradcheck("explain", "ops").out
    assert page.splitlines()[0] in gradcheck("explain").out.splitlines()
    assert max(map(len, page.splitlines())) <= 80
    example = page[page.index("  gradcheck: 1") : page.index("To check an ONNX file")]
    Path("softplus.gradcheck.yaml").write_text(dedent(example), "utf-8")
    ran = gradcheck("softplus.gradcheck.yaml", "--output-format", "json")
    assert [record["status"] for record in json.loads(ran.out)["checks"]] == ["pass"]
    keys = json.loads(gradcheck("schema", "spec").out)["definitions"]["OperatorSpec"]["properties"]
    assert {key for key in keys if re.search(rf"^  {key} ", page, re.MULTILINE)} == {*keys}


def test_every_code_of_the_sources_has_a_page() -> None:
    root = Path(__file__).parents[2] / "gradcheck_cli"
    used = {code for path in root.rglob("*.py") for code in re.findall(r"\bGC\d{3}\b", path.read_text("utf-8"))}
    assert used - {"GC999"} <= set(PAGES)


def test_schemas_are_json(gradcheck: Command) -> None:
    for kind in ("spec", "result"):
        assert json.loads(gradcheck("schema", kind).out)["$schema"] == "http://json-schema.org/draft-07/schema#"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script(gradcheck: Command, shell: str) -> None:
    assert "_GRADCHECK_COMPLETE" in gradcheck("completion", shell).out


@pytest.mark.parametrize("line, expected", [
    ("gradcheck mlp.onnx --x in", {"input"}),
    ("gradcheck --y l", set()),
    ("gradcheck --method central mlp.onnx --x W", {"W"}),
    ("gradcheck mlp.onnx --y lo", {"loss"}),
    ("gradcheck mlp.onnx --meth", {"--method"}),
    ("gradcheck mlp.onnx --method ce", {"central"}),
    ("gradcheck insp", {"inspect"}),
])  # fmt: skip
def test_a_shell_completes_options_and_tensors(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    line: str,
    expected: set[str],
) -> None:
    monkeypatch.setenv("_GRADCHECK_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_LINE", line)
    monkeypatch.setenv("COMP_WORD", line.split()[-1])
    assert main([]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert {row.partition("\t")[2] for row in rows} - {""} == expected
