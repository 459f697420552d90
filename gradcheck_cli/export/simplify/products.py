"""Products of matrices with what is done to their operands and results, as one Gemm each.

Gemm takes matrices and its factors are float32, so that a number goes in only where it is one.  Sums of products are
taken in the order of the runtime either way: values stay up to rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gradcheck_cli.export.simplify.draft import Draft, Rules
from gradcheck_cli.export.simplify.shapes import Shape
from gradcheck_cli.graph import Node, TensorType

_DTYPES = {"float16", "float32", "float64"}  # that Gemm has kernels for
_SWAPPED = (1, 0)


def with_transposed(node: Node, at: Draft) -> Node | None:
    """A x^T: Gemm reads an operand transposed; where nothing else needs the transposed one."""
    if not _of_matrices(node, at):
        return None
    for i, flag in enumerate(("transA", "transB")):
        name = node.inputs[i]
        inner = at.node(name, "Transpose")
        if inner is not None and inner.attrs.get("perm", _SWAPPED) == _SWAPPED and at.read_only_by(name, _takes):
            inputs = (*node.inputs[:i], inner.inputs[0], *node.inputs[i + 1 :])
            return _gemm(node, inputs, {**node.attrs, flag: 1 - node.attrs.get(flag, 0)})
    return None


def transposed_product(node: Node, at: Draft) -> Node | None:
    """(A B)^T is B^T A^T."""
    inner = at.sole(node.inputs[0], "MatMul", "Gemm")
    if (
        inner is None
        or len(inner.inputs) > 2
        or not _of_matrices(inner, at)
        or node.attrs.get("perm", _SWAPPED) != _SWAPPED
    ):
        return None
    flags = {"transA": 1 - inner.attrs.get("transB", 0), "transB": 1 - inner.attrs.get("transA", 0)}
    return _gemm(node, inner.inputs[::-1], {**inner.attrs, **flags})


def plus(node: Node, at: Draft) -> Node | None:
    """A B + C and A B - C are one Gemm, and so is C - A B."""
    a, b = node.inputs
    for product, other, first in ((a, b, True), (b, a, False)) if a != b else ():
        inner = at.sole(product, "MatMul", "Gemm")
        if inner is None or len(inner.inputs) > 2 or not _of_matrices(inner, at) or not _fits(other, product, node, at):
            continue
        signs = {} if node.op == "Add" else {"beta": -1.0} if first else {"alpha": -inner.attrs.get("alpha", 1.0)}
        return _gemm(node, (*inner.inputs, other), {**inner.attrs, **signs})
    return None


def times(node: Node, at: Draft) -> Node | None:
    """c (A B) with a number c that float32 holds, and -(A B)."""
    a, *rest = node.inputs
    pairs = [(a, rest[0]), (rest[0], a)] if rest else [(a, None)]
    for product, scale in pairs:
        inner = at.sole(product, "MatMul", "Gemm")
        c = -1.0 if scale is None else at.uniform(scale)
        if inner is None or c is None or len(inner.inputs) > 2 or not _of_matrices(inner, at):
            continue
        alpha = float(c) * inner.attrs.get("alpha", 1.0)
        if at.same(product, node.outputs[0]) and alpha and np.isfinite(alpha) and float(np.float32(alpha)) == alpha:
            return _gemm(node, inner.inputs, {**inner.attrs, "alpha": alpha})
    return None


def summed(node: Node, at: Draft) -> Node | None:
    """The sum of A^T B over stacks of matrices is one product of the rows of all: nothing is made for each of them."""
    inner = at.sole(node.inputs[0], "MatMul")
    left = None if inner is None else at.node(inner.inputs[0], "Transpose")
    axes = at.value(node.inputs[1]) if len(node.inputs) > 1 else None
    if inner is None or left is None or axes is None or node.attrs.get("keepdims", 1):
        return None
    a, b = left.inputs[0], inner.inputs[1]
    shapes = [at.shape(a), at.shape(b)]
    if not _are_stacks(shapes, at.dtype(a)) or not _swaps_last(left, len(shapes[0] or ())):
        return None
    if sorted(axes % len(shapes[0] or ())) != list(range(len(shapes[0] or ()) - 2)):
        return None
    return _gemm(node, (_rows(a, at), _rows(b, at)), {"transA": 1})


def _are_stacks(shapes: Sequence[Shape | None], dtype: np.dtype[Any] | None) -> bool:
    """Stacks of equally many matrices with equally many rows, of known widths."""
    a, b = shapes
    known = a is not None and b is not None and len(a) > 2 and None not in a[:-1] and a[:-1] == b[:-1]
    wide = known and all(isinstance(s[-1], int) and s[-1] > 0 for s in shapes if s)
    return wide and dtype is not None and dtype.name in _DTYPES


def _swaps_last(node: Node, rank: int) -> bool:
    return node.attrs.get("perm") == (*range(rank - 2), rank - 1, rank - 2)


def _rows(name: str, at: Draft) -> str:
    """All rows of a stack of matrices as one matrix."""
    width = (at.shape(name) or (0,))[-1]
    declared = TensorType(at.dtype(name), (None, width))
    return at.add("Reshape", (name, at.constant(np.array([-1, width], np.int64))), declared, {}, name)


def _gemm(node: Node, inputs: tuple[str, ...], attrs: dict[str, Any]) -> Node:
    """A Gemm in the place of a node, without attributes that have their defaults."""
    defaults = {"transA": 0, "transB": 0, "alpha": 1.0, "beta": 1.0}
    kept = {name: value for name, value in attrs.items() if name in defaults and value != defaults[name]}
    return replace(node, op="Gemm", inputs=inputs, attrs=kept)


def _takes(name: str, reader: Node, at: Draft) -> bool:
    """A node can read the tensor transposed."""
    product = reader.op in ("MatMul", "Gemm") and not reader.domain
    return product and name in reader.inputs[:2] and name not in reader.inputs[2:] and _of_matrices(reader, at)


def _of_matrices(node: Node, at: Draft) -> bool:
    """Both operands are matrices, of floats that Gemm takes."""
    shapes, dtype = [at.shape(name) for name in node.inputs[:2]], at.dtype(node.inputs[0])
    return all(s is not None and len(s) == 2 for s in shapes) and dtype is not None and dtype.name in _DTYPES


def _fits(c: str, product: str, node: Node, at: Draft) -> bool:
    """A term broadcasts to the product, not the other way round."""
    shape, full = at.shape(c), at.shape(product)
    if shape is None or full is None or not at.same(product, node.outputs[0]):
        return False
    return len(shape) <= 2 and all(d in (1, f) for d, f in zip(shape[::-1], full[::-1], strict=False))


PRODUCTS: Rules = {
    "ReduceSum": (summed,),
    "MatMul": (with_transposed,),
    "Gemm": (with_transposed,),
    "Transpose": (transposed_product,),
    "Add": (plus,),
    "Sub": (plus,),
    "Mul": (times,),
    "Neg": (times,),
}
