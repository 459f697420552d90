"""What adapters are written with: what is known around a node, and nodes made from others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import DTypeLike

from gradcheck_cli.graph import Array, Node

_NONE: Mapping[str, Any] = MappingProxyType({})


class Site(Protocol):
    """The surroundings of a node: what is known of tensors, and new names and constants."""

    @property
    def where(self) -> str:
        """The node as messages name it."""

    def fresh(self, hint: str) -> str:
        """A new tensor name."""

    def constant(self, hint: str, value: Any, dtype: DTypeLike = np.int64) -> str:
        """The name of a new constant."""

    def value(self, name: str) -> Array | None:
        """The value of a constant; None for other tensors."""

    def dtype(self, name: str) -> np.dtype[Any] | None:
        """The float dtype of a tensor, where it is certain."""

    def rank(self, name: str) -> int | None:
        """The number of dimensions, where it is certain."""

    def is_read(self, name: str) -> bool:
        """Whether anything in the file reads a tensor."""


Adapter: TypeAlias = Callable[[Node, Site], list[Node]]


def changed(
    node: Node,
    *,
    inputs: tuple[str, ...] | None = None,
    outputs: tuple[str, ...] | None = None,
    attrs: Mapping[str, Any] = _NONE,
    drop: tuple[str, ...] = (),
) -> Node:
    """The node with other edges, attributes set, and attributes dropped."""
    kept = {name: value for name, value in node.attrs.items() if name not in drop}
    edges = (node.inputs if inputs is None else inputs, node.outputs if outputs is None else outputs)
    return replace(node, inputs=edges[0], outputs=edges[1], attrs={**kept, **attrs})


def new(node: Node, op: str, inputs: tuple[str, ...], output: str, **attrs: Any) -> Node:
    """One of several nodes that take the place of `node`."""
    name = f"{node.name}/{op}" if node.name else ""
    return Node(op, inputs, (output,), attrs, "", name, node.metadata)


def int_input(node: Node, name: str, site: Site) -> str:
    """An integer attribute as a constant; "" where it is absent or empty."""
    value = node.attrs.get(name, ())
    return "" if value == () else site.constant(name, np.atleast_1d(np.asarray(value, np.int64)))


def float_like(node: Node, name: str, site: Site, before: list[Node]) -> str:
    """A float attribute as a constant of the first input's dtype; "" where it is absent."""
    if name not in node.attrs:
        return ""
    dtype = site.dtype(node.inputs[0])
    constant = site.constant(name, node.attrs[name], dtype or np.float32)
    if dtype is not None:
        return constant
    cast = site.fresh(f"{constant}/cast")
    before.append(new(node, "CastLike", (constant, node.inputs[0]), cast))
    return cast


def trimmed(names: Iterable[str]) -> tuple[str, ...]:
    """Names without those left out at the end."""
    kept = list(names)
    while kept and not kept[-1]:
        kept.pop()
    return tuple(kept)
