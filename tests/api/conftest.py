"""Small models for the tests of the Python API, written as specs and read back as a user's file would be."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import gradcheck_cli as gc


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., gc.Model]:
    """A model from nodes in ONNX's text syntax; inputs are shapes, or what a spec says of an input."""

    def made(
        nodes: str,
        inputs: Mapping[str, Any],
        params: Mapping[str, Any] | None = None,
        outputs: Sequence[str] = ("y",),
        *,
        load: Mapping[str, Any] | None = None,
        init: Mapping[str, Any] | None = None,
        ops: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> gc.Model:
        declared = {n: {"shape": v} if isinstance(v, list) else v for n, v in inputs.items()}
        graph = {"inputs": declared, "params": params, "nodes": nodes, "outputs": list(outputs), **more}
        graph = {key: value for key, value in graph.items() if value}
        spec = {"gradcheck": 1, "ops": ops, "init": init, "graphs": {"g": graph}}
        path = tmp_path / f"model{len(list(tmp_path.iterdir()))}.gradcheck.yaml"
        path.write_text(json.dumps({key: value for key, value in spec.items() if value}))
        return gc.load(path, **(load or {}))

    return made
