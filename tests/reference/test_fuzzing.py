"""Random models: any part of a plan can be taken away, cases are those of their seed, and faults are found and shrunk."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import onnx
import pytest
from msgspec import structs
from onnx.reference import ReferenceEvaluator

from gradcheck_cli.errors import UsageError
from gradcheck_cli.reference.fuzzing import (
    FAULTS,
    CaseAnswer,
    FuzzJob,
    FuzzResult,
    Judgement,
    OtherEngine,
    Ourselves,
    Shrinker,
    ShrunkFault,
    answers,
    smaller,
    with_pads,
)
from gradcheck_cli.reference.random_models import (
    FLOWS,
    MORE,
    ModelPlan,
    PlanStep,
    Unbuildable,
    axes_of,
    built,
    case,
    lattices,
    operators,
    use_of,
)
from gradcheck_cli.reference.suite import Sample, nodes_in
from tests.zoo.test_engine import is_gone, until

pytest.importorskip("onnxruntime", reason="it runs the models too")
FOREVER = float("inf")


def test_a_case_is_that_of_its_seed_number_and_operators() -> None:
    first = [case(3, number, operators()) for number in range(20)]
    again = [case(3, number, operators()) for number in reversed(range(20))][::-1]
    assert [plan for plan, _ in first] == [plan for plan, _ in again]
    models = [[sample.model.SerializeToString(deterministic=True) for _, sample in some] for some in (first, again)]
    assert models[0] == models[1]
    assert case(4, 0, operators())[0] != first[0][0]


@pytest.mark.parametrize("name", lattices())
def test_there_are_models_of_each_operator_that_onnx_accepts(name: str) -> None:
    for number in range(3):
        _, sample = case(0, number, [name])
        assert name in {node.op_type for node in nodes_in(sample.model.graph)}
        onnx.checker.check_model(sample.model, full_check=True)
        assert {i.name for i in sample.model.graph.input} == set(sample.inputs)


def test_models_have_what_gradients_are_got_wrong_at() -> None:
    """A tensor that is read twice, an empty one, both dtypes, several opsets, and operands that are inputs."""
    samples = [case(0, number, operators())[1] for number in range(300)]
    reads = [[name for node in s.model.graph.node for name in set(node.input)] for s in samples]
    assert any(len(set(names)) < len(names) for names in reads)
    assert any(v.size == 0 for s in samples for v in s.inputs.values())
    assert {v.dtype.name for s in samples for v in s.inputs.values()} >= {"float32", "float64", "int64"}
    assert len({s.model.opset_import[0].version for s in samples}) > 5
    assert max(len(s.model.graph.node) for s in samples) > 5


@pytest.mark.parametrize("flow", FLOWS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_step_inside_of_control_flow_is_right_and_reads_what_is_outside(flow: str, dtype: str) -> None:
    for name, seed in (("Tanh", 1), ("MatMul", 2), ("Log", 3), ("ReduceSum", 4)):
        first = PlanStep("Sin", 0, {}, (None,), seed=seed)
        plan = ModelPlan((first, PlanStep(name, 0, {}, ((0, 0), None), flow=flow, seed=seed)), dtype, 7)
        sample = built(plan, name)
        assert flow in {node.op_type for node in sample.model.graph.node}
        assert name in {node.op_type for node in nodes_in(sample.model.graph)}
        assert sample.model.opset_import[0].version >= 11
        assert Ourselves().outcome(sample).status == "right"
        assert structs.replace(plan, steps=(first, structs.replace(plan.steps[1], flow=""))) in list(smaller(plan))


def test_control_flow_is_drawn_of_each_kind() -> None:
    plans = [case(5, number, operators())[0] for number in range(300)]
    assert {step.flow for plan in plans for step in plan.steps} == {"", *FLOWS}


def test_an_engine_that_differentiates_the_other_branch_is_told_apart() -> None:
    """The fault is shrunk to a node in a branch, and named by it."""

    def outcome(sample: Sample) -> Judgement:
        return Judgement("wrong" if "If" in {node.op_type for node in sample.model.graph.node} else "right")

    plan = next(p for p in (case(6, n, operators())[0] for n in range(999)) if "If" in {s.flow for s in p.steps})
    fault = Shrinker(outcome, lambda: False).fault(0, plan, Judgement("wrong"))
    assert fault.plan is not None
    assert ([step.flow for step in fault.plan.steps], "If" in fault.ways) == (["If"], True)


@pytest.mark.parametrize("name", MORE)
def test_what_only_sets_attributes_is_called_by_one_of_them(name: str) -> None:
    for number in range(len(MORE[name])):
        usual = use_of(PlanStep(name, number, {}, ()))
        for axis, values in axes_of(name, number).items():
            for place in range(1, len(values)):
                with suppress(Unbuildable):
                    use = use_of(PlanStep(name, number, {axis: place}, ()))
                    if repr(use.inputs) == repr(usual.inputs) and use.attrs != usual.attrs:
                        changed = {k for k in use.attrs | usual.attrs if use.attrs.get(k) != usual.attrs.get(k)}
                        assert axis.rstrip("_") in changed


def test_a_smaller_plan_has_less_and_most_make_models() -> None:
    made = 0
    for number in range(15):
        plan, _ = case(1, number, operators())
        for other in list(smaller(plan))[:20]:
            assert other != plan
            assert len(other.steps) <= len(plan.steps)
            try:
                onnx.checker.check_model(built(other, "smaller").model)
                made += 1
            except Unbuildable:
                continue
    assert made > 50


def test_an_unknown_operator_is_told_the_nearest() -> None:
    with pytest.raises(UsageError, match="Did you mean 'Conv'"):
        operators(["Convv"])
    assert operators(["conv", "Conv"]) == ["Conv"]


def test_gradcheck_has_no_fault_in_its_first_cases() -> None:
    judge = Ourselves()
    found = {number: judge.outcome(case(0, number, operators())[1]) for number in range(100)}
    assert {n: f for n, f in found.items() if f.status in FAULTS} == {}
    assert sum(each.status == "right" for each in found.values()) > 90


def asymmetric(sample: Sample) -> Judgement:
    """An engine that has convolutions with pads of two sizes wrong."""
    pads = [list(a.ints) for node in sample.model.graph.node if node.op_type == "Conv" for a in node.attribute
            if a.name == "pads"]  # fmt: skip
    return Judgement("wrong" if any(len(set(p)) > 1 for p in pads) else "right")


def test_a_fault_is_shrunk_to_one_node_that_has_nothing_besides() -> None:
    shrinker, found = Shrinker(asymmetric, lambda: False), []
    for number in range(400):
        plan, sample = case(0, number, ["Conv", "Relu", "Add"])
        if asymmetric(sample).status == "wrong":
            found.append(shrinker.fault(number, plan, asymmetric(sample)))
    assert len(found) > 10
    first = found[0]
    assert first.plan is not None
    model = built(first.plan, "first").model
    assert [node.op_type for node in model.graph.node] == ["Conv"]
    assert {a.name for a in model.graph.node[0].attribute} == {"pads"}
    assert (first.operators, first.status) == (("Conv",), "wrong")
    assert sum(fault.plan is not None for fault in found) < len(found) / 2  # those like it are counted alone


def test_faults_of_one_key_are_counted_and_the_smallest_is_kept() -> None:
    plan = ModelPlan((PlanStep("Relu", 0, {}, ()),))
    large, small, like = (ShrunkFault(("Relu",), "wrong", "value", (), "", n, p, size)
                          for n, p, size in ((1, plan, 9), (2, plan, 3), (3, None, 3)))  # fmt: skip
    result = FuzzResult(FuzzJob(), {}, {})
    for fault in (large, like, small):
        result.take(CaseAnswer(fault.number, Judgement("wrong"), ("Relu",), fault))
    assert list(result.faults.values()) == [(small, 3)]
    assert result.cases == 3


@pytest.mark.parametrize("operator", ["AveragePool", "LpPool", "MaxPool"])
@pytest.mark.parametrize("same", ["SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize(("size", "stride"), [(3, 1), (4, 2), (5, 3)])
@pytest.mark.parametrize("inside", [False, True])
def test_dilated_pools_padded_to_the_same_size_are_held_against_pads_by_the_formula(
    operator: str, same: str, size: int, stride: int, inside: bool
) -> None:
    """onnxruntime leaves dilations out there, and ONNX's reference evaluator pads the end that SAME_LOWER does not."""
    assert Ourselves().outcome(pooled(operator, same, size, stride, inside=inside)).status == "right"


