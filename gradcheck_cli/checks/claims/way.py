"""The way of a derivative from x to y, node by node of the model, with the cotangents that gradcheck finds on it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gradcheck_cli.autodiff.backward import Unit, pull_back, units_between
from gradcheck_cli.autodiff.tape import Tape
from gradcheck_cli.engine.chunks import Budget
from gradcheck_cli.graph import Array, Graph, Node, describe
from gradcheck_cli.jacobian.jacobian import Backward
from gradcheck_cli.op.batching import elementwise


@dataclass(frozen=True, slots=True)
class Block:
    """A node of the model on the way: which of its operands and outputs lie there too, by name, and what it ran as."""

    index: int
    node: Node
    operands: tuple[str, ...]
    outputs: tuple[str, ...]
    units: tuple[Unit, ...]

    @property
    def where(self) -> str:
        """The node as messages name it."""
        return describe(self.index, self.node)

    @property
    def plain(self) -> bool:
        """Its derivative is that of each entry alone."""
        return all(unit.op.lift is elementwise for unit in self.units)


@dataclass(frozen=True, slots=True)
class Way:
    """The blocks between some x and y in order, and the Jacobian of y by each tensor there, `(size, y_size)`, by name."""

    tape: Tape
    y: str
    blocks: Sequence[Block]
    ends: frozenset[str]  # what y is made of: their cotangent is the seed
    ours: Mapping[str, Array]

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor."""
        return self.tape.named[name].shape

    def reached(self, x: str, without: Collection[str] = ()) -> set[str]:
        """What depends on x, if not through some tensors."""
        found = {x}.difference(without)
        for block in self.blocks:
            if not found.isdisjoint(block.operands):
                found.update(n for n in block.outputs if n not in without)
        return found

    def all_through(self, x: str, name: str) -> bool:
        """Whatever of the derivative by x there is goes through a tensor."""
        return name in self.reached(x) and self.ends.isdisjoint(self.reached(x, {name}))

    def flows(self, block: Block) -> dict[str, Array]:
        """What flows from one node alone into each of its operands, where there is one column and one rule."""
        if len(block.units) > 1 or any(each.shape[1] != 1 for each in self.ours.values()):
            return {}
        tape, (unit,) = self.tape, block.units
        names = {tape.named[n].name: n for n in (*block.operands, *block.outputs)}
        cts = [tape.hold(tape.fresh("ct"), self.ours[names[n]].reshape(tape.values[n].shape)) if n in names else None
               for n in unit.outputs]  # fmt: skip
        return {names[n]: ct.value.reshape(-1, 1) for n, ct in pull_back(tape, unit, cts) if n in names}


def way_between(tape: Tape, xs: Sequence[str], y: str, graph: Graph) -> Way | None:
    """The way from some xs to y, names on the tape of a graph; None where a rule is missing on it."""
    units = units_between(tape, [tape.named[x].name for x in xs], [tape.named[y].name])
    if any(unit.op.vjp is None for unit in units):
        return None
    flow = {tape.named[x].name for x in xs}.union(n for unit in units for n in unit.outputs if n)
    called = {var.name: name for name, var in tape.named.items() if name in graph.tensors and var.name in flow}
    by_origin: dict[int, list[Unit]] = {}
    for unit in units:
        by_origin.setdefault(unit.origin, []).append(unit)
    ends = {called[n] for unit in by_origin.pop(-1, []) for n in unit.operands if n in called} or {y}
    blocks = [
        _block(index, graph.nodes[index], some, set(called.values())) for index, some in sorted(by_origin.items())
    ]
    names = dict.fromkeys([*xs, *(n for block in blocks for n in (*block.operands, *block.outputs)), *ends])
    found = Backward(tape, tape.named[y].name, [tape.named[n].name for n in names]).jacobians(Budget())
    return Way(tape, y, blocks, frozenset(ends), dict(zip(names, found, strict=True)))


def _block(index: int, node: Node, units: Sequence[Unit], there: Collection[str]) -> Block:
    operands, outputs = (tuple(n for n in names if n in there) for names in (node.reads, node.outputs))
    return Block(index, node, operands, outputs, tuple(units))


def jacobian_between(tape: Tape, xs: Sequence[str], name: str) -> Array:
    """The Jacobian of a tensor by several xs, their entries one after the other."""
    with tape.aside():
        found = Backward(tape, tape.named[name].name, [tape.named[x].name for x in xs]).jacobians(Budget())
    return np.concatenate(found)
