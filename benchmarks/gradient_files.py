"""Gradient files in onnxruntime beside PyTorch's forward and backward pass: layers, by x and all of their weights.

python -m benchmarks.gradient_files
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper, parser

import gradcheck_cli
from benchmarks.alone import alone
from benchmarks.libraries import installed
from benchmarks.one_thread import VARIABLES
from benchmarks.table import Table, write
from benchmarks.timing import in_turns, ratio

HEAD = ("layer", "threads", "nodes", "torch, ms", "file, ms", "times torch's", "times its forward run")


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer in float32: its nodes from x to y, and the same for PyTorch."""

    name: str
    x: tuple[int, ...]
    nodes: str
    shapes: Mapping[str, tuple[int, ...]]
    function: Callable[[Any, Any, Mapping[str, Any]], Any]  # (torch.nn.functional, x, weights)

    def model(self) -> onnx.ModelProto:
        """The layer and the sum of its squares."""
        ends = f"{self.nodes} square = Mul(y, y) loss = ReduceSum<keepdims=0>(square)"
        graph = parser.parse_graph(f"net (float[{','.join(map(str, self.x))}] x) => (float loss) {{ {ends} }}")
        graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in self.weights().items())
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)

    def weights(self) -> dict[str, NDArray[np.float32]]:
        """Weights whose products keep the size of what they multiply."""
        rng = np.random.default_rng(0)
        return {
            n: (rng.normal(size=s) / math.sqrt(math.prod(s[1:]) or 1)).astype(np.float32)
            for n, s in self.shapes.items()
        }


def _lstm(F: Any, x: Any, w: Mapping[str, Any]) -> Any:
    import torch

    gates = [0, 2, 3, 1]  # of ONNX's i, o, f, c in PyTorch's order i, f, g, o
    given = [torch.cat([w[n][0].chunk(4)[k] for k in gates]) for n in ("w", "r")]
    zeros = x.new_zeros(1, x.shape[1], 64)
    return torch._VF.lstm(x, (zeros, zeros), given, False, 1, 0.0, True, False, False)[0]


def _attention(F: Any, x: Any, w: Mapping[str, Any]) -> Any:
    q, k, v = ((x @ w[n]).view(8, 64, 4, 32).transpose(1, 2) for n in ("wq", "wk", "wv"))
    return (F.softmax(q @ k.transpose(2, 3) / 32**0.5, -1) @ v).transpose(1, 2).reshape(8, 64, 128) @ w["wo"]


