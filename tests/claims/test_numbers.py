"""Gradients as numbers that some tool computed: right to the rounding of their dtype, and about one point."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import gradcheck_cli as gc
from gradcheck_cli.errors import UsageError
from tests.claims.test_tensors import only
from tests.claims.written import W, plain, write

X = np.random.default_rng(0).uniform(-1, 1, (2, 3)).astype(np.float32)
KERNEL = np.array([0.1, 0.2, -0.3, 0.4, 0.5, -0.6, 0.7, 0.8, 0.9, -1.0, 1.1, 1.2], np.float32).reshape(3, 4)


def gradient(dtype: type) -> Any:
    """The gradient of sum(tanh(x W)^2) by x, computed in a dtype."""
    a = np.tanh((X.astype(dtype) @ KERNEL.astype(dtype)).astype(dtype))
    return ((2 * a * (1 - a * a)).astype(dtype) @ KERNEL.astype(dtype).T).astype(dtype)


def found(folder: Path, numbers: Any) -> Any:
    """The record of a claim."""
    return only(gc.check(plain(folder), grad={"x": numbers}, x_init_value={"x": X}))


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_right_numbers_pass_in_every_dtype(tmp_path: Path, dtype: type) -> None:
    check = found(tmp_path, gradient(dtype))
    assert (check.status, check.claim["kind"]) == ("pass", "file")


def test_numbers_of_a_short_dtype_may_come_in_a_longer_one(tmp_path: Path) -> None:
    assert found(tmp_path, gradient(np.float32).astype(np.float64)).status == "pass"


@pytest.mark.parametrize(("dtype", "size"), [(np.float64, 2e-6), (np.float32, 3e-5), (np.float16, 0.2)])
@pytest.mark.parametrize("entry", [(0, 0), (1, 2)])
def test_one_wrong_entry_fails(tmp_path: Path, dtype: type, size: float, entry: tuple[int, int]) -> None:
    numbers = gradient(dtype)
    numbers[entry] += size * np.abs(numbers).max()
    check = found(tmp_path, numbers)
    assert (check.status, check.entries["failed"]) == ("fail", 1)
    assert check.worst[0].x == entry


@pytest.mark.parametrize("mode", ["directional", "sampled"])
def test_in_other_modes(tmp_path: Path, mode: str) -> None:
    numbers, model = gradient(np.float32), plain(tmp_path)
    more: Any = {"mode": mode, "x_init_value": {"x": X}}
    assert only(gc.check(model, grad={"x": numbers}, **more)).status == "pass"
    assert only(gc.check(model, grad={"x": numbers * np.float32(1.01)}, **more)).status == "fail"


def test_what_is_not_finite_fails(tmp_path: Path) -> None:
    numbers = gradient(np.float64)
    numbers[1, 1] = np.nan
    check = found(tmp_path, numbers)
    assert (check.status, check.code) == ("fail", "GC103")


def test_a_wrong_shape_fails(tmp_path: Path) -> None:
    check = found(tmp_path, gradient(np.float64).T)
    assert (check.status, check.code, check.message) == ("fail", "GC102", "numbers has the shape [3,2], not [2,3]")


@pytest.mark.parametrize("x", [None, "x"])
def test_a_gradient_of_y_alone_is_no_claim(tmp_path: Path, x: str | None) -> None:
    with pytest.raises(
        UsageError, match=r"--grad loss=\.\.\.: 'loss' is a y, so this is the gradient that a claim begins with"
    ):
        gc.check(plain(tmp_path), x, "loss", grad={"loss": np.ones(())})


def test_numbers_want_a_point(tmp_path: Path) -> None:
    model, numbers = plain(tmp_path), gradient(np.float64)
    with pytest.raises(UsageError, match="the numbers are a gradient at one point, and 'x' would be drawn at random"):
        raise_first(gc.check(model, grad={"x": numbers}))
    with pytest.raises(UsageError, match="the numbers are a gradient at one point, and this is point 2: leave"):
        raise_first(gc.check(model, grad={"x": numbers}, x_init_value={"x": X}, points=3))


def raise_first(report: gc.Report) -> None:
    """The error that a record holds."""
    for check in report.checks:
        if check.status == "error":
            raise UsageError(check.message)


def test_claims_about_more_tensors_tell_which_node_it_was(tmp_path: Path) -> None:
    body = "\n h = MatMul (x, W)\n b = Add (h, B)\n t = Tanh (b)\n m = MatMul (t, V)\n s = Mul (m, m)\n loss = ReduceSum <keepdims=0> (s)"  # noqa: E501
    more = ", float[4] B = {0.1,0.2,0.3,0.4}, float[4,2] V = {1,-2,3,0.5,0.25,-1,2,1}"
    model = gc.load(write(tmp_path / "m.onnx", "(float[2,3] x) => (float loss)", W + more, body))
    names = ["x", "W", "B", "V"]
    ours = gc.gradients(model["loss"], [model[n] for n in names])
    right = dict(zip(names, gc.run(ours, {"x": X}), strict=True))
    # x and W doubled together are what a doubled gradient by h would give them: then it is not the product that is wrong
    for wrong, suspect in ((("x",), ("MatMul", 0)), (("x", "W"), ("Add", 1)), (("V",), ("MatMul", 3))):
        claims = {n: v * (2.0 if n in wrong else 1.0) for n, v in right.items()}
        report = gc.check(model, grad=claims, x_init_value={"x": X}, y="loss")
        assert {c.x for c in report.checks if c.status == "fail"} == {*wrong}
        suspects = {(c.suspect.op, c.suspect.node) for c in report.checks if c.suspect}
        assert suspects == {suspect}
    report = gc.check(model, grad={n: v if n == "V" else -v for n, v in right.items()}, x_init_value={"x": X}, y="loss")
    assert {c.suspect.op for c in report.checks if c.suspect} <= {"Tanh", "MatMul"}  # between V and B


# shapes of x, weights and y: y = W x, or y = x W
PRODUCTS = {"wide": ((3,), (5, 3), (5,)), "square": ((4,), (4, 4), (4,)), "matrix": ((2, 3), (3, 3), (2, 3))}
ORDERS = {
    "[y..., x...]": lambda j, x, y: j.T.reshape(*y, *x),
    "[entries of y, entries of x]": lambda j, x, y: j.T,
    "[x..., y...]": lambda j, x, y: j.reshape(*x, *y),
    "[entries of x, entries of y]": lambda j, x, y: j,
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("product", PRODUCTS)
def test_a_jacobian_has_y_before_x_unless_its_shape_tells(tmp_path: Path, product: str, order: str) -> None:
    (at, held, out), rng = PRODUCTS[product], np.random.default_rng(1)
    w, x = rng.normal(size=held).astype(np.float32), rng.normal(size=at)
    matrix = product == "matrix"
    text = f"""<ir_version: 8, opset_import: ["" : 18]> g (float{[*at]} x) => (float{[*out]} y) {{
        y = MatMul({"x, W" if matrix else "W, x"}) }}"""
    model = onnx.parser.parse_model(text.replace(", ", ",").replace(",y", ", y"))
    model.graph.initializer.append(onnx.numpy_helper.from_array(w, "W"))
    onnx.save(model, tmp_path / "m.onnx")
    jacobian = np.kron(np.eye(2), w) if matrix else w.T.astype(np.float64)
    claimed = ORDERS[order](jacobian, at, out)
    check = only(gc.check(gc.load(tmp_path / "m.onnx"), "x", "y", grad={"x": claimed}, x_init_value={"x": x}))
    if product == "wide" or order.startswith(("[y", "[entries of y")):
        assert (check.status, check.entries["total"]) == ("pass", jacobian.size)
    else:
        (note,) = [n for n in check.notes if "the transpose of d y / d x: a Jacobian has the axes [y..., x...]" in n]
        assert (check.status, "compute_gradient" in note) == ("fail", claimed.ndim == 2)
        assert check.suspect is None


FORMS = {
    "transposed": (lambda g: g.T, "is the transpose of d loss / d W"),
    "flat": (lambda g: g.ravel(), "is d loss / d W, flat"),
    "summed": (lambda g: g.sum(0), "is d loss / d W, summed over its first axis"),
    "averaged": (lambda g: g.mean(0), "is 1/3 times d loss / d W, summed over its first axis"),
    "scaled": (lambda g: g / 8, "is 1/8 times d loss / d W"),
    "turned": (lambda g: -g, "is -1 times d loss / d W"),
    "a row": (lambda g: g.reshape(1, -1), "is d loss / d W as a row"),
}


@pytest.mark.parametrize("name", FORMS)
def test_the_right_gradient_in_another_form_is_said_to_be_that(name: str, tmp_path: Path) -> None:
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 18]> g (float[5,3] x) => (float loss)
        <float[3,4] W = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3}> {
            y = MatMul(x, W) h = Sigmoid(y) loss = ReduceSum<keepdims = 0>(h) }""")
    onnx.save(model, tmp_path / "m.onnx")
    x = np.random.default_rng(0).normal(size=(5, 3))
    w = np.array([1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3.0]).reshape(3, 4)
    h = 1 / (1 + np.exp(-(x @ w)))
    form, said = FORMS[name]
    claimed = form(x.T @ (h * (1 - h)))
    (check,) = gc.check(gc.load(tmp_path / "m.onnx"), "W", "loss", grad={"W": claimed}, x_init_value={"x": x}).checks
    assert check.status == "fail"
    assert any(note == f"numbers {said}" for note in check.notes), check.notes
    assert (check.suspect is None) == (name not in ("scaled", "turned"))  # another shape or order is no node's fault


