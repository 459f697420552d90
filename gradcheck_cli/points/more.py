"""More points beside one that was traced, and points at which a model is finite.

`MorePoints` runs further points as one stack of probes on the tape of the first.  A tape holds for other values as long
as control flow takes the same branches; where it does not, the model is traced anew.

Where results are not finite at the values that were drawn, `finite_point` draws the inputs that lead there from a few
other ranges, always the same ones in the same order.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
from msgspec import structs

from gradcheck_cli.autodiff.tape import Step, Tape
from gradcheck_cli.engine.program import Program
from gradcheck_cli.errors import GradcheckError
from gradcheck_cli.formats.source import Source
from gradcheck_cli.graph import Array, is_inexact
from gradcheck_cli.op import Ops
from gradcheck_cli.points.point import ELSEWHERE, Beside, Point, feeds_at, find_point, float_range
from gradcheck_cli.settings import ANY, Settings


def first_nonfinite(tape: Tape, ends: Iterable[str], fits: Callable[[Array], Any] = np.isfinite) -> Step | None:
    """The first step on the way to some tensors of a tape whose result is not finite though its operands are.

    `fits` says entry by entry what counts as such.
    """
    needed = ancestors(tape, ends)
    for step in tape.steps:
        if needed.isdisjoint(step.node.outputs) or all(_fits(tape, n, fits) for n in step.node.outputs):
            continue
        if all(_fits(tape, n, fits) for n in step.operands):
            return step
    return None


def a_number(x: Array) -> Array:
    """True for each entry that is no NaN, though it may be infinite."""
    return np.asarray(~np.isnan(x))


def ancestors(tape: Tape, names: Iterable[str]) -> set[str]:
    """Every tensor of a tape that some tensors were computed from, those included."""
    found = set(names)
    for step in reversed(tape.steps):
        if not found.isdisjoint(step.node.outputs):
            found.update((*step.operands, *step.statics))
    return found


def leading(tape: Tape, targets: Sequence[str], inputs: Iterable[str]) -> list[str]:
    """The inputs that lead to the first result on the way to the targets that is not finite."""
    step = first_nonfinite(tape, [tape.named[n].name for n in targets if n in tape.named])
    before = ancestors(tape, () if step is None else (*step.operands, *step.statics))
    return [n for n in inputs if n in tape.named and tape.named[n].name in before]


def _fits(tape: Tape, name: str, fits: Callable[[Array], Any]) -> bool:
    if not name or name not in tape.values or tape.values.like(name).dtype.kind not in "fc":
        return True
    return bool(fits(tape.values[name]).all())


def finite_point(
    source: Source, settings: Settings, ops: Ops, targets: Sequence[str], index: int, dims: Mapping[str, int],
    beside: Beside | None = None,
) -> Point:  # fmt: skip
    """The point number `index`, with inputs from the first other range in which the targets are finite if need be.

    Only inputs that lead to a result that is not finite are drawn anew.  A range that somebody gave stays: then the other
    one is advice.
    """
    point = find_point(source, settings, ops, targets, index, dims, beside)
    if not point.random or _all_finite(point.tape, targets):
        return point
    causes = leading(point.tape, targets, point.random) or [*point.random]
    free = [name for name in causes if not _has_range(source, settings, name)]
    for names in (free, causes) if free != causes else (causes,):
        for within in ELSEWHERE if names else ():
            ranges = {name: float_range(source.graph, name, ops, within=within) for name in names}
            other = replace(settings, val_range={**settings.val_range, **ranges})
            again = find_point(source, other, ops, targets, index, {**dims, **point.dims})
            if _all_finite(again.tape, targets):
                moved = structs.replace(again, ranges=ranges, notes=point.notes)
                return moved if names == free else structs.replace(point, advice=ranges)
    return point


def _has_range(source: Source, settings: Settings, name: str) -> bool:
    return name in settings.val_range or name in source.ranges or ANY in settings.val_range


def _all_finite(tape: Tape, targets: Sequence[str]) -> bool:
    values = [tape.named[name].value for name in targets if name in tape.named]
    return all(np.isfinite(value).all() for value in values if is_inexact(value.dtype))


_BYTES = 48 << 20  # of the points that run at once
Feeds: TypeAlias = Mapping[str, Any]
Run: TypeAlias = tuple[Tape, Mapping[str, Array]]  # a tape, and values by name on it


class MorePoints:
    """More points beside `point`, which was traced as far as `targets`."""

    def __init__(self, source: Source, settings: Settings, ops: Ops, targets: Sequence[str], point: Point) -> None:
        self.source, self.settings, self.ops, self.targets, self.point = source, settings, ops, targets, point

    def runs(self, indices: range, names: Sequence[str]) -> Iterator[Run]:
        """The runs at some points, with values of `names` at least, until inputs no longer change from point to point."""
        feeds = list(self._feeds(indices))
        for index, values in zip(indices, self._replayed(feeds, names), strict=False):
            if values is not None:
                yield self.point.tape, values
                continue
            try:
                tape = finite_point(self.source, self.settings, self.ops, self.targets, index, self.point.dims).tape
            except GradcheckError:
                return
            yield tape, tape.values

    def _feeds(self, indices: range) -> Iterator[Feeds]:
        before: Feeds = self.point.feeds
        for index in indices:
            try:
                feeds = feeds_at(self.source, self.settings, self.ops, self.targets, index, self.point.dims)
            except GradcheckError:
                return
            if not self._moving(before, feeds):
                return
            yield feeds
            before = feeds

    def _moving(self, before: Feeds, feeds: Feeds) -> list[str]:
        """The inputs that have other values."""
        free = self.source.graph.free_inputs
        return [n for n in feeds if n in free and isinstance(feeds[n], np.ndarray) and not _equal(before[n], feeds[n])]

    def _replayed(self, feeds: Sequence[Feeds], names: Sequence[str]) -> Iterator[Mapping[str, Array] | None]:
        """Values on the tape at each of `feeds`; None where it does not hold for them."""
        tape, moving = self.point.tape, sorted({n for each in feeds for n in self._moving(self.point.feeds, each)})
        if not moving or self._written_out(moving) or not all(self._fits(each, moving) for each in feeds):
            yield from (None for _ in feeds)
            return
        targets = [tape.named[n].name for n in self.targets if n in tape.named]
        wanted = list(dict.fromkeys([*names, *targets, *tape.guards]))
        program = Program(tape, [tape.named[n].name for n in moving], wanted)
        at_once = _BYTES // (program.bytes_per_probe() + sum(tape.values[n].nbytes for n in wanted)) or 1
        for start in range(0, len(feeds), at_once):
            part = feeds[start : start + at_once]
            outcome = program.run({tape.named[n].name: self._stacked(part, n) for n in moving})
            failed = outcome.any_crossed(len(part))
            for position in range(len(part)):
                made = dict(zip(wanted, (stack[position] for stack in outcome.outputs), strict=True))
                holds = not failed[position] and self._same_way(made) and all(_finite(made[n]) for n in targets)
                yield ChainMap(made, tape.values) if holds else None

    def _fits(self, feeds: Feeds, moving: Sequence[str]) -> bool:
        """True if feeds have the types and shapes that they have at the point."""
        here, named = self.point.feeds, self.point.tape.named
        return feeds.keys() == here.keys() and all(
            n in named and feeds[n].shape == here[n].shape and feeds[n].dtype == here[n].dtype != object for n in moving
        )

    def _stacked(self, feeds: Sequence[Feeds], name: str) -> Array:
        return np.stack([each[name] for each in feeds]).astype(self.point.tape.named[name].dtype, copy=False)

    def _same_way(self, made: Mapping[str, Array]) -> bool:
        return all(_equal(made[n], self.point.tape.values[n]) for n in self.point.tape.guards)

    def _written_out(self, moving: Sequence[str]) -> bool:
        """True if an input that moves decides on the steps themselves: a composed operator reads its static inputs."""
        graph = self.source.graph
        reached = graph.reached_from(moving)
        for node in graph.nodes:
            op = self.ops.get(node.key)
            if op is not None and (op.composed or op.containers is not None):
                static = (node.inputs[i] for i in op.static.values() if i < len(node.inputs))
                if not reached.isdisjoint(static):
                    return True
            if any(node.subgraphs):
                return True
        return False


def _equal(one: Any, other: Any) -> bool:
    return isinstance(one, np.ndarray) and np.array_equal(one, other)


def _finite(value: Array) -> bool:
    return not is_inexact(value.dtype) or bool(np.isfinite(value).all())
