"""Results moved by as much as rounding may move them: rounding errors are measured by what that does to a run."""

from __future__ import annotations

import numpy as np

from gradcheck_cli.graph import Array, is_inexact
from gradcheck_cli.step import Step

ROUNDINGS = 16.0  # by which results are moved where their rounding error is measured: more than chance can cancel


def jittered(values: Array, step: Step, rng: np.random.Generator) -> Array:
    """A stack of results of a step, moved."""
    if not is_inexact(values.dtype):
        return values
    if step.op.normwise:
        largest = np.max(np.abs(values), axis=tuple(range(1, values.ndim)), keepdims=True, initial=0)
        return values + (factors(values, rng) - 1) * largest
    exact = (values == np.rint(values.real)) & (np.abs(values) < 1e9)  # a Cast to integers would make 3 of 4 less one
    return values * np.where(exact, 1.0, factors(values, rng)).astype(values.real.dtype)


def factors(values: Array, rng: np.random.Generator) -> Array:
    """Numbers near 1, the same for all probes of a stack, that move values by `ROUNDINGS`."""
    unit = ROUNDINGS * np.finfo(values.dtype).eps * rng.uniform(-1.7, 1.7, (1, *values.shape[1:]))  # of variance 1
    return np.asarray(1.0 + unit)
