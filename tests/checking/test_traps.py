"""0 * inf where nobody uses the result: the suspect is the node that leaves its domain, and what hides it is named."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

import gradcheck_cli as gc
from gradcheck_cli.autodiff import symbolic as sym
from tests.checking.small import check, model, scaled, with_rule

ONE, HALF = {"one": 1.0, "p": 1.5, "low": 0.05, "limit": 0.9}, np.array([0.5, 1.5, -0.3, 1.0])
PIECES = (("Less", "x limit", "c"), ("Where", "c b x", "d"), ("Tanh", "d", "y"))
TRAPS = {  # what is hidden, the operator that leaves its domain, and the one that does not take it
    "a logarithm of 0": (model(("Sub", "one x", "a"), ("Log", "a", "b"), *PIECES, constants=ONE), "Log", "Where"),
    "a power of a negative number": (model(("Sub", "one x", "a"), ("Pow", "a p", "b"), *PIECES, constants=ONE), "Pow",
                                     "Where"),
    "a product of both": (model(("Sub", "one x", "a"), ("Pow", "a p", "m"), ("Log", "a", "l"), ("Mul", "m l", "b"),
                                *PIECES, constants=ONE), "Pow", "Where"),
    "a square root": (model(("Sub", "one x", "a"), ("Sqrt", "a", "b"), *PIECES, constants=ONE), "Sqrt", "Where"),
    "a logarithm that is not gathered": (
        model(("Sub", "one x", "a"), ("Log", "a", "b"), ("Gather", "b i", "g"), ("Sin", "g", "y"),
              constants={**ONE, "i": np.array([0, 2])}), "Log", "Gather"),
}  # fmt: skip
every_mode = pytest.mark.parametrize("mode", ["full", "nodes"])


@every_mode
@pytest.mark.parametrize("name", TRAPS)
def test_the_suspect_leaves_its_domain_and_the_diagnosis_names_the_trap_and_its_cure(name: str, mode: Any):
    tested, op, hidden_by = TRAPS[name]
    record = check(tested, HALF, mode=mode)
    assert (record.status, record.code) == ("fail", "GC103")
    assert record.suspect is not None
    assert record.suspect.op == op
    assert "0 * " in record.suspect.diagnosis
    assert f" {hidden_by} " in record.suspect.diagnosis
    assert "clamp its operand inside of the branch" in record.suspect.diagnosis
    assert hidden_by in record.message
    assert ("in the branch that node" in record.message) == (hidden_by == "Where")


EDGES = {  # nodes between x and y, the operator whose slope is infinite, and the number at which it is
    "Acosh of 1": ((("Mul", "x x", "s"), ("Add", "s one", "a"), ("Acosh", "a", "b")), "Acosh", 1),
    "Asin of 1": ((("Mul", "x x", "s"), ("Sub", "one s", "a"), ("Asin", "a", "b")), "Asin", 1),
    "Acos of 1": ((("Mul", "x x", "s"), ("Sub", "one s", "a"), ("Acos", "a", "b")), "Acos", 1),
    "Sqrt of 0": ((("Mul", "x x", "s"), ("Sqrt", "s", "b")), "Sqrt", 0),
    "Pow of 0": ((("Mul", "x x", "s"), ("Pow", "s half", "b")), "Pow", 0),
    "a norm of 0": ((("Mul", "x zero", "w"), ("Mul", "w w", "s"), ("ReduceSum", "s", "t"), ("Sqrt", "t", "r"),
                     ("Add", "x r", "b")), "Sqrt", 0),
    "a norm of 0 in one": ((("Mul", "x zero", "w"), ("ReduceSumSquare", "w", "t"), ("Sqrt", "t", "r"),
                            ("Add", "x r", "b")), "Sqrt", 0),
}  # fmt: skip


@every_mode
@pytest.mark.parametrize("name", EDGES)
def test_at_the_edge_of_a_domain_the_suspect_is_the_node_with_the_infinite_slope(name: str, mode: Any):
    nodes, op, number = EDGES[name]
    tested = model(*nodes, ("Sin", "b", "y"), constants={"one": 1.0, "zero": 0.0, "half": 0.5})
    record = check(tested, np.array([0.5, 0.0, 0.3, 0.7]), mode=mode)
    assert (record.status, record.code) == ("fail", "GC103")
    assert record.suspect is not None
    assert record.suspect.op == op
    assert f" is {number}" in record.suspect.diagnosis
    assert "the edge of a domain" in record.suspect.diagnosis
    assert "keep its operand away from there" in record.suspect.diagnosis
    assert f" {op} " in record.message
    assert record.suspect.before == [each for each, *_ in nodes].index(op)
    assert record.suspect.before + record.suspect.after == len(nodes)
    if name in ("Sqrt of 0", "Pow of 0"):
        assert "0 * inf = NaN at node 0 Mul" in record.suspect.diagnosis


OPEN = {  # nodes that read x itself at the edge of a domain, so that no method sees a slope
    "Acosh of x + 1": ((("Add", "x one", "a"), ("Acosh", "a", "y")), "Acosh", "'a' is 1 at [1]"),
    "Asin of 1 - x": ((("Sub", "one x", "a"), ("Asin", "a", "b"), ("Sin", "b", "y")), "Asin", "'a' is 1 at [1]"),
    "Sqrt of x": ((("Sqrt", "x", "y"),), "Sqrt", "'x' is 0 at [1]"),
    "Pow of x": ((("Pow", "x half", "b"), ("Sin", "b", "y")), "Pow", "'x' is 0 at [1]"),
}


@pytest.mark.parametrize("mode", ["nodes", "directional", "sampled"])
@pytest.mark.parametrize("name", OPEN)
def test_what_is_open_at_the_edge_of_a_domain_names_the_node_with_the_infinite_slope(name: str, mode: Any):
    nodes, op, place = OPEN[name]
    record = check(model(*nodes, constants={"one": 1.0, "half": 0.5}), np.array([0.5, 0.0, 0.3, 0.7]), mode=mode)
    assert (record.status, record.code) == ("inconclusive", "GC304")
    assert record.suspect is not None
    assert record.suspect.op == op
    assert f"infinite where {place}, the edge of a domain" in record.suspect.diagnosis
    assert f" {op} " in record.message


@pytest.mark.parametrize("mode", ["full", "nodes"])
def test_a_wrong_rule_is_the_suspect_and_not_the_node_at_the_edge_of_its_domain(mode: Any):
    tested, wrong = model(("Sqrt", "x", "s"), ("Sin", "s", "y")), with_rule("Sin", scaled("Sin", 2.0))
    record = check(tested, np.array([0.5, 0.0, 0.3, 0.7]), mode=mode, ops=wrong)
    assert record.status == "fail"
    assert record.suspect is not None
    assert record.suspect.op == "Sin"


@pytest.mark.parametrize("mode", ["nodes", "directional", "sampled"])
def test_where_enough_is_told_no_node_at_the_edge_of_its_domain_is_a_suspect(mode: Any):
    tested = model(("Sqrt", "x", "y"))
    record = check(tested, np.array([0.5, 0.0, 0.3, 0.7]), mode=mode, max_inconclusive=1.0)
    assert (record.status, record.suspect, record.message) == ("pass", None, "")


@every_mode
def test_a_logarithm_of_0_under_an_exponential_is_the_suspect(mode: Any):
    nodes = ("Mul", "x x", "s"), ("Log", "s", "l"), ("Exp", "l", "y")
    record = check(model(*nodes), np.array([0.5, 0.0, 0.3, 0.7]), mode=mode)
    assert record.code == "GC103"
    assert record.suspect is not None
    assert record.suspect.op == "Log"


@every_mode
def test_with_the_operand_clamped_it_passes(mode: Any):
    tested = model(("Sub", "one x", "a"), ("Max", "a low", "safe"), ("Log", "safe", "b"), *PIECES, constants=ONE)
    assert check(tested, HALF, mode=mode).status == "pass"


@every_mode
@pytest.mark.parametrize("wrong", ["Tanh", "Sub"])
def test_a_rule_that_is_wrong_is_blamed_before_a_trap(mode: Any, wrong: str):
    tested, *_ = TRAPS["a power of a negative number"]
    record = check(tested, HALF, mode=mode, ops=with_rule(wrong, scaled(wrong, 1.5)) if wrong == "Tanh" else _sub())
    assert record.status == "fail"
    assert record.suspect is not None
    assert record.suspect.op == wrong


def _sub() -> dict[tuple[str, str], gc.Op]:
    return with_rule("Sub", lambda ct, y, a, b: (ct, ct))


@pytest.mark.parametrize("mode", ["full", "nodes", "directional", "sampled"])
def test_a_rule_that_gives_no_number_where_the_slope_is_one_is_wrong(mode: Any):
    """At -0.5 a dead Relu has the slope 0; a rule that says NaN there has no edge of a domain to blame."""
    rule = lambda ct, y, x: (sym.where(x > 0, ct, np.nan),)  # noqa: E731
    tested = model(("Relu", "x", "r"), ("Sin", "r", "y"))
    table = {**gc.OPS, ("", "Relu"): dataclasses.replace(gc.OPS["", "Relu"], vjp=rule)}
    record = check(tested, np.array([0.5, -0.5, 0.7, 0.2]), mode=mode, ops=table)
    assert (record.status, record.code) == ("fail", "GC103")
    assert record.suspect is not None
    assert record.suspect.op == "Relu"


def _lost(op: str, value: float, at: str) -> Any:
    """The right rule, but for entries of its first cotangent that are `value`: all of them, or the last one."""
    right = gc.OPS["", op].vjp
    assert right is not None

    def rule(ct: Any, ans: Any, *primals: Any, **metadata: Any) -> tuple[Any, ...]:
        first, *others = right(ct, ans, *primals, **metadata)
        last = np.arange(first.value.size).reshape(first.shape) == first.value.size - 1
        return (first + np.where(last | (at == "all"), value, 0.0), *others)

    return rule


def _between(op: str, size: int, *operands: Any, **attrs: Any) -> gc.Model:
    """exp(op(sin(3 x), ...)) of a matrix of 4 columns."""
    constants = {f"c{i}": np.asarray(each) for i, each in enumerate(operands)}
    nodes = ("Mul", "x three", "w"), ("Sin", "w", "a"), (op, " ".join(["a", *constants]), "b", attrs), ("Exp", "b", "y")
    return model(*nodes, x=(size, 4), constants={"three": 3.0, **constants})


LOST: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "Flatten": ((), {}), "Transpose": ((), {"perm": [1, 0]}), "Identity": ((), {}), "Neg": ((), {}), "Relu": ((), {}),
    "Add": ((100.0,), {}), "Mul": ((np.arange(4.0),), {}), "MatMul": ((np.eye(4) + 1.0,), {}), "Pow": ((2.0,), {}),
    "Softmax": ((), {"axis": 1}), "LogSoftmax": ((), {"axis": 1}), "ReduceSum": ((np.array([1]),), {}),
    "ReduceMax": ((np.array([1]),), {}), "ReduceL2": ((np.array([1]),), {}), "CumSum": ((np.array(1),), {}),
    "Gather": ((np.array([0, 1]),), {}), "Concat": ((np.ones((2, 4)),), {"axis": 0}),
    "Pad": ((np.array([1, 0, 0, 1]),), {}),
}  # fmt: skip


@pytest.mark.one_in(3)
@every_mode
@pytest.mark.parametrize("rows", [3, 20])
@pytest.mark.parametrize(("value", "at"), [(np.nan, "all"), (np.inf, "the last")])
@pytest.mark.parametrize("op", LOST)
def test_a_rule_that_gives_no_number_where_there_is_a_slope_is_the_suspect(
    mode: Any, rows: int, value: float, at: str, op: str
):
    """Nodes before it get cotangents that are NaN and are right: a slope far from steep is not lost in its size."""
    operands, attrs = LOST[op]
    x = np.random.default_rng(rows).uniform(0.1, 0.9, (rows, 4))
    record = check(_between(op, rows, *operands, **attrs), x, mode=mode, ops=with_rule(op, _lost(op, value, at)))
    assert (record.status, record.code) == ("fail", "GC103")
    assert record.suspect is not None
    assert record.suspect.op == op
    assert record.suspect.unchecked == 0


@every_mode
@pytest.mark.parametrize("distance", [1e-3, 1e-6, 1e-9])
@pytest.mark.parametrize("op", ["Sqrt", "Acosh", "Log"])
def test_a_steep_slope_near_the_edge_of_a_domain_excuses_no_nan(mode: Any, distance: float, op: str):
    x = np.array([0.3, 0.5, 0.7, distance]) + (1.0 if op == "Acosh" else 0.0)
    tested = model((op, "x", "a"), ("Sin", "a", "y"))
    record = check(tested, x, mode=mode, ops=with_rule(op, _lost(op, np.nan, "the last")))
    assert record.status == "fail"
    assert record.suspect is not None
    assert record.suspect.op == op


@every_mode
def test_of_two_rules_in_a_row_that_give_no_number_both_are_named(mode: Any):
    lost = {("", op): dataclasses.replace(gc.OPS["", op], vjp=_lost(op, np.nan, "all")) for op in ("Flatten", "Exp")}
    record = check(_between("Flatten", 3), np.full((3, 4), 0.3), mode=mode, ops={**gc.OPS, **lost})
    assert record.suspect is not None
    assert record.suspect.op == "Flatten"
    assert ["Exp" in other for other in record.suspect.others] == [True]


def test_a_rule_that_is_wrong_where_no_cotangent_flows_fails_no_node():
    """Entries that are sliced off do not matter to the model: full mode passes it, and so does every node."""
    right = gc.OPS["", "Sin"].vjp
    assert right is not None
    rule = lambda ct, y, x: (right(ct, y, x)[0] * sym.where(x > 5.0, 2.0, 1.0),)  # noqa: E731
    tested = model(("Concat", "x far", "c", {"axis": 0}), ("Sin", "c", "s"), ("Slice", "s b e", "t"), ("Exp", "t", "y"),
                   constants={"far": [9.0], "b": np.array([0]), "e": np.array([4])})  # fmt: skip
    for mode in ("full", "nodes"):
        assert check(tested, HALF, mode=mode, ops=with_rule("Sin", rule)).status == "pass"
        live = check(tested, 10 * HALF, mode=mode, ops=with_rule("Sin", rule))
        assert (live.status, live.suspect.op if live.suspect else "") == ("fail", "Sin")


def test_node_by_node_a_gradient_that_is_not_finite_at_a_tie_is_no_pass():
    """Each node is right, and what hides the dot test is a tie; but NaN is no rounding of anything."""
    tested = model(("Sub", "one x", "a"), ("Pow", "a p", "b"), ("Less", "x one", "c"), ("Where", "c b x", "d"),
                   constants=ONE)  # fmt: skip
    assert check(tested, HALF, mode="nodes").status in ("fail", "inconclusive")
