"""Values of any kind as JSON, with their arrays in one .npz file beside it.

What is read back is untrusted: nothing is unpickled, and an array is read only if its header agrees with the file.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gradcheck_cli.errors import UsageError, shown
from gradcheck_cli.formats.arrays import Npz
from gradcheck_cli.graph import Array
from gradcheck_cli.graph.containers import Map, Optional, Sequence

MOST_BYTES = 1 << 30  # of all arrays together, uncompressed
_DEEPEST = 16  # nested sequences and optionals
_NATIVE = "biufc"


class ValueWriter:
    """Splits values: `entry` gives the JSON of a value, `arrays` collects the arrays for the .npz file."""

    def __init__(self) -> None:
        self.arrays: dict[str, Array] = {}

    def entry(self, value: Any) -> dict[str, Any]:
        """The JSON of a value."""
        match value:
            case Sequence(items):
                return {"sequence": [self.entry(item) for item in items]}
            case Optional(content):
                return {"optional": None if content is None else self.entry(content)}
            case Map(keys, values):
                return {"map": list(keys), "values": self.entry(values)}
            case _:
                return self._array(np.asarray(value))

    def _array(self, array: Array) -> dict[str, Any]:
        if array.dtype == object:
            texts = [text if isinstance(text, str) else [bytes(text).hex()] for text in array.ravel().tolist()]
            return {"strings": texts, "shape": list(array.shape)}
        key = str(len(self.arrays))
        if array.dtype.kind in _NATIVE and array.dtype.type.__module__ == "numpy":
            self.arrays[key] = array
            return {"array": key}
        # dtypes that are not NumPy's own, such as bfloat16, are stored as integers of the same bytes
        self.arrays[key] = np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}").reshape(array.shape)
        return {"array": key, "dtype": array.dtype.name}


class ValueReader:
    """Reads values back; raises a UsageError for invalid ones."""

    def __init__(self, file: Path | None) -> None:
        self.file = file
        self._arrays: dict[str, Array] | None = None

    def value(self, entry: Any, depth: int = 0) -> Any:
        """The value of an entry."""
        if depth > _DEEPEST:
            raise UsageError("a value is nested too deeply")
        match entry:
            case {"sequence": list(items)}:
                return Sequence(tuple(self.value(item, depth + 1) for item in items))
            case {"optional": content}:
                return Optional(None if content is None else self.value(content, depth + 1))
            case {"map": list(keys), "values": values}:
                return _map(keys, self.value(values, depth + 1))
            case {"strings": list(texts), "shape": list(shape)}:
                return _strings(texts, shape)
            case {"array": str(key)}:
                return _in_dtype(self._array(key), entry.get("dtype"))
        raise UsageError(f"{str(entry)[:60]!r} is no saved value")

    def _array(self, key: str) -> Array:
        if self._arrays is None:
            self._arrays = {} if self.file is None else read_arrays(self.file)
        if key not in self._arrays:
            raise UsageError(f"the array {shown(key)!r} is missing")
        return self._arrays[key]


def read_arrays(file: Path) -> dict[str, Array]:
    """The arrays in an untrusted .npz file; only numbers are allowed."""
    try:
        arrays = dict(Npz(file, MOST_BYTES))
    except (OSError, ValueError, MemoryError) as error:
        raise UsageError(f"{file} cannot be read: {error}") from None
    odd = [name for name, array in arrays.items() if array.dtype.kind not in _NATIVE]
    if odd:
        raise UsageError(f"{file} cannot be read: {shown(odd[0])} is no array of numbers")
    return arrays


def write_arrays(file: str | os.PathLike[str], arrays: Mapping[str, Array]) -> None:
    """Writes arrays to a .npz file."""
    with open(file, "wb") as stream:
        np.savez(stream, allow_pickle=False, **arrays)


def _in_dtype(array: Array, name: Any) -> Array:
    if name is None:
        return array
    import ml_dtypes

    kind = getattr(ml_dtypes, name, None) if isinstance(name, str) else None
    if not isinstance(kind, type) or np.dtype(kind).itemsize != array.dtype.itemsize or array.dtype.kind != "u":
        raise UsageError(f"there is no dtype {str(name)[:40]!r} of {array.dtype.itemsize} bytes")
    return np.asarray(array.view(np.dtype(kind)))


def _strings(texts: list[Any], shape: list[Any]) -> Array:
    if not all(type(size) is int and size >= 0 for size in shape) or math.prod(shape) != len(texts):
        raise UsageError(f"{len(texts)} strings do not fit a shape {str(shape)[:40]}")
    found = np.empty(len(texts), object)
    for index, text in enumerate(texts):
        found[index] = text if isinstance(text, str) else _bytes(text)
    return found.reshape(shape)


def _bytes(text: Any) -> bytes:
    try:
        return bytes.fromhex(text[0])
    except (TypeError, ValueError, LookupError):
        raise UsageError(f"{str(text)[:40]!r} is no string") from None


def _map(keys: list[Any], values: Any) -> Map:
    kinds = {type(key) for key in keys}
    if not isinstance(values, np.ndarray) or values.shape != (len(keys),) or not (kinds <= {str} or kinds <= {int}):
        raise UsageError("the keys of a map do not fit its values")
    return Map(tuple(keys), values)
