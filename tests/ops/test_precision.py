"""Results in the model's own dtypes: sums of thousands of numbers are right to one rounding; dtypes are ONNX's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
from onnx import ValueInfoProto
from onnx.helper import make_graph, make_model, make_node, tensor_dtype_to_np_dtype
from onnx.shape_inference import infer_shapes

from gradcheck_cli.graph import Array
from tests.ops.case import arr, case
from tests.ops.test_onnxruntime import value_info

COUNT = 4096
UNITS = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}


class Sum(NamedTuple):
    """An operator that adds entries, what it computes in float64, and how many roundings it takes."""

    op: str
    expected: Callable[[Array, int], Array]
    roundings: float = 1.0
    as_attribute: bool = False  # the axis is an attribute, not an input


def softmax(x: Array, axis: int) -> Array:
    grown = np.exp(x - np.max(x, axis, keepdims=True))
    return grown / np.sum(grown, axis, keepdims=True)


def log_sum_exp(x: Array, axis: int) -> Array:
    top = np.max(x, axis, keepdims=True)
    return np.log(np.sum(np.exp(x - top), axis, keepdims=True)) + top


def running(x: Array, axis: int) -> Array:
    return np.cumsum(x, axis)


SUMS = [
    Sum("ReduceSum", lambda x, axis: np.sum(x, axis, keepdims=True)),
    Sum("ReduceMean", lambda x, axis: np.mean(x, axis, keepdims=True)),
    Sum("ReduceL1", lambda x, axis: np.sum(np.abs(x), axis, keepdims=True)),
    Sum("ReduceL2", lambda x, axis: np.sqrt(np.sum(x * x, axis, keepdims=True)), 3),
    Sum("ReduceSumSquare", lambda x, axis: np.sum(x * x, axis, keepdims=True), 2),
    Sum("ReduceLogSumExp", log_sum_exp, 3),
    Sum("CumSum", running),
    Sum("Softmax", softmax, 6, as_attribute=True),
    Sum("LogSoftmax", lambda x, axis: x - log_sum_exp(x, axis), 4, as_attribute=True),
]


def entries(dtype: Any, axis: int) -> Array:
    """Numbers of one sign, so that the sum is as large as it can be, many of them along one axis."""
    shape = [3, 2]
    shape.insert(axis, COUNT)
    return np.random.default_rng(0).uniform(0, 1, shape).astype(dtype)


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16], ids=lambda d: d.__name__)
@pytest.mark.parametrize("tested", SUMS, ids=lambda s: s.op)
def test_a_long_sum_is_right_to_one_rounding(tested: Sum, dtype: Any, axis: int):
    x = entries(dtype, axis)
    one = case(tested.op, x, axis=axis) if tested.as_attribute else case(tested.op, x, np.asarray(axis))
    actual = one.tape(dtype="model").named["y0"].value
    expected = tested.expected(x.astype(np.float64), axis)
    assert actual.dtype == dtype
    bound = tested.roundings * UNITS[np.dtype(dtype).name]
    np.testing.assert_allclose(actual.astype(np.float64), expected, rtol=1.01 * bound)


def test_a_mean_is_finite_where_the_sum_is_not():
    x = np.full((COUNT, 2), 1000.0, np.float16)
    actual = case("ReduceMean", x, np.asarray([0])).tape(dtype="model").named["y0"].value
    np.testing.assert_array_equal(actual, np.full((1, 2), 1000.0, np.float16))


OF_OTHER_DTYPES = {  # operators with results in a dtype that is not that of operand 0, as ONNX infers it
    "statistics": ("LayerNormalization", lambda dtype: [(2, 4, dtype), (4, dtype)], {}, 3),
    "statistics in bfloat16": ("LayerNormalization", lambda dtype: [(2, 4, dtype), (4, dtype)], {"stash_type": 16}, 3),
    "values beside queries": (
        "Attention", lambda dtype: [(1, 2, 3, 4, dtype), (1, 2, 5, 4, dtype), (1, 2, 5, 4, np.float32)], {}, 1,
    ),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64], ids=lambda d: d.__name__)
@pytest.mark.parametrize("name", OF_OTHER_DTYPES)
def test_results_have_the_dtypes_that_onnx_infers(name: str, dtype: Any):
    op, shapes, attrs, count = OF_OTHER_DTYPES[name]
    tested = case(op, *(arr(*shape).astype(kind) for *shape, kind in shapes(dtype)), n_outputs=count, **attrs)
    given = [value_info(n, x.dtype, x.shape) for n, x in tested.feeds.items()]
    proto = make_model(make_graph([make_node(op, tested.names, tested.outputs, **attrs)], "g", given, [
        ValueInfoProto(name=n) for n in tested.outputs]))  # fmt: skip
    inferred = infer_shapes(proto, strict_mode=True).graph.output
    tape = tested.tape(dtype="model")
    found = [tensor_dtype_to_np_dtype(info.type.tensor_type.elem_type) for info in inferred]
    assert [tape.named[n].value.dtype for n in tested.outputs] == found
