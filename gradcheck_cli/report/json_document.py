"""The whole run as one strict JSON document, `gradcheck.run/1`, laid out to be read: what is short stays on a line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from gradcheck_cli.record import RUN_SCHEMA, Report
from gradcheck_cli.report.text import Style

_WIDTH = 100
_text_of = json.JSONEncoder(allow_nan=False, default=str).encode


def document(report: Report, style: Style) -> str:
    """A document of all records with the exit code."""
    return "".join(pieces(report, style))


def pieces(report: Report, style: Style) -> Iterator[str]:
    """The same, record by record."""
    yield f'{{\n  "schema": {_text_of(RUN_SCHEMA)},\n  "exit_code": {report.exit_code},\n  "checks": ['
    for number, check in enumerate(report.checks):
        yield f"{',' * bool(number)}\n    {_laid_out(check.as_json(), '    ')}"
    yield ("\n  " if report.checks else "") + "]\n}\n"


def _laid_out(value: Any, margin: str) -> str:
    """A value on one line if it is short, else each of its parts on lines of its own, below this margin."""
    text = _text_of(value)
    if len(text) <= _WIDTH or not isinstance(value, dict | list):
        return text
    inner = f"{margin}  "
    if isinstance(value, list):
        parts, ends = [_laid_out(each, inner) for each in value], "[]"
    else:
        parts, ends = [f"{_text_of(key)}: {_laid_out(each, inner)}" for key, each in value.items()], "{}"
    return f"{ends[0]}\n{inner}" + f",\n{inner}".join(parts) + f"\n{margin}{ends[1]}"
