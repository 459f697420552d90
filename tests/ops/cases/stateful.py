"""CausalConvWithState and LinearAttention: every rule, with and without a state from before."""

from typing import Any

from tests.ops.case import Case, arr, case


def linear_attention(
    rule: str, *, heads: tuple[int, int] = (2, 2), state: bool = False, decay: int = 0, beta: int = 0, **attrs: Any
) -> Case:
    """A case for batches of 2, 3 steps, keys of size 2 and values of size 3; `decay` and `beta` are last dimensions."""
    q_heads, kv_heads = heads
    inputs = [arr(2, 3, q_heads * 2), arr(2, 3, kv_heads * 2, low=-0.9, high=0.9), arr(2, 3, kv_heads * 3)]
    inputs += [
        arr(2, kv_heads, 2, 3, seed=1) if state else None,
        arr(2, 3, decay, low=-1.0, high=-0.1) if decay else None,
        arr(2, 3, beta, low=0.1, high=0.9) if beta else None,
    ]
    while inputs[-1] is None:
        inputs.pop()
    attrs = {"q_num_heads": q_heads, "kv_num_heads": kv_heads, "update_rule": rule, **attrs}
    return case("LinearAttention", *inputs, n_outputs=2, **attrs)


CASES = [
    case("CausalConvWithState", arr(2, 3, 5), arr(3, 1, 3), n_outputs=2),
    case("CausalConvWithState", arr(2, 3, 5), arr(3, 1, 3), arr(3), n_outputs=2),
    case("CausalConvWithState", arr(2, 3, 5), arr(3, 1, 3), arr(3), arr(2, 3, 2), n_outputs=2),
    case("CausalConvWithState", arr(2, 3, 4), arr(3, 1, 2), None, arr(2, 3, 1), activation="silu", n_outputs=2),
    case("CausalConvWithState", arr(1, 2, 4), arr(2, 1, 2), activation="swish"),
    case("CausalConvWithState", arr(1, 2, 1), arr(2, 1, 4), None, arr(1, 2, 3), n_outputs=2, label="short"),
    case("CausalConvWithState", arr(1, 2, 3), arr(2, 1, 1), n_outputs=2, label="no state"),
    linear_attention("linear"),
    linear_attention("linear", state=True, scale=0.5, chunk_size=2),
    linear_attention("gated", decay=2),
    linear_attention("gated", decay=4, state=True, heads=(4, 2)),
    linear_attention("delta", beta=2),
    linear_attention("delta", beta=1, state=True, heads=(2, 1)),
    linear_attention("gated_delta", decay=2, beta=2),
    linear_attention("gated_delta", decay=4, beta=1, state=True, heads=(4, 2)),
    case("LinearAttention", arr(1, 0, 2), arr(1, 0, 2), arr(1, 0, 3), arr(1, 1, 2, 3), q_num_heads=1, kv_num_heads=1,
         update_rule="linear", n_outputs=2, label="no steps"),
]  # fmt: skip
