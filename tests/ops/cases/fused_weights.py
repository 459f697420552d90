"""Weights of com.microsoft in few bits: numbers of a table, blocks of integers and of small floats."""

import ml_dtypes
import numpy as np

from tests.ops.case import Case, arr, chain, ints, node
from tests.ops.cases.fused import ms
from tests.ops.cases.fused_quantize import u8

IDS = ints(2, 3, low=-5, high=4)
A = arr(2, 3, 24)


def bnb4(rows: int, columns: int, block: int, **more: object) -> Case:
    size = rows * columns
    maxima = arr(-(-size // block), low=0.5, high=2)
    packed = u8(-(-size // 2))
    a = A[..., :columns] if more.get("transB", 1) else A[..., :rows]
    return ms("MatMulBnb4", a, packed, maxima, K=columns, N=rows, block_size=block, **more)


def fp_q4(rows: int, columns: int, kind: int, *, fed: bool = False) -> Case:
    """MatMulFpQ4 with weights in blocks of 32 beside a scale of either sign, which the model keeps unless fed."""
    blocks, offset = -(-rows // 32) * columns, kind != 0
    scales = arr(blocks, 1).astype(np.float32).view(np.uint8)
    blob = np.concatenate([scales, u8(blocks, 1) % 16, u8(blocks, 16)] if offset else [scales, u8(blocks, 16)], 1)
    if fed:
        return ms("MatMulFpQ4", arr(2, 3, rows), blob.ravel(), np.array([rows, columns]), blk_quant_type=kind)
    one = node("MatMulFpQ4", "x0 blob shape", "y0", "com.microsoft", blk_quant_type=kind)
    kept = {"blob": blob.ravel(), "shape": np.array([rows, columns])}
    label = f"{rows} x {columns} of type {kind}"
    return chain("MatMulFpQ4", [one], arr(2, 3, rows), domain="com.microsoft", label=label, **kept)


def gathered(data: np.ndarray, scales: np.ndarray, zero: np.ndarray | None = None, **more: object) -> Case:
    """Rows of a table that the model keeps: numbers of four bits cannot be fed."""
    names = "data ids scales" + ("" if zero is None else " zero")
    one = node(
        "GatherBlockQuantized", names.replace("ids", "x0").replace("scales", "x1"), "y0", "com.microsoft", **more
    )
    kept = {"data": data} if zero is None else {"data": data, "zero": zero}
    label = f"{data.dtype.name} {' '.join(map(str, data.shape))} " + " ".join(f"{k}={v}" for k, v in more.items())
    return chain("GatherBlockQuantized", [one], IDS, scales, domain="com.microsoft", label=label, **kept)


def four(dtype: object, *shape: int, seed: int = 0) -> np.ndarray:
    low = -8 if dtype == ml_dtypes.int4 else 0
    return ints(*shape, low=low, high=low + 15, seed=seed).astype(dtype)


def rows_of(kind: int, *, output: int = 1) -> Case:
    """Rows of two blocks in a packed format, or of two numbers in a stored type; two indices are out of range."""
    where, stored = np.array([[0, 4, -1], [5, 2, 1]]), STORED.get(kind)
    if stored is None:
        entries, size, *scales = PACKED[kind]
        blocks = u8(10, size, seed=kind)
        for at in scales or (0,):
            blocks[:, at : at + 2] = arr(10, 1, seed=at).astype(np.float16).view(np.uint8)
    else:
        entries, blocks = 1, arr(10, 1).astype(stored).view(np.uint8)
    attrs = {"packed_type": kind, "K": 2 * entries, "output_dtype": output}
    if output == 1:
        return ms("GatherPacked", blocks.reshape(5, -1), where, **attrs)
    one = node("GatherPacked", "x0 x1", "narrow", "com.microsoft", **attrs)
    return chain("GatherPacked", [one, node("Cast", "narrow", "y0", to=1)], blocks.reshape(5, -1), where,
                 domain="com.microsoft", label=f"{kind} to {output}")  # fmt: skip


STORED = {0: np.float32, 1: np.float16, 30: ml_dtypes.bfloat16}
PACKED = {  # by the number of a format: entries of a block, its bytes, and where scales are that are not in front
    2: (32, 18), 6: (32, 22), 8: (32, 34), 13: (256, 176, 0, 2), 14: (256, 210, 208), 16: (256, 66), 17: (256, 74),
    18: (256, 98), 20: (32, 18), 22: (256, 82), 23: (256, 136), 42: (64, 18),
}  # fmt: skip
CASES = [
    *(rows_of(kind) for kind in (*STORED, *PACKED)),
    rows_of(2, output=10),
    rows_of(14, output=16),
    bnb4(4, 16, 16, quant_type=0),
    bnb4(4, 16, 16, quant_type=1),
    bnb4(5, 23, 32, quant_type=1),
    bnb4(16, 24, 64, quant_type=0, transB=0),
    fp_q4(64, 2, 0, fed=True),
    *(fp_q4(rows, columns, kind) for rows, columns, kind in ((64, 2, 0), (40, 3, 0), (64, 2, 1), (64, 2, 2))),
    ms("GatherBlockQuantized", u8(5, 32), IDS, arr(5, 2), bits=8, block_size=16, quantize_axis=1),
    ms("GatherBlockQuantized", u8(5, 32), IDS, arr(5, 2), u8(5, 2, seed=1), bits=8, block_size=16),
    ms("GatherBlockQuantized", u8(5, 16), IDS, arr(5, 2), bits=4, block_size=16),
    ms("GatherBlockQuantized", u8(5, 24), IDS, arr(5, 3), u8(5, 2, seed=1), bits=4, block_size=16),
    ms("GatherBlockQuantized", u8(5, 8), IDS, arr(5, 2), u8(5, 1, seed=1), bits=2, block_size=16),
    ms(
        "GatherBlockQuantized",
        u8(5, 2, 16),
        IDS,
        arr(5, 2, 1),
        u8(5, 2, 1, seed=1),
        bits=4,
        block_size=32,
        quantize_axis=-1,
    ),
    ms("GatherBlockQuantized", u8(5, 4, 20), IDS, arr(5, 4, 2), bits=8, block_size=16, quantize_axis=2, label="ragged"),
    ms("GatherBlockQuantized", u8(5, 32), ints(2, low=-9, high=9), arr(5, 2), bits=8, block_size=16, label="beyond"),
    gathered(four(ml_dtypes.int4, 5, 32), arr(5, 2), block_size=16),
    gathered(four(ml_dtypes.uint4, 5, 32), arr(5, 2), block_size=16),
    gathered(four(ml_dtypes.uint4, 5, 32), arr(5, 2), four(ml_dtypes.uint4, 5, 2, seed=1), block_size=16),
    gathered(four(ml_dtypes.int4, 5, 20), arr(1, 20), block_size=16, gather_axis=1, quantize_axis=0),
    gathered(
        four(ml_dtypes.int4, 20, 3),
        arr(2, 3),
        four(ml_dtypes.int4, 2, 3, seed=1),
        block_size=16,
        gather_axis=0,
        quantize_axis=0,
    ),
    gathered(arr(5, 32).astype(ml_dtypes.float8_e4m3fn), arr(5, 2), block_size=16),
    gathered(arr(5, 6).astype(ml_dtypes.float8_e5m2), arr(5, 1), block_size=0),
    gathered(arr(5, 6).astype(ml_dtypes.float8_e4m3fnuz), arr(1, 1), block_size=0),
    gathered(arr(5, 6).astype(ml_dtypes.float4_e2m1fn), arr(5, 1), block_size=0),
]
