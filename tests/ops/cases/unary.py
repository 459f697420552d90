"""Elementwise operators of one operand."""

import numpy as np

from tests.ops.case import Case, arr, case, ints

DOMAINS: dict[str, tuple[float, float]] = {
    "Abs": (-2, 2), "Neg": (-2, 2), "Reciprocal": (0.5, 2), "Sqrt": (0.2, 2), "Exp": (-2, 2), "Log": (0.2, 2),
    "Erf": (-3, 3), "Sin": (-2, 2), "Cos": (-2, 2), "Tan": (-1, 1), "Asin": (-0.9, 0.9), "Acos": (-0.9, 0.9),
    "Atan": (-2, 2), "Sinh": (-2, 2), "Cosh": (-2, 2), "Tanh": (-2, 2), "Asinh": (-2, 2), "Acosh": (1.2, 3),
    "Atanh": (-0.9, 0.9), "Identity": (-2, 2), "Floor": (-3, 3), "Ceil": (-3, 3), "Round": (-3, 3),
    "Sign": (-2, 2), "IsNaN": (-2, 2), "IsInf": (-2, 2),
}  # fmt: skip
HOLOMORPHIC = ("Neg", "Reciprocal", "Sqrt", "Exp", "Log", "Sin", "Cos", "Tanh", "Identity")
SPECIAL = np.float64([np.nan, np.inf, -np.inf, 0.0])


def wherever(op: str) -> list[Case]:
    """A matrix, a scalar and nothing, within the operator's domain."""
    low, high = DOMAINS[op]
    return [case(op, arr(*shape, low=low, high=high)) for shape in [(2, 3), (), (2, 0)]]


CASES = [
    *(c for op in DOMAINS for c in wherever(op)),
    *(case(op, arr(3, low=0.3) + 0.5j * arr(3), label="complex") for op in HOLOMORPHIC),
    case("Erf", [-30.0, -6.0, -2.0, -1.0, -1e-9, 0.5, 1.0, 2.0, 6.0], label="every interval"),
    case("Abs", ints(4, low=-3), label="int"),
    case("Neg", ints(4, low=-3), label="int"),
    case("Sign", ints(4, low=-3), label="int"),
    case("Round", np.float64([-1.2, 0.3, 0.7, 1.4, 2.8])),
    case("IsNaN", SPECIAL, label="special"),
    case("IsInf", SPECIAL, label="special"),
    case("IsInf", SPECIAL, detect_negative=0),
    case("IsInf", SPECIAL, detect_positive=0),
    case("Not", arr(2, 3) > 0),
    case("BitwiseNot", ints(4, low=-3)),
]
