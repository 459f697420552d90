"""Pictures lose no wrong entry, parts add up to the whole, and curves have the form of a V."""

from __future__ import annotations

import json
import math
from itertools import product
from typing import Any

import numpy as np
import pytest

from gradcheck_cli.checks.sketch import seen
from gradcheck_cli.compare.counts import PairResult
from gradcheck_cli.jacobian.directions import Directions
from gradcheck_cli.results.measures import Curve
from gradcheck_cli.results.picture import (
    HIGHEST,
    LOWEST,
    PANES,
    PER_DECADE,
    SIDE,
    SMALL_SIDE,
    Histogram,
    Picture,
    Standing,
    Tile,
    severity,
    shrunk,
    size_of,
    standing_of,
)
from gradcheck_cli.results.record import strict
from gradcheck_cli.results.typed import reader
from gradcheck_cli.verdict.rule import Comparison, Ground, Status, ground_of, largest_by_column
from tests.checking.small import between, check, model, scaled, with_rule

EPS = np.finfo(float).eps
SHAPES = {  # of x, of y
    "small": ((3,), (2,)),
    "one entry": ((), ()),
    "wide": ((4,), (3000,)),
    "tall": ((3000,), (4,)),
    "both large": ((257,), (600,)),
    "images": ((2, 3, 8, 8), ()),
    "many images": ((5, 7, 9, 3), (1,)),
    "large images": ((1, 2, 300, 200), ()),
    "a vector by a scalar": ((), (700,)),
    "images by a scalar": ((1,), (20, 40, 50)),
}
CASES = {**{name: (*shapes, float) for name, shapes in SHAPES.items()}, "complex": ((3, 4), (5,), complex),
         "complex images": ((4, 6, 6), (), complex)}  # fmt: skip


def compared(x: Any, y: Any, kind: type = float, seed: int = 0, *, of_x: Any = None, of_y: Any = None) -> PairResult:
    """A made-up comparison of every entry, or of those of some rows and columns."""
    tensors = np.zeros(x, kind), np.zeros(y, float)
    rows, columns = (t.size * (2 if t.dtype.kind == "c" else 1) for t in tensors)
    rng = np.random.default_rng(seed)
    theoretical = rng.normal(size=(rows, columns)) * 10.0 ** rng.integers(-3, 3, (rows, columns))
    numerical = theoretical * (1 + 10.0 ** rng.uniform(-19, 1, (rows, columns)))
    status = rng.choice([s for s in Status if s != Status.LEFT_OUT], (rows, columns)).astype(np.int8)
    noise = np.abs(theoretical) * 10.0 ** rng.uniform(-18, -8, (rows, columns))
    if of_x is None:
        return PairResult(Comparison(theoretical, numerical, noise, status), "richardson", *tensors)
    part = Comparison(*(each[np.ix_(of_x, of_y)] for each in (theoretical, numerical, noise, status)))
    seeds = np.zeros((len(of_y), columns))
    seeds[np.arange(len(of_y)), of_y] = 1
    along = Directions(tensors[0], of_x)
    return PairResult(part, "richardson", *tensors, directions=along, weights=seeds, drawn=True)


def picture(result: PairResult, ground: Any = None) -> Picture:
    comparison = result.comparison
    if ground is None:
        ground = ground_of(comparison.theoretical, comparison.numerical)
    return seen(result, ground)[0]


def with_one_wrong(x: Any, y: Any, row: int, column: int) -> PairResult:
    """All entries are right but one."""
    result = compared(x, y)
    theoretical = np.random.default_rng(2).uniform(1, 2, result.comparison.status.shape)
    numerical, status = theoretical.copy(), np.zeros(theoretical.shape, np.int8)
    numerical[row, column] *= 1.001
    status[row, column] = Status.FAIL
    comparison = Comparison(theoretical, numerical, np.zeros(theoretical.shape), status)
    return PairResult(comparison, "complex-step", result.x, result.y)


@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES)
def test_a_single_wrong_entry_stays_visible_whatever_the_reduction(shapes: Any):
    rng = np.random.default_rng(1)
    rows, columns = (int(np.prod(shape)) for shape in shapes)
    for row, column in {(0, 0), (rows - 1, columns - 1), (int(rng.integers(rows)), int(rng.integers(columns)))}:
        tile = picture(with_one_wrong(*shapes, row, column)).tile
        for cells in (tile.cells, *(shrunk(tile.cells, [most] * tile.cells.ndim) for most in (128, 32, 5, 1))):
            assert (standing_of(cells) == Standing.FAIL).sum() == 1
            assert size_of(cells[standing_of(cells) == Standing.FAIL])[0] == pytest.approx(-3, abs=0.01)


