"""Activations: rectifiers, sigmoids and their relatives, softmax.

Defaults of attributes are those of the standard, which are float32 numbers.  Every form is safe against
overflow on either side, and every decision is taken on real parts, so that a complex step goes through.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from gradcheck_cli.autodiff import symbolic as sym
from gradcheck_cli.autodiff.tape import Var
from gradcheck_cli.graph import Array
from gradcheck_cli.op import Op, binary, box_rules, composite, trained, unary, with_axis
from gradcheck_cli.op.batching import elementwise, like_first, spread_out, trailing
from gradcheck_cli.op.sparsity import lines
from gradcheck_cli.ops.binary import larger, smaller
from gradcheck_cli.ops.reduce import SHORT, total
from gradcheck_cli.ops.unary import log1p

SELU_ALPHA, SELU_GAMMA = 1.6732631921768188, 1.0507010221481323
LEAK = 0.009999999776482582
HARD_SLOPE = 0.20000000298023224


def positive(x: Array, **metadata: Any) -> Array:
    """True where x is positive: the branch of rectifiers.  At 0 frameworks take the slope of the other side."""
    return x > 0


def relu(x: Array) -> Array:
    """max(x, 0)."""
    return np.maximum(x, np.zeros((), x.dtype))


def leaky_relu(x: Array, *, alpha: float = LEAK) -> Array:
    """x, times alpha where it is not positive."""
    return np.where(x.real > 0, x, (alpha * x).astype(x.dtype, copy=False))


def prelu(x: Array, slope: Array) -> Array:
    """x, times the slope where it is not positive."""
    return np.where(x.real > 0, x, slope * x)


def prelu_vjp(ct: Var, y: Var, x: Var, slope: Var) -> tuple[Var, Var]:
    """ct_x is ct, times the slope where x is not positive; ct_slope is ct x there, else 0."""
    above = x > 0
    return sym.where(above, ct, ct * slope), ct * sym.where(above, 0, x)


def elu(x: Array, *, alpha: float = 1.0) -> Array:
    """x, or alpha (e^x - 1) where negative."""
    return _exponential(x, alpha, 1.0, 1.0)


def selu(x: Array, *, alpha: float = SELU_ALPHA, gamma: float = SELU_GAMMA) -> Array:
    """Elu times gamma."""
    return _exponential(x, alpha * gamma, 1.0, gamma)


def celu(x: Array, *, alpha: float = 1.0) -> Array:
    """x, or alpha (e^(x / alpha) - 1) where negative: one slope at 0."""
    return _exponential(x, alpha, alpha, 1.0)


def _exponential(x: Array, height: float, width: float, slope: float) -> Array:
    """x where positive, else height (e^(x / width) - 1)."""
    left = np.where(x.real > 0, np.zeros((), x.dtype), x)
    y = np.where(x.real > 0, slope * x, height * np.expm1(left / width))
    return y.astype(x.dtype, copy=False)


def _exponential_slope(x: Var, at_0: float, width: float, slope: float) -> Var:
    left = sym.minimum(x, 0.0)
    grown = sym.exp(left if width == 1 else left / width)
    return sym.where(x > 0, slope, grown * at_0)


def shrink(x: Array, *, bias: float = 0.0, lambd: float = 0.5) -> Array:
    """0 between -lambd and lambd; outside, x moved towards 0 by the bias."""
    moved = np.asarray(bias).astype(x.dtype)
    below, above = x.real < -lambd, x.real > lambd
    return np.where(below, x + moved, np.where(above, x - moved, np.zeros((), x.dtype)))


def shrink_piece(x: Array, *, bias: float = 0.0, lambd: float = 0.5) -> Array:
    """The branch: -1 below -lambd, 1 above lambd, 0 between."""
    return np.where(x < -lambd, -1, np.where(x > lambd, 1, 0))


def clip(x: Array, low: Array | None = None, high: Array | None = None) -> Array:
    """x bounded on either side; the upper bound wins."""
    raised = x if low is None else np.maximum(x, low)
    return raised if high is None else np.minimum(raised, high)


def clip_near_real(x: Array, low: Array | None = None, high: Array | None = None) -> Array:
    """x bounded, decided on real parts."""
    if low is not None and high is not None and is_relu6(low, high):
        return smaller(high, larger(low, x))  # the first at a tie
    raised = x if low is None else larger(x, low)
    return raised if high is None else smaller(raised, high)


def clip_piece(x: Array, low: Array | None = None, high: Array | None = None) -> Array:
    """The branch: 0 where x is taken, 1 for the lower bound, 2 for the upper one."""
    if is_relu6(low, high):
        return np.where(x <= low, np.int8(1), np.where(x >= high, np.int8(2), np.int8(0)))
    raised = np.zeros(x.shape, np.int8) if low is None else np.where(x < low, np.int8(1), np.int8(0))
    return raised if high is None else np.where(clip(x, low) > high, np.int8(2), raised)


def is_relu6(low: Array | None, high: Array | None) -> bool:
    """True for the bounds of ReLU6, 0 and 6, at which frameworks take the bound; at others they take x, as clamp does.

    In a net that was never trained units are exactly 0: those of a depthwise convolution of zeros, say.
    """
    return low is not None and high is not None and low.size == high.size == 1 and bool((low == 0) & (high == 6))


def clip_vjp(ct: Var, y: Var, x: Var, *bounds: Var | None) -> tuple[Var | None, ...]:
    """ct to the operand that was taken: x or a bound."""
    low, high = (*bounds, None, None)[:2]
    ct_low = ct_high = None
    above, below = _beyond(x, low, high)
    if above is not None:
        ct_high, ct = sym.where(above, ct, 0), sym.where(above, 0, ct)
    if below is not None:
        ct_low, ct = sym.where(below, ct, 0), sym.where(below, 0, ct)
    return (ct, ct_low, ct_high)[: 1 + len(bounds)]


def _beyond(x: Var, low: Var | None, high: Var | None) -> tuple[Var | None, Var | None]:
    """Masks of the entries for which the upper bound is taken, and of those for which x is below the lower one."""
    if low is None or high is None:
        return None if high is None else x > high, None if low is None else x < low
    raised = sym.maximum(x, low)
    if x.tape.fixed.issuperset((low.name, high.name)):
        return (raised >= high, x <= low) if is_relu6(low.value, high.value) else (raised > high, x < low)
    relu6 = sym.and_(sym.equal(low, 0), sym.equal(high, 6))  # bounds in the dtype of x are no constants
    ends = sym.and_(relu6, sym.equal(x, low)), sym.and_(relu6, sym.equal(raised, high))
    return sym.or_(raised > high, ends[1]), sym.or_(x < low, ends[0])


def hard_sigmoid(x: Var, *, alpha: float = HARD_SLOPE, beta: float = 0.5) -> Var:
    """alpha x + beta between 0 and 1."""
    return sym.clip(x * alpha + beta, 0.0, 1.0)


def sigmoid(x: Array) -> Array:
    """1 / (1 + e^-x)."""
    if x.dtype.kind == "f" and x.size:
        y = np.asarray(-x)
        if y.max() < _finite_below(x.dtype):
            np.exp(y, out=y)
            y += 1
            return np.reciprocal(y, out=y)
    left = x.real < 0
    small = np.exp(np.where(left, x, -x))
    return np.asarray(np.where(left, small, np.ones((), x.dtype)) / (1 + small))


@cache
def _finite_below(dtype: np.dtype[Any]) -> Any:
    """A number up to which e^x is finite."""
    return -np.log(np.finfo(dtype).tiny)


def softplus(x: Array) -> Array:
    """log(1 + e^x)."""
    left = x.real < 0
    grown = log1p(np.exp(np.where(left, x, -x)))
    return np.asarray(np.where(left, np.zeros((), x.dtype), x) + grown)


def softsign(x: Array) -> Array:
    """x / (1 + |x|)."""
    return np.asarray(x / (1 + np.abs(x)))


def softsign_step(x: Array) -> Array:
    """Softsign near the real axis as 1 - 1 / (1 + |x|): for large x the slope of x / (1 + |x|) would cancel."""
    left = x.real < 0
    near = 1 - 1 / (1 + np.where(left, -x, x))
    return np.asarray(np.where(left, -near, near))


def softsign_vjp(ct: Var, y: Var, x: Var) -> Var:
    """ct / (1 + |x|)^2; of a complex x the magnitude changes along x alone."""
    size = sym.abs(x)
    scale = sym.reciprocal(size + 1.0)
    if x.dtype.kind != "c":
        return ct * (scale * scale)
    along = sym.real(ct * x) * (scale * scale) / sym.where(sym.equal(size, 0), 1, size)
    return ct * scale - sym.conj(x) * along


def softmax(x: Array, *, axis: int = -1) -> Array:
    """e^x along an axis, scaled to sum 1."""
    y = np.asarray(x - _peak(x, axis))
    np.exp(y, out=y)
    return np.asarray(np.divide(y, total(y, axis, True).astype(x.dtype, copy=False), out=y))


def softmax_vjp(ct: Var, y: Var, x: Var, *, axis: int = -1) -> tuple[Var]:
    """y (ct - sum(ct y)) along the axis.

    Lines of -infinity only have NaN for a softmax, which a model masks later on: nothing flows there, since NaN times
    the zero that comes from the mask would be NaN.
    """
    shares = sym.where(sym.is_nan(y), 0, y)
    return (shares * (ct - sym.sum(ct * shares, (axis,))),)


def log_softmax(x: Array, *, axis: int = -1) -> Array:
    """The logarithm of softmax."""
    shifted = x - _peak(x, axis)
    return np.asarray(shifted - np.log(total(np.exp(shifted), axis, True)).astype(x.dtype, copy=False))


def _peak(x: Array, axis: int) -> Array:
    """The largest real part along an axis, which is kept; 0 if the axis is empty."""
    if x.ndim and x.shape[axis] == 0:
        return np.zeros((), x.real.dtype)
    if axis == -1 and x.ndim > 1 and x.shape[-1] <= SHORT:  # NumPy is slow along short axes
        return np.asarray(np.max(np.moveaxis(x.real, -1, 0).copy(), axis=0)[..., None])
    return np.asarray(np.max(x.real, axis=axis, keepdims=True))


def gelu(x: Var, *, approximate: str = "none") -> Var:
    """x times the normal distribution function, or its approximation by tanh."""
    if approximate == "tanh":
        return x * 0.5 * (sym.tanh((x * x * x * 0.044715 + x) * float(np.sqrt(2 / np.pi))) + 1.0)
    if approximate != "none":
        raise ValueError(f"approximate is {approximate!r}; known are none and tanh")
    return x * 0.5 * (sym.erf(x * float(np.sqrt(0.5))) + 1.0)


def swish(x: Var, *, alpha: float = 1.0) -> Var:
    """x sigmoid(alpha x)."""
    return x * sym.sigmoid(x if alpha == 1 else x * alpha)


def swiglu(a: Var, b: Var, *, alpha: float = 1.0) -> Var:
    """b gated by the swish of a, of the same shape."""
    if a.shape != b.shape:
        raise ValueError("the gate and the value differ in shape")
    return swish(a, alpha=alpha) * b


ACTIVATION: list[Op] = [
    unary("Relu", relu, lambda ct, y, x: sym.where(x > 0, ct, 0), step=lambda x: np.where(x.real > 0, x, 0),
          branch=positive, ordered=True, flat="zero", sides="sign"),
    unary("LeakyRelu", leaky_relu, lambda ct, y, x, alpha=LEAK: sym.where(x > 0, ct, ct * alpha), branch=positive,
          ordered=True, sides="sign"),
    binary("PRelu", prelu, prelu_vjp, branch=lambda x, slope: np.broadcast_to(x > 0, np.broadcast(x, slope).shape),
           ordered=True, roles=trained(1), sides="sign"),
    unary("Elu", elu, lambda ct, y, x, alpha=1.0: ct * _exponential_slope(x, alpha, 1.0, 1.0), branch=positive,
          ordered=True, sides="sign", elsewhere="to one"),
    unary("Selu", selu, lambda ct, y, x, alpha=SELU_ALPHA, gamma=SELU_GAMMA:
          ct * _exponential_slope(x, alpha * gamma, 1.0, gamma),
          branch=positive, ordered=True, sides="sign", elsewhere="to one"),
    unary("Celu", celu, lambda ct, y, x, alpha=1.0: ct * _exponential_slope(x, 1.0, alpha, 1.0), branch=positive,
          ordered=True, sides="smooth sign", elsewhere="to one"),
    unary("Shrink", shrink, lambda ct, y, x, lambd=0.5, bias=0.0: sym.where(sym.or_(x < -lambd, x > lambd), ct, 0),
          branch=shrink_piece, ordered=True, sides="middle"),
    composite("ThresholdedRelu", lambda x, *, alpha=1.0: sym.where(x > alpha, x, 0), flat="gated", sides="condition",
              does="x where it exceeds alpha, else 0."),
    Op("Clip", clip, clip_vjp, elementwise, step=clip_near_real, branch=clip_piece, ordered=True, moves="within",
       flat="bounded", sides="bounds", outline=spread_out),
    composite("HardSigmoid", hard_sigmoid, squashes=True, sides="bounds", elsewhere="to one"),
    composite("HardSwish", lambda x: x * (sym.clip(x + 3.0, 0.0, 6.0) / 6.0), flat="below", sides="bounds",
              elsewhere="to one", does="x relu6(x + 3) / 6."),
    unary("Sigmoid", sigmoid, lambda ct, y, x: ct * (y * sym.sigmoid(-x)),  # 1 - y would cancel where y is near 1
          squashes=True, slope=lambda y: y * (1 - y), elsewhere="to one"),
    unary("Softplus", softplus, lambda ct, y, x: ct * sym.sigmoid(x), elsewhere="to one"),
    unary("Softsign", softsign, softsign_vjp, step=softsign_step),
    Op("Softmax", softmax, softmax_vjp, trailing, bind=with_axis(-1), sparsity=lines,
       boxes=box_rules.along("axis"), outline=like_first, same_axes=True, squashes=True, cost=5.0,
       elsewhere="to one",
       slope=lambda y, axis: np.max(y * (1 - y), axis=axis, keepdims=True)),  # the largest of those that share a sum
    Op("LogSoftmax", log_softmax, lambda ct, y, x, axis: (ct - sym.exp(y) * sym.sum(ct, (axis,)),), trailing,
       bind=with_axis(-1), sparsity=lines, boxes=box_rules.along("axis"), same_axes=True, squashes=True, cost=5.0,
       outline=like_first, elsewhere="to one"),
    composite("Gelu", gelu, elsewhere="to one"),
    composite("Mish", lambda x: x * sym.tanh(sym.softplus(x)), elsewhere="to one", does="x tanh(softplus(x))."),
    composite("Swish", swish, elsewhere="to one"),
    composite("SwiGLU", swiglu),
]  # fmt: skip
