"""Ways of using an operator, exact numbers, and rules that are held to the last bit by integers in float64.

A lattice gives the ways.  Along whole steps t of a direction v, p(t) = <ct, f(x + t v)> is a polynomial as long as no
comparison changes.  Its values, in which nothing is rounded, give p'(0) exactly, and the rule has to give the same
number as <v, J' ct>.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import cached_property
from itertools import combinations, islice, pairwise, product
from math import ceil, log2, prod
from typing import Any, Literal, TypeAlias

import numpy as np
from msgspec import Struct

from gradcheck_cli.autodiff.backward import gradients, inexact
from gradcheck_cli.autodiff.tape import Tape, Var
from gradcheck_cli.autodiff.trace import trace
from gradcheck_cli.errors import LimitError, MisshapenError
from gradcheck_cli.graph import Array, Graph, Node
from gradcheck_cli.op import Op, Ops

Shape: TypeAlias = tuple[int, ...]
Values: TypeAlias = Mapping[str, Sequence[Any]]
Choice: TypeAlias = Mapping[str, Any]
Residues: TypeAlias = Array  # of Python integers from 0 to P - 1
Input: TypeAlias = "Floats | Array | None"
EXACT = 51  # bits of the largest number that may arise; float64 holds 53
MOST = 20  # bits of the numbers that are drawn
REDRAWS = 12  # directions in which a comparison changes are drawn anew
# A prime modulo which -1 is no square, and no quotient of two floating-point numbers but 1 is 1: so a Mersenne prime will
# not do, which takes a power of 2 for 1.
P = (1 << 128) - 173
SMALL = 1 << 12  # denominators of coefficients that a kernel rounds
USUAL = (0.0, 0.5, 0.9)  # shares of first values in completions
TRIES, CANDIDATES = 60, 4  # completions that are tried of a combination of values, and those that are compared


class Floats(Struct, frozen=True):
    """An operand of floating-point numbers of a shape, which are drawn at random, and may be moved."""

    shape: Shape = ()
    complex: bool = False

    @property
    def size(self) -> int:
        return prod(self.shape)


class Use(Struct, frozen=True):
    """One way of using an operator: its inputs, of which arrays are constant and None are left out, and attributes.

    `moved` are the operands that are differentiated by; None: all of them.  Numbers are multiples of `multiple`, so that
    means of them are whole; a result is a sum of up to `terms` products.
    """

    inputs: tuple[Input, ...]
    attrs: Mapping[str, Any] = {}
    count: int = 1
    multiple: int = 1
    degree: int | None = None
    asked: int | None = None
    choice: Choice = {}

    @property
    def floats(self) -> list[tuple[int, Floats]]:
        """The operands that numbers are drawn for, with their positions."""
        return [(i, x) for i, x in enumerate(self.inputs) if isinstance(x, Floats)]

    @property
    def moved(self) -> list[int]:
        """Positions of the operands that are differentiated by."""
        found = [i for i, x in self.floats if x.size]
        return found if self.asked is None else found[self.asked % max(len(found), 1) :][:1]

    @property
    def constants(self) -> dict[str, Array]:
        """The other operands by name."""
        return {f"x{i}": x for i, x in enumerate(self.inputs) if isinstance(x, np.ndarray)}

    @property
    def outputs(self) -> list[str]:
        return [f"y{i}" for i in range(self.count)]

    @property
    def entries(self) -> int:
        """The number of entries of all inputs together."""
        return sum(int(np.prod(x.shape)) for x in self.inputs if x is not None)

    def graph(self, op: Op) -> Graph:
        """The operator alone."""
        names = tuple("" if x is None else f"x{i}" for i, x in enumerate(self.inputs))
        node = Node(op.name, names, tuple(self.outputs), dict(self.attrs), op.domain)
        return Graph(tuple(n for n in names if n), tuple(self.outputs), (node,))

    def __str__(self) -> str:
        inputs = ", ".join("-" if x is None else str(list(x.shape)) for x in self.inputs)
        attrs = "".join(f", {k}={_brief(v)}" for k, v in self.attrs.items())
        by = "" if self.asked is None else f", by input {self.moved[0] if self.moved else '-'}"
        return f"inputs {inputs}{attrs}{by}"


class Lattice(Struct, frozen=True, dict=True):
    """The cases of an operator: axes with their values, and the use that each choice makes, None if there is none.

    degree    of the result in a step of all operands; of a whole case where that has one of its own.
    apart     numbers are compared: they are drawn far from each other, and moved little.
    by        "integers" in float64, or "residues" modulo a prime with indeterminates for functions.
    strength  the number of axes of which all values occur together.
    factors   a rule multiplies so many before it divides.
    """

    axes: Values
    use: Callable[..., Use | None]
    degree: int = 1
    apart: bool = False
    by: Literal["integers", "residues"] = "integers"
    strength: int = 2
    factors: int = 1

    @property
    def compares(self) -> bool:
        """True if rules may compare numbers, whose outcomes are the branches of a case."""
        return self.apart or self.by == "residues"

    def degree_of(self, use: Use) -> int:
        return self.degree if use.degree is None else use.degree

    @cached_property
    def uses(self) -> list[Use]:
        """The cases, small ones first."""
        made = (self.of(choice) for choice in covering(self.axes, self.strength, lambda c: self.of(c) is not None))
        return sorted((use for use in made if use is not None), key=lambda use: use.entries)

    def of(self, choice: Choice) -> Use | None:
        """The use that a choice makes."""
        given = dict(choice)
        asked = given.pop("asked", None)
        use = self.use(**given)
        if asked is not None and use is not None and asked >= len(use.moved):
            return None
        return use and Use(use.inputs, use.attrs, use.count, use.multiple, use.degree, asked, choice)

    def __str__(self) -> str:
        words = [name.rstrip("_").replace("asked", "differentiated by") for name in self.axes]
        counts = [len(values) for values in self.axes.values()]
        first = f"{words[0].replace('_', ' ')} ({counts[0]} values)"
        rest = (f"{word.replace('_', ' ')} ({count})" for word, count in zip(words[1:], counts[1:], strict=True))
        return ", ".join([first, *rest])


class Mismatch(Struct, frozen=True):
    """Two numbers that have to be equal: one from the rule, one from the derivative."""

    given: str
    right: str


class NotExact(Exception):
    """A case that exact numbers cannot decide."""


class RuleError(Exception):
    """A rule that ends in an error."""


def covering(axes: Values, strength: int, possible: Callable[[Choice], bool]) -> Iterator[dict[str, Any]]:
    """Choices such that all values of any `strength` axes occur together, where that is possible.

    A combination that is not covered yet is completed at random, several times; the completion that covers most is
    taken.  The same axes give the same choices.
    """
    rng, names = random.Random(repr(axes)), list(axes)
    groups = [*combinations(names, min(strength, len(names)))]
    places = {name: range(len(axes[name])) for name in names}
    open_ = {(g, each): None for g in groups for each in product(*(places[name] for name in g))}

    def covered(row: Mapping[str, int]) -> list[Any]:
        return [key for g in groups if (key := (g, tuple(row[n] for n in g))) in open_]

    def chosen(row: Mapping[str, int]) -> dict[str, Any]:
        return {name: axes[name][place] for name, place in row.items()}

    def drawn_place(name: str, number: int) -> int:
        """A place on an axis: often the first, whose values fit the most others."""
        return 0 if rng.random() < USUAL[number % len(USUAL)] else rng.choice(places[name])

    while open_:
        group, values = first = next(iter(open_))
        fixed = dict(zip(group, values, strict=True))
        rows = ({name: fixed.get(name, drawn_place(name, number)) for name in names} for number in range(TRIES))
        fitting = islice((row for row in rows if possible(chosen(row))), CANDIDATES)
        best = max(fitting, key=lambda row: len(covered(row)), default=None)
        del open_[first]
        if best is not None:
            for key in covered(best):
                del open_[key]
            yield chosen(best)
    if not names:
        yield {}


def _brief(value: Any) -> str:
    text = repr(value.tolist() if isinstance(value, np.ndarray) else value)
    return text if len(text) < 40 else f"{text[:36]} ..."


class Draw(Struct, frozen=True):
    """A point, the direction in which it moves, and the number of bits that numbers of the direction have."""

    point: Mapping[str, Array]
    direction: Mapping[str, Array]
    bits: int


def bits_of(use: Use, lattice: Lattice, degree: int) -> int:
    """Bits of random numbers with which no result needs more than float64 holds."""
    entries = max([np.size(x) if isinstance(x, np.ndarray) else x.size for x in use.inputs if x is not None] or [1])
    room = EXACT - ceil(log2(max(entries, 1))) - ceil(log2(use.multiple)) * 2
    return max(2, min(MOST, room // max(degree + (degree != 2), lattice.factors) - ceil(log2(degree + 3))))


def drawn(use: Use, lattice: Lattice, rng: np.random.Generator, branch: np.random.Generator) -> Draw:
    """A random point of integers and a direction; comparisons between numbers at the point hold all along it.

    Numbers that are compared are far from each other: `branch` gives their places, and `rng` the numbers next to them.
    """
    degree = lattice.degree_of(use)
    bits = min(bits_of(use, lattice, degree), 8 if lattice.apart and degree > 1 else MOST)
    grid = 1 << (bits + ceil(log2(2 * (degree + 4))) + 1) if lattice.apart else 1
    point, direction, taken = dict(use.constants), {}, set[int]()
    for index, x in use.floats:
        name, still = f"x{index}", index not in use.moved
        place = grid * distinct(x.size, taken, branch) if lattice.apart else 0
        point[name] = use.multiple * shaped(place + rng.integers(-(1 << bits), 1 << bits, x.size), x, rng, bits)
        step = np.zeros(x.size, np.int64) if still else rng.integers(-(1 << bits), 1 << bits, x.size)
        direction[name] = use.multiple * shaped(step, x, rng, 0 if still else bits)
    return Draw(point, direction, bits)


def distinct(count: int, taken: set[int], rng: np.random.Generator) -> Array:
    """Integers that are neither 0 nor among those that are taken, nor twice there."""
    size = 16 * (count + len(taken) + 4)
    free = np.array([n for n in range(-size, size) if n and n not in taken])
    found = rng.choice(free, count, replace=False)
    taken.update(found.tolist())
    return found


def shaped(numbers: Array, x: Floats, rng: np.random.Generator, bits: int) -> Array:
    """Numbers in the shape of an operand, with imaginary parts if it is complex."""
    real = numbers.reshape(x.shape).astype(np.float64)
    if not x.complex or not bits:
        return real
    return real + 1j * rng.integers(-(1 << bits), 1 << bits, x.shape)


def pairing(a: Array, b: Array) -> Fraction:
    """The sum of products, real and exact; for complex numbers its real part, without conjugation."""
    if a.dtype.kind == "c" or b.dtype.kind == "c":
        a, b = a.astype(np.complex128), b.astype(np.complex128)
        return pairing(a.real, b.real) - pairing(a.imag, b.imag)
    pairs = zip(a.ravel().tolist(), b.ravel().tolist(), strict=True)
    return sum((_exactly(m) * _exactly(n) for m, n in pairs), Fraction(0))


def _exactly(number: float) -> Any:
    """The number itself, as an int where it is one."""
    return int(number) if number == number // 1 else Fraction(number)


def slope(values: Sequence[Fraction], degree: int) -> Fraction | None:
    """p'(0) of a polynomial from its values at 0, 1, 2 ...; None if they are not of one of this degree."""
    differences = [values[0]]
    row = list(values)
    while len(row) > 1:
        row = [after - before for before, after in pairwise(row)]
        differences.append(row[0])
    if any(differences[degree + 1 :]):
        return None
    return sum((Fraction((-1) ** (k - 1), k) * differences[k] for k in range(1, degree + 1)), Fraction(0))


