"""The part of a record's schema that is measured of a gradient as a whole: its health, its precision, its pictures."""

from __future__ import annotations

from gradcheck_cli.results.measures import WORDS
from gradcheck_cli.results.schema_words import BOOL, COUNT, INDICES, NUMBER, TEXT, Schema, or_null, said, shaped


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
