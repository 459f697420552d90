"""A unit of a tape on a tape of its own, which holds its steps and the values they read and nothing else.

What its rule adds goes away with it, and no error of another node can reach it there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np

from gradcheck_cli.autodiff.backward import Unit, pull_back
from gradcheck_cli.autodiff.step import Region
from gradcheck_cli.autodiff.symbolic import reshape, slice
from gradcheck_cli.autodiff.tape import Tape, Var
from gradcheck_cli.engine.chunks import Budget
from gradcheck_cli.engine.program import Program
from gradcheck_cli.errors import GradcheckError
from gradcheck_cli.graph import Array
from gradcheck_cli.jacobian.cost import forward_work
from gradcheck_cli.jacobian.directions import reals
from gradcheck_cli.jacobian.jacobian import Backward


class Alone:
    """A unit on a tape of its own: `y` are the outputs asked for, one behind the other, `backward` its rule."""

    def __init__(self, tape: Tape, unit: Unit, operands: Sequence[str], outputs: Sequence[str], budget: Budget) -> None:
        self.unit, self.operands, self.outputs, self.budget = unit, tuple(operands), tuple(outputs), budget
        self.tape = part_of(tape, unit.steps, (*unit.operands, *unit.outputs))
        self.tape.regions = [_whole(unit)] if len(unit.steps) > 1 else []
        self.y = _joined(self.tape, self.outputs)
        self.programs = {name: Program(self.tape, [name], [self.y]) for name in self.operands}
        self.backward = _Rule(self.tape, unit, self.y, self.outputs, self.operands)

    @cached_property
    def jacobians(self) -> list[Array]:
        """Theoretical Jacobians `(x_size, y_size)` by each operand."""
        return self.backward.jacobians(self.budget)

    @cached_property
    def spreads(self) -> list[Array]:
        """How far rounding may move their entries."""
        return self.backward.spreads(self.jacobians, self.budget)

    @property
    def columns(self) -> int:
        """How many reals the outputs have."""
        return reals(self.tape.values[self.y])

    def rows(self, operand: str) -> int:
        """How many reals an operand has."""
        return reals(self.tape.values[operand])

    def work(self, operand: str) -> float:
        """Operations of one run."""
        return forward_work(self.programs[operand])


class _Rule(Backward):
    """A unit's rule as a backward pass: from a cotangent of its outputs to those of its operands."""

    def __init__(self, tape: Tape, unit: Unit, y: str, outputs: Sequence[str], operands: Sequence[str]) -> None:
        self.tape, self.y, self.xs = tape, y, tuple(operands)
        self.seed = tape.hold(tape.fresh(f"{y}/seed"), np.ones_like(tape.values[y]))
        cts = _divided(self.seed, outputs) if outputs != (y,) else {y: self.seed}
        found: dict[str, Var] = {}
        for name, ct in pull_back(tape, unit, [cts.get(n) for n in unit.outputs], self.xs):
            found[name] = found[name] + ct if name in found else ct
        self.cts = [found.get(name) for name in self.xs]
        self.program = Program(tape, [self.seed.name], [ct.name for ct in self.cts if ct is not None])


def pulled(tape: Tape, unit: Unit, given: Mapping[str, Array]) -> list[tuple[str, Array]] | None:
    """Cotangents of a unit's operands from those of its outputs; None where its rule cannot be run."""
    alone = part_of(tape, unit.steps, (*unit.operands, *unit.outputs))
    cts = [alone.hold(alone.fresh(f"{n}/ct"), given[n]) if n in given else None for n in unit.outputs]
    try:
        return [(name, flow.value) for name, flow in pull_back(alone, unit, cts)]
    except (GradcheckError, ValueError, TypeError, LookupError, ArithmeticError, RuntimeError):
        return None


def _whole(unit: Unit) -> Region:
    """A unit as the composition that it is on a tape of its own."""
    return Region(
        0, len(unit.steps), unit.op, unit.operands, unit.outputs, unit.metadata, unit.label, unit.place
    )  # fmt: skip


def part_of(tape: Tape, steps: range, names: Sequence[str] = ()) -> Tape:
    """A tape with nothing but some steps and the values that they read and make, and those of some more tensors."""
    part = Tape(tape.ops, dtype=tape.dtype, seed=tape.seed)
    part.steps = tape.steps[steps.start : steps.stop]
    part.regions = tape.regions[:] if len(steps) == len(tape.steps) else []
    made = {n for step in part.steps for n in step.node.outputs}
    operands = {n for region in part.regions for n in region.operands if n}  # no step may read some of them
    wanted = {*names, *made, *operands, *(n for step in part.steps for n in step.node.inputs)}
    part.values = tape.values.part(wanted)
    part.fixed.update(part.values.recipes)
    part.guards = [n for n in tape.guards if n in made]
    return part


def _joined(tape: Tape, outputs: Sequence[str]) -> str:
    """One tensor with all entries of the outputs."""
    if len(outputs) == 1:
        return outputs[0]
    parts = [reshape(tape.var(name), (tape.values[name].size,)) for name in outputs]
    return tape.apply("Concat", *parts, axis=0).name


def _divided(seed: Var, outputs: Sequence[str]) -> dict[str, Var]:
    """The cotangent of each output, from that of all of them."""
    cts, start = {}, 0
    for name in outputs:
        like = seed.tape.values[name]
        cts[name] = reshape(slice(seed, (start,), (start + like.size,), (0,)), like.shape)
        start += like.size
    return cts
