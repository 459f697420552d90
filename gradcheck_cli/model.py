"""A model as the Python API holds it: a mutable handle over a frozen graph and the derivatives asked of it.

A derivative is a request: nothing is computed until tensors are run, then the request adds its nodes to that
run's tape.  A sample run at drawn values tells names, shapes and what is connected.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gradcheck_cli import symbolic as sym
from gradcheck_cli.backward import gradients
from gradcheck_cli.custom import with_custom
from gradcheck_cli.errors import UsageError, did_you_mean
from gradcheck_cli.formats.source import Source
from gradcheck_cli.graph import Array, Dim, Graph
from gradcheck_cli.op import Ops
from gradcheck_cli.point import find_point, open_dims
from gradcheck_cli.settings import Settings
from gradcheck_cli.tape import Tape, Var


@dataclass(frozen=True, slots=True)
class Request:
    """One call of `gradients`: names of tensors, and how to add the nodes.

    `grad_ys` are names, arrays or None (ones); `results` the names of the handles that the call gave, None
    where y and x are not connected.
    """

    scope: str
    ys: tuple[str, ...]
    xs: tuple[str, ...]
    grad_ys: tuple[str | Array | None, ...]
    stop: tuple[str, ...]
    aggregate: Callable[[Sequence[Var]], Var]
    gate: bool
    colocate: bool
    zeros: bool
    results: tuple[str | None, ...] = ()


class Tensor:
    """A tensor of a model: `name`, `shape`, `dtype`, and the `model` itself."""

    __slots__ = ("model", "name")

    def __init__(self, model: Model, name: str) -> None:
        self.model, self.name = model, name

    @property
    def shape(self) -> tuple[Dim, ...]:
        """Its dimensions: ints, or names of symbolic ones (None: unknown) where the file leaves them open."""
        return self.model.shape(self.name)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype that the model computes it in."""
        return self.model.dtype(self.name)

    def __repr__(self) -> str:
        return f"<Tensor {self.name!r} shape={self.shape} dtype={self.dtype.name}>"


