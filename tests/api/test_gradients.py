"""`gradients`: what it gives and what each of its parameters means, one test for one sentence."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from msgspec import structs

import gradcheck_cli as gc
from gradcheck_cli.settings import Settings
from tests.rounding import FUNCTION, assert_rounded

Make = Callable[..., gc.Model]


def test_names_order_and_defaults_are_those_of_tensorflow():
    parameters = inspect.signature(gc.gradients).parameters
    assert {name: p.default for name, p in parameters.items()} == {
        "ys": inspect.Parameter.empty,
        "xs": inspect.Parameter.empty,
        "grad_ys": None,
        "name": "gradients",
        "colocate_gradients_with_ops": False,
        "gate_gradients": False,
        "aggregation_method": None,
        "stop_gradients": None,
        "unconnected_gradients": gc.UnconnectedGradients.NONE,
    }
    assert list(parameters) == [
        "ys", "xs", "grad_ys", "name", "colocate_gradients_with_ops", "gate_gradients", "aggregation_method",
        "stop_gradients", "unconnected_gradients",
    ]  # fmt: skip


# What is computed


def test_it_is_the_sum_over_y_of_grad_y_times_dy_dx(make: Make):
    model = make("y = MatMul(x, W)", {"x": [2, 3]}, {"W": [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]})
    weights = np.array([[1.0, -2.0], [0.5, 3.0]])
    [dx] = gc.gradients(model["y"], model["x"], grad_ys=weights)
    np.testing.assert_allclose(gc.run([dx])[0], weights @ np.array([[1.0, 3.0, 5.0], [2.0, 4.0, 6.0]]))


def test_it_gives_a_list_as_long_as_xs(make: Make):
    model = make("y = Mul(a, b)", {"a": [2], "b": [2]})
    assert len(gc.gradients(model["y"], [model["a"], model["b"]])) == 2
    assert len(gc.gradients([model["y"]], model["a"])) == 1


def test_handles_have_the_name_shape_dtype_and_model_of_their_tensor(make: Make):
    model = make("y = Mul(x, x)", {"x": [2, 3]})
    [dx] = gc.gradients(model["y"], model["x"])
    assert dx is not None
    assert (dx.shape, dx.model) == ((2, 3), model)
    assert model[dx.name].name == dx.name
    assert dx.name in model


def test_a_derivative_has_the_dtype_of_its_x(make: Make):
    model = make("y = Mul(x, x)", {"x": {"shape": [2], "dtype": "float32"}})
    [dx] = gc.gradients(model["y"], model["x"])
    assert dx is not None
    assert dx.dtype == np.float32


def test_xs_may_be_inputs_constants_and_tensors_inside(make: Make):
    model = make("h = Mul(x, w)\ny = Mul(h, h)", {"x": [2]}, {"w": [2.0, 3.0]})
    dx, dw, dh = gc.gradients(model["y"], [model["x"], model["w"], model["h"]])
    values = gc.run([dx, dw, dh], {"x": [1.0, -1.0]})
    np.testing.assert_allclose(values, [[8.0, -18.0], [4.0, 6.0], [4.0, -6.0]])


def test_y_is_x_gives_ones(make: Make):
    model = make("y = Tanh(x)", {"x": [2, 2]})
    assert np.array_equal(gc.run(gc.gradients(model["x"], model["x"]))[0], np.ones((2, 2)))
    assert np.array_equal(gc.run(gc.gradients(model["y"], model["y"]))[0], np.ones((2, 2)))


def test_y_is_x_and_another_y_depends_on_it(make: Make):
    model = make("y = Mul(x, x)", {"x": [1]})
    [dx] = gc.gradients([model["x"], model["y"]], model["x"])
    assert gc.run([dx], {"x": [3.0]})[0] == [7.0]


def test_duplicates_in_xs_each_get_the_full_gradient(make: Make):
    model = make("y = Mul(x, x)", {"x": [1]})
    both = gc.gradients(model["y"], [model["x"], model["x"]])
    assert gc.run(both, {"x": [3.0]}) == [[6.0], [6.0]]


def test_several_ys_are_summed(make: Make):
    model = make("y = Mul(x, x)\nz = Exp(x)", {"x": [2]}, outputs=["y", "z"])
    [dx] = gc.gradients([model["y"], model["z"]], model["x"])
    x = np.array([0.5, -1.0])
    np.testing.assert_allclose(gc.run([dx], {"x": x})[0], 2 * x + np.exp(x))


def test_a_y_given_twice_counts_twice(make: Make):
    model = make("y = Mul(x, x)", {"x": [1]})
    [dx] = gc.gradients([model["y"], model["y"]], model["x"])
    assert gc.run([dx], {"x": [3.0]})[0] == [12.0]


def test_an_inner_tensor_and_what_it_leads_to_may_both_be_xs(make: Make):
    model = make("h = Mul(x, x)\ny = Mul(h, x)", {"x": [1]})
    dx, dh = gc.gradients(model["y"], [model["x"], model["h"]])
    assert gc.run([dx, dh], {"x": [2.0]}) == [[12.0], [2.0]]


def test_the_gradient_of_a_gradient_works(make: Make):
    model = make("y = Mul(x, x)\nz = Mul(y, x)", {"x": [3]}, outputs=["z"])
    first = gc.gradients(model["z"], model["x"])
    second = gc.gradients(first, model["x"])
    third = gc.gradients(second, model["x"])
    x = np.array([0.5, -1.0, 2.0])
    values = gc.run([*first, *second, *third], {"x": x})
    np.testing.assert_allclose(values, [3 * x * x, 6 * x, np.full(3, 6.0)])


def test_a_later_call_may_weigh_by_an_earlier_result(make: Make):
    model = make("y = Mul(x, x)", {"x": [2]})
    [dx] = gc.gradients(model["y"], model["x"])
    [product] = gc.gradients(model["y"], model["x"], grad_ys=[dx])
    np.testing.assert_allclose(gc.run([product], {"x": [1.0, 3.0]})[0], [4.0, 36.0])


def test_handles_stay_valid_after_more_calls(make: Make):
    model = make("y = Mul(x, x)\nz = Exp(y)", {"x": [2]}, outputs=["y", "z"])
    [first] = gc.gradients(model["y"], model["x"])
    before = gc.run([first], {"x": [1.0, 2.0]})[0]
    gc.gradients(model["z"], model["x"])
    gc.gradients([first], model["x"])
    assert np.array_equal(gc.run([first], {"x": [1.0, 2.0]})[0], before)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_a_copy_of_a_model_has_its_gradients_and_takes_others_for_itself(
    make: Make, copied: Callable[[gc.Model], gc.Model]
):
    model = make("y = Mul(x, x)", {"x": [2]})
    [first] = gc.gradients(model["y"], model["x"])
    twin = copied(model)
    [second] = gc.gradients(twin[first.name], twin["x"])
    for values in gc.run([twin[first.name], second], {"x": [1.0, 3.0]}), gc.run([first, model["y"]], {"x": [1.0, 3.0]}):
        np.testing.assert_allclose(values[0], [2.0, 6.0])
    assert second.name in twin
    assert second.name not in model


@pytest.mark.parametrize("of", [lambda model: model, lambda model: model["x"], lambda model: [model["y"]]])
def test_pickling_a_model_says_what_to_send_instead(make: Make, of: Callable[[gc.Model], Any]):
    model = make("y = Mul(x, x)", {"x": [2]})
    sent = rf"a gradcheck Model cannot be pickled\. Send the path, .*: gradcheck_cli\.load\('{model.source.uri}'\)"
    with pytest.raises(TypeError, match=sent):
        pickle.dumps(of(model))


# grad_ys


def test_grad_ys_none_means_ones_of_the_shape_of_y(make: Make):
    model = make("y = Mul(x, x)", {"x": [2, 2]})
    [default] = gc.gradients(model["y"], model["x"])
    [ones] = gc.gradients(model["y"], model["x"], grad_ys=[np.ones((2, 2))])
    assert np.array_equal(*gc.run([default, ones]))


def test_a_none_entry_of_grad_ys_means_ones_for_that_y(make: Make):
    model = make("y = Mul(x, x)\nz = Neg(x)", {"x": [2]}, outputs=["y", "z"])
    [dx] = gc.gradients([model["y"], model["z"]], model["x"], grad_ys=[None, np.array([10.0, 20.0])])
    np.testing.assert_allclose(gc.run([dx], {"x": [1.0, 2.0]})[0], [2.0 - 10.0, 4.0 - 20.0])


def test_grad_ys_may_be_tensors_which_count_as_constants(make: Make):
    model = make("y = Mul(x, x)", {"x": [2], "v": [2]}, outputs=["y"])
    [dx] = gc.gradients(model["y"], model["x"], grad_ys=[model["v"]])
    np.testing.assert_allclose(gc.run([dx], {"x": [1.0, 2.0], "v": [5.0, 7.0]})[0], [10.0, 28.0])
    [own] = gc.gradients(model["y"], model["x"], grad_ys=model["x"])
    np.testing.assert_allclose(gc.run([own], {"x": [1.0, 2.0]})[0], [2.0, 8.0])


def test_a_complex_y_needs_its_grad_y(make: Make):
    model = make("y = Mul(z, z)", {"z": {"shape": [2], "dtype": "complex128"}})
    with pytest.raises(ValueError, match=r"grad_ys\[0\]: 'y' is complex, so its initial gradient must be given"):
        gc.gradients(model["y"], model["z"])
    [dz] = gc.gradients(model["y"], model["z"], grad_ys=[np.ones(2)])
    np.testing.assert_allclose(gc.run([dz], {"z": [1 + 2j, 3j]})[0], [2 - 4j, -6j])


@pytest.mark.parametrize("nodes", ["y = Mul(z, z)", "y = Conj(z)", "y = Abs(z)", "c = Conj(z)\ny = Mul(z, c)"])
def test_complex_gradients_are_the_jacobian_in_blocks_times_grad_y(make: Make, nodes: str):
    model = make(nodes, {"z": {"shape": [2], "dtype": "complex128"}})
    z, weight = np.array([1.0 + 2.0j, -0.5 + 1.0j]), np.array([0.3 - 1.5j, 2.0 + 0.25j])
    jacobian, _ = gc.compute_gradient(model["z"], (2,), model["y"], (2,), z)
    weight = weight if jacobian.shape[1] == 4 else weight.real
    [dz] = gc.gradients(model["y"], model["z"], grad_ys=[weight])
    reals = np.concatenate([weight.real, weight.imag]) if np.iscomplexobj(weight) else weight
    found = gc.run([dz], {"z": z})[0]
    size = np.abs(jacobian) @ np.abs(reals)
    assert_rounded(np.concatenate([found.real, found.imag]), jacobian @ reals, roundings=4 * FUNCTION, of=size)


# name: every added node stands under it


def test_added_nodes_are_named_after_the_forward_node_and_their_operator(make: Make):
    nodes = [
        {"name": "mine", "op": "Sin", "inputs": ["x"], "outputs": ["h"]},
        {"op": "Exp", "inputs": ["h"], "outputs": ["y"]},
    ]
    model = make(nodes, {"x": [2]})  # type: ignore[arg-type]
    [dx] = gc.gradients(model["y"], model["x"])
    assert dx is not None
    assert dx.name == "gradients/mine_grad/Mul"
    tape = model.tape([dx.name], Settings())
    names = [step.node.name for step in tape.steps if step.origin < 0]
    assert names[0] == "gradients/y_grad/Mul"  # a node without a name is called by its first output
    assert all(name.startswith(("gradients/y_grad/", "gradients/mine_grad/")) for name in names)


def test_a_sum_of_gradients_is_called_addn(make: Make):
    model = make("b = Mul(a, five)\nc = Add(b, a)", {}, {"a": [[1.0, 1.0]], "five": 5.0}, ["b", "c"])
    [da] = gc.gradients([model["c"]], [model["a"]])
    assert da is not None
    assert (da.name, da.shape) == ("gradients/AddN", (1, 2))
    assert np.array_equal(gc.run([da])[0], [[6.0, 6.0]])


def test_a_second_call_gets_a_number(make: Make):
    model = make("y = Tanh(x)", {"x": [2]})
    names = [gc.gradients(model["y"], model["x"])[0].name for _ in range(3)]  # type: ignore[union-attr]
    assert [name.split("/")[0] for name in names] == ["gradients", "gradients_1", "gradients_2"]


def test_a_name_of_ones_own_takes_the_place_of_gradients(make: Make):
    model = make("y = Tanh(x)", {"x": [2]})
    names = [gc.gradients(model["y"], model["x"], name="by/hand")[0].name for _ in range(2)]  # type: ignore[union-attr]
    assert [name.rsplit("/", 2)[0] for name in names] == ["by/hand", "by/hand_1"]


def test_a_call_that_fails_leaves_no_trace(make: Make):
    model = make("y = Exp(x)", {"x": [2]})
    with pytest.raises(ValueError, match="grad_ys"):
        gc.gradients(model["y"], model["x"], grad_ys=[None, None])
    [dx] = gc.gradients(model["y"], model["x"])
    assert dx is not None
    assert dx.name == "gradients/y_grad/Mul"


# colocate_gradients_with_ops, gate_gradients, aggregation_method


@pytest.mark.parametrize("colocate", [False, True])
def test_colocated_nodes_carry_the_metadata_of_their_forward_node(make: Make, colocate: bool):
    model = make("h = Tanh(x)\ny = Exp(h)", {"x": [2]})
    tanh, exp = (
        dataclasses.replace(node, metadata={"namespace": f"layer.{i}"}) for i, node in enumerate(model.graph.nodes)
    )
    graph = dataclasses.replace(model.graph, nodes=(tanh, exp))
    model = gc.Model(structs.replace(model.source, graph=graph), gc.OPS)
    [dx] = gc.gradients(model["y"], model["x"], colocate_gradients_with_ops=colocate)
    assert dx is not None
    steps = [s for s in model.tape([dx.name], Settings()).steps if s.origin < 0]
    found = {s.node.name.split("/")[1]: dict(s.node.metadata) for s in steps}
    wanted = {"h_grad": {"namespace": "layer.0"}, "y_grad": {"namespace": "layer.1"}}
    assert found == (wanted if colocate else {"h_grad": {}, "y_grad": {}})


def test_gating_puts_a_barrier_of_identities_behind_every_gradient_of_an_op(make: Make):
    model = make("y = Mul(a, b)", {"a": [2], "b": [2]})
    plain = gc.gradients(model["y"], [model["a"], model["b"]])
    gated = gc.gradients(model["y"], [model["a"], model["b"]], gate_gradients=True)
    tape = model.tape([t.name for t in gated], Settings())  # type: ignore[union-attr]
    ops = [s.node.op for s in tape.steps if s.origin < 0]
    assert ops == ["Mul", "Mul", "Identity", "Identity"]
    values = gc.run([*plain, *gated])
    assert np.array_equal(values[:2], values[2:])


def fanned_out(make: Make) -> gc.Model:
    """x is read in five places."""
    nodes = "\n".join(f"y{i} = {op}(x)" for i, op in enumerate(["Sin", "Cos", "Tanh", "Exp", "Neg"]))
    return make(f"{nodes}\ny = Sum(y0, y1, y2, y3, y4)", {"x": [3]})


@pytest.mark.parametrize("method", [*gc.AggregationMethod, None, 1, 2])
def test_every_aggregation_method_gives_equal_values(make: Make, method: gc.AggregationMethod | None):
    model = fanned_out(make)
    [dx] = gc.gradients(model["y"], model["x"], aggregation_method=method)
    x = np.array([0.1, -0.7, 1.3])
    wanted = np.cos(x) - np.sin(x) + 1 - np.tanh(x) ** 2 + np.exp(x) - 1
    assert_rounded(gc.run([dx], {"x": x})[0], wanted, roundings=5 * FUNCTION, of=5 + np.exp(x))  # of the five terms


@pytest.mark.parametrize(
    ("method", "sums"),
    [
        (None, ["Sum"]),
        (gc.AggregationMethod.ADD_N, ["Sum"]),
        (gc.AggregationMethod.DEFAULT, ["Sum"]),
        (gc.AggregationMethod.EXPERIMENTAL_TREE, ["Add"] * 4),
        (gc.AggregationMethod.EXPERIMENTAL_ACCUMULATE_N, ["Add"] * 4),
    ],
)
def test_aggregation_methods_differ_in_their_nodes(make: Make, method: gc.AggregationMethod | None, sums: list[str]):
    model = fanned_out(make)
    [dx] = gc.gradients(model["y"], model["x"], aggregation_method=method)
    assert dx is not None
    steps = [s.node for s in model.tape([dx.name], Settings()).steps if s.origin < 0]
    assert [n.op for n in steps if n.name.count("/") == 1] == sums
    depth: dict[str, int] = {}
    for node in steps:
        depth[node.outputs[0]] = max((depth.get(n, 0) for n in node.inputs), default=0) + (node.op == "Add")
    if method is gc.AggregationMethod.EXPERIMENTAL_TREE:
        assert depth[dx.name] == 3  # of five terms: the logarithm, rounded up
    if method is gc.AggregationMethod.EXPERIMENTAL_ACCUMULATE_N:
        assert depth[dx.name] == 4  # one after the other


# stop_gradients


def test_stop_gradients_are_constants_for_this_derivative_only(make: Make):
    model = make("u = Mul(x, x)\ny = Mul(u, x)", {"x": [1]})
    [through] = gc.gradients(model["y"], model["x"])
    [stopped] = gc.gradients(model["y"], model["x"], stop_gradients=model["u"])
    assert gc.run([through, stopped], {"x": [3.0]}) == [[27.0], [9.0]]


def test_partial_derivatives_by_tensors_that_are_stops_themselves(make: Make):
    """TensorFlow's own example: b = 2 a, gradients(a + b, [a, b], stop_gradients=[a, b]) is [1, 1]."""
    model = make("b = Mul(a, two)\ny = Add(a, b)", {"a": []}, {"two": 2.0})
    partial = gc.gradients(model["y"], [model["a"], model["b"]], stop_gradients=[model["a"], model["b"]])
    total = gc.gradients(model["y"], [model["a"], model["b"]])
    assert [float(v) for v in gc.run([*partial, *total])] == [1.0, 1.0, 3.0, 1.0]


