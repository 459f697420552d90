"""Validation of the Python API's arguments that are plain values: words, flags, numbers, sizes, names."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from operator import index
from pathlib import Path
from typing import Any, TypeVar, get_args

import numpy as np

from gradcheck_cli.errors import UsageError, did_you_mean
from gradcheck_cli.graph.containers import require_unmasked
from gradcheck_cli.op import Op, Ops
from gradcheck_cli.results.codes import codes_from
from gradcheck_cli.settings import ANY, SETTINGS, Numbers, Option, Pictures

Member = TypeVar("Member", bound=Enum)


def one_of(value: Any, argument: str, allowed: Sequence[str]) -> Any:
    """The word, if it is one of `allowed`."""
    if not isinstance(value, str) or value not in allowed:
        raise UsageError(f"{argument}={value!r} is not one of {', '.join(map(repr, allowed))}.")
    return value


def member(value: Any, kind: type[Member], argument: str) -> Member:
    """A member of an enumeration, given as itself or by value."""
    if isinstance(value, kind):
        return value
    plain = isinstance(value, int | str) and not isinstance(value, bool)
    found = next((m for m in kind if plain and m.value == value), None)
    if found is None:
        allowed = ", ".join(f"{kind.__name__}.{m.name}" for m in kind)
        raise UsageError(f"{argument}={value!r} is not one of {allowed}.")
    return found


def flag(value: Any, argument: str) -> bool:
    """The value, if it is True or False."""
    if not isinstance(value, bool | np.bool_):
        raise UsageError(f"{argument}={value!r} must be True or False.")
    return bool(value)


def operators(value: Any) -> Ops:
    """A table of operators by (domain, name); a dict, whose entries the caller has put together, is looked through."""
    if not isinstance(value, Mapping):
        raise UsageError(f"ops is {described(value)}; it must be a dict: {{(domain, name): operator}}.")
    for key, op in value.items() if isinstance(value, dict) else ():
        if not (isinstance(key, tuple) and len(key) == 2 and all(isinstance(part, str) for part in key)):
            raise UsageError(f"a key of ops is {key!r}; it must be (domain, name), as in ('', 'Tanh').")
        if not isinstance(op, Op):
            raise UsageError(f"ops[{key!r}] is {described(op)}, not an operator; give a gc.Op.")
    return value


def step(delta: Any) -> float:
    """A perturbation, if it is positive and finite."""
    if isinstance(delta, bool) or not isinstance(delta, int | float | np.number) or not (0 < float(delta) < np.inf):
        raise UsageError(f"delta={delta!r} must be a positive, finite number.")
    return float(delta)


def _claimed(value: Any, place: str) -> str | Numbers:
    """A claimed gradient: the name of a tensor, or numbers."""
    if isinstance(value, str | Numbers):
        return value
    if isinstance(getattr(value, "name", None), str):
        return str(value.name)
    require_unmasked(value, place)
    try:
        array = np.asarray(value)
    except ValueError:
        array = np.asarray(None)
    if (numbers := Numbers.real(array)) is None:
        raise UsageError(f"{place} is {described(value)}; it must be a tensor's name or an array of real numbers.")
    return numbers


def path(value: Any, argument: str) -> str | os.PathLike[str]:
    """A path of a file."""
    if not isinstance(value, str | os.PathLike) or not isinstance(os.fspath(value), str):
        raise UsageError(f"{argument} is {described(value)}; it must be a path: a string or a pathlib.Path.")
    return value


def targets(
    value: Any, argument: str, wanted: str = "the name of an initialization, or a list of names"
) -> tuple[str, ...]:
    """Names: one, a list of them, or None for none."""
    items = [value] if isinstance(value, str) else [] if value is None else value
    if not isinstance(items, list | tuple) or not all(isinstance(item, str) for item in items):
        raise UsageError(f"{argument}={value!r} must be {wanted}.")
    return tuple(items)


def codes(value: Any, argument: str) -> tuple[str, ...]:
    """Prefixes of codes, from one text or a list; none for None."""
    words = value.split(",") if isinstance(value, str) else () if value is None else value
    if not isinstance(words, list | tuple) or not all(isinstance(word, str) for word in words):
        raise UsageError(f"{argument}={value!r} must be codes, such as 'GC101,GC3'.")
    try:
        return () if value is None else codes_from(words)
    except UsageError as error:
        raise UsageError(f"{argument}={value!r}: {error}") from None


def sizes(value: Any, argument: str) -> dict[str, int]:
    """Sizes of open dimensions by name."""
    given = {} if value is None else value
    return by_name(given, argument, "{name: size}", lambda size, place: int(number(size, place, 0, whole=True)))


def shape(value: Any, argument: str) -> tuple[int, ...]:
    """A shape: a tuple, a list or an array of ints, or one int; none of them negative."""
    try:
        given = tuple(index(d) for d in np.atleast_1d(np.asarray(value, dtype=object)).tolist())
    except (TypeError, ValueError) as error:
        raise UsageError(f"{argument}={value!r} is no shape; give a tuple of ints.") from error
    if any(d < 0 for d in given):
        raise UsageError(f"{argument}={list(given)} is no shape: a dimension is negative.")
    return given


def settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of `Settings` that a call gave, each checked for kind and size; None counts as not given."""
    unknown = [name for name in given if name not in SETTINGS]
    if unknown:
        meant = next((field for field, option in SETTINGS.items() if unknown[0] in option.keys), unknown[0])
        near = did_you_mean(meant, SETTINGS)
        raise UsageError(f"check() has no argument {unknown[0]!r}.{near}")
    return {name: _setting(SETTINGS[name], value) for name, value in given.items() if value is not None}


