"""The JSON Schema (draft-07) of what `--output-format json` and `jsonl` print, from the fields of records.

`gradcheck.result/1` is one record, a pair (x, y) of a check; `gradcheck.run/1` holds the records of a run.
Fields may be added within a version, so unknown ones are allowed; what stands here does not change.
"""

from __future__ import annotations

from copy import deepcopy

from gradcheck_cli.results.record import RUN_SCHEMA, SCHEMA, SEVERITY, Check
from gradcheck_cli.results.typed import Schema, json_type

_NUMBER: Schema = {
    "description": "JSON has no numbers that are not finite: they are strings.",
    "oneOf": [{"type": "number"}, {"enum": ["nan", "inf", "-inf"]}],
}


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
    properties = {"exit_code": exit_code, "checks": {"type": "array", "items": {"$ref": "#/definitions/result"}}}
    run = {"type": "object", "description": "A run of gradcheck.", "properties": properties, "required": [*properties]}
    return _named(RUN_SCHEMA, run)


def _named(name: str, schema: Schema) -> Schema:
    """An object whose key "schema" says which it is."""
    properties = {"schema": {"const": name}, **schema["properties"]}
    return {**schema, "properties": properties, "required": ["schema", *schema["required"]]}