def test_a_tile_is_bounded_and_each_cell_is_the_worst_of_its_entries():
    for x, y, kind in CASES.values():
        result = compared(x, y, kind)
        tile, comparison = picture(result).tile, result.comparison
        assert tile.cells.size <= SIDE**2
        assert len(tile.cells) <= (PANES if len(tile.sizes) == 3 else SIDE)
        assert tile.small.cells.size <= SMALL_SIDE**2
        assert len(tile.sizes) != 3 or len(tile.small.cells) == len(tile.cells)
        if math.prod(tile.sizes) > 4000:
            continue
        fails = (comparison.status == Status.FAIL).reshape(tile.sizes)
        for cell in product(*map(range, tile.cells.shape)):
            box = tuple(
                slice(math.ceil(i * size / count), math.ceil((i + 1) * size / count))
                for i, size, count in zip(cell, tile.sizes, tile.cells.shape, strict=True)
            )
            assert (standing_of(tile.cells[cell]) == Standing.FAIL) == fails[box].any()


@pytest.mark.one_in(6)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_pictures_of_parts_add_up_to_that_of_the_whole(case: Any):
    result = compared(*case)
    comparison = result.comparison
    largest, whole = largest_by_column(comparison.theoretical, comparison.numerical), picture(result)
    rows, columns = (np.arange(size) for size in comparison.status.shape)
    parts = [
        picture(compared(*case, of_x=some, of_y=others), Ground(largest[others]))
        for some in np.array_split(rows, min(3, len(rows)))
        for others in np.array_split(columns, min(2, len(columns)))
    ]
    merged = parts[0]
    for part in parts[1:]:
        merged = merged.merged(part)
    assert np.array_equal(merged.tile.cells, whole.tile.cells)
    assert np.array_equal(merged.errors.counts, whole.errors.counts)
    assert np.array_equal(merged.noise.counts, whole.noise.counts)


def test_merging_in_any_order_gives_the_same():
    a, b, c = (picture(compared((40,), (30,), seed=seed)) for seed in range(3))
    for one, other in ((a.merged(b).merged(c), a.merged(b.merged(c))), (a.merged(b), b.merged(a))):
        assert np.array_equal(one.tile.cells, other.tile.cells)
        assert np.array_equal(one.errors.counts, other.errors.counts)


def test_of_different_jacobians_the_worse_tile_stays():
    right = Tile("both", (2, 2), np.full((2, 2), -15.0))
    wrong = Tile("both", (3, 2), severity(np.full((3, 2), Standing.FAIL), np.full((3, 2), 0.5)))
    assert right.merged(wrong) is wrong
    assert wrong.merged(right) is wrong


def test_a_histogram_counts_every_entry_once_in_its_slot():
    error = np.asarray([0.0, 1e-30, 3e-16, 1.1e-7, 0.5, 1e5, np.inf, np.nan])
    standing = np.asarray([0, 0, 0, 0, 3, 3, 3, 3])
    counts = Histogram.of(standing, error).counts
    assert counts.sum(axis=1).tolist() == [4, 0, 0, 4]
    assert counts[0, 0] == 2
    assert counts[3, -1] == 3
    slot = 1 + math.floor((math.log10(0.5) - LOWEST) * PER_DECADE)
    assert counts[3, slot] == 1
    assert Histogram.SLOTS == (HIGHEST - LOWEST) * PER_DECADE + 2


def test_what_was_not_compared_is_in_no_histogram_and_no_cell():
    result = compared((4,), (3,))
    result.comparison.status[:, 1] = Status.LEFT_OUT
    found = picture(result)
    assert found.errors.counts.sum() == 8
    assert (standing_of(found.tile.cells) == -1).sum(axis=0).tolist() == [0, 4, 0]


def test_a_picture_goes_through_strict_json_and_back():
    found = check(between("Tanh"), pictures=True).picture
    again = Picture.from_json(json.loads(json.dumps(strict(found.as_json()), allow_nan=False)))
    assert np.allclose(again.tile.cells, found.tile.cells, atol=0.01)
    assert np.array_equal(again.errors.counts, found.errors.counts)
    assert again.curve == found.curve
    assert reader(Curve)({**strict(found.as_json()["curve"]), "errors": ["nan", 1.0]}).errors[1] == 1.0


def test_nothing_is_kept_unless_asked_for_and_none_of_it_is_in_the_record():
    assert check(between("Tanh")).picture is None
    record = check(between("Tanh"), pictures=True).as_json()
    assert "picture" not in record
    with pytest.raises(ValueError, match="pictures"):
        check(between("Tanh"), pictures="yes")


