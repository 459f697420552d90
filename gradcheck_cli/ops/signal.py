"""Complex numbers and Fourier transforms, which ONNX lacks: operators of the domain `gradcheck`.

A cotangent pairs with a tangent as Re(ct dy), without conjugation.  A rule is the transpose under that
pairing, of real and imaginary parts where an operator is linear over the reals alone: Im(dx) = Re(-i dx),
so Imag gives -i ct.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gradcheck_cli.autodiff import symbolic as sym
from gradcheck_cli.autodiff.tape import Var
from gradcheck_cli.graph import Array
from gradcheck_cli.op import Op, Vjp
from gradcheck_cli.op.batching import Kernel, elementwise, trailing
from gradcheck_cli.op.sparsity import along
from gradcheck_cli.ops.shape import checked

DOMAIN = "gradcheck"


def complex_(re: Array, im: Array) -> Array:
    """re + i im, for operands that broadcast; infinities keep to their part."""
    y = np.empty(np.broadcast_shapes(re.shape, im.shape), np.result_type(re, im, np.complex64))
    y.real, y.imag = re, im
    return y


def complex_vjp(ct: Var, y: Var, re: Var, im: Var) -> tuple[Var, Var]:
    """Re(ct d re) and Re(ct i d im)."""
    return sym.real(ct), -sym.imag(ct)


def imag_vjp(ct: Var, y: Var, x: Var) -> tuple[Var | None]:
    """Im(dx) = Re(-i dx)."""
    return (sym.cast(ct, x.dtype) * -1j if x.dtype.kind == "c" else None,)


def angle_vjp(ct: Var, y: Var, x: Var) -> tuple[Var | None]:
    """Im(dx / x), and 0 at 0; a real number has no derivative."""
    if x.dtype.kind != "c":
        return (None,)
    at_0 = sym.equal(x, 0)
    return (sym.where(at_0, 0, sym.cast(ct, x.dtype) * -1j / sym.where(at_0, 1, x)),)


def beyond_cut(x: Array) -> Array:
    """Whether a number lies just under the negative real axis, where the angle jumps."""
    return (x.real < 0) & (x.imag < 0)


def transform(function: Kernel) -> Kernel:
    """A kernel from one of `np.fft`."""

    def kernel(x: Array, *, axis: int = -1, n: int | None = None) -> Array:
        length = x.shape[axis] if n is None else n
        if length < 1:
            raise ValueError(f"a transform has at least one point, not {length}")
        checked((length, *x.shape[:axis], *x.shape[axis + x.ndim + 1 :]))
        return np.asarray(function(x, n=length, axis=axis))

    return kernel


def transform_vjp(op: str) -> Vjp:
    """The same transform, since its matrix is symmetric; what was cut off or padded is undone."""

    def vjp(ct: Var, y: Var, x: Var, *, axis: int = -1, n: int | None = None) -> tuple[Var]:
        back = sym.custom(op, ct, axis=axis)
        missing = x.shape[axis] - y.shape[axis]
        if missing < 0:
            back = sym.slice(back, (0,), (x.shape[axis],), (axis,))
        elif missing:
            shape = list(back.shape)
            shape[axis] = missing
            back = sym.concat([back, sym.full(back.tape, shape, 0, back.dtype)], axis)
        return (back,)

    return vjp


def _own(name: str, forward: Kernel, vjp: Vjp, lift: Any = elementwise, **more: Any) -> Op:
    return Op(name, forward, vjp, lift, domain=DOMAIN, **more)


SIGNAL: list[Op] = [
    _own("Complex", complex_, complex_vjp, linear="each"),
    _own("Real", np.real, lambda ct, y, x: (ct,), linear="each"),
    _own("Imag", np.imag, imag_vjp, linear="each"),
    _own("Conj", np.conj, lambda ct, y, x: (sym.conj(ct),), linear="each"),
    _own("Angle", np.angle, angle_vjp, branch=beyond_cut, analytic=False),
    _own("FFT", transform(np.fft.fft), transform_vjp("FFT"), trailing, linear="each", normwise=True,
         reads=along("axis")),
    _own("IFFT", transform(np.fft.ifft), transform_vjp("IFFT"), trailing, linear="each", normwise=True,
         reads=along("axis")),
]  # fmt: skip
