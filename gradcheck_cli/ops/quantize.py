"""Quantized numbers: to and from integers of 16, 8, 4 and 2 bits and the small floats, and products of integers.

Nothing flows through an integer, by nature: quantizing has no gradient, dequantizing has one by its scale.  Products
are sums of integers, which float64 holds exactly.  `to_float8` converts to ONNX's float8 dtypes.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from gradcheck_cli.autodiff import symbolic as sym
from gradcheck_cli.autodiff.tape import Var
from gradcheck_cli.graph import Array, is_inexact
from gradcheck_cli.op import Op, attributes_of, composite, from_end, quantized, require_known, rounding, rounding_into

ROUNDED, COUNTED = ("gradcheck", "Rounded"), ("gradcheck", "Counted")


def quantize(
    x: Var, scale: Var, zero_point: Var | None = None, *, axis: int = 1, block_size: int = 0,
    output_dtype: Any = None, saturate: int = 1,
) -> Var:  # fmt: skip
    """x / scale + zero point, rounded half to even and clamped to the target's range.

    A scale holds for all of x, for an entry along the axis, or for a block of `block_size` entries along it.
    """
    scaled = sym.cast(x, scale.dtype) / _spread(scale, x.shape, axis, block_size)
    zero = None if zero_point is None else _spread(zero_point, x.shape, axis, block_size)
    dtype = np.dtype(output_dtype or np.uint8) if zero_point is None else zero_point.dtype
    return _coded(scaled, zero, dtype, saturate)


def bind_axis(metadata: dict[str, Any], x: Array, scale: Array, *more: Array | None) -> dict[str, Any]:
    """Metadata with the axis settled; a single scale needs none."""
    if scale.size == 1 and not metadata.get("block_size"):
        return {**metadata, "axis": 0}
    return {**metadata, "axis": from_end(metadata.get("axis", 1), x.ndim) + x.ndim}


def dequantize(
    x: Var, scale: Var, zero_point: Var | None = None, *, axis: int = 1, block_size: int = 0,
    output_dtype: Any = None,
) -> Var:  # fmt: skip
    """(x - zero point) scale."""
    exact = np.int32 if _is_integer(x.dtype) else scale.dtype
    number = sym.cast(x, exact)
    if zero_point is not None:
        number = number - sym.cast(_spread(zero_point, x.shape, axis, block_size), exact)
    y = sym.cast(number, scale.dtype) * _spread(scale, x.shape, axis, block_size)
    return sym.cast(y, output_dtype or scale.dtype)


def dynamic_quantize(x: Var) -> tuple[Var, Var, Var]:
    """x as uint8, with the scale and zero point that cover its range and 0 (a scale of 1 if all is 0).

    So only what is rounded can be out of uint8's range: unrounded, the ends of the range are no bounds.
    """
    high = sym.maximum(sym.max(x, keepdims=False), 0.0)
    low = sym.minimum(x.tape.apply("ReduceMin", x, keepdims=0), 0.0)
    spread = (high - low) / 255.0
    scale = sym.where(sym.equal(spread, 0), 1, spread)
    zero = _coded(-low / scale, None, np.dtype(np.uint8), 0)
    return _coded(x / scale, zero, np.dtype(np.uint8), 0), scale, zero


def matmul_integer(a: Var, b: Var, a_zero_point: Var | None = None, b_zero_point: Var | None = None) -> Var:
    """The product of integer matrices minus their zero points, as int32."""
    wide = _width(a, b)
    return _counted(sym.matmul(_centered(a, _rows(a_zero_point), wide), _centered(b, b_zero_point, wide)))


def conv_integer(
    x: Var, w: Var, x_zero_point: Var | None = None, w_zero_point: Var | None = None, *,
    auto_pad: str = "NOTSET", dilations: tuple[int, ...] = (), group: int = 1, kernel_shape: tuple[int, ...] = (),
    pads: tuple[int, ...] = (), strides: tuple[int, ...] = (),
) -> Var:  # fmt: skip
    """The convolution of integers minus their zero points, as int32; the padding is the zero point."""
    window = {"auto_pad": auto_pad, "group": group, "dilations": dilations, "kernel_shape": kernel_shape,
              "pads": pads, "strides": strides}  # fmt: skip
    return _counted(_convolved(x, w, x_zero_point, w_zero_point, {k: v for k, v in window.items() if v}))


def _convolved(x: Var, w: Var, x_zero: Var | None, w_zero: Var | None, window: dict[str, Any]) -> Var:
    """The convolution of integers minus their zero points."""
    wide = _width(x, w)
    filters = _centered(w, _channels(w_zero, w.ndim), wide)
    return x.tape.apply("Conv", _centered(x, x_zero, wide), filters, **window)


def qlinear_matmul(
    a: Var, a_scale: Var, a_zero_point: Var, b: Var, b_scale: Var, b_zero_point: Var, y_scale: Var,
    y_zero_point: Var,
) -> Var:  # fmt: skip
    """The product of quantized matrices, quantized."""
    wide = _width(a, b)
    product = sym.matmul(_centered(a, _rows(a_zero_point), wide), _centered(b, b_zero_point, wide))
    scale = sym.cast(_rows(a_scale), wide) * sym.cast(b_scale, wide) / sym.cast(_rows(y_scale), wide)
    return _coded(product * scale, _rows(y_zero_point), y_zero_point.dtype, 1)


@attributes_of(conv_integer)
def qlinear_conv(
    x: Var, x_scale: Var, x_zero_point: Var, w: Var, w_scale: Var, w_zero_point: Var, y_scale: Var,
    y_zero_point: Var, b: Var | None = None, **window: Any,
) -> Var:  # fmt: skip
    """The convolution of quantized numbers, quantized; the bias has the scale of x times that of w."""
    wide = _width(x, w)
    product = _convolved(x, w, x_zero_point, w_zero_point, window)
    if b is not None:
        product = product + _channels(sym.cast(b, wide), w.ndim - 1)
    scale = sym.cast(x_scale, wide) * _channels(sym.cast(w_scale, wide), w.ndim - 1) / sym.cast(y_scale, wide)
    return _coded(product * scale, y_zero_point, y_zero_point.dtype, 1)


def rounded(x: Var, zero_point: Var | None = None, *, dtype: Any, saturate: int = 1) -> Var:
    """x rounded to the numbers of a dtype; integers are clamped in any case."""
    if _is_integer(dtype):
        x, saturate = sym.round_(x), 1
    return sym.cast(straight(x, zero_point, dtype=dtype, saturate=saturate), dtype)


def straight(x: Var, zero_point: Var | None = None, *, dtype: Any, saturate: int = 1) -> Var:
    """x moved to the zero point and, with `saturate`, clamped to the range of a dtype, without rounding."""
    integer = _is_integer(dtype)
    moved = x + sym.cast(zero_point, x.dtype) if integer and zero_point is not None else x
    if not saturate:
        return moved
    limits = ml_dtypes.iinfo(dtype) if integer else ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    largest = float(limits.max)
    return sym.clip(moved, float(limits.min) if integer else -largest, largest)


def _counted(x: Var) -> Var:
    return sym.custom("Counted", x)


def _coded(x: Var, zero_point: Var | None, dtype: np.dtype[Any], saturate: int) -> Var:
    return x.tape.emit("Rounded", (x, zero_point), {"dtype": dtype, "saturate": saturate}, domain="gradcheck")[0]


def _is_integer(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "iu" or dtype.name.startswith(("int", "uint"))


def _spread(scale: Var, shape: tuple[int, ...], axis: int, block: int) -> Var:
    """A scale or zero point in a shape that broadcasts against x."""
    if scale.size == 1:
        return sym.reshape(scale, ())
    if not block:
        if scale.shape != (shape[axis],):
            raise ValueError(f"a scale of shape {list(scale.shape)} does not fit axis {axis} of {list(shape)}")
        return sym.reshape(scale, (-1, *(1,) * (len(shape) - axis - 1)))
    blocks = -(-shape[axis] // block)
    if scale.shape != (*shape[:axis], blocks, *shape[axis + 1 :]):
        raise ValueError(f"a scale of shape {list(scale.shape)} does not fit blocks of {block} in {list(shape)}")
    whole = sym.repeat(scale, block, axis)
    return whole if blocks * block == shape[axis] else sym.slice(whole, (0,), (shape[axis],), (axis,))


def _width(*operands: Var) -> np.dtype[Any]:
    """The dtype that integers are multiplied in: float64, which holds the products; for unrounded operands their own."""
    return next((x.dtype for x in operands if is_inexact(x.dtype)), np.dtype(np.float64))


def _centered(x: Var, zero_point: Var | None, wide: np.dtype[Any]) -> Var:
    """Integers minus their zero point."""
    return sym.cast(x, wide) if zero_point is None else sym.cast(x, wide) - sym.cast(zero_point, wide)


def _rows(x: Any) -> Any:
    """A vector with an entry for each row of a matrix, as a column."""
    return sym.unsqueeze(x, (-1,)) if x is not None and x.ndim == 1 and x.size > 1 else x


def _channels(x: Any, rank: int) -> Any:
    """A vector with an entry for each channel, in a shape that broadcasts; channels are axis `-rank`."""
    return sym.reshape(x, (-1, *(1,) * (rank - 1))) if x is not None and x.ndim == 1 else x


def to_float8(x: Array, to: Any, *, saturate: int = 1, round_mode: str = "up") -> Array:
    """x in a float8 dtype, rounded to the nearest; with `saturate`, too large numbers become the largest one."""
    wide = x.astype(np.float64)
    if np.dtype(to).name == "float8_e8m0fnu":
        return to_power_of_two(wide, saturate=saturate, round_mode=round_mode)
    largest = float(ml_dtypes.finfo(to).max)  # type: ignore[no-untyped-call]
    return (np.clip(wide, -largest, largest) if saturate else wide).astype(to)


def to_power_of_two(x: Array, *, saturate: int, round_mode: str) -> Array:
    """The magnitude of x as float8_e8m0fnu, which holds the exponents from -127 to 127 and NaN."""
    mantissa, exponent = np.frexp(np.abs(x))
    limits = {"up": 0.5, "nearest": np.nextafter(0.75, 0), "down": 1.0}
    require_known("round_mode", round_mode, limits)
    exponent = exponent - 1 + (mantissa > limits[round_mode])
    exponent = np.where(x == 0, -128, np.where(np.isinf(x), 128, exponent))
    valid = np.abs(exponent) <= 127 if not saturate else np.ones(x.shape, bool)
    powers = np.ldexp(1.0, np.clip(exponent, -127, 127))
    return np.where(valid & ~np.isnan(x), powers, np.nan).astype(ml_dtypes.float8_e8m0fnu)


QUANTIZE: list[Op] = [
    composite("Rounded", rounded, domain="gradcheck"),
    composite("Counted", lambda x: sym.cast(x, np.int32), domain="gradcheck",
              does="Sums of products of integers as int32."),
    composite("QuantizeLinear", quantize, bind=bind_axis, cuts=rounding, roles=quantized(1, 2), same_axes=True,
              straight="quantizes"),
    composite("DequantizeLinear", dequantize, bind=bind_axis, roles=quantized(1, 2), like=None, same_axes=True),
    composite("DynamicQuantizeLinear", dynamic_quantize, cuts=rounding_into(0, 2), straight="quantizes"),
    composite("MatMulInteger", matmul_integer, roles=quantized(2, 3)),
    composite("ConvInteger", conv_integer, roles=quantized(2, 3), space="windows", channels=1),
    composite("QLinearMatMul", qlinear_matmul, roles=quantized(1, 2, 4, 5, 6, 7)),
    composite("QLinearConv", qlinear_conv, roles=quantized(1, 2, 4, 5, 6, 7), space="windows", channels=1),
]  # fmt: skip
