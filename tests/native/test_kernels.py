"""The kernels agree with plain loops, whatever the shape, stride, dtype, instruction set or thread."""

from __future__ import annotations

import itertools
import math
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from gradcheck_cli import native
from gradcheck_cli.native import reference
from gradcheck_cli.native.selection import kernels
from tests.native.conftest import KINDS, needs_native

NATIVE_DTYPES = ["float32", "float64", "complex64", "complex128"]


@pytest.fixture(params=[1, 2, 5])
def threads(request):
    before = kernels.threads()
    kernels.set_threads(request.param)
    with native.use("native"):
        yield request.param
    kernels.set_threads(before)


def draw(shape, dtype, seed=0):
    """Normal numbers of the dtype, complex ones with both parts."""
    rng = np.random.default_rng([seed, *shape])
    x = rng.standard_normal(shape)
    return (x + 1j * rng.standard_normal(shape) if np.dtype(dtype).kind == "c" else x).astype(dtype)


def agree(got, want):
    """Same dtype and shape, and values as close as the depth of the sums allows."""
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    scale = np.max(np.abs(want), initial=1.0)
    np.testing.assert_allclose(got, want, rtol=0, atol=64 * np.finfo(got.dtype).eps * scale)


# ---- independent oracles: one loop for each index of the definition


def looped_conv(x, w, *, strides, pads, dilations, group):
    """The definition for x (N, C, *space) and w (M, C // group, *kernel), zeros wherever x is left."""
    rank, (m, channels) = len(strides), w.shape[:2]
    space, kernel = x.shape[2:], w.shape[2:]
    out = [
        (space[i] + pads[i] + pads[rank + i] - dilations[i] * (kernel[i] - 1) - 1) // strides[i] + 1
        for i in range(rank)
    ]
    y = np.zeros((x.shape[0], m, *(max(0, size) for size in out)), np.result_type(x, w))
    for at in np.ndindex(y.shape):
        sample, channel, position = at[0], at[1], at[2:]
        first = channel // (m // group) * channels
        for tap in np.ndindex(kernel):
            source = [position[i] * strides[i] + tap[i] * dilations[i] - pads[i] for i in range(rank)]
            if all(0 <= source[i] < space[i] for i in range(rank)):
                for c in range(channels):
                    y[at] += x[(sample, first + c, *source)] * w[(channel, c, *tap)]
    return y


def looped_conv_transpose(x, w, *, strides, pads, dilations, group, output_padding):
    """The definition for x (N, C, *space) and w (C, M // group, *kernel): inputs write to their windows."""
    rank, (channels, m) = len(strides), w.shape[:2]
    space, kernel = x.shape[2:], w.shape[2:]
    out = [
        (space[i] - 1) * strides[i] + (kernel[i] - 1) * dilations[i] + 1 + output_padding[i] - pads[i] - pads[rank + i]
        for i in range(rank)
    ]
    y = np.zeros((x.shape[0], m * group, *out), np.result_type(x, w))
    for at in np.ndindex(x.shape):
        sample, channel, position = at[0], at[1], at[2:]
        first = channel // (channels // group) * m
        for tap in np.ndindex(kernel):
            target = [position[i] * strides[i] + tap[i] * dilations[i] - pads[i] for i in range(rank)]
            if all(0 <= target[i] < out[i] for i in range(rank)):
                for c in range(m):
                    y[(sample, first + c, *target)] += x[at] * w[(channel, c, *tap)]
    return y


# ---- matmul

SIZES = [
    (1, 1, 1),
    (1, 3, 2),
    (3, 5, 7),
    (8, 8, 8),
    (9, 17, 10),
    (16, 31, 33),
    (15, 40, 1),
    (1, 90, 300),
    (70, 300, 150),
]
LEADS = [
    ((), ()),
    ((3,), (3,)),
    ((3,), ()),
    ((), (3,)),
    ((2, 1), (1, 3)),
    ((2, 3), (2, 1)),
    ((2, 1, 3), (4, 1)),
]


