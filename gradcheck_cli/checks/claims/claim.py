"""A claim: that a tensor of the model, numbers, or a tensor of another model are the derivative of y by x.

It may be that of several ys together, each weighed by a seed, which is ones where nobody says what it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from gradcheck_cli.formats.source import Source
from gradcheck_cli.settings import Numbers


@dataclass(frozen=True, slots=True)
class Inside:
    """A tensor of the model that is checked."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Beside:
    """A tensor of another model."""

    source: Source
    name: str

    def __str__(self) -> str:
        return f"{Path(self.source.uri).name}:{self.name}"


By: TypeAlias = Inside | Beside | Numbers


@dataclass(frozen=True, slots=True)
class Claim:
    """What is claimed, and by what; `found` in the model by its name, without anybody having asked."""

    x: str
    ys: tuple[str, ...]
    by: By
    seeds: Mapping[str, str | Numbers] = field(default_factory=dict)  # of some ys: a tensor of the model, or numbers
    found: bool = False

    @property
    def y(self) -> str:
        """What is differentiated, in one name."""
        return " + ".join(self.ys)

    @property
    def kind(self) -> str:
        """What makes the claim, in a word."""
        return {Inside: "tensor", Beside: "model", Numbers: "file"}[type(self.by)]
