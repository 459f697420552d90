"""What a model computes at further points: run as one stack of probes on the tape of a point that was traced.

A tape holds for other values as long as they lead the same way.  Where they do not, the model is traced anew.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from gradcheck_cli.autodiff.tape import Tape
from gradcheck_cli.engine.program import Program
from gradcheck_cli.errors import GradcheckError
from gradcheck_cli.formats.source import Source
from gradcheck_cli.graph import Array, is_inexact
from gradcheck_cli.op import Ops
from gradcheck_cli.points.point import Point, feeds_at
from gradcheck_cli.points.redraw import finite_point
from gradcheck_cli.settings import Settings

_BYTES = 48 << 20  # of the points that run at once
Feeds: TypeAlias = Mapping[str, Any]
Run: TypeAlias = tuple[Tape, Mapping[str, Array]]  # a tape, and values by name on it


class Further:
    """Further points beside `point`, which was traced as far as `targets`."""

    def __init__(self, source: Source, settings: Settings, ops: Ops, targets: Sequence[str], point: Point) -> None:
        self.source, self.settings, self.ops, self.targets, self.point = source, settings, ops, targets, point

    def runs(self, indices: range, names: Sequence[str]) -> Iterator[Run]:
        """The runs at some points, as long as each has other inputs than the one before: those of `names`, at least."""
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
        """What is fed has the types and shapes that it has at the point."""
        here, named = self.point.feeds, self.point.tape.named
        return feeds.keys() == here.keys() and all(
            n in named and feeds[n].shape == here[n].shape and feeds[n].dtype == here[n].dtype != object for n in moving
        )

    def _stacked(self, feeds: Sequence[Feeds], name: str) -> Array:
        return np.stack([each[name] for each in feeds]).astype(self.point.tape.named[name].dtype, copy=False)

    def _same_way(self, made: Mapping[str, Array]) -> bool:
        return all(_equal(made[n], self.point.tape.values[n]) for n in self.point.tape.guards)

    def _written_out(self, moving: Sequence[str]) -> bool:
        """What moves decides on the steps themselves: a composed operator reads its static inputs to write them."""
        graph = self.source.graph
        reached = graph.reached_from(moving)
        for node in graph.nodes:
            op = self.ops.get(node.key)
            if op is not None and (op.composed or op.compound is not None):
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
