"""The lowest opset whose operators mean what a graph in the newest form means."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from gradcheck_cli.errors import UnsupportedError
from gradcheck_cli.formats.gradient_nodes import BODY
from gradcheck_cli.formats.gradient_nodes import KEY as GRADIENT
from gradcheck_cli.formats.onnx.opset import NEWEST, Signature, signature, versions
from gradcheck_cli.graph import Graph, Node, TensorType, describe

LOWEST = 18  # the operators that gradients emit are those of this opset
# The opset from which the newest meaning holds, where an operator changed it and a node does not show it.
_SINCE = {"DFT": 20, "GridSample": 20, "GroupNormalization": 21}
_SINCE_VALUE = {("Resize", "coordinate_transformation_mode", "half_pixel_symmetric"): 19}


def needed_opset(graph: Graph, least: int = LOWEST) -> int:
    """The lowest opset, `least` or above, at which every node means what it means in the newest."""
    floor = max(least, LOWEST)
    needs = (_needed(node, describe(index, node), types, floor) for index, node, types in _nodes(graph, {}))
    return max(needs, default=floor)


def written_attrs(node: Node, opset: int) -> dict[str, Any]:
    """The attributes of a node that an opset knows; others can only have their default values."""
    if node.key == GRADIENT:  # a file has only the names of the tensors that its body leads through
        return {name: value for name, value in node.attrs.items() if name != BODY}
    schema = None if node.domain else signature(node.op, opset)
    return {name: value for name, value in node.attrs.items() if schema is None or name in schema.attributes}


def _nodes(graph: Graph, around: Mapping[str, str]) -> Iterator[tuple[int, Node, Mapping[str, str]]]:
    """Every node at every level, with the types known of the tensors that it can see."""
    declared = {name: kind for name, declared in graph.types.items() if (kind := _type_named(declared))}
    held = {name: _dtype_name(array.dtype) for name, array in graph.constants.items()}
    types = {**around, **declared, **held}
    for index, node in enumerate(graph.nodes):
        yield index, node, types
        for subgraph in node.subgraphs:
            yield from _nodes(subgraph, types)


def _needed(node: Node, where: str, types: Mapping[str, str], floor: int) -> int:
    newest = None if node.domain else signature(node.op, NEWEST)
    if newest is None:
        return floor
    for candidate in _candidates(node.op, max(floor, _since(node))):
        if _fits(node, candidate, newest, types):
            return max(floor, _since(node), candidate.since)
    raise UnsupportedError(f"{where} cannot be written: no opset of ONNX has {node.op} with its attributes and types.")


def _candidates(op: str, floor: int) -> Iterator[Signature]:
    at_floor = signature(op, floor)
    if at_floor is not None:
        yield at_floor
    yield from (later for later in versions(op) if later.since > floor)


def _since(node: Node) -> int:
    shown = (_SINCE_VALUE.get((node.op, name, value), 0) for name, value in node.attrs.items() if type(value) is str)
    return max(_SINCE.get(node.op, 0), *shown, 0)


def _fits(node: Node, then: Signature, newest: Signature, types: Mapping[str, str]) -> bool:
    """Whether a node of the newest form is one of an older signature, and means the same there."""
    counts = _within(len(node.inputs), then.inputs) and _within(len(node.outputs), then.outputs)
    return counts and _same_attributes(node, then, newest) and _same_types(node, then, types)


def _within(count: int, bounds: tuple[int, int]) -> bool:
    return bounds[0] <= count <= bounds[1]


def _same_attributes(node: Node, then: Signature, newest: Signature) -> bool:
    unknown = [name for name in node.attrs if name not in then.attributes]
    absent = [name for name in then.defaults if name not in node.attrs and name in newest.attributes]
    return (
        all(_is_default(node.attrs[name], name, newest) for name in unknown)
        and set(then.required) <= set(node.attrs)
        and all(then.defaults[name] == newest.defaults.get(name) for name in absent)
    )


def _is_default(value: Any, name: str, newest: Signature) -> bool:
    return name in newest.defaults and not isinstance(value, np.ndarray) and value == newest.defaults[name]


def _same_types(node: Node, then: Signature, types: Mapping[str, str]) -> bool:
    taken = zip(node.inputs, _formals(then.accepts, len(node.inputs)), strict=False)
    given = zip(node.outputs, _formals(then.gives, len(node.outputs)), strict=False)
    cast = _elem_name(node.attrs.get("to", -1)) if node.op == "Cast" else ""
    return (
        all(not types.get(name) or types[name] in allowed for name, allowed in taken)
        and all(not types.get(name) or types[name] in allowed for name, allowed in given)
        and (not cast or cast in then.gives[0])
    )


def _formals(formals: tuple[frozenset[str], ...], count: int) -> tuple[frozenset[str], ...]:
    """The allowed types by position; the last formal is repeated where it is variadic."""
    return formals + formals[-1:] * max(0, count - len(formals))


def _type_named(declared: TensorType) -> str:
    """A declared type as schemas write it, "seq(tensor(float))"; "" where the dtype is not known, and for maps."""
    if declared.dtype is None or declared.kind == "map":
        return ""
    inner = _dtype_name(declared.dtype) if declared.inner is None else _type_named(declared.inner)
    short = {"tensor": "", "sequence": "seq", "optional": "optional"}[declared.kind]
    return f"{short}({inner})" if short and inner else inner


def _dtype_name(dtype: np.dtype[Any]) -> str:
    try:
        return _elem_name(helper.np_dtype_to_tensor_dtype(dtype))
    except (KeyError, ValueError):
        return ""


def _elem_name(elem_type: int) -> str:
    """The name of an element type as schemas write it, "tensor(float)"; "tensor(?)" for an unknown one."""
    if elem_type not in TensorProto.DataType.values():
        return "tensor(?)"
    return f"tensor({TensorProto.DataType.Name(TensorProto.DataType.ValueType(elem_type)).lower()})"
