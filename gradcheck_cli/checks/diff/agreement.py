"""Two tensors held against each other, entry by entry: what differs, and by how much."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from gradcheck_cli.graph import Array, is_inexact
from gradcheck_cli.points.test_data import gaps, wide
from gradcheck_cli.results.record import Entry
from gradcheck_cli.verdict.rule import ground_of, magnitude, pattern

KEPT = 1000  # worst entries of a record
MEASURED = 8  # times what rounding was measured to do


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Differences that do not matter: relative to an entry or a tenth of its row's ground, and absolute."""

    rtol: float
    atol: float = 0.0


@dataclass(frozen=True, slots=True)
class Place:
    """What rows and entries stand for: shapes of x and of y, as far as they index these, and which are complex."""

    x: tuple[int, ...] | None = None
    y: tuple[int, ...] | None = None
    complex_x: bool = False
    complex_y: bool = False


@dataclass(frozen=True, slots=True)
class Counted:
    """What a record needs of a comparison: it is small however many entries there were."""

    entries: int
    open: int  # finite on neither side
    failed: int
    errors: tuple[float, float]  # the largest, absolute and relative
    needed: tuple[float, float]  # the rtol alone, and the atol alone, with which all would pass
    noise: float  # the largest error that rounding explains
    worst: tuple[Entry, ...]


@dataclass(frozen=True)
class Compared:
    """Rows of A against rows of B, `(rows, entries)`: an output is one row, a derivative has one for each cotangent.

    `noise` is how far an entry of A moves when A's numbers do, by as much as B may have lost of them, 0 while that is
    not measured.
    """

    a: Array
    b: Array
    tolerance: Tolerance
    place: Place = Place()
    noise: Array | float = 0.0
    scale: Array | None = None  # of derivatives: the sizes of x, `(entries,)`

    @cached_property
    def gap(self) -> Array:
        """How far entries are apart."""
        return gaps(self.a, self.b)

    @cached_property
    def size(self) -> Array:
        """What an error is relative to: the larger of both, or a tenth of what entries of its row are small beside."""
        size = magnitude(self.a, self.b)
        ground = ground_of(size.T, size.T, self.scale).at()
        return np.asarray(np.maximum(size, np.atleast_2d(ground.T).reshape(len(size), -1) / 10))

    @cached_property
    def failed(self) -> Array:
        """Entries that differ."""
        allowed = self.tolerance.rtol * self.size + self.tolerance.atol + MEASURED * self.noise
        return np.asarray(self.gap > allowed)

    @property
    def error(self) -> float:
        """The largest relative error."""
        return _largest(self._relative)

    def counted(self, point: int) -> Counted:
        """What is kept of it."""
        failed = self.failed & np.isfinite(self.gap)
        return Counted(
            entries=self.gap.size,
            open=int((~np.isfinite(self.a) & ~np.isfinite(self.b)).sum()),
            failed=int(self.failed.sum()),
            errors=(_largest(self.gap), self.error),
            needed=(_largest(self._relative[failed]), _largest(self.gap[failed])),
            noise=MEASURED * float(np.max(self.noise, initial=0.0)),
            worst=self._worst(point),
        )

    def _worst(self, point: int) -> tuple[Entry, ...]:
        """The entries that differ most."""
        rows, columns = np.nonzero(self.failed)
        order = np.argsort(-self.gap[rows, columns], kind="stable")[:KEPT]
        return tuple(self._entry(int(rows[i]), int(columns[i]), point) for i in order)

    @property
    def _relative(self) -> Array:
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(self.gap == 0, 0.0, self.gap / self.size)

    def _entry(self, row: int, column: int, point: int) -> Entry:
        a, b = float(self.a[row, column]), float(self.b[row, column])
        x, y = self.place.x, self.place.y
        at_x, at_y = (_index(column, x), _index(row, y)) if x is not None else ((), _index(column, y))
        noise = MEASURED * float(np.broadcast_to(self.noise, self.a.shape)[row, column])
        return Entry(
            at_x, at_y, point, a, b, noise, pattern(b, a, (*(x or ()), *(y or ()))), part=self._part(row, column)
        )

    def _part(self, row: int, column: int) -> str:
        """Which part of complex numbers it is."""
        place, rows_y = self.place, self.place.x is not None
        parts = [("x", column, self.a.shape[1])] if place.complex_x else []
        parts += [("y", row, len(self.a)) if rows_y else ("y", column, self.a.shape[1])] if place.complex_y else []
        return ", ".join(f"{'im' if 2 * at >= size else 're'} {name}" for name, at, size in parts)


def of_values(a: Array, b: Array, tolerance: Tolerance) -> Compared:
    """Two outputs of one shape; those that are no floats must be the same."""
    place = Place(y=a.shape, complex_y=a.dtype.kind == "c")
    if is_inexact(a.dtype) and is_inexact(b.dtype):
        return Compared(row_of(a), row_of(b), tolerance, place)
    if a.dtype == object or b.dtype == object:
        other = np.asarray(a.astype(str) != b.astype(str)).reshape(1, -1)
        return Compared(np.zeros(other.shape), other.astype(float), Tolerance(0.0), place)
    here, there, same = row_of(a), row_of(b), (a == b).reshape(1, -1)
    there = np.where((here == there) & ~same, np.nextafter(there, np.inf), there)  # integers beyond 2^53
    return Compared(here, there, Tolerance(0.0), place)


def row_of(value: Array) -> Array:
    """A tensor as one row of reals."""
    flat = wide(value).reshape(1, -1)
    return np.concatenate([flat.real, flat.imag], axis=1) if flat.dtype.kind == "c" else flat


def spread(a: Array, others: Iterable[tuple[Array, bool]]) -> Array:
    """How far rows move in other runs, each of which comes with whether it took every branch alike.

    A few runs do not move every entry by all that it may move: it counts as moving by what is usual in its row at least,
    and, where other branches may be taken, by as much as the one that moves most.
    """
    found = np.zeros(a.shape)
    for other, alike in others:
        if other.shape == a.shape:
            gap = gaps(a, other)
            gap = np.where(np.isfinite(gap), gap, 0.0)
            usual = np.sqrt(np.mean(gap * gap, axis=1, keepdims=True)) if gap.size else gap
            found = np.maximum(
                found, np.maximum(gap, usual if alike else np.max(gap, axis=1, keepdims=True, initial=0.0))
            )
    return found


def _index(position: int, shape: tuple[int, ...] | None) -> tuple[int, ...]:
    size = int(np.prod(shape or ()))
    return tuple(int(i) for i in np.unravel_index(position % size, shape)) if shape and size else ()


def _largest(values: Array) -> float:
    return float(np.max(values, initial=0.0))
