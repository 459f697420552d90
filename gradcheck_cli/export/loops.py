"""VJPs of If, Loop and Scan as nodes: for an If another If, for a loop a Scan from the last iteration to the first.

A Loop is treated as a Scan: a body of states and rows, which gives the next states and collected rows.  The states of the
backward Scan are the cotangents of the states, and sums of cotangents of captured tensors.  It reads the rows, the
cotangents of collected rows, and the states of each iteration, which the forward loop outputs for it (`starts`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gradcheck_cli.autodiff import symbolic as sym
from gradcheck_cli.autodiff.backward import inexact
from gradcheck_cli.autodiff.tape import Tape, Var
from gradcheck_cli.errors import GradcheckError, UnsupportedError
from gradcheck_cli.export.inner import InnerTape, taken, varying, zeros
from gradcheck_cli.export.kept import KeptNode, keep, run_kept, starts
from gradcheck_cli.graph import Array, Graph, Node, TensorType
from gradcheck_cli.op import Op

Cts = Sequence[Var | None]
Turn = tuple[int, int]  # the axis of rows in a Scan, and 1 if they are read or collected from the last to the first


def if_vjp(cts: Cts, ans: Cts, condition: Var, *around: Var, kept: KeptNode) -> tuple[Var | None, ...]:
    """An If whose branches give the cotangents of the tensors that either branch reads; zeros if only the other does."""
    tape, seeds = condition.tape, {i: ct for i, ct in enumerate(cts) if ct is not None}
    xs = [x.name for x in around if sym.wanted(x) and inexact(x)]
    branches = [_Branch.of(tape, key, graph, seeds, xs) for key, graph in kept.node.attrs.items()]
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
    def of(tape: Tape, key: str, graph: Graph, seeds: Mapping[int, Var], xs: Sequence[str]) -> _Branch:
        inner = InnerTape(tape, key, f"{key} of {tape.place.inside}")
        try:
            outs = inner.run(graph)
        except GradcheckError as error:
            raise UnsupportedError(
                f"{error}\nThe derivative of both branches has to be in a file, so that both must run at this point."
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
    """A Scan over the iterations that ran; the number of the iteration is a row."""
    number, _, *names = kept.node.attrs["body"].inputs
    states, around = operands[: len(names)], operands[len(names) :]
    tape, made = _tape_of(ans)
    values = [*(x.value for x in states), np.zeros((), np.int64)]
    backward = _backward_iteration(tape, _as_scan(kept.node.attrs["body"]), cts, states, values, around)
    if not backward.graph.outputs:
        return (None,) * (2 + len(operands))
    started = starts(tape, made, [[*names, number][i] for i in backward.read])
    rows = [*started, *(ct for i in backward.seeded if (ct := cts[i]) is not None)]
    graph = backward.graph if rows else _with_row(tape, backward.graph, values[-1])
    rows = rows or starts(tape, made, [number])
    before = _before(backward, cts, states, around)
    found = _scanned(tape, graph, before, rows)
    return (None, None, *_by_operand(backward, found, states, around))


def scan_vjp(cts: Cts, ans: Cts, *operands: Var, kept: KeptNode) -> tuple[Var | None, ...]:
    """A Scan over the same rows and over the cotangents of collected rows, from the last to the first."""
    node, body, own = kept.node, kept.node.attrs["body"], len(kept.node.inputs)
    (tape, made), count = _tape_of(ans), own - node.attrs["num_scan_inputs"]
    states, xs, around = operands[:count], operands[count:own], operands[own:]
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


def _tape_of(ans: Cts) -> tuple[Tape, str]:
    """The tape of a loop, and the name of one of its outputs."""
    made = next(y for y in ans if y is not None)
    return made.tape, made.name


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


def _as_scan(body: Graph) -> Graph:
    """The body of a Loop as that of a Scan: the iteration number is a row, the condition is always true."""
    number, going, *states = body.inputs
    constants = {**body.constants, going: np.asarray(True)}
    return replace(body, inputs=(*states, number), outputs=body.outputs[1:], constants=constants)


def _scanned(tape: Tape, graph: Graph, before: Sequence[Var], rows: Sequence[Var]) -> Sequence[Var]:
    """The final states of a Scan over rows, the last one first.

    If there may be no rows, an If skips the Scan, since runtimes refuse one without rows.
    """
    attrs = {"body": graph, "num_scan_inputs": len(rows), **_turned("input", [(0, 0)] * len(rows))}
    if len(rows[0].value) and rows[0].name not in varying(tape).shapes:
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
    """The first row of x, or zeros if x has no rows: rules only read its shape."""
    return np.take(x.value, 0, axis) if x.shape[axis] else np.zeros(np.delete(x.shape, axis), x.dtype)


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


@dataclass(frozen=True, slots=True)
class Iteration:
    """A forward iteration: the body, and values of its inputs in one iteration, the first `states` of which are states.

    `seeds` are the indices of outputs that have cotangents.  Cotangents are wanted of the inputs with indices `wanted`
    and of the `captured` tensors.  `part` is the name of the body in messages.
    """

    graph: Graph
    states: int
    values: Sequence[Array]
    seeds: Collection[int]
    wanted: Collection[int]
    captured: Sequence[str]
    part: str


def _backward_iteration(
    tape: Tape, body: Graph, cts: Cts, inputs: Sequence[Var], values: Sequence[Array], around: Sequence[Var],
    states: int | None = None,
) -> BackwardIteration:  # fmt: skip
    """The derivative of an iteration in which the inputs of the body have these values; `inputs` are the loop's."""
    wanted = [i for i, x in enumerate(inputs) if sym.wanted(x) and inexact(x)]
    seeds = [i for i, ct in enumerate(cts) if ct is not None]
    names = list(dict.fromkeys(x.name for x in around if sym.wanted(x) and inexact(x)))
    count = len(inputs) if states is None else states
    return _backward(tape, Iteration(body, count, values, seeds, wanted, names, f"body in the {tape.place.inside}"))


