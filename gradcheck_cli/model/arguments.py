"""Validation of the Python API's arguments that refer to a model: tensors, values for them, shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gradcheck_cli.autodiff.tape import Tape
from gradcheck_cli.errors import UsageError
from gradcheck_cli.formats.source import Source
from gradcheck_cli.graph import Array, Dim, is_inexact
from gradcheck_cli.graph.containers import require_unmasked, typed
from gradcheck_cli.model import Model, Tensor
from gradcheck_cli.model.call_options import described, shape
from gradcheck_cli.points.dims import open_dims
from gradcheck_cli.points.targets import expanded, is_glob

_ONLY_INEXACT = "only floating-point or complex tensors have gradients."


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
    """The argument, if it is one tensor."""
    if isinstance(value, list | tuple):
        raise UsageError(f"{argument} is a list of {len(value)}; give one tensor.")
    return tensors(value, argument)[0]


def model_of(items: Sequence[Any], argument: str) -> Model:
    """The one model that all tensors belong to."""
    tensors = [t for t in items if isinstance(t, Tensor)]
    if not tensors:
        raise UsageError(f"{argument} holds no tensor; use handles of one model: model['name'].")
    model = tensors[0].model
    other = next((t for t in tensors if t.model is not model), None)
    if other is not None:
        both = f"{other.name!r} is a tensor of {other.model.source.uri}, {tensors[0].name!r} one of {model.source.uri}"
        raise UsageError(f"{argument}: {both}; use handles of one loaded model.")
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


def names(model: Model, value: Any, argument: str, *, globs: bool = False) -> tuple[str, ...] | None:
    """Names of one or several tensors, with `globs` also by globs of * and ?; None stays None."""
    if value is None:
        return None
    if not isinstance(value, str | Tensor | list | tuple):
        raise UsageError(f"{argument} is {described(value)}; it must be a tensor, a name, or a list of them.")
    items = [value] if isinstance(value, str | Tensor) else list(value)
    if not items:
        raise UsageError(f"{argument} is an empty list.")
    if globs:
        items = [name for item in items for name in _fitting(model, item, argument)]
    return tuple(name_of(model, item, f"{argument}[{i}]") for i, item in enumerate(items))


def names_to_check(model: Model, value: Any, argument: str) -> tuple[str, ...] | None:
    """Names of tensors of the model itself, also by globs; None stays None."""
    found = names(model, value, argument, globs=True)
    derived = next((n for n in found or () if n not in model.graph.tensors), None)
    if derived is not None:
        instead = "save() it and check that file, or take second_order=True"
        raise UsageError(f"{argument}: {derived!r} was made by gradients(); {instead}.")
    return found


def _fitting(model: Model, item: Any, argument: str) -> Sequence[Any]:
    """The float tensors that a glob stands for, if it is no tensor's name; anything else as it is."""
    fits_several = isinstance(item, str) and item not in model and is_glob(item)
    return expanded(model.graph, [item], argument) if fits_several else [item]


def feeds(model: Model, value: Mapping[Any, Any] | None, argument: str) -> dict[str, Any]:
    """Values by name: arrays, each of a shape that its tensor can have; records for sequences, optionals and maps."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise UsageError(f"{argument} is {described(value)}; it must be a dict: {{tensor or name: value}}.")
    given: dict[str, Any] = {}
    for key, each in value.items():
        name = name_of(model, key, f"a key of {argument}")
        if name in given:  # by a handle and by name, or by two handles
            raise UsageError(f"{argument} has two values for {name!r}; leave out one of them.")
        given[name] = each
    derived = next((n for n in given if n not in model.graph.tensors), None)
    if derived is not None:
        raise UsageError(f"{argument}: {derived!r} was made by gradients(); tensors of the model itself can be fed.")
    return {name: _fed(model, name, v, argument) for name, v in given.items()}


def _fed(model: Model, name: str, value: Any, argument: str) -> Any:
    declared, argument = model.declared(name), f"{argument}[{name!r}]"
    if declared.kind != "tensor" or declared.dtype == object:
        return typed(value, declared, argument)
    array = held(model, name, numbers(value, argument), argument)
    if declared.shape is not None and array.ndim and not fits(array.shape, declared.shape):
        raise UsageError(f"{argument} has shape {list(array.shape)}; the tensor has {_shape(declared.shape)}.")
    return array


def numbers(value: Any, argument: str) -> Array:
    """An array of numbers."""
    if isinstance(value, Tensor):
        raise UsageError(f"{argument} is a tensor; give its value: run([tensor])[0].")
    require_unmasked(value, argument)
    try:
        array = np.asarray(value)
    except (ValueError, TypeError, RuntimeError) as error:  # a PyTorch tensor that NumPy cannot show raises either
        raise UsageError(f"{argument} is no array: {str(error).rstrip('.')}.") from error
    if array.dtype.kind not in "fciubV":
        hint = f" {_instead(value)}" if isinstance(value, str) else ""
        raise UsageError(f"{argument} is {described(value)}, not numbers.{hint}")
    return array


def held(model: Model, name: str, array: Array, argument: str) -> Array:
    """Numbers in a dtype that the tensor can hold: complex for a complex tensor; complex numbers for a real one are
    refused.
    """
    dtype = model.known_dtype(name)
    if dtype is None:
        return array
    if dtype.kind != "c" and array.dtype.kind == "c":
        raise UsageError(f"{argument} is {array.dtype.name}; {name!r} is {dtype.name} and takes real numbers only.")
    return array.astype(np.result_type(array.dtype, np.complex64)) if dtype.kind == "c" else array


def fits(shape: Sequence[Any], declared: Sequence[Any]) -> bool:
    """True if two shapes agree; open dimensions take any size."""
    known = ((s, d) for s, d in zip(shape, declared, strict=False) if isinstance(s, int) and isinstance(d, int))
    return len(shape) == len(declared) and all(s == d for s, d in known)


def contradicted(model: Model, name: str, given: Sequence[Any]) -> tuple[Dim, ...] | None:
    """The known shape of a tensor that a given one contradicts; None too where a run contradicts what a file declares.

    ONNX's inference, of which files keep the result, is wrong for some: windows in ceil_mode, STFT.
    """
    known = model.known_shape(name)
    if known is None or fits(given, known):
        return None
    found = model.sampled_shape(name)
    return known if found is None or fits(found, known) else None


def require_shape(tensor: Tensor, given: Any, argument: str) -> tuple[int, ...]:
    """A shape given by the user, as a tuple that agrees with the tensor's."""
    wanted = shape(given, argument)
    if (known := contradicted(tensor.model, tensor.name, wanted)) is not None:
        raise UsageError(f"{argument}={list(wanted)} contradicts {tensor.name!r}, which has {_shape(known)}.")
    return wanted


