"""A new option is one record of the table: every place takes it, shows it, keeps it and gives it to the check."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli import models

COMMAND = """
import json, sys
from dataclasses import dataclass
from gradcheck_cli import settings
from gradcheck_cli.settings import _setting

@dataclass(frozen=True, slots=True)
class Settings(settings.Settings):
    tempo: str = _setting(
        "moderato", "word", "Method", "Pace of the check. [default: {default}]", words=("largo", "moderato", "presto")
    )
    damping: float = _setting(0.5, "real", "Inputs", "Share that is lost. [default: {default}]", least=0, most=1)

    def __post_init__(self):
        if (self.tempo, self.damping) != ("moderato", 0.5):
            sys.stderr.write(f"seen {self.tempo} {self.damping}\\n")

settings.Settings = Settings
settings.OPTIONS.update(settings.table(Settings, settings.OF_A_RUN))
settings.SETTINGS.update({each.field: each for each in settings.OPTIONS.values() if each.field})
"""
MAIN = f"""{COMMAND}
from gradcheck_cli.cli import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
"""
API = f"""{COMMAND}
import gradcheck_cli as gc

model = gc.load("mlp.onnx")
for given in ({{"tempo": "largo"}}, {{"damping": 0.25}}, {{"tempo": "lento"}}, {{"damping": 3}}, {{"temp": 1}}):
    try:
        assert gc.check(model, "input", "loss", **given).exit_code == 0
    except ValueError as error:
        print(error)
"""
SPEC = """gradcheck: 1
ops:
  acme.Square: {inputs: [x], outputs: [y], forward: "y = Mul (x, x)", gradient: "dx = Mul (dy, x)"}
