"""One backward pass that keeps nothing: it gives the cotangent of each tensor between y and x once it is complete.

Rules run on a tape that drops the steps they add, so that memory holds only cotangents that are still incomplete, and
the tape of the forward run does not change.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from gradcheck_cli.autodiff.backward import Unit, check_rules, pull_back, units_between
from gradcheck_cli.autodiff.tape import Step, Tape, Var
from gradcheck_cli.graph import Array


class Passing(Tape):
    """A tape that keeps nothing: results live as long as their `Var`s; values of the forward run can be read."""

    def __init__(self, forward: Tape) -> None:
        super().__init__(forward.ops, dtype=forward.dtype, seed=forward.seed)
        self.values = forward.values

    def hold(self, name: str, value: Any) -> Var:
        """A value that no step computes; its name is not registered."""
        return self.weight(name, np.asarray(value))

    def weight(self, name: str, array: Array) -> Var:
        """The same for a constant."""
        dtype = np.dtype(object) if array.dtype.kind in "US" else self.widen(array.dtype)
        return Var(self, name, array.astype(dtype, copy=False))

    def recorded(self, make: Callable[[], Step], results: Sequence[Array]) -> tuple[Var, ...]:
        return tuple([Var(self, "computed", y) for y in results])


class Descent:
    """The backward pass from y to xs.  NoGradientError if an operator on the way has no rule.

    `unit` is the one whose rule ran last; `broken`, if watched, the first whose rule made NaN or infinity of finite
    cotangents.
    """

    def __init__(self, tape: Tape, y: str, xs: Sequence[str], *, watched: bool = True) -> None:
        self.tape, self.y, self.xs, self.watched = tape, y, frozenset(xs), watched
        self.units = units_between(tape, xs, [y])
        self.unit: Unit | None = None
        self.broken: Unit | None = None
        self.passing = Passing(tape)
        check_rules(self.units)

    def cotangents(self, cotangent: Array) -> Iterator[tuple[str, Array]]:
        """Names and cotangents of all tensors on the way, y first, and of other differentiated operands."""
        pending = {self.y: cotangent}
        readers = Counter(name for unit in self.units for name in _operands(unit))
        made = {name for unit in self.units for name in unit.outputs}
        for unit in reversed(self.units):
            cts = {n: ct for n in unit.outputs if n and (ct := pending.pop(n, None)) is not None}
            yield from cts.items()
            for name, ct in self._pulled(unit, cts):
                pending[name] = pending[name] + ct if name in pending else ct
            readers.subtract(_operands(unit))
            whole = [n for n in _operands(unit) if not readers[n] and n not in made and n in pending]
            yield from ((name, pending.pop(name)) for name in whole)
        yield from pending.items()  # y itself, if there are no units

    def _pulled(self, unit: Unit, cts: Mapping[str, Array]) -> list[tuple[str, Array]]:
        """Cotangents of a unit's operands."""
        if not cts:
            return []
        self.unit = unit
        flows = [flow for names in self._turns(unit) for flow in self._applied(unit, cts, names)]
        if self.watched and self.broken is None and not all(_finite(ct) for _, ct in flows):
            self.broken = unit if all(map(_finite, cts.values())) else None
        return flows

    def _turns(self, unit: Unit) -> list[set[str]]:
        """Groups of operands whose cotangents are computed together; large weights get one of their own."""
        names = _operands(unit)
        large = names & self.tape.values.recipes.keys()
        return [names - large, *({name} for name in sorted(large))]

    def _applied(self, unit: Unit, cts: Mapping[str, Array], names: set[str]) -> list[tuple[str, Array]]:
        """Cotangents of some operands by the rule, beside a large weight on a tape that can recompute it."""
        tape: Tape = self.passing
        if not self.tape.values.recipes.keys().isdisjoint((*unit.operands, *unit.outputs)):
            tape = Tape(self.tape.ops, dtype=self.tape.dtype, seed=self.tape.seed)
            tape.values = self.tape.values.part((*unit.operands, *unit.outputs))
            tape.fixed.update(tape.values.recipes)
        held = [tape.hold(tape.fresh("ct"), cts[n]) if n in cts else None for n in unit.outputs]
        return [(name, ct.value) for name, ct in pull_back(tape, unit, held, names)]


def squared(flat: Array) -> float:
    """The sum of squares without a copy; NaN for complex numbers."""
    return float(np.einsum("i,i", flat, flat)) if flat.dtype.kind == "f" else math.nan


def _finite(ct: Array) -> bool:
    flat = ct.reshape(-1)
    return math.isfinite(squared(flat)) or bool(np.isfinite(flat).all())


def _operands(unit: Unit) -> set[str]:
    return {name for name in unit.operands if name}
