"""Adds derivatives to a model, to be saved as a file: gradients, tangents (JVPs) and Hessian-vector products.

A gradient is linear in its initial gradient, and its derivative with respect to that is the tangent: tangents need no
rules of their own.
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
    """Derivatives that were added to a model: names of the results and of new inputs, by the tensor they belong to.

    `missing` names the tensors without a result: no y depends on them.
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
    """Adds derivatives of ys with respect to xs to a model; `how` holds further fields of `Request`."""
    adding = _Adding(model, dict(how))
    if kind == "jvp":
        return adding.tangents(xs, ys)
    gradient = adding.gradient(xs, ys, adding.initial(ys, grad_ys), "grad")
    return adding.products(xs, gradient) if kind == "hvp" else gradient


@dataclass(slots=True)
class _Adding:
    """Adds requests to a model, one after the other."""

    model: Model
    how: dict[str, Any]

    def gradient(
        self, xs: Sequence[str], ys: Sequence[str], initial: Sequence[str | Array | Seed | None], what: str
    ) -> Derivatives:
        """The gradient of the sum of all ys with respect to each x, named after x."""
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
        """Hessian-vector products; the vector for each x is a new input."""
        by = [x for x in xs if x in gradient.results]
        vectors = [Seed(name) for name in self._names([f"{x}_vector" for x in by])]
        done = self.gradient(by, [gradient.results[x] for x in by], vectors, "hvp")
        inputs = {**gradient.inputs, **{x: seed.name for x, seed in zip(by, vectors, strict=True)}}
        return Derivatives({**done.results}, inputs, (*gradient.missing, *done.missing))

    def tangents(self, xs: Sequence[str], ys: Sequence[str]) -> Derivatives:
        """The tangent of each y; the tangents of all xs are new inputs."""
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
        """The names, each with a number if a tensor has it already."""
        taken = set(self.model.tensors)
        found = []
        for name in wanted:
            own = next(c for c in (f"{name}_{i}" if i else name for i in count()) if c not in taken)
            taken.add(own)
            found.append(own)
        return found
