"""The JSON Schema (draft-07) of what `--output-format json` and `jsonl` print.

`gradcheck.result/1` is one record, a pair (x, y) of a check; `gradcheck.run/1` holds the records of a run.
Fields may be added within a version, so unknown ones are allowed; what stands here does not change.

The part of a record's schema that is measured of a gradient as a whole: its health, its precision, its pictures.

JSON Schema (draft-07) in words: what fields may hold, and what is said of them.
"""

from __future__ import annotations

from typing import Any

from gradcheck_cli.results.measures import WORDS

Schema = dict[str, Any]
TEXT: Schema = {"type": "string"}
BOOL: Schema = {"type": "boolean"}
COUNT: Schema = {"type": "integer", "minimum": 0}
INDICES: Schema = {"type": "array", "items": COUNT}
NUMBER: Schema = {"$ref": "#/definitions/number"}


def shaped(description: str, properties: Schema, required: list[str] | None = None) -> Schema:
    """An object with these fields."""
    found = {"type": "object", "description": description, "properties": properties}
    return {**found, "required": required} if required else found


def said(schema: Schema, description: str) -> Schema:
    """A value and what it is."""
    # Whatever stands beside a reference is ignored in draft-07.
    return {"description": description, **({"allOf": [schema]} if "$ref" in schema else schema)}


def or_null(schema: Schema) -> Schema:
    """A value, or none."""
    return {"oneOf": [schema, {"type": "null"}]}


def health() -> Schema:
    layer = {
        "spot": spot(),
        "norm": said(NUMBER, "Of the cotangent of its output."),
        "size": said(COUNT, "Entries of its output."),
        "zero_fraction": said(NUMBER, "Exact zeros among the entries of that cotangent."),
        "weights": said(or_null(NUMBER), "Norm of the gradient of its own parameters."),
        "units": said(COUNT, "Channels or features that may go flat."),
        "dead": said(or_null(COUNT), "Of them, on the flat part wherever seen; null if seen too seldom."),
        "saturated": said(or_null(COUNT), "Of them, with a slope of next to nothing wherever seen."),
    }
    nonfinite = {"entries": COUNT, "forward": or_null(spot()), "backward": or_null(spot())}
    properties = {
        "layers": {"type": "array", "items": shaped("A node that has weights, or bends.", layer)},
        "depth": said(COUNT, "How many layers there are."),
        "ratio": said(or_null(NUMBER), "The flow at the first layers over that at the last ones."),
        "steepest": or_null(shaped("Where the flow changes most.", {"factor": NUMBER, "spot": spot()})),
        "units": COUNT,
        "dead": COUNT,
        "saturated": COUNT,
        "nonfinite": shaped("Entries of the gradient, and the first node that made such.", nonfinite),
        "shows": said({"type": "array", "items": {"enum": list(WORDS)}}, "What is wrong."),
        "lost": said(or_null(spot()), "Where the gradient becomes zero, on its way from y, if it is zero everywhere."),
    }
    return shaped("Whether the model can be trained through.", properties)


def precision() -> Schema:
    loss = {
        "what": {"enum": ["overflow", "underflow", "nan"]},
        "way": {"enum": ["forward", "backward"]},
        "spot": spot(),
    }
    properties = {
        "dtype": said(TEXT, "Of x in the model."),
        "digits": said(NUMBER, "Decimal digits that it has."),
        "median": said(NUMBER, "Digits that entries keep, the median."),
        "worst": said(NUMBER, "The same for the worst of them."),
        "x": said(INDICES, "Index of the worst into x."),
        "y": said(INDICES, "Index of the worst into y."),
        "point": COUNT,
        "wide": said(NUMBER, "Its value in float64."),
        "narrow": said(NUMBER, "Its value in the model's dtype."),
        "entries": said(COUNT, "How many entries matter."),
        "nonfinite": said(COUNT, "Entries that are finite in float64 only."),
        "underflow": said(COUNT, "Entries that are zero in the model's dtype only."),
        "first": or_null(shaped("The first node that loses something.", loss)),
        "note": said(TEXT, "Why nothing could be compared."),
    }
    return shaped("The gradient in the model's own dtype against that in float64.", properties)


def severed() -> Schema:
    spots = {"type": "array", "items": spot()}
    partly = {
        "kind": said({"enum": ["units", "sum", "scale"]}, "Which part."),
        "cut": said(spots, "Nodes that cut it off."),
        "entries": said(COUNT, "Of x that have no gradient."),
    }
    properties = {
        "cut": said(spots, "Nodes without a derivative by nature, through which all ways from x to y go."),
        "reached": said(spots, "Nodes up to which the gradient of y goes back."),
        "others": said({"type": "array", "items": TEXT}, "Other ys, from which x has a gradient."),
        "partial": or_null(shaped("A part that is severed.", partly)),
    }
    return shaped("What has no derivative by nature, by the graph alone.", properties)


