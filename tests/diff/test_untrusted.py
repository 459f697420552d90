"""Whatever is done to a model, comparing it with what it was ends in records, or in an error of gradcheck's own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto

from gradcheck_cli.checks.diff.two_models import compare
from gradcheck_cli.errors import GradcheckError
from gradcheck_cli.formats.onnx.read import read
from gradcheck_cli.graph.memory import held
from gradcheck_cli.report import render
from gradcheck_cli.results.record import Report
from gradcheck_cli.settings import Settings
from tests.cli import models
from tests.cli.conftest import Ran, entered, typed
from tests.diff.twins import SAME
from tests.hostile.mutations import OF_MODELS, Mutation, mutated

HOSTS = [proto for twins in SAME for proto in (twins.a, twins.b)]
STATUSES = {"pass", "fail", "inconclusive", "error", "unsupported", "limit"}


@pytest.mark.parametrize("seed", range(60))
def test_a_spoiled_model_is_compared_or_refused(seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    host: ModelProto = HOSTS[seed % len(HOSTS)]
    kinds = sorted(OF_MODELS)
    spoiled = [Mutation(kinds[rng.integers(len(kinds))], *map(int, rng.integers(0, 1 << 10, 3))) for _ in range(2)]
    (tmp_path / "a.onnx").write_bytes(host.SerializeToString())
    (tmp_path / "b.onnx").write_bytes(mutated(host.SerializeToString(), spoiled))
    paths = [tmp_path / name for name in ("a.onnx", "b.onnx")][:: 1 if seed % 2 else -1]
    settings = Settings(
        jobs=1, memory_limit=1 << 28, params=seed % 3 == 0, dtype="model" if seed % 5 == 0 else "float64"
    )
    code, found = 0, ()
    try:
        with held():
            found = compare(*map(read, paths), settings, {}, name="b against a")
    except GradcheckError as error:
        code = error.exit_code
    assert code != 70, spoiled
    assert {c.status for c in found} <= STATUSES
    for form in ("full", "concise", "json", "junit", "github", "gitlab", "markdown", "sarif"):
        assert render(form, Report(found))


@pytest.fixture
def diff(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """`gradcheck diff` in a folder with a model whose names are what they are."""
    models.named(tmp_path / "a.onnx", "in=put:0", "net/\x1b[31mout=1")
    models.named(tmp_path / "b.onnx", "x\n", "y=z")
    entered(tmp_path, monkeypatch)
    return partial(typed, capsys, "diff")


@pytest.mark.parametrize("form", ("full", "concise", "github", "markdown"))
def test_names_command_no_terminal(diff: Callable[..., Ran], form: str) -> None:
    ran = diff("a.onnx", "b.onnx", "--output-format", form, "-v")
    assert ran.code == 0
    assert "\x1b" not in ran.out


def test_a_map_may_have_names_with_equals_signs(diff: Callable[..., Ran]) -> None:
    args = ("--map", "in=put:0=x\n", "--map", "net/\x1b[31mout=1=y=z")
    ran = diff("a.onnx", "b.onnx", *args)
    assert ran.code == 0
    assert "matched by place" not in ran.out
    assert "matched by place" in diff("a.onnx", "b.onnx").out
