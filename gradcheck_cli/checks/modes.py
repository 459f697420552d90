"""How much of each Jacobian is compared: everything, random projections, drawn entries, or every node on its own.

`auto` chooses by what all entries would cost: in full as long as it is done in some ten seconds, else node by node.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from gradcheck_cli.checks.assemble import Outcome, Pair
from gradcheck_cli.checks.sides import Sides, too_large
from gradcheck_cli.checks.timing import beyond, threads
from gradcheck_cli.compare.pair import Found, Job
from gradcheck_cli.compare.partial import DOT_TESTS, Part, entries_at_ties, projections, sample
from gradcheck_cli.engine.chunks import Budget
from gradcheck_cli.engine.program import Program
from gradcheck_cli.graph import Array, Graph
from gradcheck_cli.jacobian.cost import FULL_WORK, OPERATIONS, Cost, partial_work
from gradcheck_cli.jacobian.directions import Directions, reals
from gradcheck_cli.jacobian.jacobian import Backward
from gradcheck_cli.settings import Mode, Settings
from gradcheck_cli.verdict.rule import Status, worst

if TYPE_CHECKING:
    from gradcheck_cli.checks.diagnose.suspects import Survey, Trap

PARTIAL: tuple[Mode, ...] = ("nodes", "directional", "sampled")
LADDER: tuple[Mode, ...] = ("full", "nodes", "directional")  # of `auto`, from what says most to what takes least
_FAILING, _MIXED, _LOOKED_AT = 2, 16, 1024  # entries that fail: looked at alone, and mixed, of so many
_TIME = 0.3  # of the time limit: what comparing all entries may be predicted to take


def plan(pairs: Sequence[Pair], sides: Mapping[str, Sides], settings: Settings, graph: Graph) -> None:
    """The mode of each pair: in `auto` the cheapest ones in full, as many as the work that a check may take allows.

    What does not fit the memory limit goes to fewer threads, then to modes that hold less; what fits in none gets an
    error.
    """
    if settings.mode in PARTIAL:
        for pair in pairs:
            _fit(pair, sides[pair.y], (settings.mode,), graph)
        return
    costs = [(pair, sides[pair.y].cost(pair.x)) for pair in pairs]
    left = work_for(settings)
    for pair, cost in sorted(costs, key=lambda entry: entry[1].work):
        fits = cost.memory <= settings.memory_limit
        if settings.mode == "full" and not fits:
            raise too_large(cost, sides[pair.y], pair.x)
        left -= cost.work
        if settings.mode == "full":
            _fit(pair, sides[pair.y], ("full",), graph)
            continue
        fits = fits and threads(sides[pair.y], pair.x, graph, "full") > 0
        pair.chosen = "" if fits and left >= 0 else _why(cost, fits, settings)
        _fit(pair, sides[pair.y], LADDER if fits and left >= 0 else LADDER[1:], graph)


def predicted(ends: Iterable[tuple[str, str]], sides: Mapping[str, Sides], settings: Settings) -> float:
    """Operations of a check of some (x, y) in the modes that they would get; those of a y share what is seen of nodes."""
    costs = sorted((sides[y].cost(x).work if settings.mode in ("auto", "full") else math.inf, x, y) for x, y in ends)
    left, total, rest = math.inf if settings.mode == "full" else work_for(settings), 0.0, dict[str, float]()
    for cost, x, y in costs:
        if total + cost <= left:
            total += cost
        else:
            mode = settings.mode if settings.mode in PARTIAL else "nodes"
            rest[y] = max(rest.get(y, 0.0), partial_work(sides[y].program(x), mode))
    return total + sum(rest.values())


def work_for(settings: Settings, most: float = FULL_WORK) -> float:
    """Operations that full comparisons may take: less than `most` where the time limit asks for that."""
    if settings.timeout is None:
        return most
    return min(most, _TIME * settings.timeout * OPERATIONS / settings.points)


def _fit(pair: Pair, side: Sides, modes: Sequence[Mode], graph: Graph) -> None:
    """The first mode in which a pair fits the memory limit, on as many threads as fit; an error where none does."""
    for mode in modes:
        pair.jobs = threads(side, pair.x, graph, mode)
        if pair.jobs:
            pair.mode = mode
            break
    else:
        pair.error = beyond(side, pair.x, graph, modes[-1])
        return
    if pair.mode != modes[0]:
        pair.chosen = "; ".join(filter(None, (pair.chosen, lesser(modes[0]))))


def _why(cost: Cost, fits: bool, settings: Settings) -> str:
    """What speaks against all entries."""
    if not fits:
        return f"all {cost.entries:,} entries would take more than the memory limit"
    return f"all {cost.entries:,} entries would take about {cost.duration}"


def lesser(mode: str) -> str:
    """What speaks against a mode that memory has no room for."""
    what = {"full": "all entries", "nodes": "all nodes"}.get(mode, mode)
    return f"{what} would take more than the memory limit"


class Partial:
    """The comparisons of one mode at one point, but for the full one: they share their backward passes."""

    def __init__(self, mode: str, backward: Backward, settings: Settings, budget: Budget) -> None:
        self.mode, self.settings, self.backward = mode, settings, backward
        seed = settings.seed
        self.part: Part = (
            sample(backward, seed, budget, settings.max_entries)
            if mode == "sampled"
            else projections(backward, seed, budget, *([DOT_TESTS] if mode == "nodes" else []))
        )
        self.whole = projections(backward, seed, budget, 1) if mode == "sampled" else None

    def compare(self, program: Program, position: int, job: Job) -> Found:
        """What one pair is judged by."""
        return self.part.compare(program, position, job)

    def completed(self, outcome: Outcome, sides: Sides, pair: Pair, position: int, job: Job) -> Outcome:
        """An outcome with what else belongs to the mode: all nodes; or that its entries were drawn.

        A sample gets a projection of all entries beside it, since drawing misses errors that are rare.
        """
        seed = self.settings.seed
        tied = self.mode == "directional" and outcome.found.directions is not None and outcome.found.directions.tied
        if tied and (beside := entries_at_ties(self.backward, position, sides.program(pair.x), seed, job)):
            pair.outcomes.append(replace(outcome, found=beside, projected=False, drawn=True, extra=True))
        if self.mode == "nodes":
            return replace(outcome, survey=survey_of(sides, pair, seed, job.budget, [outcome]))
        if self.whole is None:
            return outcome
        found = self.whole.compare(sides.program(pair.x), position, job)
        pair.outcomes.append(replace(outcome, found=found, extra=True))
        return replace(outcome, projected=False, drawn=True)

    def untold(self, found: Found) -> bool:
        """Projections that cross ties whatever their direction, between whose slopes from both sides anything can hide.

        Single entries can be told there.
        """
        crossing = found.comparison.count(Status.JUMP, Status.NONDERIVATIVE)
        if self.mode != "directional" or found.comparison.count(Status.FAIL):
            return False
        return crossing > self.settings.max_inconclusive * found.comparison.status.size


def survey_of(sides: Sides, pair: Pair, seed: int, budget: Budget, outcomes: Sequence[Outcome] = ()) -> Survey:
    """Every node between x and y on its own; what fails in some `outcomes` at the same point says which comes first."""
    failing = next((entries for outcome in outcomes if (entries := list(_failing(outcome)))), [])
    return sides.surveyor.survey(sides.theory_name(pair.x), sides.theory_name(pair.y), seed, budget, failing)


def _failing(outcome: Outcome) -> Iterator[tuple[Array, Array]]:
    """Entries that fail, as directions of x and weighted sums of y: the worst ones, then some of them mixed.

    Those whose gradient is a number come first.
    """
    found, comparison = outcome.found, outcome.found.comparison
    failed = [at for at in worst(comparison, _LOOKED_AT) if comparison.status[at] == Status.FAIL]
    failed.sort(key=lambda at: not np.isfinite(comparison.theoretical[at]))
    along = found.directions or Directions(outcome.x, range(reals(outcome.x)))
    first = outcome.first if found.directions is None else 0

    def entry(row: int, column: int) -> tuple[Array, Array]:
        weights = np.arange(reals(outcome.y)) == column if found.weights is None else found.weights[column]
        return along.block(range(first + row, first + row + 1))[0], np.asarray(weights, np.float64)

    yield from (entry(*at) for at in failed[:_FAILING])
    if len(failed) > _FAILING:
        some = [entry(*at) for at in failed[:: -(-len(failed) // _MIXED)]]
        signs = np.random.default_rng(0).normal(size=(2, len(some)))
        vs, us = (np.stack(each) for each in zip(*some, strict=True))
        yield signs[0] @ vs, signs[1] @ us


def trap_in(sides: Sides, pair: Pair, seed: int) -> Trap | None:
    """Where the NaN of a gradient comes from that no rule is to blame for."""
    return sides.surveyor.trap([sides.theory_name(pair.x)], [sides.theory_name(pair.y)], seed)


def blameless(sides: Sides, pair: Pair, survey: Survey, seed: int) -> str:
    """What to say of a failure that no node is to blame for."""
    names = [sides.theory_name(pair.x)], [sides.theory_name(pair.y)]
    return (
        sides.surveyor.unsummed(*names, seed)
        or f"no node fails on its own ({survey.checked} of {survey.total} checked)"
    )
