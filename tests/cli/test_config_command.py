"""`gradcheck config`: every setting in force, and the place that says so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gradcheck_cli.settings import options_at
from tests.cli.conftest import Command

CONFIG = """rtol = 1e-3
points = 2
[val-range]
input = [0, 1]
aux_in = [2, 3]
"""
SIDE_CAR = """gradcheck: 1
defaults: {atol: 1.0e-9}
checks:
  - model: mlp.onnx
    x: input
    points: 4
    val_range: {input: [0.25, 0.5]}
"""


@pytest.fixture
def configured(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (folder / "gradcheck.toml").write_text(CONFIG)
    (folder / "mlp.gradcheck.yaml").write_text(SIDE_CAR)
    monkeypatch.setenv("GRADCHECK_SEED", "3")
    monkeypatch.delenv("GRADCHECK_SAVE_FAILURES", raising=False)
    return folder


def rows(gradcheck: Command, *args: str) -> dict[str, list[tuple[str, str]]]:
    """Values of each setting, with their origins, as scripts get them."""
    ran = gradcheck("config", *args, "--output-format", "json")
    assert (ran.code, ran.err) == (0, "")
    [check] = json.loads(ran.out)["checks"]
    found: dict[str, list[tuple[str, str]]] = {}
    for row in check["settings"]:
        found.setdefault(row["setting"], []).append((row["value"], row["where"] or row["source"]))
    return found


def test_every_setting_says_where_it_comes_from(configured: Path, gradcheck: Command) -> None:
    found = rows(gradcheck, "mlp.onnx", "--mode", "full", "--rtol", "input:1e-5")
    assert {name: found[name] for name in ("x", "points", "seed", "mode", "rtol", "atol", "val_range", "show")} == {
        "x": [("input", "mlp.gradcheck.yaml:5")],
        "points": [("4", "mlp.gradcheck.yaml:6")],
        "seed": [("3", "GRADCHECK_SEED")],
        "mode": [("full", "command line")],
        "rtol": [("0.001", "gradcheck.toml:1"), ("input:1e-5", "command line")],
        "atol": [("1e-09", "mlp.gradcheck.yaml:2")],
        "val_range": [("input: 0.25,0.5", "mlp.gradcheck.yaml:7"), ("aux_in:2,3", "gradcheck.toml:3")],
        "show": [("3", "default")],
    }
    assert [*found] == [option.name for option in options_at("check")]


def test_what_speaks_of_every_tensor_hides_weaker_places(configured: Path, gradcheck: Command) -> None:
    assert rows(gradcheck, "mlp.onnx", "--val-range", "0,2")["val_range"] == [("0,2", "command line")]


def test_without_a_model_it_is_about_the_folder(configured: Path, gradcheck: Command) -> None:
    found = rows(gradcheck)
    assert (found["points"], found["x"][0][1]) == ([("2", "gradcheck.toml:2")], "default")
    shown = gradcheck("config").out.splitlines()
    assert shown[0].split() == ["setting", "value", "from"]
    assert "points" in {line.split()[0] for line in shown if line.endswith("gradcheck.toml:2")}


def test_each_check_of_a_spec_has_a_table(configured: Path, gradcheck: Command) -> None:
    out = gradcheck("config", "wrong.gradcheck.yaml", "mlp.onnx").out
    assert [line for line in out.splitlines() if line and " " not in line] == [
        "square/wrong", "square/known", "sum/right", "mlp.onnx",
    ]  # fmt: skip
    assert [line.split()[-1] for line in out.splitlines() if line.startswith("y  ")][:3] == [
        "wrong.gradcheck.yaml:18", "wrong.gradcheck.yaml:19", "wrong.gradcheck.yaml:21",
    ]  # fmt: skip


@pytest.mark.parametrize("file, text, args, code, said", [
    ("gradcheck.toml", "rtoll = 1\n", ["config"], 2, "gradcheck.toml:1:1: unknown key 'rtoll'"),
    ("mlp.gradcheck.yaml", "gradcheck: 1\nchecks: [{detla: 1}]\n", ["config", "mlp.onnx"], 2, "unknown key 'detla'"),
    ("other", "", ["config", "missing.onnx"], 4, "missing.onnx does not exist"),
    ("other", "", ["config", "*.tflite"], 7, "matches no file"),
    ("other", "", ["config", "--rtoll", "1"], 2, "No such option"),
])  # fmt: skip
def test_what_is_wrong_is_said(
    folder: Path, gradcheck: Command, file: str, text: str, args: list[str], code: int, said: str
) -> None:
    (folder / file).write_text(text)
    ran = gradcheck(*args)
    assert (ran.code, ran.out, said in ran.err) == (code, "", True), ran.err


def test_no_model_is_read(folder: Path, gradcheck: Command) -> None:
    assert gradcheck("config", "lfs.onnx").code == 0
