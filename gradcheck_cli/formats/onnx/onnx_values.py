"""Values as ONNX's test data holds them: tensors, and sequences, optionals and maps of them.

A file does not say which of these it is; the type that the model declares does.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from google.protobuf.message import DecodeError, Message  # type: ignore[import-untyped]
from onnx import MapProto, OptionalProto, SequenceProto, TensorProto

from gradcheck_cli.errors import ModelError
from gradcheck_cli.formats.onnx.tensors import Store, text, to_array, to_dense
from gradcheck_cli.graph import TensorType
from gradcheck_cli.graph import containers as compound

_MESSAGES: dict[str, type[Message]] = {"sequence": SequenceProto, "optional": OptionalProto, "map": MapProto}
_FIELDS: dict[
    int, str
] = {  # of what a sequence or an optional holds, by its elem_type; a sequence has them in the plural
    SequenceProto.TENSOR: "tensor_value",
    SequenceProto.SPARSE_TENSOR: "sparse_tensor_value",
    SequenceProto.SEQUENCE: "sequence_value",
    SequenceProto.MAP: "map_value",
    SequenceProto.OPTIONAL: "optional_value",
}


def parse_value(data: bytes, declared: TensorType, uri: str) -> Message:
    """The message that holds a value of the declared type."""
    message = _MESSAGES.get(declared.kind, TensorProto)()
    try:
        message.ParseFromString(data)
    except DecodeError:
        raise ModelError(f"{uri} is no ONNX {declared.kind}.") from None
    return message


def to_value(message: Message, store: Store) -> Any:
    """What a message holds: an array, or a record of arrays."""
    if isinstance(message, TensorProto):
        return to_array(message, store)
    if isinstance(message, SequenceProto):
        return compound.Sequence(tuple(to_value(item, store) for item in _items(message)))
    if isinstance(message, OptionalProto):
        field = _FIELDS.get(message.elem_type, "")
        return compound.Optional(
            to_value(getattr(message, field), store) if field and message.HasField(field) else None
        )
    if isinstance(message, MapProto):
        return _map(message, store)
    return to_dense(message, store)


def _items(message: SequenceProto) -> Any:
    if message.elem_type and message.elem_type not in _FIELDS:
        raise ModelError(f"sequence {message.name!r} holds values of the unknown kind {message.elem_type}.")
    return getattr(message, f"{_FIELDS[message.elem_type]}s") if message.elem_type else ()


def _map(message: MapProto, store: Store) -> compound.Map:
    keys: tuple[Any, ...] = tuple(message.keys) or tuple(map(text, message.string_keys))
    values = to_value(message.values, store).items
    if len(keys) != len(values) or len(set(keys)) < len(keys):
        raise ModelError(f"map {message.name!r} has {len(set(keys))} different keys and {len(values)} values.")
    if not all(isinstance(value, np.ndarray) and value.size == 1 for value in values):
        raise ModelError(f"map {message.name!r} holds values that are no single numbers or strings.")
    return compound.Map(keys, np.asarray([value.item() for value in values], values[0].dtype if values else None))
