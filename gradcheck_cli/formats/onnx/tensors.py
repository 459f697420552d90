"""Arrays from ONNX tensors (embedded, external or sparse), and declared types both ways: TypeProto and `TensorType`.

Files are untrusted.  A size is compared with the bytes that are there before anything is allocated, and external
data must lie in the model's folder.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
from onnx import SparseTensorProto, TensorProto, TypeProto, ValueInfoProto, helper, numpy_helper

from gradcheck_cli.errors import LimitError, ModelError, counted
from gradcheck_cli.formats.onnx.file import POINTER, Outline
from gradcheck_cli.formats.untrusted import closed_afterwards, leads_out
from gradcheck_cli.graph import MAX_RANK, Array, Dim, TensorType

DENSE_LIMIT = 1 << 30  # bytes of a sparse tensor once it is dense
_PACKED = {"UINT4": 4, "INT4": 4, "FLOAT4E2M1": 4, "UINT2": 2, "INT2": 2, "FLOAT6E2M3": 6, "FLOAT6E3M2": 6}
_BITS: dict[int, int] = {number: _PACKED[name] for name, number in TensorProto.DataType.items() if name in _PACKED}


class TensorSource(NamedTuple):
    """The places of tensor data: a model's file, the folders for its external data, and the outline of the file."""

    uri: str
    folders: tuple[Path, ...] = ()
    outline: Outline | None = None

    def payload(self, raw_data: bytes) -> Array:
        """The bytes in a tensor's `raw_data` field, or those that an outline left out there."""
        return np.frombuffer(raw_data, np.uint8) if self.outline is None else self.outline.payload(raw_data)


def to_array(tensor: TensorProto | SparseTensorProto, source: TensorSource) -> Array:
    """The values of a tensor, dense even if it is sparse; an array of str (bytes where they are not UTF-8) for strings."""
    if isinstance(tensor, SparseTensorProto):
        return _dense(tensor, source)
    dtype, shape = numpy_dtype(tensor.data_type), _checked_shape(tensor.dims, _label(tensor))
    if dtype is None:
        raise ModelError(f"{_label(tensor)} has the unknown element type {tensor.data_type}.")
    if tensor.HasField("segment"):
        raise ModelError(f"{_label(tensor)} is a segment of a tensor; ONNX files hold whole ones.")
    if tensor.data_type == TensorProto.STRING:
        return _strings(tensor, shape)
    if tensor.data_location == TensorProto.EXTERNAL:
        return _from_bytes(tensor, _external(tensor, _byte_count(tensor, dtype, shape), source), dtype, shape)
    if tensor.HasField("raw_data"):
        return _from_bytes(tensor, source.payload(tensor.raw_data), dtype, shape)
    return _from_fields(tensor, dtype, shape)


def _dense(sparse: SparseTensorProto, source: TensorSource) -> Array:
    values, indices = to_array(sparse.values, source), to_array(sparse.indices, source)
    shape = _checked_shape(sparse.dims, _label(sparse.values))
    if math.prod(shape) * values.itemsize > DENSE_LIMIT:
        text = f"{_label(sparse.values)} is sparse and would take more than 1 GiB as an array {list(shape)}."
        raise LimitError(text, code="GC602")
    dense: Array = np.zeros(math.prod(shape), values.dtype)
    try:
        dense[_flat_indices(indices, values.size, shape)] = values.ravel()
    except (IndexError, ValueError) as error:
        raise ModelError(f"{_label(sparse.values)}: the indices do not fit the shape {list(shape)}.") from error
    return dense.reshape(shape)


def numpy_dtype(elem_type: int) -> np.dtype[np.generic] | None:
    """The dtype of an ONNX element type, from ml_dtypes where NumPy has none; None if it is undefined or unknown."""
    try:
        return helper.tensor_dtype_to_np_dtype(elem_type)
    except KeyError:
        return None


def _checked_shape(dims: object, label: str) -> tuple[int, ...]:
    shape = tuple(int(dim) for dim in dims)  # type: ignore[attr-defined]
    if len(shape) > MAX_RANK:
        raise ModelError(f"{label} has {len(shape)} dimensions; at most {MAX_RANK} are possible.")
    if any(dim < 0 for dim in shape):
        raise ModelError(f"{label} has a negative dimension in its shape {list(shape)}.")
    if math.prod(dim for dim in shape if dim) >= 1 << 56:
        raise ModelError(f"{label} has the impossible shape {list(shape)}.")
    return shape


def _flat_indices(indices: Array, count: int, shape: tuple[int, ...]) -> Array:
    if indices.dtype != np.int64 or indices.shape not in ((count,), (count, len(shape))):
        raise ValueError("indices")
    if indices.ndim == 2:
        return np.asarray(np.ravel_multi_index(tuple(indices.T), shape))
    if indices.size and indices.min() < 0:
        raise ValueError("negative")
    return indices


def _label(tensor: TensorProto) -> str:
    return f"tensor {tensor.name!r}" if tensor.name else "a tensor without a name"


