"""`gradcheck inspect`: tensors, targets, what blocks them, what a check would cost."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, parser, save

from tests.cli import models
from tests.cli.conftest import Command

SPEC = """gradcheck: 1
graphs:
  net:
    inputs: {x: {shape: [3]}}
    nodes: |
      h = Mul (x, x)
      big = Greater (h, x)
    outputs: [h, big]
"""


def test_what_a_file_does_not_declare_is_read_off_a_run(gradcheck: Command, folder: Path) -> None:
    (folder / "net.gradcheck.yaml").write_text(SPEC)
    lines = gradcheck("inspect", "net.gradcheck.yaml").out.splitlines()
    assert lines[4:7] == [
        "outputs (2)",
        "  h    [3]  float    checked as y",
        "  big  [3]  bool     none: not of a float type",
    ]
    [record] = json.loads(gradcheck("net.gradcheck.yaml", "--output-format", "json").out)["checks"]
    assert record["y"] == "h"


def test_a_model_whose_outputs_turn_out_to_hold_no_floats_is_unsupported(gradcheck: Command, folder: Path) -> None:
    (folder / "net.gradcheck.yaml").write_text(SPEC.replace("[h, big]", "[big]"))
    ran = gradcheck("net.gradcheck.yaml")
    assert ran.code == 5
    assert ran.err.startswith("error GC501: net.gradcheck.yaml has no float output: there is no gradient to check.")


def test_a_side_car_names_the_models_that_are_inspected(gradcheck: Command, folder: Path) -> None:
    (folder / "a.gradcheck.yaml").write_text("gradcheck: 1\nchecks: [{model: mlp.onnx}, {model: conv.onnx}]\n")
    found = json.loads(gradcheck("inspect", "a.gradcheck.yaml", "--output-format", "json").out)
    assert [each["uri"] for each in found] == ["mlp.onnx", "conv.onnx"]


@pytest.mark.parametrize("file, text", [
    ("gradcheck.toml", "dim = {N = 7}\n"),
    ("mlp.gradcheck.yaml", "gradcheck: 1\ndefaults: {dims: {N: 7}}\n"),
])  # fmt: skip
def test_files_that_say_how_a_model_is_checked_count(gradcheck: Command, folder: Path, file: str, text: str) -> None:
    (folder / file).write_text(text)
    assert "dims       N=7\n" in gradcheck("inspect", "mlp.onnx").out
    assert "dims       N=3\n" in gradcheck("inspect", "mlp.onnx", "--dim", "N=3").out


def test_the_environment_counts(gradcheck: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADCHECK_DIM", "N=7")
    monkeypatch.setenv("GRADCHECK_OUTPUT_FORMAT", "jsonl")  # of check alone
    assert "dims       N=7\n" in gradcheck("inspect", "mlp.onnx").out


def test_of_several_models_one_that_cannot_be_read_hides_no_other(gradcheck: Command) -> None:
    ran = gradcheck("inspect", "mlp.onnx", "lfs.onnx", "none/*.onnx", "conv.onnx")
    assert ran.code == 4
    assert [line.split()[0] for line in ran.out.splitlines() if "opset" in line] == ["mlp.onnx", "conv.onnx"]
    assert ran.err.splitlines() == [
        "error GC701: nothing to check: 'none/*.onnx' matches no file",
        "error GC403: lfs.onnx is a Git LFS pointer (63 bytes), not a model. `git lfs pull` fetches the model.",
    ]


ENDLESS = """<ir_version: 8, opset_import: ["" : 18]> net (float[2] x) => (float[2] y) {
    always = Constant <value = bool {1}> ()
    y = Loop (, always, x) <body = b (int64 i, bool before, float[2] s) => (bool after, float[2] next) {
        after = Identity (before)
        next = Tanh (s)
    }>
}"""


def test_the_time_limit_of_a_model_bounds_its_run_and_hides_no_other_facts(gradcheck: Command, folder: Path) -> None:
    save(parser.parse_model(ENDLESS), folder / "endless.onnx")
    ran = gradcheck("inspect", "endless.onnx", "mlp.onnx", "--timeout", "0.5s")
    assert (ran.code, ran.err) == (0, "")
    assert "  x  [2]  float32  checked as x\n" in ran.out
    assert "does not run  took longer than 0.5 s (--timeout)\n" in ran.out
    assert "\nmlp.onnx  opset" in ran.out


def test_a_list_of_models_has_nothing_to_inspect(gradcheck: Command, folder: Path) -> None:
    (folder / "zoo.gradcheck.yaml").write_text("gradcheck: 1\nmodels: [{path: mlp.onnx}]\n")
    ran = gradcheck("inspect", "zoo.gradcheck.yaml")
    assert (ran.code, ran.out) == (7, "")


@pytest.mark.parametrize("letter", ["n", "入"])
def test_many_inputs_with_long_names_fit_80_columns(
    gradcheck: Command, folder: Path, letter: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    inputs = [helper.make_tensor_value_info(f"{i}/{letter * 60}", TensorProto.FLOAT, [2, 3]) for i in range(300)]
    output = helper.make_tensor_value_info("y" * 90, TensorProto.FLOAT, [2, 3])
    node = helper.make_node("Sum", [each.name for each in inputs], [output.name])
    graph = helper.make_graph([node], "many", inputs, [output])
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), folder / "many.onnx")
    lines = gradcheck("inspect", "many.onnx").out.splitlines()
    assert "  ... 260 more, -v" in lines
    assert "... 280 more, -v" in lines
    assert max(len(line) + line.count(letter) * (letter != "n") for line in lines) <= 80
    assert len(gradcheck("inspect", "many.onnx", "-v").out.splitlines()) > 600


def test_a_model_whose_only_table_is_constant_by_its_values_says_how_to_check_it(
    gradcheck: Command, folder: Path
) -> None:
    models.save(folder / "net.onnx", "net (int64[2] i) => (float[2,3] y) { y = Gather (t, i) }", t=np.ones((4, 3)))
    said = gradcheck("inspect", "net.onnx").out.splitlines()[-1]
    assert said == "there is no gradient to check but that by a constant: --param t"
    assert gradcheck("net.onnx", "--params").err.rstrip().endswith("Check it: --param t")
    assert gradcheck("net.onnx", "--param", "t").code == 0
