"""What on a tape depends on the values that were fed: values of tensors, and shapes.

A tape was run once.  What it says of a shape, and which way it took at a branch, holds for other values only where
neither depends on them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gradcheck_cli.autodiff.step import Step
from gradcheck_cli.autodiff.tape import Tape
from gradcheck_cli.graph import Graph
from gradcheck_cli.op.batching import shape_only

_COUNTED = {  # operands in which an operator counts what makes its shape
    "Compress": (1,), "NonMaxSuppression": (0, 1), "NonZero": (0,), "Range": (0, 1, 2), "StringSplit": (0,), "Unique": (0,),
}  # fmt: skip

_COUNTING = {"Shape", "Size"}  # what these give has the same shape whatever is counted


@dataclass(frozen=True, slots=True)
class Dependence:
    """Names of tensors: whose values depend on what was fed, and whose shapes do."""

    values: frozenset[str]
    shapes: frozenset[str]

    @staticmethod
    def on(fed: Iterable[str], tape: Tape, graph: Graph, shaped: Iterable[str] = ()) -> Dependence:
        """What depends on the values of some tensors on the tape of a graph.

        Their own shapes are given; those of `shaped` are known to depend on values.
        """
        values, shapes, known = set(fed), set(shaped), -1
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
    if "kept" in step.metadata:
        shapes.update(_shaped_by(step, values, shapes))
    elif step.op.name not in _COUNTING and (moved or not values.isdisjoint(counted.union(step.statics))):
        shapes.update(step.node.outputs)
    if moved or not values.isdisjoint([*read, *step.statics]):
        values.update(step.node.outputs)


def _shaped_by(step: Step, values: set[str], shapes: set[str]) -> set[str]:
    """Outputs of a node with graphs inside whose shapes depend on values, by what is known of it (`export.kept.Kept`)."""
    kept, read = step.metadata["kept"], set(step.operands)
    moved, fed = not shapes.isdisjoint(read), not values.isdisjoint(kept.counted)
    followed = {i: x in shapes for i, x in enumerate(kept.like)}

    def depends(i: int) -> bool:
        return followed.get(i, (moved and i in kept.loose) or (fed and i in kept.ragged))

    return {y for i, y in enumerate(step.outputs) if y and depends(i)}
