"""Rules of transcendental and rational operators, by residues modulo a prime.

Numbers are residues modulo P, so that nothing is rounded.  A value of an elementary function is an indeterminate, that
is a random residue, and the same one for the same argument; the relations between such values, and their derivatives,
are stated here once, apart from all rules.  An identity of a rule is then one of polynomials, and one that does not hold
is found by random residues but for odds of its degree over P.

Comparisons follow the floating-point numbers that a tape holds beside: they choose the branch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from gradcheck_cli.autodiff.backward import inexact
from gradcheck_cli.autodiff.tape import Step, Tape, Var
from gradcheck_cli.autodiff.trace import trace
from gradcheck_cli.graph import Array, Graph
from gradcheck_cli.op import Op, Ops, zero
from gradcheck_cli.op.batching import linearity
from gradcheck_cli.reference.exact import (
    Dual,
    Lattice,
    Mismatch,
    NotExact,
    P,
    Redraw,
    Residues,
    Use,
    chosen,
    each,
    flows,
    inverse_of,
    numbers,
    of_all_sizes,
    ratio,
    rational,
    residue,
    residues,
    results,
)

HEIGHT = 1 << 12  # of a value of an elementary function, at most
ROOTS = 60  # exponentials are this power of a random residue, so that exp(x / n) is known for n that divide it
PLACES = ("all", "part", "picked", "joined")  # results are entries of an operand
STEP = 1e-5  # of the numbers that are shown of a rule that is wrong
MANY = 1 << 14  # entries of operands and results of a step, which take microseconds each
REDRAWS = 3000  # a root of a residue that is no square: all is drawn anew


class Field:
    """Elementary functions of residues: random values for new arguments, true relations to those that were asked for.

    exp      exp(a + b) = exp(a) exp(b), for sums of two and small multiples of arguments asked for before
    cis      (cos, sin) on the circle, likewise
    log      of exp(x) it is x
    sqrt     the root that is a square itself, so that sqrt(a b) = sqrt(a) sqrt(b); without `squares` an indeterminate,
             of which that it is a root is only known by its derivative
    """

    def __init__(self, rng: np.random.Generator, *, squares: bool = True) -> None:
        self.rng, self.squares = rng, squares
        self.atoms: dict[int, int] = {}  # multiples of arguments -> exp of them
        self.angles: dict[int, tuple[int, int]] = {}
        self.logs: dict[int, int] = {}  # exp(x) -> x
        self.known: dict[tuple[Any, ...], int] = {}
        self.roots = 0

    def random(self) -> int:
        """A random residue that is not 0."""
        return int.from_bytes(self.rng.bytes(16), "little") % (P - 1) + 1

    def randoms(self, shape: tuple[int, ...]) -> Residues:
        return each(lambda _: self.random(), np.zeros(shape, object))

    def like(self, x: Array) -> Residues:
        """Random residues, squares where numbers are positive and their negatives where they are not."""
        return each(lambda n: self.random() ** 2 * (1 if n > 0 else -1) % P, x.astype(object))

    def indeterminate(self, *key: Any) -> int:
        """A random residue, the same for the same function and arguments."""
        if key not in self.known:
            self.known[key] = self.random()
        return self.known[key]

    def exp(self, x: int) -> int:
        """The exponential of a residue."""
        if x == 0:
            return 1
        if x not in self.atoms:
            found = self._sum(x)
            if found is None:
                self._exponent(x, self.random())
            else:
                self.atoms[x] = found
        self.logs.setdefault(self.atoms[x], x)
        return self.atoms[x]

    def _sum(self, x: int) -> int | None:
        """exp(x) where x is a sum of two arguments that are known."""
        pairs = ((power, self.atoms.get((x - known) % P)) for known, power in self.atoms.items())
        return next((power * other % P for power, other in pairs if other is not None), None)

    def _exponent(self, x: int, root: int) -> None:
        for n in (1, 2, 3, 4, 5, 6):
            part, power = x * pow(n, -1, P) % P, pow(root, ROOTS // n, P)
            for times in range(1, 7):
                self.atoms.setdefault(times * part % P, pow(power, times, P))
                self.atoms.setdefault(-times * part % P, pow(power, -times, P))

    def log(self, x: int) -> int:
        """The logarithm of a residue."""
        if x == 1:
            return 0
        if x not in self.logs:
            exponent = self.logs[x] = self.random()
            for times in range(-6, 7):
                self.atoms.setdefault(times * exponent % P, pow(x, times, P))
        return self.logs[x]

    def cis(self, x: int) -> tuple[int, int]:
        """Cosine and sine of a residue: a point of the circle."""
        if x == 0:
            return 1, 0
        if x not in self.angles:
            t = self.random()
            below = inverse_of((1 + t * t) % P)
            self._angle(x, ((1 - t * t) * below % P, 2 * t * below % P))
        return self.angles[x]

    def _angle(self, x: int, root: tuple[int, int]) -> None:
        point, powers = (1, 0), []
        for _ in range(2 * ROOTS):
            point = _turned(point, root)
            powers.append(point)
        for n in (1, 2, 3, 4, 5, 6):
            for times in range(1, 7):
                if ROOTS // n * times <= len(powers):
                    c, s = powers[ROOTS // n * times - 1]
                    angle = times * x * pow(n, -1, P) % P
                    self.angles.setdefault(angle, (c, s))
                    self.angles.setdefault(-angle % P, (c, -s % P))

    def sqrt(self, x: int) -> int:
        """The square root that is a square itself; Redraw if there is none."""
        if not self.squares:
            return self.indeterminate("root", 2, x)
        root = pow(x, (P + 1) // 4, P)
        if root * root % P != x:
            raise Redraw
        if ("sqrt", x) not in self.known:
            self.known["sqrt", x] = root
            self.roots += 1
        return root


def _turned(a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
    return (a[0] * b[0] - a[1] * b[1]) % P, (a[0] * b[1] + a[1] * b[0]) % P


class Reading:
    """The steps of a tape, evaluated in a field: tensors by name, as residues with derivatives.

    A tensor that no step is evaluated for has the residues of its numbers on the tape: constants, integers, decisions.
    """

    def __init__(self, tape: Tape, field: Field) -> None:
        self.tape, self.field = tape, field
        self.values: dict[str, Dual] = {}

    def __getitem__(self, name: str) -> Dual:
        return self.values[name] if name in self.values else Dual(residues(self.tape.values[name]))

    def number(self, name: str) -> Array:
        """The numbers of a tensor, which comparisons are decided by."""
        return self.tape.values[name]

    def negative(self, step: Step) -> Array:
        return (self.number(step.operands[0]) < 0).astype(int)

    def run(self, steps: Sequence[Step]) -> None:
        """Evaluates steps; those whose results are constant where they are differentiable are left to the tape."""
        for step in steps:
            try:
                if self._varies(step):
                    self.values.update(zip(step.outputs, self._evaluated(step), strict=False))
            except (TypeError, ValueError, LookupError, AttributeError, OverflowError) as error:
                raise NotExact(f"{step.op.full_name} has no exact meaning with these operands") from error

    def _varies(self, step: Step) -> bool:
        """True if a result is not constant in the branch that the numbers on the tape are in."""
        if step.op.vjp is zero or not any(n in self.tape.values and inexact(self.tape.var(n)) for n in step.outputs):
            return False
        held = (i for i, name in enumerate(step.node.inputs) if name in self.values)
        return any(not step.op.cut(step.node.attrs, i, 0) for i in held)

    def _evaluated(self, step: Step) -> Sequence[Dual]:
        if sum(self.number(name).size for name in (*step.operands, *step.outputs) if name) > MANY:
            raise NotExact(f"{step.op.full_name} has more entries here than are decided exactly")
        if step.op.full_name in MEANINGS:
            operands = [self[n] if n and inexact(self.tape.var(n)) else None for n in step.operands]
            made = MEANINGS[step.op.full_name](self, step, *operands)
            return made if isinstance(made, tuple) else (made,)
        return [self._linear(step, number) for number in range(len(step.outputs))]

    def _linear(self, step: Step, number: int) -> Dual:
        """An output of an operator that is linear in groups of operands, by its kernel on one entry at a time."""
        groups = linearity(step.op.linear, step.metadata)
        if not groups:
            raise NotExact(f"{step.op.full_name} has no exact meaning here")
        parts = [range(i, i + 1) for i in range(len(step.operands))] if groups == "each" else groups
        given = [self.number(n) if n else None for n in step.operands]
        real = [x is not None and x.dtype.kind == "f" for x in given]
        still = [np.zeros_like(x) if is_real else x for x, is_real in zip(given, real, strict=True)]
        made: Dual | None = None
        for group in parts:
            held = [i for i in group if i < len(real) and real[i]]
            moving = [i for i in held if step.operands[i] in self.values] or held[:1]
            base = [given[i] if i in held and i not in moving else x for i, x in enumerate(still)]
            if moving:
                part = self._product(step, number, base, moving)
                made = part if made is None else made + part
        return Dual(residues(self.number(step.outputs[number]))) if made is None else made

    def _product(self, step: Step, number: int, base: list[Any], moving: Sequence[int]) -> Dual:
        """The part of a group of operands: a sum over entries of all but the last, of a linear function of that."""
        first, *rest = moving
        if not rest:
            exact = any(x is not None and x.dtype.kind == "f" and x.any() for x in base)
            function = _placed if step.op.moves in PLACES else partial(_by_units, exact=exact)
            return function(self[step.operands[first]], lambda unit: _kernel(step, number, base, first, unit))
        x, made = self[step.operands[first]], None
        for place in np.ndindex(x.shape):
            unit = np.zeros(x.shape)
            unit[place] = 1
            part = self._product(step, number, [unit if i == first else v for i, v in enumerate(base)], rest)
            made = part * x[place] if made is None else made + part * x[place]
        if made is None:
            raise NotExact(f"{step.op.full_name} of no entries")
        return made


def _kernel(step: Step, number: int, base: Sequence[Any], place: int, unit: Array) -> Array:
    made = step.op.forward(*[unit if i == place else x for i, x in enumerate(base)], **step.metadata)
    return np.asarray(made[number] if step.op.many else made)


def _by_units(x: Dual, kernel: Callable[[Array], Array], *, exact: bool = False) -> Dual:
    """A linear function of x, whose coefficients its kernel gives for one entry at a time.

    They are numbers as they stand if they are `exact`; else fractions such as 1/3, which a kernel rounds.
    """
    outline, shape = kernel(np.zeros(x.shape)), (x.value.size, *x.shape)
    if outline.size * x.value.size > MANY << 6:
        raise NotExact("a linear function has more coefficients than are decided exactly")
    made = [kernel(one).ravel() for one in np.eye(x.value.size).reshape(shape)]
    matrix = np.array([residues(column) if exact else residues(rational(column)) for column in made], object)
    matrix = matrix.reshape(x.value.size, outline.size).T
    return x.map(lambda v: (matrix @ v.ravel() % P).reshape(outline.shape), x.value.size)


def _placed(x: Dual, kernel: Callable[[Array], Array]) -> Dual:
    """Entries of x at other places, which its kernel gives for the numbers of the entries; 0 is no entry."""
    place = kernel(np.arange(1.0, x.value.size + 1).reshape(x.shape)).astype(np.int64)
    return x.map(lambda v: np.concatenate([np.zeros(1, object), v.ravel()])[place])


# What operators mean

Meaning: TypeAlias = Callable[..., Any]
HALF = pow(2, -1, P)
ERF = residue(2 / math.sqrt(math.pi))


def elementary(value: Callable[[Field, int], int], slope: Callable[[Field, Dual, Dual], Dual]) -> Meaning:
    """A function of each entry, from its value and from the derivative at (x, y)."""

    def meaning(read: Reading, step: Step, x: Dual) -> Dual:
        return applied(read.field, x, value, slope)

    return meaning


def applied(field: Field, x: Dual, value: Callable[[Field, int], int], slope: Callable[..., Dual]) -> Dual:
    y = Dual(each(lambda v: value(field, v), x.value), None, HEIGHT + x.height)
    return x.function(y.value, lambda: slope(field, Dual(x.value), y), 4 * y.height)


def exp(field: Field, x: Dual) -> Dual:
    return applied(field, x, Field.exp, lambda _, x, y: y)


def log(field: Field, x: Dual) -> Dual:
    return applied(field, x, Field.log, lambda _, x, y: x.inverse())


def sqrt(field: Field, x: Dual) -> Dual:
    return applied(field, x, Field.sqrt, lambda _, x, y: (y + y).inverse())


def norm(field: Field, total: Dual, p: int) -> Dual:
    """The root y of y^p = total, as an indeterminate: p y^(p - 1) y' = total'."""
    return applied(
        field, total, lambda f, v: f.indeterminate("root", p, v), lambda _, x, y: (y ** (p - 1) * p).inverse()
    )


def sigmoid(field: Field, x: Dual) -> Dual:
    return 1 / (1 + exp(field, -x))


def tanh(field: Field, x: Dual) -> Dual:
    return 1 - 2 / (exp(field, x + x) + 1)


def cos(field: Field, x: Dual) -> Dual:
    return applied(field, x, lambda f, v: f.cis(v)[0], lambda f, x, y: -Dual(each(lambda v: f.cis(v)[1], x.value)))


def sin(field: Field, x: Dual) -> Dual:
    return applied(field, x, lambda f, v: f.cis(v)[1], lambda f, x, y: Dual(each(lambda v: f.cis(v)[0], x.value)))


def opaque(name: str, slope: Callable[[Field, Dual, Dual], Dual]) -> Meaning:
    """A function that only its derivative is known of."""
    return elementary(lambda f, v: f.indeterminate(name, v), slope)


def plain(function: Callable[..., Dual]) -> Meaning:
    """An operator that is arithmetic on its operands."""
    return lambda read, step, *xs: function(*xs)


def of_field(function: Callable[[Field, Dual], Dual]) -> Meaning:
    """An operator that is elementary functions of its operand."""
    return lambda read, step, x: function(read.field, x)


def signed(read: Reading, step: Step, x: Dual) -> Dual:
    """|x|."""
    return x * np.sign(read.number(step.operands[0]))


def exponential(read: Reading, step: Step, x: Dual, height: float, width: float, slope: float) -> Dual:
    """slope x, or height (e^(x / width) - 1) where x is negative."""
    left = (exp(read.field, x / width) - 1) * height
    return chosen(read.negative(step), x * slope, left)


def elu(read: Reading, step: Step, x: Dual) -> Dual:
    return exponential(read, step, x, step.metadata.get("alpha", 1.0), 1.0, 1.0)


def celu(read: Reading, step: Step, x: Dual) -> Dual:
    alpha = step.metadata.get("alpha", 1.0)
    return exponential(read, step, x, alpha, alpha, 1.0)


def selu(read: Reading, step: Step, x: Dual) -> Dual:
    alpha, gamma = (step.metadata.get(key, default) for key, default in (("alpha", 1.6732631921768188),
                                                                         ("gamma", 1.0507010221481323)))  # fmt: skip
    return exponential(read, step, x, alpha * gamma, 1.0, gamma)


def leaky_relu(read: Reading, step: Step, x: Dual) -> Dual:
    return chosen(read.negative(step), x, x * step.metadata.get("alpha", 0.009999999776482582))


def prelu(read: Reading, step: Step, x: Dual, slope: Dual) -> Dual:
    return chosen(np.broadcast_to(read.negative(step), (x * slope).shape), x, x * slope)


def where(read: Reading, step: Step, _: None, x: Dual, y: Dual) -> Dual:
    return chosen(1 - read.number(step.operands[0]).astype(int), x, y)


def extremum(pick: Callable[..., Array]) -> Meaning:
    """The operand that the numbers say is the largest or the smallest."""

    def meaning(read: Reading, step: Step, *xs: Dual) -> Dual:
        numbers = np.broadcast_arrays(*[read.number(n) for n in step.operands])
        return chosen(pick(np.stack(numbers), axis=0), *xs)

    return meaning


def clip(read: Reading, step: Step, x: Dual, *bounds: Dual | None) -> Dual:
    made, number = x, read.number(step.operands[0])
    for name, bound, sign in zip(step.operands[1:], bounds, (1, -1), strict=False):
        if bound is not None:
            limit = read.number(name)
            beyond = np.asarray(sign * number < sign * limit)
            made, number = chosen(beyond.astype(int), made, bound), np.where(beyond, limit, number)
    return made


def power(read: Reading, step: Step, x: Dual, y: Dual | None) -> Dual:
    """x to the power y = exp(y log x); numbers of whole exponents that do not vary are products."""
    exponent = read.number(step.operands[1])
    if step.operands[1] in read.values:
        assert y is not None
        return exp(read.field, y * log(read.field, x))
    once = set(exponent.ravel().tolist())
    if len(once) == 1 and (n := once.pop()) == int(n) and abs(n) < 9:
        return _broadcast(x, exponent) ** int(n)
    return exp(read.field, Dual(residues(exponent)) * log(read.field, x))


def _broadcast(x: Dual, like: Array) -> Dual:
    shape = np.broadcast_shapes(x.shape, like.shape)
    return x.map(lambda v: np.broadcast_to(v, shape))


def added(*xs: Dual) -> Dual:
    return sum(xs[1:], xs[0])


def _reduced(read: Reading, step: Step) -> dict[str, Any]:
    how = step.metadata
    return {"axes": how.get("axes"), "keepdims": bool(how.get("keepdims", 1))}


def reduce_sum(read: Reading, step: Step, x: Dual) -> Dual:
    return x.sum(**_reduced(read, step))


def reduce_mean(read: Reading, step: Step, x: Dual) -> Dual:
    total = reduce_sum(read, step, x)
    return total / (math.prod(x.shape) // max(math.prod(total.shape), 1))


def reduce_prod(read: Reading, step: Step, x: Dual) -> Dual:
    """The product over axes, one entry after the other."""
    how = _reduced(read, step)
    axes = [a % max(len(x.shape), 1) for a in (range(len(x.shape)) if how["axes"] is None else how["axes"])]
    made = x
    for axis in axes:
        slices = [made.map(partial(np.take, indices=[i], axis=axis)) for i in range(made.shape[axis])]
        made = slices[0] if slices else made
        for other in slices[1:]:
            made = made * other
    return made if how["keepdims"] else made.map(lambda v: np.squeeze(v, tuple(axes)))


def reduce_l2(read: Reading, step: Step, x: Dual) -> Dual:
    return norm(read.field, reduce_sum(read, step, x * x), 2)


def log_sum_exp(read: Reading, step: Step, x: Dual) -> Dual:
    return log(read.field, reduce_sum(read, step, exp(read.field, x)))


def softmax(read: Reading, step: Step, x: Dual) -> Dual:
    grown = exp(read.field, x)
    return grown / grown.sum((step.metadata.get("axis", -1),))


def log_softmax(read: Reading, step: Step, x: Dual) -> Dual:
    return x - log(read.field, exp(read.field, x).sum((step.metadata.get("axis", -1),)))


def lp_pool(read: Reading, step: Step, x: Dual) -> Dual:
    """The root of sums of powers over windows, which LpPool itself gives of magnitudes for p = 1."""
    p = int(step.metadata["p"])
    sums = {**step.metadata, "p": 1}
    powers = (signed(read, step, x) if p % 2 else x) ** p
    return norm(read.field, _by_units(powers, lambda unit: np.asarray(step.op.forward(unit, **sums))), p)


def matmul(x: Dual, y: Dual) -> Dual:
    """The product of stacks of matrices."""
    parts = [np.matmul(a, b) for a, b in ((x.rate, y.value), (x.value, y.rate))]
    return Dual(np.matmul(x.value, y.value) % P, sum(parts) % P, 2 * x.value.size * (x.height + y.height))


def det(x: Dual) -> Dual:
    """Determinants of the matrices in the last two axes, along their first rows."""
    size = x.shape[-1]
    if size == 0:
        return Dual(residues(np.ones(x.shape[:-2])))
    made = [x[..., 0, j] * det(minor(x, 0, j)) * (-1) ** j for j in range(size)]
    return added(*made)


def minor(x: Dual, i: int, j: int) -> Dual:
    """Matrices without a row and a column."""
    return x.map(lambda v: np.delete(np.delete(v, i, -2), j, -1))


def cofactors(x: Dual) -> Dual:
    size = range(x.shape[-1])
    rows = [_stacked([det(minor(x, i, j)) * (-1) ** (i + j) for j in size]) for i in size]
    return _stacked(rows, -2)


def _stacked(xs: Sequence[Dual], axis: int = -1) -> Dual:
    dots = np.stack([x.rate for x in xs], axis)
    return Dual(np.stack([x.value for x in xs], axis), dots, max(x.height for x in xs))


def inverse(x: Dual) -> Dual:
    whole = det(x)
    return cofactors(x).map(lambda v: np.swapaxes(v, -1, -2)) / whole.map(lambda v: np.asarray(v)[..., None, None])


def modulo(read: Reading, step: Step, x: Dual, y: Dual) -> Dual:
    a, b = (read.number(n) for n in step.operands)
    return x - y * (np.trunc if step.metadata.get("fmod") else np.floor)(a / b)


MEANINGS: Mapping[str, Meaning] = {
    "Add": plain(lambda a, b: a + b), "Sub": plain(lambda a, b: a - b), "Mul": plain(lambda a, b: a * b),
    "Div": plain(lambda a, b: a / b), "Neg": plain(lambda x: -x), "Reciprocal": plain(lambda x: x.inverse()),
    "Identity": plain(lambda x: x), "Sum": plain(added), "Mean": plain(lambda *xs: added(*xs) / len(xs)),
    "MatMul": plain(matmul), "Det": plain(det), "gradcheck.Cofactors": plain(cofactors),
    "com.microsoft.Inverse": plain(inverse),
    "Pow": power, "Mod": modulo, "Abs": signed, "Where": where, "Clip": clip, "LeakyRelu": leaky_relu,
    "Relu": lambda read, step, x: chosen(read.negative(step), x, x * 0),
    "PRelu": prelu, "Max": extremum(np.argmax), "Min": extremum(np.argmin),
    "Exp": of_field(exp), "Log": of_field(log), "Sqrt": of_field(sqrt), "Sigmoid": of_field(sigmoid),
    "Tanh": of_field(tanh), "Sin": of_field(sin), "Cos": of_field(cos),
    "Tan": of_field(lambda f, x: sin(f, x) / cos(f, x)),
    "Sinh": of_field(lambda f, x: (exp(f, x) - exp(f, -x)) * Dual(HALF)),
    "Cosh": of_field(lambda f, x: (exp(f, x) + exp(f, -x)) * Dual(HALF)),
    "Softplus": of_field(lambda f, x: log(f, 1 + exp(f, x))),
    "Softsign": lambda read, step, x: x / (1 + signed(read, step, x)),
    "Erf": opaque("erf", lambda f, x, y: Dual(ERF) * exp(f, -(x * x))),
    "Asin": opaque("asin", lambda f, x, y: sqrt(f, 1 - x * x).inverse()),
    "Acos": opaque("acos", lambda f, x, y: -sqrt(f, 1 - x * x).inverse()),
    "Atan": opaque("atan", lambda f, x, y: (1 + x * x).inverse()),
    "Asinh": opaque("asinh", lambda f, x, y: sqrt(f, 1 + x * x).inverse()),
    "Acosh": opaque("acosh", lambda f, x, y: sqrt(f, x * x - 1).inverse()),
    "Atanh": opaque("atanh", lambda f, x, y: (1 - x * x).inverse()),
    "Elu": elu, "Celu": celu, "Selu": selu, "Softmax": softmax, "LogSoftmax": log_softmax, "LpPool": lp_pool,
    "ReduceSum": reduce_sum, "ReduceMean": reduce_mean, "ReduceProd": reduce_prod, "ReduceL2": reduce_l2,
    "ReduceLogSumExp": log_sum_exp,
}  # fmt: skip


def compare(
    op: Op, ops: Ops, use: Use, lattice: Lattice, rng: np.random.Generator, branch: Sequence[int]
) -> tuple[Mismatch | None, float]:
    """The two sides of the identity if they differ, and log2 of the odds that a wrong rule passes; as by integers."""
    tape = trace(use.graph(op), {**use.constants, **numbers(op, use, np.random.default_rng(branch))}, ops=ops)
    moved, first = [f"x{i}" for i in use.moved], len(tape.steps)
    weights = {y: of_all_sizes(v.shape, rng) for y, v in results(tape, use, rng).items()}
    cts, made = flows(tape, weights, moved)
    found = dict(zip(moved, made, strict=False))
    for turn in range(REDRAWS + 1):  # the last one without relations between roots
        try:
            equal, odds = _compared(tape, first, use, cts, found, Field(rng, squares=turn < REDRAWS))
        except Redraw:
            continue
        if equal is None or turn < REDRAWS:
            return equal and (equal if equal.given else in_numbers(tape, found, weights, use.graph(op), ops)), odds
    raise NotExact("roots, or a division by 0, that no draw fits")


def _compared(
    tape: Tape, first: int, use: Use, cts: Mapping[str, Var], found: Mapping[str, Var | None], field: Field
) -> tuple[Mismatch | None, float]:
    read = Reading(tape, field)
    for index, x in use.floats:
        dot = field.randoms(x.shape) if index in use.moved else None
        read.values[f"x{index}"] = Dual(field.like(read.number(f"x{index}")), dot, 2)
    read.run(tape.steps[:first])
    read.values.update((ct.name, Dual(field.randoms(ct.shape))) for ct in cts.values())
    right, height = _paired(read, [(y, ct.name) for y, ct in cts.items()])
    read.run(tape.steps[first:])
    given, more = _paired(read, [(x, ct.name) for x, ct in found.items() if ct is not None])
    odds = math.log2(height + more) + 2 * field.roots - 126
    return (None if given == right else ratio(given, right)), odds


def _paired(read: Reading, pairs: Sequence[tuple[str, str]]) -> tuple[int, int]:
    """The sum of products of derivatives and cotangents, by names of both, and a bound of its degree."""
    total = sum(int(np.sum(read[ct].value * read[x].rate)) for x, ct in pairs)
    return total % P, 1 + sum(
        max(read[name].height for name in pair) * (1 + read[pair[0]].value.size) for pair in pairs
    )


def in_numbers(
    tape: Tape, found: Mapping[str, Var | None], weights: Mapping[str, Array], graph: Graph, ops: Ops
) -> Mismatch:
    """Both sides in floating-point numbers along the direction (1, 1 ...), the right one by a difference."""
    feeds = {name: tape.named[name].value for name in graph.inputs}

    def along(step: float) -> float:
        moved = trace(graph, {n: x + step if n in found else x for n, x in feeds.items()}, ops=ops).named
        return sum(float(np.sum(w * moved[y].value)) for y, w in weights.items())

    given = sum(float(np.sum(ct.value)) for ct in found.values() if ct is not None)
    return Mismatch(f"{given:.10g}", f"{(along(STEP) - along(-STEP)) / (2 * STEP):.10g}")
