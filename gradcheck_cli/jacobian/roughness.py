"""Rounding noise of y, read off its values at points next to each other, by their differences of high order.

(Moré & Wild, Estimating Computational Noise, 2011.)  A sum of many terms rounds at each of them: that shows here, and
not where results are moved by roundings of their own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from ml_dtypes import bfloat16

from gradcheck_cli.engine.chunks import Budget
from gradcheck_cli.engine.program import Program
from gradcheck_cli.graph import Array
from gradcheck_cli.jacobian.directions import Directions, reals
from gradcheck_cli.jacobian.jacobian import each_beside
from gradcheck_cli.verdict.rule import epsilon

_POINTS = 9  # in a row, at which noise is read off
_ORDERS = range(4, 7)  # of differences: lower ones may hold what is left of a slope
_LEVELS = 4  # values that y has at these points, at least, where noise is heard
_ALIKE = 4.0  # times as large: what differences of several orders say of noise, at most
_SMALL = 2.0**-6  # of y: what is larger is no rounding
_LINES = 2  # random directions that noise is read off along


def noise_beside(program: Program, spacings: Sequence[float], budget: Budget) -> Array:
    """The noise of y `(y_size,)` around x, the largest of all lines; infinite where a branch lies next to x.

    spacings  from one point to the next, in units of the scale of x
    """
    moves = [(line, apart * (np.arange(_POINTS) - _POINTS // 2)) for line in lines(program) for apart in spacings]
    seen = each_beside(program, moves, budget)
    return np.max([np.full(y.shape[1], np.inf) if crossed else roughness(y) for y, crossed, _ in seen], axis=0)


def heard(program: Program, spacings: Sequence[float] | Array, budget: Budget) -> Array:
    """The noise of y `(y_size,)` of a kernel of which nothing is known; `spacings` in units of x, each 16 times the last.

    Noise is as loud at one spacing as at the next, from that on at which y changes from point to point; where it is not,
    or differences shrink with their order, it is the function that is seen.  Values that are those of a shorter number
    format round as it does.
    """
    found = np.zeros(reals(program.tape.values[program.outputs[0]]))
    for line in lines(program):
        moves = [(line, apart * (np.arange(_POINTS) - _POINTS // 2)) for apart in spacings]
        last = np.zeros(len(found))
        for y, crossed, _ in each_beside(program, moves, budget):
            known = not crossed and bool(np.isfinite(y).all())
            here = _noisy(y) if known else np.zeros(len(found))
            alike = (here <= _ALIKE * last) & (last <= _ALIKE * here)
            found = np.maximum(found, np.where(alike, np.maximum(here, last), 0.0))
            found = np.maximum(found, _short(y) if known else 0.0)
            last = here
    return found


def _noisy(values: Array) -> Array:
    """The noise in values `(points, columns)` where it is noise that is seen, else zero, `(columns,)`."""
    sizes = np.stack([_size(values, order) for order in _ORDERS])
    least, most = np.min(sizes, axis=0), np.max(sizes, axis=0)
    noise = (_levels(values) >= _LEVELS) & (most <= _ALIKE * least) & (most <= _SMALL * np.max(np.abs(values), axis=0))
    return np.where(noise, most, 0.0)


def _short(values: Array) -> Array:
    """One rounding of a shorter number format, where all values `(points, columns)` are numbers of it, `(columns,)`."""
    found, moving = np.zeros(values.shape[1]), _levels(values) >= _LEVELS
    for dtype in (np.dtype(np.float32), np.dtype(np.float16), np.dtype(bfloat16)):
        with np.errstate(over="ignore"):
            exact = moving & (values.astype(dtype).astype(values.dtype) == values).all(axis=0)
        found = np.where(exact, epsilon(dtype) / 2 * np.max(np.abs(values), axis=0), found)
    return found


def _levels(values: Array) -> Array:
    """Number of different values in each column."""
    return np.asarray(1 + np.count_nonzero(np.diff(np.sort(values, axis=0), axis=0), axis=0))


def _size(values: Array, order: int) -> Array:
    """The size that noise must have to make the differences of some order."""
    differences = np.diff(values, n=order, axis=0)
    gain = math.sqrt(math.factorial(2 * order)) / math.factorial(order)
    return np.asarray(np.sqrt(np.mean(differences * differences, axis=0)) / gain)


def roughness(values: Array) -> Array:
    """The noise in values `(points, columns)` of a smooth function at points next to each other, `(columns,)`.

    A difference of order k of noise of size s has the size s * sqrt((2k)! / k!^2).
    """
    return np.asarray(np.max([_size(values, order) for order in _ORDERS], axis=0))


def lines(program: Program) -> list[Directions]:
    """Random directions, each as often as there are points on it."""
    here, rng = program.tape.values[program.probes[0]], np.random.default_rng(0)
    sizes = Directions(here, range(reals(here))).representable(1.0)
    return [
        Directions(here, np.broadcast_to(rng.choice([-1.0, 1.0], len(sizes)) * sizes, (_POINTS, len(sizes))))
        for _ in range(_LINES)
    ]
