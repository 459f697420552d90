"""Types of the fields of records, and for each the function that reads a JSON value, and its JSON Schema.

A field is a type, with `Annotated` for what else is known of it: a text describes it, `Only` limits its values, `Keys` its
keys, `Read` reads it in another way.
"""

from __future__ import annotations

import inspect
import json
import re
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import cache, lru_cache
from typing import Annotated, Any, NamedTuple, TypeAlias, Union, get_args, get_origin, get_type_hints, is_typeddict

from msgspec import Struct

from gradcheck_cli.errors import shown

Reader: TypeAlias = Callable[[Any], Any]
Schema: TypeAlias = dict[str, Any]
_NONFINITE = ("nan", "inf", "-inf")


class Displayed:
    """Base of what prompts show in a few lines, and notebooks as HTML."""

    __slots__ = ()

    def __repr__(self) -> str:
        from gradcheck_cli.results.display import as_text  # at a prompt, in a failing test: not in a run

        return as_text(self)

    def _repr_html_(self) -> str | None:
        from gradcheck_cli.results.display import as_html

        return as_html(self)


class Only(Struct, frozen=True):
    """Values that a field holds: words, texts of a pattern, numbers that are not less than one.

    The reader lets others through, since a newer version may know more, unless `said` is what they should be.
    """

    words: tuple[str, ...] = ()
    pattern: str = ""
    least: int | None = None
    said: str = ""


class Keys(Struct, frozen=True):
    """Keys that a mapping may have; those in `together` are all there, unless it is empty."""

    together: tuple[str, ...]
    others: tuple[str, ...] = ()


class Read(Struct, frozen=True):
    """The function that reads a value, in place of the one of its type."""

    by: Reader


Count: TypeAlias = Annotated[int, Only(least=0)]
Indices: TypeAlias = tuple[Count, ...]


class Unfit(Exception):
    """A value that is not what it should be, and the way to it, innermost first."""

    def __init__(self, problem: str, *way: str) -> None:
        super().__init__(problem)
        self.way = [*way]

    def __str__(self) -> str:
        return f"{shown(''.join(reversed(self.way)).removeprefix('.'))} {self.args[0]}".lstrip()


class JsonType(NamedTuple):
    """A type as it is in JSON: `read` makes its values of JSON values, and raises Unfit."""

    read: Reader
    schema: Schema


def reader(kind: Any) -> Reader:
    """The function that makes a value of this type of a JSON value."""
    return json_type(kind).read


@cache
def json_type(kind: Any) -> JsonType:
    """The reader and the schema of a type, made once."""
    origin, inside = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _annotated(*inside)
    if is_record(kind) or is_typeddict(kind):
        return _object(kind)
    if origin is Mapping:
        each = json_type(inside[1])
        return JsonType(
            lambda value: _by_key(value, {}, each.read), {"type": "object", "additionalProperties": each.schema}
        )
    if origin in (Union, types.UnionType):
        some = json_type(inside[0])
        null = {"oneOf": [some.schema, {"type": "null"}]}
        return JsonType(lambda value: None if value is None else some.read(value), null)
    if origin is tuple:
        return _tuple(json_type(inside[0]), None if inside[1] is ... else len(inside))
    return _PLAIN[kind]


@cache
def field_readers(kind: Any) -> Mapping[str, Reader]:
    """The functions that read the fields of a struct, a dataclass or a typed dictionary, by name."""
    return {name: json_type(hint).read for name, hint in get_type_hints(kind, include_extras=True).items()}


def from_texts(kind: Any, texts: Mapping[str, str]) -> Any:
    """A record by the JSON text of each of its fields; values that many records share are made once."""
    given = {name: _of_text(kind, name, texts[name]) for name in field_readers(kind) if name in texts}
    return kind(**_together(given, _needed(kind)))


@lru_cache(1 << 12)
def _of_text(kind: Any, field: str, text: str) -> Any:
    """The value of a field by its text."""
    try:
        return field_readers(kind)[field](json.loads(text))
    except Unfit as error:
        error.way.append(f".{field}")
        raise


def is_record(kind: Any) -> bool:
    """True for a struct or a dataclass, and for a value of one."""
    return is_dataclass(kind) or hasattr(kind, "__struct_fields__")


@cache
def field_names(kind: type) -> tuple[str, ...]:
    """Names of the fields of a struct or a dataclass, in order."""
    found: tuple[str, ...] = getattr(kind, "__struct_fields__", ())
    return found or tuple(each.name for each in fields(kind))