def test_a_stopped_output_does_not_stop_the_other_outputs_of_its_node(make: Make):
    model = make("p, q = Split<num_outputs=2>(x)\ny = Mul(p, q)", {"x": [2]})
    [dx] = gc.gradients(model["y"], model["x"], stop_gradients=[model["p"]])
    assert np.array_equal(gc.run([dx], {"x": [3.0, 5.0]})[0], [0.0, 3.0])


def test_a_stop_on_every_way_leaves_nothing(make: Make):
    model = make("u = Exp(x)\ny = Neg(u)", {"x": [1]})
    assert gc.gradients(model["y"], model["x"], stop_gradients=[model["u"]]) == [None]


def test_no_stops_are_allowed_as_an_empty_list(make: Make):
    model = make("y = Neg(x)", {"x": [1]})
    assert gc.gradients(model["y"], model["x"], stop_gradients=[]) != [None]


def without_rules(model: gc.Model, *names: str) -> gc.Model:
    """The model under an operator table in which some operators have no gradient."""
    broken = {("", n): dataclasses.replace(gc.OPS["", n], vjp=None) for n in names}
    return gc.Model(model.source, {**gc.OPS, **broken})


def test_an_operator_without_a_rule_behind_a_stop_is_no_error(make: Make):
    model = without_rules(make("u = Sin(x)\ny = Mul(u, x)", {"x": [1]}), "Sin")
    [dx] = gc.gradients(model["y"], model["x"], stop_gradients=[model["u"]])
    assert gc.run([dx], {"x": [2.0]})[0] == np.sin([2.0])


