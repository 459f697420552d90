"""Functions of `Var`s that add ONNX operators to their tape: the vocabulary of rules and composed operators.

`np.` is numbers now, `sym.` is nodes later.  Only operators of ONNX opset 18 are emitted, so that a gradient is an
ONNX graph; axes, shapes and the like become constants of the tape.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gradcheck_cli.autodiff.tape import Operand, Tape, Var
from gradcheck_cli.op import DTYPES

_NUMBERS = {dtype: number for number, dtype in DTYPES.items()}


def _unary(op: str) -> Callable[[Var], Var]:
    def apply(x: Var) -> Var:
        return x.tape.apply(op, x)

    apply.__doc__ = f"{op} of x, elementwise."
    return apply


abs, exp, log, sqrt = _unary("Abs"), _unary("Exp"), _unary("Log"), _unary("Sqrt")
sin, cos, tan = _unary("Sin"), _unary("Cos"), _unary("Tan")
sinh, cosh, tanh, arctanh = _unary("Sinh"), _unary("Cosh"), _unary("Tanh"), _unary("Atanh")
erf, sigmoid, relu, softplus = _unary("Erf"), _unary("Sigmoid"), _unary("Relu"), _unary("Softplus")
reciprocal, sign = _unary("Reciprocal"), _unary("Sign")
floor, ceil, round_ = _unary("Floor"), _unary("Ceil"), _unary("Round")
not_, identity, is_nan = _unary("Not"), _unary("Identity"), _unary("IsNaN")


def _binary(op: str, what: str) -> Callable[[Var, Operand], Var]:
    def apply(x: Var, y: Operand) -> Var:
        return x.tape.apply(op, x, y)

    apply.__doc__ = f"{what}, elementwise."
    return apply


equal, and_, or_ = _binary("Equal", "x == y"), _binary("And", "x and y"), _binary("Or", "x or y")
maximum, minimum = _binary("Max", "The larger of x and y"), _binary("Min", "The smaller of x and y")


def custom(op: str, *inputs: Operand, **attrs: Any) -> Var:
    """An operator of gradcheck's own domain: the complex ones that ONNX lacks."""
    tape = next(x.tape for x in inputs if isinstance(x, Var))
    return tape.emit(op, inputs, attrs, domain="gradcheck")[0]


def wanted(x: Var | None) -> bool:
    """True if the cotangent of operand x will be used; a rule may skip computing any other."""
    return x is not None and x.name not in x.tape.spared


def real(x: Var) -> Var:
    """The real part; x itself where it is real."""
    return custom("Real", x) if x.dtype.kind == "c" else x


def imag(x: Var) -> Var:
    """The imaginary part of a complex x."""
    return custom("Imag", x)


def conj(x: Var) -> Var:
    """The complex conjugate; x itself where it is real."""
    return custom("Conj", x) if x.dtype.kind == "c" else x


def where(condition: Var, x: Operand, y: Operand) -> Var:
    """x where the condition holds, else y; numbers take the dtype of the other operand."""
    dtype = next((v.dtype for v in (x, y) if isinstance(v, Var)), None)
    x, y = (v if isinstance(v, Var) else condition.tape.constant(v, dtype) for v in (x, y))
    return condition.tape.apply("Where", condition, x, y)


def clip(x: Var, low: Operand, high: Operand) -> Var:
    """x bounded to [low, high]."""
    return x.tape.apply("Clip", x, low, high)


def sum(x: Var, axes: Sequence[int] | None = None, keepdims: bool = True) -> Var:
    """The sum over axes: all by default, x itself if there are none."""
    return _reduce("ReduceSum", x, axes, keepdims)


def sum_like(x: Var, like: Var) -> Var:
    """The sum over the axes along which `like` would be broadcast to x, of its shape; found when the tape runs."""
    front = sum(x, range(x.ndim - like.ndim), keepdims=False)
    differ = front.tape.apply("Not", front.tape.apply("Equal", shape_of(front), shape_of(like)))
    axes = squeeze(front.tape.apply("NonZero", differ), (0,))
    return front.tape.apply("ReduceSum", front, axes, keepdims=1, noop_with_empty_axes=1)


def shape_of(x: Var) -> Var:
    """The shape of x, found when the tape runs."""
    return x.tape.apply("Shape", x)


def mean(x: Var, axes: Sequence[int] | None = None, keepdims: bool = True) -> Var:
    """The mean over axes."""
    return _reduce("ReduceMean", x, axes, keepdims)


def max(x: Var, axes: Sequence[int] | None = None, keepdims: bool = True) -> Var:
    """The maximum over axes."""
    return _reduce("ReduceMax", x, axes, keepdims)


def prod(x: Var, axes: Sequence[int] | None = None, keepdims: bool = True) -> Var:
    """The product over axes."""
    return _reduce("ReduceProd", x, axes, keepdims)


def _reduce(op: str, x: Var, axes: Sequence[int] | None, keepdims: bool) -> Var:
    if axes is None:
        return x.tape.apply(op, x, keepdims=int(keepdims))
    return x.tape.apply(op, x, ints(x.tape, axes), keepdims=int(keepdims)) if len(axes) else x


def matmul(a: Var, b: Var) -> Var:
    """The product of stacks of matrices, as `np.matmul`."""
    return a.tape.apply("MatMul", a, b)


