"""Whatever a model gives out is held against onnxruntime where that can be: maps, sequences, ties, random numbers apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from google.protobuf import json_format
from onnx import TensorProto, helper, numpy_helper

import gradcheck_cli as gc
from gradcheck_cli.checks.forward.stepwise import first_differing
from gradcheck_cli.op import Ops
from tests.checking.small import save
from tests.forward.held import forward

pytest.importorskip("onnxruntime")

RNG = np.random.default_rng(11)
WRONG_SOFTMAX: Ops = {**gc.OPS, ("", "Softmax"): replace(gc.OPS["", "LogSoftmax"], name="Softmax")}
LABELS: dict[int, Mapping[str, Any]] = {
    TensorProto.STRING: {"classlabels_strings": ["b", "a", "c"]},
    TensorProto.INT64: {"classlabels_int64s": [5, 2, 9]},
}


def zipped(path: Path, key: int) -> Path:
    """A classifier that gives out a map for each row."""
    weights = numpy_helper.from_array(RNG.normal(size=(4, 3)).astype(np.float32), "w")
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Softmax", ["h"], ["p"]),
             helper.make_node("ZipMap", ["p"], ["z"], domain="ai.onnx.ml", **LABELS[key])]  # fmt: skip
    kind = helper.make_map_type_proto(key, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
    z = helper.make_value_info("z", helper.make_sequence_type_proto(kind))
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 4])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    onnx.save(
        helper.make_model(helper.make_graph(nodes, "g", [x], [z], [weights]), opset_imports=opsets, ir_version=8), path
    )
    return path


@pytest.mark.parametrize("key", LABELS)
def test_the_maps_of_a_classifier_are_compared_by_their_keys(tmp_path: Path, key: int) -> None:
    path = zipped(tmp_path / "m.onnx", key)
    for ops, agrees in ((gc.OPS, True), (WRONG_SOFTMAX, False)):
        records = gc.check(gc.load(path), ops=ops).checks
        assert {(c.forward["agrees"], c.status) for c in records} == {(agrees, "pass")}
    assert {c.forward["first_node"]["op"] for c in records} == {"Softmax"}


def test_a_map_of_other_keys_differs(tmp_path: Path) -> None:
    right = gc.OPS["ai.onnx.ml", "ZipMap"]

    def swapped(x: Any, *, classlabels_int64s: Any = (), classlabels_strings: Any = ()) -> Any:
        return right.forward(x, classlabels_strings=("a", "b", "c"))

    path, ops = zipped(tmp_path / "m.onnx", TensorProto.STRING), {**gc.OPS, right.key: replace(right, forward=swapped)}
    assert {c.forward["agrees"] for c in gc.check(gc.load(path), ops=ops).checks} == {False}


def test_the_tensors_of_a_sequence_are_compared(tmp_path: Path) -> None:
    text = "m (float[4,3] x) => (seq(float[2,3]) s) { p = Softmax (x)  s = SplitToSequence <axis = 0> (p, two) }"
    path = save(tmp_path / "m.onnx", text, two=np.int64(2))
    for ops, agrees in ((gc.OPS, True), (WRONG_SOFTMAX, False)):
        found = {c.y: c.forward["agrees"] for c in gc.check(gc.load(path), ops=ops).checks}
        assert found == {"s[0]": agrees, "s[1]": agrees}


TIED = {
    "TopK of what Relu made equal": "r = Relu (x)  v, i = TopK (r, k)  f = Cast <to = 1> (i)  y = Mul (v, f)",
    "ArgMax of equal entries": "r = Relu (x)  i = ArgMax <axis = -1> (r)  f = Cast <to = 1> (i)  y = Add (x, f)",
    "unsorted TopK": "r = Relu (x)  y, i = TopK <sorted = 0> (r, k)",
    "Round of halves that a sum makes": "s = ReduceMean <axes = [1]> (x)  y = Round (s)  z = Add (y, s)",
}


@pytest.mark.parametrize("name", TIED)
def test_a_choice_among_equal_entries_is_no_difference(tmp_path: Path, name: str) -> None:
    path = save(tmp_path / "m.onnx", f"m (float[6,40] x) => (float[M,N] y) {{ {TIED[name]} }}", k=np.int64([25]))
    for seed in range(5):
        [found] = forward(path, seed=seed).values()
        assert found["agrees"] is True, found


def test_others_of_equal_entries_may_be_chosen_but_no_others(tmp_path: Path) -> None:
    text = (
        "m (float[6,8] x) => (float[6,6] y) { r = Relu (x)  v, i = TopK (r, k)  f = Cast <to = 1> (i)  y = Add (v, f) }"
    )
    path, top = save(tmp_path / "m.onnx", text, k=np.int64([6])), gc.OPS["", "TopK"]

    def last_of_equal(x: Any, **metadata: Any) -> Any:
        values, places = top.forward(x[..., ::-1], **metadata)
        return values, x.shape[-1] - 1 - places

    def next_to_it(x: Any, **metadata: Any) -> Any:
        values, places = top.forward(x, **metadata)
        return values, (places + 1) % x.shape[-1]

    for kernel, agrees in ((last_of_equal, True), (next_to_it, False)):
        found = forward(path, {**gc.OPS, top.key: replace(top, forward=kernel)})["y"]
        assert found["agrees"] is agrees, found


def test_long_sums_may_be_off_by_roundings_of_their_size(tmp_path: Path) -> None:
    """Some times the root of the number of terms."""
    text = "m (float[1,4096] x) => (float[1,1] y) { e = Exp (x)  y = MatMul (e, w) }"
    path = save(tmp_path / "m.onnx", text, w=np.full((4096, 1), 100, np.float32))
    product, rounding = gc.OPS["", "MatMul"], float(np.finfo(np.float32).eps)
    for roundings, agrees in ((100, True), (10_000, False)):
        off = replace(product, forward=lambda a, b, n=roundings: product.forward(a, b) * (1 + n * rounding))
        found = forward(path, {**gc.OPS, off.key: off})["y"]
        assert found["agrees"] is agrees, found


@pytest.mark.parametrize("off, agrees", [(1e-8, True), (1e-6, False)])
def test_results_in_float64_may_be_off_by_what_float32_explains(tmp_path: Path, off: float, agrees: bool) -> None:
    text, product = "m (double[4,8] x) => (double[4,3] y) { y = MatMul (x, w) }", gc.OPS["", "MatMul"]
    path = save(tmp_path / "m.onnx", text, w=RNG.normal(size=(8, 3)))
    wrong = replace(product, forward=lambda a, b: product.forward(a, b) * (1 + off))
    assert forward(path, {**gc.OPS, wrong.key: wrong})["y"]["agrees"] is agrees


@pytest.mark.parametrize("roundings, agrees", [(1000, True), (100_000, False)])
def test_a_sigmoid_may_be_off_by_roundings_of_its_largest_operand(tmp_path: Path, roundings: int, agrees: bool) -> None:
    text = "m (float[1,7] x) => (float[1,8] y) { r = Concat <axis = 1> (x, large)  y = Sigmoid (r) }"
    path, sigmoid = save(tmp_path / "m.onnx", text, large=np.full((1, 1), 1000, np.float32)), gc.OPS["", "Sigmoid"]
    off = roundings * float(np.finfo(np.float32).eps)
    wrong = replace(sigmoid, forward=lambda x: sigmoid.forward(x) + off)
    assert forward(path, {**gc.OPS, wrong.key: wrong})["y"]["agrees"] is agrees


def test_sums_of_bytes_that_overflow_on_a_processor_accuse_no_model_and_hide_no_other_node(tmp_path: Path) -> None:
    text = (
        "m (float[2,64] x) => (float[2,3] y) { q, s, z = DynamicQuantizeLinear (x)  i = MatMulInteger (q, w, z) "
        "f = Cast <to = 1> (i)  h = Mul (f, c)  y = Softmax (h) }"
    )
    weights = np.tile(np.int8([[127, -127, 120]]), (64, 1))
    path = save(tmp_path / "m.onnx", text, w=weights, c=np.float32(1e-6))
    found = forward(path)["y"]
    assert found["agrees"] is True or "overflow on this processor" in found["reason"], found
    wrong = forward(path, WRONG_SOFTMAX)["y"]
    assert (wrong["agrees"], wrong["first_node"]["op"]) == (False, "Softmax"), wrong


@pytest.mark.parametrize("factor, told", [(0.0, True), (1.0, False)])
def test_nan_that_has_become_an_integer_is_told_where_the_integers_differ(
    tmp_path: Path, factor: float, told: bool
) -> None:
    text = "m (float[3] x) => (float[3] y) { z = Mul (x, f)  n = Div (z, z)  q = QuantizeLinear (n, s, p) \
        d = DequantizeLinear (q, s, p)  y = Mul (d, x) }"
    constants = {"f": np.float32(factor), "s": np.float32(0.1), "p": np.int8(12)}
    off = replace(gc.OPS["", "QuantizeLinear"], forward=_plus_one(gc.OPS["", "QuantizeLinear"].forward))
    found = forward(save(tmp_path / "m.onnx", text, **constants), {**gc.OPS, ("", "QuantizeLinear"): off})["y"]
    assert (found["agrees"], found["first_node"]["op"]) == (False, "QuantizeLinear")
    assert ("NaN goes into it, and ONNX leaves open which integer that becomes" in found["reason"]) == told


def _plus_one(function: Any) -> Any:
    return lambda *operands, **attributes: function(*operands, **attributes) + np.int8(1)


@pytest.mark.parametrize("to", ["FLOAT8E4M3FN", "FLOAT8E5M2", "BFLOAT16"])
def test_types_that_numpy_lacks_are_compared_where_they_are_numbers_again(tmp_path: Path, to: str) -> None:
    text = f"m (float[3,4] x) => (float y) {{ q = Cast <to = {TensorProto.DataType.Value(to)}> (x) \
        f = Cast <to = 1> (q)  y = ReduceSum <keepdims = 0> (f) }}"
    found = forward(save(tmp_path / "m.onnx", text, opset=19))["y"]
    assert found["agrees"] is not False, found


DRAWN = {
    "Dropout in training": "d, m = Dropout (x, half, yes)",
    "Dropout in training with a seed": "d, m = Dropout <seed = 3> (x, half, yes)",
    "a uniform mask": "u = RandomUniformLike (x)  d = Mul (u, x)",
    "Bernoulli": "p = Sigmoid (x)  b = Bernoulli (p)  d = Mul (b, x)",
    "within a branch": "d = If (yes) <then_branch = t () => (float[8] a) { a, m = Dropout (x, half, yes) }, "
                       "else_branch = e () => (float[8] b) { b = Identity (x) }>",
}  # fmt: skip


@pytest.mark.parametrize("name", DRAWN)
def test_what_depends_on_random_numbers_is_not_compared_and_the_rest_is(tmp_path: Path, name: str) -> None:
    text = f"m (float[8] x) => (float[8] y, float[8] z) {{ {DRAWN[name]}  y = Tanh (d)  z = Tanh (x) }}"
    path = save(tmp_path / "m.onnx", text, half=np.float32(0.5), yes=np.bool_(True))
    found = forward(path)
    assert (found["y"]["agrees"], found["z"]["agrees"]) == (None, True)
    assert "draws random numbers" in found["y"]["reason"]
    assert "node 0" in found["y"]["reason"] or "node 1" in found["y"]["reason"]


def test_dropout_that_drops_nothing_is_compared(tmp_path: Path) -> None:
    text = "m (float[8] x) => (float[8] y) { d = Dropout (x)  y = Tanh (d) }"
    assert forward(save(tmp_path / "m.onnx", text))["y"]["agrees"] is True


def test_rounding_that_a_chaotic_model_magnifies_is_no_difference(tmp_path: Path) -> None:
    lines = "".join(f" a{i} = Mul (h{i}, four) b{i} = Sub (one, h{i}) h{i + 1} = Mul (a{i}, b{i})" for i in range(40))
    text = f"m (float[8] h0) => (float[8] h40) {{ {lines} }}"
    path = save(tmp_path / "m.onnx", text, four=np.float32(3.99), one=np.float32(1))
    [record] = gc.check(gc.load(path), val_range={"h0": (0.2, 0.8)}, mode="directional").checks
    assert (record.forward["agrees"], record.gates) == (True, ())


def test_what_overflows_in_half_precision_where_it_is_given_out_is_no_misreading(tmp_path: Path) -> None:
    large = np.full((2, 3), [[1.0], [300.0]], np.float16)
    text = """g (float16[2, 3] x) => (float16[2, 3] y) { g = Mul (s, s)  h = Mul (x, g)  y = Tanh (h) }"""
    path = save(tmp_path / "m.onnx", text, s=large)
    found = forward(path)["y"]
    assert found["compared_with"]
    assert found["agrees"], found
    wrong: Ops = {**gc.OPS, ("", "Mul"): replace(gc.OPS["", "Mul"], forward=lambda a, b: a * b * np.float16(1.1))}
    assert forward(path, wrong)["y"]["agrees"] is False


def test_at_the_end_of_the_range_of_halves_a_result_may_be_infinite(tmp_path: Path) -> None:
    """As the lowest number less what is returned as 16, and was 15.994 or 16.006."""
    text = "g (float16[60] x) => (float16[60] y) { h = Mul (x, small)  s = Add (h, c)  y = Sub (lowest, s) }"
    path = save(tmp_path / "m.onnx", text, small=np.float16(6e-3), c=np.float16(16), lowest=np.float16(-65504))
    found = forward(path)["y"]
    assert found["agrees"], found
    wrong = replace(gc.OPS["", "Sub"], forward=lambda a, b: a - b * a.dtype.type(200))
    assert forward(path, {**gc.OPS, wrong.key: wrong})["y"]["agrees"] is False


@pytest.mark.parametrize("node", ["Sqrt (a)", "Div (a, small)", "Div (large, a)"])
def test_half_numbers_below_the_normal_range_are_known_to_half_a_unit(tmp_path: Path, node: str) -> None:
    """Between nodes onnxruntime keeps float32, in which 6e-6 has all its digits; as a half it has seven bits."""
    text = f"g (float16[40] x) => (float16[40] y) {{ s = Sigmoid (x)  a = Mul (s, small)  y = {node} }}"
    path = save(tmp_path / "m.onnx", text, small=np.float16(1e-5), large=np.float16(0.01))
    found = forward(path)["y"]
    assert found["agrees"], found
    key = ("", node.split()[0])
    wrong = replace(gc.OPS[key], forward=_times(gc.OPS[key].forward, 4.0))
    assert forward(path, {**gc.OPS, key: wrong})["y"]["agrees"] is False


def test_a_difference_of_two_large_halves_is_no_misreading(tmp_path: Path) -> None:
    """Moves of both in one direction cancel: where signs alone were drawn they did so in all draws for some rows."""
    text = "g (float16[500, 40] x) => (float16[500, 40] y) { a = Mul (x, by)  y = Softmax (a) }"
    path = save(tmp_path / "m.onnx", text, by=np.float16(40.0))
    found = forward(path)["y"]
    assert found["agrees"], found
    assert forward(path, WRONG_SOFTMAX)["y"]["agrees"] is False


def test_a_long_mean_in_another_order_is_no_misreading(tmp_path: Path) -> None:
    """onnxruntime adds up 2 million numbers one after the other; each is rounded to float32."""
    text = """g (float[8, 8] x) => (float[1, 1] y) {
        b = Add (x, one)  z = Resize (b, , by)  y = ReduceMean <keepdims = 1> (z)
    }"""
    by = np.array([180, 180], np.float32)
    path = save(tmp_path / "m.onnx", text, by=by, one=np.float32(1.5))
    assert forward(path)["y"]["agrees"]
    wrong: Ops = {**gc.OPS, ("", "ReduceMean"): replace(gc.OPS["", "ReduceMean"], name="ReduceMean", forward=_off)}
    assert forward(path, wrong)["y"]["agrees"] is False


def _off(x: np.ndarray[Any, Any], *, axes: Any = None, keepdims: int = 1, **rest: Any) -> np.ndarray[Any, Any]:
    return np.asarray(np.mean(x, axis=axes, keepdims=bool(keepdims)) * 1.01, x.dtype)


@pytest.mark.one_in(12)
@pytest.mark.parametrize("val_range", [(-1.0, 1.0), (1000.0, 1001.0)])
@pytest.mark.parametrize("attrs", ["", "<reverse=1>", "<exclusive=1, reverse=1>"])
def test_rounding_of_long_running_sums_is_no_difference(
    tmp_path: Path, attrs: str, val_range: tuple[float, float]
) -> None:
    """A float32 sum of one sign is off by percents after some hundred thousand terms."""
    count = 300_000
    text = f"g (float[{count}] x) => (float[{count}] y) {{ y = CumSum {attrs} (x, a) }}"
    path = save(tmp_path / "m.onnx", text, a=np.array(0))
    [record] = gc.check(gc.load(path), mode="directional", val_range={"x": val_range}).checks
    assert (record.status, record.forward["agrees"]) == ("pass", True), record.forward["reason"]
    wrong = {**gc.OPS, ("", "CumSum"): replace(gc.OPS["", "CumSum"], forward=_shifted_sum)}
    [record] = gc.check(gc.load(path), mode="directional", val_range={"x": val_range}, ops=wrong).checks
    assert record.forward["agrees"] is False


def _shifted_sum(x: Any, *, axis: int, exclusive: int = 0, reverse: int = 0) -> Any:
    """Running sums from the wrong end."""
    right = gc.OPS["", "CumSum"].forward
    return right(x, axis=axis, exclusive=exclusive, reverse=1 - reverse)


@pytest.mark.slow
@pytest.mark.parametrize("node", [
    "GlobalAveragePool (x)", "GlobalLpPool (x)", "ReduceL2 (x)", "ReduceL1 (x)", "ReduceSumSquare (x)",
])  # fmt: skip
def test_rounding_of_long_sums_of_near_equals_is_no_difference(tmp_path: Path, node: str) -> None:
    """Rounding of a float32 sum of near-equal terms has one direction until the sum doubles."""
    path = save(tmp_path / "m.onnx", f"g (float[1, 1, 1500, 1000] x) => (float[1, 1, 1, 1] y) {{ y = {node} }}")
    [record] = gc.check(gc.load(path), mode="directional", val_range={"x": (1000.0, 1001.0)}).checks
    assert (record.status, record.forward["agrees"]) == ("pass", True), record.forward["reason"]
    off = gc.OPS["", node.split()[0]]
    wrong = {**gc.OPS, off.key: replace(off, forward=lambda x, **rest: off.forward(x, **rest) * 1.2)}
    [record] = gc.check(gc.load(path), mode="directional", val_range={"x": (1000.0, 1001.0)}, ops=wrong).checks
    assert record.forward["agrees"] is False


@pytest.mark.parametrize("op", ["Sum", "Mean"])
def test_rounding_of_a_sum_of_many_tensors_is_no_difference(tmp_path: Path, op: str) -> None:
    """onnxruntime adds them one by one: rounding of equal ones has one direction until the sum doubles."""
    equal = " ".join(f"t{i} = Tanh (x)" for i in range(1000))
    text = f"g (float[50] x) => (float[50] y) {{ {equal} y = {op} ({', '.join(f't{i}' for i in range(1000))}) }}"
    path = save(tmp_path / "m.onnx", text)
    assert forward(path)["y"]["agrees"]
    right = gc.OPS["", op].forward
    wrong = {**gc.OPS, ("", op): replace(gc.OPS["", op], forward=lambda *xs: right(*xs) * 1.01)}
    assert forward(path, wrong)["y"]["agrees"] is False


def test_zeros_from_onnxruntime_explain_nothing(tmp_path: Path) -> None:
    """Rounding relative to a result that is 0 everywhere has no size."""
    path = save(tmp_path / "m.onnx", "g (float[40] x) => (float[40] y) { a = Exp (x)  b = Exp (x)  y = Sub (a, b) }")
    assert forward(path)["y"]["agrees"]
    wrong: Ops = {**gc.OPS, ("", "Sub"): replace(gc.OPS["", "Sub"], forward=lambda a, b: a - b + 0.1 * a)}
    assert forward(path, wrong)["y"]["agrees"] is False


@pytest.mark.parametrize("size", [1e-44, 1e-43, 1e-42, 1e-39])
def test_below_the_normal_range_results_may_be_off_by_some_smallest_numbers(tmp_path: Path, size: float) -> None:
    text = 'g (float[1,2,6,6] x) => (float[1,2,12,12] y) { h = Abs(x) y = Resize<mode="linear">(h, , scales) }'
    path = save(tmp_path / "m.onnx", text, scales=np.array([1, 1, 2, 2], np.float32))
    graph, feeds = gc.load(path).graph, {"x": np.full((1, 2, 6, 6), size, np.float32)}
    assert first_differing(path.read_bytes(), graph, gc.OPS, feeds) == (None, "")
    doubled = replace(gc.OPS["", "Abs"], forward=lambda x: 2 * abs(x))
    node, how = first_differing(path.read_bytes(), graph, {**gc.OPS, ("", "Abs"): doubled}, feeds)
    assert node == (0 if size > 1e-44 else None), how


@pytest.mark.parametrize(("transform", "off", "agrees"), [
    ("PROBIT", 0.0, True), ("PROBIT", 0.05, False), ("NONE", 0.0, True), ("NONE", 1e-4, False),
])  # fmt: skip
def test_a_quantile_near_0_may_be_off_by_the_root_of_a_rounding(
    tmp_path: Path, transform: str, off: float, agrees: bool
) -> None:
    """onnxruntime's is the root of a difference: 0 at a score of 0.500025, where it is 6e-5."""
    node = helper.make_node("LinearClassifier", ["x"], ["l", "y"], domain="ai.onnx.ml", coefficients=[1.0] * 3,
                            intercepts=[0.0] * 3, classlabels_ints=[0, 1, 2], post_transform=transform)  # fmt: skip
    ends = [("x", TensorProto.FLOAT, [50, 1]), ("l", TensorProto.INT64, [50]), ("y", TensorProto.FLOAT, [50, 3])]
    x, *results = (helper.make_tensor_value_info(*end) for end in ends)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    graph = helper.make_graph([node], "g", [x], results)
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path := tmp_path / "m.onnx")
    right = gc.OPS[node.domain, node.op_type]
    ops = {**gc.OPS, right.key: replace(right, forward=_moved(right.forward, off))}
    [record] = gc.check(gc.load(path), y="y", val_range={"x": (0.4999, 0.5001)}, ops=ops).checks
    assert record.forward["agrees"] is agrees, record.forward["reason"]


