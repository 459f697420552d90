"""`gradcheck report`: results that were written before, in any format, and what it exits with."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.cli import models
from tests.cli.conftest import WRONG, Command

SPEC = "wrong.gradcheck.yaml"


@pytest.fixture
def results(gradcheck: Command) -> str:
    """The results of a run in which a check and a model failed."""
    assert gradcheck(SPEC, "lfs.onnx", "mlp.onnx", "--report", "results.json", "--report", "results.jsonl").code == 1
    return "results.json"


@pytest.mark.one_in(8)
@pytest.mark.parametrize("form", ["full", "concise", "json", "junit", "github", "gitlab", "markdown"])
def test_results_show_as_they_did(gradcheck: Command, results: str, form: str) -> None:
    def untimed(text: str) -> str:
        return "\n".join(line for line in text.splitlines() if "time=" not in line)

    before = gradcheck(SPEC, "lfs.onnx", "mlp.onnx", "--output-format", form)
    after = gradcheck("report", results, "--output-format", form)
    if form == "json":
        times = {"duration_s": 0, "peak_rss_mb": 0}
        shown = [[{**check, **times} for check in json.loads(ran.out)["checks"]] for ran in (before, after)]
        assert shown[0] == shown[1]
    else:
        assert untimed(after.out).replace(" in TIME of checks", " in TIME") == untimed(before.out)
    assert (after.code, after.err) == (0, "")


def test_every_output_is_written_by_its_suffix(gradcheck: Command, folder: Path, results: str) -> None:
    ran = gradcheck(
        "report", results, *(word for end in ("json", "jsonl", "xml", "md", "sarif") for word in ("-o", f"r.{end}"))
    )
    assert (ran.code, ran.out, ran.err) == (0, "", "")
    assert json.loads((folder / "r.json").read_text()) == json.loads((folder / results).read_text())
    assert (folder / "r.jsonl").read_text() == (folder / "results.jsonl").read_text()
    assert ElementTree.parse(folder / "r.xml").getroot().get("tests") == "6"
    assert (folder / "r.md").read_text().startswith("## gradcheck: 6 checks: ")
    assert json.loads((folder / "r.sarif").read_text())["version"] == "2.1.0"


def test_a_format_may_be_named_for_any_file(gradcheck: Command, folder: Path, results: str) -> None:
    assert gradcheck("report", results, "--format", "gitlab", "-o", "quality.report").code == 0
    assert [issue["check_name"] for issue in json.loads((folder / "quality.report").read_text())] == ["GC101", "GC403"]


def test_several_files_make_one_report_in_which_the_last_record_of_a_check_counts(
    gradcheck: Command, folder: Path, results: str
) -> None:
    ran = gradcheck("report", results, "results.jsonl", "--format", "concise", "-q")
    assert ran.out.splitlines()[-1] == "6 checks: 3 passed, 1 known failure, 1 failed, 1 error in TIME of checks"
    assert ran.err == "note: 6 records of checks that later results have too left out: the last counts\n"
    models.mlp(folder / "lfs.onnx")
    assert gradcheck("conv.onnx", "lfs.onnx", "--report", "later.json").code == 0
    ran = gradcheck("report", results, "later.json", "--format", "concise", "-q")
    assert ran.out.splitlines()[-1] == "8 checks: 6 passed, 1 known failure, 1 failed in TIME of checks"
    assert ran.err == "note: 1 record of checks that later results have too left out: the last counts\n"


def test_checks_of_several_specs_that_are_called_alike_are_told_apart(gradcheck: Command, folder: Path) -> None:
    (folder / "other.gradcheck.yaml").write_text(WRONG)
    gradcheck(SPEC, "other.gradcheck.yaml", "mlp.onnx", "--report", "r.xml", "--report", "r.json")
    cases = [*ElementTree.parse(folder / "r.xml").getroot().iter("testcase")]
    assert len({(case.get("classname"), case.get("name")) for case in cases}) == len(cases) == 8
    assert {str(case.get("classname")) for case in cases} >= {f"{SPEC}::square/wrong", "mlp.onnx"}
    gradcheck("mlp.onnx", "--report", "old.json")
    out = gradcheck("zoo", "diff", "old.json", "r.json").out
    assert all(f"  {spec}::square/wrong::d loss/d x  FAIL GC101\n" in out for spec in (SPEC, "other.gradcheck.yaml"))


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "options, code",
    [
        ((), 0),
        (("--gate",), 1),
        (("--fail-on", "fail"), 1),
        (("--fail-on", "inconclusive"), 4),
        (("--fail-on", ""), 2),
        (("--baseline", "results.json"), 0),
        (("--gate", "-o", "r.md"), 1),
    ],
)
def test_the_verdict_counts_where_it_is_asked_for(
    gradcheck: Command, results: str, options: tuple[str, ...], code: int
) -> None:
    assert gradcheck("report", results, *options).code == code


def test_a_report_has_the_gates_of_its_run(gradcheck: Command, folder: Path) -> None:
    """The gates are kept in .json; lines have the default.  --exit-zero is of that command alone."""
    cases = {
        "log.onnx": (("--fail-on", "-inconclusive"), 0, "fail, unsupported, severed, forward", 0),
        "mlp.onnx": ((), 0, "fail, inconclusive, unsupported, severed, forward", 0),
        SPEC: (("--exit-zero",), 0, "fail, inconclusive, unsupported, severed, forward", 1),
        "conv.onnx": (("--fail-on", "dead"), 0, "fail, inconclusive, unsupported, severed, forward, dead", 0),
    }
    for model, (options, code, gates, later) in cases.items():
        assert gradcheck(model, *options, "--report", "r.json", "--report", "r.jsonl").code == code
        assert gradcheck("report", "r.json", "--gate", "-o", "r.html", "-o", "again.json").code == later
        assert f"<dt>Fails the run</dt><dd>{gates}</dd>" in (folder / "r.html").read_text()
        assert json.loads((folder / "again.json").read_text())["fail_on"] == gates.split(", ")
    gradcheck("log.onnx", "--fail-on", "-inconclusive", "--report", "r.json", "--report", "r.jsonl")
    assert gradcheck("report", "r.jsonl", "--gate").code == 3
    assert gradcheck("mlp.onnx", "--report", "mlp.json").code == 0
    assert gradcheck("report", "r.json", "mlp.json", "--gate").code == 3
    assert gradcheck("report", "r.json", "--fail-on", "inconclusive").code == 3


def test_the_report_of_an_interrupted_run_passes_no_gate(gradcheck: Command, folder: Path) -> None:
    assert gradcheck("mlp.onnx", "--report", "r.json").code == 0
    text = (folder / "r.json").read_text().replace('"exit_code": 0', '"exit_code": 130')
    for name, words in (("r.json", text), ("flat.json", json.dumps(json.loads(text)))):
        (folder / name).write_text(words)
        ran = gradcheck("report", name, "--gate", "-o", "again.json", "-o", "r.md")
        assert (ran.code, ran.out, ran.err) == (130, "", f"note: {name}: the run was interrupted\n")
        assert json.loads((folder / "again.json").read_text())["exit_code"] == 130
        assert "**Not complete: the run was interrupted**" in (folder / "r.md").read_text()
    assert gradcheck("report", "r.json").code == 0


def test_health_is_judged_again(gradcheck: Command) -> None:
    gradcheck("log.onnx", "--val-range", "x:1,2", "--report", "r.json")
    assert gradcheck("report", "r.json", "--fail-on", "fail,nonfinite").code == 1
    assert gradcheck("report", "r.json", "--fail-on", "fail").code == 0
    gradcheck("log.onnx", "--val-range", "x:1,2", "--fail-on", "fail,nonfinite", "--report", "gated.json")
    assert gradcheck("report", "gated.json", "--gate").code == 1
    assert gradcheck("report", "gated.json", "--fail-on", "fail").code == 0


def test_a_torn_line_is_noted(gradcheck: Command, folder: Path, results: str) -> None:
    text = (folder / "results.jsonl").read_text()
    (folder / "torn.jsonl").write_text(text[:-20])
    ran = gradcheck("report", "torn.jsonl", "--format", "concise", "-q")
    assert ran.err == "note: torn.jsonl:6: the last line was not written to its end, and is left out\n"
    assert ran.out.splitlines()[-1].startswith("5 checks: ")


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "arguments, said",
    [
        (["none.json"], "none.json cannot be read: No such file or directory"),
        (["."], ". cannot be read: Is a directory; for what a zoo has found: gradcheck zoo report"),
        (["mlp.onnx"], "mlp.onnx"),
        (["results.json", "-o", "r.txt"], "'r.txt' must end in .json, .jsonl, .xml, .html, .md, .sarif."),
        (["results.json", "-o", "no/r.md"], "'no/r.md': there is no folder 'no'."),
        (["results.json", "--format", "sariff"], "Did you mean 'sarif'?"),
        (["results.json", "--baseline", "none.json"], "--baseline none.json cannot be read"),
        ([], "Missing argument 'RESULTS...'"),
    ],
)
def test_what_cannot_be_read_or_written_is_said(
    gradcheck: Command, results: str, arguments: list[str], said: str
) -> None:
    ran = gradcheck("report", *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("error GC201: ")
    assert said in ran.err
    assert "Traceback" not in ran.err


def test_a_report_that_cannot_be_written_keeps_nothing_back(gradcheck: Command, folder: Path) -> None:
    (folder / "full.json").symlink_to("/dev/full")
    ran = gradcheck("mlp.onnx", "--report", "full.json", "--report", "r.jsonl", "--output-format", "concise")
    assert (ran.code, ran.err) == (2, "error GC201: --report full.json cannot be written: No space left on device\n")
    assert ran.out.splitlines()[-1] == "2 checks: 2 passed in TIME"
    assert len((folder / "r.jsonl").read_text().splitlines()) == 2
