"""Health by layer: what is left of the gradient on its way back through the model, and which units are dead."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import SubFigure
from matplotlib.ticker import FixedLocator, FuncFormatter

from gradcheck_cli.report.plot.looks import COLORS, FAINT, GREEN, INK, empty, powers
from gradcheck_cli.report.text import cut, name
from gradcheck_cli.results.measures import Health, Layer
from gradcheck_cli.results.picture import Standing
from gradcheck_cli.results.record import Check

_LABELS = 24  # most layers that are named
_LONGEST_LAYER = 18  # columns of a layer's name


def draw_layers(panel: SubFigure, check: Check) -> None:
    """The gradient's size by layer, and the share of units without any."""
    health = check.gradient.get("health")
    if not isinstance(health, Health) or not health.layers:
        return empty(panel.subplots(), "no layer with weights or a bend lies between x and y")
    color = COLORS[Standing.FAIL] if health.shows else GREEN
    panel.suptitle(_layers_title(health), fontsize=10, color=color, parse_math=False)
    upper, lower = panel.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    _sizes(upper, health.layers)
    _shares(lower, health.layers)
    _names(lower, health.layers)
    return None


def _layers_title(health: Health) -> str:
    """gradient by layer, from x to y: ratio 0.053, healthy."""
    ratio = [] if health.ratio is None else [f"ratio {health.ratio:.2g}"]
    return f"gradient by layer, from x to y: {', '.join([*ratio, *(health.shows or ['healthy'])])}"


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
