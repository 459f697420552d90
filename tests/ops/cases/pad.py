"""Operators that cut, extend and repeat along axes."""

import numpy as np

from tests.ops.case import arr, case, ints

LARGEST, SMALLEST = np.iinfo(np.int64).max, np.iinfo(np.int64).min

CASES = [
    case("Slice", arr(4, 5), [1, 0], [3, 4]),
    case("Slice", arr(4, 5), [1], [LARGEST], [1]),
    case("Slice", arr(4, 5), [0], [-1], [-1]),
    case("Slice", arr(4, 5), [0, 1], [4, 5], [0, 1], [2, 3]),
    case("Slice", arr(4, 5), [-1], [SMALLEST], [1], [-1]),
    case("Slice", arr(4, 5), [-1, 10], [0, -6], [1, 0], [-2, -3]),
    case("Slice", arr(2, 7, 3), [1], [1000], [-2], [2]),
    case("Slice", arr(2, 7, 3), [5], [0], [1], [-3]),
    case("Slice", arr(7), [-100], [SMALLEST], [0], [-1], label="clamped start"),
    case("Slice", np.int64([4, 5, 6]), np.int32([0]), np.int32([2]), label="int"),
    case("Slice", arr(4, 5), [3], [1], [0], label="empty"),
    case("Slice", arr(4, 0), [0, 0], [2, 3], label="empty"),
    case("Pad", arr(2, 3), [0, 2, 1, 0]),
    case("Pad", arr(2, 3), [1, 0, 0, 1], 1.5),
    case("Pad", arr(2, 3), [1, 0, 0, 1], [1.5]),
    case("Pad", arr(4, 5), [1, -1, -2, -1], 0.5),
    case("Pad", arr(4, 5), [1, 2], None, [-1]),
    case("Pad", arr(2, 3, 2), [1, 0, 2, -1], 0.5, [2, 0]),
    case("Pad", arr(0, 2), [1, 0, 0, 0], 0.5, label="empty"),
    case("Pad", ints(2, 2), [0, 1, 0, 1], label="int"),
    case("Pad", arr(), np.zeros((0,), np.int64)),
    *(case("Pad", arr(3, 4), [1, 2, 2, 1], mode=how) for how in ("reflect", "edge", "wrap")),
    *(case("Pad", arr(3, 4), [2, -1], None, [1], mode=how) for how in ("reflect", "edge", "wrap")),
    *(case("Pad", arr(2, 3, 2), [0, 4, 0, 0, 5, 0], 7.0, mode=how) for how in ("edge", "wrap")),
    case("Pad", arr(2, 3), [0, -1, 0, -1], mode="reflect"),
    case("Slice", arr(4) + 1j * arr(4, seed=1), [3], [0], [0], [-2], label="complex"),
    case("Pad", arr(2) + 1j, [1, 2], 0.5 + 2j, label="complex"),
    case("CenterCropPad", arr(3, 6), [5, 2]),
    case("CenterCropPad", arr(2, 5, 4), [2, 7], axes=(1, -1)),
    case("CenterCropPad", arr(2, 5, 4), [3], axes=(-3,)),
    case("CenterCropPad", arr(1, 5), [4, 2]),
    case("CenterCropPad", arr(5, 1, 2), [2, 4, 5], axes=(0, -2, 2)),
    case("CenterCropPad", arr(0, 3), [2, 2], label="from nothing"),
    case("CenterCropPad", arr(2, 3), [0], axes=(1,), label="to nothing"),
    case("Tile", arr(2, 3), [2, 1]),
    case("Tile", arr(2, 1, 3), [1, 3, 2]),
    case("Tile", arr(2), [3]),
    case("Tile", arr(2, 3), [0, 2], label="empty"),
    case("Trilu", arr(3, 4)),
    case("Trilu", arr(2, 3, 3), 1, upper=0),
    case("Trilu", arr(2, 4, 3), -1),
    case("Trilu", arr(3, 3), [-2], upper=0),
    case("Trilu", arr(3, 3), 50),
    case("Trilu", arr(2, 0, 3), label="empty"),
]
