"""Kernels that are expressions of their operands on floating-point numbers, to the last bit: they run in chains.

The table goes by the kernel itself: an operator that is handed in with another one is not taken for what it was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np

from gradcheck_cli.graph import Array
from gradcheck_cli.op.fusion import Expression, total

_MOST = 16  # operands of an expression


def divide(a: Array, b: Array) -> Array:
    """a / b; for integers the quotient truncated towards zero, 0 where b is 0."""
    if a.dtype.kind not in "iu":
        return np.divide(a, b)
    safe = np.where(b == 0, np.ones((), b.dtype), b)
    quotient = a // safe
    return (quotient + ((a % safe != 0) & ((a < 0) != (safe < 0)))).astype(a.dtype)


def reciprocal(x: Array) -> Array:
    """1 / x in the dtype of x."""
    return (np.ones((), x.dtype) / x).astype(x.dtype, copy=False)


def added(*xs: Array) -> Array:
    """The sum of any number of operands."""
    return reduce(np.add, xs)


EXACT: Mapping[Callable[..., Any], Callable[..., Expression]] = {
    np.add: lambda a, b: ("add", a, b),
    np.subtract: lambda a, b: ("subtract", a, b),
    np.multiply: lambda a, b: ("multiply", a, b),
    np.negative: lambda x: ("negate", x, x),
    np.sqrt: lambda x: ("root", x, x),
    divide: lambda a, b: ("divide", a, b),
    reciprocal: lambda x: ("divide", 1.0, x),
    added: total,
}


def expressed(kernel: Callable[..., Any], operands: Sequence[Expression]) -> Expression | None:
    """What a kernel makes of operands; None where that is no expression, or one of too many of them."""
    expression = EXACT.get(kernel)
    return None if expression is None or len(operands) > _MOST else expression(*operands)
