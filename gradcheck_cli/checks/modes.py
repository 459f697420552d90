"""The mode of a comparison: every entry, random projections, drawn entries, or every node on its own.

In `auto` the predicted cost of all entries decides: in full if that takes at most some ten seconds, else node by node.
Sizes of open dimensions are chosen here as well: the default ones, or smaller ones where the check would not fit the
memory limit, or images would take too long.  Operations are counted and not timed, so that every machine chooses the
same modes and sizes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from msgspec.structs import replace

from gradcheck_cli.checks.assemble import Pair
from gradcheck_cli.checks.estimates import at_once, beyond, in_parts, threads, too_large, undivided
from gradcheck_cli.checks.problem import Problem, is_floating
from gradcheck_cli.compare.pair import PairJob, PairResult
from gradcheck_cli.engine.chunks import Budget
from gradcheck_cli.errors import GradcheckError
from gradcheck_cli.formats.source import Source
from gradcheck_cli.graph import Array
from gradcheck_cli.jacobian.cost import FULL_WORK, OPERATIONS, Cost, duration, partial_work, survey_work
from gradcheck_cli.jacobian.directions import DOT_TESTS, Directions, reals
from gradcheck_cli.jacobian.jacobian import Backward
from gradcheck_cli.op import Ops
from gradcheck_cli.points.dims import roles, sizes_given
from gradcheck_cli.points.point import Point, dims_behind
from gradcheck_cli.points.sizes import smaller
from gradcheck_cli.settings import Mode, Settings
from gradcheck_cli.verdict.rule import Status, worst

if TYPE_CHECKING:
    from gradcheck_cli.checks.diagnose.suspects import Survey, Trap
    from gradcheck_cli.compare.partial import ProjectedPart


PARTIAL: tuple[Mode, ...] = ("nodes", "directional", "sampled")
LADDER: tuple[Mode, ...] = ("full", "nodes", "directional")  # order in which `auto` falls back, by memory
_FAILING, _MIXED, _LOOKED_AT = 2, 16, 1024  # failing entries: used alone, mixed into one, and considered at most
_TOO_MUCH = "would take more than the memory limit"
_SECONDS = 10.0  # of a predicted check, above which images are reduced
_TIME = 0.3  # share of the time limit that full comparisons may be predicted to take


def plan(pairs: Sequence[Pair], problems: Mapping[str, Problem], settings: Settings) -> None:
    """Sets the mode of each pair: in `auto` full for the cheapest pairs, as many as the allowed work covers.

    A pair beyond the memory limit gets fewer threads, then a mode that needs less memory, and an error if none fits.
    """
    if settings.mode in PARTIAL:
        for pair in pairs:
            _fit(pair, problems[pair.y], (settings.mode,))
        return
    costs = [(pair, problems[pair.y].cost(pair.x)) for pair in pairs]
    left, all_of_them = work_for(settings), sum(cost.work for _, cost in costs)
    shorter = _shorter_in_full(costs, problems) if settings.mode != "full" and all_of_them > left else ()
    for pair, cost in sorted(costs, key=lambda entry: entry[1].work):
        fits = cost.memory <= problems[pair.y].budget.memory
        if settings.mode == "full" and not fits:
            raise too_large(cost, problems[pair.y], pair.x, _least(pair, pairs, problems[pair.y]))
        left -= cost.work
        if settings.mode == "full":
            _fit(pair, problems[pair.y], ("full",))
            continue
        fits = fits and threads(problems[pair.y], pair.x, "full") > 0
        full = fits and (left >= 0 or pair.y in shorter)
        pair.chosen = "" if full else _why(cost, fits, settings)
        _fit(pair, problems[pair.y], LADDER if full else LADDER[1:])


def divided(pairs: Sequence[Pair], problems: Mapping[str, Problem], settings: Settings) -> bool:
    """True if Jacobians do not fit the memory limit at once, as --mode full wants them, but do in parts."""
    if settings.mode != "full" or undivided(settings):
        return False
    limits = [(pair, problems[pair.y], problems[pair.y].budget.memory) for pair in pairs]
    large = any(problem.cost(pair.x).memory > limit for pair, problem, limit in limits)
    return large and all(_least(pair, pairs, problem) <= limit for pair, problem, limit in limits)


def _least(pair: Pair, pairs: Sequence[Pair], problem: Problem) -> float:
    """Bytes of a full comparison of a pair, in parts where these take less."""
    whole, xs = at_once(problem, pair.x), [each.x for each in pairs if each.y == pair.y]
    return whole if undivided(problem.settings) else min(whole, in_parts(problem, pair.x, xs))


def _shorter_in_full(costs: Sequence[tuple[Pair, Cost]], problems: Mapping[str, Problem]) -> set[str]:
    """The ys of which all entries, for all xs, take no longer than the nodes behind them: long models of few entries."""
    of_y: dict[str, list[tuple[Pair, Cost]]] = {}
    for pair, cost in costs:
        of_y.setdefault(pair.y, []).append((pair, cost))

    def nodes(y: str) -> float:
        alone = sum(partial_work(problems[y].program(pair.x), "nodes") for pair, _ in of_y[y])
        return min(alone, survey_work(problems[y].tape, problems[y].theory_name(y)))

    return {y for y, group in of_y.items() if sum(cost.work for _, cost in group) <= nodes(y)}


def _fit(pair: Pair, problem: Problem, modes: Sequence[Mode]) -> None:
    """Sets the first of `modes` in which a pair fits the memory limit, and its threads; an error where none fits."""
    for mode in modes:
        pair.jobs = threads(problem, pair.x, mode)
        if pair.jobs:
            pair.mode = mode
            break
    else:
        pair.error = beyond(problem, pair.x, modes[-1])
        return
    if pair.mode != modes[0]:
        pair.chosen = "; ".join(filter(None, (pair.chosen, lesser(modes[0]))))


def _why(cost: Cost, fits: bool, settings: Settings) -> str:
    """Reason for not comparing all entries."""
    if not fits:
        return f"all {cost.entries:,} entries {_TOO_MUCH}"
    return f"all {cost.entries:,} entries would take about {duration(cost.seconds)}"


def lesser(mode: str) -> str:
    """Reason for leaving a mode that does not fit the memory limit."""
    what = {"full": "all entries", "nodes": "all nodes"}.get(mode, mode)
    return f"{what} {_TOO_MUCH}"


def work_for(settings: Settings, most: float = FULL_WORK) -> float:
    """Operations that full comparisons may take: `most`, or less under a short time limit."""
    if settings.timeout is None:
        return most
    return min(most, _TIME * settings.timeout * OPERATIONS / settings.points)


class Partial:
    """Comparisons in one of the partial modes at one point; all pairs of one y share the backward passes."""

    def __init__(self, mode: str, backward: Backward, settings: Settings, budget: Budget) -> None:
        from gradcheck_cli.compare.partial import projections, sample  # most checks compare all entries

        self.mode, self.settings, self.backward = mode, settings, backward
        seed = settings.seed
        self.part: ProjectedPart = (
            sample(backward, seed, budget, settings.max_entries)
            if mode == "sampled"
            else projections(backward, seed, budget, *([DOT_TESTS] if mode == "nodes" else []))
        )
        self.whole = projections(backward, seed, budget, 1) if mode == "sampled" else None
        self.compare = self.part.compare  # the comparison that decides on one pair

    def completed(self, result: PairResult, problem: Problem, pair: Pair, position: int, job: PairJob) -> PairResult:
        """A result with what its mode adds: a survey of all nodes, or the flag that its entries were drawn.

        Entries at ties are compared beside directional projections, and a projection of all entries beside a sample,
        since a sample misses rare errors.
        """
        from gradcheck_cli.compare.partial import entries_at_ties

        tied = self.mode == "directional" and result.directions is not None and result.directions.tied
        if tied and (
            beside := entries_at_ties(self.backward, position, problem.program(pair.x), self.settings.seed, job)
        ):
            pair.results.append(result.beside(beside, drawn=True))
        if self.mode == "nodes":
            return replace(result, survey=survey_of(problem, pair, job.budget, [result]))
        if self.whole is None:
            return result
        whole = self.whole.compare(problem.program(pair.x), position, job)
        pair.results.append(result.beside(whole, projected=True))
        return replace(result, projected=False, drawn=True)

    def untold(self, result: PairResult) -> bool:
        """True if too many projections cross a tie: an error between the slopes of both sides would not show.

        The pair is then compared by single entries, which can be told apart at a tie.
        """
        crossing = result.comparison.count(Status.JUMP, Status.NONDERIVATIVE)
        if self.mode != "directional" or result.comparison.count(Status.FAIL):
            return False
        return crossing > self.settings.max_inconclusive * result.comparison.size


def survey_of(problem: Problem, pair: Pair, budget: Budget, results: Sequence[PairResult] = ()) -> Survey:
    """Survey of every node between x and y; failing entries of `results` tell which wrong node comes first."""
    failing = next((entries for result in results if (entries := list(_failing(result)))), [])
    return problem.surveyor.survey(
        problem.theory_name(pair.x), problem.theory_name(pair.y), problem.settings.seed, budget, failing
    )


def _failing(result: PairResult) -> Iterator[tuple[Array, Array]]:
    """Failing entries as pairs (direction of x, weights of y): the worst ones, then two random mixtures of up to 16.

    Entries with a finite gradient come first.
    """
    comparison = result.comparison
    failed = [at for at in worst(comparison, _LOOKED_AT) if comparison.at(*at).status == Status.FAIL]
    failed.sort(key=lambda at: not np.isfinite(comparison.at(*at).theoretical))
    along = result.directions or Directions(result.x, range(reals(result.x)))
    first = result.first if result.directions is None else 0

    def entry(row: int, column: int) -> tuple[Array, Array]:
        weights = np.arange(reals(result.y)) == column if result.weights is None else result.weights[column]
        return along.block(range(first + row, first + row + 1))[0], np.asarray(weights, np.float64)

    yield from (entry(*at) for at in failed[:_FAILING])
    if len(failed) > _FAILING:
        some = [entry(*at) for at in failed[:: -(-len(failed) // _MIXED)]]
        signs = np.random.default_rng(0).normal(size=(2, len(some)))
        vs, us = (np.stack(each) for each in zip(*some, strict=True))
        yield signs[0] @ vs, signs[1] @ us


def trap_in(problem: Problem, pair: Pair) -> Trap | None:
    """The node at which 0 * inf makes a gradient NaN though every rule is right; None if there is none."""
    return problem.surveyor.trap([problem.theory_name(pair.x)], [problem.theory_name(pair.y)], problem.settings.seed)


def blameless(problem: Problem, pair: Pair, survey: Survey) -> str:
    """Note on a failure for which no single node is wrong."""
    names = [problem.theory_name(pair.x)], [problem.theory_name(pair.y)]
    return (
        problem.surveyor.unsummed(*names, problem.settings.seed)
        or f"no node fails on its own ({survey.checked} of {survey.total} checked)"
    )


def fitting(
    source: Source,
    settings: Settings,
    ops: Ops,
    pairs: Collection[tuple[str, str]],
    at: Callable[[Mapping[str, int]], Point],
) -> tuple[Point, str]:
    """A point at which all pairs (x, y) fit in some mode, with a note on its sizes; the default point if there is none.

    Images are reduced to 16 x 24 where they would take more than ten seconds.  `at` gives the point for some sizes; for
    an empty mapping the default point, which is not kept in memory while smaller ones are tried.
    """
    point = at({})
    start, first = point.dims, {**point.dims, **point.over}
    known = {**source.dims, **settings.dims, **sizes_given(source.graph, settings)}
    fits = settings.mode != "auto" or not start or _fits(_problems(point, source, settings, pairs))
    why = _TOO_MUCH
    if fits:
        drawn = dims_behind(source.graph, point.random).intersection(start).difference(known)
        images = bool(drawn) and not drawn.isdisjoint(roles(source.graph, ops).images)
        work = predicted(_problems(point, source, settings, pairs), settings) if images else 0.0
        if work <= work_for(settings, _SECONDS * OPERATIONS):
            return point, _said(start, first, _TOO_MUCH)
        why = f"would take about {duration(work / OPERATIONS)}"
    del point
    for sizes in smaller(source.graph, start, known, ops, images_alone=fits):
        with suppress(GradcheckError, MemoryError):
            other = at(sizes)
            if fits or _fits(_problems(other, source, settings, pairs)):
                return other, _said(other.dims, first, why)
            del other
    return at(start), _said(start, first, _TOO_MUCH)


Problems: TypeAlias = Mapping[tuple[str, str], Problem]  # by pair (x, y)


def _problems(point: Point, source: Source, settings: Settings, pairs: Collection[tuple[str, str]]) -> Problems:
    """The problems of the pairs whose x and y are both computed at a point and are float tensors."""
    tape, of = point.tape, dict[str, Problem]()
    there = [pair for pair in pairs if all(name in tape.named and is_floating(tape, name) for name in pair)]
    for _, y in there:
        of[y] = of.get(y) or Problem(source, settings, tape, y)
    return {(x, y): of[y] for x, y in there}


def _fits(problems: Problems) -> bool:
    """True if every pair fits the memory limit in the mode that takes least."""
    return all(threads(problem, x, "directional") for (x, _), problem in problems.items())


def predicted(problems: Problems, settings: Settings) -> float:
    """Operations of a check of some pairs in the modes they would get; pairs of one y share a survey."""
    in_full = settings.mode in ("auto", "full")
    costs = sorted((of.cost(x).work if in_full else math.inf, x, y) for (x, y), of in problems.items())
    left, total, rest = math.inf if settings.mode == "full" else work_for(settings), 0.0, dict[str, float]()
    for cost, x, y in costs:
        if total + cost <= left:
            total += cost
        else:
            mode = settings.mode if settings.mode in PARTIAL else "nodes"
            rest[y] = max(rest.get(y, 0.0), partial_work(problems[x, y].program(x), mode))
    return total + sum(rest.values())


def _said(sizes: Mapping[str, int], first: Mapping[str, int], why: str) -> str:
    """Note on sizes that differ from the default ones; "" where they do not."""
    if sizes == first:
        return ""
    here, there = (", ".join(f"{name}={size}" for name, size in each.items()) for each in (sizes, first))
    return f"{here}: {there} {why}"
