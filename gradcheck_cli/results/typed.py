"""Fields of records as they are declared, and a reader of JSON values for each type, made once.

A field is a type, with `Annotated` for what else is known of it: a text says what it holds, `Only` which values, `Keys`
which keys.  Readers and the JSON Schema both follow from that.
"""

from __future__ import annotations

import json
import re
import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from typing import (
    Annotated,
    Any,
    TypeAlias,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from gradcheck_cli.errors import shown

Reader: TypeAlias = Callable[[Any], Any]
_NONFINITE = ("nan", "inf", "-inf")


@dataclass(frozen=True, slots=True)
class Only:
    """Values that a field holds: words, texts of a pattern, numbers that are not less than one.

    The reader lets others through, since a newer version may know more, unless `said` is what they should be.
    """

    words: tuple[str, ...] = ()
    pattern: str = ""
    least: int | None = None
    said: str = ""


@dataclass(frozen=True, slots=True)
class Keys:
    """Keys that a mapping may have; the first come together, unless it is empty."""

    together: tuple[str, ...]
    others: tuple[str, ...] = ()


Count: TypeAlias = Annotated[int, Only(least=0)]
Indices: TypeAlias = tuple[Count, ...]


class Unfit(Exception):
    """A value that is not what it should be, and the way to it, innermost first."""

    def __init__(self, problem: str, *way: str) -> None:
        super().__init__(problem)
        self.way = [*way]

    def __str__(self) -> str:
        return f"{shown(''.join(reversed(self.way)).removeprefix('.'))} {self.args[0]}".lstrip()


@cache
def declared(kind: type) -> Mapping[str, Any]:
    """The fields of a dataclass, or the keys of a typed dictionary, with their types."""
    return get_type_hints(kind, include_extras=True)


def required(kind: Any) -> tuple[str, ...]:
    """The names of those that have to be there."""
    if is_dataclass(kind):
        return tuple(f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING)
    return tuple(declared(kind)) if kind.__total__ else ()


@cache
def reader(kind: Any) -> Reader:
    """The function that makes a value of this type of a JSON value."""
    origin, inside = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _annotated(*inside)
    if is_dataclass(kind):
        return record(kind)  # type: ignore[arg-type]
    if is_typeddict(kind) or origin is Mapping:
        return _mapping(kind)
    if origin in (Union, types.UnionType):
        return optional(reader(inside[0]))
    if origin is tuple:
        return _tuple(reader(inside[0]), None if inside[1] is ... else len(inside))
    return {str: _text, int: _integer, float: _number, bool: _claim}[kind]


def record(kind: type, own: Mapping[str, Reader] | None = None) -> Reader:
    """A frozen record: what has no default has to be there.  Some fields may be read in their own way."""
    own = own or {}
    readers = {name: own.get(name) or reader(hint) for name, hint in declared(kind).items()}
    needed = required(kind)

    def read(value: Any) -> Any:
        return kind(**_together(_by_key(value, readers), needed))

    return read


def optional(read: Reader) -> Reader:
    """A reader that also takes null, as None."""
    return lambda value: None if value is None else read(value)


def brief(value: Any) -> str:
    """A JSON value in a message."""
    if isinstance(value, dict | list):
        return "a list" if isinstance(value, list) else "an object"
    text = shown(json.dumps(value[:40] if isinstance(value, str) else value))
    return text if len(text) <= 40 else f"{text[:37]}..."


def _annotated(kind: Any, *known: Any) -> Reader:
    """The reader of a type of which more is known."""
    for each in known:
        if isinstance(each, Keys):
            return _mapping(kind, each.together)
        if isinstance(each, Only) and each.said:
            return _only(each)
    return reader(kind)


def _only(known: Only) -> Reader:
    pattern = re.compile(known.pattern)

    def read(value: Any) -> Any:
        if isinstance(value, str) and (pattern.fullmatch(value) if known.pattern else value in known.words):
            return value
        raise Unfit(f"should be {known.said}, and is {brief(value)}")

    return read


def _mapping(kind: Any, together: tuple[str, ...] = ()) -> Reader:
    """Values by name; some names come together, unless there are none at all.

    Keys that a typed dictionary does not know stay as they are.
    """
    typed = is_typeddict(kind)
    known = {name: reader(hint) for name, hint in declared(kind).items()} if typed else {}
    needed, other = (required(kind), _plain) if typed else ((), reader(get_args(kind)[1]))

    def read(value: Any) -> Any:
        given = _together(_by_key(value, known, other), needed)
        return _together(given, together) if given else given

    return read


def _plain(value: Any) -> Any:
    """Any value, as it is."""
    return value


def _by_key(value: Any, known: Mapping[str, Reader], other: Reader | None = None) -> dict[str, Any]:
    """The values under the keys that are known, or under all."""
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


def _together(given: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
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
