"""Normalizations: (x - mean) / deviation over some axes, then a scale and a bias.

All are compositions.  Layer and RMS normalization, of which others are made, have rules of their own too:
with n = (x - mean) r, the cotangent g of n gives r (g - mean(g) - n mean(g n)).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from operator import add
from typing import Any

import numpy as np

from gradcheck_cli.autodiff import symbolic as sym
from gradcheck_cli.autodiff.tape import Var
from gradcheck_cli.graph import Array
from gradcheck_cli.op import NONZERO, Op, composite, negative_axes, require_known, statistics, trained

EPSILON = float(np.float32(1e-5))  # as ONNX stores it
MOMENTUM = float(np.float32(0.9))
_OF_SQUARES = 4.0  # roundings of a mean of squares
_OF_SHIFT = 2.0  # of a product that is taken from another one
DEVIATION = 1e-9  # the standard adds this to the deviation in MeanVarianceNormalization


def batch_normalization(
    x: Var,
    scale: Var,
    b: Var,
    mean: Var,
    var: Var,
    *,
    epsilon: float = EPSILON,
    momentum: float = MOMENTUM,
    training_mode: int = 0,
) -> tuple[Var, ...]:
    """Normalization of each channel by given statistics; in training by those of x, which update the given ones."""
    if not training_mode:
        slope = scale / sym.sqrt(var + epsilon)
        return (x * channelwise(slope, x) + channelwise(b - mean * slope, x),)  # fewer passes over x
    axes = [i for i in range(x.ndim) if i != 1]
    center, centered, spread = moments(x, axes)
    y = centered * (channelwise(scale, x) / sym.sqrt(spread + epsilon)) + channelwise(b, x)
    return y, _moved(mean, center, momentum), _moved(var, spread, momentum)


def group_normalization(x: Var, scale: Var, bias: Var, *, num_groups: int, epsilon: float = EPSILON) -> Var:
    """Normalization over groups of channels and the spatial axes; scale and bias are by channel."""
    n, c, *space = x.shape
    if num_groups < 1 or c % num_groups:
        raise ValueError(f"num_groups is {num_groups}, which does not divide the {c} channels")
    ones = (1,) * len(space)
    groups = (num_groups, c // num_groups)
    parts = [sym.reshape(v, (*groups, *ones)) for v in (scale, bias)]
    y = _layer(sym.reshape(x, (n, *groups, *space)), *parts, axis=2, epsilon=epsilon)
    return sym.reshape(y, x.shape)


def squares_off(
    unit: float, y: Array, x: Array, scale: Array, bias: Array, *, num_groups: int, epsilon: float = EPSILON, **_: Any
) -> float:
    """The error of onnxruntime's GroupNormalization: its variance is the mean of squares less the square of the mean."""
    unit = max(unit, float(np.finfo(np.float32).eps))
    groups = x.reshape(len(x), num_groups, -1)
    lost = np.max(np.mean(groups * groups, -1) / (np.var(groups, -1) + epsilon), initial=0.0)
    largest = np.max(np.abs(y), initial=0.0) + np.max(np.abs(bias), initial=0.0)
    return float(_OF_SQUARES * unit * lost * largest)


def shift_off(unit: float, y: Array, x: Array, scale: Array, bias: Array, *, epsilon: float = EPSILON) -> float:
    """The error of onnxruntime's InstanceNormalization: x times the slope, less the mean times the slope.

    Where all values are equal, as a single one is, nothing else is left.
    """
    wide, unit = x.astype(np.float64), min(unit, float(np.finfo(np.float32).eps))
    spread = np.var(wide, tuple(range(2, x.ndim)), keepdims=True)
    with np.errstate(divide="ignore"):  # an epsilon of 0
        slopes = np.abs(scale.astype(np.float64)).reshape(-1, *(1,) * (x.ndim - 2)) / np.sqrt(spread + epsilon)
    return float(_OF_SHIFT * unit * np.max(np.abs(wide) * slopes, initial=0.0))


def layer_normalization(
    x: Var, scale: Var, b: Var | None = None, *, axis: int = -1, epsilon: float = EPSILON, stash_type: Any = np.float32
) -> tuple[Var, Var, Var]:
    """Normalization over the axes from `axis` on; also gives the mean and the inverse deviation, in `stash_type`."""
    center, centered, inverse = _statistics(x, axis, epsilon)
    y = centered * inverse * scale
    y = y if b is None else y + b
    if y.shape != x.shape:
        raise ValueError(f"scale and bias do not broadcast to {list(x.shape)}")
    dtype = x.dtype if x.dtype.kind == "c" else stash_type
    return y, sym.cast(center, dtype), sym.cast(inverse, dtype)


def layer_normalization_vjp(
    cts: Sequence[Var | None], ans: Sequence[Var], x: Var, scale: Var, *b: Var | None, axis: int = -1,
    epsilon: float = EPSILON, stash_type: Any = np.float32,
) -> tuple[Var | None, ...]:  # fmt: skip
    """ct_x through the normalized values and, if they are used, through the statistics."""
    axes = range(axis, 0)
    _, center, inverse = ans
    if center.dtype != x.dtype:  # of a narrower dtype, or of a wider one that does not go with x in a file
        center, _, inverse = _statistics(x, axis, epsilon)
        cts = [ct and sym.cast(ct, x.dtype) for ct in cts]
    ct, ct_center, ct_inverse = cts
    normal = (x - center) * inverse
    size = float(math.prod(x.shape[axis:]))
    flows = [] if ct is None else [_centered(ct * scale, normal, axes) * inverse]
    if ct_center is not None:
        flows.append(sym.expand(ct_center / size, x.shape))
    if ct_inverse is not None:
        flows.append(normal * (-ct_inverse * inverse * inverse / size))
    ct_x = reduce(add, flows) if flows else None
    return ct_x, None if ct is None else ct * normal, *(ct for _ in b)


