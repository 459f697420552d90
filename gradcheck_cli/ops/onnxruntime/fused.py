"""Operators of com.microsoft into which onnxruntime fuses others: Gelus, products with activations, windows and crops.

All are compositions of ONNX's own operators; definitions are those of onnxruntime's contributed operators.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gradcheck_cli.autodiff import symbolic as sym
from gradcheck_cli.autodiff.tape import Var
from gradcheck_cli.op import Op, as_given, attributes_of, composite, counting, deciding, either, require_known, trained
from gradcheck_cli.ops.conv import conv, conv_transpose, padded, settled
from gradcheck_cli.ops.images import check_images
from gradcheck_cli.ops.index import INDEX
from gradcheck_cli.ops.matmul import gemm
from gradcheck_cli.ops.pad import PAD
from gradcheck_cli.ops.quantize import QUANTIZE
from gradcheck_cli.ops.sampling import LINEAR, Taps, extended, meet, nearest, sample
from gradcheck_cli.ops.shape import checked

DOMAIN = "com.microsoft"
QUICK_ALPHA = 1.7020000219345093

# Operators with the name and the meaning of ONNX's own.
_ALIASES = ("DequantizeLinear", "GatherND", "Pad", "QuantizeLinear", "Trilu")
_MODES = {"bilinear": "linear", "bicubic": "cubic"}
_PARAMETERS: dict[str, tuple[str, ...]] = {
    "Elu": ("alpha",), "HardSigmoid": ("alpha", "beta"), "HardSwish": (), "LeakyRelu": ("alpha",), "Relu": (),
    "Selu": ("alpha", "gamma"), "Sigmoid": (), "Softmax": (), "Softplus": (), "Softsign": (), "Tanh": (),
    "ThresholdedRelu": ("alpha",), "Gelu": (), "Mish": (), "Celu": ("alpha",),
}  # fmt: skip
Ints = tuple[int, ...]
LOWEST = float(np.finfo(np.float32).min)  # maximum of a window without entries


def gelu(x: Var, bias: Var | None = None) -> Var:
    """(x + bias) Phi(x + bias), with the normal distribution function Phi."""
    return x.tape.apply("Gelu", shifted(x, bias))


def fast_gelu(x: Var, bias: Var | None = None) -> Var:
    """Gelu of x + bias, approximated by tanh."""
    return x.tape.apply("Gelu", shifted(x, bias), approximate="tanh")


def bias_split_gelu(x: Var, bias: Var) -> Var:
    """The first half of the features of x + bias, times the Gelu of the second half."""
    if x.shape[-1] % 2:
        raise ValueError(f"{x.shape[-1]} features cannot be halved")
    left, right = sym.split(x + bias, (x.shape[-1] // 2,) * 2, -1)
    return left * x.tape.apply("Gelu", right)


def scaled_silu(x: Var, scale: Var | None = None, *, alpha: float = 1.0) -> Var:
    """z sigmoid(z) with z = scale x."""
    z = x * alpha if scale is None else x * sym.cast(sym.reshape(scale, ()), x.dtype)
    return z * sym.sigmoid(z)


def bias_softmax(data: Var, bias: Var, *, axis: int = 1, is_inner_broadcast: int) -> Var:
    """Softmax over all axes from `axis` on, of data + bias.

    The bias is repeated along the axes right before `axis` if `is_inner_broadcast`, else along the first ones.
    """
    axis = axis % data.ndim
    lead = data.shape[:axis]
    if is_inner_broadcast:
        ones = data.ndim - bias.ndim
        first = bias.ndim - (data.ndim - axis)
        bias = sym.unsqueeze(bias, range(first, first + ones)) if ones > 0 else bias
    rows = sym.reshape(data + bias, (*lead, -1) if 0 not in data.shape else (*lead, int(np.prod(data.shape[axis:]))))
    return sym.reshape(data.tape.apply("Softmax", rows, axis=-1), data.shape)


def bias_dropout(
    data: Var, bias: Var, residual: Var | None = None, ratio: Var | None = None, training_mode: Var | None = None, *,
    seed: int | None = None,
) -> tuple[Var, ...]:  # fmt: skip
    """Dropout of data + bias, plus a residual."""
    y, mask = dropped(data + bias, ratio, training_mode, seed)
    return shifted(y, residual), mask


def dropped(x: Var, ratio: Any, training_mode: Any, seed: int | None) -> tuple[Var, ...]:
    """Dropout of x, and the mask of entries that are kept."""
    return x.tape.emit("Dropout", (x, ratio, training_mode), {} if seed is None else {"seed": seed}, n_outputs=2)


def fused_matmul(
    a: Var, b: Var, *, alpha: float = 1.0, transA: int = 0, transB: int = 0, transBatchA: int = 0,
    transBatchB: int = 0,
) -> Var:  # fmt: skip
    """alpha A B, either with its matrices transposed, or with its first axis moved right before the last one.

    A vector is never transposed.
    """
    left, right = _turned(a, bool(transA), bool(transBatchA)), _turned(b, bool(transB), bool(transBatchB))
    y = sym.matmul(left, right)
    return y if alpha == 1 else y * alpha


@attributes_of(fused_matmul)
def fused_matmul_activation(
    a: Var, b: Var, *, activation: str, activation_alpha: float | None = None, activation_axis: int | None = None,
    activation_beta: float | None = None, activation_gamma: float | None = None, **product: Any,
) -> Var:  # fmt: skip
    """FusedMatMul, then an activation."""
    y = fused_matmul(a, b, **product)
    return _activated(y, activation, activation_alpha, activation_beta, activation_gamma, axis=activation_axis)


@attributes_of(gemm)
def fused_gemm(
    a: Var, b: Var, c: Var | None = None, *, activation: str = "", activation_alpha: float | None = None,
    activation_beta: float | None = None, activation_gamma: float | None = None, **product: Any,
) -> Var:  # fmt: skip
    """Gemm, then an activation."""
    y = a.tape.apply("Gemm", a, b, c, **product)
    return _activated(y, activation, activation_alpha, activation_beta, activation_gamma)


@attributes_of(conv)
def fused_conv(
    x: Var, w: Var, b: Var | None = None, z: Var | None = None, *, activation: str = "",
    activation_params: tuple[float, ...] = (), **window: Any,
) -> Var:  # fmt: skip
    """Conv, plus z, then an activation."""
    y = x.tape.apply("Conv", x, w, b, **window)
    return _activated(shifted(y, z), activation, *activation_params)


def complex_mul(a: Var, b: Var, *, conjugated: bool = False) -> Var:
    """The product of complex numbers, pairs along the last axis; with the conjugate of b if `conjugated`."""
    if a.shape[-1:] != (2,) or b.shape[-1:] != (2,):
        raise ValueError("complex numbers are pairs along the last axis")
    (ar, ai), (br, bi) = (sym.split(x, (1, 1), -1) for x in (a, b))
    bi = -bi if conjugated else bi
    return sym.concat([ar * br - ai * bi, ar * bi + ai * br], -1)


def grid_sample(
    x: Var, grid: Var, *, align_corners: int = 0, mode: str = "bilinear", padding_mode: str = "zeros"
) -> Var:
    """ONNX's GridSample, with older names of its modes."""
    known = {"align_corners": align_corners, "mode": _MODES.get(mode, mode), "padding_mode": padding_mode}
    return x.tape.apply("GridSample", x, grid, **known)


