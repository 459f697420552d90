"""`--forward onnxruntime`: the numerical side is that of another implementation, in the model's own dtype."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import gradcheck_cli as gc
from gradcheck_cli.checks.forward.runtime import WORKER, Question
from gradcheck_cli.errors import LimitError, UsageError
from gradcheck_cli.results.record import Check
from tests.checking.small import model, save, scaled

pytest.importorskip("onnxruntime")

RNG = np.random.default_rng(11)
Made = Callable[..., gc.Model]


@pytest.fixture
def made(tmp_path: Path) -> Made:
    def made(text: str, opset: int = 17, **constants: Any) -> gc.Model:
        """A model in ONNX's text syntax with its constants, written to a file and loaded."""
        return gc.load(save(tmp_path / "m.onnx", f"m {text}", opset, **constants))

    return made


def check(tested: gc.Model, *names: Any, **more: Any) -> Check:
    """The record of the only pair."""
    [record] = gc.check(tested, *names, forward="onnxruntime", **more).checks
    return record


def normal(*shape: int) -> np.ndarray:
    return np.float32(RNG.normal(size=shape) / np.sqrt(shape[0]))


NET = "(float[N,6] x) => (float[N,3] y) { h = MatMul (x, W)  a = Tanh (h)  g = MatMul (a, V)  y = Softmax (g) }"
CONV = "(float[1,2,6,6] x) => (float[1,3,4,4] y) { c = Conv (x, W)  y = Relu (c) }"


@pytest.fixture
def net(made: Made) -> gc.Model:
    return made(NET, W=normal(6, 5), V=normal(5, 3))


# What agrees


@pytest.mark.one_in(3)
@pytest.mark.parametrize("mode", ["full", "directional", "sampled", "nodes"])
@pytest.mark.parametrize("x", ["x", "W", "a"])
@pytest.mark.parametrize("y", ["g", "y"])
def test_an_input_a_parameter_or_a_tensor_inside_by_any_tensor(net: gc.Model, x: str, y: str, mode: str) -> None:
    record = check(net, x, y, mode=mode)
    assert (record.status, record.source) == ("pass", "onnxruntime"), record.notes
    assert 5e-7 < record.power["missed_below"] < 0.05


def test_a_file_of_text_is_run_as_well(tmp_path: Path) -> None:
    text = '<ir_version: 8, opset_import: ["" : 18]> m (float[4] x) => (float[4] y) { a = Mul (x, x)  y = Sin (a) }'
    (tmp_path / "m.onnxtxt").write_text(text)
    record = check(gc.load(tmp_path / "m.onnxtxt"))
    assert (record.status, record.source.split()[0]) == ("pass", "onnxruntime")


def test_the_record_says_by_whom_and_how(net: gc.Model) -> None:
    record = check(net)
    assert (record.source, record.method, record.dtype) == ("onnxruntime", "richardson", "float64")
    assert record.forward["compared_with"].startswith("onnxruntime 1.")
    assert record.power["of"] == "the largest entry for the same y"
    assert 1e-9 < record.noise < 1e-4
    assert record.as_json()["source"] == "onnxruntime"


SMOOTH_AND_NOT = {
    "open sizes and integers": ("(float[N,4] x, int64[2] i) => (y) { h = Sin (x)  y = Gather (h, i) }", {}),
    "convolution with kinks": (CONV, {"W": normal(3, 2, 3, 3)}),
    "pooling": ("(float[1,1,6,6] x) => (y) { y = MaxPool <kernel_shape = [2,2]> (x) }", {}),
    "normalization": ("(float[4,8] x) => (y) { y = LayerNormalization (x, s) }", {"s": normal(8)}),
    "a loss": ("(float[4,3] x, int64[4] t) => (float l) { l = SoftmaxCrossEntropyLoss (x, t) }", {}),
    "a domain that steps may leave": ("(float[5] x) => (y) { e = Exp (x)  s = Sqrt (e)  y = Log (s) }", {}),
    "no parameter at all": ("(float[3] x) => (y) { y = Mul (x, x) }", {}),
    "a sort": ("(float[6] x) => (y, i) { y, i = TopK (x, k) }", {"k": np.array([3])}),
    "a loop": ("(float[3] x) => (float[3] y) { y = Loop (n, c, x) <body = b (int64 i, bool p, float[3] s) => "
               "(bool q, float[3] t) { q = Identity (p)  t = Sin (s) }> }", {"n": np.int64(3), "c": np.bool_(True)}),
}  # fmt: skip


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", SMOOTH_AND_NOT)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_right_model_passes_for_it_as_well(made: Made, name: str, seed: int) -> None:
    text, constants = SMOOTH_AND_NOT[name]
    record = next(iter(gc.check(made(text, **constants), forward="onnxruntime", seed=seed).checks))
    assert record.status == "pass", (record.message, record.notes)


