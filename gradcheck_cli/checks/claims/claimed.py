"""The claims of a check at each point: each becomes a pair that is compared with the numerical Jacobian.

`Stated` gives an answer the interface of a backward pass.  gradcheck's own derivative
(`RuleGradient`) is judged beside it.  A right claim passes whatever our own rule gives; that our rule is wrong then
becomes a note.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from gradcheck_cli.autodiff.tape import Tape
from gradcheck_cli.autodiff.trace import trace
from gradcheck_cli.checks.assemble import Pair
from gradcheck_cli.checks.claims.blame import blame, likeness, near, other_forward
from gradcheck_cli.checks.claims.claim import (
    COTANGENT,
    Answer,
    AskedClaims,
    Claim,
    Inside,
    Layout,
    Moved,
    answer,
    as_declared,
    drawn_seed,
    expected,
    is_numbers,
    layouts,
    put,
    roughened,
    seed_name,
    seeds_of,
)
from gradcheck_cli.checks.diagnose.laws import Broken
from gradcheck_cli.checks.diagnose.suspects import suspect_record
from gradcheck_cli.checks.estimates import at_once, beyond, threads, too_large
from gradcheck_cli.checks.modes import Partial, survey_of
from gradcheck_cli.checks.problem import Problem, obstacle
from gradcheck_cli.compare.pair import Full, GivenDirections, PairJob, PairResult, Theory
from gradcheck_cli.compare.ties import judged_together
from gradcheck_cli.engine.chunks import Budget
from gradcheck_cli.engine.program import Program
from gradcheck_cli.engine.rounding import RandomRounding
from gradcheck_cli.errors import (
    GradcheckError,
    MisshapenError,
    ModelError,
    NoGradientError,
    PointError,
    UsageError,
    quoted,
    shown,
)
from gradcheck_cli.graph import Array, Graph, is_inexact
from gradcheck_cli.jacobian.coloring import Structure
from gradcheck_cli.jacobian.cost import FULL_WORK, duration
from gradcheck_cli.jacobian.jacobian import EPS, ROUNDED_RUNS, Backward
from gradcheck_cli.points.point import Point, feeds_at
from gradcheck_cli.points.test_data import shipped_with
from gradcheck_cli.verdict.rule import (
    ATOL,
    NEGLIGIBLE,
    RTOL,
    Status,
    Tolerance,
    allowance,
    epsilon,
    magnitude,
    screened,
)

if TYPE_CHECKING:
    from gradcheck_cli.checks.procedure import Procedure

_ROUNDINGS = 8.0  # of a claim's numbers, below which errors do not count
_FEWER = 2.0  # ratio of the roundings made here to those that other software makes
WRONG_SHAPE = "GC102"
UNSEEN = "errors as small as their rounding are not seen"
_BLAMED = 16  # wrong claims at a point for which a suspect is looked for
_MOVED_RUNS = 16  # with other roundings of constants
_ROUNDED = ("Selu",)  # operators with attributes of their own that the standard states in float32
_FLOAT32 = epsilon(np.dtype(np.float32))
_SAFETY = 3.0  # factor on sums of rounding errors of unknown signs
_WORST = ("none", "pass", "inconclusive", "fail")


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
        return Theory(self.jacobian, lambda: self._spread)

    @cached_property
    def _spread(self) -> Array:
        """Bounds of the rounding error of the Jacobian."""
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
        except (NoGradientError, MisshapenError):
            return {x: (alone, 0) for x in self.xs if (alone := self._alone(x)) is not None}

    def _alone(self, x: str) -> Backward | None:
        try:
            return Backward(self.tape, self.y, [x])
        except (NoGradientError, MisshapenError) as error:
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

    def rounding(self, x: str, unit: float) -> Array:
        """Bounds, like the Jacobian, of the errors by roundings of size `unit` in all results before it."""
        jacobian = self.jacobian(x)
        if jacobian is None:
            return np.zeros((self.tape.values[x].size, self.tape.values[self.y].size))
        backward, place = self.passes[x]
        ct = backward.cts[place]
        if jacobian.shape[1] > 1 or ct is None:
            return backward.spreads([self._jacobians[name] for name in backward.xs], self.budget)[place] * (unit / EPS)
        return rounding_at(self.tape, ct.name).reshape(-1, 1) * (unit / EPS) / _FEWER

    def cotangent(self, x: str) -> str | None:
        """The name on the tape of the derivative by x of a scalar y; None where there is none."""
        if x not in self.passes:
            return None
        backward, place = self.passes[x]
        ct = backward.cts[place]
        return None if ct is None else ct.name

    def verdict(self, x: str, found: PairResult, program: Program, job: PairJob, structure: Structure | None) -> str:
        """pass, fail, inconclusive or none: our own derivative against the numerical one of a claim's comparison."""
        own = self.jacobian(x)
        if own is None:
            return "none"
        mine = along(own, found)
        seen = screened(mine, found.comparison.numerical, 4 * EPS, job.tolerance)
        left_out = found.comparison.status == Status.LEFT_OUT
        if ((seen == Status.PASS) | left_out).all():
            return "pass"
        theory = Theory(mine, lambda: np.abs(along(self.rounding(x, EPS), found)))
        if found.weights is None:
            compared = Full([theory], [structure]).compare(program, 0, job).comparison
        else:
            assert found.directions is not None
            compared = GivenDirections(theory, found.directions, found.weights).compare(program, 0, job).comparison
        open_ = compared.count(*(s for s in Status if s not in (Status.PASS, Status.KINK_OK, Status.LEFT_OUT)))
        return "fail" if compared.count(Status.FAIL) else "inconclusive" if open_ else "pass"


