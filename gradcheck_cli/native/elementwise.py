"""Fused elementwise operations: exact ones, one after the other, on blocks of arrays that stay in the cache."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .selection import kernels, native

Array = NDArray[Any]

OPERATIONS: Mapping[str, Callable[..., Any]] = {  # in the order of their numbers in C++, with NumPy's equivalent
    "copy": lambda x, y, z: x,
    "negate": lambda x, y, z: -x,
    "magnitude": lambda x, y, z: np.abs(x),
    "root": lambda x, y, z: np.sqrt(x),
    "add": lambda x, y, z: x + y,
    "subtract": lambda x, y, z: x - y,
    "multiply": lambda x, y, z: x * y,
    "divide": lambda x, y, z: x / y,
    "larger": lambda x, y, z: np.fmax(x, y),
    "smaller": lambda x, y, z: np.fmin(x, y),
    "less": lambda x, y, z: (x < y).astype(x.dtype),
    "select": lambda x, y, z: np.where(z != 0, x, y),
}
NAMES = tuple(OPERATIONS)
_DTYPES = {np.dtype(np.float32): False, np.dtype(np.float64): True}


def fused(
    code: bytes, operands: Sequence[Array], shape: tuple[int, ...], results: int, hidden: int
) -> list[Array] | None:
    """The results of some instructions on operands that broadcast over `shape`: `results` arrays, bit for bit NumPy's.

    An instruction is five bytes: an operation and, by number, the place of its result and of the three values it takes,
    needed or not.  Places are numbered through operands, results, then `hidden` values.  None unless operands are all
    float32 or all float64, and if NumPy is to run everything.
    """
    dtype = operands[0].dtype
    if not native() or dtype not in _DTYPES or any(x.dtype != dtype for x in operands):
        return None
    made = [np.empty(shape, dtype) for _ in range(results)]
    if not kernels.chain(code, [*operands, *made], len(operands), hidden, _DTYPES[dtype]):
        kernels.chain(code, [*(x.copy() for x in operands), *made], len(operands), hidden, _DTYPES[dtype])
    return made


def by_numpy(code: bytes, operands: Sequence[Array], shape: tuple[int, ...], results: int, hidden: int) -> list[Array]:
    """The same in NumPy, for any dtype: an operation at a time over whole arrays."""
    values: list[Any] = [*operands, *[None] * (results + hidden)]
    for number, to, *read in zip(*[iter(code)] * 5, strict=True):
        values[to] = OPERATIONS[NAMES[number]](*(values[i] for i in read))
    return [np.array(np.broadcast_to(y, shape)) for y in values[len(operands) : len(operands) + results]]
