"""Records for tests of the store, small and as large as those of large models."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from gradcheck_cli.results.record import Check, ModelInfo
from gradcheck_cli.zoo.store import Line, texts


def record(uri: str, x: str = "x", status: str = "pass", code: str = "", **more: Any) -> dict[str, Any]:
    """The record of d y/d x of a model."""
    entries = {"total": 4, "checked": 4, "failed": 2 * (status == "fail"), "inconclusive": 0}
    name = f"{uri}::d y/d {x}"
    return Check(name, uri, status, code, ModelInfo(uri), x, "y", entries=entries, **more).as_json()


def job(index: int, count: int = 3, padding: int = 0) -> tuple[str, str, list[dict[str, Any]]]:
    """A job's name, key and records."""
    uri = f"models/{index}.onnx"
    return uri, f"key-{index}", [record(uri, f"x{n}", notes=("." * padding,)) for n in range(count)]


def whole(folder: Path, lines: Sequence[Line]) -> Iterator[dict[str, Any]]:
    """The complete records of some lines as JSON."""
    return ({name: json.loads(text) for name, text in each.items()} for each in texts(folder, lines))
