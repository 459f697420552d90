"""Reductions."""

import numpy as np

from tests.ops.case import arr, case, ints

NAMES = ("Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "LogSum", "LogSumExp", "SumSquare")
OF_INTS = ("Sum", "Mean", "Max", "Min", "Prod", "L1")
NO_AXES = np.zeros((0,), np.int64)


def positive(*shape: int) -> np.ndarray:
    """Numbers that have a logarithm."""
    return arr(*shape, low=0.2, high=2.0)


def reductions(name: str) -> list:
    """Every way to call a reduction."""
    op, x = f"Reduce{name}", positive if name == "LogSum" else arr
    return [
        case(op, x(2, 3)),
        case(op, x(2, 3, 4), [1]),
        case(op, x(2, 3, 4), [-1, 0], keepdims=0),
        case(op, x(2, 3, 4), [0, 2]),
        case(op, x(2, 3), NO_AXES, keepdims=0),
        case(op, x(2, 3), NO_AXES, noop_with_empty_axes=1),
        case(op, x(2, 3), None, noop_with_empty_axes=1, keepdims=0),
        case(op, x(2, 1), [1]),
        case(op, x()),
    ]


CASES = [
    *(c for name in NAMES for c in reductions(name)),
    *(case(f"Reduce{name}", arr(2, 0, 3), [1], label="empty") for name in NAMES if name != "Mean"),
    *(case(f"Reduce{name}", arr(0, 2), [1], label="empty") for name in NAMES),
    *(case(f"Reduce{name}", ints(2, 3), [1], label="int") for name in OF_INTS),
    *(case(f"Reduce{name}", arr(2, 3) > 0, [1], label="bool") for name in ("Max", "Min")),
    *(case(f"Reduce{name}", arr(2, 3) + 1j, [1], label="complex") for name in ("Sum", "Mean", "Prod")),
    case("ReduceMax", [[1.0, 2.0, 2.0], [0.5, 3.0, 1.0]], [1], label="tie"),
    case("ReduceProd", [[1.5, 0.0, 2.0], [0.0, 3.0, 0.0]], [1], label="zeros"),
    case("ReduceProd", [0.0, 3.0, 0.5, -2.0, 1.5], keepdims=0, label="zero"),
    case("ReduceL2", [[0.0, 0.0], [3.0, 4.0], [1.0, 0.0]], [1], label="zero"),
    case("ReduceLogSumExp", [[1000.0, 1001.0], [-1000.0, -1002.0]], [1], label="large"),
    case("ReduceLogSumExp", [[-np.inf, 1.0, 2.0]], [1], label="masked"),
    *(case(op, *more, **attrs) for op in ("ArgMax", "ArgMin") for more, attrs in [
        ((arr(3, 4),), {}),
        ((arr(3, 4),), {"axis": -1, "keepdims": 0}),
        ((ints(2, 5, high=1),), {"axis": 1, "select_last_index": 1}),
        ((arr(3, 4),), {"select_last_index": 1, "keepdims": 0}),
    ]),
    *(case(op, *more, **attrs) for op in ("CumSum", "CumProd") for more, attrs in [
        ((arr(4), 0), {}),
        ((arr(2, 3), -1), {"exclusive": 1}),
        ((arr(3, 2), 0), {"reverse": 1}),
        ((arr(2, 5, 2), [1]), {"exclusive": 1, "reverse": 1}),
        ((arr(2, 1), 1), {"exclusive": 1}),
        ((arr(2, 0), 1), {}),
    ]),
    *(
        case("CumProd", [2.0, 0.0, 3.0, 0.0, -1.5], 0, exclusive=exclusive, reverse=reverse, label="zeros")
        for exclusive in (0, 1)
        for reverse in (0, 1)
    ),
]  # fmt: skip
