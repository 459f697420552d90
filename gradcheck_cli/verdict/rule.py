"""The verdict on two Jacobians, entry by entry: arrays only.

A mismatch counts only beyond the error bound of the numerical side; an entry that the bound cannot resolve is
inconclusive, never a pass and never a failure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any

import numpy as np

from gradcheck_cli.graph import Array, is_inexact
from gradcheck_cli.verdict.differences import Estimate
from gradcheck_cli.verdict.differences import blocks as blocks  # re-exported

UNIT = 2.0**-53
RTOL, ATOL = 5e-7, 0.0
NEGLIGIBLE = 1e-9
_COMPARABLE = 64.0  # sizes of x within this factor are of one scale
FLOOR = 10.0  # errors of results of two implementations are at least relative to the largest entry divided by this
GROUND = 1e-2  # share of a column's largest entry that relative errors are at least relative to
_LEAST = float(np.finfo(float).smallest_subnormal)
UNDERFLOW = 1e-250  # products of numbers below this lose digits
HUGE = 1e150  # squares of numbers beyond this, or below its inverse, are no floating-point numbers


class Status(IntEnum):
    """The verdict on one entry; for one that stays open, the name is the reason."""

    PASS = 0
    FAIL = 1
    NOISE = 2  # rounding hides the difference
    CURVATURE = 3  # the function bends too much within the steps that rounding allows
    DOMAIN = 4  # the numerical side is not finite
    JUMP = 5  # y jumps or is infinitely steep here, or the perturbation crosses a decision of the model
    UNDERFLOW = 6  # products of numbers so small, or so large, lose digits
    NONDERIVATIVE = 7  # at a tie: neither of the slopes from both sides, nor between them; no rule has to be
    KINK_OK = 8  # at a tie: one of the slopes from both sides, or between them
    LEFT_OUT = 9  # y itself is not finite


PASSED = (Status.PASS, Status.KINK_OK)
REASONS = {  # status of an open entry -> code
    Status.NOISE: "GC303", Status.CURVATURE: "GC303", Status.UNDERFLOW: "GC303", Status.DOMAIN: "GC304",
    Status.JUMP: "GC301", Status.NONDERIVATIVE: "GC301",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Errors that do not matter to the user: relative to an entry, and absolute."""

    rtol: float = RTOL
    atol: float = ATOL
    negligible: float = NEGLIGIBLE  # relative to the largest entry for the same y
    floor: float = math.inf  # an entry counts as at least that largest one divided by this


@dataclass(frozen=True, slots=True)
class Comparison:
    """Both Jacobians of a pair `(x_size, y_size)`, the numerical one's error bound, and a `Status` for each entry.

    `noise` may be a broadcast view: bounds by column.  `slopes` has the slopes measured from the left and from the
    right for rows at a tie: row -> `(2, y_size)`.
    """

    theoretical: Array
    numerical: Array
    noise: Array
    status: Array
    tolerance: Tolerance = field(default_factory=Tolerance)
    slopes: Mapping[int, Array] = field(default_factory=dict)
    ties: Mapping[int, Array] = field(default_factory=dict)  # step of the tape -> rows at a tie there
    crossed: Mapping[int, Array] = field(default_factory=dict)  # step -> rows whose perturbation crosses a branch
    unfit: int = 0  # failed entries at a tie that are outside of the slopes from both sides
    outside: int = 0  # failed entries that are zero by the structure of the model
    known: Ground | None = None  # ground of the whole Jacobian, if these are some of its rows, or as measured

    @property
    def ground(self) -> Ground:
        """The sizes that entries are compared with to be negligible."""
        return ground_of(self.theoretical, self.numerical) if self.known is None else self.known

    @property
    def scale(self) -> Array:
        """The largest finite magnitude in each column, `(y_size,)`."""
        return self.ground.largest

    def count(self, *statuses: Status) -> int:
        """The number of entries that have one of the statuses."""
        if self.clean:
            return self.status.size * (Status.PASS in statuses)
        return sum(int(np.count_nonzero(self.status == status)) for status in statuses)

    @property
    def clean(self) -> bool:
        """True if every entry passes."""
        return not self.status.any()


