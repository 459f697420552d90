"""Long doubles: what rounding leaves open for the ladder of float64, and what they must not be trusted with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import parser

import gradcheck_cli as gc
from gradcheck_cli.autodiff.trace import trace
from gradcheck_cli.compare.ladder import has_longer_numbers
from gradcheck_cli.engine.chunks import Budget
from gradcheck_cli.engine.program import Program
from gradcheck_cli.jacobian import precise
from gradcheck_cli.jacobian.jacobian import Backward
from gradcheck_cli.jacobian.precise import Longer, roughness
from gradcheck_cli.op import Ops
from gradcheck_cli.ops import OPS
from tests.checking.small import check, model, scaled, with_rule

pytestmark = pytest.mark.skipif(not has_longer_numbers(), reason="this machine has no numbers longer than float64")
SIN = ("", "Sin")


def cancelling(folder: Path, big: float) -> gc.Model:
    """sin((x + big) - big)^2: float64 has a rounding error of big left."""
    text = f"""<ir_version: 9, opset_import: ["": 18]> g (double[6] x) => (double[6] y) {{
        big = Constant <value = double {{{big}}}> ()
        a = Add (x, big)  b = Sub (a, big)  s = Sin (b)  y = Mul (s, s)
    }}"""
    onnx.save(parser.parse_model(text), folder / "m.onnx")
    return gc.load(folder / "m.onnx")


def checked(model: gc.Model, ops: Ops = OPS) -> Any:
    return gc.check(model, method="richardson", ops=ops, forward="internal").checks[0]


def off_by(factor: float) -> Ops:
    """A table in which the rule of Sin is wrong by a factor."""
    right = OPS[SIN].vjp
    assert right is not None
    return {**OPS, SIN: replace(OPS[SIN], vjp=lambda ct, y, x: tuple(ct_x * factor for ct_x in right(ct, y, x)))}


def test_what_float64_leaves_open_passes(tmp_path: Path) -> None:
    assert checked(cancelling(tmp_path, 3e5)).status == "pass"


@pytest.mark.parametrize("big", [3e5, 1e6, 1e7])
def test_a_wrong_rule_below_the_rounding_of_float64_fails(tmp_path: Path, big: float) -> None:
    assert checked(cancelling(tmp_path, big), off_by(1 + 1e-5)).code == "GC101"


@pytest.mark.parametrize("big", [1.0, 1e3, 1e5, 1e7, 1e9, 1e12])
def test_a_right_rule_never_fails(tmp_path: Path, big: float) -> None:
    assert checked(cancelling(tmp_path, big)).status in ("pass", "inconclusive")


def through_float64(x: Any) -> Any:
    """A kernel that is no more precise inside than float64."""
    return np.sin(x.astype(np.float64)).astype(x.dtype) if x.dtype == np.longdouble else np.sin(x)


@pytest.mark.parametrize("forward, least, most", [(through_float64, 1e-17, 1e-13), (np.sin, 1e-21, 1e-17)])
def test_rounding_inside_of_a_kernel_shows(tmp_path: Path, forward: Any, least: float, most: float) -> None:
    ops = {**OPS, SIN: replace(OPS[SIN], forward=forward)}
    tape = trace(cancelling(tmp_path, 1.0).graph, {"x": np.linspace(0.3, 0.9, 6)}, ops=ops, targets=["y"])
    program = Program(tape, [tape.named["x"].name], [tape.named["y"].name])
    noise = Longer(program, Budget()).noise
    assert least < noise.max() < most
    assert checked(cancelling(tmp_path, 3e5), ops).status in ("pass", "inconclusive")


@pytest.mark.parametrize("size", [1e-3, 1e-9, 1e-15])
def test_roughness_is_the_size_of_noise_whatever_the_slope(size: float) -> None:
    rng, t = np.random.default_rng(0), np.linspace(0, 1e-4, 9)[:, None]
    values = 3 + 5 * t + t**2 + size * rng.normal(size=(9, 400))
    assert 0.5 * size < np.median(roughness(values)) < 2 * size


def test_what_perturbs_across_a_branch_stays_so_beside_rows_that_are_seen_longer(tmp_path: Path) -> None:
    """The last entry lies next to the kink of a Relu, nearer than the finest step and farther than a tie."""
    text = """<ir_version: 9, opset_import: ["": 18]> g (double[3] x) => (double[3] y) {
        big = Constant <value = double {3e5}> ()  bound = Constant <value = double[3] {9, 9, 1.000000001}> ()
        a = Add (x, big)  b = Sub (a, big)  s = Sin (b)  q = Mul (s, s)
        under = Sub (x, bound)  r = Relu (under)  y = Add (q, r)
    }"""
    onnx.save(parser.parse_model(text), tmp_path / "m.onnx")
    model = gc.load(tmp_path / "m.onnx")
    [record] = gc.check(model, x_init_value={"x": [0.4, 0.7, 1.0]}, method="richardson", forward="internal").checks
    open_ = {entry.x: entry.reason for entry in record.worst}
    assert open_.pop((2,)) == "jump"
    assert set(open_.values()) <= {"noise", "curvature"}


NORMS = {
    "LayerNormalization": ((2, 6), 6, {}),
    "InstanceNormalization": ((1, 2, 6), 2, {}),
    "GroupNormalization": ((1, 4, 3), 4, {"num_groups": 2}),
}


@pytest.mark.one_in(8)
@pytest.mark.parametrize("mode", ["full", "nodes", "directional"])
@pytest.mark.parametrize("far", [1e8, 1e9, 1e10])
@pytest.mark.parametrize("norm", NORMS)
def test_a_norm_of_a_large_mean_is_told_by_both_sides_in_long_doubles(norm: str, far: float, mode: str):
    """Float64 leaves seven digits or fewer of the deviations: its rounding is no fault of the rule, and hides none."""
    shape, count, attrs = NORMS[norm]
    constants = {"w": np.linspace(0.5, 1.5, count), "b": np.linspace(-1, 1, count)}
    tested = model((norm, "x w b", "h", attrs), ("Sin", "h", "y"), x=shape, constants=constants)
    for seed in range(2):
        value = far + np.random.default_rng(seed).normal(size=shape)
        assert check(tested, value, mode=mode).status == "pass"
        wrong = check(tested, value, mode=mode, ops=with_rule("Sin", scaled("Sin", 1 + 5e-6)))
        assert wrong.status != "pass"


BY_HAND = (
    ("ReduceMean", "x last", "m"), ("Sub", "x m", "d"), ("Mul", "d d", "s"), ("ReduceMean", "s last", "v"),
    ("Sqrt", "v", "r"), ("Div", "d r", "q"), ("Sin", "q", "y"),
)  # fmt: skip


@pytest.mark.one_in(4)
@pytest.mark.parametrize("method", ["complex-step", "richardson", "central", "forward"])
@pytest.mark.parametrize("far", [1e8, 1e9, 1e10])
@pytest.mark.parametrize("norm", [*NORMS, "by hand"])
def test_no_method_fails_a_right_rule_of_a_norm_of_a_large_mean(norm: str, far: float, method: str):
    """Steps in proportion to x leap over all there is to see, and float64 takes the rule away from the complex step too."""
    shape, count, attrs = NORMS.get(norm, ((2, 6), 6, {}))
    constants = {"w": np.linspace(0.5, 1.5, count), "b": np.linspace(-1, 1, count), "last": np.array([-1])}
    nodes = BY_HAND if norm == "by hand" else ((norm, "x w b", "h", attrs), ("Sin", "h", "y"))
    tested = model(*nodes, x=shape, constants=constants)
    for seed in range(2):
        value = far + np.random.default_rng(seed).normal(size=shape)
        assert check(tested, value, method=method).status != "fail"
        for factor in (1 + 5e-6, 2.0):
            wrong = check(tested, value, method=method, ops=with_rule("Sin", scaled("Sin", factor)))
            assert wrong.status == "fail" if factor == 2 and method != "forward" else wrong.status != "pass"


def test_a_record_says_what_was_told_in_long_doubles():
    tested = model(
        ("LayerNormalization", "x w", "h"), ("Sin", "h", "y"), x=(2, 6), constants={"w": np.linspace(0.5, 1.5, 6)}
    )
    record = check(tested, 1e10 + np.random.default_rng(0).normal(size=(2, 6)), mode="full")
    assert any(
        note.endswith("compared in extended precision (long double): rounding hides them in float64")
        for note in record.notes
    )


def test_a_kernel_that_takes_no_long_complex_numbers_is_left_to_float64():
    def inverse(x: Any) -> Any:
        return np.linalg.inv(x)  # of which there is none for them

    tape = trace(model(("Det", "x", "y"), x=(2, 2)).graph, {"x": np.eye(2) * (1 + 2j)}, ops={**OPS, ("", "Det"):
                 replace(OPS["", "Det"], forward=inverse)})  # fmt: skip
    noise = Longer(Program(tape, ["x"], ["y"]), Budget()).noise
    assert noise.shape == (8,)


def test_both_sides_are_prepared_once_however_many_steps_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = 0

    class Counted(Program):
        def __init__(self, *args: Any) -> None:
            nonlocal prepared
            prepared += 1
            super().__init__(*args)

    monkeypatch.setattr(precise, "Program", Counted)
    deep = model(*(("Sin", f"t{i}" if i else "x", f"t{i + 1}") for i in range(30)))
    tape = trace(deep.graph, {"x": np.linspace(0.3, 0.9, 4)}, ops=OPS, targets=["t30"])
    backward = Backward(tape, tape.named["t30"].name, [tape.named["x"].name])
    precise.Both(backward, tape.named["x"].name, Budget())
    assert 0 < prepared <= 2
