"""Attributes of ONNX nodes as Python values: int, float, str, tuples of those, arrays, types, graphs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from onnx import AttributeProto, GraphProto, NodeProto, SparseTensorProto, TensorProto

from gradcheck_cli.errors import ModelError
from gradcheck_cli.formats.onnx.onnx_types import tensor_type
from gradcheck_cli.formats.onnx.tensors import text
from gradcheck_cli.graph import Array, Graph

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
