"""Rows probed in groups: as few as the structure allows, and never another verdict than row by row."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import pytest

import gradcheck_cli as gc
from gradcheck_cli.autodiff.backward import inexact
from gradcheck_cli.compare.pair import Full, PairJob, PairResult, Theory
from gradcheck_cli.engine.chunks import Budget
from gradcheck_cli.engine.program import Program
from gradcheck_cli.jacobian.coloring import Structure
from gradcheck_cli.jacobian.jacobian import Backward
from gradcheck_cli.op import Op
from gradcheck_cli.op.sparsity import same_place
from gradcheck_cli.ops import OPS
from gradcheck_cli.settings import Method
from gradcheck_cli.verdict.rule import Tolerance
from tests.checking.small import check, model
from tests.ops.cases import CASES

RNG = np.random.default_rng(11)
FILTER = RNG.normal(size=(3, 3, 3, 3))
UP, DOWN = RNG.normal(size=(16, 24)), RNG.normal(size=(24, 16))
SAME = {"pads": (1, 1, 1, 1)}
HALVES = {"kernel_shape": (2, 2), "strides": (2, 2)}
MODELS = {  # rows and colors
    "elementwise": (model(("Tanh", "x", "t"), ("Mul", "t x", "y"), x=(32, 32)), 1024, 1),
    "conv": (model(("Conv", "x w", "y", SAME), x=(1, 3, 16, 16), constants={"w": FILTER}), 768, 27),
    "conv batch": (model(("Conv", "x w", "y", SAME), x=(4, 3, 16, 16), constants={"w": FILTER}), 3072, 27),
    "max pool": (model(("MaxPool", "x", "y", HALVES), x=(1, 4, 16, 16)), 1024, 4),
    "mlp batch": (model(("MatMul", "x a", "h"), ("Relu", "h", "r"), ("MatMul", "r b", "y"), x=(32, 16),
                        constants={"a": UP, "b": DOWN}), 512, 16),
    "layer norm": (model(("LayerNormalization", "x s", "y"), x=(16, 32), constants={"s": RNG.normal(size=32)}), 512, 32),
    "attention": (model(("MatMul", "x a", "q"), ("Transpose", "x", "k", {"perm": (0, 2, 1)}), ("MatMul", "q k", "s"),
                        ("Softmax", "s", "p"), ("MatMul", "p x", "y"), x=(8, 6, 8),
                        constants={"a": RNG.normal(size=(8, 8))}), 384, 48),
    "rows gathered": (model(("Gather", "x i", "g"), ("ReduceSum", "g n", "y"), x=(12, 200),
                            constants={"i": np.array([[0, 3], [5, 5], [7, 1]]), "n": np.array([2])}), 2400, 200),
    "both ways": (model(("Greater", "x z", "c"), ("Exp", "x", "e"), ("Sin", "x", "s"), ("Where", "c e s", "y"),
                        x=(20, 20), constants={"z": 0.0}), 400, 1),
}  # fmt: skip
SMALL = [name for name, (_, rows, _) in MODELS.items() if rows < 600]
COUNTED = ("total", "checked", "failed", "kink_ok")
METHODS: tuple[Method, ...] = ("auto", "richardson", "central", "forward")


@pytest.mark.parametrize("tested, rows, colors", MODELS.values(), ids=MODELS)
def test_a_model_takes_as_few_groups_as_its_structure_allows(tested: gc.Model, rows: int, colors: int) -> None:
    found = check(tested, mode="full")
    assert (found.status, found.coloring) == ("pass", {"rows": rows, "colors": colors})
    assert found.evaluations["complex"] <= colors + 1  # and one to see that the groups add up


@pytest.mark.one_in(3)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("tested", [m for m, rows, _ in MODELS.values() if rows < 600], ids=SMALL)
def test_a_verdict_is_the_same_without_groups(tested: gc.Model, method: Method) -> None:
    together, alone = (check(tested, mode="full", method=method, coloring=coloring) for coloring in (True, False))
    assert together.coloring
    assert not alone.coloring
    mine, theirs = ({k: each.entries[k] for k in COUNTED} for each in (together, alone))
    unseen, also = together.entries["inconclusive"], alone.entries["inconclusive"]
    assert (together.status, together.code, mine) == (alone.status, alone.code, theirs)
    # At the edge of what a single formula sees rounding decides, and groups and single entries round differently.
    assert unseen == pytest.approx(also, rel=0.05 if method in ("central", "forward") else 0)


def programs(op: Op) -> Iterator[Program]:
    """Programs from inputs of an operator's cases to outputs, where the rows have few colors."""
    for case in [case for case in CASES if (case.domain, case.op) == op.key]:
        tape = case.tape()
        outputs = [tape.named[y].name for y in case.outputs if inexact(tape.named[y])]
        found = (Program(tape, [x], [y]) for y in outputs for x in case.floats())
        yield from (program for program in found if Structure(program, Budget()).coloring is not None)