def unfold_tensor(x: Var, *, dim: int = -1, size: int, step: int = 1) -> Var:
    """All slices of `size` entries along an axis, `step` apart, along a new last axis."""
    axis = dim % x.ndim
    if size < 1 or step < 1 or size > x.shape[axis]:
        raise ValueError(f"slices of {size}, {step} apart, do not fit {x.shape[axis]} entries")
    starts = np.arange(0, x.shape[axis] - size + 1, step)
    places = x.tape.constant(starts[:, None] + np.arange(size))
    windows = x.tape.apply("Gather", x, places, axis=axis)
    order = [i for i in range(windows.ndim) if i != axis + 1]
    return sym.transpose(windows, (*order, axis + 1))


def cdist(a: Var, b: Var, *, metric: str = "sqeuclidean") -> Var:
    """Distances of the rows of two matrices: "euclidean", or their squares "sqeuclidean"."""
    require_known("metric", metric, ("euclidean", "sqeuclidean"))
    apart = sym.unsqueeze(a, (1,)) - sym.unsqueeze(b, (0,))
    squares = sym.sum(apart * apart, (-1,), keepdims=False)
    return sym.sqrt(squares) if metric == "euclidean" else squares


def shifted(x: Var, bias: Var | None) -> Var:
    """x plus a bias, if there is one."""
    return x if bias is None else x + bias


