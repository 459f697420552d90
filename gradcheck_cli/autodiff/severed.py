"""Pairs (x, y) without a derivative by nature: every path between them goes through an edge that is cut.

An operand may have no derivative whatever its value: it is rounded, it indexes or decides.  A pair may also be severed
in part by rounding: a summand, some units of x, or all but the scale of a quantizer.  Only roundings count whose result
goes on in float arithmetic; results that end as a shape, an index or a condition do not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import cached_property

from gradcheck_cli.autodiff.reach import Edge, Flow, Tensor, any_edge, live, straight
from gradcheck_cli.errors import listed
from gradcheck_cli.op import operator_of
from gradcheck_cli.op.batching import elementwise, shape_only
from gradcheck_cli.results.measures import Partly, Severed, Spot

_FEW = 16
_SHOWN = 3  # nodes named in a sentence
_MADE_OF = "pkg.torch.onnx.fx_node"  # metadata of a node: what it was in PyTorch
_DETACHED = re.compile(r"%detach(_\d+)?\b")  # there, a tensor that a detach gave


class Severance:
    """The severed pairs of a graph, if a derivative flows along the edges that `passes` accepts."""

    def __init__(self, flow: Flow, passes: Callable[[Edge], bool] = live) -> None:
        self.flow, self.passes = flow, passes
        self._before: dict[tuple[str, Callable[[Edge], bool]], set[Tensor]] = {}
        self._behind: dict[tuple[str, Callable[[Edge], bool]], set[Tensor]] = {}  # the last few

    def arithmetic(self, edge: Edge) -> bool:
        """True for an edge through arithmetic, which may round."""
        return self.passes(edge) or edge.cut == "rounds"

    def of(self, x: str, y: str) -> Severed | None:
        """The places where d y / d x is cut off; None if it is not, or if y does not depend on x at all."""
        if not self.depends(x, y, any_edge) or self.depends(x, y, self.passes):
            return None
        return Severed(cut=spots(self.cuts(x, y)), reached=spots(self._reached(x, y)))

    def depends(self, x: str, y: str, passes: Callable[[Edge], bool]) -> bool:
        """True if y depends on x along edges that pass."""
        return ("", x) in self.before(y, passes)

    def before(self, y: str, passes: Callable[[Edge], bool]) -> set[Tensor]:
        """Every tensor that y depends on along edges that pass."""
        if (y, passes) not in self._before:
            self._before[y, passes] = self.flow.before([("", y)], passes)
        return self._before[y, passes]

    def behind(self, x: str, passes: Callable[[Edge], bool]) -> set[Tensor]:
        """Every tensor that depends on x along edges that pass."""
        found = self._behind.get((x, passes))
        if found is None:
            if len(self._behind) >= _FEW:
                self._behind.clear()
            self._behind[x, passes] = found = self.flow.behind([("", x)], passes)
        return found

    def cuts(self, x: str, y: str) -> list[Edge]:
        """The edges at which the derivative by x ends: the first cut on each path from x to y.

        Sizes of x count only where nothing else is cut, as nobody looks for a gradient there.
        """
        needed = self.before(y, any_edge)
        found = self.behind(x, self.passes)
        leading = (w for t in found & needed for w in self._edges(t, needed))
        cut = [w for w in leading if not self.passes(w) and w.target in needed]
        cut = [w for w in cut if operator_of(self.flow.ops, w.node).batching is not shape_only] or cut
        return [w for w in cut if w.cut != "cancels"] or cut

    def _edges(self, source: Tensor, targets: Collection[Tensor]) -> Iterable[Edge]:
        """The edges out of a tensor, or those of them into `targets` where these are fewer."""
        edges = self.flow.out_of(source)
        if len(edges) <= len(targets):
            return edges
        return [w for t in targets for w in self.flow.into(t) if w.source == source]

    def cancelled(self, xs: Iterable[str], y: str) -> list[Edge]:
        """The edges by which xs lead into sums on the way to y that take away what they add."""
        return self._between(self._cancelling, xs, self.before(y, any_edge)) if self._cancelling else []

    def detached(self, xs: Iterable[str], y: str) -> list[Edge]:
        """The edges between xs and y that were a detach, as PyTorch's exporter notes: here they let a gradient through."""
        return self._between(self._detaching, xs, self.before(y, self.passes)) if self._detaching else []

    def _between(self, edges: Iterable[Edge], xs: Iterable[str], needed: Collection[Tensor]) -> list[Edge]:
        behind = self.flow.behind([("", x) for x in xs], self.passes)
        return [w for w in edges if w.source in behind and w.target in needed]

    @cached_property
    def _cancelling(self) -> list[Edge]:
        return [w for w in self.flow.edges if w.cut == "cancels"]

    @cached_property
    def _detaching(self) -> list[Edge]:
        return [w for w in self.flow.edges if self.passes(w) and (is_detach(w) or self._reads_detached(w))]

    def _reads_detached(self, edge: Edge) -> bool:
        """True for an edge that a detach was left out of, which the note on the node that reads it still names.

        What the node reads besides stands in that note by its own name, or was made by another part of the same.
        """
        note, (_, name) = edge.node.metadata.get(_MADE_OF, ""), edge.source
        if not _DETACHED.search(note) or re.search(rf"%{re.escape(name)}\b", note):
            return False
        makers = [w.node for w in self.flow.into(edge.source)]
        return bool(makers) and all(node.metadata.get(_MADE_OF) != note for node in makers)

    def mended(self, x: str, y: str) -> bool:
        """True if `--straight-through` would let a gradient through that is cut off now."""
        return self.passes is not straight and self.depends(x, y, straight)

    def quantized(self, x: str, y: str) -> bool:
        """True if quantizers alone cut it off."""
        return all(edge.quantizes for edge in self.cuts(x, y))

    def quantizes(self, x: str, y: str) -> bool:
        """True if quantizers are among the cuts, and passing straight through roundings would mend them."""
        return any(edge.quantizes for edge in self.cuts(x, y)) and self.depends(x, y, straight)

    def _reached(self, x: str, y: str) -> list[Edge]:
        """The edges at which the gradient of y ends on its way back towards x."""
        following, alive = self.behind(x, any_edge), self.before(y, self.passes)
        last = (t for t in alive & following
                if not any(self.passes(edge) and edge.source in following for edge in self.flow.into(t)))  # fmt: skip
        return [w for t in last for w in self.flow.out_of(t) if self.passes(w) and w.target in alive]


