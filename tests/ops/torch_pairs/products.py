"""MatMul, Gemm, Einsum, Det and attention."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from tests.ops.case import arr, case
from tests.ops.cases.attention import CAPPED, SQUARED, flex
from tests.ops.torch_pairs.pair import Pair

MATMULS = [
    ((3,), (3,)),
    ((3,), (3, 4)),
    ((2, 3), (3,)),
    ((2, 3), (3, 4)),
    ((3,), (2, 3, 4)),
    ((2, 2, 3), (3,)),
    ((2, 2, 3), (3, 4)),
    ((2, 3), (5, 3, 4)),
    ((5, 1, 2, 3), (4, 3, 2)),
    ((1, 2, 3), (4, 3, 2)),
    ((2, 1, 3), (2, 3, 1)),
    ((0, 3), (3, 2)),
    ((2, 0), (0, 3)),
]

EQUATIONS = [
    ("ij,jk->ik", (2, 3), (3, 4)),
    ("ij,jk", (2, 3), (3, 4)),
    ("bij,bjk->bik", (2, 3, 4), (2, 4, 2)),
    ("...ij,...jk->...ik", (2, 1, 3, 4), (5, 4, 2)),
    ("i,j->ij", (3,), (4,)),
    ("i,i->", (3,), (3,)),
    ("ij->ji", (2, 3)),
    ("ij->", (2, 3)),
    ("ij->j", (2, 3)),
    ("ii->i", (3, 3)),
    ("ii->", (3, 3)),
    ("iij->j", (3, 3, 2)),
    ("bhqd,bhkd->bhqk", (2, 2, 3, 4), (2, 2, 5, 4)),
    ("ij,ij->i", (2, 3), (2, 3)),
    ("ij,jk,kl->il", (2, 3), (3, 4), (4, 2)),
    ("ij,k->i", (2, 3), (4,)),
    ("...i,...i->...", (2, 3), (2, 3)),
    ("ijj,jk->ik", (2, 3, 3), (3, 2)),
]


def gemm(a: Any, b: Any, c: Any = None, *, alpha: float, beta: float, left: int, right: int) -> Any:
    """Gemm as ONNX defines it."""
    product = alpha * ((a.T if left else a) @ (b.T if right else b))
    return product if c is None else product + beta * c


def gemm_pair(left: int, right: int, *bias: int) -> Pair:
    """Gemm with every attribute, transposed or not."""
    a, b = arr(*((3, 2) if left else (2, 3))), arr(*((4, 3) if right else (3, 4)))
    one = case("Gemm", a, b, arr(*bias), alpha=0.5, beta=2.0, transA=left, transB=right)
    return Pair(one, lambda a, b, c: gemm(a, b, c, alpha=0.5, beta=2.0, left=left, right=right))


def attention(q: Any, k: Any, v: Any, mask: Any = None, **options: Any) -> Any:
    """Attention of torch; its kernel for the plain mathematics."""
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, **options)


Q, K, V = arr(2, 4, 3, 5), arr(2, 4, 6, 5, seed=1), arr(2, 4, 6, 7, seed=2)
ATTENTION = [
    (case("Attention", Q, K, V), attention),
    (case("Attention", Q, K, V, scale=0.25), lambda q, k, v: attention(q, k, v, scale=0.25)),
    (case("Attention", Q, K, V, arr(3, 6)), attention),
    (case("Attention", Q, K, V, arr(2, 1, 3, 6) > -1.0, label="of booleans"), attention),
    (case("Attention", Q, K, V, is_causal=1), lambda q, k, v: attention(q, k, v, is_causal=True)),
    (
        case("Attention", Q, arr(2, 2, 6, 5), arr(2, 2, 6, 7), label="grouped"),
        lambda q, k, v: attention(q, k, v, enable_gqa=True),
    ),
    (
        case("Attention", Q, K, V, softcap=2.0),
        lambda q, k, v: torch.softmax(2 * torch.tanh(q @ k.mT / 5**0.5 / 2), -1) @ v,
    ),
    (
        case("Attention", arr(2, 3, 8), arr(2, 6, 8), arr(2, 6, 8, seed=1), q_num_heads=2, kv_num_heads=2),
        lambda *x: attention(*[t.unflatten(2, (2, 4)).transpose(1, 2) for t in x]).transpose(1, 2).flatten(2),
    ),
    (flex(Q, K, V, scale=0.25), lambda q, k, v: attention(q, k, v, scale=0.25)),
    (
        flex(Q, K, V, score_mod=CAPPED, prob_mod=SQUARED),
        lambda q, k, v: torch.softmax(torch.tanh(q @ k.mT / 5**0.5 / 2), -1).square() @ v,
    ),
]

PAIRS = [
    *[Pair(case("Det", arr(*shape)), torch.linalg.det) for shape in [(3, 3), (2, 4, 4), (2, 1, 1), (1, 2, 5, 5)]],
    *[Pair(case("MatMul", arr(*a), arr(*b)), torch.matmul) for a, b in MATMULS],
    *[gemm_pair(left, right, 2, 1) for left in (0, 1) for right in (0, 1)],
    *[gemm_pair(0, 0, *bias) for bias in [(4,), (1, 4), (), (1,)]],
    *[
        Pair(
            case("Einsum", *[arr(*s, seed=i) for i, s in enumerate(shapes)], equation=equation),
            lambda *x, equation=equation: torch.einsum(equation, *x),
        )
        for equation, *shapes in EQUATIONS
    ],
    *[Pair(one, function) for one, function in ATTENTION],
]
