"""Numbers of two implementations held against each other: whether they agree, and where they are farthest apart."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from gradcheck_cli.errors import counted, plural
from gradcheck_cli.graph import Array
from gradcheck_cli.verdict.rule import Comparison, Ground, Status, Tolerance, allowance, epsilon, magnitude

FLOOR = 10.0  # errors of results of two implementations are at least relative to the largest entry divided by this


def held(one: Array, other: Array, tolerance: Tolerance, ground: Ground, rounding: Array | float = 0.0) -> Comparison:
    """The comparison of numbers that two implementations give: beyond the tolerance and `rounding` an entry fails.

    Entries that are NaN, or the same infinity, in both are left out.
    """
    gap, rounding = gaps(one, other), np.broadcast_to(rounding, one.shape)
    failed = gap > allowance(magnitude(one, other), ground.at(), tolerance) + rounding
    status = np.where(failed, Status.FAIL, np.where(np.isfinite(one) | failed, Status.PASS, Status.LEFT_OUT))
    return Comparison(one, other, rounding, status.astype(np.int8), tolerance, known=ground)


def gaps(one: Array, other: Array) -> Array:
    """Distances of entries: 0 for two NaNs and for the same infinity, infinite where only one is finite."""
    here, there = wide(one), wide(other)
    with np.errstate(invalid="ignore"):
        gap = np.abs(here - there)
        same = (here == there) | (np.isnan(here) & np.isnan(there))
    return np.where(same, 0.0, np.where(np.isnan(gap), np.inf, gap))


def agree(one: Array, other: Array, allowed: Array | float) -> bool:
    """True if two results have one shape and are nowhere farther apart than allowed."""
    return one.shape == other.shape and not bool(_apart(gaps(one, other), allowed).any())


def _apart(gap: Array, allowed: Array | float) -> Array:
    """Distances that are not within what is allowed; where that is unknown, NaN, all but 0."""
    return ~((gap <= allowed) | (gap == 0))


def sizes(values: Array) -> Array:
    """Sizes that rounding is relative to: an entry, or a tenth of the largest, whose rounding reaches small ones."""
    size = np.abs(wide(values))
    size = np.where(np.isfinite(size), size, 0.0)
    return np.asarray(np.maximum(size, np.max(size, initial=0.0) / FLOOR))


def least_step(dtype: np.dtype[Any]) -> float:
    """The distance of numbers of a floating-point dtype below its normal range."""
    normal = np.finfo(np.float32 if dtype.name == "bfloat16" else dtype).tiny
    return epsilon(dtype) * float(normal)


def farthest(one: Array, other: Array, size: Array | float) -> tuple[float, float]:
    """The largest difference, and the largest relative to `size`; infinite if the shapes differ."""
    if one.shape != other.shape:
        return math.inf, math.inf
    gap = gaps(one, other)
    with np.errstate(divide="ignore", invalid="ignore"):
        relative = np.where(gap == 0, 0.0, gap / size)
    return float(np.max(gap, initial=0.0)), float(np.max(relative, initial=0.0))


def difference(one: Array, other: Array, allowed: Array | float) -> str:
    """Sentence on the entry that differs most of those that are farther apart than allowed; "" if there is none."""
    if one.shape != other.shape:
        return f"its shape is {_place(one.shape)} here and {_place(other.shape)} there"
    gap = gaps(one, other)
    apart = _apart(gap, allowed)
    if not apart.any():
        return ""
    worst = np.unravel_index(int(np.argmax(np.where(apart, gap, -1.0))), gap.shape)
    most = f"{_place(worst)}: {wide(one)[worst]:.6g} here, {wide(other)[worst]:.6g} there"
    number = int(apart.sum())
    return f"{number} of {counted(gap.size, 'entry')} {plural(number, 'differs', 'differ')}, most of all {most}"


def _place(position: Sequence[Any]) -> str:
    return f"[{','.join(map(str, position))}]"


def wide(values: Array) -> Array:
    """Values in double precision."""
    return values.astype(np.complex128 if values.dtype.kind == "c" else np.float64)
