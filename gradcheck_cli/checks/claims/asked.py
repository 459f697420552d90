"""Which claims a check is about: those that were asked for, or those that a model makes by the names of its tensors."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from gradcheck_cli.checks.claims.claim import Beside, Claim, Inside
from gradcheck_cli.checks.claims.names import Gradients, likely_ys
from gradcheck_cli.errors import UsageError, did_you_mean, shown
from gradcheck_cli.formats import read
from gradcheck_cli.formats.source import Source
from gradcheck_cli.graph import Graph, is_inexact
from gradcheck_cli.points.targets import choose_y, is_float
from gradcheck_cli.settings import ANY, NOTHING, Numbers, Settings


@dataclass(frozen=True, slots=True)
class Asked:
    """The claims, and what there is to differentiate beside them by gradcheck's own rules."""

    claims: tuple[Claim, ...]
    xs: tuple[str, ...] | None  # None: those that one would choose anyway
    ys: tuple[str, ...]
    notes: tuple[str, ...] = ()


def asked(source: Source, settings: Settings) -> Asked:
    """The claims that settings ask for; where they ask for none, those that are found."""
    if settings.grad_model is not None:
        return _beside(source, settings, _other(settings.grad_model))
    if any(name != ANY for name in settings.grad):
        return _given(source, settings)
    return _found(source, settings)


def _given(source: Source, settings: Settings) -> Asked:
    """Tensors and numbers that were named."""
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
    return _with_others(source, settings, ys, claims)


def _beside(source: Source, settings: Settings, other: Source) -> Asked:
    """Tensors of another model."""
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
            f"'{missing}_grad'.  Say which: --grad {shown(missing or 'X')}=TENSOR.  Its outputs: {_listed(theirs.outputs)}"
        )
    claims = (Claim(x, ys, Beside(other, by) if isinstance(by, str) else by, seeds) for x, by in found.items())
    taken = [f"{n} for that by {x}" for x, n in by_shape.items()]
    notes = (f"by their shapes: {_listed(taken)}; --grad X=TENSOR says which",) if taken else ()
    return _with_others(source, settings, ys, tuple(claims), notes)


def _by_shape(graph: Graph, xs: Sequence[str], theirs: Graph, outputs: Sequence[str]) -> dict[str, str]:
    """Outputs for xs that have their shapes: in order where there are as many, else where there is no other choice."""
    shapes = {x: _shape(graph, x) for x in xs}
    others = {n: _shape(theirs, n) for n in outputs}
    if len(xs) == len(outputs) and (len(xs) == 1 or [*shapes.values()] == [*others.values()]):
        return dict(zip(xs, outputs, strict=True))
    fits = {x: [n for n in outputs if shape is not None and others[n] == shape] for x, shape in shapes.items()}
    return {x: some[0] for x, some in fits.items() if len(some) == 1 and [*fits.values()].count(some) == 1}


def _shape(graph: Graph, name: str) -> tuple[object, ...] | None:
    """The shape of a tensor as far as the file says."""
    if name in graph.constants:
        return graph.constants[name].shape
    return graph.types[name].shape if name in graph.types else None


def _found(source: Source, settings: Settings) -> Asked:
    """What a model claims by the names of its tensors, beside what is checked anyway."""
    graph, every = source.graph, choose_y(source.graph)
    plain = Asked((), settings.x, settings.y or every)
    if settings.grad.get(ANY) == NOTHING or settings.compat is not None:  # TensorFlow looks for none either
        return plain
    some = list(_by_name(graph, settings, every))
    needed = {ys: graph.needed_for(ys) for ys in {claim.ys for claim in some}}
    claims = tuple(claim for claim in some if _makes_sense(graph, claim, needed[claim.ys]))
    if not claims:
        return plain
    names = [str(claim.by) for claim in claims]
    note = (
        f"by their names {_listed(names)} {'is the gradient' if len(names) == 1 else 'are gradients'} of "
        f"{_listed(list(dict.fromkeys(c.y for c in claims)))}, and checked as such: --grad none leaves that out"
    )
    return Asked(claims, settings.x, settings.y or tuple(y for y in every if y not in names), (note,))


def _by_name(graph: Graph, settings: Settings, every: Sequence[str]) -> Iterator[Claim]:
    """Tensors that are called as gradients are, where it is certain of what: of several outputs one is not guessed."""
    made, possible = (
        Gradients(graph),
        settings.x or (*graph.free_inputs, *graph.constants),
    )  # all numbers are left alone
    certain = {(x, y): n for x in possible for y in settings.y or every if (n := made.of(y, x)) is not None}
    others = {x: n for x in possible if x not in {x for x, _ in certain} and (n := made.by(x)) is not None}
    yield from (Claim(x, (y,), Inside(name), found=True) for (x, y), name in certain.items())
    ys = likely_ys(graph, [*certain.values(), *others.values()]) if others else ()
    if len(ys) == 1 and settings.y in (None, ys):
        yield from (Claim(x, ys, Inside(name), found=True) for x, name in others.items())


def _makes_sense(graph: Graph, claim: Claim, needed: Collection[str]) -> bool:
    """y depends on x, and not on what is called its gradient; `needed` is all that it depends on."""
    return claim.x not in claim.ys and claim.x in needed and str(claim.by) not in needed and is_float(graph, claim.x)


def _with_others(
    source: Source, settings: Settings, ys: tuple[str, ...], claims: tuple[Claim, ...], notes: tuple[str, ...] = ()
) -> Asked:
    """What is claimed takes the place of what gradcheck finds; other xs that were asked for stay beside it."""
    claimed = {claim.x for claim in claims}
    idle = next((x for x in claimed if settings.x is not None and x not in settings.x), None)
    if idle is not None:
        known = _listed(settings.x or ())
        raise UsageError(f"--grad {shown(idle)}=... has no effect: {idle!r} is no x of this check ({known}).")
    return Asked(claims, tuple(x for x in settings.x or () if x not in claimed), ys, notes)


def _candidates(graph: Graph, ys: Sequence[str]) -> tuple[str, ...]:
    """What somebody may have differentiated by: inputs and parameters that some y depends on."""
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


def is_numbers(claim: Claim) -> bool:
    """It is about one point, the one at which the numbers were computed."""
    return isinstance(claim.by, Numbers) or any(isinstance(seed, Numbers) for seed in claim.seeds.values())