def swap(x: Var) -> Var:
    """x with its last two axes exchanged."""
    return transpose(x, (*range(x.ndim - 2), x.ndim - 1, x.ndim - 2))


def transpose(x: Var, perm: Sequence[int]) -> Var:
    """x with axes in the order `perm`."""
    return x if tuple(perm) == tuple(range(x.ndim)) else x.tape.apply("Transpose", x, perm=tuple(perm))


def reshape(x: Var, shape: Sequence[int]) -> Var:
    """x in another shape, of the same size (an entry of 0 is a dimension of length 0)."""
    if tuple(shape) == x.shape and not x.tape.loose:
        return x
    allowzero = {"allowzero": 1} if 0 in shape else {}
    return x.tape.apply("Reshape", x, ints(x.tape, shape), **allowzero)


def expand(x: Var, shape: Sequence[int]) -> Var:
    """x broadcast to a shape."""
    if tuple(shape) == x.shape and not x.tape.loose:
        return x
    return x.tape.apply("Expand", x, ints(x.tape, shape))


def unsqueeze(x: Var, axes: Sequence[int]) -> Var:
    """x with new axes of length 1 at positions of the result."""
    return x.tape.apply("Unsqueeze", x, ints(x.tape, axes)) if len(axes) else x


def squeeze(x: Var, axes: Sequence[int]) -> Var:
    """x without axes of length 1."""
    return x.tape.apply("Squeeze", x, ints(x.tape, axes)) if len(axes) else x


def concat(xs: Sequence[Var], axis: int) -> Var:
    """Tensors concatenated along an axis."""
    return xs[0] if len(xs) == 1 else xs[0].tape.apply("Concat", *xs, axis=axis)


def split(x: Var, sizes: Sequence[int], axis: int) -> tuple[Var, ...]:
    """Pieces of given sizes along an axis."""
    if len(sizes) == 1:
        return (x,)
    return x.tape.emit("Split", (x, ints(x.tape, sizes)), {"axis": axis}, n_outputs=len(sizes))


def slice(
    x: Var,
    starts: Sequence[int],
    ends: Sequence[int],
    axes: Sequence[int],
    steps: Sequence[int] | None = None,
) -> Var:
    """x[start:end:step] along each of the axes."""
    steps = steps or (1,) * len(axes)
    return x.tape.apply("Slice", x, *(ints(x.tape, v) for v in (starts, ends, axes, steps)))


def take(x: Var, index: int, axis: int) -> Var:
    """Entry `index` along an axis, which is removed."""
    return x.tape.apply("Gather", x, np.asarray(index, np.int64), axis=axis)


def pad(x: Var, pads: Sequence[int]) -> Var:
    """x with zeros around it: `pads` are the widths before each axis, then those behind (negative: cut off)."""
    return x.tape.apply("Pad", x, ints(x.tape, pads)) if any(pads) or x.tape.general else x


def fill(x: Var, like: Var, first: int = 0, before: Sequence[int] = ()) -> Var:
    """x padded with zeros, or cut, to the sizes of `like`, along its axes from `first` on.

    `before` has the number of zeros before each of these axes (default: none).
    """
    before = before or (0,) * (x.ndim - first)
    if not x.tape.general:
        rest = [n - m - b for n, m, b in zip(like.shape[first:], x.shape[first:], before, strict=True)]
        return pad(x, (*(0,) * first, *before, *(0,) * first, *rest))
    start = {"start": first} if first else {}
    beyond = like.tape.apply("Shape", like, **start) - x.tape.apply("Shape", x, **start)
    beyond = beyond - ints(x.tape, before) if any(before) else beyond
    return x.tape.apply("Pad", x, concat([ints(x.tape, (*(0,) * first, *before, *(0,) * first)), beyond], 0))


def cast(x: Var, dtype: Any) -> Var:
    """x in another dtype."""
    return x if x.dtype == dtype else x.tape.apply("Cast", x, to=_NUMBERS[np.dtype(dtype)])


def repeat(x: Var, times: int, axis: int) -> Var:
    """x with every entry along an axis (from the front) several times in a row."""
    wide = expand(unsqueeze(x, (axis + 1,)), (*x.shape[: axis + 1], times, *x.shape[axis + 1 :]))
    return reshape(wide, (*x.shape[:axis], x.shape[axis] * times, *x.shape[axis + 1 :]))


def stack(xs: Sequence[Var], axis: int) -> Var:
    """Tensors of one shape, side by side along a new axis."""
    return concat([unsqueeze(x, (axis,)) for x in xs], axis)


def zeros_like(x: Var) -> Var:
    """Zeros of the shape and dtype of x."""
    return full(x.tape, x.shape, 0, x.dtype)


def ones_like(x: Var) -> Var:
    """Ones of the shape and dtype of x."""
    return full(x.tape, x.shape, 1, x.dtype)


def full(tape: Tape, shape: Sequence[int], value: complex, dtype: Any) -> Var:
    """A tensor of one value."""
    return expand(tape.constant(value, dtype), shape)


def ints(tape: Tape, values: Sequence[int]) -> Var:
    """A constant vector of int64."""
    return tape.constant(tuple(values), np.int64)


def arange(tape: Tape, count: int) -> Var:
    """0, 1, ... count - 1 as int64."""
    return tape.constant(np.arange(count, dtype=np.int64))
