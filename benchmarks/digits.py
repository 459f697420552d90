"""Numbers of 50 digits in ONNX's reference evaluator: it runs models on arrays of objects where NumPy lets it.

`teach` makes NumPy and the evaluator take such arrays where they ask for floats alone, and keeps constants, attributes
and casts from rounding to float32 on the way.  It changes both for the whole process.  Needs NumPy, onnx and mpmath.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import mpmath  # type: ignore[import-not-found,import-untyped,unused-ignore]
import numpy as np
import onnx
from onnx import TensorProto
from onnx.reference import op_run
from onnx.reference.ops import _op, op_cast, op_cast_like, op_constant
from onnx.reference.ops.aionnx_preview import op_flex_attention
from onnx.reference.ops.aionnx_preview_training import op_adam

DIGITS = 50
METHODS = {  # what NumPy asks numbers in arrays of objects for, and the names of these functions here
    **{name: name for name in ("exp", "log", "sqrt", "sin", "cos", "tan", "sinh", "cosh", "tanh", "floor", "ceil")},
    **{f"arc{name}": f"a{name}" for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh")},
}
TESTS: dict[str, Callable[[Any], bool]] = {
    "isnan": lambda number: mpmath.isnan(number),
    "isinf": lambda number: mpmath.isinf(number),
    "isposinf": lambda number: number == mpmath.inf,
    "isneginf": lambda number: number == -mpmath.inf,
}
ROUNDING = {op_flex_attention: np.float64, op_adam: object}  # modules that round to float32: to what instead
REAL = {TensorProto.FLOAT16, TensorProto.FLOAT, TensorProto.DOUBLE}


def wide(value: Any) -> Any:
    """The same numbers as an array of objects with 50 digits."""
    return np.asarray(np.frompyfunc(_number, 1, 1)(value), object)


def _number(number: Any) -> Any:
    return number if isinstance(number, mpmath.mpf) else mpmath.mpf(float(number))


def teach() -> None:
    """Lets NumPy and the evaluator of this process compute on numbers of 50 digits."""
    mpmath.mp.dps = DIGITS
    for name, function in METHODS.items():
        setattr(mpmath.mpf, name, _method(getattr(mpmath, function)))
    mpmath.mpf.astype = lambda number, _: number  # a sum over all axes is a number, no array
    for name, test in TESTS.items():
        setattr(np, name, _of_objects(getattr(np, name), test))
    for module, kind in ROUNDING.items():
        module.np = SimpleNamespace(**{**vars(np), "float32": kind})
    op_cast.cast_to = op_cast_like.cast_to = _kept(op_cast.cast_to)
    _op.OpRunBinary.run = _alike(_op.OpRunBinary.run)
    _op.OpRunBinaryNum.run = _alike(_op.OpRunBinaryNum.run)
    for kind in (op_constant.Constant_1, op_constant.Constant_11, op_constant.Constant_12):
        kind._run = _as_doubles(kind._run)
    read = op_run._attribute_conversion_function
    op_run._attribute_conversion_function = lambda kind: _FLOATS.get(kind) or read(kind)


_FLOATS: dict[Any, Callable[[Any], Any]] = {
    onnx.AttributeProto.FLOAT: lambda attribute: attribute.f,
    onnx.AttributeProto.FLOATS: lambda attribute: [*attribute.floats],
}


def _method(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda number: function(number)


def _of_objects(plain: Callable[..., Any], test: Callable[[Any], bool]) -> Callable[..., Any]:
    def asked(value: Any, *rest: Any, **named: Any) -> Any:
        if np.asarray(value).dtype != object:
            return plain(value, *rest, **named)
        return np.asarray(np.frompyfunc(test, 1, 1)(value), bool)

    return asked


def _kept(plain: Callable[..., Any]) -> Callable[..., Any]:
    """A cast between real types leaves the digits (a type of objects is one of strings for the evaluator)."""

    def cast(value: Any, to: int, *rest: Any, **named: Any) -> Any:
        if value.dtype == object:
            return value if to in {*REAL, TensorProto.STRING} else plain(value, to, *rest, **named)
        if to == TensorProto.STRING:
            return wide(value)
        return plain(value, TensorProto.DOUBLE if to in REAL else to, *rest, **named)

    return cast


def _alike(plain: Callable[..., Any]) -> Callable[..., Any]:
    """Operands of two real types become both the wider of them."""

    def run(self: Any, x: Any, y: Any) -> Any:
        kinds = {np.asarray(x).dtype, np.asarray(y).dtype}
        if len(kinds) == 2 and all(kind.kind in "fO" for kind in kinds):
            to = wide if np.dtype(object) in kinds else np.float64
            x, y = (np.asarray(to(v)) for v in (x, y))
        return plain(self, x, y)

    return run


def _as_doubles(plain: Callable[..., Any]) -> Callable[..., Any]:
    def run(self: Any, **attributes: Any) -> tuple[Any, ...]:
        return tuple(
            v.astype(np.float64) if getattr(v, "dtype", None) in (np.float16, np.float32) else v
            for v in plain(self, **attributes)
        )

    return run
