"""Second derivatives: g = d(w . y)/dx is a tensor on the tape, and dg/dx is checked like any other derivative.

w is random by seed and fixed.  The nodes that rules have added are differentiated by the rules of their operators, and
probed by their kernels.  Three laws cover what this cannot see: nodes of a gradient hold no values of the point at which
they were made, a Hessian is symmetric, and the gradients by other tensors move with x as the rules say.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from itertools import islice
from operator import add
from typing import Any

import numpy as np

from gradcheck_cli.autodiff import symbolic as sym
from gradcheck_cli.autodiff.backward import gradients, unit_of
from gradcheck_cli.autodiff.tape import Tape, Unit, Var
from gradcheck_cli.autodiff.trace import trace
from gradcheck_cli.checks.assemble import Pair
from gradcheck_cli.checks.diagnose.laws import NEARBY, WRONG, Broken, differ
from gradcheck_cli.checks.problem import Problem, stop
from gradcheck_cli.compare.pair import Theory
from gradcheck_cli.engine.program import Program
from gradcheck_cli.errors import LimitError, MisshapenError, NoGradientError
from gradcheck_cli.graph import Array, is_inexact
from gradcheck_cli.jacobian.directions import Directions
from gradcheck_cli.jacobian.jacobian import ROUNDED_RUNS, Backward, by_ladder, forward_noise
from gradcheck_cli.op import Ops
from gradcheck_cli.points.point import Point
from gradcheck_cli.verdict.differences import ALL_RUNGS, CHEAP_RUNGS, scales
from gradcheck_cli.verdict.rule import ATOL, RTOL, Comparison, Status, Tolerance

_SAFETY = 4.0  # factor on the measured rounding of two entries
_ONE = np.ones((1, 1))  # the cotangent of a number


class SecondOrder:
    """The gradients of a check, each as the y of a pair of its own with the same x."""

    def __init__(self, ops: Ops) -> None:
        self.ops = ops
        self.pairs: dict[tuple[str, str], Pair] = {}

    def at(
        self, firsts: Sequence[Pair], problems: Mapping[str, Problem], point: Point
    ) -> Iterator[tuple[Pair, Problem]]:
        """Pairs of gradients that can be compared at a point, each with its Problem.

        `firsts` are the comparable pairs of first order, `problems` are theirs by y.
        """
        made = list(self._made(firsts, problems, point))
        for y in dict.fromkeys(pair.gradient_of for pair, _ in made):
            moving_otherwise([(pair, second) for pair, second in made if pair.gradient_of == y])
        yield from made

    def _made(
        self, firsts: Sequence[Pair], problems: Mapping[str, Problem], point: Point
    ) -> Iterator[tuple[Pair, Problem]]:
        for first in firsts:
            pair = self._beside(first)
            if pair.error is not None:
                continue
            try:
                second = gradient_problem(problems[first.y], first.x)
            except (NoGradientError, MisshapenError) as error:
                stop(pair, error, problems[first.y], first.y)
                continue
            pair.broken += kept_values(second, pair, point.feeds, self.ops)
            yield pair, second

    def with_gradients(self, firsts: Sequence[Pair]) -> Iterator[Pair]:
        """All pairs, each followed by that of its gradient, which takes over errors where nothing was compared."""
        for first in firsts:
            yield first
            pair = self._beside(first)
            if not pair.results and not pair.missed and pair.error is None:
                pair.error, pair.missed = first.error, first.missed
            yield pair

    def _beside(self, first: Pair) -> Pair:
        if (first.x, first.y) not in self.pairs:
            self.pairs[first.x, first.y] = Pair(first.x, f"d {first.y}/d {first.x}", gradient_of=first.y)
        return self.pairs[first.x, first.y]


def gradient_problem(problem: Problem, x: str) -> Problem:
    """The problem whose y is the gradient of the given y by x, which is added to the tape."""
    name = f"d {problem.y}/d {x}"
    _add_gradient(problem.tape, x, problem.y, name, problem.settings.seed)
    return Problem(problem.source, problem.settings, problem.tape, name)


def _add_gradient(tape: Tape, x: str, y: str, name: str, seed: int) -> None:
    """Puts d(w . y)/dx on a tape, w Gaussian by seed; zeros where y does not depend on x."""
    like, here = tape.named[y], tape.named[x]
    w = np.random.default_rng([seed, 3]).normal(size=like.shape)
    weights = tape.hold(tape.fresh(f"{y}/weights"), w.astype(like.dtype))
    [found] = gradients(tape, {like.name: weights}, [here.name])
    tape.named[name] = sym.zeros_like(here) if found is None else found


def kept_values(problem: Problem, pair: Pair, feeds: Mapping[str, Any], ops: Ops) -> Iterator[Broken]:
    """Broken law if nodes of the gradient, run at another x, differ from rules that are applied anew there.

    They differ if a rule has read values, which become part of the graph.  Call it right after `gradient_problem`.
    """
    x, y, tape, name = pair.x, pair.gradient_of, problem.tape, problem.tape.named[pair.x].name
    here = tape.values[name]
    moved = (here + NEARBY * scales(np.abs(here)) * np.random.default_rng(0).normal(size=here.shape)).astype(here.dtype)
    given = {n: tape.values[tape.named[n].name] if n in tape.named else feeds[n] for n in feeds}
    anew = trace(
        problem.graph, {**given, x: moved}, ops=ops, dtype=tape.dtype, seed=tape.seed, targets=[x, y], lenient=True
    )
    if y not in anew.named or any("rng" in step.op.schema for step in tape.steps):  # random numbers differ in each run
        return
    start = len(anew.steps)
    _add_gradient(anew, x, y, problem.y, problem.settings.seed)
    outcome = Program(tape, [name], [tape.named[problem.y].name]).run({name: moved[None]}, branches=True)
    there = anew.named[problem.y].value
    if outcome.any_crossed(1).any() or outcome.outputs[0].shape[1:] != there.shape:
        return
    if differ(outcome.outputs[0][0], there):
        unit = _first_other(tape, anew, name, moved, start)
        where = f", from {unit.place.of(unit.op.name, unit.label)} on" if unit is not None else ""
        yield Broken(WRONG, f"the gradient keeps values of the point at which its nodes were made{where}", unit)


def _first_other(tape: Tape, anew: Tape, x: str, moved: Array, start: int) -> Unit | None:
    """The first node of the gradient whose value at another x differs from the one by rules applied anew."""
    added = anew.steps[start:]
    first = len(tape.steps) - len(added)
    if [step.op.name for step in tape.steps[first:]] != [step.op.name for step in added]:
        return None
    pairs = [
        (unit_of(step, first + i), mine, other)
        for i, (step, again) in enumerate(zip(tape.steps[first:], added, strict=True))
        for mine, other in zip(step.node.outputs, again.node.outputs, strict=True)
        if mine and is_inexact(tape.values[mine].dtype)
    ]
    made = Program(tape, [x], [mine for _, mine, _ in pairs]).run({x: moved[None]}).outputs
    return next(
        (u for (u, _, other), value in zip(pairs, made, strict=True) if differ(value[0], anew.values[other])), None
    )


def moving_otherwise(group: Sequence[tuple[Pair, Problem]]) -> None:
    """Breaks the law of an x with which gradients of one y by others move, but not as the rules say.

    A random sum of all gradients moves along one random direction of each x.
    """
    real = [(pair, each) for pair, each in group if _is_real(each, pair.x) and _is_real(each, pair.y)]
    if len(real) < 2:
        return
    problem, pairs = real[0][1], [pair for pair, _ in real]
    try:
        apart = [pair for pair, slopes in zip(pairs, _slopes(problem, pairs, pairs), strict=True) if slopes is not None]
        for pair in apart:
            if not pair.broken:
                pair.broken += islice(_otherwise(problem, pair, pairs), 1)
    except (NoGradientError, MisshapenError, LimitError):  # told where the gradient is y
        return


def _is_real(problem: Problem, name: str) -> bool:
    tensor = problem.tape.named[name]
    return tensor.dtype.kind == "f" and bool(tensor.size)


def _otherwise(problem: Problem, pair: Pair, pairs: Sequence[Pair]) -> Iterator[Broken]:
    """Broken laws of the other gradients that alone move otherwise with x than the rules say."""
    for other in pairs:
        slopes = None if other is pair else _slopes(problem, [pair], [other])[0]
        if slopes is not None:
            told = "{:.6g} by differences, {:.6g} by the rules".format(*slopes)
            law = f"{other.y} moves with {pair.x!r} otherwise than the rules say: along one direction {told}"
            yield Broken(WRONG, law)


def _slopes(problem: Problem, moved: Sequence[Pair], summed: Sequence[Pair]) -> list[tuple[float, float] | None]:
    """Slopes of a random sum of gradients along a direction of each x that is moved, by differences and by the rules.

    None where tolerance, truncation and rounding explain how far they are apart.
    """
    tape, rng = problem.tape, np.random.default_rng([problem.settings.seed, 4])
    with tape.aside():
        total = reduce(add, [_weighed(tape, pair.y, rng) for pair in summed])
        backward = Backward(tape, total.name, [tape.named[pair.x].name for pair in moved])
        by_rules = backward.along(_ONE, problem.budget)
        return [_apart(problem, pair, backward, i, by_rules[i][0], rng) for i, pair in enumerate(moved)]


def _apart(
    problem: Problem, pair: Pair, backward: Backward, position: int, by_rules: Array, rng: np.random.Generator
) -> tuple[float, float] | None:
    """The slopes along one direction of x; few steps and no bounds are enough where they agree."""
    x, budget = problem.tape.named[pair.x], problem.budget
    program, v = Program(problem.tape, [x.name], [backward.y]), rng.normal(size=x.size)
    if not program.steps:
        return None
    directions, back = Directions(x.value, v[None]), float(by_rules @ v)

    def gap(there: float) -> float:
        size = max(abs(there), float(np.abs(by_rules) @ np.abs(v)))
        return abs(there - back) - pair.of(problem.settings.rtol, RTOL) * size - pair.of(problem.settings.atol, ATOL)

    if gap(float(by_ladder(program, directions, CHEAP_RUNGS, np.zeros(1), budget).estimate.value[0, 0])) <= 0:
        return None
    seen = by_ladder(program, directions, ALL_RUNGS, forward_noise(program), budget).estimate
    there, error = float(seen.value[0, 0]), float(seen.error[0, 0])
    rounded = [backward.along(_ONE, budget, seed)[position][0] @ v for seed in range(ROUNDED_RUNS)]
    return (there, back) if gap(there) > error + _SAFETY * max(abs(each - back) for each in rounded) else None


def _weighed(tape: Tape, name: str, rng: np.random.Generator) -> Var:
    """The sum of a tensor's entries, each times a random number."""
    tensor = tape.named[name]
    weights = tape.hold(tape.fresh(f"{name}/weights"), rng.normal(size=tensor.shape).astype(tensor.dtype))
    return sym.sum(tensor * weights, keepdims=False)


