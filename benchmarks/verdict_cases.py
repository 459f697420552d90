"""The cases of the checkers' score: gradients that are wrong, their right twins, and right ones that are hard.

All come from `tests/corpus`.  A peer is given the function, which is served to it one evaluation at a time, and the
gradient as its Jacobian at the point: it cannot tell them from an implementation of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gradcheck_cli.autodiff.trace import trace
from gradcheck_cli.engine.chunks import Budget
from gradcheck_cli.graph import Graph
from gradcheck_cli.jacobian.jacobian import Backward
from gradcheck_cli.op import Ops
from gradcheck_cli.ops import OPS
from tests.corpus.faults import FAULTS, RELATIVE, all_operands, one_operand
from tests.corpus.hard import HARD
from tests.corpus.hosts import Host, host
from tests.corpus.kinds import KINDS
from tests.corpus.networks import network
from tests.corpus.score import LEAST, difference

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Case:
    """A function at a point with the gradient that is under test."""

    kind: str  # wrong | twin | hard
    name: str
    graph: Graph
    y: str
    x: Array
    ops: Ops
    jacobian: Array  # (x_size, y_size), by the rules under test
    host: Host

    @property
    def y_shape(self) -> tuple[int, ...]:
        """The shape of what the function computes."""
        return self.function("float64")(self.x).shape

    def function(self, dtype: str) -> Callable[[Array], Array]:
        """The function itself, in float64 or in float32 throughout."""
        narrow = dtype == "float32"
        constants = {n: _narrowed(v) if narrow else v for n, v in self.graph.constants.items()}
        graph = replace(self.graph, constants=constants)

        def value(x: Array) -> Array:
            with np.errstate(all="ignore"):
                tape = trace(graph, {"x": x.astype(dtype)}, ops=OPS, dtype="model" if narrow else "float64")
            return np.asarray(tape.named[self.y].value, dtype)

        return value


def cases(seed: int) -> Iterator[Case]:
    """All cases at one seed."""
    for made, ops, name in wrong(seed):
        tested = case("wrong", name, made, ops)
        twin = case("twin", name, made, OPS)
        if difference(tested.jacobian, twin.jacobian) >= LEAST:
            yield tested
            yield twin
    for hard in HARD:
        here = np.asarray(hard.x(np.random.default_rng(seed)), np.float64)
        yield case("hard", hard.name, Host(hard.name, hard.model, here, seed), OPS)


def wrong(seed: int) -> Iterator[tuple[Host, Ops, str]]:
    """Models with a table in which a rule is wrong: errors that people make, then faults that any rule can have."""
    for kind in KINDS:
        made = host(kind.cases[0], seed)
        assert made is not None
        yield made, {**OPS, kind.key: replace(OPS[kind.key], vjp=kind.rule)}, kind.name
    for faults, make, (name, key) in (
        (FAULTS, one_operand, ("mlp", ("", "Tanh"))),
        (RELATIVE, all_operands, ("looped", ("", "Exp"))),
    ):
        for fault, applied in faults.items():
            yield network(name, seed), make(key, applied, seed), fault


def case(kind: str, name: str, made: Host, ops: Ops) -> Case:
    """The case of a model and a table."""
    graph = made.model.graph
    y = graph.outputs[0]
    with np.errstate(all="ignore"):
        tape = trace(graph, {"x": made.x}, ops=ops)
        [jacobian] = Backward(tape, tape.named[y].name, [tape.named["x"].name]).jacobians(Budget(2**30, 1))
    return Case(kind, name, graph, y, made.x, ops, jacobian, made)


def _narrowed(value: Array) -> Array:
    return value.astype(np.float32) if value.dtype == np.float64 else value
