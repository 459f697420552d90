"""Linear recurrences: native kernels against NumPy, and each against the other by the transposition of one another."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from gradcheck_cli import native
from gradcheck_cli.native.recurrences import KINDS, Recurrence, pull, push
from gradcheck_cli.native.selection import kernels
from tests.native.conftest import both, needs_native
from tests.rounding import assert_rounded, gamma

SIZES = [(3, 4, 2, 5), (40, 3, 1, 8), (1, 1, 1, 1), (17, 6, 3, 1), (0, 3, 2, 4), (2, 5, 0, 3), (33, 2, 2, 16)]
COUNTS = {"all": None, "ragged": [1, 2, 0], "too many": [9, 0, 9]}


def drawn(kind, sizes, dtype, *, counts="all", backwards=False, seed=0):
    """A recurrence, with rows and states to push and cotangents to pull."""
    probes, steps, batch, hidden = sizes
    rng, (gates, coefficients) = np.random.default_rng(seed), KINDS[kind]

    def some(*shape):
        return rng.uniform(-1, 1, shape).astype(dtype)

    lengths = None if COUNTS[counts] is None else np.array((COUNTS[counts] * 3)[:batch], np.int32)
    x = Recurrence(kind, [some(steps, batch, hidden) for _ in range(coefficients)],
                   some(gates * hidden, hidden) / hidden, lengths, backwards)  # fmt: skip
    index = rng.integers(-2, 6, (probes, steps, batch)).clip(-1).astype(np.int32)
    states = [some(probes, batch, hidden), some(probes, batch, hidden) if kind == "lstm" else None]
    return x, some(6, gates * hidden), index, states, some(probes, steps, batch, hidden)


def agree(got, want, x, dtype):
    """Results agree within rounding, which grows with the steps and the length of each sum."""
    for a, b in zip(got, want, strict=True):
        assert (a is None) == (b is None)
        if b is not None:
            assert a.dtype == dtype
            roundings = 4 * x.steps * (x.r.shape[0] + 8)
            assert_rounded(a, b, roundings=roundings, of=max(1.0, np.abs(b).max(initial=0)))


@needs_native
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", KINDS)
def test_both_ways_are_those_of_numpy(isa, kind, dtype, sizes):
    for counts, backwards in itertools.product(COUNTS, (False, True)):
        x, rows, index, (h, c), ys = drawn(kind, sizes, dtype, counts=counts, backwards=backwards)
        agree(*both(lambda: push(x, rows, index, h, c, all_steps=True)), x, dtype)  # noqa: B023
        agree(*both(lambda: push(x, rows, index, h, c, all_steps=False)), x, dtype)  # noqa: B023
        agree(*both(lambda: pull(x, ys, h, c)), x, dtype)  # noqa: B023
        agree(*both(lambda: pull(x, None, h, c)), x, dtype)  # noqa: B023


@pytest.mark.parametrize("kernel", ["numpy", pytest.param("native", marks=needs_native)])
@pytest.mark.parametrize("counts", COUNTS)
@pytest.mark.parametrize("kind", KINDS)
def test_cotangents_are_the_transpose_of_tangents(kind, counts, kernel):
    x, rows, index, (h, c), ys = drawn(kind, (5, 4, 3, 4), "float64", counts=counts, backwards=True)
    ends, cell = (np.random.default_rng(1).normal(size=(2, *h.shape)), c is not None)
    with native.use(kernel):
        made, new_h, new_c = push(x, rows, index, h, c, all_steps=True)
        sent, old_h, old_c = pull(x, ys, ends[0], ends[1] if cell else None)
    source = np.zeros((*index.shape, rows.shape[1]))
    source[index >= 0] = rows[index[index >= 0]]
    out = np.sum(made * ys) + np.sum(new_h * ends[0]) + (np.sum(new_c * ends[1]) if cell else 0)
    back = np.sum(source * sent) + np.sum(h * old_h) + (np.sum(c * old_c) if cell else 0)
    terms = np.abs(made * ys).sum() + np.abs(source * sent).sum() + np.abs(h * old_h).sum() + 1
    assert abs(out - back) <= gamma("float64", 4 * x.steps * (x.r.shape[0] + 8)) * terms


@needs_native
@pytest.mark.parametrize("kind", KINDS)
def test_probes_that_enter_late_have_zeros_before(isa, kind):
    x, rows, index, (h, c), _ = drawn(kind, (20, 6, 2, 3), "float64")
    index[:, :4] = -1
    zero = np.zeros_like(h)
    made, *_ = push(x, rows, index, zero, None if c is None else zero, all_steps=True)
    assert not made[:, :4].any()
    assert made[:, 4:].any()
    late = np.zeros((20, 6, 2, 3))
    late[:, 1] = 1.0
    sent, *_ = pull(x, late, zero, None if c is None else zero)
    assert not sent[:, 2:].any()
    assert sent[:, :2].any()


@needs_native
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", KINDS)
def test_two_threads_give_the_same_to_the_bit(isa, kind, dtype):
    x, rows, index, (h, c), ys = drawn(kind, (150, 5, 2, 24), dtype, counts="ragged")
    found, before = [], kernels.threads()
    try:
        for threads in (1, 2):
            kernels.set_threads(threads)
            found.append([*push(x, rows, index, h, c, all_steps=True), *pull(x, ys, h, c)])
    finally:
        kernels.set_threads(before)
    for one, two in zip(*found, strict=True):
        np.testing.assert_array_equal(one, two)


@needs_native
def test_numbers_that_are_not_finite_are_left_to_numpy():
    x, rows, index, (h, c), _ = drawn("lstm", (3, 4, 2, 5), "float64")
    x.coefficients[0][2, 0, 1] = np.inf
    with np.errstate(all="ignore"):
        got, want = both(lambda: push(x, rows, index, h, c, all_steps=True))
    for a, b in zip(got, want, strict=True):
        finite = np.isfinite(b)
        np.testing.assert_array_equal(a[~finite], b[~finite])
        bound = gamma("float64", 4 * x.steps * (x.r.shape[0] + 8)) * np.max(np.abs(b[finite]), initial=1.0)
        assert np.max(np.abs(a[finite] - b[finite]), initial=0.0) <= bound  # products may add in another order
