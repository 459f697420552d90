"""The JSON Schema (draft-07) of what `--output-format json` and `jsonl` print, from the fields of records.

`gradcheck.result/1` is one record, a pair (x, y) of a check; `gradcheck.run/1` holds the records of a run.
Fields may be added within a version, so unknown ones are allowed; what stands here does not change.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import is_dataclass
from typing import Annotated, Any, TypeAlias, Union, get_args, get_origin, is_typeddict

from gradcheck_cli.results.record import RUN_SCHEMA, SCHEMA, SEVERITY, Check
from gradcheck_cli.results.typed import Keys, Only, declared, required

Schema: TypeAlias = dict[str, Any]
_PLAIN: Mapping[Any, Schema] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"$ref": "#/definitions/number"},
    bool: {"type": "boolean"},
}
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
        "definitions": {"number": _NUMBER, "result": _named(SCHEMA, _schema(Check)), "run": _run()},
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


def _schema(kind: Any) -> Schema:
    """The schema of a type of fields."""
    origin, inside = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _annotated(*inside)
    if is_dataclass(kind) or is_typeddict(kind):
        return _object(kind)
    if origin in (Union, types.UnionType):
        return {"oneOf": [_schema(inside[0]), {"type": "null"}]}
    if origin is tuple:
        return {"type": "array", "items": _schema(inside[0])}
    if origin is Mapping:
        return {"type": "object", "additionalProperties": _schema(inside[1])}
    return _PLAIN[kind]


def _object(kind: Any) -> Schema:
    """A record, or a typed dictionary."""
    about, _, _ = (inspect.getdoc(kind) or "").partition("\n\n")
    properties = {name: _schema(hint) for name, hint in declared(kind).items()}
    found = {"type": "object", "description": " ".join(about.split()), "properties": properties}
    return {**found, "required": [*required(kind)]} if required(kind) else found


def _annotated(kind: Any, *known: Any) -> Schema:
    """The schema of a type of which more is known."""
    found = _schema(kind)
    for each in known:
        if isinstance(each, Keys):
            found = _keyed(found, each)
        elif isinstance(each, Only):
            found = {**found, **_only(each)} if kind is not float else {"type": "number", **_only(each)}
        else:  # whatever stands beside a reference is ignored in draft-07
            found = {**({"allOf": [found]} if "$ref" in found else found), "description": each}
    return found


def _keyed(mapping: Schema, keys: Keys) -> Schema:
    """The schema of a mapping of which keys are known."""
    kept = {word: value for word, value in mapping.items() if word != "additionalProperties"}
    named = dict.fromkeys((*keys.together, *keys.others), mapping.get("additionalProperties"))
    kept["properties"] = mapping.get("properties", named)
    together = {"anyOf": [{"maxProperties": 0}, {"required": [*keys.together]}]}
    return {**kept, **together} if keys.together else kept


def _only(known: Only) -> Schema:
    said = {"enum": [*known.words], "pattern": known.pattern, "minimum": known.least}
    return {word: value for word, value in said.items() if value not in ([], "", None)}
