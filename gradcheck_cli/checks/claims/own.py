"""gradcheck's own derivative of what claims are about: the third column, and whether it is right itself."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from gradcheck_cli.autodiff.tape import Tape
from gradcheck_cli.checks.claims.layout import Layout
from gradcheck_cli.compare.pair import Found, Job, Theory, compare_along, compare_full
from gradcheck_cli.engine.chunks import Budget
from gradcheck_cli.engine.program import Program
from gradcheck_cli.errors import NoGradientError
from gradcheck_cli.graph import Array, is_inexact
from gradcheck_cli.jacobian.coloring import Structure
from gradcheck_cli.jacobian.jacobian import EPS, JITTERED, Backward
from gradcheck_cli.verdict.rule import Status, screened

_FEWER = 2.0  # roundings in what others computed than by which results are moved here, where it is measured


class Own:
    """The derivative of y by several xs, by name on a tape; by each alone where some rule is missing."""

    def __init__(self, tape: Tape, y: str, xs: Sequence[str], budget: Budget) -> None:
        self.tape, self.y, self.xs, self.budget = tape, y, tuple(dict.fromkeys(xs)), budget
        self.reasons: dict[str, str] = {}  # by x, why there is none
        self._jacobians: dict[str, Array] = {}

    @cached_property
    def passes(self) -> dict[str, tuple[Backward, int]]:
        """The backward pass that has the derivative by each x, and its place in there."""
        try:
            together = Backward(self.tape, self.y, self.xs)
            return {x: (together, place) for place, x in enumerate(self.xs)}
        except NoGradientError:
            return {x: (alone, 0) for x in self.xs if (alone := self._alone(x)) is not None}

    def _alone(self, x: str) -> Backward | None:
        try:
            return Backward(self.tape, self.y, [x])
        except NoGradientError as error:
            self.reasons[x] = str(error)
            return None

    def jacobian(self, x: str) -> Array | None:
        """The Jacobian `(x_size, y_size)`; None where a rule is missing."""
        if x not in self.passes:
            return None
        if x not in self._jacobians:
            backward, _ = self.passes[x]
            self._jacobians.update(zip(backward.xs, backward.jacobians(self.budget), strict=True))
        return self._jacobians[x]

    def nearest(self, fitting: Sequence[Layout], values: Array, x: str) -> Layout:
        """Of the ways to read a claim, between which its shape does not choose, the one that is nearest to it."""
        own = self.jacobian(x) if len(fitting) > 1 else None
        if own is None:
            return fitting[0]
        gaps = [float(np.linalg.norm(np.nan_to_num(each.read(values) - own))) for each in fitting]
        return fitting[int(np.argmin(gaps))]

    def rounding(self, x: str, unit: float) -> Array:
        """How far roundings of a size `unit` in all that leads to the derivative may carry it, like the Jacobian."""
        jacobian = self.jacobian(x)
        if jacobian is None:
            return np.zeros((self.tape.values[x].size, self.tape.values[self.y].size))
        backward, place = self.passes[x]
        ct = backward.cts[place]
        if jacobian.shape[1] > 1 or ct is None:
            return backward.spreads([self._jacobians[name] for name in backward.xs], self.budget)[place] * (unit / EPS)
        return _moved(self.tape, ct.name).reshape(-1, 1) * (unit / EPS) / _FEWER

    def verdict(self, x: str, found: Found, program: Program, job: Job, structure: Structure | None) -> str:
        """pass, fail or inconclusive: what became of it against the numbers that a claim was held against."""
        own = self.jacobian(x)
        if own is None:
            return "none"
        mine = projected(own, found)
        seen = screened(mine, found.comparison.numerical, 4 * EPS, job.tolerance)
        left_out = found.comparison.status == Status.LEFT_OUT
        if ((seen == Status.PASS) | left_out).all():
            return "pass"
        theory = Theory(mine, lambda: np.abs(projected(self.rounding(x, EPS), found)))
        if found.weights is None:
            compared = compare_full(program, theory, job, structure).comparison
        else:
            assert found.directions is not None
            compared = compare_along(program, theory, found.directions, job, found.weights).comparison
        open_ = compared.count(*(s for s in Status if s not in (Status.PASS, Status.KINK_OK, Status.LEFT_OUT)))
        return "fail" if compared.count(Status.FAIL) else "inconclusive" if open_ else "pass"


def projected(jacobian: Array, found: Found) -> Array:
    """A Jacobian as a comparison looks at it: along its directions, with its weights."""
    if found.weights is None or found.directions is None:
        return jacobian
    return np.asarray(found.directions.slopes(found.weights @ jacobian.T).T)


def _moved(tape: Tape, ct: str) -> Array:
    """How far some roundings of every result from the inputs on carry a cotangent."""
    made = {name for step in tape.steps for name in step.node.outputs}
    read = dict.fromkeys(name for step in tape.steps for name in step.operands if name and name not in made)
    leaves = [n for n in read if is_inexact(tape.values.like(n).dtype)]
    program, most = Program(tape, leaves, [ct]), np.zeros(tape.values[ct].shape)
    for seed in range(JITTERED):
        stacks = {n: tape.values[n][None] for n in leaves}
        outcome = program.run(stacks, branches=True, jitter=np.random.default_rng(seed))
        if not outcome.any_crossed(1).any():
            np.fmax(most, np.abs(outcome.outputs[0][0] - tape.values[ct]), out=most)
    return most
