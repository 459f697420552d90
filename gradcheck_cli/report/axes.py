"""What the axes of a heatmap stand for, in words: entries of x and y by their indices."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING

from gradcheck_cli.report.text import cut, name, shape
from gradcheck_cli.results.record import Check

if TYPE_CHECKING:
    from gradcheck_cli.results.picture import Tile

_LONGEST = 24  # columns of a name in a title


def derivative(check: Check, longest: int = _LONGEST) -> str:
    """d loss / d input, names cut to some columns."""
    x, y = (cut(name(n), longest) for n in (check.x, check.y))
    return f"d {y} / d {x}"


def cells(check: Check, tile: Tile) -> str:
    """What a heatmap shows: by entry of input [1,3,8,8]."""
    x, y = (f"{cut(name(n), _LONGEST)} {shape(s)}" for n, s in ((check.x, check.x_shape), (check.y, check.y_shape)))
    return {
        "both": f"a row for each entry of {x}, a column for each of {y}",
        "x": f"by entry of {x}",
        "y": f"by entry of {y}",
        "projections": "a row for each random direction of x, a column for each of y",
    }[tile.over]


def row(check: Check, tile: Tile, position: int) -> str:
    """The entry of x that a row of the Jacobian is for: [0,2]; of projections its number."""
    return _entry(check.x_shape, tile.sizes[0], position) if tile.over == "both" else str(position)


def column(check: Check, tile: Tile, position: int) -> str:
    """The entry of y that a column of the Jacobian is for."""
    return _entry(check.y_shape, tile.sizes[1], position) if tile.over == "both" else str(position)


def image(check: Check, tile: Tile, position: int) -> str:
    """An image of a tensor, its last two dimensions: [0,2,:,:]."""
    sizes = check.x_shape if tile.over == "x" else check.y_shape
    lead = sizes[:-2]
    ends = ",".join([*map(str, unraveled(position % prod(lead), lead)), *":" * min(len(sizes), 2)])
    return f"{_part(position, tile.sizes[0], prod(lead))}[{ends}]"


def _entry(sizes: Sequence[int], total: int, position: int) -> str:
    """One of the reals that a tensor counts as: [0,2], or "im [0,2]" of a complex one."""
    size = prod(sizes)
    return _part(position, total, size) + shape(unraveled(position % size, sizes))


def _part(position: int, total: int, size: int) -> str:
    """Which part of a complex tensor, which counts twice."""
    return "" if total == size else "re " if position < size else "im "


def unraveled(position: int, sizes: Sequence[int]) -> tuple[int, ...]:
    """The indices of an entry, counted row by row."""
    found = []
    for size in reversed(sizes):
        position, index = divmod(position, size)
        found.append(index)
    return tuple(reversed(found))
