"""LSTMs of com.microsoft: with weights as integers, and with attention to a memory.

Both are the LSTM of ONNX with one thing changed: how a product with W or R is made, what a step reads beside x.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from gradcheck_cli import symbolic as sym
from gradcheck_cli.op import Op, deciding, either, rounding_of
from gradcheck_cli.ops.fused import fused
from gradcheck_cli.ops.fused_quantize import dynamic_quantize_matmul
from gradcheck_cli.ops.recurrent import Activation, Cell, Layer, lstm_cells, part, run_lstm
from gradcheck_cli.tape import Var

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


FUSED_RECURRENT: list[Op] = [
    fused("DynamicQuantizeLSTM", dynamic_quantize_lstm, cuts=either(rounding_of(0, 5), deciding(4))),
]
