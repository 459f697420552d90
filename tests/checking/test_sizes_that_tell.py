"""Wrong rules are caught at the sizes that are chosen: attention over several keys, recurrence over several steps.

Every net is drawn anew by its number: widths, heads, depth, which dimensions are open and what they are called.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

import gradcheck_cli as gc
from gradcheck_cli.formats.source import Source
from gradcheck_cli.graph import Array, Dim, Graph, Node, TensorType
from tests.corpus.wrong_rules import instead

FLOAT = np.dtype(np.float64)
NAMES: tuple[tuple[Dim, Dim], ...] = (
    ("N", "S"), ("batch_size", "sequence_length"), (None, None), ("unk__1", "unk__2"), (2, "T"), ("B", None),
)  # fmt: skip


def off(op: str) -> dict[tuple[str, str], gc.Op]:
    """The operator table in which the rule of one operator, or what it is composed of, gives 1.5 times as much."""
    right = gc.OPS["", op].vjp or instead(op)

    def rule(ct: Any, ans: Any, *primals: Any, **metadata: Any) -> tuple[Any, ...]:
        return tuple(None if c is None else c * 1.5 for c in right(ct, ans, *primals, **metadata))

    return {**gc.OPS, ("", op): dataclasses.replace(gc.OPS["", op], vjp=rule)}


class Net:
    """A net as it grows: nodes and weights, whose names are made up."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[Node] = []
        self.constants: dict[str, Array] = {}

    def weight(self, *shape: int) -> str:
        name = f"w{len(self.constants)}"
        self.constants[name] = self.rng.normal(scale=0.5, size=shape)
        return name

    def add(self, op: str, *inputs: str, **attrs: Any) -> str:
        name = f"t{len(self.nodes)}"
        self.nodes.append(Node(op, inputs, (name,), attrs))
        return name

    def model(self, y: str, shape: tuple[Dim, ...]) -> gc.Model:
        types = {"x": TensorType(FLOAT, shape)}
        graph = Graph(("x",), (y,), tuple(self.nodes), self.constants, types, {"": 23})
        return gc.Model(Source(graph, "net", nodes=len(self.nodes)), gc.OPS)


def softmax(net: Net, x: str, width: int) -> str:
    q, k, v = (net.add("MatMul", x, net.weight(width, width)) for _ in range(3))
    scores = net.add("MatMul", q, net.add("Transpose", k, perm=(0, 2, 1)))
    return net.add("MatMul", net.add("Softmax", scores, axis=-1), v)


def attention(net: Net, x: str, width: int) -> str:
    q, k, v = (net.add("MatMul", x, net.weight(width, width)) for _ in range(3))
    return net.add("Attention", q, k, v, q_num_heads=1, kv_num_heads=1)


def layer_normalization(net: Net, x: str, width: int) -> str:
    return net.add("LayerNormalization", x, net.weight(width), net.weight(width), axis=-1)


def recurrent(op: str, gates: int) -> Any:
    def layer(net: Net, x: str, width: int) -> str:
        turned = net.add("Transpose", x, perm=(1, 0, 2))
        weights = net.weight(1, gates * width, width), net.weight(1, gates * width, width)
        made = net.add(op, turned, *weights, hidden_size=width)
        net.constants.setdefault("axis1", np.array([1]))
        return net.add("Transpose", net.add("Squeeze", made, "axis1"), perm=(1, 0, 2))

    return layer


LAYERS: dict[str, Any] = {
    "Softmax": softmax, "Attention": attention, "LayerNormalization": layer_normalization,
    "LSTM": recurrent("LSTM", 4), "GRU": recurrent("GRU", 3),
}  # fmt: skip


def drawn(op: str, seed: int) -> gc.Model:
    """One or two layers of an operator between others, over two open dimensions."""
    net = Net(seed)
    width = int(net.rng.integers(3, 6))
    x = net.add("Tanh", net.add("MatMul", "x", net.weight(3, width)))
    for _ in range(int(net.rng.integers(1, 3))):
        x = net.add("Add", LAYERS[op](net, x, width), x)
    return net.model(net.add("MatMul", x, net.weight(width, 2)), (*NAMES[seed % len(NAMES)], 3))


@pytest.mark.one_in(16)
@pytest.mark.parametrize("seed", range(len(NAMES)))
@pytest.mark.parametrize("op", LAYERS)
def test_a_rule_that_gives_half_too_much_is_caught_at_the_sizes_chosen(op: str, seed: int):
    model = drawn(op, seed)
    [right], [record] = (gc.check(model, forward="internal", ops=ops).checks for ops in (gc.OPS, off(op)))
    assert (right.status, record.status, record.code) == ("pass", "fail", "GC101"), record.message
    assert min(record.dims.values()) > 1
    assert 5 in record.dims.values()


MASKS = [-1e4, float(np.finfo(np.float32).min), -1e300, -np.inf]


def causal(low: float, keys: int = 8) -> gc.Model:
    """Attention whose scores of later keys are `low`: in half of the Softmax's operand no difference moves anything."""
    net = Net(0)
    q, k, v = (net.add("MatMul", "x", net.weight(4, 4)) for _ in range(3))
    scores = net.add("MatMul", q, net.add("Transpose", k, perm=(0, 2, 1)))
    net.constants["mask"] = np.triu(np.full((keys, keys), low), 1)
    chances = net.add("Softmax", net.add("Add", scores, "mask"), axis=-1)
    return net.model(net.add("MatMul", chances, v), (2, keys, 4))


@pytest.mark.parametrize("mode", ["full", "nodes"])
@pytest.mark.parametrize("low", MASKS)
def test_behind_a_mask_the_node_is_named_by_the_entries_that_matter(low: float, mode: Any):
    model = causal(low)
    settings: dict[str, Any] = {"forward": "internal", "mode": mode}
    [right], [wrong] = (gc.check(model, ops=ops, **settings).checks for ops in (gc.OPS, off("Softmax")))
    assert (right.status, wrong.status, wrong.code) == ("pass", "fail", "GC101")
    assert wrong.suspect is not None
    assert (wrong.suspect.op, wrong.suspect.unchecked) == ("Softmax", 0)
    assert "1.5 times" in wrong.suspect.diagnosis
    i, j = wrong.suspect.index[-2:] if wrong.suspect.index else (0, 1)
    assert j <= i


def normalized(batch: Dim) -> gc.Model:
    """Three layers that normalize their features by statistics of the batch."""
    net = Net(0)
    x = "x"
    net.constants |= {"ones": np.ones(4), "zeros": np.zeros(4)}
    for _ in range(3):
        m = net.add("MatMul", x, net.weight(4, 4))
        b = net.add("BatchNormalization", m, "ones", "zeros", "zeros", "ones", training_mode=1)
        x = net.add("Tanh", b)
    return net.model(x, (batch, 4))


def test_a_batch_has_statistics_that_let_a_gradient_through():
    """Two entries, normalized by their own mean and deviation, are +-1 whatever x is: there is next to no gradient."""
    [two], [chosen] = (gc.check(normalized(batch), forward="internal").checks for batch in (2, "N"))
    assert (two.gradient["health"].shows, two.dims) == (("vanishing",), {})
    assert (chosen.gradient["health"].shows, chosen.dims) == ((), {"N": 3})