graphs:
  net: {inputs: {x: {shape: [2]}}, nodes: "y = acme.Square (x)", outputs: [y]}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model, a wrong one, and a command that knows two more options."""
    models.mlp(tmp_path / "mlp.onnx")
    (tmp_path / "wrong.gradcheck.yaml").write_text(SPEC)
    (tmp_path / "command.py").write_text(MAIN)
    (tmp_path / "api.py").write_text(API)
    return tmp_path


def run(folder: Path, *args: str, code: int = 0, script: str = "command.py", **env: str) -> tuple[str, str]:
    """Output of a command on both streams."""
    ran = subprocess.run(
        [sys.executable, script, *args], cwd=folder, capture_output=True, text=True, timeout=600, check=False,
        env={**os.environ, **env},
    )  # fmt: skip
    assert ran.returncode == code, ran.stderr
    return ran.stdout, ran.stderr


@pytest.mark.parametrize("command", [["check"], ["zoo", "run"], ["reproduce"]], ids=" ".join)
def test_the_help_shows_it_with_its_values_and_its_default(folder: Path, command: list[str]) -> None:
    said = " ".join(run(folder, *command, "--help")[0].replace("│", " ").split())
    assert "--tempo [largo|moderato|presto] Pace of the check. [default: moderato]" in said
    assert "--damping FLOAT RANGE [0<=x<=1] Share that is lost. [default: 0.5]" in said


@pytest.mark.slow
def test_it_may_be_typed_set_in_the_environment_or_written_in_a_file(folder: Path) -> None:
    ask = ("mlp.onnx", "--x", "input", "--y", "loss")
    assert "seen" not in run(folder, *ask)[1]
    assert "seen presto 0.25" in run(folder, *ask, "--tempo", "presto", "--damping", "0.25")[1]
    assert "seen largo 0.5" in run(folder, *ask, GRADCHECK_TEMPO="largo")[1]
    (folder / "mlp.gradcheck.yaml").write_text("gradcheck: 1\ndefaults: {damping: 0.125}\n")
    (folder / "gradcheck.toml").write_text('tempo = "presto"\n')
    assert "seen presto 0.125" in run(folder, *ask)[1]
    assert "seen largo 0.125" in run(folder, *ask, "--tempo", "largo")[1]


@pytest.mark.slow
def test_a_value_that_it_cannot_have_is_refused_everywhere(folder: Path) -> None:
    for args, env in ((("--tempo", "larg"), {}), ((), {"GRADCHECK_TEMPO": "larg"})):
        assert "Did you mean 'largo'?" in run(folder, "mlp.onnx", *args, code=2, **env)[1]
    assert "'--tempo'" in run(folder, "mlp.onnx", "--temo", "largo", code=2)[1]
    (folder / "gradcheck.toml").write_text("damping = 2\n")
    assert "gradcheck.toml:1:1: damping: 2.0 is not in the range 0<=x<=1." in run(folder, "mlp.onnx", code=2)[1]
    (folder / "gradcheck.toml").unlink()
    (folder / "mlp.gradcheck.yaml").write_text("gradcheck: 1\ndefaults:\n  tempo: lento\n")
    message = "mlp.gradcheck.yaml:3:10: defaults.tempo is 'lento'; known are largo, moderato, presto."
    assert message in run(folder, "mlp.onnx", code=2)[1]


def test_specs_have_it_as_a_key_and_their_schema_describes_it(folder: Path) -> None:
    schema = json.loads(run(folder, "schema", "spec")[0])
    for entry in ("Defaults", "CheckSpec", "ModelSpec"):
        assert schema["definitions"][entry]["properties"]["tempo"] == {
            "enum": ["largo", "moderato", "presto"], "type": "string", "default": "moderato",
            "description": "Pace of the check.",
        }  # fmt: skip
    (folder / "car.gradcheck.yaml").write_text(
        "gradcheck: 1\nchecks: [{model: mlp.onnx, x: input, y: loss, tempo: largo, damping: 1}]\n"
    )
    assert "seen largo 1.0" in run(folder, "car.gradcheck.yaml")[1]


def test_the_python_api_takes_it_as_a_keyword(folder: Path) -> None:
    out, err = run(folder, script="api.py")
    assert err.splitlines()[:2] == ["seen largo 0.5", "seen moderato 0.25"]
    assert out.splitlines() == [
        "tempo='lento' is not one of 'largo', 'moderato', 'presto'.",
        "damping=3 must be a number from 0 to 1.",
        "check() has no argument 'temp'. Did you mean 'tempo'?",
    ]


@pytest.mark.slow
def test_bundles_keep_it_and_reproduce_repeats_it(folder: Path) -> None:
    def failing(*args: str) -> dict[str, Any]:
        ask = ("wrong.gradcheck.yaml", "--save-failures", "saved", "--output-format", "json", *args)
        [record] = json.loads(run(folder, *ask, code=1)[0])["checks"]
        assert isinstance(record, dict)
        return record

    record = failing("--tempo", "largo")
    assert " --tempo largo " in record["reproduce"]
    assert json.loads((folder / record["bundle"] / "bundle.json").read_text())["settings"]["tempo"] == "largo"
    again = run(folder, "reproduce", record["bundle"], code=1)[1]
    assert "seen largo 0.5" in again
    assert "the same as when it was saved" in again
    assert "seen presto 0.5" in run(folder, "reproduce", record["bundle"], "--tempo", "presto", code=1)[1]
    assert failing("--tempo", "presto")["bundle"] != record["bundle"]


@pytest.mark.slow
def test_a_run_over_many_models_keeps_it_for_the_next_time(folder: Path) -> None:
    run(folder, "zoo", "mlp.onnx", "--tempo", "largo", "--run", "kept")
    place = folder / "kept" / "run.json"
    kept = json.loads(place.read_text())
    assert kept["options"]["tempo"] == "largo"
    run(folder, "zoo", "resume", "kept")
    place.write_text(json.dumps({**kept, "options": {"tempo": "lento"}}))
    assert "tempo cannot be 'lento'" in run(folder, "zoo", "resume", "kept", code=2)[1]
