"""Results moved by random amounts of the size of their rounding error.

Rounding errors of a derivative are measured by the effect that this has on a run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from gradcheck_cli.autodiff.tape import Step
from gradcheck_cli.graph import Array, is_inexact
from gradcheck_cli.op.boxes import BoxStack, windows

_OF_ONE = {"Sigmoid"}  # other implementations have an absolute error of eps, however small the result
_AHEAD = 1 << 15  # random numbers drawn at once
ROUNDINGS = 16.0  # units of rounding by which results are moved: more than chance can cancel


class Rounding(Enum):
    """Modes of a run whose results are moved by roundings."""

    SHARED = "all probes alike, by one generator"
    BY_PROBE = "each probe by a generator of its own"
    ELSEWHERE = "each probe by its own generator, by as much as other implementations may round"


class RandomRounding(Struct, frozen=True):
    """Random movements of results, in one of the modes; a run advances its generators."""

    generators: Sequence[np.random.Generator]
    mode: Rounding = Rounding.SHARED

    @classmethod
    def seeded(cls, *seeds: Any, mode: Rounding = Rounding.SHARED) -> RandomRounding:
        """Movements by a seed, or by one for each probe."""
        return cls([np.random.default_rng(seed) for seed in seeds], mode)

    def draw(self, shape: Sequence[int]) -> Array:
        """Numbers of mean 0 and variance 1 for a tensor, `(1, *shape)`, or `(P, *shape)` if each probe has its own."""
        return np.concatenate([rng.uniform(-1.7, 1.7, (1, *shape)) for rng in self.generators])

    def of_probe(self, probe: int) -> RandomRounding:
        """The movements of one probe of a stack that runs alone."""
        return self if self.mode is Rounding.SHARED else replace(self, generators=[self.generators[probe]])


def rounded(values: Any, step: Step, rounding: RandomRounding) -> Any:
    """A stack of results of a step, moved.

    A box stack upon zeros stays one, unless the error depends on the whole array (`normwise`) or on the probe.
    """
    if not is_inexact(values.dtype):
        return values
    if isinstance(values, BoxStack):
        if step.op.normwise or rounding.mode is not Rounding.SHARED:
            return rounded(values.dense(), step, rounding)
        by = factors(np.broadcast_to(values.dtype.type(0), (1, *values.full)), rounding)[0]
        return replace(values, values=_times(values.values, windows(by, values.box, len(values.probes))))
    if step.op.name in _OF_ONE and rounding.mode is Rounding.ELSEWHERE:
        return values + (factors(values, rounding) - 1) * np.maximum(np.abs(values), 1)
    if step.op.normwise:
        return values + (factors(values, rounding) - 1) * _largest(values)
    return _times(values, factors(values, rounding))


class Moves:
    """Moves of the results inside of a kernel: many small arrays, so that random numbers are drawn in advance."""

    def __init__(self, rounding: RandomRounding) -> None:
        self.rounding, self.drawn, self.used = rounding, np.zeros((1, 0)), 0

    def __call__(self, op: str, values: Array) -> Array:
        """A stack of results of an operator, each moved by some roundings of itself."""
        size = math.prod(values.shape[1:])
        if self.used + size > self.drawn.shape[1]:
            self.drawn, self.used = self.rounding.draw((max(size, _AHEAD),)), 0
        by = self.drawn[:, self.used : self.used + size].reshape(len(self.drawn), *values.shape[1:])
        self.used += size
        by = by * (ROUNDINGS * np.finfo(values.dtype).eps)
        if op in _OF_ONE and self.rounding.mode is Rounding.ELSEWHERE:
            by = by * np.maximum(np.abs(values), 1)
        else:
            by = by * values
        return (values + by).astype(values.dtype, copy=False)


def factors(values: Array, rounding: RandomRounding) -> Array:
    """Numbers near 1 that move values by some `ROUNDINGS`, complex ones also aside; for all probes of a stack or each."""
    by: Any = rounding.draw(values.shape[1:])
    if values.dtype.kind == "c":  # either part of a product is off by a rounding of the whole
        by = by + 1j * rounding.draw(values.shape[1:])
    return np.asarray(1.0 + ROUNDINGS * np.finfo(values.dtype).eps * by)


def coarsened(values: Any, step: Step, output: int, rounding: RandomRounding, *, tangent: bool = False) -> Any:
    """A stack of results of a foreign kernel, moved by the rounding error that trying the kernel has shown.

    tangent  the values are derivatives along x: only the relative size of the error is known for them
    """
    trial = step.trial
    noise = trial.noise[output] if trial is not None and trial.noise else None
    if trial is None or noise is None:
        return values
    values = values.dense() if isinstance(values, BoxStack) else values
    by = ROUNDINGS * rounding.draw(values.shape[1:])
    return values + (by * trial.coarse * _largest(values) if tangent else by * noise)


def rounded_tangents(made: Mapping[str, Any], step: Step, rounding: RandomRounding) -> dict[str, Any]:
    """Stacks of tangents of a step's outputs, by name, moved by some roundings of its kernel."""
    outputs = step.node.outputs
    return {
        n: coarsened(rounded(t, step, rounding), step, outputs.index(n), rounding, tangent=True)
        for n, t in made.items()
    }


def _largest(values: Array) -> Array:
    """The largest magnitude in each probe of a stack."""
    return np.asarray(np.max(np.abs(values), axis=tuple(range(1, values.ndim)), keepdims=True, initial=0))


def _times(values: Array, by: Array) -> Array:
    exact = (values == np.rint(values.real)) & (np.abs(values) < 1e9)  # a Cast to integers would make 3 of 4 less one
    return values * np.where(exact, 1.0, by).astype(values.dtype)
