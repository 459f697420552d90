"""Safe reading of untrusted files, which may be anything: a pipe that blocks its reader, a device without end."""

from __future__ import annotations

import errno
import hashlib
import os
import pathlib
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BufferedReader
from typing import TypeAlias

Path: TypeAlias = "str | os.PathLike[str]"
LARGEST = 256 << 30  # bytes, for reading block by block
_BLOCK = 1 << 20
_THREAD = threading.local()


@contextmanager
def opened(path: Path) -> Iterator[BufferedReader]:
    """A regular file, open for reading; raises OSError for anything else, and never blocks."""

    def without_blocking(name: str, flags: int) -> int:
        return os.open(name, flags | getattr(os, "O_NONBLOCK", 0))

    with closed_afterwards(lambda: open(path, "rb", opener=without_blocking)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file", str(path))
        yield file


@contextmanager
def closed_afterwards(open_file: Callable[[], BufferedReader]) -> Iterator[BufferedReader]:
    """The file that a function opens, closed afterwards even if a time limit strikes while it is being opened.

    The alarm of a time limit raises between any two instructions, also between `open` and the `with` around it.
    """
    file = None
    try:
        _THREAD.opening = True
        try:
            file = open_file()
        finally:
            _THREAD.opening = False
        yield file
    finally:
        if file is not None:
            file.close()


def is_opening() -> bool:
    """True while this thread opens a file that nothing would close yet: an alarm has to wait."""
    return getattr(_THREAD, "opening", False)


def content(path: Path, most: int) -> bytes:
    """All bytes of a regular file; raises OSError if there are more than `most`."""
    return b"".join(blocks(path, most))


def blocks(path: Path, most: int = LARGEST) -> Iterator[bytes]:
    """The bytes of a regular file in blocks, no more than its size says: files in /proc may have no end."""
    with opened(path) as file:
        left = os.fstat(file.fileno()).st_size
        if left > most:
            raise OSError(errno.EFBIG, f"it is larger than {most >> 20} MiB", str(path))
        while left > 0 and (block := file.read(min(_BLOCK, left))):
            left -= len(block)
            yield block


def leads_out(path: str) -> bool:
    """True if a path is empty or absolute, or leads out of the folder it is relative to, on any operating system."""
    parts = pathlib.PureWindowsPath(path)  # understands both kinds of slash
    return bool(parts.anchor) or ".." in parts.parts or "\0" in path or not parts.name


def inside(folder: pathlib.Path, path: str, whose: str) -> pathlib.Path:
    """The file at an untrusted path inside a folder; raises ValueError if the path or a link leads out of it."""
    if "\0" in path or pathlib.PureWindowsPath(path).anchor or os.path.isabs(path):
        raise ValueError(f"the path {path!r} is absolute; it must be relative to {whose}")
    root = folder.resolve()
    file = (root / path).resolve()
    if not file.is_relative_to(root):
        raise ValueError(f"the path {path!r} leads out of {whose}")
    return file


def sha256_of_text(text: str) -> str:
    """The SHA-256 of a text in hexadecimal; names of files may hold characters that are not valid in UTF-8."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def sha256_of(path: Path) -> str:
    """The SHA-256 of a regular file in hexadecimal; raises OSError if it is not readable or too large."""
    found = hashlib.sha256()
    for block in blocks(path):
        found.update(block)
    return found.hexdigest()
