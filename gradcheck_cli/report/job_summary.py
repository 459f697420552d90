"""The summary of a step of GitHub Actions: Markdown that is added to a file which the step is told of."""

from __future__ import annotations

import os
from collections.abc import Mapping

from gradcheck_cli.report.markdown import bounded
from gradcheck_cli.report.text import Style
from gradcheck_cli.results.record import Report

LARGEST = 1 << 20  # bytes of a step's summary: a larger one is not shown at all


def job_summary(environment: Mapping[str, str] = os.environ) -> str:
    """The file to which a step adds its summary; empty where nothing runs one."""
    return environment.get("GITHUB_STEP_SUMMARY", "")


def add_summary(path: str, report: Report, style: Style) -> None:
    """Adds a report, or as much of it as there is room for; OSError where that cannot be."""
    with open(path, "a", encoding="utf-8", errors="backslashreplace", newline="\n") as file:
        file.write(bounded(report, style, LARGEST - file.tell()))
