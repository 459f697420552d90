"""The files that a job reads: its key, and its parcel, which goes to a worker of a cluster.

The key is a digest of everything that results depend on: content of all files, settings, version of gradcheck.  A record
stays valid as long as the key is the same.  A parcel names all files by absolute path and digest.  A worker that sees the
same files uses them; others get the contents and write them to the same paths below a folder of their own.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, reduce
from heapq import heapreplace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from msgspec import structs

from gradcheck_cli import native
from gradcheck_cli.errors import VERSION, GradcheckError, LimitError
from gradcheck_cli.formats import companion_files, is_spec
from gradcheck_cli.formats.untrusted import blocks, sha256_of, sha256_of_text
from gradcheck_cli.graph.memory import spell
from gradcheck_cli.zoo import Job, Limits

MOST = 1 << 30  # bytes of files that are sent with a job
_LEAST_SECONDS, _SECONDS_OF_GRAPH, _SECONDS_OF_WEIGHTS = 5e-3, 8e-6, 5e-8  # the latter of a byte
_PACKAGES = ("numpy", "onnx", "onnxruntime")
_LARGEST_MODEL = 2 << 30  # bytes
_MARK = b"location"  # the key of the path in an ONNX tensor with external data


def key_of(job: str, files: Iterable[Path], settings: Mapping[str, Any]) -> str:
    """The key of a job, 32 hexadecimal digits, from its name, its settings and the content of its files."""
    contents = [(file.name, content_of(file)) for file in dict.fromkeys(files)]
    told = json.dumps([VERSION, job, contents, settings], sort_keys=True, default=str)
    return sha256_of_text(told)[:32]


def expected_seconds(file: Path | None) -> float:
    """A rough time that a check takes: by the size of its graph, of its weights; one that cannot be read takes little."""
    from gradcheck_cli.formats.onnx.file import outline_of  # a scheduler, which reads this module, needs none

    found = _LEAST_SECONDS
    with suppress(GradcheckError, OSError, ValueError, MemoryError):
        if file is not None and not is_spec(file):
            weights = [file, *companion_files(file).values()]
            found += _SECONDS_OF_GRAPH * outline_of(file).ByteSize()
            found += _SECONDS_OF_WEIGHTS * sum(each.stat().st_size for each in weights)
        elif file is not None:
            found += _SECONDS_OF_GRAPH * file.stat().st_size
    return found


def shared_out(costs: Mapping[str, float], count: int) -> dict[str, int]:
    """The shard of each job, from 1: the dearest first, each to the shard that has the least to do so far.

    It follows from names and costs alone, so that each shard can find it out for itself.
    """
    shards = [(0.0, number) for number in range(1, count + 1)]
    found = {}
    for job in sorted(costs, key=lambda job: (-costs[job], job)):
        taken, number = shards[0]
        heapreplace(shards, (taken + costs[job], number))
        found[job] = number
    return found


def read_along(file: Path) -> Iterator[Path]:
    """A model or spec, and its companion files."""
    yield file
    if is_spec(file) or _names_data(file):
        yield from companion_files(file).values()


def folder_of_data(folder: Path) -> Iterator[Path]:
    """The files in a folder of test data."""
    yield from sorted(folder.glob("*.pb"))


def files_named(values: Iterable[Any]) -> Iterator[Path]:
    """The files of options such as `x=@values.npz:key`."""
    for value in values:
        if isinstance(value, str) and "@" in value:
            path = value.partition("@")[2]
            yield Path(path if os.path.exists(path) else path.rpartition(":")[0] or path)


def _names_data(file: Path) -> bool:
    """True if a model may have external data, so that it is worth parsing."""
    end = b""
    with suppress(OSError, ValueError):
        for block in blocks(file, _LARGEST_MODEL):
            if _MARK in end + block:
                return True
            end = block[-len(_MARK) :]
    return False


def content_of(file: Path) -> str:
    """The SHA-256 of a file; for an unreadable file the reason and the time of its last change."""
    try:
        return sha256_of(file)
    except (OSError, ValueError) as error:
        changed = ""
        with suppress(OSError, ValueError):
            changed = f", of {file.stat().st_mtime_ns}"
        return f"unreadable: {getattr(error, 'strerror', None) or error}{changed}"


def states_of(files: Iterable[str]) -> tuple[tuple[int, ...] | None, ...]:
    """Numbers that change with each change of a file, also where one puts its content back; None for a missing one."""
    return tuple(map(_state_of, files))


def _state_of(file: str) -> tuple[int, ...] | None:
    try:
        found = os.stat(file)
    except (OSError, ValueError):
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns  # copies may keep the third, none the last


@dataclass(frozen=True, slots=True)
class Parcel:
    """A job with everything that its result depends on, as plain data.

    `contents` holds the files by digest; None until a worker has asked for them.
    """

    ticket: str  # unique among all parcels
    job: Job
    limits: Limits
    work: str  # the function ("module:name") that does it
    files: Mapping[str, str]  # digests by absolute path
    versions: Mapping[str, str]
    command: tuple[str, ...]  # the command line
    contents: Mapping[str, bytes] | None = None


def packed(ticket: str, job: Job, limits: Limits, work: str) -> Parcel:
    """Packs a job; relative paths start from the working folder of this process."""
    files = {path: content_of(Path(path)) for path in map(os.path.abspath, job.files) if os.path.isfile(path)}
    job = structs.replace(job, folder=os.getcwd())
    return Parcel(ticket, job, limits, work, files, versions(), tuple(sys.argv))


def with_contents(parcel: Parcel) -> Parcel:
    """The parcel with the contents of its files; a LimitError if they are too large, an OSError if one is unreadable."""
    size = sum(os.path.getsize(path) for path in parcel.files)
    if size > MOST:
        message = f"its files take {spell(size)}, too much to be sent along ({spell(MOST)}): workers must see them"
        raise LimitError(f"{message} under the same path", code="GC602")
    contents = {digest: Path(path).read_bytes() for path, digest in parcel.files.items()}
    return replace(parcel, contents=contents)


def is_seen(parcel: Parcel) -> bool:
    """True if every file is on this machine too, at the same path and with the same content."""
    there = os.path.isdir(parcel.job.folder)
    return there and all(content_of(Path(path)) == digest for path, digest in parcel.files.items())


def laid_out(parcel: Parcel, place: Path) -> Job:
    """Writes the files of a parcel below a folder; gives the job with its paths changed accordingly."""
    for path, digest in parcel.files.items():
        file = below(place, path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes((parcel.contents or {})[digest])
    job, known = parcel.job, _known(parcel.files)
    folder = below(place, job.folder)
    folder.mkdir(parents=True, exist_ok=True)

    def moved(value: str) -> str:
        named = next((path for path in known if path in value), None)
        return value if named is None else value.replace(named, str(below(place, named)))

    options, said = with_strings(job.options, moved), with_strings(job.said, moved)
    return structs.replace(job, path=moved(job.path), folder=str(folder), options=options, said=said)


def below(place: Path, path: str) -> Path:
    """An absolute path below a folder."""
    return place / path.lstrip(os.sep)


def with_strings(value: Any, change: Callable[[str], str]) -> Any:
    """The value of an option, or of JSON, with all strings in it changed but for the keys of mappings."""
    if isinstance(value, Mapping):
        return {name: with_strings(each, change) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(with_strings(each, change) for each in value)
    return change(value) if isinstance(value, str) else value


def renamed(value: Any, names: Mapping[str, str]) -> Any:
    """A JSON value with some substrings replaced in all of its strings."""
    return with_strings(value, lambda text: reduce(lambda found, old: found.replace(old, names[old]), names, text))


def _known(files: Iterable[str]) -> list[str]:
    """Files and their folders, the longest paths first; very short paths would match too many strings."""
    every = {part for path in files for part in (path, os.path.dirname(path))}
    return sorted((path for path in every if path.count(os.sep) > 1), key=len, reverse=True)


@cache
def versions() -> dict[str, str]:
    """Versions of everything that results depend on beside the model."""
    python = ".".join(platform.python_version_tuple()[:2])
    kernels = str(native.info()["kernels"])
    return {"gradcheck": VERSION, "kernels": kernels, "python": python, **{n: _version(n) for n in _PACKAGES}}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "missing"


def difference(here: Mapping[str, str], there: Mapping[str, str]) -> str:
    """The differences between versions, "numpy 2.1.0 (here 2.4.1)"; "" if there are none."""
    names = [name for name in here if here[name] != there.get(name)]
    return ", ".join(f"{name} {there.get(name, 'missing')} (here {here[name]})" for name in names)