def _backward(around: Tape, loop: Iteration) -> BackwardIteration:
    inner = InnerTape(around, "body", loop.part)
    ins = [inner.input(f"x{i}", value) for i, value in enumerate(loop.values)]
    outs = inner.run(loop.graph, *ins)
    _require_fixed_shapes(loop, ins, outs)
    carried, seeded = _flowing(inner, loop, ins, outs)
    cts = [inner.input(f"ct_{i}", np.zeros_like(outs[i].value)) for i in carried]
    rows = [inner.input(f"ct_{i}", np.zeros_like(outs[i].value)) for i in seeded]
    given = [i for i in loop.wanted if i >= loop.states]
    xs = [*(ins[i].name for i in (*carried, *given)), *loop.captured]
    found = inner.pulled_back([(outs[i], ct) for i, ct in zip((*carried, *seeded), (*cts, *rows), strict=True)], xs)
    states, parts, pieces = found[: len(carried)], found[len(xs) - len(loop.captured) :], found[len(carried) :]
    before = [zeros(ins[i]) if ct is None else ct for i, ct in zip(carried, states, strict=True)]
    flows = {i: ct for i, ct in zip(given, pieces, strict=False) if ct is not None}
    added = {name: ct for name, ct in zip(loop.captured, parts, strict=True) if ct is not None}
    sums = {name: inner.input("sum", np.zeros_like(ct.value)) for name, ct in added.items()}
    ends = [*before, *(sums[name] + ct for name, ct in added.items()), *flows.values()]
    used = inner.reads(ends)
    read = [i for i, x in enumerate(ins) if x.name in used]
    inputs = [*cts, *sums.values(), *(ins[i] for i in read), *rows]
    graph = inner.graph(inputs, ends)
    return BackwardIteration(graph, tuple(carried), tuple(added), tuple(read), tuple(seeded), tuple(flows))


def _flowing(inner: InnerTape, loop: Iteration, ins: Sequence[Var], outs: Sequence[Var]) -> tuple[list[int], list[int]]:
    """Indices of the states whose cotangents are passed on, and of the collected outputs whose cotangents are read.

    A state is among them if it depends on something wanted, in any iteration, and something with a cotangent depends
    on it.
    """
    states = [i for i in range(loop.states) if inexact(ins[i])]
    ends = {i: inner.flood([ins[i].name]) for i in states}
    behind = inner.flood([*loop.captured, *(ins[i].name for i in loop.wanted)])
    before = {j for i in loop.seeds for j in states if outs[i].name in ends[j]}
    for _ in states:
        behind = behind.union(*(ends[i] for i in states if outs[i].name in behind))
        before.update([j for i in before for j in states if outs[i].name in ends[j]])
    carried = [i for i in states if ins[i].name in behind and (i in before or i in loop.seeds)]
    return carried, [i for i in loop.seeds if i >= loop.states and outs[i].name in behind]


def _require_fixed_shapes(loop: Iteration, ins: Sequence[Var], outs: Sequence[Var]) -> None:
    for x, y, name in zip(ins[: loop.states], outs, loop.graph.inputs, strict=False):
        if x.shape != y.shape:
            raise UnsupportedError(
                f"{loop.part}: {name!r} goes from shape {list(x.shape)} to {list(y.shape)} in an iteration; the "
                "derivative of a loop in a file needs states that keep theirs."
            )


IF = Op("If", run_kept, if_vjp, many=True)
LOOP = Op("Loop", run_kept, loop_vjp, many=True)
SCAN = Op("Scan", run_kept, scan_vjp, many=True)
