"""Integers among the inputs of a model that say how many: of iterations, of entries.

Shapes follow from their values, as they do from open dimensions, so that they are tried at several as these are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from gradcheck_cli.autodiff.dependence import Dependence
from gradcheck_cli.autodiff.tape import Tape
from gradcheck_cli.graph import Array
from gradcheck_cli.model import Model
from gradcheck_cli.settings import Settings

COUNTS = tuple(range(2, 14))  # values that are tried


@dataclass(frozen=True, slots=True)
class Count:
    """An input that is a number of something; `like` is an array of its shape and dtype."""

    name: str
    like: Array

    @property
    def symbol(self) -> str:
        """What its value is called among the sizes of dimensions."""
        return f"value of {self.name!r}"


def counts(model: Model, tape: Tape, given: Collection[str]) -> Iterator[Count]:
    """Inputs that are not given and from whose values shapes follow in a run of the model."""
    for name in model.graph.free_inputs:
        like = tape.values.get(name) if name not in given else None
        if like is None or like.dtype.kind != "i" or like.size != 1:
            continue
        if Dependence.on([name], tape, model.graph).shapes:
            yield Count(name, like)


def at(settings: Settings, sizes: Mapping[str, int], counted: Collection[Count]) -> Settings:
    """Settings for a run at sizes of dimensions and at values of counts."""
    values = {c.name: np.full_like(c.like, sizes[c.symbol]) for c in counted if c.symbol in sizes}
    dims = {d: size for d, size in sizes.items() if d not in {c.symbol for c in counted}}
    return replace(settings, dims=dims, extra_feed_dict={**settings.extra_feed_dict, **values})
