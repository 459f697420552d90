"""Quantized operators of com.microsoft."""

import numpy as np

from tests.ops.case import Case, arr, ints
from tests.ops.cases.fused import ms

U8 = np.uint8


def u8(*shape: int, seed: int = 0) -> np.ndarray:
    return ints(*shape, high=255, seed=seed).astype(np.uint8)


def i8(*shape: int, seed: int = 0) -> np.ndarray:
    return ints(*shape, low=-100, high=100, seed=seed).astype(np.int8)


A, B, IMAGE = u8(2, 3, 4), u8(3, 4, seed=1), u8(1, 2, 5, 6)
SA, ZA, SB, ZB, SY, ZY = (np.array(v) for v in (0.021, U8(120), 0.013, U8(7), 0.037, U8(99)))
SIGNED = np.array(-3, np.int8)
COLUMNS, ZERO_COLUMNS = arr(4, low=0.01, high=0.02), u8(4, seed=2)


W_SCALES = np.array([0.02, 0.01, 0.03])


def conv(x: np.ndarray, w: np.ndarray, *zeros: object, b: object = None, scale: object = SB, **more: object) -> Case:
    x_zero, w_zero, y_zero = (np.array(z, d) for z, d in zip(zeros, (x.dtype, w.dtype, x.dtype), strict=True))
    w_zero = np.full(np.shape(scale), w_zero)
    return ms("QLinearConv", x, SA, x_zero, w, scale, w_zero, SY, y_zero, b, **more)


def one(
    op: str, x: np.ndarray = A, zero: object = ZA, y_scale: object = SY, y_zero: object = ZY, **more: object
) -> Case:
    return ms(op, x, SA, zero, y_scale, y_zero, **more)


CASES = [
    *(
        case
        for op in ("QLinearAdd", "QLinearMul")
        for case in (
            ms(op, A, SA, ZA, B, SB, ZB, SY, ZY),
            ms(op, i8(2, 3), SA, None, i8(2, 3, seed=1), SB, SIGNED, SY, label="no zero points"),
        )
    ),
    one("QLinearSigmoid", y_scale=np.array(1 / 256)),
    one("QLinearSigmoid", i8(3, 4), SIGNED, np.array(1 / 256), np.array(-128, np.int8)),
    one("QLinearLeakyRelu"),
    one("QLinearLeakyRelu", alpha=0.3),
    one("QLinearSoftmax", y_scale=np.array(1 / 256), y_zero=np.array(U8(0)), axis=-1, opset=13),
    one("QLinearSoftmax", y_scale=np.array(1 / 256), y_zero=np.array(U8(0)), axis=1, opset=13, label="middle"),
    one("QLinearSoftmax", y_scale=np.array(1 / 256), y_zero=np.array(U8(0)), axis=1, opset=12),
    one("QLinearSoftmax", y_scale=np.array(1 / 255), y_zero=np.array(U8(0)), axis=-1, opset=13, label="254 levels"),
    ms("QLinearConcat", SY, ZY, A, SA, ZA, u8(2, 1, 4, seed=3), SB, ZB, axis=1),
    ms("QLinearWhere", ints(3, 4, high=1).astype(bool), A, SA, ZA, B, SB, ZB, SY, ZY),
    one("QLinearAveragePool", IMAGE, kernel_shape=[2, 3]),
    one("QLinearAveragePool", IMAGE, kernel_shape=[3, 3], pads=[1, 0, 1, 1], strides=[2, 1], count_include_pad=1),
    one("QLinearAveragePool", u8(1, 5, 6, 2), kernel_shape=[3, 3], channels_last=1, ceil_mode=1, strides=[2, 2]),
    one("QLinearAveragePool", IMAGE, kernel_shape=[2, 3], strides=[2, 2], ceil_mode=1, count_include_pad=1),
    one("QLinearGlobalAveragePool", IMAGE),
    conv(IMAGE, i8(3, 2, 3, 3) // 2, 120, 0, 99),
    conv(IMAGE, u8(3, 2, 3, 3) // 2, 120, 60, 99, scale=W_SCALES, label="channels"),
    conv(i8(1, 2, 5, 6), i8(3, 2, 3, 2) // 2, -3, 0, 5, b=ints(3, low=-999, high=999).astype(np.int32), pads=[1, 0, 1, 1]),
    conv(u8(1, 5, 6, 2), i8(3, 2, 3, 3) // 2, 120, 0, 99, scale=W_SCALES, channels_last=1, strides=[2, 1]),
    conv(u8(1, 5, 6, 4), i8(4, 2, 2, 3) // 2, 120, 0, 99, channels_last=1, group=2, auto_pad="SAME_UPPER"),
    conv(u8(1, 5, 6, 2), i8(3, 2, 2, 2) // 2, 120, 0, 99, channels_last=1, dilations=[2, 1], kernel_shape=[2, 2]),
    ms("NhwcMaxPool", u8(1, 5, 6, 3), kernel_shape=[2, 3]),
    ms("NhwcMaxPool", i8(2, 5, 6, 3), kernel_shape=[3, 2], pads=[1, 0, 1, 1], strides=[2, 1]),
    ms("NhwcMaxPool", u8(1, 7, 6, 2), kernel_shape=[3, 3], ceil_mode=1, strides=[2, 2], dilations=[1, 2]),
    ms("NhwcMaxPool", i8(1, 7, 2), kernel_shape=[3], auto_pad="SAME_LOWER", strides=[2]),
    one("QLinearGlobalAveragePool", u8(1, 5, 6, 2), channels_last=1),
    ms("QGemm", u8(2, 3), SA, ZA, B, SB, ZB, None, SY, ZY),
    ms("QGemm", u8(3, 2), SA, ZA, u8(4, 3), COLUMNS, ZERO_COLUMNS, ints(4, low=-99, high=99).astype(np.int32),
       transA=1, transB=1, alpha=0.5),
    ms("DynamicQuantizeMatMul", arr(2, 3), B, SB, ZB),
    ms("DynamicQuantizeMatMul", arr(2, 3), B, COLUMNS, ZERO_COLUMNS, arr(4)),
    ms("MatMulIntegerToFloat", A[:, :, :3], B, SA, SB, ZA, ZB),
    ms("MatMulIntegerToFloat", A[0, :, :3], B, SA, COLUMNS, ZA, ZERO_COLUMNS, arr(4)),
    ms("MatMulInteger16", ints(2, 3, low=-300, high=300).astype(np.int16), ints(3, 4, high=300).astype(np.int16)),
    ms("MulInteger", A, ZA, A[:, ::-1], ZB),
    ms("MulInteger", A, None, A[:, ::-1], ZB),
    ms("MulInteger", A, ZA, A[:, ::-1]),
    ms("MatMulNBits", arr(2, 40), u8(5, 3, 8), arr(5, 3), K=40, N=5, bits=4, block_size=16),
    ms("MatMulNBits", arr(2, 3, 32), u8(5, 2, 8), arr(5, 2), u8(5, 1), None, arr(5), K=32, N=5, bits=4, block_size=16),
    ms("MatMulNBits", arr(2, 32), u8(5, 1, 32), arr(5, 1), K=32, N=5, bits=8, block_size=32),
    ms("MatMulNBits", arr(2, 32), u8(5, 1, 8), arr(5, 1), u8(5, 1), K=32, N=5, bits=2, block_size=32),
    ms("MatMulNBits", arr(2, 32), u8(5, 2, 8), arr(5, 2), arr(5, 2), K=32, N=5, bits=4, block_size=16),
]  # fmt: skip