def along(jacobian: Array, found: PairResult) -> Array:
    """A Jacobian along the directions and weights of a comparison."""
    if found.weights is None or found.directions is None:
        return jacobian
    return np.asarray(found.directions.slopes(found.weights @ jacobian.T).T)


def rounding_at(tape: Tape, ct: str) -> Array:
    """Bounds of the error of a tensor, such as a cotangent, by roundings of every result from the inputs on."""
    gaps = [*_gaps(tape, ct, [RandomRounding.seeded(seed) for seed in range(ROUNDED_RUNS)], {})]
    return np.asarray(np.fmax.reduce([np.zeros(tape.values[ct].shape), *gaps]))


class HeldNarrow(Struct, frozen=True):
    """Numbers that a file holds in float32 and its author may have in float64."""

    units: Mapping[str, float]  # of constants, by name
    attributes: bool = False  # some operators have such ones

    @classmethod
    def of(cls, graph: Graph, exact: Collection[str]) -> HeldNarrow:
        """The float32 numbers of a graph, but for those constants that are `exact`."""
        names = [n for n, v in graph.constants.items() if v.dtype == np.float32 and n not in exact]
        attributes = any(node.op in _ROUNDED or any(map(_is_rounded, node.attrs.values())) for node in graph.nodes)
        return cls(dict.fromkeys(names, _FLOAT32), attributes)

    def spread(self, tape: Tape, name: str) -> Array | float:
        """Bounds of the change of a tensor, by its name on the tape, where these numbers are rounded otherwise."""
        units = {tape.named[n].name: unit for n, unit in self.units.items() if n in tape.named}
        gaps = [np.square(gap) for gap in _gaps(tape, name, [None] * _MOVED_RUNS, units)] if units else []
        by_constants = _SAFETY * np.sqrt(np.mean(np.nan_to_num(gaps), axis=0)) if gaps else 0.0
        return by_constants + (rounding_at(tape, name) * (_FLOAT32 / EPS) if self.attributes else 0.0)


def _is_rounded(value: Any) -> bool:
    """True for a float32 number that was another one in float64, such as 0.01."""
    return isinstance(value, float) and float(str(np.float32(value))) != value


