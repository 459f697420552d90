"""What a tape records: evaluated nodes, regions of them that one rule covers, and where in a model they come from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gradcheck_cli.graph import Array, Node
from gradcheck_cli.op import DTYPES, Op

_NUMBERS = {dtype: number for number, dtype in DTYPES.items()}


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
        return Place(self.origin, index, self.op, self.label, inside, self.metadata)

    def gradient(self, op: str, label: str, metadata: Mapping[str, str]) -> Place:
        """The place of what the rule of an operator here adds."""
        second = self.origin < 0 and bool(self.inside)
        of = f"the {self.inside}" if second else self.of(self.op or op, self.label or label)
        return Place(index=self.index, inside=f"gradient of {of}", metadata=metadata)

    def named(self, op: str, label: str) -> Place:
        """The same place once it is known which node stands there."""
        return Place(self.origin, self.index, op, label, self.inside, self.metadata)


@dataclass(frozen=True, slots=True)
class Trial:
    """What came of trying a kernel that is none of gradcheck's own.

    noise      by output: how far the kernel's own rounding may carry each entry at the point; none where that is known
    coarse     the largest of these numbers, of the largest entry of its output
    retracted  clauses that say what of its operator's declaration does not hold
    """

    noise: tuple[Array | None, ...] = ()
    coarse: float = 0.0
    retracted: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """One evaluated node: its operator, the operands and static inputs by name, the metadata bound to it.

    `trial` is what came of trying a kernel of others.
    """

    node: Node
    op: Op
    operands: tuple[str, ...]
    statics: tuple[str, ...]
    metadata: Mapping[str, Any]
    place: Place
    trial: Trial | None = field(default=None, compare=False)

    @staticmethod
    def of(
        op: Op,
        inputs: tuple[str, ...],
        positions: Sequence[int],
        outputs: tuple[str, ...],
        metadata: Mapping[str, Any],
        attrs: Mapping[str, Any],
        name: str,
        place: Place,
    ) -> Step:
        """A node of an operator that has operands at some positions of its inputs and static inputs at the others."""
        if attrs:
            attrs = {k: _NUMBERS[v] if isinstance(v, np.dtype) else v for k, v in attrs.items()}
        node = Node(op.name, inputs, outputs, attrs, op.domain, name, place.metadata)
        if len(positions) == len(inputs):
            return Step(node, op, inputs, (), metadata, place)
        statics = tuple(n for i, n in enumerate(inputs) if n and i not in positions)
        return Step(node, op, tuple(inputs[i] for i in positions), statics, metadata, place)

    @property
    def outputs(self) -> tuple[str, ...]:
        """What it makes, by name."""
        return self.node.outputs

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
