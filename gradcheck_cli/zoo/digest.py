"""The key of a job: a digest of all that bears on its result, so that a record stands for it as long as none changes.

That is the content of the model and of whatever is read with it, its settings, and the version of gradcheck; neither
where results go to, nor how many jobs run at once, nor how long they may take.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from gradcheck_cli import __version__
from gradcheck_cli.formats import SPEC_SUFFIXES
from gradcheck_cli.formats.companions import belongings
from gradcheck_cli.formats.untrusted import blocks, sha256_of

_OF_A_MODEL = 2 << 30  # bytes
_MARK = b"location"  # the key under which an ONNX tensor says where its data is


def key_of(job: str, files: Iterable[Path], settings: Mapping[str, Any]) -> str:
    """The key of a job of this name: 32 digits."""
    contents = [(file.name, content_of(file)) for file in dict.fromkeys(files)]
    told = json.dumps([__version__, job, contents, settings], sort_keys=True, default=str)
    return _hex(told)[:32]


def shard_of(job: str, count: int) -> int:
    """The shard of a job, from 1: by its name alone, so that each shard reads only its own models."""
    return int(_hex(job)[:16], 16) % count + 1


def read_along(file: Path) -> Iterator[Path]:
    """A model or spec, and the files beside it that are read with it: external data, arrays, test data."""
    spec = file.name.lower().endswith(SPEC_SUFFIXES)
    yield file
    if spec or _names_data(file):
        yield from belongings(file, spec=spec).values()


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
