"""Networks that are larger than a full Jacobian: each written once, as a function of an array library.

`Nodes` is a library whose arrays are names: what is called on it becomes an ONNX graph.  `TorchArrays` computes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

Array = NDArray[np.float32]
_EPSILON = 1e-5


@dataclass(slots=True)
class Nodes:
    """An ONNX graph under construction; every weight is drawn, in float32, when it is asked for."""

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: dict[str, Array] = field(default_factory=dict)
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def weight(self, *shape: int, mean: float = 0.0) -> str:
        """Numbers around a mean, of a size that products keep."""
        name, size = (
            f"w{len(self.weights)}",
            1 / math.sqrt(math.prod(shape[1:] if len(shape) == 4 else shape[:-1]) or 1),
        )
        drawn = self.rng.standard_normal(shape, np.float32) * np.float32(size if len(shape) > 1 else 0.1)
        self.weights[name] = drawn + np.float32(mean)
        return name

    def conv(self, x: str, w: str, stride: int, pad: int) -> str:
        return self._node("Conv", x, w, strides=[stride] * 2, pads=[pad] * 4)

    def batch_norm(self, x: str, *parameters: str) -> str:
        return self._node("BatchNormalization", x, *parameters, epsilon=_EPSILON)

    def layer_norm(self, x: str, scale: str, bias: str) -> str:
        return self._node("LayerNormalization", x, scale, bias, epsilon=_EPSILON)

    def max_pool(self, x: str) -> str:
        return self._node("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)

    def mean_over_space(self, x: str) -> str:
        return self._node("Flatten", self._node("GlobalAveragePool", x))

    def reshape(self, x: str, *shape: int) -> str:
        name = f"shape{len(self.nodes)}"
        self.nodes.append(helper.make_node("Constant", [], [name], value_ints=shape))
        return self._node("Reshape", x, name)

    def transpose(self, x: str, *perm: int) -> str:
        return self._node("Transpose", x, perm=perm)

    def scaled(self, x: str, factor: float) -> str:
        name = f"factor{len(self.nodes)}"
        self.nodes.append(helper.make_node("Constant", [], [name], value_float=factor))
        return self._node("Mul", x, name)

    def causal(self, scores: str, size: int) -> str:
        mask = f"w{len(self.weights)}"
        self.weights[mask] = np.triu(np.full((size, size), -1e4, np.float32), 1)
        return self._node("Add", scores, mask)

    def gelu(self, x: str) -> str:
        return self._node("Gelu", x, approximate="tanh")

    def __getattr__(self, name: str) -> Callable[..., str]:
        return lambda *operands: self._node({"matmul": "MatMul"}.get(name, name.title()), *operands)

    def _node(self, op: str, *operands: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(op, operands, [f"t{len(self.nodes)}"], **attributes))
        return self.nodes[-1].output[0]


@dataclass(slots=True)
class TorchArrays:
    """The same calls in PyTorch, with weights that were drawn before, in the order in which they are asked for."""

    torch: Any
    given: Mapping[str, Any]  # tensors by name, in float64
    asked: int = 0

    def weight(self, *shape: int, mean: float = 0.0) -> Any:
        self.asked += 1
        return self.given[f"w{self.asked - 1}"]

    def causal(self, scores: Any, size: int) -> Any:
        return scores + self.weight()

    def conv(self, x: Any, w: Any, stride: int, pad: int) -> Any:
        return self.torch.nn.functional.conv2d(x, w, stride=stride, padding=pad)

    def batch_norm(self, x: Any, scale: Any, bias: Any, mean: Any, var: Any) -> Any:
        return self.torch.nn.functional.batch_norm(x, mean, var, scale, bias, eps=_EPSILON)

    def layer_norm(self, x: Any, scale: Any, bias: Any) -> Any:
        return self.torch.nn.functional.layer_norm(x, scale.shape, scale, bias, eps=_EPSILON)

    def max_pool(self, x: Any) -> Any:
        return self.torch.nn.functional.max_pool2d(x, 3, 2, 1)

    def mean_over_space(self, x: Any) -> Any:
        return x.mean((2, 3))

    def reshape(self, x: Any, *shape: int) -> Any:
        return x.reshape(shape)

    def transpose(self, x: Any, *perm: int) -> Any:
        return x.permute(perm)

    def scaled(self, x: Any, factor: float) -> Any:
        return x * factor

    def gelu(self, x: Any) -> Any:
        return self.torch.nn.functional.gelu(x, approximate="tanh")

    def softmax(self, x: Any) -> Any:
        return self.torch.softmax(x, -1)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.torch, name)


@dataclass(frozen=True, slots=True)
class Network:
    """A function of one float32 input, in calls of a library."""

    name: str
    x_shape: tuple[int, ...]
    y_shape: tuple[int, ...]
    function: Callable[[Any, Any], Any]

    def write(self, path: Path) -> Mapping[str, Array]:
        """The model as a file, float32 with drawn weights; gives the weights."""
        nodes = Nodes()
        y = self.function(nodes, "x")
        graph = helper.make_graph(
            nodes.nodes, "network", [helper.make_tensor_value_info("x", TensorProto.FLOAT, self.x_shape)],
            [helper.make_tensor_value_info(y, TensorProto.FLOAT, self.y_shape)],
            [numpy_helper.from_array(value, name) for name, value in nodes.weights.items()],
        )  # fmt: skip
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9), path)
        return nodes.weights

    def in_torch(self, torch: Any, weights: Mapping[str, Array]) -> Callable[[Any], Any]:
        """The function of PyTorch's tensors, in float64."""
        held = {name: torch.tensor(value, dtype=torch.float64) for name, value in weights.items()}
        return lambda x: self.function(TorchArrays(torch, held), x)


