"""A claim: a tensor of the model, numbers, or a tensor of another model that is said to be the derivative of y by x.

Claims are given by --grad and --grad-model, or found by the names of a model's tensors (`asked`).  A claim may be about
several ys together, each weighed by a seed, which is ones unless given; `put` adds that sum to a tape.  The shape of
claimed numbers tells how to read them: as a cotangent of x or as a whole Jacobian (`layouts`).

`Answer` has the values of a claim at a point, and bounds of their rounding errors: those of the numbers that its author
computed with, and of the dtype it is written in.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from gradcheck_cli.autodiff import symbolic as sym
from gradcheck_cli.autodiff.tape import Tape, Var
from gradcheck_cli.autodiff.trace import trace
from gradcheck_cli.engine.program import Program
from gradcheck_cli.engine.rounding import RandomRounding
from gradcheck_cli.errors import UsageError, did_you_mean, quoted, shown
from gradcheck_cli.formats import read
from gradcheck_cli.formats.gradient_nodes import GRADIENT
from gradcheck_cli.formats.source import Source
from gradcheck_cli.graph import Array, Graph, is_inexact
from gradcheck_cli.op import Ops
from gradcheck_cli.points.dims import declared_shape
from gradcheck_cli.points.targets import choose_y, is_float
from gradcheck_cli.settings import ANY, NOTHING, Numbers, Settings
from gradcheck_cli.verdict.rule import epsilon

_OF_X = ("{x}_grad", "grad_{x}", "{x}.grad", "adj_{x}")
_OF_BOTH = ("d{y}_d{x}", "d{y}/d{x}", "d_{y}_d_{x}")
_DRAWN = 7  # stream of random numbers for seeds
COTANGENT = "as x"
Moved: TypeAlias = Callable[[int], Array]  # numbers with rounding errors, by seed
Shape = tuple[int, ...]


class Inside(Struct, frozen=True):
    """A tensor of the model that is checked."""

    name: str

    def __str__(self) -> str:
        return self.name


class Beside(Struct, frozen=True):
    """A tensor of another model."""

    source: Source
    name: str

    def __str__(self) -> str:
        return f"{Path(self.source.uri).name}:{self.name}"


By: TypeAlias = Inside | Beside | Numbers


class Claim(Struct, frozen=True):
    """One claimed derivative, and its source; `found` if it was recognized by name and not asked for."""

    x: str
    ys: tuple[str, ...]
    by: By
    seeds: Mapping[str, str | Numbers] = field(default_factory=dict)  # by y: a tensor of the model, or numbers
    found: bool = False

    @property
    def y(self) -> str:
        """Name of the differentiated tensor, or of the sum of several."""
        return " + ".join(self.ys)

    @property
    def kind(self) -> str:
        """Kind of the source, as records state it."""
        return {Inside: "tensor", Beside: "model", Numbers: "file"}[type(self.by)]


def is_numbers(claim: Claim) -> bool:
    """True for a claim by numbers, which belong to one point only."""
    return isinstance(claim.by, Numbers) or any(isinstance(seed, Numbers) for seed in claim.seeds.values())


class AskedClaims(Struct, frozen=True):
    """The claims of a check, and the xs and ys to differentiate beside them by gradcheck's own rules."""

    claims: tuple[Claim, ...]
    xs: tuple[str, ...] | None  # None: the default ones
    ys: tuple[str, ...]
    notes: tuple[str, ...] = ()


def asked(source: Source, settings: Settings) -> AskedClaims:
    """The claims that settings ask for, or else those that are found by name."""
    if settings.grad_model is not None:
        return _beside(source, settings, _other(settings.grad_model))
    if any(name != ANY for name in settings.grad):
        return _given(source, settings)
    return _found(source, settings)


def _given(source: Source, settings: Settings) -> AskedClaims:
    """Claims by named tensors and numbers."""
    graph = source.graph
    named = [by for by in settings.grad.values() if isinstance(by, str)]
    ys = settings.y or likely_ys(graph, named)
    seeds = {name: by for name, by in settings.grad.items() if name in ys}
    claims = tuple(
        Claim(x, ys, Inside(by) if isinstance(by, str) else by, seeds)
        for x, by in settings.grad.items()
        if x not in seeds
    )
    for name in (*settings.grad, *named):
        _require(graph, name, source.uri)
    if not claims:
        y = next(iter(seeds))
        begins = f"{shown(y)!r} is a y, so this is the gradient that a claim begins with, and there is no claim"
        raise UsageError(f"--grad {shown(y)}=...: {begins}. Name one beside it: --grad X=TENSOR.")
    return _with_others(settings, ys, claims)


