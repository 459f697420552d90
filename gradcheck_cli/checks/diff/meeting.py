"""Both models at the same values: what differs, and what of that rounding explains."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeAlias

import numpy as np

from gradcheck_cli.checks.diff.agreement import Compared, Place, Tolerance, of_values, row_of, spread
from gradcheck_cli.checks.diff.precision import Loss, moved
from gradcheck_cli.checks.diff.run import Run
from gradcheck_cli.errors import GradcheckError
from gradcheck_cli.graph import Array
from gradcheck_cli.op import Ops

DRAWS = 4  # runs that measure rounding
EXACT = 16  # entries of y each of which gets a cotangent of its own
DRAWN = 4  # cotangents of a larger y
_HELD = 16 * 8  # bytes of an entry of a derivative: of both models, of what rounding does to it, and of comparing that


class Key(NamedTuple):
    """What is compared, in the names of A: an output y, or where there is an x its derivative by that."""

    y: str
    x: str = ""


Outcome: TypeAlias = Compared | GradcheckError | str  # a sentence where they differ in more than numbers
Measured: TypeAlias = dict[Key, Array | GradcheckError]


@dataclass(frozen=True)
class Meeting:
    """Runs of A and of B; `ys` and `xs` are tensors of A with their partners in B, None where B has none."""

    a: Run
    b: Run
    ys: Mapping[str, str | None]
    xs: Mapping[str, str | None]
    pairs: Collection[Key]  # the derivatives that are compared
    tolerance: Callable[[Key], Tolerance]
    names: tuple[str, str]  # of both models, in sentences
    weights: dict[str, Array] = field(default_factory=dict)

    def compared(self, by: Loss, ops: Ops, only: Collection[Key] | None = None) -> dict[Key, Outcome]:
        """What is found of all keys, or of some; what rounding does is measured where something differs."""
        mine, theirs = self.measured(self.a, only), self.measured(self.b, only)
        found = {key: self._held(key, mine[key], theirs.get(key, theirs.get(Key(key.y)))) for key in mine}
        found = {key: each for key, each in found.items() if not key.x or not isinstance(found.get(Key(key.y)), str)}
        differing = {k: each for k, each in found.items() if isinstance(each, Compared) and each.failed.any()}
        draws = list(self._draws(by, ops, differing)) if differing else []
        return {**found, **{key: _with_noise(key, each, draws) for key, each in differing.items()}}

    def measured(self, run: Run, only: Collection[Key] | None = None) -> Measured:
        """Outputs of either model, or of one like A, and their derivatives, by the names of A."""
        found: Measured = {}
        for y, partner in self.ys.items():
            name = partner if run is self.b else y
            if name is None or (only is not None and not any(key.y.startswith(y) for key in only)):
                continue
            if (error := run.obstacle(name)) is not None:
                found[Key(y)] = error
                continue
            found.update((Key(y + inside), value) for inside, value in run.tensors(name).items())
            keys = self.pairs if only is None else only
            xs = [x for x in self.xs if Key(y, x) in keys and self.a.floating(x)]
            if self.a.floating(y) and xs:
                found.update(self._derivatives(run, y, name, xs))
        return found if only is None else {key: value for key, value in found.items() if key in only}

    def _derivatives(self, run: Run, y: str, name: str, xs: Sequence[str]) -> Measured:
        """Cotangents `(P, x_size)` of some xs; nothing flows to what a model does not have."""
        partners = {x: self.xs[x] if run is self.b else x for x in xs}
        there = {x: other for x, other in partners.items() if other is not None and run.floating(other)}
        weights = self._weights(y)
        made: Measured = {Key(y, x): np.zeros((len(weights), self.a.size(x))) for x in xs}
        if not run.floating(name) or run.size(name) != weights.shape[1]:
            return made
        try:
            cts = run.cotangents(name, list(there.values()), weights)
        except GradcheckError as error:
            return {**made, **{Key(y, x): error for x in there}}
        return {**made, **{Key(y, x): ct for x, ct in zip(there, cts, strict=True)}}

    def _weights(self, y: str) -> Array:
        """The cotangents of y, as many as memory holds the derivatives of."""
        if y not in self.weights:
            entries = sum(self.a.size(x) for x in self.xs if self.a.floating(x))
            room = max(1, self.a.settings.memory_limit // (_HELD * max(entries, 1)))
            self.weights[y] = self.a.weights(y, min(EXACT, room), min(DRAWN, room))
        return self.weights[y]

    def _held(self, key: Key, mine: Array | GradcheckError, theirs: Array | GradcheckError | None) -> Outcome:
        here, there = self.names
        if isinstance(mine, GradcheckError):
            return _told(mine, here)
        if theirs is None or isinstance(theirs, GradcheckError):
            return f"{there} has no such output" if theirs is None else _told(theirs, there)
        if mine.shape != theirs.shape:
            return f"its shape is {list(mine.shape)} in {here} and {list(theirs.shape)} in {there}"
        tolerance = self.tolerance(key)
        if not key.x:
            return of_values(mine, theirs, tolerance)
        scale = np.abs(row_of(self.a.tape.named[key.x].value)[0])
        return Compared(mine, theirs, tolerance, self._place(key), scale=scale)

    def _place(self, key: Key) -> Place:
        x, y = self.a.tape.named[key.x], self.a.tape.named[key.y]
        exact = len(self._weights(key.y)) == self.a.size(key.y)
        return Place(x.shape, y.shape if exact else None, x.dtype.kind == "c", exact and y.dtype.kind == "c")

    def _draws(self, by: Loss, ops: Ops, keys: Collection[Key]) -> Iterator[tuple[Measured, bool]]:
        """What A gives with its numbers moved, and whether it takes every branch as it does otherwise."""
        for number in range(DRAWS):
            source, feeds = moved(self.a.source, self.a.feeds, by, ops, number)
            run = Run.of(source, feeds, [*self.ys, *self.xs], self.a.settings, ops)
            yield self.measured(run, keys), self.a.decides_like(run)


def _with_noise(key: Key, found: Compared, draws: Sequence[tuple[Measured, bool]]) -> Compared:
    others = [(value if key.x else row_of(value), alike) for made, alike in draws
              if isinstance(value := made.get(key), np.ndarray) and value.dtype != object]  # fmt: skip
    return replace(found, noise=spread(found.a, others)) if found.tolerance.rtol or found.tolerance.atol else found


def _told(error: GradcheckError, uri: str) -> GradcheckError:
    """The error with the model that it is about."""
    told = copy(error)
    told.args = (f"{uri}: {error}",)
    return told
