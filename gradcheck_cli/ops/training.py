"""ONNX's training domain: one step of the optimizers Adagrad, Adam and Momentum, and the operator `Gradient`.

The inputs of an optimizer are the rate R, the number of steps T done so far, then the tensors X, their gradients G and
their accumulated values: all X first, then all G ...  `Gradient` is a derivative inside of a model, made by the same
rules that gradcheck checks; the subgraph it differentiates is its attribute `body`, which reading a file adds
(`formats`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace

from gradcheck_cli.autodiff import symbolic as sym
from gradcheck_cli.autodiff.backward import gradients
from gradcheck_cli.autodiff.tape import Var
from gradcheck_cli.autodiff.trace import GraphFunction
from gradcheck_cli.op import Op, composite, require_known, squares
from gradcheck_cli.ops.recurrent import unrolled_in

DOMAIN = "ai.onnx.preview.training"


def adagrad(
    r: Var, t: Var, *xs: Var, decay_factor: float = 0.0, epsilon: float = 1e-6, norm_coefficient: float = 0.0
) -> list[Var]:
    """A step by the gradient over the root of the sum of squares so far; new X, then new sums of squares."""
    rate = r / (sym.cast(t, r.dtype) * decay_factor + 1.0)

    def step(x: Var, g: Var, h: Var) -> tuple[Var, ...]:
        g = g + x * norm_coefficient
        h = h + g * g
        return x - rate * g / (sym.sqrt(h) + epsilon), h

    return _each(step, xs, 3)


def adam(
    r: Var, t: Var, *xs: Var, alpha: float = 0.9, beta: float = 0.999, epsilon: float = 1e-6,
    norm_coefficient: float = 0.0, norm_coefficient_post: float = 0.0,
) -> list[Var]:  # fmt: skip
    """A step by a running mean of gradients over the root of one of squares; new X, then both new means."""
    count = sym.cast(sym.maximum(t, 1), r.dtype)
    grown = [1.0 - t.tape.apply("Pow", t.tape.constant(base, r.dtype), count) for base in (alpha, beta)]
    rate = r * sym.where(t > 0, sym.sqrt(grown[1]) / grown[0], 1)

    def step(x: Var, g: Var, v: Var, h: Var) -> tuple[Var, ...]:
        g = g + x * norm_coefficient
        v = v * alpha + g * (1 - alpha)
        h = h * beta + g * g * (1 - beta)
        return (x - rate * v / (sym.sqrt(h) + epsilon)) * (1 - norm_coefficient_post), v, h

    return _each(step, xs, 4)


def momentum(
    r: Var, t: Var, *xs: Var, alpha: float, beta: float, mode: str, norm_coefficient: float
) -> list[Var]:  # fmt: skip
    """A step by a running sum of gradients, or one ahead of it (nesterov); new X, then new sums."""
    require_known("mode", mode, ("standard", "nesterov"))
    share = sym.where(t > 0, t.tape.constant(beta, r.dtype), 1)

    def step(x: Var, g: Var, v: Var) -> tuple[Var, ...]:
        g = g + x * norm_coefficient
        v = v * alpha + share * g
        return x - r * (v if mode == "standard" else g + v * alpha), v

    return _each(step, xs, 3)


def _each(step: Callable[..., Any], xs: Sequence[Var], kinds: int) -> list[Var]:
    """The step for each tensor by itself; results by kind."""
    if not xs or len(xs) % kinds:
        raise ValueError(f"{len(xs)} tensors are given; each optimized one needs {kinds}")
    count = len(xs) // kinds
    made = [step(*xs[i::count]) for i in range(count)]
    return [y for kind in zip(*made, strict=True) for y in kind]


def gradient(
    *operands: Var, xs: tuple[str, ...], y: str, zs: tuple[str, ...] = (), body: GraphFunction | None = None
) -> tuple[Var, ...]:
    """The derivative of the sum of y by each of xs, where xs and zs have the values of the operands."""
    if body is None or len(operands) != len(xs) + len(zs):
        raise ValueError(f"{len(operands)} values are given for xs {list(xs)} and zs {list(zs)} of y {y!r}")
    tape, start = body.tape, len(body.tape.steps)
    free = [sym.identity(x) for x in operands[: len(xs)]]  # new tensors: other uses of x in the graph do not count
    before, tape.ops = tape.ops, unrolled_in(tape.ops)  # this derivative has one too
    try:
        (target,) = body(*free, *operands[len(xs) :])
        ones = tape.constant(np.ones(target.shape, target.dtype))
        found = gradients(tape, {target.name: ones}, [x.name for x in free])
    finally:
        tape.ops = before
    for index in range(start, len(tape.steps)):  # these nodes belong to the model, not to a gradient of it
        tape.steps[index] = replace(tape.steps[index], place=tape.place)
    return tuple(sym.zeros_like(x) if ct is None else sym.identity(ct) for x, ct in zip(free, found, strict=True))


TRAINING: list[Op] = [
    composite("Adagrad", adagrad, domain=DOMAIN, valid=squares(3)),
    composite("Adam", adam, domain=DOMAIN, valid=squares(4)),
    composite("Momentum", momentum, domain=DOMAIN),
    composite("Gradient", gradient, domain=DOMAIN),
]
