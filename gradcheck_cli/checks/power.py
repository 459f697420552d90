"""What a check that looks at a part of a Jacobian would have missed: said with every such check, never left to guess."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import Any

from gradcheck_cli.compare.pair import Found
from gradcheck_cli.verdict.rule import NEGLIGIBLE

WEIGHED = "norm of the Jacobian times the sizes of x"

_MISSED = 0.01  # the probability at which it is said what projections miss
_CONFIDENCE = 0.95
_EDGES = [1e-4 * 1.04**i for i in range(290)]  # up to 8: of cells that the sizes of normal numbers are sorted into


def power(mode: str, rtol: float, found: Sequence[Found]) -> dict[str, Any]:
    """The size of error that a check would have missed."""
    rtol, by = max([rtol, *(each.hidden for each in found)]), rtol
    trifle = {"negligible": max((each.comparison.tolerance.negligible for each in found), default=NEGLIGIBLE)}
    if mode == "directional" or (mode == "nodes" and rtol > by):  # of a peer nodes say nothing
        size = max((missed_size(*_directions(each)) for each in found), default=math.inf)
        of = ("norm", WEIGHED)[_weighed(found)] if mode == "directional" else "Jacobian's norm"
        return {"missed_below": rtol * size, "of": of, "probability": _MISSED}
    if mode == "nodes":
        from gradcheck_cli.checks.diagnose.nodes_alone import FEWEST, TOLERANCE  # loaded by then

        size = missed_size(FEWEST, FEWEST)
        return {"missed_below": TOLERANCE.rtol * size, "of": "norm of a node's Jacobian", "probability": _MISSED}
    if mode == "sampled":
        count = sum(each.comparison.status.size for each in found)
        lines = min((min(each.comparison.status.shape) for each in found), default=1)
        whole = {"bad_fraction_of_lines": bad_share(lines)} if lines > 1 else {}
        return {"missed_below": rtol, "bad_fraction": bad_share(count), **whole, "confidence": _CONFIDENCE} | trifle
    return {"missed_below": rtol, **({"of": "the largest entry for the same y"} if rtol > by else {})} | trifle


def _weighed(found: Sequence[Found]) -> bool:
    return any(each.directions is not None and each.directions.weighed for each in found)


def bad_share(entries: int) -> float:
    """The share of wrong entries that so many drawn ones without a failure leave possible, at 95 %: about 3/k."""
    return 1.0 - (1.0 - _CONFIDENCE) ** (1.0 / max(entries, 1))


def _directions(found: Found) -> tuple[int | None, int | None]:
    """How many random directions of x met how many of y; None for a basis of all there are."""
    rows, columns = found.comparison.status.shape
    here, weights = found.directions, found.weights
    whole = here is not None and rows == here.here.size, weights is None or columns == weights.shape[1]
    return None if whole[0] else rows, None if whole[1] else columns


@cache
def missed_size(rows: int | None, columns: int | None) -> float:
    """The size of error, in units of the tolerance, that so many projections miss with 1 %; see `missed`."""
    if 0 in (rows, columns):
        return math.inf
    low, high = 1e-4, 1.0
    for _ in range(20):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if missed(middle, rows, columns) < _MISSED else (low, middle)
    return 1 / low


def missed(t: float, rows: int | None, columns: int | None) -> float:
    """The probability, at most, that projections on every pair of so many random directions of x and of y are below t.

    The worst case is an error in a single entry: each projection of it is the product of two normal numbers, and all
    of them are below t if the product of the largest of x and the largest of y is.  Of a basis (None) the largest is
    at least 1, in units in which the variance of all is.
    """
    if rows is None or columns is None:
        return _below(t, columns if rows is None else rows)
    at_most = [0.0, *(_below(edge, rows) for edge in _EDGES), 1.0]
    shares = [above - below for below, above in pairwise(at_most)]
    return shares[0] + sum(share * _below(t / edge, columns) for share, edge in zip(shares[1:], _EDGES, strict=True))


def _below(t: float, count: int | None) -> float:
    """The probability that the largest of so many normal numbers is below t; of a basis it is 1."""
    return float(t > 1) if count is None else math.erf(t / math.sqrt(2)) ** count
