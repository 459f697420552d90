"""Derivatives of elementwise operators and of softmax, which onnxruntime's training graphs have as operators.

Each takes the cotangent dY and what its forward operator read or computed.  Definitions here and in the other
`training_*` files are those of onnxruntime-training 1.19; all are compositions, so that they can be differentiated.
"""

from __future__ import annotations

import math

from gradcheck_cli.autodiff import symbolic as sym
from gradcheck_cli.autodiff.backward import unbroadcast
from gradcheck_cli.autodiff.tape import Var
from gradcheck_cli.op import Op, composite, deciding, with_axis
from gradcheck_cli.ops.activation import LEAK
from gradcheck_cli.ops.onnxruntime.fused import QUICK_ALPHA, fused

CUBIC, TANH_SCALE = 0.044715, math.sqrt(2 / math.pi)


def relu_grad(dy: Var, x: Var) -> Var:
    """dY where x is positive; x may be the input of Relu or its output."""
    return sym.where(x > 0, dy, 0)


def leaky_relu_grad(dy: Var, y: Var, *, alpha: float = LEAK) -> Var:
    """dY, times alpha where the output is not positive (an alpha below 0 is beyond it)."""
    return sym.where(y > 0, dy, dy * alpha)


def sigmoid_grad(dy: Var, y: Var) -> Var:
    """dY y (1 - y)."""
    return dy * (y * (1.0 - y))


def tanh_grad(dy: Var, y: Var) -> Var:
    """dY (1 - y^2)."""
    return dy * (1.0 - y * y)


def gelu_grad(dy: Var, x: Var, bias: Var | None = None) -> Var:
    """dY (Phi(z) + z phi(z)) with the normal distribution Phi, for z = x + bias."""
    z = x if bias is None else x + bias
    below = (sym.erf(z * math.sqrt(0.5)) + 1.0) * 0.5
    density = sym.exp(z * z * -0.5) * (1 / math.sqrt(2 * math.pi))
    return dy * (below + z * density)


def fast_gelu_grad(dy: Var, x: Var, bias: Var | None = None) -> Var:
    """The derivative of z (1 + tanh(u)) / 2 with u = sqrt(2 / pi) (z + 0.044715 z^3), for z = x + bias."""
    z = x if bias is None else x + bias
    t = sym.tanh((z * z * z * CUBIC + z) * TANH_SCALE)
    slope = (z * z * (3 * CUBIC) + 1.0) * TANH_SCALE
    return dy * ((t + 1.0) * 0.5 + z * (1.0 - t * t) * slope * 0.5)


def quick_gelu_grad(dy: Var, x: Var, *, alpha: float = QUICK_ALPHA) -> Var:
    """The derivative of x sigmoid(alpha x)."""
    s = sym.sigmoid(x * alpha)
    return dy * s * (x * (1.0 - s) * alpha + 1.0)


def sin_grad(dy: Var, x: Var) -> Var:
    """dY cos(x)."""
    return dy * sym.cos(x)


def div_grad(dy: Var, a: Var, b: Var) -> tuple[Var, Var]:
    """To a and b of a / b, each summed to its shape."""
    return unbroadcast(dy / b, a.shape), unbroadcast(-dy * a / (b * b), b.shape)


def softmax_grad(dy: Var, y: Var, *, axis: int = -1) -> Var:
    """The share of each entry in what the sum over an axis gets is taken back."""
    return y * (dy - sym.sum(dy * y, (axis,)))


def flat_softmax_grad(dy: Var, y: Var, *, axis: int = 1) -> Var:
    """The same for a softmax over all axes from `axis` on."""
    return y * (dy - sym.sum(dy * y, range(axis, 0)))


def log_softmax_grad(dy: Var, y: Var, *, axis: int = -1) -> Var:
    """dY without the softmax's share of its sum over an axis."""
    return dy - sym.exp(y) * sym.sum(dy, (axis,))


def flat_log_softmax_grad(dy: Var, y: Var, *, axis: int = 1) -> Var:
    """The same for a softmax over all axes from `axis` on."""
    return dy - sym.exp(y) * sym.sum(dy, range(axis, 0))


TRAINING_ACTIVATION: list[Op] = [
    composite("SinGrad", sin_grad),  # which is not ONNX's, in its domain
    fused("BiasFastGeluGrad_dX", fast_gelu_grad),
    fused("BiasGeluGrad_dX", gelu_grad),
    fused("DivGrad", div_grad),
    fused("FastGeluGrad", fast_gelu_grad),
    fused("GeluGrad", gelu_grad),
    fused("LeakyReluGrad", leaky_relu_grad, cuts=deciding(1)),
    fused("LogSoftmaxGrad", flat_log_softmax_grad, bind=with_axis(1)),
    fused("LogSoftmaxGrad_13", log_softmax_grad, bind=with_axis(-1)),
    fused("QuickGeluGrad", quick_gelu_grad),
    fused("ReluGrad", relu_grad, cuts=deciding(1)),
    fused("SigmoidGrad", sigmoid_grad),
    fused("SoftmaxGrad", flat_softmax_grad, bind=with_axis(1)),
    fused("SoftmaxGrad_13", softmax_grad, bind=with_axis(-1)),
    fused("TanhGrad", tanh_grad),
]