def _moved(function: Any, off: float) -> Any:
    """The classifier with scores that are off."""

    @wraps(function)  # attributes are bound by its signature
    def moved(*operands: Any, **metadata: Any) -> Any:
        labels, scores = function(*operands, **metadata)
        return labels, scores + off

    return moved


@pytest.mark.parametrize("points", [250, 600, 1000])
@pytest.mark.parametrize("node", ["DFT (x, , axis)", "STFT (x, step, , length)"])
def test_a_transform_may_be_off_by_the_rounding_of_its_angles(tmp_path: Path, node: str, points: int) -> None:
    """Of a number of points that is no power of two onnxruntime takes angles up to pi times that number, in float32."""
    path = save(tmp_path / "m.onnx", f"g (float[2, {points}, 1] x) => (y) {{ y = {node} }}", 20, axis=np.array(1),
                step=np.array(1), length=np.array(points))  # fmt: skip
    found = forward(path)["y"]
    assert found["agrees"], found
    right = gc.OPS["", "DFT"]
    wrong = replace(right, forward=_times(right.forward, 1 + 8e-6 * points))
    assert forward(path, {**gc.OPS, right.key: wrong})["y"]["agrees"] is False


def test_a_transform_of_as_many_points_as_a_power_of_two_may_not(tmp_path: Path) -> None:
    path = save(tmp_path / "m.onnx", "g (float[2, 1024, 1] x) => (y) { y = DFT (x, , axis) }", 20, axis=np.array(1))
    right = gc.OPS["", "DFT"]
    wrong = replace(right, forward=_times(right.forward, 1 + 5e-5))
    assert forward(path, {**gc.OPS, right.key: wrong})["y"]["agrees"] is False


