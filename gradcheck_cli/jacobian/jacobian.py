"""The two Jacobians of y with respect to x: theoretical by the rules, numerical by probes on the forward run.

Both have TensorFlow's orientation `(x_size, y_size)`: a row for each entry of x, a column for each entry of y.  A
complex x or y counts as twice as many reals, in blocks: all real parts, then all imaginary parts.  Rows of a numerical
Jacobian come with their error bounds; where x has colors, the reals of one color move together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from typing import TypeVar

import numpy as np
from msgspec import Struct

from gradcheck_cli.autodiff.backward import gradients
from gradcheck_cli.autodiff.tape import Tape, Var
from gradcheck_cli.engine.chunks import Budget, Decisions, StackResult, any_of, in_chunks
from gradcheck_cli.engine.program import Program
from gradcheck_cli.engine.rounding import ROUNDINGS, RandomRounding, Rounding
from gradcheck_cli.graph import Array, is_inexact
from gradcheck_cli.jacobian.coloring import Coloring, line_parts
from gradcheck_cli.jacobian.directions import (
    Directions,
    Joined,
    Room,
    bytes_each,
    enough,
    flat,
    flat_stack,
    reach,
    reals,
    soon,
    taken,
    unit_cotangents,
    wanted_room,
)
from gradcheck_cli.op.boxes import Stack
from gradcheck_cli.verdict.differences import (
    CENTRAL,
    CHEAP_RUNGS,
    Estimate,
    Stencil,
    extremes,
    richardson,
    rungs,
    two_steps,
)
from gradcheck_cli.verdict.rule import Ground, Grounds, Nonzeros, epsilon


class Rows(Struct, frozen=True):
    """Some rows of a numerical Jacobian.

    `estimate` has shape `(rows, y_size)`; `crossed` names the steps of the tape at which even the smallest
    perturbation of a row crossed a branch: step -> `(rows,)`.
    """

    estimate: Estimate
    crossed: dict[int, Array]

    @staticmethod
    def joined(parts: Iterable[Rows], count: int) -> Rows:
        """Several as one, of so many rows; no two of them have to exist at once."""
        start, crossed, whole = 0, dict[int, Array](), list[Array]()
        for part in parts:
            rows = slice(start, start + len(part.estimate.value))
            if rows.stop - start == count:
                return part
            whole = whole or [np.empty((count, part.estimate.value.shape[1])) for _ in range(3)]
            for all_, some in zip(whole, _parts(part.estimate), strict=True):
                all_[rows] = some
            for step, changed in part.crossed.items():
                crossed.setdefault(step, np.zeros(count, bool))[rows] = changed
            start = rows.stop
        return Rows(Estimate(*whole), crossed)

    def replaced(self, at: Array, by: Rows) -> Rows:
        """The rows with others in their places `at`."""
        parts = [np.array(part) for part in _parts(self.estimate)]
        for part, new in zip(parts, _parts(by.estimate), strict=True):
            part[at] = new
        crossed = {step: np.zeros(len(parts[0]), bool) for step in {*self.crossed, *by.crossed}}
        for step, changed in crossed.items():
            changed[:] = self.crossed.get(step, False)
            changed[at] = by.crossed.get(step, False)
        return Rows(Estimate(*parts), crossed)

    def bettered(self, at: Array, by: Rows) -> Rows:
        """The rows with those in places `at` replaced by others, entry by entry, where these have the smaller error."""
        better = by.estimate.error < self.estimate.error[at]
        pairs = zip(_parts(self.estimate), _parts(by.estimate), strict=True)
        mixed = [np.where(better, new, old[at]) for old, new in pairs]
        return self.replaced(at, Rows(Estimate(*mixed), by.crossed))


def _parts(estimate: Estimate) -> tuple[Array, ...]:
    """Value, error and rounding, each of the shape of the value."""
    return tuple(
        np.broadcast_to(part, estimate.value.shape) for part in (estimate.value, estimate.error, estimate.rounding)
    )


T = TypeVar("T")
EPS = float(np.finfo(np.float64).eps)
ROUNDED_RUNS = 4  # runs that measure rounding
_TOGETHER = 16 << 20  # bytes that they may take as one stack


class Backward:
    """The derivative of y by several tensors, put on the tape once and run for stacks of cotangents."""

    def __init__(self, tape: Tape, y: str, xs: Sequence[str]) -> None:
        self.tape, self.y, self.xs = tape, y, tuple(xs)
        self.seed = tape.hold(tape.fresh(f"{y}/seed"), np.ones_like(tape.values[y]))
        before = len(tape.steps)
        self.cts = self._pulled()
        self.program = Program(tape, [self.seed.name], [ct.name for ct in self.cts if ct is not None])
        self._rules = tape.steps[before:]

    def _pulled(self) -> Sequence[Var | None]:
        """The cotangents of all xs, put on the tape."""
        return gradients(self.tape, {self.y: self.seed}, self.xs)

    def jacobians(self, budget: Budget, rounding: int | None = None) -> list[Array]:
        """Theoretical Jacobians `(x_size, y_size)` by each x; zeros where y does not depend on it.

        `rounding` as in `along`.
        """
        columns = reals(self.seed.value)
        found = [np.zeros((reals(self.tape.values[x]), columns)) for x in self.xs]
        for piece, every in self._chunks(None, budget, rounding):
            for jacobian, cotangents in zip(found, every(), strict=True):
                jacobian[:, piece.start : piece.stop] = cotangents.T  # in the order of what it is held against
        return found

    def spreads(self, theoretical: Sequence[Array], budget: Budget, some: Sequence[range] | None = None) -> list[Array]:
        """Distances that the entries of all `jacobians`, or of some of their rows, move if every result on the way is
        moved by some roundings."""
        found = [np.zeros(jacobian.shape) for jacobian in theoretical]
        wanted = [slice(None)] * len(found) if some is None else [slice(rows.start, rows.stop) for rows in some]
        for seed in range(ROUNDED_RUNS):
            for piece, every in self._chunks(None, budget, seed):
                for spread, jacobian, rows, cotangents in zip(found, theoretical, wanted, every(), strict=True):
                    part = spread[:, piece.start : piece.stop]
                    moved = np.abs(cotangents[:, rows].T - jacobian[:, piece.start : piece.stop])
                    np.fmax(part, moved, out=part)
        return found

    def rows(self, some: Sequence[range], budget: Budget) -> tuple[list[Array], list[Ground]]:
        """Some rows of the Jacobian by each x, and the ground of the whole one for these rows."""
        columns, sizes = reals(self.seed.value), [np.abs(flat(self.tape.values[x])) for x in self.xs]
        found = [np.zeros((len(rows), columns)) for rows in some]
        grounds = [Grounds(size, columns) for size in sizes]
        for piece, every in self._chunks(None, budget):
            for jacobian, ground, rows, cotangents in zip(found, grounds, some, every(), strict=True):
                jacobian[:, piece.start : piece.stop] = cotangents[:, rows.start : rows.stop].T
                ground.add(cotangents.T, cotangents.T, slice(piece.start, piece.stop))
        return found, [ground.found.of(np.asarray(rows, np.int64)) for ground, rows in zip(grounds, some, strict=True)]

    def along(self, weights: Array, budget: Budget, rounding: int | None = None) -> list[Array]:
        """Cotangents `(P, x_size)` of each x for weighted sums of y: `weights` are `(P, y_size)`.

        With a seed `rounding` every result on the way is moved by some roundings.
        """
        found = [np.zeros((len(weights), reals(self.tape.values[x]))) for x in self.xs]
        for piece, every in self._chunks(weights, budget, rounding):
            for total, cotangents in zip(found, every(), strict=True):
                total[piece.start : piece.stop] = cotangents
        return found

    def pieces(self, weights: Array, budget: Budget) -> Iterable[tuple[range, Callable[[], list[Array]]]]:
        """The same for some of the weights at a time, as they come: nothing is kept."""
        return self._chunks(weights, budget)

    def at_ones(self) -> list[Array]:
        """Cotangents `(x_size,)` of each x for a y that is weighed by ones, as the tape computed them, without stacks."""
        return [self._nothing(x, range(1))[0] if ct is None else derivatives(ct.value[None])[0]
                for ct, x in zip(self.cts, self.xs, strict=True)]  # fmt: skip

    def cotangents(self, weights: Array) -> Array:
        """Cotangents `(P, *shape)` of y for weighted sums of its reals `(P, y_size)`."""
        return _as_cotangent(weights, self.seed.value)

    def reduced(
        self, weights: Array, reduce: Callable[[int, Array], Array], budget: Budget, rounding: int | None = None
    ) -> list[Array]:
        """Results of `reduce` for the cotangents `(p, x_size)` of each x, piece by piece: `(P, ...)`; see `along`."""
        found: list[list[Array]] = [[reduce(i, self._nothing(x, range(0)))] for i, x in enumerate(self.xs)]
        for _, every in self._chunks(weights, budget, rounding):
            for i, (made, cotangents) in enumerate(zip(found, every(), strict=True)):
                made.append(reduce(i, cotangents))
        whole = [np.concatenate(made) for made in found]
        return [np.zeros((len(weights), *each.shape[1:])) if len(each) < len(weights) else each for each in whole]

    def _chunks(
        self, weights: Array | None, budget: Budget, rounding: int | None = None
    ) -> Iterable[tuple[range, Callable[[], list[Array]]]]:
        """Cotangents of every x, piece by piece, for weighted sums of y or, without weights, each of its reals."""
        names = [None if ct is None else ct.name for ct in self.cts]
        if not any(names) or not self.seed.size:
            return ()
        count = reals(self.seed.value) if weights is None else len(weights)
        size, room = self.program.bytes_per_probe(), None
        if (
            weights is None
            and (wanted := wanted_room(self.program, self.seed.value, count, size, budget))
            and self.silent
        ):
            ends = sum(reals(self.tape.values[n]) for n in self.program.outputs)
            size, room = bytes_each(size, reach(self.program).entries + ends), wanted

        program = self.program if rounding is None else self._rounded(rounding)
        parts = line_parts(program, count, linear=True) if rounding is None else ()

        def run(piece: range) -> list[Array]:
            seeds = self._seeds(weights, piece, room)
            random = None if rounding is None else RandomRounding.seeded(rounding)
            made = iter(program.run({self.seed.name: seeds}, rounding=random, parts=parts).outputs)
            return [
                self._nothing(x, piece) if n is None else derivatives(next(made))
                for n, x in zip(names, self.xs, strict=True)
            ]

        return _probed(self.program, run, count, size, room, budget)

    @cached_property
    def _local(self) -> Program:
        """The steps by which rules compute with values of the model alone: minors of a matrix, the slope of a tanh."""
        made = {n: step for step in self._rules for n in step.node.outputs if n}
        read = {
            n for _, step in self.program.steps for n in step.operands if n in made and n not in self.program.reached
        }
        wanted = [n for n in read if is_inexact(self.tape.values.like(n).dtype)]
        given = {n: None for step in self._rules for n in step.operands if n and n not in made and n != self.seed.name}
        return Program(self.tape, [n for n in given if is_inexact(self.tape.values.like(n).dtype)], sorted(wanted))

    def _rounded(self, seed: int) -> Program:
        """The program at values of the rules that are moved by some roundings: those of the model both sides share."""
        local, values = self._local, self.tape.values
        if not local.outputs or not local.probes:
            return self.program
        given = {n: values[n][None] for n in local.probes}
        made = local.run(given, branches=True, rounding=RandomRounding.seeded([seed, 7]))
        if made.any_crossed(1).any():  # a rule that decides otherwise is another rule
            return self.program
        moved = {n: y[0].astype(values[n].dtype) for n, y in zip(local.outputs, made.outputs, strict=True)}
        return self.program.upon(at_values(self.tape, moved))

    def _seeds(self, weights: Array | None, piece: range, room: Room | None) -> Stack:
        """Cotangents of y for some of the weights, or some of its reals."""
        if room is not None:
            return unit_cotangents(self.seed.value, np.asarray(piece), room)
        if weights is not None:
            return self.cotangents(weights[piece.start : piece.stop])
        unit = np.zeros((len(piece), reals(self.seed.value)))
        unit[np.arange(len(piece)), list(piece)] = 1
        return self.cotangents(unit)

    @cached_property
    def silent(self) -> bool:
        """All on the way is zero where the cotangent of y is: rules may do what they like with it."""
        reached = [n for n in self.program.reached if n and n != self.seed.name]
        nothing = Program(self.tape, [self.seed.name], reached).run({self.seed.name: np.zeros((1, *self.seed.shape))})
        return not any(value.any() for value in nothing.outputs)

    def _nothing(self, x: str, piece: range) -> Array:
        return np.zeros((len(piece), reals(self.tape.values[x])))


def at_values(tape: Tape, values: dict[str, Array]) -> Tape:
    """The tape with other values of some tensors."""
    part = Tape(tape.ops, dtype=tape.dtype, seed=tape.seed)
    part.steps, part.guards, part.values = tape.steps, tape.guards, tape.values.copy()
    part.values.update(values)
    return part


def _probed(
    program: Program, run: Callable[[range], T], count: int, size: int, room: Room | None, budget: Budget
) -> Iterator[tuple[range, Callable[[], T]]]:
    """Results of `run`, which runs a program for some of `count` probes of `size` bytes, piece by piece."""
    foreign = any(step.trial is not None for _, step in program.steps)  # whose threads may not outlive a fork
    tally = None if foreign else program.evaluations
    return in_chunks(run, count, size, budget, enough(program, room), soon(program, room), tally)


def _as_cotangent(weights: Array, like: Array) -> Array:
    """Cotangents of y that weigh its reals: 1 picks a real part out, -i an imaginary one."""
    if like.dtype.kind == "c":
        weights = weights[:, : like.size] - 1j * weights[:, like.size :]
    return weights.reshape(len(weights), *like.shape).astype(like.dtype, copy=False)


def by_complex_step(program: Program, directions: Directions, budget: Budget, rounding: int | None = None) -> Array:
    """Derivatives of y along directions of x, `(rows, y_size)`, by the complex step: exact to rounding.

    With a seed `rounding` every result on the way is moved by 16 roundings, up or down.
    """
    (x,), (y,) = program.probes, program.outputs
    here = program.tape.values[x]
    found = np.zeros((directions.count, reals(program.tape.values[y])))
    moving = None if directions.entries(range(0)) is None else taken(program)
    if moving is not None and not (some := moving[directions.rows]).all():
        few = directions.part(np.flatnonzero(some))
        found[some] = by_complex_step(program, few, budget, rounding) if few.count else 0.0
        return found

    def run(piece: range) -> Array:
        random = None if rounding is None else RandomRounding.seeded(rounding)
        return program.jvp({x: directions.tangents(piece, here, room)}, random, parts=parts)[0]

    parts = line_parts(program, directions.count) if rounding is None else ()
    size, room = directions.room(program, budget, doubled=2)
    if directions.count and (moving is None or room is None):
        program.staged([x], parts=parts)  # once, and not by each process that is forked
    for piece, tangent in _probed(program, run, directions.count, size, room, budget):
        found[piece.start : piece.stop] = flat_stack(tangent())
    return found


def by_differences(
    program: Program, directions: Directions, stencil: Stencil, steps: Iterable[Array], budget: Budget
) -> Iterator[tuple[Array, dict[int, Array]]]:
    """Difference quotients `(rows, y_size)` for each of several `steps` (rows,), and at which steps of the tape branches
    were crossed."""
    steps = list(steps)
    seen = each_beside(program, [(directions, offset * h) for h in steps for offset in stencil.offsets], budget)
    for h in steps:
        total: Array | float = 0.0
        crossed: dict[int, Array] = {}
        for weight, (values, decisions) in zip(stencil.weights, seen):  # noqa: B905  (of seen there is more)
            with np.errstate(invalid="ignore"):  # infinity less infinity
                total = total + weight * values
            for step, change in decisions.crossed.items():
                crossed[step] = crossed.get(step, False) | change
        yield total / h[:, None], crossed


def each_beside(
    program: Program, moves: Sequence[tuple[Directions, Array]], budget: Budget
) -> Iterator[tuple[Array, Decisions]]:
    """y at x + offsets (rows,) along directions, `(rows, y_size)`, and all decisions on the way.

    Several directions with their offsets are run as one stack where they are few probes.
    """
    counts = [directions.count for directions, _ in moves]
    if len(moves) < 2 or sum(counts) > budget.chunk(program.bytes_per_probe()):
        yield from (_beside(program, directions, offsets, budget) for directions, offsets in moves)
        return
    together = Joined([directions for directions, _ in moves])
    values, decisions = _beside(program, together, np.concatenate([offsets for _, offsets in moves]), budget)
    for start, stop in pairwise(np.cumsum([0, *counts])):
        yield values[start:stop], decisions.part(slice(start, stop))


def _beside(program: Program, directions: Directions, offsets: Array, budget: Budget) -> tuple[Array, Decisions]:
    (x,), (y,) = program.probes, program.outputs
    here = program.tape.values[x]
    real = np.result_type(program.tape.values[y].real.dtype, np.float64)  # longer numbers stay as long
    found, decisions = np.zeros((directions.count, reals(program.tape.values[y])), real), []

    def run(piece: range) -> StackResult:
        moved = directions.beside(piece, here, offsets[piece.start : piece.stop], room)
        return program.run({x: moved}, branches=True)

    size, room = directions.room(program, budget)
    for piece, made in _probed(program, run, directions.count, size, room, budget):
        outcome = made()
        found[piece.start : piece.stop] = flat_stack(outcome.outputs[0])
        decisions.append(outcome.decisions)
    return found, Decisions.joined(decisions)


def by_ladder(program: Program, directions: Directions, ks: Sequence[int], noise: Array, budget: Budget) -> Rows:
    """Rows by Richardson's extrapolation of central differences over rungs `ks` of the ladder."""
    return by_steps(program, directions, np.stack([directions.representable(h) for h in rungs(ks)]), noise, budget)


