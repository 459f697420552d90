"""The whole run as one strict JSON document, `gradcheck.run/1`."""

from __future__ import annotations

import json

from gradcheck_cli.record import Report
from gradcheck_cli.report.text import Style


def document(report: Report, style: Style) -> str:
    """A document of all records with the exit code."""
    return json.dumps(report.as_json(), indent=2, allow_nan=False, default=str) + "\n"
