"""Arithmetic that does nothing, or does in two steps what takes one.

Values stay to the bit unless a rule says otherwise.  No product with zero goes away: 0 times infinity is NaN.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

import numpy as np

from gradcheck_cli.export.simplify.draft import Draft, Rules
from gradcheck_cli.export.simplify.shapes import RESHAPING
from gradcheck_cli.graph import Array, Node, TensorType
from gradcheck_cli.op import DTYPES


def passed_on(node: Node, at: Draft) -> str | None:
    """Identity, and Sum, Mean, Max or Min of one tensor, give that tensor."""
    return node.inputs[0] if len(node.inputs) == 1 else None


def sum_of_two(node: Node, at: Draft) -> Node | None:
    """A Sum of two tensors is an Add, which more rules know."""
    return replace(node, op="Add") if len(node.inputs) == 2 else None


def without_cast(node: Node, at: Draft) -> str | None:
    """A Cast to the dtype that a tensor has gives that tensor."""
    dtype = at.dtype(node.inputs[0])
    return node.inputs[0] if dtype is not None and DTYPES.get(node.attrs["to"]) == dtype else None


def without_one(node: Node, at: Draft) -> str | None:
    """x * 1 and x / 1 are x, whatever x is."""
    return next((x for x, c in _sides(node) if at.uniform(c) == 1 and _alone(x, c, node, at)), None)


def without_zero(node: Node, at: Draft) -> str | None:
    """x + 0 and x - 0 are x, but for the sign of a zero, which means nothing in a sum."""
    return next((x for x, c in _sides(node) if at.uniform(c) == 0 and _alone(x, c, node, at)), None)


def twice_negated(node: Node, at: Draft) -> str | None:
    """-(-x) is x."""
    inner = at.node(node.inputs[0], "Neg")
    return None if inner is None else inner.inputs[0]


def twice_not(node: Node, at: Draft) -> str | None:
    """Not of Not."""
    inner = at.node(node.inputs[0], "Not")
    return None if inner is None else inner.inputs[0]


def negative_term(node: Node, at: Draft) -> Node | None:
    """a + (-b) is a - b, and a - (-b) is a + b."""
    other = "Sub" if node.op == "Add" else "Add"
    for a, b in _sides(node):
        if a != b and (inner := at.node(b, "Neg")) is not None:
            return replace(node, op=other, inputs=(a, inner.inputs[0]))
    return None


def negative_difference(node: Node, at: Draft) -> Node | None:
    """-(a - b) is b - a, but for the sign of a zero."""
    inner = at.sole(node.inputs[0], "Sub")
    return None if inner is None else replace(node, op="Sub", inputs=inner.inputs[::-1])


def negative_factors(node: Node, at: Draft) -> Node | None:
    """(-a) (-b) is a b, and (-a) / (-b) is a / b."""
    found = [at.node(name, "Neg") for name in node.inputs]
    return replace(node, inputs=tuple(n.inputs[0] for n in found if n)) if all(found) else None


def sign_taken_in(node: Node, at: Draft) -> Node | None:
    """(-a) b is a (-b) where a constant in b takes the sign, and so for quotients."""
    for i, name in enumerate(node.inputs):
        inner = at.node(name, "Neg")
        other = None if inner is None else scaled(node.inputs[1 - i], Fraction(-1), at)
        if inner is not None and other is not None:
            return replace(node, inputs=(inner.inputs[0], other) if i == 0 else (other, inner.inputs[0]))
    return None


def factor_taken_in(node: Node, at: Draft) -> str | None:
    """c (a x) is (c a) x up to a rounding, and so for quotients, for -x and for x + x: one constant takes in the other."""
    x, factor = _factor(node, at)
    return None if factor is None else scaled(x, factor, at)


def scaled(name: str, factor: Fraction, at: Draft, depth: int = 4) -> str | None:
    """A tensor times a number, if a constant that it is made of, and nothing else, can take that in."""
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
    """a (1 / b) is a / b, with one rounding less, and a / (1 / b) is a b: where nothing else needs 1 / b."""
    for a, b in _sides(node):
        if a != b and (inner := at.sole(b, "Reciprocal")) is not None:
            return replace(node, op="Div" if node.op == "Mul" else "Mul", inputs=(a, inner.inputs[0]))
    return None


def chosen_the_other_way(node: Node, at: Draft) -> Node | None:
    """Where not c: the other one."""
    inner = at.node(node.inputs[0], "Not")
    return None if inner is None else replace(node, inputs=(inner.inputs[0], *node.inputs[:0:-1]))


def chosen_either_way(node: Node, at: Draft) -> str | None:
    """The same tensor on both sides of a Where is what it gives."""
    _, x, y = node.inputs
    return x if x == y and at.same(x, node.outputs[0]) else None


def _sides(node: Node) -> Iterator[tuple[str, str]]:
    """The two operands, in both orders where that makes no difference."""
    a, b = node.inputs
    yield a, b
    if node.op in ("Add", "Mul"):
        yield b, a


def _alone(x: str, c: str, node: Node, at: Draft) -> bool:
    """The result has the shape of x, whatever that of the constant c is."""
    value = at.value(c)
    return (value is not None and value.ndim == 0) or at.same(x, node.outputs[0])


def _factor(node: Node, at: Draft) -> tuple[str, Fraction | None]:
    """A tensor, and the number that a node multiplies it by."""
    if node.op == "Neg":
        return node.inputs[0], Fraction(-1)
    if node.op == "Add":
        return node.inputs[0], Fraction(2) if node.inputs[0] == node.inputs[1] else None
    for x, c in _sides(node):
        value = at.value(c)
        number = _exactly(value) if value is not None and _alone(x, c, node, at) else None
        if number is not None:
            return x, number if node.op == "Mul" else 1 / number
    return "", None


def _exactly(value: Array) -> Fraction | None:
    """The one number of a constant, if it is one of full precision and not 0: steps by it lose but a rounding."""
    if value.size != 1 or value.dtype.kind != "f":
        return None
    limits, number = np.finfo(value.dtype), float(value.reshape(()))
    return Fraction(number) if limits.tiny <= abs(number) <= limits.max else None


def _rounded(like: Array, number: Fraction | None, factor: Fraction, at: Draft) -> str | None:
    """A constant like another one, times a factor; None where it would not have its precision."""
    limits = np.finfo(like.dtype) if number is not None else None
    if number is None or limits is None or not float(limits.tiny) <= abs(number * factor) <= float(limits.max):
        return None
    return at.constant(np.full(like.shape, float(number * factor), like.dtype))


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
    "Neg": (twice_negated, negative_difference, factor_taken_in),
    "Not": (twice_not,),
    "Where": (chosen_the_other_way, chosen_either_way),
}
