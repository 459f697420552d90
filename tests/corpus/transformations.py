"""Models that compute the same in other units, in another order, twice, under other names, or by a function."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from onnx import FunctionProto, ModelProto, helper

import gradcheck_cli as gc
from gradcheck_cli.formats.onnx.read import read_proto
from gradcheck_cli.formats.onnx.write import to_proto
from gradcheck_cli.formats.source import Source
from gradcheck_cli.graph import Graph, Node, TensorType
from gradcheck_cli.ops import OPS
from tests.corpus.hosts import Host


def remade(host: Host, graph: Graph, x: Any) -> Host:
    """Another model with a value for its x."""
    return replace(host, model=gc.Model(Source(graph, host.name, nodes=len(graph.nodes)), OPS), x=np.asarray(x))


def around(host: Host, before: list[Node], after: list[Node], constants: Mapping[str, Any], x: Any) -> Host:
    """The model between nodes that make `inner/x` of x, and y of `inner/y`."""
    graph = host.model.graph
    inner = [rewired(node, {"x": "inner/x", "y": "inner/y"}) for node in graph.nodes]
    types = {"x": TensorType(np.dtype(np.float64), np.asarray(x).shape)}
    held = {**graph.constants, **{name: np.asarray(value) for name, value in constants.items()}}
    return remade(host, Graph(("x",), ("y",), (*before, *inner, *after), held, types), x)


def rewired(node: Node, names: Mapping[str, str]) -> Node:
    """A node that reads and computes tensors of other names; its subgraphs see none of them."""
    inputs, outputs = (tuple(names.get(n, n) for n in ns) for ns in (node.inputs, node.outputs))
    return replace(node, inputs=inputs, outputs=outputs)


def in_units(host: Host, of_x: int, of_y: int) -> Host:
    """The same function of x in units of 2^-of_x, its values in units of 2^-of_y."""
    units = {"unit/x": 2.0**-of_x, "unit/y": 2.0**of_y}
    before, after = Node("Mul", ("x", "unit/x"), ("inner/x",)), Node("Mul", ("inner/y", "unit/y"), ("y",))
    return around(host, [before], [after], units, host.x * 2.0**of_x)


def permuted(host: Host, seed: int) -> Host:
    """The same function of the entries of x in another order, its values in another order."""
    size, shape = host.x.size, host.x.shape
    order = np.random.default_rng(seed).permutation(size)
    y_size = value_of(host).size
    constants = {"order": np.argsort(order), "x/shape": np.array(shape), "flat": np.array([-1]),
                 "y/order": np.random.default_rng(seed + 1).permutation(y_size)}  # fmt: skip
    before = [Node("Gather", ("x", "order"), ("back",)), Node("Reshape", ("back", "x/shape"), ("inner/x",))]
    after = [Node("Reshape", ("inner/y", "flat"), ("y/flat",)), Node("Gather", ("y/flat", "y/order"), ("y",))]
    return around(host, before, after, constants, host.x.reshape(-1)[order])


def value_of(host: Host) -> np.ndarray:
    """Outputs of the model."""
    return np.asarray(gc.run(host.model["y"], {"x": host.x})[0])


def repeated(host: Host) -> Host:
    """The function of two copies of x, one below the other."""
    graph = host.model.graph
    copies = [Node("Split", ("x",), ("x/0", "x/1"), {"axis": 0, "num_outputs": 2})]
    for i in range(2):
        names = {n: f"{n}/{i}" for node in graph.nodes for n in node.outputs if n} | {"x": f"x/{i}"}
        copies += [rewired(node, names) for node in graph.nodes]
    flat = [Node("Reshape", (f"y/{i}", "flat"), (f"flat/{i}",)) for i in range(2)]
    nodes = (*copies, *flat, Node("Concat", ("flat/0", "flat/1"), ("y",), {"axis": 0}))
    both = np.concatenate([host.x, host.x])
    types = {"x": TensorType(np.dtype(np.float64), both.shape)}
    return remade(host, Graph(("x",), ("y",), nodes, {**graph.constants, "flat": np.array([-1])}, types), both)


def renamed(host: Host) -> Host:
    """The model with other names for all tensors but x and y."""
    graph = host.model.graph
    inner = [n for n in graph.tensors if n not in ("x", "y")]
    names = {n: f"módulo/{len(inner) - i}:0" for i, n in enumerate(inner)}
    nodes = tuple(replace(rewired(node, names), name=f"n{i}") for i, node in enumerate(graph.nodes))
    constants = {names[n]: value for n, value in graph.constants.items()}
    return remade(host, replace(graph, nodes=nodes, constants=constants), host.x)


def outlined(host: Host, first: int, last: int) -> Host:
    """The model with nodes `first` to `last` (excluded) in a function that it calls, as a file would hold it."""
    proto = to_proto(host.model.graph)
    nodes, made = list(proto.graph.node), {o for n in proto.graph.node[first:last] for o in n.output}
    inside, rest = nodes[first:last], [*nodes[:first], *nodes[last:]]
    reads = dict.fromkeys(i for n in inside for i in n.input if i and i not in made)
    needed = {i for n in rest for i in n.input} | {o.name for o in proto.graph.output}
    gives = [o for n in inside for o in n.output if o in needed]
    function = helper.make_function("local", "block", list(reads), gives, inside, proto.opset_import)
    call = helper.make_node("block", list(reads), gives, domain="local")
    del proto.graph.node[:]
    proto.graph.node.extend([*nodes[:first], call, *nodes[last:]])
    return read_back(host, proto, function)


def read_back(host: Host, proto: ModelProto, function: FunctionProto) -> Host:
    """The model of a file that has a function."""
    proto.functions.append(function)
    proto.opset_import.append(helper.make_opsetid("local", 1))
    source = read_proto(proto, host.name)
    return replace(host, model=gc.Model(source, OPS))
