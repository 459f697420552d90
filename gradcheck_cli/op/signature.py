"""What the signature of a kernel says of every node that it computes, worked out once for each operator."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import numpy as np

SUPPLIED = ("n_outputs", "outputs", "rng", "tape")  # keywords that the tape supplies, never a node
_DTYPES = ("to", "dtype", "output_dtype", "output_datatype", "softmax_precision")
_EMPTY = inspect.Parameter.empty


class Signature:
    """The keywords of a kernel and its operands, where some inputs of the node are `static`: keyword -> index.

    schema    keyword -> default; `inspect.Parameter.empty` where it is required.
    given     keywords that a node may give.
    needed    those that it must give.
    supplied  keywords that the tape supplies.
    dtypes    keywords that name a dtype.
    """

    def __init__(self, kernel: Callable[..., Any], static: Mapping[str, int]) -> None:
        self.kernel, self.static = kernel, tuple(static.items())
        self.schema = {p.name: p.default for p in self._parameters if p.kind is p.KEYWORD_ONLY}
        self.given = frozenset(self.schema).difference(SUPPLIED)
        self.needed = tuple(k for k, v in self.schema.items() if v is _EMPTY and k in self.given)
        self.supplied = tuple(k for k in SUPPLIED if k in self.schema)
        self.dtypes = tuple(k for k in _DTYPES if k in self.schema)
        self._inputs: dict[int, tuple[tuple[int, ...], tuple[int, ...]]] = {}

    def inputs(self, count: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Of `count` inputs those that are operands, and which inputs there have to be."""
        if count not in self._inputs:
            static = {index for _, index in self.static}
            places = [i for i in range(count + len(static) + len(self._parameters)) if i not in static]
            positions = tuple(i for i in places if i < count)
            self._inputs[count] = positions, tuple(places[number] for number in self._required(len(positions)))
        return self._inputs[count]

    @cached_property
    def _parameters(self) -> tuple[inspect.Parameter, ...]:
        if isinstance(self.kernel, np.ufunc):  # its keywords are NumPy's, no attributes
            kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
            return tuple(inspect.Parameter(f"x{i}", kind) for i in range(self.kernel.nin))
        return tuple(inspect.signature(self.kernel).parameters.values())

    def _required(self, count: int) -> list[int]:
        """Of `count` operands or more those that a kernel cannot do without: no default, not declared `... | None`."""
        named = [p for p in self._parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
        needed = [i for i, p in enumerate(named) if p.default is _EMPTY and "None" not in str(p.annotation)]
        if any(p.kind is p.VAR_POSITIONAL and "None" not in str(p.annotation) for p in self._parameters):
            needed.extend(range(len(named), count))
        return needed
