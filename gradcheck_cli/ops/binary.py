"""Elementwise operators of several operands that broadcast: arithmetic, comparisons, logic, bits."""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np

from gradcheck_cli.autodiff import symbolic as sym
from gradcheck_cli.autodiff.tape import Var
from gradcheck_cli.errors import NoGradientError, UnsupportedError
from gradcheck_cli.graph import Array
from gradcheck_cli.op import NONZERO, Interval, Op, binary, deciding
from gradcheck_cli.op.batching import Kernel
from gradcheck_cli.op.fusion import added, divide

_STORED = {("f", 4): np.dtype(np.float32), ("c", 8): np.dtype(np.complex64)}
_BITS = {  # dtypes of less than a byte, each of which NumPy holds in one
    "int4": 4, "uint4": 4, "float4_e2m1fn": 4, "int2": 2, "uint2": 2, "float6_e2m3fn": 6, "float6_e3m2fn": 6,
}  # fmt: skip


def power(x: Array, y: Array) -> Array:
    """x to the power y, in the dtype of x."""
    if x.dtype.kind == "c" or y.dtype.kind == "c":
        return np.power(x, y)
    if x.dtype.kind in "iu" and y.dtype.kind in "iu" and (y < 0).any():
        return np.power(x.astype(np.float64), y).astype(x.dtype)
    return np.power(x, y).astype(x.dtype, copy=False)


def power_near_real(x: Array, y: Array) -> Array:
    """x ** y near the real axis, continued by logarithms; constant in y where x is not positive."""
    base, exponent = x.real, y.real
    safe = np.where(base == 0, 1, base)
    change = y * np.log(np.where(base == 0, 1, x) / safe) + (y - exponent) * np.log(np.where(base > 0, base, 1))
    at_zero = np.where(exponent == 1, x, np.where(exponent == 0, 1, np.where(exponent > 1, 0, np.inf)))
    return np.where(base == 0, at_zero, np.power(base, exponent) * np.exp(change))


def power_vjp(ct: Var, z: Var, x: Var, y: Var) -> tuple[Var, Var | None]:
    """ct_x = ct y x^(y-1), 0 where both are 0; ct_y = ct z log(x), 0 for negative bases.

    The product stays whole where y is 0: its derivative by y is 1/x there.  No other x is compared, or 0 would be a kink.
    """
    exponent = sym.cast(y, x.dtype)
    both = sym.equal(sym.where(sym.equal(exponent, 0), x, 1), 0)
    by_x = ct * (exponent * x.tape.apply("Pow", sym.where(both, 1, x), exponent - 1.0))
    if y.dtype.kind not in "fc":
        return by_x, None
    positive = sym.not_(sym.equal(x, 0)) if x.dtype.kind == "c" else x > 0
    return by_x, ct * sym.where(positive, z * sym.log(sym.where(positive, x, 1)), 0)


def modulo(a: Array, b: Array, *, fmod: int = 0) -> Array:
    """The remainder with the sign of b, or of a if `fmod`."""
    return (np.fmod(a, b) if fmod else np.mod(a, b)).astype(np.result_type(a.dtype, b.dtype), copy=False)


def whole_part(a: Array, b: Array, *, fmod: int = 0) -> Array:
    """The number of times b goes into a."""
    return (np.trunc if fmod else np.floor)(a.real / b.real)


def larger(a: Array, b: Array) -> Array:
    """The operand with the larger real part, the first at a tie."""
    return np.where(a.real >= b.real, a, b)


def smaller(a: Array, b: Array) -> Array:
    """The operand with the smaller real part, the first at a tie."""
    return np.where(a.real <= b.real, a, b)


def folded(kernel: Kernel) -> Kernel:
    """A kernel of any number of operands from one of two."""
    return lambda *xs: reduce(kernel, xs)


def winner(kernel: Kernel) -> Kernel:
    """The branch of an extremum: the index of the operand it takes, the first at a tie."""

    def branch(*xs: Array) -> Array:
        best = reduce(kernel, xs)
        return np.argmax(np.stack([np.broadcast_to(x == best, best.shape) for x in xs]), axis=0)

    return branch


def extremum_vjp(ct: Var, y: Var, *xs: Var) -> tuple[Var, ...]:
    """ct to the first operand that equals the result."""
    cts, open_ = [], None
    for x in xs:
        hit = sym.equal(x, y)
        taken = hit if open_ is None else sym.and_(open_, hit)
        open_ = sym.not_(hit) if open_ is None else sym.and_(open_, sym.not_(hit))
        cts.append(sym.where(taken, ct, 0))
    return tuple(cts)


def divide_vjp(ct: Var, y: Var, a: Var, b: Var) -> tuple[Var, Var | None]:
    """ct / b and -ct y / b."""
    over = ct / b
    return over, -(over * y) if sym.wanted(b) else None


