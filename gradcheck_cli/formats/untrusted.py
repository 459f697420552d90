"""Files and folders that strangers may have made: a pipe that blocks its reader, a device without end, a link elsewhere.

`opened` reads a file safely.  An `OwnFolder` is one that gradcheck writes to and cleans up, such as `.gradcheck`: whoever
hands over a project may have put links into it, and none of them is followed.
"""

from __future__ import annotations

import errno
import hashlib
import os
import pathlib
import shutil
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from typing import IO, Any, TypeAlias

Path: TypeAlias = "str | os.PathLike[str]"
HOME = ".gradcheck"  # the folder of a project for all that gradcheck keeps there
LARGEST = 256 << 30  # bytes, for reading block by block
_BLOCK = 1 << 20
_THREAD = threading.local()
_NO_LINK, _NO_WAIT = getattr(os, "O_NOFOLLOW", 0), getattr(os, "O_NONBLOCK", 0)
_A_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0)
_BY_DESCRIPTOR = {os.open, os.mkdir, os.rename, os.unlink, os.stat, os.rmdir} <= os.supports_dir_fd


@contextmanager
def opened(path: Path, *, own: bool = False) -> Iterator[BufferedReader]:
    """A regular file, open for reading; raises OSError for anything else, and never blocks.

    One of gradcheck's `own` is not opened through a link.
    """

    def without_blocking(name: str, flags: int) -> int:
        return os.open(name, flags | _NO_WAIT)

    def opens() -> BufferedReader:
        if not own:
            return open(path, "rb", opener=without_blocking)
        with own_folder(os.path.dirname(path) or ".") as folder:
            return folder.file(os.path.basename(path), "rb")

    with closed_afterwards(opens) as file:
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


def content(path: Path, most: int, *, own: bool = False) -> bytes:
    """All bytes of a regular file; raises OSError if there are more than `most`."""
    return b"".join(blocks(path, most, own=own))


def blocks(path: Path, most: int = LARGEST, *, own: bool = False) -> Iterator[bytes]:
    """The bytes of a regular file in blocks, no more than its size says: files in /proc may have no end."""
    with opened(path, own=own) as file:
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


@contextmanager
def own_folder(path: Path, *names: str, make: bool = False) -> Iterator[OwnFolder]:
    """A folder of gradcheck's own, and the folders `names` in it; OSError if one of them is a link.

    Links are followed on the way to the working folder, to `.gradcheck`, or else to the last part of the path.
    """
    start, rest = _parted(path)
    if make:
        os.makedirs(start, exist_ok=True)
    at = OwnFolder(start, os.open(start, _A_FOLDER) if _BY_DESCRIPTOR else None)
    try:
        for name in (*rest, *names):
            at = at.entered(name, make=make)
        yield at
    finally:
        at.close()


class OwnFolder:
    """An open folder, in which names are looked up from its descriptor: nobody can put a link in between."""

    def __init__(self, path: str, descriptor: int | None) -> None:
        self.path, self.at = path, descriptor

    def close(self) -> None:
        """Closes the descriptor."""
        if self.at is not None:
            os.close(self.at)

    def entered(self, name: str, *, make: bool = False) -> OwnFolder:
        """A folder in it, in whose favor this one is closed."""
        if make:
            with suppress(FileExistsError):
                self.make(name)
        self.refuse_link(name)
        path = os.path.join(self.path, name)
        try:
            below = OwnFolder(path, self._opened(name, _A_FOLDER | _NO_LINK) if self.at is not None else None)
        except OSError as error:
            raise OSError(error.errno, error.strerror, path) from None
        self.close()
        self.path, self.at = below.path, None
        return below

    def names(self) -> list[str]:
        """The names of all that lies in it."""
        return os.listdir(self.path if self.at is None else self.at)

    def status(self, name: str) -> os.stat_result | None:
        """The status of what has a name, of the link itself if it is one; None if there is nothing."""
        try:
            return os.stat(self._place(name), dir_fd=self.at, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def refuse_link(self, name: str) -> None:
        """Raises OSError if a name is that of a link."""
        there = self.status(name)
        if there is not None and stat.S_ISLNK(there.st_mode):
            where = os.path.join(self.path, name)
            raise OSError(errno.ELOOP, f"{os.path.relpath(where)} is a link, which is not followed", where)

    def make(self, name: str) -> None:
        """Makes a folder in it."""
        os.mkdir(self._place(name), dir_fd=self.at)

    def file(self, name: str, mode: str) -> Any:
        """A regular file in it, opened as `open` does, and never through a link or a pipe."""
        self.refuse_link(name)
        buffering = 0 if "a" in mode else -1
        file: IO[bytes] = open(self._place(name), mode, buffering, opener=self._opened)  # noqa: SIM115  # the caller's
        if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            return file
        file.close()
        raise OSError(errno.EINVAL, "it is no regular file", os.path.join(self.path, name))

    def write(self, name: str, data: bytes, *, sync: bool = False) -> None:
        """Writes a file completely or not at all; `sync` has it survive a power cut."""
        new = f"{name}.new"
        try:
            self.remove(new)
            with self.file(new, "xb") as file:
                file.write(data)
                file.flush()
                if sync:
                    os.fsync(file.fileno())
            self.rename(new, name)
        except BaseException:
            with suppress(OSError):
                self.remove(new)
            raise

    @contextmanager
    def below(self, path: str) -> Iterator[tuple[OwnFolder, str]]:
        """The folder of a file at a path in it, made if it does not exist, and the name of the file."""
        *folders, name = pathlib.PurePath(path).parts
        at = OwnFolder(self.path, None if self.at is None else os.dup(self.at))
        try:
            for each in folders:
                at = at.entered(each, make=True)
            yield at, name
        finally:
            at.close()

    def rename(self, old: str, new: str) -> None:
        """Gives something in it another name; a file of that name is replaced."""
        os.replace(self._place(old), self._place(new), src_dir_fd=self.at, dst_dir_fd=self.at)

    def remove(self, name: str) -> None:
        """Removes a file, a folder with all that is in it, or a link as such; nothing if there is none."""
        there = self.status(name)
        if there is None:
            return
        if stat.S_ISDIR(there.st_mode):
            shutil.rmtree(self._place(name), dir_fd=self.at)
        else:
            os.unlink(self._place(name), dir_fd=self.at)

    def _opened(self, place: str, flags: int) -> int:
        return os.open(place, flags | _NO_LINK | _NO_WAIT, 0o666, dir_fd=self.at)

    def _place(self, name: str) -> str:
        return name if self.at is not None else os.path.join(self.path, name)


def _parted(path: Path) -> tuple[str, list[str]]:
    """The part of a path that may go through links, and the names below it."""
    whole, here = os.path.abspath(path), os.getcwd()
    parts = pathlib.PurePath(whole).parts
    if len(own := pathlib.PurePath(here).parts) > 1 and parts[: len(own)] == own:
        start = len(own)
    else:
        start = parts.index(HOME) if HOME in parts else max(1, len(parts) - 1)
    return os.path.join(*parts[:start]), [*parts[start:]]
