"""Tangents of whole stacks: the steps of a program made ready once, for all chunks of probes.

Elementwise steps that follow one another become chains: slopes are known, so that nothing but products and sums is
left.  What no stage here is for goes through the pushforward, which stays the reference for all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from gradcheck_cli.autodiff.step import Step
from gradcheck_cli.engine.jvp import Pushforward
from gradcheck_cli.graph import Array, is_inexact
from gradcheck_cli.op.batching import elementwise
from gradcheck_cli.op.exact import expressed
from gradcheck_cli.op.fusion import Chain, Formula, parts, total

_FLOAT64 = np.dtype(np.float64)

Numbered: TypeAlias = tuple[int, Step]  # a step of the tape and its number
Tangents: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Through:
    """A step as the pushforward knows it."""

    pushforward: Pushforward
    steps: Sequence[Numbered]

    def make(self, live: Tangents) -> Tangents:
        """The tangents that it makes."""
        made: dict[str, Any] = {}
        for index, step in self.steps:
            made.update(self.pushforward.through(index, step, {**live, **made} if made else live, None))
        return made


@dataclass(frozen=True, slots=True)
class Chained(Through):
    """Steps that are one chain."""

    chain: Chain

    def make(self, live: Tangents) -> Tangents:
        """The tangents that others read."""
        made = self.chain.run(live)
        return Through.make(self, live) if made is None else made


@dataclass(frozen=True, slots=True)
class Linear(Through):
    """A step that is linear in what moves: its kernel, on tangents, what they are multiplied by, and zeros."""

    moving: Sequence[bool]
    zeros: Sequence[bool]
    outputs: frozenset[str]

    def make(self, live: Tangents) -> Tangents:
        """The tangents that it makes."""
        ((_, step),) = self.steps
        operands = [self._operand(step, i, live) for i in range(len(self.moving))]
        made = step.op.lift(step.op.forward, operands, self.moving, step.metadata)
        pairs = zip(step.node.outputs, made if step.op.many else (made,), strict=False)
        return {name: value for name, value in pairs if name in self.outputs}

    def _operand(self, step: Step, i: int, live: Tangents) -> Array | None:
        name, values = step.operands[i], self.pushforward.tape.values
        if self.moving[i] or not name:
            return live[name] if name else None
        return np.zeros_like(values.like(name)) if self.zeros[i] else values.operand(step.op, name)


@dataclass(frozen=True, slots=True)
class Stage:
    """What runs at once, and what nobody reads after it."""

    part: Through
    dies: Sequence[str]

    def run(self, live: dict[str, Any]) -> None:
        """Put the tangents that it makes among the live ones."""
        live.update(self.part.make(live))
        for name in self.dies:
            live.pop(name, None)


def staged(
    pushforward: Pushforward, steps: Sequence[Numbered], live: Collection[str], outputs: Collection[str]
) -> list[Stage]:
    """The steps as stages that begin with the tangents `live`."""
    planner, values = _Planner(pushforward, set(live)), pushforward.tape.values
    drafts = [planner.draft(*numbered) for numbered in steps]
    formulas = [draft if isinstance(draft, Formula) else None for draft in drafts]
    stages = []
    for part in parts([step.node for _, step in steps], formulas, outputs, lambda n: values.like(n).shape, 1):
        draft, mine = drafts[part.steps[0]], [steps[s] for s in part.steps]
        if part.chain is not None:
            draft = Chained(pushforward, mine, part.chain)
        stages.append(Stage(draft if isinstance(draft, Through) else Through(pushforward, mine), part.dies))
    return stages


class _Planner:
    """Finds out, step by step, which tensors have tangents, and how a step makes its own."""

    def __init__(self, pushforward: Pushforward, live: set[str]) -> None:
        self.pushforward, self.live = pushforward, live
        self.values = pushforward.tape.values

    def draft(self, index: int, step: Step) -> Formula | Through:
        """A link of a chain, or a part of its own."""
        moving = [i for i, n in enumerate(step.operands) if n and n in self.live]
        outputs = [n for n in step.node.outputs if n and is_inexact(self.values.like(n).dtype)]
        through = Through(self.pushforward, [(index, step)])
        groups = self._groups(step)
        if not moving or not outputs or (groups and not any(i in g for g in groups for i in moving)):
            return through  # no tangent comes out
        self.live.update(outputs)
        if step.op.lift is elementwise and not step.op.many and self._plain(step, moving):
            terms = self._linear(step, moving) if step.op.linear else self._slopes(index, step, moving)
            if terms is not None:
                return Formula(outputs[0], self.values.like(outputs[0]).shape, _FLOAT64, *terms)
        return self._ready(step, moving, groups, through) if groups else through

    def _groups(self, step: Step) -> Sequence[Sequence[int]]:
        if step.op.linear == "each":
            return [(i,) for i in range(len(step.operands))]
        return step.op.linear

    def _ready(self, step: Step, moving: Sequence[int], groups: Sequence[Sequence[int]], through: Through) -> Through:
        """A linear step that runs once: no two of what moves are multiplied."""
        grouped_in = {i: g for g in groups for i in g}
        chosen = [i for i in moving if i in grouped_in]
        if any(sum(i in g for i in chosen) > 1 for g in groups):
            return through
        count = range(len(step.operands))
        zeros = [i in grouped_in and not any(j in grouped_in[i] for j in chosen) for i in count]
        outputs = frozenset(n for n in step.node.outputs if n in self.live)
        return Linear(through.pushforward, through.steps, [i in chosen for i in count], zeros, outputs)

    def _plain(self, step: Step, moving: Sequence[int]) -> bool:
        tensors = [*(step.operands[i] for i in moving), step.node.outputs[0]]
        return all(self.values.like(n).dtype == _FLOAT64 for n in tensors)

    def _linear(self, step: Step, moving: Sequence[int]) -> Any:
        """The kernel itself, on zeros for what does not move."""
        operands: list[Any] = [n if i in moving else 0.0 for i, n in enumerate(step.operands)]
        expression = expressed(step.op.forward, operands) if step.op.linear == "each" else None
        return None if expression is None else (expression, operands)

    def _slopes(self, index: int, step: Step, moving: Sequence[int]) -> Any:
        """The sum of slopes times tangents, where all slopes are finite."""
        slopes = [self._slope(index, step, i) for i in moving]
        if not all(s is not None and s.dtype == _FLOAT64 for s in slopes):
            return None
        products = [("multiply", s, step.operands[i]) for s, i in zip(slopes, moving, strict=True)]
        return total(*products), [leaf for _, *factors in products for leaf in factors]

    def _slope(self, index: int, step: Step, i: int) -> Array | None:
        """The slope by operand i as the pushforward has it, whose rounding is measured; None where it is not finite."""
        slope = self.pushforward.slope(index, step, i)
        return slope if np.isfinite(slope).all() else None
