"""The ladder in longer numbers: what rounding of float64 leaves open, long doubles may see, with three digits more.

Rounding is measured as elsewhere, and not taken for granted: a kernel may pass through float64 somewhere inside.  So it
is also read off the values of y at points next to each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import cast

import numpy as np

from gradcheck_cli.graph import Array, is_inexact
from gradcheck_cli.jacobians.directions import Directions
from gradcheck_cli.jacobians.jacobian import by_ladder, forward_noise
from gradcheck_cli.jacobians.roughness import noise_beside
from gradcheck_cli.jacobians.rows import Rows
from gradcheck_cli.op import Op
from gradcheck_cli.program import Program
from gradcheck_cli.stack import Budget
from gradcheck_cli.stencil import ALL_RUNGS, Estimate
from gradcheck_cli.tape import Tape

_APART = (2.0**-44, 2.0**-34, 2.0**-24)  # of each other, in units of the scale of x: closer than that, or steps, show
_SAFETY = 8.0


class Longer:
    """A program in long doubles."""

    def __init__(self, program: Program, budget: Budget) -> None:
        self.program, self.budget = program.upon(cast(Tape, _LongTape(program.tape))), budget

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
        seen = noise_beside(self.program, _APART, self.budget)
        return np.asarray(np.maximum(_SAFETY * seen, forward_noise(self.program)), np.float64)


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

    def like(self, name: str) -> Array:
        return self[name]

    def operand(self, op: Op, name: str) -> Array:
        return self[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._short)

    def __len__(self) -> int:
        return len(self._short)


def _longer(x: Array) -> Array:
    if not is_inexact(x.dtype):
        return x
    return x.astype(np.clongdouble if x.dtype.kind == "c" else np.longdouble)
