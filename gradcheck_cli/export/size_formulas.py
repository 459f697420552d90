"""Constants that depend on sizes, as tensors that a file computes from the sizes of its inputs.

The dependence is found from several runs of the model: a number has one value in each run, and so has every dimension.
A formula such as `n`, `2 n - 3`, `(n - k) / 2` or `n m` is accepted only if it gives the number in all runs, of which
there are more than its coefficients need.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from functools import partial, reduce
from itertools import combinations, permutations
from math import lcm
from typing import Any, TypeAlias

import numpy as np

from gradcheck_cli.export.runs import Sizes
from gradcheck_cli.graph import Array, Node
from gradcheck_cli.op import DTYPES

Formula: TypeAlias = "int | Sizes | Operation"  # Sizes: the dimension that has these in the runs
NUMBERS = {dtype: number for number, dtype in DTYPES.items()}
_I64 = np.dtype(np.int64)
# dtypes that ConstantOfShape can give
_FILLED = {np.dtype(name) for name in ["f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "?"]}
_LONGEST = 64  # entries of a vector of sizes
_MOST_PAIRED = 24  # dimensions of which ratios are tried
_MOST_FACTORS = 4  # dimensions in one product
_MOST_TERMS = 60  # dimensions of which sums of two are tried
_FEWEST_FILLED = 2  # runs in which an array has entries, if it has none in others
_SIGNS = {"Add": " + ", "Sub": " - ", "Mul": "*", "Div": "//"}
_LARGEST = 64  # coefficient of a dimension in a sum of two


class NoFormula(Exception):
    """Raised for numbers that no formula of sizes gives."""


class SizeTensors:
    """Builds the nodes that compute tensors from sizes; each tensor is computed once.

    NoFormula is raised where nothing gives the numbers that are asked for.  `nodes` and `constants` collect what was
    added since the caller last took them; `fresh` gives unused names.
    """

    def __init__(self, fresh: Callable[[str], str]) -> None:
        self._fresh = fresh
        self.nodes: list[Node] = []
        self.constants: dict[str, Array] = {}
        # sizes -> a tensor that has them in a row, first axis, end, rank
        self._spans: dict[tuple[Sizes, ...], tuple[str, int, int, int]] = {}
        self._dims: dict[Sizes, None] = {}
        self._made: dict[Any, str] = {}
        self.near: Sequence[Sizes] = ()  # dimensions that are tried first

    def see(self, name: str, shape: tuple[Sizes, ...]) -> None:
        """Registers a tensor whose dimensions can be read from here on."""
        for start in range(len(shape)):
            if len(set(shape[start])) > 1:
                self._dims.setdefault(shape[start])
            for stop in range(start + 1, len(shape) + 1):
                if any(len(set(sizes)) > 1 for sizes in shape[start:stop]):
                    self._spans.setdefault(shape[start:stop], (name, start, stop, len(shape)))

    def tensor(self, values: Sequence[Array]) -> str:
        """The name of a tensor that has these values in the runs."""
        dtype, rank = values[0].dtype, values[0].ndim
        if any(v.ndim != rank or v.dtype != dtype for v in values):
            raise NoFormula
        fixed = len({v.shape for v in values}) == 1
        if fixed and dtype.kind in "iu" and rank == 1 and values[0].size <= _LONGEST:
            return self._cast(self.vector([tuple(int(v[i]) for v in values) for i in range(values[0].size)]), dtype)
        if fixed and rank == 0:
            return self._factor([v.item() for v in values], dtype)
        for made in (self._filled, self._repeated, self._unit, self._grid):
            with suppress(NoFormula):
                return made(values)
        return self._ranges(values)

    def vector(self, entries: Sequence[Sizes]) -> str:
        """The name of an int64 vector with these entries."""
        key = tuple(entries)
        if key not in self._made:
            parts = list(self._parts(key))
            if not parts:
                raise NoFormula
            self._made[key] = self._add("Concat", parts, axis=0) if len(parts) > 1 else parts[0]
        return self._made[key]

    def number(self, sizes: Sizes, dtype: np.dtype[Any] = _I64) -> str:
        """One size as a scalar."""
        return self._cast(self._once("Squeeze", self.vector([sizes])), dtype)

    def ints(self, *values: int) -> str:
        """A constant vector of int64."""
        return self._constant(np.array(values, np.int64))

    def _parts(self, entries: tuple[Sizes, ...]) -> Iterator[str]:
        """Pieces of a vector: stretches of tensors' shapes, constants, formulae."""
        place = 0
        while place < len(entries):
            stop = next((s for s in range(len(entries), place, -1) if entries[place:s] in self._spans), 0)
            if stop:
                yield self._shape(*self._spans[entries[place:stop]])
            elif len(set(entries[place])) == 1:
                stop = next((s for s in range(place, len(entries)) if len(set(entries[s])) > 1), len(entries))
                stop = next((s for s in range(place + 1, stop) if self._starts_span(entries, s)), stop)
                yield self.ints(*(sizes[0] for sizes in entries[place:stop]))
            else:
                stop = place + 1
                yield self._computed(self._formula(entries[place]))
            place = stop

    def _formula(self, sizes: Sizes) -> Formula:
        found = formula(sizes, self._known())
        if found is None:
            raise NoFormula
        return found

    def _known(self) -> list[Sizes]:
        """All dimensions that can be read, those in `near` first."""
        return list(dict.fromkeys([*(each for each in self.near if each in self._dims), *self._dims]))

    def _starts_span(self, entries: tuple[Sizes, ...], place: int) -> bool:
        return any(entries[place:s] in self._spans for s in range(len(entries), place + 1, -1))

    def _shape(self, name: str, start: int, stop: int, rank: int) -> str:
        ends = {**({"start": start} if start else {}), **({"end": stop} if stop < rank else {})}
        return self._once("Shape", name, **ends)

    def _computed(self, value: Formula) -> str:
        if isinstance(value, int):
            return self.ints(value)
        if isinstance(value, tuple):
            return self._shape(*self._spans[(value,)])
        left, right = self._computed(value.left), self._computed(value.right)
        if value.op == "Div" and not isinstance(value.right, int):
            right = self._once("Max", right, self.ints(1))  # without rows there are 0 to divide too
        return self._once(value.op, left, right)

    def _factor(self, values: Sequence[float], dtype: np.dtype[Any]) -> str:
        """A scalar: a size, a quotient of sizes, the square root of one, or a number times one."""
        if len(set(values)) == 1:
            return self._constant(np.array(values[0], dtype))
        if dtype.kind in "iu":
            return self.number(tuple(int(v) for v in values), dtype)
        wide = dtype if dtype.itemsize > 2 else np.dtype(np.float32)
        if not (dtype.kind == "f" or dtype.name == "bfloat16") or not all(np.isfinite(values)) or 0.0 in values:
            raise NoFormula
        for op, power in (("", 1), ("Sqrt", 2)):
            with suppress(NoFormula):
                made = self._quotient([float(v) ** power for v in values], wide, power * rounding(dtype))
                return self._cast(self._once(op, made) if op else made, dtype, given=wide)
        return self._cast(self._scaled(values, wide, 2 * rounding(dtype)), dtype, given=wide)

    def _quotient(self, values: Sequence[float], dtype: np.dtype[Any], near: float) -> str:
        """A quotient of two sizes."""
        parts = [simplest(v, near) for v in values]
        over, under = (tuple(part) for part in zip(*(p.as_integer_ratio() for p in parts), strict=True))
        if not all(map(is_whole, map(self._formula, (over, under)))):
            raise NoFormula
        a, b = self.number(over, dtype), self.number(under, dtype)
        if set(under) == {1}:
            return a
        return self._once("Reciprocal", b) if set(over) == {1} else self._once("Div", a, b)

    def _scaled(self, values: Sequence[float], dtype: np.dtype[Any], near: float) -> str:
        """A number times a size, or divided by one, or both."""
        for over, under in self._pairs():
            factors = [v * b / a for v, a, b in zip(values, over, under, strict=True)]
            if all(abs(f - factors[0]) <= 2 * near * abs(f) for f in factors):
                a, b = (self.number(each, dtype) if set(each) != {1} else "" for each in (over, under))
                factor = float(simplest(factors[0], near))
                held = a if a and factor == 1 else self._constant(np.array(factor, dtype))
                made = self._once("Mul", held, a) if a and held != a else held
                return self._once("Div", made, b) if b else made
        raise NoFormula

    def _pairs(self) -> Iterator[tuple[Sizes, Sizes]]:
        """Pairs of a numerator and a denominator, one of which may be 1."""
        dims = self._known()[:_MOST_PAIRED]
        one = (1,) * len(dims[0]) if dims else ()
        yield from ((one, d) for d in dims)
        yield from ((d, one) for d in dims)
        yield from permutations(dims, 2)

    def _filled(self, values: Sequence[Array]) -> str:
        """An array of one number, the same in all runs."""
        filled = _with_entries(values)
        number = filled[0].reshape(-1)[:1]
        if number.dtype not in _FILLED or any(np.any(v != number) for v in filled):
            raise NoFormula
        return self._once("ConstantOfShape", self._shape_of(values), value=number)

    def _repeated(self, values: Sequence[Array]) -> str:
        """An array that is constant along the axes whose sizes differ, or along all axes."""
        if any(not v.size for v in values):
            raise NoFormula
        uniform = all(np.all(v == v.ravel()[0]) for v in values)
        axes = [axis for axis in range(values[0].ndim) if uniform or len({v.shape[axis] for v in values}) > 1]
        at = tuple(slice(0, 1) if axis in axes else slice(None) for axis in range(values[0].ndim))
        first = values[0][at]
        if not uniform and not all(
            np.array_equal(v[at], first) and np.array_equal(v, np.broadcast_to(v[at], v.shape)) for v in values
        ):
            raise NoFormula
        shape = self._shape_of(values)
        held = self._factor([v.ravel()[0].item() for v in values], first.dtype) if uniform else self._constant(first)
        return self._once("Expand", held, shape)

    def _shape_of(self, values: Sequence[Array]) -> str:
        return self.vector(list(zip(*(v.shape for v in values), strict=True)))

    def _unit(self, values: Sequence[Array]) -> str:
        """A unit matrix."""
        dtype = values[0].dtype
        if dtype not in _FILLED or any(v.ndim != 2 or not np.array_equal(v, np.eye(*v.shape)) for v in values):
            raise NoFormula
        return self._once("EyeLike", self._once("ConstantOfShape", self._shape_of(values), value=np.zeros(1, dtype)))

    def _grid(self, values: Sequence[Array]) -> str:
        """Integers that are linear in the indices: c + a i + b j."""
        dtype, rank = values[0].dtype, values[0].ndim
        if dtype.kind not in "iuf" or not _with_entries(values):
            raise NoFormula
        origin, *slopes = map(_everywhere, _steps(values))
        counts = list(zip(*(v.shape for v in values), strict=True))
        terms = [self._along(axis, rank, counts[axis], slope, dtype) for axis, slope in enumerate(slopes) if any(slope)]
        if not terms:
            raise NoFormula
        if any(origin):
            terms.append(self.number(origin, dtype))
        total = reduce(partial(self._once, "Add"), terms)
        flat = any(not any(slope) and set(count) != {1} for slope, count in zip(slopes, counts, strict=True))
        whole = any(slopes[0]) and not flat  # of all axes, none of them longer than the terms have it
        return total if whole else self._once("Expand", total, self._shape_of(values))

    def _ranges(self, values: Sequence[Array]) -> str:
        """Integers along one axis that are piecewise linear in the index, such as those of a reflection."""
        dtype, rank = values[0].dtype, values[0].ndim
        long = {axis for v in values for axis, n in enumerate(v.shape) if n > 1}
        if dtype.kind not in "iu" or len(long) != 1:
            raise NoFormula
        pieces = [list(_even(v.ravel().tolist())) for v in values]
        if len({len(each) for each in pieces}) > 1:
            raise NoFormula
        parts = [
            self._once("Range", *map(self.number, zip(*piece, strict=True))) for piece in zip(*pieces, strict=True)
        ]
        (axis,) = long
        made = self._once("Concat", *parts, axis=0) if len(parts) > 1 else parts[0]
        around = tuple(a for a in range(rank) if a != axis)
        return self._cast(self._once("Unsqueeze", made, self.ints(*around)) if around else made, dtype)

    def _along(self, axis: int, rank: int, counts: Sizes, slope: Sizes, dtype: np.dtype[Any]) -> str:
        """slope * 0, 1, 2 ... along one axis."""
        count, step = self.number(counts), self.number(slope)
        made = self._once("Range", self._constant(np.array(0)), count, self._constant(np.array(1)))
        made = made if set(slope) == {1} else self._once("Mul", made, step)
        behind = tuple(range(1, rank - axis))
        made = self._once("Unsqueeze", made, self.ints(*behind)) if behind else made
        return self._cast(made, dtype)

    def _cast(self, name: str, dtype: np.dtype[Any], given: np.dtype[Any] = _I64) -> str:
        return name if dtype == given else self._once("Cast", name, to=NUMBERS[dtype])

    def _constant(self, value: Array) -> str:
        key = ("constant", value.dtype, value.shape, value.tobytes())
        if key not in self._made:
            self._made[key] = name = self._fresh("sizes/constant")
            self.constants[name] = value
        return self._made[key]

    def _once(self, op: str, *inputs: str, **attrs: Any) -> str:
        """The output of an operator; equal calls share one node."""
        shown = {k: v.tobytes() + str(v.dtype).encode() if isinstance(v, np.ndarray) else v for k, v in attrs.items()}
        key = (op, inputs, tuple(shown.items()))
        if key not in self._made:
            self._made[key] = self._add(op, inputs, **attrs)
        return self._made[key]

    def _add(self, op: str, inputs: Sequence[str], **attrs: Any) -> str:
        name = self._fresh(f"sizes/{op}")
        self.nodes.append(Node(op, tuple(inputs), (name,), attrs, name=name))
        return name


