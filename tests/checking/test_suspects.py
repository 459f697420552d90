"""After a failure every node is checked on its own: which one is named, where it is worst, and what is wrong with it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pytest

import gradcheck_cli as gc
from gradcheck_cli.autodiff import symbolic as sym
from gradcheck_cli.formats.source import Source
from gradcheck_cli.graph import Graph, Node, TensorType
from gradcheck_cli.op import Op
from gradcheck_cli.report import render
from gradcheck_cli.report.evidence import suspect_lines
from gradcheck_cli.report.text import Style
from gradcheck_cli.results.record import Check, Report, Suspect
from tests.checking.small import MUTANTS, SQUARE, Mutant, between, check, model, names, scaled, with_rule
from tests.corpus.faults import by_composition

RNG = np.random.default_rng(3)


def right(op: str) -> Any:
    rule = gc.OPS["", op].vjp
    assert rule is not None
    return rule


def changed(op: str, change: Any) -> Any:
    """The rule of an operator with its first cotangent changed."""

    def rule(ct: Any, ans: Any, *primals: Any, **metadata: Any) -> tuple[Any, ...]:
        first, *others = right(op)(ct, ans, *primals, **metadata)
        return (change(first), *others)

    return rule


def suspect_of(tested: gc.Model, op: str, rule: Any, **more: Any) -> Suspect:
    record = check(tested, ops=with_rule(op, rule), **more)
    assert record.status == "fail"
    assert record.suspect is not None
    return record.suspect


# What the diagnosis says


class Said(NamedTuple):
    """A wrong rule, a model that has it, and what the diagnosis says of it."""

    says: str
    op: str
    rule: Any
    model: gc.Model


def rolled(ct: Any) -> Any:
    return sym.concat([sym.slice(ct, (1,), (9,), (0,)), sym.slice(ct, (0,), (1,), (0,))], 0)


def flipped(ct: Any) -> Any:
    return sym.slice(ct, (-1,), (-100,), (-1,), (-1,))


def last_of_duplicates(ct: Any, ans: Any, x: Any, index: Any, **metadata: Any) -> tuple[Any, None]:
    zeros = sym.zeros_like(x)
    return (x.tape.apply("ScatterElements", zeros, index, ct, axis=0), None)


SAYS = [
    Said("has the wrong sign", "Tanh", changed("Tanh", lambda ct: -ct), between("Tanh")),
    Said("is 2 times what it should be", "Exp", changed("Exp", lambda ct: ct * 2.0), between("Exp")),
    Said("is 1/2 of what it should be", "Exp", changed("Exp", lambda ct: ct * 0.5), between("Exp")),
    Said("is 1/4 of what it should be (1/the size of axis 0)", "ReduceSum", changed("ReduceSum", lambda ct: ct * 0.25),
         between("ReduceSum", {"keepdims": 0})),
    Said("is 4 times what it should be (the size of axis 0)", "ReduceMean", scaled("ReduceMean", 4.0),
         between("ReduceMean", {"keepdims": 0})),
    Said("is 1.000001 times what it should be", "Exp", scaled("Exp", 1 + 1e-6), between("Exp")),
    Said("is 1/4 of what it should be (alpha)", "LeakyRelu", changed("LeakyRelu", lambda ct: ct * 0.25),
         between("LeakyRelu", {"alpha": 0.25}, x=(8,))),
    Said("is 2 times what it should be at [3], [4], [5] only, and right elsewhere", "Split",
         lambda cts, ys, x, **metadata: right("Split")([cts[0], cts[1] * 2.0], ys, x, **metadata),
         model(("Mul", "x wide", "h"), ("Split", "h", "a b", {"num_outputs": 2}), ("Mul", "a b", "y"), x=(6,),
               constants={"wide": 1.5})),
    Said("is missing: it is zero everywhere", "Exp", lambda ct, y, x: (None,), between("Exp")),
    Said("is not finite", "Exp", scaled("Exp", np.nan), between("Exp")),
    Said("is 1.1 times what it should be at [2] only, and right elsewhere", "Exp",
         scaled("Exp", np.array([1.0, 1.0, 1.1, 1.0, 1.0, 1.0])), between("Exp", x=(6,))),
    Said("is zero at [1] only, where it should not be", "Exp", scaled("Exp", np.array([1.0, 0.0, 1.0, 1.0, 1.0])),
         between("Exp", x=(5,))),
    Said("is not zero at 6 of 8 entries, where it should be", "Clip", lambda ct, y, x, *b: (ct, *[None] * len(b)),
         between("Clip", x=(8,), constants={"low": -0.5, "high": 0.5})),
    Said("looks transposed", "MatMul", lambda ct, y, a, b: (sym.matmul(ct, b), None),
         between("MatMul", x=(2, 3), constants={"W": SQUARE})),
    Said("looks transposed: its axes are in the order [1, 0]", "Exp",
         changed("Exp", lambda ct: sym.transpose(ct, (1, 0))), between("Exp", x=(3, 3))),
    Said("is shifted by -1 along axis 0", "Exp", changed("Exp", rolled), between("Exp", x=(9,))),
    Said("is flipped along axis 0", "Exp", changed("Exp", flipped), between("Exp", x=(7,))),
    Said("lacks a term that sums over axis 1", "Softmax", lambda ct, y, x, *, axis=-1: (ct * y,),
         between("Softmax", x=(2, 5))),
    *(Said(f"lacks a mean or a sum over axes {', '.join(map(str, axes))}", "Exp",
           lambda ct, y, x, axes=axes: (ct * y - sym.mean(ct, axes),), between("Exp", x=shape))
      for axes, shape in [((1, 2), (4, 2, 2)), ((0, 2), (2, 3, 2))]),
    Said("counts not all of up to 2 uses of an entry: they are not summed", "Gather", last_of_duplicates,
         model(("Mul", "x wide", "h"), ("Gather", "h index", "a", {"axis": 0}), ("Sin", "a", "y"),
               constants={"wide": 1.5, "index": np.array([0, 2, 2, 3])})),
    Said("is as rough as float16", "Exp",
         scaled("Exp", 1 + 2.0**-12 * RNG.uniform(-1, 1, 12)), between("Exp", x=(12,))),
    Said("lacks the factor its result", "Exp", lambda ct, y, x: (ct,), between("Exp")),
    Said("is off by a factor for each index of axis 1, 0.5 to 2", "Exp",
         changed("Exp", lambda ct: ct * np.array([[0.5], [1.0], [2.0]])), between("Exp", x=(2, 3, 4))),
]  # fmt: skip


@pytest.mark.parametrize("said", SAYS, ids=lambda said: said.says.replace(" ", "-"))
def test_the_diagnosis_says_what_is_wrong(said: Said):
    found = suspect_of(said.model, said.op, said.rule)
    assert (found.op, found.diagnosis) == (said.op, f"the gradient {said.says}")


def test_operands_that_get_each_others_cotangents_are_named():
    tested = model(("Tanh", "x", "h"), ("Exp", "x", "e"), ("Concat", "h e", "a", {"axis": 0}), ("Sin", "a", "y"))
    rule = lambda ct, y, *xs, **metadata: right("Concat")(ct, y, *xs, **metadata)[::-1]  # noqa: E731
    found = suspect_of(tested, "Concat", rule)
    assert found.diagnosis == "the gradient is that of 'e': operands are exchanged"


@pytest.mark.parametrize("factor", [-1.0, 2.0, 1 + 1e-6])
@pytest.mark.parametrize("size", [40, 300, 3000])
def test_large_nodes_are_diagnosed_as_small_ones_are(size: int, factor: float):
    found = suspect_of(between("Exp", x=(size,)), "Exp", scaled("Exp", factor), mode="nodes")
    said = {-1.0: "has the wrong sign", 2.0: "is 2 times what it should be"}
    assert found.diagnosis == f"the gradient {said.get(factor, 'is 1.000001 times what it should be')}"


# Where it is worst


@pytest.mark.parametrize("shape", [(7,), (4, 9), (3, 40, 50)])
@pytest.mark.parametrize("error", [1.0, 0.1, 1e-3])
def test_the_worst_element_is_found_however_large_the_tensor(shape: tuple[int, ...], error: float):
    place = tuple(int(i) for i in RNG.integers(0, shape))
    off = np.ones(shape)
    off[place] += error
    found = suspect_of(between("Exp", x=shape), "Exp", scaled("Exp", off), mode="nodes")
    assert (found.at, found.index) == ("h", place)
    assert found.rel_err == pytest.approx(error / (1 + error), rel=1e-6)


def test_one_wrong_operand_of_several_is_the_one_that_is_named():
    def rule(ct: Any, y: Any, a: Any, b: Any) -> tuple[Any, Any]:
        first, second = right("MatMul")(ct, y, a, b)
        return first, second * (1 + 1e-6)

    nodes = ("Tanh", "x", "a"), ("Transpose", "x", "t"), ("Exp", "t", "b"), ("MatMul", "a b", "c"), ("Sin", "c", "y")
    found = suspect_of(model(*nodes, x=(3, 4)), "MatMul", rule)
    assert (found.op, found.at) == ("MatMul", "b")


def test_an_operand_that_x_does_not_reach_is_nobodys_fault():
    """The rule is wrong for the weight, and the failure is elsewhere."""
    nodes = ("MatMul", "x W", "h"), ("Exp", "h", "y")
    tested = model(*nodes, x=(2, 3), constants={"W": SQUARE})
    product = dataclasses.replace(gc.OPS["", "MatMul"], vjp=lambda ct, y, a, b: (sym.matmul(ct, sym.swap(b)), b * 7.0))
    ops = {**with_rule("Exp", scaled("Exp", 2.0)), ("", "MatMul"): product}
    record = check(tested, ops=ops)
    assert record.suspect is not None
    assert (record.suspect.op, record.suspect.passed) == ("Exp", 1)


@pytest.mark.parametrize("mode", ["full", "nodes"])
def test_wrong_only_at_some_activations_is_found(mode: str):
    rule = lambda ct, y, x: (sym.where(x > 0.9, ct * y * 1.5, ct * y),)  # noqa: E731
    found = suspect_of(between("Exp", x=(500,)), "Exp", rule, mode=mode)
    assert found.op == "Exp"
    assert "1.5 times what it should be at" in found.diagnosis


# Never a node that is right


@pytest.mark.one_in(4)
@pytest.mark.parametrize("mode", ["full", "nodes"])
@pytest.mark.parametrize("mutant", **names(MUTANTS))
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_mutated_operator_is_the_suspect_and_nothing_else(mutant: Mutant, mode: str, seed: int):
    record = check(mutant.model, mode=mode, seed=seed, ops=with_rule(mutant.op, mutant.rule))
    assert record.suspect is not None
    assert record.suspect.op == mutant.op
    assert (record.suspect.passed, record.suspect.others) == (record.suspect.tried - 1, ())
    assert check(mutant.model, mode=mode, seed=seed).status == "pass"


CANCELLING: Mapping[str, gc.Model] = {
    "large numbers that cancel": model(("Add", "x huge", "a"), ("Sub", "a huge", "b"), ("Exp", "b", "y"),
                                       constants={"huge": 1e9}),
    "a sharp softmax": model(("Mul", "x k", "h"), ("Softmax", "h", "s"), ("MatMul", "s W", "b"), ("Exp", "b", "y"),
                             constants={"k": 60.0, "W": RNG.normal(size=(4, 3))}),
    "a mean that is taken off": model(("Add", "x huge", "a"), ("ReduceMean", "a", "m"), ("Sub", "a m", "b"),
                                      ("Exp", "b", "y"), constants={"huge": 1e6}),
    "ties of a maximum": model(("Relu", "x", "r"), ("ReduceMax", "r", "b", {"keepdims": 1}), ("Exp", "b", "y"), x=(3,)),
}  # fmt: skip


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("name", CANCELLING)
def test_right_nodes_where_numbers_cancel_are_not_blamed(name: str, seed: int):
    record = check(CANCELLING[name], seed=seed, ops=with_rule("Exp", scaled("Exp", 2.0)))
    if record.status == "fail":
        assert record.suspect is not None
        assert (record.suspect.op, record.suspect.others) == ("Exp", ())


def test_ties_inside_of_a_node_hide_no_mistake_elsewhere_in_it():
    """Half of the windows of a pooling layer behind a Relu hold nothing but zeros."""
    nodes = ("Relu", "x", "r"), ("MaxPool", "r", "p", {"kernel_shape": (2, 2), "strides": (2, 2)}), ("Exp", "p", "y")
    tested = model(*nodes, x=(1, 3, 12, 12))
    for mode in ("full", "nodes"):
        assert check(tested, mode=mode).status == "pass"
        for factor in (-1.0, 1 + 1e-6):
            found = suspect_of(tested, "MaxPool", scaled("MaxPool", factor), mode=mode)
            assert (found.op, found.passed, found.tried) == ("MaxPool", 2, 3)


@pytest.mark.parametrize("mode", ["full", "nodes"])
@pytest.mark.parametrize("size", [8, 300])
def test_at_a_tie_any_slope_between_those_of_both_sides_is_right(size: int, mode: str):
    tested = model(("Mul", "x one", "h"), ("Relu", "h", "y"), x=(size,), constants={"one": 1.5})
    value = np.where(np.arange(size) % 5 == 3, 0.0, np.random.default_rng(0).normal(size=size))

    def at_zero(slope: float) -> Any:
        return lambda ct, y, x: (sym.where(x > 0, ct, sym.where(sym.equal(x, 0.0), ct * slope, 0)),)

    for slope in (0.0, 0.5, 1.0):
        assert check(tested, value, mode=mode, ops=with_rule("Relu", at_zero(slope))).status == "pass"
    found = suspect_of(tested, "Relu", at_zero(5.0), value=value, mode=mode)
    assert (found.op, found.index) == ("Relu", (3,))
    assert found.diagnosis == "the gradient is outside of the slopes from both sides, at a tie"


def test_a_node_of_complex_numbers_is_checked_by_differences():
    """Conj has no complex step."""
    from tests.checking.test_methods import complex_model

    key = ("gradcheck", "Conj")
    ops = {**gc.OPS, key: dataclasses.replace(gc.OPS[key], vjp=lambda ct, y, x: (ct,))}
    record = check(complex_model(), ops=ops)
    assert record.suspect is not None
    assert (record.suspect.op, record.suspect.tried, record.suspect.unchecked) == ("Conj", 3, 0)


def test_a_rule_that_cannot_be_run_alone_is_wrong():
    from gradcheck_cli.autodiff.trace import trace
    from gradcheck_cli.checks.diagnose.suspects import Surveyor
    from gradcheck_cli.engine.chunks import Budget

    tested = between("Exp")
    tape = trace(tested.graph, {"x": np.ones(4)}, ops=with_rule("Exp", lambda ct, y, x: (ct, ct)))
    survey = Surveyor(tape).survey("x", tape.named["y"].name, 0, Budget())
    assert [(w.unit.op.name, w.symptom.diagnosis) for w in survey.wrong] == [
        ("Exp", "its rule cannot be run: node 1 Exp 'a': the rule of Exp gives 2 cotangents for 1 operand")
    ]


@pytest.mark.parametrize("mode", ["full", "nodes"])
def test_a_node_without_a_finite_slope_is_neither_right_nor_wrong(mode: str):
    tested = model(("Sqrt", "x", "s"), ("Exp", "s", "e"), ("Sin", "e", "y"))
    found = suspect_of(tested, "Exp", scaled("Exp", 2.0), value=np.zeros(4), mode=mode)
    assert (found.op, found.passed, found.tried, found.unchecked) == ("Exp", 1, 2, 1)
    assert check(tested, np.zeros(4), mode="nodes").status == "inconclusive"


# Several wrong rules


class Blamed(NamedTuple):
    """Operators with wrong rules in a model, in the order in which they are to blame; of the last ones none is."""

    wrong: Mapping[str, Any]
    model: gc.Model
    guilty: int  # how many of them make the failure


CALM: Mapping[str, Any] = {"far": 10.0, "one": 1.0}
ASIDE = ("Sub", "x far", "d"), ("Relu", "d", "r"), ("Add", "r one", "o")  # ones, through which no slope goes
NAMED = {
    "one, behind another that no slope reaches": Blamed(
        {"Tanh": scaled("Tanh", 1.5), "Exp": scaled("Exp", 2.0)},
        model(*ASIDE, ("Exp", "o", "e"), ("Tanh", "x", "t"), ("Add", "e t", "y"), constants=CALM), 1),
    "a slight one, behind two that no slope reaches": Blamed(
        {"Sin": scaled("Sin", 1 + 1e-5), "Exp": scaled("Exp", 2.0), "Cosh": scaled("Cosh", -1.0)},
        model(*ASIDE, ("Exp", "o", "e"), ("Cosh", "o", "c"), ("Mul", "e c", "p"), ("Sin", "x", "s"),
              ("Add", "p s", "y"), constants=CALM), 1),
    "two, one behind the other": Blamed(
        {"Tanh": scaled("Tanh", 0.7), "Exp": scaled("Exp", 2.0), "Cosh": scaled("Cosh", 3.0)},
        model(*ASIDE, ("Cosh", "o", "c"), ("Tanh", "x", "t"), ("Exp", "t", "e"), ("Add", "c e", "y"), constants=CALM), 2),
    "two whose errors cancel but for a little": Blamed(
        {"Tanh": scaled("Tanh", 0.5 * (1 + 1e-5)), "Exp": scaled("Exp", 2.0)},
        model(("Tanh", "x", "t"), ("Exp", "t", "e"), ("Sin", "e", "y")), 2),
    "two, behind a node of which nobody reads one output": Blamed(
        {"Exp": scaled("Exp", 2.0), "Tanh": scaled("Tanh", 0.7)},
        model(("Split", "x", "a b", {"num_outputs": 2}), ("Exp", "b", "e"), ("Tanh", "e", "y")), 2),
    "two, at entries of their own": Blamed(
        {"Exp": scaled("Exp", 2.0), "Tanh": scaled("Tanh", 0.7), "Cosh": scaled("Cosh", 3.0)},
        model(*ASIDE, ("Cosh", "o", "c"), ("Exp", "x", "e"), ("Tanh", "x", "t"), ("Concat", "t e c", "y", {"axis": 0}),
              constants=CALM), 2),
    "one whose rule gives no number": Blamed(
        {"Exp": scaled("Exp", np.nan), "Cosh": scaled("Cosh", 3.0)},
        model(*ASIDE, ("Cosh", "o", "c"), ("Exp", "x", "e"), ("Add", "c e", "y"), constants=CALM), 1),
}  # fmt: skip


def with_rules(rules: Mapping[str, Any]) -> dict[tuple[str, str], Op]:
    return {**gc.OPS, **{("", op): with_rule(op, rule)["", op] for op, rule in rules.items()}}


@pytest.mark.parametrize("mode", ["full", "nodes", "directional"])
@pytest.mark.parametrize("name", NAMED)
def test_of_several_wrong_rules_those_come_first_without_which_nothing_fails(name: str, mode: str):
    case = NAMED[name]
    record = check(case.model, ops=with_rules(case.wrong), mode=mode)
    assert (record.status, record.suspect is None) == ("fail", False)
    assert record.suspect is not None
    named = [record.suspect.op, *(other.split()[2] for other in record.suspect.others)]
    assert (set(named[: case.guilty]), named) == ({*list(case.wrong)[: case.guilty]}, list(case.wrong))


@pytest.mark.parametrize("name", NAMED)
def test_without_the_rules_that_come_first_nothing_fails_and_with_any_of_them_something_does(name: str):
    case = NAMED[name]
    guilty = list(case.wrong)[: case.guilty]
    innocent = {op: rule for op, rule in case.wrong.items() if op not in guilty}
    assert check(case.model, ops=with_rules(innocent), mode="full").status == "pass"
    for op in guilty:
        assert check(case.model, ops=with_rules({**innocent, op: case.wrong[op]}), mode="full").status == "fail"


# Accumulation


def test_gradients_that_are_not_summed_are_named_where_no_node_is_wrong():
    tested = model(("Tanh", "x", "t"), ("Exp", "t", "a"), ("Sin", "t", "b"), ("Mul", "a b", "y"))
    ops = {**gc.OPS, ("", "Sum"): dataclasses.replace(gc.OPS["", "Sum"], forward=lambda *xs: xs[-1])}
    for mode in ("full", "nodes"):
        record = check(tested, ops=ops, mode=mode)
        assert (record.status, record.suspect) == ("fail", None)
        assert "gradients of 2 consumers of tensor 't' are not summed" in record.notes
    assert check(tested).status == "pass"


def test_an_operand_that_no_step_reads_does_not_stop_the_sums_from_being_told():
    """A composition may leave an operand unread, which its own rule is given all the same."""
    tested = model(("Tanh", "x", "t"), ("First", "t c", "a"), ("Sin", "t", "b"), ("Mul", "a b", "y"),
                   constants={"c": 2.0})  # fmt: skip
    first = Op("First", lambda a, b: sym.exp(a), lambda ct, y, a, b: (ct * y, None), composed=True)
    last = dataclasses.replace(gc.OPS["", "Sum"], forward=lambda *xs: xs[-1])
    record = check(tested, ops={**gc.OPS, ("", "First"): first, ("", "Sum"): last})
    assert (record.status, record.suspect) == ("fail", None)
    assert "gradients of 2 consumers of tensor 't' are not summed" in record.notes


def test_where_neither_a_node_nor_a_sum_is_wrong_the_report_says_so():
    """Two wrong rules whose errors cancel out are both named; a tolerance of nothing blames nobody."""
    record = check(between("Exp"), rtol=0.0, ops=with_rule("Exp", scaled("Exp", 1 + 1e-11)))
    if record.status == "fail":
        assert record.suspect is None
        assert any(note.startswith("no node fails on its own") for note in record.notes)


# What is printed


SUSPECT = Suspect(14, "MaxPool", "pool1", ("p1",), ("a1",), 1.0, "a1", 59, 60, index=(0, 2, 7, 7), before=13, after=46)


def lines(**fields: Any) -> list[str]:
    return [line[13:] for line in suspect_lines(dataclasses.replace(SUSPECT, **fields), Style())]


def test_the_lines_are_those_of_the_contract():
    assert list(suspect_lines(SUSPECT, Style())) == [
        "  suspect    node 14  MaxPool 'pool1'  a1 -> p1",
        "             fails on its own: max rel err 1.0e+00 at a1[0,2,7,7]",
        "             the 13 nodes before it and the 46 after it pass on their own",
    ]


@pytest.mark.parametrize(
    ("fields", "last"),
    [
        ({"before": 0}, "the 46 nodes after it pass on their own"),
        ({"after": 0}, "the 13 nodes before it pass on their own"),
        ({"before": 1, "after": 0}, "the node before it passes on its own"),
        ({"before": 1, "after": 1}, "the node before it and the node after it pass on their own"),
        ({"before": 1, "after": 46}, "the node before it and the 46 after it pass on their own"),
        ({"before": 0, "after": 0, "passed": 0, "tried": 1}, "fails on its own: max rel err 1.0e+00 at a1[0,2,7,7]"),
        ({"unchecked": 2, "passed": 57, "tried": 58}, "2 nodes could not be checked on their own"),
        ({"passed": 58, "others": ("node 20 Relu 'r'",)}, "58 other nodes on the way pass on their own"),
    ],
)
def test_the_other_nodes_are_counted(fields: dict[str, Any], last: str):
    assert lines(**fields)[-1] == last


def test_more_nodes_that_fail_are_named_up_to_three():
    nodes = [("Exp" if i % 2 else "Tanh", f"h{i}" if i else "x", f"h{i + 1}") for i in range(12)]
    record = check(model(*nodes), ops=with_rule("Exp", scaled("Exp", 2.0)))
    assert record.suspect is not None
    assert (record.suspect.node, record.suspect.others) == (1, ("node 3 Exp 'h4'", "node 5 Exp 'h6'"))
    page = " ".join(render("full", Report((record,))).split())
    assert "node 3 Exp 'h4', node 5 Exp 'h6' and 3 more nodes fail on their own as well" in page
    assert "6 other nodes on the way pass on their own" in page


def test_a_step_of_a_composed_operator_says_whose_step_it_is():
    tested = model(("Gelu", "x", "g"), ("Sin", "g", "y"))
    record: Check = check(tested, ops=with_rule("Erf", scaled("Erf", 2.0)))
    assert record.suspect is not None
    assert (record.suspect.op, record.suspect.part_of, record.suspect.node) == ("Erf", "Gelu", 0)
    assert "which Gelu is composed of" in render("full", Report((record,)))


def test_the_record_holds_what_is_printed():
    record = check(between("Exp"), ops=with_rule("Exp", scaled("Exp", 2.0))).as_json()["suspect"]
    assert record["diagnosis"] == "the gradient is 2 times what it should be"
    assert (record["node"], record["op"], record["at"], record["before"], record["after"]) == (1, "Exp", "h", 1, 1)
    assert isinstance(record["index"], list)


@pytest.mark.parametrize("mode", ["full", "nodes"])
def test_a_node_that_is_wrong_by_what_hardly_matters_is_blamed_after_those_that_do(mode: Any):
    tested = model(("Tanh", "x", "h"), ("Exp", "h", "e"), ("Sin", "e", "y"))
    table = {
        **with_rule("Tanh", scaled("Tanh", 1 + 1e-8)),
        ("", "Exp"): with_rule("Exp", scaled("Exp", 2.0))["", "Exp"],
    }
    record = check(tested, ops=table, mode=mode)
    assert record.suspect is not None
    assert record.suspect.op == "Exp"
    assert [other for other in record.suspect.others if "Tanh" in other]


def test_a_rule_that_runs_a_graph_inside_of_its_node_is_looked_at_alone():
    key, captured = ("ai.onnx.preview", "FlexAttention"), Node("Mul", ("p", "scale"), ("m",))
    node = Node(key[1], ("x", "k", "v"), ("y",), {"prob_mod": Graph(("p",), ("m",), (captured,))}, key[0])
    types = {"x": TensorType(np.dtype(float), (1, 1, 3, 2)), "half": TensorType(np.dtype(float), ())}
    given = {name: np.random.default_rng(4).normal(size=(1, 1, 3, 2)) for name in "kv"}
    graph = Graph(("x", "half"), ("y",), (Node("Exp", ("half",), ("scale",)), node), given, types)
    by_its_parts = by_composition(gc.OPS[key])

    def half_of_it(ct: Any, ans: Any, *primals: Any, **metadata: Any) -> list[Any]:
        return [None if each is None else each * 0.5 for each in by_its_parts(ct, ans, *primals, **metadata)]

    wrong = {**gc.OPS, key: dataclasses.replace(gc.OPS[key], vjp=half_of_it)}
    record = check(gc.Model(Source(graph, "flex", nodes=2), gc.OPS), ops=wrong)
    assert record.suspect is not None
    assert (record.status, record.suspect.op) == ("fail", key[1])
    assert "is 1/2 of what it should be" in record.suspect.diagnosis


def test_a_name_of_a_suspect_is_escaped_once() -> None:
    assert lines(name="new\nline")[0].startswith(f"node {SUSPECT.node}  {SUSPECT.op} 'new\\nline'")
