"""What claims are about, on a tape: y, or the sum of ys weighed by their seeds, with gradcheck's own derivative of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from gradcheck_cli.autodiff import symbolic as sym
from gradcheck_cli.autodiff.tape import Tape, Var
from gradcheck_cli.checks.claims.claim import Claim, Inside
from gradcheck_cli.checks.claims.names import seed_name
from gradcheck_cli.errors import UsageError, shown
from gradcheck_cli.graph import Array, Graph
from gradcheck_cli.settings import Numbers

_DRAWN = 7  # what seeds are drawn with, apart from all else that is


def drawn_seed(y: Array, seed: int) -> Array:
    """A seed that nobody gave where there is an input for it: of both signs, since ones hide errors."""
    return np.asarray(np.random.default_rng([seed, _DRAWN]).normal(size=y.shape))


def as_declared(graph: Graph, name: str, seed: Array) -> Array:
    """A seed in the shape that an input has for it, which may have an axis for several seeds: here it is one."""
    declared = graph.types.get(name)
    rank = seed.ndim if declared is None or declared.shape is None else len(declared.shape)
    if rank == seed.ndim:
        return seed
    return seed.reshape((*seed.shape, 1) if rank == seed.ndim + 1 else (seed.size, 1) if rank == 2 else seed.shape)


def seeds_of(claim: Claim, tape: Tape, graph: Graph) -> tuple[dict[str, Array], dict[str, str]]:
    """The seeds by y that are given or stand in the model, ones for the others; and by what they are called."""
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


def put(tape: Tape, ys: Sequence[str], seeds: Mapping[str, Array]) -> str:
    """The name, among those of a tape's graph, of the sum of ys weighed by seeds: y itself where that is the same."""
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
