"""Files that are written as a whole or not at all: beside the one that they replace, which stays until they are done.

A full disk, a read-only folder and Ctrl-C leave an earlier file as it was, and nothing half written.  A pipe or a device
is written as it is.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from gradcheck_cli.errors import UsageError
from gradcheck_cli.formats.untrusted import HOME, own_folder


@contextmanager
def replacing(target: Path) -> Iterator[IO[bytes]]:
    """A file that replaces `target` when the block ends; on an error `target` stays as it was."""
    if "\0" in str(target):
        raise UsageError(f"{str(target)!r} cannot be written: it is no path.")
    try:
        with whole(target) as file:
            yield file
    except OSError as error:
        raise UsageError(f"{target} cannot be written: {error.strerror or error}.") from error


@contextmanager
def whole(path: str | os.PathLike[str], *, follow: bool = True) -> Iterator[IO[bytes]]:
    """The same, with an OSError for what goes wrong; a link is replaced itself, unless it is to be followed."""
    target = _target(os.fspath(path)) if follow else os.path.abspath(path)
    if _is_special(target, follow):
        with open(target, "wb") as file:
            yield file
        return
    temporary = os.path.join(os.path.dirname(target), f".{os.path.basename(target)}.{os.getpid()}.tmp")
    try:
        with open(temporary, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if os.path.exists(target):
            shutil.copymode(target, temporary)
        os.replace(temporary, target)
    finally:
        with suppress(OSError):
            os.unlink(temporary)


def _target(path: str) -> str:
    """The file that a path leads to; a link in a folder of gradcheck's own is not followed."""
    folder, name = os.path.split(os.path.abspath(path))
    if HOME not in Path(folder).parts:
        return os.path.realpath(path)
    with own_folder(folder) as own:
        own.refuse_link(name)
    return os.path.join(folder, name)


def _is_special(target: str, follow: bool) -> bool:
    """True for a pipe or a device; a folder cannot be replaced by a file, which is said at once."""
    with suppress(FileNotFoundError):
        mode = os.stat(target, follow_symlinks=follow).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), target)
        return not (stat.S_ISREG(mode) or stat.S_ISLNK(mode))
    return False