@pytest.mark.parametrize("dtype", ["float16", "float", "double"])
def test_the_model_runs_in_its_own_dtype_and_noise_is_that_of_it(made: Made, dtype: str) -> None:
    tested = made(f"({dtype}[4] x) => ({dtype}[4] y) {{ a = Mul (x, x)  y = Sqrt (a) }}")
    record = check(tested, x_init_value={"x": [1, 2, 3, 4]})
    least, most = {"float16": (1e-4, 1), "float": (1e-8, 1e-4), "double": (1e-17, 1e-12)}[dtype]
    assert least < record.noise < most


def test_at_a_tie_the_slopes_of_both_sides_still_count(made: Made) -> None:
    record = check(made("(float[3] x) => (float[3] y) { y = Relu (x) }"), x_init_value={"x": [-1, 0, 1]})
    assert (record.status, record.entries["kink_ok"]) == ("pass", 1)


def test_many_rows_are_probed_in_sums(made: Made) -> None:
    """Each sum, there and back, by two steps; and what noise is listened for."""
    record = check(made("(float[300] x) => (float[300] y) { y = Sin (x) }"))
    assert (record.status, record.entries["checked"]) == ("pass", 90000)
    assert record.evaluations["real"] < 300


def test_entries_of_y_that_are_not_finite_are_left_out(made: Made) -> None:
    tested = made("(float[3] x) => (float[3] y) { s = Sin (x)  y = Add (s, c) }", c=np.float32([1, 2, np.inf]))
    record = check(tested, max_inconclusive=0.5)
    assert (record.status, record.entries["checked"]) == ("pass", 6)


# What does not


@pytest.mark.parametrize("factor", [-1.0, 2.0, 1.1, 1.001, 1 + 1e-6])
@pytest.mark.parametrize("mode", ["full", "directional"])
def test_a_wrong_rule_fails_however_coarse_the_other_side_rounds(net: gc.Model, factor: float, mode: str) -> None:
    wrong = {**gc.OPS, ("", "Tanh"): dataclasses.replace(gc.OPS["", "Tanh"], vjp=scaled("Tanh", factor))}
    record = check(net, ops=wrong, mode=mode)
    assert (record.status, record.code) == ("fail", "GC101")
    assert record.suspect is not None
    assert record.suspect.op == "Tanh"


def one_entry_off(op: str, place: int, factor: float) -> dict[tuple[str, str], gc.Op]:
    """The operator table with a kernel and a rule that agree, and differ from others' at one entry."""

    def off(x: Any) -> np.ndarray:
        return np.where(np.arange(x.shape[-1]) == place, factor, 1.0)

    right = gc.OPS["", op]
    assert right.vjp is not None
    rule = right.vjp

    def forward(x: Any, **metadata: Any) -> Any:
        return right.forward(x, **metadata) * off(x)

    def vjp(ct: Any, ans: Any, x: Any, **metadata: Any) -> Any:
        return rule(ct * off(x), ans, x, **metadata)

    return {**gc.OPS, ("", op): dataclasses.replace(right, forward=forward, vjp=vjp, step=None)}


@pytest.mark.parametrize("size", [5, 200])
def test_what_only_the_other_one_computes_is_a_failure_where_it_does(made: Made, size: int) -> None:
    tested, ops = made(f"(float[{size}] x) => (float[{size}] y) {{ y = Sin (x) }}"), one_entry_off("Sin", 3, 1.1)
    assert gc.check(tested, forward="internal", ops=ops).checks[0].status == "pass"
    record = check(tested, ops=ops)
    assert (record.status, record.code, record.entries["failed"]) == ("fail", "GC101", 1)
    assert (record.worst[0].x, record.worst[0].y) == ((3,), (3,))
    assert abs(record.worst[0].theoretical / record.worst[0].numerical - 1.1) < 1e-3
    assert any("by what onnxruntime 1." in note and "computes alone" in note for note in record.notes)
    assert "is not what onnxruntime" in record.forward["reason"]


def test_a_rule_that_is_right_for_it_where_our_kernel_is_not_is_told(made: Made) -> None:
    off = one_entry_off("Sin", 3, 1.1)["", "Sin"]
    ops = {**gc.OPS, ("", "Sin"): dataclasses.replace(off, vjp=gc.OPS["", "Sin"].vjp)}
    record = check(made("(float[5] x) => (float[5] y) { y = Sin (x) }"), ops=ops)
    assert (record.status, record.code, record.gates) == ("pass", "", ("forward",))
    assert "'y' is not what onnxruntime" in record.forward["reason"]
    assert "node 0 Sin 'y', 'y': 1 of 5 entries differs, most of all [3]" in record.forward["reason"]
    alone = gc.check(made("(float[5] x) => (float[5] y) { y = Sin (x) }"), forward="internal", ops=ops).checks[0]
    assert (alone.status, alone.entries["failed"]) == ("fail", 1)


