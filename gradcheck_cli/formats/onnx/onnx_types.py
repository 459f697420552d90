"""What an ONNX file declares of values, both ways: `TypeProto` <-> `TensorType`."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import onnx
from onnx import TypeProto, ValueInfoProto, helper

from gradcheck_cli.formats.onnx.tensors import numpy_dtype
from gradcheck_cli.graph import Dim, TensorType

UNTYPED = TensorType()


def types_of(infos: Iterable[ValueInfoProto]) -> dict[str, TensorType]:
    """The declared type of each value by name."""
    return {info.name: tensor_type(info.type) for info in infos if info.HasField("type")}


def tensor_type(proto: TypeProto) -> TensorType:
    """A declared type."""
    match proto.WhichOneof("value"):
        case "tensor_type":
            return _tensor(proto.tensor_type)
        case "sparse_tensor_type":
            return _tensor(proto.sparse_tensor_type)
        case "sequence_type":
            return _holding("sequence", proto.sequence_type.elem_type)
        case "optional_type":
            return _holding("optional", proto.optional_type.elem_type)
        case "map_type":
            return _holding("map", proto.map_type.value_type, numpy_dtype(proto.map_type.key_type))
        case _:
            return UNTYPED


def value_info(name: str, declared: TensorType | None) -> ValueInfoProto:
    """The declaration of a value as a file holds it; of its name alone where no dtype is known."""
    info = ValueInfoProto(name=name)
    if declared is not None and declared.dtype is not None:
        info.type.CopyFrom(_typed(declared))
    return info


def type_proto(declared: TensorType) -> TypeProto:
    """A declared type as an attribute holds it."""
    return value_info("", declared).type


def _tensor(proto: TypeProto.Tensor | TypeProto.SparseTensor) -> TensorType:
    dims = tuple(_dim(dim) for dim in proto.shape.dim) if proto.HasField("shape") else None
    return TensorType(numpy_dtype(proto.elem_type), dims)


def _holding(kind: str, proto: TypeProto, key: np.dtype[np.generic] | None = None) -> TensorType:
    # Bounded: protobuf parses at most 100 levels.
    inner = tensor_type(proto)
    return TensorType(inner.dtype, inner.shape, kind, inner, key)


def _dim(dim: onnx.TensorShapeProto.Dimension) -> Dim:
    if dim.HasField("dim_value"):
        return dim.dim_value if dim.dim_value >= 0 else None  # some exporters write -1 for unknown
    return dim.dim_param or None


def _typed(declared: TensorType) -> TypeProto:
    inner = TypeProto() if declared.inner is None else _typed(declared.inner)
    match declared.kind:
        case "sequence":
            return helper.make_sequence_type_proto(inner)
        case "optional":
            return helper.make_optional_type_proto(inner)
        case "map":
            return helper.make_map_type_proto(_type_number(declared.key), inner)
        case _:
            return helper.make_tensor_type_proto(_type_number(declared.dtype), declared.shape)


def _type_number(dtype: np.dtype[np.generic] | None) -> int:
    return 0 if dtype is None else int(helper.np_dtype_to_tensor_dtype(dtype))
