"""Files that come from elsewhere, and may be anything: a pipe that keeps its reader waiting, a device without end."""

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
LARGEST = 256 << 30  # bytes of a file that is read through
_BLOCK = 1 << 20
_THREAD = threading.local()


@contextmanager
def opened(path: Path) -> Iterator[BufferedReader]:
    """A regular file, open to be read; OSError for anything else, and nothing is waited for."""
    with closed_afterwards(lambda: open(path, "rb", opener=_at_once)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file", str(path))
        yield file


@contextmanager
def closed_afterwards(open_file: Callable[[], BufferedReader]) -> Iterator[BufferedReader]:
    """The file that a function opens, closed in the end, even if a time limit strikes just as it is being opened.

    An alarm raises between any two instructions, also between the opening and the `with` that would close.
    """
    file = None
    try:
        with _Opening():
            file = open_file()
        yield file
    finally:
        if file is not None:
            file.close()


def is_opening() -> bool:
    """This thread is about to open a file that nobody would close yet: an alarm has to wait."""
    return getattr(_THREAD, "opening", False)


class _Opening:
    def __enter__(self) -> None:
        _THREAD.opening = True

    def __exit__(self, *_: object) -> None:
        _THREAD.opening = False


def content(path: Path, most: int) -> bytes:
    """All bytes of a regular file that has at most so many; OSError for any other."""
    return b"".join(blocks(path, most))


def blocks(path: Path, most: int = LARGEST) -> Iterator[bytes]:
    """The bytes of a regular file, as many as it says that it has: files of the kernel may go on for ever."""
    with opened(path) as file:
        left = os.fstat(file.fileno()).st_size
        if left > most:
            raise OSError(errno.EFBIG, f"it is larger than {most >> 20} MiB", str(path))
        while left > 0 and (block := file.read(min(_BLOCK, left))):
            left -= len(block)
            yield block


def inside(folder: pathlib.Path, path: str, whose: str) -> pathlib.Path:
    """What a path from elsewhere means in a folder; ValueError where it would lie outside of it, by a link too."""
    if "\0" in path or pathlib.PureWindowsPath(path).anchor or os.path.isabs(path):
        raise ValueError(f"the path {path!r} is absolute; it must be relative to {whose}")
    root = folder.resolve()
    file = (root / path).resolve()
    if not file.is_relative_to(root):
        raise ValueError(f"the path {path!r} leads out of {whose}")
    return file


def sha256_of(path: Path) -> str:
    """The SHA-256 of a regular file; OSError for one that cannot be read, or takes hours."""
    found = hashlib.sha256()
    for block in blocks(path):
        found.update(block)
    return found.hexdigest()


def _at_once(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
