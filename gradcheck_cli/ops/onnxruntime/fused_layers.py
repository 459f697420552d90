"""Layers of com.microsoft: normalizations fused with what is around them, residual streams, and layers with a state.

The branches of a residual stream stand along an axis before the features, `(..., C, H)`, or side by side in one axis,
`(..., C * H)`.  A window of states holds those after each of the last steps, zeros for steps that this call has not.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from gradcheck_cli.autodiff import symbolic as sym
from gradcheck_cli.autodiff.tape import Var
from gradcheck_cli.errors import UnsupportedError
from gradcheck_cli.op import Op, attributes_of, composite, counting, deciding, either, require_known, trained
from gradcheck_cli.op.batching import Kernel
from gradcheck_cli.ops.normalization import inverse_rms
from gradcheck_cli.ops.onnxruntime.fused import channels_back, channels_first, fused
from gradcheck_cli.ops.recurrent import causal_conv, linear_attention

SMALL, EPSILON = 9.999999960041972e-13, 9.999999747378752e-06
WIDEST = 8  # window of states
_LEAST = 1e-6  # of a product under the square root of an engram's gate


def simplified_layer_normalization(x: Var, scale: Var, *, axis: int = -1, epsilon: float = EPSILON) -> tuple[Var, Var]:
    """RMSNormalization, with the inverse of the root mean square."""
    y = x.tape.apply("RMSNormalization", x, scale, axis=axis, epsilon=epsilon)
    return y, inverse_rms(x, axis, epsilon)


def skip_layer_normalization(
    x: Var, skip: Var, gamma: Var, beta: Var | None = None, bias: Var | None = None, *, epsilon: float = SMALL
) -> tuple[Var, ...]:
    """LayerNormalization of x + skip + bias; with the mean, the inverse deviation and that sum."""
    total = _total(x, skip, bias)
    attrs = {"axis": -1, "epsilon": epsilon}
    return *x.tape.emit("LayerNormalization", (total, gamma, beta), attrs, n_outputs=3), total


def skip_simplified_layer_normalization(
    x: Var, skip: Var, gamma: Var, bias: Var | None = None, *, epsilon: float = SMALL
) -> tuple[Var, ...]:
    """RMSNormalization of x + skip + bias; then zeros, the inverse of the root mean square, and that sum."""
    total = _total(x, skip, bias)
    y, inverse = simplified_layer_normalization(total, gamma, epsilon=epsilon)
    return y, sym.zeros_like(inverse), inverse, total


def embed_layer_normalization(
    input_ids: Var, segment_ids: Var | None, word_embedding: Var, position_embedding: Var,
    segment_embedding: Var | None, gamma: Var, beta: Var, mask: Var | None = None, position_ids: Var | None = None, *,
    epsilon: float = SMALL, mask_index_type: int = 0,
) -> tuple[Var, ...]:  # fmt: skip
    """LayerNormalization of the embeddings of words, places and segments; how many words count; their sum."""
    places = _places(input_ids, gamma) if position_ids is None else position_ids
    total = _rows(word_embedding, input_ids) + _rows(position_embedding, places)
    if segment_ids is not None and segment_embedding is not None:
        total = total + _rows(segment_embedding, segment_ids)
    y = gamma.tape.apply("LayerNormalization", total, gamma, beta, axis=-1, epsilon=epsilon)
    return y, _counted(mask, input_ids, gamma), total


def qembed_layer_normalization(
    input_ids: Var, segment_ids: Var | None, word_embedding: Var, position_embedding: Var,
    segment_embedding: Var | None, gamma: Var, beta: Var, mask: Var | None, word_scale: Var, position_scale: Var,
    segment_scale: Var | None, gamma_scale: Var, beta_scale: Var, word_zero_point: Var, position_zero_point: Var,
    segment_zero_point: Var | None, gamma_zero_point: Var, beta_zero_point: Var, *, epsilon: float = SMALL,
) -> tuple[Var, Var]:  # fmt: skip
    """EmbedLayerNormalization of tables in integers, each with a scale and a zero point."""
    words = _decoded(_rows(word_embedding, input_ids), word_scale, word_zero_point)
    places = _rows(position_embedding, _places(input_ids, word_scale))
    total = words + _decoded(places, position_scale, position_zero_point)
    group = segment_ids, segment_embedding, segment_scale, segment_zero_point
    if segment_ids is not None and segment_embedding is not None and segment_scale is not None:
        total = total + _decoded(_rows(segment_embedding, segment_ids), segment_scale, segment_zero_point)
    elif any(part is not None for part in group):
        raise ValueError("segment_ids come with their table, its scale and its zero point")
    scale, shift = _decoded(gamma, gamma_scale, gamma_zero_point), _decoded(beta, beta_scale, beta_zero_point)
    y = total.tape.apply("LayerNormalization", total, scale, shift, axis=-1, epsilon=epsilon)
    return y, _counted(mask, input_ids, word_scale)


def _places(ids: Var, like: Var) -> Var:
    """The position of each word in its row."""
    return sym.arange(like.tape, ids.shape[1])


def _counted(mask: Var | None, ids: Var, like: Var) -> Var:
    """The number of words that count in each row; 0 without a mask."""
    if mask is None:
        return sym.full(like.tape, ids.shape[:1], 0, np.int32)
    return sym.cast(sym.sum(sym.cast(sym.equal(mask, 1), np.int32), (1,), keepdims=False), np.int32)


def _decoded(x: Var, scale: Var, zero_point: Var | None) -> Var:
    return x.tape.apply("DequantizeLinear", x, scale, zero_point)


def group_norm(
    x: Var, gamma: Var, beta: Var, *, activation: int, channels_last: int = 1, epsilon: float = EPSILON, groups: int
) -> Var:
    """GroupNormalization of images, with channels last by default, and Silu if `activation` is 1."""
    require_known("activation", activation, (0, 1))
    first = channels_first(x) if channels_last else x
    y = x.tape.apply("GroupNormalization", first, gamma, beta, num_groups=groups, epsilon=epsilon)
    y = channels_back(y) if channels_last else y
    return y * sym.sigmoid(y) if activation else y


@attributes_of(group_norm)
def skip_group_norm(
    x: Var, gamma: Var, beta: Var, skip: Var, bias: Var | None = None, *, channels_last: int = 1, **norm: Any
) -> tuple[Var, Var]:
    """GroupNorm of x + skip + bias, and that sum."""
    spatial = range(1, x.ndim - 1) if channels_last else range(2, x.ndim)
    total = x + (sym.unsqueeze(skip, spatial) if skip.ndim == 2 else skip)
    if bias is not None:
        total = total + (bias if channels_last else sym.unsqueeze(bias, range(1, x.ndim - 1)))
    return group_norm(total, gamma, beta, channels_last=channels_last, **norm), total


def gated_rms_norm(x: Var, scale: Var, gate: Var, *, activation: str = "silu", epsilon: float = EPSILON) -> Var:
    """RMSNormalization of groups of as many entries as the scale has, times a gate's Silu or sigmoid."""
    require_known("activation", activation, ("silu", "swish", "sigmoid"))
    if not scale.size or x.shape[-1] % scale.size:
        raise ValueError(f"{x.shape[-1]} features are no groups of {scale.size}")
    groups = sym.reshape(x, (*x.shape[:-1], x.shape[-1] // scale.size, scale.size))
    y = sym.reshape(x.tape.apply("RMSNormalization", groups, scale, axis=-1, epsilon=epsilon), x.shape)
    return y * (sym.sigmoid(gate) if activation == "sigmoid" else gate * sym.sigmoid(gate))


def _total(x: Var, skip: Var, bias: Var | None) -> Var:
    return x + skip if bias is None else x + skip + bias


def _rows(table: Var, ids: Var) -> Var:
    return table.tape.apply("Gather", table, ids, axis=0)


def branchwise_rms_norm(x: Var, scale: Var | None = None, *, epsilon: float = EPSILON, num_branches: int = 0) -> Var:
    """RMSNormalization of each branch, times a scale for all of them or for each."""
    parts = _branches(x, num_branches)
    y = _normalized(parts, epsilon)
    if scale is not None:
        wide = sym.cast(scale, x.dtype)
        y = y * (wide if scale.shape[-1:] == parts.shape[-1:] else sym.reshape(wide, parts.shape[-2:]))
    return sym.reshape(y, x.shape)


def hyper_connection_pre_mix(streams: Var, mix: Var, *, num_branches: int = 0, reduction_scale: float = 1.0) -> Var:
    """The sum of all branches, each times its gate, and times a number."""
    parts = _branches(streams, num_branches)
    return sym.sum(parts * _gates(mix, parts), (-2,), keepdims=False) * reduction_scale


def hyper_connection_post_mix(
    streams: Var, block: Var, mix: Var, stream_mix: Var | None = None, *, num_branches: int = 0
) -> Var:
    """Branches mixed with each other by a matrix, plus what a block has made, times a gate for each branch."""
    parts = _branches(streams, num_branches)
    kept = parts if stream_mix is None else sym.matmul(sym.swap(sym.cast(stream_mix, parts.dtype)), parts)
    y = kept + _gates(mix, parts) * sym.unsqueeze(block, (-2,))
    return sym.reshape(y, streams.shape)


def gated_add(x: Var, y: Var, gate: Var, gate_weight: Var | None = None) -> Var:
    """x plus y times a gate for each row: a number, or the sigmoid of features times weights."""
    if gate_weight is not None:
        gate = sym.sigmoid(sym.matmul(gate, gate_weight))
    if gate.shape != (*x.shape[:-1], 1) or y.shape != x.shape:
        wanted = f"y is {list(x.shape)} and the gate {[*x.shape[:-1], 1]}"
        raise ValueError(f"{wanted}, not {list(y.shape)} and {list(gate.shape)}")
    return x + y * gate


def engram_gate(
    key: Var, query: Var, value: Var, key_scale: Var, query_scale: Var, conv_scale: Var | None = None, *,
    epsilon: float = EPSILON, n_outputs: int = 1,
) -> tuple[Var, ...]:  # fmt: skip
    """A value times a gate that finds out how a key fits a query, `(N, S, branches, H)`; and that, normalized."""
    product = _normalized(key, epsilon) * key_scale * (_normalized(query, epsilon) * query_scale)
    dot = sym.sum(product, (-1,)) / float(np.sqrt(key.shape[-1]))
    gate = sym.sigmoid(sym.sign(dot) * sym.sqrt(sym.maximum(sym.abs(dot), _LEAST)))
    y = gate * sym.unsqueeze(value, (-2,))
    if n_outputs < 2:
        return (y,)
    if conv_scale is None:
        raise ValueError("gated_value_normed needs conv_norm_scale")
    return y, _normalized(y, epsilon) * conv_scale


def _branches(x: Var, count: int) -> Var:
    """`(..., C, H)`."""
    if not count:
        return x
    if x.shape[-1] % count:
        raise ValueError(f"{x.shape[-1]} features are no {count} branches")
    return sym.reshape(x, (*x.shape[:-1], count, x.shape[-1] // count))


def _gates(mix: Var, parts: Var) -> Var:
    """Gates as they broadcast against branches `(..., C, H)`: one for each branch, or for each feature."""
    wide = sym.cast(mix, parts.dtype)
    lead, (count, size) = parts.shape[:-2], parts.shape[-2:]
    if mix.shape in ((*lead, count, 1), (*lead, count, size)):
        return wide
    if mix.shape == (*lead, count):
        return sym.unsqueeze(wide, (-1,))
    if mix.shape == (*lead, count * size):
        return sym.reshape(wide, parts.shape)
    raise ValueError(f"gates {list(mix.shape)} do not fit branches {list(parts.shape)}")


def _normalized(x: Var, epsilon: float) -> Var:
    return x / sym.sqrt(sym.mean(x * x, (-1,)) + epsilon)


def causal_conv_with_state(
    x: Var, weight: Var, bias: Var | None = None, past_state: Var | None = None, *, activation: str = "none",
    channels_last: int = 0, dilation: int = 1, input_channel_offset: int = 0, input_channels: int = 0, ndim: int = 1,
    state_channels_last: int = -1, state_length: int = 0, state_update_capacity: int = 0, state_window: int = 0,
) -> tuple[Var, Var]:  # fmt: skip
    """Each channel of x filtered by itself, looking back along the last axis; and what the next call looks back on."""
    _check_window(state_window)
    if dilation < 1:
        raise ValueError(f"dilation is {dilation}; it is 1 or more")
    if any((input_channel_offset, input_channels, state_channels_last + 1, state_length, state_update_capacity)):
        raise UnsupportedError("CausalConvWithState of some channels, or with states of another length or layout, is not "
                               "known: onnxruntime has it for GPUs alone", code="GC502")  # fmt: skip
    if ndim != 1:
        raise UnsupportedError(f"CausalConvWithState over {ndim} axes is not known, over one it is", code="GC502")
    tail = x.shape[2:] if channels_last else ()
    rows, past = _first(x) if channels_last else x, _latest(past_state, state_window)
    past = past if past is None or not channels_last else _first(past)
    y, whole = causal_conv(rows, weight, bias, past, activation, dilation)
    length, reach = rows.shape[2], whole.shape[2] - rows.shape[2]
    made = [sym.slice(whole, (end,), (end + reach,), (2,)) for end in _ends(length, state_window)]
    made = [_last(state, tail) if channels_last else state for state in made]
    return _last(y, tail) if channels_last else y, _windowed(made, state_window)


def _latest(states: Var | None, window: int) -> Var | None:
    """The last state, or of a window of states the last one."""
    return states if states is None or not window else sym.take(states, window - 1, 0)


@attributes_of(linear_attention)
def linear_attention_with_window(
    query: Var, key: Var, value: Var, past_state: Var | None = None, decay: Var | None = None,
    beta: Var | None = None, *, kv_num_heads: int, q_num_heads: int, scale: float = 0.0, state_window: int = 0, **rule: Any,
) -> tuple[Var, Var]:  # fmt: skip
    """ONNX's LinearAttention, where heads of keys may share one of q too; with a window of states if asked for."""
    _check_window(state_window)
    state, steps = _latest(past_state, state_window), query.shape[1]
    given: list[Any] = [query, key, value, decay, beta]
    if kv_num_heads > q_num_heads > 0 and kv_num_heads % q_num_heads == 0:  # one head of q reads several states
        scale = scale or (query.shape[2] // q_num_heads) ** -0.5
        (*lead, size), times = query.shape, kv_num_heads // q_num_heads
        heads = sym.reshape(query, (*lead, q_num_heads, size // q_num_heads))
        given[0] = sym.reshape(sym.repeat(heads, times, 2), (*lead, times * size))
        q_num_heads = kv_num_heads
    run: Kernel = partial(linear_attention, q_num_heads=q_num_heads, kv_num_heads=kv_num_heads, scale=scale, **rule)
    cuts, ys, states, start = _ends(steps, state_window), list[Var](), list[Var](), 0
    for end in dict.fromkeys([*cuts, steps]):
        q, k, v, *gates = (x and sym.slice(x, (start,), (end,), (1,)) for x in given)
        y, state = run(q, k, v, state, *gates)
        ys.append(y)
        states.append(state)
        start = end
    return sym.concat(ys, 1), _windowed(states[-len(cuts) :], state_window)


def linear_attention_gate(a: Var, dt_bias: Var, decay_scale: Var, b: Var | None = None) -> tuple[Var, ...]:
    """The decay, a scale times the Softplus of a and a bias, and the rate, the sigmoid of b."""
    wide = sym.cast(a, np.result_type(a.dtype, dt_bias.dtype)) + dt_bias
    decay = sym.cast(decay_scale * sym.softplus(wide), a.dtype)
    return (decay,) if b is None else (decay, sym.sigmoid(b))


def _check_window(window: int) -> None:
    if not 0 <= window <= WIDEST:
        raise ValueError(f"state_window is {window}; it is 0 to {WIDEST}")


def _ends(length: int, window: int) -> list[int]:
    """After how many steps a state is kept: the last ones of a window, or the last one alone."""
    return [end for end in range(length - max(window, 1) + 1, length + 1) if end > 0 or end == length]


def _windowed(states: list[Var], window: int) -> Var:
    """The last state, or the states of a window along a new first axis, zeros before them."""
    if not window:
        return states[-1]
    stacked = sym.stack(states[-window:], 0)
    return sym.pad(stacked, (window - stacked.shape[0], *(0,) * (2 * stacked.ndim - 1)))


def _first(x: Var) -> Var:
    """`(N, length, *channels)` as `(N, channels, length)`."""
    return sym.transpose(sym.reshape(x, (*x.shape[:2], int(np.prod(x.shape[2:])))), (0, 2, 1))


def _last(x: Var, tail: tuple[int, ...]) -> Var:
    turned = sym.transpose(x, (0, 2, 1))
    return sym.reshape(turned, (*turned.shape[:2], *tail))


FUSED_LAYERS: list[Op] = [
    # Not ONNX's, in its domain.
    composite("SimplifiedLayerNormalization", simplified_layer_normalization, roles=trained(1), channels=-1),
    fused("EmbedLayerNormalization", embed_layer_normalization, cuts=either(counting(1), deciding(0, 1, 7, 8)),
          roles=trained(2, 3, 4, 5, 6)),
    fused("GatedRMSNorm", gated_rms_norm),
    fused("GroupNorm", group_norm, roles=trained(1, 2)),
    fused("QEmbedLayerNormalization", qembed_layer_normalization, cuts=either(counting(1), deciding(0, 1, 7))),
    fused("SkipGroupNorm", skip_group_norm),
    fused("SkipLayerNormalization", skip_layer_normalization, roles=trained(2, 3, 4)),
    fused("SkipSimplifiedLayerNormalization", skip_simplified_layer_normalization, roles=trained(2, 3)),
    fused("BranchwiseRMSNorm", branchwise_rms_norm),
    fused("EngramGate", engram_gate),
    fused("GatedAdd", gated_add),
    fused("HyperConnectionPostMix", hyper_connection_post_mix),
    fused("HyperConnectionPreMix", hyper_connection_pre_mix),
    fused("CausalConvWithState", causal_conv_with_state, roles=trained(1, 2)),
    fused("LinearAttention", linear_attention_with_window),
    fused("LinearAttentionGate", linear_attention_gate),
]  # fmt: skip
