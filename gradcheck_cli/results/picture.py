"""The data that pictures are drawn from: plain and of bounded size, however many entries were compared.

A `Picture` of a whole Jacobian is that of its parts put together, so shards and points merge; it goes through JSON
and back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from math import ceil, prod, sqrt
from typing import Any, Literal, TypeAlias, cast, get_args

import numpy as np
from msgspec import structs

from gradcheck_cli.graph import Array
from gradcheck_cli.results.measures import Cells, Curve, Drawn
from gradcheck_cli.results.typed import Indices, Unfit, reader

Over: TypeAlias = Literal["both", "x", "y", "projections"]
SIDE = 256  # most cells of a tile along an axis
SMALL_SIDE = 64  # the same of one that goes into files
PANES = 16  # most images side by side
LOWEST, HIGHEST, PER_DECADE = -18, 2, 4  # log10 of the errors that a histogram tells apart
_LARGEST = 5000.0  # no severity is beyond
_CLASS = 1000.0  # more than the log10 of any floating-point number
_EXACT, _INFINITE = -400.0, 400.0  # stand for the log10 of an error of zero, and of one that is no number


class Standing(IntEnum):
    """The classes that verdicts fall into, the worst last."""

    PASS = 0
    KINK = 1  # beside the numerical side, but a slope that counts as right at a kink
    OPEN = 2
    FAIL = 3


def severity(standing: Array, error: Array) -> Array:
    """The badness of entries as one number: worse is larger, by standing first and by the size of the error second.

    A standing of -1, nothing was compared, is -inf.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        size = np.log10(error)
    bad = standing * _CLASS + np.clip(np.where(np.isnan(size), _INFINITE, size), _EXACT, _INFINITE)
    return np.where(standing < 0, -np.inf, bad)


def standing_of(cells: Array) -> Array:
    """The `Standing` of severities; -1 where nothing was compared."""
    return np.where(np.isfinite(cells), np.rint(cells / _CLASS), -1).astype(np.int8)


def size_of(cells: Array) -> Array:
    """log10 of the error of severities: -inf is exact or not compared, inf is not finite."""
    size = cells - np.rint(np.where(np.isfinite(cells), cells, 0) / _CLASS) * _CLASS
    return np.where(size <= _EXACT, -np.inf, np.where(size >= _INFINITE, np.inf, size))