_HEADS = " ".join(f"m{n} = MatMul(x, w{n}) r{n} = Reshape(m{n}, split)" for n in "qkv")
LAYERS = (
    Layer("linear 512", (64, 512), "y = Gemm<transB=1>(x, w, b)", {"w": (512, 512), "b": (512,)},
          lambda F, x, w: F.linear(x, w["w"], w["b"])),
    Layer("MLP, GELU", (64, 256), 'h = Gemm<transB=1>(x, w, b) g = Gelu(h) y = Gemm<transB=1>(g, v)',
          {"w": (1024, 256), "b": (1024,), "v": (256, 1024)},
          lambda F, x, w: F.linear(F.gelu(F.linear(x, w["w"], w["b"])), w["v"])),
    Layer("MLP, Tanh", (64, 256), "h = Gemm<transB=1>(x, w, b) g = Tanh(h) y = Gemm<transB=1>(g, v)",
          {"w": (1024, 256), "b": (1024,), "v": (256, 1024)},
          lambda F, x, w: F.linear(F.linear(x, w["w"], w["b"]).tanh(), w["v"])),
    Layer("conv 3x3", (8, 32, 28, 28), "y = Conv<pads=[1,1,1,1]>(x, w, b)", {"w": (64, 32, 3, 3), "b": (64,)},
          lambda F, x, w: F.conv2d(x, w["w"], w["b"], padding=1)),
    Layer("conv 3x3, stride 2", (8, 32, 28, 28), "y = Conv<pads=[1,1,1,1], strides=[2,2]>(x, w)", {"w": (64, 32, 3, 3)},
          lambda F, x, w: F.conv2d(x, w["w"], padding=1, stride=2)),
    Layer("conv 1x1, hardswish", (8, 64, 28, 28), "c = Conv(x, w) y = HardSwish(c)", {"w": (128, 64, 1, 1)},
          lambda F, x, w: F.hardswish(F.conv2d(x, w["w"]))),
    Layer("depthwise conv", (8, 64, 28, 28), "y = Conv<pads=[1,1,1,1], group=64>(x, w)", {"w": (64, 1, 3, 3)},
          lambda F, x, w: F.conv2d(x, w["w"], padding=1, groups=64)),
    Layer("batch norm, training", (16, 64, 14, 14), "y, m, v = BatchNormalization<training_mode=1>(x, s, b, s, s)",
          {"s": (64,), "b": (64,)}, lambda F, x, w: F.batch_norm(x, None, None, w["s"], w["b"], True)),
    Layer("layer norm", (64, 64, 128), "y = LayerNormalization(x, s, b)", {"s": (128,), "b": (128,)},
          lambda F, x, w: F.layer_norm(x, (128,), w["s"], w["b"])),
    Layer("attention", (8, 64, 128),
          "split = Constant<value_ints=[8,64,4,32]>() whole = Constant<value_ints=[8,64,128]>() " + _HEADS +
          " q = Transpose<perm=[0,2,1,3]>(rq) k = Transpose<perm=[0,2,3,1]>(rk) v = Transpose<perm=[0,2,1,3]>(rv) "
          "a = MatMul(q, k) e = Constant<value_float=0.17677669>() c = Mul(a, e) p = Softmax(c) o = MatMul(p, v) "
          "t = Transpose<perm=[0,2,1,3]>(o) u = Reshape(t, whole) y = MatMul(u, wo)",
          dict.fromkeys(("wq", "wk", "wv", "wo"), (128, 128)), _attention),
    Layer("LSTM", (20, 16, 64), "y = LSTM<hidden_size=64>(x, w, r)", {"w": (1, 256, 64), "r": (1, 256, 64)}, _lstm),
    Layer("max pool", (8, 64, 28, 28), "y = MaxPool<kernel_shape=[2,2], strides=[2,2]>(x)", {},
          lambda F, x, w: F.max_pool2d(x, 2)),
    Layer("softmax", (256, 1000), "y = Softmax(x)", {}, lambda F, x, w: F.softmax(x, -1)),
    Layer("log softmax", (256, 1000), "y = LogSoftmax(x)", {}, lambda F, x, w: F.log_softmax(x, -1)),
)  # fmt: skip


def _lenet(F: Any, x: Any, w: Mapping[str, Any]) -> Any:
    h = F.max_pool2d(F.relu(F.conv2d(x, w["k"], w["b"])), 2)
    h = F.max_pool2d(F.relu(F.conv2d(h, w["l"], w["c"])), 2)
    return F.linear(F.relu(F.linear(h.flatten(1), w["u"])), w["v"])


def _residual(F: Any, x: Any, w: Mapping[str, Any]) -> Any:
    h = F.relu(F.batch_norm(F.conv2d(x, w["k"], padding=1), None, None, w["s"], w["b"], True))
    return F.relu(x + F.batch_norm(F.conv2d(h, w["l"], padding=1), None, None, w["t"], w["c"], True))


def _inverted(F: Any, x: Any, w: Mapping[str, Any]) -> Any:
    h = F.hardswish(F.conv2d(x, w["e"]))
    return x + F.conv2d(F.hardswish(F.conv2d(h, w["d"], padding=1, groups=128)), w["p"])


def _encoder(F: Any, x: Any, w: Mapping[str, Any]) -> Any:
    h = F.layer_norm(x + _attention(F, x, w), (128,), w["s"], w["t"])
    return F.layer_norm(h + F.gelu(h @ w["f"]) @ w["g"], (128,), w["s"], w["t"])


