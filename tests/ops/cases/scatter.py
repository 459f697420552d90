"""Operators that write updates into a copy of a tensor."""

import numpy as np

from tests.ops.case import arr, case, ints

REDUCTIONS = ("add", "mul", "max", "min")
TWICE = [[1], [-1], [1], [1]]

CASES = [
    case("ScatterND", arr(4), [[1], [-1]], arr(2)),
    case("ScatterND", arr(3, 2), [[1, 0], [2, -1], [0, 0]], arr(3)),
    case("ScatterND", arr(2, 3, 2), [[[1, 1]], [[0, 2]]], arr(2, 1, 2)),
    case("ScatterND", arr(2, 3), [1], arr(3)),
    case("ScatterND", arr(2, 3), np.zeros((0, 1), np.int64), arr(0, 3), label="empty"),
    *(case("ScatterND", arr(3, 2), TWICE, arr(4, 2), reduction=how) for how in REDUCTIONS),
    *(case("ScatterND", arr(2, 2), [[0, 1], [0, 1], [1, 1]], arr(3), reduction=how) for how in REDUCTIONS),
    *(case("ScatterND", arr(2, 2), np.zeros((0, 2), np.int64), arr(0), reduction=how) for how in REDUCTIONS),
    case("ScatterND", [1.5, 2.0, 0.0], TWICE, [0.0, 1.5, 2.0, -1.0], reduction="mul", label="one zero"),
    case("ScatterND", [1.5, 2.0], [[1], [1], [0], [0]], [0.0, 0.0, 2.0, 0.0], reduction="mul", label="zeros"),
    case("ScatterND", arr(3) + 1j, TWICE, arr(4) + 0.5j, reduction="add", label="complex"),
    case("ScatterND", arr(3) + 1j, TWICE, arr(4) + 0.5j, reduction="mul", label="complex"),
    case("ScatterElements", arr(3, 3), [[1, 0, 2], [0, 2, -2]], arr(2, 3)),
    case("ScatterElements", arr(2, 5), [[1, -2]], arr(1, 2), axis=1),
    case("ScatterElements", arr(2, 3, 2), ints(1, 1, 2), arr(1, 1, 2), axis=-2),
    case("ScatterElements", arr(4), np.int32([2]), arr(1)),
    case("ScatterElements", arr(4, 2), [[1, 0], [1, 2], [-3, 2]], arr(3, 2), label="the last duplicate stays"),
    case("ScatterND", arr(3, 2), TWICE, arr(4, 2), label="the last duplicate stays"),
    case("ScatterElements", arr(4), np.zeros((0,), np.int64), arr(0), label="empty"),
    *(case("ScatterElements", arr(2, 4), [[1, 1, -3], [0, 3, 3]], arr(2, 3), axis=1, reduction=how)
      for how in REDUCTIONS),
    *(case("ScatterElements", arr(3, 2, 2), ints(4, 1, 2, low=-3, high=2), arr(4, 1, 2), reduction=how)
      for how in REDUCTIONS),
    case("TensorScatter", arr(2, 4, 3), arr(2, 2, 3)),
    case("TensorScatter", arr(2, 4, 3), arr(2, 2, 3), [1, 2]),
    case("TensorScatter", arr(2, 3, 4), arr(2, 3, 2), [3, 0], mode="circular", axis=2),
    case("TensorScatter", arr(2, 4, 2, 3), arr(2, 1, 2, 3), [3, 0], axis=1),
]  # fmt: skip
