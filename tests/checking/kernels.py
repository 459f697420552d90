"""Kernels that others might hand in, each with its right rule: not complex-safe, coarse inside, or declared wrongly.

None of them says `analytic=False`: what a kernel does to complex numbers is for the checker to find out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

import gradcheck_cli as gc
from gradcheck_cli.autodiff import symbolic as sym
from gradcheck_cli.op.batching import elementwise, loop, trailing
from gradcheck_cli.op.sparsity import same_place
from tests.checking.small import model

Rule = Callable[..., Any]
SPREAD = np.array([0.83, -0.41, 1.37, -0.22])
POSITIVE = np.array([0.83, 0.41, 1.37, 0.22])
MATRIX = np.array([[2.1, 0.3, -0.4], [0.2, 1.7, 0.5], [-0.3, 0.1, 1.9]])
ROW = np.array([0.7, -1.1, 0.4])
WEIGHTS = np.random.default_rng(11).normal(size=(4, 4))
KNOTS, HEIGHTS = np.linspace(-4, 4, 17), np.sin(np.linspace(-4, 4, 17))
FAR = 1e17  # of which one rounding is 16


@dataclass(frozen=True)
class Kernel:
    """A kernel of one operand with the rule that is right for it; `declared` is what is said of the operator besides."""

    name: str
    forward: Callable[..., Any]
    rule: Rule  # (ct, y, x) -> the cotangent of x
    x: Any
    declared: dict[str, Any]
    smooth: bool = True  # something can be said of it
    term: int = 0  # an entry that has a gradient

    def table(self, rule: Rule | None = None) -> dict[tuple[str, str], gc.Op]:
        """The operator table with the kernel, and with its right rule unless another is given."""
        right = rule or self.rule

        def vjp(ct: Any, y: Any, x: Any) -> tuple[Any]:
            return (right(ct, y, x),)

        return {**gc.OPS, ("acme", "K"): gc.Op("K", self.forward, vjp, domain="acme", **self.declared)}

    def model(self) -> gc.Model:
        """The kernel between two nodes that scale."""
        nodes = ("Mul", "x a", "h"), ("K", "h", "k", {}, "acme"), ("Mul", "k b", "y")
        return model(*nodes, x=np.shape(self.x), constants={"a": np.float64(1.25), "b": np.float64(0.7)})


def kernel(name: str, forward: Callable[..., Any], rule: Rule, x: Any = SPREAD, **declared: Any) -> Kernel:
    smooth, term = declared.pop("smooth", True), declared.pop("term", 0)
    return Kernel(name, forward, rule, np.asarray(x), declared, smooth, term)


def wrong(kernel: Kernel) -> Iterator[tuple[str, Rule]]:
    """Rules with one mistake each."""
    right = kernel.rule
    yield "sign", lambda ct, y, x: -right(ct, y, x)
    yield "twice", lambda ct, y, x: 2.0 * right(ct, y, x)
    yield "1 % off", lambda ct, y, x: 1.01 * right(ct, y, x)
    yield "a term missing", lambda ct, y, x: right(ct, y, x) * _without(kernel.term, x.shape)


def _without(term: int, shape: tuple[int, ...]) -> np.ndarray:
    kept = np.ones(shape)
    kept.flat[term] = 0
    return kept


def narrow(function: Callable[[np.ndarray], Any], dtype: Any = np.float32) -> Callable[[np.ndarray], Any]:
    """A function that a library computes in shorter numbers, whatever it is given."""
    return lambda x: np.asarray(function(np.asarray(x).real.astype(dtype)), np.float64)


def each(function: Callable[[float], float]) -> Callable[[np.ndarray], Any]:
    """A function of single real numbers at every entry."""
    return lambda x: np.array([function(float(v)) for v in np.ravel(x)]).reshape(np.shape(x))


def cosine(ct: Any, y: Any, x: Any) -> Any:
    return ct * sym.cos(x)


def norm_rule(ct: Any, y: Any, x: Any) -> Any:
    return ct * x / y


def unit(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x)


def unit_rule(ct: Any, y: Any, x: Any) -> Any:
    return (ct - y * sym.sum(ct * y)) / sym.sqrt(sym.sum(x * x))


def variance_rule(ct: Any, y: Any, x: Any) -> Any:
    return ct * 2.0 * (x - sym.mean(x)) / float(x.size)


def deviation_rule(ct: Any, y: Any, x: Any) -> Any:
    return ct * (x - sym.mean(x)) / (y * float(x.size))


def normalized(x: np.ndarray) -> np.ndarray:
    return (x - x.mean()) / np.sqrt(np.var(x) + 1e-5)


def normalized_rule(ct: Any, y: Any, x: Any) -> Any:
    centered = x - sym.mean(x)
    deviation = sym.sqrt(sym.mean(centered * centered) + 1e-5)
    return (ct - sym.mean(ct) - y * sym.mean(ct * y)) / deviation


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max())
    return e / e.sum()


def softmax_rule(ct: Any, y: Any, x: Any) -> Any:
    return y * (ct - sym.sum(ct * y))


def relu_rule(ct: Any, y: Any, x: Any) -> Any:
    return sym.where(x > 0, ct, 0.0)


def newton(x: np.ndarray) -> np.ndarray:
    """z with z^3 + z = x."""
    z = np.array(x, copy=True)
    for _ in range(60):
        step = (z**3 + z - x) / (3 * z**2 + 1)
        z = z - step
        if np.abs(step).max() < 1e-14:
            break
    return z


def loose(x: np.ndarray) -> np.ndarray:
    """The same by a fixed number of digits: 1e-10."""
    z = np.zeros_like(x)
    for _ in range(400):
        following = z - 0.1 * (z**3 + z - x)
        if np.max(np.abs(following - z)) < 1e-11:
            return following
        z = following
    return z


def bisected(value: float) -> float:
    low, high = -8.0, 8.0
    for _ in range(70):
        middle = (low + high) / 2
        low, high = (middle, high) if middle**3 + middle < value else (low, middle)
    return (low + high) / 2


def cubic_rule(ct: Any, y: Any, x: Any) -> Any:
    return ct / (3.0 * y * y + 1.0)


def inverse_transposed(x: Any) -> Any:
    """The transposed inverse, for rules."""
    return sym.custom("Cofactors", x) / x.tape.apply("Det", x)


def solve_rule(ct: Any, y: Any, x: Any) -> Any:
    away = sym.matmul(inverse_transposed(x), sym.reshape(ct, (3, 1)))
    return -sym.matmul(away, sym.reshape(y, (1, 3)))


def inverse_rule(ct: Any, y: Any, x: Any) -> Any:
    turned = sym.swap(y)
    return -sym.matmul(sym.matmul(turned, ct), turned)


def interpolated(x: np.ndarray) -> np.ndarray:
    at = np.clip(np.searchsorted(KNOTS, x) - 1, 0, len(KNOTS) - 2)
    share = (x - KNOTS[at]) / (KNOTS[at + 1] - KNOTS[at])
    return HEIGHTS[at] + share * (HEIGHTS[at + 1] - HEIGHTS[at])


def table_rule(ct: Any, y: Any, x: Any) -> Any:
    slopes = np.diff(HEIGHTS) / np.diff(KNOTS)
    place = sym.floor((x - KNOTS[0]) / (KNOTS[1] - KNOTS[0]))
    total = sym.zeros_like(x)
    for i, slope in enumerate(slopes):
        total = total + sym.where(sym.equal(place, float(i)), slope, 0.0)
    return ct * total


def huber(x: np.ndarray) -> np.ndarray:
    return np.where(np.abs(x) < 0.6, 0.5 * x * x, 0.6 * (np.abs(x) - 0.3))


def power_spectrum(x: np.ndarray) -> np.ndarray:
    return np.abs(np.fft.fft(x)) ** 2


def spectrum_rule(ct: Any, y: Any, x: Any) -> Any:
    n = x.shape[0]
    turns = 2 * np.pi * np.outer(np.arange(n), np.arange(n)) / n
    c, s = np.cos(turns), np.sin(turns)
    real, imag = sym.matmul(x.tape.constant(c), x), sym.matmul(x.tape.constant(s), x)
    return 2.0 * (sym.matmul(x.tape.constant(c.T), ct * real) + sym.matmul(x.tape.constant(s.T), ct * imag))


def by_weights(ct: Any, y: Any, x: Any) -> Any:
    return sym.matmul(x.tape.constant(WEIGHTS.T), ct)


def sums_rule(ct: Any, y: Any, x: Any) -> Any:
    n = x.shape[0]
    return sym.matmul(x.tape.constant(np.triu(np.ones((n, n)))), ct)


def neighbours(x: np.ndarray) -> np.ndarray:
    return x * np.roll(x, 1)


def neighbours_rule(ct: Any, y: Any, x: Any) -> Any:
    n = x.shape[0]
    back = x.tape.constant(np.roll(np.eye(n), 1, axis=0))
    return ct * sym.matmul(back, x) + sym.matmul(sym.swap(back), ct * x)


KERNELS = [
    # on complex numbers something else than its continuation
    kernel("np.abs", np.abs, lambda ct, y, x: ct * sym.sign(x)),
    kernel("np.abs, elementwise", np.abs, lambda ct, y, x: ct * sym.sign(x), batching=elementwise),
    kernel("the square of np.abs", lambda x: np.abs(x) ** 2, lambda ct, y, x: 2.0 * ct * x, batching=elementwise),
    kernel("the cube of np.abs", lambda x: np.abs(x) ** 3, lambda ct, y, x: 3.0 * ct * x * sym.abs(x)),
    kernel("a smooth np.abs", lambda x: np.sqrt(np.abs(x) ** 2 + 1), lambda ct, y, x: ct * x / y, batching=elementwise),
    kernel("log1p of np.abs", lambda x: np.log1p(np.abs(x)), lambda ct, y, x: ct * sym.sign(x) / (sym.abs(x) + 1.0)),
    kernel("np.hypot", lambda x: np.hypot(x, 1.0), lambda ct, y, x: ct * x / y, batching=elementwise),
    kernel("np.linalg.norm", np.linalg.norm, norm_rule),
    kernel("np.linalg.norm of rows", lambda x: np.linalg.norm(x, axis=-1, keepdims=True), norm_rule, MATRIX,
           batching=trailing),
    kernel("the 1-norm", lambda x: np.linalg.norm(x, 1), lambda ct, y, x: ct * sym.sign(x)),
    kernel("the Frobenius norm", np.linalg.norm, norm_rule, MATRIX),
    kernel("a unit vector", unit, unit_rule),
    kernel("np.vdot", lambda x: np.vdot(x, x), lambda ct, y, x: 2.0 * ct * x),
    kernel("the mean of np.abs squared", lambda x: np.mean(np.abs(x - 1) ** 2), lambda ct, y, x:
           ct * 2.0 * (x - 1.0) / 4.0),
    kernel("np.var", np.var, variance_rule),
    kernel("np.std", np.std, deviation_rule),
    kernel("a layer norm by np.var", normalized, normalized_rule),
    kernel("the real part alone", lambda x: np.sin(np.real(x)), cosine, batching=elementwise),
    kernel("the real part of one term", lambda x: x * x + np.sin(np.real(x)), lambda ct, y, x:
           ct * (2.0 * x + sym.cos(x)), batching=elementwise),
    kernel("a power spectrum", power_spectrum, spectrum_rule),
    kernel("a product with the conjugate", lambda x: (x * np.conj(x)).sum(), lambda ct, y, x: 2.0 * ct * x),
    # comparisons on complex numbers
    kernel("np.maximum", lambda x: np.maximum(x, 0), relu_rule, batching=elementwise),
    kernel("a mask of signs", lambda x: x * (x > 0), relu_rule, batching=elementwise),
    kernel("np.clip", lambda x: np.clip(x, -0.5, 0.5), lambda ct, y, x: sym.where(sym.abs(x) < 0.5, ct, 0.0),
           term=3),
    kernel("a Huber loss", huber, lambda ct, y, x: ct * sym.clip(x, -0.6, 0.6), batching=elementwise),
    kernel("a leak where np.abs is small", lambda x: np.where(np.abs(x) > 0.5, x, 0.1 * x), lambda ct, y, x:
           ct * sym.where(sym.abs(x) > 0.5, 1.0, 0.1)),
    kernel("np.max", np.max, lambda ct, y, x: sym.where(sym.equal(x, y), ct, 0.0),
           term=2),
    kernel("np.ptp", np.ptp, lambda ct, y, x: sym.where(sym.equal(x, sym.max(x)), ct, 0.0)
           - sym.where(sym.equal(x, -sym.max(-x)), ct, 0.0), term=2),
    kernel("np.sort", np.sort, lambda ct, y, x: sym.matmul(sym.cast(sym.equal(sym.reshape(x, (4, 1)), sym.reshape(y,
           (1, 4))), np.float64), ct)),
    kernel("np.fmax", lambda x: np.fmax(x, 0.1 * x), lambda ct, y, x: ct * sym.where(x > 0, 1.0, 0.1)),
    # real numbers only
    kernel("np.cbrt", np.cbrt, lambda ct, y, x: ct / (3.0 * y * y), batching=elementwise),
    kernel("math.gamma", each(math.lgamma), lambda ct, y, x: ct * _digamma(x), POSITIVE),
    kernel("math.erf at each entry", each(math.erf), lambda ct, y, x: ct * 2 / math.sqrt(math.pi) * sym.exp(-x * x)),
    kernel("np.arctan2", lambda x: np.arctan2(x, 2.0), lambda ct, y, x: ct * 2.0 / (x * x + 4.0), batching=elementwise),
    kernel("np.logaddexp", lambda x: np.logaddexp(x, -x), lambda ct, y, x: ct * sym.tanh(x), batching=elementwise),
    kernel("np.interp", lambda x: np.interp(x, KNOTS, HEIGHTS), table_rule),
    kernel("a table that is looked up", interpolated, table_rule),
    kernel("a cast to float64", lambda x: np.sin(x.astype(np.float64)), cosine),
    # solvers
    kernel("Newton's iterations", newton, cubic_rule),
    kernel("a fixed point to ten digits", loose, cubic_rule),
    kernel("bisection", each(bisected), cubic_rule),
    kernel("np.linalg.solve", lambda x: np.linalg.solve(x, ROW), solve_rule, MATRIX),
    kernel("np.linalg.inv", np.linalg.inv, inverse_rule, MATRIX),
    kernel("np.linalg.det", np.linalg.det, lambda ct, y, x: ct * y * inverse_transposed(x), MATRIX),
    kernel("np.linalg.slogdet", lambda x: np.linalg.slogdet(x)[1], lambda ct, y, x: ct * inverse_transposed(x), MATRIX),
    kernel("the largest singular value", lambda x: np.linalg.norm(x, 2) ** 2 + np.trace(x),
           lambda ct, y, x: ct * _largest_rule(x), MATRIX),
    # shorter numbers inside
    kernel("sin in float32", narrow(np.sin), cosine),
    kernel("sin in float32, elementwise", narrow(np.sin), cosine, batching=elementwise),
    kernel("exp in float32", narrow(np.exp), lambda ct, y, x: ct * y, batching=elementwise),
    kernel("tanh in float32", narrow(np.tanh), lambda ct, y, x: ct * (1.0 - y * y)),
    kernel("sqrt in float32", narrow(np.sqrt), lambda ct, y, x: ct / (2.0 * y), POSITIVE),
    kernel("log in float32", narrow(np.log), lambda ct, y, x: ct / x, POSITIVE),
    kernel("a quotient in float32", narrow(lambda x: 1 / (x * x + 1)), lambda ct, y, x: -2.0 * ct * x * y * y),
    kernel("softmax in float32", narrow(softmax), softmax_rule),
    kernel("a sum in float32", narrow(lambda x: (x * x).sum()), lambda ct, y, x: 2.0 * ct * x),
    kernel("a product of matrices in float32", narrow(lambda x: WEIGHTS.astype(np.float32) @ x), by_weights),
    kernel("a layer norm in float32", narrow(normalized), normalized_rule),
    kernel("float32 for one term", lambda x: x + 1e-3 * narrow(np.sin)(x), lambda ct, y, x: ct * (1.0 + 1e-3
           * sym.cos(x)), batching=elementwise),
    kernel("complex64 inside", lambda x: np.sin(x.astype(np.complex64 if np.iscomplexobj(x) else np.float32)), cosine,
           batching=elementwise),
    kernel("tanh in float16", narrow(np.tanh, np.float16), lambda ct, y, x: ct * (1.0 - y * y)),
    kernel("rounding to 1e-9", lambda x: np.round(np.sin(x), 9), cosine, batching=elementwise),
    kernel("rounding to 1e-6", lambda x: np.round(np.sin(x), 6), cosine),
    kernel("beside a large number", lambda x: np.sin(np.real(x)) + FAR, cosine, smooth=False),
    kernel("beside a large number, elementwise", lambda x: np.sin(x) + FAR, cosine, batching=elementwise),
    # declared to be what it is not
    kernel("a square, declared linear", lambda x: x * x, lambda ct, y, x: 2.0 * ct * x, linear="each"),
    kernel("an offset, declared linear", lambda x: 3.0 * x + np.sin(x), lambda ct, y, x: ct * (3.0 + sym.cos(x)),
           linear="each", batching=elementwise),
    kernel("a softmax, declared elementwise", softmax, softmax_rule, batching=elementwise),
    kernel("running sums, declared elementwise", lambda x: np.cumsum(x, axis=-1), sums_rule, batching=elementwise),
    kernel("a norm, declared trailing", np.linalg.norm, norm_rule, batching=trailing),
    kernel("neighbours, declared to read one place", neighbours, neighbours_rule, batching=loop, sparsity=same_place),
    kernel("neighbours, declared elementwise", neighbours, neighbours_rule, batching=elementwise),
]  # fmt: skip


def _digamma(x: Any) -> Any:
    """The derivative of log gamma, by its series behind a shift by 12."""
    total, shifted = sym.zeros_like(x), x
    for _ in range(12):
        total, shifted = total - sym.reciprocal(shifted), shifted + 1.0
    s = sym.reciprocal(shifted * shifted)
    series = s * (1 / 12 - s * (1 / 120 - s * (1 / 252 - s * (1 / 240 - s * (1 / 132)))))
    return total + sym.log(shifted) - 0.5 * sym.reciprocal(shifted) - series


def _largest_rule(x: Any) -> Any:
    """Of s^2 + trace, s the largest singular value: 2 A v v^T + 1, v by the power method."""
    gram = sym.matmul(sym.swap(x), x)
    v = x.tape.constant(np.ones((3, 1)))
    for _ in range(300):
        v = sym.matmul(gram, v)
        v = v / sym.sqrt(sym.sum(v * v))
    return 2.0 * sym.matmul(x, sym.matmul(v, sym.swap(v))) + np.eye(3)
