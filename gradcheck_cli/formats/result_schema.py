"""The JSON Schema (draft-07) of what `--output-format json` and `jsonl` print.

`gradcheck.result/1` is one record, a pair (x, y) of a check; `gradcheck.run/1` holds the records of a run.
Fields may be added within a version, so unknown ones are allowed; what stands here does not change.
"""

from __future__ import annotations

from typing import Any

from gradcheck_cli.measures import WORDS

Schema = dict[str, Any]
STATUSES = ("pass", "fail", "inconclusive", "error", "unsupported", "limit", "waived")
ENTRY_REASONS = ("noise", "curvature", "domain", "jump", "underflow", "nonderivative")
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
        "gradient_of": _said(_TEXT, "In a check of second order y is the gradient of this tensor by x."),
        "x_shape": _said(_INDICES, "Shape of x at the point."),
        "y_shape": _said(_INDICES, "Shape of y at the point."),
    }


def _settings() -> Schema:
    return {
        "mode": _said({"enum": ["full", "nodes", "directional", "sampled"]}, "What was compared."),
        "chosen": _said(_TEXT, "Why `auto` took this mode; empty where it compares everything."),
        "method": _said(_TEXT, "How the numerical side was differentiated."),
        "source": _said(_TEXT, "Who evaluated the numerical side: internal or onnxruntime."),
        "forward": _forward(),
        "power": _said({"type": "object"}, "The size of error that would have been missed."),
        "dtype": _said(_TEXT, "float64, or model where the gradient in the model's own dtype was looked at as well."),
        "rtol": _said(_NUMBER, "Relative tolerance."),
        "atol": _said(_NUMBER, "Absolute tolerance."),
        "seed": _said({"type": "integer"}, "Of everything that was drawn."),
        "points": _said(_COUNT, "How many points were tried."),
        "ranges": _said(
            {"type": "object", "additionalProperties": {"type": "array", "items": _NUMBER}},
            "Where inputs were drawn, if the model is not finite where they are drawn by default.",
        ),
        "dims": _said({"type": "object", "additionalProperties": _COUNT}, "Sizes of symbolic dimensions."),
    }


def _forward() -> Schema:
    properties = {
        "compared_with": _said(_or_null(_TEXT), "Name and version; null where it was not compared."),
        "max_abs_err": _said(_NUMBER, "Largest difference of y."),
        "max_rel_err": _said(_NUMBER, "The same relative to an entry, or to a tenth of the largest one."),
        "reason": _said(_TEXT, "Why it was not compared."),
    }
    return _object("What the forward run was held against; empty where nothing was to be compared.", properties)


def _findings() -> Schema:
    counts = dict.fromkeys(("total", "checked", "failed", "inconclusive", "kink_ok"), _COUNT)
    runs = dict.fromkeys(("real", "complex"), _COUNT)
    nodes = dict.fromkeys(("total", "checked", "failed"), _COUNT)
    gradient = {"norm": _NUMBER, "max": _NUMBER, "zero_fraction": _NUMBER, "finite": _BOOL,
                "health": _health(), "precision": _precision()}  # fmt: skip
    return {
        "entries": _object("Entries of the Jacobian; checked are projections of them in directional mode.", counts),
        "nodes": _object("Nodes between x and y that were checked on their own.", nodes),
        "evaluations": _object("Forward runs of the numerical side, by the numbers they were made on.", runs),
        "coloring": _object(
            "Rows of the Jacobian, and groups they were probed in; empty where each was probed alone.",
            {"rows": _COUNT, "colors": _COUNT},
        ),
        "max_abs_err": _said(_NUMBER, "Largest |theoretical - numerical|."),
        "max_rel_err": _said(_NUMBER, "Largest difference relative to the larger of the two."),
        "noise": _said(_NUMBER, "Largest error bound of the numerical side."),
        "needed": _object("Tolerances with which it would pass.", {"rtol": _NUMBER, "atol": _NUMBER}),
        "gradient": _object("The theoretical gradient.", gradient),
        "worst": _said({"type": "array", "items": _entry()}, "The worst entries, worst first."),
        "suspect": _or_null(_suspect()),
        "branches": _object(
            "Branches of piecewise nodes between x and y: all, those that a point has taken, the first of the others.",
            {"total": _COUNT, "covered": _COUNT, "missed": {"type": "array", "items": _TEXT}},
        ),
        "notes": _said({"type": "array", "items": _TEXT}, "What a reader should know."),
        "message": _said(_TEXT, "Why nothing could be compared."),
        "blocked_by": _said(
            {"type": "array", "items": _TEXT}, "Operators without a gradient or a kernel, where they are why."
        ),
        "gates": _said(
            {"type": "array", "items": {"enum": list(WORDS)}}, "What of --fail-on its gradient's health hit."
        ),
    }