@dataclass(frozen=True, slots=True)
class Ground:
    """Sizes beside which an entry is negligible: the largest entry for the same y, `(y_size,)`, or less than that.

    A feature on a much larger scale than others, such as a time in seconds among shares, has small derivatives that
    matter as much.  If rows differ that much in `scale`, `(rows,)`, the size for a row is at most the derivative that
    would move y, by the row's scale, as much as any row does: `effect`, `(y_size,)`, has the largest product of an
    entry and its scale.
    """

    largest: Array
    effect: Array | None = None
    scale: Array | None = None

    def at(self, rows: slice | Array = slice(None)) -> Array:
        """The sizes for some rows, in a shape that broadcasts with theirs."""
        if self.effect is None or self.scale is None:
            return self.largest
        share = self.scale[rows, None]
        with np.errstate(divide="ignore", over="ignore"):
            by_effect = np.where(share > 0, self.effect / share, np.inf)
        return np.where(_COMPARABLE * by_effect < self.largest, by_effect, self.largest)

    def of(self, rows: Array) -> Ground:
        """The ground of some rows."""
        return self if self.scale is None else replace(self, scale=self.scale[rows])


class Grounds:
    """Builds the ground of a whole Jacobian from its columns; `scale` has the size of x in each of its rows."""

    def __init__(self, scale: Array | None, columns: int) -> None:
        scale, none = _relative(scale), np.zeros(columns)
        self.found = Ground(none) if scale is None else Ground(none, none.copy(), scale)
        self._by = None if scale is None else np.where(scale > 0, scale, np.min(scale[scale > 0]))

    def add(self, theoretical: Array, numerical: Array, columns: slice = slice(None)) -> None:
        """Adds some columns: both sides, of which the larger counts."""
        largest, effect = self.found.largest[columns], self.found.effect
        for rows in blocks(*theoretical.shape):
            size = magnitude(theoretical[rows], numerical[rows])
            np.maximum(largest, np.max(size, axis=0, initial=0.0), out=largest)
            if effect is not None and self._by is not None:
                most = np.max(size * self._by[rows, None], axis=0, initial=0.0)
                np.maximum(effect[columns], most, out=effect[columns])


def ground_of(theoretical: Array, numerical: Array, scale: Array | None = None) -> Ground:
    """The ground of both sides of a whole Jacobian; `scale` has the size of x for each row, 0 if unknown."""
    grounds = Grounds(scale, theoretical.shape[1])
    grounds.add(theoretical, numerical)
    return grounds.found


def _relative(scale: Array | None) -> Array | None:
    """Sizes in units of the largest of them; None if all are of one scale."""
    if scale is None or not np.isfinite(scale).all():
        return None
    some = scale[scale > 0]
    if not some.size or float(some.max()) <= _COMPARABLE * float(some.min()):
        return None
    return np.asarray(scale / some.max())


def largest_by_column(theoretical: Array, numerical: Array) -> Array:
    """The largest finite magnitude in each column of either side, `(y_size,)`: the natural scale of that y."""
    return ground_of(theoretical, numerical).largest


def allowance(size: Array, largest: Array, tolerance: Tolerance) -> Array:
    """The difference allowed for entries of this magnitude: by rtol, atol, and the negligible share of their ground."""
    return tolerance.rtol * _floored(size, largest, tolerance) + (tolerance.negligible * largest + tolerance.atol)


def _floored(size: Array, largest: Array, tolerance: Tolerance) -> Array:
    """The sizes that rtol is relative to."""
    return size if tolerance.floor == math.inf else np.asarray(np.maximum(size, largest / tolerance.floor))


def magnitude(theoretical: Array, numerical: Array) -> Array:
    """The larger magnitude of two entries, 0 if neither is finite."""
    both = np.abs(theoretical)
    both = np.maximum(both, np.abs(numerical), out=both if np.ndim(both) else None)
    if np.isfinite(both).all():
        return both
    both = np.fmax(np.abs(theoretical), np.abs(numerical))
    return np.where(np.isfinite(both), both, 0.0)


