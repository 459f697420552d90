"""A JSON record a line, `gradcheck.result/1`, written as checks end."""

from __future__ import annotations

import json

from gradcheck_cli.report.text import Style
from gradcheck_cli.results.record import Check, Report


def section(checks: tuple[Check, ...], style: Style) -> str:
    """The records of one check."""
    return "".join(json.dumps(c.as_json(), allow_nan=False, default=str) + "\n" for c in checks)


def summary(report: Report, style: Style) -> str:
    """Nothing: every line is a record."""
    return ""
