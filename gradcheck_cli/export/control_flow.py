"""If, Loop and Scan in gradient files: they stay nodes, and their derivatives are such nodes too.

A check unrolls the iterations that ran at its point.  A file has to be right for both branches and any number of
iterations: the derivative of a branch recomputes the branch; a loop also outputs its states in each iteration
(`starts`), from which a Scan from the last iteration to the first recomputes each.  RNN, GRU and LSTM become a Scan for
each direction.

For its derivative a Loop is treated as a Scan: a body of states and rows, which gives the next states and collected
rows.  The states of the backward Scan are the cotangents of the states, and sums of cotangents of captured tensors.  It
reads the rows, the cotangents of collected rows, and the states of each iteration.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from gradcheck_cli.autodiff import symbolic as sym
from gradcheck_cli.autodiff.backward import inexact
from gradcheck_cli.autodiff.outlined import is_later
from gradcheck_cli.autodiff.tape import Tape, Var
from gradcheck_cli.autodiff.trace import GraphFunction
from gradcheck_cli.errors import GradcheckError, UnsupportedError, shown
from gradcheck_cli.export.inner import (
    FLAG,
    NUMBER,
    FileOps,
    InnerTape,
    KeptNode,
    closed,
    declared,
    draws,
    keep,
    node_apart,
    outputs_of,
    passing,
    reads_containers,
    run_kept,
    starts,
    taken,
    varying,
    zeros,
)
from gradcheck_cli.graph import Array, FreshNames, Graph, Node, TensorType
from gradcheck_cli.op import Op, Ops, table
from gradcheck_cli.ops import subgraphs
from gradcheck_cli.ops.recurrent import Cell, RecurrentLayer, affine, part, recurrent

Cts = Sequence[Var | None]
_TURNED = ("scan_input_directions", "scan_output_directions")
_BEHIND = np.iinfo(np.int64).min
Turn = tuple[int, int]  # the axis of rows in a Scan, and 1 if they are read or collected from the last to the first


def if_vjp(cts: Cts, ans: Cts, condition: Var, *around: Var, kept: KeptNode) -> tuple[Var | None, ...]:
    """An If whose branches give the cotangents of the tensors that either branch reads; zeros if only the other does."""
    tape, seeds = condition.tape, {i: ct for i, ct in enumerate(cts) if ct is not None}
    xs = [x.name for x in around if sym.wanted(x) and inexact(x)]
    branches = [_Branch.of(tape, key, kept, seeds, xs, condition.name) for key in kept.node.attrs]
    given = [x for x in xs if any(x in branch.cts for branch in branches)]
    if not given:
        return (None, *(None for _ in around))
    attrs = {branch.key: branch.graph(given) for branch in branches}
    like = [tape.var(x) for x in given]
    made = dict(zip(given, keep(tape, IF, [condition], attrs, count=len(given), like=like), strict=True))
    return (None, *(made.get(x.name) for x in around))


@dataclass(frozen=True, slots=True)
class _Branch:
    """The derivative of one branch: the cotangents of the tensors that it reads, by name."""

    key: str
    inner: InnerTape
    cts: Mapping[str, Var]

    @staticmethod
    def of(
        tape: Tape, key: str, kept: KeptNode, seeds: Mapping[int, Var], xs: Sequence[str], condition: str
    ) -> _Branch:
        inner, graph = InnerTape(tape, key, f"{key} of {tape.place.inside}"), kept.known.attrs[key]
        try:
            if kept.drawn:
                told = InnerTape(tape, key, inner.part).run(kept.node.attrs[key])[-len(kept.drawn) :]
                for name, y in zip(kept.drawn, told, strict=True):
                    inner.stand_in(name, y.value)
            outs = inner.run(graph)
        except GradcheckError as error:
            raise UnsupportedError(
                f"{error}\nThe derivative of both branches has to be in a file, so that both must run at this point, or "
                f"one alone: --feed gives a value to what {shown(condition)} follows from."
            ) from error
        read = [x for x in xs if x in graph.captures]
        pairs = [(outs[i], inner.stand_in(ct.name, np.zeros_like(outs[i].value))) for i, ct in seeds.items()]
        found = inner.pulled_back(pairs, read)
        return _Branch(key, inner, {x: ct for x, ct in zip(read, found, strict=True) if ct is not None})

    def graph(self, xs: Sequence[str]) -> Graph:
        """The graph that computes the cotangents of xs, zeros for those that the branch does not read."""
        known = self.inner.read(xs)
        return self.inner.graph([], [self.cts[x] if x in self.cts else zeros(known[x]) for x in xs])


def loop_vjp(
    cts: Cts, ans: Cts, trips: Var | None, condition: Var | None, *operands: Var, kept: KeptNode
) -> tuple[Var | None, ...]:
    """A Scan over the iterations that ran; the number of the iteration is a row.

    A loop that never runs hands its states on: its body need not run at all.
    """
    if any(x is not None and _never_holds(x) for x in (trips, condition)):
        passed = len(kept.known.attrs["body"].inputs) - 2
        return (None, None, *cts[:passed], *(None for _ in operands[passed:]))
    number, going, *names = kept.known.attrs["body"].inputs
    states, around = operands[: len(names)], operands[len(names) :]
    tape, made = next((y.tape, y.name) for y in ans if y is not None)
    body = kept.known.attrs["body"]  # as that of a Scan: the number is a row, and the condition is always true
    drawn = [tape.var(name) for name in kept.drawn]
    rows = tuple(node.outputs[0] for node in body.nodes[: len(drawn)])  # so are draws, each read by its number
    own, values = [*names, number], [*(x.value for x in states), np.zeros((), np.int64), *(_first(x, 0) for x in drawn)]
    constants = {**body.constants, going: np.asarray(True)}
    nodes = body.nodes[len(drawn) :]
    body = replace(body, inputs=(*own, *rows), outputs=body.outputs[1:], nodes=nodes, constants=constants)
    backward = _backward_iteration(tape, body, cts, states, values, around, len(states))
    if not backward.graph.outputs:
        return (None,) * (2 + len(operands))
    started = iter(starts(tape, made, [own[i] for i in backward.read if i < len(own)]))
    read = [next(started) if i < len(own) else drawn[i - len(own)] for i in backward.read]
    read += [ct for i in backward.seeded if (ct := cts[i]) is not None]
    graph = backward.graph if read else _with_row(tape, backward.graph, values[len(states)])
    read = read or starts(tape, made, [number])
    before = _before(backward, cts, states, around)
    found = _scanned(tape, graph, before, read)
    return (None, None, *_by_operand(backward, found, states, around))


def _never_holds(x: Var) -> bool:
    """True for a number of iterations, or a condition, that is 0 at all values of the inputs."""
    return x.name not in varying(x.tape).values and not np.any(x.value > 0)


def scan_vjp(cts: Cts, ans: Cts, *operands: Var, kept: KeptNode) -> tuple[Var | None, ...]:
    """A Scan over the same rows and over the cotangents of collected rows, from the last to the first."""
    node, body, own = kept.known, kept.known.attrs["body"], len(kept.node.inputs)
    tape, made = next((y.tape, y.name) for y in ans if y is not None)
    count = own - kept.node.attrs["num_scan_inputs"]
    states, around = operands[:count], operands[own:]
    xs = [*operands[count:own], *(tape.var(name) for name in node.inputs[own:])]  # then what it drew
    read, collected = _turns(node, "input", len(xs)), _turns(node, "output", len(body.outputs) - count)
    values = [*(x.value for x in states), *(_first(x, axis) for x, (axis, _) in zip(xs, read, strict=True))]
    backward = _backward_iteration(tape, body, cts, operands[:own], values, around, count)
    if not backward.graph.outputs:
        return (None,) * len(operands)
    started = iter(starts(tape, made, [body.inputs[i] for i in backward.read if i < count]))
    rows = [(next(started), (0, 0)) if i < count else (xs[i - count], read[i - count]) for i in backward.read]
    rows += [(ct, collected[i - count]) for i in backward.seeded if (ct := cts[i]) is not None]
    graph = backward.graph if rows else _with_row(tape, backward.graph, values[count])
    rows = rows or [(xs[0], read[0])]
    turns = {
        **_turned("input", [turn for _, turn in rows]),
        **_turned("output", [read[i - count] for i in backward.given]),
    }
    inputs = [*_before(backward, cts, states, around), *(x for x, _ in rows)]
    attrs = {"body": graph, "num_scan_inputs": len(rows), **turns}
    found = keep(tape, SCAN, inputs, attrs, count=len(graph.outputs))
    return _by_operand(backward, found, operands[:own], around)


def _before(backward: BackwardIteration, cts: Cts, states: Sequence[Var], around: Iterable[Var]) -> list[Var]:
    """Initial states of the backward Scan: cotangents of the final states, and sums that are zero."""
    known = {x.name: x for x in around}
    given = [(cts[i] if i < len(cts) else None, states[i]) for i in backward.carried]
    return [*(zeros(x) if ct is None else ct for ct, x in given), *(zeros(known[name]) for name in backward.summed)]


def _by_operand(
    backward: BackwardIteration, found: Sequence[Var], inputs: Sequence[Var], around: Sequence[Var]
) -> tuple[Var | None, ...]:
    """The outputs of the backward Scan, by the operand of the loop whose cotangents they are."""
    made = iter(found)
    states = dict(zip(backward.carried, made, strict=False))
    sums = dict(zip(backward.summed, made, strict=False))
    rows = dict(zip(backward.given, made, strict=False))
    return (*({**states, **rows}.get(i) for i in range(len(inputs))), *(sums.get(x.name) for x in around))


def _scanned(tape: Tape, graph: Graph, before: Sequence[Var], rows: Sequence[Var]) -> Sequence[Var]:
    """The final states of a Scan over rows, the last one first.

    If there may be no rows, at other values or sizes, an If skips the Scan, since runtimes refuse one without rows.
    """
    attrs = {"body": graph, "num_scan_inputs": len(rows), **_turned("input", [(0, 0)] * len(rows))}
    if len(rows[0].value) and not tape.general and rows[0].name not in varying(tape).shapes:
        return keep(tape, SCAN, [*before, *rows], attrs, count=len(before))
    some, none = (InnerTape(tape, name, f"{name} of {tape.place.inside}") for name in ("rows", "no_rows"))
    known = some.read([x.name for x in (*before, *rows)] + list(graph.captures))
    made = keep(some, SCAN, [known[x.name] for x in (*before, *rows)], attrs, count=len(before))
    handed = none.read([x.name for x in before])
    kept = [sym.identity(handed[x.name]) for x in before]
    count = tape.apply("Shape", rows[0], start=0, end=1)
    branches = {"then_branch": some.graph([], made), "else_branch": none.graph([], kept)}
    return keep(tape, IF, [count > 0], branches, count=len(before), like=before)


def _turns(node: Node, side: str, count: int) -> list[Turn]:
    """Axis and direction of each scan input or scan output."""
    axes, directions = (node.attrs.get(f"scan_{side}_{key}", (0,) * count) for key in ("axes", "directions"))
    return list(zip(axes, directions, strict=True))


def _turned(side: str, turns: Sequence[Turn]) -> dict[str, Any]:
    """Attributes of a Scan that goes through the same rows in the opposite direction."""
    axes, directions = tuple(axis for axis, _ in turns), tuple(1 - direction for _, direction in turns)
    given = {"axes": axes, "directions": directions}
    return {f"scan_{side}_{key}": value for key, value in given.items() if any(value)}


def _first(x: Var, axis: int) -> Array:
    """The first row of x, or zeros if x has no rows or no numbers yet: rules only read its shape."""
    known = x.shape[axis] and not is_later(x)
    return np.take(x.value, 0, axis) if known else np.zeros(np.delete(x.shape, axis), x.dtype)


def _with_row(tape: Tape, graph: Graph, like: Array) -> Graph:
    """The body with a row that it does not read, which only tells the Scan the number of iterations."""
    name = taken(tape, "row")
    types = {**graph.types, name: TensorType(like.dtype, (None,) * like.ndim)}
    return replace(graph, inputs=(*graph.inputs, name), types=types)


@dataclass(frozen=True, slots=True)
class BackwardIteration:
    """The derivative of one iteration, as a graph.

    Inputs of `graph` are the cotangents of the states `carried`, sums for the captured tensors `summed`, the inputs
    `read` of the forward body, and the cotangents of its outputs `seeded`.  Outputs are the new values of the first two,
    and the cotangents of the rows `given`.  Numbers are indices of the forward body's inputs and outputs.
    """

    graph: Graph
    carried: tuple[int, ...]
    summed: tuple[str, ...]
    read: tuple[int, ...]
    seeded: tuple[int, ...]
    given: tuple[int, ...]


def _backward_iteration(
    tape: Tape, body: Graph, cts: Cts, inputs: Sequence[Var], values: Sequence[Array], around: Sequence[Var],
    states: int,
) -> BackwardIteration:  # fmt: skip
    """The derivative of an iteration in which the inputs of the body, the first of which are states, have these values.

    `inputs` are those of the loop, and `around` the tensors that its body reads from outside.
    """
    inner = InnerTape(tape, "body", f"body in the {tape.place.inside}")
    wanted = [i for i, x in enumerate(inputs) if sym.wanted(x) and inexact(x)]
    captured = list(dict.fromkeys(x.name for x in around if sym.wanted(x) and inexact(x)))
    ins = [inner.input(f"x{i}", value) for i, value in enumerate(values)]
    outs = inner.run(body, *ins)
    for x, y, name in zip(ins[:states], outs, body.inputs, strict=False):
        if x.shape != y.shape:
            raise UnsupportedError(
                f"{inner.part}: {name!r} goes from shape {list(x.shape)} to {list(y.shape)} in an iteration; the "
                "derivative of a loop in a file needs states that keep theirs, or a number of iterations that --feed fixes."
            )
    seeds = [i for i, ct in enumerate(cts) if ct is not None]
    carried, seeded = _flowing(inner, ins[:states], outs, seeds, [*captured, *(ins[i].name for i in wanted)])
    both = [*carried, *seeded]
    seeding = [inner.input(f"ct_{i}", np.zeros_like(outs[i].value)) for i in both]
    cts, rows = seeding[: len(carried)], seeding[len(carried) :]
    given = [i for i in wanted if i >= states]
    xs = [*(ins[i].name for i in (*carried, *given)), *captured]
    found = inner.pulled_back([(outs[i], ct) for i, ct in zip(both, seeding, strict=True)], xs)
    before = [zeros(ins[i]) if ct is None else ct for i, ct in zip(carried, found, strict=False)]
    flows = {i: ct for i, ct in zip(given, found[len(carried) :], strict=False) if ct is not None}
    added = {name: ct for name, ct in zip(captured, found[len(xs) - len(captured) :], strict=True) if ct is not None}
    sums = {name: inner.input("sum", np.zeros_like(ct.value)) for name, ct in added.items()}
    ends = [*before, *(sums[name] + ct for name, ct in added.items()), *flows.values()]
    used = inner.reads(ends)
    read = [i for i, x in enumerate(ins) if x.name in used]
    graph = inner.graph([*cts, *sums.values(), *(ins[i] for i in read), *rows], ends)
    return BackwardIteration(graph, tuple(carried), tuple(added), tuple(read), tuple(seeded), tuple(flows))


def _flowing(
    inner: InnerTape, ins: Sequence[Var], outs: Sequence[Var], seeds: Sequence[int], wanted: Sequence[str]
) -> tuple[list[int], list[int]]:
    """Indices of the states whose cotangents are passed on, and of the collected outputs whose cotangents are read.

    A state is among them if it depends on something wanted, in any iteration, and something with a cotangent (`seeds`)
    depends on it.
    """
    states = [i for i, x in enumerate(ins) if inexact(x)]
    ends = {i: inner.flood([ins[i].name]) for i in states}
    behind = inner.flood(wanted)
    before = {j for i in seeds for j in states if outs[i].name in ends[j]}
    for _ in states:
        behind = behind.union(*(ends[i] for i in states if outs[i].name in behind))
        before.update([j for i in before for j in states if outs[i].name in ends[j]])
    carried = [i for i in states if ins[i].name in behind and (i in before or i in seeds)]
    return carried, [i for i in seeds if i >= len(ins) and outs[i].name in behind]


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
    attrs: Mapping[str, Any] = {"then_branch": closed(then_branch), "else_branch": closed(else_branch)}
    attrs, outputs, read = _told(tape, IF, [condition], attrs, outputs, n_outputs)
    n_outputs = len(outputs)
    one, other = (_Outputs.of(tape, graph) for graph in attrs.values())
    if one is None or other is None or condition.value.size != 1:
        more: dict[str, Any] = {"ragged": range(sys.maxsize), "read": read}
        return keep(tape, IF, [condition], attrs, count=n_outputs, outputs=outputs, **more)
    pairs = enumerate(zip(one.values, other.values, strict=True))
    ragged = one.ragged | other.ragged | {i for i, (a, b) in pairs if a.shape != b.shape}
    values, loose = (one if condition.value.item() else other).values, one.loose | other.loose
    return keep(
        tape, IF, [condition], attrs, count=n_outputs, outputs=outputs, ragged=ragged, loose=loose, values=values,
        read=read,
    )  # fmt: skip


def _told(
    tape: Tape, op: Op, inputs: Sequence[Var | None], attrs: Mapping[str, Any], outputs: Sequence[str], count: int
) -> tuple[Mapping[str, Any], Sequence[str], Node | None]:
    """Attributes and outputs of a node that also gives what it draws, and the node that reads this, if it draws."""
    if not any(draws(graph, tape.ops) for graph in attrs.values() if isinstance(graph, Graph)):
        return attrs, outputs or outputs_of(tape, op, count), None
    given = tuple("" if x is None else x.name for x in inputs)
    node = Node(op.name, given, tuple(outputs or outputs_of(tape, op, count)), attrs)
    told, read, _ = node_apart(node, tape.ops, partial(taken, tape))
    return told.attrs, told.outputs, read


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
    attrs, outputs, read = _told(tape, LOOP, inputs, {"body": graph}, outputs, n_outputs)
    given: dict[str, Any] = {"count": len(outputs), "outputs": outputs, "ragged": ragged, "counted": counted}
    return keep(tape, LOOP, inputs, attrs, **given, read=read)


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
    told, outputs, read = _told(tape, SCAN, operands, attrs, outputs, n_outputs)
    return keep(tape, SCAN, operands, told, count=len(outputs), outputs=outputs, read=read)


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


IF = Op("If", run_kept, if_vjp, many=True)
LOOP = Op("Loop", run_kept, loop_vjp, many=True)
SCAN = Op("Scan", run_kept, scan_vjp, many=True)
SCANNED = recurrent(Scanned)
_KERNELS: Mapping[str, Callable[..., Any]] = {"If": if_, "Loop": loop, "Scan": scan}
_NODES = [replace(op, forward=_KERNELS[op.name]) for op in subgraphs.CONTROL_FLOW]


def in_order(graph: Graph, own: Collection[tuple[str, ...]]) -> Graph:
    """The graph, in which Scans that run backwards get rows that are turned around; those with `own` outputs stay.

    ONNX's reference evaluator runs no others.  Scans inside of other graphs stay, too: a Slice there has a shape that may
    follow from values, which a further derivative of the file could not hold.
    """
    turning = _Turning(FreshNames(graph.tensors), {})
    nodes = tuple(made for node in graph.nodes for made in ([node] if node.outputs in own else turning.turned(node)))
    return replace(graph, nodes=nodes, constants={**graph.constants, **turning.constants})


@dataclass(frozen=True, slots=True)
class _Turning:
    """Rewrites nodes, and collects the constants that slices read."""

    names: FreshNames
    constants: dict[str, Array]

    def turned(self, node: Node) -> Iterator[Node]:
        """The node, and the slices before and behind it."""
        if node.op != "Scan" or node.domain or not any(any(node.attrs.get(key) or ()) for key in _TURNED):
            yield node
            return
        count = node.attrs["num_scan_inputs"]
        states = len(node.inputs) - count
        back_in = self._places(node, "input", count)
        back_out = self._places(node, "output", len(node.outputs) - states)
        inputs, outputs, behind = list(node.inputs), list(node.outputs), []
        for i, axis in back_in:
            inputs[states + i] = self.names.fresh(f"{node.inputs[states + i]}/turned")
            yield self._slice(node.inputs[states + i], inputs[states + i], axis)
        for i, axis in back_out:
            if node.outputs[states + i]:
                outputs[states + i] = self.names.fresh(f"{node.outputs[states + i]}/turned")
                behind.append(self._slice(outputs[states + i], node.outputs[states + i], axis))
        attrs = {key: value for key, value in node.attrs.items() if key not in _TURNED}
        yield replace(node, inputs=tuple(inputs), outputs=tuple(outputs), attrs=attrs)
        yield from behind

    def _places(self, node: Node, side: str, count: int) -> list[tuple[int, int]]:
        """Scanned inputs or outputs that run backwards, by number, with their axes."""
        ways: Sequence[int] = node.attrs.get(f"scan_{side}_directions") or (0,) * count
        axes: Sequence[int] = node.attrs.get(f"scan_{side}_axes") or (0,) * count
        return [(i, axes[i]) for i in range(count) if ways[i]]

    def _slice(self, name: str, made: str, axis: int) -> Node:
        held = [self._number(value) for value in (-1, _BEHIND, axis, -1)]
        return Node("Slice", (name, *held), (made,), name=made)

    def _number(self, value: int) -> str:
        """A constant of one entry; equal ones share a name."""
        known = next((n for n, v in self.constants.items() if v[0] == value), None)
        name = known or self.names.fresh("turned/constant")
        self.constants[name] = np.array([value], np.int64)
        return name
