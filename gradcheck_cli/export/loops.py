"""Loop and Scan as nodes that have rules: their derivatives are such loops, from the last iteration to the first.

What an iteration started from is kept by the forward loop as one more output (`starts`), and the rest of the iteration is
computed again.  How many iterations there were is read off tensors.

If as a node that has a rule: its derivative is an If on the same condition.

One iteration of a loop backwards, as a graph: from the cotangents behind it to those before it.

A loop is seen as `Scan` sees it: a graph of states and of rows, which gives the next states and what is collected.  Its
derivative goes from the last iteration to the first and is such a loop again: its states are the cotangents of states
and, summed up, those of captured tensors; it reads the states and rows of the forward run and the cotangents of what was
collected, and it collects the cotangents of rows.
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
from gradcheck_cli.export.kept import Kept, alone, keep, starts
from gradcheck_cli.graph import Array, Graph, Node, TensorType
from gradcheck_cli.op import Op

Cts = Sequence[Var | None]


def if_vjp(cts: Cts, ans: Cts, condition: Var, *around: Var, kept: Kept) -> tuple[Var | None, ...]:
    """An If whose branches give the cotangents of what either captures: zeros where it does not."""
    tape, seeds = condition.tape, {i: ct for i, ct in enumerate(cts) if ct is not None}
    xs = [x.name for x in around if sym.wanted(x) and inexact(x)]
    sides = [_Side.of(tape, key, graph, seeds, xs) for key, graph in kept.node.attrs.items()]
    given = [x for x in xs if any(x in side.cts for side in sides)]
    if not given:
        return (None, *(None for _ in around))
    attrs = {side.key: side.graph(given) for side in sides}
    like = [tape.var(x) for x in given]
    made = dict(zip(given, keep(tape, IF, [condition], attrs, count=len(given), like=like), strict=True))
    return (None, *(made.get(x.name) for x in around))


@dataclass(frozen=True, slots=True)
class _Side:
    """The derivative of one branch: the cotangents of tensors around it, by their names."""

    key: str
    inner: InnerTape
    cts: Mapping[str, Var]

    @staticmethod
    def of(tape: Tape, key: str, graph: Graph, seeds: Mapping[int, Var], xs: Sequence[str]) -> _Side:
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
        return _Side(key, inner, {x: ct for x, ct in zip(read, found, strict=True) if ct is not None})

    def graph(self, xs: Sequence[str]) -> Graph:
        """The graph that gives the cotangents of some tensors around it."""
        known = self.inner.read(xs)
        return self.inner.graph([], [self.cts[x] if x in self.cts else zeros(known[x]) for x in xs])


IF = Op("If", alone, if_vjp, many=True)


@dataclass(frozen=True, slots=True)
class Sweep:
    """An iteration backwards.  Inputs of `graph`: cotangents of the states `carried`, sums for the captured tensors
    `summed`, the inputs `read` of the forward graph, cotangents of the outputs `seeded`.  Outputs: the first two, and
    cotangents of the rows `given`.  States, rows and outputs are counted from 0, rows among inputs behind the states.
    """

    graph: Graph
    carried: tuple[int, ...]
    summed: tuple[str, ...]
    read: tuple[int, ...]
    seeded: tuple[int, ...]
    given: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Iteration:
    """An iteration forward: its graph, values of its inputs in one iteration, of which the first are `states`.

    `seeds` are the numbers of outputs that have cotangents, `wanted` those of inputs, and `captured` the names of
    captured tensors, whose cotangents are wanted.  `part` is what messages call the graph.
    """

    graph: Graph
    states: int
    values: Sequence[Array]
    seeds: Collection[int]
    wanted: Collection[int]
    captured: Sequence[str]
    part: str


def swept(around: Tape, loop: Iteration) -> Sweep:
    """The derivative of one iteration."""
    inner = InnerTape(around, "body", loop.part)
    ins = [inner.input(f"x{i}", value) for i, value in enumerate(loop.values)]
    outs = inner.run(loop.graph, *ins)
    _require_fixed_shapes(loop, ins, outs)
    return _reversed(inner, loop, ins, outs)


def _reversed(inner: InnerTape, loop: Iteration, ins: Sequence[Var], outs: Sequence[Var]) -> Sweep:
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
    return Sweep(inner.graph(inputs, ends), tuple(carried), tuple(added), tuple(read), tuple(seeded), tuple(flows))


def _flowing(inner: InnerTape, loop: Iteration, ins: Sequence[Var], outs: Sequence[Var]) -> tuple[list[int], list[int]]:
    """States whose cotangents go from iteration to iteration, and outputs whose cotangents are read in each.

    A state counts that something wanted reaches, in this iteration or a later one, and that reaches something that has
    a cotangent.
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


