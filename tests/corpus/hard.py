"""Gradients that are right and numerically hard: none of them may fail, and most of them pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import gradcheck_cli as gc
from tests.checking.small import model

Rng = np.random.Generator


@dataclass(frozen=True)
class Hard:
    """A model, how its x is drawn, and what is to become of it: pass, or inconclusive with a code."""

    name: str
    model: gc.Model
    x: Callable[[Rng], Any]
    expected: str = "pass"


def uniform(low: float, high: float, *shape: int) -> Callable[[Rng], Any]:
    """Numbers between two bounds, four unless a shape is given."""
    return lambda rng: rng.uniform(low, high, shape or (4,))


def spread(low: float, high: float) -> Callable[[Rng], Any]:
    """Numbers of either sign whose magnitudes span many powers of ten."""
    return lambda rng: 10.0 ** rng.uniform(low, high, 4) * rng.choice([-1.0, 1.0], 4)


def fixed(*values: float) -> Callable[[Rng], Any]:
    """These numbers, in any order."""
    return lambda rng: rng.permutation(np.array(values))


def near(*kinks: float, distance: float = 1e-9) -> Callable[[Rng], Any]:
    """Beside some numbers, on either side."""
    return lambda rng: np.array(kinks) + distance * rng.choice([-1.0, 1.0], len(kinks))


def chained(*ops: tuple[Any, ...], count: int) -> tuple[tuple[Any, ...], ...]:
    """The same nodes one behind the other, each op with what it reads besides."""
    nodes, last = [], "x"
    for i in range(count * len(ops)):
        op, *others = ops[i % len(ops)]
        nodes.append((op, " ".join([last, *others]), last := f"h{i}"))
    return tuple(nodes)


def hilbert(n: int) -> np.ndarray:
    """A matrix that is nearly singular."""
    return 1 / (np.arange(n)[:, None] + np.arange(n) + 1.0)


def became(hard: Hard, rng: Rng, seed: int, **more: Any) -> str:
    """Status and code of a check."""
    [record] = gc.check(hard.model, "x", hard.model.graph.outputs[0], x_init_value={"x": hard.x(rng)}, seed=seed,
                        **more).checks  # fmt: skip
    return f"{record.status} {record.code}".strip()


MANY = np.random.default_rng(5).normal(size=10_000)
MASK = np.array([True, False, True, True])
ROWS = {"keepdims": 0}

PADDING = {"pads": np.array([1, 2]), "from": np.array([1]), "to": np.array([5])}

HARD = [
    Hard("float32 inside", model(("Cast", "x", "f", {"to": 1}), ("Exp", "f", "e"), ("Cast", "e", "y", {"to": 11})),
         uniform(-3, 3)),
    Hard("a large dynamic range", model(("Exp", "x", "e"), ("ReduceSum", "e", "y", ROWS)), uniform(-300, 300)),
    Hard("entries of very different sizes", model(("Mul", "x w", "h"), ("Sin", "h", "y"), constants={"w": [1e-15,
         1e-5, 1.0, 1e3]}),
         uniform(-1, 1)),
    Hard("a saturated sigmoid", model(("Sigmoid", "x", "y")), uniform(30, 45)),
    Hard("a saturated tanh", model(("Tanh", "x", "h"), ("Mul", "h w", "y"), constants={"w": 3.0}), uniform(15, 25)),
    Hard("a saturated softmax", model(("Mul", "x k", "h"), ("Softmax", "h", "y"), constants={"k": 300.0}), uniform(-1,
         1)),
    Hard("the tails of erf", model(("Erf", "x", "y")), uniform(4, 7)),
    Hard("a sum of 1e4 terms", model(("Unsqueeze", "x one", "c"), ("Mul", "c w", "h"), ("Sin", "h", "s"),
         ("ReduceSum", "s", "y", ROWS), constants={"one": np.array([1]), "w": MANY[None]}), uniform(-1, 1)),
    Hard("a mean of 1e4 terms beside a large one", model(("Unsqueeze", "x one", "c"), ("Mul", "c w", "h"), ("Add",
         "h far", "s"),
         ("ReduceMean", "s", "y", ROWS), constants={"one": np.array([1]), "w": MANY[None], "far": 1e8}), uniform(-1,
         1)),
    Hard("near the kink of Relu", model(("Relu", "x", "h"), ("Mul", "h h", "q"), ("Add", "q h", "y")), near(0, 0, 0,
         0)),
    Hard("near the kink of Abs", model(("Abs", "x", "y")), near(0, 0, 0, 0)),
    Hard("near the bounds of Clip", model(("Clip", "x low high", "y"), constants={"low": -1.0, "high": 2.0}), near(-1,
         2, 2, -1)),
    Hard("near a tie of MaxPool", model(("MaxPool", "x", "y", {"kernel_shape": (2,)}), x=(1, 1, 4)),
         lambda rng: near(1, 1, 2, 2)(rng)[None, None] + 1e-10 * np.arange(4)),
    Hard("near a tie of a sort", model(("TopK", "x k", "y"), constants={"k": np.array([3])}), lambda rng: near(1, 1,
         1, 1)(rng)
         + 1e-10 * np.arange(4)),
    Hard("tiny gradients", model(("Mul", "x w", "h"), ("Tanh", "h", "y"), constants={"w": 1e-30}), uniform(-1, 1)),
    Hard("tiny gradients beside none", model(("Tanh", "x", "h"), ("Mul", "h w", "y"), constants={"w": [1e-200, 1e-30,
         0.0, 1.0]}),
         uniform(-1, 1)),
    Hard("cancellation of a large offset", model(("Add", "x far", "h"), ("Sub", "h far", "d"), ("Sin", "d", "y"),
         constants={"far": 1e8}), uniform(-1, 1)),
    Hard("1 - cos x over x squared", model(("Cos", "x", "c"), ("Sub", "one c", "d"), ("Mul", "x x", "q"), ("Div",
         "d q", "y"),
         constants={"one": 1.0}), spread(-3, -2)),
    Hard("e^x - 1 over x", model(("Exp", "x", "e"), ("Sub", "e one", "d"), ("Div", "d x", "y"), constants={"one": 1.0}),
         spread(-6, -5)),
    Hard("the variance of what hardly varies", model(("Add", "x far", "h"), ("LayerNormalization", "h w", "y"), x=(8,),
         constants={"far": 1e4, "w": np.linspace(0.5, 1.5, 8)}), uniform(-1, 1, 8)),
    Hard("a batch norm of equal numbers", model(("BatchNormalization", "x w b m v", "y", {"training_mode": 1}), x=(4,
         2),
         constants={"w": np.ones(2), "b": np.zeros(2), "m": np.zeros(2), "v": np.ones(2)}), lambda rng: np.full((4,
         2), 0.7)),
    Hard("a matrix inverse", model(("Cofactors", "x", "c", {}, "gradcheck"), ("Det", "x", "d"), ("Div", "c d", "y"),
         x=(3, 3)),
         lambda rng: np.eye(3) + 0.3 * rng.normal(size=(3, 3))),
    Hard("the determinant of a matrix that is nearly singular", model(("Det", "x", "y"), x=(5, 5)),
         lambda rng: hilbert(5) * rng.uniform(0.999, 1.001, (5, 5))),
    Hard("an inverse by Newton's iterations", model(*[node for i in range(8) for node in (
         ("MatMul", f"x {f'z{i}' if i else 'z'}", f"p{i}"), ("Sub", f"two p{i}", f"q{i}"),
         ("MatMul", f"{f'z{i}' if i else 'z'} q{i}", f"z{i + 1}"))], x=(3, 3), constants={"z": 0.5 * np.eye(3),
         "two": 2 * np.eye(3)}),
         lambda rng: np.eye(3) + 0.1 * rng.normal(size=(3, 3))),
    Hard("a running product", model(("CumProd", "x axis", "y"), x=(20,), constants={"axis": np.array(0)}),
         uniform(0.5, 2.0, 20)),
    Hard("a product of a hundred terms", model(("ReduceProd", "x", "y", ROWS), x=(100,)), uniform(0.5, 2.0, 100)),
    Hard("a product with a factor of zero", model(("ReduceProd", "x", "y", ROWS)), fixed(0.0, 1.5, -2.0, 0.7)),
    Hard("sin(1/x)", model(("Reciprocal", "x", "r"), ("Sin", "r", "y")), spread(-3, -2)),
    Hard("a fast oscillation", model(("Mul", "x w", "h"), ("Sin", "h", "y"), constants={"w": 1e6}), uniform(-1, 1)),
    Hard("|x|^1.5 at 0", model(("Abs", "x", "a"), ("Pow", "a p", "y"), constants={"p": 1.5}), fixed(0.0, 0.3, -0.7,
         1.0),
         ),
    Hard("x |x| at 0", model(("Abs", "x", "a"), ("Mul", "a x", "y")), fixed(0.0, 0.3, -0.7, 1.0)),
    Hard("x^2 at 0", model(("Pow", "x p", "y"), constants={"p": 2.0}), fixed(0.0, 0.3, -0.7, 1.0)),
    Hard("x^3 of negative numbers", model(("Pow", "x p", "y"), constants={"p": 3.0}), uniform(-2, -1)),
    Hard("a norm near 0", model(("ReduceL2", "x", "y", ROWS)), spread(-20, -15)),
    Hard("a norm at 0", model(("ReduceL2", "x", "y", ROWS)), fixed(0.0, 0.0, 0.0, 0.0)),
    Hard("Floor at integers", model(("Floor", "x", "f"), ("Sub", "x f", "y")), fixed(1.0, 0.3, -0.7, 1.2),
         "inconclusive GC301"),
    Hard("Floor near integers", model(("Floor", "x", "f"), ("Sub", "x f", "y")), near(1, 2, 0, -3)),
    Hard("Mod near multiples", model(("Mod", "x m", "y", {"fmod": 1}), constants={"m": 0.25}), near(0.25, 0.5, 1,
         -0.75)),
    Hard("sorted ties, added up", model(("TopK", "x k", "t"), ("ReduceSum", "t", "y", ROWS),
         constants={"k": np.array([4])}),
         fixed(1.0, 1.0, 1.0, 1.0)),
    Hard("fifty layers", model(*chained(("MatMul", "W"), ("Tanh",), count=25), x=(1, 4),
         constants={"W": 1.2 * np.linalg.qr(np.random.default_rng(3).normal(size=(4, 4)))[0]}), uniform(-1, 1, 1, 4)),
    Hard("thirty steps of chaos", model(*[node for i in range(30) for node in (
         ("Sub", f"one {f'h{i}' if i else 'x'}", f"d{i}"), ("Mul", f"{f'h{i}' if i else 'x'} d{i}", f"p{i}"),
         ("Mul", f"p{i} r", f"h{i + 1}"))], constants={"one": 1.0, "r": 3.9}), uniform(0.1, 0.9)),
    Hard("log-sum-exp far from zero", model(("Add", "x far", "h"), ("ReduceLogSumExp", "h", "y", ROWS),
         constants={"far": 1e5}),
         uniform(-5, 5)),
    Hard("log-softmax of large logits", model(("LogSoftmax", "x", "y")), uniform(-500, 500)),
    Hard("a masked softmax", model(("Where", "mask x low", "h"), ("Softmax", "h", "y"), constants={"mask": MASK,
         "low": -np.inf}),
         uniform(-2, 2)),
    Hard("a round trip", model(("Log", "x", "l"), ("Exp", "l", "e"), ("Sqrt", "e", "s"), ("Mul", "s s", "y")),
         uniform(1e-3, 1e3)),
    Hard("arc functions near their ends", model(("Acos", "x", "a"), ("Asin", "x", "b"), ("Mul", "a b", "y")),
         lambda rng: rng.choice([-1.0, 1.0], 4) * (1 - 10.0 ** rng.uniform(-12, -8, 4))),
    Hard("a logarithm near 1", model(("Log", "x", "l"), ("Reciprocal", "l", "y")), near(1, 1, 1, 1, distance=1e-6)),
    Hard("huge numbers", model(("Mul", "x u", "h"), ("Tanh", "h", "y"), constants={"u": 1e-100}), spread(99, 100)),
    Hard("a gradient that cancels to zero", model(("Sin", "x", "a"), ("Sin", "x", "b"), ("Sub", "a b", "y")),
         uniform(-1, 1)),
    Hard("a shift that softmax does not see", model(("ReduceSum", "x", "s", {"keepdims": 1}), ("Add", "v s", "h"),
         ("Softmax", "h", "y"),
         constants={"v": [0.1, -0.4, 0.3, 0.9]}), uniform(-1, 1)),
    Hard("a guarded quotient at 0", model(("Equal", "x zero", "c"), ("Where", "c one x", "safe"), ("Sin", "safe", "s"),
         ("Div", "s safe", "q"), ("Where", "c one q", "y"), constants={"zero": 0.0, "one": 1.0}), fixed(0.0, 0.3,
         -0.7, 1.0),
         ),
    Hard("the square root of padding that is sliced off", model(("Pad", "x pads", "p"), ("Sqrt", "p", "s"), ("Slice",
         "s from to", "t"), ("Sin", "t", "y"), constants=PADDING), uniform(0.1, 1)),
    Hard("a power of padding that is sliced off", model(("Pad", "x pads", "p"), ("Pow", "p k", "s"), ("Slice",
         "s from to", "t"), ("Sin", "t", "y"), constants={**PADDING, "k": 0.5}), uniform(0.1, 1)),
    Hard("the reciprocal of padding that is sliced off", model(("Pad", "x pads", "p"), ("Reciprocal", "p", "s"),
         ("Slice", "s from to", "t"), ("Sin", "t", "y"), constants=PADDING), uniform(0.1, 1)),
    Hard("a quotient by padding that is sliced off", model(("Pad", "x pads", "p"), ("Sqrt", "p", "s"), ("Div", "one s",
         "d"), ("Slice", "d from to", "t"), ("Sin", "t", "y"), constants={**PADDING, "one": 1.0}), uniform(0.1, 1)),
    Hard("an arc cosine of 1 that is sliced off", model(("Concat", "x one", "c", {"axis": 0}), ("Acos", "c", "a"),
         ("Slice", "a to0 to4", "t"), ("Sin", "t", "y"), constants={"one": [1.0], "to0": np.array([0]),
         "to4": np.array([4])}), uniform(-0.9, 0.9)),
    Hard("an artanh of 1 that is sliced off", model(("Concat", "x one", "c", {"axis": 0}), ("Atanh", "c", "a"),
         ("Slice", "a to0 to4", "t"), ("Sin", "t", "y"), constants={"one": [1.0], "to0": np.array([0]),
         "to4": np.array([4])}), uniform(-0.9, 0.9)),
    Hard("an arc cosine of what is clipped to 1", model(("Clip", "x low high", "c"), ("Acos", "c", "a"), ("Sin", "a",
         "y"), constants={"low": -1.0, "high": 1.0}), fixed(1.7, 0.5, -0.7, -1.2)),
    Hard("the square root of a Relu under a Where", model(("Relu", "x", "r"), ("Sqrt", "r", "s"), ("Greater",
         "x zero", "c"), ("Where", "c s zero", "h"), ("Sin", "h", "y"), constants={"zero": 0.0}), fixed(0.9, -0.5,
         0.7, -0.2)),
    Hard("the square root of a dead Relu", model(("Relu", "x", "r"), ("Sqrt", "r", "s"), ("Sin", "s", "y")),
         fixed(0.9, -0.5, 0.7, -0.2)),
    Hard("the square root of a dead Relu beside a floor", model(("Relu", "x", "r"), ("Sqrt", "r", "s"), ("Max", "s k",
         "h"), ("Sin", "h", "y"), constants={"k": 0.3}), fixed(0.9, -0.5, 0.7, -0.2)),
    Hard("some of the square roots of a Relu", model(("Relu", "x", "r"), ("Sqrt", "r", "s"), ("Gather", "s i", "g"),
         ("Sin", "g", "y"), constants={"i": np.array([0, 2])}), lambda rng: np.array([0.9, -0.5, 0.7, -0.2])),
    Hard("a long square root of padding", model(("Reshape", "x wide", "w"), ("Mul", "w row", "m"), ("Pad", "m pads",
         "p"), ("Sqrt", "p", "s"), ("Slice", "s from to axes", "t"), ("ReduceSum", "t axes", "q", ROWS), ("Sin", "q",
         "y"), constants={"wide": np.array([4, 1]), "row": np.linspace(0.5, 1.5, 90), "pads": np.array([0, 0, 0, 7]),
         "from": np.array([0]), "to": np.array([90]), "axes": np.array([1])}), uniform(0.1, 1)),
    *[Hard(f"{op} of deviations of 1 at {far:g}", model(*nodes, x=shape, constants={"w": np.linspace(0.5, 1.5, n), "b":
         np.linspace(-1, 1, n), "m": np.zeros(n), "v": np.ones(n)}), lambda rng, far=far, shape=shape:
         far + rng.normal(size=shape), "pass | inconclusive GC303") for far in (1e6, 1e8, 1e9)
      for op, shape, n, nodes in (
          ("LayerNormalization", (2, 8), 8, [("LayerNormalization", "x w b", "y")]),
          ("InstanceNormalization", (1, 2, 6), 2, [("InstanceNormalization", "x w b", "y")]),
          ("GroupNormalization", (1, 4, 3), 4, [("GroupNormalization", "x w b", "y", {"num_groups": 2})]),
          ("RMSNormalization", (2, 6), 6, [("RMSNormalization", "x w", "y")]),
          ("LpNormalization", (2, 6), 1, [("LpNormalization", "x", "y")]),
          ("BatchNormalization", (6, 2), 2, [("BatchNormalization", "x w b m v", "y", {"training_mode": 1})]))],
    Hard("Softsign far from zero", model(("Softsign", "x", "y")), spread(7, 9)),
    Hard("the determinant of a singular matrix", model(("Det", "x", "y"), x=(4, 4)),
         lambda rng: rng.normal(size=(4, 3)) @ rng.normal(size=(3, 4))),
    Hard("the determinant of nothing", model(("Det", "x", "y"), x=(3, 3)), lambda rng: np.zeros((3, 3))),
]  # fmt: skip