def by_steps(program: Program, directions: Directions, steps: Array, noise: Array, budget: Budget) -> Rows:
    """The same with steps `(K, rows)`, from coarse to fine."""

    def run(piece: range) -> Rows:
        part = directions if len(piece) == directions.count else directions.part(np.asarray(piece))
        some = steps[:, piece.start : piece.stop]
        quotients, crossed = zip(*by_differences(program, part, CENTRAL, some, budget), strict=True)
        return Rows(richardson(np.stack(quotients), some, noise, smooth_rungs(crossed, part.count)), crossed[-1])

    if not directions.count:  # of nothing there is still a shape
        return run(range(0))
    size, room = directions.room(program, budget)
    made = _probed(program, run, directions.count, size, room, budget)
    return Rows.joined((rows() for _, rows in made), directions.count)


def smooth_rungs(crossed: Sequence[dict[int, Array]], count: int) -> Array:
    """Rungs, from coarse to fine, at which neither a probe nor any finer one crossed a branch, `(K, count)`."""
    changed = np.stack([any_of(by_step, count) for by_step in crossed])
    return np.asarray(~np.logical_or.accumulate(changed[::-1], axis=0)[::-1])


def forward_noise(program: Program) -> Array:
    """Rounding error of y in one forward run, `(y_size,)`: how far y moves when every result moves by one rounding."""
    y = flat(program.y)
    with np.errstate(invalid="ignore"):
        spread = np.max(np.abs(moved_by_rounding(program) - y), axis=0, initial=0.0)
    return np.maximum(np.where(np.isfinite(spread), spread, 0) / ROUNDINGS, own_rounding(program))


