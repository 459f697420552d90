"""Layers of com.microsoft into which onnxruntime fuses normalizations: with a skip connection, an embedding, a gate."""

from __future__ import annotations

import numpy as np

from gradcheck_cli.autodiff import symbolic as sym
from gradcheck_cli.autodiff.tape import Var
from gradcheck_cli.op import Op, composite, counting, deciding, either
from gradcheck_cli.ops.normalization import inverse_rms
from gradcheck_cli.ops.onnxruntime.fused import fused

SMALL, EPSILON = 9.999999960041972e-13, 9.999999747378752e-06


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
    """RMSNormalization of x + skip + bias; with nothing, the inverse of the root mean square, and that sum."""
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
    """How many words of each row count; 0 without a mask."""
    if mask is None:
        return sym.full(like.tape, ids.shape[:1], 0, np.int32)
    return sym.cast(sym.sum(sym.cast(sym.equal(mask, 1), np.int32), (1,), keepdims=False), np.int32)


def _decoded(x: Var, scale: Var, zero_point: Var | None) -> Var:
    return x.tape.apply("DequantizeLinear", x, scale, zero_point)


def group_norm(
    x: Var, gamma: Var, beta: Var, *, activation: int, channels_last: int = 1, epsilon: float = EPSILON, groups: int
) -> Var:
    """GroupNormalization of images, with channels last by default, and Silu if `activation` is 1."""
    if activation not in (0, 1):
        raise ValueError(f"activation is {activation}; known are 0 and 1")
    first = sym.transpose(x, (0, x.ndim - 1, *range(1, x.ndim - 1))) if channels_last else x
    y = x.tape.apply("GroupNormalization", first, gamma, beta, num_groups=groups, epsilon=epsilon)
    y = sym.transpose(y, (0, *range(2, x.ndim), 1)) if channels_last else y
    return y * sym.sigmoid(y) if activation else y


def skip_group_norm(
    x: Var, gamma: Var, beta: Var, skip: Var, bias: Var | None = None, *, activation: int, channels_last: int = 1,
    epsilon: float = EPSILON, groups: int,
) -> tuple[Var, Var]:  # fmt: skip
    """GroupNorm of x + skip + bias, and that sum."""
    spatial = range(1, x.ndim - 1) if channels_last else range(2, x.ndim)
    total = x + (sym.unsqueeze(skip, spatial) if skip.ndim == 2 else skip)
    if bias is not None:
        total = total + (bias if channels_last else sym.unsqueeze(bias, range(1, x.ndim - 1)))
    y = group_norm(
        total, gamma, beta, activation=activation, channels_last=channels_last, epsilon=epsilon, groups=groups
    )
    return y, total


def gated_rms_norm(x: Var, scale: Var, gate: Var, *, activation: str = "silu", epsilon: float = EPSILON) -> Var:
    """RMSNormalization of groups of as many entries as the scale has, times a gate's Silu or sigmoid."""
    if activation not in ("silu", "swish", "sigmoid"):
        raise ValueError(f"activation is {activation!r}; known are 'silu', 'swish' and 'sigmoid'")
    if not scale.size or x.shape[-1] % scale.size:
        raise ValueError(f"{x.shape[-1]} features are no groups of {scale.size}")
    groups = sym.reshape(x, (*x.shape[:-1], x.shape[-1] // scale.size, scale.size))
    y = sym.reshape(x.tape.apply("RMSNormalization", groups, scale, axis=-1, epsilon=epsilon), x.shape)
    return y * (sym.sigmoid(gate) if activation == "sigmoid" else gate * sym.sigmoid(gate))


def _total(x: Var, skip: Var, bias: Var | None) -> Var:
    return x + skip if bias is None else x + skip + bias


def _rows(table: Var, ids: Var) -> Var:
    return table.tape.apply("Gather", table, ids, axis=0)


FUSED_LAYERS: list[Op] = [
    composite("SimplifiedLayerNormalization", simplified_layer_normalization),  # which is not ONNX's, in its domain
    fused("EmbedLayerNormalization", embed_layer_normalization, cuts=either(counting(1), deciding(0, 1, 7, 8))),
    fused("GatedRMSNorm", gated_rms_norm),
    fused("GroupNorm", group_norm),
    fused("QEmbedLayerNormalization", qembed_layer_normalization, cuts=either(counting(1), deciding(0, 1, 7))),
    fused("SkipGroupNorm", skip_group_norm),
    fused("SkipLayerNormalization", skip_layer_normalization),
    fused("SkipSimplifiedLayerNormalization", skip_simplified_layer_normalization),
]