def starts(size: int, cells: int) -> Array:
    """The start of each cell on an axis of this size: no cell is empty while there are no more cells than entries."""
    return -(-np.arange(cells) * size // max(cells, 1))


def binned(places: Array, size: int, cells: int) -> Array:
    """The cell that each place on an axis belongs to."""
    return np.searchsorted(starts(size, cells), places, side="right") - 1


def shrunk(values: Array, shape: Sequence[int]) -> Array:
    """Severities reduced to at most a shape: each cell is the worst of those it stands for."""
    for axis, cells in enumerate(shape):
        if values.shape[axis] > cells:
            values = np.maximum.reduceat(values, starts(values.shape[axis], cells), axis=axis)
    return values


@dataclass(frozen=True, slots=True)
class Tile:
    """The severity of every entry, reduced to a bounded number of cells: each is the worst of those it stands for.

    over   "both": (x_size, y_size); "x" for a scalar y, "y" for a scalar x: (images, height, width) of that tensor, its
           last two dimensions; "projections": of the Jacobian on random directions
    sizes  what the cells stand for, along each axis; cells  their severities, -inf where nothing was compared
    """

    over: Over
    sizes: tuple[int, ...]
    cells: Array

    @property
    def worst(self) -> float:
        """The severity of the worst entry."""
        return float(np.max(self.cells, initial=-np.inf))

    def merged(self, other: Tile) -> Tile:
        """The tile of both together; of different Jacobians the worse one."""
        if (self.over, self.sizes) != (other.over, other.sizes):
            return max(self, other, key=lambda tile: tile.worst)
        return replace(self, cells=np.maximum(self.cells, other.cells))

    @property
    def small(self) -> Tile:
        """The tile with so few cells that it may be kept for many checks."""
        images = len(self.cells) if len(self.sizes) == 3 else 1
        side = SMALL_SIDE // ceil(sqrt(images))
        return replace(self, cells=shrunk(self.cells, (*[images] * (len(self.sizes) == 3), side, side)))

    def as_json(self) -> dict[str, Any]:
        flat = [round(v, 2) if v > -np.inf else None for v in self.cells.reshape(-1).tolist()]
        return {"over": self.over, "sizes": list(self.sizes), "shape": list(self.cells.shape), "cells": flat}

    @classmethod
    def from_json(cls, saved: Cells) -> Tile:
        cells = np.asarray([-np.inf if v is None else v for v in saved["cells"]], np.float64)
        return cls(cast(Over, saved["over"]), saved["sizes"], cells.reshape(saved["shape"]))


@dataclass(frozen=True, slots=True)
class Histogram:
    """The number of entries with an error of each size, by `Standing`: `(4, slots)`.

    The first slot is for errors below `10^LOWEST`, zero included, the last for those from `10^HIGHEST` on.
    """

    counts: Array

    SLOTS = (HIGHEST - LOWEST) * PER_DECADE + 2

    @classmethod
    def of(cls, standing: Array, error: Array) -> Histogram:
        """The histogram of some entries, without those whose standing is none (-1)."""
        known = standing >= 0
        standing, error = standing[known], error[known]
        size = size_of(severity(np.zeros(1), error))
        place = np.clip(np.floor((size - LOWEST) * PER_DECADE) + 1, 0, cls.SLOTS - 1)
        slot = place.astype(np.int64) + cls.SLOTS * standing.astype(np.int64)
        every = len(Standing)
        return cls(np.bincount(slot, minlength=every * cls.SLOTS).reshape(every, cls.SLOTS))

    def merged(self, other: Histogram) -> Histogram:
        """Both together."""
        return Histogram(self.counts + other.counts)


@dataclass(frozen=True, slots=True)
class Picture:
    """All that pictures of a pair (x, y) need: errors by place and by size, noise by size, one entry's V curve."""

    tile: Tile
    errors: Histogram
    noise: Histogram
    curve: Curve | None = None

    def merged(self, other: Picture) -> Picture:
        """The picture of both parts, or points, together; the curve is that of the worse entry."""
        curves = [c for c in (self.curve, other.curve) if c is not None]
        return Picture(
            self.tile.merged(other.tile),
            self.errors.merged(other.errors),
            self.noise.merged(other.noise),
            max(curves, key=lambda curve: curve.severity, default=None),
        )

    @property
    def small(self) -> Picture:
        """The picture in some kilobytes, so that it may be kept for many checks."""
        return replace(self, tile=self.tile.small)

    def as_json(self) -> dict[str, Any]:
        """The picture as JSON, in which numbers may still be nan or inf."""
        return {
            "tile": self.tile.as_json(),
            "errors": self.errors.counts.tolist(),
            "noise": self.noise.counts.tolist(),
            "curve": None if self.curve is None else structs.asdict(self.curve),
        }

    @classmethod
    def from_json(cls, saved: Any) -> Picture:
        """The inverse of `as_json`, through strict JSON or not; Unfit for what no picture was made of."""
        drawn: Drawn = reader(Drawn)(saved)
        tile, curve = drawn["tile"], drawn["curve"]
        even = curve is None or len(curve.steps) == len(curve.errors) == len(curve.crossed)
        if not (even and _holds(tile) and _counts(drawn["errors"]) and _counts(drawn["noise"])):
            raise Unfit("holds a picture whose parts do not fit together")
        errors, noise = (Histogram(np.asarray(counts, np.int64)) for counts in (drawn["errors"], drawn["noise"]))
        return cls(Tile.from_json(tile), errors, noise, curve)


def _holds(tile: Cells) -> bool:
    """True if there are as many cells as their shape says, and each stands for some entries."""
    shape, cells = tile["shape"], tile["cells"]
    sides = (PANES, SIDE, SIDE) if len(shape) == 3 else (SIDE, SIDE)
    fits = len(shape) == len(tile["sizes"]) == len(sides) and prod(shape) == len(cells)
    inside = fits and all(1 <= n <= min(most, size) for n, most, size in zip(shape, sides, tile["sizes"], strict=True))
    return inside and tile["over"] in get_args(Over) and all(v is None or abs(v) <= _LARGEST for v in cells)


def _counts(rows: tuple[Indices, ...]) -> bool:
    """True if there is a row for each standing, with a number of entries for each slot."""
    fits = len(rows) == len(Standing) and all(len(row) == Histogram.SLOTS for row in rows)
    return fits and all(0 <= number < 1 << 60 for row in rows for number in row)