def moved_by_rounding(program: Program, seed: int = 0, mode: Rounding = Rounding.BY_PROBE) -> Array:
    """y of some runs in which every result moves by `ROUNDINGS`, `(runs, y_size)`; `mode` says whose they are.

    Runs in which that changes a decision of the model tell nothing of rounding.
    """
    here = {x: program.tape.values[x][None] for x in program.probes}
    size = ROUNDED_RUNS if ROUNDED_RUNS * program.bytes_per_probe() <= _TOGETHER else 1
    values = np.zeros((0, reals(program.y)))
    for i in range(0, ROUNDED_RUNS, size):
        random = RandomRounding.seeded(*([seed, n] for n in range(i, i + size)), mode=mode)
        stacks = {name: np.repeat(x, size, axis=0) for name, x in here.items()}
        moved = program.run(stacks, branches=True, rounding=random)
        values = np.concatenate([values, flat_stack(moved.outputs[0])[~moved.any_crossed(size)]])
    return values


def own_rounding(program: Program) -> Array:
    """One rounding of y itself, `(y_size,)`."""
    y = program.y
    return np.asarray(epsilon(y.dtype) * np.abs(flat_stack(y[None])[0]))


def derivatives(ct: Array) -> Array:
    """Derivatives by the reals of x, `(P, x_size)`: Re g by real parts, -Im g by imaginary ones."""
    rows = ct.reshape(ct.shape[0], -1)
    return np.concatenate([rows.real, -rows.imag], axis=1) if ct.dtype.kind == "c" else rows


