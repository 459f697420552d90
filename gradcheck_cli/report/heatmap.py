"""The error of a Jacobian's entries by place, in characters: one for a cell, legible without colors and in ASCII."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

import numpy as np

from gradcheck_cli.graph import Array
from gradcheck_cli.report import axes
from gradcheck_cli.report.levels import LEVELS, NOTHING, NOTHING_LABEL, levels_of
from gradcheck_cli.report.text import Style, columns, paint
from gradcheck_cli.results.picture import Tile, shrunk, starts
from gradcheck_cli.results.record import Check

_HEIGHTS = (32, 16, 8)  # most lines of one image: the more images, the fewer
_MOST_LINES = 48
_GAP = 3


def section(check: Check, style: Style) -> str:
    """The heatmap of one check with its legend; nothing for one that compared nothing."""
    if check.picture is None:
        return ""
    tile = check.picture.tile
    body = _images(check, tile, style) if len(tile.sizes) == 3 else _matrix(check, tile, style)
    title = f"{axes.derivative(check)}: relative error, {axes.cells(check, tile)}"
    return "\n".join([*_wrapped(title, style.width, "heatmap  ", " " * 9), *body]) + "\n\n"


def _matrix(check: Check, tile: Tile, style: Style) -> Iterator[str]:
    """A line for entries of x, a column for entries of y."""
    rows, columns = tile.sizes
    tall = shrunk(tile.cells, (_HEIGHTS[0], tile.cells.shape[1]))
    labels = [axes.row(check, tile, i) for i in _first(rows, len(tile.cells), len(tall))]
    margin = max(map(len, labels)) + 3
    cells = shrunk(tall, (len(tall), max(1, style.width - margin)))
    wide = 2 if 2 * cells.shape[1] <= style.width - margin else 1
    ends = axes.column(check, tile, 0), axes.column(check, tile, columns - 1)
    yield " " * margin + _ends(*ends, cells.shape[1] * wide)
    levels = levels_of(cells)
    for label, line in zip(labels, levels, strict=True):
        yield f"{label:>{margin - 1}} {_line(line, wide, style)}".rstrip()
    yield from _legend(levels, tile, style)


def _images(check: Check, tile: Tile, style: Style) -> Iterator[str]:
    """Images side by side, each the last two dimensions of a tensor."""
    images, height, width = tile.sizes
    names = [axes.image(check, tile, i) if images > 1 else "" for i in range(images)]
    margin = len(str(height - 1)) + 3
    cells, wide, across = _fitted(tile.cells, style.width - margin, max(map(len, names)))
    levels, space = levels_of(cells), " " * (across - cells.shape[2] * wide + _GAP)
    shown = [names[i] for i in _first(images, len(tile.cells), len(cells))]
    lines = [str(i) for i in _first(height, tile.cells.shape[1], cells.shape[1])] if height > 1 else [""]
    ends = f"{_ends('0', str(width - 1), cells.shape[2] * wide):<{across + _GAP}}"
    abreast = _abreast(across, style.width - margin)
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
    """How many images stand side by side."""
    return max(1, (free + _GAP) // (across + _GAP))


def _first(size: int, kept: int, cells: int) -> list[int]:
    """The first entry that each cell of an axis stands for, once reduced to a tile's and again to the screen's."""
    found: list[int] = starts(size, kept)[starts(kept, cells)].tolist()
    return found


def _ends(first: str, last: str, width: int) -> str:
    """What stands above the first and the last cell of a line."""
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
    """What the characters that occur mean, and how many entries each stands for."""
    found = [int(level) for level in np.unique(levels)]
    labels = [f"blank: {NOTHING_LABEL}" if i == NOTHING else LEVELS[i].label for i in found]
    line, used = "  ", 2
    for level, label in zip(found, labels, strict=True):
        if used + len(label) + 2 > style.width:
            yield line.rstrip()
            line, used = "  ", 2
        line += f"{label}   " if level == NOTHING else f"{_glyphs(level, 1, style)} {label}   "
        used += len(label) + 5
    yield line.rstrip()
    each = [-(-size // cells) for size, cells in zip(tile.sizes, levels.shape, strict=True)]
    if max(each) > 1:
        worst = f"each character is the worst of up to {' x '.join(map(str, each))} entries"
        yield from _wrapped(worst, style.width, "  ", "  ")


def _wrapped(text: str, width: int, first: str, others: str) -> Iterator[str]:
    """A sentence in lines of a width in columns, each behind its indent; what has no space stays whole."""
    line = ""
    for word in text.split(" "):
        if line and columns(first + line) + 1 + columns(word) > width:
            yield first + line
            first, line = others, ""
        line += f" {word}" if line else word
    yield first + line