def test_an_operator_without_a_rule_that_is_not_on_the_way_is_no_error(make: Make):
    model = without_rules(make("u = Sin(x)\ny = Mul(v, v)", {"x": [1], "v": [1]}, outputs=["u", "y"]), "Sin")
    assert gc.gradients(model["y"], model["v"]) != [None]


# LookupError


def test_lookup_error_lists_all_operators_without_a_gradient(make: Make):
    nodes = "a = Sin(x)\nb = Cos(a)\nc = Exp(b)\ny = Sin(c)"
    model = without_rules(make(nodes, {"x": [1]}, opset=18), "Sin", "Cos")
    with pytest.raises(LookupError) as caught:
        gc.gradients(model["y"], model["x"])
    message = str(caught.value)
    assert "no gradient for 3 operators between ys and xs" in message
    for part in ("Sin (node 0 'a'", "Cos (node 1 'b'", "Sin (node 3 'y'", "domain 'ai.onnx'", "opset 18"):
        assert part in message
    assert "Exp" not in message


def test_after_a_lookup_error_the_model_is_as_before(make: Make):
    model = without_rules(make("a = Sin(x)\ny = Exp(x)", {"x": [1]}, outputs=["a", "y"]), "Sin")
    before = model.tensors
    with pytest.raises(LookupError):
        gc.gradients(model["a"], model["x"])
    assert model.tensors == before
    assert gc.gradients(model["y"], model["x"])[0].name == "gradients/y_grad/Mul"  # type: ignore[union-attr]


