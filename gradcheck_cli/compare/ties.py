"""Ties judged as a whole: tied entries may share out a derivative as they like, but must give all of it together.

Between the slopes from both sides each entry may be right, and all of them wrong: a maximum of two equals that counts
both in full, or neither.  Along directions that keep the ties y has a derivative, which every gradient there has to give.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gradcheck_cli.autodiff.tape import Tape
from gradcheck_cli.compare.kinks import decides, kink_notes, listed
from gradcheck_cli.compare.pair import PairJob, PairResult
from gradcheck_cli.engine.chunks import Budget, any_of
from gradcheck_cli.engine.program import Program
from gradcheck_cli.graph import Array
from gradcheck_cli.jacobian.directions import Directions, flat, flat_stack, reals, shaped
from gradcheck_cli.jacobian.jacobian import ROUNDED_RUNS, Backward, forward_noise
from gradcheck_cli.jacobian.tied import Moves, Tied, keeping_ties, slopes_along
from gradcheck_cli.verdict.differences import CHEAP_RUNGS, Estimate, richardson, rms, rungs, scales
from gradcheck_cli.verdict.rule import UNIT, Comparison, Status, Tolerance, allowance, magnitude

DIRECTIONS = 8  # that keep all ties: as many groups of tied entries can be told apart
REST = 1e-11  # of what entries give: how far directions may be from keeping a tie
_SAFETY = 4.0  # of what 16 roundings do in a few runs


@dataclass(frozen=True, slots=True)
class Misfit:
    """Derivatives along directions that keep ties, `(P, columns)`, and where a gradient gives others."""

    exact: Array
    wrong: Array


def misfit(
    program: Program,
    tied: Tied,
    given: Array,
    slack: Array,
    tolerance: Tolerance,
    budget: Budget,
    weights: Array | None = None,
) -> Misfit:
    """Derivatives by a gradient along directions that keep ties, held against the forward run; `slack` is accepted."""
    exact, error = _measured(program, tied.moves, budget, weights)
    size = magnitude(given, exact)
    with np.errstate(invalid="ignore"):
        gap = np.abs(given - exact)
        beyond = allowance(size, np.max(size, axis=0, initial=0.0), tolerance) + slack + error + 64 * UNIT * size
        return Misfit(exact, (gap > beyond) & np.isfinite(gap))


def _measured(program: Program, moves: Moves, budget: Budget, weights: Array | None) -> tuple[Array, Array]:
    """Derivatives along directions, and how far they may be off: by the complex step, or by differences."""
    finite = np.isfinite(flat(program.tape.values[program.outputs[0]]))

    def wanted(values: Array, weights: Array | None) -> Array:
        cleared = np.where(finite, values, 0.0)
        return cleared if weights is None else cleared @ weights.T

    if not program.analytic:
        found = _by_differences(program, moves, budget)
        size = None if weights is None else np.abs(weights)
        return wanted(found.value, weights), 8 * wanted(found.error, size)
    exact = wanted(slopes_along(program, moves, budget), weights)
    moved = [wanted(slopes_along(program, moves, budget, seed), weights) for seed in range(ROUNDED_RUNS)]
    return exact, _SAFETY * np.fmax.reduce([np.abs(each - exact) for each in moved])


def _by_differences(program: Program, moves: Moves, budget: Budget) -> Estimate:
    """The same by differences of steps at which no decision changes."""
    values, count = program.tape.values, len(next(iter(moves.values())))
    typical = rms(np.concatenate([scales(flat(values[n])) for n in program.probes])) or 1.0
    steps = np.broadcast_to((typical * rungs(CHEAP_RUNGS))[:, None], (len(CHEAP_RUNGS), count))
    quotients, smooth = [], []
    for h in steps[:, 0]:
        ahead, behind = (
            program.run({n: shaped(flat(values[n]) + side * h * v, values[n]) for n, v in moves.items()}, branches=True)
            for side in (1.0, -1.0)
        )
        quotients.append((flat_stack(ahead.outputs[0]) - flat_stack(behind.outputs[0])) / (2 * h))
        smooth.append(~(any_of(ahead.crossed, count) | any_of(behind.crossed, count)))
    valid = np.logical_and.accumulate(np.stack(smooth)[::-1])[::-1]
    return richardson(np.stack(quotients), steps, forward_noise(program), valid)


def judged_together(
    tape: Tape, y: str, found: Mapping[str, PairResult], seed: int, budget: Budget
) -> dict[str, PairResult]:
    """Whole Jacobians of y by several xs, with what is wrong of tied entries together: those of `found` that change."""
    if not any(each.comparison.slopes for each in found.values()):
        return {}
    changed: dict[str, PairResult] = {}
    for xs in _independent(tape, y, list(found)):
        program = Program(tape, xs, [y])
        tied = keeping_ties(program, DIRECTIONS, seed, budget)
        if tied is None or not tied.count:
            continue
        some = {x: changed.get(x, found[x]) for x in xs}
        given, slack = _sums(tied.moves, {x: each.comparison for x, each in some.items()})
        tolerance = next(iter(some.values())).comparison.tolerance
        astray = misfit(program, tied, given, slack, tolerance, budget)
        if astray.wrong.any():
            nodes = listed(list(dict.fromkeys(tape.steps[s].where for s in tied.steps)))
            changed.update(_with_failures(program, some, tied.moves, given, astray, nodes))
    return changed


def projected_together(
    backward: Backward, found: Mapping[str, PairResult], seed: int, job: PairJob, least: int = 2
) -> dict[str, PairResult]:
    """The same where only parts of the Jacobians were looked at: what fails of xs together, beside the rest.

    least  how many xs there have to be that can move together
    """
    tape, y = backward.tape, backward.y
    if len(found) < least or not decides(Program(tape, list(found), [y])):
        return {}
    m, failing = reals(tape.values[y]), {}
    weights = np.eye(m) if m <= DIRECTIONS else np.random.default_rng([seed, 7]).normal(size=(DIRECTIONS, m))
    for xs in _independent(tape, y, list(found)):
        program = Program(tape, xs, [y])
        tied = keeping_ties(program, DIRECTIONS, seed, job.budget) if len(xs) >= least else None
        if tied is None or not tied.count:
            continue
        flows = dict(zip(backward.xs, backward.reduced(weights, lambda _, cts: cts, job.budget), strict=True))
        given = np.asarray(sum(tied.moves[x] @ flows[x].T for x in xs))
        size = np.asarray(sum(np.abs(tied.moves[x]) @ np.abs(flows[x]).T for x in xs))
        slack = (job.tolerance.rtol + job.tolerance.negligible) * size
        astray = misfit(program, tied, given, slack, job.tolerance, job.budget, weights)
        if astray.wrong.any():
            nodes = listed(list(dict.fromkeys(tape.steps[s].where for s in tied.steps)))
            failing.update({x: _as_result(tape, x, y, tied, given, astray, weights, nodes) for x in xs})
    return failing


def _as_result(
    tape: Tape, x: str, y: str, tied: Tied, given: Array, astray: Misfit, weights: Array, nodes: str
) -> PairResult:
    status = np.where(astray.wrong, Status.FAIL, Status.PASS).astype(np.int8)
    comparison = Comparison(given, astray.exact, np.zeros_like(given), status, unfit=int(astray.wrong.sum()))
    note = (
        f"what is tied at {nodes} does not add up, among all xs, to the derivative along directions that keep the ties"
    )
    along = Directions(tape.values[x], tied.moves[x])
    return PairResult(comparison, "complex-step", tape.values[x], tape.values[y], (note,), along, weights)


def _independent(tape: Tape, y: str, xs: Sequence[str]) -> list[list[str]]:
    """The xs in groups none of whose members depends on another: such a group can move together."""
    groups: list[tuple[list[str], set[str]]] = []
    for x in xs:
        reached = Program(tape, [x], [y]).reached
        group = next((g for g in groups if x not in g[1] and reached.isdisjoint(g[0])), None)
        if group is None:
            groups.append(([x], set(reached)))
        else:
            group[0].append(x)
            group[1].update(reached)
    return [names for names, _ in groups]


def _sums(moves: Moves, found: Mapping[str, Comparison]) -> tuple[Array, Array]:
    """Sums of the entries of Jacobians along directions, and by how much each of them may be off, added up."""
    given: Array | float = 0.0
    slack: Array | float = 0.0
    for x, comparison in found.items():
        v, jacobian = moves[x], comparison.theoretical
        given = given + v @ jacobian
        allowed = allowance(magnitude(jacobian, comparison.numerical), comparison.ground.at(), comparison.tolerance)
        noise = np.broadcast_to(comparison.noise, jacobian.shape)
        known = np.isfinite(noise)
        lost = (np.abs(v) > 0).astype(float) @ (~known).astype(float) > 0
        accepted = allowed + 8 * np.where(known, noise, 0.0) + REST * np.abs(jacobian)
        slack = slack + np.where(lost, np.inf, np.abs(v) @ accepted)
    return np.asarray(given), np.asarray(slack)


def _with_failures(
    program: Program, found: Mapping[str, PairResult], moves: Moves, given: Array, astray: Misfit, nodes: str
) -> dict[str, PairResult]:
    """The comparisons with tied entries that fail together; their numerical side is the nearest that fits."""
    at = {x: np.isin(each.comparison.status, (Status.KINK_OK,)) for x, each in found.items()}
    failed = {x: (each.comparison.status == Status.FAIL).any(axis=0) for x, each in found.items()}
    columns = np.flatnonzero(astray.wrong.any(axis=0) & ~np.logical_or.reduce(list(failed.values())))
    right = {x: each.comparison.numerical.copy() for x, each in found.items()}
    status = {x: each.comparison.status.copy() for x, each in found.items()}
    shares: list[float] = []
    for column in columns.tolist():
        rows = {x: np.flatnonzero(mask[:, column]) for x, mask in at.items()}
        v = np.concatenate([moves[x][:, some] for x, some in rows.items()], axis=1)
        own = v @ np.concatenate([found[x].comparison.theoretical[some, column] for x, some in rows.items()])
        gap = astray.exact[:, column] - given[:, column]
        if not v.size or not np.abs(v).max() > 0:
            continue
        more, start = np.linalg.pinv(v) @ gap, 0
        shares.append(_share(own, own + gap))
        for x, some in rows.items():
            right[x][some, column] = found[x].comparison.theoretical[some, column] + more[start : start + len(some)]
            status[x][some, column] = Status.FAIL
            start += len(some)
    return {
        x: _told(Program(program.tape, [x], program.outputs), each, right[x], status[x], nodes, shares)
        for x, each in found.items()
        if (status[x] != each.comparison.status).any()
    }


def _share(given: Array, right: Array) -> float:
    """The ratio of a gradient to what it must be, along the direction that tells it best."""
    best = int(np.argmax(np.abs(right)))
    return float(given[best] / right[best]) + 0.0 if right[best] else np.inf


def _told(
    program: Program, found: PairResult, right: Array, status: Array, nodes: str, shares: Sequence[float]
) -> PairResult:
    old = found.comparison
    count = int((status != old.status).sum())
    comparison = replace(old, numerical=right, status=status, unfit=old.unfit + count)
    stale = kink_notes(program, old)
    times = f"{shares[0]:.4g} times" if np.isfinite(shares[0]) and np.ptp(shares) < 1e-6 else "other than"
    entries = f"{count} entr{'y' if count == 1 else 'ies'} at ties of {nodes}"
    note = f"{entries}: together they are {times} the derivative along directions that keep the ties"
    kept = (note for note in found.notes if note not in stale)
    return replace(found, comparison=comparison, notes=(note, *kept, *kink_notes(program, comparison)))