def spot() -> Schema:
    return shaped("A node.", {"node": {"type": "integer"}, "op": TEXT, "name": TEXT, "inside": TEXT})


def picture() -> Schema:
    """What pictures are drawn from."""
    counts = {"type": "array", "items": {"type": "array", "items": COUNT}}
    tile = {
        "over": said(TEXT, "Along what it lies: both, x, y, or projections."),
        "sizes": said(INDICES, "How many of them there are."),
        "shape": said(INDICES, "Of its cells."),
        "cells": said({"type": "array", "items": or_null({"type": "number"})}, "Decades above what is allowed."),
    }
    properties = {
        "tile": shaped("The Jacobian's errors by place, the worst of each cell.", tile),
        "errors": said(counts, "How many entries have an error of each size, by what became of them."),
        "noise": said(counts, "The same of the numerical side's own error bounds."),
        "curve": or_null(_curve()),
    }
    return shaped("What pictures are drawn from, kept by a zoo of what is not right.", properties)


def _curve() -> Schema:
    numbers = {"type": "array", "items": NUMBER}
    properties = {
        "x": INDICES,
        "y": INDICES,
        "part": said(TEXT, "Of complex numbers: re x, im x, re y, im y."),
        "point": COUNT,
        "severity": said(NUMBER, "How far beyond what is allowed it is."),
        "theoretical": NUMBER,
        "reference": said(NUMBER, "Its derivative, by a method that needs no step."),
        "doubt": said(NUMBER, "An error bound of that."),
        "allowed": said(NUMBER, "How far the theoretical entry may be from it."),
        "steps": said(numbers, "Large ones first."),
        "errors": said(numbers, "Of the difference at each step."),
        "crossed": said({"type": "array", "items": BOOL}, "Whether the step crosses a branch."),
        "rounding": said(NUMBER, "Of one value of y."),
        "truncation": said(or_null(numbers), "(c, p): errors of large steps are about c h^p."),
    }
    return shaped("Central differences of the worst entry at every step.", properties)


STATUSES = ("pass", "fail", "severed", "inconclusive", "error", "unsupported", "limit", "waived")
ENTRY_REASONS = ("noise", "curvature", "domain", "jump", "underflow", "nonderivative")
EXIT_CODES = (0, 1, 2, 3, 4, 5, 6, 7, 70, 130)


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
        "exit_code": said({"enum": list(EXIT_CODES)}, "What the command exits with."),
        "checks": {"type": "array", "items": {"$ref": "#/definitions/result"}},
    }
    return shaped("A run of gradcheck.", properties, required=list(properties))


def _result() -> Schema:
    properties = {**_identity(), **_settings(), **_findings(), **_circumstances()}
    required = ["schema", "id", "check", "status", "code", "model", "x", "y"]
    return shaped("One pair (x, y) of a check.", properties, required)


def _identity() -> Schema:
    return {
        "schema": {"const": "gradcheck.result/1"},
        "id": said(TEXT, "Check, y and x: the same in every run."),
        "check": said(TEXT, "Name of the check: the model's, or that of an entry of a spec."),
        "status": said({"enum": list(STATUSES)}, "The outcome."),
        "code": said({"type": "string", "pattern": "^(GC[1-9][0-9]{2})?$"}, "Why; empty for a pass."),
        "model": _model(),
        "x": said(TEXT, "Differentiated by this tensor."),
        "y": said(TEXT, "This tensor is differentiated."),
        "gradient_of": said(TEXT, "In a check of second order y is the gradient of this tensor by x."),
        "claim": _claim(),
        "x_shape": said(INDICES, "Shape of x at the point."),
        "y_shape": said(INDICES, "Shape of y at the point."),
    }


def _settings() -> Schema:
    return {
        "mode": said({"enum": ["full", "nodes", "directional", "sampled"]}, "What was compared."),
        "chosen": said(TEXT, "Why `auto` took this mode; empty where it compares everything."),
        "method": said(TEXT, "How the numerical side was differentiated; comparison: it is model B of a diff."),
        "source": said(TEXT, "Who evaluated the numerical side: internal or onnxruntime."),
        "forward": _forward(),
        "power": _power(),
        "dtype": said(TEXT, "float64, or model where the gradient in the model's own dtype was looked at as well."),
        "rtol": said(NUMBER, "Relative tolerance."),
        "atol": said(NUMBER, "Absolute tolerance."),
        "seed": said({"type": "integer"}, "Of everything that was drawn."),
        "points": said(COUNT, "How many points were tried."),
        "ranges": said(
            {"type": "object", "additionalProperties": {"type": "array", "items": NUMBER}},
            "Where inputs were drawn, if the model is not finite where they are drawn by default.",
        ),
        "dims": said({"type": "object", "additionalProperties": COUNT}, "Sizes of symbolic dimensions."),
    }


