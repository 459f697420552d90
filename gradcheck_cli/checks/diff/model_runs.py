"""Both models at the same values: their outputs and derivatives compared, and the differences that precision explains.

Tools that rewrite a model compute with its weights in another dtype: the same function then has weights that are off by
a rounding.  The effect on results is measured, by runs of the first model with its numbers moved by as much.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from msgspec import structs

from gradcheck_cli.autodiff.tape import Step, Tape
from gradcheck_cli.autodiff.trace import trace
from gradcheck_cli.engine.chunks import Budget
from gradcheck_cli.errors import GradcheckError
from gradcheck_cli.formats.source import Source
from gradcheck_cli.graph import Array, Graph, is_inexact
from gradcheck_cli.graph.containers import Map, elements
from gradcheck_cli.graph.containers import Sequence as Several
from gradcheck_cli.graph.memory import allowed
from gradcheck_cli.jacobian.directions import flat, reals
from gradcheck_cli.jacobian.jacobian import Backward
from gradcheck_cli.op import DTYPES, Ops
from gradcheck_cli.settings import Settings
from gradcheck_cli.verdict.agreement import FLOOR, gaps, held, least_step, wide
from gradcheck_cli.verdict.rule import RTOL, Comparison, Status, Tolerance, epsilon, ground_of

DRAWS = 4  # runs that measure rounding
EXACT = 16  # reals of y up to which each gets a cotangent of its own
DRAWN = 4  # cotangents of a larger y
MEASURED = 8  # factor on the measured effect of rounding
ROUNDINGS = 8  # of the less precise model: the default relative tolerance
_HELD = 16 * 8  # bytes per entry of a derivative: of both models, their rounding and the comparison
_QUANTIZED = re.compile("Quant|QLinear|Integer|NBits|^Q(Gemm|Attention|Embed|Ordered)")
_BITS = {8: 2.0**-8, 4: 2.0**-5}  # half a step by bits, relative to the largest entry
_FEW = re.compile("NBits|Bnb4|int4|uint4|int2|uint2|float4")


class Key(NamedTuple):
    """Names in A of a comparison: an output y, or the derivative of y by x."""

    y: str
    x: str = ""


KeyOutcome: TypeAlias = Comparison | GradcheckError | str  # a sentence: they differ in shape or presence
Measured: TypeAlias = dict[Key, Array | GradcheckError]


def between(rtol: float, atol: float) -> Tolerance:
    """The tolerance for the numbers of two models."""
    return Tolerance(rtol, atol, negligible=0.0, floor=FLOOR)


def differs(outcome: KeyOutcome) -> bool:
    """True if some entry of a comparison fails."""
    return isinstance(outcome, Comparison) and outcome.count(Status.FAIL) > 0


@dataclass(frozen=True)
class BothRuns:
    """Runs of A and of B; `ys` and `xs` are tensors of A with their partners in B, None where B has none."""

    a: ModelRun
    b: ModelRun
    ys: Mapping[str, str | None]
    xs: Mapping[str, str | None]
    pairs: Collection[Key]  # derivatives to compare
    tolerance: Callable[[Key], Tolerance]
    names: tuple[str, str]  # of both models, for messages
    weights: dict[str, Array] = field(default_factory=dict)

    def compared(self, by: PrecisionLoss, ops: Ops, only: Collection[Key] | None = None) -> dict[Key, KeyOutcome]:
        """The results for all keys, or for `only` some; rounding is measured where something differs."""
        mine, theirs = self._measured(self.a, only), self._measured(self.b, only)
        found = {key: self._held(key, mine[key], theirs.get(key, theirs.get(Key(key.y)))) for key in mine}
        found = {key: each for key, each in found.items() if not key.x or not isinstance(found.get(Key(key.y)), str)}
        differing = {k: each for k, each in found.items() if isinstance(each, Comparison) and differs(each)}
        draws = list(self._draws(by, ops, differing)) if differing else []
        return {**found, **{key: _with_rounding(key, each, draws) for key, each in differing.items()}}

    def is_exact(self, y: str) -> bool:
        """True if the derivative of y is that of each of its entries, and not of random sums of them."""
        return len(self._weights(y)) == self.a.size(y)

    def _measured(self, run: ModelRun, only: Collection[Key] | None) -> Measured:
        """Outputs of one model and their derivatives, by the names of A."""
        found: Measured = {}
        for y, partner in self.ys.items():
            name = partner if run is self.b else y
            if name is None or (only is not None and not any(key.y.startswith(y) for key in only)):
                continue
            if (error := run.tape.blocked.get(name)) is not None:
                found[Key(y)] = error
                continue
            found.update((Key(y + inside), value) for inside, value in run.tensors(name).items())
            keys = self.pairs if only is None else only
            xs = [x for x in self.xs if Key(y, x) in keys and self.a.floating(x)]
            if self.a.floating(y) and xs:
                found.update(self._derivatives(run, y, name, xs))
        return found if only is None else {key: value for key, value in found.items() if key in only}

    def _derivatives(self, run: ModelRun, y: str, name: str, xs: Sequence[str]) -> Measured:
        """Cotangents `(P, x_size)` of some xs: zeros for an x that the model lacks, NaN where y is not finite."""
        partners = {x: self.xs[x] if run is self.b else x for x in xs}
        there = {x: other for x, other in partners.items() if other is not None and run.floating(other)}
        weights = self._weights(y)
        nothing = np.where(weights.any(axis=1), 0.0, np.nan)[:, None]
        made: Measured = {Key(y, x): np.repeat(nothing, self.a.size(x), axis=1) for x in xs}
        if not run.floating(name) or run.size(name) != weights.shape[1]:
            return made
        try:
            cts = run.cotangents(name, list(there.values()), weights)
        except GradcheckError as error:
            return {**made, **{Key(y, x): error for x in there}}
        return {**made, **{Key(y, x): ct + nothing for x, ct in zip(there, cts, strict=True)}}

    def _weights(self, y: str) -> Array:
        """The cotangents of y, as many as the memory limit allows."""
        if y not in self.weights:
            entries = sum(self.a.size(x) for x in self.xs if self.a.floating(x))
            room = max(1, allowed(self.a.settings.memory_limit) // (_HELD * max(entries, 1)))
            self.weights[y] = self.a.weights(y, min(EXACT, room), min(DRAWN, room))
        return self.weights[y]

    def _held(self, key: Key, mine: Array | GradcheckError, theirs: Array | GradcheckError | None) -> KeyOutcome:
        here, there = self.names
        if isinstance(mine, GradcheckError):
            return _told(mine, here)
        if theirs is None or isinstance(theirs, GradcheckError):
            return f"{there} has no such output" if theirs is None else _told(theirs, there)
        if mine.shape != theirs.shape:
            return f"its shape is {list(mine.shape)} in {here} and {list(theirs.shape)} in {there}"
        if not key.x:
            return outputs_held(mine, theirs, self.tolerance(key))
        scale = np.abs(flat(wide(self.a.tape.named[key.x].value)))
        return held(mine.T, theirs.T, self.tolerance(key), ground_of(mine.T, theirs.T, scale))

    def _draws(self, by: PrecisionLoss, ops: Ops, keys: Collection[Key]) -> Iterator[tuple[Measured, bool]]:
        """Results of A with its numbers moved, and whether it took the same branches."""
        for number in range(DRAWS):
            source, feeds = moved(self.a.source, self.a.feeds, by, ops, number)
            run = ModelRun.of(source, feeds, [*self.ys, *self.xs], self.a.settings, ops)
            yield self._measured(run, keys), self.a.decides_like(run)


def outputs_held(a: Array, b: Array, tolerance: Tolerance) -> Comparison:
    """The comparison of two outputs of one shape as rows `(1, entries)`; integers, booleans and strings must be equal."""
    if object in (a.dtype, b.dtype):
        a, b, tolerance = np.zeros(a.shape), np.asarray(a.astype(str) != b.astype(str)), between(0.0, 0.0)
    numbers = np.result_type(wide(a), wide(b))
    here, there = _row(a.astype(numbers)), _row(b.astype(numbers))
    if not (is_inexact(a.dtype) and is_inexact(b.dtype)):
        tolerance, same = between(0.0, 0.0), (a == b).reshape(1, -1)
        there = np.where((here == there) & ~same, np.nextafter(there, np.inf), there)  # integers beyond 2^53
    return held(here, there, tolerance, ground_of(here.T, there.T))


def _row(value: Array) -> Array:
    """A tensor as one row of reals."""
    return flat(wide(value))[None]


def _with_rounding(key: Key, found: Comparison, draws: Sequence[tuple[Measured, bool]]) -> Comparison:
    """The comparison where rounding explains as much as it was measured to; a tolerance of 0 means equal."""
    tolerance, here = found.tolerance, found.theoretical
    if not (tolerance.rtol or tolerance.atol):
        return found
    others = [(value.T if key.x else _row(value), alike) for made, alike in draws
              if isinstance(value := made.get(key), np.ndarray) and value.dtype != object]  # fmt: skip
    spread = _spread(here, others, axis=0 if key.x else 1)
    return held(here, found.numerical, tolerance, found.ground, MEASURED * spread)


def _spread(here: Array, others: Iterable[tuple[Array, bool]], axis: int) -> Array:
    """Bounds of the change in other runs; each comes with a flag: True if it took every branch alike.

    A few runs do not move every entry as far as possible: each counts as moving by the root mean square along the axis
    at least, and, where branches differ, by as much as the entry that moves most.
    """
    found = np.zeros(here.shape)
    for other, alike in others:
        if other.shape == here.shape and here.size:
            gap = gaps(here, other)
            gap = np.where(np.isfinite(gap), gap, 0.0)
            usual = np.sqrt(np.mean(gap * gap, axis, keepdims=True)) if alike else np.max(gap, axis, keepdims=True)
            found = np.maximum(found, np.maximum(gap, usual))
    return found


def _told(error: GradcheckError, uri: str) -> GradcheckError:
    """The error with the name of its model."""
    told = copy(error)
    told.args = (f"{uri}: {error}",)
    return told


@dataclass(frozen=True)
class ModelRun:
    """A model that was run up to some targets; errors of those that could not be computed are in `Tape.blocked`."""

    source: Source
    feeds: Mapping[str, Any]
    tape: Tape
    settings: Settings

    @classmethod
    def of(
        cls, source: Source, feeds: Mapping[str, Any], targets: Sequence[str], settings: Settings, ops: Ops
    ) -> ModelRun:
        """A run with given feeds."""
        dtype, seed = settings.dtype, settings.seed
        tape = trace(source.graph, feeds, ops=ops, dtype=dtype, seed=seed, targets=targets, lenient=True)
        return cls(source, feeds, tape, settings)

    def tensors(self, name: str) -> dict[str, Array]:
        """The tensors in an output: itself, or those inside a sequence, an optional or a map, with a map's keys."""
        if name in self.tape.named:
            return {"": self.tape.named[name].value}
        if name not in self.tape.containers:
            return {}
        value = self.tape.containers[name]
        maps = [each for each in (value.items if isinstance(value, Several) else (value,)) if isinstance(each, Map)]
        keys = {f"[{i}] keys": np.asarray(each.keys, object) for i, each in enumerate(maps)}
        return {**{inner: var.value for inner, var in elements("", value).items()}, **keys}

    def floating(self, name: str) -> bool:
        """True for a tensor of floats or complex numbers."""
        return name in self.tape.named and is_inexact(self.tape.named[name].dtype)

    def cotangents(self, y: str, xs: Sequence[str], weights: Array) -> list[Array]:
        """Cotangents `(P, x_size)` of each x for sums of y weighed by `weights` `(P, y_size)`; zeros without a path.

        NoGradientError if an operator on the way has no rule.
        """
        named, budget = self.tape.named, Budget.within(self.settings)
        with self.tape.aside():
            return Backward(self.tape, named[y].name, [named[x].name for x in xs]).along(weights, budget)

    def weights(self, y: str, exact: int, drawn: int) -> Array:
        """Cotangents of y: a basis if it has at most `exact` reals, else `drawn` random ones."""
        value = flat(self.tape.named[y].value)
        rng = np.random.default_rng([self.settings.seed, 7])
        rows = np.eye(value.size) if value.size <= exact else rng.normal(size=(drawn, value.size))
        return np.where(np.isfinite(value), rows, 0.0)  # NaN and infinity have no derivative

    def size(self, name: str) -> int:
        return reals(self.tape.named[name].value)

    @property
    def piecewise(self) -> bool:
        """True if some step takes a branch or makes discrete values."""
        made = (n for step in self.tape.steps for n in step.node.outputs if n)
        return any(step.op.branch is not None for step in self.tape.steps) or any(
            not is_inexact(self.tape.values.like(n).dtype) for n in made
        )

    def changes_with_the_seed(self, ops: Ops) -> bool:
        """True if other random numbers change a result."""
        mine, settings = self.tape.named, replace(self.settings, seed=self.settings.seed + 1)
        other = ModelRun.of(self.source, self.feeds, list(mine), settings, ops).tape.named
        return any(not np.array_equal(mine[n].value, other[n].value) for n in mine if n in other)

    def decides_like(self, other: ModelRun) -> bool:
        """True if another run of the same steps took the same branch at each of them."""
        here, there = self.tape, other.tape
        steps = zip(here.steps, there.steps, strict=False)
        return len(here.steps) == len(there.steps) and all(_decide_alike(here, one, there, two) for one, two in steps)


