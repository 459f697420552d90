"""The V curve: how far central differences of one entry are from its derivative, against their step."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes

from gradcheck_cli.graph import Array
from gradcheck_cli.report.plot.looks import COLORS, FAINT, GREEN, INK, empty, powers
from gradcheck_cli.report.text import cut, name, shape, short
from gradcheck_cli.results.picture import Curve, Standing, standing_of
from gradcheck_cli.results.record import Check

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
    panel.axhspan(bottom, max(curve.allowed, bottom), color="#e9f3ea", label="within tolerance")
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
    """Which entry a curve is of."""
    if check.picture is not None and check.picture.tile.over == "projections":
        return "h along a random direction"
    parts = [f"{cut(name(n), 20)}{shape(at)}" for n, at in ((check.y, curve.y), (check.x, curve.x))]
    point = f", point {curve.point}" if check.points > 1 else ""
    return f"h, for d {parts[0]} / d {parts[1]}" + (f", {curve.part}" if curve.part else "") + point
