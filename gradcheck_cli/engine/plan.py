"""The steps of a program, prepared once for all chunks of probes: operands of each kernel, and fused steps."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gradcheck_cli.autodiff.tape import Step
from gradcheck_cli.autodiff.weights import TapeValues
from gradcheck_cli.graph import Array, between, is_inexact
from gradcheck_cli.op.batching import elementwise, shape_only, trailing
from gradcheck_cli.op.boxes import as_stack
from gradcheck_cli.op.fusion import Formula, FusedSteps, expressed, segments

_CHAINED = (np.dtype(np.float32), np.dtype(np.float64))
_FEWEST = 2  # steps that are fused: NumPy runs a single step as fast


def steps_between(steps: Sequence[Step], probes: Sequence[str], targets: set[str]) -> list[tuple[int, Step]]:
    """The steps of a tape that probes reach and targets need, with their numbers."""

    def through(step: Step, reached: Collection[str]) -> list[str]:
        reads = {*(() if step.op.batching is shape_only else step.operands), *step.statics}
        fed = any(n in reached for n in step.node.outputs)
        return [] if fed or reads.isdisjoint(reached) else [n for n in step.node.outputs if n]

    return [(i, steps[i]) for i in between(steps, probes, targets, through, lambda step: step.node.inputs)]


@dataclass(frozen=True, slots=True)
class Ready:
    """A part of a program that runs at once.

    results  name, dtype and rank of each result
    dies     names of the tensors that nothing reads after this part
    """

    results: tuple[tuple[str, np.dtype[Any], int], ...]
    dies: tuple[str, ...]

    def keep(self, live: dict[str, Any], made: Sequence[Any]) -> bool:
        """Adds results to the live stacks, in their dtypes; True if each has its rank and the axis of probes."""
        even = True
        for (name, dtype, rank), value in zip(self.results, made, strict=False):
            if name:
                stack = value if type(value) is np.ndarray else as_stack(value)
                live[name] = stack if stack.dtype == dtype else stack.astype(dtype)
                even = even and len(stack.shape) == rank + 1
        for name in self.dies:
            live.pop(name, None)
        return even


@dataclass(frozen=True, slots=True)
class Planned(Ready):
    """Step number `index` of the tape, which lies between probes and outputs.

    operands  names, each with a flag: a probe reaches it
    direct    the kernel takes stacks as they are, without a batching rule
    rebound   a probe reaches the step's metadata
    decides   the step takes a branch or has a discrete result
    """

    index: int
    step: Step
    operands: tuple[tuple[str, bool], ...]
    direct: bool
    rebound: bool
    decides: bool

    def run(self, live: Mapping[str, Array], values: TapeValues, *, even: bool) -> Sequence[Any]:
        """Results of the kernel for whole stacks; `even` if each has the rank of its tensor and the axis of probes."""
        step = self.step
        operands = [
            live[n] if probed else None if not n else values.operand(step.op, n) if step.op.widens else values[n]
            for n, probed in self.operands
        ]
        if self.direct and even:
            made = step.op.forward(*operands, **step.metadata)
        else:
            made = step.op.batching(step.op.forward, operands, [probed for _, probed in self.operands], step.metadata)
        return made if step.op.many else (made,)


@dataclass(frozen=True, slots=True)
class Fused(Ready):
    """Steps that run as one fused kernel."""

    steps: Sequence[Planned]
    fused: FusedSteps

    def run(self, live: Mapping[str, Array], values: TapeValues, *, even: bool) -> Sequence[Any]:
        """Results of the fused kernel for whole stacks."""
        made = self.fused.run(live)
        if made is None:
            made = dict(live)
            for step in self.steps:
                even = step.keep(made, step.run(made, values, even=even)) and even
        return [made[name] for name, _, _ in self.results]


def fused(steps: Sequence[Planned], outputs: Collection[str], values: TapeValues) -> list[Planned | Fused]:
    """The same steps, with elementwise ones that follow one another fused."""
    nodes = [ready.step.node for ready in steps]
    formulas = [_formula(ready, values) for ready in steps]
    found: list[Planned | Fused] = []
    for segment in segments(nodes, formulas, outputs, lambda n: values.like(n).shape, _FEWEST):
        mine = [steps[s] for s in segment.steps]
        if segment.fused is None:
            found.append(replace(mine[0], dies=tuple(segment.dies)))
        else:
            results = {each[0]: each for ready in mine for each in ready.results}
            wanted = tuple(results[name] for name in segment.fused.results)
            alone = [replace(ready, dies=()) for ready in mine]  # later segments may still read these
            found.append(Fused(wanted, tuple(segment.dies), alone, segment.fused))
    return found


def _formula(ready: Planned, values: TapeValues) -> Formula | None:
    """The expression of an elementwise step of exact operations on floating-point numbers of one dtype; else None."""
    step, (name, dtype, _) = ready.step, ready.results[0]
    if step.op.batching is not elementwise or step.op.many or ready.decides or ready.rebound or step.metadata:
        return None
    plain = dtype in _CHAINED and all(n and n not in values.recipes and values[n].dtype == dtype for n in step.operands)
    reads = [n if probed else values[n] for n, probed in ready.operands] if plain else []
    expression = expressed(step.op.forward, reads) if plain else None
    return None if expression is None else Formula(name, values.like(name).shape, dtype, expression, reads)


def planned(
    steps: Sequence[tuple[int, Step]],
    reached: Collection[str],
    dies: Mapping[int, Sequence[str]],
    values: TapeValues,
) -> list[Planned]:
    """The steps, prepared in order; `dies` has, by position, the tensors that nothing reads after a step."""
    return [_ready(index, step, reached, tuple(dies.get(i, ())), values) for i, (index, step) in enumerate(steps)]


def _ready(index: int, step: Step, reached: Collection[str], dies: tuple[str, ...], values: TapeValues) -> Planned:
    like = {n: values.like(n) for n in (*step.node.outputs, *step.operands) if n}
    results = tuple((n, like[n].dtype, like[n].ndim) if n else ("", np.dtype(float), 0) for n in step.node.outputs)
    decides = step.op.branch is not None or any(not is_inexact(dtype) for name, dtype, _ in results if name)
    operands = tuple((n, n in reached) for n in step.operands)
    rank = max((like[n].ndim for n in step.operands if n), default=0)
    full = all(like[n].ndim == rank for n, probed in operands if probed)
    direct = step.op.batching is trailing or (step.op.batching is elementwise and full)
    return Planned(results, dies, index, step, operands, direct, any(n in reached for n in step.statics), decides)
