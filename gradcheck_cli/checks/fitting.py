"""Sizes of open dimensions at which a check fits the memory limit and images are soon done: smaller ones than at first.

Operations are counted and not timed, so that every machine chooses the same.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress

from gradcheck_cli.checks.footprint import threads
from gradcheck_cli.checks.modes import predicted, work_for
from gradcheck_cli.checks.obstacles import is_floating
from gradcheck_cli.checks.sides import Sides
from gradcheck_cli.errors import GradcheckError
from gradcheck_cli.formats.source import Source
from gradcheck_cli.jacobian.cost import OPERATIONS, lasting
from gradcheck_cli.op import Ops
from gradcheck_cli.points.dim_roles import roles
from gradcheck_cli.points.dims import sizes_given
from gradcheck_cli.points.point import Point, dims_behind
from gradcheck_cli.points.sizes import smaller
from gradcheck_cli.settings import Settings

_TOO_MUCH = "would take more than the memory limit"
_SECONDS = 10.0  # after which images are checked at smaller sizes


def fitting(
    source: Source,
    settings: Settings,
    ops: Ops,
    pairs: Iterable[tuple[str, str]],
    at: Callable[[Mapping[str, int]], Point],
) -> tuple[Point, str]:
    """A point at which all pairs (x, y) fit in some mode, and what to say of its sizes; the first one where there is none.

    Images are smaller, 16 x 24, where they would take more than ten seconds.  `at` gives the point of some sizes, of
    none the first one, which is not held while smaller ones are tried.
    """
    pairs, point = tuple(pairs), at({})
    start, first = point.dims, {**point.dims, **point.over}
    known = {**source.dims, **settings.dims, **sizes_given(source.graph, settings)}
    fits = settings.mode != "auto" or not start or _fits(point, source, settings, pairs)
    why = _too_long(point, source, settings, ops, pairs, known) if fits else _TOO_MUCH
    if not why:
        return point, _said(start, first, _TOO_MUCH)
    del point
    for sizes in smaller(source.graph, start, known, ops, images_alone=fits):
        with suppress(GradcheckError, MemoryError):
            other = at(sizes)
            if fits or _fits(other, source, settings, pairs):
                return other, _said(other.dims, first, why)
            del other
    return at(start), _said(start, first, _TOO_MUCH)


def _fits(point: Point, source: Source, settings: Settings, pairs: Sequence[tuple[str, str]]) -> bool:
    """Every pair that there is at a point fits in the mode that takes least."""
    ends = _there(point, pairs)
    sides = _sides(point, settings, ends)
    return all(threads(sides[y], x, source.graph, "directional") for x, y in ends)


def _too_long(
    point: Point, source: Source, settings: Settings, ops: Ops, pairs: Sequence[tuple[str, str]], known: Collection[str]
) -> str:
    """That a check would take more than ten seconds, where there are images of which nobody gave the size; else ""."""
    drawn = dims_behind(source.graph, point.random).intersection(point.dims).difference(known)
    if not drawn or drawn.isdisjoint(roles(source.graph, ops).images):
        return ""
    ends = _there(point, pairs)
    work = predicted(ends, _sides(point, settings, ends), settings)
    return f"would take about {lasting(work)}" if work > work_for(settings, _SECONDS * OPERATIONS) else ""


def _there(point: Point, pairs: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """The pairs that can be compared at a point."""
    named = point.tape.named
    return [pair for pair in pairs if all(name in named and is_floating(point.tape, name) for name in pair)]


def _sides(point: Point, settings: Settings, ends: Sequence[tuple[str, str]]) -> dict[str, Sides]:
    return {y: Sides(point.tape, y, settings) for y in dict.fromkeys(y for _, y in ends)}


def _said(sizes: Mapping[str, int], first: Mapping[str, int], why: str) -> str:
    """What there is to say of sizes that are not those tried first."""
    if sizes == first:
        return ""
    here, there = (", ".join(f"{name}={size}" for name, size in each.items()) for each in (sizes, first))
    return f"{here}: {there} {why}"
