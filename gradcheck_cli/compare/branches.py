"""Branches of piecewise nodes that no point has taken: a branch that was not taken was not checked.

A branch belongs to a node as a whole: of a Relu with one dead unit both sides are covered.  What cannot be taken at any
point, since nothing that is fed decides on it, is not asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from gradcheck_cli.autodiff.tape import Step, Tape
from gradcheck_cli.engine.program import Program
from gradcheck_cli.errors import listed
from gradcheck_cli.graph import Array, Graph, Node, TensorType, describe, is_inexact
from gradcheck_cli.op import Sides
from gradcheck_cli.op.batching import shape_only
from gradcheck_cli.results.record import BranchCounts, Check

Seen: TypeAlias = dict[str, bool]  # branch -> whether it was taken
Key: TypeAlias = tuple[int, int, str]  # see `NodePlace.key`
SHOWN = 3  # branches that notes name
RANGES = 20  # of nodes that a record holds
_BRANCHES = ("then branch", "else branch")  # of an If
_BOUNDLESS = 3e38  # a bound that stands for none


def _sides(step: Step, x: Array, *others: Array | None) -> Seen:
    return {"negative side": bool((x < 0).any()), "positive side": bool((x > 0).any())}


def _clip(step: Step, x: Array, *bounds: Array | None) -> Seen:
    low, high = (*bounds, None, None)[:2]
    seen = {"inside of its bounds": True}
    raised = x if low is None else np.maximum(x, low)
    if high is not None and np.all(high < _BOUNDLESS):
        seen["above its maximum"] = bool((raised > high).any())
    if low is not None and np.all(low > -_BOUNDLESS):
        seen["below its minimum"] = bool((x < low).any())
    inside = np.ones(x.shape, bool) if low is None else x >= low
    seen["inside of its bounds"] = bool((inside if high is None else inside & (raised <= high)).any())
    return seen


def _shrink(step: Step, x: Array) -> Seen:
    bound = step.metadata.get("lambd", 0.5)
    return {"middle": bool((np.abs(x) <= bound).any()), "negative side": bool((x < -bound).any()),
            "positive side": bool((x > bound).any())}  # fmt: skip


def _where(step: Step, condition: Array, *others: Array | None) -> Seen:
    return {"true side": bool(condition.any()), "false side": not condition.all()}


def _winners(step: Step, *xs: Array | None) -> Seen:
    assert step.op.branch is not None
    chosen = set(np.unique(step.op.branch(*xs, **step.metadata)).tolist())
    bounded = [i for i, x in enumerate(xs) if x is not None and not np.all(np.abs(x) >= _BOUNDLESS)]
    return {f"operand {i}": i in chosen for i in bounded} if len(xs) > 1 else {}


_OF: Mapping[Sides, Callable[..., Seen]] = {
    "sign": _sides, "smooth sign": _sides, "bounds": _clip, "middle": _shrink, "condition": _where, "winners": _winners,
}  # fmt: skip


class Branches:
    """The branches that the points of a check have taken, node by node, and which nodes lie between each x and y."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.seen: dict[Key, Seen] = {}
        self.names: dict[Key, str] = {}
        self.between: dict[tuple[str, str], set[Key]] = {}
        self.ranges: dict[Key, tuple[float, float]] = {}  # of the values that a node decides on
        self.verbs: dict[Key, str] = {}
        self.still: dict[Key, bool] = {}  # all of them were 0, where that is the node's kink
        self.idle: dict[int, bool] = {}  # the loops whose bodies ran at no point, though what is fed decides on it
        self.bare: dict[int, bool] = {}  # nodes that gave no entries at any point, though open sizes decide on it

    def at(self, tape: Tape, feeds: Iterable[str], programs: Mapping[tuple[str, str], Program]) -> None:
        """One point; `programs` lead from x to y, by (x, y)."""
        decided = _depending(tape, [tape.named[n].name for n in feeds if n in tape.named])
        for step in tape.steps:
            if 0 <= step.origin < len(self.graph.nodes):
                self._add(step, _taken(tape, step, decided) or self._chosen(tape, step, decided))
                self._measure(step, tape, decided)
        sized = _depending(tape, [tape.named[n].name for n in feeds if n in tape.named and self._open(n)], by_size=True)
        decisive = decided | sized
        ran = {step.origin for step in tape.steps if step.place.inside}
        for index, node in enumerate(self.graph.nodes):
            self.bare[index] = self.bare.get(index, True) and _is_bare(tape, node, sized)
            if (
                node.op == "Loop"
                and node.attrs["body"].nodes
                and not decisive.isdisjoint(tape.named[n].name for n in node.inputs[:2] if n in tape.named)
            ):
                self.idle[index] = self.idle.get(index, True) and index not in ran
        for pair, program in programs.items():
            keys = {step.place.key for _, step in program.steps}
            self.between.setdefault(pair, set()).update(keys.intersection({*self.seen, *self.ranges}))

    def record(self, record: Check) -> Check:
        """A record with the branches on its way: how many there are, how many were taken, which were not."""
        keys = self.between.get((record.x, record.y), set())
        missed = [f"{self.names[k]}: {name} not covered" for k in self.seen if k in keys
                  for name, taken in self.seen[k].items() if not taken]  # fmt: skip
        total = sum(len(self.seen.get(k, ())) for k in keys)
        ranges = self._said_of_ranges(keys)
        record = replace(record, notes=(*record.notes, *self._untold(record, keys), *self._never_run(record)))
        if not total and not ranges:
            return record
        branches: BranchCounts = {"total": total, "covered": total - len(missed), "missed": tuple(missed[:SHOWN])}
        return replace(record, branches={**branches, "ranges": tuple(ranges)} if ranges else branches)

    def unrun(self) -> Iterator[str]:
        """Branches of Ifs and bodies of loops that ran at no point, though what is fed decides on them."""
        for key, seen in self.seen.items():
            yield from (f"the {name} of {self.names[key]}" for name in _BRANCHES if not seen.get(name, True))
        yield from (f"the body of {describe(i, self.graph.nodes[i])}" for i, never in self.idle.items() if never)

    def _said_of_ranges(self, keys: set[Key]) -> list[str]:
        """Node 1 Relu 'a' reads -3 to 4."""
        found = [(k, low, high) for k, (low, high) in self.ranges.items() if k in keys]
        return [f"{self.names[k]} {self.verbs[k]} {low:.3g} to {high:.3g}" for k, low, high in found[:RANGES]]

    def _untold(self, record: Check, keys: set[Key]) -> Iterator[str]:
        """A note that nodes read nothing but their kink, where no entry at a tie of theirs tells."""
        told = [note for note in record.notes if " at a tie of " in note or note.startswith("and ties of ")]
        cut = any(" more" in note for note in told)  # they may be among those that are not named
        still = [] if cut else [self.names[k] for k, zero in self.still.items() if zero and k in keys]
        still = [node for node in still if not any(node in note for note in told)]
        if still and record.status == "pass":
            yield f"all that {listed(still)} {'reads is 0, its' if len(still) == 1 else 'read is 0, their'} kink: " + (
                "neither side was seen"
            )

    def _never_run(self, record: Check) -> Iterator[str]:
        """Notes on loops from x to y whose bodies have not run, and on nodes there that gave nothing."""
        if named := self._between(record, self.idle):
            yield f"no point ran the body of {listed(named)}: what it computes was not checked"
        if named := self._between(record, self.bare):
            yield f"at these sizes nothing comes from {listed(named)}: what follows from it was not checked"

    def _between(self, record: Check, found: Mapping[int, bool]) -> list[str]:
        """Nodes from x to y for which something holds, as notes call them."""
        nodes = {index: self.graph.nodes[index] for index, holds in found.items() if holds}
        way = self.graph.reached_from([record.x]) & self.graph.needed_for([record.y]) if nodes else set()
        return [describe(index, node) for index, node in nodes.items() if not way.isdisjoint(node.outputs)]

    def _open(self, name: str) -> bool:
        """True for an input of which the model leaves a size open."""
        shape = self.graph.types.get(name, TensorType()).shape
        return shape is None or not all(isinstance(size, int) for size in shape)

    def _add(self, step: Step, taken: Seen) -> None:
        if taken:
            key = step.place.key
            known = self.seen.setdefault(key, dict.fromkeys(taken, False))
            known.update((name, known.get(name, False) or now) for name, now in taken.items())
            self.names[key] = step.where

    def _measure(self, step: Step, tape: Tape, decided: set[str]) -> None:
        """The range of what a piecewise operator reads, or one that compares: of what is not constant, over all points."""
        sides, node, key = step.op.sides, tape.operator_at(step.place, step.op), step.place.key
        compares = sides == "compares" and node.sides in ("compares", "condition")
        if sides == "condition" or not (compares or _of(tape, step)):
            return
        names = step.operands if sides in ("winners", "compares") else step.operands[:1]
        read = [tape.values[n] for n in names if n in decided and tape.values[n].dtype.kind == "f"]
        spans = [_span(x) for x in read if x.size]
        low, high = (
            np.min([low for low, _ in spans], initial=np.inf),
            np.max([high for _, high in spans], initial=-np.inf),
        )
        if low > high:
            return
        before = self.ranges.get(key, (low, high))
        self.ranges[key] = min(low, before[0]), max(high, before[1])
        self.names.setdefault(key, step.where)
        self.verbs[key] = "compares" if compares else "reads" if node.key == step.op.key else "decides on"
        self.still[key] = self.still.get(key, True) and _has_kink_at_0(tape, step) and not any(x.any() for x in read)

    def _chosen(self, tape: Tape, step: Step, decided: set[str]) -> Seen:
        """The branch of an If of the model itself."""
        node = self.graph.nodes[step.origin]
        condition = tape.named.get(node.inputs[0]) if node.op == "If" and not step.place.inside else None
        if condition is None or condition.name not in decided:
            return {}
        holds = bool(condition.value.reshape(-1)[0])
        return dict(zip(_BRANCHES, (holds, not holds), strict=True))


