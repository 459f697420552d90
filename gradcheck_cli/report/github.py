"""Workflow commands of GitHub Actions: an annotation for each check that did not pass."""

from __future__ import annotations

from gradcheck_cli.record import Check, Report
from gradcheck_cli.report.concise import outcome, subject
from gradcheck_cli.report.full import totals
from gradcheck_cli.report.health import gate_text
from gradcheck_cli.report.text import Style, clean, seconds

_LEVELS = {
    "fail": "error",
    "error": "error",
    "limit": "error",
    "inconclusive": "warning",
    "unsupported": "warning",
}


def section(checks: tuple[Check, ...], style: Style) -> str:
    """The annotations of one check."""
    return "".join(f"{annotation(c)}\n" for c in checks if c.status in _LEVELS or c.gates)


def summary(report: Report, style: Style) -> str:
    """How many checks ended how, as a plain line of the log."""
    return f"{totals(report)} in {seconds(report.duration_s)}\n"


def annotation(check: Check) -> str:
    """One workflow command."""
    title = f"{check.code} {subject(check)}".strip()
    gate = [gate_text(check)] if check.gates else []
    message = "\n".join([outcome(check), *gate, *check.notes, *([check.reproduce] if check.reproduce else [])])
    place = f"file={_property(check.model.uri)},title={_property(title)}"
    return f"::{'error' if check.gates else _LEVELS[check.status]} {place}::{_data(message)}"


def _data(text: str) -> str:
    return clean(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
