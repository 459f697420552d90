"""Jacobians in compressed form: the verdict, the figures and the picture of the whole ones, entry by entry."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

import gradcheck_cli as gc
from gradcheck_cli.autodiff.trace import trace
from gradcheck_cli.checks.estimates import FREE
from gradcheck_cli.checks.sketch import sketch
from gradcheck_cli.compare.counts import counts_of, entry_at
from gradcheck_cli.compare.pair import Full, PairJob, PairResult, Theory
from gradcheck_cli.engine.chunks import Budget
from gradcheck_cli.engine.program import Program
from gradcheck_cli.errors import UsageError
from gradcheck_cli.graph import Array
from gradcheck_cli.jacobian.coloring import Structure
from gradcheck_cli.op import Op
from gradcheck_cli.settings import Method
from gradcheck_cli.verdict.rule import Comparison, Nonzeros, Status, Tolerance, apart, cells_of, worst
from tests.checking.small import check, model, scaled, with_rule
from tests.checking.test_coloring import METHODS, MODELS, SQUARE, every_operator, programs, theoretical

RNG = np.random.default_rng(5)


def cells_in(program: Program) -> Nonzeros | None:
    coloring = Structure(program, Budget()).coloring
    return None if coloring is None else coloring.cells


def compared(program: Program, values: Array, cells: Nonzeros | None, method: Method = "auto") -> PairResult:
    """The comparison with a theoretical side, compressed where it has cells."""
    spread = 1e-16 * np.abs(values)
    kept = (values, spread) if cells is None else (cells.kept(values), cells.kept(spread))
    theory = Theory(kept[0], lambda: kept[1], cells=cells)
    with np.errstate(all="ignore"):
        return Full([theory], [Structure(program, Budget())]).compare(
            program, 0, PairJob(method, None, Tolerance(), Budget())
        )


def assert_same(short: PairResult, long: PairResult) -> None:
    """Both forms say the same: entries, slopes, counts, the worst entries, notes."""
    mine, theirs = short.comparison.whole(), long.comparison
    assert mine.shape == short.comparison.shape == theirs.shape
    for name in ("theoretical", "numerical", "status"):
        np.testing.assert_array_equal(getattr(mine, name), getattr(theirs, name), name)
    assert_same_bounds(short.comparison, theirs)
    assert mine.slopes.keys() == theirs.slopes.keys()
    for row, slopes in mine.slopes.items():
        np.testing.assert_array_equal(slopes, theirs.slopes[row])
    counts, expected = counts_of(short), counts_of(long)
    for name in ("gradient", "errors", "needed"):  # sums in another order
        np.testing.assert_allclose(getattr(counts, name), getattr(expected, name), rtol=1e-13)
    known = {
        "gradient": expected.gradient,
        "errors": expected.errors,
        "needed": expected.needed,
        "noise": expected.noise,
    }
    assert repr(replace(counts, **known)) == repr(expected)  # in which NaN is NaN


def assert_same_bounds(short: Comparison, long: Comparison) -> None:
    """Bounds are the same; of zeros by structure in rows that were looked at longer the whole form knows more."""
    bounds = np.broadcast_to(long.noise, long.shape)
    kept = bounds if short.cells is None else short.cells.kept(bounds)
    mine = short.noise if short.cells is None else short.cells.cleared(short.noise)
    np.testing.assert_array_equal(mine, kept)
    assert (short.whole().noise >= bounds).all()


def values_for(right: Array, cells: Nonzeros) -> Iterator[Array]:
    """The theoretical side as it is, wrong in some entries, not finite in some, and zero."""
    rng = np.random.default_rng(len(right))
    inside = cells.whole(np.ones(cells.columns.shape)) > 0
    some = (rng.random(right.shape) < 0.2) & inside
    yield right
    yield np.where(some, right * 1.001 + 1e-3, right)
    yield np.where(some & (rng.random(right.shape) < 0.1), np.nan, right)
    yield 0 * right


@pytest.mark.one_in(24)
@every_operator
def test_both_forms_say_the_same_of_every_operator(op: Op) -> None:
    with np.errstate(all="ignore"):
        for program in islice(programs(op), 2):
            cells, right = cells_in(program), theoretical(program)
            if cells is None or right is None or (cells.whole(cells.kept(right)) != right).any():
                continue
            for values in values_for(right, cells):
                method = METHODS[len(op.name) % len(METHODS)]
                assert_same(compared(program, values, cells, method), compared(program, values, None, method))


COMPRESSED = [name for name in MODELS if name not in ("layer norm", "rows gathered", "conv batch")]
LARGE = dict.fromkeys(("elementwise", "conv"), pytest.mark.slow)


@pytest.mark.parametrize("name", [pytest.param(name, marks=LARGE.get(name, ())) for name in COMPRESSED])
def test_both_forms_say_the_same_of_a_model(name: str) -> None:
    tested = MODELS[name][0]
    x = RNG.normal(size=[int(size) for size in tested.graph.types["x"].shape or ()])
    program = program_of(tested, x)
    cells, right = cells_in(program), theoretical(program)
    assert cells is not None
    assert right is not None
    for values in values_for(right, cells):
        assert_same(compared(program, values, cells), compared(program, values, None))


def program_of(tested: gc.Model, x: Array) -> Program:
    tape = trace(tested.graph, {"x": x}, ops=gc.OPS)
    return Program(tape, [tape.named["x"].name], [tape.named[tested.graph.outputs[0]].name])


FILTER = RNG.normal(size=(2, 2, 3, 3))
SAME = {"pads": (1, 1, 1, 1)}
KINKED = model(("Conv", "x w", "c", SAME), ("Relu", "c", "r"), ("MaxPool", "r", "y", {"kernel_shape": (2, 2)}),
               x=(1, 2, 12, 12), constants={"w": FILTER})  # fmt: skip
POINTS: dict[str, Array] = {
    "smooth": RNG.normal(size=(1, 2, 12, 12)),
    "tied": np.where(RNG.random((1, 2, 12, 12)) < 0.8, RNG.normal(size=(1, 2, 12, 12)), 0.0),
    "flat": np.zeros((1, 2, 12, 12)),
    "of many scales": RNG.normal(size=(1, 2, 12, 12)) * 10.0 ** RNG.integers(-9, 9, (1, 2, 12, 12)),
}


@pytest.mark.parametrize("point", POINTS)
def test_both_forms_say_the_same_at_kinks_and_on_scales_far_apart(point: str) -> None:
    program = program_of(KINKED, POINTS[point])
    cells, right = cells_in(program), theoretical(program)
    assert cells is not None
    assert right is not None
    for values in values_for(right, cells):
        short, long = compared(program, values, cells), compared(program, values, None)
        assert short.comparison.cells is not None
        assert_same(short, long)
        assert_same_picture(program, short, long)


def assert_same_picture(program: Program, short: PairResult, long: PairResult) -> None:
    with np.errstate(all="ignore"):
        mine, theirs = (sketch(each, program, Tolerance(), Budget()) for each in (short, long))
    np.testing.assert_array_equal(mine.tile.cells, theirs.tile.cells)
    for name in ("errors", "noise"):
        np.testing.assert_array_equal(getattr(mine, name).counts, getattr(theirs, name).counts)
    assert repr(mine.curve) == repr(theirs.curve)  # in which NaN is NaN


CHAIN = ("Conv", "x w", "c", SAME), ("Tanh", "c", "t"), ("Conv", "t w", "y", SAME)
CONVS = model(*CHAIN, x=(1, 2, 12, 12), constants={"w": FILTER})
WRONG = {"a factor": scaled("Tanh", 1.001), "a sign": scaled("Tanh", -1.0), "nothing": scaled("Tanh", 0.0),
         "not a number": scaled("Tanh", np.nan)}  # fmt: skip
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {}, "in the model's dtype": {"dtype": "model"}, "tolerances": {"rtol": 1e-2, "atol": 1e-3},
    "real differences": {"method": "richardson"},
}  # fmt: skip


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("rule", [None, *WRONG])
def test_a_record_is_the_same_without_groups(rule: str | None, options: dict[str, Any]) -> None:
    ops = gc.OPS if rule is None else with_rule("Tanh", WRONG[rule])
    short, long = (check(CONVS, mode="full", ops=ops, coloring=coloring, **options) for coloring in (True, False))
    assert short.coloring
    assert (short.status, short.code, short.entries) == (long.status, long.code, long.entries)
    assert [(e.x, e.y, e.status, e.pattern) for e in short.worst[:20]] == [
        (e.x, e.y, e.status, e.pattern) for e in long.worst[:20]
    ]
    for name in ("norm", "max", "zero_fraction"):
        assert short.gradient[name] == pytest.approx(long.gradient[name], rel=1e-9)
    assert (short.suspect and short.suspect.node) == (long.suspect and long.suspect.node)


def test_cells_are_the_entries_of_a_pattern() -> None:
    pattern = RNG.random((7, 40)) < 0.1
    pattern[3] = False
    cells, dense = cells_of(*np.nonzero(pattern), pattern.shape), np.where(pattern, RNG.normal(size=(7, 40)), 0.0)
    kept = cells.kept(dense)
    assert cells.shape == (7, 40)
    assert cells.count == pattern.sum()
    np.testing.assert_array_equal(cells.whole(kept), dense)
    np.testing.assert_array_equal(cells.filled(dense[pattern]), kept)
    np.testing.assert_allclose(cells.summed(kept), dense.sum(axis=0), rtol=1e-15, atol=1e-15)
    np.testing.assert_array_equal(cells.most(np.abs(kept)), np.abs(dense).max(axis=0))
    np.testing.assert_array_equal(cells.of(slice(2, 5)).whole(kept[2:5]), dense[2:5])
    for row, column in np.ndindex(pattern.shape):
        assert (cells.place(row, column) is not None) == pattern[row, column]


def test_entries_that_no_cell_holds_are_checked_and_pass() -> None:
    cells = cells_of(np.array([0, 1, 1]), np.array([2, 0, 30]), (2, 32))
    theory, right = np.array([[3.0, 0.0], [1.0, 2.0]]), np.array([[3.0, 0.0], [1.0, 4.0]])
    status = np.array([[0, 0], [0, Status.FAIL]], np.int8)
    found = Comparison(theory, right, 0 * right, status, cells=cells)
    assert (found.size, found.count(Status.PASS), found.count(Status.FAIL)) == (64, 63, 1)
    assert worst(found) == [(1, 30)]
    assert (found.at(1, 30).status, found.at(1, 30).numerical) == (Status.FAIL, 4.0)
    assert (found.at(0, 5).status, found.at(0, 5).theoretical) == (Status.PASS, 0.0)
    v, u = np.array([1.0, 2.0]), np.arange(32.0)
    assert apart(found, v, u) == apart(found.whole(), v, u) == 2 * 2 * 30
    result = PairResult(found, "auto", np.zeros(2), np.zeros(32))
    assert entry_at(result, 1, 30).pattern == "x 0.5"
    assert counts_of(result).gradient.zeros == 61


FILTERS = RNG.normal(size=(3, 3, 3, 3))
IMAGES = model(("Conv", "x w", "c", SAME), ("Tanh", "c", "t"), ("Conv", "t w", "y", SAME), x=(1, 3, 64, 64),
               constants={"w": FILTERS})  # fmt: skip


def test_a_sparse_jacobian_is_compared_in_full_where_all_of_its_entries_would_not_fit() -> None:
    found = check(IMAGES, memory_limit=FREE)
    every = 12288**2
    assert 8 * every > 4 * FREE
    assert (found.mode, found.status, found.entries["total"], found.entries["checked"]) == (
        "full",
        "pass",
        every,
        every,
    )
    assert found.gradient["zero_fraction"] > 0.99


def test_the_cost_of_a_sparse_jacobian_is_that_of_its_entries() -> None:
    assert check(IMAGES, mode="full", memory_limit=FREE).status == "pass"
    with pytest.raises(UsageError, match=r"has 1\.5e8 entries"):
        gc.check(IMAGES, mode="full", memory_limit=FREE, method="richardson")  # differences bound zeros as well


STRAY = model(("Square", "x", "y"), x=(128, 128))
STRAYING = {**gc.OPS, ("", "Square"): SQUARE}


def test_a_rule_that_leaves_the_structure_is_found_node_by_node_where_all_entries_do_not_fit() -> None:
    found = check(STRAY, memory_limit=FREE, ops=STRAYING)
    assert (found.mode, found.status) == ("nodes", "fail")
    assert found.suspect is not None
    assert found.suspect.op == "Square"


def test_a_rule_that_leaves_the_structure_has_an_error_in_full_mode_where_all_entries_do_not_fit() -> None:
    [found] = gc.check(STRAY, mode="full", memory_limit=FREE, ops=STRAYING).checks
    assert (found.status, found.code) == ("limit", "GC602")
    assert "all entries take" in found.message


def test_a_hessian_is_held_against_its_transpose_in_either_form() -> None:
    pattern = RNG.random((40, 40)) < 0.04
    pattern |= np.eye(40, dtype=bool)
    cells = cells_of(*np.nonzero(pattern), pattern.shape)
    dense = np.where(pattern, RNG.normal(size=(40, 40)), 0.0)
    assert not (pattern == pattern.T).all()
    np.testing.assert_array_equal(cells.mirrored(cells.kept(dense)), cells.kept(dense.T))
