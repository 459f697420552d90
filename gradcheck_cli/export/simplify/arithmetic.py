"""Rules for arithmetic that does nothing or takes two steps for one, and for matrix products that fit into one Gemm.

Values of arithmetic stay the same to the bit unless a rule says otherwise.  Products with zero stay, since 0 times
infinity is NaN.  Matrix products stay the same up to rounding, since runtimes choose the order of sums.  The factors of
a Gemm are float32, so a number goes in only if it is one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np

from gradcheck_cli.export.simplify.draft import RESHAPING, Draft, NotKnown, Rules, Shape, known
from gradcheck_cli.graph import Array, Node, TensorType
from gradcheck_cli.op import DTYPES

_GEMM_DTYPES = {"float16", "float32", "float64"}  # those of runtimes' kernels
_SWAPPED = (1, 0)


def passed_on(node: Node, at: Draft) -> str | None:
    """Identity, and Sum, Mean, Max or Min of one tensor, are that tensor."""
    return node.inputs[0] if len(node.inputs) == 1 else None


def sum_of_two(node: Node, at: Draft) -> Node | None:
    """A Sum of two tensors is an Add, which more rules know."""
    return replace(node, op="Add") if len(node.inputs) == 2 else None


def without_cast(node: Node, at: Draft) -> str | None:
    """A Cast to the dtype that a tensor has is that tensor."""
    dtype = at.dtype(node.inputs[0])
    return node.inputs[0] if dtype is not None and DTYPES.get(node.attrs["to"]) == dtype else None


def without_one(node: Node, at: Draft) -> str | None:
    """x * 1 and x / 1 are x, whatever x is."""
    return next((x for x, c in _sides(node) if at.uniform(c) == 1 and _alone(x, c, node, at)), None)


def without_zero(node: Node, at: Draft) -> str | None:
    """x + 0 and x - 0 are x, except for the sign of a zero, which sums do not preserve."""
    return next((x for x, c in _sides(node) if at.uniform(c) == 0 and _alone(x, c, node, at)), None)


def twice(node: Node, at: Draft) -> str:
    """-(-x) is x, and not (not x) is x."""
    return known(at.node(node.inputs[0], node.op)).inputs[0]


def negative_term(node: Node, at: Draft) -> Node | None:
    """a + (-b) is a - b, and a - (-b) is a + b."""
    other = "Sub" if node.op == "Add" else "Add"
    for a, b in _sides(node):
        if a != b and (inner := at.node(b, "Neg")) is not None:
            return replace(node, op=other, inputs=(a, inner.inputs[0]))
    return None


def negative_difference(node: Node, at: Draft) -> Node:
    """-(a - b) is b - a, except for the sign of a zero."""
    return replace(node, op="Sub", inputs=known(at.sole(node.inputs[0], "Sub")).inputs[::-1])


def negative_factors(node: Node, at: Draft) -> Node:
    """(-a) (-b) is a b, and (-a) / (-b) is a / b."""
    return replace(node, inputs=tuple(known(at.node(name, "Neg")).inputs[0] for name in node.inputs))


def sign_taken_in(node: Node, at: Draft) -> Node | None:
    """(-a) b is a (-b), and (-a) / b is a / (-b), if a constant in b can take the sign."""
    for i, name in enumerate(node.inputs):
        inner = at.node(name, "Neg")
        other = None if inner is None else scaled(node.inputs[1 - i], Fraction(-1), at)
        if inner is not None and other is not None:
            return replace(node, inputs=(inner.inputs[0], other) if i == 0 else (other, inner.inputs[0]))
    return None


def factor_taken_in(node: Node, at: Draft) -> str | None:
    """c (a x) is (c a) x up to rounding, also for quotients, -x and x + x: one constant takes in the other."""
    x, factor = _factor(node, at)
    return scaled(x, factor, at)


def scaled(name: str, factor: Fraction, at: Draft, depth: int = 4) -> str | None:
    """The name of a tensor times a number, if a constant that it is computed from can take in the number."""
    value = at.value(name)
    if value is not None:
        return _rounded(value, _exactly(value), factor, at)
    node = at.sole(name, "Mul", "Div", "Expand", *RESHAPING)
    if node is None or not depth:
        return None
    for i, inner in enumerate(node.inputs[: 2 if node.op in ("Mul", "Div") else 1]):
        own = 1 / factor if node.op == "Div" and i == 1 else factor
        if (found := scaled(inner, own, at, depth - 1)) is not None:
            inputs = (*node.inputs[:i], found, *node.inputs[i + 1 :])
            return at.add(node.op, inputs, at.types.get(name, TensorType()), node.attrs, name)
    return None


def quotient(node: Node, at: Draft) -> Node | None:
    """a (1 / b) is a / b and a / (1 / b) is a b, with one rounding less, if nothing else needs 1 / b."""
    for a, b in _sides(node):
        if a != b and (inner := at.sole(b, "Reciprocal")) is not None:
            return replace(node, op="Div" if node.op == "Mul" else "Mul", inputs=(a, inner.inputs[0]))
    return None


def chosen_the_other_way(node: Node, at: Draft) -> Node:
    """Turns Where(not c, x, y) into Where(c, y, x)."""
    return replace(node, inputs=(known(at.node(node.inputs[0], "Not")).inputs[0], *node.inputs[:0:-1]))


def chosen_either_way(node: Node, at: Draft) -> str | None:
    """Turns Where(c, x, x) into x."""
    _, x, y = node.inputs
    return x if x == y and at.same(x, node.outputs[0]) else None


def beyond_a_threshold(node: Node, at: Draft) -> Node | None:
    """Turns Where(x > c, x, 0) into one pass over x, in float32: ThresholdedRelu; runtimes have no other."""
    x, zero = node.inputs[1:]
    bound, number = known(at.sole(node.inputs[0], "Greater")).inputs
    if bound != x or at.uniform(zero) != 0 or not at.same(x, node.outputs[0]) or at.dtype(x) != np.float32:
        return None
    alpha = float(known(at.uniform(number)))
    return replace(node, op="ThresholdedRelu", inputs=(x,), attrs={"alpha": alpha}) if np.isfinite(alpha) else None


def _sides(node: Node) -> Iterator[tuple[str, str]]:
    """The two operands, in both orders if the operator commutes."""
    a, b = node.inputs
    yield a, b
    if node.op in ("Add", "Mul"):
        yield b, a


def _alone(x: str, c: str, node: Node, at: Draft) -> bool:
    """True if the result has the shape of x, so that the constant c does not broadcast it."""
    value = at.value(c)
    return (value is not None and value.ndim == 0) or at.same(x, node.outputs[0])


def _factor(node: Node, at: Draft) -> tuple[str, Fraction]:
    """A tensor, and the number that a node multiplies it by."""
    if node.op == "Neg":
        return node.inputs[0], Fraction(-1)
    if node.op == "Add" and node.inputs[0] == node.inputs[1]:
        return node.inputs[0], Fraction(2)
    for x, c in _sides(node) if node.op != "Add" else ():
        value = at.value(c)
        number = _exactly(value) if value is not None and _alone(x, c, node, at) else None
        if number is not None:
            return x, number if node.op == "Mul" else 1 / number
    raise NotKnown


def _exactly(value: Array) -> Fraction | None:
    """The number of a constant with one entry, if it is normal and not 0: products with it lose one rounding only."""
    if value.size != 1 or value.dtype.kind != "f":
        return None
    limits, number = np.finfo(value.dtype), float(value.reshape(()))
    return Fraction(number) if limits.tiny <= abs(number) <= limits.max else None


def _rounded(like: Array, number: Fraction | None, factor: Fraction, at: Draft) -> str | None:
    """A constant times a factor; None if the product is not a normal number of its dtype."""
    limits = np.finfo(like.dtype) if number is not None else None
    if number is None or limits is None or not float(limits.tiny) <= abs(number * factor) <= float(limits.max):
        return None
    return at.constant(np.full(like.shape, float(number * factor), like.dtype))


def with_transposed(node: Node, at: Draft) -> Node | None:
    """A B^T is a Gemm that reads B transposed, if nothing else needs B^T."""
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
    inner = known(_product(node.inputs[0], at))
    if node.attrs.get("perm", _SWAPPED) != _SWAPPED:
        return None
    flags = {"transA": 1 - inner.attrs.get("transB", 0), "transB": 1 - inner.attrs.get("transA", 0)}
    return _gemm(node, inner.inputs[::-1], {**inner.attrs, **flags})


def plus(node: Node, at: Draft) -> Node | None:
    """A B + C, A B - C and C - A B are one Gemm."""
    a, b = node.inputs
    for product, other, first in ((a, b, True), (b, a, False)) if a != b else ():
        inner = _product(product, at)
        if inner is not None and _fits(other, product, node, at):
            signs = {} if node.op == "Add" else {"beta": -1.0} if first else {"alpha": -inner.attrs.get("alpha", 1.0)}
            return _gemm(node, (*inner.inputs, other), {**inner.attrs, **signs})
    return None


def times(node: Node, at: Draft) -> Node | None:
    """c (A B) and -(A B) are one Gemm, if c is a float32 number."""
    a, *rest = node.inputs
    pairs = [(a, rest[0]), (rest[0], a)] if rest else [(a, None)]
    for product, scale in pairs:
        inner = _product(product, at)
        c = -1.0 if scale is None else at.uniform(scale)
        if inner is None or c is None:
            continue
        alpha = float(c) * inner.attrs.get("alpha", 1.0)
        if at.same(product, node.outputs[0]) and alpha and np.isfinite(alpha) and float(np.float32(alpha)) == alpha:
            return _gemm(node, inner.inputs, {**inner.attrs, "alpha": alpha})
    return None


def summed(node: Node, at: Draft) -> Node | None:
    """The sum of A^T B over stacks of matrices is one product of two matrices with the rows of all."""
    inner = known(at.sole(node.inputs[0], "MatMul"))
    left = known(at.node(inner.inputs[0], "Transpose"))
    a, b = left.inputs[0], inner.inputs[1]
    shapes, axes = [known(at.shape(a)), known(at.shape(b))], at.value(node.inputs[1]) if len(node.inputs) > 1 else None
    front = list(range(len(shapes[0]) - 2))
    if not _are_stacks(shapes, at.dtype(a)) or left.attrs.get("perm") != (*front, len(front) + 1, len(front)):
        return None
    if node.attrs.get("keepdims", 1) or sorted(known(axes) % len(shapes[0])) != front:
        return None
    return _gemm(node, (_rows(a, at), _rows(b, at)), {"transA": 1})


def _are_stacks(shapes: Sequence[Shape], dtype: np.dtype[Any] | None) -> bool:
    """True for stacks of equally many matrices with equally many rows and known widths."""
    a, b = shapes
    alike = len(a) > 2 and None not in a[:-1] and a[:-1] == b[:-1]
    wide = alike and all(isinstance(s[-1], int) and s[-1] > 0 for s in shapes)
    return wide and dtype is not None and dtype.name in _GEMM_DTYPES


def _rows(name: str, at: Draft) -> str:
    """The matrix of all rows of a stack of matrices."""
    width = (at.shape(name) or (0,))[-1]
    declared = TensorType(at.dtype(name), (None, width))
    return at.add("Reshape", (name, at.constant(np.array([-1, width], np.int64))), declared, {}, name)


def _gemm(node: Node, inputs: tuple[str, ...], attrs: dict[str, Any]) -> Node:
    """A Gemm in place of a node, without attributes that have their defaults."""
    defaults = {"transA": 0, "transB": 0, "alpha": 1.0, "beta": 1.0}
    kept = {name: value for name, value in attrs.items() if name in defaults and value != defaults[name]}
    return replace(node, op="Gemm", inputs=inputs, attrs=kept)


def _takes(name: str, reader: Node, at: Draft) -> bool:
    """True if a node can read the tensor transposed."""
    product = reader.op in ("MatMul", "Gemm") and not reader.domain
    return product and name in reader.inputs[:2] and name not in reader.inputs[2:] and _of_matrices(reader, at)


def _product(name: str, at: Draft) -> Node | None:
    """The product of two matrices that a tensor is, if only one node reads the tensor."""
    node = at.sole(name, "MatMul", "Gemm")
    return node if node is not None and len(node.inputs) == 2 and _of_matrices(node, at) else None


def _of_matrices(node: Node, at: Draft) -> bool:
    """True if both operands are matrices of a dtype that Gemm takes."""
    shapes, dtype = [at.shape(name) for name in node.inputs[:2]], at.dtype(node.inputs[0])
    return all(s is not None and len(s) == 2 for s in shapes) and dtype is not None and dtype.name in _GEMM_DTYPES


def _fits(c: str, product: str, node: Node, at: Draft) -> bool:
    """True if a term broadcasts to the product, and the product keeps its shape."""
    shape, full = at.shape(c), at.shape(product)
    if shape is None or full is None or not at.same(product, node.outputs[0]):
        return False
    return len(shape) <= 2 and all(d in (1, f) for d, f in zip(shape[::-1], full[::-1], strict=False))


ARITHMETIC: Rules = {
    "Identity": (passed_on,),
    "Sum": (passed_on, sum_of_two),
    "Mean": (passed_on,),
    "Max": (passed_on,),
    "Min": (passed_on,),
    "Cast": (without_cast,),
    "Add": (without_zero, negative_term, factor_taken_in),
    "Sub": (without_zero, negative_term),
    "Mul": (without_one, negative_factors, sign_taken_in, factor_taken_in, quotient),
    "Div": (without_one, negative_factors, sign_taken_in, factor_taken_in, quotient),
    "Neg": (twice, negative_difference, factor_taken_in),
    "Not": (twice,),
    "Where": (chosen_the_other_way, chosen_either_way, beyond_a_threshold),
}
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