# unconnected_gradients


def test_an_unconnected_x_gives_none(make: Make):
    model = make("y = Exp(x)", {"x": [2], "other": [3]})
    dx, nothing = gc.gradients(model["y"], [model["x"], model["other"]])
    assert dx is not None
    assert nothing is None


@pytest.mark.parametrize("zero", [gc.UnconnectedGradients.ZERO, "zero"])
def test_or_zeros_of_its_shape(make: Make, zero: gc.UnconnectedGradients):
    model = make("y = Exp(x)", {"x": [2], "other": [3, 2]})
    _, zeros = gc.gradients(model["y"], [model["x"], model["other"]], unconnected_gradients=zero)
    assert np.array_equal(gc.run([zeros])[0], np.zeros((3, 2)))


def test_a_connection_through_integers_is_none(make: Make):
    model = make("i = Cast<to=7>(x)\ny = Cast<to=1>(i)", {"x": [2]})
    assert gc.gradients(model["y"], model["x"]) == [None]


# Control flow and open dimensions


def branching(make: Make) -> gc.Model:
    """x w, or x x - w."""
    node = {
        "op": "If",
        "inputs": ["which"],
        "outputs": ["y"],
        "attrs": {
            "then_branch": "t () => (p) { p = Mul (x, w) }",
            "else_branch": "e () => (q) { s = Mul (x, x)\n q = Sub (s, w) }",
        },
    }
    inputs = {"x": [2], "which": {"shape": [], "dtype": "bool"}}
    return make([node], inputs, {"w": [3.0, 5.0]})  # type: ignore[arg-type]


