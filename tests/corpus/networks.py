"""Small networks of the usual kinds, with random weights: what rules are used in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import gradcheck_cli as gc
from gradcheck_cli.autodiff.backward import units_between
from gradcheck_cli.autodiff.trace import trace
from gradcheck_cli.formats.source import Source
from gradcheck_cli.graph import Graph, Node, TensorType
from gradcheck_cli.op import zero
from gradcheck_cli.ops import OPS
from tests.corpus.hosts import Host, Layers

Rng = np.random.Generator


def mlp(add: Layers, rng: Rng) -> tuple[int, ...]:
    """Two layers with a loss, by the input."""
    h = add("Tanh", add("Gemm", "x", weights(rng, 4, 5), weights(rng, 5)))
    logits = add("Gemm", h, weights(rng, 5, 3), weights(rng, 3), alpha=0.5)
    add("SoftmaxCrossEntropyLoss", logits, np.array([0, 2, 1]), out="y")
    return 3, 4


def mlp_weights(add: Layers, rng: Rng) -> tuple[int, ...]:
    """A layer of weights x, used for three inputs."""
    h = add("Gelu", add("Add", add("MatMul", weights(rng, 3, 4), "x"), weights(rng, 5)))
    add("LogSoftmax", add("MatMul", h, weights(rng, 5, 3)), out="y", axis=-1)
    return 4, 5


def convolutional(add: Layers, rng: Rng) -> tuple[int, ...]:
    """Convolution, batch normalization in training, activation, pools, a linear layer."""
    c = add("Conv", "x", weights(rng, 3, 2, 3, 3), weights(rng, 3), pads=(1, 1, 1, 1))
    ones, zeros = rng.uniform(0.5, 1.5, 3), np.zeros(3)
    n = add("BatchNormalization", c, ones, weights(rng, 3), zeros, ones, training_mode=1)
    p = add("MaxPool", add("LeakyRelu", n, alpha=0.1), kernel_shape=(2, 2), strides=(2, 2))
    q = add("AveragePool", p, kernel_shape=(2, 2), pads=(1, 0, 0, 0), strides=(1, 1))
    add("Gemm", add("Flatten", q), weights(rng, 12, 2), weights(rng, 2), out="y")
    return 2, 2, 4, 6


def depthwise(add: Layers, rng: Rng) -> tuple[int, ...]:
    """The weights x of a strided depthwise convolution, a pointwise one, an upsampling."""
    c = add("Conv", weights(rng, 1, 4, 6, 6), "x", strides=(2, 2), pads=(1, 0, 1, 0), group=4)
    d = add("Conv", add("HardSwish", c), weights(rng, 2, 4, 1, 1))
    up = add("Resize", d, "", np.array([1.0, 1.0, 2.0, 2.0]), mode="linear")
    add("GlobalAveragePool", add("Sigmoid", up), out="y")
    return 4, 1, 3, 3


def attention(add: Layers, rng: Rng) -> tuple[int, ...]:
    """A block of attention with layer normalization, a mask and a way around."""
    n = add("LayerNormalization", "x", rng.uniform(0.5, 1.5, 4), weights(rng, 4), axis=-1)
    q, k, v = (add("MatMul", n, weights(rng, 4, 4)) for _ in range(3))
    scores = add("Div", add("MatMul", q, add("Transpose", k, perm=(0, 2, 1))), np.float64(2.0))
    mask = add("Where", np.tril(np.ones((3, 3), bool)), scores, np.float64(-1e9))
    mixed = add("MatMul", add("Softmax", mask, axis=-1), v)
    add("Add", "x", add("MatMul", add("Gelu", mixed, approximate="tanh"), weights(rng, 4, 4)), out="y")
    return 1, 3, 4


def recurrent(add: Layers, rng: Rng) -> tuple[int, ...]:
    """An LSTM of which the last state counts."""
    nodes = add.nodes
    names = [add.held(v) for v in (weights(rng, 1, 12, 2), weights(rng, 1, 12, 3), weights(rng, 1, 24))]
    nodes.append(Node("LSTM", ("x", *names), ("all", "last"), {"hidden_size": 3}))
    add("MatMul", add("Concat", add("Squeeze", "all", np.array([1])), "last", axis=0), weights(rng, 3, 2), out="y")
    return 3, 1, 2


def scanned(add: Layers, rng: Rng) -> tuple[int, ...]:
    """A Scan: a state that every row of x moves, and what it passes on."""
    body = Graph(
        ("s", "r"),
        ("t", "o"),
        (
            Node("MatMul", ("s", "A"), ("u",)),
            Node("Add", ("u", "r"), ("v",)),
            Node("Tanh", ("v",), ("t",)),
            Node("Mul", ("t", "r"), ("o",)),
        ),
        {"A": weights(rng, 2, 2)},
    )
    names = [add.held(weights(rng, 2))]
    add.nodes.append(Node("Scan", (*names, "x"), ("final", "rows"), {"body": body, "num_scan_inputs": 1}))
    add("Add", add("ReduceSum", "rows", np.array([0]), keepdims=0), "final", out="y")
    return 4, 2


def looped(add: Layers, rng: Rng) -> tuple[int, ...]:
    """A Loop that squares and mixes a state three times."""
    body = Graph(
        ("i", "c", "s"),
        ("c", "t"),
        (Node("Sin", ("s",), ("u",)), Node("MatMul", ("u", "A"), ("v",)), Node("Sub", ("s", "v"), ("t",))),
        {"A": weights(rng, 3, 3)},
    )
    names = [add.held(np.array(3)), add.held(np.array(True))]
    add.nodes.append(Node("Loop", (*names, "x"), ("end",), {"body": body}))
    add("Exp", "end", out="y")
    return (3,)


def residual(add: Layers, rng: Rng) -> tuple[int, ...]:
    """Two blocks with ways around, a fan-out of three, a norm."""
    h = add("Add", "x", add("Relu", add("MatMul", "x", weights(rng, 4, 4))))
    g = add("Add", h, add("Softplus", add("MatMul", h, weights(rng, 4, 4))))
    gated = add("Mul", g, add("Sigmoid", g))
    unit = add("Div", gated, add("ReduceL2", gated, np.array([-1])))
    add("ReduceMean", add("Concat", unit, h, axis=0), np.array([0]), out="y", keepdims=0)
    return 2, 4


def sorting(add: Layers, rng: Rng) -> tuple[int, ...]:
    """A selection of the largest, an embedding with repeated rows, running sums, tiles, pads and slices."""
    add.nodes.append(Node("TopK", ("x", add.held(np.array([3]))), ("best", "where"), {"axis": -1}))
    rows = add("Gather", "best", np.array([0, 1, 1]), axis=0)
    run = add("CumSum", rows, np.array(1))
    tiled = add("Tile", run, np.array([1, 2]))
    cut = add("Slice", add("Pad", tiled, np.array([0, 1, 1, 0])), np.array([0]), np.array([5]), np.array([1]))
    add("ReduceLogSumExp", add("Pow", add("Exp", cut), np.float64(1.5)), np.array([1]), out="y", keepdims=0)
    return 2, 5


def fused(add: Layers, rng: Rng) -> tuple[int, ...]:
    """Normalizations by groups and by root mean square, a product of tensors, a transposed convolution."""
    c = add("ConvTranspose", "x", weights(rng, 2, 4, 3), strides=(2,), pads=(1, 1))
    g = add("GroupNormalization", c, rng.uniform(0.5, 1.5, 4), weights(rng, 4), num_groups=2)
    r = add("RMSNormalization", add("Transpose", g, perm=(0, 2, 1)), rng.uniform(0.5, 1.5, 4), axis=-1)
    add("Einsum", r, weights(rng, 4, 3), equation="nlc,cd->nd", out="y")
    return 1, 2, 4


NETWORKS: dict[str, Callable[[Layers, Rng], tuple[int, ...]]] = {
    f.__name__: f
    for f in (
        mlp,
        mlp_weights,
        convolutional,
        depthwise,
        attention,
        recurrent,
        scanned,
        looped,
        residual,
        sorting,
        fused,
    )
}


def weights(rng: Rng, *shape: int) -> Any:
    """Normal numbers, scaled by what goes into each unit."""
    return rng.normal(size=shape) / np.sqrt(max(shape[0], 2))


def network(name: str, seed: int) -> Host:
    """A network with its weights and its input drawn by a seed."""
    rng, add = np.random.default_rng([seed, 11]), Layers()
    shape = NETWORKS[name](add, rng)
    types = {"x": TensorType(np.dtype(np.float64), shape)}
    graph = Graph(("x",), ("y",), tuple(add.nodes), add.constants, types)
    return Host(name, gc.Model(Source(graph, name, nodes=len(add.nodes)), OPS), rng.uniform(-1, 1, shape), seed)


def rules_of(host: Host) -> list[tuple[str, str]]:
    """The operators whose rules a derivative of y by x takes, in order, but not those that are zero by nature."""
    tape = trace(host.model.graph, {"x": host.x}, ops=OPS, seed=host.seed)
    units = units_between(tape, [tape.named["x"].name], [tape.named["y"].name])
    return list(dict.fromkeys(u.op.key for u in units if u.op.vjp is not zero))