# What it cannot tell


def test_where_rounding_hides_too_much_nothing_is_said_and_what_may_help_is(made: Made) -> None:
    text = "(float[4] x) => (float[4] y) { a = Add (x, big)  y = Sub (a, big) }"
    record = check(made(text, big=np.float32(1e6)))
    assert (record.status, record.code) == ("inconclusive", "GC303")
    assert any("--mode directional" in note for note in record.notes)


@pytest.mark.parametrize("mode", ["full", "directional", "nodes"])
def test_it_is_never_said_to_pass_where_it_saw_nothing(made: Made, mode: str) -> None:
    text = "(float[4] x) => (float[4] y) { a = Add (x, big)  y = Sub (a, big) }"
    assert check(made(text, big=np.float32(1e6)), mode=mode).status == "inconclusive"


def test_a_tolerance_that_rounding_cannot_show_leaves_it_open(net: gc.Model) -> None:
    assert check(net, rtol=1e-2).status == "pass"
    assert check(net, rtol=1e-6).code == "GC303"


# What cannot be asked


REFUSED: dict[str, dict[str, Any]] = {
    "second-order": {"second_order": True},
    "straight-through": {"straight_through": True},
    "method complex-step": {"method": "complex-step"},
    "compat tf": {"compat": "tf"},
}


@pytest.mark.parametrize("option", REFUSED)
def test_what_contradicts_it_is_refused(net: gc.Model, option: str) -> None:
    with pytest.raises(UsageError, match=f"--forward onnxruntime does not go together with --{option}"):
        check(net, **REFUSED[option])


def test_a_model_in_memory_is_no_file_to_run() -> None:
    with pytest.raises(UsageError, match="runs ONNX files"):
        check(model(("Tanh", "x", "y")), "x", "y")


UNABLE = {
    "a kernel that it lacks": ("(double[3] x) => (double[3] y) { y = ThresholdedRelu (x) }", "onnxruntime cannot run"),
    "numbers that it cannot be given": ("(bfloat16[3] x) => (bfloat16[3] y) { y = Add (x, x) }", "which is bfloat16"),
    "other random numbers": (
        "(float[3] x) => (y) { r = RandomNormalLike (x)  y = Add (r, x) }",
        "draws random numbers",
    ),
}


@pytest.mark.parametrize("name", UNABLE)
def test_what_it_cannot_run_is_unsupported_and_says_why(made: Made, name: str) -> None:
    text, said = UNABLE[name]
    record = next(iter(gc.check(made(text), forward="onnxruntime").checks))
    assert (record.status, record.exit_code) == ("unsupported", 5)
    assert said in record.message
    assert "[ONNXRuntimeError]" not in record.message


def test_random_numbers_that_are_fed_are_frozen(made: Made) -> None:
    tested = made("(float[3] x) => (float[3] y) { r = RandomNormalLike (x)  y = Mul (r, x) }")
    record = check(tested, "x", "y", extra_feed_dict={"r": np.float32([1, 2, 3])})
    assert record.status == "pass", record.message


def test_a_tensor_that_only_a_function_has_is_no_x_of_the_file(tmp_path: Path) -> None:
    text = """<ir_version: 9, opset_import: ["": 17, "f": 1]>
        m (float[3] x) => (float[3] y) { y = f.twice (x) }
        <domain: "f", opset_import: ["": 17]> twice (a) => (c) { b = Sin (a)  c = Sin (b) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    tested = gc.load(tmp_path / "m.onnx")
    inner = next(n for n in tested.tensors if n not in ("x", "y"))
    record = check(tested, inner, "y")
    assert (record.exit_code, "of its own" in record.message) == (2, True), record.message
    assert check(tested, "x", "y").status == "pass"


def test_a_process_that_ends_is_a_limit(net: gc.Model, killed: None) -> None:
    with pytest.raises(LimitError, match="onnxruntime cannot go on: it"):
        check(net)


@pytest.fixture
def killed(tmp_path: Path) -> Iterator[None]:
    """A worker that ends at the first question."""
    script, WORKER.script = WORKER.script, tmp_path / "worker.py"
    WORKER.script.write_text("import sys\nsys.stdin.buffer.readline()\nraise SystemExit(3)\n", "utf-8")
    WORKER.stop()
    yield
    WORKER.script = script
    WORKER.stop()


# The stack


def test_a_stack_is_a_run_for_each_of_its_values(net: gc.Model) -> None:
    path, stack = net.source.uri, RNG.normal(size=(4, 2, 6)).astype(np.float32)
    answer = WORKER.ask(Question("stack", path, {"x": stack}, ["y"], stacked="x", optimized=True))["y"]
    alone = [WORKER.ask(Question("alone", path, {"x": x}, ["y"], optimized=True))["y"] for x in stack]
    np.testing.assert_array_equal(answer, np.stack(alone))