def default_steps(directions: Directions, stencil: Stencil, delta: float | None) -> Array:
    """Steps of a difference formula: as given, or those that balance truncation and rounding by the scale of x."""
    return directions.representable(EPS ** (1 / (stencil.order + 1))) if delta is None else directions.fixed(delta)


def by_stencil(
    program: Program,
    directions: Directions,
    stencil: Stencil,
    delta: float | None,
    noise: Array,
    budget: Budget,
) -> Rows:
    """Rows by one difference formula, its error read off a second run with twice the step.

    delta None: `default_steps`.
    """
    steps = default_steps(directions, stencil, delta)
    (fine, crossed), (coarse, _) = by_differences(program, directions, stencil, [steps, 2 * steps], budget)
    weight = sum(abs(w) for w in stencil.weights)
    return Rows(two_steps(coarse, fine, stencil.order, weight * noise / steps[:, None]), crossed)


_APART = 1e100  # sizes of entries that one probe can hold
_SEEN = 1e-7  # of what the rows add up to: a missing entry of less is not seen
_TRIFLE = 2.0**-90  # of the largest entry: the square of a complex step
_ROUNDED = 64.0  # by how much more than some roundings a sum may be off


class Colored(Directions):
    """All reals of x, one a row, and their colors: whether they `served`, or turned out `miscolored`, which is a bug."""

    def __init__(self, here: Array, coloring: Coloring) -> None:
        super().__init__(here, range(len(coloring.colors)))
        self.coloring, self.served, self.miscolored = coloring, False, False


