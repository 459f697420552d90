"""`gradients` needs no values: derivatives of models that run only at values which the user has, in every branch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import gradcheck_cli as gc
from gradcheck_cli.api.gradients import AggregationMethod, aggregate_of
from gradcheck_cli.errors import UnsupportedError
from gradcheck_cli.export.derivatives import derivatives

Make = Callable[..., gc.Model]
HOW = {"gate": False, "colocate": False, "scope": "gradients", "zeros": False, "stop": (),
       "aggregate": aggregate_of(AggregationMethod.ADD_N)}  # fmt: skip
SWITCH = {"shape": [], "dtype": "bool"}


def choice(then: str, other: str) -> dict[str, Any]:
    """An If over two bodies in ONNX's text syntax that end in p and q."""
    attrs = {"then_branch": f"t () => (p) {{ {then} }}", "else_branch": f"e () => (q) {{ {other} }}"}
    return {"op": "If", "inputs": ["which"], "outputs": ["y"], "attrs": attrs}


# Branches and loops that a run at drawn values does not take


@pytest.mark.parametrize("swapped", [False, True])
def test_every_branch_connects_whichever_was_drawn(make: Make, swapped: bool):
    bodies = ["p = Mul (x, w)", "q = Neg (w)"]
    node = choice(*bodies) if not swapped else choice("p = Neg (w)", "q = Mul (x, w)")
    model = make([node], {"x": [2], "which": SWITCH}, {"w": [3.0, 5.0]})
    found = gc.gradients(model["y"], [model["x"], model["w"]])
    product, negated = (gc.run(found, {"x": [1.0, 2.0], "which": w != swapped}) for w in (True, False))
    assert np.array_equal(product, [[3.0, 5.0], [1.0, 2.0]])
    assert np.array_equal(negated, [[0.0, 0.0], [-1.0, -1.0]])


def test_the_gradient_of_a_gradient_follows_the_branch_too(make: Make):
    model = make([choice("p = Neg (x)", "q = Mul (x, x)")], {"x": [1], "which": SWITCH})
    second = gc.gradients(gc.gradients(model["y"], model["x"]), model["x"])
    assert gc.run(second, {"x": [3.0], "which": False}) == [[2.0]]
    assert gc.run(second, {"x": [3.0], "which": True}) == [[0.0]]


def test_what_no_branch_connects_is_none(make: Make):
    node = choice("p = Mul (x, x)", "q = Floor (v)")
    model = make([node], {"x": [1], "v": [1], "u": [1], "which": SWITCH}, outputs=["y"])
    dx, du = gc.gradients(model["y"], [model["x"], model["u"]])
    assert dx is not None
    assert du is None


def test_a_loop_that_does_not_go_round_connects_what_its_body_reads(make: Make):
    body = {
        "inputs": ["i", "on", "h"],
        "nodes": "next = Mul (h, w)\nstill = Identity (on)",
        "outputs": ["still", "next"],
    }
    node = {"op": "Loop", "inputs": ["times", "always", "x"], "outputs": ["y"], "attrs": {"body": body}}
    inputs = {"x": [1], "times": {"shape": [], "dtype": "int64"}}
    model = make([node], inputs, {"w": [3.0]}, constants={"always": True})
    found = gc.gradients(model["y"], [model["x"], model["w"]])
    for times in range(4):  # y = x w^times
        dx, dw = gc.run(found, {"x": [2.0], "times": times})
        assert (dx, dw) == (3.0**times, 2.0 * times * 3.0 ** (times - 1))


def test_a_branch_that_was_not_taken_has_zero_jacobians(make: Make):
    model = make([choice("p = Mul (x, x)", "q = Identity (v)")], {"x": [2], "v": [2], "which": SWITCH}, outputs=["y"])
    for which in (True, False):
        fixed = {"which": which, "v": np.ones(2)}
        pair = gc.compute_gradient(model["x"], (2,), model["y"], (2,), np.array([1.0, 3.0]), extra_feed_dict=fixed)
        np.testing.assert_allclose(pair, [np.diag([2.0, 6.0]) * which] * 2, atol=1e-10)


# Models that run only at values which the user has


def test_an_open_dimension_may_have_any_size_that_is_fed(make: Make):
    model = make("h = Reshape(x, s)\ny = Mul(h, h)", {"x": ["N"]}, constants={"s": [3, 5]})
    found = gc.gradients(model["y"], model["x"])  # no size that gradcheck tries makes 15
    x = np.arange(15.0)
    assert np.array_equal(gc.run(found, {"x": x})[0], 2 * x)
    theoretical, numerical = gc.compute_gradient(model["x"], (15,), model["y"], (3, 5), x)
    assert np.array_equal(theoretical, np.diag(2 * x))
    np.testing.assert_allclose(numerical, theoretical, atol=1e-9)


