"""The verdict on two Jacobians, entry by entry: arrays only.

A mismatch counts only beyond the error bound of the numerical side; an entry that the bound cannot resolve is
inconclusive, never a pass and never a failure.

A Jacobian may be compressed: of each row only the entries that may differ from zero by the structure of a model.  An
array of such cells has a row for each row of the Jacobian, and as many columns as the fullest row has such entries.
Other rows are filled up with zeros, which are no entries and pass whatever judges entries.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from enum import IntEnum
from functools import cached_property
from itertools import permutations
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from gradcheck_cli.graph import Array, is_inexact
from gradcheck_cli.native import elementwise
from gradcheck_cli.verdict.differences import Estimate
from gradcheck_cli.verdict.differences import blocks as blocks  # re-exported

UNIT = 2.0**-53
RTOL, ATOL = 5e-7, 0.0
NEGLIGIBLE = 1e-9
_COMPARABLE = 64.0  # sizes of x within this factor are of one scale
GROUND = 1e-2  # share of a column's largest entry that relative errors are at least relative to
_LEAST = float(np.finfo(float).smallest_subnormal)
_WORTH = 4  # times as many entries as cells: what is kept of fewer is the whole Jacobian
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


class Tolerance(Struct, frozen=True):
    """Errors that do not matter to the user: relative to an entry, and absolute."""

    rtol: float = RTOL
    atol: float = ATOL
    negligible: float = NEGLIGIBLE  # relative to the largest entry for the same y
    floor: float = math.inf  # an entry counts as at least that largest one divided by this


class Nonzeros(Struct, frozen=True, dict=True):
    """Places in a Jacobian `(rows, width)` of the entries that may differ from zero.

    `columns[r, k]` is the column of the k-th one of row r, for k below `lengths[r]`; beyond that it is 0 and counts
    for nothing.
    """

    columns: Array
    lengths: Array
    width: int

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the Jacobian."""
        return len(self.columns), self.width

    @cached_property
    def count(self) -> int:
        """Number of entries."""
        return int(self.lengths.sum())

    @cached_property
    def mask(self) -> Array:
        """The cells that are entries, and fill no row up."""
        return np.arange(self.columns.shape[1]) < self.lengths[:, None]

    @property
    def sparse(self) -> bool:
        """True where keeping the cells alone saves much."""
        return _WORTH * self.columns.size <= len(self.columns) * self.width

    def of(self, rows: slice | Array) -> Nonzeros:
        """The cells of some rows."""
        return Nonzeros(self.columns[rows], self.lengths[rows], self.width)

    def kept(self, whole: Array) -> Array:
        """The cells of a Jacobian."""
        return self.cleared(np.take_along_axis(whole, self.columns, axis=1))

    def cleared(self, values: Array) -> Array:
        """The same values with zeros where a row is filled up."""
        return values if self.count == self.columns.size else np.where(self.mask, values, values.dtype.type(0))

    def filled(self, entries: Array) -> Array:
        """The cells of entries in the order of rows, and of columns in each."""
        found = np.zeros(self.columns.shape, entries.dtype)
        found[self.mask] = entries
        return found

    def whole(self, values: Array, elsewhere: Array | float = 0.0) -> Array:
        """The Jacobian of some cells; what is in none of them is `elsewhere`, a number for each column."""
        found = np.zeros(self.shape, values.dtype)
        if np.any(elsewhere):
            found += elsewhere
        rows, places = np.nonzero(self.mask)
        found[rows, self.columns[rows, places]] = values[rows, places]
        return found

    def summed(self, values: Array) -> Array:
        """The sum of the cells of each column, `(width,)`."""
        return np.bincount(self.columns.reshape(-1), values.reshape(-1), self.width)

    def most(self, values: Array) -> Array:
        """The largest of the cells of each column, none of which is negative, `(width,)`."""
        found = np.zeros(self.width)
        np.maximum.at(found, self.columns.reshape(-1), values.reshape(-1))
        return found

    def mirrored(self, values: Array) -> Array:
        """For each cell of a square Jacobian the entry across its diagonal."""
        rows, places = np.nonzero(self.mask)
        here, across = (
            a * self.width + b for a, b in permutations((rows, self.columns[rows, places].astype(np.int64)))
        )
        order = np.argsort(here)
        found = order[np.searchsorted(here, across, sorter=order).clip(max=len(here) - 1)]
        return self.filled(np.where(here[found] == across, values[rows, places][found], 0.0))

    def place(self, row: int, column: int) -> int | None:
        """The number of a column among the cells of a row; None where it is in none of them."""
        at = np.flatnonzero(self.columns[row, : self.lengths[row]] == column)
        return int(at[0]) if len(at) else None


