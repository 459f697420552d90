"""A severed pair in whole commands: what fails a run, what is waived, what stays in files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gradcheck_cli.results import read_results
from gradcheck_cli.results.measures import Severed, Spot
from tests.cli.conftest import Command
from tests.diff.twins import net

SPEC = """
gradcheck: 1
graphs:
  a:
    inputs: {x: {shape: [3]}}
    nodes: |
      h = Round (x)
      y = Tanh (h)
    outputs: [y]
checks:
  - {name: cut, graph: a, x: x, y: y}
"""


def test_a_misspelt_input_of_cuts_is_an_error(gradcheck: Command, folder: Path) -> None:
    text = SPEC.replace("graphs:", "ops:\n  acme.A:\n    inputs: [x]\n    outputs: [y]\n    cuts: [z]\n"
                        "    forward: |\n      y = Round (x)\ngraphs:")  # fmt: skip
    (folder / "a.gradcheck.yaml").write_text(text)
    ran = gradcheck("a.gradcheck.yaml")
    assert (ran.code, "'z' is none of the inputs" in ran.err) == (2, True)


@pytest.mark.parametrize("options, code, said", [
    ([], 1, "NO GRADIENT GC107"), (["--fail-on", "-severed"], 0, "1 severed, not in --fail-on"),
    (["--fail-on", "fail"], 0, "1 severed, not in --fail-on"), (["--exit-zero"], 0, "1 severed"),
    (["--fail-on", "dead"], 1, "1 severed"), (["--straight-through"], 0, "1 passed"),
])  # fmt: skip
def test_it_fails_a_run_unless_the_run_says_otherwise(
    gradcheck: Command, folder: Path, options: list[str], code: int, said: str
) -> None:
    (folder / "a.gradcheck.yaml").write_text(SPEC)
    ran = gradcheck("a.gradcheck.yaml", *options)
    assert (ran.code, said in ran.out) == (code, True)


def test_what_is_meant_so_is_waived(gradcheck: Command, folder: Path) -> None:
    (folder / "a.gradcheck.yaml").write_text(SPEC.replace("y: y}", "y: y, expect: {status: severed}}"))
    assert gradcheck("a.gradcheck.yaml").code == 0
    both = SPEC.replace("graphs:", "defaults: {expect: {status: severed}}\ngraphs:")
    more = both + "  - {name: right, graph: a, x: h, y: y}\n"  # which is not severed, and need not be
    (folder / "a.gradcheck.yaml").write_text(more)
    ran = gradcheck("a.gradcheck.yaml")
    assert (ran.code, "1 passed, 1 known failure" in ran.out) == (0, True)


@pytest.mark.parametrize("command", ["check", "zoo"])
def test_the_defaults_of_a_file_without_checks_say_so(gradcheck: Command, folder: Path, command: str) -> None:
    graphs = SPEC[: SPEC.index("checks:")].replace("graphs:", "defaults: {expect: {status: severed}}\ngraphs:")
    (folder / "many").mkdir()
    (folder / "many" / "a.gradcheck.yaml").write_text(graphs)
    (folder / "many" / "cut.onnx").write_bytes(
        net("a (float[3] x) => (float[3] y) { h = Round (x)  y = Tanh (h) }").SerializeToString()
    )
    (folder / "many" / "cut.gradcheck.yaml").write_text("gradcheck: 1\ndefaults: {expect: {status: severed}}\n")
    ran = gradcheck(command, "many")
    assert (ran.code, "2 known failures" in ran.out) == (0, True)


def test_a_manifest_says_so_for_a_folder(gradcheck: Command, folder: Path) -> None:
    (folder / "many").mkdir()
    for name, text in (("cut", "h = Round (x)  y = Tanh (h)"), ("right", "y = Tanh (x)")):
        proto = net(f"a (float[3] x) => (float[3] y) {{ {text} }}")
        (folder / "many" / f"{name}.onnx").write_bytes(proto.SerializeToString())
    manifest = "gradcheck: 1\nmodels:\n  - {path: many}\n"
    (folder / "zoo.gradcheck.yaml").write_text(manifest)
    assert gradcheck("zoo", "zoo.gradcheck.yaml", "--run", "first").code == 1
    said = manifest.replace("models:", "defaults: {expect: {status: severed}}\nmodels:")
    (folder / "zoo.gradcheck.yaml").write_text(said)
    assert gradcheck("zoo", "zoo.gradcheck.yaml", "--run", "second").code == 0
    assert json.loads(gradcheck("zoo", "status", "first", "--output-format", "json").out)["statuses"] == {
        "pass": 1,
        "severed": 1,
    }


def test_a_baseline_waives_the_same_cut_alone(gradcheck: Command, folder: Path) -> None:
    (folder / "a.gradcheck.yaml").write_text(SPEC)
    gradcheck("a.gradcheck.yaml", "--report", "before.json")
    assert gradcheck("a.gradcheck.yaml", "--baseline", "before.json").code == 0
    assert gradcheck("report", "before.json", "--gate").code == 1
    assert gradcheck("report", "before.json", "--gate", "--baseline", "before.json").code == 0
    (folder / "a.gradcheck.yaml").write_text(SPEC.replace("Round", "Floor"))
    assert gradcheck("a.gradcheck.yaml", "--baseline", "before.json").code == 1


def test_a_record_is_read_back_as_it_was(gradcheck: Command, folder: Path) -> None:
    (folder / "a.gradcheck.yaml").write_text(SPEC)
    gradcheck("a.gradcheck.yaml", "--report", "r.jsonl")
    [record] = read_results("r.jsonl")
    assert (record.status, record.code, record.gates) == ("severed", "GC107", ("severed",))
    assert record.severed == Severed((Spot(0, "Round", "h"),), (Spot(1, "Tanh", "y"),))
