"""Pairs (x, y) between which every way is cut by nature: by an operand without a derivative, whatever its value."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gradcheck_cli.autodiff.flow import Flow, Tensor, Way, any_way, live, straight
from gradcheck_cli.results.measures import Severed, Spot


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
