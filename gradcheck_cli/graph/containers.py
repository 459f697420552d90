"""Values that are not tensors: sequences, optionals and maps, as plain frozen records.

The same records hold `Var`s on a tape, where they live as long as the trace, and arrays in feeds and results.
Operators on them dissolve into operators on the tensors inside, so that nothing else has to know of them.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
from msgspec import Struct

from gradcheck_cli.errors import UsageError
from gradcheck_cli.graph import TensorType

Put: TypeAlias = Callable[[str, Any], Any]


class Sequence(Struct, frozen=True):
    """Values of one type in order: tensors or maps."""

    items: tuple[Any, ...] = ()


class Optional(Struct, frozen=True):
    """A tensor or a sequence, or None for an empty optional."""

    content: Any = None


class Map(Struct, frozen=True):
    """Keys, strings or integers, and their values in one vector."""

    keys: tuple[str, ...] | tuple[int, ...]
    values: Any


Container: TypeAlias = Sequence | Optional | Map
CONTAINERS = (Sequence, Optional, Map)


def placed(name: str, value: Any, put: Put) -> Any:
    """The value with each tensor inside replaced by `put(name, tensor)`.

    Entry i of a sequence `s` is called `s[i]`, the content of an optional `o` `o[0]`, and so are all values of a map.
    """
    match value:
        case Sequence(items):
            return Sequence(tuple(placed(f"{name}[{i}]", item, put) for i, item in enumerate(items)))
        case Optional(content):
            return value if content is None else Optional(placed(f"{name}[0]", content, put))
        case Map(keys, values):
            return Map(keys, put(f"{name}[0]", values))
        case _:
            return put(name, value)


def mapped(function: Callable[[Any], Any], value: Any) -> Any:
    """The value with a function applied to each tensor inside."""
    return placed("", value, lambda _, tensor: function(tensor))


def elements(name: str, value: Any) -> dict[str, Any]:
    """Every tensor inside, by name."""
    found: dict[str, Any] = {}
    placed(name, value, found.setdefault)
    return found


def plain(value: Any) -> Any:
    """The value as Python has it: a list for a sequence, a dict for a map, None for an empty optional, else its content."""
    match value:
        case Sequence(items):
            return [plain(item) for item in items]
        case Optional(content):
            return plain(content)
        case Map(keys, values):
            return dict(zip(keys, np.asarray(values).tolist(), strict=True))
        case _:
            return value


def typed(value: Any, declared: TensorType | None, where: str) -> Any:
    """A user's value for a tensor of the declared type: a record for lists, dicts and None, else an array."""
    require_unmasked(value, where)
    if isinstance(value, CONTAINERS):
        return value
    if declared is None or declared.kind == "tensor":
        return texts(value, where) if declared is not None and declared.dtype == object else np.asarray(value)
    if declared.kind == "optional":
        return Optional(None if value is None else typed(value, declared.inner, where))
    if declared.kind == "sequence" and isinstance(value, list | tuple):
        return Sequence(tuple(typed(item, declared.inner, f"{where}[{i}]") for i, item in enumerate(value)))
    if declared.kind == "map" and isinstance(value, Mapping):
        values = list(value.values())
        return Map(
            tuple(value), texts(values, where) if declared.dtype == object else np.asarray(values, declared.dtype)
        )
    wanted = {"sequence": "a list", "map": "a dict"}.get(declared.kind, "a value")
    raise UsageError(f"{where}: a {declared} must be given as {wanted}.")


def require_unmasked(value: Any, where: str) -> None:
    """Requires that no entry of an array is masked: NumPy hands on the numbers behind a mask without it."""
    masked = int(np.sum(getattr(value, "mask", False))) if isinstance(value, np.ndarray) else 0
    if masked:
        raise UsageError(f"{where} has {masked} of {value.size} entries masked; say what stands there: .filled(0).")


def texts(value: Any, where: str) -> Any:
    """An array of strings; anything else in it is refused, since operators on strings would add or compare it too."""
    array = np.asarray(value, object)
    for each in array.flat:
        if not isinstance(each, str | bytes):
            raise UsageError(f'{where} holds {reprlib.repr(each)}, which is no text; give strings, as in ["a", "b"].')
    return array


def element(value: Any, index: int) -> Any:
    """The value that `value[index]` names; IndexError if there is none."""
    match value:
        case Sequence(items) if index < len(items):
            return items[index]
        case Optional(held) | Map(_, held) if index == 0 and held is not None:
            return held
        case _:
            raise IndexError(f"there is no element {index} in {described(value)}")


def described(value: Any) -> str:
    """A value in a few words, for messages."""
    match value:
        case None:
            return "nothing"
        case Sequence(items):
            return f"a sequence of {len(items)}"
        case Optional(content):
            return "an empty optional" if content is None else f"an optional of {described(content)}"
        case Map(keys):
            return f"a map of {len(keys)}"
        case _:
            return f"{list(value.shape)} {value.dtype}"


def inside(value: Any) -> Iterator[Any]:
    """The tensors inside, one by one."""
    return iter(elements("", value).values())
