"""Copies that need not be made: what broadcasts in a node anyway, and one entry many times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gradcheck_cli.export.simplify.draft import Draft, Rules, is_one
from gradcheck_cli.export.simplify.shapes import BROADCASTING, RESHAPING, Shape
from gradcheck_cli.graph import Array, Node, TensorType

_OPERANDS = 16  # that a node may have, so that all of them are gone through in no time
_STEPS = 8  # through which a copied entry is looked for


def expanded_twice(node: Node, at: Draft) -> Node | None:
    """Of two Expands in a row the last counts, if it says the whole shape."""
    inner, value = at.node(node.inputs[0], "Expand"), at.value(node.inputs[1])
    if inner is None or value is None or tuple(value.tolist()) != at.shape(node.outputs[0]):
        return None
    return replace(node, inputs=(inner.inputs[0], node.inputs[1]))


def expanded_by_constants(node: Node, at: Draft) -> Node | None:
    """An Expand to computed sizes is one to constants where the sizes that are open are those of the tensor."""
    before, after = at.shape(node.inputs[0]), at.shape(node.outputs[0])
    if before is None or after is None or at.value(node.inputs[1]) is not None:
        return None
    aligned = (*[1] * (len(after) - len(before)), *before)
    target = [new if isinstance(new, int) else 1 if new is not None and new == old else None
              for old, new in zip(aligned, after, strict=True)]  # fmt: skip
    return None if None in target else replace(node, inputs=(node.inputs[0], at.constant(np.array(target, np.int64))))


def unexpanded(node: Node, at: Draft) -> Node | None:
    """What broadcasts in a node need not be copied before it, if the other operands have the shape of the result."""
    out = at.shape(node.outputs[0])
    if out is None or len(node.inputs) > _OPERANDS:
        return None
    for i, name in enumerate(node.inputs):
        source = _narrower(name, at)
        if source is None:
            continue
        small = source.shape if isinstance(source, np.ndarray) else at.shape(source)
        others = [small, *(at.shape(n) for j, n in enumerate(node.inputs) if j != i)]
        if _cover(others, out):
            new = source if isinstance(source, str) else at.constant(source)
            return replace(node, inputs=(*node.inputs[:i], new, *node.inputs[i + 1 :]))
    return None


def copied_last(node: Node, at: Draft) -> Node | None:
    """What is done to the copies of one entry is done to that entry, and the result copied."""
    inner = at.sole(node.inputs[0], "Expand")
    if inner is None or not is_one(inner.inputs[0], at):
        return None
    declared = TensorType(at.dtype(node.outputs[0]), at.shape(inner.inputs[0]))
    one = at.add(node.op, inner.inputs[:1], declared, node.attrs, node.outputs[0])
    return replace(node, op="Expand", inputs=(one, inner.inputs[1]), attrs={})


def _narrower(name: str, at: Draft) -> str | Array | None:
    """A tensor of fewer entries, or axes, that broadcasts to this one."""
    number = at.uniform(name)
    if number is not None:
        value = at.value(name)
        return None if value is None or value.ndim == 0 else np.asarray(number, value.dtype)
    if not is_one(name, at) and (one := _entry(name, at)) is not None:
        return one
    node = at.node(name, "Expand", "ConstantOfShape", *RESHAPING)
    if node is None or node.op == "Expand":
        return None if node is None else node.inputs[0]
    if node.op == "ConstantOfShape":
        return node.attrs.get("value", np.zeros(1, np.float32)).reshape(())
    before, after = at.shape(node.inputs[0]), at.shape(name)
    if before is None or after is None or None in before:
        return None
    return node.inputs[0] if after == (*[1] * (len(after) - len(before)), *before) else None


def _cover(shapes: Sequence[Shape | None], out: Shape) -> bool:
    """Tensors of these shapes broadcast to the shape `out`, which no dimension of them exceeds."""
    known = [shape[::-1] for shape in shapes if shape is not None]
    return all(
        dim is not None and any(i < len(shape) and shape[i] == dim for shape in known)
        for i, dim in enumerate(out[::-1])
    )


def _entry(name: str, at: Draft) -> str | None:
    """The tensor of one entry whose copies a tensor holds."""
    for _ in range(_STEPS):
        node = at.node(name, "Expand", "Transpose", *RESHAPING)
        if node is None:
            return None
        name = node.inputs[0]
        if is_one(name, at):
            return name
    return None


COPIES: Rules = {
    **dict.fromkeys(BROADCASTING, (unexpanded,)),
    **dict.fromkeys(("Neg", "Reciprocal", "Sqrt", "Exp", "Cast"), (copied_last,)),
    "Expand": (expanded_twice, expanded_by_constants),
}
