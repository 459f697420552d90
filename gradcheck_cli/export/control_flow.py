"""If, Loop and Scan in gradient files: they stay nodes, and their derivatives are such nodes too.

A check unrolls the iterations that ran at its point.  A file has to be right for both branches and any number of
iterations: the derivative of a branch recomputes the branch; a loop also outputs its states in each iteration, from
which a second loop, running backwards, recomputes each iteration.  RNN, GRU and LSTM become a Scan for each direction.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from gradcheck_cli.autodiff import symbolic as sym
from gradcheck_cli.autodiff.tape import Tape, Var
from gradcheck_cli.autodiff.trace import GraphFunction
from gradcheck_cli.errors import GradcheckError
from gradcheck_cli.export.inner import (
    FLAG,
    NUMBER,
    FileOps,
    InnerTape,
    closed,
    declared,
    passing,
    reads_containers,
    varying,
)
from gradcheck_cli.export.kept import keep
from gradcheck_cli.export.loops import IF, LOOP, SCAN
from gradcheck_cli.graph import Array, Graph
from gradcheck_cli.op import Ops, composite, table
from gradcheck_cli.ops import subgraphs
from gradcheck_cli.ops.recurrent import Cell, RecurrentLayer, affine, part, recurrent


def for_files(ops: Ops, fixed: Collection[str] = ()) -> Ops:
    """The operators for a file: control flow as nodes that have rules, recurrent layers as loops.

    `fixed` names the tensors that are fed, which are constants of the file.
    """
    return FileOps({**ops, **table(_NODES, SCANNED)}, fixed)


def if_(
    condition: Var,
    *,
    then_branch: GraphFunction,
    else_branch: GraphFunction,
    n_outputs: int = 1,
    outputs: Sequence[str] = (),
) -> tuple[Any, ...]:
    """Keeps an If as a node; if no input can change the condition, takes the nodes of the chosen branch instead."""
    tape = then_branch.tape
    if condition.name not in varying(tape).values or reads_containers(then_branch) or reads_containers(else_branch):
        return subgraphs.if_(condition, then_branch=then_branch, else_branch=else_branch)
    attrs = {"then_branch": closed(then_branch), "else_branch": closed(else_branch)}
    one, other = (_Outputs.of(tape, graph) for graph in attrs.values())
    if one is None or other is None or condition.value.size != 1:
        return keep(tape, IF, [condition], attrs, count=n_outputs, outputs=outputs, ragged=range(sys.maxsize))
    pairs = enumerate(zip(one.values, other.values, strict=True))
    ragged = one.ragged | other.ragged | {i for i, (a, b) in pairs if a.shape != b.shape}
    values, loose = (one if condition.value.item() else other).values, one.loose | other.loose
    return keep(
        tape, IF, [condition], attrs, count=n_outputs, outputs=outputs, ragged=ragged, loose=loose, values=values
    )


def loop(
    trips: Var | None, condition: Var | None = None, *states: Var, body: GraphFunction, n_outputs: int = 1,
    outputs: Sequence[str] = (),
) -> tuple[Any, ...]:  # fmt: skip
    """Keeps a Loop as a node; unrolls it if its states change their shapes and it runs equally often for all inputs."""
    if reads_containers(body):
        return subgraphs.loop(trips, condition, *states, body=body)
    tape, inputs, graph = body.tape, [trips, condition, *states], declared(closed(body), [NUMBER, FLAG, *states])
    decides, fed = _ends_by_values(tape, graph, states), varying(tape).values
    ends = decides or any(x is not None and x.name in fed for x in (trips, condition))
    if not ends and _grows(tape, graph, states):
        return subgraphs.loop(trips, condition, *states, body=body)
    ragged, counted = range(len(states), sys.maxsize), None if decides else [trips, condition]
    return keep(tape, LOOP, inputs, {"body": graph}, count=n_outputs, outputs=outputs, ragged=ragged, counted=counted)


def scan(
    *operands: Var, body: GraphFunction, num_scan_inputs: int, scan_input_axes: tuple[int, ...] | None = None,
    scan_input_directions: tuple[int, ...] | None = None, scan_output_axes: tuple[int, ...] | None = None,
    scan_output_directions: tuple[int, ...] | None = None, n_outputs: int = 1, outputs: Sequence[str] = (),
) -> tuple[Any, ...]:  # fmt: skip
    """Keeps a Scan as a node."""
    turns = {
        "scan_input_axes": scan_input_axes, "scan_input_directions": scan_input_directions,
        "scan_output_axes": scan_output_axes, "scan_output_directions": scan_output_directions,
    }  # fmt: skip
    given = {key: value for key, value in turns.items() if value is not None}
    if reads_containers(body):
        return subgraphs.scan(*operands, body=body, num_scan_inputs=num_scan_inputs, **given)
    tape = body.tape
    attrs = {"body": closed(body), "num_scan_inputs": num_scan_inputs, **given}
    return keep(tape, SCAN, operands, attrs, count=n_outputs, outputs=outputs)


@dataclass(frozen=True, slots=True)
class _Outputs:
    """The outputs of a branch: values, and indices of those whose shapes depend on values of inputs."""

    values: Sequence[Array]
    ragged: frozenset[int]  # whose shapes depend on values other than counts
    loose: frozenset[int]  # whose shapes depend on any values

    @staticmethod
    def of(tape: Tape, graph: Graph) -> _Outputs | None:
        """The outputs of a graph; None if it cannot be run at this point."""
        inner = InnerTape(tape, "branch", "branch")
        with suppress(GradcheckError):
            outs = inner.run(graph)
            changing, other = varying(inner).shapes, passing(inner).shapes
            ragged, loose = (frozenset(i for i, y in enumerate(outs) if y.name in names) for names in (other, changing))
            return _Outputs([y.value for y in outs], ragged, loose)
        return None


def _grows(tape: Tape, body: Graph, states: Sequence[Var]) -> bool:
    """True if states change their shapes in the first iteration, so that each iteration is another graph."""
    with suppress(GradcheckError):
        _, ins, outs = _iteration(tape, body, states)
        return any(x.shape != y.shape for x, y in zip(ins, outs[1:], strict=False))
    return False


def _ends_by_values(tape: Tape, body: Graph, states: Sequence[Var]) -> bool:
    """True if the body decides by values of inputs when to stop, and not just by counters."""
    fed = varying(tape).values
    changing = {i for i, x in enumerate(states) if x.name in fed}
    with suppress(GradcheckError):
        inner, ins, (going, *outs) = _iteration(tape, body, states)
        while True:
            found = inner.dependence([x.name for i, x in enumerate(ins) if i not in changing])
            more = {i for i, y in enumerate(outs[: len(ins)]) if y.name in found.values}
            if more <= changing:
                return going.name in found.values
            changing |= more
    return True


def _iteration(tape: Tape, body: Graph, states: Sequence[Var]) -> tuple[InnerTape, list[Var], tuple[Var, ...]]:
    """The first iteration of a Loop: its tape, the states before it, and the outputs of the body."""
    inner = InnerTape(tape, "iteration", "first iteration")
    ins = [inner.input("x", x.value) for x in states]
    return inner, ins, inner.run(body, inner.constant(0, np.int64), inner.constant(True), *ins)


class Scanned(RecurrentLayer):
    """A recurrent layer whose steps are the iterations of a Scan; sizes of x are read when the file is run."""

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
        """The output and states after a step; behind the end of a sequence the output is 0 and states stay."""
        if not counts:
            return new[0], new
        return sym.where(counts[0], new[0], 0), tuple(sym.where(counts[0], n, o) for n, o in zip(new, old, strict=True))

    def _counts(self) -> Var:
        """A mask `(T, N, 1)` of the steps within the lengths of the sequences."""
        assert self.lengths is not None
        numbers = self.x.tape.apply("Range", np.int64(0), sym.squeeze(self._size(self.layout), (0,)), np.int64(1))
        return sym.unsqueeze(sym.cast(self.lengths, np.int64), (0, 2)) > sym.unsqueeze(numbers, (1, 2))

    def _size(self, axis: int) -> Var:
        """The length of an axis of x, as a list of one."""
        return self.x.tape.apply("Shape", self.x, start=axis, end=axis + 1)


SCANNED = recurrent(Scanned)
_NODES = [
    composite("If", if_),
    composite("Loop", loop, containers=subgraphs.loop),
    composite("Scan", scan, containers=subgraphs.scan),
]
