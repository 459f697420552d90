"""Products: MatMul, Gemm, and Einsum, sums of products by an equation.

An equation is made explicit when a node is bound: letters alone, no ellipsis, and the term of the result.  A
gradient is then the equation with the result and one operand exchanged.
"""

from __future__ import annotations

import itertools
import string
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np

from gradcheck_cli import native
from gradcheck_cli.autodiff import symbolic as sym
from gradcheck_cli.autodiff.tape import Var
from gradcheck_cli.errors import ModelError, counted
from gradcheck_cli.graph import Array
from gradcheck_cli.op import Op, box_rules, composite, trained
from gradcheck_cli.op.batching import Kernel, Operands, blank, dtype_of, multiplied, raised
from gradcheck_cli.op.sparsity import EvaluatedNode, Sets, products
from gradcheck_cli.ops.index import along
from gradcheck_cli.ops.reduce import total

_BLOCK = 4 << 20  # bytes of a narrower matrix that are widened at a time
_MOST = 64  # operands of Einsum


def matmul(a: Array, b: Array) -> Array:
    """The product of stacks of matrices; an operand of rank 1 is a row on the left, a column on the right."""
    if b.ndim == 2 and a.ndim > 1 and b.nbytes > _BLOCK and b.dtype != np.result_type(a, b):
        return _by_blocks(a, b)
    return native.matmul(a, b)


