"""Normalizations in onnxruntime's training graphs: BatchNormalization that keeps its statistics, and derivatives.

A derivative takes the statistics as the forward operator computed them: with n = (x - mean) r and g = dY scale, dX is
r (g - mean(g) - n mean(g n)).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from gradcheck_cli.autodiff import symbolic as sym
from gradcheck_cli.autodiff.backward import unbroadcast
from gradcheck_cli.autodiff.tape import Var
from gradcheck_cli.op import Op
from gradcheck_cli.ops.normalization import EPSILON, MOMENTUM, channelwise, moments
from gradcheck_cli.ops.onnxruntime.fused import fused


def layer_grad(
    dy: Var, x: Var, scale: Var, mean: Var, inverse: Var, *, axis: int = -1, epsilon: float = EPSILON
) -> tuple[Var, Var, Var]:
    """To x, scale and bias of LayerNormalization, from the mean and the inverse deviation."""
    normal = (x - _kept(mean, x, axis)) * _kept(inverse, x, axis)
    return _layer_flows(dy, normal, scale, _kept(inverse, x, axis), axis)


def invertible_layer_grad(
    dy: Var, y: Var, scale: Var, bias: Var, inverse: Var, *, axis: int = -1, epsilon: float = EPSILON
) -> tuple[Var, Var, Var]:
    """The same from the output, of which scale and bias are taken back."""
    return _layer_flows(dy, (y - bias) / scale, scale, _kept(inverse, y, axis), axis)


def simplified_layer_grad(
    dy: Var, x: Var, scale: Var, inverse: Var, *, axis: int = -1, epsilon: float = EPSILON
) -> tuple[Var, Var]:
    """To x and scale of a normalization by the root mean square, from its inverse."""
    inverse = _kept(inverse, x, axis)
    normal, g = x * inverse, dy * scale
    return (g - normal * sym.mean(g * normal, range(axis, 0))) * inverse, unbroadcast(dy * normal, scale.shape)


def batch_norm_internal(
    x: Var, scale: Var, b: Var, mean: Var, var: Var, *, epsilon: float = EPSILON, momentum: float = MOMENTUM,
    training_mode: int = 1,
) -> tuple[Var, ...]:  # fmt: skip
    """BatchNormalization, in training with the mean and the inverse deviation of the batch besides."""
    attrs = {"epsilon": epsilon, "momentum": momentum, "training_mode": training_mode}
    operands = (x, scale, b, mean, var)
    if not training_mode:
        return x.tape.emit("BatchNormalization", operands, attrs)
    made = x.tape.emit("BatchNormalization", operands, attrs, n_outputs=3)
    center, _, spread = moments(x, _but_channels(x))
    inverse = sym.reciprocal(sym.sqrt(spread + epsilon))
    return *made, sym.reshape(center, mean.shape), sym.reshape(inverse, var.shape)


def batch_norm_grad(
    dy: Var, x: Var, scale: Var, mean: Var, inverse: Var, *, epsilon: float = EPSILON
) -> tuple[Var, Var, Var]:
    """To x, scale and bias, from the mean and the inverse deviation of the batch."""
    axes, spread = _but_channels(x), channelwise(inverse, x)
    normal = (x - channelwise(mean, x)) * spread
    flows = [sym.sum(flow, axes, keepdims=False) for flow in (dy * normal, dy)]
    size = float(math.prod(x.shape[a] for a in axes))
    lost = normal * channelwise(flows[0] / size, x) + channelwise(flows[1] / size, x)
    return (dy - lost) * (channelwise(scale, x) * spread), flows[0], flows[1]


def _layer_flows(dy: Var, normal: Var, scale: Var, inverse: Var, axis: int) -> tuple[Var, Var, Var]:
    g, axes = dy * scale, range(axis, 0)
    ct_x = (g - sym.mean(g, axes) - normal * sym.mean(g * normal, axes)) * inverse
    return ct_x, unbroadcast(dy * normal, scale.shape), unbroadcast(sym.identity(dy), scale.shape)


def _kept(statistic: Var, x: Var, axis: int) -> Var:
    """A statistic with an entry for each row, ready to broadcast against x: some runtimes drop the axes."""
    return sym.reshape(statistic, (*x.shape[:axis], *(1,) * -axis))


def _but_channels(x: Var) -> Sequence[int]:
    return [i for i in range(x.ndim) if i != 1]


TRAINING_NORMALIZATION: list[Op] = [
    fused("BatchNormInternal", batch_norm_internal),
    fused("BatchNormalizationGrad", batch_norm_grad),
    fused("InvertibleLayerNormalizationGrad", invertible_layer_grad),
    fused("LayerNormalizationGrad", layer_grad),
    fused("SimplifiedLayerNormalizationGrad", simplified_layer_grad),
]
