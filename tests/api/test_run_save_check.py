"""`load`, `run`, `save` and `check`: the functions around the two that the API descends from."""

from __future__ import annotations

import dataclasses
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from msgspec import structs

import gradcheck_cli as gc
from tests.rounding import FUNCTION, assert_rounded

Make = Callable[..., gc.Model]
NET = "h = MatMul(x, W)\na = Tanh(h)\nloss = ReduceSum<keepdims=0>(a)"
WEIGHTS = {"W": [[0.5, -0.25], [1.0, 0.75], [-1.5, 0.125]]}


@pytest.fixture
def net(make: Make) -> gc.Model:
    """A layer of tanh units and its sum."""
    return make(NET, {"x": [4, 3]}, WEIGHTS, ["loss", "a"])


# load


def test_load_gives_a_model_whose_tensors_are_had_by_name(net: gc.Model):
    x, h, w = net["x"], net["h"], net["W"]
    assert (x.name, x.shape, x.dtype, x.model) == ("x", (4, 3), np.float32, net)
    assert (h.shape, w.shape) == ((4, 2), (3, 2))
    assert "h" in net
    assert "nothing" not in net
    assert [node.op for node in net.graph.nodes] == ["MatMul", "Tanh", "ReduceSum"]


def test_an_unknown_name_suggests_the_nearest_one(make: Make):
    model = make("hidden = Neg(input)", {"input": [2]}, outputs=["hidden"])
    with pytest.raises(ValueError, match=r"has no tensor 'hiden'. Did you mean 'hidden'\?"):
        model["hiden"]
    with pytest.raises(ValueError, match=r"model\[3\]: the name of a tensor is a string"):
        model[3]  # type: ignore[index]


def test_load_takes_sizes_for_open_dimensions(tmp_path: Path):
    info = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Neg", ["x"], ["y"])], "g", [info("x", 1, ["N", 3])], [info("y", 1, ["N", 3])]
    )
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)]), tmp_path / "m.onnx")
    assert gc.load(tmp_path / "m.onnx")["x"].shape == ("N", 3)
    model = gc.load(tmp_path / "m.onnx", dims={"N": 5})
    assert model["x"].shape == model["y"].shape == (5, 3)
    assert gc.run([model["y"]])[0].shape == (5, 3)
    with pytest.raises(ValueError, match=r"m\.onnx has no open dimension 'M'; it has N"):
        gc.load(tmp_path / "m.onnx", dims={"M": 5})


@pytest.mark.parametrize(
    ("dims", "message"),
    [
        ({"M": 4}, "has no size 'M'"),
        ({"N": -1}, r"dims\['N'\]=-1 must be a whole number from 0 on"),
        ({"N": "4"}, r"dims\['N'\]='4' must be a whole number from 0 on"),
        (4, r"dims is 4 \(int\); it must be a dict: \{name: size\}"),
    ],
)
def test_load_refuses_sizes_that_cannot_be(make: Make, dims: Any, message: str):
    with pytest.raises(ValueError, match=message):
        make("y = Neg(x)", {"x": ["N", 3]}, load={"dims": dims})


def test_check_takes_sizes_too(make: Make):
    model = make("y = Neg(x)", {"x": ["N", 3]}, load={"dims": {"N": 4}})
    assert gc.check(model).checks[0].x_shape == (4, 3)
    assert gc.check(model, dims={"N": 7}).checks[0].x_shape == (7, 3)


def test_load_asks_which_graph_where_a_spec_has_several(tmp_path: Path):
    path = tmp_path / "two.gradcheck.yaml"
    path.write_text(
        "gradcheck: 1\ngraphs:\n"
        "  one: {inputs: {x: {shape: [1]}}, nodes: 'y = Neg (x)', outputs: [y]}\n"
        "  two: {inputs: {x: {shape: [2]}}, nodes: 'y = Exp (x)', outputs: [y]}\n"
    )
    assert gc.load(path, graph="two")["x"].shape == (2,)
    with pytest.raises(
        ValueError, match=r"has 2 graphs \('one', 'two'\): say which, as graph=\.\.\., in a command --graph NAME"
    ):
        gc.load(path)
    with pytest.raises(ValueError, match="has no graph 'three'; it has 'one', 'two'"):
        gc.load(path, graph="three")
    path.write_text("gradcheck: 1\nchecks: [{model: net.onnx}]\n")
    with pytest.raises(ValueError, match=r"two.gradcheck.yaml has no graphs: give the file of a model"):
        gc.load(path)