def asymmetric(theory: Theory, x: Array, comparison: Comparison, tolerance: Tolerance) -> Iterator[Broken]:
    """Broken law if a Hessian `(x_size, x_size)` is not symmetric although all its entries pass.

    For complex x it need not be: its columns are real and imaginary parts of a transpose, not of derivatives.
    """
    hessian, agreed = theory.values, bool((comparison.status == Status.PASS).all()) and not comparison.ties
    if not agreed or x.dtype.kind == "c":
        return
    mirrored = np.transpose if theory.cells is None else theory.cells.mirrored
    with np.errstate(invalid="ignore"):
        gap = np.abs(hessian - mirrored(hessian))
    allowed = tolerance.rtol * np.max(np.abs(hessian), initial=0.0, where=np.isfinite(hessian)) + tolerance.atol
    if not (gap > allowed).any():
        return
    moved = theory.spread()
    beyond = gap > allowed + _SAFETY * (moved + mirrored(moved))
    if beyond.any():
        row, place = (int(i) for i in np.argwhere(beyond)[0])
        column = place if theory.cells is None else int(theory.cells.columns[row, place])
        pair = f"{hessian[row, place]:.6g} and {mirrored(hessian)[row, place]:.6g}"
        yield Broken(WRONG, f"the Hessian is not symmetric: entries [{row},{column}] and [{column},{row}] are {pair}")
