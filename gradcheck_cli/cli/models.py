"""MODEL arguments as files: folders searched, patterns expanded, each file once."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from gradcheck_cli.errors import NothingChecked

SPEC_SUFFIXES = (".gradcheck.yaml", ".gradcheck.yml")


def expand(arguments: Iterable[str]) -> list[str]:
    """The files that arguments mean, in their order; NothingChecked for a pattern or folder without any."""
    found: dict[str, str] = {}
    for argument in arguments:
        for path in _files(argument):
            found.setdefault(os.path.realpath(path), path)
    return list(found.values())


def side_car(model: str) -> str | None:
    """The spec beside a model that says how it is checked: model.gradcheck.yaml for model.onnx."""
    candidates = (os.path.splitext(model)[0] + suffix for suffix in SPEC_SUFFIXES)
    return next((path for path in candidates if not is_spec(model) and os.path.isfile(path)), None)


def is_spec(path: str) -> bool:
    """It is a YAML spec, by its name."""
    return path.lower().endswith((".yaml", ".yml"))


def _files(argument: str) -> list[str]:
    if os.path.isdir(argument):
        return _without_side_cars(sorted(_inside(argument))) or _nothing(
            f"{argument!r} holds no *.onnx or *.gradcheck.yaml"
        )
    if os.path.exists(argument) or not glob.has_magic(argument):
        return [argument]
    matches = sorted(glob.glob(argument, recursive=True))
    files = [path for match in matches for path in (_inside(match) if os.path.isdir(match) else [match])]
    wanted = [path for path in files if _is_model(path) or (path in matches and not _any_model(files))]
    return _without_side_cars(wanted) or _nothing(f"{argument!r} matches no file")


def _any_model(files: Iterable[str]) -> bool:
    return any(_is_model(path) for path in files)


def _inside(folder: str) -> Iterator[str]:
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (str(Path(root) / name) for name in sorted(names) if _is_model(name))


def _is_model(name: str) -> bool:
    return name.lower().endswith((".onnx", *SPEC_SUFFIXES))


def _without_side_cars(paths: list[str]) -> list[str]:
    """The files but for specs that are read together with the model they lie beside."""
    read_along = {side_car(path) for path in paths}
    return [path for path in paths if path not in read_along]


def _nothing(reason: str) -> list[str]:
    raise NothingChecked(f"nothing to check: {reason}")