def screened(
    theoretical: Array, numerical: Array, relative_error: float, tolerance: Tolerance, ground: Ground | None = None
) -> Array:
    """`Status` of each entry if the numerical side is right to a relative error: PASS, or NOISE for "not yet".

    The same rule as `judge`, for many entries at once; `ground` is that of these rows, if known.
    """
    status = np.empty(theoretical.shape, np.int8)
    slack = 8 * relative_error + 64 * UNIT - tolerance.rtol
    ground = ground_of(theoretical, numerical) if ground is None else ground
    for rows in blocks(*theoretical.shape):
        t, d = theoretical[rows], numerical[rows]
        size = magnitude(t, d)
        with np.errstate(invalid="ignore"):
            gap = t - d
            np.abs(gap, out=gap)
            np.multiply(size, slack, out=size)
            np.add(gap, size, out=gap)
            trifle = tolerance.negligible * ground.at(rows) + tolerance.atol  # `~(gap <= ...)`: NaN does not pass
            np.multiply(~(gap <= trifle), np.int8(Status.NOISE), out=status[rows])
    return status


def held(one: Array, other: Array, tolerance: Tolerance, ground: Ground, rounding: Array | float = 0.0) -> Comparison:
    """The comparison of numbers that two implementations give: beyond the tolerance and `rounding` an entry fails.

    Entries that are NaN, or the same infinity, in both are left out.
    """
    gap, rounding = gaps(one, other), np.broadcast_to(rounding, one.shape)
    failed = gap > allowance(magnitude(one, other), ground.at(), tolerance) + rounding
    status = np.where(failed, Status.FAIL, np.where(np.isfinite(one) | failed, Status.PASS, Status.LEFT_OUT))
    return Comparison(one, other, rounding, status.astype(np.int8), tolerance, known=ground)


def gaps(one: Array, other: Array) -> Array:
    """Distances of entries: 0 for two NaNs and for the same infinity, infinite where only one is finite."""
    here, there = wide(one), wide(other)
    with np.errstate(invalid="ignore"):
        gap = np.abs(here - there)
        same = (here == there) | (np.isnan(here) & np.isnan(there))
    return np.where(same, 0.0, np.where(np.isnan(gap), np.inf, gap))


def agree(one: Array, other: Array, allowed: Array | float) -> bool:
    """True if two results have one shape and are nowhere farther apart than allowed."""
    return one.shape == other.shape and not bool((gaps(one, other) > allowed).any())


def sizes(values: Array) -> Array:
    """Sizes that rounding is relative to: an entry, or a tenth of the largest, whose rounding reaches small ones."""
    size = np.abs(wide(values))
    size = np.where(np.isfinite(size), size, 0.0)
    return np.asarray(np.maximum(size, np.max(size, initial=0.0) / FLOOR))


def farthest(one: Array, other: Array, size: Array | float) -> tuple[float, float]:
    """The largest difference, and the largest relative to `size`; infinite if the shapes differ."""
    if one.shape != other.shape:
        return math.inf, math.inf
    gap = gaps(one, other)
    with np.errstate(divide="ignore", invalid="ignore"):
        relative = np.where(gap == 0, 0.0, gap / size)
    return float(np.max(gap, initial=0.0)), float(np.max(relative, initial=0.0))


def difference(one: Array, other: Array, allowed: Array | float) -> str:
    """Sentence on the entry that differs most of those that are farther apart than allowed; "" if there is none."""
    if one.shape != other.shape:
        return f"its shape is {_place(one.shape)} here and {_place(other.shape)} there"
    gap = gaps(one, other)
    apart = gap > allowed
    if not apart.any():
        return ""
    worst = np.unravel_index(int(np.argmax(np.where(apart, gap, -1.0))), gap.shape)
    most = f"{_place(worst)}: {wide(one)[worst]:.6g} here, {wide(other)[worst]:.6g} there"
    return f"{int(apart.sum())} of {gap.size} entries differ, most of all {most}"


def _place(position: Sequence[Any]) -> str:
    return f"[{','.join(map(str, position))}]"


def wide(values: Array) -> Array:
    """Values in double precision."""
    return values.astype(np.complex128 if values.dtype.kind == "c" else np.float64)


