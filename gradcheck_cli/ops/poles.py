"""Gradient rules that give 0 wherever nothing flows in, also where an operator has an infinite slope.

`Where(x > 0, Sqrt(x), 0)` sends a cotangent of exactly 0 into Sqrt at x <= 0; 0 times infinity is not a number.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from gradcheck_cli.autodiff import symbolic as sym
from gradcheck_cli.autodiff.tape import Var
from gradcheck_cli.op import Op, Ops
from gradcheck_cli.op.batching import elementwise


def without_poles(ops: Ops) -> Ops:
    """The operator table, with such rules for elementwise operators that are not defined everywhere."""
    return {**ops, **{key: _safe(op) for key, op in ops.items() if _has_poles(op)}}


def _has_poles(op: Op) -> bool:
    return op.batching is elementwise and op.vjp is not None and not op.many and bool(op.valid)


def _safe(op: Op) -> Op:
    rule: Callable[..., Any] = op.vjp  # type: ignore[assignment]

    def safe(ct: Var, ans: Any, *primals: Var, **metadata: Any) -> tuple[Var | None, ...]:
        idle = sym.equal(ct, 0)
        return tuple(None if made is None else sym.where(idle, 0, made) for made in rule(ct, ans, *primals, **metadata))

    return replace(op, vjp=safe)
