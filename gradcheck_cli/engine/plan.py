"""The steps of a program made ready: what a run would otherwise find out again for every chunk of probes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gradcheck_cli.autodiff.tape import Step
from gradcheck_cli.autodiff.weights import Values
from gradcheck_cli.graph import Array, is_inexact
from gradcheck_cli.op.batching import elementwise, shape_only, trailing
from gradcheck_cli.op.boxes import as_stack
from gradcheck_cli.op.fusion import Chain, Formula, expressed, parts

_CHAINED = (np.dtype(np.float32), np.dtype(np.float64))
_FEWEST = 2  # steps of a chain: NumPy runs one as fast


def between(steps: Sequence[Step], probes: Sequence[str], targets: set[str]) -> list[tuple[int, Step]]:
    """Steps of a tape that probes reach and targets need, with their numbers."""
    reached = set(probes)
    forward = []
    for index, step in enumerate(steps):
        reads = {*(() if step.op.lift is shape_only else step.operands), *step.statics}
        if not reached.isdisjoint(reads) and reached.isdisjoint(step.node.outputs):
            reached.update(n for n in step.node.outputs if n)
            forward.append((index, step))
    needed, kept = set(targets), []
    for index, step in reversed(forward):
        if not needed.isdisjoint(step.node.outputs):
            needed.update(step.node.inputs)
            kept.append((index, step))
    return kept[::-1]


@dataclass(frozen=True, slots=True)
class Ready:
    """What runs at once.

    results  names with the dtype and the rank that they have; dies  what nobody reads any more
    """

    results: tuple[tuple[str, np.dtype[Any], int], ...]
    dies: tuple[str, ...]

    def keep(self, live: dict[str, Any], made: Sequence[Any]) -> bool:
        """Put results among the live stacks, in their dtypes, and say whether all have their ranks."""
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
    """A step between probes and outputs: number `index` of the tape.

    operands  names with whether a probe reaches them
    direct    a kernel takes stacks as they are, without a lift; rebound  a probe reaches its metadata
    decides   something discrete is computed here
    """

    index: int
    step: Step
    operands: tuple[tuple[str, bool], ...]
    direct: bool
    rebound: bool
    decides: bool

    def run(self, live: Mapping[str, Array], values: Values, *, even: bool) -> Sequence[Any]:
        """What the kernel makes of whole stacks; `even` if all of them have the rank that they are to have."""
        step = self.step
        operands = [
            live[n] if probed else None if not n else values.operand(step.op, n) if step.op.widens else values[n]
            for n, probed in self.operands
        ]
        if self.direct and even:
            made = step.op.forward(*operands, **step.metadata)
        else:
            made = step.op.lift(step.op.forward, operands, [probed for _, probed in self.operands], step.metadata)
        return made if step.op.many else (made,)


@dataclass(frozen=True, slots=True)
class Joined(Ready):
    """Steps that are one chain."""

    steps: Sequence[Planned]
    chain: Chain

    def run(self, live: Mapping[str, Array], values: Values, *, even: bool) -> Sequence[Any]:
        """What the chain makes of whole stacks."""
        made = self.chain.run(live)
        if made is None:
            made = dict(live)
            for step in self.steps:
                even = step.keep(made, step.run(made, values, even=even)) and even
        return [made[name] for name, _, _ in self.results]


def joined(steps: Sequence[Planned], outputs: Collection[str], values: Values) -> list[Planned | Joined]:
    """The same steps, of which elementwise ones that follow one another are chains."""
    nodes = [ready.step.node for ready in steps]
    formulas = [_formula(ready, values) for ready in steps]
    found: list[Planned | Joined] = []
    for part in parts(nodes, formulas, outputs, lambda n: values.like(n).shape, _FEWEST):
        mine = [steps[s] for s in part.steps]
        if part.chain is None:
            found.append(replace(mine[0], dies=tuple(part.dies)))
        else:
            results = {each[0]: each for ready in mine for each in ready.results}
            wanted = tuple(results[name] for name in part.chain.results)
            alone = [replace(ready, dies=()) for ready in mine]  # later parts may read what was to die here
            found.append(Joined(wanted, tuple(part.dies), alone, part.chain))
    return found


def _formula(ready: Planned, values: Values) -> Formula | None:
    """What an elementwise step computes, where it is exact operations on floating-point numbers of one dtype."""
    step, (name, dtype, _) = ready.step, ready.results[0]
    if step.op.lift is not elementwise or step.op.many or ready.decides or ready.rebound or step.metadata:
        return None
    plain = dtype in _CHAINED and all(n and n not in values.recipes and values[n].dtype == dtype for n in step.operands)
    reads = [n if probed else values[n] for n, probed in ready.operands] if plain else []
    expression = expressed(step.op.forward, reads) if plain else None
    return None if expression is None else Formula(name, values.like(name).shape, dtype, expression, reads)


def planned(
    steps: Sequence[tuple[int, Step]],
    reached: Collection[str],
    dies: Mapping[int, Sequence[str]],
    values: Values,
) -> list[Planned]:
    """The steps, in order; `dies` says by position in them what is not read any more."""
    return [_ready(index, step, reached, tuple(dies.get(i, ())), values) for i, (index, step) in enumerate(steps)]


def _ready(index: int, step: Step, reached: Collection[str], dies: tuple[str, ...], values: Values) -> Planned:
    like = {n: values.like(n) for n in (*step.node.outputs, *step.operands) if n}
    results = tuple((n, like[n].dtype, like[n].ndim) if n else ("", np.dtype(float), 0) for n in step.node.outputs)
    decides = step.op.branch is not None or any(not is_inexact(dtype) for name, dtype, _ in results if name)
    operands = tuple((n, n in reached) for n in step.operands)
    rank = max((like[n].ndim for n in step.operands if n), default=0)
    full = all(like[n].ndim == rank for n, probed in operands if probed)
    direct = step.op.lift is trailing or (step.op.lift is elementwise and full)
    return Planned(results, dies, index, step, operands, direct, any(n in reached for n in step.statics), decides)
