"""Boxes that the kernels cut out of a tensor and put back into it, against slices."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from gradcheck_cli import native
from gradcheck_cli.native.selection import kernels
from tests.native.test_pools import BYTES, COMPLEX, REAL, draw, needs_native

pytestmark = needs_native
SHAPE = (4, 5, 3, 6)
MOVING = [m for n in range(1, 5) for m in itertools.combinations(range(4), n)]


def geometry(moving, count=7):
    rng = np.random.default_rng(len(moving))
    lengths = [int(rng.integers(1, n + 1)) if d in moving else n for d, n in enumerate(SHAPE)]
    starts = [rng.integers(0, n - m + 1, count) if d in moving else None
              for d, (n, m) in enumerate(zip(SHAPE, lengths, strict=True))]  # fmt: skip
    return starts, lengths


def of_box(starts, lengths, p):
    at = (0 if start is None else int(start[p]) for start in starts)
    return tuple(slice(s, s + m) for s, m in zip(at, lengths, strict=True))


@pytest.mark.parametrize("moving", MOVING)
@pytest.mark.parametrize("dtype", [*REAL, *COMPLEX, *BYTES, "int64", "bool"])
@pytest.mark.parametrize("layout", ["as it is", "transposed", "broadcast", "every other"])
def test_boxes_are_slices(moving, dtype, layout):
    x = {
        "as it is": draw(SHAPE, dtype),
        "transposed": draw(SHAPE[::-1], dtype).T,
        "broadcast": np.broadcast_to(draw((1, 5, 1, 6), dtype), SHAPE),
        "every other": draw((8, 5, 3, 12), dtype)[::2, ::-1, :, ::2],
    }[layout]
    starts, lengths = geometry(moving)
    with native.use("native"):
        cut = native.cut_out(x, starts, lengths)
    assert cut is not None
    assert cut.dtype == x.dtype
    for p, box in enumerate(cut):
        assert np.array_equal(box, x[of_box(starts, lengths, p)])


@pytest.mark.parametrize("moving", MOVING)
@pytest.mark.parametrize("dtype", [*REAL, *COMPLEX])
@pytest.mark.parametrize("turned", [False, True])
def test_boxes_that_are_put_back_replace_slices(moving, dtype, turned):
    starts, lengths = geometry(moving)
    probes, count = np.random.default_rng(0).permutation(9)[:7], 9
    whole = draw((count, *(SHAPE[::-1] if turned else SHAPE)), dtype)
    whole = whole.transpose(0, *range(4, 0, -1)) if turned else whole
    boxes, want = draw((7, *lengths), dtype, 1), whole.copy()
    for p, (probe, box) in enumerate(zip(probes, boxes, strict=True)):
        want[probe][of_box(starts, lengths, p)] = box
    with native.use("native"):
        assert native.put_back(whole, [probes, *starts], [1, *lengths], boxes)
    assert np.array_equal(whole, want)


@pytest.mark.parametrize("start", [-1, 4, 1 << 40])
def test_boxes_partly_outside_are_left_alone(start):
    x, places = np.ones((3, 6)), [None, np.array([0, start])]
    with native.use("native"):
        assert native.cut_out(x, places, [3, 3]) is None
        assert not native.put_back(x, places, [3, 3], np.zeros((2, 3, 3)))
    assert x.all()


@pytest.mark.parametrize("other", ["float16", "complex256", "object"])
def test_what_the_kernels_cannot_copy_is_told(other):
    x = np.ones((3, 6), other)
    if x.dtype.itemsize == 16:
        pytest.skip("long double is float64 here")
    with native.use("native"):
        assert native.cut_out(x, [None, np.array([0])], [3, 3]) is None


@pytest.mark.parametrize("wrong", [([None], [3, 3]), ([None, np.array([0]), None], [3, 3, 1])])
def test_a_start_and_a_length_are_given_for_each_axis(wrong):
    starts, lengths = wrong
    with pytest.raises(TypeError, match="for each axis"):
        kernels.copy_boxes(np.ones((3, 6)), starts, lengths, np.ones((1, *lengths)), False)


def test_threads_copy_alike():
    x, before = draw((64, 64), "float64"), kernels.threads()
    starts = [np.arange(4000) % 33, np.arange(4000) % 31]
    alone = native.cut_out(x, starts, [32, 34])
    try:
        for count in (2, 5):
            kernels.set_threads(count)
            assert np.array_equal(native.cut_out(x, starts, [32, 34]), alone)
    finally:
        kernels.set_threads(before)
