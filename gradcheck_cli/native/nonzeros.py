"""Places of a Jacobian that may differ from zero: colors of its rows, and its places in the order of columns.

Places are sorted by row: row i has those in the columns `column[starts[i] : starts[i + 1]]`, of so many `columns`.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .selection import kernels, native

Array = NDArray[Any]

_BITS = 64  # of a word
_LOOK = 2000  # words that a row counts as besides its own


def first_free(starts: Array, column: Array, columns: int, most: int, longest: int) -> Array | None:
    """For each row the first color that no earlier row has which meets it in a column.

    None if that takes more than `most` colors, or if more than `longest` words of 64 colors have been looked at.
    """
    if not native():
        return _by_numpy(starts, column, columns, most, longest)
    colors = np.empty(len(starts) - 1, np.int64)
    return colors if kernels.first_free(starts, column, columns, most, _LOOK, longest, colors) else None


def _by_numpy(starts: Array, column: Array, columns: int, most: int, longest: int) -> Array | None:
    taken = np.zeros((columns, 1), np.uint64)  # colors of the rows that each column has met, as bits
    colors, looked = np.empty(len(starts) - 1, np.int64), 0
    for row, (start, stop) in enumerate(pairwise(starts.tolist())):
        mine = column[start:stop]
        met = int.from_bytes(np.bitwise_or.reduce(taken[mine], axis=0).astype("<u8").tobytes(), "little")
        color = (~met & (met + 1)).bit_length() - 1
        looked += _LOOK + len(mine) * taken.shape[1]
        if color >= most or looked > longest:
            return None
        if color >= _BITS * taken.shape[1]:
            taken = np.concatenate([taken, np.zeros_like(taken)], axis=1)
        taken[mine, color // _BITS] |= np.uint64(1 << color % _BITS)
        colors[row] = color
    return colors


def by_column(starts: Array, column: Array, columns: int) -> tuple[Array, Array]:
    """Row and column of each place, by column and then by row."""
    if not native():
        order = np.argsort(column, kind="stable")
        return np.repeat(np.arange(len(starts) - 1, dtype=np.int32), np.diff(starts))[order], column[order]
    found = np.empty_like(column), np.empty_like(column)
    kernels.by_column(starts, column, columns, *found)
    return found
