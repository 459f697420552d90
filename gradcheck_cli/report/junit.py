"""JUnit XML as Jenkins' schema has it: a suite for each check, a case for each pair (x, y)."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree as xml

from gradcheck_cli.record import Check, Report
from gradcheck_cli.report import by_check, full
from gradcheck_cli.report.concise import outcome
from gradcheck_cli.report.health import gate_text
from gradcheck_cli.report.text import Style, clean

_OUTCOMES = {
    "fail": "failure",
    "error": "error",
    "limit": "error",
    "unsupported": "error",
    "inconclusive": "failure",
}


def document(report: Report, style: Style) -> str:
    """The document of a whole run."""
    root = xml.Element("testsuites", name="gradcheck", **_counts(report.checks), time=f"{report.duration_s:.3f}")
    for group in by_check(report.checks):
        waived = str(sum(c.status == "waived" for c in group))
        suite = xml.SubElement(root, "testsuite", name=clean(group[0].check), **_counts(group), skipped=waived)
        suite.set("time", _time(group))
        if group[0].model.uri:
            suite.set("file", clean(group[0].model.uri))
        for check in group:
            _case(suite, check, style)
    xml.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{xml.tostring(root, encoding="unicode")}\n'


def _case(suite: xml.Element, check: Check, style: Style) -> None:
    title = "/".join(check.derivative) if check.x or check.y else check.check
    case = xml.SubElement(suite, "testcase", classname=clean(check.check), name=clean(title), time=_time((check,)))
    if check.status in _OUTCOMES:
        found = xml.SubElement(case, _OUTCOMES[check.status], type=check.code, message=clean(outcome(check)))
        found.text = clean(full.section((check,), style).strip())
    elif check.gates:
        xml.SubElement(case, "failure", type="gate", message=clean(gate_text(check)))
    elif check.status == "waived":
        xml.SubElement(case, "skipped", message=clean(outcome(check)))


def _counts(checks: tuple[Check, ...]) -> dict[str, Any]:
    kinds = [_OUTCOMES.get(c.status, "failure" if c.gates else "") for c in checks]
    return {
        "tests": str(len(checks)),
        "failures": str(kinds.count("failure")),
        "errors": str(kinds.count("error")),
    }


def _time(checks: tuple[Check, ...]) -> str:
    return f"{sum(c.duration_s for c in checks):.3f}"
