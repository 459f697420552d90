"""Rounding noise of y, read off its values at points next to each other, by their differences of high order.

(Moré & Wild, Estimating Computational Noise, 2011.)  A sum of many terms rounds at each of them: that shows here, and
not where results are moved by roundings of their own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from gradcheck_cli.graph import Array
from gradcheck_cli.jacobians.directions import Directions, reals
from gradcheck_cli.jacobians.jacobian import each_beside
from gradcheck_cli.program import Program
from gradcheck_cli.stack import Budget

_POINTS = 9  # in a row, at which noise is read off
_ORDERS = range(4, 7)  # of differences: lower ones may hold what is left of a slope
_LINES = 2  # random directions that noise is read off along


def noise_beside(program: Program, spacings: Sequence[float], budget: Budget) -> Array:
    """The noise of y `(y_size,)` around x, the largest of all lines; infinite where a branch lies next to x.

    spacings  from one point to the next, in units of the scale of x
    """
    moves = [(line, apart * (np.arange(_POINTS) - _POINTS // 2)) for line in lines(program) for apart in spacings]
    seen = each_beside(program, moves, budget)
    return np.max([np.full(y.shape[1], np.inf) if crossed else roughness(y) for y, crossed, _ in seen], axis=0)


def roughness(values: Array) -> Array:
    """The noise in values `(points, columns)` of a smooth function at points next to each other, `(columns,)`.

    A difference of order k of noise of size s has the size s * sqrt((2k)! / k!^2).
    """
    sizes = []
    for order in _ORDERS:
        differences = np.diff(values, n=order, axis=0)
        gain = math.sqrt(math.factorial(2 * order)) / math.factorial(order)
        sizes.append(np.sqrt(np.mean(differences * differences, axis=0)) / gain)
    return np.asarray(np.max(sizes, axis=0))


def lines(program: Program) -> list[Directions]:
    """Random directions, each as often as there are points on it."""
    here, rng = program.tape.values[program.probes[0]], np.random.default_rng(0)
    sizes = Directions(here, range(reals(here))).representable(1.0)
    return [
        Directions(here, np.broadcast_to(rng.choice([-1.0, 1.0], len(sizes)) * sizes, (_POINTS, len(sizes))))
        for _ in range(_LINES)
    ]
