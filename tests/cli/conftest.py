"""A folder of small models to work in, and the command as a function."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from gradcheck_cli.cli import main
from tests.cli import models


class Ran(NamedTuple):
    """Exit code of a run, with stdout and stderr from which times are taken out."""

    code: int
    out: str
    err: str


Command = Callable[..., Ran]


def entered(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder, from now on the working folder, with nothing of this terminal around it."""
    monkeypatch.chdir(folder)
    for name in ("FORCE_COLOR", "NO_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    return folder


def typed(capsys: pytest.CaptureFixture[str], *args: str) -> Ran:
    """A command line run in this process."""
    code = main(args)
    captured = capsys.readouterr()
    return Ran(code, re.sub(r"in \d[\dm. ]*s\b", "in TIME", captured.out), captured.err)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with one model of each kind; no terminal and no settings around it."""
    models.mlp(tmp_path / "mlp.onnx")
    models.conv(tmp_path / "conv.onnx")
    models.embedding(tmp_path / "embedding.onnx")
    models.log(tmp_path / "log.onnx")
    models.unknown_operator(tmp_path / "unknown.onnx")
    models.named(tmp_path / "named.onnx", "in put:0", "net/out=1")
    models.pointer(tmp_path / "lfs.onnx")
    (tmp_path / "wrong.gradcheck.yaml").write_text(WRONG)
    return entered(tmp_path, monkeypatch)


@pytest.fixture
def gradcheck(folder: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs a command line in the folder."""

    return partial(typed, capsys)


WRONG = """gradcheck: 1
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
    inputs: {x: {shape: [3], range: [0.5, 1]}}
    nodes: |
      h = acme.Square (x)
      loss = ReduceSum <keepdims = 0> (h)
    outputs: [loss, h]
checks:
  - {name: square/wrong, graph: net, x: x, y: loss}
  - {name: square/known, graph: net, x: x, y: loss,
     expect: {status: fail, reason: ACME-412, until: 2999-12-31}}
  - {name: sum/right, graph: net, x: h, y: loss}
"""
