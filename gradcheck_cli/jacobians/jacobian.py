"""The two Jacobians of y with respect to x: theoretical by the rules, numerical by probes on the forward run.

Both have TensorFlow's orientation `(x_size, y_size)`: a row for each entry of x, a column for each entry of y.  A
complex x or y counts as twice as many reals, in blocks: all real parts, then all imaginary parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from gradcheck_cli.backward import gradients
from gradcheck_cli.graph import Array
from gradcheck_cli.jacobians.rows import Rows
from gradcheck_cli.jitter import ROUNDINGS
from gradcheck_cli.outcome import Decisions, Outcome, any_of
from gradcheck_cli.program import Program
from gradcheck_cli.stack import Budget, in_chunks
from gradcheck_cli.stencil import (
    CENTRAL,
    Stencil,
    representable,
    richardson,
    rms,
    rungs,
    scales,
    two_steps,
)
from gradcheck_cli.tape import Tape
from gradcheck_cli.verdict import epsilon

EPS = float(np.finfo(np.float64).eps)
JITTERED = 4  # runs that measure rounding


class Directions:
    """Directions in which x is probed, one a row: unit vectors of some of its reals, or given ones `(rows, x_size)`."""

    def __init__(self, here: Array, chosen: Sequence[int] | Array) -> None:
        self.here = flat(here)
        self.given = chosen if isinstance(chosen, np.ndarray) and chosen.ndim == 2 else None
        self.rows = np.arange(len(chosen)) if self.given is not None else np.asarray(chosen, np.int64)
        self.count = len(self.rows)

    def block(self, piece: range) -> Array:
        """Some of the directions, `(len(piece), x_size)`."""
        if self.given is not None:
            return self.given[piece.start : piece.stop]
        unit = np.zeros((len(piece), self.here.size))
        unit[np.arange(len(piece)), self.rows[piece.start : piece.stop]] = 1
        return unit

    def slopes(self, cotangents: Array) -> Array:
        """Derivatives along the directions, `(P, rows)`, from cotangents of x `(P, x_size)`."""
        return cotangents[:, self.rows] if self.given is None else cotangents @ self.given.T

    def part(self, rows: Array) -> Directions:
        """Some of the directions."""
        return Directions(self.here, self.rows[rows] if self.given is None else self.given[rows])

    def representable(self, h: float, side: float = 1.0) -> Array:
        """Steps h times the scale of x along each direction, (rows,); along a unit vector x + side * step is exact."""
        size = scales(self.here)
        if self.given is None:
            return self._exact(size[self.rows] * h, side)
        return np.full(self.count, h * rms(size) if size.size else h)

    def fixed(self, delta: float) -> Array:
        """The same step for every direction, (rows,), made exact along unit vectors."""
        steps = np.full(self.count, float(delta))
        return steps if self.given is not None else self._exact(steps)

    def _exact(self, steps: Array, side: float = 1.0) -> Array:
        here = self.here[self.rows]
        exact = side * representable(here, (side * steps).astype(here.dtype)).astype(np.float64)
        return np.where(exact > 0, exact, steps)


def reals(x: Array) -> int:
    """How many reals a tensor counts as."""
    return x.size * (2 if x.dtype.kind == "c" else 1)


class Backward:
    """The derivative of y by several tensors, put on the tape once and run for stacks of cotangents."""

    def __init__(self, tape: Tape, y: str, xs: Sequence[str]) -> None:
        self.tape, self.y, self.xs = tape, y, tuple(xs)
        self.seed = tape.hold(tape.fresh(f"{y}/seed"), np.ones_like(tape.values[y]))
        self.cts = gradients(tape, {y: self.seed}, xs)
        self.program = Program(tape, [self.seed.name], [ct.name for ct in self.cts if ct is not None])

    def jacobians(self, budget: Budget) -> list[Array]:
        """Theoretical Jacobians `(x_size, y_size)` by each x; zeros where y does not depend on it."""
        columns = reals(self.seed.value)
        found = [np.zeros((columns, reals(self.tape.values[x]))) for x in self.xs]
        for piece, rows in self._chunks(columns, lambda piece: _units(piece, columns), budget):
            for jacobian, cotangents in zip(found, rows, strict=True):
                jacobian[piece.start : piece.stop] = cotangents
        return [jacobian.T for jacobian in found]

    def spreads(self, theoretical: Sequence[Array], budget: Budget) -> list[Array]:
        """How far the entries of all `jacobians` move if every result on the way is moved by some roundings."""
        columns = reals(self.seed.value)
        found = [np.zeros(jacobian.shape) for jacobian in theoretical]
        for seed in range(JITTERED):
            for piece, rows in self._chunks(columns, lambda piece: _units(piece, columns), budget, seed):
                for spread, jacobian, cotangents in zip(found, theoretical, rows, strict=True):
                    part = spread[:, piece.start : piece.stop]
                    np.fmax(part, np.abs(cotangents.T - jacobian[:, piece.start : piece.stop]), out=part)
        return found

    def along(self, weights: Array, budget: Budget, jitter: int | None = None) -> list[Array]:
        """Cotangents `(P, x_size)` of each x for weighted sums of y: `weights` are `(P, y_size)`.

        With a seed `jitter` every result on the way is moved by some roundings.
        """
        found = [np.zeros((len(weights), reals(self.tape.values[x]))) for x in self.xs]
        for piece, rows in self._chunks(len(weights), lambda p: weights[p.start : p.stop], budget, jitter):
            for total, cotangents in zip(found, rows, strict=True):
                total[piece.start : piece.stop] = cotangents
        return found

    def at_ones(self) -> list[Array]:
        """Cotangents `(x_size,)` of each x for a y that is weighed by ones, as the tape computed them: without a lift."""
        return [self._nothing(x, range(1))[0] if ct is None else _derivatives(ct.value[None])[0]
                for ct, x in zip(self.cts, self.xs, strict=True)]  # fmt: skip

    def cotangents(self, weights: Array) -> Array:
        """Cotangents `(P, *shape)` of y for weighted sums of its reals `(P, y_size)`."""
        return _as_cotangent(weights, self.seed.value)

    def reduced(
        self, weights: Array, reduce: Callable[[int, Array], Array], budget: Budget, jitter: int | None = None
    ) -> list[Array]:
        """What `reduce` makes of the cotangents `(p, x_size)` of each x, piece by piece: `(P, ...)`; see `along`."""
        found: list[list[Array]] = [[reduce(i, self._nothing(x, range(0)))] for i, x in enumerate(self.xs)]
        for _, rows in self._chunks(len(weights), lambda p: weights[p.start : p.stop], budget, jitter):
            for i, (made, cotangents) in enumerate(zip(found, rows, strict=True)):
                made.append(reduce(i, cotangents))
        whole = [np.concatenate(made) for made in found]
        return [np.zeros((len(weights), *each.shape[1:])) if len(each) < len(weights) else each for each in whole]

    def _chunks(
        self, count: int, weights: Callable[[range], Array], budget: Budget, jitter: int | None = None
    ) -> Iterator[tuple[range, list[Array]]]:
        """Cotangents of every x, piece by piece."""
        names = [None if ct is None else ct.name for ct in self.cts]
        if not any(names) or not self.seed.size:
            return

        def run(piece: range) -> list[Array]:
            stack = self.cotangents(weights(piece))
            rng = None if jitter is None else np.random.default_rng(jitter)
            made = iter(self.program.run({self.seed.name: stack}, jitter=rng).outputs)
            return [
                self._nothing(x, piece) if n is None else _derivatives(next(made))
                for n, x in zip(names, self.xs, strict=True)
            ]

        yield from in_chunks(run, count, self.program.bytes_per_probe(), budget)

    def _nothing(self, x: str, piece: range) -> Array:
        return np.zeros((len(piece), reals(self.tape.values[x])))


def _units(piece: range, columns: int) -> Array:
    unit = np.zeros((len(piece), columns))
    unit[np.arange(len(piece)), list(piece)] = 1
    return unit


def _as_cotangent(weights: Array, like: Array) -> Array:
    """Cotangents of y that weigh its reals: 1 picks a real part out, -i an imaginary one."""
    if like.dtype.kind == "c":
        weights = weights[:, : like.size] - 1j * weights[:, like.size :]
    return weights.reshape(len(weights), *like.shape).astype(like.dtype, copy=False)


def by_complex_step(program: Program, directions: Directions, budget: Budget, jitter: int | None = None) -> Array:
    """Derivatives of y along directions of x, `(rows, y_size)`, by the complex step: exact to rounding.

    With a seed `jitter` every result on the way is moved by 16 roundings, up or down.
    """
    (x,), (y,) = program.probes, program.outputs
    here = program.tape.values[x]
    found = np.zeros((directions.count, reals(program.tape.values[y])))

    def run(piece: range) -> Array:
        rng = None if jitter is None else np.random.default_rng(jitter)
        return program.tangents({x: shaped(directions.block(piece), here)}, rng)[0]

    for piece, tangent in in_chunks(run, directions.count, 2 * program.bytes_per_probe(), budget):
        found[piece.start : piece.stop] = flat_stack(tangent)
    return found


def by_differences(
    program: Program, directions: Directions, stencil: Stencil, steps: Array, budget: Budget
) -> tuple[Array, dict[int, Array]]:
    """Difference quotients `(rows, y_size)` with `steps` (rows,), and at which steps of the tape branches were crossed."""
    total: Array | float = 0.0
    crossed: dict[int, Array] = {}
    for offset, weight in zip(stencil.offsets, stencil.weights, strict=True):
        values, changes, _ = beside(program, directions, offset * steps, budget)
        with np.errstate(invalid="ignore"):  # infinity less infinity
            total = total + weight * values
        for step, change in changes.items():
            crossed[step] = crossed.get(step, False) | change
    return total / steps[:, None], crossed


def beside(
    program: Program, directions: Directions, offsets: Array, budget: Budget
) -> tuple[Array, dict[int, Array], Decisions]:
    """y at x + offsets (rows,) along directions, `(rows, y_size)`, the steps crossed on the way, and all decisions."""
    (x,), (y,) = program.probes, program.outputs
    here, like = flat(program.tape.values[x]), program.tape.values[x]
    real = np.result_type(program.tape.values[y].real.dtype, np.float64)  # longer numbers stay as long
    found = np.zeros((directions.count, reals(program.tape.values[y])), real)
    crossed: dict[int, Array] = {}
    decisions = [Decisions.none(0)]

    def run(piece: range) -> Outcome:
        moved = here + offsets[piece.start : piece.stop, None] * directions.block(piece)
        return program.run({x: shaped(moved.astype(here.dtype, copy=False), like)}, branches=True)

    for piece, outcome in in_chunks(run, directions.count, program.bytes_per_probe(), budget):
        found[piece.start : piece.stop] = flat_stack(outcome.outputs[0])
        decisions.append(outcome.decisions)
        for step, change in outcome.crossed.items():
            crossed.setdefault(step, np.zeros(directions.count, bool))[piece.start : piece.stop] |= change
    return found, crossed, Decisions.joined(decisions)


def by_ladder(program: Program, directions: Directions, ks: Sequence[int], noise: Array, budget: Budget) -> Rows:
    """Rows by Richardson's extrapolation of central differences over rungs `ks` of the ladder."""
    steps = np.stack([directions.representable(h) for h in rungs(ks)])
    taken = [by_differences(program, directions, CENTRAL, h, budget) for h in steps]
    smooth = smooth_rungs([crossed for _, crossed in taken], directions.count)
    differences = np.stack([quotients for quotients, _ in taken])
    return Rows(richardson(differences, steps, noise, smooth), taken[-1][1])


