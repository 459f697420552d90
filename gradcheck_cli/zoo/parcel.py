"""A job on its way to a worker of a cluster, which may see the same files or none of them.

A parcel names all that a job reads, by absolute path and digest.  A worker that finds every file just so takes them where
they are; any other gets them sent along and lays them out in a folder of its own, in the same places below it.

The key of a job: a digest of all that bears on its result, so that a record stands for it as long as none changes.

That is the content of the model and of whatever is read with it, its settings, and the version of gradcheck; neither
where results go to, nor how many jobs run at once, nor how long they may take.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from gradcheck_cli import native
from gradcheck_cli.errors import VERSION, LimitError
from gradcheck_cli.formats import SPEC_SUFFIXES
from gradcheck_cli.formats.companions import companion_files
from gradcheck_cli.formats.untrusted import blocks, sha256_of
from gradcheck_cli.graph.memory import spell
from gradcheck_cli.zoo.job import Job, Limits

_OF_A_MODEL = 2 << 30  # bytes
_MARK = b"location"  # the key under which an ONNX tensor says where its data is


def key_of(job: str, files: Iterable[Path], settings: Mapping[str, Any]) -> str:
    """The key of a job of this name: 32 digits."""
    contents = [(file.name, content_of(file)) for file in dict.fromkeys(files)]
    told = json.dumps([VERSION, job, contents, settings], sort_keys=True, default=str)
    return _hex(told)[:32]


def shard_of(job: str, count: int) -> int:
    """The shard of a job, from 1: by its name alone, so that each shard reads only its own models."""
    return int(_hex(job)[:16], 16) % count + 1


def read_along(file: Path) -> Iterator[Path]:
    """A model or spec, and the files beside it that are read with it: external data, arrays, test data."""
    spec = file.name.lower().endswith(SPEC_SUFFIXES)
    yield file
    if spec or _names_data(file):
        yield from companion_files(file, spec=spec).values()


def folder_of_data(folder: Path) -> Iterator[Path]:
    """The values in a folder of test data."""
    yield from sorted(folder.glob("*.pb"))


def files_named(values: Iterable[Any]) -> Iterator[Path]:
    """The files of options such as `x=@values.npz:key`."""
    for value in values:
        if isinstance(value, str) and "@" in value:
            path = value.partition("@")[2]
            yield Path(path if os.path.exists(path) else path.rpartition(":")[0] or path)


def _names_data(file: Path) -> bool:
    """Some tensor may have its data in another file: parsing the model for it is worth it."""
    end = b""
    with suppress(OSError, ValueError):
        for block in blocks(file, _OF_A_MODEL):
            if _MARK in end + block:
                return True
            end = block[-len(_MARK) :]
    return False


def content_of(file: Path) -> str:
    """A digest of a file; what keeps it from being read, where it cannot be, which its job will say too."""
    try:
        return sha256_of(file)
    except (OSError, ValueError) as error:
        return f"unreadable: {getattr(error, 'strerror', None) or error}{_last_change(file)}"


def _last_change(file: Path) -> str:
    with suppress(OSError, ValueError):
        return f", of {file.stat().st_mtime_ns}"
    return ""


def _hex(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


MOST = 1 << 30  # bytes that are sent along with a job
_PACKAGES = ("numpy", "onnx", "onnxruntime")


@dataclass(frozen=True, slots=True)
class Parcel:
    """A job with what bears on it; plain data.  `contents` are files by digest, None before any were asked for."""

    ticket: str  # that no other parcel has
    job: Job
    limits: Limits
    work: str  # the function ("module:name") that does it
    files: Mapping[str, str]  # digests by absolute path
    versions: Mapping[str, str]
    command: tuple[str, ...]  # that was typed
    contents: Mapping[str, bytes] | None = None


def packed(ticket: str, job: Job, limits: Limits, work: str) -> Parcel:
    """The parcel of a job of this process; relative paths start from its working folder."""
    files = {path: content_of(Path(path)) for path in map(os.path.abspath, job.files) if os.path.isfile(path)}
    job = replace(job, folder=os.getcwd())
    return Parcel(ticket, job, limits, work, files, versions(), tuple(sys.argv))


def with_contents(parcel: Parcel) -> Parcel:
    """The same with its files; LimitError where they are too large, OSError where one cannot be read."""
    size = sum(os.path.getsize(path) for path in parcel.files)
    if size > MOST:
        message = f"its files take {spell(size)}, too much to be sent along ({spell(MOST)}): workers must see them"
        raise LimitError(f"{message} under the same path", code="GC602")
    contents = {digest: Path(path).read_bytes() for path, digest in parcel.files.items()}
    return replace(parcel, contents=contents)


def is_seen(parcel: Parcel) -> bool:
    """Every file is there, just as it is where the parcel comes from."""
    there = os.path.isdir(parcel.job.folder)
    return there and all(content_of(Path(path)) == digest for path, digest in parcel.files.items())


def laid_out(parcel: Parcel, place: Path) -> Job:
    """The job of a parcel whose files now lie below a place, and so does the folder that relative paths start from."""
    for path, digest in parcel.files.items():
        file = below(place, path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes((parcel.contents or {})[digest])
    job, known = parcel.job, _known(parcel.files)
    folder = below(place, job.folder)
    folder.mkdir(parents=True, exist_ok=True)
    options, said = moved(job.options, known, place), moved(job.said, known, place)
    return replace(job, path=moved(job.path, known, place), folder=str(folder), options=options, said=said)


def below(place: Path, path: str) -> Path:
    """Where an absolute path lies below a place."""
    return place / path.lstrip(os.sep)


def moved(value: Any, known: Iterable[str], place: Path) -> Any:
    """A value of an option with the known paths in it taken below a place."""
    if isinstance(value, Mapping):
        return {name: moved(each, known, place) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(moved(each, known, place) for each in value)
    if not isinstance(value, str):
        return value
    named = next((path for path in known if path in value), None)
    return value if named is None else value.replace(named, str(below(place, named)))


def renamed(value: Any, names: Mapping[str, str]) -> Any:
    """What JSON holds, with some texts replaced wherever they stand."""
    if isinstance(value, dict):
        return {name: renamed(each, names) for name, each in value.items()}
    if isinstance(value, list):
        return [renamed(each, names) for each in value]
    for old, new in names.items() if isinstance(value, str) else ():
        value = value.replace(old, new)
    return value


def _known(files: Iterable[str]) -> list[str]:
    """Files and their folders, the longest paths first; a path that is hardly one is in too many texts."""
    every = {part for path in files for part in (path, os.path.dirname(path))}
    return sorted((path for path in every if path.count(os.sep) > 1), key=len, reverse=True)


@cache
def versions() -> dict[str, str]:
    """What results depend on beside the model."""
    python = ".".join(platform.python_version_tuple()[:2])
    kernels = str(native.info()["kernels"])
    return {"gradcheck": VERSION, "kernels": kernels, "python": python, **{n: _version(n) for n in _PACKAGES}}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "missing"


def difference(here: Mapping[str, str], there: Mapping[str, str]) -> str:
    """numpy 2.1.0 (here 2.4.1): what differs; "" where nothing does."""
    names = [name for name in here if here[name] != there.get(name)]
    return ", ".join(f"{name} {there.get(name, 'missing')} (here {here[name]})" for name in names)
