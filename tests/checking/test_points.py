"""Values and shapes that a user gives: each counts, or is an error; none is put aside without a word."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import gradcheck_cli as gc
from gradcheck_cli.formats.source import Source
from gradcheck_cli.graph import Graph, Node, TensorType
from gradcheck_cli.points.point import find_point
from gradcheck_cli.points.targets import choose_x
from gradcheck_cli.report.full import section
from gradcheck_cli.report.text import Style
from gradcheck_cli.results.record import Check
from gradcheck_cli.settings import ANY, Settings
from tests.export.open_models import Open, written

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


def test_a_shape_that_the_file_does_not_declare_is_asked_for_where_a_number_does_not_run():
    with pytest.raises(ValueError, match=r"declares no shape of x, .* give it to a check: --x-shape x:2,3"):
        check(net())
    assert check(net(), x_shape={"x": (2, 2)}).status == "pass"


def test_a_check_says_that_one_number_is_taken_where_the_file_declares_no_shape():
    exp = Graph(("x",), ("y",), (Node("Exp", ("x",), ("y",)),), {}, {"x": TensorType(FLOAT, None)})
    model = gc.Model(Source(exp, "net", nodes=1), gc.OPS)
    said = "one number is taken for x, of which the file declares no shape: --x-shape x:2,3"
    assert check(model).notes.count(said) == 1
    assert said not in check(model, x_shape={"x": (2,)}).notes
    assert said not in check(model, x_init_value={"x": 0.5}).notes


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


@pytest.mark.parametrize("dtype", [">f2", ">f4", ">f8", ">i8", ">u2"])
def test_numbers_of_another_order_of_bytes_are_the_same_numbers(dtype: str):
    little = check(net(2), extra_feed_dict={"x": np.array([1, 2], dtype.replace(">", "<"))})
    big = check(net(2), extra_feed_dict={"x": np.array([1, 2], dtype)})
    assert big.status == "pass"
    assert (big.gradient, big.entries) == (little.gradient, little.entries)


TOO_LARGE: list[tuple[Any, Any, Any]] = [
    # the dtype of a tensor, a number that it has, one that it has not
    (np.int8, -128, 300),
    (np.uint8, 255, -1),
    (np.int32, 2**31 - 1, 2**31),
    (np.int64, np.uint64(2**63 - 1), np.uint64(2**63)),
    (np.uint64, np.uint64(2**64 - 1), -1),
    (np.bool_, 1, 2),
    (ml_dtypes.int4, -8, 8),
    (ml_dtypes.int4, 7.0, 2.5),
    (ml_dtypes.uint4, 15, np.nan),
]


@pytest.mark.parametrize(("dtype", "right", "wrong"), TOO_LARGE)
def test_integers_that_a_tensor_cannot_hold_are_an_error(dtype: Any, right: Any, wrong: Any):
    types = {"i": TensorType(np.dtype(dtype), (1,))}
    graph = Graph(("i",), ("y",), (Node("Identity", ("i",), ("y",)),), {}, types)
    model = gc.Model(Source(graph, "net", nodes=1), gc.OPS)
    [held] = gc.run(model["y"], {"i": np.array([right])}, dtype="model")
    assert held.dtype == dtype
    assert held == np.array([right])
    message = f"the value given for 'i' has numbers that {np.dtype(dtype).name} has not"
    for feed in (np.array([wrong]), wrong):
        with pytest.raises(ValueError, match=message):
            gc.run(model["y"], {"i": feed})


# Where inputs are drawn: inside the domains of operators, at several magnitudes, by seed


def single(*nodes: tuple[Any, ...], shape: tuple[int, ...] = (6,), dtype: Any = FLOAT, **constants: Any) -> gc.Model:
    """A model of x alone."""
    made = tuple(Node(op, tuple(reads.split()), (out,)) for op, reads, out in nodes)
    arrays = {name: np.asarray(value, np.float64) for name, value in constants.items()}
    graph = Graph(("x",), (made[-1].outputs[0],), made, arrays, {"x": TensorType(np.dtype(dtype), shape)})
    return gc.Model(Source(graph, "net", nodes=len(made)), gc.OPS)


def drawn(model: gc.Model, **settings: Any) -> np.ndarray[Any, Any]:
    """The x that a check draws."""
    found = find_point(model.source, Settings(**settings), gc.OPS, ["y"], settings.get("point") or 0)
    return np.asarray(found.feeds["x"])


@pytest.mark.parametrize("op", ["Log", "Sqrt", "Acos", "Asin", "Atanh", "Acosh", "Reciprocal", "ReduceLogSum"])
def test_every_point_stays_inside_of_a_domain(op: str):
    record = check(single((op, "x", "y")), points=6)
    assert (record.status, record.ranges) == ("pass", {}), record.message


@pytest.mark.parametrize("op", ["Tanh", "Log", "Acosh", "Acos"])
def test_points_have_several_magnitudes(op: str):
    sizes = [float(np.abs(drawn(single((op, "x", "y")), point=k)).max()) for k in range(6)]
    expected = {"Tanh": [1, 0.1, 10], "Log": [1, 0.1, 10], "Acosh": [3, 3, 30], "Acos": [0.9, 0.09, 0.9]}[op]
    for size, most in zip(sizes, expected * 2, strict=True):
        assert 0.3 * most < size <= most


def test_both_signs_are_drawn_where_they_may():
    for k in range(3):
        x = drawn(single(("Tanh", "x", "y"), shape=(50,)), point=k)
        assert (x < 0).sum() > 10 < (x > 0).sum()


def test_a_range_that_was_given_has_one_magnitude():
    for k in range(3):
        x = drawn(single(("Tanh", "x", "y")), point=k, val_range={"x": (2.0, 3.0)})
        assert ((x >= 2) & (x <= 3)).all()


RANGES: dict[str, tuple[Any, tuple[float, float], tuple[float, float]]] = {
    # the dtype of an input, the range to draw it from, the range that its values are to lie in
    "of floats, wider than the largest": (np.float64, (-1.5e308, 1.5e308), (-1.5e308, 1.5e308)),
    "of all int64": (np.int64, (-(2.0**63), 2.0**63), (-(2**63), 2**63 - 1)),
    "up to the last int64": (np.int64, (2**63 - 3, 2**63 - 1), (2**63 - 3, 2**63 - 1)),
    "up to the last uint64": (np.uint64, (2**64 - 3, 2**64 - 1), (2**64 - 3, 2**64 - 1)),
    "beyond int64": (np.int64, (5, 1e30), (5, 2**63 - 1)),
    "wider than uint8": (np.uint8, (-5, 3), (0, 3)),
    "that ends between integers": (np.int64, (0.2, 2.8), (1, 2)),
    "below zero that ends between integers": (np.int32, (-2.8, -0.2), (-2, -1)),
    "of booleans": (np.bool_, (1, 5), (True, True)),
}


@pytest.mark.parametrize("name", RANGES)
def test_values_lie_in_the_range_that_was_given(name: str):
    dtype, given, (low, high) = RANGES[name]
    for k in range(5):
        x = drawn(single(("Identity", "x", "y"), shape=(50,), dtype=dtype), point=k, val_range={"x": given})
        assert x.dtype == dtype
        assert np.isfinite(x.astype(float)).all()
        assert low <= x.min().item() <= x.max().item() <= high
    assert low == high or x.min() < x.max()


@pytest.mark.parametrize(("dtype", "given"), [(np.int64, (0.2, 0.8)), (np.int8, (200, 300)), (np.bool_, (5, 6))])
def test_a_range_without_an_integer_of_the_dtype_is_an_error(dtype: Any, given: tuple[float, float]):
    model, name = single(("Identity", "x", "y"), dtype=dtype), np.dtype(dtype).name
    with pytest.raises(ValueError, match=f"'x' is {name}, which has no number from {given[0]} to {given[1]}"):
        drawn(model, val_range={"x": given})


def test_a_range_of_all_inputs_leaves_integers_alone_that_it_has_none_of():
    assert set(drawn(single(("Identity", "x", "y"), dtype=np.int64), val_range={ANY: (0.2, 0.8)})) <= {0, 1}


def test_a_point_is_the_same_whichever_others_are_tried():
    model = single(("Mul", "x x", "h"), ("Sub", "h half", "s"), ("Log", "s", "y"), half=0.5)
    every = check(model, points=5).gradient["max"]
    assert every == max(check(model, point=k).gradient["max"] for k in range(5))


ELSEWHERE: dict[str, tuple[gc.Model, tuple[float, float]]] = {
    "a logarithm of a cube": (single(("Mul", "x x", "q"), ("Mul", "q x", "h"), ("Log", "h", "y")), (0.1, 1.0)),
    "a root of one less": (single(("Sub", "x one", "h"), ("Sqrt", "h", "y"), one=1.0), (1.1, 3.0)),
    "an overflow": (single(("Mul", "x big", "h"), ("Exp", "h", "y"), big=5000.0), (-0.1, 0.1)),
    "a power of a cube": (single(("Mul", "x x", "q"), ("Mul", "q x", "h"), ("Pow", "h half", "y"), half=0.5),
                          (0.1, 1.0)),
    "a domain that only a run shows": (single(("Neg", "x", "n"), ("Add", "n one", "h"), ("Log", "h", "y"), one=0.5),
                                       (-0.1, 0.1)),
}  # fmt: skip


@pytest.mark.parametrize("name", ELSEWHERE)
def test_inputs_are_drawn_elsewhere_where_the_model_is_not_finite(name: str):
    model, (low, high) = ELSEWHERE[name]
    record = check(model)
    assert (record.status, record.ranges) == ("pass", {"x": (low, high)}), record.message
    assert record == dataclasses.replace(check(model), duration_s=record.duration_s, peak_rss_mb=record.peak_rss_mb)
    assert f"x in {low:g},{high:g}" in section((record,), Style())


@pytest.mark.parametrize("nodes", [
    (("Mul", "x two", "h"), ("Log", "h", "y")),
    (("Add", "x x", "h"), ("Pow", "h half", "y")),
    (("Mul", "x two", "h"), ("Mul", "x x", "q"), ("Add", "q h", "s"), ("Div", "s two", "d"), ("Sqrt", "d", "y")),
])  # fmt: skip
def test_what_positive_numbers_keep_positive_is_drawn_so(nodes: Any):
    record = check(single(*nodes, two=2.0, half=0.5))
    assert (record.status, record.ranges) == ("pass", {})


def test_a_range_that_was_given_stays_and_another_one_is_named():
    model, _ = ELSEWHERE["a logarithm of a cube"]
    record = check(model, val_range={"x": (-1.0, -0.5)})
    assert (record.status, record.code, record.ranges) == ("inconclusive", "GC302", {})
    assert "first NaN at node 2 Log 'y' (input min -" in record.message
    assert record.message.endswith("Narrow: --val-range x:0.1,1")


def test_where_nothing_helps_the_first_draw_is_reported():
    model = single(("Mul", "x x", "q"), ("Neg", "q", "n"), ("Log", "n", "y"))
    record = check(model)
    assert (record.status, record.code, record.ranges) == ("inconclusive", "GC302", {})
    assert record.message.endswith("Narrow: --val-range x:LOW,HIGH")


def inputs(*nodes: str, **types: TensorType) -> gc.Model:
    """A model of several inputs, from lines such as "y = Add x z"."""
    made = tuple(Node(op, tuple(reads), (out,)) for out, _, op, *reads in (line.split() for line in nodes))
    graph = Graph(tuple(types), (made[-1].outputs[0],), made, CONSTANTS, types)
    return gc.Model(Source(graph, "net", nodes=len(made)), gc.OPS)


CONSTANTS = {"half": np.array(0.5), "none": np.zeros(6), "table": np.zeros(3), "rare": np.full(3, -np.inf)}
FLOATS, INTEGERS = TensorType(FLOAT, (6,)), TensorType(np.dtype(np.int64), (6,))
SQUARES = ("q = Mul z z", "n = Neg q", "l = Log n", "y = Add x l")


def test_only_inputs_that_lead_to_what_is_not_finite_are_drawn_elsewhere():
    model = inputs("m = Sub z half", "l = Log m", "y = Add x l", x=FLOATS, z=FLOATS)
    assert {c.x: (c.status, c.ranges) for c in gc.check(model).checks} == dict.fromkeys(
        "xz", ("pass", {"z": (1.1, 3.0)})
    )


def test_advice_names_the_input_that_leads_to_what_is_not_finite():
    assert check(inputs(*SQUARES, x=FLOATS, z=FLOATS)).message.endswith("Narrow: --val-range z:LOW,HIGH")
    message = check(
        inputs("m = Sub z half", "l = Log m", "y = Add x l", x=FLOATS, z=FLOATS), val_range={"z": (-1.0, 0.0)}
    ).message
    assert message.endswith("Narrow: --val-range z:1.1,3")


def test_where_no_float_input_leads_there_advice_is_to_feed_what_does():
    message = check(inputs("g = Gather table i", "l = Log g", "y = Add x l", x=FLOATS, i=INTEGERS)).message
    assert message.endswith("It follows from 'i'. Give other values: --feed i=...")
    message = check(inputs("l = Log none", "y = Add x l", x=FLOATS, i=INTEGERS)).message
    assert message.endswith("It follows from the model's own constants alone, whatever the inputs are.")


DRAWN_AGAIN = {
    "steps of a loop": """g (float[{B}, 2] x, int64 {n}) => (float[S, {B}, 2] y) {{
        yes = Constant <value = bool {{1}}> ()
        last, y = Loop ({n}, yes, x) <body = b (int64 i, bool c, float[{B}, 2] h)
                                      => (bool go, float[{B}, 2] next, float[{B}, 2] row) {{
          go = Identity (c)  next = Sin (h)  row = Cos (next) }}> }}""",
    "one less than a length": """g (float[{B}, 1] x, int64 {n}) => (float[{B}, S] y) {{
        zero = Constant <value = int64 {{0}}> ()  one = Constant <value = int64 {{1}}> ()  less = Sub ({n}, one)
        r = Range (zero, less, one)  f = Cast <to = 1> (r)  p = Mul (x, f)  y = Cos (p) }}""",
    "copies": "g (float[{B}, 2] x, int64[2] {n}) => (float[R, S] y) {{ h = Tile (x, {n})  y = Sin (h) }}",
    "a sequence of half a length": """g (float[{B}, 2] x, int64 {n}) => (float[M, 2] y) {{
        two = Constant <value = int64 {{2}}> ()  half = Div ({n}, two)  yes = Constant <value = bool {{1}}> ()
        none = SequenceEmpty <dtype = 1> ()
        last, s = Loop (half, yes, x, none) <
          body = b (int64 i, bool c, float[{B}, 2] h, seq(float[{B}, 2]) t)
                 => (bool go, float[{B}, 2] next, seq(float[{B}, 2]) more) {{
            go = Identity (c)  next = Sin (h)  more = SequenceInsert (t, next) }}>
        y = ConcatFromSequence <axis = 0> (s) }}""",
}


@pytest.mark.parametrize("batch", ["B", "3"])
@pytest.mark.parametrize("name", ["n", "steps", "num_steps", "T", "k", "trip"])
@pytest.mark.parametrize("kind", DRAWN_AGAIN)
def test_integers_that_leave_nothing_are_drawn_again(kind: str, name: str, batch: str, tmp_path: Path):
    model = Open("", DRAWN_AGAIN[kind].format(n=name, B=batch), ()).load(tmp_path)
    [record] = gc.check(model).checks
    assert (record.status, 0 in record.y_shape) == ("pass", False), record.message
    if kind in ("steps of a loop", "copies"):  # a file holds these for every number
        written(model, tmp_path / "file.onnx")


LEFT_OUT = {
    "as onnx expands a sum of losses": """g (float[5, 3] x, {t}[5] t) => (float y) {{
        one = Constant <value = int64[1] {{1}}> ()  none = Constant <value = {t} {{-100}}> ()
        e = Unsqueeze (t, one)  out = Equal (e, none)  nil = Sub (e, e)  i = Where (out, nil, e)
        p = LogSoftmax (x)  q = GatherElements <axis = 1> (p, i)
        zero = Constant <value = float {{0}}> ()  kept = Where (out, zero, q)
        l = Neg (kept)  y = ReduceSum <keepdims = 0> (l) }}""",
    "by hand, as a mean": """g (float[5, 3] x, {t}[5] t) => (float y) {{
        one = Constant <value = int64[1] {{1}}> ()  none = Constant <value = {t} {{-100}}> ()
        out = Equal (t, none)  in = Not (out)  nil = Constant <value = {t} {{0}}> ()  i = Where (in, t, nil)
        wide = Cast <to = 7> (i)  e = Unsqueeze (wide, one)
        p = LogSoftmax (x)  q = GatherElements <axis = 1> (p, e)  s = Squeeze (q, one)
        w = Cast <to = 1> (in)  kept = Mul (s, w)  sum = ReduceSum <keepdims = 0> (kept)
        n = ReduceSum <keepdims = 0> (w)  y = Div (sum, n) }}""",
}


@pytest.mark.parametrize("dtype", ["int64", "int32"])
@pytest.mark.parametrize("kind", LEFT_OUT)
def test_labels_that_may_be_left_out_are_not_all_left_out(kind: str, dtype: str, tmp_path: Path):
    """No size of what they index is declared, as none is in the files of an optimizer or of PyTorch's older exporter."""
    model = Open("", LEFT_OUT[kind].format(t=dtype), ()).load(tmp_path)
    [record] = gc.check(model).checks
    assert record.status == "pass", record.message
    assert np.abs(gc.compute_gradient(model["x"], (5, 3), model["y"], ())[0]).max() > 0.01


