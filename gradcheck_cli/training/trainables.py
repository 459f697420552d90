"""The tensors of a model that are trained: weights become inputs, low-rank factors are added, statistics are kept.

A graph is rewritten once, before it is differentiated; what a node read as a weight it then reads as an input.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
from msgspec import Struct

from gradcheck_cli.errors import UsageError, shown
from gradcheck_cli.export.parameters import lifted, opened, reading
from gradcheck_cli.export.size_formulas import NUMBERS
from gradcheck_cli.graph import Array, FreshNames, Graph, Node, TensorType
from gradcheck_cli.op import Ops
from gradcheck_cli.points.targets import (
    copied,
    differentiable_constants,
    fitting,
    is_of_module,
    matched_params,
    said_of_merged,
    weights,
)


class Trainables(Struct, frozen=True):
    """A graph whose trained tensors are inputs.

    params      initial values of what is trained, by input
    statistics  those of statistics that the model itself keeps, by input
    updates     the outputs with the new statistics, by input
    notes       sentences on what is trained and what is not
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
    graph, copies = _copies_apart(_statistics_apart(lifted(graph)))
    ranks = dict(_ranks(graph, ys, lora))
    if globs:
        names = matched_params(graph, ys, globs, (), ops, "--trainable ")
    else:
        names = () if lora else weights(graph, ys, ops=ops)
    both = set(names) & set(ranks)
    if both:
        raise UsageError(f"--lora and --trainable both name {', '.join(map(shown, sorted(both)))}.")
    if not names and not ranks:
        raise UsageError("the model has no weights to train: --trainable GLOB names constants, which inspect lists.")
    values = {name: graph.constants[name] for name in names}
    if other := next((n for n, v in values.items() if v.dtype.kind not in "fV"), None):
        raise UsageError(f"{shown(other)} is {values[other].dtype}; weights of real numbers can be trained.")
    wide = {n: v.astype(np.float32) if v.dtype.itemsize < 4 else v for n, v in values.items()}
    merged = [*_said_of_copies([n for n in names if n in copies]), *said_of_merged(graph, names, ops)]
    graph, factors = _adapted(opened(graph, wide), ranks, np.random.default_rng(seed))
    graph, statistics, updates, notes = _with_statistics(graph)
    return Trainables(graph, {**wide, **factors}, statistics, updates, (*merged, *notes))


def _statistics_apart(graph: Graph) -> Graph:
    """The graph in which nothing but one layer reads the statistics of that layer.

    Exporters keep equal tensors once: the mean of a model that was never trained is its bias, and that of other layers.
    """
    fresh, constants, nodes, constant = FreshNames(graph.tensors), dict(graph.constants), [], copied(graph)
    modules = dict(graph.modules)
    readers = Counter(constant.get(name, name) for node in graph.all_nodes for name in node.inputs)
    for node in graph.nodes:
        if node.key == ("", "BatchNormalization"):
            own = [*node.inputs]
            for i in (3, 4):
                kept = constant.get(own[i], "")
                if kept and (readers[kept] > 1 or kept != own[i]):
                    own[i] = fresh.fresh(f"{node.name or node.outputs[0]}/{('mean', 'var')[i - 3]}")
                    constants[own[i]] = graph.constants[kept]
                    modules.pop(kept, None)  # which may be a weight that was merged with a buffer
            node = replace(node, inputs=tuple(own))
        nodes.append(node)
    return replace(graph, nodes=tuple(nodes), constants=constants, modules=modules)


def _copies_apart(graph: Graph) -> tuple[Graph, list[str]]:
    """The graph in which copies of constants of equal values are constants of their own, and their names.

    An exporter that keeps equal tensors once gives the others the names that they have in modules by Identity nodes.
    It does so with tied weights too, which stay tied: not all of their values are equal.
    """
    constants, nodes, copies = dict(graph.constants), list[Node](), list[str]()
    for node in graph.nodes:
        name = node.outputs[0]
        copy = node.key == ("", "Identity") and name not in graph.outputs and is_of_module(name)
        value = constants.get(node.inputs[0]) if copy else None
        if value is not None and value.dtype.kind in "fV" and value.size and (value == value.flat[0]).all():
            constants[name] = value
            copies.append(name)
        else:
            nodes.append(node)
    return replace(graph, nodes=tuple(nodes), constants=constants), copies


def _said_of_copies(names: Sequence[str]) -> Iterator[str]:
    if names:
        more = f" and {len(names) - 1} more" if names[1:] else ""
        yield f"{shown(names[0])}{more}: written as a copy of a weight whose values are all equal, trained by itself here"


def _ranks(graph: Graph, ys: Sequence[str], lora: Iterable[str]) -> Iterator[tuple[str, int]]:
    """The weights that get low-rank factors, with the rank."""
    known = [n for n in differentiable_constants(graph, ys) if graph.constants[n].ndim > 1]
    for text in lora:
        rank, _, glob = text.partition(":")
        if not rank.isdigit() or not int(rank) or not glob:
            raise UsageError(f"--lora {text}: write RANK:GLOB, such as --lora 8:'*attention*'.")
        yield from ((name, int(rank)) for name in fitting(known, glob, "--lora "))


def _adapted(graph: Graph, ranks: Mapping[str, int], rng: np.random.Generator) -> tuple[Graph, dict[str, Array]]:
    """The graph in which some weights W are W + A B, and the factors: A begins with zeros, B is drawn.

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
            nodes.append(
                Node("Cast", (low,), (low := fresh.fresh(f"{low}/narrow"),), {"to": NUMBERS[value.dtype]}, name=low)
            )
        if value.ndim > 2:
            shape = fresh.fresh(f"{name}/shape")
            constants[shape] = np.array(value.shape, np.int64)
            nodes.append(Node("Reshape", (low, shape), (low := fresh.fresh(f"{low}/shaped"),), name=low))
        nodes.append(Node("Add", (name, low), (sum_,), name=sum_))
        names[name] = sum_
    types = {**graph.types, **{n: TensorType(v.dtype, v.shape) for n, v in factors.items()}}
    nodes.extend(reading(graph.nodes, names))
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
