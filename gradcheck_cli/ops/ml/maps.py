"""Maps of `ai.onnx.ml`: their operators dissolve into operators on the vector of values inside."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradcheck_cli.autodiff import symbolic as sym
from gradcheck_cli.autodiff.tape import MAX_STEPS, Var
from gradcheck_cli.errors import LimitError
from gradcheck_cli.graph.containers import COMPOUND, Map, Sequence, described
from gradcheck_cli.op import Op, composite
from gradcheck_cli.op.batching import Kernel
from gradcheck_cli.ops.ml.classic import as_matrix
from gradcheck_cli.ops.ml.tables import DOMAIN
from gradcheck_cli.ops.shape import checked

_CASTS = {"TO_FLOAT": np.float32, "TO_STRING": object, "TO_INT64": np.int64}


def zip_map(x: Var, *, classlabels_int64s: tuple[int, ...] = (), classlabels_strings: tuple[str, ...] = ()) -> Sequence:
    """A map for each row: the labels to its entries."""
    rows, labels = as_matrix(x), classlabels_strings or classlabels_int64s
    if rows.ndim != 2 or rows.shape[1] != len(labels) or len(set(labels)) < len(labels):
        raise ValueError(f"{len(labels)} labels do not name the columns of {list(x.shape)}")
    if rows.shape[0] > MAX_STEPS:
        raise LimitError(f"a sequence of {rows.shape[0]:,} maps; at most {MAX_STEPS:,} are possible")
    pieces = sym.split(rows, (1,) * rows.shape[0], 0) if rows.shape[0] else ()
    return Sequence(tuple(Map(labels, sym.identity(sym.squeeze(piece, (0,)))) for piece in pieces))


def dict_vectorizer(x: Any, *, int64_vocabulary: tuple[int, ...] = (), string_vocabulary: tuple[str, ...] = ()) -> Var:
    """The value of each key of the vocabulary in a vector; 0 for one that the map does not have."""
    found = _map(x)
    vocabulary: tuple[Any, ...] = string_vocabulary or int64_vocabulary
    lost = [key for key in found.keys if key not in vocabulary]
    if lost:
        raise ValueError(f"key {lost[0]!r} is not in the vocabulary")
    return _picked(found, vocabulary)


def cast_map(x: Any, *, cast_to: str = "TO_FLOAT", map_form: str = "DENSE", max_map: int = 1) -> Var:
    """The values by ascending key, `(1, n)`: one after the other, or each at the place that its key says (SPARSE)."""
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
        raise ValueError(f"a map is needed, not {described(value) if isinstance(value, COMPOUND) else 'a tensor'}")
    return value


def _picked(found: Map, keys: tuple[Any, ...]) -> Var:
    """The values of keys in a vector, 0 (or an empty string) for those that are not there."""
    place = {key: i for i, key in enumerate(found.keys)}
    values: Var = found.values
    nothing = values.tape.constant(np.asarray([""], object) if values.dtype == object else np.zeros(1, values.dtype))
    indices = np.asarray([place.get(key, len(place)) for key in keys], np.int64)
    return values.tape.apply("Gather", sym.concat([values, nothing], 0), indices, axis=0)


def _own(name: str, forward: Kernel) -> Op:
    return composite(name, forward, domain=DOMAIN, compound=forward)


MAPS: list[Op] = [
    composite("ZipMap", zip_map, domain=DOMAIN),
    _own("DictVectorizer", dict_vectorizer),
    _own("CastMap", cast_map),
    composite("MapConstruct", map_construct, domain="gradcheck"),
]