def unrunnable(make: Make, **more: Any) -> gc.Model:
    """A model that runs at no size that is tried: N has to be 15."""
    inputs = {"x": ["N"], "v": ["N"], "k": {"shape": ["N"], "dtype": "int64"}}
    nodes = "h = Reshape(x, s)\ng = Exp(h)\ny = Mul(g, g)\nz = Exp(v)"
    return make(nodes, inputs, constants={"s": [3, 5]}, outputs=["y", "z"], **more)


def test_without_a_run_the_graph_says_what_is_connected(make: Make):
    model = unrunnable(make)
    dx, dv = gc.gradients(model["y"], [model["x"], model["v"]])
    assert dx is not None
    assert (dx.name, dv) == ("gradients/x", None)
    [zeros] = gc.gradients(model["y"], model["v"], unconnected_gradients="zero")  # type: ignore[arg-type]
    assert np.array_equal(gc.run([zeros], {"x": np.ones(15)})[0], np.zeros(15))
    assert gc.gradients(model["y"], model["x"], stop_gradients=model["h"]) == [None]
    assert gc.gradients(model["y"], model["y"]) != [None]


def test_without_a_run_a_gradient_may_be_differentiated_and_weigh(make: Make):
    model = unrunnable(make)
    first = gc.gradients(model["y"], model["x"])
    second = gc.gradients(first, model["x"])
    [weighed] = gc.gradients(model["x"], model["x"], grad_ys=first)
    x = np.linspace(-1, 1, 15)
    values = gc.run([*first, *second, weighed], {"x": x})
    np.testing.assert_allclose(values, [2 * np.exp(2 * x), 4 * np.exp(2 * x), 2 * np.exp(2 * x)])


def test_without_a_run_the_tangent_depends_on_the_one_that_is_given(make: Make):
    model = unrunnable(make)
    added = derivatives(model, "jvp", ["x", "v"], ["y", "z"], "ones", HOW)
    assert (added.results, added.missing) == ({"y": "y_tangent", "z": "z_tangent"}, ())
    assert derivatives(model, "jvp", ["v"], ["y"], "ones", HOW).missing == ("y",)


def test_without_a_run_integers_and_wrong_arguments_are_refused_all_the_same(make: Make):
    model = unrunnable(make)
    with pytest.raises(ValueError, match=r"xs\[0\] 'k' is int64: only floating-point or complex"):
        gc.gradients(model["y"], model["k"])
    with pytest.raises(ValueError, match="grad_ys has 2 entries, ys has 1"):
        gc.gradients(model["y"], model["x"], grad_ys=[None, None])


def test_without_a_run_operators_that_have_no_gradient_are_all_listed(make: Make):
    model = unrunnable(make)
    broken = {("", n): dataclasses.replace(gc.OPS["", n], vjp=None) for n in ("Exp", "Mul")}
    model = gc.Model(model.source, {**gc.OPS, **broken})
    with pytest.raises(LookupError, match=r"for 2 operators .*: Exp \(node 1 'g', .*; Mul \(node 2 'y',"):
        gc.gradients(model["y"], model["x"])
    [by_v] = gc.gradients(model["y"], model["g"], stop_gradients=[model["g"], model["y"]])
    assert by_v is None


def test_a_tensor_that_is_empty_at_all_sizes_does_not_hide_the_others(make: Make):
    """An exporter slices the sizes behind the last one off, and caches begin empty."""
    empty = "n = Shape(x)\nnone = Slice(n, two, two)\nbegin = Slice(x, two, two)"
    nodes = f"{empty}\nh = Concat <axis = 0> (begin, x)\ny = Exp(h)"
    model = make(nodes, {"x": ["N", 3]}, constants={"two": [2]}, outputs=["y"])
    assert (model["h"].shape, model["begin"].dtype) == ((None, None), np.float32)
    [dx] = gc.gradients(model["y"], model["x"])
    assert dx.shape == model["x"].shape
    assert np.array_equal(gc.run([dx], {"x": np.zeros((2, 3))})[0], np.ones((2, 3)))


def test_a_tensor_of_which_nothing_is_known_can_be_shown(make: Make):
    model = unrunnable(make)
    assert repr(model["y"]) == "<Tensor 'y'>"
    with pytest.raises(ValueError, match="makes 'x' run"):
        _ = model["y"].shape


