"""One model at one point: its outputs, and derivatives of them along cotangents, by its own rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gradcheck_cli.autodiff.step import Step
from gradcheck_cli.autodiff.tape import Tape
from gradcheck_cli.autodiff.trace import trace
from gradcheck_cli.engine.chunks import Budget
from gradcheck_cli.errors import GradcheckError
from gradcheck_cli.formats.source import Source
from gradcheck_cli.graph import Array, is_inexact
from gradcheck_cli.graph.containers import Map, elements
from gradcheck_cli.graph.containers import Sequence as Several
from gradcheck_cli.jacobian.directions import flat, reals
from gradcheck_cli.jacobian.jacobian import Backward
from gradcheck_cli.op import Ops
from gradcheck_cli.settings import Settings


@dataclass(frozen=True)
class Run:
    """A model that was run as far as some targets; what could not be is in `Tape.blocked`."""

    source: Source
    feeds: Mapping[str, Any]
    tape: Tape
    settings: Settings

    @classmethod
    def of(cls, source: Source, feeds: Mapping[str, Any], targets: Sequence[str], settings: Settings, ops: Ops) -> Run:
        """A run at values of its inputs."""
        dtype, seed = settings.dtype, settings.seed
        tape = trace(source.graph, feeds, ops=ops, dtype=dtype, seed=seed, targets=targets, lenient=True)
        return cls(source, feeds, tape, settings)

    def obstacle(self, name: str) -> GradcheckError | None:
        """Why a tensor was not computed."""
        return self.tape.blocked.get(name)

    def tensors(self, name: str) -> dict[str, Array]:
        """What an output holds: itself, or every tensor inside; a map's keys are one of them."""
        if name in self.tape.named:
            return {"": self.tape.named[name].value}
        return _inside(self.tape.compounds[name]) if name in self.tape.compounds else {}

    def floating(self, name: str) -> bool:
        """It is a tensor that a derivative can flow through."""
        return name in self.tape.named and is_inexact(self.tape.named[name].dtype)

    def cotangents(self, y: str, xs: Sequence[str], weights: Array) -> list[Array]:
        """Cotangents `(P, x_size)` of each x for weighted sums of y, `weights` `(P, y_size)`: zeros where nothing flows.

        NoGradientError where an operator on the way has no rule.
        """
        named, budget = self.tape.named, Budget(self.settings.memory_limit, self.settings.jobs)
        with self.tape.aside():
            return Backward(self.tape, named[y].name, [named[x].name for x in xs]).along(weights, budget)

    def weights(self, y: str, exact: int, drawn: int) -> Array:
        """Cotangents of y: each of its reals alone if there are no more than `exact`, else some that are drawn."""
        value = flat(self.tape.named[y].value)
        rng = np.random.default_rng([self.settings.seed, 7])
        rows = np.eye(value.size) if value.size <= exact else rng.normal(size=(drawn, value.size))
        return np.where(np.isfinite(value), rows, 0.0)  # what is not finite has no derivative

    def size(self, name: str) -> int:
        """How many reals a tensor has."""
        return reals(self.tape.named[name].value)

    @property
    def piecewise(self) -> bool:
        """Something discrete is decided on the way."""
        made = (n for step in self.tape.steps for n in step.node.outputs if n)
        return any(step.op.branch is not None for step in self.tape.steps) or any(
            not is_inexact(self.tape.values.like(n).dtype) for n in made
        )

    def changes_with_the_seed(self, ops: Ops) -> bool:
        """Other random numbers change what it computes."""
        names = list(self.tape.named)
        other = Run.of(self.source, self.feeds, names, replace(self.settings, seed=self.settings.seed + 1), ops).tape
        return any(
            not np.array_equal(self.tape.named[n].value, other.named[n].value) for n in names if n in other.named
        )

    def decides_like(self, other: Run) -> bool:
        """Another run of the same steps took the same branch at each of them."""
        here, there = self.tape, other.tape
        steps = zip(here.steps, there.steps, strict=False)
        return len(here.steps) == len(there.steps) and all(_same_step(here, one, there, two) for one, two in steps)


def _same_step(here: Tape, one: Step, there: Tape, two: Step) -> bool:
    if one.op is not two.op:
        return False
    for mine, other in zip(one.node.outputs, two.node.outputs, strict=True):
        discrete = mine and not is_inexact(here.values.like(mine).dtype)
        if discrete and not np.array_equal(here.values[mine], there.values[other]):
            return False
    return one.op.branch is None or bool(np.array_equal(_branch(here, one), _branch(there, two)))


def _branch(tape: Tape, step: Step) -> Array:
    assert step.op.branch is not None
    return np.asarray(step.op.branch(*[tape.values[n] if n else None for n in step.operands], **step.metadata))


def _inside(value: Any) -> dict[str, Array]:
    """The tensors inside of a sequence, an optional or a map, and the keys of maps."""
    maps = [each for each in (value.items if isinstance(value, Several) else (value,)) if isinstance(each, Map)]
    keys = {f"[{i}] keys": np.asarray(each.keys, object) for i, each in enumerate(maps)}
    return {**{name: var.value for name, var in elements("", value).items()}, **keys}
