"""Passes over whole arrays that do all there is to do with an entry at once, bit for bit as NumPy does it by steps.

Fused elementwise operations are exact ones, one after the other, on blocks of arrays that stay in the cache.

The verdict asks three things of every entry of both sides of a Jacobian, `(rows, columns)` each.  Its `Sizes` are what
entries are compared with: the largest magnitude in each column, `(columns,)`, and where rows are not of one scale the
largest effect, `(columns,)`, and the scales, `(rows,)`.  Where the kernels do not take the arrays, a pass gives None.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .selection import kernels, native

Array = NDArray[Any]
Sizes = tuple[Array, Array | None, Array | None]

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


def raised(theoretical: Array, numerical: Array, sizes: Sizes) -> bool:
    """Raises the sizes of columns, in place, to those of both sides; scales are factors of rows here."""
    if not _taken(theoretical, numerical, sizes):
        return False
    kernels.raise_largest(theoretical, numerical, *sizes)
    return True


def screened(
    theoretical: Array, numerical: Array, sizes: Sizes | None, slack: float, negligible: float, atol: float, open_: int
) -> Array | None:
    """0 for each entry whose difference and `slack` times its magnitude are at most a share of its size and `atol`.

    The others are `open_`, in int8.
    """
    if sizes is None or not _taken(theoretical, numerical, sizes):
        return None
    status = np.empty(theoretical.shape, np.int8)
    kernels.screen(theoretical, numerical, *sizes, slack, negligible, atol, open_, status)
    return status


def farthest(
    theoretical: Array, numerical: Array, sizes: Sizes | None, ground: float, floor: float
) -> tuple[float, float] | None:
    """The largest difference, and the largest relative to an entry, or to shares of its size.

    The shares are `ground` and 1 / `floor`, of which the larger counts.  None if some difference is NaN, too.
    """
    if sizes is None or not _taken(theoretical, numerical, sizes):
        return None
    found = kernels.farthest(theoretical, numerical, *sizes, ground, floor)
    return None if found is None else (found[0], found[1])


def _taken(theoretical: Array, numerical: Array, sizes: Sizes) -> bool:
    """True for real matrices in double precision, whose columns lie side by side, and vectors in order."""
    if not native() or not theoretical.size:
        return False
    if theoretical.ndim != 2 or theoretical.shape != numerical.shape or (sizes[1] is None) != (sizes[2] is None):
        return False
    sides = all(a.dtype == np.float64 and a.strides[1] == 8 and a.flags.aligned for a in (theoretical, numerical))
    rows, columns = theoretical.shape
    return sides and all(
        a is None or (a.dtype == np.float64 and a.flags.c_contiguous and a.shape == (length,))
        for a, length in zip(sizes, (columns, columns, rows), strict=True)
    )
