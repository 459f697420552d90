"""Graphs inside of nodes as plain data: what they read, their types, their names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from gradcheck_cli.autodiff.tape import Var
from gradcheck_cli.graph import Graph, Node, TensorType
from gradcheck_cli.op import Ops

NUMBER, FLAG = TensorType(np.dtype(np.int64), ()), TensorType(np.dtype(np.bool_), ())  # of a Loop: iteration, goes on


def captured(*graphs: Graph) -> tuple[str, ...]:
    """Names that graphs read of the tape around them, each once."""
    return tuple(dict.fromkeys(name for graph in graphs for name in graph.captures))


def declared(graph: Graph, inputs: Sequence[Var | TensorType]) -> Graph:
    """The graph with types of its inputs, as files need them where nothing else tells."""
    types = (x if isinstance(x, TensorType) else TensorType(x.dtype, (None,) * x.ndim) for x in inputs)
    nodes = tuple(_with_counters(node) if node.op == "Loop" else node for node in graph.nodes)
    return replace(graph, nodes=nodes, types={**dict(zip(graph.inputs, types, strict=False)), **graph.types})


def _with_counters(node: Node) -> Node:
    return replace(node, attrs={**node.attrs, "body": declared(node.attrs["body"], [NUMBER, FLAG])})


def renamed(graph: Graph, names: Mapping[str, str]) -> Graph:
    """The graph with other names for tensors that it captures, at every level."""
    own = set(graph.tensors)
    names = {old: new for old, new in names.items() if old != new and old not in own}
    if not names:
        return graph
    nodes = tuple(_renamed(node, names) for node in graph.nodes)
    types = {names.get(name, name): declared for name, declared in graph.types.items()}
    return replace(graph, nodes=nodes, outputs=tuple(names.get(n, n) for n in graph.outputs), types=types)


def _renamed(node: Node, names: Mapping[str, str]) -> Node:
    attrs = {k: renamed(v, names) if isinstance(v, Graph) else v for k, v in node.attrs.items()}
    return replace(node, inputs=tuple(names.get(n, n) for n in node.inputs), attrs=attrs)


def relabeled(graph: Graph, names: Mapping[str, str]) -> Graph:
    """The graph with other names for tensors that it makes, at every level."""

    def to(some: Iterable[str]) -> tuple[str, ...]:
        return tuple(names.get(name, name) for name in some)

    def node_of(node: Node) -> Node:
        attrs = {k: relabeled(v, names) if isinstance(v, Graph) else v for k, v in node.attrs.items()}
        return replace(node, inputs=to(node.inputs), outputs=to(node.outputs), attrs=attrs)

    constants = dict(zip(to(graph.constants), graph.constants.values(), strict=True))
    types = dict(zip(to(graph.types), graph.types.values(), strict=True))
    nodes = tuple(map(node_of, graph.nodes))
    return replace(
        graph, inputs=to(graph.inputs), outputs=to(graph.outputs), nodes=nodes, constants=constants, types=types
    )


def ended(graph: Graph, fresh: Callable[[str], str]) -> Graph:
    """The graph with outputs that its own nodes make, each once, as a file needs them; `fresh` makes names."""
    made = {name for node in graph.nodes for name in node.outputs}
    outputs: list[str] = []
    for name in graph.outputs:
        outputs.append(name if name in made and name not in outputs else fresh(name))
    handed = [(old, new) for old, new in zip(graph.outputs, outputs, strict=True) if old != new]
    nodes = tuple(Node("Identity", (old,), (new,)) for old, new in handed)
    types = {**graph.types, **{new: graph.types[old] for old, new in handed if old in graph.types}}
    return replace(graph, outputs=tuple(outputs), nodes=(*graph.nodes, *nodes), types=types) if handed else graph


def draws(graph: Graph, ops: Ops) -> bool:
    """It draws random numbers, at any level."""
    return any(
        _body_draws(node, graph, ops) or any(draws(inner, ops) for inner in node.subgraphs) for node in graph.nodes
    )


def _body_draws(node: Node, graph: Graph, ops: Ops) -> bool:
    if node.key not in ops or "rng" not in ops[node.key].signature.supplied:
        return False
    if "Dropout" not in node.op:
        return True
    training = graph.constants.get(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2] else np.asarray(False)
    return training is None or bool(np.any(training))
