"""Every setting of a spec has an effect in `checks` and in `defaults`, or is refused; never is one ignored."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import numpy_helper

from gradcheck_cli.formats.yaml.fields import CheckSpec, SettingsKeys
from tests.cli.conftest import Command
from tests.cli.models import QUANTIZED

SPEC = """gradcheck: 1
ops:
  acme.Square:
    inputs: [x]
    outputs: [y]
    forward: |
      y = Mul (x, x)
    gradient: |
      dx = Mul (dy, x)
graphs:
  net:
    inputs: {x: {shape: [N, 4]}}
    params: {W: {shape: [4, 4], init: orthogonal}}
    nodes: |
      h = MatMul (x, W)
      s = acme.Square (h)
      r = Relu (h)
      y = Add (s, r)
    outputs: [y]
init: {trained: {W: {kind: constant, value: 3.0}}}
DEFAULTS
checks: [{CHECK}]
"""
EFFECTIVE = {
    "seed": "5", "points": "3", "point": "2", "delta": "0.01", "method": "richardson", "mode": "directional",
    "dtype": "model", "rtol": "{x: 10}", "atol": "10", "val_range": "[5, 6]",
    "x_shape": "{x: [5, 4]}", "dims": "{N: 3}", "params": "true", "param": "W", "test_data": "data", "show": "1",
    "timeout": "0.0001", "compat": "tf", "second_order": "true",
    "grad": "{x: s}", "grad_model": "net.gradcheck.yaml",
}  # fmt: skip
REFUSED = {
    "forward": "onnxruntime",
}  # fmt: skip
OF_A_CHECK = {
    "name": "other", "graph": "net", "x": "h", "y": "r", "init_targets": "trained",
    "x_init_value": "[[0, 0, 0, 0]]", "extra_feed_dict": "{h: [[1, 2, 3, 4]]}", "expect": "{status: fail}",
}  # fmt: skip


def test_every_setting_is_here() -> None:
    assert set(SettingsKeys.model_fields) == {
        *EFFECTIVE,
        *REFUSED,
        "coloring",
        "max_entries",
        "max_inconclusive",
        "straight_through",
    }
    assert set(CheckSpec.model_fields) == {*SettingsKeys.model_fields, *OF_A_CHECK, "model"}


def outcome(gradcheck: Command, folder: Path, defaults: str = "", check: str = "") -> tuple[Any, ...]:
    """Result of a run of the spec."""
    data = folder / "data"
    data.mkdir(exist_ok=True)
    array = numpy_helper.from_array(np.full((5, 4), 0.25, np.float32))
    (data / "input_0.pb").write_bytes(array.SerializeToString())
    text = SPEC.replace("DEFAULTS", f"defaults: {{{defaults}}}" if defaults else "").replace("CHECK", check)
    (folder / "net.gradcheck.yaml").write_text(text)
    ran = gradcheck("net.gradcheck.yaml")
    return ran.code, re.sub(r"in TIME|\s+reproduce.*", "", ran.out), ran.err


def test_straight_through_has_an_effect(gradcheck: Command, folder: Path) -> None:
    text = QUANTIZED.replace("y: y}", "y: y, straight_through: true}")
    reports = []
    for content in (QUANTIZED, text):
        (folder / "q.gradcheck.yaml").write_text(content)
        reports.append(gradcheck("q.gradcheck.yaml", "--output-format", "json").out)
    assert '"norm": 0.0' in reports[0]
    assert '"norm": 0.0' not in reports[1]


@pytest.mark.slow
def test_coloring_has_an_effect(gradcheck: Command, folder: Path) -> None:
    colors = []
    for where in ("", ", coloring: false"):
        text = f"gradcheck: 1\nchecks: [{{name: a, model: conv.onnx, x: image, y: c, dims: {{N: 32}}{where}}}]\n"
        (folder / "c.gradcheck.yaml").write_text(text)
        [record] = json.loads(gradcheck("c.gradcheck.yaml", "--output-format", "json").out)["checks"]
        colors.append(record["coloring"])
    assert colors[0]["colors"] < colors[0]["rows"]
    assert colors[1] == {}


@pytest.mark.one_in(6)
@pytest.mark.parametrize("name, value", EFFECTIVE.items(), ids=EFFECTIVE)
def test_a_setting_has_an_effect(gradcheck: Command, folder: Path, name: str, value: str) -> None:
    plain = outcome(gradcheck, folder)
    there = outcome(gradcheck, folder, check=f"{name}: {value}")
    assert there != plain
    assert outcome(gradcheck, folder, defaults=f"{name}: {value}") == there or name == "seed"  # parameters have it too


@pytest.mark.parametrize("show", [1, 2])
def test_so_many_entries_are_shown_as_the_spec_says(gradcheck: Command, folder: Path, show: int) -> None:
    assert f"... {32 - show} more, --show 32" in outcome(gradcheck, folder, check=f"show: {show}")[1]


def test_a_share_of_inconclusive_entries_is_accepted(gradcheck: Command, folder: Path) -> None:
    kinked = "y: r, method: forward, delta: 5.0"
    assert outcome(gradcheck, folder, check=kinked)[0] == 3
    assert outcome(gradcheck, folder, check=f"{kinked}, max_inconclusive: 1")[0] == 0
    assert outcome(gradcheck, folder, "max_inconclusive: 1", kinked)[0] == 0


def test_max_entries_has_an_effect_on_a_sample(gradcheck: Command, folder: Path) -> None:
    assert "3/" in outcome(gradcheck, folder, check="mode: sampled, max_entries: 3")[1]
    assert (
        outcome(gradcheck, folder, "max_entries: 3", "mode: sampled")[1]
        != outcome(gradcheck, folder, "mode: sampled")[1]
    )


@pytest.mark.parametrize("mode", ["full", "nodes", "directional", "sampled"])
def test_a_spec_chooses_the_mode(gradcheck: Command, folder: Path, mode: str) -> None:
    code, out, _ = outcome(gradcheck, folder, check=f"mode: {mode}")
    assert (code, re.search(rf"{mode}( \(random projections\))?, complex-step", out) is not None) == (1, mode != "full")


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name, value", OF_A_CHECK.items(), ids=OF_A_CHECK)
def test_what_a_check_says_has_an_effect(gradcheck: Command, folder: Path, name: str, value: str) -> None:
    assert outcome(gradcheck, folder, check=f"{name}: {value}") != outcome(gradcheck, folder) or name == "graph"


@pytest.mark.parametrize("name, value", REFUSED.items())
def test_what_cannot_be_done_is_refused(gradcheck: Command, folder: Path, name: str, value: str) -> None:
    for where in ({"check": f"{name}: {value}"}, {"defaults": f"{name}: {value}"}):
        code, out, err = outcome(gradcheck, folder, **where)
        assert (code, out) == (2, "")
        assert "--forward onnxruntime runs ONNX files; net.gradcheck.yaml is none." in err


def test_a_list_of_models_stands_in_a_file_of_its_own(gradcheck: Command, folder: Path) -> None:
    (folder / "both.gradcheck.yaml").write_text(
        SPEC.replace("DEFAULTS", "models: [{path: a.onnx}]").replace("CHECK", "")
    )
    ran = gradcheck("both.gradcheck.yaml")
    assert ran.code == 2
    assert "both.gradcheck.yaml:21:1: a list of models stands in a file of its own" in ran.err
