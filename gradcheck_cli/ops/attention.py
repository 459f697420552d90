"""Scaled dot product attention, with a bias or with subgraphs that modify it, and rotary position embedding.

A masked key gets the score -infinity by an additive bias, as the standard has it.  A query for which all keys are
masked has weights of zero: its scores are replaced before the softmax, so that no NaN arises in the backward pass
either.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np

from gradcheck_cli.autodiff import symbolic as sym
from gradcheck_cli.autodiff.tape import Var
from gradcheck_cli.autodiff.trace import GraphFunction
from gradcheck_cli.op import Along, Op, composite


def attention(
    q: Var, k: Var, v: Var, attn_mask: Var | None = None, past_key: Var | None = None,
    past_value: Var | None = None, nonpad_kv_seqlen: Var | None = None, *, is_causal: int = 0,
    kv_num_heads: int | None = None, left_window_size: int = -1, q_num_heads: int | None = None,
    qk_matmul_output_mode: int = 0, right_window_size: int = -1, scale: float | None = None,
    softcap: float = 0.0, softmax_precision: Any = None,
) -> tuple[Var, Var, Var, Var]:  # fmt: skip
    """softmax(q k^T scale + bias) v, with past keys and values in front, and the scores at some stage.

    Operands are `(N, heads, S, size)`, or `(N, S, heads * size)`; heads of q may share one of k and v.
    """
    if (past_key is None) != (past_value is None) or (past_key is not None and nonpad_kv_seqlen is not None):
        raise ValueError("past_key and past_value go together, and without nonpad_kv_seqlen")
    if not q.ndim == k.ndim == v.ndim or q.ndim not in (3, 4):
        raise ValueError("q, k and v have 3 or 4 dimensions")
    flat = q.ndim == 3
    q, k, v = (by_heads(q, q_num_heads), by_heads(k, kv_num_heads), by_heads(v, kv_num_heads)) if flat else (q, k, v)
    past = 0 if past_key is None else past_key.shape[2]
    key = k if past_key is None else sym.concat([past_key, k], 2)
    value = v if past_value is None else sym.concat([past_value, v], 2)

    factor = q.shape[-1] ** -0.5 if scale is None else scale
    root = abs(factor) ** 0.5  # the standard scales q and k by the root each, against overflow
    raw = product_by_heads(q * (root if factor >= 0 else -root), sym.swap(key * root))
    capped = sym.tanh(raw / softcap) * softcap if softcap > 0 else raw
    windows = left_window_size, right_window_size
    bias = _bias(q.shape[2], key.shape[2], q.dtype, attn_mask, past, nonpad_kv_seqlen, bool(is_causal), windows, q)
    biased = capped if bias is None else capped + bias
    scores = biased if softmax_precision is None else sym.cast(biased, softmax_precision)
    plain = bias is None or (attn_mask is None and nonpad_kv_seqlen is None and windows == (-1, -1))
    weights = sym.cast(_softmax(scores) if plain or bias is None else _guarded_softmax(scores, bias), q.dtype)
    y = product_by_heads(weights, sym.cast(value, q.dtype))
    stages = raw, capped, biased, weights
    if not 0 <= qk_matmul_output_mode < len(stages):
        raise ValueError(f"qk_matmul_output_mode is {qk_matmul_output_mode}; known are 0 to 3")
    shown = sym.identity(stages[qk_matmul_output_mode])
    return side_by_side(y) if flat else y, sym.identity(key), sym.identity(value), shown


def by_heads(x: Var, heads: int | None) -> Var:
    """`(N, S, heads * size)` as `(N, heads, S, size)`."""
    return sym.transpose(_split_heads(x, heads, "q_num_heads and kv_num_heads"), (0, 2, 1, 3))


def side_by_side(y: Var) -> Var:
    """`(N, heads, S, size)` as `(N, S, heads * size)`."""
    n, heads, length, size = y.shape
    return sym.reshape(sym.transpose(y, (0, 2, 1, 3)), (n, length, heads * size))


def product_by_heads(a: Var, b: Var) -> Var:
    """The product of each head; if consecutive heads of a share one of b, they are rows of one product."""
    n, heads, rows, inner = a.shape
    if heads == b.shape[1]:
        return sym.matmul(a, b)
    if not b.shape[1] or heads % b.shape[1]:
        raise ValueError(f"{heads} heads of q cannot share {b.shape[1]} of k and v")
    y = sym.matmul(sym.reshape(a, (n, b.shape[1], heads // b.shape[1] * rows, inner)), b)
    return sym.reshape(y, (n, heads, rows, b.shape[-1]))


def _bias(
    queries: int, keys: int, dtype: np.dtype, mask: Var | None, past: int, valid: Var | None, causal: bool,
    windows: tuple[int, int], like: Var,
) -> Var | None:  # fmt: skip
    """The tensor that is added to the scores: a mask, with -infinity for masked keys; None for nothing."""
    mask = None if mask is None else _filled(mask if mask.dtype == np.bool_ else sym.cast(mask, dtype), keys)
    numbers = mask if mask is not None and mask.dtype != np.bool_ else None
    allowed = [] if mask is None or mask.dtype != np.bool_ else [mask]
    allowed += _reach(queries, keys, past, valid, causal, windows, like)
    if not allowed:
        return numbers
    zero = like.tape.constant(0, dtype)
    return sym.where(reduce(sym.and_, allowed), zero if numbers is None else numbers, -np.inf)


def _filled(mask: Var, keys: int) -> Var:
    """A mask for all keys: those beyond its length are masked."""
    missing = keys - mask.shape[-1]
    if missing <= 0:
        return mask
    rest = False if mask.dtype == np.bool_ else -np.inf
    return sym.concat([mask, sym.full(mask.tape, (*mask.shape[:-1], missing), rest, mask.dtype)], -1)


def _reach(
    queries: int, keys: int, past: int, valid: Var | None, causal: bool, windows: tuple[int, int], like: Var
) -> list[Var]:
    """Conditions by position: query i is at position `past + i`, or counted from the end of its sample's valid keys."""
    allowed, tape, (left, right) = [], like.tape, windows
    if min(windows) < -1:
        raise ValueError(f"window sizes {windows} are -1 or more")
    ahead = tape.constant(np.arange(queries)[:, None] - np.arange(keys) + past)
    if valid is not None:
        valid = sym.reshape(sym.cast(valid, np.int64), (-1, 1, 1, 1))
        ahead = ahead + (valid - queries)
        allowed.append(tape.constant(np.arange(keys)) < valid)
    if causal:
        allowed.append(ahead >= 0)
    if left >= 0:
        allowed.append(ahead <= left)
    if right >= 0:
        allowed.append(ahead >= -right)
    return allowed