def test_the_derivative_follows_the_branch_that_a_run_takes(make: Make):
    model = branching(make)
    dx, dw = gc.gradients(model["y"], [model["x"], model["w"]])
    x = [2.0, -1.0]
    taken, other = (gc.run([dx, dw], {"x": x, "which": which}) for which in (True, False))
    np.testing.assert_allclose(taken, [[3.0, 5.0], [2.0, -1.0]])
    np.testing.assert_allclose(other, [[4.0, -2.0], [-1.0, -1.0]])


def test_the_derivative_follows_a_loop_as_often_as_a_run_goes_round(make: Make):
    node = {
        "op": "Loop",
        "inputs": ["times", "always", "x"],
        "outputs": ["y"],
        "attrs": {
            "body": {
                "inputs": ["i", "go_on", "h"],
                "nodes": "next = Mul (h, h)\nstill = Identity (go_on)",
                "outputs": ["still", "next"],
            }
        },
    }
    inputs = {"x": [1], "times": {"shape": [], "dtype": "int64"}}
    model = make([node], inputs, constants={"always": True})  # type: ignore[arg-type]
    [dx] = gc.gradients(model["y"], model["x"])
    for times in range(1, 4):  # y = x ** 2 ** times
        found = gc.run([dx], {"x": [1.1], "times": times})[0]
        np.testing.assert_allclose(found, [2**times * 1.1 ** (2**times - 1)])


