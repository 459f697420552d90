"""What on a tape depends on the values that were fed: values of tensors, and shapes.

A tape was run once.  What it says of a shape, and which way it took at a branch, holds for other values only where
neither depends on them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gradcheck_cli.graph import Graph
from gradcheck_cli.lift import shape_only
from gradcheck_cli.step import Step
from gradcheck_cli.tape import Tape

_COUNTED = {  # operands in which an operator counts what makes its shape
    "Compress": (1,), "NonMaxSuppression": (0, 1), "NonZero": (0,), "Range": (0, 1, 2), "StringSplit": (0,), "Unique": (0,),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Dependence:
    """Names of tensors: whose values depend on what was fed, and whose shapes do."""

    values: frozenset[str]
    shapes: frozenset[str]

    @staticmethod
    def on(fed: Iterable[str], tape: Tape, graph: Graph) -> Dependence:
        """What depends on the values of some tensors on the tape of a graph; their own shapes are given."""
        values, shapes, known = set(fed), set[str](), -1
        choosing = {index: node for index, node in enumerate(graph.nodes) if any(node.subgraphs)}
        while known != len(values) + len(shapes):  # a choice that is found to depend changes what comes before it
            known = len(values) + len(shapes)
            if not values.isdisjoint(tape.guards):
                made = {tape.named[n].name for node in choosing.values() for n in node.outputs if n in tape.named}
                made.update(n for step in tape.steps if step.origin in choosing for n in step.node.outputs)
                values, shapes = values | made, shapes | made
            for step in tape.steps:
                _spread(step, values, shapes)
        return Dependence(frozenset(values), frozenset(shapes))


def _spread(step: Step, values: set[str], shapes: set[str]) -> None:
    """Add what a step makes to what depends on values."""
    read = () if step.op.lift is shape_only else step.operands
    counted = {step.operands[i] for i in _COUNTED.get(step.op.name, ()) if i < len(step.operands)}
    moved = not shapes.isdisjoint(step.operands)
    if moved or not values.isdisjoint(counted.union(step.statics)):
        shapes.update(step.node.outputs)
    if moved or not values.isdisjoint([*read, *step.statics]):
        values.update(step.node.outputs)
