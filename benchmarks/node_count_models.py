"""Models whose gradient files are counted: a scalar loss of inputs and float32 weights, the batch open."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper, parser

BATCH = 6
_MEAN_OF_SQUARES = "d = Sub(s, t) dd = Mul(d, d) loss = ReduceMean<keepdims=0>(dd)"
_CROSS_ENTROPY = "loss, logs = SoftmaxCrossEntropyLoss(s, t)"


@dataclass(frozen=True, slots=True)
class Counted:
    """One model: inputs as ONNX's text syntax has them, nodes, and the shapes of the weights."""

    name: str
    inputs: str
    nodes: str
    shapes: Mapping[str, tuple[int, ...]]
    constants: Mapping[str, Any]

    def model(self) -> onnx.ModelProto:
        """The model, its weights drawn by seed."""
        graph = parser.parse_graph(f"counted ({self.inputs}) => (float loss) {{ {self.nodes} }}")
        graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in self.weights().items())
        graph.initializer.extend(numpy_helper.from_array(np.asarray(value), n) for n, value in self.constants.items())
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)

    def weights(self) -> dict[str, NDArray[np.float32]]:
        """Weights whose products keep the size of what they multiply."""
        rng = np.random.default_rng(0)
        scales = {name: 1 / math.sqrt(math.prod(shape[1:]) or 1) for name, shape in self.shapes.items()}
        return {name: (rng.normal(size=s) * scales[name]).astype(np.float32) for name, s in self.shapes.items()}

    def feeds(self) -> dict[str, NDArray[Any]]:
        """A batch: labels for integers, normal numbers for others."""
        rng, found = np.random.default_rng(1), {}
        for value in self.model().graph.input:
            tensor = value.type.tensor_type
            shape = [dim.dim_value or BATCH for dim in tensor.shape.dim]
            whole = tensor.elem_type == onnx.TensorProto.INT64
            found[value.name] = rng.integers(0, 3, shape) if whole else rng.normal(size=shape).astype(np.float32)
        return found


_ATTENTION = " ".join(
    f"m{n} = MatMul(x, w{n}) r{n} = Reshape(m{n}, split) {n} = Transpose<perm=[0,2,1,3]>(r{n})" for n in "qkv"
)
_GATES = " ".join(f"{n} = {f}(z{n})" for n, f in (("i", "Sigmoid"), ("o", "Sigmoid"), ("f", "Sigmoid"), ("g", "Tanh")))
COUNTED = (
    Counted(
        "MLP, cross entropy", "float[N,4] x, int64[N] t",
        f"h = Gemm(x, w1, b1) a = Relu(h) s = Gemm(a, w2, b2) {_CROSS_ENTROPY}",
        {"w1": (4, 8), "b1": (8,), "w2": (8, 3), "b2": (3,)}, {},
    ),
    Counted(
        "MLP, mean of squares", "float[N,4] x, float[N,3] t",
        f"h = Gemm(x, w1, b1) a = Tanh(h) s = Gemm(a, w2, b2) {_MEAN_OF_SQUARES}",
        {"w1": (4, 8), "b1": (8,), "w2": (8, 3), "b2": (3,)}, {},
    ),
    Counted(
        "convnet like LeNet", "float[N,1,12,12] x, int64[N] t",
        f"""c1 = Conv<pads=[1,1,1,1]>(x, k1, e1) r1 = Relu(c1) p1 = MaxPool<kernel_shape=[2,2], strides=[2,2]>(r1)
        c2 = Conv(p1, k2, e2) r2 = Relu(c2) p2 = AveragePool<kernel_shape=[2,2], strides=[2,2]>(r2)
        l = Flatten(p2) s = Gemm(l, w, b) {_CROSS_ENTROPY}""",
        {"k1": (4, 1, 3, 3), "e1": (4,), "k2": (6, 4, 3, 3), "e2": (6,), "w": (24, 3), "b": (3,)}, {},
    ),
    Counted(
        "encoder layer", "float[N,5,8] x, float[N,5,8] t",
        f"""{_ATTENTION} kt = Transpose<perm=[0,1,3,2]>(k) a = MatMul(q, kt) scaled = Mul(a, half) p = Softmax(scaled)
        o = MatMul(p, v) back = Transpose<perm=[0,2,1,3]>(o) flat = Reshape(back, joined) mixed = MatMul(flat, wo)
        h0 = Add(x, mixed) h, m0, i0 = LayerNormalization(h0, s1, b1) u = MatMul(h, f1) r = Relu(u) w = MatMul(r, f2)
        h1 = Add(h, w) s, m1, i1 = LayerNormalization(h1, s2, b2) {_MEAN_OF_SQUARES}""",
        {**{f"w{n}": (8, 8) for n in "qkvo"}, "f1": (8, 16), "f2": (16, 8), "s1": (8,), "b1": (8,), "s2": (8,), "b2": (8,)},
        {"split": np.array([0, 5, 2, 4]), "joined": np.array([0, 5, 8]), "half": np.float32(0.5)},
    ),
    Counted(
        "LSTM cell", "float[N,4] x, float[N,6] h0, float[N,6] c0, float[N,6] t",
        f"""zx = MatMul(x, w) zh = MatMul(h0, r) zs = Add(zx, zh) z = Add(zs, b) zi, zo, zf, zg = Split<axis=1>(z, sizes)
        {_GATES} kept = Mul(f, c0) new = Mul(i, g) c = Add(kept, new) tc = Tanh(c) s = Mul(o, tc) {_MEAN_OF_SQUARES}""",
        {"w": (4, 24), "r": (6, 24), "b": (24,)}, {"sizes": np.array([6, 6, 6, 6])},
    ),
    Counted(
        "layer normalization", "float[N,8] x, float[N,8] t",
        f"h = Gemm(x, w, b) s, m, i = LayerNormalization(h, g, c) {_MEAN_OF_SQUARES}",
        {"w": (8, 8), "b": (8,), "g": (8,), "c": (8,)}, {},
    ),
)  # fmt: skip