def resnet(stages: Sequence[int] = (3, 4, 6, 3), width: int = 64, classes: int = 1000) -> Callable[[Any, Any], Any]:
    """ResNet with bottlenecks; the default is ResNet-50."""

    def unit(xp: Any, x: Any, made: int, read: int, kernel: int, stride: int) -> Any:
        w = xp.weight(made, read, kernel, kernel)
        statistics = xp.weight(made, mean=1), xp.weight(made), xp.weight(made), xp.weight(made, mean=1)
        return xp.batch_norm(xp.conv(x, w, stride, kernel // 2), *statistics)

    def block(xp: Any, x: Any, read: int, inner: int, stride: int) -> Any:
        h = xp.relu(unit(xp, x, inner, read, 1, 1))
        h = unit(xp, xp.relu(unit(xp, h, inner, inner, 3, stride)), 4 * inner, inner, 1, 1)
        return xp.relu(xp.add(h, x if read == 4 * inner and stride == 1 else unit(xp, x, 4 * inner, read, 1, stride)))

    def function(xp: Any, x: Any) -> Any:
        h, read = xp.max_pool(xp.relu(unit(xp, x, width, x_channels, 7, 2))), width
        for stage, count in enumerate(stages):
            for index in range(count):
                inner = width << stage
                h, read = block(xp, h, read, inner, 2 if stage and not index else 1), 4 * inner
        return xp.add(xp.matmul(xp.mean_over_space(h), xp.weight(read, classes)), xp.weight(classes))

    x_channels = 3
    return function


def transformer(blocks: int, size: int, heads: int, tokens: int, vocabulary: int) -> Callable[[Any, Any], Any]:
    """A decoder as in GPT-2, from embedded tokens to logits."""

    def linear(xp: Any, x: Any, read: int, made: int) -> Any:
        return xp.add(xp.matmul(x, xp.weight(read, made)), xp.weight(made))

    def norm(xp: Any, x: Any) -> Any:
        return xp.layer_norm(x, xp.weight(size, mean=1), xp.weight(size))

    def attention(xp: Any, x: Any) -> Any:
        q, k, v = (xp.reshape(linear(xp, x, size, size), tokens, heads, size // heads) for _ in range(3))
        q, k, v = xp.transpose(q, 1, 0, 2), xp.transpose(k, 1, 2, 0), xp.transpose(v, 1, 0, 2)
        scores = xp.causal(xp.scaled(xp.matmul(q, k), 1 / math.sqrt(size // heads)), tokens)
        mixed = xp.transpose(xp.matmul(xp.softmax(scores), v), 1, 0, 2)
        return linear(xp, xp.reshape(mixed, tokens, size), size, size)

    def function(xp: Any, x: Any) -> Any:
        for _ in range(blocks):
            x = xp.add(x, attention(xp, norm(xp, x)))
            x = xp.add(x, linear(xp, xp.gelu(linear(xp, norm(xp, x), size, 4 * size)), 4 * size, size))
        return xp.matmul(norm(xp, x), xp.weight(size, vocabulary))

    return function


RESNET = Network("ResNet-50, 1x3x224x224", (1, 3, 224, 224), (1, 1000), resnet())
GPT = Network("GPT-like, 6 blocks, 64 tokens, d 384", (64, 384), (64, 4096), transformer(6, 384, 6, 64, 4096))
