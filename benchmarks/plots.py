"""The tables as pictures: how many times faster than each peer, and how time grows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.jacobians import OURS
from benchmarks.libraries import installed
from benchmarks.table import Table

_OWN = "#1f5a99"
_PANELS = ("Jacobians", "Jacobians, one thread")  # titles of tables that have a panel for each case
_BESIDE = 4  # panels at most
_BARS = {  # title of a table: the column of names and that of lengths
    "Product kernels": ("products", "faster than NumPy"),
    "Scaling: threads": ("what", "times faster"),
    "Whole processes": ("process", "seconds"),
    "Numerical Jacobian and the machine's limit": ("case", "times the limit"),
}
_CURVES = {  # title of a table: the column of curves, those along and up
    "Scaling: entries": ("what", "entries checked", "seconds"),
    "Scaling: nodes": ("mode", "nodes", "seconds"),
    "Scaling: lines": ("what", "number", "CPU, s"),
    "Scaling: weights": ("mode", "weights, MB", "peak, MB"),
}


def draw(tables: Sequence[Table], folder: Path) -> list[Path]:
    """A PNG for each table that has one; none without matplotlib."""
    if installed("matplotlib") is None:
        return []
    import matplotlib

    matplotlib.use("Agg")
    folder.mkdir(parents=True, exist_ok=True)
    drawn = []
    for table in tables:
        rows = table.records
        if table.title in _PANELS:
            drawn.append(_jacobians(table.title, rows, folder / _file(table.title)))
        elif table.title in _BARS:
            drawn.append(_bars(table.title, rows, *_BARS[table.title], folder / _file(table.title)))
        elif table.title in _CURVES:
            drawn.append(_curves(table.title, rows, *_CURVES[table.title], folder / _file(table.title)))
    return drawn


def _file(title: str) -> str:
    return "-".join("".join(c if c.isalnum() else " " for c in title.lower()).split()) + ".png"


def _jacobians(title: str, rows: Sequence[Mapping[str, Any]], path: Path) -> Path:
    """Seconds of every way, a panel for each case."""
    from matplotlib import pyplot as plt

    cases = list(dict.fromkeys(row["case"] for row in rows))
    across, down = min(len(cases), _BESIDE), math.ceil(len(cases) / _BESIDE)
    figure, axes = plt.subplots(down, across, figsize=(3.4 * across, 3.6 * down), squeeze=False, layout="constrained")
    ways = list(dict.fromkeys(row["way"] for row in rows if isinstance(row["seconds"], float)))[::-1]
    for axis in axes.flat[len(cases) :]:
        axis.set_visible(False)
    for axis, case in zip(axes.flat, cases, strict=False):
        taken = {row["way"]: row["seconds"] for row in rows if row["case"] == case}
        for place, way in enumerate(ways):
            seconds = taken.get(way)
            if isinstance(seconds, float):
                axis.barh(place, seconds, color=_OWN if way in OURS else "#b0b0b0")
                axis.text(seconds * 1.1, place, f"{seconds:.2g}", va="center", fontsize=7)
        axis.set_xscale("log")
        axis.set_xmargin(0.2)
        axis.set_title(case, fontsize=9)
        axis.set_xlabel("seconds", fontsize=8)
        axis.tick_params(labelsize=7)
        axis.set_yticks(range(len(ways)), ways if axis in axes[:, 0] else [""] * len(ways))
        axis.spines[["top", "right"]].set_visible(False)
    figure.suptitle(f"{title}: gradient checks in process, gradcheck (blue) and its peers", fontsize=10)
    return _saved(figure, path)


def _bars(title: str, rows: Sequence[Mapping[str, Any]], names: str, lengths: str, path: Path) -> Path:
    from matplotlib import pyplot as plt

    kept = [(row[names], row[lengths]) for row in rows if isinstance(row[lengths], int | float)][::-1]
    figure, axis = plt.subplots(figsize=(6.5, 0.9 + 0.28 * len(kept)), layout="constrained")
    axis.barh([name for name, _ in kept], [length for _, length in kept], color=_OWN)
    for place, (_, length) in enumerate(kept):
        axis.text(length, place, f" {length:.3g}", va="center", fontsize=8)
    axis.set(xlabel=lengths, title=title, xmargin=0.1)
    if "faster" in lengths:  # ratios: as long for half as for twice as fast
        axis.set_xscale("log")
        axis.axvline(1, color="black", linewidth=0.8)
    axis.tick_params(labelsize=8)
    axis.spines[["top", "right"]].set_visible(False)
    return _saved(figure, path)


def _curves(title: str, rows: Sequence[Mapping[str, Any]], names: str, along: str, up: str, path: Path) -> Path:
    from matplotlib import pyplot as plt

    figure, axis = plt.subplots(figsize=(5.5, 3.6), layout="constrained")
    for name in dict.fromkeys(row[names].split(",")[0] for row in rows):
        series = [(row[along], row[up]) for row in rows if row[names].split(",")[0] == name]
        axis.loglog(*zip(*series, strict=True), marker="o", label=name)
    axis.set(xlabel=along, ylabel=up, title=title)
    axis.grid(alpha=0.3, which="both")
    axis.legend(fontsize=8)
    return _saved(figure, path)


def _saved(figure: Any, path: Path) -> Path:
    from matplotlib import pyplot as plt

    figure.savefig(path, dpi=110)
    plt.close(figure)
    return path
