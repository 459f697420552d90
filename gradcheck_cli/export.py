"""A model with its derivatives as a graph of primitive operators, written to an ONNX file."""

from __future__ import annotations

import os
from collections.abc import Sequence

from gradcheck_cli.errors import UnsupportedError, UsageError
from gradcheck_cli.graph import Graph, Node, TensorType
from gradcheck_cli.model import Model
from gradcheck_cli.settings import Settings
from gradcheck_cli.tape import Step, Tape


def export(model: Model, path: str | os.PathLike[str], outputs: Sequence[str]) -> None:
    """Write the graph that computes `outputs`, in the model's own dtypes, for the shapes of its inputs."""
    from gradcheck_cli.formats.onnx_write import write

    free = model.free_dims
    if free:
        raise UsageError(
            f"{model.source.uri} has open dimensions ({', '.join(free)}): "
            f"load(path, dims={{{free[0]!r}: 8}}) fixes them."
        )
    tape = model.tape(outputs, Settings(dims=model.dims, dtype="model"))
    write(graph_of(model, tape, outputs), path)


def graph_of(model: Model, tape: Tape, outputs: Sequence[str]) -> Graph:
    """The part of a tape that `outputs` need, with the model's inputs and the names of the outputs."""
    steps = _needed(tape, [tape.named[name].name for name in outputs])
    foreign = [s.node for s in steps if s.node.domain == "gradcheck"]
    if foreign:
        raise UnsupportedError(f"{foreign[0].op} works on complex numbers, which ONNX operators do not.")
    renamed = [Node("Identity", (tape.named[n].name,), (n,)) for n in outputs if tape.named[n].name != n]
    nodes = [s.node for s in steps] + renamed
    read = {n for node in nodes for n in node.inputs}
    inputs = tuple(n for n in model.graph.free_inputs if n in read or n in outputs)
    made = {n for node in nodes for n in node.outputs}
    constants = {n: tape.values[n] for n in sorted(read) if n and n not in made and n not in inputs}
    types = {n: TensorType(tape.values[n].dtype, tape.values[n].shape) for n in inputs}
    types.update((n, TensorType(tape.named[n].dtype, tape.named[n].shape)) for n in outputs)
    return Graph(inputs, tuple(outputs), tuple(nodes), constants, types, name=model.graph.name)


def _needed(tape: Tape, names: Sequence[str]) -> list[Step]:
    needed, kept = set(names), []
    for step in reversed(tape.steps):
        if not needed.isdisjoint(step.node.outputs):
            needed.update(step.node.inputs)
            kept.append(step)
    return kept[::-1]