def is_detach(edge: Edge) -> bool:
    """True for an edge through a detach, which a file holds as an Identity."""
    return "aten.detach" in edge.node.metadata.get(_MADE_OF, "")


def last_with_gradient(flow: Flow, xs: Iterable[str], ys: Iterable[str], names: Iterable[str]) -> str | None:
    """The last of `names` between xs and ys that a gradient by xs still reaches."""
    alive = flow.behind([("", x) for x in xs], live)
    needed = flow.before([("", y) for y in ys], any_edge)
    return next((n for n in reversed([*names]) if ("", n) in alive and ("", n) in needed), None)


def spots(edges: Iterable[Edge]) -> tuple[Spot, ...]:
    """The nodes of some edges, in their order in the model."""
    return tuple(sorted({edge.at for edge in edges}, key=lambda spot: (spot.inside, spot.node)))


def named_spots(spots: Iterable[Spot]) -> str:
    """Nodes as text: "node 2 Round 'q', node 5 ArgMax 'i' and 3 more"."""
    return listed(spots, _SHOWN)


def said_of_cancelled(severance: Severance, xs: Iterable[str], y: str) -> list[str]:
    """A note on sums between xs and y that take away what they add: all that a file holds of a straight-through trick."""
    found = () if severance.passes is straight else spots(severance.cancelled(xs, y))
    meant = "if this was meant as straight-through, x + detach(q - x), the file does not hold the detach"
    return [f"{named_spots(found)} takes away what it adds: {meant}"] if found else []


_SCALING, _SHIFTING = ("Div", "Mul"), ("Add", "Sub")
_NEAR = 8  # elementwise nodes between a rounding and the scale that it is done by


def in_part(severance: Severance, x: str, y: str) -> Severed | None:
    """The severed part of d y / d x, if some of it is severed and some is not; else None."""
    flow, passes = severance.flow, severance.passes
    # the rounded tensor takes part in the arithmetic that leads to y
    behind = severance.before(y, severance.arithmetic)
    cuts = [edge for edge in severance.cuts(x, y) if edge.cut == "rounds" and edge.target in behind]
    if not cuts:
        return None
    at = spots(cuts)
    scaling = _scaling(flow, flow.behind([("", x)], passes))
    if scaling and ("", x) not in flow.before([("", y)], lambda edge: passes(edge) and edge not in scaling):
        return Severed(at, partial=Partly("scale", at))
    if _summands(severance, x, y):
        return Severed(partial=Partly("sum", at))
    return Severed(partial=Partly("units", at)) if _taken(severance, x, y) else None