Turn = tuple[int, int]  # the axis of rows, and 1 where they are read, or collected, from the last to the first


def loop_vjp(
    cts: Cts, ans: Cts, trips: Var | None, condition: Var | None, *operands: Var, kept: Kept
) -> tuple[Var | None, ...]:
    """A Loop over as many iterations as there were, which reads rows by their number."""
    number, _, *names = kept.node.attrs["body"].inputs
    states, around = operands[: len(names)], operands[len(names) :]
    tape, made = _place(ans)
    values = [*(x.value for x in states), np.zeros((), np.int64)]
    sweep = _swept(tape, _as_scan(kept.node.attrs["body"]), cts, states, values, around)
    if not sweep.graph.outputs:
        return (None,) * (2 + len(operands))
    started = starts(tape, made, [[*names, number][i] for i in sweep.read])
    rows = [*started, *(ct for i in sweep.seeded if (ct := cts[i]) is not None)]
    graph = sweep.graph if rows else _with_row(tape, sweep.graph, values[-1])
    rows = rows or starts(tape, made, [number])
    before = _before(sweep, cts, states, around)
    found = _scanned(tape, graph, before, rows)
    return (None, None, *_by_operand(sweep, found, states, around))


def scan_vjp(cts: Cts, ans: Cts, *operands: Var, kept: Kept) -> tuple[Var | None, ...]:
    """A Scan over the same rows, and over what was collected, from the last to the first."""
    node, body, own = kept.node, kept.node.attrs["body"], len(kept.node.inputs)
    (tape, made), count = _place(ans), own - node.attrs["num_scan_inputs"]
    states, xs, around = operands[:count], operands[count:own], operands[own:]
    read, collected = _turns(node, "input", len(xs)), _turns(node, "output", len(body.outputs) - count)
    values = [*(x.value for x in states), *(_first(x, axis) for x, (axis, _) in zip(xs, read, strict=True))]
    sweep = _swept(tape, body, cts, operands[:own], values, around, count)
    if not sweep.graph.outputs:
        return (None,) * len(operands)
    started = iter(starts(tape, made, [body.inputs[i] for i in sweep.read if i < count]))
    rows = [(next(started), (0, 0)) if i < count else (xs[i - count], read[i - count]) for i in sweep.read]
    rows += [(ct, collected[i - count]) for i in sweep.seeded if (ct := cts[i]) is not None]
    graph = sweep.graph if rows else _with_row(tape, sweep.graph, values[count])
    rows = rows or [(xs[0], read[0])]
    turns = {
        **_turned("input", [turn for _, turn in rows]),
        **_turned("output", [read[i - count] for i in sweep.given]),
    }
    inputs = [*_before(sweep, cts, states, around), *(x for x, _ in rows)]
    attrs = {"body": graph, "num_scan_inputs": len(rows), **turns}
    found = keep(tape, SCAN, inputs, attrs, count=len(graph.outputs))
    return _by_operand(sweep, found, operands[:own], around)


