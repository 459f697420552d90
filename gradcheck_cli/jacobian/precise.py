"""Numerical derivatives where rounding of float64 hides them: noise that is measured, long doubles, larger steps.

Noise of y is read off its values at points next to each other, by their differences of high order (Moré & Wild,
Estimating Computational Noise, 2011).  A sum of many terms rounds at each of them: that shows here, and not where
results are moved by roundings of their own.  Of long doubles it is measured too, and not taken for granted: a kernel
may pass through float64 somewhere inside.

Steps go by the size of an entry of x, so that no function of it is left behind; where they are small, rounding hides
what there is to see.  Steps by the size of the whole tensor may see it, if the small ones, as far as they see, agree.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import cast

import numpy as np
from ml_dtypes import bfloat16

from gradcheck_cli.autodiff.tape import Tape
from gradcheck_cli.engine.chunks import Budget, in_chunks
from gradcheck_cli.engine.program import Program
from gradcheck_cli.engine.rounding import RandomRounding
from gradcheck_cli.graph import Array, is_inexact
from gradcheck_cli.jacobian.directions import Directions, reals
from gradcheck_cli.jacobian.jacobian import (
    Backward,
    Rows,
    by_complex_step,
    by_ladder,
    by_steps,
    derivatives,
    each_beside,
    forward_noise,
)
from gradcheck_cli.op import Op
from gradcheck_cli.verdict.differences import ALL_RUNGS, CHEAP_RUNGS, Estimate, rms, rung, scales
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
    return np.max([np.full(y.shape[1], np.inf) if decisions.crossed else roughness(y) for y, decisions in seen], axis=0)


def heard(program: Program, spacings: Sequence[float] | Array, budget: Budget) -> Array:
    """The noise of y `(y_size,)` of a kernel of which nothing is known; `spacings` in units of x, each 16 times the last.

    Noise is as loud at one spacing as at the next, from that on at which y changes from point to point; where it is not,
    or differences shrink with their order, it is the function that is seen.  Values that are those of a shorter number
    format round as it does.
    """
    found = np.zeros(reals(program.y))
    for line in lines(program):
        moves = [(line, apart * (np.arange(_POINTS) - _POINTS // 2)) for apart in spacings]
        last = np.zeros(len(found))
        for y, decisions in each_beside(program, moves, budget):
            known = not decisions.crossed and bool(np.isfinite(y).all())
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
    here, rng = program.x, np.random.default_rng(0)
    sizes = Directions(here, range(reals(here))).representable(1.0)
    return [
        Directions(here, np.broadcast_to(rng.choice([-1.0, 1.0], len(sizes)) * sizes, (_POINTS, len(sizes))))
        for _ in range(_LINES)
    ]


_APART = (2.0**-44, 2.0**-34, 2.0**-24)  # of each other, in units of the scale of x: closer than that, or steps, show
_SAFETY = 8.0


class Longer:
    """A program in long doubles."""

    def __init__(self, program: Program, budget: Budget) -> None:
        self.program, self.budget = program.upon(cast(Tape, _LongTape(program.tape))), budget

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


class Both:
    """Derivatives of y by x in long doubles from either side: all that depends on x is computed once more."""

    def __init__(self, backward: Backward, x: str, budget: Budget) -> None:
        self.backward, self.x, self.budget = backward, x, budget
        self.ct = backward.cts[backward.xs.index(x)]
        self._tape = cast(Tape, _LongTape(tape := backward.tape))
        made = (n for step in tape.steps for n in step.node.outputs if n in tape.values)
        floats = [n for n in made if is_inexact(tape.values.like(n).dtype)]
        moving = Program(tape, [x], floats).reached
        names = [n for n in floats if n in moving]
        outputs = Program(tape, [x], names).upon(self._tape).run({x: self._tape.values[x][None]}).outputs
        cast(_LongValues, self._tape.values).known(dict(zip(names, (y[0] for y in outputs), strict=True)))

    def by_rules(self, directions: Directions, weights: Array, rounding: int | None = None) -> Array:
        """Derivatives of weighted sums of y along directions of x, `(rows, len(weights))`."""
        found = np.zeros((directions.count, len(weights)))
        if self.ct is None:
            return found
        program = Program(self.backward.tape, [self.backward.seed.name], [self.ct.name]).upon(self._tape)

        def run(piece: range) -> Array:
            random = None if rounding is None else RandomRounding.seeded(rounding)
            seeds = _longer(self.backward.cotangents(weights[piece.start : piece.stop]))
            [made] = program.run({self.backward.seed.name: seeds}, rounding=random).outputs
            return directions.slopes(derivatives(made)).T

        for piece, slopes in in_chunks(run, len(weights), 2 * program.bytes_per_probe(), self.budget):
            found[:, piece.start : piece.stop] = slopes()
        return found

    def by_kernels(self, program: Program, directions: Directions, rounding: int | None = None) -> Array:
        """Derivatives of y along directions of x, `(rows, y_size)`, by the complex step."""
        return by_complex_step(program.upon(self._tape), directions, self.budget, rounding)


class _LongTape:
    """A tape whose values are long doubles; the rest is that of the tape."""

    def __init__(self, tape: Tape) -> None:
        self._tape, self.values = tape, _LongValues(tape.values)

    def __getattr__(self, name: str) -> object:
        return getattr(self._tape, name)


class _LongValues(Mapping[str, Array]):
    """Values of a tape, made longer when they are asked for."""

    recipes: Mapping[str, object] = MappingProxyType({})  # none of them is widened when it is read

    def __init__(self, values: Mapping[str, Array]) -> None:
        self._short, self._long = values, dict[str, Array]()

    def __getitem__(self, name: str) -> Array:
        if name not in self._long:
            self._long[name] = _longer(self._short[name])
        return self._long[name]

    def known(self, values: Mapping[str, Array]) -> None:
        """Take values that were computed in long doubles, or by a kernel that knows none, made longer."""
        self._long.update({name: _longer(value) for name, value in values.items()})

    def like(self, name: str) -> Array:
        return self[name]

    def narrowest(self, name: str) -> Array:
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


_STEPS = 8
_COARSEST, _FINEST = 0, CHEAP_RUNGS[-2]  # rungs: the first by the size of the tensor, the last by the entry's


def wider_ladder(program: Program, directions: Directions, noise: Array, budget: Budget) -> Rows:
    """Rows by Richardson's extrapolation, from steps by the size of the tensor down to those by the size of an entry."""
    size = scales(directions.here)
    own = size[directions.rows] if directions.given is None else np.full(directions.count, rms(size))
    ratio = rung(_FINEST) / rung(_COARSEST) * np.minimum(own / rms(size), 1.0)  # of the finest step to the coarsest
    coarsest = rung(_FINEST) / ratio
    steps = [directions.representable(coarsest * ratio ** (i / (_STEPS - 1))) for i in range(_STEPS)]
    steps.append(directions.representable(rung(CHEAP_RUNGS[-1])))  # the sentinel against aliasing
    return by_steps(program, directions, np.stack(steps), noise, budget)
