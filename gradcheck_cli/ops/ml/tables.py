"""Operators of `ai.onnx.ml` that look values up in a table of labels or categories, and those on maps.

Attributes become a `Table` when a node is bound; the entry that is found is the branch of the operator, and nothing
flows through it.  Operators on maps dissolve into operators on the vector of values inside.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gradcheck_cli.autodiff import symbolic as sym
from gradcheck_cli.autodiff.tape import MAX_STEPS, Var
from gradcheck_cli.errors import LimitError, ModelError
from gradcheck_cli.graph import Array
from gradcheck_cli.graph.containers import CONTAINERS, Map, Sequence, described
from gradcheck_cli.op import Op, composite, on_containers, zero
from gradcheck_cli.ops.ml.classic import as_matrix
from gradcheck_cli.ops.shape import checked

DOMAIN = "ai.onnx.ml"
_UNUSED = "_Unused"
_CASTS = {"TO_FLOAT": np.float32, "TO_STRING": object, "TO_INT64": np.int64}


@dataclass(frozen=True, eq=False)
class Table:
    """values[i] for entries that equal keys[i], else the default; of equal keys the last counts, and NaN equals NaN."""

    keys: Array
    values: Array
    default: Any = None

    def __post_init__(self) -> None:
        if len(self.keys) != len(self.values):
            raise ModelError(f"{len(self.keys)} keys and {len(self.values)} values make no table")

    def places(self, x: Array) -> Array:
        """The number of the key that each entry equals, -1 for none; numbers are compared in the dtype of the keys."""
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
    table: Any = None,
) -> Array:  # fmt: skip
    """The value that the table has for each entry.

    `classes_strings` is the table of the operator's first version: between strings and their numbers, either way.
    """
    return np.asarray(table.look_up(x))


def bind_label_encoder(metadata: dict[str, Any], x: Array) -> dict[str, Any]:
    """Metadata with the table of keys and values, each given in one of several forms."""
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
    default_string: str = _UNUSED, table: Any = None,
) -> Array:  # fmt: skip
    """The integer of each string, or the string of each integer."""
    return np.asarray(table.look_up(x))


def bind_category_mapper(metadata: dict[str, Any], x: Array) -> dict[str, Any]:
    """Metadata with the table in the direction for the dtype of x."""
    strings = np.asarray(metadata.get("cats_strings", ()), object)
    integers = np.asarray(metadata.get("cats_int64s", ()), np.int64)
    if x.dtype == object:
        return {"table": Table(strings, integers, metadata.get("default_int64", -1))}
    return {"table": Table(integers, strings, metadata.get("default_string", _UNUSED))}


def one_hot_encoder(
    x: Array, *, cats_int64s: tuple[int, ...] = (), cats_strings: tuple[str, ...] = (), zeros: int = 1,
    table: Any = None,
) -> Array:  # fmt: skip
    """A new last axis with 1 at the category of each entry; numbers are truncated."""
    places = table.places(x)
    if not zeros and (places < 0).any():
        raise ValueError(f"{x[places < 0].ravel()[0]!r} is none of the categories")
    return np.asarray(places[..., None] == np.arange(len(table.keys))).astype(np.float32)


def bind_one_hot_encoder(metadata: dict[str, Any], x: Array) -> dict[str, Any]:
    """Metadata with the categories of the kind that x holds."""
    kind, dtype = ("cats_strings", object) if x.dtype == object else ("cats_int64s", np.int64)
    cats = np.asarray(metadata.get(kind, ()), dtype)
    if not cats.size:
        raise ModelError(f"attribute {kind!r} names no category")
    checked((*x.shape, len(cats)))
    return {"table": Table(cats, np.arange(len(cats))), "zeros": metadata.get("zeros", 1)}


def place(x: Array, *, table: Table, **metadata: Any) -> Array:
    """The branch: the number of the key that each entry equals."""
    return table.places(x)


def _given(metadata: dict[str, Any], what: str) -> Array:
    """Keys or values, in whichever form they are given."""
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


def zip_map(x: Var, *, classlabels_int64s: tuple[int, ...] = (), classlabels_strings: tuple[str, ...] = ()) -> Sequence:
    """A map from labels to entries for each row."""
    rows, labels = as_matrix(x), classlabels_strings or classlabels_int64s
    if rows.ndim != 2 or rows.shape[1] != len(labels) or len(set(labels)) < len(labels):
        raise ValueError(f"{len(labels)} labels do not name the columns of {list(x.shape)}")
    if rows.shape[0] > MAX_STEPS:
        raise LimitError(f"a sequence of {rows.shape[0]:,} maps; at most {MAX_STEPS:,} are possible", code="GC602")
    pieces = sym.split(rows, (1,) * rows.shape[0], 0) if rows.shape[0] else ()
    return Sequence(tuple(Map(labels, sym.identity(sym.squeeze(piece, (0,)))) for piece in pieces))


def dict_vectorizer(x: Any, *, int64_vocabulary: tuple[int, ...] = (), string_vocabulary: tuple[str, ...] = ()) -> Var:
    """The value of each key of the vocabulary in a vector; 0 for a key that the map does not have."""
    found = _map(x)
    vocabulary: tuple[Any, ...] = string_vocabulary or int64_vocabulary
    lost = [key for key in found.keys if key not in vocabulary]
    if lost:
        raise ValueError(f"key {lost[0]!r} is not in the vocabulary")
    return _picked(found, vocabulary)


def cast_map(x: Any, *, cast_to: str = "TO_FLOAT", map_form: str = "DENSE", max_map: int = 1) -> Var:
    """The values by ascending key, `(1, n)`: consecutive, or each at the place that its key names (SPARSE)."""
    found = _map(x)
    if cast_to not in _CASTS or map_form not in ("DENSE", "SPARSE"):
        raise ValueError(f"{cast_to!r} and {map_form!r} are not known; {', '.join(_CASTS)} and DENSE, SPARSE are")
    keys: tuple[Any, ...] = tuple(sorted(found.keys))
    if map_form == "SPARSE":
        if any(not 0 <= key < max_map for key in keys):
            raise ValueError(f"keys from {keys[0]} to {keys[-1]} do not fit into {max_map} places")
        keys = tuple(range(*checked((max_map,))))
    return sym.cast(sym.unsqueeze(_picked(found, keys), (0,)), _CASTS[cast_to])


def map_construct(x: Var, *, keys: tuple[Any, ...]) -> Map:
    """A map of keys to the entries of a vector."""
    if x.shape != (len(keys),):
        raise ValueError(f"{len(keys)} keys do not name the entries of {list(x.shape)}")
    return Map(keys, x)


def _map(value: Any) -> Map:
    if not isinstance(value, Map):
        raise ValueError(f"a map is needed, not {described(value) if isinstance(value, CONTAINERS) else 'a tensor'}")
    return value


def _picked(found: Map, keys: tuple[Any, ...]) -> Var:
    """The values of keys in a vector, 0 (or an empty string) for missing keys."""
    place = {key: i for i, key in enumerate(found.keys)}
    values: Var = found.values
    nothing = values.tape.constant(np.asarray([""], object) if values.dtype == object else np.zeros(1, values.dtype))
    indices = np.asarray([place.get(key, len(place)) for key in keys], np.int64)
    return values.tape.apply("Gather", sym.concat([values, nothing], 0), indices, axis=0)


TABLES: list[Op] = [
    _table_op("LabelEncoder", label_encoder, bind_label_encoder),
    _table_op("CategoryMapper", category_mapper, bind_category_mapper),
    _table_op("OneHotEncoder", one_hot_encoder, bind_one_hot_encoder),
    composite("ZipMap", zip_map, domain=DOMAIN),
    on_containers("DictVectorizer", dict_vectorizer, domain=DOMAIN),
    on_containers("CastMap", cast_map, domain=DOMAIN),
    composite("MapConstruct", map_construct, domain="gradcheck"),
]