def cells_of(row: Array, column: Array, shape: tuple[int, int]) -> Nonzeros:
    """The cells of entries, given by row and column and sorted by row."""
    lengths = np.bincount(row, minlength=shape[0])
    cells = Nonzeros(np.zeros((shape[0], int(np.max(lengths, initial=0))), np.int32), lengths, shape[1])
    cells.columns[cells.mask] = column
    return cells


class Comparison(Struct, frozen=True):
    """Both Jacobians of a pair `(x_size, y_size)`, the numerical one's error bound, and a `Status` for each entry.

    `noise` may be a broadcast view: bounds by column.  `slopes` has the slopes measured from the left and from the
    right for rows at a tie: row -> `(2, y_size)`.

    With `cells` all of these arrays are of cells.  Entries elsewhere are zero on both sides and pass; `elsewhere` bounds
    what the numerical side can have wrong of them.
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
    cells: Nonzeros | None = None
    elsewhere: Array | float = 0.0  # by column

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the part of the Jacobian that is compared."""
        rows, columns = self.status.shape if self.cells is None else self.cells.shape
        return rows, columns

    @property
    def size(self) -> int:
        """Number of entries that are compared."""
        return math.prod(self.shape)

    @property
    def ground(self) -> Ground:
        """The sizes that entries are compared with to be negligible."""
        if self.known is None:
            return ground_of(self.theoretical, self.numerical, cells=self.cells)
        return self.known

    def rows(self, some: slice | Array = slice(None)) -> Comparison:
        """Some rows, or all, with every entry; what is known of ties and branches is left out of some."""
        if (cells := self.cells) is None:
            parts = self.theoretical[some], self.numerical[some], self.noise[some], self.status[some]
            return Comparison(*parts, self.tolerance, known=self.ground.of(some))
        here = cells.of(some)
        theoretical, numerical = (here.whole(values[some]) for values in (self.theoretical, self.numerical))
        noise, status = here.whole(self.noise[some], self.elsewhere), here.whole(self.status[some])
        known = self.ground.of(some).everywhere()
        return Comparison(theoretical, numerical, noise, status, self.tolerance, known=known)

    def whole(self) -> Comparison:
        """The same comparison with every entry of the Jacobian, none of them compressed."""
        if (cells := self.cells) is None:
            return self
        every = self.rows()
        return replace(
            self, theoretical=every.theoretical, numerical=every.numerical, noise=every.noise, status=every.status,
            slopes={row: cells.of(np.asarray([row, row])).whole(sides) for row, sides in self.slopes.items()},
            known=every.known, cells=None, elsewhere=0.0,
        )  # fmt: skip

    def at(self, row: int, column: int) -> Judged:
        """One entry of the Jacobian."""
        place = column if self.cells is None else self.cells.place(row, column)
        slopes = self.slopes.get(row)
        if place is None:
            noise = float(np.broadcast_to(self.elsewhere, self.shape[1:])[column])
            return Judged(0.0, 0.0, noise, Status.PASS, None if slopes is None else (0.0, 0.0))
        given, right, noise = (float(each[row, place]) for each in (self.theoretical, self.numerical, self.noise))
        sides = None if slopes is None else (float(slopes[0, place]), float(slopes[1, place]))
        return Judged(given, right, noise, Status(int(self.status[row, place])), sides)

    @property
    def scale(self) -> Array:
        """The largest finite magnitude in each column, `(y_size,)`."""
        return self.ground.largest

    def count(self, *statuses: Status) -> int:
        """The number of entries that have one of the statuses."""
        if self.clean:
            return self.size * (Status.PASS in statuses)
        found = sum(int(np.count_nonzero(self.status == status)) for status in statuses)
        return found + (self.size - self.status.size) * (Status.PASS in statuses)

    @property
    def clean(self) -> bool:
        """True if every entry passes."""
        return not self.status.any()


class Judged(NamedTuple):
    """One entry of a comparison: both sides, the bound of the numerical one, the status, and slopes at a tie."""

    theoretical: float
    numerical: float
    noise: float
    status: Status
    slopes: tuple[float, float] | None


