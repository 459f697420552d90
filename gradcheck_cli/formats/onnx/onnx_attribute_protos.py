"""Attributes, constants and metadata as ONNX files hold them; the counterpart of `onnx_attributes`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import (
    AttributeProto,
    GraphProto,
    ModelProto,
    NodeDeviceConfigurationProto,
    NodeProto,
    TensorProto,
    helper,
    numpy_helper,
)

from gradcheck_cli.errors import UnsupportedError, UsageError
from gradcheck_cli.formats.onnx.attributes import DEVICES
from gradcheck_cli.formats.onnx.onnx_types import type_proto
from gradcheck_cli.graph import Array, Graph, Node, TensorType

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

    from google.protobuf.json_format import ParseDict  # type: ignore[import-untyped]

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