class _Groups(Directions):
    """One direction for each color: all of its reals, each by a length of its own."""

    def __init__(self, rows: Colored, lengths: Array) -> None:
        super().__init__(np.zeros(0), range(rows.coloring.count))
        self.here, self.colors, self.lengths = rows.here, rows.coloring.colors, lengths

    def entries(self, piece: range) -> None:
        """Several reals move in one direction."""

    def block(self, piece: range) -> Array:
        """Some of the directions, `(len(piece), x_size)`."""
        directions = np.zeros((len(piece), self.here.size))
        mine = np.flatnonzero((self.colors >= piece.start) & (self.colors < piece.stop))
        directions[self.colors[mine] - piece.start, mine] = self.lengths[mine]
        return directions


def grouped_complex_step(program: Program, rows: Colored, budget: Budget, cells: Nonzeros | None) -> Array | None:
    """As `by_complex_step`, or `cells` of it alone; None where groups cannot serve."""
    answers, coloring = by_complex_step(program, _Groups(rows, np.ones(rows.count)), budget), rows.coloring
    entries = coloring.entries(answers)
    if not _serves(program, rows, entries, np.zeros(1), budget):
        return None
    return coloring.whole(entries) if cells is None else cells.filled(entries)


def grouped_ladder(program: Program, rows: Colored, ks: Sequence[int], noise: Array, budget: Budget) -> Rows | None:
    """As `by_ladder`; of a group that crosses a branch every row counts as one that does."""
    coloring, steps = rows.coloring, np.stack([rows.representable(h) for h in rungs(ks)])
    taken = list(_differences(program, rows, CENTRAL, steps, budget))
    smooth = smooth_rungs([crossed for _, crossed in taken], coloring.count)[:, coloring.colors]
    own = coloring.row
    quotients = np.stack([coloring.entries(made) for made, _ in taken]) / steps[:, own]
    found = richardson(quotients[..., None], steps[:, own], noise[coloring.column, None], smooth[:, own])
    nothing = richardson(np.zeros((*steps.shape, 1)), steps, np.ones(1), np.ones(steps.shape, bool))
    if not _serves(program, rows, found.value[:, 0], found.error[:, 0], budget):
        return None
    return Rows(
        Estimate(
            coloring.whole(found.value[:, 0]),
            coloring.whole(found.error[:, 0], nothing.error * noise),
            coloring.whole(found.rounding[:, 0], nothing.rounding * noise),
        ),
        {step: changed[coloring.colors] for step, changed in taken[-1][1].items()},
    )


