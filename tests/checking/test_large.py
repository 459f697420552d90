"""Models whose weights do not fit twice: they are widened where they are read, and nothing else is different."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from collections.abc import Container
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import gradcheck_cli as gc
from gradcheck_cli import native
from gradcheck_cli.autodiff.tape import Large, Tape
from gradcheck_cli.autodiff.trace import trace
from gradcheck_cli.autodiff.weights import KEPT, LARGE, TapeValues
from gradcheck_cli.checks.estimates import FREE
from gradcheck_cli.compare.partial import far_apart
from gradcheck_cli.errors import LimitError
from gradcheck_cli.formats.source import Source
from gradcheck_cli.graph import Array, Graph, Node, TensorType
from gradcheck_cli.graph.memory import Owned
from gradcheck_cli.verdict.differences import rms, scales
from tests.checking import small

SIDE = 1500
LAYERS = 1 + KEPT // (8 * SIDE * SIDE)  # the last of them are not kept
RNG = np.random.default_rng(5)
WEIGHTS = {f"w{i}": (RNG.normal(size=(SIDE, SIDE)) / SIDE**0.5).astype(np.float32) for i in range(LAYERS + 2)}


def deep(wrong: Any = None) -> gc.Model:
    """Layers of MatMul and Tanh; the last ones by transposed weights, as Gemm has them."""
    nodes: list[tuple[Any, ...]] = []
    for i in range(LAYERS + 2):
        here = f"t{i - 1}" if i else "x"
        product = (
            ("Gemm", f"{here} w{i}", f"p{i}", {"transB": 1}) if i >= LAYERS else ("MatMul", f"{here} w{i}", f"p{i}")
        )
        nodes += [product, ("Tanh", f"p{i}", f"t{i}")]
    return small.model(*nodes, x=(1, SIDE), constants=WEIGHTS)


def computed(x: Array) -> Array:
    for i in range(LAYERS + 2):
        w = WEIGHTS[f"w{i}"].astype(np.float64)
        x = np.tanh(x @ (w.T if i >= LAYERS else w))
    return x


@pytest.mark.parametrize("mode", ["directional", "nodes"])
def test_a_model_of_large_weights_is_checked_as_any_other(mode: str) -> None:
    assert small.check(deep(), mode=mode).status == "pass"


@pytest.mark.slow
@pytest.mark.parametrize("op", ["MatMul", "Tanh"])
def test_a_wrong_rule_behind_large_weights_is_found(op: str) -> None:
    record = small.check(deep(), mode="directional", ops=small.with_rule(op, small.scaled(op, 1 + 1e-5)))
    assert (record.status, record.suspect is not None and record.suspect.op) == ("fail", op)


def test_results_are_those_in_float64() -> None:
    x = RNG.normal(size=(1, SIDE))
    tape = trace(deep().graph, {"x": x}, ops=gc.OPS)
    assert np.allclose(tape.named[f"t{LAYERS + 1}"].value, computed(x), rtol=1e-10)


def tape_of(size: int, count: int) -> tuple[Tape, list[Any]]:
    tape = Tape(gc.OPS)
    return tape, [tape.weight(f"w{i}", np.full((size,), i, np.float32)) for i in range(count)]


def test_what_comes_first_is_kept_and_the_rest_is_made_when_it_is_read() -> None:
    tape, made = tape_of(KEPT // 32, 6)
    assert [type(var) is Large for var in made] == [False] * 4 + [True] * 2
    assert all(var.value.dtype == np.float64 and (var.value == i).all() for i, var in enumerate(made))
    assert all((var.shape, var.ndim, var.size, var.dtype) == ((KEPT // 32,), 1, KEPT // 32, np.float64) for var in made)
    held = made[-1].value
    assert tape.values["w5"] is held  # while anybody holds it


def test_small_tensors_are_always_kept() -> None:
    tape, _ = tape_of(KEPT // 8, 2)
    assert type(tape.weight("small", np.ones(LARGE // 8 - 1, np.float32))) is not Large


def test_what_is_made_of_large_weights_is_made_again_and_what_is_fed_is_not() -> None:
    tape, made = tape_of(KEPT // 8, 2)
    turned = tape.apply("Reshape", made[1], np.array([2, -1]))
    doubled = turned + turned
    assert isinstance(turned, Large)
    assert isinstance(doubled, Large)
    assert doubled.shape == (2, KEPT // 16)
    assert (doubled.value == 2).all()
    fed = tape.hold("x", np.ones(()))
    assert type(made[1] * fed) is not Large


def test_an_output_of_large_weights_that_nothing_reads_has_no_name() -> None:
    tape, made = tape_of(KEPT // 8, 2)
    parts = tape.emit("Split", (made[1], np.array([1, KEPT // 8 - 1])), {"axis": 0}, n_outputs=2, outputs=["first", ""])
    assert isinstance(parts[0], Large)
    assert [part.name for part in parts] == ["first", ""]
    assert parts[0].value.tolist() == [1]


WINDOW = {"strides": (1, 1), "pads": (1, 0, 0, 1), "dilations": (1, 1), "group": 1}
WIDENING: dict[str, tuple[list[tuple[int, ...]], dict[str, Any]]] = {
    "MatMul": ([(3, 4), (4, 5)], {}),
    "Conv": ([(2, 3, 6, 7), (4, 3, 2, 3), (4,)], WINDOW),
    "ConvTranspose": ([(2, 3, 6, 7), (3, 4, 2, 3), (4,)], {**WINDOW, "output_padding": (0, 0)}),
}


def test_all_operators_that_widen_are_tested() -> None:
    assert {op.name for op in gc.OPS.values() if op.widens} == set(WIDENING)


@pytest.mark.parametrize("name", WIDENING)
@pytest.mark.parametrize("kernels", ["native", "numpy"])
def test_an_operator_that_widens_gives_the_same_with_one_wide_operand(name: str, kernels: Any) -> None:
    shapes, metadata = WIDENING[name]
    op = gc.OPS["", name]
    narrow = [RNG.normal(size=shape).astype(np.float32) for shape in shapes]
    wide = [x.astype(np.float64) for x in narrow]
    with native.use(kernels):
        want = op.forward(*wide, **metadata)
        for i in range(len(shapes)):
            got = op.forward(*narrow[:i], wide[i], *narrow[i + 1 :], **metadata)
            assert got.dtype == np.float64
            assert np.allclose(got, want, rtol=1e-13, atol=1e-13)


def test_random_numbers_are_drawn_once() -> None:
    tape, _ = tape_of(KEPT // 8, 2)
    drawn = tape.apply("RandomNormal", shape=(LARGE,))
    assert np.array_equal(drawn.value, tape.values[drawn.name])


def test_values_with_recipes_are_a_mapping() -> None:
    values = TapeValues()
    values["a"] = np.zeros(2)
    values.widened("b", np.zeros(KEPT // 8 + 1, np.float32), np.dtype(np.float64))
    assert "a" in values and "b" in values and "c" not in values  # noqa: PT018
    assert len(values) == len(values.copy()) == len(values.part(["a", "b", "c"])) == 2
    assert values.like("b").shape == values["b"].shape
    with pytest.raises(KeyError):
        values["c"]


def test_a_tape_goes_with_its_last_reader() -> None:
    """Without a collection of garbage, which does not know how large arrays are."""
    import gc as garbage
    import weakref

    garbage.disable()
    try:
        tape, _ = tape_of(10, 2)
        tape.named["y"] = tape.constant(3.0) + tape.var("w0")
        gone = weakref.ref(tape)
        del tape
        assert gone() is None
    finally:
        garbage.enable()


CHECKS = """
import resource, sys
import numpy, onnx
import gradcheck_cli as gc
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
model = gc.load(sys.argv[1])
assert gc.check(model, mode=sys.argv[2], forward="internal").exit_code == 0
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["directional", "nodes", "auto"])
@pytest.mark.parametrize("external", [False, True])
def test_a_model_of_one_gigabyte_takes_less_than_three(mode: str, external: bool, tmp_path: Path) -> None:
    pytest.importorskip("resource", reason="only Unix says what a process has used")
    side, rng = 8192, np.random.default_rng(1)
    nodes, weights, here = [], [], "x"
    for i in range(4):
        w = rng.standard_normal((side, side), np.float32) / np.float32(side**0.5)
        weights.append(numpy_helper.from_array(w, f"w{i}"))
        out = "y" if i == 3 else f"t{i}"
        nodes.append(helper.make_node("Gemm", [here, f"w{i}"], [f"p{i}"], transB=i % 2))
        nodes.append(helper.make_node("Tanh", [f"p{i}"], [out]))
        here = out
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, side]) for name in "xy")
    proto = helper.make_model(helper.make_graph(nodes, "g", [x], [y], weights), ir_version=9,
                              opset_imports=[helper.make_opsetid("", 17)])  # fmt: skip
    onnx.save(proto, tmp_path / "m.onnx", save_as_external_data=external, location="m.bin")
    command = [sys.executable, "-c", CHECKS, tmp_path / "m.onnx", mode]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(run.stdout) < 3e9


