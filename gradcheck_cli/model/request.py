"""One derivative that was requested of a model, and the nodes that it adds to a tape."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from gradcheck_cli.autodiff import symbolic as sym
from gradcheck_cli.autodiff.backward import gradients
from gradcheck_cli.autodiff.tape import Tape, Var
from gradcheck_cli.errors import UsageError
from gradcheck_cli.graph import Array, Node
from gradcheck_cli.graph.containers import described


@dataclass(frozen=True, slots=True)
class Seed:
    """An initial gradient that is an input of its own, of the shape of its y.

    One that is not `open` has no effect on any result: derivatives are only taken with respect to it.
    """

    name: str
    open: bool = True


@dataclass(frozen=True, slots=True)
class Request:
    """One call of `gradients`, by names of tensors.

    `grad_ys` are names, arrays, seeds or None (ones); `names` are the wanted names of results, if any; `results` the
    names of the handles that the call gave, None where y and x are not connected.
    """

    scope: str
    ys: tuple[str, ...]
    xs: tuple[str, ...]
    grad_ys: tuple[str | Array | Seed | None, ...]
    stop: tuple[str, ...]
    aggregate: Callable[[Sequence[Var]], Var]
    gate: bool
    colocate: bool
    zeros: bool
    results: tuple[str | None, ...] = ()
    names: tuple[str, ...] = ()

    @property
    def seeds(self) -> tuple[Seed, ...]:
        """The inputs that it adds."""
        return tuple(given for given in self.grad_ys if isinstance(given, Seed))

    @property
    def reads(self) -> tuple[str, ...]:
        """Names of the tensors that it needs."""
        return (*self.ys, *self.xs, *(g for g in self.grad_ys if isinstance(g, str)))

    @property
    def node(self) -> Node:
        """The derivative as one node, for reachability."""
        read = (*self.reads, *(seed.name for seed in self.seeds))
        return Node("gradients", read, tuple(n or "" for n in self.results), domain="gradcheck")


def derive(tape: Tape, request: Request) -> list[Var | None]:
    """Adds the nodes of one derivative to a tape; gives a `Var` for each x, None where nothing flows.

    Rules are plain transposes; users give and get gradients in TensorFlow's sense, d/dRe + i d/dIm of a real function,
    which is the conjugate.
    """
    for name in request.reads:
        if name in tape.blocked:
            raise tape.blocked[name]
        if name in tape.containers:
            raise UsageError(f"{name!r} is {described(tape.containers[name])}: only tensors have gradients.")
    with tape.scope(request.scope), tape.from_node(-1, {}):
        seeds: dict[str, Var] = {}
        for i, (y, given) in enumerate(zip(request.ys, request.grad_ys, strict=True)):
            var, seed = tape.named[y], sym.conj(_seed(tape, y, given, i))
            seeds[var.name] = seeds[var.name] + seed if var.name in seeds else seed
        found = gradients(
            tape,
            seeds,
            [tape.named[x].name for x in request.xs],
            stop=[tape.named[s].name for s in request.stop if s in tape.named],
            aggregate=request.aggregate,
            gate=request.gate,
            colocate=request.colocate,
        )
        return [None if ct is None else sym.conj(ct) for ct in found]


def name_results(tape: Tape, request: Request, found: Sequence[Var | None]) -> None:
    """Names the results on the tape; zeros if a result was promised and this run connects nothing."""
    for name, x, var in zip(request.results, request.xs, found, strict=True):
        if name is not None:
            with tape.scope(request.scope), tape.from_node(-1, {}):
                tape.named[name] = sym.zeros_like(tape.named[x]) if var is None else var


def _seed(tape: Tape, name: str, given: str | Array | Seed | None, index: int) -> Var:
    """The cotangent of a y that a call gave: a tensor, numbers, one number for all entries, an input, or ones."""
    y = tape.named[name]
    if isinstance(given, Seed):
        return _input(tape, y, given)
    value = tape.named[given].value if isinstance(given, str) else np.asarray(1 if given is None else given)
    if not isinstance(given, str) and not value.shape:
        value = np.broadcast_to(value, y.shape)
    if value.shape != y.shape:
        raise UsageError(f"grad_ys[{index}] has shape {list(value.shape)}; {name!r} has {list(y.shape)} in this run.")
    if isinstance(given, str):
        return sym.cast(tape.named[given], y.dtype)
    return tape.constant(value.astype(y.dtype), name=f"grad_ys_{index}")


def _input(tape: Tape, y: Var, seed: Seed) -> Var:
    """The input of a seed on a tape."""
    if seed.name not in tape.named:
        name = tape.fresh(seed.name)
        rng = np.random.default_rng(len(tape.steps))
        values = rng.uniform(-1, 1, y.shape).astype(y.dtype)
        tape.named[seed.name] = tape.hold(name, values) if seed.open else tape.weight(name, np.zeros_like(values))
    return tape.named[seed.name]
