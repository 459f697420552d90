"""Strict JSON: a record a line, `gradcheck.result/1`, or the whole run as one document, `gradcheck.run/1`."""

from __future__ import annotations

import json
from collections.abc import Iterator

from gradcheck_cli.report.text import Style
from gradcheck_cli.results.record import RUN_SCHEMA, Check, Report

_text_of = json.JSONEncoder(allow_nan=False, default=str).encode  # in C, as an indent would not be


def section(checks: tuple[Check, ...], style: Style) -> str:
    """The records of one check, a line each."""
    return "".join(f"{_text_of(check.as_json())}\n" for check in checks)


def summary(report: Report, style: Style) -> str:
    """An empty text, since every line is a record."""
    return ""


def document(report: Report, style: Style) -> Iterator[str]:
    """A document of all records with the exit code, record by record: a line for each field of one."""
    yield f'{{\n  "schema": {_text_of(RUN_SCHEMA)},\n  "exit_code": {report.exit_code},\n  "checks": ['
    for number, check in enumerate(report.checks):
        fields = ",\n      ".join(f'"{name}": {_text_of(value)}' for name, value in check.as_json().items())
        yield f"{',' * bool(number)}\n    {{\n      {fields}\n    }}"
    yield f"{chr(10) + '  ' if report.outcomes else ''}]\n}}\n"