def smooth_rungs(crossed: Sequence[dict[int, Array]], count: int) -> Array:
    """Rungs, from coarse to fine, at which neither a probe nor any finer one crossed a branch, `(K, count)`."""
    changed = np.stack([any_of(by_step, count) for by_step in crossed])
    return np.asarray(~np.logical_or.accumulate(changed[::-1], axis=0)[::-1])


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
    fine, crossed = by_differences(program, directions, stencil, steps, budget)
    coarse, _ = by_differences(program, directions, stencil, 2 * steps, budget)
    weight = sum(abs(w) for w in stencil.weights)
    return Rows(two_steps(coarse, fine, stencil.order, weight * noise / steps[:, None]), crossed)


def forward_noise(program: Program, seed: int = 0) -> Array:
    """Rounding error of y in one forward run, `(y_size,)`: how far y moves when every result moves by one rounding.

    Runs in which that changes a decision of the model tell nothing of rounding.
    """
    (x,) = program.probes
    here, y = program.tape.values[x], flat(program.tape.values[program.outputs[0]])
    runs = [
        program.run({x: here[None]}, branches=True, jitter=np.random.default_rng([seed, i])) for i in range(JITTERED)
    ]
    smooth = [flat_stack(run.outputs[0]) for run in runs if not run.any_crossed(1).any()]
    values = np.concatenate(smooth) if smooth else np.zeros((0, y.size))
    with np.errstate(invalid="ignore"):
        spread = np.max(np.abs(values - y), axis=0, initial=0.0)
    return np.maximum(np.where(np.isfinite(spread), spread, 0) / ROUNDINGS, own_rounding(program))


