"""One node on its own: its rule against its own forward kernel, at the values that it had in the run.

The steps of the node and the values they read are put on a tape of their own: steps that its rule adds are dropped with
it, and errors of other nodes have no effect.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Literal

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from gradcheck_cli.autodiff.backward import pull_back
from gradcheck_cli.autodiff.symbolic import reshape, slice
from gradcheck_cli.autodiff.tape import Tape, Unit, Var
from gradcheck_cli.compare.kinks import decides
from gradcheck_cli.compare.pair import GivenDirections, PairJob, Theory
from gradcheck_cli.compare.ties import DIRECTIONS, REST, keeping_ties, misfit
from gradcheck_cli.engine.chunks import Budget
from gradcheck_cli.engine.program import Program
from gradcheck_cli.errors import GradcheckError, LimitError
from gradcheck_cli.graph import Array, is_inexact
from gradcheck_cli.jacobian.cost import forward_work
from gradcheck_cli.jacobian.directions import Directions, flat, gaussian, reals
from gradcheck_cli.jacobian.jacobian import EPS, ROUNDED_RUNS, Backward, by_complex_step, by_differences
from gradcheck_cli.op.batching import elementwise
from gradcheck_cli.verdict.differences import BACKWARD, CENTRAL, FORWARD, Stencil, scales
from gradcheck_cli.verdict.rule import (
    PASSED,
    Comparison,
    Status,
    Tolerance,
    allowance,
    ground_of,
    largest_by_column,
    magnitude,
    screened,
)

SMALL = 4096  # entries of a Jacobian that is compared as a whole
TOLERANCE = Tolerance(rtol=1e-9, negligible=1e-12)  # of one node: strict, since errors grow on the way to y
_PROJECTIONS, FEWEST = 4, 2  # random directions of each side of a larger one, and the fewest
_NUMBERS = 1e7  # entries of all directions of one side together, at most
_TIE, _SIDE, _NEAR = 2.0**-36, 2.0**-20, 2.0**-24  # steps, in units of the scale of x: to find ties, to measure slopes
SMALL_ENTRY = 1e-2  # of the largest entry of a column: the least size that errors are relative to
_SAFETY = 4.0  # factor on the rounding that a few runs show
_AT_TIES = 16  # entries at a tie that are compared one by one
_THIRD = 2.0**-190  # third-order term of the complex step: below its square, and below any slope
_BEYOND = 2.0**60  # ratio to the next smaller entry from which the larger ones are probed apart
_TO_EDGE = 2.0**-10, 2.0**-30, 2.0**-50  # steps, in units of the scale of x, along which an infinite slope grows
_STEEPER, _GROWN = 8.0, 2.0  # growth from the first step, and from the second, up to which a slope is finite
_NONFINITE = 8  # entries without a finite cotangent that are compared one by one
# those that a wrong rule may raise
FAULTS = (GradcheckError, ValueError, TypeError, LookupError, ArithmeticError, AttributeError, RuntimeError)


class Local(Struct, frozen=True):
    """Result for one unit: its rule is right or wrong, or that is open.

    For a wrong one, `compared` is the comparison of the operand with the worst cotangent, or `reason` the error of the
    rule.
    """

    unit: Unit
    status: Literal["right", "wrong", "open"]
    compared: Compared | None = None
    reason: str = ""
    errors: tuple[float, float] = (0.0, 0.0)  # the largest ones, absolute and relative

    @property
    def gap(self) -> float:
        """The largest relative error of a wrong unit."""
        return np.inf if self.compared is None else self.compared.gap


class Compared(Struct, frozen=True):
    """The comparison of one operand of a unit alone.

    directions  of the operand, one for each row of the comparison
    weights     of the outputs, one for each column; None: the columns are the entries of the outputs
    """

    alone: Alone
    operand: str
    directions: Directions
    weights: Array | None
    comparison: Comparison
    tied: str = ""  # fault along directions that keep the ties of all operands

    @property
    def status(self) -> Literal["right", "wrong", "open"]:
        """Wrong if any entry is; right if none is, and either all pass or some passing slope is not zero."""
        if self.comparison.count(Status.FAIL):
            return "wrong"
        if self.comparison.clean:
            return "right"
        passed = np.isin(self.comparison.status, PASSED)
        slopes = magnitude(self.comparison.theoretical, self.comparison.numerical)[passed]
        return "right" if passed.all() or slopes.any() else "open"

    @property
    def gap(self) -> float:
        """The largest relative error of all failures, infinite where the rule gives NaN or infinity."""
        failed = self.comparison.status == Status.FAIL
        given, right = self.comparison.theoretical[failed], self.comparison.numerical[failed]
        size = np.maximum(np.abs(given), np.abs(right))
        ratio = np.where(size > 0, np.abs(given - right) / size, 0.0)
        return float(np.max(np.where(np.isfinite(ratio), ratio, np.inf), initial=0.0))


def check_unit(
    tape: Tape,
    unit: Unit,
    operands: Sequence[str],
    outputs: Sequence[str],
    seed: int,
    budget: Budget,
    flowing: Callable[[Sequence[str]], Array | None] = lambda outputs: None,
) -> Local:
    """A unit's rule against its forward kernel: some operands by some outputs, of one dtype each.

    flowing  called if the rule is wrong: the reals of the outputs that get a cotangent in the model, `(m,)`; None: all
    """
    if unit.op.vjp is None:
        return Local(unit, "open")
    try:
        alone = Alone(tape, unit, operands, outputs, budget)
    except FAULTS as error:
        if isinstance(error, LimitError):  # of time or memory: no fault of the rule
            raise
        return Local(unit, "wrong", reason=f"its rule cannot be run: {error}")
    found = [_compared(alone, position, seed) for position in range(len(alone.operands))]
    if any(each.status == "wrong" for each in found):
        live = flowing(alone.outputs)
        found = [_settled(each, seed, live) if each.status == "wrong" else each for each in found]
    wrong = [each for each in found if each.status == "wrong"]
    if wrong:
        return Local(unit, "wrong", max(wrong, key=lambda each: each.gap))
    if (astray := _together(_of_all_operands(tape, alone), seed)) is not None:
        return Local(unit, "wrong", astray)
    seen = [told(each.comparison, TOLERANCE) for each in found]
    largest = max((e[0] for e in seen), default=0.0), max((e[1] for e in seen), default=0.0)
    return Local(unit, "open" if any(each.status == "open" for each in found) else "right", errors=largest)


def told(comparison: Comparison, tolerance: Tolerance) -> tuple[float, float]:
    """The largest absolute and relative error, except those that rounding explains."""
    given, right = comparison.theoretical, comparison.numerical
    with np.errstate(invalid="ignore"):
        gap, size, ground = np.abs(given - right), magnitude(given, right), comparison.ground.at()
        beyond = gap > allowance(size, ground, tolerance)
    counted = (comparison.status == Status.FAIL) | (np.isin(comparison.status, PASSED) & ~beyond)
    gap = np.where(counted, np.where(np.isfinite(gap), gap, np.inf), 0.0)
    relative = gap / np.where(size > 0, np.maximum(size, SMALL_ENTRY * ground), 1.0)
    return float(np.max(gap, initial=0.0)), float(np.max(relative, initial=0.0))


def _compared(alone: Alone, position: int, seed: int) -> Compared:
    """One operand: every entry of a small Jacobian, random projections of a large one."""
    operand = alone.operands[position]
    if alone.rows(operand) * alone.columns <= SMALL:
        found = _entries(alone, position)
        if found.status == "wrong":
            return found
        rounded = _projections(alone, position, seed)  # unit cotangents hide rounding by a rule
        return rounded if rounded is not None and rounded.status == "wrong" else found
    summed = _projections(alone, position, seed)
    return summed if summed is not None else _unusual(alone, position, seed)


def _entries(alone: Alone, position: int) -> Compared:
    operand = alone.operands[position]
    directions = Directions(alone.tape.values[operand], range(alone.rows(operand)))
    theory = Theory(alone.jacobians[position], lambda: alone.spreads[position], backward=alone.backward)
    return _judged(alone, operand, directions, theory, None)


def _projections(
    alone: Alone, position: int, seed: int, live: Array | None = None, known: Array | None = None
) -> Compared | None:
    """Random projections; None where some cotangents are not finite, so that sums say nothing.

    live  reals of the outputs that count, `(m,)`; known  those of the operand, `(n,)`, if not all of them do
    """
    operand, m = alone.operands[position], alone.columns
    x, rng = alone.tape.values[operand], np.random.default_rng([seed, *alone.unit.steps])
    v = _directions(rng, flat(x))
    weights = gaussian(rng, _count(m), m)
    weights = np.where(_finite(alone) if live is None else live, weights, 0.0)
    v = v if known is None else v * known
    theory = _theory(alone, position, v, weights, known)
    if not np.isfinite(theory.values).all():
        return None
    found = _judged(alone, operand, Directions(x, v), theory, weights)
    if found.status != "wrong" and known is None and (usual := _in_proportion(flat(x))) is not None:
        beside = _projections(alone, position, seed, live, usual)
        found = beside if beside is not None and beside.status == "wrong" else found
    program = alone.programs[operand]
    if found.status == "right" or program.obstacle is not None or not len(tied := _tied(program, alone.budget)):
        return found
    weights[:, tied] = 0
    beside = _beside_ties(alone, operand, Directions(x, v), _theory(alone, position, v, weights), weights)
    return beside if beside.status == "wrong" else _at_ties(alone, position, tied[:_AT_TIES]) or beside


def _in_proportion(here: Array) -> Array | None:
    """Entries that are not beyond all proportion to the rest, as a mask of -inf or -1e38 is; None if all are alike.

    A step in proportion to those would be none for them and far too large for the others.
    """
    size = np.abs(here)
    largest = size.max(initial=0.0)
    if largest < np.inf and largest / _BEYOND <= size.min(where=size > 0, initial=np.inf):
        return None
    sizes = np.unique(size[(size > 0) & np.isfinite(size)])
    with np.errstate(over="ignore"):
        gaps = np.flatnonzero(sizes[1:] / sizes[:-1] > _BEYOND)
    usual = size <= (sizes[gaps[0]] if len(gaps) else np.finfo(float).max)
    return None if usual.all() or not usual.any() else usual


def _unusual(alone: Alone, position: int, seed: int) -> Compared:
    """The comparison of some entries for which the rule gives NaN or infinity."""
    operand, m = alone.operands[position], alone.columns
    weights = np.where(_finite(alone), np.random.default_rng(seed).normal(size=(1, m)), 0.0)
    [values] = alone.backward.along(weights, alone.budget)[position]
    lost = np.flatnonzero(~np.isfinite(values))
    rows = lost[np.unique(np.linspace(0, len(lost) - 1, _NONFINITE).astype(int))]
    theory = Theory(values[rows, None], lambda: np.zeros((len(rows), 1)))
    return _judged(alone, operand, Directions(alone.tape.values[operand], rows), theory, weights)


def _finite(alone: Alone) -> Array:
    """Reals of the outputs that are finite, `(m,)`; the others have no slope."""
    return np.isfinite(flat(alone.tape.values[alone.y]))


def _settled(found: Compared, seed: int, live: Array | None) -> Compared:
    """A wrong operand, without failures that do not matter in the model or are no fault of the rule.

    Outputs without a cotangent do not matter.  A cotangent of NaN or infinity is no fault where the forward kernel has
    no finite slope either, such as 1 / 0 at the edge of its domain; the model may cut it off before.
    """
    alone, position = found.alone, found.alone.operands.index(found.operand)
    live = _finite(alone) if live is None else live & _finite(alone)
    if found.directions.single:
        found = _without_edges(found, live)
        if found.weights is None or found.status == "wrong":
            return found
        known = np.isfinite(alone.backward.along(np.where(live, 1.0, 0.0)[None], alone.budget)[position][0])
        return _projections(alone, position, seed, live, known) or found
    if found.status == "wrong" and not live.all():
        return _projections(alone, position, seed, live) or found
    return found


def _without_edges(found: Compared, live: Array) -> Compared:
    """A comparison by single entries, without those failures."""
    failed = found.comparison.status == Status.FAIL
    lost = failed & ~np.isfinite(found.comparison.theoretical)
    rows = np.flatnonzero(lost.any(axis=1))
    beside = failed & ~live if found.weights is None else np.zeros_like(failed)
    if len(rows):
        beside[rows] |= lost[rows] & ~_blamed(found, rows, live)
    status = np.where(beside, np.int8(Status.DOMAIN), found.comparison.status)
    return replace(found, comparison=replace(found.comparison, status=status))


def _blamed(found: Compared, rows: Array, live: Array) -> Array:
    """Rows of a comparison by single entries at which the rule must give a number: `(rows, columns)`.

    An infinite slope makes NaN of what it is multiplied with, cotangents of zero as well: an entry that does not move
    an output may be NaN because of another output, but not where all outputs have a slope.
    """
    alone, theory = found.alone, found.comparison.theoretical[rows]
    ended, moves = _slopes(found, found.directions.rows[rows])
    if alone.unit.op.batching is elementwise and alone.rows(found.operand) == alone.columns:
        moves = found.directions.rows[rows][:, None] == np.arange(alone.columns)
    sound = live & ended & (moves | ended.all(axis=1, keepdims=True))
    if found.weights is None:
        return np.asarray(sound | (live & ended & np.isinf(theory)))
    endless = ~ended & _finite(alone)
    return np.asarray(sound.any(axis=1, keepdims=True) & ~endless.any(axis=1, keepdims=True))


def _slopes(found: Compared, rows: Array) -> tuple[Array, Array]:
    """Outputs that have slopes from both sides by some entries of an operand, and those that move: `(rows, m)` each."""
    program, part = found.alone.programs[found.operand], Directions(found.alone.tape.values[found.operand], rows)
    here = np.abs(flat(program.y))
    ended, moves = np.ones((len(rows), len(here)), bool), np.zeros((len(rows), len(here)), bool)
    for stencil in (FORWARD, BACKWARD):
        slopes = []
        for step in _TO_EDGE:
            steps = part.representable(step)
            slope = np.abs(next(by_differences(program, part, stencil, [steps], found.alone.budget))[0])
            with np.errstate(invalid="ignore", over="ignore"):
                rounding = 16 * EPS * here / np.abs(steps)[:, None]
                moves |= slope > rounding
            slopes.append((slope, rounding))
        (far, _), (near, _), (fine, rounding) = slopes
        coarse = np.where(np.isfinite(far), far, near)  # the far step may leave the domain of a finite slope
        with np.errstate(invalid="ignore", over="ignore"):
            bounded = (fine <= _STEEPER * coarse + rounding) | (fine <= _GROWN * near + rounding)
        ended &= np.isfinite(fine) & bounded
    return ended, moves


def _theory(alone: Alone, position: int, v: Array, weights: Array, known: Array | None = None) -> Theory:
    def projected(rounding: int | None = None) -> Array:
        cotangents = alone.backward.along(weights, alone.budget, rounding)[position]
        return np.asarray(v @ (cotangents if known is None else np.where(known, cotangents, 0.0)).T)

    values = projected()
    moved = lambda: np.fmax.reduce([np.abs(projected(seed) - values) for seed in range(ROUNDED_RUNS)])  # noqa: E731
    return Theory(values, moved, backward=alone.backward if known is None else None)


def _judged(alone: Alone, operand: str, directions: Directions, theory: Theory, weights: Array | None) -> Compared:
    """The comparison: the complex step alone where it agrees with the rule, else the full procedure of a pair."""
    program = alone.programs[operand]
    if program.obstacle is None and theory.values.size:
        value = by_complex_step(program, directions, alone.budget)
        value = value if weights is None else value @ weights.T
        ground = ground_of(theory.values, value, directions.sizes)
        status = screened(theory.values, value, 4 * EPS, alone.tolerance, ground)
        if not status.any():
            found = Comparison(theory.values, value, value * 0, status, known=ground)
            return Compared(alone, operand, directions, weights, found)
    elif not theory.values.size:
        nothing = Comparison(theory.values, theory.values, theory.values, np.zeros(theory.values.shape, np.int8))
        return Compared(alone, operand, directions, weights, nothing)
    job = PairJob("auto", None, alone.tolerance, alone.budget)
    found = GivenDirections(theory, directions, weights).compare(program, 0, job).comparison
    return Compared(alone, operand, directions, weights, _above_rounding(found, alone.unit.op.batching is elementwise))


def _above_rounding(comparison: Comparison, alone: bool) -> Comparison:
    """A comparison without failures that no method can tell from zero.

    Two kinds: roundings of the node's largest slope where a kernel sums entries that cancel, which no error bound sees
    (`alone`: the kernel does not sum); and the third-order term of the complex step, where all lower ones are zero.
    """
    gap = np.abs(comparison.theoretical - comparison.numerical)
    largest = np.max(magnitude(comparison.theoretical, comparison.numerical), initial=0.0)
    tiny = (comparison.status == Status.FAIL) & (gap <= (_THIRD if alone else max(_THIRD, 64 * EPS * largest)))
    return replace(comparison, status=np.where(tiny, Status.NOISE, comparison.status).astype(np.int8))


def _beside_ties(alone: Alone, operand: str, directions: Directions, theory: Theory, weights: Array) -> Compared:
    """The comparison by the complex step alone, which crosses no branch; `weights` leave out entries at ties."""
    program = alone.programs[operand]
    value = by_complex_step(program, directions, alone.budget) @ weights.T
    moved = [by_complex_step(program, directions, alone.budget, seed) @ weights.T for seed in range(ROUNDED_RUNS)]
    blur = _SAFETY * (np.fmax.reduce([np.abs(each - value) for each in moved]) + theory.spread())
    largest = largest_by_column(theory.values, value)
    beyond = np.abs(theory.values - value) > allowance(magnitude(theory.values, value), largest, TOLERANCE) + blur
    status = np.where(beyond, Status.FAIL, Status.PASS).astype(np.int8)
    return Compared(alone, operand, directions, weights, Comparison(theory.values, value, blur, status))


def _at_ties(alone: Alone, position: int, tied: Array) -> Compared | None:
    """Some entries at a tie, each against the slopes from both sides; None where none of them is wrong."""
    operand, m = alone.operands[position], alone.columns
    weights = np.zeros((len(tied), m))
    weights[np.arange(len(tied)), tied] = 1
    flows = alone.backward.along(weights, alone.budget)[position]
    same = alone.rows(operand) == m
    rows = tied if same else np.unique(np.asarray([i for flow in flows for i in np.flatnonzero(flow)[:1]], np.int64))
    if not len(rows):  # all cotangents are zero: `_together` decides
        return None
    theory = Theory(flows[:, rows].T, lambda: np.zeros((len(rows), len(tied))))
    found = _judged(alone, operand, Directions(alone.tape.values[operand], rows), theory, weights)
    return found if found.status == "wrong" else None


def _of_all_operands(tape: Tape, alone: Alone) -> Alone:
    """A unit with every operand that its rule gives a cotangent, since ties may be between any of them."""
    names = tuple(dict.fromkeys(n for n in alone.unit.operands if n and is_inexact(tape.values[n].dtype)))
    if not decides(alone.programs[alone.operands[0]]) or {*names} <= {*alone.operands}:
        return alone
    try:
        every = Alone(tape, alone.unit, names, alone.outputs, alone.budget)
        given = tuple(n for n, ct in zip(names, every.backward.cts, strict=True) if ct is not None)
        return every if given == names else Alone(tape, alone.unit, given, alone.outputs, alone.budget)
    except FAULTS:
        return alone


def _together(alone: Alone, seed: int) -> Compared | None:
    """All operands along directions that keep the ties between them; None where nothing is tied, or nothing wrong."""
    program, m = Program(alone.tape, alone.operands, [alone.y]), alone.columns
    tied = keeping_ties(program, DIRECTIONS, seed, alone.budget) if decides(program) else None
    if tied is None or not tied.count or not m:
        return None
    rng = np.random.default_rng([seed, *alone.unit.steps])
    weights = np.eye(m) if m <= DIRECTIONS else rng.normal(size=(_PROJECTIONS, m))

    flows = alone.backward.along(weights, alone.budget)

    def given(flows: Sequence[Array]) -> Array:
        return np.asarray(sum(tied.moves[name] @ ct.T for name, ct in zip(alone.operands, flows, strict=True)))

    values = given(flows)
    if not np.isfinite(values).all():  # single entries decide
        return None
    moved = [given(alone.backward.along(weights, alone.budget, number)) for number in range(ROUNDED_RUNS)]
    rest = sum(np.abs(tied.moves[name]) @ np.abs(ct).T for name, ct in zip(alone.operands, flows, strict=True))
    spread = _SAFETY * np.fmax.reduce([np.abs(each - values) for each in moved]) + REST * rest
    found = misfit(program, tied, values, spread, TOLERANCE, alone.budget, weights)
    if not found.wrong.any():
        return None
    status = np.where(found.wrong, Status.FAIL, Status.PASS).astype(np.int8)
    operand = alone.operands[0]
    directions = Directions(alone.tape.values[operand], np.asarray(tied.moves[operand]))
    worst = np.unravel_index(int(np.argmax(np.where(found.wrong, np.abs(found.exact), -1.0))), found.wrong.shape)
    times = f"{values[worst] / found.exact[worst] + 0.0:.4g} times" if found.exact[worst] else "not"
    said = f"along directions that keep the ties is {times} the derivative"
    return Compared(alone, operand, directions, weights, Comparison(values, found.exact, spread, status), said)


def _directions(rng: np.random.Generator, here: Array) -> Array:
    """Random directions, every other one in units of each entry's own size."""
    count = _count(here.size)
    v = gaussian(rng, count, here.size)
    size = scales(here)
    if here.size and np.isfinite(size).all() and size.max() < 1e100:
        v[1::2] *= size / max(float(np.sqrt(np.mean(size * size))), np.finfo(float).tiny)
    return v


