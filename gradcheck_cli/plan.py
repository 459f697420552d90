"""The steps of a program made ready: what a run would otherwise find out again for every chunk of probes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gradcheck_cli.graph import Array, is_inexact
from gradcheck_cli.lift import elementwise, trailing
from gradcheck_cli.regions.patch import as_stack
from gradcheck_cli.step import Step
from gradcheck_cli.weights import Values


@dataclass(frozen=True, slots=True)
class Planned:
    """A step between probes and outputs: number `index` of the tape.

    operands  names with whether a probe reaches them; results  names with the dtype and the rank that they have
    direct    a kernel takes stacks as they are, without a lift; rebound  a probe reaches its metadata
    decides   something discrete is computed here; dies  what nobody reads any more
    """

    index: int
    step: Step
    operands: tuple[tuple[str, bool], ...]
    results: tuple[tuple[str, np.dtype[Any], int], ...]
    direct: bool
    rebound: bool
    decides: bool
    dies: tuple[str, ...]

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
    return Planned(index, step, operands, results, direct, any(n in reached for n in step.statics), decides, dies)
