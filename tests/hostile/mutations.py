"""Ways to spoil a model, each a function of the model and three numbers: `Mutation` is plain data that replays one."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from google.protobuf.message import DecodeError
from onnx import (
    AttributeProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    ValueInfoProto,
    defs,
    helper,
    numpy_helper,
)  # fmt: skip

from gradcheck_cli.ops import OPS
from tests.hostile.names import NAMES

T = TypeVar("T")
INTEGERS = (-1, 0, 1, 2, 3, -2, 7, 64, 1 << 20, 1 << 31, -(1 << 31), 1 << 40, (1 << 63) - 1, -(1 << 63))
FLOATS = (-1.0, 0.0, 1.0, 0.5, -0.0, 1e-45, 1e38, -1e38, 1e300, 2.0**31, float("nan"), float("inf"), -float("inf"))
WORDS = (
    "", "NONE", "SAME_UPPER", "VALID", "constant", "reflect", "linear", "cubic", "nearest", "add", "mul", "Relu", "Tanh",
    "ij,jk->ik", "...ii", "i->i", "sum", "mean", "bidirectional", "tanh", "x" * 1000, *NAMES.values(),
)  # fmt: skip
OPERATORS = sorted({(s.domain, s.name) for s in defs.get_all_schemas()} | set(OPS))
ATTRIBUTES = sorted({name for s in defs.get_all_schemas() for name in s.attributes})


@dataclass(frozen=True)
class Mutation:
    """One change: what, at which of the nodes or tensors, in which of its parts, and to which value."""

    kind: str
    at: int = 0
    part: int = 0
    value: int = 0


def mutated(data: bytes, mutations: Iterable[Mutation]) -> bytes:
    """A model file after these changes; a change that finds nothing to change is none."""
    for mutation in mutations:
        change = OF_BYTES.get(mutation.kind, of_model)
        data = change(data, mutation)
    return data


def of_model(data: bytes, mutation: Mutation) -> bytes:
    """A model file after a change of what is in it; as it was where bytes are spoiled so that nobody can read it."""
    model = ModelProto()
    try:
        model.ParseFromString(data)
        OF_MODELS[mutation.kind](model, mutation)
    except (DecodeError, TypeError, UnicodeError):  # protobuf gives texts that are no UTF-8 as bytes
        return data
    return model.SerializeToString()


# Parts of a model


def of(items: Sequence[T], number: int) -> T | None:
    """The item that a number picks, whatever their count."""
    return items[number % len(items)] if len(items) else None


def graphs(graph: GraphProto) -> Iterator[GraphProto]:
    """A graph and those inside it."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from graphs(attribute.g)


def nodes(model: ModelProto) -> list[NodeProto]:
    """All nodes, those of subgraphs and functions among them."""
    inside = [node for function in model.functions for node in function.node]
    return [node for graph in graphs(model.graph) for node in graph.node] + inside


def tensors(model: ModelProto) -> list[TensorProto]:
    """All constants: initializers and attributes."""
    held = [tensor for graph in graphs(model.graph) for tensor in graph.initializer]
    return held + [a.t for node in nodes(model) for a in node.attribute if a.HasField("t")]


def values(model: ModelProto) -> list[ValueInfoProto]:
    """All declared values."""
    return [v for graph in graphs(model.graph) for v in (*graph.input, *graph.output, *graph.value_info)]


def names(model: ModelProto) -> list[str]:
    """All tensor names."""
    used = [name for node in nodes(model) for name in (*node.input, *node.output)]
    return sorted({*used, *(t.name for t in tensors(model)), *(v.name for v in values(model)), ""})


def a_node(model: ModelProto, m: Mutation) -> NodeProto | None:
    return of(nodes(model), m.at)


def an_attribute(model: ModelProto, m: Mutation) -> AttributeProto | None:
    return of([a for node in nodes(model) for a in node.attribute], m.at)


# Attributes


