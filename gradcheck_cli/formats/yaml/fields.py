"""Fields of a spec that take more than one form: what is allowed, as a check and as a piece of JSON Schema.

A check returns the value or raises a ValueError that says what would be right.  Here too: the kinds of
initialisation, and which of a union a mapping means.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from gradcheck_cli.errors import did_you_mean

Schema = dict[str, Any]
REQUIRED = object()
_FANS = ("glorot_uniform", "glorot_normal", "he_uniform", "he_normal", "lecun_uniform", "lecun_normal")
KINDS: dict[str, dict[str, Any]] = {  # kind of initialisation: its options and their defaults
    "zeros": {},
    "ones": {},
    "constant": {"value": REQUIRED},
    "uniform": {"low": -1.0, "high": 1.0},
    "normal": {"mean": 0.0, "std": 1.0},
    **{kind: {"gain": 1.0} for kind in _FANS},
    "orthogonal": {"gain": 1.0},
    "identity": {"gain": 1.0},
    "eye": {"gain": 1.0},
    "arange": {"start": 0, "step": 1},
    "values": {"values": REQUIRED},
    "file": {"path": REQUIRED, "key": None},
}
_NUMBER: Schema = {"type": "number"}
_NAME: Schema = {"type": "string", "minLength": 1}
_PAIR: Schema = {"type": "array", "items": _NUMBER, "minItems": 2, "maxItems": 2}
DIM: Schema = {"anyOf": [{"type": "integer", "minimum": 0}, _NAME, {"type": "null"}]}
OPERAND: Schema = {"type": ["string", "number", "boolean", "array", "null"]}
LITERAL: Schema = {"type": ["string", "number", "boolean", "array"]}
NAMES: Schema = {"anyOf": [_NAME, {"type": "array", "items": _NAME, "minItems": 1}]}
SEED: Schema = {"anyOf": [{"type": "integer", "minimum": 0}, {"const": "random"}]}
STEP: Schema = {"anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"const": "auto"}]}
_TOLERANCE: Schema = {"type": "number", "minimum": 0}
PER_TENSOR_NUMBER: Schema = {"anyOf": [_TOLERANCE, {"type": "object", "additionalProperties": _TOLERANCE}]}
PER_TENSOR_RANGE: Schema = {"anyOf": [_PAIR, {"type": "object", "additionalProperties": _PAIR}]}
_SIZES: Schema = {"type": "array", "items": {"type": "integer", "minimum": 0}}
PER_TENSOR_SHAPE: Schema = {"anyOf": [_SIZES, {"type": "object", "additionalProperties": _SIZES}]}


def _schema_of_kind(kind: str, options: dict[str, Any]) -> Schema:
    types: dict[str, Schema] = {"path": _NAME, "key": _NAME, "values": {}}
    properties = {"kind": {"const": kind}, **{name: types.get(name, _NUMBER) for name in options}}
    required = ["kind", *(name for name, default in options.items() if default is REQUIRED)]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


_WORDS = [kind for kind, options in KINDS.items() if REQUIRED not in options.values()]
INIT: Schema = {
    "anyOf": [
        {"enum": _WORDS},
        {"type": ["number", "boolean", "array"]},
        _NAME,
        *(_schema_of_kind(kind, options) for kind, options in KINDS.items()),
    ]
}

VALUES_BY_NAME: Schema = {"anyOf": [INIT, {"type": "object", "additionalProperties": INIT}]}


class Unknown(NamedTuple):
    """Stands for the value of a key that does not exist; says which ones do."""

    known: tuple[str, ...]


class Inside(ValueError):
    """What is wrong with a part of a value; `part` is the key of that part."""

    def __init__(self, message: str, part: str, *, by_key: bool = False) -> None:
        super().__init__(message)
        self.part, self.by_key = part, by_key


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def check_dim(value: Any) -> Any:
    if value is None or (isinstance(value, str) and value) or (_is_int(value) and value >= 0):
        return value
    raise ValueError(f"is {show(value)}; a size is an integer from 0, a name, or null")


def check_operand(value: Any) -> Any:
    if isinstance(value, dict):
        raise ValueError(f"is {show(value)}; an input is a tensor's name, a number, a list, or null")
    return value


def check_literal(value: Any) -> Any:
    if value is None or isinstance(value, dict):
        raise ValueError(f"is {show(value)}; it must be a number, a text or nested lists of them")
    return value


def check_init(value: Any) -> Any:
    """A word, a number, lists, or a mapping with a kind and that kind's options."""
    if isinstance(value, dict):
        return _check_kind(value)
    return check_literal(value)


def check_values_by_name(value: Any) -> Any:
    """One value, or a mapping of values by name of tensor."""
    if is_one_value(value):
        return check_init(value)
    return {name: _inside(name, check_init, each) for name, each in value.items()}


def is_one_value(value: Any) -> bool:
    """Whether it is a value itself and not values by name."""
    return not isinstance(value, dict) or isinstance(value.get("kind"), str)


