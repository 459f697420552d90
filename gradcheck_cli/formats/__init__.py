"""Files in and out: an ONNX model or a YAML spec becomes a `Spec` of sources and checks.

A model may have companion files: external data of an ONNX file, arrays that a spec names, a record of its framework.
Readers are imported when a file is read, so that `gradcheck schema` needs no NumPy.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradcheck_cli.errors import GradcheckError
from gradcheck_cli.formats.untrusted import leads_out

if TYPE_CHECKING:
    from gradcheck_cli.formats.source import Source, Spec

SPEC_SUFFIXES = (".yaml", ".yml")


def is_spec(path: str | os.PathLike[str]) -> bool:
    """True for the file name of a spec, False for that of a model."""
    return os.fspath(path).lower().endswith(SPEC_SUFFIXES)


def read(path: str | os.PathLike[str], *, dims: Mapping[str, int] | None = None, allow_python: bool = False) -> Spec:
    """Reads a YAML spec with its graphs and checks, or an ONNX model as a spec without checks.

    The steps of a model's training information are further sources.  `dims` overrides sizes of symbolic dimensions.
    Raises ModelError or SpecError.
    """
    if is_spec(path):
        from gradcheck_cli.formats.yaml.reading import read_spec

        return read_spec(path, dims=dims, allow_python=allow_python)
    from gradcheck_cli.formats.onnx.read import read as read_onnx
    from gradcheck_cli.formats.source import Spec

    source = read_onnx(path)
    return Spec(source.uri, {Path(path).name: source, **{name: source.at_step(name) for name in source.steps}}, ())


def with_calls(source: Source, is_given: Callable[[tuple[str, str]], bool]) -> Source:
    """The model of a file without its own functions for operators that are given elsewhere, by domain and name."""
    kept = frozenset(filter(is_given, source.functions))
    if not kept or source.step or not source.sha256:
        return source
    from msgspec.structs import replace

    from gradcheck_cli.formats.onnx.read import read as read_onnx

    again = read_onnx(source.uri, kept)
    return replace(source, graph=again.graph, nodes=again.nodes, functions=source.functions - kept)


def companion_files(path: Path) -> dict[str, Path]:
    """The companion files that exist, by path relative to the model's folder; none if the model cannot be read.

    Files that a link takes out of the folder are left out: companion files are copied and given away with the model.
    """
    found = {name: path.parent / name for name in [*named_files(path), record_beside(path).name]}
    try:
        folders = path.parent.resolve(), path.resolve().parent  # in the caches of model hubs a model is a link
        return {
            name: file
            for name, file in found.items()
            if file.is_file() and any(file.resolve().is_relative_to(folder) for folder in folders)
        }
    except (OSError, ValueError, RuntimeError):
        return {}


def record_beside(path: Path) -> Path:
    """The place of the record of a model's framework: model.gradcheck.npz beside model.onnx."""
    return path.parent / f"{path.stem}.gradcheck.npz"


def named_files(path: Path) -> list[str]:
    """The relative paths of the companion files that a model or spec names, without those that leave its folder."""
    try:
        named = _named_in_spec(path) if is_spec(path) else _external_data(path)
        return [name for name in dict.fromkeys(named) if not leads_out(name)]
    except (GradcheckError, OSError, ValueError, MemoryError):
        return []


def _external_data(path: Path) -> Iterator[str]:
    """Locations of external data that the tensors of a model give."""
    import onnx

    from gradcheck_cli.formats.onnx.file import messages_in, outline_of

    for message in messages_in(outline_of(path)):
        if isinstance(message, onnx.TensorProto):
            yield from (entry.value for entry in message.external_data if entry.key == "location")


def _named_in_spec(path: Path) -> Iterator[str]:
    """Every string in a spec that ends like the name of a file of arrays."""
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
