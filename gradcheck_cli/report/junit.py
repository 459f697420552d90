"""JUnit XML as Jenkins' schema has it: a suite for each check, a case for each pair (x, y)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any
from xml.etree import ElementTree as xml

from gradcheck_cli.errors import clean
from gradcheck_cli.report import by_check, full
from gradcheck_cli.report.concise import CODE, forward_reason, given_by, outcome, several_files
from gradcheck_cli.report.health import gate_text
from gradcheck_cli.report.text import Style
from gradcheck_cli.results.record import Check, Report

_OUTCOMES = {
    **dict.fromkeys(("fail", "severed", "inconclusive"), "failure"),
    **dict.fromkeys(("error", "limit", "unsupported"), "error"),
}


def document(report: Report, style: Style) -> Iterator[str]:
    """The document of a whole run, suite by suite."""
    counts = _counts(report.outcomes)
    if report.unfinished:
        counts = {**counts, **{kind: str(int(counts[kind]) + 1) for kind in ("tests", "errors")}}
    root = xml.Element("testsuites", name="gradcheck", **counts, time=f"{report.duration_s:.3f}")
    start = xml.tostring(root, encoding="unicode").removesuffix(" />")
    yield f'<?xml version="1.0" encoding="UTF-8"?>\n{start}'
    if not (report.outcomes or report.unfinished):
        yield " />\n"
        return
    yield ">\n"
    alike = several_files(report.outcomes)
    yield from (f"  {_suite(group, style, alike)}\n" for group in by_check(report.checks))
    yield f"  {_not_complete(report.unfinished)}\n" if report.unfinished else ""
    yield "</testsuites>\n"


def _not_complete(unfinished: str) -> str:
    """A suite whose only case is an error: what was not done has no case of its own."""
    suite = xml.Element("testsuite", name="gradcheck", tests="1", failures="0", errors="1", skipped="0", time="0.000")
    case = xml.SubElement(suite, "testcase", classname="gradcheck", name="all checks were done", time="0.000")
    xml.SubElement(case, "error", type="interrupted", message=clean(unfinished))
    xml.indent(suite, level=1)
    return xml.tostring(suite, encoding="unicode")


def _suite(group: tuple[Check, ...], style: Style, alike: Collection[str]) -> str:
    """The records of one check, with its file in the class if it is among those of which there are several."""
    name, file = group[0].check, group[0].model.uri
    label = clean(f"{file}::{name}" if name in alike else name)
    waived = str(sum(c.status == "waived" for c in group))
    suite = xml.Element("testsuite", name=clean(name), **_counts(group), skipped=waived)
    suite.set("time", _time(group))
    if file:
        suite.set("file", clean(file))
    for check in group:
        _case(suite, check, label, style)
    xml.indent(suite, level=1)
    return xml.tostring(suite, encoding="unicode")


def _case(suite: xml.Element, check: Check, label: str, style: Style) -> None:
    title = "/".join(check.derivative) + given_by(check) if check.x or check.y else check.check
    case = xml.SubElement(suite, "testcase", classname=label, name=clean(title), time=_time((check,)))
    if check.status in _OUTCOMES and not check.gradient_passes:
        found = xml.SubElement(case, _OUTCOMES[check.status], type=check.code, message=clean(outcome(check)))
        found.text = clean(full.section((check,), style).strip())
    elif check.at_health:
        xml.SubElement(case, "failure", type="gate", message=clean(gate_text(check)))
    elif check.status == "waived":
        xml.SubElement(case, "skipped", message=clean(outcome(check)))
    if check.copy_of:
        xml.SubElement(case, "system-out").text = clean(f"copy of {check.copy_of}: {outcome(check)}")
    if check.forward_differs:
        case = xml.SubElement(suite, "testcase", classname=label, name=f"{clean(title)}: forward run", time="0.000")
        xml.SubElement(case, "failure", type=CODE, message=clean(forward_reason(check)))


def _counts(checks: Iterable[Check]) -> dict[str, Any]:
    kinds = [kind for c in checks for kind in _kinds(c)]
    return {"tests": str(len(kinds)), "failures": str(kinds.count("failure")), "errors": str(kinds.count("error"))}


def _kinds(check: Check) -> Iterator[str]:
    """The outcome of each test case of a record: the pair, and the forward run where that differs."""
    yield "" if check.gradient_passes else _OUTCOMES.get(check.status, "failure")
    if check.forward_differs:
        yield "failure"


def _time(checks: tuple[Check, ...]) -> str:
    return f"{sum(c.duration_s for c in checks):.3f}"
