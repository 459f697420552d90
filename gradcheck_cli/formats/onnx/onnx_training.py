"""Training information of an ONNX model: steps of a training algorithm as graphs of their own, and what they start from.

A step's graph is the model's with the algorithm's behind it, which reads what the model computes.  Bindings say which
initializers then get the values of which outputs: by a step for the next one, or by an initialization for the first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TypeVar

from onnx import GraphProto, ModelProto, StringStringEntryProto, TrainingInfoProto

from gradcheck_cli.errors import GradcheckError, ModelError, did_you_mean
from gradcheck_cli.formats.onnx.graph_proto import Reader
from gradcheck_cli.formats.source import Initialization, Step
from gradcheck_cli.graph import Array, Graph, TensorType

_P = TypeVar("_P")


def training_of(
    model: ModelProto, graph: Graph, reader: Reader
) -> tuple[Mapping[str, Initialization], Mapping[str, Step]]:
    """Initializations and steps by name: "training_info", "training_info_1" ...; `graph` is that of the model."""
    parts = {f"training_info_{i}" if i else "training_info": info for i, info in enumerate(model.training_info)}
    starts = {
        name: _within(name, partial(_initialization, info, model, graph, reader))
        for name, info in parts.items()
        if info.HasField("initialization") or info.initialization_binding
    }
    steps = {
        name: _within(name, partial(_step, info, model, graph, reader))
        for name, info in parts.items()
        if info.algorithm.node or info.update_binding
    }
    _assigned_once(steps)
    return starts, steps


def _within(name: str, action: Callable[[], _P]) -> _P:
    """The result of an action; its errors say which training information they are about."""
    try:
        return action()
    except GradcheckError as error:
        raise type(error)(f"{name}: {error}", code=error.code) from error


def _initialization(info: TrainingInfoProto, model: ModelProto, graph: Graph, reader: Reader) -> Initialization:
    made = reader.read(info.initialization)
    if made.free_inputs:
        raise ModelError(f"its initialization has an input, {made.free_inputs[0]!r}, which nobody can give.")
    known = [*_initializers(model.graph, info.algorithm), *graph.inputs]
    bindings = _bindings(info.initialization_binding, "initialization_binding", known, made.outputs)
    return Initialization(made, bindings)


def _step(info: TrainingInfoProto, model: ModelProto, graph: Graph, reader: Reader) -> Step:
    made = reader.extended(graph, info.algorithm)
    known, outputs = _initializers(model.graph, info.algorithm), (*made.outputs,)
    updates = _bindings(info.update_binding, "update_binding", known, outputs)
    for name, value in updates.items():
        _require_fit(name, made.constants[name], value, made.types.get(value, TensorType()))
    return Step(made, updates)


def _initializers(*graphs: GraphProto) -> list[str]:
    dense = [tensor.name for graph in graphs for tensor in graph.initializer]
    return [*dense, *(sparse.values.name for graph in graphs for sparse in graph.sparse_initializer)]


def _bindings(
    entries: Iterable[StringStringEntryProto], field: str, known: Iterable[str], made: Iterable[str]
) -> dict[str, str]:
    """Which of the `known` tensors gets the value of which of those that are `made`."""
    found, known, made = dict[str, str](), [*known], [*made]
    for entry in entries:
        if entry.key in found:
            raise ModelError(f"{field} assigns {entry.key!r} twice.")
        if entry.key not in known:
            hint = did_you_mean(entry.key, known)
            raise ModelError(f"{field} assigns {entry.key!r}, which is no initializer of the model.{hint}")
        if entry.value not in made:
            hint = did_you_mean(entry.value, made)
            raise ModelError(f"{field} gives {entry.key!r} the value of {entry.value!r}, which is no output.{hint}")
        found[entry.key] = entry.value
    return found


def _require_fit(name: str, held: Array, value: str, declared: TensorType) -> None:
    """ModelError where what replaces an initializer is declared to be something else."""
    sizes = held.shape if declared.shape is None else declared.shape
    pairs = zip(sizes, held.shape, strict=False)
    fits = len(sizes) == held.ndim and all(size == here for size, here in pairs if isinstance(size, int))
    if not fits or declared.dtype not in (None, held.dtype):
        own = TensorType(held.dtype, held.shape)
        raise ModelError(f"update_binding gives {name!r} {own} the value of {value!r} {declared}.")


def _assigned_once(steps: Mapping[str, Step]) -> None:
    owner: dict[str, str] = {}
    for name, step in steps.items():
        for key in step.updates:
            if key in owner:
                raise ModelError(f"{name}: update_binding assigns {key!r}, which {owner[key]} assigns already.")
            owner[key] = name
