"""Inputs of a model whose values are metadata of operators: sizes, axes, modes.

A gradient file is learned from some runs.  What such an input decides has to differ between them, or the file would hold
for one value alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import numpy as np

from gradcheck_cli.autodiff.reach import Dependence
from gradcheck_cli.autodiff.tape import Step, Tape
from gradcheck_cli.export.runs import needed
from gradcheck_cli.graph import Array, is_inexact
from gradcheck_cli.model import Model


def sizing(model: Model, tape: Tape, outputs: Sequence[str], fixed: Collection[str]) -> Iterator[str]:
    """Inputs of several integers on whose values the shapes of tensors behind them depend."""
    read = {n for step in needed(tape, [tape.named[name].name for name in outputs]) for n in step.node.reads}
    for name in model.graph.free_inputs:
        like = tape.values.get(name) if name not in fixed else None
        several = like is not None and like.dtype.kind in "iu" and like.size > 1
        if several and not read.isdisjoint(Dependence.on([name], tape, model.graph).shapes):
            yield name


def settling(model: Model, tape: Tape, fixed: Collection[str]) -> Iterator[str]:
    """Inputs whose values are metadata of an operator on numbers: an axis, a mode.

    Where its result is selected by data, its derivative reads what was selected, however many these are.
    """
    metadata = {
        n for step in tape.steps if step.op.moves != "selected" and _of_numbers(tape, step) for n in step.statics
    }
    for node in model.graph.nodes:  # of composed operators no step has them
        op = tape.ops.get((node.domain, node.op))
        static = op.static.values() if op is not None and op.moves != "selected" else ()
        given = (node.inputs[i] for i in static if i < len(node.inputs))
        metadata.update(tape.named[n].name for n in given if n in tape.named and _inexact(tape, node.outputs))
    for name in model.graph.free_inputs:
        if name not in fixed and name in tape.values and not metadata.isdisjoint(_valued(model, tape, name)):
            yield name


def _inexact(tape: Tape, names: Iterable[str]) -> bool:
    """True if any of some tensors of the model holds numbers that may have a derivative."""
    return any(n in tape.named and is_inexact(tape.named[n].dtype) for n in names)


def _of_numbers(tape: Tape, step: Step) -> bool:
    return any(n in tape.values and is_inexact(tape.values.like(n).dtype) for n in step.outputs)


def _valued(model: Model, tape: Tape, name: str) -> Collection[str]:
    return Dependence.on([name], tape, model.graph).values


def unchanged(found: Mapping[str, Sequence[Array]]) -> list[str]:
    """The names whose values are all equal."""
    return [n for n, values in found.items() if all(np.array_equal(v, values[0]) for v in values)]
