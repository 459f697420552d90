"""A file draws once in each run: its values and its gradients belong together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import gradcheck_cli as gc
from tests.export.open_models import open_session

pytest.importorskip("onnxruntime")

_GIVEN = "h = Constant<value = float {0.5}>() on = Constant<value = bool {1}>()"


def _looped(nodes: str, level: str = "") -> str:
    """The body of a loop whose state c becomes e."""
    head = f"int64 i{level}, bool go{level}, REAL[ROWS,40] c{level}"
    ends = f"bool more{level}, REAL[ROWS,40] e{level}"
    return f"<body = b{level} ({head}) => ({ends}) {{ {nodes} more{level} = Identity(go{level}) }}>"


# Each loss is a sum of squares of what is linear in x for given draws: <x, d loss / dx> is twice the loss.
MODELS = {
    "dropout": "d = Dropout(x, h, on)",
    "dropout by a seed": "d = Dropout<seed = 3>(x, h, on)",
    "dropout with its mask": "d, mask = Dropout(x, h, on)",
    "dropout of dropout": "first = Dropout(x, h, on) d = Dropout(first, h, on)",
    "dropout of what is computed": "t = Mul(x, h) e = Dropout(t, h, on) d = Sub(e, x)",
    "dropout that is off": "off = Constant<value = bool {0}>() d = Dropout(x, h, off)",
    "normal noise": "n = RandomNormalLike(x) d = Mul(x, n)",
    "uniform noise": "n = RandomUniformLike<low = -1.0>(x) d = Mul(x, n)",
    "a mask": "s = Shape(x) p = Expand(h, s) m = Bernoulli(p) d = Mul(x, m)",
    "a loop": "three = Constant<value = int64 {3}>() d = Loop(three, , x) "
    + _looped("k = Dropout(c, h, on) e = Add(c, k)"),
    "a while loop": "nine = Constant<value = int64 {9}>() t = Identity(on) d = Loop(nine, t, x) "
    + _looped("k = Dropout(c, h, on) e = Add(c, k)").replace("Identity(go)", "Less(most, far)").replace(
        "e = Add(c, k)", "e = Add(c, k) most = ReduceMax<keepdims = 0>(e) big = Constant<value = float {9}>() "
        "far = CastLike(big, most)"),
    "noise in a loop": "two = Constant<value = int64 {2}>() d = Loop(two, , x) "
    + _looped("r = RandomNormalLike(c) n = Mul(c, r) e = Add(c, n)"),
    "a loop in a loop": "two = Constant<value = int64 {2}>() d = Loop(two, , x) "
    + _looped("e = Loop(two, , c) " + _looped("k = Dropout(c2, h, on) e2 = Add(c2, k)", "2")),
    "a branch in a loop": "two = Constant<value = int64 {2}>() d = Loop(two, , x) "
    + _looped("odd = Cast<to = 9>(i) e = If(odd) <then_branch = a () => (REAL[ROWS,40] u) { u = Dropout(c, h, on) }, "
            "else_branch = b () => (REAL[ROWS,40] v) { r = RandomNormalLike(c) v = Mul(c, r) }>"),
    "a branch": "sum = ReduceSum<keepdims = 0>(x) none = Sub(sum, sum) up = Greater(sum, none) "
    "d = If(up) <then_branch = a () => (REAL[ROWS,40] u) { t = Add(x, x) u = Dropout(t, h, on) }, "
    "else_branch = b () => (REAL[ROWS,40] v) { r = RandomNormalLike(x) v = Mul(x, r) }>",
    "a scan": "last, d = Scan<num_scan_inputs = 1, scan_input_directions = [1], body = b (REAL[40] s, REAL[40] row) => "
    "(REAL[40] e, REAL[40] o) { k = Dropout(row, h, on) e = Add(s, k) o = Identity(e) }>(start, x)",
}  # fmt: skip
RUNS = 3


def saved(body: str, path: Path, batch: str, type_: str = "float") -> Any:
    """A session with the loss, its gradient and x of a file."""
    start = "" if "start" not in body else f"<{type_}[40] start = {{{', '.join(['0'] * 40)}}}>"
    body = body.replace("REAL", type_).replace("ROWS", batch)
    text = f"g ({type_}[{batch}, 40] x) => ({type_} loss) {start} {{ {_GIVEN} {body} q = Mul(d, d) "
    model = onnx.parser.parse_model(
        f'<ir_version: 9, opset_import: ["" : 17]> {text} loss = ReduceSum<keepdims = 0>(q) }}'
    )
    onnx.save(model, path)
    loaded = gc.load(path)
    (gradient,) = gc.gradients(loaded["loss"], [loaded["x"]])
    gc.save(loaded, path.with_suffix(".grad.onnx"), [loaded["loss"], gradient])
    return open_session(path.with_suffix(".grad.onnx"))


@pytest.mark.parametrize("batch", ["N", "3"])
@pytest.mark.parametrize("name", MODELS)
def test_values_and_gradients_of_a_run_are_of_the_same_draws(name: str, batch: str, tmp_path: Path) -> None:
    session = saved(MODELS[name], tmp_path / "m.onnx", batch)
    drawn = set[float]()
    for size in (3, 1, 8) if batch == "N" else (3,):
        x = np.random.default_rng(size).normal(size=(size, 40)).astype(np.float32)
        for _ in range(RUNS):
            loss, gradient = session.run(None, {"x": x})
            drawn.add(float(loss))
            np.testing.assert_allclose(np.vdot(x, gradient), 2 * loss, rtol=1e-5)
    draws_anew = "seed" not in name and "off" not in name
    assert len(drawn) == (RUNS if draws_anew else 1) * (3 if batch == "N" else 1) or name == "dropout by a seed"


@pytest.mark.parametrize("name", ["dropout", "dropout with its mask"])
def test_a_dropout_stays_and_gives_its_mask(name: str, tmp_path: Path) -> None:
    saved(MODELS[name], tmp_path / "m.onnx", "N")
    [node] = [n for n in onnx.load(tmp_path / "m.grad.onnx").graph.node if n.op_type == "Dropout"]
    assert len(node.output) == 2


@pytest.mark.parametrize("type_", ["double", "float16"])
def test_other_precisions(type_: str, tmp_path: Path) -> None:
    session = saved(MODELS["dropout"], tmp_path / "m.onnx", "N", type_)
    x = np.random.default_rng(0).normal(size=(2, 40)).astype("float64" if type_ == "double" else type_)
    loss, gradient = session.run(None, {"x": x})
    tolerance = 1e-12 if type_ == "double" else 1e-2
    np.testing.assert_allclose(np.vdot(x.astype(float), gradient.astype(float)), 2 * float(loss), rtol=tolerance)
