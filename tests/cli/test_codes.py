"""`--select` and `--ignore`: which codes fail a run, and how that is said wherever results are shown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import gradcheck_cli
from gradcheck_cli.errors import UsageError
from gradcheck_cli.report.concise import totals
from gradcheck_cli.report.explanations import PAGES
from gradcheck_cli.results.codes import CODES, CodeChoice, codes_from
from gradcheck_cli.results.record import Check, ModelInfo, Report
from tests.cli.conftest import Command

COUNTS = [  # select, ignore, a code, the words against it
    ("", "", "GC301", ""),
    ("GC1", "", "GC101", ""),
    ("GC1", "", "GC301", "not in --select GC1"),
    ("GC1,GC3", "", "GC501", "not in --select GC1,GC3"),
    ("", "GC301", "GC301", "ignored by --ignore GC301"),
    ("", "GC3", "GC301", "ignored by --ignore GC3"),
    ("", "GC3", "GC101", ""),
    ("GC301", "GC3", "GC301", ""),
    ("GC301", "GC3", "GC302", "ignored by --ignore GC3"),
    ("GC3", "GC301", "GC301", "ignored by --ignore GC301"),
    ("GC3", "GC301", "GC302", ""),
    ("GC3", "GC3", "GC301", "ignored by --ignore GC3"),
    ("ALL", "GC4", "GC101", ""),
    ("GC1", "GC2", "GC203", "ignored by --ignore GC2"),
    ("GC1", "GC2", "GC201", ""),
    ("GC1", "", "GC701", ""),
    ("GC1", "", "GC901", ""),
    ("GC1", "", "", ""),
]


@pytest.mark.parametrize("select, ignore, code, against", COUNTS)
def test_the_longest_prefix_decides(select: str, ignore: str, code: str, against: str) -> None:
    chosen = CodeChoice(*(codes_from(text.split(",")) if text else () for text in (select, ignore)))
    assert chosen.against(code) == against


WORDS = [
    (["GC101"], ("GC101",)), (["gc3"], ("GC3",)), (["101", "3"], ("GC101", "GC3")), (["GC1xx"], ("GC1",)),
    ([" GC301 ", "GC301"], ("GC301",)), (["ALL"], ("GC",)), (["GC10"], ("GC10",)),
]  # fmt: skip


@pytest.mark.parametrize("words, codes", WORDS)
def test_a_code_is_written_as_explain_takes_it(words: list[str], codes: tuple[str, ...]) -> None:
    assert codes_from(words) == codes


@pytest.mark.parametrize("text, said", [
    ("GC310", "'GC310' is no code, and no code begins so. The nearest are GC301, GC302, GC303, GC304."),
    ("GC801", "'GC801' is no code, and no code begins so. The nearest are those that `gradcheck explain` lists."),
    ("kinks", "'kinks' is no code, and no code begins so. The nearest are those"),
    ("X", "'X' is no code, and no code begins so. The nearest are those"),
    ("GC201", "'GC201' is of a run that could not do what it was asked for, which always fails."),
    ("GC9", "'GC9' is of a run"),
    (",", "it names no code"),
])  # fmt: skip
@pytest.mark.parametrize("option", ["--select", "--ignore"])
def test_a_code_that_no_finding_has_is_an_error(gradcheck: Command, option: str, text: str, said: str) -> None:
    with pytest.raises(UsageError):
        codes_from(text.split(","))
    ran = gradcheck("mlp.onnx", option, text)
    assert (ran.code, f"Invalid value for '{option}': {said}" in ran.err) == (2, True)


def test_every_code_that_is_explained_is_known() -> None:
    assert {*CODES} == {*PAGES}


RUNS = [  # command line, exit code, the summary
    ("log.onnx --ignore GC302", 0, "1 check: 1 ignored by --ignore in"),
    ("log.onnx --ignore GC301", 3, "1 check: 1 inconclusive in"),
    ("log.onnx --select GC1", 0, "1 check: 1 not in --select in"),
    ("log.onnx --select GC3", 3, "1 check: 1 inconclusive in"),
    ("unknown.onnx log.onnx --ignore GC5", 3, "2 checks: 1 inconclusive, 1 ignored by --ignore in"),
    ("lfs.onnx --ignore GC403", 0, "1 check: 1 ignored by --ignore in"),
    ("lfs.onnx log.onnx --select GC1 --ignore GC4", 0, "2 checks: 1 ignored by --ignore, 1 not in --select in"),
    ("wrong.gradcheck.yaml --ignore GC1", 0, "3 checks: 1 passed, 1 known failure, 1 ignored by --ignore in"),
    ("wrong.gradcheck.yaml --ignore GC1 --select GC101", 1, "3 checks: 1 passed, 1 known failure, 1 failed in"),
    ("log.onnx --ignore GC302 --fail-on fail", 0, "1 check: 1 ignored by --ignore in"),
    ("log.onnx --select GC302 --fail-on fail", 0, "1 check: 1 inconclusive, not in --fail-on in"),
    ("log.onnx --ignore GC302 --fail-on dead", 0, "1 check: 1 ignored by --ignore in"),
]


@pytest.mark.parametrize("line, code, summary", RUNS, ids=[line for line, _, _ in RUNS])
def test_only_codes_that_count_fail_a_run(gradcheck: Command, line: str, code: int, summary: str) -> None:
    ran = gradcheck(*line.split())
    assert (ran.code, ran.out.splitlines()[-1]) == (code, f"{summary} TIME")


FORMATS = {  # format, words of a finding that does not count, words that would make it a failure
    "full": ("IGNORED GC101  d loss / d x: fail, ignored by --ignore GC1\n", "FAIL"),
    "concise": ("square/wrong: d loss/d x: IGNORED GC101 fail, ignored by --ignore GC1", "FAIL"),
    "junit": ('<skipped message="fail, ignored by --ignore GC1"', "<failure"),
    "github": ("IGNORED", "::error"),
    "gitlab": ("[]", "square"),
    "markdown": ("1 check: 1 ignored by --ignore", "FAIL"),
    "json": ('"ignored": true', '"status": "fail",\n      "code"'),
}


@pytest.mark.parametrize("form", FORMATS)
def test_no_format_lists_it_as_a_failure(gradcheck: Command, form: str) -> None:
    ran = gradcheck("wrong.gradcheck.yaml", "--check", "square/wrong", "--ignore", "GC1", "--output-format", form)
    there, absent = FORMATS[form]
    assert (ran.code, there in ran.out, absent in ran.out.replace("KNOWN FAILURE", "")) == (0, True, False), ran.out


def test_reports_of_results_choose_codes_too(gradcheck: Command, folder: Path) -> None:
    assert gradcheck("wrong.gradcheck.yaml", "--report", "all.json", "--report", "all.sarif").code == 1
    ran = gradcheck("report", "all.json", "--ignore", "GC101")
    assert (ran.code, "1 ignored by --ignore" in ran.out) == (0, True)
    assert gradcheck("report", "all.json", "--select", "GC1").code == 1
    gradcheck("wrong.gradcheck.yaml", "--ignore", "GC101", "--report", "some.sarif", "--report", "some.json")
    [result, *_] = json.loads((folder / "some.sarif").read_text())["runs"][0]["results"]
    assert result["suppressions"][0]["justification"] == "ignored by --ignore GC101"
    again = gradcheck("report", "some.json", "--gate")
    assert (again.code, "1 ignored by --ignore" in again.out) == (0, True)


def test_what_was_ignored_is_no_baseline(gradcheck: Command) -> None:
    gradcheck("wrong.gradcheck.yaml", "--ignore", "GC101", "--report", "some.json")
    assert gradcheck("wrong.gradcheck.yaml", "--baseline", "some.json").code == 1


def test_files_and_the_environment_choose_codes(
    gradcheck: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "gradcheck.toml").write_text('ignore = ["GC302", "GC5"]\n')
    assert [gradcheck(model).code for model in ("log.onnx", "unknown.onnx", "lfs.onnx")] == [0, 0, 4]
    (folder / "gradcheck.toml").write_text('ignore = ["GC301", "GC333"]\n')
    ran = gradcheck("log.onnx")
    assert (ran.code, "gradcheck.toml:1:1: ignore: 'GC333' is no code" in ran.err) == (2, True)
    (folder / "gradcheck.toml").unlink()
    monkeypatch.setenv("GRADCHECK_SELECT", "GC1")
    assert gradcheck("log.onnx").code == 0


def test_a_bundle_is_reproduced_under_the_codes_that_are_typed(gradcheck: Command) -> None:
    saved = gradcheck("wrong.gradcheck.yaml", "--check", "square/wrong", "--save-failures", "saved").err.split()[-1]
    assert gradcheck("reproduce", saved).code == 1
    ran = gradcheck("reproduce", saved, "--ignore", "GC101")
    assert (ran.code, "1 ignored by --ignore" in ran.out) == (0, True)


def test_what_is_ignored_saves_no_failure(gradcheck: Command, folder: Path) -> None:
    gradcheck("wrong.gradcheck.yaml", "--ignore", "GC1", "--save-failures", "saved")
    assert not (folder / "saved").exists()


def test_a_zoo_keeps_all_findings_and_chooses_when_it_shows_them(gradcheck: Command) -> None:
    ran = gradcheck("zoo", "log.onnx", "unknown.onnx", "--run", "run", "--ignore", "GC3")
    assert (ran.code, "1 unsupported, 1 ignored by --ignore" in ran.out) == (5, True)
    again = gradcheck("zoo", "log.onnx", "unknown.onnx", "--run", "run")
    assert (again.code, "2 of 2 models were done before" in again.err) == (5, True)
    assert gradcheck("zoo", "report", "run", "--ignore", "GC3,GC5").code == 0
    resumed = gradcheck("zoo", "resume", "run", "--ignore", "GC3,GC5")
    assert (resumed.code, "2 ignored by --ignore" in resumed.out) == (0, True)


def test_the_python_function_takes_the_same_codes(folder: Path) -> None:
    model = gradcheck_cli.load(folder / "log.onnx")
    assert gradcheck_cli.check(model).exit_code == 3
    assert gradcheck_cli.check(model, ignore="GC302").exit_code == 0
    assert gradcheck_cli.check(model, select=["GC1"]).exit_code == 0
    assert gradcheck_cli.check(model, select="GC302", ignore="GC3").exit_code == 3
    for wrong in ("", [], "GC999", 3, ["GC201"]):
        with pytest.raises(ValueError, match="ignore="):
            gradcheck_cli.check(model, ignore=wrong)  # type: ignore[arg-type]


def record(status: str, code: str, *gates: str) -> Check:
    return Check(f"{status}{gates}", "m", status, code, ModelInfo("m.onnx"), "x", "y", gates=gates)


JUDGED = [  # a record, what is ignored, exit code, summary
    (record("fail", "GC101", "forward"), ("GC101",), 1, "1 check: 1 forward run differs, 1 ignored by --ignore"),
    (record("fail", "GC101", "forward"), ("GC404",), 1, "1 check: 1 failed, 1 ignored by --ignore"),
    (record("fail", "GC101", "forward"), ("GC1", "GC404"), 0, "1 check: 1 ignored by --ignore"),
    (record("pass", "", "forward"), ("GC404",), 0, "1 check: 1 passed, 1 ignored by --ignore"),
    (record("severed", "GC107", "severed"), ("GC107",), 0, "1 check: 1 ignored by --ignore"),
    (record("severed", "GC107"), ("GC107",), 0, "1 check: 1 passed, 1 of them severed"),
    (record("pass", "", "dead"), ("GC",), 1, "1 check: 1 passed, 1 stopped by the health of gradients"),
    (record("fail", "GC101", "dead"), ("GC",), 1,
     "1 check: 1 stopped by the health of gradients, 1 ignored by --ignore"),
]  # fmt: skip


@pytest.mark.parametrize("check, ignored, code, summary", JUDGED)
def test_each_finding_of_a_record_counts_by_its_own_code(
    check: Check, ignored: tuple[str, ...], code: int, summary: str
) -> None:
    report = Report([CodeChoice(ignore=ignored).judged(check)], fail_on=("fail", "severed", "forward", "dead"))
    assert (report.exit_code, totals(report)) == (code, summary)


def test_a_waiver_of_a_spec_stays_what_it_is() -> None:
    waived = record("fail", "GC101", "forward").waived({"status": "fail", "reason": "ACME-1", "until": None})
    judged = CodeChoice(ignore=("GC",)).judged(waived)
    assert (judged.status, judged.gates, judged.ignored, judged.waiver) == (
        "waived", (), "", {"status": "fail", "reason": "ACME-1", "until": None, "forward": "differs"},
    )  # fmt: skip
