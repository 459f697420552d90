"""Passes over both sides of a Jacobian: the kernels give what NumPy gives, to the bit."""

from __future__ import annotations

import numpy as np
import pytest

from gradcheck_cli import native
from gradcheck_cli.native import elementwise
from gradcheck_cli.verdict.rule import Comparison, Grounds, Status, Tolerance, errors, ground_of, screened
from tests.native.conftest import both, needs_native

pytestmark = needs_native

ODD = (np.nan, np.inf, -np.inf, 0.0, -0.0, 5e-324, 1e-310, 1.7e308, -1.7e308)
TOLERANCES = [Tolerance(), Tolerance(atol=1e-7), Tolerance(rtol=0.0), Tolerance(negligible=0.0, floor=100.0)]


def jacobians(shape, odd):
    """Both sides, of sizes from 1e-12 to 1e12, whose differences are around what tolerances allow."""
    rng = np.random.default_rng([*shape, odd])
    theoretical = rng.normal(size=shape) * 10.0 ** rng.integers(-12, 13, shape)
    gap = 10.0 ** rng.integers(-12, -5, shape) * rng.integers(-1, 2, shape)
    numerical = theoretical * (1 + gap)
    for side in (theoretical, numerical) if odd else ():
        at = rng.random(shape) < 0.2
        side[at] = rng.choice(ODD, np.count_nonzero(at))
    return theoretical, numerical


def scales(kind, rows):
    return None if kind == "even" else 10.0 ** (np.arange(rows) % 9) * (np.arange(rows) % 4 > 0)


def cut(whole):
    """Parts of larger arrays, and rows a distance apart or backward."""
    return whole, whole[1:, 2:], whole[::-2], whole[:, :1]


@pytest.mark.parametrize("odd", [False, True])
@pytest.mark.parametrize("scale", ["even", "uneven"])
@pytest.mark.parametrize("shape", [(1, 1), (3, 2), (7, 5), (40, 33), (300, 257)])
def test_grounds_statuses_and_errors_are_numpys(shape, scale, odd):
    wholes = jacobians((2 * shape[0] + 1, shape[1] + 2), odd)
    for theoretical, numerical in zip(*map(cut, wholes), strict=True):
        known = scales(scale, len(theoretical))
        got, want = both(lambda t=theoretical, n=numerical, known=known: ground_of(t, n, known))
        for field in ("largest", "effect"):
            assert np.array_equal(getattr(got, field), getattr(want, field))
        for tolerance in TOLERANCES:
            arguments = theoretical, numerical, 1e-15, tolerance, want
            statuses, expected = both(lambda arguments=arguments: screened(*arguments))
            assert statuses.dtype == np.int8
            assert np.array_equal(statuses, expected)
            passed = np.zeros(theoretical.shape, np.int8)
            found = Comparison(theoretical, numerical, passed, passed, tolerance, known=want)
            assert np.array_equal(*both(lambda found=found: errors(found)), equal_nan=True)


def test_some_entries_pass_and_some_do_not():
    theoretical, numerical = jacobians((40, 33), odd=False)
    status = screened(theoretical, numerical, 1e-15, Tolerance())
    assert set(status.ravel().tolist()) == {Status.PASS, Status.NOISE}


def test_columns_are_added_to_a_ground_in_any_order():
    theoretical, numerical = jacobians((30, 20), odd=True)
    pieces = [slice(12, 20), slice(0, 5), slice(5, 12)]

    def found():
        grounds = Grounds(scales("uneven", 30), 20)
        for some in pieces:
            grounds.add(theoretical[:, some], numerical[:, some], some)
        return grounds.found

    got, want = both(found)
    whole = ground_of(theoretical, numerical, scales("uneven", 30))
    assert np.array_equal(got.largest, want.largest)
    assert np.array_equal(got.largest, whole.largest)
    assert np.array_equal(got.effect, want.effect)
    assert np.array_equal(got.effect, whole.effect)


@pytest.mark.parametrize("unfit", [
    lambda x: x.astype(np.float32), lambda x: x.astype(complex), np.asfortranarray, lambda x: x[0], lambda x: x[:0],
    lambda x: x[:, ::2], lambda x: x[:4],
])  # fmt: skip
def test_arrays_that_do_not_fit_are_left_to_numpy(unfit):
    x, sizes = np.ones((6, 8)), (np.ones(8), None, None)
    with native.use("native"):
        assert elementwise.screened(x, x, sizes, 0.0, 1e-9, 0.0, Status.NOISE) is not None
        assert elementwise.screened(unfit(x), x, sizes, 0.0, 1e-9, 0.0, Status.NOISE) is None
        assert not elementwise.raised(x, unfit(x), sizes)
        assert elementwise.farthest(x, x, (np.ones(7), None, None), 1e-2, np.inf) is None
        assert elementwise.farthest(x, x, (np.ones(8), np.ones(8), np.ones(5)), 1e-2, np.inf) is None
