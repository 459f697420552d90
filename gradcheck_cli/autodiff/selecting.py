"""Inputs and constants that only select: what they decide, index or size is chosen before others take part."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import cached_property

from gradcheck_cli.autodiff.flow import Flow, Tensor, Way, any_way, live
from gradcheck_cli.op.batching import elementwise

LAYOUT = (
    "Concat", "Expand", "Flatten", "Gather", "GatherElements", "GatherND", "Identity", "Reshape", "Slice", "Split",
    "Squeeze", "Tile", "Transpose", "Unsqueeze", "Cast", "CastLike",
)  # fmt: skip
_SELECTS = ("decides", "sizes")


def selecting(flow: Flow, inputs: Collection[str], every: Iterable[str], ys: Iterable[str]) -> set[str]:
    """The inputs that only select; none where no other one has a gradient.  `every` input and weight may take part."""
    rule = Selecting(flow, (), {*inputs, *every}, ys)
    alive = flow.before(rule.ends, live)
    found = {x for x in inputs if rule.only_selects(x)}
    return found if any(("", x) in alive for x in inputs if x not in found) else set()


class Selecting:
    """The rule for a graph: `inputs` and `others` are what takes part, of which the first are none that is asked about."""

    def __init__(self, flow: Flow, inputs: Iterable[str], others: Iterable[str], ys: Iterable[str]) -> None:
        self.flow, self.inputs, self.others = flow, {*inputs}, {*others}
        self.ends = {("", y) for y in ys}

    def only_selects(self, x: str) -> bool:
        """Every way from x to the ends comes by something it decides, with nothing but constants and sizes before.

        Up to there it is cast, rounded, laid out, picked from, or computed with entry by entry.
        """
        ready, waiting = {("", x)}, [("", x)]
        while waiting:
            for way in self.flow.out_of(waiting.pop()):
                if way.target not in self._needed or way.cut in _SELECTS:
                    continue
                if way.target in self.ends or not self._prepares(way, x):
                    return False
                if way.target not in ready:
                    ready.add(way.target)
                    waiting.append(way.target)
        return True

    def _prepares(self, way: Way, x: str) -> bool:
        """It computes entry by entry, casts, rounds or rearranges, and no numbers of others are in what it makes."""
        op = self.flow.ops.get(way.node.key)
        laid_out = op is not None and op.name in LAYOUT and (way.operand == 0 or op.name == "Concat")
        if op is None or not (op.lift is elementwise or laid_out):
            return False
        beside = {each.source for each in self.flow.into(way.target) if each.cut not in _SELECTS} - {way.source}
        return beside.isdisjoint(self._fed) and (not beside or beside.isdisjoint(self._moved(self.others - {x})))

    @cached_property
    def _needed(self) -> set[Tensor]:
        return self.flow.before(self.ends, any_way)

    @cached_property
    def _fed(self) -> set[Tensor]:
        """Tensors that have numbers of inputs: most of what stands beside a weight."""
        return self._moved(self.inputs)

    def _moved(self, names: Iterable[str]) -> set[Tensor]:
        """Tensors that follow from the numbers of some others, not from their sizes alone."""
        return self.flow.behind([("", name) for name in names], lambda way: way.cut != "sizes")
