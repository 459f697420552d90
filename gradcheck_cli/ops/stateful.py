"""Layers that hand a state from step to step: CausalConvWithState and LinearAttention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gradcheck_cli.autodiff import symbolic as sym
from gradcheck_cli.autodiff.tape import Var
from gradcheck_cli.op import Op, composite

_GATED, _CORRECTED = ("gated", "gated_delta"), ("delta", "gated_delta")


def causal_conv_with_state(
    x: Var, weight: Var, bias: Var | None = None, past_state: Var | None = None, *, activation: str = "none"
) -> tuple[Var, Var]:
    """Each channel of x `(N, C, length)` filtered by itself, looking back; and what the next call looks back on."""
    n, channels = x.shape[:2]
    if activation not in ("none", "silu", "swish"):
        raise ValueError(f"activation is {activation!r}; known are none, silu, swish")
    if x.ndim != 3 or weight.ndim != 3 or weight.shape[:2] != (channels, 1) or not weight.shape[2]:
        raise ValueError(f"x is (N, C, length) and W is (C, 1, k), not {list(x.shape)} and {list(weight.shape)}")
    reach = weight.shape[2] - 1
    before = sym.full(x.tape, (n, channels, reach), 0, x.dtype) if past_state is None else past_state
    if before.shape != (n, channels, reach):
        raise ValueError(f"past_state has shape {list(before.shape)}; it needs {[n, channels, reach]}")
    seen = sym.concat([before, x], 2)
    operands = (seen, weight) if bias is None else (seen, weight, bias)
    y = x.tape.apply("Conv", *operands, group=channels) if x.size else sym.zeros_like(x)
    y = y if activation == "none" else y * sym.sigmoid(y)
    return y, sym.slice(seen, (x.shape[2],), (x.shape[2] + reach,), (2,))


def linear_attention(
    query: Var, key: Var, value: Var, past_state: Var | None = None, decay: Var | None = None,
    beta: Var | None = None, *, q_num_heads: int, kv_num_heads: int, update_rule: str = "gated_delta",
    scale: float = 0.0, chunk_size: int = 64,
) -> tuple[Var, Var]:  # fmt: skip
    """A state S `(N, heads, d_k, d_v)` to which each step adds k v^T, read by q; and the last state.

    A gated rule lets S decay first; a delta rule adds only what v differs by from what k finds, times beta.
    """
    check_rule(update_rule, decay, beta)
    if kv_num_heads < 1 or q_num_heads < 1 or q_num_heads % kv_num_heads:
        raise ValueError(f"{q_num_heads} heads of q cannot share {kv_num_heads} of k and v")
    group, held = q_num_heads // kv_num_heads, query.dtype if past_state is None else past_state.dtype
    q, k, v = (_by_heads(x, h) for x, h in ((query, q_num_heads), (key, kv_num_heads), (value, kv_num_heads)))
    n, _, steps, size = k.shape
    shape = (n, kv_num_heads, size, v.shape[-1])
    if q.shape != (n, q_num_heads, steps, size) or v.shape[:3] != k.shape[:3]:
        raise ValueError("query, key and value do not fit each other")
    if past_state is not None and past_state.shape != shape:
        raise ValueError(f"past_state has shape {list(past_state.shape)}; it needs {list(shape)}")
    state = sym.full(q.tape, shape, 0, q.dtype) if past_state is None else sym.cast(past_state, q.dtype)
    q = sym.reshape(q * (scale or size**-0.5), (n, kv_num_heads, group, steps, size))
    gates = None if decay is None else sym.exp(_gates(decay, kv_num_heads, kv_num_heads * size))
    rates = None if beta is None else _gates(beta, kv_num_heads, 1)
    ys, _, state = recurrence(q, (k, v, gates, rates), state)
    return packed(ys, query, (n, q_num_heads, v.shape[-1])), sym.cast(sym.identity(state), held)


def recurrence(q: Var, given: Sequence[Var | None], state: Var) -> tuple[list[Var], list[Var], Var]:
    """What each step reads and what it adds beside k, and the last state.

    q is `(N, heads, group, steps, d_k)`, and given are k, v, gates and rates `(N, heads, steps, size)`.
    """
    steps, ys, added = q.shape[-2], [], []
    for t, (q_t, *rows) in enumerate(zip(*(_by_step(x, steps) for x in (q, *given)), strict=True)):
        with q.tape.scope(f"step{t}"):
            state, v = _advanced(state, *rows)
            ys.append(sym.matmul(sym.squeeze(q_t, (-2,)), state))
            added.append(v)
    return ys, added, state


def _advanced(state: Var, k: Var, v: Var, gate: Var | None, rate: Var | None) -> tuple[Var, Var]:
    """The state after a step, and the row that it adds beside k.

    k and v are rows `(..., 1, size)`, a gate is a row of numbers for k or one number.
    """
    column = sym.swap(k)
    state = state if gate is None else state * sym.swap(gate)
    v = v if rate is None else rate * (v - sym.matmul(k, state))
    return state + column * v, v


def check_rule(rule: str, decay: Var | None, beta: Var | None) -> None:
    """ValueError for a rule that is not known, or without what it needs, or with what it does not take."""
    known = ("linear", "gated", "delta", "gated_delta")
    if rule not in known:
        raise ValueError(f"update_rule is {rule!r}; known are {', '.join(known)}")
    for name, given, rules in (("decay", decay, _GATED), ("beta", beta, _CORRECTED)):
        if (given is not None) != (rule in rules):
            raise ValueError(f"update_rule {rule!r} {'needs' if given is None else 'takes no'} {name}")


def _by_heads(x: Var, heads: int) -> Var:
    """`(N, steps, heads * size)` as `(N, heads, steps, size)`, at least in float32."""
    if x.ndim != 3 or x.shape[2] % heads:
        raise ValueError(f"{list(x.shape)} is not (N, steps, {heads} heads * size)")
    wide = sym.cast(x, np.float32) if x.dtype.itemsize < 4 else x
    return sym.transpose(sym.reshape(wide, (*x.shape[:2], heads, x.shape[2] // heads)), (0, 2, 1, 3))


def _gates(x: Var, heads: int, other: int) -> Var:
    """What holds for each step and head: one number each, or `other` of them in a row."""
    last = x.shape[-1] if x.ndim == 3 else 0
    if last not in (heads, other):
        raise ValueError(f"{list(x.shape)} holds neither {heads} nor {other} numbers for each step")
    return _by_heads(x, min(last, heads))


def _by_step(x: Var | None, steps: int) -> tuple[Any, ...]:
    """Rows of x, one for each step, or nothing for each."""
    if x is None or not steps:
        return (None,) * steps
    return sym.split(x, (1,) * steps, -2)


def packed(ys: list[Var], like: Var, shape: tuple[int, int, int]) -> Var:
    """What all steps read, `(N, kv heads, group, size)` each, as `(N, steps, heads * size)`."""
    n, heads, size = shape
    if not ys:
        return sym.full(like.tape, (n, 0, heads * size), 0, like.dtype)
    rows = [sym.reshape(y, (n, 1, heads * size)) for y in ys]
    return sym.cast(sym.identity(sym.concat(rows, 1)), like.dtype)


STATEFUL: list[Op] = [
    composite("CausalConvWithState", causal_conv_with_state),
    composite("LinearAttention", linear_attention),
]