def own_rounding(program: Program) -> Array:
    """One rounding of y itself, `(y_size,)`."""
    y = program.tape.values[program.outputs[0]]
    return np.asarray(epsilon(y.dtype) * np.abs(flat_stack(y[None])[0]))


def flat(x: Array) -> Array:
    """A tensor as a vector of reals: real parts, then imaginary parts."""
    flat = x.reshape(-1)
    return np.concatenate([flat.real, flat.imag]) if x.dtype.kind == "c" else flat


def flat_stack(stack: Array) -> Array:
    flat = stack.reshape(stack.shape[0], -1) if stack.size else stack.reshape(stack.shape[0], 0)
    flat = np.concatenate([flat.real, flat.imag], axis=1) if stack.dtype.kind == "c" else flat
    return flat.astype(np.result_type(flat.dtype, np.float64), copy=False)


def shaped(stack: Array, like: Array) -> Array:
    """The inverse of `_flat_stack` for tensors like `like`."""
    if like.dtype.kind == "c":
        stack = stack[:, : like.size] + 1j * stack[:, like.size :]
    return stack.reshape(len(stack), *like.shape)


def _derivatives(ct: Array) -> Array:
    """Derivatives by the reals of x, `(P, x_size)`: Re g by real parts, -Im g by imaginary ones."""
    rows = ct.reshape(ct.shape[0], -1)
    return np.concatenate([rows.real, -rows.imag], axis=1) if ct.dtype.kind == "c" else rows
