"""Attributes and metadata of ONNX nodes, read into Python values and written back.

An attribute is an int, float, str, array, `TensorType` or `Graph`, or a tuple of those.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
from onnx import (
    AttributeProto,
    GraphProto,
    ModelProto,
    NodeDeviceConfigurationProto,
    NodeProto,
    SparseTensorProto,
    TensorProto,
    helper,
    numpy_helper,
)

from gradcheck_cli.errors import ModelError, UnsupportedError, UsageError
from gradcheck_cli.formats.onnx.tensors import tensor_type, text, type_proto
from gradcheck_cli.graph import Array, Graph, Node, TensorType

DEVICES = "device_configurations"  # the key in a node's metadata for its device configurations, as JSON
_READERS: Mapping[int, Callable[[AttributeProto, Contents], Any]] = {
    AttributeProto.FLOAT: lambda a, _: a.f,
    AttributeProto.INT: lambda a, _: a.i,
    AttributeProto.STRING: lambda a, _: text(a.s),
    AttributeProto.TENSOR: lambda a, contents: contents.array(a.t),
    AttributeProto.SPARSE_TENSOR: lambda a, contents: contents.dense(a.sparse_tensor),
    AttributeProto.GRAPH: lambda a, contents: contents.subgraph(a.g),
    AttributeProto.TYPE_PROTO: lambda a, _: tensor_type(a.tp),
    AttributeProto.FLOATS: lambda a, _: tuple(a.floats),
    AttributeProto.INTS: lambda a, _: tuple(a.ints),
    AttributeProto.STRINGS: lambda a, _: tuple(text(s) for s in a.strings),
    AttributeProto.TENSORS: lambda a, contents: tuple(contents.array(t) for t in a.tensors),
    AttributeProto.SPARSE_TENSORS: lambda a, contents: tuple(contents.dense(t) for t in a.sparse_tensors),
    AttributeProto.GRAPHS: lambda a, contents: tuple(contents.subgraph(g) for g in a.graphs),
    AttributeProto.TYPE_PROTOS: lambda a, _: tuple(tensor_type(t) for t in a.type_protos),
}
# The first IR versions store no type with an attribute; the field that is set tells it.
_FIELDS = {
    "f": AttributeProto.FLOAT,
    "i": AttributeProto.INT,
    "s": AttributeProto.STRING,
    "t": AttributeProto.TENSOR,
    "g": AttributeProto.GRAPH,
    "floats": AttributeProto.FLOATS,
    "ints": AttributeProto.INTS,
    "strings": AttributeProto.STRINGS,
    "tensors": AttributeProto.TENSORS,
    "graphs": AttributeProto.GRAPHS,
}
_KINDS = (
    (int, AttributeProto.INT), (float, AttributeProto.FLOAT), (str, AttributeProto.STRING), (bytes, AttributeProto.STRING),
    (np.ndarray, AttributeProto.TENSOR), (Graph, AttributeProto.GRAPH), (TensorType, AttributeProto.TYPE_PROTO),
)  # fmt: skip
_PLURAL = {
    AttributeProto.INT: AttributeProto.INTS,
    AttributeProto.FLOAT: AttributeProto.FLOATS,
    AttributeProto.STRING: AttributeProto.STRINGS,
    AttributeProto.TENSOR: AttributeProto.TENSORS,
    AttributeProto.GRAPH: AttributeProto.GRAPHS,
    AttributeProto.TYPE_PROTO: AttributeProto.TYPE_PROTOS,
}


class Contents(Protocol):
    """Reads the tensors and graphs among the attributes of a node."""

    def array(self, tensor: TensorProto) -> Array:
        """The values of a tensor."""

    def dense(self, sparse: SparseTensorProto) -> Array:
        """The values of a sparse tensor."""

    def subgraph(self, proto: GraphProto) -> Graph:
        """The graph that is an attribute."""


def attributes(node: NodeProto, bound: Mapping[str, Any], contents: Contents) -> dict[str, Any]:
    """The attributes of a node; in a function body, `bound` holds the values of the function's own attributes."""
    found: dict[str, Any] = {}
    for attribute in node.attribute:
        if not attribute.ref_attr_name:
            found[attribute.name] = value_of(attribute, contents)
        elif attribute.ref_attr_name in bound:  # otherwise the operator's default applies
            found[attribute.name] = bound[attribute.ref_attr_name]
    return found


def value_of(attribute: AttributeProto, contents: Contents) -> Any:
    """The value of one attribute."""
    kind = attribute.type or _inferred(attribute)
    if kind not in _READERS:
        raise ModelError(f"attribute {attribute.name!r} has the unknown type {kind}.")
    return _READERS[kind](attribute, contents)


def _inferred(attribute: AttributeProto) -> int:
    present = {descriptor.name for descriptor, _ in attribute.ListFields()}
    return next((kind for name, kind in _FIELDS.items() if name in present), AttributeProto.INTS)


def metadata(node: NodeProto) -> dict[str, str]:
    """The metadata properties and device configurations of a node."""
    found = {entry.key: entry.value for entry in node.metadata_props}
    if node.device_configurations:
        found[DEVICES] = _as_json(node)
    return found


