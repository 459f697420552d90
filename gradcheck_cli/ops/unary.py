"""Elementwise operators of one operand: arithmetic, powers, trigonometry, rounding; erf and log1p of complex arrays."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from gradcheck_cli.autodiff import symbolic as sym
from gradcheck_cli.autodiff.tape import Var
from gradcheck_cli.graph import Array
from gradcheck_cli.graph.containers import mapped
from gradcheck_cli.op import INSIDE_ONE, NONZERO, POSITIVE, Interval, Op, rounding, unary
from gradcheck_cli.op.batching import Kernel
from gradcheck_cli.op.fusion import reciprocal

# Rational approximations of erf by intervals of |x| (Sun's fdlibm, s_erf.c, error below 1 ulp), lowest power first.
_NEAR_0 = (
    [1.28379167095512558561e-01, -3.25042107247001499370e-01, -2.84817495755985104766e-02,
     -5.77027029648944159157e-03, -2.37630166566501626084e-05],
    [1.0, 3.97917223959155352819e-01, 6.50222499887672944485e-02, 5.08130628187576562776e-03,
     1.32494738004321644526e-04, -3.96022827877536812320e-06],
)  # fmt: skip
_NEAR_1 = (
    [-2.36211856075265944077e-03, 4.14856118683748331666e-01, -3.72207876035701323847e-01, 3.18346619901161753674e-01,
     -1.10894694282396677476e-01, 3.54783043256182359371e-02, -2.16637559486879084300e-03],
    [1.0, 1.06420880400844228286e-01, 5.40397917702171048937e-01, 7.18286544141962662868e-02,
     1.26171219808761642112e-01, 1.36370839120290507362e-02, 1.19844998467991074170e-02],
)  # fmt: skip
_MIDDLE = (
    [-9.86494403484714822705e-03, -6.93858572707181764372e-01, -1.05586262253232909814e+01,
     -6.23753324503260060396e+01, -1.62396669462573470355e+02, -1.84605092906711035994e+02,
     -8.12874355063065934246e+01, -9.81432934416914548592e+00],
    [1.0, 1.96512716674392571292e+01, 1.37657754143519042600e+02, 4.34565877475229228821e+02,
     6.45387271733267880336e+02, 4.29008140027567833386e+02, 1.08635005541779435134e+02,
     6.57024977031928170135e+00, -6.04244152148580987438e-02],
)  # fmt: skip
_FAR = (
    [-9.86494292470009928597e-03, -7.99283237680523006574e-01, -1.77579549177547519889e+01,
     -1.60636384855821916062e+02, -6.37566443368389627722e+02, -1.02509513161107724954e+03,
     -4.83519191608651397019e+02],
    [1.0, 3.03380607434824582924e+01, 3.25792512996573918826e+02, 1.53672958608443695994e+03,
     3.19985821950859553908e+03, 2.55305040643316442583e+03, 4.74528541206955367215e+02,
     -2.24409524465858183362e+01],
)  # fmt: skip
_ERF_1 = 8.45062911510467529297e-01
_NEAR_AXIS = 0.05  # imaginary parts up to which approximations for the real axis hold
_TERMS = 48  # terms of Weideman's series, for 1e-14


def erf(x: Array) -> Array:
    """The error function, elementwise."""
    if x.dtype.kind not in "fc":
        return erf(x.astype(np.float32)).astype(x.dtype)
    wide = x.astype(np.result_type(x.dtype, np.float64), copy=False)
    size = np.abs(wide.real)
    sign = np.where(wide.real < 0, -1.0, 1.0)
    positive = np.where(np.isnan(size), wide, wide * sign)
    result = np.where(np.isnan(size), wide, np.ones_like(wide))
    _fill(result, size < 0.84375, positive, lambda z: z + z * _ratio(_NEAR_0, z * z))
    _fill(result, (size >= 0.84375) & (size < 1.25), positive, lambda z: _ERF_1 + _ratio(_NEAR_1, z - 1))
    _fill(result, (size >= 1.25) & (size < 1 / 0.35), positive, lambda z: 1 - _tail(_MIDDLE, z))
    _fill(result, (size >= 1 / 0.35) & (size < 28), positive, lambda z: 1 - _tail(_FAR, z))
    _fill(result, np.abs(wide.imag) > _NEAR_AXIS, positive, _erf_off_axis)
    return (result * sign).astype(x.dtype, copy=False)


def _erf_off_axis(z: Array) -> Array:
    """erf of complex numbers with positive real part: by its power series near 0, else by the Faddeeva function."""
    near = np.where(np.abs(z) < 1.25, z, 0)
    term, powers = near, near
    for n in range(1, 30):
        term = -term * near * near / n
        powers = powers + term / (2 * n + 1)
    return np.where(np.abs(z) < 1.25, powers * (2 / np.sqrt(np.pi)), 1 - np.exp(-z * z) * _faddeeva(1j * z))


def _faddeeva(z: Array) -> Array:
    """exp(-z^2) erfc(-i z) in the upper half plane, by Weideman's series (SIAM J. Numer. Anal. 31, 1994)."""
    width = np.sqrt(_TERMS / np.sqrt(2))
    t = width * np.tan(np.arange(1 - 2 * _TERMS, 2 * _TERMS) * np.pi / (4 * _TERMS))
    samples = np.concatenate([[0], np.exp(-t * t) * (width * width + t * t)])
    coefficients = np.fft.fft(np.fft.fftshift(samples)).real[1 : _TERMS + 1] / (4 * _TERMS)
    below = 1 / (width - 1j * z)
    series = _polynomial(coefficients.tolist(), (width + 1j * z) * below)
    return (2 * series * below + 1 / np.sqrt(np.pi)) * below


