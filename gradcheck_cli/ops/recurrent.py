"""Recurrent layers: RNN, GRU and LSTM, all steps at once where they are smooth, else unrolled step by step.

Inside, sequences are `(T, N, ...)` and each direction runs by itself.  A step beyond the length of its
sequence keeps the state and gives 0, so that a reverse run begins at the last step that counts and nothing
need be reversed.

Layers that hand a state from step to step: CausalConvWithState and LinearAttention.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import numpy as np

from gradcheck_cli.autodiff import symbolic as sym
from gradcheck_cli.autodiff.backward import inexact
from gradcheck_cli.autodiff.tape import Var
from gradcheck_cli.op import Along, Op, Ops, attributes_of, composite, deciding, require_known, trained
from gradcheck_cli.ops import OPS
from gradcheck_cli.ops.activation import HARD_SLOPE, LEAK
from gradcheck_cli.ops.attention import by_heads
from gradcheck_cli.ops.recurrent_steps import DEFAULTS, SMOOTH

Activation = Callable[[Var], Var]
Cell = Callable[..., tuple[Var, ...]]
Layers = Callable[..., "RecurrentLayer"]  # a class of layers, which run their steps in one way
LSTM = ("Sigmoid", "Tanh", "Tanh")  # its activations by default: of gates, of the cell, of the output

# name: operator, then alpha and beta by default, None where it takes none
_ACTIVATIONS: dict[str, tuple[str, float | None, float | None]] = {
    "relu": ("Relu", None, None), "tanh": ("Tanh", None, None), "sigmoid": ("Sigmoid", None, None),
    "softsign": ("Softsign", None, None), "softplus": ("Softplus", None, None), "affine": ("", 1.0, 0.0),
    "leakyrelu": ("LeakyRelu", LEAK, None), "thresholdedrelu": ("ThresholdedRelu", 1.0, None),
    "scaledtanh": ("", 1.0, 1.0), "hardsigmoid": ("HardSigmoid", HARD_SLOPE, 0.5), "elu": ("Elu", 1.0, None),
}  # fmt: skip
_PARTS = [  # operators that a smooth layer is unrolled into
    "Add", "Concat", "MatMul", "Mul", "Reshape", "Sigmoid", "Softplus", "Softsign", "Split", "Squeeze", "Sub", "Tanh",
    "Transpose", "Where",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class RecurrentLayer:
    """The operands and settings that the three layers share; `gates` are the matrices stacked in W and R."""

    x: Var
    w: Var
    r: Var
    b: Var | None
    lengths: Var | None
    gates: int
    direction: str
    layout: int
    hidden_size: int | None

    def __post_init__(self) -> None:
        hidden, count = self.hidden, self.directions
        require_known("direction", self.direction, ("forward", "reverse", "bidirectional"))
        require_known("layout", self.layout, (0, 1))
        fits = self.x.ndim == 3 and self.w.shape == (count, self.gates * hidden, self.x.shape[2])
        if not fits or self.r.shape != (count, self.gates * hidden, hidden):
            raise ValueError(f"x, W and R do not fit {count} directions of {self.gates} gates")
        if self.lengths is not None and self.lengths.shape != (self.batch,):
            raise ValueError(f"sequence_lens has {list(self.lengths.shape)} entries for {self.batch} sequences")
        if self.hidden_size not in (None, hidden):
            raise ValueError(f"hidden_size is {self.hidden_size}, that of R is {hidden}")

    @property
    def directions(self) -> int:
        return 2 if self.direction == "bidirectional" else 1

    @property
    def hidden(self) -> int:
        return self.r.shape[-1]

    @property
    def steps(self) -> int:
        return self.x.shape[self.layout]

    @property
    def batch(self) -> int:
        return self.x.shape[1 - self.layout]

    def initial(self, state: Var | None, direction: int) -> Var:
        """A state before the first step, `(N, H)`."""
        if state is None:
            return sym.full(self.x.tape, (self.batch, self.hidden), 0, self.x.dtype)
        axes = (self.batch, self.directions) if self.layout else (self.directions, self.batch)
        if state.shape != (*axes, self.hidden):
            raise ValueError(f"an initial state is {[*axes, self.hidden]}, not {list(state.shape)}")
        return part(state, direction, axis=self.layout)

    def biases(self, direction: int, *, apart: bool = False) -> tuple[Var | None, Var | None]:
        """The biases of the input and of the state, `(gates * H,)`; their sum and None unless `apart`."""
        if self.b is None:
            return None, None
        size = self.gates * self.hidden
        first, second = sym.split(part(self.b, direction), (size, size), -1)
        return (first, second) if apart else (first + second, None)

    def backwards(self, direction: int) -> bool:
        """True if the last step runs first."""
        return self.direction == "reverse" or direction == 1

    def inputs(self, direction: int, bias: Var | None) -> Any:
        """W x + bias of every step, `(N, gates * H)`, by one product; in a list."""
        x = sym.transpose(self.x, (1, 0, 2)) if self.layout else self.x
        rows = sym.reshape(x, (self.steps * self.batch, x.shape[-1]))
        y = affine(rows, sym.transpose(part(self.w, direction), (1, 0)), bias)
        return list(sym.split(y, (self.batch,) * self.steps, 0)) if self.steps else []

    def recurrence(self, direction: int) -> Var:
        """R as the right factor, `(H, gates * H)`."""
        return sym.transpose(part(self.r, direction), (1, 0))

    def looking_back(self, direction: int) -> Activation:
        """The product of a hidden state with R, as a function of the state."""
        back = self.recurrence(direction)
        return lambda h: sym.matmul(h, back)

    def run(self, direction: int, xs: Any, states: tuple[Var, ...], cell: Cell) -> tuple[Any, Any]:
        """The hidden state after every step, in order of time in a list, and the last states."""
        ys: list[Var] = []
        way = "backward" if self.backwards(direction) else "step"
        times = range(self.steps)[:: -1 if self.backwards(direction) else 1]
        for t in times:
            with self.x.tape.scope(f"{way}{t}"):
                y, states = self.advance(t, states, cell(xs[t], *states))
                ys.append(y)
        return ys[:: times.step], states

    def advance(self, t: int, old: tuple[Var, ...], new: tuple[Var, ...]) -> tuple[Var, tuple[Var, ...]]:
        """The output of step t and the states after it, where it is within the length of the sequence."""
        if self.lengths is None:
            return new[0], new
        counts = sym.unsqueeze(self.lengths > t, (-1,))
        return sym.where(counts, new[0], 0), tuple(sym.where(counts, n, o) for n, o in zip(new, old, strict=True))

    def runs_at_once(self, op: str, operands: Sequence[Var | None], **attrs: Any) -> bool:
        """True if all steps are to be one step of the tape; here each is unrolled."""
        return False

    def sequence(self, runs: Sequence[Any]) -> Var:
        """The output Y of hidden states by direction and step."""
        shape = self.steps, 1, self.batch, self.hidden
        if self.steps:
            y = sym.concat([sym.reshape(sym.concat(ys, 0), shape) for ys in runs], 1)
        else:
            y = sym.full(self.x.tape, (0, self.directions, *shape[2:]), 0, self.x.dtype)
        return sym.transpose(y, (2, 0, 1, 3)) if self.layout else y

    def final(self, states: Sequence[Var]) -> Var:
        """The output Y_h or Y_c of the last states by direction."""
        return sym.stack(states, self.layout)


class WholeLayer(RecurrentLayer):
    """A recurrent layer that runs all of its steps at once where it is smooth and all rules are gradcheck's own."""

    __slots__ = ()

    def runs_at_once(self, op: str, operands: Sequence[Var | None], **attrs: Any) -> bool:
        """True if all steps are to be one step of the tape."""
        kinds, ops, floats = DEFAULTS[op], self.x.tape.ops, [x for x in operands if x is not None and inexact(x)]
        names, count = attrs.get("activations") or kinds * self.directions, len(kinds) * self.directions
        smooth = attrs.get("clip") is None and all(name.lower() in SMOOTH for name in names) and len(names) >= count
        plain = {x.dtype for x in floats} in ({np.dtype(np.float32)}, {np.dtype(np.float64)})
        if not (smooth and plain and self.steps) or ("gradcheck", op) not in ops:
            return False
        self._require_shapes(operands)
        return all(ops.get(("", part)) is OPS["", part] for part in _PARTS)

    def _require_shapes(self, operands: Sequence[Var | None]) -> None:
        """ValueError for a bias, a state or peepholes of a wrong shape."""
        count, size, states = self.directions, self.hidden, (self.directions, self.batch, self.hidden)
        states = (self.batch, count, size) if self.layout else states
        needed = {3: (count, 2 * self.gates * size), 5: states, 6: states, 7: (count, 3 * size)}
        for place, shape in needed.items():
            x = operands[place] if place < len(operands) else None
            if x is not None and x.shape != shape:
                named = {3: "B", 7: "P"}.get(place, "an initial state")
                raise ValueError(f"{named} is {list(shape)}, not {list(x.shape)}")


