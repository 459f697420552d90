"""The cost of a check, counted before it runs: the same on every machine, so that the mode chosen is too."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from typing import TypeVar
from weakref import WeakKeyDictionary

from msgspec import Struct

from gradcheck_cli.autodiff.reach import steps_computing
from gradcheck_cli.autodiff.tape import Step, Tape
from gradcheck_cli.engine.program import Program
from gradcheck_cli.verdict.rule import Nonzeros

_ELEMENTWISE = 20.0  # operations that an entry of an ordinary result counts as
_READ = 6.0  # and an entry that is read for it, where there are more of those
_WINDOWED, _CHOSEN = 8.0, 60.0  # and for each tap along an axis of a window: what is summed, what is compared
_DENSE = ("products", "taps", "spread taps")
COLORED_WORK, COLORED_STEP = 5e6, 2e5  # operations that looking for colors counts as, and for each step on the way
SOON = 1e9  # operations that nobody waits for: some tenths of a second
FULL_WORK = 1e11  # operations that a full check may take: some ten seconds on two cores
HELD = 28  # bytes of an entry: of both sides, of what the numerical one can have wrong, of what its status takes
HELD_CELL = 96  # bytes of an entry of a compressed one: the same, its place, its color's answer, and copies of these
OPERATIONS = 1.5e10  # in a second, roughly
_STEP = 5e6  # operations that all passes over a step count as besides: Python, some tenths of a millisecond
ENTRY = 300.0  # operations that comparing one entry counts as
_PASSES = 1.25  # times as many colors of columns as the fullest row has entries, about
_RUNS = {"nodes": 200.0, "directional": 100.0, "sampled": 400.0}  # of the model that the other modes are worth
_UNIT = {"nodes": 3e7}  # operations that a step on its own counts as besides


T = TypeVar("T")


def once(find: Callable[[Program], T]) -> Callable[[Program], T]:
    """A function of a program that finds its result once for each."""
    found: WeakKeyDictionary[Program, T] = WeakKeyDictionary()

    @wraps(find)
    def known(program: Program) -> T:
        if program not in found:
            found[program] = find(program)
        return found[program]

    return known


class Cost(Struct, frozen=True):
    """Predicted size of a full check: entries of the Jacobian, operations, bytes for both Jacobians."""

    entries: int
    work: float
    memory: int

    @property
    def seconds(self) -> float:
        """A rough time for it, the same on every machine."""
        return self.work / OPERATIONS


def duration(seconds: float) -> str:
    """A time in words: "12 min"."""
    for unit, name in ((86400.0, "days"), (3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.0f} {name}"
    return f"{max(seconds, 1):.0f} s"


def full_cost(
    program: Program,
    rows: int,
    columns: int,
    probed: int | None = None,
    probe: float | None = None,
    cells: Nonzeros | None = None,
) -> Cost:
    """The cost of all rows by the complex step, and all columns by one backward pass each.

    probed  probes that tell all rows: as many as colors, or rows that reach anything
    probe   operations of one; those of a whole run where it is not known to reach less
    cells   entries that are kept, where the others are zero by the structure of the model: then columns share passes
            as rows share probes
    """
    one, probes = forward_work(program), rows if probed is None else probed
    kept = rows * columns if cells is None else cells.columns.size
    passes = columns if cells is None else min(columns, _PASSES * cells.columns.shape[1])
    work = probes * (one if probe is None else probe) + 3.0 * passes * one
    memory = (HELD if cells is None else HELD_CELL) * kept
    return Cost(rows * columns, work + ENTRY * kept + _STEP * len(program.steps), memory)


def partial_work(program: Program, mode: str) -> float:
    """Operations of a check in a mode that does not compare all entries."""
    return _RUNS[mode] * forward_work(program) + _UNIT.get(mode, _STEP) * len(program.steps)


def survey_work(tape: Tape, y: str) -> float:
    """Operations of checking each step that y follows from on its own."""
    steps = [tape.steps[index] for index in steps_computing(tape, [y])]
    return _RUNS["nodes"] * sum(step_work(tape, step) for step in steps) + _UNIT["nodes"] * len(steps)


def pattern_work(program: Program, rows: int) -> float:
    """Operations that finding the sparsity pattern takes: some for each word of each entry on the way."""
    made = sum(program.tape.values[n].size for _, step in program.steps for n in step.node.outputs if n)
    return _ELEMENTWISE * made * (rows / 64)


@once
def forward_work(program: Program) -> float:
    """Operations of one probe."""
    return sum(step_work(program.tape, step) for _, step in program.steps) or 1.0


def step_work(tape: Tape, step: Step) -> float:
    """Operations of one step of a run."""
    made = sum(tape.values[n].size for n in step.node.outputs if n and n in tape.values)
    cost = step.op.cost
    if callable(cost):
        return cost(*(tape.values.like(n).shape if n else () for n in step.operands))
    if cost not in _DENSE or len(step.operands) < 2:
        read = 0 if cost == "picks" else max((tape.values.like(n).size for n in step.operands if n), default=0)
        taps = float(sum(step.metadata.get("kernel_shape") or (0,)))
        window = taps * (_CHOSEN if cost == "maxima" else _WINDOWED)
        slow = cost if isinstance(cost, float) else 1.0
        return slow * max(_ELEMENTWISE * made, _READ * read) + window * max(made, read)
    if cost == "spread taps":
        return 2.0 * tape.values[step.operands[0]].size * terms(tape, step)
    return 2.0 * made * terms(tape, step)


def terms(tape: Tape, step: Step) -> float:
    """Number of products or entries that one entry of a result is the sum of, for a transposed convolution at most."""
    shapes = [tape.values.like(n).shape for n in step.operands[:2] if n]
    if step.op.cost in _DENSE and len(shapes) == 2:
        if step.op.cost == "products" and shapes[0]:
            return float(shapes[0][-1])
        return float(math.prod(shapes[1][1:]))
    made = max((tape.values[n].size for n in step.node.outputs if n and n in tape.values), default=0)
    read = max((tape.values.like(n).size for n in step.operands if n), default=0)
    return read / made if made else 0.0
