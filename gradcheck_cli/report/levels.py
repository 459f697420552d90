"""The few levels that a heatmap tells apart, with their looks: told by glyph or brightness too, never by hue alone."""

from __future__ import annotations

from math import inf
from typing import NamedTuple

import numpy as np

from gradcheck_cli.graph import Array
from gradcheck_cli.results.picture import Standing, size_of, standing_of


class Level(NamedTuple):
    """Cells of one standing whose error is at most 10^upto."""

    standing: Standing
    upto: float
    label: str
    glyph: str  # in a terminal
    plain: str  # in one that has ASCII only
    color: str  # of the glyph
    fill: str  # in drawings


LEVELS = (
    Level(Standing.PASS, -12, "pass, up to 1e-12", "·", ".", "green", "#dbe9f6"),
    Level(Standing.PASS, -9, "pass, up to 1e-9", ":", ":", "green", "#9dc6e0"),
    Level(Standing.PASS, inf, "pass, above 1e-9", "+", "+", "green", "#4a90c4"),
    Level(Standing.KINK, inf, "KINK-OK", "^", "^", "green", "#7fc8a9"),
    Level(Standing.OPEN, inf, "inconclusive", "?", "?", "yellow", "#f0c808"),
    Level(Standing.FAIL, -5, "fail, up to 1e-5", "░", "1", "red", "#f4a9a3"),
    Level(Standing.FAIL, -3, "fail, up to 1e-3", "▒", "2", "red", "#e0685f"),
    Level(Standing.FAIL, -1, "fail, up to 1e-1", "▓", "3", "red", "#cf222e"),
    Level(Standing.FAIL, 399, "fail, above 1e-1", "█", "#", "red", "#7d0010"),
    Level(Standing.FAIL, inf, "fail, not finite", "!", "!", "red", "#1f1f1f"),
)
NOTHING = len(LEVELS)  # the level of cells in which nothing was compared
NOTHING_FILL, NOTHING_LABEL = "#ffffff", "not compared"


def levels_of(cells: Array) -> Array:
    """The place of each cell in LEVELS, or NOTHING."""
    standing, size = standing_of(cells), size_of(cells)
    found = np.full(cells.shape, NOTHING, np.int64)
    for place in reversed(range(len(LEVELS))):
        level = LEVELS[place]
        found[(standing == level.standing) & (size <= level.upto)] = place
    return found