def log1p(z: Array) -> Array:
    """log(1 + z), accurate for a small complex z too, whose real part NumPy loses."""
    if z.dtype.kind != "c":
        return np.log1p(z)
    size = np.log1p(z.real * (2 + z.real) + z.imag * z.imag) / 2
    return (size + 1j * np.arctan2(z.imag, 1 + z.real)).astype(z.dtype, copy=False)


def _tail(coefficients: tuple[list[float], list[float]], z: Array) -> Array:
    """erfc for large z."""
    return np.exp(-z * z - 0.5625 + _ratio(coefficients, 1 / (z * z))) / z


def _ratio(coefficients: tuple[list[float], list[float]], z: Array) -> Array:
    return _polynomial(coefficients[0], z) / _polynomial(coefficients[1], z)


def _polynomial(coefficients: list[float], z: Array) -> Array:
    result = np.full_like(z, coefficients[-1])
    for c in coefficients[-2::-1]:
        result = result * z + c
    return result


def _fill(result: Array, where: Array, x: Array, function: object) -> None:
    if where.any():
        result[where] = function(x[where])  # type: ignore[operator]


def absolute(x: Array) -> Array:
    """|x| near the real axis."""
    return np.where(x.real < 0, -x, x)


def absolute_vjp(ct: Var, y: Var, x: Var) -> Var:
    """ct sign(x); for complex x ct conj(x) / |x|, and 0 at 0."""
    if x.dtype.kind != "c":
        return ct * sym.sign(x)
    zero = sym.equal(y, 0)
    return sym.where(zero, 0, ct / sym.where(zero, 1, y)) * sym.conj(x)


def tanh_vjp(ct: Var, y: Var, x: Var) -> Var:
    """ct / cosh(x)^2, without the cancellation of 1 - y^2 where y is near 1."""
    return ct * (sym.sigmoid(2.0 * x) * sym.sigmoid(-2.0 * x) * 4.0)


def is_inf(x: Array, *, detect_negative: int = 1, detect_positive: int = 1) -> Array:
    """True for infinite entries of the requested signs."""
    negative, positive = x == -np.inf, x == np.inf
    return (negative & bool(detect_negative)) | (positive & bool(detect_positive))


def _stepwise(name: str, forward: Kernel, of_reals: Kernel, **more: Any) -> Op:
    """An operator that is constant between steps, and takes the real part of a complex number."""
    step, branch = (lambda x: of_reals(x.real) + 0 * x), (lambda x: of_reals(x.real))
    return unary(name, forward, step=step, branch=branch, ordered=True, cuts=rounding, **more)


UNARY: list[Op] = [
    unary("Abs", np.abs, absolute_vjp, step=absolute, branch=lambda x: np.sign(x.real), sides="sign"),
    unary("Neg", np.negative, lambda ct, y, x: -ct, linear="each"),
    unary("Reciprocal", reciprocal, lambda ct, y, x: -ct * y * y, valid={0: NONZERO}),
    unary("Sqrt", np.sqrt, lambda ct, y, x: ct / (2.0 * y), valid={0: POSITIVE}),
    unary("Exp", np.exp, lambda ct, y, x: ct * y),
    unary("Log", np.log, lambda ct, y, x: ct / x, valid={0: POSITIVE}),
    unary("Erf", erf, lambda ct, y, x: ct * float(2 / np.sqrt(np.pi)) * sym.exp(-x * x), elsewhere="to one"),
    unary("Sin", np.sin, lambda ct, y, x: ct * sym.cos(x)),
    unary("Cos", np.cos, lambda ct, y, x: -ct * sym.sin(x)),
    unary("Tan", np.tan, lambda ct, y, x: ct * (1.0 + y * y)),
    unary("Asin", np.arcsin, lambda ct, y, x: ct / sym.sqrt((1.0 - x) * (1.0 + x)), valid={0: INSIDE_ONE}),
    unary("Acos", np.arccos, lambda ct, y, x: -ct / sym.sqrt((1.0 - x) * (1.0 + x)), valid={0: INSIDE_ONE}),
    unary("Atan", np.arctan, lambda ct, y, x: ct / (1.0 + x * x)),
    unary("Sinh", np.sinh, lambda ct, y, x: ct * sym.cosh(x)),
    unary("Cosh", np.cosh, lambda ct, y, x: ct * sym.sinh(x)),
    unary("Tanh", np.tanh, tanh_vjp, squashes=True, slope=lambda y: 1 - y * y, elsewhere="to one"),
    unary("Asinh", np.arcsinh, lambda ct, y, x: ct / sym.sqrt(x * x + 1.0)),
    unary("Acosh", np.arccosh, lambda ct, y, x: ct / (sym.sqrt(x - 1.0) * sym.sqrt(x + 1.0)),
          valid={0: Interval(1.1, 3.0, 1.0, np.inf)}),
    unary("Atanh", np.arctanh, lambda ct, y, x: ct / ((1.0 - x) * (1.0 + x)), valid={0: INSIDE_ONE}),
    unary("Identity", lambda x: x, lambda ct, y, x: ct, linear="each", containers=partial(mapped, sym.identity),
          moves="all"),
    _stepwise("Floor", np.floor, np.floor, straight="rounds"),
    _stepwise("Ceil", np.ceil, np.ceil, straight="rounds"),
    _stepwise("Round", lambda x: np.rint(x).astype(x.dtype, copy=False), np.rint, straight="rounds",
              does="x rounded to the nearest integer, halves to the even one."),
    _stepwise("Sign", np.sign, np.sign, does="-1, 0 or 1; NaN stays NaN."),
    unary("IsNaN", np.isnan, integral=(0,)),
    unary("IsInf", is_inf, integral=(0,)),
    unary("Not", np.logical_not, integral=(0,)),
    unary("BitwiseNot", np.invert),
]  # fmt: skip
