"""Layers with states for sequences of several lengths: every rule, gate and form of what comes in, and what replays."""

from typing import Any

import numpy as np

from tests.ops.case import Case, arr, chain, node
from tests.ops.cases.fused import ms

ENDS = np.array([0, 1, 4, 6], np.int32)
KEYS, VALUES, D_K, D_V = 1, 2, 3, 2


def conv(size: int, *more: Any, reach: int = 2, ends: np.ndarray = ENDS, **attrs: Any) -> Case:
    """A filter of a size for two channels, with a bias unless it is None."""
    states = arr(len(ends) - 1, 2, reach)
    bias, *counts = more or (arr(2),)
    n_outputs = 3 if counts else 2
    return ms("VarlenCausalConvWithState", arr(6, 2), arr(2, 1, size), ends, bias, states, *counts, n_outputs=n_outputs,
              **attrs)  # fmt: skip


def operands(*lead: int, rule: str, per_key: bool = False, queries: int = KEYS) -> list[Any]:
    """Query, key, value, no bounds, decay and beta as a rule takes them."""
    decay = arr(*lead, VALUES, *([D_K] if per_key else []), low=-1, high=0) if "gated" in rule else None
    beta = arr(*lead, VALUES, low=0.1, high=0.9) if "delta" in rule else None
    q, k, v = arr(*lead, queries, D_K), arr(*lead, queries, D_K, seed=1), arr(*lead, VALUES, D_V, seed=2)
    return [q, k, v, None, decay, beta]


def net(
    *lead: int, rule: str, ends: np.ndarray | None = None, state: int = 0, per_key: bool = False, side: bool = False,
    bias: tuple[int, ...] | None = None, counts: np.ndarray | None = None, active: int | None = None,
    queries: int = KEYS, n_outputs: int = 2, label: str = "", **attrs: Any,
) -> Case:  # fmt: skip
    """GatedDeltaNet with a state for so many sequences, with query, key and value side by side if asked for."""
    given = operands(*lead, rule=rule, per_key=per_key, queries=queries)
    if side:
        given[:3] = [np.concatenate([x.reshape(*lead, -1) for x in given[:3]], -1), None, None]
    given[3] = ends
    states = arr(state, VALUES, D_V, D_K) if state else None
    gates = (None, None) if bias is None else (arr(VALUES), arr(*bias, seed=1))
    last = counts if active is None else (counts, np.array([active], np.int32))
    return ms("GatedDeltaNet", *given, states, *gates, *(last if isinstance(last, tuple) else (last,)),
              update_rule=rule, n_outputs=n_outputs, label=label, **attrs)  # fmt: skip


def replayed(counts: list[int], capacity: int, widths: tuple[int, ...], **more: Any) -> Case:
    """Outputs of the first steps replayed, without the entries behind them, which are left open."""
    whole = net(6, ends=ENDS, state=3, counts=np.array(counts, np.int32), n_outputs=3, state_update_capacity=capacity,
                **more)  # fmt: skip
    kept = [max(0, min(n, capacity, length)) for n, length in zip(counts, np.diff(ENDS), strict=True)]
    starts = np.cumsum([0, *(capacity * w for w in widths)])
    row, total = (
        [[start + i for start, w in zip(starts, widths, strict=False) for i in range(n * w)] for n in kept],
        starts[-1],
    )
    places = np.array([i * total + at for i, found in enumerate(row) for at in found])
    first = node(
        "GatedDeltaNet", " ".join(n or "-" for n in whole.names), "y0 y1 update", "com.microsoft", **whole.attrs
    )
    nodes = [first, node("Reshape", "update flat", "all"), node("Gather", "all places", "y2")]
    return chain("GatedDeltaNet", nodes, *whole.inputs, n_outputs=3, domain="com.microsoft",
                 label=f"counts {counts}", flat=np.array([-1]), places=places)  # fmt: skip


CASES = [
    conv(3),
    conv(3, None, activation="silu"),
    conv(2, activation="swish", dilation=2),
    conv(1, reach=0, label="one tap"),
    conv(3, ends=np.array([0, 0, 6], np.int32), label="empty sequence"),
    conv(3, None, np.array([1, 2, 5], np.int32), state_update_capacity=4),
    conv(3, arr(2), np.array([-1, 0, 2], np.int32), state_update_capacity=2, activation="silu"),
    net(6, rule="linear", ends=ENDS),
    net(6, rule="gated", ends=ENDS, state=3, scale=0.7),
    net(6, rule="delta", ends=ENDS, qk_l2_norm=1),
    net(6, rule="gated_delta", ends=ENDS, state=3, qk_l2_norm=1, chunk_size=32),
    net(6, rule="gated_delta", ends=np.array([0, 0, 6], np.int32), state=2, label="empty sequence"),
    net(6, rule="gated_delta", state=2, n_outputs=1),
    net(6, rule="gated", state=3, per_key=True, label="decay for each key"),
    net(2, 3, rule="gated_delta", state=2, per_key=True),
    net(2, 3, rule="linear", state=2, queries=2),
    net(6, rule="gated_delta", ends=ENDS, state=3, side=True),
    net(2, 3, rule="delta", state=2, side=True, queries=2, beta_activation="sigmoid"),
    net(6, rule="gated_delta", state=2, bias=(VALUES,), gate_activation="softplus", beta_activation="sigmoid"),
    net(6, rule="gated", state=2, per_key=True, bias=(VALUES, D_K), gate_activation="qwen"),
    net(6, rule="gated", state=2, per_key=True, bias=(VALUES * D_K,), gate_activation="kda", gate_lower_bound=-1.5),
    net(6, rule="gated_delta", state=2, bias=(VALUES,), gate_activation="sigmoid", qk_l2_norm=1),
    net(6, rule="gated_delta", state=2, per_key=True, bias=(VALUES,), gate_activation="sigmoid"),
    net(6, rule="linear", state=2, bias=(VALUES,), gate_activation="softplus", label="no gate to activate"),
    net(6, rule="gated_delta", state=2, counts=np.array([2, 3], np.int32), n_outputs=3, state_update_capacity=2),
    net(6, rule="linear", state=2, counts=np.array([2, 5], np.int32), n_outputs=3, state_update_capacity=2),
    net(6, rule="gated", state=2, counts=np.array([2, 2], np.int32), active=1, n_outputs=3, state_update_capacity=2,
        per_key=True),
    net(6, rule="gated", state=2, counts=np.array([2, 2], np.int32), active=0, n_outputs=3, state_update_capacity=2,
        label="not active"),
    net(6, rule="delta", state=2, n_outputs=3, label="no room to replay"),
    replayed([1, 2, 1], 3, (VALUES, KEYS * D_K, VALUES * D_V), rule="gated_delta"),
    replayed([-1, 5, 9], 2, (VALUES * D_K, KEYS * D_K, VALUES * D_V), rule="gated_delta", per_key=True, qk_l2_norm=1),
    replayed([0, 1, 2], 2, (VALUES, KEYS * D_K, VALUES * D_V), rule="delta"),
]  # fmt: skip
