"""Branches of piecewise nodes that no point has taken are named: those of a node as a whole, where they can be taken."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import pytest

import gradcheck_cli as gc
from gradcheck_cli.formats.source import Source
from gradcheck_cli.graph import Graph, Node, TensorType
from gradcheck_cli.report.full import section
from gradcheck_cli.report.text import Style
from gradcheck_cli.results.record import Check
from tests.checking.small import check, model
from tests.diff.twins import net


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
    assert record.branches == {
        "total": 2, "covered": 2, "missed": (), "ranges": ("node 1 Relu 'r' in the body of node 0 Loop 'y' reads -1 to 2",),
    }  # fmt: skip


# The values that were seen


class Read(NamedTuple):
    """Nodes at an x, and what the record says of the values they saw."""

    nodes: tuple[Any, ...]
    x: list[float]
    ranges: list[str]
    constants: Mapping[str, Any] | None = None


RANGES = {
    "a piecewise node": Read((("Mul", "x two", "h"), ("Relu", "h", "y")), [-1.5, 2], ["node 1 Relu 'y' reads -3 to 4"],
                             {"two": np.float64(2.0)}),
    "a threshold that is constant is no value that was seen": Read(
        (("Greater", "x high", "c"), ("Neg", "x", "n"), ("Where", "c x n", "y")), [-1, 0.25],
        ["node 0 Greater 'c' compares -1 to 0.25"], {"high": np.float64(9.0)}),
    "a constant operand of Max": Read((("Max", "x high", "y"),), [-1, 0.25], ["node 0 Max 'y' reads -1 to 0.25"],
                                      {"high": np.float64(9.0)}),
    "a bound of Clip": Read((("Clip", "x low high", "y"),), [0, 0.25], ["node 0 Clip 'y' reads 0 to 0.25"], BOUNDS),
    "a composed operator decides on what it has computed": Read(
        (("HardSigmoid", "x", "y"),), [-1, 1], ["node 0 HardSigmoid 'y' decides on 0.3 to 0.7"]),
    "a threshold inside of an operator": Read(
        (("ThresholdedRelu", "x", "y"),), [-1, 2], ["node 0 ThresholdedRelu 'y' compares -1 to 2"]),
    "smooth operators": Read((("Gelu", "x", "y"),), [-1, 1], []),
}  # fmt: skip


@pytest.mark.parametrize("name", RANGES)
def test_the_range_of_what_a_node_decides_on_is_in_the_record_and_shown_if_asked(name: str):
    case = RANGES[name]
    record = check(model(*case.nodes, x=(len(case.x),), constants=case.constants), case.x)
    assert list(record.branches.get("ranges", ())) == case.ranges
    shown = section((record,), Style(verbosity=1)).splitlines()
    assert [line for line in shown if line.startswith("  values ")] == [f"  values     {said}" for said in case.ranges]
    assert "  values " not in section((record,), Style())


def test_ranges_are_those_of_all_points():
    tested = model(("Relu", "x", "y"), x=(1,))
    alone = [float(check(tested, points=8, point=k).branches["ranges"][0].split()[-1]) for k in range(8)]
    assert check(tested, points=8).branches["ranges"] == (
        f"node 0 Relu 'y' reads {min(alone):.3g} to {max(alone):.3g}",
    )


def test_ranges_of_many_nodes_are_cut_and_those_of_many_rows_shown_once():
    nodes = [("Relu", "x" if i == 0 else f"h{i - 1}", f"h{i}") for i in range(25)]
    record = check(model(*nodes), [1, 2, 3, 4])
    assert record.branches["ranges"] == tuple(f"node {i} Relu 'h{i}' reads 1 to 4" for i in range(20))
    assert section((record, dataclasses.replace(record, x="z")), Style(verbosity=1)).count("  values ") == 20


def test_what_is_not_finite_is_no_range():
    tested = model(("Log", "x", "h"), ("Relu", "h", "y"))
    [said] = check(tested, value=[0.0, -1.0, 1.0, np.e], max_inconclusive=1.0).branches["ranges"]
    assert said == "node 1 Relu 'y' reads 0 to 1"


def test_a_body_of_which_some_runs_depend_on_nothing_fed():
    """The last run of the loop reads a constant where the first reads x."""
    body = Graph(
        ("i", "going", "h", "later"), ("still", "same", "r"),
        (Node("Identity", ("going",), ("still",)), Node("Relu", ("h",), ("r",)), Node("Identity", ("later",), ("same",))),
    )  # fmt: skip
    node = Node("Loop", ("trips", "", "x", "fixed"), ("", "y"), {"body": body})
    types = {"x": TensorType(np.dtype(np.float64), (2,))}
    constants = {"trips": np.array(3), "fixed": np.array([7.0, 9.0])}
    graph = Graph(("x",), ("y",), (node,), constants, types)
    record = one(gc.Model(Source(graph, "graph", nodes=1), gc.OPS), [-1.0, 2.0])
    assert record.branches["ranges"] == ("node 1 Relu 'r' in the body of node 0 Loop 'y' reads -1 to 2",)


# Nodes that read nothing but their kink


NOTHING = {"nothing": np.float64(0.0), "s": np.float64(0.1)}
KINK = "reads is 0, its kink: neither side was seen"


@pytest.mark.parametrize(
    ("node", "told"),
    [("Relu", True), ("LeakyRelu", True), ("PRelu", True), ("Abs", True), ("Selu", True), ("Elu", False),
     ("Celu", False)],
)  # fmt: skip
def test_a_node_that_reads_nothing_but_its_kink_is_told_of(node: str, told: bool):
    """No entry can tell: whatever x is, its input stays 0."""
    operands = "h s" if node == "PRelu" else "h"
    tested = model(("Mul", "x nothing", "h"), (node, operands, "a"), ("Add", "a x", "y"), constants=NOTHING)
    record = check(tested, value=[1.0, -2.0, 0.5, 3.0])
    said = f"all that node 1 {node} 'a' {KINK}"
    assert record.status == "pass"
    assert not record.entries.get("kink_ok")
    assert (said in record.notes) == told
    assert (said in " ".join(section((record,), Style()).split())) == told


def test_nodes_that_read_nothing_but_their_kink_are_told_of_in_one_note():
    tested = model(("Mul", "x nothing", "h"), ("Relu", "h", "a"), ("Abs", "h", "b"), ("Sum", "a b x", "y"),
                   constants=NOTHING)  # fmt: skip
    note = "all that node 1 Relu 'a', node 2 Abs 'b' read is 0, their kink: neither side was seen"
    assert note in check(tested, value=[1.0, -2.0, 0.5, 3.0]).notes


def test_where_entries_at_a_kink_are_counted_no_note_repeats_it():
    record = check(model(("Relu", "x", "y")), value=[0.0, 0.0, 0.0, 0.0])
    assert record.entries["kink_ok"] == 4
    assert " (4 at a kink)" in section((record,), Style())
    assert not any(KINK in note for note in record.notes)


def test_kinks_of_one_node_do_not_hide_that_another_reads_nothing_but_its_own():
    tested = model(("Mul", "x nothing", "h"), ("Relu", "h", "a"), ("Relu", "x", "b"), ("Add", "a b", "y"),
                   constants=NOTHING)  # fmt: skip
    record = check(tested, value=[0.0, 0.0, 1.0, 1.0])
    assert record.entries["kink_ok"] == 2
    assert [note for note in record.notes if "its kink" in note] == [f"all that node 1 Relu 'a' {KINK}"]


def looping(trips: str, condition: str = "") -> gc.Model:
    """A loop over sin(s w), whose number of steps or whose condition is a tensor."""
    state, flag = TensorType(np.dtype(np.float64), (4,)), TensorType(np.dtype(np.bool_), ())
    nodes = (
        Node("Mul", ("s", "w"), ("p",)), Node("Sin", ("p",), ("t",)), Node("Identity", ("f",), ("g",)),
    )  # fmt: skip
    types = {"i": TensorType(np.dtype(np.int64), ()), "f": flag, "s": state}
    body = Graph(("i", "f", "s"), ("g", "t"), nodes, {}, types)
    before = (
        Node("ReduceMax", ("x",), ("m",), {"keepdims": 0}), Node("Cast", ("m",), ("n",), {"to": 7}),
        Node("Greater", ("m", "one"), ("c",)), Node("Loop", (trips, condition, "x"), ("y",), {"body": body}),
    )  # fmt: skip
    constants = {"w": np.arange(1.0, 5.0), "one": np.float64(1), "none": np.int64(0), "two": np.int64(2)}
    graph = Graph(("x",), ("y",), before, constants, {"x": state})
    return gc.Model(Source(graph, "looping", nodes=len(before)), gc.OPS)


@pytest.mark.parametrize("x", ["x", "w"])
@pytest.mark.parametrize(
    ("trips", "condition", "largest", "told"),
    [("n", "", 0.5, True), ("n", "", 2.5, False), ("two", "c", 0.5, True), ("two", "c", 1.5, False),
     ("none", "", 0.5, False), ("two", "", 0.5, False)],
)  # fmt: skip
def test_a_loop_whose_body_no_point_has_run_is_told_of(x: str, trips: str, condition: str, largest: float, told: bool):
    """Nothing that is fed decides on constants: no other point would run it."""
    value = {"x": [0.1, 0.2, 0.3, largest]}
    [record] = gc.check(looping(trips, condition), x, "y", extra_feed_dict=value).checks
    said = "no point ran the body of node 3 Loop 'y': what it computes was not checked"
    assert record.status == "pass"
    assert [note for note in record.notes if "Loop" in note] == [said] * told


def test_a_loop_whose_body_hands_its_state_through_has_nothing_to_run():
    tested = looping("n")
    *before, loop = tested.graph.nodes
    body = dataclasses.replace(loop.attrs["body"], outputs=("f", "s"), nodes=())
    nodes = (*before, dataclasses.replace(loop, attrs={"body": body}))
    graph = dataclasses.replace(tested.graph, nodes=nodes)
    [record] = gc.check(gc.Model(Source(graph, "looping", nodes=len(nodes)), gc.OPS), "x", "y").checks
    assert (record.status, [note for note in record.notes if "Loop" in note]) == ("pass", [])


LATER = """a (float[b,T] x) => (float[b] y) {
    s = Slice (x, five, far, one)  q = Mul (s, s)
    m = ReduceSum <keepdims = 0> (q, one)  n = ReduceSum <keepdims = 0> (x, one)  y = Add (m, n)
}"""
STEPS = """a (float[b,T] x) => (float[b] y) {
    s = Shape <start = 1> (x)  d = Sub (s, five)  t = Squeeze (d)  m = ReduceMean <keepdims = 0> (x, one)
    y = Loop (t, , m) <body = r (int64 i, bool g, float[b] v) => (bool h, float[b] w) { h = Identity (g)  w = Sin (v) }>
}"""
SCANNED = """a (float[T,b] x) => (float[b] y) {
    s = Slice (x, five, far)  m = ReduceMean <keepdims = 0> (x, zero)
    y, z = Scan <num_scan_inputs = 1, body = r (float[b] v, float[b] e) => (float[b] w, float[b] o)
        { w = Mul (v, e)  o = Identity (e) }> (m, s)
}"""


SHAPES = """a (float[b,T] x) => (float[b] y) {
    s = Shape (x)  rest = Slice (s, two, far)  first = Slice (s, zero, one)  to = Concat <axis = 0> (first, rest)
    m = ReduceMean <keepdims = 0> (x, one)  y = Reshape (m, to)
}"""


@pytest.mark.parametrize(
    ("text", "sizes", "told"),
    [(SHAPES, {"T": 5}, ""),
     (LATER, {"T": 5}, "node 0 Slice 's'"), (LATER, {"T": 6}, ""), (LATER.replace("b,T", "2,5"), {}, ""),
     (STEPS, {"T": 5}, "node 4 Loop 'y'"), (STEPS, {"T": 6}, ""), (STEPS.replace("b,T", "2,5"), {}, ""),
     (SCANNED, {"T": 5}, "node 0 Slice 's'"), (SCANNED, {"T": 6}, "")],
)  # fmt: skip
def test_what_gives_nothing_at_the_sizes_of_a_check_is_told_of(
    tmp_path: Path, text: str, sizes: dict[str, int], told: str
):
    """A loop of T - 5 steps, and all behind the fifth entry, are not there where T is 5."""
    numbers = {
        "zero": np.int64([0]),
        "one": np.int64([1]),
        "two": np.int64([2]),
        "five": np.int64([5]),
        "far": np.int64([99]),
    }
    onnx.save(net(text, **{name: np.int64([n]) for name, n in numbers.items()}), tmp_path / "m.onnx")
    [record] = gc.check(gc.load(tmp_path / "m.onnx"), "x", "y", dims=sizes).checks
    said = (f"no point ran the body of {told}: what it computes was not checked" if "Loop" in told else
            f"at these sizes nothing comes from {told}: what follows from it was not checked")  # fmt: skip
    assert record.status == "pass"
    assert [note for note in record.notes if "not checked" in note] == [said] * bool(told)


@pytest.mark.parametrize("elsewhere", [0.5, -0.5])
def test_one_value_beside_the_kink_is_a_side_that_was_seen(elsewhere: float):
    tested = model(("Mul", "x some", "h"), ("Relu", "h", "a"), ("Add", "a x", "y"),
                   constants={"some": np.array([0.0, 0.0, 0.0, elsewhere])})  # fmt: skip
    assert not any("its kink" in note for note in check(tested, value=[1.0, -2.0, 0.5, 3.0]).notes)
