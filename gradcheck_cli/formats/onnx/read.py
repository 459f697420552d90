"""Reads ONNX files: `read` for a path, `read_proto` for a model, `read_test_data` for what ships with one.

Every file that cannot be read is a `ModelError` whose message begins with the file's name.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from onnx import ModelProto

from gradcheck_cli.errors import GradcheckError, ModelError, UnsupportedError
from gradcheck_cli.formats.onnx.file import opened, parse_model, read_bytes, refuse_broken_text, refuse_pointer
from gradcheck_cli.formats.onnx.graph_proto import Reader
from gradcheck_cli.formats.onnx.onnx_outline import Outline
from gradcheck_cli.formats.onnx.onnx_scope import graphs_of
from gradcheck_cli.formats.onnx.onnx_training import training_of
from gradcheck_cli.formats.onnx.onnx_values import parse_value, to_value
from gradcheck_cli.formats.onnx.opset import NEWEST
from gradcheck_cli.formats.onnx.tensors import Store
from gradcheck_cli.formats.source import Source
from gradcheck_cli.graph import Array, Graph, TensorType
from gradcheck_cli.graph.memory import exhausted

_T = TypeVar("_T")


def read(path: str | os.PathLike[str]) -> Source:
    """The model in a file, its external data read from the file's folder."""
    file = Path(path)
    with opened(file) as content:
        outline = Outline(content)
        content.seek(0)
        sha256 = hashlib.file_digest(content, "sha256").hexdigest()
        model = _naming(str(file), lambda: parse_model(outline.data, str(file)))
        return _naming(str(file), lambda: _source(model, Store(str(file), _folders(file), outline), sha256))


def read_proto(
    model: ModelProto,
    uri: str = "model",
    folder: str | os.PathLike[str] | Iterable[Path] | None = None,
    sha256: str = "",
) -> Source:
    """A model in memory; external data is looked for in `folder` (of several, in the first)."""
    folders = (Path(folder),) if isinstance(folder, (str, os.PathLike)) else tuple(folder or ())
    return _naming(uri, lambda: _source(model, Store(uri, folders), sha256))


def read_tensor(path: str | os.PathLike[str]) -> Array:
    """The array in a `.pb` file of ONNX's test data."""
    array: Array = read_value(path, TensorType())
    return array


def read_value(path: str | os.PathLike[str], declared: TensorType) -> Any:
    """What a `.pb` file of ONNX's test data holds: an array, or a record of arrays where the type is no tensor's."""
    file = Path(path)
    data = read_bytes(file).data
    refuse_pointer(data, str(file))
    message = parse_value(data, declared, str(file))
    refuse_broken_text(message, str(file))
    return _naming(str(file), lambda: to_value(message, Store(str(file), _folders(file))))


def read_test_data(folder: str | os.PathLike[str], graph: Graph | None = None) -> dict[str, dict[int, Any]]:
    """The values in a folder such as `test_data_set_0`: {"inputs": {position: array}, "outputs": ...}.

    `graph` declares which of them are sequences, optionals or maps; without it all are tensors.
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
    # A model that is itself a link, as in the caches of model hubs, has its data where it really lies.
    return file.parent, Path(os.path.realpath(file)).parent


def _source(model: ModelProto, store: Store, sha256: str) -> Source:
    refuse_broken_text(model, store.uri)
    reader = Reader(model, store)
    opset = reader.opset[""]
    if opset > NEWEST:
        raise UnsupportedError(f"its opset is {opset}; opsets up to {NEWEST} are known.")
    if opset < 1:
        raise ModelError(f"its opset is {opset}; opsets are counted from 1.")
    if not model.graph.output:
        raise ModelError("its graph has no outputs.")
    graph = reader.read(model.graph)
    starts, steps = training_of(model, graph, reader) if model.training_info else ({}, {})
    return Source(
        graph=graph,
        uri=store.uri,
        sha256=sha256,
        opset=reader.opset,
        nodes=sum(len(graph.node) for graph in graphs_of(model.graph)),
        initializations=starts,
        steps=steps,
    )


def _naming(uri: str, action: Callable[[], _T]) -> _T:
    """The result of an action; its errors begin with the file's name."""
    try:
        return action()
    except MemoryError as error:
        raise exhausted(error, f"{uri} does not fit into memory") from None
    except GradcheckError as error:
        if str(error).startswith((f"{uri} ", f"{uri}:")):
            raise
        raise type(error)(f"{uri}: {error}", code=error.code) from error
