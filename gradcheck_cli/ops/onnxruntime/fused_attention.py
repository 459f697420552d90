"""Attention as com.microsoft has it: with its projections, for packed operands, with caches and rotary positions.

Lengths of sequences and caches are metadata, so that what is cut and joined follows from them.  What must not be
seen gets a finite bias where onnxruntime has one (`mask_filter_value`), and -infinity where it leaves a key out.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from gradcheck_cli.autodiff import symbolic as sym
from gradcheck_cli.autodiff.tape import Var
from gradcheck_cli.errors import UnsupportedError
from gradcheck_cli.op import Op, as_given, attributes_of, deciding, quantized, trained
from gradcheck_cli.ops.attention import by_heads, product_by_heads, side_by_side
from gradcheck_cli.ops.onnxruntime.fused import fused, shifted
from gradcheck_cli.ops.onnxruntime.fused_quantize import matmul_integer_to_float

FILTER = -10000.0
_QK_NORM_EPSILON = 9.999999974752427e-07


def of_projections(
    parts: Sequence[Var], mask: Var | None, past: Var | None, bias: Var | None, *, num_heads: int, do_rotary: int = 0,
    mask_filter_value: float = FILTER, past_present_share_buffer: int = 0, scale: float = 0.0, unidirectional: int = 0,
    n_outputs: int = 1,
) -> tuple[Var, ...]:  # fmt: skip
    """Attention of queries, keys and values behind a past; with all keys and values as the new past, if that is used."""
    _refuse(do_rotary=do_rotary, past_present_share_buffer=past_present_share_buffer)
    q, k, v = (by_heads(part, num_heads) for part in parts)
    if past is not None:
        k, v = (sym.concat([sym.take(past, i, 0), new], 2) for i, new in enumerate((k, v)))
    seen = _mask(mask, k, mask_filter_value)
    y, _ = _attended(q, k, v, [bias, seen, _causal(q, k) if unidirectional else None], scale)
    return side_by_side(y), *([sym.stack((k, v), 0)] if n_outputs > 1 else [])


@attributes_of(of_projections)
def attention(
    x: Var, weights: Var, bias: Var | None = None, mask_index: Var | None = None, past: Var | None = None,
    attention_bias: Var | None = None, past_sequence_length: Var | None = None, *, qkv_hidden_sizes: Sequence[int] = (),
    rotary_embedding_dim: int = 0, **heads: Any,
) -> tuple[Var, ...]:  # fmt: skip
    """Attention of projections of x, which one matrix holds side by side; with keys and values as the new past."""
    sizes = tuple(qkv_hidden_sizes) or (weights.shape[1] // 3,) * 3
    parts = sym.split(shifted(sym.matmul(x, weights), bias), sizes, -1)
    return of_projections(parts, mask_index, past, attention_bias, **heads)


@attributes_of(of_projections)
def q_attention(
    x: Var, weights: Var, bias: Var, x_scale: Var, w_scale: Var, mask_index: Var | None = None,
    x_zero_point: Var | None = None, w_zero_point: Var | None = None, past: Var | None = None, **heads: Any,
) -> tuple[Var, ...]:  # fmt: skip
    """Attention of projections that are products of integers."""
    projected = matmul_integer_to_float(x, weights, x_scale, w_scale, x_zero_point, w_zero_point, bias)
    return of_projections(sym.split(projected, (weights.shape[1] // 3,) * 3, -1), mask_index, past, None, **heads)


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
    seen = _mask(key_padding_mask, k, mask_filter_value)
    y, weights = _attended(q, k, v, [attention_bias, seen, _causal(q, k) if unidirectional else None], scale)
    return side_by_side(y), sym.identity(k), sym.identity(v), weights


def rotary_embedding(
    x: Var, position_ids: Var, cos_cache: Var, sin_cache: Var, *, interleaved: int = 0, is_packed_batching: int = 0,
    num_heads: int = 0, rotary_embedding_dim: int = 0, scale: float = 1.0,
) -> Var:  # fmt: skip
    """ONNX's RotaryEmbedding with other defaults; a single position is that of the first entry of each sequence."""
    heads = num_heads if rotary_embedding_dim else 0
    parts = x if x.ndim == 4 else by_heads(x, heads or x.shape[2] // (2 * cos_cache.shape[1]))
    length = parts.shape[2]
    first = sym.reshape(position_ids, (1, 1)) if position_ids.size == 1 else None
    places = position_ids if first is None else first + sym.cast(sym.arange(x.tape, length), position_ids.dtype)
    places = sym.expand(places, (parts.shape[0], length))
    attrs = {"interleaved": interleaved, "rotary_embedding_dim": rotary_embedding_dim}
    turned = x.tape.apply("RotaryEmbedding", parts, cos_cache, sin_cache, places, **attrs)
    return turned if x.ndim == 4 else side_by_side(turned)


def group_query_attention(
    query: Var, key: Var | None, value: Var | None, past_key: Var | None, past_value: Var | None,
    cos_cache: Var | None = None, sin_cache: Var | None = None, position_ids: Var | None = None,
    attention_bias: Var | None = None, head_sink: Var | None = None, k_scale: Var | None = None,
    v_scale: Var | None = None, q_norm_weight: Var | None = None, k_norm_weight: Var | None = None, *,
    num_heads: int, kv_num_heads: int, seqlens_k: Sequence[int] | int, total_sequence_length: int | Sequence[int],
    causal: int = 1, do_rotary: int = 0, k_norm_epsilon: float | None = None, k_quant_type: str = "NONE",
    kv_cache_bit_width: int = 0, local_window_size: int = -1, q_norm_epsilon: float | None = None,
    qk_norm_epsilon: float = _QK_NORM_EPSILON, qk_output: int = 0, query_seqlens: Sequence[int] | None = None,
    rotary_interleaved: int = 0, scale: float = 0.0, sliding_window_cache: int = 0, smooth_softmax: int = 0,
    softcap: float = 0.0, v_quant_type: str = "NONE",
) -> tuple[Var, ...]:  # fmt: skip
    """Attention with keys and values shared by groups of heads, behind what is cached of each sequence.

    Of each chunk the first `query_seqlens` tokens count; the standard does not define results for the padding behind.
    """
    _refuse(
        quantized=k_quant_type != "NONE" or v_quant_type != "NONE" or k_scale is not None or v_scale is not None,
        sliding_window_cache=sliding_window_cache,
    )
    q, k, v = _grouped(query, key, value, num_heads, kv_num_heads)
    if q_norm_weight is not None and k_norm_weight is not None:
        norms = ((q, q_norm_weight, q_norm_epsilon), (k, k_norm_weight, k_norm_epsilon))
        q, k = (x.tape.apply("RMSNormalization", x, w, axis=-1, epsilon=e or qk_norm_epsilon) for x, w, e in norms)
    length, total = q.shape[2], int(np.max(total_sequence_length))
    lengths = [n + 1 for n in ((seqlens_k,) if isinstance(seqlens_k, int) else seqlens_k)]
    taken = [length] * len(lengths) if query_seqlens is None else list(query_seqlens)
    if query_seqlens is not None and (not causal or past_key is None or not 0 <= min(taken) <= max(taken) <= length):
        raise ValueError(f"query_seqlens {taken} are of causal attention behind a cache, 0 to {length} each")
    if query_seqlens is None and length == total:  # the first prompt has no past
        starts = [0] * len(lengths)
    else:
        starts = [n - m for n, m in zip(lengths, taken, strict=True)]
    if len(lengths) != q.shape[0] or min(starts) < 0 or max(lengths) > total:
        raise ValueError(f"sequences of {lengths} do not fit {q.shape[0]} queries of {length} of {total}")
    if do_rotary:
        q, k = _turned((q, k), starts, cos_cache, sin_cache, position_ids, bool(rotary_interleaved))
    k, v = (_behind(past, new, starts, taken, total) for past, new in ((past_key, k), (past_value, v)))
    reach = _reach(starts, length, k.shape[2], bool(causal), local_window_size, lengths)
    room = 0 if attention_bias is None else k.shape[2] - attention_bias.shape[-1]
    bias = None if attention_bias is None else sym.pad(attention_bias, (0, 0, 0, 0, 0, 0, 0, room))
    no_sink = sym.full(q.tape, (num_heads,), 0, q.dtype) if smooth_softmax == 1 else None
    sink = no_sink if head_sink is None else head_sink
    y, shown = _attended(q, k, v, [bias, q.tape.constant(reach, q.dtype)], scale, softcap, sink, qk_output == 1)
    if qk_output == 1:  # scores that are hidden are given as 0
        shown = sym.where(q.tape.constant(reach == 0), shown, 0)
    return side_by_side(y), sym.identity(k), sym.identity(v), shown


def m_rotary_embedding(
    x: Var, position_ids: Var, cos_cache: Var, sin_cache: Var, *, interleaved: int = 0, is_packed_batching: int = 0,
    mrope_layout: int = 0, mrope_section: Sequence[int], num_heads: int = 0, rotary_embedding_dim: int = 0,
    scale: float = 1.0,
) -> Var:  # fmt: skip
    """RotaryEmbedding by three positions of each entry, time, height and width, each for a section of the angles.

    Sections stand one behind the other, or height and width take every third angle of the front (layout 1).
    """
    half, sections = cos_cache.shape[-1], tuple(mrope_section)
    if len(sections) != 3 or min(sections) < 0 or sum(sections) != half or mrope_layout not in (0, 1):
        raise ValueError(
            f"mrope_section {list(sections)} does not make {half} angles, or layout {mrope_layout} is not 0 or 1"
        )
    parts = x if x.ndim == 4 else by_heads(x, num_heads)
    if position_ids.shape != (3, parts.shape[0], parts.shape[2]):
        raise ValueError(f"position_ids are {[3, parts.shape[0], parts.shape[2]]}, not {list(position_ids.shape)}")
    stream = np.repeat(np.arange(3), sections)
    if mrope_layout:
        stream = np.zeros(half, np.int64)
        for number in (1, 2):
            stream[number : 3 * sections[number] : 3] = number
    cos, sin = (_of_streams(cache, position_ids, stream) * scale for cache in (cos_cache, sin_cache))
    attrs = {"interleaved": interleaved, "rotary_embedding_dim": rotary_embedding_dim}
    turned = x.tape.apply("RotaryEmbedding", parts, cos, sin, **attrs)
    return turned if x.ndim == 4 else side_by_side(turned)


def _of_streams(cache: Var, positions: Var, stream: np.ndarray) -> Var:
    """Entries of a cache `(N, S, angles)`, each angle at the position that its stream has."""
    time, height, width = (cache.tape.apply("Gather", cache, sym.take(positions, i, 0), axis=0) for i in range(3))
    of_height, of_width = (cache.tape.constant(stream == i) for i in (1, 2))
    return sym.where(of_width, width, sym.where(of_height, height, time))


def sparse_attention(
    query: Var, key: Var | None, value: Var | None, past_key: Var, past_value: Var, block_row_indices: Var,
    block_col_indices: Var, cos_cache: Var | None = None, sin_cache: Var | None = None, *, num_heads: int,
    kv_num_heads: int, sparse_block_size: int, total_sequence_length: int | Sequence[int],
    key_total_sequence_lengths: Sequence[int] | int, do_rotary: int = 0, rotary_interleaved: int = 0,
    scale: float = 0.0,
) -> tuple[Var, Var, Var]:  # fmt: skip
    """Causal attention behind a cache, where a query sees keys of some blocks only, by its head's layout."""
    q, k, v = _grouped(query, key, value, num_heads, kv_num_heads)
    length, total = q.shape[2], int(np.max(total_sequence_length))
    lengths = np.reshape(key_total_sequence_lengths, -1).tolist()
    starts = [0 if length == total else n - length for n in lengths]
    if len(lengths) != q.shape[0] or min(starts) < 0 or total > past_key.shape[2]:
        raise ValueError(f"sequences of {lengths} do not fit {q.shape[0]} queries of {length} in {past_key.shape[2]}")
    if do_rotary:
        q, k = _turned((q, k), starts, cos_cache, sin_cache, None, bool(rotary_interleaved))
    k, v = _written(past_key, k, starts), _written(past_value, v, starts)
    blocks = _blocks(q.tape.guard(block_row_indices), q.tape.guard(block_col_indices))
    seen = _reach(starts, length, k.shape[2], True, -1, lengths)
    hidden = np.stack([_out_of_blocks(blocks, start, length, k.shape[2], sparse_block_size) for start in starts])
    reach = np.where(hidden[:, np.arange(num_heads) % len(blocks)], -np.inf, seen)
    y, _ = _attended(q, k, v, [q.tape.constant(reach, q.dtype)], scale)
    return side_by_side(y), sym.identity(k), sym.identity(v)


def _blocks(rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Masks of the blocks of keys that blocks of queries see, `(layouts, blocks, blocks)`, from compressed rows."""
    count = rows.shape[1] - 1
    blocks = np.zeros((len(rows), count, count), bool)
    for layout, (ends, places) in enumerate(zip(rows, columns, strict=True)):
        for row in range(count):
            blocks[layout, row, places[ends[row] : ends[row + 1]]] = True
    return blocks


def _out_of_blocks(blocks: np.ndarray, start: int, queries: int, keys: int, size: int) -> np.ndarray:
    """Masks of the keys in no block that a query sees, `(layouts, queries, keys)`."""
    places = (start + np.arange(queries)) // size, np.arange(keys) // size
    room = max(int(place[-1]) + 1 if len(place) else 0 for place in places) - blocks.shape[1]
    wide = np.pad(blocks, ((0, 0), (0, max(room, 0)), (0, max(room, 0))))
    return ~wide[:, places[0][:, None], places[1]]


def _written(past: Var, new: Var, starts: Sequence[int]) -> Var:
    """A cache with the new keys or values of each sequence written to where its cached ones end."""
    if len(set(starts)) == 1:
        return _overwritten(past, new, starts[0])
    each = [[sym.slice(x, (i,), (i + 1,), (0,)) for i in range(len(starts))] for x in (past, new)]
    return sym.concat([_overwritten(old, mine, start) for old, mine, start in zip(*each, starts, strict=True)], 0)


def _overwritten(past: Var, new: Var, start: int) -> Var:
    """A cache with new keys or values from a position on."""
    behind = sym.slice(past, (start + new.shape[2],), (past.shape[2],), (2,))
    return sym.concat([sym.slice(past, (0,), (start,), (2,)), new, behind], 2)


def decoder_masked_multi_head_attention(
    query: Var, key: Var, value: Var, mask_index: Var | None = None, attention_bias: Var | None = None,
    past_key: Var | None = None, past_value: Var | None = None, cache_indirection: Var | None = None,
    bias: Var | None = None, *, num_heads: int, past_sequence_length: int | Sequence[int] | None = None,
    beam_width: int | Sequence[int] = 1, mask_filter_value: float = FILTER, output_qk: int = 0,
    past_present_share_buffer: int = 0, scale: float = 0.0,
) -> tuple[Var, ...]:  # fmt: skip
    """Attention of one query for each sequence, to other keys, or to its own behind a cache, which beams may share."""
    q = by_heads(query, num_heads)
    cross = key.ndim == 4
    k, v = (key, value) if cross else (by_heads(x, num_heads) for x in (key, value))
    if bias is not None:
        q, k, v = _biased((q, k, v), bias, whole_keys=not cross)
    if cross:
        seen = _mask(mask_index, k, mask_filter_value)
        y, weights = _attended(q, k, v, [attention_bias, seen], scale)
        return side_by_side(y), sym.identity(k), sym.identity(v), weights
    if not past_present_share_buffer or past_sequence_length is None or past_key is None or past_value is None:
        raise UnsupportedError("a cache in a buffer of its own, with its length, is known", code="GC502")
    past = int(np.max(past_sequence_length))
    caches = [_overwritten(old, new, past) for old, new in ((past_key, k), (past_value, v))]
    k, v = (sym.slice(cache, (0,), (past + 1,), (2,)) for cache in caches)
    if cache_indirection is not None:
        width = int(np.max(beam_width))
        k, v = (_of_beams(x, cache_indirection, width, past) for x in (k, v))
    seen = _mask(mask_index, k, mask_filter_value)
    y, weights = _attended(q, k, v, [attention_bias, seen], scale)
    return side_by_side(y), *caches, weights


def _of_beams(x: Var, indirection: Var, width: int, past: int) -> Var:
    """Keys or values `(N, heads, S, size)`, with the past of the beam that each sequence came from."""
    n = x.shape[0]
    if indirection.shape[:2] != (n // width, width):
        raise ValueError(f"cache_indirection {list(indirection.shape)} does not fit {n} sequences of {width} beams")
    beams = sym.slice(sym.cast(indirection, np.int64), (0,), (past,), (2,))
    first = x.tape.constant(np.arange(n // width).reshape(-1, 1, 1) * width)
    which = sym.reshape(beams + first, (n, past, 1))
    place = sym.expand(sym.reshape(sym.arange(x.tape, past), (1, past, 1)), (n, past, 1))
    turned = sym.transpose(x, (0, 2, 1, 3))
    found = x.tape.apply("GatherND", turned, sym.concat([which, place], 2))
    own = sym.slice(turned, (past,), (past + 1,), (1,))
    return sym.transpose(sym.concat([found, own], 1), (0, 2, 1, 3))


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
    """Queries, keys and values, each plus its part of a bias `(heads * size of q, k and v together)`."""
    sizes = [x.shape[1] * x.shape[3] for x in operands]
    if bias.shape != (sum(sizes),):
        raise ValueError(f"a bias of shape {list(bias.shape)} does not fit {sizes} features")
    pairs = enumerate(zip(operands, sym.split(bias, sizes, 0), strict=True))
    return [x + sym.reshape(b, (x.shape[1], 1, x.shape[3])) if whole_keys or i == 0 else x for i, (x, b) in pairs]


def _grouped(query: Var, key: Var | None, value: Var | None, heads: int, kv_heads: int) -> tuple[Var, Var, Var]:
    if key is not None and value is not None:
        return by_heads(query, heads), by_heads(key, kv_heads), by_heads(value, kv_heads)
    size = query.shape[2] // (heads + 2 * kv_heads)
    parts = sym.split(query, [n * size for n in (heads, kv_heads, kv_heads)], -1)
    q, k, v = (by_heads(x, n) for x, n in zip(parts, (heads, kv_heads, kv_heads), strict=True))
    return q, k, v


def _mask(mask: Var | None, k: Var, hidden: float) -> Var | None:
    """A bias: `hidden` where a mask is 0, or for keys beyond a length, or outside [start, end)."""
    if mask is None:
        return None
    n, _, total, _ = k.shape
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
    return sym.where(visible, mask.tape.constant(0, k.dtype), hidden)


def _causal(q: Var, k: Var) -> Var:
    """-infinity for keys behind a query, the last query standing at the last key."""
    return q.tape.constant(_reach([k.shape[2] - q.shape[2]], q.shape[2], k.shape[2], True, -1, ())[0, 0], q.dtype)


def _attended(
    q: Var, k: Var, v: Var, biases: Sequence[Var | None], scale: float, softcap: float = 0.0, sink: Var | None = None,
    show_scores: bool = False,
) -> tuple[Var, Var]:  # fmt: skip
    """softmax(q k^T scale + biases) v, and the weights, or the scores before them."""
    scores = product_by_heads(q, sym.swap(k)) * (scale or q.shape[-1] ** -0.5)
    scores = sym.tanh(scores / softcap) * softcap if softcap > 0 else scores
    for bias in biases:
        scores = shifted(scores, bias)
    weights = _weights(scores, sink)
    return product_by_heads(weights, v), scores if show_scores else weights


def _weights(scores: Var, sink: Var | None) -> Var:
    """Softmax over keys; a sink of each head takes part and is dropped."""
    if sink is None:
        return scores.tape.apply("Softmax", scores, axis=-1)
    column = sym.expand(sym.reshape(sink, (1, sink.shape[0], 1, 1)), (*scores.shape[:3], 1))
    weights = scores.tape.apply("Softmax", sym.concat([scores, column], -1), axis=-1)
    return sym.slice(weights, (0,), (scores.shape[-1],), (3,))


def _turned(
    parts: Sequence[Var], starts: Sequence[int], cos: Var | None, sin: Var | None, given: Var | None, interleaved: bool
) -> list[Var]:
    """Queries and keys by their positions: behind what is cached, or those that are given."""
    if cos is None or sin is None:
        raise ValueError("do_rotary needs the caches of cosines and sines")
    places = cos.tape.constant(np.asarray(starts)[:, None] + np.arange(parts[0].shape[2])) if given is None else given
    size, rotate = 2 * cos.shape[1], partial(cos.tape.apply, "RotaryEmbedding", interleaved=int(interleaved))
    sizes = (size if size < x.shape[-1] else 0 for x in parts)
    return [rotate(x, cos, sin, places, rotary_embedding_dim=n) for x, n in zip(parts, sizes, strict=True)]


def _behind(past: Var | None, new: Var, starts: Sequence[int], taken: Sequence[int], total: int) -> Var:
    """The cached keys or values of each sequence, the first `taken` of its new ones behind them, then zeros."""
    room = max(total, 0 if past is None else past.shape[2])
    if past is None or (not any(starts) and min(taken) == new.shape[2]):
        return _filled(new, room)
    rows = []
    for i, (start, count) in enumerate(zip(starts, taken, strict=True)):
        old, mine = (sym.slice(x, (i, 0), (i + 1, n), (0, 2)) for x, n in ((past, start), (new, count)))
        rows.append(_filled(sym.concat([old, mine], 2), room))
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


FUSED_ATTENTION: list[Op] = [
    fused("Attention", attention, roles=trained(1, 2)),
    fused("DecoderMaskedMultiHeadAttention", decoder_masked_multi_head_attention, bind=as_given,
          static={"past_sequence_length": 7, "beam_width": 8}, cuts=deciding(3, 9)),
    fused("GroupQueryAttention", group_query_attention, bind=as_given,
          static={"seqlens_k": 5, "total_sequence_length": 6, "query_seqlens": 16}),
    fused("MRotaryEmbedding", m_rotary_embedding, cuts=deciding(1)),
    fused("MultiHeadAttention", multi_head_attention, roles=trained(3)),
    fused("QAttention", q_attention, cuts=deciding(5), roles=trained(2) | quantized(3, 4, 6, 7)),
    fused("RotaryEmbedding", rotary_embedding),
    fused("SparseAttention", sparse_attention, bind=as_given,
          static={"total_sequence_length": 7, "key_total_sequence_lengths": 8}, cuts=deciding(5, 6)),
]  # fmt: skip
