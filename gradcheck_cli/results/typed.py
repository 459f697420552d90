"""Values of JSON as what types of Python say: a reader for each type, made once; `Unfit` for what does not fit.

A file as JSON values: a document, or values one after another, as in lines; what cannot be read is a UsageError.

No more of a file is held than the value that is being read, and of a run as we write it than one of its records.

What pictures are drawn from, as far as a record holds it; shapes and sizes are looked at before they are believed.
"""

from __future__ import annotations

import codecs
import json
import re
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from math import prod
from typing import TYPE_CHECKING, Any, BinaryIO, TypeAlias, Union, get_args, get_origin, get_type_hints

from gradcheck_cli.errors import UsageError, shown
from gradcheck_cli.results.record import RUN_SCHEMA

if TYPE_CHECKING:
    from gradcheck_cli.results.picture import Curve, Picture


Reader: TypeAlias = Callable[[Any], Any]
_NONFINITE = ("nan", "inf", "-inf")


class Unfit(Exception):
    """A value that is not what it should be, and the way to it, innermost first."""

    def __init__(self, problem: str, *way: str) -> None:
        super().__init__(problem)
        self.way = [*way]

    def __str__(self) -> str:
        return f"{shown(''.join(reversed(self.way)).removeprefix('.'))} {self.args[0]}".lstrip()


@cache
def reader(kind: Any) -> Reader:
    """What makes a value of this type of a JSON value."""
    origin, inside = get_origin(kind), get_args(kind)
    if is_dataclass(kind):
        return record(kind)
    if origin in (Union, types.UnionType):
        return optional(reader(inside[0]))
    if origin is tuple:
        return _tuple(reader(inside[0]), None if inside[1] is ... else len(inside))
    if origin is Mapping:
        return mapping(reader(inside[1]))
    return {str: _text, int: _integer, float: _number, bool: _claim}[kind]


def record(
    kind: Any, by: Callable[[str, Any], Reader] | None = None, own: Mapping[str, Reader] | None = None
) -> Reader:
    """A frozen record: what has no default has to be there.  Fields are read by name and type, some in their own way."""
    own, hints = own or {}, get_type_hints(kind, localns={"Picture": Any})
    choose = by or (lambda _, hint: reader(hint))
    readers = {f.name: own.get(f.name) or choose(f.name, hints[f.name]) for f in fields(kind)}
    required = [f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING]

    def read(value: Any) -> Any:
        return kind(**_together(_by_key(value, readers), required))

    return read


def mapping(other: Reader, known: Mapping[str, Reader] | None = None, together: tuple[str, ...] = ()) -> Reader:
    """Values by name, some of known kinds; some names come together, unless there are none at all."""
    known = known or {}

    def read(value: Any) -> Any:
        given = _by_key(value, known, other)
        return _together(given, together) if given else given

    return read


def optional(read: Reader) -> Reader:
    """The same, or null."""
    return lambda value: None if value is None else read(value)


def plain(value: Any) -> Any:
    """Any value, as it is."""
    return value


def brief(value: Any) -> str:
    """A JSON value in a message."""
    if isinstance(value, dict | list):
        return "a list" if isinstance(value, list) else "an object"
    text = shown(json.dumps(value[:40] if isinstance(value, str) else value))
    return text if len(text) <= 40 else f"{text[:37]}..."


def _by_key(value: Any, known: Mapping[str, Reader], other: Reader | None = None) -> dict[str, Any]:
    """What is under each key that is known, or under each."""
    if not isinstance(value, dict):
        raise Unfit(f"should be an object, and is {brief(value)}")
    given = {}
    for key, each in value.items():
        if (read := known.get(key, other)) is not None:
            try:
                given[key] = read(each)
            except Unfit as error:
                error.way.append(f".{key}")
                raise
    return given


def _together(given: dict[str, Any], names: list[str] | tuple[str, ...]) -> dict[str, Any]:
    for name in names:
        if name not in given:
            raise Unfit("is missing", f".{name}")
    return given


