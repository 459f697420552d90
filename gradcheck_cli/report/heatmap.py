"""The error of a Jacobian's entries by place, in characters: one for a cell, legible without colors and in ASCII.

`LEVELS` are the few sizes of errors that a heatmap tells apart, by glyph or brightness too, never by hue alone.  `cells`,
`entry` and `image` say in words which entries of x and y its axes stand for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby
from math import inf, prod
from typing import NamedTuple

import numpy as np

from gradcheck_cli.graph import Array
from gradcheck_cli.report.text import Style, cut, name, paint, shape, wrapped
from gradcheck_cli.results.picture import Standing, Tile, shrunk, size_of, standing_of, starts
from gradcheck_cli.results.record import Check


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


_LONGEST = 24  # columns of a name in a title


def derivative(check: Check, longest: int = _LONGEST) -> str:
    """The derivative d loss / d input, names cut to some columns."""
    x, y = (cut(name(n), longest) for n in (check.x, check.y))
    return f"d {y} / d {x}"


def cells(check: Check, tile: Tile) -> str:
    """The axes of a heatmap: by entry of input [1,3,8,8]."""
    x, y = (f"{cut(name(n), _LONGEST)} {shape(s)}" for n, s in ((check.x, check.x_shape), (check.y, check.y_shape)))
    return {
        "both": f"a row for each entry of {x}, a column for each of {y}",
        "x": f"by entry of {x}",
        "y": f"by entry of {y}",
        "projections": "a row for each random direction of x, a column for each of y",
    }[tile.over]


def entry(check: Check, tile: Tile, axis: int, position: int) -> str:
    """The entry of x that a row of the Jacobian is for (axis 0), or of y a column; of projections its number.

    An entry is [0,2], or "im [0,2]" for a part of a complex one.
    """
    if tile.over != "both":
        return str(position)
    sizes = check.y_shape if axis else check.x_shape
    return _part(position, tile.sizes[axis], prod(sizes)) + shape(unraveled(position % prod(sizes), sizes))


def image(check: Check, tile: Tile, position: int) -> str:
    """An image of a tensor, its last two dimensions: [0,2,:,:]."""
    sizes = check.x_shape if tile.over == "x" else check.y_shape
    lead = sizes[:-2]
    ends = ",".join([*map(str, unraveled(position % prod(lead), lead)), *":" * min(len(sizes), 2)])
    return f"{_part(position, tile.sizes[0], prod(lead))}[{ends}]"


def _part(position: int, total: int, size: int) -> str:
    """The part of a complex tensor, which counts twice."""
    return "" if total == size else "re " if position < size else "im "


def unraveled(position: int, sizes: Sequence[int]) -> tuple[int, ...]:
    """The indices of an entry, counted row by row."""
    found = []
    for size in reversed(sizes):
        position, index = divmod(position, size)
        found.append(index)
    return tuple(reversed(found))


_HEIGHTS = (32, 16, 8)  # most lines of one image: the more images, the fewer
_MOST_LINES = 48
_GAP = 3
_FEW, _NUMBER = 12, 7  # entries along a side that are shown in numbers, and columns that such a number takes at least
_LARGEST = 308.0  # log10 of the largest number


def section(check: Check, style: Style) -> str:
    """The heatmap of one check with its legend; nothing for one that compared nothing."""
    if check.picture is None:
        return ""
    tile = check.picture.tile
    drawn = _images if len(tile.sizes) == 3 else _matrix
    body = [*_numbers(check, tile, style)] or drawn(check, tile, style)
    title = f"{derivative(check)}: relative error, {cells(check, tile)}"
    return "\n".join([*wrapped(title, style.width, "heatmap  ", " " * 9), *body]) + "\n\n"


def are_few(tile: Tile) -> bool:
    """True if there are so few entries that each has a cell of its own, with room for its error in numbers."""
    return tile.cells.shape == tile.sizes and max(tile.sizes[-2:]) <= _FEW and tile.cells.size <= 4 * _FEW


def error_said(cell: float) -> str:
    """The error of one entry in numbers, 5e-01; nothing where it was not compared, or is no number."""
    size = float(size_of(np.asarray(cell)))
    return "0" if np.isfinite(cell) and size == -inf else f"{10.0**size:.0e}" if -inf < size < _LARGEST else ""


def labels(check: Check, tile: Tile, axis: int) -> list[str]:
    """The names of the rows (axis 0) or the columns of a matrix, or of each image; of a single row none."""
    size = tile.sizes[-2:][axis]
    if len(tile.sizes) == 2:
        return [entry(check, tile, axis, at) for at in range(size)]
    return [""] if axis == 0 and size == 1 else [str(at) for at in range(size)]


def _numbers(check: Check, tile: Tile, style: Style) -> Iterator[str]:
    """Entries with their errors in numbers, each row and column by its name; nothing where there is no room for that."""
    rows, columns = (labels(check, tile, axis) if are_few(tile) else [] for axis in (0, 1))
    margin, width = (max(map(len, labels), default=0) for labels in (rows, columns))
    width = max(width, _NUMBER) + 2
    if not rows or 2 + margin + len(columns) * width > style.width:
        return
    levels = levels_of(tile.cells)
    images, looks = (each.reshape(-1, len(rows), len(columns)) for each in (tile.cells, levels))
    for at in range(len(images)):
        if len(images) > 1:
            yield f"  {image(check, tile, at)}"
        yield " " * (2 + margin) + "".join(f"{label:>{width}}" for label in columns)
        for label, line, look in zip(rows, images[at], looks[at], strict=True):
            yield f"  {label:>{margin}}{''.join(map(partial(_number, width, style), line, look))}".rstrip()
    yield from _legend(levels, tile, style)


def _number(width: int, style: Style, cell: float, level: int) -> str:
    """One entry: the character of its level, and its error."""
    return f"  {_glyphs(int(level), 1, style)} {error_said(cell):>{width - 4}}"


def _matrix(check: Check, tile: Tile, style: Style) -> Iterator[str]:
    """A line for entries of x, a column for entries of y."""
    rows, columns = tile.sizes
    tall = shrunk(tile.cells, (_HEIGHTS[0], tile.cells.shape[1]))
    labels = [entry(check, tile, 0, i) for i in _first(rows, len(tile.cells), len(tall))]
    margin = max(map(len, labels)) + 3
    cells = shrunk(tall, (len(tall), max(1, style.canvas - margin)))
    wide = 2 if 2 * cells.shape[1] <= style.canvas - margin else 1
    ends = entry(check, tile, 1, 0), entry(check, tile, 1, columns - 1)
    yield " " * margin + _ends(*ends, cells.shape[1] * wide)
    levels = levels_of(cells)
    for label, line in zip(labels, levels, strict=True):
        yield f"{label:>{margin - 1}} {_line(line, wide, style)}".rstrip()
    yield from _legend(levels, tile, style)


def _images(check: Check, tile: Tile, style: Style) -> Iterator[str]:
    """Images side by side, each the last two dimensions of a tensor."""
    images, height, width = tile.sizes
    names = [image(check, tile, i) if images > 1 else "" for i in range(images)]
    margin = len(str(height - 1)) + 3
    cells, wide, across = _fitted(tile.cells, style.canvas - margin, max(map(len, names)))
    levels, space = levels_of(cells), " " * (across - cells.shape[2] * wide + _GAP)
    shown = [names[i] for i in _first(images, len(tile.cells), len(cells))]
    lines = [str(i) for i in _first(height, tile.cells.shape[1], cells.shape[1])] if height > 1 else [""]
    ends = f"{_ends('0', str(width - 1), cells.shape[2] * wide):<{across + _GAP}}"
    abreast = _abreast(across, style.canvas - margin)
    for start in range(0, len(cells), abreast):
        some = range(start, min(start + abreast, len(cells)))
        if images > 1:
            yield " " * margin + "".join(f"{shown[i]:<{across + _GAP}}" for i in some).rstrip()
        yield " " * margin + (ends * len(some)).rstrip()
        for at, label in enumerate(lines):
            row = space.join(_line(levels[i, at], wide, style) for i in some)
            yield f"{label:>{margin - 1}} {row}".rstrip()
    yield from _legend(levels, tile, style)


def _fitted(cells: Array, free: int, title: int) -> tuple[Array, int, int]:
    """Images small enough for the screen, how many columns a cell takes, and how many an image with its title."""
    for most in _HEIGHTS:
        limit = free if cells.shape[1] == 1 else min(free, 2 * most)
        fitted = shrunk(cells, (len(cells), most, limit))
        wide = 2 if 2 * fitted.shape[2] <= limit else 1
        across = max(fitted.shape[2] * wide, title)
        if -(-len(fitted) // _abreast(across, free)) * (fitted.shape[1] + 2) <= _MOST_LINES:
            break
    return fitted, wide, across


def _abreast(across: int, free: int) -> int:
    """The number of images that stand side by side."""
    return max(1, (free + _GAP) // (across + _GAP))


def _first(size: int, kept: int, cells: int) -> list[int]:
    """The first entry that each cell of an axis stands for, once reduced to a tile's and again to the screen's."""
    found: list[int] = starts(size, kept)[starts(kept, cells)].tolist()
    return found


def _ends(first: str, last: str, width: int) -> str:
    """The labels above the first and the last cell of a line."""
    if first == last:
        return first.ljust(width)
    space = width - len(first) - len(last)
    return first + (" " * space if space > 0 else " ... ") + last


def _line(levels: Array, wide: int, style: Style) -> str:
    return "".join(_glyphs(level, len(list(run)) * wide, style) for level, run in groupby(levels.tolist()))


def _glyphs(level: int, count: int, style: Style) -> str:
    if level == NOTHING:
        return " " * count
    look = LEVELS[level]
    return paint((look.plain if style.ascii else look.glyph) * count, look.color, style.color)


def _legend(levels: Array, tile: Tile, style: Style) -> Iterator[str]:
    """A legend of the characters that occur, and the number of entries that each stands for."""
    found = [int(level) for level in np.unique(levels)]
    labels = [f"blank: {NOTHING_LABEL}" if i == NOTHING else LEVELS[i].label for i in found]
    line, used = "  ", 2
    for level, label in zip(found, labels, strict=True):
        if used + len(label) + 2 > style.canvas:
            yield line.rstrip()
            line, used = "  ", 2
        line += f"{label}   " if level == NOTHING else f"{_glyphs(level, 1, style)} {label}   "
        used += len(label) + 5
    yield line.rstrip()
    each = [-(-size // cells) for size, cells in zip(tile.sizes, levels.shape, strict=True)]
    if max(each) > 1:
        worst = f"each character is the worst of up to {' x '.join(map(str, each))} entries"
        yield from wrapped(worst, style.canvas)