def _gaps(
    tape: Tape, ct: str, roundings: Sequence[RandomRounding | None], units: Mapping[str, float]
) -> Iterator[Array]:
    """Changes of a tensor in runs with roundings, for those that cross no branch."""
    made = {name for step in tape.steps for name in step.node.outputs}
    read = dict.fromkeys(name for step in tape.steps for name in step.operands if name and name not in made)
    leaves = [n for n in read if is_inexact(tape.values.like(n).dtype)]
    program = Program(tape, leaves, [ct])
    for seed, rounding in enumerate(roundings):
        rng = np.random.default_rng([seed, 11])
        stacks = {n: roughened(tape.values[n], units.get(n, 0.0), rng)[None] for n in leaves}
        outcome = program.run(stacks, branches=True, rounding=rounding)
        if not outcome.any_crossed(1).any():
            yield np.abs(outcome.outputs[0][0] - tape.values[ct])


class Claiming:
    """The claims of one check; claims about the same ys share the problem and gradcheck's own derivative at each point."""

    def __init__(self, procedure: Procedure, asked: AskedClaims) -> None:
        settings = procedure.settings
        self.source, self.settings, self.ops, self.procedure = procedure.source, settings, procedure.ops, procedure
        self.pairs = [Pair(claim.x, claim.y, claim=claim, notes=[*asked.notes]) for claim in asked.claims]
        self.work = FULL_WORK
        self._subjects: dict[str, tuple[Problem, RuleGradient]] = {}
        self._seen: dict[str, tuple[Problem, Answer | None]] = {}  # by title of the pair
        if settings.compat is not None:
            raise UsageError("--compat tf compares gradcheck's own gradient as TensorFlow does, not what --grad gives.")
        if settings.forward == "onnxruntime":
            if not all(claim.found for claim in asked.claims):
                raise UsageError("--grad is held against gradcheck's own forward run: leave out --forward onnxruntime.")
            for pair in self.pairs:
                pair.notes.append("held against gradcheck's own forward run, not onnxruntime's")

    def at(self, point: Point, index: int) -> None:
        """Compares all claims at a point."""
        pairs = [pair for pair in self.pairs if pair.error is None and not pair.broken]
        if not pairs:
            return
        tape, self._subjects, self._seen = self._tape(point, index), {}, {}
        for pair in pairs:
            start = time.perf_counter()
            try:
                self._compare(pair, point, index, tape)
            except PointError as error:  # another point may not have this error
                pair.missed.append(error)
            except GradcheckError as error:
                pair.error = error
            finally:
                self.procedure.done()
            pair.seconds += time.perf_counter() - start
        for pair in [pair for pair in pairs if pair.failed][:_BLAMED]:
            start = time.perf_counter()
            self._blame(pair, tape, self._liken(pair))
            pair.seconds += time.perf_counter() - start

    def _blame(self, pair: Pair, tape: Tape, form: str) -> None:
        """Sets the suspect for a wrong claim, if our own gradient is right; after all claims have been judged.

        Numbers in another order or shape, a `form` that `_liken` has found, are no node's fault; of another scale they may.
        """
        problem, given = self._seen.get(pair.title, (None, None))
        if problem is None or pair.suspect is not None or pair.claimed.get("theoretical") == "fail":
            return
        about = [p for p in self.pairs if p.title in self._seen and self._seen[p.title][0] is problem]
        claims = {
            p.x: (not p.failed, p.results[-1].stated if p.results else None) for p in about if p.counts or p.broken
        }
        graph, (other, theirs) = self.source.graph, (None, None) if given is None else (given.tape, given.graph)
        elsewhere = other_forward(tape, other, graph)
        reshaped = form and other is None and not form.endswith(f"times {_derivative(pair)}")
        pair.suspect = elsewhere or (None if reshaped else blame(tape, problem.y, pair.x, claims, graph, other, theirs))

    def _liken(self, pair: Pair) -> str:
        """The form of the right gradient that a wrong claim is, "" for none; noted once."""
        problem, given = self._seen.get(pair.title, (None, None))
        own = next((own for about, own in self._subjects.values() if about is problem), None)
        if problem is None or given is None or own is None or pair.claim is None:
            return ""
        mine = own.jacobian(problem.theory_name(pair.x))
        if mine is None:
            return ""
        if mine.shape[1] == 1:
            found = likeness(given.values, mine.reshape(pair.x_shape), _derivative(pair))
        else:
            found = _turned(given.values, mine, pair)
        note = f"{pair.claim.by} is {found}"
        if found and note not in pair.notes:
            pair.notes.append(note)
        return found

    def _tape(self, point: Point, index: int) -> Tape:
        """A float64 run up to all tensors of the claims; seeds that are inputs have the shapes of their ys."""
        claims, graph = [pair.claim for pair in self.pairs if pair.claim is not None], self.source.graph
        inside = [c.by.name for c in claims if isinstance(c.by, Inside)]
        named = [seed for c in claims for seed in c.seeds.values() if isinstance(seed, str)]
        called = {name: y for c in claims for y in c.ys if inside and (name := seed_name(graph, y)) is not None}
        wanted = list(dict.fromkeys([*(n for c in claims for n in (c.x, *c.ys)), *inside, *named, *called]))
        made = feeds_at(self.source, self.settings, self.ops, wanted, index, point.dims)
        feeds = {**made, **point.feeds}
        given = {*self.settings.x_init_value, *self.settings.extra_feed_dict}
        for name, y in called.items():
            if name in graph.free_inputs and name not in given and y in point.tape.named:
                seed = drawn_seed(point.tape.named[y].value, self.settings.seed)
                feeds[name] = as_declared(graph, name, seed)
        return trace(graph, feeds, ops=self.ops, seed=self.settings.seed, targets=wanted, lenient=True)

    def _compare(self, pair: Pair, point: Point, index: int, tape: Tape) -> None:
        claim = pair.claim
        assert claim is not None
        self._require(claim, point, tape, index)
        pair.x_shape = tape.named[pair.x].shape
        pair.y_shape = tape.named[claim.ys[0]].shape if len(claim.ys) == 1 else ()
        pair.claimed = {"by": str(claim.by), "kind": claim.kind, "of": claim.ys, "found": claim.found}
        here = self._here(pair, claim, tape)
        if here is None:
            return
        error = obstacle(replace(point, tape=tape), here.problem, pair.x, index, self.settings.max_inconclusive)
        if error is not None:
            raise error
        if not threads(here.problem, pair.x, "directional"):
            raise beyond(here.problem, pair.x, "directional")
        if not pair.mode:
            self.work = plan(pair, here, self.work)
        judge(pair, here, self.procedure.budget(pair), index)

    def _require(self, claim: Claim, point: Point, tape: Tape, index: int) -> None:
        """Raises an error if x or y was not computed or is not real, or if numbers do not belong to this point."""
        blocked = next((tape.blocked[n] for n in (*claim.ys, claim.x) if n in tape.blocked), None)
        if blocked is not None:
            raise blocked
        odd = next((n for n in (*claim.ys, claim.x) if n in tape.containers or tape.named[n].dtype.kind != "f"), None)
        if odd is not None:
            raise UsageError(f"--grad: claims are about tensors of real numbers, and {shown(odd)!r} is none.")
        if is_numbers(claim):
            where = f"--grad {shown(claim.x)}=@{claim.by}: the numbers are a gradient at one point"
            if index:
                raise UsageError(f"{where}, and this is point {index + 1}: leave out --points and --point.")
            if drawn := self._drawn(claim, point):
                cure = f"Give it: --feed {quoted(drawn[0])}=@FILE"
                raise UsageError(f"{where}, and {drawn[0]!r} would be drawn at random. {cure}")

    def _drawn(self, claim: Claim, point: Point) -> list[str]:
        """Inputs whose values are random."""
        source, settings = self.source, self.settings
        shipped = shipped_with(source, settings, {**source.dims, **settings.dims, **point.dims})
        started = {n for target in settings.init_targets for n in source.initializations[target].bindings}
        given = {
            *shipped.at(0),
            *settings.x_init_value,
            *settings.extra_feed_dict,
            *source.values_at.get(0, {}),
            *started,
        }
        needed = source.graph.needed_for(claim.ys)
        return [n for n in source.graph.free_inputs if n in needed and n not in given]

    def _here(self, pair: Pair, claim: Claim, tape: Tape) -> ClaimAtPoint | None:
        """The claim with its values at a point; None if its shape or model is wrong, which breaks the pair."""
        seeds, called = seeds_of(claim, tape, self.source.graph)
        found, wrong = None, ""
        try:
            found = answer(claim, tape, self.source.graph, self.ops, seeds)
        except ModelError as error:
            wrong = f"{claim.by} cannot be computed: {error}"
        x, y = pair.x_shape, pair.y_shape if len(claim.ys) == 1 else None
        fitting = [] if found is None else layouts(found.values.shape, x, y)
        if found is not None and not fitting:
            wrong = f"{claim.by} has the shape [{','.join(map(str, found.values.shape))}], not {expected(x, y)}"
        whole = bool(fitting) and fitting[0].order != COTANGENT
        drawn = {} if found is None else found.seeds
        said = "" if whole else ", ".join(called.values()) or ("drawn" if drawn else "ones")
        problem, own = self._subject(claim, {**seeds, **drawn}, tape, said)
        pair.claimed |= {"layout": fitting[0].order if fitting else "", "seed": said}
        self._seen[pair.title] = problem, found
        if found is None or wrong:
            pair.broken.append(Broken(WRONG_SHAPE, wrong))
            return None
        return ClaimAtPoint(claim, found, fitting[0], problem, own)

    def _subject(self, claim: Claim, seeds: dict[str, Array], tape: Tape, how: str) -> tuple[Problem, RuleGradient]:
        key = f"{how} {claim.ys}"
        if key not in self._subjects:
            y = put(tape, claim.ys, seeds) if how else claim.ys[0]
            xs = [p.x for p in self.pairs if p.claim is not None and p.claim.ys == claim.ys]
            problem = Problem(self.source, self.settings, tape, y)
            own = RuleGradient(tape, problem.theory_name(y), [problem.theory_name(x) for x in xs if x in tape.named],
                      self.procedure.budget(self.pairs[0], shown=False))  # fmt: skip
            self._subjects[key] = problem, own
        return self._subjects[key]


