"""Values and shapes that a user gives: each counts, or is an error; none is put aside without a word."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gradcheck_cli as gc
from gradcheck_cli.formats.source import Source
from gradcheck_cli.graph import Graph, Node, TensorType
from gradcheck_cli.record import Check

FLOAT = np.dtype(np.float32)
W = np.array([[1.0, -2.0], [0.5, 3.0]], np.float32)


def net(*shape: int | str | None) -> gc.Model:
    """tanh(x W) of an x of this shape; () declares none."""
    nodes = (Node("MatMul", ("x", "W"), ("h",)), Node("Tanh", ("h",), ("y",)))
    types = {"x": TensorType(FLOAT, shape or None)}
    return gc.Model(Source(Graph(("x",), ("y",), nodes, {"W": W}, types), "net", nodes=2), gc.OPS)


def check(model: gc.Model, x: str = "x", **settings: Any) -> Check:
    [record] = gc.check(model, x, "y", **settings).checks
    return record


def test_a_number_fills_the_shape_that_was_given():
    record = check(net("N", 2), x_init_value={"x": np.float64(0.5)}, x_shape={"x": (5, 2)})
    assert (record.status, record.x_shape, record.dims) == ("pass", (5, 2), {"N": 5})
    assert check(net("N", 2), x_init_value={"x": 0.5}, dims={"N": 4}).x_shape == (4, 2)
    assert check(net("N", 2), x_init_value={"x": 0.5}).x_shape == (2, 2)


def test_a_shape_that_was_given_counts_where_the_file_declares_none():
    assert check(net(), x_shape={"x": (3, 2)}).x_shape == (3, 2)
    assert check(net(), x_shape={"x": (3, 2)}, x_init_value={"x": 0.5}).x_shape == (3, 2)


CONTRADICTIONS: dict[str, tuple[tuple[Any, ...], dict[str, Any], str]] = {
    "a value and a shape": (("N", 2), {"x_init_value": {"x": np.ones((3, 2))}, "x_shape": {"x": (5, 2)}},
                            "--x-shape x:5,2 contradicts the value given for 'x', which has shape [3,2]"),
    "a fed value and a shape": (("N", 2), {"extra_feed_dict": {"x": np.ones((3, 2))}, "x_shape": {"x": (5, 2)}},
                                "--x-shape x:5,2 contradicts the value given for 'x', which has shape [3,2]"),
    "a value and a size": (("N", 2), {"x_init_value": {"x": np.ones((3, 2))}, "dims": {"N": 5}},
                           "--dim N=5 contradicts the shape of 'x', in which it is 3"),
    "a shape and a size": (("N", 2), {"x_shape": {"x": (3, 2)}, "dims": {"N": 5}},
                           "--dim N=5 contradicts the shape of 'x', in which it is 3"),
    "a value and no declared shape": ((), {"x_init_value": {"x": np.ones((3, 2))}, "x_shape": {"x": (5, 2)}},
                                      "--x-shape x:5,2 contradicts the value given for 'x', which has shape [3,2]"),
    "a shape and that of a tensor inside": (("N", 2), {"x_shape": {"h": (7, 7)}},
                                            "--x-shape h:7,7 contradicts the model: 'h' has shape [2,2]"),
    "a shape and that of a parameter": (("N", 2), {"x_shape": {"W": (3, 2)}},
                                        "--x-shape W:3,2 contradicts the model: 'W' has shape [2,2]"),
    "a rank": (("N", 2), {"x_shape": {"x": (2,)}}, "--x-shape x:2 contradicts the model: 'x' has 2 dimensions"),
}  # fmt: skip


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_contradictions_are_errors_that_name_both_sides(name: str):
    shape, given, message = CONTRADICTIONS[name]
    with pytest.raises(ValueError) as raised:
        check(net(*shape), **given)
    assert message in str(raised.value)


def test_points_draw_values_of_one_size():
    record = check(net("N", 2), points=3, x_shape={"x": (3, 2)})
    assert record.entries["checked"] == 3 * 36


@pytest.mark.parametrize("value", [0.5, np.nan, np.inf, 1e30])
def test_numbers_that_an_integer_input_cannot_hold_are_an_error(value: float):
    types = {"x": TensorType(FLOAT, (2,)), "i": TensorType(np.dtype(np.int64), (1,))}
    graph = Graph(("x", "i"), ("y",), (Node("Gather", ("x", "i"), ("y",)),), {}, types)
    model = gc.Model(Source(graph, "net", nodes=1), gc.OPS)
    assert check(model, extra_feed_dict={"i": np.array([1.0])}).status == "pass"
    with pytest.raises(ValueError, match="the value given for 'i' has numbers that int64 has not"):
        check(model, extra_feed_dict={"i": np.array([value])})