SMOOTH = {"Tanh": (), "Exp": (), "Sigmoid": (), "Cos": (), "Softmax": (), "Atan": ()}


@pytest.mark.parametrize("op", SMOOTH)
def test_the_bottom_of_a_smooth_curve_is_near_the_cube_root_of_the_unit(op: str):
    x = np.asarray([0.7, -0.4, 1.1, 0.9])
    curve = check(between(op), x, pictures=True).picture.curve
    steps, errors = np.asarray(curve.steps), np.asarray(curve.errors)
    scale = np.sqrt(np.mean(x**2))
    assert 1 / 50 < steps[np.argmin(errors)] / (scale * EPS ** (1 / 3)) < 50
    assert curve.truncation is not None
    constant, order = curve.truncation
    assert order == pytest.approx(2, abs=0.1)
    coarse = steps > 1e-3 * scale
    assert np.allclose(errors[coarse], constant * steps[coarse] ** order, rtol=0.5)


@pytest.mark.parametrize("op", [*SMOOTH, "Relu", "Abs"])
def test_rounding_bounds_the_errors_of_small_steps(op: str):
    curve = check(between(op), [0.7, -0.4, 1.1, 0.9], pictures=True).picture.curve
    steps, errors = np.asarray(curve.steps), np.asarray(curve.errors)
    small = steps < 1e-7
    assert small.sum() > 10
    assert (errors[small] <= 1.2 * curve.rounding / steps[small] + curve.doubt).all()


def test_a_linear_function_has_no_truncation():
    curve = check(model(("Neg", "x", "y")), pictures=True).picture.curve
    assert curve.truncation is None


def test_steps_across_a_branch_are_marked_and_no_others():
    rule = with_rule("Relu", scaled("Relu", np.asarray([2.0, 1.0])))
    curve = check(model(("Relu", "x", "y"), x=(2,)), [0.01, 1.0], pictures=True, ops=rule).picture.curve
    assert curve.x == (0,)
    assert curve.crossed == tuple(step > 0.01 for step in curve.steps)
    assert any(curve.crossed)


def test_the_curve_of_a_failure_is_that_of_the_first_entry_of_the_table():
    record = check(between("Tanh"), pictures=True, ops=with_rule("Tanh", scaled("Tanh", np.asarray([1, 1, 2.0, 1]))))
    curve = record.picture.curve
    assert (curve.x, curve.y) == (record.worst[0].x, record.worst[0].y) == ((2,), (2,))
    assert abs(curve.theoretical - curve.reference) == pytest.approx(abs(curve.reference))
    assert curve.allowed < 1e-5 * abs(curve.reference)
    assert min(curve.errors) < 1e-6 * abs(curve.reference)


@pytest.mark.parametrize("mode", ["full", "directional", "sampled", "nodes"])
def test_every_mode_gives_a_picture_of_what_it_compared(mode: str):
    record = check(between("Tanh", x=(5, 6)), pictures=True, mode=mode, max_entries=40)
    found = record.picture
    assert found.curve is not None
    assert min(found.curve.errors) < 1e-7
    assert (standing_of(found.tile.cells) == Standing.PASS).any()
    if mode in ("full", "sampled"):
        assert found.tile.sizes == (30, 30)
        assert found.errors.counts.sum() == record.entries["checked"]


def test_drawn_entries_stand_where_they_belong():
    rule = scaled("Tanh", np.where(np.arange(30).reshape(5, 6) < 12, 2.0, 1.0))
    found = check(between("Tanh", x=(5, 6)), pictures=True, mode="sampled", max_entries=400,
                  ops=with_rule("Tanh", rule)).picture  # fmt: skip
    rows, columns = np.nonzero(standing_of(found.tile.cells) == Standing.FAIL)
    assert len(rows)
    assert (rows == columns).all()
    assert (rows < 12).all()


def test_points_are_put_together():
    one, three = (check(between("Tanh"), pictures=True, points=points).picture for points in (1, 3))
    assert three.errors.counts.sum() == 3 * one.errors.counts.sum()


def test_a_complex_tensor_has_parts():
    found = check(model(("Mul", "x x", "y"), dtype=np.complex128), pictures=True).picture
    assert found.tile.sizes == (8, 8)
    assert found.curve.part in {f"{a} x, {b} y" for a in ("re", "im") for b in ("re", "im")}


def test_an_empty_tensor_has_no_picture():
    assert check(between("Tanh", x=(0,)), pictures=True).picture is None


def test_an_entry_without_central_differences_has_a_picture_without_curve():
    found = check(model(("Sqrt", "x", "y"), x=(1,)), [0.0], pictures=True).picture
    assert standing_of(found.tile.cells) == [[Standing.OPEN]]
    assert found.curve is None
