"""Reads ONNX files: `read` for a path, `read_proto` for a model in memory, `read_test_data` for its test data.

A file that cannot be read raises a GradcheckError whose message begins with the file's name.  A model's training
information becomes initializations and steps: the graph of a step is the model's followed by that of the algorithm,
and bindings say which initializers get the values of which outputs, to start with or for the next step.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError, Message  # type: ignore[import-untyped]
from onnx import (
    MapProto,
    ModelProto,
    OptionalProto,
    SequenceProto,
    StringStringEntryProto,
    TensorProto,
    TrainingInfoProto,
)

from gradcheck_cli.errors import GradcheckError, ModelError, UnsupportedError, did_you_mean
from gradcheck_cli.formats.onnx.file import Outline, opened, parse_model, read_bytes, refuse_broken_text, refuse_pointer
from gradcheck_cli.formats.onnx.graph_proto import Reader, graphs_of, initializers_of, plain
from gradcheck_cli.formats.onnx.opset import NEWEST
from gradcheck_cli.formats.onnx.tensors import TensorSource, text, to_array
from gradcheck_cli.formats.source import AlgorithmStep, Initialization, Source
from gradcheck_cli.graph import Array, Graph, TensorType, containers
from gradcheck_cli.graph.memory import exhausted

_MESSAGES: dict[str, type[Message]] = {"sequence": SequenceProto, "optional": OptionalProto, "map": MapProto}
# The field of an OptionalProto that holds its value, by elem_type; in a SequenceProto its name is the plural.
_FIELDS: dict[int, str] = {
    SequenceProto.TENSOR: "tensor_value",
    SequenceProto.SPARSE_TENSOR: "sparse_tensor_value",
    SequenceProto.SEQUENCE: "sequence_value",
    SequenceProto.MAP: "map_value",
    SequenceProto.OPTIONAL: "optional_value",
}


def read(path: str | os.PathLike[str], kept: Collection[tuple[str, str]] = ()) -> Source:
    """The model in a file; external data is read from the file's folder.

    Calls of the model's functions are their nodes, but for those `kept` as operators, by domain and name.
    """
    file = Path(path)
    with opened(file) as content:
        outline = Outline(content)
        content.seek(0)
        sha256 = hashlib.file_digest(content, "sha256").hexdigest()
        with _errors_about(str(file)):
            model = parse_model(outline.data, str(file))
            return _source(model, TensorSource(str(file), _folders(file), outline), sha256, kept)


def read_proto(model: ModelProto, uri: str = "model") -> Source:
    """A model in memory; ModelError if it has external data, for which there is no folder."""
    with _errors_about(uri):
        return _source(model, TensorSource(uri, ()), "")


def read_tensor(path: str | os.PathLike[str]) -> Array:
    """The array in a `.pb` file of ONNX's test data."""
    array: Array = read_value(path, TensorType())
    return array


def read_value(path: str | os.PathLike[str], declared: TensorType) -> Any:
    """The value in a `.pb` file of ONNX's test data: an array, or a sequence, optional or map of arrays.

    The file does not say which of these it holds, so the declared type has to.
    """
    file = Path(path)
    data = read_bytes(file)
    refuse_pointer(data, str(file))
    message = _MESSAGES.get(declared.kind, TensorProto)()
    try:
        message.ParseFromString(data)
    except DecodeError:
        raise ModelError(f"{file} is no ONNX {declared.kind}.") from None
    refuse_broken_text(message, str(file))
    with _errors_about(str(file)):
        return _value(message, TensorSource(str(file), _folders(file)))


def read_test_data(folder: str | os.PathLike[str], graph: Graph | None = None) -> dict[str, dict[int, Any]]:
    """The values in a folder such as `test_data_set_0`: {"inputs": {position: array}, "outputs": ...}.

    The types in `graph` tell which of them are sequences, optionals or maps; without it all are tensors.
    """
    found: dict[str, dict[int, Any]] = {"inputs": {}, "outputs": {}}
    names: dict[str, tuple[str, ...]] = {} if graph is None else {"inputs": graph.inputs, "outputs": graph.outputs}
    types = {} if graph is None else graph.types
    try:
        files = sorted(os.listdir(folder))
    except OSError as error:
        raise ModelError(f"{folder} cannot be read: {error.strerror}.") from error
    for file in files:
        match = re.fullmatch(r"(input|output)_(\d{1,6})\.pb", file)
        if match:
            side, position = f"{match[1]}s", int(match[2])
            name = dict(enumerate(names.get(side, ()))).get(position, "")
            found[side][position] = read_value(Path(folder) / file, types.get(name, TensorType()))
    return found


def _folders(file: Path) -> tuple[Path, ...]:
    # If the model is itself a link, as in the caches of model hubs, its data may lie beside the target.
    return file.parent, Path(os.path.realpath(file)).parent


@contextmanager
def _errors_about(name: str) -> Iterator[None]:
    """Lets messages of errors begin with a name, of a file or of a part of one."""
    try:
        yield
    except MemoryError as error:
        raise exhausted(error, f"{name} does not fit into memory") from None
    except GradcheckError as error:
        if str(error).startswith((f"{name} ", f"{name}:")):
            raise
        raise type(error)(f"{name}: {error}", code=error.code) from error


