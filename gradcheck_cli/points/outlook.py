"""How much memory a model asks for, as its file alone tells: nothing is run, and nothing of that size is made.

Counted are tensors whose shapes it declares, weights, and what operators make to a size that stands in the file.  It is
a hint, in 8 bytes an entry: of a model that declares no shapes inside, it sees the ends and the weights.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np

from gradcheck_cli.graph import Array, Graph, Node, TensorType
from gradcheck_cli.points.dims import BATCH, open_dims, symbol

_ENTRY = 8.0  # bytes
_OPEN = 32  # entries of an open dimension that is no batch
_FILLED = {"ConstantOfShape": 0, "Expand": 1, "Reshape": 1, "Tile": 1, "Upsample": 1, "Resize": 3}  # operand of sizes
_DRAWN = ("RandomNormal", "RandomUniform")


def outlook(graph: Graph, dims: Mapping[str, int]) -> float:
    """Bytes of all tensors that a graph is known to hold, with sizes of open dimensions that were given."""
    batches = {name for name, is_batch in open_dims(graph).items() if is_batch}
    total = sum(2.0 * value.nbytes for value in graph.constants.values())
    total += _ENTRY * sum(_entries(declared, name, dims, batches) for name, declared in graph.types.items())
    return total + _ENTRY * sum(_made(node, graph) for node in graph.nodes)


def _entries(declared: TensorType, name: str, dims: Mapping[str, int], batches: set[str]) -> float:
    """Entries of a declared tensor; none where nothing is said of its shape."""
    sizes = 1.0
    for axis, dim in enumerate(declared.shape or ()):
        key = symbol(name, axis, dim)
        sizes *= dim if isinstance(dim, int) else dims.get(key, BATCH if key in batches else _OPEN)
    return sizes if declared.shape else 0.0


def _made(node: Node, graph: Graph) -> float:
    """Entries of what a node makes to a size that the file gives, those of its subgraphs among them."""
    inside = sum(_made(each, sub) for sub in node.subgraphs for each in sub.nodes)
    return inside + max(_sizes(node, graph), default=0.0)


def _sizes(node: Node, graph: Graph) -> Iterator[float]:
    if node.op in _DRAWN:
        yield math.prod(float(size) for size in node.attrs.get("shape", ()))
    known = [_constant(name, graph) for name in node.inputs]
    if node.op == "Range" and len(known) == 3 and all(x is not None and x.size == 1 for x in known):
        start, limit, step = (float(x.reshape(())) for x in known if x is not None)
        yield (limit - start) / step if step else 0.0
    at = _FILLED.get(node.op, len(known))
    sizes = known[at] if at < len(known) else None
    if sizes is not None and sizes.dtype.kind in "iu" and sizes.size < _OPEN:
        yield math.prod(float(size) for size in sizes.ravel() if size > 0)


def _constant(name: str, graph: Graph) -> Array | None:
    """The value of a tensor that stands in the file."""
    if name in graph.constants:
        return graph.constants[name]
    at = graph.producer(name) if name else None
    value = graph.nodes[at].attrs.get("value") if at is not None and graph.nodes[at].op == "Constant" else None
    return value if isinstance(value, np.ndarray) else None
