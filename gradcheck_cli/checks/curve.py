"""The V curve: how wrong central differences of one entry are at every step.

Towards large steps truncation grows like h^2, towards small ones rounding like 1/h; a gradient that is wrong shows as
a distance that no step can explain.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gradcheck_cli.engine.chunks import Budget
from gradcheck_cli.engine.outcome import any_of
from gradcheck_cli.engine.program import Program
from gradcheck_cli.graph import Array
from gradcheck_cli.jacobian.cost import forward_work
from gradcheck_cli.jacobian.directions import Directions
from gradcheck_cli.jacobian.jacobian import by_complex_step, by_differences, by_ladder, forward_noise
from gradcheck_cli.verdict.differences import ALL_RUNGS, CENTRAL, representable, rms

COARSEST, FINEST = -1.0, -14.0  # log10 of the steps, in units of the entry, or of what is typical of x if larger
_PER_DECADE, _LEAST_PER_DECADE = 4, 1
_WORK = 2e10  # operations that a curve may take: a second or so
_KEPT = 1 << 22  # values of y held at once
_CLEAR = 20.0  # an error this many times its rounding is truncation
_FITTED = 6  # steps that the order of truncation is read off, and the least of them
_LEAST_FITTED = 3


@dataclass(frozen=True, slots=True)
class Swept:
    """Central differences of one entry: steps, coarse to fine, their quotients, and which of them crossed a branch."""

    steps: Array
    quotients: Array
    crossed: Array


def sweep(program: Program, direction: Directions, weights: Array, budget: Budget) -> Swept:
    """A weighted sum of y differentiated along one direction of x, by one step after the other.

    As many steps a decade as are done in a moment.
    """
    steps = _steps(program, direction)
    size = max(1, _KEPT // max(len(weights), 1))
    parts = [_quotients(program, direction, steps[i : i + size], weights, budget) for i in range(0, len(steps), size)]
    quotients, crossed = (np.concatenate(each) for each in zip(*parts, strict=True))
    return Swept(steps, quotients, crossed)


def _steps(program: Program, direction: Directions) -> Array:
    """Steps that are representable, coarse to fine."""
    decades = COARSEST - FINEST
    affordable = _WORK / (2 * decades * forward_work(program))
    count = int(decades * np.clip(affordable, _LEAST_PER_DECADE, _PER_DECADE)) + 1
    scale = np.fmax(direction.representable(1.0), rms(direction.here))
    steps = scale * np.logspace(COARSEST, FINEST, count)
    if direction.given is None:
        steps = representable(direction.here[direction.rows], steps)
    return np.asarray(steps[steps > 0])


def _quotients(
    program: Program, direction: Directions, steps: Array, weights: Array, budget: Budget
) -> tuple[Array, Array]:
    same = direction.part(np.zeros(len(steps), np.int64))
    values, crossed = by_differences(program, same, CENTRAL, steps, budget)
    return values @ weights, any_of(crossed, len(steps))


def derivative(program: Program, direction: Directions, weights: Array, budget: Budget) -> tuple[float, float]:
    """The derivative that the curve is measured from and a bound of its error, by a method without a step to choose."""
    if program.obstacle is None:
        value = float((by_complex_step(program, direction, budget) @ weights)[0])
        return value, 4 * float(np.finfo(float).eps) * abs(value)
    estimate = by_ladder(program, direction, ALL_RUNGS, forward_noise(program), budget).estimate
    error = np.where(weights == 0, 0.0, np.abs(weights) * estimate.error)  # infinite bounds of others do not count
    return float((estimate.value @ weights)[0]), float(error.sum())


def rounding(program: Program, weights: Array) -> float:
    """Rounding error of one value of a weighted sum of y."""
    return float(np.abs(weights) @ forward_noise(program))


def truncation(steps: Array, errors: Array, crossed: Array, delta: float) -> tuple[float, float] | None:
    """(c, p) such that the errors of large steps are about c h^p, fitted to the finest that stand out of rounding."""
    clear = np.isfinite(errors) & ~crossed & (errors > _CLEAR * delta / steps)
    first = int(np.argmax(clear))
    end = first + int(np.argmin(np.append(clear[first:], False)))
    fitted = slice(max(first, end - _FITTED), end)
    if end - first < _LEAST_FITTED:
        return None
    order, constant = np.polyfit(np.log(steps[fitted]), np.log(errors[fitted]), 1)
    return (float(np.exp(constant)), float(order)) if order > 0 else None
