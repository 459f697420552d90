"""Writes a model with its derivatives as an ONNX file, never over what it was read from."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradcheck_cli.errors import UsageError, shown
from gradcheck_cli.export.gradient_graph import Written, graph_of
from gradcheck_cli.export.proof import objections
from gradcheck_cli.graph import Graph
from gradcheck_cli.model import Model

if TYPE_CHECKING:
    from onnx import ModelProto


def export(model: Model, path: str | os.PathLike[str], outputs: Sequence[str], feeds: Mapping[str, Any]) -> Written:
    """Write the graph that computes `outputs`, in the model's own dtypes, with the tensors in `feeds` as constants."""
    from gradcheck_cli.formats.onnx.onnx_opset import LOWEST
    from gradcheck_cli.formats.onnx.write import write

    require_other_file(model, Path(path))
    made = graph_of(model, outputs, feeds)
    made = replace(made, graph=_distinct(made.graph), notes=(*made.notes, *objections(model, made, feeds)))
    write(made.graph, path, least=max(LOWEST, model.source.opset.get("", 0)), original=_original(model))
    return made


def _distinct(graph: Graph) -> Graph:
    """The graph with names of nodes that are there once: the first one has it, others get a number behind it."""
    taken, counts = {node.name for node in graph.nodes}, dict[str, int]()
    nodes = []
    for node in graph.nodes:
        name, number = node.name, counts.get(node.name, 0)
        while name and number and name in taken:
            name, number = f"{node.name}_{number}", number + 1
        counts[node.name] = max(number, 1)
        taken.add(name)
        attrs = {key: _distinct(value) if isinstance(value, Graph) else value for key, value in node.attrs.items()}
        nodes.append(replace(node, name=name, attrs=attrs))
    return replace(graph, nodes=tuple(nodes))


def require_other_file(model: Model, path: Path) -> None:
    """UsageError for a file that is the model's own, or that its weights lie in."""
    from gradcheck_cli.formats.companions import belongings
    from gradcheck_cli.formats.onnx.write import data_file

    own = _file(model)
    if own is None:
        return
    files = {os.path.realpath(own), *(os.path.realpath(f) for f in belongings(own, spec=_is_spec(own)).values())}
    for target in (path, data_file(path)):
        if os.path.realpath(target) in files:
            raise UsageError(f"{shown(str(target))} is what the model was read from; write to another file.")


def _original(model: Model) -> ModelProto | None:
    """What the model's file says beside its graph; None where there is no such file."""
    from gradcheck_cli.formats.onnx.onnx_heading import outline_of

    own = _file(model)
    return outline_of(own) if own is not None and not _is_spec(own) else None


def _file(model: Model) -> Path | None:
    """The file that the model was read from, if it is there."""
    own = Path(model.source.uri)
    try:
        return own if own.is_file() else None
    except (OSError, ValueError):  # what a model in memory is called may be no path at all
        return None


def _is_spec(path: Path) -> bool:
    from gradcheck_cli.formats import SPEC_SUFFIXES

    return path.suffix.lower() in SPEC_SUFFIXES