def _turned(values: Array, mine: Array, pair: Pair) -> str:
    """The form of a wrong Jacobian that is right in the other order of axes, "" for another one."""
    others = layouts(values.shape, pair.x_shape, pair.y_shape)[1:]
    if not any(near(mine, each.read(values)) for each in others):
        return ""
    flat = ", and not (x_size, y_size), as compute_gradient does" if values.shape == mine.shape else ""
    return (
        f"the transpose of {_derivative(pair)}: a Jacobian has the axes [y..., x...], as PyTorch and JAX give it{flat}"
    )


def _derivative(pair: Pair) -> str:
    return f"d {shown(pair.y)} / d {shown(pair.x)}"


@dataclass(frozen=True, slots=True)
class ClaimAtPoint:
    """A claim at a point: its values, their layout, the problem of y, and gradcheck's own derivative."""

    claim: Claim
    answer: Answer
    layout: Layout
    problem: Problem
    own: RuleGradient

    @property
    def jacobian(self) -> Array:
        """The claimed Jacobian `(x_size, y_size)`."""
        return self.layout.read(self.answer.values)


def plan(pair: Pair, here: ClaimAtPoint, left: float) -> float:
    """Sets the mode of a claim by the work `left` for full comparisons; returns the work left after it."""
    problem, settings = here.problem, here.problem.settings
    cost = problem.cost(pair.x, compressed=False)
    fits = cost.memory <= problem.budget.memory
    if settings.mode == "full" and not fits:
        raise too_large(cost, problem, pair.x, at_once(problem, pair.x))
    wanted = {"auto": "full" if fits and cost.work <= left else "directional", "nodes": "directional"}
    pair.mode = wanted.get(settings.mode, settings.mode)
    if settings.mode == "auto" and pair.mode != "full":
        pair.chosen = f"all {cost.entries:,} entries would take about {duration(cost.seconds)}"
    return left - cost.work if pair.mode == "full" else left