def _as_json(node: NodeProto) -> str:
    import json  # rarely needed, and slow to import

    from google.protobuf.json_format import MessageToDict  # type: ignore[import-untyped]

    configurations = [MessageToDict(c, preserving_proto_field_name=True) for c in node.device_configurations]
    return json.dumps(configurations, sort_keys=True)


def attribute_proto(name: str, value: Any, kind: str, graph_of: Callable[[Graph], GraphProto]) -> AttributeProto:
    """An attribute as a file holds it; `kind` is its type in the operator's schema, "" without a schema."""
    value = _plain(value)
    proto = AttributeProto(name=name, type=AttributeProto.AttributeType.Value(kind) if kind else _kind_of(name, value))
    try:
        _set(proto, value, graph_of)
    except (TypeError, AttributeError, ValueError) as error:
        kind = AttributeProto.AttributeType.Name(proto.type)
        raise UsageError(f"attribute {name!r} is a {type(value).__name__}; it must be of type {kind}.") from error
    return proto


def _plain(value: Any) -> Any:
    """A value with NumPy scalars as Python numbers, booleans as 0 and 1, and lists as tuples."""
    if isinstance(value, (tuple, list)):
        return tuple(_plain(item) for item in value)
    value = value.item() if isinstance(value, np.generic) else value
    return int(value) if isinstance(value, bool) else value


def _kind_of(name: str, value: Any) -> Any:
    item = next(iter(value), 0) if isinstance(value, tuple) else value
    for python, kind in _KINDS:
        if isinstance(item, python):
            return _PLURAL[kind] if isinstance(value, tuple) else kind
    raise UnsupportedError(f"attribute {name!r} is a {type(item).__name__}, which ONNX cannot hold.")


def _set(proto: AttributeProto, value: Any, graph_of: Callable[[Graph], GraphProto]) -> None:
    match AttributeProto.AttributeType.Name(proto.type):
        case "FLOAT":
            proto.f = value
        case "INT":
            proto.i = value
        case "STRING":
            proto.s = _bytes(value)
        case "TENSOR":
            proto.t.CopyFrom(tensor_proto("", value))
        case "GRAPH":
            proto.g.CopyFrom(graph_of(value))
        case "TYPE_PROTO":
            proto.tp.CopyFrom(type_proto(value))
        case _:
            _set_many(proto, value, graph_of)


def _set_many(proto: AttributeProto, values: Any, graph_of: Callable[[Graph], GraphProto]) -> None:
    match AttributeProto.AttributeType.Name(proto.type):
        case "FLOATS":
            proto.floats.extend(values)
        case "INTS":
            proto.ints.extend(values)
        case "STRINGS":
            proto.strings.extend(_bytes(value) for value in values)
        case "TENSORS":
            proto.tensors.extend(tensor_proto("", value) for value in values)
        case "GRAPHS":
            proto.graphs.extend(graph_of(value) for value in values)
        case "TYPE_PROTOS":
            proto.type_protos.extend(type_proto(value) for value in values)
        case kind:
            raise UnsupportedError(f"attribute {proto.name!r} is of type {kind}, which is not written.")


def _bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogateescape")


def tensor_proto(name: str, array: Array) -> TensorProto:
    """An array as a tensor with its values embedded."""
    if array.dtype.kind in "OUS":
        proto = TensorProto(name=name, dims=array.shape, data_type=TensorProto.STRING)
        proto.string_data.extend(_bytes(value) for value in array.ravel().tolist())
        return proto
    return numpy_helper.from_array(np.asarray(array), name)


def elem_type(array: Array, what: str) -> int:
    """The element type of an array, as ONNX numbers them."""
    try:
        return int(helper.np_dtype_to_tensor_dtype(array.dtype))
    except (KeyError, ValueError):
        raise UnsupportedError(f"{what} has the dtype {array.dtype}, which ONNX lacks.", code="GC503") from None


def write_metadata(proto: NodeProto, node: Node) -> None:
    """Writes the metadata properties and device configurations of a node."""
    for key, value in node.metadata.items():
        if key == DEVICES:
            _write_devices(proto, value)
        else:
            proto.metadata_props.add(key=key, value=value)


def _write_devices(proto: NodeProto, value: str) -> None:
    import json  # rarely needed, and slow to import

    from google.protobuf.json_format import ParseDict

    for entry in json.loads(value):
        proto.device_configurations.append(ParseDict(entry, NodeDeviceConfigurationProto()))


def declare_devices(model: ModelProto) -> None:
    """Declares the device configurations that nodes refer to, each with as many devices as the nodes use."""
    sizes: dict[str, int] = {}
    for node in model.graph.node:
        for entry in node.device_configurations:
            used = [device for spec in entry.sharding_spec for device in spec.device]
            known = sizes.get(entry.configuration_id, 1)
            sizes[entry.configuration_id] = max([known, *(device + 1 for device in used)])
    for name, count in sizes.items():
        model.configuration.add(name=name, num_devices=count)
