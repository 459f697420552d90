"""The command as a function, in a folder with small models that have gradients in them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.claims.test_numbers import X, gradient
from tests.claims.written import BACKWARD, BROKEN, FORWARD, W, plain, write
from tests.cli.conftest import entered, gradcheck

__all__ = ["gradcheck"]  # a fixture


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder."""
    plain(tmp_path)
    for name, backward in (("right", BACKWARD), ("wrong", BROKEN)):
        signature = "(float[2,3] x) => (float loss, float[2,3] x_grad)"
        write(tmp_path / f"{name}.onnx", signature, W, FORWARD + backward)
    np.savez(tmp_path / "dump.npz", x=X, g=gradient(np.float32), h=2 * gradient(np.float32))
    return entered(tmp_path, monkeypatch)