class Ground(Struct, frozen=True):
    """Sizes beside which an entry is negligible: the largest entry for the same y, `(y_size,)`, or less than that.

    A feature on a much larger scale than others, such as a time in seconds among shares, has small derivatives that
    matter as much.  If rows differ that much in `scale`, `(rows,)`, the size for a row is at most the derivative that
    would move y, by the row's scale, as much as any row does: `effect`, `(y_size,)`, has the largest product of an
    entry and its scale.  With `cells` sizes are asked for cells.
    """

    largest: Array
    effect: Array | None = None
    scale: Array | None = None
    cells: Nonzeros | None = None

    def at(self, rows: slice | Array = slice(None)) -> Array:
        """The sizes for some rows, in a shape that broadcasts with theirs."""
        columns = ... if self.cells is None else self.cells.columns[rows]
        largest = self.largest[columns]
        if self.effect is None or self.scale is None:
            return largest
        share = self.scale[rows, None]
        with np.errstate(divide="ignore", over="ignore"):
            by_effect = np.where(share > 0, self.effect[columns] / share, np.inf)
        return np.where(_COMPARABLE * by_effect < largest, by_effect, largest)

    @property
    def by_column(self) -> elementwise.Sizes | None:
        """Sizes as the kernels take them, if they are asked for whole rows."""
        return (self.largest, self.effect, self.scale) if self.cells is None else None

    def of(self, rows: slice | Array) -> Ground:
        """The ground of some rows."""
        scale = None if self.scale is None else self.scale[rows]
        return replace(self, scale=scale, cells=None if self.cells is None else self.cells.of(rows))

    def everywhere(self) -> Ground:
        """The same sizes, for all entries of a row."""
        return self if self.cells is None else replace(self, cells=None)

    def raised(self, size: Array) -> Array:
        """The sizes for these rows, no less than the largest `size` of theirs for the same y, or than their own."""
        if self.effect is not None:
            return np.maximum(self.at(), size)
        if self.cells is None:
            return np.maximum(self.largest, np.max(size, axis=0, initial=0.0))
        return np.maximum(self.largest, self.cells.most(size))[self.cells.columns]


class Grounds:
    """Builds the ground of a whole Jacobian from its columns; `scale` has the size of x in each of its rows."""

    def __init__(self, scale: Array | None, columns: int, cells: Nonzeros | None = None) -> None:
        scale, none, self.cells = _relative(scale), np.zeros(columns), cells
        self.found = Ground(none, None if scale is None else none.copy(), scale, cells)
        self._by = None if scale is None else np.where(scale > 0, scale, np.min(scale[scale > 0]))

    def add(self, theoretical: Array, numerical: Array, columns: slice = slice(None)) -> None:
        """Adds some columns: both sides, of which the larger counts."""
        largest, effect = self.found.largest[columns], self.found.effect
        moved = None if effect is None else effect[columns]
        done = self.cells is None and elementwise.raised(theoretical, numerical, (largest, moved, self._by))
        for rows in () if done else blocks(*theoretical.shape):
            size = magnitude(theoretical[rows], numerical[rows])
            np.maximum(largest, self._most(size, rows), out=largest)
            if moved is not None and self._by is not None:
                np.maximum(moved, self._most(size * self._by[rows, None], rows), out=moved)

    def _most(self, size: Array, rows: slice) -> Array:
        """The largest size in each column of some rows."""
        return np.max(size, axis=0, initial=0.0) if self.cells is None else self.cells.of(rows).most(size)


def ground_of(
    theoretical: Array, numerical: Array, scale: Array | None = None, cells: Nonzeros | None = None
) -> Ground:
    """The ground of both sides of a whole Jacobian; `scale` has the size of x for each row, 0 if unknown."""
    grounds = Grounds(scale, theoretical.shape[1] if cells is None else cells.width, cells)
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
    slack = 8 * relative_error + 64 * UNIT - tolerance.rtol
    ground = ground_of(theoretical, numerical) if ground is None else ground
    allowed = slack, tolerance.negligible, tolerance.atol
    if (found := elementwise.screened(theoretical, numerical, ground.by_column, *allowed, Status.NOISE)) is not None:
        return found
    status = np.empty(theoretical.shape, np.int8)
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
    ground: Ground,
    floor: Array,
    tolerance: Tolerance,
    passed: Array,
) -> tuple[Array, Array]:
    """A `Status` for each entry of rows at a tie, by the slopes from both sides, and a mask of where these differ.

    Arguments as in `judge`, `ground` is that of these rows; `passed` marks entries that another numerical estimate
    finds right already.
    """
    low, high = np.fmin(left.value, right.value), np.fmax(left.value, right.value)
    size = np.maximum(magnitude(theoretical, left.value), magnitude(theoretical, right.value))
    allow = allowance(size, ground.raised(size), tolerance)  # slopes may be larger than the ground
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
    judged, clean, floor = comparison.count(*PASSED, Status.FAIL) > 0, comparison.clean, comparison.tolerance.floor
    if clean and (found := elementwise.farthest(theoretical, numerical, ground.by_column, GROUND, floor)) is not None:
        return found
    absolute, relative = 0.0, 0.0
    for rows in blocks(*theoretical.shape):
        with np.errstate(invalid="ignore", divide="ignore"):
            gap = theoretical[rows] - numerical[rows]
            np.abs(gap, out=gap)
            if not clean:
                status = comparison.status[rows]
                gap[~np.isin(status, (*PASSED, Status.FAIL)) if judged else status == Status.LEFT_OUT] = 0.0
                gap[np.isnan(gap) & (status == Status.FAIL)] = np.inf  # no number is as far away as NaN
            absolute = float(np.maximum(absolute, np.max(gap, initial=0.0)))
            size = magnitude(theoretical[rows], numerical[rows])
            largest = ground.at(rows)
            least = np.maximum(GROUND * largest, largest / floor)
            np.maximum(size, np.maximum(least, _LEAST), out=size)  # 0 / 0 counts as no error
            np.divide(gap, size, out=gap)
        relative = float(np.maximum(relative, np.max(gap, initial=0.0)))
    return absolute, relative


