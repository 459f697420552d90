"""Attributes of ONNX nodes as Python values: int, float, str, tuples of those, arrays, types, graphs.

Attributes, constants and metadata as ONNX files hold them; the counterpart of `onnx_attributes`.
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

DEVICES = "device_configurations"  # the key of a node's metadata that holds them, as JSON


class Contents(Protocol):
    """Who reads the tensors and graphs among the attributes."""

    def array(self, tensor: TensorProto) -> Array:
        """The values of a tensor."""

    def dense(self, sparse: SparseTensorProto) -> Array:
        """The values of a sparse tensor."""

    def subgraph(self, proto: GraphProto) -> Graph:
        """A graph inside the one at hand."""


_T = AttributeProto
_READERS: Mapping[int, Callable[[AttributeProto, Contents], Any]] = {
    _T.FLOAT: lambda a, _: a.f,
    _T.INT: lambda a, _: a.i,
    _T.STRING: lambda a, _: text(a.s),
    _T.TENSOR: lambda a, contents: contents.array(a.t),
    _T.SPARSE_TENSOR: lambda a, contents: contents.dense(a.sparse_tensor),
    _T.GRAPH: lambda a, contents: contents.subgraph(a.g),
    _T.TYPE_PROTO: lambda a, _: tensor_type(a.tp),
    _T.FLOATS: lambda a, _: tuple(a.floats),
    _T.INTS: lambda a, _: tuple(a.ints),
    _T.STRINGS: lambda a, _: tuple(text(s) for s in a.strings),
    _T.TENSORS: lambda a, contents: tuple(contents.array(t) for t in a.tensors),
    _T.SPARSE_TENSORS: lambda a, contents: tuple(contents.dense(t) for t in a.sparse_tensors),
    _T.GRAPHS: lambda a, contents: tuple(contents.subgraph(g) for g in a.graphs),
    _T.TYPE_PROTOS: lambda a, _: tuple(tensor_type(t) for t in a.type_protos),
}
# Files of the first format versions carry no type: then the field that is there counts.
_FIELDS = {
    "f": _T.FLOAT,
    "i": _T.INT,
    "s": _T.STRING,
    "t": _T.TENSOR,
    "g": _T.GRAPH,
    "floats": _T.FLOATS,
    "ints": _T.INTS,
    "strings": _T.STRINGS,
    "tensors": _T.TENSORS,
    "graphs": _T.GRAPHS,
}


def attributes(node: NodeProto, bound: Mapping[str, Any], contents: Contents) -> dict[str, Any]:
    """The attributes of a node; `bound` holds what references to a function's attributes stand for."""
    found: dict[str, Any] = {}
    for attribute in node.attribute:
        if not attribute.ref_attr_name:
            found[attribute.name] = value_of(attribute, contents)
        elif attribute.ref_attr_name in bound:  # else it is left out, and the default counts
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
    return next((kind for name, kind in _FIELDS.items() if name in present), _T.INTS)


def metadata(node: NodeProto) -> dict[str, str]:
    """What a node carries beside its meaning: its properties and device configurations."""
    found = {entry.key: entry.value for entry in node.metadata_props}
    if node.device_configurations:
        found[DEVICES] = _as_json(node)
    return found


def _as_json(node: NodeProto) -> str:
    import json  # rarely needed, and slow to import

    from google.protobuf.json_format import MessageToDict  # type: ignore[import-untyped]

    configurations = [MessageToDict(c, preserving_proto_field_name=True) for c in node.device_configurations]
    return json.dumps(configurations, sort_keys=True)


_A = AttributeProto
_SINGLE = ((int, _A.INT), (float, _A.FLOAT), (str, _A.STRING), (bytes, _A.STRING))
_OBJECTS = ((np.ndarray, _A.TENSOR), (Graph, _A.GRAPH), (TensorType, _A.TYPE_PROTO))
_PLURAL = {
    _A.INT: _A.INTS,
    _A.FLOAT: _A.FLOATS,
    _A.STRING: _A.STRINGS,
    _A.TENSOR: _A.TENSORS,
    _A.GRAPH: _A.GRAPHS,
    _A.TYPE_PROTO: _A.TYPE_PROTOS,
}


def attribute_proto(name: str, value: Any, kind: str, graph_of: Callable[[Graph], GraphProto]) -> AttributeProto:
    """One attribute; `kind` is its type by the operator's schema, "" where there is none."""
    value = _plain(value)
    proto = AttributeProto(name=name, type=_A.AttributeType.Value(kind) if kind else _kind_of(name, value))
    try:
        _set(proto, value, graph_of)
    except (TypeError, AttributeError, ValueError) as error:
        kind = _A.AttributeType.Name(proto.type)
        raise UsageError(f"attribute {name!r} is a {type(value).__name__}; it must be of type {kind}.") from error
    return proto


def _set(proto: AttributeProto, value: Any, graph_of: Callable[[Graph], GraphProto]) -> None:
    match _A.AttributeType.Name(proto.type):
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


def tensor_proto(name: str, array: Array) -> TensorProto:
    """A constant with its values inside."""
    if array.dtype.kind in "OUS":
        proto = TensorProto(name=name, dims=array.shape, data_type=TensorProto.STRING)
        proto.string_data.extend(_bytes(value) for value in array.ravel().tolist())
        return proto
    return numpy_helper.from_array(np.asarray(array), name)


def elem_type(array: Array, what: str) -> int:
    """ONNX's number for the dtype of an array."""
    try:
        return int(helper.np_dtype_to_tensor_dtype(array.dtype))
    except (KeyError, ValueError):
        raise UnsupportedError(f"{what} has the dtype {array.dtype}, which ONNX lacks.", code="GC503") from None


def write_metadata(proto: NodeProto, node: Node) -> None:
    """What a node carries beside its meaning."""
    for key, value in node.metadata.items():
        if key == DEVICES:
            _write_devices(proto, value)
        else:
            proto.metadata_props.add(key=key, value=value)


def declare_devices(model: ModelProto) -> None:
    """Declares in the model the device configurations that its nodes refer to, as large as they use them."""
    sizes: dict[str, int] = {}
    for node in model.graph.node:
        for entry in node.device_configurations:
            used = [device for spec in entry.sharding_spec for device in spec.device]
            known = sizes.get(entry.configuration_id, 1)
            sizes[entry.configuration_id] = max([known, *(device + 1 for device in used)])
    for name, count in sizes.items():
        model.configuration.add(name=name, num_devices=count)


def _write_devices(proto: NodeProto, value: str) -> None:
    import json  # rarely needed, and slow to import

    from google.protobuf.json_format import ParseDict

    for entry in json.loads(value):
        proto.device_configurations.append(ParseDict(entry, NodeDeviceConfigurationProto()))


def _plain(value: Any) -> Any:
    """Numbers of numpy as Python's, truth as 0 and 1, lists as tuples."""
    if isinstance(value, (tuple, list)):
        return tuple(_plain(item) for item in value)
    value = value.item() if isinstance(value, np.generic) else value
    return int(value) if isinstance(value, bool) else value


def _kind_of(name: str, value: Any) -> Any:
    item = next(iter(value), 0) if isinstance(value, tuple) else value
    for python, kind in (*_SINGLE, *_OBJECTS):
        if isinstance(item, python):
            return _PLURAL[kind] if isinstance(value, tuple) else kind
    raise UnsupportedError(f"attribute {name!r} is a {type(item).__name__}, which ONNX cannot hold.")


def _set_many(proto: AttributeProto, values: Any, graph_of: Callable[[Graph], GraphProto]) -> None:
    match _A.AttributeType.Name(proto.type):
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
