"""The trap of 0 * inf: a cotangent of zero, of a result that nobody uses, becomes NaN at a slope that is not finite.

`where(x > 0, log(x), 0)` is finite everywhere, and its gradient is NaN where x is not positive: Where hands log a
cotangent of 0 there, and 0 / 0 or 0 * NaN is no number.  Every rule is right by itself; the model has to keep the operand
inside of the domain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gradcheck_cli.autodiff.backward import Unit
from gradcheck_cli.autodiff.tape import Tape
from gradcheck_cli.checks.diagnose.alone import pulled
from gradcheck_cli.graph import Array, is_inexact

_CURE = "clamp its operand inside of the branch, as in where(c, f(where(c, x, 1)), ...), not its result"


@dataclass(frozen=True, slots=True)
class Trap:
    """The node whose slope, or result, is not finite where nobody uses it, and what is to be said of it."""

    unit: Unit
    position: int  # among the nodes on the way
    what: str  # "0 * inf = NaN in the branch that node 3 Where 'd' does not take"

    @property
    def diagnosis(self) -> str:
        """What is wrong with the node, and its cure."""
        return f"the gradient is {self.what}: {_CURE}"

    @property
    def message(self) -> str:
        """What is wrong with the model."""
        return f"the gradient is not finite: {self.what}, behind {_where(self.unit)}"


def trap_of(tape: Tape, units: Sequence[Unit], cts: dict[str, Array]) -> Trap | None:
    """Where the first NaN of a backward pass from some cotangents on comes from, if from cotangents of zero."""
    pending = {name: np.array(ct) for name, ct in cts.items()}
    for at in reversed(range(len(units))):
        unit = units[at]
        given = {n: pending[n] for n in unit.outputs if n in pending}
        if not given:
            continue
        made = pulled(tape, unit, given)
        if made is None:
            return None
        if any(not np.isfinite(ct).all() for _, ct in made):
            silent = any((ct == 0).any() for ct in given.values())
            return _named(tape, units, at, pending) if silent else None
        for name, ct in made:
            pending[name] = pending[name] + ct if name in pending else ct
    return None


def _named(tape: Tape, units: Sequence[Unit], at: int, pending: dict[str, Array]) -> Trap:
    """The trap whose NaN unit number `at` makes: the node that left its domain first, and the one that hides it."""
    root = _root(tape, units, at)
    unit, selector = units[root], _selector(units, at, pending)
    where = f" in what {_where(selector)} does not take" if selector is not None else " where nobody uses its result"
    if selector is not None and (selector.place.op or selector.op.name) == "Where":
        where = f" in the branch that {_where(selector)} does not take"
    what = "0 * NaN" if not _finite(tape, units[at].operands) or not _finite(tape, unit.outputs) else "0 * inf"
    return Trap(unit, root, f"{what} = NaN{where}")


def _root(tape: Tape, units: Sequence[Unit], at: int) -> int:
    """The first unit on the way to unit `at` that makes something that is not finite; itself where none does."""
    wanted, found = set(units[at].operands), at
    for i in reversed(range(at)):
        if wanted.isdisjoint(units[i].outputs) or _finite(tape, [n for n in units[i].outputs if n in wanted]):
            continue
        found = i
        wanted.update(units[i].operands)
    return found


def _selector(units: Sequence[Unit], at: int, pending: dict[str, Array]) -> Unit | None:
    """The unit behind unit `at` that gets a cotangent at every entry and hands on zeros."""
    names = set(units[at].outputs)
    for unit in units[at + 1 :]:
        if names.isdisjoint(unit.operands):
            continue
        full = all(bool(np.asarray(pending[n]).all()) for n in unit.outputs if n in pending)
        if full and any(not np.asarray(pending[n]).all() for n in names.intersection(unit.operands) if n in pending):
            return unit
        names.update(unit.outputs)
    return None


def _finite(tape: Tape, names: Sequence[str]) -> bool:
    values = (tape.values[n] for n in names if n and n in tape.values)
    return all(bool(np.isfinite(value).all()) for value in values if is_inexact(value.dtype))


def _where(unit: Unit) -> str:
    return unit.place.of(unit.place.op or unit.op.name, unit.place.label or unit.label)