def _by_blocks(a: Array, b: Array) -> Array:
    """The product with a large matrix in a narrower dtype, of which one block at a time is widened."""
    count = -(-b.nbytes // _BLOCK)
    if b.strides[0] < b.strides[1]:
        return np.concatenate([native.matmul(a, part) for part in np.array_split(b, count, axis=1)], axis=-1)
    edges = np.linspace(0, b.shape[0], count + 1).astype(int)
    parts = (native.matmul(a[..., i:j], b[i:j]) for i, j in itertools.pairwise(edges))
    return reduce(lambda total, part: np.add(total, part, out=total), parts)


def matmul_stack(kernel: Kernel, operands: Operands, probed: Any, metadata: Any) -> Any:
    """The batching rule: operands of rank 1 become matrices first, so that the probe axis is a batch axis."""
    a, b = operands
    row, column = a.ndim - probed[0] == 1, b.ndim - probed[1] == 1
    a, b = (a[..., None, :] if row else a), (b[..., None] if column else b)
    rank = max(a.ndim - probed[0], b.ndim - probed[1])
    a, b = (raised(x, rank) if p else x for x, p in zip((a, b), probed, strict=True))
    y = kernel(a, b)
    y = y[..., 0, :] if row else y
    return y[..., 0] if column else y


def matmul_vjp(ct: Var, y: Var, a: Var, b: Var) -> tuple[Var | None, Var | None]:
    """ct b^T and a^T ct; batch axes that broadcast are summed by the product, or by the backward pass."""
    if a.ndim == 1 and b.ndim == 1:
        return ct * b, ct * a
    if a.ndim == 1:
        row = sym.unsqueeze(ct, (-2,))
        return sym.squeeze(sym.matmul(row, sym.swap(b)), (-2,)), sym.unsqueeze(a, (-1,)) * row
    if b.ndim == 1:
        column = sym.unsqueeze(ct, (-1,))
        return column * b, sym.squeeze(sym.matmul(sym.swap(a), column), (-1,))
    ct_a = sym.matmul(ct, sym.swap(b)) if sym.wanted(a) else None
    if not sym.wanted(b):
        return ct_a, None
    # One product of all rows: one for each matrix of the batch would take that many times its memory.
    if a.ndim > b.ndim == 2 and b.size:
        a, ct = (sym.reshape(x, (-1, x.shape[-1])) for x in (a, ct))
    return ct_a, sym.matmul(sym.swap(a), ct)


def gemm(a: Var, b: Var, c: Var | None = None, *, alpha: float = 1.0, beta: float = 1.0, transA: int = 0,
         transB: int = 0) -> Var:  # fmt: skip
    """alpha A B + beta C, either matrix transposed first."""
    y = sym.matmul(sym.swap(a) if transA else a, sym.swap(b) if transB else b)
    y = y if alpha == 1 else y * alpha
    return y if c is None else y + (c if beta == 1 else c * beta)


def einsum(*xs: Array, equation: str) -> Array:
    """Sums of products by an equation, one operand after the other."""
    terms, result = split_equation(equation)
    y, term = xs[0], terms[0]
    for i in range(1, len(xs)):
        y, term = _product(y, term, xs[i], terms[i], {*result, *"".join(terms[i + 1 :])})
    y, term = _summed(y, term, set(result))
    return y.transpose([term.index(c) for c in result])


def split_equation(equation: str) -> tuple[list[str], str]:
    """The terms of the operands and that of the result."""
    left, _, result = equation.partition("->")
    return left.split(","), result


def _product(x: Array, s: str, y: Array, t: str, needed: set[str]) -> tuple[Array, str]:
    """The product of two operands and its term, summed over letters that are not needed any more."""
    x, s = _summed(x, s, needed | set(t))
    y, t = _summed(y, t, needed | set(s))
    x, s, y, t = *_narrowed(x, s, y, t), *_narrowed(y, t, x, s)
    x, s = _summed(x, s, needed | set(t))
    y, t = _summed(y, t, needed | set(s))
    batch = [c for c in s if c in t and c in needed]
    inner = [c for c in s if c in t and c not in needed]
    left, right = [c for c in s if c not in t], [c for c in t if c not in s]
    if inner:
        a, b = _matrix(x, s, batch, left, inner), _matrix(y, t, batch, inner, right)
        z = native.matmul(a, b)
    else:
        z = _matrix(x, s, batch, left, []) * _matrix(y, t, batch, [], right)
    sizes = {**dict(zip(t, y.shape, strict=True)), **dict(zip(s, x.shape, strict=True))}
    term = [*batch, *left, *right]
    return z.reshape([sizes[c] for c in term]), "".join(term)


def _summed(x: Array, term: str, needed: set[str]) -> tuple[Array, str]:
    """The diagonal for repeated letters, and the sum over letters that are not needed."""
    for c in dict.fromkeys(term):
        while term.count(c) > 1:
            first, last = term.index(c), term.rindex(c)
            x = np.diagonal(x, axis1=first, axis2=last)
            term = term[:first] + term[first + 1 : last] + term[last + 1 :] + c
    gone = tuple(i for i, c in enumerate(term) if c not in needed)
    return (total(x, gone, False).astype(x.dtype, copy=False) if gone else x), "".join(c for c in term if c in needed)


def _narrowed(x: Array, s: str, y: Array, t: str) -> tuple[Array, str]:
    """x without axes of length 1 that broadcast against longer ones of y."""
    gone = [i for i, c in enumerate(s) if x.shape[i] == 1 and c in t and y.shape[t.index(c)] != 1]
    return np.squeeze(x, tuple(gone)), "".join(c for i, c in enumerate(s) if i not in gone)


def _matrix(x: Array, term: str, *groups: Sequence[str]) -> Array:
    """x with one axis for each group of letters."""
    moved = x.transpose([term.index(c) for group in groups for c in group])
    sizes = [[x.shape[term.index(c)] for c in group] for group in groups]
    return moved.reshape([int(np.prod(group)) for group in sizes])


def einsum_outline(kernel: Kernel, operands: Operands, metadata: Mapping[str, Any]) -> Array:
    """The outline rule: the length of each letter of the result."""
    terms, result = split_equation(metadata["equation"])
    pairs = [(c, d) for term, x in zip(terms, operands, strict=True) for c, d in zip(term, x.shape, strict=True)]
    sizes = {**dict(pairs), **{c: d for c, d in pairs if d != 1}}
    return blank([sizes[c] for c in result], dtype_of(kernel, operands, metadata))


def bind_einsum(metadata: dict[str, Any], *xs: Array) -> dict[str, Any]:
    """Metadata with the equation without spaces and ellipses, and with its result written out."""
    left, arrow, result = metadata["equation"].replace(" ", "").partition("->")
    terms = left.split(",")
    if any(t.count("...") > 1 for t in (*terms, result)):
        raise ModelError(f"a term of {metadata['equation']!r} has two ellipses")
    if len(terms) != len(xs) or len(xs) > _MOST:
        raise ModelError(f"equation {metadata['equation']!r} has {len(terms)} terms for {len(xs)} operands")
    widths = [x.ndim - len(t.replace("...", "")) if "..." in t else 0 for t, x in zip(terms, xs, strict=True)]
    dots = _unused(left + result, max(widths))
    terms = [t.replace("...", dots[len(dots) - max(w, 0) :]) for t, w in zip(terms, widths, strict=True)]
    letters = "".join(terms)
    once = sorted(c for c in set(letters) if letters.count(c) == 1 and c not in dots)
    result = result.replace("...", dots) if arrow else dots + "".join(once)
    _check(terms, result, xs)
    return {"equation": f"{','.join(terms)}->{result}"}


def _unused(text: str, count: int) -> str:
    """Letters that an equation does not use."""
    free = [c for c in string.ascii_letters if c not in text]
    if len(free) < count:
        raise ModelError(f"an equation has {len(string.ascii_letters)} letters at most")
    return "".join(free[: max(count, 0)])


def _check(terms: Sequence[str], result: str, xs: Sequence[Array]) -> None:
    equation = f"{','.join(terms)}->{result}"
    sizes: dict[str, int] = {}
    letters = "".join((*terms, result, "a")).isalpha()
    if not letters or len(set(result)) < len(result) or set(result) - set("".join(terms)):
        raise ModelError(f"equation {equation!r} is not valid")
    for term, x in zip(terms, xs, strict=True):
        if len(term) != x.ndim:
            raise ModelError(f"term {term!r} of {equation!r} does not fit an operand of {counted(x.ndim, 'dimension')}")
        for c, length in zip(term, x.shape, strict=True):
            if length != x.shape[term.index(c)] or (sizes.setdefault(c, length) not in (length, 1) and length != 1):
                raise ModelError(f"{c!r} in {equation!r} has lengths {sizes[c]} and {length}")
            sizes[c] = length if sizes[c] == 1 else sizes[c]


def einsum_stack(kernel: Kernel, operands: Operands, probed: Sequence[bool], metadata: Any) -> Any:
    """The batching rule: the probe axis is one more letter of the operands that have it."""
    terms, result = split_equation(metadata["equation"])
    letter = _unused(metadata["equation"], 1)
    terms = [letter + t if p else t for t, p in zip(terms, probed, strict=True)]
    return kernel(*operands, equation=f"{','.join(terms)}->{letter}{result}")


def einsum_vjp(ct: Var, y: Var, *xs: Var, equation: str) -> tuple[Var, ...]:
    """For each operand the equation with the result in its place."""
    terms, result = split_equation(equation)
    return tuple(_operand_ct(ct, result, xs, terms, i) for i in range(len(xs)))


def _operand_ct(ct: Var, result: str, xs: Sequence[Var], terms: Sequence[str], i: int) -> Var:
    """Letters that only this operand has are repeated, those that broadcast summed, repeated ones put on a diagonal."""
    others = [j for j in range(len(xs)) if j != i]
    pairs = [(result, ct), *((terms[j], xs[j]) for j in others)]
    sizes = {c: max(x.shape[t.index(c)] for t, x in pairs if c in t) for c in "".join(t for t, _ in pairs)}
    dims = dict(zip(terms[i], xs[i].shape, strict=True))
    direct = [c for c in dims if c in sizes and (sizes[c] == 1 or dims[c] != 1)]
    equation = f"{','.join(t for t, _ in pairs)}->{''.join(direct)}"
    product = ct.tape.apply("Einsum", *(x for _, x in pairs), equation=equation)
    found = dict(zip(direct, product.shape, strict=True))
    return _placed(product, found, terms[i], xs[i].shape)


def _placed(x: Var, found: dict[str, int], term: str, shape: tuple[int, ...]) -> Var:
    """x, which has an axis for some letters of a term, as a tensor of that term, zero off its diagonals."""
    firsts = [term.index(c) for c in term]
    x = sym.reshape(x, [found.get(c, 1) if firsts[i] == i else 1 for i, c in enumerate(term)])
    x = sym.expand(x, [d if firsts[i] == i else 1 for i, d in enumerate(shape)])
    for i, first in enumerate(firsts):
        if i != first:
            one, other = (along(x, shape[i], axis, len(shape)) for axis in (first, i))
            x = sym.where(sym.equal(one, other), x, 0)
    return x


def einsum_sparsity(sets: Sets, node: EvaluatedNode) -> Array:
    """The sparsity rule: all entries that share the letters of the result; those on a diagonal are not told apart."""
    terms, result = split_equation(node.metadata["equation"])
    found = [_for_result(s, t, result) for s, t in zip(sets, terms, strict=True) if s is not None]
    return reduce(np.bitwise_or, found)


def _for_result(sets: Array, term: str, result: str) -> Array:
    """The union over letters that the result lacks or that are repeated, with the axes of the result."""
    kept = [c for c in result if term.count(c) == 1]
    gone = tuple(1 + i for i, c in enumerate(term) if c not in kept)
    union = np.bitwise_or.reduce(sets, axis=gone) if gone else sets
    order = [c for c in term if c in kept]
    moved = union.transpose(0, *(1 + order.index(c) for c in kept))
    lengths = dict(zip(kept, moved.shape[1:], strict=True))
    return moved.reshape(len(sets), *(lengths.get(c, 1) for c in result))


MATMUL: list[Op] = [
    Op("MatMul", matmul, matmul_vjp, matmul_stack, linear=((0, 1),), sparsity=products, boxes=box_rules.products,
       outline=multiplied,
       widens=True, channels=-1, cost="products"),
    composite("Gemm", gemm, roles=trained(0, 1, 2), channels=-1),
    Op("Einsum", einsum, einsum_vjp, einsum_stack, bind=bind_einsum, linear=(tuple(range(_MOST)),),
       sparsity=einsum_sparsity, outline=einsum_outline, cost="products"),
]  # fmt: skip
