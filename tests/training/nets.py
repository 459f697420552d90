"""Nets to train: each as an ONNX model, and as a function for PyTorch that computes the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper, parser

Weights = Mapping[str, NDArray[Any]]
_EPSILON = float(np.float32(1e-5))  # an attribute of normalizations, and these are float32
RNG = np.random.default_rng(7)


def drawn(*shape: int) -> NDArray[Any]:
    """Weights whose products keep the size of what they multiply."""
    return RNG.normal(size=shape) / np.sqrt(shape[-1] if len(shape) > 1 else 10)


@dataclass(frozen=True)
class Net:
    """A net, with the loss that it is trained by and data for it; REAL stands for the dtype in its text."""

    text: str
    weights: Weights
    loss: str
    function: Callable[[Any, Any, Mapping[str, Any], Mapping[str, Any]], Any]  # (torch, functional, weights, data)
    data: Callable[[np.random.Generator, int], dict[str, NDArray[Any]]]
    options: Mapping[str, Any] = field(default_factory=dict)

    def model(self, dtype: Any = np.float32) -> onnx.ModelProto:
        """The model in a dtype."""
        named = {np.float32: "float", np.float64: "double", np.float16: "float16"}[dtype]
        graph = parser.parse_graph(self.text.replace("REAL", named))
        for name, value in self.weights.items():
            value = value.astype(dtype) if value.dtype == np.float64 else value
            graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)

    def batch(self, seed: int, dtype: Any, count: int = 16) -> dict[str, NDArray[Any]]:
        """Data of a step."""
        made = self.data(np.random.default_rng(seed), count)
        return {n: v.astype(dtype) if v.dtype == np.float64 else v for n, v in made.items()}


def _mlp(torch: Any, F: Any, w: Any, d: Any) -> Any:
    return F.cross_entropy(F.linear(F.relu(F.linear(d["x"], w["w1"], w["b1"])), w["w2"], w["b2"]), d["labels"])


def _classes(rng: np.random.Generator, count: int) -> dict[str, NDArray[Any]]:
    x = rng.normal(size=(count, 8))
    return {"x": x, "labels": x[:, :3].argmax(1)}


def _cnn(torch: Any, F: Any, w: Any, d: Any) -> Any:
    h = F.conv2d(d["x"], w["k1"], None, padding=1)
    h = F.max_pool2d(F.relu(F.batch_norm(h, None, None, w["scale"], w["shift"], training=True, eps=_EPSILON)), 2)
    h = F.relu(F.conv2d(h, w["k2"], None, stride=2, groups=2))
    return F.cross_entropy(F.linear(h.flatten(1), w["w"], w["b"]), d["labels"])


def _images(rng: np.random.Generator, count: int) -> dict[str, NDArray[Any]]:
    x = rng.normal(size=(count, 2, 8, 8))
    return {"x": x, "labels": (x.mean((1, 2, 3)) > 0).astype(np.int64)}


def _lstm(torch: Any, F: Any, w: Any, d: Any) -> Any:
    h = c = torch.zeros(d["x"].shape[0], 6, dtype=d["x"].dtype)
    for x in d["x"].transpose(0, 1):
        i, o, f, g = (x @ w["w"][0].T + h @ w["r"][0].T + w["b"][0, :24] + w["b"][0, 24:]).chunk(4, -1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
    return F.mse_loss(h @ w["out"], d["target"])


def _series(rng: np.random.Generator, count: int) -> dict[str, NDArray[Any]]:
    x = rng.normal(size=(count, 7, 4))
    return {"x": x, "target": np.tanh(x.sum((1, 2)))[:, None] * np.ones(2)}


def _transformer(torch: Any, F: Any, w: Any, d: Any) -> Any:
    x = d["x"]
    q, k, v = (x @ w[n] for n in ("wq", "wk", "wv"))
    h = x + torch.softmax(q @ k.transpose(1, 2) * 0.25, -1) @ v @ w["wo"]
    h = F.layer_norm(h, (16,), w["s"], w["t"], eps=_EPSILON)
    scores = (h + F.gelu(h @ w["f1"]) @ w["f2"]) @ w["head"]
    return F.cross_entropy(scores.transpose(1, 2), d["labels"], ignore_index=-1)


def _sequences(rng: np.random.Generator, count: int) -> dict[str, NDArray[Any]]:
    length = int(rng.integers(3, 9))
    x = rng.normal(size=(count, length, 16))
    labels = x[..., :5].argmax(-1)
    labels[0, 1] = -1
    return {"x": x, "labels": labels}


def _adapted(torch: Any, F: Any, w: Any, d: Any) -> Any:
    both = {n: v + w[f"{n}.lora_A"] @ w[f"{n}.lora_B"] if f"{n}.lora_A" in w else v for n, v in w.items()}
    return _transformer(torch, F, both, d)


def _quantized(torch: Any, F: Any, w: Any, d: Any) -> Any:
    def through(x: Any, scale: float) -> Any:
        """Rounded, with the gradient of a clamp."""
        kept = torch.clamp(x / scale, -128, 127)
        return (kept + (torch.round(kept) - kept).detach()) * scale

    h = F.relu(through(d["x"], 0.0625) @ through(w["w1"], 0.03125) + w["b1"])
    return F.huber_loss(h @ through(w["w2"], 0.03125), d["target"], delta=0.5)


def _targets(rng: np.random.Generator, count: int) -> dict[str, NDArray[Any]]:
    x = rng.normal(size=(count, 8))
    return {"x": x, "target": np.maximum(x[:, :1], 0) - x[:, 1:2]}


_LAYER = """net (REAL[N,T,16] x) => (REAL[N,T,5] scores) {
    q = MatMul(x, wq)  k = MatMul(x, wk)  v = MatMul(x, wv)
    kt = Transpose<perm=[0,2,1]>(k)  qk = MatMul(q, kt)  quarter = Constant<value_float=0.25>()
    fourth = CastLike(quarter, qk)  a = Mul(qk, fourth)  p = Softmax<axis=-1>(a)  m = MatMul(p, v)  o = MatMul(m, wo)
    res = Add(x, o)  h = LayerNormalization<axis=-1>(res, s, t)  u = MatMul(h, f1)  g = Gelu(u)  z = MatMul(g, f2)
    last = Add(h, z)  scores = MatMul(last, head) }""".replace("g = Gelu(u)", "g = Mul(u, cdf)").replace(
    "u = MatMul(h, f1)",
    """u = MatMul(h, f1)  ud = Div(u, root)
    er = Erf(ud)  one = Constant<value_float=1.0>()  o1 = CastLike(one, u)  er1 = Add(er, o1)
    half = Constant<value_float=0.5>()  hf = CastLike(half, u)  cdf = Mul(er1, hf)""",
)
_ATTENTION = {**{n: drawn(16, 16) for n in ("wq", "wk", "wv", "wo")}, "s": 1 + drawn(16), "t": drawn(16),
              "f1": drawn(16, 32), "f2": drawn(32, 16), "head": drawn(16, 5), "root": np.array(np.sqrt(2))}  # fmt: skip

NETS = {
    "mlp": Net(
        """net (REAL[N,8] x) => (REAL[N,3] scores) {
            h = Gemm<transB=1>(x, w1, b1)  r = Relu(h)  scores = Gemm<transB=1>(r, w2, b2) }""",
        {"w1": drawn(16, 8), "b1": drawn(16), "w2": drawn(3, 16), "b2": drawn(3)},
        "cross-entropy:scores,labels", _mlp, _classes,
    ),
    "cnn": Net(
        """net (REAL[N,2,8,8] x) => (REAL[N,2] scores) {
            c = Conv<pads=[1,1,1,1]>(x, k1)
            n, m2, v2 = BatchNormalization<training_mode=1>(c, scale, shift, mean, var)
            r = Relu(n)  p = MaxPool<kernel_shape=[2,2], strides=[2,2]>(r)
            zero = Constant<value_float=0.0>()  on = Constant<value_int=1>()  yes = Cast<to=9>(on)
            d = Dropout(p, zero, yes)  e = Conv<group=2, strides=[2,2]>(d, k2)  f = Relu(e)  g = Flatten(f)
            scores = Gemm<transB=1>(g, w, b) }""",
        {"k1": drawn(4, 2, 3, 3) * 0.6, "scale": 1 + drawn(4), "shift": drawn(4), "mean": np.zeros(4),
         "var": np.ones(4), "k2": drawn(6, 2, 2, 2), "w": drawn(2, 24), "b": drawn(2)},
        "cross-entropy:scores,labels", _cnn, _images,
    ),
    "lstm": Net(
        """net (REAL[N,T,4] x) => (REAL[N,2] y) {
            xt = Transpose<perm=[1,0,2]>(x)  all, h, c = LSTM<hidden_size=6>(xt, w, r, b)
            axis = Constant<value_ints=[0]>()  last = Squeeze(h, axis)
            y = MatMul(last, out) }""",
        {"w": drawn(1, 24, 4), "r": drawn(1, 24, 6), "b": drawn(1, 48), "out": drawn(6, 2)},
        "mse:y,target", _lstm, _series,
    ),
    "transformer": Net(
        _LAYER, _ATTENTION, "cross-entropy:scores,labels,axis=-1,ignore=-1", _transformer, _sequences,
    ),
    "lora": Net(
        _LAYER, _ATTENTION, "cross-entropy:scores,labels,axis=-1,ignore=-1", _adapted, _sequences, {"lora": "4:w?"},
    ),
    "quantized": Net(
        """net (REAL[N,8] x) => (REAL[N,1] y) {
            xf = Cast<to=1>(x)  xq = QuantizeLinear(xf, sx, zero)  xd = DequantizeLinear(xq, sx, zero)
            f1 = Cast<to=1>(w1)  q1 = QuantizeLinear(f1, sw, zero)  d1 = DequantizeLinear(q1, sw, zero)
            f2 = Cast<to=1>(w2)  q2 = QuantizeLinear(f2, sw, zero)  d2 = DequantizeLinear(q2, sw, zero)
            xr = CastLike(xd, x)  r1 = CastLike(d1, x)  r2 = CastLike(d2, x)
            a = MatMul(xr, r1)  b = Add(a, b1)  r = Relu(b)  y = MatMul(r, r2) }""",  # ONNX quantizes no float64
        {"w1": drawn(8, 12), "b1": drawn(12), "w2": drawn(12, 1), "sx": np.float32(0.0625), "sw": np.float32(0.03125),
         "zero": np.array(0, np.int8)},
        "huber:y,target,delta=0.5", _quantized, _targets,
        {"straight_through": True},
    ),
}  # fmt: skip


def _by(loss: Callable[[Any, Any, Any, Any], Any]) -> Callable[[Any, Any, Mapping[str, Any], Mapping[str, Any]], Any]:
    """The MLP under another loss of its scores and of the data."""

    def function(torch: Any, F: Any, w: Any, d: Any) -> Any:
        return loss(torch, F, F.linear(F.relu(F.linear(d["x"], w["w1"], w["b1"])), w["w2"], w["b2"]), d)

    return function


def _numbers(rng: np.random.Generator, count: int) -> dict[str, NDArray[Any]]:
    x = rng.normal(size=(count, 8))
    return {"x": x, "t": np.tanh(x[:, :3] - x[:, 3:6])}


def _shares(rng: np.random.Generator, count: int) -> dict[str, NDArray[Any]]:
    x = rng.normal(size=(count, 8))
    t = np.exp(x[:, :3])
    return {"x": x, "t": t / t.sum(1, keepdims=True)}


def _loss(loss: str, data: Any, function: Callable[[Any, Any, Any, Any], Any], text: str = "") -> Net:
    """The MLP with another loss."""
    return Net(text or NETS["mlp"].text, NETS["mlp"].weights, loss, _by(function), data)


_OWN = NETS["mlp"].text.replace("=> (REAL[N,3] scores)", "=> (REAL[N,3] scores, REAL loss)").replace(
    "w2, b2) }", "w2, b2)  cubes = Mul(scores, scores)  high = Exp(scores)  all = Add(cubes, high) "
    "loss = ReduceMean<keepdims=0>(all) }")  # fmt: skip
LOSSES = {
    "mse": _loss("mse:scores,t", _numbers, lambda torch, F, y, d: F.mse_loss(y, d["t"])),
    "mse, sum": _loss(
        "mse:scores,t,reduction=sum", _numbers, lambda torch, F, y, d: F.mse_loss(y, d["t"], reduction="sum")
    ),
    "l1": _loss("l1:scores,t", _numbers, lambda torch, F, y, d: F.l1_loss(y, d["t"])),
    "huber": _loss(
        "huber:scores,t,delta=0.3", _numbers, lambda torch, F, y, d: F.huber_loss(y, d["t"], delta=0.3)
    ),
    "bce-with-logits": _loss(
        "bce-with-logits:scores,t", _shares, lambda torch, F, y, d: F.binary_cross_entropy_with_logits(y, d["t"])
    ),
    "cross-entropy of probabilities": _loss(
        "cross-entropy:scores,t,probabilities", _shares, lambda torch, F, y, d: F.cross_entropy(y, d["t"])
    ),
    "cross-entropy, sum": _loss(
        "cross-entropy:scores,labels,reduction=sum", _classes,
        lambda torch, F, y, d: F.cross_entropy(y, d["labels"], reduction="sum"),
    ),
    "bce-with-logits, weighted": _loss(
        "bce-with-logits:scores,t,pos_weight=2.5", _shares,
        lambda torch, F, y, d: F.binary_cross_entropy_with_logits(y, d["t"], pos_weight=torch.tensor(2.5)),
    ),
    "cross-entropy, smoothed": _loss(
        "cross-entropy:scores,labels,label_smoothing=0.2,ignore=1", _classes,
        lambda torch, F, y, d: F.cross_entropy(y, d["labels"], label_smoothing=0.2, ignore_index=1),
    ),
    "cross-entropy of probabilities, smoothed": _loss(
        "cross-entropy:scores,t,probabilities,label_smoothing=0.2", _shares,
        lambda torch, F, y, d: F.cross_entropy(y, d["t"], label_smoothing=0.2),
    ),
    "a tensor of the model": _loss("loss", lambda rng, count: {"x": rng.normal(size=(count, 8))},
                                   lambda torch, F, y, d: (y * y + y.exp()).mean(), _OWN),
}  # fmt: skip
