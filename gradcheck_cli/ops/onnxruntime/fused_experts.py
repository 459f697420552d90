"""Mixtures of experts of com.microsoft, and products with weights that it keeps in a few bits.

A router chooses a few experts for each token, whose outputs are added up by weight.  All experts run on all tokens, and
those that were not chosen weigh nothing: the choice is a branch.  Packed weights are decoded block by block.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gradcheck_cli.autodiff import symbolic as sym
from gradcheck_cli.autodiff.tape import Var
from gradcheck_cli.errors import UnsupportedError
from gradcheck_cli.op import Op, as_given, attributes_of, deciding, from_end, quantized
from gradcheck_cli.ops.attention import paired
from gradcheck_cli.ops.onnxruntime.fused import fused, shifted
from gradcheck_cli.ops.onnxruntime.fused_quantize import unpacked
from gradcheck_cli.ops.recurrent import widened

Layer = Callable[[Var], Var]
_ACTIVATIONS: dict[str, Layer] = {
    "relu": sym.relu,
    "gelu": lambda x: x.tape.apply("Gelu", x, approximate="tanh"),
    "silu": lambda x: x * sym.sigmoid(x),
    "identity": lambda x: x,
}
_LEAST_SHARE = 1e-20  # smallest probability whose logarithm is taken
_FP4 = (0.0, 0.0052083333, 0.6666667, 1.0, 0.33333334, 0.5, 0.16666667, 0.25)
_NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
_CODES = ((*_FP4, *(-x for x in _FP4)), _NF4)  # by quant_type; numbers of bitsandbytes


def expert_layer(weights: Var, bias: Var | None) -> Layer:
    """One layer of all experts, by weights `(experts, out, in)` and a bias `(experts, out)`.

    A function of tokens `(experts or 1, tokens, in)`.
    """
    return lambda x: shifted(sym.matmul(x, sym.swap(weights)), None if bias is None else sym.unsqueeze(bias, (1,)))


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertActivation:
    """The activation between the layers, by the operator's attributes; swiglu takes two halves, apart or in turn."""

    activation_type: str = "relu"
    activation_alpha: float = 1.0
    activation_beta: float = 0.0
    swiglu_fusion: int = 0
    swiglu_limit: float = np.inf
    swiglu_limit_after_activation: int = 0

    def __post_init__(self) -> None:
        known = (*_ACTIVATIONS, "swiglu")
        if self.activation_type not in known or self.swiglu_fusion not in (0, 1, 2):
            raise ValueError(f"activation_type is {self.activation_type!r}, swiglu_fusion {self.swiglu_fusion}; known are "
                             f"{', '.join(known)}, and 0 to 2")  # fmt: skip

    def __call__(self, first: Layer, third: Layer | None, x: Var) -> Var:
        """The activation of the first layer's outputs, with those of the third if there is one."""
        y, other = first(x), None if third is None else third(x)
        if self.activation_type != "swiglu":
            done = _ACTIVATIONS[self.activation_type](y)
            return done if other is None else done * other
        gate, linear = (y, other) if self.swiglu_fusion == 0 else paired(y, self.swiglu_fusion == 1)
        if linear is None:
            raise ValueError("swiglu of layers that are not fused needs fc3_experts_weights")
        limit, late = self.swiglu_limit, self.swiglu_limit_after_activation
        limited = bool(np.isfinite(limit))
        if limited:
            linear = sym.clip(linear, -limit, limit)
        if limited and not late:
            gate = sym.minimum(gate, limit)
        active = gate * sym.sigmoid(gate * self.activation_alpha)
        return (sym.minimum(active, limit) if limited and late else active) * (linear + self.activation_beta)


@attributes_of(ExpertActivation)
def moe(
    x: Var, router: Var, fc1: Var, fc1_bias: Var | None, fc2: Var, fc2_bias: Var | None = None,
    fc3: Var | None = None, fc3_bias: Var | None = None, *, k: int = 1, normalize_routing_weights: int = 0,
    use_sparse_mixer: int = 0, **activation: Any,
) -> Var:  # fmt: skip
    """The outputs of the router's k best experts (a layer, an activation, a layer), added up by weight.

    A sparse mixer makes no difference, as on onnxruntime's CPU.
    """
    gate, third = ExpertActivation(**activation), None if fc3 is None else expert_layer(fc3, fc3_bias)
    _check(router, k)
    best, places = _best(router.tape.apply("Softmax", router, axis=-1), k)
    chosen = _routes(router, places, _normalized(best) if normalize_routing_weights else best)
    return _mixed(x, chosen, gate, expert_layer(fc1, fc1_bias), expert_layer(fc2, fc2_bias), third)


