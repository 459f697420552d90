"""Goals beside measured figures: computed from the tables of the suites, line by line.

A ratio over several cases counts by its worst case; where a goal speaks of a mean, by that.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.table import Table

Rows = Sequence[Mapping[str, Any]]
Tables = Mapping[str, Rows]


@dataclass(frozen=True, slots=True)
class Goal:
    """A number that is to be at least, or at most, as large as `bound`: the worst of what `measured` finds."""

    what: str
    bound: float
    title: str  # of the table that it is read from
    measured: Callable[[Rows], Iterable[Any]]
    least: bool = True
    unit: str = "x"

    def row(self, tables: Tables) -> tuple[str, str, str, str]:
        """The goal, what was measured, from the worst to the best, and whether it is met."""
        aim = f"{'at least' if self.least else 'at most'} {self.bound:g}{self.unit}"
        found = [value for value in self.measured(tables.get(self.title, ())) if isinstance(value, int | float)]
        if not found:
            return self.what, aim, "not measured", "-"
        worst, best = (min(found), max(found)) if self.least else (max(found), min(found))
        met = worst >= self.bound if self.least else worst <= self.bound
        span = f"{worst:.3g}{self.unit}" if len(found) == 1 else f"{worst:.3g}{self.unit} to {best:.3g}{self.unit}"
        return self.what, aim, span, "yes" if met else "no"


def table_of(tables: Sequence[Table]) -> Table:
    """The goals as a table."""
    made = Table("Goals", ("what", "goal", "measured, worst to best case", "met"))
    by_title = {table.title: table.records for table in tables}
    made.rows.extend(goal.row(by_title) for goal in GOALS)
    return made


def column(name: str, **chosen: str) -> Callable[[Rows], list[Any]]:
    """A column of the rows in which the other columns begin as said."""

    def read(rows: Rows) -> list[Any]:
        kept = [row for row in rows if all(str(row.get(key, "")).startswith(value) for key, value in chosen.items())]
        return [row[name] for row in kept if name in row]

    return read


def exactly(name: str, way: str) -> Callable[[Rows], list[Any]]:
    """A column of the rows of one way."""
    return lambda rows: [row[name] for row in rows if row["way"] == way]


def mean_of(name: str, *families: str) -> Callable[[Rows], list[float]]:
    """The geometric mean of a column over some families of products."""

    def read(rows: Rows) -> list[float]:
        found = [row[name] for row in rows if row["products"].startswith(families)]
        return [statistics.geometric_mean(found)] if found else []

    return read


def alone_to_all(rows: Rows) -> list[float]:
    """The time of a model in one process for all, in units of its time where models are checked one by one."""
    return [row["in one process, ms"] / row["CPU a model, ms"] for row in rows if row["at once"] == 1]


def growth(rows: Rows) -> list[float]:
    """Ratios of the time of an entry among the most entries to that among the fewest, for each series."""
    series: dict[str, list[float]] = {}
    for row in rows:
        series.setdefault(row["what"].split(",")[0], []).append(row["microseconds an entry"])
    return [taken[-1] / taken[0] for taken in series.values()]


def shares(rows: Rows) -> list[float]:
    """Shares of their memory limit that checks took."""
    return [row["peak beyond the loaded model, MB"] / row["--memory-limit, MB"] for row in rows]


def start_up(rows: Rows) -> list[float]:
    """A tiny model from start to exit, in seconds."""
    return [row["seconds"] for row in rows if row["process"] == "gradcheck tiny.onnx"]


def beside(way: str, ours: str, title: str = "Jacobians") -> tuple[str, Callable[[Rows], list[Any]]]:
    return title, exactly(f"{ours}: times faster", way)


def _coloured(name: str) -> Callable[[Rows], list[Any]]:
    return column(name, network="two conv", image="3x64x64", mode="full")


_ALONE, _SIZES = "Jacobians, one thread", "Full checks at real sizes"
_LAYERS = "geometric mean"
GOALS = (
    Goal("full Jacobian, auto, against torch.autograd.gradcheck", 20, *beside("torch slow", "auto")),
    Goal("the same, each on one thread", 20, *beside("torch slow", "auto", _ALONE)),
    Goal("full Jacobian, --method richardson, against torch.autograd.gradcheck", 4, *beside("torch slow", "richardson")),
    Goal("full Jacobian, auto, against JAX, compiled before", 1.5, *beside("jax", "auto")),
    Goal("the same, each on one thread", 1.5, *beside("jax", "auto", _ALONE)),
    Goal("full Jacobian, auto, against JAX, compiling included", 10, *beside("jax with compiling", "auto")),
    Goal("full Jacobian, auto, against tf.test.compute_gradient", 20, *beside("tensorflow", "auto")),
    Goal("full Jacobian, auto, against numdifftools (numerical side alone)", 1, *beside("numdifftools", "auto")),
    Goal("directional, against torch's fast mode", 0.5, *beside("torch fast", "directional")),
    Goal("the same, each on one thread", 0.5, *beside("torch fast", "directional", _ALONE)),
    Goal("whole process, MLP, against a torch script", 10, "Whole processes",
         column("times gradcheck's", process="torch")),
    Goal("a tiny model from start to exit", 0.17, "Whole processes", start_up, least=False, unit=" s"),
    Goal("product kernels, float64 large, against NumPy", 0.95, "Product kernels",
         mean_of("faster than NumPy", "float64 large")),
    Goal("product kernels, float32 large, against NumPy", 0.95, "Product kernels",
         mean_of("faster than NumPy", "float32 large")),
    Goal("product kernels, small and stacked, against NumPy", 1.5, "Product kernels",
         mean_of("faster than NumPy", "float64 small", "float32 small")),
    Goal("product kernels, float16, bfloat16, int8, against NumPy", 20, "Product kernels",
         mean_of("faster than NumPy", "float16", "bfloat16", "int8", "uint8")),
    *(Goal(f"convolutions, {way}, float64, against torch", 1.5, "Convolutions", column(f"{way} faster", layer=_LAYERS))
      for way in ("forward", "by x", "by w")),
    Goal("numerical Jacobian, time in units of the machine's limit", 2, "Numerical Jacobian and the machine's limit",
         column("times the limit"), least=False),
    Goal("two threads against one", 1.6, "Scaling: threads", column("times faster")),
    Goal("full check of two convolutions, 3x64x64", 0.3, _SIZES, _coloured("seconds"), least=False, unit=" s"),
    Goal("the same, memory", 100, _SIZES, _coloured("of it by the check, MB"), least=False, unit=" MB"),
    Goal("ResNet-50, directional check, in forward runs", 12, "Models",
         column("in forward runs", model="ResNet"), least=False),
    Goal("ResNet-50, forward in float64, against torch", 1, "Models",
         column("forward: times faster", model="ResNet")),
    Goal("memory, in units of --memory-limit", 1, "Scaling: memory", shares, least=False),
    Goal("memory, 1 GB of float32 weights, process as a whole", 3000, "Scaling: weights",
         lambda rows: [row["peak, MB"] for row in rows if row["weights, MB"] >= 1000], least=False, unit=" MB"),
    Goal("many models, cores busy", 85, "Many models", lambda rows: [row["cores busy, %"] for row in rows[-1:]], unit=" %"),
    Goal("many models, added to each", 30, "Many models", column("added, ms"), least=False, unit=" ms"),
    Goal("time of one of many things, among four times as many to the fewest", 1.2, "Scaling: lines",
         column("against the fewest"), least=False),
    Goal("many models one by one, CPU in one process for all to theirs", 0.9, "Many models", alone_to_all),
    Goal("many models, growth of the driver", 8, "Many models", column("driver grew by, MB"), least=False, unit=" MB"),
    Goal("time of an entry, among the most entries to the fewest", 1.1, "Scaling: entries", growth, least=False),
)  # fmt: skip
