"""The four panels of a figure, in colors that the color-blind can tell apart.

`draw_curve` is the V curve: the error of central differences of one entry against their step.  `draw_heat` shows where the
errors are, in the Jacobian or in one tensor's images; `draw_histogram` how large the errors of all entries are, and those
that the numerical side may have; `draw_layers` what is left of the gradient at each layer, and which units are dead.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Sequence
from math import ceil, prod, sqrt
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import FigureBase, SubFigure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from gradcheck_cli.graph import Array
from gradcheck_cli.report import heatmap
from gradcheck_cli.report.heatmap import LEVELS, NOTHING, NOTHING_FILL, NOTHING_LABEL, levels_of
from gradcheck_cli.report.text import cut, name, shape, short
from gradcheck_cli.results.measures import Curve, Layer
from gradcheck_cli.results.picture import (
    HIGHEST,
    LOWEST,
    PER_DECADE,
    Histogram,
    Picture,
    Standing,
    Tile,
    shrunk,
    standing_of,
)
from gradcheck_cli.results.record import Check

INK, FAINT, GREEN = "#222222", "#8a8a8a", "#1a7f37"
COLORS = {Standing.PASS: "#4a90c4", Standing.KINK: "#7fc8a9", Standing.OPEN: "#f0c808", Standing.FAIL: "#cf222e"}
WORDS = {
    Standing.PASS: "pass", Standing.KINK: "KINK-OK", Standing.OPEN: "inconclusive", Standing.FAIL: "fail",
}  # fmt: skip


def powers(axis: Any) -> None:
    """Ticks of a logarithmic axis at powers of ten, written 1e-10."""
    axis.set_major_locator(LogLocator(numticks=9))
    axis.set_major_formatter(FuncFormatter(lambda value, _: power(value)))
    axis.set_minor_locator(NullLocator())
    axis.set_minor_formatter(NullFormatter())


def power(value: float) -> str:
    """A number on a logarithmic axis: 1e-10, but 0.01 to 100 as they are."""
    return f"{value:g}" if 1e-2 <= value <= 1e2 else f"{value:.0e}"


def empty(panel: Axes, why: str) -> None:
    """A panel that has nothing to show."""
    panel.set_axis_off()
    panel.text(0.5, 0.5, why, ha="center", va="center", color=FAINT, transform=panel.transAxes, parse_math=False)


_LEAST = 1e-18  # drawn instead of zero where nothing else is on the panel


def draw_curve(panel: Axes, check: Check, curve: Curve | None) -> None:
    """The curve with what bounds it, and the theoretical entry."""
    panel.set_title("central differences D(h) of one entry against their step h")
    if curve is None:
        return empty(panel, "no V curve: the entry has no derivative, or no central differences")
    steps, errors, crossed = np.asarray(curve.steps), np.asarray(curve.errors), np.asarray(curve.crossed, bool)
    gap = abs(curve.theoretical - curve.reference)
    bottom, top = _limits(curve, errors, gap)
    panel.set(xscale="log", yscale="log", ylim=(bottom, top))
    panel.axhspan(bottom, max(curve.allowed, bottom), color="#eaf0f5", label="within tolerance")
    _bounds(panel, curve, steps)
    seen = np.clip(errors, bottom, top)
    if not crossed.all():
        panel.plot(steps, np.where(crossed, np.nan, seen), "o-", color=COLORS[Standing.PASS], markersize=4,
                   linewidth=1, label="|D(h) - numerical|")  # fmt: skip
    if crossed.any():
        panel.plot(steps[crossed], seen[crossed], "D", color=COLORS[Standing.OPEN], markeredgecolor=INK,
                   markersize=5, label="|D(h) - numerical|, h crosses a branch")  # fmt: skip
    wrong = standing_of(np.asarray(curve.severity)) == Standing.FAIL
    label = f"|theoretical - numerical| = {short(gap)}" if gap else "theoretical = numerical"
    panel.axhline(np.clip(gap, bottom, top), color=COLORS[Standing.FAIL] if wrong else GREEN, linewidth=2, label=label)
    panel.set_xlabel(_entry(check, curve), parse_math=False)
    powers(panel.xaxis)
    powers(panel.yaxis)
    panel.legend(loc="upper center", ncols=2)
    return None


def _limits(curve: Curve, errors: Array, gap: float) -> tuple[float, float]:
    """Ends of the axis of errors: all of them that are numbers, and room for the legend above."""
    every = np.asarray([*errors, gap, curve.allowed])
    sizes = every[np.isfinite(every) & (every > 0)]
    if not len(sizes):
        return _LEAST, 1.0
    low, high = np.log10(sizes.min()) - 1.5, np.log10(sizes.max()) + 0.5
    return float(10.0 ** max(low, -300)), float(10.0 ** min(high + 0.3 * (high - low), 300))


def _bounds(panel: Axes, curve: Curve, steps: Array) -> None:
    """Rounding and truncation, the two sides of the V, and how well its reference is known."""
    if curve.doubt > panel.get_ylim()[0]:
        panel.axhline(
            curve.doubt, linestyle="-.", color=FAINT, linewidth=1.2, label="error of the numerical side, at most"
        )
    panel.plot(steps, curve.rounding / steps, "--", color=FAINT, linewidth=1.2, label="rounding, at most")
    if curve.truncation is not None:
        constant, order = curve.truncation
        panel.plot(steps, constant * steps**order, ":", color=INK, linewidth=1.2, label=f"truncation, h^{order:.1f}")


def _entry(check: Check, curve: Curve) -> str:
    """The entry that a curve is of."""
    if check.picture is not None and check.picture.tile.over == "projections":
        return "h along a random direction"
    parts = [f"{cut(name(n), 20)}{shape(at)}" for n, at in ((check.y, curve.y), (check.x, curve.x))]
    point = f", point {curve.point}" if check.points > 1 else ""
    return f"h, for d {parts[0]} / d {parts[1]}" + (f", {curve.part}" if curve.part else "") + point


_LINE = 90  # characters of a title's line
_CELLS = 128  # most cells along an axis: a single wrong one should still be seen
_LONG = 8  # characters of a tick's label: of longer ones there is room for a few
_TOLD_APART = 40  # entries along an axis between which lines are drawn
_FEW = 0.1  # of the cells: if no more are wrong, the worst one is pointed at
_RING: dict[str, Any] = {"marker": "o", "markerfacecolor": "none", "markeredgecolor": INK, "markeredgewidth": 1.5}


def draw_heat(panel: FigureBase, check: Check, picture: Picture) -> None:
    """The heatmap with its legend."""
    tile = picture.tile
    title = textwrap.fill(f"relative error, {heatmap.cells(check, tile)}", _LINE, break_long_words=False)
    panel.suptitle(title, fontsize=10, parse_math=False)
    side = _CELLS if len(tile.sizes) == 2 else _CELLS // ceil(sqrt(len(tile.cells)))
    cells = shrunk(tile.cells, (len(tile.cells), side, side) if len(tile.sizes) == 3 else (side, side))
    levels = levels_of(cells)
    panes = _matrix(panel, check, tile, levels) if len(tile.sizes) == 2 else _images(panel, check, tile, levels)
    few = heatmap.are_few(tile)
    if few:
        _write_errors(panes, check, tile, levels)
    marked = not few and _few_are_wrong(levels) and picture.curve is not None and tile.over != "projections"
    if marked and picture.curve is not None:
        _mark(panes, check, tile, picture.curve)
    _legend(panel, levels, marked)


def _matrix(panel: FigureBase, check: Check, tile: Tile, levels: Array) -> list[Axes]:
    """Rows for entries of x, columns for those of y."""
    pane = panel.subplots()
    _show(pane, levels, tile.sizes, "auto")
    _ticks(pane.yaxis, lambda i: heatmap.entry(check, tile, 0, i), tile.sizes[0], 6)
    few = 2 if len(heatmap.entry(check, tile, 1, tile.sizes[1] - 1)) > _LONG else 6
    _ticks(pane.xaxis, lambda i: heatmap.entry(check, tile, 1, i), tile.sizes[1], few)
    return [pane]


def _images(panel: FigureBase, check: Check, tile: Tile, levels: Array) -> list[Axes]:
    """Images in a grid that is a little wider than tall."""
    images, height, width = tile.sizes
    count = len(levels)
    down = count if height == 1 else ceil(count / ceil(sqrt(1.5 * count * height / width)))
    across = ceil(count / down)
    panes = list(panel.subplots(down, across, squeeze=False).flat)
    for at, pane in enumerate(panes[:count]):
        square = 1 / 3 < height / width < 3 and not heatmap.are_few(tile)  # these need room for their numbers
        _show(pane, levels[at], (height, width), "equal" if square else "auto")
        if images > 1:
            pane.set_title(heatmap.image(check, tile, -(-at * images // count)), fontsize=8)
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


def _write_errors(panes: Sequence[Axes], check: Check, tile: Tile, levels: Array) -> None:
    """The error of each entry in its cell, and the name of each row and column beside it."""
    height, width = tile.sizes[-2:]
    images, looks = (each.reshape(-1, height, width) for each in (tile.cells, levels))
    size = min(max(60 / (width * min(len(panes), 3)), 5), 11)
    for pane, cells, look in zip(panes, images, looks, strict=True):
        for (row, column), cell in np.ndenumerate(cells):
            said, ink = heatmap.error_said(cell), _ink(int(look[row, column]))
            pane.text(column, row, said, ha="center", va="center", fontsize=size, color=ink)
        pane.set_yticks(range(height), heatmap.labels(check, tile, 0))
        pane.set_xticks(range(width), heatmap.labels(check, tile, 1))


def _ink(level: int) -> str:
    """Black or white, whichever is read on the fill of a level."""
    red, green, blue = to_rgb(NOTHING_FILL if level == NOTHING else LEVELS[level].fill)
    return "#000000" if 0.3 * red + 0.59 * green + 0.11 * blue > 0.5 else "#ffffff"


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
        image, row, column = heatmap.unraveled(row if tile.over == "x" else column, tile.sizes)
        pane = panes[image * len(panes) // tile.sizes[0]]
    pane.plot([column], [row], markersize=14, clip_on=False, **_RING)


def _position(index: Sequence[int], sizes: Sequence[int], imaginary: bool) -> int:
    """The place of an entry among the reals of its tensor."""
    found = 0
    for at, size in zip(index, sizes, strict=True):
        found = found * size + at
    return found + prod(sizes) * imaginary


_SCALE = "verdict and relative error, a ratio without unit"


def _legend(panel: FigureBase, levels: Array, marked: bool) -> None:
    """The levels that occur."""
    known = [(LEVELS[i].fill, LEVELS[i].label) for i in np.unique(levels) if i != NOTHING]
    known += [(NOTHING_FILL, NOTHING_LABEL)] if (levels == NOTHING).any() else []
    handles: list[Any] = [Patch(facecolor=fill, edgecolor=FAINT, label=label) for fill, label in known]
    handles += [Line2D([], [], linestyle="", markersize=9, label="the worst entry", **_RING)] if marked else []
    panel.legend(
        handles=handles, loc="outside lower center", ncols=min(len(handles), 4), title=_SCALE, title_fontsize=8
    )  # fmt: skip


_TICKS = 9


def draw_histogram(panel: Axes, check: Check, picture: Picture) -> None:
    """Bars by verdict; the outline is the bound of the numerical error."""
    panel.set_title("relative errors: how many entries")
    counts, noise = picture.errors.counts, picture.noise.counts.sum(axis=0)
    slots = _used(counts.sum(axis=0) + noise, check.rtol)
    below = np.zeros(len(slots))
    for standing in Standing:
        if counts[standing].any():
            label = f"{WORDS[standing]} ({counts[standing].sum():,})"
            panel.bar(slots, counts[standing][slots], 1.0, below, color=COLORS[standing], align="edge", label=label)
            below = below + counts[standing][slots]
    edges = np.append(slots, slots[-1] + 1)
    panel.stairs(noise[slots], edges, color=INK, linewidth=1, label="bound of the numerical side's error")
    if check.rtol > 0:
        panel.axvline(_slot(np.log10(check.rtol)), color=INK, linestyle=":", label=f"rtol {check.rtol:g}")
    panel.set(yscale="log", ylim=(0.7, 30.0 * max(below.max(), noise.max())), xlim=(edges[0], edges[-1]))
    panel.set_ylabel("entries")
    _histogram_ticks(panel, slots)
    panel.legend(loc="upper center", ncols=2)


def _used(counts: Array, rtol: float) -> Array:
    """The slots from the first to the last that holds anything, and the tolerance, with some room around."""
    used = np.flatnonzero(counts)
    if rtol > 0:
        used = np.unique(np.append(used, np.clip(int(_slot(np.log10(rtol))), 0, Histogram.SLOTS - 1)))
    return np.arange(max(used[0] - PER_DECADE, 0), min(used[-1] + PER_DECADE, Histogram.SLOTS - 1) + 1)


def _slot(power: float) -> float:
    """The position of an error of 10^power."""
    return (power - LOWEST) * PER_DECADE + 1


def _histogram_ticks(panel: Axes, slots: Array) -> None:
    powers = [p for p in range(LOWEST, HIGHEST + 1) if slots[0] <= _slot(p) <= slots[-1] + 1]
    powers = powers[int(slots[0] == 0) :: -(-len(powers) // _TICKS)]  # no room for the first beside 0
    labels = {_slot(p): f"1e{p:+03d}" for p in powers} | ({0.5: "0"} if slots[0] == 0 else {})
    panel.xaxis.set_major_locator(FixedLocator(list(labels)))
    panel.xaxis.set_major_formatter(FuncFormatter(lambda at, _: labels.get(at, "")))
    panel.yaxis.set_major_formatter(FuncFormatter(lambda n, _: f"{n:,.0f}" if n < 1e6 else f"{n:.0e}"))
    panel.yaxis.set_minor_formatter(NullFormatter())


_LABELS = 24  # most layers that are named
_LONGEST_LAYER = 18  # columns of a layer's name


def draw_layers(panel: SubFigure, check: Check) -> None:
    """The gradient's size by layer, and the share of units without any."""
    health = check.gradient.get("health")
    if health is None or not health.layers:
        return empty(panel.subplots(), "no layer with weights or a bend lies between x and y")
    well = ["healthy"] * check.passes  # a wrong gradient may be of a usual size: that is no praise
    color = COLORS[Standing.FAIL] if health.shows else GREEN if well else INK
    said = ", ".join([*([] if health.ratio is None else [f"ratio {health.ratio:.2g}"]), *(health.shows or well)])
    title = ": ".join(filter(None, ("gradient by layer, from x to y", said)))
    panel.suptitle(title, fontsize=10, color=color, parse_math=False)
    upper, lower = panel.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    _sizes(upper, health.layers)
    _shares(lower, health.layers)
    _names(lower, health.layers)
    return None