def results(tape: Tape, use: Use, rng: np.random.Generator) -> dict[str, Var]:
    """The outputs that are given a cotangent: all through which a derivative may flow, or as often only some of them."""
    found = {y: tape.named[y] for y in use.outputs if y in tape.named and inexact(tape.named[y])}
    if not found or not use.moved:
        raise NotExact("nothing is differentiated there")
    chosen = {y: var for y, var in found.items() if rng.integers(2)}
    return found if rng.integers(2) or not chosen else chosen


def flows(tape: Tape, cts: Mapping[str, Array], moved: Sequence[str]) -> tuple[dict[str, Var], list[Var | None]]:
    """The cotangents of outputs as tensors of a tape, and those that the rule gives to the operands that move."""
    held = {tape.named[y].name: tape.hold(tape.fresh("ct"), ct) for y, ct in cts.items()}
    try:
        return held, gradients(tape, held, moved)
    except (LimitError, MemoryError):
        raise
    except Exception as error:  # a rule is code from elsewhere
        told = str(error) if isinstance(error, MisshapenError) else f"{type(error).__name__}: {error}"
        raise RuleError(told) from error


def compare(
    op: Op, ops: Ops, use: Use, lattice: Lattice, rng: np.random.Generator, branch: Sequence[int]
) -> tuple[Mismatch | None, float]:
    """The two sides of the identity if they differ, and log2 of the odds that a wrong rule passes this trial.

    The same `branch` gives the same outcomes of comparisons.
    """
    graph, degree = use.graph(op), lattice.degree_of(use)
    for turn in range(REDRAWS):
        draw = drawn(use, lattice, rng, np.random.default_rng([*branch, turn]))
        tape = trace(graph, draw.point, ops=ops)
        cts = {y: _cotangent(var.value, use, draw, rng) for y, var in results(tape, use, rng).items()}
        right = _derivative(graph, draw, cts, degree, ops)
        if right is not None:
            break
    else:
        raise NotExact(f"not a polynomial of degree {degree} in numbers that float64 holds")
    moved = [f"x{i}" for i in use.moved]
    _, made = flows(tape, cts, moved)
    return _mismatch(made, moved, draw, right), log2((degree + 1) / (1 << (draw.bits + 1)))


