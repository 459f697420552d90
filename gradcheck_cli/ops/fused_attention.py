"""Attention as com.microsoft has it: with its projections, for packed operands, with caches and rotary positions.

Lengths of sequences and caches are metadata, so that what is cut and joined follows from them.  What must not be
seen gets a finite bias where onnxruntime has one (`mask_filter_value`), and -infinity where it leaves a key out.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gradcheck_cli import symbolic as sym
from gradcheck_cli.errors import UnsupportedError
from gradcheck_cli.op import Op, as_given
from gradcheck_cli.ops.attention import by_heads, product_by_heads, side_by_side
from gradcheck_cli.ops.fused import fused
from gradcheck_cli.ops.fused_quantize import matmul_integer_to_float
from gradcheck_cli.tape import Var

FILTER = -10000.0
_QK_NORM_EPSILON = 9.999999974752427e-07


def attention(
    x: Var, weights: Var, bias: Var | None = None, mask_index: Var | None = None, past: Var | None = None,
    attention_bias: Var | None = None, past_sequence_length: Var | None = None, *, num_heads: int, do_rotary: int = 0,
    mask_filter_value: float = FILTER, past_present_share_buffer: int = 0, qkv_hidden_sizes: Sequence[int] = (),
    rotary_embedding_dim: int = 0, scale: float = 0.0, unidirectional: int = 0, n_outputs: int = 1,
) -> tuple[Var, ...]:  # fmt: skip
    """Attention of projections of x, which one matrix holds side by side; with keys and values as the new past."""
    _refuse(do_rotary=do_rotary, past_present_share_buffer=past_present_share_buffer)
    sizes = tuple(qkv_hidden_sizes) or (weights.shape[1] // 3,) * 3
    projected = sym.matmul(x, weights)
    parts = sym.split(projected if bias is None else projected + bias, sizes, -1)
    made = _of_projections(
        parts, mask_index, past, attention_bias, num_heads, mask_filter_value, bool(unidirectional), scale
    )
    return made[:n_outputs]


def q_attention(
    x: Var, weights: Var, bias: Var, x_scale: Var, w_scale: Var, mask_index: Var | None = None,
    x_zero_point: Var | None = None, w_zero_point: Var | None = None, past: Var | None = None, *, num_heads: int,
    do_rotary: int = 0, mask_filter_value: float = FILTER, past_present_share_buffer: int = 0, scale: float = 0.0,
    unidirectional: int = 0, n_outputs: int = 1,
) -> tuple[Var, ...]:  # fmt: skip
    """Attention of projections that are products of integers."""
    _refuse(do_rotary=do_rotary, past_present_share_buffer=past_present_share_buffer)
    projected = matmul_integer_to_float(x, weights, x_scale, w_scale, x_zero_point, w_zero_point, bias)
    parts = sym.split(projected, (weights.shape[1] // 3,) * 3, -1)
    made = _of_projections(parts, mask_index, past, None, num_heads, mask_filter_value, bool(unidirectional), scale)
    return made[:n_outputs]


def _of_projections(
    parts: Sequence[Var], mask: Var | None, past: Var | None, bias: Var | None, heads: int, hidden: float,
    causal: bool, scale: float,
) -> tuple[Var, Var]:  # fmt: skip
    """Attention of queries, keys and values behind a past, and all keys and values as the new past."""
    q, k, v = (by_heads(part, heads) for part in parts)
    if past is not None:
        k, v = (sym.concat([sym.take(past, i, 0), new], 2) for i, new in enumerate((k, v)))
    seen = _mask(mask, k.shape, q.shape[2], hidden, q.dtype)
    y, _ = _attended(q, k, v, [bias, seen, _causal(q, k) if causal else None], scale)
    return side_by_side(y), sym.concat([sym.unsqueeze(part, (0,)) for part in (k, v)], 0)


def multi_head_attention(
    query: Var, key: Var | None = None, value: Var | None = None, bias: Var | None = None,
    key_padding_mask: Var | None = None, attention_bias: Var | None = None, past_key: Var | None = None,
    past_value: Var | None = None, past_sequence_length: Var | None = None, cache_indirection: Var | None = None, *,
    num_heads: int, mask_filter_value: float = FILTER, scale: float = 0.0, unidirectional: int = 0,
) -> tuple[Var, ...]:  # fmt: skip
    """Attention of projected operands, packed or not; with all keys and values, and the weights."""
    _refuse(past_sequence_length=past_sequence_length is not None, cache_indirection=cache_indirection is not None)
    q, k, v = _unpacked(query, key, value, num_heads)
    if bias is not None:
        q, k, v = _biased((q, k, v), bias, whole_keys=key is None or key.ndim != 4)
    if past_key is not None and past_value is not None:
        k, v = sym.concat([past_key, k], 2), sym.concat([past_value, v], 2)
    seen = _mask(key_padding_mask, k.shape, q.shape[2], mask_filter_value, q.dtype)
    y, weights = _attended(q, k, v, [attention_bias, seen, _causal(q, k) if unidirectional else None], scale)
    return side_by_side(y), sym.identity(k), sym.identity(v), weights


def rotary_embedding(
    x: Var, position_ids: Var, cos_cache: Var, sin_cache: Var, *, interleaved: int = 0, is_packed_batching: int = 0,
    num_heads: int = 0, rotary_embedding_dim: int = 0, scale: float = 1.0,
) -> Var:  # fmt: skip
    """ONNX's own, with other defaults: a lone position is that of the first entry of each sequence."""
    heads = num_heads if rotary_embedding_dim else 0
    parts = x if x.ndim == 4 else by_heads(x, heads or x.shape[2] // (2 * cos_cache.shape[1]))
    length = parts.shape[2]
    first = sym.reshape(position_ids, (1, 1)) if position_ids.size == 1 else None
    places = position_ids if first is None else first + sym.cast(sym.arange(x.tape, length), position_ids.dtype)
    places = sym.expand(places, (parts.shape[0], length))
    turned = _rotated(parts, cos_cache, sin_cache, places, bool(interleaved), rotary_embedding_dim)
    return turned if x.ndim == 4 else side_by_side(turned)


def group_query_attention(
    query: Var, key: Var | None, value: Var | None, past_key: Var | None, past_value: Var | None,
    cos_cache: Var | None = None, sin_cache: Var | None = None, position_ids: Var | None = None,
    attention_bias: Var | None = None, head_sink: Var | None = None, k_scale: Var | None = None,
    v_scale: Var | None = None, q_norm_weight: Var | None = None, k_norm_weight: Var | None = None, *,
    num_heads: int, kv_num_heads: int, seqlens_k: Sequence[int] | int, total_sequence_length: int | Sequence[int],
    causal: int = 1, do_rotary: int = 0, k_quant_type: str = "NONE", kv_cache_bit_width: int = 0,
    local_window_size: int = -1, qk_norm_epsilon: float = _QK_NORM_EPSILON, qk_output: int = 0,
    rotary_interleaved: int = 0, scale: float = 0.0, sliding_window_cache: int = 0, smooth_softmax: int = 0,
    softcap: float = 0.0, v_quant_type: str = "NONE",
) -> tuple[Var, ...]:  # fmt: skip
    """Attention with keys and values shared by groups of heads, behind what is cached of each sequence."""
    _refuse(
        quantized=k_quant_type != "NONE" or v_quant_type != "NONE" or k_scale is not None or v_scale is not None,
        sliding_window_cache=sliding_window_cache,
    )
    q, k, v = _grouped(query, key, value, num_heads, kv_num_heads)
    if q_norm_weight is not None and k_norm_weight is not None:
        norms = ((q, q_norm_weight), (k, k_norm_weight))
        q, k = (x.tape.apply("RMSNormalization", x, w, axis=-1, epsilon=qk_norm_epsilon) for x, w in norms)
    length, total = q.shape[2], int(np.max(total_sequence_length))
    lengths = [n + 1 for n in ((seqlens_k,) if isinstance(seqlens_k, int) else seqlens_k)]
    starts = [0 if length == total else n - length for n in lengths]  # the first prompt has no past
    if len(lengths) != q.shape[0] or min(starts) < 0 or max(lengths) > total:
        raise ValueError(f"sequences of {lengths} do not fit {q.shape[0]} queries of {length} of {total}")
    if do_rotary:
        q, k = _turned((q, k), starts, cos_cache, sin_cache, position_ids, bool(rotary_interleaved))
    k, v = _behind(past_key, k, starts, total), _behind(past_value, v, starts, total)
    reach = _reach(starts, length, k.shape[2], bool(causal), local_window_size, lengths)
    bias = None if attention_bias is None else _wide_enough(attention_bias, k.shape[2])
    sink = head_sink if head_sink is not None else (sym.zeros_like(_heads_of(q)) if smooth_softmax == 1 else None)
    y, shown = _attended(q, k, v, [bias, q.tape.constant(reach, q.dtype)], scale, softcap, sink, qk_output == 1)
    return side_by_side(y), sym.identity(k), sym.identity(v), shown


def _refuse(**asked: object) -> None:
    for name, value in asked.items():
        if value:
            raise UnsupportedError(f"{name} is not supported", code="GC502")


def _unpacked(query: Var, key: Var | None, value: Var | None, heads: int) -> tuple[Var, Var, Var]:
    """Queries, keys and values by heads, which may stand in one tensor, or be by heads already."""
    if query.ndim == 5:
        q, k, v = _parts(query)
        return q, k, v
    q = by_heads(query, heads)
    if key is not None and key.ndim == 5:
        k, v = _parts(key)
        return q, k, v
    if key is None or value is None:
        raise ValueError("keys and values are missing")
    k, v = (x if x.ndim == 4 else by_heads(x, heads) for x in (key, value))
    return q, k, v


def _parts(packed: Var) -> list[Var]:
    """`(N, S, heads, parts, size)` as tensors `(N, heads, S, size)`."""
    by_part = sym.transpose(packed, (3, 0, 2, 1, 4))
    return [sym.take(by_part, i, 0) for i in range(packed.shape[3])]


def _biased(operands: tuple[Var, Var, Var], bias: Var, whole_keys: bool) -> list[Var]:
    """Each with its part of a bias `(heads * size of q, k and v together)`."""
    sizes = [x.shape[1] * x.shape[3] for x in operands]
    if bias.shape != (sum(sizes),):
        raise ValueError(f"a bias of shape {list(bias.shape)} does not fit {sizes} features")
    parts = [
        sym.reshape(b, (x.shape[1], 1, x.shape[3])) for x, b in zip(operands, sym.split(bias, sizes, 0), strict=True)
    ]
    return [x + b if whole_keys or i == 0 else x for i, (x, b) in enumerate(zip(operands, parts, strict=True))]


def _grouped(query: Var, key: Var | None, value: Var | None, heads: int, kv_heads: int) -> tuple[Var, Var, Var]:
    if key is not None and value is not None:
        return by_heads(query, heads), by_heads(key, kv_heads), by_heads(value, kv_heads)
    size = query.shape[2] // (heads + 2 * kv_heads)
    parts = sym.split(query, [n * size for n in (heads, kv_heads, kv_heads)], -1)
    q, k, v = (by_heads(x, n) for x, n in zip(parts, (heads, kv_heads, kv_heads), strict=True))
    return q, k, v


def _mask(mask: Var | None, keys: tuple[int, ...], queries: int, hidden: float, dtype: np.dtype) -> Var | None:
    """A bias: `hidden` where a mask is 0, or for keys beyond a length, or outside [start, end)."""
    if mask is None:
        return None
    n, total = keys[0], keys[2]
    if mask.ndim == 1 and mask.shape not in ((n,), (2 * n,)):
        _refuse(**{f"a mask of shape {list(mask.shape)}": True})
    if mask.ndim > 1:
        shape = {2: (n, 1, 1, total), 3: (n, 1, mask.shape[1], total)}.get(mask.ndim, mask.shape)
        visible = sym.reshape(sym.cast(mask, np.int64), shape) > 0
    else:
        ends, *starts = sym.split(sym.cast(mask, np.int64), (n,) * (mask.size // n), 0)
        places = sym.arange(mask.tape, total)
        visible = places < sym.reshape(ends, (n, 1, 1, 1))
        if starts:
            visible = sym.and_(visible, places >= sym.reshape(starts[0], (n, 1, 1, 1)))
    return sym.where(visible, mask.tape.constant(0, dtype), hidden)


def _causal(q: Var, k: Var) -> Var:
    """-infinity for keys behind a query, the last query standing at the last key."""
    behind = np.arange(q.shape[2])[:, None] + k.shape[2] - q.shape[2] < np.arange(k.shape[2])
    return q.tape.constant(np.where(behind, -np.inf, 0), q.dtype)


def _attended(
    q: Var, k: Var, v: Var, biases: Sequence[Var | None], scale: float, softcap: float = 0.0, sink: Var | None = None,
    show_scores: bool = False,
) -> tuple[Var, Var]:  # fmt: skip
    """softmax(q k^T scale + biases) v, and the weights, or the scores before them."""
    scores = product_by_heads(q, sym.swap(k)) * (scale or q.shape[-1] ** -0.5)
    scores = sym.tanh(scores / softcap) * softcap if softcap > 0 else scores
    for bias in biases:
        scores = scores if bias is None else scores + bias
    weights = _weights(scores, sink)
    return product_by_heads(weights, v), scores if show_scores else weights


def _weights(scores: Var, sink: Var | None) -> Var:
    """Softmax over keys; a sink of each head takes part and is dropped."""
    if sink is None:
        return scores.tape.apply("Softmax", scores, axis=-1)
    column = sym.expand(sym.reshape(sink, (1, sink.shape[0], 1, 1)), (*scores.shape[:3], 1))
    weights = scores.tape.apply("Softmax", sym.concat([scores, column], -1), axis=-1)
    return sym.slice(weights, (0,), (scores.shape[-1],), (3,))


def _heads_of(q: Var) -> Var:
    return sym.full(q.tape, (q.shape[1],), 0, q.dtype)


def _rotated(x: Var, cos: Var, sin: Var, places: Var, interleaved: bool, size: int = 0) -> Var:
    return x.tape.apply("RotaryEmbedding", x, cos, sin, places, interleaved=int(interleaved), rotary_embedding_dim=size)


def _turned(
    parts: Sequence[Var], starts: Sequence[int], cos: Var | None, sin: Var | None, given: Var | None, interleaved: bool
) -> list[Var]:
    """Queries and keys by their positions: behind what is cached, or those that are given."""
    if cos is None or sin is None:
        raise ValueError("do_rotary needs the caches of cosines and sines")
    places = cos.tape.constant(np.asarray(starts)[:, None] + np.arange(parts[0].shape[2])) if given is None else given
    size = 2 * cos.shape[1]
    return [_rotated(x, cos, sin, places, interleaved, size if size < x.shape[-1] else 0) for x in parts]


def _behind(past: Var | None, new: Var, starts: Sequence[int], total: int) -> Var:
    """New keys or values behind the cached ones of each sequence, zeros behind those."""
    room = max(total, 0 if past is None else past.shape[2])
    if past is None or not any(starts):
        return _filled(new, room)
    rows = []
    for i, start in enumerate(starts):
        old, mine = (sym.slice(x, (i,), (i + 1,), (0,)) for x in (past, new))
        rows.append(_filled(sym.concat([sym.slice(old, (0,), (start,), (2,)), mine], 2), room))
    return sym.concat(rows, 0)


def _filled(x: Var, room: int) -> Var:
    return sym.pad(x, (0, 0, 0, 0, 0, 0, room - x.shape[2], 0))


def _reach(
    starts: Sequence[int], queries: int, keys: int, causal: bool, window: int, lengths: Sequence[int]
) -> np.ndarray:
    """-infinity where a query must not see a key: behind it, beyond the sequence, before its window."""
    places = np.arange(keys)
    at = np.asarray(starts)[:, None, None, None] + np.arange(queries)[:, None]
    hidden = places > at if causal else places >= np.asarray(lengths)[:, None, None, None]
    if window > 0:
        hidden = hidden | (places <= at - window)
    return np.where(hidden, -np.inf, 0.0)


def _wide_enough(bias: Var, keys: int) -> Var:
    return sym.pad(bias, (0, 0, 0, 0, 0, 0, 0, keys - bias.shape[-1]))


FUSED_ATTENTION: list[Op] = [
    fused("Attention", attention),
    fused("GroupQueryAttention", group_query_attention, bind=as_given,
          static={"seqlens_k": 5, "total_sequence_length": 6}),
    fused("MultiHeadAttention", multi_head_attention),
    fused("QAttention", q_attention),
    fused("RotaryEmbedding", rotary_embedding),
]  # fmt: skip