def _softmax(x: Var) -> Var:
    return x.tape.apply("Softmax", x, axis=-1)


def _guarded_softmax(scores: Var, bias: Var) -> Var:
    """Softmax over keys, zero for a query for which all keys are masked."""
    sees = sym.max(sym.real(bias), (-1,)) > -np.inf
    return sym.where(sees, _softmax(sym.where(sees, scores, 0)), 0)


def flex_attention(
    q: Var, k: Var, v: Var, *, score_mod: GraphFunction | None = None, prob_mod: GraphFunction | None = None,
    scale: float | None = None, softmax_precision: Any = None,
) -> Var:  # fmt: skip
    """prob_mod(softmax(score_mod(q k^T scale))) v for `(N, heads, S, size)`; heads of q may share one of k and v."""
    fit = q.ndim == k.ndim == v.ndim == 4 and q.shape[0] == k.shape[0] and k.shape[:3] == v.shape[:3]
    if not fit or q.shape[3] != k.shape[3]:
        raise ValueError("q, k and v are (N, heads, S, size) and do not fit each other")
    precise = softmax_precision or q.tape.widen(np.promote_types(q.dtype, np.float32))
    scores = sym.cast(product_by_heads(q * (q.shape[-1] ** -0.5 if scale is None else scale), sym.swap(k)), precise)
    weights = _modified(prob_mod, _softmax(_modified(score_mod, scores, "score_mod")), "prob_mod")
    return sym.cast(product_by_heads(weights, sym.cast(v, precise)), v.dtype)


