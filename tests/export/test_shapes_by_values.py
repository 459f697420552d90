"""Files of models in which shapes follow from values: right for every value, or refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import gradcheck_cli as gc
from gradcheck_cli.errors import UnsupportedError
from tests.export.open_models import open_session

pytest.importorskip("onnxruntime")

TOP = (
    "g (double[T] x, int64[1] k) => (double loss) { v, i = TopK(x, k) q = Mul(v, v) loss = ReduceSum<keepdims = 0>(q) }"
)
FIRST = """g (double[T, 3] x, int64 n) => (double loss) {
  zero = Constant<value = int64 {0}>() one = Constant<value = int64 {1}>() r = Range(zero, n, one) k = Gather(x, r)
  q = Mul(k, k) loss = ReduceSum<keepdims = 0>(q) }"""
MASK = "zero = Constant<value = double {0}>() c = Greater(x, zero) i = NonZero(c) at = Transpose<perm = [1, 0]>(i)"
TAKEN = """g (double[T, 3] x, bool[T] c) => (double loss) {
  k = Compress<axis = 0>(x, c) s = Sin(k) q = Mul(s, s) loss = ReduceSum<keepdims = 0>(q) }"""
POSITIVE = (
    f"g (double[T, 3] x) => (double loss) {{ {MASK} k = GatherND(x, at) s = Sin(k) loss = ReduceSum<keepdims = 0>(s) }}"
)
MEAN = f"g (double[T, 3] x) => (double loss) {{ {MASK} k = GatherND(x, at) s = Sin(k) loss = ReduceMean<keepdims = 0>(s) }}"
BRANCHES = """g (double[T] x) => (double loss) {
  total = ReduceSum<keepdims = 0>(x) zero = Constant<value = double {0}>() c = Greater(total, zero)
  one = Constant<value_ints = [1]>() all = Constant<value_ints = [1000]>()
  h = If(c) <then_branch = t () => (double[A] p) { p = Slice(x, one, all) }, else_branch = e () => (double[B] q) {
    q = Identity(x) }> s = Mul(h, h) loss = ReduceSum<keepdims = 0>(s) }"""
STEPS = """g (double[2] x, int64 n) => (double[k, 2] loss) {
  y, loss = Loop(n, , x) <body = b (int64 i, bool c, double[2] a) => (bool d, double[2] e, double[2] s) {
    one = Constant<value = int64 {1}>() d = Less(i, one) e = Sin(a) s = Mul(e, e) }> }"""
BEFORE = """g (double[4] x, int64[1] k) => (double loss)
  <int64[1] first = {-9999}, int64[1] axis = {0}, int64[1] step = {-1}> {
  s = Slice(x, first, k, axis, step) q = Mul(s, s) loss = ReduceSum<keepdims = 0>(q) }"""
BELOW = """g (double[T] x) => (double loss) <double most = {1000.0}> {
    c = Less(x, most) y = Compress<axis = 0>(x, c) s = Sin(y) loss = ReduceSum<keepdims = 0>(s) }"""
# The rows that a router gives to the second of two experts, which adds what it makes of them: index_add in exports.
ROUTED = """g (double[T, 3] x) => (double loss) <double[3, 2] router = {1, -1, 0.5, 0.25, -1, 2}> {
    scores = MatMul(x, router) best = ArgMax<axis = 1, keepdims = 0>(scores) second = Constant<value_int = 1>()
    mine = Equal(best, second) found = NonZero(mine) flat = Constant<value_ints = [-1]>() rows = Reshape(found, flat)
    given = Gather(x, rows) made = Sin(given) like = Shape(given) column = Unsqueeze(rows, flat)
    places = Expand(column, like)
    whole = Shape(x) zeros = ConstantOfShape<value = double[1] {0}>(whole)
    out = ScatterElements<axis = 0, reduction = "add">(zeros, places, made) y = Add(out, x) q = Mul(y, y)
    loss = ReduceSum<keepdims = 0>(q) }"""
# Entries above a bound stay as they are, others are transformed: y[mask] = ... in exports.  Few are above it.
PARTS = """g (double[T, 3] x) => (double loss) <double bound = {1.0}> {
    c = Greater(x, bound) i = NonZero(c) at = Transpose<perm = [1, 0]>(i) taken = GatherND(x, at)
    zero = Constant<value_ints = [0]>() size = Shape<end = 1>(at) all = Slice(taken, zero, size, zero)
    whole = Shape(x) zeros = ConstantOfShape<value = double[1] {0}>(whole) above = ScatterND(zeros, at, all)
    d = Not(c) j = NonZero(d) below = Transpose<perm = [1, 0]>(j) other = GatherND(x, below) made = Sin(other)
    y = ScatterND(above, below, made) q = Mul(y, y) loss = ReduceSum<keepdims = 0>(q) }"""
CASES = [
    *((TOP, t, {"k": [k]}) for t, k in ((6, 2), (6, 6), (1, 1), (20, 17), (5, 0), (40, 30))),
    *((FIRST, t, {"n": n}) for t, n in ((6, 2), (6, 6), (1, 1), (20, 17), (5, 0), (40, 30))),
    *((STEPS, 2, {"n": n}) for n in (0, 1, 2, 4, 9)),
    *((BEFORE, 4, {"k": [k]}) for k in (-128, -6, -5, -4, -1, 0, 1, 2, 3, 9)),
    *((TAKEN, t, {"c": c}) for t, c in ((4, [1, 0, 1, 1]), (3, [0, 0, 0]), (1, [1]), (9, [1] * 9))),
    *((text, t, {}) for text in (POSITIVE, MEAN, BRANCHES, ROUTED, PARTS) for t in (1, 2, 5, 12)),
]
STEP = 1e-5


def saved(text: str, folder: Path) -> onnx.ModelProto:
    """The model, which is written with the file of its gradient."""
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 17]> {text}')
    onnx.save(model, folder / "m.onnx")
    loaded = gc.load(folder / "m.onnx")
    (gradient,) = gc.gradients(loaded["loss"], [loaded["x"]])
    gc.save(loaded, folder / "g.onnx", [gradient])
    return model


@pytest.mark.parametrize(("text", "length", "given"), CASES, ids=lambda v: "" if isinstance(v, str) else str(v))
def test_a_file_is_right_for_every_value(text: str, length: int, given: dict[str, Any], tmp_path: Path) -> None:
    model = saved(text, tmp_path)
    shape = tuple(d.dim_value or length for d in model.graph.input[0].type.tensor_type.shape.dim)
    types = {"c": np.bool_, "k": np.int64, "n": np.int64}
    feeds = {"x": np.random.default_rng(length).normal(size=shape)}
    feeds.update((name, np.array(value, types[name])) for name, value in given.items())
    forward = open_session(tmp_path / "m.onnx")
    (found,) = open_session(tmp_path / "g.onnx").run(None, feeds)
    expected = np.zeros(shape)
    for place in np.ndindex(*shape):
        step = np.zeros(shape)
        step[place] = STEP
        (up,), (down,) = (forward.run(None, {**feeds, "x": feeds["x"] + side * step}) for side in (1, -1))
        expected[place] = (up - down).sum() / (2 * STEP)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-8)


def test_shapes_that_agree_by_chance_alone_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        UnsupportedError, match="the shape of 'y' follows from values, of which all that were tried gave the same sizes"
    ):
        saved(BELOW, tmp_path)
    assert not (tmp_path / "g.onnx").exists()


def test_an_input_that_the_derivative_does_not_need_keeps_its_default(tmp_path: Path) -> None:
    saved("g (double[2] x, bool[2] c) => (double[2] loss) <bool[2] c = {1, 0}> { loss = Mul(x, x) }", tmp_path)
    model = gc.load(tmp_path / "m.onnx")  # a file of all outputs has all inputs
    (gradient,) = gc.gradients(model["loss"], [model["x"]])
    gc.save(model, tmp_path / "all.onnx", ["loss", gradient])
    x = np.array([1.5, -2.0])
    loss, found = open_session(tmp_path / "all.onnx").run(None, {"x": x})
    np.testing.assert_array_equal([loss, found], [x * x, 2 * x])
