"""Layers of com.microsoft that hand a state on: ONNX's own with windows of states, dilation and channels last.

A window holds the states after each of the last steps, zeros for steps that this call has not.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from gradcheck_cli.autodiff import symbolic as sym
from gradcheck_cli.autodiff.tape import Var
from gradcheck_cli.errors import UnsupportedError
from gradcheck_cli.op import Op
from gradcheck_cli.ops.onnxruntime.fused import fused
from gradcheck_cli.ops.stateful import linear_attention

WIDEST = 8  # window of states


def causal_conv_with_state(
    x: Var, weight: Var, bias: Var | None = None, past_state: Var | None = None, *, activation: str = "none",
    channels_last: int = 0, dilation: int = 1, input_channel_offset: int = 0, input_channels: int = 0, ndim: int = 1,
    state_channels_last: int = -1, state_length: int = 0, state_update_capacity: int = 0, state_window: int = 0,
) -> tuple[Var, Var]:  # fmt: skip
    """Each channel of x filtered by itself, looking back along the last axis; and what the next call looks back on."""
    _check_window(state_window)
    if activation not in ("none", "silu", "swish") or dilation < 1:
        raise ValueError(
            f"activation is {activation!r}, dilation {dilation}; known are none, silu and swish, from 1 on"
        )
    if any((input_channel_offset, input_channels, state_channels_last + 1, state_length, state_update_capacity)):
        raise UnsupportedError("CausalConvWithState of some channels, or with states of another length or layout, is not "
                               "known: onnxruntime has it for GPUs alone", code="GC502")  # fmt: skip
    if ndim != 1:
        raise UnsupportedError(f"CausalConvWithState over {ndim} axes is not known, over one it is", code="GC502")
    tail = x.shape[2:] if channels_last else ()
    rows = _first(x) if channels_last else x
    n, channels, length = rows.shape
    if weight.ndim != 3 or weight.shape[:2] != (channels, 1) or not weight.shape[2]:
        raise ValueError(f"weights {list(weight.shape)} are not [{channels}, 1, k]")
    reach = (weight.shape[2] - 1) * dilation
    before = sym.full(x.tape, (n, channels, reach), 0, x.dtype)
    if past_state is not None:
        last = sym.take(past_state, state_window - 1, 0) if state_window else past_state
        before = _first(last) if channels_last else last
    if before.shape != (n, channels, reach):
        raise ValueError(f"past_state {list(past_state.shape if past_state else ())} holds no {reach} positions")
    seen = sym.concat([before, rows], 2)
    y = x.tape.apply("Conv", seen, weight, bias, group=channels, dilations=(dilation,)) if x.size else rows
    y = y if activation == "none" else y * sym.sigmoid(y)
    made = [sym.slice(seen, (end,), (end + reach,), (2,)) for end in _ends(length, state_window)]
    made = [_last(state, tail) if channels_last else state for state in made]
    return _last(y, tail) if channels_last else y, _windowed(made, state_window)


def linear_attention_with_window(
    query: Var, key: Var, value: Var, past_state: Var | None = None, decay: Var | None = None,
    beta: Var | None = None, *, chunk_size: int = 64, kv_num_heads: int, q_num_heads: int, scale: float = 0.0,
    state_window: int = 0, update_rule: str = "gated_delta",
) -> tuple[Var, Var]:  # fmt: skip
    """ONNX's own, where heads of keys may share one of q as well, with the states after several steps if asked for."""
    _check_window(state_window)
    state = past_state
    if past_state is not None and state_window:
        state = sym.take(past_state, state_window - 1, 0)
    steps = query.shape[1]
    given: list[Any] = [query, key, value, decay, beta]
    if kv_num_heads > q_num_heads > 0 and kv_num_heads % q_num_heads == 0:  # one head of q reads several states
        scale = scale or (query.shape[2] // q_num_heads) ** -0.5
        given[0] = _repeated(query, q_num_heads, kv_num_heads // q_num_heads)
        q_num_heads = kv_num_heads
    run = partial(
        linear_attention, q_num_heads=q_num_heads, kv_num_heads=kv_num_heads, update_rule=update_rule, scale=scale
    )
    cuts = _ends(steps, state_window)
    ys: list[Var] = []
    states: list[Var] = []
    start = 0
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
    stacked = sym.concat([sym.unsqueeze(state, (0,)) for state in states[-window:]], 0)
    return sym.pad(stacked, (window - stacked.shape[0], *(0,) * (2 * stacked.ndim - 1)))


def _repeated(x: Var, heads: int, times: int) -> Var:
    """`(N, S, heads * size)` with every head so many times."""
    apart = sym.reshape(x, (*x.shape[:2], heads, 1, x.shape[2] // heads))
    wide = sym.expand(apart, (*apart.shape[:3], times, apart.shape[4]))
    return sym.reshape(wide, (*x.shape[:2], times * x.shape[2]))


def _first(x: Var) -> Var:
    """`(N, length, *channels)` as `(N, channels, length)`."""
    return sym.transpose(sym.reshape(x, (*x.shape[:2], int(np.prod(x.shape[2:])))), (0, 2, 1))


def _last(x: Var, tail: tuple[int, ...]) -> Var:
    turned = sym.transpose(x, (0, 2, 1))
    return sym.reshape(turned, (*turned.shape[:2], *tail))


FUSED_STATEFUL: list[Op] = [
    fused("CausalConvWithState", causal_conv_with_state),
    fused("LinearAttention", linear_attention_with_window),
    fused("LinearAttentionGate", linear_attention_gate),
]
