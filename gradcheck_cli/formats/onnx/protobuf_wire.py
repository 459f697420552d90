"""Protocol buffers as they lie in a file: fields of messages, found by their extents, without reading what they hold."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from io import BufferedReader
from itertools import islice

_MOST = 10_000_000  # fields that are looked at: some seconds' worth
_FIRST = 100_000  # of them, more than a model has beside its functions, which are its last
_FIXED = {1: 8, 5: 4}  # bytes of a number, by wire type


class Broken(Exception):
    """The bytes are no message."""


class Wire:
    """The bytes of an open file as fields of messages."""

    def __init__(self, file: BufferedReader) -> None:
        self._file = file
        self._fields = 0  # that were looked at

    def fields(self, start: int, stop: int) -> Iterator[tuple[int, int, int, int]]:
        """The fields of a message: tag, where what follows the tag begins, where the content begins and ends."""
        position = start
        while position < stop:
            self._fields += 1
            tag, at = self.number(position, stop)
            if tag < 8 or self._fields > _MOST:  # there is no field 0
                raise Broken
            begin, position = self._extent(tag & 7, at, stop)
            yield tag, at, begin, position

    def number(self, at: int, stop: int) -> tuple[int, int]:
        """The varint at a place, and where it ends."""
        value = 0
        for index, byte in enumerate(self.read(at, min(at + 10, stop))):
            value |= (byte & 127) << 7 * index
            if byte < 128:
                return value, at + index + 1
        raise Broken

    def read(self, start: int, stop: int) -> bytes:
        """The bytes between two places."""
        self._file.seek(start)
        return self._file.read(stop - start)

    def _extent(self, wire: int, at: int, stop: int) -> tuple[int, int]:
        """Where the content of a field begins and ends."""
        if wire == 0:
            begin, end = at, self.number(at, stop)[1]
        elif wire == 2:
            length, begin = self.number(at, stop)
            end = begin + length
        else:
            begin, end = at, at + _FIXED.get(wire, stop)
        if end > stop or wire not in (0, 2, *_FIXED):
            raise Broken
        return begin, end


def fields_of(file: BufferedReader) -> set[int]:
    """Numbers of the first fields of the message in an open file, as far as it is one."""
    found, size = set[int](), file.seek(0, 2)
    with suppress(Broken):
        found.update(tag >> 3 for tag, _, _, _ in islice(Wire(file).fields(0, size), _FIRST))
    return found
