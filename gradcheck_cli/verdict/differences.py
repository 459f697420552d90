"""Difference formulae as data, and Richardson's extrapolation with a bound of its own error.

An `Estimate` is a derivative together with a bound of its error, entry by entry; the bound covers truncation,
aliasing and the rounding of the forward run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
from msgspec import Struct

from gradcheck_cli.graph import Array
from gradcheck_cli.op.fusion import Code, Computation

_BLOCK = 1 << 15  # entries of a block of rows
_PIECE = 1 << 17  # entries of a sum of squares at a time, which fit into the caches


class Stencil(Struct, frozen=True):
    """A first derivative as `sum(weights * f(x + offsets * h)) / h`, with truncation error of order `h^order`."""

    offsets: tuple[float, ...]
    weights: tuple[float, ...]
    order: int


CENTRAL = Stencil((1.0, -1.0), (0.5, -0.5), 2)
FORWARD = Stencil((1.0, 0.0), (1.0, -1.0), 1)
BACKWARD = Stencil((0.0, -1.0), (1.0, -1.0), 1)
STENCILS = {"central": CENTRAL, "forward": FORWARD}

RATIO = 4.0  # a step of the ladder by the next finer one
CHEAP_RUNGS = (2, 3, 4, 9)  # three to extrapolate from, and a much finer one that shows aliasing
ALL_RUNGS = tuple(range(2, 13))


class Estimate(Struct, frozen=True):
    """Derivatives `value` and bounds `error` of their errors, of one shape; infinite if nothing is known.

    `rounding` is the part of the bound that comes from rounding in the forward run; the rest is truncation.
    """

    value: Array
    error: Array
    rounding: Array

    def part(self, rows: slice) -> Estimate:
        """The estimate of some rows."""
        return Estimate(self.value[rows], self.error[rows], self.rounding[rows])


def blocks(rows: int, columns: int) -> Iterator[slice]:
    """Rows in pieces that stay in the caches: a Jacobian has too many entries for whole-array temporaries."""
    size = max(1, _BLOCK // max(columns, 1))
    return (slice(start, min(start + size, rows)) for start in range(0, rows, size))


def extremes(entries: Array) -> tuple[float, float]:
    """The smallest and the largest finite size of entries other than zero; infinity and 0 where there is none."""
    smallest, largest = math.inf, 0.0
    for some in blocks(len(entries), 1):
        size = np.abs(entries[some])
        known = np.isfinite(size) & (size > 0)
        smallest = float(np.min(size, where=known, initial=smallest))
        largest = float(np.max(size, where=known, initial=largest))
    return smallest, largest


def rung(k: int) -> float:
    """The k-th step of the ladder, in units of the scale of x."""
    return 0.125 * RATIO**-k


def richardson(differences: Array, steps: Array, noise: Array, valid: Array, order: int = 2) -> Estimate:
    """The best extrapolation of differences: central ones (order 2), or one-sided ones (order 1).

    differences  (K, rows, m), from the coarsest step to the finest
    steps        (K, rows), the step of each difference
    noise        (m,), rounding error of one value of y
    valid        (K, rows), False where a probe crossed a branch of the model
    """
    shape = differences.shape[1:]
    noise = np.broadcast_to(noise, shape)
    best = Estimate(*(np.empty(shape, np.result_type(differences, steps)) for _ in range(3)))
    extrapolation = _extrapolation(len(steps), order)
    for rows in blocks(shape[0], shape[1] * len(steps)):
        part, h = differences[:, rows], steps[:, rows, None]
        if not valid[:, rows].all():
            part = np.where(valid[:, rows, None], part, np.nan)
        arrays = {
            "last": differences[-1, rows],
            "noise": noise[rows],
        }  # `last`: if nothing else is finite
        for k in range(len(steps)):
            arrays[f"d{k}"], arrays[f"h{k}"] = part[k], np.maximum(h[k], np.finfo(float).tiny)
            arrays |= {f"f{level},{k}": (h[k - level] / h[k]) ** order for level in range(1, min(k, 3) + 1)}
        best.value[rows], best.error[rows], best.rounding[rows] = extrapolation.run(arrays, part.shape[1:])
        if order == 1:
            best.error[rows][_endless(part[-5:], _rounding(noise[rows], h[-5:], order))] = np.inf
    return best


def _rounding(noise: Array, steps: Array, order: int) -> Array:
    return np.asarray(1.2 * (3 - order) * noise / np.maximum(steps, np.finfo(float).tiny))


@cache
def _extrapolation(count: int, order: int) -> Computation:
    """Value, error and rounding from differences `d`, steps `h` and powers `f` of the ratios of two steps."""
    code = Code()
    raw: list[Any] = [f"d{k}" for k in range(count)]
    noise = code.let("multiply", 1.2 * (3 - order), "noise")
    rho = [code.let("divide", noise, f"h{k}") for k in range(count)]
    twice = [code.let("multiply", 2.0, r) for r in rho]
    best: tuple[Any, Any, Any] = ("last", np.inf, np.inf)
    column = raw
    for level in range(min(4, count)):
        first, coarse = max(level, 1), column
        if level:
            column = [_combined(code, f"f{level},{first + i}", *pair) for i, pair in enumerate(pairwise(coarse))]
        for i, candidate in enumerate(column[not level :]):
            fine, before = _gap(code, candidate, coarse[i + 1]), _gap(code, candidate, coarse[i])
            gap = code.let("larger", fine, before) if level else before
            error = _aliased(code, candidate, code.let("add", gap, rho[first + i]), raw, twice, first + i + 1)
            best = _better(code, best, (candidate, error, rho[first + i]))
    error = _growing(code, best[1], raw[-4:], rho[-4:]) if order == 2 else best[1]
    return code.computation([code.let("copy", value) for value in (best[0], error, best[2])])


def _gap(code: Code, a: Any, b: Any) -> int:
    return code.let("magnitude", code.let("subtract", a, b))


def _combined(code: Code, factor: str, coarse: Any, fine: Any) -> int:
    """The extrapolation of two neighbors in a column, whose errors have the ratio `factor`."""
    change = code.let("subtract", code.let("multiply", factor, fine), coarse)
    return code.let("divide", change, code.let("subtract", factor, 1.0))


def _aliased(code: Code, candidate: Any, error: Any, raw: Sequence[Any], twice: Sequence[Any], finer: int) -> int:
    """The error of a candidate: a finer difference that disagrees by more than `twice` its rounding shows aliasing."""
    alias: Any = 0.0
    for k in range(finer, len(raw)):
        beyond = code.let("subtract", _gap(code, raw[k], candidate), twice[k])
        alias = code.let("larger", alias, beyond)
    return code.let("add", error, alias)


def _better(code: Code, best: tuple[Any, Any, Any], other: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
    """The estimate with the smaller error, never one that is NaN."""
    smaller = code.let("less", other[1], best[1])
    value, error, rounding = (code.let("select", a, b, smaller) for a, b in zip(other, best, strict=True))
    return value, error, rounding


def _growing(code: Code, error: Any, differences: Sequence[Any], rho: Sequence[Any]) -> Any:
    """The error, infinite where the finest differences still grow: the function changes within every step."""
    for (coarse, fine), (above, below) in zip(pairwise(differences), pairwise(rho), strict=True):
        twice = code.let("multiply", 2.0, code.let("magnitude", coarse))
        most = code.let("add", twice, code.let("multiply", 2.0, code.let("add", above, below)))
        error = code.let("select", np.inf, error, code.let("less", most, code.let("magnitude", fine)))
    return error


def _endless(differences: Array, rho: Array) -> Array:
    """Mask of entries whose differences grow with every finer step: y jumps, or is infinitely steep."""
    coarse, fine = np.abs(differences[:-1]), np.abs(differences[1:])
    grows = fine > 1.1 * coarse + 2 * (rho[:-1] + rho[1:])
    known = np.isfinite(coarse) & np.isfinite(fine)
    return np.asarray((grows | ~known).all(axis=0) & known.any(axis=0))


def two_steps(coarse: Array, fine: Array, order: int, rho: Array) -> Estimate:
    """A plain difference; its truncation error follows from the same formula at twice the step."""
    truncation = np.abs(coarse - fine) / (2.0**order - 1)
    return Estimate(fine, 2 * truncation + rho, np.broadcast_to(rho, fine.shape))


def representable(x: Array, h: Array) -> Array:
    """h such that x + h is exact."""
    return np.asarray((x + h) - x)


def scales(x: Array) -> Array:
    """The natural size of each entry: its magnitude, or the tensor's root mean square for 0 and infinity; shape of x."""
    size = np.abs(x)
    usual = (size > 0) & np.isfinite(size)
    if size.dtype.kind == "f" and usual.all():
        return np.asarray(size)
    typical = rms(np.where(np.isfinite(size), size, 0.0))
    return np.where(usual, size, typical if 0 < typical < np.inf else 1.0)


def rms(x: Array) -> float:
    """The root mean square, 0 for an empty array; scaled so that no square over- or underflows."""
    flat = x.reshape(-1)
    pieces = [flat[start : start + _PIECE] for start in range(0, flat.size, _PIECE)]
    largest = float(np.max([np.max(np.abs(piece)) for piece in pieces], initial=0.0))
    if not 0 < largest < np.inf:
        return largest
    total = sum(float(np.sum(np.square(piece / largest))) for piece in pieces)
    return largest * math.sqrt(total / flat.size)


def rungs(ks: Sequence[int]) -> Array:
    """Several steps of the ladder, coarse to fine, in units of the scale of x."""
    return np.asarray([rung(k) for k in sorted(ks)])