def test_values_that_were_given_are_never_replaced():
    model, _ = ELSEWHERE["a logarithm of a cube"]
    assert check(model, x_init_value={"x": np.full(6, -1.0)}).code == "GC302"


def test_what_comes_of_nothing_has_no_least_input():
    record = check(single(("ReduceMax", "x", "y"), shape=(0,)))
    assert record.code in ("GC302", "GC701")
    assert "nan" not in record.message


def test_integers_that_were_drawn_are_named_where_they_may_be_the_reason():
    nodes = ("g = Gather table i", "s = Mul g x", "l = Log s", "y = Add x l")
    for given in ({}, {"extra_feed_dict": {"i": np.zeros(6, np.int64)}}):
        message = check(inputs(*nodes, x=FLOATS, i=INTEGERS), **given).message
        named = "  or give other integers than were drawn: --feed i=..."
        assert message.endswith(f"Narrow: --val-range x:LOW,HIGH{'' if given else named}")
    message = check(inputs("g = Gather rare i", "y = Add x g", x=FLOATS, i=INTEGERS)).message
    assert message.endswith(
        "'rare' is not, which the model is given. Give other integers than were drawn: --feed i=..."
    )


def test_the_node_that_makes_nan_of_infinities_that_are_given_is_named():
    """A mask of -infinity is meant so; a softmax that is left with nothing is not."""
    nodes = ("g = Gather rare i", "h = Add x g", "s = Softmax h", "y = Mul s x")
    message = check(inputs(*nodes, x=FLOATS, i=INTEGERS)).message
    assert "'rare' is not, which the model is given; first NaN at node 2 Softmax 's'. Give other integers" in message


class Unread(np.ndarray):
    """A weight whose numbers nobody may look at."""

    def __array_ufunc__(self, *args: Any, **more: Any) -> Any:
        raise AssertionError("the numbers of a weight were read")


def test_weights_are_not_read_to_choose_what_to_differentiate_by():
    weights = np.ones((4, 4)).view(Unread)
    nodes = (Node("MatMul", ("x", "W"), ("y",)),)
    graph = Graph(("x",), ("y",), nodes, {"W": weights}, {"x": TensorType(np.dtype(np.float64), (4,))})
    assert choose_x(graph, ["y"]) == ("x",)
    with pytest.raises(AssertionError, match="were read"):
        choose_x(graph, ["y"], params=True)
