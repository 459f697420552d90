"""The ladder in longer numbers: what rounding of float64 leaves open, long doubles may see, with three digits more.

Rounding is measured as elsewhere, and not taken for granted: a kernel may pass through float64 somewhere inside.  So it
is also read off the values of y at points next to each other, by their differences of high order (Moré & Wild,
Estimating Computational Noise, 2011).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import cast

import numpy as np

from gradcheck_cli.graph import Array, is_inexact
from gradcheck_cli.jacobians.jacobian import Directions, beside, by_ladder, forward_noise, reals
from gradcheck_cli.jacobians.rows import Rows
from gradcheck_cli.program import Program
from gradcheck_cli.stack import Budget
from gradcheck_cli.stencil import ALL_RUNGS, Estimate
from gradcheck_cli.tape import Tape

_POINTS = 9  # in a row, at which noise is read off
_APART = (2.0**-44, 2.0**-34, 2.0**-24)  # of each other, in units of the scale of x: closer than that, or steps, show
_ORDERS = range(4, 7)  # of differences: lower ones may hold what is left of a slope
_SAFETY = 8.0
_LINES = 2  # random directions that noise is read off along


class Longer:
    """A program in long doubles."""

    def __init__(self, program: Program, budget: Budget) -> None:
        self.program, self.budget = copy.copy(program), budget
        self.program.tape = cast(Tape, _LongTape(program.tape))

    @staticmethod
    def possible() -> bool:
        """This machine has numbers longer than float64."""
        return float(np.finfo(np.longdouble).eps) < 1e-18

    def ladder(self, directions: Directions) -> Rows:
        """Rows by the whole ladder."""
        rows = by_ladder(self.program, directions, ALL_RUNGS, self.noise, self.budget)
        parts = (rows.estimate.value, rows.estimate.error, rows.estimate.rounding)
        return Rows(Estimate(*(np.asarray(part, np.float64) for part in parts)), rows.crossed)

    @cached_property
    def noise(self) -> Array:
        """Rounding error of one value of y, `(y_size,)`; infinite where a branch lies next to x."""
        seen = np.max([self._roughness_along(line, apart) for line in self._lines() for apart in _APART], axis=0)
        return np.asarray(np.maximum(_SAFETY * seen, forward_noise(self.program)), np.float64)

    def _lines(self) -> Iterator[Directions]:
        """Random directions, each as often as there are points on it."""
        here, rng = self.program.tape.values[self.program.probes[0]], np.random.default_rng(0)
        sizes = Directions(here, range(reals(here))).representable(1.0)
        for _ in range(_LINES):
            yield Directions(here, np.repeat([rng.choice([-1.0, 1.0], len(sizes)) * sizes], _POINTS, axis=0))

    def _roughness_along(self, line: Directions, apart: float) -> Array:
        offsets = apart * (np.arange(_POINTS) - _POINTS // 2)
        values, crossed, _ = beside(self.program, line, offsets, self.budget)
        return np.full(values.shape[1], np.inf) if crossed else roughness(values)


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


class _LongTape:
    """A tape whose values are long doubles; the rest is that of the tape."""

    def __init__(self, tape: Tape) -> None:
        self._tape, self.values = tape, _LongValues(tape.values)

    def __getattr__(self, name: str) -> object:
        return getattr(self._tape, name)


class _LongValues(Mapping[str, Array]):
    """Values of a tape, made longer when they are asked for."""

    def __init__(self, values: Mapping[str, Array]) -> None:
        self._short, self._long = values, dict[str, Array]()

    def __getitem__(self, name: str) -> Array:
        if name not in self._long:
            self._long[name] = _longer(self._short[name])
        return self._long[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._short)

    def __len__(self) -> int:
        return len(self._short)


def _longer(x: Array) -> Array:
    if not is_inexact(x.dtype):
        return x
    return x.astype(np.clongdouble if x.dtype.kind == "c" else np.longdouble)