def assert_alike(program: Program, method: Method) -> None:
    """Groups change nothing, whether the theoretical side is right, wrong in some entries, or zero."""
    if (right := theoretical(program)) is None:
        return
    wrong = np.where(np.random.default_rng(5).random(right.shape) < 0.2, right * 1.001 + 1e-3, right)
    for values in (right, wrong, 0 * right):
        together, alone = (compared(program, values, method, colors=colors) for colors in (True, False))
        assert (together.comparison.status == alone.comparison.status).all()
        assert together.comparison.outside == alone.comparison.outside
        assert {*together.notes} == {*alone.notes}


def compared(program: Program, values: np.ndarray, method: Method, *, colors: bool) -> PairResult:
    """A comparison with a theoretical side of these values."""
    theory = Theory(values, lambda: np.zeros_like(values))
    job = PairJob(method, None, Tolerance(), Budget())
    return Full([theory], [Structure(program, Budget(), colors=colors)]).compare(program, 0, job)


def theoretical(program: Program) -> np.ndarray | None:
    """The Jacobian by rules."""
    try:
        return Backward(program.tape, program.outputs[0], [program.probes[0]]).jacobians(Budget())[0]
    except gc.GradcheckError:
        return None


every_operator = pytest.mark.parametrize("op", OPS.values(), ids=lambda op: f"{op.domain} {op.name}".strip())


@pytest.mark.one_in(8)
@every_operator
def test_every_status_is_the_same_without_groups(op: Op) -> None:
    with np.errstate(all="ignore"):
        for program in islice(programs(op), 1):
            assert_alike(program, METHODS[len(op.name) % 3])


def stray(ct: Any, y: Any, x: Any) -> tuple[Any]:
    """The rule of a square for a matrix, and a little of each cotangent to the row below as well."""
    rows = ct.shape[0]
    order = np.roll(np.arange(rows), 1)
    return (ct * x * 2.0 + ct.tape.apply("Gather", ct, order, axis=0) * 1e-3,)


SQUARE = replace(gc.OPS["", "Sin"], name="Square", forward=np.square, vjp=stray)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("coloring", [True, False])
def test_what_fails_where_y_does_not_depend_on_x_has_a_code_of_its_own(method: Method, coloring: bool) -> None:
    tested = model(("Square", "x", "y"), x=(3, 5))
    found = check(tested, mode="full", method=method, coloring=coloring, ops={**gc.OPS, ("", "Square"): SQUARE})
    assert (found.status, found.code, found.entries["failed"]) == ("fail", "GC105", 15)
    assert {(entry.x[1], (entry.x[0] - entry.y[0]) % 3) for entry in found.worst} == {(i, 1) for i in range(5)}
    assert "15 of 15 wrong entries are zero by the structure of the model: y does not depend on x there" in found.notes


def test_a_failure_where_y_depends_on_x_has_the_code_of_a_wrong_gradient() -> None:
    tested, rule = model(("Square", "x", "y"), x=(3, 5)), replace(SQUARE, vjp=lambda ct, y, x: (ct * x,))
    assert check(tested, mode="full", ops={**gc.OPS, ("", "Square"): rule}).code == "GC101"


@pytest.mark.parametrize("method", METHODS)
def test_a_word_that_says_too_little_is_found_out_and_changes_no_verdict(method: Method) -> None:
    tested = model(("Softmax", "x", "s"), ("Sin", "s", "y"), x=(20, 20))
    wrong = {**gc.OPS, ("", "Softmax"): replace(gc.OPS["", "Softmax"], sparsity=same_place)}
    believed, told = (check(tested, mode="full", method=method, ops=ops) for ops in (wrong, gc.OPS))
    assert (believed.status, believed.entries) == (told.status, told.entries)
    assert (believed.coloring, told.coloring) == ({}, {"rows": 400, "colors": 20})
    assert (
        "entries that were perturbed together do not add up, so each was perturbed alone: "
        "an operator reads more than its sparsity rule says" in (believed.notes)
    )


