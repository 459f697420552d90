"""Products at the edges of the panels and blocks that the kernels cut matrices into: one row, column or step too many.

Operands hold small whole numbers, whose products and sums are exact in every dtype: results are equal, not close.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from gradcheck_cli import native
from tests.native.conftest import ISAS, needs_native

DTYPES = ["float32", "float64", "complex64", "complex128"]
PAIRS = list(itertools.product(DTYPES, DTYPES))
PANELS = {"avx512": (14, 64), "avx2": (6, 32), "baseline": (6, 16)}  # rows of a panel of A, bytes of a vector
SMALL = 8192  # reals of B up to which nothing is packed
FEW = 16  # real rows up to which nothing is packed either

pytestmark = needs_native


def panel(isa, *dtypes):
    """Rows of a panel of A and columns of a panel of B, in real numbers of the precision of a product."""
    rows, vector = PANELS[isa]
    real = np.empty(0, np.result_type(*dtypes)).real.itemsize
    return rows, 2 * vector // real


def whole(shape, dtype, seed=0):
    """Whole numbers from -3 to 3, complex ones in both parts."""
    rng = np.random.default_rng([seed, *shape])
    x = rng.integers(-3, 4, shape)
    return (x + 1j * rng.integers(-3, 4, shape) if np.dtype(dtype).kind == "c" else x).astype(dtype)


def turned(x, turn):
    """x, or x with the same numbers lying the other way round in memory."""
    return np.asfortranarray(x) if turn else x


def same(got, a, b):
    """Equal to NumPy's product, dtype included."""
    want = a @ b
    assert got.dtype == want.dtype
    assert np.array_equal(got, want), f"{a.dtype} {a.shape} {a.strides} @ {b.dtype} {b.shape} {b.strides}"


def sizes_around(rows, columns):
    """Every m, n and k up to one more than two panels, the other two at one, and one more than a panel."""
    for axis, longest in enumerate((2 * rows, 2 * columns, 2 * columns)):
        for size in range(1, longest + 2):
            for others in itertools.product((1, rows + 1), (1, columns + 1), (1, columns + 1)):
                yield tuple(size if i == axis else other for i, other in enumerate(others))


@pytest.mark.parametrize("left, right", PAIRS)
def test_matmul_of_every_size_up_to_two_panels(isa, left, right):
    rows, columns = panel(isa, left, right)
    for turn_a, turn_b in itertools.product((False, True), repeat=2):
        a = turned(whole((2 * rows + 1, 2 * columns + 1), left), turn_a)
        b = turned(whole((2 * columns + 1, 2 * columns + 1), right, 1), turn_b)
        for m, n, k in set(sizes_around(rows, columns)):
            same(native.matmul(a[:m, :k], b[:k, :n]), a[:m, :k], b[:k, :n])


@pytest.mark.one_in(3)
@pytest.mark.parametrize("left, right", PAIRS)
def test_packed_matmul_of_every_number_of_columns_up_to_two_panels(isa, left, right):
    rows, columns = panel(isa, left, right)
    for n, turn_b in itertools.product(range(1, 2 * columns + 2), (False, True)):
        depth = SMALL // n + 2  # so deep that nothing is small any more
        b = turned(whole((depth, n), right, 1), turn_b)
        for m in (FEW + 1, FEW + rows):
            a = whole((m, depth), left)
            same(native.matmul(a, b), a, b)


@pytest.mark.one_in(8)
@pytest.mark.parametrize("m, n, k", [
    (5, 1025, 9), (15, 1024, 256), (15, 1025, 257), (169, 33, 256), (169, 1, 8200), (169, 65, 385), (7, 2049, 5),
    (337, 17, 513), (29, 1041, 769), (17, 1025, 9), (19, 1024, 256), (23, 1041, 257), (31, 2049, 5),
])  # fmt: skip
@pytest.mark.parametrize("left, right", PAIRS)
def test_matmul_beyond_a_block(isa, left, right, m, n, k):
    a, b = whole((m, k), left), whole((k, n), right, 1)
    for turn_a, turn_b in itertools.product((False, True), repeat=2):
        same(native.matmul(turned(a, turn_a), turned(b, turn_b)), a, b)


@pytest.mark.one_in(8)
@pytest.mark.parametrize("rows", [1, 7, 16])
@pytest.mark.parametrize("left, right", PAIRS)
def test_few_rows_by_a_matrix_of_long_lines(isa, left, right, rows):
    b = whole((2, 67, 1044), right, 1)
    for lead, lines in [((), b[0, :65, 2:1026]), ((2,), b[:, :, 3:]), ((), b[0, ::-1, :-3])]:
        a = turned(whole((*lead, rows, lines.shape[-2]), left), lines.shape[-1] % 2)
        same(native.matmul(a, lines), a, lines)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("rows", [1, 4, 5, 8, 9])
@pytest.mark.parametrize("left, right", PAIRS)
def test_few_rows_by_a_large_matrix(isa, left, right, rows):
    wide = whole((2, 130, 2 * 131), right, 1)
    for lead, b in [((), wide[0, :, :131]), ((3, 1), wide[:, :, :131]), ((2,), wide[:, :, ::2])]:
        a = whole((*lead, rows, 130), left)
        same(native.matmul(a, b), a, b)