def judge(pair: Pair, here: ClaimAtPoint, budget: Budget, index: int) -> None:
    """Compares a claim with the numerical Jacobian, and adds verdict and notes on it and on our own rule."""
    problem, settings = here.problem, here.problem.settings
    x, unit = problem.theory_name(pair.x), here.answer.unit
    tolerance = tolerant(Tolerance(pair.of(settings.rtol, RTOL), pair.of(settings.atol, ATOL)), unit)
    job = PairJob(settings.method, settings.delta, tolerance, budget)
    moved: Moved = lambda seed: here.layout.read(here.answer.moved(seed))  # noqa: E731
    if unit:
        blur = here.answer.blur
        more = 0.0 if blur is None else here.layout.read(blur)
        moved = blurred(here.jacobian, here.own.rounding(x, unit) + more)
    stated = Stated(problem.tape, problem.theory_name(problem.y), x, here.jacobian, moved)
    found, partial = _compared(pair, here, stated, job)
    if unit or here.answer.rounded is not None:
        found = forgiven(found, _blur(here, stated, found), tolerance)
    if unit:
        pair.notes.append(f"{here.claim.by} has numbers of {unit:.0e}: {UNSEEN}")
    if partial is None:
        found = judged_together(problem.tape, problem.theory_name(problem.y), {x: found}, settings.seed, budget).get(
            x, found
        )
    result = replace(
        found, point=index, projected=partial is not None, stated=stated.jacobian, ours=here.own.jacobian(x)
    )
    if partial is not None:
        result = partial.completed(result, problem, pair, 0, job)
    pair.results.append(result)
    pair.method = found.method
    ours = here.own.verdict(x, found, problem.program(pair.x), job, None if partial else problem.structure(pair.x))
    pair.claimed["theoretical"] = max(ours, pair.claimed.get("theoretical", "none"), key=_WORST.index)
    _say(pair, here, ours, x)


