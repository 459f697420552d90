"""Layers of com.microsoft with states: windows of them, dilation, channels last, heads of either kind shared."""

from tests.ops.case import Case, arr
from tests.ops.cases.fused import ms

X, W = arr(2, 3, 5), arr(3, 1, 3)


def conv(*inputs: object, **more: object) -> Case:
    return ms("CausalConvWithState", *inputs, n_outputs=2, **more)


def attention(q: int, kv: int, rule: str, *, past: object = None, per_key: bool = False, **more: object) -> Case:
    size, values, steps = 3, 2, 4
    decay = arr(2, steps, kv * size if per_key else kv, low=-1, high=0) if "gated" in rule else None
    beta = arr(2, steps, kv, low=0.1, high=0.9, seed=1) if "delta" in rule else None
    operands = arr(2, steps, q * size), arr(2, steps, kv * size, seed=1), arr(2, steps, kv * values, seed=2)
    return ms("LinearAttention", *operands, past, decay, beta, q_num_heads=q, kv_num_heads=kv, update_rule=rule,
              n_outputs=2, **more)  # fmt: skip


CASES = [
    conv(X, W),
    conv(X, W, arr(3), arr(2, 3, 2), activation="silu"),
    conv(X, W, arr(3), arr(2, 3, 4), dilation=2, activation="swish"),
    conv(X, W, None, arr(4, 2, 3, 2), state_window=4, label="window"),
    conv(arr(2, 3, 1), W, arr(3), arr(2, 2, 3, 2), state_window=2, label="window wider than the call"),
    conv(arr(2, 5, 3), W, arr(3), arr(2, 2, 3), channels_last=1),
    conv(arr(2, 5, 3, 2), arr(6, 1, 2), None, arr(2, 2, 2, 3, 2), channels_last=1, dilation=2, state_window=2),
    attention(2, 2, "linear"),
    attention(4, 2, "gated", scale=0.7),
    attention(2, 1, "delta", past=arr(2, 1, 3, 2)),
    attention(2, 2, "gated_delta", per_key=True, past=arr(2, 2, 3, 2), label="decay for each key"),
    attention(1, 2, "gated_delta", past=arr(2, 2, 3, 2)),
    attention(1, 3, "linear"),
    attention(2, 2, "gated_delta", state_window=2, past=arr(2, 2, 2, 3, 2)),
    attention(2, 2, "gated", state_window=6, label="window wider than the call"),
    ms("LinearAttentionGate", arr(2, 3, 4), arr(4), arr(4, seed=1)),
    ms("LinearAttentionGate", arr(2, 3, 4), arr(4), arr(4, seed=1), arr(2, 3, 4, seed=2), n_outputs=2),
]
