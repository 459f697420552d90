"""Difference formulae as data, and Richardson's extrapolation with a bound of its own error.

An `Estimate` is a derivative together with a bound of its error, entry by entry; the bound covers truncation,
aliasing and the rounding of the forward run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from gradcheck_cli.graph import Array

_BLOCK = 1 << 15  # entries


@dataclass(frozen=True, slots=True)
class Stencil:
    """A first derivative as `sum(weights * f(x + offsets * h)) / h`, with truncation error of order `h^order`."""

    offsets: tuple[float, ...]
    weights: tuple[float, ...]
    order: int


CENTRAL = Stencil((1.0, -1.0), (0.5, -0.5), 2)
FORWARD = Stencil((1.0, 0.0), (1.0, -1.0), 1)
BACKWARD = Stencil((0.0, -1.0), (1.0, -1.0), 1)
STENCILS = {"central": CENTRAL, "forward": FORWARD}

RATIO = 4.0  # of a step of the ladder to the next finer one
CHEAP_RUNGS = (2, 3, 4, 9)  # three to extrapolate from and a sentinel against aliasing
ALL_RUNGS = tuple(range(2, 13))


@dataclass(frozen=True, slots=True)
class Estimate:
    """Derivatives `value` and bounds `error` of their errors, of one shape; infinite where nothing can be said.

    `rounding` is the part of the bound that the rounding of the forward run makes; the rest is truncation.
    """

    value: Array
    error: Array
    rounding: Array

    def part(self, rows: slice) -> Estimate:
        """That of some rows."""
        return Estimate(self.value[rows], self.error[rows], self.rounding[rows])


def blocks(rows: int, columns: int) -> Iterator[slice]:
    """Rows in pieces that stay in the caches: a Jacobian has too many entries for whole-array temporaries."""
    size = max(1, _BLOCK // max(columns, 1))
    return (slice(start, min(start + size, rows)) for start in range(0, rows, size))


def rung(k: int) -> float:
    """The k-th step of the ladder, in units of the scale of x."""
    return 0.125 * RATIO**-k


def richardson(differences: Array, steps: Array, noise: Array, valid: Array, order: int = 2) -> Estimate:
    """The best extrapolation of differences: central ones (order 2), or ones of a single side (order 1).

    differences  (K, rows, m), from the coarsest step to the finest
    steps        (K, rows), the steps that they were taken with
    noise        (m,), rounding error of one value of y
    valid        (K, rows), False where a probe crossed a branch of the model
    """
    shape = differences.shape[1:]
    noise = np.broadcast_to(noise, shape)
    best = Estimate(*(np.empty(shape, np.result_type(differences, steps)) for _ in range(3)))
    for rows in blocks(shape[0], shape[1] * len(steps)):
        part = differences[:, rows]
        if not valid[:, rows].all():
            part = np.where(valid[:, rows, None], part, np.nan)
        rho = 1.2 * (3 - order) * noise[rows] / np.maximum(steps[:, rows], np.finfo(float).tiny)[..., None]
        best.value[rows] = differences[-1, rows]  # what there is, where nothing tells anything
        best.error[rows], best.rounding[rows] = np.inf, np.inf
        _extrapolate(best.part(rows), part, steps[:, rows, None], rho, order)
    return best


def _extrapolate(best: Estimate, differences: Array, steps: Array, rho: Array, order: int) -> None:
    """Put a few rows into `best`; differences are NaN where they tell nothing, `rho` is the rounding of each."""
    gap = np.abs(differences[1:] - differences[:-1])
    _better(best, differences[1:], gap + rho[1:], rho, differences)
    column = differences
    for level in range(1, min(4, len(steps))):
        factor = (steps[:-level] / steps[level:]) ** order
        new = (factor * column[1:] - column[:-1]) / (factor - 1)
        gap = np.maximum(np.abs(new - column[1:]), np.abs(new - column[:-1]))
        _better(best, new, gap + rho[level:], rho, differences)
        column = new
    growing = _growing(differences[-4:], rho[-4:]) if order == 2 else _endless(differences[-5:], rho[-5:])
    best.error[growing] = np.inf


def _growing(differences: Array, rho: Array) -> Array:
    """Entries whose finest differences still grow from step to step: the function changes within every step."""
    coarse, fine = np.abs(differences[:-1]), np.abs(differences[1:])
    return np.asarray((fine > 2 * coarse + 2 * (rho[:-1] + rho[1:])).any(axis=0))


def _endless(differences: Array, rho: Array) -> Array:
    """Entries whose differences grow with every finer step and have no limit: y jumps, or is infinitely steep."""
    coarse, fine = np.abs(differences[:-1]), np.abs(differences[1:])
    grows = fine > 1.1 * coarse + 2 * (rho[:-1] + rho[1:])
    known = np.isfinite(coarse) & np.isfinite(fine)
    return np.asarray((grows | ~known).all(axis=0) & known.any(axis=0))


def _better(best: Estimate, candidates: Array, errors: Array, rho: Array, raw: Array) -> None:
    """Put candidates where their error is smaller than that of the best so far.

    A finer difference that disagrees by more than its rounding shows that the candidate is aliased.
    """
    first = len(raw) - len(candidates)
    for i, candidate in enumerate(candidates):
        alias = np.zeros_like(candidate)
        for finer in range(first + i + 1, len(raw)):
            np.fmax(alias, np.abs(raw[finer] - candidate) - 2 * rho[finer], out=alias)
        total = errors[i] + alias
        smaller = total < best.error  # never where it is NaN
        np.copyto(best.value, candidate, where=smaller)
        np.copyto(best.error, total, where=smaller)
        np.copyto(best.rounding, rho[first + i], where=smaller)


def two_steps(coarse: Array, fine: Array, order: int, rho: Array) -> Estimate:
    """A plain difference, its truncation error read off the same formula at twice the step."""
    truncation = np.abs(coarse - fine) / (2.0**order - 1)
    return Estimate(fine, 2 * truncation + rho, np.broadcast_to(rho, fine.shape))


def representable(x: Array, h: Array) -> Array:
    """h such that x + h is exact."""
    return np.asarray((x + h) - x)


def scales(x: Array) -> Array:
    """The natural size of each entry: its magnitude, or the tensor's root mean square where it is 0; shape of x."""
    size = np.abs(x)
    typical = rms(size)
    return np.where(size > 0, size, typical if np.isfinite(typical) and typical > 0 else 1.0)


def rms(x: Array) -> float:
    """The root mean square, 0 of nothing; squares of what is tiny or huge are not taken."""
    largest = float(np.max(np.abs(x), initial=0.0))
    return largest * float(np.sqrt(np.mean(np.square(x / largest)))) if 0 < largest < np.inf else largest


def rungs(ks: Sequence[int]) -> Array:
    """Several steps of the ladder, coarse to fine, in units of the scale of x."""
    return np.asarray([rung(k) for k in sorted(ks)])