def _beside(source: Source, settings: Settings, other: Source) -> AskedClaims:
    """Claims by tensors of another model."""
    graph, theirs = source.graph, other.graph
    ys = settings.y or likely_ys(graph, ())
    seeds = {name: by for name, by in settings.grad.items() if name in ys}
    given = {x: by for x, by in settings.grad.items() if x not in seeds and x != ANY}
    wanted = {x: by for x, by in given.items() if isinstance(by, str)}
    for name in wanted.values():
        _require(theirs, name, other.uri)
    xs = settings.x or tuple(given) or _candidates(graph, ys)
    made = Gradients(theirs)
    named = {x: n for x in xs if (n := wanted.get(x) or made.by(x, ys)) is not None}
    left = [x for x in xs if x not in named and x not in given]
    by_shape = _by_shape(graph, left, theirs, [n for n in choose_y(theirs) if n not in (*ys, *named.values())])
    found: dict[str, str | Numbers] = {**named, **by_shape}
    found |= {x: by for x, by in given.items() if isinstance(by, Numbers)}
    missing = next((x for x in settings.x or xs[: not found] if x not in found), None)
    if missing is not None or not found:
        raise UsageError(
            f"--grad-model {other.uri}: none of its tensors is called as a gradient by {missing!r} is, such as "
            f"'{missing}_grad'.  Say which: --grad {quoted(missing or 'X')}=TENSOR.  Its outputs: {_listed(theirs.outputs)}"
        )
    claims = (Claim(x, ys, Beside(other, by) if isinstance(by, str) else by, seeds) for x, by in found.items())
    taken = [f"{n} for that by {x}" for x, n in by_shape.items()]
    notes = (f"by their shapes: {_listed(taken)}; --grad X=TENSOR says which",) if taken else ()
    return _with_others(settings, ys, tuple(claims), notes)


def _by_shape(graph: Graph, xs: Sequence[str], theirs: Graph, outputs: Sequence[str]) -> dict[str, str]:
    """Outputs for xs of the same shapes: in order if there are as many, else where only one fits."""
    shapes = {x: _shape(graph, x) for x in xs}
    others = {n: _shape(theirs, n) for n in outputs}
    if len(xs) == len(outputs) and (len(xs) == 1 or [*shapes.values()] == [*others.values()]):
        return dict(zip(xs, outputs, strict=True))
    fits = {x: [n for n in outputs if shape is not None and others[n] == shape] for x, shape in shapes.items()}
    return {x: some[0] for x, some in fits.items() if len(some) == 1 and [*fits.values()].count(some) == 1}


def _shape(graph: Graph, name: str) -> tuple[object, ...] | None:
    """The declared shape of a tensor."""
    if name in graph.constants:
        return graph.constants[name].shape
    return graph.types[name].shape if name in graph.types else None


def _found(source: Source, settings: Settings) -> AskedClaims:
    """Claims that a model makes by the names of its tensors."""
    graph, every = source.graph, choose_y(source.graph)
    plain = AskedClaims((), settings.x, settings.y or every)
    if settings.grad.get(ANY) == NOTHING or settings.compat is not None:  # TensorFlow does not look for any either
        return plain
    some, unclear = _by_name(graph, settings, every)
    needed = {ys: graph.needed_for(ys) for ys in {claim.ys for claim in (*some, *unclear)}}
    claims = tuple(claim for claim in some if _makes_sense(graph, claim, needed[claim.ys]))
    notes = tuple(_unclear(claim) for claim in unclear if _makes_sense(graph, claim, needed[claim.ys]))
    if not claims:
        return replace(plain, notes=notes)
    names = [str(claim.by) for claim in claims]
    note = (
        f"by their names {_listed(names)} {'is the gradient' if len(names) == 1 else 'are gradients'} of "
        f"{_listed(list(dict.fromkeys(c.y for c in claims)))}, and checked as such: --grad none leaves that out"
    )
    return AskedClaims(claims, settings.x, settings.y or tuple(y for y in every if y not in names), (note, *notes))


