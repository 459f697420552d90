"""The outline of an ONNX file: the model without the bytes of its large tensors, which stay in the file until wanted.

A protobuf message holds all of its bytes, and gives each tensor out as a copy: a model would be in memory three times.
So the wire format is walked, and whatever is large in a `raw_data` field is left out, with a mark in its place.  Tensors
are then read from the open file by offset, one at a time: a file that is cut off meanwhile is an error, where one mapped
into memory would end the process.
"""

from __future__ import annotations

import secrets
from io import BufferedReader
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto

from gradcheck_cli.errors import ModelError
from gradcheck_cli.formats.onnx.protobuf_wire import Broken, Wire
from gradcheck_cli.graph import Array

LARGE = 1 << 20  # bytes of a field that is worth leaving out
_DEEPEST_OUTLINE = 100  # messages inside each other, as many as protobuf takes
_RAW = TensorProto.DESCRIPTOR.fields_by_name["raw_data"]


class Outline:
    """`data` is the outline of a model in an open file; `payload` reads what was left out."""

    def __init__(self, file: BufferedReader) -> None:
        self._file, self._wire = file, Wire(file)
        self._spans: dict[bytes, tuple[int, int]] = {}
        size = file.seek(0, 2)
        try:
            self.data = self._without(0, size, ModelProto.DESCRIPTOR, 0)
        except Broken:  # of which the parser knows more to say
            self._spans.clear()
            self.data = self._wire.read(0, size)

    def payload(self, raw_data: bytes) -> Array:
        """The bytes of a tensor: those of its field, or those that its field is the mark of."""
        if raw_data not in self._spans:
            return np.frombuffer(raw_data, np.uint8)
        start, stop = self._spans[raw_data]
        self._file.seek(start)
        data = np.fromfile(self._file, np.uint8, stop - start)
        if data.size < stop - start:
            raise ModelError("the file was cut off while it was read.")
        return data

    def _without(self, start: int, stop: int, kind: Any, depth: int) -> bytes:
        """The bytes of a message of a kind, its large payloads replaced by marks."""
        if depth > _DEEPEST_OUTLINE:
            raise Broken
        made, copied = list[bytes](), start
        for tag, at, begin, end in self._wire.fields(start, stop):
            if end - begin > LARGE and (inner := self._replaced(kind, tag, begin, end, depth)) is not None:
                made += [self._wire.read(copied, at), _varint(len(inner)), inner]
                copied = end
        return b"".join([*made, self._wire.read(copied, stop)])

    def _replaced(self, kind: Any, tag: int, begin: int, end: int, depth: int) -> bytes | None:
        """What stands for a large field; None where it stays."""
        field = kind.fields_by_number.get(tag >> 3)
        if field is None or tag & 7 != 2:
            return None
        if field.message_type is not None:
            return self._without(begin, end, field.message_type, depth + 1)
        if field.full_name != _RAW.full_name:
            return None
        mark = secrets.token_bytes(32)  # which no file can hold on purpose
        self._spans[mark] = begin, end
        return mark


def _varint(value: int) -> bytes:
    made = bytearray()
    while value > 127:
        made.append(value & 127 | 128)
        value >>= 7
    return bytes([*made, value])
