"""The comparison by Richardson's ladder of real differences: a few rungs for all rows, more for those that stay open.

What rounding hides is looked for with larger steps, with all rungs, and at last in long doubles; each only ever betters
what is known of an entry.
"""

from __future__ import annotations

import numpy as np

from gradcheck_cli.compare.ladder import Numeric
from gradcheck_cli.graph import Array
from gradcheck_cli.jacobian.cost import forward_work
from gradcheck_cli.jacobian.grouped import Colored, grouped_ladder
from gradcheck_cli.jacobian.precise import Longer
from gradcheck_cli.jacobian.rows import Rows
from gradcheck_cli.jacobian.wider import wider_ladder
from gradcheck_cli.verdict.differences import ALL_RUNGS, CHEAP_RUNGS
from gradcheck_cli.verdict.rule import Comparison, Status

_FEW = 8  # rows for each group from which on groups take the whole ladder at once
_MANY = 32  # rows from which on noise is heard first: what it says is worth more than it costs
_LADDER_WORK = 1e8  # operations of one probe, times rows, that long doubles are worth


def laddered(numeric: Numeric, theoretical: Array) -> Comparison:
    """The comparison of all rows."""
    if numeric.directions.count >= _MANY:
        numeric.listen()
    rows = _first(numeric, theoretical)
    comparison = numeric.judged(theoretical, rows)
    for ladder in (_wider, _whole, _longer):
        some, better = ladder(numeric, comparison.status)
        if better is not None:
            rows = rows.bettered(some, better)
            comparison = numeric.judged(theoretical, rows)
    return comparison


def _first(numeric: Numeric, theoretical: Array) -> Rows:
    def alone(rows: Array) -> Rows:
        return numeric.ladder(rows, CHEAP_RUNGS)

    def together(rows: Colored) -> Rows | None:
        ks = ALL_RUNGS if _FEW * rows.coloring.count <= rows.count else CHEAP_RUNGS
        return grouped_ladder(numeric.program, rows, ks, numeric.noise, numeric.job.budget)

    return numeric.all_rows(theoretical, together, alone)


def _wider(numeric: Numeric, status: Array) -> tuple[Array, Rows | None]:
    """Rows that noise left open, by larger steps."""
    some = _blurred(status)
    if not len(some):
        return some, None
    parts = (numeric.directions.part(rows) for rows in numeric.pieces(some))
    wider = (wider_ladder(numeric.program, part, numeric.noise, numeric.job.budget) for part in parts)
    return some, Rows.joined(wider, len(some))


def _whole(numeric: Numeric, status: Array) -> tuple[Array, Rows | None]:
    """Rows that anything left open, by all rungs."""
    some = np.flatnonzero((status != Status.PASS).any(axis=1))
    return some, numeric.ladder(some, ALL_RUNGS) if len(some) else None


def _longer(numeric: Numeric, status: Array) -> tuple[Array, Rows | None]:
    """Rows that noise left open, in long doubles where that is soon done."""
    some = _blurred(status)
    if not len(some) or not Longer.possible() or forward_work(numeric.program) * len(some) > _LADDER_WORK:
        return some, None
    return some, Longer(numeric.program, numeric.job.budget).ladder(numeric.directions.part(some))


def _blurred(status: Array) -> Array:
    """Rows with an entry that noise left open."""
    return np.flatnonzero(((status == Status.NOISE) | (status == Status.CURVATURE)).any(axis=1))
