"""Comparison of results with those of another implementation: type, shape, then values."""

from __future__ import annotations

from typing import Any

import numpy as np


def assert_matches(actual: Any, expected: Any, *, rtol: float, atol: float, label: str = "") -> None:
    """Equal in dtype and shape; equal in value within tolerances where it holds floating-point numbers."""
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert actual.dtype == expected.dtype, f"{label}: dtype {actual.dtype}, not {expected.dtype}"
    assert actual.shape == expected.shape, f"{label}: shape {actual.shape}, not {expected.shape}"
    if inexact(expected.dtype):
        np.testing.assert_allclose(wide(actual), wide(expected), rtol=rtol, atol=atol, err_msg=label)
    else:
        np.testing.assert_array_equal(plain(actual), plain(expected), err_msg=label)


def assert_near(actual: Any, expected: Any, *, relative: float, label: str = "") -> None:
    """As `assert_matches`, with an error allowed relative to the largest finite entry of `expected`."""
    expected = np.asarray(expected)
    assert_matches(actual, expected, rtol=0.0, atol=relative * scale(expected), label=label)


def scale(values: np.ndarray[Any, Any]) -> float:
    """The largest finite magnitude of an array, at least a tiny one."""
    magnitudes = np.abs(wide(values)) if inexact(values.dtype) else np.zeros(1)
    return float(np.max(magnitudes[np.isfinite(magnitudes)], initial=1e-30))


def inexact(dtype: np.dtype[Any]) -> bool:
    """Holds floating-point or complex numbers, those of ml_dtypes included."""
    return dtype.kind in "fc" or dtype.name.startswith(("bfloat", "float"))


def wide(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The same numbers in a dtype that NumPy computes with."""
    return values.astype(np.complex128 if values.dtype.kind == "c" else np.float64)


def plain(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The same integers in a dtype that NumPy prints and compares."""
    return values.astype(np.int64) if values.dtype.name.lstrip("u").startswith(("int2", "int4")) else values
