"""A forward run that differs: a finding of its own beside the gradient's, in every output, that can be waived."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree as xml

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests.cli.conftest import Command, Ran

MODEL = "net (float[3] x) => (float[3] y, float[3] z) { y = Tanh (x)  z = Exp (x) }"
TOLD = "'z' is not what test_data_set_0/output_1.pb says: 1 of 3 entries differs"


def ship(folder: Path, z: object) -> None:
    """Test data beside a model: the first output as it is, the second as given."""
    x, data = np.float32([0.1, 0.2, 0.3]), folder / "test_data_set_0"
    data.mkdir(exist_ok=True)
    for file, value in (("input_0", x), ("output_0", np.tanh(x)), ("output_1", z)):
        (data / f"{file}.pb").write_bytes(numpy_helper.from_array(np.float32(value)).SerializeToString())


@pytest.fixture
def net(folder: Path) -> Path:
    """A model whose second output is not what ships with it."""
    onnx.save(onnx.helper.make_model(onnx.parser.parse_graph(MODEL), ir_version=9), folder / "net.onnx")
    ship(folder, [np.exp(0.1), 2.0, np.exp(0.3)])
    return folder


def unwrapped(ran: Ran) -> str:
    """Output without the ends of lines within a paragraph."""
    return ran.out.replace("\n  ", " ")


def records(ran: Ran) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads(ran.out)["checks"]
    return found


def test_the_row_keeps_its_verdict_and_a_line_below_says_what_differs(gradcheck: Command, net: Path) -> None:
    ran = gradcheck("net.onnx")
    assert ran.code == 1
    assert ran.out.count(" PASS\n") == 2
    assert f"\nFORWARD DIFFERS GC404  {TOLD}" in unwrapped(ran)
    assert "2 checks: 2 passed, 1 forward run differs in TIME" in ran.out


def test_the_record_says_it_beside_the_status(gradcheck: Command, net: Path) -> None:
    fine, wrong = records(gradcheck("net.onnx", "--output-format", "json"))
    assert (fine["status"], fine["gates"], wrong["status"], wrong["code"]) == ("pass", [], "pass", "")
    forward = wrong["forward"]
    assert isinstance(forward, dict)
    assert (wrong["gates"], forward["agrees"], forward["code"]) == (["forward"], False, "GC404")
    assert forward["max_abs_err"] > forward["bound"]
    assert TOLD in forward["reason"]


LET_THROUGH = {
    ("--fail-on", "fail"): 0, ("--fail-on=-forward",): 0, ("--exit-zero",): 0, ("--fail-on", "forward"): 1,
    ("--fail-on", "+nonfinite"): 1, ("--test-data", "none"): 0,
}  # fmt: skip


@pytest.mark.one_in(3)
@pytest.mark.parametrize("given", LET_THROUGH, ids=" ".join)
def test_the_gate_is_one_of_those_that_can_be_asked_for(gradcheck: Command, net: Path, given: tuple[str, ...]) -> None:
    assert gradcheck("net.onnx", *given).code == LET_THROUGH[given]


def test_every_format_has_a_finding_of_its_own(gradcheck: Command, net: Path) -> None:
    assert "d z/d x: PASS " in (said := gradcheck("net.onnx", "--output-format", "concise").out)
    assert f"; FORWARD DIFFERS GC404 {TOLD}" in said
    cases = [*xml.fromstring(gradcheck("net.onnx", "--output-format", "junit").out).iter("testcase")]
    assert [case.get("name") for case in cases] == ["d y/d x", "d z/d x", "d z/d x: forward run"]
    assert [len(case) for case in cases] == [0, 0, 1]
    root = xml.fromstring(gradcheck("net.onnx", "--output-format", "junit").out)
    assert (root.get("tests"), root.get("failures"), root.get("errors")) == ("3", "1", "0")
    [line] = [each for each in gradcheck("net.onnx", "--output-format", "github").out.splitlines() if "::error" in each]
    assert "title=GC404 net.onnx%3A d z/d x::" in line
    [issue] = json.loads(gradcheck("net.onnx", "--output-format", "gitlab").out)
    assert (issue["check_name"], issue["severity"], TOLD in issue["description"]) == ("GC404", "critical", True)
    assert "### FORWARD DIFFERS GC404: net.onnx: d z/d x" in gradcheck("net.onnx", "--output-format", "markdown").out
    gradcheck("net.onnx", "--report", "log.sarif", "--report", "page.html")
    [result] = json.loads((net / "log.sarif").read_text())["runs"][0]["results"]
    assert (result["ruleId"], result["level"]) == ("forward/GC404", "error")
    assert "FORWARD DIFFERS GC404" in (net / "page.html").read_text()


def spec(folder: Path, expect: str) -> None:
    text = (
        f"gradcheck: 1\nchecks:\n  - {{name: a, model: net.onnx, y: z, test_data: test_data_set_0, expect: {expect}}}\n"
    )
    (folder / "a.gradcheck.yaml").write_text(text, encoding="utf-8")


EXPECTED = {
    "{forward: differs, reason: ACME-413}": (0, "pass", ""),
    "{forward: differs, until: 2020-01-01}": (1, "pass", ""),
    "{status: fail, forward: differs}": (1, "fail", "GC203"),
    "{status: fail}": (1, "fail", "GC203"),
}


@pytest.mark.parametrize("expect", EXPECTED)
def test_it_is_waived_where_it_is_expected(gradcheck: Command, net: Path, expect: str) -> None:
    spec(net, expect)
    ran = gradcheck("a.gradcheck.yaml", "--output-format", "json")
    [record] = records(ran)
    assert (ran.code, record["status"], record["code"]) == EXPECTED[expect]


def test_a_waiver_is_said_and_suppressed_and_strict(gradcheck: Command, net: Path) -> None:
    spec(net, "{forward: differs, reason: ACME-413}")
    assert "FORWARD DIFFERS, as expected: ACME-413" in gradcheck("a.gradcheck.yaml", "--report", "log.sarif").out
    [result] = json.loads((net / "log.sarif").read_text())["runs"][0]["results"]
    assert [each["justification"] for each in result["suppressions"]] == ["ACME-413"]
    ship(net, np.exp(np.float32([0.1, 0.2, 0.3])))
    ran = gradcheck("a.gradcheck.yaml")
    assert (ran.code, "its forward run agrees, but is expected to differ (ACME-413)" in unwrapped(ran)) == (1, True)


def test_an_expectation_of_nothing_is_an_error(gradcheck: Command, net: Path) -> None:
    spec(net, "{reason: ACME-413}")
    ran = gradcheck("a.gradcheck.yaml")
    assert (ran.code, "give a status, or forward: differs" in ran.err) == (2, True)


def test_a_baseline_that_had_it_waives_it_and_one_that_had_not_does_not(gradcheck: Command, net: Path) -> None:
    gradcheck("net.onnx", "--report", "differs.json")
    assert gradcheck("net.onnx", "--baseline", "differs.json", "--report", "again.json").code == 0
    assert gradcheck("net.onnx", "--baseline", "again.json").code == 0
    ship(net, np.exp(np.float32([0.1, 0.2, 0.3])))
    ran = gradcheck("net.onnx", "--baseline", "differs.json", "--report", "fine.json")
    assert (ran.code, "1 check of it passed: write it anew with --report" in ran.out + ran.err) == (0, True)
    ship(net, [9, 9, 9])
    assert gradcheck("net.onnx", "--baseline", "fine.json").code == 1


def test_results_read_back_say_the_same(gradcheck: Command, net: Path) -> None:
    gradcheck("net.onnx", "--report", "r.jsonl")
    ran = gradcheck("report", "r.jsonl", "--gate")
    assert (ran.code, "1 forward run differs" in ran.out) == (1, True)
    assert gradcheck("report", "r.jsonl", "--fail-on=-forward").code == 0


def test_a_zoo_counts_it_as_failing(gradcheck: Command, net: Path) -> None:
    assert gradcheck("zoo", "net.onnx", "--run", "run", "-j1").code == 1
    ran = gradcheck("zoo", "status", "run")
    assert "FORWARD DIFFERS GC404" in ran.out
    ship(net, np.exp(np.float32([0.1, 0.2, 0.3])))
    gradcheck("zoo", "net.onnx", "--run", "other", "-j1")
    assert "newly failing" in gradcheck("zoo", "diff", "other", "run").out


def test_a_model_that_onnxruntime_refuses_is_said_to_be_compared_with_nobody(gradcheck: Command, folder: Path) -> None:
    pytest.importorskip("onnxruntime")
    graph = onnx.parser.parse_graph("m (double[3] x) => (double[3] y) { y = ThresholdedRelu (x) }")
    opsets = [onnx.helper.make_opsetid("", 17)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=9), folder / "m.onnx")
    ran = gradcheck("m.onnx")
    assert (ran.code, "PASS" in ran.out) == (0, True)
    assert "  forward    onnxruntime does not run this model, nothing is compared with it:" in ran.out
    assert "ThresholdedRelu" in ran.out


def test_a_forward_run_that_differs_from_what_ships_is_saved_and_run_again(gradcheck: Command, net: Path) -> None:
    assert "saved, to run it again: gradcheck reproduce" in gradcheck("net.onnx", "--save-failures", "kept").err
    [bundle] = (net / "kept").iterdir()
    ship(net, np.exp([0.1, 0.2, 0.3]))  # what lies beside the model now is no part of the bundle
    again = gradcheck("reproduce", str(bundle))
    assert again.code == 1
    assert f"FORWARD DIFFERS GC404  {TOLD.replace('test_data_set_0', 'shipped')}" in unwrapped(again)
    assert "the same as when it was saved, to the last bit" in again.err
    for file in (bundle / "shipped").iterdir():
        file.write_bytes((net / "test_data_set_0" / file.name).read_bytes())
    now = gradcheck("reproduce", str(bundle))
    assert now.code == 0
    assert "d z/d x: its forward run differed when it was saved, and does not now" in now.err
    assert not gradcheck("net.onnx", "--save-failures", "other").err