def grouped_stencil(
    program: Program, rows: Colored, stencil: Stencil, delta: float | None, noise: Array, budget: Budget
) -> Rows | None:
    """As `by_stencil`; of a group that crosses a branch every row counts as one that does."""
    coloring, steps = rows.coloring, default_steps(rows, stencil, delta)
    (fine, crossed), (coarse, _) = _differences(program, rows, stencil, [steps, 2 * steps], budget)
    own, weight = coloring.row, sum(abs(w) for w in stencil.weights)
    rough, near = coloring.entries(coarse) / (2 * steps[own]), coloring.entries(fine) / steps[own]
    found = two_steps(rough, near, stencil.order, weight * noise[coloring.column] / steps[own])
    changed = {step: groups[coloring.colors] for step, groups in crossed.items()}
    lost = any_of(changed, rows.count)[own]
    if not _serves(program, rows, found.value, np.where(lost, np.inf, found.error), budget):
        return None
    rho = weight * noise / steps[:, None]
    parts = (coloring.whole(found.value), coloring.whole(found.error, rho), coloring.whole(found.rounding, rho))
    return Rows(Estimate(*parts), changed)


def crossed_by(program: Program, rows: Directions, steps: Array, budget: Budget) -> dict[int, Array]:
    """Rows that cross a branch at some step of the tape when they move there and back by `steps`: step -> `(rows,)`."""
    some = np.arange(rows.count)
    if isinstance(rows, Colored):
        [(_, by_color)] = _differences(program, rows, CENTRAL, [steps], budget)
        some = np.flatnonzero(any_of(by_color, rows.coloring.count)[rows.coloring.colors])
        if not len(some):
            return {}
    part = rows.part(some) if isinstance(rows, Colored) else rows
    [(_, crossed)] = by_differences(program, part, CENTRAL, [steps[some]], budget)
    found = {step: np.zeros(rows.count, bool) for step in crossed}
    for step, changed in crossed.items():
        found[step][some] = changed
    return found


