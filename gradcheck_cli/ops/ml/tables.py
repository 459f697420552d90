"""Operators of `ai.onnx.ml` that look values up in a table: labels and categories.  Nothing flows through them.

Attributes become a `Table` when a node is bound; which entry of it is found is the branch of the operator.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gradcheck_cli.errors import ModelError
from gradcheck_cli.graph import Array
from gradcheck_cli.op import Op, zero
from gradcheck_cli.ops.shape import checked

DOMAIN = "ai.onnx.ml"
_UNUSED = "_Unused"


@dataclass(frozen=True, eq=False)
class Table:
    """values[i] for what equals keys[i], else the default; of equal keys the last counts, and NaN equals NaN."""

    keys: Array
    values: Array
    default: Any = None

    def __post_init__(self) -> None:
        if len(self.keys) != len(self.values):
            raise ModelError(f"{len(self.keys)} keys and {len(self.values)} values make no table")

    def places(self, x: Array) -> Array:
        """Which key each entry equals, -1 for none; numbers are compared in the dtype of the keys."""
        if (x.dtype == object) != (self.keys.dtype == object):
            raise ValueError(f"keys of dtype {self.keys.dtype} do not go with {x.dtype}")
        known = {key: place for place, key in enumerate(self.keys.tolist())}
        nan = next((place for key, place in reversed(known.items()) if key != key), -1)
        entries = x.real.astype(self.keys.dtype, copy=False).ravel().tolist()
        found = [known.get(entry, -1 if entry == entry else nan) for entry in entries]
        return np.asarray(found, np.int64).reshape(x.shape)

    def look_up(self, x: Array) -> Array:
        """The value of each entry."""
        places = self.places(x)
        default = np.asarray([self.default], self.values.dtype)
        return np.asarray(np.concatenate([self.values, default])[places])


def label_encoder(
    x: Array, *, classes_strings: tuple[str, ...] = (),
    keys_strings: tuple[str, ...] = (), keys_int64s: tuple[int, ...] = (), keys_floats: tuple[float, ...] = (),
    keys_tensor: Array | None = None, values_strings: tuple[str, ...] = (), values_int64s: tuple[int, ...] = (),
    values_floats: tuple[float, ...] = (), values_tensor: Array | None = None, default_string: str = _UNUSED,
    default_int64: int = -1, default_float: float = -0.0, default_tensor: Array | None = None,
    table: Table | None = None,
) -> Array:  # fmt: skip
    """What the table says of each entry.

    `classes_strings` is the table of the operator's first version: between strings and their numbers, either way.
    """
    assert table is not None
    return table.look_up(x)


def bind_label_encoder(metadata: dict[str, Any], x: Array) -> dict[str, Any]:
    """The table that keys and values make, each given in one of several forms."""
    if metadata.get("classes_strings"):
        strings = np.asarray(metadata["classes_strings"], object)
        keys, values = strings, np.arange(len(strings))
        if x.dtype != object:
            keys, values = values, keys
    else:
        keys, values = _given(metadata, "keys"), _given(metadata, "values")
    defaults = {"O": ("default_string", _UNUSED), "f": ("default_float", -0.0)}
    name, default = defaults.get(values.dtype.kind, ("default_int64", -1))
    if metadata.get("default_tensor") is not None:
        return {"table": Table(keys, values, metadata["default_tensor"].item())}
    return {"table": Table(keys, values, metadata.get(name, default))}


def category_mapper(
    x: Array, *, cats_int64s: tuple[int, ...] = (), cats_strings: tuple[str, ...] = (), default_int64: int = -1,
    default_string: str = _UNUSED, table: Table | None = None,
) -> Array:  # fmt: skip
    """The integer of each string, or the string of each integer."""
    assert table is not None
    return table.look_up(x)


def bind_category_mapper(metadata: dict[str, Any], x: Array) -> dict[str, Any]:
    """The table in the direction that x asks for."""
    strings = np.asarray(metadata.get("cats_strings", ()), object)
    integers = np.asarray(metadata.get("cats_int64s", ()), np.int64)
    if x.dtype == object:
        return {"table": Table(strings, integers, metadata.get("default_int64", -1))}
    return {"table": Table(integers, strings, metadata.get("default_string", _UNUSED))}


def one_hot_encoder(
    x: Array, *, cats_int64s: tuple[int, ...] = (), cats_strings: tuple[str, ...] = (), zeros: int = 1,
    table: Table | None = None,
) -> Array:  # fmt: skip
    """A new last axis with 1 at the category of each entry; of numbers the whole part counts."""
    assert table is not None
    places = table.places(x)
    if not zeros and (places < 0).any():
        raise ValueError(f"{x[places < 0].ravel()[0]!r} is none of the categories")
    return np.asarray(places[..., None] == np.arange(len(table.keys))).astype(np.float32)


def bind_one_hot_encoder(metadata: dict[str, Any], x: Array) -> dict[str, Any]:
    """The categories of the kind that x holds."""
    kind, dtype = ("cats_strings", object) if x.dtype == object else ("cats_int64s", np.int64)
    cats = np.asarray(metadata.get(kind, ()), dtype)
    if not cats.size:
        raise ModelError(f"attribute {kind!r} names no category")
    checked((*x.shape, len(cats)))
    return {"table": Table(cats, np.arange(len(cats))), "zeros": metadata.get("zeros", 1)}


def place(x: Array, *, table: Table, **metadata: Any) -> Array:
    """Which key of the table each entry equals."""
    return table.places(x)


def _given(metadata: dict[str, Any], what: str) -> Array:
    """Keys or values in the one form in which they are given."""
    forms = {"tensor": None, "strings": object, "int64s": np.int64, "floats": np.float32}
    found = [
        np.asarray(metadata[f"{what}_{form}"], dtype)
        for form, dtype in forms.items()
        if len(metadata.get(f"{what}_{form}", ()))
    ]
    if len(found) != 1 or found[0].ndim != 1:
        raise ModelError(f"{what} are given in {len(found)} forms; one vector is needed")
    return found[0]


def _table_op(name: str, forward: Any, bind: Any) -> Op:
    return Op(name, forward, zero, domain=DOMAIN, bind=bind, branch=place)


TABLES: list[Op] = [
    _table_op("LabelEncoder", label_encoder, bind_label_encoder),
    _table_op("CategoryMapper", category_mapper, bind_category_mapper),
    _table_op("OneHotEncoder", one_hot_encoder, bind_one_hot_encoder),
]
