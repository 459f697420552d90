"""Values of a claim at a point: a tensor of the model or of another one run in float64, or numbers as given.

Rounding errors of values computed here are measured, by moving every result on the way.  Numbers have the rounding
errors of their author, as large as ours would be in their dtype.  `Stated` puts claimed numbers in place of a backward
pass; `RuleGradient` is gradcheck's own derivative of the same y, and the verdict on it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeAlias

import numpy as np

from gradcheck_cli.autodiff.tape import Tape
from gradcheck_cli.autodiff.trace import trace
from gradcheck_cli.checks.claims.claim import Beside, Claim, Inside, Layout, as_declared, drawn_seed, gradient_names
from gradcheck_cli.compare.pair import Full, PairJob, PairResult, Theory, compare_along
from gradcheck_cli.engine.chunks import Budget
from gradcheck_cli.engine.program import Program
from gradcheck_cli.engine.rounding import RandomRounding
from gradcheck_cli.errors import NoGradientError, UsageError, shown
from gradcheck_cli.graph import Array, Graph, is_inexact
from gradcheck_cli.jacobian.coloring import Structure
from gradcheck_cli.jacobian.jacobian import EPS, ROUNDED_RUNS, Backward
from gradcheck_cli.op import Ops
from gradcheck_cli.points.dims import declared_shape
from gradcheck_cli.settings import Numbers
from gradcheck_cli.verdict.rule import NEGLIGIBLE, Status, Tolerance, allowance, epsilon, magnitude, screened

Moved: TypeAlias = Callable[[int], Array]  # numbers with rounding errors, by seed
_ROUNDINGS = 8.0  # of a claim's numbers, below which errors do not count
_FEWER = 2.0  # ratio of the roundings made here to those that other software makes
_SHORTER = (np.dtype(np.float16), np.dtype(np.float32))


@dataclass(frozen=True, slots=True)
class Answer:
    """The claimed values; `moved` gives them with rounding errors by seed; `unit` is the rounding of numbers, else 0.

    `tape` and `graph` are the run that computed them, if any.  `rounded` gives them with that graph's own constants
    rounded otherwise, since tools write numbers such as 2 / sqrt(pi) there in the model's dtype.
    """

    values: Array
    moved: Moved
    unit: float = 0.0
    tape: Tape | None = None
    graph: Graph | None = None
    rounded: Moved | None = None
    seeds: Mapping[str, Array] = field(default_factory=dict)  # by y, as fed to another model


def answer(claim: Claim, tape: Tape, graph: Graph, ops: Ops, seeds: Mapping[str, Array]) -> Answer:
    """The values of a claim at the point of a tape; GradcheckError if they cannot be computed.

    Another model is fed the `seeds` by name of y that were given; its other seeds are random.
    """
    if isinstance(claim.by, Numbers):
        values = np.asarray(claim.by.values)
        return Answer(values.astype(np.float64), lambda seed: values.astype(np.float64), unit_of(values))
    if isinstance(claim.by, Inside):
        shared = graph.needed_for(claim.ys)
        return _run(claim.by.name, tape, graph, [n for n in graph.constants if n not in shared])
    other = claim.by.source.graph
    given = {y: seed if y in claim.seeds else drawn_seed(seed, tape.seed) for y, seed in seeds.items()}
    feeds, used = matched(claim, tape, other, given)
    known = [
        name for name in other.tensors if name in tape.named
    ]  # their values show whether the forward run is the same
    run = trace(other, feeds, ops=ops, seed=tape.seed, targets=[claim.by.name, *known], lenient=True)
    own = [n for n, value in other.constants.items() if not _same(value, graph.constants.get(n))]
    return replace(_run(claim.by.name, run, other, own), seeds={y: given[y] for y in used})


def _run(name: str, tape: Tape, graph: Graph, own: Sequence[str]) -> Answer:
    """A tensor on a tape; `moved` starts from the graph's leaves, `rounded` from constants of its `own`."""
    if name in tape.blocked:
        raise tape.blocked[name]
    if name in tape.containers or name not in tape.named:
        raise UsageError(f"{shown(name)!r} is no tensor that holds numbers.")
    there = [n for n in graph.tensors if n in tape.named and graph.producer(n) is None]
    leaves = [n for n in there if is_inexact(tape.named[n].dtype)]
    program = Program(tape, [tape.named[n].name for n in leaves], [tape.named[name].name])
    units = {n: epsilon(graph.constants[n].dtype) for n in own if n in leaves}

    def run(seed: int, rounding: RandomRounding | None, moves: Mapping[str, float]) -> Array:
        rng = np.random.default_rng([seed, 11])
        stacks = {tape.named[n].name: _rounded(tape.named[n].value, moves.get(n, 0.0), rng)[None] for n in leaves}
        outcome = program.run(stacks, branches=True, rounding=rounding)
        return tape.named[name].value if outcome.any_crossed(1).any() else outcome.outputs[0][0]

    rounded = (lambda seed: run(seed, None, units)) if units else None
    moved = lambda seed: run(seed, RandomRounding.seeded(seed), {})  # noqa: E731
    return Answer(tape.named[name].value, moved, tape=tape, graph=graph, rounded=rounded)


