"""What an ONNX file says beside its graph: properties, documentation, versions; read from one and put into another."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from onnx import ModelProto, TensorProto

from gradcheck_cli.formats.onnx.file import opened, parse_model
from gradcheck_cli.formats.onnx.onnx_outline import Outline
from gradcheck_cli.graph.memory import require

_PARSED = 100  # bytes that a message takes at most, for each of the file


def outline_of(path: Path) -> ModelProto:
    """The model in a file, without the numbers of its large tensors."""
    with opened(path) as file:
        data = Outline(file).data
    require(_PARSED * len(data), "its graph")
    return parse_model(data, str(path))


def has_external_data(model: ModelProto) -> bool:
    """Some of its tensors lie in other files."""
    return any(tensor.data_location == TensorProto.EXTERNAL for tensor in model.graph.initializer)


def put_heading(model: ModelProto, original: ModelProto) -> None:
    """Let a model say what another one says of itself, and of each thing that both have by its name."""
    for field in ("domain", "doc_string"):
        if getattr(original, field):
            setattr(model, field, getattr(original, field))
    if original.model_version:
        model.model_version = original.model_version
    model.metadata_props.extend(original.metadata_props)
    graph, before = model.graph, original.graph
    if before.doc_string:
        graph.doc_string = before.doc_string
    for kind in ("input", "output", "initializer"):
        _put_docs(getattr(graph, kind), {each.name: each.doc_string for each in getattr(before, kind)}, "name")
    _put_docs(graph.node, {tuple(node.output): node.doc_string for node in before.node}, "output")
    there = {*(t.name for t in graph.initializer), *(name for node in graph.node for name in node.output)}
    graph.quantization_annotation.extend(q for q in before.quantization_annotation if q.tensor_name in there)


def _put_docs(things: Iterable[Any], docs: dict[Any, str], key: str) -> None:
    for thing in things:
        name = getattr(thing, key)
        doc = docs.get(name if isinstance(name, str) else tuple(name))
        if doc:
            thing.doc_string = doc