# Shapes that follow from values


RESHAPE = ("y = Reshape(x, s)", {"x": [6], "s": {"shape": [2], "dtype": "int64"}})


def test_a_shape_that_follows_from_a_value_is_open(make: Make):
    model = make("y = Reshape(x, s)\nn = Shape(y)\nz = Exp(x)", RESHAPE[1], outputs=["y", "n", "z"])
    assert (model["y"].shape, model["z"].shape) == ((None, None), (6,))
    [dy] = gc.gradients(model["y"], model["y"])
    assert dy is not None
    assert dy.shape == (None, None)


@pytest.mark.parametrize(
    ("op", "size", "given"),
    [("ReduceL1", [1], (2, 1)), ("ReduceSum", [1], (2, 1)), ("CenterCropPad<axes=[0,1]>", [3, 4], (3, 4))],
)
def test_a_shape_that_follows_from_what_a_composed_operator_is_given_is_open(
    make: Make, op: str, size: list[int], given: tuple[int, ...]
):
    inputs = {"x": [2, 3], "s": {"shape": [len(size)], "dtype": "int64"}}
    model = make(f"y = {op}(x, s)\nz = Exp(y)\nw = Sin(x)", inputs, outputs=["y", "z", "w"])
    assert [model[n].shape for n in "yzw"] == [(None, None), (None, None), (2, 3)]
    [dx] = gc.gradients(model["z"], model["x"], grad_ys=[np.ones(given)])
    assert gc.run([dx], {"x": np.ones((2, 3)), "s": size})[0].shape == (2, 3)


def test_shapes_are_held_against_the_run(make: Make):
    model = make(*RESHAPE)
    fed = {"s": [2, 3]}
    assert gc.compute_gradient(model["x"], (6,), model["y"], (2, 3), extra_feed_dict=fed)[0].shape == (6, 6)
    with pytest.raises(ValueError, match=r"y_shape=\[3, 2\] contradicts 'y': it has \[2, 3\] here"):
        gc.compute_gradient(model["x"], (6,), model["y"], (3, 2), extra_feed_dict=fed)
    weights = np.arange(6.0).reshape(2, 3)
    [dx] = gc.gradients(model["y"], model["x"], grad_ys=[weights])
    assert np.array_equal(gc.run([dx], fed)[0], weights.ravel())
    with pytest.raises(ValueError, match=r"grad_ys\[0\] has shape \[2, 3\]; 'y' has \[3, 2\] in this run"):
        gc.run([dx], {"s": [3, 2]})


WRONGLY_INFERRED = {  # by onnx, whose inference writes it into files
    "windows of which the last begins in padding": """(float[1, 1, 4, 4] x) => (float[1, 1, 3, 3] y)
        { y = MaxPool <kernel_shape = [2, 2], strides = [3, 3], pads = [1, 1, 1, 1], ceil_mode = 1> (x) }""",
    "half of a spectrum": """(float[1, 32, 1] x) => (float[1, 3, 16, 2] y)
        <int64 step = {8}, int64 length = {16}> { y = STFT (x, step, , length) }""",
}


@pytest.mark.parametrize("name", WRONGLY_INFERRED)
def test_a_declared_shape_that_no_run_has_does_not_refuse_the_true_one(name: str, tmp_path: Path):
    proto = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 18]> g {WRONGLY_INFERRED[name]}')
    onnx.save(proto, tmp_path / "m.onnx")
    model = gc.load(tmp_path / "m.onnx")
    x = np.random.default_rng(0).uniform(-1, 1, model["x"].shape).astype(np.float32)  # type: ignore[arg-type]
    session = pytest.importorskip("onnxruntime").InferenceSession(
        tmp_path / "m.onnx", providers=["CPUExecutionProvider"]
    )
    (y,) = session.run(None, {"x": x})
    assert y.shape != model["y"].shape
    ones, weighed = (gc.gradients(model["y"], model["x"], grad_ys=g)[0] for g in (None, [2 * np.ones(y.shape)]))
    single, double = gc.run([ones, weighed], {"x": x})
    np.testing.assert_allclose(double, 2 * single)
    assert gc.compute_gradient(model["x"], x.shape, model["y"], y.shape)[0].shape == (x.size, y.size)
    [wrong] = gc.gradients(model["y"], model["x"], grad_ys=[np.ones(model["y"].shape)])
    with pytest.raises(ValueError, match=r"grad_ys\[0\] has shape .* in this run"):
        gc.run([wrong], {"x": x})


