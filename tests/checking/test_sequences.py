"""Models whose inputs and outputs are sequences, optionals and maps: what is inside of them is checked like any tensor."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import gradcheck_cli as gc
from gradcheck_cli.autodiff import symbolic as sym
from gradcheck_cli.checks.procedure import Procedure
from gradcheck_cli.errors import GradcheckError, LimitError, UnsupportedError, UsageError
from gradcheck_cli.formats.onnx.read import read_proto
from gradcheck_cli.formats.source import Source
from gradcheck_cli.graph import Graph, Node, TensorType
from gradcheck_cli.ops import OPS
from gradcheck_cli.settings import Settings

PARTS = """g (seq(float[2,3]) s, float[3] w) => (float loss, seq(float[?]) parts) {
    c = ConcatFromSequence <axis = 0> (s)
    p = Mul (c, w)
    q = Sin (p)
    loss = ReduceSum <keepdims = 0> (q)
    parts = SplitToSequence <axis = 0, keepdims = 0> (q)
}"""
MAYBE = """g (optional(float[2]) o, float[2] w) => (float[2] y) {
    has = OptionalHasElement (o)
    y = If (has) <
        then_branch = a () => (t) { h = OptionalGetElement (o)  t = Mul (h, w) },
        else_branch = b () => (t) { t = Exp (w) }>
}"""
CLASSES = """g (float[N,3] x) => (int64[N] label, seq(map(int64, float[])) p) {
    label, scores = ai.onnx.ml.LinearClassifier <coefficients = [0.5, 0.25, -1.0, 1.0, 0.5, 0.75],
        intercepts = [0.5, -0.5], classlabels_ints = [3, 4], post_transform = "SOFTMAX"> (x)
    p = ai.onnx.ml.ZipMap <classlabels_int64s = [3, 4]> (scores)
}"""
TABLE = """g (map(string, float[]) m) => (float[3] y) {
    v = ai.onnx.ml.DictVectorizer <string_vocabulary = ["a", "b", "c"]> (m)
    y = Exp (v)
}"""


def proto(text: str) -> onnx.ModelProto:
    """A model in ONNX's text syntax."""
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 18, "ai.onnx.ml": 1]> {text}')


def model(text: str) -> gc.Model:
    """The model as the API holds it."""
    return gc.Model(read_proto(proto(text)), gc.OPS)


def pairs(report: gc.Report) -> dict[tuple[str, str], str]:
    """Status by (x, y)."""
    return {(record.x, record.y): record.status for record in report.checks}


def test_everything_inside_of_inputs_and_outputs_is_checked() -> None:
    found = pairs(gc.check(model(PARTS)))
    assert set(found.values()) == {"pass"}
    assert {x for x, _ in found} == {"s[0]", "s[1]", "w"}
    assert {y for _, y in found} == {"loss", *(f"parts[{i}]" for i in range(4))}


def test_a_sequence_has_the_length_that_is_fed_or_said() -> None:
    fed = gc.check(model(PARTS), y="loss", extra_feed_dict={"s": [np.ones((2, 3))] * 3})
    assert [record.x for record in fed.checks] == ["s[0]", "s[1]", "s[2]", "w"]
    assert [record.x for record in gc.check(model(PARTS), y="loss", dims={"s": 1}).checks] == ["s[0]", "w"]
    with pytest.raises(LimitError, match="too many"):
        gc.check(model(PARTS), dims={"s": 10**9})


def test_an_element_is_named_by_its_place() -> None:
    (record,) = gc.check(model(PARTS), x="s[1]", y="parts[3]").checks
    assert (record.status, record.x_shape, record.y_shape) == ("pass", (2, 3), (3,))
    assert record.gradient["norm"] > 0


def test_an_optional_is_there_unless_nothing_is_fed() -> None:
    assert pairs(gc.check(model(MAYBE))) == {("o[0]", "y"): "pass", ("w", "y"): "pass"}
    assert pairs(gc.check(model(MAYBE), extra_feed_dict={"o": None})) == {("w", "y"): "pass"}


def test_the_values_of_a_map_are_one_tensor() -> None:
    assert pairs(gc.check(model(CLASSES))) == {("x", "p[0][0]"): "pass", ("x", "p[1][0]"): "pass"}
    (record,) = gc.check(model(TABLE), extra_feed_dict={"m": {"c": 0.5, "a": -1.0}}).checks
    assert (record.x, record.x_shape, record.status) == ("m[0]", (2,), "pass")
    with pytest.raises(UnsupportedError, match=r"takes a map from string of .* float32; give it: --feed m=") as caught:
        gc.check(model(TABLE))
    assert caught.value.code == "GC503"


def test_a_wrong_rule_behind_a_sequence_is_found() -> None:
    def half(ct: Any, y: Any, *xs: Any, axis: int) -> Any:
        return tuple(piece * 0.5 for piece in sym.split(ct, [x.shape[axis] for x in xs], axis))

    ops = {**OPS, ("", "Concat"): dataclasses.replace(OPS["", "Concat"], vjp=half)}
    (record,) = gc.check(model(PARTS), x="s[0]", y="loss", ops=ops).checks
    assert (record.status, record.suspect.op) == ("fail", "Concat")


REFUSED = [
    ({"x": "s"}, "--x s is a sequence of [2,3] float32. Name a tensor in it: s[0]"),
    ({"y": "parts"}, "--y parts is a sequence of [?] float32. Name a tensor in it: parts[0]"),
    ({"x": "parts[0]"}, "--x parts[0] is part of 'parts', which nodes make: name the tensor that goes into it."),
    ({"x": "s[2]"}, "has no tensor 's[2]'. Did you mean 's["),
    ({"x": "w[0]"}, "w[0]"),
    ({"y": "parts[9]"}, "there is no element 9 in a sequence of 4"),
    ({"extra_feed_dict": {"s": 3}}, "a sequence of [2,3] float32 must be given as a list"),
]


