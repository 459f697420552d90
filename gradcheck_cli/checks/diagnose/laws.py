"""Checks without differences: laws that hold for every gradient, whatever the function is.

A pull-back is linear in the cotangent, so that zero gives zeros; a probe does not depend on those that run beside it;
two identical runs give the same; <u, J v> is <J^T u, v>; an operator declared to have no derivative does not move
smoothly. Each costs a few probes.  The rounding error of a law is measured: every result on the way is moved by some
roundings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial

import numpy as np
from msgspec import Struct

from gradcheck_cli.autodiff.backward import Course, Descended, inexact, pull_back, unit_of, units_between
from gradcheck_cli.autodiff.tape import Tape, Unit
from gradcheck_cli.compare.audit import all_tame, is_tame
from gradcheck_cli.engine.chunks import Budget, StackResult
from gradcheck_cli.engine.program import Program
from gradcheck_cli.engine.rounding import RandomRounding
from gradcheck_cli.errors import GradcheckError
from gradcheck_cli.graph import Array, is_inexact
from gradcheck_cli.jacobian.columns import Theory
from gradcheck_cli.jacobian.directions import Directions, flat, flat_stack, reals, shaped
from gradcheck_cli.jacobian.jacobian import ROUNDED_RUNS, Backward, by_ladder, forward_noise
from gradcheck_cli.op import zero
from gradcheck_cli.verdict.differences import ALL_RUNGS, blocks, scales
from gradcheck_cli.verdict.rule import NEGLIGIBLE, UNDERFLOW, Comparison, Status, Tolerance, apart, epsilon

WRONG, NONDETERMINISTIC = "GC101", "GC106"
_SAFETY = 4.0  # factor on the rounding that a few runs show
_COMBINED = np.array([0.0, -2.0, 1.0])  # combination of cotangents 0, u, 2 u - 3 that gives -3
NEARBY = 2.0**-6  # distance to another point, in units of the scale of x, mostly on the same piece
_ALONE = 2  # columns of a Jacobian that are computed again, each alone
_KEPT = 1 << 20  # bytes of the cotangents of an x that are kept in any case
_STACKED = 1 << 28  # bytes of those of all xs: more are not computed beside one another
_NEAR = (2.0**-20, 2.0**-26)  # perturbations at which slopes of smooth results agree
_BESIDE = "a probe's result depends on the probes beside it"


class Broken(Struct, frozen=True):
    """A law that does not hold: the code of the failure, a sentence, and the unit that broke it if known."""

    code: str
    law: str
    unit: Unit | None = None


class Combined(Struct):
    """Cotangents of one x for `weights`, added up as they come, so that none has to be kept.

    total    their combination, which is -3 times the cotangents for ones; `off` is the largest distance from that
    adds     the cotangent of zero is not zero
    largest  the largest entry of all
    by_u     J^T u, where it is kept
    """

    total: Array
    keeps: bool
    adds: bool = False
    largest: float = 0.0
    off: float = 0.0
    by_u: Array | None = None

    def add(self, turns: range, rows: Array) -> None:
        """The cotangents `(p, x_size)` for some of the weights, of which the first is zero and the second u."""
        with np.errstate(invalid="ignore"):  # infinity less infinity
            self.total += _COMBINED[turns.start : turns.stop] @ rows
        self.largest = max(self.largest, _largest(rows))
        if 0 in turns:
            self.adds = _largest(rows[0]) > 0
        if 1 in turns and self.keeps:
            self.by_u = rows[1 - turns.start].copy()

    def end(self, ones: Array) -> None:
        """All have come; `ones` are the cotangents for ones."""
        self.off, self.total = _largest(self.total, ones), np.zeros(0)


class Laws:
    """The laws of one backward pass, and of the forward runs from each of its xs to y.

    `theories` are the theoretical Jacobians, where all columns were computed; `some` are the rows of them that were.
    `anew` is another pass from the same y, for which all rules were applied once more.
    """

    def __init__(
        self,
        backward: Backward,
        theories: Sequence[Theory],
        seed: int,
        budget: Budget,
        anew: Descended | None = None,
        some: Sequence[range] | None = None,
    ) -> None:
        self.backward, self.theories, self.budget = backward, theories, budget
        self.some = [range(reals(backward.tape.values[x])) for x in backward.xs] if some is None else some
        self.anew = anew if backward.seed.dtype.kind == "f" else None
        self.position, self.tolerance = 0, Tolerance()  # of the current x
        self._tried = set[tuple[float, ...]]()  # steps that kept the laws of forward runs, with the operands that moved
        self.rng, count = np.random.default_rng([seed, 2]), reals(backward.seed.value)
        self.ones = (np.arange(count) < backward.seed.size).astype(np.float64)
        self.u = self.rng.normal(size=count) if self.anew is None else flat(self.anew.start)
        self.weights = np.stack([np.zeros(count), self.u, 2 * self.u - 3 * self.ones])
        self.chosen = self.rng.permutation(count)[:_ALONE] if count > 1 else np.zeros(0, int)

    def broken(self, position: int, program: Program, comparison: Comparison, tolerance: Tolerance) -> list[Broken]:
        """The laws that do not hold for one x, of the first kind that fails; `comparison` is that of its entries."""
        self.position, self.tolerance = position, tolerance
        if not comparison.size:
            return []
        tame = is_tame(flat(program.x))
        agreed = bool((comparison.status == Status.PASS).all()) and not comparison.ties
        kinds: list[Iterator[Broken]] = [
            self._repeated(position),
            self._forward(program),
            self._pull_back(position) if tame else iter(()),
            self._declared_zero(program),
            self._dot(position, program, comparison) if agreed and tame else iter(()),
        ]
        return next((found for kind in kinds if (found := list(kind))), [])

    @cached_property
    def _sums(self) -> list[Combined]:
        """The cotangents of each x for `weights`, added up."""
        xs, ends = self.backward.xs, {} if self.anew is None else self.anew.ends
        sizes = [reals(self.backward.tape.values.like(x)) for x in xs]
        found = [Combined(np.zeros(n), 8 * n <= _KEPT or bool(self.theories) or x in ends)
                 for x, n in zip(xs, sizes, strict=True)]  # fmt: skip
        count = len(self.weights)
        size = count if 8 * count * sum(sizes) <= _STACKED else 1
        for first in range(0, count, size):
            for piece, every in self.backward.pieces(self.weights[first : first + size], self.budget):
                for each, rows in zip(found, every(), strict=True):
                    each.add(range(first + piece.start, first + piece.stop), rows)
        for each, ones in zip(found, self._once, strict=True):
            each.end(ones)
        return found

    @cached_property
    def _once(self) -> list[Array]:
        return self.backward.at_ones()

    @cached_property
    def _again(self) -> list[Array]:
        """Cotangents for ones by a second backward pass, built anew; the first where memory cannot hold both."""
        backward = self.backward
        made = [backward.tape.values[n].nbytes for _, step in backward.program.steps for n in step.node.outputs if n]
        if sum(made) > self.budget.memory // 4:
            return self._once
        with backward.tape.aside():
            return Backward(backward.tape, backward.y, backward.xs).at_ones()

    @cached_property
    def _columns_alone(self) -> list[list[Array]]:
        """Columns `(1, x_size)` of every Jacobian that run alone, one list for each of `chosen`."""
        return [self.backward.along(self._unit(int(column)), self.budget) for column in self.chosen]

    def _unit(self, column: int) -> Array:
        return (np.arange(self.u.size) == column).astype(np.float64)[None]

    def _repeated(self, position: int) -> Iterator[Broken]:
        """Law: rules that are applied anew give the same."""
        end = None if self.anew is None else self.anew.ends.get(self.backward.xs[position])
        by_u = None if end is None else self._sums[position].by_u
        if end is not None and by_u is not None and end.dtype.kind == "f" and not differ(by_u, flat(end)):
            return  # the pass `anew` ends in the same cotangents, as far as rounding lets one tell
        first, second = self._once[position], self._again[position]
        if differ(first, second):
            rule, unit = self._rule("differs")
            law = f"two identical backward passes give different gradients: {rule} gives others each time"
            yield Broken(NONDETERMINISTIC, law, unit)

    def _pull_back(self, position: int) -> Iterator[Broken]:
        """Laws: zero gives zeros, sums give sums, and each cotangent of a stack gives the same as alone."""
        found = self._sums[position]
        adds, bends = found.adds, self._exceeds(found.off, found.largest) and self._bends(position)
        if adds or bends:
            mixing = self._beside(self.weights)
            rule, unit = self._rule("adds" if adds else "bends")
            if mixing is not None:
                yield Broken(WRONG, f"{_BESIDE}, from {mixing.where} on", mixing)
            elif adds:
                yield Broken(WRONG, f"a cotangent of zero does not give zero: {rule} adds something of its own", unit)
            else:
                law = "J^T (2 u - 3 w) is not 2 J^T u - 3 J^T w"
                yield Broken(WRONG, f"{rule} is not linear in the cotangent: {law}", unit)
        elif self.theories and not all(self._alone(position, turn) for turn in range(len(self.chosen))):
            mixing = self._beside(np.eye(min(self.u.size, 1 << 8), self.u.size))
            where = ": columns are others when each runs alone" if mixing is None else f", from {mixing.where} on"
            yield Broken(WRONG, f"{_BESIDE}{where}", mixing)

    def _bends(self, position: int) -> bool:
        """True if the combination of cotangents is off by more than their rounding."""
        rows = self.backward.along(self.weights, self.budget)[position]
        gap = _COMBINED @ rows + 3 * self._once[position]
        return self._beyond(gap, rows, lambda: np.abs(_COMBINED) @ self._spread(position, self.weights))

    def _alone(self, position: int, turn: int) -> bool:
        """True if a column of the Jacobian is the same when it runs alone."""
        column, rows = int(self.chosen[turn]), slice(self.some[position].start, self.some[position].stop)
        row, stacked = self._columns_alone[turn][position][0][rows], self.theories[position].column(column)
        return not self._beyond(row - stacked, row, lambda: self._spread(position, self._unit(column))[0][rows])

    def _rule(self, fault: str) -> tuple[str, Unit | None]:
        """The first rule that has a fault when applied alone, in words, and its unit."""
        tape = self.backward.tape
        for unit in self._course.onward(self.backward.xs[self.position]):
            with tape.aside():
                if fault in _faults(tape, unit, self.rng):
                    return f"the rule of {unit.where}", unit
        return "a rule", None

    def _beside(self, weights: Array) -> Unit | None:
        """The unit at which the backward pass for a stack of cotangents first differs from passes for each alone."""
        program, stack = self.backward.program, self.backward.cotangents(weights)
        return _first_difference(program, {program.probes[0]: stack}, self.budget)

    def _forward(self, program: Program) -> Iterator[Broken]:
        """Laws: two forward runs give the same, and a probe gives the same beside another one as alone.

        What another x moved in the same way before has been looked at.
        """
        rtol, atol = self.tolerance.rtol, self.tolerance.atol
        ways = {i: (i, rtol, atol, *(n in program.reached for n in step.operands)) for i, step in program.steps}
        new = [step for index, step in program.steps if ways[index] not in self._tried]
        if len(new) < len(program.steps):
            made = {id(step): _inexact(program.tape, step.node.outputs) for step in new}
            read = {n for step in new if made[id(step)] for n in step.operands}
            program = Program(
                program.tape, program.probes, [n for each in made.values() for n in each if n not in read]
            )
        if not program.outputs:
            return
        outcome = program.run(_two(program), branches=True)
        crossed = bool(outcome.any_crossed(2)[0])
        broken = list(self._ran(program, outcome, crossed))
        self._tried.update(() if broken or crossed else ways.values())
        yield from broken

    def _ran(self, program: Program, outcome: StackResult, crossed: bool) -> Iterator[Broken]:
        """The laws of the forward runs of one program, of which two probes have run."""
        here = {program.probes[0]: program.x[None]}
        for number, (name, made) in enumerate(zip(program.outputs, outcome.outputs, strict=True)):
            alone = flat(program.tape.values[name])
            first = alone if crossed else flat_stack(made)[0]
            if differ(first, alone) and (unit := _first_difference(program, here, self.budget, twice=True)) is not None:
                law = f"two identical forward runs give different results, from {unit.where} on"
                yield Broken(NONDETERMINISTIC, law, unit)
            elif self._beyond(first - alone, alone, partial(_forward_spread, program, number)):
                mixing = _first_difference(program, _two(program), self.budget)
                if mixing is not None:
                    law = f"the numerical side is wrong: {_BESIDE}, from {mixing.where} on"
                    yield Broken(WRONG, law, mixing)

    @cached_property
    def _course(self) -> Course:
        """The way from all xs to y."""
        return Course(units_between(self.backward.tape, self.backward.xs, [self.backward.y]))

    def _declared_zero(self, program: Program) -> Iterator[Broken]:
        """Law: a result declared to have no derivative does not move smoothly with any operand."""
        tape = program.tape
        ops = [*(region.op for region in tape.regions), *(step.op for _, step in program.steps)]
        if not any(op.vjp is zero for op in ops):
            return
        for unit in self._course.onward(program.probes[0]):
            if unit.op.vjp is zero and (name := _moves_smoothly(tape, unit, self.rng)):
                law = f"{unit.where} declares that it has no derivative, but it moves smoothly with {name!r}"
                yield Broken(WRONG, law, unit)

    def _dot(self, position: int, program: Program, comparison: Comparison) -> Iterator[Broken]:
        """Law: <u, J v> by tangents of the forward kernels is <J^T u, v> by the rules, within what entries leave open.

        A comparison of projections is such a test already.  Zero gradients are left out, since tangents by the complex
        step are then tiny numbers instead of zeros.
        """
        x, some = program.x, self.some[position]
        if not program.steps or not program.analytic or comparison.shape != (len(some), self.u.size):
            return
        by_u = self._sums[position].by_u
        if by_u is None or not comparison.theoretical.any():
            return
        v = np.zeros((1, reals(x)))
        v[:, some.start : some.stop] = self.rng.normal(size=(1, len(some)))

        def forth(rounding: RandomRounding | None = None) -> Array:
            return self.u * flat_stack(program.jvp({program.probes[0]: shaped(v, x)}, rounding)[0])[0]

        there, back = forth(), by_u * v[0]
        accepted = apart(comparison, np.abs(v[0, some.start : some.stop]), np.abs(self.u))
        gap = np.array([max(0.0, abs(there.sum() - back.sum()) - accepted)])
        size = np.array([np.abs(there).sum(), np.abs(back).sum()])

        def spread() -> Array:
            moved = [abs((forth(RandomRounding.seeded(seed)) - there).sum()) for seed in range(ROUNDED_RUNS)]
            return np.array([np.fmax.reduce(moved) + self._spread(position, self.u[None])[0] @ np.abs(v[0])])

        if self._beyond(gap, size, spread) and not self._lost(program, v, accepted, back.sum(), float(size[1])):
            yield Broken(WRONG, f"the dot test fails: <u, J v> is {there.sum():.6g}, <J^T u, v> is {back.sum():.6g}")

    def _lost(self, program: Program, v: Array, accepted: float, back: float, size: float) -> bool:
        """True if numbers on the way are so small that tangents underflow, and real differences do not accuse.

        `back` is <J^T u, v>, a sum of this `size`.
        """
        if all_tame(program):
            return False
        directions = Directions(program.x, v)
        seen = by_ladder(program, directions, ALL_RUNGS, forward_noise(program), self.budget).estimate
        gap = abs(float(seen.value[0] @ self.u) - back) - accepted
        return not gap > self._allowed(size) + 8 * float(seen.error[0] @ np.abs(self.u))

    def _spread(self, position: int, weights: Array) -> Array:
        """Bounds of the rounding errors of the cotangents for some weights, `(P, x_size)`."""
        base = self.backward.along(weights, self.budget)[position]
        moved = (self.backward.along(weights, self.budget, seed)[position] for seed in range(ROUNDED_RUNS))
        return np.asarray(np.fmax.reduce([np.abs(each - base) for each in moved]))

    def _beyond(self, gap: Array, like: Array, spread: Callable[[], Array]) -> bool:
        """True if a gap exceeds tolerance and rounding; NaN and infinity do not count."""
        largest = _largest(like)
        if not self._exceeds(_largest(gap), largest):
            return False
        rounding, gap = spread(), np.where(np.isfinite(gap), np.abs(gap), 0.0)
        allowed = self._allowed(largest)
        return bool((gap > allowed + _SAFETY * np.where(np.isfinite(rounding), rounding, np.inf)).any())

    def _exceeds(self, gap: float, largest: float) -> bool:
        """True if the largest gap exceeds the tolerance, as a share of the largest number that it is of."""
        return largest >= UNDERFLOW and gap > self._allowed(largest)

    def _allowed(self, largest: float) -> float:
        return self.tolerance.rtol * largest + self.tolerance.atol


def _largest(x: Array, ones: Array | None = None) -> float:
    """The largest finite size of the entries of x, or of those of x + 3 `ones`; some at a time, as they may be many."""
    x, found = x.reshape(-1), 0.0
    with np.errstate(invalid="ignore"):
        for some in blocks(x.size, 1):
            part = np.abs(x[some] if ones is None else x[some] + 3 * ones[some])
            most = np.max(part, initial=found)
            found = float(most if np.isfinite(most) else np.max(part, initial=found, where=np.isfinite(part)))
    return found


def _inexact(tape: Tape, names: Sequence[str]) -> list[str]:
    return [n for n in names if n and is_inexact(tape.values.like(n).dtype)]


def differ(first: Array, second: Array) -> bool:
    """True if two results of one computation differ by more than the order of its sums explains."""
    if first.shape != second.shape:
        return True
    one, other = first.reshape(-1), second.reshape(-1)
    allowed = NEGLIGIBLE * _largest(one)
    with np.errstate(invalid="ignore"):
        return any(bool((np.abs(one[some] - other[some]) > allowed).any()) for some in blocks(one.size, 1))


def _forward_spread(program: Program, number: int) -> Array:
    """Bounds of the rounding error of an output, `(size,)`."""
    here = {program.probes[0]: program.x[None]}
    base, *moved = (
        flat_stack(program.run(here, rounding=random).outputs[number])[0]
        for random in (None, *map(RandomRounding.seeded, range(ROUNDED_RUNS)))
    )
    return np.asarray(np.fmax.reduce([np.abs(each - base) for each in moved]))


def _two(program: Program) -> dict[str, Array]:
    """Two probes: x, and x moved a little."""
    x = program.x
    moved = x + NEARBY * scales(np.abs(x)) * np.random.default_rng(0).normal(size=x.shape)
    return {program.probes[0]: np.stack([x, moved.astype(x.dtype)])}


def _first_difference(
    program: Program, stacks: dict[str, Array], budget: Budget, *, twice: bool = False
) -> Unit | None:
    """The step at which a run of a stack first differs from runs of its probes alone, or from a second run."""
    tape, count = program.tape, len(next(iter(stacks.values())))
    made = [
        (n, unit_of(step, index))
        for index, step in program.steps
        for n in step.node.outputs
        if n and is_inexact(tape.values[n].dtype)
    ]
    if 2 * count * sum(tape.values[n].nbytes for n, _ in made) > budget.memory:
        made = [(n, unit) for n, unit in made if n in program.outputs]
    every = Program(tape, program.probes, [n for n, _ in made])
    first = every.run(stacks).outputs
    parts = [stacks] if twice else [{n: s[i : i + 1] for n, s in stacks.items()} for i in range(count)]
    second = [np.concatenate(each) for each in zip(*(every.run(part).outputs for part in parts), strict=True)]
    pairs = zip(made, first, second, strict=True)
    return next((unit for (_, unit), one, other in pairs if differ(one, other)), None)


def _faults(tape: Tape, unit: Unit, rng: np.random.Generator) -> set[str]:
    """Faults of a rule that is applied alone to random cotangents: differs, adds, bends."""
    outputs = [tape.var(n) if n in tape.values and inexact(tape.var(n)) else None for n in unit.outputs]
    random = [None if y is None else rng.normal(size=y.shape) for y in outputs]

    def given(u: float, ones: float) -> list[Array]:
        cts = [None if y is None or r is None else tape.hold(tape.fresh("ct"), (u * r + ones).astype(y.dtype))
               for y, r in zip(outputs, random, strict=True)]  # fmt: skip
        return [ct.value for _, ct in pull_back(tape, unit, cts)]

    try:
        none, ones, first, again, both = (given(*w) for w in ((0, 0), (0, 1), (1, 0), (1, 0), (2, -3)))
    except (GradcheckError, ValueError, TypeError, IndexError):
        return set()
    if not len(none) == len(ones) == len(first) == len(again) == len(both):
        return {"differs", "bends"}
    faults = {"differs"} if any(map(differ, first, again)) else set()
    faults |= {"adds"} if any((np.isfinite(x) & (x != 0)).any() for x in none) else set()
    sums = [(x, 2 * y - 3 * z) for x, y, z in zip(both, first, ones, strict=True)]
    return faults | ({"bends"} if any(differ(x, y) for x, y in sums) else set())


def _moves_smoothly(tape: Tape, unit: Unit, rng: np.random.Generator) -> str:
    """The operand by which a result has one slope at two distances on both sides; "" if there is none."""
    outputs = [n for n in unit.outputs if n in tape.values and inexact(tape.var(n))]
    for name in dict.fromkeys(n for n in unit.operands if n and inexact(tape.var(n)) and tape.values[n].size):
        program, here = Program(tape, [name], outputs), tape.values[name]
        along = rng.choice([-1.0, 1.0], here.shape) * scales(np.abs(here))
        offsets = np.array([s * h for h in _NEAR for s in (1.0, -1.0)])
        stack = here + offsets.reshape(-1, *(1,) * here.ndim) * along
        outcome = program.run({name: stack.astype(here.dtype)}, branches=True)
        for made, n in zip(outcome.outputs, outputs, strict=True):
            if not outcome.crossed and _is_smooth(flat_stack(made), flat(tape.values[n]), offsets):
                return name
    return ""


def _is_smooth(values: Array, here: Array, offsets: Array) -> bool:
    """True if some entry has one slope at all offsets `(P,)`, well above rounding."""
    with np.errstate(invalid="ignore"):
        slopes = (values - here) / offsets[:, None]
        seen = 1e4 * epsilon(here.dtype) * np.max(np.abs(here), initial=0.0) / np.min(np.abs(offsets))
        least, most = np.min(np.abs(slopes), axis=0), np.max(np.abs(slopes - slopes[0]), axis=0)
        return bool(((least > seen) & (most < 0.05 * least)).any())