def _by_name(graph: Graph, settings: Settings, every: Sequence[str]) -> tuple[list[Claim], list[Claim]]:
    """Tensors named as gradients where it is certain of which y, and those that may be of any of several."""
    made, possible = Gradients(graph), settings.x or (*graph.free_inputs, *graph.constants)
    certain = {(x, y): n for x in possible for y in settings.y or every if (n := made.of(y, x)) is not None}
    others = {x: n for x in possible if x not in {x for x, _ in certain} and (n := made.by(x)) is not None}
    found = [Claim(x, (y,), Inside(name), found=True) for (x, y), name in certain.items()]
    ys = likely_ys(graph, [*certain.values(), *others.values()]) if others else ()
    asked = ys if settings.y is None else tuple(y for y in ys if y in settings.y)
    clear = asked if len(ys) == 1 else tuple(y for y in asked if _is_scalar(graph, y))
    about = [
        Claim(x, clear if len(clear) == 1 else ys, Inside(name), found=True) for x, name in others.items() if asked
    ]
    return (found + about, []) if len(clear) == 1 else (found, about)


def _unclear(claim: Claim) -> str:
    """The sentence on a tensor that is a gradient by its name, though nothing says of which y."""
    asked = f"--y {quoted(claim.ys[0])} --grad {quoted(f'{claim.x}={claim.by}')}"
    return (
        f"by its name {shown(str(claim.by))} is a gradient by {shown(claim.x)}, and not checked as such, since nothing "
        f"says of which of {_listed(claim.ys)}: {asked} does"
    )


def _makes_sense(graph: Graph, claim: Claim, needed: Collection[str]) -> bool:
    """True if y depends on x but not on its claimed gradient; `needed` are all tensors that y depends on."""
    return claim.x not in claim.ys and claim.x in needed and str(claim.by) not in needed and is_float(graph, claim.x)


def _with_others(
    settings: Settings, ys: tuple[str, ...], claims: tuple[Claim, ...], notes: tuple[str, ...] = ()
) -> AskedClaims:
    """The claims, and those xs that were asked for and have none."""
    claimed = {claim.x for claim in claims}
    idle = next((x for x in claimed if settings.x is not None and x not in settings.x), None)
    if idle is not None:
        known = _listed(settings.x or ())
        raise UsageError(f"--grad {shown(idle)}=... has no effect: {idle!r} is no x of this check ({known}).")
    return AskedClaims(claims, tuple(x for x in settings.x or () if x not in claimed), ys, notes)


def _candidates(graph: Graph, ys: Sequence[str]) -> tuple[str, ...]:
    """Tensors that a gradient may be by: float inputs and parameters that some y depends on."""
    needed = graph.needed_for(ys)
    floats = [n for n in graph.free_inputs if is_float(graph, n)]
    constants = [n for n, v in graph.constants.items() if is_inexact(v.dtype) and v.ndim and v.size]
    return tuple(n for n in dict.fromkeys([*floats, *constants]) if n in needed)


def _other(path: str) -> Source:
    spec = read(path)
    if spec.meant is None:
        raise UsageError(f"--grad-model {shown(path)}: it holds {len(spec.sources)} models, not one.")
    return spec.meant


def _require(graph: Graph, name: str, uri: str) -> None:
    if name not in graph.tensors:
        raise UsageError(f"--grad: {uri} has no tensor {name!r}.{did_you_mean(name, graph.tensors)}")


def _listed(names: Collection[str], most: int = 8) -> str:
    several = [shown(name) for name in names]
    return ", ".join(several[:most]) + (f", ... {len(several) - most} more" if len(several) > most else "") or "none"


def gradient_names(x: str) -> Iterator[str]:
    """Names that tools give to the gradient by x, whatever y is."""
    return (pattern.format(x=x) for pattern in _OF_X)


class Gradients:
    """The tensors that the nodes of a graph compute, among them those that are gradients."""

    def __init__(self, graph: Graph) -> None:
        self.computed = computed(graph)
        self.nodes = [node for node in graph.nodes if node.key == GRADIENT]

    def of(self, y: str, x: str) -> str | None:
        """The gradient of a certain y by x, by its name or by one of ONNX's `Gradient` nodes."""
        names = (pattern.format(x=x, y=y) for pattern in _OF_BOTH)
        return next((name for name in names if name in self.computed), next(self._of_nodes(y, x), None))

    def by(self, x: str, ys: Sequence[str] = ()) -> str | None:
        """The gradient by x, of one of the ys if its name says so."""
        certain = next((name for y in ys if (name := self.of(y, x)) is not None), None)
        return certain or next((name for name in gradient_names(x) if name in self.computed), None)

    def _of_nodes(self, y: str, x: str) -> Iterator[str]:
        for node in (node for node in self.nodes if node.attrs.get("y") == y):
            yield from (out for each, out in zip(node.attrs.get("xs", ()), node.outputs, strict=False) if each == x)


