"""The tensors of a model that are trained: weights become inputs, low-rank factors are added, statistics are kept.

A graph is rewritten once, before it is differentiated; what a node read as a weight it then reads as an input.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
from msgspec import Struct

from gradcheck_cli.errors import UsageError, shown
from gradcheck_cli.export.inner import captures_renamed, relabeled
from gradcheck_cli.graph import Array, FreshNames, Graph, Node, TensorType
from gradcheck_cli.op import DTYPES, Ops
from gradcheck_cli.points.targets import differentiable_constants, fitting, matched_params, weights


class Trainables(Struct, frozen=True):
    """A graph whose trained tensors are inputs.

    params   initial values of what is trained, by input
    updates  initial values of statistics that the model itself keeps, by input, and the outputs with their new ones
    notes    sentences on what is trained and what is not
    """

    graph: Graph
    params: Mapping[str, Array]
    statistics: Mapping[str, Array]
    updates: Mapping[str, str]
    notes: tuple[str, ...]


def trained_inputs(
    graph: Graph, ys: Sequence[str], globs: Sequence[str], lora: Sequence[str], ops: Ops, seed: int
) -> Trainables:
    """The graph with inputs for the weights, or for those that fit `globs`, and for the factors of `lora`, RANK:GLOB."""
    graph = lifted(graph)
    ranks = dict(_ranks(graph, ys, lora))
    names = matched_params(graph, ys, globs, (), ops) if globs else () if lora else weights(graph, ys, ops=ops)
    both = set(names) & set(ranks)
    if both:
        raise UsageError(f"--lora and --trainable both name {', '.join(map(shown, sorted(both)))}.")
    if not names and not ranks:
        raise UsageError("the model has no weights to train: --trainable GLOB names constants, which inspect lists.")
    values = {name: graph.constants[name] for name in names}
    if other := next((n for n, v in values.items() if v.dtype.kind not in "fV"), None):
        raise UsageError(f"{shown(other)} is {values[other].dtype}; weights of real numbers can be trained.")
    wide = {n: v.astype(np.float32) if v.dtype.itemsize < 4 else v for n, v in values.items()}
    graph, factors = _adapted(_opened(graph, wide), ranks, np.random.default_rng(seed))
    graph, statistics, updates, notes = _with_statistics(graph)
    return Trainables(graph, {**wide, **factors}, statistics, updates, tuple(notes))


def lifted(graph: Graph) -> Graph:
    """The graph with the float constants of graphs inside as constants of its own, which all graphs inside can read."""
    fresh, found = FreshNames(graph.tensors), dict(graph.constants)

    def inside(body: Graph) -> Graph:
        own = {n: v for n, v in body.constants.items() if v.dtype.kind in "fV" and n not in body.inputs}
        names = {n: fresh.fresh(n) for n in own}
        found.update((names[n], v) for n, v in own.items())
        left = {n: v for n, v in body.constants.items() if n not in own}
        outer = replace(relabeled(body, names), constants=left)
        return replace(outer, nodes=tuple(node.with_graphs(inside) for node in outer.nodes))

    nodes = tuple(node.with_graphs(inside) for node in graph.nodes)
    return replace(graph, nodes=nodes, constants=found) if len(found) > len(graph.constants) else graph


def _opened(graph: Graph, values: Mapping[str, Array]) -> Graph:
    """The graph with some constants as inputs; 16-bit ones are cast from a float32 input where they are read."""
    kept = {n: v for n, v in graph.constants.items() if n not in values}
    types = {n: TensorType(v.dtype, v.shape) for n, v in values.items()}
    narrow = {n: _number(graph.constants[n]) for n, v in values.items() if v.dtype != graph.constants[n].dtype}
    fresh = FreshNames(graph.tensors)
    names = {n: fresh.fresh(f"{n}/narrow") for n in narrow}
    casts = [Node("Cast", (n,), (names[n],), {"to": to}, name=names[n]) for n, to in narrow.items()]
    inputs = (*graph.inputs, *(n for n in values if n not in graph.inputs))
    nodes = (*casts, *_reading(graph.nodes, names))
    return replace(graph, inputs=inputs, nodes=nodes, constants=kept, types={**graph.types, **types})


def _number(x: Array) -> int:
    return next(number for number, dtype in DTYPES.items() if dtype == x.dtype)


def _reading(nodes: Iterable[Node], names: Mapping[str, str]) -> Iterator[Node]:
    """The nodes, reading other tensors in place of some."""
    for node in nodes:
        inputs = tuple(names.get(n, n) for n in node.inputs)
        yield replace(node.with_graphs(lambda graph: captures_renamed(graph, names)), inputs=inputs)


def _ranks(graph: Graph, ys: Sequence[str], lora: Iterable[str]) -> Iterator[tuple[str, int]]:
    """The weights that get low-rank factors, with the rank."""
    known = [n for n in differentiable_constants(graph, ys) if graph.constants[n].ndim > 1]
    for text in lora:
        rank, _, glob = text.partition(":")
        if not rank.isdigit() or not int(rank) or not glob:
            raise UsageError(f"--lora {text}: write RANK:GLOB, such as --lora 8:'*attention*'.")
        yield from ((name, int(rank)) for name in fitting(known, glob, "--lora "))


def _adapted(graph: Graph, ranks: Mapping[str, int], rng: np.random.Generator) -> tuple[Graph, dict[str, Array]]:
    """The graph in which some weights W are W + A B, and the factors: A is drawn as Hu et al., 2021, do, B is 0.

    Of a weight of more axes than two the first are those of rows: `(shape[0], rest)`.
    """
    fresh, factors, nodes, names = FreshNames(graph.tensors), {}, [], {}
    constants = dict(graph.constants)
    for name, rank in ranks.items():
        value = constants[name]
        rows, columns = value.shape[0], value.size // value.shape[0]
        left, right, low, sum_ = (fresh.fresh(f"{name}.{n}") for n in ("lora_A", "lora_B", "lora", "adapted"))
        bound = 1 / np.sqrt(columns)
        wide = value.dtype if value.dtype.itemsize > 2 else np.dtype(np.float32)
        factors[left] = np.zeros((rows, rank), wide)
        factors[right] = rng.uniform(-bound, bound, (rank, columns)).astype(wide)
        nodes.append(Node("MatMul", (left, right), (low,), name=low))
        if value.dtype != wide:
            nodes.append(Node("Cast", (low,), (low := fresh.fresh(f"{low}/narrow"),), {"to": _number(value)}, name=low))
        if value.ndim > 2:
            shape = fresh.fresh(f"{name}/shape")
            constants[shape] = np.array(value.shape, np.int64)
            nodes.append(Node("Reshape", (low, shape), (low := fresh.fresh(f"{low}/shaped"),), name=low))
        nodes.append(Node("Add", (name, low), (sum_,), name=sum_))
        names[name] = sum_
    types = {**graph.types, **{n: TensorType(v.dtype, v.shape) for n, v in factors.items()}}
    nodes.extend(_reading(graph.nodes, names))
    inputs = (*graph.inputs, *factors)
    return replace(graph, inputs=inputs, nodes=tuple(nodes), constants=constants, types=types), factors


def _with_statistics(graph: Graph) -> tuple[Graph, dict[str, Array], dict[str, str], list[str]]:
    """The graph with inputs and outputs for the running statistics of layers that train theirs."""
    fresh, kept, updates, nodes, notes = FreshNames(graph.tensors), {}, {}, [], []
    layers = [node for node in graph.nodes if node.key == ("", "BatchNormalization")]
    frozen = [node.name or node.outputs[0] for node in layers if not node.attrs.get("training_mode")]
    if frozen:
        notes.append(f"{len(frozen)} of {len(layers)} BatchNormalization use the statistics in the file, as exported "
                     f"for inference: {', '.join(map(shown, frozen[:3]))}{' ...' if frozen[3:] else ''}")  # fmt: skip
    for node in graph.nodes:
        if node.key == ("", "BatchNormalization") and node.attrs.get("training_mode"):
            outputs = [*node.outputs, "", ""][:3]
            for i, name in ((1, node.inputs[3]), (2, node.inputs[4])):
                if name in graph.constants:
                    outputs[i] = outputs[i] or fresh.fresh(f"{name}/new")
                    kept[name], updates[name] = graph.constants[name], outputs[i]
            node = replace(node, outputs=tuple(outputs))
        nodes.append(node)
    graph = replace(
        graph,
        inputs=(*graph.inputs, *(n for n in kept if n not in graph.inputs)),
        nodes=tuple(nodes),
        constants={n: v for n, v in graph.constants.items() if n not in kept},
        types={**graph.types, **{n: TensorType(v.dtype, v.shape) for n, v in kept.items()}},
    )
    return graph, kept, updates, notes
