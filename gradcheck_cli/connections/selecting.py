"""Inputs that only select: what they decide, index or size is chosen before any weight or other input takes part."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from gradcheck_cli.connections.flow import Flow, Tensor, Way, any_way, live
from gradcheck_cli.lift import elementwise

_LAYOUT = (
    "Concat", "Expand", "Flatten", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze",
    "CastLike",
)  # fmt: skip
_SELECTS = ("decides", "sizes")


def selecting(flow: Flow, inputs: Collection[str], every: Iterable[str], ys: Iterable[str]) -> set[str]:
    """The inputs that only select; none where no other one has a gradient.  `every` input and weight may take part."""
    ends = [("", y) for y in ys]
    needed, alive = flow.before(ends, any_way), flow.before(ends, live)
    taking_part = {*inputs, *every}
    found = {x for x in inputs if _only_selects(flow, x, taking_part - {x}, needed, set(ends))}
    return found if any(("", x) in alive for x in inputs if x not in found) else set()


def _only_selects(
    flow: Flow, x: str, others: Iterable[str], needed: Collection[Tensor], ends: Collection[Tensor]
) -> bool:
    """Every way from x to the ends comes by something it decides, with nothing but constants and sizes before."""
    moving = flow.behind([("", name) for name in others], lambda way: way.cut != "sizes")
    ready, waiting = {("", x)}, [("", x)]
    while waiting:
        for way in flow.out_of(waiting.pop()):
            if way.target not in needed or way.cut in _SELECTS:
                continue
            if way.target in ends or not _prepares(flow, way, moving):
                return False
            if way.target not in ready:
                ready.add(way.target)
                waiting.append(way.target)
    return True


def _prepares(flow: Flow, way: Way, moving: Collection[Tensor]) -> bool:
    """It computes entry by entry, casts, rounds or rearranges, with constants and sizes alone beside."""
    op = flow.ops.get(way.node.key)
    if op is None or not (op.lift is elementwise or op.name in _LAYOUT):
        return False
    beside = {each.source for each in flow.into(way.target)} - {way.source}
    return beside.isdisjoint(moving)
