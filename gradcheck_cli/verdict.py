"""The verdict on two Jacobians, entry by entry: arrays only.

A mismatch counts only beyond what the numerical side can have wrong; what it cannot resolve is inconclusive, never a
pass and never a failure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np

from gradcheck_cli.graph import Array
from gradcheck_cli.stencil import Estimate

UNIT = 2.0**-53
RTOL, ATOL = 5e-7, 0.0
NEGLIGIBLE = 1e-9


class Status(IntEnum):
    """What became of one entry."""

    PASS = 0
    FAIL = 1
    NOISE = 2  # the numerical derivative is not precise enough to tell
    KINK = 3  # x lies where the derivative jumps
    NONFINITE = 4  # the numerical side is not finite


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Errors that do not matter to the user: relative to an entry, and absolute."""

    rtol: float = RTOL
    atol: float = ATOL
    negligible: float = NEGLIGIBLE  # of the largest entry for the same y


@dataclass(frozen=True, slots=True)
class Comparison:
    """Both Jacobians of a pair `(x_size, y_size)`, the numerical one's error bound, and a `Status` for each entry."""

    theoretical: Array
    numerical: Array
    noise: Array
    status: Array
    kinks: dict[int, Array] = field(default_factory=dict)  # step of the tape -> rows that cross a branch there

    def count(self, *statuses: Status) -> int:
        """How many entries have one of the statuses."""
        return int(np.isin(self.status, statuses).sum())


def allowance(theoretical: Array, numerical: Array, tolerance: Tolerance) -> Array:
    """How far two entries may differ, `(x_size, y_size)`: by rtol, and by a trifle of the column's largest entry."""
    size = magnitude(theoretical, numerical)
    largest = np.max(size, axis=0, initial=0.0)
    return tolerance.rtol * size + tolerance.negligible * largest + tolerance.atol


def magnitude(theoretical: Array, numerical: Array) -> Array:
    """The larger of two entries, 0 where neither is finite."""
    both = np.fmax(np.abs(theoretical), np.abs(numerical))
    return np.where(np.isfinite(both), both, 0.0)


def judge(
    theoretical: Array, estimate: Estimate, allow: Array, floor: Array, kinked: Array | None = None
) -> Array:
    """A `Status` for each entry, all arguments of one shape (rows, y_size); `kinked` by rows.

    allow  what may differ; floor  below this neither side can be told from zero in the forward run's rounding.
    """
    numerical, size = estimate.value, magnitude(theoretical, estimate.value)
    tol = 8 * estimate.error + 64 * UNIT * size
    with np.errstate(invalid="ignore"):
        gap = np.abs(theoretical - numerical)
        status = np.where(gap + tol <= allow, Status.PASS, Status.NOISE)
        status = np.where(gap - tol > allow, Status.FAIL, status)
        status = np.where((status != Status.PASS) & (size <= floor), Status.PASS, status)
    status = np.where(np.isfinite(numerical), status, Status.NONFINITE)
    status = np.where(~np.isfinite(theoretical) & np.isfinite(numerical), Status.FAIL, status)
    if kinked is not None:
        status = np.where(kinked[:, None], Status.KINK, status)
    return status.astype(np.int8)


def pattern(theoretical: float, numerical: float, sizes: Sequence[int] = ()) -> str:
    """What a wrong entry looks like: "missing", "spurious", "sign", "x 0.5" ... or nothing."""
    if not np.isfinite(theoretical):
        return "not finite"
    if theoretical == 0:
        return "missing"
    ratio = numerical / theoretical
    if abs(ratio) < 1e-6:
        return "spurious"
    if abs(ratio + 1) < 1e-4:
        return "sign"
    known = [2.0, 0.5, *(float(n) for n in sizes if n > 2), *(1.0 / n for n in sizes if n > 2)]
    factor = next((f for f in known if abs(1 / ratio / f - 1) < 1e-4), None)
    return f"x {factor:.3g}" if factor else ""


def needed(comparison: Comparison) -> tuple[float, float]:
    """The rtol alone, and the atol alone, with which every entry would pass."""
    gap = np.abs(comparison.theoretical - comparison.numerical)
    failed = (comparison.status == Status.FAIL) & np.isfinite(gap)
    if not failed.any():
        return 0.0, 0.0
    size = magnitude(comparison.theoretical, comparison.numerical)[failed]
    return float(np.max(gap[failed] / size)), float(np.max(gap[failed]))


def errors(comparison: Comparison) -> tuple[float, float]:
    """The largest absolute error, and the largest error relative to the entry's column; NaN where not finite."""
    if not comparison.status.size:
        return 0.0, 0.0
    gap = np.abs(comparison.theoretical - comparison.numerical)
    size = magnitude(comparison.theoretical, comparison.numerical)
    ground = np.maximum(size, 1e-2 * np.max(size, axis=0, initial=0.0))
    relative = np.divide(gap, ground, out=np.zeros_like(gap), where=ground > 0)
    return float(np.max(gap)), float(np.max(relative))


def worst(comparison: Comparison, count: int | None = None) -> list[tuple[int, int]]:
    """Row and column of the entries that did not pass, failures first, the largest error first."""
    rows, columns = np.nonzero(comparison.status != Status.PASS)
    gap = np.abs(comparison.theoretical - comparison.numerical)[rows, columns]
    gap = np.where(np.isfinite(gap), gap, np.inf)
    order = np.lexsort((columns, rows, -gap, comparison.status[rows, columns] != Status.FAIL))[:count]
    return [(int(rows[i]), int(columns[i])) for i in order]
