"""Activations and arithmetic."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from tests.ops.case import arr, case
from tests.ops.torch_pairs.pair import Pair

SELU = {"alpha": 1.6732632423543772848170429916717, "gamma": 1.0507009873554804934193349852946}
POSITIVE = {"low": 0.2, "high": 3.0}
INSIDE = {"low": -0.9, "high": 0.9}

UNARY: list[tuple[str, Any, dict[str, float]]] = [
    ("Abs", torch.abs, {}),
    ("Acos", torch.acos, INSIDE),
    ("Acosh", torch.acosh, {"low": 1.1, "high": 3.0}),
    ("Asin", torch.asin, INSIDE),
    ("Asinh", torch.asinh, {}),
    ("Atan", torch.atan, {}),
    ("Atanh", torch.atanh, INSIDE),
    ("Ceil", torch.ceil, {}),
    ("Cos", torch.cos, {}),
    ("Cosh", torch.cosh, {}),
    ("Erf", torch.erf, {}),
    ("Exp", torch.exp, {}),
    ("Floor", torch.floor, {}),
    ("Log", torch.log, POSITIVE),
    ("Mish", F.mish, {}),
    ("Neg", torch.neg, {}),
    ("Reciprocal", torch.reciprocal, POSITIVE),
    ("Relu", torch.relu, {}),
    ("Round", torch.round, {}),
    ("Sigmoid", torch.sigmoid, {"low": -20.0, "high": 20.0}),
    ("Sign", torch.sign, {}),
    ("Sin", torch.sin, {}),
    ("Sinh", torch.sinh, {}),
    ("Softplus", lambda x: F.softplus(x, threshold=100.0), {"low": -20.0, "high": 20.0}),
    ("Softsign", F.softsign, {}),
    ("Sqrt", torch.sqrt, POSITIVE),
    ("Tan", torch.tan, {"low": -1.2, "high": 1.2}),
    ("Tanh", torch.tanh, {}),
]

ACTIVATIONS = [
    (case("Celu", arr(3, 4)), F.celu),
    (case("Celu", arr(3, 4), alpha=0.5), lambda x: F.celu(x, alpha=0.5)),
    (case("Elu", arr(3, 4)), F.elu),
    (case("Elu", arr(3, 4), alpha=0.5), lambda x: F.elu(x, alpha=0.5)),
    (case("Gelu", arr(3, 4)), F.gelu),
    (case("Gelu", arr(3, 4), approximate="tanh"), lambda x: F.gelu(x, approximate="tanh")),
    (
        case("HardSigmoid", arr(3, 4, low=-5.0, high=5.0), alpha=0.25, beta=0.5),
        lambda x: (x / 4 + 0.5).clamp(0, 1),
    ),
    (case("HardSwish", arr(3, 4, low=-5.0, high=5.0)), lambda x: x * (x / 6 + 0.5).clamp(0, 1)),
    (case("LeakyRelu", arr(3, 4), alpha=0.25), lambda x: F.leaky_relu(x, 0.25)),
    (case("PRelu", arr(2, 3, 4), arr(3, 1)), lambda x, w: F.prelu(x, w.reshape(-1))),
    (case("PRelu", arr(2, 3), arr(1)), F.prelu),
    (case("Selu", arr(3, 4), **SELU), F.selu),
    (case("Shrink", arr(3, 4), lambd=0.5), lambda x: F.hardshrink(x, 0.5)),
    (case("Shrink", arr(3, 4), lambd=0.5, bias=0.5), lambda x: F.softshrink(x, 0.5)),
    (case("Swish", arr(3, 4)), F.silu),
    (case("ThresholdedRelu", arr(3, 4), alpha=0.5), lambda x: F.threshold(x, 0.5, 0.0)),
]

BINARY: list[tuple[str, Any]] = [
    ("Add", torch.add),
    ("Sub", torch.sub),
    ("Mul", torch.mul),
    ("Div", torch.div),
    ("Max", torch.maximum),
    ("Min", torch.minimum),
    ("Sum", torch.add),
    ("Mean", lambda a, b: (a + b) / 2),
]
SHAPES = [
    ((2, 3), (2, 3)),
    ((2, 3), (3,)),
    ((), (2, 3)),
    ((4, 1, 3), (2, 1)),
    ((1, 2), (3, 1, 1)),
    ((0, 3), (1, 3)),
]

OTHER = [
    (case("Pow", arr(2, 3, **POSITIVE), arr(3)), torch.pow),
    (case("Pow", arr(2, 3), 3.0), torch.pow, "x1"),
    (case("Pow", arr(2, 3), 2.0), torch.pow, "x1"),
    (case("Mod", arr(2, 3, low=-9.0, high=9.0), arr(3, **POSITIVE), fmod=1), torch.fmod),
    (case("Where", arr(2, 3) > 0, arr(3), arr(2, 1)), torch.where),
    (case("Clip", arr(3, 4), -0.5, 0.75), lambda x, a, b: torch.minimum(torch.maximum(x, a), b)),
    (case("Clip", arr(3, 4), None, 0.75), lambda x, a, b: torch.minimum(x, b)),
    (case("Clip", arr(3, 4), -0.5), torch.maximum),
    (
        case("Max", arr(2, 3), arr(3, seed=1), arr(2, 1)),
        lambda a, b, c: torch.maximum(torch.maximum(a, b), c),
    ),
    (case("Sum", arr(2, 3), arr(3), arr(2, 1)), lambda a, b, c: a + b + c),
    (case("SwiGLU", arr(2, 3), arr(2, 3, seed=1)), lambda a, b: F.silu(a) * b),
]

PAIRS = [
    *[Pair(case(op, arr(3, 4, **where)), function) for op, function, where in UNARY],
    *[Pair(one, function) for one, function in ACTIVATIONS],
    *[Pair(case(op, arr(*a), arr(*b, low=0.5)), function) for op, function in BINARY for a, b in SHAPES],
    *[Pair(one, function, ignore=tuple(rest)) for one, function, *rest in OTHER],
]
