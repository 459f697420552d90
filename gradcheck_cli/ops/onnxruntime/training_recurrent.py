"""LSTM and GRU in onnxruntime's training graphs: forward with the values of their gates, and derivatives from those.

As in that runtime, sequences run forward and all have one length, and activations are sigmoid and tanh.  Gates are
stacked along the last axis as in W: input, output, forget and cell of LSTM; update, reset and hidden of GRU.
"""

from __future__ import annotations

from collections.abc import Sequence

from gradcheck_cli.autodiff import symbolic as sym
from gradcheck_cli.autodiff.tape import Var
from gradcheck_cli.op import Op
from gradcheck_cli.ops.onnxruntime.fused import fused
from gradcheck_cli.ops.recurrent import RecurrentLayer, affine, seen

LSTM_ACTIVATIONS, GRU_ACTIVATIONS = ("sigmoid", "tanh", "tanh"), ("sigmoid", "tanh")


def lstm_training(
    x: Var, w: Var, r: Var, b: Var | None = None, sequence_lens: Var | None = None, initial_h: Var | None = None,
    initial_c: Var | None = None, p: Var | None = None, *, activations: tuple[str, ...] = LSTM_ACTIVATIONS,
    clip: float | None = None, direction: str = "forward", hidden_size: int | None = None, input_forget: int = 0,
) -> tuple[Var, ...]:  # fmt: skip
    """All hidden states, the last ones, the last cell states, all cell states, and the gates of every step."""
    _check(activations, LSTM_ACTIVATIONS, direction, [clip, sequence_lens], input_forget)
    layer = RecurrentLayer(x, w, r, b, None, 4, direction, 0, hidden_size)
    h, c, back, size = layer.initial(initial_h, 0), layer.initial(initial_c, 0), layer.recurrence(0), layer.hidden
    peep_i, peep_o, peep_f = (None,) * 3 if p is None else sym.split(sym.squeeze(p, (0,)), (size,) * 3, -1)
    made = []
    for piece in layer.inputs(0, layer.biases(0)[0]):
        i, o, f, g = sym.split(piece + sym.matmul(h, back), (size,) * 4, -1)
        i, f, g = sym.sigmoid(seen(i, peep_i, c)), sym.sigmoid(seen(f, peep_f, c)), sym.tanh(g)
        c = f * c + i * g
        o = sym.sigmoid(seen(o, peep_o, c))
        h = o * sym.tanh(c)
        made.append((h, c, sym.concat([i, o, f, g], -1)))
    hs, cs, gates = (_sequence(steps) for steps in zip(*made, strict=True))
    return hs, _state(h), _state(c), cs, gates


def lstm_grad(
    x: Var, w: Var, r: Var, sequence_lens: Var | None, initial_h: Var | None, initial_c: Var | None, hs: Var, cs: Var,
    gates: Var, dy: Var | None = None, dh: Var | None = None, dc: Var | None = None, *,
    activations: tuple[str, ...] = LSTM_ACTIVATIONS, clip: float | None = None, direction: str = "forward",
    hidden_size: int | None = None, input_forget: int = 0,
) -> tuple[Var, ...]:  # fmt: skip
    """Cotangents of X, W, R, B, both initial states and the peepholes, which are no input and count as zeros."""
    _check(activations, LSTM_ACTIVATIONS, direction, [clip, sequence_lens], input_forget)
    old_h, old_c, size = _before(hs, initial_h), _before(cs, initial_c), r.shape[-1]
    flow_h, flow_c, sent = _last(hs, dh), _last(cs, dc), []
    for t in reversed(range(x.shape[0])):
        flow_h = flow_h if dy is None else flow_h + _at(dy, t)
        i, o, f, g = sym.split(_at(gates, t), (size,) * 4, -1)
        shown = sym.tanh(_at(cs, t))
        flow_c = flow_c + flow_h * o * (1.0 - shown * shown)
        d_i, d_f = flow_c * g * i * (1.0 - i), flow_c * _at(old_c, t) * f * (1.0 - f)
        d_o, d_g = flow_h * shown * o * (1.0 - o), flow_c * i * (1.0 - g * g)
        sent.append(sym.concat([d_i, d_o, d_f, d_g], -1))
        flow_h, flow_c = sym.matmul(sent[-1], sym.squeeze(r, (0,))), flow_c * f
    rows = _rows(_sequence(sent[::-1]))
    d_x, d_w, d_b = _through_inputs(rows, x, w)
    d_i, d_o, d_f, _ = sym.split(rows, (size,) * 4, -1)
    seen = [d_i * _rows(old_c), d_o * _rows(cs), d_f * _rows(old_c)]
    d_p = sym.sum(sym.concat(seen, -1), (0,))
    return d_x, d_w, _product(rows, old_h), sym.concat([d_b, d_b], -1), _state(flow_h), _state(flow_c), d_p