def _steps(values: Sequence[Array]) -> Iterator[Sequence[int | None]]:
    """Yields the first entry and the slope along each axis, in each run; None where too few entries tell it.

    NoFormula if entries are not linear in the indices.
    """
    found: list[list[int | None]] = []
    for v in values:
        origin = v.ravel()[:1].tolist() or [None]
        corner = v[(slice(2),) * v.ndim]
        steps = [np.diff(corner, axis=axis).ravel()[:1].tolist() or [None] for axis in range(v.ndim)]
        first, *slopes = known = [number for (number,) in (origin, *steps)]
        places: Sequence[Array] = np.indices(v.shape, sparse=True)
        grid = sum(((slope or 0) * place for slope, place in zip(slopes, places, strict=True)), np.array(first or 0))
        whole = all(n is None or float(n).is_integer() for n in known)
        if not whole or not np.array_equal(np.broadcast_to(grid, v.shape), v):
            raise NoFormula
        found.append([None if n is None else int(n) for n in known])
    yield from zip(*found, strict=True)


def _with_entries(values: Sequence[Array]) -> list[Array]:
    """The arrays that have entries, which are enough to tell the others by."""
    filled = [v for v in values if v.size]
    if len(filled) < min(_FEWEST_FILLED, len(values)):
        raise NoFormula
    return filled


