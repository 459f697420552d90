"""Writes a `Graph` as an ONNX file, at the lowest opset that has its operators, so that older runtimes can read it.

A file is complete or not written at all.  Documentation, properties and versions can be taken over from another model.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, Any, TypeAlias

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper

from gradcheck_cli.errors import LimitError, UsageError
from gradcheck_cli.formats.onnx.attributes import (
    attribute_proto,
    declare_devices,
    elem_type,
    tensor_proto,
    write_metadata,
)
from gradcheck_cli.formats.onnx.opset import LOWEST, needed_opset, signature, written_attrs
from gradcheck_cli.formats.onnx.tensors import value_info
from gradcheck_cli.formats.whole_file import replacing
from gradcheck_cli.graph import Array, Graph, Node, TensorType

Constants: TypeAlias = Callable[[str, Array], TensorProto]  # makes the tensor that a file holds for a constant
EXTERNAL_ABOVE = 1_500_000_000  # bytes of constants in one file; a protobuf message ends at 2 GiB
_SMALL = 1024  # bytes of constants that always stay in the model file: shapes, axes, scalars
_ALIGNMENT = 4096
_IR_OF_METADATA = 10
_IR_OF_DEVICES = 11


def write(
    graph: Graph, path: str | os.PathLike[str], *, least: int = LOWEST, original: ModelProto | None = None,
    proof: Callable[[bytes], None] | None = None,
) -> None:  # fmt: skip
    """Writes the graph to a file.

    With more than 1.5 GB of constants, or if the `original` has external data, large constants go into a file
    `<name>.data` beside it.  Documentation and properties come from the `original`.  Before a file is written that
    holds all of its constants, `proof` gets its bytes; what it raises leaves nothing behind.
    """
    target, before = Path(path), original.graph.initializer if original is not None else ()
    external = any(tensor.data_location == TensorProto.EXTERNAL for tensor in before)
    if _size(graph) <= EXTERNAL_ABOVE and not external:
        data = serialized(to_proto(graph, least=least, original=original))
        if proof is not None:
            proof(data)
        with replacing(target) as file:
            file.write(data)
        return
    beside = data_file(target)
    with replacing(target) as file, replacing(beside) as weights:
        model = to_proto(
            graph, least=least, constants=ExternalConstants(weights, beside.name).tensor, original=original
        )
        file.write(serialized(model))


def to_proto(
    graph: Graph, *, least: int = LOWEST, constants: Constants | None = None, original: ModelProto | None = None
) -> ModelProto:
    """The graph as a model of opset `least`, or of the lowest one above it that has its operators.

    Every input needs a dtype in `graph.types`; declared types of outputs are written too.  Documentation and
    properties come from the `original`.
    """
    opset = needed_opset(graph, least)
    imports = {"": opset, **{node.domain: graph.opset.get(node.domain, 1) for node in graph.all_nodes if node.domain}}
    model = ModelProto(producer_name="gradcheck")
    for domain, version in sorted(imports.items()):
        model.opset_import.add(domain=domain, version=version)
    for name in graph.inputs:
        if declared_type(graph, name).dtype is None:
            raise UsageError(f"input {name!r} has no dtype, which a file must declare.")
    _put_graph(model.graph, graph, opset, constants or embedded)
    if original is not None:
        _put_heading(model, original)
    declare_devices(model)
    model.ir_version = _ir_version(model)
    return model


def data_file(target: Path) -> Path:
    """The file for external constants of a model."""
    return target.parent / f"{target.name}.data"


def embedded(name: str, array: Array) -> TensorProto:
    """A tensor with the values of a constant in the model file itself."""
    elem_type(array, f"constant {name!r}")
    return tensor_proto(name, array)


class ExternalConstants:
    """Writes large constants into a data file, to which the tensors of one or several models refer; equal ones once."""

    def __init__(self, file: IO[bytes], location: str) -> None:
        self._file, self._location = file, location
        self._places: dict[tuple[int, bytes], int] = {}  # length and digest of the bytes -> offset

    def tensor(self, name: str, array: Array) -> TensorProto:
        """A tensor with the values of a small array, or with the place of a large one in the data file."""
        if array.dtype == object or array.nbytes <= _SMALL:
            return embedded(name, array)
        proto = TensorProto(name=name, dims=array.shape, data_type=elem_type(array, f"constant {name!r}"))
        proto.data_location = TensorProto.EXTERNAL
        data = _packed(array)
        for key, value in (("location", self._location), ("offset", self._put(data)), ("length", data.nbytes)):
            proto.external_data.add(key=key, value=str(value))
        return proto

    def _put(self, data: memoryview) -> int:
        """The offset of some bytes in the file, which get there if they have not been written yet."""
        key = data.nbytes, hashlib.sha256(data).digest()
        if key not in self._places:
            self._file.write(bytes(-self._file.tell() % _ALIGNMENT))
            self._places[key] = self._file.tell()
            self._file.write(data)
        return self._places[key]


def _put_heading(model: ModelProto, original: ModelProto) -> None:
    """Copies properties, versions and documentation of a model, and of all that bears the same name in both."""
    for field in ("domain", "doc_string", "model_version"):
        if getattr(original, field):
            setattr(model, field, getattr(original, field))
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


def _put_graph(proto: GraphProto, graph: Graph, opset: int, constants: Constants) -> None:
    proto.name = graph.name or "graph"
    proto.node.extend(_node(node, opset, constants) for node in graph.nodes)
    proto.initializer.extend(constants(name, array) for name, array in graph.constants.items())
    proto.input.extend(value_info(name, declared_type(graph, name)) for name in graph.inputs)
    proto.output.extend(value_info(name, declared_type(graph, name)) for name in graph.outputs)


def _graph(graph: Graph, opset: int, constants: Constants) -> GraphProto:
    proto = GraphProto()
    _put_graph(proto, graph, opset, constants)
    return proto


def _node(node: Node, opset: int, constants: Constants) -> NodeProto:
    proto = NodeProto(op_type=node.op, domain=node.domain, name=node.name, input=node.inputs, output=node.outputs)
    schema = None if node.domain else signature(node.op, opset)
    kinds = schema.attributes if schema is not None else {}
    for name, value in written_attrs(node, opset).items():
        attribute = attribute_proto(name, value, kinds.get(name, ""), lambda g: _graph(g, opset, constants))
        proto.attribute.append(attribute)
    write_metadata(proto, node)
    return proto


def declared_type(graph: Graph, name: str) -> TensorType:
    """The declared type of a tensor, else the type of the constant of this name."""
    declared = graph.types.get(name, TensorType())
    if declared.dtype is not None or name not in graph.constants:
        return declared
    return TensorType(graph.constants[name].dtype, graph.constants[name].shape)


def _ir_version(model: ModelProto) -> int:
    """The lowest IR version that has the opsets and fields of the model."""
    lowest = helper.find_min_ir_version_for(list(model.opset_import), ignore_unknown=True)
    if model.configuration:
        return max(lowest, _IR_OF_DEVICES)
    return max(lowest, _IR_OF_METADATA) if any(node.metadata_props for node in model.graph.node) else lowest


def _size(graph: Graph) -> int:
    """Bytes of all constants, with those of subgraphs."""
    graphs = [graph, *(subgraph for node in graph.all_nodes for subgraph in node.subgraphs)]
    return sum(array.nbytes for each in graphs for array in each.constants.values())


def _packed(array: Array) -> memoryview:
    """The bytes of an array in ONNX's layout."""
    if array.dtype.itemsize == 1 and array.dtype.kind not in "biu":  # some of these types share a byte
        return memoryview(tensor_proto("", array).raw_data)
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def serialized(model: ModelProto) -> bytes:
    """The bytes of a model; LimitError for more than a protobuf message can hold."""
    try:
        return bytes(model.SerializeToString(deterministic=True))
    except ValueError as error:
        raise LimitError("the model would be larger than 2 GiB in one file.", code="GC602") from error