@attributes_of(ExpertActivation)
def qmoe(
    x: Var, router: Var, fc1: Var, fc1_scales: Var | None, fc1_bias: Var | None, fc2: Var, fc2_scales: Var | None,
    fc2_bias: Var | None = None, fc3: Var | None = None, fc3_scales: Var | None = None, fc3_bias: Var | None = None,
    fc1_zero: Var | None = None, fc2_zero: Var | None = None, fc3_zero: Var | None = None,
    router_weights: Var | None = None, *more: Var | None, accuracy_level: int = 0, block_size: int = 0,
    expert_weight_bits: int = 4, fc1_expert_weight_bits: int | None = None, fc2_expert_weight_bits: int | None = None,
    fc3_expert_weight_bits: int | None = None, k: int = 1, normalize_routing_weights: int = 0,
    quant_type: str = "int", use_sparse_mixer: int = 0, weights_prepacked: int = -1, **activation: Any,
) -> Var:  # fmt: skip
    """MoE with weights in 2, 4 or 8 bits, with a scale for each row or for each block of it."""
    if quant_type != "int" or weights_prepacked > 0 or any(part is not None for part in more):
        raise UnsupportedError("QMoE with weights as integers, not packed for a processor, is known", code="GC502")
    gate, layers = ExpertActivation(**activation), list[Any]()
    for codes, scales, bias, zero, bits in (
        (fc1, fc1_scales, fc1_bias, fc1_zero, fc1_expert_weight_bits),
        (fc2, fc2_scales, fc2_bias, fc2_zero, fc2_expert_weight_bits),
        (fc3, fc3_scales, fc3_bias, fc3_zero, fc3_expert_weight_bits),
    ):
        weights = codes and _expert_weights(codes, scales, zero, bits or expert_weight_bits, block_size)
        layers.append(weights and expert_layer(weights, bias))
    _check(router, k)
    best, places = _best(router, k)
    if router_weights is None:
        shares = router.tape.apply("Softmax", best, axis=-1)
    else:
        given = router.tape.apply("GatherElements", router_weights, places, axis=1)
        shares = _normalized(given) if normalize_routing_weights else given
    chosen = _routes(router, places, shares)
    return _mixed(x, chosen, gate, *layers)


def moe_group_router(
    logits: Var, expert_bias: Var, projection_weight: Var | None = None, *, group_topk: int = 2, n_group: int = 1,
    router_sentinel: float = -10000.0, top_k: int, topk_group: int = 1, outputs: Sequence[str],
) -> tuple[Var, ...]:  # fmt: skip
    """The log probabilities (sigmoids) of the best experts, a sentinel for others; or scores with and without a bias.

    The best experts are chosen from the best groups, by the sum of the scores of a group's few best experts; the bias
    only decides.
    """
    every = any(outputs[1:])
    if every == (not outputs or bool(outputs[0])) or (every and len([name for name in outputs if name]) < 2):
        raise ValueError("the outputs are router_probs, or selection_scores and router_weights instead")
    experts = expert_bias.size
    if min(top_k, n_group, topk_group, group_topk) < 1 or top_k > experts or topk_group > n_group or experts % n_group:
        raise ValueError(f"{experts} experts in {n_group} groups: {topk_group} of these, and {top_k} experts with "
                         f"{group_topk} that say how good a group is, cannot be chosen")  # fmt: skip
    if projection_weight is not None and (not every or logits.ndim != 2 or logits.shape[1] % 256):
        raise ValueError("a projection is of rows whose width is a multiple of 256, to scores of all experts")
    wide = widened(logits)
    if projection_weight is not None:
        wide = sym.matmul(wide, sym.swap(widened(projection_weight)))
    if wide.ndim < 2 or wide.shape[-1] != experts or (every and max(n_group, topk_group) > 1):
        raise ValueError(f"logits {list(wide.shape)} do not fit {experts} experts, or scores of all are not one group")
    shares = sym.sigmoid(sym.reshape(wide, (-1, experts)))
    scores = shares + sym.cast(expert_bias, shares.dtype)
    if every:
        return sym.full(shares.tape, (0,), 0, shares.dtype), scores, shares
    places = _of_best_groups(scores, n_group, topk_group, group_topk, top_k)
    found = sym.log(sym.maximum(shares.tape.apply("GatherElements", shares, places, axis=1), _LEAST_SHARE))
    others = sym.full(shares.tape, shares.shape, router_sentinel, shares.dtype)
    return (sym.cast(shares.tape.apply("ScatterElements", others, places, found, axis=1), logits.dtype),)


