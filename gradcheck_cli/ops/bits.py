"""BitCast: the bits of numbers read as another dtype.

Where floats are computed in float64, those of a model are rounded to the width that the other dtype tells.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gradcheck_cli.autodiff.tape import Var
from gradcheck_cli.errors import NoGradientError, UnsupportedError
from gradcheck_cli.graph import Array
from gradcheck_cli.op import Op
from gradcheck_cli.op.batching import elementwise

_STORED = {("f", 4): np.dtype(np.float32), ("c", 8): np.dtype(np.complex64)}
_BITS = {
    "int4": 4,
    "uint4": 4,
    "float4_e2m1fn": 4,
    "int2": 2,
    "uint2": 2,
    "float6_e2m3fn": 6,
    "float6_e3m2fn": 6,
}  # NumPy gives each a byte


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
    """Through unchanged bits only; between two kinds of floats there is no derivative."""
    if x.dtype != y.dtype:
        raise NoGradientError(f"no gradient for 'BitCast' from {x.dtype} to {to}", [(-1, "BitCast", "", y.name)])
    return (ct,)


def _stored(held: np.dtype[Any], to: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype of the model's numbers, which are held in this one."""
    if held.kind not in "fc" or held.itemsize == to.itemsize:
        return held
    if held == np.float64 and to.itemsize == 2:
        text = "of 16 bits as floats: float16 and bfloat16 are told apart in the model's own dtype only"
        raise UnsupportedError(f"BitCast to {to} {text} (--dtype model)", code="GC503")
    return _STORED.get((held.kind, to.itemsize), held)


def _bits(dtype: np.dtype[Any]) -> int:
    return _BITS.get(dtype.name, 8 * dtype.itemsize)


BITS: list[Op] = [Op("BitCast", bit_cast, bit_cast_vjp, elementwise, stored=True, analytic=False)]
