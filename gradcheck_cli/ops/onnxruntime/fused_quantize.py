"""Quantized operators of com.microsoft (dequantize, compute, quantize), and LSTMs with integer weights or attention.

Nothing flows through integers, by nature; scales, biases and the left side of a product with packed weights are floats,
and have gradients.  The LSTMs are ONNX's LSTM with one change: the products with W and R, or the input of a step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from gradcheck_cli.autodiff import symbolic as sym
from gradcheck_cli.autodiff.tape import Var
from gradcheck_cli.errors import UnsupportedError
from gradcheck_cli.op import Op, as_given, attributes_of, deciding, either, quantized, rounding_of
from gradcheck_cli.ops.activation import LEAK
from gradcheck_cli.ops.conv import along, conv, counts
from gradcheck_cli.ops.onnxruntime.fused import channels_back, channels_first, fused
from gradcheck_cli.ops.pool import average_pool, bind_pool, max_pool
from gradcheck_cli.ops.recurrent import (
    LSTM,
    Activation,
    Cell,
    RecurrentLayer,
    lstm,
    lstm_cell,
    part,
    prepared,
    unrolled,
)


def of_one(function: Callable[..., Var]) -> Callable[..., Var]:
    """A quantized operator of one operand: x with its scale and zero point, then those of y."""

    @attributes_of(function)
    def forward(
        x: Var, x_scale: Var, x_zero_point: Var | None, y_scale: Var, y_zero_point: Var | None = None, **attributes: Any
    ) -> Var:
        return _coded(function(_decoded(x, x_scale, x_zero_point), **attributes), y_scale, y_zero_point, x)

    forward.__doc__ = function.__doc__
    return forward


def of_two(function: Callable[[Var, Var], Var]) -> Callable[..., Var]:
    """A quantized operator of two operands that broadcast."""

    def forward(
        a: Var, a_scale: Var, a_zero_point: Var | None, b: Var, b_scale: Var, b_zero_point: Var | None, c_scale: Var,
        c_zero_point: Var | None = None,
    ) -> Var:  # fmt: skip
        y = function(_decoded(a, a_scale, a_zero_point), _decoded(b, b_scale, b_zero_point))
        return _coded(y, c_scale, c_zero_point, a)

    return forward


def qlinear_softmax(
    x: Var, x_scale: Var, x_zero_point: Var | None, y_scale: Var, y_zero_point: Var, *, axis: int = -1, opset: int
) -> Var:
    """Softmax along an axis, before opset 13 over all axes from there on, in a whole number of levels.

    onnxruntime, which alone defines it, takes floor(1 / y_scale) of them, in float32: 254 for 1/255.
    """
    rows = (*x.shape[:axis], math.prod(x.shape[axis:])) if opset < 13 else x.shape
    logits = sym.reshape(_decoded(x, x_scale, x_zero_point), rows)
    y = sym.reshape(x.tape.apply("Softmax", logits, axis=-1 if opset < 13 else axis), x.shape)
    levels = x.tape.apply("Floor", sym.reciprocal(sym.cast(y_scale, np.float32)))
    return _coded(y * sym.cast(levels, y.dtype), x.tape.constant(np.ones((), y.dtype)), y_zero_point, x)


def qlinear_concat(y_scale: Var, y_zero_point: Var, *parts: Var, axis: int) -> Var:
    """Tensors, each with its scale and zero point, concatenated along an axis."""
    if len(parts) % 3:
        raise ValueError("operands must come in threes: a tensor, its scale and its zero point")
    decoded = [_decoded(*parts[i : i + 3]) for i in range(0, len(parts), 3)]
    return _coded(sym.concat(decoded, axis), y_scale, y_zero_point, parts[0])


def qlinear_where(
    condition: Var, x: Var, x_scale: Var, x_zero_point: Var, y: Var, y_scale: Var, y_zero_point: Var, z_scale: Var,
    z_zero_point: Var,
) -> Var:  # fmt: skip
    """x where the condition holds, else y."""
    chosen = sym.where(condition, _decoded(x, x_scale, x_zero_point), _decoded(y, y_scale, y_zero_point))
    return _coded(chosen, z_scale, z_zero_point, x)


@of_one
@attributes_of(average_pool, "dilations")
def qlinear_average_pool(x: Var, *, channels_last: int = 0, count_include_pad: int = 0, **window: Any) -> Var:
    """AveragePool, with channels last if `channels_last`.

    A window that `ceil_mode` lets reach beyond the padding is divided by its full size if padding counts, as in
    onnxruntime's kernel; the standard's AveragePool leaves out the part beyond.
    """

    x = channels_first(x) if channels_last else x
    mean = x.tape.apply("AveragePool", x, count_include_pad=count_include_pad, **window)
    if count_include_pad and window.get("ceil_mode"):
        counted = counts(along(x.value, **bind_pool(window, x.value)), 1)
        mean = mean * x.tape.constant(counted / math.prod(window["kernel_shape"]), x.dtype)
    return channels_back(mean) if channels_last else mean


def qlinear_global_average_pool(
    x: Var, x_scale: Var, x_zero_point: Var, y_scale: Var, y_zero_point: Var, *, channels_last: int = 0
) -> Var:
    """The mean over the spatial axes."""
    axes = range(1, x.ndim - 1) if channels_last else range(2, x.ndim)
    return _coded(sym.mean(_decoded(x, x_scale, x_zero_point), axes), y_scale, y_zero_point, x)


@attributes_of(conv)
def qlinear_conv(
    x: Var, x_scale: Var, x_zero_point: Var, w: Var, w_scale: Var, w_zero_point: Var, y_scale: Var,
    y_zero_point: Var, b: Var | None = None, *, channels_last: int = 0, **window: Any,
) -> Var:  # fmt: skip
    """ONNX's QLinearConv, with channels last if `channels_last`."""
    quanta = x_scale, x_zero_point, w, w_scale, w_zero_point, y_scale, y_zero_point, b
    y = x.tape.apply("QLinearConv", channels_first(x) if channels_last else x, *quanta, **window)
    return channels_back(y) if channels_last else y


