"""Findings inside of If, Loop and Scan are reported with the node inside and with the nodes around it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradcheck_cli as gc
from gradcheck_cli.errors import ModelError, SpecError
from gradcheck_cli.formats.source import Source
from gradcheck_cli.graph import Graph, Node, TensorType
from gradcheck_cli.report.full import section
from gradcheck_cli.report.text import Style
from gradcheck_cli.results.record import Check
from tests.checking.small import scaled, with_rule

CONSTANTS = {"yes": np.array(True), "thrice": np.array(3), "five": np.array([5]), "one": np.array(1.0)}


def loop(*nodes: Node, around: tuple[Node, ...] = ()) -> gc.Model:
    """h = x, then three times h = nodes(h), then y = h; `around` stands before the loop."""
    body = Graph(("i", "go", "h"), ("went", "out"), (Node("Identity", ("go",), ("went",)), *nodes))
    return model(*around, Node("Loop", ("thrice", "yes", "x"), ("y",), {"body": body}))


def branch(*nodes: Node) -> gc.Model:
    """y = nodes(h) in the branch that is taken."""
    then, other = Graph((), ("out",), nodes), Graph((), ("z",), (Node("Neg", ("h",), ("z",)),))
    chosen = Node("If", ("yes",), ("y",), {"then_branch": then, "else_branch": other}, name="choice")
    return model(Node("Exp", ("x",), ("h",)), chosen)


def nested(*nodes: Node) -> gc.Model:
    """nodes(h) in a branch inside of a loop."""
    then, other = Graph((), ("out",), nodes), Graph((), ("z",), (Node("Neg", ("h",), ("z",)),))
    inner = Node("If", ("yes",), ("next",), {"then_branch": then, "else_branch": other})
    body = Graph(("i", "go", "h"), ("went", "next"), (Node("Identity", ("go",), ("went",)), inner))
    return model(Node("Loop", ("thrice", "yes", "x"), ("y",), {"body": body}))


def model(*nodes: Node) -> gc.Model:
    types = {"x": TensorType(np.dtype(np.float64), (2,))}
    return gc.Model(Source(Graph(("x",), ("y",), nodes, CONSTANTS, types), "net", nodes=len(nodes)), gc.OPS)


def check(tested: gc.Model, **more: Any) -> Check:
    [record] = gc.check(tested, "x", "y", **more).checks
    return record


AROUND = {  # how to build it, the index of the first node of the body, where that is
    "loop": (loop, 1, "body of node 0 Loop 'y'"),
    "branch": (branch, 0, "then_branch of node 1 If 'choice'"),
    "nested": (nested, 0, "then_branch of node 1 If 'next' in the body of node 0 Loop 'y'"),
}


@pytest.mark.parametrize("name", AROUND)
def test_an_unknown_operator_is_the_one_inside(name: str):
    build, index, inside = AROUND[name]
    record = check(build(Node("Magic", ("h",), ("out",), domain="acme")))
    assert (record.status, record.code) == ("unsupported", "GC502")
    assert record.message.startswith(
        f"unknown operator 'acme.Magic' (node {index} Magic 'out' in the {inside}); it stops "
    )


def test_an_unknown_operator_that_looks_like_a_known_one_says_so():
    record = check(loop(Node("Tnah", ("h",), ("out",))))
    assert record.message.endswith("in the body of node 0 Loop 'y'). Did you mean 'Tanh'?")


@pytest.mark.parametrize("name", AROUND)
def test_an_error_inside_names_the_node_inside(name: str):
    build, index, inside = AROUND[name]
    with pytest.raises(ModelError) as raised:
        check(build(Node("Reshape", ("h", "five"), ("out",), name="bad")))
    assert str(raised.value).startswith(f"node {index} Reshape 'bad' in the {inside}")


@pytest.mark.parametrize("name", AROUND)
def test_a_missing_gradient_inside_names_the_node_inside(name: str):
    build, index, inside = AROUND[name]
    record = check(build(Node("Sin", ("h",), ("out",))), ops=with_rule("Sin", None))
    assert (record.status, record.code) == ("unsupported", "GC501")
    assert record.message.startswith(f"no gradient for 'Sin' (node {index} 'out' in the {inside}); it stops d y/d x.")
    assert ("--y h" in record.message) == (name == "branch")
    assert "--y x" not in record.message


@pytest.mark.parametrize("name", AROUND)
def test_a_kink_inside_names_the_node_inside(name: str):
    build, index, inside = AROUND[name]
    record = check(build(Node("Sub", ("h", "one"), ("d",)), Node("Abs", ("d",), ("out",))),
                   x_init_value={"x": np.array([0.0, 1.0])})  # fmt: skip
    assert (record.status, record.entries["kink_ok"] > 0) == ("pass", True)
    assert any(f"node {index + 1} Abs 'out' in the {inside}" in note for note in record.notes), record.notes


@pytest.mark.parametrize("name", AROUND)
def test_a_wrong_rule_inside_has_the_node_inside_as_suspect(name: str):
    build, index, inside = AROUND[name]
    record = check(build(Node("Sin", ("h",), ("out",))), ops=with_rule("Sin", scaled("Sin", 2.0)))
    assert record.status == "fail"
    assert record.suspect is not None
    assert (record.suspect.node, record.suspect.op, record.suspect.name) == (index, "Sin", "out")
    assert record.suspect.inside == inside
    assert f"in the {inside}" in section((record,), Style(width=120))


@pytest.mark.parametrize("name", AROUND)
def test_what_is_not_finite_first_is_named_inside(name: str):
    build, index, inside = AROUND[name]
    record = check(build(Node("Neg", ("h",), ("n",)), Node("Sqrt", ("n",), ("out",))), x_init_value={"x": np.ones(2)})
    assert (record.status, record.code) == ("inconclusive", "GC302")
    assert f"first NaN at node {index + 1} Sqrt 'out' in the {inside} (input min" in record.message
    assert record.message.endswith("It follows from 'x'. Give other values: --feed x=...")  # it was given, not drawn


def test_a_branch_by_another_name_is_told_at_its_node(tmp_path: Path):
    (tmp_path / "a.gradcheck.yaml").write_text("""
gradcheck: 1
graphs:
  a:
    inputs: {x: {shape: [2]}, c: {shape: [], dtype: bool}}
    nodes:
      - op: If
        inputs: [c]
        outputs: [y]
        attrs: {thEn_branch: 'b () => (z) { z = Neg (x) }', else_branch: 'd () => (z) { z = Exp (x) }'}
    outputs: [y]
""")
    with pytest.raises(SpecError, match=r"a\.gradcheck\.yaml:7:9: node If 'y': attribute 'then_branch' is missing"):
        gc.check(gc.load(tmp_path / "a.gradcheck.yaml"))
