"""MODEL arguments as files: folders searched, patterns expanded, each file once."""

from __future__ import annotations

import fnmatch
import glob
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from gradcheck_cli.errors import GradcheckError, ModelError, NothingChecked

SPEC_SUFFIXES = (".gradcheck.yaml", ".gradcheck.yml")


class Found(NamedTuple):
    """The files that arguments mean, in their order, and the arguments that mean none, with the reason."""

    files: list[str]
    missing: list[tuple[str, GradcheckError]]


def expand(arguments: Iterable[str]) -> Found:
    """Each file once; GradcheckError if no argument means any."""
    files: dict[str, str] = {}
    missing: list[tuple[str, GradcheckError]] = []
    for argument in arguments:
        try:
            files.update((real, path) for path in _files(argument) if (real := os.path.realpath(path)) not in files)
        except GradcheckError as error:
            missing.append((argument, error))
    if missing and not files:
        raise missing[0][1]
    return Found(_without_side_cars(list(files.values())), missing)


def side_car(model: str) -> str | None:
    """The spec beside a model that says how it is checked: model.gradcheck.yaml for model.onnx.

    A spec with graphs of its own is none: it is about those, whatever it is called.
    """
    candidates = (os.path.splitext(model)[0] + suffix for suffix in SPEC_SUFFIXES)
    return next((p for p in candidates if not is_spec(model) and os.path.isfile(p) and not _has_graphs(p)), None)


def is_spec(path: str) -> bool:
    """It is a YAML spec, by its name."""
    return path.lower().endswith((".yaml", ".yml"))


def _has_graphs(spec: str) -> bool:
    from gradcheck_cli.errors import SpecError
    from gradcheck_cli.formats.yaml.places import Document

    try:
        return "graphs" in Document.read(spec).root.children
    except SpecError:  # said when it is read with the model
        return False


def common_folder(paths: Sequence[str]) -> str:
    """The folder that all files lie in, however deep."""
    folders = [os.path.dirname(os.path.abspath(path)) for path in paths]
    try:
        return os.path.commonpath(folders)
    except ValueError:  # on different drives
        return os.getcwd()


def _files(argument: str) -> list[str]:
    if argument == "-":
        raise ModelError("models are read from files, which is where their weights are looked for; not from stdin")
    if "://" in argument:
        raise ModelError(f"{argument} is a URL; download the file and give its path")
    if os.path.isdir(argument):
        return _without_side_cars(sorted(_inside(argument))) or _nothing(
            f"{argument!r} holds no *.onnx or *.gradcheck.yaml"
        )
    if os.path.exists(argument) or not glob.has_magic(argument):
        return [argument]
    matches = sorted(_matching(argument))
    files = [path for match in matches for path in (_inside(match) if os.path.isdir(match) else [match])]
    wanted = [path for path in files if _is_model(path) or (path in matches and not _any_model(files))]
    return _without_side_cars(wanted) or _nothing(f"{argument!r} matches no file")


def _matching(pattern: str) -> Iterator[str]:
    """What matches a pattern; ** stands for folders, however deep, but for links to folders, which may lead back."""
    parts = Path(pattern).parts
    if "**" not in parts:
        yield from glob.glob(pattern)
        return
    depth = parts.index("**")
    for root in glob.glob(str(Path(*parts[:depth]))) if depth else ["."]:
        for path in _below(root):
            if _fits(Path(path).relative_to(root).parts, parts[depth:]):
                yield path


def _below(root: str) -> Iterator[str]:
    """A folder, and all in it that is not hidden."""
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield str(Path(folder))
        yield from (str(Path(folder) / name) for name in names if not name.startswith("."))


def _fits(path: Sequence[str], pattern: Sequence[str]) -> bool:
    """The parts of a path match those of a pattern."""
    if not pattern or pattern[0] != "**":
        return (not path and not pattern) or (
            bool(path and pattern) and fnmatch.fnmatchcase(path[0], pattern[0]) and _fits(path[1:], pattern[1:])
        )
    return any(_fits(path[start:], pattern[1:]) for start in range(len(path) + 1))


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