def wide(channels: int) -> gc.Model:
    """A model whose values take 2 MB a channel."""
    filters = np.ones((channels, 1, 1, 1), np.float32)
    nodes = [("Conv", "x w", "c"), ("Tanh", "c", "t"), ("ReduceSum", "t", "y", {"keepdims": 0})]
    return small.model(*nodes, x=(1, 1, 512, 512), constants={"w": filters})


def test_what_does_not_fit_is_refused_before_it_starts() -> None:
    record = small.check(wide(40), mode="directional", memory_limit=FREE, jobs=2)
    assert (record.status, record.code) == ("limit", "GC602")
    assert re.search(
        r"d y/d x takes about 1\.\d+ GiB; --memory-limit is 256 MiB\.  --memory-limit 2GiB", record.message
    )
    assert not record.evaluations


def open_sized(channels: int) -> gc.Model:
    """The same over an image of any size."""
    filters = np.ones((channels, 1, 1, 1), np.float32)
    nodes = (Node("Conv", ("x", "w"), ("c",)), Node("Tanh", ("c",), ("t",)), Node("ReduceSum", ("t",), ("y",)))
    types = {"x": TensorType(np.dtype(np.float32), ("N", 1, "H", "W")), "y": TensorType(np.dtype(np.float32))}
    return gc.Model(Source(Graph(("x",), ("y",), nodes, {"w": filters}, types), "net", nodes=3), gc.OPS)


