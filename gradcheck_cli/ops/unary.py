"""Elementwise operators of one operand: arithmetic, powers, trigonometry, rounding."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradcheck_cli.autodiff import symbolic as sym
from gradcheck_cli.autodiff.tape import Var
from gradcheck_cli.graph import Array
from gradcheck_cli.graph.containers import mapped
from gradcheck_cli.op import Op, rounding, unary
from gradcheck_cli.op.batching import Kernel
from gradcheck_cli.op.exact import reciprocal
from gradcheck_cli.ops.special import erf


def absolute(x: Array) -> Array:
    """|x| near the real axis."""
    return np.where(x.real < 0, -x, x)


def absolute_vjp(ct: Var, y: Var, x: Var) -> Var:
    """For complex x the derivative of the magnitude: conj(x) / |x|, and 0 at 0."""
    if x.dtype.kind != "c":
        return ct * sym.sign(x)
    zero = sym.equal(y, 0)
    return sym.where(zero, 0, ct / sym.where(zero, 1, y)) * sym.conj(x)


def tanh_vjp(ct: Var, y: Var, x: Var) -> Var:
    """1 / cosh(x)^2, without the cancellation of 1 - y^2 where y is near 1."""
    return ct * (sym.sigmoid(2.0 * x) * sym.sigmoid(-2.0 * x) * 4.0)


def sign(x: Array) -> Array:
    """-1, 0 or 1; NaN stays."""
    return np.sign(x)


def round_even(x: Array) -> Array:
    """To the nearest integer, halves to the even one."""
    return np.rint(x).astype(x.dtype, copy=False)


def is_inf(x: Array, *, detect_negative: int = 1, detect_positive: int = 1) -> Array:
    """Infinite, of the signs asked for."""
    negative, positive = x == -np.inf, x == np.inf
    return (negative & bool(detect_negative)) | (positive & bool(detect_positive))


def identity_inside(value: Any) -> Any:
    """The same sequence, optional or map, of new tensors."""
    return mapped(sym.identity, value)


def _real_part(kernel: Kernel) -> Kernel:
    return lambda x: kernel(x.real) + 0 * x


UNARY: list[Op] = [
    unary("Abs", np.abs, absolute_vjp, step=absolute, branch=lambda x: np.sign(x.real)),
    unary("Neg", np.negative, lambda ct, y, x: -ct, linear="each"),
    unary("Reciprocal", reciprocal, lambda ct, y, x: -ct * y * y),
    unary("Sqrt", np.sqrt, lambda ct, y, x: ct / (2.0 * y)),
    unary("Exp", np.exp, lambda ct, y, x: ct * y),
    unary("Log", np.log, lambda ct, y, x: ct / x),
    unary("Erf", erf, lambda ct, y, x: ct * float(2 / np.sqrt(np.pi)) * sym.exp(-x * x)),
    unary("Sin", np.sin, lambda ct, y, x: ct * sym.cos(x)),
    unary("Cos", np.cos, lambda ct, y, x: -ct * sym.sin(x)),
    unary("Tan", np.tan, lambda ct, y, x: ct * (1.0 + y * y)),
    unary("Asin", np.arcsin, lambda ct, y, x: ct / sym.sqrt((1.0 - x) * (1.0 + x))),
    unary("Acos", np.arccos, lambda ct, y, x: -ct / sym.sqrt((1.0 - x) * (1.0 + x))),
    unary("Atan", np.arctan, lambda ct, y, x: ct / (1.0 + x * x)),
    unary("Sinh", np.sinh, lambda ct, y, x: ct * sym.cosh(x)),
    unary("Cosh", np.cosh, lambda ct, y, x: ct * sym.sinh(x)),
    unary("Tanh", np.tanh, tanh_vjp),
    unary("Asinh", np.arcsinh, lambda ct, y, x: ct / sym.sqrt(x * x + 1.0)),
    unary("Acosh", np.arccosh, lambda ct, y, x: ct / (sym.sqrt(x - 1.0) * sym.sqrt(x + 1.0))),
    unary("Atanh", np.arctanh, lambda ct, y, x: ct / ((1.0 - x) * (1.0 + x))),
    unary("Identity", lambda x: x, lambda ct, y, x: ct, linear="each", compound=identity_inside),
    unary("Floor", np.floor, step=_real_part(np.floor), branch=lambda x: np.floor(x.real), ordered=True, cuts=rounding),
    unary("Ceil", np.ceil, step=_real_part(np.ceil), branch=lambda x: np.ceil(x.real), ordered=True, cuts=rounding),
    unary("Round", round_even, step=_real_part(np.rint), branch=lambda x: np.rint(x.real), ordered=True, cuts=rounding),
    unary("Sign", sign, step=_real_part(np.sign), branch=lambda x: np.sign(x.real), ordered=True, cuts=rounding),
    unary("IsNaN", np.isnan),
    unary("IsInf", is_inf),
    unary("Not", np.logical_not),
    unary("BitwiseNot", np.invert),
]