@pytest.mark.parametrize("dtype", ["float", "double"])
@pytest.mark.parametrize("mean", [0.0, 3.0, 30.0])
def test_a_variance_may_be_off_as_a_difference_of_squares_is(tmp_path: Path, mean: float, dtype: str) -> None:
    """onnxruntime takes the square of the mean from the mean of squares, in float32."""
    text = f"""g ({dtype}[2, 4, 6] x, {dtype}[4] s, {dtype}[4] b) => (y) {{
        c = CastLike (mean, x)  h = Add (x, c)  y = GroupNormalization <num_groups = 2> (h, s, b)
    }}"""
    path = save(tmp_path / "m.onnx", text, 21, mean=np.float32(mean))
    found = forward(path)["y"]
    assert found["agrees"], found
    right = gc.OPS["", "GroupNormalization"]
    wrong = replace(right, forward=_times(right.forward, 1 + 1e-4 * (1 + mean**2)))
    assert forward(path, {**gc.OPS, right.key: wrong})["y"]["agrees"] is False


@pytest.mark.parametrize("epsilon", ["1e-5", "1e-10"])
def test_a_single_value_less_its_mean_may_be_off_by_what_is_multiplied(tmp_path: Path, epsilon: str) -> None:
    """onnxruntime takes the mean times the slope from x times the slope, which is large where nothing varies."""
    text = f"""g (float[2, 3, 1] x) => (y) {{
        h = Tanh (x)  y = InstanceNormalization <epsilon = {epsilon}> (h, s, b)
    }}"""
    path = save(tmp_path / "m.onnx", text, 17, s=np.float32([1.5, 2, 1.1]), b=np.float32([0.3, 0.1, 0.7]))
    found = forward(path)["y"]
    assert found["agrees"], found
    right = gc.OPS["", "InstanceNormalization"]
    wrong = replace(right, forward=_more(right.forward, 0.2))
    assert forward(path, {**gc.OPS, right.key: wrong})["y"]["agrees"] is False


