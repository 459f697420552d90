"""Results moved by random amounts of the size of their rounding error.

Rounding errors of a derivative are measured by the effect that this has on a run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gradcheck_cli.autodiff.tape import Step
from gradcheck_cli.graph import Array, is_inexact
from gradcheck_cli.op.boxes import BoxStack, windows

_OF_ONE = {"Sigmoid"}  # other implementations have an absolute error of eps, however small the result
ROUNDINGS = 16.0  # units of rounding by which results are moved: more than chance can cancel


def jittered(values: Any, step: Step, rng: np.random.Generator) -> Any:
    """A stack of results of a step, moved.

    A box stack upon zeros stays one, unless the error depends on the whole array (`normwise`) or on the probe (`Apart`).
    """
    if not is_inexact(values.dtype):
        return values
    if isinstance(values, BoxStack):
        if step.op.normwise or isinstance(rng, Apart):
            return jittered(values.dense(), step, rng)
        by = factors(np.broadcast_to(values.dtype.type(0), (1, *values.full)), rng)[0]
        return replace(values, values=_times(values.values, windows(by, values.box, len(values.probes))))
    if step.op.name in _OF_ONE and isinstance(rng, Others):
        return values + (factors(values, rng) - 1) * np.maximum(np.abs(values), 1)
    if step.op.normwise:
        largest = np.max(np.abs(values), axis=tuple(range(1, values.ndim)), keepdims=True, initial=0)
        return values + (factors(values, rng) - 1) * largest
    return _times(values, factors(values, rng))


def factors(values: Array, rng: np.random.Generator) -> Array:
    """Numbers near 1 that move values by some `ROUNDINGS`, the same for all probes of a stack."""
    unit = ROUNDINGS * np.finfo(values.dtype).eps * rng.uniform(-1.7, 1.7, (1, *values.shape[1:]))  # of variance 1
    return np.asarray(1.0 + unit)


def coarsened(values: Any, step: Step, output: int, rng: np.random.Generator, *, tangent: bool = False) -> Any:
    """A stack of results of a foreign kernel, moved by the rounding error that trying the kernel has shown.

    tangent  the values are derivatives along x: only the relative size of the error is known for them
    """
    trial = step.trial
    noise = trial.noise[output] if trial is not None and trial.noise else None
    if trial is None or noise is None:
        return values
    values = values.dense() if isinstance(values, BoxStack) else values
    by = ROUNDINGS * rng.uniform(-1.7, 1.7, (1, *values.shape[1:]))
    if not tangent:
        return values + by * noise
    largest = np.max(np.abs(values), axis=tuple(range(1, values.ndim)), keepdims=True, initial=0)
    return values + by * trial.coarse * largest


class Apart(np.random.Generator):
    """A generator for each probe of a stack: results are moved in every probe as by its own generator."""

    def __init__(self, each: Sequence[np.random.Generator]) -> None:
        super().__init__(each[0].bit_generator)
        self.each = each

    def uniform(self, low: Any = 0.0, high: Any = 1.0, size: Any = None) -> Any:
        """Numbers for a stack: an array of shape `size`, `(1, ...)`, from each generator."""
        return np.concatenate([rng.uniform(low, high, size) for rng in self.each])


class Others(Apart):
    """The same, for results moved by as much as other implementations may round them."""


def _times(values: Array, by: Array) -> Array:
    exact = (values == np.rint(values.real)) & (np.abs(values) < 1e9)  # a Cast to integers would make 3 of 4 less one
    return values * np.where(exact, 1.0, by).astype(values.real.dtype)


def of_probe(jitter: np.random.Generator | None, probe: int) -> np.random.Generator | None:
    """The generator for one probe of a stack that runs alone."""
    return jitter.each[probe] if isinstance(jitter, Apart) else jitter
