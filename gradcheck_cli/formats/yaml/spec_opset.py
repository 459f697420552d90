"""Nodes of a spec that names its opset, in the form of the newest one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from gradcheck_cli.formats.onnx.adapt import adapt
from gradcheck_cli.formats.onnx.opset import checked, signature
from gradcheck_cli.formats.yaml.nodes import Scope
from gradcheck_cli.graph import Array, Node, TensorType


@dataclass(frozen=True, slots=True)
class Opset:
    """The opset that a graph declares; `types` holds what the graph declares of its inputs and parameters."""

    version: int
    types: dict[str, TensorType]

    def modern(self, node: Node, scope: Scope) -> list[Node]:
        """Nodes in the newest opset that do the same; a ModelError where a node breaks its schema."""
        node = _with_types_of_schema(node, self.version)
        where = f"node {node.op} {node.name or node.outputs[0]!r}"
        site = _Site(where, next(filter(None, node.outputs), node.op), scope, self.types)
        return adapt(checked(node, self.version, where), self.version, site)


def _with_types_of_schema(node: Node, version: int) -> Node:
    """The node with integers as floats where its operator takes floats: 1 is written as readily as 1.0."""
    schema = signature(node.op, version) if not node.domain else None
    kinds = schema.attributes if schema else {}
    return replace(node, attrs={name: _as(kinds.get(name), value) for name, value in node.attrs.items()})


def _as(kind: str | None, value: Any) -> Any:
    if kind == "FLOAT" and isinstance(value, int):
        return float(value)
    if kind == "FLOATS" and isinstance(value, tuple):
        return tuple(float(each) if isinstance(each, int) else each for each in value)
    return value


@dataclass(slots=True)
class _Site:
    """What an adapter may ask and add around one node."""

    where: str
    output: str
    scope: Scope
    types: dict[str, TensorType]

    def fresh(self, hint: str) -> str:
        return self.scope.fresh(hint)

    def constant(self, hint: str, value: Any, dtype: DTypeLike = np.int64) -> str:
        name = self.fresh(f"{self.output}/{hint}")
        self.scope.constants[name] = np.asarray(value, dtype)
        return name

    def value(self, name: str) -> Array | None:
        return self.scope.constants.get(name, self.scope.outer_constants.get(name))

    def dtype(self, name: str) -> np.dtype[Any] | None:
        value, declared = self.value(name), self.types.get(name)
        return value.dtype if value is not None else declared.dtype if declared else None

    def rank(self, name: str) -> int | None:
        declared = self.types.get(name)
        return len(declared.shape) if declared and declared.shape is not None else None

    def is_read(self, name: str) -> bool:
        return bool(name)
