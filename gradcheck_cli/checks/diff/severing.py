"""Derivatives that one of two models has and the other has not by nature: a difference, whatever the values are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from gradcheck_cli.autodiff.severed import Severance
from gradcheck_cli.checks.severing import CODE, cut_off, sentence
from gradcheck_cli.results.measures import Severed
from gradcheck_cli.results.record import Check


@dataclass(frozen=True, slots=True)
class Apart:
    """What is severed in both models; `xs` and `ys` of A have partners in B."""

    a: Severance
    b: Severance
    xs: Mapping[str, str | None]
    ys: Mapping[str, str | None]
    names: tuple[str, str]

    def judged(self, check: Check) -> Check:
        """The record of a derivative: it fails where one model alone is severed.

        A model that quantizes has no gradient at inference, which is no failure: then it is severed, and said so.
        """
        x, y = self.xs.get(check.x), self.ys.get(check.y)
        if not check.x or check.status not in ("pass", "fail", "inconclusive") or x is None or y is None:
            return check
        here, there = cut_off(check.x, check.y, self.a), cut_off(x, y, self.b)
        if (here is None) == (there is None):
            return check
        found = here or there
        assert found is not None
        of, name, pair = (self.a, self.names[0], (check.x, check.y)) if here else (self.b, self.names[1], (x, y))
        if of.quantizes(*pair):
            return _without_fault(check, found, f"{name}: {sentence(found, *pair, of)}")
        message = f"it has no gradient in {name} alone: {sentence(found, *pair, of)}"
        return replace(check, status="fail", code=CODE, message=message, gradient={**check.gradient, "severed": found})


def _without_fault(check: Check, found: Severed, message: str) -> Check:
    """A record of a derivative that one model alone has, for a reason that is known."""
    gradient, entries = {**check.gradient, "severed": found}, {**check.entries, "failed": 0}
    return replace(
        check, status="severed", code=CODE, message=message, gradient=gradient, entries=entries, worst=(), suspect=None,
        needed={},
    )  # fmt: skip
