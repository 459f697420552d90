"""Open dimensions of a model's inputs: what they are called, and what sizes follow from what was given."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np

from gradcheck_cli.errors import UsageError, shown
from gradcheck_cli.graph import Dim, Graph, TensorType
from gradcheck_cli.settings import Settings

BATCH = 2  # entries of what looks like a batch
_NAMELESS = ("", "?")  # as some exporters write it
_BATCHES = ("bs", "bsz", "bn")
_NO_BATCHES = ("seq", "len", "time", "past", "total", "frame", "step", "token", "node", "edge", "point", "patch", "height",
               "width")  # fmt: skip


def symbol(name: str, axis: int, dim: Dim) -> str:
    """The name under which an open dimension is given a size; one without a name is called by tensor and axis."""
    return f"{name}:{axis}" if dim is None or dim in _NAMELESS else str(dim)


def open_dims(graph: Graph) -> dict[str, bool]:
    """Open dimensions of the inputs that need values -> whether each one looks like a batch."""
    found: dict[str, bool] = {}
    for name in graph.free_inputs:
        shape = declared_shape(graph, name) or ()
        for axis, dim in enumerate(shape):
            if not isinstance(dim, int):
                key = symbol(name, axis, dim)
                found[key] = found.get(key, False) or _batch_like(key if key == dim else "", axis, len(shape))
    return found


def declared_shape(graph: Graph, name: str) -> tuple[Dim, ...] | None:
    """The shape that the file declares of an input; None where it says nothing."""
    return graph.types.get(name, TensorType()).shape


def concrete(graph: Graph, name: str, settings: Settings, dims: Mapping[str, int]) -> tuple[int, ...]:
    """The shape of an input with sizes put in for open dimensions; where none is declared the given one, or a scalar."""
    shape = declared_shape(graph, name)
    if shape is None:
        return tuple(settings.x_shape.get(name, ()))
    return tuple(d if isinstance(d, int) else dims[symbol(name, axis, d)] for axis, d in enumerate(shape))


def sizes_given(graph: Graph, settings: Settings) -> dict[str, int]:
    """Sizes of open dimensions that follow from shapes and values that were given."""
    return sizes_in(graph, {**settings.x_shape, **_shapes_of_values(settings)})


def _shapes_of_values(settings: Settings) -> dict[str, tuple[int, ...]]:
    """Shapes of values that were given; a number alone has none, since it fills whatever it is given to."""
    values = [*settings.extra_feed_dict.items(), *settings.x_init_value.items()]
    return {name: value.shape for name, value in values if isinstance(value, np.ndarray) and value.ndim}


def sizes_in(graph: Graph, shapes: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """Sizes of open dimensions in shapes of inputs."""
    sizes: dict[str, int] = {}
    for name, shape in shapes.items():
        declared = declared_shape(graph, name)
        if name in graph.inputs and declared is not None and len(declared) == len(shape):
            for axis, (dim, size) in enumerate(zip(declared, shape, strict=True)):
                if not isinstance(dim, int):
                    sizes[symbol(name, axis, dim)] = int(size)
    return sizes


def check_sizes(graph: Graph, settings: Settings) -> None:
    """UsageError for shapes and dims that contradict the model."""
    free = open_dims(graph)
    for name in settings.dims:
        if name not in free and free:
            raise UsageError(f"--dim {shown(name)}: the model's open dimensions are {', '.join(map(shown, free))}.")
        if name not in free:
            raise UsageError(f"--dim {shown(name)}: the model has no open dimension.")
    for name, shape in settings.x_shape.items():
        declared = declared_shape(graph, name)
        if declared is not None and name in graph.inputs:
            _check_shape(name, shape, declared)
    values = _shapes_of_values(settings)
    for name, shape in settings.x_shape.items():
        if values.get(name, tuple(shape)) != tuple(shape):
            raise UsageError(f"{_option(name, shape)} contradicts the value given for {name!r}, which has shape "
                             f"[{_spelled(values[name])}].")  # fmt: skip
    for name, shape in {**settings.x_shape, **values}.items():
        for dim, size in sizes_in(graph, {name: shape}).items():
            if settings.dims.get(dim, size) != size:
                raise UsageError(f"--dim {dim}={settings.dims[dim]} contradicts the shape of {name!r}, in which it is "
                                 f"{size}.")  # fmt: skip


def check_traced(shapes: Mapping[str, Sequence[int]], settings: Settings) -> None:
    """UsageError for a shape that was given to a tensor that turned out to have another one."""
    for name, shape in settings.x_shape.items():
        if tuple(shapes.get(name, shape)) != tuple(shape):
            given, actual = _option(name, shape), _spelled(shapes[name])
            raise UsageError(f"{given} contradicts the model: {name!r} has shape [{actual}].")


def _check_shape(name: str, shape: Sequence[int], declared: Sequence[Dim]) -> None:
    if len(shape) != len(declared):
        raise UsageError(f"{_option(name, shape)} contradicts the model: {name!r} has {len(declared)} dimensions.")
    for axis, (size, fixed) in enumerate(zip(shape, declared, strict=True)):
        if isinstance(fixed, int) and fixed != size:
            raise UsageError(f"{_option(name, shape)} contradicts the model: dimension {axis} is fixed to {fixed}.")


def _option(name: str, shape: Sequence[int]) -> str:
    return f"--x-shape {shown(name)}:{_spelled(shape)}"


def _spelled(shape: Sequence[int]) -> str:
    return ",".join(map(str, shape))


def _batch_like(name: str, axis: int, rank: int) -> bool:
    """A dimension is called a batch, or stands first and is called nothing else; "" for one without a name."""
    words = re.findall("[a-z]+", name.lower())
    letter = name.lower() in ("n", "b") and (axis == 0 or (axis, rank) == (1, 3))  # of images, of recurrent states
    if letter or any("batch" in w or w in _BATCHES for w in words):
        return True
    return axis == 0 and rank >= 2 and not any(w.startswith(_NO_BATCHES) or w in ("t", "l", "s") for w in words)
