"""Networks that are larger than a full Jacobian: each written once, as a function of an array library.

`Nodes` is a library whose arrays are names: what is called on it becomes an ONNX graph.  `TorchArrays` computes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

Array = NDArray[np.float32]
Function: TypeAlias = Callable[[Any, Any], Any]  # (library, x) -> y
Block: TypeAlias = Callable[[Any, Any, int, int, int], tuple[Any, int]]  # (library, x, channels read, inside, stride)
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

    def conv(self, x: str, w: str, stride: int, pad: int, groups: int = 1) -> str:
        return self._node("Conv", x, w, strides=[stride] * 2, pads=[pad] * 4, group=groups)

    def conv_transpose(self, x: str, w: str, stride: int) -> str:
        return self._node("ConvTranspose", x, w, strides=[stride] * 2)

    def batch_norm(self, x: str, *parameters: str) -> str:
        return self._node("BatchNormalization", x, *parameters, epsilon=_EPSILON)

    def layer_norm(self, x: str, scale: str, bias: str) -> str:
        return self._node("LayerNormalization", x, scale, bias, epsilon=_EPSILON)

    def max_pool(self, x: str, kernel: int) -> str:
        return self._node("MaxPool", x, kernel_shape=[kernel] * 2, strides=[2, 2], pads=[(kernel - 1) // 2] * 4)

    def concatenate(self, *images: str) -> str:
        return self._node("Concat", *images, axis=1)

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

    def hard_sigmoid(self, x: str) -> str:
        return self._node("HardSigmoid", x, alpha=1 / 6)

    def hard_swish(self, x: str) -> str:
        return self._node("HardSwish", x)

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

    def conv(self, x: Any, w: Any, stride: int, pad: int, groups: int = 1) -> Any:
        return self.torch.nn.functional.conv2d(x, w, stride=stride, padding=pad, groups=groups)

    def conv_transpose(self, x: Any, w: Any, stride: int) -> Any:
        return self.torch.nn.functional.conv_transpose2d(x, w, stride=stride)

    def batch_norm(self, x: Any, scale: Any, bias: Any, mean: Any, var: Any) -> Any:
        return self.torch.nn.functional.batch_norm(x, mean, var, scale, bias, eps=_EPSILON)

    def layer_norm(self, x: Any, scale: Any, bias: Any) -> Any:
        return self.torch.nn.functional.layer_norm(x, scale.shape, scale, bias, eps=_EPSILON)

    def max_pool(self, x: Any, kernel: int) -> Any:
        return self.torch.nn.functional.max_pool2d(x, kernel, 2, (kernel - 1) // 2)

    def concatenate(self, *images: Any) -> Any:
        return self.torch.concatenate(images, 1)

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

    def hard_sigmoid(self, x: Any) -> Any:
        return self.torch.nn.functional.hardsigmoid(x)

    def hard_swish(self, x: Any) -> Any:
        return self.torch.nn.functional.hardswish(x)

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
    function: Function

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


def unit(xp: Any, x: Any, read: int, made: int, kernel: int, stride: int = 1, groups: int = 1) -> Any:
    """A convolution that keeps the image's size but for the stride, then a batch normalization."""
    w = xp.weight(made, read // groups, kernel, kernel)
    statistics = xp.weight(made, mean=1), xp.weight(made), xp.weight(made), xp.weight(made, mean=1)
    return xp.batch_norm(xp.conv(x, w, stride, kernel // 2, groups), *statistics)


def linear(xp: Any, x: Any, read: int, made: int) -> Any:
    """A product with weights, and a bias."""
    return xp.add(xp.matmul(x, xp.weight(read, made)), xp.weight(made))


def basic(xp: Any, x: Any, read: int, inner: int, stride: int) -> tuple[Any, int]:
    """Two 3x3 convolutions beside a shortcut, and the number of channels."""
    h = unit(xp, xp.relu(unit(xp, x, read, inner, 3, stride)), inner, inner, 3)
    return _beside(xp, h, x, read, inner, stride), inner


def bottleneck(xp: Any, x: Any, read: int, inner: int, stride: int) -> tuple[Any, int]:
    """Fewer channels, a 3x3 convolution, and four times as many channels, beside a shortcut; and their number."""
    h = xp.relu(unit(xp, x, read, inner, 1))
    h = unit(xp, xp.relu(unit(xp, h, inner, inner, 3, stride)), inner, 4 * inner, 1)
    return _beside(xp, h, x, read, 4 * inner, stride), 4 * inner


def _beside(xp: Any, h: Any, x: Any, read: int, made: int, stride: int) -> Any:
    return xp.relu(xp.add(h, x if read == made and stride == 1 else unit(xp, x, read, made, 1, stride)))


def resnet(
    stages: Sequence[int] = (3, 4, 6, 3), width: int = 64, classes: int = 1000, block: Block = bottleneck
) -> Function:
    """ResNet; the default is ResNet-50."""

    def function(xp: Any, x: Any) -> Any:
        h, read = xp.max_pool(xp.relu(unit(xp, x, 3, width, 7, 2)), 3), width
        for stage, count in enumerate(stages):
            for index in range(count):
                h, read = block(xp, h, read, width << stage, 2 if stage and not index else 1)
        return linear(xp, xp.mean_over_space(h), read, classes)

    return function


Row: TypeAlias = tuple[int, int, int, bool, str, int]
_SMALL: tuple[Row, ...] = (  # kernel, channels inside and behind, squeeze-and-excitation, activation, stride
    (3, 16, 16, True, "relu", 2), (3, 72, 24, False, "relu", 2), (3, 88, 24, False, "relu", 1),
    (5, 96, 40, True, "hard_swish", 2), (5, 240, 40, True, "hard_swish", 1), (5, 240, 40, True, "hard_swish", 1),
    (5, 120, 48, True, "hard_swish", 1), (5, 144, 48, True, "hard_swish", 1), (5, 288, 96, True, "hard_swish", 2),
    (5, 576, 96, True, "hard_swish", 1), (5, 576, 96, True, "hard_swish", 1),
)  # fmt: skip


def mobilenet(rows: Sequence[Row] = _SMALL, classes: int = 1000) -> Function:
    """MobileNetV3; the default is its small one."""

    def squeezed(xp: Any, x: Any, size: int) -> Any:
        inner = max(8, (size // 4 + 4) // 8 * 8)
        shares = linear(xp, xp.relu(linear(xp, xp.mean_over_space(x), size, inner)), inner, size)
        return xp.mul(x, xp.reshape(xp.hard_sigmoid(shares), 1, size, 1, 1))

    def block(xp: Any, x: Any, read: int, row: Row) -> Any:
        kernel, inner, made, squeezes, bend, stride = row
        h = x if inner == read else getattr(xp, bend)(unit(xp, x, read, inner, 1))
        h = getattr(xp, bend)(unit(xp, h, inner, inner, kernel, stride, groups=inner))
        h = unit(xp, squeezed(xp, h, inner) if squeezes else h, inner, made, 1)
        return xp.add(x, h) if read == made and stride == 1 else h

    def function(xp: Any, x: Any) -> Any:
        h, read = xp.hard_swish(unit(xp, x, 3, 16, 3, 2)), 16
        for row in rows:
            h, read = block(xp, h, read, row), row[2]
        h = xp.mean_over_space(xp.hard_swish(unit(xp, h, read, 6 * read, 1)))
        return linear(xp, xp.hard_swish(linear(xp, h, 6 * read, 1024)), 1024, classes)

    return function


def unet(levels: int = 3, width: int = 16, channels: int = 1) -> Function:
    """U-Net: at every level half the size and twice the channels, then back beside what was there on the way down."""

    def double(xp: Any, x: Any, read: int, made: int) -> Any:
        return xp.relu(unit(xp, xp.relu(unit(xp, x, read, made, 3)), made, made, 3))

    def level(xp: Any, x: Any, read: int, made: int, below: int) -> Any:
        h = double(xp, x, read, made)
        if not below:
            return h
        deep = level(xp, xp.max_pool(h, 2), made, 2 * made, below - 1)
        wide = xp.conv_transpose(deep, xp.weight(2 * made, made, 2, 2), 2)
        return double(xp, xp.concatenate(h, wide), 2 * made, made)

    return lambda xp, x: xp.conv(level(xp, x, 3, width, levels), xp.weight(channels, width, 1, 1), 1, 0)


def two_convolutions(xp: Any, x: Any) -> Any:
    """Two 3x3 convolutions with a Relu between, of three channels each: nearly all of its Jacobian is zero."""
    return xp.conv(xp.relu(xp.conv(x, xp.weight(3, 3, 3, 3), 1, 1)), xp.weight(3, 3, 3, 3), 1, 1)


def transformer(blocks: int, size: int, heads: int, tokens: int, vocabulary: int) -> Function:
    """A decoder as in GPT-2, from embedded tokens to logits."""

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
