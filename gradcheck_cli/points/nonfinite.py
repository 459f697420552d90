"""Where a run stops being finite, and which inputs lead there: those whose range may be at fault."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from gradcheck_cli.autodiff.step import Step
from gradcheck_cli.autodiff.tape import Tape


def first_nonfinite(tape: Tape, ends: Iterable[str]) -> Step | None:
    """The first step on the way to some tensors of a tape whose result is not finite though its operands are."""
    needed = ancestors(tape, ends)
    for step in tape.steps:
        if needed.isdisjoint(step.node.outputs) or all(_is_finite(tape, n) for n in step.node.outputs):
            continue
        if all(_is_finite(tape, n) for n in step.operands):
            return step
    return None


def ancestors(tape: Tape, names: Iterable[str]) -> set[str]:
    """Every tensor of a tape that some tensors were computed from, those included."""
    found = set(names)
    for step in reversed(tape.steps):
        if not found.isdisjoint(step.node.outputs):
            found.update((*step.operands, *step.statics))
    return found


def leading(tape: Tape, targets: Sequence[str], inputs: Iterable[str]) -> list[str]:
    """The inputs that lead to the first result on the way to the targets that is not finite."""
    step = first_nonfinite(tape, [tape.named[n].name for n in targets if n in tape.named])
    before = ancestors(tape, () if step is None else (*step.operands, *step.statics))
    return [n for n in inputs if n in tape.named and tape.named[n].name in before]


def _is_finite(tape: Tape, name: str) -> bool:
    if not name or name not in tape.values or tape.values.like(name).dtype.kind not in "fc":
        return True
    return bool(np.isfinite(tape.values[name]).all())
