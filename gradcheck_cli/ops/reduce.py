"""Reductions over axes: sums, means, products, norms, extrema, and the index of an extremum."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradcheck_cli import symbolic as sym
from gradcheck_cli.graph import Array
from gradcheck_cli.lift import Kernel, on
from gradcheck_cli.op import Op
from gradcheck_cli.tape import Var


def bind_reduction(metadata: dict[str, Any], x: Array) -> dict[str, Any]:
    """The axes counted from the end: all by default, none if the list is empty and `noop_with_empty_axes`."""
    axes, noop = metadata.get("axes"), metadata.get("noop_with_empty_axes", 0)
    axes = (axes,) if isinstance(axes, int) else axes
    if not axes:
        axes = () if noop else tuple(range(x.ndim))
    for a in axes:
        if not -x.ndim <= a < x.ndim:
            raise ValueError(f"axis {a} is out of range for {x.ndim} dimensions")
    return {"axes": tuple(a if a < 0 else a - x.ndim for a in axes), "keepdims": metadata.get("keepdims", 1)}


def reduction(function: Kernel) -> Kernel:
    """A kernel from a NumPy function of (x, axis, keepdims)."""

    def kernel(
        x: Array, *, axes: tuple[int, ...] | None = None, keepdims: int = 1, noop_with_empty_axes: int = 0
    ) -> Array:
        return np.asarray(function(x, axis=axes, keepdims=bool(keepdims))).astype(x.dtype, copy=False)

    return kernel


def spread(ct: Var, x: Var, axes: tuple[int, ...], keepdims: int) -> Var:
    """A cotangent of the result with its axes of length 1 back, ready to broadcast against x."""
    shape = tuple(1 if i - x.ndim in axes else d for i, d in enumerate(x.shape))
    return ct if keepdims else sym.reshape(ct, shape)


def sum_vjp(ct: Var, y: Var, x: Var, *, axes: tuple[int, ...], keepdims: int) -> tuple[Var]:
    """The same for every entry that was summed."""
    return (sym.expand(spread(ct, x, axes, keepdims), x.shape),)


REDUCE: list[Op] = [
    Op("ReduceSum", reduction(np.sum), sum_vjp, on(0), static={"axes": 1}, bind=bind_reduction, linear="each"),
]
