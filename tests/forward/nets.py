"""Nets of 5 to 50 layers, drawn at random, with one node of interest somewhere inside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

SIZE = 8  # of every axis but the first, so that a wrong axis changes no shape
SHAPE = (2, SIZE, SIZE, SIZE)
KINDS = {"float32": np.float32, "float16": np.float16, "float64": np.float64}


@dataclass(frozen=True)
class Use:
    """One way to use an operator: on h of `SHAPE`, with constants as further operands.

    `before` are nodes that make its operand of h; "Halved" is a product with 0.5.
    """

    op: str
    operands: Sequence[Any] = ()
    attrs: Mapping[str, Any] = field(default_factory=dict)
    before: tuple[str, ...] = ()
    domain: str = ""
    outputs: int = 1
    opset: int = 21


class Net:
    """A graph under construction."""

    def __init__(self, dtype: str, seed: int) -> None:
        self.dtype, self.rng = np.dtype(KINDS[dtype]), np.random.default_rng([seed, 17])
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def constant(self, value: Any) -> str:
        """The name of a new constant, floats in the net's dtype; none for an operand that is left out."""
        if value is None:
            return ""
        array, name = np.asarray(value), f"c{len(self.constants)}"
        array = array.astype(self.dtype) if array.dtype == np.float64 else array  # others are of a type of their own
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def drawn(self, *shape: int, scale: float = 1.0) -> str:
        """A constant of random numbers."""
        return self.constant(self.rng.normal(size=shape) * scale)

    def add(self, op: str, *inputs: str, domain: str = "", outputs: int = 1, **attrs: Any) -> str:
        """The name of the first result of a new node."""
        names = [f"h{len(self.nodes)}" + (f"_{i}" if i else "") for i in range(outputs)]
        self.nodes.append(helper.make_node(op, inputs, names, domain=domain, **attrs))
        return names[0]

    def use(self, what: Use, h: str) -> int:
        """The index of the node of interest, which is added last; its operand has entries of either sign."""
        h = self.add("Add", h, self.drawn(*SHAPE))
        for op in what.before:
            h = self.add("Mul", h, self.constant(0.5)) if op == "Halved" else self.add(op, h)
        self.add(what.op, h, *map(self.constant, what.operands), domain=what.domain, outputs=what.outputs, **what.attrs)
        return len(self.nodes) - 1

    def layer(self, h: str, avoid: str, *, same: bool) -> str:
        """One layer more, of an operator other than `avoid`; `same`: h has `SHAPE`."""
        left_out = {avoid, *_PARTS.get(avoid, ()), *(_NOT_WIDE if self.dtype == np.float64 else ())}
        kinds = [kind for kind in (*_EVERYWHERE, *(_SHAPED if same else ())) if kind not in left_out]
        return _build(self, str(self.rng.choice(kinds)), h)


_EVERYWHERE = ("Tanh", "Relu", "Sigmoid", "Mul", "Add", "Softplus", "LeakyRelu", "Sin", "Abs")
_SHAPED = (
    "Conv", "BatchNormalization", "LayerNormalization", "InstanceNormalization", "MatMul", "Softmax", "AveragePool",
    "MaxPool", "Gelu", "Transpose", "Residual", "Elu",
)  # fmt: skip


_NOT_WIDE = {"Softplus", "LeakyRelu", "Conv", "InstanceNormalization", "AveragePool", "Elu"}  # no kernels in float64
_PARTS = {  # what is composed of an operator is misread with it
    "LayerNormalization": ("InstanceNormalization",), "MatMul": ("Residual",), "Erf": ("Gelu",),
    "ReduceMean": ("InstanceNormalization", "LayerNormalization"),
}  # fmt: skip


def _build(net: Net, kind: str, h: str) -> str:
    n = SIZE
    match kind:
        case "Mul":
            return net.add("Mul", h, net.constant(float(net.rng.uniform(0.7, 1.4))))
        case "Add":
            return net.add("Add", h, net.constant(float(net.rng.normal() * 0.3)))
        case "Conv":
            w = net.drawn(n, n, 3, 3, scale=(9 * n) ** -0.5)
            return net.add("Conv", h, w, net.drawn(n, scale=0.1), pads=[1, 1, 1, 1])
        case "BatchNormalization":
            spread = net.constant(net.rng.uniform(0.3, 1.5, n))
            return net.add(kind, h, net.constant(net.rng.uniform(0.7, 1.3, n)), net.drawn(n), net.drawn(n), spread)
        case "InstanceNormalization":
            return net.add(kind, h, net.constant(net.rng.uniform(0.7, 1.3, n)), net.drawn(n, scale=0.2))
        case "LayerNormalization":
            return net.add(kind, h, net.constant(net.rng.uniform(0.7, 1.3, n)), net.drawn(n, scale=0.2))
        case "MatMul":
            return net.add(kind, h, net.drawn(n, n, scale=n**-0.5))
        case "AveragePool" | "MaxPool":
            return net.add(kind, h, kernel_shape=[3, 3], pads=[1, 1, 1, 1])
        case "Transpose":
            return net.add(kind, h, perm=[0, 2, 3, 1])
        case "Residual":
            return net.add("Add", h, net.add("Tanh", net.add("MatMul", h, net.drawn(n, n, scale=n**-0.5))))
        case _:
            return net.add(kind, h)


def write(path: Path, use: Use | None, seed: int, dtype: str = "float32") -> int:
    """A net with a use of an operator in it, in a file; the index of its node, or -1 where there is none."""
    net = Net(dtype, seed)
    depth = int(net.rng.integers(5, 51))
    place, h, index, same = int(net.rng.integers(1, depth)), "x", -1, True
    avoid = "" if use is None else use.op
    for layer in range(depth):
        h = net.layer(h, avoid, same=same)
        if use is not None and layer == place - 1:
            index = net.use(use, h)
            h, same = net.nodes[-1].output[0], _keeps_shape(use)
    if net.rng.integers(2):
        h = net.add("ReduceMean", h, net.constant(np.int64([-1])), keepdims=0) if avoid != "ReduceMean" else h
    save(path, net, h, use.opset if use is not None else 21)
    return index


def _keeps_shape(use: Use) -> bool:
    made = use.op not in {"Resize", "Pad", "AveragePool", "MaxPool", "ConvTranspose", "DepthToSpace", "SpaceToDepth",
                          "GridSample", "ReduceMean", "ReduceL2", "ReduceLogSumExp", "TopK", "GRU", "LSTM", "Flatten",
                          "ArgMax"}  # fmt: skip
    return made and not use.before


def save(path: Path, net: Net, y: str, opset: int) -> None:
    """The net with one input x and one output y."""
    kind = helper.np_dtype_to_tensor_dtype(net.dtype)
    x = helper.make_tensor_value_info("x", kind, SHAPE)
    graph = helper.make_graph(net.nodes, "net", [x], [onnx.ValueInfoProto(name=y)], net.constants)
    domains = {"": opset, "com.microsoft": 1}
    imports = [helper.make_opsetid(domain, version) for domain, version in domains.items()]
    onnx.save(onnx.shape_inference.infer_shapes(helper.make_model(graph, opset_imports=imports, ir_version=10)), path)
