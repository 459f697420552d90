"""What a child says to the process that started it: frames of a length and as many bytes of JSON, [kind, value].

A child runs whatever a model makes it do, so what comes from it is held to sizes and to this form; anything else is as
good as a crash.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

LONGEST, MOST = 64 << 20, 512 << 20  # bytes of a frame, and of all that a child may say
KINDS = {"tasks": int, "task": str, "stage": str, "needs": int, "record": dict, "end": int}
_HEAD = 4  # bytes


class Garbled(Exception):
    """What a child says is no frame."""


def packed(kind: str, value: Any) -> bytes:
    """A frame; ValueError for one that would be refused."""
    data = json.dumps([kind, value], allow_nan=False, separators=(",", ":")).encode()
    if len(data) > LONGEST:
        raise ValueError(f"{kind} takes {len(data)} bytes, more than {LONGEST}")
    return len(data).to_bytes(_HEAD, "big") + data


class Frames:
    """Bytes as they come in, frames as they are whole."""

    def __init__(self) -> None:
        self.rest = bytearray()
        self.read = 0

    def feed(self, data: bytes) -> Iterator[tuple[str, Any]]:
        """The frames that are whole now; Garbled for what is none."""
        self.rest += data
        self.read += len(data)
        if self.read > MOST:
            raise Garbled(f"more than {MOST >> 20} MiB of results")
        start = 0
        while (end := self._end(start)) <= len(self.rest):
            yield _unpacked(bytes(self.rest[start + _HEAD : end]))
            start = end
        del self.rest[:start]

    def _end(self, start: int) -> int:
        """Where the frame that starts there ends; beyond all that is there while its head is not whole."""
        if len(self.rest) < start + _HEAD:
            return len(self.rest) + 1
        size = int.from_bytes(self.rest[start : start + _HEAD], "big")
        if size > LONGEST:
            raise Garbled(f"a frame of {size} bytes")
        return start + _HEAD + size


def _unpacked(data: bytes) -> tuple[str, Any]:
    try:
        kind, value = json.loads(data, parse_constant=_no_number)
    except (ValueError, TypeError, RecursionError):
        raise Garbled("a frame that is no JSON") from None
    if not isinstance(kind, str) or type(value) is not KINDS.get(kind):
        raise Garbled("a frame of no known kind")
    return kind, value


def _no_number(text: str) -> Any:
    raise ValueError(text)
