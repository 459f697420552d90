"""How large the errors of all entries are, and how large errors of the numerical side could be."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter

from gradcheck_cli.graph import Array
from gradcheck_cli.report.plot.looks import COLORS, INK, WORDS
from gradcheck_cli.results.picture import HIGHEST, LOWEST, PER_DECADE, Histogram, Picture, Standing
from gradcheck_cli.results.record import Check

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
    """Where an error of 10^power stands."""
    return (power - LOWEST) * PER_DECADE + 1


def _histogram_ticks(panel: Axes, slots: Array) -> None:
    powers = [p for p in range(LOWEST, HIGHEST + 1) if slots[0] <= _slot(p) <= slots[-1] + 1]
    powers = powers[int(slots[0] == 0) :: -(-len(powers) // _TICKS)]  # no room for the first beside 0
    labels = {_slot(p): f"1e{p:+03d}" for p in powers} | ({0.5: "0"} if slots[0] == 0 else {})
    panel.xaxis.set_major_locator(FixedLocator(list(labels)))
    panel.xaxis.set_major_formatter(FuncFormatter(lambda at, _: labels.get(at, "")))
    panel.yaxis.set_major_formatter(FuncFormatter(lambda n, _: f"{n:,.0f}" if n < 1e6 else f"{n:.0e}"))
    panel.yaxis.set_minor_formatter(NullFormatter())