def computed(graph: Graph) -> set[str]:
    return {name for node in graph.nodes for name in node.outputs if name}


def likely_ys(graph: Graph, claimed: Collection[str]) -> tuple[str, ...]:
    """The ys that gradients of a model are most likely of: float outputs that are no gradients themselves.

    Of several it is the one that has a gradient of its own, which is a seed, or else the only scalar.
    """
    ys = tuple(y for y in choose_y(graph) if y not in claimed)
    tensors = {*graph.inputs, *graph.constants, *computed(graph)}
    seeded = [y for y in ys if not tensors.isdisjoint(gradient_names(y))]
    scalars = [y for y in ys if _is_scalar(graph, y)]
    return next((tuple(some) for some in (seeded, scalars) if len(some) == 1 < len(ys)), ys)


def _is_scalar(graph: Graph, y: str) -> bool:
    declared = graph.types.get(y)
    return declared is not None and declared.shape is not None and all(d == 1 for d in declared.shape)


def seed_name(graph: Graph, y: str) -> str | None:
    """The tensor that is the seed of y by its name: a gradient by y that is not y itself."""
    tensors = {*graph.inputs, *graph.constants, *computed(graph)}
    return next((n for n in gradient_names(y) if n in tensors and n != y and is_float(graph, n, unknown=True)), None)


def seeds_of(claim: Claim, tape: Tape, graph: Graph) -> tuple[dict[str, Array], dict[str, str]]:
    """The seed of each y: as given, as in the model, or ones; and the names of those that are not ones."""
    values, called = {}, {}
    for y in claim.ys:
        shape = tape.named[y].shape
        by = claim.seeds.get(y) or (seed_name(graph, y) if isinstance(claim.by, Inside) else None)
        value = None if by is None else _value(by, tape)
        asked = y in claim.seeds
        if value is not None and value.size == math.prod(shape):
            values[y], called[y] = value.astype(np.float64).reshape(shape), str(by)
        elif asked:
            raise UsageError(f"--grad {shown(y)}={by}: the seed of {y!r} has to be of its shape, {list(shape)}")
        else:
            values[y] = np.ones(shape)
    return values, called


def _value(by: str | Numbers, tape: Tape) -> Array | None:
    if isinstance(by, Numbers):
        return np.asarray(by.values)
    return tape.named[by].value if by in tape.named else None


def drawn_seed(y: Array, seed: int) -> Array:
    """A random seed for an input that nobody gave: of both signs, since ones hide errors."""
    return np.asarray(np.random.default_rng([seed, _DRAWN]).normal(size=y.shape))


def as_declared(graph: Graph, name: str, seed: Array) -> Array:
    """A seed in the declared shape of an input, which may have an axis for several seeds."""
    declared = graph.types.get(name)
    rank = seed.ndim if declared is None or declared.shape is None else len(declared.shape)
    if rank == seed.ndim:
        return seed
    return seed.reshape((*seed.shape, 1) if rank == seed.ndim + 1 else (seed.size, 1) if rank == 2 else seed.shape)


def put(tape: Tape, ys: Sequence[str], seeds: Mapping[str, Array]) -> str:
    """The name of the sum of ys weighed by seeds, which is added to the tape; y itself for one y with seed 1."""
    if len(ys) == 1 and seeds[ys[0]].size == 1 and seeds[ys[0]].item() == 1:
        return ys[0]
    parts = [_weighed(tape, y, seeds[y]) for y in ys]
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    name = tape.fresh("claimed")
    tape.named[name] = total
    return name


def _weighed(tape: Tape, y: str, seed: Array) -> Var:
    value = tape.named[y]
    if not value.ndim:
        return value * float(seed)
    weights = tape.hold(tape.fresh(f"{y}/seed"), seed.astype(value.dtype))
    return sym.sum(value * weights, keepdims=False)


