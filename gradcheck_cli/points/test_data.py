"""Test data that ships with a model: inputs, and the outputs that they gave where the model was made.

ONNX's convention is a folder `test_data_set_0` beside the model with `input_0.pb ...` and `output_0.pb ...`.  Both
Jacobians come from one forward run; the shipped outputs are what that run itself is held against.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct, field

from gradcheck_cli.autodiff.tape import Tape
from gradcheck_cli.errors import GradcheckError, UsageError, counted
from gradcheck_cli.formats import SPEC_SUFFIXES
from gradcheck_cli.formats.source import Source
from gradcheck_cli.graph import Array, Graph, TensorType, is_inexact_array
from gradcheck_cli.points.dims import declared_shape, symbol
from gradcheck_cli.settings import ANY, Settings
from gradcheck_cli.verdict.rule import epsilon

BESIDE = "test_data_set_0"
_RELATIVE = 1e-3  # what ONNX's own tests allow, and more where the dtype has fewer digits
_ABSOLUTE = 1e-6  # near 0 the sigmoids and softmaxes of other implementations have no more digits than this
_ROUNDINGS = 32  # of the shipped dtype


class Shipped(Struct, frozen=True):
    """Values by name, arrays and records of them, and the folder that they lie in; `note` says why there are none."""

    folder: str = ""
    inputs: Mapping[str, Any] = field(default_factory=dict)
    outputs: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""

    def at(self, index: int) -> dict[str, Any]:
        """Inputs at a point: all of them make point 0; elsewhere what no random numbers can stand for stays."""
        return {n: v for n, v in self.inputs.items() if index == 0 or not is_inexact_array(v)}

    def notes(self, used: Mapping[str, Any]) -> tuple[str, ...]:
        """Notes for a reader of the report."""
        said = f"values of {self.folder} for {', '.join(used)}" if used else self.note
        return (said,) if said else ()


class Deviation(NamedTuple):
    """The largest errors, the relative one that is allowed, and how two results differ if that is exceeded."""

    absolute: float
    relative: float
    bound: float
    how: str


class Expected(Struct, frozen=True):
    """Outputs that a forward run must have; `again` is the same run in the model's own dtype."""

    graph: Graph
    folder: str
    outputs: Mapping[str, Any]
    again: Callable[[], Tape]

    def comparison(self, tape: Tape, y: str) -> Deviation | None:
        """The deviation of y from the shipped output; None where nothing can be compared.

        Where a rounding decides (a comparison, a cast), float64 may go another way than the model does: the model's
        own dtype has the last word.
        """
        shipped = self.outputs.get(y)
        if not is_inexact_array(shipped) or y not in tape.named:
            return None
        ours = tape.named[y].value
        found = self._apart(ours, y)
        if found.how and y in self.again().named:
            found = self._apart(self.again().named[y].value, y)
        return found

    def _apart(self, ours: Array, y: str) -> Deviation:
        from gradcheck_cli.verdict.agreement import difference, farthest, sizes  # few models come with data

        there = self.outputs[y]
        file, bound = f"{self.folder}/output_{self.graph.outputs.index(y)}.pb", _bound(there)
        how = difference(ours, there, bound * sizes(there) + _ABSOLUTE)
        told = f"{y!r} is not what {file} says: {how}" if how else ""
        return Deviation(*farthest(ours, there, sizes(there)), bound, told)


def shipped_with(source: Source, settings: Settings, sizes: Mapping[str, int]) -> Shipped:
    """The test data that a check uses: for inputs that the user did not give, if it fits the model and the known sizes.

    Data that merely lies beside a model may be another model's, and is left alone where it does not fit.
    """
    if settings.test_data is None:
        return Shipped()
    if settings.test_data != "auto":
        return _fitting(source.graph, Path(settings.test_data), settings, sizes)
    beside = Path(source.uri).parent / BESIDE
    if source.uri.endswith(SPEC_SUFFIXES) or not source.sha256 or not beside.is_dir():
        return Shipped()  # neither a spec's graph nor a model in memory is a file of its own
    try:
        return _fitting(source.graph, beside, settings, sizes)
    except GradcheckError as error:
        return Shipped(note=f"test data beside the model is not used: {error}")


def _fitting(graph: Graph, folder: Path, settings: Settings, sizes: Mapping[str, int]) -> Shipped:
    from gradcheck_cli.formats.onnx.read import read_test_data

    data = read_test_data(folder, graph)
    if not data["inputs"] and graph.free_inputs and settings.test_data != "auto":
        raise UsageError(f"{folder} holds no input_0.pb.")
    names, wanted = _positions(graph, data["inputs"]), {}
    for position, value in data["inputs"].items():
        where = f"{folder.name}/input_{position}.pb"
        if position >= len(names):
            raise UsageError(f"{where} is one too many: the model has {counted(len(names), 'input')}.")
        name = names[position]
        if _wanted(name, value, settings):
            if isinstance(value, np.ndarray):
                _check_fit(graph, name, value, where, settings, sizes)
            wanted[name] = value
    outputs = {graph.outputs[i]: value for i, value in data["outputs"].items() if i < len(graph.outputs)}
    return Shipped(folder.name, wanted, outputs)


def _positions(graph: Graph, inputs: Mapping[int, Any]) -> tuple[str, ...]:
    """The inputs that positions count: those that need a value, unless there are too many for that.

    In old models every parameter is an input with a default, in any order, and test data leaves them out.
    """
    fits = len(graph.free_inputs) > max(inputs, default=-1)
    return graph.free_inputs if fits else graph.inputs


def _wanted(name: str, value: Any, settings: Settings) -> bool:
    """True if the user gave neither a value nor a range; a range for everything goes before data that lies beside."""
    if name in settings.x_init_value or name in settings.extra_feed_dict:
        return False
    ranged = name in settings.val_range or (settings.test_data == "auto" and ANY in settings.val_range)
    return not (ranged and is_inexact_array(value))


def _check_fit(graph: Graph, name: str, array: Array, where: str, settings: Settings, sizes: Mapping[str, int]) -> None:
    """UsageError for a value that the input cannot have."""
    declared = graph.types.get(name, TensorType())
    if declared.kind != "tensor":
        raise UsageError(f"{where} is a tensor; {name!r} is a {declared.kind}.")
    if declared.dtype is not None and declared.dtype != array.dtype:
        raise UsageError(f"{where} is {array.dtype.name}; {name!r} is {declared.dtype.name}.")
    shape = settings.x_shape.get(name) if declared_shape(graph, name) is None else declared_shape(graph, name)
    if shape is None:
        return
    has = f"{where} has shape {_shape(array.shape)}; {name!r} has {TensorType(None, tuple(shape))}".rsplit(" ", 1)[0]
    if len(shape) != array.ndim:
        raise UsageError(f"{has}.")
    for axis, (dim, size) in enumerate(zip(shape, array.shape, strict=True)):
        key = symbol(name, axis, dim)
        if isinstance(dim, int) and dim != size:
            raise UsageError(f"{has}.")
        if not isinstance(dim, int) and sizes.get(key, size) != size:
            raise UsageError(f"{has}, and {key} is {sizes[key]} here.")


def _bound(shipped: Array) -> float:
    """The error that rounding may make, relative to an entry or to a tenth of the largest."""
    return max(_RELATIVE, _ROUNDINGS * epsilon(shipped.dtype))


def _shape(sizes: Sequence[int]) -> str:
    return f"[{','.join(map(str, sizes))}]"