def test_windows_of_a_dilated_pool_begin_in_the_pads_of_same_lower() -> None:
    """pads = (2 - 1) 2 + 3 - 4 = 1 at the beginning: entries [-1, 1] and [1, 3]; onnxruntime says 3 and 3."""
    pool = with_pads(pooled("MaxPool", "SAME_LOWER", 4, 2).model)
    [made] = ReferenceEvaluator(pool).run(None, {"x": np.array([[[1, 2, 3, 4]]], np.float32)})
    assert made.tolist() == [[[2, 4]]]


def test_an_implementation_is_asked_of_an_output_alone_and_may_not_run_the_rest() -> None:
    """Indices of MaxUnpool are those of the shape that ONNX infers, [1, 2, 2]; onnxruntime reads them in the result's.

    ONNX's reference evaluator agrees, and does not run the OneHot beside it.
    """
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 13]>
        g (float[1,2,1] x, float[2] v) => (float[1,2,3] y, float[1,1] h) <int64[1,2,1] i = {1,2}, int64[3] s = {1,2,3},
        int64[1] d = {1}, int64[1] k = {1}> { y = MaxUnpool<kernel_shape=[2]> (x, i, s)  h = OneHot (k, d, v) }""")
    values = {"x": np.array([[[5], [7]]], np.float32), "v": np.array([0.25, 0.5], np.float32)}
    assert Ourselves().outcome(Sample("unpooled", "MaxUnpool", "random", model, values)).status == "right"


@pytest.mark.parametrize(("layer", "gates"), [("RNN", 1), ("GRU", 3), ("LSTM", 4)])
@pytest.mark.parametrize("inside", [False, True])
def test_onnxruntime_is_not_asked_for_layers_over_a_batch_of_none(layer: str, gates: int, inside: bool) -> None:
    """The process that asks would end."""
    nodes = placed(f"{layer}<hidden_size=1> (x, w, w)", "float[1,1,0,1]", inside=inside)
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 14]> g (float[1,0,1] x, float[1,{gates},1] w)
        => (float[1,1,0,1] y) {{ {nodes} }}""")
    values = {"x": np.zeros((1, 0, 1), np.float32), "w": np.full((1, gates, 1), 0.5, np.float32)}
    assert Ourselves().outcome(Sample("none", layer, "random", model, values)).status in ("right", "open")