def _source(model: ModelProto, tensors: TensorSource, sha256: str, kept: Collection[tuple[str, str]] = ()) -> Source:
    refuse_broken_text(model, tensors.uri)
    reader = Reader(model, tensors, kept)
    opset = reader.opset[""]
    if opset > NEWEST:
        raise UnsupportedError(f"its opset is {opset}; opsets up to {NEWEST} are known.")
    if opset < 1:
        raise ModelError(f"its opset is {opset}; opsets are counted from 1.")
    if not model.graph.output:
        raise ModelError("its graph has no outputs.")
    graph = reader.read(model.graph)
    starts, steps = _training(model, graph, reader)
    return Source(
        graph=graph,
        uri=tensors.uri,
        sha256=sha256,
        opset=reader.opset,
        nodes=sum(len(graph.node) for graph in graphs_of(model.graph)),
        initializations=starts,
        steps=steps,
        functions=frozenset((plain(f.domain), f.name) for f in model.functions),
    )


def _training(
    model: ModelProto, graph: Graph, reader: Reader
) -> tuple[Mapping[str, Initialization], Mapping[str, AlgorithmStep]]:
    """Initializations and steps by name: "training_info", "training_info_1" ...; `graph` is that of the model."""
    starts: dict[str, Initialization] = {}
    steps: dict[str, AlgorithmStep] = {}
    for index, info in enumerate(model.training_info):
        name = f"training_info_{index}" if index else "training_info"
        with _errors_about(name):
            if info.HasField("initialization") or info.initialization_binding:
                starts[name] = _initialization(info, model, graph, reader)
            if info.algorithm.node or info.update_binding:
                made = _step(info, model, graph, reader)
                for other, step in steps.items():
                    if twice := [key for key in made.updates if key in step.updates]:
                        raise ModelError(f"update_binding assigns {twice[0]!r}, which {other} assigns already.")
                steps[name] = made
    return starts, steps


def _initialization(info: TrainingInfoProto, model: ModelProto, graph: Graph, reader: Reader) -> Initialization:
    made = reader.read(info.initialization)
    if made.free_inputs:
        raise ModelError(f"its initialization has an input, {made.free_inputs[0]!r}, which nobody can give.")
    known = [*initializers_of(model.graph, info.algorithm), *graph.inputs]
    bindings = _bindings(info.initialization_binding, "initialization_binding", known, made.outputs)
    return Initialization(made, bindings)


def _step(info: TrainingInfoProto, model: ModelProto, graph: Graph, reader: Reader) -> AlgorithmStep:
    made = reader.extended(graph, info.algorithm)
    known = initializers_of(model.graph, info.algorithm)
    updates = _bindings(info.update_binding, "update_binding", known, made.outputs)
    for name, value in updates.items():
        _require_fit(name, made.constants[name], value, made.types.get(value, TensorType()))
    return AlgorithmStep(made, updates)


def _bindings(
    entries: Iterable[StringStringEntryProto], field: str, known: Iterable[str], made: Iterable[str]
) -> dict[str, str]:
    """Names from `known`, each with the name from `made` whose value it gets."""
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
    """Raises a ModelError if the new value of an initializer is declared with another dtype or shape."""
    sizes = held.shape if declared.shape is None else declared.shape
    pairs = zip(sizes, held.shape, strict=False)
    fits = len(sizes) == held.ndim and all(size == here for size, here in pairs if isinstance(size, int))
    if not fits or declared.dtype not in (None, held.dtype):
        own = TensorType(held.dtype, held.shape)
        raise ModelError(f"update_binding gives {name!r} {own} the value of {value!r} {declared}.")


def _value(message: Message, source: TensorSource) -> Any:
    """The value in a message: an array, or a sequence, optional or map of arrays."""
    if isinstance(message, SequenceProto):
        return containers.Sequence(tuple(_value(item, source) for item in _items(message)))
    if isinstance(message, OptionalProto):
        field = _FIELDS.get(message.elem_type, "")
        held = _value(getattr(message, field), source) if field and message.HasField(field) else None
        return containers.Optional(held)
    if isinstance(message, MapProto):
        return _map(message, source)
    return to_array(message, source)


def _items(message: SequenceProto) -> Any:
    if message.elem_type and message.elem_type not in _FIELDS:
        raise ModelError(f"sequence {message.name!r} holds values of the unknown kind {message.elem_type}.")
    return getattr(message, f"{_FIELDS[message.elem_type]}s") if message.elem_type else ()


def _map(message: MapProto, source: TensorSource) -> containers.Map:
    keys: tuple[Any, ...] = tuple(message.keys) or tuple(map(text, message.string_keys))
    values = _value(message.values, source).items
    if len(keys) != len(values) or len(set(keys)) < len(keys):
        raise ModelError(f"map {message.name!r} has {len(set(keys))} different keys and {len(values)} values.")
    if not all(isinstance(value, np.ndarray) and value.size == 1 for value in values):
        raise ModelError(f"map {message.name!r} holds values that are no single numbers or strings.")
    return containers.Map(keys, np.asarray([value.item() for value in values], values[0].dtype if values else None))