def at_once(op: str, operands: Sequence[Var | None], **attrs: Any) -> tuple[Var, ...]:
    """All outputs of a layer by one node."""
    given = {key: value for key, value in attrs.items() if value is not None and key not in ("clip", "hidden_size")}
    tape = next(x.tape for x in operands if x is not None)
    return tape.emit(op, operands, given, domain="gradcheck", n_outputs=3 if op == "LSTM" else 2)


def prepared(
    layers: Layers, operands: Sequence[Any], kinds: tuple[str, ...], *, activations: tuple[str, ...] = (),
    activation_alpha: tuple[float, ...] = (), activation_beta: tuple[float, ...] = (), clip: float | None = None,
    direction: str = "forward", hidden_size: int | None = None, layout: int = 0,
) -> tuple[RecurrentLayer, Iterator[Activation]]:  # fmt: skip
    """A layer of x, W, R, B, lengths and a number of gates; and its activations in turn, by default of some kinds."""
    layer = layers(*operands, direction, layout, hidden_size)
    names, count = activations or kinds * layer.directions, len(kinds) * layer.directions
    return layer, iter(_activations(names, activation_alpha, activation_beta, clip, count))


def unrolled(
    layer: RecurrentLayer, begin: Callable[[int], tuple[Var | None, tuple[Var, ...], Cell]]
) -> tuple[Var, ...]:
    """The hidden states of all steps, the last ones, and the last cell states if there are any.

    `begin` gives for a direction the bias of W x, the states before the first step, and the step.
    """
    runs, finals = [], []
    for d in range(layer.directions):
        bias, states, cell = begin(d)
        ys, last = layer.run(d, layer.inputs(d, bias), states, cell)
        runs.append(ys)
        finals.append(last[:2])
    return layer.sequence(runs), *map(layer.final, zip(*finals, strict=True))