def _count(size: int) -> int:
    return int(np.clip(_NUMBERS // max(size, 1), FEWEST, _PROJECTIONS))


def _tied(program: Program, budget: Budget) -> Array:
    """Entries of the outputs at a tie of the node, where the slopes from both sides differ."""
    x = program.x
    size = scales(flat(x))
    rng = np.random.default_rng(0)
    moves = Directions(x, rng.uniform(0.5, 1.5, (2, size.size)) * rng.choice([-1.0, 1.0], (2, size.size)) * size)

    def slopes(stencil: Stencil, h: float) -> Array:
        return next(by_differences(program, moves, stencil, [np.full(2, h)], budget))[0]

    if not next(by_differences(program, moves, CENTRAL, [np.full(2, _TIE)], budget))[1]:
        return np.zeros(0, np.int64)
    up, down = slopes(FORWARD, _SIDE), slopes(BACKWARD, _SIDE)
    bend = np.abs(up - slopes(FORWARD, _NEAR)) + np.abs(down - slopes(BACKWARD, _NEAR))
    rounding = 16 * EPS * np.abs(flat(program.y)) / _NEAR
    smooth = np.abs(up - down) <= 1e-3 * np.maximum(np.abs(up), np.abs(down)) + 2 * bend + rounding
    return np.flatnonzero(~smooth.all(axis=0))


class Alone:
    """A unit on a tape of its own: `y` are the requested outputs concatenated, `backward` is its rule."""

    def __init__(self, tape: Tape, unit: Unit, operands: Sequence[str], outputs: Sequence[str], budget: Budget) -> None:
        self.unit, self.operands, self.outputs, self.budget = unit, tuple(operands), tuple(outputs), budget
        self.tape = part_of(tape, unit.steps, (*unit.operands, *unit.outputs))
        self.tape.regions = [replace(unit, steps=range(len(unit.steps)))] if len(unit.steps) > 1 else []
        self.y = _joined(self.tape, self.outputs)
        self.programs = {name: Program(self.tape, [name], [self.y]) for name in self.operands}
        self.backward = _Rule(self.tape, unit, self.y, self.outputs, self.operands)

    @cached_property
    def jacobians(self) -> list[Array]:
        """Theoretical Jacobians `(x_size, y_size)` by each operand."""
        return self.backward.jacobians(self.budget)

    @cached_property
    def spreads(self) -> list[Array]:
        """Bounds of the rounding errors of their entries."""
        return self.backward.spreads(self.jacobians, self.budget)

    @property
    def tolerance(self) -> Tolerance:
        """The tolerance of one node, which is the usual one for kernels from elsewhere."""
        return Tolerance() if any(step.trial is not None for step in self.tape.steps) else TOLERANCE

    @property
    def columns(self) -> int:
        """Number of reals of the outputs."""
        return reals(self.tape.values[self.y])

    def rows(self, operand: str) -> int:
        """Number of reals of an operand."""
        return reals(self.tape.values[operand])

    def work(self, operand: str) -> float:
        """Operations of one run."""
        return forward_work(self.programs[operand])


class _Rule(Backward):
    """A unit's rule as a backward pass: from a cotangent of its outputs to those of its operands."""

    def __init__(self, tape: Tape, unit: Unit, y: str, outputs: Sequence[str], operands: Sequence[str]) -> None:
        self.unit, self.outputs = unit, outputs
        super().__init__(tape, y, operands)

    def _pulled(self) -> list[Var | None]:
        cts = _divided(self.seed, self.outputs) if self.outputs != (self.y,) else {self.y: self.seed}
        found: dict[str, Var] = {}
        for name, ct in pull_back(self.tape, self.unit, [cts.get(n) for n in self.unit.outputs], self.xs):
            found[name] = found[name] + ct if name in found else ct
        return [found.get(name) for name in self.xs]


def pulled(tape: Tape, unit: Unit, given: Mapping[str, Array]) -> list[tuple[str, Array]] | None:
    """Cotangents of a unit's operands from those of its outputs; None where its rule cannot be run."""
    alone = part_of(tape, unit.steps, (*unit.operands, *unit.outputs))
    cts = [alone.hold(alone.fresh(f"{n}/ct"), given[n]) if n in given else None for n in unit.outputs]
    try:
        return [(name, flow.value) for name, flow in pull_back(alone, unit, cts)]
    except FAULTS:
        return None


def part_of(tape: Tape, steps: range, names: Sequence[str] = ()) -> Tape:
    """A tape with some of the steps, the values that they read and make, and the tensors in `names`."""
    part = Tape(tape.ops, dtype=tape.dtype, seed=tape.seed)
    part.steps = tape.steps[steps.start : steps.stop]
    part.regions = tape.regions[:] if len(steps) == len(tape.steps) else []
    made = {n for step in part.steps for n in step.node.outputs}
    operands = {n for region in part.regions for n in region.operands if n}  # some may be read by no step
    wanted = {*names, *made, *operands, *(n for step in part.steps for n in step.node.inputs)}
    part.values = tape.values.part(wanted)
    part.fixed.update(part.values.recipes)
    part.guards = [n for n in tape.guards if n in made]
    return part


def _joined(tape: Tape, outputs: Sequence[str]) -> str:
    """Name of one tensor with all entries of the outputs."""
    if len(outputs) == 1:
        return outputs[0]
    parts = [reshape(tape.var(name), (tape.values[name].size,)) for name in outputs]
    return tape.apply("Concat", *parts, axis=0).name


def _divided(seed: Var, outputs: Sequence[str]) -> dict[str, Var]:
    """The cotangent of each output, as slices of the joint one."""
    cts, start = {}, 0
    for name in outputs:
        like = seed.tape.values[name]
        cts[name] = reshape(slice(seed, (start,), (start + like.size,), (0,)), like.shape)
        start += like.size
    return cts
