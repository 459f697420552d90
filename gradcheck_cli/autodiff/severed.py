"""Pairs (x, y) between which every way is cut by nature: by an operand without a derivative, whatever its value.

Pairs of which a part is severed by rounding: a summand, some units of x, or all but the scale of a quantizer.

Only roundings count whose result goes on in float arithmetic; what ends as a shape, an index or a condition does not.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator

from gradcheck_cli.autodiff.reach import Flow, Tensor, Way, any_way, live, straight
from gradcheck_cli.op.batching import elementwise
from gradcheck_cli.results.measures import Partly, Severed, Spot


class Severance:
    """What is severed in a graph; `passes` says along which ways there is a derivative."""

    def __init__(self, flow: Flow, passes: Callable[[Way], bool] = live) -> None:
        self.flow, self.passes = flow, passes
        self._before: dict[tuple[str, Callable[[Way], bool]], set[Tensor]] = {}

    def arithmetic(self, way: Way) -> bool:
        """It leads through arithmetic, which may round."""
        return self.passes(way) or way.cut == "rounds"

    def of(self, x: str, y: str) -> Severed | None:
        """Where d y / d x is cut off; None where it is not, or where y does not depend on x at all."""
        if not self.depends(x, y, any_way) or self.depends(x, y, self.passes):
            return None
        return Severed(cut=spots(self.cuts(x, y)), reached=spots(self._reached(x, y)))

    def depends(self, x: str, y: str, passes: Callable[[Way], bool]) -> bool:
        """y depends on x along ways that pass."""
        return ("", x) in self.before(y, passes)

    def before(self, y: str, passes: Callable[[Way], bool]) -> set[Tensor]:
        """Every tensor that y depends on along ways that pass."""
        if (y, passes) not in self._before:
            self._before[y, passes] = self.flow.before([("", y)], passes)
        return self._before[y, passes]

    def cuts(self, x: str, y: str) -> list[Way]:
        """The ways on which a gradient of x that lives so far ends, on the way to y."""
        needed = self.before(y, any_way)
        found = self.flow.behind([("", x)], self.passes)
        return [w for t in found for w in self.flow.out_of(t) if not self.passes(w) and w.target in needed]

    def mended(self, x: str, y: str) -> bool:
        """`--straight-through` would let a gradient through, where there is none now."""
        return self.passes is not straight and self.depends(x, y, straight)

    def quantized(self, x: str, y: str) -> bool:
        """Quantizers alone cut it off."""
        return all(way.quantizes for way in self.cuts(x, y))

    def quantizes(self, x: str, y: str) -> bool:
        """Quantizers are among what cuts it off, and going straight through them would mend it."""
        return any(way.quantizes for way in self.cuts(x, y)) and self.depends(x, y, straight)

    def _reached(self, x: str, y: str) -> list[Way]:
        """The ways on which the gradient of y ends, going back towards x."""
        following, alive = self.flow.behind([("", x)], any_way), self.before(y, self.passes)
        last = {t for t in alive & following if not any(self._goes_on(way, following) for way in self.flow.into(t))}
        return [w for t in last for w in self.flow.out_of(t) if self.passes(w) and w.target in alive]

    def _goes_on(self, way: Way, following: set[Tensor]) -> bool:
        return self.passes(way) and way.source in following


def last_with_gradient(flow: Flow, xs: Iterable[str], ys: Iterable[str], names: Iterable[str]) -> str | None:
    """The last of some tensors on the way from xs to ys to which a gradient still comes."""
    alive = flow.behind([("", x) for x in xs], live)
    needed = flow.before([("", y) for y in ys], any_way)
    return next((n for n in reversed([*names]) if ("", n) in alive and ("", n) in needed), None)


def spots(ways: Iterable[Way]) -> tuple[Spot, ...]:
    """The nodes of some ways, in their order in the model."""
    return tuple(sorted({way.at for way in ways}, key=lambda spot: (spot.inside, spot.node)))


_SUMS = ("Add", "Sub", "Sum", "Mean")
_TAKING = ("Split", "Slice", "Gather", "GatherND", "GatherElements", "Compress", "TopK")
_SCALING, _SHIFTING = ("Div", "Mul"), ("Add", "Sub")
_NEAR = 8  # elementwise nodes between a rounding and the scale that it is done by


def in_part(severance: Severance, x: str, y: str) -> Severed | None:
    """What of d y / d x is severed, where some of it is and some is not; None where nothing is."""
    flow, passes = severance.flow, severance.passes
    cuts = [way for way in severance.cuts(x, y) if way.cut == "rounds" and _goes_on(severance, way, y)]
    if not cuts:
        return None
    at = spots(cuts)
    scaling = _scaling(flow, flow.behind([("", x)], passes))
    if scaling and ("", x) not in flow.before([("", y)], lambda way: passes(way) and way not in scaling):
        return Severed(at, partial=Partly("scale", at))
    if _summands(severance, x, y):
        return Severed(partial=Partly("sum", at))
    return Severed(partial=Partly("units", at)) if _taken(severance, x, y) else None


def _goes_on(severance: Severance, way: Way, y: str) -> bool:
    """What is rounded takes part in the arithmetic that leads to y."""
    return way.target in severance.before(y, severance.arithmetic)


def _summands(severance: Severance, x: str, y: str) -> bool:
    """Some sum on the way to y has a summand with a gradient by x, and one that only rounding takes it from."""
    flow, alive = severance.flow, severance.before(y, severance.passes)
    by, rounded = (flow.behind([("", x)], passes) for passes in (severance.passes, severance.arithmetic))
    for way in flow.ways:
        if way.node.op in _SUMS and way.target in alive and way.source in rounded and way.source not in by:
            beside = {each.source for each in flow.into(way.target)}
            if not beside.isdisjoint(by):
                return True
    return False


def _taken(severance: Severance, x: str, y: str) -> bool:
    """Some part that is taken out of x, entry by entry, has ways to y that are all rounded."""
    flow, alive = severance.flow, severance.before(y, severance.passes)
    rounded = severance.before(y, severance.arithmetic)
    by = flow.behind([("", x)], severance.passes)
    return any(
        way.node.op in _TAKING and way.source in by and way.target in rounded - alive and severance.passes(way)
        for way in flow.ways
    )


def _scaling(flow: Flow, by: Collection[Tensor]) -> set[Way]:
    """The ways by which scales and zero points of quantizers of these tensors come into the arithmetic behind them."""
    found = {w for w in flow.ways if w.node.op == "DynamicQuantizeLinear" and not w.cut and w.source in by}
    for way in flow.ways:
        if way.cut == "rounds" and way.source in by:
            found.update(_undone(flow, way, by))
    return found


def _undone(flow: Flow, rounding: Way, by: Collection[Tensor]) -> Iterator[Way]:
    """Where what was done to a tensor right before it was rounded is undone: `Round(x / s) * s` by the same s."""
    scales, shifts = _beside(flow, rounding, by)
    waiting, seen = [rounding.target], {rounding.target}
    for _ in range(4 * _NEAR):
        if not waiting:
            return
        for way in flow.out_of(waiting.pop(0)):
            others = [each for each in flow.into(way.target) if each.source not in seen]
            undone = scales if way.node.op in (*_SCALING, "DequantizeLinear") else shifts
            yield from (each for each in others if each.source in undone and each.node is way.node)
            if way.node.op not in (*_SCALING, "DequantizeLinear") and _is_elementwise(flow, way):
                seen.add(way.target)
                waiting.append(way.target)


def _beside(flow: Flow, rounding: Way, by: Collection[Tensor]) -> tuple[set[Tensor], set[Tensor]]:
    """What a tensor was scaled by and shifted by right before it was rounded, as far as data of x was."""
    if rounding.node.op == "QuantizeLinear":
        operands = [each for each in flow.into(rounding.target) if each.node is rounding.node]
        data = any(each.operand == 0 and each.source in by for each in operands)
        return {each.source for each in operands if each.operand == 1 and data}, set()
    scales, shifts = set[Tensor](), set[Tensor]()
    waiting = [rounding.source]
    for _ in range(_NEAR):
        if not waiting:
            break
        ways = flow.into(waiting.pop(0))
        for way in ways:
            rest = [each for each in ways if each is not way and each.source in by]
            if way.node.op in _SCALING and rest:
                scales.update(_with_inverse(flow, way.source))
            elif way.node.op in _SHIFTING and rest:
                shifts.add(way.source)
            if way.node.op not in _SCALING and _is_elementwise(flow, way):
                waiting.append(way.source)
    return scales, shifts


def _with_inverse(flow: Flow, scale: Tensor) -> Iterable[Tensor]:
    """A scale, and what it is the reciprocal of."""
    inverse = [w.source for w in flow.into(scale) if w.node.op == "Reciprocal" or (w.node.op == "Div" and w.operand)]
    behind = [w.target for w in flow.out_of(scale) if w.node.op == "Reciprocal" or (w.node.op == "Div" and w.operand)]
    return [scale, *inverse, *behind]


def _is_elementwise(flow: Flow, way: Way) -> bool:
    op = flow.ops.get(way.node.key)
    return op is not None and op.lift is elementwise
