"""LSTMs of com.microsoft: quantized, and with attention."""

from typing import Any

import numpy as np

from tests.ops.case import Case, arr, ints
from tests.ops.cases.fused import ms

STEPS, BATCH, INPUT, HIDDEN = 3, 2, 3, 2
WIDTH = 4 * HIDDEN


def quantized(dtype: Any, sides: int = 1, *, columns: bool = False, zero: int = 0, draw: int = 0) -> list[np.ndarray]:
    """W, R and their scales and zero points: small integers of coarse scales, which move codes little when probed."""
    w, r = (ints(sides, rows, WIDTH, low=zero - 6, high=zero + 6, seed=rows).astype(dtype) for rows in (INPUT, HIDDEN))
    shape = (sides, WIDTH) if columns else (sides,)
    scales = [arr(*shape, low=0.1, high=0.2, seed=draw + s) for s in (1, 2)]
    zeros = [np.full(shape, zero, dtype)] * 2
    return [w, r, scales[0], zeros[0], scales[1], zeros[1]]


def lstm(
    dtype: Any, sides: int = 1, b: Any = None, lengths: Any = None, h: Any = None, c: Any = None, p: Any = None, *,
    columns: bool = False, zero: int = 0, draw: int = 0, **more: Any,
) -> Case:  # fmt: skip
    w, r, *quanta = quantized(dtype, sides, columns=columns, zero=zero, draw=draw)
    x = arr(STEPS, BATCH, INPUT)
    return ms("DynamicQuantizeLSTM", x, w, r, b, lengths, h, c, p, *quanta, n_outputs=3, hidden_size=HIDDEN, **more)


def state(sides: int = 1, seed: int = 0) -> np.ndarray:
    return arr(sides, BATCH, HIDDEN, seed=seed)


def attending(
    sides: int = 1, lengths: Any = None, rows: Any = None, *, mixed: bool = True, stated: bool = False, **more: Any
) -> Case:
    """AttnLSTM with a memory of five rows of four numbers."""
    depth, inner, mixing = 4, 2, 3
    width = INPUT + (mixing if mixed else depth)
    recurrent = arr(sides, WIDTH, width), arr(sides, WIDTH, HIDDEN), arr(sides, 2 * WIDTH)
    start = (state(sides), state(sides, seed=1), arr(sides, 3 * HIDDEN)) if stated else (None, None, None)
    memory = arr(sides, HIDDEN, inner), arr(sides, depth, inner), arr(sides, inner), arr(BATCH, 5, depth)
    last = arr(sides, depth + HIDDEN, mixing) if mixed else None
    return ms("AttnLSTM", arr(STEPS, BATCH, INPUT), *recurrent, lengths, *start, *memory, rows, last, n_outputs=3,
              hidden_size=HIDDEN, **more)  # fmt: skip


CASES = [
    attending(),
    attending(mixed=False),
    attending(1, None, np.array([3, 5], np.int32), label="rows"),
    attending(1, np.array([2, 3], np.int32), label="lengths"),
    attending(stated=True, label="state and peepholes"),
    attending(clip=0.3, input_forget=1),
    attending(1, np.array([2, 3], np.int32), direction="reverse", label="lengths"),
    attending(2, None, np.array([3, 4], np.int32), direction="bidirectional"),
    attending(activations=["Sigmoid", "Softsign", "HardSigmoid"], activation_alpha=[0.3], activation_beta=[0.4]),
    lstm(np.int8),
    lstm(np.uint8, zero=128, label="uint8"),
    lstm(np.int8, 1, arr(1, 2 * WIDTH), label="bias"),
    lstm(np.int8, columns=True, label="columns"),
    lstm(np.uint8, columns=True, zero=128, label="columns of uint8"),
    lstm(np.int8, 1, None, None, state(seed=2), state(seed=3), draw=2, label="state"),
    lstm(np.int8, 1, None, np.array([3, 2], np.int32), label="lengths"),
    lstm(np.int8, 1, None, np.array([2, 1], np.int32), draw=2, label="a step beyond all lengths"),
    lstm(np.int8, 1, None, np.array([2, 3], np.int32), direction="reverse", label="lengths"),
    lstm(np.int8, 1, None, None, None, None, arr(1, 3 * HIDDEN), label="peepholes"),
    lstm(np.int8, 1, direction="reverse"),
    lstm(np.int8, 2, arr(2, 2 * WIDTH), None, state(2), state(2, seed=1), draw=2, direction="bidirectional"),
    lstm(np.int8, 2, columns=True, direction="bidirectional", label="columns"),
    lstm(np.int8, input_forget=1),
    lstm(np.int8, clip=0.3),
    lstm(np.int8, activations=["Sigmoid", "Softsign", "HardSigmoid"], activation_alpha=[0.3], activation_beta=[0.4]),
]
