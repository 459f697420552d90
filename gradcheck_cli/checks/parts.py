"""A full check split into parts, each of some rows of every Jacobian: for several workers, or for less memory.

The number of parts depends on the check alone, never on the workers, and so does the result of each part: records are
the same for any number of workers.  Laws, pictures and suspects are looked at once.  A row is judged against the largest
gradient of its whole column, which every part sees, since the backward pass goes through all of x anyway.  Where one
process compares all parts, one after the other, that pass is made once and its Jacobians are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial, reduce
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from msgspec import structs

from gradcheck_cli.checks.assemble import Pair, verdict
from gradcheck_cli.checks.diagnose.laws import Broken
from gradcheck_cli.checks.estimates import OF_A_PART, undivided
from gradcheck_cli.compare.counts import Counts, merged
from gradcheck_cli.compare.pair import Theory
from gradcheck_cli.engine.chunks import Budget
from gradcheck_cli.errors import GradcheckError, PointError, UsageError
from gradcheck_cli.formats.source import Source
from gradcheck_cli.graph import Array
from gradcheck_cli.jacobian.directions import reals
from gradcheck_cli.jacobian.jacobian import Backward
from gradcheck_cli.settings import Settings
from gradcheck_cli.verdict.rule import Ground

if TYPE_CHECKING:
    from gradcheck_cli.checks.procedure import Procedure
    from gradcheck_cli.results.picture import Picture

LEAST = 16  # parts, so that some workers get a few each


@dataclass(frozen=True, slots=True)
class Part:
    """One of `count` parts of the rows; a part with count 0 has no rows."""

    index: int = 0
    count: int = 0

    def rows(self, size: int) -> range:
        """Rows of this part in a Jacobian with `size` rows."""
        if not self.count:
            return range(0)
        return range(size * self.index // self.count, size * (self.index + 1) // self.count)


@dataclass(frozen=True, slots=True)
class Share:
    """Result of one part for one pair; plain data that can be sent."""

    counts: tuple[Counts, ...]
    method: str
    error: GradcheckError | None
    missed: tuple[PointError, ...]
    broken: tuple[Broken, ...]
    suspect: Any
    notes: tuple[str, ...]
    pictures: Mapping[int, Picture]  # by point


Shares: TypeAlias = "Mapping[tuple[str, str], Share]"  # by x and y
Points: TypeAlias = "Mapping[int, Mapping[str, Any]]"  # feeds of each point
Elsewhere: TypeAlias = (
    "Callable[[int, Points], Iterable[tuple[int, Shares]]]"  # called with the number of parts and the feeds
)


def parts_of(memory: float, settings: Settings) -> int:
    """Number of parts of a check whose largest Jacobians take `memory` bytes."""
    return max(LEAST, int(-(-memory // (OF_A_PART * Budget.within(settings).memory))))


def require_whole(settings: Settings) -> None:
    """UsageError for settings that a check in parts does not support."""
    if settings.mode not in ("auto", "full"):
        raise UsageError(f"--engine dask is for all entries of a Jacobian: leave out --mode {settings.mode}.")
    if name := undivided(settings):
        raise UsageError(f"--engine dask does not go together with {name}.")


class Theories:
    """Theoretical Jacobians of each y at each point, made by the first part that needs them, for all parts here."""

    def __init__(self) -> None:
        self._made: dict[tuple[int, str, tuple[str, ...]], tuple[list[Array], list[Ground]]] = {}

    def rows(
        self, point: int, backward: Backward, some: Sequence[range], budget: Budget
    ) -> tuple[list[Array], list[Ground]]:
        """As `Backward.rows`, of which these are views."""
        at = point, backward.y, backward.xs
        if at not in self._made:
            whole = [range(reals(backward.tape.values[x])) for x in backward.xs]
            self._made[at] = backward.rows(whole, budget)
        parts = [slice(rows.start, rows.stop) for rows in some]
        values, grounds = self._made[at]
        return [v[part] for v, part in zip(values, parts, strict=True)], [
            ground.of(part) for ground, part in zip(grounds, parts, strict=True)
        ]


def in_turn(whole: Procedure, source: Source, settings: Settings) -> Elsewhere:
    """A function that compares the parts of a check in this process, one after the other, until the check's deadline."""

    def compare(count: int, points: Points) -> Iterator[tuple[int, Shares]]:
        given, kept = structs.replace(source, values_at=points), Theories()
        for index in range(count):
            part = whole.anew(given, replace(settings, test_data=None), part=Part(index, count), kept=kept)
            part.deadline = whole.deadline
            yield index, part.shares()

    return compare


def row_theories(
    backward: Backward, some: Sequence[range], budget: Budget, point: int, kept: Theories | None
) -> list[Theory]:
    """Theoretical rows of each x, with their bounds; `some` are the rows."""
    if not any(map(len, some)):
        return [Theory(np.zeros((0, reals(backward.seed.value))), lambda: np.zeros((0, 0))) for _ in some]
    values, grounds = backward.rows(some, budget) if kept is None else kept.rows(point, backward, some, budget)

    @cache
    def spreads() -> list[Array]:
        return backward.spreads(values, budget, some)

    return [Theory(v, partial(lambda at: spreads()[at], at), ground, backward)
            for at, (v, ground) in enumerate(zip(values, grounds, strict=True))]  # fmt: skip


def share_of(pair: Pair) -> Share:
    """Result of one part for one pair."""
    return Share(
        counts=tuple(pair.counts),
        method=pair.method,
        error=pair.error,
        missed=tuple(pair.missed),
        broken=tuple(structs.replace(each, unit=None) for each in pair.broken),
        suspect=pair.suspect,
        notes=tuple(pair.notes),
        pictures=dict(zip((o.point for o in pair.results), pair.pictures, strict=False)),
    )


def put_together(pair: Pair, shares: Sequence[Share], settings: Settings) -> None:
    """Fills a pair with the shares of all parts, in their order."""
    points = [result.point for result in pair.results if not result.extra]
    by_point = [[t for share in shares for t in share.counts if t.point == point] for point in points]
    pair.elsewhere = [merged(counts) for counts in by_point if counts]
    pair.elsewhere += [result.counts for result in pair.results if result.extra]  # of ties, which are not split
    pair.method = next((share.method for share in shares if share.method), pair.method)
    pair.error = next((share.error for share in shares if share.error is not None), pair.error)
    pair.broken = list({each.law: each for share in shares for each in share.broken}.values())
    pair.suspect = next((share.suspect for share in shares if share.suspect is not None), pair.suspect)
    pair.notes = list(dict.fromkeys(note for notes in (pair.notes, *(s.notes for s in shares)) for note in notes))
    passed = not pair.broken and verdict(pair.elsewhere, settings.max_inconclusive)[0] == "pass"
    pair.pictures = []
    for point in points if settings.pictures == "all" or not passed else ():
        pictures = [share.pictures[point] for share in shares if point in share.pictures]
        pair.pictures += [reduce(lambda all_, one: all_.merged(one), pictures)] if pictures else []
