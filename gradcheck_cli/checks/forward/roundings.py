"""Differences between two implementations of one model that rounding explains, measured by runs of our own.

A model may magnify rounding without limit, for example a variance as the difference of two means, and the error of one
run is one random draw.  So the model is run in its own dtype several times, each time with inputs and parameters
changed in the last place, by more for long sums, as sqrt(n) roundings of a plain sum of n terms do.  Numbers with few
binary digits, such as halves and integers, stay: the result of an operator at a tie is not a matter of rounding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from gradcheck_cli.autodiff.tape import Tape
from gradcheck_cli.autodiff.trace import trace
from gradcheck_cli.graph import Array, Graph, is_inexact
from gradcheck_cli.jacobian.cost import terms
from gradcheck_cli.op import Ops
from gradcheck_cli.verdict.rule import agree, difference, epsilon, farthest, gaps, sizes

FLOORS = {"float32": 1e-4, "float16": 1e-2, "float64": 1e-7, "bfloat16": 5e-2}  # of the largest entry of an output
SHARE = 0.1  # of a floor, which measured rounding has to explain
MEASURED = 8  # factor on our own rounding error
_ROUNDINGS = 32  # of the model's dtype, by which sums in another order differ
CLOSE = 4  # roundings up to which results agree closely
_ABSOLUTE = 8  # roundings of 1, since results of numbers near 1 have no digits below
_DRAWS = 5
_SHORT = 2.0**10  # multiples of its inverse have few digits


@dataclass(frozen=True)
class Roundings:
    """Runs of one graph at inputs in its own dtype, made when they are first used."""

    graph: Graph
    seed: int
    ops: Ops
    feeds: Mapping[str, Array]
    targets: tuple[str, ...]

    @cached_property
    def exact(self) -> Tape:
        """The run in float64."""
        return self._run("float64", self.feeds)

    @cached_property
    def own(self) -> Tape:
        """The run in the model's dtype."""
        return self._run("model", self.feeds)

    @cached_property
    def drawn(self) -> tuple[Tape, ...]:
        """Runs in the model's dtype with inputs and parameters changed in the last place."""
        return tuple(self._run("model", dict(self._rounded(number))) for number in range(_DRAWS))

    def known(self, name: str) -> bool:
        """True if a tensor has been computed here."""
        return name in self.exact.named

    def close(self, name: str, theirs: Array) -> bool:
        """True if `theirs` differs from one of our results only in the last digits."""
        return any(near(each, theirs, CLOSE) for each in self._ours(name))

    def small(self, name: str, theirs: Array) -> bool:
        """True if they differ as sums in another order do, or by little that measured rounding explains."""
        ours = self._ours(name)
        if any(agree(each, theirs, slack(each, theirs, _ROUNDINGS * epsilon(theirs.dtype))) for each in ours):
            return True
        if not is_inexact(theirs.dtype) or not any(each.shape == theirs.shape for each in ours):
            return False
        limit = np.minimum(floor_of(theirs), self.measured(name) / SHARE * sizes(ours[0]))
        return any(agree(each, theirs, limit) for each in ours)

    def difference(self, name: str, theirs: Array) -> str:
        """Sentence on a difference beyond measured rounding; "" if there is none."""
        ours, bound = self._ours(name), self.bound(name, theirs)
        if not ours or any(agree(each, theirs, slack(each, theirs, bound)) for each in ours):
            return ""
        return difference(ours[0], theirs, slack(ours[0], theirs, bound))

    def nearest(self, name: str, theirs: Array) -> Array:
        """The one of our results that is nearest to `theirs`."""
        return min(self._ours(name), key=lambda each: relative(each, theirs))

    def bound(self, name: str, theirs: Array, *, quick: bool = False) -> float:
        """The relative error that rounding explains, without a run if `quick`; 0 for integers."""
        if not is_inexact(theirs.dtype):
            return 0.0
        return max(0.0 if quick else MEASURED * self.measured(name), _ROUNDINGS * epsilon(theirs.dtype))

    def measured(self, name: str) -> float:
        """The largest relative error of our own runs in the model's dtype."""
        exact = self.exact.named[name].value
        runs = [run.named[name].value for run in (self.own, *self.drawn) if name in run.named]
        return max([0.0, *(e for run in runs if np.isfinite(e := relative(run, exact)))])

    def spread(self, name: str) -> Array:
        """The largest error of runs in the model's dtype, entry by entry."""
        exact = self.exact.named[name].value
        runs = [run.named[name].value for run in (self.own, *self.drawn) if name in run.named]
        apart = [gaps(exact, run) for run in runs if run.shape == exact.shape]
        return np.max([np.zeros(exact.shape), *(np.where(np.isfinite(gap), gap, 0.0) for gap in apart)], axis=0)

    def _ours(self, name: str) -> list[Array]:
        return [run.named[name].value for run in (self.exact, self.own) if name in run.named]

    @cached_property
    def longest_sum(self) -> float:
        """The most terms in a sum; a plain sum of n is off by about sqrt(n) roundings."""
        return max([1.0, *(terms(self.own, step) for step in self.own.steps)])

    def _rounded(self, number: int) -> Iterator[tuple[str, Array]]:
        rng, move = np.random.default_rng([self.seed, number]), np.sqrt(self.longest_sum)
        constants = {n: v for n, v in self.graph.constants.items() if n not in self.feeds}
        for name, value in {**constants, **self.feeds}.items():
            if isinstance(value, np.ndarray) and is_inexact(value.dtype):
                factor = 1 + rng.choice([-1, 1], value.shape) * (move * epsilon(value.dtype))
                yield name, np.where(_short(value), value, value * factor).astype(value.dtype)
            elif name in self.feeds:
                yield name, value

    def _run(self, dtype: str, feeds: Mapping[str, Array]) -> Tape:
        return trace(self.graph, feeds, ops=self.ops, dtype=dtype, seed=self.seed, targets=self.targets, lenient=True)


def _short(value: Array) -> Array:
    """Entries with few binary digits."""
    if value.dtype.itemsize <= 2:  # onnxruntime keeps float32 between nodes: halves of it are known to half a unit
        return np.zeros(value.shape, bool)
    scaled = value.real.astype(np.float64) * _SHORT
    with np.errstate(invalid="ignore"):
        return np.asarray((scaled == np.rint(scaled)) & (np.abs(scaled) < _SHORT**2))


def near(ours: Array, theirs: Array, roundings: float) -> bool:
    """True if two results differ by some roundings only, relative to an entry or to a tenth of the largest one."""
    return agree(ours, theirs, roundings * epsilon(theirs.dtype) * sizes(theirs))


def relative(ours: Array, theirs: Array) -> float:
    """The largest error relative to an entry, or to a tenth of the largest one."""
    return farthest(ours, theirs, sizes(ours))[1]


def slack(ours: Array, theirs: Array, bound: float) -> Array:
    """The error that is allowed for each entry by a relative bound, and for results that have no digits below."""
    return np.asarray(bound * sizes(ours) + _ABSOLUTE * epsilon(theirs.dtype))


def floor_of(theirs: Array) -> float:
    """An error of entries that may be mere rounding, in the units of the result."""
    return FLOORS.get(theirs.dtype.name, 0.0) * float(np.max(sizes(theirs), initial=0.0))