def _derivative(graph: Any, draw: Draw, cts: Mapping[str, Array], degree: int, ops: Ops) -> Fraction | None:
    """p'(0), from two more values than the degree needs."""
    values = [_paired(graph, draw, t, cts, ops) for t in range(degree + 3)]
    return None if None in values else slope([v for v in values if v is not None], degree)


def _paired(graph: Any, draw: Draw, t: int, cts: Mapping[str, Array], ops: Ops) -> Fraction | None:
    point = {n: x + t * draw.direction[n] if n in draw.direction else x for n, x in draw.point.items()}
    named = trace(graph, point, ops=ops).named
    pairs = [(ct, named[y].value) for y, ct in cts.items()]
    if any(y.shape != ct.shape or not np.isfinite(y).all() for ct, y in pairs):
        return None
    return sum((pairing(ct, y) for ct, y in pairs), Fraction(0))


def _cotangent(y: Array, use: Use, draw: Draw, rng: np.random.Generator) -> Array:
    size = 1 << draw.bits
    shape = Floats(y.shape, y.dtype.kind == "c")
    return use.multiple * shaped(rng.integers(-size, size, y.size), shape, rng, draw.bits)


def _mismatch(made: Sequence[Var | None], moved: Sequence[str], draw: Draw, right: Fraction) -> Mismatch | None:
    pairs = [(draw.direction[x], g.value) for x, g in zip(moved, made, strict=False) if g is not None]
    if not all(np.isfinite(g).all() for _, g in pairs):
        return Mismatch("not finite", _shown(right))
    given = sum((pairing(v, g) for v, g in pairs), Fraction(0))
    return None if given == right else Mismatch(_shown(given), _shown(right))


