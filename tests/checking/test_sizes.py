"""Sizes of open dimensions that nobody gave: large enough to check something, kept in their relations, and stated."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

import gradcheck_cli as gc
from gradcheck_cli.checks.inspection import inspect
from gradcheck_cli.cli import main
from gradcheck_cli.errors import UsageError
from gradcheck_cli.formats.onnx.read import read_proto
from gradcheck_cli.graph import Graph
from gradcheck_cli.points.dims import formula_value, roles
from gradcheck_cli.points.sizes import MOST, Failure, Search, smaller
from gradcheck_cli.report.full import section
from gradcheck_cli.report.text import Style
from gradcheck_cli.results.record import Check
from gradcheck_cli.settings import Settings

HEADER = '<ir_version: 8, opset_import: ["" : 18]>\n'


def proto(text: str) -> onnx.ModelProto:
    """A model from text, in which names of dimensions spell signs."""
    model = onnx.parser.parse_model(HEADER + text)
    for value in model.graph.input:
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param:
                dim.dim_param = dim.dim_param.replace("_plus_", " + ").replace("_minus_", "-")
    return model


def parsed(text: str) -> Graph:
    return read_proto(proto(text)).graph


def load(folder: Path, text: str) -> gc.Model:
    path = folder / "net.onnx"
    onnx.save(proto(text), path)
    return gc.load(path)


def checked(model: gc.Model, **settings: Any) -> Check:
    return next(c for c in gc.check(model, **settings).checks if c.x == "x")


ATTENTION = """q = MatMul (x, W) s = Transpose <perm = [0, 2, 1]> (q) a = MatMul (q, s) p = Softmax <axis = -1> (a)
               y = MatMul (p, x) }"""
W = "<float[3, 3] W = {1, 2, 3, 4, 5, 6, 7, 8, 9}> {"
K = "<float[1, 1, 9] K = {1, 2, 3, 4, 5, 6, 7, 8, 9}> {"
KERNEL = "float[1, 3, 1, 2] K = {1, 2, 3, 4, 5, 6}"
SINE = "{ y = Sin (x) }"
CONV = f"<{KERNEL}> {{ y = Conv (x, K) }}"
SUMMED = "{ c = Concat <axis = 1> (p, x) y = Mul (c, m) }"

SIZES: dict[str, tuple[str, dict[str, int]]] = {
    "a batch and a length": (f"g (float[N, S, 3] x) => (float[N, S, 3] y) {W} {ATTENTION}", {"N": 2, "S": 5}),
    "names differ, sizes differ": (f"g (float[N, P, Q] x) => (float[N, P, Q] y) {SINE}", {"N": 2, "P": 5, "Q": 3}),
    "a sequence is no batch": (f"g (float[seq_len, 3] x) => (float[seq_len, 3] y) {SINE}", {"seq_len": 5}),
    "letters inside of names": (f"g (float[2, obs] x) => (float[2, obs] y) {SINE}", {"obs": 5}),
    "no names": ("g (float[?, ?] x, float[?, ?] z) => (float y) { k = Mul (x, z) y = ReduceSum <keepdims = 0> (k) }",
                 {"x:0": 2, "x:1": 5, "z:0": 2, "z:1": 5}),
    "names that have to be equal": ("""g (float[N, A] x, float[N, B] z, float[N, C] w) => (float[N, A] y)
                                    { k = Mul (x, z) y = Mul (k, w) }""", {"N": 2, "A": 5, "B": 5, "C": 5}),
    "a sum in a name": (f"g (float[N, S] x, float[N, P] p, float[N, P_plus_S] m) => (float[N, T] y) {SUMMED}",
                        {"N": 2, "S": 5, "P": 3, "P + S": 8}),
    "a sum that a failure states": (f"g (float[N, T] m, float[N, S] x, float[N, P] p) => (float[N, T] y) {SUMMED}",
                                    {"N": 2, "T": 11, "S": 3, "P": 8}),
    "one that the model fixes": ("""g (float[N, S, 3] x) => (float[N, S, 3] y) <float[6, 1] P = {1, 2, 3, 4, 5, 6}>
                                 { y = Mul (x, P) }""", {"N": 2, "S": 6}),
    "multiples of four": ("""g (float[N, S] x) => (float[N, T, 4] y) <int64[3] shape = {0, -1, 4}>
                          { r = Reshape (x, shape) y = Sin (r) }""", {"N": 2, "S": 8}),
    "multiples of eleven": ("""g (float[N, S] x) => (float[N, T, 11] y) <int64[3] shape = {0, -1, 11}>
                            { r = Reshape (x, shape) y = Sin (r) }""", {"N": 2, "S": 11}),
    "a rest that is empty at few": ("""g (float[N, S] x) => (float[N, R] y)
                                    <int64[1] from = {10}, int64[1] to = {1000}, int64[1] axis = {1}>
                                    { r = Slice (x, from, to, axis) y = Sin (r) }""", {"N": 2, "S": 16}),
    "a window": (f"g (float[N, 1, T] x) => (float[N, 1, U] y) {K} y = Conv (x, K) }}", {"N": 2, "T": 16}),
    "a stride of hundreds": (f"""g (float[N, 1, T] x) => (float[N, 1, U] y) {K}
                             a = AveragePool <kernel_shape = [80], strides = [80]> (x) y = Conv (a, K) }}""",
                             {"N": 2, "T": 1024}),
    "a window larger than all sizes": ("""g (float[P, Q] x, float[P, R] h) => (float[P, 1, U] y)
                                       <bool on = {1}, int64[1] one = {1}, int64[3] of = {1, 1, 300}, int64[2] two = {2, 2}>
                                       { y = If (on) <then_branch = t () => (float[P, 1, U] c) {
                                           u = Unsqueeze (x, one) K = ConstantOfShape <value = float[1] {0.5}> (of)
                                           v = Conv (u, K) W = ConstantOfShape <value = float[1] {0.5}> (two)
                                           w = MatMul (h, W) m = ReduceMax (w, one) s = Unsqueeze (m, one) c = Add (v, s) },
                                         else_branch = e () => (float[P, 1, Q] d) { d = Unsqueeze (x, one) }> }""",
                                       {"P": 2, "Q": 300, "R": 2}),
    "a batch of one alone": ("""g (float[N, S] x) => (float[N, S] y) <int64[2] row = {1, -1}, int64[2] rows = {1, 5}>
                             { r = Reshape (x, row) y = Expand (r, rows) }""", {"N": 1, "S": 5}),
    "an image": (f"g (float[N, 3, H, W] x) => (float[N, 1, A, B] y) {CONV}", {"N": 2, "H": 32, "W": 40}),
    "an image without names": (f"g (float[?, 3, ?, ?] x) => (float[?, 1, ?, ?] y) {CONV}",
                               {"x:0": 2, "x:2": 32, "x:3": 40}),
    "channels last": (f"""g (float[N, H, W, 3] x) => (float[N, 1, A, B] y) <float half = {{0.5}}, {KERNEL}>
                      {{ s = Sub (x, half) t = Transpose <perm = [0, 3, 1, 2]> (s) y = Conv (t, K) }}""",
                      {"N": 2, "H": 32, "W": 40}),
    "a picture without a batch": (f"""g (float[H, W, 3] x) => (float[1, 1, A, B] y) <int64[1] zero = {{0}}, {KERNEL}>
                                  {{ t = Transpose <perm = [2, 0, 1]> (x) u = Unsqueeze (t, zero) y = Conv (u, K) }}""",
                                  {"H": 32, "W": 40}),
    "a picture behind an axis of one": (f"""g (float[N, 1, H, W, 3] x) => (float[N, 1, A, B] y)
                                        <int64[1] one = {{1}}, {KERNEL}>
                                        {{ s = Squeeze (x, one) t = Transpose <perm = [0, 3, 1, 2]> (s)
                                          y = Conv (t, K) }}""", {"N": 2, "H": 32, "W": 40}),
    "a volume": ("""g (float[N, 1, D, H, W] x) => (float[N, 1, A, B, C] y)
                 { y = AveragePool <kernel_shape = [16, 16, 16], strides = [16, 16, 16]> (x) }""",
                 {"N": 2, "D": 32, "H": 32, "W": 40}),
    "an image that is made small": ("""g (float[N, 1, H, W] x) => (float[N, 1, H, W] y)
                                    <float[4] back = {1, 1, 16, 16}>
                                    { a = AveragePool <kernel_shape = [16, 16], strides = [16, 16]> (x)
                                      b = Resize <mode = "nearest"> (a, , back) y = Add (x, b) }""",
                                    {"N": 2, "H": 32, "W": 48}),
    "one name for both sides": (f"g (float[N, 3, A, A] x) => (float[N, 1, B, B] y) {CONV}", {"N": 2, "A": 40}),
    "a state behind layers": ("""g (float[T, N, 3] x, float[1, ?, 4] h) => (float[T, 1, N, 4] y)
                              <float[1, 12, 3] W, float[1, 12, 4] R>
                              { y = GRU <hidden_size = 4> (x, W, R, , , h) }""", {"T": 5, "N": 2, "h:1": 2}),
}  # fmt: skip


def with_weights(model: str) -> str:
    """The text of a model with numbers for weights that have none."""
    numbers = {"float[1, 12, 3] W": 36, "float[1, 12, 4] R": 48}
    for name, count in numbers.items():
        model = model.replace(name, f"{name} = {{{', '.join(str((7 * i % 11 - 5) / 10) for i in range(count))}}}")
    return model


@pytest.mark.parametrize("name", SIZES)
def test_sizes_nobody_gave(name: str, tmp_path: Path):
    text, expected = SIZES[name]
    model = load(tmp_path, with_weights(text))
    record = checked(model, mode="directional")
    assert record.dims == expected
    assert record.status == "pass", record.message
    only = [f"{dim}=1: no other size runs" for dim, size in expected.items() if size == 1]
    assert [note for note in record.notes if "no other size" in note] == only
    assert all(line in section((record,), Style()) for line in only)


EMPTY: dict[str, tuple[str, dict[str, int], str]] = {  # a dimension of 0 in the file, and other ones that are open
    "a cache that nothing is in yet": ("""g (float[N, 0, 4] past, float[N, S, 4] x) => (float[N, T, 4] y)
                                       { c = Concat <axis = 1> (past, x) y = Sin (c) }""", {"N": 2, "S": 5}, "pass"),
    "no rows": ("g (float[0, S] past, float[S] x) => (float[0, S] y) { y = Mul (past, x) }", {"S": 5}, "error"),
}  # fmt: skip


@pytest.mark.parametrize("name", EMPTY)
def test_what_is_declared_as_empty_says_nothing_of_other_sizes(name: str, tmp_path: Path):
    text, expected, status = EMPTY[name]
    result = gc.check(load(tmp_path, text))
    assert [check.dims for check in result.checks] == [expected] * 2
    assert [check.status for check in result.checks] == ["error", status]


def test_another_check_takes_the_sizes_that_the_command_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    text, expected = SIZES["names that have to be equal"]
    load(tmp_path, text)
    path = str(tmp_path / "net.onnx")
    assert main([path, "--output-format", "json"]) == 0
    first = json.loads(capsys.readouterr().out)["checks"]
    assert [c["dims"] for c in first] == [expected] * 3
    words = shlex.split(first[0]["reproduce"])
    assert [words[i + 1] for i, word in enumerate(words) if word == "--dim"] == ["N=2", "A=5", "B=5", "C=5"]
    assert main([*words[1:], "--output-format", "json"]) == 0
    [again] = json.loads(capsys.readouterr().out)["checks"]
    assert (again["dims"], again["reproduce"]) == (expected, first[0]["reproduce"])
    assert main([path, "--dim", "N=4", "--x-shape", "x:4,6", "--output-format", "json"]) == 0
    words = shlex.split(json.loads(capsys.readouterr().out)["checks"][0]["reproduce"])
    assert [words[i + 1] for i, word in enumerate(words) if word == "--dim"] == ["N=4", "B=6", "C=6"]


def test_no_more_than_so_many_trial_runs_and_none_twice():
    text = "g (float[N, A, B, C] x) => (float y) { a = MatMul (x, x) y = ReduceSum <keepdims = 0> (a) }"
    graph = parsed(text)
    tried: list[dict[str, int]] = []

    def attempt(sizes: Mapping[str, int]) -> Failure:
        tried.append(dict(sizes))
        return Failure(None, (len(tried) % 3, 0), "MatMul", ((2, 5, 3, 8), (2, 5, 3, 8)), frozenset(sizes))

    assert Search(roles(graph, gc.OPS), {}, attempt).run() is None
    assert 10 < len(tried) <= MOST
    assert len({tuple(sorted(each.items())) for each in tried}) == len(tried)
    assert min(tried[-1].values()) == 1


ENOUGH: dict[str, tuple[str, dict[str, Any], int]] = {
    "indices": ("(float[{N}] x, int64[M] i) => (float[M] y) { y = Gather <axis = 0> (x, i) }", {"i": [5, 1]}, 6),
    "two of them": ("(float[{N}, 3] x, int64[2, E] e) => (float[E, 3] y) { first = Constant <value_ints = [0]> () "
                    "a = Gather <axis = 0> (x, e)  y = ReduceSum <keepdims = 0> (a, first) }",
                    {"e": [[0, 1, 60], [1, 2, 0]]}, 61),
    "the largest ones": ("(float[{N}] x, int64[1] k) => (float[K] y) { y, i = TopK <axis = 0> (x, k) }", {"k": [3]}, 3),
    "a part": ("(float[{N}, F] x, int64[1] k) => (float[{N}, F] y) { h, i = TopK <axis = 0> (x, k)  s = ReduceSum (h) "
               "y = Mul (x, s) }", {"k": [9]}, 9),
}  # fmt: skip


@pytest.mark.parametrize("dim", ["N", "batch", "atoms"])
@pytest.mark.parametrize("name", ENOUGH)
def test_there_are_as_many_entries_as_values_that_are_given_ask_for(name: str, dim: str, tmp_path: Path):
    text, feeds, least = ENOUGH[name]
    model = load(tmp_path, f"g {text.replace('{N}', dim)}")
    found = checked(model, extra_feed_dict={n: np.array(v, np.int64) for n, v in feeds.items()})
    assert (found.status, found.dims[dim] >= least) == ("pass", True), found.message


def test_a_model_that_runs_at_no_size_says_what_was_tried(tmp_path: Path):
    text = "g (float[N, S] x) => (float[N, S] y) <float[2, 3] A, float[2, 2] B> { a = Add (x, A) y = MatMul (a, B) }"
    model = load(tmp_path, text.replace("A,", "A = {1, 2, 3, 4, 5, 6},").replace("B>", "B = {1, 2, 3, 4}>"))
    with pytest.raises(ValueError, match=r"no size of N, S in \[N,S\] makes 'x' run .tried 1 ... 224."):
        gc.check(model)


SMALLER: dict[str, tuple[dict[str, int], dict[str, int], list[dict[str, int]]]] = {
    "an image": ({"N": 2, "H": 32, "W": 40}, {}, [{"N": 2, "H": 32, "W": 32}, {"N": 2, "H": 16, "W": 24},
                                                  {"N": 2, "H": 16, "W": 16}, {"N": 2, "H": 8, "W": 8}]),
    "a given height": ({"N": 2, "H": 32, "W": 40}, {"H": 32}, [{"N": 2, "H": 32, "W": 32}, {"N": 2, "H": 32, "W": 24},
                                                               {"N": 2, "H": 32, "W": 16}, {"N": 2, "H": 32, "W": 8}]),
    "a sum in a name": ({"N": 2, "S": 5, "P": 3, "P + S": 8}, {}, [{"N": 2, "S": 4, "P": 3, "P + S": 7},
                                                                  {"N": 2, "S": 3, "P": 3, "P + S": 6},
                                                                  {"N": 2, "S": 2, "P": 2, "P + S": 4}]),
}  # fmt: skip


@pytest.mark.parametrize("name", SMALLER)
def test_sizes_to_fall_back_to_keep_their_relations_and_are_never_one(name: str):
    sizes, known, expected = SMALLER[name]
    graph = parsed(SIZES["an image" if name == "a given height" else name][0])
    assert list(smaller(graph, sizes, known, gc.OPS)) == expected


def convolved(folder: Path, channels: int) -> gc.Model:
    """Two convolutions over an open image."""
    text = """g (float[N, 3, H, W] x) => (float[N, C, A, B] y)
           { a = Conv <pads = [1, 1, 1, 1]> (x, K) t = Tanh (a) y = Conv <strides = [4, 4]> (t, M) }"""
    model, rng = proto(text), np.random.default_rng(0)
    for name, shape in (("K", (channels, 3, 3, 3)), ("M", (channels, channels, 8, 8))):
        model.graph.initializer.append(onnx.numpy_helper.from_array(rng.normal(size=shape).astype(np.float32), name))
    onnx.save(model, folder / "net.onnx")
    return gc.load(folder / "net.onnx")


SLOW: dict[str, tuple[int, dict[str, Any], tuple[int, int]]] = {  # channels, settings, height and width
    "a check that is soon done": (8, {}, (32, 40)),
    "every entry of a small net": (8, {"mode": "full"}, (32, 40)),
    "every entry of a larger net": (40, {"mode": "full"}, (32, 40)),
    "every entry of one that is larger still": (64, {"mode": "full"}, (16, 24)),
    "every node of it": (64, {"mode": "nodes"}, (32, 40)),
    "every node of a large net": (256, {}, (16, 24)),
    "a given size": (256, {"dims": {"W": 40}}, (16, 40)),
    "given sizes": (256, {"dims": {"H": 32, "W": 40}}, (32, 40)),
}  # fmt: skip


@pytest.mark.parametrize("name", SLOW)
def test_images_are_smaller_where_a_check_would_take_more_than_ten_seconds(name: str, tmp_path: Path):
    channels, settings, size = SLOW[name]
    found = inspect(convolved(tmp_path, channels).source, Settings(**settings))
    assert found.dims == {"N": 2, "H": size[0], "W": size[1]}


def test_a_check_at_smaller_images_says_so_and_so_does_its_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    convolved(tmp_path, 64)
    words = [str(tmp_path / "net.onnx"), "--x", "x", "--mode", "full", "--forward", "internal"]
    assert main([*words, "--output-format", "json"]) == 0
    [record] = json.loads(capsys.readouterr().out)["checks"]
    assert record["dims"] == {"N": 2, "H": 16, "W": 24}
    assert any(
        re.fullmatch(r"N=2, H=16, W=24: N=2, H=32, W=40 would take about \d+ (s|min)", n) for n in record["notes"]
    )
    assert "--dim N=2 --dim H=16 --dim W=24" in record["reproduce"]


@pytest.mark.parametrize(
    ("text", "value"),
    [("a + b", 8), ("2*a", 10), ("a//2", 2), ("floor(a/2)", 2), ("ceiling(a/2)", 3), ("Max(1, a - b)", 2), ("-a + 2*b", 1),
     ("a/2", None), ("a - 5", None), ("c", None), ("a**9", None), ("a.b", None), ("__import__('os')", None),
     ("(" * 300, None), ("floor(a, b)", None), ("a/(b - 3)", None)],
)  # fmt: skip
def test_formulas_in_names_of_dimensions(text: str, value: int | None):
    assert formula_value(text, {"a": 5, "b": 3}) == value


def test_sizes_grow_until_formulas_give_some_and_a_formula_without_one_is_told(tmp_path: Path):
    model = load(
        tmp_path,
        """g (float[h] x, float[h_minus_40] m) => (float y)
        { a = ReduceSum <keepdims = 0> (x) b = ReduceSum <keepdims = 0> (m) y = Mul (a, b) }""",
    )
    assert checked(model).dims == {"h": 64, "h-40": 24}
    with pytest.raises(UsageError, match=r"^h-40: a dimension that is named by a formula has no size at h=2"):
        checked(model, dims={"h": 2})


def test_a_name_with_a_hyphen_is_no_formula():
    found = roles(parsed("g (float[batch_minus_size, max_minus_len] x) => (float[A, B] y) { y = Sin (x) }"), gc.OPS)
    assert (found.batches, found.others, found.stated) == (("batch-size",), ("max-len",), {})


def test_inputs_of_a_series_have_one_size():
    inputs = ", ".join(f"float[2, ?, 3] past{i}" for i in range(9))
    found = roles(
        parsed(f"g ({inputs}) => (float[2, A, 3] y) {{ y = Sum ({', '.join(f'past{i}' for i in range(9))}) }}"), gc.OPS
    )
    assert (found.others, set(found.alike.values())) == (("past0:1",), {"past0:1"})
