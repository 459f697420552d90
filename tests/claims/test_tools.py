"""Gradients that other tools have made: what each is known to get wrong fails with the node at fault, its twin passes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradcheck_cli as gc
from tests.models import test_training_graphs as training

FILES = Path(__file__).parents[1] / "models" / "files" / "claims"
# of onnxruntime-training 1.19.2: what it gave for each tensor that it differentiates by
DUMPED = {"conv_same": "Conv", "conv_pads": "", "pool_dilated": "AveragePool", "pool": ""}
GRAPHS = {"conv_same": "", "conv_pads": "", "pool_dilated": "", "pool": "", "where_broadcast": "Where", "where": ""}
# of onnx-ad 0.3.0: the operator whose derivative it has wrong, and by which tensors
ADJOINTS = {
    "conv_ends": ("Conv", {"x"}),
    "conv_even": ("", set()),
    "gru_unbiased": ("GRU", {"x"}),
    "gru": ("", set()),
    "moments": ("BatchNormalization", {"m", "v"}),
    "no_moments": ("", set()),
    "det": ("Det", {"x"}),
    "trace": ("", set()),
    "onehot": ("OneHot", {"x"}),
    "plain": ("", set()),
    "prod_zero": ("ReduceProd", {"x"}),
    "prod": ("", set()),
}


def numbers(name: str) -> dict[str, Any]:
    """Values fed and computed, by tensor."""
    with np.load(FILES / f"{name}.npz") as run:
        return dict(run)


def outcome(report: gc.Report) -> list[tuple[str, str, str]]:
    """Status of each claim, with the suspected operator."""
    return [(c.x, c.status, c.suspect.op if c.suspect else "") for c in report.checks if c.claim]


@pytest.mark.parametrize("name", DUMPED)
def test_numbers_that_onnxruntime_training_computed(name: str) -> None:
    run, op = numbers(name), DUMPED[name]
    xs = {key.removesuffix("_grad"): value for key, value in run.items() if key.endswith("_grad")}
    report = gc.check(gc.load(FILES / f"{name}.onnx"), grad=xs, extra_feed_dict={"x": run["x"]})
    found = {x: (status, suspect) for x, status, suspect in outcome(report)}
    right = {x for x in xs if x == "b"} if op else {*xs}  # that of a bias is a sum, and no kernel is needed for it
    assert found == {x: ("pass", "") if x in right else ("fail", op) for x in xs}


@pytest.mark.parametrize("name", GRAPHS)
def test_graphs_that_onnxruntime_training_wrote(name: str) -> None:
    report = gc.check(gc.load(FILES / f"{name}_training.onnx"))
    wrong = [("x", "fail", "Where")] if GRAPHS[name] else []
    assert [each for each in outcome(report) if each[1] != "pass"] == wrong
    assert [c.code for c in report.checks if c.status != "pass"] == ["GC102"] * len(wrong)
    assert all(c.claim["found"] and c.claim["seed"] == "loss_grad" for c in report.checks if c.claim)


def test_the_gradient_of_a_forward_that_a_tool_has_made_another_one() -> None:
    """Inference became training: the gradient is right for what is in its own file, and not for the model."""
    own = gc.check(gc.load(FILES / "batchnorm_training.onnx"))
    assert [status for _, status, _ in outcome(own)] == ["pass"] * 3
    model = gc.load(FILES / "batchnorm.onnx")
    report = gc.check(model, grad_model=FILES / "batchnorm_training.onnx")
    assert outcome(report) == [(x, "fail", "BatchNormalization") for x in ("x", "s", "o")]
    assert all("computes another n" in c.suspect.diagnosis for c in report.checks if c.suspect)


@pytest.mark.parametrize("name", ADJOINTS)
def test_adjoint_models_that_onnx_ad_wrote(name: str) -> None:
    op, wrong = ADJOINTS[name]
    report = gc.check(gc.load(FILES / f"{name}.onnx"), grad_model=FILES / f"adj_{name}.onnx")
    assert {x: (s, o) for x, s, o in outcome(report)} == {
        c.x: ("fail", op) if c.x in wrong else ("pass", "") for c in report.checks
    }
    assert all(c.claim["seed"] == "drawn" and c.claim["theoretical"] == "pass" for c in report.checks)


@pytest.mark.parametrize("name", ["conv_even", "no_moments", "trace", "prod"])
def test_an_adjoint_model_on_its_own_says_what_it_claims(name: str) -> None:
    report = gc.check(gc.load(FILES / f"adj_{name}.onnx"))
    assert outcome(report) == [("x", "pass", "")]
    assert {c.claim["seed"] for c in report.checks if c.claim} == {"adj_y"}
    assert report.exit_code == 0


def test_a_gradient_of_jax_whose_export_has_lost_a_transpose() -> None:
    """x^T ct became x ct, which has no shape: seen in the graph; its other outputs are right, and known by their shapes."""
    report = gc.check(gc.load(FILES / "jax.onnx"), grad_model=FILES / "jax_grad.onnx")
    assert outcome(report) == [("in_0", "pass", ""), ("in_1", "fail", "Gemm"), ("in_2", "pass", "")]
    assert report.checks[1].code == "GC102"
    assert all("by their shapes: dot_out_2 for that by in_0" in " ".join(c.notes) for c in report.checks)


@pytest.mark.parametrize("name", training.NAMES)
def test_training_graphs_with_accumulators(name: str) -> None:
    """Their outputs are flags; the gradients are inside, and go into buffers."""
    model, run = gc.load(training.HERE / f"{name}.onnx"), training.recorded(name)
    report = gc.check(model, extra_feed_dict=training.inputs(model, run))
    claims = {c.x: c.status for c in report.checks if c.claim}
    assert claims == dict.fromkeys(training.parameters(run), "pass")
