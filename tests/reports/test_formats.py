"""Each format is opened by a consumer that was written elsewhere, and says there what the records say."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as xml
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gradcheck_cli.report import render
from gradcheck_cli.report.explanations import PAGES
from gradcheck_cli.report.github import MOST
from gradcheck_cli.report.markdown import LARGEST, add_summary
from gradcheck_cli.report.text import Style
from gradcheck_cli.results import read_results
from gradcheck_cli.results.record import Check, ModelInfo, Report, Suspect
from tests.cli.test_process import run
from tests.hostile.names import NAMES

SCHEMAS = Path(__file__).parent / "schemas"
FAILED = Check(
    "net.onnx::d loss/d x", "net.onnx", "fail", "GC101", ModelInfo("models/net.onnx"), "x", "loss",
    entries={"total": 4, "checked": 4, "failed": 1, "inconclusive": 0}, max_rel_err=0.5, duration_s=0.25,
)  # fmt: skip
PASSED = replace(FAILED, status="pass", code="")
WAIVED = replace(FAILED, status="waived", waiver={"status": "fail", "reason": "ACME-412", "until": None})


@pytest.fixture(scope="session")
def reports(results: dict[str, Path]) -> list[Report]:
    """Real runs, and one in which every name is hostile."""
    found = [Report(read_results(str(path)), (), 1.5) for path in results.values()]
    return [*found, Report(tuple(hostile(each) for each in NAMES.values())), Report(())]


def hostile(text: str) -> Check:
    """A failed check with the same text wherever a model can put one."""
    named = Suspect(3, text, text, (text,), (text,), 1.0, text, 2, 3, inside=text, others=(text,), diagnosis=text)
    return replace(
        FAILED, id=text, check=text, x=text, y=text, model=ModelInfo(text, "", {text: 1}), notes=(text,), suspect=named,
        reproduce=text, dims={text: 1},
    )  # fmt: skip


# JSON


def test_json_is_the_record_with_a_line_for_each_field(reports: list[Report]) -> None:
    for report in reports:
        assert json.loads(render("json", report)) == report.as_json()
    assert '\n      "entries": {"total": 4, "checked": 4, "failed": 1, "inconclusive": 0},\n' in render(
        "json", Report((FAILED, PASSED))
    )


# One line


def test_a_line_of_a_file_and_its_caret_stay_out_of_one_line() -> None:
    message = "a.gradcheck.yaml:3:5: unknown key 'sed'\n    sed: 3\n    ^"
    check = replace(FAILED, status="error", code="GC202", message=message)
    first, _ = render("concise", Report((check,))).splitlines()
    assert first.endswith("ERROR GC202 a.gradcheck.yaml:3:5: unknown key 'sed'")


# JUnit


def test_junit_is_what_jenkins_reads(reports: list[Report]) -> None:
    schema = pytest.importorskip("xmlschema").XMLSchema(SCHEMAS / "junit-10.xsd")
    for report in reports:
        assert [str(error) for error in schema.iter_errors(render("junit", report))] == []


def test_junitparser_counts_what_the_records_say(reports: list[Report]) -> None:
    junitparser = pytest.importorskip("junitparser")
    for report in reports:
        found = junitparser.JUnitXml.fromstring(render("junit", report).encode())
        cases = [case for suite in found for case in suite]
        kinds = Counter(type(each).__name__ for case in cases for each in case.result)
        statuses = Counter(check.status for check in report.checks)
        assert (found.tests, len(cases)) == (len(report.checks), len(report.checks))
        gated = sum(check.status in ("pass", "severed") for check in report.checks if check.gates)
        assert (found.failures, kinds["Failure"]) == (statuses["fail"] + statuses["inconclusive"] + gated,) * 2
        assert (found.errors, kinds["Error"]) == (sum(statuses[s] for s in ("error", "limit", "unsupported")),) * 2
        assert (sum(suite.skipped for suite in found), kinds["Skipped"]) == (statuses["waived"],) * 2


# SARIF


def sarif_errors(text: str) -> list[str]:
    schema = json.loads((SCHEMAS / "sarif-2.1.0-rtm.5.json").read_text("utf-8"))
    validator = pytest.importorskip("jsonschema").Draft4Validator(schema)
    return [error.message for error in validator.iter_errors(json.loads(text))]


def test_sarif_fits_its_schema(reports: list[Report]) -> None:
    for report in reports:
        assert sarif_errors(render("sarif", report)) == []
    assert sarif_errors('{"version": "2.1.0"}') == ["'runs' is a required property"]


def test_sarif_has_a_result_with_a_place_for_everything_that_did_not_pass(reports: list[Report]) -> None:
    for report in reports:
        run = json.loads(render("sarif", report))["runs"][0]
        told = sum((check.status != "pass") + len({*check.gates} - {"severed"}) for check in report.checks)
        rules = run["tool"]["driver"]["rules"]
        assert len(run["results"]) == told
        assert len({rule["id"] for rule in rules}) == len(rules)
        for result in run["results"]:
            assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
            uri = result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
            assert re.fullmatch(r"[\w\-.~!$&'()*+,;=:@/%?#\[\]]+", uri, re.ASCII) or not uri
            assert len(result["partialFingerprints"]["gradcheck/v1"]) == 64
        assert run["invocations"][0]["exitCode"] == report.exit_code


def test_rules_of_sarif_are_the_pages_of_explain() -> None:
    every = tuple(replace(FAILED, code=code) for code in PAGES)
    text = render("sarif", Report(every))
    rules = json.loads(text)["runs"][0]["tool"]["driver"]["rules"]
    assert [rule["id"] for rule in rules] == [*PAGES]
    assert rules[0]["shortDescription"]["text"] == PAGES["GC101"].title
    assert sarif_errors(text) == []


def test_waivers_are_suppressions_with_their_reason() -> None:
    [result] = json.loads(render("sarif", Report((WAIVED,))))["runs"][0]["results"]
    assert result["suppressions"] == [{"kind": "external", "status": "accepted", "justification": "ACME-412"}]
    [result] = json.loads(render("sarif", Report((FAILED,))))["runs"][0]["results"]
    assert "suppressions" not in result


@pytest.mark.parametrize(
    "uri, expected",
    [
        ("models/net.onnx", "models/net.onnx"),
        ("./models//net.onnx", "models/net.onnx"),
        ("a b/größe#1.onnx", "a%20b/gr%C3%B6%C3%9Fe%231.onnx"),
        ("a:b.onnx", "a%3Ab.onnx"),
        ("s3://zoo/a b.onnx", "s3://zoo/a%20b.onnx"),
        ("/elsewhere/net.onnx", "file:///elsewhere/net.onnx"),
    ],
)
def test_models_are_named_as_the_repository_names_them(uri: str, expected: str) -> None:
    check = replace(FAILED, model=ModelInfo(uri))
    [result] = json.loads(render("sarif", Report((check,))))["runs"][0]["results"]
    assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == expected


def test_a_path_into_the_working_folder_is_seen_from_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    inside = replace(FAILED, model=ModelInfo(str(tmp_path / "models" / "net.onnx")))
    [issue] = json.loads(render("gitlab", Report((inside,))))
    assert issue["location"]["path"] == "models/net.onnx"
    assert "file=models/net.onnx," in render("github", Report((inside,)))
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path / "sub")
    monkeypatch.setenv("GITHUB_WORKSPACE", f"{tmp_path}/")
    assert "file=sub/models/net.onnx," in render("github", Report((FAILED,)))


# GitLab


CODE_QUALITY = {  # as GitLab's manual lists it
    "type": "array",
    "items": {
        "type": "object",
        "required": ["description", "check_name", "fingerprint", "severity", "location"],
        "properties": {
            "description": {"type": "string", "minLength": 1},
            "check_name": {"type": "string", "minLength": 1},
            "fingerprint": {"type": "string", "pattern": "^[0-9a-f]{32,}$"},
            "severity": {"enum": ["info", "minor", "major", "critical", "blocker"]},
            "location": {
                "type": "object",
                "required": ["path", "lines"],
                "properties": {
                    "path": {"type": "string", "not": {"pattern": "^[.]/"}},
                    "lines": {
                        "type": "object",
                        "required": ["begin"],
                        "properties": {"begin": {"type": "integer", "minimum": 1}},
                    },
                },
            },
        },
    },
}


def test_gitlab_gets_what_its_manual_asks_for(reports: list[Report]) -> None:
    validator = pytest.importorskip("jsonschema").Draft7Validator(CODE_QUALITY)
    for report in reports:
        issues = json.loads(render("gitlab", report))
        assert [error.message for error in validator.iter_errors(issues)] == []
        assert len({issue["fingerprint"] for issue in issues}) == len(issues)


def test_fingerprints_last_as_long_as_the_failure_is_the_same() -> None:
    def fingerprint(check: Check) -> str:
        [issue] = json.loads(render("gitlab", Report((check,))))
        assert isinstance(issue["fingerprint"], str)
        return issue["fingerprint"]

    again = replace(FAILED, max_rel_err=0.6, seed=3, duration_s=2.0, notes=("another",))
    assert fingerprint(again) == fingerprint(FAILED)
    assert fingerprint(replace(FAILED, code="GC103")) != fingerprint(FAILED)
    twice = json.loads(render("gitlab", Report((FAILED, FAILED))))
    assert len({issue["fingerprint"] for issue in twice}) == 2


# GitHub


def commands(text: str) -> Iterator[tuple[str, dict[str, str], str]]:
    """The workflow commands in a log, read as the runner reads them."""
    for line in text.splitlines():
        if line.lstrip().startswith("::"):
            name, _, rest = line.lstrip()[2:].partition(" ")
            properties, _, message = rest.partition("::")
            pairs = (pair.partition("=") for pair in properties.split(","))
            yield name, {key: unescaped(value) for key, _, value in pairs}, unescaped(message)


def unescaped(text: str) -> str:
    for code, character in (("%0D", "\r"), ("%0A", "\n"), ("%3A", ":"), ("%2C", ","), ("%25", "%")):
        text = text.replace(code, character)
    return text


def test_a_step_shows_an_annotation_for_each_failure_and_no_other_command(reports: list[Report]) -> None:
    for report in reports:
        log = render("github", report)
        found = list(commands(log))
        wrong = [check for check in report.checks if check.status not in ("pass", "waived") or check.gates]
        assert len(found) == min(len(wrong), MOST) or len(wrong) > MOST
        assert {name for name, _, _ in found} <= {"error", "warning"}
        assert all(properties.keys() <= {"file", "line", "title"} for _, properties, _ in found)
        assert "##[" not in log


def test_properties_come_out_as_they_were_put_in() -> None:
    odd = replace(FAILED, check="a,b:c%0A=d::e", model=ModelInfo("a,b:c%.onnx"), notes=("50% :: of\nit",))
    [(name, properties, message)] = commands(render("github", Report((odd,))))
    assert (name, properties["file"]) == ("error", "a,b:c%.onnx")
    assert properties["title"] == "GC101 a,b:c%0A=d::e: d loss/d x"
    assert message.splitlines()[1:3] == ["50% :: of", "it"]


def test_more_failures_than_a_step_shows_are_counted() -> None:
    many = tuple(replace(FAILED, check=f"net{i}.onnx") for i in range(25))
    found = list(commands(render("github", Report((*many, replace(FAILED, status="inconclusive", code="GC301"))))))
    assert [name for name, _, _ in found] == ["error"] * MOST + ["warning"]
    assert found[MOST - 1][2] == "16 more checks did not pass: see the log of this step"


def test_as_many_failures_as_a_step_shows_are_all_shown() -> None:
    many = tuple(replace(FAILED, check=f"net{i}.onnx") for i in range(MOST))
    titles = [properties["title"] for _, properties, _ in commands(render("github", Report(many)))]
    assert titles == [f"GC101 net{i}.onnx: d loss/d x" for i in range(MOST)]


def test_the_summary_of_a_step_never_exceeds_what_is_shown(tmp_path: Path) -> None:
    many = tuple(replace(hostile("x" * 500), check=f"net{i}.onnx") for i in range(1500))
    file = tmp_path / "summary.md"
    file.write_text("before\n" * 1000)
    add_summary(str(file), Report(many), Style())
    text = file.read_text()
    assert 100_000 < len(text) <= LARGEST
    assert text.startswith("before\n")
    assert "## gradcheck: 1500 checks: 1500 failed" in text
    assert re.search(r"\.\.\. and \d+ more checks\n", text)
    file.write_text("x" * LARGEST)
    add_summary(str(file), Report(many), Style())
    assert file.stat().st_size == LARGEST


def test_a_run_in_a_step_adds_its_summary(results: dict[str, Path], tmp_path: Path) -> None:
    file = tmp_path / "summary.md"
    for form, expected in (("github", True), ("full", False)):
        file.write_text("")
        run("report", str(results["plain"]), "--format", form, cwd=tmp_path, GITHUB_STEP_SUMMARY=str(file))
        assert ("## gradcheck:" in file.read_text()) == expected


# Markdown


def test_markdown_has_a_row_for_each_check_and_nothing_that_a_name_made(reports: list[Report]) -> None:
    markdown = pytest.importorskip("markdown_it").MarkdownIt("commonmark", {"html": True}).enable("table")
    for report in reports:
        page = xml.fromstring(f"<page>{markdown.render(render('markdown', report))}</page>")
        rows = page.findall("table/tbody/tr")
        assert len(rows) == len(report.checks)
        assert {len(row.findall("td")) for row in rows} <= {7}
        names = {element.tag for element in page.iter()}
        assert names <= {"page", "h2", "h3", "table", "thead", "tbody", "tr", "th", "td", "p", "pre", "code", "strong"}


MARKUP = [
    "a|b",
    "a\\|b",
    "a`b``c",
    "`",
    "\\",
    "*a*",
    "<b>",
    "&lt;",
    "[x](y)",
    "![x](y)",
    " ",
    "~~a~~",
    "- a",
    "1. a",
    "+",
    "---",
]


@pytest.mark.parametrize("text", MARKUP)
def test_names_are_shown_in_markdown_as_they_are(text: str) -> None:
    markdown = pytest.importorskip("markdown_it").MarkdownIt("commonmark").enable(["table", "strikethrough"])
    page = xml.fromstring(
        f"<page>{markdown.render(render('markdown', Report((replace(FAILED, check=text, notes=(text,)),))))}</page>"
    )
    cell = page.find("table/tbody/tr/td")
    assert cell is not None
    assert "".join(cell.itertext()).strip() == text.strip()
    heading = page.find("h3")
    assert heading is not None
    assert "".join(heading.itertext()) == f"FAIL GC101: {text}: d loss/d x"
    assert not text.strip() or text in ["".join(each.itertext()) for each in page.findall("p")]


def test_nobody_is_called_by_a_name() -> None:
    text = render("markdown", Report((replace(FAILED, notes=("cc @octocat",)),)))
    assert "@octocat" not in text
    assert "@<!-- -->octocat" in text


# JSON Lines


def test_duckdb_reads_json_lines(results: dict[str, Path], tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    checks = [check for path in results.values() for check in read_results(str(path))]
    file = tmp_path / "results.jsonl"
    file.write_text(render("jsonl", Report(tuple(checks))))
    found = duckdb.sql(f"select status, count(*) from read_json_auto('{file}') group by status").fetchall()
    assert dict(found) == Counter(check.status for check in checks)
    [(worst,)] = duckdb.sql(f"select max(entries.failed) from read_json_auto('{file}')").fetchall()
    assert worst == max(check.entries.get("failed", 0) for check in checks)
