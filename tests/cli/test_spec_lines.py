"""Findings of a spec's checks point to the line of the check; those of a model without a spec to its file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Command

SIDE_CAR = """gradcheck: 1
checks:
  - name: log/usual
    model: log.onnx
  - {name: log/narrow, model: log.onnx, val_range: [2.5, 3]}
"""
GRAPHS = """gradcheck: 1
graphs:
  one: {inputs: {x: {shape: [2]}}, nodes: "y = Log(x)", outputs: [y]}
  two:
    inputs: {x: {shape: [2], range: [-2, -1]}}
    nodes: ["y = Log(x)"]
    outputs: [y]
"""


@pytest.fixture
def specs(folder: Path) -> Path:
    """The folder, with specs below it: a side-car, one without checks, and one that is wrong."""
    (folder / "log.gradcheck.yaml").write_text(SIDE_CAR)
    (folder / "specs").mkdir()
    (folder / "specs" / "wrong.gradcheck.yaml").write_text((folder / "wrong.gradcheck.yaml").read_text())
    (folder / "specs" / "graphs.gradcheck.yaml").write_text(GRAPHS)
    (folder / "specs" / "bad.gradcheck.yaml").write_text("gradcheck: 1\nchecks:\n  - {model: a.onnx, detla: 1}\n")
    return folder


PLACES = [  # what is checked, the file of its first finding, the line there
    ("specs/wrong.gradcheck.yaml", "specs/wrong.gradcheck.yaml", 18),
    ("log.onnx", "log.gradcheck.yaml", 3),
    ("specs/graphs.gradcheck.yaml", "specs/graphs.gradcheck.yaml", 4),
    ("specs/bad.gradcheck.yaml", "specs/bad.gradcheck.yaml", 3),
    ("unknown.onnx", "unknown.onnx", 0),
    ("lfs.onnx", "lfs.onnx", 0),
]
placed = pytest.mark.parametrize("line, file, number", PLACES, ids=[line for line, _, _ in PLACES])


@placed
def test_a_line_of_concise_begins_with_the_place(
    gradcheck: Command, specs: Path, line: str, file: str, number: int
) -> None:
    told = gradcheck(*line.split(), "mlp.onnx", "--output-format", "concise").out.splitlines()
    start = f"{file}:{number}: " if number else f"{file}: "
    assert any(each.startswith(start) or f" {start[:-1]}" in each for each in told), told
    assert any(each.startswith("mlp.onnx: d loss/d input: PASS") for each in told)


@placed
def test_an_annotation_of_github_has_the_place(
    gradcheck: Command, specs: Path, line: str, file: str, number: int
) -> None:
    out = gradcheck(*line.split(), "--output-format", "github").out
    [first, *_] = [each for each in out.splitlines() if each.startswith("::")]
    level, _, rest = first.partition(" ")
    assert level in ("::error", "::warning")
    assert rest.startswith(f"file={file},line={number}," if number else f"file={file},title=")


@placed
def test_an_issue_of_gitlab_has_the_place(gradcheck: Command, specs: Path, line: str, file: str, number: int) -> None:
    [first, *_] = json.loads(gradcheck(*line.split(), "--output-format", "gitlab").out)
    assert first["location"] == {"path": file, "lines": {"begin": max(number, 1)}}


@placed
def test_a_result_of_sarif_has_the_place(gradcheck: Command, specs: Path, line: str, file: str, number: int) -> None:
    gradcheck(*line.split(), "--report", "out.sarif")
    [run] = json.loads((specs / "out.sarif").read_text())["runs"]
    found: Any = run["results"][0]["locations"][0]["physicalLocation"]
    assert (found["artifactLocation"]["uri"], found["region"]) == (file, {"startLine": max(number, 1)})


def test_each_check_has_its_own_line_in_a_zoo_too(gradcheck: Command, specs: Path) -> None:
    ran = gradcheck("zoo", "specs/wrong.gradcheck.yaml", "--run", "run", "--output-format", "concise")
    lines = [each for each in ran.out.splitlines() if "gradcheck.yaml" in each]
    assert [each.split(": ")[0] for each in lines] == [f"specs/wrong.gradcheck.yaml:{n}" for n in (18, 19, 21)]


def test_the_record_has_the_place_and_keeps_it(gradcheck: Command, specs: Path) -> None:
    gradcheck("specs/wrong.gradcheck.yaml", "mlp.onnx", "--report", "out.json")
    found = [record["place"] for record in json.loads((specs / "out.json").read_text())["checks"]]
    assert found[0] == {"file": "specs/wrong.gradcheck.yaml", "line": 18}
    assert found[-1] == {}
    again = gradcheck("report", "out.json", "--output-format", "concise").out
    assert again.startswith("specs/wrong.gradcheck.yaml:18: square/wrong: d loss/d x: FAIL GC101")


def test_a_spec_that_is_read_within_limits_has_lines_too(gradcheck: Command, specs: Path) -> None:
    ran = gradcheck("specs/wrong.gradcheck.yaml", "--timeout", "1m", "--output-format", "concise")
    assert ran.out.startswith("specs/wrong.gradcheck.yaml:18: ")


def test_versions_are_said_once_under_v(gradcheck: Command) -> None:
    wanted = "gradcheck 0.1.0, onnx "
    assert wanted not in gradcheck("mlp.onnx", "conv.onnx").out
    for line in ("mlp.onnx conv.onnx -v", "mlp.onnx conv.onnx -vv"):
        [said] = [each for each in gradcheck(*line.split()).out.splitlines() if each.startswith(wanted)]
        assert [part.split()[0] for part in said.split(", ")] == ["gradcheck", "onnx", "numpy", "python", "kernels"]