def _rounded(values: Array, unit: float, rng: np.random.Generator) -> Array:
    """Numbers moved by a rounding, up or down, except small multiples of 1/16, which are exact."""
    if not unit:
        return values
    meant = values * 16 == np.rint(values * 16)
    return np.asarray(values * np.where(meant, 1.0, 1.0 + unit * rng.choice([-0.5, 0.5], values.shape)))


def _same(one: Array, other: Array | None) -> bool:
    return other is not None and one.dtype == other.dtype and np.array_equal(one, other)


def unit_of(values: Array) -> float:
    """The rounding of the shortest dtype that holds all of these numbers, which files often widen."""
    held = (dtype for dtype in _SHORTER if values.dtype == dtype or _fits(values, dtype))
    return epsilon(values.dtype if values.dtype.name == "bfloat16" else next(held, np.dtype(np.float64)))


def _fits(values: Array, dtype: np.dtype[np.floating]) -> bool:
    with np.errstate(all="ignore"):
        short = values.astype(dtype).astype(values.dtype)
    return dtype == np.float32 and values.dtype.kind == "f" and np.array_equal(short, values, equal_nan=True)


def matched(claim: Claim, tape: Tape, other: Graph, seeds: Mapping[str, Array]) -> tuple[dict[str, Array], list[str]]:
    """Values for the inputs of another model, and the ys whose seeds are among them: by name, the rest by shape."""
    assert isinstance(claim.by, Beside)
    needed = other.needed_for([claim.by.name])
    free = [n for n in other.inputs if n in needed]
    feeds = {n: tape.named[n].value for n in free if n in tape.named}
    called = {n: y for y in claim.ys for n in gradient_names(y) if n in free and n not in feeds}
    left = [n for n in free if n not in feeds and n not in called and n not in other.constants]
    made = {n for step in tape.steps for n in step.node.outputs}
    unused = {n: var.value for n, var in tape.named.items() if n not in feeds and n not in made}
    for name in [*left]:
        fits = [n for n, value in unused.items() if _fitting(other, name, value)]
        if len(fits) == 1:
            feeds[name] = unused.pop(fits[0])
            left.remove(name)
    if len(left) == len(seeds) == 1 and not called:
        called |= {n: y for n in left for y, seed in seeds.items() if _fitting(other, n, as_declared(other, n, seed))}
    if lacking := [shown(n) for n in left if n not in called]:
        raise UsageError(
            f"--grad-model {claim.by.source.uri}: its input {lacking[0]!r} is called as nothing in the model is, and "
            f"no one tensor alone has its shape; it needs {', '.join(lacking)}"
        )
    return {**feeds, **{n: as_declared(other, n, seeds[y]) for n, y in called.items()}}, list(called.values())


def _fitting(graph: Graph, name: str, value: Array) -> bool:
    """True if an input may have this value by its declaration."""
    declared, shape = graph.types.get(name), declared_shape(graph, name)
    same = declared is None or declared.dtype is None or is_inexact(declared.dtype) == is_inexact(value.dtype)
    if shape is None or len(shape) != value.ndim:
        return False
    return same and all(not isinstance(d, int) or d == size for d, size in zip(shape, value.shape, strict=True))


class Stated(Backward):
    """A claimed Jacobian `(x_size, y_size)` of y by x, with the interface of a backward pass."""

    def __init__(self, tape: Tape, y: str, x: str, jacobian: Array, moved: Moved) -> None:
        self.tape, self.y, self.xs = tape, y, (x,)
        self.jacobian, self.moved = jacobian, moved

    def reduced(
        self, weights: Array, reduce: Callable[[int, Array], Array], budget: Budget, rounding: int | None = None
    ) -> list[Array]:
        """See `Backward.reduced`."""
        return [reduce(0, weights @ (self.jacobian if rounding is None else self.moved(rounding)).T)]

    @property
    def theory(self) -> Theory:
        """The theoretical side of a full comparison."""
        return Theory(self.jacobian, self._spread)

    def _spread(self) -> Array:
        return np.asarray(np.fmax.reduce([np.abs(self.moved(seed) - self.jacobian) for seed in range(ROUNDED_RUNS)]))


