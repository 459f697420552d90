"""Models held against records of their frameworks: planted losses are named, right files pass, bad records are refused."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import gradcheck_cli as gc
from gradcheck_cli.errors import UsageError
from gradcheck_cli.results.record import Report
from tests.cli.conftest import Command, entered, gradcheck
from tests.reference.planted_losses import FOLDER

__all__ = ["gradcheck"]  # a fixture

FROZEN = "a constant may be frozen from the example"
ZERO = "is not zero, the file's is zero everywhere"
DETACHED = "is zero everywhere, the file's is not"
OTHER = "is not the file's"
TRAINING = "more.0 was recorded in training mode"
LOSSES = {
    "detach": DETACHED,
    "no_grad": DETACHED,
    "custom_function": OTHER,
    "straight_through": ZERO,
    "straight_through_sum": ZERO,
    "sign_estimator": ZERO,
    "frozen_value": FROZEN,
    "frozen_array": FROZEN,
    "frozen_layer": ZERO,
    "integer_cast": ZERO,
    "clipped_by_numpy": FROZEN,
    "hard_argmax": ZERO,
    "detached_copy": OTHER,
    "detached_maximum": OTHER,
    "detached_norm": OTHER,
    "hook": OTHER,
    "reversal": OTHER,
    "fake_quantize": ZERO,
    "batch_norm_mode": TRAINING,
    "dropout_mode": TRAINING,
    "half_constants": "is not what half_constants.gradcheck.npz says",
    "jax_stop_gradient": OTHER,
    "jax_custom_vjp": OTHER,
    "tf_stop_gradient": OTHER,
    "tf_custom_gradient": OTHER,
}
RIGHT = ("right", "jax_right", "tf_right")
SUM = """<ir_version: 8, opset_import: ["" : 17]> net (float[3] x) => (float[3] y) {
    b = Identity (a)  p = Mul (x, a)  q = Mul (p, b)  y = Add (q, c) }"""
PRODUCT = """<ir_version: 8, opset_import: ["" : 17]> net (float[3] x) => (float[3] y) {
    p = Mul (x, a)  q = Mul (p, a)  y = Add (q, c) }"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with a right model and its record."""
    for suffix in ("onnx", "gradcheck.npz"):
        shutil.copy(FOLDER / f"right.{suffix}", tmp_path / f"net.{suffix}")
    return entered(tmp_path, monkeypatch)


def checked(path: Path) -> Report:
    """The report on a model beside its record."""
    return gc.check(gc.load(path))


def said(report: Report) -> str:
    """All that is said of what fails."""
    return "\n".join(f"{c.message} {c.forward.get('reason', '')}" for c in report.checks if not c.passes and c.claim)


def members(path: Path) -> dict[str, Any]:
    """The arrays of a record."""
    with np.load(path) as arrays:
        return dict(arrays)


def spoiled(path: Path, change: Callable[[dict[str, Any], dict[str, Any]], object]) -> None:
    """Writes a record anew with its arrays and its description changed."""
    arrays = members(path)
    about = json.loads(arrays["record"].tobytes())
    change(arrays, about)
    if "record" in arrays:
        arrays["record"] = np.frombuffer(json.dumps(about).encode(), np.uint8)
    np.savez(path, **arrays)


def written(folder: Path, text: str, weights: Mapping[str, list[float]], framework: Callable[..., Any]) -> Path:
    """A model with weights, and a record of a function of x and all parameters, as JAX computes it."""
    pytest.importorskip("jax")
    from gradcheck_cli.reference import recording

    model = onnx.parser.parse_model(text)
    held = {name: np.float32(values) for name, values in weights.items()}
    used = {name for node in model.graph.node for name in node.input}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(v, n) for n, v in held.items() if n in used)
    onnx.save(model, folder / "sum.onnx")
    recording.jax(framework, np.float32([0.3, -0.5, 2]), folder / "sum.gradcheck.npz", params=held)
    return folder / "sum.onnx"


@pytest.mark.parametrize("name", LOSSES)
def test_a_gradient_that_an_exporter_lost_is_named(name: str) -> None:
    report = checked(FOLDER / f"{name}.onnx")
    assert report.exit_code == 1
    assert LOSSES[name] in said(report)