def rms_normalization_vjp(
    ct: Var, y: Var, x: Var, scale: Var, *, axis: int = -1, epsilon: float = EPSILON
) -> tuple[Var, Var]:
    """ct_x through the normalized values, and the cotangent of the scale."""
    inverse = inverse_rms(x, axis, epsilon)
    normal, g = x * inverse, ct * scale
    return (g - normal * sym.mean(g * normal, range(axis, 0))) * inverse, ct * normal


def lp_normalization(x: Var, *, axis: int = -1, p: int = 2) -> Var:
    """x over its norm along an axis; 0 if the norm is 0."""
    require_known("p", p, (1, 2))
    norm = x.tape.apply(f"ReduceL{p}", x, sym.ints(x.tape, (axis,)))
    zero = sym.equal(norm, 0)
    return sym.where(zero, 0, x / sym.where(zero, 1, norm))


def mean_variance_normalization(x: Var, *, axes: Sequence[int] = (0, 2, 3)) -> Var:
    """x with mean 0 and deviation 1 over axes; 0 where x is constant."""
    _, centered, spread = moments(x, axes)
    flat = sym.equal(spread, 0)  # the root has no derivative at 0
    return centered / sym.where(flat, 1, sym.sqrt(sym.where(flat, 1, spread)) + DEVIATION)


def moments(x: Var, axes: Sequence[int]) -> tuple[Var, Var, Var]:
    """The mean over axes, x without it, and the variance."""
    center = sym.mean(x, axes)
    centered = x - center
    return center, centered, sym.mean(centered * centered, axes)


def _statistics(x: Var, axis: int, epsilon: float) -> tuple[Var, Var, Var]:
    """The mean over the axes from `axis` on, x without it, and the inverse deviation."""
    center, centered, spread = moments(x, range(axis, 0))
    return center, centered, sym.reciprocal(sym.sqrt(spread + epsilon))


def channelwise(v: Var, x: Var) -> Var:
    """A vector with an entry for each channel, in a shape that broadcasts against x `(N, C, *space)`."""
    if v.shape != x.shape[1:2] and (x.ndim > 1 or v.shape != (1,)):
        raise ValueError(f"a vector of shape {list(v.shape)} does not fit the channels of {list(x.shape)}")
    return sym.unsqueeze(v, range(1, x.ndim - 1))


def _layer(x: Var, scale: Var, b: Var, *, axis: int, epsilon: float) -> Var:
    return x.tape.apply("LayerNormalization", x, scale, b, axis=axis, epsilon=epsilon)


def inverse_rms(x: Var, axis: int, epsilon: float) -> Var:
    """1 over the root mean square over the axes from `axis` on."""
    inverse: Var = sym.reciprocal(sym.sqrt(sym.mean(x * x, range(axis, 0)) + epsilon))
    return inverse


def _centered(g: Var, normal: Var, axes: Sequence[int]) -> Var:
    """g without the parts that change the mean and the deviation."""
    return g - sym.mean(g, axes) - normal * sym.mean(g * normal, axes)


def _moved(running: Var, current: Var, momentum: float) -> Var:
    return running * momentum + sym.reshape(current, running.shape) * (1.0 - momentum)


NORMALIZATION: list[Op] = [
    composite("BatchNormalization", batch_normalization, many=True, valid={4: NONZERO},
              roles=trained(1, 2) | statistics(3, 4), same_axes=True, channels=1),
    composite("InstanceNormalization", lambda x, scale, b, *, epsilon=EPSILON:
              _layer(x, channelwise(scale, x), channelwise(b, x), axis=2, epsilon=epsilon), roles=trained(1, 2),
              same_axes=True, channels=1, elsewhere_off=shift_off,
              does="Normalization over the spatial axes, each channel of each instance by itself."),
    composite("GroupNormalization", group_normalization, roles=trained(1, 2), same_axes=True, channels=1,
              elsewhere="narrow", elsewhere_off=squares_off),
    composite("LayerNormalization", layer_normalization, vjp=layer_normalization_vjp, many=True, roles=trained(1, 2),
              same_axes=True, channels=-1),
    composite("RMSNormalization", lambda x, scale, *, axis=-1, epsilon=EPSILON: x * inverse_rms(x, axis, epsilon) * scale,
              vjp=rms_normalization_vjp, roles=trained(1), channels=-1,
              does="x over its root mean square over the axes from `axis` on; the mean is not removed."),
    composite("LpNormalization", lp_normalization, same_axes=True, elsewhere="rough"),
    composite("MeanVarianceNormalization", mean_variance_normalization, same_axes=True,
              bind=lambda metadata, x: negative_axes({"axes": (0, 2, 3), **metadata}, x)),
]  # fmt: skip
