"""What became of one y where the forward run was held against somebody else's: by onnxruntime, or shipped outputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gradcheck_cli.autodiff.tape import Tape
from gradcheck_cli.graph import Graph, describe
from gradcheck_cli.points.test_data import Expected

if TYPE_CHECKING:
    from gradcheck_cli.checks.forward.stepwise import Differing

CODE = "GC404"


@dataclass(slots=True)
class Held:
    """One y over all points: whom it was compared with, the largest errors, and how it differs, if it does.

    `drawn` says why it is not compared, `said` what is to be known although it agrees; `refused`: onnxruntime does not
    take the model.
    """

    y: str
    others: list[str] = field(default_factory=list)
    errors: tuple[float, float] = (0.0, 0.0)
    bound: float = 0.0
    how: list[str] = field(default_factory=list)
    first: Differing | None = None
    said: str = ""
    drawn: str = ""
    refused: bool = False

    @property
    def compared(self) -> bool:
        """It was held against somebody's run."""
        return bool(self.others)

    def compare(self, other: str, absolute: float, relative: float) -> None:
        """Takes note of how far it is from another run."""
        if other not in self.others:
            self.others.append(other)
        self.errors = max(self.errors[0], absolute), max(self.errors[1], relative)

    def differ(self, how: str, first: Differing | None = None) -> None:
        """Takes note of a difference that rounding does not explain."""
        if not self.how or (self.first is None and first is not None):
            self.first = first
        if how not in self.how:
            self.how.append(how)

    def shipped(self, expected: Expected, tape: Tape, y: str) -> None:
        """Holds it against what ships with the model."""
        found = expected.comparison(tape, y)
        if found is None:
            return
        self.compare(expected.folder, found.absolute, found.relative)
        self.bound = max(self.bound, found.bound)
        if found.how:
            self.differ(found.how)

    def record(self, graph: Graph, reason: str) -> dict[str, Any]:
        """The field `forward` of a record; `reason` says why it was compared with nobody, if it was not."""
        if not self.compared:
            return _forward(None, None, reason=_first_line(self.drawn or reason), refused=self.refused)
        agrees, others = not self.how, " and ".join(self.others)
        numbers = {"max_abs_err": self.errors[0], "max_rel_err": self.errors[1], "bound": self.bound}
        first = None if self.first is None else _spot(graph, self.first.index)
        told = "\n".join(self.how) or self.said or (_first_line(reason) if self.refused else "")
        return _forward(others, agrees, reason=told, first_node=first, refused=self.refused, **numbers)


def differs_at(graph: Graph, first: Differing) -> str:
    """The sentence about the first node that differs."""
    node = f"{describe(first.index, graph.nodes[first.index])}, {first.name!r}"
    return f".\nThe first result that differs is that of {node}: {first.how}"


def _forward(compared_with: str | None, agrees: bool | None, **more: Any) -> dict[str, Any]:
    code = CODE if agrees is False else None
    nothing = {"max_abs_err": None, "max_rel_err": None, "bound": None, "first_node": None, "refused": False}
    return {"compared_with": compared_with, "agrees": agrees, "code": code, **nothing, **more}


def _spot(graph: Graph, index: int) -> Mapping[str, Any]:
    node = graph.nodes[index]
    return {"node": index, "op": node.op, "name": node.name, "outputs": list(node.outputs)}


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0][:400] if text.strip() else text
