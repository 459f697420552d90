"""Derivatives of pools in onnxruntime's training graphs, with the shape of what they give as their attribute `shape`.

Their operands do not tell it; a file declares it as the type of their output, batch and channels perhaps as symbols.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from gradcheck_cli.graph import Node, TensorType

KEYS = {("", "AveragePoolGrad"), ("", "MaxPoolGrad")}
SHAPE = "shape"
OPEN = -1  # in place of a symbol


def with_shapes(nodes: Iterable[Node], types: Mapping[str, TensorType]) -> Iterator[Node]:
    """The nodes, derivatives of pools with the declared shapes of their outputs."""
    for node in nodes:
        declared = types.get(node.outputs[0]) if node.key in KEYS and node.outputs else None
        if declared is None or declared.shape is None or SHAPE in node.attrs:
            yield node
        else:
            shape = tuple(dim if isinstance(dim, int) else OPEN for dim in declared.shape)
            yield replace(node, attrs={**node.attrs, SHAPE: shape})