def gru_training(
    x: Var, w: Var, r: Var, b: Var | None = None, sequence_lens: Var | None = None, initial_h: Var | None = None, *,
    activations: tuple[str, ...] = GRU_ACTIVATIONS, clip: float | None = None, direction: str = "forward",
    hidden_size: int | None = None, linear_before_reset: int = 0,
) -> tuple[Var, Var, Var]:  # fmt: skip
    """All hidden states, the last ones, and the gates of every step."""
    _check(activations, GRU_ACTIVATIONS, direction, [clip, sequence_lens])
    layer = RecurrentLayer(x, w, r, b, None, 3, direction, 0, hidden_size)
    h, size = layer.initial(initial_h, 0), layer.hidden
    back_zr, back_n = sym.split(layer.recurrence(0), (2 * size, size), -1)
    bias, apart = layer.biases(0, apart=True)
    apart_zr, apart_n = (None, None) if apart is None else sym.split(apart, (2 * size, size), -1)
    made = []
    for piece in layer.inputs(0, bias):
        x_zr, x_n = sym.split(piece, (2 * size, size), -1)
        z, reset = sym.split(sym.sigmoid(affine(h, back_zr, apart_zr) + x_zr), (size, size), -1)
        mixed = reset * affine(h, back_n, apart_n) if linear_before_reset else affine(reset * h, back_n, apart_n)
        n = sym.tanh(mixed + x_n)
        h = n + z * (h - n)
        made.append((h, sym.concat([z, reset, n], -1)))
    hs, gates = (_sequence(steps) for steps in zip(*made, strict=True))
    return hs, _state(h), gates


def gru_grad(
    x: Var, w: Var, r: Var, b: Var | None, sequence_lens: Var | None, initial_h: Var | None, hs: Var, gates: Var,
    dy: Var | None = None, dh: Var | None = None, *, activations: tuple[str, ...] = GRU_ACTIVATIONS,
    clip: float | None = None, direction: str = "forward", hidden_size: int | None = None, linear_before_reset: int = 0,
) -> tuple[Var, ...]:  # fmt: skip
    """Cotangents of X, W, R, B and the initial state."""
    _check(activations, GRU_ACTIVATIONS, direction, [clip, sequence_lens])
    size, old_h, flow = r.shape[-1], _before(hs, initial_h), _last(hs, dh)
    r_zr, r_n = sym.split(sym.squeeze(r, (0,)), (2 * size, size), 0)
    apart_n = None if b is None else sym.squeeze(sym.slice(b, (5 * size,), (6 * size,), (1,)), (0,))
    sent, sent_back = [], []
    for t in reversed(range(x.shape[0])):
        flow, h = flow if dy is None else flow + _at(dy, t), _at(old_h, t)
        z, reset, n = sym.split(_at(gates, t), (size,) * 3, -1)
        d_z, d_n = flow * (h - n) * z * (1.0 - z), flow * (1.0 - z) * (1.0 - n * n)
        if linear_before_reset:
            d_mixed, d_reset = d_n * reset, d_n * affine(h, sym.swap(r_n), apart_n)
            to_h = sym.matmul(d_mixed, r_n)
        else:
            d_mixed, back = d_n, sym.matmul(d_n, r_n)
            d_reset, to_h = back * h, back * reset
        gates_zr = sym.concat([d_z, d_reset * reset * (1.0 - reset)], -1)
        sent.append(sym.concat([gates_zr, d_n], -1))
        sent_back.append(sym.concat([gates_zr, d_mixed], -1))
        flow = flow * z + sym.matmul(gates_zr, r_zr) + to_h
    d_x, d_w, d_b = _through_inputs(_rows(_sequence(sent[::-1])), x, w)
    rows = _rows(_sequence(sent_back[::-1]))
    rows_zr, rows_n = sym.split(rows, (2 * size, size), -1)
    read = old_h if linear_before_reset else sym.split(gates, (size,) * 3, -1)[1] * old_h
    d_r = sym.concat([_product(rows_zr, old_h), _product(rows_n, read)], 1)
    return d_x, d_w, d_r, sym.concat([d_b, sym.sum(rows, (0,))], -1), _state(flow)


