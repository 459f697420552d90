"""ONNX's operator schemas: the signature of an operator at an opset, checks of nodes against it.

Also the way back, for writing files: the lowest opset at which the nodes of a graph mean what they mean in the newest.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from onnx import TensorProto, defs, helper

from gradcheck_cli.errors import ModelError, UnsupportedError, counted, did_you_mean
from gradcheck_cli.formats.gradient_nodes import BODY, GRADIENT
from gradcheck_cli.graph import Graph, Node, TensorType, describe

NEWEST = defs.onnx_opset_version()
LOWEST = 18  # gradient graphs use operators of this opset
_LEGACY = {"consumed_inputs"}  # attributes without a meaning, of operators before opset 6
PYTHON_TYPES: Mapping[str, type | tuple[type, ...]] = {  # of values by type of attribute; the first that fits is written
    "INT": int, "FLOAT": float, "STRING": (str, bytes), "TENSOR": np.ndarray, "SPARSE_TENSOR": np.ndarray,
    "GRAPH": Graph, "TYPE_PROTO": TensorType,
}  # fmt: skip

# The opset from which on an operator has its newest meaning, where older nodes look the same and mean something else.
_SINCE = {"DFT": 20, "GridSample": 20, "GroupNormalization": 21}
_SINCE_VALUE = {("Resize", "coordinate_transformation_mode", "half_pixel_symmetric"): 19}


class SchemaSignature(NamedTuple):
    """The operands, attributes and types of an operator from opset `since` on."""

    since: int
    inputs: tuple[int, int]  # least and most
    outputs: tuple[int, int]
    attributes: Mapping[str, str]  # name -> type, as in AttributeProto
    required: tuple[str, ...]
    defaults: Mapping[str, Any]
    accepts: tuple[frozenset[str], ...]  # types that each input may have
    gives: tuple[frozenset[str], ...]  # types that each output may have


def signature(op: str, opset: int) -> SchemaSignature | None:
    """The signature of an operator of the default domain at an opset; None if the opset lacks it.

    A deprecated operator keeps its last definition.
    """
    schema = _schema(op, min(opset, NEWEST))
    return _signature(op, schema.since_version) if schema is not None else None


@functools.cache
def versions(op: str) -> tuple[SchemaSignature, ...]:
    """All signatures that an operator of the default domain has had, oldest first."""
    newest = signature(op, NEWEST)
    if newest is None:
        return ()
    found = [newest]
    while found[-1].since > 1 and (earlier := signature(op, found[-1].since - 1)):
        found.append(earlier)
    return tuple(reversed(found))


def checked(node: Node, opset: int, where: str) -> Node:
    """The node without meaningless attributes; raises a ModelError if it contradicts its operator's schema.

    For operators of other domains only the types of attributes are checked, since those are the same in all versions.
    """
    if node.domain:
        foreign = _schema(node.op, NEWEST, node.domain)
        known = foreign.attributes if foreign is not None else {}
        for name, value in node.attrs.items():
            if name in known:
                _check_type(where, name, value, _kind(known[name]))
        return node
    schema = signature(node.op, opset)
    if schema is None:
        return node
    _check_arity(where, "inputs", len(node.inputs), schema.inputs)
    _check_arity(where, "outputs", len(node.outputs), schema.outputs)
    _check_bodies(where, node, opset)
    missing = [name for name in schema.required if name not in node.attrs and name not in _LEGACY]
    if missing:
        raise ModelError(f"{where}: attribute {missing[0]!r} is missing.")
    for name, value in node.attrs.items():
        if name in schema.attributes and name not in _LEGACY:
            _check_type(where, name, value, schema.attributes[name])
        elif name not in _LEGACY and not name.startswith("__"):
            hint = did_you_mean(name, schema.attributes)
            raise ModelError(f"{where}: attribute {name!r} is unknown to opset {opset}.{hint}")
    kept = {name: value for name, value in node.attrs.items() if name in schema.attributes and name not in _LEGACY}
    return node if len(kept) == len(node.attrs) else replace(node, attrs=kept)


def _check_arity(where: str, kind: str, count: int, bounds: tuple[int, int]) -> None:
    least, most = bounds
    if not least <= count <= most:
        limit = f"at least {least} are needed" if count < least else f"at most {most} are possible"
        raise ModelError(f"{where} has {count} {kind}; {limit}.")


def _check_bodies(where: str, node: Node, opset: int) -> None:
    """Raises a ModelError if a body takes another number of inputs than it is handed, or branches give different ones."""
    lengths = node.op == "Scan" and opset < 9  # its first input
    handed = {"If": 0, "Loop": max(2, len(node.inputs)), "Scan": len(node.inputs) - lengths}.get(node.op)
    bodies = {name: value for name, value in node.attrs.items() if isinstance(value, Graph)}
    for name, body in bodies.items():
        if handed is not None and handed not in (len(body.inputs), len(body.free_inputs)):
            takes = counted(len(body.inputs), "input")
            raise ModelError(f"{where}: its {name} {body.name!r} takes {takes}; {node.op} hands it {handed or 'none'}.")
    counts = {len(body.outputs) for body in bodies.values()}
    if node.op == "If" and len(counts) > 1:
        fewer = counted(min(counts), "output")
        raise ModelError(f"{where}: one branch has {fewer}, the other {max(counts)}; they must have as many.")


def _check_type(where: str, name: str, value: Any, expected: str) -> None:
    several, kinds = isinstance(value, tuple), PYTHON_TYPES[expected.removesuffix("S")]
    if several != expected.endswith("S") or not all(isinstance(v, kinds) for v in (value if several else (value,))):
        found = f"a tuple of {len(value)} values" if several else f"of type {type(value).__name__}"
        raise ModelError(f"{where}: attribute {name!r} is {found}; it must be of type {expected}.")


@functools.cache
def _schema(op: str, opset: int, domain: str = "") -> defs.OpSchema | None:
    try:
        schema = defs.get_schema(op, opset, domain)
    except defs.SchemaError:
        return None
    earlier = _schema(op, schema.since_version - 1, domain) if schema.deprecated and schema.since_version > 1 else None
    return earlier or schema


@functools.cache
def _signature(op: str, since: int) -> SchemaSignature | None:
    schema = _schema(op, since)
    if schema is None:
        return None
    attributes = schema.attributes
    return SchemaSignature(
        since,
        (schema.min_input, schema.max_input),
        (schema.min_output, schema.max_output),
        {name: _kind(attribute) for name, attribute in attributes.items()},
        tuple(name for name, attribute in attributes.items() if attribute.required),
        {
            name: {"FLOAT": default.f, "INT": default.i, "STRING": default.s.decode()}.get(_kind(attribute))
            for name, attribute in attributes.items()
            if (default := attribute.default_value).type
        },
        tuple(frozenset(formal.types) for formal in schema.inputs),
        tuple(frozenset(formal.types) for formal in schema.outputs),
    )


def _kind(attribute: defs.OpSchema.Attribute) -> str:
    return str(attribute.type.name)  # type: ignore[attr-defined]


def needed_opset(graph: Graph, least: int = LOWEST) -> int:
    """The lowest opset, `least` or above, at which every node means what it means in the newest one."""
    floor = max(least, LOWEST)
    needs = (_needed(node, describe(index, node), types, floor) for index, node, types in _nodes(graph, {}))
    return max(needs, default=floor)


def written_attrs(node: Node, opset: int) -> dict[str, Any]:
    """The attributes of a node that an opset knows; the others have their default values."""
    if node.key == GRADIENT:  # a file names only the tensors; the body is part of the graph around the node
        return {name: value for name, value in node.attrs.items() if name != BODY}
    schema = None if node.domain else signature(node.op, opset)
    return {name: value for name, value in node.attrs.items() if schema is None or name in schema.attributes}


def _nodes(graph: Graph, around: Mapping[str, str]) -> Iterator[tuple[int, Node, Mapping[str, str]]]:
    """Every node, with those of subgraphs, and the known types of the tensors that it can read."""
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
    texts = [(node.op, name, value) for name, value in node.attrs.items() if type(value) is str]
    since = max(floor, _SINCE.get(node.op, 0), *(_SINCE_VALUE.get(text, 0) for text in texts))
    least = signature(node.op, since)
    if least is not None and _fits(node, least, newest, types):
        return since
    for later in versions(node.op):
        if later.since > since and _fits(node, later, newest, types):
            return later.since
    raise UnsupportedError(f"{where} cannot be written: no opset of ONNX has {node.op} with its attributes and types.")


def _fits(node: Node, then: SchemaSignature, newest: SchemaSignature, types: Mapping[str, str]) -> bool:
    """True if a node of the newest form is valid for an older signature and means the same there."""
    bounds = (len(node.inputs), then.inputs), (len(node.outputs), then.outputs)
    counts = all(least <= count <= most for count, (least, most) in bounds)
    return counts and _same_attributes(node, then, newest) and _same_types(node, then, types)


def _same_attributes(node: Node, then: SchemaSignature, newest: SchemaSignature) -> bool:
    unknown = {name: value for name, value in node.attrs.items() if name not in then.attributes}
    absent = [name for name in then.defaults if name not in node.attrs and name in newest.attributes]
    return (
        all(n in newest.defaults and type(v) is not np.ndarray and v == newest.defaults[n] for n, v in unknown.items())
        and set(then.required) <= set(node.attrs)
        and all(then.defaults[name] == newest.defaults.get(name) for name in absent)
    )


def _same_types(node: Node, then: SchemaSignature, types: Mapping[str, str]) -> bool:
    taken = zip(node.inputs, _formals(then.accepts, len(node.inputs)), strict=False)
    given = zip(node.outputs, _formals(then.gives, len(node.outputs)), strict=False)
    cast = _elem_name(node.attrs.get("to", -1)) if node.op == "Cast" else ""
    return (
        all(not types.get(name) or types[name] in allowed for name, allowed in taken)
        and all(not types.get(name) or types[name] in allowed for name, allowed in given)
        and (not cast or cast in then.gives[0])
    )


def _formals(formals: tuple[frozenset[str], ...], count: int) -> tuple[frozenset[str], ...]:
    """The allowed types by position; the last one is repeated for variadic operands."""
    return formals + formals[-1:] * max(0, count - len(formals))


def _type_named(declared: TensorType) -> str:
    """A declared type as schemas write it, "seq(tensor(float))"; "" for maps and where the dtype is unknown."""
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
