"""GitLab's Code Quality report: an issue for each check that did not pass, as the merge request shows it."""

from __future__ import annotations

import hashlib
import json
import os
from typing import Any

from gradcheck_cli.record import Check, Report
from gradcheck_cli.report.concise import outcome, subject
from gradcheck_cli.report.health import gate_text
from gradcheck_cli.report.text import Style

_SEVERITIES = {
    "fail": "critical",
    "error": "critical",
    "limit": "major",
    "inconclusive": "minor",
    "unsupported": "minor",
}


def document(report: Report, style: Style) -> str:
    """The list of issues; an empty one where all is well."""
    issues = [_issue(check) for check in report.checks if check.status in _SEVERITIES or check.gates]
    return json.dumps(issues, indent=2, allow_nan=False) + "\n"


def _issue(check: Check) -> dict[str, Any]:
    path = os.path.normpath(check.model.uri or check.check).replace(os.sep, "/")
    return {
        "description": f"{subject(check)}: {gate_text(check) or outcome(check)}",
        "check_name": check.code or "gate",
        "fingerprint": hashlib.sha256(f"{check.id}\0{check.code}".encode(errors="replace")).hexdigest(),
        "severity": _SEVERITIES.get(check.status, "major"),
        "location": {"path": path, "lines": {"begin": 1}},
    }
