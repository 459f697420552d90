"""Chains give what NumPy gives, to the last bit, whatever the shape, stride, dtype or instruction set."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradcheck_cli import native
from tests.native.conftest import needs_native

pytestmark = needs_native
NUMPY = {
    "copy": lambda x, y, z: x, "negate": lambda x, y, z: -x, "magnitude": lambda x, y, z: np.abs(x),
    "root": lambda x, y, z: np.sqrt(x), "add": lambda x, y, z: np.add(x, y), "subtract": lambda x, y, z: np.subtract(x, y),
    "multiply": lambda x, y, z: np.multiply(x, y), "divide": lambda x, y, z: np.divide(x, y),
    "larger": lambda x, y, z: np.where((x >= y) | np.isnan(y), x, y),
    "smaller": lambda x, y, z: np.where((x <= y) | np.isnan(y), x, y),
    "less": lambda x, y, z: np.less(x, y).astype(x.dtype), "select": lambda x, y, z: np.where(z.astype(bool), x, y),
}  # fmt: skip
SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 5e-324, 1e308, 1.0, -2.5]
SHAPES = [(), (1,), (7,), (0,), (3, 0, 2), (2000,), (3, 1100), (70, 5, 64), (5, 3, 2, 2), (9, 1, 33)]


def laid_out(rng, shape, dtype):
    """An array that broadcasts over a shape, in some order in memory, with gaps or without."""
    own = [n if rng.random() < 0.7 else 1 for n in shape[int(rng.integers(len(shape) + 1)) :]]
    order = rng.permutation(len(own))
    wide = [own[axis] * 2 + 1 for axis in order]
    values = np.where(rng.random(wide) < 0.1, rng.choice(SPECIAL, wide), rng.normal(size=wide))
    with np.errstate(all="ignore"):
        values = values.astype(dtype)
    cut = values[tuple(slice(1, None, 2) if rng.random() < 0.5 else slice(own[axis]) for axis in order)]
    return cut.transpose(np.argsort(order)) if own else cut


def interpreted(code, operands, shape, results):
    """The instructions one by one, in NumPy."""
    known = {i: np.broadcast_to(x, shape) for i, x in enumerate(operands)}
    with np.errstate(all="ignore"):
        for operation, to, *read in zip(*[iter(code)] * 5, strict=True):
            known[to] = np.array(NUMPY[native.NAMES[operation]](*(known[i] for i in read)))
    return [known[len(operands) + i] for i in range(results)]


def drawn(rng, operands, results, hidden, length):
    """Instructions that read what is there, and make every result."""
    known, code = list(range(operands)), bytearray()
    for i in range(length + results):
        to = operands + i - length if i >= length else operands + int(rng.integers(results + hidden))
        code += bytes((int(rng.integers(len(native.NAMES))), to, *(int(i) for i in rng.choice(known, 3))))
        known.append(to)
    return bytes(code)


def same(got, want):
    for a, b in zip(got, want, strict=True):
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        np.testing.assert_array_equal(a, b)
        known = ~np.isnan(b)
        np.testing.assert_array_equal(np.signbit(a[known]), np.signbit(b[known]))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_chain_gives_what_its_operations_give_one_by_one(isa, shape, dtype):
    for seed in range(12):
        rng = np.random.default_rng([seed, *shape])
        operands = [laid_out(rng, shape, dtype) for _ in range(rng.integers(1, 6))]
        results, hidden = int(rng.integers(1, 4)), int(rng.integers(0, 4))
        code = drawn(rng, len(operands), results, hidden, int(rng.integers(1, 12)))
        same(native.fused(code, operands, shape, results, hidden), interpreted(code, operands, shape, results))


@given(st.integers(0, 2**32 - 1), st.lists(st.integers(0, 70), min_size=0, max_size=5))
@settings(max_examples=60, deadline=None)
def test_any_shape_does(seed, sizes):
    rng, shape = np.random.default_rng(seed), tuple(sizes[:3])
    operands = [laid_out(rng, shape, "float64") for _ in range(3)]
    code = drawn(rng, 3, 2, 2, 6)
    with native.use("native"):
        same(native.fused(code, operands, shape, 2, 2), interpreted(code, operands, shape, 2))


def test_numbers_that_lie_across_boundaries_are_copied_first():
    raw = np.zeros(8 * 10 + 1, np.uint8)[1:].view(np.float64)
    raw[:] = np.arange(10)
    add = bytes((native.NAMES.index("add"), 1, 0, 0, 0))
    with native.use("native"):
        [made] = native.fused(add, [raw], (10,), 1, 0)
    np.testing.assert_array_equal(made, 2.0 * np.arange(10))


@pytest.mark.parametrize("dtypes", [("float32", "float64"), ("int64",), ("complex128",), ("float16",), ("bool",)])
def test_what_is_not_of_one_real_dtype_is_left_to_numpy(dtypes):
    copy = bytes((native.NAMES.index("copy"), len(dtypes), 0, 0, 0))
    with native.use("native"):
        assert native.fused(copy, [np.zeros(3, dtype) for dtype in dtypes], (3,), 1, 0) is None


def test_numpy_runs_everything_if_told_to():
    with native.use("numpy"):
        assert native.fused(bytes(5), [np.zeros(3)], (3,), 1, 0) is None


@pytest.mark.parametrize(
    ("code", "operand", "hidden"),
    [
        (bytes((4, 3, 0, 0, 0)), (3,), 0),  # no such value to go to
        (bytes((4, 0, 0, 0, 0)), (3,), 0),  # an operand to go to
        (bytes((4, 1, 0, 2, 0)), (3,), 0),  # no such value to read
        (bytes((99, 1, 0, 0, 0)), (3,), 0),  # no such operation
        (bytes((4, 1, 0, 0, 0)), (4,), 0),  # a shape that does not broadcast
        (bytes((4, 1, 0, 0, 0)), (2, 3), 0),  # more axes than the result has
        (bytes((4, 1, 0, 0, 0)), (3,), 400),  # too many values
    ],
)
def test_instructions_that_cannot_be_are_refused(code, operand, hidden):
    with native.use("native"), pytest.raises(ValueError, match="chain"):
        native.fused(code, [np.zeros(operand)], (3,), 1, hidden)