@pytest.mark.parametrize("asked, message", REFUSED, ids=[m for _, m in REFUSED])
def test_what_is_no_tensor_is_refused_with_what_to_name_instead(asked: dict[str, Any], message: str) -> None:
    names = {key: (value,) for key, value in asked.items() if key in "xy"}
    rest = {key: value for key, value in asked.items() if key not in "xy"}
    with pytest.raises(GradcheckError) as caught:
        Procedure(model(PARTS).source, Settings(**names, **rest)).run("g")
    assert message in str(caught.value)


def test_types_within_types_without_end_are_a_limit() -> None:
    kind = TensorType(np.dtype(np.float32), (2,))
    for _ in range(50):
        kind = TensorType(kind.dtype, kind.shape, "sequence", kind)
    graph = Graph(("s",), ("t",), (Node("Identity", ("s",), ("t",)),), types={"s": kind, "t": kind})
    with pytest.raises(LimitError):
        gc.check(gc.Model(Source(graph, "deep"), gc.OPS))


def test_the_api_runs_and_differentiates_what_is_inside() -> None:
    one = model(PARTS)
    feeds = {"s": [np.full((2, 3), 0.5), np.zeros((2, 3))], "w": [1.0, 2.0, 3.0]}
    loss, parts = gc.run([one["loss"], one["parts"]], feeds=feeds)
    assert [part.shape for part in parts] == [(3,)] * 4
    np.testing.assert_allclose(loss, np.sum(parts))
    [dx] = gc.gradients(one["loss"], one["s[1]"])
    np.testing.assert_allclose(gc.run(dx, feeds=feeds)[0], [[1, 2, 3], [1, 2, 3]])
    theoretical, numerical = gc.compute_gradient(one["s[0]"], (2, 3), one["parts[1]"], (3,))
    np.testing.assert_allclose(theoretical, numerical, atol=1e-6)
    assert theoretical.any()


def test_the_api_draws_sequences_that_are_not_fed() -> None:
    one = model(PARTS)
    first, again = gc.run([one["s"], one["s"]])
    assert [x.shape for x in first] == [(2, 3), (2, 3)]
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))


def test_a_sequence_whose_elements_were_named_keeps_its_length() -> None:
    one = model(PARTS)
    assert one["s[2]"].shape == (2, 3)
    assert len(gc.run(one["s"])[0]) == 3
    with pytest.raises(UsageError, match=r"'s' is fed a sequence of 1; its tensors here are s\[0\], s\[1\], s\[2\]"):
        gc.run(one["loss"], feeds={"s": [np.ones((2, 3))]})


def test_a_gradient_by_an_element_is_saved_with_it_as_an_input(tmp_path: Path) -> None:
    one = model(PARTS)
    [dx] = gc.gradients(one["loss"], one["s[0]"])
    gc.save(one, tmp_path / "d.onnx", [dx])
    written = onnx.load(tmp_path / "d.onnx")
    onnx.checker.check_model(written, full_check=True)
    assert [value.name for value in written.graph.input] == ["s[0]", "s[1]", "w"]


def test_what_passes_through_text_has_no_derivative_to_compare() -> None:
    text = "g (float[2] x) => (float[2] y) { t = Cast <to = 8> (x) n = Cast <to = 1> (t) y = Add (n, x) }"
    (record,) = gc.check(model(text)).checks
    assert (record.status, record.code) == ("inconclusive", "GC301")


STRINGS = "g (string[2] t, seq(string[2]) s) => (string[2] y) { y = Identity (t) }"


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("t", [1, 2], r"feeds\['t'\] holds 1, which is no text; give strings, as in \[\"a\", \"b\"\]\."),
        ("t", np.array([0.5, 2.0]), r"feeds\['t'\] holds 0.5, which"),
        ("t", ["a", 1], r"feeds\['t'\] holds 1, which"),
        ("t", None, r"feeds\['t'\] holds None, which"),
        ("t", [["a"], ["b", "c"]], r"feeds\['t'\] holds \['a'\], which"),
        ("s", [["a", "b"], [3, 4]], r"feeds\['s'\]\[1\] holds 3, which"),
    ],
)
def test_what_is_no_text_is_refused_for_a_tensor_of_strings(name: str, value: Any, message: str) -> None:
    one = model(STRINGS)
    with pytest.raises(UsageError, match=message):
        gc.run(one["y"], feeds={"t": ["a", "b"], "s": [], name: value})


@pytest.mark.parametrize("value", [["a", "b"], np.array(["a", "b"]), np.array(["a", "b"], object)])
def test_strings_are_fed_as_lists_and_as_arrays(value: Any) -> None:
    [y] = gc.run(model(STRINGS)["y"], feeds={"t": value, "s": []})
    assert y.tolist() == ["a", "b"]


@pytest.mark.parametrize("name", ["x[0]", "y[1]", "c[0]"])
def test_a_part_of_a_tensor_is_none_of_the_model(name: str) -> None:
    """Elements of sequences, optionals and maps are."""
    whole = model("g (float[2] x) => (float[2] y) <float[2] c = {1, 2}> { y = Mul (x, c) }")
    with pytest.raises(UsageError, match=re.escape(f"has no tensor '{name}'")):
        whole[name]