def apart(comparison: Comparison, v: Array, u: Array) -> float:
    """The sum of the differences of both sides, weighted by `(x_size,)` and `(y_size,)`."""
    total, cells = 0.0, comparison.cells
    for rows in blocks(*comparison.status.shape):
        gap = comparison.theoretical[rows] - comparison.numerical[rows]
        gap = np.abs(gap, out=gap)
        total += float(v[rows] @ (gap @ u if cells is None else np.sum(gap * u[cells.columns[rows]], axis=1)))
    return total


def worst(comparison: Comparison, count: int | None = None) -> list[tuple[int, int]]:
    """Row and column of the entries that did not simply pass: failures first, passed kinks last, then by error."""
    found = np.zeros((4, 0))  # columns, rows, errors with the largest first, ranks
    for some in () if comparison.clean else blocks(*comparison.status.shape):
        status = comparison.status[some]
        rows, columns = at = np.nonzero((status != Status.PASS) & (status != Status.LEFT_OUT))
        gap = np.abs(comparison.theoretical[some][at] - comparison.numerical[some][at])
        rank = np.where(status[at] == Status.FAIL, 0, np.where(status[at] == Status.KINK_OK, 2, 1))
        columns = columns if comparison.cells is None else comparison.cells.columns[some][at]
        keys = np.stack([columns, rows + some.start, -np.where(np.isfinite(gap), gap, np.inf), rank])
        found = np.concatenate([found, keys], axis=1)
        found = found[:, np.lexsort(found)[:count]]
    return [(int(row), int(column)) for column, row in found[:2].T]


def unseen(comparison: Comparison, rows: Array, places: Array) -> Array:
    """The size that an error of some entries must have to be detected for certain; infinite if none would be.

    `places` are columns, or numbers of cells of their rows.
    """
    theoretical, numerical = comparison.theoretical, comparison.numerical
    size = magnitude(theoretical[rows, places], numerical[rows, places])
    tol = 8 * comparison.noise[rows, places] + 64 * UNIT * size
    allow = allowance(size, _ground_at(comparison, rows, places), comparison.tolerance)
    measured = np.isin(comparison.status[rows, places], (*PASSED, Status.FAIL, Status.NOISE, Status.CURVATURE))
    return np.where(measured & np.isfinite(tol), allow + 2 * tol, np.inf)


def unseen_at(comparison: Comparison, row: int, column: int) -> float:
    """The same of one entry that is not zero by the structure of the model."""
    place = column if comparison.cells is None else comparison.cells.place(row, column)
    assert place is not None
    return float(unseen(comparison, np.asarray([row]), np.asarray([place]))[0])


def _ground_at(comparison: Comparison, rows: Array, places: Array) -> Array:
    columns = places if comparison.cells is None else comparison.cells.columns[rows, places]
    some, place = np.unique(columns, return_inverse=True)
    known = comparison.known if comparison.cells is None else comparison.ground
    if known is None:
        return largest_by_column(comparison.theoretical[:, some], comparison.numerical[:, some])[place]
    if known.effect is None:
        return known.largest[columns]
    part = Ground(known.largest[some], known.effect[some], known.scale)
    return np.asarray(
        [part.at(np.asarray([row]))[0, at] for row, at in zip(rows.tolist(), place.tolist(), strict=True)]
    )
