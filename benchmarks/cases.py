"""The functions whose Jacobians are timed: an ONNX model for gradcheck, and the same function for each peer.

All weights are drawn once, by seed, in float64; a peer's function takes and gives its own tensors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper, parser

Array = NDArray[np.float64]
Weights = Mapping[str, Array]


@dataclass(frozen=True, slots=True)
class Case:
    """One function `x -> y`, as ONNX nodes and for array libraries that read like NumPy."""

    name: str
    x_shape: tuple[int, ...]
    y_shape: tuple[int, ...]
    weights: Weights
    nodes: str
    function: Callable[[Any, Mapping[str, Any], Any], Any]  # (library, weights, x) -> y
    products: float  # multiplications, each with an addition, of its matrix products and convolutions

    @property
    def x(self) -> Array:
        """The point, in normal numbers."""
        return np.random.default_rng(1).normal(size=self.x_shape)

    def model(self) -> onnx.ModelProto:
        """The ONNX model, its weights as float64 initializers."""
        graph = parser.parse_graph(
            f"case (double{list(self.x_shape)} x) => (double{list(self.y_shape)} y) {{{self.nodes}}}"
        )
        graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in self.weights.items())
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def _drawn(**shapes: tuple[int, ...]) -> Weights:
    """Weights whose products keep the size of what they multiply."""
    rng = np.random.default_rng(0)
    return {name: rng.normal(size=shape) / math.sqrt(math.prod(shape[1:]) or 1) for name, shape in shapes.items()}


def _mlp(xp: Any, w: Mapping[str, Any], x: Any) -> Any:
    return xp.tanh(x @ w["w1"] + w["b1"]) @ w["w2"] + w["b2"]


def _layer_norm(xp: Any, x: Any, scale: Any) -> Any:
    centered = x - xp.mean(x, -1, keepdims=True)
    return centered / xp.sqrt(xp.mean(centered * centered, -1, keepdims=True) + 1e-5) * scale


def _encoder(xp: Any, w: Mapping[str, Any], x: Any) -> Any:
    def heads(y: Any) -> Any:
        return xp.swapaxes(xp.reshape(y, (16, 4, 16)), 0, 1)

    q, k, v = (heads(x @ w[name]) for name in ("wq", "wk", "wv"))
    scores = xp.exp(q @ xp.swapaxes(k, 1, 2) * 0.25)
    mixed = xp.swapaxes(scores / xp.sum(scores, -1, keepdims=True) @ v, 0, 1)
    h = _layer_norm(xp, x + xp.reshape(mixed, (16, 64)) @ w["wo"], w["s1"])
    return _layer_norm(xp, h + xp.tanh(h @ w["f1"]) @ w["f2"], w["s2"])


def _lstm(xp: Any, w: Mapping[str, Any], x: Any) -> Any:
    h, c = xp.zeros((1, 64), x.dtype), xp.zeros((1, 64), x.dtype)
    gates = xp.swapaxes(w["w"][0], 0, 1), xp.swapaxes(w["r"][0], 0, 1)
    for t in range(20):
        z = x[t] @ gates[0] + h @ gates[1]
        i, o, f, g = (z[:, n : n + 64] for n in range(0, 256, 64))
        c = _sigmoid(xp, f) * c + _sigmoid(xp, i) * xp.tanh(g)
        h = _sigmoid(xp, o) * xp.tanh(c)
    return h


def _sigmoid(xp: Any, x: Any) -> Any:
    return 0.5 * (xp.tanh(0.5 * x) + 1)


def _lenet(xp: Any, w: Mapping[str, Any], x: Any) -> Any:
    h = xp.mean_pool(xp.tanh(xp.conv(x, w["k1"], 2)))
    h = xp.mean_pool(xp.tanh(xp.conv(h, w["k2"], 0)))
    h = xp.tanh(xp.reshape(h, (1, 400)) @ w["w1"])
    return xp.tanh(h @ w["w2"]) @ w["w3"]


MLP = Case(
    "MLP 784-256-10", (1, 784), (1, 10), _drawn(w1=(784, 256), b1=(256,), w2=(256, 10), b2=(10,)),
    "h = Gemm(x, w1, b1) a = Tanh(h) y = Gemm(a, w2, b2)", _mlp,
    784 * 256 + 256 * 10,
)  # fmt: skip
LENET = Case(
    "LeNet-5 1x28x28", (1, 1, 28, 28), (1, 10),
    _drawn(k1=(6, 1, 5, 5), k2=(16, 6, 5, 5), w1=(400, 120), w2=(120, 84), w3=(84, 10)),
    """c1 = Conv<pads=[2,2,2,2]>(x, k1) t1 = Tanh(c1) p1 = AveragePool<kernel_shape=[2,2], strides=[2,2]>(t1)
    c2 = Conv(p1, k2) t2 = Tanh(c2) p2 = AveragePool<kernel_shape=[2,2], strides=[2,2]>(t2)
    f = Flatten(p2) d1 = MatMul(f, w1) t3 = Tanh(d1) d2 = MatMul(t3, w2) t4 = Tanh(d2) y = MatMul(t4, w3)""",
    _lenet, 28 * 28 * 6 * 25 + 10 * 10 * 16 * 150 + 400 * 120 + 120 * 84 + 84 * 10,
)  # fmt: skip
_HEADS = "".join(
    f"m{n} = MatMul(x, w{n}) r{n} = Reshape(m{n}, split) {n} = Transpose<perm=[1,0,2]>(r{n}) " for n in "qkv"
)
ENCODER = Case(
    "encoder layer 16x64, 4 heads", (16, 64), (16, 64),
    {**_drawn(wq=(64, 64), wk=(64, 64), wv=(64, 64), wo=(64, 64), f1=(64, 256), f2=(256, 64)),
     "s1": np.ones(64), "s2": np.ones(64)},
    f"""split = Constant<value_ints=[16,4,16]>() joined = Constant<value_ints=[16,64]>()
    quarter = Constant<value=double {{0.25}}>() {_HEADS}
    kt = Transpose<perm=[0,2,1]>(k) s = MatMul(q, kt) scaled = Mul(s, quarter) p = Softmax(scaled) o = MatMul(p, v)
    back = Transpose<perm=[1,0,2]>(o) flat = Reshape(back, joined) mixed = MatMul(flat, wo) h0 = Add(x, mixed)
    h = LayerNormalization(h0, s1) a = MatMul(h, f1) t = Tanh(a) b = MatMul(t, f2) h1 = Add(h, b)
    y = LayerNormalization(h1, s2)""",
    _encoder, 16 * (4 * 64 * 64 + 2 * 64 * 256) + 2 * 4 * 16 * 16 * 16,
)  # fmt: skip
LSTM = Case(
    "LSTM 32 -> 64, 20 steps", (20, 1, 32), (1, 1, 64), _drawn(w=(1, 256, 32), r=(1, 256, 64)),
    "all, y = LSTM<hidden_size=64>(x, w, r)", _lstm,
    20 * 256 * (32 + 64),
)  # fmt: skip
CASES = (MLP, LENET, ENCODER, LSTM)