def _of_best_groups(scores: Var, groups: int, best: int, few: int, k: int) -> Var:
    """Indices of the k best experts of each row, within its best groups."""
    rows, experts = scores.shape
    if best < groups:
        size = experts // groups
        apart = sym.reshape(scores, (rows, groups, size))
        _, chosen = _best(sym.sum(_best(apart, min(few, size))[0], (-1,), keepdims=False), best)
        outside = sym.full(scores.tape, (rows, groups), -np.inf, scores.dtype)
        inside = sym.full(scores.tape, (rows, best), 0, scores.dtype)
        barred = scores.tape.apply("ScatterElements", outside, chosen, inside, axis=1)
        scores, k = sym.reshape(apart + sym.unsqueeze(barred, (-1,)), (rows, experts)), min(k, best * size)
    return _best(scores, k)[1]


def _check(router: Var, k: int) -> None:
    if router.ndim != 2 or not 1 <= k <= router.shape[1]:
        raise ValueError(f"k is {k}; router_probs {list(router.shape)} holds a row of experts for each token")


def _best(x: Var, k: int) -> tuple[Var, ...]:
    """The k largest entries of each row, and their indices."""
    return x.tape.emit("TopK", (x, sym.ints(x.tape, (k,))), {"axis": -1}, n_outputs=2)


def _normalized(shares: Var) -> Var:
    return shares / sym.sum(shares, (-1,))


def _routes(router: Var, places: Var, shares: Var) -> Var:
    """The weight of each expert for each token, `(tokens, experts)`: zero except for the best."""
    return router.tape.apply("ScatterElements", sym.zeros_like(router), places, shares, axis=1)


def _mixed(x: Var, routes: Var, gate: ExpertActivation, first: Layer, second: Layer, third: Layer | None) -> Var:
    """The outputs of the experts for each token, added up by weight."""
    tokens = sym.reshape(x, (1, routes.shape[0], x.shape[-1]))
    each = sym.transpose(second(gate(first, third, tokens)), (1, 0, 2))
    return sym.reshape(sym.matmul(sym.unsqueeze(routes, (1,)), each), x.shape)


def _expert_weights(codes: Var, scales: Var | None, zero: Var | None, bits: int, block: int) -> Var:
    """(codes - zero point) scale, with one scale for each row `(experts, out)` or block `(experts, out, blocks)`."""
    if scales is None or bits not in (2, 4, 8):
        raise ValueError(f"weights of {bits} bits without scales; known are 2, 4 and 8 bits, with scales")
    numbers = sym.cast(unpacked(codes, bits), scales.dtype)
    experts, rows, columns = numbers.shape
    blocks = columns // block if block > 0 else 1
    shape = experts, rows, blocks, columns // blocks
    if blocks * shape[3] != columns or scales.size != experts * rows * blocks:
        raise ValueError(f"scales {list(scales.shape)} do not fit {[experts, rows]} rows of {blocks} blocks")
    shifted = sym.reshape(numbers, shape) - _zeros(zero, bits, shape, scales.dtype)
    return sym.reshape(shifted * sym.reshape(scales, (experts, rows, blocks, 1)), (experts, rows, columns))


def _zeros(zero: Var | None, bits: int, shape: tuple[int, ...], dtype: np.dtype) -> Any:
    """Zero points, which are packed along their last axis; the middle of the range by default."""
    if zero is None:
        return 2.0 ** (bits - 1)
    experts, rows, blocks, _ = shape
    every = unpacked(zero, bits)
    count = blocks if zero.ndim == 3 else rows
    cut = sym.slice(every, (0,), (count,), (every.ndim - 1,))
    return sym.cast(sym.reshape(cut, (experts, rows, blocks, 1)), dtype)