@attributes_of(max_pool, "storage_order", "n_outputs")
def nhwc_max_pool(x: Var, **window: Any) -> Var:
    """MaxPool of integers, with channels last."""
    return channels_back(x.tape.apply("MaxPool", channels_first(x), **window))


def qgemm(
    a: Var, a_scale: Var, a_zero_point: Var, b: Var, b_scale: Var, b_zero_point: Var, c: Var | None = None,
    y_scale: Var | None = None, y_zero_point: Var | None = None, *, alpha: float = 1.0, transA: int = 0,
    transB: int = 0,
) -> Var:  # fmt: skip
    """alpha A B + C, where C is in units of alpha times both scales; quantized if y has a scale."""
    wide = [sym.cast(x, a_scale.dtype) for x in (a, a_zero_point, b, b_zero_point)]
    left = wide[0] - wide[1]
    right = (sym.swap(wide[2]) if transB else wide[2]) - wide[3]
    product = sym.matmul(sym.swap(left) if transA else left, right)
    product = product if c is None else product + sym.cast(c, product.dtype)
    y = product * (a_scale * b_scale * alpha)
    return y if y_scale is None else _coded(y, y_scale, y_zero_point, a)


def dynamic_quantize_matmul(
    a: Var, b: Var, b_scale: Var, b_zero_point: Var | None = None, bias: Var | None = None
) -> Var:
    """a, quantized by its own range, times a quantized matrix, plus a bias."""
    codes, scale, zero = a.tape.emit("DynamicQuantizeLinear", (a,), {}, n_outputs=3)
    return matmul_integer_to_float(codes, b, scale, b_scale, zero, b_zero_point, bias)


def matmul_integer_to_float(
    a: Var, b: Var, a_scale: Var, b_scale: Var, a_zero_point: Var | None = None, b_zero_point: Var | None = None,
    bias: Var | None = None,
) -> Var:  # fmt: skip
    """The product of quantized matrices as floats, plus a bias."""
    y = sym.matmul(_less(a, a_zero_point, a_scale), _less(b, b_zero_point, a_scale)) * (a_scale * b_scale)
    return y if bias is None else y + bias


def mul_integer(a: Var, a_zero_point: Var | None, b: Var, b_zero_point: Var | None = None) -> Var:
    """The product of integers minus their zero points, as int32."""
    left, right = (
        sym.cast(x, np.int32) if zero is None else sym.cast(x, np.int32) - sym.cast(zero, np.int32)
        for x, zero in ((a, a_zero_point), (b, b_zero_point))
    )
    return left * right