def test_a_missing_entry_is_seen_though_both_sides_miss_it() -> None:
    """A rule without its sum term, and a word that leaves out what that is about: groups alone would agree with it."""
    rule = replace(gc.OPS["", "Softmax"], sparsity=same_place, vjp=lambda ct, y, x, axis: (ct * y * (1.0 - y),))
    tested = model(("Softmax", "x", "y"), x=(24, 24))
    assert check(tested, mode="full", ops={**gc.OPS, ("", "Softmax"): rule}).status == "fail"


@pytest.mark.parametrize("where", ["a branch", "a tie"])
def test_rows_at_kinks_are_told_from_others_of_their_group(where: str) -> None:
    x = np.linspace(0.5, 1.5, 576).reshape(24, 24)
    x[3, ::7] = 0.0 if where == "a tie" else 1e-9
    tested = model(("Relu", "x", "r"), ("Exp", "r", "y"), x=(24, 24))
    for method in METHODS:
        together, alone = (check(tested, x, mode="full", method=method, coloring=c) for c in (True, False))
        assert (together.status, together.entries) == (alone.status, alone.entries)
        assert {*together.notes} == {*alone.notes}


@pytest.mark.parametrize("tied", [False, True])
def test_what_a_comparison_reads_counts_too(tied: bool) -> None:
    """Two reals that a comparison holds against each other have no slope here; moved together they would never cross."""
    column = {name: np.array(at) for name, at in (("a0", [0]), ("a1", [1]), ("a2", [2]), ("end", [30]), ("one", [1]))}
    parts = [("Slice", f"x {start} {end} one", out)
             for start, end, out in (("a0", "a1", "a"), ("a1", "a2", "b"), ("a2", "end", "d"))]  # fmt: skip
    chosen = ("Greater", "a b", "c"), ("Sin", "d", "s"), ("Cos", "d", "t"), ("Where", "c s t", "y")
    x = np.random.default_rng(0).uniform(0.5, 1.0, (20, 22))
    x[4, 1] = x[4, 0] if tied else x[4, 1]
    tested = model(*parts, *chosen, x=x.shape, constants=column)
    for method in METHODS:
        together, alone = (check(tested, x, mode="full", method=method, coloring=c) for c in (True, False))
        assert together.coloring == {"rows": 440, "colors": 3}
        assert (together.status, together.entries) == (alone.status, alone.entries)
        assert (together.entries["inconclusive"] > 0) == tied or method in ("central", "forward")


EMBEDDING = model(
    ("Transpose", "x", "t", {"perm": (1, 0)}), ("Gather", "t i", "g", {"axis": 1}), ("Sin", "g", "s"),
    ("MatMul", "s w", "y"), x=(90, 8), constants={"i": np.array([0, 89, 7, -1]), "w": UP[:4, :3]},
)  # fmt: skip


def test_rows_that_no_index_takes_are_not_probed() -> None:
    found = check(EMBEDDING, mode="full")
    assert (found.status, found.entries["total"]) == ("pass", 90 * 8 * 8 * 3)
    assert found.evaluations["complex"] <= 3 * 8 + 4


def test_a_gradient_in_a_row_that_no_index_takes_fails() -> None:
    right = gc.OPS["", "Gather"]
    assert right.vjp is not None
    wrong = replace(right, vjp=lambda ct, ans, x, i, **how: (right.vjp(ct, ans, x, i, **how)[0] + x * 1e-3, None))
    assert check(EMBEDDING, mode="full", ops={**gc.OPS, ("", "Gather"): wrong}).status == "fail"


def test_a_kernel_of_others_by_the_name_of_a_selection_is_probed_throughout() -> None:
    own = replace(gc.OPS["", "Gather"], forward=lambda x, i, *, axis: x.sum() + np.take(x, i.astype(int), axis))
    found = check(EMBEDDING, mode="full", ops={**gc.OPS, ("", "Gather"): own})
    assert found.status == "fail"