@pytest.mark.one_in(3)
@needs_native
@pytest.mark.parametrize("left, right", list(itertools.product(NATIVE_DTYPES, NATIVE_DTYPES)))
def test_matmul_is_numpys_for_all_dtypes_sizes_and_transposes(isa, left, right):
    for (m, k, n), turn_a, turn_b in itertools.product(SIZES, [False, True], [False, True]):
        a = draw((k, m), left).T if turn_a else draw((m, k), left)
        b = draw((n, k), right, 1).T if turn_b else draw((k, n), right, 1)
        agree(native.matmul(a, b), a @ b)


@needs_native
@pytest.mark.parametrize("lead_a, lead_b", LEADS)
def test_matmul_broadcasts_leading_axes(isa, lead_a, lead_b):
    for dtype, (m, k, n) in itertools.product(["float64", "complex64"], [(3, 5, 7), (1, 20, 9), (20, 90, 120)]):
        a, b = draw((*lead_a, m, k), dtype), draw((*lead_b, k, n), dtype, 1)
        agree(native.matmul(a, b), a @ b)


@needs_native
def test_matmul_takes_any_strides(isa):
    wide = draw((6, 40, 60), "float64")
    b = draw((30, 20), "float64", 1)
    for a in (
        wide[::-1, ::2, ::-2],
        wide[:, 3:9, 30:],
        np.broadcast_to(wide[0, 0, :30], (6, 4, 30)),
        np.broadcast_to(wide[0, :, :1], (40, 30)),
        wide.T[:30].swapaxes(0, -1),
    ):
        agree(native.matmul(a, b), a @ b)
        agree(native.matmul(b.T, np.swapaxes(a, -1, -2)), b.T @ np.swapaxes(a, -1, -2))


@needs_native
def test_matmul_takes_elements_that_lie_across_their_size():
    records = np.zeros(12, dtype=[("tag", "i1"), ("x", "f8")])
    records["x"] = np.arange(12.0)
    a = records["x"].reshape(3, 4)
    readonly = np.arange(8.0).reshape(4, 2)
    readonly.flags.writeable = False
    agree(native.matmul(a, readonly), np.ascontiguousarray(a) @ readonly)
    swapped = readonly.astype(">f8")
    agree(native.matmul(a, swapped).astype("f8"), a @ readonly)


@needs_native
@pytest.mark.parametrize("m, n", [(1, 1), (2, 3), (20, 40)])
def test_matmul_of_a_very_deep_product(isa, m, n):
    a, b = np.ones((m, 100_000), "float32"), np.ones((100_000, n), "float64")
    a[:, ::2] = -1
    for x, y in ((a, b), (np.asfortranarray(a), b), (a[:, ::-1], np.asfortranarray(b))):
        assert np.array_equal(native.matmul(x, y), np.zeros((m, n)))


