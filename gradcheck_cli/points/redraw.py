"""Inputs of which nothing is known stay inside the domains of a model's operators, also where only a run can tell.

Where a model is not finite at what was drawn, a few other ranges are tried, always the same ones in the same order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from gradcheck_cli.autodiff.tape import Tape
from gradcheck_cli.formats.source import Source
from gradcheck_cli.graph import is_inexact
from gradcheck_cli.op import Ops
from gradcheck_cli.points.nonfinite import leading
from gradcheck_cli.points.point import Beside, Point, find_point
from gradcheck_cli.points.ranges import ELSEWHERE, float_range
from gradcheck_cli.settings import ANY, Settings


def finite_point(
    source: Source, settings: Settings, ops: Ops, targets: Sequence[str], index: int, dims: Mapping[str, int],
    beside: Beside | None = None,
) -> Point:  # fmt: skip
    """The point number `index`, with inputs from the first other range in which the targets are finite if need be.

    Only those are drawn anew that lead to where it is not.  A range that somebody gave stays: then the other one is advice.
    """
    point = find_point(source, settings, ops, targets, index, dims, beside)
    if not point.random or _all_finite(point.tape, targets):
        return point
    causes = leading(point.tape, targets, point.random) or [*point.random]
    free = [name for name in causes if not _has_range(source, settings, name)]
    for names in (free, causes) if free != causes else (causes,):
        for within in ELSEWHERE if names else ():
            ranges = {name: float_range(source.graph, name, within=within) for name in names}
            other = replace(settings, val_range={**settings.val_range, **ranges})
            again = find_point(source, other, ops, targets, index, {**dims, **point.dims})
            if _all_finite(again.tape, targets):
                moved = replace(again, ranges=ranges, notes=point.notes)
                return moved if names == free else replace(point, advice=ranges)
    return point


def _has_range(source: Source, settings: Settings, name: str) -> bool:
    return name in settings.val_range or name in source.ranges or ANY in settings.val_range


def _all_finite(tape: Tape, targets: Sequence[str]) -> bool:
    values = [tape.named[name].value for name in targets if name in tape.named]
    return all(np.isfinite(value).all() for value in values if is_inexact(value.dtype))