def _more(function: Any, off: float) -> Any:
    """A composition whose result is off."""

    @wraps(function)  # attributes are bound by its signature
    def moved(*operands: Any, **metadata: Any) -> Any:
        return function(*operands, **metadata) + off

    return moved


def _times(function: Any, factor: float) -> Any:
    """A kernel whose result is scaled."""

    @wraps(function)  # attributes are bound by its signature
    def scaled(*operands: Any, **metadata: Any) -> Any:
        result = function(*operands, **metadata)
        return result * result.dtype.type(factor)

    return scaled


@pytest.mark.parametrize("name", ["m.onnxtxt", "m.textproto", "m.json"])
def test_models_in_text_are_compared_too(name: str, tmp_path: Path) -> None:
    head = '<ir_version: 9, opset_import: ["" : 18]>'
    model = onnx.parser.parse_model(head + " g (float[3] x) => (float[3] y) { y = Tanh(x) }")
    written = {
        "m.onnxtxt": lambda: onnx.printer.to_text(model),
        "m.textproto": lambda: str(model),
        "m.json": lambda: json_format.MessageToJson(model),
    }
    (tmp_path / name).write_text(written[name]())
    [check] = gc.check(gc.load(tmp_path / name)).checks
    assert (check.status, check.forward["agrees"]) == ("pass", True)