def test_the_derivative_is_traced_at_the_shapes_that_are_fed(make: Make):
    model = make("h = Mul(x, x)\ny = ReduceSum<keepdims=0>(h)", {"x": ["N", 3]})
    [dx] = gc.gradients(model["y"], model["x"])
    assert dx is not None
    assert dx.shape == ("N", 3)
    for n in (1, 2, 5):
        x = np.arange(3.0 * n).reshape(n, 3)
        assert np.array_equal(gc.run([dx], {"x": x})[0], 2 * x)


def test_feeds_that_are_left_out_are_drawn_by_seed(make: Make):
    model = make("y = Mul(x, x)", {"x": [4]})
    [dx] = gc.gradients(model["y"], model["x"])
    first, second = (gc.run([dx, model["x"]]) for _ in range(2))
    assert np.array_equal(first, second)
    np.testing.assert_allclose(first[0], 2 * first[1])


# ValueError for every invalid argument, before anything is computed


def test_arrays_are_no_tensors_and_the_message_says_what_to_write():
    with pytest.raises(ValueError, match=r"ys is an array of shape \[3, 3\], not a tensor.*model\['name'\]"):
        gc.gradients(np.random.default_rng(0).random((3, 3)), np.random.default_rng(1).random((2, 2)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ys": "y"}, r"ys is 'y' \(str\), not a tensor\. Write model\['y'\]"),
        ({"ys": []}, "ys is an empty list"),
        ({"ys": {}}, "ys is a dict, not a tensor"),
        ({"ys": None}, "ys is None, not a tensor"),
        ({"xs": [None]}, r"xs\[0\] is None, not a tensor\. gradients\(\) returns None for an x"),
        ({"xs": []}, "xs is an empty list"),
        ({"xs": 3.0}, r"xs is 3\.0 \(float\), not a tensor\. An array is only a value"),
        ({"xs": np.ones(2)}, r"xs is an array of shape \[2\], not a tensor"),
        ({"grad_ys": [None, None]}, "grad_ys has 2 entries, ys has 1: both must have the same length"),
        ({"grad_ys": np.ones((3, 3))}, r"grad_ys\[0\] has shape \[3, 3\]; 'y' has \[2\]"),
        ({"grad_ys": 1.0}, r"grad_ys\[0\] has shape \[\]; 'y' has \[2\]"),
        ({"grad_ys": [np.ones(2, int)]}, r"grad_ys\[0\] is int64; 'y' is float"),
        ({"grad_ys": [np.ones(2) * 1j]}, r"grad_ys\[0\] is complex128; 'y' is float"),
        ({"grad_ys": ["x"]}, r"grad_ys\[0\] is 'x' \(str\), not numbers\. Write model\['x'\]"),
        ({"name": "a b"}, r"name='a b' is no name: letters, digits and _ \. - are allowed, and / between them"),
        ({"name": ""}, "name='' is no name"),
        ({"name": "a/"}, "name='a/' is no name"),
        ({"name": "a//b"}, "name='a//b' is no name"),
        ({"name": 3}, "name=3 is no name"),
        ({"colocate_gradients_with_ops": "yes"}, "colocate_gradients_with_ops='yes' must be True or False"),
        ({"gate_gradients": 1}, "gate_gradients=1 must be True or False"),
        ({"aggregation_method": "sum"}, "aggregation_method='sum' is not one of AggregationMethod.ADD_N, "),
        ({"aggregation_method": 7}, "aggregation_method=7 is not one of AggregationMethod.ADD_N, "),
        ({"aggregation_method": ""}, "aggregation_method='' is not one of AggregationMethod.ADD_N, "),
        ({"aggregation_method": False}, "aggregation_method=False is not one of AggregationMethod.ADD_N, "),
        ({"stop_gradients": "x"}, r"stop_gradients is 'x' \(str\), not a tensor"),
        ({"stop_gradients": [1]}, r"stop_gradients\[0\] is 1 \(int\), not a tensor"),
        ({"stop_gradients": [None]}, r"stop_gradients\[0\] is None, not a tensor"),
        ({"unconnected_gradients": "nil"}, "_gradients='nil' is not one of UnconnectedGradients.NONE"),
        ({"unconnected_gradients": None}, "_gradients=None is not one of UnconnectedGradients.NONE"),
    ],
)  # fmt: skip
def test_value_errors_name_the_argument_its_value_and_what_is_allowed(
    make: Make, change: dict[str, object], message: str
):
    model = make("y = Tanh(x)", {"x": [2]})
    arguments = {"ys": model["y"], "xs": model["x"], **change}
    with pytest.raises(ValueError, match=message):
        gc.gradients(**arguments)  # type: ignore[arg-type]
    assert model.requests == []


def test_integer_tensors_have_no_gradients(make: Make):
    model = make(
        "y = Gather(x, i)\nn = Shape(x)",
        {"x": [3], "i": {"shape": [2], "dtype": "int64"}},
        outputs=["y", "n"],
    )
    with pytest.raises(ValueError, match=r"xs\[1\] 'i' is int64: only floating-point or complex tensors"):
        gc.gradients(model["y"], [model["x"], model["i"]])
    with pytest.raises(ValueError, match=r"ys\[0\] 'n' is int64"):
        gc.gradients(model["n"], model["x"])


@pytest.mark.parametrize("argument", ["xs", "stop_gradients", "grad_ys"])
def test_tensors_of_another_graph_are_refused(make: Make, argument: str):
    model, other = make("y = Tanh(x)", {"x": [2]}), make("y = Tanh(x)", {"x": [2]})
    arguments = {"ys": model["y"], "xs": model["x"], argument: [other["x"]]}
    with pytest.raises(ValueError, match=r"'x'.* (another model|one loaded model)"):
        gc.gradients(**arguments)  # type: ignore[arg-type]