def _decide_alike(here: Tape, one: Step, there: Tape, two: Step) -> bool:
    if one.op is not two.op:
        return False
    for mine, other in zip(one.node.outputs, two.node.outputs, strict=True):
        discrete = mine and not is_inexact(here.values.like(mine).dtype)
        if discrete and not np.array_equal(here.values[mine], there.values[other]):
            return False
    return one.op.branch is None or bool(np.array_equal(_branch(here, one), _branch(there, two)))


def _branch(tape: Tape, step: Step) -> Array:
    assert step.op.branch is not None
    return np.asarray(step.op.branch(*[tape.values[n] if n else None for n in step.operands], **step.metadata))


@dataclass(frozen=True, slots=True)
class ModelPrecision:
    """The floating-point dtypes of a model, its widest rounding, and half a step of its coarsest quantizer, or 0.

    `least` is the widest distance of its numbers below the normal range.
    """

    dtypes: tuple[str, ...]
    rounding: float
    step: float = 0.0
    least: float = 0.0

    def __str__(self) -> str:
        quantized = {0.0: (), _BITS[8]: ("8 bits",), _BITS[4]: ("4 bits",)}[self.step]
        return " and ".join((*self.dtypes, *quantized)) or "no floats"

    @classmethod
    def of(cls, source: Source) -> ModelPrecision:
        """The precision that a model declares."""
        graph, nodes = source.graph, [*source.graph.all_nodes]
        declared = [t.dtype for n, t in graph.types.items() if n in (*graph.inputs, *graph.outputs)]
        graphs = [graph, *(body for node in nodes for body in node.subgraphs)]
        constants = [v.dtype for each in graphs for v in each.constants.values()]
        cast = [DTYPES.get(to) for n in nodes if n.op == "Cast" and isinstance(to := n.attrs.get("to"), int)]
        floats = {d.name: d for d in [*declared, *constants, *cast] if d is not None and is_inexact(d)}
        widest = max((epsilon(dtype) / 2 for dtype in floats.values()), default=0.0)
        quantizers = [node.op for node in nodes if _QUANTIZED.search(node.op)]
        few = any(_FEW.search(text) for text in [*quantizers, *(d.name for d in constants)])
        least = max(map(least_step, floats.values()), default=0.0)
        return cls(tuple(sorted(floats)), widest, _BITS[4 if few else 8] if quantizers else 0.0, least)

    def loss(self, other: ModelPrecision) -> PrecisionLoss:
        """The errors of numbers that one model holds and the other held before."""
        steps = 0.0 if bool(self.step) == bool(other.step) else max(self.step, other.step)
        return PrecisionLoss(max(self.rounding, other.rounding), steps, max(self.least, other.least))