def _check_kind(value: dict[str, Any]) -> dict[str, Any]:
    kind = value.get("kind")
    if kind is None:
        raise ValueError(f"lacks the key 'kind'; known are {listed(KINDS)}")
    if not isinstance(kind, str) or kind not in KINDS:
        raise Inside(f"is {show(kind)}; known are {listed(KINDS)}.{did_you_mean(str(kind), KINDS)}", "kind")
    for name in value:
        if name != "kind" and name not in KINDS[kind]:
            options = listed(KINDS[kind]) or "no options"
            message = f"is an unknown key; {kind} takes {options}.{did_you_mean(name, KINDS[kind])}"
            raise Inside(message, name, by_key=True)
    for name, default in KINDS[kind].items():
        _check_option(kind, name, value.get(name, default))
    return value


def _check_option(kind: str, name: str, value: Any) -> None:
    if value is REQUIRED:
        raise ValueError(f"lacks the key {name!r} that {kind} needs")
    if name in ("path", "key"):
        if not (isinstance(value, str) and value) and not (name == "key" and value is None):
            raise Inside(f"is {show(value)}; it must be a text", name)
    elif name == "values" or kind == "constant":
        check_literal(value)
    elif not (is_number(value) and math.isfinite(value)):
        raise Inside(f"is {show(value)}; it must be a number", name)


def check_names(value: Any) -> Any:
    """One name or a list of them, as a list."""
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not names or not all(isinstance(name, str) and name for name in names):
        raise ValueError(f"is {show(value)}; it must be a name or a list of names")
    if twice := [name for i, name in enumerate(names) if name in names[:i]]:
        raise ValueError(f"names {twice[0]!r} twice")
    return names


def check_seed(value: Any) -> Any:
    if value == "random" or (_is_int(value) and value >= 0):
        return value
    raise ValueError(f"is {show(value)}; it must be an integer from 0, or random")


def check_step(value: Any) -> Any:
    if value == "auto" or (is_number(value) and math.isfinite(value) and value > 0):
        return value
    raise ValueError(f"is {show(value)}; it must be a number above 0, or auto")


def check_range(value: Any) -> tuple[float, float]:
    """The two ends, finite and in order."""
    if not (isinstance(value, list) and len(value) == 2 and all(map(is_number, value))):
        raise ValueError(f"is {show(value)}; it must be [low, high]")
    low, high = value
    if not (math.isfinite(low) and math.isfinite(high) and low <= high):
        raise ValueError(f"is {show(value)}; low must not be above high, and both finite")
    return low, high


def check_per_tensor_number(value: Any) -> Any:
    return _per_tensor(value, _check_tolerance)


def check_per_tensor_range(value: Any) -> Any:
    return _per_tensor(value, check_range)


def check_per_tensor_shape(value: Any) -> Any:
    return _per_tensor(value, _check_sizes)


def _per_tensor(value: Any, check: Callable[[Any], Any]) -> Any:
    if not isinstance(value, dict):
        return check(value)
    return {name: _inside(name, check, each) for name, each in value.items()}


def _inside(name: str, check: Callable[[Any], Any], value: Any) -> Any:
    try:
        return check(value)
    except Inside:
        raise
    except ValueError as error:
        raise Inside(str(error), name) from None


def _check_tolerance(value: Any) -> Any:
    if is_number(value) and math.isfinite(value) and value >= 0:
        return value
    raise ValueError(f"is {show(value)}; it must be a number from 0, or one for each tensor by name")


def _check_sizes(value: Any) -> Any:
    if isinstance(value, list) and all(_is_int(size) and size >= 0 for size in value):
        return tuple(value)
    raise ValueError(f"is {show(value)}; it must be a list of sizes")


def date_of(value: Any) -> datetime.date | None:
    """The day written as YYYY-MM-DD."""
    try:
        return None if value is None else datetime.date.fromisoformat(value)
    except (TypeError, ValueError):
        raise ValueError(f"is {show(value)}; it must be a day as YYYY-MM-DD") from None


def branch_of_attribute(value: Any) -> str:
    if not isinstance(value, dict):
        return "<value>"
    if "ref" in value:
        return "<ref>"
    return "<graph>" if not {"nodes", "outputs"}.isdisjoint(value) else "<tensor>"


def branch_of_node(value: Any) -> str:
    return "<text>" if isinstance(value, str) else "<node>"


def branch_of_nodes(value: Any) -> str:
    return "<text>" if isinstance(value, str) else "<list>"


def branch_of_param(value: Any) -> str:
    return "<param>" if isinstance(value, dict) else "<value>"


def show(value: Any) -> str:
    """A value as messages write it, cut to what one reads."""
    text = {"None": "null", "True": "true", "False": "false"}.get(repr(value), repr(value))
    return text if len(text) <= 40 else text[:37] + "..."


def listed(names: Iterable[Any]) -> str:
    return ", ".join(str(name) for name in names)


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