def _span(x: Array) -> tuple[float, float]:
    """The smallest and the largest number that is finite; infinities the other way round where none is."""
    low, high = float(x.min()), float(x.max())
    if np.isfinite(low) and np.isfinite(high):
        return low, high
    finite = np.isfinite(x)
    return float(np.min(x, where=finite, initial=np.inf)), float(np.max(x, where=finite, initial=-np.inf))


def _has_kink_at_0(tape: Tape, step: Step) -> bool:
    """Both sides of an operator differ in slope at 0, as those of a Celu do not; slopes that are read are not looked at."""
    alpha = step.metadata.get("alpha", step.op.schema.get("alpha"))
    return step.op.sides == "sign" and _of(tape, step) is not None and alpha != 1.0


def _of(tape: Tape, step: Step) -> Callable[..., Seen] | None:
    """The branches of a step; None for a part of an operator that is piecewise in another way, or not at all."""
    node = tape.operator_at(step.place, step.op)
    return _OF.get(step.op.sides) if node.sides == step.op.sides else None


def _taken(tape: Tape, step: Step, decided: set[str]) -> Seen:
    of = _of(tape, step)
    if of is None:
        return {}
    arrays = [tape.values[n] if n else None for n in step.operands]
    real = all(x is None or x.dtype.kind in "fiub" for x in arrays)
    alone = of is _where and tape.operator_at(step.place, step.op).key == step.op.key  # a node's own condition
    if not real or (alone and step.operands[0] not in decided):
        return {}
    return of(step, *arrays) if all(x is None or x.size for x in arrays) else {}


def _is_bare(tape: Tape, node: Node, sized: set[str]) -> bool:
    """True where a result of numbers has no entries by sizes that are open, though all that is read has some."""
    made, read = ((tape.named[n] for n in names if n in tape.named) for names in (node.outputs, node.inputs))
    return any(y.name in sized and not y.size and is_inexact(y.dtype) for y in made) and all(x.size for x in read)


def _depending(tape: Tape, fed: Iterable[str], *, by_size: bool = False) -> set[str]:
    """Names of what depends on the values of what was fed, or on its sizes too."""
    found = set(fed)
    for step in tape.steps:
        read = step.statics if step.op.batching is shape_only and not by_size else (*step.operands, *step.statics)
        if not found.isdisjoint(read):
            found.update(n for n in step.node.outputs if n)
    return found
