"""Kinks: points at which a decision of the model hangs in the balance, so that y may have no derivative there.

Whatever method made the numerical side and whatever number it happened to give, at a tie the slopes from both sides
count: a gradient between two that differ is as good as any other.  Outside of them it is wrong where a single decision
is tied.  Where several are, rules that are right one by one may make something that is no slope at all, such as 0 for
relu(x) - relu(-x), and nothing can be said.  Neither can it where slopes at points beside x are not between the two.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from gradcheck_cli.compare.ladder import Numeric, among
from gradcheck_cli.engine.chunks import Budget, Decisions, any_of
from gradcheck_cli.engine.program import Program
from gradcheck_cli.errors import counted, listed
from gradcheck_cli.graph import Array, is_inexact
from gradcheck_cli.jacobian.directions import Directions, flat_stack
from gradcheck_cli.jacobian.jacobian import by_differences, crossed_by, each_beside
from gradcheck_cli.op.batching import elementwise
from gradcheck_cli.verdict.differences import ALL_RUNGS, CENTRAL, Estimate, richardson, rungs, scales
from gradcheck_cli.verdict.rule import PASSED, Comparison, Status, judge_between, magnitude

TIE = 2.0**-36  # how far from x its other side begins, in units of the scale of x
_FARTHER = 2.0**-20  # a perturbation that a continuous operator answers much more to than to TIE
_LOOKS = 2  # random directions, there and back, that a tie somewhere in x is looked for along
_BESIDE = 2.0**-30  # of steps at points beside x: far smaller than _FARTHER, and far above rounding
_POINTS = 32  # beside x, that slopes are looked at
_NUMBERS = 1 << 22  # of all these points
_CLEAR = 2.0**-6  # of the larger slope: what is beyond by less is how the function bends
_NAMED = 5  # nodes that notes name


def with_ties(numeric: Numeric, comparison: Comparison, exact: bool) -> Comparison:
    """The comparison with rows at a tie judged by their slopes; `exact`: its numerical side crosses no decision."""
    program, directions, budget = numeric.program, numeric.directions, numeric.job.budget
    if not _near_a_branch(numeric):
        return comparison
    crossed = crossed_by(program, directions, directions.representable(TIE), budget)
    tied = np.flatnonzero(any_of(crossed, directions.count))
    if not len(tied):
        return comparison
    part = directions.part(tied)
    left, right = (one_sided(program, part, side, numeric.noise, budget) for side in (-1.0, 1.0))
    return _settled(numeric, comparison, tied, crossed, (left, right), exact)


def _settled(
    numeric: Numeric, old: Comparison, tied: Array, crossed: dict[int, Array], sides: tuple[Slopes, Slopes], exact: bool
) -> Comparison:
    """The comparison with what the slopes from both sides say of the rows `tied`."""
    left, right = (numeric.estimated(side.estimate, tied) for side in sides)
    t, first, ground = old.theoretical[tied], old.status[tied], old.ground.of(tied)
    passed = np.isin(first, PASSED)
    floor = numeric.floor(tied, ground.at())
    made, apart = judge_between(t, left, right, ground, floor, old.tolerance, passed)
    if exact and (made == Status.JUMP).any():  # the steps may cross what rounding decides, and y be smooth all the same
        behind, ahead = (numeric.estimated(side.across, tied) for side in sides)
        smooth, bent = judge_between(t, behind, ahead, ground, floor, old.tolerance, passed)
        agreed = (passed & (smooth == Status.PASS)) | ((first == Status.FAIL) & (smooth == Status.NONDERIVATIVE))
        made = np.where((made == Status.JUMP) & agreed & ~bent, first, made)
    if numeric.mixed:  # between slopes of random directions anything can hide
        made = np.where((made == Status.KINK_OK) & ~(passed & exact), Status.JUMP, made)
    made = np.where((sides[0].guarded | sides[1].guarded)[:, None], Status.JUMP, made)
    beyond = made == Status.NONDERIVATIVE
    if beyond.any():
        # Two bounds in one place, as those of a Clip, make a slope that is the same on both sides and another between.
        between = np.minimum(*(side.decisions.places for side in sides)) > 0
        certain = _alone(numeric, tied, sides)[:, None] & (apart | ~between[:, None])
        wrong = beyond & certain
        for i in np.flatnonzero(wrong.any(axis=1)).tolist():
            wrong[i] &= _bounded_beside(numeric, int(tied[i]), left.value[i], right.value[i])
        made = np.where(wrong, Status.FAIL, made)
    numerical, noise, status = old.numerical.copy(), old.noise.copy(), old.status.copy()
    slopes = np.stack([left.value, right.value], axis=1)
    nearest = np.clip(t, slopes.min(axis=1), slopes.max(axis=1))
    known = passed & np.isfinite(noise[tied])
    measured = np.isin(made, (Status.KINK_OK, Status.FAIL, Status.NONDERIVATIVE)) | ((made == Status.PASS) & ~known)
    numerical[tied] = np.where(measured, nearest, numerical[tied])
    noise[tied] = np.where(measured, np.fmax(left.error, right.error), noise[tied])
    status[tied] = made
    unfit = int(((made == Status.FAIL) & apart & np.isfinite(t)).sum())
    kinked = np.zeros(numeric.directions.count, bool)
    kinked[tied] = ((made != Status.PASS) | apart).any(axis=1)
    return replace(
        old, numerical=numerical, noise=noise, status=status, unfit=unfit, ties=among(kinked, crossed),
        slopes=dict(zip(tied.tolist(), slopes, strict=True)), crossed=among(~kinked, old.crossed),
    )  # fmt: skip


class Slopes(Struct, frozen=True):
    """Slopes of y along some directions on one side of x, and what the model decides right behind x there.

    `across` are those whatever is decided on the way.  `guarded` are rows in which control flow would go another way,
    or which cannot be run at all: what was measured is not the model's.
    """

    estimate: Estimate
    across: Estimate
    decisions: Decisions
    guarded: Array


def one_sided(program: Program, directions: Directions, side: float, noise: Array, budget: Budget) -> Slopes:
    """Slopes on the `side` (1 or -1) of x, by extrapolation of differences over steps that stay on the first piece."""
    steps = np.stack([directions.representable(h, side) for h in (*rungs(ALL_RUNGS), TIE)])
    x = program.x
    here = flat_stack(program.run({program.probes[0]: x[None]}).outputs[0])
    ahead = list(each_beside(program, [(directions, side * h) for h in steps], budget))
    decisions, guards = ahead[-1][1], set(program.tape.guards)
    with np.errstate(invalid="ignore"):
        quotients = np.stack([side * (y - here) / h[:, None] for (y, _), h in zip(ahead, steps, strict=True)])
    alike = np.stack([each.kind == decisions.kind for _, each in ahead])
    valid = np.logical_and.accumulate(alike[::-1], axis=0)[::-1]  # and so are all nearer ones
    estimate = across = richardson(quotients[:-1], steps[:-1], noise, valid[:-1], order=1)
    if not valid.all():
        across = richardson(quotients[:-1], steps[:-1], noise, np.ones_like(valid[:-1]), order=1)
    made = {step: program.tape.steps[step].node.outputs for step in decisions.crossed if step >= 0}
    read = {step: rows for step, rows in decisions.crossed.items() if step < 0 or guards.intersection(made[step])}
    return Slopes(estimate, across, decisions, any_of(read, directions.count))


def _there_and_back(count: int, size: int) -> Array:
    """Random moves of all of x, in units of its scale, `(count, size)`."""
    rng = np.random.default_rng(0)
    return rng.uniform(0.5, 1.5, (count, size)) * rng.choice([-1.0, 1.0], (count, size))


def _near_a_branch(numeric: Numeric) -> bool:
    """Some decision of the model changes when all of x moves by next to nothing, there or back."""
    if not decides(numeric.program):
        return False
    here, count = numeric.directions.here, _LOOKS
    moves = _there_and_back(count, here.size)
    anywhere = Directions(numeric.program.x, moves * scales(here))
    [(_, crossed)] = by_differences(numeric.program, anywhere, CENTRAL, [np.full(count, TIE)], numeric.job.budget)
    return bool(crossed)


def decides(program: Program) -> bool:
    """Something discrete is decided on the way: elsewhere no probe can cross a branch."""
    like = program.tape.values.like
    made = (n for _, step in program.steps for n in step.node.outputs if n)
    return any(step.op.branch is not None for _, step in program.steps) or any(
        not is_inexact(like(n).dtype) for n in made
    )


def _alone(numeric: Numeric, tied: Array, sides: tuple[Slopes, Slopes]) -> Array:
    """Rows in which one place of one operator is tied, so that every convention gives something between the slopes."""
    left, right = sides
    places, where = [s.decisions.places for s in sides], [s.decisions.where for s in sides]
    single = (np.maximum(*places) == 1) & ((np.minimum(*places) == 0) | (where[0] == where[1]))
    alone = np.zeros(len(tied), bool)
    for step in {*left.decisions.crossed, *right.decisions.crossed} - {-1}:
        here = [side.decisions.crossed.get(step, np.zeros(len(tied), bool)) for side in sides]
        rows = np.flatnonzero(single & (here[0] | here[1]))
        if len(rows):
            part = numeric.directions.part(tied[rows])
            alone[rows] = _continuous(numeric, step, part) & _one_moves(numeric.program, step, part)
    return alone


def _bounded_beside(numeric: Numeric, row: int, left: Array, right: Array) -> Array:
    """Columns in which slopes along a row at points beside x, off its ties, lie between the two slopes at x.

    Elsewhere these bound no gradient: where results that are tied one after the other change hands, as those of a
    running maximum, each has slopes beside x that it has on neither side of x.
    """
    part, budget = numeric.directions.part(np.asarray([row])), numeric.job.budget
    here = part.here
    count = max(_LOOKS, min(_POINTS, _NUMBERS // max(here.size, 1)))
    moves = _there_and_back(count, here.size)
    moves[:2] = np.linspace([0.5, 1.5], [1.5, 0.5], here.size, axis=1)  # the last, or the first, of what is tied wins
    aside, h = _FARTHER * scales(here) * moves, float(part.representable(_BESIDE)[0])
    x = numeric.program.x
    points = [Directions(x, aside), Directions(x, aside + h * part.block(range(1)))]
    first, second = (y for y, _ in each_beside(numeric.program, [(p, np.ones(count)) for p in points], budget))
    error = np.broadcast_to(2 * numeric.noise / h, first.shape)
    seen = numeric.estimated(Estimate((second - first) / h, error, error), np.full(count, row))
    beyond = np.maximum(np.minimum(left, right) - seen.value, seen.value - np.maximum(left, right))
    return np.asarray(~(beyond > _CLEAR * magnitude(left, right) + 8 * seen.error).any(axis=0))


def _continuous(numeric: Numeric, step: int, part: Directions) -> Array:
    """Rows in which the result of a step moves by little when x does, on either side."""
    tape, budget = numeric.program.tape, numeric.job.budget
    outputs = [n for n in tape.steps[step].node.outputs if n and is_inexact(tape.values[n].dtype)]
    smooth = np.ones(part.count, bool)
    for name in outputs:
        program = Program(tape, numeric.program.probes, [name])
        here = flat_stack(tape.values[name][None])
        for side in (-1.0, 1.0):
            moves = [(part, side * part.representable(h, side)) for h in (TIE, _FARTHER)]
            near, far = (np.abs(values - here) for values, _ in each_beside(program, moves, budget))
            smooth &= (near <= 2.0**-8 * far + 2.0**-44 * np.abs(here)).all(axis=1)
    return smooth


def _one_moves(program: Program, step: int, part: Directions) -> Array:
    """Rows in which a single operand of what is tied depends on x: a tie of several may count all of them in full."""
    tied = program.tape.steps[step]
    names = [n for n in tied.operands if n in program.reached and is_inexact(program.tape.values[n].dtype)]
    if tied.op.batching is elementwise and len(names) == 1:
        return np.ones(part.count, bool)
    before = Program(program.tape, program.probes, list(dict.fromkeys(names)))
    if not before.analytic or len(set(names)) < len(names):
        return np.zeros(part.count, bool)
    x = program.x
    moved = before.jvp({program.probes[0]: part.block(range(part.count)).reshape(-1, *x.shape)})
    return np.asarray(sum(np.count_nonzero(flat_stack(t), axis=1) for t in moved) == 1)


def kink_notes(program: Program, comparison: Comparison) -> tuple[str, ...]:
    """A sentence for each node at whose tie some entries lie, or whose branch the perturbation of some rows crosses."""
    across = [
        f"{counted(int(rows.sum()), 'row')} perturbed across a branch of {nodes}: "
        "a smaller --delta may stay on one side"
        for nodes, rows in _by_node(program, comparison.crossed)
    ]
    tied = _by_node(program, comparison.ties)
    rest = [f"and ties of {len(tied) - _NAMED} nodes more"] if len(tied) > _NAMED else []
    named = [note for nodes, rows in tied[:_NAMED] for note in _at_a_tie(nodes, np.flatnonzero(rows), comparison)]
    return (*named, *rest, *across)


def _by_node(program: Program, by_step: Mapping[int, Array]) -> list[tuple[str, Array]]:
    """Rows by node of the model, whatever steps it is composed of; nodes with the same rows together."""
    found: dict[str, Array] = {}
    for step, rows in by_step.items():
        if step >= 0:
            node = program.tape.steps[step].where
            found[node] = found.get(node, False) | rows
    together: dict[bytes, list[str]] = {}
    for node, rows in found.items():
        together.setdefault(rows.tobytes(), []).append(node)
    return [(listed(nodes), found[nodes[0]]) for nodes in together.values()]


def _at_a_tie(nodes: str, rows: Array, comparison: Comparison) -> Iterator[str]:
    kinds = {Status.KINK_OK: "KINK-OK", Status.FAIL: "not a subgradient", Status.JUMP: "jump",
             Status.NONDERIVATIVE: "nonderivative", Status.DOMAIN: "domain"}  # fmt: skip
    rows = rows[[row in comparison.slopes for row in rows.tolist()]]
    for status, word in kinds.items():
        told = (comparison.status[rows] == status) & np.isfinite(comparison.theoretical[rows])
        if told.any():
            slopes = "" if status in (Status.JUMP, Status.DOMAIN) else _slopes(comparison, rows, told)
            yield f"{counted(int(told.sum()), 'entry')} at a tie of {nodes}: {word}{slopes}"


def _slopes(comparison: Comparison, rows: Array, told: Array) -> str:
    """The slopes and the gradient, where these are the same for all entries."""
    sides = np.stack([comparison.slopes[row] for row in rows.tolist()], axis=1)
    numbers = np.stack([*sides, comparison.theoretical[rows]])[:, told]
    first = numbers[:, 0]
    if (np.abs(numbers - first[:, None]) > 1e-6 * np.abs(first).max()).any():
        return ""
    left, right, gradient = (
        f"{number:.6g}" for number in np.where(np.abs(first) > 1e-9 * np.abs(first).max(), first, 0)
    )
    return f", slopes {left} and {right} from the two sides, gradient {gradient}"
