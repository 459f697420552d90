"""Results as files: those of real runs, with a record of every outcome and mode."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from gradcheck_cli.cli import main
from tests.cli import models
from tests.cli.conftest import WRONG

RUNS = {
    "plain": [],
    "every point": ["--points", "3", "--second-order"],
    "by node": ["--mode", "nodes"],
    "by projection": ["--mode", "directional", "--points", "2"],
    "by drawn entries": ["--mode", "sampled", "--max-entries", "5"],
    "with gates": ["--dtype", "model", "--fail-on", "fail,dead,nonfinite,vanishing,exploding,precision"],
    "as TensorFlow": ["--compat", "tf"],
    "without time": ["--timeout", "0.000001s"],
}


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The file of `--report results.json` of each run."""
    folder = tmp_path_factory.mktemp("models")
    models.mlp(folder / "mlp.onnx")
    models.embedding(folder / "embedding.onnx")
    models.log(folder / "log.onnx")
    models.unknown_operator(folder / "unknown.onnx")
    models.save(folder / "dead.onnx", DEAD, ten=np.full(3, 10.0))
    models.save(folder / "rounded.onnx", "rounded (float[3] x) => (float[3] y) { h = Round (x)  y = Tanh (h) }")
    models.pointer(folder / "lfs.onnx")
    (folder / "wrong.gradcheck.yaml").write_text(WRONG)
    before, found = os.getcwd(), {name: folder / f"{name}.json" for name in RUNS}
    try:
        os.chdir(folder)
        for name, options in RUNS.items():
            main([".", "--output-format", "concise", "-q", "--report", f"{name}.json", *options])
    finally:
        os.chdir(before)
    return found


DEAD = """dead (float[4,3] x) => (float[4,3] y) {
    below = Sub (x, ten)
    y = Relu (below)
}"""
