"""A part of an ONNX model: some tensors as its outputs, and of nodes and inputs what they need."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from onnx import GraphProto, NodeProto

from gradcheck_cli.errors import ModelError
from gradcheck_cli.formats.onnx_file import parse_model, read_bytes


def part_of(path: str, outputs: Sequence[str]) -> bytes:
    """The part of the model in a file that computes `outputs`; its external data stays where it is."""
    model = parse_model(read_bytes(Path(path)).data, path)
    graph, needed = model.graph, set(outputs)
    kept = []
    for node in reversed(graph.node):
        if not needed.isdisjoint(node.output):
            needed.update(_reads(node))
            kept.append(node)
    _keep(graph.node, kept[::-1])
    _keep(graph.input, [each for each in graph.input if each.name in needed])
    del graph.output[:]
    for name in outputs:
        graph.output.add().name = name
    try:
        return bytes(model.SerializeToString())
    except ValueError as error:
        raise ModelError(f"{path} is too large to be taken apart: {error}") from None


def _reads(node: NodeProto) -> Iterator[str]:
    """Names that a node needs, those that its graphs may read from around them included."""
    yield from node.input
    for attribute in node.attribute:
        for graph in [attribute.g] if attribute.HasField("g") else attribute.graphs:
            yield from _reads_of_graph(graph)


def _reads_of_graph(graph: GraphProto) -> Iterator[str]:
    for node in graph.node:
        yield from _reads(node)
    yield from (output.name for output in graph.output)


def _keep(field: object, kept: Iterable[object]) -> None:
    """A repeated field with only some of its messages."""
    kept = list(kept)
    copies = [type(each).FromString(each.SerializeToString()) for each in kept]  # type: ignore[attr-defined]
    del field[:]  # type: ignore[attr-defined]
    field.extend(copies)  # type: ignore[attr-defined]