def _shown(number: Fraction) -> str:
    """A number as an integer, or with all digits of its decimal form that matter."""
    return str(number.numerator) if number.denominator == 1 else f"{float(number):.17g}"


def numbers(op: Op, use: Use, rng: np.random.Generator) -> dict[str, Array]:
    """Random numbers for the operands, inside of their domains."""
    found = {}
    for index, x in use.floats:
        interval = op.interval(index, len(use.inputs))
        low, high = (interval.low, interval.high) if interval else (-2.0, 2.0)
        found[f"x{index}"] = rng.uniform(low, high, x.shape)
    return found


def of_all_sizes(shape: Sequence[int], rng: np.random.Generator) -> Array:
    """Cotangents of both signs, from small ones to 1000: a rule that clips them is wrong for some."""
    drawn = rng.uniform(-1, 1, shape)
    return np.asarray(drawn * 2.0 ** (20 * np.abs(drawn) - 10))


# Numbers modulo a prime


class Redraw(Exception):
    """Residues with which a root, or an inverse, does not exist."""


def residues(x: Any) -> Residues:
    """Exact residues of floating-point numbers; NotExact for what is not finite."""
    array = np.asarray(x)
    if array.dtype.kind == "c":
        raise NotExact("complex numbers have no residues")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise NotExact("a constant is not finite")
    if array.dtype.kind != "O" and (array == np.rint(array)).all() and (np.abs(array) < 1 << 62).all():
        return np.asarray(array.astype(np.int64).astype(object) % P, object)
    return each(residue, array.astype(object))


def rational(x: Array) -> Residues:
    """The fractions that rounded numbers stand for; NotExact for a number that stands for none with a small denominator."""
    made = each(lambda number: Fraction(number).limit_denominator(SMALL), x.astype(object))
    if not np.array_equal(made.astype(np.float64), x):
        raise NotExact("a coefficient is no fraction")
    return made


def residue(number: Any) -> int:
    exact = Fraction(number)
    return exact.numerator * pow(exact.denominator, -1, P) % P


def each(function: Callable[..., Any], *arrays: Any) -> Residues:
    made = np.frompyfunc(function, len(arrays), 1)(*arrays)
    return np.asarray(made, object)