def test_the_graph_of_a_model_is_frozen_and_stays_as_it_was_read(net: gc.Model):
    before = net.graph
    gc.gradients(net["loss"], net["x"])
    assert net.graph is before
    with pytest.raises(dataclasses.FrozenInstanceError):
        net.graph.nodes = ()  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        net.graph.nodes[0].op = "Neg"  # type: ignore[misc]


def test_python_of_a_spec_is_imported_only_if_that_is_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from gradcheck_cli.errors import SpecError

    operator = "{'inputs': ['x'], 'outputs': ['y'], 'forward': 'y = Softsign (x)'}"
    (tmp_path / "mine_for_the_api.py").write_text(f"def softsign():\n    return {operator}\n")
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "spec.gradcheck.yaml"
    path.write_text(
        "gradcheck: 1\nops: {acme.F: {python: 'mine_for_the_api:softsign'}}\n"
        "graphs: {g: {inputs: {x: {shape: [1]}}, nodes: 'y = acme.F (x)', outputs: [y]}}\n"
    )
    with pytest.raises(SpecError, match="runs code, which a spec may do only with"):
        gc.load(path)
    assert gc.run(gc.load(path, allow_python=True)["y"], {"x": [1.0]}) == [[0.5]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"path": None}, r"path is None; it must be a path: a string or a pathlib\.Path"),
        ({"path": 3}, r"path is 3 \(int\); it must be a path"),
        ({"path": b"m.onnx"}, "path is a bytes; it must be a path"),
        ({"graph": 3}, "has no graph 3; it has 'g'"),
        ({"graph": ["g"]}, r"has no graph \['g'\]; it has 'g'"),
        ({"graph": ""}, "has no graph ''; it has 'g'"),
        ({"dims": {3: 4}}, r"a key of dims is 3 \(int\); it must be a name"),
        ({"allow_python": "yes"}, "allow_python='yes' must be True or False"),
    ],
)
def test_load_refuses_arguments_that_cannot_be(net: gc.Model, change: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        gc.load(**{"path": net.source.uri, **change})


def test_load_says_what_is_wrong_with_a_file(tmp_path: Path):
    from gradcheck_cli.errors import ModelError, SpecError

    with pytest.raises(ModelError, match=r"nowhere\.onnx does not exist"):
        gc.load("nowhere.onnx")
    (tmp_path / "bad.gradcheck.yaml").write_text("gradcheck: 1\ngraphs: {g: {nods: ''}}\n")
    with pytest.raises(SpecError, match=r"bad\.gradcheck\.yaml:2:\d+: unknown key 'nods'"):
        gc.load(tmp_path / "bad.gradcheck.yaml")


# run


def test_run_gives_an_array_for_each_tensor(net: gc.Model):
    x = np.arange(12.0).reshape(4, 3) / 10
    loss, a = gc.run([net["loss"], net["a"]], {"x": x})
    np.testing.assert_allclose(a, np.tanh(x @ np.array(WEIGHTS["W"])))
    np.testing.assert_allclose(loss, a.sum())
    assert np.array_equal(gc.run(net["loss"], {"x": x})[0], loss)


def test_feeds_are_by_name_or_tensor_and_of_any_tensor(net: gc.Model):
    h = np.ones((4, 2))
    for feeds in ({"h": h}, {net["h"]: h}):
        np.testing.assert_allclose(gc.run([net["a"]], feeds)[0], np.tanh(h))


@pytest.mark.parametrize("dtype", [">f8", "<f8", np.longdouble, ">f4", ">i8"], ids=str)
def test_numbers_of_any_order_of_bytes_and_length_are_the_same_as_float64(net: gc.Model, dtype: Any):
    """As files of netCDF, FITS or HDF5 hold them."""
    x = np.arange(12.0).reshape(4, 3)
    [dx] = gc.gradients(net["loss"], net["x"])
    for fed, same in zip(gc.run([net["a"], dx], {"x": x.astype(dtype)}), gc.run([net["a"], dx], {"x": x}), strict=True):
        assert (fed.dtype, fed.tolist()) == (np.float64, same.tolist())
    for values in ({"x_init_value": {"x": x.astype(dtype)}}, {"x": ["W"], "extra_feed_dict": {"x": x.astype(dtype)}}):
        assert [check.status for check in gc.check(net, **values).checks] == ["pass", "pass"]


def test_inputs_without_a_feed_are_drawn_by_seed(net: gc.Model):
    assert np.array_equal(gc.run([net["x"]])[0], gc.run([net["x"]])[0])


def test_run_computes_in_float64(net: gc.Model):
    assert [v.dtype for v in gc.run([net["x"], net["loss"]])] == [np.float64, np.float64]


def test_run_computes_in_the_dtypes_of_the_model_if_asked_to(net: gc.Model):
    [dx] = gc.gradients(net["loss"], net["x"])
    assert [v.dtype for v in gc.run([net["x"], net["loss"], dx], dtype="model")] == [np.float32] * 3


@pytest.mark.parametrize(
    ("tensors", "feeds", "message"),
    [
        ("loss", None, "tensors holds no tensor"),
        ([], None, "tensors holds no tensor"),
        (None, None, r"tensors\[0\] is None: gradients\(\) returned it for an x that y does not"),
        ([None], None, "ask for zeros with unconnected_gradients=UnconnectedGradients.ZERO"),
        (np.ones(2), None, "tensors holds no tensor"),
        ("model", {"x": np.ones((2, 3))}, r"feeds\['x'\] has shape \[2, 3\]; the tensor has \[4,3\]"),
        ("model", {"W": np.ones((2, 3))}, r"feeds\['W'\] has shape \[2, 3\]; the tensor has \[3,2\]"),
        ("model", {"xx": 1.0}, "has no tensor 'xx'"),
        ("model", {"x": "ones"}, r"feeds\['x'\] is 'ones' \(str\), not numbers"),
        ("model", {"x": [[1.0], [2.0, 3.0]]}, r"feeds\['x'\] is no array"),
        ("model", {"x": 1j * np.ones((4, 3))}, r"feeds\['x'\] is complex128; 'x' is float32"),
        ("model", [1.0], "feeds is a list; it must be a dict"),
    ],
)  # fmt: skip
def test_run_refuses_what_is_no_tensor_and_feeds_that_do_not_fit(net: gc.Model, tensors: Any, feeds: Any, message: str):
    with pytest.raises(ValueError, match=message):
        gc.run([net["loss"]] if isinstance(tensors, str) and tensors == "model" else tensors, feeds)


def test_running_a_none_gradient_says_what_to_do(make: Make):
    model = make("y = Exp(x)", {"x": [2], "other": [2]})
    grad = gc.gradients(model["y"], model["other"])
    with pytest.raises(ValueError, match=r"tensors\[0\] is None: gradients\(\) returned it .* Leave it out, or ask"):
        gc.run(grad)  # type: ignore[arg-type]


def test_a_tensor_as_a_feed_says_what_to_do(net: gc.Model):
    with pytest.raises(ValueError, match=r"feeds\['x'\] is a tensor; give its value: run\(\[tensor\]\)\[0\]"):
        gc.run([net["loss"]], {"x": net["x"]})


@pytest.mark.parametrize("error", [RuntimeError, TypeError])
def test_a_tensor_of_another_library_that_numpy_cannot_read_is_refused_with_its_reason(
    net: gc.Model, error: type[Exception]
):
    class Foreign:
        def __array__(self, *_: Any, **__: Any) -> np.ndarray[Any, Any]:
            raise error("Use tensor.detach().numpy() instead.")

    with pytest.raises(ValueError, match=r"feeds\['x'\] is no array: Use tensor.detach\(\).numpy\(\) instead\.$"):
        gc.run([net["loss"]], {"x": Foreign()})


@pytest.mark.parametrize("argument", ["feeds", "x_init_value", "extra_feed_dict"])
def test_a_tensor_that_has_two_values_is_refused(net: gc.Model, argument: str):
    keys = [(net["x"], "x"), ("x", net["x"]), (net["x"], net["x"])]
    for first, second in keys:
        values = {first: np.ones((4, 3)), second: np.zeros((4, 3))}
        with pytest.raises(ValueError, match=rf"^{argument} has two values for 'x'; leave out one of them\.$"):
            gc.run([net["loss"]], values) if argument == "feeds" else gc.check(net, **{argument: values})  # type: ignore[arg-type]


def test_a_tensor_that_has_a_value_of_each_argument_is_refused(net: gc.Model):
    with pytest.raises(ValueError, match="x_init_value and extra_feed_dict both have a value for 'x'; leave out one"):
        gc.check(net, x_init_value={"x": np.ones((4, 3))}, extra_feed_dict={net["x"]: np.zeros((4, 3))})


MASKED = np.ma.array(np.ones((4, 3)), mask=np.eye(4, 3))
MASKING: list[tuple[str, Callable[[gc.Model, Any], Any]]] = [
    ("feeds['x']", lambda net, x: gc.run([net["loss"]], {"x": x})),
    ("x_init_value['x']", lambda net, x: gc.check(net, x_init_value={"x": x})),
    ("extra_feed_dict['x']", lambda net, x: gc.check(net, extra_feed_dict={"x": x}, x="W")),
    ("grad['x']", lambda net, x: gc.check(net, x="x", y="loss", grad={"x": x})),
    ("x_init_value", lambda net, x: gc.compute_gradient(net["x"], (4, 3), net["loss"], (), x)),
    ("grad_ys[0]", lambda net, x: gc.gradients([net["x"]], [net["x"]], grad_ys=[x])),
]


@pytest.mark.parametrize(("place", "call"), MASKING, ids=[place for place, _ in MASKING])
def test_masked_entries_are_refused_wherever_numbers_are_given(
    net: gc.Model, place: str, call: Callable[[gc.Model, Any], Any]
):
    with pytest.raises(ValueError, match=rf"^{re.escape(place)} has 3 of 12 entries masked; say what stands there: "):
        call(net, MASKED)
    call(net, np.ma.array(MASKED.data))  # nothing is masked


def test_derivatives_cannot_be_fed(net: gc.Model):
    [dx] = gc.gradients(net["loss"], net["x"])
    with pytest.raises(ValueError, match=r"feeds: 'gradients/.*' was made by gradients\(\)"):
        gc.run([net["loss"]], {dx: np.ones((4, 3))})


# save


def session(path: Path) -> onnxruntime.InferenceSession:
    """The saved file, checked and loaded by another runtime."""
    onnx.checker.check_model(onnx.load(path), full_check=True)
    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


def agrees(model: gc.Model, path: Path, outputs: list[gc.Tensor], feeds: dict[str, np.ndarray]) -> None:
    """onnxruntime computes from the file what `run` computes from the model."""
    gc.save(model, path, outputs)
    found, wanted = session(path).run(None, feeds), gc.run(outputs, feeds)
    assert [o.name for o in onnx.load(path).graph.output] == [t.name for t in outputs]
    for ours, theirs in zip(wanted, found, strict=True):
        assert ours.shape == theirs.shape
        assert_rounded(theirs, ours, roundings=4 * FUNCTION)


def test_save_writes_a_model_that_onnxruntime_runs_with_equal_values(net: gc.Model, tmp_path: Path):
    dx, dw = gc.gradients(net["loss"], [net["x"], net["W"]])
    x = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    agrees(net, tmp_path / "with_gradient.onnx", [net["loss"], dx, dw], {"x": x})  # type: ignore[list-item]


def test_save_writes_second_derivatives(net: gc.Model, tmp_path: Path):
    [dx] = gc.gradients(net["loss"], net["x"])
    [hvp] = gc.gradients([dx], net["x"], grad_ys=[np.linspace(-1, 1, 12).reshape(4, 3)])
    x = np.random.default_rng(1).normal(size=(4, 3)).astype(np.float32)
    agrees(net, tmp_path / "hvp.onnx", [hvp], {"x": x})  # type: ignore[list-item]


def test_save_writes_double_models(make: Make, tmp_path: Path):
    model = make("h = Tanh(x)\ny = Mul(h, x)", {"x": {"shape": [5], "dtype": "float64"}})
    dx = gc.gradients(model["y"], model["x"])
    agrees(model, tmp_path / "double.onnx", [model["y"], *dx], {"x": np.linspace(-2, 2, 5)})  # type: ignore[list-item]


def test_saved_names_are_those_of_the_handles_and_stand_under_the_scope(net: gc.Model, tmp_path: Path):
    gc.gradients(net["loss"], net["x"])
    [dw] = gc.gradients(net["loss"], net["W"])
    assert dw is not None
    gc.save(net, tmp_path / "g.onnx", [dw])
    graph = onnx.load(tmp_path / "g.onnx").graph
    names = [n.name for n in graph.node if n.name.startswith("gradients")]
    assert names
    assert all(n.startswith("gradients_1/") and "_grad/" in n for n in names)
    assert [o.name for o in graph.output] == [dw.name]


def test_saved_nodes_are_colocated(make: Make, tmp_path: Path):
    model = make("h = Tanh(x)\ny = Exp(h)", {"x": {"shape": [2], "dtype": "float64"}})
    nodes = tuple(dataclasses.replace(n, metadata={"namespace": n.op.lower()}) for n in model.graph.nodes)
    source = structs.replace(model.source, graph=dataclasses.replace(model.graph, nodes=nodes))
    model = gc.Model(source, gc.OPS)
    twice = np.array([2.0, 2.0])  # a factor of 1 would leave no node of the gradient of y
    gc.save(model, tmp_path / "c.onnx", gc.gradients(model["y"], model["x"], twice, colocate_gradients_with_ops=True))  # type: ignore[arg-type]
    found = {n.name: {p.key: p.value for p in n.metadata_props} for n in onnx.load(tmp_path / "c.onnx").graph.node}
    assert {v["namespace"] for k, v in found.items() if k.startswith("gradients/h_grad")} == {"tanh"}
    assert {v["namespace"] for k, v in found.items() if k.startswith("gradients/y_grad")} == {"exp"}


def test_saved_dimensions_stay_open(make: Make, tmp_path: Path):
    model = make("y = Neg(x)", {"x": ["N", 2]})
    gc.save(model, tmp_path / "n.onnx", [model["y"]])
    again = gc.load(tmp_path / "n.onnx")
    assert again["x"].shape == ("N", 2)
    for rows in (1, 3):
        [y] = gc.run([again["y"]], {"x": np.ones((rows, 2))})
        np.testing.assert_array_equal(y, -np.ones((rows, 2)))


def test_save_refuses_complex_operators(make: Make, tmp_path: Path):
    from gradcheck_cli.errors import UnsupportedError

    model = make("y = Conj(z)", {"z": {"shape": [2], "dtype": "complex64"}})
    with pytest.raises(UnsupportedError, match="Conj works on complex numbers, which ONNX operators do not"):
        gc.save(model, tmp_path / "z.onnx", [model["y"]])


@pytest.mark.parametrize("outputs", [[None], [3], [np.ones(2)], 3, np.ones(2)])
def test_save_refuses_what_is_no_tensor(net: gc.Model, tmp_path: Path, outputs: Any):
    with pytest.raises(ValueError, match=r"outputs(\[0\])? is .*(not a tensor|it must be a tensor, a name, or a list)"):
        gc.save(net, tmp_path / "n.onnx", outputs)


def test_one_output_need_not_be_a_list(make: Make, tmp_path: Path):
    model = make("y = Neg(x)", {"x": {"shape": [2], "dtype": "float64"}})
    gc.save(model, tmp_path / "y.onnx", model["y"])
    assert np.array_equal(session(tmp_path / "y.onnx").run(None, {"x": np.ones(2)})[0], [-1.0, -1.0])


def test_save_refuses_to_write_nothing(net: gc.Model, tmp_path: Path):
    with pytest.raises(ValueError, match="outputs is an empty list"):
        gc.save(net, tmp_path / "n.onnx", [])


# check


def test_check_does_what_the_command_does(net: gc.Model):
    report = gc.check(net, x=["x"], y=["loss"])
    [check] = report.checks
    assert (check.status, check.x, check.y, check.suspect) == ("pass", "x", "loss", None)
    assert check.entries == {"total": 12, "checked": 12, "failed": 0, "inconclusive": 0, "kink_ok": 0}
    assert report.exit_code == 0


def test_check_chooses_x_and_y_as_the_command_does(net: gc.Model):
    assert [(c.x, c.y) for c in gc.check(net).checks] == [("x", "loss"), ("x", "a")]
    assert [c.x for c in gc.check(net, y="loss", params=True).checks] == ["x", "W"]


def test_x_and_y_may_be_tensors_or_names_one_or_many(net: gc.Model):
    for x, y in (("x", "loss"), (net["x"], net["loss"]), ([net["x"]], ["loss"])):
        assert [(c.x, c.y) for c in gc.check(net, x, y).checks] == [("x", "loss")]


def test_ones_own_rule_under_test_goes_into_the_operator_table(net: gc.Model):
    def mine(ct: Any, y: Any, x: Any) -> tuple[Any]:
        return (ct * (1.0 - y),)  # the square is missing

    ops = {**gc.OPS, ("", "Tanh"): dataclasses.replace(gc.OPS["", "Tanh"], vjp=mine)}
    report = gc.check(net, x=["x"], y=["loss"], ops=ops)
    [check] = report.checks
    assert (check.status, check.code, report.exit_code) == ("fail", "GC101", 1)
    assert check.suspect is not None
    assert (check.suspect.op, check.suspect.node, check.suspect.outputs) == ("Tanh", 1, ("a",))


def test_ones_own_right_rule_passes(net: gc.Model):
    def mine(ct: Any, y: Any, x: Any) -> tuple[Any]:
        return (ct - ct * y * y,)

    ops = {**gc.OPS, ("", "Tanh"): dataclasses.replace(gc.OPS["", "Tanh"], vjp=mine)}
    assert gc.check(net, x=["x"], y=["loss"], ops=ops).exit_code == 0


def test_values_are_given_by_name_or_tensor(net: gc.Model):
    value = np.full((4, 3), 0.5)
    slopes = gc.check(net, y="loss", x_init_value={"x": value}).checks[0].gradient
    assert slopes == gc.check(net, y="loss", x_init_value={net["x"]: value}).checks[0].gradient
    fixed = gc.check(net, x="x", y="loss", extra_feed_dict={"W": np.zeros((3, 2))}).checks[0]
    assert fixed.gradient["max"] == 0


def test_tolerances_are_for_all_or_by_name(make: Make):
    model = make("y = Exp(x)\nz = Exp(x)", {"x": [3]}, outputs=["y", "z"])

    def off(ct: Any, y: Any, x: Any) -> tuple[Any]:
        return (ct * y * (1 + 1e-5),)

    ops = {**gc.OPS, ("", "Exp"): dataclasses.replace(gc.OPS["", "Exp"], vjp=off)}
    assert [c.status for c in gc.check(model, ops=ops).checks] == ["fail", "fail"]
    assert [c.status for c in gc.check(model, ops=ops, rtol=1e-4).checks] == ["pass", "pass"]
    assert [c.status for c in gc.check(model, ops=ops, rtol={"y": 1e-4}).checks] == ["pass", "fail"]
    assert [c.status for c in gc.check(model, ops=ops, atol={"z": 1.0}).checks] == ["fail", "pass"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": "xx"}, "has no tensor 'xx'"),
        ({"x": []}, "x is an empty list"),
        ({"y": [3]}, r"y\[0\] is 3 \(int\), not a tensor"),
        ({"x": "loss", "y": "x"}, r"'loss' depends on 'x'\. Are --x and --y swapped\?"),
        ({"feed": {}}, r"check\(\) has no argument 'feed'\. Did you mean 'extra_feed_dict'\?"),
        ({"mood": "full"}, r"check\(\) has no argument 'mood'\. Did you mean 'mode'\?"),
        ({"mode": "fast"}, "mode='fast' is not one of 'auto', 'full', 'nodes', 'directional', 'sampled'"),
        ({"method": "complex"}, "method='complex' is not one of 'auto', 'complex-step', "),
        ({"dtype": "float16"}, "dtype='float16' is not one of 'float64', 'model'"),
        ({"points": 0}, "points=0 must be a whole number from 1 on"),
        ({"points": 1.5}, r"points=1\.5 must be a whole number from 1 on"),
        ({"seed": -1}, "seed=-1 must be a whole number from 0 on"),
        ({"jobs": 0}, "jobs=0 must be a whole number from 1 on"),
        ({"delta": 0}, "delta=0 must be a number from "),
        ({"rtol": -1}, "rtol=-1 must be a number from 0 on"),
        ({"rtol": {"x": "1"}}, "rtol='1' must be a number from 0 on"),
        ({"atol": float("nan")}, "atol=nan must be a number from 0 on"),
        ({"dims": 3}, r"dims is 3 \(int\); it must be a dict"),
        ({"x_shape": (4, 3)}, r"x_shape is a tuple; it must be a dict: \{name: shape\}"),
        ({"x_shape": {"x": "4,3"}}, r"x_shape\['x'\]='4,3' is no shape; give a tuple of ints"),
        ({"x_shape": {"x": (4, -3)}}, r"x_shape\['x'\]=\[4, -3\] is no shape: a dimension is negative"),
        ({"y_shape": {3: (1,)}}, r"a key of y_shape is 3 \(int\); it must be a name"),
        ({"val_range": {"x": 3}}, r"val_range\['x'\]=3 is no range; give a pair \(low, high\)"),
        ({"val_range": {"x": (2, 1)}}, r"val_range\['x'\]=\(2, 1\) is no range: 2 is above 1"),
        ({"params": "W"}, "params='W' must be True or False"),
        ({"test_data": 3}, r"test_data is 3 \(int\); it must be a path"),
        ({"timeout": 1j}, "timeout=1j must be a number from 0 on"),
        ({"max_inconclusive": 3}, "max_inconclusive=3 must be a number from 0 to 1"),
        ({"rtol": {"nowhere": 1e-3}}, "has no tensor 'nowhere'"),
        ({"init_targets": ["a"]}, "no initialization 'a'; the model has: none"),
        ({"ops": None}, r"ops is None; it must be a dict: \{\(domain, name\): operator\}"),
        ({"ops": {"Tanh": gc.OPS["", "Tanh"]}}, r"a key of ops is 'Tanh'; it must be \(domain, name\)"),
        ({"ops": {**gc.OPS, ("", "Tanh"): 3}}, r"ops\[\('', 'Tanh'\)\] is 3 \(int\), not an operator; give a gc\.Op"),
        ({"x_init_value": np.ones(3)}, "x_init_value is an array of shape .*; it must be a dict"),
    ],
)  # fmt: skip
def test_check_refuses_invalid_arguments(net: gc.Model, change: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        gc.check(net, **change)


def test_check_wants_a_model():
    with pytest.raises(ValueError, match=r"model is 'm\.onnx' \(str\), not what load\(\) gives"):
        gc.check("m.onnx")  # type: ignore[arg-type]


def test_every_setting_reaches_the_check(make: Make):
    model = make("h = Sin(x)\ny = Mul(h, w)", {"x": ["N"]}, {"w": [2.0]}, outputs=["y", "h"])
    plain = gc.check(model, "x", "y").checks[0]

    def changed(**settings: Any) -> Any:
        return gc.check(model, "x", "y", **settings).checks[0]

    assert (plain.mode, plain.x_shape, plain.method) == ("full", (2,), "complex-step")
    assert changed(mode="directional").mode == "directional"
    assert changed(method="central").method == "central"
    assert changed(x_shape={"x": (3,)}).x_shape == changed(dims={"N": 3}).x_shape == (3,)
    assert changed(seed=1).gradient != plain.gradient
    assert changed(val_range={"x": (0.0, 0.0)}).gradient["max"] == 2
    assert [c.x for c in gc.check(model, y="y", params=True).checks] == ["x", "w"]
    assert changed(points=3).gradient != plain.gradient
    assert gc.check(model, dtype="model").checks[0].status == "pass"


def test_a_derivative_is_checked_in_a_file_or_by_second_order(net: gc.Model):
    [dx] = gc.gradients(net["loss"], net["x"])
    for given in ({"y": dx}, {"y": [net["loss"], dx.name]}, {"x": dx}):
        with pytest.raises(
            ValueError, match=rf"'{dx.name}' was made by gradients\(\); save\(\) it and check that file"
        ):
            gc.check(net, **given)  # type: ignore[arg-type]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes that fork")
def test_a_check_in_a_process_of_its_own_gives_the_same(net: gc.Model):
    here, apart = (gc.check(net, isolate=isolate) for isolate in (False, True))
    times: dict[str, Any] = {"duration_s": 0.0, "peak_rss_mb": 0.0}
    assert [dataclasses.replace(c, **times) for c in here.checks] == [
        dataclasses.replace(c, **times) for c in apart.checks
    ]
    with pytest.raises(ValueError, match="isolate=3 must be True or False"):
        gc.check(net, isolate=3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"does not depend|no tensor"):
        gc.check(net, "nosuch", isolate=True)


# The package


def test_the_package_offers_what_it_lists():
    for name in gc.__all__:
        assert getattr(gc, name) is not None
    assert set(gc.__all__) <= set(dir(gc))
    with pytest.raises(AttributeError, match="has no attribute 'gradient'"):
        gc.gradient  # noqa: B018


def test_examples_import_nothing_of_the_package_but_its_face():
    for path in (Path(__file__).parents[2] / "examples").glob("*.py"):
        assert re.findall(r"gradcheck_cli\.\S+|from gradcheck_cli\b", path.read_text("utf-8")) == [], path.name


def test_signatures_are_those_of_the_documentation():
    def shown(function: Any) -> str:
        parameters = inspect.signature(function).parameters.values()
        return ", ".join(str(p.replace(annotation=p.empty)) for p in parameters)

    assert shown(gc.load) == "path, dims=None, graph=None, allow_python=False"
    assert shown(gc.run) == "tensors, feeds=None, dtype='float64'"
    assert shown(gc.save) == "model, path, outputs=None, feeds=None"
    assert shown(gc.check).startswith("model, x=None, y=None, x_init_value=None, extra_feed_dict=None, ops=")


@pytest.mark.parametrize("name", ["load", "run", "gradients", "compute_gradient", "check", "save"])
def test_every_public_function_documents_its_arguments_and_errors(name: str):
    function = getattr(gc, name)
    doc = inspect.getdoc(function) or ""
    assert doc.split("\n")[0].endswith(".")
    for parameter in inspect.signature(function).parameters:
        assert f"{parameter}:" in doc, parameter
    assert "Raises:" in doc


@pytest.mark.parametrize("name", gc.__all__)
def test_everything_public_is_documented(name: str):
    assert len(inspect.getdoc(getattr(gc, name)) or "") > 40


@pytest.mark.parametrize(
    ("name", "source"),
    [("gradients", "tf.gradients"), ("compute_gradient", "tf.test.compute_gradient"),
     ("compute_gradient_error", "tf.test.compute_gradient_error"), ("AggregationMethod", "tf.AggregationMethod"),
     ("UnconnectedGradients", "tf.UnconnectedGradients"), ("run", "tf.Session.run")],
)  # fmt: skip
def test_what_descends_from_tensorflow_says_so(name: str, source: str):
    assert f"`{source}`" in (inspect.getdoc(getattr(gc, name)) or "")


def test_importing_the_package_loads_nothing_that_takes_time():
    code = "import sys, gradcheck_cli; print(*(m.split('.')[0] for m in sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(run.stdout.split()).isdisjoint({"numpy", "onnx", "google", "yaml", "click", "rich", "pydantic"})
    code = "import sys, gradcheck_cli; print(*(m for m in sys.modules if m.startswith('gradcheck_cli')))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(run.stdout.split()) == {"gradcheck_cli", "gradcheck_cli.errors"}  # which says the version