def _byte_count(tensor: TensorProto, dtype: np.dtype[np.generic], shape: tuple[int, ...]) -> int:
    bits: int = _BITS.get(tensor.data_type, 8 * dtype.itemsize)
    return -(-math.prod(shape) * bits // 8)


def _from_bytes(tensor: TensorProto, data: Array, dtype: np.dtype[np.generic], shape: tuple[int, ...]) -> Array:
    expected = _byte_count(tensor, dtype, shape)
    if data.size != expected:
        text = f"{_label(tensor)} holds {counted(data.size, 'byte')} where {dtype} {list(shape)} needs {expected}."
        raise ModelError(text)
    if tensor.data_type in _BITS:
        packed = TensorProto(dims=shape, data_type=tensor.data_type, raw_data=data.tobytes())
        return np.asarray(numpy_helper.to_array(packed))
    if dtype == np.bool_:
        return np.asarray(data != 0).reshape(shape)
    return np.asarray(data.view(dtype).reshape(shape))


def _from_fields(tensor: TensorProto, dtype: np.dtype[np.generic], shape: tuple[int, ...]) -> Array:
    field = getattr(tensor, helper.tensor_dtype_to_field(tensor.data_type))
    bits, expected = _BITS.get(tensor.data_type, 8), math.prod(shape) * (2 if dtype.kind == "c" else 1)
    if bits < 6:  # the 6-bit types take one entry each here
        expected = -(-expected * bits // 8)
    if len(field) != expected:
        text = f"{_label(tensor)} holds {len(field)} numbers where {dtype} {list(shape)} needs {expected}."
        raise ModelError(text)
    if dtype == np.bool_:
        return np.asarray(np.asarray(field, np.int32) != 0).reshape(shape)
    return np.asarray(numpy_helper.to_array(tensor))


def _strings(tensor: TensorProto, shape: tuple[int, ...]) -> Array:
    if len(tensor.string_data) != math.prod(shape):
        raise ModelError(f"{_label(tensor)} holds {len(tensor.string_data)} strings where {list(shape)} are needed.")
    values = np.empty(len(tensor.string_data), object)
    values[:] = [text(value) for value in tensor.string_data]
    return values.reshape(shape)


def text(value: bytes) -> str | bytes:
    """A byte string decoded from UTF-8, or unchanged if it is not UTF-8."""
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return value


def _external(tensor: TensorProto, count: int, source: TensorSource) -> Array:
    """The bytes of a tensor with external data."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    offset, length = _number(tensor, entries, "offset", 0), _number(tensor, entries, "length", count)
    location = entries.get("location", "")
    path = _inside(tensor, location, source)
    try:
        with closed_afterwards(lambda: path.open("rb")) as file:
            size = os.fstat(file.fileno()).st_size
            if file.read(len(POINTER)) == POINTER:  # whose text may be long enough for the tensor
                pointer = f"a Git LFS pointer ({counted(size, 'byte')}); `git lfs pull` fetches the file."
                raise _refusal(tensor, f"is in {location}, {pointer}", "GC403")
            if offset + length > size:
                span = f"bytes {offset} to {offset + length} of {location}, which has {size}"
                raise _refusal(tensor, f"needs {span}. Is the file complete?")
            if length != count:
                raise _refusal(tensor, f"takes {counted(length, 'byte')} of {location} where its shape needs {count}.")
            file.seek(offset)
            return np.fromfile(file, np.uint8, count)
    except OSError as error:
        raise _refusal(tensor, f"is in {location}, which cannot be read: {error.strerror}.") from error


def _number(tensor: TensorProto, entries: dict[str, str], key: str, default: int) -> int:
    given = entries.get(key, "").strip()
    if not given:
        return default
    if not (given.isascii() and given.isdigit() and len(given) <= 19):
        raise _refusal(tensor, f"has the {key} {given[:40]!r} in its external data, which is no size.")
    return int(given)


def _inside(tensor: TensorProto, location: str, source: TensorSource) -> Path:
    """The file at `location`; raises a ModelError if it is not in the model's folder."""
    if not source.folders:
        raise _refusal(tensor, f"is kept in another file, {location!r}, and this model has no folder.")
    if leads_out(location):
        raise _refusal(tensor, f"is said to be in {location!r}, which is not in the model's folder.")
    try:
        path = (source.folders[0] / location).resolve()
        if not any(path.is_relative_to(folder.resolve()) for folder in source.folders):
            raise _refusal(tensor, f"is in {location}, a symbolic link that leaves the model's folder.")
        found, regular = path.exists(), path.is_file()
    except (OSError, RuntimeError) as error:
        raise _refusal(tensor, f"is in {location}, which cannot be read.") from error
    if not found:
        text = f"{source.uri} keeps its weights in {location}, which is not beside it."
        raise ModelError(text, code="GC402")
    if not regular:
        raise _refusal(tensor, f"is said to be in {location}, which is no regular file.")
    return path


def _refusal(tensor: TensorProto, reason: str, code: str = "GC402") -> ModelError:
    return ModelError(f"{_label(tensor)} {reason}", code=code)


def types_of(infos: Iterable[ValueInfoProto]) -> dict[str, TensorType]:
    """The declared type of each value by name."""
    return {info.name: tensor_type(info.type) for info in infos if info.HasField("type")}


def tensor_type(proto: TypeProto) -> TensorType:
    """A declared type as a `TensorType`."""
    which = proto.WhichOneof("value")
    if which is None or which == "opaque_type":
        return TensorType()
    held = getattr(proto, which)
    if which in ("tensor_type", "sparse_tensor_type"):
        dims = tuple(_dim(dim) for dim in held.shape.dim) if held.HasField("shape") else None
        return TensorType(numpy_dtype(held.elem_type), dims)
    inner = tensor_type(held.value_type if which == "map_type" else held.elem_type)  # protobuf bounds the depth
    key = numpy_dtype(held.key_type) if which == "map_type" else None
    return TensorType(inner.dtype, inner.shape, which.removesuffix("_type"), inner, key)


def value_info(name: str, declared: TensorType | None) -> ValueInfoProto:
    """The declaration of a value for a file; only its name if the dtype is not known."""
    info = ValueInfoProto(name=name)
    if declared is not None and declared.dtype is not None:
        info.type.CopyFrom(_typed(declared))
    return info


def type_proto(declared: TensorType) -> TypeProto:
    """A declared type as a TypeProto, for attributes."""
    return value_info("", declared).type


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
