"""Data for the pictures of a comparison, made while its tape and values are still in memory.

The V curve shows the error of central differences of one entry over the step size h: truncation grows like h^2,
rounding like 1/h, and a wrong gradient appears as a distance that no step size explains.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil, isfinite, prod, sqrt
from typing import NamedTuple

import numpy as np

from gradcheck_cli.compare.counts import PairResult, entry_at
from gradcheck_cli.engine.chunks import Budget, any_of
from gradcheck_cli.engine.program import Program
from gradcheck_cli.graph import Array
from gradcheck_cli.jacobian.cost import forward_work
from gradcheck_cli.jacobian.directions import Directions, reals
from gradcheck_cli.jacobian.jacobian import by_complex_step, by_differences, by_ladder, forward_noise
from gradcheck_cli.results.measures import Curve
from gradcheck_cli.results.picture import PANES, SIDE, Histogram, Over, Picture, Standing, Tile, binned, severity
from gradcheck_cli.verdict.differences import ALL_RUNGS, CENTRAL, representable, rms
from gradcheck_cli.verdict.rule import (
    GROUND,
    Comparison,
    Ground,
    Status,
    Tolerance,
    allowance,
    blocks,
    magnitude,
    worst,
)

COARSEST, FINEST = -1.0, -14.0  # log10 of the steps, in units of the entry, or of what is typical of x if larger
_PER_DECADE, _LEAST_PER_DECADE = 4, 1
_WORK = 2e10  # operations that a curve may take: a second or so
_KEPT = 1 << 22  # values of y in memory at once
_HELD = 64  # bytes that each of them takes, with both sides of a difference and copies of them
_CLEAR = 20.0  # an error above this many times its rounding is truncation
_FITTED, _LEAST_FITTED = 6, 3  # number of steps to which the order of truncation is fitted, and the least
_OF = {Status.PASS: Standing.PASS, Status.KINK_OK: Standing.KINK, Status.FAIL: Standing.FAIL, Status.LEFT_OUT: -1}
_STANDING = np.asarray([_OF.get(status, Standing.OPEN) for status in Status])
_SAME = 1e-12  # relative errors below this count as none


def sketch(result: PairResult, program: Program, tolerance: Tolerance, budget: Budget) -> Picture:
    """The picture of one comparison, with a V curve of its worst entry."""
    comparison = result.comparison
    ground = comparison.ground.everywhere()
    picture, place = seen(result, ground)
    return replace(picture, curve=_curve(result, program, tolerance, budget, place, ground))


def seen(result: PairResult, ground: Ground) -> tuple[Picture, tuple[int, int]]:
    """A picture without V curve, and row and column of the entry for which to draw one.

    For a part of a Jacobian `ground` is that of the whole one; then pictures of all parts merge into that of the whole.
    """
    comparison = result.comparison
    over, sizes = layout(result)
    shape = _shape(sizes)
    cells = np.full(prod(shape), -np.inf)
    by_row, by_column = _cells_of(result, over, sizes, shape)
    errors = noise = Histogram(np.zeros((len(Standing), Histogram.SLOTS), np.int64))
    passing = Place(-1.0, -1.0, 0, 0)
    for piece in _pieces(comparison, ground):
        np.maximum.at(cells, by_row[piece.rows, None] + by_column, severity(piece.standing, piece.error))
        errors = errors.merged(Histogram.of(piece.standing, piece.error))
        noise = noise.merged(Histogram.of(piece.standing, piece.noise))
        passing = max(passing, _worth_a_look(piece))
    found = worst(comparison, 1) or [(passing.row, passing.column)]
    return Picture(Tile(over, sizes, cells.reshape(shape)), errors, noise), found[0]


class Sized(NamedTuple):
    """Some rows of a comparison: standing, and error and its bound relative to the magnitude."""

    rows: slice
    standing: Array
    error: Array
    noise: Array
    size: Array


class Place(NamedTuple):
    """An entry, ordered by its error, then by its size."""

    error: float
    size: float
    row: int
    column: int


def layout(result: PairResult) -> tuple[Over, tuple[int, ...]]:
    """The meaning of a tile's cells, and their number along each axis."""
    if result.projected:
        return "projections", result.comparison.shape
    rows, columns = reals(result.x), reals(result.y)
    if columns == 1 < rows:
        return "x", _images(result.x)
    if rows == 1 < columns:
        return "y", _images(result.y)
    return "both", (rows, columns)


