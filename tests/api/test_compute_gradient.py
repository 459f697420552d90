"""`compute_gradient`: both Jacobians, and what each of its parameters means, one test for one sentence."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradcheck_cli as gc
from tests.rounding import FUNCTION, assert_rounded

Make = Callable[..., gc.Model]
SQUARE = "y = Mul(x, x)"


def both(model: gc.Model, x: str, y: str, value: Any, **more: Any) -> tuple[np.ndarray, np.ndarray]:
    """The two Jacobians of y by x at a value."""
    shape = gc.run([model[y]], {x: value, **more.get("extra_feed_dict", {})})[0].shape
    return gc.compute_gradient(model[x], np.shape(value), model[y], shape, np.asarray(value), **more)


def test_names_order_and_defaults_are_those_of_tensorflow():
    required = inspect.Parameter.empty
    wanted = [
        ("x", required),
        ("x_shape", required),
        ("y", required),
        ("y_shape", required),
        ("x_init_value", None),
        ("delta", 0.001),
        ("init_targets", None),
        ("extra_feed_dict", None),
    ]
    for function in (gc.compute_gradient, gc.compute_gradient_error):
        parameters = inspect.signature(function).parameters
        assert [(n, p.default) for n, p in parameters.items() if p.kind is not p.KEYWORD_ONLY] == wanted
        assert {n: p.default for n, p in parameters.items() if p.kind is p.KEYWORD_ONLY} == {"dtype": "float64"}


# What is returned


def test_it_returns_two_2d_float_arrays_with_a_row_for_x_and_a_column_for_y(make: Make):
    model = make("y = MatMul(x, W)", {"x": [2, 3]}, {"W": [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]})
    theoretical, numerical = gc.compute_gradient(model["x"], (2, 3), model["y"], (2, 2))
    wanted = np.kron(np.eye(2), [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    assert theoretical.shape == numerical.shape == (6, 4)
    assert theoretical.dtype == numerical.dtype == np.float64
    np.testing.assert_allclose(theoretical, wanted)
    np.testing.assert_allclose(numerical, wanted, atol=1e-11)


def test_a_scalar_counts_as_one_row_or_column(make: Make):
    model = make("s = Mul(x, x)\ny = Mul(s, w)", {"x": []}, {"w": [1.0, 2.0, 3.0]})
    theoretical, _ = both(model, "x", "y", 3.0)
    assert np.array_equal(theoretical, [[6.0, 12.0, 18.0]])


def test_the_numerical_side_is_the_central_difference_with_step_delta(make: Make):
    model = make("h = Mul(x, x)\ny = Mul(h, x)", {"x": [1]})
    for delta in (0.001, 0.125, 0.5):
        _, numerical = both(model, "x", "y", [2.0], delta=delta)
        np.testing.assert_allclose(numerical, [[3 * 2.0**2 + delta**2]], rtol=1e-11)


def test_the_default_delta_is_a_thousandth(make: Make):
    model = make("h = Mul(x, x)\ny = Mul(h, x)", {"x": [1]})
    assert both(model, "x", "y", [2.0])[1] == pytest.approx(12.000001, abs=1e-10)


def test_a_list_of_x_gives_a_list_of_pairs(make: Make):
    model = make("y = Mul(a, b)", {"a": [2], "b": [2]})
    x, shapes, values = [model["a"], model["b"]], [(2,), (2,)], [np.array([1.0, 2.0]), np.array([3.0, 5.0])]
    pairs = gc.compute_gradient(x, shapes, model["y"], (2,), values)
    assert [type(pair) for pair in pairs] == [tuple, tuple]
    np.testing.assert_allclose([t for t, _ in pairs], [np.diag([3.0, 5.0]), np.diag([1.0, 2.0])])
    np.testing.assert_allclose([n for _, n in pairs], [np.diag([3.0, 5.0]), np.diag([1.0, 2.0])], atol=1e-11)


def test_a_list_of_one_gives_a_list_of_one(make: Make):
    model = make(SQUARE, {"x": [2]})
    assert len(gc.compute_gradient([model["x"]], [(2,)], model["y"], (2,))) == 1


def test_a_tensor_inside_is_held_only_while_it_is_x_itself(make: Make):
    model = make("h = Mul(x, x)\ny = Mul(h, x)", {"x": [2]})
    values = [np.array([1.0, 2.0]), np.array([5.0, 7.0])]
    (by_x, numerical), (by_h, _) = gc.compute_gradient(
        [model["x"], model["h"]], [(2,), (2,)], model["y"], (2,), values, delta=1e-5
    )
    np.testing.assert_allclose(by_x, np.diag([3.0, 12.0]))  # h follows x
    np.testing.assert_allclose(numerical, by_x, atol=1e-8)
    np.testing.assert_allclose(by_h, np.diag([1.0, 2.0]))


def test_lists_and_tuples_and_arrays_of_ints_are_all_shapes(make: Make):
    model = make(SQUARE, {"x": [2, 3]})
    for shape in ((2, 3), [2, 3], np.array([2, 3]), [np.int32(2), np.int64(3)]):
        assert gc.compute_gradient(model["x"], shape, model["y"], shape)[0].shape == (6, 6)
    vector = make(SQUARE, {"x": [3]})
    assert gc.compute_gradient(vector["x"], 3, vector["y"], 3)[0].shape == (3, 3)  # type: ignore[arg-type]


def test_x_may_be_a_parameter_or_a_tensor_inside(make: Make):
    model = make("h = Mul(x, w)\ny = Mul(h, h)", {"x": [2]}, {"w": [2.0, 3.0]})
    theoretical, _ = both(model, "h", "y", [1.0, -4.0])
    assert np.array_equal(theoretical, np.diag([2.0, -8.0]))
    theoretical, _ = both(model, "w", "y", [1.0, 1.0], extra_feed_dict={"x": [1.0, 2.0]})
    assert np.array_equal(theoretical, np.diag([2.0, 8.0]))


def test_y_may_be_a_derivative(make: Make):
    model = make("h = Mul(x, x)\ny = Mul(h, x)", {"x": [2]})
    [dx] = gc.gradients(model["y"], model["x"])
    theoretical, numerical = gc.compute_gradient(model["x"], (2,), dx, (2,), np.array([1.0, 2.0]))
    np.testing.assert_allclose(theoretical, np.diag([6.0, 12.0]))
    np.testing.assert_allclose(numerical, theoretical, rtol=1e-9)


def test_y_is_x_gives_the_identity(make: Make):
    model = make(SQUARE, {"x": [2]})
    theoretical, numerical = gc.compute_gradient(model["x"], (2,), model["x"], (2,))
    np.testing.assert_allclose(theoretical, np.eye(2))
    np.testing.assert_allclose(numerical, np.eye(2))


# Complex x and y: blocks of reals


HERE = np.array([1.0 + 2.0j, -0.5 + 1.0j])


def blocks(re_re: Any, im_re: Any, re_im: Any, im_im: Any) -> np.ndarray:
    """[[d Re y/d Re x, d Im y/d Re x], [d Re y/d Im x, d Im y/d Im x]], each diagonal."""
    return np.block([[np.diag(re_re), np.diag(im_re)], [np.diag(re_im), np.diag(im_im)]])


ONE, ZERO, SIZE = np.ones(2), np.zeros(2), np.abs(HERE)
COMPLEX = {
    "y = Identity(z)": blocks(ONE, ZERO, ZERO, ONE),
    "y = Mul(z, z)": 2 * blocks(HERE.real, HERE.imag, -HERE.imag, HERE.real),  # holomorphic: Cauchy-Riemann
    "y = Conj(z)": blocks(ONE, ZERO, ZERO, -ONE),
    "c = Conj(z)\ny = Mul(z, c)": 2 * blocks(HERE.real, ZERO, HERE.imag, ZERO),
    "y = Abs(z)": np.concatenate([np.diag(HERE.real / SIZE), np.diag(HERE.imag / SIZE)]),
    "y = Real(z)": np.concatenate([np.eye(2), np.zeros((2, 2))]),
    "y = Imag(z)": np.concatenate([np.zeros((2, 2)), np.eye(2)]),
    "y = Angle(z)": np.concatenate([np.diag(-HERE.imag / SIZE**2), np.diag(HERE.real / SIZE**2)]),
}


@pytest.mark.parametrize("nodes", COMPLEX, ids=lambda nodes: nodes.replace("\n", "; "))
def test_jacobians_by_complex_x_are_real_and_in_blocks(make: Make, nodes: str):
    model = make(nodes, {"z": {"shape": [2], "dtype": "complex128"}})
    theoretical, numerical = both(model, "z", "y", HERE)
    assert theoretical.dtype == numerical.dtype == np.float64
    assert theoretical.shape == COMPLEX[nodes].shape
    np.testing.assert_allclose(theoretical, COMPLEX[nodes], atol=1e-15)
    np.testing.assert_allclose(numerical, COMPLEX[nodes], atol=1e-6)


def test_real_x_and_complex_y_give_blocks_side_by_side(make: Make):
    model = make("s = Mul(x, x)\ny = Complex(x, s)", {"x": [2]})
    theoretical, numerical = both(model, "x", "y", [3.0, -1.0])
    wanted = np.concatenate([np.eye(2), np.diag([6.0, -2.0])], axis=1)
    np.testing.assert_allclose(theoretical, wanted)
    np.testing.assert_allclose(numerical, wanted, atol=1e-10)


def test_a_linear_map_of_complex_vectors_has_the_transposed_matrix_in_its_blocks(make: Make):
    model = make("y = FFT(z)", {"z": {"shape": [3], "dtype": "complex128"}})
    theoretical, numerical = gc.compute_gradient(model["z"], (3,), model["y"], (3,))
    dft = np.fft.fft(np.eye(3))
    wanted = np.block([[dft.T.real, dft.T.imag], [-dft.T.imag, dft.T.real]])
    np.testing.assert_allclose(theoretical, wanted, atol=1e-15)
    np.testing.assert_allclose(numerical, wanted, atol=1e-11)


def test_real_numbers_for_a_complex_x_are_complex_ones(make: Make):
    model = make("y = Mul(z, z)", {"z": {"shape": [2], "dtype": "complex64"}})
    theoretical, _ = both(model, "z", "y", [1.0, 2.0])
    np.testing.assert_allclose(theoretical, np.diag([2.0, 4.0, 2.0, 4.0]))


# x_init_value


def test_x_init_value_is_the_point(make: Make):
    model = make(SQUARE, {"x": [2]})
    assert np.array_equal(both(model, "x", "y", [3.0, -5.0])[0], np.diag([6.0, -10.0]))


def test_without_it_x_is_drawn_from_a_seeded_normal_distribution_of_both_signs(make: Make):
    model = make(SQUARE, {"x": [1000]})
    slopes = [gc.compute_gradient(model["x"], (1000,), model["y"], (1000,))[0] for _ in range(2)]
    assert np.array_equal(*slopes)
    x = np.diag(slopes[0]) / 2
    assert abs(x.mean()) < 0.15
    assert 0.9 < x.std() < 1.1
    assert np.abs(x).max() > 2.5  # no uniform distribution of that deviation reaches so far


def test_a_complex_x_is_drawn_with_an_imaginary_part(make: Make):
    model = make("y = Mul(z, z)", {"z": {"shape": [2], "dtype": "complex128"}})
    theoretical, numerical = gc.compute_gradient(model["z"], (2,), model["y"], (2,))
    assert np.all(np.diag(theoretical[:2, 2:]) != 0)
    np.testing.assert_allclose(numerical, theoretical, atol=1e-10)


def test_tensors_of_a_list_are_drawn_each_for_itself(make: Make):
    model = make("y = Mul(a, b)", {"a": [2], "b": [2]})
    (by_a, _), (by_b, _) = gc.compute_gradient([model["a"], model["b"]], [(2,), (2,)], model["y"], (2,))
    assert not np.array_equal(by_a, by_b)


# init_targets


def test_init_targets_are_run_first_to_initialize_parameters(make: Make):
    init = {"trained": {"w": [10.0, 20.0]}, "other": {"b": [1.0, 1.0]}}
    model = make("h = Mul(x, w)\ny = Add(h, b)", {"x": [2]}, {"w": [1.0, 1.0], "b": [0.0, 0.0]}, init=init)

    def slopes(targets: Any) -> np.ndarray:
        pair = gc.compute_gradient(model["x"], (2,), model["y"], (2,), init_targets=targets)
        return np.diag(pair[0])

    assert np.array_equal(slopes(None), [1.0, 1.0])
    assert np.array_equal(slopes([]), [1.0, 1.0])
    assert np.array_equal(slopes("trained"), [10.0, 20.0])
    assert np.array_equal(slopes(["trained", "other"]), [10.0, 20.0])


def test_init_targets_of_an_onnx_model_are_its_training_info(tmp_path: Path):
    import onnx
    from onnx import TensorProto, helper

    def info(name: str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, [2])

    weight = helper.make_tensor("w", TensorProto.FLOAT, [2], [1.0, 1.0])
    graph = helper.make_graph([helper.make_node("Mul", ["x", "w"], ["y"])], "g", [info("x")], [info("y")], [weight])
    tens = helper.make_tensor("value", TensorProto.FLOAT, [2], [10.0, 20.0])
    node = helper.make_node("Constant", [], ["start"], value=tens)
    initialization = helper.make_graph([node], "init", [], [info("start")])
    algorithm = helper.make_graph([], "algorithm", [], [])
    training = helper.make_training_info(algorithm, [], initialization, [("w", "start")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    model.training_info.append(training)
    onnx.save(model, tmp_path / "trained.onnx")

    loaded = gc.load(tmp_path / "trained.onnx")
    [target] = loaded.source.initializations
    theoretical, _ = gc.compute_gradient(loaded["x"], (2,), loaded["y"], (2,), init_targets=[target])
    assert np.array_equal(theoretical, np.diag([10.0, 20.0]))


# extra_feed_dict


def test_extra_feed_dict_fixes_inputs_by_name_or_tensor(make: Make):
    model = make("y = Mul(x, v)", {"x": [2], "v": [2]})
    for key in ("v", model["v"]):
        theoretical, numerical = both(model, "x", "y", [1.0, 1.0], extra_feed_dict={key: [7.0, 9.0]})
        assert np.array_equal(theoretical, np.diag([7.0, 9.0]))
        np.testing.assert_allclose(numerical, theoretical, atol=1e-10)


def test_extra_feed_dict_fixes_intermediate_tensors_during_both_jacobians(make: Make):
    model = make("h = Mul(x, x)\ny = Mul(h, x)", {"x": [2]})
    theoretical, numerical = both(model, "x", "y", [3.0, 4.0], extra_feed_dict={"h": [2.0, 5.0]})
    assert np.array_equal(theoretical, np.diag([2.0, 5.0]))
    np.testing.assert_allclose(numerical, theoretical, atol=1e-10)


def test_extra_feed_dict_fixes_parameters(make: Make):
    model = make("y = Mul(x, w)", {"x": [2]}, {"w": [1.0, 1.0]})
    theoretical, _ = both(model, "x", "y", [1.0, 1.0], extra_feed_dict={"w": [7.0, 9.0]})
    assert np.array_equal(theoretical, np.diag([7.0, 9.0]))


def test_extra_feed_dict_may_hold_the_value_of_x(make: Make):
    model = make(SQUARE, {"x": [2]})
    theoretical, _ = gc.compute_gradient(model["x"], (2,), model["y"], (2,), extra_feed_dict={"x": [3.0, 4.0]})
    assert np.array_equal(theoretical, np.diag([6.0, 8.0]))


def test_a_tensor_fixed_on_every_way_cuts_y_off(make: Make):
    model = make("h = Exp(x)\ny = Neg(h)", {"x": [2]})
    with pytest.raises(ValueError, match="y 'y' does not depend on x 'x'"):
        both(model, "x", "y", [1.0, 2.0], extra_feed_dict={"h": [1.0, 1.0]})


# Control flow, open dimensions, dtypes, empty tensors


def test_open_dimensions_follow_the_shapes_that_are_given(make: Make):
    model = make(SQUARE, {"x": ["N", 2]})
    for n in (1, 4):
        assert gc.compute_gradient(model["x"], (n, 2), model["y"], (n, 2))[0].shape == (2 * n, 2 * n)


@pytest.mark.parametrize("which", [True, False])
def test_branches_are_followed(make: Make, which: bool):
    node = {
        "op": "If",
        "inputs": ["which"],
        "outputs": ["y"],
        "attrs": {
            "then_branch": "t () => (p) { p = Mul (x, x) }",
            "else_branch": "e () => (q) { q = Neg (x) }",
        },
    }
    model = make([node], {"x": [2], "which": {"shape": [], "dtype": "bool"}})  # type: ignore[arg-type]
    theoretical, numerical = both(model, "x", "y", [1.0, 3.0], extra_feed_dict={"which": which})
    np.testing.assert_allclose(theoretical, np.diag([2.0, 6.0] if which else [-1.0, -1.0]))
    np.testing.assert_allclose(numerical, theoretical, atol=1e-10)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "bfloat16"])
def test_both_sides_are_float64_whatever_the_dtype_of_the_model(make: Make, dtype: str):
    model = make("y = Exp(x)", {"x": {"shape": [3], "dtype": dtype}})
    theoretical, numerical = both(model, "x", "y", [0.1, -0.2, 0.3], delta=1e-5)
    assert_rounded(np.diag(theoretical), np.exp([0.1, -0.2, 0.3]), roundings=2 * FUNCTION)
    np.testing.assert_allclose(numerical, theoretical, rtol=1e-9)


def test_unless_dtype_is_model(make: Make):
    model = make("y = Exp(x)", {"x": {"shape": [3], "dtype": "float32"}})
    wide, _ = both(model, "x", "y", [0.1, -0.2, 0.3])
    narrow, numerical = both(model, "x", "y", [0.1, -0.2, 0.3], dtype="model")
    assert 0 < np.abs(narrow - wide).max() < 1e-6
    assert 1e-8 < np.abs(numerical - wide).max() < 1e-3


def test_empty_tensors_give_empty_jacobians(make: Make):
    constants = {"start": [2], "end": [2]}
    model = make("y = Slice(x, start, end)", {"x": [4]}, constants=constants)
    for jacobian in gc.compute_gradient(model["x"], (4,), model["y"], (0,)):
        assert jacobian.shape == (4, 0)
    model = make("h = Exp(x)\ny = ReduceSum<keepdims=0>(h)", {"x": [0, 3]})
    for jacobian in gc.compute_gradient(model["x"], (0, 3), model["y"], ()):
        assert jacobian.shape == (0, 1)
    assert gc.compute_gradient_error(model["x"], (0, 3), model["y"], ()) == 0.0


# compute_gradient_error


def test_compute_gradient_error_is_the_largest_absolute_difference(make: Make):
    model = make("h = Mul(x, x)\ny = Mul(h, x)", {"x": [2]})
    found = gc.compute_gradient_error(model["x"], (2,), model["y"], (2,), np.array([1.0, 2.0]), delta=0.25)
    assert found == pytest.approx(0.25**2, rel=1e-10)


def test_for_a_list_it_is_the_largest_over_all(make: Make):
    model = make("h = Mul(a, a)\nc = Mul(h, a)\ny = Add(c, b)", {"a": [1], "b": [1]})
    found = gc.compute_gradient_error([model["b"], model["a"]], [(1,), (1,)], model["y"], (1,), delta=0.5)
    assert found == pytest.approx(0.25, rel=1e-10)


# Errors


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": []}, "x is an empty list"),
        ({"x": "x"}, r"x is 'x' \(str\), not a tensor\. Write model\['x'\]"),
        ({"x": np.ones(3)}, r"x is an array of shape \[3\], not a tensor\. An array is only a value"),
        ({"y": None}, "y is None, not a tensor"),
        ({"x_shape": (3, 2)}, r"x_shape=\[3, 2\] contradicts 'x', which has \[2,3\]"),
        ({"x_shape": 6}, r"x_shape=\[6\] contradicts 'x', which has \[2,3\]"),
        ({"x_shape": (2, 3.5)}, r"x_shape=\(2, 3\.5\) is no shape; give a tuple of ints"),
        ({"x_shape": "ab"}, "x_shape='ab' is no shape"),
        ({"y_shape": (6,)}, r"y_shape=\[6\] contradicts 'y', which has \[2,3\]"),
        ({"y_shape": (-2, 3)}, r"y_shape=\[-2, 3\] is no shape: a dimension is negative"),
        ({"x_init_value": np.ones((3, 2))}, r"x_init_value of 'x' has shape \[3, 2\]; x_shape is \[2, 3\]"),
        ({"x_init_value": 1.0}, r"x_init_value of 'x' has shape \[\]; x_shape is \[2, 3\]"),
        ({"x_init_value": "ones"}, r"x_init_value is 'ones' \(str\), not numbers"),
        ({"x_init_value": np.ones((2, 3)) * 1j}, "x_init_value is complex128; 'x' is float32 and takes real"),
        ({"delta": 0}, "delta=0 must be a positive, finite number"),
        ({"delta": -1e-3}, r"delta=-0\.001 must be a positive, finite number"),
        ({"delta": float("nan")}, "delta=nan must be a positive, finite number"),
        ({"delta": float("inf")}, "delta=inf must be a positive, finite number"),
        ({"delta": "small"}, "delta='small' must be a positive, finite number"),
        ({"delta": 1e-30}, r"delta=1e-30 is too small to resolve: 'x' .* in float64\. At least 1e-16"),
        ({"x_init_value": np.full((2, 3), -np.inf)}, "'x' is infinite here: no step leads away from it; give finite"),
        ({"init_targets": "trained"}, "no initialization 'trained'; the model has: none"),
        ({"init_targets": 3}, "init_targets=3 must be the name of an initialization, or a list of names"),
        ({"extra_feed_dict": [1]}, "extra_feed_dict is a list; it must be a dict"),
        ({"extra_feed_dict": {"xx": 1.0}}, "has no tensor 'xx'"),
        ({"extra_feed_dict": {"v": [1.0]}}, r"extra_feed_dict\['v'\] has shape \[1\]; .* has \[2,3\]"),
        ({"extra_feed_dict": {"v": None}}, r"extra_feed_dict\['v'\] is None, not numbers"),
        ({"dtype": np.ones(2)}, r"dtype=array\(.*\) is not one of 'float64', 'model'"),
        ({"dtype": "float16"}, "dtype='float16' is not one of 'float64', 'model'"),
    ],
)  # fmt: skip
def test_value_errors_name_the_argument_its_value_and_what_is_allowed(make: Make, change: dict[str, Any], message: str):
    model = make("y = Mul(x, v)", {"x": [2, 3], "v": [2, 3]})
    arguments = {"x": model["x"], "x_shape": (2, 3), "y": model["y"], "y_shape": (2, 3), **change}
    with pytest.raises(ValueError, match=message):
        gc.compute_gradient(**arguments)


def test_y_is_one_tensor_not_a_list(make: Make):
    model = make(SQUARE, {"x": [2]})
    with pytest.raises(ValueError, match="y is a list of 1; give one tensor"):
        gc.compute_gradient(model["x"], (2,), [model["y"]], [(2,)])  # type: ignore[arg-type]


@pytest.mark.parametrize("argument", ["x_shape", "x_init_value"])
def test_lists_must_be_as_long_as_x(make: Make, argument: str):
    model = make("y = Mul(a, b)", {"a": [2], "b": [2]})
    x = [model["a"], model["b"]]
    arguments: dict[str, Any] = {"x_shape": [(2,), (2,)], "x_init_value": None, argument: [np.ones(2)] * 3}
    with pytest.raises(ValueError, match=f"{argument} must be a list as long as x: 2, not 3"):
        gc.compute_gradient(x, arguments["x_shape"], model["y"], (2,), arguments["x_init_value"])


@pytest.mark.parametrize("dtype", ["int64", "bool", "uint8"])
def test_integer_and_bool_x_are_refused(make: Make, dtype: str):
    model = make("y = Cast<to=1>(x)", {"x": {"shape": [2], "dtype": dtype}})
    with pytest.raises(ValueError, match=f"x 'x' is {dtype}: only floating-point or complex tensors"):
        gc.compute_gradient(model["x"], (2,), model["y"], (2,))


def test_a_y_that_is_not_numeric_is_refused(make: Make):
    model = make("y = Greater(x, zero)", {"x": [2]}, constants={"zero": 0.0})
    with pytest.raises(ValueError, match="y 'y' is bool: only floating-point or complex tensors"):
        gc.compute_gradient(model["x"], (2,), model["y"], (2,))


def test_a_y_that_does_not_depend_on_x_is_refused(make: Make):
    model = make("y = Mul(v, v)\nz = Mul(x, x)", {"x": [2], "v": [2]}, outputs=["y", "z"])
    with pytest.raises(ValueError, match="y 'y' does not depend on x 'x'"):
        gc.compute_gradient(model["x"], (2,), model["y"], (2,))


def test_x_and_y_swapped_are_refused(make: Make):
    model = make(SQUARE, {"x": [2]})
    with pytest.raises(ValueError, match="y 'x' does not depend on x 'y'"):
        gc.compute_gradient(model["y"], (2,), model["x"], (2,))


def test_a_derivative_as_x_is_refused(make: Make):
    model = make(SQUARE, {"x": [2]})
    [dx] = gc.gradients(model["y"], model["x"])
    with pytest.raises(ValueError, match="was made by gradients"):
        gc.compute_gradient(dx, (2,), model["y"], (2,))


def test_wrong_arguments_are_refused_before_anything_is_run(make: Make):
    import dataclasses

    runs: list[int] = []

    def counted(x: np.ndarray) -> np.ndarray:
        runs.append(1)
        return np.exp(x)

    model = make("y = Exp(x)", {"x": [2]})
    model = gc.Model(model.source, {**gc.OPS, ("", "Exp"): dataclasses.replace(gc.OPS["", "Exp"], forward=counted)})
    for wrong in ({"delta": 0}, {"dtype": "half"}, {"extra_feed_dict": 3}, {"init_targets": 3}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            gc.compute_gradient(model["x"], (2,), model["y"], (2,), **wrong)  # type: ignore[arg-type]
    for wrong in ({"name": "a b"}, {"gate_gradients": 1}, {"aggregation_method": 9}, {"grad_ys": []}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            gc.gradients(model["y"], model["x"], **wrong)  # type: ignore[arg-type]
    assert runs == []


def test_two_values_for_x_are_refused(make: Make):
    model = make(SQUARE, {"x": [2]})
    with pytest.raises(ValueError, match="'x' is given by x_init_value and by extra_feed_dict; leave out one of them"):
        both(model, "x", "y", [1.0, 2.0], extra_feed_dict={"x": [1.0, 2.0]})


@pytest.mark.parametrize("other", [np.array([3.0, 4.0]), None, np.ones(3)])
def test_two_values_for_one_that_x_lists_twice_are_refused(make: Make, other: np.ndarray | None):
    model, point = make(SQUARE, {"x": [2]}), np.array([1.0, 2.0])
    for values in ([point, other], [other, point]):
        with pytest.raises(ValueError, match="x lists 'x' twice, and x_init_value has two values for it; list it once"):
            gc.compute_gradient([model["x"]] * 2, [(2,)] * 2, model["y"], (2,), values)


@pytest.mark.parametrize("values", [None, [np.array([1.0, 2.0]), np.array([1.0, 2.0])]])
def test_one_that_x_lists_twice_has_one_jacobian(make: Make, values: list[np.ndarray] | None):
    model = make(SQUARE, {"x": [2]})
    [first, second] = gc.compute_gradient([model["x"]] * 2, [(2,)] * 2, model["y"], (2,), values)
    np.testing.assert_array_equal(first, second)


def test_y_shape_is_held_against_the_shape_that_a_run_gives(make: Make):
    model = make(SQUARE, {"x": ["N", 2]})
    with pytest.raises(ValueError, match=r"y_shape=\[3, 2\] contradicts 'y': it has \[4, 2\] here"):
        gc.compute_gradient(model["x"], (4, 2), model["y"], (3, 2))


def test_a_delta_that_float32_cannot_resolve_is_refused(make: Make):
    model = make(SQUARE, {"x": {"shape": [2], "dtype": "float32"}})
    with pytest.raises(ValueError, match=r"delta=1e-09 is too small to resolve.* in float32"):
        both(model, "x", "y", [1.0, 2.0], delta=1e-9, dtype="model")


def test_an_operator_without_a_gradient_is_a_lookup_error(make: Make):
    import dataclasses

    model = make("y = Sin(x)", {"x": [2]})
    broken = {**gc.OPS, ("", "Sin"): dataclasses.replace(gc.OPS["", "Sin"], vjp=None)}
    model = gc.Model(model.source, broken)
    with pytest.raises(LookupError, match=r"Sin.*node 0 'y'"):
        gc.compute_gradient(model["x"], (2,), model["y"], (2,))