def _modified(body: GraphFunction | None, x: Var, name: str) -> Var:
    """The result of a subgraph on x: a tensor like it."""
    if body is None:
        return x
    if len(body.graph.inputs) != 1 or len(body.graph.outputs) != 1:
        raise ValueError(f"{name} has one input and one output")
    with x.tape.scope(name):
        (y,) = body(x)
    if y.shape != x.shape or y.dtype != x.dtype:
        raise ValueError(f"{name} gives {list(y.shape)} {y.dtype} for {list(x.shape)} {x.dtype}")
    return y


def rotary_embedding(
    x: Var, cos_cache: Var, sin_cache: Var, position_ids: Var | None = None, *, interleaved: int = 0,
    num_heads: int | None = None, rotary_embedding_dim: int = 0,
) -> Var:  # fmt: skip
    """Pairs of features `(N, heads, S, size)` or `(N, S, heads * size)` turned by an angle for each position.

    The first `rotary_embedding_dim` features of a head take part (0: all); pairs are neighbors if
    `interleaved`, else an entry of the first half with that of the second.
    """
    heads_axis = 1 if x.ndim == 4 else 2
    parts = x if x.ndim == 4 else _split_heads(x, num_heads, "num_heads")
    turned = rotary_embedding_dim or parts.shape[-1]
    if turned % 2 or turned > parts.shape[-1]:
        raise ValueError(f"{turned} of {parts.shape[-1]} features cannot be paired")
    cos, sin = (_at_positions(cache, position_ids, turned // 2, heads_axis) for cache in (cos_cache, sin_cache))
    head, *rest = sym.split(parts, (turned, parts.shape[-1] - turned) if turned < parts.shape[-1] else (turned,), -1)
    a, b = paired(head, bool(interleaved))
    pairs = a * cos - b * sin, a * sin + b * cos
    rotated = sym.reshape(sym.stack(pairs, -1), head.shape) if interleaved else sym.concat(pairs, -1)
    return sym.reshape(sym.concat([rotated, *rest], -1), x.shape)


def _split_heads(x: Var, heads: int | None, names: str) -> Var:
    if x.ndim != 3 or not heads or heads < 1 or x.shape[2] % heads:
        raise ValueError(f"{x.shape[-1]} features cannot be shared by {heads} heads; name {names}")
    return sym.reshape(x, (*x.shape[:2], heads, x.shape[2] // heads))


def _at_positions(cache: Var, positions: Var | None, pairs: int, heads_axis: int) -> Var:
    """A cache for each sample and position, ready to broadcast over heads."""
    chosen = cache if positions is None else cache.tape.apply("Gather", cache, positions, axis=0)
    if chosen.ndim != 3 or chosen.shape[-1] != pairs:
        raise ValueError(f"a cache of shape {list(cache.shape)} does not hold {pairs} angles for each position")
    return sym.unsqueeze(chosen, (heads_axis,))


def paired(x: Var, interleaved: bool) -> tuple[Var, ...]:
    """Features in two halves that belong together: neighbors if interleaved, else the first half and the second."""
    half = x.shape[-1] // 2
    if not interleaved:
        return sym.split(x, (half, half), -1)
    first, second = sym.split(sym.reshape(x, (*x.shape[:-1], half, 2)), (1, 1), -1)
    return sym.squeeze(first, (-1,)), sym.squeeze(second, (-1,))


ATTENTION: list[Op] = [
    composite("Attention", attention, integers={6: Along(-2, of=1, lengths=True)}, elsewhere="narrow"),
    composite("FlexAttention", flex_attention, domain="ai.onnx.preview", elsewhere="narrow"),
    composite("RotaryEmbedding", rotary_embedding),
]