def _place(ans: Cts) -> tuple[Tape, str]:
    """The tape that a loop is on, and the name of an output that it has."""
    made = next(y for y in ans if y is not None)
    return made.tape, made.name


def _swept(
    tape: Tape, body: Graph, cts: Cts, inputs: Sequence[Var], values: Sequence[Array], around: Sequence[Var],
    states: int | None = None,
) -> Sweep:  # fmt: skip
    """The derivative of an iteration in which the inputs of the body have some values; `inputs` are those of the loop."""
    wanted = [i for i, x in enumerate(inputs) if sym.wanted(x) and inexact(x)]
    seeds = [i for i, ct in enumerate(cts) if ct is not None]
    names = list(dict.fromkeys(x.name for x in around if sym.wanted(x) and inexact(x)))
    count = len(inputs) if states is None else states
    return swept(tape, Iteration(body, count, values, seeds, wanted, names, f"body in the {tape.place.inside}"))


def _before(sweep: Sweep, cts: Cts, states: Sequence[Var], around: Iterable[Var]) -> list[Var]:
    """What the loop backwards starts from: cotangents of the final states, and empty sums."""
    known = {x.name: x for x in around}
    given = [(cts[i] if i < len(cts) else None, states[i]) for i in sweep.carried]
    return [*(zeros(x) if ct is None else ct for ct, x in given), *(zeros(known[name]) for name in sweep.summed)]


def _by_operand(
    sweep: Sweep, found: Sequence[Var], inputs: Sequence[Var], around: Sequence[Var]
) -> tuple[Var | None, ...]:
    """What a loop backwards gives, by what the loop reads."""
    made = iter(found)
    states = dict(zip(sweep.carried, made, strict=False))
    sums = dict(zip(sweep.summed, made, strict=False))
    rows = dict(zip(sweep.given, made, strict=False))
    return (*({**states, **rows}.get(i) for i in range(len(inputs))), *(sums.get(x.name) for x in around))


def _as_scan(body: Graph) -> Graph:
    """The body of a Loop as that of a Scan: the number of the iteration is a row, and it goes on."""
    number, going, *states = body.inputs
    constants = {**body.constants, going: np.asarray(True)}
    return replace(body, inputs=(*states, number), outputs=body.outputs[1:], constants=constants)


def _scanned(tape: Tape, graph: Graph, before: Sequence[Var], rows: Sequence[Var]) -> Sequence[Var]:
    """What a Scan over rows, the last one first, makes of states; an If where there may be none, which runtimes refuse."""
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


# Rows of Scan


def _turns(node: Node, side: str, count: int) -> list[Turn]:
    """The axis and direction of every scan input, or output."""
    axes, directions = (node.attrs.get(f"scan_{side}_{key}", (0,) * count) for key in ("axes", "directions"))
    return list(zip(axes, directions, strict=True))


def _turned(side: str, turns: Sequence[Turn]) -> dict[str, Any]:
    """Attributes for the same rows the other way round."""
    axes, directions = tuple(axis for axis, _ in turns), tuple(1 - direction for _, direction in turns)
    given = {"axes": axes, "directions": directions}
    return {f"scan_{side}_{key}": value for key, value in given.items() if any(value)}


def _first(x: Var, axis: int) -> Array:
    """A row of x, or one of zeros where it has none: rules read its shape alone."""
    return np.take(x.value, 0, axis) if x.shape[axis] else np.zeros(np.delete(x.shape, axis), x.dtype)


def _with_row(tape: Tape, graph: Graph, like: Array) -> Graph:
    """A graph with a row that it does not read: how many there are is what counts."""
    name = taken(tape, "row")
    types = {**graph.types, name: TensorType(like.dtype, (None,) * like.ndim)}
    return replace(graph, inputs=(*graph.inputs, name), types=types)


LOOP = Op("Loop", alone, loop_vjp, many=True)
SCAN = Op("Scan", alone, scan_vjp, many=True)