@pytest.mark.parametrize("by_name", [False, True])
def test_grad_ys_of_an_open_dimension_need_not_have_the_size_that_is_drawn(make: Make, by_name: bool):
    model = make("y = Mul(x, x)", {"x": ["N", 3], "v": ["M", 3]}, outputs=["y"])
    weights = np.arange(12.0).reshape(4, 3)
    [dx] = gc.gradients(model["y"], model["x"], grad_ys=[model["v"] if by_name else weights])
    x = np.ones((4, 3))
    assert np.array_equal(gc.run([dx], {"x": x, "v": weights})[0], 2 * weights)


# Operators that gradcheck does not know


@pytest.fixture
def unknown(tmp_path: Path) -> gc.Model:
    """x goes through two operators of a domain that nobody knows."""
    nodes = [
        helper.make_node("Foo", ["x"], ["a"], domain="acme"),
        helper.make_node("Bar", ["a"], ["b"], domain="acme", name="bar"),
        helper.make_node("Mul", ["b", "x"], ["y"]),
    ]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [2]) for n in "xy")
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("acme", 3)]
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", [x], [y]), opset_imports=opsets), tmp_path / "m.onnx")
    return gc.load(tmp_path / "m.onnx")


def test_operators_that_are_not_known_have_no_gradient(unknown: gc.Model):
    with pytest.raises(LookupError) as caught:
        gc.gradients(unknown["y"], unknown["x"])
    assert str(caught.value) == (
        "no gradient for 2 operators between ys and xs: acme.Foo (node 0 'a', domain 'acme', opset 3); "
        "acme.Bar (node 1 'bar', domain 'acme', opset 3)"
    )


def test_one_behind_a_stop_is_no_error_and_its_output_can_be_fed(unknown: gc.Model):
    found = gc.gradients(unknown["y"], unknown["x"], stop_gradients=unknown["b"])
    assert np.array_equal(gc.run(found, {"b": [3.0, 4.0]})[0], [3.0, 4.0])


def test_one_that_a_run_needs_is_named(unknown: gc.Model):
    for attempt in (
        lambda: gc.run(unknown["y"]),
        lambda: gc.compute_gradient(unknown["x"], (2,), unknown["y"], (2,)),
        lambda: unknown["b"].dtype,
    ):
        with pytest.raises(UnsupportedError, match=r"unknown operator 'acme\.Foo' \(node 0"):
            attempt()


# Values that are no tensors


def test_sequences_are_fed_and_run_and_have_no_gradient(tmp_path: Path):
    sequence = helper.make_tensor_sequence_value_info
    nodes = [
        helper.make_node("SequenceAt", ["s", "i"], ["a"]),
        helper.make_node("Mul", ["a", "x"], ["y"]),
        helper.make_node("SequenceInsert", ["s", "y"], ["t"]),
    ]
    i = helper.make_tensor_value_info("i", TensorProto.INT64, [])
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [2]) for n in "xy")
    s, t = (sequence(n, TensorProto.FLOAT, [2]) for n in "st")
    graph = helper.make_graph(nodes, "g", [s, x, i], [y, t])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), tmp_path / "s.onnx")
    model = gc.load(tmp_path / "s.onnx")
    feeds = {"s": [np.ones(2), np.full(2, 5.0)], "i": 1, "x": [1.0, 2.0]}
    [dx] = gc.gradients(model["y"], model["x"])
    gradient, inserted = gc.run([dx, model["t"]], feeds)
    assert np.array_equal(gradient, [5.0, 5.0])
    assert [item.tolist() for item in inserted] == [[1.0, 1.0], [5.0, 5.0], [5.0, 10.0]]
    with pytest.raises(ValueError, match=r"ys\[0\] 't' is a sequence: only floating-point or complex tensors"):
        gc.gradients(model["t"], model["x"])


def test_a_sequence_inside_has_no_gradient_either(make: Make):
    nodes = "s = SequenceConstruct(h, h)\ny = ConcatFromSequence<axis=0>(s)"
    for inputs, start in (({"x": [2]}, "h = Exp(x)"), ({"x": ["N"]}, "r = Reshape(x, t)\nh = Exp(r)")):
        model = make(f"{start}\n{nodes}", inputs, constants={"t": [3, 5]})
        with pytest.raises(ValueError, match="'s' is a sequence"):
            gc.run(gc.gradients(model["s"], model["x"]), {"x": np.ones(2 if inputs["x"] == [2] else 15)})
