"""Constants: what follows from constants of rules alone is one, where the file hardly grows by it."""

from __future__ import annotations

import math

from gradcheck_cli.autodiff.trace import result, trace
from gradcheck_cli.errors import GradcheckError
from gradcheck_cli.export.simplify.draft import Draft, Rules
from gradcheck_cli.graph import Array, Graph, Node
from gradcheck_cli.ops import OPS

_RESULT = 1024  # bytes of a constant that may come in
_NODE = 128  # bytes that a node takes in a file
_FOLDED = 1 << 20  # bytes that are gone through for it
_DRAWING = {"Bernoulli", "Dropout", "Multinomial"}


def folded(node: Node, at: Draft) -> Array | None:
    """A node of constants gives a constant, computed by the kernels that check it, in the dtype of the file."""
    values = {name: value for name in node.inputs if name and (value := at.value(name)) is not None}
    if not values or len(values) < len(set(node.inputs) - {""}) or len(node.outputs) > 1 or node.op in _DRAWING:
        return None
    given = sum(value.nbytes for value in values.values())
    bytes_ = _bytes(node.outputs[0], at)
    if bytes_ is None or bytes_ > min(_RESULT, given + _NODE) or given > _FOLDED or any(node.subgraphs):
        return None
    try:
        found = result(trace(Graph((), node.outputs, (node,), values), {}, ops=OPS, dtype="model"), node.outputs[0])
    except GradcheckError:  # what cannot be run here may still run there
        return None
    return found if found.dtype == at.dtype(node.outputs[0]) else None


def _bytes(name: str, at: Draft) -> int | None:
    """How much the numbers of a tensor take; None where that depends."""
    shape, dtype = at.shape(name), at.dtype(name)
    if shape is None or dtype is None or not all(isinstance(d, int) for d in shape):
        return None
    return math.prod(d for d in shape if isinstance(d, int)) * dtype.itemsize


FOLDING: Rules = {"": (folded,)}
