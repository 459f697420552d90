"""Rules of fewer nodes for files, where runtimes have the operators that these take."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gradcheck_cli.autodiff import symbolic as sym
from gradcheck_cli.autodiff.tape import Var
from gradcheck_cli.op import Ops
from gradcheck_cli.ops import OPS

_TANH = OPS["", "Tanh"]


def sparing(ops: Ops) -> Ops:
    """The table with rules for files in the place of those for checks, except where somebody gave other ones."""
    return {**ops, _TANH.key: replace(_TANH, vjp=tanh_vjp)} if ops.get(_TANH.key) is _TANH else ops


def tanh_vjp(ct: Var, y: Var, x: Var) -> tuple[Var]:
    """1 / cosh(x)^2, as precise as the rule for checks; runtimes have a hyperbolic cosine in float32 alone."""
    if x.dtype != np.float32:
        assert _TANH.vjp is not None
        return tuple(_TANH.vjp(ct, y, x))
    c = sym.cosh(x)
    return (ct / (c * c),)