def attribute_value(model: ModelProto, m: Mutation) -> None:
    """A value of the right kind that means nothing."""
    a = an_attribute(model, m)
    if a is None:
        return
    match a.type:
        case AttributeProto.INT:
            a.i = of(INTEGERS, m.value)
        case AttributeProto.INTS if a.ints:
            a.ints[m.part % len(a.ints)] = of(INTEGERS, m.value)
        case AttributeProto.FLOAT:
            a.f = of(FLOATS, m.value)
        case AttributeProto.FLOATS if a.floats:
            a.floats[m.part % len(a.floats)] = of(FLOATS, m.value)
        case AttributeProto.STRING:
            a.s = of(WORDS, m.value).encode()
        case AttributeProto.STRINGS if a.strings:
            a.strings[m.part % len(a.strings)] = of(WORDS, m.value).encode()


def attribute_length(model: ModelProto, m: Mutation) -> None:
    """A list that is too short or too long."""
    a = an_attribute(model, m)
    numbers = None if a is None else {AttributeProto.INTS: a.ints, AttributeProto.FLOATS: a.floats}.get(a.type)
    if not numbers:
        return
    length = of((0, 1, len(numbers) - 1, len(numbers) + 1, 2 * len(numbers), 70), m.value)
    wanted = [numbers[i % len(numbers)] for i in range(length)]
    numbers[:] = wanted


def attribute_kind(model: ModelProto, m: Mutation) -> None:
    """A value of another kind."""
    a = an_attribute(model, m)
    if a is not None:
        a.CopyFrom(helper.make_attribute(a.name, _anything(model, m.value)))


def attribute_type(model: ModelProto, m: Mutation) -> None:
    """A kind that is not that of the value."""
    if (a := an_attribute(model, m)) is not None:
        a.type = m.value % 15


def attribute_added(model: ModelProto, m: Mutation) -> None:
    """An attribute of some operator, with any value."""
    if (node := a_node(model, m)) is not None:
        op = OPS.get((node.domain, node.op_type))
        known = sorted(op.schema) if op is not None and op.schema else ATTRIBUTES
        name = of(known if m.part % 4 else ATTRIBUTES, m.part)
        node.attribute.append(helper.make_attribute(name, _anything(model, m.value)))


def attribute_dropped(model: ModelProto, m: Mutation) -> None:
    node = of([n for n in nodes(model) if n.attribute], m.at)
    if node is not None:
        del node.attribute[m.part % len(node.attribute)]


def attribute_renamed(model: ModelProto, m: Mutation) -> None:
    if (a := an_attribute(model, m)) is not None:
        a.name = of((*ATTRIBUTES, *NAMES.values()), m.value)