def _images(x: Array) -> tuple[int, int, int]:
    """Sizes of a tensor as images of its last two dimensions, real parts before imaginary ones."""
    sizes: tuple[int, ...] = (1, 1, *x.shape)
    return prod(sizes[:-2]) * (2 if x.dtype.kind == "c" else 1), sizes[-2], sizes[-1]


def _shape(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Shape of a tile, which is bounded: with more images each becomes smaller."""
    side = SIDE // ceil(sqrt(min(sizes[0], PANES))) if len(sizes) == 3 else SIDE
    most = (PANES, side, side) if len(sizes) == 3 else (SIDE, SIDE)
    return tuple(map(min, sizes, most))


def _cells_of(result: PairResult, over: Over, sizes: tuple[int, ...], shape: tuple[int, ...]) -> tuple[Array, Array]:
    """A number for each row and for each column of a comparison; their sum is the cell of an entry."""
    rows, columns = (np.arange(size) for size in result.comparison.shape)
    rows = rows + result.first
    if result.drawn and result.directions is not None and result.weights is not None:
        rows, columns = result.directions.rows, np.argmax(result.weights, axis=1)
    if len(sizes) == 2:
        return binned(rows, sizes[0], shape[0]) * shape[1], binned(columns, sizes[1], shape[1])
    places = np.unravel_index(rows if over == "x" else columns, sizes)
    at = np.ravel_multi_index(tuple(map(binned, places, sizes, shape)), shape)
    return (at, np.zeros(1, np.int64)) if over == "x" else (np.zeros(1, np.int64), at)


def _pieces(comparison: Comparison, ground: Ground) -> Iterator[Sized]:
    """All rows of a comparison, some at a time; relative errors as in the record."""
    for rows in blocks(*comparison.shape):
        part = comparison.rows(rows)
        size = magnitude(part.theoretical, part.numerical)
        least = np.maximum(size, GROUND * ground.at(rows))
        gaps = np.abs(part.theoretical - part.numerical), part.noise
        error, noise = (np.where(gap == 0, 0.0, gap / least) for gap in gaps)
        yield Sized(rows, _STANDING[part.status], error, noise, size)


def _worth_a_look(piece: Sized) -> Place:
    """The entry with the largest error, or the largest entry if all errors are negligible."""
    error = np.where(piece.standing < 0, -1.0, np.fmax(piece.error, _SAME))
    at = int(np.argmax(np.where(error == error.max(), piece.size, -1.0)))
    row, column = divmod(at, piece.size.shape[1])
    return Place(float(error[row, column]), float(piece.size[row, column]), piece.rows.start + row, column)


def _curve(
    result: PairResult, program: Program, tolerance: Tolerance, budget: Budget, at: tuple[int, int], ground: Ground
) -> Curve | None:
    """The V curve of an entry; None if it has no finite derivative, or differences are not finite."""
    entry, (row, column) = entry_at(result, *at), at
    if result.directions is None:
        return None
    largest = np.broadcast_to(ground.at(np.asarray([row])), (1, len(ground.largest)))[0]
    weights = np.eye(1, len(largest), column)[0] if result.weights is None else result.weights[column]
    along = result.directions.part(np.asarray([row]))
    reference, doubt = derivative(program, along, weights, budget)
    if not isfinite(reference):
        return None
    swept = sweep(program, along, weights, budget)
    errors, delta = np.abs(swept.quotients - reference), rounding(program, weights)
    if not np.isfinite(errors).any():
        return None
    size = magnitude(np.asarray(entry.theoretical), np.asarray(reference))
    gap = np.abs(entry.theoretical - reference) / max(float(size), GROUND * largest[column])
    standing = _STANDING[result.comparison.at(row, column).status]
    return Curve(
        x=() if result.projected else entry.x,
        y=() if result.projected else entry.y,
        part="" if result.projected else entry.part,
        point=result.point,
        severity=float(severity(standing, np.asarray(gap))),
        theoretical=entry.theoretical,
        reference=reference,
        doubt=doubt,
        allowed=float(allowance(size, largest[column], tolerance)),
        steps=tuple(swept.steps.tolist()),
        errors=tuple(errors.tolist()),
        crossed=tuple(swept.crossed.tolist()),
        rounding=delta,
        truncation=truncation(swept.steps, errors, swept.crossed, delta),
    )


def derivative(program: Program, direction: Directions, weights: Array, budget: Budget) -> tuple[float, float]:
    """The reference of a V curve and a bound of its error, by a method without a step size to choose."""
    if program.obstacle is None:
        value = float((by_complex_step(program, direction, budget) @ weights)[0])
        return value, 4 * float(np.finfo(float).eps) * abs(value)
    estimate = by_ladder(program, direction, ALL_RUNGS, forward_noise(program), budget).estimate
    # an entry without weight may have an infinite bound
    error = np.where(weights == 0, 0.0, np.abs(weights) * estimate.error)
    return float((estimate.value @ weights)[0]), float(error.sum())


@dataclass(frozen=True, slots=True)
class Swept:
    """Central differences of one entry: steps from coarse to fine, quotients, and which of them crossed a branch."""

    steps: Array
    quotients: Array
    crossed: Array


def sweep(program: Program, direction: Directions, weights: Array, budget: Budget) -> Swept:
    """Central differences of a weighted sum of y along one direction of x, for steps from coarse to fine.

    The number of steps per decade depends on the cost of a run.
    """
    steps = _steps(program, direction)
    size = max(1, min(_KEPT, budget.memory // _HELD) // max(len(weights), 1))
    parts = [_quotients(program, direction, steps[i : i + size], weights, budget) for i in range(0, len(steps), size)]
    quotients, crossed = (np.concatenate(each) for each in zip(*parts, strict=True))
    return Swept(steps, quotients, crossed)


def _steps(program: Program, direction: Directions) -> Array:
    """Representable steps, coarse to fine."""
    decades = COARSEST - FINEST
    affordable = _WORK / (2 * decades * forward_work(program))
    count = int(decades * np.clip(affordable, _LEAST_PER_DECADE, _PER_DECADE)) + 1
    scale = np.fmax(direction.representable(1.0), rms(direction.here))
    steps = scale * np.logspace(COARSEST, FINEST, count)
    if direction.single:
        steps = representable(direction.here[direction.rows], steps)
    return np.asarray(steps[steps > 0])


def _quotients(
    program: Program, direction: Directions, steps: Array, weights: Array, budget: Budget
) -> tuple[Array, Array]:
    same = direction.part(np.zeros(len(steps), np.int64))
    [(values, crossed)] = by_differences(program, same, CENTRAL, [steps], budget)
    return values @ weights, any_of(crossed, len(steps))


def rounding(program: Program, weights: Array) -> float:
    """Rounding error of one value of a weighted sum of y."""
    return float(np.abs(weights) @ forward_noise(program))


def truncation(steps: Array, errors: Array, crossed: Array, delta: float) -> tuple[float, float] | None:
    """(c, p) such that the errors of large steps are about c h^p, fitted to the finest ones above rounding."""
    clear = np.isfinite(errors) & ~crossed & (errors > _CLEAR * delta / steps)
    first = int(np.argmax(clear))
    end = first + int(np.argmin(np.append(clear[first:], False)))
    fitted = slice(max(first, end - _FITTED), end)
    if end - first < _LEAST_FITTED:
        return None
    order, constant = np.polyfit(np.log(steps[fitted]), np.log(errors[fitted]), 1)
    return (float(np.exp(constant)), float(order)) if order > 0 else None
