"""Sizes of open dimensions at which a check fits the memory limit: smaller ones than a model is run at first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

from gradcheck_cli.checks.footprint import threads
from gradcheck_cli.checks.obstacles import is_floating
from gradcheck_cli.checks.sides import Sides
from gradcheck_cli.errors import GradcheckError
from gradcheck_cli.formats.source import Source
from gradcheck_cli.op import Ops
from gradcheck_cli.points.dims import sizes_given
from gradcheck_cli.points.point import Point
from gradcheck_cli.points.sizes import smaller
from gradcheck_cli.settings import Settings


def fitting(
    source: Source,
    settings: Settings,
    ops: Ops,
    pairs: Iterable[tuple[str, str]],
    at: Callable[[Mapping[str, int]], Point],
) -> tuple[Point, str]:
    """A point at which all pairs (x, y) fit in some mode, and what to say of its sizes; the first one where there is none.

    `at` gives the point of some sizes, of none the first one, which is not held while smaller ones are tried.
    """
    pairs, point = tuple(pairs), at({})
    first = {**point.dims, **point.over}
    if settings.mode != "auto" or not point.dims or _fits(point, source, settings, ops, pairs):
        return point, _said(point.dims, first)
    start, known = point.dims, {**source.dims, **settings.dims, **sizes_given(source.graph, settings)}
    del point
    for sizes in smaller(source.graph, start, known, ops):
        with suppress(GradcheckError, MemoryError):
            other = at(sizes)
            if _fits(other, source, settings, ops, pairs):
                return other, _said(other.dims, first)
            del other
    return at(start), _said(start, first)


def _fits(point: Point, source: Source, settings: Settings, ops: Ops, pairs: Iterable[tuple[str, str]]) -> bool:
    """Every pair that there is at a point fits in the mode that takes least."""
    sides: dict[str, Sides] = {}
    for x, y in pairs:
        there = all(name in point.tape.named and is_floating(point.tape, name) for name in (x, y))
        if there:
            side = sides.setdefault(y, Sides(point.tape, y, settings))
            if not threads(side, x, source.graph, "directional"):
                return False
    return True


def _said(sizes: Mapping[str, int], first: Mapping[str, int]) -> str:
    """What there is to say of sizes that are not those tried first."""
    if sizes == first:
        return ""
    here, there = (", ".join(f"{name}={size}" for name, size in each.items()) for each in (sizes, first))
    return f"{here}: {there} would take more than the memory limit"
