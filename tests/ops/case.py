"""A case is one way an operator can be used: its inputs and attributes."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gradcheck_cli.autodiff.tape import Tape
from gradcheck_cli.autodiff.trace import trace
from gradcheck_cli.graph import Graph, Node
from gradcheck_cli.ops import OPS


@dataclass(frozen=True)
class Case:
    """One node with values for its inputs (None: left out)."""

    op: str
    inputs: tuple[Any, ...]
    attrs: dict[str, Any]
    domain: str = ""
    n_outputs: int = 1
    label: str = ""

    @property
    def id(self) -> str:
        """The id that pytest shows."""
        shapes = ",".join("-" if x is None else "x".join(map(str, x.shape)) or "()" for x in self.inputs)
        attrs = ",".join(f"{k}={brief(v)}" for k, v in self.attrs.items() if not isinstance(v, Graph | np.ndarray))
        domain = "com.microsoft." if self.domain == "com.microsoft" else ""
        return f"{domain}{self.op}({shapes}){' ' + attrs if attrs else ''}{' ' + self.label if self.label else ''}"

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the inputs, "" for one left out."""
        return tuple("" if x is None else f"x{i}" for i, x in enumerate(self.inputs))

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the outputs."""
        return tuple(f"y{i}" for i in range(self.n_outputs))

    @property
    def feeds(self) -> dict[str, Any]:
        """Values by name."""
        return {n: x for n, x in zip(self.names, self.inputs, strict=True) if n}

    @property
    def graph(self) -> Graph:
        """The node alone."""
        node = Node(self.op, self.names, self.outputs, self.attrs, self.domain)
        return Graph(tuple(n for n in self.names if n), self.outputs, (node,))

    def tape(self, **more: Any) -> Tape:
        """The tape of the node at these inputs."""
        return trace(self.graph, self.feeds, ops=OPS, **more)

    def floats(self) -> list[str]:
        """Inputs that hold floating-point numbers and are operands, not metadata."""
        static = set(OPS[self.domain, self.op].static.values())
        pairs = enumerate(zip(self.names, self.inputs, strict=True))
        return [n for i, (n, x) in pairs if n and i not in static and x.dtype.kind in "fc" and x.size]


@dataclass(frozen=True)
class Chain(Case):
    """An operator amid others that make what it reads, or read what it makes: sequences, optionals and maps."""

    nodes: tuple[Node, ...] = ()
    constants: Mapping[str, Any] = field(default_factory=dict)

    @property
    def graph(self) -> Graph:
        """All of the nodes."""
        return Graph(tuple(n for n in self.names if n), self.outputs, self.nodes, self.constants)


def node(op: str, inputs: str, outputs: str, domain: str = "", **attrs: Any) -> Node:
    """A node; names in one string, "-" for one left out."""
    names = [tuple("" if n == "-" else n for n in text.split()) for text in (inputs, outputs)]
    return Node(op, *names, attrs, domain)


def chain(
    op: str, nodes: Sequence[Node], *inputs: Any, n_outputs: int = 1, domain: str = "", label: str = "",
    **constants: Any,
) -> Chain:  # fmt: skip
    """A case of several nodes, which read inputs x0, x1 ... and constants by name, and compute y0, y1 ..."""
    arrays = tuple(held(x) for x in inputs)
    return Chain(op, arrays, {}, domain, n_outputs, label, tuple(nodes), {n: held(v) for n, v in constants.items()})


def held(value: Any) -> np.ndarray:
    """An array; of Python's strings where it holds text."""
    array = np.asarray(value)
    return array.astype(object) if array.dtype.kind == "U" else array


def brief(value: Any) -> str:
    """A value as it stands in an id; a long one cut short."""
    text = str(value)
    return text if len(text) <= 60 else text[:50] + "..."


def case(op: str, *inputs: Any, n_outputs: int = 1, domain: str = "", label: str = "", **attrs: Any) -> Case:
    """A case from arrays (numbers and lists become arrays)."""
    arrays = tuple(None if x is None else held(x) for x in inputs)
    return Case(op, arrays, attrs, domain, n_outputs, label)


def arr(*shape: int, low: float = -2.0, high: float = 2.0, seed: int = 0) -> np.ndarray:
    """Reproducible float64 numbers, uniform between `low` and `high`, all different."""
    rng = np.random.default_rng(zlib.crc32(repr((shape, low, high, seed)).encode()))
    return rng.uniform(low, high, shape)


def ints(*shape: int, low: int = 0, high: int = 3, seed: int = 0) -> np.ndarray:
    """Reproducible int64 numbers from `low` to `high`, both included."""
    rng = np.random.default_rng(zlib.crc32(repr((shape, low, high, seed)).encode()))
    return rng.integers(low, high + 1, shape)


def subsets(names: list[str]) -> Iterator[tuple[str, ...]]:
    """Every nonempty subset, small ones first; of more than four names only singles and all."""
    if len(names) > 4:
        yield from ((n,) for n in names)
        yield tuple(names)
        return
    for bits in range(1, 1 << len(names)):
        yield tuple(n for i, n in enumerate(names) if bits >> i & 1)