@cache
def _needed(kind: Any) -> list[str]:
    """Fields of a struct or a dataclass without a default."""
    if issubclass(kind, Struct):  # those with a default come last
        names = kind.__struct_fields__
        return [*names[: len(names) - len(kind.__struct_defaults__)]]
    return [f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING]


def brief(value: Any) -> str:
    """A JSON value in a message."""
    if isinstance(value, dict | list):
        return "a list" if isinstance(value, list) else "an object"
    text = shown(json.dumps(value[:40] if isinstance(value, str) else value))
    return text if len(text) <= 40 else f"{text[:37]}..."


def _annotated(kind: Any, *known: Any) -> JsonType:
    """A type of which more is known."""
    found = json_type(kind)
    for each in known:
        match each:
            case Keys():
                found = _keyed(found, each)
            case Only():
                said = {"enum": [*each.words], "pattern": each.pattern, "minimum": each.least}
                limits = {word: value for word, value in said.items() if value not in ([], "", None)}
                plain = {"type": "number"} if kind is float else found.schema
                found = JsonType(_only(each) if each.said else found.read, {**plain, **limits})
            case Read():
                found = JsonType(each.by, found.schema)
            case _:  # whatever stands beside a reference is ignored in draft-07
                schema = {"allOf": [found.schema]} if "$ref" in found.schema else found.schema
                found = JsonType(found.read, {**schema, "description": each})
    return found


def _only(known: Only) -> Reader:
    pattern = re.compile(known.pattern)

    def read(value: Any) -> Any:
        if isinstance(value, str) and (pattern.fullmatch(value) if known.pattern else value in known.words):
            return value
        raise Unfit(f"should be {known.said}, and is {brief(value)}")

    return read


def _keyed(mapping: JsonType, keys: Keys) -> JsonType:
    """A mapping of which keys are known."""

    def read(value: Any) -> Any:
        given = mapping.read(value)
        return _together(given, keys.together) if given else given

    schema = {word: value for word, value in mapping.schema.items() if word != "additionalProperties"}
    named = dict.fromkeys((*keys.together, *keys.others), mapping.schema.get("additionalProperties"))
    schema["properties"] = mapping.schema.get("properties", named)
    together = {"anyOf": [{"maxProperties": 0}, {"required": [*keys.together]}]}
    return JsonType(read, {**schema, **together} if keys.together else schema)


def _object(kind: Any) -> JsonType:
    """A struct, a dataclass, or a typed dictionary, in which keys that it does not know stay as they are."""
    typed = {name: json_type(hint) for name, hint in get_type_hints(kind, include_extras=True).items()}
    readers, record = {name: each.read for name, each in typed.items()}, is_record(kind)
    needed = _needed(kind) if record else [*typed] if kind.__total__ else []
    about, _, _ = (inspect.getdoc(kind) or "").partition("\n\n")
    properties = {name: each.schema for name, each in typed.items()}
    schema = {"type": "object", "description": " ".join(about.split()), "properties": properties}

    def read(value: Any) -> Any:
        given = _together(_by_key(value, readers, None if record else lambda other: other), needed)
        return kind(**given) if record else given

    return JsonType(read, {**schema, "required": needed} if needed else schema)


def _by_key(value: Any, known: Mapping[str, Reader], other: Reader | None) -> dict[str, Any]:
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


def _together(given: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    for name in names:
        if name not in given:
            raise Unfit("is missing", f".{name}")
    return given


def _tuple(item: JsonType, length: int | None) -> JsonType:
    def read(value: Any) -> Any:
        if not isinstance(value, list) or length not in (None, len(value)):
            raise Unfit(f"should be a list{f' of {length}' if length else ''}, and is {brief(value)}")
        try:
            return tuple([item.read(each) for each in value])
        except Unfit as error:
            error.way.append("[]")
            raise

    return JsonType(read, {"type": "array", "items": item.schema})


def _number(value: Any) -> Any:
    """A float; one that is not finite is a word in JSON."""
    if type(value) is float:
        return value
    if value in _NONFINITE or (type(value) is int and abs(value) < 1 << 1023):
        return float(value)
    raise Unfit(f"should be a number, and is {brief(value)}")


def _plain(kind: type, said: str, name: str) -> JsonType:
    def read(value: Any) -> Any:
        if type(value) is not kind:
            raise Unfit(f"should be {said}, and is {brief(value)}")
        return value

    return JsonType(read, {"type": name})


_PLAIN: Mapping[Any, JsonType] = {
    str: _plain(str, "text", "string"),
    int: _plain(int, "an integer", "integer"),
    bool: _plain(bool, "true or false", "boolean"),
    float: JsonType(_number, {"$ref": "#/definitions/number"}),
}
