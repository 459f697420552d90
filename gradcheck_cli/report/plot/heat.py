"""Where the errors are: the Jacobian, or one tensor's images where the other tensor is a scalar."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from math import ceil, prod, sqrt
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import FigureBase
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator

from gradcheck_cli.graph import Array
from gradcheck_cli.report import axes
from gradcheck_cli.report.levels import LEVELS, NOTHING, NOTHING_FILL, NOTHING_LABEL, levels_of
from gradcheck_cli.report.plot.looks import FAINT, INK
from gradcheck_cli.results.picture import Curve, Picture, Standing, Tile, shrunk
from gradcheck_cli.results.record import Check

_LINE = 90  # characters of a title's line
_CELLS = 128  # most cells along an axis: a single wrong one should still be seen
_LONG = 8  # characters of a tick's label: of longer ones there is room for a few
_TOLD_APART = 40  # entries along an axis between which lines are drawn
_FEW = 0.1  # of the cells: if no more are wrong, the worst one is pointed at
_RING: dict[str, Any] = {"marker": "o", "markerfacecolor": "none", "markeredgecolor": INK, "markeredgewidth": 1.5}


def draw_heat(panel: FigureBase, check: Check, picture: Picture) -> None:
    """The heatmap with its legend."""
    tile = picture.tile
    title = textwrap.fill(f"relative error, {axes.cells(check, tile)}", _LINE, break_long_words=False)
    panel.suptitle(title, fontsize=10, parse_math=False)
    side = _CELLS if len(tile.sizes) == 2 else _CELLS // ceil(sqrt(len(tile.cells)))
    cells = shrunk(tile.cells, (len(tile.cells), side, side) if len(tile.sizes) == 3 else (side, side))
    levels = levels_of(cells)
    panes = _matrix(panel, check, tile, levels) if len(tile.sizes) == 2 else _images(panel, check, tile, levels)
    marked = _few_are_wrong(levels) and picture.curve is not None and tile.over != "projections"
    if marked and picture.curve is not None:
        _mark(panes, check, tile, picture.curve)
    _legend(panel, levels, marked)


def _matrix(panel: FigureBase, check: Check, tile: Tile, levels: Array) -> list[Axes]:
    """Rows for entries of x, columns for those of y."""
    pane = panel.subplots()
    _show(pane, levels, tile.sizes, "auto")
    _ticks(pane.yaxis, lambda i: axes.row(check, tile, i), tile.sizes[0], 6)
    few = 2 if len(axes.column(check, tile, tile.sizes[1] - 1)) > _LONG else 6
    _ticks(pane.xaxis, lambda i: axes.column(check, tile, i), tile.sizes[1], few)
    return [pane]


def _images(panel: FigureBase, check: Check, tile: Tile, levels: Array) -> list[Axes]:
    """Images in a grid that is a little wider than tall."""
    images, height, width = tile.sizes
    count = len(levels)
    down = count if height == 1 else ceil(count / ceil(sqrt(1.5 * count * height / width)))
    across = ceil(count / down)
    panes = list(panel.subplots(down, across, squeeze=False).flat)
    for at, pane in enumerate(panes[:count]):
        _show(pane, levels[at], (height, width), "equal" if 1 / 3 < height / width < 3 else "auto")
        if images > 1:
            pane.set_title(axes.image(check, tile, -(-at * images // count)), fontsize=8)
        for axis, shown in ((pane.xaxis, at + across >= count), (pane.yaxis, at % across == 0 and height > 1)):
            axis.set_major_locator(MaxNLocator(4, integer=True))
            axis.set_tick_params(left=shown, bottom=shown, labelleft=shown, labelbottom=shown)
    for pane in panes[count:]:
        pane.set_axis_off()
    return panes[:count]


def _show(pane: Axes, levels: Array, sizes: Sequence[int], aspect: Literal["auto", "equal"]) -> None:
    """An image of levels, on axes that count entries."""
    fills = np.asarray([to_rgb(level.fill) for level in LEVELS] + [to_rgb(NOTHING_FILL)])
    height, width = sizes
    extent = (-0.5, width - 0.5, height - 0.5, -0.5)
    pane.imshow(fills[levels], interpolation="nearest", extent=extent, aspect=aspect)
    pane.grid(False)
    if max(height, width) <= _TOLD_APART:
        pane.set_xticks(np.arange(-0.5, width), minor=True)
        pane.set_yticks(np.arange(-0.5, height), minor=True)
        pane.grid(which="minor", color="white", linewidth=0.5)
        pane.tick_params(which="minor", length=0)
    pane.spines[:].set_visible(True)
    pane.spines[:].set_color(FAINT)


def _ticks(axis: Any, label: Callable[[int], str], size: int, most: int) -> None:
    """Ticks at entries, with their indices."""
    axis.set_major_locator(MaxNLocator(most, integer=True))
    axis.set_major_formatter(FuncFormatter(lambda at, _: label(int(at)) if 0 <= at < size and at == int(at) else ""))


def _few_are_wrong(levels: Array) -> bool:
    wrong = np.asarray([level.standing >= Standing.OPEN for level in LEVELS] + [False])[levels]
    return 0 < int(wrong.sum()) <= max(1, _FEW * wrong.size)


def _mark(panes: Sequence[Axes], check: Check, tile: Tile, curve: Curve) -> None:
    """A ring around the worst entry."""
    row = _position(curve.x, check.x_shape, "im x" in curve.part)
    column = _position(curve.y, check.y_shape, "im y" in curve.part)
    pane = panes[0]
    if len(tile.sizes) == 3:
        image, row, column = axes.unraveled(row if tile.over == "x" else column, tile.sizes)
        pane = panes[image * len(panes) // tile.sizes[0]]
    pane.plot([column], [row], markersize=14, clip_on=False, **_RING)


def _position(index: Sequence[int], sizes: Sequence[int], imaginary: bool) -> int:
    """The place of an entry among the reals of its tensor."""
    found = 0
    for at, size in zip(index, sizes, strict=True):
        found = found * size + at
    return found + prod(sizes) * imaginary


def _legend(panel: FigureBase, levels: Array, marked: bool) -> None:
    """The levels that occur."""
    known = [(LEVELS[i].fill, LEVELS[i].label) for i in np.unique(levels) if i != NOTHING]
    known += [(NOTHING_FILL, NOTHING_LABEL)] if (levels == NOTHING).any() else []
    handles: list[Any] = [Patch(facecolor=fill, edgecolor=FAINT, label=label) for fill, label in known]
    handles += [Line2D([], [], linestyle="", markersize=9, label="the worst entry", **_RING)] if marked else []
    panel.legend(handles=handles, loc="outside lower center", ncols=min(len(handles), 4))
