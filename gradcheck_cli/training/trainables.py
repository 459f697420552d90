"""The tensors of a model that are trained: weights become inputs, low-rank factors are added, statistics are kept.

A graph is rewritten once, before it is differentiated; what a node read as a weight it then reads as an input.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
from msgspec import Struct

from gradcheck_cli.errors import UsageError, named, shown
from gradcheck_cli.export.rewrites import lifted, opened, reading
from gradcheck_cli.export.size_formulas import NUMBERS
from gradcheck_cli.graph import Array, FreshNames, Graph, Node, TensorType, is_inexact
from gradcheck_cli.op import QUANTIZATION, WEIGHT, Ops
from gradcheck_cli.points.targets import (
    constant_roles,
    copied,
    differentiable_constants,
    fitting,
    is_flat,
    is_made_up,
    is_of_module,
    matched_params,
    passed_over,
    readers_of,
    said_of_merged,
    weights,
    without,
)

_PRODUCTS = {"Conv", "ConvTranspose", "Einsum", "Gemm", "MatMul"}


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
    graph: Graph, ys: Sequence[str], globs: Sequence[str], lora: Sequence[str], ops: Ops, seed: int,
    left: Sequence[str] = (),
) -> Trainables:  # fmt: skip
    """The graph with inputs for the weights, or for those that fit `globs`, and for the factors of `lora`, RANK:GLOB.

    Weights in `left` stay as they are: no gradient leads to them.
    """
    graph, copies = _copies_apart(_statistics_apart(lifted(graph)))
    graph, merged = _merged_apart(graph, {*weights(graph, ys, ops=ops), *_of_group_norms(graph)})
    graph, tied = _transposes_tied(graph)
    _require_needed(graph, ys, globs)
    never = _no_weights(graph, ys, ops) if globs or lora else set()
    ranks = dict(_ranks(graph, ys, lora, never))
    usual, kept = ((), []) if lora and not globs else _usual(graph, ys, ops)
    leaving_out = bool(globs) and all(glob.startswith("!") for glob in globs)
    names = (
        matched_params(graph, ys, globs, usual if leaving_out else (), ops, "--trainable ", never) if globs else usual
    )
    both = set(names) & set(ranks)
    if both:
        raise UsageError(f"--lora and --trainable both name {', '.join(map(shown, sorted(both)))}.")
    if not names and not ranks:
        raise UsageError(f"the model has no weights to train: {_instead(graph, ys, ops)}.")
    values = {name: graph.constants[name] for name in names if name not in left}
    if other := next((n for n, v in values.items() if v.dtype.kind not in "fV"), None):
        raise UsageError(f"{shown(other)} is {values[other].dtype}; weights of real numbers can be trained.")
    wide = {n: v.astype(np.float32) if v.dtype.itemsize < 4 else v for n, v in values.items()}
    said = [
        *_said_of_copies([n for n in values if n in copies], "written as a copy of an equal weight"),
        *_said_of_copies([n for n in values if n in merged], "kept once with equal weights of other modules"),
        *said_of_merged(graph, values, ops),
        *(f"{shown(n)} is {shown(of)} transposed: trained as one weight" for n, of in tied.items() if of in values),
        *(kept if leaving_out or not globs else ()),
        *_said_of_ranks(graph, ranks),
    ]
    graph, factors = _adapted(opened(graph, wide), ranks, np.random.default_rng(seed))
    graph, statistics, updates, notes = _with_statistics(graph)
    return Trainables(graph, {**wide, **factors}, statistics, updates, (*said, *notes))


def _usual(graph: Graph, ys: Sequence[str], ops: Ops) -> tuple[tuple[str, ...], list[str]]:
    """The constants that are trained where nobody names any, and sentences on those that may be parameters and are not.

    Exporters fold what is computed of parameters and of buffers alike, and most do not tell which: a table of sines, or
    the rows of one that is learnt.  Trained, a buffer is another model; kept, a parameter is only frozen.  So is a
    weight that is normalized: without its norm it is another model too.
    """
    scales, roles = _of_group_norms(graph), constant_roles(graph, ys, ops=ops)
    trained, needed = [n for n, found in roles.items() if found.role == WEIGHT], graph.needed_for(ys)
    names = dict.fromkeys([*trained, *(n for n in scales if n in needed)])
    declares = any(graph.modules.values())
    unknown = [n for n in names if n not in {*scales, *(graph.trained or ())} and _is_folded(graph, n, declares)]
    readers = readers_of(graph, unknown, ops)
    folded = [
        n
        for n in unknown
        if graph.folded.get(n) or all(op.name not in _PRODUCTS and not op.roles for op, _ in readers.get(n, ()))
    ]
    folded += [n for n, role in roles.items() if role.rule in (4, 5) and n not in names and _may_be_made_of(graph, n)]
    kept = [n for n in passed_over(graph, roles) if n not in names]
    said = [*_said_of_kept(folded, "computed by the exporter, of parameters or of buffers",
                           "; export without optimizing, in PyTorch by torch.onnx.export(..., dynamo=True, "
                           "optimize=False)"),
            *_said_of_kept(kept, "one entry, or all values are equal", "")]  # fmt: skip
    return tuple(n for n in names if n not in folded), said


def _instead(graph: Graph, ys: Sequence[str], ops: Ops) -> str:
    """The way on where a model has no weights."""
    if any(found.role == QUANTIZATION for found in constant_roles(graph, ys, ops=ops).values()):
        return (
            "they are integers since it was quantized; take the model from before that, or one that rounds floats "
            "(fake quantization), which --straight-through trains"
        )
    return "--trainable GLOB names constants, which inspect lists"


def _no_weights(graph: Graph, ys: Sequence[str], ops: Ops) -> set[str]:
    """Statistics, scales of quantizers, buffers and numbers of the code: no weights by what reads or declares them."""
    roles = constant_roles(graph, ys, ops=ops)
    return {n for n, found in roles.items() if found.role != WEIGHT and found.rule < 3} - {*_of_group_norms(graph)}


def _is_folded(graph: Graph, name: str, declares: bool) -> bool:
    """True for what exporters compute: they say so, declare others as parameters, or call it as they do."""
    computed = name.startswith(("onnx::", "ConstantFolding/"))  # of PyTorch's older exporter, and of TensorFlow
    return computed or graph.folded.get(name, False) or (declares and name not in graph.modules)


def _may_be_made_of(graph: Graph, name: str) -> bool:
    """True for a number, or several equal ones, that an exporter has computed, maybe of parameters."""
    older = name.startswith("onnx::") and name not in graph.inline and is_flat(graph.constants[name])
    return older or name in graph.folded


def _said_of_kept(names: Sequence[str], why: str, instead: str) -> Iterator[str]:
    if names:
        yield f"{named(names, 1)} ({why}): kept here, not trained; --trainable NAME trains it{instead}"


def _of_group_norms(graph: Graph) -> list[str]:
    """The scales and shifts behind a reshaped InstanceNormalization: as exporters write GroupNorm."""
    normalized, scaled, found = set[str](), set[str](), list[str]()
    for node in graph.nodes:
        first = node.inputs[0] if node.inputs else ""
        if node.op == "InstanceNormalization" or (node.op == "Cast" and first in normalized):
            normalized.update(node.outputs)
        elif node.op == "Reshape" and first in normalized:
            scaled.update(node.outputs)
        elif node.op in ("Mul", "Add") and not scaled.isdisjoint(node.inputs):
            own = [n for n in node.inputs if n in graph.constants and graph.constants[n].size > 1]
            found += own
            scaled.update(node.outputs if own and node.op == "Mul" else ())
    return found


def _transposes_tied(graph: Graph) -> tuple[Graph, dict[str, str]]:
    """The graph in which a matrix that is another one transposed is computed of it, and which that is.

    Exporters transpose tied weights, such as those of an embedding and of the head behind it, once and for all.  Those
    that a spec declares are as it says; and weights that begin as the identity, say, are equal and not tied.
    """
    if graph.trained is not None:
        return graph, {}
    every = {n: v for n, v in graph.constants.items() if v.ndim == 2 and min(v.shape) > 1}
    shapes = {v.shape for v in every.values()}
    matrices = {n: v for n, v in every.items() if v.shape[::-1] in shapes and v.dtype.kind in "fV" and not is_flat(v)}
    known: dict[tuple[object, ...], str] = {}
    for name in sorted(matrices, key=is_made_up):
        known.setdefault(_content(matrices[name]), name)
    tied = dict[str, str]()
    for name in sorted(matrices, key=is_made_up, reverse=True):
        turned = matrices[name].T
        of = known.get(_content(turned))
        if of is None or of == name or of in tied or not np.array_equal(turned, matrices[of]):
            continue
        if is_made_up(name) or not np.array_equal(turned, matrices[name]):
            tied[name] = of
    nodes = [Node("Transpose", (of,), (name,), {"perm": (1, 0)}, name=name) for name, of in tied.items()]
    constants = {n: v for n, v in graph.constants.items() if n not in tied}
    return replace(graph, nodes=(*nodes, *graph.nodes), constants=constants) if tied else graph, tied


def _content(value: Array) -> tuple[object, ...]:
    """A key that is equal for equal arrays."""
    return value.shape, value.dtype, hash(value.tobytes())


def _require_needed(graph: Graph, ys: Sequence[str], globs: Sequence[str]) -> None:
    """UsageError for a glob that fits nothing but weights on which the loss does not depend."""
    floats = [n for n, v in graph.constants.items() if is_inexact(v.dtype) and v.size]
    known = differentiable_constants(graph, ys)
    for glob in globs:
        fits = fitting(floats, glob.removeprefix("!"), "--trainable ")
        if not {*fits} & {*known}:
            raise UsageError(f"--trainable {shown(glob)}: the loss does not depend on {named(fits)}.")


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
    """The graph in which copies of constants are constants of their own, unless they are tied, and their names.

    An exporter that keeps equal tensors once gives the others the names that they have in modules by Identity nodes.
    It does so with tied weights too.  Those are not of equal values; nor are the weights of layers that are copies of
    one another, and begin alike in a model that was never trained: those have one name but for the number.
    """
    constants, nodes, copies, readers = dict(graph.constants), list[Node](), list[str](), _names_of_readers(graph)
    whole = copied(graph)
    found = {
        n.outputs[0]: whole[n.inputs[0]] for n in graph.nodes if n.key == ("", "Identity") and n.inputs[0] in whole
    }
    flat = {n for n, of in found.items() if is_of_module(n) and is_flat(constants[of])}
    for node in graph.nodes:
        name = node.outputs[0]
        of = found.get(name)
        if of is None or name in graph.outputs or not (name in flat or (flat and _numbered(name, of, readers))):
            nodes.append(node)
        else:
            constants[name] = graph.constants[of]
            copies.append(name)
    return replace(graph, nodes=tuple(nodes), constants=constants), copies


def _numbered(name: str, of: str, readers: Mapping[str, set[str]]) -> bool:
    """True for a copy whose name, or if exporters made it up those of its readers, differs by numbers alone."""
    if not is_made_up(name):
        return is_of_module(name) and _without_numbers(name) == _without_numbers(of)
    own, other = readers.get(name, set()), readers.get(of, set())
    return own.isdisjoint(other) and {*map(_without_numbers, own)} == {*map(_without_numbers, other)}


def _without_numbers(name: str) -> str:
    return re.sub(r"\d+", "", name)


def _names_of_readers(graph: Graph) -> dict[str, set[str]]:
    """The names of the nodes that read a tensor, but for those that copy it."""
    found: dict[str, set[str]] = {}
    for node in graph.nodes:
        for name in node.inputs if node.key != ("", "Identity") else ():
            found.setdefault(name, set()).add(node.name)
    return found


def _said_of_copies(names: Sequence[str], how: str) -> Iterator[str]:
    if names:
        yield f"{named(names, 1)}: {how}, trained by itself here"


def _merged_apart(graph: Graph, names: set[str]) -> tuple[Graph, list[str]]:
    """The graph in which weights that PyTorch's exporter kept once are those of each module, and their new names.

    It tells the module that a node belongs to.  One that is called twice has one weight; of several modules they are
    tied unless all values are equal or, in a model that was never trained, the modules are layers of one kind.
    """
    modules: dict[str, dict[str, None]] = {}
    for node in graph.nodes:
        for name in names.intersection(node.inputs):
            modules.setdefault(name, {})[_module_of(node)] = None
    flat = {n for n, found in modules.items() if len(found) > 1 and is_flat(graph.constants[n])}
    fresh, own, constants, kinds = FreshNames(graph.tensors), dict[tuple[str, str], str](), {}, dict(graph.modules)
    for name, found in modules.items():
        alike = len({*map(_without_numbers, found)}) == 1
        for module in list(found)[1:] if "" not in found and (name in flat or (flat and alike)) else ():
            new = own[name, module] = fresh.fresh(f"{module}/{name}")
            constants[new] = graph.constants[name]
            kinds.update({new: kinds[name]} if name in kinds else {})
    nodes = [
        replace(node, inputs=tuple(own.get((n, _module_of(node)), n) for n in node.inputs)) for node in graph.nodes
    ]
    graph = replace(graph, nodes=tuple(nodes), constants={**graph.constants, **constants}, modules=kinds)
    return graph, [*constants]


def _module_of(node: Node) -> str:
    """The module that a node belongs to, as PyTorch's exporter tells it; "" where it does not."""
    scopes = re.findall(r"'([^']*)'", node.metadata.get("pkg.torch.onnx.name_scopes", ""))
    return scopes[-2] if len(scopes) > 1 else ""