def _tuple(read: Reader, length: int | None) -> Reader:
    def read_each(value: Any) -> Any:
        if not isinstance(value, list) or length not in (None, len(value)):
            raise Unfit(f"should be a list{f' of {length}' if length else ''}, and is {brief(value)}")
        try:
            return tuple([read(each) for each in value])
        except Unfit as error:
            error.way.append("[]")
            raise

    return read_each


def _text(value: Any) -> Any:
    if not isinstance(value, str):
        raise Unfit(f"should be text, and is {brief(value)}")
    return value


def _integer(value: Any) -> Any:
    if type(value) is not int:
        raise Unfit(f"should be an integer, and is {brief(value)}")
    return value


def _number(value: Any) -> Any:
    """A float; one that is not finite is a word in JSON."""
    if type(value) is float:
        return value
    if value in _NONFINITE or (type(value) is int and abs(value) < 1 << 1023):
        return float(value)
    raise Unfit(f"should be a number, and is {brief(value)}")


def _claim(value: Any) -> Any:
    if not isinstance(value, bool):
        raise Unfit(f"should be true or false, and is {brief(value)}")
    return value


Tell: TypeAlias = Callable[[str], object]
_LARGEST, _BLOCK = 2 << 30, 1 << 20  # bytes of a file, and of it at once
_NO_SPACE = re.compile(r"[^ \t\r\n]")
_RUN = re.compile(rf'{{\s*"schema": *"{RUN_SCHEMA}",\s*"exit_code": *\d+,\s*"checks": *\[')  # how we begin one
_decode = json.JSONDecoder().raw_decode


def values(path: str, tell: Tell | None) -> Iterator[tuple[Any, int]]:
    """The JSON values in a file, whatever space is between them, and the line in which each begins.

    Instead of a run as we write it come its records, then the run without them.  A last line that was not written to its
    end is left out, and `tell` hears of it.
    """
    lines, text = path.endswith(".jsonl"), _Text(_texts_of(path))
    first = True
    while text.next():
        line = text.line
        try:
            if first and (head := _RUN.match(text.read, text.at)):
                yield from _records(text, head)
            value = text.value()
        except (ValueError, RecursionError) as error:
            if isinstance(error, RecursionError) or "\n" in text.left or not (lines or not first):
                raise UsageError(f"{path}:{line} holds no results; --report results.json writes them") from None
            if tell is not None:
                tell(f"{path}:{line}: the last line was not written to its end, and is left out")
            return
        yield value, line
        first = False
    if first and not lines:
        raise UsageError(f"{path} holds no results: it is empty")


def _records(text: _Text, head: re.Match[str]) -> Iterator[tuple[Any, int]]:
    """The records of a run; then it stands where what is left is the run without them."""
    text.go(head.end())
    more = text.next() != "]"
    while more:
        text.next()
        line = text.line
        yield text.value(), line
        if (sign := text.next()) not in (",", "]"):
            raise ValueError(sign)
        more = sign == ","
        text.go(text.at + more)
    text.put_before(f'{{"schema": "{RUN_SCHEMA}", "checks": [')


class _Text:
    """The text of a file: `at` is how far it was made use of, `read` what has come of it since some time."""

    def __init__(self, blocks: Iterator[str]) -> None:
        self.blocks, self.read, self.at, self.line = blocks, "", 0, 1

    @property
    def left(self) -> str:
        """What was read and not made use of."""
        return self.read[self.at :]

    def go(self, place: int) -> None:
        """Goes on to a place in what was read."""
        self.line += self.read.count("\n", self.at, place)
        self.at = place

    def next(self) -> str:
        """Goes on to what is no space: the character there, or nothing at the end."""
        while (found := _NO_SPACE.search(self.read, self.at)) is None:
            self.go(len(self.read))
            if not self._more():
                return ""
        self.go(found.start())
        return found[0]

    def value(self) -> Any:
        """The value that begins here; ValueError where there is none in all that is left."""
        while True:
            try:
                value, end = _decode(self.read, self.at)
            except ValueError:
                if not self._more():
                    raise
            else:
                if end < len(self.read) or not self._more():  # else a number may go on
                    self.go(end)
                    return value

    def put_before(self, text: str) -> None:
        """As if it stood before what is left."""
        self.read, self.at = text + self.left, 0

    def _more(self) -> bool:
        """Reads as much again as is left, so that a long value is not tried over and over; False at the end."""
        left = self.left
        if block := "".join(self._blocks_of(max(len(left), 1))):
            self.read, self.at = left + block, 0
        return bool(block)

    def _blocks_of(self, size: int) -> Iterator[str]:
        while size > 0 and (block := next(self.blocks, None)) is not None:
            size -= len(block)
            yield block


