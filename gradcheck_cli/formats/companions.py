"""The files that a model needs beside its own: external data of an ONNX file, arrays that a spec names."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PureWindowsPath
from typing import Any

from gradcheck_cli.errors import GradcheckError
from gradcheck_cli.graph.memory import require

_PARSED = 100  # bytes that a message takes at most, for each of the file: an empty node is two


def belongings(path: Path, *, spec: bool) -> dict[str, Path]:
    """Files by their path relative to the model's folder, that folder's own only; none where the model is not readable."""
    found = {name: path.parent / name for name in named(path, spec=spec)}
    try:
        folders = path.parent.resolve(), path.resolve().parent  # in caches of hubs a model is a link
        return {name: file for name, file in found.items() if file.is_file() and _lies_in(file, folders)}
    except (OSError, ValueError, RuntimeError):
        return {}


def named(path: Path, *, spec: bool) -> list[str]:
    """The paths that a model or spec names, but for those that lead out of its folder, on any system."""
    try:
        names = _named_in_spec(path) if spec else _external_data(path)
        return [name for name in dict.fromkeys(names) if not leads_out(name)]
    except (GradcheckError, OSError, ValueError, MemoryError):
        return []


def copied(files: Mapping[str, Path], folder: Path) -> None:
    """Copies files to their relative paths in a folder."""
    for name, file in files.items():
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, place)


def leads_out(name: str) -> bool:
    """A relative path that is none, or that leads out of the folder it starts from, on any system."""
    path = PureWindowsPath(name)  # which takes both kinds of slash for one
    return bool(path.anchor) or ".." in path.parts or "\0" in name or not path.name


def _lies_in(file: Path, folders: Iterable[Path]) -> bool:
    """No link leads out: what belongs to a model is copied, and may be given away with it."""
    return any(file.resolve().is_relative_to(folder) for folder in folders)


def _external_data(path: Path) -> Iterator[str]:
    """Where tensors of a model say that their data is."""
    import onnx
    from google.protobuf.message import Message  # type: ignore[import-untyped]

    from gradcheck_cli.formats.onnx.file import Outline, opened, parse_model

    with opened(path) as file:
        data = Outline(file).data
    require(_PARSED * len(data), "its graph")  # here no limit of its own ends a process that reads it
    pending: list[Any] = [parse_model(data, str(path))]
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
    from gradcheck_cli.formats.yaml.places import Document

    pending: list[Any] = [Document.read(str(path)).root.value]
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            pending.extend(value.values())
        elif isinstance(value, list):
            pending.extend(value)
        elif isinstance(value, str) and value.lower().endswith((".npy", ".npz")):
            yield value