def require_run(tape: Tape, name: str, shape: tuple[int, ...], argument: str) -> None:
    """Requires that a tensor could be computed, has the given shape, and can have a derivative."""
    if name in tape.blocked:
        raise tape.blocked[name]
    value = tape.named[name]
    if value.shape != shape:
        raise UsageError(f"{argument}={list(shape)} contradicts {name!r}: it has {list(value.shape)} here.")
    if not is_inexact(value.dtype):
        raise UsageError(f"{argument[0]} {name!r} is {value.dtype.name}: {_ONLY_INEXACT}")


def require_inexact(model: Model, tensor: Tensor, argument: str) -> None:
    """Requires a floating-point or complex tensor; one of unknown dtype may be one."""
    dtype, kind = model.known_dtype(tensor.name), model.kind(tensor.name)
    if kind != "tensor":
        raise UsageError(f"{argument} {tensor.name!r} is a {kind}: {_ONLY_INEXACT}")
    if dtype is not None and not is_inexact(dtype):
        raise UsageError(f"{argument} {tensor.name!r} is {dtype.name}: {_ONLY_INEXACT}")


def per_x(value: Any, xs: Sequence[Tensor], argument: str, many: bool) -> list[Any]:
    """The values for each x, from a list as long as x or from one value."""
    if not many:
        return [value]
    if not isinstance(value, list | tuple) or len(value) != len(xs):
        length = len(value) if isinstance(value, list | tuple) else "one value"
        raise UsageError(f"{argument} must be a list as long as x: {len(xs)}, not {length}.")
    return list(value)


def initial(tensor: Tensor, shape: tuple[int, ...], value: Any, seed: int) -> Array:
    """The value of x, of shape `shape`: as given, or drawn from a normal distribution."""
    if value is None:
        rng = np.random.default_rng(seed)
        drawn, dtype = rng.standard_normal(shape), tensor.model.known_dtype(tensor.name)
        return drawn + 1j * rng.standard_normal(shape) if dtype is not None and dtype.kind == "c" else drawn
    array = held(tensor.model, tensor.name, numbers(value, "x_init_value"), "x_init_value")
    if array.shape != shape:
        raise UsageError(f"x_init_value of {tensor.name!r} has shape {list(array.shape)}; x_shape is {list(shape)}.")
    return array


def require_free(model: Model, xs: Sequence[Tensor], values: Sequence[Any], fixed: Mapping[str, Array]) -> None:
    """Requires that each x is a tensor of the model itself, and has one value at most."""
    given: dict[str, Any] = {}
    for x, value in zip(xs, values, strict=True):
        if x.name not in model.graph.tensors:
            raise UsageError(f"x {x.name!r} was made by gradients(); x must be a tensor of the model itself.")
        if value is not None and x.name in fixed:
            raise UsageError(f"{x.name!r} is given by x_init_value and by extra_feed_dict; leave out one of them.")
        first = given.setdefault(x.name, value)
        if first is not value and not np.array_equal(first, value):
            raise UsageError(f"x lists {x.name!r} twice, and x_init_value has two values for it; list it once.")


def require_open(source: Source, dims: Mapping[str, int]) -> None:
    """Requires that every name is that of an open dimension."""
    known = {*open_dims(source.graph), *source.dims}
    for name in dims:
        if name not in known:
            listed = ", ".join(sorted(known)) or "none"
            raise UsageError(f"{source.uri} has no open dimension {name!r}; it has {listed}.")


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