@pytest.mark.parametrize("left, right", PAIRS)
def test_a_stack_of_products_of_one_remaining_column(isa, left, right):
    rows, columns = panel(isa, left, right)
    for n, lead_a, lead_b in itertools.product((1, columns + 1), [(3,), (2, 1), ()], [(3,), (1, 3), ()]):
        a, b = whole((*lead_a, rows + 1, columns + 1), left), whole((*lead_b, columns + 1, n), right, 1)
        same(native.matmul(a, b), a, b)
        a = np.broadcast_to(a[..., :1], a.shape)
        same(native.matmul(a, b), a, b)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("left, right", PAIRS)
def test_conv_of_every_number_of_windows_up_to_two_panels(isa, left, right, stride):
    rows, columns = panel(isa, left, right)
    channels, taps = 3, 3
    w = whole((rows + 1, channels, taps), right, 1)
    for windows in range(1, 2 * columns + 2):
        x = whole((2, channels, stride * (windows - 1) + taps), left)
        seen = np.lib.stride_tricks.sliding_window_view(x, taps, axis=-1)[:, :, ::stride]
        for m in (1, rows, rows + 1):
            got = native.conv(x, w[:m], strides=(stride,), pads=(0, 0), dilations=(1,))
            want = np.einsum("nctk,mck->nmt", seen, w[:m])
            assert got.dtype == np.result_type(left, right)
            assert np.array_equal(got, want), (windows, m)


@pytest.mark.parametrize("left, right", PAIRS)
def test_conv_of_every_depth_up_to_two_panels(isa, left, right):
    rows, columns = panel(isa, left, right)
    for channels in range(1, 2 * columns + 2):
        x, w = whole((1, channels, 5, 3), left), whole((rows + 1, channels, 1, 1), right, 1)
        got = native.conv(x, w, strides=(2, 2), pads=(0, 0, 0, 0), dilations=(1, 1))
        assert np.array_equal(got, np.einsum("nchw,mc->nmhw", x[..., ::2, ::2], w[..., 0, 0])), channels


@pytest.mark.parametrize("left, right", PAIRS)
def test_conv_with_kernels_of_every_length_up_to_two_panels(isa, left, right):
    rows, columns = panel(isa, left, right)
    for taps in range(1, 2 * columns + 2):
        x, w = whole((2, 2, 2, taps + 2), left), whole((rows + 1, 2, 2, taps), right, 1)
        got = native.conv(x, w, strides=(1, 1), pads=(0, 0, 0, 0), dilations=(1, 1))
        seen = np.lib.stride_tricks.sliding_window_view(x, taps, axis=-1)
        assert np.array_equal(got, np.einsum("nchot,mcht->nmo", seen, w)[:, :, None]), taps


@pytest.mark.one_in(4)
@pytest.mark.parametrize("channels", [1, 3, 17])
@pytest.mark.parametrize("left, right", PAIRS)
def test_conv_transpose_of_every_width_and_few_or_many_channels(isa, left, right, channels):
    _, columns = panel(isa, left, right)
    for width, stride in itertools.product(range(1, columns + 2), (1, 2)):
        x, w = whole((2, 3, width), left), whole((3, channels, 3), right, 1)
        got = native.conv_transpose(x, w, strides=(stride,), pads=(1, 0), dilations=(1,), output_padding=(0,))
        want = np.zeros((2, channels, stride * (width - 1) + 3), got.dtype)
        for tap in range(3):
            want[..., tap : tap + stride * (width - 1) + 1 : stride] += np.einsum("ncs,cm->nms", x, w[..., tap])
        assert np.array_equal(got, want[..., 1:]), (width, stride)


@pytest.mark.parametrize("left, right", PAIRS)
def test_grouped_conv_of_one_channel_each(isa, left, right):
    rows, columns = panel(isa, left, right)
    for groups in (1, rows, columns + 1):
        x, w = whole((2, groups, columns + 1), left), whole((groups, 1, 1), right, 1)
        got = native.conv(x, w, strides=(1,), pads=(0, 0), dilations=(1,), group=groups)
        assert np.array_equal(got, x * w[:, 0])


@pytest.mark.parametrize("wide", ["float64", "complex128"])
@pytest.mark.parametrize("m, k, n", [(1, 130, 140), (3, 130, 140), (16, 140, 130), (40, 300, 150), (200, 270, 90)])
def test_large_single_matrices_are_widened_while_they_are_read(isa, m, k, n, wide):
    for matrix, turn in itertools.product((whole((k, n), "float32"), whole((2, k, n), "float32")), (False, True)):
        lines = np.asfortranarray(matrix) if turn else matrix[..., ::-1, :]
        a, c = whole((2, m, k), wide, 1), whole((n, m), wide, 2)
        same(native.matmul(a, lines), a, lines)
        same(native.matmul(lines, c), lines, c)
        same(native.matmul(lines, c[:, :1]), lines, c[:, :1])
    x = whole((2, 20, 9, 11), wide)
    for channels in (20, 40):
        w = whole((channels, 20, 5, 5), "float32", 1)
        how = {"strides": (1, 2), "pads": (1, 1, 2, 0), "dilations": (1, 1)}
        assert np.array_equal(native.conv(x, w, **how), native.conv(x, w.astype(np.float64), **how))


def test_panels_are_known_for_every_instruction_set():
    assert set(ISAS) <= set(PANELS)