def test_every_planted_model_is_in_the_table() -> None:
    assert {path.stem for path in FOLDER.glob("*.onnx")} == {*LOSSES, *RIGHT, "folded_scale"}


@pytest.mark.parametrize("name", RIGHT)
def test_a_file_with_the_gradient_of_its_framework_passes(name: str) -> None:
    report = checked(FOLDER / f"{name}.onnx")
    about = json.loads(members(FOLDER / f"{name}.gradcheck.npz")["record"].tobytes())
    held = [check for check in report.checks if check.claim]
    assert (report.exit_code, len(held)) == (0, len(about["parameters"]) + about["points"])
    assert all(check.status == "pass" and check.forward["agrees"] for check in held)


def test_parameters_are_found_by_their_values_transposed() -> None:
    report = checked(FOLDER / "jax_right.onnx")
    assert {c.x: c.claim["by"] for c in report.checks if c.claim}["w"] == "jax_right.gradcheck.npz:dense.kernel"


def test_folded_parameters_are_listed_and_no_failure() -> None:
    report = checked(FOLDER / "folded_scale.onnx")
    (note,) = [note for check in report.checks for note in check.notes if "folding" in note]
    assert (report.exit_code, note.partition("leaves them: ")[2]) == (0, "layer1.weight, layer1.bias, layer2.weight")


def test_what_is_not_in_the_file_is_listed_and_no_failure(folder: Path) -> None:
    def renamed(arrays: dict[str, Any], about: dict[str, Any]) -> None:
        about["parameters"][0] |= {"name": "gone", "digest": "0" * 64}

    spoiled(folder / "net.gradcheck.npz", renamed)
    report = checked(folder / "net.onnx")
    assert report.exit_code == 0
    assert any("not in the file by name or value: gone" in note for check in report.checks for note in check.notes)


def test_none_leaves_the_record_out(gradcheck: Command) -> None:
    ran = gradcheck("net.onnx", "--grad", "none")
    assert (ran.code, "npz" in ran.out) == (0, False)


def test_x_chooses_among_recorded_gradients_and_says_so(gradcheck: Command) -> None:
    ran = gradcheck("net.onnx", "--x", "x", "--output-format", "json")
    found = json.loads(ran.out)["checks"]
    assert {check["x"] for check in found} == {"x"}
    assert "net.gradcheck.npz: --x leaves out 4 of its 5 gradients" in found[0]["notes"]


def test_an_input_that_the_file_lost_is_a_failure(folder: Path) -> None:
    def added(arrays: dict[str, Any], about: dict[str, Any]) -> None:
        about["inputs"].append("mask")
        arrays |= {f"{i}/{kind}/1": np.ones(7, np.float32) for i in range(2) for kind in ("input", "gradient")}

    spoiled(folder / "net.gradcheck.npz", added)
    report = checked(folder / "net.onnx")
    assert report.exit_code == 1
    assert f"the recorded gradient of mask {ZERO}" in said(report)


def test_parameters_that_an_exporter_made_one_by_identity_have_gradients_of_their_own(tmp_path: Path) -> None:
    weights = {"a": [1.0, 1, 1], "b": [1.0, 1, 1], "c": [0.5, 1, 2]}
    path = written(tmp_path, SUM, weights, lambda p, x: x * p["a"] * p["b"] + p["c"])
    model = onnx.load(path)
    kept = [tensor for tensor in model.graph.initializer if tensor.name != "b"]
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
    onnx.save(model, path)
    report = checked(path)
    assert (report.exit_code, {c.x for c in report.checks if c.claim}) == (0, {"x", "a", "b", "c"})


def test_parameters_that_are_one_tensor_of_the_file_are_held_against_it_together(tmp_path: Path) -> None:
    weights = {"a": [1.0, 1, 1], "b": [1.0, 1, 1], "c": [0.5, 1, 2]}
    report = checked(written(tmp_path, PRODUCT, weights, lambda p, x: x * p["a"] * p["b"] + p["c"]))
    assert report.exit_code == 0
    assert "sum.gradcheck.npz:a + b" in {c.claim["by"] for c in report.checks if c.claim}