def blurred(jacobian: Array, blur: Array) -> Moved:
    """Function that moves a Jacobian by its bounds, up or down by seed."""
    return lambda seed: jacobian + blur * np.random.default_rng([seed, 5]).choice([-1.0, 1.0], blur.shape)


def tolerant(tolerance: Tolerance, unit: float) -> Tolerance:
    """The tolerance for numbers of a dtype: some roundings of it do not count."""
    least = _ROUNDINGS * unit
    return replace(tolerance, rtol=max(tolerance.rtol, least), negligible=max(NEGLIGIBLE, least))


def forgiven(found: PairResult, blur: Array, tolerance: Tolerance) -> PairResult:
    """A comparison in which errors within the rounding of the claim's author pass."""
    comparison = found.comparison
    given, numerical = comparison.theoretical, comparison.numerical
    allowed = blur + allowance(magnitude(given, numerical), comparison.ground.at(), tolerance)
    with np.errstate(invalid="ignore"):
        near = np.abs(given - numerical) <= allowed
    open_ = np.isin(comparison.status, (Status.FAIL, Status.NOISE, Status.CURVATURE)) & near
    status = np.where(open_, np.int8(Status.PASS), comparison.status)
    return replace(found, comparison=replace(comparison, status=status, noise=np.maximum(comparison.noise, blur)))


class RuleGradient:
    """gradcheck's own derivative of y by several xs; one backward pass for each x where some rule is missing."""

    def __init__(self, tape: Tape, y: str, xs: Sequence[str], budget: Budget) -> None:
        self.tape, self.y, self.xs, self.budget = tape, y, tuple(dict.fromkeys(xs)), budget
        self.reasons: dict[str, str] = {}  # by x, if a rule is missing
        self._jacobians: dict[str, Array] = {}

    @cached_property
    def passes(self) -> dict[str, tuple[Backward, int]]:
        """The backward pass that has the derivative by each x, and its position there."""
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
        """The layout of a claim that is nearest to our derivative, if its shape allows for several."""
        own = self.jacobian(x) if len(fitting) > 1 else None
        if own is None:
            return fitting[0]
        gaps = [float(np.linalg.norm(np.nan_to_num(each.read(values) - own))) for each in fitting]
        return fitting[int(np.argmin(gaps))]

    def rounding(self, x: str, unit: float) -> Array:
        """Bounds, like the Jacobian, of the errors by roundings of size `unit` in all results before it."""
        jacobian = self.jacobian(x)
        if jacobian is None:
            return np.zeros((self.tape.values[x].size, self.tape.values[self.y].size))
        backward, place = self.passes[x]
        ct = backward.cts[place]
        if jacobian.shape[1] > 1 or ct is None:
            return backward.spreads([self._jacobians[name] for name in backward.xs], self.budget)[place] * (unit / EPS)
        return _moved(self.tape, ct.name).reshape(-1, 1) * (unit / EPS) / _FEWER

    def verdict(self, x: str, found: PairResult, program: Program, job: PairJob, structure: Structure | None) -> str:
        """pass, fail, inconclusive or none: our own derivative against the numerical one of a claim's comparison."""
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
            compared = Full([theory], [structure]).compare(program, 0, job).comparison
        else:
            assert found.directions is not None
            compared = compare_along(program, theory, found.directions, job, found.weights).comparison
        open_ = compared.count(*(s for s in Status if s not in (Status.PASS, Status.KINK_OK, Status.LEFT_OUT)))
        return "fail" if compared.count(Status.FAIL) else "inconclusive" if open_ else "pass"


def projected(jacobian: Array, found: PairResult) -> Array:
    """A Jacobian along the directions and weights of a comparison."""
    if found.weights is None or found.directions is None:
        return jacobian
    return np.asarray(found.directions.slopes(found.weights @ jacobian.T).T)


def _moved(tape: Tape, ct: str) -> Array:
    """Bounds of the error of a cotangent by roundings of every result from the inputs on."""
    made = {name for step in tape.steps for name in step.node.outputs}
    read = dict.fromkeys(name for step in tape.steps for name in step.operands if name and name not in made)
    leaves = [n for n in read if is_inexact(tape.values.like(n).dtype)]
    program, most = Program(tape, leaves, [ct]), np.zeros(tape.values[ct].shape)
    for seed in range(ROUNDED_RUNS):
        stacks = {n: tape.values[n][None] for n in leaves}
        outcome = program.run(stacks, branches=True, rounding=RandomRounding.seeded(seed))
        if not outcome.any_crossed(1).any():
            np.fmax(most, np.abs(outcome.outputs[0][0] - tape.values[ct]), out=most)
    return most