def _serves(program: Program, rows: Colored, entries: Array, errors: Array, budget: Budget) -> bool:
    """The sizes of entries are such that none is lost beside others in one probe, and the colors hold."""
    smallest, largest = extremes(entries)
    if largest > _APART * smallest:
        return False
    rows.served = _adds_up(program, rows, entries, errors, _TRIFLE * largest, budget)
    rows.miscolored = not rows.served
    return rows.served


def _adds_up(program: Program, rows: Colored, entries: Array, errors: Array, trifle: float, budget: Budget) -> bool:
    """Along a random direction y changes by the sum of the rows: no entry lies outside of the pattern.

    `errors` bound those of the entries, and less than `trifle` is none; where all that is seen is rounding, nothing
    speaks against them.
    """
    v, coloring = np.random.default_rng(0).normal(size=rows.count), rows.coloring
    along = Directions(program.x, v[None])
    if program.analytic:
        direct, bound = by_complex_step(program, along, budget)[0], np.zeros(1)
    else:
        found = by_ladder(program, along, CHEAP_RUNGS, forward_noise(program), budget).estimate
        direct, bound = found.value[0], found.error[0]
    with np.errstate(invalid="ignore", over="ignore"):
        gap = np.abs(direct - coloring.along(entries, v))
        accepted = trifle + 8 * bound + coloring.along(entries, _SEEN * np.abs(v), sized=True)
        if errors.any():
            accepted += coloring.along(np.broadcast_to(errors, entries.shape), 8 * np.abs(v))
        wrong = gap > accepted
    if wrong.any() and program.analytic:
        moved = [by_complex_step(program, along, budget, rounding)[0] for rounding in range(ROUNDED_RUNS)]
        wrong &= gap > _ROUNDED * np.fmax.reduce([np.abs(each - direct) for each in moved])
    return not wrong.any()


def _differences(
    program: Program, rows: Colored, stencil: Stencil, steps: Iterable[Array], budget: Budget
) -> Iterator[tuple[Array, dict[int, Array]]]:
    """Differences of y, not yet divided by steps, and the branches crossed, for each color and each of the steps."""
    one = np.ones(rows.coloring.count)
    for h in steps:
        yield from by_differences(program, _Groups(rows, h), stencil, [one], budget)
