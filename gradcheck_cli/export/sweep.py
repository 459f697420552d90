"""One iteration of a loop backwards, as a graph: from the cotangents behind it to those before it.

A loop is seen as `Scan` sees it: a graph of states and of rows, which gives the next states and what is collected.  Its
derivative goes from the last iteration to the first and is such a loop again: its states are the cotangents of states
and, summed up, those of captured tensors; it reads the states and rows of the forward run and the cotangents of what was
collected, and it collects the cotangents of rows.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from gradcheck_cli.autodiff.backward import inexact
from gradcheck_cli.autodiff.tape import Tape, Var
from gradcheck_cli.errors import UnsupportedError
from gradcheck_cli.export.inner import InnerTape, zeros
from gradcheck_cli.graph import Array, Graph


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
