"""LSTMs of com.microsoft: with weights as integers, and with attention to a memory.

Both are the LSTM of ONNX with one thing changed: how a product with W or R is made, what a step reads beside x.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from gradcheck_cli.autodiff import symbolic as sym
from gradcheck_cli.autodiff.tape import Var
from gradcheck_cli.op import Op, deciding, either, rounding_of
from gradcheck_cli.ops.onnxruntime.fused import fused
from gradcheck_cli.ops.onnxruntime.fused_quantize import dynamic_quantize_matmul
from gradcheck_cli.ops.recurrent import Activation, Cell, Layer, lstm_cells, part, run_lstm

Names: TypeAlias = tuple[str, ...]
Numbers: TypeAlias = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Quantized(Layer):
    """A layer whose W and R are integers; what they are multiplied with is quantized by its own range, step by step."""

    quanta: dict[str, tuple[Var, Var]] = field(kw_only=True)  # "W" and "R" -> scale and zero point

    def inputs(self, direction: int, bias: Var | None) -> Any:
        """W x + bias of every step; all steps that some sequence takes have one range together."""
        taken = self.steps if self.lengths is None else int(np.max(self.x.tape.guard(self.lengths), initial=0))
        if not taken:
            return [sym.full(self.x.tape, (self.batch, self.gates * self.hidden), 0, self.x.dtype)] * self.steps
        seen = sym.slice(self.x, (0,), (taken,), (0,)) if taken < self.steps else self.x
        y = self._product(sym.reshape(seen, (taken * self.batch, self.x.shape[-1])), "W", direction)
        found = sym.split(y if bias is None else y + bias, (self.batch,) * taken, 0)
        return [*found, *(sym.zeros_like(found[0]),) * (self.steps - taken)]

    def run(self, direction: int, xs: Any, states: tuple[Var, ...], cell: Cell) -> tuple[Any, Any]:
        """The hidden state after every step and the last states; all sequences start at once, reversed ones too.

        States of one step share a range, so that sequences of several lengths cannot start one after the other.
        """
        if self.lengths is None or not self.backwards(direction):
            return Layer.run(self, direction, xs, states, cell)
        ys, turned = [], self._reversed(xs)
        for t in range(self.steps):
            with self.x.tape.scope(f"backward{t}"):
                y, states = self.advance(t, states, cell(turned[t], *states))
                ys.append(y)
        return self._reversed(ys), states

    def _reversed(self, rows: Sequence[Var]) -> Sequence[Var]:
        """Entries of each step with every sequence turned round within its length."""
        if self.lengths is None or not rows:
            return rows
        stacked = sym.concat([sym.unsqueeze(row, (0,)) for row in rows], 0)
        lengths = sym.cast(self.lengths, np.int64)
        turned = stacked.tape.apply("ReverseSequence", stacked, lengths, time_axis=0, batch_axis=1)
        return [sym.squeeze(row, (0,)) for row in sym.split(turned, (1,) * len(rows), 0)]

    def looking_back(self, direction: int) -> Activation:
        """The product of a quantized hidden state with R."""
        return lambda h: self._product(h, "R", direction)

    def _product(self, rows: Var, name: str, direction: int) -> Var:
        matrix = sym.transpose(part(self.w if name == "W" else self.r, direction), (1, 0))
        scale, zero = (self._quantum(x, direction) for x in self.quanta[name])
        return dynamic_quantize_matmul(rows, matrix, scale, zero)

    def _quantum(self, x: Var, direction: int) -> Var:
        """A scale or zero point of one direction: a number, or one for each column of the matrix."""
        width = self.gates * self.hidden
        if x.shape not in ((self.directions,), (self.directions, width)):
            raise ValueError(f"a scale or zero point of shape {list(x.shape)} is not [{self.directions}, {width}]")
        return part(x, direction)


def dynamic_quantize_lstm(
    x: Var, w: Var, r: Var, b: Var | None, sequence_lens: Var | None, initial_h: Var | None, initial_c: Var | None,
    p: Var | None, w_scale: Var, w_zero_point: Var, r_scale: Var, r_zero_point: Var, *, activations: Names = (),
    activation_alpha: Numbers = (), activation_beta: Numbers = (), clip: float | None = None,
    direction: str = "forward", hidden_size: int | None = None, input_forget: int = 0,
) -> tuple[Var, Var, Var]:  # fmt: skip
    """LSTM whose weights are integers; x and the state are quantized by their ranges before each product."""
    w, r = (sym.transpose(matrix, (0, 2, 1)) for matrix in (w, r))
    quanta = {"W": (w_scale, w_zero_point), "R": (r_scale, r_zero_point)}
    layer = Quantized(x, w, r, b, sequence_lens, 4, direction, 0, hidden_size, quanta=quanta)
    cells = lstm_cells(layer, p, activations, activation_alpha, activation_beta, clip, bool(input_forget))
    return run_lstm(layer, cells, initial_h, initial_c)


@dataclass(frozen=True, slots=True)
class Memory:
    """What each step of one direction attends to: rows of a memory `(N, M, depth)`, by keys that are made of them."""

    values: Var
    keys: Var
    query: Var
    score: Var
    mixing: Var | None
    seen: Var | None  # which rows count

    @property
    def width(self) -> int:
        """How many numbers a step hands to the next one."""
        return self.values.shape[2] if self.mixing is None else self.mixing.shape[1]

    def attended(self, h: Var) -> Var:
        """The rows of the memory, weighted by how they fit a hidden state, and mixed with that if there is a matrix."""
        fit = sym.tanh(self.keys + sym.unsqueeze(sym.matmul(h, self.query), (1,)))
        scores = sym.sum(fit * self.score, (2,), keepdims=False)
        scores = scores if self.seen is None else sym.where(self.seen, scores, -np.inf)
        weights = sym.unsqueeze(scores.tape.apply("Softmax", scores, axis=-1), (1,))
        context = sym.squeeze(sym.matmul(weights, self.values), (1,))
        return context if self.mixing is None else sym.matmul(sym.concat([h, context], -1), self.mixing)


def attn_lstm(
    x: Var, w: Var, r: Var, b: Var | None, sequence_lens: Var | None, initial_h: Var | None, initial_c: Var | None,
    p: Var | None, query: Var, memory_weights: Var, score: Var, memory: Var, memory_lens: Var | None = None,
    mixing: Var | None = None, *, activations: Names = (), activation_alpha: Numbers = (),
    activation_beta: Numbers = (), clip: float | None = None, direction: str = "forward",
    hidden_size: int | None = None, input_forget: int = 0,
) -> tuple[Var, Var, Var]:  # fmt: skip
    """LSTM whose steps read, beside x, what the step before has found in a memory by additive attention."""
    fed = w.shape[2] - x.shape[2]
    own, back = sym.split(w, (x.shape[2], fed), 2)
    layer = Layer(x, own, r, b, sequence_lens, 4, direction, 0, hidden_size)
    cells = lstm_cells(layer, p, activations, activation_alpha, activation_beta, clip, bool(input_forget))
    runs, hs, cs = [], [], []
    for d, cell in enumerate(cells):
        matrices = [None if each is None else part(each, d) for each in (memory_weights, query, score, mixing)]
        held = _memory(memory, memory_lens, matrices)
        if held.width != fed:
            raise ValueError(f"W reads {fed} numbers beside x; attention gives {held.width}")
        start = layer.initial(initial_h, d), layer.initial(initial_c, d)
        nothing = sym.full(x.tape, (layer.batch, fed), 0, x.dtype)
        step = _attending(cell, sym.transpose(part(back, d), (1, 0)), held)
        ys, (h, c, _) = layer.run(d, layer.inputs(d, layer.biases(d)[0]), (*start, nothing), step)
        runs.append(ys)
        hs.append(h)
        cs.append(c)
    return layer.sequence(runs), layer.final(hs), layer.final(cs)


def _memory(rows: Var, lengths: Var | None, matrices: Sequence[Var | None]) -> Memory:
    """The memory of one direction; rows beyond a length are zero and do not count."""
    keys, query, score, mixing = matrices
    assert keys is not None
    assert query is not None
    assert score is not None
    if lengths is None:
        return Memory(rows, sym.matmul(rows, keys), query, score, mixing, None)
    seen = sym.arange(rows.tape, rows.shape[1]) < sym.unsqueeze(sym.cast(lengths, np.int64), (1,))
    values = sym.where(sym.unsqueeze(seen, (2,)), rows, 0)
    return Memory(values, sym.matmul(values, keys), query, score, mixing, seen)


def _attending(cell: Cell, back: Var, held: Memory) -> Cell:
    """A step whose state holds what it hands to the next one besides."""

    def step(x: Var, h: Var, c: Var, found: Var) -> tuple[Var, ...]:
        h, c = cell(x + sym.matmul(found, back), h, c)
        return h, c, held.attended(h)

    return step


FUSED_RECURRENT: list[Op] = [
    fused("AttnLSTM", attn_lstm, cuts=deciding(4, 12)),
    fused("DynamicQuantizeLSTM", dynamic_quantize_lstm, cuts=either(rounding_of(0, 5), deciding(4))),
]