def mean(*xs: Array) -> Array:
    """The mean of the operands."""
    sum_of_all = reduce(np.add, xs)
    return (sum_of_all / np.asarray(len(xs), sum_of_all.dtype)).astype(sum_of_all.dtype, copy=False)


def bit_cast(x: Array, *, to: Any) -> Array:
    """The bits of x in a dtype of the same width."""
    stored = _stored(x.dtype, to)
    if stored == to:
        return x
    if object in (stored, to) or _bits(stored) != _bits(to):
        raise ValueError(f"{stored} of {_bits(stored)} bits cannot be read as {to} of {_bits(to)}")
    y = x.astype(stored, copy=False)
    return y.view(np.uint8) != 0 if to == np.bool_ else y.view(to)


def bit_cast_vjp(ct: Var, y: Var, x: Var, *, to: Any) -> tuple[Var]:
    """ct if the dtype is unchanged; between two kinds of floats there is no derivative."""
    if x.dtype != y.dtype:
        raise NoGradientError(f"no gradient for 'BitCast' from {x.dtype} to {to}", [(-1, "BitCast", "", y.name)])
    return (ct,)


def _stored(held: np.dtype[Any], to: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype of the model's numbers, which are held in dtype `held`.

    If floats are computed in float64, the width of `to` tells the width of the model's own.
    """
    if held.kind not in "fc" or held.itemsize == to.itemsize:
        return held
    if held == np.float64 and to.itemsize == 2:
        text = "of 16 bits as floats: float16 and bfloat16 are told apart in the model's own dtype only"
        raise UnsupportedError(f"BitCast to {to} {text} (--dtype model)", code="GC503")
    return _STORED.get((held.kind, to.itemsize), held)


def _bits(dtype: np.dtype[Any]) -> int:
    return _BITS.get(dtype.name, 8 * dtype.itemsize)


BINARY: list[Op] = [
    binary("Add", np.add, lambda ct, y, a, b: (ct, ct), linear="each"),
    binary("Sub", np.subtract, lambda ct, y, a, b: (ct, -ct if sym.wanted(b) else None), linear="each"),
    binary("Mul", np.multiply, lambda ct, y, a, b: (ct * b if sym.wanted(a) else None, ct * a if sym.wanted(b) else None),
           layer=True, bends=((0, 1),)),
    binary("Div", divide, divide_vjp, valid={1: NONZERO}, bends=((1,),)),
    binary("Pow", power, power_vjp, step=power_near_real, valid={0: Interval(0.1, 1.0, 0.0, np.inf, unless_whole=1)}),
    binary("Mod", modulo, lambda ct, y, a, b, **_: (ct, -ct * sym.round_((a - y) / b)),  # y = a - b n, n constant
           step=lambda a, b, fmod=0: a - b * whole_part(a, b, fmod=fmod), branch=whole_part, ordered=True,
           valid={1: Interval(0.5, 1.5)}),
    binary("Sum", added, lambda ct, y, *xs: (ct,) * len(xs), linear="each", elsewhere="one by one"),
    binary("Mean", mean, lambda ct, y, *xs: (ct / float(len(xs)),) * len(xs), linear="each", elsewhere="one by one"),
    binary("Max", folded(np.maximum), extremum_vjp, step=folded(larger), branch=winner(np.maximum), ordered=True,
           flat="larger", sides="winners"),
    binary("Min", folded(np.minimum), extremum_vjp, step=folded(smaller), branch=winner(np.minimum), ordered=True,
           sides="winners"),
    binary("Where", lambda at, x, y: np.where(at, x, y),
           lambda ct, z, at, x, y: (None, sym.where(at, ct, 0), sym.where(at, 0, ct)), linear=((1,), (2,)), like=1,
           cuts=deciding(0), moves="either", bends=((0,),), sides="condition", does="x where the condition holds, else y."),
    binary("Equal", np.equal, integral=(0,), sides="compares"),
    binary("Less", np.less, ordered=True, integral=(0,), sides="compares"),
    binary("LessOrEqual", np.less_equal, ordered=True, integral=(0,), sides="compares"),
    binary("Greater", np.greater, ordered=True, integral=(0,), sides="compares"),
    binary("GreaterOrEqual", np.greater_equal, ordered=True, integral=(0,), sides="compares"),
    binary("And", np.logical_and, integral=(0,)),
    binary("Or", np.logical_or, integral=(0,)),
    binary("Xor", np.logical_xor, integral=(0,)),
    binary("BitwiseAnd", np.bitwise_and),
    binary("BitwiseOr", np.bitwise_or),
    binary("BitwiseXor", np.bitwise_xor),
    binary("BitShift", lambda x, y, *, direction: (np.left_shift if direction == "LEFT" else np.right_shift)(x, y),
           does="Bits shifted to the LEFT or RIGHT."),
    binary("BitCast", bit_cast, bit_cast_vjp, stored=True, analytic=False),
]  # fmt: skip
