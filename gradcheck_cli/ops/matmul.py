"""Products: MatMul, Gemm."""

from __future__ import annotations

import itertools
from functools import reduce
from typing import Any

import numpy as np

from gradcheck_cli import native
from gradcheck_cli.autodiff import symbolic as sym
from gradcheck_cli.autodiff.tape import Var
from gradcheck_cli.graph import Array
from gradcheck_cli.op import Op, composite
from gradcheck_cli.op import box_rules as ways
from gradcheck_cli.op.batching import Kernel, Operands
from gradcheck_cli.op.sparsity import products

_BLOCK = 4 << 20  # bytes of a matrix in narrower numbers that are widened at a time


def matmul(a: Array, b: Array) -> Array:
    """The product of stacks of matrices; an operand of rank 1 is a row on the left, a column on the right."""
    if b.ndim == 2 and a.ndim > 1 and b.nbytes > _BLOCK and b.dtype != np.result_type(a, b):
        return _by_blocks(a, b)
    return native.matmul(a, b)


def _by_blocks(a: Array, b: Array) -> Array:
    """The product with a large matrix in narrower numbers, which are never all widened: by what lies together in memory."""
    count = -(-b.nbytes // _BLOCK)
    if b.strides[0] < b.strides[1]:
        return np.concatenate([native.matmul(a, part) for part in np.array_split(b, count, axis=1)], axis=-1)
    edges = np.linspace(0, b.shape[0], count + 1).astype(int)
    parts = (native.matmul(a[..., i:j], b[i:j]) for i, j in itertools.pairwise(edges))
    return reduce(lambda total, part: np.add(total, part, out=total), parts)


def matmul_stack(kernel: Kernel, operands: Operands, probed: Any, metadata: Any) -> Any:
    """Operands of rank 1 become matrices first, so that the probe axis is a batch axis."""
    a, b = operands
    assert a is not None
    assert b is not None
    row, column = a.ndim - probed[0] == 1, b.ndim - probed[1] == 1
    a, b = (a[..., None, :] if row else a), (b[..., None] if column else b)
    rank = max(a.ndim - probed[0], b.ndim - probed[1])
    a, b = (_spread(x, rank) if p else x for x, p in zip((a, b), probed, strict=True))
    y = kernel(a, b)
    y = y[..., 0, :] if row else y
    return y[..., 0] if column else y


def _spread(x: Array, rank: int) -> Array:
    return x.reshape(x.shape[0], *(1,) * (rank + 1 - x.ndim), *x.shape[1:])


def matmul_vjp(ct: Var, y: Var, a: Var, b: Var) -> tuple[Var | None, Var | None]:
    """The product with the other operand transposed; batch axes that broadcast are summed by the backward pass."""
    if a.ndim == 1 and b.ndim == 1:
        return ct * b, ct * a
    if a.ndim == 1:
        return _row_cts(ct, a, b)
    if b.ndim == 1:
        column = sym.unsqueeze(ct, (-1,))
        return column * b, sym.squeeze(sym.matmul(sym.swap(a), column), (-1,))
    ct_a = sym.matmul(ct, sym.swap(b)) if sym.wanted(a) else None
    return ct_a, sym.matmul(sym.swap(a), ct) if sym.wanted(b) else None


def _row_cts(ct: Var, a: Var, b: Var) -> tuple[Var, Var]:
    row = sym.unsqueeze(ct, (-2,))
    ct_a = sym.squeeze(sym.matmul(row, sym.swap(b)), (-2,))
    return ct_a, sym.unsqueeze(a, (-1,)) * row


def gemm(a: Var, b: Var, c: Var | None = None, *, alpha: float = 1.0, beta: float = 1.0, transA: int = 0,
         transB: int = 0) -> Var:  # fmt: skip
    """alpha A B + beta C, either matrix transposed first."""
    y = sym.matmul(sym.swap(a) if transA else a, sym.swap(b) if transB else b)
    y = y if alpha == 1 else y * alpha
    return y if c is None else y + (c if beta == 1 else c * beta)


MATMUL: list[Op] = [
    Op("MatMul", matmul, matmul_vjp, matmul_stack, linear=((0, 1),), reads=products, ways=ways.products, widens=True),
    composite("Gemm", gemm),
]
