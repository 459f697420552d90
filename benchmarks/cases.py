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
Weights = Mapping[str, NDArray[Any]]  # indices among them, in int64
_EPSILON = float(np.float32(1e-5))  # an attribute of LayerNormalization, and these are float32


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
        """The ONNX model, its weights as initializers."""
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
    return centered / xp.sqrt(xp.mean(centered * centered, -1, keepdims=True) + _EPSILON) * scale


def _heads(xp: Any, x: Any) -> Any:
    """Tokens of 64 numbers as four heads of 16."""
    return xp.swapaxes(xp.reshape(x, (-1, 4, 16)), 0, 1)


def _joined(xp: Any, heads: Any) -> Any:
    return xp.reshape(xp.swapaxes(heads, 0, 1), (-1, 64))


def _softmax(xp: Any, x: Any, axis: int) -> Any:
    raised = xp.exp(x)
    return raised / xp.sum(raised, axis, keepdims=True)


def _encoder(xp: Any, w: Mapping[str, Any], x: Any) -> Any:
    q, k, v = (_heads(xp, x @ w[name]) for name in ("wq", "wk", "wv"))
    mixed = _joined(xp, _softmax(xp, q @ xp.swapaxes(k, 1, 2) * 0.25, -1) @ v)
    h = _layer_norm(xp, x + mixed @ w["wo"], w["s1"])
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


def _gru(xp: Any, w: Mapping[str, Any], x: Any) -> Any:
    h, states = xp.zeros((1, 32), x.dtype), []
    gates = xp.swapaxes(w["w"][0], 0, 1), xp.swapaxes(w["r"][0], 0, 1)
    for t in range(12):
        a, b = x[t] @ gates[0] + w["b"][:, :96], h @ gates[1] + w["b"][:, 96:]
        z, r = (_sigmoid(xp, a[:, n : n + 32] + b[:, n : n + 32]) for n in (0, 32))
        h = (1 - z) * xp.tanh(a[:, 64:] + r * b[:, 64:]) + z * h
        states.append(h)
    return _attended(xp, w, xp.concatenate(states, 0))


def _attended(xp: Any, w: Mapping[str, Any], states: Any) -> Any:
    shares = _softmax(xp, xp.tanh(states @ w["a1"]) @ w["a2"], 0)
    return xp.swapaxes(shares, 0, 1) @ states @ w["wo"]


def _swish(xp: Any, x: Any) -> Any:
    return x * _sigmoid(xp, x)


def _separable(xp: Any, w: Mapping[str, Any], x: Any) -> Any:
    for n, stride in enumerate(_STRIDES):
        x = _swish(xp, xp.conv(xp.depthwise(x, w[f"d{n}"], stride), w[f"p{n}"], 0))
    return xp.mean(x, (2, 3), keepdims=False) @ w["wo"]


def _graph(xp: Any, w: Mapping[str, Any], x: Any) -> Any:
    for n in range(2):
        messages = xp.tanh(xp.rows(x, w["source"]) @ w[f"m{n}"])
        x = xp.tanh(xp.rows_added(x @ w[f"u{n}"], w["target"][:, 0], messages))
    return xp.mean(x, 0, keepdims=True) @ w["wo"]


def _rms_norm(xp: Any, x: Any, scale: Any) -> Any:
    return x / xp.sqrt(xp.mean(x * x, -1, keepdims=True) + 1e-5) * scale


def _decoder(xp: Any, w: Mapping[str, Any], x: Any) -> Any:
    def rotated(y: Any) -> Any:
        return y * w["cos"] + xp.concatenate([-y[..., 8:], y[..., :8]], -1) * w["sin"]

    n = _rms_norm(xp, x, w["s1"])
    q, k, v = (_heads(xp, n @ w[name]) for name in ("wq", "wk", "wv"))
    scores = rotated(q) @ xp.swapaxes(rotated(k), 1, 2) * 0.25 + w["mask"]
    h = x + _joined(xp, _softmax(xp, scores, -1) @ v) @ w["wo"]
    n = _rms_norm(xp, h, w["s2"])
    return h + _swish(xp, n @ w["f1"]) @ w["f2"]


def _edges(nodes: int, count: int) -> Weights:
    """Nodes that edges come from, and those that they lead to, as indices of a Gather and a ScatterND."""
    source, target = np.random.default_rng(0).integers(nodes, size=(2, count))
    return {"source": source, "target": target[:, None]}


