"""What a check that looks at a part of a Jacobian would have missed: said with every such check, never left to guess."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

from gradcheck_cli.verdict import Comparison

_MISSED = 0.01  # the probability at which it is said what projections miss
_CONFIDENCE = 0.95


def power(mode: str, rtol: float, comparisons: Sequence[Comparison]) -> dict[str, Any]:
    """The size of error that a check would have missed."""
    if mode == "directional":
        count = min((min(c.status.shape) for c in comparisons), default=0)
        return {"missed_below": rtol * missed_size(count), "of": "norm", "probability": _MISSED}
    if mode == "nodes":
        from gradcheck_cli.faults.nodes import FEWEST, TOLERANCE  # loaded by then

        size = missed_size(FEWEST)
        return {"missed_below": TOLERANCE.rtol * size, "of": "norm of a node's Jacobian", "probability": _MISSED}
    if mode == "sampled":
        count = sum(c.status.size for c in comparisons)
        lines = min((min(c.status.shape) for c in comparisons), default=1)
        whole = {"bad_fraction_of_lines": bad_share(lines)} if lines > 1 else {}
        return {"missed_below": rtol, "bad_fraction": bad_share(count), **whole, "confidence": _CONFIDENCE}
    return {"missed_below": rtol}


def bad_share(entries: int) -> float:
    """The share of wrong entries that so many drawn ones without a failure leave possible, at 95 %: about 3/k."""
    return 1.0 - (1.0 - _CONFIDENCE) ** (1.0 / max(entries, 1))


@cache
def missed_size(count: int) -> float:
    """The size of error, in units of the tolerance, that so many independent projections miss with 1 %."""
    target = _MISSED ** (1 / max(count, 1))
    low, high = 1e-12, 0.5
    for _ in range(100):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if missed(middle) < target else (low, middle)
    return 1 / low


def missed(t: float) -> float:
    """The probability that a projection on one random direction of each side is below t, where 1 is its variance.

    That of the product of two normal numbers: the worst case, an error in a single entry.
    """
    return 2 * t / math.pi * (1 + math.log(2) - 0.5772156649015329 - math.log(t))
