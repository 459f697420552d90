"""Arguments of the Python API: what they must be, and what to write instead where they are not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from operator import index
from typing import Any, TypeVar, get_args

import numpy as np

from gradcheck_cli.errors import UsageError, did_you_mean
from gradcheck_cli.formats.source import Source
from gradcheck_cli.graph import Array
from gradcheck_cli.model import Model, Tensor
from gradcheck_cli.point import open_dims
from gradcheck_cli.settings import ANY, Method, Mode, Settings

Member = TypeVar("Member", bound=Enum)
_WORDS = {"mode": get_args(Mode), "method": get_args(Method), "dtype": ("float64", "model")}
_LIMITS = {  # whole, from, to
    "points": (True, 1, np.inf),
    "point": (True, 0, np.inf),
    "seed": (True, 0, np.inf),
    "jobs": (True, 1, np.inf),
    "memory_limit": (True, 1, np.inf),
    "delta": (False, np.finfo(float).tiny, np.finfo(float).max),
    "timeout": (False, 0, np.inf),
    "max_inconclusive": (False, 0, 1),
}


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


def tensor(value: Any, argument: str) -> Tensor:
    """One tensor."""
    if isinstance(value, list | tuple):
        raise UsageError(f"{argument} is a list of {len(value)}: one tensor is allowed.")
    return tensors(value, argument)[0]


def model_of(items: Sequence[Any], argument: str) -> Model:
    """The one model that all tensors belong to."""
    tensors = [t for t in items if isinstance(t, Tensor)]
    if not tensors:
        raise UsageError(f"{argument} holds no tensor; use handles of one model: model['name'].")
    model = tensors[0].model
    other = next((t for t in tensors if t.model is not model), None)
    if other is not None:
        raise UsageError(
            f"{argument}: {other.name!r} is a tensor of {other.model.source.uri}, {tensors[0].name!r} one of "
            f"{model.source.uri}; use handles of one loaded model."
        )
    return model


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
    given = {name_of(model, k, f"a key of {argument}"): v for k, v in value.items()}
    derived = next((n for n in given if n not in model.graph.tensors), None)
    if derived is not None:
        raise UsageError(f"{argument}: {derived!r} was made by gradients(); tensors of the model itself can be fed.")
    return {name: _array(model, name, v, argument) for name, v in given.items()}


def _array(model: Model, name: str, value: Any, argument: str) -> Array:
    array = held(model, name, numbers(value, f"{argument}[{name!r}]"), f"{argument}[{name!r}]")
    shape = model.graph.types[name].shape if name in model.graph.types else None
    if name in model.graph.constants:
        shape = model.graph.constants[name].shape
    if shape is not None and array.ndim and not fits(array.shape, shape):
        raise UsageError(f"{argument}[{name!r}] has shape {list(array.shape)}; the tensor has {_shape(shape)}.")
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
        hint = f" {_instead(value)}" if isinstance(value, str) else ""
        raise UsageError(f"{argument} is {described(value)}, not numbers.{hint}")
    return array


def held(model: Model, name: str, array: Array, argument: str) -> Array:
    """Numbers as a tensor can hold them: complex ones only where it is complex, and there always."""
    dtype = model.declared_dtype(name)
    if dtype is None:
        return array
    if dtype.kind != "c" and array.dtype.kind == "c":
        raise UsageError(f"{argument} is {array.dtype.name}; {name!r} is {dtype.name} and takes real numbers only.")
    return array.astype(np.result_type(array.dtype, np.complex64)) if dtype.kind == "c" else array


def fits(shape: Sequence[int], declared: Sequence[Any]) -> bool:
    """A shape agrees with a declared one, whose open dimensions take any size."""
    pairs = zip(shape, declared, strict=False)
    return len(shape) == len(declared) and all(not isinstance(d, int) or d == s for s, d in pairs)


def require_shape(tensor: Tensor, shape: Any, argument: str) -> tuple[int, ...]:
    """A shape given by the user, as a tuple that agrees with the tensor's."""
    try:
        given = tuple(index(d) for d in np.atleast_1d(np.asarray(shape, dtype=object)).tolist())
    except (TypeError, ValueError) as error:
        raise UsageError(f"{argument}={shape!r} is no shape: a tuple of ints is.") from error
    if any(d < 0 for d in given) or not fits(given, tensor.shape):
        raise UsageError(f"{argument}={list(given)} contradicts {tensor.name!r}, which has {_shape(tensor.shape)}.")
    return given


def require_inexact(model: Model, tensor: Tensor, argument: str) -> None:
    """A derivative exists only of and by floating-point or complex tensors."""
    dtype = model.dtype(tensor.name)
    if not is_inexact(dtype):
        raise UsageError(
            f"{argument} {tensor.name!r} is {dtype.name}: only floating-point or complex tensors have gradients."
        )


