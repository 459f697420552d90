"""Attributes and metadata of ONNX nodes, read into Python values and written back.

An attribute is an int, float, str, array, `TensorType` or `Graph`, or a tuple of those.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

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
from gradcheck_cli.formats.onnx.opset import PYTHON_TYPES
from gradcheck_cli.formats.onnx.tensors import tensor_type, text, type_proto
from gradcheck_cli.graph import Array, Graph, Node

DEVICES = "device_configurations"  # the key in a node's metadata for its device configurations, as JSON


class Contents(Protocol):
    """Reads the tensors and graphs among the attributes of a node."""

    def array(self, tensor: TensorProto | SparseTensorProto) -> Array:
        """The values of a tensor."""

    def subgraph(self, proto: GraphProto) -> Graph:
        """The graph that is an attribute."""


class _Kind(NamedTuple):
    """A type of attributes: the fields of a message for one value and for several, and functions to read and write one."""

    one: str
    many: str
    read: Callable[[Any, Contents], Any]
    write: Callable[[Any, Callable[[Graph], GraphProto]], Any]


_KINDS = {
    "INT": _Kind("i", "ints", lambda value, _: value, lambda value, _: value),
    "FLOAT": _Kind("f", "floats", lambda value, _: value, lambda value, _: value),
    "STRING": _Kind("s", "strings", lambda s, _: text(s), lambda s, _: _bytes(s)),
    "TENSOR": _Kind("t", "tensors", lambda t, c: c.array(t), lambda a, _: tensor_proto("", a)),
    "SPARSE_TENSOR": _Kind("sparse_tensor", "sparse_tensors", lambda t, c: c.array(t), lambda value, _: value),
    "GRAPH": _Kind("g", "graphs", lambda g, c: c.subgraph(g), lambda g, proto_of: proto_of(g)),
    "TYPE_PROTO": _Kind("tp", "type_protos", lambda t, _: tensor_type(t), lambda t, _: type_proto(t)),
}


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
    kind: int = attribute.type
    if kind not in AttributeProto.AttributeType.values():
        raise ModelError(f"attribute {attribute.name!r} has the unknown type {kind}.")
    present = {descriptor.name for descriptor, _ in attribute.ListFields()}
    for name, each in _KINDS.items():  # the first IR versions store no type: the field that is set tells it
        if kind == AttributeProto.AttributeType.Value(name) or (not kind and each.one in present):
            return each.read(getattr(attribute, each.one), contents)
        if kind == AttributeProto.AttributeType.Value(f"{name}S") or (not kind and each.many in present):
            return tuple(each.read(value, contents) for value in getattr(attribute, each.many))
    return ()


def metadata(node: NodeProto) -> dict[str, str]:
    """The metadata properties and device configurations of a node."""
    found = {entry.key: entry.value for entry in node.metadata_props}
    if node.device_configurations:
        import json  # rarely needed, and slow to import

        from google.protobuf.json_format import MessageToDict  # type: ignore[import-untyped]

        configurations = [MessageToDict(c, preserving_proto_field_name=True) for c in node.device_configurations]
        found[DEVICES] = json.dumps(configurations, sort_keys=True)
    return found


def attribute_proto(name: str, value: Any, kind: str, graph_of: Callable[[Graph], GraphProto]) -> AttributeProto:
    """An attribute as a file holds it; `kind` is its type in the operator's schema, "" without a schema."""
    value = _plain(value)
    kind = kind or _kind_of(name, value)
    fields = _KINDS[kind.removesuffix("S")]
    if kind.startswith("SPARSE"):
        raise UnsupportedError(f"attribute {name!r} is of type {kind}, which is not written.")
    proto = AttributeProto(name=name, type=AttributeProto.AttributeType.Value(kind))
    try:
        if kind.endswith("S"):
            getattr(proto, fields.many).extend(fields.write(each, graph_of) for each in value)
        elif kind in ("TENSOR", "GRAPH", "TYPE_PROTO"):
            getattr(proto, fields.one).CopyFrom(fields.write(value, graph_of))
        else:
            setattr(proto, fields.one, fields.write(value, graph_of))
    except (TypeError, AttributeError, ValueError) as error:
        raise UsageError(f"attribute {name!r} is a {type(value).__name__}; it must be of type {kind}.") from error
    return proto


def _plain(value: Any) -> Any:
    """A value with NumPy scalars as Python numbers, booleans as 0 and 1, and lists as tuples."""
    if isinstance(value, (tuple, list)):
        return tuple(_plain(item) for item in value)
    value = value.item() if isinstance(value, np.generic) else value
    return int(value) if isinstance(value, bool) else value


def _kind_of(name: str, value: Any) -> str:
    item = next(iter(value), 0) if isinstance(value, tuple) else value
    kind = next((kind for kind, types in PYTHON_TYPES.items() if isinstance(item, types)), None)
    if kind is None:
        raise UnsupportedError(f"attribute {name!r} is a {type(item).__name__}, which ONNX cannot hold.")
    return f"{kind}S" if isinstance(value, tuple) else kind


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
        if key != DEVICES:
            proto.metadata_props.add(key=key, value=value)
    if devices := node.metadata.get(DEVICES):
        import json  # rarely needed, and slow to import

        from google.protobuf.json_format import ParseDict

        for entry in json.loads(devices):
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