@attributes_of(prepared)
def rnn(
    layers: Layers, x: Var, w: Var, r: Var, b: Var | None = None, sequence_lens: Var | None = None,
    initial_h: Var | None = None, *, activations: tuple[str, ...] = ("Tanh", "Tanh"), **common: Any,
) -> tuple[Var, ...]:  # fmt: skip
    """h' = f(W x + R h + bias)."""
    layer, chosen = prepared(layers, (x, w, r, b, sequence_lens, 1), ("Tanh",), activations=activations, **common)
    operands, attrs = (x, w, r, b, sequence_lens, initial_h), {**common, "activations": activations}
    if layer.runs_at_once("RNN", operands, **attrs):
        return at_once("RNN", operands, **attrs)

    def begin(d: int) -> tuple[Var | None, tuple[Var, ...], Cell]:
        f, back = next(chosen), layer.looking_back(d)
        return layer.biases(d)[0], (layer.initial(initial_h, d),), lambda x, h: (f(x + back(h)),)

    return unrolled(layer, begin)


@attributes_of(prepared)
def gru(
    layers: Layers, x: Var, w: Var, r: Var, b: Var | None = None, sequence_lens: Var | None = None,
    initial_h: Var | None = None, *, linear_before_reset: int = 0, **common: Any,
) -> tuple[Var, ...]:  # fmt: skip
    """h' = (1 - z) n + z h with an update gate z; the candidate n sees h through a reset gate."""
    layer, chosen = prepared(layers, (x, w, r, b, sequence_lens, 3), ("Sigmoid", "Tanh"), **common)
    operands = (x, w, r, b, sequence_lens, initial_h)
    if layer.runs_at_once("GRU", operands, **common):
        return at_once("GRU", operands, linear_before_reset=linear_before_reset, **common)

    def begin(d: int) -> tuple[Var | None, tuple[Var, ...], Cell]:
        bias, apart = layer.biases(d, apart=bool(linear_before_reset))
        cell = _gru_cell(layer.recurrence(d), apart, next(chosen), next(chosen), bool(linear_before_reset))
        return bias, (layer.initial(initial_h, d),), cell

    return unrolled(layer, begin)


def _gru_cell(back: Var, bias: Var | None, f: Activation, g: Activation, linear_before_reset: bool) -> Cell:
    hidden = back.shape[0]
    back_gates, back_new = sym.split(back, (2 * hidden, hidden), -1)
    bias_gates, bias_new = (None, None) if bias is None else sym.split(bias, (2 * hidden, hidden), -1)

    def cell(x: Var, h: Var) -> tuple[Var, ...]:
        x_gates, x_new = sym.split(x, (2 * hidden, hidden), -1)
        gates = f(x_gates + affine(h, back_gates, bias_gates))
        update, reset = sym.split(gates, (hidden, hidden), -1)
        if linear_before_reset:
            new = g(x_new + reset * affine(h, back_new, bias_new))
        else:
            new = g(x_new + sym.matmul(reset * h, back_new))
        return (new + update * (h - new),)

    return cell


