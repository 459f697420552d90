"""What a claim gives at a point: a tensor of the model or of another one run in float64, or numbers as they were given.

What was computed here has rounding errors that are measured, by moving every result on the way.  Numbers have those of
whoever computed them: as large as the same roundings are in their dtype (`roundings`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from gradcheck_cli.autodiff.tape import Tape
from gradcheck_cli.autodiff.trace import trace
from gradcheck_cli.checks.claims.claim import Beside, Claim, Inside
from gradcheck_cli.checks.claims.names import gradient_names
from gradcheck_cli.checks.claims.subject import as_declared, drawn_seed
from gradcheck_cli.engine.program import Program
from gradcheck_cli.errors import UsageError, shown
from gradcheck_cli.graph import Array, Graph, is_inexact
from gradcheck_cli.op import Ops
from gradcheck_cli.points.dims import declared_shape
from gradcheck_cli.settings import Numbers
from gradcheck_cli.verdict.rule import epsilon

_SHORTER = (np.dtype(np.float16), np.dtype(np.float32))


from gradcheck_cli.checks.claims.stated import Moved


@dataclass(frozen=True, slots=True)
class Answer:
    """The claimed values; `moved` by seed of a jitter; `unit` is the rounding of numbers, 0 for what ran here.

    `tape` has the run that computed them, with `graph`, where one did, and `rounded` what another rounding of that
    graph's own constants would give: tools put numbers such as 2 / sqrt(pi) there in the model's dtype.
    """

    values: Array
    moved: Moved
    unit: float = 0.0
    tape: Tape | None = None
    graph: Graph | None = None
    rounded: Moved | None = None
    seeds: Mapping[str, Array] = field(default_factory=dict)  # by y, those that another model was given


def answer(claim: Claim, tape: Tape, graph: Graph, ops: Ops, seeds: Mapping[str, Array]) -> Answer:
    """What a claim gives at the point of a tape; GradcheckError where it cannot be had.

    Another model gets the `seeds` by name of y that are not ones; what it takes where nobody gave one is drawn.
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
    known = [name for name in other.tensors if name in tape.named]  # whose values tell whether it is the same forward
    run = trace(other, feeds, ops=ops, seed=tape.seed, targets=[claim.by.name, *known], lenient=True)
    own = [n for n, value in other.constants.items() if not _same(value, graph.constants.get(n))]
    return replace(_run(claim.by.name, run, other, own), seeds={y: given[y] for y in used})


def _run(name: str, tape: Tape, graph: Graph, own: Sequence[str]) -> Answer:
    """A tensor on a tape; rounding starts from what the graph is given, and from constants of its `own`."""
    if name in tape.blocked:
        raise tape.blocked[name]
    if name in tape.compounds or name not in tape.named:
        raise UsageError(f"{shown(name)!r} is no tensor that holds numbers.")
    there = [n for n in graph.tensors if n in tape.named and graph.producer(n) is None]
    leaves = [n for n in there if is_inexact(tape.named[n].dtype)]
    program = Program(tape, [tape.named[n].name for n in leaves], [tape.named[name].name])
    units = {n: epsilon(graph.constants[n].dtype) for n in own if n in leaves}

    def run(seed: int, jitter: np.random.Generator | None, moves: Mapping[str, float]) -> Array:
        rng = np.random.default_rng([seed, 11])
        stacks = {tape.named[n].name: _rounded(tape.named[n].value, moves.get(n, 0.0), rng)[None] for n in leaves}
        outcome = program.run(stacks, branches=True, jitter=jitter)
        return tape.named[name].value if outcome.any_crossed(1).any() else outcome.outputs[0][0]

    rounded = (lambda seed: run(seed, None, units)) if units else None
    moved = lambda seed: run(seed, np.random.default_rng(seed), {})  # noqa: E731
    return Answer(tape.named[name].value, moved, tape=tape, graph=graph, rounded=rounded)


def _rounded(values: Array, unit: float, rng: np.random.Generator) -> Array:
    """Numbers moved by a rounding, up or down; small integers, halves and the like are what they are meant to be."""
    if not unit:
        return values
    meant = values * 16 == np.rint(values * 16)
    return np.asarray(values * np.where(meant, 1.0, 1.0 + unit * rng.choice([-0.5, 0.5], values.shape)))


def _same(one: Array, other: Array | None) -> bool:
    return other is not None and one.dtype == other.dtype and np.array_equal(one, other)


def unit_of(values: Array) -> float:
    """The rounding of the shortest dtype that has all of these numbers; those of a tool often come as longer ones."""
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
    """An input may have this value, as far as its declaration says."""
    declared, shape = graph.types.get(name), declared_shape(graph, name)
    same = declared is None or declared.dtype is None or is_inexact(declared.dtype) == is_inexact(value.dtype)
    if shape is None or len(shape) != value.ndim:
        return False
    return same and all(not isinstance(d, int) or d == size for d, size in zip(shape, value.shape, strict=True))
