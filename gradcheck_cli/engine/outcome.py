"""What a stack of probes gives: values of the outputs, and how the discrete decisions on the way compare with the point's.

A derivative exists on a piece of a model; which piece a probe is on shows in its decisions alone, never in numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from gradcheck_cli.graph import Array

MANY = 1 << 20  # places at least where a result that is discrete itself changes
_ODD = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, slots=True)
class Decisions:
    """Digests of all decisions of each probe, every one an array `(P,)`.

    kind    equal for probes that decide everything alike, 0 for the decisions of the point
    places  at how many places a probe decides otherwise than the point; from MANY on something discrete was computed
    where   equal for probes that decide otherwise at the same places
    """

    kind: Array
    places: Array
    where: Array

    @classmethod
    def none(cls, count: int) -> Decisions:
        """Those of probes that decide like the point."""
        return cls(np.zeros(count, np.uint64), np.zeros(count, np.int64), np.zeros(count, np.uint64))

    @classmethod
    def joined(cls, parts: Sequence[Decisions]) -> Decisions:
        """Those of several stacks as one."""
        columns = [(part.kind, part.places, part.where) for part in parts]
        return cls(*(np.concatenate(column) for column in zip(*columns, strict=True)))

    def add(self, rows: Array, own: Decisions) -> None:
        """Add what some probes decided."""
        self.kind[rows] += own.kind
        self.places[rows] += own.places
        self.where[rows] += own.where

    def note(self, index: int, stack: Array, changed: Array, discrete: bool) -> None:
        """Add what step `index` decided: `stack` is `(P, n)`, `changed` says where that differs from the point's."""
        rows, places = np.nonzero(changed)  # few, in the order of the probes
        numbers = stack[rows, places].astype(np.float64) if stack.dtype != object else np.ones(len(rows))
        factor, here = _digest(places, 2 * index), _digest(places, 2 * index + 1)
        probes, starts = np.unique(rows, return_index=True)
        self.kind[probes] += np.add.reduceat(_mixed(numbers.view(np.uint64) * _ODD) * factor + here, starts)
        self.where[probes] += np.add.reduceat(here, starts)
        self.places[probes] += (MANY if discrete else 1) * np.diff(starts, append=len(rows))


def _digest(places: Array, number: int) -> Array:
    """An odd number for each place, another one for every `number`."""
    return _mixed(places.astype(np.uint64) * _ODD + np.uint64(number)) | np.uint64(1)


def _mixed(bits: Array) -> Array:
    """SplitMix64's mixing of 64 bits: https://doi.org/10.1145/2660193.2660195."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        bits = (bits ^ (bits >> np.uint64(shift))) * np.uint64(factor)
    return bits ^ (bits >> np.uint64(31))


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a stack of probes gives: an array `(P, *shape)` for each output, and the branches they crossed.

    `crossed` has a row of booleans `(P,)` for each step of the tape at which a discrete decision of some probe
    differs from that of the point; probes that cannot run at all are NaN and crossed at step -1.
    """

    outputs: tuple[Array, ...]
    crossed: Mapping[int, Array]
    decisions: Decisions = field(default_factory=lambda: Decisions.none(0))

    def after(self, crossed: Mapping[int, Array], decisions: Decisions) -> Outcome:
        """The same with what was decided before, at earlier steps."""
        self.decisions.add(np.arange(len(decisions.kind)), decisions)
        return replace(self, crossed={**crossed, **self.crossed})

    def any_crossed(self, count: int) -> Array:
        """Whether each probe crossed a branch, shape `(P,)`."""
        return any_of(self.crossed, count)


def gathered(parts: Sequence[Outcome]) -> Outcome:
    """The outcome of probes that had to run in parts, or one by one."""
    outputs = tuple(np.concatenate(column) for column in zip(*(o.outputs for o in parts), strict=True))
    stops = np.cumsum([len(outcome.decisions.kind) for outcome in parts])
    crossed: dict[int, Array] = {}
    for outcome, stop in zip(parts, stops, strict=True):
        for index, change in outcome.crossed.items():
            crossed.setdefault(index, np.zeros(stops[-1], bool))[stop - len(change) : stop] = change
    return Outcome(outputs, crossed, Decisions.joined([outcome.decisions for outcome in parts]))


def any_of(by_step: Mapping[int, Array], count: int) -> Array:
    """Rows, of `count`, that crossed a branch at some step: any of `by_step`, whose arrays are `(count,)`."""
    return np.logical_or.reduce([np.zeros(count, bool), *by_step.values()])
