"""One claim judged at one point: against the numerical side, beside what gradcheck's own rules give.

A claim that is right passes whatever our own rule says, and then that is what a reader has to know of our rule.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gradcheck_cli.checks.assemble import Outcome, Pair
from gradcheck_cli.checks.claims.claim import Claim
from gradcheck_cli.checks.claims.evaluated import Answer
from gradcheck_cli.checks.claims.layout import Layout
from gradcheck_cli.checks.claims.own import Own, projected
from gradcheck_cli.checks.claims.stated import Moved, Stated, blurred, forgiven, tolerant
from gradcheck_cli.checks.diagnose.suspects_part import suspect_record
from gradcheck_cli.checks.modes import Partial, survey_of
from gradcheck_cli.checks.obstacles import too_large
from gradcheck_cli.checks.sides import Sides
from gradcheck_cli.compare.pair import Found, Job, compare_full
from gradcheck_cli.compare.ties import judged_together
from gradcheck_cli.engine.chunks import Budget
from gradcheck_cli.formats.source import Source
from gradcheck_cli.graph import Array
from gradcheck_cli.jacobian.jacobian import JITTERED
from gradcheck_cli.verdict.rule import ATOL, RTOL, Status, Tolerance

_SAFETY = 3.0  # of sums of rounding errors whose signs nobody knows


@dataclass(frozen=True, slots=True)
class Here:
    """A claim at a point: its answer, how that stands for a derivative, both sides of what it is about, and ours."""

    claim: Claim
    answer: Answer
    layout: Layout
    sides: Sides
    own: Own

    @property
    def jacobian(self) -> Array:
        """What is claimed, `(x_size, y_size)`."""
        return self.layout.read(self.answer.values)


def plan(pair: Pair, here: Here, left: float) -> float:
    """The mode of a claim, by what work is left for all entries; gives what is left after it."""
    sides, settings = here.sides, here.sides.settings
    cost = sides.cost(pair.x)
    fits = cost.memory <= settings.memory_limit
    if settings.mode == "full" and not fits:
        raise too_large(cost, sides, pair.x)
    wanted = {"auto": "full" if fits and cost.work <= left else "directional", "nodes": "directional"}
    pair.mode = wanted.get(settings.mode, settings.mode)
    if settings.mode == "auto" and pair.mode != "full":
        pair.chosen = f"all {cost.entries:,} entries would take about {cost.duration}"
    return left - cost.work if pair.mode == "full" else left


def judge(pair: Pair, here: Here, budget: Budget, source: Source, index: int) -> None:
    """Compares a claim, and says of it and of our own rule what there is to say."""
    sides, settings = here.sides, here.sides.settings
    x, unit = sides.theory_name(pair.x), here.answer.unit
    tolerance = tolerant(Tolerance(pair.of(settings.rtol, RTOL), pair.of(settings.atol, ATOL)), unit)
    job = Job(settings.method, settings.delta, tolerance, budget)
    stated = Stated(sides.tape, sides.theory_name(sides.y), x, here.jacobian, _moved(here, x))
    found, partial = _compared(pair, here, stated, job)
    if unit or here.answer.rounded is not None:
        found = forgiven(found, _blur(here, stated, found), tolerance)
    if unit:
        pair.notes.append(f"{here.claim.by} has numbers of {unit:.0e}: errors as small as their rounding are not seen")
    if partial is None:
        found = judged_together(sides.tape, sides.theory_name(sides.y), {x: found}, settings.seed, budget).get(x, found)
    outcome = Outcome(index, found, sides.value(pair.x), sides.value(sides.y), partial is not None,
                      stated=stated.jacobian, own=here.own.jacobian(x))  # fmt: skip
    if partial is not None:
        outcome = partial.completed(outcome, sides, pair, 0, job)
    pair.outcomes.append(outcome)
    pair.method = found.method
    ours = here.own.verdict(x, found, sides.program(pair.x), job, None if partial else sides.structure(pair.x))
    pair.claimed["theoretical"] = max(ours, pair.claimed.get("theoretical", "none"), key=_WORST.index)
    _say(pair, here, source, ours, x)


_WORST = ("none", "pass", "inconclusive", "fail")


def _compared(pair: Pair, here: Here, stated: Stated, job: Job) -> tuple[Found, Partial | None]:
    program = here.sides.program(pair.x)
    if pair.mode == "full":
        return compare_full(program, stated.theory, job, here.sides.structure(pair.x)), None
    partial = Partial(pair.mode, stated, here.sides.settings, job.budget)
    return partial.compare(program, 0, job), partial


def _moved(here: Here, x: str) -> Moved:
    """The claimed Jacobian as rounding may move it."""
    if here.answer.unit:
        return blurred(here.jacobian, here.own.rounding(x, here.answer.unit))
    return lambda seed: here.layout.read(here.answer.moved(seed))


def _blur(here: Here, stated: Stated, found: Found) -> Array:
    """How far the numbers of a claim may be off by the roundings of whoever made them, as a comparison looks at them."""
    rounded = here.answer.rounded
    moved = stated.moved if rounded is None else lambda seed: here.layout.read(rounded(seed))
    plain = projected(stated.jacobian, found)
    gaps = [np.abs(projected(moved(seed), found) - plain) for seed in range(JITTERED)]
    return np.asarray(np.fmax.reduce(gaps) * (1.0 if here.answer.unit and found.weights is None else _SAFETY))


def _say(pair: Pair, here: Here, source: Source, ours: str, x: str) -> None:
    """Who is wrong: the claim, our own rule, or both."""
    failed = pair.outcomes[-1].found.comparison.count(Status.FAIL)
    by, sides = here.claim.by, here.sides
    if ours == "none":
        pair.notes.append(f"gradcheck has no gradient of its own here: {here.own.reasons.get(x, 'a rule is missing')}")
    if failed:
        said = {"pass": "agrees with the numerical one", "fail": "is wrong as well"}.get(ours)
        pair.notes.extend([f"gradcheck's own gradient {said}"] if said else [])
    elif ours == "fail":
        survey = survey_of(sides, pair, sides.settings.seed, Budget())
        suspect = suspect_record(survey, source.graph)
        node = f", first of all that of node {suspect.node} {suspect.op}" if suspect else ""
        pair.notes.append(f"{by} is right, and gradcheck's own gradient is not: a bug of gradcheck's rules{node}")
