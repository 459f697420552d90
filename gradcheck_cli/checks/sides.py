"""Both sides of a check at one point: the tape that rules are applied to and that probes run on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from gradcheck_cli.autodiff.tape import Tape
from gradcheck_cli.autodiff.trace import trace
from gradcheck_cli.compare.foreign import try_kernels
from gradcheck_cli.engine.chunks import Budget
from gradcheck_cli.engine.program import Program
from gradcheck_cli.graph import Array, Graph
from gradcheck_cli.graph.memory import owned
from gradcheck_cli.jacobian.coloring import Structure
from gradcheck_cli.jacobian.cost import COLORED_STEP, COLORED_WORK, SOON, Cost, forward_work, full_cost, pattern_work
from gradcheck_cli.jacobian.directions import reals
from gradcheck_cli.jacobian.spread import probe_work
from gradcheck_cli.op import Ops
from gradcheck_cli.points.point import Point
from gradcheck_cli.settings import Settings

if TYPE_CHECKING:
    from gradcheck_cli.checks.diagnose.suspects import Surveyor


_BACKWARD = 3  # forward runs that a backward pass is worth
_PROBES = 8  # forward runs of a row where others evaluate y: theirs and ours at the same points


class Sides:
    """One tape for one y, in float64; `narrow` is the run in the model's own dtype, if that is to be looked at.

    Either Jacobian comes from `tape`; `fed` is what both runs start from.
    """

    def __init__(
        self, tape: Tape, y: str, settings: Settings, narrow: Tape | None = None, fed: Mapping[str, Any] | None = None
    ) -> None:
        self.tape, self.y, self.settings, self.narrow, self.fed = tape, y, settings, narrow, fed or {}
        self.half: Callable[[], Tape | None] = lambda: None  # the run of a model in half precision, if it has that
        try_kernels(tape)
        self._programs: dict[str, Program] = {}
        self._structures: dict[str, Structure] = {}

    @classmethod
    def at(cls, point: Point, graph: Graph, y: str, xs: Sequence[str], settings: Settings, ops: Ops) -> Sides:
        """The sides at a point, for all xs."""
        tape = point.tape
        if settings.run_in != "model":
            return cls(tape, y, settings)
        feeds = {name: tape.values[tape.named[name].name] if name in tape.named else point.feeds[name]
                 for name in point.feeds}  # fmt: skip
        wanted = [name for name in (y, *xs) if name in tape.named or name in tape.blocked]
        wide = trace(graph, feeds, ops=ops, seed=settings.seed, targets=wanted, lenient=True)
        return cls(wide, y, settings, tape, feeds)

    @cached_property
    def surveyor(self) -> Surveyor:
        """What looks at every node on its own."""
        from gradcheck_cli.checks.diagnose.suspects import (
            Surveyor,  # brings what a check in full needs after a failure only
        )

        return Surveyor(self.tape)

    @cached_property
    def held(self) -> int:
        """Bytes of the values on the tape when this is first asked for."""
        return owned(self.tape.values.values())

    def program(self, x: str) -> Program:
        """What leads from x to y on the numerical side."""
        if x not in self._programs:
            named = self.tape.named
            self._programs[x] = Program(self.tape, [named[x].name], [named[self.y].name])
        return self._programs[x]

    def structure(self, x: str) -> Structure:
        """The sparsity of the Jacobian by x, with colors of its rows where probing each alone would take its time."""
        if x not in self._structures:
            program, settings = self.program(x), self.settings
            work = forward_work(program) * (reals(self.value(x)) + _BACKWARD * reals(self.value(self.y)))
            colors = settings.coloring and work >= COLORED_WORK + COLORED_STEP * len(program.steps)
            self._structures[x] = Structure(program, Budget(settings.memory_limit, settings.jobs), colors=colors)
        return self._structures[x]

    def cost(self, x: str) -> Cost:
        """What comparing all entries would take; the colors of the rows count where they matter and are soon known."""
        program, rows, columns = self.program(x), reals(self.value(x)), reals(self.value(self.y))
        live = Structure(program, Budget()).alone
        cost = full_cost(program, rows, columns, live)
        if self.settings.forward == "onnxruntime":  # to which every row is a question of its own
            return replace(cost, work=cost.work + _PROBES * rows * forward_work(program))
        if cost.work < SOON or cost.memory > self.settings.memory_limit:
            return cost
        coloring = self.structure(x).coloring if pattern_work(program, rows) <= SOON else None
        if coloring is not None:
            return full_cost(program, rows, columns, coloring.count)
        return full_cost(program, rows, columns, live, probe_work(program))

    def theory_name(self, name: str) -> str:
        """A tensor's name on the theoretical side's tape."""
        return self.tape.named[name].name

    def value(self, name: str) -> Array:
        """The value of a tensor on the numerical side."""
        return self.tape.named[name].value
