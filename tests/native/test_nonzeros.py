"""Colors of rows and the order of columns: the kernels give what NumPy gives, and colors do what they are for."""

from __future__ import annotations

import numpy as np
import pytest

from gradcheck_cli.native import nonzeros
from gradcheck_cli.native.selection import kernels
from tests.native.conftest import both, needs_native

pytestmark = needs_native

MANY = 1 << 40
SHAPES = [(0, 1), (1, 1), (5, 7), (64, 64), (65, 200), (300, 130), (700, 90)]


def places(rows, columns, share):
    """Starts and columns of places drawn at random, some rows and columns of which have none."""
    rng = np.random.default_rng([rows, columns, int(100 * share)])
    mask = rng.random((rows, columns)) < share * rng.integers(0, 3, (rows, 1))
    row, column = np.nonzero(mask)
    starts = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=rows))])
    return mask, starts, column.astype(np.int32)


@pytest.mark.parametrize("share", [0.01, 0.1, 0.4])
@pytest.mark.parametrize("shape", SHAPES)
def test_rows_of_one_color_meet_in_no_column_and_no_earlier_color_was_free(shape, share):
    mask, starts, column = places(*shape, share)
    got, right = both(lambda: nonzeros.first_free(starts, column, shape[1], MANY, MANY))
    np.testing.assert_array_equal(got, right)
    meeting = (mask.astype(int) @ mask.T.astype(int)) > 0
    for row, color in enumerate(got):
        earlier = set(got[:row][meeting[row, :row]].tolist())
        assert color == min({*range(row + 1)} - earlier)


@pytest.mark.parametrize("shape", SHAPES[2:])
def test_neither_more_colors_nor_more_work_than_allowed(shape):
    _, starts, column = places(*shape, 0.4)
    every, _ = both(lambda: nonzeros.first_free(starts, column, shape[1], MANY, MANY))
    count, least = int(every.max()) + 1, 2000 * shape[0] + len(column)
    for most, longest, enough in ((count, MANY, True), (count - 1, MANY, False), (count, least - 1, False)):
        got, right = both(
            lambda most=most, longest=longest: nonzeros.first_free(starts, column, shape[1], most, longest)
        )
        assert [got is not None, right is not None] == [enough, enough]


@pytest.mark.parametrize("share", [0.01, 0.4])
@pytest.mark.parametrize("shape", SHAPES)
def test_places_by_column_are_those_of_the_transposed_one(shape, share):
    mask, starts, column = places(*shape, share)
    (row, sorted_), (right_row, right_column) = both(lambda: nonzeros.by_column(starts, column, shape[1]))
    np.testing.assert_array_equal([row, sorted_], [right_row, right_column])
    assert row.dtype == right_row.dtype == sorted_.dtype == np.int32
    np.testing.assert_array_equal([sorted_, row], np.nonzero(mask.T))


@pytest.mark.parametrize("starts, column", [
    ([0, 2], [0]), ([0, 1], [3]), ([0, 1], [-1]), ([1, 1], [0]), ([0, 2, 1], [0, 1]), ([], []),
])  # fmt: skip
def test_places_that_do_not_exist_are_refused(starts, column):
    given = np.array(starts, np.int64), np.array(column, np.int32), 3
    with pytest.raises(TypeError):
        kernels.by_column(*given, *(np.empty(len(column), np.int32) for _ in range(2)))
    with pytest.raises(TypeError):
        kernels.first_free(*given, 9, 9, 9, np.empty(max(len(starts) - 1, 0), np.int64))
