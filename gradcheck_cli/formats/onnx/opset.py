"""What ONNX's own schemas say of an operator at an opset, and whether a node keeps to it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from onnx import defs

from gradcheck_cli.errors import ModelError, did_you_mean
from gradcheck_cli.graph import Graph, Node, TensorType

NEWEST = defs.onnx_opset_version()
_LEGACY = {"consumed_inputs"}  # of operators before opset 6, without a meaning


class Signature(NamedTuple):
    """How an operator is called from opset `since` on."""

    since: int
    inputs: tuple[int, int]  # least and most
    outputs: tuple[int, int]
    attributes: Mapping[str, str]  # name -> type, as in AttributeProto
    required: tuple[str, ...]
    defaults: Mapping[str, Any]
    accepts: tuple[frozenset[str], ...]  # types that each input may have
    gives: tuple[frozenset[str], ...]  # types that each output may have


def signature(op: str, opset: int) -> Signature | None:
    """The signature of an operator of the default domain at an opset; None where it has none.

    A deprecated operator keeps the definition that it had before, or its only one.
    """
    schema = _schema(op, min(opset, NEWEST))
    return _signature(op, schema.since_version) if schema is not None else None


def versions(op: str) -> tuple[Signature, ...]:
    """Every signature that an operator of the default domain has had, oldest first."""
    return tuple(found for since in _history().get(op, ()) if (found := _signature(op, since)))


def checked(node: Node, opset: int, where: str) -> Node:
    """The node without meaningless attributes; a ModelError where it contradicts its operator's schema.

    Of an operator of another domain only the types of its attributes are compared, which are those of all versions.
    """
    if node.domain:
        _check_types(node, where)
        return node
    schema = signature(node.op, opset)
    if schema is None:
        return node
    _check_arity(where, "inputs", len(node.inputs), schema.inputs)
    _check_arity(where, "outputs", len(node.outputs), schema.outputs)
    missing = [name for name in schema.required if name not in node.attrs and name not in _LEGACY]
    if missing:
        raise ModelError(f"{where}: attribute {missing[0]!r} is missing.")
    for name, value in node.attrs.items():
        _check_attribute(where, name, value, schema, opset)
    kept = {name: value for name, value in node.attrs.items() if name in schema.attributes and name not in _LEGACY}
    return node if len(kept) == len(node.attrs) else _with_attrs(node, kept)


def _check_types(node: Node, where: str) -> None:
    schema = _schema(node.op, NEWEST, node.domain)
    known = schema.attributes if schema is not None else {}
    for name, value in node.attrs.items():
        if name in known:
            _check_type(where, name, value, _kind(known[name]))


def _with_attrs(node: Node, attrs: Mapping[str, Any]) -> Node:
    return Node(node.op, node.inputs, node.outputs, attrs, node.domain, node.name, node.metadata)


def _check_arity(where: str, kind: str, count: int, bounds: tuple[int, int]) -> None:
    least, most = bounds
    if count < least:
        raise ModelError(f"{where} has {count} {kind}; at least {least} are needed.")
    if count > most:
        raise ModelError(f"{where} has {count} {kind}; at most {most} are possible.")


def _check_attribute(where: str, name: str, value: Any, schema: Signature, opset: int) -> None:
    if name in _LEGACY or name.startswith("__"):
        return
    if name not in schema.attributes:
        hint = did_you_mean(name, schema.attributes)
        raise ModelError(f"{where}: attribute {name!r} is unknown to opset {opset}.{hint}")
    _check_type(where, name, value, schema.attributes[name])


def _check_type(where: str, name: str, value: Any, expected: str) -> None:
    if not _MATCHES[expected](value):
        raise ModelError(f"{where}: attribute {name!r} is {_type_name(value)}; it must be of type {expected}.")


def _all(kinds: type | tuple[type, ...]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, tuple) and all(isinstance(v, kinds) for v in value)


def _one(kinds: type | tuple[type, ...]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, kinds)


_KINDS: dict[str, type | tuple[type, ...]] = {
    "FLOAT": float,
    "INT": int,
    "STRING": (str, bytes),
    "TENSOR": np.ndarray,
    "GRAPH": Graph,
    "SPARSE_TENSOR": np.ndarray,
    "TYPE_PROTO": TensorType,
}
_MATCHES: dict[str, Callable[[Any], bool]] = {
    **{name: _one(kinds) for name, kinds in _KINDS.items()},
    **{f"{name}S": _all(kinds) for name, kinds in _KINDS.items()},
}


def _type_name(value: Any) -> str:
    return f"a tuple of {len(value)} values" if isinstance(value, tuple) else f"of type {type(value).__name__}"


@functools.cache
def _history() -> dict[str, tuple[int, ...]]:
    found: dict[str, list[int]] = {}
    for schema in defs.get_all_schemas_with_history():
        if schema.domain == "" and not schema.deprecated:
            found.setdefault(schema.name, []).append(schema.since_version)
    return {op: tuple(sorted(since)) for op, since in found.items()}


@functools.cache
def _schema(op: str, opset: int, domain: str = "") -> defs.OpSchema | None:
    try:
        schema = defs.get_schema(op, opset, domain)
    except defs.SchemaError:
        return None
    earlier = _schema(op, schema.since_version - 1, domain) if schema.deprecated and schema.since_version > 1 else None
    return earlier or schema


@functools.cache
def _signature(op: str, since: int) -> Signature | None:
    schema = _schema(op, since)
    if schema is None:
        return None
    attributes = schema.attributes
    return Signature(
        since,
        (schema.min_input, schema.max_input),
        (schema.min_output, schema.max_output),
        {name: _kind(attribute) for name, attribute in attributes.items()},
        tuple(name for name, attribute in attributes.items() if attribute.required),
        {name: _default(attribute) for name, attribute in attributes.items() if attribute.default_value.type},
        tuple(frozenset(formal.types) for formal in schema.inputs),
        tuple(frozenset(formal.types) for formal in schema.outputs),
    )


def _kind(attribute: defs.OpSchema.Attribute) -> str:
    return str(attribute.type.name)  # type: ignore[attr-defined]


def _default(attribute: defs.OpSchema.Attribute) -> Any:
    proto = attribute.default_value
    match _kind(attribute):
        case "FLOAT":
            return proto.f
        case "INT":
            return proto.i
        case "STRING":
            return proto.s.decode()
        case _:
            return None
