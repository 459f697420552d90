"""Quantization by tensor, axis and block; products of quantized numbers."""

import ml_dtypes
import numpy as np

from tests.ops.case import arr, case, ints

X = arr(3, 4, low=-3.0, high=3.0)
SCALE, SCALES = np.asarray(0.1), arr(4, low=0.05, high=0.2)
ROWS = arr(3, low=0.05, high=0.2)
BLOCKS = arr(3, 2, low=0.05, high=0.2)
U8 = np.uint8
A, B = ints(2, 3, high=9).astype(U8), ints(3, 4, high=9).astype(U8)
IMAGE, KERNEL = ints(1, 2, 4, 4, high=9).astype(U8), ints(2, 2, 3, 3, high=5).astype(U8)

CASES = [
    case("Rounded", X, domain="gradcheck", dtype=3),
    case("Rounded", X, U8(128), domain="gradcheck", dtype=2),
    case("Rounded", X, domain="gradcheck", dtype=17, saturate=0),
    case("Counted", ints(2, 3, high=9).astype(np.float64), domain="gradcheck"),
    case("QuantizeLinear", X, SCALE),
    case("QuantizeLinear", X, SCALE, U8(128)),
    case("QuantizeLinear", X, SCALE, np.int8(3)),
    case("QuantizeLinear", X * 1e6, SCALE, np.int16(-5), label="saturated"),
    case("QuantizeLinear", X, SCALES, np.zeros(4, U8)),
    case("QuantizeLinear", X, ROWS, np.arange(3, dtype=np.int8), axis=0),
    case("QuantizeLinear", X, ROWS, np.arange(3, dtype=np.int8), axis=-2),
    case("QuantizeLinear", X, BLOCKS, None, axis=1, block_size=2, output_dtype=3),
    case("QuantizeLinear", X, SCALE, output_dtype=0, saturate=0),
    case(
        "QuantizeLinear",
        arr(3, 3),
        BLOCKS,
        None,
        axis=1,
        block_size=2,
        output_dtype=5,
        label="short last block",
    ),
    case("QuantizeLinear", X, SCALE, np.asarray(1, ml_dtypes.int4), label="int4"),
    case("QuantizeLinear", np.array([0.5, 1.5, 2.5, -0.5]) + 1e-3, np.asarray(1.0), np.int8(0), label="halves"),
    case("DequantizeLinear", ints(3, 4, high=200).astype(U8), SCALE),
    case("DequantizeLinear", ints(3, 4, high=200).astype(U8), SCALE, U8(100)),
    case("DequantizeLinear", ints(3, 4, low=-9, high=9).astype(np.int8), SCALES, np.arange(4, dtype=np.int8)),
    case("DequantizeLinear", ints(3, 4, high=9).astype(np.int32), ROWS, axis=0),
    case("DequantizeLinear", ints(3, 4, high=9).astype(np.int16), ROWS, axis=-2),
    case("DequantizeLinear", ints(3, 4, high=9).astype(U8), BLOCKS, ints(3, 2).astype(U8), axis=1, block_size=2),
    case(
        "DequantizeLinear",
        ints(3, 3, high=9).astype(U8),
        BLOCKS,
        axis=-1,
        block_size=2,
        label="short last block",
    ),
    case("DequantizeLinear", ints(5, high=7).astype(ml_dtypes.int4), SCALE, label="int4"),
    case("DynamicQuantizeLinear", X, n_outputs=3),
    case("DynamicQuantizeLinear", arr(4, low=1.0, high=3.0), n_outputs=3, label="positive"),
    case("DynamicQuantizeLinear", -arr(4, low=1.0, high=3.0), n_outputs=3, label="negative"),
    case("MatMulInteger", A, B),
    case("MatMulInteger", A, B, U8(3), U8(2)),
    case("MatMulInteger", A.astype(np.int8), B, np.array([1, 2], np.int8), np.arange(4, dtype=U8)),
    case("ConvInteger", IMAGE, KERNEL),
    case("ConvInteger", IMAGE, KERNEL, U8(2), U8(1), pads=(1, 1, 1, 1), strides=(2, 1)),
    case("ConvInteger", IMAGE, KERNEL, U8(2), np.array([1, 3], U8), auto_pad="SAME_UPPER", kernel_shape=(3, 3)),
    case("ConvInteger", IMAGE, KERNEL[:, :1], U8(2), group=2, dilations=(1, 1)),
    case("QLinearMatMul", A, SCALE, U8(2), B, SCALE * 2, U8(1), SCALE * 3, U8(7)),
    case(
        "QLinearMatMul",
        A,
        np.array([0.1, 0.2]),
        np.array([1, 2], U8),
        B,
        SCALES,
        np.arange(4, dtype=U8),
        SCALE * 3,
        U8(7),
    ),
    case("QLinearConv", IMAGE, SCALE, U8(2), KERNEL, SCALE * 2, U8(1), SCALE * 3, U8(7), pads=(1, 1, 1, 1)),
    case(
        "QLinearConv",
        IMAGE,
        SCALE,
        U8(2),
        KERNEL,
        np.array([0.1, 0.3]),
        np.array([1, 2], U8),
        SCALE * 3,
        U8(7),
        np.array([5, -9], np.int32),
    ),
]
