"""The JSON Schema (draft-07) of what `--output-format json` and `jsonl` print.

`gradcheck.result/1` is one record, a pair (x, y) of a check; `gradcheck.run/1` holds the records of a run.
Fields may be added within a version, so unknown ones are allowed; what stands here does not change.
"""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]
STATUSES = ("pass", "fail", "inconclusive", "error", "unsupported", "limit", "waived")
EXIT_CODES = (0, 1, 2, 3, 4, 5, 6, 7, 70, 130)
_TEXT: Schema = {"type": "string"}
_BOOL: Schema = {"type": "boolean"}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_INDICES: Schema = {"type": "array", "items": _COUNT}
_NUMBER: Schema = {"$ref": "#/definitions/number"}


def result_schema() -> Schema:
    """The schema of either kind: a record has "schema": "gradcheck.result/1", a run "gradcheck.run/1"."""
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "gradcheck results",
        "oneOf": [{"$ref": "#/definitions/result"}, {"$ref": "#/definitions/run"}],
        "definitions": {"number": _number(), "result": _result(), "run": _run()},
    }


def _number() -> Schema:
    return {
        "description": "JSON has no numbers that are not finite: they are strings.",
        "oneOf": [{"type": "number"}, {"enum": ["nan", "inf", "-inf"]}],
    }


def _run() -> Schema:
    properties = {
        "schema": {"const": "gradcheck.run/1"},
        "exit_code": _said({"enum": list(EXIT_CODES)}, "What the command exits with."),
        "checks": {"type": "array", "items": {"$ref": "#/definitions/result"}},
    }
    return _object("A run of gradcheck.", properties, required=list(properties))


def _result() -> Schema:
    properties = {**_identity(), **_settings(), **_findings(), **_circumstances()}
    required = ["schema", "id", "check", "status", "code", "model", "x", "y"]
    return _object("One pair (x, y) of a check.", properties, required)


def _identity() -> Schema:
    return {
        "schema": {"const": "gradcheck.result/1"},
        "id": _said(_TEXT, "Check, y and x: the same in every run."),
        "check": _said(_TEXT, "Name of the check: the model's, or that of an entry of a spec."),
        "status": _said({"enum": list(STATUSES)}, "The outcome."),
        "code": _said({"type": "string", "pattern": "^(GC[1-9][0-9]{2})?$"}, "Why; empty for a pass."),
        "model": _model(),
        "x": _said(_TEXT, "Differentiated by this tensor."),
        "y": _said(_TEXT, "This tensor is differentiated."),
        "x_shape": _said(_INDICES, "Shape of x at the point."),
        "y_shape": _said(_INDICES, "Shape of y at the point."),
    }


def _settings() -> Schema:
    return {
        "mode": _said({"enum": ["full", "nodes", "directional", "sampled"]}, "What was compared."),
        "method": _said(_TEXT, "How the numerical side was differentiated."),
        "source": _said(_TEXT, "Who evaluated the numerical side: internal or onnxruntime."),
        "power": _said({"type": "object"}, "The size of error that would have been missed."),
        "dtype": _said(_TEXT, "The precision of both sides."),
        "rtol": _said(_NUMBER, "Relative tolerance."),
        "atol": _said(_NUMBER, "Absolute tolerance."),
        "seed": _said({"type": "integer"}, "Of everything that was drawn."),
        "points": _said(_COUNT, "How many points were tried."),
        "dims": _said({"type": "object", "additionalProperties": _COUNT}, "Sizes of symbolic dimensions."),
    }


def _findings() -> Schema:
    counts = dict.fromkeys(("total", "checked", "failed", "inconclusive"), _COUNT)
    gradient = {"norm": _NUMBER, "max": _NUMBER, "zero_fraction": _NUMBER, "finite": _BOOL}
    return {
        "entries": _object("Entries of the Jacobian; checked are projections of them in directional mode.", counts),
        "max_abs_err": _said(_NUMBER, "Largest |theoretical - numerical|."),
        "max_rel_err": _said(_NUMBER, "Largest difference relative to the larger of the two."),
        "noise": _said(_NUMBER, "Largest error bound of the numerical side."),
        "needed": _object("Tolerances with which it would pass.", {"rtol": _NUMBER, "atol": _NUMBER}),
        "gradient": _object("The theoretical gradient.", gradient),
        "worst": _said({"type": "array", "items": _entry()}, "The worst entries, worst first."),
        "suspect": _or_null(_suspect()),
        "notes": _said({"type": "array", "items": _TEXT}, "What a reader should know."),
        "message": _said(_TEXT, "Why nothing could be compared."),
    }


def _circumstances() -> Schema:
    return {
        "bundle": _said(_or_null(_TEXT), "Where the failure was saved for `gradcheck reproduce`."),
        "waiver": _said(_or_null({"type": "object"}), "The `expect` of the spec that applies."),
        "reproduce": _said(_TEXT, "The command that shows it again."),
        "duration_s": _said({"type": "number", "minimum": 0}, "Seconds."),
        "peak_rss_mb": _said({"type": "number", "minimum": 0}, "Memory of the process."),
        "versions": _said({"type": "object", "additionalProperties": _TEXT}, "Of gradcheck, onnx and numpy."),
    }


def _model() -> Schema:
    properties = {
        "uri": _said(_TEXT, "Where it was read."),
        "sha256": _said({"type": "string", "pattern": "^([0-9a-f]{64})?$"}, "Of the file."),
        "opset": _said({"type": "object", "additionalProperties": {"type": "integer"}}, "By domain."),
        "nodes": _said(_COUNT, "How many nodes the file has."),
    }
    return _object("The model.", properties, required=["uri"])


def _entry() -> Schema:
    properties = {
        "x": _said(_INDICES, "Index into x."),
        "y": _said(_INDICES, "Index into y."),
        "point": _COUNT,
        "theoretical": _NUMBER,
        "numerical": _NUMBER,
        "noise": _said(_NUMBER, "Error bound of the numerical side."),
        "pattern": _said(_TEXT, "What kind of mistake it looks like: missing, sign, x 0.5 ..."),
    }
    return _object("An entry of the Jacobian.", properties, required=list(properties))


def _suspect() -> Schema:
    properties = {
        "node": _said(_COUNT, "Index of the node."),
        "op": _TEXT,
        "name": _TEXT,
        "outputs": {"type": "array", "items": _TEXT},
        "inside": _said(_TEXT, "Of which graph it is a node; empty for the model's own."),
    }
    return _object("The node whose own gradient is wrong.", properties, required=["node", "op", "name", "outputs"])


def _object(description: str, properties: Schema, required: list[str] | None = None) -> Schema:
    found = {"type": "object", "description": description, "properties": properties}
    return {**found, "required": required} if required else found


def _said(schema: Schema, description: str) -> Schema:
    # Whatever stands beside a reference is ignored in draft-07.
    return {"description": description, **({"allOf": [schema]} if "$ref" in schema else schema)}


def _or_null(schema: Schema) -> Schema:
    return {"oneOf": [schema, {"type": "null"}]}
