"""The graph of a model as plain frozen data: edges are tensor names, nodes stand in topological order.

ONNX protobuf exists only in `formats`; everything else reads a `Graph`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar

import numpy as np

from gradcheck_cli.errors import ModelError, counted, shown

Item = TypeVar("Item")
Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Dim: TypeAlias = int | str | None  # fixed, symbolic, unknown
MAX_RANK = 60  # NumPy allows 64, and a probe axis or two are added
_NOTHING: Mapping[str, Any] = MappingProxyType({})
_KEPT = 8  # answers for other names


@dataclass(frozen=True, slots=True)
class TensorType:
    """The declared dtype and shape of a value, either None if undeclared.

    `kind` is "tensor", "sequence", "optional" or "map".  For the latter three `inner` is the type of the elements,
    dtype and shape are those of the tensors at the bottom, and `key` is the dtype of a map's keys.
    """

    dtype: np.dtype[Any] | None = None
    shape: tuple[Dim, ...] | None = None
    kind: str = "tensor"
    inner: TensorType | None = None
    key: np.dtype[Any] | None = None

    def __str__(self) -> str:
        if self.kind != "tensor":
            keys = "" if self.key is None else f" from {'string' if self.key.kind == 'O' else self.key}"
            return f"{self.kind}{keys}{'' if self.inner is None else f' of {self.inner}'}"
        dims = ["?"] if self.shape is None else ["?" if d is None else shown(str(d)) for d in self.shape]
        return f"[{','.join(dims)}] {self.dtype}"


@dataclass(frozen=True, slots=True)
class Node:
    """One application of an operator.

    `inputs` and `outputs` are tensor names, "" for one left out.  Attributes are int, float, str, bytes, arrays,
    tuples of those, or a `Graph` (with the names that it captures free in it).
    """

    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)
    domain: str = ""
    name: str = ""
    metadata: Mapping[str, str] = field(default_factory=lambda: _NOTHING)

    @property
    def key(self) -> tuple[str, str]:
        """The key of its operator in the operator table."""
        return self.domain, self.op

    @property
    def subgraphs(self) -> Iterator[Graph]:
        """The graphs among the attributes."""
        for value in self.attrs.values():
            if isinstance(value, Graph):
                yield value

    @property
    def reads(self) -> tuple[str, ...]:
        """Names of the tensors it needs: its inputs and those that its subgraphs capture."""
        read = dict.fromkeys(self.inputs)
        for value in self.attrs.values():
            if isinstance(value, Graph):
                read.update(dict.fromkeys(value.captures))
        read.pop("", None)
        return tuple(read)

    def with_graphs(self, change: Callable[[Graph], Graph]) -> Node:
        """The node with its subgraphs changed; itself if it has none."""
        if not any(self.subgraphs):
            return self
        return replace(self, attrs={k: change(v) if isinstance(v, Graph) else v for k, v in self.attrs.items()})

    def handed_out(self, body: Graph) -> tuple[str, ...]:
        """Results of a body that this node gives as outputs: a Loop keeps the first, its condition."""
        return body.outputs[1:] if self.op == "Loop" else body.outputs

    def __str__(self) -> str:
        domain = f"{self.domain}." if self.domain else ""
        attrs = ", ".join(f"{k}={_brief(v)}" for k, v in self.attrs.items())
        left, right = ", ".join(self.outputs), ", ".join(self.inputs)
        return f"{left} = {domain}{self.op}{f' <{attrs}>' if attrs else ''} ({right})"


@dataclass(frozen=True, slots=True)
class Graph:
    """Nodes in topological order between inputs and outputs; checked when made.

    `types` holds the declared type of any tensor.  A subgraph may read names of the graph around it.  An input that is
    also a constant is an input with a default value.  Of the constants, those in `trained` alone are weights, unless
    it is None; `inline` ones are values of Constant nodes; `modules` tells of the exporter's modules'
    own whether they are parameters, else buffers, and `folded` of those that it made of parameters whether by
    arithmetic, else by a layout.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[Node, ...]
    constants: Mapping[str, Array] = field(default_factory=lambda: _NOTHING)
    types: Mapping[str, TensorType] = field(default_factory=lambda: _NOTHING)
    opset: Mapping[str, int] = field(default_factory=lambda: _NOTHING)
    name: str = "graph"
    trained: frozenset[str] | None = None
    inline: frozenset[str] = frozenset()
    modules: Mapping[str, bool] = field(default_factory=lambda: _NOTHING)
    folded: Mapping[str, bool] = field(default_factory=lambda: _NOTHING)
    _needed: dict[Any, frozenset[str]] = field(default_factory=dict, init=False, repr=False, compare=False)
    _kept: dict[str, tuple[Any, ...]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        seen = {*self.inputs, *self.constants}
        later = {name for node in self.nodes for name in node.outputs if name}
        for index, node in enumerate(self.nodes):
            early = [name for name in node.reads if name in later and name not in seen]
            if early:
                raise ModelError(f"{describe(index, node)} reads {early[0]!r} before it is computed")
            twice = [name for name in node.outputs if name and name in seen]
            if twice:
                raise ModelError(f"{describe(index, node)} computes {twice[0]!r}, which exists already")
            seen.update(name for name in node.outputs if name)

    @property
    def captures(self) -> tuple[str, ...]:
        """Names of the graph around that are read here and not defined."""
        return self._once("captures", self._captured)

    def _captured(self) -> Iterator[str]:
        defined = {*self.inputs, *self.constants, *(n for node in self.nodes for n in node.outputs)}
        read = [n for node in self.nodes for n in node.reads] + list(self.outputs)
        yield from dict.fromkeys(n for n in read if n and n not in defined)

    def _once(self, key: str, made: Callable[[], Iterator[Item]]) -> tuple[Item, ...]:
        """Facts that each run of a body asks for again, computed once."""
        if key not in self._kept:
            self._kept[key] = tuple(made())
        return self._kept[key]

    @property
    def tensors(self) -> tuple[str, ...]:
        """Every tensor name: inputs, constants, then outputs of nodes in order."""
        produced = (name for node in self.nodes for name in node.outputs if name)
        return tuple(dict.fromkeys([*self.inputs, *self.constants, *produced]))

    @property
    def all_tensors(self) -> tuple[str, ...]:
        """The names of all tensors, those of graphs inside of nodes too."""
        return self._once("all_tensors", self._tensors_within)

    def _tensors_within(self) -> Iterator[str]:
        inner = (name for node in self.nodes for body in node.subgraphs for name in body.all_tensors)
        yield from dict.fromkeys((*self.tensors, *inner))

    @property
    def free_inputs(self) -> tuple[str, ...]:
        """Inputs that have no default value."""
        return tuple(name for name in self.inputs if name not in self.constants)

    @property
    def all_nodes(self) -> tuple[Node, ...]:
        """The nodes of the graph and of graphs inside of them, which follow the node that they belong to."""
        return self._once("all_nodes", self._nodes_within)

    def _nodes_within(self) -> Iterator[Node]:
        for node in self.nodes:
            yield node
            for body in node.subgraphs:
                yield from body.all_nodes

    def producer(self, name: str) -> int | None:
        """Index of the node that computes `name`; None for an input or a constant."""
        return next((i for i, node in enumerate(self.nodes) if name in node.outputs), None)

    def reached_from(self, names: Iterable[str], given: Collection[str] = ()) -> set[str]:
        """Every tensor that depends on one of `names`, and `names`; `given` ones depend on nothing."""
        reached = set(names)
        for node in self.nodes:
            if not reached.isdisjoint(node.reads):
                reached.update(name for name in node.outputs if name and name not in given)
        return reached

    def needed_for(self, names: Iterable[str], given: Collection[str] = ()) -> frozenset[str]:
        """Tensors that `names` depend on, and `names`, without `given` ones and those that only these need.

        A run of the graph asks for it some times, and runs at other values and sizes ask the same: answers are kept.
        """
        key = (frozenset(names), frozenset(given))
        found = self._needed.get(key)
        if found is None:  # once it is kept, another thread may let it go
            if len(self._needed) >= _KEPT:
                self._needed.clear()
            found = self._needed[key] = frozenset(computing(self.nodes, key[0] - key[1], key[1])[1])
        return found

    def __str__(self) -> str:
        lines = [f"{self.name} ({', '.join(self.inputs)}) => ({', '.join(self.outputs)})"]
        return "\n".join(lines + [f"  {node}" for node in self.nodes])


def computing(nodes: Sequence[Node], names: Iterable[str], given: Collection[str] = ()) -> tuple[list[int], set[str]]:
    """Positions of the nodes that compute some tensors, in order, and all tensors that these need but for `given` ones."""
    needed, found = set(names), []
    for index in reversed(range(len(nodes))):
        if not needed.isdisjoint(nodes[index].outputs):
            needed.update([name for name in nodes[index].reads if name not in given] if given else nodes[index].reads)
            found.append(index)
    return found[::-1], needed


def between(
    items: Sequence[Item],
    xs: Iterable[str],
    ys: Iterable[str],
    through: Callable[[Item, Collection[str]], Collection[str]],
    reads: Callable[[Item], Iterable[str]],
) -> list[int]:
    """Positions of the items (nodes, steps of a tape) on paths from xs to ys, in order; items are in topological order.

    `through(item, reached)` gives the outputs of an item that tensors of `reached` lead to, `reads(item)` its operands.
    """
    reached, needed, found = set(xs), set(ys), []
    made: list[Collection[str]] = []
    for item in items:
        made.append(through(item, reached))
        reached.update(made[-1])
    for index in reversed(range(len(items))):
        if not needed.isdisjoint(made[index]):
            needed.update(reads(items[index]))
            found.append(index)
    return found[::-1]


def in_order(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """The nodes in topological order, otherwise in the order given; a ModelError names a node of a cycle."""
    later = {name for node in nodes for name in node.outputs if name}
    for node in nodes:
        if not later.isdisjoint(node.reads):
            return _sorted(nodes)
        later.difference_update(node.outputs)
    return tuple(nodes)


def _sorted(nodes: Sequence[Node]) -> tuple[Node, ...]:
    from graphlib import CycleError, TopologicalSorter  # few files need it
    from heapq import heapify, heappop, heappush

    makers = {name: index for index, node in enumerate(nodes) for name in node.outputs if name}
    sorter = TopologicalSorter({i: {makers[n] for n in node.reads if n in makers} for i, node in enumerate(nodes)})
    try:
        sorter.prepare()
    except CycleError as error:
        stuck = min(error.args[1])
        raise ModelError(f"{describe(stuck, nodes[stuck])} depends on its own output: the graph has a cycle.") from None
    order, ready = list[int](), list(sorter.get_ready())
    heapify(ready)
    while ready:  # of all that are ready, the first in the order given
        order.append(index := heappop(ready))
        sorter.done(index)
        for follower in sorter.get_ready():
            heappush(ready, follower)
    return tuple(nodes[index] for index in order)


class FreshNames:
    """The tensor names in use in a file or graph; gives new ones that resemble the old."""

    def __init__(self, taken: Iterable[str]) -> None:
        self._taken = set(taken)
        self._counts: dict[str, int] = {}

    def fresh(self, hint: str) -> str:
        """An unused name: `hint`, with a number if it is taken."""
        name = hint
        while name in self._taken:
            self._counts[hint] = self._counts.get(hint, 0) + 1
            name = f"{hint}_{self._counts[hint]}"
        self._taken.add(name)
        return name


def is_inexact(dtype: np.dtype[Any]) -> bool:
    """True for dtypes that a derivative flows through: floating-point of 16 bits and more, and complex ones.

    Smaller floating-point dtypes quantize, as integers do.
    """
    return (dtype.kind in "fc" and dtype.itemsize > 1) or (dtype.kind == "V" and dtype.name == "bfloat16")


def is_inexact_array(value: Any) -> bool:
    """True for an array of a dtype that a derivative flows through."""
    return isinstance(value, np.ndarray) and is_inexact(value.dtype)


def describe(index: int, node: Node) -> str:
    """The name of a node for messages: index, operator, and its name or first output."""
    label = node.name or next((name for name in node.outputs if name), "")
    return f"node {index} {node.op} {label!r}"


def _brief(value: Any) -> str:
    if isinstance(value, Graph):
        return f"graph of {counted(len(value.nodes), 'node')}"
    if isinstance(value, np.ndarray):
        return f"array{list(value.shape)}"
    return repr(value)
