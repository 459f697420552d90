"""What the panels of a figure share: colors that the color-blind can tell apart, numbers as the reports write them."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

from gradcheck_cli.results.picture import Standing

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
    """1e-10; 0.01 ... 100 as they are."""
    return f"{value:g}" if 1e-2 <= value <= 1e2 else f"{value:.0e}"


def empty(panel: Axes, why: str) -> None:
    """A panel that has nothing to show."""
    panel.set_axis_off()
    panel.text(0.5, 0.5, why, ha="center", va="center", color=FAINT, transform=panel.transAxes, parse_math=False)
