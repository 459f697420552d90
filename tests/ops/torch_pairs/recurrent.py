"""LSTM, GRU and RNN."""

from __future__ import annotations

from typing import Any

import torch
from torch.func import functional_call

from tests.ops.case import arr, case
from tests.ops.torch_pairs.pair import Pair

STEPS, BATCH, SIZE, HIDDEN = 4, 2, 3, 5
# Where the gates of torch are among those of ONNX: i o f c against i f g o, z r h against r z n.
GATES = {"LSTM": (0, 2, 3, 1), "GRU": (1, 0, 2), "RNN": (0,)}
SUFFIXES = {"forward": [""], "reverse": [""], "bidirectional": ["", "_reverse"]}


def reordered(w: Any, op: str) -> Any:
    """The rows of ONNX's weights in torch's order."""
    return torch.cat([w.chunk(len(GATES[op]))[gate] for gate in GATES[op]])


def parameters(op: str, direction: str, w: Any, r: Any, b: Any) -> dict[str, Any]:
    """Torch's parameters by name."""
    named = {}
    for i, suffix in enumerate(SUFFIXES[direction]):
        named[f"weight_ih_l0{suffix}"] = reordered(w[i], op)
        named[f"weight_hh_l0{suffix}"] = reordered(r[i], op)
        if b is not None:
            named[f"bias_ih_l0{suffix}"], named[f"bias_hh_l0{suffix}"] = (reordered(h, op) for h in b[i].chunk(2))
    return named


def recurrent(op: str, direction: str, x: Any, w: Any, r: Any, b: Any, state: Any) -> Any:
    """Outputs as ONNX has them: Y with an axis of directions, then the last states."""
    both = direction == "bidirectional"
    options = {"bidirectional": both, "bias": b is not None, "dtype": torch.float64}
    module = getattr(torch.nn, op)(SIZE, HIDDEN, **options)
    x = x.flip(0) if direction == "reverse" else x
    y, last = functional_call(module, parameters(op, direction, w, r, b), (x, state))
    y = y.unflatten(2, (1 + both, HIDDEN)).transpose(1, 2)
    y = y.flip(0) if direction == "reverse" else y
    return (y, *last) if op == "LSTM" else (y, last)


def recurrent_pair(op: str, direction: str, bias: bool, initial: bool, **attrs: Any) -> Pair:
    """A recurrent operator with all of its outputs."""
    sides, gates, states = len(SUFFIXES[direction]), len(GATES[op]), 2 if op == "LSTM" else 1
    small = {"low": -0.7, "high": 0.7}
    weights = [arr(sides, gates * HIDDEN, size, **small) for size in (SIZE, HIDDEN)]
    b = arr(sides, 2 * gates * HIDDEN, **small) if bias else None
    given = [arr(sides, BATCH, HIDDEN, seed=i) if initial else None for i in range(states)]
    inputs = [arr(STEPS, BATCH, SIZE), *weights, b, None, *given]

    def function(x: Any, w: Any, r: Any, b: Any, lengths: Any, *state: Any) -> Any:
        start = state if op == "LSTM" else state[0]
        return recurrent(op, direction, x, w, r, b, start if initial else None)

    one = case(op, *inputs, hidden_size=HIDDEN, direction=direction, n_outputs=1 + states, **attrs)
    return Pair(one, function)


PAIRS = [
    recurrent_pair(op, direction, bias, initial, **attrs)
    for op, attrs in [("LSTM", {}), ("GRU", {"linear_before_reset": 1}), ("RNN", {})]
    for direction in SUFFIXES
    for bias, initial in [(False, False), (True, True)]
]
