"""Figures of whole Jacobians, computed in pieces: what a plain loop over all entries gives."""

from __future__ import annotations

import numpy as np
import pytest

from gradcheck_cli.jacobian.directions import Directions
from gradcheck_cli.verdict import agreement
from gradcheck_cli.verdict import rule as verdict
from gradcheck_cli.verdict.differences import Estimate, richardson, rms
from gradcheck_cli.verdict.rule import Comparison, Status, Tolerance

SHAPES = [(300, 1000), (70_000, 3), (1, 90_000), (5, 7), (0, 4), (4, 0)]
NAN, INF = np.nan, np.inf
ODD = [np.nan, np.inf, -np.inf, 0.0, 1e-320, 1e300]
pieces = pytest.mark.parametrize("shape", SHAPES, ids=str)


def jacobians(shape: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Two Jacobians that differ here and there, with odd numbers among them."""
    rng = np.random.default_rng(shape)
    theoretical = rng.normal(size=shape) * 10.0 ** rng.integers(-20, 3, shape)
    numerical = theoretical * np.where(rng.random(shape) < 0.01, 1.5, 1.0)
    for each in (theoretical, numerical):
        each[rng.random(shape) < 0.01] = rng.choice(ODD)
    return theoretical, numerical


def compared(shape: tuple[int, int]) -> Comparison:
    theoretical, numerical = jacobians(shape)
    status = np.random.default_rng(1).choice(np.asarray(Status, np.int8), shape, p=[0.9] + [0.1 / 9] * 9)
    return Comparison(theoretical, numerical, np.zeros(shape), status)


@pieces
def test_the_worst_entries_are_the_first_of_all_in_order(shape: tuple[int, int]) -> None:
    comparison = compared(shape)
    with np.errstate(invalid="ignore"):
        gap = np.abs(comparison.theoretical - comparison.numerical)
    rank = {Status.FAIL: 0, Status.KINK_OK: 2}
    entries = [(int(i), int(j)) for i, j in np.argwhere(~np.isin(comparison.status, (Status.PASS, Status.LEFT_OUT)))]
    expected = sorted(entries, key=lambda at: (rank.get(Status(int(comparison.status[at])), 1),
                                               -np.nan_to_num(gap[at], nan=np.inf, posinf=np.inf), at))  # fmt: skip
    assert verdict.worst(comparison) == expected
    assert verdict.worst(comparison, 10) == expected[:10]


@pieces
def test_what_tolerances_would_do_is_that_of_the_failed_entries(shape: tuple[int, int]) -> None:
    comparison = compared(shape)
    with np.errstate(all="ignore"):
        gap = np.abs(comparison.theoretical - comparison.numerical)
        size = np.maximum(np.abs(comparison.theoretical), np.abs(comparison.numerical))
        failed = (comparison.status == Status.FAIL) & np.isfinite(gap)
        expected = max((gap / size)[failed], default=0.0), max(gap[failed], default=0.0)
    np.testing.assert_allclose(verdict.needed(comparison), expected)


@pieces
def test_errors_are_the_largest_of_all(shape: tuple[int, int]) -> None:
    comparison = compared(shape)
    comparison.numerical[...] = np.where(np.isfinite(comparison.numerical), comparison.numerical, 1.0)
    comparison.theoretical[...] = np.where(np.isfinite(comparison.theoretical), comparison.theoretical, 2.0)
    gap = np.abs(comparison.theoretical - comparison.numerical)
    size = np.maximum(np.abs(comparison.theoretical), np.abs(comparison.numerical))
    ground = np.maximum(size, verdict.GROUND * np.max(size, axis=0, initial=0.0))
    relative = np.divide(gap, ground, out=np.zeros(shape), where=gap > 0)
    expected = np.max(gap, initial=0.0), np.max(relative, initial=0.0)
    np.testing.assert_allclose(verdict.errors(comparison), expected)


@pytest.mark.parametrize("tolerance", [Tolerance(), Tolerance(0.0, 0.0), Tolerance(1e-3, 1e-6)], ids=str)
@pieces
@pytest.mark.parametrize("error", [1e-15, 1e-7])
def test_entries_pass_whose_difference_is_allowed(shape: tuple[int, int], tolerance: Tolerance, error: float) -> None:
    """Beside eight times the error of the numerical side, relative to the entry."""
    theoretical, numerical = jacobians(shape)
    numerical *= 1 + 10.0 ** np.random.default_rng(3).uniform(-16, -5, shape)
    status = verdict.screened(theoretical, numerical, error, tolerance)
    with np.errstate(invalid="ignore"):
        finite = np.isfinite(theoretical - numerical)
        size = np.where(finite, np.maximum(np.abs(theoretical), np.abs(numerical)), 0.0)
        largest = verdict.largest_by_column(theoretical, numerical)
        excess = np.abs(theoretical - numerical) + (8 * error + 64 * verdict.UNIT) * size
        allow = tolerance.rtol * size + tolerance.negligible * largest + tolerance.atol
        clear = ~finite | (np.abs(excess - allow) > 1e-14 * (excess + allow))
    expected = np.where(finite & (excess <= allow), Status.PASS, Status.NOISE)
    assert (status == expected)[clear].all()


@pytest.mark.parametrize("tolerance", [Tolerance(0.0, 0.0, 0.0), Tolerance(), Tolerance(1e-3, 1e-6)], ids=str)
def test_nothing_passes_or_fails_within_eight_times_the_error_of_the_numerical_side(tolerance: Tolerance) -> None:
    """Differences of all sizes around the allowance and the error; what lies between them stays open."""
    rng, shape = np.random.default_rng(4), (60, 40)
    numerical = rng.normal(size=shape) * 10.0 ** rng.integers(-3, 3, shape)
    error = np.abs(numerical) * 10.0 ** rng.integers(-12, -2, shape)
    largest = np.max(np.abs(numerical), axis=0)
    gap = rng.choice([-1.0, 1.0], shape) * 1.5 * np.exp2(rng.integers(-3, 8, shape))
    theoretical = numerical + gap * np.where(rng.random(shape) < 0.5, error, verdict.allowance(1.0, largest, tolerance))
    rounding = error * rng.choice([0.2, 1.0], shape)
    status = verdict.judge(theoretical, Estimate(numerical, error, rounding), largest, np.zeros(shape), tolerance)
    for t, d, e, r, most, found in zip(*map(np.ravel, (theoretical, numerical, error, rounding)),
                                       np.tile(largest, len(status)), status.ravel(), strict=True):  # fmt: skip
        size = max(abs(t), abs(d))
        allowed = tolerance.rtol * size + tolerance.negligible * most + tolerance.atol
        unknown = 8 * e + 64 * verdict.UNIT * size
        if abs(abs(t - d) - allowed) > unknown * (1 + 1e-9):
            assert found == (Status.FAIL if abs(t - d) > allowed else Status.PASS)
        elif abs(abs(t - d) - allowed) < unknown * (1 - 1e-9):
            assert found == (Status.CURVATURE if e > 2 * r else Status.NOISE)


@pytest.mark.parametrize(
    ("theoretical", "numerical", "error", "floor", "reach", "status"),
    [
        (0.0, 1e-12, 1e-9, 1e-10, INF, Status.PASS),  # rounding hides it from zero
        (0.0, 1e-12, 1e-9, 1e-10, 1e-8, Status.PASS),
        (0.0, 1e-12, 1e-9, 1e-10, 1e-10, Status.NOISE),  # a zero with a larger error tells nothing
        (0.0, 1e-9, 1e-9, 1e-10, INF, Status.NOISE),
        (1e-300, 3e-300, 1e-310, 0.0, INF, Status.UNDERFLOW),  # either side may have lost digits: no failure
        (1e-200, 3e-200, 1e-210, 0.0, INF, Status.FAIL),
        (NAN, 1.0, 1e-9, 0.0, INF, Status.FAIL),
        (INF, 1.0, 1e-9, 0.0, INF, Status.FAIL),
        (1.0, NAN, NAN, 0.0, INF, Status.DOMAIN),
        (NAN, NAN, NAN, 0.0, INF, Status.DOMAIN),
    ],
)
def test_what_is_nearly_zero_or_not_finite_has_a_verdict_of_its_own(
    theoretical: float, numerical: float, error: float, floor: float, reach: float, status: Status
) -> None:
    t, d, e, low = (np.array([[each]]) for each in (theoretical, numerical, error, floor))
    assert verdict.judge(t, Estimate(d, e, e), np.zeros(1), low, Tolerance(0.0, 0.0, 0.0), reach) == [[status]]


@pytest.mark.parametrize(
    ("right", "beyond", "passed", "status", "are_apart"),
    [
        (1.0 + 1e-7, 5e-8, True, Status.PASS, False),  # no further apart than both errors: no kink
        (1.0 + 1e-7, 5e-8, False, Status.NOISE, False),
        (1.0 + 4e-7, 2e-7, False, Status.KINK_OK, True),
        (1.0 + 4e-7, -2e-7, False, Status.NONDERIVATIVE, True),
        (1.0 + 4e-7, -2e-7, True, Status.NONDERIVATIVE, True),  # right by another estimate, but no slope of either side
    ],
)
def test_slopes_of_both_sides_are_two_only_beyond_their_errors(
    right: float, beyond: float, passed: bool, status: Status, are_apart: bool
) -> None:
    """The left slope is 1; `beyond` it, towards the right one, lies the entry; each may be off by 8e-8."""
    error = np.full((1, 1), 1e-8)
    left, other = (Estimate(np.array([[slope]]), error, error) for slope in (1.0, right))
    ground, none = verdict.ground_of(left.value, other.value), Tolerance(0.0, 0.0, 0.0)
    t, by_another = np.array([[1.0 + beyond]]), np.array([[passed]])
    found, apart = verdict.judge_between(t, left, other, ground, np.zeros((1, 1)), none, by_another)
    assert (found.item(), apart.item()) == (status, are_apart)


@pytest.mark.parametrize(
    ("theoretical", "numerical", "sizes", "said"),
    [
        (0.0, 1.0, (), "missing"),
        (1.0, 0.0, (), "spurious"),
        (1.0, -1.0, (), "sign"),
        (1.0, -1.01, (), ""),
        (-2.0, 1.0, (), ""),
        (2.0, 1.0, (), "x 2"),
        (1.0, 2.0, (), "x 0.5"),
        (1.0, 2.01, (), ""),
        (3.0, 1.0, (), ""),
        (3.0, 1.0, (3,), "x 3"),
        (1.0, 3.0, (3,), "x 0.333"),
        (NAN, 1.0, (), "not finite"),
    ],
)
def test_the_way_in_which_an_entry_is_wrong_has_a_name(
    theoretical: float, numerical: float, sizes: tuple[int, ...], said: str
) -> None:
    assert verdict.pattern(theoretical, numerical, sizes) == said


def test_weighted_differences_add_up() -> None:
    comparison = compared((300, 1000))
    comparison.theoretical[...], comparison.numerical[...] = np.random.default_rng(2).normal(size=(2, 300, 1000))
    v, u = np.arange(300.0), np.linspace(0, 1, 1000)
    expected = v @ np.abs(comparison.theoretical - comparison.numerical) @ u
    np.testing.assert_allclose(verdict.apart(comparison, v, u), expected)


@pytest.mark.parametrize(
    ("one", "other", "gap", "status"),
    [
        (1.0, 1.0, 0.0, Status.PASS),
        (1.0, 1.0 + 1e-4, 1e-4, Status.PASS),
        (1.0, 1.1, 0.1, Status.FAIL),
        (0.0, 0.0, 0.0, Status.PASS),
        (0.0, -0.0, 0.0, Status.PASS),
        (NAN, NAN, 0.0, Status.LEFT_OUT),
        (INF, INF, 0.0, Status.LEFT_OUT),
        (-INF, -INF, 0.0, Status.LEFT_OUT),
        (INF, -INF, INF, Status.FAIL),
        (INF, NAN, INF, Status.FAIL),
        (NAN, 1.0, INF, Status.FAIL),
        (1.0, NAN, INF, Status.FAIL),
        (1.0, INF, INF, Status.FAIL),
    ],
)
def test_numbers_that_should_be_equal_pass_or_fail_or_are_finite_in_neither(
    one: float, other: float, gap: float, status: Status
) -> None:
    a, b = np.array([[one], [1.0]]), np.array([[other], [1.0]])
    np.testing.assert_allclose(agreement.gaps(a, b)[0, 0], gap, rtol=1e-9)
    found = agreement.held(a, b, Tolerance(1e-3, 0.0, negligible=0.0), verdict.ground_of(a, b))
    assert found.status[:, 0].tolist() == [status, Status.PASS]
    assert agreement.agree(a, b, 1e-3) == (status != Status.FAIL)
    assert bool(agreement.difference(a, b, 1e-3)) == (status == Status.FAIL)
    np.testing.assert_allclose(agreement.farthest(a, b, 1.0), (gap, gap), rtol=1e-9)
    np.testing.assert_allclose(verdict.errors(found)[0], gap, rtol=1e-9)


def test_numbers_of_other_shapes_are_nowhere_alike() -> None:
    a, b = np.zeros((2, 3)), np.zeros((3, 2))
    assert not agreement.agree(a, b, INF)
    assert agreement.farthest(a, b, 1.0) == (INF, INF)
    assert agreement.difference(a, b, INF) == "its shape is [2,3] here and [3,2] there"


def test_an_allowance_that_is_not_known_allows_nothing() -> None:
    one, other = np.array([1.0, NAN]), np.array([1.1, NAN])
    assert not agreement.agree(one, other, NAN)
    assert agreement.difference(one, other, NAN).startswith("1 of 2 entries differs, most of all [0]")
    assert agreement.agree(one, one, NAN)


def test_small_entries_count_as_a_share_of_the_largest_if_the_tolerance_says_so() -> None:
    a, b = np.array([[1.0], [1e-6]]), np.array([[1.0], [2e-6]])
    ground = verdict.ground_of(a, b)
    for floor, failed, relative in ((np.inf, 1, 1e-4), (10.0, 0, 1e-5), (1e9, 1, 1e-4)):
        found = agreement.held(a, b, Tolerance(1e-4, 0.0, 0.0, floor), ground)
        assert found.count(Status.FAIL) == failed
        np.testing.assert_allclose(verdict.errors(found)[1], relative, rtol=1e-6)
        assert found.tolerance.floor == floor
        if failed:
            np.testing.assert_allclose(verdict.needed(found), (0.5, 1e-6), rtol=1e-6)
    strict = agreement.held(a, b, Tolerance(1e-6, 0.0, 0.0, 10.0), ground)
    np.testing.assert_allclose(verdict.needed(strict), (1e-5, 1e-6), rtol=1e-6)


def test_what_rounding_explains_is_allowed_beside_the_tolerance() -> None:
    a, b = np.array([[1.0], [1.0]]), np.array([[1.1], [1.1]])
    rounding = np.array([[0.05], [0.2]])
    found = agreement.held(a, b, Tolerance(1e-3, 0.0, 0.0), verdict.ground_of(a, b), rounding)
    assert found.status[:, 0].tolist() == [Status.FAIL, Status.PASS]
    assert np.array_equal(found.noise, rounding)


@pytest.mark.parametrize("order", ([NAN, 0.1], [0.1, NAN]))
def test_an_entry_that_is_nan_on_one_side_alone_is_infinitely_far_away(order: list[float]) -> None:
    """At whichever point it is: the largest of several errors is NaN or not by their order alone."""
    parts = [Comparison(np.array([[value]]), np.array([[0.0]]), np.zeros((1, 1)), np.array([[Status.FAIL]], np.int8))
             for value in order]  # fmt: skip
    assert max(verdict.errors(each)[0] for each in parts) == INF
    assert max(verdict.errors(each)[1] for each in parts) == INF


# Differences


@pytest.mark.parametrize("x, wanted", [
    ([3.0, -4.0], 12.5**0.5), ([3e300, -4e300], 1e300 * 12.5**0.5), ([3e-300, 4e-300], 1e-300 * 12.5**0.5),
    ([1.0] * 70_000, 1.0), ([0.0, 0.0], 0.0), ([], 0.0), ([1.0, -np.inf], np.inf),
])  # fmt: skip
def test_the_root_mean_square_neither_overflows_nor_underflows(x: list[float], wanted: float) -> None:
    assert rms(np.asarray(x)) == pytest.approx(wanted, rel=1e-14)


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("count", [3, 4, 5])
def test_every_step_takes_off_one_more_term_of_the_error(count: int, order: int) -> None:
    """Slopes of exp at 0: those of sinh(h) / h, or (exp(h) - 1) / h, whose coefficients are less than 1."""
    h = 0.5 * 2.0 ** -np.arange(count)
    plain = (np.sinh(h) if order == 2 else np.expm1(h)) / h
    valid = np.ones((count, 1), bool)
    found = richardson(plain.reshape(count, 1, 1), h.reshape(count, 1), np.zeros(1), valid, order)
    assert abs(found.value.item() - 1) <= min(np.prod(h**order), found.error.item())


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("side", [1.0, -1.0])
def test_steps_along_single_entries_are_exact(dtype: type, side: float) -> None:
    here = np.random.default_rng(0).normal(size=50).astype(dtype) * dtype(10.0) ** np.arange(-25, 25, dtype=dtype)
    for h in (0.1, 1e-3, 1e-5):
        steps = Directions(here, range(50)).representable(h, side)
        moved = here + (side * steps).astype(dtype)
        np.testing.assert_array_equal((moved - here).astype(np.float64), side * steps)
        np.testing.assert_allclose(steps, h * np.abs(here), rtol=np.finfo(dtype).eps / h)
