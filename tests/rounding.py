"""Bounds between two right results: by their dtype and the number of roundings, whatever the processor.

A sum of n products, added in any order and with multiplications fused or not, is off by at most `gamma(dtype, n)` times
the sum of the magnitudes of its terms (Higham, Accuracy and Stability of Numerical Algorithms, section 3.1). Vector
units of other widths add in other orders, so that a bound that is any tighter holds on some machines alone.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from tests.ops.comparison import inexact, wide

FUNCTION = 8  # roundings in a value of sin, exp or tanh: libraries promise four units in the last place


def gamma(dtype: Any, roundings: int) -> float:
    """The relative error of so many roundings in a row, at most."""
    total = roundings * float(ml_dtypes.finfo(np.dtype(dtype)).eps) / 2
    return total / (1 - total)


def assert_rounded(found: Any, exact: Any, *, roundings: int, of: Any = None, label: str = "") -> None:
    """Two arrays are the same up to so many roundings of numbers as large as `of`.

    `of` is the magnitude that is rounded, an array or a number: for a sum that of its terms, added. It is the largest
    entry where nothing is said, which is right where terms do not cancel each other in all entries. Roundings are
    those of the less precise of both dtypes. NaN and infinities have to be the same.
    """
    found, exact = np.asarray(found), np.asarray(exact)
    assert found.shape == exact.shape, f"{label}: shape {found.shape}, not {exact.shape}"
    if not inexact(exact.dtype):
        np.testing.assert_array_equal(found, exact, err_msg=label)
        return
    finite = np.isfinite(wide(exact))
    np.testing.assert_array_equal(wide(found)[~finite], wide(exact)[~finite], err_msg=label)
    size = np.max(np.abs(wide(exact)[finite]), initial=0.0) if of is None else np.broadcast_to(of, exact.shape)[finite]
    error = np.abs(wide(found)[finite] - wide(exact)[finite])
    unit = max(gamma(array.dtype, roundings) for array in (found, exact) if inexact(array.dtype))
    tiny = max(float(ml_dtypes.finfo(array.dtype).tiny) for array in (found, exact) if inexact(array.dtype))
    allowed = unit * size + roundings * tiny
    assert np.all(error <= allowed), f"{label}: off by up to {np.max(error - allowed):.2g} more than rounding explains"
