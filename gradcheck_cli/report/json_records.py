"""Strict JSON: a record a line, `gradcheck.result/1`, or the whole run as one document, `gradcheck.run/1`.

Its JSON Schema (draft-07) is made from the fields of records: `gradcheck.result/1` is one record, a pair (x, y) of a
check; `gradcheck.run/1` holds the records of a run.  Fields may be added within a version, so unknown ones are allowed;
what stands here does not change.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from copy import deepcopy

from gradcheck_cli.report.text import Style
from gradcheck_cli.results.record import (
    BLANK,
    GATES,
    RECORDED,
    RUN_SCHEMA,
    SCHEMA,
    SEVERITY,
    Check,
    Kept,
    Report,
    strict,
)
from gradcheck_cli.results.typed import Schema, json_type

_NUMBER: Schema = {
    "description": "JSON has no numbers that are not finite: they are strings.",
    "oneOf": [{"type": "number"}, {"enum": ["nan", "inf", "-inf"]}],
}
_text_of = json.JSONEncoder(allow_nan=False, default=str).encode  # in C, as an indent would not be


def section(checks: tuple[Check, ...], style: Style) -> str:
    """The records of one check, a line each."""
    return "".join(f"{_text_of(check.as_json())}\n" for check in checks)


def summary(report: Report, style: Style) -> str:
    """An empty text, since every line is a record."""
    return ""


def lines(report: Report, style: Style) -> Iterator[str]:
    """All records, a line each."""
    for fields in _fields(report.checks):
        yield "{" + ", ".join([f'"{name}": {text}' for name, text in fields.items()]) + "}\n"


def document(report: Report, style: Style) -> Iterator[str]:
    """A document of all records with the exit code, record by record: a line for each field of one."""
    yield f'{{\n  "schema": {_text_of(RUN_SCHEMA)},\n  "exit_code": {report.exit_code},\n'
    yield f'  "fail_on": {_text_of([*report.fail_on])},\n  "checks": ['
    for number, fields in enumerate(_fields(report.checks)):
        told = ",\n      ".join([f'"{name}": {text}' for name, text in fields.items()])
        yield f"{',' * bool(number)}\n    {{\n      {told}\n    }}"
    yield f"{chr(10) + '  ' if report.outcomes else ''}]\n}}\n"


def _fields(checks: Sequence[Check]) -> Iterator[dict[str, str]]:
    """The JSON text of each field of some records; records that stand as JSON in a file are not made for it."""
    texts = checks.texts if isinstance(checks, Kept) else None
    if texts is None:
        yield from ({name: _text_of(value) for name, value in check.as_json().items()} for check in checks)
        return
    missing = {name: _text_of(strict(getattr(BLANK, name))) for name in RECORDED}  # in records of earlier versions
    for fields in texts(range(len(checks))):
        yield {"schema": _text_of(SCHEMA), **{name: fields.get(name, empty) for name, empty in missing.items()}}


def result_schema() -> Schema:
    """The schema of either kind: a record has "schema": "gradcheck.result/1", a run "gradcheck.run/1"."""
    schema = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "gradcheck results",
        "oneOf": [{"$ref": "#/definitions/result"}, {"$ref": "#/definitions/run"}],
        "definitions": {"number": _NUMBER, "result": _named(SCHEMA, json_type(Check).schema), "run": _run()},
    }
    return deepcopy(schema)  # parts that are the same stand in several places


def _run() -> Schema:
    exit_code = {"enum": sorted(SEVERITY), "description": "The exit code of the command."}
    gates = {"type": "array", "items": {"enum": [*GATES]}, "description": "The outcomes that fail the run: --fail-on."}
    properties = {"exit_code": exit_code, "checks": {"type": "array", "items": {"$ref": "#/definitions/result"}}}
    run = {"type": "object", "description": "A run of gradcheck.", "required": [*properties]}
    return _named(RUN_SCHEMA, {**run, "properties": {**properties, "fail_on": gates}})


def _named(name: str, schema: Schema) -> Schema:
    """An object whose key "schema" says which it is."""
    properties = {"schema": {"const": name}, **schema["properties"]}
    return {**schema, "properties": properties, "required": ["schema", *schema["required"]]}
