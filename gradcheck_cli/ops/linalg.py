"""Determinants and inverses.

The derivative of a determinant is the matrix of cofactors, which a singular matrix has as well as any other: no
inverse is ever taken.  The cofactors of a small matrix are determinants of its n^2 minors, so that every derivative is
made of ONNX's own operators; those of a large one come from its singular values, by an operator of ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from gradcheck_cli.autodiff import symbolic as sym
from gradcheck_cli.autodiff.tape import Var
from gradcheck_cli.errors import LimitError, ModelError
from gradcheck_cli.graph import Array
from gradcheck_cli.op import Op
from gradcheck_cli.op.batching import Kernel, Operands, blank, dtype_of, trailing
from gradcheck_cli.op.sparsity import along
from gradcheck_cli.ops.index import scatter_back

DOMAIN = "gradcheck"
FEW, MOST = 1 << 22, 1 << 27  # entries of all minors: preferred up to FEW, possible up to MOST


def _in_floats(function: Kernel) -> Kernel:
    """A function of LAPACK, which knows no narrower dtype than float32, on the matrices in the last two axes."""
    return lambda x: np.asarray(function(_wide(x))).astype(x.dtype, copy=False)


def _wide(x: Array) -> Array:
    return x.astype(np.result_type(x.dtype, np.float32), copy=False)


def bind_square(metadata: dict[str, Any], x: Array) -> dict[str, Any]:
    """Metadata unchanged; ModelError unless the operand holds square matrices."""
    if x.ndim < 2 or x.shape[-1] != x.shape[-2]:
        raise ModelError(f"square matrices are needed, not {list(x.shape)}")
    return metadata


def cofactors(x: Var) -> Var:
    """For each entry the determinant of the matrix without its row and column, with alternating signs."""
    if x.shape[-1] <= 1:
        return sym.ones_like(x)
    if _entries(x) > FEW:
        return sym.custom("Cofactors", x)
    return x.tape.apply("Det", _minors(x)) * x.tape.constant(_signs(x), x.dtype)


def _entries(x: Var) -> int:
    """The number of entries of all minors of x together."""
    return x.size * (x.shape[-1] - 1) ** 2


def _minors(x: Var) -> Var:
    """Each matrix without row i and column j, `(..., i, j, n - 1, n - 1)`."""
    rows = x.tape.apply("Gather", x, _others(x), axis=x.ndim - 2)
    lead = x.ndim - 2
    blocks = x.tape.apply("Gather", rows, _others(x), axis=lead + 2)
    return sym.transpose(blocks, (*range(lead), lead, lead + 2, lead + 1, lead + 3))


def _others(x: Var) -> Array:
    """For each number below n all other ones, `(n, n - 1)`."""
    n = x.shape[-1]
    return np.arange(n - 1) + (np.arange(n - 1) >= np.arange(n)[:, None])


def _signs(x: Var) -> Array:
    number = np.arange(x.shape[-1])
    return np.asarray(1 - 2 * ((number[:, None] + number) % 2))


def cofactors_by_singular_values(x: Array) -> Array:
    """The cofactors of matrices U S V: those of S, turned like the matrix.

    The cofactors of S are products of all other singular values.
    """
    u, s, v = np.linalg.svd(_wide(x))
    turn = np.linalg.det(u) * np.linalg.det(v)
    y = np.conj(u) * (turn[..., None] * _without_each(s))[..., None, :] @ np.conj(v)
    return np.asarray(y).astype(x.dtype, copy=False)


def _without_each(s: Array) -> Array:
    """For each number along the last axis the product of all others, without a division."""
    ones = np.ones_like(s[..., :1])
    below = np.cumprod(np.concatenate([ones, s[..., :-1]], axis=-1), axis=-1)
    above = np.cumprod(np.concatenate([ones, s[..., :0:-1]], axis=-1), axis=-1)[..., ::-1]
    return np.asarray(below * above)


def cofactors_near_real(x: Array) -> Array:
    """The cofactors of matrices with tiny imaginary parts: of first order in those.

    With x = U (S + i F) V the cofactors of S + i F are products of all singular values but two: on the diagonal each
    other f_kk with those but s_i and s_k, elsewhere -f_ji with those but s_i and s_j.
    """
    u, s, v = np.linalg.svd(x.real)
    f = np.swapaxes(u, -1, -2) @ x.imag @ np.swapaxes(v, -1, -2)
    inner, diagonal = np.empty_like(f), np.diagonal(f, axis1=-2, axis2=-1)
    for i in range(s.shape[-1]):  # row by row: all products at once would take n times the memory
        but_i = np.where(np.arange(s.shape[-1]) == i, 1, s)
        pairs = np.where(np.arange(s.shape[-1]) == i, 0, _without_each(but_i))
        inner[..., i, :] = -f[..., :, i] * pairs
        inner[..., i, i] = np.sum(diagonal * pairs, axis=-1)
    turn = (np.linalg.det(u) * np.linalg.det(v))[..., None, None]
    return cofactors_by_singular_values(x.real) + 1j * (turn * (u @ inner @ v))


def cofactors_vjp(ct: Var, y: Var, x: Var) -> tuple[Var]:
    """ct times the cofactors of every minor, added up at the entries they come from."""
    if _entries(x) > MOST:
        raise LimitError(f"a second derivative of determinants of {list(x.shape)} takes too much memory", code="GC602")
    minors, lead = _minors(x), x.ndim - 2
    by_minor = sym.unsqueeze(ct * ct.tape.constant(_signs(x), x.dtype), (-2, -1)) * cofactors(minors)
    blocks = sym.transpose(by_minor, (*range(lead), lead, lead + 2, lead + 1, lead + 3))
    others, n = ct.tape.constant(_others(x)), x.shape[-1]
    rows = scatter_back(blocks, others, (*x.shape[:-2], n, n - 1, n), lead + 2)
    return (scatter_back(rows, others, x.shape, lead),)


def det_outline(kernel: Kernel, operands: Operands, metadata: Mapping[str, Any]) -> Array:
    """The outline rule: a number for each matrix."""
    return blank(operands[0].shape[:-2], dtype_of(kernel, operands, metadata))


LINALG: list[Op] = [
    Op("Det", _in_floats(np.linalg.det), lambda ct, y, x: (sym.unsqueeze(ct, (-2, -1)) * cofactors(x),), trailing,
       bind=bind_square, sparsity=along(-2, -1), backward_stable=True, outline=det_outline,
       does="Determinants of the matrices in the last two axes."),
    Op("Cofactors", cofactors_by_singular_values, cofactors_vjp, trailing, domain=DOMAIN,
       step=cofactors_near_real, bind=bind_square, sparsity=along(-2, -1), backward_stable=True),
    Op("Inverse", _in_floats(np.linalg.inv), lambda ct, y, x: (-sym.matmul(sym.matmul(sym.swap(y), ct), sym.swap(y)),),
       trailing, domain="com.microsoft", bind=bind_square, sparsity=along(-2, -1), backward_stable=True,
       does="Inverses of the matrices in the last two axes."),
]  # fmt: skip