def _turned(x: Var, matrices: bool, batch: bool) -> Var:
    if x.ndim < 2:
        return x
    order = [*range(x.ndim)]
    if batch:
        order.insert(x.ndim - 2, order.pop(0))
    if matrices:
        order[-2:] = order[-1], order[-2]
    return sym.transpose(x, order)


def _activated(
    y: Var, name: str, alpha: float | None = None, beta: float | None = None, gamma: float | None = None, *,
    axis: int | None = None,
) -> Var:  # fmt: skip
    """The activation of a name, with its parameters in a fixed order."""
    if not name:
        return y
    if name == "Clip":
        return sym.clip(y, -np.inf if alpha is None else alpha, np.inf if beta is None else beta)
    if name == "ScaledTanh":
        return sym.tanh(y * (1.0 if beta is None else beta)) * (1.0 if alpha is None else alpha)
    if name == "ParametricSoftplus":
        return sym.softplus(y * (1.0 if beta is None else beta)) * (1.0 if alpha is None else alpha)
    require_known("activation", name, _PARAMETERS)
    values = {"alpha": alpha, "beta": beta, "gamma": gamma}
    given = {key: value for key in _PARAMETERS[name] if (value := values[key]) is not None}
    return y.tape.apply(name, y, **given, **({} if axis is None else {"axis": axis}))


def channels_first(x: Var) -> Var:
    """`(N, *space, C)` as `(N, C, *space)`."""
    return sym.transpose(x, (0, x.ndim - 1, *range(1, x.ndim - 1)))


def channels_back(x: Var) -> Var:
    """`(N, C, *space)` as `(N, *space, C)`."""
    return sym.transpose(x, (0, *range(2, x.ndim), 1))


def _same(*families: list[Op]) -> list[Op]:
    return [replace(op, domain=DOMAIN) for family in families for op in family if not op.domain and op.name in _ALIASES]


def fused(name: str, forward: Any, **more: Any) -> Op:
    """An operator of com.microsoft as a composition."""
    return composite(name, forward, domain=DOMAIN, **more)