def _forward() -> Schema:
    properties = {
        "compared_with": said(
            or_null(TEXT), "Name and version, or the folder of outputs; null if it was not compared."
        ),
        "agrees": said(or_null(BOOL), "The same but for rounding; null where it was not compared."),
        "code": said(or_null({"const": "GC404"}), "Where it differs."),
        "reason": said(TEXT, "How it differs; why it was not compared; what is to be known where it agrees."),
        "max_abs_err": said(or_null(NUMBER), "Largest difference of y."),
        "max_rel_err": said(or_null(NUMBER), "The same relative to an entry, or to a tenth of the largest one."),
        "bound": said(or_null(NUMBER), "What of that rounding in y as a whole explains."),
        "first_node": or_null(_spot()),
        "refused": said(BOOL, "onnxruntime does not run this model."),
    }
    return shaped("What the forward run was held against; empty where nothing was to be compared.", properties)


def _spot() -> Schema:
    names = {"type": "array", "items": TEXT}
    properties = {"node": {"type": "integer"}, "op": TEXT, "name": TEXT, "outputs": names}
    return shaped("The first node that differs from the same operands.", properties)


def _power() -> Schema:
    properties = {
        "missed_below": said(NUMBER, "Smaller errors may have been missed."),
        "of": said(TEXT, "What that is relative to, if not to an entry."),
        "negligible": said(NUMBER, "Errors below this share of the largest |J| times the size of x are forgiven."),
        "probability": said(NUMBER, "Of missing an error of that size, at most."),
        "bad_fraction": said(NUMBER, "The share of entries that may be wrong although none that was drawn is."),
        "bad_fraction_of_lines": said(NUMBER, "The same where errors fill whole rows or columns."),
        "confidence": said(NUMBER, "With which that share is not larger."),
    }
    return shaped("The size of error that would have been missed.", properties)


def _findings() -> Schema:
    counts = dict.fromkeys(("total", "checked", "failed", "inconclusive", "kink_ok", *ENTRY_REASONS, "left_out"), COUNT)
    runs = dict.fromkeys(("real", "complex"), COUNT)
    nodes = dict.fromkeys(("total", "checked", "failed"), COUNT)
    gradient = {"norm": NUMBER, "max": NUMBER, "zero_fraction": NUMBER, "finite": BOOL,
                "health": health(), "precision": precision(), "severed": severed()}  # fmt: skip
    return {
        "entries": shaped("Entries of the Jacobian; checked are projections of them in directional mode.", counts),
        "nodes": shaped("Nodes between x and y that were checked on their own.", nodes),
        "evaluations": shaped("Forward runs of the numerical side, by the numbers they were made on.", runs),
        "coloring": shaped(
            "Rows of the Jacobian, and groups they were probed in; empty where each was probed alone.",
            {"rows": COUNT, "colors": COUNT},
        ),
        "max_abs_err": said(NUMBER, "Largest |theoretical - numerical|."),
        "max_rel_err": said(NUMBER, "Largest difference relative to the larger of the two."),
        "noise": said(NUMBER, "Largest error bound of the numerical side."),
        "needed": shaped("Tolerances with which it would pass.", {"rtol": NUMBER, "atol": NUMBER}),
        "gradient": shaped("The theoretical gradient.", gradient),
        "worst": said({"type": "array", "items": _entry()}, "The worst entries, worst first."),
        "suspect": or_null(_suspect()),
        "branches": shaped(
            "Branches of piecewise nodes between x and y: all, those that a point has taken, the first of the others, and "
            "the ranges of what the first 20 of such nodes read.",
            {
                "total": COUNT,
                "covered": COUNT,
                "missed": {"type": "array", "items": TEXT},
                "ranges": {"type": "array", "items": TEXT},
            },
        ),
        "notes": said({"type": "array", "items": TEXT}, "What a reader should know."),
        "message": said(TEXT, "Why nothing could be compared."),
        "blocked_by": said(
            {"type": "array", "items": TEXT}, "Operators without a gradient or a kernel, where they are why."
        ),
        "gates": said(
            {"type": "array", "items": {"enum": ["severed", "forward", *WORDS]}},
            "severed: x has a gradient from no y; forward: the forward run differs; of its health what --fail-on asks.",
        ),
    }


def _circumstances() -> Schema:
    return {
        "picture": picture(),
        "bundle": said(or_null(TEXT), "Where the failure was saved for `gradcheck reproduce`."),
        "waiver": or_null(_waiver()),
        "reproduce": said(TEXT, "The command that shows it again."),
        "duration_s": said({"type": "number", "minimum": 0}, "Seconds."),
        "peak_rss_mb": said({"type": "number", "minimum": 0}, "Memory of the process."),
        "versions": said({"type": "object", "additionalProperties": TEXT}, "Of gradcheck, onnx and numpy."),
    }