class Model:
    """A mutable handle over a frozen graph; `gradients` adds derivatives to it, and handles stay valid."""

    def __init__(self, source: Source, ops: Ops, dims: Mapping[str, int] | None = None) -> None:
        self.source, self.ops = source, with_custom(ops, source.operators)
        self.dims = dict(dims or {})
        self.requests: list[Request] = []
        self._sample: Tape | None = None

    @property
    def graph(self) -> Graph:
        """The model's graph as it was read."""
        return self.source.graph

    @property
    def tensors(self) -> tuple[str, ...]:
        """Names of all tensors, those of derivatives included."""
        return (*self.graph.tensors, *(name for request in self.requests for name in request.results if name))

    def __getitem__(self, name: str) -> Tensor:
        if not isinstance(name, str):
            raise UsageError(f"model[{name!r}]: the name of a tensor is a string.")
        if name not in self.tensors:
            raise UsageError(f"{self.source.uri} has no tensor {name!r}.{did_you_mean(name, self.tensors)}")
        return Tensor(self, name)

    def __contains__(self, name: object) -> bool:
        return name in self.tensors

    def __repr__(self) -> str:
        graph = self.graph
        return f"<Model {self.source.uri!r}: ({', '.join(graph.inputs)}) -> ({', '.join(graph.outputs)})>"

    def shape(self, name: str) -> tuple[Dim, ...]:
        """The declared shape of a tensor, or that of the sample run, unknown where dimensions are open."""
        declared = self.graph.types.get(name)
        if declared is not None and declared.shape is not None:
            return tuple(self.dims.get(d, d) if isinstance(d, str) else d for d in declared.shape)
        if name in self.graph.constants:
            return tuple(self.graph.constants[name].shape)
        x = next((x for r in self.requests for x, made in zip(r.xs, r.results, strict=True) if made == name), None)
        if x is not None:
            return self.shape(x)
        sampled = self._sampled(name).shape
        return (None,) * len(sampled) if self.free_dims else sampled

    @property
    def free_dims(self) -> tuple[str, ...]:
        """Open dimensions of the inputs to which `load` gave no size."""
        return tuple(d for d in open_dims(self.graph) if d not in self.dims and d not in self.source.dims)

    def dtype(self, name: str) -> np.dtype[Any]:
        """The declared dtype of a tensor, or that of the sample run."""
        declared = self.declared_dtype(name)
        return self._sampled(name).dtype if declared is None else declared

    def declared_dtype(self, name: str) -> np.dtype[Any] | None:
        """The dtype that the file says a tensor has; None where it does not."""
        if name in self.graph.constants:
            return self.graph.constants[name].dtype
        declared = self.graph.types.get(name)
        return None if declared is None else declared.dtype

    def sample(self) -> Tape:
        """A run at drawn values with every derivative that was asked for."""
        if self._sample is None:
            self._sample = self.tape(self.tensors, Settings(dims=self.dims, dtype="model"))
        return self._sample

    def scope(self, name: str) -> str:
        """`name`, or with a number behind it where an earlier request has it."""
        taken = {request.scope for request in self.requests}
        return next(n for n in (name, *(f"{name}_{i}" for i in range(1, len(taken) + 2))) if n not in taken)

    def add(self, request: Request) -> Request:
        """Try a request on the sample run and keep it, with the names of its results."""
        tape = self.sample()
        made = apply_request(tape, request)
        names = tuple(None if v is None else self._handle(tape, v) for v in made)
        done = replace(request, results=names)
        tape.named.update((n, v) for n, v in zip(names, made, strict=True) if n and v is not None)
        self.requests.append(done)
        return done

    def tape(self, targets: Sequence[str], settings: Settings) -> Tape:
        """A run as far as `targets`, with the derivatives that they need."""
        wanted = self._requests_for(targets)
        forward = {n for r in wanted for n in (*r.ys, *r.xs, *(g for g in r.grad_ys if isinstance(g, str)))}
        names = [n for n in dict.fromkeys([*targets, *forward]) if n in set(self.graph.tensors)]
        settings = replace(settings, dims={**self.dims, **settings.dims})
        tape = find_point(self.source, settings, self.ops, names).tape
        for request in wanted:
            made = apply_request(tape, request)
            tape.named.update((n, v) for n, v in zip(request.results, made, strict=True) if n and v is not None)
        return tape

    def _requests_for(self, targets: Sequence[str]) -> list[Request]:
        needed, wanted = set(targets), []
        for request in reversed(self.requests):
            if needed.intersection(n for n in request.results if n):
                wanted.append(request)
                needed.update((*request.ys, *request.xs, *(g for g in request.grad_ys if isinstance(g, str))))
        return wanted[::-1]

    def _handle(self, tape: Tape, var: Var) -> str:
        """The name of a result; one that is a tensor of the model already gets an Identity of its own."""
        taken = set(self.tensors)
        if var.name not in taken:
            return var.name
        return next(n for n in (f"{var.name}:{i}" for i in range(1, len(taken) + 2)) if n not in taken)

    def _sampled(self, name: str) -> Var:
        tape = self.sample()
        if name in tape.blocked:
            raise tape.blocked[name]
        if name not in tape.named:
            raise UsageError(f"{self.source.uri} has no tensor {name!r}")
        return tape.named[name]


def apply_request(tape: Tape, request: Request) -> list[Var | None]:
    """Add the nodes of one derivative to a tape; a `Var` for each x, None where nothing flows."""
    for name in (*request.ys, *request.xs):
        if name in tape.blocked:
            raise tape.blocked[name]
    with tape.scope(request.scope), tape.from_node(-1, {}):
        seeds: dict[str, Var] = {}
        for i, (y, given) in enumerate(zip(request.ys, request.grad_ys, strict=True)):
            var, seed = tape.named[y], _seed(tape, tape.named[y], given, i)
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
        if request.zeros:
            return [sym.zeros_like(tape.named[x]) if v is None else v for x, v in zip(request.xs, found, strict=True)]
        return found


def _seed(tape: Tape, y: Var, given: str | Array | None, index: int) -> Var:
    """The cotangent of y that a call gave: a tensor, numbers, or ones."""
    if isinstance(given, str):
        return sym.cast(tape.named[given], y.dtype)
    if given is None:
        return tape.constant(np.ones(y.shape, y.dtype), name=f"grad_ys_{index}")
    return tape.constant(np.broadcast_to(given, y.shape).astype(y.dtype), name=f"grad_ys_{index}")