@dataclass(frozen=True, slots=True)
class PrecisionLoss:
    """Errors of one model's numbers in the other, relative to themselves and to the largest of a tensor.

    They are a rounding of the less precise model, and the step of a quantizer where one of the two quantizes.  A number
    that is not 0 is off by `least` at least: what would be 0 is often made the least number that there is.
    """

    rounding: float
    step: float
    least: float

    @property
    def rtol(self) -> float:
        """The default relative tolerance."""
        return max(RTOL, self.atol)

    @property
    def atol(self) -> float:
        """The default absolute tolerance for models run in their own dtypes, for results computed from ones."""
        return ROUNDINGS * max(self.rounding, self.step)


def moved(
    source: Source, feeds: Mapping[str, Any], by: PrecisionLoss, ops: Ops, seed: int
) -> tuple[Source, dict[str, Any]]:
    """A model and its feeds, with numbers moved at random, as far as `by` says.

    Integers stay, since they are exact in any dtype, and so do operands that decide on shapes and axes.
    """
    rng, known = np.random.default_rng([seed, 6]), [node for node in source.graph.all_nodes if node.key in ops]
    fixed = {node.inputs[i] for node in known for i in ops[node.key].static.values() if i < len(node.inputs)}

    def of_graph(graph: Graph) -> Graph:
        constants = {n: other(n, v) for n, v in graph.constants.items()}
        return replace(graph, constants=constants, nodes=tuple(node.with_graphs(of_graph) for node in graph.nodes))

    def other(name: str, value: Any) -> Any:
        if name in fixed or not isinstance(value, np.ndarray) or not is_inexact(value.dtype):
            return value
        return _moved(value, by, rng)

    return structs.replace(source, graph=of_graph(source.graph)), {n: other(n, v) for n, v in feeds.items()}


def _moved(value: Array, by: PrecisionLoss, rng: np.random.Generator) -> Array:
    exact = wide(value)
    largest = np.max(np.abs(exact), initial=0.0, where=np.isfinite(exact))
    with np.errstate(all="ignore"):
        whole = (exact == np.rint(exact)) & (np.abs(exact) < 1 << 11)
        off = rng.uniform(-1, 1, value.shape) * np.maximum(by.rounding * np.abs(exact), by.least) * np.sign(exact)
        off += by.step * largest * rng.uniform(-1, 1, value.shape)
        return np.where(whole | ~np.isfinite(exact), exact, exact + off)