def _anything(model: ModelProto, number: int) -> Any:
    kinds: tuple[Any, ...] = (
        of(INTEGERS, number // 8), of(FLOATS, number // 8), of(WORDS, number // 8), list(INTEGERS[:3]),
        [0.5, -1.0], ["a", "b"], numpy_helper.from_array(np.asarray(of(INTEGERS, number // 8))), GraphProto(name="g"),
    )  # fmt: skip
    return kinds[number % 8]


# Nodes


def input_rewired(model: ModelProto, m: Mutation) -> None:
    """An input that reads another tensor, or none."""
    node = of([n for n in nodes(model) if n.input], m.at)
    if node is not None:
        node.input[m.part % len(node.input)] = of(names(model), m.value)


def input_dropped(model: ModelProto, m: Mutation) -> None:
    node = of([n for n in nodes(model) if n.input], m.at)
    if node is not None:
        del node.input[m.part % len(node.input)]


def input_added(model: ModelProto, m: Mutation) -> None:
    if (node := a_node(model, m)) is not None:
        node.input.extend([of(names(model), m.value)] * (m.part % 3 + 1))


def inputs_swapped(model: ModelProto, m: Mutation) -> None:
    node = of([n for n in nodes(model) if len(n.input) > 1], m.at)
    if node is not None:
        i, j = m.part % len(node.input), m.value % len(node.input)
        node.input[i], node.input[j] = node.input[j], node.input[i]


def output_renamed(model: ModelProto, m: Mutation) -> None:
    node = of([n for n in nodes(model) if n.output], m.at)
    if node is not None:
        node.output[m.part % len(node.output)] = of(names(model), m.value)


def output_dropped(model: ModelProto, m: Mutation) -> None:
    node = of([n for n in nodes(model) if n.output], m.at)
    if node is not None:
        del node.output[m.part % len(node.output)]


def output_added(model: ModelProto, m: Mutation) -> None:
    if (node := a_node(model, m)) is not None:
        node.output.extend(f"more_{m.at}_{i}" for i in range(m.value % 3 + 1))


def operator(model: ModelProto, m: Mutation) -> None:
    """Another operator, of any domain or of the same model."""
    if (node := a_node(model, m)) is not None:
        choices = OPERATORS if m.part % 2 else [(n.domain, n.op_type) for n in nodes(model)]
        node.domain, node.op_type = of(choices, m.value)


def domain(model: ModelProto, m: Mutation) -> None:
    if (node := a_node(model, m)) is not None:
        node.domain = of(("ai.onnx", "ai.onnx.ml", "com.microsoft", "gradcheck", *NAMES.values()), m.value)


def node_dropped(model: ModelProto, m: Mutation) -> None:
    graph = of(list(graphs(model.graph)), m.part)
    if graph.node:
        del graph.node[m.at % len(graph.node)]


def node_doubled(model: ModelProto, m: Mutation) -> None:
    graph = of(list(graphs(model.graph)), m.part)
    if graph.node:
        graph.node.add().CopyFrom(graph.node[m.at % len(graph.node)])


def node_moved(model: ModelProto, m: Mutation) -> None:
    if model.graph.node:
        moved = [*model.graph.node]
        moved.insert(m.value % len(moved), moved.pop(m.at % len(moved)))
        kept = [NodeProto.FromString(n.SerializeToString()) for n in moved]
        del model.graph.node[:]
        model.graph.node.extend(kept)


def function_called(model: ModelProto, m: Mutation) -> None:
    """A node becomes a function of the model, which may call itself."""
    if (node := a_node(model, m)) is not None:
        body = NodeProto.FromString(node.SerializeToString())
        function = model.functions.add(name="Own", domain="own")
        function.input.extend(f"i{k}" for k, _ in enumerate(body.input))
        function.output.extend(f"o{k}" for k, _ in enumerate(body.output))
        body.input[:], body.output[:] = list(function.input), list(function.output)
        if m.value % 4 == 0:
            body.op_type, body.domain = "Own", "own"
        function.node.add().CopyFrom(body)
        function.opset_import.add(domain="", version=m.part % 24)
        model.opset_import.add(domain="own", version=1)
        node.op_type, node.domain = "Own", "own"
        del node.attribute[:]


# Tensors and types


def tensor_dtype(model: ModelProto, m: Mutation) -> None:
    if (tensor := of(tensors(model), m.at)) is not None:
        tensor.data_type = m.value % 30


def tensor_dims(model: ModelProto, m: Mutation) -> None:
    tensor = of([t for t in tensors(model) if t.dims], m.at)
    if tensor is not None:
        tensor.dims[m.part % len(tensor.dims)] = of(INTEGERS, m.value)


def tensor_rank(model: ModelProto, m: Mutation) -> None:
    """The same numbers under more axes or fewer."""
    if (tensor := of(tensors(model), m.at)) is not None:
        count = math.prod(tensor.dims)
        wanted = of(([count], [1, *tensor.dims], [*tensor.dims, 1], [], [1] * 33, [count, 1, 1]), m.value)
        tensor.dims[:] = [d for d in wanted if 0 <= d < 1 << 63]


def tensor_data(model: ModelProto, m: Mutation) -> None:
    """Bytes that are too few, too many, or no finite numbers."""
    tensor = of([t for t in tensors(model) if t.raw_data], m.at)
    if tensor is None:
        return
    data = tensor.raw_data
    odd = {1: "f", 11: "d", 10: "e"}.get(tensor.data_type, "B")
    size = struct.calcsize(odd)
    floats = (float("nan"), float("inf"), -float("inf"), 0.0, 6e4)
    number = struct.pack(odd, m.part % 256 if odd == "B" else of(floats, m.part))
    place = m.value % max(1, len(data) // size) * size
    changes = (
        data[: m.part % (len(data) + 1)], data + data, b"", data[:place] + number + data[place + size :],
        number * (len(data) // size), bytes(len(data)), b"\xff" * len(data), data[::-1],
    )  # fmt: skip
    tensor.raw_data = of(changes, m.value)


def tensor_numbers(model: ModelProto, m: Mutation) -> None:
    """Another number where shapes, axes and indices are told, or in any other constant."""
    tensor = of([t for t in tensors(model) if t.data_type in (1, 6, 7, 11)], m.at)
    if tensor is None:
        return
    try:
        array = numpy_helper.to_array(tensor).copy()
    except Exception:  # spoiled before
        return
    if array.size:
        whole = [i for i in INTEGERS if -(1 << 31) <= i < 1 << 31 or array.itemsize == 8]
        with np.errstate(all="ignore"):
            array.reshape(-1)[m.part % array.size] = of(FLOATS if array.dtype.kind == "f" else whole, m.value)
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def tensor_emptied(model: ModelProto, m: Mutation) -> None:
    """A tensor with no entries: an axis of length 0."""
    if (tensor := of(tensors(model), m.at)) is not None:
        dims = [*tensor.dims] or [0]
        dims[m.part % len(dims)] = 0
        tensor.CopyFrom(TensorProto(name=tensor.name, data_type=tensor.data_type, dims=dims))


def constant_removed(model: ModelProto, m: Mutation) -> None:
    held = model.graph.initializer
    if held:
        del held[m.at % len(held)]


def constant_doubled(model: ModelProto, m: Mutation) -> None:
    held = model.graph.initializer
    if held:
        held.add().CopyFrom(held[m.at % len(held)])


def constant_is_input(model: ModelProto, m: Mutation) -> None:
    """A constant that is an input as well, of another shape and dtype."""
    if (held := of(model.graph.initializer, m.at)) is not None:
        model.graph.input.append(helper.make_tensor_value_info(held.name, m.part % 16 + 1, [of(INTEGERS, m.value)]))


def declared_dim(model: ModelProto, m: Mutation) -> None:
    declared = of([v for v in values(model) if v.type.tensor_type.shape.dim], m.at)
    if declared is not None:
        dim = declared.type.tensor_type.shape.dim
        of(dim, m.part).dim_value = of(INTEGERS, m.value)


def declared_symbol(model: ModelProto, m: Mutation) -> None:
    declared = of([v for v in values(model) if v.type.tensor_type.shape.dim], m.at)
    if declared is not None:
        of(declared.type.tensor_type.shape.dim, m.part).dim_param = of(("N", "batch", *NAMES.values()), m.value)


def declared_rank(model: ModelProto, m: Mutation) -> None:
    """More axes, fewer, none, or no shape at all."""
    if (declared := of(values(model), m.at)) is None:
        return
    shape = declared.type.tensor_type.shape
    match m.value % 4:
        case 0:
            shape.dim.add(dim_value=m.part % 4)
        case 1 if shape.dim:
            del shape.dim[m.part % len(shape.dim)]
        case 2:
            del shape.dim[:]
        case _:
            declared.type.tensor_type.ClearField("shape")


def declared_dtype(model: ModelProto, m: Mutation) -> None:
    if (declared := of(values(model), m.at)) is not None:
        declared.type.tensor_type.elem_type = m.value % 30


def declared_kind(model: ModelProto, m: Mutation) -> None:
    """A sequence, an optional, a map or nothing where there was a tensor."""
    if (declared := of(values(model), m.at)) is None:
        return
    inner = declared.type.SerializeToString()
    declared.type.Clear()
    match m.value % 4:
        case 0:
            declared.type.sequence_type.elem_type.ParseFromString(inner)
        case 1:
            declared.type.optional_type.elem_type.ParseFromString(inner)
        case 2:
            declared.type.map_type.key_type = 7
            declared.type.map_type.value_type.ParseFromString(inner)


# The graph and the model


def output_of_graph(model: ModelProto, m: Mutation) -> None:
    """An output that is another tensor, gone, or there twice."""
    graph = of(list(graphs(model.graph)), m.at)
    match m.part % 3:
        case 0 if graph.output:
            of(graph.output, m.value).name = of(names(model), m.value)
        case 1 if graph.output:
            del graph.output[m.value % len(graph.output)]
        case _:
            graph.output.add(name=of(names(model), m.value))


def input_of_graph(model: ModelProto, m: Mutation) -> None:
    graph = of(list(graphs(model.graph)), m.at)
    match m.part % 3:
        case 0 if graph.input:
            of(graph.input, m.value).name = of(names(model), m.value)
        case 1 if graph.input:
            del graph.input[m.value % len(graph.input)]
        case _:
            graph.input.append(helper.make_tensor_value_info(of(names(model), m.value), m.part % 16 + 1, [2, None]))


def opset(model: ModelProto, m: Mutation) -> None:
    versions = (*range(1, 30), 0, -1, 100, 1 << 40, (1 << 63) - 1)
    match m.part % 4:
        case 0:
            del model.opset_import[:]
        case 1:
            model.opset_import.add(domain=of(("", "ai.onnx", "x"), m.at), version=of(versions, m.value))
        case _ if model.opset_import:
            of(model.opset_import, m.at).version = of(versions, m.value)


def ir_version(model: ModelProto, m: Mutation) -> None:
    model.ir_version = of((*range(15), 1 << 40, -1), m.value)


def tensor_renamed(model: ModelProto, m: Mutation) -> None:
    """A tensor with a hostile name, wherever it is named."""
    old, new = of(names(model), m.at), of([*NAMES.values()], m.value)
    for node in nodes(model):
        node.input[:] = [new if name == old else name for name in node.input]
        node.output[:] = [new if name == old else name for name in node.output]
    for item in (*tensors(model), *values(model)):
        if item.name == old:
            item.name = new


def other_renamed(model: ModelProto, m: Mutation) -> None:
    """A node, a graph or an operator with a hostile name, which it then has there alone."""
    new = of([*NAMES.values()], m.value)
    match m.part % 4:
        case 0:
            model.graph.name = new
        case 1 if nodes(model):
            a_node(model, m).name = new
        case 2 if nodes(model):
            a_node(model, m).op_type = new
        case _:
            model.metadata_props.add(key=new, value=new)


# Bytes


def bytes_cut(data: bytes, m: Mutation) -> bytes:
    return data[: m.at % (len(data) + 1)]


def bit_flipped(data: bytes, m: Mutation) -> bytes:
    changed = bytearray(data)
    if changed:
        changed[m.at % len(changed)] ^= 1 << m.value % 8
    return bytes(changed)


def byte_set(data: bytes, m: Mutation) -> bytes:
    changed = bytearray(data)
    if changed:
        changed[m.at % len(changed)] = m.value % 256
    return bytes(changed)


def bytes_removed(data: bytes, m: Mutation) -> bytes:
    at = m.at % (len(data) + 1)
    return data[:at] + data[at + m.value % 32 :]


def bytes_repeated(data: bytes, m: Mutation) -> bytes:
    at = m.at % (len(data) + 1)
    return data[: at + m.value % 32] + data[at:]


Change = Callable[[ModelProto, Mutation], None]
OF_MODELS: dict[str, Change] = {
    change.__name__: change
    for change in (
        attribute_value, attribute_length, attribute_kind, attribute_type, attribute_added, attribute_dropped,
        attribute_renamed, input_rewired, input_dropped, input_added, inputs_swapped, output_renamed, output_dropped,
        output_added, operator, domain, node_dropped, node_doubled, node_moved, function_called, tensor_dtype,
        tensor_dims, tensor_rank, tensor_data, tensor_numbers, tensor_emptied, constant_removed, constant_doubled,
        constant_is_input, declared_dim, declared_symbol, declared_rank, declared_dtype, declared_kind,
        output_of_graph, input_of_graph, opset, ir_version, tensor_renamed, other_renamed,
    )
}  # fmt: skip
OF_BYTES: dict[str, Callable[[bytes, Mutation], bytes]] = {
    change.__name__: change for change in (bytes_cut, bit_flipped, byte_set, bytes_removed, bytes_repeated)
}
KINDS = (*OF_MODELS, *OF_BYTES)
