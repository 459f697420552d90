"""A model with its derivatives as a graph of primitive operators, written to an ONNX file.

The graph is that of one run: loops are unrolled, shapes are constants.  Where either follows from values of an input,
the file would be wrong for others, and is refused.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gradcheck_cli.backward import units_between
from gradcheck_cli.compound import inside
from gradcheck_cli.dependence import Dependence
from gradcheck_cli.errors import UnsupportedError, UsageError
from gradcheck_cli.graph import Array, Graph, Node, TensorType
from gradcheck_cli.model import Model
from gradcheck_cli.points.dims import declared_shape, symbol
from gradcheck_cli.settings import Settings
from gradcheck_cli.step import Step
from gradcheck_cli.tape import Tape

_BEYOND_ONNX = {"Cofactors": "takes the place of determinants of more minors than a file should compute"}


def export(model: Model, path: str | os.PathLike[str], outputs: Sequence[str], feeds: Mapping[str, Any]) -> None:
    """Write the graph that computes `outputs`, in the model's own dtypes, with the tensors in `feeds` as constants."""
    from gradcheck_cli.formats.onnx_write import write

    twice = next((name for i, name in enumerate(outputs) if name in outputs[:i]), None)
    if twice is not None:
        raise UsageError(f"outputs: {twice!r} is given twice; a file has one output of a name.")
    tape = model.tape(outputs, Settings(dims=model.dims, extra_feed_dict=feeds, dtype="model"))
    graph = graph_of(model, tape, outputs, feeds)
    free = list(_free_dims(model, graph.inputs))
    if free:
        raise UsageError(
            f"{model.source.uri} has open dimensions ({', '.join(free)}): "
            f"load(path, dims={{{free[0]!r}: 8}}) fixes them."
        )
    write(graph, path)


def graph_of(model: Model, tape: Tape, outputs: Sequence[str], feeds: Mapping[str, Any]) -> Graph:
    """The part of a tape that `outputs` need, with the model's inputs and the names of the outputs."""
    for name in outputs:
        if name not in tape.named:
            raise tape.blocked.get(name) or UnsupportedError(
                f"{name!r} is no tensor; a file of derivatives holds those."
            )
    steps = _needed(tape, [tape.named[name].name for name in outputs])
    read = {n for step in steps for n in step.node.inputs}.union(tape.named[n].name for n in outputs)
    inputs = tuple(n for n in model.graph.inputs if n in read and n not in feeds)
    free = {n for n in model.graph.free_inputs if n not in feeds}
    dependence = _require_lasting(model, tape, outputs, steps, {*inputs, *free})
    made = {n for step in steps for n in step.node.outputs}
    fed = {*feeds, *(v.name for n in feeds if n in tape.compounds for v in inside(tape.compounds[n]))}
    constants = {n: _constant(tape, n, fed) for n in sorted(read - made - free) if n}
    types = {n: TensorType(tape.values[n].dtype, tape.values[n].shape) for n in inputs}
    for name in outputs:
        var, varies = tape.named[name], tape.named[name].name in dependence.shapes
        types[name] = TensorType(var.dtype, (None,) * var.ndim if varies else var.shape)
    own = _own_names(tape, outputs)
    nodes = [_renamed(step.node, own) for step in steps]
    nodes += [Node("Identity", (own.get(v.name, v.name),), (n,)) for n in outputs if (v := tape.named[n]).name != n]
    constants = {own.get(n, n): value for n, value in constants.items()}
    return Graph(inputs, tuple(outputs), tuple(nodes), constants, types, name=model.graph.name)


def _own_names(tape: Tape, outputs: Sequence[str]) -> dict[str, str]:
    """New names for tensors of this run that an output is called by: handles got theirs from a run at other values."""
    clashing = [n for n in outputs if n in tape.values and tape.named[n].name != n]
    return {n: tape.fresh(n) for n in clashing}


def _renamed(node: Node, names: Mapping[str, str]) -> Node:
    inputs, outputs = (tuple(names.get(n, n) for n in part) for part in (node.inputs, node.outputs))
    return replace(node, inputs=inputs, outputs=outputs)


def _needed(tape: Tape, names: Sequence[str]) -> list[Step]:
    needed, kept = set(names), []
    for step in reversed(tape.steps):
        if not needed.isdisjoint(step.node.outputs):
            needed.update(step.node.inputs)
            kept.append(step)
    return kept[::-1]


def _require_lasting(
    model: Model, tape: Tape, outputs: Sequence[str], steps: Sequence[Step], inputs: Collection[str]
) -> Dependence:
    """UnsupportedError for what is right at the values of this run only; else what depends on the inputs."""
    found = Dependence.on(inputs, tape, model.graph)
    for step in steps:
        if step.node.domain == "gradcheck":
            reason = _BEYOND_ONNX.get(step.node.op, "works on complex numbers, which ONNX operators do not")
            raise UnsupportedError(f"{step.node.op} {reason}.")
    for guard in tape.guards:
        if guard in found.values:
            raise _passing(model, tape, inputs, f"the way through a branch or a loop follows from {guard!r}", guard)
    for name in _shapes_read(model, tape, outputs, steps):
        if name in found.shapes:
            raise _passing(model, tape, inputs, f"the shape of {name!r} follows from values", name)
    return found


def _shapes_read(model: Model, tape: Tape, outputs: Sequence[str], steps: Sequence[Step]) -> Iterator[str]:
    """Tensors whose shapes rules and compositions have as constants."""
    for request in model.requests_for(outputs):
        xs, ys = ([tape.named[name].name for name in names] for names in (request.xs, request.ys))
        yield from (*xs, *ys)
        for unit in units_between(tape, xs, ys, request.stop):
            yield from (*unit.operands, *unit.outputs)
    own = set(model.graph.tensors)
    for step in steps:
        if own.isdisjoint(step.node.outputs):
            yield from (*step.operands, *step.node.outputs)


def _passing(model: Model, tape: Tape, inputs: Iterable[str], what: str, name: str) -> UnsupportedError:
    """The error for what only these values of the inputs make right, with the inputs to fix."""
    found = {n: Dependence.on([n], tape, model.graph) for n in sorted(inputs)}
    causes = [n for n, dependence in found.items() if name in dependence.values | dependence.shapes]
    fixed = ", ".join(f"{n!r}: ..." for n in causes)
    return UnsupportedError(f"{what}, which a file cannot hold for every value. Fix it: save(..., feeds={{{fixed}}}).")


def _constant(tape: Tape, name: str, fed: Collection[str]) -> Array:
    if name not in tape.constants and name not in fed:
        raise UnsupportedError(f"{name!r} is part of an input that is no tensor; a file of derivatives holds tensors.")
    return tape.values[name]


def _free_dims(model: Model, inputs: Sequence[str]) -> Iterator[str]:
    """Open dimensions of some inputs to which `load` gave no size."""
    named = (
        symbol(n, i, d)
        for n in inputs
        for i, d in enumerate(declared_shape(model.graph, n) or ())
        if not isinstance(d, int)
    )
    yield from (d for d in dict.fromkeys(named) if d in model.free_dims)