def _ranks(graph: Graph, ys: Sequence[str], lora: Iterable[str], never: Collection[str]) -> Iterator[tuple[str, int]]:
    """The weights that get low-rank factors, with the rank."""
    known = [n for n in differentiable_constants(graph, ys) if graph.constants[n].ndim > 1]
    for text in lora:
        rank, _, glob = text.partition(":")
        if not rank.isdigit() or not int(rank) or not glob:
            raise UsageError(f"--lora {text}: write RANK:GLOB, such as --lora 8:'*attention*'.")
        yield from ((name, int(rank)) for name in without(fitting(known, glob, "--lora "), never))


def _said_of_ranks(graph: Graph, ranks: Mapping[str, int]) -> Iterator[str]:
    """A sentence on weights whose factors are no fewer numbers, and restrict nothing."""
    shapes = {name: graph.constants[name].shape for name in ranks}
    full = [name for name, (rows, *rest) in shapes.items() if ranks[name] > min(rows, math.prod(rest))]
    if full:
        yield f"{named(full, 1)}: the rank of --lora is above the smaller side of the weight, and restricts nothing"


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
                     f"for inference: {', '.join(map(shown, frozen[:3]))}{' ...' if frozen[3:] else ''}. To train "
                     "them, export for training, in PyTorch by torch.onnx.export(..., dynamo=False, "
                     "training=TrainingMode.TRAINING, do_constant_folding=False)")  # fmt: skip
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


def evaluated(graph: Graph) -> Graph:
    """The graph without what only training does: layers normalize by running statistics, and Dropout drops nothing."""
    return replace(graph, nodes=tuple(node for each in graph.nodes for node in _evaluated(each)))


def _evaluated(node: Node) -> Iterator[Node]:
    node = node.with_graphs(evaluated)
    if node.key == ("", "BatchNormalization") and node.attrs.get("training_mode"):
        yield replace(node, outputs=node.outputs[:1], attrs={**node.attrs, "training_mode": 0})
        for name, kept in zip(node.outputs[1:], node.inputs[3:], strict=False):
            if name:
                yield Node("Identity", (kept,), (name,), name=name)
    elif node.key == ("", "Dropout"):
        yield replace(node, inputs=node.inputs[:2])
    else:
        yield node