def _setting(option: Option, value: Any) -> Any:
    name = option.field
    match option.kind:
        case "word":
            return one_of(value, name, option.words)
        case "flag":
            return flag(value, name)
        case "pictures":
            return value if value in get_args(Pictures) else "all" if flag(value, name) else "none"
        case "names":
            return targets(value, name)
        case "globs":
            return targets(value, name, "a name or a glob of tensors, or a list of them")
        case "claims":
            return by_name({ANY: value} if isinstance(value, str) else value, name, "{x: tensor or numbers}", _claimed)
        case "path":
            return os.fspath(path(value, name))
        case "data":
            words = {"auto": "auto", "none": None}
            return words[value] if isinstance(value, str) and value in words else Path(path(value, name))
        case "sizes":
            return sizes(value, name)
        case "shapes":
            return by_name(value, name, "{name: shape}", shape)
        case "ranges":
            return by_name(value, name, "{name: (low, high)}", _range)
        case "tolerances":
            tolerances = value if isinstance(value, Mapping) else {ANY: value}
            return by_name(tolerances, name, "{name: tolerance}", lambda each, _: float(number(each, name, 0)))
    least = {"seconds": 0.0, "bytes": 1.0}.get(option.kind, option.least)
    limits = (np.finfo(float).tiny, np.finfo(float).max) if option.above else (least, option.most)
    return number(value, name, *limits, whole=option.kind in ("whole", "bytes"))


def by_name(value: Any, argument: str, wanted: str, one: Callable[[Any, str], Any]) -> dict[str, Any]:
    """A dict by tensor name, with `one(value, place)` of each value."""
    if not isinstance(value, Mapping):
        raise UsageError(f"{argument} is {described(value)}; it must be a dict: {wanted}.")
    for name in value:
        if not isinstance(name, str):
            raise UsageError(f"a key of {argument} is {described(name)}; it must be a name.")
    return {name: one(each, f"{argument}[{name!r}]") for name, each in value.items()}


def number(value: Any, argument: str, low: float, high: float = np.inf, *, whole: bool = False) -> Any:
    """A number within limits."""
    kinds = (int, np.integer) if whole else (int, float, np.number)
    real = isinstance(value, kinds) and not isinstance(value, bool | complex | np.complexfloating)
    if not real or not low <= value <= high:
        kind = "a whole number" if whole else "a number"
        limit = f"from {low:g} on" if high == np.inf else f"from {low:g} to {high:g}"
        raise UsageError(f"{argument}={value!r} must be {kind} {limit}.")
    return value


def _range(value: Any, argument: str) -> tuple[float, float]:
    if not isinstance(value, list | tuple | np.ndarray) or len(value) != 2:
        raise UsageError(f"{argument}={value!r} is no range; give a pair (low, high).")
    low, high = (float(number(each, argument, -np.inf)) for each in value)
    if not low <= high:
        raise UsageError(f"{argument}={value!r} is no range: {low:g} is above {high:g}.")
    return low, high


def described(value: Any) -> str:
    """A value in a word or two, for messages."""
    if value is None:
        return "None"
    if isinstance(value, np.ndarray):
        return f"an array of shape {list(value.shape)}"
    plain = isinstance(value, int | float | str)
    return f"{value!r} ({type(value).__name__})" if plain else f"a {type(value).__name__}"