def inverse_of(number: int) -> int:
    if number == 0:
        raise Redraw
    return pow(number, -1, P)


class Dual:
    """The entries of a tensor and their derivative along a direction, modulo P; `dot` is None where it is zero.

    `height` bounds the degree of the numerators and denominators of both, as polynomials in what is drawn.
    """

    __slots__ = ("dot", "height", "value")

    def __init__(self, value: Any, dot: Any = None, height: int = 1) -> None:
        self.value = np.asarray(value, object)
        self.dot = None if dot is None else np.asarray(dot, object)
        self.height = height

    @property
    def shape(self) -> tuple[int, ...]:
        return self.value.shape

    @property
    def rate(self) -> Residues:
        """The derivative, zeros included."""
        return np.zeros(self.shape, object) if self.dot is None else self.dot

    def __add__(self, other: Any) -> Dual:
        other = dual(other)
        value = (self.value + other.value) % P
        if self.dot is None and other.dot is None:
            return Dual(value, None, self.height + other.height)
        return Dual(value, (self.rate + other.rate + 0 * value) % P, self.height + other.height)

    def __mul__(self, other: Any) -> Dual:
        other, height = dual(other), 0
        height = 2 * (self.height + other.height)
        value = self.value * other.value % P
        parts = [a.value * b.dot for a, b in ((self, other), (other, self)) if b.dot is not None]
        return Dual(value, sum(parts) % P if parts else None, height)

    __radd__, __rmul__ = __add__, __mul__

    def __neg__(self) -> Dual:
        return self.map(lambda x: -x % P)

    def __sub__(self, other: Any) -> Dual:
        return self + -dual(other)

    def __rsub__(self, other: Any) -> Dual:
        return dual(other) + -self

    def __truediv__(self, other: Any) -> Dual:
        return self * dual(other).inverse()

    def __rtruediv__(self, other: Any) -> Dual:
        return dual(other) * self.inverse()

    def __pow__(self, count: int) -> Dual:
        made = Dual(residues(np.ones(self.shape)))
        for _ in range(abs(count)):
            made = made * self
        return made if count >= 0 else made.inverse()

    def inverse(self) -> Dual:
        """1 over each entry."""
        value = each(inverse_of, self.value)
        return self.function(value, lambda: Dual(-value * value % P), 3 * self.height)

    def function(self, value: Residues, slope: Callable[[], Dual], height: int) -> Dual:
        """A function of each entry that has these values, and this derivative."""
        dot = None if self.dot is None else slope().value * self.dot % P
        return Dual(value, dot, height + 2 * self.height)

    def map(self, move: Callable[[Residues], Any], terms: int = 1) -> Dual:
        """The result of a linear function, which adds so many entries up."""
        return Dual(move(self.value), None if self.dot is None else move(self.dot), terms * self.height)

    def sum(self, axes: Sequence[int] | None = None, keepdims: bool = True) -> Dual:
        """The sum over axes; over all by default."""
        over = None if axes is None else tuple(axes)
        return self.map(
            lambda x: np.asarray(np.sum(x, axis=over, keepdims=keepdims), object) % P, max(self.value.size, 1)
        )

    def __getitem__(self, place: Any) -> Dual:
        return self.map(lambda x: x[place])


def dual(x: Any) -> Dual:
    """Numbers as constants modulo P."""
    return x if isinstance(x, Dual) else Dual(residues(x))


def chosen(place: Any, *xs: Dual) -> Dual:
    """Of several tensors the one that `place` names, entry by entry."""
    shape = np.broadcast_shapes(place.shape, *(x.shape for x in xs))
    values = np.choose(place, [np.broadcast_to(x.value, shape) for x in xs])
    moving = any(x.dot is not None for x in xs)
    dots = np.choose(place, [np.broadcast_to(x.rate, shape) for x in xs]) if moving else None
    return Dual(values, dots, max(x.height for x in xs))


def fraction(residue: int) -> float | None:
    """The quotient of two numbers of at most 62 bits that has this residue; None if there is none."""
    above, below, left, right = P, residue, 0, 1
    while below >> 62:
        quotient = above // below
        above, below, left, right = below, above - quotient * below, right, left - quotient * right
    if not right or abs(right) >> 62:
        return None
    return below / right


def ratio(given: int, right: int) -> Mismatch:
    """The factor by which a rule is wrong, if it is a number."""
    factor = fraction(given * pow(right, -1, P) % P) if right else None
    return Mismatch("", "") if factor is None else Mismatch(f"{factor!r} times the derivative", "the derivative")