def drop(key: str) -> Callable[..., object]:
    return lambda arrays, about: arrays.pop(key)


def put(key: str, values: Any) -> Callable[..., object]:
    return lambda arrays, about: arrays.update({key: values})


def tell(**fields: Any) -> Callable[..., object]:
    return lambda arrays, about: about.update(fields)


BAD = {
    "no description": (drop("record"), "cannot be read"),
    "no output": (drop("0/output/0"), "has no array 0/output/0"),
    "no input": (drop("0/input/0"), "has no array 0/input/0"),
    "text for numbers": (put("0/cotangent/0", np.array(["a"])), "does not hold numbers"),
    "another shape": (put("0/gradient/0", np.ones((2, 2), np.float32)), "0/gradient/0 has shape [2, 2], not [3, 4]"),
    "another cotangent": (put("0/cotangent/0", np.ones(2, np.float32)), "0/cotangent/0 has shape [2], not [3, 3]"),
    "objects": (put("0/cotangent/0", np.array([{}], object)), "not unpickled"),
    "another schema": (tell(schema="x"), "its schema is not gradcheck.record/1"),
    "too many points": (tell(points=1000), "its schema"),
    "a wrong kind": (tell(inputs=3), "cannot be read"),
    "one name twice": (tell(inputs=["layer1.weight"]), "two of its tensors have one name"),
    "more outputs": (tell(outputs=["a", "b"]), "it has 2 outputs, and the model has 1"),
    "an unknown input": (tell(inputs=["q\x1b[31m", "r"]), "has no array 0/input/1"),
    "a negative size": (
        lambda arrays, about: about["parameters"][0].update(shape=[-1, 2]), "a parameter has a negative size",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_bad_record_is_refused_with_what_is_wrong(gradcheck: Command, folder: Path, name: str) -> None:
    change, reason = BAD[name]
    spoiled(folder / "net.gradcheck.npz", change)
    ran = gradcheck("net.onnx")
    assert (ran.code, reason in ran.err, "--grad none" in ran.err) == (2, True, True), ran.err
    assert "\x1b" not in ran.err


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 and no more", b"\x93NUMPY\x01\x00"])
def test_a_file_that_is_no_record_is_refused(gradcheck: Command, folder: Path, content: bytes) -> None:
    (folder / "net.gradcheck.npz").write_bytes(content)
    assert gradcheck("net.onnx").code == 2


def test_a_saved_failure_has_its_record_with_it(gradcheck: Command, folder: Path) -> None:
    for suffix in ("onnx", "gradcheck.npz"):
        shutil.copy(FOLDER / f"detach.{suffix}", folder / f"net.{suffix}")
    assert gradcheck("net.onnx", "--save-failures", "kept").code == 1
    (bundle,) = (folder / "kept").glob("net*")
    (folder / "net.gradcheck.npz").unlink()
    (folder / "net.onnx").unlink()
    again = gradcheck("reproduce", str(bundle))
    assert (again.code, DETACHED in again.out) == (1, True), again.out + again.err


def test_recording_needs_no_framework_before_it_is_used() -> None:
    code = "import sys, gradcheck_cli.reference.recording; print({'torch', 'jax', 'tensorflow'} & {*sys.modules})"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "set()"


def test_a_record_leaves_module_and_random_numbers_as_they_were(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from gradcheck_cli.reference import recording

    module, x = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2)).train(), torch.randn(4, 3)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    state = torch.random.get_rng_state()
    recording.torch(module, x, tmp_path / "net.gradcheck.npz")
    assert torch.equal(state, torch.random.get_rng_state())
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert all(parameter.grad is None for parameter in module.parameters())


def test_records_are_of_float32_or_float64(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from gradcheck_cli.reference import recording

    for dtype in (torch.bfloat16, torch.float16):
        with pytest.raises(UsageError, match="float32 or float64"):
            recording.torch(torch.nn.Tanh(), torch.ones(2, dtype=dtype), tmp_path / "net.gradcheck.npz")


@pytest.mark.slow
def test_exported_modules_pass_beside_their_records(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("onnxscript")
    from tests.reference.parity_modules import LOST, modules, written

    files = [(name, exporter, path) for name, exporter, path, _ in written(tmp_path) if path is not None]
    failed = {(name, exporter) for name, exporter, path in files if checked(path).exit_code}
    assert len(modules()) >= 60
    assert len(files) >= 110
    assert failed == {*LOST}


NET = """<ir_version: 8, opset_import: ["" : 17]> net (float[3,4] x) => (float[3,2] y) {
    p = MatMul (x, W)  q = Mul (p, c)  r = LeakyRelu <alpha = 0.01> (q)  y = Mul (r, b) }"""
SQUARE = """<ir_version: 8, opset_import: ["" : 17]> net (float[3,4] x) => (float[3,4] y) { y = Mul (x, x) }"""
WIDE = np.random.default_rng(3)
WEIGHTS = {"W": WIDE.normal(size=(4, 2)), "b": WIDE.normal(size=2), "c": np.array(2**-0.5)}
AT = WIDE.normal(size=(3, 4)).astype(np.float32).astype(np.float64)


def net(factor: float, weights: Mapping[str, Any]) -> Any:
    """A float64 module that the file is the float32 export of, with the gradient by W times a factor."""
    torch = pytest.importorskip("torch")

    class Net(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            for name, values in weights.items():
                self.register_parameter(name, torch.nn.Parameter(torch.tensor(values), requires_grad=name != "c"))

        def forward(self, x: Any) -> Any:
            if not weights:
                return x * x
            w = factor * self.W + (1 - factor) * self.W.detach()
            return torch.nn.functional.leaky_relu(x @ w * self.c, 0.01) * self.b

    return Net().double()


def recorded_wide(folder: Path, text: str, factor: float, weights: Mapping[str, Any]) -> Report:
    """The report on a float32 file beside a float64 record."""
    pytest.importorskip("torch")
    import torch

    from gradcheck_cli.reference import recording

    model = onnx.parser.parse_model(text)
    model.graph.initializer.extend(onnx.numpy_helper.from_array(np.float32(v), n) for n, v in weights.items())
    onnx.save(model, folder / "net.onnx")
    recording.torch(net(factor, weights), torch.tensor(AT), folder / "net.gradcheck.npz")
    return checked(folder / "net.onnx")


@pytest.mark.parametrize("kept", [True, False])
def test_a_float32_file_passes_beside_a_record_in_float64(tmp_path: Path, kept: bool) -> None:
    weights = {n: np.float64(np.float32(v)) if kept and n != "c" else v for n, v in WEIGHTS.items()}
    report = recorded_wide(tmp_path, NET, 1.0, weights)
    held = {c.x: (c.status, c.forward["agrees"]) for c in report.checks if c.claim}
    assert (report.exit_code, held) == (0, dict.fromkeys(("x", "W", "b"), ("pass", True)))
    assert not any("not compared" in note for c in report.checks for note in c.notes)
    rounded = [note for c in report.checks for note in c.notes if "float64 there and float32 in the file" in note]
    assert [note.partition("by that: ")[2] for note in rounded] == ([] if kept else ["W, b"])


@pytest.mark.parametrize("factor", [2.0, 1 + 1e-4])
@pytest.mark.parametrize("kept", [True, False])
def test_a_wrong_gradient_recorded_in_float64_fails_beside_a_float32_file(
    tmp_path: Path, kept: bool, factor: float
) -> None:
    weights = {n: np.float64(np.float32(v)) if kept else v for n, v in WEIGHTS.items()}
    report = recorded_wide(tmp_path, NET, factor, weights)
    assert {c.x for c in report.checks if c.status == "fail"} == {"W"}
    assert not any(c.forward_differs for c in report.checks)


def test_inputs_recorded_in_float64_are_not_rounded_to_those_of_the_file(tmp_path: Path) -> None:
    report = recorded_wide(tmp_path, SQUARE, 1.0, {})
    assert (report.exit_code, len([c for c in report.checks if c.claim])) == (0, 2)
    assert max(c.forward["bound"] for c in report.checks if c.claim) < 1e-13