def _everywhere(numbers: Sequence[int | None]) -> Sizes:
    """The numbers of all runs: one that a run does not tell is that of the others; NoFormula if they have several."""
    known = {n for n in numbers if n is not None} or {0}
    if None in numbers and len(known) > 1:
        raise NoFormula
    return tuple(min(known) if n is None else n for n in numbers)


def _even(numbers: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """The linear pieces of a list of integers, each as start, stop and step of a range."""
    place = 0
    while place < len(numbers):
        step = numbers[place + 1] - numbers[place] if place + 1 < len(numbers) else 1
        end = place + 1
        while end < len(numbers) and step and numbers[end] - numbers[end - 1] == step:
            end += 1
        step = step or 1
        yield numbers[place], numbers[place] + (end - place) * step, step
        place = end


def rounding(dtype: np.dtype[Any]) -> float:
    """The relative error of one or two roundings in a dtype."""
    return {2: 8e-3 if dtype.name == "bfloat16" else 1e-3, 4: 2e-7, 8: 4e-16}.get(dtype.itemsize, 0.0)


def simplest(value: float, near: float) -> Fraction:
    """The fraction with the smallest denominator within a relative distance `near` of a number."""
    exact = Fraction(value)
    off = abs(exact) * Fraction(near)
    return -_between(-exact - off, -exact + off) if value < 0 else _between(exact - off, exact + off)


def _between(low: Fraction, high: Fraction) -> Fraction:
    """The simplest fraction in a range of positive numbers."""
    whole = math.ceil(low)
    if whole <= high:
        return Fraction(whole)
    below = math.floor(low)
    return below + 1 / _between(1 / (high - below), 1 / (low - below))


@dataclass(frozen=True, slots=True)
class Operation:
    """An ONNX operator on two numbers: Add, Sub, Mul, or Div without a remainder."""

    op: str
    left: Formula
    right: Formula


def formula(sizes: Sizes, dims: Iterable[Sizes]) -> Formula | None:
    """The simplest formula for a number, preferring dimensions that come first; None if there is none."""
    if len(set(sizes)) == 1:
        return sizes[0]
    known = list(dims)
    if sizes in known:
        return sizes
    return next(_candidates(sizes, known), None)


def spelled(value: Formula, names: Mapping[Sizes, str], *, bare: bool = True) -> str:
    """A formula as text, of the names of dimensions; a Div rounds down there.  Not `bare`, it is put in brackets."""
    if not isinstance(value, Operation):
        return str(value) if isinstance(value, int) else names[value]
    parts = [value.left, value.right]
    if value.op == "Mul" and isinstance(value.right, int):
        parts.reverse()
    text = _SIGNS[value.op].join(spelled(part, names, bare=value.op in ("Add", "Sub")) for part in parts)
    return text if bare or value.op == "Mul" else f"({text})"


def is_whole(value: Formula) -> bool:
    """True if a formula gives a whole number at all sizes, because nothing is divided."""
    return not isinstance(value, Operation) or (value.op != "Div" and is_whole(value.left) and is_whole(value.right))


def _candidates(sizes: Sizes, dims: list[Sizes]) -> Iterator[Formula]:
    for dim in dims:
        yield from _affine(sizes, dim)
    yield from _product(sizes, dims, _MOST_FACTORS)
    for dim in dims:
        yield from _quotient(sizes, dim, dims)
    for a, b in combinations(dims[:_MOST_TERMS], 2):
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
            yield divided(plus(_times(dim, slope.numerator), 1, int(offset * q)), q)


def _product(sizes: Sizes, dims: list[Sizes], factors: int) -> Iterator[Formula]:
    """c dim dim ..."""
    for index, dim in enumerate(dims):
        if all(d and s % d == 0 for s, d in zip(sizes, dim, strict=True)):
            rest = tuple(s // d for s, d in zip(sizes, dim, strict=True))
            if len(set(rest)) == 1:
                yield _times(dim, rest[0])
            elif factors > 1:
                for other in _product(rest, dims[index:], factors - 1):
                    yield Operation("Mul", dim, other)


def _quotient(sizes: Sizes, dim: Sizes, dims: list[Sizes]) -> Iterator[Formula]:
    """c dim dim / dim."""
    for over in _product(tuple(s * d for s, d in zip(sizes, dim, strict=True)), dims, 3):
        yield Operation("Div", over, dim)


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
        terms = plus(_times(a, int(p * common)), b, int(q * common))
        yield divided(plus(terms, 1, int(r * common)), common)


def _times(value: Formula, factor: int) -> Formula:
    return value if factor == 1 else Operation("Mul", value, factor)


def plus(value: Formula, term: Formula, factor: int) -> Formula:
    """value + factor * term, by a Sub if the factor is negative."""
    scaled = abs(factor) if term == 1 else _times(term, abs(factor))
    return Operation("Add" if factor > 0 else "Sub", value, scaled) if factor else value


def divided(value: Formula, by: int) -> Formula:
    return value if by == 1 else Operation("Div", value, by)