def is_inexact(dtype: np.dtype[Any]) -> bool:
    """Floating-point numbers of any width, or complex ones."""
    return dtype.kind in "fc" or dtype.name.startswith(("float", "bfloat"))


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
    array = held(tensor.model, tensor.name, numbers(value, "x_init_value"), "x_init_value")
    if array.shape != shape:
        raise UsageError(f"x_init_value of {tensor.name!r} has shape {list(array.shape)}; x_shape is {list(shape)}.")
    return array


def targets(value: Any, argument: str) -> tuple[str, ...]:
    """Names of initializations: one, a list of them, or None."""
    items = [value] if isinstance(value, str) else [] if value is None else value
    if not isinstance(items, list | tuple) or not all(isinstance(item, str) for item in items):
        raise UsageError(f"{argument}={value!r} must be the name of an initialization, or a list of names.")
    return tuple(items)


def require_free(model: Model, xs: Sequence[Tensor], values: Sequence[Any], fixed: Mapping[str, Array]) -> None:
    """x is a tensor of the model itself, and has one value at most."""
    for x, value in zip(xs, values, strict=True):
        if x.name not in model.graph.tensors:
            raise UsageError(f"x {x.name!r} was made by gradients(); x must be a tensor of the model itself.")
        if value is not None and x.name in fixed:
            raise UsageError(f"{x.name!r} is given by x_init_value and by extra_feed_dict: one of them is allowed.")


def step(delta: Any) -> float:
    """A perturbation: positive and finite."""
    if isinstance(delta, bool) or not isinstance(delta, int | float | np.number) or not (0 < float(delta) < np.inf):
        raise UsageError(f"delta={delta!r} must be a positive, finite number.")
    return float(delta)


def sizes(value: Any, argument: str) -> dict[str, int]:
    """Sizes of open dimensions by name."""
    if value is not None and not isinstance(value, Mapping):
        raise UsageError(f"{argument} is {described(value)}; it must be a dict: {{name: size}}.")
    given = (value or {}).items()
    return {name: int(_number(size, f"{argument}[{name!r}]", 0, np.inf, whole=True)) for name, size in given}


def require_open(source: Source, dims: Mapping[str, int]) -> None:
    """Every name is that of an open dimension."""
    known = {*open_dims(source.graph), *source.dims}
    for name in dims:
        if name not in known:
            raise UsageError(
                f"{source.uri} has no open dimension {name!r}; it has {', '.join(sorted(known)) or 'none'}."
            )


def settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of `Settings` that a call gave, each of a kind and size that it can have; None is not given."""
    unknown = [name for name in given if name not in Settings.__dataclass_fields__]
    if unknown:
        hint = did_you_mean(unknown[0], Settings.__dataclass_fields__)
        raise UsageError(f"check() has no argument {unknown[0]!r}.{hint}")
    return {name: _setting(name, value) for name, value in given.items() if value is not None}


def _setting(name: str, value: Any) -> Any:
    if name in _WORDS:
        return one_of(value, name, _WORDS[name])
    if name == "init_targets":
        return targets(value, name)
    if name == "dims":
        return sizes(value, name)
    if name in ("x_shape", "y_shape", "val_range") and not isinstance(value, Mapping):
        raise UsageError(f"{name} is {described(value)}; it must be a dict by tensor name.")
    if name in ("rtol", "atol"):
        by_name = value if isinstance(value, Mapping) else {ANY: value}
        return {key: float(_number(each, name, 0, np.inf)) for key, each in by_name.items()}
    if name in _LIMITS:
        whole, low, high = _LIMITS[name]
        return _number(value, name, low, high, whole=whole)
    return value


def _number(value: Any, argument: str, low: float, high: float, *, whole: bool = False) -> Any:
    kinds = (int, np.integer) if whole else (int, float, np.number)
    if isinstance(value, bool) or not isinstance(value, kinds) or not low <= value <= high:
        kind = "a whole number" if whole else "a number"
        limit = f"from {low:g} on" if high == np.inf else f"from {low:g} to {high:g}"
        raise UsageError(f"{argument}={value!r} must be {kind} {limit}.")
    return value


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
        f"{value!r} ({type(value).__name__})" if isinstance(value, int | float | str) else f"a {type(value).__name__}"
    )


def _instead(value: Any) -> str:
    if isinstance(value, np.ndarray | int | float | list):
        return "An array is only a value: take a tensor of a model, model['name'], and feed the array to run()."
    if value is None:
        return "gradients() returns None for an x that y does not depend on."
    if isinstance(value, str):
        return f"Write model[{value!r}]."
    return "Take one from a model: model['name']."


def _shape(shape: Sequence[Any]) -> str:
    return "[" + ",".join("?" if d is None else str(d) for d in shape) + "]"
