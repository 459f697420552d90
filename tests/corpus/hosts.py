"""Small models around one operator: smooth layers make its operands from x and mix what it computes into y."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import gradcheck_cli as gc
from gradcheck_cli.autodiff.backward import inexact
from gradcheck_cli.autodiff.trace import trace
from gradcheck_cli.errors import GradcheckError
from gradcheck_cli.formats.source import Source
from gradcheck_cli.graph import Graph, Node, TensorType
from gradcheck_cli.op import zero
from gradcheck_cli.ops import OPS
from tests.ops.case import Case

X_SIZE, Y_SIZE = 4, 3
CONTAINERS = {  # they make no tensors but sequences, optionals and maps, for which there are no cotangents
    "SequenceConstruct", "SequenceEmpty", "SequenceInsert", "SequenceErase", "SequenceMap", "SplitToSequence",
         "Optional",
    "ZipMap", "MapConstruct", "CastMap", "DictVectorizer",
}  # fmt: skip
SPANS = (0.05, 0.005, 0.0005)  # how far operands move with x, in their own units: the first at which y is finite


@dataclass(frozen=True)
class Host:
    """A model, the value of its input x, and the seed that both were drawn with."""

    name: str
    model: gc.Model
    x: np.ndarray
    seed: int


class Layers:
    """Nodes of a model as they are added, with the constants that they read."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.constants: dict[str, Any] = {}

    def __call__(self, op: str, *inputs: Any, out: str = "", domain: str = "", **attrs: Any) -> str:
        """The output of a new node; arrays among its inputs become constants."""
        out = out or f"t{len(self.nodes)}"
        names = tuple(i if isinstance(i, str) else self.held(i) for i in inputs)
        self.nodes.append(Node(op, names, (out,), attrs, domain))
        return out

    def held(self, value: Any) -> str:
        """The name of a new constant."""
        name = f"c{len(self.constants)}"
        self.constants[name] = np.asarray(value)
        return name


def host(case: Case, seed: int, skip: bool = True) -> Host | None:
    """The case between smooth layers of random weights; None where y has no finite value or no way to x.

    With `skip`, y also depends on x around the operator, so that its errors are diluted.
    """
    for span in SPANS:
        made = _hosted(case, seed, skip, span)
        if made is None:
            return None
        if _finite(made):
            return made
    return None


def _hosted(case: Case, seed: int, skip: bool, span: float) -> Host | None:
    rng = np.random.default_rng([seed, len(case.id)])
    add, floats = Layers(), case.floats()
    x = rng.uniform(-1, 1, X_SIZE)
    for name, value in case.feeds.items():
        if name in floats:
            _operand(add, rng, name, value, span)
        else:
            add.constants[name] = value
    inner, own = case.graph, {"y": "y of the case"}  # y is that of the model
    add.nodes.extend(
        replace(n, inputs=tuple(own.get(i, i) for i in n.inputs), outputs=tuple(own.get(o, o) for o in n.outputs))
        for n in inner.nodes
    )
    add.constants.update(inner.constants)
    made = [own.get(y, y) for y in case.outputs]
    ready = Graph(("x",), tuple(own.get(y, y) for y in inner.outputs), tuple(add.nodes), add.constants)
    tape = trace(ready, {"x": x}, ops=OPS)
    outputs = [y for y in made if y in tape.named and inexact(tape.named[y]) and tape.named[y].value.size]
    if not floats or not outputs:
        return None
    _head(add, rng, {y: tape.named[y].value for y in outputs}, skip)
    types = {"x": TensorType(np.dtype(np.float64), x.shape)}
    graph = Graph(("x",), ("y",), tuple(add.nodes), add.constants, types)
    return Host(case.id, gc.Model(Source(graph, case.id, nodes=len(add.nodes)), OPS), x, seed)


def _operand(add: Layers, rng: np.random.Generator, name: str, value: np.ndarray, span: float) -> None:
    """A tensor near `value` that moves smoothly with x."""
    if value.dtype.kind == "c":
        parts = [_moved(add, rng, part, span) for part in (value.real, value.imag)]
        add("Complex", *parts, domain="gradcheck", out=name)
    else:
        add("Identity", _moved(add, rng, value, span), out=name)


def _moved(add: Layers, rng: np.random.Generator, value: np.ndarray, span: float) -> str:
    numbers = value[np.isfinite(value)].astype(np.float64)
    unit = float(np.sqrt(np.mean(np.square(numbers)))) if numbers.any() else 1.0
    wave = add("Sin", add("MatMul", "x", rng.normal(size=(X_SIZE, value.size))))
    shaped = add("Reshape", wave, np.asarray(value.shape, np.int64))
    return add("Add", np.asarray(value, np.float64), add("Mul", shaped, np.float64(span * unit)))


def _head(add: Layers, rng: np.random.Generator, outputs: dict[str, np.ndarray], skip: bool) -> None:
    """y: a smooth function of all outputs of the operator, and of x."""
    terms = [add("MatMul", add("Sin", "x"), rng.normal(size=(X_SIZE, Y_SIZE)))] if skip else []
    for name, value in outputs.items():
        parts = [add(p, name, domain="gradcheck") for p in ("Real", "Imag")] if value.dtype.kind == "c" else [name]
        for part in parts:
            unit = float(np.sqrt(np.mean(np.abs(value) ** 2))) or 1.0
            flat = add("Reshape", add("Mul", part, np.float64(1 / unit)), np.asarray([value.size], np.int64))
            weights = rng.normal(size=(value.size, Y_SIZE)) / np.sqrt(value.size)
            terms.append(add("MatMul", add("Atan", flat), weights))
    add("Sum", *terms, out="y")


def _finite(made: Host) -> bool:
    with np.errstate(all="ignore"):
        try:
            tape = trace(made.model.graph, {"x": made.x}, ops=OPS)
        except GradcheckError:
            return False
    return bool(np.isfinite(tape.named["y"].value).all())


def with_rules(cases: Sequence[Case]) -> list[Case]:
    """Cases of operators that have a rule, and not one that is zero by nature."""
    return [c for c in cases if OPS[c.domain, c.op].vjp not in (None, zero)]


def composed(cases: Sequence[Case]) -> list[Case]:
    """Cases of operators that are differentiated by what they are composed of, and could have a rule instead."""
    return [c for c in cases if OPS[c.domain, c.op].vjp is None and c.op not in CONTAINERS | {"If"}]


def one_of_each(cases: Sequence[Case], seed: int = 0) -> list[Case]:
    """The first case of each operator that makes a model."""
    found: dict[tuple[str, str], Case] = {}
    for each in cases:
        if (each.domain, each.op) not in found and host(each, seed) is not None:
            found[each.domain, each.op] = each
    return list(found.values())
