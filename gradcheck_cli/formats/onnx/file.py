"""The bytes of an ONNX file as a protobuf message, or a sentence that says what the file is instead."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any, NamedTuple

import onnx
from google.protobuf.message import DecodeError, Message  # type: ignore[import-untyped]

from gradcheck_cli.errors import ModelError, did_you_mean
from gradcheck_cli.formats.onnx.onnx_text import parse_text, text_format_of
from gradcheck_cli.formats.untrusted import closed_afterwards

PROTOBUF_LIMIT = (1 << 31) - 1  # bytes in one message
_BY_START = (
    (b"PK\x03\x04", "a zip archive (a PyTorch or Keras checkpoint?); export it to ONNX first"),
    (b"\x89HDF\r\n", "an HDF5 file (Keras weights?); export it to ONNX first"),
    (b"\x1f\x8b", "compressed with gzip; unpack it first"),
    (b"\x80\x02", "a Python pickle (a PyTorch checkpoint?); export it to ONNX first"),
    (b"\x80\x04", "a Python pickle; export it to ONNX first"),
    (b"\x93NUMPY", "a NumPy array"),
    (b"<!doctype html", "a web page (HTML); was the download link that of a page?"),
    (b"<html", "a web page (HTML); was the download link that of a page?"),
    (b"<?xml", "an XML file"),
    (b"{", "a JSON file; a model in JSON is named .json"),
    (b"[", "a JSON file"),
    (b"ir_version", "a model as text (textproto); name it .textproto, or save it in binary form"),
    (b"<", "a model in ONNX's text syntax; name it .onnxtxt, or save it in binary form"),
)


class File(NamedTuple):
    """A file as read once."""

    data: bytes
    sha256: str


def read_bytes(path: Path) -> File:
    """The content of a file that could be a model."""
    with opened(path) as file:
        data = file.read()
    return File(data, hashlib.sha256(data).hexdigest())


@contextmanager
def opened(path: Path) -> Iterator[BufferedReader]:
    """A file that could be a model, open; failures to read it are ModelErrors."""
    try:
        if path.is_dir():
            raise ModelError(f"{path} is a folder, not a model.{_models_in(path)}")
        if path.exists() and not path.is_file():  # a pipe could keep us waiting for ever
            raise ModelError(f"{path} is no regular file.")
        size = path.stat().st_size
        if size > PROTOBUF_LIMIT:
            raise ModelError(f"{path} is larger than 2 GiB in one file; save it with its weights as external data.")
    except FileNotFoundError:
        raise ModelError(f"{path} does not exist.{_near(path)}") from None
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from error
    try:
        with closed_afterwards(lambda: path.open("rb")) as file:
            yield file
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> ModelError:
    return ModelError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}.")


def parse_model(data: bytes, uri: str) -> onnx.ModelProto:
    """The model in `data`; a ModelError with what the data is where it is none."""
    refuse_pointer(data, uri)
    if data and text_format_of(uri):
        return parse_text(data, uri)
    model = onnx.ModelProto()
    if not _parsed(model, data) or not model.HasField("graph"):
        raise ModelError(f"{uri} {_diagnosis(data)}.")
    return model


def refuse_pointer(data: bytes, uri: str) -> None:
    """A ModelError where Git LFS has put a pointer in the place of a file."""
    if data.startswith(b"version https://git-lfs"):
        text = f"{uri} is a Git LFS pointer ({len(data)} bytes), not a model. `git lfs pull` fetches the model."
        raise ModelError(text, code="GC403")


def refuse_broken_text(message: Message, uri: str) -> None:
    """A ModelError where any text in a message is not UTF-8; protobuf gives it out as bytes."""
    pending = [message]
    while pending:
        for field, value in pending.pop().ListFields():
            if field.type == field.TYPE_MESSAGE:
                pending.extend([value] if isinstance(value, Message) else value)
            elif field.type == field.TYPE_STRING and _is_broken(value):
                raise ModelError(f"{uri} is damaged: its field {field.full_name!r} is not valid UTF-8.")


def _is_broken(value: Any) -> bool:
    return any(type(item) is not str for item in ([value] if isinstance(value, (str, bytes)) else value))


def _parsed(message: Message, data: bytes) -> bool:
    try:
        message.ParseFromString(data)
    except DecodeError:
        return False
    return True


def _diagnosis(data: bytes) -> str:
    """What a file without a model is, to follow its name."""
    if not data:
        return "is empty"
    start = data[:64].lstrip().lower()
    for mark, kind in _BY_START:
        if start.startswith(mark.lower()):
            return f"is {kind}"
    if data[4:8] in (b"ORTM", b"TFL3"):
        return "is in ONNX Runtime's own format" if data[4:8] == b"ORTM" else "is a TFLite model"
    if _is_text(data[:4096]):
        return "is a text file, not a model"
    if onnx.ModelProto.DESCRIPTOR.fields_by_name["ir_version"].number << 3 == data[0]:
        return f"is truncated or damaged: its {len(data)} bytes are not a whole ONNX model"
    return "is not an ONNX model"


def _is_text(data: bytes) -> bool:
    return not any(byte < 9 or 13 < byte < 32 or byte > 126 for byte in data)


def _near(path: Path) -> str:
    try:
        return did_you_mean(path.name, os.listdir(path.parent))
    except OSError:
        return ""


def _models_in(folder: Path) -> str:
    try:
        models = sorted(name for name in os.listdir(folder) if name.endswith(".onnx"))
    except OSError:
        return ""
    return f" It holds {', '.join(models[:5])}{' ...' if len(models) > 5 else ''}." if models else ""