@needs_native
def test_convolutions_take_elements_that_lie_across_their_size():
    record = np.zeros((1, 2, 5, 6), dtype=[("tag", "i1"), ("x", "f8")])
    record["x"] = draw(record.shape, "float64")
    settings_ = {"strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1), "group": 1}
    x, w = record["x"], draw((3, 2, 2, 2), "float64", 1)
    agree(native.conv(x, w, **settings_), reference.conv(x.copy(), w, **settings_))
    more = {**settings_, "output_padding": (0, 0)}
    w = draw((2, 3, 2, 2), "float64", 1)
    agree(native.conv_transpose(x, w, **more), reference.conv_transpose(x.copy(), w, **more))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("a, b", [((4,), (4,)), ((4,), (4, 5)), ((3, 4), (4,)), ((4,), (2, 4, 5)), ((2, 3, 4), (4,))])
def test_matmul_treats_vectors_as_numpy_does(kind, a, b):
    with native.use(kind):
        agree(
            np.asarray(native.matmul(draw(a, "float64"), draw(b, "float64", 1))),
            draw(a, "float64") @ draw(b, "float64", 1),
        )


@pytest.mark.parametrize(
    "a, b",
    [((0, 3), (3, 2)), ((2, 0), (0, 3)), ((2, 3), (3, 0)), ((0, 2, 3), (3, 4)), ((0, 2, 0), (1, 0, 4))],
)
def test_empty_products_have_the_right_shape_and_zeros(a, b):
    agree(native.matmul(np.ones(a), np.ones(b)), np.ones(a) @ np.ones(b))


@needs_native
@pytest.mark.parametrize("a, b", [((2, 3), (4, 2)), ((), (2, 2)), ((2, 3, 4), (5, 4, 3))])
def test_shapes_that_do_not_fit_are_refused(a, b):
    with pytest.raises(ValueError):
        native.matmul(np.ones(a), np.ones(b))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64", "uint64", "bool", "longdouble", "object"])
def test_other_dtypes_multiply_as_in_numpy(dtype):
    a, b = (np.arange(-7, 13).reshape(4, 5) % 100).astype(dtype), np.arange(15).reshape(5, 3).astype(dtype)
    got = native.matmul(a, b)
    assert got.dtype == (a @ b).dtype
    assert np.array_equal(got, a @ b)


def test_half_precision_is_summed_in_float32():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    for dtype in (np.dtype("float16"), np.dtype(ml_dtypes.bfloat16)):
        a, b = draw((5, 300), dtype), draw((300, 6), dtype, 1)
        got = native.matmul(a, b)
        assert got.dtype == dtype
        exact = a.astype("float64") @ b.astype("float64")
        assert np.max(np.abs(got.astype("float64") - exact)) <= 2 * np.max(np.abs(exact)) * float(
            ml_dtypes.finfo(dtype).eps
        )


# ---- conv and conv_transpose

# space, kernel, strides, pads, dilations, group
CONVS = [
    ((7,), (3,), (1,), (1, 1), (1,), 1),
    ((9,), (2,), (3,), (0, 2), (3,), 2),
    ((6, 7), (3, 2), (2, 1), (1, 0, 0, 2), (1, 2), 2),
    ((7, 6), (3, 3), (1, 1), (-1, 2, 1, -2), (1, 1), 1),
    ((5, 5), (1, 1), (2, 2), (0, 0, 0, 0), (1, 1), 4),
    ((5, 4), (3, 3), (2, 3), (2, 2, 2, 2), (2, 3), 1),
    ((4, 3, 5), (2, 3, 1), (1, 2, 3), (0, 1, 0, 1, 2, 0), (2, 1, 1), 2),
    ((3, 3, 2, 3), (2, 2, 2, 2), (1, 2, 1, 1), (0, 1, 0, 0, 1, 0, 1, 0), (1, 1, 1, 2), 1),
    ((3, 3), (5, 5), (1, 1), (0, 0, 0, 0), (1, 1), 1),
    ((37,), (4,), (1,), (2, 0), (2,), 1),
    ((5, 21), (3, 3), (2, 1), (1, 1, 1, 0), (1, 2), 2),
    ((4, 40), (2, 2), (1, 1), (0, 0, 0, 0), (1, 1), 4),
]


@pytest.mark.parametrize("space, kernel, strides, pads, dilations, group", CONVS)
def test_reference_convolutions_are_their_definitions(space, kernel, strides, pads, dilations, group):
    settings_ = {"strides": strides, "pads": pads, "dilations": dilations, "group": group}
    x, w = draw((2, 4, *space), "complex128"), draw((8, 4 // group, *kernel), "float64")
    agree(reference.conv(x, w, **settings_), looped_conv(x, w, **settings_))
    settings_["output_padding"] = tuple(step - 1 for step in strides)
    w = draw((4, 8 // group, *kernel), "float64")
    agree(reference.conv_transpose(x, w, **settings_), looped_conv_transpose(x, w, **settings_))


@needs_native
@pytest.mark.parametrize("space, kernel, strides, pads, dilations, group", CONVS)
def test_native_convolutions_are_the_reference(isa, space, kernel, strides, pads, dilations, group):
    settings_ = {"strides": strides, "pads": pads, "dilations": dilations, "group": group}
    more = {**settings_, "output_padding": tuple(step - 1 for step in strides)}
    for left, right in [
        ("float64", "float64"),
        ("float32", "float32"),
        ("complex128", "float64"),
        ("float32", "complex64"),
        ("complex64", "complex64"),
    ]:
        for lead_x, lead_w in [((), ()), ((3,), ()), ((), (3,)), ((2, 1), (1, 3)), ((2,), (2,))]:
            x = draw((*lead_x, 2, 4, *space), left)
            w = draw((*lead_w, 8, 4 // group, *kernel), right)
            agree(native.conv(x, w, **settings_), reference.conv(x, w, **settings_))
            w = draw((*lead_w, 4, 8 // group, *kernel), right)
            agree(native.conv_transpose(x, w, **more), reference.conv_transpose(x, w, **more))


@needs_native
def test_convolutions_take_any_strides(isa):
    settings_ = {"strides": (1, 2), "pads": (1, 1, 0, 2), "dilations": (1, 1), "group": 1}
    x, w = (
        draw((9, 10, 3, 2), "float64").transpose(3, 2, 1, 0)[:, ::-1],
        draw((5, 3, 3, 3), "float64")[:, :, ::-1, ::-1],
    )
    agree(native.conv(x, w, **settings_), looped_conv(x, w, **settings_))
    x = np.broadcast_to(x[:1, :1], (2, 5, *x.shape[2:]))
    more = {**settings_, "output_padding": (0, 1)}
    agree(native.conv_transpose(x, w, **more), looped_conv_transpose(x, w, **more))


@pytest.mark.parametrize(
    "x, w",
    [
        ((0, 2, 5), (3, 2, 3)),
        ((2, 0, 5), (3, 0, 3)),
        ((2, 2, 5), (0, 2, 3)),
        ((2, 2, 2), (3, 2, 3)),
        ((4, 0, 2, 5), (3, 2, 3)),
    ],
)
def test_empty_convolutions_have_the_right_shape_and_zeros(x, w):
    one = {"strides": (1,), "pads": (0, 0), "dilations": (1,)}
    got = native.conv(np.ones(x), np.ones(w), **one)
    assert got.shape == (*x[:-2], w[0], max(0, x[-1] - w[-1] + 1))
    assert not got.any()
    turned = np.ones((x[-2], w[0], w[2]))
    back = native.conv_transpose(np.ones(x), turned, **one, output_padding=(0,))
    assert back.shape == (*x[:-2], w[0], x[-1] + w[-1] - 1)
    with native.use("numpy"):
        agree(back, native.conv_transpose(np.ones(x), turned, **one, output_padding=(0,)))


@pytest.mark.parametrize("kind", KINDS)
def test_the_transpose_of_no_windows_is_zeros(kind):
    settings_ = {"strides": (2,), "pads": (-1, 0), "dilations": (3,), "output_padding": (1,)}
    with native.use(kind):
        y = native.conv_transpose(np.ones((2, 1, 0)), np.ones((1, 3, 3)), **settings_)
    agree(y, np.zeros((2, 3, 7)))


def test_integers_convolve_exactly():
    x, w = np.arange(50).reshape(1, 2, 5, 5), np.arange(36).reshape(2, 2, 3, 3)
    settings_ = {"strides": (2, 1), "pads": (1, 0, 1, 0), "dilations": (1, 1), "group": 1}
    got = native.conv(x, w, **settings_)
    assert got.dtype == x.dtype
    assert np.array_equal(got, looped_conv(x, w, **settings_))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.data())
def test_conv_transpose_is_the_transpose_of_conv(data):
    rank = data.draw(st.integers(1, 3))
    numbers = lambda low, high: tuple(data.draw(st.integers(low, high)) for _ in range(rank))  # noqa: E731
    kernel, strides, dilations = numbers(1, 3), numbers(1, 3), numbers(1, 3)
    pads = numbers(-1, 2) + numbers(-1, 2)
    space = numbers(8, 10)
    group = data.draw(st.integers(1, 2))
    common = {"strides": strides, "pads": pads, "dilations": dilations, "group": group}
    x, w = draw((2, 2 * group, *space), "float64"), draw((3 * group, 2, *kernel), "float64")
    y = native.conv(x, w, **common)
    ct = draw(y.shape, "float64", 1)
    lost = [
        space[i] + pads[i] + pads[rank + i] - (kernel[i] - 1) * dilations[i] - 1 - (y.shape[2 + i] - 1) * strides[i]
        for i in range(rank)
    ]
    back = native.conv_transpose(ct, w, **common, output_padding=lost)
    assert back.shape == x.shape
    assert math.isclose(np.vdot(ct, y), np.vdot(back, x), rel_tol=1e-9, abs_tol=1e-9)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(hnp.mutually_broadcastable_shapes(signature="(m,k),(k,n)->(m,n)", max_dims=3, max_side=12, min_side=0))
def test_matmul_is_numpys_for_all_broadcast_shapes(shapes):
    left, right = shapes.input_shapes
    a, b = draw(left, "float64"), draw(right, "float64", 1)
    agree(native.matmul(a, b), a @ b)


# ---- threads and selection


PARALLEL = [
    ((), 300, 200, 400),
    ((), 20, 900, 1500),
    ((3,), 150, 150, 200),
    ((900,), 16, 16, 16),
    ((), 5000, 16, 16),
    ((), 2, 900, 1500),
    ((), 60, 32, 64),
    ((), 3000, 700, 1),
]


@pytest.mark.one_in(6)
@needs_native
@pytest.mark.parametrize("lead, m, k, n", PARALLEL)
@pytest.mark.parametrize("left, right", [("float64", "float64"), ("complex64", "complex64"), ("float64", "complex128")])
def test_products_do_not_depend_on_the_number_of_threads(threads, lead, m, k, n, left, right):
    for b in (draw((k, n), right, 1), draw((n, k), right, 1).T):
        a = draw((*lead, m, k), left)
        got = native.matmul(a, b)
        agree(got, a @ b)
        with native.single_threaded():
            assert native.info()["threads"] == 1
            agree(got, native.matmul(a, b))
        assert native.info()["threads"] == threads


@needs_native
def test_convolutions_do_not_depend_on_the_number_of_threads(threads):
    settings_ = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "group": 1}
    for m in (5, 40):
        x, w = draw((7, 16, 30, 31), "float64"), draw((m, 16, 3, 3), "float64", 1)
        got = native.conv(x, w, **settings_)
        with native.single_threaded():
            agree(got, native.conv(x, w, **settings_))
        agree(got, reference.conv(x, w, **settings_))


@needs_native
def test_products_may_run_on_many_python_threads_at_once():
    a, b = draw((40, 50, 60), "float64"), draw((60, 70), "float64", 1)
    want = native.matmul(a, b)
    results = {}

    def work(name):
        with native.single_threaded() if name % 2 else native.use("native"):
            results[name] = [native.matmul(a, b) for _ in range(20)]

    workers = [threading.Thread(target=work, args=(name,)) for name in range(6)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(results) == 6
    assert all(np.array_equal(want, got) for run in results.values() for got in run)


def test_the_kind_of_kernels_can_be_chosen_for_a_block():
    before = native.info()
    with native.use("numpy"):
        assert native.info()["kernels"] == "numpy"
        agree(native.matmul(np.eye(3), np.eye(3)), np.eye(3))
    assert native.info() == before
