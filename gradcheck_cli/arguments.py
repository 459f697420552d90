"""Arguments of the Python API: what they must be, and what to write instead where they are not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, TypeVar

import numpy as np

from gradcheck_cli.errors import UsageError
from gradcheck_cli.graph import Array
from gradcheck_cli.model import Model, Tensor

Member = TypeVar("Member", bound=Enum)


def tensors(value: Any, argument: str, *, empty: bool = False) -> list[Tensor]:
    """A tensor or a list of tensors as a list."""
    items = list(value) if isinstance(value, list | tuple) else [value]
    if not items and not empty:
        raise UsageError(f"{argument} is an empty list.")
    for i, item in enumerate(items):
        if not isinstance(item, Tensor):
            label = f"{argument}[{i}]" if isinstance(value, list | tuple) else argument
            raise UsageError(f"{label} is {described(item)}, not a tensor. {_instead(item)}")
    return items


def model_of(items: Sequence[Any], argument: str) -> Model:
    """The one model that all tensors belong to."""
    models = {id(t.model): t.model for t in items if isinstance(t, Tensor)}
    if len(models) != 1:
        what = "holds no tensor" if not models else "are tensors of different models"
        raise UsageError(f"{argument} {what}; use handles of one model: model['name'].")
    return next(iter(models.values()))


def name_of(model: Model, value: Any, argument: str) -> str:
    """The name of a tensor given as a handle or by name."""
    if isinstance(value, str):
        return model[value].name
    if not isinstance(value, Tensor):
        raise UsageError(f"{argument} is {described(value)}, not a tensor. {_instead(value)}")
    if value.model is not model:
        raise UsageError(f"{argument} is {value.name!r} of another model.")
    return value.name


def names(model: Model, value: Any, argument: str) -> tuple[str, ...] | None:
    """Names of one or several tensors; None stays."""
    if value is None:
        return None
    items = [value] if isinstance(value, str | Tensor) else list(value)
    if not items:
        raise UsageError(f"{argument} is an empty list.")
    return tuple(name_of(model, item, f"{argument}[{i}]") for i, item in enumerate(items))


def feeds(model: Model, value: Mapping[Any, Any] | None, argument: str) -> dict[str, Array]:
    """Values by name, each of a shape that its tensor can have."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise UsageError(f"{argument} is {described(value)}; it must be a dict: {{tensor or name: value}}.")
    return {
        name_of(model, k, f"a key of {argument}"): _array(model, k, v, argument) for k, v in value.items()
    }


def _array(model: Model, key: Any, value: Any, argument: str) -> Array:
    name = name_of(model, key, argument)
    array = numbers(value, f"{argument}[{name!r}]")
    shape = model.graph.types[name].shape if name in model.graph.types else None
    if shape is not None and array.ndim and not fits(array.shape, shape):
        raise UsageError(
            f"{argument}[{name!r}] has shape {list(array.shape)}; the tensor has {_shape(shape)}."
        )
    return array


def numbers(value: Any, argument: str) -> Array:
    """An array of numbers."""
    if isinstance(value, Tensor):
        raise UsageError(f"{argument} is a tensor; give its value: run([tensor])[0].")
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise UsageError(f"{argument} is no array: {error}.") from error
    if array.dtype.kind not in "fciubV":
        raise UsageError(f"{argument} is {described(value)}, not numbers.")
    return array


def fits(shape: Sequence[int], declared: Sequence[Any]) -> bool:
    """A shape agrees with a declared one, whose open dimensions take any size."""
    pairs = zip(shape, declared, strict=False)
    return len(shape) == len(declared) and all(not isinstance(d, int) or d == s for s, d in pairs)


def require_shape(tensor: Tensor, shape: Any, argument: str) -> tuple[int, ...]:
    """A shape given by the user, as a tuple that agrees with the tensor's."""
    try:
        given = tuple(int(d) for d in np.atleast_1d(np.asarray(shape, dtype=object)).tolist())
    except (TypeError, ValueError) as error:
        raise UsageError(f"{argument}={shape!r} is no shape: a tuple of ints is.") from error
    if any(d < 0 for d in given) or not fits(given, tensor.shape):
        raise UsageError(
            f"{argument}={list(given)} contradicts {tensor.name!r}, which has {_shape(tensor.shape)}."
        )
    return given


def require_inexact(model: Model, tensor: Tensor, argument: str) -> None:
    """A derivative exists only of and by floating-point or complex tensors."""
    dtype = model.dtype(tensor.name)
    if dtype.kind not in "fcV":
        raise UsageError(
            f"{argument} {tensor.name!r} is {dtype.name}: only floating-point or complex tensors have gradients."
        )


def per_x(value: Any, xs: Sequence[Tensor], argument: str, many: bool) -> list[Any]:
    """One value for each x."""
    if not many:
        return [value]
    if not isinstance(value, list | tuple) or len(value) != len(xs):
        length = len(value) if isinstance(value, list | tuple) else "one value"
        raise UsageError(f"{argument} must be a list as long as x: {len(xs)}, not {length}.")
    return list(value)


def initial(tensor: Tensor, shape: tuple[int, ...], value: Any, seed: int) -> Array:
    """The value of x: as given, of shape `shape`, or drawn from a normal distribution."""
    if value is None:
        rng = np.random.default_rng(seed)
        drawn = rng.standard_normal(shape)
        return drawn + 1j * rng.standard_normal(shape) if tensor.dtype.kind == "c" else drawn
    array = numbers(value, "x_init_value")
    if array.shape != shape:
        raise UsageError(
            f"x_init_value of {tensor.name!r} has shape {list(array.shape)}; x_shape is {list(shape)}."
        )
    return array


def step(delta: Any) -> float:
    """A perturbation: positive and finite."""
    if (
        isinstance(delta, bool)
        or not isinstance(delta, int | float | np.number)
        or not (0 < float(delta) < np.inf)
    ):
        raise UsageError(f"delta={delta!r} must be a positive, finite number.")
    return float(delta)


def member(value: Any, kind: type[Member], argument: str) -> Member:
    """A member of an enumeration, given itself or by value."""
    if isinstance(value, kind):
        return value
    found = next((m for m in kind if m.value == value and not isinstance(value, bool)), None)
    if found is None:
        allowed = ", ".join(f"{kind.__name__}.{m.name}" for m in kind)
        raise UsageError(f"{argument}={value!r} is not one of {allowed}.")
    return found


def one_of(value: Any, argument: str, allowed: Sequence[str]) -> Any:
    """One of a few words."""
    if value not in allowed:
        raise UsageError(f"{argument}={value!r} is not one of {', '.join(map(repr, allowed))}.")
    return value


def described(value: Any) -> str:
    """What a value is, in a word or two."""
    if value is None:
        return "None"
    if isinstance(value, np.ndarray):
        return f"an array of shape {list(value.shape)}"
    return (
        f"{value!r} ({type(value).__name__})"
        if isinstance(value, int | float | str)
        else f"a {type(value).__name__}"
    )


def _instead(value: Any) -> str:
    if isinstance(value, np.ndarray | int | float | list):
        return "An array is only a value: take a tensor of a model, model['name'], and feed the array when you run it."
    if value is None:
        return "gradients() returns None for an x that y does not depend on."
    if isinstance(value, str):
        return f"Write model[{value!r}]."
    return "Take one from a model: model['name']."


def _shape(shape: Sequence[Any]) -> str:
    return "[" + ",".join("?" if d is None else str(d) for d in shape) + "]"