def _summands(severance: Severance, x: str, y: str) -> bool:
    """True if a sum on the way to y has a summand with a gradient by x, and one that lost it by rounding alone."""
    flow, alive = severance.flow, severance.before(y, severance.passes)
    by, rounded = (severance.behind(x, passes) for passes in (severance.passes, severance.arithmetic))
    for edge in flow.edges:
        sums = operator_of(flow.ops, edge.node).linear == "each" and _is_elementwise(flow, edge)
        lost = sums and edge.target in alive and edge.source in rounded and edge.source not in by
        if lost and any(each.source in by and severance.passes(each) for each in flow.into(edge.target)):
            return True
    return False


def _taken(severance: Severance, x: str, y: str) -> bool:
    """True if some part that is sliced or gathered from x reaches y through roundings only."""
    flow, alive = severance.flow, severance.before(y, severance.passes)
    rounded = severance.before(y, severance.arithmetic)
    by = severance.behind(x, severance.passes)
    return any(
        operator_of(flow.ops, edge.node).takes_part
        and edge.source in by
        and edge.target in rounded - alive
        and severance.passes(edge)
        for edge in flow.edges
    )


def _scaling(flow: Flow, by: Collection[Tensor]) -> set[Edge]:
    """The edges by which scales and zero points of quantizers of these tensors enter the arithmetic behind them."""
    found = {w for w in flow.edges if w.node.op == "DynamicQuantizeLinear" and not w.cut and w.source in by}
    for edge in flow.edges:
        if edge.cut == "rounds" and edge.source in by:
            found.update(_undone(flow, edge, by))
    return found


def _undone(flow: Flow, rounding: Edge, by: Collection[Tensor]) -> Iterator[Edge]:
    """The edges that undo what was done to a tensor right before it was rounded: `Round(x / s) * s` by the same s."""
    scales, shifts = _beside(flow, rounding, by)
    waiting, seen = [rounding.target], {rounding.target}
    for _ in range(4 * _NEAR):
        if not waiting:
            return
        for edge in flow.out_of(waiting.pop(0)):
            others = [each for each in flow.into(edge.target) if each.source not in seen]
            undone = scales if edge.node.op in (*_SCALING, "DequantizeLinear") else shifts
            yield from (each for each in others if each.source in undone and each.node is edge.node)
            if edge.node.op not in (*_SCALING, "DequantizeLinear") and _is_elementwise(flow, edge):
                seen.add(edge.target)
                waiting.append(edge.target)


def _beside(flow: Flow, rounding: Edge, by: Collection[Tensor]) -> tuple[set[Tensor], set[Tensor]]:
    """The tensors by which data of x was scaled, and those by which it was shifted, right before it was rounded."""
    if rounding.node.op == "QuantizeLinear":
        operands = [each for each in flow.into(rounding.target) if each.node is rounding.node]
        data = any(each.operand == 0 and each.source in by for each in operands)
        return {each.source for each in operands if each.operand == 1 and data}, set()
    scales, shifts = set[Tensor](), set[Tensor]()
    waiting = [rounding.source]
    for _ in range(_NEAR):
        if not waiting:
            break
        edges = flow.into(waiting.pop(0))
        for edge in edges:
            rest = [each for each in edges if each is not edge and each.source in by]
            if edge.node.op in _SCALING and rest:
                scales.update(_with_inverse(flow, edge.source))
            elif edge.node.op in _SHIFTING and rest:
                shifts.add(edge.source)
            if edge.node.op not in _SCALING and _is_elementwise(flow, edge):
                waiting.append(edge.source)
    return scales, shifts


def _with_inverse(flow: Flow, scale: Tensor) -> Iterable[Tensor]:
    """A scale, and the tensors that are its reciprocal or that it is the reciprocal of."""
    inverse = [w.source for w in flow.into(scale) if w.node.op == "Reciprocal" or (w.node.op == "Div" and w.operand)]
    behind = [w.target for w in flow.out_of(scale) if w.node.op == "Reciprocal" or (w.node.op == "Div" and w.operand)]
    return [scale, *inverse, *behind]


def _is_elementwise(flow: Flow, edge: Edge) -> bool:
    return operator_of(flow.ops, edge.node).batching is elementwise