def test_onnxruntime_is_not_asked_for_unique_rows_without_entries() -> None:
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 18]> g (float[3,0] x) => (float[1,0] y)
        { y = Unique<axis=0, sorted=0> (x) }""")
    sample = Sample("none", "Unique", "random", model, {"x": np.zeros((3, 0), np.float32)})
    assert Ourselves().outcome(sample).status in ("right", "open")


def placed(node: str, form: str, *, inside: bool) -> str:
    """The node that computes y, of this type, or both sides of an If that do."""
    sides = ", ".join(f"{s}_branch: graph = {s} () => ({form} {s}_y) {{ {s}_y = {node} }}" for s in ("then", "else"))
    return f"one = Constant<value_int=1>() yes = Cast<to=9>(one) y = If(yes) <{sides}>" if inside else f"y = {node}"


def pooled(operator: str, same: str, size: int, stride: int, *, inside: bool = False) -> Sample:
    """A pool of two entries that are two apart."""
    node = f'{operator}<auto_pad="{same}", ceil_mode=1, dilations=[2], kernel_shape=[2], strides=[{stride}]>(x)'
    form = f"float[1,1,{-(-size // stride)}]"
    model = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : 21]> g (float[1,1,{size}] x) => ({form} y) {{
        {placed(node, form, inside=inside)} }}"""
    )
    values = np.array([[[0.1, 0.2, 0.4, 0.7, 1.1][:size]]], np.float32)
    return Sample("same", operator, "random", model, {"x": values})


WRONG = """
from gradcheck_cli.reference.engines import Gradcheck
import os, onnx
class Mine(Gradcheck):
    def vjp(self, *args):
        outputs, gradients = super().vjp(*args)
        operators = {node.op_type for node in onnx.load(self.model).graph.node}
        if "Exp" in operators:
            os._exit(3)
        return outputs, {x: -g if "Tanh" in operators else g for x, g in gradients.items()}
"""


def test_an_engine_is_right_wrong_or_has_crashed(tmp_path: Path) -> None:
    import sys

    adapter = tmp_path / "mine.py"
    adapter.write_text(WRONG)
    judge = OtherEngine(f"{adapter}:Mine", sys.executable)
    try:
        found = {name: judge.outcome(case(0, 1, [name])[1]) for name in ("Sin", "Tanh", "Exp", "Cos")}
    finally:
        judge.close()
    assert {n: f.status for n, f in found.items()} == {
        "Sin": "right",
        "Tanh": "wrong",
        "Exp": "crashed",
        "Cos": "right",
    }
    assert "-1 times the right one" in found["Tanh"].message


def test_answers_are_the_same_in_any_number_of_processes_one_of_which_may_end() -> None:
    job = FuzzJob(2, tuple(operators(["Sin", "Add", "MatMul"])))
    alone = {a.number: a for a in answers(job, range(24), 1, FOREVER)}
    running, several = answers(job, range(24), 2, FOREVER), []
    several.append(next(running))
    multiprocessing.active_children()[0].kill()
    several += running
    assert sorted(a.number for a in several) == sorted(alone) == list(range(24))
    assert [a for a in several if a.outcome.status != "crashed" and a != alone[a.number]] == []


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc which processes there are")
def test_no_process_is_left_of_a_run_that_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "gradcheck_cli", "fuzz", "--time", "5m", "-j", "2", "-o", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as running:
        children = Path(f"/proc/{running.pid}/task/{running.pid}/children")
        assert until(lambda: len(children.read_text().split()) > 2, 60)
        started = [int(pid) for pid in children.read_text().split()]
        running.kill()
    assert until(lambda: all(map(is_gone, started)), 60)


def test_no_case_begins_after_the_time() -> None:
    assert list(answers(FuzzJob(0, tuple(operators())), range(9), 1, 0.0)) == []
