"""Layers of com.microsoft with states, for sequences of several lengths whose tokens are concatenated.

They can also give the operands of the first few steps of each sequence, for a caller that goes back and replays them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from gradcheck_cli.autodiff import symbolic as sym
from gradcheck_cli.autodiff.tape import Var
from gradcheck_cli.errors import UnsupportedError
from gradcheck_cli.op import Op, trained
from gradcheck_cli.ops.onnxruntime.fused import fused
from gradcheck_cli.ops.onnxruntime.fused_layers import WIDEST, causal_conv_with_state
from gradcheck_cli.ops.recurrent import check_rule, packed, recurrence, widened

_ACTIVATIONS = {"none": "none", "softplus": "softplus", "qwen": "softplus", "sigmoid": "sigmoid", "kda": "sigmoid"}
_LEAST_SQUARES = {"sigmoid": 1e-6}  # added to a sum of squares under a root, by gate; 1e-12 for others


def varlen_causal_conv_with_state(
    x: Var, weight: Var, bias: Var | None, initial_state: Var, kernel_delta: Var | None = None,
    previous_mask: Var | None = None, *, activation: str = "none", capture_count: Sequence[int] | None = None,
    cumulative_sequence_length: Sequence[int], delta_offset: int = 0, dilation: int = 1, group_size: int = 1,
    state_update_capacity: int = 0,
) -> tuple[Var, Var, Var]:  # fmt: skip
    """CausalConvWithState of each sequence in x `(tokens, C)`, all states, and the first tokens of each sequence."""
    if kernel_delta is not None or previous_mask is not None or (group_size, delta_offset) != (1, 0):
        raise UnsupportedError("kernel_delta, previous_mask, group_size and delta_offset are not known", code="GC502")
    if x.ndim != 2:
        raise ValueError(f"the input is (tokens, channels), not {list(x.shape)}")
    spans = _spans(cumulative_sequence_length, x.shape[0])
    counts = _counts(capture_count, state_update_capacity, spans)
    if initial_state.shape[:1] != (len(spans),):
        raise ValueError(f"initial_state {list(initial_state.shape)} does not fit {len(spans)} sequences")
    ys, states = [], []
    for i, span in enumerate(spans):
        rows, before = sym.unsqueeze(sym.swap(_tokens(x, *span)), (0,)), _tokens(initial_state, i, i + 1)
        y, after = causal_conv_with_state(rows, weight, bias, before, activation=activation, dilation=dilation)
        ys.append(sym.swap(sym.squeeze(y, (0,))))
        states.append(after)
    seen = [_first_tokens(x, span[0], n, state_update_capacity) for span, n in zip(spans, counts, strict=True)]
    return sym.concat(ys, 0), sym.concat(states, 0), sym.stack(seen, 0)


@dataclass(frozen=True, slots=True)
class DecayGate:
    """The activations that make decays and rates of raw projections; `lower` is the bound of a decay by a sigmoid."""

    activation: str
    lower: float
    beta: str

    def __post_init__(self) -> None:
        if self.activation not in _ACTIVATIONS or self.beta not in ("none", "sigmoid"):
            raise ValueError(f"gate_activation is {self.activation!r}, known are {', '.join(_ACTIVATIONS)}; "
                             f"beta_activation {self.beta!r}, known are none, sigmoid")  # fmt: skip
        if not (np.isfinite(self.lower) and self.lower < 0):
            raise ValueError(f"gate_lower_bound is {self.lower}; it is negative and finite")

    def check(self, a_log: Var | None, dt_bias: Var | None, heads: int, size: int) -> None:
        """Raises ValueError if biases do not go with the activation, or do not fit the heads."""
        kind = _ACTIVATIONS[self.activation]
        if any((x is None) != (kind == "none") for x in (a_log, dt_bias)):
            raise ValueError(f"a_log and dt_bias go with a gate_activation, which is {self.activation!r}")
        if a_log is None or dt_bias is None:
            return
        if a_log.shape != (heads,) or dt_bias.shape not in ((heads,), (heads, size), (heads * size,)):
            raise ValueError(f"a_log {list(a_log.shape)} and dt_bias {list(dt_bias.shape)} do not fit {[heads, size]}")

    def decay(self, raw: Var, a_log: Var | None, dt_bias: Var | None) -> Var:
        """The logarithm of the decay, `(tokens, heads, 1 or size)`."""
        kind, wide, heads = _ACTIVATIONS[self.activation], widened(raw), raw.shape[1]
        if a_log is None or dt_bias is None:
            return wide
        scale = sym.exp(sym.reshape(sym.cast(a_log, wide.dtype), (heads, 1)))
        shifted = wide + sym.reshape(sym.cast(dt_bias, wide.dtype), (heads, dt_bias.size // heads))
        return -scale * sym.softplus(shifted) if kind == "softplus" else self.lower * sym.sigmoid(scale * shifted)

    def rate(self, raw: Var) -> Var:
        """The share of the difference to the state that a step adds, `(tokens, heads, 1)`."""
        return sym.sigmoid(widened(raw)) if self.beta == "sigmoid" else widened(raw)


def gated_delta_net(
    query: Var, key: Var | None = None, value: Var | None = None, decay: Var | None = None, beta: Var | None = None,
    initial_state: Var | None = None, a_log: Var | None = None, dt_bias: Var | None = None, *,
    beta_activation: str = "none", capture_count: Sequence[int] | None = None, chunk_size: int = 64,
    cu_seqlens: Sequence[int] | None = None, gate_activation: str = "none", gate_lower_bound: float = -5.0,
    qk_l2_norm: int = 0, scale: float = 0.0, state_update_active: Sequence[int] = (1,), state_update_capacity: int = 0,
    update_rule: str = "gated_delta", n_outputs: int = 1,
) -> tuple[Var, ...]:  # fmt: skip
    """LinearAttention of each sequence, with heads of q and k shared by several of v, and the states `(d_v, d_k)`.

    A third output has, for the first steps, the operands that replay them: the decay, the key and the row that is
    added.
    """
    check_rule(update_rule, decay, beta)
    gate = DecayGate(gate_activation, gate_lower_bound, beta_activation)
    lead, (q, k, v) = _heads(query, key, value, initial_state)
    if qk_l2_norm:
        least = _LEAST_SQUARES.get(_ACTIVATIONS[gate_activation], 1e-12)
        q, k = (x / sym.sqrt(sym.sum(x * x, (-1,)) + least) for x in (q, k))
    tokens, heads, size = v.shape[0], v.shape[1], q.shape[2]
    spans = _batches(cu_seqlens, lead, initial_state)
    counts = _counts(capture_count, state_update_capacity, spans)
    raw = None if decay is None else _per_head(decay, lead, heads, size)
    gate.check(a_log, dt_bias, heads, size if decay is not None and decay.ndim > len(lead) + 1 else 0)
    g = None if raw is None else sym.exp(gate.decay(raw, a_log, dt_bias))
    rates = None if beta is None else gate.rate(_per_head(beta, lead, heads))
    shape = len(spans), heads, v.shape[2], size
    states = sym.full(q.tape, shape, 0, q.dtype) if initial_state is None else sym.cast(initial_state, q.dtype)
    if states.shape != shape:
        raise ValueError(f"initial_state has shape {list(states.shape)}; it needs {list(shape)}")
    read, keys = (sym.repeat(x, heads // x.shape[1], 1) for x in (q, k))  # a head is shared by several of v
    read, rows = read * (scale or size**-0.5), (keys, v, g, rates)
    y, added, last = _recurred(read, rows, states, spans if cu_seqlens is not None else [(0, tokens)])
    outputs = sym.cast(sym.reshape(y, (*lead, *v.shape[1:])), query.dtype), last
    if n_outputs < 3:
        return outputs
    if g is None:
        g = sym.full(q.tape, (tokens, heads, 1), 1, q.dtype)
    if not state_update_active[0]:
        counts = (0,) * len(spans)
    return *outputs, _replay((g, k, added), spans, counts, state_update_capacity)


def _heads(query: Var, key: Var | None, value: Var | None, state: Var | None) -> tuple[tuple[int, ...], list[Var]]:
    """The axes of tokens, and q, k and v as `(tokens, heads, size)`, at least in float32."""
    if (key is None) != (value is None):
        raise ValueError("key and value are both given, or neither is")
    if key is None or value is None:
        lead, parts = query.shape[:-1], _unpacked(query, state)
    else:
        lead, parts = query.shape[:-2], [query, key, value]
        if not query.ndim == key.ndim == value.ndim or any(x.shape[:-2] != lead for x in parts):
            raise ValueError("query, key and value have as many axes each, and the same tokens")
    if len(lead) not in (1, 2) or parts[0].shape[-2:] != parts[1].shape[-2:]:
        raise ValueError(f"query {list(parts[0].shape)} and key {list(parts[1].shape)} are (tokens, heads, size), or "
                         "with an axis of sequences before them, and of the same heads")  # fmt: skip
    if not parts[0].shape[-2] or parts[2].shape[-2] % parts[0].shape[-2]:
        raise ValueError(f"{parts[2].shape[-2]} heads of value cannot share {parts[0].shape[-2]} of query")
    return lead, [sym.reshape(widened(x), (int(np.prod(lead)), *x.shape[-2:])) for x in parts]


def _unpacked(x: Var, state: Var | None) -> list[Var]:
    """q, k and v from their concatenation along the last axis; sizes are those of the state."""
    if state is None or state.ndim != 4:
        raise ValueError("query, key and value in one need initial_state (sequences, heads, d_v, d_k)")
    heads, values, size = state.shape[1:]
    both = x.shape[-1] - heads * values
    if both <= 0 or both % (2 * size):
        raise ValueError(f"{x.shape[-1]} features are not 2 heads of {size} for query and key, and {heads} of {values}")
    parts = sym.split(x, (both // 2, both // 2, heads * values), -1)
    widths = size, size, values
    return [sym.reshape(p, (*x.shape[:-1], p.shape[-1] // n, n)) for p, n in zip(parts, widths, strict=True)]


def _per_head(x: Var, lead: tuple[int, ...], heads: int, *sizes: int) -> Var:
    """A value for each token and head, `(tokens, heads, 1 or size)`."""
    shapes = [(*lead, heads), *((*lead, heads, size) for size in sizes)]
    if x.shape not in shapes:
        raise ValueError(f"{list(x.shape)} is not {' or '.join(str(list(shape)) for shape in shapes)}")
    return sym.reshape(x, (int(np.prod(lead)), heads, x.shape[-1] if x.shape != shapes[0] else 1))


def _recurred(
    q: Var, rows: Sequence[Var | None], states: Var, spans: Sequence[tuple[int, int]]
) -> tuple[Var, Var, Var]:
    """The rows that all tokens read, those that they add, `(tokens, heads, d_v)` each, and the last states.

    Sequences that share a span go through its steps together.
    """
    _, heads, values, _ = states.shape
    ys: list[Var] = []
    adds: list[Var] = []
    lasts, count = [], states.shape[0] // len(spans)
    for i, (start, end) in enumerate(spans):
        given = [x and _by_sequence(_tokens(x, start, end), count) for x in rows]
        read = sym.unsqueeze(_by_sequence(_tokens(q, start, end), count), (2,))
        state = sym.swap(_tokens(states, i * count, (i + 1) * count))
        found, added, last = recurrence(read, given, state)
        for parts, rest in ((found, ys), (added, adds)):
            rest.append(sym.reshape(packed(parts, states, (count, heads, values)), (end - start, heads, values)))
        lasts.append(sym.swap(last))
    return sym.concat(ys, 0), sym.concat(adds, 0), sym.identity(sym.concat(lasts, 0))


def _replay(parts: Sequence[Var], spans: Sequence[tuple[int, int]], counts: Sequence[int], capacity: int) -> Var:
    """For each sequence, the first entries of all parts, concatenated, with zeros up to the capacity."""
    rows = [
        [sym.reshape(_first_tokens(part, start, n, capacity), (1, -1)) for part in parts]
        for (start, _), n in zip(spans, counts, strict=True)
    ] if capacity else [[sym.full(parts[0].tape, (1, 0), 0, parts[0].dtype)]] * len(spans)  # fmt: skip
    return sym.concat([sym.concat(row, 1) for row in rows], 0)


def _by_sequence(x: Var, count: int) -> Var:
    """`(tokens, heads, size)` of sequences of one length as `(sequences, heads, steps, size)`."""
    return sym.transpose(sym.reshape(x, (count, x.shape[0] // count, *x.shape[1:])), (0, 2, 1, 3))


def _tokens(x: Var, start: int, end: int) -> Var:
    return x if (start, end) == (0, x.shape[0]) else sym.slice(x, (start,), (end,), (0,))


def _first_tokens(x: Var, start: int, count: int, capacity: int) -> Var:
    """`count` entries from `start` on, and zeros up to the capacity."""
    taken = sym.slice(x, (start,), (start + count,), (0,))
    return sym.pad(taken, (*(0,) * x.ndim, capacity - count, *(0,) * (x.ndim - 1)))


def _batches(bounds: Sequence[int] | None, lead: tuple[int, ...], state: Var | None) -> list[tuple[int, int]]:
    """The span of the tokens of each sequence; without bounds all have one length."""
    tokens = int(np.prod(lead))
    if bounds is not None:
        if len(lead) != 1:
            raise ValueError("cu_seqlens goes with one axis of tokens")
        return _spans(bounds, tokens)
    if state is None:
        raise ValueError("sequences are counted by cu_seqlens or initial_state, and neither is given")
    count = state.shape[0]
    if not count or not tokens or tokens % count or (len(lead) == 2 and lead[0] != count):
        raise ValueError(f"tokens {list(lead)} are not of {count} sequences of one length")
    return list(pairwise(range(0, tokens + 1, tokens // count)))


def _spans(bounds: Sequence[int], tokens: int) -> list[tuple[int, int]]:
    """The begin and the end of each sequence."""
    spans = list(pairwise(bounds))
    if not spans or bounds[0] != 0 or bounds[-1] != tokens or any(end < start for start, end in spans):
        raise ValueError(f"bounds {list(bounds)[:8]} of sequences do not go up from 0 to {tokens}")
    return spans


def _counts(counts: Sequence[int] | None, capacity: int, spans: Sequence[tuple[int, int]]) -> tuple[int, ...]:
    """The number of first steps of each sequence that are kept."""
    if not 0 <= capacity <= WIDEST or (counts is None) != (capacity == 0):
        raise ValueError(f"state_update_capacity is {capacity}, 0 to {WIDEST}; capture_count goes with a positive one")
    if counts is None:
        return (0,) * len(spans)
    if len(counts) != len(spans):
        raise ValueError(f"{len(counts)} counts for {len(spans)} sequences")
    return tuple(max(0, min(n, capacity, end - start)) for n, (start, end) in zip(counts, spans, strict=True))


FUSED_PACKED: list[Op] = [
    fused("GatedDeltaNet", gated_delta_net, static={"cu_seqlens": 3, "capture_count": 9, "state_update_active": 10},
          roles=trained(7, 8)),
    fused("VarlenCausalConvWithState", varlen_causal_conv_with_state,
          static={"cumulative_sequence_length": 2, "capture_count": 5}, roles=trained(1, 3)),
]  # fmt: skip