def _sizes(panel: Axes, layers: Sequence[Layer]) -> None:
    """Norms of the gradient by the output of each layer, and by its weights."""
    at = np.arange(len(layers))
    norms = _positive([layer.norm for layer in layers])
    weights = _positive([math.nan if layer.weights is None else layer.weights for layer in layers])
    panel.plot(at, norms, "o-", color=COLORS[Standing.PASS], markersize=4, linewidth=1, label="by the layer's output")
    if np.isfinite(weights).any():
        panel.plot(at, weights, "s", color=INK, markersize=4, label="by its weights")
    every = np.concatenate([norms, weights])
    if np.isfinite(every).any():
        middle = np.nanmax(every) ** 0.5 * np.nanmin(every) ** 0.5
        ends = np.fmin(np.nanmin(every) / 2, middle / 12), np.fmax(np.nanmax(every) * 8, middle * 12)
        panel.set(yscale="log", ylim=ends)  # two powers of ten at least, and room for the legend
        powers(panel.yaxis)
    for label, marker, found in (
        ("zero", "v", [i for i, layer in enumerate(layers) if layer.norm == 0]),
        ("not finite", "X", [i for i, layer in enumerate(layers) if not math.isfinite(layer.norm)]),
    ):
        if found:
            edge = panel.get_xaxis_transform()
            panel.plot(found, [0.05] * len(found), marker, color=COLORS[Standing.FAIL], label=label, transform=edge)
    panel.set_ylabel("norm of the gradient")
    panel.legend(loc="upper center", ncols=3)


