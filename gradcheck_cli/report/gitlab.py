"""GitLab's Code Quality report: an issue for each check that did not pass, as the merge request shows it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from textwrap import indent
from typing import Any

from gradcheck_cli.record import Check, Report
from gradcheck_cli.report import places
from gradcheck_cli.report.concise import outcome, subject
from gradcheck_cli.report.health import gate_text
from gradcheck_cli.report.text import Style, clean

_SEVERITIES = {
    "fail": "critical",
    "severed": "critical",
    "error": "critical",
    "limit": "major",
    "inconclusive": "minor",
    "unsupported": "minor",
}


def document(report: Report, style: Style) -> Iterator[str]:
    """The list of issues; an empty one where all is well."""
    seen = Counter[tuple[str, str]]()
    for check in report.wrong:
        first = not seen
        same = (check.model.uri, check.id)
        seen[same] += 1
        issue = json.dumps(_issue(check, seen[same]), indent=2, allow_nan=False)
        yield ("[\n" if first else ",\n") + indent(issue, "  ")
    yield "\n]\n" if seen else "[]\n"


def _issue(check: Check, occurrence: int) -> dict[str, Any]:
    """An issue; of those with the same fingerprint only one would be shown."""
    what = check.code if occurrence == 1 else f"{check.code}\0{occurrence}"
    return {
        "description": f"{subject(check)}: {gate_text(check) or outcome(check)}",
        "check_name": check.code or "gate",
        "fingerprint": places.fingerprint(check, what),
        "severity": _SEVERITIES.get(check.status, "major"),
        "location": {"path": clean(places.path(check)), "lines": {"begin": 1}},
    }
