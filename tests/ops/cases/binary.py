"""Elementwise operators of several operands."""

import numpy as np

from tests.ops.case import Case, arr, case, ints

COMPARISONS = ("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual")
SHAPES = [((2, 3), (2, 3)), ((2, 3), (3,)), ((2, 1), (3,)), ((), (2, 2)), ((2, 0), (1,)), ((3,), (1, 1))]
BITS = np.uint8([1, 6, 255, 12])


def broadcast(op: str, low: float = -2.0, **attrs: int) -> list[Case]:
    """All ways in which two operands meet, the second above `low`."""
    return [case(op, arr(*a), arr(*b, low=low, seed=1), **attrs) for a, b in SHAPES]


def several(op: str) -> list[Case]:
    """One, two and three operands."""
    return [
        case(op, arr(2, 3)),
        *broadcast(op),
        case(op, arr(2, 1), arr(3, seed=1), arr(2, 3, seed=2)),
        case(op, arr(), arr(2, seed=1), arr(1, 1, seed=2), arr(2, seed=3)),
    ]


CASES = [
    *(c for op in ("Add", "Sub", "Mul") for c in broadcast(op)),
    *broadcast("Div", low=0.5),
    *(c for op in ("Sum", "Mean", "Max", "Min") for c in several(op)),
    *(c for op in COMPARISONS for c in broadcast(op)),
    *(case(op, arr(2, 3) + 1j, arr(3) + 0.5j, label="complex") for op in ("Add", "Sub", "Mul", "Div")),
    *(case(op, ints(2, 3, low=1, high=9), ints(3, low=1, high=4)) for op in ("Add", "Sub", "Mul", "Div", "Max")),
    case("Div", [7, -7, 7, -7], [2, 2, -2, -2], label="int"),
    *(case("Pow", arr(*a, low=0.3), arr(*b, seed=1)) for a, b in SHAPES),
    case("Pow", arr(2, 3, low=0.3), [2.0, 3.0, 0.0], label="whole exponents"),
    case("Pow", arr(3), [2, 3, 0], label="int exponents"),
    case("Pow", [0.0, 0.0, 0.0, 1.5], [1, 2, 3, 2], label="zero"),
    case("Pow", ints(3, low=1), [2, -1, 0], label="int"),
    case("Mod", [5.3, -5.3, 5.3, -5.3], [2.0, 2.0, -2.0, -2.0], fmod=1),
    case("Mod", arr(2, 3, low=1.2, high=1.8), 1.0, fmod=1),
    case("Mod", [5, -5, 5, -5], [3, 3, -3, -3]),
    case("Mod", [5, -5, 5, -5], [3, 3, -3, -3], fmod=1),
    case("Where", arr(2, 3) > 0, arr(2, 3), arr(3)),
    case("Where", [[True], [False]], arr(3), arr(1)),
    case("Where", True, arr(2), arr(2, 2)),
    case("Where", [True, False], [1, 2], [3, 4], label="int"),
    *(case(op, arr(2, 3) > 0, arr(3) > 0) for op in ("And", "Or", "Xor")),
    *(case(op, BITS, BITS[::-1]) for op in ("BitwiseAnd", "BitwiseOr", "BitwiseXor")),
    *(case("BitShift", BITS, np.uint8([1, 2, 3, 0]), direction=way) for way in ("LEFT", "RIGHT")),
]
