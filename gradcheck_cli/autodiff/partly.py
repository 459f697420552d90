"""Pairs of which a part is severed by rounding: a summand, some units of x, or all but the scale of a quantizer.

Only roundings count whose result goes on in float arithmetic; what ends as a shape, an index or a condition does not.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from gradcheck_cli.autodiff.flow import Flow, Tensor, Way
from gradcheck_cli.autodiff.severed import Severance, spots
from gradcheck_cli.op.batching import elementwise
from gradcheck_cli.results.measures import Partly, Severed

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
