"""Conversion to the float8 dtypes of ONNX, which saturate or overflow as asked for."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from gradcheck_cli.graph import Array


def to_float8(x: Array, to: Any, *, saturate: int = 1, round_mode: str = "up") -> Array:
    """x in a float8 dtype, rounded to the nearest; too large becomes the largest number if `saturate`."""
    wide = x.astype(np.float64)
    if np.dtype(to).name == "float8_e8m0fnu":
        return to_power_of_two(wide, saturate=saturate, round_mode=round_mode)
    largest = float(ml_dtypes.finfo(to).max)  # type: ignore[no-untyped-call]
    return (np.clip(wide, -largest, largest) if saturate else wide).astype(to)


def to_power_of_two(x: Array, *, saturate: int, round_mode: str) -> Array:
    """The magnitude of x as float8_e8m0fnu, which holds the exponents from -127 to 127 and NaN."""
    mantissa, exponent = np.frexp(np.abs(x))
    limits = {"up": 0.5, "nearest": np.nextafter(0.75, 0), "down": 1.0}
    if round_mode not in limits:
        raise ValueError(f"round_mode is {round_mode!r}; known are {', '.join(limits)}")
    exponent = exponent - 1 + (mantissa > limits[round_mode])
    exponent = np.where(x == 0, -128, np.where(np.isinf(x), 128, exponent))
    valid = np.abs(exponent) <= 127 if not saturate else np.ones(x.shape, bool)
    powers = np.ldexp(1.0, np.clip(exponent, -127, 127))
    return np.where(valid & ~np.isnan(x), powers, np.nan).astype(ml_dtypes.float8_e8m0fnu)