def test_sizes_that_nobody_gave_shrink_before_anything_is_refused() -> None:
    tested = open_sized(3000)
    [record] = gc.check(tested, memory_limit=FREE, jobs=1).checks
    assert record.status == "pass"
    assert 2 <= record.dims["H"] < 32
    assert any("H=32, W=40 would take more than the memory limit" in note for note in record.notes)
    [given] = gc.check(tested, memory_limit=FREE, jobs=1, dims={"N": 2, "H": 32, "W": 40}).checks
    assert (given.status, given.code) == ("limit", "GC602")


@pytest.mark.parametrize("error", [MemoryError(), LimitError("a node has no room", code="GC602")])
@pytest.mark.parametrize(("fails", "mode"), [((2,), "nodes"), ((2, 3), "directional"), (range(2, 99), "")])
def test_memory_that_ends_in_one_mode_leaves_the_next_one(error: Exception, fails: Container[int], mode: str) -> None:
    """An estimate says that all entries fit, and they do not: of a rule that takes what no estimate knows of."""
    asked = []

    def greedy(ct: Any, ans: Any, x: Any) -> Any:
        asked.append(ct)
        if len(asked) in fails:  # the health of the gradient was looked at before
            raise error
        return (ct * ans,)

    record = small.check(small.model(("Exp", "x", "y"), x=(30,)), ops=small.with_rule("Exp", greedy))
    if not mode:
        assert (record.status, record.code) == ("limit", "GC602")
        return
    assert (record.status, record.mode) == ("pass", mode)
    what = {"nodes": "all entries", "directional": "all nodes"}[mode]
    assert record.chosen == f"{what} would take more than the memory limit"


def test_a_limit_of_time_is_no_reason_for_another_mode() -> None:
    asked = []

    def slow(ct: Any, ans: Any, x: Any) -> Any:
        asked.append(ct)
        if len(asked) == 2:
            raise LimitError("the time is up")
        return (ct * ans,)

    with pytest.raises(LimitError, match="the time is up"):
        small.check(small.model(("Exp", "x", "y"), x=(30,)), ops=small.with_rule("Exp", slow))


def test_what_fits_is_not_refused() -> None:
    assert small.check(wide(3), mode="directional", memory_limit=1).status == "pass"


def test_memory_that_views_share_counts_once() -> None:
    x = np.zeros((100, 8))
    assert Owned().add([x, x.T, x[1:].reshape(-1), np.broadcast_to(x, (9, 100, 8)), x.copy()]) == 2 * x.nbytes


@pytest.mark.parametrize("size", [1, 1 << 17, (1 << 20) + 3])
def test_the_root_mean_square_of_many_entries_is_that_of_few(size: int) -> None:
    """Summed in pieces, each of which and all of which are sums of at most `size` terms."""
    x = np.random.default_rng(size).normal(size=size)
    expected = math.sqrt(math.fsum(x * x) / size)
    assert abs(rms(x) - expected) <= size * np.finfo(float).eps * expected
    assert np.array_equal(scales(np.append(x, 0.0))[:-1], np.abs(x))


@pytest.mark.parametrize(("share", "apart"), [(0.0, False), (0.09, False), (0.11, True), (0.5, True)])
@pytest.mark.parametrize("size", [1 << 12, 1 << 21])
def test_sizes_are_far_apart_where_more_than_a_tenth_is_small(size: int, share: float, apart: bool) -> None:
    x = np.random.default_rng(0).uniform(1.0, 2.0, size)
    x[: int(share * size)] *= 1e-6
    assert far_apart(np.append(x, np.zeros(size))) is apart  # zeros have no size
