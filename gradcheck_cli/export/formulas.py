"""Numbers that follow from sizes, found by what they are in several runs: `n`, `2 n - 3`, `(n - k) / 2`, `n m`.

A number has one value in each run, and so has every dimension of a tensor.  A formula is taken for a number only if it
gives its value in all runs, which are more than are needed to tell its coefficients.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations
from math import lcm
from typing import TypeAlias

from gradcheck_cli.export.runs import Sizes

_FACTORS = 4  # dimensions in one product
_TERMS = 60  # dimensions of which sums of two are tried
_LARGEST = 64  # coefficient of a dimension in a sum of two

Formula: TypeAlias = "int | Dimension | Compound"


@dataclass(frozen=True, slots=True)
class Dimension:
    """The size of a tensor along an axis; its value in each run stands for it."""

    sizes: Sizes


@dataclass(frozen=True, slots=True)
class Compound:
    """An operator of ONNX on two numbers: Add, Sub, Mul, or Div of what can be divided."""

    op: str
    left: Formula
    right: Formula


def formula(sizes: Sizes, dims: Iterable[Sizes]) -> Formula | None:
    """The simplest formula of some dimensions for a number, of those that come first if there are many; None if none is."""
    if len(set(sizes)) == 1:
        return sizes[0]
    known = list(dims)
    if sizes in known:
        return Dimension(sizes)
    return next(_candidates(sizes, known), None)


def is_whole(value: Formula) -> bool:
    """It is a whole number whatever the sizes are: nothing is divided."""
    return not isinstance(value, Compound) or (value.op != "Div" and is_whole(value.left) and is_whole(value.right))


def _candidates(sizes: Sizes, dims: list[Sizes]) -> Iterator[Formula]:
    for dim in dims:
        yield from _affine(sizes, dim)
    yield from _product(sizes, dims, _FACTORS)
    for dim in dims:
        yield from _quotient(sizes, dim, dims)
    for a, b in combinations(dims[:_TERMS], 2):
        yield from _sum(sizes, a, b)


def _affine(sizes: Sizes, dim: Sizes) -> Iterator[Formula]:
    """(p dim + r) / q."""
    i = next((i for i, d in enumerate(dim) if d != dim[0]), 0)
    if not i:
        return
    slope = Fraction(sizes[i] - sizes[0], dim[i] - dim[0])
    offset = sizes[0] - slope * dim[0]
    if slope and all(slope * d + offset == s for s, d in zip(sizes, dim, strict=True)):
        q = slope.denominator
        if (offset * q).denominator == 1 and q <= _LARGEST:
            yield _divided(_plus(_times(Dimension(dim), slope.numerator), int(offset * q)), q)


def _product(sizes: Sizes, dims: list[Sizes], factors: int) -> Iterator[Formula]:
    """c dim dim ..."""
    for index, dim in enumerate(dims):
        if all(d and s % d == 0 for s, d in zip(sizes, dim, strict=True)):
            rest = tuple(s // d for s, d in zip(sizes, dim, strict=True))
            if len(set(rest)) == 1:
                yield _times(Dimension(dim), rest[0])
            elif factors > 1:
                for other in _product(rest, dims[index:], factors - 1):
                    yield Compound("Mul", Dimension(dim), other)


def _quotient(sizes: Sizes, dim: Sizes, dims: list[Sizes]) -> Iterator[Formula]:
    """c dim dim / dim."""
    for over in _product(tuple(s * d for s, d in zip(sizes, dim, strict=True)), dims, 3):
        yield Compound("Div", over, Dimension(dim))


def _sum(sizes: Sizes, a: Sizes, b: Sizes) -> Iterator[Formula]:
    """(p a + q b + r) / s, by the differences between three runs."""
    steps = [(a[i] - a[0], b[i] - b[0], sizes[i] - sizes[0]) for i in range(1, len(sizes))]
    independent = [(one, two) for one, two in combinations(steps, 2) if one[0] * two[1] != two[0] * one[1]]
    if not independent or len(sizes) < 4:
        return
    (a1, b1, s1), (a2, b2, s2) = independent[0]
    determinant = a1 * b2 - a2 * b1
    p, q = Fraction(s1 * b2 - s2 * b1, determinant), Fraction(a1 * s2 - a2 * s1, determinant)
    r = sizes[0] - p * a[0] - q * b[0]
    common = lcm(p.denominator, q.denominator)
    if any(part > _LARGEST for part in (abs(p), abs(q), common)) or (r * common).denominator != 1:
        return
    if all(p * x + q * y + r == s for x, y, s in zip(a, b, sizes, strict=True)):
        terms = _joined(_times(Dimension(a), int(p * common)), _times(Dimension(b), int(q * common)))
        yield _divided(_plus(terms, int(r * common)), common)


def _times(value: Formula, factor: int) -> Formula:
    return value if factor == 1 else Compound("Mul", value, factor)


def _plus(value: Formula, term: int) -> Formula:
    return value if term == 0 else Compound("Add", value, term) if term > 0 else Compound("Sub", value, -term)


def _divided(value: Formula, by: int) -> Formula:
    return value if by == 1 else Compound("Div", value, by)


def _joined(a: Formula, b: Formula) -> Formula:
    """a + b."""
    if isinstance(b, Compound) and b.op == "Mul" and isinstance(b.right, int) and b.right < 0:
        return Compound("Sub", a, _times(b.left, -b.right))
    return Compound("Add", a, b)