def matmul_nbits(
    a: Var, b: Var, scales: Var, zero_points: Var | None = None, g_idx: Var | None = None, bias: Var | None = None, *,
    K: int, N: int, accuracy_level: int = 0, bits: int = 4, block_size: int, weight_prepacked: int = 0,
) -> Var:  # fmt: skip
    """a times the transpose of weights `(N, K)` that are packed in bits, in blocks with a scale and zero point."""
    if bits not in (2, 4, 8) or block_size < 16 or block_size & (block_size - 1) or weight_prepacked or g_idx:
        raise UnsupportedError("known are 2, 4 or 8 bits in blocks of 16 or more, without g_idx", code="GC502")
    blocks = -(-K // block_size)
    codes = sym.reshape(unpacked(sym.reshape(b, (N, -1)), bits), (N, blocks, block_size))
    zero = 2.0 ** (bits - 1) if zero_points is None else _zero_points(zero_points, bits, N, blocks, a.dtype)
    weights = (sym.cast(codes, a.dtype) - zero) * sym.reshape(scales, (N, blocks, 1))
    flat = sym.slice(sym.reshape(weights, (N, blocks * block_size)), (0,), (K,), (1,))
    y = sym.matmul(a, sym.swap(flat))
    return y if bias is None else y + bias


def _zero_points(packed: Var, bits: int, n: int, blocks: int, dtype: np.dtype) -> Var:
    """A zero point for each block; they may be packed like the weights."""
    if packed.dtype != np.uint8:
        return sym.reshape(packed, (n, blocks, 1))
    every = unpacked(sym.reshape(packed, (n, -1)), bits)
    return sym.cast(sym.unsqueeze(sym.slice(every, (0,), (blocks,), (1,)), (2,)), dtype)


def unpacked(x: Var, bits: int) -> Var:
    """Numbers of `bits` bits out of bytes, the lowest bits first, along the last axis."""
    if bits == 8:
        return x
    mask = x.tape.constant(np.uint8(2**bits - 1))
    shifted = [x.tape.apply("BitShift", x, x.tape.constant(np.uint8(s)), direction="RIGHT") for s in range(0, 8, bits)]
    parts = [x.tape.apply("BitwiseAnd", part, mask) for part in shifted]
    return sym.reshape(sym.stack(parts, -1), (*x.shape[:-1], x.shape[-1] * len(parts)))


def _decoded(x: Var, scale: Var, zero_point: Var | None) -> Var:
    return x.tape.apply("DequantizeLinear", x, scale, zero_point)


def _coded(y: Var, scale: Var, zero_point: Var | None, like: Var) -> Var:
    """y quantized; without a zero point, to the dtype of another tensor."""
    zero = y.tape.constant(np.zeros((), like.dtype)) if zero_point is None else zero_point
    return y.tape.apply("QuantizeLinear", y, scale, zero)


def _less(x: Var, zero_point: Var | None, scale: Var) -> Var:
    number = sym.cast(x, scale.dtype)
    return number if zero_point is None else number - sym.cast(zero_point, scale.dtype)


@dataclass(frozen=True, slots=True)
class QuantizedLSTM(RecurrentLayer):
    """A layer with integer W and R; the other operand of a product is quantized by its own range, step by step."""

    quanta: dict[str, tuple[Var, Var]] = field(kw_only=True)  # "W" and "R" -> scale and zero point

    def inputs(self, direction: int, bias: Var | None) -> Any:
        """W x + bias of every step; all steps that some sequence takes share one range."""
        taken = self.steps if self.lengths is None else int(np.max(self.x.tape.guard(self.lengths), initial=0))
        if not taken:
            return [sym.full(self.x.tape, (self.batch, self.gates * self.hidden), 0, self.x.dtype)] * self.steps
        seen = sym.slice(self.x, (0,), (taken,), (0,)) if taken < self.steps else self.x
        y = self._product(sym.reshape(seen, (taken * self.batch, self.x.shape[-1])), "W", direction)
        found = sym.split(y if bias is None else y + bias, (self.batch,) * taken, 0)
        return [*found, *(sym.zeros_like(found[0]),) * (self.steps - taken)]

    def run(self, direction: int, xs: Any, states: tuple[Var, ...], cell: Cell) -> tuple[Any, Any]:
        """The hidden state after every step and the last states; all sequences start at once, reversed ones too.

        States of one step share a range, so that sequences of several lengths cannot start one after the other.
        """
        if self.lengths is None or not self.backwards(direction):
            return RecurrentLayer.run(self, direction, xs, states, cell)
        ys, turned = [], self._reversed(xs)
        for t in range(self.steps):
            with self.x.tape.scope(f"backward{t}"):
                y, states = self.advance(t, states, cell(turned[t], *states))
                ys.append(y)
        return self._reversed(ys), states

    def _reversed(self, rows: Sequence[Var]) -> Sequence[Var]:
        """Entries of each step, with every sequence reversed within its length."""
        if self.lengths is None or not rows:
            return rows
        stacked, lengths = sym.stack(rows, 0), sym.cast(self.lengths, np.int64)
        turned = stacked.tape.apply("ReverseSequence", stacked, lengths, time_axis=0, batch_axis=1)
        return [sym.squeeze(row, (0,)) for row in sym.split(turned, (1,) * len(rows), 0)]

    def looking_back(self, direction: int) -> Activation:
        """The product of a quantized hidden state with R."""
        return lambda h: self._product(h, "R", direction)

    def _product(self, rows: Var, name: str, direction: int) -> Var:
        matrix = sym.transpose(part(self.w if name == "W" else self.r, direction), (1, 0))
        scale, zero = (self._quantum(x, direction) for x in self.quanta[name])
        return dynamic_quantize_matmul(rows, matrix, scale, zero)

    def _quantum(self, x: Var, direction: int) -> Var:
        """A scale or zero point of one direction: a number, or one for each column of the matrix."""
        width = self.gates * self.hidden
        if x.shape not in ((self.directions,), (self.directions, width)):
            raise ValueError(f"a scale or zero point of shape {list(x.shape)} is not [{self.directions}, {width}]")
        return part(x, direction)


@attributes_of(lstm, "layout")
def dynamic_quantize_lstm(
    x: Var, w: Var, r: Var, b: Var | None, sequence_lens: Var | None, initial_h: Var | None, initial_c: Var | None,
    p: Var | None, w_scale: Var, w_zero_point: Var, r_scale: Var, r_zero_point: Var, **attributes: Any,
) -> tuple[Var, ...]:  # fmt: skip
    """LSTM with integer weights; x and the state are quantized by their ranges before each product."""
    w, r = (sym.transpose(matrix, (0, 2, 1)) for matrix in (w, r))
    layers = partial(QuantizedLSTM, quanta={"W": (w_scale, w_zero_point), "R": (r_scale, r_zero_point)})
    return lstm(layers, x, w, r, b, sequence_lens, initial_h, initial_c, p, **attributes)


@dataclass(frozen=True, slots=True)
class AttentionMemory:
    """The memory that the steps of one direction attend to: rows `(N, M, depth)`, and keys made from them."""

    values: Var
    keys: Var
    query: Var
    score: Var
    mixing: Var | None
    seen: Var | None  # mask of the rows that count

    @property
    def width(self) -> int:
        """The number of features that a step passes to the next one."""
        return self.values.shape[2] if self.mixing is None else self.mixing.shape[1]

    def attended(self, h: Var) -> Var:
        """The rows of the memory, weighted by their score with a hidden state; mixed with that if there is a matrix."""
        fit = sym.tanh(self.keys + sym.unsqueeze(sym.matmul(h, self.query), (1,)))
        scores = sym.sum(fit * self.score, (2,), keepdims=False)
        scores = scores if self.seen is None else sym.where(self.seen, scores, -np.inf)
        weights = sym.unsqueeze(scores.tape.apply("Softmax", scores, axis=-1), (1,))
        context = sym.squeeze(sym.matmul(weights, self.values), (1,))
        return context if self.mixing is None else sym.matmul(sym.concat([h, context], -1), self.mixing)


@attributes_of(lstm, "layout")
def attn_lstm(
    x: Var, w: Var, r: Var, b: Var | None, sequence_lens: Var | None, initial_h: Var | None, initial_c: Var | None,
    p: Var | None, query: Var, memory_weights: Var, score: Var, memory: Var, memory_lens: Var | None = None,
    mixing: Var | None = None, *, input_forget: int = 0, **common: Any,
) -> tuple[Var, ...]:  # fmt: skip
    """LSTM whose steps read, besides x, the memory that the step before attended to by additive attention."""
    fed = w.shape[2] - x.shape[2]
    own, back = sym.split(w, (x.shape[2], fed), 2)
    layer, chosen = prepared(RecurrentLayer, (x, own, r, b, sequence_lens, 4), LSTM, **common)

    def begin(d: int) -> tuple[Var | None, tuple[Var, ...], Cell]:
        matrices = [None if each is None else part(each, d) for each in (memory_weights, query, score, mixing)]
        held = _memory(memory, memory_lens, *matrices)
        if held.width != fed:
            raise ValueError(f"W reads {fed} numbers beside x; attention gives {held.width}")
        nothing = sym.full(x.tape, (layer.batch, fed), 0, x.dtype)
        start = layer.initial(initial_h, d), layer.initial(initial_c, d), nothing
        cell = lstm_cell(layer, d, p, chosen, bool(input_forget))
        return layer.biases(d)[0], start, _attending(cell, sym.transpose(part(back, d), (1, 0)), held)

    return unrolled(layer, begin)


def _memory(rows: Var, lengths: Var | None, keys: Any, query: Any, score: Any, mixing: Var | None) -> AttentionMemory:
    """The memory of one direction; rows beyond a length are zero and do not count."""
    if lengths is None:
        return AttentionMemory(rows, sym.matmul(rows, keys), query, score, mixing, None)
    seen = sym.arange(rows.tape, rows.shape[1]) < sym.unsqueeze(sym.cast(lengths, np.int64), (1,))
    values = sym.where(sym.unsqueeze(seen, (2,)), rows, 0)
    return AttentionMemory(values, sym.matmul(values, keys), query, score, mixing, seen)


def _attending(cell: Cell, back: Var, held: AttentionMemory) -> Cell:
    """A step whose state includes the attention that it passes to the next one."""

    def step(x: Var, h: Var, c: Var, found: Var) -> tuple[Var, ...]:
        h, c = cell(x + sym.matmul(found, back), h, c)
        return h, c, held.attended(h)

    return step


FUSED_QUANTIZE: list[Op] = [
    fused("DynamicQuantizeMatMul", dynamic_quantize_matmul, cuts=rounding_of(0), roles=quantized(2, 3),
          straight="quantizes"),
    fused("MatMulInteger16", lambda a, b: sym.cast(sym.matmul(sym.cast(a, np.float64), sym.cast(b, np.float64)), np.int32),
          does="The product of integer matrices, as int32."),
    fused("MatMulIntegerToFloat", matmul_integer_to_float, roles=quantized(2, 3, 4, 5)),
    fused("MatMulNBits", matmul_nbits, roles=quantized(2, 3)),
    fused("MulInteger", mul_integer),
    fused("NhwcMaxPool", nhwc_max_pool),
    fused("QGemm", qgemm, roles=quantized(1, 2, 4, 5, 7, 8)),
    fused("QLinearAdd", of_two(lambda a, b: a + b), roles=quantized(1, 2, 4, 5, 6, 7), does="a + b, quantized."),
    fused("QLinearAveragePool", qlinear_average_pool, roles=quantized(1, 2, 3, 4), space="windows"),
    fused("QLinearConv", qlinear_conv, roles=quantized(1, 2, 4, 5, 6, 7), space="windows", channels=1),
    fused("QLinearConcat", qlinear_concat, bind=as_given),
    fused("QLinearGlobalAveragePool", qlinear_global_average_pool, roles=quantized(1, 2, 3, 4), space="windows"),
    fused("QLinearLeakyRelu", of_one(lambda x, *, alpha=LEAK: x.tape.apply("LeakyRelu", x, alpha=alpha)),
          roles=quantized(1, 2, 3, 4), does="LeakyRelu."),
    fused("QLinearMul", of_two(lambda a, b: a * b), roles=quantized(1, 2, 4, 5, 6, 7), does="a b, quantized."),
    fused("QLinearSigmoid", of_one(sym.sigmoid), roles=quantized(1, 2, 3, 4)),
    fused("QLinearSoftmax", qlinear_softmax, roles=quantized(1, 2, 3, 4)),
    fused("QLinearWhere", qlinear_where),
    fused("AttnLSTM", attn_lstm, cuts=deciding(4, 12)),
    fused("DynamicQuantizeLSTM", dynamic_quantize_lstm, cuts=either(rounding_of(0, 5), deciding(4)),
          roles=quantized(8, 9, 10, 11), straight="quantizes"),
]  # fmt: skip
