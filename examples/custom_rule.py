"""Somebody's own gradient rule under test: it takes the place of gradcheck's in the table of operators.

$ python examples/custom_rule.py
fail: d loss/d input, suspect Tanh 'act1'
pass: d loss/d input
"""

from dataclasses import replace
from pathlib import Path

import gradcheck_cli as gc

Cotangents = tuple[gc.Var]


def wrong(ct: gc.Var, y: gc.Var, x: gc.Var) -> Cotangents:
    """The cotangent of x, from that of y = tanh(x): the square of y is missing."""
    return (ct * (1.0 - y),)


def right(ct: gc.Var, y: gc.Var, x: gc.Var) -> Cotangents:
    """d tanh(x) / dx = 1 - tanh(x)^2."""
    return (ct * (1.0 - y * y),)


model = gc.load(Path(__file__).with_name("mlp.onnx"))
for rule in (wrong, right):
    ops = {**gc.OPS, ("", "Tanh"): replace(gc.OPS["", "Tanh"], vjp=rule)}
    for check in gc.check(model, x=["input"], y=["loss"], ops=ops).checks:
        suspect = f", suspect {check.suspect.op} {check.suspect.name!r}" if check.suspect else ""
        print(f"{check.status}: d {check.y}/d {check.x}{suspect}")
