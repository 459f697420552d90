"""The two sides of a check at one point: the tape that the rules are applied to, and the one that probes run on."""

from __future__ import annotations

from collections.abc import Sequence

from gradcheck_cli.cost import Cost, full_cost
from gradcheck_cli.graph import Array, Graph
from gradcheck_cli.jacobian import reals
from gradcheck_cli.op import Ops
from gradcheck_cli.point import Point
from gradcheck_cli.program import Program
from gradcheck_cli.settings import Settings
from gradcheck_cli.tape import Tape
from gradcheck_cli.trace import trace


class Sides:
    """Both tapes for one y: one and the same, unless the gradient in the model's own dtype is checked.

    Then only the theoretical side is in that dtype; the numerical one stays in float64.
    """

    def __init__(self, theory: Tape, numeric: Tape, y: str) -> None:
        self.theory, self.numeric, self.y = theory, numeric, y
        self._programs: dict[str, Program] = {}

    @classmethod
    def at(cls, point: Point, graph: Graph, y: str, xs: Sequence[str], settings: Settings, ops: Ops) -> Sides:
        """The sides at a point, for all xs."""
        tape = point.tape
        if settings.dtype != "model":
            return cls(tape, tape, y)
        feeds = {name: tape.values[tape.named[name].name] if name in tape.named else point.feeds[name]
                 for name in point.feeds}  # fmt: skip
        wanted = [name for name in (y, *xs) if name in tape.named]
        return cls(tape, trace(graph, feeds, ops=ops, seed=settings.seed, targets=wanted, lenient=True), y)

    @property
    def tapes(self) -> tuple[Tape, ...]:
        """The tapes, each of them once."""
        return (self.theory,) if self.theory is self.numeric else (self.theory, self.numeric)

    def program(self, x: str) -> Program:
        """What leads from x to y on the numerical side."""
        if x not in self._programs:
            named = self.numeric.named
            self._programs[x] = Program(self.numeric, [named[x].name], [named[self.y].name])
        return self._programs[x]

    def cost(self, x: str) -> Cost:
        """What comparing all entries would take."""
        return full_cost(self.program(x), reals(self.value(x)), reals(self.value(self.y)))

    def theory_name(self, name: str) -> str:
        """A tensor's name on the theoretical side's tape."""
        return self.theory.named[name].name

    def value(self, name: str) -> Array:
        """The value of a tensor on the numerical side."""
        return self.numeric.named[name].value
