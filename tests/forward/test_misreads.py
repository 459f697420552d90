"""A misread operator inside of a net of 5 to 50 layers is found, and named; a net that is read right is never accused."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

import gradcheck_cli as gc
from tests.forward.held import forward
from tests.forward.misreads import AXES, ENTRIES, MISREADS, NORMS, POOLS, SAMPLING, Misread
from tests.forward.nets import KINDS, write
from tests.models.test_forward import SHARED

pytest.importorskip("onnxruntime")

SEEDS = 3
# What float16 cannot show: onnxruntime keeps float32 between nodes, so that an operand is known to half a unit only.
BELOW_HALF = {
    "LayerNormalization: epsilon 1e-3", "LayerNormalization: epsilon 1e-4", "BatchNormalization: epsilon 1e-3",
    "BatchNormalization: epsilon 1e-4", "InstanceNormalization: epsilon 1e-3", "GroupNormalization: epsilon 1e-3",
    "LRN: bias 1.001", "Gelu: tanh for erf", "Gelu: erf for tanh", "Erf: by tanh", "LeakyRelu: slope 0.0101",
    "Selu: gamma", "Elu: alpha 1.01", "Round: half up",
}  # fmt: skip


def name(misread: Misread) -> str:
    return misread.name


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "misread", [m for family in (NORMS, POOLS, SAMPLING, ENTRIES, AXES) for m in family[::3]], ids=name
)
def test_a_misread_operator_is_named_and_the_gradient_is_judged_all_the_same(misread: Misread, tmp_path: Path) -> None:
    index = write(tmp_path / "m.onnx", misread.use, 3)
    [record] = gc.check(gc.load(tmp_path / "m.onnx"), ops=misread.ops, mode="directional", points=1).checks
    assert (record.forward["agrees"], record.forward["code"]) == (False, "GC404"), record.forward
    assert record.forward["first_node"]["node"] == index
    assert record.gates == ("forward",)
    assert record.status in ("pass", "fail", "inconclusive", "error")
    assert record.exit_code == 1


def test_a_net_that_is_read_right_agrees(tmp_path: Path) -> None:
    for seed, dtype in enumerate([*KINDS] * 3):
        write(tmp_path / "m.onnx", None, seed, dtype)
        for found in forward(tmp_path / "m.onnx").values():
            assert found["agrees"] in (True, None), (seed, dtype, found)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", KINDS)
def test_all_misreads_over_several_nets_of_every_dtype(dtype: str, tmp_path: Path) -> None:
    counts, missed = Counter[str](), []
    for misread in MISREADS:
        for seed in range(SEEDS):
            index = write(tmp_path / "m.onnx", misread.use, seed, dtype)
            [right], [wrong] = (forward(tmp_path / "m.onnx", ops).values() for ops in (gc.OPS, misread.ops))
            assert right["agrees"] in (True, None), (misread.name, seed, right)
            if right["agrees"] is None:  # onnxruntime has no kernel for this dtype
                continue
            first = wrong["first_node"] or {}
            caught = wrong["agrees"] is False and first.get("node") == index
            counts[f"{'caught' if caught else 'missed'}"] += 1
            missed += [] if caught else [(misread.name, seed)]
    print(f"\n{dtype}: {counts['caught']} of {counts.total()} caught; missed: {missed}")
    hidden = [each for each in missed if dtype == "float16" and each[0] in BELOW_HALF]
    assert len(missed) - len(hidden) <= 0.05 * counts.total(), missed  # what lies behind may hide it: a mean, a softmax


@pytest.mark.slow
def test_no_right_model_is_accused(tmp_path: Path) -> None:
    """Shared models and drawn nets, at several points each; a float16 model with ties at every Relu among them."""
    alarms, runs = [], 0
    for path in sorted(SHARED.rglob("*.onnx")):
        for seed in range(SEEDS + 2):
            found = forward(path, seed=seed)
            runs += 1
            alarms += [(path.name, seed, each["reason"]) for each in found.values() if each.get("agrees") is False]
    for seed in range(40):
        for dtype in KINDS:
            write(tmp_path / "m.onnx", None, 100 + seed, dtype)
            runs += 1
            alarms += [(dtype, seed, each["reason"]) for each in forward(tmp_path / "m.onnx").values()
                       if each["agrees"] is False]  # fmt: skip
    print(f"\n{runs} runs, {len(alarms)} false alarms")
    assert not alarms
