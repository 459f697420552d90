"""Weights that com.microsoft keeps in four bits or eight, decoded block by block: products with them, rows of them."""

from __future__ import annotations

import numpy as np

from gradcheck_cli.autodiff import symbolic as sym
from gradcheck_cli.autodiff.tape import Var
from gradcheck_cli.op import Op, as_given, deciding, from_end
from gradcheck_cli.ops.onnxruntime.fused import fused
from gradcheck_cli.ops.onnxruntime.fused_quantize import unpacked

_FP4 = (0.0, 0.0052083333, 0.6666667, 1.0, 0.33333334, 0.5, 0.16666667, 0.25)
_NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
_CODES = ((*_FP4, *(-x for x in _FP4)), _NF4)  # by quant_type; numbers of bitsandbytes


def matmul_bnb4(
    a: Var, b: Var, absmax: Var, *, K: int, N: int, block_size: int, quant_type: int, training_mode: int = 0,
    transB: int = 1,
) -> Var:  # fmt: skip
    """a times weights `(N, K)`, transposed by default, that are kept as numbers of a table times a block's maximum."""
    if quant_type not in (0, 1) or block_size < 16 or block_size & (block_size - 1):
        raise ValueError(f"quant_type is {quant_type}, 0 or 1; block_size {block_size}, a power of 2 from 16 on")
    blocks = -(-N * K // block_size)
    if b.shape != (-(-N * K // 2),) or absmax.size != blocks:
        raise ValueError(f"{N} x {K} weights are {-(-N * K // 2)} bytes and {blocks} maxima")
    pairs = sym.reshape(unpacked(sym.unsqueeze(b, (1,)), 4), (-1, 2))
    codes = sym.reshape(sym.concat(sym.split(pairs, (1, 1), 1)[::-1], 1), (-1,))  # high bits first
    table = a.tape.constant(np.asarray(_CODES[quant_type], np.float32), a.dtype)
    numbers = a.tape.apply("Gather", table, sym.cast(codes, np.int64))
    room = blocks * block_size
    padded = sym.pad(numbers, (0, room - numbers.size))
    weights = sym.reshape(padded, (blocks, block_size)) * sym.reshape(absmax, (blocks, 1))
    flat = sym.slice(sym.reshape(weights, (room,)), (0,), (N * K,), (0,))
    matrix = sym.reshape(flat, (N, K))
    return sym.matmul(a, sym.swap(matrix) if transB else matrix)


def matmul_fp_q4(a: Var, b: Var, *, b_shape: tuple[int, int], blk_quant_type: int = 1) -> Var:
    """a times weights `(K, N)` in four bits, which stand column by column in blocks of 32 beside their scale.

    A block is the four bytes of a float, a zero point but for type 0, and 16 bytes: low bits first, then high ones.
    """
    rows, columns = b_shape
    blocks, step = -(-rows // 32), 20 if blk_quant_type == 0 else 21
    if blk_quant_type not in (0, 1, 2) or b.size != columns * blocks * step:
        raise ValueError(f"weights of type {blk_quant_type} and shape {[rows, columns]} are no {b.size} bytes")
    parts = sym.split(sym.reshape(b, (columns, blocks, step)), (4, *((1,) if step == 21 else ()), 16), 2)
    pairs = sym.reshape(unpacked(parts[-1], 4), (columns, blocks, 16, 2))
    codes = sym.reshape(sym.transpose(pairs, (0, 1, 3, 2)), (columns, blocks, 32))
    zero = 8.0 if step == 20 else sym.cast(parts[1], a.dtype)
    weights = (sym.cast(codes, a.dtype) - zero) * _float_of(parts[0], a.dtype)
    whole = sym.reshape(weights, (columns, blocks * 32))
    return sym.matmul(a, sym.swap(sym.slice(whole, (0,), (rows,), (1,))))


def _float_of(x: Var, dtype: np.dtype) -> Var:
    """The numbers whose four bytes in float32, lowest first, stand along the last axis."""
    low, middle, high, top = sym.split(sym.cast(x, np.int64), (1,) * 4, -1)
    odd, negative = high >= 128, top >= 128
    mantissa = low + middle * 256 + (high - sym.cast(odd, np.int64) * 128) * 65536
    exponent = (top - sym.cast(negative, np.int64) * 128) * 2 + sym.cast(odd, np.int64)
    whole = sym.cast(mantissa, dtype) * 2.0**-23 + sym.cast(exponent > 0, dtype)
    power = x.tape.apply("Pow", x.tape.constant(2.0, dtype), sym.cast(sym.maximum(exponent, 1) - 127, dtype))
    return sym.where(negative, -whole, whole) * power


def gather_block_quantized(
    data: Var, indices: Var, scales: Var, zero_points: Var | None = None, *, bits: int = 4, block_size: int = 128,
    gather_axis: int = 0, quantize_axis: int = 1,
) -> Var:  # fmt: skip
    """Entries along an axis of a table that is kept in few bits, with a scale for each block along another axis."""
    whole = _is_float(data)
    if whole and zero_points is not None:
        raise ValueError("numbers with a point have no zero point")
    if not (whole and block_size == 0) and (block_size < 16 or block_size & (block_size - 1)):
        raise ValueError(f"block_size is {block_size}; it is a power of 2 from 16 on")
    if data.dtype == np.uint8 and bits not in (2, 4, 8):
        raise ValueError(f"bits is {bits}; known are 2, 4 and 8")
    axis, blocked = from_end(gather_axis, data.ndim) + data.ndim, from_end(quantize_axis, data.ndim) + data.ndim
    _check_scales(data, scales, blocked, 8 // bits if data.dtype == np.uint8 else 1, block_size)
    parts = [data, scales, *([] if zero_points is None else [zero_points])]
    found = parts if axis == blocked else [_entries(part, indices, axis, data.shape[axis]) for part in parts]
    shift = indices.ndim - 1 if axis < blocked else 0
    y = _decoded_blocks(found, bits, block_size, blocked if axis == blocked else blocked + shift)
    y = _entries(y, indices, axis, data.shape[axis]) if axis == blocked else y
    return _known_only(y, indices, axis, data.shape[axis])


def _check_scales(data: Var, scales: Var, axis: int, packed: int, block: int) -> None:
    """ValueError where there is not one scale for each block; small floats may share one along other axes."""
    shape = [*data.shape[:-1], data.shape[-1] * packed]
    shape[axis] = -(-shape[axis] // block) if block else 1
    shared = (1,) if _is_float(data) else ()
    fits = len(shape) == scales.ndim and all(n in (m, *shared) for n, m in zip(scales.shape, shape, strict=True))
    if not fits:
        raise ValueError(f"scales {list(scales.shape)} do not fit {shape} blocks")


def _decoded_blocks(parts: list[Var], bits: int, block: int, axis: int) -> Var:
    """(data - zero point) scale, each block along an axis with its own."""
    data, scales, *zero = parts
    packed = data.dtype == np.uint8
    codes = unpacked(data, bits) if packed else data
    length = codes.shape[axis]
    numbers = sym.cast(codes, scales.dtype)
    if zero:
        spread = sym.cast(unpacked(zero[0], bits) if packed else zero[0], scales.dtype)
        numbers = numbers - _blocks_spread(spread, length, block, axis)
    elif packed:
        numbers = numbers - float(2 ** (bits - 1))
    return numbers * _blocks_spread(scales, length, block, axis)


def _blocks_spread(x: Var, length: int, block: int, axis: int) -> Var:
    """Numbers of blocks along an axis, one for each entry."""
    if x.shape[axis] == 1 and not block:
        return x
    wide = sym.expand(sym.unsqueeze(x, (axis + 1,)), (*x.shape[: axis + 1], block, *x.shape[axis + 1 :]))
    flat = sym.reshape(wide, (*x.shape[:axis], x.shape[axis] * block, *x.shape[axis + 1 :]))
    return sym.slice(flat, (0,), (length,), (axis,))


def _entries(x: Var, indices: Var, axis: int, length: int) -> Var:
    """Entries along an axis; what one row stands for is the same for all."""
    places = sym.clip(sym.cast(indices, np.int64), -length, length - 1)
    if x.shape[axis] != length:  # one scale along the axis
        places = places * 0
    return x.tape.apply("Gather", x, places, axis=axis)


def _known_only(y: Var, indices: Var, axis: int, length: int) -> Var:
    """y, and zeros where an index is out of range."""
    inside = sym.and_(indices >= -length, indices < length)
    lead = sym.reshape(inside, (*inside.shape, *(1,) * (y.ndim - axis - inside.ndim)))
    return sym.where(lead, y, 0)


def _is_float(data: Var) -> bool:
    return data.dtype.name.startswith("float")


FUSED_WEIGHTS: list[Op] = [
    fused("GatherBlockQuantized", gather_block_quantized, bind=as_given, cuts=deciding(1)),
    fused("MatMulBnb4", matmul_bnb4),
    fused("MatMulFpQ4", matmul_fp_q4, static={"b_shape": 2}),
]