def _texts_of(path: str) -> Iterator[str]:
    """A file's text, block by block: UTF-8, or what a Windows shell makes of it."""
    try:
        if path == "-":
            yield from _decoded(sys.stdin.buffer, path)
        else:
            with open(path, "rb") as file:
                yield from _decoded(file, path)
    except UnicodeDecodeError:
        raise UsageError(f"{path} holds no results: it is no text") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}{_hint(error)}") from None


def _hint(error: OSError) -> str:
    return "; for what a zoo has found: gradcheck zoo report" if isinstance(error, IsADirectoryError) else ""


def _decoded(file: BinaryIO, path: str) -> Iterator[str]:
    """The text of a file, or of a pipe, that is not endless; of a character that is not whole at its end nothing."""
    size, decoder = 0, None
    while block := file.read(_BLOCK):
        if (size := size + len(block)) > _LARGEST:
            raise UsageError(f"{path} is larger than {_LARGEST >> 30} GiB")
        decoder = decoder or codecs.getincrementaldecoder(json.detect_encoding(block))("surrogatepass")
        yield decoder.decode(block)


_LARGEST_PICTURE = 5000.0  # no severity is beyond
_TILE: Mapping[str, Any] = {
    "over": str,
    "sizes": tuple[int, ...],
    "shape": tuple[int, ...],
    "cells": tuple[float | None, ...],
}


def picture(value: Any) -> Picture:
    """The picture that a record was written with."""
    from gradcheck_cli.results.picture import Curve, Picture  # brings NumPy, which few records need

    counts = tuple[tuple[int, ...], ...]
    kinds = {"errors": counts, "noise": counts, "curve": Curve | None}
    if not isinstance(value, dict) or not isinstance(value.get("tile"), dict):
        raise Unfit("should be an object with a tile")
    tile = {name: reader(kind)(value["tile"].get(name)) for name, kind in _TILE.items()}
    found = {name: reader(kind)(value.get(name)) for name, kind in kinds.items()}
    if not (_holds(tile) and all(map(_counts, (found["errors"], found["noise"]))) and _even(found["curve"])):
        raise Unfit("holds a picture whose parts do not fit together")
    return Picture.from_json({"tile": tile, **found, "curve": value.get("curve")})


def _holds(tile: Mapping[str, Any]) -> bool:
    """Cells are as many as their shape says, and stand for something."""
    from gradcheck_cli.results.picture import PANES, SIDE, Over

    shape, cells = tile["shape"], tile["cells"]
    sides = (PANES, SIDE, SIDE) if len(shape) == 3 else (SIDE, SIDE)
    fits = len(shape) == len(tile["sizes"]) == len(sides) and prod(shape) == len(cells)
    inside = fits and all(1 <= n <= min(most, size) for n, most, size in zip(shape, sides, tile["sizes"], strict=True))
    return inside and tile["over"] in get_args(Over) and all(v is None or abs(v) <= _LARGEST_PICTURE for v in cells)


def _counts(rows: tuple[tuple[int, ...], ...]) -> bool:
    from gradcheck_cli.results.picture import Histogram, Standing

    fits = len(rows) == len(Standing) and all(len(row) == Histogram.SLOTS for row in rows)
    return fits and all(0 <= number < 1 << 60 for row in rows for number in row)


def _even(curve: Curve | None) -> bool:
    return curve is None or len(curve.steps) == len(curve.errors) == len(curve.crossed)
