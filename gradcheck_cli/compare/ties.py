"""Ties judged as a whole: tied entries may share out a derivative as they like, but must give all of it together.

Between the slopes from both sides each entry may be right, and all of them wrong: a maximum of two equals that counts
both in full, or neither.  Along a direction that keeps every tie y has a derivative, which every gradient there has to
give: what is tied moves together, the rest anyhow.

At each tied step of a tape operands of equal value are what is tied, and those that are tied to something that does not
move must not move.  Random directions of the xs are combined such that, at every such step, all of that holds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from msgspec.structs import replace

from gradcheck_cli.autodiff.tape import Step, Tape
from gradcheck_cli.compare.counts import PairResult
from gradcheck_cli.compare.kinks import TIE, decides, kink_notes
from gradcheck_cli.compare.ladder import PairJob
from gradcheck_cli.engine.chunks import Budget, any_of, in_chunks
from gradcheck_cli.engine.program import Program
from gradcheck_cli.engine.rounding import RandomRounding
from gradcheck_cli.errors import counted, listed
from gradcheck_cli.graph import Array, is_inexact
from gradcheck_cli.jacobian.directions import Directions, directions_within, flat, flat_stack, gaussian, reals, shaped
from gradcheck_cli.jacobian.jacobian import ROUNDED_RUNS, Backward, forward_noise
from gradcheck_cli.verdict.differences import CHEAP_RUNGS, Estimate, richardson, rms, rungs, scales
from gradcheck_cli.verdict.rule import UNIT, Comparison, Status, Tolerance, allowance, blocks, magnitude

DIRECTIONS = 8  # that keep all ties: as many groups of tied entries can be told apart
REST = 1e-11  # of what entries give: how far directions may be from keeping a tie
_SAFETY = 4.0  # of what 16 roundings do in a few runs
_LOOKS = 2  # random directions, there and back, that ties are looked for along
_TRIED = (12, 72)  # directions that are combined: more than there are ties, as long as these are few
MOST_TRIED = _TRIED[-1]
_COLUMNS = 1 << 14  # ties of one step that are looked at
_HALVED = 256  # runs of a step in which those tied to something that does not move are looked for
_SAME = 1e-12  # of their size: slopes that differ by less are the same
_NOTHING = 1e-6  # of a random direction's length: what is left of one that keeps ties only by standing still
_DEPENDENT = 1e-9  # of the largest singular value: a smaller one is rounding


Moves = Mapping[str, Array]  # directions `(P, x_size)` of each x


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
    finite = np.isfinite(flat(program.y))

    def wanted(values: Array, weights: Array | None) -> Array:
        cleared = np.where(finite, values, 0.0)
        return cleared if weights is None else cleared @ weights.T

    if not program.analytic:
        found = _by_differences(program, moves)
        size = None if weights is None else np.abs(weights)
        return wanted(found.value, weights), 8 * wanted(found.error, size)
    exact = wanted(_along(program, moves, budget)[0], weights)
    moved = [wanted(_along(program, moves, budget, seed)[0], weights) for seed in range(ROUNDED_RUNS)]
    return exact, _SAFETY * np.fmax.reduce([np.abs(each - exact) for each in moved])


def _by_differences(program: Program, moves: Moves) -> Estimate:
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
        for rows in blocks(*comparison.shape):
            v, part = moves[x][:, rows], comparison.rows(rows)
            jacobian = part.theoretical
            given = given + v @ jacobian
            allowed = allowance(magnitude(jacobian, part.numerical), part.ground.at(), part.tolerance)
            noise = np.broadcast_to(part.noise, jacobian.shape)
            known = np.isfinite(noise)
            lost = (np.abs(v) > 0).astype(float) @ (~known).astype(float) > 0
            accepted = allowed + 8 * np.where(known, noise, 0.0) + REST * np.abs(jacobian)
            slack = slack + np.where(lost, np.inf, np.abs(v) @ accepted)
    return np.asarray(given), np.asarray(slack)


def _with_failures(
    program: Program, results: Mapping[str, PairResult], moves: Moves, given: Array, astray: Misfit, nodes: str
) -> dict[str, PairResult]:
    """The comparisons with tied entries that fail together; their numerical side is the nearest that fits."""
    found = {x: replace(each, comparison=each.comparison.whole()) for x, each in results.items()}
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
    together = f"together they are {times} the derivative along directions that keep the ties"
    note = f"{counted(count, 'entry')} at ties of {nodes}: {together}"
    kept = (note for note in found.notes if note not in stale)
    return replace(found, comparison=comparison, notes=(note, *kept, *kink_notes(program, comparison)))


@dataclass(frozen=True, slots=True)
class Tied:
    """Directions that keep every tie, `(P, x_size)` for each x, and the steps of the tape that are tied."""

    moves: Moves
    steps: tuple[int, ...]

    @property
    def count(self) -> int:
        """Number of directions."""
        return next((len(v) for v in self.moves.values()), 0)


def keeping_ties(program: Program, count: int, seed: int, budget: Budget, weighed: bool = True) -> Tied | None:
    """At most so many random directions of all xs of a program that keep all ties; None where nothing is tied.

    `weighed` ones are in units of the sizes of x.  Of none there may be no direction but that of what is not tied,
    or no memory for directions to combine.
    """
    rng = np.random.default_rng([seed, 11])
    steps = _tied_steps(program, seed, budget)
    if not steps:
        return None
    sizes = _sizes(program, weighed)
    entries = sum(size.size for size in sizes.values())
    for number in _TRIED:
        if directions_within(8 * entries, number + count, budget.memory) < number + count:
            break
        for alike in (False, True):
            tried = _tried(program, number + count, rng, alike)
            found = _combined(program, steps, {n: v * sizes[n] for n, v in tried.items()}, rng, budget)
            if found is not None and len(found):
                chosen = _chosen(program, {name: found @ v for name, v in tried.items()}, count, rng)
                return Tied({name: v * sizes[name] for name, v in chosen.items()}, steps)
    return Tied({}, steps)


def _sizes(program: Program, weighed: bool) -> dict[str, Array]:
    """By how much each entry of the xs moves: by its own size, in units of what is typical, or all by the same."""
    values = {name: flat(program.tape.values[name]) for name in program.probes}
    if not weighed:
        return {name: np.ones(x.size) for name, x in values.items()}
    every = {name: scales(x) for name, x in values.items()}
    typical = rms(np.concatenate(list(every.values()))) or 1.0
    return {name: np.where(values[name] == 0, 1.0, size / typical) for name, size in every.items()}


def _chosen(program: Program, kept: Moves, count: int, rng: np.random.Generator) -> dict[str, Array]:
    """Some random mixtures of directions, no more than are independent of each other."""
    _, s, basis = np.linalg.svd(np.concatenate(list(kept.values()), axis=1), full_matrices=False)
    basis = basis[s > _NOTHING]
    mixed = rng.normal(size=(min(count, len(basis)), len(basis))) @ basis
    stops = np.cumsum([v.shape[1] for v in kept.values()])[:-1]
    # of all xs: one alone may move by nothing but roundings
    typical = np.max(np.abs(mixed), axis=1, keepdims=True, initial=0.0)
    parts = zip(kept, np.split(mixed, stops, axis=1), strict=True)
    return {name: _evened(program, name, v, typical) for name, v in parts}


def _tied_steps(program: Program, seed: int, budget: Budget) -> tuple[int, ...]:
    """Steps whose decisions change when all xs move by next to nothing."""
    values = program.tape.values
    sizes = {name: TIE * scales(flat(values[name])) for name in program.probes}

    def run(piece: range) -> Sequence[int]:
        moved = {n: np.empty((len(piece), x.size), flat(values[n]).dtype) for n, x in sizes.items()}
        for row, number in enumerate(piece):  # drawn here: all at once they take many times the memory of the xs
            look, back = divmod(number, 2)
            rng = np.random.default_rng([seed, 11, 1 + look])
            for name, size in sizes.items():
                moved[name][row] = flat(values[name]) + (-size if back else size) * _look(rng, size.size, look)
        here = {name: shaped(each, values[name]) for name, each in moved.items()}
        return [step for step, rows in program.run(here, branches=True).crossed.items() if rows.any()]

    each = in_chunks(run, 2 * (_LOOKS + 1), program.bytes_per_probe(), budget, program.worth)
    return tuple(sorted({step for _, made in each for step in made()}))


def _look(rng: np.random.Generator, size: int, number: int) -> Array:
    """A random direction that ties are looked for along; the last one is in order.

    Of equal values that are compared one after the other each is, in turn, the largest so far.
    """
    if number == _LOOKS:
        return np.linspace(0.5, 1.5, size)
    return np.asarray(rng.uniform(0.5, 1.5, size) * rng.choice([-1.0, 1.0], size))


def _tried(program: Program, count: int, rng: np.random.Generator, alike: bool) -> dict[str, Array]:
    """Random directions; `alike` ones move entries of equal value alike, whichever x they belong to."""
    values = {name: flat(program.tape.values[name]) for name in program.probes}
    if not alike:
        return {name: gaussian(rng, count, x.size) for name, x in values.items()}
    every, place = np.unique(np.concatenate(list(values.values())), return_inverse=True)
    drawn, stops = gaussian(rng, count, every.size), np.cumsum([x.size for x in values.values()])[:-1]
    return dict(zip(values, np.split(drawn[:, place.reshape(-1)], stops, axis=1), strict=True))


def _combined(
    program: Program, steps: Sequence[int], tried: Moves, rng: np.random.Generator, budget: Budget
) -> Array | None:
    """Combinations of directions, one a row, that keep the ties of some steps; None where that cannot be told."""
    kept = []
    for index in steps:
        if index < 0 or (held := _held(program, index, tried, budget)) is None:
            return None
        kept.append(held)
    every = np.concatenate(kept, axis=1)
    number, total = every.shape
    if not total:
        return np.eye(number)
    few = every if total <= 4 * number else every @ rng.choice([-1.0, 1.0], (total, 4 * number)) / np.sqrt(total)
    u, s, _ = np.linalg.svd(few)
    free = u[:, int(np.count_nonzero(s > _DEPENDENT * s[0])) :].T
    return np.asarray(free[(np.abs(free @ every) <= _SAME).all(axis=1)])


def _held(program: Program, index: int, tried: Moves, budget: Budget) -> Array | None:
    """Numbers to be zero along a direction that keeps the ties of one step, `(directions, n)`, in units of its size."""
    tape, step = program.tape, program.tape.steps[index]
    names = list(dict.fromkeys(n for n in step.operands if n in program.reached and is_inexact(tape.values[n].dtype)))
    before = Program(tape, program.probes, names)
    if not names:
        return np.zeros((len(next(iter(tried.values()))), 0))
    if not before.analytic or any(tape.values[n].dtype.kind == "c" for n in names):
        return None
    slopes = np.concatenate(_along(before, tried, budget), axis=1)
    every = np.concatenate([flat(tape.values[n]) for n in names])
    values, place, count = np.unique(every, return_inverse=True, return_counts=True)
    place = place.reshape(-1)
    still = _still(step, tape.values, names, values, place)
    wanted = np.flatnonzero((count > 1)[place] | still[place])[:_COLUMNS]
    first = np.zeros(len(values), np.int64)
    first[place[::-1]] = np.arange(len(place))[::-1]
    own, other = slopes[:, wanted], slopes[:, first[place[wanted]]]
    size = np.maximum(np.max(np.abs(own), axis=0, initial=0.0), np.max(np.abs(other), axis=0, initial=0.0))
    gap = np.where(still[place[wanted]], own, own - other)
    counted = np.max(np.abs(gap), axis=0, initial=0.0) > _SAME * size
    return gap[:, counted] / size[counted] if np.isfinite(gap).all() else None


def _still(step: Step, tape_values: Mapping[str, Array], names: Sequence[str], values: Array, place: Array) -> Array:
    """The ones of the different `values` of operands that are tied to something that does not move, in halves of halves.

    Entries of one value move together, which keeps the ties between them: what changes a decision all the same is tied
    to a constant, or to a bound of the operator's own.
    """
    rng = np.random.default_rng(0)
    steps = TIE * scales(values) * rng.uniform(0.5, 1.5, values.size) * rng.choice([-1.0, 1.0], values.size)
    here = _decided(step, {}, tape_values)
    found, parts, runs = np.zeros(values.size, bool), [np.arange(values.size)], 0
    while parts:
        part = parts.pop()
        offsets = np.zeros(values.size)
        offsets[part] = steps[part]
        if runs < _HALVED and not any(
            _differs(here, _decided(step, _moved(tape_values, names, side * offsets[place]), tape_values))
            for side in (1.0, -1.0)
        ):
            continue
        runs += 1
        if len(part) == 1 or runs >= _HALVED:
            found[part] = True
        else:
            parts += np.array_split(part, 2)
    return found


def _moved(tape_values: Mapping[str, Array], names: Sequence[str], offsets: Array) -> dict[str, Array]:
    moved, start = {}, 0
    for name in names:
        x = tape_values[name]
        moved[name] = (x + offsets[start : start + x.size].reshape(x.shape)).astype(x.dtype)
        start += x.size
    return moved


def _decided(step: Step, moved: Mapping[str, Array], tape_values: Mapping[str, Array]) -> list[Array]:
    """All discrete decisions of a step with some operands moved."""
    operands = [None if not n else moved.get(n, tape_values[n]) for n in step.operands]
    if step.op.branch is not None:
        return [np.asarray(step.op.branch(*operands, **step.metadata))]
    made = step.op.forward(*operands, **step.metadata)
    return [np.asarray(y) for y in (made if step.op.many else (made,)) if not is_inexact(np.asarray(y).dtype)]


def _differs(here: Sequence[Array], there: Sequence[Array]) -> bool:
    return any(a.shape != b.shape or bool(np.any(a != b)) for a, b in zip(here, there, strict=True))


def _along(program: Program, moves: Moves, budget: Budget, rounding: int | None = None) -> list[Array]:
    """Derivatives of each output `(P, size)` along directions, by the complex step."""
    values, count = program.tape.values, len(next(iter(moves.values())))

    def run(piece: range) -> list[Array]:
        random = None if rounding is None else RandomRounding.seeded(rounding)
        some = {n: shaped(v[piece.start : piece.stop], values[n]) for n, v in moves.items()}
        return [flat_stack(np.asarray(t)) for t in program.jvp(some, random)]

    made = [part() for _, part in in_chunks(run, count, 2 * program.bytes_per_probe(), budget, program.worth)]
    return [np.concatenate(column) for column in zip(*made, strict=True)]


def _evened(program: Program, name: str, moves: Array, typical: Array) -> Array:
    """Directions in which what is equal moves equally to the last digit: ties are kept as by exact numbers."""
    values = flat(program.tape.values[name])
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    place = place.reshape(-1)
    moves = np.where(np.abs(moves) <= _SAME * typical, 0.0, moves)
    for one in np.flatnonzero(count > 1)[:_HALVED]:
        some = np.flatnonzero(place == one)
        part = moves[:, some]
        same = (np.ptp(part, axis=1) <= _DEPENDENT * typical[:, 0])[:, None]
        moves[:, some] = np.where(same, part[:, :1], part)
    return moves
