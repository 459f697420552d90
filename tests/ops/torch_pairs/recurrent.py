"""LSTM, GRU and RNN; with sequences of several lengths, and with the batch in front."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.func import functional_call
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

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


def recurrent(op: str, direction: str, x: Any, w: Any, r: Any, b: Any, state: Any, **more: Any) -> Any:
    """Outputs as ONNX has them: Y with an axis of directions, then the last states."""
    both = direction == "bidirectional"
    options = {"bidirectional": both, "bias": b is not None, "dtype": torch.float64, **more}
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


def packed(op: str, x: Any, w: Any, r: Any, b: Any, lengths: Any) -> Any:
    """Sequences of several lengths in both directions: torch packs them."""
    module = getattr(torch.nn, op)(SIZE, HIDDEN, bidirectional=True, dtype=torch.float64)
    sequences = pack_padded_sequence(x, lengths.long(), enforce_sorted=False)
    y, last = functional_call(module, parameters(op, "bidirectional", w, r, b), (sequences,))
    padded, _ = pad_packed_sequence(y, total_length=STEPS)
    padded = padded.unflatten(2, (2, HIDDEN)).transpose(1, 2)
    return (padded, *last) if op == "LSTM" else (padded, last)


def packed_pair(op: str, **attrs: Any) -> Pair:
    """A bidirectional layer whose sequences end early."""
    gates, small = len(GATES[op]), {"low": -0.7, "high": 0.7}
    weights = [arr(2, gates * HIDDEN, size, **small) for size in (SIZE, HIDDEN)]
    inputs = [arr(STEPS, 3, SIZE), *weights, arr(2, 2 * gates * HIDDEN, **small), np.array([2, 4, 1], np.int32)]
    attrs = {"hidden_size": HIDDEN, "direction": "bidirectional", **attrs}
    one = case(op, *inputs, n_outputs=3 if op == "LSTM" else 2, **attrs)
    return Pair(one, lambda *x: packed(op, *x))


def relu_pair() -> Pair:
    """A plain layer with another activation."""
    one = case(
        "RNN", *recurrent_pair("RNN", "forward", True, False).case.inputs[:4], activations=("Relu",), n_outputs=2
    )
    return Pair(one, lambda x, w, r, b: recurrent("RNN", "forward", x, w, r, b, None, nonlinearity="relu"))


def batch_first_pair(op: str, **attrs: Any) -> Pair:
    """A layer whose sequences and states have the batch in front."""
    x, w, r, b, _, h, *c = recurrent_pair(op, "bidirectional", True, True).case.inputs
    inputs = [x.swapaxes(0, 1), w, r, b, None, h.swapaxes(0, 1), *(v.swapaxes(0, 1) for v in c)]
    attrs = {"hidden_size": HIDDEN, "direction": "bidirectional", "layout": 1, **attrs}

    def function(x: Any, w: Any, r: Any, b: Any, lengths: Any, *state: Any) -> Any:
        turned = [s.transpose(0, 1) for s in state]
        y, *last = recurrent(op, "bidirectional", x.transpose(0, 1), w, r, b, turned if c else turned[0])
        return y.permute(2, 0, 1, 3), *(s.transpose(0, 1) for s in last)

    return Pair(case(op, *inputs, n_outputs=3 if op == "LSTM" else 2, **attrs), function)


PAIRS = [
    packed_pair("LSTM"),
    packed_pair("GRU", linear_before_reset=1),
    packed_pair("RNN"),
    relu_pair(),
    batch_first_pair("LSTM"),
    batch_first_pair("GRU", linear_before_reset=1),
    batch_first_pair("RNN"),
    *[
        recurrent_pair(op, direction, bias, initial, **attrs)
        for op, attrs in [("LSTM", {}), ("GRU", {"linear_before_reset": 1}), ("RNN", {})]
        for direction in SUFFIXES
        for bias, initial in [(False, False), (True, True)]
    ],
]