@attributes_of(prepared)
def lstm(
    layers: Layers, x: Var, w: Var, r: Var, b: Var | None = None, sequence_lens: Var | None = None,
    initial_h: Var | None = None, initial_c: Var | None = None, p: Var | None = None, *, input_forget: int = 0,
    **common: Any,
) -> tuple[Var, ...]:  # fmt: skip
    """c' = forget c + input g, h' = output h(c'), with gates that may look at c through peepholes p."""
    layer, chosen = prepared(layers, (x, w, r, b, sequence_lens, 4), LSTM, **common)
    operands = (x, w, r, b, sequence_lens, initial_h, initial_c, p)
    if layer.runs_at_once("LSTM", operands, **common):
        return at_once("LSTM", operands, input_forget=input_forget, **common)

    def begin(d: int) -> tuple[Var | None, tuple[Var, ...], Cell]:
        start = layer.initial(initial_h, d), layer.initial(initial_c, d)
        return layer.biases(d)[0], start, lstm_cell(layer, d, p, chosen, bool(input_forget))

    return unrolled(layer, begin)


def lstm_cell(layer: RecurrentLayer, d: int, p: Var | None, chosen: Iterator[Activation], input_forget: bool) -> Cell:
    """A step of a direction: from W x, h and c to h and c, by the next activations."""
    f, g, last = (next(chosen) for _ in range(3))
    size, back = layer.hidden, layer.looking_back(d)
    peep_i, peep_o, peep_f = (None,) * 3 if p is None else sym.split(part(p, d), (size,) * 3, -1)

    def apart(x: Var, h: Var, c: Var) -> tuple[Var, ...]:
        i, o, forget, new = sym.split(x + back(h), (size,) * 4, -1)
        i = f(seen(i, peep_i, c))
        forget = 1.0 - i if input_forget else f(seen(forget, peep_f, c))
        c = forget * c + i * g(new)
        return f(seen(o, peep_o, c)) * last(c), c

    def joined(x: Var, h: Var, c: Var) -> tuple[Var, ...]:  # one node for the three gates
        gates, new = sym.split(x + back(h), (3 * size, size), -1)
        i, o, forget = sym.split(f(gates), (size,) * 3, -1)
        c = forget * c + i * g(new)
        return o * last(c), c

    return joined if p is None and not input_forget else apart


def seen(gate: Var, peephole: Var | None, c: Var) -> Var:
    """A gate that looks at the cell state through a peephole, if there is one."""
    return gate if peephole is None else gate + c * peephole


def affine(h: Var, matrix: Var, bias: Var | None) -> Var:
    """h times a matrix, and a bias if there is one."""
    y = sym.matmul(h, matrix)
    return y if bias is None else y + bias


def part(x: Var, direction: int, axis: int = 0) -> Var:
    """x of one direction."""
    return sym.squeeze(sym.split(x, (1,) * x.shape[axis], axis)[direction], (axis,))


def _activations(
    names: Sequence[str], alphas: Sequence[float], betas: Sequence[float], clip: float | None, count: int
) -> Iterator[Activation]:
    """Functions by name; alpha and beta are handed in turn to those that take one."""
    if len(names) < count:
        raise ValueError(f"{len(names)} activations are given, {count} are needed")
    alpha, beta = iter(alphas), iter(betas)
    for name in names[:count]:
        key = name.lower()
        if key not in _ACTIVATIONS:
            raise ValueError(f"activation {name!r} is not known; known are {', '.join(_ACTIVATIONS)}")
        _, a, b = _ACTIVATIONS[key]
        a, b = None if a is None else next(alpha, a), None if b is None else next(beta, b)
        yield _activation(key, a, b, clip)


def _activation(key: str, alpha: float | None, beta: float | None, clip: float | None) -> Activation:
    def activation(x: Var) -> Var:
        z = x if clip is None else sym.clip(x, -clip, clip)
        if key == "affine":
            return z * alpha + beta
        if key == "scaledtanh":
            return sym.tanh(z * beta) * alpha
        attrs = {k: v for k, v in (("alpha", alpha), ("beta", beta)) if v is not None}
        return z.tape.apply(_ACTIVATIONS[key][0], z, **attrs)

    return activation


