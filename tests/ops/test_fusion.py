"""Elementwise steps that are fused give what they give one by one: values to the last bit, tangents to rounding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import gradcheck_cli as gc
from gradcheck_cli import native
from gradcheck_cli.autodiff.tape import Tape
from gradcheck_cli.autodiff.trace import trace
from gradcheck_cli.engine.program import Program
from gradcheck_cli.graph import is_inexact
from gradcheck_cli.native.selection import kernels
from gradcheck_cli.op.fusion import Formula, grouped
from gradcheck_cli.ops import OPS
from tests.checking.small import model
from tests.ops.case import Case
from tests.ops.cases import CASES

pytestmark = pytest.mark.skipif(kernels is None, reason="the extension module is not built")
every_case = pytest.mark.parametrize("case", CASES, ids=lambda c: c.id)
PROBES = 3


def both(make: Any) -> list[Any]:
    """Results with fusion, and without."""
    found = []
    for kind in ("native", "numpy"):
        with native.use(kind):
            found.append(make())
    return found


@pytest.mark.one_in(20)
@every_case
def test_every_operator_gives_with_fusion_what_it_gives_without(case: Case) -> None:
    tape, rng = case.tape(), np.random.default_rng(3)
    xs, names = case.floats(), [tape.named[y].name for y in case.outputs]
    stacks = {x: tape.values[x] + 1e-3 * rng.normal(size=(PROBES, *tape.values[x].shape)) for x in xs}
    stacks = {x: stack.astype(tape.values[x].dtype) for x, stack in stacks.items()}
    if not xs:
        return
    mine, plain = both(lambda: Program(tape, xs, names).run(stacks, branches=True))
    for a, b in zip(mine.outputs, plain.outputs, strict=True):
        agree(a, b)
    np.testing.assert_array_equal(mine.any_crossed(PROBES), plain.any_crossed(PROBES))
    floats = [n for n in names if is_inexact(tape.values[n].dtype)]
    if floats and Program(tape, xs, floats).analytic:
        moves = {x: rng.normal(size=stack.shape).astype(stack.dtype) for x, stack in stacks.items()}
        for a, b in zip(*both(lambda: Program(tape, xs, floats).jvp(moves)), strict=True):
            agree(a, b)


def agree(a: np.ndarray, b: np.ndarray) -> None:
    assert a.dtype == b.dtype
    if b.dtype.kind in "fc":
        eps = np.finfo(b.dtype).eps
        np.testing.assert_allclose(a, b, rtol=2000 * eps, atol=200 * eps)
    else:
        np.testing.assert_array_equal(a, b)


SHAPES = [(3, 4), (4,), (1, 4), (3, 1), ()]
NODES = [("Add", 2), ("Sub", 2), ("Mul", 2), ("Div", 2), ("Neg", 1), ("Sqrt", 1), ("Reciprocal", 1), ("Sum", 3),
         ("Tanh", 1), ("Identity", 1), ("Relu", 1), ("ReduceMean", 1)]  # fmt: skip


def graph(seed: int) -> gc.Model:
    """Elementwise nodes at random, most of them read more than once, of operands that broadcast."""
    rng = np.random.default_rng(seed)
    known, nodes = ["x", *(f"c{i}" for i in range(len(SHAPES)))], []
    for i in range(40):
        op, count = NODES[int(rng.integers(len(NODES)))]
        recent = known[-6:] if rng.random() < 0.7 else known
        operands = [recent[int(rng.integers(len(recent)))] for _ in range(count)]
        nodes.append((op, " ".join(operands), f"t{i}"))
        known.append(f"t{i}")
    nodes.append(("Sum", " ".join(["x", *(f"t{i}" for i in range(0, 40, 3)), "t39"]), "y"))
    constants = {f"c{i}": rng.uniform(0.5, 2, size=shape) for i, shape in enumerate(SHAPES)}
    return model(*nodes, x=(3, 4), constants=constants)


def traced(tested: gc.Model, ops: Any = OPS, dtype: Any = np.float64) -> Tape:
    return trace(tested.graph, {"x": np.random.default_rng(1).uniform(0.5, 2, size=(3, 4)).astype(dtype)}, ops=ops)


@pytest.mark.parametrize("seed", range(25))
def test_values_are_the_same_to_the_last_bit(seed: int) -> None:
    tape, rng = traced(graph(seed)), np.random.default_rng(seed)
    x, outputs = tape.named["x"].name, [tape.named[n].name for n in ("y", "t6", "t21")]
    stack = rng.uniform(0.5, 2, size=(5, 3, 4))
    mine, plain = both(lambda: Program(tape, [x], outputs).run({x: stack}, branches=True))
    for a, b in zip(mine.outputs, plain.outputs, strict=True):
        np.testing.assert_array_equal(a, b)
    for name in ("kind", "places", "where"):
        np.testing.assert_array_equal(getattr(mine.decisions, name), getattr(plain.decisions, name))


@pytest.mark.parametrize("seed", range(25))
def test_tangents_are_the_same_to_rounding_whether_slopes_are_finite_or_not(seed: int) -> None:
    tape, rng = traced(graph(seed)), np.random.default_rng(seed)
    x, outputs = tape.named["x"].name, [tape.named[n].name for n in ("y", "t6", "t21")]
    moves = rng.normal(size=(5, 3, 4))
    for a, b in zip(*both(lambda: Program(tape, [x], outputs).jvp({x: moves})), strict=True):
        size = np.abs(b[np.isfinite(b)]).max(initial=0.0)
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12 * size)


def test_a_kernel_that_is_handed_in_is_the_one_that_runs() -> None:
    tested = model(("Mul", "x x", "a"), ("Add", "a x", "b"), ("Neg", "b", "y"), x=(3, 4))
    ops = {**OPS, ("", "Add"): replace(OPS["", "Add"], forward=lambda a, b: a + 2 * b)}
    tape = traced(tested, ops)
    x, y = tape.named["x"].name, tape.named["y"].name
    stack = np.random.default_rng(0).normal(size=(2, 3, 4))
    np.testing.assert_array_equal(Program(tape, [x], [y]).run({x: stack}).outputs[0], -(stack * stack + 2 * stack))


def test_a_stack_of_another_shape_than_at_the_point_runs_step_by_step() -> None:
    tested = model(
        ("Greater", "x half", "m"), ("Compress", "x m", "c", {"axis": 0}), ("Mul", "c c", "d"), ("Add", "d c", "e"),
        ("ReduceSum", "e", "y", {"keepdims": 0}), x=(3,), constants={"half": np.array(0.5)},
    )  # fmt: skip
    tape = trace(tested.graph, {"x": np.array([0.1, 1.0, 2.0])}, ops=OPS)
    x, y = tape.named["x"].name, tape.named["y"].name
    stack = np.array([[0.1, 1.0, 2.0], [0.7, 1.0, 2.0]])
    (found,) = Program(tape, [x], [y]).run({x: stack}).outputs
    np.testing.assert_allclose(found.ravel(), [1 + 1 + 4 + 2, 0.49 + 0.7 + 1 + 1 + 4 + 2])


def formulas(*lines: tuple[str, tuple[int, ...], Sequence[str]]) -> list[Formula]:
    """Sums of what each reads."""
    return [Formula(name, shape, np.dtype(float), ("add", *reads), reads) for name, shape, reads in lines]


def test_a_group_reads_nothing_that_is_made_in_a_later_one() -> None:
    wide, narrow = (3, 4), (3, 1)
    found = grouped(
        formulas(
            ("a", wide, ("x", "x")), ("b", narrow, ("u", "u")), ("c", wide, ("a", "b")), ("d", wide, ("a", "a")),
            ("e", narrow, ("b", "u")), ("f", wide, ("c", "e")),
        )
    )  # fmt: skip
    made: set[str] = set()
    for group in found:
        assert len({f.shape for f in group}) == 1
        for formula in group:
            assert all(n in made or n in "xu" for n in formula.reads)
            made.add(formula.name)
    assert made == set("abcdef")
    assert len(found) < 6


def test_fused_steps_read_no_more_than_their_code_can_name() -> None:
    lines = [(f"t{i}", (3,), (f"u{i}", f"v{i}")) for i in range(300)]
    assert all(sum(len(f.reads) for f in group) + len(group) < 255 for group in grouped(formulas(*lines)))