def _waiver() -> Schema:
    properties = {
        "status": said(TEXT, "The outcome that is expected, or came out in the baseline."),
        "forward": said({"const": "differs"}, "So is a forward run that differs."),
        "reason": said(TEXT, "Why; of a baseline, its file."),
        "until": said(or_null(TEXT), "Its last day, as 2027-03-31."),
        "baseline": said(BOOL, "It stands in a baseline, not in a spec."),
        "ended": said(BOOL, "It is over, and counts no more."),
    }
    return shaped("Why an outcome is expected: the `expect` of a spec, or a baseline.", properties)


def _model() -> Schema:
    properties = {
        "uri": said(TEXT, "Where it was read."),
        "sha256": said({"type": "string", "pattern": "^([0-9a-f]{64})?$"}, "Of the file."),
        "opset": said({"type": "object", "additionalProperties": {"type": "integer"}}, "By domain."),
        "nodes": said(COUNT, "How many nodes the file has."),
        "operators": said(
            {"type": "object", "additionalProperties": COUNT},
            "How often each operator occurs, inner graphs included, the most frequent first.",
        ),
        "dtypes": said({"type": "array", "items": TEXT}, "Of its floating-point inputs and parameters."),
    }
    return shaped("The model.", properties, required=["uri"])


def _claim() -> Schema:
    properties = {
        "by": said(TEXT, "What gives the gradient: a tensor, FILE:KEY, or MODEL:TENSOR."),
        "kind": said({"enum": ["tensor", "file", "model"]}, "Which of them."),
        "of": said({"type": "array", "items": TEXT}, "What is differentiated: the sum of these, weighed by the seed."),
        "found": said(BOOL, "By its name, without anybody having asked."),
        "layout": said(TEXT, "The order of its axes: as x, or that of a whole Jacobian."),
        "seed": said(TEXT, "ones, drawn, or what it is called; empty for a whole Jacobian."),
        "theoretical": said({"enum": ["none", "pass", "inconclusive", "fail"]}, "What became of the rules' own."),
    }
    return shaped("Somebody else's gradient, where that was judged; empty for the rules' own.", properties)


def _entry() -> Schema:
    properties = {
        "x": said(INDICES, "Index into x."),
        "y": said(INDICES, "Index into y."),
        "point": COUNT,
        "theoretical": said(NUMBER, "By the rules; nan beside a given one where a rule is missing."),
        "numerical": NUMBER,
        "noise": said(NUMBER, "Error bound of the numerical side."),
        "pattern": said(TEXT, "What kind of mistake it looks like: missing, sign, x 0.5 ..."),
    }
    more = {
        "status": said({"enum": ["fail", "inconclusive", "kink-ok"]}, "What became of it."),
        "part": said(TEXT, "Of complex numbers: re x, im x, re y, im y."),
        "reason": said({"enum": ["", *ENTRY_REASONS]}, "Why it is inconclusive."),
        "unseen": said(or_null(NUMBER), "Any larger error would have been seen, where it is inconclusive."),
        "slopes": said(or_null({"type": "array", "items": NUMBER}), "Of y from both sides, where x lies at a tie."),
        "given": said(or_null(NUMBER), "Somebody else's, where that was judged instead of the theoretical one."),
    }
    return shaped("An entry of the Jacobian.", {**properties, **more}, required=list(properties))


def _suspect() -> Schema:
    properties = {
        "node": said(COUNT, "Index of the node."),
        "op": TEXT,
        "name": TEXT,
        "inputs": {"type": "array", "items": TEXT},
        "outputs": {"type": "array", "items": TEXT},
        "inside": said(TEXT, "Of which graph it is a node; empty for the model's own."),
        "rel_err": said(NUMBER, "Of its own gradient, at the worst element."),
        "at": said(TEXT, "The operand whose cotangent is worst."),
        "index": said(or_null(INDICES), "The worst element of that operand."),
        "diagnosis": said(TEXT, "What the mistake looks like: the gradient is 2 times what it should be."),
        "part_of": said(TEXT, "The operator of the node, where a part of what it is composed of is at fault."),
        "tried": said(COUNT, "Nodes on the way that were checked on their own."),
        "passed": said(COUNT, "Nodes on the way that are right on their own."),
        "before": said(COUNT, "Nodes on the way before it."),
        "after": said(COUNT, "Nodes on the way behind it."),
        "unchecked": said(COUNT, "Nodes on the way that could not be checked on their own."),
        "others": said({"type": "array", "items": TEXT}, "More nodes that fail on their own."),
    }
    return shaped("The node whose own gradient is wrong.", properties, required=["node", "op", "name", "outputs"])
