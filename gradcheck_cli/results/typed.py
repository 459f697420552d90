"""Values of JSON as what types of Python say: a reader for each type, made once; `Unfit` for what does not fit."""

from __future__ import annotations

import json
import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import Any, TypeAlias, Union, get_args, get_origin, get_type_hints

from gradcheck_cli.errors import shown

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