def _health() -> Schema:
    layer = {
        "spot": _spot(),
        "norm": _said(_NUMBER, "Of the cotangent of its output."),
        "size": _said(_COUNT, "Entries of its output."),
        "zero_fraction": _said(_NUMBER, "Exact zeros among the entries of that cotangent."),
        "weights": _said(_or_null(_NUMBER), "Norm of the gradient of its own parameters."),
        "units": _said(_COUNT, "Channels or features that may go flat."),
        "dead": _said(_or_null(_COUNT), "Of them, on the flat part wherever seen; null if seen too seldom."),
        "saturated": _said(_or_null(_COUNT), "Of them, with a slope of next to nothing wherever seen."),
    }
    nonfinite = {"entries": _COUNT, "forward": _or_null(_spot()), "backward": _or_null(_spot())}
    properties = {
        "layers": {"type": "array", "items": _object("A node that has weights, or bends.", layer)},
        "depth": _said(_COUNT, "How many layers there are."),
        "ratio": _said(_or_null(_NUMBER), "The flow at the first layers over that at the last ones."),
        "steepest": _or_null(_object("Where the flow changes most.", {"factor": _NUMBER, "spot": _spot()})),
        "units": _COUNT,
        "dead": _COUNT,
        "saturated": _COUNT,
        "nonfinite": _object("Entries of the gradient, and the first node that made such.", nonfinite),
        "shows": _said({"type": "array", "items": {"enum": list(WORDS)}}, "What is wrong."),
    }
    return _object("Whether the model can be trained through.", properties)


def _precision() -> Schema:
    loss = {
        "what": {"enum": ["overflow", "underflow", "nan"]},
        "way": {"enum": ["forward", "backward"]},
        "spot": _spot(),
    }
    properties = {
        "dtype": _said(_TEXT, "Of x in the model."),
        "digits": _said(_NUMBER, "Decimal digits that it has."),
        "median": _said(_NUMBER, "Digits that entries keep, the median."),
        "worst": _said(_NUMBER, "The same for the worst of them."),
        "x": _said(_INDICES, "Index of the worst into x."),
        "y": _said(_INDICES, "Index of the worst into y."),
        "point": _COUNT,
        "wide": _said(_NUMBER, "Its value in float64."),
        "narrow": _said(_NUMBER, "Its value in the model's dtype."),
        "entries": _said(_COUNT, "How many entries matter."),
        "nonfinite": _said(_COUNT, "Entries that are finite in float64 only."),
        "underflow": _said(_COUNT, "Entries that are zero in the model's dtype only."),
        "first": _or_null(_object("The first node that loses something.", loss)),
        "note": _said(_TEXT, "Why nothing could be compared."),
    }
    return _object("The gradient in the model's own dtype against that in float64.", properties)


def _spot() -> Schema:
    return _object("A node.", {"node": {"type": "integer"}, "op": _TEXT, "name": _TEXT, "inside": _TEXT})


def _circumstances() -> Schema:
    return {
        "picture": _said({"type": "object"}, "What pictures are drawn from, kept by a zoo of what is not right."),
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
        "operators": _said(
            {"type": "object", "additionalProperties": _COUNT},
            "How often each operator occurs, inner graphs included, the most frequent first.",
        ),
        "dtypes": _said({"type": "array", "items": _TEXT}, "Of its floating-point inputs and parameters."),
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
    more = {
        "status": _said({"enum": ["fail", "inconclusive", "kink-ok"]}, "What became of it."),
        "part": _said(_TEXT, "Of complex numbers: re x, im x, re y, im y."),
        "reason": _said({"enum": ["", *ENTRY_REASONS]}, "Why it is inconclusive."),
        "unseen": _said(_or_null(_NUMBER), "Any larger error would have been seen, where it is inconclusive."),
        "slopes": _said(_or_null({"type": "array", "items": _NUMBER}), "Of y from both sides, where x lies at a tie."),
    }
    return _object("An entry of the Jacobian.", {**properties, **more}, required=list(properties))


def _suspect() -> Schema:
    properties = {
        "node": _said(_COUNT, "Index of the node."),
        "op": _TEXT,
        "name": _TEXT,
        "outputs": {"type": "array", "items": _TEXT},
        "inside": _said(_TEXT, "Of which graph it is a node; empty for the model's own."),
        "rel_err": _said(_NUMBER, "Of its own gradient, at the worst element."),
        "at": _said(_TEXT, "The operand whose cotangent is worst."),
        "index": _said(_or_null(_INDICES), "The worst element of that operand."),
        "diagnosis": _said(_TEXT, "What the mistake looks like: the gradient is 2 times what it should be."),
        "part_of": _said(_TEXT, "The operator of the node, where a part of what it is composed of is at fault."),
        "tried": _said(_COUNT, "Nodes on the way that were checked on their own."),
        "passed": _said(_COUNT, "Nodes on the way that are right on their own."),
        "before": _said(_COUNT, "Nodes on the way before it."),
        "after": _said(_COUNT, "Nodes on the way behind it."),
        "unchecked": _said(_COUNT, "Nodes on the way that could not be checked on their own."),
        "others": _said({"type": "array", "items": _TEXT}, "More nodes that fail on their own."),
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