def judge(
    theoretical: Array,
    estimate: Estimate,
    largest: Array,
    floor: Array,
    tolerance: Tolerance,
    reach: Array | float = np.inf,
) -> Array:
    """A `Status` for each entry of some rows.

    largest  the ground of these rows
    floor    (rows, y_size), a size below which rounding in the forward run hides the difference from zero
    reach    (rows, 1), a numerical zero with an error beyond this tells nothing
    """
    numerical, size = estimate.value, magnitude(theoretical, estimate.value)
    tol, allow = 8 * estimate.error + 64 * UNIT * size, allowance(size, largest, tolerance)
    with np.errstate(invalid="ignore"):
        gap = np.abs(theoretical - numerical)
        status = np.where(estimate.error > 2 * estimate.rounding, Status.CURVATURE, Status.NOISE)
        status = np.where(gap + tol <= allow, Status.PASS, status)
        status = np.where(gap - tol > allow, Status.FAIL, status)
        zero = (size <= floor) & (estimate.error <= reach)
        status = np.where((status != Status.PASS) & zero, Status.PASS, status)
    status = np.where(np.isfinite(numerical), status, Status.DOMAIN)
    status = np.where(~np.isfinite(theoretical) & np.isfinite(numerical), Status.FAIL, status)
    lost = np.isin(status, (Status.FAIL, Status.NOISE, Status.CURVATURE)) & too_small(theoretical, size)
    return np.where(lost, Status.UNDERFLOW, status).astype(np.int8)


def judge_between(
    theoretical: Array,
    left: Estimate,
    right: Estimate,
    largest: Array,
    floor: Array,
    tolerance: Tolerance,
    passed: Array,
) -> tuple[Array, Array]:
    """A `Status` for each entry of rows at a tie, by the slopes from both sides, and a mask of where these differ.

    Arguments as in `judge`; `passed` marks entries that another numerical estimate finds right already.
    """
    low, high = np.fmin(left.value, right.value), np.fmax(left.value, right.value)
    size = np.maximum(magnitude(theoretical, left.value), magnitude(theoretical, right.value))
    most = np.max(size, axis=0, initial=0.0) if largest.ndim == 1 else size  # slopes may be larger than the ground
    allow = allowance(size, np.maximum(largest, most), tolerance)
    tol = 8 * np.maximum(left.error, right.error) + 64 * UNIT * size
    finite = np.isfinite(left.value) & np.isfinite(right.value)
    with np.errstate(invalid="ignore"):
        beside = np.maximum(low - theoretical, theoretical - high)
        apart = finite & (high - low > allow + 2 * tol)
        fits = (beside + tol <= allow) | (passed & (beside - tol <= allow)) | (size <= floor)
        status = np.where(beside - tol > allow, Status.NONDERIVATIVE, Status.NOISE)
    status = np.where(fits, np.where(apart, Status.KINK_OK, Status.PASS), status)
    status = np.where(np.isfinite(theoretical), status, Status.FAIL)
    status = np.where(np.isfinite(tol), status, Status.JUMP)
    status = np.where(finite, status, Status.DOMAIN)
    lost = ~np.isin(status, PASSED) & too_small(theoretical, size)
    return np.where(lost, Status.UNDERFLOW, status).astype(np.int8), apart


def too_small(theoretical: Array, size: Array) -> Array:
    """Mask of entries where either side may have lost digits to underflow."""
    return (size > 0) & (size < UNDERFLOW) & np.isfinite(theoretical)


def epsilon(dtype: np.dtype[Any]) -> float:
    """The distance from 1 to the next number of a floating-point or complex dtype; 0 for integers and 8-bit floats."""
    if not is_inexact(dtype):
        return 0.0
    return 2.0**-7 if dtype.name == "bfloat16" else float(np.finfo(dtype).eps)


def pattern(theoretical: float, numerical: float, sizes: Sequence[int] = ()) -> str:
    """The way in which an entry is wrong: "missing", "spurious", "sign", "x 0.5" ... or "" if it has no name."""
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
    relative, absolute, tolerance = 0.0, 0.0, comparison.tolerance
    for rows in () if comparison.clean else blocks(*comparison.status.shape):
        failed = comparison.status[rows] == Status.FAIL
        theoretical, numerical = comparison.theoretical[rows][failed], comparison.numerical[rows][failed]
        gap = np.abs(theoretical - numerical)
        finite, size = np.isfinite(gap), magnitude(theoretical, numerical)
        if tolerance.floor < math.inf:
            size = _floored(size, np.broadcast_to(comparison.ground.at(rows), failed.shape)[failed], tolerance)
        relative = max(relative, float(np.max(gap[finite] / size[finite], initial=0.0)))
        absolute = max(absolute, float(np.max(gap[finite], initial=0.0)))
    return relative, absolute


