"""What a check will cost, counted before it runs: the same on every machine, so that the mode chosen is too."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gradcheck_cli.program import Program
from gradcheck_cli.step import Step
from gradcheck_cli.tape import Tape

_ELEMENTWISE = 20.0  # operations that an entry of an ordinary result counts as
_WINDOWED = 8.0  # and as many more for each entry of the window that it is made from
_DENSE = {"MatMul", "Conv", "ConvTranspose", "Einsum"}
FULL_WORK = 1e11  # operations that a full check may take: some ten seconds on two cores
_ENTRY = 300.0  # operations that comparing one entry counts as


@dataclass(frozen=True, slots=True)
class Cost:
    """Predicted size of a full check: entries of the Jacobian, operations, bytes for both Jacobians."""

    entries: int
    work: float
    memory: int

    @property
    def seconds(self) -> float:
        """A rough time for it."""
        return self.work / 1.5e10

    @property
    def duration(self) -> str:
        """A rough time for it, as one says it: 31 h."""
        for unit, name in ((3600.0, "h"), (60.0, "min")):
            if self.seconds >= unit:
                return f"{self.seconds / unit:.0f} {name}"
        return f"{max(self.seconds, 1):.0f} s"


def full_cost(program: Program, rows: int, columns: int) -> Cost:
    """The cost of all rows by the complex step and all columns by one backward pass each."""
    one = forward_work(program)
    return Cost(rows * columns, (rows + 3.0 * columns) * one + _ENTRY * rows * columns, 3 * 8 * rows * columns)


def forward_work(program: Program) -> float:
    """Operations of one probe."""
    return sum(_work(program.tape, step) for _, step in program.steps) or 1.0


def _work(tape: Tape, step: Step) -> float:
    made = sum(tape.values[n].size for n in step.node.outputs if n and n in tape.values)
    if step.op.name not in _DENSE or len(step.operands) < 2:
        window = np.prod(step.metadata.get("kernel_shape") or (0,))
        return (_ELEMENTWISE + _WINDOWED * float(window)) * made
    shapes = [tape.values[n].shape for n in step.operands[:2]]
    if step.op.name == "ConvTranspose":
        return 2.0 * tape.values[step.operands[0]].size * float(np.prod(shapes[1][1:]))
    inner = shapes[0][-1] if step.op.name in ("MatMul", "Einsum") and shapes[0] else np.prod(shapes[1][1:])
    return 2.0 * made * float(inner)