def _compared(pair: Pair, here: ClaimAtPoint, stated: Stated, job: PairJob) -> tuple[PairResult, Partial | None]:
    program = here.problem.program(pair.x)
    if pair.mode == "full":
        return Full([stated.theory], [here.problem.structure(pair.x)]).compare(program, 0, job), None
    partial = Partial(pair.mode, stated, here.problem.settings, job.budget)
    return partial.compare(program, 0, job), partial


def _blur(here: ClaimAtPoint, stated: Stated, found: PairResult) -> Array:
    """Bounds of the rounding errors of a claim's author, in the rows and columns of the comparison."""
    rounded = here.answer.rounded
    moved = stated.moved if rounded is None else lambda seed: here.layout.read(rounded(seed))
    plain = along(stated.jacobian, found)
    gaps = [np.abs(along(moved(seed), found) - plain) for seed in range(ROUNDED_RUNS)]
    return np.asarray(np.fmax.reduce(gaps) * (1.0 if here.answer.unit and found.weights is None else _SAFETY))


def _say(pair: Pair, here: ClaimAtPoint, ours: str, x: str) -> None:
    """Adds notes on which gradient is wrong: the claim, our own, or both."""
    failed = pair.results[-1].comparison.count(Status.FAIL)
    by, problem = here.claim.by, here.problem
    if ours == "none":
        pair.notes.append(f"gradcheck has no gradient of its own here: {here.own.reasons.get(x, 'a rule is missing')}")
    own = here.own.jacobian(x)
    if ours == "fail" and own is not None and not np.isfinite(own).all():
        pair.notes.append(
            "gradcheck's own gradient is not finite here: x may lie at the edge of a domain, as 0 of Sqrt"
        )
    elif failed:
        said = {"pass": "agrees with the numerical one", "fail": "is wrong as well"}.get(ours)
        pair.notes.extend([f"gradcheck's own gradient {said}"] if said else [])
    elif ours == "fail":
        survey = survey_of(problem, pair, Budget())
        suspect = suspect_record(survey, problem.graph)
        node = f", first of all that of node {suspect.node} {suspect.op}" if suspect else ""
        pair.notes.append(f"{by} is right, and gradcheck's own gradient is not: a bug of gradcheck's rules{node}")
