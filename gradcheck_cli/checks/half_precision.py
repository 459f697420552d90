"""Precision of a gradient in the model's own dtype: the theoretical gradient there against the one in float64.

No differences are involved, and the verdict on the gradient does not depend on it.  Both runs start from the same
numbers, those of the model's dtype.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
from msgspec import structs

from gradcheck_cli.autodiff.tape import Tape
from gradcheck_cli.autodiff.trace import trace
from gradcheck_cli.checks.assemble import Pair
from gradcheck_cli.checks.health.checkup import Descent
from gradcheck_cli.checks.health.layers import spot_of
from gradcheck_cli.checks.problem import Problem
from gradcheck_cli.engine.chunks import Budget
from gradcheck_cli.errors import GradcheckError
from gradcheck_cli.graph import Array, Graph, is_inexact
from gradcheck_cli.jacobian.cost import forward_work
from gradcheck_cli.jacobian.directions import flat, reals
from gradcheck_cli.jacobian.jacobian import Backward
from gradcheck_cli.op import Ops
from gradcheck_cli.points.point import Point, in_its_dtype
from gradcheck_cli.results.measures import Health, Loss, Precision
from gradcheck_cli.results.record import Check, Gradient
from gradcheck_cli.settings import Settings
from gradcheck_cli.verdict.rule import GROUND, NEGLIGIBLE, UNDERFLOW, epsilon

_MOST, _LEAST = 64, 4  # entries of y whose gradients are compared
_WORK = 2e10  # operations that this may take
_HALF_WORK = 2e8  # operations of a forward run up to which nobody has to ask
_Lost = Callable[[Array, Array], Array]


class Precisions:
    """The precision of all pairs of a check, over its points.

    Models in half precision are measured even if nobody asked; only gradients that are not finite there, or 0, are
    reported then.
    """

    def __init__(self, seed: int, *, asked: bool) -> None:
        self.seed, self.asked = seed, asked
        self.found: dict[tuple[str, str], list[Precision]] = {}

    def at(self, problem: Problem, backward: Backward, pairs: Sequence[Pair], index: int, budget: Budget) -> None:
        """Measures the pairs of one y at one point; `backward` is their gradient in float64."""
        narrow = problem.narrow if self.asked else self._half(problem, pairs)
        if narrow is None:
            return
        for pair, precision in zip(pairs, self._compared(problem, narrow, backward, pairs, index, budget), strict=True):
            self.found.setdefault((pair.x, pair.y), []).append(precision)

    def _half(self, problem: Problem, pairs: Sequence[Pair]) -> Tape | None:
        """The run in half precision of a model that has it, if it is short: half precision is slow in software."""
        work = max(forward_work(problem.program(pair.x)) for pair in pairs)
        return problem.half() if work <= _HALF_WORK and not pairs[0].gradient_of else None

    def _compared(
        self, problem: Problem, narrow: Tape, backward: Backward, pairs: Sequence[Pair], index: int, budget: Budget
    ) -> Iterator[Precision]:
        y, xs = pairs[0].y, [pair.x for pair in pairs]
        if reason := _incomparable(problem.tape, narrow, [y, *xs]):
            yield from (Precision("model", note=reason) for x in xs)
            return
        try:
            beside = Backward(narrow, narrow.named[y].name, [narrow.named[x].name for x in xs])
        except (GradcheckError, MemoryError) as error:
            yield from (Precision("model", note=str(error)) for x in xs)
            return
        columns = self._columns(problem, pairs, budget)
        weights = np.zeros((len(columns), reals(problem.value(y))))
        weights[np.arange(len(columns)), columns] = 1
        spoilt = np.isnan(flat(narrow.named[y].value)) & np.isfinite(flat(problem.value(y)))
        rows = zip(backward.along(weights, budget), beside.along(weights, budget), strict=True)
        for x, (wide, other) in zip(xs, rows, strict=True):
            # a rule may take NaN for what is masked later on
            other = np.where(spoilt[columns, None] & (wide != 0), np.nan, other)
            shapes = problem.value(x).shape, problem.value(y).shape
            found = compared(wide, other, columns, shapes, _coarsest(narrow, x, problem.program(x).reached))
            yield structs.replace(found, point=index, first=_first_loss(problem, narrow, x, found))

    def _columns(self, problem: Problem, pairs: Sequence[Pair], budget: Budget) -> Array:
        """Entries of y whose gradients are compared: all of them, or a random sample."""
        count, work = reals(problem.value(pairs[0].y)), max(forward_work(problem.program(p.x)) for p in pairs)
        held = 16 * sum(reals(problem.value(p.x)) for p in pairs)
        most = min(max(_LEAST, _WORK / (4 * work)), _MOST if self.asked else _LEAST, budget.memory / (4 * held + 1))
        return np.sort(np.random.default_rng([self.seed, 5]).permutation(count)[: max(1, int(most))])

    def in_half(
        self, graph: Graph, point: Point, targets: Sequence[str], settings: Settings, ops: Ops
    ) -> Callable[[], Tape | None]:
        """Function that runs a model of half precision in its own numbers at first call; None where that fails, or all
        runs are in these numbers anyway."""

        @cache
        def made() -> Tape | None:
            if self.asked:
                return None
            try:
                feeds = {name: in_its_dtype(graph, name, value) for name, value in point.feeds.items()}
                return trace(graph, feeds, ops=ops, dtype="model", seed=settings.seed, targets=targets, lenient=True)
            except (GradcheckError, MemoryError):
                return None

        return made

    def record(self, record: Check) -> Check:
        """A record with the precision of its gradient, and the health words that follow from it."""
        points = self.found.get((record.x, record.y))
        if not points:
            return record
        precision = _over(points)
        if not self.asked and not precision.gone:
            return record
        found: Gradient = {**record.gradient, "precision": precision}
        health = record.gradient.get("health") or Health()
        if precision.lost:
            words = ("nonfinite", "precision") if precision.nonfinite else ("precision",)
            found["health"] = structs.replace(health, shows=tuple(dict.fromkeys([*health.shows, *words])))
        return replace(record, gradient=found)


def compared(
    wide: Array, narrow: Array, columns: Array, shapes: tuple[tuple[int, ...], tuple[int, ...]], dtype: np.dtype[Any]
) -> Precision:
    """Precision of gradients `(len(columns), x_size)` of some entries of y; `shapes` are those of x and y.

    Entries of y whose gradient is negligible beside that of others are left out, since no loss depends on them.
    """
    full = -math.log10(epsilon(dtype) / 2)
    with np.errstate(all="ignore"):
        largest = np.max(np.abs(wide), axis=1, keepdims=True, initial=0.0, where=np.isfinite(wide))
        least = np.maximum(GROUND * largest, UNDERFLOW)
        heard = largest >= NEGLIGIBLE * np.max(largest, initial=0.0)
        matters = np.isfinite(wide) & (np.abs(wide) >= least) & heard
        left = np.clip(-np.log10(np.abs(narrow - wide) / np.abs(wide)), 0.0, full) + 0.0
    gone = np.isfinite(wide) & ~np.isfinite(narrow)
    found = Precision(
        dtype.name,
        digits=full,
        median=float(np.median(np.where(gone, 0.0, left)[matters])) if matters.any() else full,
        worst=full,
        entries=int(matters.sum()),
        nonfinite=int(gone.sum()),
        underflow=int(((wide != 0) & (narrow == 0)).sum()),
    )
    rank = np.where(gone, -1.0, np.where(matters, left, np.inf))
    if not (matters | gone).any():
        return found
    row, column = np.unravel_index(int(np.argmin(rank)), rank.shape)
    return structs.replace(
        found,
        worst=max(0.0, float(rank[row, column])),
        x=_index(int(column), shapes[0]),
        y=_index(int(columns[row]), shapes[1]),
        wide=float(wide[row, column]),
        narrow=float(narrow[row, column]),
    )


def _coarsest(narrow: Tape, x: str, between: Iterable[str]) -> np.dtype[Any]:
    """The dtype of fewest bits among x and what leads from it to y: a model in half precision may take float32."""
    kinds = (value.dtype for name in between if (value := narrow.values.get(name)) is not None)
    return max((narrow.named[x].dtype, *kinds), key=epsilon)


def _index(position: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(int(i) for i in np.unravel_index(position % math.prod(shape), shape)) if shape else ()


def _incomparable(wide: Tape, narrow: Tape, names: Sequence[str]) -> str:
    """Reason why the gradients cannot be compared; "" if they can."""
    for name in names:
        if name not in narrow.named:
            return str(narrow.blocked.get(name, f"{name!r} was not computed"))
        if narrow.named[name].shape != wide.named[name].shape:
            return f"rounding decides on the shape of {name!r}"
    return ""


def _first_loss(problem: Problem, narrow: Tape, x: str, found: Precision) -> Loss | None:
    """The place at which the worst entry was lost first, if it overflows or underflows."""
    if found.nonfinite:
        lost: _Lost = lambda wide, other: np.isfinite(wide) & ~np.isfinite(other)  # noqa: E731
    elif found.entries and found.wide and not found.narrow:
        lost = lambda wide, other: (wide != 0) & (other == 0)  # noqa: E731
    else:
        return None
    return _forward(problem.tape, narrow, lost) or _backward(problem, narrow, x, found, lost)


def _forward(wide: Tape, narrow: Tape, lost: _Lost) -> Loss | None:
    for step in narrow.steps:
        if step.origin < 0:  # steps of gradients follow
            return None
        for name in step.node.outputs:
            other, value = narrow.values.get(name), wide.values.get(name)
            if other is None or value is None or not is_inexact(other.dtype) or other.shape != value.shape:
                continue
            if (gone := lost(value, other)).any():
                return Loss(_what(other[gone]), "forward", spot_of(step))
    return None


def _backward(problem: Problem, narrow: Tape, x: str, found: Precision, lost: _Lost) -> Loss | None:
    """The first rule in backward order that loses part of the gradient of the worst entry."""
    seed = np.zeros(problem.value(problem.y).shape)
    seed[found.y] = 1
    ways = [Descent(tape, tape.named[problem.y].name, [tape.named[x].name]) for tape in (problem.tape, narrow)]
    passes = [way.cotangents(seed.astype(way.tape.named[problem.y].dtype)) for way in ways]
    for (name, value), (twin, other) in zip(*passes, strict=False):
        if name != twin or value.shape != other.shape:
            return None
        unit = ways[1].broken or ways[1].unit
        if unit is not None and (gone := lost(value, other)).any():
            return Loss(_what(other[gone]), "backward", spot_of(unit))
    return None


def _what(values: Array) -> str:
    return "nan" if np.isnan(values).any() else "overflow" if not np.isfinite(values).all() else "underflow"


def _over(points: Sequence[Precision]) -> Precision:
    """All points as one: counts added up, the worst entry of all, the median of the worst point."""
    compared_ones = [point for point in points if not point.note]
    if not compared_ones:
        return points[0]
    worst = min(compared_ones, key=lambda p: (-p.nonfinite, p.worst))
    return structs.replace(
        worst,
        median=min(p.median for p in compared_ones),
        entries=sum(p.entries for p in compared_ones),
        nonfinite=sum(p.nonfinite for p in compared_ones),
        underflow=sum(p.underflow for p in compared_ones),
    )
