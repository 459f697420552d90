"""The files that a model needs beside its own: external data of an ONNX file, arrays that a spec names."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gradcheck_cli.errors import GradcheckError


def belongings(path: Path, *, spec: bool) -> dict[str, Path]:
    """Files by their path relative to the model's folder, that folder's own only; none where the model is not readable."""
    try:
        names = _named_in_spec(path) if spec else _external_data(path)
        found = {name: path.parent / name for name in dict.fromkeys(names)}
        return {name: file for name, file in found.items() if _is_inside(name, file)}
    except (GradcheckError, OSError, ValueError):
        return {}


def copied(files: Mapping[str, Path], folder: Path) -> None:
    """Copies files to their relative paths in a folder."""
    for name, file in files.items():
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, place)


def _is_inside(name: str, file: Path) -> bool:
    """It lies where its name says, below the model's folder: a copy would not find its way out either."""
    return not os.path.isabs(name) and ".." not in Path(name).parts and "\0" not in name and file.is_file()


def _external_data(path: Path) -> Iterator[str]:
    """Where tensors of a model say that their data is."""
    import onnx
    from google.protobuf.message import Message  # type: ignore[import-untyped]

    from gradcheck_cli.formats.onnx_file import parse_model, read_bytes

    pending: list[Any] = [parse_model(read_bytes(path).data, str(path))]
    while pending:
        message = pending.pop()
        if isinstance(message, onnx.TensorProto):
            yield from (entry.value for entry in message.external_data if entry.key == "location")
            continue
        for field, value in message.ListFields():
            if field.type == field.TYPE_MESSAGE:
                pending.extend([value] if isinstance(value, Message) else value)


def _named_in_spec(path: Path) -> Iterator[str]:
    """Every text of a spec that is the path of a file with arrays beside it."""
    from gradcheck_cli.formats.yaml_places import Document

    pending: list[Any] = [Document.read(str(path)).root.value]
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            pending.extend(value.values())
        elif isinstance(value, list):
            pending.extend(value)
        elif isinstance(value, str) and value.lower().endswith((".npy", ".npz")):
            yield value
