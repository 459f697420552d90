"""The forward run held against onnxruntime: what agrees, what does not, and whatever can happen to the other side."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from msgspec import structs
from onnx import helper

import gradcheck_cli as gc
from gradcheck_cli.checks.forward.runtime import WORKER, Question, Unanswered, Worker
from gradcheck_cli.results.record import Check
from tests.checking.small import model, save, scaled

pytest.importorskip("onnxruntime")

RNG = np.random.default_rng(5)


CHAIN = """chain (float[N,4] x) => (float[N,3] y) {
    h = MatMul (x, W)
    a = Sin (h)
    b = Exp (a)
    c = Tanh (b)
    y = Softmax (c)
}"""


@pytest.fixture
def chain(tmp_path: Path) -> Path:
    return save(tmp_path / "chain.onnx", CHAIN, W=np.float32(RNG.normal(size=(4, 3))))


def check(path: Path, *names: str, **more: Any) -> Check:
    """The record of the only pair, or of the pair that is named."""
    [record] = gc.check(gc.load(path), *names, **more).checks
    return record


def misread(op: str, taken_for: str) -> dict[tuple[str, str], gc.Op]:
    """The operator table with an operator that is taken for another one, its gradient included."""
    return {**gc.OPS, ("", op): dataclasses.replace(gc.OPS["", taken_for], name=op)}


def off_by(op: str, factor: float) -> dict[tuple[str, str], gc.Op]:
    """The operator table with a kernel that is off by a factor, and a gradient that is right for that."""
    right = gc.OPS["", op]

    def forward(*arrays: Any, **metadata: Any) -> Any:
        return right.forward(*arrays, **metadata) * factor

    return {**gc.OPS, ("", op): dataclasses.replace(right, forward=forward, vjp=scaled(op, factor), step=None)}


# What agrees


@pytest.mark.parametrize("dtype", ["float64", "model"])
def test_a_right_model_is_compared_and_the_record_says_how_near_it_is(chain: Path, dtype: str) -> None:
    record = check(chain, dtype=dtype, points=2)
    assert record.status == "pass"
    assert record.forward["compared_with"].startswith("onnxruntime 1.")
    assert 0 < record.forward["max_rel_err"] < 1e-5
    assert record.as_json()["forward"] == record.forward


TYPES = {"float16": 1e-2, "float": 1e-5, "double": 1e-12}


@pytest.mark.parametrize("dtype", TYPES)
def test_how_near_it_has_to_be_is_up_to_the_dtype(tmp_path: Path, dtype: str) -> None:
    path = save(tmp_path / "m.onnx", f"m ({dtype}[8] x) => ({dtype}[8] y) {{ a = Mul (x, x)  y = Sqrt (a) }}")
    record = check(path)
    assert (record.status, record.forward["max_rel_err"] < TYPES[dtype]) == ("pass", True), record.forward


def test_rounding_that_a_cancellation_magnifies_is_measured(tmp_path: Path) -> None:
    """1e5 is lost in float32 but for two digits, in whatever order one sums."""
    text = "m (float[64] x) => (float y) { b = Add (x, big)  s = ReduceMean <keepdims = 0> (b)  y = Sub (s, big) }"
    record = check(save(tmp_path / "m.onnx", text, big=np.float32(1e5)))
    assert (record.status, record.forward["max_rel_err"] > 1e-4) == ("pass", True), record.forward


def test_rounding_that_a_variance_magnifies_without_limit_is_drawn_several_times(tmp_path: Path) -> None:
    """mean(x^2) - mean(x)^2 of numbers that are nearly equal, as some exporters write it."""
    text = """m (float[4,16] x) => (float[4,16] y) {
        c = Mul (x, narrow) a = Add (c, one) q = Mul (a, a) e = ReduceMean <axes = [1]> (q) m = ReduceMean <axes = [1]> (a)
        mm = Mul (m, m) v = Sub (e, mm) w = Relu (v) z = Add (w, eps) r = Sqrt (z) d = Sub (a, m) y = Div (d, r)
    }"""
    constants = {"narrow": np.float32(1e-3), "one": np.float32(1), "eps": np.float32(1e-6)}
    path = save(tmp_path / "m.onnx", text, **constants)
    found = [check(path, seed=seed) for seed in range(10)]
    assert {record.code for record in found} <= {"", "GC301", "GC303"}
    assert max(record.forward["max_rel_err"] for record in found) > 1e-4


def test_a_long_sum_that_cancels_may_be_taken_in_any_order(tmp_path: Path) -> None:
    path = save(tmp_path / "m.onnx", "m (float[300,300] x) => (float y) { y = ReduceSum <keepdims = 0> (x) }")
    found = [check(path, seed=seed, mode="directional") for seed in range(10)]
    assert {record.code for record in found} == {""}
    assert max(record.forward["max_abs_err"] for record in found) > 1e-5


def test_an_output_near_zero_of_large_numbers_inside_has_no_digits(tmp_path: Path) -> None:
    path = save(
        tmp_path / "m.onnx", "m (float[8] x) => (float[8] y) { a = Sub (x, big)  y = Sigmoid (a) }", big=np.float32(14)
    )
    assert check(path).status == "pass"


def test_inner_tensors_external_data_integers_and_open_sizes(tmp_path: Path) -> None:
    text = "m (float[N,4] x, int64[2] i) => (float[2,3] y) { h = MatMul (x, W)  a = Tanh (h)  y = Gather (a, i) }"
    path = save(tmp_path / "m.onnx", text, W=np.float32(RNG.normal(size=(4, 3))))
    onnx.save(onnx.load(path), path, save_as_external_data=True, location="w.data", size_threshold=0)
    for y in ("a", "y"):  # a does not need the integers
        record = check(path, "x", y)
        assert (record.status, record.forward["compared_with"] is None) == ("pass", False), record.forward


def test_what_is_not_finite_in_both_agrees(tmp_path: Path) -> None:
    path = save(
        tmp_path / "m.onnx", "m (float[3] x) => (float[3] y) { a = Div (x, zero)  y = Add (a, x) }", zero=np.float32(0)
    )
    assert check(path).code == "GC302"


LOST = {  # nodes whose result float32 cannot hold, and the number of entries that are lost
    "the logarithm of a softmax": ("k = Mul (x, large)  s = Softmax (k)  y = Log (s)", 2),
    "a mask that is added twice": ("h = Add (x, mask)  a = Add (h, mask)  y = Softmax (a)", 3),
    "a square": ("k = Mul (x, large)  e = Mul (k, huge)  y = Mul (e, e)", 3),
}
FINITE = {
    "a softmax": ("k = Mul (x, large)  y = Softmax (k)", 0),
    "a mask of some entries": ("h = Add (x, some)  a = Add (h, some)  y = Softmax (a)", 0),
}


@pytest.mark.parametrize("name", LOST | FINITE)
def test_results_that_are_not_finite_in_the_dtype_of_the_model_are_told(tmp_path: Path, name: str) -> None:
    nodes, number = (LOST | FINITE)[name]
    most = np.finfo(np.float32).max
    path = save(
        tmp_path / "m.onnx", f"m (float[3] x) => (float[3] y) {{ {nodes} }}",
        large=np.float32(300), huge=np.float32(1e30), mask=-most, some=np.float32([0, -most, 0]),
    )  # fmt: skip
    record = check(path, x_init_value={"x": [1, 2, 3]})
    told = [note for note in record.notes if "not finite in float32" in note]
    assert (record.status, record.forward["agrees"], len(told)) == ("pass", True, bool(number))
    assert all(f"{number} of 3 entries of 'y' are not finite in float32, in which onnxruntime" in note for note in told)
    asked = check(path, x_init_value={"x": [1, 2, 3]}, dtype="model")
    assert not any("not finite in float32" in note for note in asked.notes)  # it has a line of its own
    assert ("nonfinite" in asked.gradient["health"].shows) is bool(number)


# What does not


WRONG = {
    "another function": (misread("Tanh", "Atan"), "node 3 Tanh 'c'"),
    "another one that is near": (misread("Exp", "Cosh"), "node 2 Exp 'b'"),
    "the last one": (misread("Softmax", "LogSoftmax"), "node 4 Softmax 'y'"),
    "a factor": (off_by("Sin", 1.001), "node 1 Sin 'a'"),
    "a factor near 1": (off_by("Sin", 1.0001), "node 1 Sin 'a'"),
}


@pytest.mark.parametrize("name", WRONG)
def test_an_operator_that_is_misread_is_gc404_and_named_though_its_gradient_fits(chain: Path, name: str) -> None:
    ops, node = WRONG[name]
    assert check(chain, ops=ops, forward="internal").status == "pass"
    record = check(chain, ops=ops)
    assert (record.status, record.code, record.gates, record.exit_code) == ("pass", "", ("forward",), 1)
    reason, first = record.forward["reason"], record.forward["first_node"]
    assert (record.forward["agrees"], record.forward["code"]) == (False, "GC404")
    assert "'y' is not what onnxruntime 1." in reason
    assert "entries differ, most of all [" in reason
    assert f"The first result that differs is that of {node}, '" in reason, reason
    assert f"node {first['node']} {first['op']} '{first['outputs'][0]}'" == node


def test_a_long_chain_is_searched_in_rounds(tmp_path: Path) -> None:
    lines = "".join(f" h{i + 1} = Sin (h{i})" if i != 137 else f" h{i + 1} = Tanh (h{i})" for i in range(200))
    path = save(tmp_path / "m.onnx", f"m (float[3] h0) => (float[3] h200) {{{lines} }}")
    record = check(path, ops=misread("Tanh", "Atan"))
    assert "node 137 Tanh 'h138'" in record.forward["reason"]
    assert record.forward["first_node"]["node"] == 137


def test_only_the_y_that_differs_is_gated(tmp_path: Path) -> None:
    path = save(tmp_path / "m.onnx", "m (float[3] x) => (float[3] y, float[3] z) { y = Tanh (x)  z = Exp (x) }")
    found = gc.check(gc.load(path), ops=misread("Exp", "Cosh")).checks
    assert [(c.y, c.status, c.gates) for c in found] == [("y", "pass", ()), ("z", "pass", ("forward",))]


def test_a_shape_that_differs_is_told(tmp_path: Path) -> None:
    path = save(tmp_path / "m.onnx", "m (float[3,2] x) => (float[M,N] y) { y = Transpose (x) }")
    record = check(path, ops=misread("Transpose", "Identity"))
    assert "its shape is [3,2] here and [2,3] there" in record.forward["reason"]


def test_a_wrong_gradient_is_a_failure_of_its_own(chain: Path) -> None:
    wrong = {**misread("Exp", "Cosh"), ("", "Tanh"): dataclasses.replace(gc.OPS["", "Tanh"], vjp=scaled("Tanh", 2.0))}
    record = check(chain, ops=wrong)
    assert (record.status, record.code, record.gates) == ("fail", "GC101", ("forward",))
    assert "is not what onnxruntime" in record.forward["reason"]


# What is not compared, and why


def test_internal_leaves_it_out(chain: Path) -> None:
    record = check(chain, forward="internal", ops=misread("Exp", "Cosh"))
    assert (record.status, record.forward) == ("pass", {})


def test_a_model_in_memory_is_no_file_to_compare_with() -> None:
    [record] = gc.check(model(("Tanh", "x", "y")), "x", "y").checks
    assert record.forward == {}


def test_parameters_that_an_initialization_sets_are_not_those_of_the_file(tmp_path: Path) -> None:
    path = save(tmp_path / "m.onnx", "m (float[3] x) => (float[3] y) { y = Mul (x, W) }", W=np.float32([1, 2, 3]))
    proto = onnx.load(path)
    info = proto.training_info.add()
    info.initialization.CopyFrom(
        onnx.parser.parse_graph("i () => (float[3] w) { w = Constant <value_floats = [4.0, 5.0, 6.0]> () }")
    )
    info.initialization_binding.add(key="W", value="w")
    onnx.save(proto, path)
    assert check(path).forward["compared_with"] is not None
    record = check(path, init_targets="training_info")
    assert (record.status, record.forward["reason"]) == ("pass", "'W' is given a value, and is no input")


SKIPPED: dict[str, tuple[str, dict[str, Any], str]] = {
    "random numbers": ("m (float[3] x) => (float[3] y) { r = RandomNormalLike (x)  y = Add (r, x) }", {}, "draws random"),
    "a value inside": ("m (float[3] x) => (float[3] y) { h = Tanh (x)  y = Exp (h) }",
                       {"x": "h", "extra_feed_dict": {"h": np.ones(3)}}, "'h' is given a value"),
    "a kernel that it lacks": ("m (double[3] x) => (double[3] y) { y = ThresholdedRelu (x) }", {}, "NotImplemented"),
    "nothing": ("m (float[1,0,5,5] x, float[2,0,3,3] w) => (float[1,2,3,3] y) { y = Conv (x, w) }", {}, "no entries"),
    "bfloat16": ("m (bfloat16[3] x) => (bfloat16[3] y) { y = Add (x, x) }", {}, "'x' is bfloat16"),
    "quantizers that do not round": ("m (float[3] x) => (float[3] y) { y = Round (x) }", {"straight_through": True},
                                     "do not round"),
}  # fmt: skip


@pytest.mark.parametrize("name", SKIPPED)
def test_what_cannot_be_compared_is_no_error_and_says_why(tmp_path: Path, name: str) -> None:
    text, more, reason = SKIPPED[name]
    path = save(tmp_path / "m.onnx", text)
    for record in gc.check(gc.load(path), **more).checks:
        assert "forward" not in record.gates
        assert (record.forward["compared_with"], record.forward["agrees"], record.forward["code"]) == (None, None, None)
        assert reason in record.forward["reason"]


# Whatever can happen to the other process


def test_a_model_that_brings_it_down_is_checked_all_the_same(tmp_path: Path, chain: Path) -> None:
    """Attention without a bias for its projections is a segmentation fault in onnxruntime, or was."""
    text = "m (float[2,3,4] x) => (float[2,3,4] y) { y = com.microsoft.Attention <num_heads = 1> (x, W) }"
    record = check(save(tmp_path / "m.onnx", text, W=np.float32(RNG.normal(size=(4, 12)))))
    assert record.status == "pass"
    if record.forward["compared_with"] is None:
        assert "it crashed (SIG" in record.forward["reason"]
    assert check(chain).forward["compared_with"] is not None


def question(path: Path, **more: Any) -> Question:
    return Question("key", str(path), {"x": np.ones((2, 4), np.float32)}, ["y"], **more)


def test_a_process_that_ended_is_started_again(chain: Path) -> None:
    WORKER.ask(question(chain))
    assert WORKER.process is not None
    WORKER.process.kill()
    WORKER.process.wait()
    assert WORKER.ask(question(chain))["y"].shape == (2, 3)


def test_a_process_that_another_thread_starts_while_it_is_stopped_ends_too() -> None:
    worker, waits = Worker(), threading.Event()

    class Lock:
        def __enter__(self) -> None:
            waits.set()
            own.acquire()

        def __exit__(self, *_: object) -> None:
            own.release()

    own = threading.RLock()
    worker.lock = Lock()
    stopping = threading.Thread(target=worker.stop, daemon=True)
    with own:  # as start() has it
        stopping.start()
        assert waits.wait(60)
        process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        worker.process, worker.owner = process, os.getpid()
    stopping.join(60)
    assert not stopping.is_alive()
    assert process.returncode == -signal.SIGKILL
    assert worker.process is None


def test_a_run_that_takes_too_long_is_given_up(chain: Path) -> None:
    script = chain.with_name("worker.py")
    script.write_text("import time\ntime.sleep(600)\n")
    worker = Worker(script=script)
    with pytest.raises(Unanswered, match=r"it took longer than 0\.5 s"):
        worker.ask(question(chain), patience=0.5)
    assert worker.process is None


def test_a_model_that_asks_for_more_memory_than_there_is_gets_no_answer(tmp_path: Path, chain: Path) -> None:
    path = save(tmp_path / "m.onnx", "m (float[2,4] x, int64[3] s) => (float[A,B,C] y) { y = Expand (x, s) }")
    feeds = {"x": np.ones((2, 4), np.float32), "s": np.array([1 << 36, 2, 4])}
    with pytest.raises(Unanswered):
        WORKER.ask(Question("huge", str(path), feeds, ["y"]))
    assert WORKER.ask(question(chain))["y"].shape == (2, 3)


ERRORS: list[dict[str, Any]] = [
    {"path": "nowhere.onnx"}, {"outputs": ["nosuch"]}, {"data": b"\x00\xff"}, {"feeds": {}},
    {"feeds": {"x": np.ones((2, 5), np.float32)}}, {"feeds": {"x": np.ones((2, 4))}},
]  # fmt: skip


@pytest.mark.parametrize("change", ERRORS)
def test_an_error_of_its_own_is_a_reason_and_the_process_lives_on(chain: Path, change: dict[str, Any]) -> None:
    WORKER.ask(question(chain))
    process = WORKER.process
    with pytest.raises(Unanswered):
        WORKER.ask(structs.replace(question(chain), **{"key": str(change), **change}))
    assert WORKER.process is process
    assert WORKER.ask(question(chain))["y"].shape == (2, 3)


def answering(**entry: Any) -> str:
    """A script that answers with one output of this description, and too few bytes."""
    answer = {"version": "1", "outputs": [{"name": "y", **entry}]}
    return f"import json; print(json.dumps({answer!r}) + 'x' * 9)"


HOSTILE = {
    "says nothing": "",
    "no JSON": "print('hello')",
    "no list": 'print(\'{"version": "1", "outputs": 5}\')',
    "no object": "print('[1]')",
    "a size that is not there": answering(dtype="<f4", shape=[9], size=36),
    "a negative size": answering(dtype="<f4", shape=[-1], size=-4),
    "a size that does not fit": answering(dtype="<f4", shape=[1 << 60], size=4),
    "objects": answering(dtype="|O", shape=[1], size=8),
    "a line without end": "import sys; sys.stdout.write('x' * (1 << 25))",
    "an exit code": "raise SystemExit(7)",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_answers_that_make_no_sense_are_none(tmp_path: Path, chain: Path, name: str) -> None:
    script = tmp_path / "worker.py"
    script.write_text(HOSTILE[name])
    worker = Worker(script=script)
    with pytest.raises(Unanswered):
        worker.ask(question(chain), patience=20)
    worker.stop()


def test_it_does_not_take_modules_from_the_working_folder(
    tmp_path: Path, chain: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "onnxruntime.py").write_text("open('ran', 'w')")
    (tmp_path / "numpy.py").write_text("open('ran', 'w')")
    monkeypatch.chdir(tmp_path)
    worker = Worker()
    assert worker.ask(question(chain))["y"].shape == (2, 3)
    worker.stop()
    assert not os.path.exists("ran")


@pytest.mark.parametrize("name", ["bfloat16", "float8e4m3fn", "float8e4m3fnuz", "float8e5m2", "float8e5m2fnuz"])
def test_inputs_that_numpy_has_no_type_for_are_given_by_their_bits(tmp_path: Path, name: str):
    path = save(tmp_path / "bits.onnx", f"bits ({name}[4] x) => (float[4] y) {{ y = Cast <to = 1> (x) }}", opset=19)
    dtype = helper.tensor_dtype_to_np_dtype(getattr(onnx.TensorProto, name.upper()))
    x = np.asarray([0.5, -1.75, 3, -0.0], dtype)
    answer = WORKER.ask(Question(name, str(path), {"x": x}, ["y"]))
    np.testing.assert_array_equal(answer["y"], x.astype(np.float32))