CHAIN = """<ir_version: 8, opset_import: ["" : 18]> g (float[3,5] x, float[5] b) => (float loss) {
    h = Add(x, b) t = Tanh(h) s = Mul(t, t) loss = ReduceSum<keepdims = 0>(s) }"""


def test_behind_an_elementwise_operator_nothing_tells_which_one_is_wrong(tmp_path: Path) -> None:
    onnx.save(onnx.parser.parse_model(CHAIN), tmp_path / "m.onnx")
    at = {"x": np.random.default_rng(2).normal(size=(3, 5)), "b": np.linspace(-1, 1, 5)}
    t = np.tanh(at["x"] + at["b"])
    wrong = 2 * t * (1 - t)  # the square of tanh is lost
    claims = {"x": wrong, "b": wrong.sum(0)}
    checks = gc.check(gc.load(tmp_path / "m.onnx"), grad=claims, x_init_value=at).checks
    suspects = [c.suspect for c in checks if c.status == "fail"]
    assert len(suspects) == 2
    for suspect in suspects:
        assert suspect is not None
        assert suspect.op in ("Mul", "Tanh")  # the sum hands on what it gets
        named = f"{suspect.op} {suspect.diagnosis}"
        assert "nothing that was given tells it from" in named
        assert all(op in named for op in ("Tanh", "Mul", "ReduceSum"))
        assert "Add" not in named  # the claims by x and b agree with one gradient by h


