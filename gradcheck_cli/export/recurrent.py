"""RNN, GRU and LSTM for files: each direction is a Scan over the steps, so that any number of them has a derivative."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gradcheck_cli.autodiff import symbolic as sym
from gradcheck_cli.autodiff.tape import Var
from gradcheck_cli.export.inner import InnerTape
from gradcheck_cli.export.kept import keep
from gradcheck_cli.export.loops import SCAN
from gradcheck_cli.ops.recurrent import Cell, Layer, affine, part, recurrent


class Scanned(Layer):
    """A layer whose steps are the iterations of a Scan; sizes of x are read when a file is run."""

    __slots__ = ()

    def initial(self, state: Var | None, direction: int) -> Var:
        """A state before the first step, `(N, H)`."""
        if state is not None:
            return super().initial(state, direction)
        shape = sym.concat([self._size(1 - self.layout), sym.ints(self.x.tape, (self.hidden,))], 0)
        return self.x.tape.apply("Expand", self.x.tape.constant(0, self.x.dtype), shape)

    def inputs(self, direction: int, bias: Var | None) -> Var:
        """W x + bias of every step, `(T, N, gates * H)`."""
        x = sym.transpose(self.x, (1, 0, 2)) if self.layout else self.x
        return affine(x, sym.transpose(part(self.w, direction), (1, 0)), bias)

    def run(self, direction: int, xs: Any, states: tuple[Var, ...], cell: Cell) -> tuple[Var, Any]:
        """The hidden state after every step, `(T, N, H)`, and the last states."""
        tape, rows = self.x.tape, [xs] if self.lengths is None else [xs, self._counts()]
        inner = InnerTape(tape, "step", f"step of {tape.place.op} {tape.place.label!r}")
        old = [inner.input(name, state.value) for name, state in zip("hc", states, strict=False)]
        pieces = [inner.input("x", np.zeros(x.shape[1:], x.dtype)) for x in rows]
        y, new = self._kept(cell(pieces[0], *old), old, pieces[1:])
        body = inner.graph([*old, *pieces], [*new, y])
        way = int(self.backwards(direction))
        turns = {"scan_input_directions": (way,) * len(rows), "scan_output_directions": (way,)} if way else {}
        attrs = {"body": body, "num_scan_inputs": len(rows), **turns}
        *last, ys = keep(tape, SCAN, [*states, *rows], attrs, count=len(states) + 1)
        return ys, tuple(last)

    def sequence(self, runs: Sequence[Any]) -> Var:
        """The output Y of hidden states by direction and step."""
        y = sym.concat([sym.unsqueeze(ys, (1,)) for ys in runs], 1)
        return sym.transpose(y, (2, 0, 1, 3)) if self.layout else y

    def _kept(self, new: tuple[Var, ...], old: Sequence[Var], counts: Sequence[Var]) -> tuple[Var, tuple[Var, ...]]:
        """The output of a step and the states after it, where it is within the length of the sequence."""
        if not counts:
            return new[0], new
        return sym.where(counts[0], new[0], 0), tuple(sym.where(counts[0], n, o) for n, o in zip(new, old, strict=True))

    def _counts(self) -> Var:
        """Which steps are within the lengths of the sequences, `(T, N, 1)`."""
        assert self.lengths is not None
        numbers = self.x.tape.apply("Range", np.int64(0), sym.squeeze(self._size(self.layout), (0,)), np.int64(1))
        return sym.unsqueeze(sym.cast(self.lengths, np.int64), (0, 2)) > sym.unsqueeze(numbers, (1, 2))

    def _size(self, axis: int) -> Var:
        """The length of an axis of x, as a list of one."""
        return self.x.tape.apply("Shape", self.x, start=axis, end=axis + 1)


SCANNED = recurrent(Scanned)
