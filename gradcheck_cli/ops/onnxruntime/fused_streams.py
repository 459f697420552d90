"""Residual streams of com.microsoft: several branches side by side, normalized each, mixed into one and back, gated.

Branches stand along an axis before the features, `(..., C, H)`, or side by side in one axis, `(..., C * H)`.
"""

from __future__ import annotations

import numpy as np

from gradcheck_cli.autodiff import symbolic as sym
from gradcheck_cli.autodiff.tape import Var
from gradcheck_cli.op import Op
from gradcheck_cli.ops.onnxruntime.fused import fused
from gradcheck_cli.ops.onnxruntime.fused_layers import EPSILON

_LEAST = 1e-6  # of a product under the square root of an engram's gate


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
        raise ValueError(
            f"y is {list(x.shape)} and the gate {[*x.shape[:-1], 1]}, not {list(y.shape)}, {list(gate.shape)}"
        )
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


FUSED_STREAMS: list[Op] = [
    fused("BranchwiseRMSNorm", branchwise_rms_norm),
    fused("EngramGate", engram_gate),
    fused("GatedAdd", gated_add),
    fused("HyperConnectionPostMix", hyper_connection_post_mix),
    fused("HyperConnectionPreMix", hyper_connection_pre_mix),
]