PLACES = {"an entry": (0, 0, 0, 0), "a row": (0, 1), "a column": (slice(None), slice(None), 1, 1)}


@pytest.mark.parametrize("place", PLACES)
def test_errors_in_one_row_or_column_are_no_sum_that_is_missing(place: str, tmp_path: Path) -> None:
    w = np.random.default_rng(5).normal(size=(4, 4))
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 18]> g (double[4,4] x, double[4,4] w)
        => (double[4,4] y) { h = MatMul(x, w) t = Tanh(h) y = Mul(t, x) }""")
    onnx.save(model, tmp_path / "m.onnx")
    x = np.random.default_rng(6).normal(size=(4, 4))
    t = np.tanh(x @ w)
    rows = np.einsum("ij,kj->ijk", (1 - t * t) * x, w) + np.einsum("ij,jk->ijk", t, np.eye(4))
    claimed = np.einsum("ijk,il->ijlk", rows, np.eye(4))
    right = claimed.copy()
    claimed[PLACES[place]] *= 1.5
    at = {"x": x, "w": w}
    model_of_file = gc.load(tmp_path / "m.onnx")
    assert gc.check(model_of_file, "x", "y", grad={"x": right}, x_init_value=at).exit_code == 0
    check = only(gc.check(model_of_file, "x", "y", grad={"x": claimed}, x_init_value=at))
    assert check.status == "fail"
    assert check.suspect is None or "sum" not in check.suspect.diagnosis


NOISE = np.random.default_rng(4).uniform(-1, 1, (3, 5))
SCALES = {
    "a factor": (lambda g: 1.01 * g, "1.01 times"),
    "a factor and errors": (lambda g: g * (1.01 + 1e-4 * NOISE), ""),
    "a factor next to 1": (lambda g: g * (1 + 2e-8), ""),
    "roundings": (lambda g: g * (1 + NOISE / 64), "as rough as bfloat16"),
}


@pytest.mark.parametrize("name", SCALES)
def test_a_factor_is_no_rounding_and_none_is_1(tmp_path: Path, name: str) -> None:
    text = """<ir_version: 8, opset_import: ["" : 18]> g (float[3,5] x) => (float[3,5] y) { y = Tanh(x) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    at = np.random.default_rng(2).normal(size=(3, 5))
    change, said = SCALES[name]
    claimed = change(1 - np.tanh(at) ** 2)
    check = only(gc.check(gc.load(tmp_path / "m.onnx"), grad={"x": claimed}, x_init_value={"x": at}, rtol=1e-9))
    assert (check.status, check.suspect is not None) == ("fail", True)
    assert said in check.suspect.diagnosis
    assert "is 1 times" not in check.suspect.diagnosis
    assert said or "as rough" not in check.suspect.diagnosis
