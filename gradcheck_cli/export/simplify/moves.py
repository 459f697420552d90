"""Entries that are moved and moved back, and reductions with what is done to their axes.

Values stay to the bit, but for sums of sums, which are taken in another order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gradcheck_cli.export.simplify.draft import Draft, Found, Rules
from gradcheck_cli.export.simplify.shapes import RESHAPING, Shape
from gradcheck_cli.graph import Node

# which of themselves are one
_OF_REDUCTIONS = ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin")
REDUCING = (*_OF_REDUCTIONS, "ReduceProd", "ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp")


def in_shape(node: Node, at: Draft) -> str | None:
    """What has the shape already that it is to get is that tensor: entries stay in their order."""
    return node.inputs[0] if at.same(node.inputs[0], node.outputs[0]) else None


def whole_slice(node: Node, at: Draft) -> str | None:
    """A Slice that leaves nothing out, and goes forward, gives the tensor."""
    steps = at.value(node.inputs[4]) if len(node.inputs) > 4 else np.ones(1)
    forward = steps is not None and (steps == 1).all()
    return node.inputs[0] if forward and at.same(node.inputs[0], node.outputs[0]) else None


def nothing_around(node: Node, at: Draft) -> str | None:
    """A Pad of no width gives the tensor."""
    widths = at.value(node.inputs[1])
    return node.inputs[0] if widths is not None and not widths.any() else None


def transposed(node: Node, at: Draft) -> Found | None:
    """Axes in their order stay; two orders in a row are one."""
    perm = _perm(node, at)
    if perm is None:
        return None
    if perm == tuple(range(len(perm))):
        return node.inputs[0]
    inner = at.node(node.inputs[0], "Transpose")
    first = None if inner is None else _perm(inner, at)
    if inner is None or first is None:
        return None
    return replace(node, inputs=inner.inputs, attrs={"perm": tuple(first[p] for p in perm)})


def reshaped_twice(node: Node, at: Draft) -> Found | None:
    """Of two shapes in a row the last counts: entries stay in their order."""
    inner = at.node(node.inputs[0], *RESHAPING)
    if inner is None:
        return None
    source = inner.inputs[0]
    if at.same(source, node.outputs[0]):
        return source
    if at.sole(node.inputs[0], *RESHAPING) is None:
        return None
    target = _target(at.shape(source), at.shape(node.outputs[0]))
    return None if target is None else _reshape(node, source, target, at)


def by_known_shape(node: Node, at: Draft) -> Node | None:
    """A Reshape to computed sizes is one to constants, if these can say the same: 0 is the size before, -1 what is left."""
    if at.value(node.inputs[1]) is not None:
        return None
    target = _target(at.shape(node.inputs[0]), at.shape(node.outputs[0]))
    return None if target is None else _reshape(node, node.inputs[0], target, at)


def reduced_in_shape(node: Node, at: Draft) -> Node | None:
    """A reduction whose axes are dropped, or put back, afterwards does that itself."""
    inner = at.sole(node.inputs[0], *REDUCING)
    axes = None if inner is None else _axes(inner, at)
    if inner is None or axes is None:
        return None
    full, out = at.shape(inner.inputs[0]) or (), at.shape(node.outputs[0])
    for keepdims, shape in enumerate((_without(full, axes), _with_ones(full, axes))):
        if shape == out and None not in shape:
            return replace(node, op=inner.op, inputs=inner.inputs, attrs={**inner.attrs, "keepdims": keepdims})
    return None


def reduced_twice(node: Node, at: Draft) -> Node | None:
    """A sum of sums is one sum; means, where every one is of as many, maxima and minima likewise."""
    inner = at.sole(node.inputs[0], node.op)
    outer_axes = _axes(node, at)
    axes = None if inner is None else _axes(inner, at)
    if inner is None or axes is None or outer_axes is None or _keepdims(inner) != _keepdims(node):
        return None
    rank = len(at.shape(inner.inputs[0]) or ())
    left = range(rank) if _keepdims(inner) else [a for a in range(rank) if a not in axes]
    both = sorted({*axes, *(left[a] for a in outer_axes)})
    inputs = (inner.inputs[0], at.constant(np.array(both, np.int64)))
    return replace(node, inputs=inputs, attrs={"keepdims": _keepdims(node)})


def reduced_over_nothing(node: Node, at: Draft) -> Found | None:
    """A sum over axes of length 1 is of one entry each."""
    axes, shape = _axes(node, at), at.shape(node.inputs[0])
    if axes is None or shape is None or any(shape[a] != 1 for a in axes):
        return None
    if _keepdims(node) or not axes:
        return node.inputs[0]
    return replace(node, op="Squeeze", inputs=(node.inputs[0], at.constant(np.array(axes, np.int64))), attrs={})


def _target(before: Shape | None, after: Shape | None) -> list[int] | None:
    """What a Reshape is told; None where numbers cannot say it for every size."""
    if before is None or after is None or 0 in after:
        return None
    target = [d if isinstance(d, int) else 0 if d is not None and before[i : i + 1] == (d,) else -1
              for i, d in enumerate(after)]  # fmt: skip
    if target.count(-1) > 1:
        return None
    if -1 in target:  # beside a size that is copied, and may be 0, what is left is not known
        target = [-1 if t < 1 else t for t in target]
    return None if target.count(-1) > 1 else target


def _reshape(node: Node, source: str, target: Sequence[int], at: Draft) -> Node:
    inputs = (source, at.constant(np.array(target, np.int64)))
    return replace(node, op="Reshape", inputs=inputs, attrs={})


def _perm(node: Node, at: Draft) -> tuple[int, ...] | None:
    shape = at.shape(node.inputs[0])
    return node.attrs.get("perm", None if shape is None else tuple(range(len(shape))[::-1]))


def _axes(node: Node, at: Draft) -> list[int] | None:
    """The axes of a reduction, counted from the front; None where they are not known."""
    shape = at.shape(node.inputs[0])
    given = at.value(node.inputs[1]) if len(node.inputs) > 1 and node.inputs[1] else np.zeros(0, np.int64)
    if shape is None or given is None:
        return None
    if not given.size:
        return [] if node.attrs.get("noop_with_empty_axes", 0) else list(range(len(shape)))
    return sorted(int(a) % len(shape) for a in given)


def _keepdims(node: Node) -> int:
    return int(node.attrs.get("keepdims", 1))


def _without(shape: Shape, axes: Sequence[int]) -> Shape:
    return tuple(d for i, d in enumerate(shape) if i not in axes)


def _with_ones(shape: Shape, axes: Sequence[int]) -> Shape:
    return tuple(1 if i in axes else d for i, d in enumerate(shape))


MOVES: Rules = {
    **dict.fromkeys(RESHAPING, (in_shape, reduced_in_shape, reshaped_twice)),
    **dict.fromkeys(_OF_REDUCTIONS, (reduced_over_nothing, reduced_twice)),
    "Reshape": (in_shape, reduced_in_shape, reshaped_twice, by_known_shape),
    "Expand": (in_shape,),
    "Transpose": (transposed,),
    "Slice": (whole_slice,),
    "Pad": (nothing_around,),
}
