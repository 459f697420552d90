"""Sizes that are asked for: those that are known, and those that have been asked for before."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gradcheck_cli.export.simplify.draft import Draft, Found, Rules, is_one
from gradcheck_cli.export.simplify.shapes import RESHAPING, Shape, Volume, volume
from gradcheck_cli.graph import Dim, Node


def known_sizes(node: Node, at: Draft) -> Found | None:
    """Sizes that do not depend on the run are constants; others are asked for once, of whichever tensor has them."""
    dims = _dims(node, at)
    if dims is None or at.shape(node.outputs[0]) is None:
        return None
    at.sizes[node.outputs[0]] = dims
    rank = 0 if at.shape(node.outputs[0]) == () else 1
    if all(isinstance(d, int) for d in dims):
        return np.array(dims, np.int64).reshape(-1 if rank else ())
    first = at.first(("sizes", rank, dims), node.outputs[0])
    return None if first == node.outputs[0] else first


def known_counts(node: Node, at: Draft) -> Node | None:
    """A product of sizes that is the number of entries of a tensor is asked for as that."""
    name = node.outputs[0]
    count = _volume(node, at)
    if count is None:
        return None
    at.counts[name] = count
    tensor = at.volumes.get(count)
    return replace(node, op="Size", inputs=(tensor,), attrs={}) if tensor and at.shape(name) == () else None


def _volume(node: Node, at: Draft) -> Volume | None:
    """The product of sizes that a tensor of one entry is."""
    if not is_one(node.outputs[0], at):
        return None
    known = [at.counts.get(name) or _one_size(name, at) for name in node.inputs[: 1 if node.op != "Mul" else 2]]
    if None in known:
        return None
    numbers, names = zip(*(each for each in known if each is not None), strict=True)
    return math.prod(numbers), tuple(sorted(itertools.chain(*names)))


def _one_size(name: str, at: Draft) -> Volume | None:
    dims = _sizes(name, at)
    return volume(dims) if dims is not None and len(dims) == 1 else None


def _dims(node: Node, at: Draft) -> Shape | None:
    """The dimensions whose sizes a node gives, as far as all of them are known to have a name or a number."""
    dims: Sequence[Dim] | None = None
    if node.op == "Shape":
        shape = at.shape(node.inputs[0])
        dims = None if shape is None else shape[slice(node.attrs.get("start", 0), node.attrs.get("end"))]
    elif node.op == "Gather":
        of, index = _sizes(node.inputs[0], at), at.value(node.inputs[1])
        known = of is not None and index is not None and index.ndim < 2 and np.all(np.abs(index + 0.5) < len(of))
        dims = [of[i] for i in index.reshape(-1).tolist()] if known and of is not None and index is not None else None
    elif node.op in ("Squeeze", "Unsqueeze"):
        of = _sizes(node.inputs[0], at)
        dims = of if of is not None and len(of) == 1 and at.shape(node.outputs[0]) in ((), (1,)) else None
    elif node.op == "Concat":
        parts = [_sizes(name, at) for name in node.inputs]
        dims = None if None in parts else [d for part in parts for d in part or ()]
    return None if dims is None or None in dims else tuple(dims)


def _sizes(name: str, at: Draft) -> Shape | None:
    """The dimensions whose sizes a tensor holds."""
    value = at.value(name)
    if value is not None:
        return tuple(value.reshape(-1).tolist()) if value.dtype == np.int64 and value.ndim < 2 else None
    return at.sizes.get(name)


SIZES: Rules = {
    **dict.fromkeys(("Shape", "Gather", "Concat"), (known_sizes,)),
    **dict.fromkeys(RESHAPING, (known_sizes, known_counts)),
    "Mul": (known_counts,),
}
