"""Pools agree with plain loops over windows, whatever the geometry, dtype, instruction set or thread."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradcheck_cli import native
from gradcheck_cli.native import pools, reference
from gradcheck_cli.native.geometry import Windows
from gradcheck_cli.native.selection import kernels
from tests.native.conftest import KINDS, needs_native

REAL, COMPLEX, BYTES = ["float32", "float64"], ["complex64", "complex128"], ["int8", "uint8"]

# space, kernel, strides, pads before, pads behind, dilations; a last window may go beyond the padding
POOLS = [
    ((7,), (3,), (1,), (1,), (1,), (1,)),
    ((9,), (2,), (3,), (1,), (3,), (3,)),
    ((8, 6), (2, 2), (2, 2), (0, 0), (0, 0), (1, 1)),
    ((7, 7), (3, 3), (2, 2), (1, 1), (1, 1), (1, 1)),
    ((6, 7), (3, 2), (2, 1), (1, 0), (0, 2), (1, 2)),
    ((5, 9), (1, 4), (3, 2), (0, 2), (1, 3), (1, 2)),
    ((40, 33), (5, 3), (1, 3), (2, 0), (4, 1), (2, 3)),
    ((4, 3, 5), (2, 3, 1), (1, 2, 3), (0, 1, 0), (1, 2, 0), (2, 1, 1)),
    ((3, 3, 2, 3), (2, 2, 2, 2), (1, 2, 1, 1), (0, 1, 0, 0), (1, 0, 1, 0), (1, 1, 1, 2)),
    ((1, 1), (1, 1), (4, 4), (0, 0), (0, 0), (1, 1)),
    ((300,), (300,), (1,), (0,), (0,), (1,)),
]


def windows(space, kernel, strides, begins, ends, dilations):
    """The windows along each axis that fit the padded axis."""
    axes = []
    for i, n in enumerate(space):
        count = (n + begins[i] + ends[i] - (kernel[i] - 1) * dilations[i] - 1) // strides[i] + 1
        numbers = n, kernel[i], strides[i], begins[i], ends[i], dilations[i], count
        axes.append(Windows(i - len(space), *numbers))
    return axes


def seen(axes, window):
    """The places that one window sees, in the order of its taps."""
    lines = [
        [p for t in range(a.taps) if 0 <= (p := at * a.stride + t * a.dilation - a.begin) < a.length]
        for a, at in zip(axes, window, strict=True)
    ]
    return list(itertools.product(*lines))


def draw(shape, dtype, seed=0):
    """A few different numbers of the dtype, so that there are ties."""
    rng = np.random.default_rng([seed, *shape])
    x = rng.integers(0 if dtype == "uint8" else -5, 6, shape)
    return (x + 1j * rng.integers(-5, 6, shape) if np.dtype(dtype).kind == "c" else x).astype(dtype)


def looped(x, axes, function):
    """Results of a function of the entries of each window, given with their flat places in space."""
    lead, space, counts = x.shape[: -len(axes)], x.shape[-len(axes) :], [a.count for a in axes]
    made = {}
    for window in itertools.product(*map(range, counts)):
        places = seen(axes, window)
        values = np.array([x[(..., *place)] for place in places]).reshape(len(places), *lead)
        made[window] = function(values, [int(np.ravel_multi_index(place, space)) for place in places])
    flat = np.array([made[w] for w in itertools.product(*map(range, counts))]).reshape(*counts, *lead)
    return np.moveaxis(flat, range(len(axes)), range(-len(axes), 0))


def all_seen(axes):
    """True if every window sees an entry."""
    return all(seen([axis], (at,)) for axis in axes for at in range(axis.count))


@pytest.mark.parametrize("geometry", POOLS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_pools_are_their_definitions(kind, geometry):
    axes = windows(*geometry)
    assert all_seen(axes)
    for dtype in (*REAL, *COMPLEX, *BYTES):
        x = draw((2, 3, *geometry[0]), dtype)
        with native.use(kind):
            if dtype not in BYTES:
                assert np.array_equal(native.sums(x, axes), looped(x, axes, lambda v, _: v.sum(axis=0)))
            if dtype not in COMPLEX:
                largest = looped(x, axes, lambda v, _: v.max(axis=0))
                best, place = native.winners(x, axes)
                assert native.maxima(x, axes).dtype == best.dtype == x.dtype
                assert np.array_equal(native.maxima(x, axes), largest)
                assert np.array_equal(best, largest)
                first = looped(x, axes, lambda v, at: np.array(at)[v.argmax(axis=0)])
                assert np.array_equal(place, first)


@pytest.mark.parametrize("geometry", POOLS, ids=str)
def test_every_instruction_set_pools_alike(isa, geometry):
    axes = windows(*geometry)
    for dtype, count in itertools.product((*REAL, *COMPLEX, *BYTES), (1, 5, 700)):
        x = draw((count, *geometry[0]), dtype)
        if dtype not in BYTES:
            assert np.array_equal(native.sums(x, axes), reference.combined(x, axes, np.add, 0))
        if dtype not in COMPLEX:
            want = reference.winners(x, axes)
            assert all(map(np.array_equal, native.winners(x, axes), want))
            assert np.array_equal(native.maxima(x, axes), want[0])


@needs_native
@pytest.mark.parametrize("geometry", POOLS, ids=str)
def test_spreading_is_the_transpose_of_summing(isa, geometry):
    axes = windows(*geometry)
    for dtype, count in itertools.product((*REAL, *COMPLEX), (1, 5, 700)):
        x, ct = draw((count, *geometry[0]), dtype), draw((count, *(a.count for a in axes)), dtype, 1)
        back = pools.spread(ct, axes)
        assert back.shape == x.shape
        assert np.sum(back * x) == np.sum(ct * native.sums(x, axes))  # whole numbers: exact
        unseen = looped(np.ones((1, *geometry[0])), axes, lambda v, at: len(at)).sum()
        assert pools.spread(np.ones((1, *ct.shape[1:])), axes).sum() == unseen


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", REAL)
def test_a_maximum_that_is_no_number_is_seen_and_winners_are_greater_than_what_comes_before(kind, dtype):
    axes = windows((4, 4), (2, 2), (2, 2), (0, 0), (0, 0), (1, 1))
    nan, inf = np.nan, np.inf
    x = np.array([[1, nan, -inf, -inf], [2, 3, -inf, -inf], [0, 0, inf, 5], [0, -0.0, nan, inf]], dtype)
    with native.use(kind):
        assert np.array_equal(native.maxima(x, axes), np.array([[nan, -inf], [0, nan]], dtype), equal_nan=True)
        best, place = native.winners(x, axes)
    assert np.array_equal(place, [[5, 2], [8, 10]])
    assert np.array_equal(best, x.ravel()[place])


@pytest.mark.parametrize("kind", KINDS)
def test_pools_take_any_strides_and_empty_stacks(kind):
    axes = windows((6, 7), (3, 2), (2, 1), (1, 0), (0, 2), (1, 2))
    wide = draw((7, 6, 3, 4), "float64")
    with native.use(kind):
        for x in (
            wide.T[::2],
            wide.T[:, :1, ::-1],
            draw((4, 6, 7), "complex128").real,
            np.broadcast_to(1.0, (5, 6, 7)),
        ):
            dense = np.ascontiguousarray(x)
            assert np.array_equal(native.sums(x, axes), looped(dense, axes, lambda v, _: v.sum(axis=0)))
            assert np.array_equal(native.winners(x, axes)[0], looped(dense, axes, lambda v, _: v.max(axis=0)))
        for empty in (np.ones((0, 6, 7)), np.ones((3, 0, 6, 7))):
            shape = (*empty.shape[:-2], *(a.count for a in axes))
            assert native.sums(empty, axes).shape == native.maxima(empty, axes).shape == shape
            assert [part.shape for part in native.winners(empty, axes)] == [shape, shape]


@pytest.mark.parametrize("dtype", ["float16", "int32", "int64", "bool", "longdouble"])
def test_other_dtypes_are_pooled_by_numpy(dtype):
    axes = windows((7, 6), (3, 2), (2, 2), (1, 0), (1, 0), (1, 1))
    x = draw((2, 7, 6), "float64").astype(dtype)
    best, place = native.winners(x, axes)
    assert best.dtype == x.dtype
    assert np.array_equal(best, looped(x, axes, lambda v, _: v.max(axis=0)))
    assert np.array_equal(best, native.maxima(x, axes))
    assert np.array_equal(np.take_along_axis(x.reshape(2, -1), place.reshape(2, -1), 1).reshape(best.shape), best)


def test_images_of_more_axes_than_the_kernels_take_are_pooled_by_numpy():
    rank = 9
    axes = windows((2,) * rank, (2,) * rank, (1,) * rank, (0,) * rank, (0,) * rank, (1,) * rank)
    x = draw((3, *(2,) * rank), "float64")
    assert np.array_equal(native.sums(x, axes).ravel(), x.reshape(3, -1).sum(axis=1))


SIZES = st.integers(1, 4)


@needs_native
@settings(deadline=None, max_examples=150)
@given(st.data())
def test_any_geometry_pools_as_the_reference(data):
    rank = data.draw(st.integers(1, 3))
    kernel, strides, dilations = (tuple(data.draw(SIZES) for _ in range(rank)) for _ in range(3))
    begins, ends = (tuple(data.draw(st.integers(0, 5)) for _ in range(rank)) for _ in range(2))
    least = [(k - 1) * d + 1 - b - e for k, d, b, e in zip(kernel, dilations, begins, ends, strict=True)]
    space = tuple(max(1, n) + data.draw(st.integers(0, 12)) for n in least)
    axes = windows(space, kernel, strides, begins, ends, dilations)
    x = draw((data.draw(SIZES), *space), data.draw(st.sampled_from(REAL)))
    with native.use("native"):
        assert np.array_equal(native.sums(x, axes), reference.combined(x, axes, np.add, 0))
        assert np.array_equal(native.maxima(x, axes), reference.combined(x, axes, np.maximum, -np.inf))
        if all_seen(axes):
            assert all(map(np.array_equal, native.winners(x, axes), reference.winners(x, axes)))
        ct = draw((len(x), *(a.count for a in axes)), x.dtype.name, 1)
        assert np.sum(pools.spread(ct, axes) * x) == np.sum(ct * native.sums(x, axes))


@needs_native
def test_threads_pool_alike():
    axes = windows((40, 41), (3, 3), (2, 2), (1, 1), (1, 1), (1, 1))
    x, before = draw((200, 40, 41), "float64"), kernels.threads()
    alone = [native.sums(x, axes), *native.winners(x, axes)]
    place = np.broadcast_to(alone[2][:1], alone[2].shape)
    rows = x.reshape(200, -1, 2), np.arange(200) % 50, x.reshape(200, -1, 2)[:, :200]
    more = [native.taken(x, place, 2), native.added(*rows)]
    try:
        for count in (2, 5):
            kernels.set_threads(count)
            assert all(map(np.array_equal, [native.sums(x, axes), *native.winners(x, axes)], alone))
            assert all(map(np.array_equal, [native.taken(x, place, 2), native.added(*rows)], more))
    finally:
        kernels.set_threads(before)


# ---- filters whose taps are all alike, and entries at places


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("pads", [(0, 0, 0, 0), (2, 1, 0, 3), (-1, 0, 2, -2)])
@pytest.mark.parametrize("value", [1.0, -0.5, np.nan])
def test_filters_of_one_value_convolve_as_others_do(kind, pads, value):
    x, ct = draw((3, 2, 1, 9, 8), "float64"), draw((3, 2, 1, 4, 3), "complex128", 1)
    geometry = {"strides": (2, 3), "pads": pads, "dilations": (1, 2)}
    w = np.full((1, 1, 3, 2), value)
    with native.use(kind):
        for filters in (w, np.broadcast_to(np.float32(value), w.shape)):
            got = (
                native.conv(x, filters, **geometry),
                native.conv_transpose(ct, filters, **geometry, output_padding=(1, 0)),
            )
            assert np.array_equal(got[0], reference.conv(x, w, **geometry), equal_nan=True)
            want = reference.conv_transpose(ct, w, **geometry, output_padding=(1, 0))
            assert got[1].dtype == want.dtype
            if np.isfinite(value):
                assert np.array_equal(got[1], want)
            else:
                assert np.isnan(got[1]).any()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [*REAL, *COMPLEX, *BYTES, "float16"])
def test_entries_are_taken_from_their_places(kind, dtype):
    x, rng = draw((4, 2, 5, 3), dtype), np.random.default_rng(0)
    for lead in ((4, 2), (1, 2)):
        place = rng.integers(0, 15, (*lead, 2, 3))
        with native.use(kind):
            got = native.taken(x, place, 2)
        assert got.dtype == x.dtype
        for at in np.ndindex(got.shape):
            whole = x[at[0], at[1]].ravel()
            assert got[at] == whole[place[(at[0] % lead[0], *at[1:])]]


@needs_native
@pytest.mark.parametrize("row", [1, 2, 5])
@pytest.mark.parametrize("dtype", [*REAL, *COMPLEX])
def test_rows_are_added_at_their_places_and_the_data_stay(dtype, row):
    data, place, more = draw((3, 7, row), dtype), np.array([6, 0, 3, 3, 0, 3]), draw((3, 6, row), dtype, 1)
    before, want = data.copy(), data.copy()
    for line in range(3):
        for at, terms in zip(place, more[line], strict=True):
            want[line, at] += terms
    with native.use("native"):
        got = native.added(data, place, more)
        assert got.dtype == data.dtype
        assert np.array_equal(got, want)
        assert np.array_equal(data, before)
        assert native.added(np.broadcast_to(data[:1], data.shape), place, more.T.copy().T).dtype == dtype


@pytest.mark.parametrize("wrong", [-16, 15, 1 << 40])
@pytest.mark.parametrize("kind", KINDS)
def test_places_outside_are_refused(kind, wrong):
    x, place = np.ones((2, 5, 3)), np.array([[[0, wrong]]])
    with native.use(kind), pytest.raises(IndexError):
        native.taken(x, place, 2)
    if kind == "native":
        with native.use(kind):
            assert native.added(np.zeros((1, 15, 1)), np.array([0, wrong]), np.ones((1, 2, 1))) is None
