"""A Jacobian that is known as numbers, where comparisons want a backward pass; and the rounding in numbers of others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from gradcheck_cli.autodiff.tape import Tape
from gradcheck_cli.compare.pair import Found, Theory
from gradcheck_cli.engine.chunks import Budget
from gradcheck_cli.graph import Array
from gradcheck_cli.jacobian.jacobian import JITTERED, Backward
from gradcheck_cli.verdict.rule import NEGLIGIBLE, Status, Tolerance, allowance, magnitude

_ROUNDINGS = 8.0  # of numbers from elsewhere: less than so many are never seen
Moved: TypeAlias = Callable[[int], Array]  # the numbers as rounding may move them, by seed


class Stated(Backward):
    """The Jacobian `(x_size, y_size)` of y by x as somebody states it, asked as a backward pass is."""

    def __init__(self, tape: Tape, y: str, x: str, jacobian: Array, moved: Moved) -> None:
        self.tape, self.y, self.xs = tape, y, (x,)
        self.jacobian, self.moved = jacobian, moved

    def reduced(
        self, weights: Array, reduce: Callable[[int, Array], Array], budget: Budget, jitter: int | None = None
    ) -> list[Array]:
        """See `Backward.reduced`."""
        return [reduce(0, weights @ (self.jacobian if jitter is None else self.moved(jitter)).T)]

    @property
    def theory(self) -> Theory:
        """The same as one side of a full comparison."""
        return Theory(self.jacobian, self._spread)

    def _spread(self) -> Array:
        return np.asarray(np.fmax.reduce([np.abs(self.moved(seed) - self.jacobian) for seed in range(JITTERED)]))


def blurred(jacobian: Array, blur: Array) -> Moved:
    """Numbers that are moved by as much as they may be off, up or down."""
    return lambda seed: jacobian + blur * np.random.default_rng([seed, 5]).choice([-1.0, 1.0], blur.shape)


def tolerant(tolerance: Tolerance, unit: float) -> Tolerance:
    """The tolerance for numbers of a dtype: a few roundings of theirs do not count."""
    least = _ROUNDINGS * unit
    return replace(tolerance, rtol=max(tolerance.rtol, least), negligible=max(NEGLIGIBLE, least))


def forgiven(found: Found, blur: Array, tolerance: Tolerance) -> Found:
    """A comparison in which entries pass that are off by no more than the rounding of whoever computed them."""
    comparison = found.comparison
    given, numerical = comparison.theoretical, comparison.numerical
    allowed = blur + allowance(magnitude(given, numerical), comparison.ground.at(), tolerance)
    with np.errstate(invalid="ignore"):
        near = np.abs(given - numerical) <= allowed
    open_ = np.isin(comparison.status, (Status.FAIL, Status.NOISE, Status.CURVATURE)) & near
    status = np.where(open_, np.int8(Status.PASS), comparison.status)
    return replace(found, comparison=replace(comparison, status=status, noise=np.maximum(comparison.noise, blur)))