def matmul_bnb4(
    a: Var, b: Var, absmax: Var, *, K: int, N: int, block_size: int, quant_type: int, training_mode: int = 0,
    transB: int = 1,
) -> Var:  # fmt: skip
    """a times weights `(N, K)`, transposed by default; a weight is an entry of a table times its block's maximum."""
    if quant_type not in (0, 1) or block_size < 16 or block_size & (block_size - 1):
        raise ValueError(f"quant_type is {quant_type}, 0 or 1; block_size {block_size}, a power of 2 from 16 on")
    blocks = -(-N * K // block_size)
    if b.shape != (-(-N * K // 2),) or absmax.size != blocks:
        raise ValueError(f"{N} x {K} weights are {-(-N * K // 2)} bytes and {blocks} maxima")
    pairs = sym.reshape(unpacked(sym.unsqueeze(b, (1,)), 4), (-1, 2))
    codes = sym.reshape(sym.concat(sym.split(pairs, (1, 1), 1)[::-1], 1), (-1,))  # high bits first
    table = a.tape.constant(np.asarray(_CODES[quant_type], np.float32), a.dtype)
    numbers = a.tape.apply("Gather", table, sym.cast(codes, np.int64))
    room = blocks * block_size
    padded = sym.pad(numbers, (0, room - numbers.size))
    weights = sym.reshape(padded, (blocks, block_size)) * sym.reshape(absmax, (blocks, 1))
    matrix = sym.reshape(sym.slice(sym.reshape(weights, (room,)), (0,), (N * K,), (0,)), (N, K))
    return sym.matmul(a, sym.swap(matrix) if transB else matrix)


def matmul_fp_q4(a: Var, b: Var, *, b_shape: tuple[int, int], blk_quant_type: int = 1) -> Var:
    """a times weights `(K, N)` in four bits, stored column by column in blocks of 32 beside their scale.

    A block is the four bytes of a float, a zero point except for type 0, and 16 bytes: low bits first, then high ones.
    """
    rows, columns = b_shape
    blocks, step = -(-rows // 32), 20 if blk_quant_type == 0 else 21
    if blk_quant_type not in (0, 1, 2) or b.size != columns * blocks * step:
        raise ValueError(f"weights of type {blk_quant_type} and shape {[rows, columns]} are no {b.size} bytes")
    parts = sym.split(sym.reshape(b, (columns, blocks, step)), (4, *((1,) if step == 21 else ()), 16), 2)
    pairs = sym.reshape(unpacked(parts[-1], 4), (columns, blocks, 16, 2))
    codes = sym.reshape(sym.transpose(pairs, (0, 1, 3, 2)), (columns, blocks, 32))
    zero = 8.0 if step == 20 else sym.cast(parts[1], a.dtype)
    weights = (sym.cast(codes, a.dtype) - zero) * _float_of(parts[0], a.dtype)
    whole = sym.reshape(weights, (columns, blocks * 32))
    return sym.matmul(a, sym.swap(sym.slice(whole, (0,), (rows,), (1,))))


def _float_of(x: Var, dtype: np.dtype) -> Var:
    """float32 numbers from their four bytes, lowest first, along the last axis."""
    low, middle, high, top = sym.split(sym.cast(x, np.int64), (1,) * 4, -1)
    odd, negative = high >= 128, top >= 128
    mantissa = low + middle * 256 + (high - sym.cast(odd, np.int64) * 128) * 65536
    exponent = (top - sym.cast(negative, np.int64) * 128) * 2 + sym.cast(odd, np.int64)
    whole = sym.cast(mantissa, dtype) * 2.0**-23 + sym.cast(exponent > 0, dtype)
    power = x.tape.apply("Pow", x.tape.constant(2.0, dtype), sym.cast(sym.maximum(exponent, 1) - 127, dtype))
    return sym.where(negative, -whole, whole) * power


def gather_block_quantized(
    data: Var, indices: Var, scales: Var, zero_points: Var | None = None, *, bits: int = 4, block_size: int = 128,
    gather_axis: int = 0, quantize_axis: int = 1,
) -> Var:  # fmt: skip
    """Entries along an axis of a table in a few bits, with a scale for each block along another axis."""
    whole = _is_float(data)
    if whole and zero_points is not None:
        raise ValueError("floating-point data takes no zero_points")
    if not (whole and block_size == 0) and (block_size < 16 or block_size & (block_size - 1)):
        raise ValueError(f"block_size is {block_size}; it is a power of 2 from 16 on")
    if data.dtype == np.uint8 and bits not in (2, 4, 8):
        raise ValueError(f"bits is {bits}; known are 2, 4 and 8")
    axis, blocked = from_end(gather_axis, data.ndim) + data.ndim, from_end(quantize_axis, data.ndim) + data.ndim
    _check_scales(data, scales, blocked, 8 // bits if data.dtype == np.uint8 else 1, block_size)
    parts = [data, scales, *([] if zero_points is None else [zero_points])]
    found = parts if axis == blocked else [_entries(part, indices, axis, data.shape[axis]) for part in parts]
    shift = indices.ndim - 1 if axis < blocked else 0
    y = _decoded(found, bits, block_size, blocked if axis == blocked else blocked + shift)
    length = data.shape[axis]
    y = _entries(y, indices, axis, length) if axis == blocked else y
    inside = sym.and_(indices >= -length, indices < length)  # zeros where an index is out of range
    return sym.where(sym.reshape(inside, (*inside.shape, *(1,) * (y.ndim - axis - inside.ndim))), y, 0)


def _check_scales(data: Var, scales: Var, axis: int, packed: int, block: int) -> None:
    """Raises ValueError unless there is a scale for each block; small floats may share one along other axes."""
    shape = [*data.shape[:-1], data.shape[-1] * packed]
    shape[axis] = -(-shape[axis] // block) if block else 1
    shared = (1,) if _is_float(data) else ()
    fits = len(shape) == scales.ndim and all(n in (m, *shared) for n, m in zip(scales.shape, shape, strict=True))
    if not fits:
        raise ValueError(f"scales {list(scales.shape)} do not fit {shape} blocks")


def _decoded(parts: list[Var], bits: int, block: int, axis: int) -> Var:
    """(data - zero point) scale, with a scale for each block along an axis."""
    data, scales, *zero = parts
    packed = data.dtype == np.uint8
    codes = unpacked(data, bits) if packed else data
    length = codes.shape[axis]
    numbers = sym.cast(codes, scales.dtype)
    if zero:
        spread = sym.cast(unpacked(zero[0], bits) if packed else zero[0], scales.dtype)
        numbers = numbers - _repeated(spread, length, block, axis)
    elif packed:
        numbers = numbers - float(2 ** (bits - 1))
    return numbers * _repeated(scales, length, block, axis)


def _repeated(x: Var, length: int, block: int, axis: int) -> Var:
    """Numbers of blocks along an axis, repeated for each entry."""
    if x.shape[axis] == 1 and not block:
        return x
    return sym.slice(sym.repeat(x, block, axis), (0,), (length,), (axis,))


def _entries(x: Var, indices: Var, axis: int, length: int) -> Var:
    """Entries along an axis; a table with one row stands for all rows."""
    places = sym.clip(sym.cast(indices, np.int64), -length, length - 1)
    if x.shape[axis] != length:  # one scale along the axis
        places = places * 0
    return x.tape.apply("Gather", x, places, axis=axis)


def _is_float(data: Var) -> bool:
    return data.dtype.name.startswith("float")


FUSED_EXPERTS: list[Op] = [
    fused("MoE", moe),
    fused(
        "MoEGroupRouter",
        moe_group_router,
        cuts=lambda attrs, operand, output: "decides" if (operand, output) == (1, 0) else "",
    ),
    fused("QMoE", qmoe),
    fused("GatherBlockQuantized", gather_block_quantized, bind=as_given, cuts=deciding(1), roles=quantized(2, 3)),
    fused("MatMulBnb4", matmul_bnb4, roles=quantized(2)),
    fused("MatMulFpQ4", matmul_fp_q4, static={"b_shape": 2}),
]
