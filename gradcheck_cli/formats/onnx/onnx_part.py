"""A part of an ONNX model: some tensors as its outputs, some as its inputs, and of nodes and inputs what they need."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from onnx import GraphProto, NodeProto, helper

from gradcheck_cli.errors import ModelError, UsageError
from gradcheck_cli.formats.onnx.file import parse_model, read_bytes
from gradcheck_cli.graph import Array


def part_of(path: str, outputs: Sequence[str], fed: Mapping[str, Array] | None = None) -> bytes:
    """The part of the model in a file that computes `outputs`; its external data stays where it is.

    Whatever is `fed` a value like the given one becomes an input, parameters and results of nodes as well.
    """
    model = parse_model(read_bytes(Path(path)).data, path)
    graph, needed = model.graph, set(outputs)
    for name, like in (fed or {}).items():
        _feed(graph, name, like, path)
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


def computed_in(path: str) -> frozenset[str]:
    """The tensors that nodes of the model in a file compute, as the file calls them."""
    graph = parse_model(read_bytes(Path(path)).data, path).graph
    return frozenset(name for node in graph.node for name in node.output if name)


def _feed(graph: GraphProto, name: str, like: Array, path: str) -> None:
    """Make a tensor an input, wherever it comes from."""
    dense = [each for each in graph.initializer if each.name != name]
    sparse = [each for each in graph.sparse_initializer if each.values.name != name]
    made = [node for node in graph.node if name in node.output]
    held = len(dense) < len(graph.initializer) or len(sparse) < len(graph.sparse_initializer)
    if len(dense) < len(graph.initializer):
        _keep(graph.initializer, dense)
    if len(sparse) < len(graph.sparse_initializer):
        _keep(graph.sparse_initializer, sparse)
    if name in (each.name for each in graph.input):
        return
    if not made and not held:
        raise UsageError(f"{path} has no tensor {name!r} of its own: name one that goes into it, or comes from it.")
    for node in made:
        node.output[list(node.output).index(name)] = f"{name}/left"
    _keep(graph.value_info, [each for each in graph.value_info if each.name != name])
    graph.input.append(helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(like.dtype), like.shape))


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
