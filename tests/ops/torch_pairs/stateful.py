"""Causal convolution, and linear attention as a masked product."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from tests.ops.case import arr, case
from tests.ops.torch_pairs.pair import Pair


def causal(x: Any, w: Any, b: Any = None, past: Any = None) -> Any:
    """A convolution of each channel with zeros or the past before it."""
    k = w.shape[2] - 1
    seen = F.pad(x, (k, 0)) if past is None else torch.cat([past, x], 2)
    return F.conv1d(seen, w, b, groups=x.shape[1]), seen[:, :, seen.shape[2] - k :]


def by_heads(x: Any, heads: int) -> Any:
    """`(N, heads, steps, size)`."""
    return x.unflatten(2, (heads, -1)).transpose(1, 2)


def read(q: Any, k: Any, v: Any, past: Any = None, decay: Any = None) -> Any:
    """Linear attention of two heads without a state: scores of all earlier steps, shrunk by the decay between them."""
    q, k, v = (by_heads(x, 2) for x in (q, k, v))
    fallen = torch.zeros_like(k) if decay is None else by_heads(decay, 2).cumsum(2)
    apart = (fallen[:, :, :, None] - fallen[:, :, None]).exp()
    scores = torch.einsum("bhtd,bhsd,bhtsd->bhts", q, k, apart).tril() / q.shape[-1] ** 0.5
    last = torch.einsum("bhsd,bhsd,bhsm->bhdm", k, apart[:, :, -1], v)
    return (scores @ v).transpose(1, 2).flatten(2), last


def corrected(q: Any, k: Any, v: Any, past: Any, decay: Any, beta: Any) -> Any:
    """The delta rule by projections: each step takes from the state what its key finds there."""
    q, k, v, beta = (by_heads(x, 2) for x in (q, k, v, beta))
    state, ys = past, []
    for t in range(q.shape[2]):
        outer = torch.einsum("bhd,bhe->bhde", k[:, :, t], k[:, :, t]) * beta[:, :, t, :, None]
        state = (torch.eye(q.shape[-1], dtype=q.dtype) - outer) @ state
        state = state + torch.einsum("bhd,bhm->bhdm", k[:, :, t] * beta[:, :, t], v[:, :, t])
        ys.append(torch.einsum("bhd,bhdm->bhm", q[:, :, t], state) / q.shape[-1] ** 0.5)
    return torch.stack(ys, 1).flatten(2), state


Q, K, V = arr(2, 4, 6), arr(2, 4, 6, seed=1, low=-0.9, high=0.9), arr(2, 4, 8)
DECAY, BETA, PAST = arr(2, 4, 6, low=-1.0, high=0.0), arr(2, 4, 2, low=0.1, high=0.9), arr(2, 2, 3, 4)
HEADS = {"q_num_heads": 2, "kv_num_heads": 2, "n_outputs": 2}
X, W, B = arr(2, 3, 6), arr(3, 1, 4), arr(3)

PAIRS = [
    Pair(case("CausalConvWithState", X, W, n_outputs=2), causal),
    Pair(case("CausalConvWithState", X, W, B, arr(2, 3, 3), n_outputs=2), causal),
    Pair(case("CausalConvWithState", X, W, B, activation="silu"), lambda x, w, b: F.silu(causal(x, w, b)[0])),
    Pair(case("LinearAttention", Q, K, V, update_rule="linear", **HEADS), read),
    Pair(case("LinearAttention", Q, K, V, None, DECAY, update_rule="gated", **HEADS), read),
    Pair(case("LinearAttention", Q, K, V, PAST, None, BETA, update_rule="delta", **HEADS), corrected),
]