class Layout(NamedTuple):
    """An order of axes, and the function that reads such numbers as the Jacobian `(x_size, y_size)`."""

    order: str
    read: Callable[[Array], Array]


def layouts(shape: Shape, x: Shape, y: Shape | None) -> list[Layout]:
    """The possible readings of numbers of a shape; none where it does not fit. y is None for a sum of several.

    Where a shape fits both orders of axes, the first is meant: y before x, as PyTorch and JAX have it.
    """
    rows = math.prod(x)
    if shape in (x, (*x, 1), (rows, 1)):  # the last two: from tools with an axis for several seeds
        return [Layout(COTANGENT, lambda values: values.reshape(-1, 1))]
    if y is None:
        return []
    columns = math.prod(y)
    before = {(columns, *x): "[entries of y, x...]", (*y, *x): "[y..., x...]"}
    behind = {(*x, columns): "[x..., entries of y]", (*x, *y): "[x..., y...]"}
    if columns > 1:  # else a gradient as a matrix, which is no Jacobian
        before = {(columns, rows): "[entries of y, entries of x]", **before}
        behind = {(rows, columns): "[entries of x, entries of y]", **behind}
    found = [Layout(before[shape], lambda values: values.reshape(columns, rows).T)] if shape in before else []
    return found + ([Layout(behind[shape], lambda values: values.reshape(rows, columns))] if shape in behind else [])


def expected(x: Shape, y: Shape | None) -> str:
    """The shapes that would fit, in words."""
    shapes = dict.fromkeys([x] if y is None else [x, (*y, *x), (*x, *y)])
    return " or ".join(f"[{','.join(map(str, shape))}]" for shape in shapes)


class Answer(Struct, frozen=True):
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
    blur: Array | None = None  # see `Numbers`


def answer(claim: Claim, tape: Tape, graph: Graph, ops: Ops, seeds: Mapping[str, Array]) -> Answer:
    """The values of a claim at the point of a tape; GradcheckError if they cannot be computed.

    Another model is fed the `seeds` by name of y that were given; its other seeds are random.
    """
    if isinstance(claim.by, Numbers):
        values = np.asarray(claim.by.values)
        unit = unit_of(values)
        return Answer(values.astype(np.float64), lambda seed: values.astype(np.float64), unit, blur=claim.by.blur)
    if isinstance(claim.by, Inside):
        shared = graph.needed_for(claim.ys)
        return _run(claim.by.name, tape, graph, [n for n in graph.constants if n not in shared])
    other = claim.by.source.graph
    given = {y: seed if y in claim.seeds else drawn_seed(seed, tape.seed) for y, seed in seeds.items()}
    feeds, used = matched(claim, tape, other, given)
    known = [n for n in other.tensors if n in tape.named]  # their values show whether the forward run is the same
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
        stacks = {tape.named[n].name: roughened(tape.named[n].value, moves.get(n, 0.0), rng)[None] for n in leaves}
        outcome = program.run(stacks, branches=True, rounding=rounding)
        return tape.named[name].value if outcome.any_crossed(1).any() else outcome.outputs[0][0]

    rounded = (lambda seed: run(seed, None, units)) if units else None
    moved = lambda seed: run(seed, RandomRounding.seeded(seed), {})  # noqa: E731
    return Answer(tape.named[name].value, moved, tape=tape, graph=graph, rounded=rounded)


def roughened(values: Array, unit: float, rng: np.random.Generator) -> Array:
    """Numbers moved by a rounding, up or down, except small multiples of 1/16, which are exact."""
    if not unit:
        return values
    meant = values * 16 == np.rint(values * 16)
    return np.asarray(values * np.where(meant, 1.0, 1.0 + unit * rng.choice([-0.5, 0.5], values.shape)))


def _same(one: Array, other: Array | None) -> bool:
    return other is not None and one.dtype == other.dtype and np.array_equal(one, other)


def unit_of(values: Array) -> float:
    """The rounding of the shortest dtype that holds all of these numbers, which files often widen."""
    if values.dtype.name in ("bfloat16", "float16", "float32"):
        return epsilon(values.dtype)
    with np.errstate(all="ignore"):
        short = values.astype(np.float32)
    fits = values.dtype.kind == "f" and np.array_equal(short.astype(values.dtype), values, equal_nan=True)
    return epsilon(short.dtype if fits else np.dtype(np.float64))


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
