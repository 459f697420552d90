"""Directions along which y is smooth at a point where decisions are tied: what is tied moves together, the rest anyhow.

At a tie a gradient is one of many, entry by entry, but not all of them together: along a direction that keeps every tie
y has a derivative, and each of these gradients has to give it.  At each tied step of a tape operands of equal value are
what is tied, and those that are tied to something that does not move must not move.  Random directions of the xs are
combined such that, at every such step, all of that holds.

Slopes of a single side: how y goes on from x in one direction, on the piece of the model that begins right there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gradcheck_cli.autodiff.tape import Step
from gradcheck_cli.engine.chunks import Budget, Decisions, in_chunks
from gradcheck_cli.engine.program import Program
from gradcheck_cli.engine.rounding import RandomRounding
from gradcheck_cli.graph import Array, is_inexact
from gradcheck_cli.jacobian.directions import Directions, flat, flat_stack, reals, shaped
from gradcheck_cli.jacobian.jacobian import beside
from gradcheck_cli.verdict.differences import ALL_RUNGS, Estimate, richardson, rms, rungs, scales

TIE = 2.0**-36  # how far from x its other side begins, in units of the scale of x


@dataclass(frozen=True, slots=True)
class Slopes:
    """Slopes of y along some directions on one side of x, and what the model decides right behind x there.

    `guarded` are rows in which control flow would go another way: what was measured is not the model's.
    """

    estimate: Estimate
    decisions: Decisions
    crossed: dict[int, Array]
    guarded: Array


def one_sided(program: Program, directions: Directions, side: float, noise: Array, budget: Budget) -> Slopes:
    """Slopes on the `side` (1 or -1) of x, by extrapolation of differences over steps that stay on the first piece."""
    steps = np.stack([directions.representable(h, side) for h in (*rungs(ALL_RUNGS), TIE)])
    x = program.tape.values[program.probes[0]]
    here = flat_stack(program.run({program.probes[0]: x[None]}).outputs[0])
    ahead = [beside(program, directions, side * h, budget) for h in steps]
    _, crossed, decisions = ahead[-1]
    with np.errstate(invalid="ignore"):
        quotients = np.stack(
            [side * (values - here) / h[:, None] for (values, _, _), h in zip(ahead, steps, strict=True)]
        )
    alike = np.stack([kind.kind == decisions.kind for _, _, kind in ahead])
    valid = np.logical_and.accumulate(alike[::-1], axis=0)[::-1]  # and so are all nearer ones
    estimate = richardson(quotients[:-1], steps[:-1], noise, valid[:-1], order=1)
    return Slopes(estimate, decisions, crossed, _guarded(program, crossed, directions.count))


def _guarded(program: Program, crossed: dict[int, Array], count: int) -> Array:
    """Rows in which a value changes that control flow reads, or which cannot be run at all."""
    steps, guards = program.tape.steps, set(program.tape.guards)
    read = [rows for step, rows in crossed.items() if step < 0 or guards.intersection(steps[step].node.outputs)]
    return np.logical_or.reduce([np.zeros(count, bool), *read])


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

    `weighed` ones are in units of the sizes of x.  Of none there may be no direction but that of what is not tied.
    """
    rng = np.random.default_rng([seed, 11])
    steps = _tied_steps(program, rng, budget)
    if not steps:
        return None
    sizes = _sizes(program, weighed)
    for number in _TRIED:
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
    return {name: _evened(program, name, v) for name, v in zip(kept, np.split(mixed, stops, axis=1), strict=True)}


def _tied_steps(program: Program, rng: np.random.Generator, budget: Budget) -> tuple[int, ...]:
    """Steps whose decisions change when all xs move by next to nothing."""
    values = program.tape.values
    sizes = {name: reals(values[name]) for name in program.probes}
    moves = {n: rng.uniform(0.5, 1.5, (_LOOKS, k)) * rng.choice([-1.0, 1.0], (_LOOKS, k)) for n, k in sizes.items()}
    both = {n: np.concatenate([v, -v]) * TIE * scales(flat(values[n])) for n, v in moves.items()}
    found: set[int] = set()
    for outcome in _each_run(program, both, budget):
        found.update(outcome)
    return tuple(sorted(found))


def _each_run(program: Program, offsets: Moves, budget: Budget) -> Iterator[Sequence[int]]:
    values = program.tape.values

    def run(piece: range) -> Sequence[int]:
        some = slice(piece.start, piece.stop)
        moved = {n: shaped((flat(values[n]) + v[some]).astype(flat(values[n]).dtype), values[n])
                 for n, v in offsets.items()}  # fmt: skip
        return [step for step, rows in program.run(moved, branches=True).crossed.items() if rows.any()]

    count = len(next(iter(offsets.values())))
    yield from (made() for _, made in in_chunks(run, count, program.bytes_per_probe(), budget, program.worth))


def _tried(program: Program, count: int, rng: np.random.Generator, alike: bool) -> dict[str, Array]:
    """Random directions; `alike` ones move entries of equal value alike, whichever x they belong to."""
    values = {name: flat(program.tape.values[name]) for name in program.probes}
    if not alike:
        return {name: rng.normal(size=(count, x.size)) for name, x in values.items()}
    every, place = np.unique(np.concatenate(list(values.values())), return_inverse=True)
    drawn, stops = rng.normal(size=(count, every.size)), np.cumsum([x.size for x in values.values()])[:-1]
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


def slopes_along(program: Program, moves: Moves, budget: Budget, rounding: int | None = None) -> Array:
    """Derivatives of y along directions of all xs of a program, `(P, y_size)`; `rounding` as for a complex step."""
    return _along(program, moves, budget, rounding)[0]


def _evened(program: Program, name: str, moves: Array) -> Array:
    """Directions in which what is equal moves equally to the last digit: ties are kept as by exact numbers."""
    values = flat(program.tape.values[name])
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    place = place.reshape(-1)
    typical = np.max(np.abs(moves), axis=1, keepdims=True, initial=0.0)
    moves = np.where(np.abs(moves) <= _SAME * typical, 0.0, moves)
    for one in np.flatnonzero(count > 1)[:_HALVED]:
        some = np.flatnonzero(place == one)
        part = moves[:, some]
        same = (np.ptp(part, axis=1) <= _DEPENDENT * typical[:, 0])[:, None]
        moves[:, some] = np.where(same, part[:, :1], part)
    return moves