_ATTEND = LAYERS[9].nodes
MODELS = (
    Layer("model: MLP 784-256-10", (64, 784),
          "h = Gemm<transB=1>(x, w, b) r = Relu(h) z = Gemm<transB=1>(r, v, c) y = LogSoftmax(z)",
          {"w": (256, 784), "b": (256,), "v": (10, 256), "c": (10,)},
          lambda F, x, w: F.log_softmax(F.linear(F.relu(F.linear(x, w["w"], w["b"])), w["v"], w["c"]), -1)),
    Layer("model: LeNet", (32, 1, 28, 28),
          "h = Conv(x, k, b) r = Relu(h) m = MaxPool<kernel_shape=[2,2], strides=[2,2]>(r) g = Conv(m, l, c) a = Relu(g) "
          "o = MaxPool<kernel_shape=[2,2], strides=[2,2]>(a) f = Flatten(o) d = Gemm<transB=1>(f, u) e = Relu(d) "
          "y = Gemm<transB=1>(e, v)",
          {"k": (6, 1, 5, 5), "b": (6,), "l": (16, 6, 5, 5), "c": (16,), "u": (120, 256), "v": (10, 120)}, _lenet),
    Layer("model: residual block", (8, 64, 14, 14),
          "h = Conv<pads=[1,1,1,1]>(x, k) n, m1, v1 = BatchNormalization<training_mode=1>(h, s, b, s, s) r = Relu(n) "
          "g = Conv<pads=[1,1,1,1]>(r, l) o, m2, v2 = BatchNormalization<training_mode=1>(g, t, "
          "c, t, t) a = Add(x, o) y = Relu(a)",
          {"k": (64, 64, 3, 3), "s": (64,), "b": (64,), "l": (64, 64, 3, 3), "t": (64,), "c": (64,)}, _residual),
    Layer("model: inverted residual", (8, 32, 28, 28),
          "a = Conv(x, e) h = HardSwish(a) b = Conv<pads=[1,1,1,1], group=128>(h, "
          "d) g = HardSwish(b) c = Conv(g, p) y = Add(x, c)",
          {"e": (128, 32, 1, 1), "d": (128, 1, 3, 3), "p": (32, 128, 1, 1)}, _inverted),
    Layer("model: encoder layer", (8, 64, 128),
          _ATTEND.replace("y = MatMul", "att = MatMul") +
          " r1 = Add(x, att) n1 = LayerNormalization(r1, s, t2) h1 = MatMul(n1, f) "
          "g1 = Gelu(h1) h2 = MatMul(g1, g) r2 = Add(n1, h2) y = LayerNormalization(r2, s, t2)",
          {**dict.fromkeys(("wq", "wk", "wv", "wo"), (128, 128)), "s": (128,), "t2": (128,), "f": (128, 512),
           "g": (512, 128)},
          lambda F, x, w: _encoder(F, x, {**w, "t": w["t2"]})),
)  # fmt: skip


def tables(quick: bool = False) -> Iterator[Table]:
    """One table, with one thread and with two."""
    table = Table("Gradient files", HEAD, note="x and all weights; onnxruntime runs the file as it is by default.")
    for threads in (1,) if quick else (1, 2):
        variables = {**VARIABLES, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
        rows, _ = alone("benchmarks.gradient_files:rows", variables, quick=quick, threads=threads)
        for row in rows:
            table.add(*row)
    yield table


def rows(quick: bool, threads: int) -> list[tuple[Any, ...]]:
    """A row for each layer."""
    return [row(layer, threads) for layer in (LAYERS[:2] if quick else (*LAYERS, *MODELS))]


def row(layer: Layer, threads: int) -> tuple[Any, ...]:
    """Times of one layer, side by side."""
    ways = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "layer.onnx"
        onnx.save(layer.model(), path)
        model = gradcheck_cli.load(path)
        found = gradcheck_cli.gradients(model["loss"], [model[n] for n in ("x", *layer.shapes)])
        gradcheck_cli.save(model, path.with_suffix(".grad.onnx"), [model["loss"], *(g for g in found if g is not None)])
        x = np.random.default_rng(1).normal(size=layer.x).astype(np.float32)
        ways["forward"] = _session(path, x, threads)
        ways["file"] = _session(path.with_suffix(".grad.onnx"), x, threads)
        nodes = len(onnx.load(path.with_suffix(".grad.onnx")).graph.node)
    if (torch := installed("torch")) is not None:
        ways["torch"] = _torch(torch, layer, x)
    times = in_turns(ways, 5)
    median = {name: sorted(each)[len(each) // 2] * 1e3 for name, each in times.items()}
    beside = 1 / ratio(times, "torch", "file") if "torch" in times else "absent"
    return (
        layer.name,
        threads,
        nodes,
        median.get("torch", "absent"),
        median["file"],
        beside,
        1 / ratio(times, "forward", "file"),
    )


def _session(path: Path, x: NDArray[Any], threads: int) -> Callable[[], Any]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    held = onnxruntime.InferenceSession(path, options, ["CPUExecutionProvider"])
    return lambda: held.run(None, {"x": x})


def _torch(torch: Any, layer: Layer, x: NDArray[Any]) -> Callable[[], Any]:
    weights = {n: torch.tensor(v, requires_grad=True) for n, v in layer.weights().items()}
    at = torch.tensor(x, requires_grad=True)

    def run() -> Any:
        y = layer.function(torch.nn.functional, at, weights)
        return torch.autograd.grad((y * y).sum(), [at, *weights.values()])

    return run


if __name__ == "__main__":
    write(*tables())
