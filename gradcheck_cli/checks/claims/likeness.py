"""Wrong claims that are the right gradient in another form: transposed, flat, summed over a batch, of another scale."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import permutations

import numpy as np

from gradcheck_cli.graph import Array

_NEAR = 1e-3  # relative distance of two gradients that are the same but for rounding
_MOST_AXES, _MOST_ENTRIES, _LARGEST = 5, 1 << 22, 4096
_NAMED = {
    (1, 0): "the transpose of {}",
    (0, 2, 3, 1): "{} with its channels last",
    (0, 3, 1, 2): "{} with its channels first",
}


def likeness(claimed: Array, own: Array, of: str) -> str:
    """The form of our own gradient that a claim equals, such as "the transpose of d loss / d W"; "" for none."""
    if not 1 < claimed.size <= _MOST_ENTRIES or not np.isfinite(claimed).all() or not np.isfinite(own).all():
        return ""
    for form, words in _forms(own):
        if form.shape == claimed.shape and (scale := _scale(claimed, form)) is not None:
            said = words.format(of)
            if abs(scale - 1) <= _NEAR:
                return said if form is not own else ""
            factor = Fraction(scale).limit_denominator(_LARGEST)
            whole = factor and abs(float(factor) - scale) <= _NEAR * abs(scale)
            return f"{factor if whole else f'{scale:.4g}'} times {said}"
    return ""


def _scale(claimed: Array, form: Array) -> float | None:
    """The number by which a form has to be multiplied to be the claim; None if none does."""
    square = float(np.vdot(form, form))
    if not square:
        return None
    scale = float(np.vdot(form, claimed)) / square
    off = float(np.linalg.norm(claimed - scale * form))
    return scale if scale and off <= _NEAR * float(np.linalg.norm(claimed)) else None


def _forms(own: Array) -> Iterator[tuple[Array, str]]:
    """Our gradient, then its other forms, each with its words."""
    yield own, "{}"
    if 1 < own.ndim <= _MOST_AXES:
        for order in permutations(range(own.ndim)):
            if order != tuple(range(own.ndim)):
                yield own.transpose(order), _NAMED.get(order, f"{{}} with its axes in the order {list(order)}")
    if own.ndim > 1:
        yield own.reshape(-1), "{}, flat"
        yield own.reshape(len(own), -1), "{} as a matrix"
        yield own.sum(0), "{}, summed over its first axis"
        yield own.sum(0, keepdims=True), "{}, summed over its first axis"
    yield own.reshape(-1, 1), "{} as a column"
    yield own.reshape(1, -1), "{} as a row"
