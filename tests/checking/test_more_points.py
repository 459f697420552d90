"""Further points, run as one stack on the tape of the first: what they show is what tracing each of them shows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gradcheck_cli as gc
from gradcheck_cli.formats.source import Source
from gradcheck_cli.graph import Graph, Node, TensorType
from gradcheck_cli.points.more import MorePoints, finite_point
from gradcheck_cli.settings import Settings

CONSTANTS = {
    "zero": np.float64(0),
    "W": np.random.default_rng(3).normal(size=(4, 4)), "axis": np.array([0]),
}  # fmt: skip
BRANCHES = {
    "then_branch": Graph((), ("t",), (Node("Exp", ("x",), ("t",)),)),
    "else_branch": Graph((), ("e",), (Node("Neg", ("x",), ("e",)), Node("Identity", ("e",), ("e2",)))),
}


def model(*nodes: Node, **more: tuple[Any, tuple[int, ...]]) -> gc.Model:
    declared = {"x": (np.float64, (3, 4)), **more}
    types = {name: TensorType(np.dtype(dtype), shape) for name, (dtype, shape) in declared.items()}
    graph = Graph(tuple(declared), ("y",), nodes, CONSTANTS, types, {"": 18})
    return gc.Model(Source(graph, "graph", nodes=len(nodes)), gc.OPS)


REPLAYED = {
    "dense": model(Node("MatMul", ("x", "W"), ("h",)), Node("Relu", ("h",), ("y",))),
    "an index": model(Node("Gather", ("x", "i"), ("h",)), Node("Tanh", ("h",), ("y",)), i=(np.int64, (2,))),
    "a drawn mask": model(
        Node("RandomUniformLike", ("x",), ("r",)), Node("Mul", ("x", "r"), ("h",)), Node("Sigmoid", ("h",), ("y",))
    ),
    "a composed operator": model(Node("Gelu", ("x",), ("h",)), Node("LpNormalization", ("h",), ("y",))),
    "an axis that is an input": model(Node("CumSum", ("x", "axis"), ("h",)), Node("Relu", ("h",), ("y",))),
}  # fmt: skip
TRACED = {
    "a branch": model(
        Node("ReduceSum", ("x",), ("s",), {"keepdims": 0}), Node("Greater", ("s", "zero"), ("c",)),
        Node("If", ("c",), ("h",), BRANCHES), Node("Relu", ("h",), ("y",)),
    ),
    "a size": model(
        Node("TopK", ("x", "k"), ("h", "at")), Node("Relu", ("h",), ("y",)), k=(np.int64, (1,)),
    ),
    "a shape": model(
        Node("Compress", ("x", "keep"), ("h",), {"axis": 1}), Node("Relu", ("h",), ("y",)), keep=(np.bool_, (4,)),
    ),
    "not finite": model(Node("Log", ("x",), ("h",)), Node("Relu", ("h",), ("y",))),
}  # fmt: skip


@pytest.mark.parametrize("bytes_", [1, 1 << 30], ids=["one by one", "at once"])
@pytest.mark.parametrize("name", {**REPLAYED, **TRACED})
def test_values_are_those_of_points_that_are_traced(name: str, bytes_: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("gradcheck_cli.points.more._BYTES", bytes_)
    source, settings = {**REPLAYED, **TRACED}[name].source, Settings()
    point = finite_point(source, settings, gc.OPS, ["y", "x"], 0, {})
    names = [n for step in point.tape.steps for n in step.node.outputs if n]
    runs = list(MorePoints(source, settings, gc.OPS, ["y", "x"], point).runs(range(1, 5), names))
    assert len(runs) == 4
    for index, (tape, values) in enumerate(runs, 1):
        traced = finite_point(source, settings, gc.OPS, ["y", "x"], index, {}).tape
        assert [step.op.name for step in tape.steps] == [step.op.name for step in traced.steps]
        for mine, step in zip(tape.steps, traced.steps, strict=True):
            for here, there in zip(mine.node.outputs, step.node.outputs, strict=True):
                if there:
                    np.testing.assert_allclose(values[here], traced.values[there], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", REPLAYED)
def test_where_the_way_is_the_same_nothing_is_traced(name: str):
    source, settings = REPLAYED[name].source, Settings()
    point = finite_point(source, settings, gc.OPS, ["y", "x"], 0, {})
    runs = MorePoints(source, settings, gc.OPS, ["y", "x"], point).runs(range(1, 5), [])
    assert all(tape is point.tape for tape, _ in runs)


def test_it_ends_where_inputs_come_again():
    source = REPLAYED["dense"].source
    given = Settings(x_init_value={"x": np.ones((3, 4))})
    point = finite_point(source, given, gc.OPS, ["y", "x"], 0, {})
    assert not list(MorePoints(source, given, gc.OPS, ["y", "x"], point).runs(range(1, 5), []))