def recurrent(layers: Layers) -> list[Op]:
    """The three operators, with layers that run their steps in one way."""
    named: dict[str, Callable[..., Any]] = {"RNN": rnn, "GRU": gru, "LSTM": lstm}
    more: dict[str, Any] = {"cuts": deciding(4), "integers": {4: Along("layout", lengths=True)}, "channels": -1}
    peepholes = {"LSTM": (7,)}
    return [composite(name, partial(kernel, layers), roles=trained(1, 2, 3, *peepholes.get(name, ())),
                      elsewhere="to one", does=kernel.__doc__ or "", **more)
            for name, kernel in named.items()]  # fmt: skip


RECURRENT, UNROLLED = recurrent(WholeLayer), recurrent(RecurrentLayer)


def unrolled_in(ops: Ops) -> Ops:
    """The operators with layers that are unrolled, so that the derivative of their derivative is that of their parts."""
    return ChainMap({op.key: op for op in UNROLLED if ops.get(op.key) is OPS[op.key]}, cast("Any", ops))


def causal_conv_with_state(
    x: Var, weight: Var, bias: Var | None = None, past_state: Var | None = None, *, activation: str = "none"
) -> tuple[Var, Var]:
    """Each channel of x `(N, C, length)` filtered by itself, looking back; and what the next call looks back on."""
    y, whole = causal_conv(x, weight, bias, past_state, activation)
    return y, sym.slice(whole, (x.shape[2],), (whole.shape[2],), (2,))


def causal_conv(
    x: Var, weight: Var, bias: Var | None, past: Var | None, activation: str, dilation: int = 1
) -> tuple[Var, Var]:
    """Each channel of x `(N, C, length)` filtered by itself, looking back on a past; and x behind that past."""
    require_known("activation", activation, ("none", "silu", "swish"))
    if x.ndim != 3 or weight.ndim != 3 or weight.shape[:2] != (x.shape[1], 1) or not weight.shape[2]:
        raise ValueError(f"x is (N, C, length) and W is (C, 1, k), not {list(x.shape)} and {list(weight.shape)}")
    shape = *x.shape[:2], (weight.shape[2] - 1) * dilation
    before = sym.full(x.tape, shape, 0, x.dtype) if past is None else past
    if before.shape != shape:
        raise ValueError(f"past_state has shape {list(before.shape)}; it needs {list(shape)}")
    whole, attrs = sym.concat([before, x], 2), {"group": x.shape[1], "dilations": (dilation,)}
    y = x.tape.apply("Conv", whole, weight, bias, **attrs) if x.size else sym.zeros_like(x)
    return y if activation == "none" else y * sym.sigmoid(y), whole


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
    q, k, v = (by_heads(widened(x), h) for x, h in ((query, q_num_heads), (key, kv_num_heads), (value, kv_num_heads)))
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
    """The result of each step, the row that each adds beside k, and the last state.

    q is `(N, heads, group, steps, d_k)`, and given are k, v, gates and rates `(N, heads, steps, size)`.
    """
    steps, ys, added = q.shape[-2], [], []
    by_step = (sym.split(x, (1,) * steps, -2) if x is not None and steps else (None,) * steps for x in (q, *given))
    for t, (q_t, *rows) in enumerate(zip(*by_step, strict=True)):
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
    require_known("update_rule", rule, known)
    for name, given, needed in (("decay", decay, "gated" in rule), ("beta", beta, "delta" in rule)):
        if (given is not None) != needed:
            raise ValueError(f"update_rule {rule!r} {'needs' if given is None else 'takes no'} {name}")


def widened(x: Var) -> Var:
    """x, at least in float32."""
    return sym.cast(x, np.float32) if x.dtype.itemsize < 4 else x


def _gates(x: Var, heads: int, other: int) -> Var:
    """Numbers of each step and head: one each, or `other` of them in a row."""
    last = x.shape[-1] if x.ndim == 3 else 0
    if last not in (heads, other):
        raise ValueError(f"{list(x.shape)} holds neither {heads} nor {other} numbers for each step")
    return by_heads(widened(x), min(last, heads))


def packed(ys: list[Var], like: Var, shape: tuple[int, int, int]) -> Var:
    """Results of all steps, `(N, kv heads, group, size)` each, as `(N, steps, heads * size)`."""
    n, heads, size = shape
    if not ys:
        return sym.full(like.tape, (n, 0, heads * size), 0, like.dtype)
    rows = [sym.reshape(y, (n, 1, heads * size)) for y in ys]
    return sym.cast(sym.identity(sym.concat(rows, 1)), like.dtype)


STATEFUL: list[Op] = [
    composite("CausalConvWithState", causal_conv_with_state, roles=trained(1, 2)),
    composite("LinearAttention", linear_attention, elsewhere="narrow"),
]
