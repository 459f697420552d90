"""What a tape records: evaluated nodes, regions of them that one rule covers, and where in a model they come from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from gradcheck_cli.graph import Node
from gradcheck_cli.op import Op


@dataclass(frozen=True, slots=True)
class Place:
    """A node of the model, or of a graph inside one of its nodes.

    `origin` is the index of the model's node, -1 for one of a gradient; `index` that of the node in its own graph, and
    `inside` says which graph that is, if it is not the model's: "body of node 3 Loop 'y'", "gradient of node 5 Relu 'r'"
    (then `index` is that of the Relu).  `op` and `label` are those of the node as it stands there, whatever it is
    composed of.
    """

    origin: int = -1
    index: int = -1
    op: str = ""
    label: str = ""
    inside: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)

    def of(self, op: str, label: str) -> str:
        """A node of an operator here, as messages name it."""
        number = f"node {self.index} " if self.origin >= 0 else ""
        return f"{number}{op} {label!r}{f' in the {self.inside}' if self.inside else ''}"

    def into(self, inside: str, index: int) -> Place:
        """The place of node `index` of a graph inside the node here."""
        return replace(self, index=index, inside=inside)

    def gradient(self, op: str, label: str, metadata: Mapping[str, str]) -> Place:
        """The place of what the rule of an operator here adds."""
        second = self.origin < 0 and bool(self.inside)
        of = f"the {self.inside}" if second else self.of(self.op or op, self.label or label)
        return Place(index=self.index, inside=f"gradient of {of}", metadata=metadata)

    def named(self, op: str, label: str) -> Place:
        """The same place once it is known which node stands there."""
        return replace(self, op=op, label=label)


@dataclass(frozen=True, slots=True)
class Step:
    """One evaluated node: its operator, the operands and static inputs by name, the metadata bound to it."""

    node: Node
    op: Op
    operands: tuple[str, ...]
    statics: tuple[str, ...]
    metadata: Mapping[str, Any]
    place: Place

    @property
    def origin(self) -> int:
        """The index of the model's node that it comes from, -1 for one of a gradient."""
        return self.place.origin

    @property
    def label(self) -> str:
        """What it is called: its name, or its first output."""
        return self.node.name or next((n for n in self.node.outputs if n), self.node.op)

    @property
    def where(self) -> str:
        """The model's node that it comes from, as messages name it."""
        return self.place.of(self.place.op or self.node.op, self.place.label or self.label)


@dataclass(frozen=True, slots=True)
class Region:
    """Steps `start` to `stop` (excluded) that one rule differentiates together."""

    start: int
    stop: int
    op: Op
    operands: tuple[str, ...]
    outputs: tuple[str, ...]
    metadata: Mapping[str, Any]
    label: str
    place: Place
