"""Values that are typed or lie in files: numbers, nested lists, .npy, .npz, .pb and .json."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from gradcheck_cli.errors import GradcheckError, UsageError, did_you_mean, shown
from gradcheck_cli.formats.arrays import Npz, read_npy
from gradcheck_cli.formats.untrusted import content
from gradcheck_cli.graph import Array, TensorType
from gradcheck_cli.graph.containers import typed

_WORDS = {"nan": "NaN", "inf": "Infinity", "infinity": "Infinity"}
_LARGEST = 256 << 20  # bytes of a .json
_SPECIAL = re.compile(r"(?<![\w.\"'])(nan|inf|infinity)(?![\w.\"'])", re.IGNORECASE)


def array_of(text: str) -> Array:
    """The array that VALUE or @FILE[:KEY] means."""
    return _from_file(text[1:], _read) if text.startswith("@") else written(text)


def value_of(text: str, declared: TensorType) -> Any:
    """What VALUE or @FILE[:KEY] means for strings, a sequence, an optional or a map: lists, null, mappings."""
    if text.startswith("@"):
        return _from_file(text[1:], lambda path, key: _read_value(path, key, declared))
    return _typed(_loaded(text), declared, repr(text))


def written(text: str) -> Array:
    """A number or nested lists of numbers, nan, inf and complex ones included."""
    return _numbers(_loaded(text), f"{text!r} is no number and no list of numbers")


def _loaded(text: str) -> Any:
    """A text as JSON with nan and inf, or as it is."""
    try:
        return json.loads(_SPECIAL.sub(lambda m: _WORDS[m[0].lower()], text))
    except (ValueError, RecursionError):
        return text


def _typed(value: Any, declared: TensorType, what: str) -> Any:
    if declared.kind == "tensor" and declared.dtype is not None and declared.dtype.kind == "O":
        return np.asarray(value, object)
    try:
        return typed(value, declared, what)
    except (ValueError, OverflowError, RecursionError) as error:
        raise UsageError(str(error)) from None


def _numbers(value: Any, reason: str) -> Array:
    try:
        array = np.array(_complex_where_needed(value))
    except (ValueError, OverflowError, RecursionError):
        array = np.array(None)
    if array.dtype.kind not in "biufc":
        raise UsageError(f"{reason}; write 0.5, [1, 2], [[1, nan], [3, inf]], 1+2j or @file.npy")
    return array


def _complex_where_needed(value: Any) -> Any:
    if isinstance(value, list):
        return [_complex_where_needed(each) for each in value]
    return complex(value.replace(" ", "")) if isinstance(value, str) else value


def _from_file(given: str, read: Callable[[str, str | None], Any]) -> Any:
    path, key = _path_and_key(given)
    try:
        return read(path, key)
    except (GradcheckError, MemoryError):
        raise
    except OSError as error:
        raise UsageError(f"{shown(path)} cannot be read: {error.strerror or error}") from None
    except Exception as error:  # whatever NumPy's, zip's and Python's readers say of bytes that make no sense
        raise UsageError(f"{shown(path)} cannot be read as an array: {error}") from None


def _path_and_key(given: str) -> tuple[str, str | None]:
    """FILE or FILE:KEY; a path may have colons of its own."""
    path, colon, key = given.rpartition(":")
    if not colon or os.path.exists(given) or not os.path.exists(path):
        return given, None
    return path, key


def _read(path: str, key: str | None) -> Array:
    suffix = os.path.splitext(path)[1].lower()
    if suffix == ".npz":
        arrays = Npz(path)
        return arrays[_chosen(path, list(arrays), key)]
    if suffix == ".json":
        return _from_json(path, key)
    if key is not None:
        raise UsageError(f"{path} holds a single array; leave out the key {key!r}")
    if suffix == ".npy":
        return read_npy(path)
    if suffix == ".pb":
        from gradcheck_cli.formats.onnx.read import read_tensor

        return read_tensor(path)
    raise UsageError(f"{path} is neither .npy, .npz, .pb nor .json")


def _read_value(path: str, key: str | None, declared: TensorType) -> Any:
    """What a file holds for a value that is no tensor of numbers; a .npz holds a sequence in the order of its arrays."""
    suffix = os.path.splitext(path)[1].lower()
    if suffix == ".pb":
        from gradcheck_cli.formats.onnx.read import read_value

        return read_value(path, declared)
    if suffix == ".npz" and key is None and declared.kind == "sequence":
        return _typed([*Npz(path).values()], declared, path)
    if suffix == ".json" and key is None:
        return _typed(json.loads(content(path, _LARGEST)), declared, path)
    return _typed(_read(path, key), declared, path)


def _from_json(path: str, key: str | None) -> Array:
    value = json.loads(content(path, _LARGEST))
    if isinstance(value, dict):
        value = value[_chosen(path, list(value), key)]
    elif key is not None:
        raise UsageError(f"{path} holds a single array; leave out the key {key!r}")
    return _numbers(value, f"{path} holds no numbers")


def _chosen(path: str, names: list[str], key: str | None) -> str:
    if key is None and len(names) == 1:
        return names[0]
    if key not in names:
        known = ", ".join(names[:10]) or "none"
        wrong = f"has no array {key!r}" if key else "has several arrays; choose one as @FILE:KEY"
        raise UsageError(f"{path} {wrong}.{did_you_mean(key or '', names)} It has: {known}.")
    return key