def maxpool_with_mask(
    x: Var, mask: Var, *, auto_pad: str = "NOTSET", kernel_shape: Ints, pads: Ints = (), storage_order: int = 0,
    strides: Ints = (),
) -> Var:  # fmt: skip
    """The maximum of each window, of which a row ends at its first entry with a mask of 0.

    As onnxruntime's kernel does: the first entry of an image or volume counts in any case, and the mask of channel c is
    read from entry c * size modulo the number of masks on: mostly all read the first one.
    """
    space, rank = x.shape[2:], x.ndim - 2
    if len(kernel_shape) != rank or mask.ndim != x.ndim or mask.shape[2:] != space:
        raise ValueError(f"windows {list(kernel_shape)} or a mask {list(mask.shape)} do not fit {list(x.shape)}")
    window = settled({"auto_pad": auto_pad, "pads": pads, "strides": strides}, space, kernel_shape)
    counts = [(n - k) // s + 1 for n, k, s in zip(padded(space, window), kernel_shape, window["strides"], strict=True)]
    checked((*x.shape[:2], *counts, *kernel_shape))
    free = _unmasked(mask.tape.guard(mask), x.shape)
    inside = np.ones((), bool)
    for axis in range(rank):
        start = np.arange(counts[axis]) * window["strides"][axis] - window["pads"][axis]
        place = start[:, None] + np.arange(kernel_shape[axis])
        shape = [1] * (2 * rank)
        shape[2 * axis : 2 * axis + 2] = place.shape
        inside = inside & ((place >= 0) & (place < space[axis])).reshape(shape)
        at = np.clip(place, 0, space[axis] - 1)
        x = x.tape.apply("Gather", x, at, axis=2 + 2 * axis)
        free = np.take(free, at, axis=2 + 2 * axis)
    counted = inside & np.logical_and.accumulate(free | ~inside, axis=-1)
    shown = sym.where(x.tape.constant(counted), x, LOWEST)
    return sym.max(shown, [3 + 2 * axis for axis in range(rank)], keepdims=False)


def _unmasked(mask: np.ndarray, shape: Ints) -> np.ndarray:
    """Flags of the entries of x that a mask lets count."""
    size, masks = math.prod(shape[2:]), max(math.prod(mask.shape[:2]), 1)
    first = np.arange(math.prod(shape[:2])) * size % masks
    free = (mask.ravel()[first[:, None] + np.arange(size)] != 0).reshape(shape)
    if len(shape) > 3:
        free[(..., *(0,) * (len(shape) - 2))] = True
    return free


def crop_and_resize(
    x: Var, rois: Var, batch_indices: Var, *, crop_size: Sequence[int], extrapolation_value: float = 0.0,
    mode: str = "bilinear",
) -> Var:  # fmt: skip
    """Boxes y1, x1, y2, x2 of images, relative to their sides, resampled to one size, corners to corners."""
    if mode not in ("bilinear", "nearest") or len(crop_size) != 2 or min(crop_size) < 1:
        raise ValueError(f"mode is {mode!r}, crop_size {list(crop_size)}; known are bilinear and nearest, of two sizes")
    if x.ndim != 4 or rois.ndim != 2 or rois.shape[1] != 4 or batch_indices.shape != rois.shape[:1]:
        raise ValueError(f"rois {list(rois.shape)} and batch_indices do not fit an input of shape {list(x.shape)}")
    check_images(batch_indices, x.shape[0])
    checked((*rois.shape[:1], x.shape[1], *crop_size))
    places = [_places(rois, side, crop_size[side], x.shape[2 + side]) for side in range(2)]
    seen = [sym.and_(p >= 0, p <= float(n - 1)) for p, n in zip(places, x.shape[2:], strict=True)]
    bounded = [sym.clip(p, 0, n - 1) for p, n in zip(places, x.shape[2:], strict=True)]
    images = sym.reshape(sym.cast(batch_indices, np.int64), (-1, 1, 1))
    taps = [
        extended(_met(sym.unsqueeze(p, (gap,)), mode), n, "border")
        for p, gap, n in zip(bounded, (2, 1), x.shape[2:], strict=True)
    ]
    y = sample(x, images, taps)
    both = sym.and_(sym.unsqueeze(seen[0], (2,)), sym.unsqueeze(seen[1], (1,)))
    return sym.transpose(sym.where(sym.unsqueeze(both, (3,)), y, extrapolation_value), (0, 3, 1, 2))


def _places(rois: Var, side: int, count: int, length: int) -> Var:
    """Positions of the rows or columns of each box, `(R, count)`; the middle for a single one."""
    first, last = (sym.reshape(sym.take(rois, side + shift, 1), (-1, 1)) * float(length - 1) for shift in (0, 2))
    if count == 1:
        return (first + last) * 0.5
    return first + rois.tape.constant(np.arange(count) / (count - 1), rois.dtype) * (last - first)


def _met(places: Var, mode: str) -> Taps:
    """The entries around positions, or the nearest one, halves rounded up."""
    if mode == "bilinear":
        return meet(places, LINEAR)
    return Taps(sym.unsqueeze(sym.cast(sym.floor(places + 0.5), np.int64), (-1,)))


@attributes_of(conv_transpose, "output_shape")
def conv_transpose_with_dynamic_pads(x: Var, w: Var, b: Var | None = None, **window: Any) -> Var:
    """ConvTranspose whose pads are an input."""
    return x.tape.apply("ConvTranspose", x, w, b, **window)


def word_conv_embedding(
    words: Var, w: Var, b: Var, table: Var, *, char_embedding_size: int | None = None,
    conv_window_size: int | None = None, embedding_size: int | None = None,
) -> Var:  # fmt: skip
    """For each word, a row of characters ended by zeros, the largest tanh of filters over windows of its characters."""
    filters, _, width, features = w.shape
    for name, given, known in (
        ("char_embedding_size", char_embedding_size, features), ("conv_window_size", conv_window_size, width),
        ("embedding_size", embedding_size, filters),
    ):  # fmt: skip
        if given not in (None, known):
            raise ValueError(f"{name} is {given}; that of the filters is {known}")
    if words.ndim != 2 or words.shape[1] < width or table.shape[1:] != (features,):
        shapes = f"words {list(words.shape)}, characters {list(table.shape)} and filters {list(w.shape)}"
        raise ValueError(f"{shapes} do not fit")
    letters = sym.unsqueeze(table.tape.apply("Gather", table, words), (1,))
    y = sym.tanh(sym.squeeze(letters.tape.apply("Conv", letters, w, b), (3,)))
    lengths = sym.sum(sym.cast(words > 0, np.int64), (1,))
    windows = sym.unsqueeze(sym.maximum(lengths - (width - 1), 1), (2,))
    best = sym.max(sym.where(sym.arange(y.tape, y.shape[2]) < windows, y, -math.inf), (2,), keepdims=False)
    return sym.where(sym.slice(words, (0,), (1,), (1,)) > 0, best, 0)


FUSED: list[Op] = [
    *_same(INDEX, PAD, QUANTIZE),
    # In ONNX's domain, but not ONNX's.
    composite("DynamicSlice", lambda data, starts, ends, axes=None: data.tape.apply("Slice", data, starts, ends, axes),
              cuts=deciding(1, 2, 3), does="Slice, under its experimental name."),
    *(composite(name, sym.identity, does="x itself, which the runtime copies to another device.")
      for name in ("MemcpyFromHost", "MemcpyToHost")),
    composite("Scale", lambda x, *, scale=1.0: x * scale, does="x times a number."),
    # In com.microsoft.
    fused("BiasAdd", lambda x, bias, skip: x + bias + skip, does="x + bias + skip."),
    fused("BiasDropout", bias_dropout, cuts=either(counting(1), deciding(3))),
    fused("BiasGelu", gelu, roles=trained(1)),
    fused("BiasSoftmax", bias_softmax),
    fused("BiasSplitGelu", bias_split_gelu),
    fused("CDist", cdist),
    fused("ComplexMul", complex_mul),
    fused("ComplexMulConj", lambda a, b: complex_mul(a, b, conjugated=True), does="ComplexMul with the conjugate of b."),
    fused("ExpandDims", lambda x, *, axis: sym.unsqueeze(x, (axis,)), static={"axis": 1}, bind=as_given,
          does="x with a new axis of length 1 at a position of the result."),
    fused("FastGelu", fast_gelu, roles=trained(1)),
    fused("FusedConv", fused_conv, roles=trained(1, 2), space="windows"),
    fused("FusedGemm", fused_gemm, roles=trained(0, 1, 2)),
    fused("FusedMatMul", fused_matmul),
    fused("FusedMatMulActivation", fused_matmul_activation),
    fused("Gelu", gelu),
    fused("GridSample", grid_sample, cuts=nearest, space="windows"),
    fused("GemmFastGelu", lambda x, w, bias=None: fast_gelu(sym.matmul(x, w), bias), does="FastGelu of a product."),
    fused("QuickGelu", lambda x, *, alpha=QUICK_ALPHA: x * sym.sigmoid(x * alpha), does="x sigmoid(alpha x)."),
    fused("Range", lambda start, limit, delta=None:
          start.tape.apply("Range", start, limit, sym.ones_like(start) if delta is None else delta), cuts=deciding(1),
          integers={1: (2, 3), 2: (1, 1)}, does="ONNX's Range, with steps of 1 by default."),
    fused("SampleOp", sym.identity, does="x itself."),
    fused("ScaledSiLU", scaled_silu),
    fused("SparseToDenseMatMul", fused_matmul),
    fused("TorchEmbedding", lambda weight, at, padding=None, scale_grad=None: weight.tape.apply("Gather", weight, at),
          cuts=deciding(1), does="Rows of a matrix."),
    fused("TransposeMatMul", fused_matmul),
    fused("UnfoldTensor", unfold_tensor),
    fused("ConvTransposeWithDynamicPads", conv_transpose_with_dynamic_pads, static={"pads": 2}, space="windows"),
    fused("CropAndResize", crop_and_resize, bind=as_given, static={"crop_size": 3}, cuts=deciding(2)),
    fused("MaxpoolWithMask", maxpool_with_mask, cuts=deciding(1)),
    fused("WordConvEmbedding", word_conv_embedding, cuts=deciding(0)),
]  # fmt: skip
