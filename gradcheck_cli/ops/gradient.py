"""ONNX's operator `Gradient`: a derivative inside of a model, made by the same rules that gradcheck checks.

The part of the graph that it differentiates is its attribute `body`, which reading a file adds (`formats`).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gradcheck_cli.autodiff import symbolic as sym
from gradcheck_cli.autodiff.backward import gradients
from gradcheck_cli.autodiff.tape import Var
from gradcheck_cli.autodiff.trace import Body
from gradcheck_cli.op import Op, composite
from gradcheck_cli.ops.training import DOMAIN


def gradient(
    *operands: Var, xs: tuple[str, ...], y: str, zs: tuple[str, ...] = (), body: Body | None = None
) -> tuple[Var, ...]:
    """The derivative of the sum of y by each of xs, where xs and zs have the values of the operands."""
    if body is None or len(operands) != len(xs) + len(zs):
        raise ValueError(f"{len(operands)} values are given for xs {list(xs)} and zs {list(zs)} of y {y!r}")
    tape, start = body.tape, len(body.tape.steps)
    free = [sym.identity(x) for x in operands[: len(xs)]]  # apart from what else the graph makes of them
    (target,) = body(*free, *operands[len(xs) :])
    ones = tape.constant(np.ones(target.shape, target.dtype))
    found = gradients(tape, {target.name: ones}, [x.name for x in free])
    for index in range(start, len(tape.steps)):  # nodes of this model, not of a derivative that is asked of it
        tape.steps[index] = replace(tape.steps[index], place=tape.place)
    return tuple(sym.zeros_like(x) if ct is None else sym.identity(ct) for x, ct in zip(free, found, strict=True))


GRADIENT: list[Op] = [composite("Gradient", gradient, domain=DOMAIN)]
