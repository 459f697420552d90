"""What is asked of a model for a file: gradients, tangents, and second derivatives times a vector.

A tangent is the derivative of a gradient by its initial gradient, in which it is linear: rules of tangents need no
writing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Literal, TypeAlias

from gradcheck_cli.graph import Array
from gradcheck_cli.model import Model
from gradcheck_cli.model.request import Request, Seed

Kind: TypeAlias = Literal["gradient", "jvp", "hvp"]
INPUTS = "inputs"  # initial gradients that are inputs of the file


@dataclass(frozen=True, slots=True)
class Derivatives:
    """What was added to a model: names of results, and of inputs, by the tensor that each belongs to.

    `missing` are those that no y depends on.
    """

    results: Mapping[str, str]
    inputs: Mapping[str, str]
    missing: tuple[str, ...] = ()


def derivatives(
    model: Model,
    kind: Kind,
    xs: Sequence[str],
    ys: Sequence[str],
    grad_ys: Mapping[str, str | Array] | Literal["ones", "inputs"],
    how: Mapping[str, Any],
) -> Derivatives:
    """Adds derivatives of some tensors by others to a model; `how` are fields of `Request`."""
    asked = _Asked(model, dict(how))
    if kind == "jvp":
        return asked.tangents(xs, ys)
    gradient = asked.gradient(xs, ys, asked.initial(ys, grad_ys), "grad")
    return asked.products(xs, gradient) if kind == "hvp" else gradient


@dataclass(slots=True)
class _Asked:
    """Requests to a model, one after the other."""

    model: Model
    how: dict[str, Any]

    def gradient(
        self, xs: Sequence[str], ys: Sequence[str], initial: Sequence[str | Array | Seed | None], what: str
    ) -> Derivatives:
        """The gradient by each x of all ys, named after it."""
        done = self._add(xs, ys, initial, self._names([f"{x}_{what}" for x in xs]))
        results = {x: name for x, name in zip(xs, done.results, strict=True) if name is not None}
        opened = {y: seed.name for y, seed in zip(ys, initial, strict=True) if isinstance(seed, Seed)}
        return Derivatives(results, opened, tuple(x for x in xs if x not in results))

    def initial(
        self, ys: Sequence[str], given: Mapping[str, str | Array] | Literal["ones", "inputs"]
    ) -> list[str | Array | Seed | None]:
        """The initial gradient of each y."""
        if given == INPUTS:
            return [Seed(name) for name in self._names([f"{y}_grad" for y in ys])]
        return [None if given == "ones" else given.get(y) for y in ys]  # type: ignore[union-attr]

    def products(self, xs: Sequence[str], gradient: Derivatives) -> Derivatives:
        """Second derivatives times a vector for each x, which is an input."""
        by = [x for x in xs if x in gradient.results]
        vectors = [Seed(name) for name in self._names([f"{x}_vector" for x in by])]
        done = self.gradient(by, [gradient.results[x] for x in by], vectors, "hvp")
        inputs = {**gradient.inputs, **{x: seed.name for x, seed in zip(by, vectors, strict=True)}}
        return Derivatives({**done.results}, inputs, (*gradient.missing, *done.missing))

    def tangents(self, xs: Sequence[str], ys: Sequence[str]) -> Derivatives:
        """The tangent of each y for tangents of all xs, which are inputs."""
        tangents = dict(zip(xs, (Seed(name) for name in self._names([f"{x}_tangent" for x in xs])), strict=True))
        results: dict[str, str] = {}
        for y in ys:
            [inner] = self._names([f"{y}_cotangent"])
            forth = self._add(xs, [y], [Seed(inner, open=False)], self._names([f"{x}_cotangent" for x in xs]))
            reached = {x: name for x, name in zip(xs, forth.results, strict=True) if name is not None}
            if reached:
                seeds = [tangents[x] for x in reached]
                [back] = self._add([inner], list(reached.values()), seeds, self._names([f"{y}_tangent"])).results
                results.update({} if back is None else {y: back})
        return Derivatives(
            results, {x: seed.name for x, seed in tangents.items()}, tuple(y for y in ys if y not in results)
        )

    def _add(
        self, xs: Sequence[str], ys: Sequence[str], initial: Sequence[str | Array | Seed | None], names: Sequence[str]
    ) -> Request:
        scope = self.model.scope(self.how["scope"])
        given = {**self.how, "scope": scope, "names": tuple(names)}
        return self.model.add(Request(ys=tuple(ys), xs=tuple(xs), grad_ys=tuple(initial), **given))

    def _names(self, wanted: Sequence[str]) -> list[str]:
        """Names that no tensor has yet."""
        taken = set(self.model.tensors)
        found = []
        for name in wanted:
            own = next(c for c in (f"{name}_{i}" if i else name for i in count()) if c not in taken)
            taken.add(own)
            found.append(own)
        return found
