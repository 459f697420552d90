"""Branches of piecewise nodes that no point has taken are named: those of a node as a whole, where they can be taken."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pytest

import gradcheck_cli as gc
from gradcheck_cli.formats.source import Source
from gradcheck_cli.graph import Graph, Node, TensorType
from gradcheck_cli.record import Check
from tests.checking.small import check, model


class Taken(NamedTuple):
    """A node at an x, and which of its branches that x does not take."""

    nodes: tuple[Any, ...]
    x: list[float]
    missed: list[str]
    total: int = 2
    constants: Mapping[str, Any] | None = None


BOUNDS = {"low": np.float64(-0.5), "high": np.float64(0.5)}
ZERO = {"zero": np.float64(0.0)}
CASES = {
    "LeakyRelu of positive numbers": Taken((("LeakyRelu", "x", "y"),), [1, 2], ["negative side"]),
    "LeakyRelu of negative numbers": Taken((("LeakyRelu", "x", "y"),), [-1, -2], ["positive side"]),
    "LeakyRelu of both": Taken((("LeakyRelu", "x", "y"),), [-1, 2], []),
    "Relu": Taken((("Relu", "x", "y"),), [1, 2], ["negative side"]),
    "PRelu": Taken((("PRelu", "x s", "y"),), [-1, -2], ["positive side"], 2, {"s": np.float64(0.1)}),
    "Elu": Taken((("Elu", "x", "y"),), [1, 2], ["negative side"]),
    "Abs": Taken((("Abs", "x", "y"),), [-1, -2], ["positive side"]),
    "Clip inside": Taken((("Clip", "x low high", "y"),), [0.1, 0.2], ["above its maximum", "below its minimum"], 3,
                         BOUNDS),
    "Clip outside": Taken((("Clip", "x low high", "y"),), [-1, 1], ["inside of its bounds"], 3, BOUNDS),
    "Clip everywhere": Taken((("Clip", "x low high", "y"),), [-1, 0.1, 1], [], 3, BOUNDS),
    "Clip from one side": Taken((("Clip", "x zero", "y"),), [1, 2], ["below its minimum"], 2, ZERO),
    "Clip with a bound that is none": Taken((("Clip", "x low", "y"),), [1, 2], [], 1, {"low": np.float64(-3.4e38)}),
    "HardSigmoid": Taken((("HardSigmoid", "x", "y"),), [0.1, 9], ["below its minimum"], 3),
    "HardSwish": Taken((("HardSwish", "x", "y"),), [-9, 9], ["inside of its bounds"], 3),
    "ThresholdedRelu": Taken((("ThresholdedRelu", "x", "y"),), [0.1, 0.2], ["true side"]),
    "Shrink": Taken((("Shrink", "x", "y"),), [0.1, 2], ["negative side"], 3),
    "Max": Taken((("Max", "x zero", "y"),), [1, 2], ["operand 1"], 2, ZERO),
    "Min": Taken((("Min", "x zero", "y"),), [1, 2], ["operand 0"], 2, ZERO),
    "Where by a comparison": Taken((("Greater", "x zero", "c"), ("Neg", "x", "n"), ("Where", "c x n", "y")), [1, 2],
                                   ["false side"], 2, ZERO),
    "Where by a constant": Taken((("Where", "c x x", "y"),), [1, 2], [], 0, {"c": np.array([True, True])}),
    "smooth operators": Taken((("Gelu", "x", "h"), ("Softplus", "h", "y")), [1, 2], [], 0),
    "what lies inside of other operators": Taken((("LpNormalization", "x", "y"),), [1, 2], [], 0),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_branches_that_x_does_not_take_are_named(name: str):
    case = CASES[name]
    record = check(model(*case.nodes, x=(len(case.x),), constants=case.constants), case.x)
    assert record.status == "pass", record.worst
    last = len(case.nodes) - 1
    op = case.nodes[last][0]
    assert list(record.missed) == [f"node {last} {op} 'y': {missed} not covered" for missed in case.missed]
    if case.total:
        assert record.branches["total"] == case.total
        assert record.branches["covered"] == case.total - len(case.missed)
    else:
        assert record.branches == {}


def test_a_dead_unit_leaves_no_side_uncovered():
    tested = model(("Mul", "x scale", "h"), ("Relu", "h", "y"), x=(3, 2), constants={"scale": np.array([1.0, 0.0])})
    shifted = check(tested, [[1, 1], [-1, 1], [2, 1]])
    assert shifted.missed == ()


def test_points_add_up():
    """A range that shows one side at each point shows both in the end."""
    tested = model(("Relu", "x", "y"), x=(1,))
    alone = [check(tested, points=8, point=k).missed for k in range(8)]
    assert {("node 0 Relu 'y': negative side not covered",), ("node 0 Relu 'y': positive side not covered",)} == set(
        alone
    )
    assert check(tested, points=8).missed == ()


def test_nodes_that_are_not_on_the_way_do_not_count():
    tested = model(("Relu", "z", "r"), ("Mul", "x r", "y"), inputs={"z": (4,)})
    by_x, by_z = gc.check(tested, ["x", "z"], "y", x_init_value={"z": np.ones(4)}).checks
    assert (by_x.branches, by_z.missed) == ({}, ("node 0 Relu 'r': negative side not covered",))


def test_many_branches_are_counted():
    nodes = [("Relu", "x" if i == 0 else f"h{i - 1}", f"h{i}") for i in range(9)]
    record = check(model(*nodes), [1, 2, 3, 4])
    assert record.branches["total"] - record.branches["covered"] == 9
    assert len(record.missed) == 4
    assert record.missed[-1] == "and 6 more branches not covered"


def conditional(condition: Node) -> gc.Model:
    """x or x^2, by a condition."""

    def branch(op: str, reads: tuple[str, ...], out: str) -> Graph:
        return Graph((), (out,), (Node(op, reads, (out,)),))

    attrs = {"then_branch": branch("Identity", ("x",), "t"), "else_branch": branch("Mul", ("x", "x"), "e")}
    nodes = (Node("ReduceSum", ("x",), ("s",), {"keepdims": 0}), condition, Node("If", ("c",), ("y",), attrs))
    types = {"x": TensorType(np.dtype(np.float64), (2,))}
    constants = {"zero": np.float64(0.0), "yes": np.array(True)}
    return gc.Model(Source(Graph(("x",), ("y",), nodes, constants, types), "graph", nodes=3), gc.OPS)


def one(tested: gc.Model, x: list[float]) -> Check:
    [record] = gc.check(tested, "x", "y", x_init_value={"x": np.array(x)}).checks
    return record


def test_the_branch_of_an_if_that_was_not_taken():
    by_value = conditional(Node("Greater", ("s", "zero"), ("c",)))
    assert one(by_value, [1.0, 2.0]).missed == ("node 2 If 'y': else branch not covered",)
    assert one(by_value, [-1.0, -2.0]).missed == ("node 2 If 'y': then branch not covered",)


def test_an_if_that_no_value_decides_has_no_branch_to_cover():
    assert one(conditional(Node("Identity", ("yes",), ("c",))), [1.0, 2.0]).branches == {}


def test_a_body_that_runs_many_times_is_one_node():
    body = Graph(
        ("i", "going", "h"), ("still", "r"), (Node("Identity", ("going",), ("still",)), Node("Relu", ("h",), ("r",)))
    )
    node = Node("Loop", ("trips", "", "x"), ("y",), {"body": body})
    types = {"x": TensorType(np.dtype(np.float64), (2,))}
    graph = Graph(("x",), ("y",), (node,), {"trips": np.array(5)}, types)
    record = one(gc.Model(Source(graph, "graph", nodes=1), gc.OPS), [-1.0, 2.0])
    assert record.branches == {"total": 2, "covered": 2, "missed": []}