def errors(comparison: Comparison) -> tuple[float, float]:
    """The largest absolute error, and the largest relative to an entry or to a hundredth of its column's largest.

    Entries that could not be judged do not count, unless none could.
    """
    theoretical, numerical, ground = comparison.theoretical, comparison.numerical, comparison.ground
    judged = comparison.count(*PASSED, Status.FAIL) > 0
    absolute, relative = 0.0, 0.0
    for rows in blocks(*theoretical.shape):
        with np.errstate(invalid="ignore", divide="ignore"):
            gap = theoretical[rows] - numerical[rows]
            np.abs(gap, out=gap)
            if not comparison.clean:
                status = comparison.status[rows]
                gap[~np.isin(status, (*PASSED, Status.FAIL)) if judged else status == Status.LEFT_OUT] = 0.0
                gap[np.isnan(gap) & (status == Status.FAIL)] = np.inf  # no number is as far away as NaN
            absolute = float(np.maximum(absolute, np.max(gap, initial=0.0)))
            size = magnitude(theoretical[rows], numerical[rows])
            largest = ground.at(rows)
            least = np.maximum(GROUND * largest, largest / comparison.tolerance.floor)
            np.maximum(size, np.maximum(least, _LEAST), out=size)  # 0 / 0 counts as no error
            np.divide(gap, size, out=gap)
        relative = float(np.maximum(relative, np.max(gap, initial=0.0)))
    return absolute, relative


def apart(comparison: Comparison, v: Array, u: Array) -> float:
    """The sum of the differences of both sides, weighted by `(x_size,)` and `(y_size,)`."""
    total = 0.0
    for rows in blocks(*comparison.status.shape):
        gap = comparison.theoretical[rows] - comparison.numerical[rows]
        total += float(v[rows] @ (np.abs(gap, out=gap) @ u))
    return total


def worst(comparison: Comparison, count: int | None = None) -> list[tuple[int, int]]:
    """Row and column of the entries that did not simply pass: failures first, passed kinks last, then by error."""
    found = np.zeros((4, 0))  # columns, rows, errors with the largest first, ranks
    for some in () if comparison.clean else blocks(*comparison.status.shape):
        status = comparison.status[some]
        rows, columns = at = np.nonzero((status != Status.PASS) & (status != Status.LEFT_OUT))
        gap = np.abs(comparison.theoretical[some][at] - comparison.numerical[some][at])
        rank = np.where(status[at] == Status.FAIL, 0, np.where(status[at] == Status.KINK_OK, 2, 1))
        keys = np.stack([columns, rows + some.start, -np.where(np.isfinite(gap), gap, np.inf), rank])
        found = np.concatenate([found, keys], axis=1)
        found = found[:, np.lexsort(found)[:count]]
    return [(int(row), int(column)) for column, row in found[:2].T]


def unseen(comparison: Comparison, rows: Array, columns: Array) -> Array:
    """The size that an error of some entries must have to be detected for certain; infinite if none would be."""
    theoretical, numerical = comparison.theoretical, comparison.numerical
    size = magnitude(theoretical[rows, columns], numerical[rows, columns])
    tol = 8 * comparison.noise[rows, columns] + 64 * UNIT * size
    allow = allowance(size, _ground_at(comparison, rows, columns), comparison.tolerance)
    measured = np.isin(comparison.status[rows, columns], (*PASSED, Status.FAIL, Status.NOISE, Status.CURVATURE))
    return np.where(measured & np.isfinite(tol), allow + 2 * tol, np.inf)


def _ground_at(comparison: Comparison, rows: Array, columns: Array) -> Array:
    some, place = np.unique(columns, return_inverse=True)
    if (known := comparison.known) is None:
        return largest_by_column(comparison.theoretical[:, some], comparison.numerical[:, some])[place]
    if known.effect is None:
        return known.largest[columns]
    part = Ground(known.largest[some], known.effect[some], known.scale)
    return np.asarray(
        [part.at(np.asarray([row]))[0, at] for row, at in zip(rows.tolist(), place.tolist(), strict=True)]
    )