def _shares(panel: Axes, layers: Sequence[Layer]) -> None:
    """Shares of dead and saturated units, and of entries of the gradient that are zero."""
    at = np.arange(len(layers))
    dead, saturated = (
        np.asarray([(getattr(layer, kind) or 0) / max(layer.units, 1) for layer in layers])
        for kind in ("dead", "saturated")
    )
    panel.bar(at, dead, 0.8, color=COLORS[Standing.FAIL], label="dead units")
    panel.bar(at, saturated, 0.8, dead, color=COLORS[Standing.OPEN], label="saturated units")
    panel.plot(
        at, [layer.zero_fraction for layer in layers], "_", color=INK, markersize=7, label="zeros in the gradient"
    )
    panel.set(ylim=(0, 1.45), ylabel="share")
    panel.yaxis.set_major_locator(FixedLocator([0, 0.5, 1]))
    panel.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{share:.0%}"))
    panel.legend(loc="upper center", ncols=3)


def _names(panel: Axes, layers: Sequence[Layer]) -> None:
    """Index and operator of the layers' nodes; of many layers some."""
    every = range(0, len(layers), -(-len(layers) // _LABELS))
    labels = [cut(name(f"{layers[i].spot.node} {layers[i].spot.op}"), _LONGEST_LAYER) for i in every]
    turned = len(labels) > 6
    panel.set_xticks(list(every), labels, rotation=90 if turned else 0, fontsize=8, parse_math=False)
    panel.set_xlim(-0.7, len(layers) - 0.3)
    panel.tick_params(axis="x", color=FAINT)


def _positive(sizes: Sequence[float]) -> np.ndarray:
    """Sizes that a logarithmic axis can show; NaN for the others."""
    values = np.asarray(sizes, np.float64)
    return np.where(np.isfinite(values) & (values > 0), values, np.nan)