def _check(
    activations: Sequence[str], known: Sequence[str], direction: str, refused: Sequence[object], input_forget: int = 0
) -> None:
    """Raises an error for everything that onnxruntime-training refuses."""
    if [name.lower() for name in activations] != list(known):
        raise ValueError(f"activations are {', '.join(activations)}; known are {', '.join(known)}")
    if direction != "forward" or input_forget or any(x is not None for x in refused):
        raise ValueError("known are direction forward and input_forget 0, without clip and sequence_lens")


def _through_inputs(rows: Var, x: Var, w: Var) -> tuple[Var, Var, Var]:
    """Cotangents of X, W and a bias from those of gates `(T * N, gates * H)`."""
    d_x = sym.reshape(sym.matmul(rows, sym.squeeze(w, (0,))), x.shape)
    return d_x, _product(rows, x), sym.sum(rows, (0,))


def _product(rows: Var, x: Var) -> Var:
    """The sum over steps and sequences of cotangents of gates times their operands: `(1, gates * H, features)`."""
    return sym.unsqueeze(sym.matmul(sym.swap(rows), _rows(x)), (0,))


def _rows(x: Var) -> Var:
    """A sequence `(T, ..., N, H)` as `(T * N, H)`."""
    return sym.reshape(x, (-1, x.shape[-1]))


def _at(sequence: Var, t: int) -> Var:
    """Step t of `(T, 1, N, H)`: `(N, H)`."""
    return sym.squeeze(sym.slice(sequence, (t,), (t + 1,), (0,)), (0, 1))


def _before(sequence: Var, initial: Var | None) -> Var:
    """The states that steps begin with: the initial one, or zeros, then all but the last."""
    first = sym.full(sequence.tape, sequence.shape[1:], 0, sequence.dtype) if initial is None else initial
    start = sym.unsqueeze(first, (0,))
    return sym.concat([start, sym.slice(sequence, (0,), (sequence.shape[0] - 1,), (0,))], 0)


def _last(sequence: Var, ct: Var | None) -> Var:
    """The cotangent of the last state, zeros if there is none: `(N, H)`."""
    return sym.full(sequence.tape, sequence.shape[2:], 0, sequence.dtype) if ct is None else sym.squeeze(ct, (0,))


def _sequence(steps: Sequence[Var]) -> Var:
    """States of steps `(N, H)` as `(T, 1, N, H)`."""
    return sym.concat([sym.unsqueeze(step, (0, 1)) for step in steps], 0)


def _state(x: Var) -> Var:
    """`(N, H)` with the axis of directions."""
    return sym.unsqueeze(x, (0,))


TRAINING_RECURRENT: list[Op] = [
    fused("GRUGrad", gru_grad),
    fused("GRUTraining", gru_training),
    fused("LSTMGrad", lstm_grad),
    fused("LSTMTraining", lstm_training),
]
