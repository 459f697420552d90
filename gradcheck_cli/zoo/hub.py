"""ONNX's list of the models in a hub, ONNX_HUB_MANIFEST.json, and the archives with test data that it names."""

from __future__ import annotations

import bz2
import gzip
import json
import os
import secrets
import shutil
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO, cast

from gradcheck_cli.errors import ModelError, SpecError
from gradcheck_cli.formats.untrusted import content, opened
from gradcheck_cli.zoo.digest import content_of
from gradcheck_cli.zoo.remote import cache_folder, joined

_LARGEST = 256 << 20  # bytes of a list
_MOST_BYTES, _MOST_FILES = 16 << 30, 10_000  # of an archive
_LONGEST = 16 << 20  # bytes of what stands before a file in it


@dataclass(frozen=True, slots=True)
class Listed:
    """A model of the list: its path or URL, its digest, and the archive that holds it together with test data."""

    place: str
    sha256: str = ""
    archive: str = ""
    archive_sha256: str = ""


def is_list(path: str) -> bool:
    """It is such a list, by its name."""
    return path.partition("?")[0].lower().endswith(".json")


def models_in(path: Path, folder: str, name: str) -> list[Listed]:
    """The models of a list, each once, below the folder or URL that the list lies in."""
    try:
        entries = json.loads(content(path, _LARGEST))
        if not isinstance(entries, list):
            raise ValueError("it holds no list")
        found = [_listed(entry, index, folder, name) for index, entry in enumerate(entries)]
    except OSError as error:
        raise SpecError(f"{name} cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        if isinstance(error, SpecError):
            raise
        raise SpecError(f"{name} is no list of models as ONNX's hub has it: {error or 'nested too deeply'}") from None
    return list({each.place: each for each in found}.values())


def unpacked(archive: Path, sha256: str) -> Path | None:
    """The model with this digest in an archive, unpacked with what lies beside it; None if it holds no such model."""
    place = cache_folder() / f"archive-{content_of(archive)[:32]}"
    if not place.exists():
        new = place.with_name(f".{secrets.token_hex(8)}")
        try:
            new.mkdir(parents=True)
            _unpack(archive, new)
            if not place.exists():
                os.rename(new, place)
        except Exception as error:  # tarfile and what it decompresses with have trees of their own
            raise ModelError(f"{archive} cannot be unpacked: {str(error) or type(error).__name__}") from None
        finally:
            shutil.rmtree(new, ignore_errors=True)
    models = (path for path in sorted(place.rglob("*.onnx")) if path.is_file())
    return next((path for path in models if content_of(path) == sha256.lower()), None)


def _unpack(archive: Path, folder: Path) -> None:
    """Unpacks plain files and folders that stay inside; an archive that unfolds without end is refused."""
    size = count = 0
    with opened(archive) as file, _unfolding(file) as plain, tarfile.open(fileobj=_Headed(plain), mode="r:") as files:
        for member in files:
            size, count = size + member.size, count + 1
            if size > _MOST_BYTES or count > _MOST_FILES:
                raise tarfile.TarError("it holds too much")
            if member.isreg() or member.isdir():
                files.extract(member, folder, filter="data")


def _unfolding(file: BufferedReader) -> BinaryIO:
    """What was compressed, as it was before."""
    start = file.peek(4)[:4]
    if start.startswith(b"BZh"):
        return cast(BinaryIO, bz2.open(file))
    return cast(BinaryIO, gzip.open(file)) if start.startswith(b"\x1f\x8b") else file


class _Headed:
    """An archive whose headers are read in one piece each: one that would fill the memory is refused."""

    def __init__(self, plain: BinaryIO) -> None:
        self.plain, self.seek, self.tell, self.close = plain, plain.seek, plain.tell, plain.close

    def read(self, size: int) -> bytes:
        if size > _LONGEST:
            raise tarfile.ReadError("one of its headers is too long")
        return self.plain.read(size)

    def write(self, data: bytes) -> int:
        raise tarfile.TarError("it is only read")


def _listed(entry: Any, index: int, folder: str, name: str) -> Listed:
    if not isinstance(entry, Mapping):
        raise ValueError(f"its entry {index} is no object")
    about = entry.get("metadata", {})
    texts = [*_texts(entry, index, "model_path"), *_texts(about, index, "model_sha", "model_with_data_path",
                                                          "model_with_data_sha")]  # fmt: skip
    path, sha256, archive, archive_sha256 = texts
    if not path:
        raise ValueError(f"its entry {index} has no model_path")
    return Listed(joined(folder, path, name), sha256, joined(folder, archive, name) if archive else "", archive_sha256)


def _texts(entry: Any, index: int, *keys: str) -> Iterator[str]:
    """Values that are text, "" for what is absent."""
    for key in keys:
        value = entry.get(key) if isinstance(entry, Mapping) else None
        if not isinstance(value, str | None):
            raise ValueError(f"{key} of its entry {index} is no text")
        yield value or ""
