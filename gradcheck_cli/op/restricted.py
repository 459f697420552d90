"""One kernel for patches: it runs on what their boxes need, for all probes at once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gradcheck_cli.graph import Array
from gradcheck_cli.op.batching import Kernel, Lift
from gradcheck_cli.op.box_rules import Site, Way, Ways
from gradcheck_cli.op.boxes import Box, Patch, Shape, Span, Stack, all_probes, extent, in_any_entry, some, windows

_PAYS = 0.5  # of a whole stack: more than that is made whole
_WORTH = 1 << 18  # entries that have to be saved: fewer are computed sooner than they are cut out
_SUMMED = 8  # products that are added in the time of any other entry


@dataclass(frozen=True, slots=True)
class Restricted:
    """A kernel with its lift, the word for how boxes go through it, and the shapes of its outputs."""

    ways: Ways
    kernel: Kernel
    lift: Lift
    metadata: Mapping[str, Any]
    shapes: Sequence[Shape]

    def __call__(
        self, operands: Sequence[Array | Patch | None], bases: Sequence[Array | None]
    ) -> tuple[Stack, ...] | None:
        """What it makes of operands of which some are patches, upon `bases`; None where it has to run on whole stacks."""
        operands, probes = _together(operands)
        ways = self._ways(operands, len(probes))
        if ways is None:
            return None
        first = next(x for x in operands if isinstance(x, Patch))
        made = []
        for number, (way, full, base) in enumerate(zip(ways, self.shapes, bases, strict=True)):
            kept = np.broadcast_to(way.reached, len(probes))
            values = self._values(number, way, operands, kept)
            own = first.count, full, base, first.most, first.room
            patch = Patch(values, some(way.out, kept), probes[kept], *own).within()
            small = patch.values.size <= _PAYS * first.count * math.prod(full)
            made.append(patch if small or first.count > first.most else patch.dense())
        return tuple(made)

    def differing(self, operands: Sequence[Array | Patch | None]) -> Array | None:
        """The probes of which it makes something else than of their bases; None where it has to run on whole stacks."""
        operands, probes = _together(operands)
        ways = self._ways(operands, len(probes))
        if ways is None:
            return None
        here = [x.unmoved() if isinstance(x, Patch) else x for x in operands]
        every = np.ones(len(probes), bool)
        mine, bare = (self._values(0, ways[0], each, every) for each in (operands, here))
        return probes[in_any_entry(np.asarray(mine != bare))]

    def _ways(self, operands: Sequence[Array | Patch | None], count: int) -> Sequence[Way] | None:
        """One for each output, where they are known and pay."""
        boxes = [x.box if isinstance(x, Patch) else None for x in operands]
        shapes = tuple(None if x is None else x.full if isinstance(x, Patch) else x.shape for x in operands)
        ways = self.ways(boxes, Site(shapes, self.metadata, tuple(self.shapes)))
        if ways is None or not all(self._pays(*pair, operands, count) for pair in zip(ways, self.shapes, strict=False)):
            return None
        return ways

    def _pays(self, way: Way, full: Shape, operands: Sequence[Any], count: int) -> bool:
        """What is computed, or what it is computed from, is far smaller than whole stacks, and fits where they do."""
        patches = [(x, need) for x, need in zip(operands, way.needs, strict=True) if isinstance(x, Patch)]
        first, reached = patches[0][0], int(np.count_nonzero(np.broadcast_to(way.reached, count)))
        made, whole = reached * math.prod(extent(way.out)), first.count * math.prod(full)
        if first.count > first.most:
            if made > first.room:
                return False
        elif whole * max(way.terms, _SUMMED) - made * max(way.summed, _SUMMED) < _WORTH * _SUMMED:
            return False
        if made <= _PAYS * whole:
            return True
        read = sum(reached * math.prod(extent(need or x.box)) for x, need in patches)
        return read <= _PAYS * sum(first.count * math.prod(x.full) for x, _ in patches)

    def _values(self, number: int, way: Way, operands: Sequence[Any], kept: Array) -> Array:
        """One output, in the boxes of some probes."""
        needs = way.needs
        if not kept.all():
            operands = [x.only(kept) if isinstance(x, Patch) else x for x in operands]
            needs = [need and some(need, kept) for need in needs]
        count = int(np.count_nonzero(kept))
        parts = [_part(x, need, count) for x, need in zip(operands, needs, strict=True)]
        probed = [part is not x for part, x in zip(parts, operands, strict=True)]
        if not count:
            return np.zeros((0, *extent(way.out)))
        made = self.lift(self.kernel, parts, probed, way.metadata)
        values = np.asarray(made[number] if isinstance(made, tuple) else made)
        return values if way.share == 1 else way.share * values


def _together(operands: Sequence[Any]) -> tuple[list[Any], Array]:
    """Operands, in which all patches have boxes for the same probes, and these."""
    probes = all_probes([x for x in operands if isinstance(x, Patch)])
    return [x.of(probes) if isinstance(x, Patch) else x for x in operands], probes


def _part(x: Any, need: Box | None, count: int) -> Any:
    """What a kernel gets of one operand."""
    if isinstance(x, Patch):
        return x.window(tuple(Span(0, n) for n in x.full) if need is None else need)
    if x is None or need is None or extent(need) == x.shape:
        return x
    return windows(x, need, count)
