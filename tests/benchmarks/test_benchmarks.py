"""The plumbing of the benchmarks: tables, goals, processes, networks.  No time is asserted anywhere."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx
import onnx.parser
import onnx.reference
import pytest

import gradcheck_cli
from benchmarks import goals, gradient_files, models, plots, readme, real_sizes, suites, table, timing
from benchmarks.alone import alone
from benchmarks.cases import CASES, Case
from benchmarks.goals import Goal
from benchmarks.jacobians import HEAD
from benchmarks.libraries import numpy_library
from benchmarks.networks import Function, Network, Nodes, basic, mobilenet, resnet, unet
from benchmarks.table import Table
from gradcheck_cli.autodiff.trace import trace
from gradcheck_cli.formats.onnx.read import read_proto
from gradcheck_cli.ops import OPS
from tests.rounding import assert_rounded


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_case_is_the_same_function_for_gradcheck_and_for_a_peer(case: Case):
    ours = trace(read_proto(case.model()).graph, {"x": case.x}, ops=OPS).named["y"].value
    theirs = case.function(numpy_library(), case.weights, case.x).reshape(case.y_shape)
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-12 * np.abs(theirs).max())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_one_thread_and_two_get_the_same_numbers_to_the_last_bit(case: Case, tmp_path: Path):
    onnx.save(case.model(), tmp_path / "case.onnx")
    model = gradcheck_cli.load(tmp_path / "case.onnx")
    [one], [two] = (gradcheck_cli.check(model, "x", mode="full", jobs=jobs).checks for jobs in (1, 2))
    names = ("entries", "max_abs_err", "max_rel_err", "noise", "needed", "gradient", "evaluations", "worst", "notes")
    assert [getattr(one, name) for name in names] == [getattr(two, name) for name in names]


ROWS = ((3, 16, 24, True, "relu", 2), (5, 48, 24, True, "hard_swish", 1))
TINY = (
    models.TINY,
    Network("tiny ResNet", (1, 3, 32, 32), (1, 5), resnet((1, 1), width=4, classes=5)),
    Network("tiny ResNet without bottlenecks", (1, 3, 32, 32), (1, 5), resnet((1, 1), 4, classes=5, block=basic)),
    Network("tiny MobileNet", (1, 3, 16, 16), (1, 5), mobilenet(ROWS, classes=5)),
    Network("tiny U-Net", (1, 3, 16, 16), (1, 2, 16, 16), unet(2, width=4, channels=2)),
)


def behind(model: onnx.ModelProto) -> int:
    """Roundings on the way to one entry: the lengths of the sums of all layers."""
    return sum(int(np.prod(weight.dims[1:])) for weight in model.graph.initializer)


@pytest.mark.parametrize("network", TINY, ids=lambda network: network.name)
def test_a_network_is_the_same_function_for_gradcheck_onnx_and_torch(network: Network, tmp_path: Path):
    weights = network.write(tmp_path / "network.onnx")
    model = onnx.load(tmp_path / "network.onnx")
    onnx.checker.check_model(model, full_check=True)
    x = np.random.default_rng(1).normal(size=network.x_shape).astype(np.float32)
    [theirs] = onnx.reference.ReferenceEvaluator(model).run(None, {"x": x})
    graph = read_proto(model).graph
    ours = trace(graph, {"x": x}, ops=OPS).named[graph.outputs[0]].value
    assert_rounded(ours, theirs, roundings=behind(model))  # the evaluator sums in float32
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    np.testing.assert_allclose(network.in_torch(torch, weights)(torch.tensor(x).double()), ours, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("function, parameters", [
    pytest.param(resnet(), 25_557_032, id="ResNet-50", marks=pytest.mark.slow),
    pytest.param(resnet((2, 2, 2, 2), block=basic), 11_689_512, id="ResNet-18"),
    pytest.param(mobilenet(), 2_542_856, id="MobileNetV3-small"),
])  # fmt: skip
def test_a_network_has_as_many_parameters_as_the_original(function: Function, parameters: int):
    built = Nodes()
    function(built, "x")
    normalized = [node for node in built.nodes if node.op_type == "BatchNormalization"]
    statistics = {name for node in normalized for name in node.input[3:]}  # means and variances: no parameters
    assert sum(w.size for name, w in built.weights.items() if name not in statistics) == parameters


def test_a_check_at_a_real_size_says_what_was_compared_or_why_it_was_stopped(tmp_path: Path):
    TINY[0].write(path := tmp_path / "network.onnx")
    full, nodes, stopped = (
        real_sizes.check_file(str(path), mode, timeout)[2:]
        for mode, timeout in (("full", 60), ("nodes", 60), ("full", 1e-6))
    )
    assert full == ("pass", "1,280 of 1,280 entries")
    assert nodes[0] == "pass"
    assert nodes[1].endswith(" nodes")
    assert stopped[0] == "limit"
    assert "took more than" in stopped[1]


def test_gradient_files_of_models_are_held_against_differences(tmp_path: Path):
    pytest.importorskip("onnxruntime")
    (tmp_path / "models").mkdir()
    text = """<ir_version: 9, opset_import: ["" : 18]> m (float[N,3] x) => (float[N,3] y)
        <float[3] w = {1, -2, 3}, float down = {DOWN}, float up = {1e9}>
        { a = Mul(x, w) b = Sub(a, down) s = Sigmoid(b) y = Mul(s, up) }"""
    for name, down in (("plain", "0"), ("saturated", "20")):  # where the Sigmoid of onnxruntime has no digits
        onnx.save(onnx.parser.parse_model(text.replace("DOWN", down)), tmp_path / "models" / f"{name}.onnx")
    by_name = [dict(zip(gradient_files.OF_MODELS, row, strict=True))
               for row in gradient_files.of_models(tmp_path / "models").rows]  # fmt: skip
    assert [(row["model"], row["by"]) for row in by_name] == [
        (model, by) for model in ("plain", "saturated") for by in ("inputs", "params")
    ]
    assert all(row["sizes"] == 3 and row["error in float64"] < 1e-6 for row in by_name)
    assert all(row["remarks"] == "" and row["in onnxruntime"] < 1e-4 for row in by_name[:2])
    assert all("whose own run of the model is off by" in str(row["remarks"]) for row in by_name[2:])


def test_a_wrong_gradient_file_is_found(tmp_path: Path):
    pytest.importorskip("onnxruntime")
    head = '<ir_version: 9, opset_import: ["" : 18]>'
    model = "m (float[N,3] x) => (float[N,3] y) { y = Sin(x) }"
    file = "m (float[N,3] x, float[N,3] y_grad) => (float[N,3] x_grad) { x_grad = Mul(y_grad, x) }"
    for name, text in (("model", model), ("file", file)):
        onnx.save(onnx.parser.parse_model(head + text), tmp_path / f"{name}.onnx")
    *_, wide, narrow, remarks = gradient_files.held(
        str(tmp_path / "model.onnx"), str(tmp_path / "file.onnx"), ["x_grad"]
    )
    assert wide > 0.01
    assert narrow > 0.01
    assert "off by" in remarks


def test_a_ratio_is_the_median_of_the_rounds():
    times = {"peer": [4.0, 9.0, 10.0], "ours": [1.0, 3.0, 1.0]}
    assert timing.ratio(times, "peer", "ours") == 4.0


def test_everybody_is_timed_in_every_round():
    calls: list[str] = []
    times = timing.in_turns({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, rounds=3)
    assert {name: len(taken) for name, taken in times.items()} == {"a": 3, "b": 3}
    changes = sum(one != other for one, other in pairwise(calls))
    assert changes >= 6  # warm once each, then three rounds of both


@pytest.mark.parametrize("least, values, met, shown", [
    (True, [3.0, 2.0], "yes", "2x to 3x"),
    (True, [1.9, 7.0], "no", "1.9x to 7x"),
    (True, [2.5, "absent"], "yes", "2.5x"),
    (True, ["absent"], "-", "not measured"),
    (False, [1.0, 2.5], "no", "2.5x to 1x"),
    (False, [0.5], "yes", "0.5x"),
])  # fmt: skip
def test_a_goal_is_judged_by_its_worst_case(least: bool, values: list[object], met: str, shown: str):
    goal = Goal("what", 2, "T", goals.column("v"), least)
    assert goal.row({"T": [{"v": value} for value in values]})[2:] == (shown, met)


@pytest.mark.parametrize("goal", goals.GOALS, ids=lambda goal: goal.what)
def test_a_goal_without_results_is_not_measured(goal: Goal):
    assert goal.row({})[2:] == ("not measured", "-")


@pytest.mark.slow
def test_every_goal_finds_its_figures_in_what_the_quick_suites_give():
    """But for those of models that a quick run leaves out, and of peers that are not here."""
    quick = {
        made.title: made.records for name in ("limit", "scaling") for made in suites.tables(f"benchmarks.{name}", True)
    }
    assert not [title for title in quick if title.endswith("not finished")], quick
    found = {goal.what: goal.row(quick)[2] for goal in goals.GOALS if goal.title in quick}
    missing = [what for what, measured in found.items() if measured == "not measured"]
    assert missing == ["memory, 1 GB of float32 weights, process as a whole"]
    assert len(found) == 6


@pytest.fixture
def broken() -> Iterator[str]:
    module = ModuleType("benchmarks_broken")

    def tables(quick: bool) -> Iterator[Table]:
        yield Table("first", ("a",), [(1,)])
        raise ValueError("what is wrong")

    module.tables = tables  # type: ignore[attr-defined]
    sys.modules[module.__name__] = module
    yield module.__name__
    del sys.modules[module.__name__]


def test_a_suite_that_breaks_gives_what_it_has_and_why_it_ended(broken: str):
    first, second = suites.tables(broken, quick=True)
    assert first.rows == [(1,)]
    assert second.title.endswith("not finished")
    assert second.rows[0][1] == "ValueError: what is wrong"


def test_memory_is_that_of_a_process_of_its_own():
    value, small = alone("builtins:dict", a=24)
    _, large = alone("benchmarks.alone:peak")
    assert value == {"a": 24}
    assert 0 < small < 2 * large < 2000


def test_a_call_alone_has_variables_of_its_own(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PYTHONPATH", "peers")
    assert alone("os:getenv", {"OMP_NUM_THREADS": "1"}, key="OMP_NUM_THREADS")[0] == "1"
    assert alone("os:getenv", key="PYTHONPATH")[0].endswith("peers")


def test_a_call_that_fails_alone_says_why():
    with pytest.raises(RuntimeError, match="math:prod: TypeError: prod"):
        alone("math:prod", iterable=3)


def test_results_go_to_files_and_from_there_into_a_readme(tmp_path: Path):
    made = [Table("Product kernels", ("products", "faster than NumPy"), [("float64 large", 1.25)]),
            Table("Jacobians", HEAD,
                  [("MLP", "auto", 0.01, 1.0, 1.0, 1.0), ("MLP", "torch slow", 0.07, 7.03, 4.0, 9.0),
                   ("MLP", "jax", "absent", "", "", "")]),
            Table("Jacobians, one thread", HEAD, [(name, "auto", 0.01, 1.0, 1.0, 1.0) for name in "abcde"])]  # fmt: skip
    made.append(goals.table_of(made))
    table.write_all(made, 60.0, tmp_path)
    plots.draw(made, tmp_path)
    results = json.loads((tmp_path / "benchmarks.json").read_text())
    text = readme.replaced(f"before\n{readme.BEGIN}\nold\n{readme.END}\nafter\n", readme.section(results))
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert "old" not in text
    assert "| MLP | 10 ms | x 7 | - | - | - | - |" in text
    assert (
        "| product kernels, float64 large, against NumPy | at least 0.95x | 1.25x | yes |"
        in (tmp_path / "benchmarks.md").read_text()
    )
    assert results["versions"]["numpy"] in text
    for name in ("product-kernels", "jacobians", "jacobians-one-thread"):
        assert (tmp_path / f"{name}.png").stat().st_size > 1000
    assert "## Product kernels" in (tmp_path / "benchmarks.md").read_text()


def test_a_readme_without_marks_is_left_alone():
    with pytest.raises(SystemExit, match="no section"):
        readme.replaced("text", "new")
