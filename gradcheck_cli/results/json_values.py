"""A file as JSON values: a document, or values one after another, as in lines; what cannot be read is a UsageError."""

from __future__ import annotations

import codecs
import json
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, TypeAlias

from gradcheck_cli.errors import UsageError

Tell: TypeAlias = Callable[[str], object]
_LARGEST, _BLOCK = 2 << 30, 1 << 20  # bytes of a file, and of it at once
_NO_SPACE = re.compile(r"[^ \t\r\n]")


def values(path: str, tell: Tell | None) -> Iterator[tuple[Any, int]]:
    """The JSON values in a file, whatever space is between them, and the line in which each begins.

    A last line that was not written to its end is left out, and `tell` hears of it.
    """
    text = _text_of(path)
    decode, lines = json.JSONDecoder().raw_decode, path.endswith(".jsonl")
    start, end, line = _value_from(text, 0), 0, 1
    if start == len(text) and not lines:
        raise UsageError(f"{path} holds no results: it is empty")
    while start < len(text):
        line += text.count("\n", end, start)
        try:
            value, end = decode(text, start)
        except (ValueError, RecursionError) as error:
            if isinstance(error, RecursionError) or "\n" in text[start:] or not (start or lines):
                raise UsageError(f"{path}:{line} holds no results; --report results.json writes them") from None
            if tell is not None:
                tell(f"{path}:{line}: the last line was not written to its end, and is left out")
            return
        yield value, line
        line += text.count("\n", start, end)
        start = _value_from(text, end)


def _value_from(text: str, at: int) -> int:
    """Where the next value begins; the end if there is none."""
    found = _NO_SPACE.search(text, at)
    return found.start() if found else len(text)


def _text_of(path: str) -> str:
    """A file's text: UTF-8, or what a Windows shell makes of it."""
    try:
        if path == "-":
            data = _bytes_of(sys.stdin.buffer, path)
        else:
            with open(path, "rb") as file:
                data = _bytes_of(file, path)
        return codecs.getincrementaldecoder(json.detect_encoding(data))("surrogatepass").decode(data)  # or most of it
    except UnicodeDecodeError:
        raise UsageError(f"{path} holds no results: it is no text") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}{_hint(error)}") from None


def _hint(error: OSError) -> str:
    return "; for what a zoo has found: gradcheck zoo report" if isinstance(error, IsADirectoryError) else ""


def _bytes_of(file: BinaryIO, path: str) -> bytes:
    """All of a file, or of a pipe, that is not endless."""
    data = bytearray()
    while block := file.read(_BLOCK):
        data += block
        if len(data) > _LARGEST:
            raise UsageError(f"{path} is larger than {_LARGEST >> 30} GiB")
    return bytes(data)