def _positions(tokens: int, size: int) -> Weights:
    """Rotary position embeddings of one head, and the mask that hides later tokens."""
    angles = np.outer(np.arange(tokens), 1e4 ** -np.linspace(0, 1, size // 2, endpoint=False))
    angles = np.concatenate([angles, angles], -1)
    return {"cos": np.cos(angles), "sin": np.sin(angles), "mask": np.triu(np.full((tokens, tokens), -1e9), 1)}


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
GRU = Case(
    "GRU 24 -> 32, 12 steps, attention", (12, 1, 24), (1, 10),
    _drawn(w=(1, 96, 24), r=(1, 96, 32), b=(1, 192), a1=(32, 32), a2=(32, 1), wo=(32, 10)),
    """flat = Constant<value_ints=[12,32]>() all = GRU<hidden_size=32, linear_before_reset=1>(x, w, r, b)
    states = Reshape(all, flat) a = MatMul(states, a1) t = Tanh(a) s = MatMul(t, a2) p = Softmax<axis=0>(s)
    shares = Transpose(p) mixed = MatMul(shares, states) y = MatMul(mixed, wo)""",
    _gru, 12 * 96 * (24 + 32) + 12 * 32 * (32 + 1 + 1) + 32 * 10,
)  # fmt: skip
_STRIDES = (1, 2, 1)
_BLOCKS = "".join(
    f"e{n} = Conv<group={channels}, pads=[1,1,1,1], strides=[{stride},{stride}]>({x}, d{n})"
    f" c{n} = Conv(e{n}, p{n}) g{n} = Sigmoid(c{n}) h{n} = Mul(c{n}, g{n}) "
    for n, (x, channels, stride) in enumerate(zip(("x", "h0", "h1"), (3, 16, 32), _STRIDES, strict=True))
)
SEPARABLE = Case(
    "separable convolutions 3x20x20", (1, 3, 20, 20), (1, 10),
    _drawn(d0=(3, 1, 3, 3), p0=(16, 3, 1, 1), d1=(16, 1, 3, 3), p1=(32, 16, 1, 1), d2=(32, 1, 3, 3),
           p2=(64, 32, 1, 1), wo=(64, 10)),
    f"{_BLOCKS} m = GlobalAveragePool(h2) f = Flatten(m) y = MatMul(f, wo)", _separable,
    400 * 3 * (9 + 16) + 100 * 16 * (9 + 32) + 100 * 32 * (9 + 64) + 64 * 10,
)  # fmt: skip
_ROUNDS = "".join(
    f"r{n} = Gather({x}, source) e{n} = MatMul(r{n}, m{n}) t{n} = Tanh(e{n}) o{n} = MatMul({x}, u{n})"
    f' a{n} = ScatterND<reduction="add">(o{n}, target, t{n}) h{n} = Tanh(a{n}) '
    for n, x in enumerate(("x", "h0"))
)
GRAPH = Case(
    "graph of 64 nodes, 192 edges, 2 rounds", (64, 32), (1, 8),
    {**_drawn(m0=(32, 32), u0=(32, 32), m1=(32, 32), u1=(32, 32), wo=(32, 8)), **_edges(64, 192)},
    f"first = Constant<value_ints=[0]>() {_ROUNDS} m = ReduceMean(h1, first) y = MatMul(m, wo)", _graph,
    2 * (64 + 192) * 32 * 32 + 32 * 8,
)  # fmt: skip
_ROTATED = "".join(
    f"{n}1, {n}2 = Split<axis=-1, num_outputs=2>({n}) {n}3 = Neg({n}2) {n}4 = Concat<axis=-1>({n}3, {n}1)"
    f" {n}5 = Mul({n}, cos) {n}6 = Mul({n}4, sin) {n}r = Add({n}5, {n}6) "
    for n in "qk"
)


def _rms_norm_nodes(x: str, scale: str, y: str) -> str:
    return f"""{y}1 = Mul({x}, {x}) {y}2 = ReduceMean({y}1, last) {y}3 = Add({y}2, epsilon) {y}4 = Sqrt({y}3)
    {y}5 = Div({x}, {y}4) {y} = Mul({y}5, {scale}) """


DECODER = Case(
    "decoder layer 12x64, 4 heads", (12, 64), (12, 64),
    {**_drawn(wq=(64, 64), wk=(64, 64), wv=(64, 64), wo=(64, 64), f1=(64, 256), f2=(256, 64)),
     "s1": np.ones(64), "s2": np.ones(64), **_positions(12, 16)},
    f"""split = Constant<value_ints=[12,4,16]>() joined = Constant<value_ints=[12,64]>()
    quarter = Constant<value=double {{0.25}}>() epsilon = Constant<value=double {{1e-5}}>()
    last = Constant<value_ints=[-1]>() {_rms_norm_nodes("x", "s1", "n")} {_HEADS.replace("(x", "(n")} {_ROTATED}
    kt = Transpose<perm=[0,2,1]>(kr) s = MatMul(qr, kt) scaled = Mul(s, quarter) hidden = Add(scaled, mask)
    p = Softmax(hidden) o = MatMul(p, v) back = Transpose<perm=[1,0,2]>(o) flat = Reshape(back, joined)
    mixed = MatMul(flat, wo) h = Add(x, mixed) {_rms_norm_nodes("h", "s2", "i")}
    a = MatMul(i, f1) g = Sigmoid(a) t = Mul(a, g) b = MatMul(t, f2) y = Add(h, b)""",
    _decoder, 12 * (4 * 64 * 64 + 2 * 64 * 256) + 2 * 4 * 12 * 12 * 16,
)  # fmt: skip
CASES = (MLP, LENET, ENCODER, LSTM, GRU, SEPARABLE, GRAPH, DECODER)
