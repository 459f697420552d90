"""What an ONNX file declares of values, both ways: `TypeProto` <-> `TensorType`."""

from __future__ import annotations

from collections.abc import Iterable

import onnx
from onnx import TypeProto, ValueInfoProto, helper

from gradcheck_cli.formats.onnx_tensors import numpy_dtype
from gradcheck_cli.graph import Dim, TensorType

UNTYPED = TensorType()


def types_of(infos: Iterable[ValueInfoProto]) -> dict[str, TensorType]:
    """The declared type of each value by name."""
    return {info.name: tensor_type(info.type) for info in infos if info.HasField("type")}


def tensor_type(proto: TypeProto) -> TensorType:
    """A declared type; for a sequence or an optional, dtype and shape are those of the tensors in it."""
    match proto.WhichOneof("value"):
        case "tensor_type":
            return _tensor(proto.tensor_type)
        case "sparse_tensor_type":
            return _tensor(proto.sparse_tensor_type)
        case "sequence_type":
            return _wrapped(proto.sequence_type.elem_type, "sequence")
        case "optional_type":
            return _wrapped(proto.optional_type.elem_type, "optional")
        case "map_type":
            return _wrapped(proto.map_type.value_type, "map")
        case _:
            return UNTYPED


def value_info(name: str, declared: TensorType | None) -> ValueInfoProto:
    """The declaration of a value as a file holds it; of its name alone where no dtype is known."""
    info = ValueInfoProto(name=name)
    if declared is None or declared.dtype is None:
        return info
    proto = _typed(declared)
    if declared.kind == "sequence":
        proto = helper.make_sequence_type_proto(proto)
    elif declared.kind == "optional":
        proto = helper.make_optional_type_proto(proto)
    if declared.kind != "map":  # the type of its keys is not kept
        info.type.CopyFrom(proto)
    return info


def type_proto(declared: TensorType) -> TypeProto:
    """A declared type as an attribute holds it."""
    return value_info("", declared).type


def _tensor(proto: TypeProto.Tensor | TypeProto.SparseTensor) -> TensorType:
    dims = tuple(_dim(dim) for dim in proto.shape.dim) if proto.HasField("shape") else None
    return TensorType(numpy_dtype(proto.elem_type), dims)


def _wrapped(inner: TypeProto, kind: str) -> TensorType:
    # Bounded: protobuf parses at most 100 levels.
    element = tensor_type(inner)
    return TensorType(element.dtype, element.shape, kind)


def _dim(dim: onnx.TensorShapeProto.Dimension) -> Dim:
    if dim.HasField("dim_value"):
        return dim.dim_value if dim.dim_value >= 0 else None  # some exporters write -1 for unknown
    return dim.dim_param or None


def _typed(declared: TensorType) -> TypeProto:
    assert declared.dtype is not None
    elem_type = helper.np_dtype_to_tensor_dtype(declared.dtype)
    return helper.make_tensor_type_proto(elem_type, declared.shape)
