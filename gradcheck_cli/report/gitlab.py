"""GitLab's Code Quality report: an issue for each check that did not pass, as the merge request shows it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from textwrap import indent
from typing import Any

from gradcheck_cli.errors import clean
from gradcheck_cli.report import text as places
from gradcheck_cli.report.concise import CODE, forward_reason, outcome, subject
from gradcheck_cli.report.health import gate_text
from gradcheck_cli.report.text import Style
from gradcheck_cli.results.record import Check, Report

_SEVERITIES = {
    **dict.fromkeys(("fail", "severed", "error"), "critical"), "limit": "major",
    **dict.fromkeys(("inconclusive", "unsupported"), "minor"),
}  # fmt: skip


def document(report: Report, style: Style) -> Iterator[str]:
    """The list of issues; an empty one where all is well."""
    seen = Counter[tuple[str, str]]()
    for check, what in ((each, issue) for each in report.wrong for issue in _issues(each)):
        first = not seen
        same = (check.model.uri, f"{check.id}\0{what['check_name'] == CODE}")
        seen[same] += 1
        code = what["check_name"] if seen[same] == 1 else f"{what['check_name']}\0{seen[same]}"
        issue = json.dumps({**what, "fingerprint": places.fingerprint(check, code)}, indent=2, allow_nan=False)
        yield ("[\n" if first else ",\n") + indent(issue, "  ")
    yield "\n]\n" if seen else "[]\n"


def _issues(check: Check) -> Iterator[dict[str, Any]]:
    """The issues of a record: one for its gradient, one for its forward run."""
    path, line = places.place(check)
    place = {"path": clean(path), "lines": {"begin": line}}
    if not check.gradient_passes:
        said, code = gate_text(check) or outcome(check), check.code or "gate"
        yield {"description": f"{subject(check)}: {said}", "check_name": code,
               "severity": _SEVERITIES.get(check.status, "major"), "location": place}  # fmt: skip
    if check.forward_differs:
        yield {"description": f"{subject(check)}: {forward_reason(check)}", "check_name": CODE,
               "severity": "critical", "location": place}  # fmt: skip
