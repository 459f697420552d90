"""How far two implementations of one model may be apart: measured, by what rounding does to runs of our own.

A model may magnify rounding without limit, a variance as the difference of two means for one, and what one run is off
by is one draw.  So the model is run in its own dtype several times, each time with inputs and parameters a little moved:
by a number in the last place, and as many more as a plain sum of the model's longest kind has roundings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from gradcheck_cli.formats.source import Source
from gradcheck_cli.graph import Array, is_inexact
from gradcheck_cli.jacobians.cost import terms
from gradcheck_cli.op import Ops
from gradcheck_cli.points.shipped import difference, gaps, sizes
from gradcheck_cli.settings import Settings
from gradcheck_cli.tape import Tape
from gradcheck_cli.trace import trace
from gradcheck_cli.verdict import epsilon

_ROUNDINGS = 32  # of the model's dtype: what sums in another order differ by
_MEASURED = 8  # times our own rounding error
_ABSOLUTE = 8  # roundings of 1: what is computed from numbers of that size has no digits below
_DRAWS = 5


@dataclass(frozen=True)
class Roundings:
    """Runs of one model at inputs in its own dtype, made when they are asked for."""

    source: Source
    settings: Settings
    ops: Ops
    feeds: Mapping[str, Array]
    targets: tuple[str, ...]

    @cached_property
    def exact(self) -> Tape:
        """In float64."""
        return self._run("float64", self.feeds)

    @cached_property
    def own(self) -> Tape:
        """In the model's dtype."""
        return self._run("model", self.feeds)

    @cached_property
    def drawn(self) -> tuple[Tape, ...]:
        """In the model's dtype, from inputs and parameters with other numbers in the last place."""
        return tuple(self._run("model", dict(self._jittered(number))) for number in range(_DRAWS))

    def difference(self, name: str, theirs: Array) -> str:
        """How theirs differs from ours by more than rounding explains, or nothing."""
        ours = [run.named[name].value for run in (self.exact, self.own) if name in run.named]
        if not ours or any(near(each, theirs) for each in ours):
            return ""
        allowed = self._allowed(name, theirs)
        if any(near(each, theirs, allowed) for each in ours):
            return ""
        return difference(ours[0], theirs, slack(ours[0], theirs, allowed))

    def nearest(self, name: str, theirs: Array) -> Array:
        """The one of our results that is nearest to theirs."""
        ours = [run.named[name].value for run in (self.exact, self.own) if name in run.named]
        return min(ours, key=lambda each: relative(each, theirs))

    def _allowed(self, name: str, theirs: Array) -> float:
        """The relative error that rounding explains; of what is no floating-point number, none."""
        if not is_inexact(theirs.dtype) or name not in self.exact.named:
            return 0.0
        exact = self.exact.named[name].value
        runs = [run.named[name].value for run in (self.own, *self.drawn) if name in run.named]
        return _MEASURED * max([0.0, *(e for run in runs if np.isfinite(e := relative(run, exact)))])

    @cached_property
    def _longest_sum(self) -> float:
        """The most terms that one entry of a result is summed from; a plain sum of n is off by sqrt(n) of each term."""
        return max([1.0, *(terms(self.own, step) for step in self.own.steps)])

    def _jittered(self, number: int) -> Iterator[tuple[str, Array]]:
        rng, move = np.random.default_rng([self.settings.seed, number]), np.sqrt(self._longest_sum)
        constants = {n: v for n, v in self.source.graph.constants.items() if n not in self.feeds}
        for name, value in {**constants, **self.feeds}.items():
            if is_inexact(value.dtype):
                factor = 1 + rng.integers(-1, 2, value.shape) * (move * epsilon(value.dtype))
                yield name, (value * factor).astype(value.dtype)
            elif name in self.feeds:
                yield name, value

    def _run(self, dtype: str, feeds: Mapping[str, Array]) -> Tape:
        graph, seed = self.source.graph, self.settings.seed
        return trace(graph, feeds, ops=self.ops, dtype=dtype, seed=seed, targets=self.targets, lenient=True)


def near(ours: Array, theirs: Array, allowed: float = 0.0) -> bool:
    """Two results are the same but for a relative error, by default that of sums in another order."""
    return ours.shape == theirs.shape and bool((gaps(ours, theirs) <= slack(ours, theirs, allowed)).all())


def relative(ours: Array, theirs: Array) -> float:
    """The largest error relative to an entry, or to a tenth of the largest one."""
    if ours.shape != theirs.shape:
        return float("inf")
    gap, size = gaps(ours, theirs), sizes(ours)
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(np.max(np.where(gap == 0, 0.0, gap / size), initial=0.0))


def absolute(ours: Array, theirs: Array) -> float:
    """The largest error."""
    return float(np.max(gaps(ours, theirs), initial=0.0)) if ours.shape == theirs.shape else float("inf")


def slack(ours: Array, theirs: Array, allowed: float) -> Array:
    """How far each entry may be off."""
    eps = epsilon(theirs.dtype)
    return np.asarray(max(allowed, _ROUNDINGS * eps) * sizes(ours) + _ABSOLUTE * eps)
