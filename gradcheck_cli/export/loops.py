"""Loop and Scan as nodes that have rules: their derivatives are such loops, from the last iteration to the first.

What an iteration started from is kept by the forward loop as one more output (`starts`), and the rest of the iteration is
computed again.  How many iterations there were is read off tensors.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gradcheck_cli.autodiff import symbolic as sym
from gradcheck_cli.autodiff.backward import inexact
from gradcheck_cli.autodiff.tape import Tape, Var
from gradcheck_cli.export.branches import IF, Cts
from gradcheck_cli.export.inner import InnerTape, taken, varying, zeros
from gradcheck_cli.export.kept import Kept, alone, keep, starts
from gradcheck_cli.export.sweep import Iteration, Sweep, swept
from gradcheck_cli.graph import Array, Graph, Node, TensorType
from gradcheck_cli.op import Op

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
